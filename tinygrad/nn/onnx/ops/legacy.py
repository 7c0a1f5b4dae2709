"""Operators as they were before version 7 of the standard: shapes were matched by attributes."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tinygrad.nn.onnx.ops.elementwise import divided
from tinygrad.nn.onnx.registry import op, ops
from tinygrad.tensor import Tensor


def _along(A: Tensor, B: Tensor, broadcast: int, axis: int | None) -> Tensor:
    """`B` with axes of size 1 behind it, so that its first one meets `axis` of `A`."""
    if not broadcast or axis is None:
        return B
    return B.reshape(*B.shape, *(1,) * (A.ndim - axis % A.ndim - B.ndim))


def _matched(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def matched(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0,
                consumed_inputs: Any = None) -> Any:
        return function(A, _along(A, B, broadcast, axis))
    return matched


ops(
    Add=_matched(operator.add), Sub=_matched(operator.sub), Mul=_matched(operator.mul), Div=_matched(divided),
    Pow=_matched(Tensor.pow), Equal=_matched(operator.eq), Less=_matched(operator.lt),
    Greater=_matched(operator.gt), And=_matched(operator.and_), Or=_matched(operator.or_),
    Xor=_matched(operator.xor),
)


@op
def PRelu(X: Tensor, slope: Tensor, *, consumed_inputs: Any = None) -> Tensor:
    """One slope for all, or one a channel."""
    return (X < 0).where(X * (slope if slope.numel() == 1 else slope.reshape(-1, *(1,) * (X.ndim - 2))), X)


@op
def Gemm(A: Tensor, B: Tensor, C: Tensor, *, alpha: float = 1.0, beta: float = 1.0, broadcast: int = 0,
         transA: int = 0, transB: int = 0) -> Tensor:
    return (A.transpose() if transA else A) @ (B.transpose() if transB else B) * alpha + C * beta


@op
def BatchNormalization(X: Tensor, scale: Tensor, B: Tensor, mean: Tensor, var: Tensor, *,
                       consumed_inputs: Any = None,
                       epsilon: float = 1e-5, is_test: int = 0, momentum: float = 0.9,
                       spatial: int = 1) -> Tensor:
    if not is_test:
        raise NotImplementedError("BatchNormalization while training, before version 7")
    return X.batchnorm(scale, B, mean, (var + epsilon).rsqrt())
