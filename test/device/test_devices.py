"""Each device: what it is called, what it computes, and what it says where it cannot."""
from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import Array, drawn

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.__main__ import main, row_of, table
from tinygrad.device import Buffer, CompiledDevice
from tinygrad.dtype import DType
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.spec import SpecError, check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters
from tinygrad.renderer.c import CRenderer
from tinygrad.renderer.c_functions import PLAIN_C, Dialect
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import cpu_c, webgpu

F, INDEX = dtypes.float32, dtypes.index
rng = np.random.default_rng(11)
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("clang", "gcc", "cc"))),
                                    reason="no C compiler on the path")
COMPUTING = ["CPU", "CPU:1", pytest.param("CPU:C", marks=needs_compiler), "PYTHON"]


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "full"), [
    ("cpu:c", "CPU:C"), ("CLANG", "CPU:C"), ("CPU:C:0", "CPU:C"), ("cpu:c:2", "CPU:C:2"),
    ("clang:1", "CPU:C:1"),
    ("nv", "CUDA"), ("NV:1", "CUDA:1"), ("nvidia:2", "CUDA:2"), ("hip", "AMD"), ("gpu", "CL"),
    ("cpu:llvm", "CPU"), ("llvm:3", "CPU:3"), ("python", "PYTHON"), ("null:01", "NULL:1"),
    ("disk:/tmp/Weights", "DISK:/tmp/Weights"), ("DISK:/tmp/../x", "DISK:/x"), ("disk", "DISK")])
def test_names_of_devices(given: str, full: str) -> None:
    assert Device.canonicalize(given) == full


@pytest.mark.parametrize("name", ["n", "NV:x", "cpu:c:x", "CPU:C:-1", "PYTHON:x", "CPU:", ":1"])
def test_names_that_no_device_has(name: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Device.canonicalize(name)


@pytest.mark.parametrize(("name", "said"), [
    ("CUDA:FOO", "available of this kind: CUDA, CUDA:PTX, CUDA:EMULATED; the second of several is CUDA:1"),
    ("nv:x:1", "available of this kind: CUDA, CUDA:PTX, CUDA:EMULATED;"),
    ("TPU", "available: CPU, CPU:C, PYTHON")])
def test_a_name_that_no_device_has_is_answered_with_those_there_are(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not the name of a device; {said}"):
        Tensor([1.0], device=name)


@pytest.mark.parametrize("given", [3, ("CPU", 1), 1.5])
def test_what_is_no_name_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match=r'devices are given by their names, as "CPU:1", got'):
        Tensor([1.0], device=given)  # type: ignore[arg-type]


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_no_package.py").write_text("import package_of_nobody.part\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(Device.FILES, "NOBODY", "of_no_package")
    with pytest.raises(ImportError, match="NOBODY:1 needs package_of_nobody: python3 -m pip install package"):
        Tensor([1.0], device="NOBODY:1").realize()
    assert "not available: NOBODY needs package_of_nobody" in row_of("NOBODY", measure=False).state


def test_every_device_is_listed_with_what_it_is_or_why_not() -> None:
    lines = {line.split()[0].rstrip("*"): line for line in table(measure=False).splitlines()}
    assert set(lines) == {"device", *Device.FILES}
    assert "LLVM" in lines["CPU"] and "NumPy" in lines["PYTHON"]
    assert "holds data" in lines["DISK"]


def test_a_name_that_no_device_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", "TPU"]) == 2
    assert "'TPU' is not the name of a device; available: CPU, " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["CPU", "PYTHON"])
def test_bandwidth_and_arithmetic_of_a_device_are_measured(kind: str) -> None:
    rates = [float(text) for text in table([kind.lower()]).splitlines()[1].split()[-3:]]
    assert len(rates) == 3 and all(0 < rate < 1e6 for rate in rates)


def test_a_device_that_runs_nothing_has_no_rates() -> None:
    assert row_of("NULL").state == "available" and row_of("NULL").arithmetic == ""


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine without C compilers, on which CPU:C was not opened yet."""
    monkeypatch.setattr(Device, "opened", {})
    monkeypatch.setattr(cpu_c.shutil, "which", lambda name: None)
    yield monkeypatch


def test_a_missing_compiler_says_what_to_install(no_compiler: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="none of clang, gcc, cc is there: install clang or gcc"):
        Tensor([1], device="CPU:C")
    assert row_of("CPU:C").state.startswith("not available: CPU:C needs a C compiler")


@pytest.mark.parametrize(("asked", "text"), [("", r"none of g\+\+, clang\+\+, c\+\+ is there"),
                                             ("g++-99", r"CXX names 'g\+\+-99', which is not there")])
def test_a_missing_compiler_of_the_emulators_says_what_to_install(asked: str, text: str,
                                                                  no_compiler: pytest.MonkeyPatch) -> None:
    no_compiler.setattr(cpu_c, "getenv", lambda key, default: asked)
    with pytest.raises(RuntimeError, match=f"{text}: install .*apt-get install g"):
        Tensor([1], device="METAL:EMULATED")


def test_a_reason_of_several_lines_is_one_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("no GPU:\n\n  Caused by\n    nothing")

    monkeypatch.setattr(webgpu, "open_device", refuse)
    monkeypatch.setattr(Device, "opened", {})
    assert row_of("WEBGPU").state == "not available: no GPU: Caused by nothing"


def test_a_device_that_opens_and_compiles_nothing_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: CompiledDevice) -> None:
        raise RuntimeError("the compiler does not know this CPU\n" + "    x = 1;\n" * 1000)

    monkeypatch.setattr("tinygrad.__main__.measured_rates", refuse)
    state = row_of("PYTHON").state
    assert state.startswith("not available: the compiler does not know this CPU x = 1;")
    assert state.endswith(" ...") and len(state) < 600


@needs_compiler
def test_sorting_rows_that_are_repeated() -> None:
    """The vectorizer of gcc 12 breaks down on one of these kernels."""
    rows = drawn(3, 1, 2)
    values, places = Tensor(rows, device="CPU:C").realize().expand(3, 4, 2).sort()
    Tensor.realize(values, places)
    np.testing.assert_array_equal(values.numpy(), np.sort(rows).repeat(4, 1))
    np.testing.assert_array_equal(places.numpy(), rows.argsort().repeat(4, 1))


def test_a_compiler_that_is_asked_for_is_not_replaced_by_another(no_compiler: pytest.MonkeyPatch) -> None:
    no_compiler.setattr(cpu_c, "getenv", lambda key, default: "clang-99" if key == "CC" else default)
    with pytest.raises(RuntimeError, match="CC names 'clang-99', which is not there: install"):
        Tensor([1], device="CPU:C")


# --- computing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", COMPUTING)
def test_every_device_computes_what_numpy_does(device: str) -> None:
    a, b = drawn(19, 23), drawn(23, 17)
    x, w = Tensor(a, device=device), Tensor(b, device=device)
    np.testing.assert_allclose((x @ w).numpy(), a @ b, rtol=1e-4, atol=1e-5)
    wide = a.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(x.softmax().numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(x.sin().sum(0).numpy(), np.sin(wide).sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(x.T.contiguous().numpy(), a.T)
    np.testing.assert_array_equal((x > 0.5).where(x, -1).half().numpy(),
                                  np.where(a > 0.5, a, np.float32(-1)).astype(np.float16))
    assert (x @ w).sum().device == Device.canonicalize(device)


@pytest.mark.parametrize("device", COMPUTING)
def test_gradients_and_replay_on_every_device(device: str) -> None:
    w = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), device=device, requires_grad=True)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x @ w).relu().realize()

    for n in range(4):
        x = np.array([[n, -1.0]], np.float32)
        np.testing.assert_array_equal(step(Tensor(x, device=device)).numpy(), np.maximum(x @ w.numpy(), 0))
    (w * w * w).sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), 3 * w.numpy() ** 2)


@pytest.mark.parametrize("device", [d for d in COMPUTING if d != "CPU:1"])
def test_the_same_seed_gives_the_same_numbers_on_every_kind_of_device(device: str) -> None:
    Tensor.manual_seed(5)
    expected = Tensor.rand(33, device="CPU").numpy()
    Tensor.manual_seed(5)
    np.testing.assert_array_equal(Tensor.rand(33, device=device).numpy(), expected)


@pytest.mark.parametrize("device", ["CPU:1", "PYTHON"])
def test_constants_are_computed_where_they_are_wanted(device: str) -> None:
    """Not on the default device, to be copied."""
    for make in (lambda: Tensor.ones(3, device=device).contiguous() * 2,
                 lambda: Tensor.arange(57, device=device).sum(),  # no other test has these in memory
                 lambda: Tensor.full((2, 3), 4.0, device=device).contiguous().sum(0).contiguous() + 1):
        t = make()
        assert {item.device for item in t.schedule()} == {device}
        assert all(item.ast.op is not Ops.COPY for item in t.schedule())
    assert make().tolist() == [9.0, 9.0, 9.0]


@pytest.mark.parametrize("device", COMPUTING)
def test_a_loop_over_a_part_of_its_range(device: str) -> None:
    """sum of i in [2, n) of 10, for bounds that only the program knows, empty ones too."""
    for n in (7, 2, 1):
        high = UOp.variable("n", 0, 10)
        bounds = (UOp.const(10, INDEX), UOp.const(2, INDEX), high)
        loop = UOp.new(Ops.RANGE, INDEX, bounds, (0, RangeKind.LOOP))
        total, target = UOp.new(Ops.REGISTER, F, (), 0), UOp.new(Ops.PARAM, F, (), (0, 1))
        before, after = (UOp.new(Ops.LOAD, F, (total,), i) for i in range(2))
        start = program_of(total.store(UOp.const(0.0, F)), target, loop)
        step = program_of(*start, total.store(before + loop.cast(F)))
        end = target.index(UOp.const(0, INDEX)).store(after)
        program = [*step, UOp.new(Ops.END, INDEX, (loop,)), *(n for n in end.toposort() if n not in step)]
        out = np.zeros(1, np.float32)
        run_program(Device.canonicalize(device), program, [out], [n])
        assert out[0] == sum(range(2, n))


@pytest.mark.parametrize("lanes", [3, 4, 8])
@pytest.mark.parametrize("dtype", [F, dtypes.bfloat16, dtypes.bool], ids=lambda d: d.name)
@pytest.mark.parametrize("device", COMPUTING)
def test_lanes_of_two_vectors_shuffled(device: str, dtype: DType, lanes: int) -> None:
    memory = [UOp.new(Ops.PARAM, dtype, (), (slot, lanes)) for slot in range(3)]
    start = UOp.const(0, INDEX)
    first, second = (UOp.new(Ops.LOAD, dtype.vec(lanes), (m.index(start),)) for m in memory[1:])
    picks = tuple(int(i) for i in rng.permutation(2 * lanes)[:lanes])
    mixed = UOp.new(Ops.SHUFFLE, dtype.vec(lanes), (first, second), picks)
    program = program_of(UOp.new(Ops.STORE, mixed.dtype, (memory[0].index(start), mixed)))
    a, b = ((drawn(lanes) * 4).astype(dtype.numpy) > 0 if dtype.is_bool else
            (drawn(lanes) * 4).astype(dtype.numpy) for _ in range(2))
    out = np.zeros(lanes, dtype.numpy)
    run_program(device, program, [out, a, b], [])
    np.testing.assert_array_equal(out, np.concatenate([a, b])[list(picks)])


# --- moving ---------------------------------------------------------------------------------------------


HOLDING = [*COMPUTING, "DISK"]


def place(name: str, folder: Path) -> str:
    return f"DISK:{folder / 'data.bin'}" if name == "DISK" else name


@pytest.mark.parametrize("target", HOLDING)
@pytest.mark.parametrize("source", HOLDING)
def test_copies_between_every_two_devices(source: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    start, end = place(source, tmp_path / "a"), place(target, tmp_path / "b")
    x = drawn(6, 5)
    t = Tensor(x, device=start)
    moved = t.to(end)
    np.testing.assert_array_equal(moved.numpy(), x)
    assert moved.device == Device.canonicalize(end)
    np.testing.assert_array_equal(t[2:4].to(end).numpy(), x[2:4])
    np.testing.assert_array_equal(t.T[1:, ::2].to(end).to("CPU").numpy(), x.T[1:, ::2])
    np.testing.assert_array_equal((t.to(end)[1:4] * 2).to("CPU").numpy(), x[1:4] * 2)
    flags = Tensor(x > 0, device=start).to(end)
    assert flags.dtype is dtypes.bool
    np.testing.assert_array_equal(flags.numpy(), x > 0)
    assert Tensor(x[:0], device=start).to(end).numpy().shape == (0, 5)


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_copies_keep_every_dtype(dtype: DType) -> None:
    x = Tensor(np.arange(-3, 4).astype(np.float32)).cast(dtype)
    moved = x.to("PYTHON").to("CPU:1").to("CPU")
    assert moved.dtype is dtype
    np.testing.assert_array_equal(moved.numpy().view(np.uint8), x.numpy().view(np.uint8))


def test_a_part_is_copied_without_being_packed_first() -> None:
    t = Tensor(drawn(100, 10), device="CPU").realize()
    item, = t[20:30].to("CPU:1").schedule()
    assert item.ast.op is Ops.COPY
    before = GlobalCounters.global_mem
    t[20:30].to("CPU:1").realize()
    assert GlobalCounters.global_mem - before == 400


def test_values_of_two_devices_do_not_meet_by_accident() -> None:
    with pytest.raises(ValueError, match="different devices: CPU, PYTHON"):
        Tensor([1.0], device="CPU") + Tensor([2.0], device="PYTHON")


def test_gradients_travel_back() -> None:
    x = Tensor([1.0, 2.0], device="CPU", requires_grad=True)
    (x.to("PYTHON") * 3).sum().backward()
    assert x.grad is not None and x.grad.device == "CPU" and x.grad.tolist() == [3.0, 3.0]


# --- NULL -----------------------------------------------------------------------------------------------


def test_null_compiles_and_counts_and_computes_nothing() -> None:
    GlobalCounters.reset()
    gc.collect()
    used = GlobalCounters.mem_used
    huge = Tensor.empty(1 << 20, 1 << 20, device="NULL")
    result = (huge * 2 + 1).sum(1).realize()
    assert GlobalCounters.kernel_count > 0 and GlobalCounters.global_ops >= 1 << 40
    assert GlobalCounters.mem_used - used >= 4 << 20
    with pytest.raises(RuntimeError, match="NULL computes nothing"):
        result.numpy()


def test_null_takes_data_and_trains() -> None:
    w = Tensor(drawn(4, 4), device="NULL", requires_grad=True)
    loss = (Tensor(drawn(2, 4), device="CPU").to("NULL") @ w).sum()
    loss.backward()
    assert w.grad is not None and w.grad.realize().shape == (4, 4)


# --- DISK -----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, Array]:
    data = drawn(1000)
    path = tmp_path / "Data.bin"
    data.tofile(path)
    return path, data


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(offset, length) of what is read from files from now on."""
    from tinygrad.runtime.disk import File

    found: list[tuple[int, int]] = []
    read = File.read

    def noted(self: File, target: memoryview, offset: int) -> None:
        found.append((offset, target.nbytes))
        read(self, target, offset)

    monkeypatch.setattr(File, "read", noted)
    return found


VIEWS: list[tuple[Callable[[Any], Any], list[tuple[int, int]]]] = [
    (lambda x: x[10:20], [(40, 40)]),
    (lambda x: x[100:200].reshape(10, 10)[3:5], [(520, 80)]),
    (lambda x: x[10:20:3], [(40, 40)]),
    (lambda x: x.reshape(10, 100).T[7], [(28, 3604)]),
    (lambda x: x[500:520][::-1][:5], [(2060, 20)]),
    (lambda x: x[:4] * 2 + x[6:10], [(0, 40)]),
    (lambda x: x.reshape(10, 100)[2].sum(), [(800, 400)]),
    (lambda x: x[:0], []),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_of_a_file_only_the_part_in_question_is_read(number: int, file: tuple[Path, Array],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = file
    view, expected = VIEWS[number]
    reads = reads_of(monkeypatch)
    t = Tensor.from_file(path, dtype=F)
    assert t.device == f"DISK:{path}" and t.shape == (1000,) and repr(t).endswith("lazy>")
    chosen = view(t)
    assert reads == []
    np.testing.assert_allclose(chosen.to("CPU").numpy(), view(data), rtol=1e-5)
    assert reads == expected


def test_bytes_of_a_file_become_numbers_where_they_go(file: tuple[Path, Array]) -> None:
    path, data = file
    raw = Tensor.from_file(str(path))
    assert raw.dtype is dtypes.uint8 and raw.shape == (4000,)
    np.testing.assert_array_equal(raw.bitcast(F)[5:9].to("CPU").numpy(), data[5:9])
    assert raw[:3].tolist() == list(data.tobytes()[:3])


def test_a_file_is_written_by_moving_to_it(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    x = drawn(3, 4)
    moved = Tensor(x).to(f"DISK:{path}").realize()
    np.testing.assert_array_equal(np.fromfile(path, np.float32), x.reshape(-1))
    kept = Tensor.from_file(path, dtype="float32")
    (kept.to("CPU") + 1).to(f"DISK:{path}").realize()
    np.testing.assert_array_equal(np.fromfile(path, np.float32), x.reshape(-1) + 1)
    np.testing.assert_array_equal(moved.numpy(), x)
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_file_opens_as_an_empty_tensor_of_its_device(file: tuple[Path, Array]) -> None:
    path, data = file
    t = Tensor.empty(10, 100, device=f"disk:{path}")
    np.testing.assert_array_equal(t[4].to("CPU").numpy(), data[400:500])


def test_constants_can_be_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ones.bin"
    Tensor.ones(5, device=f"DISK:{path}").contiguous().realize()
    np.testing.assert_array_equal(np.fromfile(path, np.float32), np.ones(5))


def test_what_a_file_cannot_do_says_so(file: tuple[Path, Array], tmp_path: Path) -> None:
    path, _ = file
    with pytest.raises(RuntimeError, match=r"holds data and computes nothing; move the tensor first"):
        (Tensor.from_file(path) + 1).realize()
    with pytest.raises(FileNotFoundError):
        Tensor.from_file(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="nothing was written"):
        Tensor.empty(3, device=f"DISK:{tmp_path / 'missing'}").numpy()
    with pytest.raises(ValueError, match="4000 bytes, no multiple of 8|3999"):
        path.write_bytes(bytes(3999))
        Tensor.from_file(path, dtype="float64")
    with pytest.raises(RuntimeError, match="ends after 3999 bytes; 8000 were"):
        Tensor.empty(1000, dtype="float64", device=f"DISK:{path}").numpy()
    with pytest.raises(ValueError, match="DISK takes the path of a file"):
        Tensor([1.0], device="DISK")


# --- PYTHON: blocks, threads, shared memory -------------------------------------------------------------


def program_of(*roots: UOp) -> list[UOp]:
    """Nodes in order, each after its sources."""
    nodes: dict[UOp, None] = {}
    for root in roots:
        nodes.update(dict.fromkeys(root.toposort(stop=lambda n: n in nodes)))
    return list(nodes)


def run_program(name: str, program: list[UOp], arrays: Sequence[Array], variables: Sequence[int]) -> None:
    check_graph(program, "program")
    device = Device[name]
    kernel = device.load("kernel", device.compile(device.renderer.render("kernel", program)))
    kernel([a.ctypes.data for a in arrays], variables, 1)


def run_on_python(program: list[UOp], arrays: Sequence[Array]) -> None:
    run_program("PYTHON", program, arrays, ())


def special(name: str, size: int) -> UOp:
    return UOp.new(Ops.SPECIAL, INDEX, (), (name, size))


def param(slot: int, size: int, dtype: DType = F) -> UOp:
    return UOp.new(Ops.PARAM, dtype, (), (slot, size))


def reversed_in_blocks(barrier: bool) -> list[UOp]:
    """Each block of 8 threads turns its 8 items around, by way of shared memory."""
    block, thread = special("gidx0", 3), special("lidx0", 8)
    shared = UOp.new(Ops.SHARED, F, (), (0, 8))
    filled = shared.index(thread).store(param(1, 24).index(block * 8 + thread).load())
    turned = param(0, 24).index(block * 8 + thread).store(shared.index(thread * -1 + 7).load())
    steps = program_of(filled)
    steps += [UOp.new(Ops.BARRIER, INDEX)] if barrier else []
    return [*steps, *(n for n in turned.toposort() if n not in steps)]


def test_threads_of_a_block_share_memory() -> None:
    source, target = drawn(24), np.zeros(24, np.float32)
    program = reversed_in_blocks(barrier=True)
    run_on_python(program, [target, source])
    np.testing.assert_array_equal(target, source.reshape(3, 8)[:, ::-1].reshape(-1))


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(RuntimeError, match="race: item 7 of shared0 is read by one thread and was written"):
        run_on_python(reversed_in_blocks(barrier=False), [np.zeros(24, np.float32), drawn(24)])


def test_two_threads_that_write_one_item_are_a_race() -> None:
    thread, shared = special("lidx0", 4), UOp.new(Ops.SHARED, F, (), (0, 4))
    with pytest.raises(RuntimeError, match="race.* is written by one thread and was written by another"):
        run_on_python(program_of(shared.index(thread // 2).store(thread.cast(F))), [])


def test_each_thread_has_its_own_scratch_and_registers() -> None:
    block, x, y = special("gidx0", 2), special("lidx0", 3), special("lidx1", 2)
    number = (block * 2 + y) * 3 + x
    scratch, total = UOp.new(Ops.SCRATCH, F, (), (0, 2)), UOp.new(Ops.REGISTER, F, (), 0)
    loop = UOp.range(4, 0, RangeKind.LOOP)
    before, after = (UOp.new(Ops.LOAD, F, (total,), i) for i in range(2))
    start = program_of(scratch.index(UOp.const(1, INDEX)).store(number.cast(F)),
                       total.store(UOp.const(0.0, F)), loop)
    step = total.store(before + scratch.index(UOp.const(1, INDEX)).load())
    end = param(0, 12).index(number).store(after)
    program = [*start, *(n for n in step.toposort() if n not in start), UOp.new(Ops.END, INDEX, (loop,))]
    program += [n for n in end.toposort() if n not in program]
    target = np.zeros(12, np.float32)
    run_on_python(program, [target])
    np.testing.assert_array_equal(target, 4 * np.arange(12))


def test_conditions_and_vectors_differ_by_thread() -> None:
    thread = special("lidx0", 4)
    lanes = UOp.new(Ops.LOAD, F.vec(2), (param(1, 8).index(thread * 2),))
    inside = thread < 3
    doubled = lanes + lanes
    target = UOp.new(Ops.INDEX, F, (param(0, 8), thread * 2, inside))
    program = program_of(UOp.new(Ops.STORE, F.vec(2), (target, doubled)))
    source, out = drawn(8), np.zeros(8, np.float32)
    run_on_python(program, [out, source])
    np.testing.assert_array_equal(out, np.where(np.arange(8) < 6, 2 * source, 0))


def test_an_access_outside_its_buffer_is_an_error() -> None:
    outside = param(0, 4).index(UOp.const(4, INDEX)).store(UOp.const(1.0, F))
    with pytest.raises(IndexError, match="item 4 of p0, which has 4"):
        run_on_python(program_of(outside), [np.zeros(4, np.float32)])


def test_shared_memory_belongs_to_the_grammar() -> None:
    with pytest.raises(SpecError, match="SCRATCH SHARED"):
        check_graph([UOp.new(Ops.SHARED, F, (), "no size")], "program")


def test_what_python_cannot_run_is_refused() -> None:
    with pytest.raises(ValueError, match="PYTHON cannot say PERMUTE"):
        PythonRenderer().render("k", [UOp.new(Ops.PERMUTE, F, (UOp.const(1.0, F),), ())])
    with pytest.raises(ValueError, match="GLOBAL"):
        PythonRenderer().render("k", [UOp.const(4, INDEX), UOp.range(4, 0, RangeKind.GLOBAL)])


# --- C --------------------------------------------------------------------------------------------------


def test_c_refuses_what_a_cpu_does_not_have() -> None:
    for op in (Ops.BARRIER, Ops.SPECIAL, Ops.SHARED, Ops.MMA):
        with pytest.raises(ValueError, match=f"C for this device cannot say {op.name}"):
            CRenderer().render("k", [UOp.new(op, INDEX, (), ("gidx0", 1))])
    with pytest.raises(ValueError, match="GLOBAL"):
        CRenderer().render("k", [UOp.const(4, INDEX), UOp.range(4, 0, RangeKind.GLOBAL)])
    with pytest.raises(ValueError, match="cannot be a kernel's name"):
        CRenderer().render("a-b", [])


def test_a_dialect_brings_its_own_words() -> None:
    words = Dialect("test", PLAIN_C.types, kernel="__kernel", shared="__local", barrier="barrier(1);",
                    ids={"gidx0": "get_group_id(0)", "lidx0": "get_local_id(0)"})
    text = CRenderer(words).render("turn", reversed_in_blocks(barrier=True))
    for word in ("__kernel void turn(", "__local float shared0[8];", "barrier(1);", "= get_group_id(0);"):
        assert word in text


@needs_compiler
def test_a_kernel_that_does_not_compile_is_shown_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)does not accept.*error.*1  void f\( \{"):
        Device["CPU:C"].compile("void f( {")


@needs_compiler
def test_c_kernels_share_threads_and_native_lists_with_the_cpu() -> None:
    from tinygrad.runtime.cpu_pool import KernelList

    x = drawn(300_000)
    t = Tensor(x, device="CPU:C")
    doubled, item = t * 2, (t * 2).schedule()[0]
    from tinygrad.codegen.compile import compiled_kernel

    kernel = compiled_kernel(item.ast, "CPU:C")
    assert "for (long long" in kernel.source and kernel.extent >= 1
    np.testing.assert_array_equal(doubled.numpy(), x * 2)
    out, given = Buffer("CPU:C", x.size, F), Buffer.from_numpy(x, "CPU:C")
    run = KernelList([(kernel.program, [out.address, given.address], [], kernel.extent)])
    run()
    np.testing.assert_array_equal(out.numpy(), x * 2)
