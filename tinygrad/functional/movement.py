"""Shapes: reshaping, reordering, cropping, padding, joining and repeating, without computing anything.

Each function is a chain of RESHAPE, PERMUTE, EXPAND, PAD, SHRINK and STRIDE nodes, which cost nothing at run
time: consumers read the original memory through the composed index. Joining (`cat`, `stack`) adds padded
parts.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.creation import to_shape
from tinygrad.functional.elementwise import expand_to
from tinygrad.graph.sizes import Size, as_size, at_least
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.helpers import flatten as concatenated

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


def axes_of(name: str, self: Tensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes counted from the front, all of them for None. Raises ValueError where one comes twice."""
    if axes is None:
        return tuple(range(self.ndim))
    found = tuple(axis_of(name, self, a) for a in (axes if isinstance(axes, (list, tuple)) else (axes,)))
    if len(set(found)) != len(found):
        raise ValueError(f"{name}: axis {axes} names an axis twice")
    return found if self.ndim else ()


def _integers(name: str, first: Any, rest: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments given as separate integers or as one sequence."""
    if isinstance(first, (list, tuple)):
        if rest:
            raise TypeError(f"{name} takes separate integers or one sequence of them, not both")
        return tuple(first)
    return (first, *rest)


def _moved(self: Tensor, uop: UOp) -> Tensor:
    return self if uop is self.uop else type(self).of(uop, self)


# --- shape --------------------------------------------------------------------------------------------------


def reshape(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """The items in the same order in another shape. One size may be -1 (what remains), None keeps an axis.

    Raises ValueError where the number of items differs.

    >>> Tensor.arange(6).reshape(2, -1).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    asked = _integers("reshape", shape, args)
    sizes = [self.shape[i] if size is None and i < self.ndim else as_size(size)
             for i, size in enumerate(asked)]
    if sizes.count(-1) > 1:
        raise ValueError(f"reshape takes one -1 at most, got {asked}")
    if -1 in sizes:
        total, known = _without_common_sizes(self.shape, [s for s in sizes if s != -1])
        if known == 0 or total % known != 0:
            raise ValueError(f"cannot reshape {self.shape} ({prod(self.shape)} items) to {asked}: the size "
                             "for -1 is not a whole number")
        sizes[sizes.index(-1)] = total // known
    return _moved(self, self.uop.reshape(to_shape("reshape", sizes)))


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
    return _moved(self, self.uop.reshape(sizes))


def unflatten(self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Axis `dim` as several axes of `sizes`, one of which may be -1.

    >>> Tensor.arange(6).unflatten(0, (2, 3)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    axis = axis_of("unflatten", self, dim)
    size = self.shape[axis]
    known = prod(s for s in sizes if s != -1)
    unknown = list(sizes).count(-1)
    if unknown > 1 or (unknown and (known == 0 or size % known)) or (not unknown and known != size):
        raise ValueError(f"cannot unflatten an axis of {size} items to {tuple(sizes)}")
    parts = tuple(size // known if s == -1 else s for s in sizes)
    return _moved(self, self.uop.reshape(self.shape[:axis] + parts + self.shape[axis + 1:]))


def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axis `dim` if its size is 1; without all axes of size 1 where `dim` is None.

    >>> Tensor.ones(1, 3, 1).squeeze().shape
    (3,)
    """
    axes = axes_of("squeeze", self, dim)
    return _moved(self, self.uop.reshape([n for i, n in enumerate(self.shape) if n != 1 or i not in axes]))


def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """With a new axis of size 1 at `dim`.

    >>> Tensor.ones(2, 3).unsqueeze(1).shape
    (2, 1, 3)
    """
    axis = axis_of("unsqueeze", self, dim, extra=1)
    return _moved(self, self.uop.reshape((*self.shape[:axis], 1, *self.shape[axis:])))


def expand(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """Axes of size 1 repeated to the sizes in `shape`; -1 or None keeps a size, and new axes come in front.

    >>> Tensor([1, 2]).expand(2, 2).tolist()
    [[1, 2], [1, 2]]
    """
    asked = tuple(map(as_size, _integers("expand", shape, args)))
    if len(asked) < self.ndim:
        raise ValueError(f"expand: {asked} has fewer axes than the tensor's shape {self.shape}")
    padded = (1,) * (len(asked) - self.ndim) + self.shape
    sizes = tuple(n if s is None or s == -1 else s for n, s in zip(padded, asked, strict=True))
    if any(n not in (1, s) for n, s in zip(padded, sizes, strict=True)):
        raise ValueError(f"cannot expand {self.shape} to {sizes}: only axes of size 1 grow")
    return _moved(self, expand_to(self.uop, to_shape("expand", sizes)))


def permute(self: Tensor, order: Any, *args: Any) -> Tensor:
    """The axes in another order.

    >>> Tensor.ones(2, 3, 4).permute(2, 0, 1).shape
    (4, 2, 3)
    """
    axes = axes_of("permute", self, _integers("permute", order, args))
    if len(axes) != self.ndim:
        raise ValueError(f"permute takes every axis of shape {self.shape} once, got {axes}")
    return _moved(self, self.uop.permute(axes))


def transpose(self: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Two axes swapped.

    >>> Tensor([[1, 2], [3, 4]]).transpose().tolist()
    [[1, 3], [2, 4]]
    """
    order = list(range(self.ndim))
    a, b = axis_of("transpose", self, dim0), axis_of("transpose", self, dim1)
    if self.ndim:
        order[a], order[b] = order[b], order[a]
    return _moved(self, self.uop.permute(order))


def flip(self: Tensor, axis: Any, *args: Any) -> Tensor:
    """The items of some axes in reverse.

    >>> Tensor([[1, 2], [3, 4]]).flip(0).tolist()
    [[3, 4], [1, 2]]
    """
    axes = axes_of("flip", self, _integers("flip", axis, args))
    return _moved(self, self.uop.stride([-1 if i in axes else 1 for i in range(self.ndim)]))


def shrink(self: Tensor, arg: Sequence[tuple[int, int] | None]) -> Tensor:
    """The items from start to end of each axis; None keeps an axis whole.

    >>> Tensor([[1, 2], [3, 4]]).shrink(((0, 1), None)).tolist()
    [[1, 2]]
    """
    if len(arg) != self.ndim:
        raise ValueError(f"shrink takes a pair for each axis of shape {self.shape}, got {arg}")
    return _moved(self,
                  self.uop.shrink([(0, n) if a is None else (as_size(a[0]), as_size(a[1]))
                                   for a, n in zip(arg, self.shape)]))


def shrink_to(self: Tensor, shape: Any, *args: Any) -> Tensor:
    """The first items of each axis, as many as `shape` says; None keeps an axis."""
    sizes = _integers("shrink_to", shape, args)
    return shrink(self, [None if s is None else (0, s) for s in sizes])


# --- padding ------------------------------------------------------------------------------------------------


def _pairs(self: Tensor, padding: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis, from pairs by axis or from flat sizes, last axis first as in PyTorch."""
    padding = as_size(padding)
    if isinstance(padding, (int, Size)):
        return [(padding, padding)] * self.ndim
    if all(isinstance(as_size(p), (int, Size)) for p in padding):
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
    `mode` is "constant" (`value`), "reflect" (mirrored without the edge item), "replicate" (the edge item) or
    "circular".

    >>> Tensor([1, 2, 3]).pad((1, 2)).tolist(), Tensor([1, 2, 3]).pad((2, 0), mode="reflect").tolist()
    ([0, 1, 2, 3, 0, 0], [3, 2, 1, 2, 3])
    """
    pairs = _pairs(self, padding)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"pad mode is 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    cropped = self.uop.shrink([_cropped(n, before, after)
                               for (before, after), n in zip(pairs, self.shape, strict=True)])
    grown = [(at_least(before, 0), at_least(after, 0)) for before, after in pairs]
    if mode != "constant":
        result = _moved(self, cropped)
        for axis, (before, after) in enumerate(grown):
            if before or after:
                result = _extended(result, axis, before, after, mode)
        return result
    padded = cropped.pad(grown)
    if value == 0 or padded is cropped:
        return _moved(self, padded)
    inside = UOp.const(True, dtypes.bool, cropped.shape).pad(grown)
    return type(self).of(inside.where(padded, padded._operand(value)), self)


def _cropped(size: int, before: int, after: int) -> tuple[int, int]:
    """(start, end) of an axis that sizes below 0 before and after it crop."""
    start = 0 if before >= 0 else min(-before, size)
    return start, size if after >= 0 else max(size + after, start)


def _extended(self: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """The axis continued on both sides by its own items."""
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
    return cat(*filled, dim=axis) if filled else self


def pad_to(self: Tensor, shape: Any, *args: Any, value: float = 0) -> Tensor:
    """Filled up with `value` at the end of each axis, to `shape`; None keeps an axis."""
    sizes = tuple(map(as_size, _integers("pad_to", shape, args)))
    if len(sizes) != self.ndim or any(s is not None and s < n for s,
                                      n in zip(sizes, self.shape, strict=False)):
        raise ValueError(f"pad_to takes sizes of at least those of shape {self.shape}, got {sizes}")
    return pad(self, tuple((0, 0 if s is None else s - n) for s, n in zip(sizes, self.shape)), value=value)


# --- joining, splitting, repeating --------------------------------------------------------------------------


def _parts(name: str, self: Tensor | Sequence[Tensor], args: Sequence[Tensor]) -> list[Tensor]:
    """The tensors to join, given one by one or as one sequence. Raises ValueError where there is none."""
    parts: list[Any] = [*self, *args] if isinstance(self, (list, tuple)) else [self, *args]
    if not parts:
        raise ValueError(f"{name} takes at least one tensor")
    return parts


def cat(self: Tensor, *args: Tensor, dim: int = 0) -> Tensor:
    """The tensors one after another along axis `dim`. Other axes must agree; dtypes promote.

    >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
    [1, 2, 3]
    """
    parts = _parts("cat", self, args)
    first = parts[0]
    axis = axis_of("cat", first, dim)
    if first.ndim == 0:
        raise ValueError("cat takes tensors with axes; stack joins 0-d tensors")
    if len({(p.ndim, p.shape[:axis], p.shape[axis + 1:]) for p in parts}) > 1:
        raise ValueError(f"cat along axis {axis} takes shapes equal elsewhere, got "
                         f"{', '.join(str(p.shape) for p in parts)}")
    if len(parts) == 1:
        return first
    dtype = promote(*(p.dtype for p in parts))
    total = sum(p.shape[axis] for p in parts)

    def along(before: int, after: int) -> list[tuple[int, int]]:
        return [(before, after) if i == axis else (0, 0) for i in range(first.ndim)]

    result, start = parts[0].uop.cast(dtype).pad(along(0, total - first.shape[axis])), first.shape[axis]
    for part in parts[1:]:
        end = start + part.shape[axis]
        padded = part.uop.cast(dtype).pad(along(start, total - end))
        # chosen by position rather than added, which would lose the sign of zero
        tail = UOp.const(True, dtypes.bool,
                         tuple(total - start if i == axis else 1 for i in range(first.ndim)))
        result = tail.pad(along(start, 0)).expand(result.shape).where(padded, result)
        start = end
    return type(first).of(result, *parts)


def stack(self: Tensor, *args: Tensor, dim: int = 0) -> Tensor:
    """The tensors, of equal shapes, side by side along a new axis `dim`.

    >>> Tensor([1, 2]).stack(Tensor([3, 4]), dim=1).tolist()
    [[1, 3], [2, 4]]
    """
    parts = _parts("stack", self, args)
    if any(p.shape != parts[0].shape for p in parts):
        raise ValueError(f"stack takes equal shapes, got {', '.join(str(p.shape) for p in parts)}")
    axis = axis_of("stack", parts[0], dim, extra=1)
    first, *rest = [unsqueeze(p, axis) for p in parts]
    return cat(first, *rest, dim=axis)


def split(self: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along axis `dim`: of `sizes` items each (the last may be smaller), or of the sizes listed.

    >>> [t.tolist() for t in Tensor.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    axis = axis_of("split", self, dim)
    total = self.shape[axis]
    if isinstance(sizes, int):
        if sizes <= 0:
            raise ValueError(f"split takes sizes > 0, got {sizes}")
        sizes = [min(sizes, total - start) for start in range(0, max(total, 1), sizes)]
    if sum(sizes) != total or any(s < 0 for s in sizes):
        raise ValueError(f"split: sizes {tuple(sizes)} do not add up to the {total} items of axis {axis}")
    ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    return tuple(shrink(self, [(end - size, end) if i == axis else None for i in range(self.ndim)])
                 for size, end in zip(sizes, ends, strict=True))


def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size along axis `dim`; the last may be smaller.

    >>> [t.tolist() for t in Tensor.arange(5).chunk(2)]
    [[0, 1, 2], [3, 4]]
    """
    if chunks <= 0:
        raise ValueError(f"chunk takes chunks > 0, got {chunks}")
    size = self.shape[axis_of("chunk", self, dim)]
    return split(self, max(ceildiv(size, chunks), 1), dim) if size else split(self, [0] * chunks, dim)


def repeat(self: Tensor, repeats: Any, *args: Any) -> Tensor:
    """The whole tensor again and again along each axis; new axes come in front.

    >>> Tensor([1, 2]).repeat(2).tolist()
    [1, 2, 1, 2]
    """
    counts = tuple(map(as_size, _integers("repeat", repeats, args)))
    if len(counts) < self.ndim or any(c < 0 for c in counts):
        raise ValueError(f"repeat takes a count >= 0 for each axis of shape {self.shape}, got {counts}")
    shape = (1,) * (len(counts) - self.ndim) + self.shape
    spread = self.uop.reshape([size for n in shape for size in (1, n)])
    spread = spread.expand([size for count, n in zip(counts, shape, strict=True) for size in (count, n)])
    return _moved(self, spread.reshape([count * n for count, n in zip(counts, shape, strict=True)]))


def repeat_interleave(self: Tensor, repeats: int | Sequence[int] | Tensor, dim: int | None = None) -> Tensor:
    """Each item `repeats` times in a row along axis `dim`; of the flattened tensor where `dim` is None.

    Several repeats say it for each item along the axis; those in a tensor are computed, to know how many
    there are.

    >>> Tensor([1, 2]).repeat_interleave(2).tolist()
    [1, 1, 2, 2]
    >>> Tensor([1, 2, 3]).repeat_interleave([2, 0, 1]).tolist()
    [1, 1, 3]
    """
    x = flatten(self) if dim is None else self
    axis = 0 if dim is None else axis_of("repeat_interleave", x, dim)
    if not isinstance(repeats, int):
        from tinygrad.functional.selecting import repeated_each

        return repeated_each(x, repeats, axis)
    if repeats < 0:
        raise ValueError(f"repeat_interleave takes repeats of at least 0, got {repeats}")
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    spread = x.uop.reshape((*before, size, 1, *after)).expand((*before, size, repeats, *after))
    return _moved(x, spread.reshape((*before, size * repeats, *after)))


def roll(self: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Items moved on by `shifts` along `dims`, those that leave at the end coming back at the start.

    Shifts along an axis that is named several times add up.

    >>> Tensor([1, 2, 3]).roll(1).tolist()
    [3, 1, 2]
    """
    if dims is None:
        return reshape(roll(flatten(self), shifts, 0), self.shape)
    axes = [axis_of("roll", self, dim) for dim in (dims if isinstance(dims, (list, tuple)) else (dims,))]
    counts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    if len(counts) != len(axes):
        raise ValueError(f"roll takes a shift for each axis, got shifts {counts} and dims {axes}")
    result = self
    for axis, count in zip(axes, counts, strict=True):
        size = self.shape[axis]
        start = -count % size if size else 0
        twice = repeat(result, [2 if i == axis else 1 for i in range(self.ndim)])
        result = shrink(twice, [(start, start + size) if i == axis else None for i in range(self.ndim)])
    return result


def meshgrid(self: Tensor, *args: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid, one tensor an axis. "xy" swaps the first two axes.

    >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([5, 6]))]
    [[[1, 1], [2, 2]], [[5, 6], [5, 6]]]
    """
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid indexing is 'ij' or 'xy', got {indexing!r}")
    axes = [self, *args]
    if any(t.ndim > 1 for t in axes):
        raise ValueError(f"meshgrid takes tensors of one axis, got {', '.join(str(t.shape) for t in axes)}")
    swap = indexing == "xy" and len(axes) > 1
    places = [1, 0, *range(2, len(axes))] if swap else list(range(len(axes)))
    sizes = [prod(t.shape) for t in axes]
    shape = [sizes[places[i]] for i in range(len(axes))]
    return tuple(expand(reshape(t, [sizes[i] if j == places[i] else 1 for j in range(len(axes))]), shape)
                 for i, t in enumerate(axes))


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
    if size == 0:
        nothing = last.shrink((*((0, n) for n in lead), (0, 0))).reshape((*lead, 1, 0))
        windows = nothing.expand((*lead, count, 0))
    else:
        windows = rows_of_windows(last, size, count)
    windows = windows.stride((1,) * len(lead) + (step, 1))
    order = [*range(axis), len(lead), *range(axis, len(lead)), len(lead) + 1]
    return _moved(self, windows.permute(order))


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
        return _moved(self, last.shrink((*whole, (0, 0), (0, 0))).reshape((*lead, 0)))
    square = last.shrink((*whole, (top, top + size), (left, left + size)))
    # rows one item longer, so that the diagonal becomes a column
    flat = square.reshape((*lead, size * size)).pad((*((0, 0) for _ in lead), (0, size)))
    return _moved(self,
                  flat.reshape((*lead, size, size + 1)).shrink((*whole, (0, size), (0, 1))).reshape((*lead,
                                                                                                     size)))


def diag(self: Tensor) -> Tensor:
    """The square matrix with this vector on its diagonal, or the diagonal of this matrix.

    >>> Tensor([1, 2]).diag().tolist()
    [[1, 0], [0, 2]]
    """
    if self.ndim == 2:
        return diagonal(self)
    if self.ndim != 1:
        raise ValueError(f"diag takes a vector or a matrix, got shape {self.shape}")
    size = self.shape[0]
    spaced = self.uop.reshape((size, 1)).pad(((0, 0), (0, size))).reshape((size * (size + 1),))
    return _moved(self, spaced.shrink(((0, size * size),)).reshape((size, size)))


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


# --- names for axes -----------------------------------------------------------------------------------------


def _parse_axes(side: str, formula: str) -> list[list[str]]:
    """The groups of one side of a formula: "b (h w) ..." is [["b"], ["h", "w"], ["..."]]."""
    groups: list[list[str]] = []
    open_group: list[str] | None = None
    for token in side.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(" and open_group is None:
            open_group = []
        elif token == ")" and open_group is not None:
            groups.append(open_group)
            open_group = None
        elif token in "()" or not (token.isidentifier() or token in ("...", "1")):
            raise ValueError(f"rearrange: cannot read {token!r} in {formula!r}")
        elif open_group is None:
            groups.append([token] if token != "1" else [])
        elif token != "1":
            open_group.append(token)
    if open_group is not None:
        raise ValueError(f"rearrange: a parenthesis is not closed in {formula!r}")
    return groups


def rearrange(self: Tensor, formula: str, **sizes: int) -> Tensor:
    """Axes split, reordered and merged by name, as einops does: "b (h w) c -> b c h w" with h=... given.

    >>> Tensor.arange(4).rearrange("(a b) -> b a", a=2).tolist()
    [[0, 2], [1, 3]]
    """
    if formula.count("->") != 1:
        raise ValueError(f"rearrange takes 'names -> names', got {formula!r}")
    left, right = (_parse_axes(side, formula) for side in formula.split("->"))
    extra = self.ndim - sum(group != ["..."] for group in left)
    names = [f"...{i}" for i in range(max(extra, 0))] if ["..."] in left else []
    unused = [name for name in sizes if name not in concatenated(left)]
    if unused or (["..."] not in left and "..." in concatenated(right)):
        raise ValueError(f"rearrange: {formula!r} has no axis {', '.join(unused) or '...'} on its left")
    if extra != len(names):
        raise ValueError(f"rearrange: {formula!r} does not name the axes of shape {self.shape}")

    def spelled_out(groups: list[list[str]]) -> list[list[str]]:
        result: list[list[str]] = []
        for group in groups:
            if group == ["..."]:
                result.extend([name] for name in names)
            else:
                result.append([n for a in group for n in (names if a == "..." else [a])])
        return result

    left, right = spelled_out(left), spelled_out(right)
    split_sizes: dict[str, int] = {}
    for group, total in zip(left, self.shape, strict=True):
        known = prod(sizes[a] for a in group if a in sizes)
        unknown = [a for a in group if a not in sizes]
        if len(unknown) > 1 or known == 0 or total % known or (not unknown and known != total):
            raise ValueError(f"rearrange: an axis of {total} items does not divide as {tuple(group)} with "
                             f"{sizes}")
        split_sizes.update({a: sizes[a] for a in group if a in sizes})
        split_sizes.update({a: total // known for a in unknown})
    flat_left, flat_right = concatenated(left), concatenated(right)
    if sorted(flat_left) != sorted(flat_right) or len(set(flat_left)) != len(flat_left):
        raise ValueError(f"rearrange: both sides of {formula!r} must name the same axes, each once")
    split_up = self.uop.reshape([split_sizes[a] for a in flat_left])
    ordered = split_up.permute([flat_left.index(a) for a in flat_right])
    return _moved(self, ordered.reshape([prod(split_sizes[a] for a in group) for group in right]))


# --- sizes --------------------------------------------------------------------------------------------------


def numel(self: Tensor) -> int:
    """The number of items."""
    return math.prod(self.shape)


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the size of axis `dim`."""
    return self.shape if dim is None else self.shape[axis_of("size", self, dim)]


def element_size(self: Tensor) -> int:
    """Bytes of one item."""
    return self.dtype.itemsize


def nbytes(self: Tensor) -> int:
    """Bytes of all items."""
    return numel(self) * self.dtype.itemsize
