"""Results that are views, of an argument or of each other: they share memory, as in eager PyTorch.

In: FX graphs. Out: the same graphs with what is viewed among their results instead, and how to make the
results from that. So what a program writes to one result shows in the others, and a backward pass that
keeps a transposed weight keeps no copy of it. Next: `dispatch.py`.
"""
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tinygrad.torch.evaluate import FREE_LAYOUT


@dataclass(frozen=True)
class View:
    """A result: item `source` of what is computed, or a view of it."""

    source: int
    steps: tuple[Node, ...]

    def of(self, computed: Sequence[Any]) -> Any:
        value = computed[self.source]
        for step in () if value is None else self.steps:  # None: a gradient that nobody gave
            value = made_by(step, value)
        return value


def made_by(step: Node, value: Any) -> Any:
    """What a node makes of its first argument."""
    target: Any = step.target
    return target(value, *step.args[1:], **step.kwargs)


def is_view(node: Any) -> bool:
    """Whether a node shows the memory of its first argument, and depends on nothing else that varies."""
    if not isinstance(node, Node) or node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and (
        isinstance(node.args[0], Node))


def viewed(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """What a result is a view of, and by which steps."""
    steps: list[Node] = []
    while is_view(node):
        steps.append(node)
        source: Any = node.args[0]
        node = source
    return node, tuple(reversed(steps))


def can_be_made(source: Node, steps: Sequence[Node]) -> bool:
    """Whether the steps are views of what is computed too, whose items lie in the order of its axes."""
    example = source.meta.get("val")
    if not isinstance(example, torch.Tensor):
        return False
    if source.op != "call_function":
        return True
    if any(isinstance(size, torch.SymInt) for size in example.shape):
        return False
    value: Any = torch.empty(example.shape, dtype=example.dtype, device="meta")
    try:
        for step in steps:
            value = made_by(step, value)
    except (RuntimeError, ValueError):  # the latter from examples without values
        return False
    return True


def with_views_outside(module: GraphModule) -> tuple[GraphModule, tuple[View, ...] | None]:
    """A graph that returns what its results are views of; None where they are its results."""
    results: Any = module.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        return module, None
    found = [viewed(result) if isinstance(result, Node) else (result, ()) for result in results]
    times = Counter(source for source, _ in found if isinstance(source, Node))
    returned: list[Any] = []
    views = []
    for result, (source, steps) in zip(results, found, strict=True):
        is_shared = isinstance(source, Node) and (times[source] > 1 or source.op != "call_function")
        if not is_shared or not can_be_made(source, steps):
            source, steps = result, ()
        if not isinstance(source, Node) or source not in returned:
            returned.append(source)
        views.append(View(returned.index(source) if isinstance(source, Node) else len(returned) - 1, steps))
    if all(view.source == i and not view.steps for i, view in enumerate(views)):
        return module, None
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    graph.graph_copy(module.graph, copies)
    graph.output([copies[item] if isinstance(item, Node) else item for item in returned])
    graph.eliminate_dead_code()
    for view in views:
        if view.steps:  # which PyTorch makes, of memory in the order of its axes
            copies[returned[view.source]].meta.pop(FREE_LAYOUT, None)
    return GraphModule(module, graph), tuple(views)


def with_views(run: Callable[..., Sequence[Any]], views: Sequence[View] | None) -> Callable[..., Any]:
    """A function of what is viewed as one of the results."""
    if views is None:
        return run

    def results(*args: Any) -> list[Any]:
        computed = run(*args)
        return [view.of(computed) for view in views]

    return results
