"""Shapes: reshaping, reordering, cropping, padding, windows and diagonals, without computing anything.

Each function is a chain of RESHAPE, PERMUTE, EXPAND, PAD, SHRINK and STRIDE nodes, which cost nothing at run
time: consumers read the original memory through the composed index. An axis that the tensor has not is an
IndexError, a shape that does not fit a ValueError; dtypes stay.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.creation import is_sequence, to_shape
from tinygrad.functional.elementwise import expand_to
from tinygrad.functional.windows import windows_of
from tinygrad.graph.leaf_tensors import value_of_its_own
from tinygrad.graph.sizes import Size, as_size, at_least
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def axis_of(name: str, self: Tensor, axis: Any, extra: int = 0) -> int:
    """`axis` counted from the front. Raises IndexError, naming the operation, where the tensor has no such
    axis.

    `extra` counts axes that the operation is about to add.
    """
    ndim = max(self.ndim + extra, 1)
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"{name} takes an integer axis, got {axis!r}")
    index = int(axis.__index__())
    if not -ndim <= index < ndim:
        raise IndexError(f"{name}: axis {index} is not in [{-ndim}, {ndim - 1}], the axes of shape "
                         f"{self.shape}")
    return index % ndim


def axis_and_size(name: str, self: Tensor, axis: Any) -> tuple[int, int]:
    """`axis_of`, and how many items it has. Raises IndexError where the tensor has no axes at all."""
    found = axis_of(name, self, axis)
    if not self.ndim:
        raise IndexError(f"{name} takes a tensor with axes, got shape ()")
    return found, self.shape[found]


def axes_of(name: str, self: Tensor, axes: Any) -> tuple[int, ...]:
    """The axes counted from the front, all of them for None. Raises ValueError where one comes twice."""
    if axes is None:
        return tuple(range(self.ndim))
    found = tuple(axis_of(name, self, a) for a in (axes if is_sequence(axes) else (axes,)))
    if len(set(found)) != len(found):
        raise ValueError(f"{name}: axis {axes} names an axis twice")
    return found if self.ndim else ()


def integers(name: str, first: Any, rest: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments given as separate integers or as one sequence."""
    if is_sequence(first):
        if rest:
            raise TypeError(f"{name} takes separate integers or one sequence of them, not both")
        return tuple(first)
    return (first, *rest)


def moved(self: Tensor, uop: UOp) -> Tensor:
    """A view of `self`, whose node is `uop`."""
    return self if uop is self._result else type(self).view_of(uop, self)


def copied(self: Tensor, uop: UOp) -> Tensor:
    """A value of its own, made of the items of `self`."""
    return type(self).of(value_of_its_own(uop), self)


# --- shape --------------------------------------------------------------------------------------------------


def reshape(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """The items in the same order in another shape. One size may be -1 (what remains), None keeps an axis.

    Raises ValueError where the number of items differs.

    >>> Tensor.arange(6).reshape(2, -1).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return moved(self, self._result.reshape(shape_to_reach(self.shape, integers("reshape", shape, args))))


def shape_to_reach(shape: Shape, asked: Sequence[Any]) -> Shape:
    """The shape that `reshape` of `asked` sizes gives: None keeps an axis, -1 is what remains."""
    sizes = [shape[i] if size is None and i < len(shape) else as_size(size) for i, size in enumerate(asked)]
    if sizes.count(-1) > 1:
        raise ValueError(f"reshape takes one -1 at most, got {asked}")
    if -1 in sizes:
        total, known = _without_common_sizes(shape, [s for s in sizes if s != -1])
        if known == 0 or total % known:
            raise ValueError(f"cannot reshape {shape} ({prod(shape)} items) to {asked}: the size for -1 is "
                             "not a whole number")
        sizes[sizes.index(-1)] = total // known
    return to_shape("reshape", sizes)


def _without_common_sizes(shape: Sequence[int], known: Sequence[int]) -> tuple[int, int]:
    """The items of `shape` and of the sizes `known`, both without the unknown sizes that are in both."""
    rest, divisors = list(shape), list(known)
    for size in known:
        if isinstance(size, Size) and size in rest:
            rest.remove(size)
            divisors.remove(size)
    return prod(rest), prod(divisors)


def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from `start_dim` to `end_dim` as one.

    >>> Tensor([[1, 2], [3, 4]]).flatten().tolist()
    [1, 2, 3, 4]
    """
    start, end = axis_of("flatten", self, start_dim), axis_of("flatten", self, end_dim)
    if end < start:
        raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    sizes = (*self.shape[:start], prod(self.shape[start:end + 1]), *self.shape[end + 1:])
    return moved(self, self._result.reshape(sizes))


def unflatten(self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Axis `dim` as several axes of `sizes`, one of which may be -1.

    >>> Tensor.arange(6).unflatten(0, (2, 3)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    axis, size = axis_and_size("unflatten", self, dim)
    known = prod(s for s in sizes if s != -1)
    unknown = list(sizes).count(-1)
    if unknown > 1 or (unknown and (known == 0 or size % known)) or (not unknown and known != size):
        raise ValueError(f"cannot unflatten an axis of {size} items to {tuple(sizes)}")
    parts = tuple(size // known if s == -1 else s for s in sizes)
    return moved(self, self._result.reshape(self.shape[:axis] + parts + self.shape[axis + 1:]))


def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axis `dim` if its size is 1; without all axes of size 1 where `dim` is None.

    >>> Tensor.ones(1, 3, 1).squeeze().shape
    (3,)
    """
    axes = axes_of("squeeze", self, dim)
    return moved(self, self._result.reshape([n for i, n in enumerate(self.shape) if n != 1 or i not in axes]))


def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """With a new axis of size 1 at `dim`.

    >>> Tensor.ones(2, 3).unsqueeze(1).shape
    (2, 1, 3)
    """
    axis = axis_of("unsqueeze", self, dim, extra=1)
    return moved(self, self._result.reshape((*self.shape[:axis], 1, *self.shape[axis:])))


def expand(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """Axes of size 1 repeated to the sizes in `shape`; -1 or None keeps a size, and new axes come in front.

    >>> Tensor([1, 2]).expand(2, 2).tolist()
    [[1, 2], [1, 2]]
    """
    asked = tuple(map(as_size, integers("expand", shape, args)))
    if len(asked) < self.ndim:
        raise ValueError(f"expand: {asked} has fewer axes than the tensor's shape {self.shape}")
    padded = (1,) * (len(asked) - self.ndim) + self.shape
    sizes = tuple(n if s is None or s == -1 else s for n, s in zip(padded, asked, strict=True))
    if any([n not in (1, s) for n, s in zip(padded, sizes, strict=True)]):
        raise ValueError(f"cannot expand {self.shape} to {sizes}: only axes of size 1 grow")
    return moved(self, expand_to(self._result, to_shape("expand", sizes)))


def permute(self: Tensor, order: Any, *args: Any) -> Tensor:
    """The axes in another order: axis i of the result is axis `order[i]`. Raises ValueError unless each axis
    is named once.

    >>> Tensor.ones(2, 3, 4).permute(2, 0, 1).shape
    (4, 2, 3)
    """
    axes = axes_of("permute", self, integers("permute", order, args))
    if len(axes) != self.ndim:
        raise ValueError(f"permute takes every axis of shape {self.shape} once, got {axes}")
    return moved(self, self._result.permute(axes))


def transpose(self: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Two axes swapped.

    >>> Tensor([[1, 2], [3, 4]]).transpose().tolist()
    [[1, 3], [2, 4]]
    """
    order = list(range(self.ndim))
    a, b = axis_of("transpose", self, dim0), axis_of("transpose", self, dim1)
    if self.ndim:
        order[a], order[b] = order[b], order[a]
    return moved(self, self._result.permute(order))


def flip(self: Tensor, axis: Any, *args: Any) -> Tensor:
    """The items of some axes in reverse.

    >>> Tensor([[1, 2], [3, 4]]).flip(0).tolist()
    [[3, 4], [1, 2]]
    """
    axes = axes_of("flip", self, integers("flip", axis, args))
    return moved(self, self._result.stride([-1 if i in axes else 1 for i in range(self.ndim)]))


def shrink(self: Tensor, arg: Sequence[tuple[int, int] | None]) -> Tensor:
    """The items from start to end of each axis; None keeps an axis whole.

    >>> Tensor([[1, 2], [3, 4]]).shrink(((0, 1), None)).tolist()
    [[1, 2]]
    """
    if len(arg) != self.ndim:
        raise ValueError(f"shrink takes a pair for each axis of shape {self.shape}, got {arg}")
    return moved(self,
                  self._result.shrink([(0, n) if a is None else (as_size(a[0]), as_size(a[1]))
                                   for a, n in zip(arg, self.shape)]))


def shrink_to(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """The first items of each axis, as many as `shape` says; None keeps an axis."""
    sizes = integers("shrink_to", shape, args)
    return shrink(self, [None if s is None else (0, s) for s in sizes])


# --- padding ------------------------------------------------------------------------------------------------


def _pairs(self: Tensor, padding: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis, from pairs by axis or from flat sizes, last axis first as in PyTorch."""
    padding = int(padding) if isinstance(padding, np.integer) else as_size(padding)
    if isinstance(padding, (int, Size)):
        return [(padding, padding)] * self.ndim
    if all(isinstance(as_size(p), (int, np.integer, Size)) for p in padding):
        if len(padding) % 2 or len(padding) // 2 > self.ndim:
            raise ValueError(f"pad takes (before, after) sizes for up to {self.ndim} axes, last axis first, "
                             f"got {tuple(padding)}")
        sizes = [as_size(p) for p in padding]
        last_first = list(zip(sizes[::2], sizes[1::2], strict=True))
        return [(0, 0)] * (self.ndim - len(last_first)) + last_first[::-1]
    if len(padding) != self.ndim:
        raise ValueError(f"pad takes a pair for each axis of shape {self.shape}, got {tuple(padding)}")
    return [(0, 0) if p is None else (_whole(p[0]), _whole(p[1])) for p in padding]


def _whole(size: Any) -> int:
    """A size given as any kind of integer."""
    size = as_size(size)
    return size if isinstance(size, Size) else int(size)


def pad(self: Tensor, padding: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    """Items around each axis; negative sizes crop.

    `padding` is (before, after) for each axis, or flat: the last axis's two sizes first, as in PyTorch.
    `mode` is "constant" (`value`), "reflect" (mirrored without the edge item, at most as many as are left),
    "replicate" (the edge item) or "circular" (at most once around). As in PyTorch, the items that are
    mirrored and repeated are those before cropping, and what goes around are those that are left. Raises
    ValueError for more.

    >>> Tensor([1, 2, 3]).pad((1, 2)).tolist(), Tensor([1, 2, 3]).pad((2, 0), mode="reflect").tolist()
    ([0, 1, 2, 3, 0, 0], [3, 2, 1, 2, 3])
    """
    pairs = _pairs(self, padding)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"pad mode is 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    grown = [(at_least(before, 0), at_least(after, 0)) for before, after in pairs]
    if mode in ("reflect", "replicate"):
        result = _extended(self, grown, mode)
        return copied(self, result.uop.shrink(_cropped(result.shape, pairs)))
    cropped = self.uop.shrink(_cropped(self.shape, pairs))
    if mode == "circular":
        return _extended(copied(self, cropped), grown, mode)
    padded = cropped.pad(grown)
    if value == 0 or padded is cropped:
        return copied(self, padded)
    inside = UOp.const(True, dtypes.bool, cropped.shape).pad(grown)
    return type(self).of(inside.where(padded, padded._operand(self.dtype.checked(value))), self)


def _cropped(shape: Shape, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, end) of each axis that sizes below 0 before and after it crop."""
    bounds = []
    for axis, (size, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
        start = 0 if before >= 0 else -before
        end = size if after >= 0 else size + after
        if end < start:
            raise ValueError(f"pad by {(before, after)} crops more than axis {axis} of shape {shape} has")
        bounds.append((start, end))
    return bounds


def _extended(self: Tensor, grown: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """The axes continued on both sides by their own items."""
    for axis, (before, after) in enumerate(grown):
        if before or after:
            self = _extended_axis(self, axis, before, after, mode)
    return self


def _extended_axis(self: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    size = self.shape[axis]

    def part(start: int, end: int) -> Tensor:
        return shrink(self, [(start, end) if i == axis else None for i in range(self.ndim)])

    if mode == "replicate":
        if size == 0:
            raise ValueError("pad with mode 'replicate' takes axes that are not empty, got shape "
                             f"{self.shape}")
        counts = [tuple(count if i == axis else None for i in range(self.ndim)) for count in (before, after)]
        pieces = [expand(part(0, 1), counts[0]), self, expand(part(size - 1, size), counts[1])]
    else:
        limit = size - 1 if mode == "reflect" else size
        if max(before, after) > limit:
            raise ValueError(f"pad with mode {mode!r} takes sizes up to {limit} for an axis of {size} items, "
                             f"got {(before, after)}")
        if mode == "reflect":
            pieces = [flip(part(1, before + 1), axis), self, flip(part(size - 1 - after, size - 1), axis)]
        else:
            pieces = [part(size - before, size), self, part(0, after)]
    filled = [piece for piece in pieces if piece.shape[axis]]
    return filled[0].cat(*filled[1:], dim=axis) if filled else self


def pad_to(self: Tensor, shape: Any, *args: Any, value: float = 0) -> Tensor:
    """Filled up with `value` at the end of each axis, to `shape`; None keeps an axis."""
    sizes = tuple(map(as_size, integers("pad_to", shape, args)))
    if len(sizes) != self.ndim or any(s is not None and s < n for s,
                                      n in zip(sizes, self.shape, strict=False)):
        raise ValueError(f"pad_to takes sizes of at least those of shape {self.shape}, got {sizes}")
    return pad(self, tuple((0, 0 if s is None else s - n) for s, n in zip(sizes, self.shape)), value=value)


# --- windows and diagonals ----------------------------------------------------------------------------------


def rows_of_windows(x: UOp, size: int, count: int) -> UOp:
    """Of the last axis, `count` windows of `size` items, each one item further: shape (..., count, size).

    The axis is repeated and cut into rows of one item more than it has.
    """
    *lead, length = x.shape
    if length != size + count - 1:
        raise ValueError(f"{count} windows of {size} take {size + count - 1} items, got {length}")
    whole = [(0, n) for n in lead]
    repeats = ceildiv(count * (length + 1), length)
    repeated = x.reshape((*lead, 1, length)).expand((*lead, repeats, length)).reshape((*lead,
                                                                                       repeats * length))
    rows = repeated.shrink((*whole, (0, count * (length + 1)))).reshape((*lead, count, length + 1))
    return rows.shrink((*whole, (0, count), (0, size)))


def unfold(self: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` items along axis `dim`, each `step` items after the one before, in a new last axis.

    A number is an axis of one item, and has one window.

    >>> Tensor.arange(5).unfold(0, 3, 2).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    axis = axis_of("unfold", self, dim)
    if not self.ndim:
        return unfold(unsqueeze(self, 0), dim, size, step)[0]
    length = self.shape[axis]
    if size < 0 or step <= 0 or size > length:
        raise ValueError(f"unfold takes 0 <= size <= {length}, the items of axis {axis}, and step > 0, got "
                         f"size {size} and step {step}")
    last = self.uop.permute([i for i in range(self.ndim) if i != axis] + [axis])
    lead = last.shape[:-1]
    count = length - size + 1
    if 0 < size <= count:
        windows = windows_of(last, (size,), (step,), (1,))
    else:
        nothing = last.shrink((*((0, n) for n in lead), (0, 0))).reshape((*lead, 1, 0))
        rows = rows_of_windows(last, size, count) if size else nothing.expand((*lead, count, 0))
        windows = rows.stride((1,) * len(lead) + (step, 1))
    order = [*range(axis), len(lead), *range(axis, len(lead)), len(lead) + 1]
    return moved(self, windows.permute(order))


def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The items at (i, i + offset) of two axes, in a new last axis.

    >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
    [1, 4]
    """
    a, b = axis_of("diagonal", self, dim1), axis_of("diagonal", self, dim2)
    if self.ndim < 2 or a == b:
        raise ValueError(f"diagonal takes two different axes, got {dim1} and {dim2} of shape {self.shape}")
    last = self.uop.permute([i for i in range(self.ndim) if i not in (a, b)] + [a, b])
    *lead, rows, columns = last.shape
    top, left = max(-offset, 0), max(offset, 0)
    size = max(min(rows - top, columns - left), 0)
    whole = [(0, n) for n in lead]
    if size == 0:
        return moved(self, last.shrink((*whole, (0, 0), (0, 0))).reshape((*lead, 0)))
    square = last.shrink((*whole, (top, top + size), (left, left + size)))
    return moved(self, square.reshape((*lead, size * size)).stride((*(1 for _ in lead), size + 1)))


def diag(self: Tensor, diagonal: int = 0) -> Tensor:
    """The square matrix with this vector on a diagonal, or that diagonal of this matrix: the main one, or so
    many places right of it, or left where negative.

    >>> Tensor([1, 2]).diag().tolist()
    [[1, 0], [0, 2]]
    """
    if self.ndim == 2:
        return self.diagonal(diagonal)
    if self.ndim != 1:
        raise ValueError(f"diag takes a vector or a matrix, got shape {self.shape}")
    return self.diag_embed(diagonal)


def _triangle(self: Tensor, diagonal: int, upper: bool) -> Tensor:
    if self.ndim < 2:
        raise ValueError(f"{'triu' if upper else 'tril'} takes at least two axes, got shape {self.shape}")
    rows, columns = self.shape[-2:]
    row = type(self).arange(rows, device=self.device).reshape(rows, 1)
    column = type(self).arange(columns, device=self.device)
    return (row + diagonal <= column if upper else column <= row + diagonal).where(self, False)


def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, from `diagonal` on; zeros below.

    >>> Tensor([[1, 2], [3, 4]]).triu().tolist()
    [[1, 2], [0, 4]]
    """
    return _triangle(self, diagonal, True)


def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, up to `diagonal`; zeros above.

    >>> Tensor([[1, 2], [3, 4]]).tril(-1).tolist()
    [[0, 0], [3, 0]]
    """
    return _triangle(self, diagonal, False)


# --- sizes --------------------------------------------------------------------------------------------------


def number_of_axes(self: Tensor) -> int:
    """`ndim`, as a method."""
    return self.ndim


def numel(self: Tensor) -> int:
    """The number of items."""
    return math.prod(self.shape)


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the size of axis `dim`."""
    return self.shape if dim is None else axis_and_size("size", self, dim)[1]


def element_size(self: Tensor) -> int:
    """Bytes of one item."""
    return self.dtype.itemsize


def nbytes(self: Tensor) -> int:
    """Bytes of all items."""
    return numel(self) * self.dtype.itemsize
