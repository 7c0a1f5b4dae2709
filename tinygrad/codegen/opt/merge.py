"""Ranges that are contiguous in every access, as one: a 4-d elementwise kernel over whole buffers is one
loop.
"""
from __future__ import annotations

from tinygrad.codegen.opt.access import index_uses, steps_of
from tinygrad.graph.uop import UOp

IndexUses = list[tuple[dict[UOp, int], frozenset[UOp]]]


def mergeable_pair(nest: UOp) -> tuple[UOp, UOp] | None:
    """Two ranges, the outer one first, that can run as one; None if there are none."""
    closers = [n for n in nest.toposort() if n.closed_ranges]
    uses = [steps_of(u) for u in index_uses(nest)]
    seen: set[tuple[UOp, UOp]] = set()
    for closer in closers:
        for outer, inner in zip(closer.closed_ranges, closer.closed_ranges[1:], strict=False):
            if (outer, inner) not in seen and _can_merge(outer, inner, closers, uses):
                return outer, inner
            seen.add((outer, inner))
    return None


def _can_merge(outer: UOp, inner: UOp, closers: list[UOp], uses: IndexUses) -> bool:
    for closer in closers:
        closed = closer.closed_ranges
        if (outer in closed) != (inner in closed):
            return False
        if outer in closed and closed.index(inner) != closed.index(outer) + 1:
            return False
        if (outer in closer.ranges) != (inner in closer.ranges):
            return False
    for steps, irregular in uses:
        if outer in irregular or inner in irregular:
            return False
        if steps.get(outer, 0) != steps.get(inner, 0) * inner.extent:
            return False
    return True
