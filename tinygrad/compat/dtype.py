"""What scripts written for tinygrad import from `tinygrad.dtype`."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad.dtype import DType, dtype_from_numpy, dtypes, promote, sum_dtype

__all__ = ["ConstType", "PyConst", "_from_np_dtype", "_to_np_dtype", "can_lossless_cast", "least_upper_dtype",
           "sum_acc_dtype", "truncate"]

ConstType = bool | int | float
PyConst = ConstType
least_upper_dtype = promote
sum_acc_dtype = sum_dtype
_from_np_dtype = dtype_from_numpy


def _to_np_dtype(dtype: DType) -> type[np.generic]:
    """The class of NumPy's scalars of this type.

    >>> _to_np_dtype(dtypes.float16)
    <class 'numpy.float16'>
    """
    return dtype.numpy.type


def _rounded(dtype: DType, value: Any) -> Any:
    """`value` as memory of this type has it: integers wrap, floats are rounded to the nearest."""
    if not dtype.is_float:
        return dtype.as_const(value)
    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(dtype.numpy))


truncate: dict[DType, Callable[[Any], Any]] = {
    dtype: functools.partial(_rounded, dtype) for dtype in dtypes.all}
"""for each type, the number that memory of it has for a Python number: `truncate[dtypes.uint8](300)` is 44"""


def can_lossless_cast(source: DType, target: DType) -> bool:
    """Whether `target` holds every value of `source`.

    >>> can_lossless_cast(dtypes.int16, dtypes.float32), can_lossless_cast(dtypes.int32, dtypes.float32)
    (True, False)
    """
    if source is target or source.is_bool:
        return True
    if target.is_float:
        exponent, mantissa = dtypes.finfo(target)
        if source.is_float:
            own_exponent, own_mantissa = dtypes.finfo(source)
            return bool(own_exponent <= exponent and own_mantissa <= mantissa)
        bits = source.bits - (source.kind == "int")
        return bool(bits <= mantissa + 1 and bits < 1 << exponent - 1)
    return not source.is_float and bool(target.min <= source.min and source.max <= target.max)
