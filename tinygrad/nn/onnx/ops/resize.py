"""Resizing: along each axis, items at places of the input, weighted by their distance. Places and weights
depend on sizes only and are made by the host."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.nn.onnx.registry import Ints, check_count, op
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor


@frozen
class Resizing:
    """What attributes say, for every axis."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    sharpness: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


def _places(outs: int, n: int, scale: float, coordinates: str, start: float, end: float) -> Array:
    """Where in the input (n items) each of the outputs is: in float32, which scales are of, as other runtimes
    do (3 / 0.6 is 5, and not a little less, which `floor` takes for 4)."""
    x, wide = np.arange(outs, dtype=np.float32), n * scale
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and wide > 1):
        return (x + 0.5) / scale - 0.5
    if coordinates == "pytorch_half_pixel":
        return np.zeros_like(x)
    if coordinates == "half_pixel_symmetric":
        return np.asarray(n / 2 * (1 - outs / wide) + (x + 0.5) / scale - 0.5)
    if coordinates == "align_corners":
        return x * (n - 1) / (wide - 1) if wide > 1 else np.zeros_like(x)
    if coordinates == "asymmetric":
        return x / scale
    if coordinates == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if coordinates == "tf_crop_and_resize":
        if outs == 1:
            return np.full(1, (start + end) * (n - 1) / 2)
        return np.asarray(start * (n - 1) + x * (end - start) * (n - 1) / (outs - 1))
    raise ValueError(f"coordinate_transformation_mode {coordinates!r} is not one of the standard's")


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(d: Array, _: float) -> Array:
    return np.asarray(np.maximum(0, 1 - np.abs(d)))


def _cubic(d: Array, a: float) -> Array:
    """The kernel of R. Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    d = np.abs(d)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(places: Array, n: int, scale: float, how: Resizing) -> tuple[Array, Array]:
    """(which items each output is made of, with which weights): (outs, taps) both."""
    stretch = min(scale, 1.0) if how.antialias else 1.0
    reach, kernel = (1, _linear) if how.mode == "linear" else (2, _cubic)
    first = math.floor(-reach / stretch) + 1
    low = np.floor(places)
    index = low[:, None] + np.arange(first, -first + 2)
    weights: Array = kernel((index - places[:, None]) * stretch, how.sharpness)
    if how.exclude_outside:
        weights = np.where((index >= 0) & (index < n), weights, 0)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(index, 0, n - 1).astype(np.int32), weights.astype(np.float32)


MOST_PLACES = 1 << 26
"""Items that an axis may be resized to: a gigabyte and a half of places and roundings on the host."""


def resize_axis(x: Tensor, axis: int, outs: int, scale: float, how: Resizing, start: float = 0,
                end: float = 1) -> Tensor:
    """`x` with `outs` items along `axis`."""
    n = x.shape[axis]
    if outs > MOST_PLACES:
        raise ValueError(f"axis {axis} of {n} items is resized to at most {MOST_PLACES:,}, "
                         f"asked for {outs:,}")
    places = _places(outs, n, scale, how.coordinates, start, end)
    before = (slice(None),) * axis
    if how.mode == "nearest":
        nearest = how.nearest if how.nearest != "simple" else "ceil" if scale < 1 else "floor"
        index = np.clip(ROUNDINGS[nearest](places.astype(np.float64)), 0, n - 1).astype(np.int32)
        made = x if np.array_equal(index, np.arange(n)) else x[(*before, index)]
    else:
        index, weights = _taps(places, n, scale, how)
        along = weights.reshape(*weights.shape, *(1,) * (x.ndim - axis - 1))
        made = (x[(*before, index)] * Tensor(along, x.device, requires_grad=False)).sum(axis + 1)
    if how.coordinates == "tf_crop_and_resize":
        inside = ((places >= 0) & (places <= n - 1)).reshape(-1, *(1,) * (x.ndim - axis - 1))
        made = Tensor(inside, x.device, requires_grad=False).where(made, how.extrapolation)
    return made


def _resized(x: Tensor, axes: Sequence[int], outs: Sequence[int], scales: Sequence[float], how: Resizing,
             roi: Sequence[float] | None = None) -> Tensor:
    made = x if how.mode == "nearest" else x.cast(dtypes.float32)
    for i, (axis, size, scale) in enumerate(zip(axes, outs, scales, strict=True)):
        start, end = (roi[i], roi[i + len(axes)]) if roi else (0, 1)
        if size != x.shape[axis] or scale != 1 or (start, end) != (0, 1):
            made = resize_axis(made, axis, size, scale, how, start, end)
    return made


def _scaled(size: int, scale: float) -> Any:
    """How many items are left of `size`, which stays what it is by 1. Of 20 are 14 left by 0.7: by what is a
    little less in float32."""
    return size if scale == 1 else math.floor(np.float32(size) * np.float32(scale))


def _check_scales(scales: Sequence[float], axes: int) -> None:
    check_count("scales", len(scales), axes)
    if not all(0 < s < math.inf for s in scales):
        raise ValueError(f"scales are > 0 and finite, got {tuple(scales)}")


def _named(axes: Sequence[int], ndim: int) -> list[int]:
    """Axes as numbers >= 0, each of which is there, once."""
    wrong = [a for a in axes if not -ndim <= a < ndim]
    found = [a % ndim for a in axes] if not wrong else []
    if wrong or len(set(found)) < len(found):
        raise IndexError(f"axes are {ndim} at most, each named once, got {tuple(axes)}")
    return found


def _by_scales(x: Tensor, scales: Sequence[float], how: Resizing) -> Tensor:
    _check_scales(scales, x.ndim)
    outs = [_scaled(n, s) for n, s in zip(x.shape, scales, strict=True)]
    return _resized(x, range(x.ndim), outs, scales, how)


def _upsampling(mode: str) -> Resizing:
    """As before version 11: to more items the one at or before a place, to fewer the one at or behind it."""
    return Resizing("nearest" if mode == "nearest" else "linear", "asymmetric", "simple")


@op
def Upsample_7(X: Tensor, *, scales: Any, mode: str = "nearest") -> Tensor:
    return _by_scales(X, scales, _upsampling(mode))


@op
def Upsample_9(X: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    return _by_scales(X, scales.tolist(), _upsampling(mode))


@op
def Resize_10(X: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    return _by_scales(X, scales.tolist(), _upsampling(mode))


@op
def Resize_11(X: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Ints | None = None, *,
              antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
              cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
              keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
              nearest_mode: str = "round_prefer_floor") -> Tensor:
    how = Resizing(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside),
                   bool(antialias), extrapolation_value)
    along = range(X.ndim) if axes is None else _named(axes, X.ndim)
    crop = None if roi is None or not roi.size or coordinate_transformation_mode != "tf_crop_and_resize" \
        else roi.tolist()
    given = [X.shape[a] for a in along]
    if crop is not None:
        check_count("the numbers of roi", len(crop), 2 * len(given))
    if scales is not None and scales.size:
        factors = scales.astype(np.float64).tolist()
        _check_scales(factors, len(given))
        # of the whole axis: the standard's text says of what is cropped, but neither its reference nor its
        # shape inference nor ONNX Runtime do so
        outs = [_scaled(n, s) for n, s in zip(given, factors, strict=True)]
        return _resized(X, along, outs, factors, how, crop)
    if sizes is None:
        raise ValueError("Resize takes scales or sizes")
    check_count("sizes", len(sizes), len(given))
    if any(n < 0 for n in sizes):
        raise ValueError(f"sizes are >= 0, got {tuple(sizes)}")
    ratios = [1.0 if size is n else size / n for size, n in zip(sizes, given, strict=True)]
    if keep_aspect_ratio_policy == "stretch":
        return _resized(X, along, sizes, ratios, how, crop)
    ratio = min(ratios) if keep_aspect_ratio_policy == "not_larger" else max(ratios)
    outs = [math.floor(ratio * n + 0.5) for n in given]
    return _resized(X, along, outs, [ratio] * len(outs), how, crop)
