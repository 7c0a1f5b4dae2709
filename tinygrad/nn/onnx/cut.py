"""Where a graph is cut that reads values on its way: what comes before is traced, what follows is walked in
every call.

A classifier of scikit-learn ends in a dict for each row, whose numbers the host has to read; what computes
them is a trace all the same. Next: `runner.py`, which runs both halves.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.nn.onnx.model import Graph, Node
from tinygrad.nn.onnx.values import Value
from tinygrad.tensor import Tensor


@dataclass
class Cut:
    """The halves of a graph."""

    traced: list[Node]
    given: list[str]
    """values of the first half that the second one takes, and outputs"""
    walked: list[Node] = field(default_factory=list)


def cut(nodes: Sequence[Node], readers: Collection[int], values: Mapping[str, Value], known: Collection[str],
        outputs: Sequence[str]) -> Cut:
    """`nodes` cut before those in `readers` (by identity) and what follows from them.

    `values` are those of a run. What is no tensor (sizes, strings) is made again in the second half, down to
    tensors and to what is `known` there, inputs and constants.
    """
    made = {name: node for node in nodes for name in node.outputs}
    late: set[str] = set()
    behind = {id(node) for node in nodes if id(node) in readers}
    for node in nodes:
        if id(node) in behind or not late.isdisjoint(used_by(node)):
            behind.add(id(node))
            late.update(node.outputs)
    given: dict[str, None] = {}
    todo = [*outputs, *(name for node in nodes if id(node) in behind for name in used_by(node))]
    for name in todo:
        if name in known or name in late or name in given:
            continue
        if _is_tensor(values[name]):
            given[name] = None
        elif id(made[name]) not in behind:
            behind.add(id(made[name]))
            todo.extend(used_by(made[name]))
    return Cut([node for node in nodes if late.isdisjoint(node.outputs)], list(given),
               [node for node in nodes if id(node) in behind])


def used_by(node: Node) -> list[str]:
    """The names of what a node takes, and of what graphs in it take from around it."""
    graphs = [value for value in node.attributes.values() if isinstance(value, Graph)]
    return [*filter(None, node.inputs), *(name for graph in graphs for name in graph.captured)]


def _is_tensor(value: Value) -> bool:
    return all(map(_is_tensor, value)) if isinstance(value, list) else isinstance(value, Tensor)
