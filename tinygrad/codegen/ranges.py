"""The RANGEs of a nest: found by what they are, new ones, and loops of their own for REDUCEs.

Shared by all passes on loop nests. In: a nest, or a value in it, and ranges. Out: the ranges that are asked
for, or the nest with the value in other loops (`substitute_ranges`), or with loops apart (`separate_loops`).
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import plus_terms, split_sum
from tinygrad.graph.uop import CLOSING, UOp

ACCUMULATING = (Ops.REDUCE, Ops.STAGE, Ops.SCATTER)
"""What takes a value at the end of each iteration of the loops that it closes, and stands inside others."""

ZERO: Final = UOp.const(0, dtypes.index)
"""The first place, and the counter of what runs once."""


# --- finding ranges -----------------------------------------------------------------------------------------


def all_ranges(nest: UOp) -> list[UOp]:
    """Every RANGE of the nest, by identity."""
    return sorted(nest.nodes_of(Ops.RANGE), key=lambda r: r.identity)


def is_plain(r: UOp) -> bool:
    """True for a loop of a fixed number of iterations."""
    return r.op is Ops.RANGE and r.kind is RangeKind.LOOP and len(r.src) == 1 and r.src[0].op is Ops.CONST


def is_block_range(r: UOp) -> bool:
    """True for a range across blocks or threads, which no thread loops over."""
    return r.kind in (RangeKind.GLOBAL, RangeKind.LOCAL)


def ranges_among(counters: Iterable[UOp]) -> list[UOp]:
    """The ranges among these counters, of which what runs once is a constant."""
    return [c for c in counters if c.op is Ops.RANGE]


def of_kind(ranges: Iterable[UOp], *kinds: RangeKind) -> list[UOp]:
    """Those of the ranges that run as one of these kinds."""
    return [r for r in ranges if r.kind in kinds]


def loops_of(node: UOp) -> list[UOp]:
    """The loops, of the ranges that a node closes, outermost first."""
    return of_kind(node.closed_ranges, RangeKind.LOOP)


def running_in(node: UOp) -> frozenset[UOp]:
    """The loops that a node stands in, and those that it ends."""
    return node.ranges.union(node.closed_ranges) if node.op in CLOSING else node.ranges


def iterations(ranges: Iterable[UOp]) -> int:
    """How often what stands in these loops runs, at most."""
    return math.prod(r.extent for r in ranges)


def runs_of(node: UOp) -> int:
    """How often a node runs, at most, or is taken by what it closes."""
    return iterations(running_in(node))


def closers(nest: UOp, r: UOp) -> list[UOp]:
    """The nodes that close `r`, sources first."""
    return [n for n in closing(nest) if r in n.closed_ranges]


def closing(nest: UOp) -> list[UOp]:
    """The nodes that close a loop, sources first."""
    return [n for n in nest.nodes_of(*CLOSING) if n.closed_ranges]


def closed_within(nest: UOp, r: UOp) -> list[UOp]:
    """The ranges of what accumulates anew in each iteration of `r`."""
    inside = (n for n in nest.nodes_of(*ACCUMULATING) if r in n.ranges)
    return list(dict.fromkeys(c for n in inside for c in n.closed_ranges))


def output_ranges(nest: UOp) -> frozenset[UOp]:
    """The RANGEs of the outputs: those that STOREs close."""
    return frozenset(r for store in nest.src for r in store.closed_ranges)


def range_named(nest: UOp, identity: int) -> UOp:
    """The RANGE of this identity. Raises ValueError where the nest has none."""
    ranges = all_ranges(nest)
    for r in ranges:
        if r.identity == identity:
            return r
    names = ", ".join(f"r{r.identity}" for r in ranges)
    raise ValueError(f"the nest has no range r{identity}, only {names}")


def ranges_named(nest: UOp, identities: Iterable[int]) -> list[UOp]:
    """The RANGEs of these identities. Raises ValueError where the nest lacks one."""
    return [range_named(nest, identity) for identity in identities]


def fresh_identity(nest: UOp) -> int:
    """An identity that no RANGE of the nest has, and no larger one either."""
    return 1 + max((n.identity for n in nest.nodes_of(Ops.RANGE)), default=0)


# --- other ranges -------------------------------------------------------------------------------------------


class NewRanges:
    """Ranges that a nest does not have, of one identity after another; without a nest, that none has."""

    def __init__(self, nest: UOp | None = None) -> None:
        self.first = -1 if nest is None else fresh_identity(nest)
        """the identity of the first of them"""
        self.identities = itertools.count(self.first, -1 if nest is None else 1)

    def number(self) -> int:
        """An identity for memory."""
        return next(self.identities)

    def range(self, extent: int | UOp, kind: RangeKind = RangeKind.LOOP) -> UOp:
        return UOp.range(extent, next(self.identities), kind)

    def counter(self, extent: int, kind: RangeKind = RangeKind.LOOP) -> UOp:
        """The counter of a new range; of one iteration there is none, and the counter is 0."""
        identity = next(self.identities)
        return UOp.range(extent, identity, kind) if extent > 1 else ZERO

    def copy(self, r: UOp, *bounds: UOp) -> UOp:
        """A range of its own in the place of `r`, in other bounds if some are given."""
        return r.replace(src=bounds or r.src, arg=(next(self.identities), r.kind))

    def copies(self, ranges: Iterable[UOp]) -> dict[UOp, UOp]:
        """A range of its own in the place of each of these."""
        return {r: self.copy(r) for r in ranges}

    def own_loops(self, value: UOp, changes: dict[UOp, UOp]) -> UOp:
        """`value` under these changes, and with loops of its own for those inside it that they leave."""
        own = {r: self.range(r.extent, r.kind) for r in loops_inside(value) if r not in changes}
        return value.substitute(changes | own)


def row_major(counters: Sequence[UOp], extents: Iterable[int]) -> UOp:
    """The place of the item of these counters among all, the last counter the fastest."""
    place: UOp = ZERO
    for count, extent in zip(counters, extents, strict=True):
        place = place * extent + count
    return place


def change_closers(nest: UOp, r: UOp, change: Callable[[UOp, tuple[UOp, ...]], UOp],
                   value: UOp | None = None) -> UOp:
    """The nest with `change(node, sources)` in place of each node that closes `r`, over what stands for its
    sources, and `value` in place of the counter `r`."""

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        is_closer = node.op in CLOSING and r in node.closed_ranges
        return change(node, src) if is_closer else node.with_sources(src)

    def instead(node: UOp) -> UOp | None:
        if r not in node.ranges and r not in node.closed_below:
            return node
        if node.op is not Ops.ADD or node.dtype is not dtypes.index or value is None:
            return None
        base, moving = split_sum(node, lambda atom: r in atom.ranges or r in atom.closed_below)
        return plus_terms(base, moving, {r: value}) if list(moving) == [r] else None

    return nest.rebuild(over, instead, {} if value is None else {r: value})


def substitute_ranges(value: UOp, changes: Mapping[UOp, UOp]) -> UOp:
    """`value` inside other loops, or at given iterations of them. What closes a loop of the same identity
    itself keeps it: a loop is known by name inside what closes it, and there alone."""

    def instead(node: UOp) -> UOp | None:
        return changes.get(node, node) if node in changes or node.ranges.isdisjoint(changes) else None

    return value.rebuild(top_down=instead)


def values_of(node: UOp) -> tuple[UOp, ...]:
    """The sources of a node that closes loops without these loops."""
    return node.src[:len(node.src) - len(node.closed_ranges)]


def loops_inside(value: UOp) -> list[UOp]:
    """The loops that end inside a value, each once, in an order that follows from what the value computes."""
    inside = value.toposort(stop=lambda n: not n.closed_below)
    return list(dict.fromkeys(r for node in inside for r in node.closed_ranges))


def separate_loops(nest: UOp, places: bool) -> UOp:
    """The nest with loops of their own for REDUCEs that cannot run in those of others: where what they reduce
    comes from a REDUCE, or fills memory, in a loop that is over then, and, with `places`, where they (and
    STAGEs) stand in other loops than those others.

    REDUCEs that the graph makes neither from the other share loops. A sum that collapses to one item puts the
    number of that item, and the condition that there is one, into the REDUCEs under it; and that number may
    come from a REDUCE beside them. A gather puts its condition into what it picks, which then changes with
    more loops than what it shared them with.
    """
    while (apart := _separated(nest, places)) is not nest:
        nest = apart  # what stands in a new loop has moved with it
    return nest


def _separated(nest: UOp, places: bool) -> UOp:
    """The nest with loops of their own for what cannot run in those that it has now."""
    kinds = (Ops.REDUCE, Ops.STAGE) if places else (Ops.REDUCE,)
    loops = _OwnLoops(nest, places)
    if not any(loops.changes(node) for node in nest.nodes_of(*kinds)):
        return nest
    loops = _OwnLoops(nest, places)

    def apart(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        changes = loops.changes(new) if new.op in kinds else None
        if not changes:
            return new
        values = (substitute_ranges(v, changes) for v in values_of(new))
        return new.replace(src=(*values, *(changes.get(r, r) for r in new.closed_ranges)))

    return nest.rebuild(apart)


class _OwnLoops:
    """Which loops the nodes of a nest run in, one node after the other, sources first."""

    def __init__(self, nest: UOp, places: bool) -> None:
        self.places = places
        self.new_ranges = NewRanges(nest)
        self.known: dict[UOp, list[UOp]] = {}
        """each loop, and those that stand in for it"""
        self.place_of: dict[UOp, tuple[frozenset[UOp], tuple[UOp, ...]]] = {}

    def changes(self, node: UOp) -> dict[UOp, UOp]:
        """What stands in for loops that a node closes and cannot run in."""
        closed, places = node.closed_ranges, self.place_of
        below = frozenset[UOp]().union(*(v.closed_below for v in values_of(node))) if closed else ()
        around = frozenset(r for r in node.ranges if not is_block_range(r))
        loops: list[UOp] = []
        for r in closed:
            here = around, tuple(loops)
            over = below if r.kind is RangeKind.LOOP else ()
            choices = self.known.setdefault(r, [r])
            own = next((c for c in choices if c not in over
                        and not (self.places and places.setdefault(c, here) != here)), None)
            if own is None:
                own = self.new_ranges.copy(r)
                choices.append(own)
                places[own] = here
            loops.append(own)
        return {r: own for r, own in zip(closed, loops, strict=True) if own is not r}
