"""What is written into a tensor, or a part of one: a tensor of that shape and dtype, made of any value.

`Tensor.assign` and `x[...] = value` (`functional/indexing.py`) write it. `write` makes it the value: in the
tensor's memory, lazily, or as another node where memory has to keep what gradients need.
"""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType
from tinygrad.graph.batch import TransformError, is_unknown
from tinygrad.graph.leaf_tensors import (
    LeafIndex,
    below_detaches,
    depends_on_leaf,
    is_cut_off,
    is_leaf,
    is_view_of_memory,
    own_memory,
    storage_view,
    value_of_its_own,
    with_gradient_of,
    without_detaches,
)
from tinygrad.graph.ops import Ops
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.template import expanded
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import prod
from tinygrad.tensor.aliasing import refuse_repeated, unrecorded, written
from tinygrad.tensor.live import PendingWrites, live_tensors
from tinygrad.tensor.modes import no_grad

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

_leaf_identities = itertools.count()
"""Of leaves that are no memory, each its own."""


def leaf_of(uop: UOp) -> UOp:
    """The value of `uop` as a variable of gradients. Where that was detached of memory, which is another
    variable, this one has memory of its own once it is computed."""
    return (value_of_its_own(uop) if is_cut_off(uop) else uop).detach(next(_leaf_identities))


def operand_to_write(self: Tensor, value: Any) -> Tensor:
    """What is to be written into `self` as a tensor; numbers in its dtype, as NumPy and PyTorch cast them."""
    if isinstance(value, type(self)):
        return value
    dtype = self.dtype if isinstance(value, (bool, int, float, np.generic)) else None
    new = type(self)(value, device=self.device, dtype=dtype, requires_grad=False)
    if isinstance(value, (list, tuple)) and new.dtype is not self.dtype and (
            self.dtype.is_float or not new.dtype.is_float):
        return type(self)(value, device=self.device, dtype=self.dtype, requires_grad=False)
    return new


def as_written(name: str, shape: Shape, dtype: DType, value: Tensor) -> Tensor:
    """`value` broadcast to `shape` and cast to `dtype`, to be written there.

    Raises ValueError where the shape does not broadcast, TypeError where the dtype's kind is too high.
    """
    if value.dtype is dtype and value.shape == shape:
        return value
    if value.dtype.is_float and not dtype.is_float:
        raise TypeError(f"{name}: {value.dtype} values would be cut to {dtype}; cast them first")
    if len(value.shape) > len(shape) and prod(value.shape[:len(value.shape) - len(shape)]) == 1:
        value = value.reshape(value.shape[len(value.shape) - len(shape):])
    if broadcast_shape(name, shape, value.shape) != shape:
        raise ValueError(f"{name}: a value of shape {value.shape} does not broadcast to {shape}")
    return value.cast(dtype).expand(shape)


def write(self: Tensor, value: UOp, view: UOp | None = None, partly: bool = False) -> None:
    """Take `value`, of this dtype, and so do those that are views of the same value.

    It is for all of this tensor, or where that is not memory, for a `view` of its node. `partly`: some of
    its items are the old ones. A leaf with a gradient is computed first: those who train write to it step
    after step, and as a node it would grow with them.
    """
    if not self._is_in_memory and self._left is not None and is_leaf(self._result):
        self.realize()
    if below_detaches(self._result).op is Ops.ASSIGN:  # with what else is still to be written, at once
        self.realize(*PendingWrites.shown())
    shared = self._aliased
    unknown = is_unknown(value)
    lazily = is_written_lazily(self, value)
    if shared is not None and not lazily and self.uop is not shared.base:
        self.compute_whole()
    target = own_memory(self.uop)
    if target is None or lazily:
        _rebind(self, expanded(value), view or self.uop, partly)
        return
    if unknown:
        raise TransformError(f"a function under vmap writes into {self!r}, memory that all examples "
                             "share, what differs from example to example; return it instead")
    refuse_repeated(target.viewed, target)
    write = target.assign(value.detach() if depends_on_leaf(value) else value)
    if without_detaches(self._uop) is target:
        self.uop = write if self._uop is target else write.detach()
    writer = target.base.storage.writer = type(self).leaf(write, requires_grad=False)
    writer._is_writer = True


def _rebind(self: Tensor, value: UOp, view: UOp, partly: bool) -> None:
    """Stand for a node with `value` in its `view`, and let what shares this value show it."""
    alias_set = self._aliased
    base = self._shown
    new = value_of_its_own(written(base, view, value))
    new = with_gradient_of(new, new) if new.viewed is not new else new
    if no_grad.state.depth and depends_on_leaf(new):
        keeps_gradient = (partly or view is not base) and depends_on_leaf(base)
        new = unrecorded(base, new) if keeps_gradient else new.detach()
    tensors = [self] if alias_set is None else alias_set.tensors
    leaves = [t for t in tensors if t._uop is base and is_leaf(base) and t._requires_grad is not False]
    if any(t._requires_grad for t in leaves) or (leaves and not depends_on_leaf(new)):
        new = leaf_of(new)
    for leaf in leaves:
        leaf._was_leaf = True
    if alias_set is None:
        self.uop = new
    else:
        alias_set.show(new)


def is_written_lazily(self: Tensor, value: UOp) -> bool:
    """Whether this takes `value`, whole or in part, as another node: memory would lose something, of this or,
    where this is no memory yet, of the value: the gradients that flow through it."""
    if is_tracked(self):
        return True
    if is_unknown(value):
        return own_memory(self.uop) is None
    has_gradient = depends_on_leaf(value) and self._requires_grad is not False and not no_grad.state.depth
    return has_gradient and not is_view_of_memory(without_detaches(self.uop))


def is_tracked(self: Tensor) -> bool:
    """Whether writing into this value's memory would lose something: gradients that flow through it, or
    the way to a value that is not known yet."""
    node = self._shown
    if is_unknown(node):
        return True
    if is_view_of_memory(node) or not depends_on_leaf(node) or (no_grad.state.depth and is_leaf(node)):
        return False
    return not _realized_alone(self)


def _realized_alone(self: Tensor) -> bool:
    """Whether this is computed, and no live tensor can be asked for a gradient through it
    (`Tensor.zeros(n).contiguous().realize()`, whose leaf is gone). It stands for its memory then, and so
    do its views."""
    node = self._shown
    view = storage_view(node)
    if view is None:
        return False
    graph = LeafIndex(node)
    for t in live_tensors():
        others = t is not self and (t._alias_set is None or t._alias_set is not self._alias_set)
        if others and t._requires_grad is not False and graph.targets_of(t._uop):
            return False
    self._stand_for(view)
    return True


def overwrite(self: Tensor, view: UOp, value: UOp) -> None:
    """Write `value` into `view`, part of this tensor's memory, now."""
    refuse_repeated(view.viewed, view)
    type(self).leaf(view.assign(value.detach()), requires_grad=False).realize()
