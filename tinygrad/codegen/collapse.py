"""Loops with a closed form.

`arange` is a masked sum of ones and a gather is a masked sum over every candidate. Here, where ranges are
values, such a loop is recognised by what its value depends on and replaced:

    sum over r of v                          = v * extent                     v does not depend on r
    sum over r of where(r < n, v, 0)         = v * clamp(n, 0, extent)
    sum over r of where(r == x, v(r), 0)     = where(0 <= x < extent, v(x), 0)
    sum over r of v * w(r)                   = v * (the sum of w) + v * 0, where that has a closed form
    max over r of v                          = v

A position x may be of any type: floats equal a counter where they are whole numbers. In: the value of a
REDUCE and its ranges. Out: a value without those ranges that could be removed.
"""
from __future__ import annotations

from tinygrad.codegen.predicate import mask_loads, reduce_identity
from tinygrad.codegen.ranges import ZERO, ranges_among
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, const, node
from tinygrad.graph.symbolic import (
    all_of,
    conjuncts,
    constant,
    constant_folding,
    is_index_less,
    is_negation,
    linear_terms,
)
from tinygrad.graph.uop import UOp


def collapsed_reduce(op: Ops, value: UOp, ranges: tuple[UOp, ...]) -> UOp:
    """REDUCE of `value` over `ranges`, with every range that has a closed form gone.

    An axis of size 1 has a constant for its range, and nothing to reduce.
    """
    loops = ranges_among(ranges)
    if any(r.extent == 0 for r in loops):
        return reduce_identity(op, value.dtype)
    if op is Ops.ADD and value.op is Ops.WHERE and value.src[2].is_zero \
            and value.src[0].ranges.isdisjoint(loops):
        # One condition for the whole sum: asked once, and what is summed stays as plain as it was.
        total = collapsed_reduce(op, value.src[1], ranges)
        return folded(value.src[0].where(total, value.src[2]))
    remaining: list[UOp] = []
    for r in reversed(loops):
        closed = _close(op, value, r)
        if closed is None:
            remaining.append(r)
        else:
            value = closed
    return value.reduce_ranges(op, *reversed(remaining))


def _close(op: Ops, value: UOp, r: UOp) -> UOp | None:
    if r not in value.ranges:
        if op is Ops.MAX:
            return value
        return _times(value, r.src[0]) if op is Ops.ADD else None
    if op is not Ops.ADD:
        return None
    if value.op is Ops.ADD and r.extent > 0:
        # A sum of two sums; worth it only where both close, so that no second loop appears.
        first, second = (_close(op, s, r) for s in value.src)
        return None if first is None or second is None else folded(first + second)
    if value.op is Ops.MUL:
        return _times_sum(value, r)
    found = masked(value, op)
    if found is None:
        return None
    condition, kept = found
    while (inner := masked(kept, op)) is not None:  # a gather along an axis whose size is not known
        condition, kept = condition & inner[0], inner[1]
    return _count(condition, kept, r) if r not in kept.ranges else _select(condition, kept, r)


def _times_sum(product: UOp, r: UOp) -> UOp | None:
    """sum over r of v * w(r). Where v is no number, or infinite, the zeros of w make the sum NaN."""
    for factor, other in (product.src, product.src[::-1]):
        if r not in factor.ranges and (total := _close(Ops.ADD, other, r)) is not None:
            return folded(folded(total * factor) + folded(factor * 0))
    return None


def masked(value: UOp, op: Ops) -> tuple[UOp, UOp] | None:
    """(condition, value) of what changes nothing in a reduce by `op` where the condition does not hold:
    (c, v) of where(c, v, 0) in a sum, and of where(not c, 0, v); None of what is neither."""
    if value.op is Ops.CAST and value.src[0].dtype.is_bool and op is Ops.ADD:
        return value.src[0], UOp.const(1, value.dtype)
    source = value.src[0] if value.op is Ops.CAST else value  # half types are summed in float32
    if source.op is not Ops.WHERE:
        return None
    condition, kept, other = source.src
    if source is not value:
        kept, other = (folded(v.cast(value.dtype)) for v in (kept, other))
    identity = reduce_identity(op, value.dtype)
    if other is identity:
        return condition, kept
    return (condition.logical_not(), other) if kept is identity else None


def _times(value: UOp, count: UOp) -> UOp:
    return folded(value * folded(count.cast(value.dtype)))


def _count(condition: UOp, kept: UOp, r: UOp) -> UOp | None:
    """sum over r of where(condition, kept, 0), `kept` the same for every r: how often the condition holds."""
    low: UOp = ZERO
    high: UOp = r.src[0]
    inside = [c for c in conjuncts(condition) if r in c.ranges]
    for c in inside:
        bound = _bound_of(c, r)
        if bound is None:
            return _select(condition, kept, r)
        is_upper, limit = bound
        if is_upper:
            high = high.minimum(limit)
        else:
            low = low.maximum(limit)
    count = (high - low).maximum(0)
    total = _times(kept, count)
    for c in conjuncts(condition):
        total = total if c in inside else folded(c.where(total, 0))
    return total


def _bound_of(condition: UOp, r: UOp) -> tuple[bool, UOp] | None:
    """(True, b) where the condition is r < b; (False, b) where it is b <= r; None where it is neither."""
    if not is_index_less(condition):
        return None
    found = _step_and_rest(condition.src[0] - condition.src[1], r)
    if found is None:
        return None
    step, rest = found
    # r + rest < 0 is r < -rest; -r + rest < 0 is rest + 1 <= r
    return (True, -rest) if step == 1 else (False, rest + 1)


def _step_and_rest(value: UOp, r: UOp) -> tuple[int, UOp] | None:
    """(step, rest) of r * step + rest, where the step is 1 or -1 and the rest is without r."""
    step = linear_terms(value).terms.get(r, 0)
    rest = value - r * step
    return (step, rest) if step in (1, -1) and r not in rest.ranges else None


def _select(condition: UOp, kept: UOp, r: UOp) -> UOp | None:
    """sum over r of where(r == x and ..., kept(r), 0): the one item at x."""
    for c in conjuncts(condition):
        at = solved_for(c, r)
        if at is not None:
            within = (at >= 0) & (at < r.src[0])
            others = (item_at(o, r, at, within) for o in conjuncts(condition) if o is not c)
            mask = all_of((within, *others))
            return folded(mask.where(item_at(kept, r, at, mask), 0))
    return None


def item_at(value: UOp, r: UOp, at: UOp, mask: UOp) -> UOp:
    """`value` with `at` for r. Loads that read elsewhere now read only where `mask` holds; all others read
    memory that is there, and what is made of them alone changes with no more loops than before."""
    return mask_loads(value, mask, lambda load: r in load.ranges).substitute({r: at})


def solved_for(condition: UOp, r: UOp) -> UOp | None:
    """x where the condition is r == x (or r + y == x + y), with x not depending on r: the one iteration for
    which it holds. A counter in a type that it overflows comes by several times, and has none."""
    if not is_negation(condition) or condition.src[0].op is not Ops.CMPNE:
        return None
    sides = condition.src[0].src
    for here, there in (sides, sides[::-1]):
        counter = _counter_of(here)
        found = None if counter is None or r in there.ranges else _step_and_rest(counter, r)
        if counter is not None and found is not None:
            step, rest = found
            number, is_one = _as_integer(there, counter)
            at = (number - rest) * step
            return at if is_one is None else is_one.where(at, -1)
    return None


def _counter_of(value: UOp) -> UOp | None:
    """The counter that `value` is, in whatever type that holds it exactly."""
    counter = value
    while counter.op is Ops.CAST and counter.dtype is not dtypes.index:
        counter = counter.src[0]
    if counter.dtype is not dtypes.index:
        return None
    while value is not counter:
        if not _holds(value.dtype, counter):
            return None
        value = value.src[0]
    return counter


def _holds(dtype: DType, counter: UOp) -> bool:
    """Whether a type has every value of a counter, and, of floats, rounds no other number to one of them."""
    if not dtype.is_float:
        return _fits(counter, dtype)
    low, high = counter.bounds
    beyond = 2.0 ** (dtypes.finfo(dtype)[1] + 1)
    return bool(-beyond < low and high < beyond)


def _as_integer(value: UOp, counter: UOp) -> tuple[UOp, UOp | None]:
    """The integer that equals `value`, as far as it is among those of the counter that it is compared with,
    and whether there is one (None: always)."""
    if value.dtype.is_int:
        return value.cast(dtypes.index), None
    integer = value
    while integer.op is Ops.CAST and integer.dtype.is_float and _holds(integer.dtype, counter):
        integer = integer.src[0]
    if integer.dtype.is_int:
        return integer.cast(dtypes.index), None
    low, high = counter.bounds
    near = (value._operand(low - 1) < value) & (value < high + 1)
    is_one = near & value.trunc().eq(value)
    wide = dtypes.int32 if _fits(counter, dtypes.int32) else dtypes.int64
    return is_one.where(value, 0).cast(wide).cast(dtypes.index), is_one


# --- integer arithmetic on loop counters --------------------------------------------------------------------


def _fits(value: UOp, dtype: DType) -> bool:
    """Whether an integer type holds every value of a counter."""
    low, high = value.bounds
    return dtype.is_int and int(dtype.min) <= low and high <= int(dtype.max)


def _as_counter(value: UOp) -> UOp | None:
    """An integer as index arithmetic: a constant, or what was cast to a type that holds it."""
    if value.op is Ops.CONST and value.dtype.is_int:
        return constant(value.arg)
    is_cast = value.op is Ops.CAST and value.src[0].dtype is dtypes.index
    return value.src[0] if is_cast and _fits(value.src[0], value.dtype) else None


def _of_counters(value: UOp) -> UOp | None:
    """What an operation makes of two counters, as index arithmetic, if its type holds that."""
    a, b = map(_as_counter, value.src)
    result = None if a is None or b is None else a.alu(value.op, b)
    return None if result is None or not _fits(result, value.dtype) else result


def _lifted(whole: UOp) -> UOp | None:
    """int32 arithmetic on a counter is index arithmetic, while no step of it wraps."""
    result = _of_counters(whole)
    return None if result is None else result.cast(whole.dtype)


def _cast_of_cast(x: UOp, whole: UOp) -> UOp | None:
    counter = _as_counter(x)
    return counter.cast(whole.dtype) if counter is not None and whole.dtype.is_int else None


def _compare(whole: UOp) -> UOp | None:
    """Comparing two counters cast to one integer type, or sums or differences of two, is comparing the
    counters."""
    a, b = map(_sum_of_counters, whole.src)
    return None if a is None or b is None else a.alu(whole.op, b)


def _sum_of_counters(value: UOp) -> UOp | None:
    """A counter as index arithmetic, or the sum or difference of two that its type holds."""
    return _of_counters(value) if value.op in (Ops.ADD, Ops.SUB) else _as_counter(value)


def _constant_last(condition: UOp, c: UOp, b: UOp) -> UOp | None:
    """A choice between a constant and a value says where the value is wanted: as a mask."""
    is_mask = is_index_less(condition) and b.op is not Ops.CONST
    return condition.logical_not().where(b, c) if is_mask else None


counter_arithmetic = RewriteTable("arithmetic on loop counters", [
    Rule("lift", node((Ops.ADD, Ops.SUB, Ops.MUL), node(Ops.CAST), node(Ops.CONST), name="whole"),
         _lifted),
    Rule("cast of cast", node(Ops.CAST, node(Ops.CAST, name="x"), name="whole"), _cast_of_cast),
    Rule("constant last", node(Ops.WHERE, any_node("condition"), const("c"), any_node("b")), _constant_last),
    Rule("compare", node(Family.COMPARE, name="whole"), _compare),
])
"""Integer tensors made of loop counters become index arithmetic, which `symbolic` understands."""

_value_rules = constant_folding + counter_arithmetic


def folded(value: UOp) -> UOp:
    """`value`, folded where that needs no more than this node."""
    return _value_rules.normal_form(value)


def simplified(op: Ops, dtype: DType, *src: UOp) -> UOp:
    """The value `op` of `src`, folded."""
    return folded(UOp.simplified(op, dtype, src))
