"""Tensors from nothing: constants, ranges, identity matrices; and from files by their address.

Constants are graph nodes without memory. Ranges are the running sum of a row of ones, spelled with movement
and reduce operations only; the compiler turns that sum into its closed form.
"""
from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import Buffer, Device, canonical_device
from tinygrad.downloads import fetch
from tinygrad.dtype import DType, DTypeLike, dtypes, to_dtype
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Devices, Layout, Span
from tinygrad.graph.sizes import Size, as_size, at_least, is_size, is_symbolic, largest, largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.schedule.partition import is_sharded
from tinygrad.schedule.sharded_results import layout_of

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Shape = tuple[int, ...]


def is_sequence(x: Any) -> bool:
    """Whether this is a sequence of integers: a list, a tuple or a row of NumPy's."""
    return isinstance(x, (list, tuple)) or (isinstance(x, np.ndarray) and x.ndim == 1)


def to_shape(name: str, shape: Sequence[Any]) -> Shape:
    """The shape given as separate integers or as one sequence of them."""
    if len(shape) == 1 and is_sequence(shape[0]):
        shape = shape[0]
    if all([type(size) is int and size >= 0 for size in shape]):
        return tuple(shape)
    sizes: list[int] = []
    for size in map(as_size, shape):
        if not is_size(size):
            raise TypeError(f"{name} takes a shape of integers, got {tuple(shape)}")
        sizes.append(size if isinstance(size, Size) else int(size.__index__()))
    if any(size < 0 for size in sizes):
        raise ValueError(f"{name} takes sizes >= 0, got {tuple(sizes)}")
    return tuple(sizes)


def full(shape: int | Sequence[int], fill_value: Any, dtype: DTypeLike | None = None,
         device: Devices | None = None, requires_grad: bool | None = None, *,
         buffer: bool = True) -> Tensor:
    """A tensor of `shape` with every item `fill_value`; the dtype follows from the value unless given.

    `buffer` is tinygrad's and changes nothing: memory is taken when a tensor needs some, as for a write.

    >>> Tensor.full((2, 3), 4).tolist()
    [[4, 4, 4], [4, 4, 4]]
    """
    from tinygrad.tensor import Tensor

    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    fill_value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    kind = dtypes.from_py(fill_value) if dtype is None else to_dtype(dtype)
    sizes = to_shape("full", (shape,))
    return Tensor.leaf(UOp.const(kind.checked(fill_value), kind, sizes), device, requires_grad)


def zeros(*shape: Any, dtype: DTypeLike | None = None, device: Devices | None = None,
          requires_grad: bool | None = None, buffer: bool = True) -> Tensor:
    """A tensor of zeros, of the default float type unless `dtype` is given.

    >>> Tensor.zeros(2, 2).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return full(to_shape("zeros", shape), 0, dtype or dtypes.default_float, device, requires_grad)


def ones(*shape: Any, dtype: DTypeLike | None = None, device: Devices | None = None,
         requires_grad: bool | None = None, buffer: bool = True) -> Tensor:
    """A tensor of ones, of the default float type unless `dtype` is given.

    >>> Tensor.ones(3).tolist()
    [1.0, 1.0, 1.0]
    """
    return full(to_shape("ones", shape), 1, dtype or dtypes.default_float, device, requires_grad)


def empty(*shape: Any, dtype: DTypeLike | None = None, device: Devices | None = None,
          requires_grad: bool | None = None) -> Tensor:
    """A tensor with memory of its own that nothing has been written to: its values are arbitrary."""
    from tinygrad.tensor import Tensor

    sizes = to_shape("empty", shape)
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    place = canonical_device(device)
    whole = largest_shape(sizes)
    memory = _memory_on(place, whole, kind) if isinstance(place, str) else \
        _memory_on_several(place, Layout(whole), kind)
    return Tensor.leaf(memory.shrink([(0, size) for size in sizes]), place, requires_grad)


def _memory_on(device: str, shape: tuple[int, ...], dtype: DType) -> UOp:
    """Memory for items that nothing has been written to."""
    memory = UOp.new_buffer(device, math.prod(shape), dtype)
    memory.set_buffer(Buffer(device, math.prod(shape), dtype))
    return memory.reshape(shape)


def _memory_on_several(devices: tuple[str, ...], layout: Layout, dtype: DType) -> UOp:
    """Such memory on several devices, cut in a given way; what is whole on each is in a memory once."""
    made: dict[tuple[str, tuple[Span, ...]], UOp] = {}
    for number, home in enumerate(map(Device.home, devices)):
        box = layout.box(number)
        if (home, box) not in made:
            made[home, box] = _memory_on(home, tuple(end - start for start, end in box), dtype)
    return UOp.sharded_buffer(devices, layout, [made[Device.home(device), layout.box(number)]
                                                for number, device in enumerate(devices)])


def full_like(self: Tensor, fill_value: Any, dtype: DTypeLike | None = None, device: Devices | None = None,
              requires_grad: bool | None = None, *, buffer: bool = True) -> Tensor:
    """A tensor filled with `fill_value`, of this one's shape, and its dtype and device unless given."""
    return full(self.shape, fill_value, dtype or self.dtype, device or self.device, requires_grad)


def zeros_like(self: Tensor, dtype: DTypeLike | None = None, device: Devices | None = None,
               requires_grad: bool | None = None, buffer: bool = True) -> Tensor:
    """Zeros of this tensor's shape, dtype and device."""
    return full_like(self, 0, dtype, device, requires_grad)


def ones_like(self: Tensor, dtype: DTypeLike | None = None, device: Devices | None = None,
              requires_grad: bool | None = None, buffer: bool = True) -> Tensor:
    """Ones of this tensor's shape, dtype and device."""
    return full_like(self, 1, dtype, device, requires_grad)


def empty_like(self: Tensor, dtype: DTypeLike | None = None, device: Devices | None = None,
               requires_grad: bool | None = None) -> Tensor:
    """Arbitrary values in this tensor's shape, dtype and device; on several devices cut as this one is."""
    from tinygrad.tensor import Tensor

    if isinstance(self.device, tuple) and device is None and is_sharded.of(self.uop):
        kind = self.dtype if dtype is None else to_dtype(dtype)
        memory = _memory_on_several(self.device, layout_of(self.uop), kind)
        return Tensor.leaf(memory, requires_grad=requires_grad)
    return empty(*self.shape, dtype=dtype or self.dtype, device=device or self.device,
                 requires_grad=requires_grad)


def counting(size: int, dtype: DType) -> UOp:
    """The node 0, 1, ..., size - 1: for each i, the number of k with i + k >= size, both in [0, size).

    The ones of `padded` are cut into rows that each begin one item later, so that row i holds i + 1 ones.
    """
    if size == 0:
        return UOp.const(0, dtype, (0,))
    if isinstance(size, Size):
        return counting(largest(size), dtype).shrink(((0, size),))
    length = 2 * size - 1
    padded = UOp.const(1, dtype, (size,)).pad(((size - 1, 0),))
    repeated = padded.reshape((1, length)).expand((size + 1, length)).reshape(((size + 1) * length,))
    rows = repeated.shrink(((0, 2 * size * size),)).reshape((size, 2 * size)).shrink(((0, size), (0, size)))
    return rows.reduce(Ops.ADD, (1,)).reshape((size,)) - 1


def arange(start: float | None = None, stop: float | None = None, step: float = 1,
           dtype: DTypeLike | None = None, device: Devices | None = None,
           requires_grad: bool | None = None) -> Tensor:
    """The numbers start, start + step, ... before `stop`; from 0 where only `stop` is given.

    Integers give the default integer type, a float among them the default float type. Raises OverflowError
    where an integer `dtype` does not hold the numbers.

    >>> Tensor.arange(2, 10, 3).tolist()
    [2, 5, 8]
    """
    from tinygrad.tensor import Tensor

    if stop is None:
        start, stop = None, start
    if stop is None:
        raise TypeError("arange takes a stop, or a start and a stop")
    start, stop = as_size(0 if start is None else start), as_size(stop)
    if step == 0:
        raise ValueError("arange takes a step other than 0")
    if dtype is not None:
        kind = to_dtype(dtype)
    else:
        kind = dtypes.from_py([0 if isinstance(n, Size) else n for n in (start, stop, step)])
    size = _count_of_steps(start, stop, step)
    _refuse_overflow(kind, start, step, size)
    is_long = largest(size) > dtypes.default_int.max
    wide = dtypes.int64 if is_long or (kind.is_int and kind.itemsize == 8) else dtypes.default_int
    numbers = counting(size, wide)
    if kind.is_float or not all(isinstance(n, (int, Size)) for n in (start, step)):
        numbers = numbers.cast(kind if kind in (dtypes.float32, dtypes.float64) else dtypes.float32)
    if step != 1:
        numbers = numbers * step
    if start != 0:
        numbers = numbers + start
    return Tensor.leaf(numbers.cast(kind), device, requires_grad)


def _refuse_overflow(dtype: DType, start: float, step: float, count: int) -> None:
    """Raise OverflowError where `dtype` does not hold the first or the last of the numbers of an `arange`."""
    if not dtype.is_int or is_symbolic([start, count]) or not count:
        return
    first, last = start, start + (count - 1) * step
    if not (dtype.min <= min(first, last) and max(first, last) <= dtype.max):
        raise OverflowError(f"arange from {first} to {last} does not fit {dtype}, which holds {dtype.min} to "
                            f"{dtype.max}")


def _count_of_steps(start: Any, stop: Any, step: Any) -> int:
    """How many of start, start + step, ... come before `stop`."""
    symbolic = is_symbolic([start, stop])
    count: int = ceildiv(stop - start, step) if symbolic else math.ceil((stop - start) / step)
    return at_least(count, 0)


def linspace(start: float, stop: float, steps: int, dtype: DTypeLike | None = None,
             device: Devices | None = None, requires_grad: bool | None = None) -> Tensor:
    """`steps` numbers at equal distances from `start` to `stop`, both included.

    >>> Tensor.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    from tinygrad.tensor import Tensor

    if steps < 0:
        raise ValueError(f"linspace takes steps >= 0, got {steps}")
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    wide = kind if kind in (dtypes.float32, dtypes.float64) else dtypes.float32
    numbers = counting(steps, dtypes.default_int)
    # From the nearer end, so that both ends are exact and the two halves mirror each other.
    distance = (stop - start) / max(steps - 1, 1)
    rising = numbers.cast(wide) * distance + start
    falling = (numbers * -1 + (steps - 1)).cast(wide) * -distance + stop
    values = (numbers < (steps + 1) // 2).where(rising, falling)
    return Tensor.leaf(values.cast(kind), device, requires_grad)


def logspace(start: float, stop: float, steps: int, base: float = 10.0, dtype: DTypeLike | None = None,
             device: Devices | None = None, requires_grad: bool | None = None) -> Tensor:
    """`steps` powers of `base`, whose exponents are at equal distances from `start` to `stop`, both included.

    >>> Tensor.logspace(0, 3, 4, base=2).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    from tinygrad.tensor import Tensor

    if steps < 0:
        raise ValueError(f"logspace takes steps >= 0, got {steps}")
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    exponents = linspace(start, stop, steps, kind if kind is dtypes.float64 else dtypes.float32)
    return Tensor.leaf((base ** exponents).cast(kind).uop, device, requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, device: Devices | None = None, *,
                 dtype: DTypeLike = dtypes.int32) -> Tensor:
    """The rows and columns, (2, number), of a matrix's items on and left of its diagonal, or one
    `offset` places right of it, in row-major order.

    >>> Tensor.tril_indices(2, 2).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    mask = np.tri(max(row, 0), max(col, 0), offset, dtype=np.bool_)
    return _places("tril_indices", row, col, device, mask).cast(dtype)


def triu_indices(row: int, col: int, offset: int = 0, device: Devices | None = None, *,
                 dtype: DTypeLike = dtypes.int32) -> Tensor:
    """As `tril_indices`, of the items on and right of the diagonal."""
    mask = ~np.tri(max(row, 0), max(col, 0), offset - 1, dtype=np.bool_)
    return _places("triu_indices", row, col, device, mask).cast(dtype)


def _places(name: str, row: int, col: int, device: Devices | None, mask: np.ndarray[Any, Any]) -> Tensor:
    from tinygrad.tensor import Tensor

    if row < 0 or col < 0:
        raise ValueError(f"{name} takes sizes >= 0, got {row} and {col}")
    return Tensor(np.stack(mask.nonzero()).astype(np.int32), device)


def eye(n: int, m: int | None = None, dtype: DTypeLike | None = None, device: Devices | None = None,
        requires_grad: bool | None = None) -> Tensor:
    """The n x m matrix (n x n where m is not given) with ones on the diagonal and zeros elsewhere.

    >>> Tensor.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    from tinygrad.tensor import Tensor

    columns = n if m is None else m
    rows, columns = to_shape("eye", (n, columns))
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    size = max(rows, columns)
    # a one before n zeros, n times, read in rows of n: each row's one moves one to the right
    diagonal = UOp.const(1, kind, (size, 1)).pad(((0, 0), (0, size))).reshape((size * (size + 1),))
    square = diagonal.shrink(((0, size * size),)).reshape((size, size))
    return Tensor.leaf(square.shrink(((0, rows), (0, columns))), device, requires_grad)


def from_file(path: str | os.PathLike[str], dtype: DTypeLike | None = None) -> Tensor:
    """The items of a file, as a tensor on the device `DISK:path`: uint8 unless `dtype` says otherwise.

    Nothing is read here. Moving it, or a part of it, to another device reads that part: `t[8:16].to("CPU")`.
    Raises OSError where there is no such file, ValueError where its size is no multiple of the item's.
    """
    from tinygrad.tensor import Tensor

    kind = dtypes.uint8 if dtype is None else to_dtype(dtype)
    device, size = canonical_device(f"DISK:{os.fspath(path)}"), os.path.getsize(path)
    if size % kind.itemsize:
        raise ValueError(f"{os.fspath(path)} has {size} bytes, no multiple of {kind.itemsize}, the size of a "
                         f"{kind.name}")
    memory = UOp.new_buffer(device, size // kind.itemsize, kind)
    memory.set_buffer(Buffer(device, size // kind.itemsize, kind).allocate())
    return Tensor.leaf(memory, device, requires_grad=False)


def from_url(url: str, gunzip: bool = False, **kwargs: Any) -> Tensor:
    """The bytes of a file, as uint8: fetched once and cached, unpacked with `gunzip`."""
    from tinygrad.tensor import Tensor

    return Tensor(fetch(url, gunzip=gunzip).read_bytes(), **kwargs)


def one_hot(self: Tensor, num_classes: int) -> Tensor:
    """For each item its row of `num_classes` integers, 1 at the item's own number and 0 elsewhere.

    Shape (...) gives (..., num_classes). Raises TypeError unless the items are integers.

    >>> Tensor([0, 2]).one_hot(3).tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    from tinygrad.tensor import Tensor

    if not self.dtype.is_int:
        raise TypeError(f"one_hot takes integers, got {self.dtype}")
    if num_classes < 0:
        raise ValueError(f"one_hot takes num_classes >= 0, got {num_classes}")
    classes = Tensor.arange(num_classes, dtype=self.dtype, device=self.device)
    return (self.unsqueeze(-1) == classes).cast(dtypes.default_int)
