"""Random numbers. A `seed` asks for numbers of one implementation, which no other has: it is not followed."""
from __future__ import annotations

from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import element_type, tensor_type
from tinygrad.tensor import Tensor


def _kind(dtype: int | None, otherwise: DType) -> DType:
    return otherwise if dtype is None else tensor_type(element_type(dtype))


def _uniform(shape: Any, low: float, high: float, kind: DType, device: Any = None) -> Tensor:
    return (Tensor.rand(*shape, device=device, requires_grad=False) * (high - low) + low).cast(kind)


def _normal(shape: Any, mean: float, scale: float, kind: DType, device: Any = None) -> Tensor:
    return (Tensor.randn(*shape, device=device, requires_grad=False) * scale + mean).cast(kind)


@op(random=True)
def RandomUniform(*, shape: Any, dtype: int = 1, high: float = 1.0, low: float = 0.0,
                  seed: float | None = None) -> Tensor:
    return _uniform(shape, low, high, _kind(dtype, dtypes.float32))


@op(random=True)
def RandomUniformLike(input: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0,
                      seed: float | None = None) -> Tensor:
    return _uniform(input.shape, low, high, _kind(dtype, input.dtype), input.device)


@op(random=True)
def RandomNormal(*, shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0,
                 seed: float | None = None) -> Tensor:
    return _normal(shape, mean, scale, _kind(dtype, dtypes.float32))


@op(random=True)
def RandomNormalLike(input: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
                     seed: float | None = None) -> Tensor:
    return _normal(input.shape, mean, scale, _kind(dtype, input.dtype), input.device)


@op(random=True)
def Bernoulli(input: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    draws = Tensor.rand(*input.shape, device=input.device, requires_grad=False)
    return (draws < input).cast(_kind(dtype, input.dtype))


@op(random=True)
def Multinomial(input: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    """Class numbers, drawn by unnormalised log-probabilities (batch, classes)."""
    drawn = input.cast(dtypes.float32).softmax(-1).multinomial(sample_size, replacement=True)
    return drawn.cast(_kind(dtype, dtypes.int32))
