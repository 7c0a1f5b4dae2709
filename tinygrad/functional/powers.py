"""Powers of numbers, of floats to a unit or two of the last place.

Whole exponents are products. What each product of floats loses is kept: without that, x^16 would be off by 8
units. For other exponents b^e is 2^(e log2 b), and e log2 b of float64 is up to 1074: an error of half a unit
of its last place would be one of 370 in the power's (of float32, 52). So the logarithm is computed as a sum
of two numbers, to 62 digits (of float32, 33), and so is its product with the exponent. The products and sums
with exact errors are Dekker's and Knuth's.
"""
from __future__ import annotations

import math

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.functional.division import (
    exponent_and_mantissa,
    fraction_and_bias,
    integer_of,
    power_of_two,
)
from tinygrad.graph.uop import UOp

TWO_OVER_LN2 = (2.8853900817779268, 4.0710547481862066e-17)
THIRD = (1 / 3, 1.850371707708594e-17)
"""2 / ln(2) and 1/3 in two parts: the nearest number, and what is left."""
TERMS = {dtypes.float32: 5, dtypes.float64: 11}
"""atanh(s) = s (1 + z/3 + z^2 (1/5 + z/7 + ...)), z = s^2 <= 0.0295: of the last sum so many terms leave out
less than 2^-38 and 2^-65."""


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
    """base^exponent, base > 0, of float32 nodes within 0.95 units of the last place, of float64 within 1.3.
    Not for gradients: the logarithm is made of its bits."""
    fraction, bias = fraction_and_bias(base.dtype)
    high, low = _log2(base)
    product = exponent * high
    rest = exponent.mulacc(high, -product) + exponent * low
    beyond = product > bias + 2
    bounded = beyond.where(bias + 2, product.maximum(-(bias + fraction + 2)))  # NaN stays
    rounding = base._operand(1.5 * 2.0**fraction)
    shifted = bounded + rounding
    part = (bounded - (shifted - rounding)) + bounded.eq(product).where(rest, 0)
    integer = integer_of(base.dtype)
    whole = shifted.bitcast(integer) - rounding.bitcast(integer)
    half = whole >> 1  # the power of two in two steps: only the second may leave the normal numbers
    half_power, other_power = (power_of_two(n + bias, base.dtype) for n in (half, whole - half))
    return part.exp2() * half_power * other_power


def _log2(number: UOp) -> tuple[UOp, UOp]:
    """The logarithm to base 2 in two parts: k + 2 / ln(2) atanh((f - 1) / (f + 1)) of 2^k f, f near 1."""
    _, bias = fraction_and_bias(number.dtype)
    factors = _in_two_parts(TWO_OVER_LN2, number.dtype)
    third_high, third_low = _in_two_parts(THIRD, number.dtype)
    biased, mantissa = exponent_and_mantissa(number)
    above = mantissa > math.sqrt(2)
    fraction = above.where(mantissa * 0.5, mantissa)
    whole = (biased - above.where(biased._operand(bias - 1), bias)).cast(number.dtype)
    s, s_rest = _quotient_near_one(fraction)
    z = s * s
    z_rest = s.mulacc(s, -z) + s * s_rest * 2
    third = z * third_high
    tail = z * z * _series(z) + z.mulacc(third_high, -third) + z * third_low + z_rest * third_high
    more, more_rest = _sum(third, tail)
    factor, factor_rest = _sum(more._operand(1), more)
    high, low = _product(s, s_rest, factor, factor_rest + more_rest)
    high, low = _product(high, low, *(high._operand(part) for part in factors))
    total, rest = _sum(whole, high)
    rest = rest + low
    is_finite = (number - number).eq(0)
    return is_finite.where(total, number), is_finite.where(rest, 0)


def _in_two_parts(parts: tuple[float, float], dtype: DType) -> tuple[float, float]:
    """A number that is given in two parts of float64, in two parts of `dtype`."""
    if dtype is dtypes.float64:
        return parts
    high = float(np.float32(parts[0]))
    return high, float(np.float32(parts[0] - high))


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
    *coefficients, last = (1 / (2 * k + 5) for k in range(TERMS[z.dtype]))
    value = z._operand(last)
    for coefficient in reversed(coefficients):
        value = value.mulacc(z, coefficient)
    return value
