"""Lazy values that are computed once, and kept in memory for the tensors that stand for them.

In: tensors to compute. A value that they need is computed before them, on its own, and kept where a live
tensor stands for it (the first values of a parameter), it reads no memory, and it takes longer to compute
than to read: random numbers, what is to be stored anyway, exponentials, logarithms and sines of constants.
While TinyJit traces, the values to keep are those that tensors had before the call, which depend on no input
of it; these may read memory. So what is traced, and every graph that is computed later, reads what was kept.

Numbers repeated, ranges, views and simple arithmetic of these stay lazy, to be part of whatever kernel uses
them; so does simple arithmetic of less memory than the value takes (a mask of lengths, weights in blocks).
"""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tinygrad.device import canonical_device
from tinygrad.engine.capture import Capture
from tinygrad.engine.realize import realize_uops, schedule_uops
from tinygrad.graph.leaf_tensors import constant_value
from tinygrad.graph.node_flags import COSTLY, COSTLY_OPS, MEMORY, READS, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Placement
from tinygrad.graph.sizes import largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.items import ScheduleItem
from tinygrad.schedule.persistent_cache import schedules
from tinygrad.tensor.live import all_tensors, live_tensors, note_realized

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

COSTLY_OF_MEMORY = COSTLY_OPS | {Ops.REDUCE, Ops.COPY}
"""Operations on what is in memory that take longer than reading the result."""


def keep_values(tensors: Sequence[Tensor]) -> None:
    """Compute what these lazy tensors need and other tensors are to keep, outside of any capture."""
    kept = values_to_keep(tensors)
    if not kept:
        return
    holders = [holder for value in kept for holder in value.holders]

    def note() -> None:
        for value in kept:
            if value.node.realized_view is None:
                value.node.set_realized_view(value.placed.realized_view)
        note_realized(holders)

    capture = Capture.current()
    if capture is not None:
        capture.rests_on([value.node for value in kept])
    with nullcontext() if capture is None else capture.suspended():
        realize_uops([value.placed for value in kept], note)


def schedule_with_kept(tensors: Sequence[Tensor], uops: Sequence[UOp]) -> list[ScheduleItem]:
    """The steps that compute these lazy tensors, whose nodes, on their devices, are `uops`: first those of
    what is to be kept."""
    kept = values_to_keep(tensors)
    if not kept:
        return schedule_uops(uops)
    first = schedules.schedule([value.placed for value in kept])
    memory = {value.node: first.views[value.placed] for value in kept}
    known = {node: view for node in UOp.sink(uops).toposort(stop=lambda n: n.realized_view is not None)
             if node not in memory and (view := node.realized_view) is not None}
    return first.items + schedule_uops([uop.substitute(memory | known) for uop in uops])


class Kept:
    """A value to keep: its `node`, and the tensors that stand for it, or for views of it."""

    def __init__(self, node: UOp, holders: list[Tensor]) -> None:
        self.node = node
        self.holders = holders

    @property
    def place(self) -> Placement:
        """Where it is kept."""
        place: Placement = self.holders[0].device
        return place

    @property
    def placed(self) -> UOp:
        """The node to compute, which says where."""
        anywhere = self.node.device is None and self.place != canonical_device(None)
        return self.node.copy_to(self.place) if anywhere else self.node


def values_to_keep(tensors: Sequence[Tensor]) -> list[Kept]:
    """The values that these lazy tensors need and others are to keep. Where that is all there is to compute,
    none."""
    capture = Capture.current()
    if capture is None:
        held = held_among([t for t in all_tensors() if t._uop.flags & (COSTLY | READS | WRITES) == COSTLY])
    else:
        before = capture.pending
        held = held_among([t for t in live_tensors() if t._uop.viewed in before
                           and not t._uop.flags & (MEMORY | WRITES)])
    if not held or (capture is None and (held.keys() <= {t._uop.viewed for t in tensors}
                                         or not any([t._uop.flags & COSTLY for t in tensors]))):
        return []
    order = list(UOp.sink([t._uop for t in tensors]).toposort(
        stop=lambda n: n.realized_view is not None or (capture is None and not n.flags & COSTLY)))[:-1]
    chosen = worth_keeping(order, held, capture is not None)
    if capture is None and all([t._uop.viewed in chosen for t in tensors]):
        return []
    places = places_of(order, tensors)
    found = [Kept(node, held[node]) for node in chosen]
    return [value for value in found if value.node.device is not None or places[value.node] == {value.place}]


def held_among(tensors: Sequence[Tensor]) -> dict[UOp, list[Tensor]]:
    """The lazy values of some tensors, but for numbers and those of sizes that are not known, each with the
    tensors that stand for it or for views of it."""
    held: dict[UOp, list[Tensor]] = {}
    for tensor in tensors:
        node = tensor._uop.viewed
        if node.realized_view is None and constant_value(node) is None and not node.has_sizes:
            held.setdefault(node, []).append(tensor)
    return held


def worth_keeping(order: Sequence[UOp], held: dict[UOp, list[Tensor]], reads_memory: bool) -> dict[UOp, None]:
    """Those of the values `held` among these nodes, sources first, that take longer to compute than to read,
    given those before them; `reads_memory`: also such as read memory."""
    read: dict[UOp, int] = {}
    """of each node, the largest memory in bytes that computing it reads; 0 where it reads none"""
    costly: set[UOp] = set()
    kept: dict[UOp, None] = {}
    for node in order:
        if node.op is Ops.BUFFER or node.realized_view is not None:
            read[node] = bytes_of(node)
            continue
        most = read[node] = max([read[s] for s in node.src if s in read], default=node.flags & READS)
        slow = COSTLY_OPS if most == 0 else COSTLY_OF_MEMORY if reads_memory else frozenset()
        if node.op in slow or not costly.isdisjoint(node.src):
            costly.add(node)
        if node in held and (most == 0 or reads_memory) and (node in costly or 0 < bytes_of(node) <= most):
            kept[node] = None
            costly.discard(node)
            read[node] = bytes_of(node)
    return kept


def bytes_of(node: UOp) -> int:
    return int(prod(largest_shape(node.shape))) * node.dtype.itemsize


def places_of(order: Sequence[UOp], roots: Sequence[Tensor]) -> dict[UOp, set[Placement]]:
    """Where each of these nodes, sources first, is used: on the devices of those above it that say one, or
    else of the tensors to compute."""
    places: dict[UOp, set[Placement]] = {node: set() for node in order}
    for tensor in roots:
        places[tensor._uop].add(tensor.device)
    for node in reversed(order):
        above = places[node] if node.device is None else {node.device}
        for source in node.src:
            if source in places:
                places[source] |= above
    return places
