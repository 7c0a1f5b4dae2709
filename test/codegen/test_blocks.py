"""Plans of blocks of threads: what they compute, checked on PYTHON:BLOCKS (which finds races), and what their
programs are made of."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from arrays import Array, integers, normal
from drivers import needs_compiler

from tinygrad import Tensor
from tinygrad.codegen import compile as compiling
from tinygrad.codegen.barriers import BARRIER, with_barriers
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.expand import expand
from tinygrad.codegen.kernel_fission import kernel_groups, needs_order
from tinygrad.codegen.linearize import linearize
from tinygrad.codegen.opt import choose_tiles
from tinygrad.codegen.opt.choose import alternative_plans, choose_plan, explain_plan
from tinygrad.codegen.opt.opts import MMA, Local, Row
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.primitives import to_device_primitives
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer.c_blocks import counts_in_32_bits
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.python import PythonRenderer
from tinygrad.renderer.scalar import scalar_program
from tinygrad.runtime.python import PythonProgram

DEVICE = "PYTHON:BLOCKS"


def program_of(result: Tensor) -> list[UOp]:
    """The program of the last kernel that computes `result`."""
    return stages_of(schedule_uops([result.uop])[-1].ast, DEVICE).program


def on_blocks(array: Array) -> Tensor:
    return Tensor(array, device=DEVICE).realize()


def run(program: list[UOp], buffers: list[Array]) -> None:
    """Run a program by hand on host memory."""
    check_graph(program, "program")
    text = PythonRenderer(has_blocks=True).render("kernel", program)
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([b.ctypes.data for b in buffers], [], 1)


def as_program(nest: UOp, limits: tuple[int, int, int] = (1000, 1000, 1000)) -> list[UOp]:
    check_graph(nest, "loop_nest")
    renderer = PythonRenderer(has_blocks=True)
    return scalar_program(linearize(to_device_primitives(expand(nest), renderer), limits), renderer.machine)


def items(slot: int, count: int) -> UOp:
    return UOp.new(Ops.PARAM, dtypes.float32, (), (slot, count))


# --- results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (5, 37), (2, 3, 19), (300,)], ids=str)
def test_elementwise_kernels_store_every_item_once(shape):
    x = normal(*shape)
    np.testing.assert_array_equal((on_blocks(x) * 2 + 1).numpy(), x * 2 + 1)


@pytest.mark.parametrize("shape", [(3, 3), (4, 64), (64, 4), (37, 5), (5, 37), (1, 100), (100, 1)], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_of_any_shape(shape, axis):
    x = normal(*shape)
    np.testing.assert_allclose(on_blocks(x).sum(axis).numpy(), x.sum(axis), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(on_blocks(x).max(axis).numpy(), x.max(axis))


@pytest.mark.parametrize("shape", [(1, 64), (3, 33), (40, 3), (2, 3, 50), (17, 17)], ids=str)
def test_rows_whose_items_need_their_statistics(shape):
    x = normal(*shape)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(on_blocks(x).softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(on_blocks(x).layernorm().numpy(), normed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "summed"), [(2, 12, 9), (1, 3, 100), (7, 20, 33)])
def test_sums_of_rows_beside_sums_of_each_item(rows, columns, summed):
    """Both in one loop, at first: what threads share of one they share of the other."""
    x, y = normal(rows, 1, summed) / 10 + 1, normal(rows, columns, summed)
    result = on_blocks(x).expand(rows, columns, summed).prod(2) + on_blocks(y).sum(2)
    np.testing.assert_allclose(result.numpy(), x.prod(2) + y.sum(2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(9, 3, 9, 7, 7), (5, 1, 3, 5, 9)], ids=str)
def test_sums_of_rows_by_lanes_beside_items_that_fill_no_whole_warps(sizes):
    rows, a, b, c, summed = sizes
    x, y, z = normal(rows, 1, 1, summed), normal(rows, a, b, c), normal(rows, 1, b, 1)
    result = on_blocks(x).sum(3, keepdim=True) + on_blocks(y) * on_blocks(z)
    np.testing.assert_allclose(result.numpy(), x.sum(3, keepdims=True) + y * z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads,used", [(8, 4), (16, 16), (32, 16), (128, 64), (256, 256)])
def test_a_transpose_takes_no_more_threads_than_a_block_has(threads, used, monkeypatch):
    """Tiles are square: of 32 threads it took 64."""
    renderer = Device[DEVICE].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, block_threads=threads))
    turned = Tensor.empty(64, 96, device=DEVICE).T.contiguous()
    assert prod(launch_of(program_of(turned)).threads) == used


@pytest.mark.parametrize("m,k,n", [(1, 1, 1), (5, 7, 3), (33, 9, 18), (64, 16, 64), (66, 5, 130), (1, 50, 20),
                                   (20, 50, 1), (2, 100, 2)])
def test_products_of_matrices_of_any_size(m, k, n):
    a, b = normal(m, k), normal(k, n)
    np.testing.assert_allclose((on_blocks(a) @ on_blocks(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((on_blocks(a.T.copy()).T @ on_blocks(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_transposes_and_windows():
    x = normal(19, 33)
    np.testing.assert_array_equal(on_blocks(x).T.contiguous().numpy(), x.T)
    padded = np.pad(x, ((1, 2), (3, 0)))
    np.testing.assert_array_equal((on_blocks(x).pad(((1, 2), (3, 0))) + 0).numpy(), padded)


def test_assigning_in_place_reads_each_item_before_it_is_written():
    x = on_blocks(normal(50))
    expected = x.numpy() * 3 + 1
    x.assign(x * 3 + 1).realize()
    np.testing.assert_array_equal(x.numpy(), expected)
    y = on_blocks(normal(6, 6))
    expected = y.numpy()[::-1] + y.numpy()
    y.assign(y.flip(0) + y).realize()
    np.testing.assert_array_equal(y.numpy(), expected)


# --- programs -----------------------------------------------------------------------------------------------


def test_neighbouring_threads_take_neighbouring_items():
    program = program_of(on_blocks(normal(64, 64)) + on_blocks(normal(64, 64)).T)
    stores = [n for n in program if n.op is Ops.STORE]
    fastest = next(n for n in program if n.op is Ops.SPECIAL and n.arg[0] == "lidx0")
    offset = stores[0].src[0].src[1]
    assert offset.substitute({fastest: UOp.const(1, dtypes.index)}) - offset.substitute(
        {fastest: UOp.const(0, dtypes.index)}) == UOp.const(1, dtypes.index)


def test_long_sums_go_through_shared_memory_with_barriers():
    program = program_of(on_blocks(normal(2, 64)).sum(1))
    assert any(n.op is Ops.SHARED for n in program)
    assert any(n.op is Ops.BARRIER for n in program)
    assert np.prod(launch_of(program).threads) >= 16
    warps = np.prod(launch_of(program).threads) // Device[DEVICE].renderer.machine.warp_threads
    assert launch_of(program).shared_bytes >= warps * 4


def test_the_launch_says_blocks_threads_and_buffers():
    program = program_of(on_blocks(normal(64)) + 1)
    launch = launch_of(program)
    assert np.prod(launch.blocks) * np.prod(launch.threads) == 64
    assert launch.slots == (0, 1)


def test_programs_for_blocks_have_single_values_in_registers():
    program = program_of(on_blocks(normal(64, 128)) * 2)
    allowed = (Ops.LOAD, Ops.STORE, Ops.VECTORIZE)
    assert all(n.dtype.count == 1 or n.op in allowed for n in program)
    assert any(n.op is Ops.LOAD and n.dtype.count == 4 for n in program)


def test_a_barrier_stands_outside_the_loop_that_reads():
    shared = UOp.new(Ops.SHARED, dtypes.float32, (), (0, 4))
    thread = UOp.new(Ops.SPECIAL, dtypes.index, (), ("lidx0", 4))
    one = UOp.const(1.0, dtypes.float32)
    loop = UOp.range(4, 0)
    outer = UOp.range(3, 1)
    end, end_outer = (UOp.new(Ops.END, dtypes.index, (r,)) for r in (loop, outer))
    store = shared.index(thread).store(one)
    load = shared.index(loop).load()
    placed = with_barriers([shared, thread, one, outer, store.src[0], store, loop, load.src[0], load, end,
                            end_outer])
    kinds = [n.op for n in placed if n.op in (Ops.BARRIER, Ops.STORE, Ops.LOAD, Ops.RANGE)]
    assert kinds == [Ops.RANGE, Ops.BARRIER, Ops.STORE, Ops.BARRIER, Ops.RANGE, Ops.LOAD]
    assert placed.count(BARRIER) == 2


def test_a_grid_with_too_few_axes_is_taken_apart_from_one_number():
    ranges = [UOp.range(n, i, RangeKind.GLOBAL) for i, n in enumerate((3, 5, 2, 7))]
    offset = UOp.const(0, dtypes.index)
    for r in ranges:
        offset = offset * r.extent + r
    nest = UOp.sink([items(0, 210).index(offset).store(items(1, 210).index(offset).load() * 2.0, *ranges)])
    x, y = normal(210), np.zeros(210, np.float32)
    program = as_program(nest, limits=(11, 65535, 65535))
    assert all(size <= 11 or name != "gidx0" for name, size in
               (n.arg for n in program if n.op is Ops.SPECIAL))
    run(program, [y, x])
    np.testing.assert_array_equal(y, x * 2)


def test_outputs_of_different_sizes_share_a_grid():
    a = UOp.range(5, 0, RangeKind.LOCAL)
    b = UOp.range(12, 1, RangeKind.LOCAL)
    nest = UOp.sink([items(0, 5).index(a).store(items(1, 12).index(a).load(), a),
                     items(2, 12).index(b).store(items(1, 12).index(b).load() * 2.0, b),
                     items(3, 1).index(UOp.const(0, dtypes.index)).store(UOp.const(7.0, dtypes.float32))])
    x, first, second, third = normal(12), np.zeros(5, "f"), np.zeros(12, "f"), np.zeros(1, "f")
    program = as_program(nest)
    assert launch_of(program).threads == (12, 1, 1)
    run(program, [first, x, second, third])
    np.testing.assert_array_equal(first, x[:5])
    np.testing.assert_array_equal(second, x * 2)
    assert third[0] == 7


def test_outputs_that_share_a_loop_share_its_threads():
    a, b = UOp.range(2, 0, RangeKind.LOOP), UOp.range(3, 1, RangeKind.LOOP)
    nest = UOp.sink([items(0, 6).index(a * 3 + b).store(items(2, 6).index(a * 3 + b).load() * 2.0, a, b),
                     items(1, 2).index(a).store(items(3, 2).index(a).load() + 1.0, a)])
    x, y, first, second = normal(6), normal(2), np.zeros(6, "f"), np.zeros(2, "f")
    plan = choose_plan(nest, PythonRenderer(has_blocks=True).machine)
    run(as_program(apply_plan(nest, plan)), [first, second, x, y])
    np.testing.assert_array_equal(first, x * 2)
    np.testing.assert_array_equal(second, y + 1)


def test_shared_memory_inside_local_ranges_is_a_part_for_each_thread():
    row = UOp.range(3, 0, RangeKind.LOCAL)
    column = UOp.range(4, 1, RangeKind.LOCAL)
    each = UOp.range(4, 2)
    held = items(1, 12).index(row * 4 + column).load().stage(9, Memory.SHARED, column)
    total = held.index(each).load().reduce_ranges(Ops.ADD, each)
    nest = UOp.sink([items(0, 3).index(row).store(total, row)])
    x, y = normal(12), np.zeros(3, np.float32)
    run(as_program(nest), [y, x])
    np.testing.assert_allclose(y, x.reshape(3, 4).sum(1), rtol=1e-6)


def test_a_reduce_over_threads_that_are_no_lanes_of_a_warp_is_refused():
    r = UOp.range(6, 0, RangeKind.LOCAL)
    total = items(1, 6).index(r).load().reduce_ranges(Ops.ADD, r)
    nest = UOp.sink([items(0, 1).index(UOp.const(0, dtypes.index)).store(total)])
    with pytest.raises(RuntimeError, match="through shared memory"):
        linearize(nest)


@pytest.mark.parametrize("threads", [2, 3, 16, 24, 32, 40])
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MUL])
def test_any_number_of_threads_reduces_together(threads, op):
    r = UOp.range(70, 0)
    total = items(1, 70).index(r).load().reduce_ranges(op, r)
    nest = UOp.sink([items(0, 1).index(UOp.const(0, dtypes.index)).store(total)])
    program = as_program(apply_plan(nest, Plan((Local(0, threads),))))
    x, y = normal(70), np.zeros(1, np.float32)
    run(program, [y, x])
    expected = {Ops.ADD: np.sum, Ops.MAX: np.max, Ops.MUL: np.prod}[op](x.astype(np.float64))
    np.testing.assert_allclose(y[0], expected, rtol=1e-4)


@pytest.mark.parametrize("threads,lanes", [(4, 4), (2, 4), (8, 4), (16, 2), (16, 4)])
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MUL])
def test_lanes_of_a_warp_exchange_what_they_reduce(threads, lanes, op):
    r = UOp.range(70, 0)
    total = items(1, 70).index(r).load().reduce_ranges(op, r)
    nest = UOp.sink([items(0, 1).index(UOp.const(0, dtypes.index)).store(total)])
    program = as_program(apply_plan(nest, Plan((Local(0, threads, lanes),))))
    assert sum(n.op is Ops.EXCHANGE for n in program) == min(threads, lanes).bit_length() - 1
    x, y = normal(70), np.zeros(1, np.float32)
    run(program, [y, x])
    expected = {Ops.ADD: np.sum, Ops.MAX: np.max, Ops.MUL: np.prod}[op](x.astype(np.float64))
    np.testing.assert_allclose(y[0], expected, rtol=1e-4)


def test_lanes_of_another_warp_cannot_be_read():
    lane = UOp.range(8, 0, RangeKind.LOCAL)
    total = items(1, 8).index(lane).load().reduce_ranges(Ops.ADD, lane)
    program = as_program(UOp.sink([items(0, 1).index(UOp.const(0, dtypes.index)).store(total)]))
    with pytest.raises(RuntimeError, match="lanes 4 apart cannot exchange values: warps have 4 lanes"):
        run(program, [np.zeros(1, np.float32), normal(8)])


@pytest.mark.parametrize("rows,items_", [(3, 64), (2, 50), (5, 13), (1, 200), (7, 8)])
def test_rows_kept_in_registers_are_loaded_once(rows, items_):
    x = normal(rows, items_)
    result = on_blocks(x).softmax(-1)
    stages = stages_of(schedule_uops([result.uop])[-1].ast, DEVICE)
    assert isinstance(stages.plan.opts[0], Row)
    threads = np.prod(launch_of(stages.program).threads) // min(rows, 16)
    loads = [n for n in stages.program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX
             and n.src[0].src[0].op is Ops.PARAM]
    assert len({n.src[0] for n in loads}) == len(loads)
    assert sum(n.dtype.count for n in loads) * threads < 2 * items_ + 16
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(result.numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_a_row_of_loops_of_two_lengths_is_refused():
    rows = [UOp.range(n, i) for i, n in enumerate((8, 9))]
    sums = [items(1, 9).index(r).load().reduce_ranges(Ops.ADD, r) for r in rows]
    nest = UOp.sink([items(0, 1).index(UOp.const(0, dtypes.index)).store(sums[0] + sums[1])])
    with pytest.raises(ValueError, match="loops of 9 and of 8 items are not along one row"):
        apply_plan(nest, Plan((Row((0, 1), 4, 1, 4),)))


def test_a_loop_that_runs_inside_another_of_the_row_is_refused():
    """Both would be one loop then, and the sums of rows a matrix's diagonal."""
    row, column = (UOp.range(8, i) for i in range(2))
    total = items(1, 64).index(row * 8 + column).load().reduce_ranges(Ops.ADD, column)
    nest = UOp.sink([items(0, 8).index(row).store(total, row)])
    with pytest.raises(ValueError, match="REDUCE closes other loops .* or runs in it"):
        apply_plan(nest, Plan((Row((0, 1), 4, 1, 4),)))


def test_contractions_have_kernels_of_their_own_on_blocks():
    q, k, v = (Tensor.empty(2, 64, 32, dtype=dtypes.bfloat16, device="PYTHON:CUDA") for _ in range(3))
    weights = (q.matmul(k.transpose(-2, -1), dtype="float32")).softmax(-1).cast("bfloat16").contiguous()
    items = schedule_uops([(weights @ v).uop])
    kinds = [{type(o) for o in stages_of(item.ast, "PYTHON:CUDA").plan.opts} for item in items]
    assert [next(iter(k & {Row, MMA}), None) for k in kinds] == [
        MMA, Row, MMA]
    weights = items[1].buffers[0]
    assert weights.dtype is dtypes.bfloat16  # as narrow as the matrix unit takes them


def test_a_sum_of_much_is_of_as_many_pieces_as_blocks_run_at_once():
    x = Tensor.empty(1 << 22, device="PYTHON:CUDA")
    first, last = schedule_uops([x.sum().uop])
    assert np.prod(launch_of(stages_of(first.ast, "PYTHON:CUDA").program).blocks) == 1024
    assert np.prod(launch_of(stages_of(last.ast, "PYTHON:CUDA").program).blocks) == 1


@pytest.mark.parametrize("build", [lambda x: x + 1, lambda x: x.reshape(-1, 1024).softmax(-1),
                                   lambda x: x.reshape(1 << 17, -1).sum(1)], ids=["items", "rows", "sums"])
def test_more_items_than_32_bits_count_are_launched_within_the_limits(build):
    device = "PYTHON:CUDA"
    x = Tensor.empty((1 << 31) + (1 << 17), device=device)
    for item in schedule_uops([build(x).uop]):
        program = stages_of(item.ast, device).program
        launch = launch_of(program)
        assert all(n <= most for n, most in zip(launch.blocks, (2**31 - 1, 65535, 65535), strict=True))
        assert not counts_in_32_bits(program)
        stores = [n for n in program if n.op is Ops.STORE and n.src[0].op is Ops.INDEX
                  and n.src[0].src[0].op is Ops.PARAM]
        last = max(n.src[0].src[1].bounds[1] + n.src[1].dtype.count for n in stores)
        assert last == prod(item.ast.src[0].shape)


def test_indices_read_from_memory_are_masked_with_what_they_index():
    x, at = normal(4, 5, 6), np.array([1, 3, 1])
    np.testing.assert_array_equal(on_blocks(x)[:, Tensor(at, device=DEVICE)].numpy(), x[:, at])


def test_the_plain_plan_runs_in_one_thread():
    x = on_blocks(normal(9))
    stages = stages_of(schedule_uops([(x + 1).uop])[-1].ast, DEVICE, Plan())
    assert launch_of(stages.program).threads == (1, 1, 1)
    assert Device[DEVICE].renderer.machine.has_blocks


# --- launches -----------------------------------------------------------------------------------------------


def test_a_number_that_all_items_read_is_overwritten_after_them():
    """The step count of Adam: threads of one launch would read it before or after it changes."""
    x, step = on_blocks(normal(50)), on_blocks(np.array([3.0], np.float32))
    expected = x.numpy() * 3
    x.assign(x * step)
    step.assign(step + 1)
    Tensor.realize(x, step)
    np.testing.assert_array_equal(x.numpy(), expected)
    assert step.item() == 4


def test_stores_that_others_read_go_into_later_launches():
    i = UOp.range(5, 0)
    zero = UOp.const(0, dtypes.index)
    number, vector = items(0, 1), items(1, 5)
    count = number.index(zero).store(number.index(zero).load() + 1.0)
    scaled = vector.index(i).store(vector.index(i).load() * number.index(zero).load(), i)
    assert kernel_groups(UOp.sink([count, scaled])) == [[1], [0]]
    assert kernel_groups(UOp.sink([scaled])) == [[0]]
    assert not needs_order(UOp.sink([scaled]))
    assert needs_order(UOp.sink([count, scaled]))


def test_what_is_stored_for_rows_alone_leaves_a_product_to_tiles():
    i, j, k = UOp.range(16, 0), UOp.range(24, 1), UOp.range(8, 2)
    rows, columns, numbers = items(2, 128), items(3, 192), items(4, 16)
    product = (rows.index(i * 8 + k).load() * columns.index(k * 24 + j).load()).reduce_ranges(Ops.ADD, k)
    stored = items(0, 384).index(i * 24 + j).store(product, i, j)
    beside = items(1, 16).index(i).store(numbers.index(i).load() + 1.0, i)
    total = items(1, 16).index(i).store(product.reduce_ranges(Ops.ADD, j), i)
    assert kernel_groups(UOp.sink([stored, beside])) == [[0], [1]]
    assert kernel_groups(UOp.sink([beside, stored])) == [[1], [0]]
    assert kernel_groups(UOp.sink([stored, total])) == [[0, 1]]
    for nest in (UOp.sink([stored]), UOp.sink([stored, beside])):
        plan = choose_plan(nest, Device["PYTHON:METAL"].renderer.machine)
        assert any(isinstance(o, MMA) for o in plan.opts) == (len(nest.src) == 1)


def test_memory_read_elsewhere_than_it_is_written_is_left_to_one_thread():
    i = UOp.range(6, 0)
    memory = items(0, 6)
    backwards = UOp.sink([memory.index(i).store(memory.index(5 - i).load(), i)])
    assert needs_order(backwards)
    assert choose_plan(backwards, PythonRenderer(has_blocks=True).machine) == Plan()


def test_no_default_plan_asks_for_more_threads_or_memory_than_a_block_has():
    device = "PYTHON:CUDA"
    q, k, v = (Tensor.empty(1, 2, 512, 64, device=device) for _ in range(3))
    rows = Tensor.empty(64, 4096, device=device)
    machine = Device[device].renderer.machine
    for result in (q.scaled_dot_product_attention(k, v, is_causal=True), rows.softmax(-1), rows.layernorm(),
                   rows.sum(), rows @ rows.T, rows.softmax(-1) @ rows.T):
        for item in schedule_uops([result.uop]):
            launch = launch_of(stages_of(item.ast, device).program)
            assert np.prod(launch.threads) <= machine.block_threads
            assert launch.shared_bytes <= machine.shared_bytes


@pytest.mark.parametrize(("shapes", "compute"), [
    ([(22, 1830), (1830,)], lambda x, w: x.log_softmax(-1) * w),
    ([(1, 65), (65, 56)], lambda x, w: (x @ w).log_softmax(-1))])
def test_outputs_that_share_loops_ask_together_for_no_more_threads_than_a_block_has(
        shapes: list[tuple[int, ...]], compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    device = "PYTHON:CUDA"
    operands = [Tensor(normal(*shape), device=device, requires_grad=True).realize() for shape in shapes]
    result = compute(*operands)
    gradients = (result * Tensor(normal(*result.shape), device=device)).sum().gradient(*operands)
    for item in schedule_uops([t.uop for t in (result, *gradients)]):
        launch = launch_of(stages_of(item.ast, device).program)
        assert prod(launch.threads) <= Device[device].renderer.machine.block_threads


def channels_normalised(x: Tensor) -> Tensor:
    off = x - x.mean((0, 2), keepdim=True)
    return off * (off.square().mean((0, 2), keepdim=True) + 1e-5).rsqrt()


@pytest.mark.parametrize(("shape", "compute"), [
    ((1 << 22,), Tensor.var), ((1 << 20,), Tensor.argmax), ((1, 1 << 20), Tensor.softmax),
    ((8, 1 << 18), Tensor.logsumexp), ((64, 16, 3136), channels_normalised),
    ((512, 1000), lambda x: x.log_softmax().max(1).mean()), ((16, 1 << 18), lambda x: x.max(1).sum())])
def test_a_number_that_many_wait_for_leaves_no_block_with_all_the_work(
        shape: tuple[int, ...], compute: Callable[[Tensor], Tensor]) -> None:
    for item in schedule_uops([compute(Tensor.empty(*shape, device="PYTHON:CUDA")).uop]):
        launch = launch_of(stages_of(item.ast, "PYTHON:CUDA").program)
        read = sum(buffer.arg.size for buffer in item.buffers[item.outputs:])
        assert read <= 1 << 14 or prod(launch.blocks) >= 64


@needs_compiler
def test_statistics_that_are_stored_between_two_grids_are_right() -> None:
    x = normal(1 << 19) + 3
    exact = x.astype(np.float64)
    found = Tensor(x, device="CUDA:EMULATED").realize()
    np.testing.assert_allclose(found.var().item(), exact.var(ddof=1), rtol=1e-4)
    assert found.argmax().item() == x.argmax()
    np.testing.assert_allclose(found.logsumexp().item(), np.log(np.exp(exact).sum()), rtol=1e-5)


# --- what was there to choose from ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_second_choices_for_a_contraction_are_right(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(192, 48, seed=1), integers(48, 128, seed=2)
    device = "PYTHON:CUDA"
    renderer = Device[device].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, multiprocessors=4))
    x, y = (Tensor(array.astype(dtype), device=device).realize() for array in (a, b))
    (item,) = schedule_uops([(x @ y).uop])
    nest = stages_of(item.ast, device).nest
    plans = [choose_plan(nest, renderer.machine), *alternative_plans(nest, renderer.machine)]
    assert len(set(plans)) > 2
    assert explain_plan(nest, renderer.machine).count("of a block") > 2
    for plan in plans:
        monkeypatch.setattr(compiling, "_kernels", OrderedDict())
        monkeypatch.setattr(compiling, "plan_for", lambda ast, nest, device, plan=plan: plan)
        np.testing.assert_array_equal((x @ y).numpy(), (a @ b).astype(dtype))


@pytest.mark.parametrize("rate", [2, 4, 8])
def test_tiles_are_ordered_by_what_a_product_reads(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_tiles, "SHARED_RATE", rate)
    assert choose_tiles.BlockTile(128, 256, 2, 4).reads == 1 / 128 + 1 / 256 + (1 / 64 + 1 / 64) / rate
    sizes = [[(t.m, t.n) for t in sorted(tiles, key=lambda t: t.reads)]
             for tiles in (choose_tiles.SHARED_TILES, choose_tiles.REGISTER_TILES)]
    assert sizes[0] == [(128, 256), (128, 128), (64, 256), (64, 128), (64, 64)]
    assert sizes[1][0] == (128, 128)
    assert sizes[1][-1] == (32, 32)
    on_unit = [t.reads for t in choose_tiles.TILES]
    assert on_unit == sorted(on_unit)
