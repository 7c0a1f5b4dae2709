"""Images: sampling at grids, regions of interest, boxes that overlap, pictures in files."""
from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.pooling import cubic_weights
from tinygrad.nn.onnx.ops.convolution import items_at, sample, weighted_items
from tinygrad.nn.onnx.registry import CONTRIBUTED, Ints, op, with_attributes_of
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

# --- grids --------------------------------------------------------------------------------------------------


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Places mirrored at the borders `low` and `high` until they are within."""
    span = high - low
    if span == 0:
        return x.zeros_like() + low
    offset = (x - low).abs() % (2 * span)
    return low + offset.minimum(2 * span - offset)


def _bounded(place: Tensor, size: int, padding_mode: str, align_corners: int) -> Tensor:
    """Places brought into the input, as the padding says; with zeros around it they stay."""
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        place = _reflected(place, 0, size - 1) if align_corners else _reflected(place, -0.5, size - 0.5)
    return place.maximum(0).minimum(size - 1)


@op
def GridSample_20(X: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros",
                  align_corners: int = 0) -> Tensor:
    """Items of `X` (N, C, *sizes) at the places that `grid` (N, *P, axes) has, from -1 to 1, the last axis
    first."""
    sizes = X.shape[2:]
    wide = grid.cast(dtypes.float32) if grid.dtype.itemsize < 4 else grid
    units = [wide[..., len(sizes) - 1 - i] for i in range(len(sizes))]
    places = [(u + 1) / 2 * (n - 1) if align_corners else ((u + 1) * n - 1) / 2
              for u, n in zip(units, sizes, strict=True)]
    if mode in ("cubic", "bicubic"):
        return weighted_items(X, places, cubic_weights,
                              lambda place, size: _bounded(place, size, padding_mode, align_corners))
    places = [_bounded(p, n, padding_mode, align_corners) for p, n in zip(places, sizes, strict=True)]
    return items_at(X, [p.round() for p in places]) if mode == "nearest" else sample(X, places)


@op
def GridSample_16(X: Tensor, grid: Tensor, *, mode: str = "bilinear", padding_mode: str = "zeros",
                  align_corners: int = 0) -> Tensor:
    return GridSample_20(X, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


# --- regions of interest ------------------------------------------------------------------------------------


@op
def RoiAlign_16(X: Tensor, rois: Array, batch_indices: Tensor, *,
                coordinate_transformation_mode: str = "half_pixel",
                mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
                spatial_scale: float = 1.0) -> Tensor:
    """The mean (or the largest term) of samples in each cell of a grid over each region.

    How many samples a region takes may depend on its size, so regions are read by the host.
    """
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    edges = rois.astype(np.float32) * np.float32(spatial_scale) - np.float32(shift)
    axes = [_cells(edges[:, 1], edges[:, 3], output_height, sampling_ratio, X.shape[2], shift == 0),
            _cells(edges[:, 0], edges[:, 2], output_width, sampling_ratio, X.shape[3], shift == 0)]
    (ys, y_ok, y_in), (xs, x_ok, x_in) = axes
    count = len(edges)
    x = X[batch_indices]  # (regions, C, H, W)
    shape = (count, *ys.shape[1:], *xs.shape[1:])
    y = np.broadcast_to(ys[:, :, :, None, None], shape).reshape(count, -1)
    across = np.broadcast_to(xs[:, None, None], shape).reshape(count, -1)
    counted = np.broadcast_to(y_ok[:, :, :, None, None] & x_ok[:, None, None], shape)
    inside = np.broadcast_to(y_in[:, :, :, None, None] & x_in[:, None, None], shape)

    def on_device(array: Array) -> Tensor:
        return Tensor(np.ascontiguousarray(array), X.device, requires_grad=False)

    places = [on_device(y), on_device(across)]
    counts = on_device(np.maximum(counted.sum((2, 4)), 1).astype(np.float32)).unsqueeze(1)
    used = on_device(counted & inside).unsqueeze(1)
    known = on_device(counted).unsqueeze(1)
    if mode == "avg":
        values = sample(x, places).reshape(count, X.shape[1], *shape[1:])
        return used.where(values, 0).sum((3, 5)) / counts
    values = _largest_term(x, places).reshape(count, X.shape[1], *shape[1:])
    return known.where(used.where(values, 0), -math.inf).max((3, 5))


@op
@with_attributes_of(RoiAlign_16)
def RoiAlign_10(X: Tensor, rois: Array, batch_indices: Tensor, **attributes: Any) -> Tensor:
    made: Tensor = RoiAlign_16(X, rois, batch_indices, coordinate_transformation_mode="output_half_pixel",
                               **attributes)
    return made


def _largest_term(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Of the four items around each place, weighted as for a linear sample, the largest."""
    lows = [p.floor() for p in places]
    terms = []
    for corner in itertools.product((0, 1), repeat=len(places)):
        weights = [p - low if c else 1 - (p - low) for p, low, c in zip(places, lows, corner, strict=True)]
        at = [(low + c).minimum(n - 1) for low, c, n in zip(lows, corner, x.shape[2:], strict=True)]
        terms.append(items_at(x, at) * (weights[0] * weights[1]).unsqueeze(1))
    return terms[0].maximum(terms[1]).maximum(terms[2]).maximum(terms[3])


def _cells(low: Array, high: Array, cells: int, ratio: int, size: int, at_least_one: bool) -> tuple[Array,
                                                                                                    ...]:
    """Samples along one axis: places (regions, cells, samples), which of them a region takes, and which are
    in the input (or less than an item beside it)."""
    span = np.maximum(high - low, 1) if at_least_one else high - low
    width = span / np.float32(cells)
    taken = np.full(len(low), ratio) if ratio > 0 else np.ceil(width).astype(np.int64)
    samples = np.arange(max(1, int(taken.max(initial=1))))
    steps = width / np.maximum(taken, 1).astype(np.float32)
    places = (low[:, None] + np.arange(cells, dtype=np.float32) * width[:, None])[:, :, None] \
        + (samples + np.float32(0.5)) * steps[:, None, None]
    ok = np.broadcast_to(samples < taken[:, None, None], places.shape)
    inside = (places >= -1) & (places <= size)
    return np.clip(places, 0, size - 1).astype(np.float32), ok, inside


@op(domain=CONTRIBUTED)
def CropAndResize(X: Tensor, rois: Tensor, batch_indices: Tensor, crop_size: Ints, *, mode: str = "bilinear",
                  extrapolation_value: float = 0.0) -> Tensor:
    """Each region (y1, x1, y2, x2), where 1 is an image's last item, in `crop_size` samples from corner to
    corner; one sample lies in the middle. Samples beyond the image have `extrapolation_value`."""
    places, inside = [], []
    for axis, (count, size) in enumerate(zip(crop_size, X.shape[2:], strict=True)):
        low, high = rois[:, axis:axis + 1] * (size - 1), rois[:, axis + 2:axis + 3] * (size - 1)
        share = np.arange(count) / (count - 1) if count > 1 else np.full(1, 0.5)
        place = low + (high - low) * Tensor(share, X.device, dtype=X.dtype, requires_grad=False)
        place = place.unsqueeze(2 - axis).expand(place.shape[0], *crop_size)
        inside.append((place >= 0) & (place <= size - 1))
        places.append((place + 0.5).floor() if mode == "nearest" else place)
    found = items_at(X[batch_indices], places) if mode == "nearest" else sample(X[batch_indices], places)
    return (inside[0] & inside[1]).unsqueeze(1).where(found, extrapolation_value)


@op
def MaxRoiPool(X: Tensor, rois: Array, *, pooled_shape: Any, spatial_scale: float = 1.0) -> Tensor:
    """The largest item in each cell of a grid over each region, whose corners are rounded to items."""
    corners = np.floor(rois[:, 1:] * spatial_scale + 0.5).astype(np.int64)
    x = X[rois[:, 0].astype(np.int32)]
    for axis, (low, high) in enumerate(((corners[:, 1], corners[:, 3]), (corners[:, 0], corners[:, 2]))):
        cells, size = pooled_shape[axis], X.shape[2 + axis]
        width = np.maximum(high - low + 1, 1) / cells
        start = np.floor(np.arange(cells) * width[:, None]).astype(np.int64) + low[:, None]
        end = np.ceil((np.arange(cells) + 1) * width[:, None]).astype(np.int64) + low[:, None]
        items = np.arange(size)
        inside = (items >= np.clip(start, 0, size)[..., None]) & (items < np.clip(end, 0, size)[..., None])
        chosen = Tensor(inside, X.device, requires_grad=False)  # (regions, cells, items)
        if axis == 0:
            x = chosen.reshape(len(rois), 1, cells, size, 1).where(x.unsqueeze(2), -math.inf).max(3)
        else:
            x = chosen.reshape(len(rois), 1, 1, cells, size).where(x.unsqueeze(3), -math.inf).max(4)
    return (x == -math.inf).where(0, x)


# --- boxes --------------------------------------------------------------------------------------------------


@op
def NonMaxSuppression(boxes: Array, scores: Array, max_output_boxes_per_class: int | None = None,
                      iou_threshold: float | None = None, score_threshold: float | None = None, *,
                      center_point_box: int = 0) -> Array:
    """(batch, class, box) of the best boxes that overlap no better one; how many depends on values, so this
    is done by the host."""
    most, overlap = max_output_boxes_per_class or 0, iou_threshold or 0.0
    first, last = (boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2) \
        if center_point_box else (np.minimum(boxes[..., :2], boxes[..., 2:]),
                                  np.maximum(boxes[..., :2], boxes[..., 2:]))
    chosen: list[tuple[int, int, int]] = []
    for batch, label in np.ndindex(scores.shape[:2]):
        rated = scores[batch, label]
        order = [int(i) for i in np.argsort(-rated, kind="stable")
                 if score_threshold is None or rated[i] > score_threshold]
        kept: list[int] = []
        for i in order:
            if len(kept) == most:
                break
            if all(_overlap(first[batch], last[batch], i, k) <= overlap for k in kept):
                kept.append(i)
        chosen.extend((batch, label, i) for i in kept)
    return np.array(chosen, np.int64).reshape(-1, 3)


def _overlap(first: Array, last: Array, a: int, b: int) -> float:
    """The intersection of two boxes over their union."""
    sides = np.maximum(np.minimum(last[a], last[b]) - np.maximum(first[a], first[b]), 0)
    areas = [float(np.prod(last[i] - first[i])) for i in (a, b)]
    common = float(np.prod(sides))
    union = sum(areas) - common
    return common / union if union > 0 else 0.0


# --- pictures -----------------------------------------------------------------------------------------------


@op
def ImageDecoder(encoded_stream: Array, *, pixel_format: str = "RGB") -> Array:
    """The pixels of a picture's file, (height, width, channels). Takes Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("ImageDecoder reads pictures with Pillow: pip install 'tinygrad[onnx]'") from error
    picture = Image.open(io.BytesIO(encoded_stream.tobytes()))
    pixels = np.array(picture.convert("L" if pixel_format == "Grayscale" else "RGB"))
    if pixel_format == "Grayscale":
        return pixels[..., None]
    return pixels[..., ::-1] if pixel_format == "BGR" else pixels
