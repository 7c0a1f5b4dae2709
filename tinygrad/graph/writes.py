"""Which lazy values must be computed before memory is overwritten.

ASSIGN writes in place, later. A lazy value that reads the memory as it was must be computed in the same
schedule, before the write; afterwards its graph would read something else. `pending_writes` finds the writes
that computing some nodes runs, `with_writes` makes sure that all of them are, `Readers` finds the nodes that
depend on what they overwrite, by what each value `Reads`, which is kept with it.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tinygrad.graph.leaf_tensors import below_detaches
from tinygrad.graph.node_flags import WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


def pending_writes(uops: Iterable[UOp]) -> dict[UOp, None]:
    """The ASSIGN nodes that computing `uops` runs."""
    found: dict[UOp, None] = {}
    stack = [uop for uop in uops if uop.flags & WRITES]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node.realized_view is not None:
            continue
        if node.op is Ops.ASSIGN:
            found[node] = None
        for source in node.src:
            if source.flags & WRITES and source not in seen:
                seen.add(source)
                stack.append(source)
    return found


def with_writes(uops: Sequence[UOp], writes: Iterable[UOp]) -> list[UOp]:
    """`uops`, and of the writes that computing them runs those whose results none of them shows: a schedule
    leaves out what no result needs (of `x.pad(...)[...]` all of `x`, or what one device has of it)."""
    shown = {below_detaches(node) for node in (*uops, *(write.src[0] for write in writes))}
    return [*uops, *(write for write in writes if write not in shown)]


def refuse_overwritten(node: UOp) -> None:
    """Raise RuntimeError for a BUFFER that is asked for what it held before it was overwritten."""
    if node.is_overwritten:
        raise RuntimeError("a lazy tensor depends on a value that was overwritten before it was computed; "
                           "realize() it (or call backward()) before the assignment")


MOST_NODES_KEPT = 256
"""Nodes of a value with which the memory that it reads is kept: a parameter that is still to be drawn has 30
to 90. A program with a thousand lazy values asks each of them at each write: 2 us, where to look below six
nodes takes 8 and below thirty 46 (on Intel)."""


class Reads(NamedTuple):
    """The memory that a lazy value reads, and what says that it still does."""

    memories: frozenset[UOp]
    lazy: list[UOp]
    """nodes on the way that nobody has computed"""
    computed: list[tuple[UOp, UOp | None]]
    """those that were, with what holds their values, if anything still does"""

    @staticmethod
    def of(uop: UOp) -> Reads | None:
        """What `uop` reads; None where that is not kept: below it are many nodes, or writes."""
        if uop.flags & WRITES:
            return None
        kept: Reads | None = uop.__dict__.get("_reads", _NOT_ASKED)
        if kept is _NOT_ASKED or (kept is not None and not kept._still_hold()):
            kept = uop.__dict__["_reads"] = Reads._below(uop)
        return kept

    @staticmethod
    def _below(uop: UOp) -> Reads | None:
        bases: set[UOp] = set()
        lazy, computed = [], []
        seen, stack = {uop}, [uop]
        while stack:
            node = stack.pop()
            view = node if node.op is Ops.BUFFER else node.realized_view
            if view is not None:
                bases.add(view.base)
            elif len(seen) > MOST_NODES_KEPT or node.__dict__.get("_reads", _NOT_ASKED) is None:
                return None
            else:
                sources = [source for source in node.src if source not in seen]
                seen.update(sources)
                stack += sources
            if node.computed_into is None:
                lazy.append(node)
            else:
                computed.append((node, view))
        return Reads(frozenset(m for base in bases for m in _parts(base)), lazy, computed)

    def _still_hold(self) -> bool:
        return (all([node.computed_into is None for node in self.lazy])
                and all([node.realized_view is view for node, view in self.computed]))


def memories_read(uop: UOp) -> Collection[UOp]:
    """The BUFFER nodes that computing `uop` reads."""
    reads = Reads.of(uop)
    if reads is not None:
        return reads.memories
    nodes = uop.toposort(stop=lambda node: node.realized_view is not None)
    return {base for node in nodes if (base := (node.realized_view or node).base).op is Ops.BUFFER}


_NOT_ASKED = Reads(frozenset(), [], [])


def _parts(memory: UOp) -> tuple[UOp, ...]:
    """A BUFFER node, and those of its parts on several devices."""
    if memory.op is not Ops.BUFFER:
        return ()
    return (memory,) if memory.arg.layout is None else (memory, *memory.memories)


class Readers:
    """Tells which nodes depend on what `writes` overwrite, other than through them."""

    def __init__(self, writes: dict[UOp, None]) -> None:
        self.overwritten = {write.src[0].base for write in writes}
        self.known: dict[UOp, bool] = dict.fromkeys(writes, False)

    def includes(self, uop: UOp) -> bool:
        """Whether `uop` does. What is found out about nodes on the way is kept for the next question."""
        reads = Reads.of(uop)
        if reads is not None:
            return not reads.memories.isdisjoint(self.overwritten)
        for node in uop.toposort(stop=self._is_known):
            if not self._is_known(node):
                self.known[node] = any([self.known[source] for source in node.src])
        return self.known[uop]

    def _is_known(self, node: UOp) -> bool:
        """Whether that is known of a node without its sources: it was asked for before, or is in memory."""
        if node not in self.known:
            view = node if node.op is Ops.BUFFER else node.realized_view
            if view is None:
                return False
            self.known[node] = not self.overwritten.isdisjoint(_parts(view.base))
        return True
