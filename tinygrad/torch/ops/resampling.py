"""Images at other sizes: adaptive pooling, interpolation, padding from inside, grids, columns of windows."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.functional.pooling import adaptive_average, adaptive_largest
from tinygrad.nn.onnx.ops.vision import GridSample_20
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, gradient_of, gradient_of_linear, gradients_at, operator

Array = np.ndarray[Any, Any]


def taken(x: Tensor, axis: int, places: Tensor) -> Tensor:
    """The items at `places` of an axis, which the axes of `places` replace."""
    return x[(*(slice(None),) * (axis % x.ndim), places)]


# --- adaptive pooling ---------------------------------------------------------------------------------------


def adaptive_average_gradient(axes: int) -> Callable[..., Tensor]:
    def gradient(g: Tensor, x: Tensor) -> Tensor:
        return adaptive_average(x, tuple(g.shape[g.ndim - axes:])).gradient(x, gradient=g)[0]
    return gradient


def constant(numbers: Array) -> Tensor:
    return Tensor(numbers, device="CPU", requires_grad=False)


enter_all({
    "adaptive_avg_pool1d": adaptive_average,
    "_adaptive_avg_pool2d adaptive_avg_pool2d": adaptive_average,
    "_adaptive_avg_pool3d adaptive_avg_pool3d": adaptive_average,
    "_adaptive_avg_pool2d_backward": adaptive_average_gradient(2),
    "_adaptive_avg_pool3d_backward": adaptive_average_gradient(3),
    "adaptive_max_pool2d adaptive_max_pool3d": adaptive_largest,
})

# --- interpolation ----------------------------------------------------------------------------------------


def upsample(mode: str, axes: int, corners: bool) -> Callable[..., Tensor]:
    """The operator with the size of the result and, for each axis, the factor that was asked for or none.

    Places follow from that factor, which may differ from the ratio of the sizes. `corners`: the operator
    takes `align_corners`."""
    def resize(x: Tensor, output_size: Sequence[int], *options: Any) -> Tensor:
        align, scales = (options[0], options[1:]) if corners else (False, options)
        sizes, outs = x.shape[x.ndim - axes:], [int(n) for n in output_size]
        factors = [scale or out / n for scale, out, n in zip((*scales, *(None,) * axes), outs, sizes)]
        return x.interpolate(tuple(outs), mode, bool(align), factors=factors)
    return resize


def by_factors(resize: Callable[..., Tensor], axes: int, corners: bool) -> Callable[..., Tensor]:
    """The overload that is given the size or the factors."""
    def sized(x: Tensor, output_size: Sequence[int] | None, *options: Any) -> Tensor:
        *align, factors = options
        sizes = x.shape[x.ndim - axes:]
        outs = output_size or [math.floor(int(n) * f) for n, f in zip(sizes, factors, strict=True)]
        return resize(x, outs, *align, *(factors or ()))
    return sized


INTERPOLATIONS = [("upsample_linear1d", "linear", 1, True), ("upsample_bilinear2d", "linear", 2, True),
                  ("upsample_trilinear3d", "linear", 3, True), ("upsample_bicubic2d", "cubic", 2, True)] + [
    (f"{name}{axes}d", mode, axes, False) for axes in (1, 2, 3)
    for name, mode in (("upsample_nearest", "nearest"), ("_upsample_nearest_exact", "nearest-exact"))]
"""Name, mode, axes, and whether the operator takes `align_corners`."""

for name, mode, axes, corners in INTERPOLATIONS:
    resize = upsample(mode, axes, corners)
    enter_all({name: resize, f"{name}.vec": by_factors(resize, axes, corners),
               f"{name}_backward": gradient_of_linear(resize)})

# --- padding by what is there -----------------------------------------------------------------------------


def padded_by(place_of: Callable[[Array, int], Array]) -> Callable[..., Tensor]:
    """Padding whose items are those at places inside; sizes last axis first, below zero they crop."""
    def pad(x: Tensor, padding: Sequence[int]) -> Tensor:
        for k in range(len(padding) // 2):
            axis = x.ndim - 1 - k
            size = int(x.shape[axis])
            steps = np.arange(-int(padding[2 * k]), size + int(padding[2 * k + 1]))
            x = taken(x, axis, constant(place_of(steps, size).astype(np.int32)))
        return x
    return pad


reflection = padded_by(lambda steps, size: (size - 1) - np.abs((size - 1) - np.abs(steps)))
replication = padded_by(lambda steps, size: steps.clip(0, size - 1))
for axes in (1, 2, 3):
    enter_all({f"reflection_pad{axes}d": reflection, f"replication_pad{axes}d": replication,
               f"reflection_pad{axes}d_backward": gradient_of(reflection),
               f"replication_pad{axes}d_backward": gradient_of(replication)})

# --- grids ------------------------------------------------------------------------------------------------


@operator("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool,
                ) -> Tensor:
    return GridSample_20(x, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
                         padding_mode=("zeros", "border", "reflection")[padding_mode],
                         align_corners=int(align_corners))


@operator("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sample_gradients(g: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
                          align_corners: bool, output_mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    def result(x: Tensor, grid: Tensor) -> Tensor:
        return grid_sample(x, grid, interpolation_mode, padding_mode, align_corners)

    found = gradients_at((x, grid), result, g)
    return tuple(t if wanted else None for t, wanted in zip(found, output_mask, strict=True))


# --- columns of windows -----------------------------------------------------------------------------------


def window_places(size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
                  stride: Sequence[int]) -> Array:
    """For each item of a window and each window, its place in the flat padded plane."""
    padded = [int(n) + 2 * p for n, p in zip(size, padding, strict=True)]
    each = []
    for n, k, d, s in zip(padded, kernel, dilation, stride, strict=True):
        outs = (n - d * (k - 1) - 1) // s + 1
        each.append(np.arange(k)[:, None] * d + np.arange(outs) * s)
    rows, columns = each
    flat = rows[:, None, :, None] * padded[1] + columns[None, :, None, :]
    return flat.reshape(math.prod(kernel), -1)


@operator("im2col")
def columns_of(x: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
               stride: Sequence[int]) -> Tensor:
    places = window_places(x.shape[-2:], kernel_size, dilation, padding, stride)
    padded = x.pad((*((0, 0),) * (x.ndim - 2), *((p, p) for p in padding)))
    items = taken(padded.reshape(*x.shape[:-2], math.prod(padded.shape[-2:])), x.ndim - 2, constant(places))
    return items.reshape(*x.shape[:-3], int(x.shape[-3]) * places.shape[0], places.shape[1])


@operator("col2im")
def image_of(columns: Tensor, output_size: Sequence[int], kernel_size: Sequence[int], dilation: Sequence[int],
             padding: Sequence[int], stride: Sequence[int]) -> Tensor:
    """The gradient of `columns_of`: items of windows added up where they lie."""
    channels = int(columns.shape[-2]) // math.prod(kernel_size)
    x = Tensor.zeros(*columns.shape[:-2], channels, *output_size, dtype=columns.dtype, device="CPU")
    places = window_places(output_size, kernel_size, dilation, padding, stride)
    heights, widths = (int(n) + 2 * p for n, p in zip(output_size, padding, strict=True))
    flat = columns.reshape(math.prod(x.shape[:-2]), places.size)
    index = constant(places.reshape(1, -1)).expand(int(flat.shape[0]), places.size)
    zeros = Tensor.zeros(int(flat.shape[0]), heights * widths, dtype=columns.dtype, device="CPU")
    summed = zeros.scatter_reduce(1, index, flat, "sum").reshape(*x.shape[:-2], heights, widths)
    inner = [slice(p, p + int(n)) for n, p in zip(output_size, padding, strict=True)]
    return summed[(*(slice(None),) * (x.ndim - 2), *inner)]
