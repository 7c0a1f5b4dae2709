"""Item by item: arithmetic, comparisons, bits, mathematics, activation functions."""
from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op, ops
from tinygrad.nn.onnx.values import Items, Sizes, Value
from tinygrad.tensor import Tensor


def divided(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.dtype.is_float else a.div(b, rounding_mode="trunc")


def _folded(function: Any) -> Any:
    """A function of two tensors as one of any number."""
    return lambda *data_0: functools.reduce(function, data_0)


def _clipped(x: Tensor, low: Any, high: Any) -> Tensor:
    """What is below `low` raised to it, then what is above `high` lowered to that."""
    x = x if low is None else x.maximum(low)
    return x if high is None else x.minimum(high)


def shrunk(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Items nearer to 0 by `bias`, and 0 where they are within `lambd` of it: a limit that half types do not
    round."""
    wide = input.cast(dtypes.float32) if input.dtype.is_float and input.dtype.itemsize < 4 else input
    return (wide < -lambd).where(input + bias, (wide > lambd).where(input - bias, 0))


ops(
    # arithmetic; before version 7 the shapes of operands were matched by attributes
    Add_7=lambda A, B: A + B,
    Sub_7=lambda A, B: A - B,
    Mul_7=lambda A, B: A * B,
    Div_7=divided,
    Neg=lambda X: -X,
    Abs=lambda X: X.abs(),
    Sign=lambda input: input.sign(),
    Reciprocal=lambda X: X.reciprocal(),
    Mod=lambda A, B, *, fmod=0: A.fmod(B) if fmod else A.mod(B),
    Sum=_folded(operator.add),
    Max=_folded(Tensor.maximum),
    Min=_folded(Tensor.minimum),
    Mean=lambda *data_0: functools.reduce(operator.add, data_0) / len(data_0),
    Clip=lambda input, *, min=-math.inf, max=math.inf: _clipped(input, min, max),
    Clip_11=lambda input, min=None, max=None: _clipped(input, min, max),
    # rounding
    Floor=lambda X: X.floor(),
    Ceil=lambda X: X.ceil(),
    Round=lambda X: X.round(),
    # mathematics
    Sqrt=lambda X: X.sqrt(),
    Exp=lambda input: input.exp(),
    Log=lambda input: input.log(),
    Erf=lambda input: input.erf(),
    Sin=lambda input: input.sin(),
    Cos=lambda input: input.cos(),
    Tan=lambda input: input.tan(),
    Asin=lambda input: input.asin(),
    Acos=lambda input: input.acos(),
    Atan=lambda input: input.atan(),
    Sinh=lambda input: input.sinh(),
    Cosh=lambda input: input.cosh(),
    Tanh=lambda input: input.tanh(),
    Asinh=lambda input: input.asinh(),
    Acosh=lambda input: input.acosh(),
    Atanh=lambda input: input.atanh(),
    # comparisons and choices
    Less_7=lambda A, B: A < B,
    LessOrEqual=lambda A, B: A <= B,
    Greater_7=lambda A, B: A > B,
    GreaterOrEqual=lambda A, B: A >= B,
    Not=lambda X: X.logical_not(),
    And_7=lambda A, B: A & B,
    Or_7=lambda A, B: A | B,
    Xor_7=lambda A, B: A ^ B,
    IsNaN=lambda X: X.isnan(),
    IsInf=lambda X, *, detect_negative=1,
    detect_positive=1: X.isinf(bool(detect_positive), bool(detect_negative)),
    # bits
    BitwiseAnd=lambda A, B: A & B,
    BitwiseOr=lambda A, B: A | B,
    BitwiseXor=lambda A, B: A ^ B,
    BitwiseNot=lambda X: ~X,
    BitShift=lambda X, Y, *, direction: X << Y if direction == "LEFT" else X >> Y,
    # activation functions
    Relu=lambda X: X.maximum(0),
    Sigmoid=lambda X: X.sigmoid(),
    HardSigmoid=lambda X, *, alpha=0.2, beta=0.5: (X * alpha + beta).maximum(0).minimum(1),
    HardSwish=lambda X: X * (X * (1 / 6) + 0.5).maximum(0).minimum(1),
    Softplus=lambda X: X.softplus(),
    Softsign=lambda input: input / (1 + input.abs()),
    Elu=lambda X, *, alpha=1.0: X.elu(alpha),
    Celu=lambda X, *, alpha=1.0: X.celu(alpha),
    Selu=lambda X, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: X.selu(alpha, gamma),
    LeakyRelu=lambda X, *, alpha=0.01: X.leaky_relu(alpha),
    PRelu_7=lambda X, slope: (X < 0).where(X * slope, X),
    ThresholdedRelu=lambda X, *, alpha=1.0: (alpha < X).where(X, 0),
    Shrink=shrunk,
    Gelu=lambda X, *, approximate="none": X.gelu(approximate),
    Mish=lambda X: X.mish(),
    Swish=lambda X, *, alpha=1.0: X * (X * alpha).sigmoid(),
    SwiGLU=lambda A, B, *, alpha=1.0: A * (A * alpha).sigmoid() * B,
)


@op
def Equal_7(A: Items, B: Items) -> Any:
    return A == B


@op
def Pow_7(X: Tensor, Y: Value) -> Tensor:
    """X to the power of Y, in the type of X; a float exponent of integers is computed in floats. One that is
    known, as the 2 that exporters write in norms, is products or a root."""
    if isinstance(Y, np.ndarray) and X.dtype.is_float and Y.size == 1 and Y.ndim <= X.ndim:
        return X.pow(Y.item())
    exponent = Y.tensor() if isinstance(Y, Sizes) else Y if isinstance(Y, Tensor) else Tensor(Y, X.device)
    return X.pow(exponent.cast(X.dtype) if X.dtype.is_float else exponent).cast(X.dtype)


@op
def Where_9(condition: Tensor, X: Items, Y: Items) -> Any:
    if isinstance(X, np.ndarray):
        return np.where(condition.numpy(), X, Y)
    return condition.where(X, Y)


@op
def Hardmax(input: Tensor, *, axis: int = 1) -> Tensor:
    return _first_largest(input.flatten(axis % max(input.ndim, 1)), -1).reshape(input.shape)


@op
def Hardmax_13(input: Tensor, *, axis: int = -1) -> Tensor:
    return _first_largest(input, axis)


def _first_largest(x: Tensor, axis: int) -> Tensor:
    if not x.ndim or x.shape[axis] == 0:
        return Tensor.ones(x.shape, device=x.device)
    places = x.argmax(axis, keepdim=True)
    shape = [n if i == axis % x.ndim else 1 for i, n in enumerate(x.shape)]
    return Tensor.arange(x.shape[axis], device=x.device).reshape(*shape) == places


def _flat(function: Any) -> Any:
    """Softmax before version 13: over all axes from `axis` on."""
    def flattened(input: Tensor, *, axis: int = 1) -> Any:
        return function(input.flatten(axis % max(input.ndim, 1)), -1).reshape(input.shape)
    return flattened


ops(Softmax=_flat(Tensor.softmax), LogSoftmax=_flat(Tensor.log_softmax),
    Softmax_13=lambda input, *, axis=-1: input.softmax(axis),
    LogSoftmax_13=lambda input, *, axis=-1: input.log_softmax(axis))
