"""Sums of products whose operands change with different ranges: matmul, convolution, attention, their
gradients.

They are recognised here by their ranges, never by the name of the operation that made them.
"""
from __future__ import annotations

from dataclasses import dataclass

from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


@dataclass(frozen=True)
class Contraction:
    """A REDUCE of a product: the ranges that only one operand changes with, for each operand."""

    reduce: UOp
    left: frozenset[UOp]
    right: frozenset[UOp]


def contraction_of(node: UOp) -> Contraction | None:
    """The contraction that a REDUCE is, if its two operands change with different outer ranges."""
    if node.op is not Ops.REDUCE or node.arg is not Ops.ADD or node.src[0].op is not Ops.MUL:
        return None
    a, b = (s.ranges & node.ranges for s in node.src[0].src)
    return Contraction(node, a - b, b - a) if a - b and b - a else None
