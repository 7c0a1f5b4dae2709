"""DLPack: memory of another library as a NumPy array, also of types that NumPy's own DLPack has no name for.

In: an object with `__dlpack__`. Out: an array over its memory; bfloat16 and fp8 as ml_dtypes' types.
`hostdata.py` and `functional/interop.py` make tensors of it.
"""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes

Array = np.ndarray[Any, Any]


class _DLDataType(ctypes.Structure):
    """How DLPack names a type: kind, bits, lanes."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """The start of `DLTensor` in dlpack.h, as far as it is needed here."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("dtype", _DLDataType))


TENSOR_OFFSETS = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Where the DLTensor lies in what a capsule of this name points to (DLManagedTensor and
DLManagedTensorVersioned, dlpack.h 1.1)."""
UNSIGNED_CODE = 1
CODES = {dtypes.bfloat16: 4, dtypes.fp8e4m3: 10, dtypes.fp8e5m2: 12}
"""DLPack's codes of the types that NumPy's DLPack does not know (DLDataTypeCode, dlpack.h 1.1)."""
CPU_DEVICE = (1, 0)


def type_in(capsule: Any) -> _DLDataType:
    """The type field of the tensor in a capsule, to read or change."""
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    if name not in TENSOR_OFFSETS:
        raise BufferError(f"a DLPack capsule is named dltensor or dltensor_versioned, this one {name!r}")
    found: _DLDataType = _DLTensor.from_address(pointer_of(capsule, name) + TENSOR_OFFSETS[name]).dtype
    return found


class _Capsule:
    """A capsule as NumPy takes one."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE


def array_of_dlpack(x: Any) -> Array:
    """A NumPy array over the memory of an object with `__dlpack__`, on the CPU."""
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack takes an object with __dlpack__, got a {type(x).__name__}")
    place = x.__dlpack_device__()
    if int(place[0]) != CPU_DEVICE[0]:
        raise BufferError(f"from_dlpack takes memory of the CPU, this is on DLPack device {tuple(place)}; "
                          "copy it there first")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of DLPack before 1.0
        capsule = x.__dlpack__()
    kind = type_in(capsule)
    special = next((dtype for dtype, code in CODES.items() if code == kind.code), None)
    if special is None:
        return np.from_dlpack(_Capsule(capsule))
    kind.code = UNSIGNED_CODE
    return np.from_dlpack(_Capsule(capsule)).view(special.numpy)
