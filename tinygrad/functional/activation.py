"""Item by item: the activation functions of neural networks.

Those with exponentials take them of -|x|, which neither overflows nor makes gradients NaN.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinygrad.dtype import DType, dtypes
from tinygrad.functional.elementwise import real, unary
from tinygrad.functional.error_function import gelu_node
from tinygrad.functional.mathematics import expm1_node, magnitude_of
from tinygrad.graph.elementary import exponential, log1p_node
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def relu(self: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0. NaN stays NaN.

    >>> Tensor([-1.0, 2.0]).relu().tolist()
    [0.0, 2.0]
    """
    # One comparison that holds for all x <= 0, zero included, and not for NaN: below the smallest positive
    # number.
    if not self.dtype.is_float:
        return unary(self, lambda x: (x > 0).where(x, 0))
    return unary(self, lambda x: (x < _smallest_positive(x.dtype)).where(0, x))


def _smallest_positive(dtype: DType) -> float:
    """The smallest positive (denormal) number of a float type."""
    exponent_bits, mantissa_bits = dtypes.finfo(dtype)
    return math.ldexp(1.0, 2 - 2 ** (exponent_bits - 1) - mantissa_bits)


def sigmoid_node(x: UOp) -> UOp:
    """1 / (1 + e^-x); from e^-|x|, which does not overflow."""
    decay = exponential((x < 0).where(x, -x))
    return (x < 0).where(decay, 1) / (decay + 1)


def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + e^-x), within 2.5 ulp: the roundings of e^-|x|, of the sum and of the quotient add up.

    >>> Tensor([0.0, 100.0, -1000.0]).sigmoid().tolist()
    [0.5, 1.0, 0.0]
    """
    return real(self, sigmoid_node)


SMALL_SIGMOID = {dtypes.float32: -80.0, dtypes.float64: -700.0}
"""Below, e^x comes near the denormal numbers, which have fewer digits: e^(x + 64) takes its place until it
has been multiplied by x."""


def _decay_and_scale(x: UOp) -> tuple[UOp, UOp]:
    """e^-|x| in two factors, the first of which is no denormal number."""
    small = x < SMALL_SIGMOID[x.dtype]
    decay = exponential((x < 0).where(x, -x) + small.where(x._operand(64), 0))
    return decay, small.where(x._operand(math.exp(-64)), 1)


def silu_node(x: UOp) -> UOp:
    decay, scale = _decay_and_scale(x)
    weight = (x < 0).where(decay, 1) / (decay * scale + 1)
    return x * weight * scale


def silu(self: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish. Within 4 ulp: the roundings of e^-|x|, of the sum, of the quotient
    and of two products add up.

    >>> Tensor([0.0, 100.0]).silu().tolist()
    [0.0, 100.0]
    """
    return real(self, silu_node)


def gelu(self: Tensor, approximate: str = "tanh") -> Tensor:
    """x times the normal distribution's cumulative probability at x; "none" takes erf, "tanh" its
    approximation.

    https://arxiv.org/abs/1606.08415. The approximation 0.5 x (1 + tanh u) is written x sigmoid(2 u). "none"
    is within 6 ulp: the roundings of e^(-x^2 / 2), of a polynomial and of their product add up. "tanh" is
    within 3 + 2 |2 u| for x < 0, where a rounding error of 2 u makes one |2 u| times as large in e^(2 u).
    """
    if approximate == "none":
        return real(self, gelu_node)
    if approximate != "tanh":
        raise ValueError(f"gelu takes approximate 'tanh' or 'none', got {approximate!r}")
    scale = 2 * math.sqrt(2 / math.pi)
    return real(self, lambda x: x * sigmoid_node(x * (x * x * (0.044715 * scale) + scale)))


def quick_gelu(self: Tensor) -> Tensor:
    """x * sigmoid(1.702 x). Within 4 + 1.5 |1.702 x| ulp for x < 0, by the rounding of 1.702 and that of
    1.702 x."""
    return real(self, lambda x: x * sigmoid_node(x * 1.702))


def softplus_node(x: UOp, beta: float = 1.0) -> UOp:
    rest = log1p_node(exponential(-magnitude_of(x * beta)))
    return (x * beta < 0).where(0, x) + (rest if beta == 1 else rest / beta)


def softplus(self: Tensor, beta: float = 1.0) -> Tensor:
    """log(1 + e^(beta x)) / beta, without overflow. Where beta is no power of 2, within 4 + |beta x| ulp for
    beta x < 0, by the rounding of beta x.

    >>> Tensor([-1000.0, 1000.0]).softplus().tolist()
    [0.0, 1000.0]
    """
    return real(self, lambda x: softplus_node(x, beta))


def logsigmoid(self: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return real(self, lambda x: -softplus_node(-x))


def mish(self: Tensor) -> Tensor:
    """x * tanh(softplus(x)), as the quotient that this is of powers of e^-|x|. Within 5 ulp: the roundings of
    e^-|x|, of the two sums and of the quotient and its products add up.

    https://arxiv.org/abs/1908.08681. With p = e^x, tanh(log(1 + p)) = (p^2 + 2 p) / (p^2 + 2 p + 2).
    """
    def node(x: UOp) -> UOp:
        decay, scale = _decay_and_scale(x)
        negative = x < 0
        numerator = negative.where(decay * (decay * scale + 2), decay * 2 + 1)
        rest = negative.where(2, decay * decay * 2)
        return x * (numerator / (numerator * scale + rest)) * scale

    return real(self, node)


def elu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (e^x - 1) below."""
    return celu_like(self, alpha, 1.0, 1.0)


def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (e^(x / alpha) - 1) below."""
    return celu_like(self, alpha, alpha, 1.0)


def selu(self: Tensor, alpha: float = 1.67326, gamma: float = 1.0507) -> Tensor:
    """gamma times elu(x, alpha). Within 2.2 ulp below 0: e^x - 1, the factor and the product are rounded."""
    return celu_like(self, alpha, 1.0, gamma)


def celu_like(self: Tensor, alpha: float, width: float, gamma: float) -> Tensor:
    """gamma x above 0, gamma alpha (e^(x / width) - 1) below."""
    def node(x: UOp) -> UOp:
        below = expm1_node((x > 0).where(0, x) / width) * (alpha * gamma)
        return (x > 0).where(x * gamma, below)

    return real(self, node)


def relu6(self: Tensor) -> Tensor:
    """min(max(x, 0), 6).

    >>> Tensor([-1.0, 3.0, 9.0]).relu6().tolist()
    [0.0, 3.0, 6.0]
    """
    return hardtanh(self, 0, 6)


def leaky_relu(self: Tensor, neg_slope: float = 0.01) -> Tensor:
    """x above 0, neg_slope * x below.

    >>> Tensor([-2.0, 3.0]).leaky_relu(0.25).tolist()
    [-0.5, 3.0]
    """
    return real(self, lambda x: (x > 0).where(x, x * neg_slope))


def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """x kept within [min_val, max_val]; the gradient at the ends is 0, which of `clip` is 1.

    >>> Tensor([-2.0, 0.5, 2.0]).hardtanh().tolist()
    [-1.0, 0.5, 1.0]
    """
    return unary(self, lambda x: _between(x, min_val, max_val)) if self.dtype.is_float else \
        self.clip(min_val, max_val)


def _between(x: UOp, low: float, high: float) -> UOp:
    """x kept within [low, high], with gradient 0 at the ends; NaN stays NaN."""
    is_low, is_high = (x < low) | x.eq(low), (x > high) | x.eq(high)
    return is_low.where(low, is_high.where(high, x))


def hardsigmoid(self: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    """alpha * x + beta, kept within [0, 1].

    Computed as alpha (x + beta / alpha), which loses nothing where the line meets zero.
    """
    def node(x: UOp) -> UOp:
        return _between((x + beta / alpha) * alpha if alpha else x * alpha + beta, 0, 1)

    return real(self, node)


def hardswish(self: Tensor) -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return real(self, lambda x: x * (_between(x + 3, 0, 6) / 6))


def softsign(self: Tensor) -> Tensor:
    """x / (1 + |x|).

    >>> Tensor([-3.0, 1.0]).softsign().tolist()
    [-0.75, 0.5]
    """
    return real(self, lambda x: x / (x.maximum(-x) + 1))
