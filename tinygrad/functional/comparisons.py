"""Item by item: comparisons, choices by a condition, and what kind of number an item is.

Operands broadcast and promote as in `elementwise.py`; results of comparisons are bools.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.elementwise import as_tensor, binary, expand_to, operands, unary
from tinygrad.graph.shapes import broadcast_shape

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor


def lt(self: Tensor, x: Operand) -> Tensor:
    """self < x, as bools.

    >>> (Tensor([1, 3]) < 2).tolist()
    [True, False]
    """
    return binary("lt", lambda a, b: a < b, self, x)


def gt(self: Tensor, x: Operand) -> Tensor:
    """self > x, as bools."""
    return binary("gt", lambda a, b: b < a, self, x)


def le(self: Tensor, x: Operand) -> Tensor:
    """self <= x, as bools; False where either is NaN."""
    return binary("le", lambda a, b: (a < b) | a.eq(b) if a.dtype.is_float else (b < a).logical_not(), self,
                   x)


def ge(self: Tensor, x: Operand) -> Tensor:
    """self >= x, as bools; False where either is NaN."""
    return binary("ge", lambda a, b: (b < a) | a.eq(b) if a.dtype.is_float else (a < b).logical_not(), self,
                   x)


def eq(self: Tensor, x: Operand) -> Tensor:
    """self == x, as bools."""
    return binary("eq", lambda a, b: a.eq(b), self, x)


def ne(self: Tensor, x: Operand) -> Tensor:
    """self != x, as bools; True where either is NaN."""
    return binary("ne", lambda a, b: a.ne(b), self, x)


def logical_not(self: Tensor) -> Tensor:
    """True where an item is zero."""
    return unary(self, lambda x: x.cast(dtypes.bool).logical_not())


def where(self: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where self holds (is not zero), else `y`; all three broadcast. Raises TypeError for PyTorch's
    x.where(condition, y), which is Tensor.where(condition, x, y): bools chosen by what are none.

    >>> (Tensor([1, 2, 3]) > 2).where(1.0, 0.5).tolist()
    [0.5, 0.5, 1.0]
    """
    (a, b), tensors = operands("where", x, y)
    kinds = [getattr(v, "dtype", type(v)) for v in (self, x, y)]
    if kinds[1] is dtypes.bool and kinds[0] is not dtypes.bool and kinds[2] not in (dtypes.bool, bool):
        raise TypeError(f"where: bools chosen by a tensor of {self.dtype.name}, which is the condition here; "
                        "PyTorch's x.where(condition, y) is Tensor.where(condition, x, y)")
    shape = broadcast_shape("where", self.shape, a.shape)
    condition = expand_to(self.uop.cast(dtypes.bool), shape)
    return type(self).of(condition.where(expand_to(a, shape), expand_to(b, shape)), self, *tensors)


def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """`value` where `mask` holds, self elsewhere. Bools stay bools, filled with whether a number is not 0.

    >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 9).tolist()
    [9, 2]
    """
    broadcast_shape("masked_fill", self.shape, mask.shape)
    if self.dtype.is_bool and isinstance(value, (bool, int)):
        value = bool(value)
    return mask.where(value, self)


def isnan(self: Tensor) -> Tensor:
    """True where an item is not a number.

    >>> Tensor([1.0, float("nan")]).isnan().tolist()
    [False, True]
    """
    return unary(self, lambda x: x.ne(x))


def isinf(self: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    """True where an item is infinite; of one sign only where so asked."""
    if not self.dtype.is_float:
        return self.zeros_like(dtype=dtypes.bool)
    positive, negative = self == math.inf, self == -math.inf
    if detect_positive and detect_negative:
        return positive | negative
    if not (detect_positive or detect_negative):
        return self.zeros_like(dtype=dtypes.bool)
    return positive if detect_positive else negative


def isfinite(self: Tensor) -> Tensor:
    """True where an item is neither infinite nor NaN."""
    return (isinf(self) | isnan(self)).logical_not()


def isclose(self: Tensor, other: Operand, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Tensor:
    """|self - other| <= atol + rtol * |other|; equal infinities are close. Compared in at least float32.

    >>> Tensor([1.0, 2.0]).isclose(Tensor([1.000001, 2.1])).tolist()
    [True, False]
    """
    other = as_tensor("isclose", other, self)
    broadcast_shape("isclose", self.shape, other.shape)
    if self.dtype.is_bool and other.dtype.is_bool:
        return self == other
    wide = promote(self.dtype, other.dtype, dtypes.float32)
    allowed = other.cast(wide).abs() * rtol + atol
    near = isfinite(self) & isfinite(other) & (_distance(self, other) <= allowed)
    close = (self == other) | near
    return close | (isnan(self) & isnan(other)) if equal_nan else close


def _distance(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|: of integers in unsigned ones, which hold it, of half types and smaller in float32."""
    common = promote(x.dtype, y.dtype)
    if common.is_float:
        wide = promote(common, dtypes.float32)
        return (x.cast(wide) - y.cast(wide)).abs()
    unsigned = next(d for d in dtypes.uints if d.bits == common.bits)
    x, y = x.cast(common), y.cast(common)
    return x.maximum(y).cast(unsigned) - x.minimum(y).cast(unsigned)


def allclose(self: Tensor, other: Operand, rtol: float = 1e-05, atol: float = 1e-08,
             equal_nan: bool = False) -> bool:
    """Whether all items are close (see `isclose`). Computes."""
    return bool(isclose(self, other, rtol, atol, equal_nan).all().item())
