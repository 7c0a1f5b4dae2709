"""Sliding windows, which convolution and pooling share: sizes, padding, and the windows themselves.

The windows are movement only. An axis of n items is repeated k times and cut into k rows of n + d items,
so that row j starts j*d items further into the axis: the item at (row j, column i) is number i + j*d.
Cropping the rows to the outputs and stepping by the stride leaves an affine index, oy*stride + ky*dilation.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinygrad.frozen import frozen
from tinygrad.graph.sizes import is_symbolic, largest
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, flatten, make_tuple, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | str
Pads = Sequence[tuple[int, int]]

MOST_TERMS = 16
"""Terms of the gradient at what windows were taken of; more are a loop."""


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
    Sizes below 0 crop.
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
    return pads


def pad_spatial(x: Tensor, pads: Pads, value: float | int = 0) -> Tensor:
    """`x` with its last axes padded."""
    if all(p == (0, 0) for p in pads):
        return x
    return x.pad(((0, 0),) * (x.ndim - len(pads)) + tuple(pads), value=value)


def sliding_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int],
                     dilation: Sequence[int]) -> Tensor:
    """The windows over the last `len(kernel)` axes: shape (..., *outputs, *kernel)."""
    windows = windows_of(x.uop, kernel, stride, dilation)
    terms = prod(ceildiv(k, _moved_together(s, d)) for k, s, d in zip(kernel, stride, dilation, strict=True))
    if x.dtype.is_float and 1 < terms <= MOST_TERMS:
        rule = WindowGradients(tuple(kernel), tuple(stride), tuple(dilation))
        windows = windows.with_gradient((x.uop,), rule)
    return type(x).of(windows, x)


def _moved_together(stride: int, dilation: int) -> int:
    """How many neighbours in a window go back to places that neighbouring windows do not reach."""
    return stride if dilation == 1 else 1


@frozen
class WindowGradients:
    """The gradient at what windows were taken of: for each item, the sum over the windows that it is in, a
    term each. (Movement's own rules give a loop whose places are quotients and remainders.)"""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp]:
        shape, axes = node.src[1].shape, len(self.kernel)
        total = gradient
        for i, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            total = _overlapped(total, len(shape) - axes + i, len(shape), shape[i - axes], k, s, d)
        return (total,)


def _overlapped(windows: UOp, axis: int, inner: int, size: int, kernel: int, stride: int,
                dilation: int) -> UOp:
    """Windows along `axis`, whose items lie along `inner`, put back on an axis of `size` items and added up
    where they overlap; without `inner`.

    Item k of window y belongs at y*stride + k*dilation. What `_moved_together` says goes there as one term:
    there are as many as windows overlap.
    """
    together = _moved_together(stride, dilation)
    groups, outs = ceildiv(kernel, together), windows.shape[axis]
    windows = _along(windows, UOp.pad, {inner: (0, groups * together - kernel)}, (0, 0))
    terms = []
    for group in range(groups):
        first = group * together
        items = _along(windows, UOp.shrink, {inner: (first, first + together)})
        places = [p for p in range(len(items.shape)) if p != inner]
        items = items.permute((*places[:axis + 1], inner, *places[axis + 1:]))
        items = _along(items, UOp.pad, {axis + 1: (0, stride - together)}, (0, 0))
        shape = items.shape
        items = items.reshape((*shape[:axis], outs * stride, *shape[axis + 2:]))
        start = first * dilation
        kept = min(outs * stride, size - start)
        items = _along(items, UOp.shrink, {axis: (0, kept)})
        terms.append(_along(items, UOp.pad, {axis: (start, size - start - kept)}, (0, 0)))
    return functools.reduce(operator.add, terms)


def _along(x: UOp, move: Callable[[UOp, list[tuple[int, int]]], UOp], changes: dict[int, tuple[int, int]],
           others: tuple[int, int] | None = None) -> UOp:
    """`x` padded or cropped by `move` along some axes; along the others by `others`, or left whole."""
    return move(x, [changes.get(i, others or (0, n)) for i, n in enumerate(x.shape)])


def windows_of(x: UOp, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> UOp:
    """As `sliding_windows`, of a node."""
    axes = len(kernel)
    lead, sizes = x.shape[:-axes], x.shape[-axes:]
    outs = [(n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    if any(o < 1 for o in outs):
        raise ValueError(f"a window of {tuple(kernel)} with dilation {tuple(dilation)} does not fit in "
                         f"{sizes}, the padded spatial axes of the input")
    keep = tuple((0, n) for n in lead)
    if is_symbolic(sizes):  # those of the largest axes, without the ones that see items beyond
        whole = x.pad((*(((0, 0),) * len(lead)), *((0, largest(n) - n) for n in sizes)))
        every = windows_of(whole, kernel, stride, dilation)
        return every.shrink((*keep, *((0, o) for o in outs), *((0, k) for k in kernel)))
    places = range(len(lead), len(lead) + 2 * axes)

    if all(k <= s and d == 1 and o * s <= n
           for n, k, s, d, o in zip(sizes, kernel, stride, dilation, outs, strict=True)):
        # windows that do not overlap: blocks of `stride` items, each cropped to the kernel
        x = x.shrink(keep + tuple((0, o * s) for o, s in zip(outs, stride, strict=True)))
        x = x.reshape((*lead, *flatten(zip(outs, stride, strict=True))))
        x = x.shrink(keep + tuple(flatten(((0, o), (0, k)) for o, k in zip(outs, kernel, strict=True))))
        out_places, kernel_places = places[::2], places[1::2]
    else:
        rows = [n + d if k > 1 else n for n, k, d in zip(sizes, kernel, dilation, strict=True)]
        repeats = [ceildiv(k * row, n) for k, row, n in zip(kernel, rows, sizes, strict=True)]
        x = x.reshape((*lead, *flatten((1, n) for n in sizes)))
        x = x.expand((*lead, *flatten(zip(repeats, sizes, strict=True))))
        x = x.reshape((*lead, *(r * n for r, n in zip(repeats, sizes, strict=True))))
        x = x.shrink(keep + tuple((0, k * row) for k, row in zip(kernel, rows, strict=True)))
        x = x.reshape((*lead, *flatten(zip(kernel, rows, strict=True))))
        x = x.shrink(keep + tuple(flatten(((0, k), (0, s * (o - 1) + 1))
                                          for k, s, o in zip(kernel, stride, outs, strict=True))))
        if any(s > 1 for s in stride):
            x = x.stride((*(1 for _ in lead), *flatten((1, s) for s in stride)))
        out_places, kernel_places = places[1::2], places[::2]
    return x.permute((*range(len(lead)), *out_places, *kernel_places))
