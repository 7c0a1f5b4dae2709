"""Writes where a mask holds, `x[mask] = values`, as a choice for each item. PyTorch's own way takes the
places of the mask, whose number values decide, and so do the gradients of its operator.

In: graphs of TorchDynamo. Out: the same graphs, whose writes of values that have gradients are made of other
operators (`with_masked_writes`), and a decomposition of `index_put` for the others. Next: `backend.py`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

ALL = slice(None)


def is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


def masked_put(x: torch.Tensor, mask: torch.Tensor, axis: int, values: torch.Tensor,
               accumulate: bool) -> torch.Tensor:
    """`x` with `values` written, or added, where a mask of the axes from `axis` on holds. An axis of `values`
    is numbered by the items where it does, or is one for all of them."""
    if 0 in values.shape:
        return x + values.sum().to(x.dtype)
    after = x.ndim - axis - mask.ndim
    spread = mask.reshape(*mask.shape, *(1,) * after)
    items = values.reshape(*(1,) * (after + 1 - values.ndim), *values.shape)
    before, rest = items.shape[:items.ndim - after - 1], items.shape[items.ndim - after:]
    if items.shape[len(before)] == 1:
        whole = items.reshape(*before, *(1,) * mask.ndim, *rest)
    else:
        count = items.shape[len(before)]
        torch._assert_async(mask.sum() == count, f"{count} values do not fit the items where a mask holds")
        numbers = (mask.flatten().cumsum(0) - 1).clamp(0, count - 1)
        whole = items.index_select(len(before), numbers).reshape(*before, *mask.shape, *rest)
    return torch.where(spread, x + whole if accumulate else whole, x).to(x.dtype)


def index_put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor,
              accumulate: bool = False) -> torch.Tensor:
    """What `index_put` returns for one mask; a decomposition leaves the others alone."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) == 1 and is_mask(given[0][1]):
        return masked_put(x, given[0][1], given[0][0], values, accumulate)
    return NotImplemented


def put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor,
        accumulate: bool = False) -> torch.Tensor:
    """`x.index_put(...)`, with gradients for values."""
    found = index_put(x, indices, values, accumulate) if values.requires_grad else NotImplemented
    return x.index_put(indices, values, accumulate) if found is NotImplemented else found


def put_in_place(x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """`x.index_put_(...)`, with gradients for values."""
    return x.copy_(put(x, *args, **named))


def write(x: torch.Tensor, index: Any, values: Any) -> None:
    """`x[index] = values`, with gradients for values."""
    items = index if isinstance(index, tuple) else (index,)
    if [is_mask(item) for item in items if isinstance(item, torch.Tensor)] != [True] or not (
            isinstance(values, torch.Tensor) and values.requires_grad):
        x[index] = values
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


def with_masked_writes(module: GraphModule) -> GraphModule:
    """A graph of TorchDynamo, changed: its writes by index are those of this module."""
    for node in module.graph.nodes:
        if node.target in WRITES:
            node.op, node.target = "call_function", WRITES[node.target]
    module.recompile()
    return module
