"""What computed values still need of how they were computed: the way to what gradients may be asked at.

A value in memory keeps its graph, for gradients may flow through it. Where nothing below it is left that a
gradient could be asked at (a simulation's state, step after step), the graph and the memory of all values in
it are of no use: `forget_history` lets values stand for their memory alone. So it does below a `detach`, for
what is computed from the constant (a recurrent network's state between stretches of training). It looks at
all that lives, so `realize` calls it seldom: when memory has doubled, and after as many computations as the
last look was long.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.engine.capture import Capture
from tinygrad.graph.leaf_tensors import below_detaches, depends_on_leaf, is_leaf, leaf_node, storage_view
from tinygrad.graph.node_flags import MEMORY
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.storage import Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters
from tinygrad.tensor import carried
from tinygrad.tensor.live import live_tensors

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

LEAST_BYTES = 64 << 20
"""Memory in use up to which nobody looks for what could be given back."""
LEAST_COMPUTATIONS = 1000
NODES_A_COMPUTATION = 10
"""Nodes that a look may take time for, spread over the computations between two looks: 1.3 us each (6,000 on
Zen 4)."""


class Looks:
    """When to look next."""

    def __init__(self) -> None:
        self.bytes = LEAST_BYTES
        self.computations = LEAST_COMPUTATIONS

    def count(self) -> None:
        """Take note of a computation that begins; look where it is time, unless TinyJit records."""
        self.computations -= 1
        if Capture.active is not None:
            return
        if self.computations <= 0 or GlobalCounters.mem_used > self.bytes:
            nodes = forget_history()
            self.bytes = max(LEAST_BYTES, 2 * GlobalCounters.mem_used)
            self.computations = max(LEAST_COMPUTATIONS, nodes // NODES_A_COMPUTATION)


LOOKS = Looks()


def forget_history() -> int:
    """Let all computed values below which no gradient can be asked stand for their memory, in all graphs.
    Returns how many nodes these have."""
    live = live_tensors()
    order = list(UOp.sink([t._uop for t in live]).toposort())
    shared = set(UOp.sink([t._uop for t in live if t._aliased is not None]).toposort())
    forgotten = {node: view for node in _without_leaves(order, live) if node not in shared
                 and (view := storage_view(node)) is not None and is_leaf(view)}
    shared.update(t._uop.viewed for t in live)
    forgotten |= {node: view.detach() for node in order if _is_constant(node) and node not in shared
                  and not node.flags & MEMORY and (view := storage_view(node.src[0])) is not None}
    if forgotten:
        changed = _over_memory(order, forgotten)
        carried.go_on(changed)
        for t in live:  # constants to gradients among them, which graphs are built on
            if t._aliased is not None:
                continue
            view = forgotten.get(t._uop)
            if view is not None:
                t._stand_for(view)
            elif t._uop in changed:
                t.uop = changed[t._uop]
    return len(order)


def _without_leaves(order: Sequence[UOp], tensors: Sequence[Tensor]) -> list[UOp]:
    """The computed nodes below which there is no node that a gradient can be asked at: none of a tensor that
    lives."""
    asked: set[UOp | None] = set()
    memory: set[Storage | None] = set()
    for t in tensors:
        if t.dtype.is_float and t._requires_grad is not False:
            asked |= {t._uop, below_detaches(t._uop), leaf_node(t._uop)}
            memory.add(_storage_of(t._uop))
    memory.discard(None)
    is_asked = {node for node in order if node in asked or _storage_of(node) in memory}
    leads: set[UOp] = set()
    for node in order:
        if not _is_constant(node) and any(s in is_asked or s in leads for s in node.src):
            leads.add(node)
    return [n for n in order if n not in leads and n.realized_view is not None and not n.flags & MEMORY
            and n.op not in Family.VIEW and depends_on_leaf(n)]


def _is_constant(node: UOp) -> bool:
    """Whether no gradient passes the node: what it is computed from matters to it as a value alone."""
    return node.op is Ops.DETACH and node.arg is None


def _storage_of(node: UOp) -> Storage | None:
    """The memory of a node's value, whatever it holds now: a tensor that was computed or overwritten stands
    for its memory, while graphs still hold the node that it was."""
    view = node.computed_into or (node.src[0] if node.op is Ops.ASSIGN else node)
    memory = view.viewed
    return memory.storage if memory.op is Ops.BUFFER else None


def _over_memory(order: Sequence[UOp], views: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """The nodes above those that have `views`, over these instead. What was computed stays so, and what is a
    view of memory now is in memory as it is. A write that is still to be done stays the node that it is:
    whoever reads what it writes, also in the middle of a call, knows it by that."""
    changed = dict(views)
    for node in order:
        is_pending = node.op is Ops.ASSIGN and node.realized_view is None
        if node not in changed and not is_pending and any(s in changed for s in node.src):
            new = changed[node] = node.with_sources(tuple(changed.get(s, s) for s in node.src))
            if node.realized_view is not None and new.viewed.op is not Ops.BUFFER:
                new.set_realized_view(node.realized_view)
    return changed
