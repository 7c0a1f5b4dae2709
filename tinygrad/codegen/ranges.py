"""The RANGEs of a nest: found by what they are, new ones, and loops of their own for REDUCEs."""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp

ACCUMULATING = (Ops.REDUCE, Ops.STAGE, Ops.SCATTER)
"""What takes a value at the end of each iteration of the loops that it closes, and stands inside others."""


def all_ranges(nest: UOp) -> list[UOp]:
    """Every RANGE of the nest, by identity."""
    return sorted((n for n in nest.toposort() if n.op is Ops.RANGE), key=lambda r: r.identity)


def is_plain(r: UOp) -> bool:
    """True for a loop of a fixed number of iterations."""
    return r.kind is RangeKind.LOOP and len(r.src) == 1 and r.src[0].op is Ops.CONST


def iterations(ranges: Iterable[UOp]) -> int:
    """How often what stands in these loops runs, at most."""
    return math.prod(r.extent for r in ranges)


def output_ranges(nest: UOp) -> frozenset[UOp]:
    """The RANGEs of the outputs: those that STOREs close."""
    return frozenset(r for store in nest.src for r in store.closed_ranges)


def reduces_in(value: UOp) -> list[UOp]:
    """The REDUCEs that end loops in a value or nest, sources first."""
    return [n for n in value.toposort() if n.op is Ops.REDUCE and n.closed_ranges]


def range_named(nest: UOp, identity: int) -> UOp:
    """The RANGE of this identity. Raises ValueError where the nest has none."""
    ranges = all_ranges(nest)
    for r in ranges:
        if r.identity == identity:
            return r
    names = ", ".join(f"r{r.identity}" for r in ranges)
    raise ValueError(f"the nest has no range r{identity}, only {names}")


def fresh_identity(nest: UOp) -> int:
    """An identity that no RANGE of the nest has, and no larger one either."""
    return 1 + max((int(n.arg[0]) for n in nest.toposort() if n.op is Ops.RANGE), default=0)


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
    comes from a REDUCE, or fills memory, in a loop that is over then, and, with `places`, where they stand in
    other loops than those others.

    REDUCEs that the graph makes neither from the other share loops. A sum that collapses to one item puts the
    number of that item, and the condition that there is one, into the REDUCEs under it; and that number may
    come from a REDUCE beside them. A gather puts its condition into what it picks, which then changes with
    more loops than what it shared them with.
    """
    while (apart := _separated(nest, places)) is not nest:
        nest = apart  # what stands in a new loop has moved with it
    return nest


def _separated(nest: UOp, places: bool) -> UOp:
    """The nest with loops of their own for the REDUCEs that cannot run in those that they have now."""
    identities = itertools.count(fresh_identity(nest))
    known: dict[UOp, list[UOp]] = {}
    """each loop, and those that stand in for it"""
    place_of: dict[UOp, tuple[frozenset[UOp], tuple[UOp, ...]]] = {}

    def apart(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        closed = new.closed_ranges
        if new.op is not Ops.REDUCE or not closed:
            return new
        values, below = values_of(new), frozenset[UOp]().union(*(v.closed_below for v in values_of(new)))
        loops: list[UOp] = []
        for r in closed:
            here = new.ranges, tuple(loops)
            over = below if r.kind is RangeKind.LOOP else ()
            choices = known.setdefault(r, [r])
            own = next((c for c in choices if c not in over
                        and not (places and place_of.setdefault(c, here) != here)), None)
            if own is None:
                own = r.replace(arg=(next(identities), r.kind))
                choices.append(own)
                place_of[own] = here
            loops.append(own)
        changes = {r: own for r, own in zip(closed, loops, strict=True) if own is not r}
        if not changes:
            return new
        return new.replace(src=(*(substitute_ranges(v, changes) for v in values), *loops))

    return nest.rebuild(apart)
