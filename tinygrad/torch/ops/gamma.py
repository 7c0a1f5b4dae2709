"""The logarithm of the gamma function, its derivatives, and the inverse of the error function. In float64
they are off by few units of the last place; of narrower floats they are computed in that and rounded once."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import operator

LANCZOS = (57.156235665862923517, -59.597960355475491248, 14.136097974741747174, -0.49191381609762019978,
           .33994649984811888699e-4, .46523628927048575665e-4, -.98374475304879564677e-4,
           .15808870322491248884e-3, -.21026444172410488319e-3, .21743961811521264320e-3,
           -.16431810653676389022e-3, .84418223983852743293e-4, -.26190838401581408670e-4,
           .36899182659531622704e-5)
"""Lanczos' series for g = 607/128 (Godfrey, 2001), after its first term."""
G = 607 / 128
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
             -174611 / 330, 854513 / 138, -236364091 / 2730)
"""Bernoulli's numbers of even places, from the second on."""
SHIFT = 10
"""From where on the asymptotic series of the derivatives is as exact as float64."""


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of the widest floats, of whatever others."""
    def computed(*args: Any) -> Tensor:
        result: Tensor = function(*(x.cast(dtypes.float64) if isinstance(x, Tensor) else x for x in args))
        return result
    return computed


def sum_of(terms: list[Tensor]) -> Tensor:
    """The sum, the last terms first: they are the smallest."""
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = total + term
    return total


def polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Its value, of coefficients from that of the highest power on."""
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def beyond_whole(x: Tensor) -> Tensor:
    """By how much `x` is more than a whole number, from -1/2 to 1/2; NaN of what is infinite."""
    return x - x.round()


@operator("lgamma")
@in_float64
def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|: for less than 1/2 by what it is at 1 - x (Euler's reflection)."""
    small = x < 0.5
    y = small.where(1 - x, x)
    series = sum_of([c / (y + i) for i, c in enumerate(LANCZOS, 1)]) + 0.99999999999999709182
    base = y + (G + 0.5)
    value = (y + 0.5) * base.log() - base + (series * math.sqrt(2 * math.pi) / y).log()
    sine = (beyond_whole(x) * math.pi).sin().abs()
    return x.isinf().where(math.inf, small.where((math.pi / sine).log() - value, value))


@operator("digamma")
@in_float64
def digamma(x: Tensor) -> Tensor:
    """The derivative of `lgamma`: at 0 an infinity of the other sign, at negative whole numbers NaN."""
    small = x < 0.5
    y = small.where(1 - x, x)
    large = y + SHIFT
    squared = 1 / (large * large)
    series = polynomial(squared, tuple(b / (2 * k) for k, b in reversed([*enumerate(BERNOULLI[:7], 1)])))
    value = large.log() - 0.5 / large - series * squared - sum_of([1 / (y + i) for i in range(SHIFT)])
    angle = beyond_whole(x) * math.pi
    reflected = value - math.pi / angle.tan()
    at_zero = (x == 0).where(Tensor.full((), -math.inf, dtype=x.dtype, device="CPU").copysign(-x), reflected)
    return small.where(((x < 0) & (angle == 0)).where(math.nan, at_zero), value)


@operator("polygamma")
def polygamma(n: int, x: Tensor) -> Tensor:
    """The derivative of `digamma`, n times."""
    return digamma(x) if n == 0 else derivative(n, x)


@in_float64
def derivative(n: int, x: Tensor) -> Tensor:
    """`polygamma` for n from 1 on, by Euler and Maclaurin's formula for the sum of (x + i)^-(n + 1)."""
    small = x < 0.5
    y = small.where(1 - x, x)
    large = y + SHIFT
    rest = [(math.factorial(n + 2 * k - 1) * b / math.factorial(2 * k)) * large ** -(n + 2 * k)
            for k, b in enumerate(BERNOULLI, 1)]
    first = [math.factorial(n) * (y + i) ** -(n + 1) for i in range(SHIFT)]
    whole = math.factorial(n - 1) * large ** -n + math.factorial(n) / 2 * large ** -(n + 1)
    value = sum_of([*first, whole, *rest]) * (-1) ** (n + 1)
    cotangent = 1 / (beyond_whole(x) * math.pi).tan()
    return small.where(value * (-1) ** n - polynomial(cotangent, cotangents(n)), value)


def cotangents(n: int) -> tuple[float, ...]:
    """The n-th derivative of pi cot(pi x) as a polynomial of cot(pi x), the highest power first."""
    powers = [0.0, math.pi]  # of cot, the lowest first
    for _ in range(n):
        slopes = [i * c for i, c in enumerate(powers)][1:]
        powers = [-math.pi * (a + b) for a, b in zip([*slopes, 0.0, 0.0], [0.0, 0.0, *slopes])]
    return tuple(reversed(powers))


@operator("erfinv")
@in_float64
def erfinv(y: Tensor) -> Tensor:
    """Where erf is y: Giles' polynomials (2010), for float64's tails erfc(x) = e^(-x^2) / (x sqrt(pi)), then
    three of Halley's steps."""
    w = -((1 - y) * (1 + y)).log()
    near = polynomial(w - 2.5, (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
        -0.00417768164, 0.246640727, 1.50140941))
    far = polynomial(w.sqrt() - 3, (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682))
    most = w + math.log(2)
    tail = (most - (most * math.pi).log() / 2).sqrt()
    x = (w < 5).where(near, (w < 16).where(far, tail)) * y
    for _ in range(3):
        beyond = (x > 1).where((1 - y) - x.erfc(), (x < -1).where((-x).erfc() - (1 + y), x.erf() - y))
        step = beyond * (x * x).exp() * (math.sqrt(math.pi) / 2)
        x = x - step / (1 + x * step)
    return (y.abs() == 1).where(y * math.inf, x)
