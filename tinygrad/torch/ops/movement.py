"""Shapes: views, joined and split tensors, copies."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, is_symbolic, node_of, reshapes_in_memory, value_of
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.elementwise import cast
from tinygrad.torch.registry import BesideTensor, enter_all, operator


def reshaped(x: Tensor, size: Sequence[int]) -> Tensor:
    """The items in the same order in another shape. Where memory that is laid out for the bounds of sizes
    that vary does not have them in that order, they are copied into it."""
    if not is_symbolic([*x.shape, *size]) or -1 in size:
        return x.reshape(tuple(size))
    old, new = [n for n in x.shape if n != 1], [n for n in size if n != 1]
    x = x.reshape(tuple(old))
    begins = {factors(new[j:]): j for j in range(len(new) + 1)}
    cuts = [(i, begins[rest]) for i in range(len(old) + 1) if (rest := factors(old[i:])) in begins]
    for (i, j), (i_end, j_end) in reversed(list(pairwise(cuts))):  # the last axes first: others keep places
        before, within, after = x.shape[:i], new[j:j_end], x.shape[i_end:]
        if reshapes_in_memory(old[i:i_end], within):
            x = x.reshape((*before, *within, *after))
        else:
            x = x[(*(slice(None) for _ in before), *places_of(old[i:i_end], within))].contiguous()
    return x.reshape(tuple(size))


def factors(sizes: Sequence[int]) -> tuple[Any, ...]:
    """What the product of sizes is: a number, and what else is multiplied, in whatever order."""
    number, others = 1, []
    todo = list(map(node_of, sizes))
    while todo:
        node = todo.pop()
        if node.op is Ops.MUL:
            todo += node.src
        elif node.op is Ops.CONST:
            number *= node.arg
        else:
            others.append(id(node))
    return number, *sorted(others)


def flattened(x: Tensor) -> Tensor:
    """The items in one axis."""
    return reshaped(x, [prod(x.shape)])


def places_of(old: Sequence[int], new: Sequence[int]) -> list[Tensor]:
    """For each axis of `old` the places there of the items of the shape `new`, in order."""
    number: Any = 0
    for axis, n in enumerate(new):
        places = Tensor.arange(n, dtype=dtypes.int64, device="CPU") * prod(new[axis + 1:])
        number = number + places.reshape((n,) + (1,) * (len(new) - axis - 1))
    inner = [prod(old[axis + 1:]) for axis in range(len(old))]
    return [number // step % n if axis else number // step
            for axis, (n, step) in enumerate(zip(old, inner, strict=True))]


def cut(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    index: list[slice] = [slice(None)] * x.ndim
    size = x.shape[dim]
    if is_symbolic((size, start, end)):
        start = within(start or 0, size)
        end = size if end is None else within(end, size)
        end = start if end < start else end
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def within(place: int, size: int) -> int:
    """A bound of a slice, of which negative ones count from the end, as a place from 0 to `size`. Sizes that
    vary are compared by their values: a trace is for those for which that comes out so."""
    if place < 0:
        place = place + size
    return 0 if place < 0 else size if place > size else place


def select(x: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.ndim
    if index < 0:
        index += x.shape[dim]
    return cut(x, dim, index, index + 1).squeeze(dim)


def split(x: Tensor, sizes: Any, dim: int = 0) -> Sequence[Tensor]:
    size = x.shape[dim]
    if isinstance(sizes, (list, tuple)):
        if not is_symbolic([*sizes, size]):
            return x.split(sizes, dim)
        ends = list(accumulate(sizes))
        return [cut(x, dim, end - piece, end) for piece, end in zip(sizes, ends)]
    if not is_symbolic([sizes, size]):
        return x.split(sizes, dim)
    count = max(1, -(-value_of(size) // value_of(sizes)))  # as many as PyTorch's graph was made for
    ends = [sizes * number for number in range(1, count)]
    return [cut(x, dim, start, end) for start, end in pairwise([0, *ends, size])]


def expand(x: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    padded = x.reshape((1,) * (len(size) - x.ndim) + x.shape)
    return padded.expand(tuple(old if new == -1 else new for old, new in zip(padded.shape, size)))


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in dims} if x.ndim else set()
    return x.reshape(tuple(n for axis, n in enumerate(x.shape) if axis not in gone or n != 1))


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined; a tensor of the shape (0,) counts as no tensor, whatever shape the others have."""
    whole = [x for x in tensors if x.shape != (0,)] or list(tensors)[:1]
    return whole[0].cat(*whole[1:], dim=dim)


def pad(x: Tensor, sizes: Sequence[int], value: float = 0) -> Tensor:
    """Last axis first; sizes below zero crop."""
    pairs = [(0, 0)] * (x.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2]))[::-1]
    for axis, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            x = cut(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
    return x.pad(tuple((max(0, before), max(0, after)) for before, after in pairs), value=value)


def rolled(x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    """Without axes, the flat tensor is rolled."""
    if prod(x.shape) == 0 or x.ndim == 0:
        return x
    if not dims:
        return x.reshape(-1).roll(shifts[0], 0).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if isinstance(size, Size):
            place = size - shift % size
            x = cat([cut(x, dim, place), cut(x, dim, 0, place)], dim)
        else:
            x = x.roll(shift, dim)
    return x


def repeated(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Each axis as often as is said, the first ones of `repeats` in front of those of `x`."""
    if not is_symbolic([*x.shape, *repeats]):
        return x.repeat(tuple(repeats))
    shape = (1,) * (len(repeats) - x.ndim) + tuple(x.shape)
    spread = [size for pair in zip(repeats, shape) for size in pair]
    whole = x.reshape([size for n in shape for size in (1, n)]).expand(spread)
    return reshaped(whole, [times * n for times, n in zip(repeats, shape)])


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return x.diagonal(offset, dim1, dim2)


Array = np.ndarray[Any, Any]


def places_in_memory(size: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    """Where each item lies."""
    places: Array = np.full((1,) * len(size), offset, np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        places = places + (np.arange(int(n)) * int(step)).reshape((-1,) + (1,) * (len(size) - axis - 1))
    return places


def items_by_memory(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None,
                    layout: tuple[tuple[int, ...], int]) -> Array:
    """For each item of the view that memory is asked for, which item of `x`, in the order of axes, it is.

    `layout` has the strides and the offset with which PyTorch keeps `x`. Raises BesideTensor where the view
    has memory that is none of `x`.
    """
    strides, start = layout
    own = places_in_memory(x.shape, strides, start).reshape(-1)
    wanted = places_in_memory(size, stride, start if offset is None else offset)
    numbers = np.full(int(max(own.max(initial=0), wanted.max(initial=0))) + 1, -1)
    numbers[own] = np.arange(own.size)
    found = numbers[wanted]
    if (found < 0).any():
        raise BesideTensor(f"as_strided: size {tuple(size)} with strides {tuple(stride)} reads memory beyond "
                           f"the tensor of shape {x.shape}")
    return found


@operator("as_strided", needs_layout=True)
def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None, *,
               layout: Any) -> Tensor:
    places = items_by_memory(x, size, stride, storage_offset, layout)
    return x.reshape(-1)[Tensor(places, device="CPU", requires_grad=False)]


@operator("as_strided_scatter", needs_layout=True)
def write_strided(x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int],
                  storage_offset: int | None = None, *, layout: Any) -> Tensor:
    places = items_by_memory(x, size, stride, storage_offset, layout).reshape(-1)
    index = Tensor(places, device="CPU", requires_grad=False)
    return x.reshape(-1).scatter(0, index, source.reshape(-1)).reshape(x.shape)


@operator("diagonal_scatter")
def write_diagonal(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`x` with `source` as a diagonal."""
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    order = [axis for axis in range(x.ndim) if axis not in (dim1, dim2)] + [dim1, dim2]
    rows, columns = int(x.shape[dim1]), int(x.shape[dim2])
    first = max(0, -offset)
    row = Tensor.arange(rows, dtype=dtypes.int64, device="CPU").reshape(-1, 1)
    column = Tensor.arange(columns, dtype=dtypes.int64, device="CPU").reshape(1, -1)
    length = int(source.shape[-1])
    if length == 0:
        return x
    numbers = (row - first).clip(0, length - 1).reshape(-1)
    spread = source[(*(slice(None),) * (source.ndim - 1), numbers)].unsqueeze(-1)
    changed = (column - row == offset).where(spread, x.permute(tuple(order)))
    return changed.permute(tuple(order.index(axis) for axis in range(x.ndim)))


enter_all({
    "unfold": lambda x, dim, size, step: x.unfold(dim, size, step) if x.ndim else x.reshape(1)[:size],
    "roll": lambda x, shifts, dims=(): rolled(x, shifts, dims),
    "view reshape _unsafe_view view_copy": reshaped,
    "permute": lambda x, dims: x.permute(tuple(dims)),
    "transpose.int": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "t": lambda x: x if x.ndim < 2 else x.transpose(0, 1),
    "expand": expand,
    "squeeze squeeze.dim squeeze.dims": squeeze,
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "select.int": select,
    "slice.Tensor": cut,
    "split_with_sizes split.Tensor": split,
    "unbind.int": lambda x, dim=0: [select(x, dim, i) for i in range(x.shape[dim])],
    "cat": cat,
    "stack": lambda tensors, dim=0: tensors[0].stack(*tensors[1:], dim=dim),
    "flip": lambda x, dims: x.flip(tuple(dims)),
    "repeat": repeated,
    "constant_pad_nd": pad,
    "diagonal": diagonal,
    "alias detach lift_fresh_copy": lambda x: x,
    "clone": lambda x: x,
    "copy": lambda x, y, non_blocking=False: cast(expand(y, x.shape), x.dtype),
})
