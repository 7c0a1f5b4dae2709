"""Segment sums: dense masked reductions that one scatter-add can do, as gradients of embeddings and counts.

    for v: out[v] = sum over t of where(segment[t] == v, x[t], 0)

Each x[t] is in one segment v at most, so one pass over t could add them all. They are recognised here by
their conditions, never by the name of the operation that made them; `opt/scatter_add.py` interchanges their
loops.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinygrad.codegen.collapse import simplified, solved_for
from tinygrad.codegen.predicate import reduce_identity
from tinygrad.codegen.ranges import is_plain
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import conjuncts
from tinygrad.graph.uop import UOp


@dataclass(frozen=True)
class SegmentSum:
    """A REDUCE whose values count for one iteration of `loop` each, their segment: `value` where `condition`
    holds."""

    reduce: UOp
    loop: UOp
    condition: UOp
    value: UOp
    segment: UOp
    """which iteration"""

    def inner(self, nest: UOp) -> tuple[UOp, ...]:
        """The outputs' loops inside `loop`."""
        loops = nest.src[0].closed_ranges
        return tuple(r for r in loops[loops.index(self.loop) + 1:] if r in self.reduce.ranges)


def segment_sums(nest: UOp) -> Iterator[SegmentSum]:
    """Every REDUCE over segments that are iterations of a loop over outputs, by each such loop."""
    loops = nest.src[0].closed_ranges
    if any(s.closed_ranges != loops for s in nest.src):
        return
    for node in nest.toposort():
        masked = _masked(node) if node.op is Ops.REDUCE else None
        if masked is None or not all(map(is_plain, (r for r in loops if r in node.ranges))):
            continue
        for loop in loops:
            segments = (solved_for(c, loop) for c in conjuncts(masked[0]))
            found = (at for at in segments if at is not None and not at.ranges.isdisjoint(node.closed_ranges))
            if (segment := next(found, None)) is not None:
                yield SegmentSum(node, loop, *masked, segment)


def _masked(node: UOp) -> tuple[UOp, UOp] | None:
    """(condition, value) of a REDUCE over loops of what changes nothing where the condition does not hold."""
    closed = node.closed_ranges
    if len(node.src) != 1 + len(closed) or not closed or any(r.arg[1] is not RangeKind.LOOP for r in closed):
        return None
    if node.arg not in (Ops.ADD, Ops.MAX, Ops.MUL) or node.dtype.is_bool:
        return None
    value, identity = node.src[0], reduce_identity(node.arg, node.dtype)
    if value.op is Ops.CAST and value.src[0].dtype.is_bool and node.arg is Ops.ADD:
        return value.src[0], UOp.const(1, value.dtype)
    if value.op is Ops.CAST and value.src[0].op is Ops.WHERE:  # half types are summed in float32
        condition, *either = value.src[0].src
        value = condition.where(*(simplified(Ops.CAST, value.dtype, v) for v in either))
    if value.op is not Ops.WHERE:
        return None
    condition, value, other = value.src
    if other is identity:
        return condition, value
    return (condition.logical_not(), other) if value is identity else None
