"""Item by item: what `torch.special` has besides: of the normal distribution, Bessel's functions, polygamma.

Integers are taken as the default float; half types are computed in float32 and rounded once. Derivatives are
closed forms.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType, dtypes, least_upper_float, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.elementwise import as_tensor, real
from tinygrad.functional.error_function import erfcx_node, log_normal_probability, normal_probability
from tinygrad.functional.fourier import turned
from tinygrad.functional.gamma_functions import BERNOULLI, STEPS, digamma, lgamma, trigamma
from tinygrad.functional.mathematics import log_node, sign_and_magnitude
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Array = np.ndarray[Any, Any]


# --- probabilities, entropies -------------------------------------------------------------------------------


def ndtr(self: Tensor) -> Tensor:
    """The probability that a normally distributed number is below this.

    >>> Tensor([0.0]).ndtr().tolist()
    [0.5]
    """
    return real(self, normal_probability)


def log_ndtr(self: Tensor) -> Tensor:
    """The logarithm of `ndtr`, of what that has no number for too.

    >>> Tensor([-100.0]).log_ndtr().numpy().round(2).tolist()
    [-5005.52001953125]
    """
    return real(self, log_normal_probability)


def erfcx(self: Tensor) -> Tensor:
    """e^(x^2) erfc(x), which is no zero where `erfc` is one.

    >>> Tensor([0.0]).erfcx().tolist()
    [1.0]
    """
    return real(self, erfcx_node)


def entr(self: Tensor) -> Tensor:
    """-x log(x): 0 at 0, minus infinity below.

    >>> Tensor([0.0, -1.0]).entr().tolist()
    [0.0, -inf]
    """
    def node(x: UOp) -> UOp:
        positive = x > 0
        value = positive.where(-x * log_node(positive.where(x, 1)), (x < 0).where(-math.inf, x * 0))
        return value.with_gradient((x,), _gradient_of_entropy)

    return real(self, node)


def _gradient_of_entropy(g: UOp, node: UOp) -> tuple[UOp]:
    return (g * (-1 - log_node(node.src[1])),)


def xlog1py(self: Tensor, other: Any) -> Tensor:
    """self * log1p(other), 0 where self is 0 and other is a number."""
    y = as_tensor("xlog1py", other, self)
    has_no_log = (self == 0) & ((y <= -1) | (y == math.inf))
    return has_no_log.where(0, self * has_no_log.where(0, y).log1p())


# --- of the gamma function ----------------------------------------------------------------------------------


def mvlgamma(self: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of `p` dimensions: of (p - 1) / 2 and below it is not
    defined."""
    if p < 1:
        raise ValueError(f"mvlgamma takes p >= 1 dimensions, got {p}")
    x = as_real(self)
    total = lgamma(x)
    for j in range(1, p):
        total = total + lgamma(x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def polygamma(self: Tensor, n: int) -> Tensor:
    """The derivative number `n` of `digamma`, which is number 0 (Abramowitz and Stegun, 6.4.7 and 6.4.10).

    >>> round(Tensor(1.0).polygamma(1).item(), 4)
    1.6449
    """
    if n < 0:
        raise ValueError(f"polygamma takes n >= 0, got {n}")
    if n == 0:
        return digamma(self)
    dtype = least_upper_float(self.dtype)
    x = self.cast(promote(dtype, dtypes.float32))
    return (trigamma(x) if n == 1 else _polygamma(x, n)).cast(dtype)


def _polygamma(x: Tensor, n: int) -> Tensor:
    """Sums of powers from 1/2 on, below the reflection, whose derivatives are polynomials in a cotangent."""
    is_low = x < 0.5
    high = _sum_of_powers(is_low.where(1 - x, x), n + 1) * math.factorial(n)
    turn = is_low.where((x - x.round()) * math.pi, 1)
    cotangent = turn.cos() / turn.sin()
    factors = _cotangent_derivative(n)
    reflected = cotangent * 0 + float(factors[-1])
    for factor in reversed(factors[:-1]):
        reflected = reflected * cotangent + float(factor)
    sign = 1 if n % 2 else -1
    low = (x == x.round()).where(sign * math.inf, -high - math.pi ** (n + 1) * reflected)
    return is_low.where(low, high * sign)


def _cotangent_derivative(n: int) -> list[int]:
    """The factors of powers of cot(x) that its derivative number n is the sum of."""
    factors = [0, 1]
    for _ in range(n):
        slopes = [k * factor for k, factor in enumerate(factors)][1:]
        factors = [-a - b for a, b in zip([*slopes, 0, 0], [0, 0, *slopes], strict=True)]
    return factors


def _sum_of_powers(x: Tensor, s: int) -> Tensor:
    """1 / x^s + 1 / (x + 1)^s + ...: of some terms, then Euler's and Maclaurin's formula."""
    total = x.pow(-s)
    for step in range(1, STEPS):
        total = total + (x + step).pow(-s)
    z = x + STEPS
    last = z.pow(-s)
    total = total + z.pow(1 - s) / (s - 1) + last * 0.5
    inverse = 1 / z
    term = last * inverse * s
    for k, number in enumerate(BERNOULLI, 1):
        total = total + term * (number * 2 * k * (2 * k - 1) / math.factorial(2 * k))
        term = term * (inverse * inverse) * ((s + 2 * k - 1) * (s + 2 * k))
    return total


# --- Bessel's modified functions ----------------------------------------------------------------------------


BOUND = 8
"""Where the series in x ends, and that in 1 / x begins"""
TERMS = 40


@lru_cache(maxsize=8)
def _series(order: int, dtype: DType) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The factors of Chebyshev polynomials in x / 4 - 1 of e^-x I(x), or that over x for order 1, up to 8;
    and in 16 / x - 1 of it times sqrt(x) from there on. By the integral over a half turn of e^(x cos t), with
    sin(t)^2 for order 1 (Abramowitz and Stegun, 9.6.18)."""
    waves = turned(np.outer(np.arange(TERMS), 2 * np.arange(TERMS) + 1), 4 * TERMS, inverse=True)[0]
    place = waves[1]
    angle = np.pi * (np.arange(1 << 13) + 0.5) / (1 << 13)

    def over_power(x: Array) -> Array:
        decay = np.exp(-2 * x[:, None] * np.sin(angle / 2) ** 2)  # cos t - 1, which would lose digits
        found: Array = (decay * np.sin(angle) ** (2 * order)).mean(-1)
        return found

    far = 2 * BOUND / (place + 1)
    found = []
    for values in (over_power(BOUND / 2 * (place + 1)), over_power(far) * far ** (order + 0.5)):
        factors = waves @ values * (2 / TERMS)
        factors[0] /= 2
        sizes = np.abs(factors) / np.abs(factors).max()
        needed = np.flatnonzero(sizes > 2.0 ** -(dtypes.finfo(dtype)[1] + 3))
        found.append(tuple(map(float, factors[:needed[-1] + 1])))
    return found[0], found[1]


def _chebyshev(x: UOp, factors: Sequence[float]) -> UOp:
    """Clenshaw's sum of factors times Chebyshev polynomials."""
    twice = x + x
    this, before = twice * 0 + factors[-1], twice * 0
    for factor in reversed(factors[1:-1]):
        this, before = twice * this - before + factor, this
    return x * this - before + factors[0]


def _scaled(order: int) -> Callable[[UOp], UOp]:
    """e^-|x| I(x)."""
    def node(x: UOp) -> UOp:
        near, far = _series(order, x.dtype)
        sign, size = sign_and_magnitude(x)
        is_near = size < BOUND
        small, large = is_near.where(size, BOUND), is_near.where(BOUND, size)
        below = _chebyshev(small * (2 / BOUND) - 1, near)
        above = _chebyshev(2 * BOUND / large - 1, far) / large.sqrt()
        value = is_near.where(below * small, above) * sign if order else is_near.where(below, above)
        return value.with_gradient((x,), _gradient_of_scaled_0 if order == 0 else _gradient_of_scaled_1)
    return node


def _gradient_of_scaled_0(g: UOp, node: UOp) -> tuple[UOp]:
    x = node.src[1]
    return (g * (_scaled(1)(x) - sign_and_magnitude(x)[0] * _scaled(0)(x)),)


def _gradient_of_scaled_1(g: UOp, node: UOp) -> tuple[UOp]:
    x = node.src[1]
    at_zero = x.eq(0)
    over = at_zero.where(0.5, _scaled(1)(x) / at_zero.where(1, x))
    return (g * (_scaled(0)(x) - over - sign_and_magnitude(x)[0] * _scaled(1)(x)),)


def i0e(self: Tensor) -> Tensor:
    """e^-|x| `i0`, which does not overflow."""
    return real(self, _scaled(0))


def i1e(self: Tensor) -> Tensor:
    """e^-|x| `i1`, which does not overflow."""
    return real(self, _scaled(1))


def i0(self: Tensor) -> Tensor:
    """Bessel's modified function of the first kind, order 0.

    >>> Tensor([0.0, 1.0]).i0().numpy().round(4).tolist()
    [1.0, 1.2661000490188599]
    """
    return as_real(self).abs().exp() * i0e(self)


def i1(self: Tensor) -> Tensor:
    """Bessel's modified function of the first kind, order 1: the derivative of `i0`."""
    return as_real(self).abs().exp() * i1e(self)
