"""Derivatives of tensors: `gradient`, which returns them, and `backward`, which leaves them in `.grad`.

The nodes are made by `graph/gradient.py`. This module knows which live tensors take a gradient, and what
becomes of a gradient that is there already.
"""
from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tinygrad.functional.gradient_templates import gradients_of_calls, stands_for_calls
from tinygrad.graph.gradient import gradients
from tinygrad.graph.leaf_tensors import LeafIndex, is_cut_off, is_leaf, value_of_its_own
from tinygrad.graph.node_flags import APPLIED, LEAF
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.template import known_nodes, with_known_values
from tinygrad.graph.uop import UOp
from tinygrad.helpers import exclusive, prod
from tinygrad.tensor.live import all_tensors, live_tensors

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def gradient(self: Tensor, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
    """The gradients of this tensor at `targets`, weighted by `gradient` (needed unless this is one number).

    They are differentiable themselves; that at a target that this tensor does not depend on is zeros. Raises
    RuntimeError for a target of integers or bools, and for one that is a constant (`detach`, `no_grad`),
    TypeError for what is no tensor.

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
        if is_cut_off(target._uop):
            raise RuntimeError(f"target {i} is a constant to gradients: detach() or no_grad cut it off from "
                               "what it was computed of; requires_grad_() makes it a variable of its own")
    weight = _weight(self, gradient)
    graph, make = LeafIndex(with_known_values(self._result)), gradients_of_calls
    found_in = _Targets(graph)
    nodes = [found_in.of(target) for target in targets]
    if [] in nodes or not stands_for_calls(graph, self._result):  # they may be inside of a call
        graph, make = LeafIndex(self.uop), gradients
        nodes = [graph.targets_of(t.uop) for t in targets]
    wanted = [node for group in nodes for node in group]
    by_node = dict(zip(wanted, make(self._uop, weight, wanted), strict=True))
    results = []
    for target, group in zip(targets, nodes, strict=True):
        parts = [g.reshape(target.shape) for g in map(by_node.get, group) if g is not None]
        total = functools.reduce(operator.add, parts) if parts else target.uop._operand(0)
        results.append(type(self).of(value_of_its_own(total), target))
    return results


@exclusive
def backward(self: Tensor, gradient: Tensor | None = None) -> Tensor:
    """Add the gradient of this tensor to `.grad` of every live float tensor that it depends on and that was
    not computed from another of them, except constants (`detach`, `no_grad`) and those that say
    `requires_grad=False`, and of those that say True. Returns this tensor.

    Raises RuntimeError for a tensor of more than one item without `gradient`, and for one that depends on no
    such tensor.

    >>> x, w = Tensor.eye(2).contiguous(), Tensor([2.0, 3.0])
    >>> y = x * w
    >>> y.sum().backward().item(), x.grad.tolist(), w.grad.tolist(), y.grad
    (5.0, [[2.0, 3.0], [2.0, 3.0]], [1.0, 1.0], None)
    """
    weight, tensors = _weight(self, gradient), all_tensors()
    for tensor in tensors:
        tensor._result  # noqa: B018  # writes what it views, which computes what reads that: who is in memory?
    graph, groups, make = LeafIndex(with_known_values(self._result)), None, gradients_of_calls
    if stands_for_calls(graph, self._result):
        groups = _with_gradients(self._result, graph, tensors)
    if groups is None:
        groups, make = _with_gradients(self.uop, LeafIndex(self.uop), live_tensors()) or [], gradients
    targets = list(dict.fromkeys(node for _, nodes in groups for node in nodes))
    found = dict(zip(targets, make(self._uop, weight, targets), strict=True))
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


class _Targets:
    """The nodes of a graph whose gradients belong to tensors. Of what a call stands for, a tensor may have
    the nodes where the graph has the call, and the other way round."""

    def __init__(self, graph: LeafIndex) -> None:
        self.graph = graph
        self.call_of = {known: node for node in graph.nodes
                        if node.flags & APPLIED and (known := known_nodes(node)) is not None}

    def of(self, tensor: Tensor) -> list[UOp]:
        node = tensor._result
        found = self.graph.targets_of(node)
        if found or not (node.flags & APPLIED or self.call_of):
            return found
        known = known_nodes(node)
        call = self.call_of.get(node if known is None else known)
        return [call] if call is not None else [] if known is None else self.graph.targets_of(known)

    def may_be_inside(self, node: UOp) -> UOp | None:
        """For movement over a node that is here (as itself, or as what stands for it) and that a call may
        have taken in, that node."""
        if node.op not in Family.MOVEMENT or is_leaf(node):
            return None
        while node.op in Family.MOVEMENT:
            node = node.src[0]
        if node in self.graph.nodes:
            return node
        known = known_nodes(node) if node.flags & APPLIED else None
        call = self.call_of.get(node if known is None else known)
        return call or (known if known in self.graph.nodes else None)


def _with_gradients(root: UOp, graph: LeafIndex, tensors: Sequence[Tensor]
                    ) -> list[tuple[Tensor, list[UOp]]] | None:
    """Those of the live tensors that gradients of `root` are left in, and the nodes that they belong to; None
    where nodes that calls stand for may say more about some."""
    targets = _Targets(graph)
    groups: list[tuple[Tensor, list[UOp]]] = []
    lazy: dict[UOp, list[Tensor]] = {}
    reached: set[UOp] = set()
    views: list[tuple[Tensor, UOp]] = []
    """what may be inside of a call, and what it is a view of"""
    for tensor in tensors:
        if not tensor.dtype.is_float or tensor._is_writer:
            continue
        node = tensor._result
        if is_cut_off(node) and not tensor._requires_grad:
            continue
        nodes = targets.of(tensor)
        if not nodes:
            if root.flags & APPLIED and (base := targets.may_be_inside(node)) is not None:
                views.append((tensor, base))
        elif tensor._requires_grad is None and not tensor._was_leaf and not is_leaf(node):
            lazy.setdefault(nodes[0], []).append(tensor)
        else:
            reached.update(nodes)
            if tensor._requires_grad is False:
                tensor._first_gradient_use = tensor._first_gradient_use or "refused"
            else:
                groups.append((tensor, nodes))
    lazy.pop(root, None)
    first = _not_computed_from(graph, reached, lazy) if lazy or views else []
    if root.flags & APPLIED and (first is None or first or any([
            t._requires_grad or (t._requires_grad is None and base not in reached) for t, base in views])):
        return None
    return groups + [(tensor, [node]) for node in first or () for tensor in lazy[node]]


def _not_computed_from(graph: LeafIndex, reached: set[UOp], lazy: Collection[UOp]) -> list[UOp] | None:
    """Those of some nodes of a graph that were not computed from one that is `reached`, or from another of
    them; what is computed from these is added. None where a call does not say which way it goes."""
    found: list[UOp] = []
    for node in graph.nodes:
        if node in reached or not node.dtype.is_float:
            continue
        if not reached.isdisjoint(node.src):
            if node.op is Ops.APPLY and not node.flags & LEAF:
                return None
            reached.add(node)
        elif node in lazy:
            reached.add(node)
            found.append(node)
    return found


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
        total = uop if before is None else (before + tensor.of(uop, tensor))._uop
        gradient = tensor._grad = tensor.of(value_of_its_own(total.detach()), tensor)
        gradient._requires_grad = False
        gradient._may_be_invalidated = tensor._requires_grad is None
        gradient._left_together = together
        together.append(weakref.ref(gradient))
