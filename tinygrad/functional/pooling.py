"""Fewer or more items along the last axes: pooling over windows, its inverse, and interpolation.

A pooling is a reduce over the windows of `windows.py`; interpolation indexes the nearest items
of each axis in turn.
"""
from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from tinygrad.dtype import dtypes, least_upper_float, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.movement import copied
from tinygrad.functional.windows import (
    Padding,
    Pads,
    Sizes,
    pad_spatial,
    per_axis,
    resolve_padding,
    sliding_windows,
)
from tinygrad.helpers import ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


class PoolGeometry(NamedTuple):
    """Which windows a pooling is over, for each of the last axes."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads
    enlarged: Pads
    """after the end for the windows that ceil_mode adds"""

    @staticmethod
    def of(x: Tensor, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
           pads: Pads, ceil_mode: bool) -> PoolGeometry:
        """Those of these sizes over the last axes of `x`."""
        if not ceil_mode:
            return PoolGeometry(kernel, strides, dilations, pads, list(pads))
        enlarged = []
        sizes = x.shape[x.ndim - len(kernel):]
        for n, k, s, d, (before, after) in zip(sizes, kernel, strides, dilations, pads, strict=True):
            reach = d * (k - 1) + 1
            outs = ceildiv(n + before + after - reach, s) + 1
            if (outs - 1) * s >= n + before:
                outs -= 1  # a window must start in the input or in the padding before it
            enlarged.append((before, after + max(0, (outs - 1) * s + reach - (n + before + after))))
        return PoolGeometry(kernel, strides, dilations, pads, enlarged)

    @property
    def inner(self) -> tuple[int, ...]:
        """The axes of a window's items."""
        return tuple(range(-len(self.kernel), 0))

    def windows(self, x: Tensor, value: float | int = 0) -> Tensor:
        """(..., *outputs, *kernel), of `x` padded with `value`."""
        padded = pad_spatial(x, self.enlarged, value)
        return sliding_windows(padded, self.kernel, self.strides, self.dilations)


def pool_geometry(x: Tensor, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Padding,
                   ceil_mode: bool) -> PoolGeometry:
    """The windows that a user asks for. Raises ValueError for what is no pooling of `x`."""
    axes = 2 if isinstance(kernel_size, int) else len(kernel_size)
    if x.ndim < axes:
        raise ValueError(f"pooling over {axes} axes takes an input of at least as many, got shape {x.shape}")
    kernel = per_axis("kernel_size", kernel_size, axes)
    strides = kernel if stride is None else per_axis("stride", stride, axes)
    dilations = per_axis("dilation", dilation, axes)
    pads = resolve_padding(padding, kernel, strides, dilations)
    if any(2 * max(p) > d * (k - 1) + 1 for p, d, k in zip(pads, dilations, kernel, strict=True)):
        raise ValueError(f"pooling takes padding of at most half the window, got {padding} for {kernel}")
    return PoolGeometry.of(x, kernel, strides, dilations, pads, ceil_mode)


def _counted_items(x: Tensor, axis: int, kernel: int, stride: int, dilation: int, counted: tuple[int, int],
                   enlarged: tuple[int, int]) -> Tensor:
    """How many items along an axis each window has, of the input and of the padding that is `counted`: 1 on
    the axes behind it. An axis for itself is arithmetic, where all together would be a loop."""
    ones = type(x).ones(x.shape[axis], dtype=dtypes.float32, device=x.device, requires_grad=False)
    ones = pad_spatial(ones, [counted], value=1)
    ones = pad_spatial(ones, [(enlarged[0] - counted[0], enlarged[1] - counted[1])])
    counts = sliding_windows(ones, (kernel,), (stride,), (dilation,)).sum(-1)
    return counts.reshape(-1, *(1,) * (-1 - axis))


def avg_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: float | None = None) -> Tensor:
    """The mean of each window over the last axes, as many as `kernel_size` has (2 for an int).

    `stride` is the kernel size unless given. `ceil_mode` keeps windows that reach past the end.
    `count_include_pad=False` divides by the items of the input alone, `divisor_override` by that number.
    Raises ValueError for a divisor of 0.

    >>> Tensor([[1, 2], [3, 4]]).avg_pool2d().tolist()
    [[2.5]]
    """
    return mean_of_windows(self, pool_geometry(self, kernel_size, stride, dilation, padding, ceil_mode),
                           count_include_pad, divisor_override)


def mean_of_windows(x: Tensor, where: PoolGeometry, count_include_pad: bool,
                    divisor_override: float | None = None) -> Tensor:
    """The mean of each window, (..., *outputs): over all of its items, or those in `x` or, with
    `count_include_pad`, in the padding that was asked for; or the sum over `divisor_override`."""
    kernel, strides, dilations, pads, enlarged = where
    if divisor_override == 0:
        raise ValueError("avg_pool2d takes a divisor_override that is not 0")
    total = where.windows(x).sum(where.inner)
    if divisor_override is not None:
        return total / divisor_override
    counted = pads if count_include_pad else [(0, 0)] * len(pads)
    if counted == enlarged:
        return total / math.prod(kernel)
    counts = functools.reduce(operator.mul, (
        _counted_items(x, axis, *sizes)
        for axis, *sizes in zip(where.inner, kernel, strides, dilations, counted, enlarged, strict=True)))
    return total / (counts.cast(total.dtype) if total.dtype.is_float else counts)


@overload
def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False,
               return_indices: Literal[False] = False) -> Tensor: ...


@overload
def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False, *,
               return_indices: Literal[True]) -> tuple[Tensor, Tensor]: ...


def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False,
               return_indices: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """The largest item of each window over the last axes, as many as `kernel_size` has (2 for an int).

    `stride` is the kernel size unless given. Padding never wins. `return_indices` also returns where the
    first largest item of each window is, as a position in the flattened last axes (what `max_unpool2d`
    takes).

    >>> Tensor([[1, 2], [3, 4]]).max_pool2d().tolist()
    [[4]]
    """
    return largest_of_windows(self, pool_geometry(self, kernel_size, stride, dilation, padding, ceil_mode),
                              return_indices)


def largest_of_windows(x: Tensor, where: PoolGeometry,
                       return_indices: bool) -> Tensor | tuple[Tensor, Tensor]:
    """The largest item of each window, (..., *outputs), or NaN where there is one; with `return_indices` also
    its place among those of the last axes of `x`, as one number."""
    axes, inner = len(where.kernel), where.inner
    windows = where.windows(x, x.dtype.min)
    largest = windows.max(inner)
    if not return_indices:
        return largest
    from tinygrad.tensor import Tensor

    spatial = x.shape[x.ndim - axes:]
    count = prod(spatial)
    positions = where.windows(Tensor.arange(count, device=x.device).reshape(*spatial), count)
    found = windows == largest.reshape(*largest.shape, *(1,) * axes)
    if x.dtype.is_float:
        found = found | windows.isnan()
    return largest, found.where(positions, count).min(inner)


def max_unpool2d(self: Tensor, indices: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None,
                 dilation: Sizes = 1, padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Tensor:
    """The inverse of `max_pool2d`: each item goes to its position in `indices`, zeros elsewhere.

    `output_size` (the spatial sizes, or the whole shape) settles sizes that several inputs pool to.
    """
    if self.shape != indices.shape:
        raise ValueError(f"max_unpool2d takes indices of the input's shape {self.shape}, got {indices.shape}")
    axes = 2 if isinstance(kernel_size, int) else len(kernel_size)
    kernel = per_axis("kernel_size", kernel_size, axes)
    strides = kernel if stride is None else per_axis("stride", stride, axes)
    dilations = per_axis("dilation", dilation, axes)
    pads = resolve_padding(padding, kernel, strides, dilations)
    lead, sizes = self.shape[:self.ndim - axes], self.shape[self.ndim - axes:]
    if output_size is None:
        output_size = [(n - 1) * s - before - after + d * (k - 1) + 1 for n, s, (before, after), d, k
                       in zip(sizes, strides, pads, dilations, kernel, strict=True)]
    spatial = tuple(output_size)[-axes:]
    from tinygrad.tensor import Tensor

    places = Tensor.arange(prod(spatial), device=self.device).reshape(*(1,) * len(lead), -1, 1)
    hit = places == indices.flatten(-axes).unsqueeze(-2)
    # overlapping windows may name a place more than once, always with the same value: take it once
    value = hit.where(self.flatten(-axes).unsqueeze(-2), self.dtype.min).max(-1)
    return hit.any(-1).where(value, 0).reshape(*lead, *spatial)


def adaptive_average(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means over parts of the last axes: part i of m has the items floor(i*n/m) to ceil((i + 1)*n/m)."""
    x, sizes = as_real(x), x.shape[x.ndim - len(output_size):]
    if all(n % out == 0 for n, out in zip(sizes, output_size, strict=True)):
        return avg_pool2d(x, tuple(n // out for n, out in zip(sizes, output_size, strict=True)))
    return interpolate(x, tuple(output_size), "area")


def adaptive_largest(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest items of such parts, and where among the last axes each lies, as one number."""
    axes, lead = len(output_size), x.shape[:x.ndim - len(output_size)]
    flat: np.ndarray[Any, Any] = np.zeros((1,) * (2 * axes), np.int64)
    for axis, (n, out) in enumerate(zip(x.shape[len(lead):], output_size, strict=True)):
        first = np.arange(out) * n // out
        end = -(-(np.arange(out) + 1) * n // out)
        # an item beyond the end of its part stands for the last one in it
        places = np.minimum(first[:, None] + np.arange((end - first).max()), end[:, None] - 1)
        shape = [1] * (2 * axes)
        shape[axis], shape[axes + axis] = places.shape
        flat = flat * n + places.reshape(shape)
    table = _constant(x, flat.reshape(prod(output_size), -1).astype(np.int32))
    items = _items(x.flatten(len(lead)), -1, table)
    found = items.argmax(-1, keepdim=True)
    places_of = table.expand(items.shape).gather(items.ndim - 1, found).squeeze(-1)
    return items.max(-1).reshape(*lead, *output_size), places_of.reshape(*lead, *output_size)


INTERPOLATIONS = {"bilinear": ("linear", 2), "trilinear": ("linear", 3), "bicubic": ("cubic", 2)}
"""Other names of modes, with the number of axes that each says."""
MODES = ("linear", "cubic", "nearest", "nearest-exact", "area")
CUBIC_SHARPNESS = -0.75
"""The parameter `a` of the cubic convolution kernel (Keys, "Cubic convolution interpolation for digital image
processing", 1981), as image libraries and PyTorch have it."""
ANTIALIAS_SHARPNESS = -0.5
"""The same of a kernel that is made wider, as Pillow and PyTorch have it."""


def interpolate(self: Tensor, size: Sequence[int], mode: str = "linear", align_corners: bool = False,
                antialias: bool = False, factors: Sequence[float] | None = None) -> Tensor:
    """The last axes (as many as `size` has) resized to `size`.

    `mode`: "linear" (also "bilinear" and "trilinear", for two and three axes), "cubic" (4 items an axis; also
    "bicubic"), "nearest" (item floor(i*in/out)), "nearest-exact" (item floor((i + 0.5)*in/out)) or "area"
    (the mean of items floor(i*in/out) to ceil((i + 1)*in/out)). `align_corners` (linear and cubic) puts the
    first and last items onto each other; `antialias` (these too) lets each item of a smaller axis take in all
    that it stands for, by a kernel as much wider, as Pillow's do. `factors`: what places follow from in place
    of out/in, one for each axis, where corners are not aligned. Half types compute in float32; integers are
    rounded at the end, but linear and cubic of uint8, images, after each axis, the last one first, as
    PyTorch's are.

    >>> Tensor([0.0, 4.0]).interpolate((4,)).tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    if isinstance(size, int):
        raise TypeError(f"interpolate takes a size for each of the last axes, such as (8, 8), got {size!r}")
    kind, axes = INTERPOLATIONS.get(mode, (mode, len(size)))
    if kind not in MODES:
        raise ValueError(f"interpolate takes one of the modes {', '.join((*MODES, *INTERPOLATIONS))}, "
                         f"got {mode!r}")
    if (align_corners or antialias) and kind not in ("linear", "cubic"):
        option = "align_corners" if align_corners else "antialias"
        raise ValueError(f"interpolate takes {option} with linear and cubic modes only, got {mode!r}")
    if not 1 <= len(size) <= self.ndim or any(n < 1 for n in size) or len(size) != axes:
        raise ValueError(f"interpolate takes a size >= 1 for each of the last {axes} axes of {self.shape} in "
                         f"mode {mode!r}, got {tuple(size)}")
    if factors is not None and len(factors) != axes:
        raise ValueError(f"interpolate takes a factor for each of {axes} axes, got {tuple(factors)}")
    apart: Sequence[float | None] = (None,) * axes
    if factors is not None and not align_corners and kind != "area":
        # what PyTorch leaves as it is, or repeats, whatever the factor
        simple = [1] * (kind in ("linear", "nearest") or antialias or self.dtype is dtypes.uint8)
        simple += [2] * (kind == "nearest")
        apart = [None if outs in (n * factor, *(n * times for times in simple)) else 1 / factor
                 for n, factor, outs in zip(self.shape[-len(size):], factors, size, strict=True)]
    if self.dtype is dtypes.uint8 and kind in ("linear", "cubic"):
        return _interpolate_image(self, size, kind, align_corners, antialias, apart)
    is_copy = kind in ("nearest", "nearest-exact")
    x = self if is_copy else self.cast(promote(least_upper_float(self.dtype), dtypes.float32))
    for axis, outs, step in zip(range(-len(size), 0), size, apart, strict=True):
        if step is not None and is_copy:
            x = _items(x, axis, _constant(x, _nearest(x.shape[axis], outs, kind, step)))
        elif (x.shape[axis] != outs and antialias) or step is not None:
            taps = _wide_taps if antialias else _taps
            x = _weighted(x, axis, *taps(x.shape[axis], outs, kind, align_corners, step))
        elif x.shape[axis] != outs:
            x = _interpolate_axis(x, axis, outs, kind, align_corners)
    if is_copy:
        return copied(x, x.uop)
    return x.cast(self.dtype) if self.dtype.is_float else x.round().cast(self.dtype)


def _interpolate_axis(x: Tensor, axis: int, outs: int, mode: str, align_corners: bool) -> Tensor:
    n = x.shape[axis]
    is_whole = n != 0 and outs % n == 0
    if is_whole and mode in ("nearest", "nearest-exact"):  # movement, whose gradient is a sum
        return x.repeat_interleave(outs // n, axis)
    steps = type(x).arange(outs, device=x.device)
    if mode == "nearest":
        return _items(x, axis, steps * n // outs)
    if mode == "nearest-exact":
        return _items(x, axis, (2 * steps + 1) * n // (2 * outs))
    if mode == "area":
        return _mean_of_areas(x, axis, outs)
    if is_whole and mode == "linear" and not align_corners:
        return _interpolate_between(x, axis, outs // n)
    # the position is a fraction of integers: whole part and remainder stay exact for any size
    if align_corners:
        numerator, denominator = steps * (n - 1), max(outs - 1, 1)
    else:
        numerator, denominator = (2 * steps + 1) * n - outs, 2 * outs
    if mode == "linear":
        numerator = numerator.maximum(0)
    low = numerator // denominator
    share = (numerator - low * denominator).cast(x.dtype) / denominator
    weights = {0: 1 - share, 1: share} if mode == "linear" else cubic_weights(share)
    trailing = (1,) * (-axis - 1)
    parts = [_items(x, axis, (low + offset).clip(0, n - 1)) * weight.reshape(outs, *trailing)
             for offset, weight in weights.items()]
    return functools.reduce(operator.add, parts)


def _interpolate_between(x: Tensor, axis: int, factor: int) -> Tensor:
    """Linear, to `factor` items for each, of which those before its middle lie between it and the one before:
    movement alone finds both, so that gradients are sums."""
    at, n = x.ndim + axis, x.shape[axis]
    wide = x.pad((*((0, 0),) * at, (1, 1), *((0, 0),) * (-axis - 1)), mode="replicate").unsqueeze(at + 1)
    before, here, after = (wide[(*(slice(None),) * at, slice(i, i + n))] for i in range(3))
    steps = 2 * type(x).arange(factor, device=x.device).reshape(factor, *(1,) * (-axis - 1)) + 1 - factor
    share = (steps < 0).where(steps + 2 * factor, steps).cast(x.dtype) / (2 * factor)
    low, high = (steps < 0).where(before, here), (steps < 0).where(here, after)
    return (low * (1 - share) + high * share).flatten(at, at + 1)


def _nearest(n: int, outs: int, mode: str, apart: float) -> np.ndarray[Any, Any]:
    """Where, of `n` items, each of `outs` is, computed in float32 as PyTorch does."""
    middle = np.arange(outs, dtype=np.float32) + np.float32(0.5 if mode == "nearest-exact" else 0)
    places: np.ndarray[Any, Any] = np.floor(middle * np.float32(apart)).astype(np.int32)
    return places.clip(0, n - 1)


def _weighted(x: Tensor, axis: int, places: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Tensor:
    """Sums of items at places times weights, (taps, outs) both, in place of an axis."""
    scaled = _constant(x, weights.reshape(*weights.shape, *(1,) * (-axis - 1))).cast(x.dtype)
    return (_items(x, axis, _constant(x, places)) * scaled).sum(axis - 1)


def cubic_weights(share: Any, a: float = CUBIC_SHARPNESS) -> dict[int, Any]:
    """The weights of the items around a position, `share` beyond item 0 (a tensor or an array): Keys's kernel
    at their distances."""

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return {-1: far(share + 1), 0: near(share), 1: near(1 - share), 2: far(2 - share)}


def _mean_of_areas(x: Tensor, axis: int, outs: int) -> Tensor:
    """Means over parts of an axis that cover it: part i has all items that touch [i, i + 1) * n / outs."""
    n = x.shape[axis]
    steps = type(x).arange(outs, device=x.device)
    first, end = steps * n // outs, ((steps + 1) * n + outs - 1) // outs
    longest = max(ceildiv((i + 1) * n, outs) - i * n // outs for i in range(outs))
    trailing = (1,) * (-axis - 1)
    counts = (end - first).cast(x.dtype).reshape(outs, *trailing)
    places = first.unsqueeze(1) + type(x).arange(longest, device=x.device)
    inside = (places < end.unsqueeze(1)).reshape(outs, longest, *trailing)
    items = _items(x, axis, places.minimum(n - 1))
    return inside.where(items, 0).sum(axis) / counts


IMAGE_WEIGHT_BITS = 22
"""Weights of pixels are rounded to multiples of 2^-k, the finest of which the largest is below 2^15 times."""


def _interpolate_image(self: Tensor, size: Sequence[int], mode: str, align_corners: bool, antialias: bool,
                       apart: Sequence[float | None]) -> Tensor:
    """Linear and cubic modes of uint8, in integers: each axis with rounded weights, and rounded to uint8."""
    x, taps = self, _wide_taps if antialias else _taps
    for axis, outs, step in zip(range(-1, -len(size) - 1, -1), reversed(size), reversed(apart), strict=True):
        if x.shape[axis] != outs or step is not None:
            places, weights = taps(x.shape[axis], outs, mode, align_corners, step)
            largest = weights.max()
            bits = max(k for k in range(IMAGE_WEIGHT_BITS + 1) if int(largest * 2**k + 0.5) < 2**15)
            scaled = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype(np.int32)
            trailing = (1,) * (-axis - 1)
            parts = [_items(x, axis, _constant(x, place)).cast(dtypes.int32)
                     * _constant(x, weight).reshape(outs, *trailing)
                     for place, weight in zip(places, scaled, strict=True)]
            total = functools.reduce(operator.add, parts) + (1 << bits >> 1)
            x = (total >> bits).clip(0, 255).cast(dtypes.uint8)
    return x


def _constant(x: Tensor, numbers: np.ndarray[Any, Any]) -> Tensor:
    return type(x)(numbers, device=x.device, requires_grad=False)


def _taps(n: int, outs: int, mode: str, align_corners: bool, apart: float | None
          ) -> tuple[np.ndarray[Any, Any], ...]:
    """Places and weights of the items, of `n`, that each of `outs` is made of: two or four rows of `outs`
    numbers. Beyond the ends is the item there, whose weights are one. `apart`: so far, unless the sizes say
    so."""
    steps = np.arange(outs)
    position = (steps + 0.5) * n / outs - 0.5 if apart is None else (steps + 0.5) * apart - 0.5
    position = steps * (n - 1) / max(outs - 1, 1) if align_corners else position
    position = position.clip(0) if mode == "linear" else position
    low = np.floor(position).astype(np.int32)
    share = position - low
    found = {0: 1 - share, 1: share} if mode == "linear" else cubic_weights(share)
    places = np.stack([(low + offset).clip(0, n - 1) for offset in found])
    weights = np.stack(list(found.values()))
    for i, j in itertools.combinations(range(len(places)), 2):
        same = places[i] == places[j]
        weights[i] += np.where(same, weights[j], 0)
        weights[j] = np.where(same, 0, weights[j])
    return places, weights


def _wide_taps(n: int, outs: int, mode: str, align_corners: bool, apart: float | None
               ) -> tuple[np.ndarray[Any, Any], ...]:
    """As `_taps`, by a kernel that is as wide as the items of a smaller axis are apart. Its weights within
    the axis add up to one."""
    if apart is None:
        apart = n / outs if not align_corners else (n - 1) / (outs - 1) if outs > 1 else 0.0
    wide, reach = max(apart, 1.0), 1 if mode == "linear" else 2
    middle = apart * (np.arange(outs) + 0.5)
    first = (middle - reach * wide + 0.5).astype(np.int64).clip(0)
    end = (middle + reach * wide + 0.5).astype(np.int64).clip(None, n)
    places = first + np.arange((end - first).max())[:, None]
    far = np.abs((places - middle + 0.5) / wide)
    near = cubic_weights(far % 1, ANTIALIAS_SHARPNESS)
    weights = 1 - far if mode == "linear" else np.where(far < 1, near[0], near[-1])
    weights = np.where((places < end) & (far < reach), weights, 0)
    return places.clip(None, n - 1).astype(np.int32), weights / weights.sum(0)


def _items(x: Tensor, axis: int, places: Tensor) -> Tensor:
    """The items at `places` of an axis (counted from the end), which the axes of `places` replace."""
    return x[(*(slice(None),) * (x.ndim + axis), places)]
