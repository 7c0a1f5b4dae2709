"""Powers of numbers, of floats to a unit or two of the last place.

Whole exponents are products. What each product of floats loses is kept: without that, x^16 would be off by 8
units. For other exponents, of float64, b^e is 2^(e log2 b), and e log2 b is up to 1074: an error of half a
unit of its last place would be one of 370 in the power's. So the logarithm is computed as a sum of two
float64 numbers, to 62 digits, and so is its product with the exponent. The products and sums with exact
errors are Dekker's and Knuth's.
"""
from __future__ import annotations

import math

from tinygrad.functional.division import exponent_and_mantissa
from tinygrad.graph.uop import UOp

TWO_OVER_LN2 = (2.8853900817779268, 4.0710547481862066e-17)
THIRD = (1 / 3, 1.850371707708594e-17)
"""2 / ln(2) and 1/3 in two parts: the nearest number, and what is left."""
SERIES = tuple(1 / (2 * k + 5) for k in range(11))
"""atanh(s) = s (1 + z/3 + z^2 (1/5 + z/7 + ...)), z = s^2 <= 0.0295: what is left out is below 2^-65."""


def repeated_product(base: UOp, exponent: int) -> UOp:
    """base^exponent for exponent >= 1, by repeated squaring."""
    result = base
    for digit in f"{exponent:b}"[1:]:
        result = result * result
        if digit == "1":
            result = result * base
    return result


PLAIN_EXPONENTS = (1, 2, 3)
"""Exponents whose products, at most two, are within 1.5 units without more ado."""


def whole_power(base: UOp, exponent: int) -> UOp:
    """base^exponent of float nodes, exponent not 0, within 1.5 units of the last place: by repeated squaring,
    of the reciprocal where the exponent is negative, for the power of the base itself may be infinite."""
    if exponent == -1:
        return 1 / base
    if exponent in PLAIN_EXPONENTS:
        return repeated_product(base, exponent)
    value, rest = base, base._operand(0.0)
    if exponent < 0:
        value = 1 / base
        rest = (-value).mulacc(base, 1).detach() * value.detach()
    result, lost = value, rest
    for digit in f"{abs(exponent):b}"[1:]:
        result, lost = _product_for_gradients(result, lost, result, lost)
        if digit == "1":
            result, lost = _product_for_gradients(result, lost, value, rest)
    adds = (lost - lost).eq(0) & lost.ne(0)
    return result + adds.where(lost, -0.0)  # which keeps the sign of a zero


def _product_for_gradients(a: UOp, a_rest: UOp, b: UOp, b_rest: UOp) -> tuple[UOp, UOp]:
    """`_product`, whose second part is a constant to gradients: as a function of real numbers, it is zero."""
    return a * b, _product(a.detach(), a_rest, b.detach(), b_rest)[1]


def power_of_positive(base: UOp, exponent: UOp) -> UOp:
    """base^exponent of float64 nodes, base > 0, within 1.7 units of the last place. Not for gradients: the
    logarithm is made of its bits."""
    high, low = _log2(base)
    product = exponent * high
    rest = exponent.mulacc(high, -product) + exponent * low
    power = product.exp2()
    corrected = power.mulacc(rest * math.log(2), power)
    is_finite = (corrected - corrected).eq(0)
    return is_finite.where(corrected, power)


def _log2(number: UOp) -> tuple[UOp, UOp]:
    """The logarithm to base 2 in two parts: k + 2 / ln(2) atanh((f - 1) / (f + 1)) of 2^k f, f near 1."""
    biased, mantissa = exponent_and_mantissa(number)
    above = mantissa > math.sqrt(2)
    fraction = above.where(mantissa * 0.5, mantissa)
    whole = (biased - above.where(biased._operand(1022), 1023)).cast(number.dtype)
    s, s_rest = _quotient_near_one(fraction)
    z = s * s
    z_rest = s.mulacc(s, -z) + s * s_rest * 2
    third = z * THIRD[0]
    tail = z * z * _series(z) + z.mulacc(THIRD[0], -third) + z * THIRD[1] + z_rest * THIRD[0]
    more, more_rest = _sum(third, tail)
    factor, factor_rest = _sum(more._operand(1), more)
    high, low = _product(s, s_rest, factor, factor_rest + more_rest)
    high, low = _product(high, low, high._operand(TWO_OVER_LN2[0]), high._operand(TWO_OVER_LN2[1]))
    total, rest = _sum(whole, high)
    rest = rest + low
    is_finite = (number - number).eq(0)
    return is_finite.where(total, number), is_finite.where(rest, 0)


def _quotient_near_one(f: UOp) -> tuple[UOp, UOp]:
    """(f - 1) / (f + 1) in two parts, for f in [1/2, 2], where f - 1 is exact."""
    above = f - 1
    below, below_rest = _sum((f > 1).where(f, 1), (f > 1).where(f._operand(1), f))
    quotient = above / below
    rest = ((-quotient).mulacc(below, above) - quotient * below_rest) / below
    return quotient, rest


def _sum(larger: UOp, smaller: UOp) -> tuple[UOp, UOp]:
    """The sum of two numbers in two parts; where the first is zero, the second may be larger."""
    total = larger + smaller
    return total, (larger - total) + smaller


def _product(a: UOp, a_rest: UOp, b: UOp, b_rest: UOp) -> tuple[UOp, UOp]:
    product = a * b
    return product, a.mulacc(b, -product) + (a * b_rest + a_rest * b)


def _series(z: UOp) -> UOp:
    value = z._operand(SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        value = value.mulacc(z, coefficient)
    return value
