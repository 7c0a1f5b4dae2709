"""Kernels from graph to machine code: plans applied by hand and by the cost model, against NumPy.

Every kernel here runs between guard items: a store outside its output fails the test.
"""
from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays import held, integers, normal
from kernel_cases import kernel_of

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen.compile import Stages, stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.loops import is_reduce_range, operands, thread_extent
from tinygrad.codegen.opt.opts import (
    Accumulators,
    Merge,
    Stage,
    Swap,
    Thread,
    Unroll,
    Upcast,
    Vector,
)
from tinygrad.codegen.opt.plan import Plan
from tinygrad.codegen.ranges import all_ranges
from tinygrad.device import Device
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 5, 16, 17, 37, 64, 100, 997)
GUARD = 64
"""Items before and after each output that must stay as they are."""


# --- helpers ----------------------------------------------------------------------------------------------


def run(result: Tensor, plan: Plan | None = None) -> Array:
    """The value of `result`, one kernel, compiled with `plan` (None: the cost model's)."""
    [item] = result.schedule()
    stages = stages_of(item.ast, "CPU", plan)
    device = Device["CPU"]
    code = device.compile(device.renderer.render("kernel", stages.program))
    program = device.load("kernel", code, device.renderer.scratch_bytes(stages.program))
    output = item.buffers[0]
    guarded = np.full((output.arg.size + 2 * GUARD) * output.dtype.itemsize, 0x5A, np.uint8)
    memory = guarded[GUARD * output.dtype.itemsize:-GUARD * output.dtype.itemsize].view(output.dtype.numpy)
    addresses = [memory.ctypes.data]
    for b in item.buffers[1:]:
        assert b.buffer is not None
        addresses.append(b.buffer.address)
    program(addresses, [], thread_extent(stages.program))
    outside = GUARD * output.dtype.itemsize
    edges = np.concatenate([guarded[:outside], guarded[-outside:]])
    assert (edges == 0x5A).all(), f"wrote outside its output under {stages.plan}"
    return memory.reshape(result.shape)


def loops(program: list[UOp]) -> list[UOp]:
    return [n for n in program if n.op is Ops.RANGE]


def plan_of(ast: UOp, renderer: LLVMRenderer) -> Plan:
    return choose_plan(lower(ast), renderer.machine)


def single_opts(ast: UOp, amounts: tuple[int, ...]) -> list[Plan]:
    """Every plan of one Opt on one range of the kernel, with each amount."""
    nest = lower(ast)
    plans = []
    stored = [s.closed_ranges for s in nest.src]
    for r in all_ranges(nest):
        identity = r.identity
        reduces = is_reduce_range(nest, r)
        kinds = [Vector, *([Unroll, Accumulators] if reduces else [Upcast])]
        plans += [Plan((kind(identity, amount),)) for kind in kinds for amount in amounts]
        if not reduces:
            plans += [Plan((Swap(identity),)),
                      Plan((Swap(identity), Thread(identity)))]
    for closed in stored:
        plans += [Plan((Merge(a.arg[0], b.arg[0]),)) for a, b in itertools.pairwise(closed)]
    return plans


# --- loops with a closed form -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 17, 1000])
def test_arange_is_one_kernel_without_a_reduce(size: int) -> None:
    result = Tensor.arange(size).contiguous()
    stages = stages_of(kernel_of(result), "CPU", Plan())
    assert not any(n.op is Ops.REDUCE for n in stages.nest.toposort())
    assert [r.extent for r in loops(stages.program)] == [size]
    np.testing.assert_array_equal(run(result), np.arange(size))


@pytest.mark.parametrize("vocabulary, width, shape", [(7, 3, (4,)), (1000, 16, (5, 3)), (5000, 64, (2, 37))])
def test_embedding_lookup_loads_by_index(vocabulary: int, width: int, shape: tuple[int, ...]) -> None:
    table = normal(vocabulary, width)
    at = np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)
    result = held(table)[held(at)]
    stages = stages_of(kernel_of(result), "CPU", Plan())
    assert np.prod([r.extent for r in loops(stages.program)]) == at.size * width
    assert vocabulary not in [r.extent for r in loops(stages.program)]
    np.testing.assert_array_equal(run(result), table[at])


def test_a_lookup_multiplied_with_a_counter_selects_in_integers() -> None:
    at = np.array([5, 299, 0, 300, -1], np.int32)
    result = held(at).one_hot(300).sum(1)
    stages = stages_of(kernel_of(result), "CPU", Plan())
    assert 300 not in [r.extent for r in loops(stages.program)]
    np.testing.assert_array_equal(run(result), [1, 1, 1, 0, 0])


@pytest.mark.parametrize("factor", [3.0, np.inf, np.nan])
def test_one_item_of_many_times_the_same_is_no_loop(factor: float) -> None:
    """The gradient of a loss at labels, summed over the classes; NaN where a zero is times no number."""
    at, scale = np.array([5, 299, 300, -1], np.int32), np.full(4, factor, np.float32)
    picked = held(at).reshape(4, 1) == Tensor.arange(300)
    result = (picked.where(-1.0, picked.where(7.0, 0.0)) * held(scale).reshape(4, 1)).sum(1)
    assert not any(n.op is Ops.REDUCE for n in lower(kernel_of(result)).toposort())
    with np.errstate(invalid="ignore"):
        expected = (np.where(at[:, None] == np.arange(300), -1, 0) * scale[:, None]).sum(1)
    np.testing.assert_array_equal(run(result), expected)


def test_a_reduce_of_the_same_value_is_a_product() -> None:
    x = held(integers(5, 7))
    result = x.reshape(5, 7, 1).expand(5, 7, 100).sum(2)
    assert not any(n.op is Ops.REDUCE for n in lower(kernel_of(result)).toposort())
    np.testing.assert_array_equal(run(result), integers(5, 7) * 100)


def test_a_reduce_asked_for_under_a_condition_that_a_reduce_beside_it_makes() -> None:
    """A lookup at an argmax: both reduces had one loop, and one needs the other."""
    x, rows = normal(2), normal(3, 2, seed=1)
    at = held(x).argmax()
    for found, each in ((held(rows).max(1), rows.max(1)), (held(rows[0]).max(), np.full(3, rows[0].max()))):
        assert run((Tensor.arange(3) == at).where(found, 0).sum()) == each[x.argmax()]


def test_reduces_with_loops_of_their_own_still_share_them() -> None:
    x, rows = normal(2), [normal(3, 2, seed=i) for i in (1, 2)]
    at = held(x).argmax()
    values = held(rows[0]).max(1) * held(rows[1]).max(1)
    result = (Tensor.arange(3) == at).where(values, 0).sum()
    nest = lower(kernel_of(result))
    assert len({r for n in nest.toposort() for r in n.closed_ranges}) == 3
    assert run(result) == (rows[0].max(1) * rows[1].max(1))[x.argmax()]


# --- every Opt by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_single_opts_keep_an_elementwise_kernel(size: int) -> None:
    a, b = integers(size, 3), integers(size, 3, seed=1)
    result = held(a) * held(b) + held(a).permute(1, 0).contiguous().realize().permute(1, 0)
    for plan in single_opts(kernel_of(result), (4, 16)):
        np.testing.assert_array_equal(run(result, plan), a * b + a, err_msg=str(plan))


@pytest.mark.parametrize("size", SIZES)
def test_single_opts_keep_a_row_sum(size: int) -> None:
    x = integers(3, size)
    result = held(x).sum(1) * 2
    for plan in single_opts(kernel_of(result), (3, 16)):
        np.testing.assert_array_equal(run(result, plan), x.sum(1) * 2, err_msg=str(plan))


@pytest.mark.parametrize("size", (2, 3, 17, 64, 997))
def test_single_opts_keep_maximum_and_product(size: int) -> None:
    x = -np.abs(integers(2, size)) - 1
    largest = held(x).max(1)
    sign = np.sign(integers(2, size) + 0.5).astype(np.float32)
    product = held(sign).prod(1)
    for plan in single_opts(kernel_of(largest), (4,)):
        np.testing.assert_array_equal(run(largest, plan), x.max(1), err_msg=str(plan))
    for plan in single_opts(kernel_of(product), (4,)):
        np.testing.assert_array_equal(run(product, plan), sign.prod(1), err_msg=str(plan))


@pytest.mark.parametrize("size", (2, 5, 16, 37, 100))
def test_single_opts_keep_a_matmul(size: int) -> None:
    a, b = integers(size, 17), integers(17, size + 1)
    result = held(a) @ held(b)
    for plan in single_opts(kernel_of(result), (2, 8)):
        np.testing.assert_array_equal(run(result, plan), a @ b, err_msg=str(plan))


def test_the_tail_of_a_reduce_over_a_reduce_has_loops_of_its_own() -> None:
    x = integers(2, 2, 3, 7, dtype=np.int32)
    result = held(x).sum(0).flatten().sum(0)
    for plan in [None, *single_opts(kernel_of(result), (4, 16))]:
        assert run(result, plan) == x.sum(), plan


def matmul_ranges(ast: UOp) -> tuple[int, int, int]:
    """The identities of the rows', columns' and inner range of a plain matmul."""
    nest = lower(ast)
    rows, columns = (r.identity for r in nest.src[0].closed_ranges)
    inner = next(r.identity for r in all_ranges(nest) if is_reduce_range(nest, r))
    return rows, columns, inner


@pytest.mark.parametrize("m, k, n", [(16, 8, 32), (7, 5, 9), (37, 17, 33), (100, 64, 17), (5, 100, 3)])
def test_tiles_of_a_matmul(m: int, k: int, n: int) -> None:
    a, b = integers(m, k), integers(k, n)
    result = held(a) @ held(b)
    rows, columns, inner = matmul_ranges(kernel_of(result))
    tiles = [
        (Vector(columns, 16), Upcast(rows, 6)),
        (Vector(columns, 4), Upcast(rows, 3), Unroll(inner, 4)),
        (Vector(inner, 8), Upcast(rows, 2), Upcast(columns, 2)),
        (Accumulators(inner, 4), Vector(rows, 4)),
        (Merge(rows, columns),),
        (Swap(columns), Vector(rows, 8), Thread(columns)),
    ]
    for opts in tiles:
        np.testing.assert_array_equal(run(result, Plan(opts)), a @ b, err_msg=str(opts))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.float16])
@pytest.mark.parametrize("lanes", [4, 6, 16])
@pytest.mark.parametrize("rows, columns, side_by_side", [(48, 37, 6), (37, 48, 16), (33, 17, 7), (16, 2, 2),
                                                         (5, 40, 12)])
def test_lanes_down_columns_store_runs_of_items(rows: int, columns: int, side_by_side: int, lanes: int,
                                                dtype: Any) -> None:
    """Vectors whose lanes jump, as many as a power of two beside each other, become a run for each lane."""
    a, b = integers(rows, 9, dtype=dtype), integers(9, columns, dtype=dtype)
    result = held(a) @ held(b)
    row, column, _ = matmul_ranges(kernel_of(result))
    plan = Plan((Vector(row, lanes), Upcast(column, side_by_side)))
    np.testing.assert_array_equal(run(result, plan), a @ b)
    [item] = result.schedule()
    program = stages_of(item.ast, "CPU", plan).program
    stores = [n for n in program if n.op is Ops.STORE and n.memory.op is Ops.PARAM]
    if lanes == 16 and rows >= lanes and columns % side_by_side == 0:
        assert [n.src[1].dtype.count for n in stores] == [side_by_side] * lanes


@pytest.mark.parametrize("m, k, n", [(16, 8, 32), (7, 5, 9), (37, 17, 33)])
def test_staging_an_operand_over_any_of_its_ranges(m: int, k: int, n: int) -> None:
    a, b = integers(m, k), integers(k, n)
    result = (held(a) * 2) @ (held(b) + 1)
    expected = (a * 2) @ (b + 1)
    ast = kernel_of(result)
    nest = lower(ast)
    for number, operand in enumerate(operands(nest)):
        known = [r.identity for r in all_ranges(nest) if r in operand.ranges]
        for over in [known, known[::-1], known[:1], known[1:]]:
            if over == known[:1] and is_reduce_range(nest, all_ranges(nest)[known[0]]):
                continue
            plan = Plan((Stage(number, over=tuple(over)),))
            np.testing.assert_array_equal(run(result, plan), expected, err_msg=str(plan))


@pytest.mark.parametrize("m, k, n", [(16, 8, 32), (13, 5, 40), (37, 17, 33)])
def test_staging_a_panel_that_lanes_read(m: int, k: int, n: int) -> None:
    """The columns become outer x unrolled x lanes; the staged panel covers reduce, unrolled and lanes."""
    a, b = integers(m, k), integers(n, k)
    result = held(a) @ held(b).permute(1, 0)
    ast = kernel_of(result)
    rows, columns, inner = matmul_ranges(ast)
    nest = lower(ast)
    number = next(i for i, o in enumerate(operands(nest)) if columns in {r.identity for r in o.ranges})
    first = max(r.identity for r in all_ranges(nest)) + 1
    lane, outer = first, first + 1
    plan = Plan((Vector(columns, 8), Stage(number, over=(inner, lane)),
                 Swap(outer), Upcast(rows, 4)))
    stages = stages_of(ast, "CPU", plan)
    [scratch] = [x for x in stages.program if x.op is Ops.SCRATCH]
    assert scratch.arg[1] == 8 * k
    np.testing.assert_array_equal(run(result, plan), a @ b.T)


def test_an_opt_on_a_range_that_is_not_there_says_which_there_are() -> None:
    nest = lower(kernel_of(held(integers(4, 5)) + 1))
    with pytest.raises(ValueError, match="no range r9, only r0, r1"):
        choose = Plan((Upcast(9, 2),))
        stages_of(kernel_of(held(integers(4, 5)) + 1), "CPU", choose)
    assert len(all_ranges(nest)) == 2


def test_an_in_place_kernel_never_overlaps_its_last_tile() -> None:
    """`x += 1` over 17 items in tiles of 8: an overlapping tile would add twice."""
    x = held(integers(17))
    x.assign(x + 1)
    [item] = x.schedule()
    [r] = all_ranges(lower(item.ast))
    for kind in (Vector, Upcast):
        data = integers(17)
        stages = stages_of(item.ast, "CPU", Plan((kind(r.identity, 8),)))
        device = Device["CPU"]
        code = device.compile(device.renderer.render("kernel", stages.program))
        device.load("kernel", code, 0)([data.ctypes.data] * len(item.buffers), [], 1)
        np.testing.assert_array_equal(data, integers(17) + 1)


# --- the cost model ---------------------------------------------------------------------------------------


def agree(result: Tensor, expected: Array, tolerance: float = 0.0) -> None:
    """The cost model's plan and the plain loops both give `expected`."""
    for plan in (None, Plan()):
        got = run(result, plan)
        assert got.dtype == expected.dtype
        if tolerance:
            np.testing.assert_allclose(got.astype(np.float64), expected, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(got, expected)


MATMULS = [(1, 1, 1), (2, 3, 5), (16, 16, 16), (17, 37, 5), (64, 64, 64), (1, 100, 64), (64, 100, 1),
           (100, 2, 37), (997, 3, 2), (2, 997, 3), (128, 257, 129)]


@pytest.mark.parametrize("m, k, n", MATMULS)
def test_matmul_in_all_transpositions(m: int, k: int, n: int) -> None:
    for left, right in itertools.product((False, True), repeat=2):
        a = integers(k, m).T if left else integers(m, k)
        b = integers(n, k).T if right else integers(k, n)
        x = held(integers(k, m)).permute(1, 0) if left else held(integers(m, k))
        y = held(integers(n, k)).permute(1, 0) if right else held(integers(k, n))
        agree(x @ y, a @ b)


@pytest.mark.parametrize("batch, m, k, n", [(1, 3, 4, 5), (3, 17, 8, 33), (8, 1, 64, 16), (5, 2, 3, 100)])
def test_batched_matmul(batch: int, m: int, k: int, n: int) -> None:
    a, b = integers(batch, m, k), integers(batch, k, n)
    agree(held(a) @ held(b), a @ b)
    agree(held(a) @ held(b[0]), a @ b[0])
    agree(held(a) @ held(integers(batch, n, k)).transpose(1, 2), a @ integers(batch, n, k).transpose(0, 2, 1))


def convolved(x: Array, w: Array, stride: int, padding: int, groups: int, dilation: int) -> Array:
    """Convolution by its definition, one output item at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    outs, per, ky, kx = w.shape
    height = (x.shape[2] - dilation * (ky - 1) - 1) // stride + 1
    width = (x.shape[3] - dilation * (kx - 1) - 1) // stride + 1
    result = np.zeros((x.shape[0], outs, height, width), x.dtype)
    for o, i, j in itertools.product(range(outs), range(height), range(width)):
        first = o // (outs // groups) * per
        window = x[:, first:first + per, i * stride:i * stride + dilation * (ky - 1) + 1:dilation,
                   j * stride:j * stride + dilation * (kx - 1) + 1:dilation]
        result[:, o, i, j] = (window * w[o]).sum((1, 2, 3))
    return result


CONVOLUTIONS = [  # images, channels, outputs, size, kernel, stride, padding, groups, dilation
    (1, 1, 1, 3, 3, 1, 0, 1, 1), (2, 3, 5, 9, 3, 1, 0, 1, 1), (2, 16, 32, 14, 3, 1, 1, 1, 1),
    (1, 4, 8, 17, 5, 2, 2, 1, 1), (2, 6, 9, 11, 3, 2, 1, 3, 1), (1, 3, 4, 16, 3, 1, 2, 1, 2),
    (2, 8, 8, 10, 3, 1, 1, 8, 1), (1, 32, 32, 7, 5, 1, 2, 32, 1), (3, 37, 17, 5, 1, 1, 0, 1, 1),
    (1, 5, 64, 8, 2, 3, 1, 1, 1), (1, 4, 16, 13, 3, 2, 3, 2, 2),
]


@pytest.mark.parametrize("n, c, o, size, kernel, stride, padding, groups, dilation", CONVOLUTIONS)
def test_convolution(n: int, c: int, o: int, size: int, kernel: int, stride: int, padding: int, groups: int,
                     dilation: int) -> None:
    x, w = integers(n, c, size, size), integers(o, c // groups, kernel, kernel)
    expected = convolved(x, w, stride, padding, groups, dilation)
    for setting in (0, 1):
        with Context(NOOPT=setting):
            result = held(x).conv2d(held(w), None, groups, stride, dilation, padding)
            np.testing.assert_array_equal(result.numpy(), expected, err_msg=f"NOOPT={setting}")


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 2), (17, 16, 37), (2, 997, 3), (64, 4, 100)])
def test_sums_over_any_axes(shape: tuple[int, int, int]) -> None:
    x = integers(*shape)
    for count in (1, 2, 3):
        for axes in itertools.combinations(range(3), count):
            agree(held(x).sum(axes) + 1, np.asarray(x.sum(axes) + 1, np.float32))
    agree(held(x).max((0, 2)) + 1, x.max((0, 2)) + 1)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 5), (17, 37), (64, 100), (2, 997), (100, 16)])
def test_softmax(rows: int, columns: int) -> None:
    x = normal(rows, columns)
    for axis in (0, 1):
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        agree(held(x).softmax(axis), (e / e.sum(axis, keepdims=True)).astype(np.float32), 2e-6)


@pytest.mark.parametrize("shape", [(2, 5), (16, 16), (17, 37), (64, 100), (997, 3)])
def test_transposes(shape: tuple[int, int]) -> None:
    x = integers(*shape)
    agree(held(x).permute(1, 0).contiguous(), np.ascontiguousarray(x.T))
    agree(held(x).permute(1, 0) + held(integers(*shape[::-1], seed=1)), x.T + integers(*shape[::-1], seed=1))
    y = integers(3, *shape)
    agree(held(y).permute(2, 0, 1).contiguous(), np.ascontiguousarray(y.transpose(2, 0, 1)))


@pytest.mark.parametrize("size", [1, 5, 16, 37, 1000])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.float64, np.float16,
                                   ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_every_number_type(dtype: Any, size: int) -> None:
    a, b = integers(2, size, dtype=dtype), integers(2, size, dtype=dtype, seed=1)
    agree(held(a) * held(b) + held(a), a * b + a)
    agree((held(a) < held(b)).where(held(a), held(b) - 1), np.where(a < b, a, b - np.asarray(1, dtype)))
    agree(held(a).max(1) - 1, a.max(1) - np.asarray(1, dtype))
    total = a.astype(np.float64).sum(1)
    result = held(a).sum(1) + 1
    agree(result, (total + 1).astype(result.dtype.numpy))


@pytest.mark.parametrize("size", [2, 5, 16, 37, 1000])
def test_bools(size: int) -> None:
    a, b = integers(3, size) > 0, integers(3, size, seed=1) > 1
    agree(held(a) & held(b).logical_not(), a & ~b)
    agree(held(a) ^ held(b), a ^ b)
    agree(held(a).any(1), np.asarray(a.any(1)))
    agree(held(a).all(1), np.asarray(a.all(1)))
    agree(held(a).sum(1) + 0 * held(b).sum(1), a.sum(1, dtype=np.int32))
    agree(held(a).where(held(b), True), np.where(a, b, True))


def test_lanes_of_mixed_widths() -> None:
    small, wide = integers(37, dtype=np.int8), integers(37, dtype=np.float64, seed=1)
    agree(held(small).cast(dtypes.float64) * held(wide), small * wide)
    agree((held(wide) > 0).cast(dtypes.int8) + held(small), (wide > 0).astype(np.int8) + small)


# --- what plans look like ---------------------------------------------------------------------------------


def vectors(stages: Stages) -> set[int]:
    return {n.dtype.count for n in stages.program if n.dtype.count > 1}


def test_noopt_runs_plain_loops() -> None:
    for result in (held(integers(64, 64)) @ held(integers(64, 64)), held(normal(64, 256)).softmax(),
                   held(integers(4096)) + 1):
        with Context(NOOPT=1):
            stages = stages_of(kernel_of(result), "CPU")
        assert stages.plan == Plan()
        assert not vectors(stages)
        assert {r.arg[1] for r in loops(stages.program)} == {RangeKind.LOOP}


@pytest.mark.parametrize("threads", [1, 2])
def test_avx2_plans_have_eight_lanes(threads: int) -> None:
    renderer = LLVMRenderer(cores(vector_bytes=32, registers=16, threads=threads))
    x, a, b = normal(64, 256), integers(96, 128), integers(128, 80)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    cases: list[tuple[Tensor, Array]] = [
        (held(a) @ held(b), a @ b), (held(a) + 1, a + 1), (held(a).sum(1) * 2, a.sum(1) * 2),
        (held(x).softmax(), e / e.sum(1, keepdims=True)), (held(b).permute(1, 0).contiguous(), b.T)]
    for result, expected in cases:
        plan = plan_of(kernel_of(result), renderer)
        widths = {opt.amount for opt in plan.opts if isinstance(opt, Vector)}
        assert widths == {8}, plan
        assert max(vectors(stages_of(kernel_of(result), "CPU", plan))) == 8
        np.testing.assert_allclose(run(result, plan), expected, 2e-6, 1e-6)


def test_a_matmul_tile_leaves_registers_for_its_operands() -> None:
    for size, registers in ((32, 16), (64, 32)):
        renderer = LLVMRenderer(cores(vector_bytes=size, registers=registers))
        for m, k, n in ((128, 128, 128), (96, 64, 640), (997, 37, 64)):
            ast = kernel_of(held(integers(m, k)) @ held(integers(k, n)))
            program = stages_of(ast, "CPU", plan_of(ast, renderer)).program
            accumulators = [x for x in program if x.op is Ops.REGISTER and x.dtype.count > 1]
            assert 4 <= len(accumulators) < registers


def test_lanes_of_doubles_are_half_those_of_floats() -> None:
    renderer = LLVMRenderer(cores(vector_bytes=64, registers=32))
    for dtype, lanes in ((np.float32, 16), (np.float64, 8), (np.int64, 8)):
        plan = plan_of(kernel_of(held(integers(4096, dtype=dtype)) * 3), renderer)
        assert [o.amount for o in plan.opts if isinstance(o, Vector)] == [lanes]


def test_small_kernels_stay_on_one_thread() -> None:
    renderer = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=8))

    def threaded(result: Tensor) -> bool:
        return any(isinstance(o, Thread) for o in plan_of(kernel_of(result), renderer).opts)

    assert not threaded(held(integers(100)) + 1)
    assert threaded(held(integers(512, 512)) @ held(integers(512, 512)))
    assert threaded(held(integers(1 << 20)) + 1)
