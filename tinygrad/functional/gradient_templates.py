"""Gradients of what calls computed, memoised as graph templates by how the calls depend on each other.

In: a node above APPLYs (`graph/template.py`), and those below it that its gradients are asked at. Out: the
gradients, each an APPLY over what no gradient passes: memory, batches of it, constants to gradients. What
`graph/gradient.py` makes of all nodes is made once for each kind of graph, so a step of a training loop asks
for none of them. The kind is a walk over a node for each call. Where that says too little (functions of a
user's own, sizes that are not known, several devices), and where nodes that a call stands for are beside it,
the gradients are those of the nodes.
"""
from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from tinygrad import observer
from tinygrad.engine.capture import Capture
from tinygrad.graph.gradient import gradients
from tinygrad.graph.leaf_tensors import LeafIndex, constant_value
from tinygrad.graph.node_flags import APPLIED, LEAF, MEMORY
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import Size
from tinygrad.graph.template import GraphTemplate, expanded, known_nodes
from tinygrad.graph.uop import UOp

MAX_TEMPLATES = 1 << 8
"""Kinds of graphs of which gradients are remembered; the one met first goes first."""
_templates: dict[tuple[Any, ...], list[GraphTemplate | None] | None] = {}
"""of each kind of graph the gradients, None for what it does not depend on; None where they have none"""
_ENDS = frozenset({Ops.BUFFER, Ops.DETACH, Ops.ASSIGN})
"""Where ways of gradients end."""


def stands_for_calls(graph: LeafIndex, root: UOp) -> bool:
    """Whether gradients of a node may be asked for without the nodes that calls below it stand for: none of
    these is below it too."""
    if not root.flags & APPLIED or Capture.active is not None or observer.active is not None:
        return False
    return all([known not in graph.nodes for n in graph.nodes
                if n.flags & APPLIED and (known := known_nodes(n)) is not None])


def gradients_of_calls(root: UOp, weight: UOp, targets: Sequence[UOp]) -> list[UOp | None]:
    """As `gradients`, of a node that `stands_for_calls`."""
    graph = _Graph(root, weight, targets)
    key = None if graph.is_unknown else tuple(graph.key)
    if key is None or (found := _templates.get(key, [])) is None:
        return _of_nodes(root, weight, targets)
    if not found:
        results = _of_nodes(root, weight, targets)
        found = None
        if graph.made_of_nothing_else([r for r in results if r is not None]):
            leaves = [expanded(leaf) for leaf in graph.leaves]
            made = iter(GraphTemplate.of_several([r for r in results if r is not None], leaves))
            found = [None if r is None else next(made) for r in results]
        _templates[key] = found
        while len(_templates) > MAX_TEMPLATES:
            _templates.pop(next(iter(_templates), key), None)
        if found is None:
            return results
    shared: dict[int, UOp] = {}
    return [None if t is None else t.applied(graph.leaves, shared) for t in found]


def _of_nodes(root: UOp, weight: UOp, targets: Sequence[UOp]) -> list[UOp | None]:
    return gradients(expanded(root), expanded(weight), [expanded(target) for target in targets])


class _Graph:
    """The ways from a node down to where gradients end, as a `key`, and the `leaves` that they end at."""

    def __init__(self, root: UOp, weight: UOp, targets: Sequence[UOp]) -> None:
        self.key: list[Any] = []
        self.leaves: list[UOp] = []
        self.is_unknown = False
        self.targets = frozenset(targets)
        numbers: dict[UOp, int] = {}
        for node in root.toposort(stop=self.ends_at):
            if self.is_unknown:
                return
            if self.ends_at(node):
                self.add_leaf(node)
            else:
                self.add_inner(node, numbers)
            numbers[node] = len(numbers)
        self.add_leaf(weight)
        if self.targets.issubset(numbers):
            self.key += map(numbers.__getitem__, targets)
        else:
            self.is_unknown = True

    def ends_at(self, node: UOp) -> bool:
        """Whether only the value of a node matters: it is memory, a batch of it that none of the gradients is
        asked at, or a constant to gradients, movement on top of these left aside."""
        if node.op in _ENDS or not node.src:
            return True
        if node.op in Family.MOVEMENT:
            is_batch = node.op is Ops.SHRINK and node.flags & MEMORY and node.viewed not in self.targets
            return bool(is_batch) or (not node.flags & LEAF and _is_computed(node))
        return not node.flags & LEAF

    def add_leaf(self, node: UOp) -> None:
        """A node whose value alone matters. Numbers are part of the kind: what is computed depends on
        them."""
        if node.device is None and (number := constant_value(node)) is not None:
            if node.flags & LEAF:  # a variable made of it (`Tensor.zeros(3)`), another one in each step
                self.key += (node.op, number, node.dtype, node.shape)
                self.leaves.append(node)
            else:
                self.key.append(node)
            return
        if (node.device is not None and type(node.device) is not str) or (Size.exists and node.has_sizes) or \
                not (node.src or node.op is Ops.BUFFER):
            self.is_unknown = True
        op = node.arg.op if node.op is Ops.APPLY else node.op
        self.key += (op, node.dtype, node.shape, node.device, node.flags & ~APPLIED)
        self.leaves.append(node)

    def add_inner(self, node: UOp, numbers: dict[UOp, int]) -> None:
        """A node that gradients pass; where its value is in memory, it is read from there."""
        if (node.device is not None and type(node.device) is not str) or (Size.exists and node.has_sizes):
            self.is_unknown = True
        if node.op is Ops.CUSTOM_GRADIENT and (type(node.arg) is not FunctionType or node.arg.__closure__):
            self.is_unknown = True  # a function of this graph alone
            return
        is_computed = _is_computed(node)
        self.key += (node.op, node.dtype, node.arg, is_computed, *[numbers[s] for s in node.src])
        if is_computed:
            self.leaves.append(node)

    def made_of_nothing_else(self, results: Sequence[UOp]) -> bool:
        """Whether these depend on the leaves and numbers alone, of which no two are one."""
        known = {expanded(leaf) for leaf in self.leaves}
        below = UOp.sink(results).toposort(stop=known.__contains__)
        return len(known) == len(self.leaves) and all(
            [n.op is Ops.CONST for n in below if not n.src and n not in known])


def _is_computed(node: UOp) -> bool:
    return node.computed_into is not None and node.realized_view is not None
