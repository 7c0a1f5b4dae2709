"""Floats as mantissas and exponents, by the names of PyTorch and NumPy: `frexp`, `ldexp`, `nextafter`, ...

What needs the bits of a float reads them as integers of its width; half types have float32's.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.elementwise import as_tensor

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


class MantissaAndExponent(NamedTuple):
    """A float as mantissa * 2 ** exponent, the mantissa's size from 1/2 to 1."""

    mantissa: Tensor
    exponent: Tensor


def frexp(self: Tensor) -> MantissaAndExponent:
    """(mantissa, exponent): self is mantissa * 2 ** exponent, and the mantissa's size is from 1/2 to 1; the
    exponent is int32. Zeros, infinities and NaN are their own mantissas, with exponent 0.

    >>> mantissa, exponent = Tensor([3.0, -0.25, 0.0]).frexp()
    >>> mantissa.tolist(), exponent.tolist()
    ([0.75, -0.5, 0.0], [2, -1, 0])
    """
    if not self.dtype.is_float:
        raise TypeError(f"frexp takes floats, got {self.dtype}")
    x = self.cast(promote(self.dtype, dtypes.float32))
    exponent_bits, mantissa_bits = dtypes.finfo(x.dtype)
    bits = dtypes.int32 if x.dtype is dtypes.float32 else dtypes.int64
    constant, largest = x.detach(), (1 << exponent_bits) - 1
    is_tiny = constant.abs() < 2.0 ** (2 - (largest >> 1))  # among them all whose exponent bits are 0
    normal = is_tiny.where(constant * 2.0 ** mantissa_bits, constant)
    exponent = ((normal.bitcast(bits) >> mantissa_bits) & largest) - ((largest >> 1) - 1)
    exponent = (exponent - is_tiny.cast(bits) * mantissa_bits).cast(dtypes.int32)
    is_plain = (constant != 0) & constant.isfinite()
    exponent = is_plain.where(exponent, 0)
    return MantissaAndExponent(_scaled(x, -exponent).cast(self.dtype), exponent)


def _scaled(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2 ** exponent, in three steps, whose factors are floats."""
    part = exponent // 3
    for step in (part, part, exponent - part * 2):
        x = x * step.cast(x.dtype).exp2()
    return x


def ldexp(self: Tensor, other: Any) -> Tensor:
    """self * 2 ** other.

    >>> Tensor([0.75, -0.5]).ldexp(Tensor([2, -1])).tolist()
    [3.0, -0.25]
    """
    return as_real(self) * as_real(as_tensor("ldexp", other, self)).exp2()


def nextafter(self: Tensor, other: Any) -> Tensor:
    """The float next to this one in the direction of another. Not differentiable.

    >>> Tensor([1.0, 0.0]).nextafter(2.0).tolist()
    [1.0000001192092896, 1.401298464324817e-45]
    """
    y = as_tensor("nextafter", other, self)
    if not self.dtype.is_float or not y.dtype.is_float:
        raise TypeError(f"nextafter takes floats, got {self.dtype} and {y.dtype}")
    dtype = promote(self.dtype, y.dtype)
    x, y = self.cast(dtype).detach(), y.cast(dtype).detach()
    bits = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[dtype.itemsize]
    number = x.bitcast(bits)
    away = (x < y) == (x > 0)  # from zero: numbers grow with their bits
    moved = (number + (away.cast(bits) * 2 - 1)).bitcast(dtype)
    smallest = x.full_like(1, bits).bitcast(dtype).copysign(y)
    found = (x == 0).where(smallest, moved)
    return (x == y).where(y, (x.isnan() | y.isnan()).where(math.nan, found))


def float_power(self: Tensor, exponent: Any) -> Tensor:
    """`pow`, computed in float64, whatever the types are.

    >>> Tensor([2, 3]).float_power(-1).dtype
    dtypes.float64
    """
    power = as_tensor("float_power", exponent, self.cast(dtypes.float64))
    return self.cast(dtypes.float64).pow(power.cast(dtypes.float64))


def logaddexp2(self: Tensor, other: Any) -> Tensor:
    """log2(2^self + 2^other), without overflow.

    >>> Tensor([1000.0]).logaddexp2(1000.0).tolist()
    [1001.0]
    """
    x, y = as_real(self), as_tensor("logaddexp2", other, self)
    x, y = as_real(x, y), as_real(y, x)
    same_infinity = (x == y) & ~(x - y).isfinite()
    distance = same_infinity.where(0, x - y)
    size = (distance < 0).where(-distance, distance)  # at a tie both have half of the gradient
    return (x < y).where(y, x) + (-size).exp2().log1p() * (1 / math.log(2))
