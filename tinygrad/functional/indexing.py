"""Selecting and writing items by position: `x[...]`, gather, scatter, masks.

Integers, slices, None and Ellipsis are movement operations. Indexing with tensors is a one-hot sum, the sum
over the axis of where(position == index, x, 0), which the compiler turns into an indexed load, and its
transpose into a scattered store. A mask is its positions, which are computed first: see `selecting.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType, dtype_from_numpy, dtypes
from tinygrad.engine.capture import Capture, JitError, users_line
from tinygrad.frozen import frozen
from tinygrad.functional.creation import counting
from tinygrad.functional.elementwise import expand_to, order_reversed
from tinygrad.functional.graph_templates import memoised
from tinygrad.functional.movement import axis_of
from tinygrad.graph.batch import is_unknown
from tinygrad.graph.leaf_tensors import own_memory
from tinygrad.graph.ops import Ops
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.sizes import Size, as_size, at_most, is_expression, is_size, is_symbolic, largest
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.tensor.hostdata import array_of, true_places
from tinygrad.tensor.writing import as_written, is_written_lazily, operand_to_write

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


@frozen
class Selection:
    """An index taken apart: what movement does, then which axes of the result tensors select from."""

    part: UOp
    """the items of the tensor's node that integers and slices select, with all of its axes"""
    shape: Shape
    """the same without the axes of integers, and with those of None"""
    tensors: dict[int, Tensor]
    """axis of `view` -> which of its items"""

    @property
    def view(self) -> UOp:
        """The tensor's node after integers, slices, None and Ellipsis."""
        return self.part.reshape(self.shape)


_PLAIN = frozenset({int, slice, NoneType, EllipsisType})
"""Types of index items that are taken as they are."""
_WHOLE = frozenset({int, NoneType})
"""Types of a slice's bounds in most programs."""


def _number_of_axes(item: Any) -> int:
    """How many axes of the tensor an index item stands for."""
    if item is None:
        return 0
    return max(item.ndim, 1) if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return getattr(item, "dtype", None) in (dtypes.bool, np.dtype(bool))


def _in_range(self: Tensor, array: np.ndarray[Any, Any], axis: int) -> Tensor:
    """Positions that are known, as a tensor. Raises IndexError for those that `axis` does not have."""
    size = self.shape[axis]
    if not isinstance(size, Size):
        wrong = array[(array < -size) | (array >= size)]
        if wrong.size:
            raise IndexError(f"index {wrong[0]} is out of range for axis {axis} of {size} items, of shape "
                             f"{self.shape}")
    return type(self)(array, device=self.device, requires_grad=False)


def _as_index(self: Tensor, item: Any) -> Any:
    """Lists and tuples as arrays; NumPy integers and `__index__` objects as ints; the rest as it is."""
    if isinstance(item, (list, tuple, np.ndarray)):
        array = array_of(item, None)
        item = array if array.size or array.dtype == bool else array.astype(np.int32)  # [] has no dtype
    if isinstance(item, (np.ndarray, type(self))):
        dtype = item.dtype if isinstance(item, type(self)) else dtype_from_numpy(item.dtype)
        if dtype.is_float:
            raise IndexError(f"an index is integers or bools, got {dtype} of shape {item.shape}")
        return item
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if is_expression(item) or isinstance(item, Size):
        return as_size(item)
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise IndexError(f"an index is an int, a slice, None, Ellipsis, a list or a tensor, got {item!r}")
    return int(item.__index__())


def refuse_unknown_size(what: str, instead: str) -> None:
    """Raise JitError while TinyJit traces: the size of a result cannot depend on values there."""
    if Capture.current() is not None:
        raise JitError(f"{users_line()}: the size of {what} depends on values, which a function under "
                       f"TinyJit does not know; say how many items there are to be, {instead}: more are left "
                       "out, and fewer are filled up")


def items_of(self: Tensor, index: Any) -> list[Any]:
    """The index as one item an axis (None adds one), Ellipsis written out and masks as their positions."""
    given = index if isinstance(index, tuple) else (index,)
    kinds = [type(item) for item in given]
    is_plain = _PLAIN.issuperset(kinds)
    items = list(given) if is_plain else [_as_index(self, item) for item in given]
    if kinds.count(EllipsisType) > 1:
        raise IndexError("an index takes one Ellipsis at most")
    named = len(items) - kinds.count(NoneType) - kinds.count(EllipsisType) if is_plain else \
        sum(_number_of_axes(item) for item in items if item is not Ellipsis)
    if named > self.ndim:
        raise IndexError(f"too many indices: {named} for shape {self.shape}")
    whole = [slice(None)] * (self.ndim - named)
    at = kinds.index(EllipsisType) if EllipsisType in kinds else len(items)
    items = [*items[:at], *whole, *items[at + 1:]]
    if is_plain:
        return items
    result: list[Any] = []
    axis = 0
    for item in items:
        if _is_mask(item):
            covered = self.shape[axis:axis + item.ndim]
            if item.shape != covered:
                raise IndexError(f"a mask of shape {item.shape} does not fit axes {covered} of shape "
                                 f"{self.shape}")
            if not isinstance(item, np.ndarray):
                refuse_unknown_size("an index by a mask", "x.masked_select(mask, size=n)")
                item = item.numpy()
            result.extend(type(self)(p, device=self.device, requires_grad=False) for p in true_places(item))
            axis += item.ndim
            continue
        if isinstance(item, np.ndarray):
            result.append(_in_range(self, item, axis))
        else:
            result.append(item)
        axis += _number_of_axes(item)
    return result


def _sliced(item: slice, size: int) -> tuple[tuple[int, int], int]:
    """(start, end) to crop an axis to, and the step to take in it."""
    bounds = item.start, item.stop, item.step
    if type(size) is int and _WHOLE.issuperset(map(type, bounds)) and item.step != 0:
        return _from_first_to_last(range(*item.indices(size)))
    for bound in bounds:
        if bound is not None and not is_size(as_size(bound)):
            raise TypeError(f"a slice takes integers, got {item}")
    if item.step is not None and int(item.step) == 0:
        raise ValueError("a slice takes a step other than 0")
    start, stop = as_size(item.start), as_size(item.stop)
    if is_symbolic([start, stop, size]):
        return _sliced_at_sizes(item, start, stop, size)
    return _from_first_to_last(range(size)[slice(start, stop, item.step)])


def _from_first_to_last(picked: range) -> tuple[tuple[int, int], int]:
    """(start, end) around these positions, and their step."""
    if not picked:
        return (0, 0), 1
    first, last, step = picked[0], picked[-1], picked.step
    return ((first, last + 1) if step > 0 else (last, first + 1)), step


def _sliced_at_sizes(item: slice, start: Any, stop: Any, size: int) -> tuple[tuple[int, int], int]:
    """The same where a bound or the size is not known: negative bounds count from the end. A number is cut
    to a size that is one; others have to be within the size."""
    step = 1 if item.step is None else int(item.step)
    if step < 0 and (start is not None or stop is not None):
        raise ValueError("a slice with a negative step takes no bounds where sizes are not known, got "
                         f"{item}; slice first, then take every item with the step")
    first = 0 if start is None else start + size if start < 0 else start
    last = size if stop is None else stop + size if stop < 0 else stop
    if type(size) is int:
        first, last = (place if isinstance(place, Size) else min(max(place, 0), size)
                       for place in (first, last))
    return (first, last), step


def select(self: Tensor, index: Any, to_write: bool = False) -> Selection:
    """Apply the movement part of an index. Raises IndexError for positions out of range and too many items.

    `to_write`: no part is larger than the axis for any value of its Variables, also where none of them is
    bound so.
    """
    bounds, steps, kept, tensors = [], [], [], {}
    axis = 0
    for item in items_of(self, index):
        if item is None:
            kept.append(1)
            continue
        size = self.shape[axis]
        step = 1
        if isinstance(item, (int, Size)):
            if not -size <= item < size:
                raise IndexError(f"index {item} is out of range for axis {axis} of {size} items, of shape "
                                 f"{self.shape}")
            start = item + size if item < 0 else item
            end = start + 1
        elif isinstance(item, slice):
            (start, end), step = _sliced(item, size)
            if to_write and largest(end - start) > largest(size):
                end = start + at_most(end - start, largest(size))
            kept.append(ceildiv(end - start, abs(step)))
        else:
            start, end = 0, size
            tensors[len(kept)] = item
            kept.append(size)
        bounds.append((start, end))
        steps.append(step)
        axis += 1
    return Selection(self._result.shrink(bounds).stride(steps), tuple(kept), tensors)


def _not_negative(index: UOp, size: int) -> UOp:
    """`index` with negative positions counted from the end, in a type that holds every position."""
    if index.op is Ops.EXPAND:  # the same for all that it is repeated for, and seen to be
        return _not_negative(index.src[0], size).expand(index.shape)
    wide = index.cast(dtypes.int32) if index.dtype.itemsize < 4 else index
    return wide if index.dtype.is_unsigned else (wide < 0).where(wide + size, wide)


def _nonzero_sum(selected: UOp, axes: Sequence[int]) -> UOp:
    """The sum over `axes` of values of which at most one is not zero, in any dtype."""
    if selected.dtype.is_bool:
        return selected.cast(dtypes.uint8).reduce(Ops.ADD, axes).cast(dtypes.bool)
    return selected.reduce(Ops.ADD, axes)


def _numbers_along(axis: int, ndim: int, size: int, dtype: DType) -> UOp:
    """0, 1, 2, ... along one of `ndim` axes, the others of size 1."""
    return counting(size, dtype).reshape([size if i == axis else 1 for i in range(ndim)])


@frozen
class Places:
    """How what index tensors select along some axes lies: `shape`, theirs, comes where the indexed axes were
    if those are neighbours, else in front, as in NumPy. Axes that one position indexes are gone before that
    is asked."""

    before: tuple[int, ...]
    """the other axes that come before `shape`"""
    shape: Shape
    """what the index tensors broadcast to"""
    after: tuple[int, ...]
    """the other axes that come after it"""

    @classmethod
    def of(cls, ndim: int, axes: tuple[int, ...], indices: Sequence[Tensor]) -> Places:
        """Of `indices`, one for each of these of `ndim` axes."""
        others = [a for a in range(ndim) if a not in axes]
        wide = [a for a, index in zip(axes, indices, strict=True) if index.shape] or axes
        between = [a for a in others if wide[0] < a < wide[-1]]
        before = () if between else tuple([a for a in others if a < wide[0]])
        shape = broadcast_shape("index", *(index.shape for index in indices))
        return cls(before, shape, tuple([a for a in others if a not in before]))


def _rows_of(places: Sequence[UOp], shape: Shape, sizes: Shape) -> UOp:
    """Of places along axes of these `sizes`, broadcast to `shape`, the number of each in all of them, in one
    axis; a number that nothing has where a place is out of range."""
    count = prod(shape)
    places = [expand_to(place, shape) for place in places]
    if len(places) == 1:
        return places[0].reshape((count,))
    dtype = dtypes.int32 if largest(prod(sizes)) < 2 ** 31 else dtypes.int64
    row, known = UOp.const(0, dtype, shape), UOp.const(True, dtypes.bool, shape)
    for place, size in zip(places, sizes, strict=True):
        row = row * size + place.cast(dtype)
        known = known & (place >= 0) & (place < size)
    # stored, for who compares a row with the items' would compare each place, an axis at a time
    return known.where(row, prod(sizes)).reshape((count,)).intermediate()


@memoised
def _picked(self: Tensor, axes: tuple[int, ...], *indices: Tensor) -> Tensor:
    """Tensor indexing: these axes, in order, are replaced by the common shape of what indexes them."""
    x = self.uop
    tensors = {axis: _not_negative(index.uop, x.shape[axis])
               for axis, index in zip(axes, indices, strict=True)}
    places = Places.of(len(x.shape), axes, indices)
    before, shape, after = places.before, places.shape, places.after
    # axes: before, the indices' shape, the indexed axes (summed), after; so the transpose of this, a sum over
    # the second of these, lies in memory as x does
    ordered = x.permute([*before, *axes, *after])
    lead = len(before)
    sizes = ordered.shape
    spread = ordered.reshape((*sizes[:lead], *(1,) * len(shape), *sizes[lead:]))
    full = (*sizes[:lead], *shape, *sizes[lead:])
    first = lead + len(shape)
    mask: UOp | None = None
    for i, axis in enumerate(axes):
        index = expand_to(tensors[axis],
                          shape).reshape((*(1,) * lead, *shape, *(1,) * (len(full) - lead - len(shape))))
        numbers = _numbers_along(first + i, len(full), x.shape[axis], index.dtype)
        hit = expand_to(index, full).eq(expand_to(numbers, full))
        mask = hit if mask is None else mask & hit
    assert mask is not None
    chosen = mask.where(expand_to(spread, full), 0)
    summed = range(first, first + len(axes))
    result = _nonzero_sum(chosen, summed).reshape((*full[:first], *full[first + len(axes):]))
    return type(self).of(result, self, *indices)


@memoised
def written_at(self: Tensor, axes: tuple[int, ...], source: Tensor, *indices: Tensor) -> Tensor:
    """This with `source`, of the shape of what is selected, at the places that tensors select along these
    axes; the last one wins. Which source each row has, of the indexed axes, is found once for all its items.
    """
    x = self.uop
    places = Places.of(len(x.shape), axes, indices)
    sizes = tuple([x.shape[a] for a in axes])
    row = _rows_of([_not_negative(index.uop, size) for index, size in zip(indices, sizes, strict=True)],
                   places.shape, sizes)
    (count,), rows = row.shape, prod(sizes)
    hit = row.reshape((count, 1)).expand((count, rows)).eq(
        expand_to(_numbers_along(1, 2, rows, row.dtype), (count, rows)))
    numbers = _numbers_along(0, 2, count, dtypes.default_int) + 1
    last = hit.where(expand_to(numbers, (count, rows)), numbers.dtype.min).reduce(Ops.MAX, (0,))
    last = expand_to(last.reshape([n if a in axes else 1 for a, n in enumerate(x.shape)]), x.shape)

    lead, along = len(places.before), len(places.shape)
    moved = source.uop.permute([*range(lead, lead + along), *range(lead),
                                *range(lead + along, len(source.shape))])
    full = (count, *x.shape)
    values = moved.reshape((count, *(1 if a in axes else n for a, n in enumerate(x.shape)))).expand(full)
    numbers = numbers.reshape((count, *(1,) * len(x.shape))).expand(full)
    chosen = expand_to(last.reshape((1, *x.shape)), full).eq(numbers).where(values, 0)
    written = (last > 0).where(_nonzero_sum(chosen, (0,)).reshape(x.shape), x)
    return type(self).of(written, self, source, *indices)


def getitem(self: Tensor, index: Any) -> Tensor:
    """The items that an index selects: ints, slices, None, Ellipsis, lists, integer tensors, masks, as in
    NumPy (but an int, or a tensor of one position without axes, beside tensors takes its item first, as in
    PyTorch, and is none of them).

    Positions of an integer tensor that are out of range give zero. Raises IndexError for ints out of range
    (in lists and arrays too), too many indices, and masks that do not fit.

    >>> Tensor.arange(6).reshape(2, 3)[:, [2, 0]].tolist()
    [[2, 0], [5, 3]]
    """
    chosen = select(self, index)
    if chosen.tensors:
        axes = tuple(sorted(chosen.tensors))
        return _picked(type(self).of(chosen.view, self), axes, *[chosen.tensors[axis] for axis in axes])
    return type(self).view_of(chosen.view, self)


def _as_selected(self: Tensor, chosen: Selection, new: Tensor) -> Tensor:
    """What is to be written, as the whole of what integers and slices select."""
    if not chosen.tensors:
        return as_written("setitem", chosen.view.shape, self.dtype, new).to(self.device)
    axes = tuple(sorted(chosen.tensors))
    indices = [chosen.tensors[axis] for axis in axes]
    view = type(self).of(chosen.view, self)
    places = Places.of(view.ndim, axes, indices)
    before, after = ([view.shape[a] for a in others] for others in (places.before, places.after))
    source = as_written("setitem", (*before, *places.shape, *after), self.dtype, new)
    return written_at(view, axes, source.to(self.device), *indices)


def setitem(self: Tensor, index: Any, value: Any) -> None:
    """Write `value`, broadcast, to the items that an index selects.

    All views of the same value see it. Memory is written at once, a constant to gradients; a lazy value
    that gradients flow through takes a new value, through which they flow (under `no_grad`: as if nothing had
    been written, as in PyTorch). Where an index tensor names an item twice, the last value stays; where it
    names none, nothing is written. A Python number is cast to this dtype. Raises RuntimeError where several
    of the items are one item of what this is a view of, TypeError for a tensor of floats to write among
    integers.
    """
    new = operand_to_write(self, value)
    if isinstance(index, type(self)) and index.dtype.is_bool and index.shape == self.shape and new.ndim == 0:
        number = as_written("setitem", (), self.dtype, new).to(self.device)
        self.write(index.where(number, self).uop, partly=True)
        return
    node = self.uop  # the value may be another view, which asks for what is still to be written here
    chosen = select(self, index)
    value = _as_selected(self, chosen, new).uop
    if chosen.tensors and chosen.part is node:
        self.write(value.reshape(self.shape), partly=True)
        return
    memory = None
    if not is_unknown(value) and not is_written_lazily(self, value):
        self.compute_whole()
        memory = own_memory(self.uop)
    if memory is None:  # also while a function is exported, where nothing is computed
        # not by `chosen.view`: its reshape would become one with a reshape that the node ends in
        self.write(value.reshape(chosen.part.shape), chosen.part)
        return
    view = chosen.view
    if memory is not node or view.has_sizes:
        view = select(type(self).leaf(memory, requires_grad=False), index, to_write=True).view
    self.overwrite(view, value.shrink([(0, size) for size in view.shape]))


# --- gather and scatter -------------------------------------------------------------------------------------


def _check_index(name: str, self: Tensor, axis: int, index: Tensor) -> None:
    if not index.dtype.is_int:
        raise TypeError(f"{name} takes an integer index, got {index.dtype}")
    if index.ndim != self.ndim or any(n > m for i,
                                      (n, m) in enumerate(zip(index.shape, self.shape)) if i != axis):
        raise ValueError(f"{name}: an index of shape {index.shape} must have as many axes as {self.shape}, "
                         f"and no larger ones except axis {axis}")


def _inserted(shape: Shape, axis: int, size: int) -> Shape:
    """`shape` with another axis."""
    return (*shape[:axis], size, *shape[axis:])


def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Along axis `dim`, the items at `index`: result[i, j] = self[index[i, j], j] for dim 0. Shape of
    `index`.

    >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    axis = axis_of("gather", self, dim)
    _check_index("gather", self, axis, index)
    if not self.ndim:
        return gather(self.reshape(1), 0, index.reshape(1)).reshape(())
    size = self.shape[axis]
    x = self.uop.shrink([(0, n) if i == axis else (0, index.shape[i]) for i, n in enumerate(self.shape)])
    places = _not_negative(index.uop, size)
    full = _inserted(places.shape, axis + 1, size)  # which place, and beside it every item that it may name
    numbers = expand_to(_numbers_along(axis + 1, len(full), size, places.dtype), full)
    hit = places.reshape(_inserted(places.shape, axis + 1, 1)).expand(full).eq(numbers)
    chosen = hit.where(x.reshape(_inserted(x.shape, axis, 1)).expand(full), 0)
    return type(self).of(_nonzero_sum(chosen, (axis + 1,)).reshape(places.shape), self, index)


@frozen
class Scattering:
    """What scatter functions share: for each target item (the axis after `axis`) the sources (`axis`) that go
    there."""

    hit: UOp
    """(..., sources, items, ...): whether the source's index names the item"""
    source: UOp
    """(..., sources, items, ...): the source's value"""
    numbers: UOp
    """(..., sources, items, ...): the number of the source, from 1"""
    axis: int
    shape: Shape

    def onto(self, x: UOp, fill: Any) -> UOp:
        """A node over (..., 1, items, ...), put in place in a tensor of `shape`, with `fill` around."""
        flat = x.reshape((*x.shape[:self.axis], *x.shape[self.axis + 1:]))
        pads = [(0, n - m) for n, m in zip(self.shape, flat.shape, strict=True)]
        if all(p == (0, 0) for p in pads) or fill == 0:
            return flat.pad(pads)
        return UOp.const(True, dtypes.bool, flat.shape).pad(pads).where(flat.pad(pads), fill)

    def count(self) -> UOp:
        """How many sources go to each item."""
        return self.onto(self.hit.cast(dtypes.default_int).reduce(Ops.ADD, (self.axis,)), 0)

    def folded(self, op: Ops, identity: Any) -> UOp:
        """The reduction of the sources that go to each item."""
        return self.onto(self.hit.where(self.source, identity).reduce(op, (self.axis,)), identity)


def _scattering(name: str, self: Tensor, dim: int, index: Tensor, src: Any) -> Scattering:
    axis = axis_of(name, self, dim)
    _check_index(name, self, axis, index)
    if not isinstance(src, type(self)):
        src = type(self)(src, device=self.device, dtype=self.dtype, requires_grad=False).expand(index.shape)
    if src.ndim != index.ndim or any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
        raise ValueError(f"{name}: a source of shape {src.shape} has no item for each of an index of shape "
                         f"{index.shape}")
    if src.dtype is not self.dtype:
        raise TypeError(f"{name}: the source is {src.dtype}, the tensor {self.dtype}; cast one")
    size = self.shape[axis]
    places = _not_negative(index.uop, size)
    full = _inserted(places.shape, axis + 1, size)
    values = src.uop.shrink([(0, n) for n in index.shape])
    values, places = (x.reshape(_inserted(x.shape, axis + 1, 1)).expand(full) for x in (values, places))
    hit = places.eq(expand_to(_numbers_along(axis + 1, len(full), size, places.dtype), full))
    numbers = expand_to(_numbers_along(axis, len(full), full[axis], dtypes.default_int) + 1, full)
    return Scattering(hit, values, numbers, axis, self.shape)


def _at_one_axis(operation: Callable[..., Tensor], self: Tensor, dim: int, index: Tensor, src: Any,
                 *more: Any) -> Tensor:
    """What `operation` makes of numbers, as tensors of one item."""
    source = src.reshape(1) if isinstance(src, type(self)) else src
    return operation(self.reshape(1), dim, index.reshape(1), source, *more).reshape(())


def scatter(self: Tensor, dim: int, index: Tensor, src: Any, reduce: str | None = None) -> Tensor:
    """A copy in which the items at `index` along `dim` are those of `src` (a tensor or number); the last one
    wins.

    `reduce` "add" or "multiply" combines instead. The transpose of `gather`.

    >>> Tensor.zeros(3).scatter(0, Tensor([2, 0]), Tensor([1.0, 2.0])).tolist()
    [2.0, 0.0, 1.0]
    """
    if reduce not in (None, "add", "multiply"):
        raise ValueError(f"scatter reduce is None, 'add' or 'multiply', got {reduce!r}")
    if reduce is not None:
        if not isinstance(src, type(self)):
            src = type(self)(src, device=self.device, dtype=self.dtype,
                             requires_grad=False).expand(index.shape)
        return scatter_reduce(self, dim, index, src, "sum" if reduce == "add" else "prod")
    if not self.ndim and not index.ndim:
        return _at_one_axis(scatter, self, dim, index, src)
    s = _scattering("scatter", self, dim, index, src)
    sources = (s.axis,)
    last = s.hit.where(s.numbers, s.numbers.dtype.min).reduce(Ops.MAX, sources)
    chosen = last.expand(s.hit.shape).eq(s.numbers).where(s.source, 0)
    written = s.onto(last > 0, False)
    return type(self).of(written.where(s.onto(_nonzero_sum(chosen, sources), 0), self.uop), self)


def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str,
                   include_self: bool = True) -> Tensor:
    """A copy in which the items of `src` are combined into those at `index` along `dim`.

    `reduce` is "sum", "prod", "mean", "amax" or "amin"; without `include_self`, items that anything is
    written to start afresh.

    >>> Tensor([0, 0]).scatter_reduce(0, Tensor([1, 1, 0]), Tensor([3, 7, 5]), "amax").tolist()
    [5, 7]
    """
    if not self.ndim and not index.ndim:
        return _at_one_axis(scatter_reduce, self, dim, index, src, reduce, include_self)
    s = _scattering("scatter_reduce", self, dim, index, src)
    x, count = self.uop, s.count()
    untouched = count.eq(0)
    folds = {"sum": (Ops.ADD, 0), "mean": (Ops.ADD, 0), "prod": (Ops.MUL, 1),
             "amax": (Ops.MAX, self.dtype.min)}
    if reduce == "amin":
        lowest = type(self).of(order_reversed(x), self)
        reversed_ = scatter_reduce(lowest, dim, index, type(self).of(order_reversed(src.uop), src), "amax",
                                   include_self)
        return type(self).of(order_reversed(reversed_.uop), reversed_)
    if reduce not in folds:
        raise ValueError(f"scatter_reduce takes 'sum', 'prod', 'mean', 'amax' or 'amin', got {reduce!r}")
    op, identity = folds[reduce]
    folded = s.folded(op, identity)
    own = x if include_self else untouched.where(x, identity)
    result = own.alu(op, folded)
    if reduce == "mean":
        divisor = count + 1 if include_self else untouched.where(1, count)
        total = type(self).of(result, self)
        mean = total / type(self).of(divisor,
                                     self) if self.dtype.is_float else total // type(self).of(divisor, self)
        result = mean.cast(self.dtype).uop
    return type(self).of(result, self, src)
