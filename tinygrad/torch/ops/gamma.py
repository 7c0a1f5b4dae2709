"""The gamma function's logarithm and its derivatives, and the inverse of the error function."""
from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, operator

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
             -174611 / 330, 854513 / 138, -236364091 / 2730)
"""Bernoulli's numbers of even places, from the second on."""
SHIFT = 10
"""From where on the asymptotic series of the derivatives is as exact as float64."""

enter_all({"lgamma": Tensor.lgamma, "digamma": Tensor.digamma, "erfinv": Tensor.erfinv})


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


@operator("polygamma")
def polygamma(n: int, x: Tensor) -> Tensor:
    """The derivative of `digamma`, n times."""
    return x.digamma() if n == 0 else derivative(n, x.cast(dtypes.float64))


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
