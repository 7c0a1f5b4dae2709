"""Scans: prefix sums carried from one iteration to the next.

    for i: out[i] = sum over k <= i of x[k]          s = 0; for i: s += x[i]; out[i] = s

The left side takes n * n / 2 additions, the recurrence on the right n, one after the other (Blelloch, "Prefix
sums and their applications", 1990). In: a nest with prefix sums (`codegen/prefix_sum.py`) along a loop over
outputs. Out: the nest with the value so far (RUNNING) in their place. The loop stays whole and runs in order,
inside the loops that the items change with and outside all others, so that outputs share it. Items are added
up from the first to the last.
"""
from __future__ import annotations

from tinygrad.codegen.opt.loops import with_kind
from tinygrad.codegen.predicate import accumulated
from tinygrad.codegen.prefix_sum import prefix_sums
from tinygrad.codegen.ranges import values_of
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp


def scan(nest: UOp, loop: UOp) -> UOp:
    """The nest with the prefix sums along `loop` carried. Raises ValueError where there are none, and where
    outputs would need the loop at several places."""
    found = [p for p in prefix_sums(nest) if p.loop is loop]
    if not found:
        raise ValueError(f"nothing is reduced up to each iteration of r{loop.identity}")
    ordered = with_kind(loop, RangeKind.IN_ORDER)
    instead = {loop: ordered}
    for part in found:
        item = accumulated(part.item.substitute({loop: ordered}))
        before = UOp.new(Ops.RUNNING, item.dtype, (item, ordered), part.reduce.arg)
        instead[part.reduce] = UOp.new(part.reduce.arg, item.dtype, (before, item)).cast(part.reduce.dtype)
    around = frozenset({loop}).union(*(p.item.ranges for p in found))
    stores = [store.replace(src=(*values_of(store), *sorted(
        store.closed_ranges, key=lambda r: (r not in around, r is loop)))) for store in nest.src]
    if len({closed[:closed.index(loop)] for s in stores if loop in (closed := s.closed_ranges)}) > 1:
        raise ValueError(f"outputs need r{loop.identity} inside loops of their own")
    return UOp.sink(stores).substitute(instead)
