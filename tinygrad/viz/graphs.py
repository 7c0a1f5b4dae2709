"""Graphs as plain data: tables of nodes that name their sources by number.

In: graphs of nodes, of kernels or of a user's tensors. Out: lists that JSON can say. What a user's graph
computes on is not kept, so that recording keeps no memory alive: a value that is still there at the end has
its statistics taken then.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_argument, format_dtype

MOST_NODES = 4000
"""Nodes of a user's graph that are kept, and of a kernel's passes."""
MOST_STATISTICS = 64 << 20
"""Bytes of a value whose statistics are taken."""


class GraphWriter:
    """A table of the nodes of some graphs, each once."""

    def __init__(self, most: int = MOST_NODES) -> None:
        self.most = most
        self.numbers: dict[Any, int] = {}
        self.rows: list[list[Any]] = []
        """[op, dtype, argument, sources]"""

    def add(self, root: Any) -> int | None:
        """The number of a node, with all below it in the table; None where there is no room for them."""
        for node in root.toposort(stop=lambda n: n in self.numbers):
            if node in self.numbers:
                continue
            if len(self.rows) >= self.most:
                return None
            self.numbers[node] = len(self.rows)
            self.rows.append([node.op.name, format_dtype(node.dtype), shortened(format_argument(node)),
                              [self.numbers[s] for s in node.src]])
        return self.numbers[root]

    def add_all(self, graph: Any) -> list[int] | None:
        """The numbers of a graph's root, or of the nodes of a program in their order."""
        roots = graph if isinstance(graph, (list, tuple)) else [graph]
        found = [self.add(root) for root in roots]
        return None if None in found else [n for n in found if n is not None]


def shortened(text: str, most: int = 200) -> str:
    """A text, or its beginning."""
    return text if len(text) <= most else text[:most] + " ..."


@frozen
class NodeRow:
    """A node of a user's graph."""

    op: str
    dtype: str
    shape: tuple[Any, ...]
    argument: str
    sources: tuple[int, ...]
    line: int
    items: tuple[int, ...]
    """the numbers of the schedule's items that compute it"""
    node: weakref.ref[Any]


@frozen
class ItemRow:
    """A step of a schedule."""

    ast: Any
    device: str
    outputs: int
    lines: tuple[int, ...]
    buffers: tuple[tuple[str, int], ...]
    """dtype and items of each"""


@frozen
class ScheduledGraph:
    """A graph that was scheduled, and its steps."""

    nodes: tuple[NodeRow, ...]
    items: tuple[ItemRow, ...]
    left_out: int
    """nodes there was no room for"""

    @staticmethod
    def of(structure: Any, schedule: Any, groups: Sequence[tuple[int, set[Any]]]) -> ScheduledGraph:
        """The graph of a structure, with the kernels that its nodes went into."""
        items_of: dict[Any, list[int]] = {}
        at = 0
        for count, nodes in groups:
            for node in nodes:
                items_of.setdefault(node, []).extend(range(at, at + count))
            at += count
        order = structure.nodes[:MOST_NODES]
        position = structure.position
        rows = tuple(NodeRow(
            n.op.name, format_dtype(n.dtype), tuple(x if isinstance(x, int) else str(x) for x in n.shape),
            shortened(format_argument(n)), tuple(position[s] for s in n.src if s in position),
            n.line, tuple(items_of.get(n, ())), weakref.ref(n)) for n in order)
        items = tuple(ItemRow(i.ast, i.device, i.outputs, i.lines,
                              tuple((b.dtype.name, b.arg.size) for b in i.buffers)) for i in schedule.items)
        return ScheduledGraph(rows, items, len(structure.nodes) - len(order))


def statistics_of(node: Any) -> dict[str, Any] | None:
    """Least, largest and mean item of a node's value, and how many are not numbers; None where it is not in
    memory that the host sees, or large."""
    if node is None or (node.op is not Ops.BUFFER and node.realized_view is None):
        return None
    buffer = node.realized
    if buffer is None or not buffer.is_allocated or buffer.nbytes > MOST_STATISTICS or not buffer.size:
        return None
    try:
        data = buffer.as_bytes()
        if data is None:
            return None
        items = np.frombuffer(data, np.uint8).view(buffer.dtype.numpy).astype(np.float64)
    except (RuntimeError, TypeError, ValueError):
        return None
    good = items[np.isfinite(items)]
    found: dict[str, Any] = {"count": int(items.size), "not finite": int(items.size - good.size)}
    if good.size:
        found.update(min=number(good.min()), max=number(good.max()), mean=number(good.mean()),
                     std=number(good.std()))
    return found


def number(value: Any) -> float | None:
    """A number as JSON can say it."""
    return float(f"{float(value):.6g}") if math.isfinite(value) else None
