"""Derivatives of tensors: `gradient`, which returns them, and `backward`, which leaves them in `.grad`.

The nodes are made by `graph/gradient.py`. This module knows which live tensors take a gradient (`tensor.py`
says what a leaf is), and what becomes of a gradient that is there already.
"""
from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.graph.gradient import gradients
from tinygrad.graph.leaves import LeafIndex, is_leaf, value_of_its_own
from tinygrad.graph.uop import UOp
from tinygrad.helpers import exclusive, prod
from tinygrad.live import live_tensors

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def gradient(self: Tensor, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
    """The gradients of this tensor at `targets`, weighted by `gradient` (needed unless this is one number).

    They are differentiable themselves. Raises RuntimeError for a target that this tensor does not depend on.

    >>> x = Tensor(3.0)
    >>> (x * x).gradient(x)[0].item()
    6.0
    """
    weight = _weight(self, gradient)
    graph = LeafIndex(self.uop)
    nodes = [graph.targets_of(t.uop) for t in targets]
    found = gradients(self.uop, weight, [node for group in nodes for node in group])
    by_node = dict(zip((node for group in nodes for node in group), found, strict=True))
    results = []
    for i, (target, group) in enumerate(zip(targets, nodes, strict=True)):
        parts = [g.reshape(target.shape) for g in map(by_node.get, group) if g is not None]
        if not parts:
            raise RuntimeError(f"target {i}, of shape {target.shape}, is not in the graph of this tensor")
        results.append(type(self).of(value_of_its_own(functools.reduce(operator.add, parts)), target))
    return results


@exclusive
def backward(self: Tensor, gradient: Tensor | None = None) -> Tensor:
    """Add the gradient of this tensor to `.grad` of every live leaf it depends on, and return this tensor.

    Raises RuntimeError for a tensor of more than one item without `gradient`, and for one without leaves.
    """
    weight = _weight(self, gradient)
    groups: list[tuple[Tensor, list[UOp]]] = []
    graph = LeafIndex(self.uop)
    for tensor in live_tensors():
        may_be_asked = tensor._requires_grad is not None or tensor._was_leaf or is_leaf(tensor.uop)
        if may_be_asked and tensor.dtype.is_float and (nodes := graph.targets_of(tensor.uop)):
            if tensor._requires_grad is False:
                tensor._first_gradient_use = tensor._first_gradient_use or "refused"
            else:
                groups.append((tensor, nodes))
    targets = list(dict.fromkeys(node for _, nodes in groups for node in nodes))
    found = dict(zip(targets, gradients(self.uop, weight, targets), strict=True))
    reached: list[tuple[Tensor, UOp]] = []
    for tensor, nodes in groups:
        parts = [g.reshape(tensor.shape) for g in map(found.get, nodes) if g is not None]
        if parts:
            reached.append((tensor, functools.reduce(operator.add, parts)))
    _accumulate(reached)
    if not reached:
        raise RuntimeError(f"backward() of {self.dtype} of shape {self.shape}: no live float tensor that "
                           "this one depends on takes gradients (see requires_grad, no_grad and detach)")
    return self


def _weight(self: Tensor, gradient: Tensor | None) -> UOp:
    """The gradient of what is asked for, at this tensor."""
    if not self.dtype.is_float:
        raise RuntimeError(f"only floats have gradients, this tensor is {self.dtype}")
    if gradient is None:
        if prod(self.shape) != 1:
            raise RuntimeError(f"backward() of shape {self.shape} needs a gradient of that shape; only a "
                               "tensor of one item does without")
        return UOp.const(1.0, self.dtype, self.shape)
    if gradient.shape != self.shape:
        raise RuntimeError(f"the gradient has shape {gradient.shape}, the tensor {self.shape}")
    return gradient.uop.cast(self.dtype)


def _accumulate(found: Sequence[tuple[Tensor, UOp]]) -> None:
    """Add to the `.grad` of each of some tensors. Lazy old gradients are computed first, in one schedule, so
    that the graph does not grow."""
    for tensor, _ in found:
        tensor._first_gradient_use = tensor._first_gradient_use or "used"
    kept = [(t, uop, t._grad) for t, uop in found if t._grad is None or not t._grad._given_up]
    old = [gradient for _, _, gradient in kept if gradient is not None]
    if old:
        old[0].realize(*old[1:])
    together: list[weakref.ref[Tensor]] = []
    for tensor, uop, before in kept:
        total = uop if before is None else before.uop + uop
        gradient = tensor._grad = tensor.of(value_of_its_own(total.detach()), tensor)
        gradient._requires_grad = False
        gradient._expires = tensor._requires_grad is None
        gradient._left_together = together
        together.append(weakref.ref(gradient))


def reached_by_gradients(uop: UOp) -> list[Tensor]:
    """The live tensors that say `requires_grad=True` and that gradients of `uop` belong to."""
    graph = LeafIndex(uop)
    return [t for t in live_tensors() if t._requires_grad and graph.targets_of(t._uop)]
