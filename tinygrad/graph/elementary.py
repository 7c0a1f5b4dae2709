"""exp, log1p and cosine in the tensor graph's primitives, in a form by which the compiler knows them.

EXP2, LOG2 and SIN take their argument rounded. That of x log2(e) is off by up to half a unit of its last
place, which the power makes |x| log2(e) / 2 units; 1 + x and x + pi/2 are no better. So the argument is
written as no other code writes it, and `codegen/transcendental.py` computes the function of x itself. To
every other reader of the graph (gradients) the form means what it says.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

LOG2_E: dict[DType, tuple[float, float]] = {
    dtypes.float32: (1.44269502162933349609375, 1.92596299112661746810018921374e-08),
    dtypes.float64: (1.442695040888963407359924681, 2.0355273740931032980408127082e-17),
}
"""log2(e) in two parts: the nearest number of the type, and what is left."""


def exponential(x: UOp) -> UOp:
    """e^x for float32 or float64, as 2^(x log2 e) with log2(e) in two parts.

    The second part is a constant to gradients: as a function of real numbers, its share is in the first.
    """
    return _exponent(x, x.detach()).exp2()


def argument_of_exponential(exponent: UOp) -> UOp | None:
    """x, where EXP2 of `exponent` is `exponential(x)` in a loop nest (which has no DETACH)."""
    return _argument(exponent, lambda x: _exponent(x, x))


def _argument(node: UOp, form: Callable[[UOp], UOp]) -> UOp | None:
    """x, where `node` is the `form` of it."""
    if node.op is not Ops.MULACC or node.dtype.scalar not in LOG2_E:
        return None
    x = node.src[0]
    return x if node is form(x) else None


def _exponent(x: UOp, constant: UOp) -> UOp:
    high, low = LOG2_E[x.dtype.scalar]
    return x.mulacc(high, constant.mulacc(low, 0.0))


def log1p_node(x: UOp) -> UOp:
    """log(1 + x), as log2(1.0 x + 1.0) ln(2). -0.0 gives 0.0."""
    return _plus_one(x).log2() * math.log(2)


def argument_of_log1p(number: UOp) -> UOp | None:
    """x, where LOG2 of `number` is in `log1p_node(x)`."""
    return _argument(number, _plus_one)


def _plus_one(x: UOp) -> UOp:
    return x.mulacc(1.0, 1.0)


def cosine(x: UOp) -> UOp:
    """The cosine, as the sine of 1.0 x + pi/2; half types in float32."""
    if x.dtype.scalar not in LOG2_E:
        return cosine(x.cast(dtypes.float32)).cast(x.dtype)
    return _quarter_turn_ahead(x).sin()


def argument_of_cosine(angle: UOp) -> UOp | None:
    """x, where SIN of `angle` is `cosine(x)`."""
    return _argument(angle, _quarter_turn_ahead)


def _quarter_turn_ahead(x: UOp) -> UOp:
    return x.mulacc(1.0, math.pi / 2)


def derivative_of_sine(angle: UOp) -> UOp:
    """cos(angle), which is -sin(x) where the sine itself is the cosine of x."""
    x = argument_of_cosine(angle)
    return cosine(angle) if x is None else -x.sin()
