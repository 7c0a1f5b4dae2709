"""`lgamma`, the logarithm of the gamma function's size, and `digamma`, its derivative.

Both are Stirling's series at x + 8, brought back to x by the recurrences gamma(x + 1) = x gamma(x) and
psi(x + 1) = psi(x) + 1 / x, and below 1/2 the reflection of 1 - x (Abramowitz and Stegun, 6.1.17, 6.1.41,
6.3.7 and 6.3.18). The derivative of `digamma` is the trigamma function, likewise (6.4.6, 6.4.7 and 6.4.12),
and that one's is its formula's.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinygrad.dtype import least_upper_float
from tinygrad.functional.elementwise import widest_float
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

STEPS = 8
"""Steps up to where the series is exact."""
BERNOULLI = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""B_2k / (2k (2k - 1)): factors of 1 / z, 1 / z^3, ... in the series of log gamma."""


def _wide(self: Tensor) -> Tensor:
    """In float64 where the device has it, for the terms cancel near 1 and 2."""
    return self.cast(widest_float(self, self.dtype))


def lgamma(self: Tensor) -> Tensor:
    """log(|gamma(x)|), infinity at 0, -1, -2, ...: log((x - 1)!) of whole numbers.

    >>> round(Tensor(5.0).lgamma().exp().item())
    24
    """
    x = _wide(self)
    is_low = x < 0.5
    up = is_low.where(1 - x, x)
    near = up < 1e3  # beyond, the product of all steps would overflow, and z is large enough as it is
    small, z = near.where(up, 1), near.where(up + STEPS, up)
    product = small
    for step in range(1, STEPS):
        product = product * (small + step)
    inverse = 1 / z
    series = inverse * _polynomial(inverse * inverse, BERNOULLI)
    high = (z - 0.5) * (z.log() - 1) + (0.5 * math.log(2 * math.pi) - 0.5) + series
    high = (z == math.inf).where(z, high) - near.where(product.log(), 0)
    turn = (x - x.round()) * math.pi
    reflected = math.log(math.pi) - is_low.where(turn, 1).sin().abs().log() - high
    found = is_low.where((x == -math.inf).where(math.inf, reflected), high)
    return found.of(found.uop.with_gradient((x.uop,), _gradient_of_lgamma), found).cast(
        least_upper_float(self.dtype))


def _gradient_of_lgamma(g: UOp, node: UOp) -> tuple[UOp]:
    from tinygrad.tensor import Tensor

    return (g * digamma(Tensor.of(node.src[1])).uop,)


def digamma(self: Tensor) -> Tensor:
    """The derivative of `lgamma`; NaN at -1, -2, ..., at zeros infinity of the other sign.

    >>> round(Tensor(1.0).digamma().item(), 4)
    -0.5772
    """
    x = _wide(self)
    is_low = x < 0.5
    up = is_low.where(1 - x, x)
    z, steps = up + STEPS, 1 / up
    for step in range(1, STEPS):
        steps = steps + 1 / (up + step)
    square = 1 / (z * z)
    factors = [-factor * (2 * k + 1) for k, factor in enumerate(BERNOULLI)]
    high = z.log() - 0.5 / z + square * _polynomial(square, factors) - steps
    turn = (x - x.round()) * math.pi
    low = high - math.pi * is_low.where(turn, 1).cos() / is_low.where(turn, 1).sin()
    found = is_low.where((x == 0).where(-1 / x, (turn == 0).where(math.nan, low)), high)
    return found.of(found.uop.with_gradient((x.uop,), _gradient_of_digamma), found).cast(
        least_upper_float(self.dtype))


def _gradient_of_digamma(g: UOp, node: UOp) -> tuple[UOp]:
    from tinygrad.tensor import Tensor

    return (g * trigamma(Tensor.of(node.src[1])).uop,)


def trigamma(x: Tensor) -> Tensor:
    """The derivative of `digamma`, infinity at 0, -1, -2, ..."""
    is_low = x < 0.5
    up = is_low.where(1 - x, x)
    inverse = 1 / (up + STEPS)
    factors = [factor * (2 * k + 1) * (2 * k + 2) for k, factor in enumerate(BERNOULLI)]
    high = inverse * (1 + inverse * (0.5 + inverse * _polynomial(inverse * inverse, factors)))
    for step in range(STEPS):
        high = high + (1 / (up + step)).square()
    sine = is_low.where((x - x.round()) * math.pi, 1).sin()
    return is_low.where((math.pi / sine).square() - high, high)


def _polynomial(x: Tensor, factors: tuple[float, ...] | list[float]) -> Tensor:
    found = x * factors[-1] + factors[-2]
    for factor in reversed(factors[:-2]):
        found = found * x + factor
    return found
