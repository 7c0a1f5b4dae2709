"""Sliding windows, which convolution and pooling share: sizes, padding, and the windows themselves.

The windows are movement only. An axis of n items is repeated k times and cut into k rows of n + d items,
so that row j starts j*d items further into the axis: the item at (row j, column i) is number i + j*d.
Cropping the rows to the outputs and stepping by the stride leaves an affine index, oy*stride + ky*dilation.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.helpers import ceildiv, flatten, make_tuple

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | str
Pads = list[tuple[int, int]]


def per_axis(name: str, value: Sizes, axes: int) -> tuple[int, ...]:
    """`value` for each spatial axis. Raises ValueError for another number of values, or values below 1."""
    values = make_tuple(value, axes)
    if len(values) != axes or any(v < 1 for v in values):
        raise ValueError(f"{name} takes an int >= 1, or {axes} of them, one a spatial axis; got {value}")
    return values


def resolve_padding(padding: Padding, kernel: Sequence[int], stride: Sequence[int],
                     dilation: Sequence[int]) -> Pads:
    """(before, after) for each spatial axis.

    `padding` is one size for all, one an axis, two an axis in the flat order of `Tensor.pad` (last axis
    first), "valid" (none) or "same" (output as large as the input; the odd one goes after, as in PyTorch).
    """
    axes = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return [(0, 0)] * axes
        if padding != "same":
            raise ValueError(f"padding is 'same', 'valid' or sizes, got {padding!r}")
        if any(s != 1 for s in stride):
            raise ValueError(f"padding 'same' takes stride 1, got {tuple(stride)}")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    sizes = make_tuple(padding, axes)
    if len(sizes) == axes:
        pads = [(p, p) for p in sizes]
    elif len(sizes) == 2 * axes:
        pads = [(sizes[2 * i], sizes[2 * i + 1]) for i in reversed(range(axes))]
    else:
        raise ValueError(f"padding takes 1, {axes} or {2 * axes} sizes for {axes} spatial axes, "
                         f"got {padding}")
    if any(p < 0 for pair in pads for p in pair):
        raise ValueError(f"padding takes sizes >= 0, got {padding}")
    return pads


def pad_spatial(x: Tensor, pads: Pads, value: float | int = 0) -> Tensor:
    """`x` with its last axes padded."""
    if all(p == (0, 0) for p in pads):
        return x
    return x.pad(((0, 0),) * (x.ndim - len(pads)) + tuple(pads), value=value)


def sliding_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int],
                     dilation: Sequence[int]) -> Tensor:
    """The windows over the last `len(kernel)` axes: shape (..., *outputs, *kernel)."""
    axes = len(kernel)
    lead, sizes = x.shape[:x.ndim - axes], x.shape[x.ndim - axes:]
    outs = [(n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    if any(o < 1 for o in outs):
        raise ValueError(f"a window of {tuple(kernel)} with dilation {tuple(dilation)} does not fit in "
                         f"{sizes}, the padded spatial axes of the input")
    keep = tuple((0, n) for n in lead)
    places = range(len(lead), len(lead) + 2 * axes)

    if all(k <= s and d == 1 and o * s <= n
           for n, k, s, d, o in zip(sizes, kernel, stride, dilation, outs, strict=True)):
        # windows that do not overlap: blocks of `stride` items, each cropped to the kernel
        x = x.shrink(keep + tuple((0, o * s) for o, s in zip(outs, stride, strict=True)))
        x = x.reshape(*lead, *flatten(zip(outs, stride, strict=True)))
        x = x.shrink(keep + tuple(flatten(((0, o), (0, k)) for o, k in zip(outs, kernel, strict=True))))
        out_places, kernel_places = places[::2], places[1::2]
    else:
        rows = [n + d if k > 1 else n for n, k, d in zip(sizes, kernel, dilation, strict=True)]
        repeats = [ceildiv(k * row, n) for k, row, n in zip(kernel, rows, sizes, strict=True)]
        x = x.reshape(*lead, *flatten((1, n) for n in sizes))
        x = x.expand(*lead, *flatten(zip(repeats, sizes, strict=True)))
        x = x.reshape(*lead, *(r * n for r, n in zip(repeats, sizes, strict=True)))
        x = x.shrink(keep + tuple((0, k * row) for k, row in zip(kernel, rows, strict=True)))
        x = x.reshape(*lead, *flatten(zip(kernel, rows, strict=True)))
        x = x.shrink(keep + tuple(flatten(((0, k), (0, s * (o - 1) + 1))
                                          for k, s, o in zip(kernel, stride, outs, strict=True))))
        if any(s > 1 for s in stride):
            whole = slice(None)
            x = x[(whole,) * len(lead) + tuple(flatten((whole, slice(None, None, s)) for s in stride))]
        out_places, kernel_places = places[1::2], places[::2]
    return x.permute(*range(len(lead)), *out_places, *kernel_places)
