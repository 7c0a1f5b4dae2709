"""Segment sums: dense masked reductions that one scatter-add can do, as gradients of embeddings and counts.

    for v: out[v] = sum over t of where(segment[t] == v, x[t], 0)

Each x[t] is in one segment v at most, so one pass over t could add them all; where several such x[t] are
added up, each is an addend with a pass of its own. They are recognised here by their conditions, never by the
name of the operation that made them; `opt/scatter_add.py` interchanges their loops.
"""
from __future__ import annotations

from collections.abc import Iterator

from tinygrad.codegen.collapse import folded, masked, solved_for
from tinygrad.codegen.ranges import is_plain
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import conjuncts
from tinygrad.graph.uop import UOp


@frozen
class Addend:
    """What counts for one iteration of a loop, its segment: `value` where `condition` holds."""

    condition: UOp
    value: UOp
    segment: UOp
    """which iteration"""


@frozen
class SegmentSum:
    """A REDUCE whose values count for one iteration of `loop` each, or are sums of such (the gradient of
    what several gathers read)."""

    reduce: UOp
    loop: UOp
    addends: tuple[Addend, ...]

    def added(self) -> list[UOp]:
        """What is added up: the addends, masked, and their sums."""
        return list(self.reduce.src[0].toposort(stop=lambda n: n.op not in (Ops.ADD, Ops.CAST)))

    def inner(self, nest: UOp) -> tuple[UOp, ...]:
        """The outputs' loops inside `loop`."""
        loops = nest.src[0].closed_ranges
        return tuple(r for r in loops[loops.index(self.loop) + 1:] if r in self.reduce.ranges)


def segment_sums(nest: UOp) -> Iterator[SegmentSum]:
    """Every REDUCE over segments that are iterations of a loop over outputs, by each such loop."""
    loops = nest.src[0].closed_ranges
    if any(s.closed_ranges != loops for s in nest.src):
        return
    for node in nest.nodes_of(Ops.REDUCE):
        parts = _masked_addends(node)
        if not parts or not all(map(is_plain, (r for r in loops if r in node.ranges))):
            continue
        for loop in loops:
            addends = [Addend(condition, value, segment) for condition, value in parts
                       if (segment := _segment(condition, loop, node.closed_ranges)) is not None]
            if len(addends) == len(parts):
                yield SegmentSum(node, loop, tuple(addends))


def _segment(condition: UOp, loop: UOp, summed: tuple[UOp, ...]) -> UOp | None:
    """The one iteration of `loop` in which `condition` can hold, if it is another for each that is summed."""
    segments = (solved_for(c, loop) for c in conjuncts(condition))
    return next((at for at in segments if at is not None and not at.ranges.isdisjoint(summed)), None)


def _masked_addends(node: UOp) -> list[tuple[UOp, UOp]]:
    """(condition, value) of each addend of what a REDUCE over loops adds up; none where one has no condition
    under which it changes nothing."""
    closed = node.closed_ranges
    if len(node.src) != 1 + len(closed) or any(r.kind is not RangeKind.LOOP for r in closed):
        return []
    if node.dtype.is_bool:
        return []
    found = [_masked_by_all(addend, node.arg) for addend in _addends(node.src[0], node.arg)]
    return [] if None in found else [each for each in found if each is not None]


def _masked_by_all(addend: UOp, op: Ops) -> tuple[UOp, UOp] | None:
    """`masked`, by the masks inside too: that of padding may be around that of a segment."""
    found = masked(addend, op)
    while found is not None and (inner := masked(found[1], op)) is not None:
        found = found[0] & inner[0], inner[1]
    return found


def _addends(value: UOp, op: Ops) -> list[UOp]:
    """What `value` is the sum of, if sums are added up; sums of half types are as the REDUCE has them, in
    float32."""
    if op is not Ops.ADD:
        return [value]
    source = value.src[0] if value.op is Ops.CAST else value
    if source is not value and source.op is Ops.ADD and source.dtype.is_float \
            and source.dtype.itemsize < value.dtype.itemsize:
        return [a for s in source.src for a in _addends(folded(s.cast(value.dtype)), op)]
    return [a for s in value.src for a in _addends(s, op)] if value.op is Ops.ADD else [value]
