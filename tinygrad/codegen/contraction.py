"""Sums of products whose operands change with different ranges: matmul, convolution, attention, their
gradients.

They are recognised here by their ranges, never by the name of the operation that made them. In: a REDUCE of a
loop nest. Out: a `Contraction`, its operands and the ranges that only one of them changes with, or None.
"""
from __future__ import annotations

from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


@frozen
class Contraction:
    """A REDUCE of a product: its operands, the ranges that only one of them changes with, for each."""

    reduce: UOp
    factors: tuple[UOp, ...]
    left: frozenset[UOp]
    right: frozenset[UOp]

    @property
    def sides(self) -> tuple[frozenset[UOp], frozenset[UOp]]:
        return self.left, self.right


def contraction_of(node: UOp) -> Contraction | None:
    """The contraction that a REDUCE is, if its two operands change with different outer ranges."""
    factors = factors_of(node)
    if not factors:
        return None
    a, b = (s.ranges & node.ranges for s in factors)
    return Contraction(node, factors, a - b, b - a) if a - b and b - a else None


def factors_of(node: UOp) -> tuple[UOp, ...]:
    """The factors of the products that a REDUCE adds up; none of what is no such REDUCE."""
    product = product_in(node.src[0]) if node.op is Ops.REDUCE and node.arg is Ops.ADD else None
    return () if product is None else product.src


def product_in(value: UOp) -> UOp | None:
    """The MUL that `value` is, or is where its guard holds; None if there is none."""
    if value.op is Ops.WHERE and value.src[2].is_zero:
        value = value.src[1]
    return value if value.op is Ops.MUL else None


def narrower(value: UOp) -> UOp | None:
    """What `value` was widened from, each of its items or those that a condition chooses; None if from
    nothing narrower."""
    if value.op is Ops.CAST and value.src[0].dtype.itemsize < value.dtype.itemsize:
        return value.src[0]
    if value.op is not Ops.WHERE:
        return None
    found = [narrower(s) for s in value.src[1:]]
    dtypes = {s.dtype for s in found if s is not None}
    if len(dtypes) != 1:
        return None
    chosen = [_constant_of(s, *dtypes) if n is None else n for s, n in zip(value.src[1:], found, strict=True)]
    return None if chosen[0] is None or chosen[1] is None else value.src[0].where(chosen[0], chosen[1])


def _constant_of(value: UOp, dtype: DType) -> UOp | None:
    """A constant in a narrower type, if that has it."""
    if value.op is not Ops.CONST or dtype.numpy.type(value.arg) != value.arg:
        return None
    return UOp.const(dtype.as_const(value.arg), dtype)
