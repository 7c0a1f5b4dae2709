"""What flows through a graph: tensors, arrays that the host knows, and numbers that no tensor can hold.

A value is a `Tensor`; an `Array` of NumPy, which is known while importing or while a run is traced (shapes,
strings, small constants); `Sizes`, among which are expressions of Variables; a `Coded` tensor; a list (a
sequence of the standard); or None (what is optional and not there).
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from tinygrad.dtype import DType, dtype_from_numpy, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.sizes import Size
from tinygrad.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = Any
"""Tensor | Array | Sizes | Coded | list[Value] | None"""

CODED_INTEGERS = {np.dtype(t): dtypes.int8 if low < 0 else dtypes.uint8 for t, low in
                  [(ml_dtypes.int4, -8), (ml_dtypes.uint4, 0), (ml_dtypes.int2, -2), (ml_dtypes.uint2, 0)]}
"""Integers of less than a byte, and what holds them: each as a byte of the same value."""
CODED_FLOATS = {np.dtype(t) for t in (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
                                      ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn)}
"""Floats that are no `DType`: each as the byte of its bits."""


@frozen
class Coded:
    """Numbers of a type that no tensor has: a tensor of bytes, and the NumPy type that says what they mean.

    >>> import ml_dtypes
    >>> x = Coded.encode(Tensor([0.4, 1.6, -7.0]), np.dtype(ml_dtypes.float4_e2m1fn))
    >>> x.decode().tolist(), x.numpy().dtype.name
    ([0.5, 1.5, -6.0], 'float4_e2m1fn')
    """

    bytes: Tensor
    type: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bytes.shape

    @staticmethod
    def of_array(array: Array, device: str | None = None) -> Coded:
        held = CODED_INTEGERS.get(array.dtype)
        data = array.astype(held.numpy) if held is not None else array.view(np.uint8)
        return Coded(Tensor(data, device, requires_grad=False), array.dtype)

    def numpy(self) -> Array:
        """The values, as an array of `type`."""
        return self.bytes.numpy().astype(self.type) if self.type in CODED_INTEGERS else \
            self.bytes.numpy().view(self.type)

    def decode(self, dtype: DType = dtypes.float32) -> Tensor:
        """The values as a tensor of `dtype`, exactly (of floats: looked up in a table of all of them)."""
        if self.type in CODED_INTEGERS:
            return self.bytes.cast(dtype)
        table = _all_values(self.type)
        finite = Tensor(np.nan_to_num(table, nan=0.0), self.bytes.device, requires_grad=False)
        values = finite[self.bytes]
        for code in np.flatnonzero(np.isnan(table)):  # a look-up sums what it picks: no NaN in the table
            values = (self.bytes == int(code)).where(float("nan"), values)
        return values.cast(dtype)

    @staticmethod
    def encode(x: Tensor, kind: np.dtype[Any], saturate: bool = True, rounding: str = "even") -> Coded:
        """`x` in the numbers of `kind`: integers wrap, floats round to the nearest, ties to even.

        What is too large becomes the largest with `saturate`, else NaN or infinity. `rounding` is "even",
        "up" or "down", of which the standard has the last two for powers of two.
        """
        held = CODED_INTEGERS.get(kind)
        if held is not None:
            return Coded(_wrapped(x, kind, held), kind)
        x = x.cast(dtypes.float32)
        limits, largest, nan = _thresholds(kind, rounding)
        steps = Tensor(limits, x.device, requires_grad=False)
        code = (x.abs().unsqueeze(-1) >= steps).sum(-1).cast(dtypes.int32)
        code = code.minimum(largest) if saturate else (code > largest).where(nan, code)
        if kind == np.dtype(ml_dtypes.float8_e8m0fnu):
            return Coded(x.isnan().where(nan, code).cast(dtypes.uint8), kind)
        sign = 1 << (3 if kind == np.dtype(ml_dtypes.float4_e2m1fn) else 7)
        has_negative_zero = sign == 8
        negative = (x.bitcast(dtypes.int32) < 0) if has_negative_zero else (x < 0) & (code > 0)
        code = (negative & (code < sign)).where(code + sign, code)
        return Coded((code if has_negative_zero else x.isnan().where(nan, code)).cast(dtypes.uint8), kind)


@frozen
class Sizes:
    """Integers that the host computes with, some of which are expressions of Variables (`graph/sizes.py`)."""

    items: Array
    """of objects"""
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.items)

    @staticmethod
    def of(items: Any, dtype: Any = np.int64) -> Value:
        """An array of these integers; `Sizes` where not all of them are known."""
        array = np.empty(np.shape(items), object)
        array[...] = items
        if any(isinstance(n, Size) for n in array.flat):
            return Sizes(array, np.dtype(dtype))
        return array.astype(dtype)

    def tensor(self) -> Tensor:
        """These numbers as a tensor: arguments of the kernels that use them."""
        numbers = [Tensor(n).cast(tensor_type(self.dtype)) for n in self.items.flat]
        return Tensor.stack(*numbers).reshape(self.shape)


if TYPE_CHECKING:
    Items: TypeAlias = Any
else:
    Items = Tensor | Array | Coded
"""What has items of one type: a tensor of numbers, an array of strings, or numbers that no tensor holds."""


def _bits(kind: np.dtype[Any]) -> int:
    """How many bits an integer of less than a byte has."""
    return int(kind.name[-1])


def integer_range(kind: np.dtype[Any]) -> tuple[int, int]:
    """The lowest and highest value of an integer type."""
    held = CODED_INTEGERS.get(kind)
    if held is None:
        info = np.iinfo(kind)
        return int(info.min), int(info.max)
    bits = _bits(kind)
    return (0, (1 << bits) - 1) if held.is_unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _wrapped(x: Tensor, kind: np.dtype[Any], held: DType) -> Tensor:
    """The low bits of integers, with the sign that the highest of them says."""
    bits = _bits(kind)
    low = x.cast(dtypes.int32) & ((1 << bits) - 1)
    if not held.is_unsigned:
        low = (low >= 1 << (bits - 1)).where(low - (1 << bits), low)
    return low.cast(held)


def _all_values(kind: np.dtype[Any]) -> Array:
    """The number that each code stands for."""
    count = 16 if kind == np.dtype(ml_dtypes.float4_e2m1fn) else 256
    return np.arange(count, dtype=np.uint8).view(kind).astype(np.float32)


def _thresholds(kind: np.dtype[Any], rounding: str) -> tuple[Array, int, int]:
    """(from which magnitude on codes 1, 2, ... and overflow begin, the largest finite code, the code of NaN).

    Codes of floats that are not negative rise with their values, so a magnitude's code is the number of
    thresholds that it reaches. They lie in the middle between two values, which itself goes to the even code.
    """
    table = _all_values(kind)
    half = table[:len(table) if kind == np.dtype(ml_dtypes.float8_e8m0fnu) else len(table) // 2]
    values = half[np.isfinite(half)].astype(np.float64)
    values = np.append(values, 2 * values[-1] - values[-2])  # what would come next: overflow begins halfway
    if rounding == "even":
        limits = (values[:-1] + values[1:]) / 2
        odd = np.arange(len(limits)) % 2 == 1  # the tie below an even code goes up
        narrow = limits.astype(np.float32)
        limits = np.where(odd, narrow, np.nextafter(narrow, np.float32(np.inf)))
    elif rounding == "up":
        limits = np.nextafter(values[:-1].astype(np.float32), np.float32(np.inf))
    else:
        limits = values[1:]
    with np.errstate(over="ignore"):
        nan = int(np.flatnonzero(np.isnan(table))[0]) if np.isnan(table).any() else len(values) - 2
        return limits.astype(np.float32), len(values) - 2, nan


def element_type(number: int) -> np.dtype[Any]:
    """NumPy's type for the standard's number of a type of items (object: strings). Raises ValueError where
    there is none."""
    from onnx import helper

    try:
        kind: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(number)
    except KeyError as error:
        raise ValueError(f"the standard has no type {number}") from error
    return kind


def is_number(array: Array) -> bool:
    """Whether a tensor could hold this array: it is no array of strings and of no complex numbers."""
    return array.dtype.kind not in "OSUc"


def is_coded(kind: np.dtype[Any]) -> bool:
    return kind in CODED_INTEGERS or kind in CODED_FLOATS


def numpy_type(value: Value) -> np.dtype[Any]:
    """The NumPy type of a value's items."""
    if isinstance(value, Tensor):
        return value.dtype.numpy
    kind: np.dtype[Any] = value.type if isinstance(value, Coded) else value.dtype
    return kind


def tensor_type(kind: np.dtype[Any]) -> DType:
    """The tensor type of a NumPy type. Raises TypeError where there is none."""
    return dtype_from_numpy(kind)
