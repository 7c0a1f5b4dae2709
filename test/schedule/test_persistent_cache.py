"""Kernels and schedules kept on disk: found again in other processes, never taken for others, never trusted
when damaged."""
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_cache import run_program, steps

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen import compile as compiling
from tinygrad.codegen import kernel_cache
from tinygrad.codegen.kernel_cache import Written, cached_kernel, kernel_key
from tinygrad.device import Device
from tinygrad.dtype import DType
from tinygrad.engine import realize
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.portable import NotPortable, Reader, Writer, text_of
from tinygrad.graph.records import decode, encode
from tinygrad.graph.uop import UOp
from tinygrad.schedule import persistent_cache
from tinygrad.schedule.cache import ScheduleCache, Structure
from tinygrad.schedule.persistent_cache import PersistentSchedules
from tinygrad.store import DiskStore, offered, recorded


def asts() -> list[UOp]:
    """Kernels of many kinds: products, sums, windows, masks, random numbers, a variable."""
    x, image = Tensor.ones(8, 8).contiguous().realize(), Tensor.ones(1, 2, 6, 6).contiguous().realize()
    results = [x @ x.T, x.softmax(), image.conv2d(Tensor.ones(3, 2, 3, 3)), x.pad(((1, 0), (0, 2))),
               x.flip(0) + math.inf, (x < 1).where(-0.0, x), Tensor.rand(5), x.cast(dtypes.float16) * 2,
               x.argmax(1), x.cumsum(0), x + Tensor(UOp.variable("i", 0, 7).bind(2))]
    return [item.ast for r in results for item in schedule_uops([r.uop])]


# --- graphs as data -----------------------------------------------------------------------------------------


def test_a_graph_read_back_is_the_graph():
    for ast in asts():
        writer = Writer()
        at = writer.add(ast)
        assert Reader(json.loads(json.dumps(writer.rows))).node(at) is ast


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, 5e-324, 0.1, 1 / 3])
def test_a_number_read_back_has_the_same_bits(number):
    node = UOp.const(number, dtypes.float64)
    (back,) = Reader(json.loads(text_of(node))).nodes
    assert back is node and math.copysign(1, back.arg) == math.copysign(1, number)
    (not_a_number,) = Reader(json.loads(text_of(UOp.const(math.nan, dtypes.float32)))).nodes
    assert math.isnan(not_a_number.arg)


def test_different_graphs_have_different_texts():
    a, b = (UOp.new(Ops.PARAM, dtypes.float32, (), (slot, 4)) for slot in (0, 1))
    floats = (dtypes.float32, dtypes.float64)
    constants = [UOp.const(v, d) for d in floats for v in (0.0, -0.0, 1.0, math.nan)]
    constants += [UOp.const(v, d) for d in (dtypes.int32, dtypes.int8, dtypes.bool) for v in (0, 1)]
    nodes = [a, b, a + b, b + a, a * b, a - b, b - a, a + a, a.reshape((2, 2)), a.reshape((4, 1)),
             *constants, *asts()]
    distinct = list(dict.fromkeys(nodes))
    assert len({text_of(n) for n in distinct}) == len(distinct)


def test_memory_has_no_form_outside_of_its_process():
    with pytest.raises(NotPortable, match="memory belongs to one process"):
        text_of(UOp.new_buffer("CPU", 4, dtypes.float32) + 1)


@pytest.mark.parametrize("change", [
    lambda rows: rows[-1].__setitem__(0, "NOTHING"), lambda rows: rows[-1].__setitem__(1, "float33"),
    lambda rows: rows[-1].__setitem__(3, [99]), lambda rows: rows[-1].__setitem__(3, [-1, 0]),
    lambda rows: rows[-1].pop(), lambda rows: rows.append(7),
    lambda rows: rows[-1].__setitem__(3, ["x"]), lambda rows: rows.append(None),
])
def test_rows_that_are_no_graph_are_refused(change):
    a, b = (UOp.new(Ops.PARAM, dtypes.float32, (), (slot, 4)) for slot in (0, 1))
    rows = json.loads(text_of(a + b))
    change(rows)
    with pytest.raises(ValueError, match="not rows of a graph"):
        Reader(rows)


# --- records ------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: float | None


@dataclass(frozen=True)
class Record:
    name: str
    points: tuple[Point, ...]
    both: tuple[bool, Colour]
    kinds: Mapping[str, DType]
    node: UOp
    anything: Any
    note: object = field(default=None, compare=False)


numbers = st.integers(-2**40, 2**40)
points = st.builds(Point, numbers, st.none() | st.floats(allow_nan=False))
constants = st.sampled_from([None, True, Ops.ADD, dtypes.float16])
arguments = st.recursive(constants | numbers | st.text(),
                         lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
records = st.builds(Record, st.text(), st.lists(points, max_size=3).map(tuple),
                    st.tuples(st.booleans(), st.just(Colour.RED)),
                    st.dictionaries(st.text(), st.sampled_from([dtypes.int8, dtypes.float32.vec(4)])),
                    numbers.map(lambda n: UOp.const(n, dtypes.int64) + 1), arguments)


@given(records)
def test_a_record_read_back_is_the_record(record):
    assert decode(Record, encode(Record, record)) == record


@pytest.mark.parametrize(("at", "value"), [
    (0, 3), (0, None), (1, 3), (1, [[1]]), (1, [[1, 2, 3]]), (1, [[1.0, None]]), (1, [[True, None]]),
    (2, [1, "RED"]), (2, [True, "BLUE"]), (2, [True]), (2, "no list"), (3, [["a", "int8"]]), (3, [["a"]]),
    (3, {}), (4, 99), (4, -1), (4, "0"), (5, {"node": 99}), (5, {"op": "NOTHING"}), (5, {}),
])
def test_a_record_of_other_types_is_refused(at, value):
    record = Record("a", (), (True, Colour.RED), {}, UOp.const(1, dtypes.int64), None)
    data = json.loads(encode(Record, record))
    data["value"][at] = value
    with pytest.raises(ValueError):
        decode(Record, json.dumps(data).encode())


# --- kernels ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Kernels and schedules kept in an empty folder, with nothing in this process's memory."""
    for module in (kernel_cache, persistent_cache):
        monkeypatch.setattr(module, "store_of", lambda kind, limit=0: DiskStore(tmp_path / kind))
    with Context(CHECK=0, CACHELEVEL=2):
        yield tmp_path


@pytest.mark.parametrize("device", ["CPU", "PYTHON:BLOCKS"])
def test_a_kernel_read_back_is_as_it_was_written(device):
    for ast in asts()[:4]:
        written = compiling.write_kernel(ast, device, False)
        assert decode(Written, encode(Written, written)) == written


def test_a_kernel_is_written_once_for_each_device_and_kind(folder, monkeypatch):
    ast, calls = asts()[0], []
    now = compiling.written_now
    monkeypatch.setattr(compiling, "written_now", lambda *key: calls.append(key) or now(*key))
    wanted = [(ast, "CPU", False), (ast, "CPU", True), (ast, "PYTHON", False), (asts()[1], "CPU", False)]
    first = [compiling.write_kernel(*key) for key in wanted]
    assert [compiling.write_kernel(*key) for key in wanted] == first
    assert calls == wanted


def test_a_kernel_of_other_code_or_another_machine_is_another(monkeypatch):
    ast = asts()[0]
    keys = [kernel_key(ast, "CPU")]
    with monkeypatch.context() as patch:
        patch.setattr(kernel_cache, "code_version", lambda: "other code")
        keys.append(kernel_key(ast, "CPU"))
    with monkeypatch.context() as patch:
        renderer = Device["CPU"].renderer
        patch.setattr(renderer, "machine", replace(renderer.machine, registers=8))
        keys.append(kernel_key(ast, "CPU"))
    with Context(ALLOW_TF32=1):
        keys.append(kernel_key(ast, "CPU"))
    keys += [kernel_key(ast, "CPU", plain=True), kernel_key(ast, "PYTHON")]
    assert len(set(keys)) == len(keys) and None not in keys


def test_kernels_of_a_renderer_from_elsewhere_are_not_kept(folder, monkeypatch):
    class Mine(type(Device["PYTHON"].renderer)):
        pass

    monkeypatch.setattr(Device["PYTHON"], "_renderer", Mine())
    compiling.write_kernel(asts()[0], "PYTHON", False)
    assert kernel_key(asts()[0], "PYTHON") is None and not (folder / "kernels").exists()


@pytest.mark.parametrize("setting", [{"CACHELEVEL": 1}, {"CACHELEVEL": 0}, {"CHECK": 1}, {"DEBUG": 3}])
def test_settings_that_want_every_stage_keep_nothing(folder, setting, capsys):
    with Context(**setting):
        compiling.write_kernel(asts()[0], "CPU", False)
    assert not (folder / "kernels").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"nonsense", b"\xff\xfe"])
def test_a_kept_kernel_that_is_none_is_written_again(folder, content):
    ast = asts()[0]
    written = compiling.write_kernel(ast, "CPU", False)
    DiskStore(folder / "kernels").put(kernel_key(ast, "CPU"), content)
    assert cached_kernel(ast, "CPU", False, lambda: written) is written


def test_what_is_recorded_can_be_offered_without_a_disk(monkeypatch):
    ast, no_disk = asts()[0], Context(CACHELEVEL=0)
    with no_disk, recorded() as code:
        written = compiling.write_kernel(ast, "CPU", False)
    assert kernel_key(ast, "CPU") in code
    monkeypatch.setattr(compiling, "written_now", lambda *key: pytest.fail("written again"))
    with no_disk, offered(code):
        assert compiling.write_kernel(ast, "CPU", False) == written


PROGRAM = """
import sys
from tinygrad import Tensor
from tinygrad.codegen import compile as compiling
from tinygrad.schedule import cache
import numpy as np
if sys.argv[1] == "load":
    def refuse(*given): raise SystemExit("was written again")
    compiling.written_now = cache.create_schedule = refuse
x = Tensor(np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8))
for _ in range(6):
    x = (x @ Tensor.ones(8, 8).contiguous()).softmax() + (x / 9).exp() - x.max(1, keepdim=True)
print(x.tolist())
"""


def test_another_process_neither_schedules_nor_writes_again(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CACHELEVEL": "2", "CHECK": "0"}
    outputs = []
    for mode, seed in (("make", "1"), ("load", "2")):
        done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True,
                              env={**environment, "PYTHONHASHSEED": seed}, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    x = np.linspace(-1, 1, 48, dtype=np.float64).reshape(6, 8)
    for _ in range(6):
        scores = x @ np.ones((8, 8))
        powers = np.exp(scores - scores.max(1, keepdims=True))
        x = powers / powers.sum(1, keepdims=True) + np.exp(x / 9) - x.max(1, keepdims=True)
    for output in outputs:
        np.testing.assert_allclose(json.loads(output), x, rtol=1e-4)


# --- schedules ----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(program=steps, seed=st.integers(0, 1000))
def test_programs_whose_schedules_come_from_disk_give_what_numpy_gives(tmp_path_factory, program, seed):
    folder = DiskStore(tmp_path_factory.mktemp("schedules"))
    with pytest.MonkeyPatch.context() as patch, Context(CHECK=0, CACHELEVEL=2):
        patch.setattr(kernel_cache, "store_of", lambda kind: folder)
        patch.setattr(persistent_cache, "store_of", lambda kind, limit: folder)
        for again in (False, True):
            patch.setattr(realize, "schedules", ScheduleCache(disk=PersistentSchedules(least_nodes=0)))
            for got, expected in zip(*run_program(program, seed + again), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_a_schedule_read_back_is_the_schedule(folder, monkeypatch):
    written, read = [], []

    class Watched(PersistentSchedules):
        def get_or_make(self, structure, make):
            before = len(written)
            found = super().get_or_make(structure, lambda: written.append(make()) or written[-1])
            if len(written) == before:
                read.append(found)
            return found

    i = UOp.variable("i", 0, 2)
    for n in range(2):
        rows = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
        monkeypatch.setattr(realize, "schedules", ScheduleCache(disk=Watched(least_nodes=0)))
        x = rows + 0
        for result in ((x @ x.T).softmax(), x.cumsum(0).contiguous().T + 1, rows[i.bind(n + 1)] * 2):
            result.realize()
    assert len(written) == 3 and read == written


def structure_of(size: int) -> Structure:
    x = Tensor.ones(size).contiguous().realize()
    return Structure([((x + 1).sum() * x).uop])


def test_schedules_of_other_sizes_devices_and_code_are_others(monkeypatch):
    keys = [persistent_cache.digest_of(structure_of(n)) for n in (4, 5, 4)]
    assert keys[0] == keys[2] != keys[1]
    monkeypatch.setattr(kernel_cache, "code_version", lambda: "other code")
    assert persistent_cache.digest_of(structure_of(4)) not in keys


fresh, items, views, arenas = (lambda d, at=at: d["value"][at] for at in range(4))


@pytest.mark.parametrize("change", [
    lambda d: d.pop("value"), lambda d: d["value"].pop(), lambda d: d["rows"].clear(),
    lambda d: items(d)[0][2].append(99), lambda d: items(d)[0][2].append(-1),
    lambda d: items(d)[0][2].append("one"), lambda d: items(d)[0].pop(),
    lambda d: views(d)[0].__setitem__(0, 9999), lambda d: views(d)[0].__setitem__(0, -1),
    lambda d: arenas(d).append(["CPU", [4, [[1, 64]]]]), lambda d: arenas(d).append(["CPU", [64, [[-1, 0]]]]),
    lambda d: items(d)[0].__setitem__(2, "one"), lambda d: views(d)[0].__setitem__(0, "one"),
    lambda d: views(d)[0].__setitem__(1, 9999), lambda d: arenas(d).append(["CPU", [4, [[1, "one"]]]]),
    lambda d: fresh(d)[0][2].__setitem__("dtype", "float33"), lambda d: fresh(d)[0].__setitem__(1, 4.0),
])
def test_a_kept_schedule_that_is_none_is_made_again(folder, monkeypatch, change):
    disk = PersistentSchedules(least_nodes=0)
    x = Tensor([1.0, 2.0, 3.0]).realize()

    def results() -> list[float]:
        monkeypatch.setattr(realize, "schedules", ScheduleCache(disk=disk))
        return [*((x + 1).sum() * x).tolist(), *(x + 1).max().reshape(1).tolist()]

    assert results() == [9.0, 18.0, 27.0, 4.0]
    files = list((folder / "schedules").iterdir())
    assert files
    for file in files:
        data = json.loads(file.read_bytes()[32:])
        change(data)
        DiskStore(folder / "schedules").put(file.name, json.dumps(data).encode())
    assert results() == [9.0, 18.0, 27.0, 4.0]


def test_small_graphs_leave_no_file(folder, monkeypatch):
    monkeypatch.setattr(realize, "schedules", ScheduleCache(disk=PersistentSchedules()))
    (Tensor([1.0, 2.0]) + 1).realize()
    assert not (folder / "schedules").exists()
