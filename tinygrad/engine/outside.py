"""The tensors outside a traced call: whether running the trace again does what calling again would do.

`Outside` remembers them as they were before the call, and says afterwards what the call did to them. A trace
is not kept where the call computed values that were pending outside, or made an outside tensor stand for
other memory: the next call then traces again. `Conditions` are what must be so for a trace that was kept to
be used (`engine/jit.py`).
"""
from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection, Sequence, Set

from tinygrad.functional import random
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import Storage, UOp
from tinygrad.graph.writes import Readers
from tinygrad.tensor import Tensor, _live


def storage_of(uop: UOp) -> Storage | None:
    """The memory that a tensor with node `uop` stands for, or stood for before it was overwritten."""
    viewed = uop.viewed
    if viewed.op is Ops.BUFFER:
        return viewed.storage
    view = uop.computed_into or viewed.computed_into
    return None if view is None or view.viewed.op is not Ops.BUFFER else view.viewed.storage


def live_tensors() -> list[Tensor]:
    """Every tensor that there is."""
    return list(_live.values())


def lazy_tensors() -> list[Tensor]:
    """The live tensors whose value is not in memory."""
    return [t for t in live_tensors() if t._uop.viewed.op is not Ops.BUFFER and not t._is_realized]


def compute_readers(nodes: list[UOp]) -> None:
    """Compute the live lazy tensors that read the memory of BUFFER `nodes`, which is to be overwritten."""
    lazy = lazy_tensors() if nodes else []
    if not lazy:
        return
    readers = Readers({node.current.assign(node.current) for node in nodes})
    waiting = [t for t in lazy if readers.includes(t.uop)]
    for tensor in waiting:
        if tensor._expires:
            tensor._expire()
    kept = [t for t in waiting if not t._expires]
    if kept:
        kept[0].realize(*kept[1:])


@dataclasses.dataclass(frozen=True)
class Before:
    """A tensor as it was before a call."""

    tensor: weakref.ref[Tensor]
    uop: UOp
    grad: Tensor | None


class Outside:
    """Every live tensor but the stand-ins of a call that is about to be traced."""

    def __init__(self, stand_ins: Sequence[Tensor]) -> None:
        own = set(map(id, stand_ins))
        tensors = [t for t in live_tensors() if id(t) not in own]
        for tensor in tensors:
            tensor._first_gradient_use = None
        self.tensors = [Before(weakref.ref(t), t.uop, t._grad) for t in tensors]
        nodes: dict[UOp, None] = {}
        for tensor in lazy_tensors():
            nodes.update(tensor.uop.toposort(stop=lambda n: n.realized_view is not None or n in nodes))
        self.pending = [n for n in nodes if n.realized_view is None]
        """nodes that had no value yet"""

    def was_computed(self) -> bool:
        """Whether a pending node got its value since. A call that does this does it once."""
        return any(n.realized_view is not None for n in self.pending)

    def rebound(self) -> list[Tensor]:
        """The tensors that stand for other memory now."""
        found = []
        for before in self.tensors:
            tensor = before.tensor()
            if tensor is None or tensor._uop is before.uop or tensor._given_up:
                continue
            viewed = tensor.uop.viewed
            target = viewed.src[0] if viewed.op is Ops.ASSIGN else tensor.uop
            old = storage_of(before.uop)
            if old is None or storage_of(target) is not old:
                found.append(tensor)
        return found

    def new_gradients(self) -> dict[weakref.ref[Tensor], Tensor | None]:
        """The gradient of each tensor whose gradient is another now."""
        found = {}
        for before in self.tensors:
            tensor = before.tensor()
            if tensor is not None and tensor._grad is not before.grad:
                found[before.tensor] = tensor._grad
        return found

    def reference(self, tensor: Tensor) -> weakref.ref[Tensor] | None:
        """The reference to `tensor` if it is from outside."""
        return next((b.tensor for b in self.tensors if b.tensor() is tensor), None)

    def conditions(self, captured: Set[Storage], used: Collection[UOp], given: Sequence[Tensor],
                   seed: int | None) -> Conditions:
        """What a trace rests on that uses the memory of `captured` and computed from the nodes `used`, among
        them lazy tensors from outside, which were not `given` as arguments. `seed`: of random numbers, if it
        must stay."""
        handles: dict[Storage, list[weakref.ref[Tensor]]] = {}
        gradients, lazy = [], []
        arguments = set(map(id, given))
        for before in self.tensors:
            storage, tensor = storage_of(before.uop), before.tensor()
            if storage is not None and not captured.isdisjoint(storage.parts):
                handles.setdefault(storage, []).append(before.tensor)
            elif before.uop.base.op is not Ops.BUFFER and before.uop in used and id(tensor) not in arguments:
                lazy.append((before.tensor, before.uop))
            if tensor is not None and tensor._first_gradient_use == "added":
                gradients.append((before.tensor, None if before.grad is None else weakref.ref(before.grad)))
        return Conditions(handles, lazy, gradients, seed)


def still_stands_for(tensor: Tensor | None, uop: UOp) -> bool:
    """Whether a tensor lives and has the value of `uop`: its node, or the memory that it was computed into
    and that nobody overwrote since."""
    if tensor is None or tensor._uop is uop:
        return tensor is not None
    view = uop.realized_view
    return view is not None and storage_of(tensor._uop) is storage_of(view)


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What must be so for a trace to be used."""

    handles: dict[Storage, list[weakref.ref[Tensor]]]
    """the outside tensors that stood for each captured memory"""
    lazy: list[tuple[weakref.ref[Tensor], UOp]]
    """those that had no memory of their own, constants too, and their nodes: their values are in the trace"""
    gradients: list[tuple[weakref.ref[Tensor], weakref.ref[Tensor] | None]]
    """gradients that the call adds to, by their owners"""
    seed: int | None = None
    """the seed, where numbers from before the call are drawn again in each, beside new ones"""

    def hold(self) -> bool:
        """Whether the outside tensors still stand for the memory, and the values, that were captured."""
        if self.seed is not None and self.seed != random.seed():
            return False
        if not all(still_stands_for(tensor(), uop) for tensor, uop in self.lazy):
            return False
        for storage, references in self.handles.items():
            alive = [t for t in (r() for r in references) if t is not None]
            if not alive or any(storage_of(t.uop) is not storage for t in alive):
                return False
        for owner, gradient in self.gradients:
            tensor = owner()
            if tensor is not None and tensor._grad is not (None if gradient is None else gradient()):
                return False
        return True


def set_gradient(owner: Tensor | None, gradient: Tensor | None) -> None:
    """What `backward` inside the call did to `.grad` of a tensor of the outside."""
    if owner is None:
        return
    if gradient is not None:
        gradient._requires_grad = False
    owner._grad = gradient
