"""Item by item: quotients of floats rounded down and their remainders, exact for all operands.

The remainder of two floats is a float of their type, however large the quotient is. It is found as by long
division in base 2^50, on mantissas: each step takes 50 of the binary digits by which the exponents differ,
and subtracts the nearest multiple of the divisor in one multiply-add, which is exact. All types compute in
float64. A step is 7 operations; float16 takes 1 of them, float32 6 and float64 42.
"""
from __future__ import annotations

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.uop import UOp

DIGITS = 50
"""Digits of a step: the quotient, below 2^51, is rounded to a whole number by adding 1.5 * 2^52, and what is
left of a remainder is a multiple of 2^-52 below 2, as mantissas are."""
ROUNDING = 1.5 * 2.0**52
FRACTION, BIAS = 52, 1023
SMALLEST_NORMAL = 2.0**-1022


def floored_quotient(a: UOp, b: UOp) -> UOp:
    """a / b rounded down: exact up to 2^51, the true one rounded (twice, at worst) above. Its gradient is
    zero."""
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    rest = _truncated_remainder(x, y, _steps(a.dtype))
    whole = _quotient(x, y, rest)
    return _other_sign(rest, y).where(whole - 1, whole).cast(a.dtype).trunc()


def floored_remainder(a: UOp, b: UOp) -> UOp:
    """a minus b times `floored_quotient`: the true one, with the sign of b, rounded once. NaN where b is zero
    or a infinite; a, or b, where b is infinite."""
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    rest = _truncated_remainder(x, y, _steps(a.dtype))
    value = _other_sign(rest, y).where(rest + y, rest).cast(a.dtype)
    return value.with_gradient((a, b), _floored_rule)


def truncated_remainder(a: UOp, b: UOp) -> UOp:
    """a minus b times their quotient rounded toward zero: exact, with the sign of a, as C's fmod."""
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    value = _truncated_remainder(x, y, _steps(a.dtype)).cast(a.dtype)
    return value.with_gradient((a, b), _truncated_rule)


def _floored_rule(g: UOp, node: UOp) -> tuple[UOp, UOp]:
    _, a, b = node.src
    return g, -g * floored_quotient(a, b)


def _truncated_rule(g: UOp, node: UOp) -> tuple[UOp, UOp]:
    _, a, b = node.src
    quotient = floored_quotient(a.maximum(-a), b.maximum(-b))
    return g, g * (a < 0).ne(b < 0).where(quotient, -quotient)


def _other_sign(rest: UOp, y: UOp) -> UOp:
    """Whether a remainder has another sign than the divisor, and is not zero."""
    return ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))


def _steps(dtype: DType) -> int:
    """Full steps between the largest exponent of a type and its smallest denormal number's."""
    exponent_bits, fraction_bits = dtypes.finfo(dtype)
    distance: int = 2**exponent_bits - 3 + fraction_bits
    return distance // DIGITS


def exponent_and_mantissa(magnitude: UOp) -> tuple[UOp, UOp]:
    """The biased exponent (below 1 for denormal numbers), as int64, and the mantissa in [1, 2), of float64
    numbers above zero. Constants to gradients."""
    denormal = magnitude < SMALLEST_NORMAL
    bits = denormal.where(magnitude * 2.0**54, magnitude).bitcast(dtypes.int64)
    exponent = (bits >> FRACTION) - denormal.where(bits._operand(54), 0)
    mantissa = (bits & (2**FRACTION - 1)) | (BIAS << FRACTION)
    return exponent, mantissa.bitcast(dtypes.float64)


def _truncated_remainder(x: UOp, y: UOp, steps: int) -> UOp:
    """The remainder of float64 operands whose exponents differ by less than `steps` + 1 times DIGITS."""
    magnitude, divisor = x.maximum(-x), y.maximum(-y)
    exponent, dividend = exponent_and_mantissa(magnitude)
    divisor_exponent, mantissa = exponent_and_mantissa(divisor)

    def reduced(rest: UOp) -> UOp:
        multiple = (rest / mantissa + ROUNDING) - ROUNDING
        return (-multiple).mulacc(mantissa, rest)

    distance = exponent - divisor_exponent
    full_steps = ((distance.cast(dtypes.float64) + 0.5) * (1 / DIGITS)).trunc()
    rest = reduced(dividend * _power_of_two(distance - full_steps.cast(dtypes.int64) * DIGITS))
    for step in range(steps):
        rest = (full_steps > step).where(reduced(rest * 2.0**DIGITS), rest)
    rest = (rest < 0).where(rest + mantissa, rest)
    rest = (rest < mantissa).where(rest, rest - mantissa)
    # in two steps, neither of which leaves the range
    half = (divisor_exponent - BIAS) >> 1
    rest = rest * _power_of_two(half) * _power_of_two(divisor_exponent - BIAS - half)
    rest = (magnitude < divisor).where(magnitude, rest)
    undefined = (x - x).ne(0) | y.ne(y) | y.eq(0)
    return undefined.where(float("nan"), (x < 0).where(-rest, rest))


def _power_of_two(exponent: UOp) -> UOp:
    return ((exponent + BIAS) << FRACTION).bitcast(dtypes.float64)


def _quotient(x: UOp, y: UOp, rest: UOp) -> UOp:
    """(x - rest) / y, a whole number: one division, one correction, and rounded where digits are left for it.

    Very small and large divisors are scaled, so that the correction is as exact as others.
    """
    divisor = y.maximum(-y)
    scale = (divisor < 2.0**-900).where(2.0**120, (divisor > 2.0**900).where(y._operand(2.0**-120), 1))
    x, y, rest = x * scale, y * scale, rest * scale
    near = y.eq(0).where(x, x - rest) / y
    corrected = near + ((-near).mulacc(y, x) - rest) / y
    quotient = corrected.eq(corrected).where(corrected, near)  # infinite operands and results have none
    short = quotient.maximum(-quotient) < 2.0**51
    return short.where((quotient + ROUNDING) - ROUNDING, quotient)
