"""Ranges that are contiguous in every access, as one: a 4-d elementwise kernel over whole buffers is one
loop.
"""
from __future__ import annotations

from itertools import pairwise

from tinygrad.codegen.opt.access import index_uses, steps_of
from tinygrad.graph.uop import UOp

IndexUses = list[tuple[dict[UOp, int], frozenset[UOp]]]


def mergeable_pair(nest: UOp, stage: UOp | None = None) -> tuple[UOp, UOp] | None:
    """Two ranges, the outer one first, that can run as one; None if there are none. Of a stage, the ranges
    that fill it but the last, as its value uses them."""
    closers = [n for n in nest.toposort() if n.closed_ranges]
    uses = [steps_of(u) for u in index_uses(nest if stage is None else stage)]
    pairs = (pair for n in closers for pair in pairwise(n.closed_ranges)) if stage is None else \
        pairwise(stage.closed_ranges[:-1])
    return next((pair for pair in dict.fromkeys(pairs) if _can_merge(*pair, closers, uses)), None)


def loop_around(nest: UOp, r: UOp) -> UOp | None:
    """The range that `r` runs directly in, wherever either of them runs; None where there is none."""
    closers = [n for n in nest.toposort() if n.closed_ranges]
    pairs = (pair for n in closers for pair in pairwise(n.closed_ranges))
    return next((outer for outer, inner in pairs if inner is r and outer.kind is r.kind
                 and _runs_directly_in(outer, r, closers)), None)


def _runs_directly_in(outer: UOp, inner: UOp, closers: list[UOp]) -> bool:
    for closer in closers:
        closed = closer.closed_ranges
        if (outer in closed) != (inner in closed) or (outer in closer.ranges) != (inner in closer.ranges):
            return False
        if outer in closed and closed.index(inner) != closed.index(outer) + 1:
            return False
    return True


def _can_merge(outer: UOp, inner: UOp, closers: list[UOp], uses: IndexUses) -> bool:
    if not _runs_directly_in(outer, inner, closers):
        return False
    for steps, irregular in uses:
        if outer in irregular or inner in irregular:
            return False
        if steps.get(outer, 0) != steps.get(inner, 0) * inner.extent:
            return False
    return True
