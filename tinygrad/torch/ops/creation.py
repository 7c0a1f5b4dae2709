"""Tensors from nothing: constants, ranges, and random numbers."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.sizes import Size, is_symbolic, largest_shape
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, operator

Number = int | float | bool


def full(size: Sequence[int], value: Any, dtype: DType | None = None, **options: Any) -> Tensor:
    if isinstance(value, (Size, Tensor)):
        kind = dtype or dtypes.int64
        return Tensor.ones(*size, dtype=kind, device="CPU") * value
    return Tensor.full(tuple(size), value, dtype=dtype, device="CPU")


def full_like(x: Tensor, value: Any, dtype: DType | None = None, **options: Any) -> Tensor:
    return full(x.shape, value, dtype or x.dtype)


def arange(start: Number, end: Number, step: Number = 1, dtype: DType | None = None,
           **options: Any) -> Tensor:
    if dtype is not None and not dtype.is_float and any(isinstance(n, float) for n in (start, end, step)):
        count = max(0, math.ceil((end - start) / step))  # as many as of floats; each is cast to the dtype
        steps = Tensor.arange(count, dtype=dtypes.int64, device="CPU")
        return (int(start) + steps * int(step)).cast(dtype)
    if any(isinstance(n, Size) for n in (start, end)):
        dtype = dtype or dtypes.int64
    elif dtype is not None and dtype.is_int and min(start, end) < dtype.min:
        return Tensor.arange(start, end, step, dtype=dtypes.int64, device="CPU").cast(dtype)  # wraps
    return Tensor.arange(start, end, step, dtype=dtype, device="CPU")


enter_all({
    "full": full, "full_like": full_like,
    "fill.Scalar": full_like,
    "zeros": lambda size, **options: full(size, 0, **options),
    "ones": lambda size, **options: full(size, 1, **options),
    "zeros_like": lambda x, **options: full_like(x, 0, **options),
    "ones_like": lambda x, **options: full_like(x, 1, **options),
    "empty.memory_format": lambda size, **options: full(size, 0, **options),
    "empty_like": lambda x, **options: full_like(x, 0, **options),
    "empty_strided": lambda size, stride, **options: full(size, 0, **options),
    "empty_permuted": lambda size, order, **options: full(size, 0, **options),
    "scalar_tensor": lambda value, **options: full((), value, **options),
    "arange.start_step": arange,
    "arange.start": arange,
    "arange": lambda end, **options: arange(0, end, **options),
})


def drawn(draw: Callable[..., Tensor], size: Sequence[int], dtype: DType | None, **options: Any) -> Tensor:
    """Random numbers of a shape. Where its sizes vary, they are drawn for the bounds, and the first taken."""
    whole = draw(*largest_shape(size), dtype=dtype or dtypes.float32, device="CPU", **options)
    return whole.shrink([(0, n) for n in size]) if is_symbolic(size) else whole


def rand(size: Sequence[int], dtype: DType | None = None, **options: Any) -> Tensor:
    return drawn(Tensor.rand, size, dtype)


def randn(size: Sequence[int], dtype: DType | None = None, **options: Any) -> Tensor:
    return drawn(Tensor.randn, size, dtype)


def randint(low: int, high: int, size: Sequence[int], dtype: DType | None = None, **options: Any) -> Tensor:
    numbers = drawn(Tensor.randint, size, dtypes.int64, low=low, high=high)
    return numbers if dtype is None else numbers.cast(dtype)


def dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """The items that are kept, scaled by 1 / (1 - p), and which they are."""
    if train is False or p == 0:
        return x, Tensor.ones(*x.shape, dtype=dtypes.bool, device="CPU")
    kept = rand(x.shape) >= p
    return kept.where(x * (0.0 if p == 1 else 1 / (1 - p)), 0), kept


enter_all({
    "rand": rand, "randn": randn,
    "rand_like": lambda x, dtype=None, **options: rand(x.shape, dtype or x.dtype),
    "randn_like": lambda x, dtype=None, **options: randn(x.shape, dtype or x.dtype),
    "uniform uniform_functional": lambda x, low=0.0, high=1.0, **options: (
        rand(x.shape) * (high - low) + low).cast(x.dtype),
    "normal_functional": lambda x, mean=0.0, std=1.0, **options: (randn(x.shape) * std + mean).cast(x.dtype),
    "prims.normal": lambda shape, *, mean, std, dtype, **options: (randn(shape) * std + mean).cast(dtype),
    "normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor": lambda mean, std=1.0, **options: (
        randn((mean * 0 + std * 0).shape) * std + mean),
    "randint.low": randint,
    "randint": lambda high, size, dtype=None, **options: randint(0, high, size, dtype),
    "randint_like": lambda x, high, dtype=None, **options: randint(0, high, x.shape, dtype or x.dtype),
    "randint_like.low_dtype": lambda x, low, high, dtype=None, **options: randint(
        low, high, x.shape, dtype or x.dtype),
    "randperm": lambda n, dtype=None, **options: Tensor.randperm(
        n, dtype=dtype or dtypes.int64, device="CPU"),
    "bernoulli": lambda x, **options: (rand(x.shape) < x).cast(x.dtype),
    "bernoulli.p": lambda x, p=0.5, **options: (rand(x.shape) < p).cast(x.dtype),
    "multinomial": lambda x, num_samples, replacement=False, **options: x.multinomial(
        num_samples, replacement),
    "native_dropout": dropout,
}, random=True)


@operator("rrelu_with_noise_functional", random=True)
def random_leaky_relu(x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3,
                      training: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    """Negative items times a slope, drawn for each of them (training) or the mean one; and the slopes."""
    slope = rand(x.shape) * (upper - lower) + lower if training else x.full_like((lower + upper) / 2)
    factor = (x > 0).where(1, slope)
    return x * factor, factor if training else noise
