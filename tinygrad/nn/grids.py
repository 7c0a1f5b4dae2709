"""Images read at positions between their pixels: `grid_sample`, and the grids of `affine_grid`.

Positions are from -1 to 1 along the last axis of a grid, x before y (Jaderberg and others, "Spatial
transformer networks", 2015).
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.tensor import Tensor

PADDINGS = ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The positions (N, H, W, 2) that matrices (N, 2, 3) map those of images of `size`, (N, C, H, W), to.

    `align_corners`: -1 and 1 are the middles of the corner pixels, not the corners.
    """
    if theta.ndim != 3 or theta.shape[1:] != (2, 3) or len(size) != 4:
        raise ValueError(f"affine_grid takes theta (N, 2, 3) and a size (N, C, H, W), got {theta.shape} and "
                         f"{tuple(size)}")
    number, _, height, width = size
    rows, columns = (_middles(n, align_corners, theta) for n in (height, width))
    points = columns.expand(height, width).stack(rows.unsqueeze(1).expand(height, width),
                                                 theta.ones_like()[0, 0, 0].expand(height, width), dim=-1)
    return (points.reshape(1, -1, 3) @ theta.transpose(1, 2)).reshape(number, height, width, 2)


def _middles(count: int, align_corners: bool, like: Tensor) -> Tensor:
    """Where the middles of so many pixels lie between -1 and 1."""
    numbers = Tensor.arange(count, dtype=like.dtype, device=like.device)
    if align_corners:
        return numbers * (2 / max(count - 1, 1)) - (1 if count > 1 else 0)
    return (numbers * 2 + 1) / count - 1


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """Images (N, C, H, W) at positions (N, height, width, 2): (N, C, height, width).

    `mode` is "bilinear" or "nearest"; what lies beyond the images is 0, or their "border", or their
    "reflection" by `padding_mode`; `align_corners` as in `affine_grid`. Raises ValueError for other modes.
    """
    if input.ndim != 4 or grid.ndim != 4 or grid.shape[-1] != 2 or grid.shape[0] != input.shape[0]:
        raise ValueError(f"grid_sample takes images (N, C, H, W) and a grid (N, height, width, 2), got "
                         f"{input.shape} and {grid.shape}")
    if mode not in ("bilinear", "nearest") or padding_mode not in PADDINGS:
        raise ValueError(f"grid_sample has modes 'bilinear' and 'nearest' and paddings {PADDINGS}, got "
                         f"{mode!r} and {padding_mode!r}")
    height, width = input.shape[2:]
    x, y = (_pixels(grid[..., i], n, padding_mode, bool(align_corners)) for i, n in ((0, width), (1, height)))
    if mode == "nearest":
        return _at(input, x.round(), y.round())
    left, top = x.floor(), y.floor()
    right_share, low_share = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
    upper = _at(input, left, top) * (1 - right_share) + _at(input, left + 1, top) * right_share
    lower = _at(input, left, top + 1) * (1 - right_share) + _at(input, left + 1, top + 1) * right_share
    return upper * (1 - low_share) + lower * low_share


def _pixels(place: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Positions from -1 to 1 as numbers of pixels along an axis of `size`."""
    found = (place + 1) * ((size - 1) / 2) if align_corners else ((place + 1) * size - 1) / 2
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span:
            away = (found - low).abs()
            turns, rest = (away / span).floor().detach(), away - (away / span).floor().detach() * span
            found = (turns % 2 == 0).where(rest, span - rest) + low
        else:
            found = found * 0
    return found if padding_mode == "zeros" else found.clip(0, size - 1)


def _at(input: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The pixels at whole positions, 0 outside."""
    number, channels, height, width = input.shape
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    place = y.clip(0, height - 1).cast(dtypes.int32) * width + x.clip(0, width - 1).cast(dtypes.int32)
    places = place.flatten(1).unsqueeze(1).expand(number, channels, place.shape[1] * place.shape[2])
    found = input.flatten(2).gather(-1, places).reshape(number, channels, *place.shape[1:])
    return inside.unsqueeze(1).where(found, 0)
