"""Derivatives of tensors: `gradient`, which returns them, and `backward`, which leaves them in `.grad`.

The nodes are made by `graph/gradient.py`. This module knows which live tensors take a gradient, and what
becomes of a gradient that is there already.
"""
from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.graph.gradient import gradients
from tinygrad.graph.leaf_tensors import LeafIndex, is_leaf, value_of_its_own
from tinygrad.graph.uop import UOp
from tinygrad.helpers import exclusive, prod
from tinygrad.tensor.live import live_tensors

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def gradient(self: Tensor, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
    """The gradients of this tensor at `targets`, weighted by `gradient` (needed unless this is one number).

    They are differentiable themselves; that at a target that this tensor does not depend on is zeros. Raises
    RuntimeError for a target of integers or bools, TypeError for what is no tensor.

    >>> x, y = Tensor(3.0), Tensor(4.0)
    >>> [gradient.item() for gradient in (x * x).gradient(x, y)]
    [6.0, 0.0]
    """
    for i, target in enumerate(targets):
        if not isinstance(target, type(self)):
            raise TypeError(f"gradient takes tensors as targets, x.gradient(a, b), target {i} is a "
                            f"{type(target).__name__}")
        if not target.dtype.is_float:
            raise RuntimeError(f"only floats have gradients, target {i} is {target.dtype}")
    weight = _weight(self, gradient)
    graph = LeafIndex(self.uop)
    nodes = [graph.targets_of(t.uop) for t in targets]
    found = gradients(self.uop, weight, [node for group in nodes for node in group])
    by_node = dict(zip((node for group in nodes for node in group), found, strict=True))
    results = []
    for target, group in zip(targets, nodes, strict=True):
        parts = [g.reshape(target.shape) for g in map(by_node.get, group) if g is not None]
        total = functools.reduce(operator.add, parts) if parts else target.uop._operand(0)
        results.append(type(self).of(value_of_its_own(total), target))
    return results


@exclusive
def backward(self: Tensor, gradient: Tensor | None = None) -> Tensor:
    """Add the gradient of this tensor to `.grad` of every live float tensor that it depends on and that was
    not computed from another of them, except those that say `requires_grad=False`, and of those that say
    True. Returns this tensor.

    Raises RuntimeError for a tensor of more than one item without `gradient`, and for one that depends on no
    such tensor.

    >>> x, w = Tensor.eye(2).contiguous(), Tensor([2.0, 3.0])
    >>> y = x * w
    >>> y.sum().backward().item(), x.grad.tolist(), w.grad.tolist(), y.grad
    (5.0, [[2.0, 3.0], [2.0, 3.0]], [1.0, 1.0], None)
    """
    weight = _weight(self, gradient)
    groups = _with_gradients(self.uop)
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


def _with_gradients(root: UOp) -> list[tuple[Tensor, list[UOp]]]:
    """The live tensors that gradients of `root` are left in, and the nodes that they belong to."""
    graph = LeafIndex(root)
    groups: list[tuple[Tensor, list[UOp]]] = []
    lazy: dict[UOp, list[Tensor]] = {}
    reached: set[UOp] = set()
    for tensor in live_tensors():
        if not tensor.dtype.is_float or not (nodes := graph.targets_of(tensor.uop)):
            continue
        if tensor._requires_grad is None and not tensor._was_leaf and not is_leaf(tensor.uop):
            lazy.setdefault(tensor.uop, []).append(tensor)
            continue
        reached.update(nodes)
        if tensor._requires_grad is False:
            tensor._first_gradient_use = tensor._first_gradient_use or "refused"
        else:
            groups.append((tensor, nodes))
    lazy.pop(root, None)
    if lazy:  # which of them were not computed from another tensor here
        for node in graph.nodes:
            if node in reached or not node.dtype.is_float:
                continue
            if not reached.isdisjoint(node.src):
                reached.add(node)
            elif node in lazy:
                reached.add(node)
                groups.extend((tensor, [node]) for tensor in lazy[node])
    return groups


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
        gradient._may_be_invalidated = tensor._requires_grad is None
        gradient._left_together = together
        together.append(weakref.ref(gradient))
