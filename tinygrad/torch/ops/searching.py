"""Positions that depend on values: sorted sequences, order statistics, masks."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, operator


def index_dtype(out_int32: bool) -> DType:
    return dtypes.int32 if out_int32 else dtypes.int64


@operator("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sequence: Tensor, values: Any, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    """How many items of the last axis are below each value, or (right) not above."""
    if not isinstance(values, Tensor):
        values = Tensor.full((), values, dtype=sequence.dtype, device="CPU")
    if sorter is not None:
        sequence = sequence.gather(sequence.ndim - 1, sorter)
    rows = sequence if sequence.ndim > 1 else sequence.reshape(*(1,) * max(0, values.ndim - 1), -1)
    items, wanted = rows.unsqueeze(-2), values.unsqueeze(-1)
    goes_on = items <= wanted if side == "right" or right else items < wanted
    if wanted.dtype.is_float:  # a NaN is above all
        goes_on = goes_on | wanted.isnan()
    found: Tensor = goes_on.sum(-1).cast(index_dtype(out_int32)).reshape(values.shape)
    return found


@operator("bucketize.Tensor", "bucketize.Scalar")
def bucketize(values: Any, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, values, out_int32, right)


def at_rank(x: Tensor, rank: Any, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The item of a rank (a number or a tensor that `dim` is kept in) along an axis, and its place."""
    if x.ndim == 0:
        return x, Tensor.zeros((), dtype=dtypes.int64, device="CPU")
    dim %= x.ndim
    values, places = x.sort(dim)
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1:])
    index = rank if isinstance(rank, Tensor) else Tensor.full(shape, rank, dtype=dtypes.int64, device="CPU")
    found = values.gather(dim, index), places.gather(dim, index)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


@operator("kthvalue")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return at_rank(x, k - 1, dim, keepdim)


def median(ignores_nan: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """The lower median along an axis and its place; the first NaN, unless NaNs are ignored."""
    def of_axis(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x, Tensor.zeros((), dtype=dtypes.int64, device="CPU")
        size = x.shape[dim]
        if not x.dtype.is_float:
            return at_rank(x, (size - 1) // 2, dim, keepdim)
        count = x.isnan().sum(dim, True).cast(dtypes.int64)
        if ignores_nan:
            rank = (-(count - size) - 1).maximum(0).div(2, rounding_mode="floor")
        else:
            rank = (count > 0).where(-(count - size), (size - 1) // 2)
        return at_rank(x, rank, dim, keepdim)
    return of_axis


def of_all(of_axis: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda x: of_axis(x.reshape(-1), 0)[0]


enter_all({"median.dim": median(False), "nanmedian.dim": median(True),
           "median": of_all(median(False)), "nanmedian": of_all(median(True))})


@operator("mode")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent items of an axis, and its last place."""
    if x.ndim == 0:
        return x, Tensor.zeros((), dtype=dtypes.int64, device="CPU")
    dim %= x.ndim
    last = x.transpose(dim, -1)
    same = last.unsqueeze(-1) == last.unsqueeze(-2)
    counts = same.sum(-1)
    most = counts == counts.max(-1, keepdim=True)
    value = most.where(last, last.dtype.max).min(-1, keepdim=True)
    place = Tensor.arange(last.shape[-1], dtype=dtypes.int64, device="CPU")
    index = (last == value).where(place, -1).max(-1, keepdim=True)
    found = value.transpose(dim, -1), index.transpose(dim, -1)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def extremum_so_far(largest: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def running(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x, Tensor.zeros((), dtype=dtypes.int64, device="CPU")
        return x.cummax(dim) if largest else x.cummin(dim)
    return running


enter_all({"cummax": extremum_so_far(True), "cummin": extremum_so_far(False)})


@operator("masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x` with the items of `source`, in their order, where the mask holds."""
    shape = tuple(max(int(a), int(b)) for a, b in zip((1,) * (mask.ndim - x.ndim) + tuple(x.shape),
                                                      (1,) * (x.ndim - mask.ndim) + tuple(mask.shape)))
    if prod(shape) == 0 or prod(source.shape) == 0:
        return x.expand(shape)
    chosen = mask.cast(dtypes.bool).expand(shape)
    numbers = chosen.reshape(-1).cast(dtypes.int64).cumsum(0) - 1
    items = source.reshape(-1)[numbers.clip(0, prod(source.shape) - 1)].reshape(shape)
    return chosen.where(items, x.expand(shape))


@operator("masked_scatter_backward")
def masked_scatter_gradient(g: Tensor, mask: Tensor, sizes: Any) -> Tensor:
    """The items of `g` where the mask holds, in their order, and zeros after them."""
    chosen = mask.cast(dtypes.bool).expand(g.shape).reshape(-1)
    numbers = chosen.cast(dtypes.int64).cumsum(0) - 1
    room = Tensor.zeros(prod(g.shape) + 1, dtype=g.dtype, device="CPU")
    places, items = chosen.where(numbers, prod(g.shape)), chosen.where(g.reshape(-1), 0)
    spread = room.scatter_reduce(0, places, items, "sum")
    size = prod(sizes)
    return spread.pad(((0, max(0, size - int(spread.shape[0]))),))[:size].reshape(tuple(sizes))


@operator("nonzero_static")
def nonzero_of_size(x: Tensor, size: int, fill_value: int = -1) -> Tensor:
    return x.nonzero(size=size, fill_value=fill_value)


@operator("histc")
def histogram(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many items are in each of `bins` equal parts from `min` to `max`; of all where these are equal."""
    flat = x.reshape(-1).cast(dtypes.float32 if x.dtype.itemsize < 4 else x.dtype)
    low, high = (flat.min(), flat.max()) if min == max else (flat * 0 + min, flat * 0 + max)
    low, high = (low.reshape(-1)[:1], high.reshape(-1)[:1])
    wide = high == low
    low, high = wide.where(low - 1, low), wide.where(high + 1, high)
    part = ((flat - low) / (high - low) * bins).floor().clip(0, bins - 1)
    inside = (flat >= low) & (flat <= high)
    number = inside.where(part, bins).cast(dtypes.int64)
    counts = Tensor.zeros(bins + 1, dtype=dtypes.float32, device="CPU")
    return counts.scatter_reduce(0, number, Tensor.ones_like(number).cast(dtypes.float32), "sum")[:bins]
