"""Loops that stop where what is left adds nothing.

A causal mask turns half of attention into zeros: `sum over j of where(j <= i, x, 0)`. In: a nest with its
tiles chosen. Out: the same nest, in which the loop over j, or over tiles of j, runs only to where the
condition can still hold for some row of the tile; a contraction's loop runs without the condition up to where
it holds for every row, and with it from there on. Memory that is filled along j (the scores, the weights) is
filled as far as anything reads it under such a condition.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from tinygrad.codegen.collapse import simplified
from tinygrad.codegen.contraction import guard_of
from tinygrad.codegen.linearize import reduce_identity
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp

_AT_ONCE = (RangeKind.UNROLL, RangeKind.VECTOR)
"""Kinds of ranges that one iteration of a loop runs through at once."""


@dataclass(frozen=True)
class Span:
    """The iterations [begin, end) of a loop in which a condition can hold; those up to `sure`, or from there
    on if it is `sure_after`, in which it always does."""

    begin: UOp
    end: UOp
    sure: UOp
    sure_after: bool


def skip(nest: UOp) -> UOp:
    """The nest without the iterations that change nothing."""
    nest = _skip_sums(nest)
    return _skip_filling(nest)


def skips_something(nest: UOp) -> bool:
    """True if `skip` would change the nest."""
    return any(_span_of_sum(n) is not None for n in nest.toposort() if n.op is Ops.REDUCE)


# --- sums ---------------------------------------------------------------------------------------------------


def _skip_sums(nest: UOp) -> UOp:
    """Shorter loops for the REDUCEs whose values are nothing under a condition."""
    done: dict[UOp, UOp] = {}
    identity = 1 + max(int(n.arg[0]) for n in nest.toposort() if n.op is Ops.RANGE)
    for node in nest.toposort():
        src = tuple(done[s] for s in node.src)
        done[node] = node if src == node.src else node.with_sources(src)
        span = _span_of_sum(done[node]) if node.op is Ops.REDUCE else None
        if span is not None:
            done[node] = _shortened(done[node], span, identity)
            identity += 2
    return done[nest]


def _span_of_sum(node: UOp) -> tuple[UOp, Span] | None:
    """(the loop of a REDUCE over guarded values, where it must run), if it need not run everywhere."""
    closed = node.closed_ranges
    if len(node.src) - len(closed) != 1:
        return None
    guard = guard_of(node.src[0], reduce_identity(node.arg, node.dtype))
    if guard is None:
        return None
    outer = frozenset(r for r in node.ranges if r.arg[1] not in _AT_ONCE)
    for loop in closed:
        if loop.arg[1] is RangeKind.LOOP and len(loop.src) == 1:
            span = _span(guard, loop, outer)
            if span is not None:
                return loop, span
    return None


def _shortened(node: UOp, found: tuple[UOp, Span], identity: int) -> UOp:
    """The REDUCE over its span; a sum of products in two parts, the first free of its condition."""
    loop, span = found
    value = node.src[0]
    others = [r for r in node.closed_ranges if r is not loop]

    def part(body: UOp, begin: UOp, end: UOp, name: int) -> UOp:
        r = loop.replace(src=(loop.src[0], begin, end), arg=(name, loop.arg[1]))
        return body.substitute({loop: r}).reduce_ranges(node.arg, *others, r)

    if value.src[1].op is not Ops.MUL:
        return part(value, span.begin, span.end, identity)
    first, last = (value, value.src[1]) if span.sure_after else (value.src[1], value)
    return simplified(node.arg, node.dtype, part(first, span.begin, span.sure, identity),
                      part(last, span.sure, span.end, identity + 1))


def _span(condition: UOp, loop: UOp, outer: frozenset[UOp]) -> Span | None:
    """Where in `loop` a comparison of index values can hold, in terms of the loops `outer` around it."""
    difference = _below_zero(condition)
    if difference is None:
        return None
    terms, constant = linear_terms(difference)
    step = terms.get(loop, 0)
    rest = [(atom, factor) for atom, factor in terms.items() if atom is not loop]
    if step == 0 or any(loop in atom.ranges for atom, _ in rest):
        return None
    lowest = highest = UOp.const(constant, dtypes.index)
    for atom, factor in rest:
        if atom.ranges <= outer:
            lowest, highest = lowest + atom * factor, highest + atom * factor
        else:
            ends = sorted(b * factor for b in atom.bounds)
            lowest, highest = lowest + ends[0], highest + ends[1]
    zero, extent = UOp.const(0, dtypes.index), UOp.const(loop.extent, dtypes.index)

    def inside(position: UOp) -> UOp:
        return position.maximum(zero).minimum(extent)

    if step > 0:  # step * loop + rest < 0 up to some iteration
        return Span(zero, inside((step - 1 - lowest) // step), inside((step - 1 - highest) // step), False)
    return Span(inside(lowest // -step + 1), extent, inside(highest // -step + 1), True)


def _below_zero(condition: UOp) -> UOp | None:
    """An index that is negative where `condition`, a comparison of index values, holds."""
    if condition.op is Ops.CMPLT and condition.src[0].dtype.scalar is dtypes.index:
        return condition.src[0] - condition.src[1]
    if condition.op is Ops.CMPNE and condition.src[1].op is Ops.CONST and condition.src[1].arg is True:
        inverse = _below_zero(condition.src[0])
        return None if inverse is None else -1 - inverse
    return None


# --- memory -------------------------------------------------------------------------------------------------


def _skip_filling(nest: UOp) -> UOp:
    """Shorter loops for the STAGEs of one row that are only read by loops that stop early."""
    while True:
        nodes = list(nest.toposort())
        for stage in nodes:
            bounds = _bounds_of_reading(stage, nodes) if stage.op is Ops.STAGE else None
            if bounds is not None:
                loop = stage.closed_ranges[0]
                shorter = loop.replace(src=(loop.src[0], *bounds))
                nest = nest.substitute({loop: shorter})
                break
        else:
            return nest


def _bounds_of_reading(stage: UOp, nodes: list[UOp]) -> tuple[UOp, UOp] | None:
    """Where the outermost loop that fills `stage` may begin and end, since no reader goes further."""
    loop = stage.closed_ranges[0]
    if len(loop.src) != 1 or loop.arg[1] is not RangeKind.LOOP:
        return None
    item_steps = 1
    for r in stage.closed_ranges[1:]:
        if len(r.src) != 1:
            return None
        item_steps *= r.extent
    begins, ends = [], []
    for load in nodes:
        if load.op is Ops.LOAD and load.src[0].src[0] is stage:
            terms, constant = linear_terms(load.src[0].src[1])
            reading = [r for r in terms if r.op is Ops.RANGE and len(r.src) == 3]
            if any(factor < 0 for factor in terms.values()):
                return None
            others = sum(max(0, factor * (atom.extent - 1)) for atom, factor in terms.items()
                         if atom.op is Ops.RANGE and atom not in reading)
            if len(reading) != 1 or any(a.op is not Ops.RANGE for a in terms) or terms[reading[0]] <= 0:
                return None
            begins.append((reading[0].src[1] * terms[reading[0]] + constant) // item_steps)
            read_items = (reading[0].src[2] - 1) * terms[reading[0]] + (others + constant + 1)
            ends.append((read_items + (item_steps - 1)) // item_steps)
    if not ends:
        return None
    extent = UOp.const(loop.extent, dtypes.index)
    return functools.reduce(UOp.minimum, begins, extent), functools.reduce(UOp.maximum, ends).minimum(extent)
