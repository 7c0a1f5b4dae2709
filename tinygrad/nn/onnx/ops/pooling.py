"""Pooling: what is largest, the mean or a norm of each window, and the inverse of the first."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.functional.windows import sliding_windows
from tinygrad.nn.onnx.ops.convolution import pads_of, spatial
from tinygrad.nn.onnx.registry import Ints, op, ops
from tinygrad.tensor import Tensor


def _windows(X: Tensor, kernel: Sequence[int], strides: Any, dilations: Any, pads: Any, auto_pad: str,
             ceil_mode: int, value: Any) -> tuple[Tensor, list[tuple[int, int]], list[tuple[int, int]]]:
    """(windows (N, C, *outs, *kernel), padding that the model says, padding with what `ceil_mode` adds)."""
    stride, dilation = spatial(X, strides), spatial(X, dilations)
    said = pads_of(X.shape[2:], kernel, stride, dilation, pads, auto_pad)
    enlarged = list(said)
    for i, (n, k, s, d) in enumerate(zip(X.shape[2:], kernel, stride, dilation, strict=True)):
        before, after = said[i]
        room, reach = n + before + after, d * (k - 1) + 1
        if ceil_mode:
            outs = -(-(room - reach) // s) + 1
            if (outs - 1) * s >= n + before:
                outs -= 1  # a window begins in the input or in the padding before it
            enlarged[i] = (before, after + max(0, (outs - 1) * s + reach - room))
    padded = X.pad(((0, 0), (0, 0), *enlarged), value=value)
    return sliding_windows(padded, kernel, stride, dilation), said, enlarged


def _inner(kernel: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(kernel), 0))


@op
def AveragePool(X: Tensor, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0,
                count_include_pad: int = 0, dilations: Any = None, pads: Any = None,
                strides: Any = None) -> Tensor:
    windows, said, enlarged = _windows(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, 0)
    total: Tensor = windows.sum(_inner(kernel_shape), dtype=dtypes.float32)
    counted = said if count_include_pad else [(0, 0)] * len(said)
    if counted == enlarged:
        mean: Tensor = total / math.prod(kernel_shape)
        return mean
    ones = Tensor.ones(1, 1, *X.shape[2:], device=X.device, requires_grad=False)
    ones = ones.pad(((0, 0), (0, 0), *counted), value=1)
    rest = [(b - cb, a - ca) for (b, a), (cb, ca) in zip(enlarged, counted, strict=True)]
    counts = sliding_windows(ones.pad(((0, 0), (0, 0), *rest)), kernel_shape, spatial(X, strides),
                             spatial(X, dilations))
    return total / counts.sum(_inner(kernel_shape))


@op
def MaxPool(X: Tensor, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0,
            dilations: Any = None,
            pads: Any = None, storage_order: int = 0, strides: Any = None, n_outputs: int = 1) -> Any:
    """The largest item of each window, and where it is in the flattened input; with `storage_order` 1 counted
    along columns."""
    windows, _, padding = _windows(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode,
                                   X.dtype.min)
    largest = windows.max(_inner(kernel_shape))
    if n_outputs == 1:
        return largest
    sizes, axes = X.shape[2:], len(kernel_shape)
    count = math.prod(sizes)
    order = tuple(reversed(range(axes))) if storage_order else tuple(range(axes))
    places = Tensor.arange(count, device=X.device).reshape(*(sizes[i] for i in order)).permute(order)
    places = places.reshape(1, 1, *sizes).pad(((0, 0), (0, 0), *padding), value=count)
    windows_of_places = sliding_windows(places, kernel_shape, spatial(X, strides), spatial(X, dilations))
    hit = windows == largest.reshape(*largest.shape, *(1,) * axes)
    # of equal ones the first in row-major order, whatever the places are counted along
    rank = Tensor.arange(math.prod(kernel_shape), device=X.device).reshape(*kernel_shape)
    first = hit.where(rank, math.prod(kernel_shape)).min(_inner(kernel_shape), keepdim=True)
    found = (rank == first).where(windows_of_places, 0).sum(_inner(kernel_shape))
    before = Tensor.arange(X.shape[0] * X.shape[1], device=X.device).reshape(*X.shape[:2],
                                                                             *(1,) * axes) * count
    return largest, found + before


@op
def LpPool(X: Tensor, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0,
           dilations: Any = None,
           p: int = 2, pads: Any = None, strides: Any = None) -> Tensor:
    windows, *_ = _windows(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, 0)
    return windows.abs().pow(p).sum(_inner(kernel_shape)).pow(1 / p)


@op
def MaxUnpool(X: Tensor, I: Tensor, output_shape: Ints | None = None, *, kernel_shape: Any, pads: Any = None,  # noqa: E741
              strides: Any = None) -> Tensor:
    """Each item at its place in the flattened output, zeros elsewhere."""
    stride, padding = spatial(X, strides), pads or (0,) * 2 * len(kernel_shape)
    axes = len(kernel_shape)
    sizes = [(n - 1) * s - padding[i] - padding[i + axes] + k
             for i, (n, s, k) in enumerate(zip(X.shape[2:], stride, kernel_shape, strict=True))]
    zeros = Tensor.zeros(math.prod(X.shape[:2]) * math.prod(sizes), dtype=X.dtype, device=X.device,
                         requires_grad=False)
    made = zeros.scatter(0, I.flatten(), X.flatten()).reshape(*X.shape[:2], *sizes)
    return made if output_shape is None else made.pad_to(*output_shape)


def _behind(X: Tensor) -> tuple[int, ...]:
    return tuple(range(2, X.ndim))


ops(
    GlobalAveragePool=lambda X: X.mean(_behind(X), keepdim=True),
    GlobalMaxPool=lambda X: X.max(_behind(X), keepdim=True),
    GlobalLpPool=lambda X, *, p=2: X.abs().pow(p).sum(_behind(X), keepdim=True).pow(1 / p),
)
