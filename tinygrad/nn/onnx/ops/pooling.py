"""Pooling: what is largest, the mean or a norm of each window, and the inverse of the first."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

from tinygrad.dtype import dtypes
from tinygrad.functional.pooling import PoolGeometry, largest_of_windows, mean_of_windows
from tinygrad.nn.onnx.ops.convolution import WindowAttributes, Windows, spatial
from tinygrad.nn.onnx.registry import Ints, op, ops
from tinygrad.tensor import Tensor


def _geometry(X: Tensor, kernel: Sequence[int], ceil_mode: int, windows: WindowAttributes) -> PoolGeometry:
    strides, dilations, pads = Windows.over(X, kernel, **windows)
    return PoolGeometry.of(X, tuple(kernel), strides, dilations, pads, bool(ceil_mode))


@op
def AveragePool(X: Tensor, *, kernel_shape: Any, ceil_mode: int = 0, count_include_pad: int = 0,
                **windows: Unpack[WindowAttributes]) -> Tensor:
    wide = X.cast(dtypes.float32) if X.dtype.itemsize < 4 else X
    return mean_of_windows(wide, _geometry(X, kernel_shape, ceil_mode, windows), bool(count_include_pad))


@op
def MaxPool(X: Tensor, *, kernel_shape: Any, ceil_mode: int = 0, storage_order: int = 0, n_outputs: int = 1,
            **windows: Unpack[WindowAttributes]) -> Any:
    """The largest item of each window, and where it is in the flattened input; with `storage_order` 1 counted
    along columns."""
    found = largest_of_windows(X, _geometry(X, kernel_shape, ceil_mode, windows), n_outputs > 1)
    if isinstance(found, Tensor):
        return found
    largest, place = found
    sizes, count = X.shape[2:], math.prod(X.shape[2:])
    if storage_order:
        rest, place = place, place * 0
        for size in reversed(sizes):
            place, rest = place * size + rest % size, rest // size
    planes = Tensor.arange(X.shape[0] * X.shape[1], device=X.device)
    return largest, place + planes.reshape(*X.shape[:2], *(1,) * len(sizes)) * count


@op
def LpPool(X: Tensor, *, kernel_shape: Any, ceil_mode: int = 0, p: int = 2,
           **windows: Unpack[WindowAttributes]) -> Tensor:
    where = _geometry(X, kernel_shape, ceil_mode, windows)
    return where.windows(X).abs().pow(p).sum(where.inner).pow(1 / p)


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
