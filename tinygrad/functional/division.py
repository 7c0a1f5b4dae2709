"""Item by item: quotients of floats rounded down and their remainders, exact for all operands.

The remainder of two floats is a float of their type, however large the quotient is. It is found as by long
division in base 2^50: the dividend's exponent is taken down to the divisor's in steps of 50 binary digits, each
of which subtracts a multiple of the divisor in one multiply-add, which is exact. All types compute in
float64, whose multiply-add has room for 50 digits of a quotient.
"""
from __future__ import annotations

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

DIGITS = 50
"""Binary digits of the quotient that a step finds: a remainder of 53 digits times 2^50 is a float64, and a
quotient of at most 2^51 is rounded to a whole number by adding and subtracting 1.5 * 2^52."""
ROUNDING = 1.5 * 2.0**52
FRACTION, BIAS = 52, 1023
SMALLEST_NORMAL = 2.0**-1022


def floor_divmod(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """(a / b rounded down, the remainder with the sign of `b`), as Python's divmod; both of one float type.

    The remainder is the true one, rounded once. The quotient is right to half a unit of its last place, and
    exact where it fits the mantissa. Division by zero gives what a / b is, and the remainder NaN.
    Gradients: that of the remainder is 1 and minus the quotient, that of the quotient zero.
    """
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    rest = _remainder_of_magnitudes(_magnitude(x), _magnitude(y), quotient_digits(a.dtype))
    rest = _with_sign_bit(rest, x)
    other_sign = rest.ne(0) & (x < 0).ne(y < 0)
    remainder = other_sign.where(rest + y, rest.eq(0).where(_with_sign_bit(rest, y), rest))
    quotient = _whole_quotient(x, y, rest, other_sign)
    value = remainder.cast(a.dtype)
    whole = quotient.cast(a.dtype).trunc()
    return whole, value.with_gradient((a, b), _RemainderRule(whole))


def truncated_remainder(a: UOp, b: UOp) -> UOp:
    """The remainder of a / b rounded toward zero, with the sign of `a`, as C's fmod."""
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    rest = _remainder_of_magnitudes(_magnitude(x), _magnitude(y), quotient_digits(a.dtype))
    quotient = ((x - rest) * y.recip())
