"""Items by position: gathers, scatters, embeddings, writes into parts."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor
from tinygrad.torch.checks import require, require_within
from tinygrad.torch.ops.movement import cut, expand, flattened, reshaped, within
from tinygrad.torch.registry import enter_all, operator


def at(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`at` for indices that may be out of bounds. A mask takes as many axes as it has. One position without
    axes is an index as the others here, not an item that is taken first."""
    axis = 0
    for item in indices:
        if item is not None and not item.dtype.is_bool:
            require_within(item, x.shape[axis], "index", from_the_end=True)
        axis += item.ndim if item is not None and item.dtype.is_bool else 1
    return at(x, [item if item is None or item.ndim else item.reshape(1) for item in indices]
              if any(item is not None and item.ndim for item in indices) else indices)


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """An index without items may have any axes."""
    if 0 in index.shape:
        return Tensor.zeros(*index.shape, dtype=x.dtype, device="CPU")
    require_within(index, x.shape[dim] if x.ndim else 1, "gather")
    return x.gather(dim, index) if x.ndim else x.expand(index.shape)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    require_within(index, x.shape[dim] if x.ndim else 1, "index_select")
    return taken(x, dim, index)


def taken(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`index_select` for indices that are within bounds."""
    return at(x, [None] * (dim % x.ndim) + [index]) if x.ndim else x


@operator("embedding")
def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Tensor:
    require_within(indices, weight.shape[0], "embedding")
    return weight[indices]


@operator("embedding_dense_backward")
def embedding_gradient(g: Tensor, indices: Tensor, num_weights: int, padding_idx: int = -1,
                       scale_grad_by_freq: bool = False) -> Tensor:
    """The rows of `g` added up for each row of the table; that of `padding_idx` gets none."""
    width, count = g.shape[-1], prod(indices.shape)
    rows, flat = reshaped(g, [count, width]), reshaped(indices, [count, 1])
    if padding_idx >= 0:
        rows = (flat == padding_idx).where(0, rows)
    if scale_grad_by_freq:
        counts = Tensor.zeros(num_weights, dtype=g.dtype, device="CPU").scatter_reduce(
            0, flat.squeeze(1), Tensor.ones(count, dtype=g.dtype, device="CPU"), "sum")
        rows = rows / counts[flat]
    zeros = Tensor.zeros(num_weights, width, dtype=g.dtype, device="CPU")
    return zeros.scatter_reduce(0, flat.expand(count, width), rows, "sum")


def along_an_axis(write: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator `write(x, dim, index, source, ...)` that takes numbers as tensors of one item too, and an
    index without items, of whatever axes."""
    def written(x: Tensor, dim: int, index: Tensor, source: Any, *more: Any, **named: Any) -> Tensor:
        if 0 in index.shape:
            return x
        require_within(index, x.shape[dim] if x.ndim else 1, "scatter")
        if x.ndim:
            index, source = (t.reshape(1) if isinstance(t, Tensor) and not t.ndim else t
                             for t in (index, source))
            return write(x, dim, index, source, *more, **named)
        flat = source.reshape(-1) if isinstance(source, Tensor) else source
        return write(x.reshape(1), 0, index.reshape(-1), flat, *more, **named).reshape(())
    return written


@operator("index_put", "_unsafe_index_put")
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
              accumulate: bool = False) -> Tensor:
    """`x` with `values` written (or added) at `indices`, as one scatter into the flat tensor."""
    size = prod(x.shape)
    places = indexed(reshaped(Tensor.arange(size, dtype=dtypes.int64, device="CPU"), x.shape), indices)
    written = flattened(expand(values, places.shape))
    flat = flattened(x)
    if accumulate:
        return reshaped(flat.scatter_reduce(0, flattened(places), written, "sum"), x.shape)
    return reshaped(flat.scatter(0, flattened(places), written), x.shape)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(dim, index, source, "sum")


@operator("scatter_reduce.two")
@along_an_axis
def scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str,
                   include_self: bool = True) -> Tensor:
    return x.scatter_reduce(dim, index, source, reduce, include_self)


@operator("slice_scatter")
def write_slice(x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                step: int = 1) -> Tensor:
    """`x` with `source` written over its slice: each place along the axis takes an item or none."""
    size, count = x.shape[dim], source.shape[dim]
    if count == 0:
        return x
    distance = Tensor.arange(size, dtype=dtypes.int64, device="CPU") - within(start or 0, size)
    inside = (distance >= 0) & (distance < count * step) & (distance % step == 0)
    item = distance.div(step, rounding_mode="floor").maximum(0).minimum(count - 1)
    along = [1] * x.ndim
    along[dim] = size
    return inside.reshape(along).where(taken(source, dim, item), x)


@operator("select_scatter")
def write_selected(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    index = index if index >= 0 else x.shape[dim] + index
    return write_slice(x, source.unsqueeze(dim % x.ndim), dim, index, index + 1)


@operator("tril")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return x.tril(diagonal)


@operator("triu")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return x.triu(diagonal)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return mask.where(value, x)


enter_all({
    "index.Tensor": indexed, "_unsafe_index.Tensor": at, "gather": gather, "index_select": index_select,
    "scatter.src scatter.value scatter.reduce scatter.value_reduce": along_an_axis(Tensor.scatter),
    "scatter_add": along_an_axis(scatter_add),
    "masked_fill.Scalar masked_fill.Tensor": masked_fill,
    "narrow": lambda x, dim, start, length: cut(x, dim, start, start + length),
})


@operator("put")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`x` with items of `source` written, or added, at places of the flat tensor."""
    if prod(index.shape) == 0:
        return x
    flat, places = x.reshape(-1), index.reshape(-1)
    places = (places < 0).where(places + prod(x.shape), places)
    values = source.reshape(-1)
    changed = flat.scatter_reduce(0, places, values, "sum") if accumulate else flat.scatter(0, places, values)
    return changed.reshape(x.shape)


@operator("index_reduce")
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                 include_self: bool = True) -> Tensor:
    if prod(index.shape) == 0:
        return x
    if x.ndim == 0:
        return index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(1), reduce,
                            include_self=include_self).reshape(())
    dim %= x.ndim
    along = index.reshape((-1,) + (1,) * (x.ndim - dim - 1)).expand(source.shape)
    return x.scatter_reduce(dim, along, source, reduce, include_self)


@operator("_assert_async.msg")
def assertion(condition: Tensor, message: str) -> None:
    require(condition, RuntimeError(message))


# --- bags: sums, means and extrema of rows of a table -----------------------------------------------------

SUM, MEAN, MAX = range(3)


@operator("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
                  mode: int = SUM, sparse: bool = False, per_sample_weights: Tensor | None = None,
                  include_last_offset: bool = False, padding_idx: int = -1) -> tuple[Tensor, ...]:
    """For each bag (the items from its offset to the next one's) the sum, mean or largest of its rows; the
    bag of each item, the size of each bag, and for the largest which rows they are from."""
    count, width = int(indices.shape[0]), int(weight.shape[1])
    bags = int(offsets.shape[0]) - include_last_offset
    starts = offsets[:bags]
    require_within(indices, weight.shape[0], "embedding_bag")
    place = Tensor.arange(count, dtype=dtypes.int64, device="CPU")
    bag = (starts.unsqueeze(0) <= place.unsqueeze(1)).sum(1).cast(dtypes.int64) - 1
    kept = indices != padding_idx
    member = (bag.unsqueeze(0) == Tensor.arange(bags, dtype=dtypes.int64, device="CPU").unsqueeze(1)) & kept
    sizes = member.sum(1).cast(dtypes.int64)
    rows = weight[indices]
    if mode == MAX:
        inside = member.unsqueeze(-1)
        largest = inside.where(rows.unsqueeze(0), weight.dtype.min)
        empty = (sizes == 0).unsqueeze(-1)
        which = indices[largest.argmax(1)]
        return (empty.where(0, largest.max(1)), bag, sizes, empty.where(-1, which))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    total = Tensor.zeros(bags, width, dtype=weight.dtype, device="CPU").scatter_reduce(
        0, bag.unsqueeze(-1).expand(count, width), kept.unsqueeze(-1).where(rows, 0), "sum")
    if mode == MEAN:
        total = total / sizes.maximum(1).unsqueeze(-1)
    return total, bag, sizes, sizes.zeros_like()


@operator("_embedding_bag_dense_backward")
def embedding_bag_gradient(g: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, maximum_indices: Tensor,
                           num_weights: int, scale_grad_by_freq: bool, mode: int,
                           per_sample_weights: Tensor | None, padding_idx: int = -1) -> Tensor:
    width = int(g.shape[1])
    zeros = Tensor.zeros(num_weights, width, dtype=g.dtype, device="CPU")
    if mode == MAX:
        valid = maximum_indices >= 0
        return zeros.scatter_reduce(0, valid.where(maximum_indices, 0), valid.where(g, 0), "sum")
    rows = (g / sizes.maximum(1).unsqueeze(-1) if mode == MEAN else g)[bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return embedding_gradient(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@operator("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_gradient(g: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor,
                                   mode: int, padding_idx: int = -1) -> Tensor:
    return (indices != padding_idx).where((g[bag] * weight[indices]).sum(-1), 0)


@operator("_embedding_bag_backward")
def embedding_bag_gradient_of_any(g: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor,
                                  maximum_indices: Tensor, num_weights: int, scale_grad_by_freq: bool,
                                  mode: int, sparse: bool, per_sample_weights: Tensor | None,
                                  padding_idx: int = -1) -> Tensor:
    return embedding_bag_gradient(g, indices, bag, sizes, maximum_indices, num_weights, scale_grad_by_freq,
                                  mode, per_sample_weights, padding_idx)
