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
    found: set[UOp] = set()
    stack = [uop for uop in uops if uop.traits & WRITES]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node.op is Ops.BUFFER:
            refuse_overwritten(node)
        if node.realized_view is not None:
            continue
        if node.op is Ops.ASSIGN:
            found.add(node)
        for source in node.src:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return found


def refuse_overwritten(node: UOp) -> None:
    """Raise RuntimeError for a BUFFER that is asked for what it held before it was overwritten."""
    if node.is_overwritten:
        raise RuntimeError("a lazy tensor depends on a value that was overwritten before it was computed; "
                           "realize() it (or call backward()) before the assignment")


class Readers:
    """Tells which nodes depend on what `writes` overwrite, other than through them."""

    def __init__(self, writes: set[UOp]) -> None:
        self.overwritten = {write.src[0].base for write in writes}
        self.known: dict[UOp, bool] = dict.fromkeys(writes, False)

    def includes(self, uop: UOp) -> bool:
        """Whether `uop` does. What is found out about nodes on the way is kept for the next question."""
        known = self.known
        stack = [uop]
        while stack:
            node = stack[-1]
            if node not in known:
                memory = self._memory_at(node)
                unknown = [] if memory is not None else [s for s in node.src if s not in known]
                if unknown:
                    stack += unknown
                    continue
                reads = any([known[s] for s in node.src]) if memory is None else self._is_overwritten(memory)
                known[node] = reads
            stack.pop()
        return known[uop]

    def _memory_at(self, node: UOp) -> UOp | None:
        """The memory that `node` is, or that its value is in; None where it has to be computed."""
        if node.op is Ops.BUFFER:
            return node
        view = node.realized_view
        return None if view is None else view.base

    def _is_overwritten(self, memory: UOp) -> bool:
        if memory.op is not Ops.BUFFER or memory.arg.layout is None:
            return memory in self.overwritten
        return memory in self.overwritten or any(m in self.overwritten for m in memory.memories)
