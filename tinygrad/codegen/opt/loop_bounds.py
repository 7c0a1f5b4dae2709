"""Loop-bound tightening: loops stop where a mask lets nothing more through.

A causal mask turns half of attention into zeros: `sum over j of where(j <= i, x, 0)`. In: a nest with its
tiles chosen. Out: the same nest, in which the loop over j, or over tiles of j, runs only to where the
condition can still hold for some row of the tile; a contraction's loop runs without the condition up to where
it holds for every row, and with it from there on. Memory that is filled along j (the scores, the weights) is
filled as far as anything reads it under such a condition. A loop over outputs that are stored under a
condition (up to a size that is not known) runs only as far as that can hold for some output.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import reduce

from tinygrad.codegen.collapse import simplified
from tinygrad.codegen.predicate import mask_of
from tinygrad.codegen.ranges import (
    ACCUMULATING,
    ZERO,
    NewRanges,
    closed_within,
    is_plain,
    iterations,
    of_kind,
    values_of,
)
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import conjuncts, constant, is_index_less, is_negation, linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import reachable

_AT_ONCE = (RangeKind.UNROLL, RangeKind.VECTOR, RangeKind.LOCAL, RangeKind.FRAGMENT)
"""Kinds of ranges that one iteration of a loop runs through at once: the threads of a block run a loop
equally often, for they wait for each other in it."""


@frozen
class LoopSpan:
    """The iterations [begin, end) of a loop in which conditions can hold, and those in between in which they
    always do."""

    begin: UOp
    sure_begin: UOp
    sure_end: UOp
    end: UOp

    def intersected(self, other: LoopSpan) -> LoopSpan:
        """Where the conditions of both hold."""
        begin, end = self.begin.maximum(other.begin), self.end.minimum(other.end)
        sure_begin = self.sure_begin.maximum(other.sure_begin).minimum(end).maximum(begin)
        sure_end = self.sure_end.minimum(other.sure_end).minimum(end).maximum(sure_begin)
        return LoopSpan(begin, sure_begin, sure_end, end.maximum(sure_end))

    def united(self, other: LoopSpan) -> LoopSpan:
        """Where the conditions of either can hold, and where those of both do."""
        both = self.intersected(other)
        return replace(both, begin=self.begin.minimum(other.begin), end=self.end.maximum(other.end))


LoopBounds = tuple[UOp, tuple[UOp, ...]]
"""A loop, and the sources that it has then: its end, or its extent, where it begins and its end."""


def tighten_loop_bounds(nest: UOp) -> UOp:
    """The nest without the iterations that change nothing."""
    return _tightened(_loops_tightened(nest), _bounds_of_filling)


def has_loose_bounds(nest: UOp) -> bool:
    """True if that leaves loops over outputs or sums fewer iterations."""
    return _loops_tightened(nest) is not nest


def _loops_tightened(nest: UOp) -> UOp:
    return _tighten_sums(_tightened(_tightened(nest, _ends_of_storing), _loops_over_less))


def _tightened(nest: UOp, find: Callable[[UOp], Iterator[LoopBounds]]) -> UOp:
    """The nest with the loops that `find` finds in it, one after the other, in their new bounds."""
    while (found := next(find(nest), None)) is not None:
        loop, bounds = found
        nest = nest.substitute({loop: loop.replace(src=bounds)})
    return nest


# --- outputs ------------------------------------------------------------------------------------------------


def _ends_of_storing(nest: UOp) -> Iterator[LoopBounds]:
    """The loops over outputs, of extents that are known, that may stop, since no STORE that closes them
    writes further."""
    masked = (store for store in nest.src if store.mask is not None)
    for loop in dict.fromkeys(r for store in masked for r in store.closed_ranges):
        if is_plain(loop):
            end = reduce(UOp.maximum, (_end_of_store(s, loop) for s in nest.src if loop in s.closed_ranges))
            if end.bounds[0] < loop.extent:
                yield loop, (end,)


def _end_of_store(store: UOp, loop: UOp) -> UOp:
    """Where one STORE writes no further."""
    outer = _in_turn(store.closed_ranges[:store.closed_ranges.index(loop)])
    span = None if store.mask is None else _span_of_conditions(conjuncts(store.mask), loop, outer)
    return loop.src[0] if span is None else span.end


# --- the largest item and sums weighted by it ---------------------------------------------------------------


def _loops_over_less(nest: UOp) -> Iterator[LoopBounds]:
    """The loops that find the largest item of a row, from the first iteration with another item than -inf to
    the last: tiles whose items are all -inf add nothing to sums of e^(x - max x)."""
    for node in nest.nodes_of(Ops.RUNNING):
        value, loop = node.src
        if not is_plain(loop):
            continue
        outer = _in_turn(node.ranges - {loop})
        span = _span_of_conditions(_conditions_of_items(value), loop, outer)
        if span is not None and (span.begin.bounds[1] > 0 or span.end.bounds[0] < loop.extent):
            yield loop, (span.end,) if span.begin.is_zero else (loop.src[0], span.begin, span.end)


def _conditions_of_items(value: UOp) -> Iterator[UOp]:
    """Conditions outside which each item that `value` is the largest of is -inf."""
    while True:
        if value.op is Ops.WHERE and value.src[2].op is Ops.CONST and value.src[2].arg == -math.inf:
            yield from conjuncts(value.src[0])
            value = value.src[1]
        elif _is_largest_of_items(value):
            value = value.src[0]
        elif value.op is Ops.LOAD and value.memory.op is Ops.STAGE:
            value = value.memory.src[0]
        else:
            return


def _is_largest_of_items(value: UOp) -> bool:
    """True for a REDUCE of one value, and for what lanes exchange to find the largest of theirs."""
    if value.op is Ops.MAX:
        return value.src[1].op is Ops.EXCHANGE and value.src[1].src[0] is value.src[0]
    return value.op is Ops.REDUCE and value.arg is Ops.MAX and len(value.src) == 1 + len(value.closed_ranges)


# --- sums ---------------------------------------------------------------------------------------------------


def _tighten_sums(nest: UOp) -> UOp:
    """Shorter loops for the REDUCEs of values that are nothing under a condition: a loop of each."""
    new_ranges = NewRanges(nest)

    def shortened(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        if new.op is Ops.REDUCE and len(values_of(new)) == 1:
            conditions, outer = conjuncts(mask_of(new.src[0], new.arg)), _in_turn(new.ranges)
            for loop in filter(is_plain, new.closed_ranges):
                span = _span_of_conditions(conditions, loop, outer)
                if span is not None:
                    return _shortened(new, loop, span, new_ranges)
        return new

    return nest.rebuild(shortened)


def _shortened(node: UOp, loop: UOp, span: LoopSpan, new: NewRanges) -> UOp:
    """The REDUCE over the span of a loop; a sum of products in parts, of which the one in between is free of
    its conditions."""
    value = node.src[0]
    others = [r for r in node.closed_ranges if r is not loop]

    def part(body: UOp, begin: UOp, end: UOp) -> UOp:
        r = new.copy(loop, loop.src[0], begin, end)
        own = {loop: r}
        inside = closed_within(body, loop)
        for c in (n for n in body.nodes_of(Ops.RANGE) if n in inside):  # what others' bounds need first
            own[c] = new.copy(c, *(bound.substitute(own) for bound in c.src))
        return body.substitute(own).reduce_ranges(node.arg, *others, r)

    if value.src[1].op is not Ops.MUL:
        return part(value, span.begin, span.end)
    pieces = (value, span.begin, span.sure_begin), (value.src[1], span.sure_begin, span.sure_end), \
        (value, span.sure_end, span.end)
    parts = [part(body, begin, end) for body, begin, end in pieces if begin is not end]
    return reduce(lambda a, b: simplified(node.arg, node.dtype, a, b), parts)


def _in_turn(ranges: Iterable[UOp]) -> frozenset[UOp]:
    """Those of the ranges of which one iteration runs at a time."""
    return frozenset(ranges).difference(of_kind(ranges, *_AT_ONCE))


def _extremes(index: UOp, outer: frozenset[UOp]) -> tuple[UOp, UOp]:
    """The lowest and highest values of an index, in terms of the loops `outer`."""
    terms, number = linear_terms(index)
    lowest = highest = constant(number)
    for atom, factor in terms.items():
        ends = [end * factor for end in _ends_of_atom(atom, outer)]
        least, most = ends if factor > 0 else reversed(ends)
        lowest, highest = lowest + least, highest + most
    return lowest, highest


def _ends_of_atom(atom: UOp, outer: frozenset[UOp]) -> Iterable[UOp]:
    """The same of one term without its factor."""
    if atom.ranges <= outer:
        return atom, atom
    if atom.op is Ops.RANGE and len(atom.src) == 3 and atom.src[1].ranges | atom.src[2].ranges <= outer:
        return atom.src[1], atom.src[2] - 1
    return map(constant, atom.bounds)


def _span_of_conditions(conditions: Iterable[UOp], loop: UOp, outer: frozenset[UOp]) -> LoopSpan | None:
    """Where in `loop` all of some conditions can hold, and where they do; None where none bounds it."""
    spans, all_known = [], True
    for condition in conditions:
        difference = below_zero(condition)
        span = None if difference is None or loop not in difference.ranges else \
            span_of(difference, loop, outer)
        all_known &= span is not None
        spans += [] if span is None else [span]
    if not spans:
        return None
    span = reduce(LoopSpan.intersected, spans)
    return span if all_known else LoopSpan(span.begin, span.end, span.end, span.end)


def span_of(difference: UOp, loop: UOp, outer: frozenset[UOp]) -> LoopSpan | None:
    """Where in `loop` an index can be negative, in terms of the loops `outer` around it.

    A tile that overlaps the one before begins at the smaller of two places: either may be it.
    """
    terms, _ = linear_terms(difference)
    for atom, factor in terms.items():
        if atom.op is Ops.WHERE and factor == 1 and loop in atom.ranges:
            one, other = (span_of(difference - atom + place, loop, outer) for place in atom.src[1:])
            return None if one is None or other is None else one.united(other)
    step = terms.get(loop, 0)
    rest = difference - loop * step
    if loop in rest.ranges:
        return None
    lowest, highest = _extremes(rest, outer)
    extent = loop.src[0]

    def clamped(position: UOp) -> UOp:
        return position.maximum(ZERO).minimum(extent)

    if step == 0:
        sure_end, end = ((bound < 0).where(extent, 0) for bound in (highest, lowest))
        return LoopSpan(ZERO, ZERO, sure_end, end)
    if step > 0:  # step * loop + rest < 0 up to some iteration
        end, sure_end = clamped((step - 1 - lowest) // step), clamped((step - 1 - highest) // step)
        return LoopSpan(ZERO, ZERO, sure_end, end)
    begin, sure_begin = clamped(lowest // -step + 1), clamped(highest // -step + 1)
    return LoopSpan(begin, sure_begin, extent, extent)


def below_zero(condition: UOp) -> UOp | None:
    """An index that is negative where `condition`, a comparison of index values, holds."""
    if is_index_less(condition):
        return _undivided(condition.src[0] - condition.src[1])
    if is_negation(condition):
        inverse = below_zero(condition.src[0])
        return None if inverse is None else -1 - inverse
    return None


def _undivided(index: UOp) -> UOp:
    """An index that is negative where `index` is: x + c*rest for x//c + rest."""
    terms, _ = linear_terms(index)
    quotients = [a for a, factor in terms.items()
                 if factor == 1 and a.op is Ops.IDIV and a.src[1].op is Ops.CONST and a.ranges]
    if len(quotients) != 1:
        return index
    value, divisor = quotients[0].src
    factor: int = divisor.arg
    return value + (index - quotients[0]) * factor


# --- memory -------------------------------------------------------------------------------------------------


def _bounds_of_filling(nest: UOp) -> Iterator[LoopBounds]:
    """The outermost loops of the STAGEs of one row that are only read by loops that begin late or stop early,
    or under conditions that do."""
    reads = _guarded_reads(nest)
    for stage in dict.fromkeys(load.memory for load, _ in reads):
        loop, *inside = stage.closed_ranges
        if loop.kind is RangeKind.LOOP and all(len(r.src) == 1 for r in (loop, *inside)):
            outer, items, extent = _in_turn(stage.ranges), iterations(inside), loop.src[0]
            bounds = [_bounds_of_read(load.offset, masks, outer) for load, masks in reads
                      if load.memory is stage]
            begin = reduce(UOp.minimum, (first // items for first, _ in bounds), extent)
            end = reduce(UOp.maximum, (last // items + 1 for _, last in bounds)).minimum(extent)
            if not begin.is_zero or end is not extent:
                yield loop, (extent, begin, end)


Read = tuple[UOp, frozenset[UOp]]
"""A LOAD from a STAGE, and conditions outside which its value does not matter."""


def _guarded_reads(nest: UOp) -> list[Read]:
    """Every LOAD from a STAGE, by the ways on which what closes a loop uses it."""
    pending: list[Read] = []
    for node in nest.toposort():
        if node.op is Ops.STORE and node.mask is not None:
            pending.append((node.src[1], frozenset(conjuncts(node.mask))))
            pending.append((node.src[0], frozenset()))
        elif node.op is Ops.STORE or node.op in ACCUMULATING:
            pending.extend((value, frozenset()) for value in values_of(node))

    def sources(read: Read) -> list[Read]:
        node, masks = read
        found = [] if node.op in ACCUMULATING else [(s, masks) for s in node.src]
        if node.op is Ops.WHERE and node.src[2].op is Ops.CONST:
            found[1] = node.src[1], masks.union(conjuncts(node.src[0]))
        return found

    return [(node, masks) for node, masks in reachable(pending, sources)
            if node.op is Ops.LOAD and node.memory.op is Ops.STAGE]


def _bounds_of_read(item: UOp, masks: frozenset[UOp], outer: frozenset[UOp]) -> tuple[UOp, UOp]:
    """The first and the last that a LOAD of `item` can read where `masks` hold, in terms of the loops
    `outer`."""
    first, last = _extremes(item, outer)
    for difference in map(below_zero, masks):
        if difference is not None:  # item = rest + difference is below rest; item = rest - difference above
            first = first.maximum(_extremes(item + difference, outer)[0] + 1)
            last = last.minimum(_extremes(item - difference, outer)[1] - 1)
    return first, last
