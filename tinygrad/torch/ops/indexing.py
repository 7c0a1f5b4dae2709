"""Items by position: gathers, scatters, embeddings, writes into parts."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.movement import cut, expand
from tinygrad.torch.registry import enter_all, operator


def at(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return x.gather(dim, index) if x.ndim else x.expand(index.shape)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return at(x, [None] * (dim % x.ndim) + [index]) if x.ndim else x


@operator("embedding")
def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Tensor:
    return weight[indices]


@operator("embedding_dense_backward")
def embedding_gradient(g: Tensor, indices: Tensor, num_weights: int, padding_idx: int = -1,
                       scale_grad_by_freq: bool = False) -> Tensor:
    """The rows of `g` added up for each row of the table; that of `padding_idx` gets none."""
    width = int(g.shape[-1])
    rows, flat = g.reshape(-1, width), indices.reshape(-1, 1)
    if padding_idx >= 0:
        rows = (flat == padding_idx).where(0, rows)
    if scale_grad_by_freq:
        counts = Tensor.zeros(num_weights, dtype=g.dtype, device="CPU").scatter_reduce(
            0, flat.reshape(-1), Tensor.ones(int(flat.shape[0]), dtype=g.dtype, device="CPU"), "sum")
        rows = rows / counts[flat]
    zeros = Tensor.zeros(num_weights, width, dtype=g.dtype, device="CPU")
    return zeros.scatter_reduce(0, flat.expand(int(flat.shape[0]), width), rows, "sum")


@operator("index_put", "_unsafe_index_put")
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
              accumulate: bool = False) -> Tensor:
    """`x` with `values` written (or added) at `indices`, as one scatter into the flat tensor."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == dtypes.bool:
        mask = indices[0].reshape(indices[0].shape + (1,) * (x.ndim - indices[0].ndim))
        if prod(values.shape) == 1 and not accumulate:
            return mask.where(values.reshape(()), x)
    size = prod(x.shape)
    places = at(Tensor.arange(size, dtype=dtypes.int64, device="CPU").reshape(x.shape), indices)
    written = expand(values, places.shape).reshape(-1)
    flat = x.reshape(-1)
    if accumulate:
        return flat.scatter_reduce(0, places.reshape(-1), written, "sum").reshape(x.shape)
    return flat.scatter(0, places.reshape(-1), written).reshape(x.shape)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(dim, index, source, "sum")


@operator("scatter_reduce.two")
def scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str,
                   include_self: bool = True) -> Tensor:
    return x.scatter_reduce(dim, index, source, reduce, include_self)


@operator("slice_scatter")
def write_slice(x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                step: int = 1) -> Tensor:
    """`x` with `source` written over its slice: each place along the axis takes an item or none."""
    size = int(x.shape[dim])
    steps = range(*slice(start, end, step).indices(size))
    if len(steps) == 0:
        return x
    place = Tensor.arange(size, dtype=dtypes.int64, device="CPU")
    taken = ((place >= steps.start) & (place < steps.stop) & ((place - steps.start) % step == 0))
    item = ((place - steps.start).div(step, rounding_mode="floor")).clamp(0, len(steps) - 1)
    along = [1] * x.ndim
    along[dim] = size
    return taken.reshape(along).where(index_select(source, dim % x.ndim, item), x)


@operator("select_scatter")
def write_selected(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    index %= int(x.shape[dim])
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
    "index.Tensor _unsafe_index.Tensor": at, "gather": gather, "index_select": index_select,
    "scatter.src": lambda x, dim, index, source: x.scatter(dim, index, source),
    "scatter.value": lambda x, dim, index, value: x.scatter(dim, index, value),
    "scatter_add": scatter_add, "masked_fill.Scalar masked_fill.Tensor": masked_fill,
    "narrow": lambda x, dim, start, length: cut(x, dim, start, start + length),
})
