"""Item by item: the error function, its complement, and what the normal distribution makes of them.

With z = |x|, erf is a polynomial where z is small. Elsewhere all are made of the complement, e^(-z^2) times a
function that hardly changes: a product, so that small results have as many digits as large ones. Its argument
is not rounded on the way into the exponential, which would make a rounding error z^2 times as large. The
derivatives are closed forms, not those of the polynomials.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.elementwise import real
from tinygrad.functional.mathematics import log_node, magnitude_of, sign_and_magnitude
from tinygrad.functional.polynomials import ERF, ERF_IS_ONE, ERFCX, ERFCX_LOW, polynomial
from tinygrad.graph.elementary import exponential, log1p_node
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _gaussian(x: UOp, factor: float) -> UOp:
    """e^(-factor x^2) for a power of two `factor`, with what the rounded square lost made good. That is a
    constant to gradients: as a function of real numbers, it is zero."""
    square = x * x
    constant = x.detach()
    lost = constant.mulacc(constant, -(constant * constant))
    power = exponential(square * -factor)
    return power.mulacc(lost * -factor, power)


class _Complement(NamedTuple):
    """erfc(z) = decay * flat, where z is not `near` zero."""

    z: UOp
    near: UOp
    decay: UOp
    flat: UOp


def _complement(magnitude: UOp, factor: float, limit_of_near: float = ERFCX_LOW) -> _Complement:
    """Of z = sqrt(factor) `magnitude`, at most where erfc rounds to 0."""
    return _complement_of(_bounded(magnitude, factor), factor, limit_of_near)


def _complement_of(bounded: UOp, factor: float, limit_of_near: float = ERFCX_LOW) -> _Complement:
    """Of z = sqrt(factor) `bounded`, which is no larger than where erfc rounds to 0."""
    shift, limit, coefficients = ERFCX[bounded.dtype]
    z = bounded * math.sqrt(factor)
    inverse = 1 / (z + shift)
    low, high = 1 / (limit + shift), 1 / (ERFCX_LOW + shift)
    position = inverse.mulacc(2 / (high - low), -(high + low) / (high - low))
    flat = polynomial(position, coefficients) * inverse
    return _Complement(z, z < limit_of_near, _gaussian(bounded, factor), flat)


def _bounded(magnitude: UOp, factor: float) -> UOp:
    """At most where erfc(sqrt(factor) `magnitude`) is 0; NaN stays."""
    largest = ERFCX[magnitude.dtype][1] / math.sqrt(factor)
    return (magnitude > largest).where(largest, magnitude)


def _erf_near_zero(z: UOp) -> UOp:
    """erf of |z| <= 1."""
    return z.mulacc(polynomial(z * z, ERF[z.dtype]), z)


def erf_node(x: UOp) -> UOp:
    sign, magnitude = sign_and_magnitude(x)
    largest = ERF_IS_ONE[x.dtype]  # not where e^(-z^2) is as small as a processor is slow with
    tail = _complement_of((magnitude > largest).where(largest, magnitude), 1, limit_of_near=1)
    small = _erf_near_zero(tail.near.where(tail.z, 0))
    value = tail.near.where(small, 1 - tail.decay * tail.flat) * sign
    return value.with_gradient((x,), _gradient_of_erf)


def _gradient_of_erf(g: UOp, node: UOp) -> tuple[UOp]:
    return (g * _slope_of_erf(node.src[1]),)


def _slope_of_erf(x: UOp) -> UOp:
    return _gaussian(_bounded(magnitude_of(x), 1), 1) * (2 / math.sqrt(math.pi))


def erfc_node(x: UOp) -> UOp:
    tail = _complement(magnitude_of(x), 1, limit_of_near=1)
    far = tail.decay * tail.flat
    small = 1 - _erf_near_zero(tail.near.where(x, 0))
    value = tail.near.where(small, (x < 0).where(2 - far, far))
    return value.with_gradient((x,), _gradient_of_erfc)


def _gradient_of_erfc(g: UOp, node: UOp) -> tuple[UOp]:
    return (-g * _slope_of_erf(node.src[1]),)


def normal_probability(x: UOp) -> UOp:
    """The normal distribution's cumulative probability at x: erfc(-x / sqrt(2)) / 2."""
    tail = _complement(magnitude_of(x), 0.5)
    far = tail.decay * (tail.flat * 0.5)
    value = tail.near.where(_probability_near_zero(x, tail), (x < 0).where(far, 1 - far))
    return value.with_gradient((x,), _gradient_of_probability)


def _probability_near_zero(x: UOp, tail: _Complement) -> UOp:
    return _erf_near_zero(tail.near.where(x * math.sqrt(0.5), 0)) * 0.5 + 0.5


def _gradient_of_probability(g: UOp, node: UOp) -> tuple[UOp]:
    return (g * _normal_density(node.src[1]),)


def _normal_density(x: UOp) -> UOp:
    return _gaussian(_bounded(magnitude_of(x), 0.5), 0.5) * (1 / math.sqrt(2 * math.pi))


def erfcx_node(x: UOp) -> UOp:
    """e^(x^2) erfc(x): the flat part of the complement; beyond where erfc rounds to 0 its asymptotic series
    (Abramowitz and Stegun, 7.1.23), below zero the rest of 2 e^(x^2)."""
    size = magnitude_of(x)
    tail = _complement(size, 1)
    limit = ERFCX[x.dtype][1]
    is_far = size > limit
    inverse = 1 / is_far.where(size, limit)
    series = polynomial(inverse * inverse * -0.5, (1, 1, 3, 15, 105, 945, 10395)) * inverse
    flat = is_far.where(series * (1 / math.sqrt(math.pi)), tail.flat)
    is_infinite = size > math.sqrt((2 ** (dtypes.finfo(x.dtype)[0] - 1) - 1) * math.log(2))
    grown = _gaussian(is_infinite.where(0, x), -1)
    small = tail.near.where(grown, 1) * (1 - _erf_near_zero(tail.near.where(x, 0)))
    below = is_infinite.where(math.inf, 2 * grown - flat)
    value = tail.near.where(small, (x < 0).where(below, flat))
    return value.with_gradient((x,), _gradient_of_erfcx)


def _gradient_of_erfcx(g: UOp, node: UOp) -> tuple[UOp]:
    return (g * (2 * node.src[1] * node - 2 / math.sqrt(math.pi)),)


def log_normal_probability(x: UOp) -> UOp:
    """The logarithm of `normal_probability`."""
    size = magnitude_of(x)
    above = log1p_node(-normal_probability(-size))
    below = log_node(erfcx_node(size * math.sqrt(0.5)) * 0.5) - size * size * 0.5
    return (x < 0).where(below, above).with_gradient((x,), _gradient_of_log_probability)


def _gradient_of_log_probability(g: UOp, node: UOp) -> tuple[UOp]:
    """The density over the probability."""
    x = node.src[1]
    below = math.sqrt(2 / math.pi) / erfcx_node(magnitude_of(x) * math.sqrt(0.5))
    return (g * (x < 0).where(below, _normal_density(x) / normal_probability((x < 0).where(0, x))),)


def gelu_node(x: UOp) -> UOp:
    """x `normal_probability(x)`."""
    bounded = _bounded(magnitude_of(x), 0.5)
    tail = _complement_of(bounded, 0.5)
    far = tail.decay * (tail.flat * (bounded * 0.5))
    value = tail.near.where(x * _probability_near_zero(x, tail), (x < 0).where(-far, x - far))
    return value.with_gradient((x,), _gradient_of_gelu)


def _gradient_of_gelu(g: UOp, node: UOp) -> tuple[UOp]:
    _, x = node.src
    largest = _bounded(magnitude_of(x), 0.5)
    bounded = (x < 0).where(-largest, largest)
    return (g * (normal_probability(x) + bounded * _normal_density(x)),)


def erf(self: Tensor) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x.

    >>> Tensor([0.0, 10.0, -10.0]).erf().tolist()
    [0.0, 1.0, -1.0]
    """
    return real(self, erf_node)


def erfc(self: Tensor) -> Tensor:
    """1 - erf(x), with all its digits where that is small. Within 6 ulp: above 1, the roundings of
    e^(-x^2), of a polynomial and of their quotient add up.

    >>> Tensor([0.0, 30.0, -10.0]).erfc().tolist()
    [1.0, 0.0, 2.0]
    """
    return real(self, erfc_node)


CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
          -0.00417768164, 0.246640727, 1.50140941)
TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682)
"""erfinv(x) / x to 23 bits: polynomials of w - 2.5 below w = 5, of sqrt(w) - 3 above, where w is
-log(1 - x ** 2) (Giles, "Approximating the erfinv function", 2010)."""


def erfinv(self: Tensor) -> Tensor:
    """The number of which self is `erf`: infinite at 1, NaN beyond. Three steps of Newton's after Giles's
    approximation.

    >>> Tensor([0.0, 1.0]).erfinv().tolist()
    [0.0, inf]
    """
    x = self if self.dtype.is_float else self.cast(dtypes.default_float)
    wide = x.cast(promote(x.dtype, dtypes.float32))
    size = wide.detach().abs()
    inner = (size == 1).where(0, size)
    w = -((1 - inner) * (1 + inner)).log()
    is_tail = w >= 5
    first, *others = zip(CENTRE, TAIL, strict=True)
    of = is_tail.where(is_tail.where(w, 9).sqrt() - 3, w - 2.5)
    ratio = is_tail.where(first[1], first[0])
    for centre, tail in others:
        ratio = ratio * of + is_tail.where(tail, centre)
    found = (w < 16).where(ratio * inner, (w < 16).where(1, w).sqrt() - 0.15)  # as far as Giles's goes
    for _ in range(3):
        near = found
        # beyond a half, what is left to 1 has the digits, and its logarithm is nearly straight
        rest = near.erfc()
        excess = (inner > 0.5).where(rest * ((1 - inner).log() - rest.log()), near.erf() - inner)
        found = near - excess * (near * near).exp() * (math.sqrt(math.pi) / 2)
    signed = (size == 1).where(math.inf, found).copysign(wide.detach()).uop
    return type(x).of(signed.with_gradient((wide.uop,), _gradient_of_erfinv), x).cast(x.dtype)


def _gradient_of_erfinv(g: UOp, node: UOp) -> tuple[UOp]:
    return (g * exponential(node * node) * (math.sqrt(math.pi) / 2),)
