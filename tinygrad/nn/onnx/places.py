"""Places that a file asks for and that are not there: axes, and constant indices of what gathers and
scatters.

Indices that only inputs say are not looked at: one that is out of range gives zero, or writes nothing.
Next: `evaluate.py`, which asks for each node, of indices for each whose are the same in every run.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.nn.onnx.model import Node
from tinygrad.nn.onnx.registry import Operator
from tinygrad.nn.onnx.values import Array

INDEXED = frozenset({"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"})
"""The operators whose second input has indices of their first: along one axis, or, ND, along several."""

ALONG = frozenset({
    "ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Hardmax", "LayerNormalization", "LogSoftmax",
    "LpNormalization", "OneHot", "RMSNormalization", "Softmax", "Split", "SplitToSequence", "TensorScatter",
    "TopK", "Unique"}) | {name for name in INDEXED if not name.endswith("ND")}
"""The operators whose attribute `axis` is one of their first input's."""
BESIDE = {"Flatten": (0, 1), "OneHot": (1, 1)}
"""How many places before the first axis and behind the last an `axis` may have as well."""


def wrong_axis(node: Node, rank: int) -> str:
    """Which axis of a first input of `rank` is not there that a node is along, as text."""
    axis = node.attributes.get("axis")
    if node.domain or node.op not in ALONG or not isinstance(axis, int):
        return ""
    before, behind = BESIDE.get(node.op, (0, 0))
    low, high = -max(rank, 1) - before, max(rank, 1) - 1 + behind
    return "" if low <= axis <= high else f"axis {axis} is not in [{low}, {high}], of a tensor of {rank} axes"


def has_indices(node: Node) -> bool:
    return node.op in INDEXED and isinstance(node.target, Operator) and len(node.inputs) > 1


def reach(op: str, indices: Array) -> Array:
    """(axes, 2): the lowest and the highest index along each axis that an operator's indices are of.

    >>> reach("GatherND", np.array([[0, 5], [2, -1]])).tolist()
    [[0, 2], [-1, 5]]
    """
    by_axis = indices.reshape(-1, indices.shape[-1] if op.endswith("ND") else 1) if indices.size else \
        np.zeros((1, 0), np.int64)
    return np.stack([by_axis.min(0), by_axis.max(0)], 1)


def what_is_out_of_range(node: Node, shape: Sequence[Any], reached: Array) -> str:
    """Which index is beyond an axis of `shape`, as text; axes whose size is no number have room for all."""
    is_nd = node.op.endswith("ND")
    along = node.attributes.get("batch_dims" if is_nd else "axis", 0)
    first = along if along >= 0 else along + len(shape)
    for axis, (low, high) in enumerate(reached.tolist(), first):
        size = shape[axis] if 0 <= axis < len(shape) else None
        if isinstance(size, int) and not -size <= low <= high < size:
            index = high if high >= size else low
            return f"index {index} is out of range of axis {axis}, which has {size} items"
    return ""
