"""Tensors joined, split and repeated, without computing anything: `cat` and `stack` add padded parts, `roll`
is a crop of a repeated tensor.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import promote
from tinygrad.functional.movement import (
    axis_and_size,
    axis_of,
    copied,
    expand,
    flatten,
    integers,
    reshape,
    shrink,
    unsqueeze,
)
from tinygrad.graph.joining import joined
from tinygrad.graph.sizes import Size, SizeError, as_size, is_symbolic
from tinygrad.helpers import ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def parts_of(name: str, self: Tensor | Sequence[Tensor], args: Sequence[Any], dim: int
             ) -> tuple[list[Tensor], int]:
    """The tensors to join, given one by one or as one sequence, which the axis may follow as in PyTorch.
    Raises ValueError where there is none."""
    if isinstance(self, (list, tuple)) and len(args) == 1 and isinstance(args[0], int):
        parts, dim = list(self), args[0]
    else:
        parts = [*self, *args] if isinstance(self, (list, tuple)) else [self, *args]
    if not parts:
        raise ValueError(f"{name} takes at least one tensor")
    return parts, dim


def cat(self: Tensor, *args: Tensor, dim: int = 0) -> Tensor:
    """The tensors one after another along axis `dim`. Other axes must agree; dtypes promote.

    >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
    [1, 2, 3]
    """
    parts, dim = parts_of("cat", self, args, dim)
    first = parts[0]
    axis = axis_of("cat", first, dim)
    if first.ndim == 0:
        raise ValueError("cat takes tensors with axes; stack joins 0-d tensors")
    if len({(p.ndim, p.shape[:axis], p.shape[axis + 1:]) for p in parts}) > 1:
        raise ValueError(f"cat along axis {axis} takes shapes equal elsewhere, got "
                         f"{', '.join(str(p.shape) for p in parts)}")
    if len(parts) == 1:
        return copied(first, first.uop)
    dtype = promote(*(p.dtype for p in parts))
    return type(first).of(joined([p.uop.cast(dtype) for p in parts], axis), *parts)


def stack(self: Tensor, *args: Tensor, dim: int = 0) -> Tensor:
    """The tensors, of equal shapes, side by side along a new axis `dim`.

    >>> Tensor([1, 2]).stack(Tensor([3, 4]), dim=1).tolist()
    [[1, 3], [2, 4]]
    """
    parts, dim = parts_of("stack", self, args, dim)
    if any(p.shape != parts[0].shape for p in parts):
        raise ValueError(f"stack takes equal shapes, got {', '.join(str(p.shape) for p in parts)}")
    axis = axis_of("stack", parts[0], dim, extra=1)
    first, *rest = [unsqueeze(p, axis) for p in parts]
    return first.cat(*rest, dim=axis)


def split(self: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along axis `dim`: of `sizes` items each (the last may be smaller), or of the sizes listed.

    >>> [t.tolist() for t in Tensor.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    axis, total = axis_and_size("split", self, dim)
    if isinstance(sizes, Size):
        raise SizeError(f"the number of pieces of {sizes} items, of {total}, may depend on the values of "
                        "Variables; list the sizes: x.split([n, m])")
    if isinstance(sizes, (int, np.integer)):
        sizes = int(sizes)
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
    _, size = axis_and_size("chunk", self, dim)
    return split(self, max(ceildiv(size, chunks), 1), dim) if size else split(self, [0] * chunks, dim)


def _joined_copies(x: Tensor, counts: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Copies along axes whose size is not known, which merge with no axis of copies, and the counts that are
    left."""
    left = list(counts)
    for axis in range(-x.ndim, 0):
        if is_symbolic((x.shape[axis],)) and not is_symbolic((counts[axis],)) and counts[axis] > 0:
            x = x.cat(*[x] * (counts[axis] - 1), dim=axis)
            left[axis] = 1
    return x, tuple(left)


def repeat(self: Tensor, repeats: Any, *args: Any) -> Tensor:
    """The whole tensor again and again along each axis; new axes come in front.

    >>> Tensor([1, 2]).repeat(2).tolist()
    [1, 2, 1, 2]
    """
    counts = tuple(map(as_size, integers("repeat", repeats, args)))
    if len(counts) < self.ndim or any(c < 0 for c in counts):
        raise ValueError(f"repeat takes a count >= 0 for each axis of shape {self.shape}, got {counts}")
    if is_symbolic(self.shape):
        self, counts = _joined_copies(self, counts)
    shape = (1,) * (len(counts) - self.ndim) + self.shape
    spread = self.uop.reshape([size for n in shape for size in (1, n)])
    spread = spread.expand([size for count, n in zip(counts, shape, strict=True) for size in (count, n)])
    return copied(self, spread.reshape([count * n for count, n in zip(counts, shape, strict=True)]))


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
    axis, size = axis_and_size("repeat_interleave", x, dim or 0)
    if not isinstance(repeats, int):
        from tinygrad.functional.selecting import repeated_each

        return repeated_each(x, repeats, axis)
    if repeats < 0:
        raise ValueError(f"repeat_interleave takes repeats of at least 0, got {repeats}")
    before, after = x.shape[:axis], x.shape[axis + 1:]
    spread = x.uop.reshape((*before, size, 1, *after)).expand((*before, size, repeats, *after))
    return copied(x, spread.reshape((*before, size * repeats, *after)))


def roll(self: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Items moved on by `shifts` along `dims`, those that leave at the end coming back at the start.

    Shifts along an axis that is named several times add up.

    >>> Tensor([1, 2, 3]).roll(1).tolist()
    [3, 1, 2]
    """
    if dims is None:
        return reshape(roll(flatten(self), shifts, 0), self.shape)
    axes = [axis_and_size("roll", self, dim)[0]
            for dim in (dims if isinstance(dims, (list, tuple)) else (dims,))]
    counts = (int(shifts),) if isinstance(shifts, (int, np.integer)) else tuple(shifts)
    if len(counts) != len(axes):
        raise ValueError(f"roll takes a shift for each axis, got shifts {counts} and dims {axes}")
    result = self
    for axis, count in zip(axes, counts, strict=True):
        size = self.shape[axis]
        start = -count % size if size else 0
        twice = repeat(result, [2 if i == axis else 1 for i in range(self.ndim)])
        moved = shrink(twice, [(start, start + size) if i == axis else None for i in range(self.ndim)])
        result = type(self).of(moved.uop, self)  # no view of what nobody else has
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
