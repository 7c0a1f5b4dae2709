"""Data from Python as arrays and graph nodes: lists, bytes, buffers and NumPy arrays, checked.

`array_of` makes the NumPy array that a `Tensor` constructor's argument means, `memory_of` a node over its
memory.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.device import Buffer
from tinygrad.dtype import DType, dtype_from_numpy, dtypes
from tinygrad.engine.capture import note_host_data
from tinygrad.graph.uop import Shape, UOp
from tinygrad.tensor.dlpack import array_of_dlpack


def array_of(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """The C-contiguous NumPy array of the data that a constructor was given, of `dtype` if that is given."""
    if data is None:
        array = np.empty((0,), (dtypes.default_float if dtype is None else dtype).numpy)
    elif isinstance(data, (list, tuple, range)):
        array = _array_of_list(list(data) if isinstance(data, range) else data, dtype)
    elif isinstance(data, (bytes, bytearray)):
        array = np.frombuffer(data, np.uint8)
    elif isinstance(data, (np.ndarray, memoryview)) or hasattr(data, "__array__"):
        array = _array_over(data)
    else:
        raise TypeError(f"no tensor from a {type(data).__name__}; give a number, a list of numbers, a NumPy "
                        "array, bytes or a Tensor")
    wanted = dtype_from_numpy(array.dtype.newbyteorder("=")) if dtype is None else dtype
    if array.dtype != wanted.numpy:
        array = array.astype(wanted.numpy)
    array = np.ascontiguousarray(array).reshape(array.shape)
    note_host_data(data, dtype, array)
    return array


def _array_over(data: Any) -> np.ndarray[Any, Any]:
    """What NumPy makes of the data; by DLPack what it has no type for, such as PyTorch's bfloat16 and fp8."""
    try:
        return np.asarray(data)
    except TypeError:
        if not hasattr(data, "__dlpack__"):
            raise
        return array_of_dlpack(data)


def _array_of_list(data: Sequence[Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    if any(hasattr(item, "__array__") and np.ndim(item) for item in data):
        items = [_array_over(item) for item in data]
        if len({item.shape for item in items}) > 1:
            raise ValueError(f"a list of arrays takes equal shapes, got {[item.shape for item in items]}")
        return np.stack(items)
    shape = _list_shape(data)
    flat: Any = data
    for _ in shape[1:]:
        flat = [item for row in flat for item in row]
    flat = [item.item() if hasattr(item, "item") else item for item in flat]
    wanted = dtypes.from_py(flat) if dtype is None else dtype
    if wanted.is_int and flat:
        for end in (min(flat), max(flat)):
            wanted.checked(end)
    # by way of the numbers' own type: NumPy refuses negative ones in unsigned types
    with np.errstate(over="ignore"):
        array = np.array(flat, wanted.numpy if wanted.is_float or not flat else None)
    if wanted.is_int and array.dtype.kind == "f" and all(isinstance(item, int) for item in flat):
        array = np.array([item % 2**64 for item in flat], np.uint64)  # no type of NumPy has all of them
    return array.astype(wanted.numpy, copy=False).reshape(shape)


def _list_shape(data: Any) -> Shape:
    """The shape of nested lists. Raises ValueError where rows differ."""
    if not isinstance(data, (list, tuple)):
        return ()
    shapes = {_list_shape(item) for item in data}
    if len(shapes) > 1:
        raise ValueError("a tensor takes rows of equal shape, got a list with items of shapes "
                         f"{', '.join(map(str, sorted(shapes)))}")
    return (len(data), *(shapes.pop() if shapes else ()))


def owner_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array whose memory this one shows; the last one in NumPy's hands, where something else owns it."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def memory_of(array: np.ndarray[Any, Any], device: str = "CPU", share: bool = False) -> UOp:
    """A node over a copy of `array`, aligned as kernels like it; with `share` over the memory itself, where
    the device uses the host's."""
    buffer = Buffer.from_numpy(array.reshape(-1), device, share)
    node = UOp.new_buffer(buffer.device, array.size, dtype_from_numpy(array.dtype))
    node.set_buffer(buffer)
    if share:
        note_host_data(None if buffer.is_exposed else array, None, array)
    return node.reshape(array.shape)


def true_places(mask: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """For each axis of a mask, the int32 positions along it of the items that hold, in row-major order.
    NumPy's `nonzero` takes several axes at a tenth of the speed. Raises ValueError where there are none."""
    if not mask.ndim:
        raise ValueError("a mask without axes selects no items")
    left, places = np.flatnonzero(mask), []
    left = left.astype(np.int32) if mask.size < 2**31 else left
    for size in mask.shape[:0:-1]:
        rows = left // max(size, 1)
        places.append((left - rows * size).astype(np.int32))
        left = rows
    return [left.astype(np.int32), *reversed(places)]
