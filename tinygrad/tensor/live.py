"""The tensors that exist, and which of them a computation takes with it.

Memory that is about to be overwritten is read first by every lazy tensor that still needs the old value
(`with_pending_readers`), and whatever shows that memory afterwards stands for it (`notes_of`). So both
look at all tensors that there are, of which `LIVE` holds weak references. Used by `tensor.py`, by `backward`,
which finds its leaves among them, and by the JIT.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tinygrad.device import canonical_device
from tinygrad.engine.realize import realize_uops
from tinygrad.graph.leaf_tensors import below_detaches, constant_leaves, leaf_node, storage_view
from tinygrad.graph.node_flags import MEMORY, WRITES, Assignments
from tinygrad.graph.ops import Ops
from tinygrad.graph.storage import Overwriting, Storage
from tinygrad.graph.uop import UOp
from tinygrad.graph.writes import Readers, pending_writes
from tinygrad.helpers import exclusive

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

LIVE: dict[weakref.ref[Tensor], None] = {}
"""Every tensor that exists, in the order in which they were made; a `weakref.WeakSet` has no order, and takes
three times as long for each."""


def all_tensors() -> list[Tensor]:
    """Every tensor that there is, while other threads make more."""
    return [tensor for reference in list(LIVE) if (tensor := reference()) is not None]


def with_nodes(tensors: Iterable[Tensor]) -> None:
    """Let tensors stand for all nodes of their graphs (APPLY stands for some otherwise:
    `graph/template.py`)."""
    for tensor in tensors:
        tensor._expand_nodes()


def live_tensors() -> list[Tensor]:
    """Every tensor that there is, with all nodes of its graph."""
    tensors = all_tensors()
    with_nodes(tensors)
    return tensors


def takes(owner: object, memory: Storage) -> bool:
    """Whether memory is its owner's, or nobody's any more: those that it was computed for are gone, and no
    view of it stayed."""
    return not (memory.was_left and _is_shown(memory)) and memory.belongs_to(owner)


def copied_for(owner: object, view: UOp) -> UOp:
    """Memory of its own for a tensor whose node another tensor was computed from and stands for: equal
    expressions are one node, but two tensors. So are equal copies: each copies the last one."""
    while True:
        own = UOp.new(Ops.CONTIGUOUS, view.dtype, (view,))
        realize_uops([own])
        held = own.realized_view
        assert held is not None
        if held.base.storage.belongs_to(owner):
            return held
        view = held


def _is_shown(memory: Storage) -> bool:
    """Whether a live tensor stands for this memory, or for part of it."""
    for tensor in all_tensors():
        node = below_detaches(tensor._uop)
        target = below_detaches(node.src[0]) if node.op is Ops.ASSIGN else node
        if target.op is Ops.BUFFER and not set(memory.parts).isdisjoint(target.storage.parts):
            return True
    return False


class Unrealized:
    """What is known of the live tensors that are not fully realized: every replay asks, of models with
    thousands that are."""

    changes = 0
    """how often a tensor came to stand for another node that is none of memory"""
    known: tuple[int, list[weakref.ref[Tensor]]] = 0, []
    """`changes` when somebody asked last, and those that were not realized then"""

    @classmethod
    def note(cls, node: UOp) -> None:
        """A tensor stands for another node now."""
        if node.flags & (MEMORY | WRITES) != MEMORY:
            cls.changes += 1

    @classmethod
    @exclusive
    def tensors(cls) -> list[Tensor]:
        """The live ones. Looks at those that were not realized, and at newer ones, while no other can be."""
        changes, references, (known, unrealized) = cls.changes, list(LIVE), cls.known
        cls.known = -1, []  # an interrupt before the end makes the next call look at all
        newer = []
        for reference in reversed(references):
            tensor = reference()
            if tensor is not None:
                if tensor._was_looked_at:
                    break
                tensor._was_looked_at = True
                newer.append(reference)
        if changes == known:
            references = [*unrealized, *reversed(newer)]
        found = [(r, t) for r in references if (t := r()) is not None
                 and t._uop.flags & (MEMORY | WRITES) != MEMORY]
        cls.known = changes, [r for r, _ in found]
        return [t for _, t in found]


def unrealized_tensors() -> list[Tensor]:
    """The live tensors that are not fully realized, with all nodes of their graphs."""
    tensors = Unrealized.tensors()
    with_nodes(tensors)
    return tensors


def placed(tensors: Sequence[Tensor]) -> list[UOp]:
    """The nodes to compute for some tensors, each on its own device."""
    apart = len(tensors) > 1 and len({t._device for t in tensors}) > 1
    return [_placed(t, apart) for t in tensors]


def _placed(tensor: Tensor, among_others: bool) -> UOp:
    """The node to compute; where only constants feed it, it says which device is to hold the result, if that
    is not the default one or values on others are computed with it."""
    node = tensor._result
    if node.device is not None:
        return node
    view = storage_view(node)  # of an equal node's value, wherever that was computed
    if among_others or tensor._device != (canonical_device(None) if view is None else view.device):
        tensor._show(node.copy_to(tensor._device))
    return tensor._result


def flags_of(tensors: Sequence[Tensor]) -> int:
    """The flags that the nodes of some tensors have together."""
    found = 0
    for t in tensors:
        found |= t._uop.flags
    return found


class PendingWrites:
    """What is known of the writes that live tensors still show."""

    none_up_to = -1
    """the number of ASSIGN nodes when no live tensor showed memory that was still to be written"""

    @classmethod
    def exist(cls) -> bool:
        """Whether there is one."""
        return bool(cls.shown())

    @classmethod
    def shown(cls) -> list[Tensor]:
        """The live tensors that show one. Looks at all tensors only where an ASSIGN node was made since it
        found none."""
        count = Assignments.count
        if count == cls.none_up_to:
            return []
        found = pending_among(Unrealized.tensors())
        if not found:
            cls.none_up_to = count
        return found


def pending_assignments() -> list[Tensor]:
    """The live tensors that were assigned to, and whose memory was not written yet."""
    return pending_among(unrealized_tensors())


def pending_among(unrealized: Sequence[Tensor]) -> list[Tensor]:
    """Those of the unsettled tensors that were assigned to, and whose memory was not written yet."""
    return [t for t in unrealized if below_detaches(t._uop).op is Ops.ASSIGN and not t._is_realized]


def with_pending_readers(tensors: Sequence[Tensor]) -> tuple[list[Tensor], dict[UOp, None]]:
    """`tensors` and the live lazy ones that read memory which computing them overwrites; and those writes.

    Gradients that nobody asked for are not computed, but given up.
    """
    chosen = {id(t): t for t in tensors}
    writes = pending_writes([t._uop for t in tensors])
    while writes:
        readers, unrealized = Readers(writes), Unrealized.tensors()
        waiting = [t for t in [*unrealized, *shared_values(readers, unrealized)]
                   if id(t) not in chosen and not t._is_realized and readers.includes(t._uop)]
        for t in waiting:
            if t._may_be_invalidated:
                t._invalidate()
        kept = [t for t in waiting if not t._may_be_invalidated]
        chosen.update((id(t), t) for t in kept)
        known = len(writes)
        writes |= pending_writes(t._result for t in kept)
        if len(writes) == known:
            break
    return list(chosen.values()), writes


def shared_values(readers: Readers, unrealized: Sequence[Tensor]) -> list[Tensor]:
    """The values among `readers` that several of these tensors are views of and none stands for: what is
    written through one of the views needs all of it."""
    sets = {shared: t for t in unrealized if (shared := t._aliased) is not None}
    return [t._whole_value() for shared, t in sets.items()
            if storage_view(shared.base) is None and readers.includes(shared.base)
            and all([other._uop is not shared.base for other in shared.tensors])]


def note_realized(tensors: Sequence[Tensor]) -> None:
    """After these were computed, which wrote into nothing that tensors show."""
    leaves = LeavesOfTensors()
    for t in tensors:
        t._note_realized(leaves)


def notes_of(tensors: Sequence[Tensor], writes: Collection[UOp]) -> Callable[[], None]:
    """What is to be called after these were computed, which runs these writes: lets them, and all that shows
    what was written, stand for the memory."""
    if not writes:
        return partial(note_realized, tensors)
    return partial(note_written, tensors, writes,
                   Overwriting([write.src[0].base.storage for write in writes]))


def note_written(tensors: Sequence[Tensor], writes: Collection[UOp], overwriting: Overwriting) -> None:
    """After these were computed, which ran these writes."""
    overwriting.done()
    overwriting.forget_writers()
    for write in writes:
        write.set_realized_view(write.src[0].current)
    note_realized(tensors)
    for t in Unrealized.tensors():
        write = below_detaches(t._uop)
        if write in writes:
            t.uop = t._uop.substitute({write: write.src[0].current})


class LeavesOfTensors:
    """The leaves that live tensors stand for, looked for once, when they are first asked for."""

    @functools.cached_property
    def nodes(self) -> set[UOp | None]:
        """None among them, for a tensor that is no leaf."""
        return {leaf_node(t._uop) for t in all_tensors()}

    def are_gone_from(self, node: UOp) -> bool:
        """Whether this is a number in memory (`Tensor.zeros(8).contiguous()`) that no live tensor is the leaf
        of: memory of its own to write into, for nobody will ask for a gradient at the constructor's."""
        leaves = constant_leaves(node)
        return bool(leaves) and self.nodes.isdisjoint(leaves)
