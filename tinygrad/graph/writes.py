"""Which lazy values must be computed before memory is overwritten.

ASSIGN writes in place, later. A lazy value that reads the memory as it was must be computed in the same
schedule, before the write; afterwards its graph would read something else. `pending_writes` finds the writes
that computing some nodes runs, `Readers` the nodes that depend on what they overwrite.
"""
from __future__ import annotations

from collections.abc import Iterable

from tinygrad.graph.ops import Ops
from tinygrad.graph.traits import WRITES
from tinygrad.graph.uop import UOp


def pending_writes(uops: Iterable[UOp]) -> set[UOp]:
    """The ASSIGN nodes that computing `uops` runs.

    Raises RuntimeError where a value with such nodes depends on memory that no longer holds what it did.
    """
    seen: dict[UOp, None] = {}
    for uop in uops:
        if uop.traits & WRITES:
            seen.update(uop.toposort(stop=lambda node: node.realized_view is not None or node in seen))
    for node in seen:
        if node.op is Ops.BUFFER:
            refuse_overwritten(node)
    return {node for node in seen if node.op is Ops.ASSIGN and node.realized_view is None}


def refuse_overwritten(node: UOp) -> None:
    """Raise RuntimeError for a BUFFER that is asked for what it held before it was overwritten."""
    if node.is_overwritten:
        raise RuntimeError("a lazy tensor depends on a value that was overwritten before it was computed; "
                           "realize() it (or call backward()) before the assignment")


class Readers:
    """Tells which nodes depend on what `writes` overwrite, other than through them."""

    def __init__(self, writes: set[UOp]) -> None:
        self.writes = writes
        self.overwritten = {write.src[0].base for write in writes}
        self.known: dict[UOp, bool] = {}

    def includes(self, uop: UOp) -> bool:
        for node in uop.toposort(stop=self._is_end):
            if node not in self.known:
                self.known[node] = self._reads_here(node)
        return self.known[uop]

    def _is_end(self, node: UOp) -> bool:
        return node in self.known or node in self.writes or node.realized_view is not None

    def _reads_here(self, node: UOp) -> bool:
        if node in self.writes:
            return False
        if node.realized_view is not None:
            return self._is_overwritten(node.realized_view.base)
        return self._is_overwritten(node) or any(self.known[s] for s in node.src)

    def _is_overwritten(self, memory: UOp) -> bool:
        if memory.op is not Ops.BUFFER or memory.arg.layout is None:
            return memory in self.overwritten
        return memory in self.overwritten or any(m in self.overwritten for m in memory.memories)
