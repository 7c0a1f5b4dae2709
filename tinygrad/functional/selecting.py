"""Results whose sizes depend on values: the items of a mask, positions, distinct values, counted repeats.

The values that decide are computed first, to know how many items there are. With `size=` that many are made,
lazily: what is over is left out, and what is missing filled up; so these functions work under TinyJit and
vmap, where values are not known.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.indexing import refuse_unknown_size
from tinygrad.functional.sorting import bisect
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.helpers import prod
from tinygrad.tensor.hostdata import true_places

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


COUNTED_SHARE = 4
"""Numbers for each item that take less time to count than the items to sort (100,000 integers below 1,000,
Zen 4: 1 ms, sorted 55)."""


def masked_select(self: Tensor, mask: Tensor, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """The items where `mask` holds, in one axis. Computes the mask, to know how many they are.

    With `size`, exactly that many, lazily: the rest is left out, or `fill_value` added. Only so does it work
    under TinyJit and vmap.

    >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3, fill_value=-1).tolist()
    [1, 3, -1]
    """
    shape = broadcast_shape("masked_select", self.shape, mask.shape)
    items, chosen = self.expand(shape), mask.cast(dtypes.bool).expand(shape)
    if size is None:
        refuse_unknown_size("masked_select", "x.masked_select(mask, size=n)")
        return items.flatten()[chosen.flatten()]
    places, found = _first_places(chosen, size)
    flat = items.flatten()
    return _filled(flat[places] if len(found) else flat.shrink([(0, 0)]), found, size, fill_value)


def nonzero(self: Tensor, size: int | None = None, fill_value: Any = 0, *, as_tuple: bool = False) -> Any:
    """The positions of the items that are not zero, one row each of `ndim` integers; `as_tuple`: one tensor
    for each axis, which index this one. Computes this tensor, to know how many they are.

    With `size`, exactly that many rows, lazily: the rest is left out, or `fill_value` added. Only so does it
    work under TinyJit and vmap.

    >>> Tensor([0, 3, 0, 5]).nonzero().tolist()
    [[1], [3]]
    """
    if as_tuple:
        found = nonzero(self, size, fill_value)
        return tuple(found[:, axis] for axis in range(self.ndim))
    if size is None:
        refuse_unknown_size("nonzero", "x.nonzero(size=n)")
        rows = np.stack(true_places((self != 0).numpy()), 1) if self.ndim else np.argwhere(self.numpy())
        return type(self)(rows.astype(np.int32), device=self.device, requires_grad=False)
    places, found = _first_places(self != 0, size)
    if not len(found) or not self.ndim:
        return type(self).full((size, self.ndim), fill_value, dtype=dtypes.int32, device=self.device)
    columns = [places // prod(self.shape[axis + 1:]) % n for axis, n in enumerate(self.shape)]
    return _filled(columns[0].stack(*columns[1:], dim=-1), found.unsqueeze(-1), size, fill_value)


def _first_places(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The positions in the flattened `mask` of the first `size` items that hold (at most as many as there
    are items), and which of these there are.

    The place of item number k is where the running count first reaches k + 1, found by bisection.
    """
    if size < 0:
        raise ValueError(f"a size is at least 0, got {size}")
    total = mask.numel()
    number = type(mask).arange(min(size, total), device=mask.device)
    if not len(number):
        return number, number != 0
    counts = mask.flatten().cast(dtypes.int32).cumsum().contiguous()
    places = bisect(total, number.zeros_like(), lambda place: counts[place] <= number)
    return places.minimum(total - 1), number < counts[-1]


def _filled(items: Tensor, found: Tensor, size: int, fill_value: Any) -> Tensor:
    """`items` where `found`, `fill_value` elsewhere and behind them up to `size`."""
    whole = found.where(items, fill_value).cast(items.dtype)
    return whole.pad([(0, size - len(found)), *[None] * (items.ndim - 1)], value=fill_value)


# --- distinct values and repeats ----------------------------------------------------------------------------


def unique(self: Tensor, return_inverse: bool = False, return_counts: bool = False, size: int | None = None,
           fill_value: Any = 0, *, sorted: bool = True) -> Any:
    """The distinct values in rising order, in one axis. Computes this tensor, to know how many they are.

    With `return_inverse` also, for each item, the position of its value among them (in this shape); with
    `return_counts` also how often each comes. Every NaN is a value of its own. With `size`, exactly that many
    values, lazily: the largest are left out, or `fill_value` added, with count 0. They are `sorted` in any
    case.

    >>> values, counts = Tensor([3, 1, 3]).unique(return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    >>> Tensor([3, 1, 3]).unique(size=3, fill_value=-1).tolist()
    [1, 3, -1]
    """
    if size is None:
        refuse_unknown_size("unique", "x.unique(size=n)")
        found = _counted_values(self) if self.numel() and not self.dtype.is_float else None
        if found is not None:
            results = [found[0], *[found[1]] * return_inverse, *[found[2]] * return_counts]
            return tuple(results) if len(results) > 1 else results[0]
    values, order = self.flatten().sort()
    if size is None:
        values.realize(order)
    total = values.numel()
    changes = values[1:] != values[:-1]
    is_first = type(self).ones(min(total, 1), dtype=dtypes.bool, device=self.device).cat(changes)
    results = [masked_select(values, is_first, size, fill_value)]
    if return_inverse:
        ranks = is_first.cast(dtypes.int32).cumsum() - 1
        results.append(ranks.zeros_like().scatter(0, order, ranks).reshape(self.shape))
    if return_counts:
        starts = nonzero(is_first, None if size is None else size + 1, total).flatten()
        ends = starts if size is None else starts[:size]
        following = starts[1:].cat(type(self)([total], device=self.device)) if size is None else starts[1:]
        results.append(following - ends)
    return tuple(results) if len(results) > 1 else results[0]


def _counted_values(self: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """(the distinct values of integers, the position of each item's value among them, how often each comes),
    by counting all numbers from the least to the largest; None where these are too many."""
    wide = self.cast(dtypes.int32) if self.dtype.itemsize < 4 else self
    least, largest = wide.min().stack(wide.max()).tolist()
    if largest - least >= COUNTED_SHARE * self.numel():
        return None
    # of few different lengths, for which there are kernels
    length = 1 << (largest - least).bit_length()
    places = (wide - least).cast(dtypes.int32).contiguous()
    ones = places.ones_like().flatten()
    counts = ones.zeros(length, dtype=dtypes.int32, device=self.device).scatter_add(0, places.flatten(), ones)
    count_of = counts.numpy()
    found = np.flatnonzero(count_of)
    values = np.array([least], wide.dtype.numpy) + found.astype(wide.dtype.numpy)
    place_of = (np.cumsum(count_of > 0) - 1).astype(np.int32)

    def result(array: np.ndarray[Any, Any]) -> Tensor:
        return type(self)(array, device=self.device, requires_grad=False)

    return result(values).cast(self.dtype), result(place_of)[places], result(count_of[found])


def repeated_each(self: Tensor, repeats: Sequence[int] | Tensor, axis: int) -> Tensor:
    """The items along `axis`, each as often as `repeats` says for it (or for all, if it is one number)."""
    if isinstance(repeats, type(self)):
        refuse_unknown_size("repeat_interleave", "one int for all items, or a list of ints")
    counts = np.array(repeats.numpy() if isinstance(repeats, type(self)) else repeats)
    size = self.shape[axis]
    if counts.ndim > 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or counts.size not in (1, size):
        raise ValueError(f"repeat_interleave takes one repeat of at least 0, or one for each of the {size} "
                         f"items of axis {axis}, got {counts.tolist()}")
    places = np.repeat(np.arange(size, dtype=np.int32), counts)
    return self[(*[slice(None)] * axis, places)]
