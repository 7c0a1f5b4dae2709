"""Graphs as data: rows of plain values that another process reads back, and that equal graphs share.

`Writer` writes nodes as JSON's lists, numbers and texts, sources first; `Reader` makes the same nodes of
them. What is of one process only (memory, functions) has no such form. Kernels and schedules are found again
on disk by this form (`codegen/kernel_cache.py`, `schedule/cache.py`), and captured functions are saved in it
(`jit/saved.py`); whether what comes from elsewhere is legal, `graph/spec.py` says.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, as_size
from tinygrad.graph.storage import BufferSpec
from tinygrad.graph.uop import UOp

SCALARS = (int, float, str, bool, type(None))
_DTYPES = {d.name: d for d in (*dtypes.all, dtypes.index)}


def dtype_of(name: str) -> DType:
    """The number type of that name. Raises KeyError where there is none."""
    return _DTYPES[name]


class NotPortable(TypeError):
    """A graph holds what only this process knows."""


class Writer:
    """Nodes as rows [op, dtype, lanes, positions of sources, argument], each node once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.position: dict[UOp, int] = {}

    def add(self, root: UOp) -> int:
        """The row of `root`, which is written with all below it. Raises NotPortable."""
        for node in root.toposort(stop=self.position.__contains__):
            if node not in self.position:
                row = [node.op.name, node.dtype.name, node.dtype.count,
                       [self.position[s] for s in node.src], self.value(node.arg)]
                self.position[node] = len(self.rows)
                self.rows.append(row)
        return self.position[root]

    def value(self, value: Any) -> Any:
        """An argument as data: tuples become lists; ops, dtypes and nodes say what they are."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is tuple:
            return [self.value(v) for v in value]
        if kind is Ops:
            return {"op": value.name}
        if kind is DType:
            return {"dtype": value.name, "lanes": value.count}
        if kind is UOp:
            return {"node": self.add(value)}
        if kind is Size:
            return {"size": self.add(value.node)}
        if kind is BufferSpec:
            raise NotPortable("memory belongs to one process")
        raise NotPortable(f"a {kind.__name__} has no form outside of this process")


class Reader:
    """The nodes of rows. Raises ValueError for rows that are none."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.nodes: list[UOp] = []
        try:
            for op, dtype, lanes, sources, argument in rows:
                src = tuple([self.node(i) for i in sources])
                self.nodes.append(UOp.new(Ops[op], dtype_of(dtype).vec(lanes), src, self.value(argument)))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ValueError(f"not rows of a graph: {type(error).__name__}: {error}") from error

    def node(self, position: int) -> UOp:
        """The node of a row that was read. Raises ValueError where there is none."""
        if type(position) is not int or not 0 <= position < len(self.nodes):
            raise ValueError(f"not rows of a graph: {position!r} is no row before row {len(self.nodes)}")
        return self.nodes[position]

    def value(self, value: Any) -> Any:
        """What `Writer.value` wrote."""
        if isinstance(value, list):
            return tuple([self.value(v) for v in value])
        if not isinstance(value, dict):
            return value
        if "op" in value:
            return Ops[value["op"]]
        if "dtype" in value:
            return dtype_of(value["dtype"]).vec(value["lanes"])
        if "size" in value:
            return as_size(self.node(value["size"]))
        return self.node(value["node"])


def text_of(root: UOp) -> str:
    """A graph as one text, the same in every process, different for different graphs. Raises NotPortable."""
    writer = Writer()
    writer.add(root)
    return json.dumps(writer.rows, separators=(",", ":"))
