"""What prints a nest and a program, and what is printed."""
from __future__ import annotations

import textwrap

import numpy as np
import pytest
from arrays import held, integers
from kernel_cases import kernel_of

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.opts import Vector
from tinygrad.codegen.opt.plan import Plan
from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_nest, format_program
from tinygrad.graph.uop import UOp


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_a_matmul_with_bias_prints_as_nest_and_program() -> None:
    ast = kernel_of((held(integers(4, 6)) @ held(integers(6, 8)) + held(integers(8))) * 2)
    stages = stages_of(ast, "CPU", Plan((Vector(1, 8),)))
    assert format_nest(stages.nest) == block("""
        for i0 in 0..4:
            for i1 in 0..8:
                a0 = sum for i2 in 0..6:
                    p1[i0*6 + i2]*p2[i1 + i2*8]
                p0[i0*8 + i1] = (a0 + p3[i1])*2.0
    """)
    assert format_program(stages.program) == block("""
        p0 = param float32[32]
        p1 = param float32[24]
        p2 = param float32[48]
        p3 = param float32[8]
        acc0 = register float32x8
        v0 = load8(p3[0])
        for i0 in 0..4:
            acc0 = 0.0
            for i2 in 0..6:
                v1 = load(p1[i0*6 + i2])
                v2 = load8(p2[i2*8])
                acc0 = fma(splat(v1, 8), v2, acc0)
            store8(p0[i0*8], (acc0 + v0)*2.0)
    """)


def test_a_masked_tail_of_a_reduce_prints_its_condition() -> None:
    ast = kernel_of(held(integers(4, 6)).max(1) * 2)
    stages = stages_of(ast, "CPU", Plan((Vector(1, 4),)))
    assert format_nest(stages.optimised) == block("""
        for i0 in 0..4:
            a0 = max for i2 in 0..4 VECTOR:
                p1[i0*6 + i2]
            a1 = max for i4 in 0..4 VECTOR:
                v0 = i4 < 2
                where(v0, p1[i0*6 + i4 + 4 if v0], -inf)
            p0[i0] = max(a0, a1)*2.0
    """)
    assert format_program(stages.program) == block("""
        p0 = param float32[4]
        p1 = param float32[24]
        v0 = (0, 1, 2, 3) < 2
        for i0 in 0..4:
            v1 = load4(p1[i0*6])
            v2 = load4(p1[i0*6 + 4 if v0])
            store(p0[i0], max(max_of_lanes(v1), max_of_lanes(where(v0, v2, -inf)))*2.0)
    """)


def test_outputs_of_a_row_come_before_the_loops_that_a_nested_reduce_needs() -> None:
    """One output a column, one an item that sums over what a sum changes with: columns outside."""
    a = np.arange(42, dtype=np.float32).reshape(2, 7, 3)
    b = np.array([[1.0, 2.0, 3.0]], np.float32)
    column = Tensor(b).tril()
    items = (column * -3.0 + Tensor(a).sum(2, keepdim=True)).sum(0) * -3.0
    items.realize(column)
    np.testing.assert_array_equal(column.numpy(), np.tril(b))
    np.testing.assert_array_equal(items.numpy(), (np.tril(b) * -3.0 + a.sum(2, keepdims=True)).sum(0) * -3.0)


def test_a_gathered_reduce_and_the_reduce_itself_have_loops_of_their_own() -> None:
    """A gather puts its condition into the softmax it picks from; the gradient needs all of it too."""
    values = np.random.default_rng(0).standard_normal((4, 4))
    x = Tensor(values, requires_grad=True)
    softmax = x.softmax(0)
    picked = ((softmax + x).sin() + softmax).sin()[[-3, -1, 3]]
    (picked - picked).sin().pad(((0, 1), (1, 0))).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.zeros((4, 4)), atol=1e-12)


def test_reduces_that_share_some_of_their_loops_run_apart() -> None:
    """The sum of a value that an axis repeats has no loop along that axis; the product beside it has."""
    x = Tensor(np.full((3, 1, 2), 1.5, np.float32), requires_grad=True)
    (gradient,) = x.expand(3, 4, 2).prod().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), np.full((3, 1, 2), 4 * 1.5**23), rtol=1e-5)


def test_a_reduce_along_an_axis_of_one_item_has_no_loop_there() -> None:
    """Splitting the sum of a batch norm's gradient leaves axes of size 1 among those reduced."""
    values = np.random.default_rng(0).standard_normal((16, 64, 28, 28)).astype(np.float32)
    x, weight = Tensor(values), Tensor.ones(1, 64, 1, 1).contiguous()
    weight.requires_grad = True
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True)
    normal = (x - mean) * (var + 1e-5).rsqrt()
    (gradient,) = (normal * weight).relu().square().mean().gradient(weight)
    wide = values.astype(np.float64)
    axes = (0, 2, 3)
    expected = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True, ddof=1) + 1e-5)
    expected = 2 * np.maximum(expected, 0) * expected / wide.size
    np.testing.assert_allclose(gradient.numpy(), expected.sum(axes, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("swapped", [False, True])
def test_picking_one_item_by_a_counter_is_a_load(swapped: bool) -> None:
    table = Tensor(np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)).realize()
    rows, items = Tensor.arange(12).reshape(12, 1) + 3, Tensor.arange(20).reshape(1, 20)
    hit = items == rows if swapped else rows == items
    picked = hit.unsqueeze(-1).where(table, 0).sum(1)
    [item] = picked.schedule()
    assert not [n for n in lower(item.ast).toposort() if n.op is Ops.REDUCE]
    np.testing.assert_array_equal(picked.numpy(), table.numpy()[3:15])


def test_floats_made_of_loop_counters_are_compared_as_floats():
    running = Tensor.ones(4).cumsum()
    assert (running > 2).tolist() == [False, False, True, True]
    assert running.clip(-50, 3).tolist() == [1, 2, 3, 3]
    assert (Tensor.full((4,), 2.0).half().cumsum() < 5).tolist() == [True, True, False, False]


def test_outputs_along_either_axis_of_a_third_do_not_both_share_its_loops() -> None:
    """One loop of the table is inside the other: what is computed in the inner one is stored in a new one."""
    table, doubled, halved, a, b = (
        UOp.new(Ops.PARAM, dtypes.float32, (), (slot, size)) for slot, size in enumerate((12, 3, 4, 3, 4)))
    rows, columns = a * 2, b * 0.5
    wide = rows.reshape((3, 1)).expand((3, 4)), columns.reshape((1, 4)).expand((3, 4))
    ast = UOp.sink([table.reshape((3, 4)).assign(wide[0] + wide[1]), doubled.assign(rows),
                    halved.assign(columns)])
    assert format_nest(lower(ast)) == block("""
        for i0 in 0..3:
            v0 = p3[i0]*2.0
            for i1 in 0..4:
                p0[i0*4 + i1] = v0 + p4[i1]*0.5
            p1[i0] = v0
        for i2 in 0..4:
            p2[i2] = p4[i2]*0.5
    """)
    stages_of(ast, "CPU")
