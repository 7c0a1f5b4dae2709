"""Where a graph is cut that the host takes part in: what comes before a reader of values is traced, what
follows is walked in every call; and what strings go through first is walked before that.

A classifier of scikit-learn ends in a dict for each row, whose numbers the host has to read, and may begin
with words that the host makes numbers of; what is in between is a trace all the same. Next: `runner.py`,
which runs all parts.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinygrad.nn.onnx.model import Graph, Node
from tinygrad.nn.onnx.registry import Operator
from tinygrad.nn.onnx.values import Value, is_number
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


def host_part(nodes: Sequence[Node], values: Mapping[str, Value], given: Collection[str]) -> list[Node]:
    """The nodes that the host runs before all others: what takes strings, and nothing that depends on
    tensors. Numbers that come of strings go no further here than to operators that read them.

    `values` are those of a run, `given` the names of what it was given.
    """
    made = {name for node in nodes for name in node.outputs}
    of_host = {name for name in given if is_text(values[name])}
    part: list[Node] = []
    for node in nodes:
        used = [name for name in used_by(node) if name in made or name in given]
        if of_host.issuperset(used) and any(is_text(values[name]) or _reads(node, name) for name in used):
            part.append(node)
            of_host.update(name for name in node.outputs if name and not _has_tensors(values[name]))
    return part


def is_text(value: Value) -> bool:
    """Whether a value is strings, or a list or map of such or of numbers: what no tensor could hold."""
    return not _has_tensors(value) and not (isinstance(value, np.ndarray) and is_number(value))


def _reads(node: Node, name: str) -> bool:
    """Whether the host has to know the values of an input of this name."""
    return isinstance(node.target, Operator) and any(
        node.target.is_read(i) for i, taken in enumerate(node.inputs) if taken == name)


def _has_tensors(value: Value) -> bool:
    if isinstance(value, list):
        return not value or any(map(_has_tensors, value))
    return not isinstance(value, (np.ndarray, dict))


def used_by(node: Node) -> list[str]:
    """The names of what a node takes, and of what graphs in it take from around it."""
    graphs = [value for value in node.attributes.values() if isinstance(value, Graph)]
    return [*filter(None, node.inputs), *(name for graph in graphs for name in graph.captured)]


def _is_tensor(value: Value) -> bool:
    return all(map(_is_tensor, value)) if isinstance(value, list) else isinstance(value, Tensor)
