"""Results that are views, of an argument or of each other: they share memory, as in eager PyTorch.

In: FX graphs. Out: the same graphs with what is viewed among their results instead, and how to make the
results from that. So what a program writes to one result shows in the others, and a backward pass that
keeps a transposed weight keeps no copy of it. Next: `dispatch.py`.
"""
from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.fx.node import map_arg

from tinygrad.frozen import frozen
from tinygrad.torch.evaluate import FREE_LAYOUT
from tinygrad.torch.sizes import Symbols, expression_of, size_of, symbols_of

UNKNOWN_SIZE = 3
"""What a size that values decide is taken for where a view is tried: not 0 or 1, which lie in any order."""

Sizes = Mapping[Node, int]
"""What nodes of sizes are in a call."""


@frozen
class View:
    """A result: item `source` of what is computed, or a view of it."""

    source: int
    steps: tuple[Node, ...]

    def of(self, computed: Sequence[Any], sizes: Sizes) -> Any:
        value = computed[self.source]
        for step in () if value is None else self.steps:  # None: a gradient that nobody gave
            value = made_by(step, value, sizes)
        return value


@frozen
class Views:
    """The results of a graph, and what says the sizes that their steps take."""

    views: tuple[View, ...]
    symbols: Symbols | None
    """None where no step takes any"""

    def sizes(self, *values: int) -> Sizes:
        """What steps take where the symbols have these values."""
        if self.symbols is None:
            return {}
        of_symbols = dict(zip(self.symbols.places, values, strict=True))
        return {node: size_of(expression_of(node.meta["val"]), of_symbols) for node in sizes_of(self.views)}


def sizes_of(views: Sequence[View]) -> set[Node]:
    """The nodes of sizes that steps take."""
    return {node for view in views for step in view.steps for node in step.all_input_nodes[1:]}


def made_by(step: Node, value: Any, sizes: Sizes) -> Any:
    """What a node makes of its first argument."""
    target: Any = step.target
    others = map_arg((step.args[1:], step.kwargs), sizes.__getitem__)
    return target(value, *others[0], **others[1])


def is_view(node: Any) -> bool:
    """Whether a node shows the memory of its first argument, and depends on nothing else but sizes."""
    if not isinstance(node, Node) or node.op != "call_function" or not node.all_input_nodes:
        return False
    if not all(isinstance(other.meta.get("val"), torch.SymInt) for other in node.all_input_nodes[1:]):
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


def can_be_made(source: Node, steps: Sequence[Node], symbols: Symbols | None) -> bool:
    """Whether the steps are views of what is computed too, whose items lie in the order of its axes, and take
    sizes that the inputs say."""
    example = source.meta.get("val")
    sizes = {node: node.meta["val"] for step in steps for node in step.all_input_nodes[1:]}
    said = symbols.places.keys() if symbols is not None else set()
    if not isinstance(example, torch.Tensor) or any(size.node.expr.free_symbols - said
                                                    for size in sizes.values()):
        return False
    if source.op != "call_function":
        return True
    shape = [hint_of(size) for size in example.shape]
    sizes = {node: hint_of(size) for node, size in sizes.items()}
    value: Any = torch.empty(shape, dtype=example.dtype, device="meta")
    try:
        for step in steps:
            value = made_by(step, value, sizes)
    except (RuntimeError, ValueError):  # the latter from examples without values
        return False
    return True


def hint_of(size: Any) -> int:
    """A size as in the example, or what it may be where values decide it."""
    return int(optimization_hint(size, fallback=UNKNOWN_SIZE))


def with_views_outside(module: GraphModule) -> tuple[GraphModule, Views | None]:
    """A graph that returns what its results are views of; None where they are its results."""
    results: Any = module.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        return module, None
    found = [viewed(result) if isinstance(result, Node) else (result, ()) for result in results]
    times = Counter(source for source, _ in found if isinstance(source, Node))
    symbols = symbols_of(module.graph.find_nodes(op="placeholder"))
    returned: list[Any] = []
    views = []
    for result, (source, steps) in zip(results, found, strict=True):
        is_shared = isinstance(source, Node) and (times[source] > 1 or source.op != "call_function")
        if not is_shared or not can_be_made(source, steps, symbols):
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
    return GraphModule(module, graph), Views(tuple(views), symbols if sizes_of(views) else None)


def with_views(run: Callable[..., Sequence[Any]], views: Views | None) -> Callable[..., Any]:
    """A function of what is viewed as one of the results."""
    if views is None:
        return run
    symbols, sizes = views.symbols, functools.lru_cache(maxsize=64)(views.sizes)

    def results(*args: Any) -> list[Any]:
        computed = run(*args)
        values = () if symbols is None else [symbols.value(symbol, args) for symbol in symbols.places]
        known = sizes(*values)
        return [view.of(computed, known) for view in views.views]

    return results
