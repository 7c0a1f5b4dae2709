"""Order statistics, counts, covariances and distances, by PyTorch's names, as methods of `Tensor`.

All are spelled in sorting, comparisons and reduces: a quantile is a place between two of the sorted items.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.dtype import DType, dtypes, least_upper_float, promote, sum_dtype
from tinygrad.functional.casts import as_real
from tinygrad.functional.elementwise import as_tensor
from tinygrad.functional.movement import axis_and_size, axis_of
from tinygrad.functional.sorting import bisect, positions_at

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

FEW_ELEMENTS = 64
"""Comparing with so many is at most what sorting them and looking up costs."""
FEW_RANKS = 8
"""So many items of a row are found one by one sooner than all are sorted: of a million 28 ms and 65, of 64
rows of 1,000 0.84 and 4.4; of 1,000 rows of 100 4 items take 0.9 and 1.2, 8 1.6 and 1.3 (Emerald Rapids)."""
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _row(name: str, self: Tensor, dim: int | None) -> tuple[Tensor, int]:
    """A tensor with items along an axis, all of them along the first for None."""
    x, axis = (self.flatten(), 0) if dim is None else (self, axis_of(name, self, dim))
    if not self.ndim and dim is not None:
        x = self.reshape(1)
    if not x.shape[axis]:
        raise ValueError(f"{name} takes an axis with items, got axis {dim} of shape {self.shape}")
    return x, axis


def quantile(self: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
             interpolation: str = "linear") -> Tensor:
    """The number that a share q of all items, or those along an axis, is below; NaN where there is one.

    It is at place q * (n - 1) of the sorted items: between two of them, `interpolation` is "linear", "lower",
    "higher", "midpoint" or "nearest". Several q, (k,), are a first axis.

    >>> Tensor([0.0, 1.0, 2.0, 3.0]).quantile(0.5).item()
    1.5
    """
    return _quantile("quantile", self, q, dim, keepdim, interpolation)


def nanquantile(self: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
                interpolation: str = "linear") -> Tensor:
    """`quantile` of what is not NaN; NaN where all are."""
    return _quantile("nanquantile", self, q, dim, keepdim, interpolation)


def _quantile(name: str, self: Tensor, q: float | Tensor, dim: int | None, keepdim: bool,
              interpolation: str) -> Tensor:
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"{name}: interpolation is one of {INTERPOLATIONS}, got {interpolation!r}")
    if isinstance(q, (int, float)) and not 0 <= q <= 1:
        raise ValueError(f"{name}: q is from 0 to 1, got {q}")
    x, axis = _row(name, self, dim)
    x = x.transpose(axis, -1)
    nans = x.detach().isnan().sum(-1, keepdim=True)
    last = x.shape[-1] - 1
    shares = as_tensor(name, q, self)
    ranks = shares.reshape(-1) * ((last - nans).maximum(0) if name == "nanquantile" else nans * 0 + last)
    below, above = ranks.floor(), ranks.ceil()
    if interpolation == "nearest":
        below = above = ranks.round()
    places = below.cat(above, dim=-1).cast(dtypes.int32)
    few = places.shape[-1] <= FEW_RANKS
    places = positions_at(x, x.ndim - 1, places) if few else x.argsort(-1).gather(-1, places)
    low, high = x.gather(-1, places).chunk(2, -1)
    share = {"midpoint": 0.5, "higher": 1.0}.get(interpolation, 0.0)
    found = low.lerp(high, ranks - below if interpolation == "linear" else share)
    if name == "quantile":
        found = (nans > 0).where(math.nan, found)
    found = found.transpose(axis, -1).unsqueeze(0).transpose(0, axis + 1)  # (k, ..., 1, ...)
    if keepdim:
        found = found.reshape(-1, *((1,) * self.ndim if dim is None else found.shape[1:self.ndim + 1]))
    else:
        found = found.squeeze(axis + 1)
    return found if shares.ndim else found.squeeze(0)


def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest item along an axis, counted from 1, and its position."""
    x, axis = _row("kthvalue", self, dim)
    if not 1 <= k <= x.shape[axis]:
        raise ValueError(f"kthvalue: k is from 1 to {x.shape[axis]}, the items of axis {dim}, got {k}")
    ranks = type(self).full([1 if i == axis else n for i, n in enumerate(x.shape)], k - 1, dtype=dtypes.int32,
                            device=self.device)
    places = positions_at(x, axis, ranks)
    return _kept(self, axis, keepdim, x.gather(axis, places), places)


def _kept(self: Tensor, axis: int, keepdim: bool, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Results with the reduced axis or without it."""
    return (first, second) if keepdim and self.ndim else (first.squeeze(axis), second.squeeze(axis))


def nanmedian(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """`median` of what is not NaN: of all, or along an axis (medians, their positions)."""
    x, axis = _row("nanmedian", self, dim)
    count = x.shape[axis] - x.detach().isnan().sum(axis, keepdim=True)
    places = positions_at(x, axis, (count - 1).maximum(0) // 2)
    found = _kept(x, axis, keepdim and dim is not None, x.gather(axis, places), places)
    return found[0] if dim is None else found


def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent items along an axis, and its last position.

    >>> [x.item() for x in Tensor([3, 1, 3, 2, 1]).mode()]
    [1, 4]
    """
    x, axis = _row("mode", self, dim)
    last = x.transpose(axis, -1)
    values, places = last.detach().sort(-1)
    numbers = type(self).arange(last.shape[-1], device=self.device)
    is_first = (values != values.roll(1, -1)) | (numbers == 0)
    length = numbers - is_first.where(numbers, 0).cummax(-1)[0]  # how many of its equals come before
    place = places.gather(-1, length.argmax(-1, keepdim=True))
    value = last.gather(-1, place)
    return _kept(self, axis, keepdim, value.transpose(axis, -1), place.transpose(axis, -1))


def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(`amin`, `amax`)."""
    return self.amin(dim, keepdim), self.amax(dim, keepdim)


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many items are in each of `bins` equal parts from min to max, of all items' range where these are
    equal; the last part has its end, too.

    >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
    [0.0, 2.0, 1.0, 0.0]
    """
    if bins < 1 or min > max:
        raise ValueError(f"histc takes bins >= 1 and min <= max, got {bins}, {min} and {max}")
    wide = self.flatten().detach()
    wide = wide.cast(dtypes.float32) if wide.dtype.itemsize < 4 else wide
    low, high = (wide.min(), wide.max()) if min == max and wide.numel() else (
        wide.full_like(min)[:1], wide.full_like(max)[:1])
    is_point = high == low
    low, high = is_point.where(low - 1, low), is_point.where(high + 1, high)
    part = ((wide - low) / (high - low) * bins).floor().clip(0, bins - 1)
    number = ((wide >= low) & (wide <= high)).where(part, bins).cast(dtypes.int32)
    kind = sum_dtype(self.dtype)
    counts = type(self).zeros(bins + 1, dtype=kind, device=self.device, requires_grad=False)
    return counts.scatter_reduce(0, number, wide.ones_like(dtype=kind), "sum")[:bins]


def histogram(self: Tensor, bins: int | Tensor, *, range: Sequence[float] | None = None,
              weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    """(how many items are between each two edges, the edges): `bins` are the edges, rising, or how many parts
    of one size there are between the ends of `range`: of all items unless given. The last part has its end,
    too. Items count as `weight` says; `density`: divided by their sum and by the parts' sizes.

    >>> Tensor([1.0, 2.0, 1.0]).histogram(4, range=(0.0, 3.0))[0].tolist()
    [0.0, 2.0, 1.0, 0.0]
    """
    x = self.flatten().detach()
    x = x if x.dtype.is_float else x.cast(dtypes.default_float)
    if weight is not None and weight.shape != self.shape:
        raise ValueError(f"histogram takes a weight for each item of {self.shape}, got {weight.shape}")
    if isinstance(bins, type(self)):
        if bins.ndim != 1 or range is not None:
            raise ValueError(f"histogram takes edges in one row, and no range beside them, got {bins.shape}")
        edges = bins.cast(x.dtype)
    else:
        edges = _even_edges(x, int(bins), range)
    last = edges.shape[0] - 1
    place = searchsorted(edges, x, right=True) - 1
    place = (x == edges[-1]).where(last - 1, place)
    place = ((place < 0) | (x > edges[-1]) | x.isnan()).where(last, place)  # which is left away
    counts = type(self).zeros(last + 1, dtype=x.dtype, device=self.device, requires_grad=False)
    each = x.ones_like() if weight is None else weight.flatten().cast(x.dtype)
    counts = counts.scatter_reduce(0, place, each, "sum")[:last]
    return (counts / counts.sum() / edges.diff() if density else counts), edges


def _even_edges(x: Tensor, bins: int, ends: Sequence[float] | None) -> Tensor:
    if bins < 1 or (ends is not None and (len(ends) != 2 or ends[0] > ends[1])):
        raise ValueError(f"histogram takes bins >= 1 and a range (low, high), got {bins} and {ends}")
    low, high = (x.full_like(end)[:1] if x.numel() else x.new_full((1,), end) for end in ends) if ends else (
        (x.min(), x.max()) if x.numel() else (x.new_full((1,), 0.0), x.new_full((1,), 1.0)))
    is_point = low == high
    low, high = is_point.where(low - 0.5, low), is_point.where(high + 0.5, high)
    part = type(x).arange(bins + 1, device=x.device).cast(x.dtype) / bins
    return (part == 1).where(high, low + (high - low) * part)


def searchsorted(self: Tensor, values: Any, *, right: bool = False, side: str | None = None,
                 sorter: Tensor | None = None, dtype: DType = dtypes.int32, out_int32: bool = True) -> Tensor:
    """How many items of the last axis, sorted, are below each value; `right` (or side="right"): not above.
    `sorter` has the positions that sort the items. Numbers are of `dtype`, whatever `out_int32` is.

    >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 6])).tolist()
    [1, 3]
    """
    wanted = as_tensor("searchsorted", values, self)
    sequence = (self if sorter is None else self.gather(-1, sorter)).detach().contiguous()
    if sequence.ndim > 1 and sequence.shape[:-1] != wanted.shape[:-1]:
        raise ValueError(f"searchsorted takes one sequence, or one for each row of the values, got sequences "
                         f"{self.shape} and values {wanted.shape}")
    if not sequence.shape[-1] or not wanted.numel():
        return wanted.zeros_like(dtype=dtype)
    or_equal = right or side == "right"

    def goes_on(place: Tensor) -> Tensor:
        item = sequence[place] if sequence.ndim == 1 else sequence.gather(-1, place)
        below = item <= wanted if or_equal else item < wanted
        return below | wanted.isnan() if wanted.dtype.is_float else below  # a NaN is above all

    return bisect(sequence.shape[-1], wanted.zeros_like(dtype=dtypes.int32), goes_on).cast(dtype)


def bucketize(self: Tensor, boundaries: Tensor, *, right: bool = False, out_int32: bool = True) -> Tensor:
    """Between which boundaries, sorted, each item is: `boundaries.searchsorted(self, right=right)`."""
    return searchsorted(boundaries, self, right=right)


def isin(self: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each item is among those of another tensor, or is not (`invert`): compared with each of a few,
    looked up by bisection in many, unique or not (`assume_unique`).
    """
    elements = test_elements.flatten()
    if elements.shape[0] <= FEW_ELEMENTS:
        found = (self.unsqueeze(-1) == elements).any(-1)
    else:
        rising = elements.sort()[0]
        place = searchsorted(rising, self).minimum(elements.shape[0] - 1)
        found = rising[place] == self
    return ~found if invert else found


def cov(self: Tensor, *, correction: float = 1, fweights: Tensor | None = None,
        aweights: Tensor | None = None) -> Tensor:
    """Covariances of variables, the rows, over observations, the columns; of one row, its variance.

    `fweights`, integers, says how often each observation was made, `aweights` how much it counts. Half types
    are computed in float32.

    >>> Tensor([1.0, 3.0]).cov(fweights=Tensor([3, 1])).item()
    1.0
    """
    if self.ndim > 2:
        raise ValueError(f"cov takes a row or a matrix of variables, got shape {self.shape}")
    kind = least_upper_float(self.dtype)
    wide = (self if self.ndim == 2 else self.reshape(1, self.numel())).cast(promote(kind, dtypes.float32))
    count = wide.shape[1]
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is not None and weights.shape != (count,):
            raise ValueError(f"cov of {count} observations takes as many {name}, got shape {weights.shape}")
    if fweights is not None and not fweights.dtype.is_int:
        raise ValueError(f"cov takes integers as fweights, got {fweights.dtype}")
    each = [w.cast(wide.dtype) for w in (fweights, aweights) if w is not None]
    if not each:
        deviation = wide - wide.mean(1, keepdim=True)
        found = deviation @ deviation.T / max(count - correction, 0)
    else:
        weight = math.prod(each[1:], start=each[0])
        total = weight.sum()
        deviation = wide - (wide * weight).sum(1, keepdim=True) / total
        lost = correction if aweights is None else correction * (weight * each[-1]).sum() / total
        found = (deviation * weight) @ deviation.T / (total - lost).maximum(0)
    found = found if found.shape != (1, 1) else found.reshape(())
    return found.cast(kind)


def corrcoef(self: Tensor) -> Tensor:
    """Correlations of the rows, from -1 to 1."""
    found = cov(self)
    if not found.ndim:
        return found / found
    spread = found.diagonal().sqrt()
    return (found / spread.unsqueeze(1) / spread).clip(-1, 1)


def cdist(self: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of each row of one and each of another: (..., n, d), (..., m, d) to
    (..., n, m)."""
    if self.ndim < 2 or x2.ndim < 2 or self.shape[-1] != x2.shape[-1]:
        raise ValueError(f"cdist takes (..., n, d) and (..., m, d), got {self.shape} and {x2.shape}")
    return (as_real(self, x2).unsqueeze(-2) - x2.unsqueeze(-3)).norm(p, -1)


def logdet(self: Tensor) -> Tensor:
    """The logarithm of the determinant, NaN where that is negative."""
    sign, size = self.slogdet()
    return (sign < 0).where(math.nan, size)


def tensordot(self: Tensor, other: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Products summed over the last `dims` axes of one and the first of another, or over pairs of axes."""
    mine, others = (list(range(self.ndim - dims, self.ndim)), list(range(dims))) if isinstance(dims, int) \
        else [[axis_of("tensordot", x, axis) for axis in axes]
              for x, axes in zip((self, other), dims, strict=True)]
    kept, rest = ([i for i in range(x.ndim) if i not in axes] for x, axes in ((self, mine), (other, others)))
    if [self.shape[i] for i in mine] != [other.shape[i] for i in others]:
        raise ValueError(f"tensordot over axes {mine} of {self.shape} and {others} of {other.shape}")
    rows, columns = [self.shape[i] for i in kept], [other.shape[i] for i in rest]
    width = math.prod(self.shape[i] for i in mine)
    first = (self.permute(*kept, *mine) if self.ndim else self).reshape(math.prod(rows), width)
    second = (other.permute(*others, *rest) if other.ndim else other).reshape(width, math.prod(columns))
    return (first @ second).reshape(rows + columns)


def tensor_split(self: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """So many parts of an axis, the first ones larger by one item where it does not divide; or the parts that
    positions cut it into.

    >>> [part.tolist() for part in Tensor([1, 2, 3, 4, 5]).tensor_split(3)]
    [[1, 2], [3, 4], [5]]
    """
    axis, size = axis_and_size("tensor_split", self, dim)
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            raise ValueError(f"tensor_split takes a number of parts >= 1, got {indices_or_sections}")
        least, larger = divmod(size, indices_or_sections)
        cuts = [i * least + min(i, larger) for i in range(1, indices_or_sections)]
    else:
        cuts = list(indices_or_sections)
    whole = (slice(None),) * axis
    return tuple(self[(*whole, slice(first, end))]
                 for first, end in zip([None, *cuts], [*cuts, None], strict=True))
