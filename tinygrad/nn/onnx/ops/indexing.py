"""Items by position: gathered, scattered, selected by conditions, distinct."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.nn.onnx.ops.shapes import moves
from tinygrad.nn.onnx.registry import op, ops
from tinygrad.nn.onnx.values import Array, Items, Value
from tinygrad.tensor import Tensor


def _gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return data[(*[slice(None)] * (axis % data.ndim), indices)]


def _positive(indices: Tensor, size: int) -> Tensor:
    return (indices < 0).where(indices + size, indices)


def _gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return data.gather(axis, _positive(indices, data.shape[axis]))


def _gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    batches = [Tensor.arange(data.shape[axis], device=data.device).reshape(
        *(-1 if i == axis else 1 for i in range(indices.ndim - 1))) for axis in range(batch_dims)]
    places = [_positive(indices[..., i], data.shape[batch_dims + i]) for i in range(depth)]
    return data[(*batches, *places)]


def _flat_place(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The position in axes of `sizes`, flattened, of indices that are the items of a last axis."""
    place = Tensor.zeros(*indices.shape[:-1], dtype=dtypes.int32, device=indices.device, requires_grad=False)
    for i, size in enumerate(sizes):
        place = place * size + _positive(indices[..., i].cast(dtypes.int32), size)
    return place


ops(Gather=moves(_gather), GatherElements=moves(_gather_elements), GatherND=moves(_gather_nd))


# --- scattered ----------------------------------------------------------------------------------------------

REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(x: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, REDUCE[reduction])


@op
def ScatterElements(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0,
                    reduction: str = "none") -> Tensor:
    return _scattered(data, axis, _positive(indices, data.shape[axis]), updates, reduction)


ops(Scatter=lambda data, indices, updates, *, axis=0: ScatterElements(data, indices, updates, axis=axis))


@op
def ScatterND(data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    sizes, rest = data.shape[:depth], data.shape[depth:]
    items, slices = prod(rest), prod(indices.shape[:-1])
    flat = data.reshape(prod(sizes), items)
    places = _flat_place(indices, sizes).reshape(slices, 1).expand(slices, items)
    return _scattered(flat, 0, places, updates.reshape(slices, items), reduction).reshape(*data.shape)


@op
def TensorScatter(past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2,
                  mode: str = "linear") -> Tensor:
    """`past_cache` with `update` written along `axis` from `write_indices` on, one for each batch."""
    axis %= past_cache.ndim
    size, steps, batch = past_cache.shape[axis], update.shape[axis], past_cache.shape[0]
    starts = Tensor.zeros(batch, dtype=dtypes.int32, device=update.device) if write_indices is None else \
        write_indices.cast(dtypes.int32)
    places = starts.unsqueeze(1) + Tensor.arange(steps, device=update.device)
    places = places % size if mode == "circular" else places
    spread = [batch if i == 0 else steps if i == axis else 1 for i in range(update.ndim)]
    return past_cache.scatter(axis, places.reshape(*spread).expand(update.shape), update)


# --- selected -----------------------------------------------------------------------------------------------


@op
def Compress(input: Items, condition: Array, *, axis: int | None = None) -> Value:
    places = Tensor(np.flatnonzero(condition).astype(np.int32), requires_grad=False)
    return moves(lambda x: _gather(x.flatten() if axis is None else x, places, axis=axis or 0))(input)


@op
def NonZero(X: Array) -> Array:
    return np.stack(np.nonzero(X)).astype(np.int64) if X.ndim else np.zeros((0, int(X != 0)), np.int64)


@op
def OneHot(indices: Tensor, depth: int, values: Tensor, *, axis: int = -1) -> Tensor:
    axis %= indices.ndim + 1
    wide = indices.cast(dtypes.int64)
    classes = Tensor.arange(depth, dtype=dtypes.int64, device=indices.device)
    hit = _positive(wide, depth).unsqueeze(axis) == classes.reshape(depth, *(1,) * (indices.ndim - axis))
    return hit.where(values[1], values[0])


@op
def Unique(X: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
    """Distinct items (or slices along `axis`), where each first is, which one each is, and how often each is.

    How many there are depends on values, so this is computed by the host.
    """
    values, first, inverse, counts = np.unique(X, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        inverse = rank[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
