"""Item by item: quotients of floats and their gradients, rounded down and their remainders, exact for all
operands.

The remainder of two floats is a float of their type, however large the quotient is. It is found as by long
division on mantissas, in base 2^50 in float64 and 2^21 in float32: each step takes so many of the binary
digits by which the exponents differ, and subtracts the nearest multiple of the divisor in one multiply-add,
which is exact. A step is 7 operations. In float64 float16 takes 1 of them, float32 6 and float64 42; devices
without float64 compute in float32, where float16 takes 2 and float32 14.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.uop import UOp


def floored_quotient(a: UOp, b: UOp, wide: DType) -> UOp:
    """a / b rounded down, then to the type of the operands; computed in `wide`, float32 or float64. Quotients
    that are no whole numbers of `wide` are rounded to that first. The gradient is zero."""
    x, y = a.cast(wide), b.cast(wide)
    return _floored_quotient(x, y, _truncated_remainder(x, y, a.dtype)).cast(a.dtype).trunc()


def floored_remainder(a: UOp, b: UOp, wide: DType) -> UOp:
    """a minus b times `floored_quotient`: the true one, with the sign of b, rounded. NaN where b is zero or a
    infinite; a, or b, where b is infinite."""
    x, y = a.cast(wide), b.cast(wide)
    value = _floored(_truncated_remainder(x, y, a.dtype), y).cast(a.dtype)
    return value.with_gradient((a, b), _floored_rule(wide))


def truncated_remainder(a: UOp, b: UOp, wide: DType) -> UOp:
    """a minus b times their quotient rounded toward zero: exact, with the sign of a, as C's fmod."""
    value = _truncated_remainder(a.cast(wide), b.cast(wide), a.dtype).cast(a.dtype)
    return value.with_gradient((a, b), _truncated_rule(wide))


GradientRule = Callable[[UOp, UOp], tuple[UOp, UOp]]
"""One for all nodes of a type, so that equal remainders are equal nodes."""


@functools.cache
def _floored_rule(wide: DType) -> GradientRule:
    def rule(g: UOp, node: UOp) -> tuple[UOp, UOp]:
        _, a, b = node.src
        return g, -g * floored_quotient(a, b, wide)

    return rule


@functools.cache
def _truncated_rule(wide: DType) -> GradientRule:
    def rule(g: UOp, node: UOp) -> tuple[UOp, UOp]:
        _, a, b = node.src
        quotient = floored_quotient(a.maximum(-a), b.maximum(-b), wide)
        return g, g * (a < 0).ne(b < 0).where(quotient, -quotient)

    return rule


def _other_sign(rest: UOp, y: UOp) -> UOp:
    """Whether a remainder has another sign than the divisor, and is not zero."""
    return ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))


def _floored(rest: UOp, y: UOp) -> UOp:
    """The remainder of the quotient rounded down, from that of the quotient rounded toward zero."""
    return _other_sign(rest, y).where(rest + y, rest)


def fraction_and_bias(dtype: DType) -> tuple[int, int]:
    """Bits of the fraction, and what is added to the exponent, of float32 or float64."""
    exponent_bits, fraction = dtypes.finfo(dtype)
    return fraction, 2**(exponent_bits - 1) - 1


def integer_of(dtype: DType) -> DType:
    """The integer as wide as float32 or float64."""
    return dtypes.int64 if dtype is dtypes.float64 else dtypes.int32


def exponent_and_mantissa(magnitude: UOp) -> tuple[UOp, UOp]:
    """The biased exponent (below 1 for denormal numbers), as an integer as wide, and the mantissa in [1, 2),
    of float32 or float64 numbers above zero. Constants to gradients."""
    fraction, bias = fraction_and_bias(magnitude.dtype)
    denormal = magnitude < 2.0**(1 - bias)
    shift = fraction + 2
    bits = denormal.where(magnitude * 2.0**shift, magnitude).bitcast(integer_of(magnitude.dtype))
    exponent = (bits >> fraction) - denormal.where(bits._operand(shift), 0)
    mantissa = (bits & (2**fraction - 1)) | (bias << fraction)
    return exponent, mantissa.bitcast(magnitude.dtype)


def power_of_two(biased_exponent: UOp, dtype: DType) -> UOp:
    """Of float32 or float64, by its exponent as it is stored."""
    return (biased_exponent << fraction_and_bias(dtype)[0]).bitcast(dtype)


def _to_whole(x: UOp) -> UOp:
    """The nearest whole number, where abs(x) is below 2^(fraction - 1); larger ones may lose digits."""
    rounding = 1.5 * 2.0**fraction_and_bias(x.dtype)[0]
    return (x + rounding) - rounding


def _truncated_remainder(x: UOp, y: UOp, dtype: DType) -> UOp:
    """The remainder of float32 or float64 operands that are numbers of `dtype`.

    The quotient of a step is below 2^(fraction - 2): times the reciprocal it is off by a quarter at most, and
    by a half more as a whole number. So what is left is below the divisor's mantissa, and a multiple of
    2^-fraction below 2, as mantissas are.
    """
    fraction, bias = fraction_and_bias(x.dtype)
    digits = fraction - 3
    exponent_bits, fraction_bits = dtypes.finfo(dtype)
    most_steps = (2**exponent_bits - 3 + fraction_bits) // digits
    magnitude, divisor = x.maximum(-x), y.maximum(-y)
    exponent, dividend = exponent_and_mantissa(magnitude)
    divisor_exponent, mantissa = exponent_and_mantissa(divisor)

    reciprocal = mantissa._operand(1) / mantissa

    def reduced(rest: UOp) -> UOp:
        return (-_to_whole(rest * reciprocal)).mulacc(mantissa, rest)

    distance = exponent - divisor_exponent
    full_steps = ((distance.cast(x.dtype) + 0.5) * (1 / digits)).trunc()
    short = distance - full_steps.cast(distance.dtype) * digits
    rest = reduced(dividend * power_of_two(short + bias, x.dtype))
    for step in range(most_steps):
        rest = (full_steps > step).where(reduced(rest * 2.0**digits), rest)
    rest = (rest < 0).where(rest + mantissa, rest)
    rest = (rest < mantissa).where(rest, rest - mantissa)
    # in two steps, neither of which leaves the range
    half = (divisor_exponent - bias) >> 1
    rest = rest * power_of_two(half + bias, x.dtype) * power_of_two(divisor_exponent - half, x.dtype)
    undefined = (x - x).ne(0) | y.ne(y) | y.eq(0)
    return undefined.where(math.nan, (magnitude < divisor).where(x, (x < 0).where(-rest, rest)))


def _floored_quotient(x: UOp, y: UOp, rest: UOp) -> UOp:
    """x / y rounded down, then to the nearest number of the type; `rest` is the truncated remainder.

    A division gives a whole number near it. What that lacks is whole, and exact as far as it matters: it is
    rounded to a whole number where it has digits for that, and where it has not, it is right about ties. Of
    quotients from 2^(2 * digits) on the division alone is right: that of two numbers of so many digits is too
    far from a tie for rounding down to make it one.
    """
    digits = fraction_and_bias(x.dtype)[0] + 1
    near = (y.eq(0).where(x, x - rest) / y).trunc()
    lack = ((-near).mulacc(y, x) - _floored(rest, y)) / y
    lack = (lack.maximum(-lack) < 2.0**(digits - 2)).where(_to_whole(lack), lack)
    is_corrected = (near.maximum(-near) < 2.0**(2 * digits)) & (y.maximum(-y) < math.inf)
    return is_corrected.where(near + lack, _other_sign(rest, y).where(near - 1, near))
