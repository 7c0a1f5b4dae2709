"""Convolution, its transpose, convolution at places that are computed, and columns of windows."""
from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import Ints, check_count, op
from tinygrad.tensor import Tensor


class WindowAttributes(TypedDict, total=False):
    """Where windows lie."""

    auto_pad: str
    dilations: Any
    pads: Any
    strides: Any


class ConvolutionAttributes(WindowAttributes, total=False):
    group: int
    kernel_shape: Any


class Windows(NamedTuple):
    """Where windows lie, for each spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: list[tuple[int, int]]
    """(before, after)"""

    @staticmethod
    def over(x: Tensor, kernel: Sequence[int], auto_pad: str = "NOTSET", dilations: Any = None,
             pads: Any = None, strides: Any = None) -> Windows:
        """Windows over `x` (N, C, *sizes), padded as `pads` or `auto_pad` say."""
        sizes, stride, dilation = x.shape[2:], spatial(x, strides), spatial(x, dilations)
        if len(kernel) != len(sizes):
            raise ValueError(f"a kernel has {len(sizes)} axes, as many as are behind the channels, got "
                             f"{len(kernel)}")
        for what, numbers in (("kernel", kernel), ("strides", stride), ("dilations", dilation)):
            if any(n < 1 for n in numbers):
                raise ValueError(f"{what}: sizes and steps of windows are >= 1, got {tuple(numbers)}")
        if pads is not None and len(pads) != 2 * len(sizes):
            raise ValueError(f"pads are {2 * len(sizes)} numbers, got {len(pads)}")
        if auto_pad in ("NOTSET", "VALID"):
            given = [0] * (2 * len(sizes)) if pads is None or auto_pad == "VALID" else pads
            return Windows(stride, dilation, [(given[i], given[i + len(sizes)]) for i in range(len(sizes))])
        found = []
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
            total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            small, large = total // 2, total - total // 2
            found.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
        return Windows(stride, dilation, found)

    @property
    def flat_pads(self) -> tuple[int, ...]:
        """As methods of `Tensor` take them: the last axis first."""
        return tuple(n for pair in reversed(self.pads) for n in pair)


def spatial(x: Tensor, value: Sequence[int] | None, default: int = 1) -> tuple[int, ...]:
    """`value` for each axis behind batch and channels, or `default` for all."""
    axes = x.ndim - 2
    if value is not None and len(value) != axes:
        raise ValueError(f"strides, dilations and output_padding are {axes} numbers, got {len(value)}")
    return (default,) * axes if value is None else tuple(value)


def _kernel(W: Tensor, said: Any) -> tuple[int, ...]:
    """The spatial sizes of weights, of which an attribute may say nothing else."""
    if said is not None and tuple(said) != W.shape[2:]:
        raise ValueError(f"kernel_shape is {tuple(said)}, and that of the weights of shape {W.shape} "
                         f"{W.shape[2:]}")
    return W.shape[2:]


@op
def Conv(X: Tensor, W: Tensor, B: Tensor | None = None, *, group: int = 1, kernel_shape: Any = None,
         **windows: Unpack[WindowAttributes]) -> Tensor:
    where = Windows.over(X, _kernel(W, kernel_shape), **windows)
    return X.conv2d(W, B, group, where.strides, where.dilations, where.flat_pads)


@op
def ConvTranspose(X: Tensor, W: Tensor, B: Tensor | None = None, *, auto_pad: str = "NOTSET",
                  dilations: Any = None, group: int = 1, kernel_shape: Any = None, output_padding: Any = None,
                  output_shape: Any = None, pads: Any = None, strides: Any = None) -> Tensor:
    """The transpose of `Conv`. Where the result's sizes are said, padding makes them so."""
    kernel = _kernel(W, kernel_shape)
    stride, dilation, padding = Windows.over(X, kernel, auto_pad, dilations, pads, strides)
    if group < 1 or X.shape[1] % group:
        raise ValueError(f"group divides the {X.shape[1]} channels, got {group}")
    extra = spatial(X, output_padding, 0)
    whole = [(n - 1) * s + d * (k - 1) + 1 + e
             for n, s, d, k, e in zip(X.shape[2:], stride, dilation, kernel, extra, strict=True)]
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [n * s for n, s in zip(X.shape[2:], stride, strict=True)]
    if output_shape is not None:
        totals = [n - wanted for n, wanted in zip(whole, output_shape[-len(whole):], strict=True)]
        upper = auto_pad == "SAME_UPPER"
        padding = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    # all of it, then cropped (or, where it has to be larger, padded): sizes may be anything then
    full = X.conv_transpose2d(W, None, group, stride, dilation, 0, 0)
    crop = [(-before, -(after - e)) for (before, after), e in zip(padding, extra, strict=True)]
    full = full.pad(((0, 0), (0, 0), *crop))
    return full if B is None else full + B.reshape(-1, *(1,) * (X.ndim - 2))


@op
def Col2Im(input: Tensor, image_shape: Ints, block_shape: Ints, *, dilations: Any = None, pads: Any = None,
           strides: Any = None) -> Tensor:
    """Blocks put back where windows took them, added up where they overlap: (N, C * block, L) to (N, C,
    *image)."""
    axes = len(image_shape)
    stride, dilation = strides or (1,) * axes, dilations or (1,) * axes
    pads = pads or (0,) * 2 * axes
    for what, numbers, wanted in (("the numbers of block_shape", block_shape, axes), ("pads", pads, 2 * axes),
                                  ("strides", stride, axes), ("dilations", dilation, axes)):
        check_count(what, len(numbers), wanted)
    padded = [n + pads[i] + pads[i + axes] for i, n in enumerate(image_shape)]
    outs = [(n - d * (k - 1) - 1) // s + 1 for n, k, s,
            d in zip(padded, block_shape, stride, dilation, strict=True)]
    count = math.prod(block_shape)
    n, c = input.shape[0], input.shape[1] // count
    kernel = Tensor.eye(count, dtype=input.dtype, device=input.device).reshape(count, 1, *block_shape)
    columns = input.reshape(n * c, count, *outs)
    made = ConvTranspose(columns, kernel, dilations=dilation, strides=stride)
    rest = [size - got for size, got in zip(padded, made.shape[2:], strict=True)]
    crop = [(-pads[i], r - pads[i + axes]) for i, r in enumerate(rest)]
    return made.pad(((0, 0), (0, 0), *crop)).reshape(n, c, *image_shape)


def sample(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Items of the spatial axes of `x` (N, C, *sizes) at real places, an index of shape (N, *P) for each
    axis; linear between items, zero outside: (N, C, *P)."""
    return weighted_items(x, places, lambda share: {0: 1 - share, 1: share})


def weighted_items(x: Tensor, places: Sequence[Tensor], weights: Callable[[Tensor], dict[int, Tensor]],
                   within: Callable[[Tensor, int], Tensor] = lambda place, size: place) -> Tensor:
    """Sums of the items around real places of the spatial axes of `x`: `weights` says how much of the item so
    many behind the one at or before a place is taken, given how far behind it that is; `within` brings whole
    places into an axis of a size."""
    lows = [p.floor() for p in places]
    shares = [weights(p - low) for p, low in zip(places, lows, strict=True)]
    terms = []
    for offsets in itertools.product(*shares):
        at = [within(low + o, n) for low, o, n in zip(lows, offsets, x.shape[2:], strict=True)]
        weight = functools.reduce(operator.mul, [s[o] for s, o in zip(shares, offsets, strict=True)])
        terms.append(items_at(x, at) * weight.unsqueeze(1))
    return functools.reduce(operator.add, terms)


def items_at(x: Tensor, at: Sequence[Tensor]) -> Tensor:
    """Items of `x` (N, C, *sizes) at whole places of shape (N, *P); zero outside: (N, C, *P)."""
    n, c, *sizes = x.shape
    inside = functools.reduce(operator.and_, [
        (p >= 0) & (p <= size - 1) for p, size in zip(at, sizes, strict=True)])
    whole = [p.maximum(0).minimum(size - 1).cast(dtypes.int32) for p, size in zip(at, sizes, strict=True)]
    flat = whole[0]
    for place, size in zip(whole[1:], sizes[1:], strict=True):
        flat = flat * size + place
    index = flat.reshape(n, 1, -1).expand(n, c, -1)
    found = x.reshape(n, c, -1).gather(2, index).reshape(n, c, *flat.shape[1:])
    return inside.unsqueeze(1).where(found, 0)


@op
def DeformConv(X: Tensor, W: Tensor, offset: Tensor, B: Tensor | None = None, mask: Tensor | None = None, *,
               dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1,
               pads: Any = None, strides: Any = None) -> Tensor:
    """Convolution whose windows read at places moved by `offset`, times `mask`."""
    axes, kernel = X.ndim - 2, _kernel(W, kernel_shape)
    stride, dilation, padding = Windows.over(X, kernel, "NOTSET", dilations, pads, strides)
    n, c = X.shape[:2]
    outs, count, device = offset.shape[2:], math.prod(kernel), X.device
    moved = offset.reshape(n * offset_group, *kernel, axes, *outs)
    places = []
    for i in range(axes):
        along = [1] * (1 + 2 * axes)
        along[1 + i], taps = kernel[i], Tensor.arange(kernel[i], device=device) * dilation[i]
        base = taps.reshape(*along)
        along[1 + i], along[1 + axes + i] = 1, outs[i]
        base = base + (Tensor.arange(outs[i], device=device) * stride[i] - padding[i][0]).reshape(*along)
        places.append((moved[(slice(None), *[slice(None)] * axes, i)] + base).reshape(n * offset_group,
                                                                                      count, *outs))
    columns = sample(X.reshape(n * offset_group, c // offset_group, *X.shape[2:]), places)
    if mask is not None:
        columns = columns * mask.reshape(n * offset_group, 1, count, *outs)
    columns = columns.reshape(n, group, c // group * count, math.prod(outs))
    weights = W.reshape(group, W.shape[0] // group, -1)
    made = (weights @ columns).reshape(n, W.shape[0], *outs)
    return made if B is None else made + B.reshape(-1, *(1,) * axes)
