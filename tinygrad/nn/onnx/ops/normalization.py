"""Normalisation: over batches, layers, groups, neighbouring channels; and dropout, which has no part in
inference."""
from __future__ import annotations

from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.functional.nn import rmsnorm
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import element_type, tensor_type
from tinygrad.tensor import Tensor


def _widened(x: Tensor, number: int) -> Tensor:
    """`x` in the type that a normalisation computes in: the one of this number, but float64 stays that."""
    return x if x.dtype is dtypes.float64 else x.cast(_stashed(number))


def _stashed(number: int) -> DType:
    return tensor_type(element_type(number))


def _along_channels(x: Tensor, value: Tensor) -> Tensor:
    return value.reshape(1, -1, *(1,) * (x.ndim - 2))


@op
def BatchNormalization_7(X: Tensor, scale: Tensor, B: Tensor, mean: Tensor, var: Tensor, *,
                         epsilon: float = 1e-5,
                       momentum: float = 0.9, spatial: int = 1) -> Tensor:
    if not spatial:
        return (X - mean) * ((var + epsilon).rsqrt() * scale) + B
    return X.batchnorm(scale, B, mean, (var + epsilon).rsqrt())


@op
def BatchNormalization_14(X: Tensor, scale: Tensor, B: Tensor, input_mean: Tensor, input_var: Tensor, *,
                          epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0) -> Any:
    if not training_mode:
        return X.batchnorm(scale, B, input_mean, (input_var + epsilon).rsqrt())
    others = tuple(i for i in range(X.ndim) if i != 1)
    wide = _widened(X, 1)
    mean, var = wide.mean(others), wide.var(others, correction=0)
    running = [(old * momentum + new * (1 - momentum)).cast(old.dtype)
               for old, new in ((input_mean, mean), (input_var, var))]
    return X.batchnorm(scale, B, mean, (var + epsilon).rsqrt()).cast(X.dtype), *running


@op
def InstanceNormalization(input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    normal = input.layernorm(tuple(range(2, input.ndim)), epsilon)
    return normal * _along_channels(input, scale) + _along_channels(input, B)


@op
def LayerNormalization(X: Tensor, Scale: Tensor, B: Tensor | None = None, *, axis: int = -1,
                       epsilon: float = 1e-5, stash_type: int = 1) -> tuple[Tensor, ...]:
    axes, wide = tuple(range(axis % X.ndim, X.ndim)), _widened(X, stash_type)
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    inverse = (centred.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    normal = (centred * inverse).cast(X.dtype) * Scale
    kind = _stashed(stash_type)
    return normal if B is None else normal + B, mean.cast(kind), inverse.cast(kind)


@op
def RMSNormalization(X: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5,
                     stash_type: int = 1) -> Tensor:
    axes, wide = tuple(range(axis % X.ndim, X.ndim)), _widened(X, stash_type)
    return rmsnorm(wide, axes, epsilon).cast(X.dtype) * scale


def _by_groups(X: Tensor, groups: int, epsilon: float) -> Tensor:
    return X.unflatten(1, (groups, -1)).flatten(2).layernorm(-1, epsilon).reshape(*X.shape)


@op
def GroupNormalization_18(X: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int,
                          epsilon: float = 1e-5) -> Tensor:
    """Scale and bias are of groups."""
    each = X.shape[1] // num_groups
    spread = [_along_channels(X, value.repeat_interleave(each)) for value in (scale, bias)]
    return _by_groups(X, num_groups, epsilon) * spread[0] + spread[1]


@op
def GroupNormalization_21(X: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5,
                          stash_type: int = 1) -> Tensor:
    """Scale and bias are of channels."""
    normal = _by_groups(_widened(X, stash_type), num_groups, epsilon).cast(X.dtype)
    return normal * _along_channels(X, scale) + _along_channels(X, bias)


@op
def MeanVarianceNormalization(X: Tensor, *, axes: Any = (0, 2, 3)) -> Tensor:
    centred = X - X.mean(tuple(axes), keepdim=True)
    return centred / (centred.square().mean(tuple(axes), keepdim=True).sqrt() + 1e-9)


@op
def LpNormalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = input.abs().sum(axis, keepdim=True) if p == 1 else input.square().sum(axis, keepdim=True).sqrt()
    return (norm == 0).where(0, input / (norm == 0).where(1, norm))


@op
def LRN(X: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """X / (bias + alpha/size * the squares of `size` neighbouring channels, summed) ^ beta."""
    before = (size - 1) // 2
    squares = X.square().pad([(0, 0), (before, size - 1 - before), *[(0, 0)] * (X.ndim - 2)])
    total = squares.unfold(1, size, 1).sum(-1) * (alpha / size) + bias
    if beta == 0.75:  # every network's: by roots, which are NaN and infinite where the power is
        root = total.rsqrt()
        return X * (root * root.sqrt())
    return X / total.pow(beta)


@op
def Dropout(data: Tensor, *, ratio: float = 0.5, seed: int | None = None) -> tuple[Tensor, ...]:
    return data, Tensor.ones(*data.shape, dtype=dtypes.bool, device=data.device, requires_grad=False)


@op(random=True)
def Dropout_12(data: Tensor, ratio: float | None = None, training_mode: bool | None = None, *,
               seed: int | None = None) -> tuple[Tensor, ...]:
    """`ratio` of the items zero while training, the others scaled; and which of them stay."""
    share = 0.5 if ratio is None else ratio
    if not training_mode or share == 0:
        return data, Tensor.ones(*data.shape, dtype=dtypes.bool, device=data.device, requires_grad=False)
    kept = Tensor.rand(*data.shape, device=data.device, requires_grad=False) >= share
    return kept.where(data / (1 - share), 0), kept


