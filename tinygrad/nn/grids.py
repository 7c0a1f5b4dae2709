"""Images read at positions between their pixels: `grid_sample`, and the grids of `affine_grid`.

Volumes are images of three axes. Positions are from -1 to 1 along the last axis of a grid, x before y before
z (Jaderberg and others, "Spatial transformer networks", 2015). Half types are computed in float32.
"""
from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.pooling import cubic_weights
from tinygrad.tensor import Tensor

PADDINGS = ("zeros", "border", "reflection")
MODES = ("bilinear", "nearest", "bicubic")


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The positions (N, H, W, 2) that matrices (N, 2, 3) map those of images of `size`, (N, C, H, W), to; or
    (N, D, H, W, 3) from (N, 3, 4) and (N, C, D, H, W).

    `align_corners`: -1 and 1 are the middles of the corner pixels, not the corners.
    """
    axes = len(size) - 2
    if axes not in (2, 3) or theta.ndim != 3 or theta.shape[1:] != (axes, axes + 1):
        raise ValueError(f"affine_grid takes theta (N, 2, 3) and a size (N, C, H, W), or (N, 3, 4) and "
                         f"(N, C, D, H, W), got {theta.shape} and {tuple(size)}")
    number, _, *sizes = size
    wide = theta.cast(promote(theta.dtype, dtypes.float32))
    along = [_middles(n, align_corners, wide).reshape(*(1 if j != i else n for j in range(axes)))
             for i, n in enumerate(sizes)]
    one = wide.ones_like()[0, 0, 0]
    points = Tensor.stack(*(x.expand(*sizes) for x in (*along[::-1], one)), dim=-1)
    found = points.reshape(1, -1, axes + 1) @ wide.transpose(1, 2)
    return found.reshape(number, *sizes, axes).cast(theta.dtype)


def _middles(count: int, align_corners: bool, like: Tensor) -> Tensor:
    """Where the middles of so many pixels lie between -1 and 1."""
    numbers = Tensor.arange(count, dtype=like.dtype, device=like.device)
    if align_corners:
        return numbers * (2 / max(count - 1, 1)) - (1 if count > 1 else 0)
    return (numbers * 2 + 1) / count - 1


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """Images (N, C, H, W) at positions (N, height, width, 2): (N, C, height, width). Volumes (N, C, D, H, W)
    at (N, depth, height, width, 3): (N, C, depth, height, width).

    `mode` is "bilinear", of volumes trilinear, "nearest" or, of images, "bicubic"; what lies beyond is 0, or
    the "border", or the "reflection" by `padding_mode`; `align_corners` as in `affine_grid`. Raises
    ValueError for other modes.
    """
    axes = input.ndim - 2
    if axes not in (2, 3) or grid.ndim != axes + 2 or grid.shape[::axes + 1] != (input.shape[0], axes):
        raise ValueError(f"grid_sample takes images (N, C, H, W) and a grid (N, height, width, 2), or "
                         f"volumes and a grid of one axis more, got {input.shape} and {grid.shape}")
    if mode not in MODES or padding_mode not in PADDINGS or (mode == "bicubic" and axes == 3):
        raise ValueError(f"grid_sample has modes {MODES}, the last of images alone, and paddings {PADDINGS}, "
                         f"got {mode!r} and {padding_mode!r} for {input.shape}")
    corners, sizes = bool(align_corners), input.shape[2:]
    units = grid.cast(promote(grid.dtype, dtypes.float32))
    places = [_pixels(units[..., axes - 1 - i], n, corners) for i, n in enumerate(sizes)]
    if mode != "bicubic":
        places = [_bounded(p, n, padding_mode, corners) for p, n in zip(places, sizes, strict=True)]
    if mode == "nearest":
        return _at(input, [p.round() for p in places])
    wide = input.cast(promote(input.dtype, dtypes.float32))
    taps = []  # of each axis, where an item lies and what it weighs
    for place, size in zip(places, sizes, strict=True):
        low = place.floor()
        share = place - low
        if mode == "bicubic":
            taps.append([(_bounded(low + i, size, padding_mode, corners), weight)
                         for i, weight in cubic_weights(share).items()])
        else:
            taps.append([(low, 1 - share), (low + 1, share)])
    terms = [_at(wide, [place for place, _ in chosen])
             * functools.reduce(operator.mul, [weight for _, weight in chosen]).unsqueeze(1)
             for chosen in itertools.product(*taps)]
    found: Tensor = functools.reduce(operator.add, terms)
    return found.cast(promote(input.dtype, grid.dtype))


def _pixels(place: Tensor, size: int, align_corners: bool) -> Tensor:
    """Positions from -1 to 1 as numbers of pixels along an axis of `size`."""
    return (place + 1) * ((size - 1) / 2) if align_corners else ((place + 1) * size - 1) / 2


def _bounded(place: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Positions in pixels, those outside an axis of `size` inside, unless it is padded with zeros."""
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span:
            away = (place - low).abs()
            turns = (away / span).floor().detach()
            rest = away - turns * span
            place = (turns % 2 == 0).where(rest, span - rest) + low
        else:
            place = place * 0
    return place.clip(0, size - 1)


def _at(input: Tensor, places: Sequence[Tensor]) -> Tensor:
    """The items at whole positions, one of each axis behind the channels, 0 outside."""
    sizes = input.shape[2:]
    inside, flat = None, None
    for place, size in zip(places, sizes, strict=True):
        within = (place >= 0) & (place < size)
        inside = within if inside is None else inside & within
        number = place.clip(0, size - 1).cast(dtypes.int32)
        flat = number if flat is None else flat * size + number
    assert inside is not None and flat is not None
    lead = input.shape[:2]
    index = flat.flatten(1).unsqueeze(1)
    index = index.expand(*lead, index.shape[2])
    found = input.flatten(2).gather(-1, index).reshape(*lead, *flat.shape[1:])
    return inside.unsqueeze(1).where(found, 0)
