"""Writes where a mask holds, `x[mask] = values`, as a choice for each item. PyTorch's own way takes the
places of the mask, whose number values decide, and so do the gradients of its operator.

Out: `WRITES`, what graphs of TorchDynamo write values that have gradients by, made of other operators, and a
decomposition of `index_put` for the others. A mask beside other indices is the places where it holds, as many
as those or the values say (`put_among`). Next: `backend.py`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false

ALL = slice(None)


def is_mask(index: Any) -> bool:
    """Whether an index takes the items where it holds. PyTorch reads unsigned bytes so too."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def masked_put(x: torch.Tensor, mask: torch.Tensor, axis: int, values: torch.Tensor,
               accumulate: bool) -> torch.Tensor:
    """`x` with `values` written, or added, where a mask of the axes from `axis` on holds. An axis of `values`
    is numbered by the items where it does, or is one for all of them."""
    if any(guard_or_false(n == 0) for n in values.shape):
        return x + values.sum().to(x.dtype)
    mask = mask.bool()
    after = x.ndim - axis - mask.ndim
    spread = mask.reshape(*mask.shape, *(1,) * after)
    items = values.reshape(*(1,) * (after + 1 - values.ndim), *values.shape)
    before, rest = items.shape[:items.ndim - after - 1], items.shape[items.ndim - after:]
    count = items.shape[len(before)]
    if guard_or_false(count == 1):
        whole = items.reshape(*before, *(1,) * mask.ndim, *rest)
    else:
        torch._assert_async(mask.sum() == count, f"{count} values do not fit the items where a mask holds")
        if free_unbacked_symbols(count):  # there may be none: one more, which no place takes
            items = torch.cat([items, items.new_zeros(*before, 1, *rest)], len(before))
        numbers = (mask.flatten().cumsum(0) - 1).clamp(0, items.shape[len(before)] - 1)
        whole = items.index_select(len(before), numbers).reshape(*before, *mask.shape, *rest)
    return torch.where(spread, x + whole if accumulate else whole, x).to(x.dtype)


def put_among(x: torch.Tensor, index: Sequence[Any], values: torch.Tensor,
              accumulate: bool = False) -> torch.Tensor:
    """`x` with `values` written, or added, at `x[index]`, of masks and tensors beside each other: one write
    into the flat tensor, with an item more behind it, for places that are none."""
    size = x.numel()
    places = places_of(x, without_ellipsis(index, x.ndim), values)
    given = values.reshape(values.shape[max(values.ndim - places.ndim, 0):]).to(x.dtype)
    written = given.expand(places.shape).flatten()
    flat = torch.cat([x.flatten(), x.new_zeros(1)])
    return flat.index_put((places.flatten(),), written, accumulate)[:size].reshape(x.shape)


def places_of(x: torch.Tensor, items: Sequence[Any], values: torch.Tensor) -> torch.Tensor:
    """The numbers of the items of `x[items]`, and the number of all for those beyond what a mask holds."""
    shape: list[Any] = []
    beyond: list[int] = []
    axis = 0
    for item in items:
        if item is not None:
            axes = item.ndim if is_mask(item) else 1
            shape += x.shape[axis:axis + axes] if axes else [1]
            beyond += [int(is_mask(item))] + [0] * (axes - 1)
            axis += axes
    numbers = torch.arange(x.numel(), device=x.device).reshape(shape)
    sides = [count for more in reversed(beyond) for count in (0, more)]
    numbers = torch.nn.functional.pad(numbers, sides, value=x.numel())
    return numbers[tuple(without_masks(items, values))]


def without_ellipsis(index: Sequence[Any], rank: int) -> list[Any]:
    """An index with an item for each of `rank` axes, or as many axes as a mask has; lists are tensors."""
    items = [torch.tensor(item) if isinstance(item, list) else item for item in index]
    used = sum(item.ndim if is_mask(item) else item is not None and item is not Ellipsis for item in items)
    place = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[place:place + 1] = [ALL] * (rank - used)
    return items


def without_masks(items: Sequence[Any], values: torch.Tensor) -> list[Any]:
    """An index with tensors for its masks: the places where each holds, as many as other tensors say, or
    `values`. Where neither says it, there are places for all, and those left over are beyond the mask."""
    masks = [item.bool().flatten() for item in items if is_mask(item)]
    totals = torch.stack([mask.sum() for mask in masks])
    most = totals.amax() * (totals.amin() > 0)
    axis = -1 - axes_behind(items)
    said = [item.shape[-1] for item in items if isinstance(item, torch.Tensor) and not is_mask(item)
            and item.ndim and not guard_or_false(item.shape[-1] == 1)]
    if said:
        count = said[0]
        most = torch.full_like(most, count)
    elif values.ndim >= -axis and not guard_or_false(values.shape[axis] == 1):
        count = values.shape[axis]
        torch._assert_async(most == count, f"{count} values do not fit the items where a mask holds")
    else:
        count = max(mask.numel() for mask in masks)
    torch._assert_async(((totals == most) | (totals == 1)).all(),
                        "the items where a mask holds are not as many as those of the indices beside it")
    slots = torch.arange(count, device=values.device)
    found: list[Any] = []
    for item in items:
        if is_mask(item):
            held = item.bool().flatten().cumsum(0)
            number = torch.where(held[-1] == 1, 0, slots) + 1
            flat = torch.where(slots < most, torch.searchsorted(held, number), item.numel())
            found += unravelled(flat, item.shape)
        else:
            found.append(item)
    return found


def axes_behind(items: Sequence[Any]) -> int:
    """How many axes an indexed tensor has behind those of the tensors in its index. These stand where the
    tensors do if they are beside each other, else first."""
    kept = [isinstance(item, torch.Tensor) for item in items if not isinstance(item, (int, torch.SymInt))]
    places = [place for place, is_tensor in enumerate(kept) if is_tensor]
    beside = places[-1] - places[0] + 1 == len(places)
    return len(kept) - (places[-1] + 1 if beside else len(places))


def unravelled(flat: torch.Tensor, shape: Sequence[int]) -> list[torch.Tensor]:
    """The places along each axis of what `flat` numbers; the number of items is one beyond the first axis."""
    found: list[torch.Tensor] = []
    for size in reversed(shape[1:]):
        found.insert(0, flat % size)
        flat = flat // size
    return [flat, *found]


def index_put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor,
              accumulate: bool = False) -> torch.Tensor:
    """What `index_put` returns for masks; a decomposition leaves other indices alone."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if not any(is_mask(index) for _, index in given):
        return NotImplemented
    if len(given) == 1:
        return masked_put(x, given[0][1], given[0][0], values, accumulate)
    items = [ALL if index is None else index if index.ndim or is_mask(index) else index.reshape(1)
             for index in indices]  # in x[i] an index without axes takes its axis away, here it is broadcast
    return put_among(x, items, values, accumulate)


def put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor,
        accumulate: bool = False) -> torch.Tensor:
    """`x.index_put(...)`, with gradients for values."""
    found = index_put(x, indices, values, accumulate) if values.requires_grad else NotImplemented
    return x.index_put(indices, values, accumulate) if found is NotImplemented else found


def put_in_place(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor,
                 accumulate: bool = False) -> torch.Tensor:
    """`x.index_put_(...)`, with gradients for values."""
    found = index_put(x, indices, values, accumulate) if values.requires_grad else NotImplemented
    return x.index_put_(indices, values, accumulate) if found is NotImplemented else x.copy_(found)


def write(x: torch.Tensor, index: Any, values: Any) -> None:
    """`x[index] = values`, with gradients for values."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(is_mask(item) for item in items) or not (
            isinstance(values, torch.Tensor) and values.requires_grad):
        x[index] = values
        return
    if sum(isinstance(item, (torch.Tensor, list)) for item in items) > 1:
        x.copy_(put_among(x, items, values))
        return
    used = sum(item.ndim if is_mask(item) else item is not None and item is not Ellipsis for item in items)
    basic: list[Any] = []
    for item in items:
        if is_mask(item):
            mask, axis = item, len(basic) - sum(isinstance(i, int) for i in basic)
        basic += [ALL] * (item.ndim if is_mask(item) else x.ndim - used) if (
            is_mask(item) or item is Ellipsis) else [item]
    view = x[tuple(basic)]
    view.copy_(masked_put(view, mask, axis, values, False))


WRITES: dict[Any, Callable[..., Any]] = {
    operator.setitem: write, "index_put": put, torch.index_put: put, "index_put_": put_in_place,
    torch.index_put_: put_in_place}
