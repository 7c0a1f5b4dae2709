"""Tiles in shared memory that are copied ahead, and wide accesses: what programs for blocks have of them."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import Local, Opt, Pad, Split, Stage
from tinygrad.codegen.opt.plan import Plan
from tinygrad.codegen.pipeline import pipelined
from tinygrad.codegen.predicate import zero_unless
from tinygrad.device import Device
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.launch import shared_bytes_of
from tinygrad.renderer.machine import Machine, blocks
from tinygrad.renderer.python import PythonRenderer
from tinygrad.renderer.wide import wide_accesses
from tinygrad.runtime.python import PythonProgram, SharedItems

Array = np.ndarray[Any, Any]
DEVICE = "PYTHON:BLOCKS"
INDEX = dtypes.index


def whole_numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def shared_product(m: int, k: int, n: int, *opts: Opt) -> tuple[list[UOp], Array, Array]:
    """(the program of a product whose left operand is shared, its operands)."""
    a, b = whole_numbers(m, k), whole_numbers(k, n)
    result = Tensor(a, device=DEVICE).realize() @ Tensor(b, device=DEVICE).realize()
    plan = Plan((Split(2, 8), Stage(0, (0, 3), 16, 4),
                 Local(1, 16), *opts))
    return stages_of(schedule_uops([result.uop])[-1].ast, DEVICE, plan).program, a, b


def run(program: list[UOp], buffers: list[Array]) -> None:
    text = PythonRenderer(has_blocks=True).render("kernel", program)
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([b.ctypes.data for b in buffers], [], 1)


def asynchronous(shared_bytes: int = 1 << 14) -> Machine:
    return blocks(16, shared_bytes, warp_threads=4, has_async_copies=True)


# --- shared tiles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [8, 16, 24, 40])
@pytest.mark.parametrize("shared_bytes", [0, 512, 1024, 1 << 14])
def test_a_loop_over_shared_tiles_computes_the_same_when_it_copies_ahead(k: int, shared_bytes: int) -> None:
    program, a, b = shared_product(8, k, 16)
    ahead = pipelined(program, asynchronous(shared_bytes))
    copies = [n for n in ahead if n.op is Ops.PREFETCH]
    assert bool(copies) == (k > 8 and shared_bytes > 256)
    if copies:
        assert shared_bytes_of(program) < shared_bytes_of(ahead) <= shared_bytes
    result = np.zeros((8, 16), np.float32)
    run(ahead, [result, a, b])
    np.testing.assert_array_equal(result, a @ b)


def test_what_is_not_waited_for_is_not_there() -> None:
    program, a, b = shared_product(8, 32, 16)
    ahead = pipelined(program, asynchronous())
    impatient = [n.replace(arg=9) if n.op is Ops.WAIT else n for n in ahead]
    result = np.zeros((8, 16), np.float32)
    run(impatient, [result, a, b])
    assert not np.array_equal(result, a @ b)


def test_a_missing_barrier_behind_copies_is_a_race() -> None:
    program, a, b = shared_product(8, 32, 16)
    hasty = [n for n in pipelined(program, asynchronous()) if n.op is not Ops.BARRIER]
    with pytest.raises(RuntimeError, match="race"):
        run(hasty, [np.zeros((8, 16), np.float32), a, b])


def test_copies_of_the_last_groups_may_be_on_their_way() -> None:
    memory = SharedItems("shared0", dtypes.float32, 4, 1)
    for item in range(3):
        memory.prefetch(np.int64(item), 1, np.float32(item + 1))
        memory.commit()
    memory.wait(1)
    assert memory.items[:2].tolist() == [1, 2] and memory.items[2] != 3
    memory.wait(0)
    assert memory.items[:3].tolist() == [1, 2, 3]


def test_values_computed_on_their_way_are_stored_as_before() -> None:
    a, b = whole_numbers(8, 16), whole_numbers(16, 16)
    result = (Tensor(a, device=DEVICE).realize() + 1) @ Tensor(b, device=DEVICE).realize()
    share = Stage(0, (0, 3), 16, 4)
    plan = Plan((Split(2, 8), share, Local(1, 16)))
    program = stages_of(schedule_uops([result.uop])[-1].ast, DEVICE, plan).program
    assert pipelined(program, asynchronous()) == program
    found = np.zeros((8, 16), np.float32)
    run(program, [found, a, b])
    np.testing.assert_array_equal(found, (a + 1) @ b)


def test_turned_rows_are_read_where_they_were_put() -> None:
    a, b = whole_numbers(16, 16), whole_numbers(16, 32)
    result = Tensor(a, device=DEVICE).realize() @ Tensor(b, device=DEVICE).realize()
    plan = Plan((Stage(1, (2, 1), 16, 4, 2, 8), Local(0, 16)))
    found = np.zeros((16, 32), np.float32)
    run(stages_of(schedule_uops([result.uop])[-1].ast, DEVICE, plan).program, [found, a, b])
    np.testing.assert_array_equal(found, a @ b)


def test_a_padded_sum_adds_nothing_beyond_its_end() -> None:
    x = whole_numbers(3, 13)
    x[0, 0] = np.inf
    total = Tensor(x, device=DEVICE).realize().sum(1)
    found = np.zeros(3, np.float32)
    program = stages_of(schedule_uops([total.uop])[-1].ast, DEVICE, Plan((Pad(1, 8),))).program
    run(program, [found, x])
    np.testing.assert_array_equal(found, x.sum(1))


def test_a_load_under_a_condition_needs_no_choice() -> None:
    memory = UOp.new(Ops.PARAM, dtypes.float32, (), (0, 10))
    r = UOp.range(16, 0)
    guarded = zero_unless(r < 10, memory.index(r).load())
    assert guarded.op is Ops.LOAD and guarded.src[0].src[2] is (r < 10)
    assert zero_unless(r < 10, memory.index(r).load() + 1.0).op is Ops.WHERE


# --- wide accesses ------------------------------------------------------------------------------------------


def accesses(offsets: list[int], op: Ops = Ops.LOAD, between: list[UOp] | None = None) -> list[UOp]:
    """A program with accesses at thread * 8 + each offset, `between` after the second."""
    thread = UOp.new(Ops.SPECIAL, INDEX, (), ("lidx0", 4))
    memory = UOp.new(Ops.PARAM, dtypes.float32, (), (0, 64))
    value = UOp.const(1.0, dtypes.float32)
    program: list[UOp] = [thread, memory, value]
    for number, offset in enumerate(offsets):
        at = memory.index(thread * 8 + offset)
        program += [n for n in at.src[1].toposort() if n not in program] + [at]
        program.append(at.load() if op is Ops.LOAD else at.store(value))
        program += between or [] if number == 1 else []
    return program


def widths(program: list[UOp], op: Ops) -> list[int]:
    joined = wide_accesses(program, lambda dtype: 4)
    return [(n if op is Ops.LOAD else n.src[1]).dtype.count for n in joined if n.op is op]


@pytest.mark.parametrize("op", [Ops.LOAD, Ops.STORE])
@pytest.mark.parametrize("offsets,expected", [
    ([0, 1, 2, 3], [4]), ([3, 1, 0, 2], [4]), ([1, 2, 3, 4], [1, 2, 1]), ([0, 1, 2, 3, 4, 5], [4, 2]),
    ([0, 2], [1, 1])])
def test_neighbours_that_start_at_a_multiple_are_one_access(op: Ops, offsets: list[int],
                                                            expected: list[int]) -> None:
    assert sorted(widths(accesses(offsets, op), op)) == sorted(expected)


def test_loads_on_both_sides_of_a_barrier_stay_apart() -> None:
    barrier = UOp.new(Ops.BARRIER, INDEX)
    assert widths(accesses([0, 1, 2, 3], between=[barrier]), Ops.LOAD) == [2, 2]


def test_loads_on_both_sides_of_a_store_to_that_memory_stay_apart() -> None:
    memory = UOp.new(Ops.PARAM, dtypes.float32, (), (0, 64))
    zero = UOp.const(0, INDEX)
    store = memory.index(zero).store(UOp.const(1.0, dtypes.float32))
    program = accesses([0, 1, 2, 3], between=[zero, store.src[0], store])
    assert widths(program, Ops.LOAD) == [2, 2]


# --- counters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items,counter", [(1 << 20, "int"), (1 << 33, "long long")])
def test_counters_are_as_wide_as_what_they_count(items: int, counter: str) -> None:
    x = Tensor.empty(items, dtype=dtypes.uint8, device="CUDA:EMULATED")
    program = stages_of(schedule_uops([(x + 1).uop])[-1].ast, "CUDA:EMULATED").program
    assert f"const {counter} id" in cuda_renderer().render("kernel", program)


def test_convolutions_of_halves_sum_exact_products() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 64, 4, 4)), rng.standard_normal((8, 64, 1, 1))
    x, w = x.astype(np.float16), w.astype(np.float16)
    exact = np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    found = Tensor(x).conv2d(Tensor(w)).numpy()
    np.testing.assert_allclose(found, exact.astype(np.float16), rtol=2e-3, atol=2e-5)


# --- tiles of registers -------------------------------------------------------------------------------------


def of_one_multiprocessor(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that few blocks keep busy."""
    renderer = Device[device].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, multiprocessors=1))


@pytest.mark.parametrize("device", ["PYTHON:CUDA", "CUDA:EMULATED"])
@pytest.mark.parametrize(("m", "k", "n"), [(64, 32, 64), (70, 33, 62)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_products_in_registers_read_shared_tiles(monkeypatch: pytest.MonkeyPatch, device: str, m: int, k: int,
                                                 n: int, transposed: tuple[bool, bool]) -> None:
    of_one_multiprocessor(device, monkeypatch)
    a = whole_numbers(*((k, m) if transposed[0] else (m, k)))
    b = whole_numbers(*((n, k) if transposed[1] else (k, n)))
    x, y = (Tensor(v, device=device).realize() for v in (a, b))
    result = (x.T if transposed[0] else x) @ (y.T if transposed[1] else y)
    nest = lower(schedule_uops([result.uop])[-1].ast)
    assert [type(o) for o in choose_plan(nest, Device[device].renderer.machine).opts].count(Stage) == 2
    expected = (a.T if transposed[0] else a) @ (b.T if transposed[1] else b)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_convolutions_in_registers_read_shared_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_multiprocessor("PYTHON:CUDA", monkeypatch)
    x, w = whole_numbers(2, 5, 9, 8), whole_numbers(33, 5, 3, 3)
    found = Tensor(x, device="PYTHON:CUDA").conv2d(Tensor(w, device="PYTHON:CUDA"), padding=1).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(found, np.einsum("bcyxij,ocij->boyx", windows, w))


def test_programs_that_copy_ahead_count_in_32_bits() -> None:
    x = Tensor.empty(2048, 2048, device="PYTHON:CUDA")
    program = stages_of(schedule_uops([(x @ x.T).uop])[-1].ast, "PYTHON:CUDA").program
    assert any(n.op is Ops.PREFETCH for n in program)
    assert "const int id" in cuda_renderer().render("kernel", program)
