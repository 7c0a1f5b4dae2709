"""Tensors side by side and in parts, by the names of PyTorch and NumPy: `vstack`, `hsplit`, `block_diag`, ...

What joins takes tensors one by one or as one list; all are methods of `Tensor`.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.joining import cat
from tinygrad.functional.movement import axis_and_size, axis_of
from tinygrad.functional.pytorch_names import narrow, positions_along
from tinygrad.functional.statistics import tensor_split
from tinygrad.graph.shapes import broadcast_shape

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _tensors(self: Any, others: Sequence[Tensor]) -> list[Tensor]:
    return [*self, *others] if isinstance(self, (list, tuple)) else [self, *others]


# --- more axes ----------------------------------------------------------------------------------------------


def _at_least(number: int, x: Tensor) -> Tensor:
    """A vector is the row of a matrix, a matrix has a last axis of 1."""
    while x.ndim < number:
        x = x.unsqueeze(0 if x.ndim < 2 else -1)
    return x


def _of_each(number: int) -> Callable[..., Any]:
    def method(self: Any, *others: Tensor) -> Any:
        found = tuple(_at_least(number, x) for x in _tensors(self, others))
        return found if others or isinstance(self, (list, tuple)) else found[0]
    method.__name__ = method.__qualname__ = f"atleast_{number}d"
    method.__doc__ = f"Views with {number} axes at least, of one tensor or of each of several."
    return method


atleast_1d, atleast_2d, atleast_3d = (_of_each(number) for number in (1, 2, 3))


def broadcast_tensors(self: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors expanded to the shape that all broadcast to."""
    tensors = _tensors(self, others)
    shape: tuple[int, ...] = ()
    for x in tensors:
        shape = broadcast_shape("broadcast_tensors", shape, x.shape)
    return tuple(x.expand(shape) for x in tensors)


# --- joined -------------------------------------------------------------------------------------------------


def hstack(self: Tensor, *others: Tensor) -> Tensor:
    """The tensors joined along axis 1, vectors along their only one.

    >>> Tensor([1, 2]).hstack(Tensor([3])).tolist()
    [1, 2, 3]
    """
    tensors = [_at_least(1, x) for x in _tensors(self, others)]
    return cat(*tensors, dim=min(tensors[0].ndim - 1, 1))


def vstack(self: Tensor, *others: Tensor) -> Tensor:
    """The tensors joined along axis 0, vectors as rows.

    >>> Tensor([1, 2]).vstack(Tensor([3, 4])).tolist()
    [[1, 2], [3, 4]]
    """
    return cat(*(_at_least(2, x) for x in _tensors(self, others)), dim=0)


def dstack(self: Tensor, *others: Tensor) -> Tensor:
    """The tensors joined along axis 2, after `atleast_3d`."""
    return cat(*(_at_least(3, x) for x in _tensors(self, others)), dim=2)


def column_stack(self: Tensor, *others: Tensor) -> Tensor:
    """The tensors joined along axis 1, vectors as columns."""
    return cat(*(x.reshape(-1, 1) if x.ndim < 2 else x for x in _tensors(self, others)), dim=1)


def block_diag(self: Tensor, *others: Tensor) -> Tensor:
    """A matrix with the tensors, of two axes at most, along its diagonal, zeros elsewhere.

    >>> Tensor([[1, 2]]).block_diag(Tensor([3])).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    blocks = [_at_least(2, x) for x in _tensors(self, others)]
    if any(x.ndim > 2 for x in blocks):
        raise ValueError(f"block_diag takes tensors of two axes at most, got {[x.shape for x in blocks]}")
    width, before, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(x.pad((None, (before, width - before - x.shape[1]))))
        before += x.shape[1]
    return cat(*rows, dim=0)


def cartesian_prod(self: Tensor, *others: Tensor) -> Tensor:
    """Every choice of an item of each vector, (number of choices, vectors); of one vector that itself."""
    tensors = _tensors(self, others)
    if len(tensors) == 1:
        return tensors[0]
    grid = tensors[0].meshgrid(*tensors[1:])
    dtype = promote(*(x.dtype for x in grid))
    return grid[0].cast(dtype).stack(*(x.cast(dtype) for x in grid[1:]), dim=-1).reshape(-1, len(grid))


def combinations(self: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of `r` items of a vector in their order, (number of choices, r); each item as often as one
    likes `with_replacement`.

    >>> Tensor([1, 2, 3]).combinations().tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    if self.ndim != 1 or r < 0:
        raise ValueError(f"combinations takes a vector and r >= 0, got shape {self.shape} and {r}")
    if r == 0:
        return self[:0]
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(self.shape[0]), r)), np.int32).reshape(-1, r)
    return self[type(self)(places, device=self.device, requires_grad=False)]


def vander(self: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each item of a vector, (items, N), from N - 1 to 0, or from 0 on if `increasing`; as many
    as there are items unless given. Integers wrap; bools are taken as integers.

    >>> Tensor([1, 2, 3]).vander(increasing=True).tolist()
    [[1, 1, 1], [1, 2, 4], [1, 3, 9]]
    """
    if self.ndim != 1 or (N is not None and N < 0):
        raise ValueError(f"vander takes a vector and N >= 0, got shape {self.shape} and {N}")
    count = self.shape[0] if N is None else N
    one = self.unsqueeze(1)
    factors = [one.ones_like(), *[one] * (count - 1)][:count]
    powers = cat(*factors, dim=1).cumprod(1) if factors else one[:, :0]
    powers = powers if self.dtype.is_bool else powers.cast(self.dtype)
    return powers if increasing else powers.flip(1)


# --- in parts -----------------------------------------------------------------------------------------------


def hsplit(self: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along axis 1, of a vector along its only one."""
    return tensor_split(self, indices_or_sections, min(self.ndim - 1, 1))


def vsplit(self: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along axis 0."""
    return tensor_split(self, indices_or_sections, 0)


def dsplit(self: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along axis 2."""
    return tensor_split(self, indices_or_sections, axis_of("dsplit", self, 2))


# --- with a part written ------------------------------------------------------------------------------------


def _with_written(self: Tensor, place: Any, src: Tensor, view: Callable[[Tensor], Tensor] | None = None
                  ) -> Tensor:
    """A copy in which one part, of a view if there is one, is `src`, through which gradients flow to both."""
    is_written = self.zeros_like(dtype=dtypes.bool)
    (is_written if view is None else view(is_written))[place] = True
    values = is_written.where(self.zeros_like(), self)
    (values if view is None else view(values))[place] = src.cast(self.dtype)
    return is_written.where(values, self)


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with `src` at one position of an axis."""
    axis = axis_of("select_scatter", self, dim)
    return _with_written(self, (slice(None),) * axis + (index,), src)


def slice_scatter(self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Tensor:
    """A copy with `src` in place of the items `start:end:step` of an axis."""
    axis = axis_of("slice_scatter", self, dim)
    return _with_written(self, (slice(None),) * axis + (slice(start, end, step),), src)


def index_put(self: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with `values` at positions, one tensor of them for each of the first axes; `accumulate`: added
    there, those of one position all.

    >>> Tensor([1, 2, 3]).index_put((Tensor([0, 0]),), Tensor([10, 20]), accumulate=True).tolist()
    [31, 2, 3]
    """
    if not accumulate:
        return _with_written(self, tuple(indices), values)
    places = type(self).arange(self.numel(), device=self.device).reshape(self.shape)[tuple(indices)]
    flat = values.expand(places.shape).flatten()
    return self.flatten().scatter_reduce(0, places.flatten(), flat, "sum").reshape(self.shape)


def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy with `src` on a diagonal of two axes; see `diagonal`.

    >>> Tensor([[1, 2], [3, 4]]).diagonal_scatter(Tensor([8, 9])).tolist()
    [[8, 2], [3, 9]]
    """
    return _with_written(self, ..., src, lambda x: x.diagonal(offset, dim1, dim2))


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with `source` at positions of the flattened tensor, as `index_put`.

    >>> Tensor([[1, 2], [3, 4]]).put(Tensor([0, -1]), Tensor([8, 9])).tolist()
    [[8, 2], [3, 9]]
    """
    if index.numel() != source.numel():
        raise ValueError(f"put takes as many items as positions, got {source.numel()} and {index.numel()}")
    flat = index_put(self.flatten(), (index.flatten(),), source.flatten(), accumulate)
    return flat.reshape(self.shape)


def index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                 include_self: bool = True) -> Tensor:
    """A copy whose items at positions `index`, (n,), of an axis are reduced with those of `source` by "prod",
    "mean", "amax" or "amin"; without themselves where `include_self` is False.

    >>> Tensor([1, 2, 3]).index_reduce(0, Tensor([0, 0]), Tensor([5, 4]), "amax").tolist()
    [5, 2, 3]
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ValueError(f'index_reduce takes reduce="prod", "mean", "amax" or "amin", got {reduce!r}')
    axis, places = positions_along("index_reduce", self, dim, index, source)
    return self.scatter_reduce(axis, places, source, reduce, include_self)


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy, of the shape that both broadcast to, with the first items of `source`, in their order, where
    `mask` holds."""
    x, chosen = broadcast_tensors(self, mask.cast(dtypes.bool))
    places = (chosen.flatten().cast(dtypes.int32).cumsum() - 1).maximum(0)
    return chosen.where(source.flatten()[places].reshape(x.shape), x)


def fill_diagonal_(self: Tensor, fill_value: float) -> Tensor:
    """Overwrites the diagonal of a matrix with a number, and returns it."""
    if self.ndim != 2:
        raise ValueError(f"fill_diagonal_ takes a matrix, got shape {self.shape}")
    rows, columns = (type(self).arange(n, device=self.device) for n in self.shape)
    return self.assign((rows.unsqueeze(1) == columns).where(fill_value, self))


def diagflat(self: Tensor, offset: int = 0) -> Tensor:
    """A square matrix with the flattened tensor on a diagonal.

    >>> Tensor([[1], [2]]).diagflat().tolist()
    [[1, 0], [0, 2]]
    """
    return self.flatten().diag_embed(offset)


def msort(self: Tensor) -> Tensor:
    """Sorted along the first axis.

    >>> Tensor([3, 1, 2]).msort().tolist()
    [1, 2, 3]
    """
    return self.sort(0)[0]


def unravel_index(self: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The place along each axis of a tensor of `shape` of every position in it, flattened; positions below 0
    count from the end.

    >>> Tensor([5, 1]).unravel_index((2, 3))[0].tolist()
    [1, 0]
    """
    if not self.dtype.is_int:
        raise TypeError(f"unravel_index takes integers, got {self.dtype}")
    found, rest = [], self
    for size in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(rest % size)
        rest = rest // size
    return tuple(reversed(found))


# --- numbers and sums ---------------------------------------------------------------------------------------


def trapezoid(self: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral along an axis of what is linear between its items, which are `dx` apart or at `x`.

    >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
    4.5
    """
    axis, areas, factor = _trapezoids("trapezoid", self, x, dx, dim)
    return areas.sum(axis) * factor


def _trapezoids(name: str, y: Tensor, x: Tensor | None, dx: float, dim: int
                ) -> tuple[int, Tensor, float]:
    """The axis, and the integral between each two neighbours along it, still to be multiplied by a number."""
    axis, size = axis_and_size(name, y, dim)
    first, second = (narrow(y, axis, start, max(size - 1, 0)) for start in (0, min(1, size)))
    if x is None:
        return axis, first + second, dx / 2
    steps = x.diff(dim=-1 if x.ndim == 1 else axis)
    width = steps.reshape([-1 if i == axis else 1 for i in range(y.ndim)]) if x.ndim == 1 else steps
    return axis, (first + second) * width, 0.5


def cumulative_trapezoid(self: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integrals, as `trapezoid`, from the first item to each of the others.

    >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
    [1.5, 4.5]
    """
    axis, areas, factor = _trapezoids("cumulative_trapezoid", self, x, dx, dim)
    return areas.cumsum(axis) * factor


def renorm(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Each part of an axis whose p-norm is above `maxnorm` made as short as that."""
    axis = axis_of("renorm", self, dim)
    norms = self.norm(p, [i for i in range(self.ndim) if i != axis], keepdim=True)
    return self * (norms > maxnorm).where(maxnorm / (norms + 1e-7), 1)


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sum over what broadcasting added to a shape: the reverse of `expand`."""
    shape = tuple(size[0]) if size and isinstance(size[0], (list, tuple)) else size
    lead = self.ndim - len(shape)
    if lead < 0 or any(n not in (m, 1) for n, m in zip(shape, self.shape[lead:], strict=True)):
        raise ValueError(f"sum_to_size: shape {shape} does not broadcast to {self.shape}")
    axes = [i for i, n in enumerate(self.shape) if i < lead or (shape[i - lead] == 1 and n != 1)]
    return (self.sum(axes, dtype=self.dtype) if axes else self).reshape(shape)


def unique_consecutive(self: Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The items of the flattened tensor without those equal to the one before; as `unique`, the position of
    each item's value, and how often each comes in a row. Computes this tensor, to know how many they are.

    >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
    [1, 2, 1]
    """
    flat = self.flatten()
    is_first = type(self).ones(min(flat.numel(), 1), dtype=dtypes.bool, device=self.device).cat(
        flat[1:] != flat[:-1])
    found = [flat.masked_select(is_first)]
    ranks = is_first.cast(dtypes.int32).cumsum() - 1
    if return_inverse:
        found.append(ranks.reshape(self.shape))
    if return_counts:
        found.append(ranks.bincount(minlength=found[0].numel()))
    return tuple(found) if len(found) > 1 else found[0]
