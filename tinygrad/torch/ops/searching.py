"""Positions that depend on values: sorted sequences, order statistics, masks."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.movement import flattened, reshaped
from tinygrad.torch.registry import enter_all, operator


def index_dtype(out_int32: bool) -> DType:
    return dtypes.int32 if out_int32 else dtypes.int64


@operator("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sequence: Tensor, values: Any, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    return sequence.searchsorted(values, right=right, side=side, sorter=sorter, dtype=index_dtype(out_int32))


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
    values, places = x.mode(dim, keepdim)
    return values, places.cast(dtypes.int64)


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
    shape = tuple(b if a == 1 else a for a, b in zip((1,) * (mask.ndim - x.ndim) + tuple(x.shape),
                                                     (1,) * (x.ndim - mask.ndim) + tuple(mask.shape)))
    if prod(shape) == 0 or prod(source.shape) == 0:
        return x.expand(shape)
    chosen = mask.cast(dtypes.bool).expand(shape)
    numbers = flattened(chosen).cast(dtypes.int64).cumsum(0) - 1
    items = flattened(source)[numbers.maximum(0).minimum(prod(source.shape) - 1)]
    return chosen.where(reshaped(items, shape), x.expand(shape))


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
    found: Tensor = x.nonzero(size=size, fill_value=fill_value)
    return found


enter_all({"histc": Tensor.histc})
