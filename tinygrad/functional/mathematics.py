"""Item by item: powers, exponentials, logarithms, trigonometry and the error function.

Formulas that lose digits as they stand in a textbook (exp of a large number, log near 1, tanh near 0) are
compensated; their docstrings say how. They are written on graph nodes, with EXP2, LOG2, SIN and SQRT as
primitives; integers are taken as the default float, half types are computed in float32 and rounded once.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tinygrad.dtype import dtypes, least_upper_float, promote
from tinygrad.functional.elementwise import binary, no_bools, number_dtype, real, real_binary, unary
from tinygrad.graph.gradient import cosine
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor


# --- powers, exponentials, logarithms -----------------------------------------------------------------------


def square(self: Tensor) -> Tensor:
    """self * self."""
    return self * self


def sqrt(self: Tensor) -> Tensor:
    """The square root; NaN below zero."""
    return unary(self, lambda x: x.cast(least_upper_float(x.dtype)).sqrt())


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(self)."""
    return real(self, lambda x: x.sqrt().recip())


def magnitude_of(x: UOp) -> UOp:
    """|x| with derivative 1 at 0: formulas in |x| for x >= 0, mirrored for x < 0, keep their gradient
    there."""
    return (x < 0).where(-x, x)


def exp_node(x: UOp) -> UOp:
    """e^x as 2^(x log2 e), with the product's rounding error put back.

    The exponent h = x log2(e) is rounded, which alone would cost up to |h|/2 ulp. Its error r is known
    exactly (a fused multiply-add, plus the error of the constant), and 2^(h + r) = 2^h (1 + r ln 2) to the
    last digit. The correction is a constant to gradients: as a function of real numbers it is 1.
    """
    log2e = x.dtype.numpy.type(math.log2(math.e))
    rest = 2.0355273740931033e-17 if x.dtype is dtypes.float64 else math.log2(math.e) - float(log2e)
    exponent = x * float(log2e)
    constant, rounded = x.detach(), exponent.detach()
    error = constant.mulacc(rest, constant.mulacc(float(log2e), -rounded))
    # where the exponent is infinite, or so large that the result is 0 or infinite, there is nothing to
    # correct
    safe = (error * error < 1.0).where(error, 0)
    return exponent.exp2() * safe.mulacc(math.log(2), safe._operand(1))


def log_node(x: UOp) -> UOp:
    return x.log2() * math.log(2)


def log1p_node(x: UOp) -> UOp:
    """log(1 + x), precise near 0: log(u) x / (u - 1) with u the rounded 1 + x (Kahan)."""
    u = x + 1
    distance = u - 1
    plain = distance.eq(0) | u.eq(math.inf)
    correction = x * plain.where(1, distance).recip()
    exact = distance.eq(0).where(x, log_node(u) * plain.where(1, correction))
    return exact


def expm1_node(x: UOp) -> UOp:
    """e^x - 1, precise near 0: there 2 tanh(x/2) / (1 - tanh(x/2))."""
    near = (x < 0.5) & (x > -0.5)
    t = _tanh_near_zero(near.where(x * 0.5, 0))
    return near.where(t * 2 * (1 - t).recip(), exp_node(x) - 1)


def exp(self: Tensor) -> Tensor:
    """e to the power of each item."""
    return real(self, exp_node)


def exp2(self: Tensor) -> Tensor:
    """2 to the power of each item."""
    return real(self, lambda x: x.exp2())


def log(self: Tensor) -> Tensor:
    """The natural logarithm; NaN below zero."""
    return real(self, log_node)


def log2(self: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return real(self, lambda x: x.log2())


def log10(self: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return real(self, lambda x: x.log2() * math.log10(2))


def logaddexp(self: Tensor, other: Operand) -> Tensor:
    """log(e^self + e^other), without overflow."""
    def combined(a: UOp, b: UOp) -> UOp:
        larger = a.maximum(b)
        same = a.eq(b)  # also where both are the same infinity, whose difference is NaN
        distance = same.where(0, a - b)
        return larger + same.where(math.log(2), log1p_node(exp_node(-magnitude_of(distance))))

    return real_binary("logaddexp", combined, self, other)


def _int_power(base: UOp, exponent: int) -> UOp:
    """base^exponent for exponent >= 1, by repeated squaring."""
    result: UOp | None = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        base = base * base


def _power_of_ints(base: UOp, exponent: UOp) -> UOp:
    """base^exponent, bit by bit of the exponent; for negative exponents 0, or 1 or -1 where the base is one
    of them."""
    result = base._operand(1)
    square_, bits = base, exponent
    for _ in range(exponent.dtype.bits - (not exponent.dtype.is_unsigned)):
        result = (bits & 1).ne(0).where(result * square_, result)
        square_ = square_ * square_
        bits = bits >> 1
    if base.dtype.is_unsigned:
        return result
    odd = (exponent & 1).ne(0)
    inverse = base.eq(1).where(1, base.eq(-1).where(odd.where(base._operand(-1), base._operand(1)), 0))
    return (exponent < 0).where(inverse, result)


def _power_of_floats(base: UOp, exponent: UOp) -> UOp:
    """base^exponent = 2^(exponent log2 |base|), with the sign of negative bases to whole exponents.

    A base of 0 goes its own way, so that no infinity meets a zero in the gradient.
    """
    magnitude = base.maximum(-base)
    is_zero = base.eq(0)
    power = (exponent * is_zero.where(1, magnitude).log2()).exp2()
    whole = exponent.trunc().eq(exponent)
    odd = whole & (exponent * 0.5).trunc().mulacc(-2.0, exponent).ne(0)
    of_negative = whole.where(odd.where(-power, power), math.nan)
    of_zero = (exponent < 0).where(exponent._operand(math.inf), exponent._operand(0))
    result = is_zero.where(of_zero, (base < 0).where(of_negative, power))
    return (exponent.eq(0) | base.eq(1)).where(1, result)


def power(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self ** x (x ** self with `reverse`). Integers to integer powers stay integers.

    Raises ValueError for integers to a negative integer: their powers are fractions; make the base a float.

    >>> (Tensor([2, 3]) ** 3).tolist(), (Tensor([4.0]) ** 0.5).tolist()
    ([8, 27], [2.0])
    """
    number = x.item() if isinstance(x, np.generic) else x
    if not reverse and isinstance(number, (bool, int, float)):
        return _constant_power(self, number)
    def raised(base: UOp, exponent: UOp) -> UOp:
        if base.dtype.is_float:
            wide = promote(base.dtype, dtypes.float32)
            return _power_of_floats(base.cast(wide), exponent.cast(wide)).cast(base.dtype)
        base, exponent = no_bools("pow", base, exponent)
        return _power_of_ints(base, exponent)

    return binary("pow", raised, self, x, reverse)


def _constant_power(self: Tensor, exponent: float) -> Tensor:
    if self.dtype.is_bool or (not self.dtype.is_float and isinstance(exponent, float)):
        self = self.cast(number_dtype(exponent, promote(self.dtype, dtypes.int8)))
    if exponent == 0:
        return self.ones_like(requires_grad=False)
    if exponent < 0 and not self.dtype.is_float:
        raise ValueError(f"pow of {self.dtype} to the negative integer {exponent}: cast the base to a float")
    if float(exponent).is_integer() and abs(exponent) <= 16:
        positive = _real_or_int(self, lambda x: _int_power(x, abs(int(exponent))))
        return positive if exponent > 0 else positive.reciprocal()
    if exponent == 0.5:
        return self.sqrt()
    if exponent == -0.5:
        return self.rsqrt()
    if not self.dtype.is_float:
        return unary(self, lambda x: _int_power(x, int(exponent)))
    return real(self, lambda x: _power_of_floats(x, x._operand(exponent)))


def _real_or_int(self: Tensor, function: Callable[[UOp], UOp]) -> Tensor:
    return real(self, function) if self.dtype.is_float else unary(self, function)


# --- trigonometry -------------------------------------------------------------------------------------------


def sin(self: Tensor) -> Tensor:
    """The sine, of radians."""
    return real(self, lambda x: x.sin())


def cos(self: Tensor) -> Tensor:
    """The cosine, of radians."""
    return real(self, cosine)


def tan(self: Tensor) -> Tensor:
    """The tangent, of radians."""
    return real(self, lambda x: x.sin() * cosine(x).recip())


def _atan_below_one(x: UOp) -> UOp:
    """The arc tangent for 0 <= x <= 1: the argument halved twice, then its Taylor series below tan(pi/16)."""
    for _ in range(2):
        x = x * ((x * x + 1).sqrt() + 1).recip()
    terms = 6 if x.dtype is dtypes.float32 else 12
    coefficients = [(-1) ** n / (2 * n + 1) for n in range(terms)]
    return x * polynomial(x * x, coefficients) * 4


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The sum of coefficients[n] * x^n, by Horner's scheme."""
    result = x._operand(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.mulacc(x, x._operand(coefficient))
    return result


def _with_sign_of(x: UOp, positive: UOp) -> UOp:
    return (x < 0).where(-positive, positive)


def _atan_node(x: UOp) -> UOp:
    magnitude = magnitude_of(x)
    large = magnitude > 1
    angle = _atan_below_one(large.where(large.where(magnitude, 1).recip(), magnitude))
    return _with_sign_of(x, large.where(math.pi / 2 - angle, angle))


def atan(self: Tensor) -> Tensor:
    """The arc tangent, in radians."""
    return real(self, _atan_node)


def asin(self: Tensor) -> Tensor:
    """The arc sine, in radians; NaN outside [-1, 1]. It is 2 atan(x / (1 + sqrt(1 - x^2)))."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        half = magnitude * (((1 - magnitude) * (magnitude + 1)).sqrt() + 1).recip()
        return _with_sign_of(x, _atan_below_one(half) * 2)

    return real(self, node)


def acos(self: Tensor) -> Tensor:
    """The arc cosine, in radians; NaN outside [-1, 1]. It is 2 atan(sqrt((1 - x) / (1 + x)))."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        angle = _atan_below_one(((1 - magnitude) * (magnitude + 1).recip()).sqrt()) * 2
        return (x < 0).where(math.pi - angle, angle)

    return real(self, node)


def sinh(self: Tensor) -> Tensor:
    """The hyperbolic sine: with m = e^|x| - 1, (m + m/(m + 1)) / 2; with half the exponent where that is
    large."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        large = magnitude > 40
        m = expm1_node(large.where(0, magnitude))
        half = exp_node(large.where(magnitude * 0.5, 0))
        return _with_sign_of(x, large.where(half * 0.5 * half, (m + m * (m + 1).recip()) * 0.5))

    return real(self, node)


def cosh(self: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        half = exp_node(magnitude * 0.5)
        small = exp_node(-magnitude)
        return half * 0.5 * half + small * 0.5

    return real(self, node)


def asinh(self: Tensor) -> Tensor:
    """The inverse hyperbolic sine: log1p(x + x^2 / (1 + sqrt(x^2 + 1))) of |x|, log(2 x) where that is
    large."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        large = magnitude > 1e8
        x1 = large.where(0, magnitude)
        small = log1p_node(x1 + x1 * x1 * ((x1 * x1 + 1).sqrt() + 1).recip())
        return _with_sign_of(x, large.where(log_node(large.where(magnitude, 1)) + math.log(2), small))

    return real(self, node)


def acosh(self: Tensor) -> Tensor:
    """The inverse hyperbolic cosine: log1p(t + sqrt(2 t + t^2)) of t = x - 1; NaN below 1."""
    def node(x: UOp) -> UOp:
        large = x > 1e8
        t = large.where(0, x - 1)
        small = log1p_node(t + (t * (t + 2)).sqrt())
        return large.where(log_node(large.where(x, 1)) + math.log(2), small)

    return real(self, node)


def atanh(self: Tensor) -> Tensor:
    """The inverse hyperbolic tangent: log1p(2 x / (1 - x)) / 2 of |x|; NaN outside [-1, 1]."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        return _with_sign_of(x, log1p_node(magnitude * 2 * (1 - magnitude).recip()) * 0.5)

    return real(self, node)


def _tanh_fraction(depth: int) -> tuple[list[float], list[float]]:
    """Numerator and denominator, in x^2, of Lambert's continued fraction tanh x = x/(1 + x^2/(3 + x^2/(5 +
    ...)))."""
    numerators, denominators = [[0.0], [1.0]], [[1.0], [1.0]]
    for k in range(1, depth):
        for terms in (numerators, denominators):
            last, before = terms[-1], [0.0, *terms[-2]]
            size = max(len(last), len(before))
            padded = [row + [0.0] * (size - len(row)) for row in (last, before)]
            terms.append([(2 * k + 1) * a + b for a, b in zip(*padded, strict=True)])
    # each level of the fraction scales both by its odd number; start from a constant term of one
    scale = denominators[-1][0]
    return [a / scale for a in numerators[-1]], [b / scale for b in denominators[-1]]


TANH_FRACTION = {dtypes.float32: _tanh_fraction(5), dtypes.float64: _tanh_fraction(9)}


def _tanh_near_zero(x: UOp) -> UOp:
    """tanh for |x| <= 0.6, from its continued fraction."""
    numerator, denominator = TANH_FRACTION[x.dtype]
    return x * polynomial(x * x, numerator) * polynomial(x * x, denominator).recip()


def tanh(self: Tensor) -> Tensor:
    """The hyperbolic tangent: 1 - 2 / (e^(2|x|) + 1) with the sign of x, and a continued fraction near 0."""
    def node(x: UOp) -> UOp:
        magnitude = magnitude_of(x)
        near = magnitude < 0.6
        small = _tanh_near_zero(near.where(x, 0))
        # e^-2|x| rather than e^2|x|: no infinity, so no NaN in the gradient
        decay = exp_node(magnitude * -2)
        return near.where(small, _with_sign_of(x, (1 - decay) * (decay + 1).recip()))

    return real(self, node)


# --- the error function -------------------------------------------------------------------------------------

# e^(x^2) erfc(x) for 1 <= x <= `limit`, as a polynomial in 1/(1 + x/2) scaled to [-1, 1]: Chebyshev
# interpolation (relative error 7e-10 and 7e-15). Beyond `limit`, erf rounds to 1.
ERFCX = {
    dtypes.float32: (4.0, (
        0.25539567625112669, 0.14239528276950719, 0.02685091235727749, 0.0029251286434133061,
        4.6075782336755249e-05, -2.8781720473416537e-05, -1.1475612158985411e-06,
        4.2960572696359088e-07,
    )),
    dtypes.float64: (6.0, (
        0.22142954022993178, 0.16189356804102581, 0.038560570425182024, 0.0055888162818198825,
        0.00019713917775671704, -8.0792204099959313e-05, -7.3405182034251363e-06,
        1.9795611650228865e-06, 1.635005940511135e-07, -7.0051792112680499e-08,
        -5.9174650363566907e-10, 2.6224670899880046e-09, -2.6423629068466336e-10,
        -7.2951534224510891e-11, 1.8894684989359593e-11,
    )),
}


def erf_node(x: UOp) -> UOp:
    """erf: its Maclaurin series below 1, one minus the scaled complement above."""
    limit, coefficients = ERFCX[x.dtype]
    magnitude = magnitude_of(x)
    near = magnitude < 1
    terms = 11 if x.dtype is dtypes.float32 else 20
    series = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(terms)]
    small = near.where(x, 0)
    far = near.where(1, (magnitude > limit).where(limit, magnitude))
    low, high = 1 / (1 + limit / 2), 1 / 1.5
    scaled = ((far * 0.5 + 1).recip() * 2 - (low + high)) * (1 / (high - low))
    complement = exp_node(-far * far) * polynomial(scaled, coefficients)
    large = x.ne(x).where(x, _with_sign_of(x, 1 - complement))
    return near.where(small * polynomial(small * small, series), large)


def erf(self: Tensor) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return real(self, erf_node)
