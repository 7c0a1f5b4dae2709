"""Tensors and other libraries: NumPy arrays, DLPack and buffers over the same memory, without a copy.

A tensor in the CPU's memory is shared in the order in which it lies there, also where it is a transposed or
cropped view. Shared memory lives as long as either side. What is lazy is computed first; constants, views
that repeat, reverse or pad items, and memory of other devices are copied.

Equal expressions are one value here, in one piece of memory: writing through a shared view changes every
tensor that is that value, but nothing that was computed from it before. So NumPy and buffers get read-only
views; DLPack's consumers get the memory as it is.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import canonical_device
from tinygrad.dtype import DType, DTypeLike, dtype_from_numpy, dtypes, to_dtype
from tinygrad.graph.leaf_tensors import constant_value
from tinygrad.graph.uop import UOp
from tinygrad.helpers import argsort, prod
from tinygrad.tensor.dlpack import CODES, CPU_DEVICE, array_of_dlpack, type_in
from tinygrad.tensor.hostdata import memory_of

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Array = np.ndarray[Any, Any]


def shared_array(self: Tensor) -> Array | None:
    """The values as a writable NumPy array over the tensor's own memory; None where that is not possible."""
    if constant_value(self.uop) is not None or prod(self.shape) == 0:
        return None
    memory = self.computed()
    if memory.has_sizes:
        return None
    views = memory.st.simplify().views
    view = views[0]
    simple = len(views) == 1 and view.mask is None and all(
        stride > 0 or n == 1 for stride, n in zip(view.strides, view.shape, strict=True))
    buffer = memory.base.buffer
    if not simple or buffer is None or not buffer.is_on_host:
        return None
    size = self.dtype.itemsize
    return np.ndarray(view.shape, self.dtype.numpy, buffer.numpy().view(np.uint8), view.offset * size,
                      [stride * size for stride in view.strides])


def to_array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """NumPy's `__array__`: a read-only view where that needs no copy, as `np.asarray` asks for.

    Raises ValueError for `copy=False` where the memory cannot be shared or the dtype is another.
    """
    shared = None if copy else shared_array(self)
    converts = dtype is not None and np.dtype(dtype) != self.dtype.numpy
    if copy is False and (shared is None or converts):
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        raise ValueError(f"{self!r} has no memory that a NumPy array of {wanted} could share")
    array = self.numpy() if shared is None else shared
    if converts:
        return array.astype(dtype)
    if shared is not None:
        array.flags.writeable = False
    return array


BUFFER_TYPES = {dtypes.bfloat16: np.uint16, dtypes.fp8e4m3: np.uint8, dtypes.fp8e5m2: np.uint8}
"""The integers that stand for the bits of dtypes which buffers and NumPy's DLPack have no name for."""


def _with_known_type(array: Array, dtype: DType) -> Array:
    return array.view(BUFFER_TYPES[dtype]) if dtype in BUFFER_TYPES else array


def data(self: Tensor) -> memoryview:
    """The values as a read-only memoryview of this tensor's shape, without a copy where the memory can be
    shared.

    bfloat16 and fp8 come as unsigned integers of the same bits. From Python 3.12 on, `memoryview(tensor)`
    gives the same.

    >>> Tensor([[1, 2], [3, 4]]).data().tolist()
    [[1, 2], [3, 4]]
    """
    return _with_known_type(to_array(self), self.dtype).data.toreadonly()


def to_buffer(self: Tensor, flags: int) -> memoryview:
    """Python's `__buffer__` (3.12 and later): what `data` gives. Raises BufferError where a writable one is
    asked for."""
    if flags & 1:  # inspect.BufferFlags.WRITABLE
        raise BufferError("the buffer of a tensor is read-only; see assign()")
    return data(self)


# --- DLPack ---------------------------------------------------------------------------------------


def to_dlpack(self: Tensor, **options: Any) -> Any:
    """`__dlpack__`: a capsule of this tensor's memory, for `torch.from_dlpack(tensor)` and others.

    A copy where the memory cannot be shared (see the module), or with `copy=True`. Options are those of the
    Python array API. Raises BufferError for `copy=False` where a copy is needed.
    """
    shared = None if options.get("copy") else shared_array(self)
    if shared is None and options.get("copy") is False:
        raise BufferError(f"{self!r} has no memory that could be shared")
    array = self.numpy() if shared is None else shared
    capsule = _with_known_type(array, self.dtype).__dlpack__(
        **{name: value for name, value in options.items() if name != "copy"})
    if self.dtype in CODES:
        type_in(capsule).code = CODES[self.dtype]
    return capsule


def dlpack_device(self: Tensor) -> tuple[int, int]:
    """`__dlpack_device__`: the CPU, where `__dlpack__` puts the memory of other devices."""
    return CPU_DEVICE


def from_dlpack(x: Any) -> Tensor:
    """A tensor over the memory of `x`, any CPU array with `__dlpack__`: a PyTorch tensor, a NumPy array.

    The memory is shared where it is writable and its items lie without gaps, in whatever order of axes
    (NumPy before 2.1 says read-only of all); else copied. Raises TypeError for objects without `__dlpack__`
    and for complex numbers, BufferError for memory of other devices.

    >>> import numpy as np
    >>> array = np.zeros(2, np.float32)
    >>> t = Tensor.from_dlpack(array)
    >>> array[1] = 5
    >>> t.tolist()
    [0.0, 5.0]
    """
    from tinygrad.tensor import Tensor

    array = array_of_dlpack(x)
    dtype_from_numpy(array.dtype)
    return Tensor.leaf(_view_of_memory(array), "CPU")


def from_blob(ptr: int, shape: Sequence[int], dtype: DTypeLike | None = None,
              device: str | None = None) -> Tensor:
    """A tensor over memory of the process: `shape` items of `dtype` from the address `ptr` on.

    Who gives the address keeps the memory as long as the tensor is used. Raises ValueError for an address
    that is not aligned to the items, and for a device that cannot use the host's memory.

    >>> import numpy as np
    >>> array = np.arange(4, dtype=np.float32)
    >>> t = Tensor.from_blob(array.ctypes.data, (2, 2))
    >>> array[3] = 9
    >>> t.tolist()
    [[0.0, 1.0], [2.0, 9.0]]
    """
    from tinygrad.tensor import Tensor

    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    sizes = tuple(map(int, shape))
    if ptr % kind.itemsize:
        raise ValueError(f"an address of {kind.name} items is a multiple of {kind.itemsize}, got {ptr:#x}")
    raw = (ctypes.c_uint8 * (prod(sizes) * kind.itemsize)).from_address(ptr)
    place = canonical_device(device)
    memory = memory_of(np.frombuffer(raw, kind.numpy).reshape(sizes), place, share=True)
    if memory.base.buffer is None or not memory.base.buffer.is_exposed:
        raise ValueError(f"{place} does not use the host's memory; make the tensor on the CPU and move it")
    return Tensor.leaf(memory, place)


def _view_of_memory(array: Array) -> UOp:
    """A node over the memory of an array: its axes are put in the order in which they lie there."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    in_memory = array.transpose(order)
    if not (in_memory.flags.c_contiguous and array.size):
        return memory_of(np.array(array, order="C"), share=True)
    return memory_of(in_memory, share=True).permute(argsort(order))
