"""The printed forms of each stage: what a reader relies on, and that the text depends on structure alone."""
from __future__ import annotations

import textwrap
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.printing import format_graph, format_nest, format_node, format_program
from tinygrad.graph.uop import UOp

F = dtypes.float32
I = dtypes.index  # noqa: E741 - the type of every offset below


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def param(slot: int, size: int = 4096) -> UOp:
    return UOp.new(Ops.PARAM, F, (), (slot, size))


def test_a_node_prints_on_one_line_whatever_is_below_it() -> None:
    chain = UOp.new_buffer("CPU", 16, F).reshape((4, 4))
    for _ in range(5000):
        chain = chain.exp2()
    assert repr(chain) == "UOp(EXP2 float32 (4, 4))"
    assert format_node(UOp.const(2.0, F)) == "UOp(CONST float32 2.0)"
    assert format_node(UOp.range(8, 3, RangeKind.THREAD)) == "UOp(RANGE index (3, THREAD))"
    assert format_node(UOp.new(Ops.CONST, F.vec(4), (), 0.0)) == "UOp(CONST float32x4 0.0)"


def test_a_graph_prints_each_node_once_sources_first() -> None:
    x = UOp.new_buffer("CPU", 16, F).reshape((4, 4))
    assert format_graph((x * x + x).reduce(Ops.ADD, (1,))) == block("""
        %0  BUFFER   float32  (16,)          CPU
        %1  RESHAPE  float32  (4, 4)  %0
        %2  MUL      float32  (4, 4)  %1 %1
        %3  ADD      float32  (4, 4)  %2 %1
        %4  REDUCE   float32  (4, 1)  %3     ADD over axes (1,)
    """)


def test_equal_structure_prints_equally() -> None:
    first, second = (format_graph(UOp.new_buffer("CPU", 8, F).exp2()) for _ in range(2))
    assert first == second


def test_a_matmul_nest() -> None:
    i, j, k = UOp.range(64, 0, RangeKind.THREAD), UOp.range(64, 1), UOp.range(64, 2)
    product = param(1).index(i * 64 + k).load() * param(2).index(k * 64 + j).load()
    value = product.reduce_ranges(Ops.ADD, k) + param(3).index(j).load()
    assert format_nest(UOp.sink([param(0).index(i * 64 + j).store(value, i, j)])) == block("""
        for i0 in 0..64:  # THREAD
            for i1 in 0..64:
                a0 = sum for i2 in 0..64:
                    p1[i0*64 + i2]*p2[i1 + i2*64]
                p0[i0*64 + i1] = a0 + p3[i1]
    """)


def test_a_nest_puts_each_line_as_far_out_as_it_can_be() -> None:
    r, a, b, c, d = (UOp.range(64, i) for i in range(5))
    x = param(1)
    highest = x.index(r * 64 + a).load().reduce_ranges(Ops.MAX, a)
    row = (x.index(r * 64 + b).load() - highest).exp2().stage(0, Memory.SCRATCH, b)
    total = row.index(c).load().reduce_ranges(Ops.ADD, c)
    stores = [param(0).index(r * 64 + d).store(row.index(d).load() * (1 / total), r, d),
              param(2).index(r).store(highest, r)]
    assert format_nest(UOp.sink(stores)) == block("""
        for i0 in 0..64:
            a0 = max for i1 in 0..64:
                p1[i0*64 + i1]
            s0 = scratch for i2 in 0..64:
                exp2(p1[i0*64 + i2] - a0)
            a1 = sum for i3 in 0..64:
                s0[i3]
            for i4 in 0..64:
                p0[i0*64 + i4] = s0[i4]*(1.0 / a1)
            p2[i0] = a0
    """)


def test_a_value_that_two_loops_share_is_named_in_both() -> None:
    r, k = UOp.range(8, 0), UOp.range(8, 1)
    x = param(1).index(r * 8 + k).load().exp2()
    value = x.reduce_ranges(Ops.ADD, k) + (x * x).reduce_ranges(Ops.ADD, k)
    assert format_nest(UOp.sink([param(0).index(r).store(value, r)])) == block("""
        for i0 in 0..8:
            a0 = sum for i1 in 0..8:
                v0 = exp2(p1[i0*8 + i1])
                v0
            a1 = sum for i1 in 0..8:
                v0 = exp2(p1[i0*8 + i1])
                v0*v0
            p0[i0] = a0 + a1
    """)


def test_a_masked_load_shows_its_condition() -> None:
    r = UOp.range(8, 0)
    x = param(1).index(r - 1, UOp.const(0, I) < r).load()
    text = format_nest(UOp.sink([param(0).index(r).store(x, r)]))
    assert "p1[i0 - 1 if " in text


def test_a_program_indents_loops_and_writes_single_uses_in_place() -> None:
    zero, first, extent = UOp.const(0.0, F), UOp.const(0, I), UOp.const(16, I)
    acc, loop = UOp.new(Ops.REGISTER, F, (), 0), UOp.range(extent, 0)
    at = param(1).index(loop)
    value, before, after = at.load(), UOp.new(Ops.LOAD, F, (acc,), 0), UOp.new(Ops.LOAD, F, (acc,), 1)
    square = value * value
    total, out = before + square, param(0).index(first)
    program = [param(0), param(1), zero, first, extent, acc, acc.store(zero), loop, at, value, square, before,
               total, acc.store(total), UOp.new(Ops.END, I, (loop,)), after, out, out.store(after)]
    assert format_program(program) == block("""
        p0 = param float32[4096]
        p1 = param float32[4096]
        acc0 = register float32
        acc0 = 0.0
        for i0 in 0..16:
            v0 = load(p1[i0])
            acc0 = acc0 + v0*v0
        store(p0[0], acc0)
    """)


def test_a_register_read_before_a_store_keeps_its_own_line() -> None:
    one, first = UOp.const(1.0, F), UOp.const(0, I)
    acc = UOp.new(Ops.REGISTER, F, (), 0)
    before = UOp.new(Ops.LOAD, F, (acc,), 0)
    out = param(0).index(first)
    program = [param(0), one, first, acc, acc.store(one), before, acc.store(one), out, out.store(before)]
    assert format_program(program).splitlines()[-3:] == ["v0 = acc0", "acc0 = 1.0", "store(p0[0], v0)"]


def test_vectors_in_a_program_show_their_lanes() -> None:
    first = UOp.const(0, I)
    lanes = UOp.new(Ops.CONST, I.vec(4), (), (0, 2, 4, 6))
    near, far = param(1).index(first), UOp.new(Ops.INDEX, F, (param(1), lanes))
    a, b = near.load(4), UOp.new(Ops.LOAD, F.vec(4), (far,))
    out = param(0).index(first)
    c = a * b
    program = [param(0), param(1), first, lanes, near, a, far, b, c, out, out.store(c)]
    assert format_program(program).splitlines()[-3:] == [
        "v0 = load4(p1[0])", "v1 = gather4(p1[(0, 2, 4, 6)])", "store4(p0[0], v0*v1)"]


# An expression's text, read by Python, has the expression's value: precedence and parentheses are right.

INTEGER_OPS = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.IDIV: lambda a, b: a // b,
    Ops.MOD: lambda a, b: a % b,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.MAX: max,
}
VARIABLES = {"x": 13, "y": -7, "z": 5}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[UOp, int]:
    """An int32 expression over the variables as the printer meets it, and its value."""
    kinds = ["leaf", "negated", "binary", "binary", "binary"] if depth else ["leaf"]
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf" and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(VARIABLES)))
        return UOp.new(Ops.VARIABLE, dtypes.int32, (), (name, -16, 16, None)), VARIABLES[name]
    if kind == "leaf":
        value = draw(st.integers(-9, 9))
        return UOp.const(value, dtypes.int32), value
    if kind == "negated":
        node, value = draw(expressions(depth - 1))
        return UOp.new(Ops.NEG, dtypes.int32, (node,)), -value
    left, a = draw(expressions(depth - 1))
    right, b = draw(expressions(depth - 1))
    op = draw(st.sampled_from([o for o in INTEGER_OPS if b != 0 or o not in (Ops.IDIV, Ops.MOD)]))
    return UOp.new(op, dtypes.int32, (left, right)), INTEGER_OPS[op](a, b)


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_the_text_of_an_integer_expression_means_that_expression(case: tuple[UOp, int]) -> None:
    expression, value = case
    scope: dict[str, object] = dict(VARIABLES)
    for line in format_nest(expression).splitlines():
        name, _, text = line.rpartition(" = ")
        result = eval(text, {"max": max}, scope)
        scope[name] = result
    assert result == value


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([Ops.ADD, Ops.SUB, Ops.MUL]), min_size=2, max_size=5), st.randoms())
def test_floats_keep_their_grouping(ops: list[Ops], random: Random) -> None:
    values = {"x": np.float32(1e8), "y": np.float32(-1e8), "z": np.float32(1.25)}
    leaves = [(UOp.new(Ops.VARIABLE, F, (), (name, 0, 0, None)), v) for name, v in values.items()]
    pool = list(leaves)
    for op in ops:
        left, a = random.choice(pool)
        right, b = random.choice(pool)
        with np.errstate(over="ignore"):
            pool.append((UOp.new(op, F, (left, right)), INTEGER_OPS[op](a, b)))
    scope: dict[str, object] = dict(values)
    with np.errstate(over="ignore"):
        for line in format_nest(pool[-1][0]).splitlines():
            name, _, text = line.rpartition(" = ")
            result = eval(text, {}, scope)
            scope[name] = result
    np.testing.assert_array_equal(result, pool[-1][1])


def test_a_deep_chain_prints_in_pieces() -> None:
    r = UOp.range(8, 0)
    x = param(1).index(r).load()
    for _ in range(3000):
        x = x.exp2()
    lines = format_nest(UOp.sink([param(0).index(r).store(x, r)])).splitlines()
    assert max(map(len, lines)) < 120
    assert sum(line.count("exp2") for line in lines) == 3000


@pytest.mark.parametrize("kind", [RangeKind.THREAD, RangeKind.VECTOR, RangeKind.UNROLL])
def test_a_loop_names_its_kind(kind: RangeKind) -> None:
    r = UOp.range(8, 0, kind)
    text = format_nest(UOp.sink([param(0).index(r).store(UOp.const(1.0, F), r)]))
    assert text.splitlines()[0] == f"for i0 in 0..8:  # {kind.name}"
