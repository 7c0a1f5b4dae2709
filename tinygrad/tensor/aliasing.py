"""Alias sets: tensors that show one value before it is in memory; what is written through one of them, all of
them see.

A view of memory needs nothing of this, it names the BUFFER. A view of a value that is lazy, or that gradients
flow through, names the node that computes the value, and so do equal expressions, which are values of their
own. So the tensors that are views of each other hold one `AliasSet`. A write through one of them makes a new
node for the whole value, which all of them show from then on; once the value is in memory that nobody else
writes to, they stand for that. `tensor.py` decides which of the two happens.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import ref

from tinygrad.dtype import dtypes
from tinygrad.graph.gradient import transpose_movement
from tinygrad.graph.leaf_tensors import with_gradient_of, without_detaches
from tinygrad.graph.ops import Ops
from tinygrad.graph.template import expanded
from tinygrad.graph.uop import UOp
from tinygrad.shape.shapetracker import ShapeTracker
from tinygrad.tensor.live import Unrealized

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

FEW = 8
"""How many handles are kept before those of tensors that are gone are looked for."""


class AliasSet:
    """Tensors whose nodes are views of one node, `base`."""

    def __init__(self, first: Tensor) -> None:
        self.base = first._uop
        self._handles: list[ref[Tensor]] = []
        self._limit = FEW
        self.add(first)

    def add(self, tensor: Tensor) -> None:
        if len(self._handles) >= self._limit:
            self._handles = [ref(t) for t in self.tensors]
            self._limit = 2 * len(self._handles) + FEW
        self._handles.append(ref(tensor))
        tensor._alias_set = self

    @property
    def tensors(self) -> list[Tensor]:
        """Those that live and still show the value."""
        return [t for handle in self._handles if (t := handle()) is not None and t._alias_set is self]

    def substitute(self, changes: Mapping[UOp, UOp]) -> None:
        for tensor in self.tensors:
            tensor._uop = tensor._uop.substitute(changes)
            Unrealized.note(tensor._uop)
        self.base = self.base.substitute(changes)

    def expand(self) -> None:
        """Stand for nodes where one node stood for several."""
        for tensor in self.tensors:
            tensor._uop = expanded(tensor._uop)
        self.base = expanded(self.base)

    def show(self, base: UOp) -> None:
        """Be views of `base` from now on, another node of the same value or a new one."""
        self.substitute({self.base: base})

    def stand_for(self, memory: UOp) -> None:
        """Be views of memory from now on, which need no `AliasSet`."""
        tensors = self.tensors
        self.show(memory)
        for tensor in tensors:
            tensor._alias_set = None


def written(base: UOp, view: UOp, value: UOp) -> UOp:
    """`base` where `value`, of the shape of its `view`, is written into it.

    Raises RuntimeError where several items of the view are one item of `base`.
    """
    if view is base:
        return value
    refuse_repeated(base, view)
    here = transpose_movement(view, UOp.const(True, dtypes.bool, view.shape), base)
    return here.where(transpose_movement(view, value, base), base)


def refuse_repeated(base: UOp, view: UOp) -> None:
    """Raise RuntimeError where several items of `view` may be one item of `base`, which a write would meet
    more than once."""
    if _repeats(base, view) and not _are_distinct(without_detaches(view).st):
        raise RuntimeError(f"a view of shape {view.shape} that repeats items of shape {base.shape} cannot be "
                           "written to, for several of its items are one; clone() it first")


def _repeats(base: UOp, view: UOp) -> bool:
    """Whether an axis was expanded on the way from `base` to `view`."""
    node = view
    while node is not base:
        if node.op is Ops.EXPAND and node.shape != node.src[0].shape:
            return True
        node = node.src[0]
    return False


def _are_distinct(tracker: ShapeTracker) -> bool:
    """Whether no two items lie at one place, as far as the strides say: each steps over all that the smaller
    ones reach."""
    if 0 in tracker.shape:
        return True
    if len(tracker.views) > 1:
        return False
    view, reach = tracker.views[0], 0
    steps = sorted((abs(stride), size) for stride, size in zip(view.strides, view.shape) if size > 1)
    for stride, size in steps:
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def unrecorded(base: UOp, value: UOp) -> UOp:
    """`value` in place of `base`, with the gradient of `base`: what a write under `no_grad` leaves."""
    return with_gradient_of(base, value.detach())
