"""Item by item: powers, exponentials, logarithms, trigonometry.

Formulas that lose digits as they stand in a textbook (exp of a large number, log near 1, tanh near 0) are
compensated; their docstrings say how. They are written on graph nodes, with EXP2, LOG2, SIN and SQRT as
primitives; integers are taken as the default float, half types are computed in float32 and rounded once.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tinygrad.dtype import DType, dtypes, least_upper_float, promote
from tinygrad.functional.elementwise import (
    binary,
    independent,
    no_bools,
    number_dtype,
    real,
    real_binary,
    unary,
    widest_float,
)
from tinygrad.functional.polynomials import (
    ASIN,
    ATAN,
    EXPM1,
    SINH,
    TANH,
    odd_polynomial,
    polynomial,
)
from tinygrad.functional.powers import power_of_positive, repeated_product, whole_power
from tinygrad.graph.elementary import cosine, exponential, log1p_node
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor


# --- powers, exponentials, logarithms -----------------------------------------------------------------------


def square(self: Tensor) -> Tensor:
    """self * self."""
    return self * self


def sqrt(self: Tensor) -> Tensor:
    """The square root; NaN below zero.

    >>> Tensor([4, 9]).sqrt().tolist()
    [2.0, 3.0]
    """
    return unary(self, lambda x: x.cast(least_upper_float(x.dtype)).sqrt())


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(self)."""
    return real(self, lambda x: 1 / x.sqrt())


def sign_and_magnitude(x: UOp) -> tuple[UOp, UOp]:
    """1 or -1, the sign bit as a constant to gradients, and |x|. f(|x|) times the sign is the odd function f,
    at -0.0 and in its gradient at 0 too."""
    bits = dtypes.uint32 if x.dtype is dtypes.float32 else dtypes.uint64
    sign_bit = x.detach().bitcast(bits) & (1 << bits.bits - 1)
    sign = (sign_bit | x._operand(1.0).bitcast(bits)).bitcast(x.dtype)
    return sign, x * sign


def magnitude_of(x: UOp) -> UOp:
    """|x| with derivative 1 at 0: formulas in |x| for x >= 0, mirrored for x < 0, keep their gradient
    there."""
    return (x < 0).where(-x, x)


def log_node(x: UOp) -> UOp:
    return x.log2() * math.log(2)


def expm1_node(x: UOp) -> UOp:
    """e^x - 1: a polynomial where e^x is in [2/3, 3/2], elsewhere a difference that loses a bit at most."""
    near = (x < 0.41) & (x > -0.41)
    small = near.where(x, 0)
    return near.where((small * small).mulacc(polynomial(small, EXPM1[x.dtype]), small), exponential(x) - 1)


def _with_signed_zeros(x: UOp, value: UOp) -> UOp:
    """`value`, and x itself where that is 0 or -0.0; all derivatives are those of `value`."""
    return x.eq(0).where(x, value).with_gradient((value,), _to_the_value)


def _to_the_value(gradient: UOp, node: UOp) -> tuple[UOp]:
    return (gradient,)


def exp(self: Tensor) -> Tensor:
    """e to the power of each item."""
    return real(self, exponential)


def expm1(self: Tensor) -> Tensor:
    """e^x - 1, with all its digits near 0.

    >>> Tensor([0.0, 1e-30]).expm1().tolist() == Tensor([0.0, 1e-30]).tolist()
    True
    """
    return real(self, lambda x: _with_signed_zeros(x, expm1_node(x)))


def log1p(self: Tensor) -> Tensor:
    """log(1 + x), with all its digits near 0; NaN below -1.

    >>> Tensor([0.0, 1e-30]).log1p().tolist() == Tensor([0.0, 1e-30]).tolist()
    True
    """
    return real(self, lambda x: _with_signed_zeros(x, log1p_node(x)))


def exp2(self: Tensor) -> Tensor:
    """2 to the power of each item.

    >>> Tensor([3, -1]).exp2().tolist()
    [8.0, 0.5]
    """
    return real(self, lambda x: x.exp2())


def log(self: Tensor) -> Tensor:
    """The natural logarithm; NaN below zero."""
    return real(self, log_node)


def log2(self: Tensor) -> Tensor:
    """The logarithm to base 2.

    >>> Tensor([8, 0.25]).log2().tolist()
    [3.0, -2.0]
    """
    return real(self, lambda x: x.log2())


def log10(self: Tensor) -> Tensor:
    """The logarithm to base 10."""
    high = 1233 / 4096  # and what log10(2) is above it, which keeps infinities

    def node(x: UOp) -> UOp:
        exponent = x.log2()
        return exponent.mulacc(high, exponent * (math.log10(2) - high))

    return real(self, node)


def logaddexp(self: Tensor, other: Operand) -> Tensor:
    """log(e^self + e^other), without overflow.

    >>> Tensor([1000.0]).logaddexp(0).tolist()
    [1000.0]
    """
    def combined(a: UOp, b: UOp) -> UOp:
        same_infinity = a.eq(b) & (a - a).ne(0)  # whose difference is NaN
        distance = same_infinity.where(0, a - b)
        larger = (a < b).where(b, a)  # at a tie the first one, as for the magnitude: so derivatives are right
        return larger + log1p_node(exponential(-magnitude_of(distance)))

    return real_binary("logaddexp", combined, self, other)


def logit(self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of numbers brought between `eps` and 1 - `eps` where that is given."""
    return real(self if eps is None else self.clip(eps, 1 - eps),
                lambda x: log_node(x / (1 - x)).with_gradient((x,), _gradient_of_logit))


def _gradient_of_logit(g: UOp, node: UOp) -> tuple[UOp]:
    """g / (x (1 - x)): infinite at 0 and 1, NaN beyond, where there is no value either."""
    product = node.src[1] * (1 - node.src[1])
    return (g / product.eq(0).where(0, (product < 0).where(math.nan, product)),)


def hypot(self: Tensor, other: Operand) -> Tensor:
    """The square root of self ** 2 + other ** 2, where squares would be too large, too."""
    def node(x: UOp, y: UOp) -> UOp:
        a, b = x.maximum(-x), y.maximum(-y)
        longer, shorter = a.maximum(b), (a < b).where(a, b)
        is_plain = (longer > 0) & (longer < math.inf)
        ratio = is_plain.where(shorter, 0) / is_plain.where(longer, 1)
        is_infinite = a.eq(math.inf) | b.eq(math.inf)
        value = is_infinite.where(math.inf, longer * (1 + ratio * ratio).sqrt())
        return value.with_gradient((x, y), _gradients_of_hypot)

    return real_binary("hypot", node, self, other)


def _gradients_of_hypot(g: UOp, node: UOp) -> tuple[UOp, UOp]:
    """g x / h and g y / h, 0 at the origin."""
    value, x, y = node.src
    at_origin = value.eq(0)
    length = at_origin.where(1, node)
    return at_origin.where(0, g * (x / length)), at_origin.where(0, g * (y / length))


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


Power = Callable[[UOp, UOp], UOp]
"""base^exponent for base > 0."""


def _power_of_floats(base: UOp, exponent: UOp, wide: DType) -> UOp:
    """base^exponent, computed in `wide` and rounded to the type of the base.

    Types narrower than `wide` do with the digits that the plain formula leaves, `wide` itself takes
    `power_of_positive`.
    """
    raise_positive = power_of_positive if base.dtype is wide else _plain_power_of_positive
    return _power_in(base.cast(wide), exponent.cast(wide), raise_positive).cast(base.dtype)


def _plain_power_of_positive(base: UOp, exponent: UOp) -> UOp:
    return (exponent * base.log2()).exp2()


def _power_in(base: UOp, exponent: UOp, raise_positive: Power) -> UOp:
    """The power of |base|, with the sign of negative bases to whole exponents, and C's pow for what is
    special."""
    is_zero = base.eq(0)
    power = raise_positive(is_zero.where(1, base.maximum(-base)), exponent)
    whole = exponent.trunc().eq(exponent)
    odd = whole & _is_odd(exponent)
    of_negative = (whole | base.eq(-math.inf)).where(odd.where(-power, power), math.nan)
    pole = odd.where(1 / base, math.inf)
    of_zero = (exponent < 0).where(pole, (exponent > 0).where(odd.where(base, 0), math.nan))
    result = is_zero.where(of_zero, (base < 0).where(of_negative, power))
    infinite = (exponent - exponent).ne(0)  # or NaN
    is_one = exponent.eq(0) | base.eq(1) | (base.eq(-1) & infinite & exponent.eq(exponent))
    return is_one.where(1, result).with_gradient((base, exponent), _power_rules[raise_positive])


def _gradients_of_power(g: UOp, node: UOp, raise_positive: Power) -> tuple[UOp, UOp]:
    """exponent base^(exponent - 1), and base^exponent log(base), each 0 where the power is constant."""
    _, base, exponent = node.src
    is_zero = base.eq(0)
    always_one = exponent.eq(0) & (is_zero | (base - base).ne(0))
    slope = exponent * _power_in(base, always_one.where(1, exponent - 1), raise_positive)
    always_zero = is_zero & (exponent < 0).logical_not()
    logarithm = is_zero.where(-math.inf, log_node(is_zero.where(1, base)))
    return always_one.where(0, g * slope), always_zero.where(0, g * node * logarithm)


_power_rules: dict[Power, Callable[[UOp, UOp], tuple[UOp, UOp]]] = {
    function: functools.partial(_gradients_of_power, raise_positive=function)
    for function in (power_of_positive, _plain_power_of_positive)
}
"""One rule for all powers of a type, so that equal powers are equal nodes."""


def _is_odd(whole: UOp) -> UOp:
    half = whole * 0.5
    return (half - half.trunc()).ne(0) & (whole - whole).eq(0)


def power(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self ** x (x ** self with `reverse`). Integers to integer powers stay integers.

    Floats narrower than float64 are computed in float64 and rounded; float32 on devices that have no float64
    is within 0.95 ulp, of x as a float32.

    Raises ValueError for integers to a negative integer: their powers are fractions; make the base a float.

    >>> (Tensor([2, 3]) ** 3).tolist(), (Tensor([4.0]) ** 0.5).tolist()
    ([8, 27], [2.0])
    """
    number = x.item() if isinstance(x, np.generic) else x
    if not reverse and isinstance(number, (bool, int, float)):
        return _constant_power(self, number)

    def raised(base: UOp, exponent: UOp) -> UOp:
        if base.dtype.is_float:
            return _power_of_floats(base, exponent, widest_float(self, base.dtype))
        base, exponent = no_bools("pow", base, exponent)
        return _power_of_ints(base, exponent)

    return binary("pow", raised, self, x, reverse)


def _constant_power(self: Tensor, exponent: float) -> Tensor:
    if self.dtype.is_bool or (not self.dtype.is_float and isinstance(exponent, float)):
        self = self.cast(number_dtype(exponent, promote(self.dtype, dtypes.int8)))
    if exponent == 0:
        return unary(self, lambda x: independent(x._operand(1), x))
    if exponent < 0 and not self.dtype.is_float:
        raise ValueError(f"pow of {self.dtype} to the negative integer {exponent}: cast the base to a float")
    if not self.dtype.is_float:
        return unary(self, lambda x: repeated_product(x, int(exponent)))
    if float(exponent).is_integer() and abs(exponent) <= 16:
        return real(self, lambda x: whole_power(x, int(exponent)))
    if exponent == 0.5:
        return self.sqrt()
    if exponent == -0.5:
        return self.rsqrt()

    def raised(x: UOp) -> UOp:
        wide = widest_float(self, x.dtype)
        return _power_of_floats(x, x.cast(wide)._operand(exponent), wide)

    return real(self, raised)


# --- trigonometry -------------------------------------------------------------------------------------------


def sin(self: Tensor) -> Tensor:
    """The sine, of radians."""
    return real(self, lambda x: x.sin())


def cos(self: Tensor) -> Tensor:
    """The cosine, of radians."""
    return real(self, cosine)


def tan(self: Tensor) -> Tensor:
    """The tangent, of radians; of float64 within 2.5 ulp, the roundings of sine, cosine and quotient."""
    return real(self, lambda x: x.sin() / cosine(x))


def _atan_node(x: UOp) -> UOp:
    """A polynomial up to 1; above, pi/2 - atan(1/x)."""
    sign, magnitude = sign_and_magnitude(x)
    large = magnitude > 1
    below_one = large.where(1 / large.where(magnitude, 1), magnitude)
    angle = odd_polynomial(below_one, below_one * below_one, ATAN[x.dtype])
    return large.where(_from_half_pi(angle, 1), angle) * sign


def _from_half_pi(angle: UOp, multiple: int) -> UOp:
    """multiple * pi/2 - angle, with the digits of pi/2 that do not fit the type."""
    high = float(angle.dtype.numpy.type(math.pi / 2))
    rest = math.pi / 2 - high if angle.dtype is dtypes.float32 else 6.123233995736766e-17
    return (high * multiple - angle) + rest * multiple


def atan(self: Tensor) -> Tensor:
    """The arc tangent, in radians.

    >>> Tensor([0.0, 1e30]).atan().tolist()
    [0.0, 1.5707963705062866]
    """
    return real(self, _atan_node)


def atan2(self: Tensor, other: Operand) -> Tensor:
    """The angle of the point (other, self) from the first axis, from -pi to pi; zeros have signs, as in C.

    >>> Tensor([1.0, -1.0]).atan2(Tensor([0.0, -1.0])).rad2deg().round().tolist()
    [90.0, -135.0]
    """
    def node(y: UOp, x: UOp) -> UOp:
        (y_sign, height), (x_sign, width) = sign_and_magnitude(y), sign_and_magnitude(x)
        is_steep = height > width
        over, under = is_steep.where(x, y), is_steep.where(y, x)
        is_zero = y.eq(0) & x.eq(0)
        has_no_ratio = is_zero | (height.eq(math.inf) & width.eq(math.inf))
        known = is_zero.where(x._operand(0.0), x._operand(1.0)) * y_sign * x_sign
        angle = _atan_node(has_no_ratio.where(known, over / has_no_ratio.where(1, under)))
        half_turn = y_sign * math.pi
        return is_steep.where(half_turn * 0.5 - angle, (x_sign < 0).where(angle + half_turn, angle))

    return real_binary("atan2", node, self, other)


SINC = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]
"""Of sin(a) / a in powers of a^2: the first term left out is below 1e-18 for a < 0.8."""


def sinc(self: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0. Near it the series, whose derivatives lose no digits."""
    def node(x: UOp) -> UOp:
        near = (x < 0.25) & (x > -0.25)
        small, large = near.where(x, 0) * math.pi, near.where(1, x) * math.pi
        return near.where(polynomial(small * small, SINC), large.sin() / large)

    return real(self, node)


def _asin_or_half_acos(x: UOp) -> tuple[UOp, UOp]:
    """(|x| <= 1/2, there asin(x), elsewhere acos(x) / 2 = asin(sqrt((1 - x) / 2))), of x >= 0."""
    near = x < 0.5
    square = near.where(x * x, (1 - x) * 0.5)
    root = near.where(x, near.where(1, square).sqrt())
    return near, odd_polynomial(root, square, ASIN[x.dtype])


def asin(self: Tensor) -> Tensor:
    """The arc sine, in radians; NaN outside [-1, 1]. A polynomial up to 1/2, pi/2 - acos(x) above."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        near, angle = _asin_or_half_acos(magnitude)
        return near.where(angle, _from_half_pi(angle * 2, 1)) * sign

    return real(self, node)


def acos(self: Tensor) -> Tensor:
    """The arc cosine, in radians; NaN outside [-1, 1]. pi/2 - asin(x) up to 1/2, 2 asin(sqrt((1 - x) / 2))
    above, pi minus that of -x below."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        near, angle = _asin_or_half_acos(magnitude)
        far = angle * 2
        return near.where(_from_half_pi(angle * sign, 1), (x < 0).where(_from_half_pi(far, 2), far))

    return real(self, node)


def sinh(self: Tensor) -> Tensor:
    """The hyperbolic sine: a polynomial up to 1, (e^|x| - e^-|x|) / 2 above."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        near = magnitude < 1
        small = near.where(magnitude, 0)
        growth, decay = _halves_of_exponentials(magnitude)
        return near.where(odd_polynomial(small, small * small, SINH[x.dtype]), growth - decay) * sign

    return real(self, node)


def cosh(self: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    def node(x: UOp) -> UOp:
        growth, decay = _halves_of_exponentials(magnitude_of(x))
        return growth + decay

    return real(self, node)


def _halves_of_exponentials(x: UOp) -> tuple[UOp, UOp]:
    """e^x / 2 and e^-x / 2 of x >= 0; the first as e^(x - 2) e^2 / 2 where e^x would overflow too early."""
    large = x > (88.0 if x.dtype is dtypes.float32 else 709.0)
    growth = exponential(large.where(x - 2, x)) * large.where(x._operand(math.exp(2) / 2), x._operand(0.5))
    return growth, exponential(-x) * 0.5


def asinh(self: Tensor) -> Tensor:
    """The inverse hyperbolic sine: log1p(x + x^2 / (1 + sqrt(x^2 + 1))) of |x|, log(2 x) where that is
    large."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        large = magnitude > 1e8
        x1 = large.where(0, magnitude)
        small = log1p_node(x1 + x1 * x1 / ((x1 * x1 + 1).sqrt() + 1))
        return large.where(log_node(large.where(magnitude, 1)) + math.log(2), small) * sign

    return real(self, node)


def acosh(self: Tensor) -> Tensor:
    """The inverse hyperbolic cosine: log1p(t + sqrt(2 t + t^2)) of t = x - 1; NaN below 1. Within 2.2 ulp:
    the roundings of the square root, the sum and the logarithm add up."""
    def node(x: UOp) -> UOp:
        large = x > 1e8
        t = large.where(0, x - 1)
        small = log1p_node(t + t.mulacc(t, t * 2).sqrt())
        value = (x < 1).where(math.nan, large.where(log_node(large.where(x, 1)) + math.log(2), small))
        return value.with_gradient((x,), _gradient_of_acosh)

    return real(self, node)


def _gradient_of_acosh(g: UOp, node: UOp) -> tuple[UOp]:
    """g / sqrt(x^2 - 1): infinite at 1, where the derivative of the formula would be 0 times infinity."""
    x = node.src[1]
    return (g / ((x - 1).sqrt() * (x + 1).sqrt()),)


def atanh(self: Tensor) -> Tensor:
    """The inverse hyperbolic tangent: log1p(2 x / (1 - x)) / 2 of |x|; NaN outside [-1, 1]. Within 2.1
    ulp: the roundings of the difference, the quotient and the logarithm add up."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        value = log1p_node(magnitude * 2 / (1 - magnitude)) * 0.5 * sign
        return value.with_gradient((x,), _gradient_of_atanh)

    return real(self, node)


def _gradient_of_atanh(g: UOp, node: UOp) -> tuple[UOp]:
    """g / (1 - x^2): infinite at 1 and -1, as for `acosh`."""
    x = node.src[1]
    return (g / ((1 - x) * (1 + x)),)


def tanh(self: Tensor) -> Tensor:
    """The hyperbolic tangent: of |x|, a polynomial up to 0.55, (1 - e^-2|x|) / (1 + e^-2|x|) above."""
    def node(x: UOp) -> UOp:
        sign, magnitude = sign_and_magnitude(x)
        near = magnitude < 0.55
        small = near.where(magnitude, 0)
        # e^-2|x| rather than e^2|x|: no infinity, so no NaN in the gradient
        decay = exponential(magnitude * -2)
        large = (1 - decay) / (decay + 1)
        return near.where(odd_polynomial(small, small * small, TANH[x.dtype]), large) * sign

    return real(self, node)
