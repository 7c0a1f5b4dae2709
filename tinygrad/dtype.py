"""Number types: what they are called, how wide they are, and which type two of them meet in.

A `DType` is interned, so types compare with `is`. `dtypes` is the public namespace. A type with `count > 1`
is a vector of that many lanes; only generated code has those. `dtypes.index` is the type of loop counters and
addresses; only the compiler uses it.

Promotion follows a lattice (`promotion_parents`): the type of a binary operation is the lowest type that both
operands reach. Python scalars are weak: they take the tensor's type unless their kind is higher
(bool < integer < float).
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

from tinygrad.frozen import frozen
from tinygrad.helpers import AttributeSetting, find_elsewhere

DTypeKind = Literal["bool", "int", "uint", "float"]


@frozen(eq=False)
class DType:
    """One number type: its name, kind, width in bytes of one lane, and number of lanes."""

    name: str
    kind: DTypeKind
    lane_size: int
    count: int = 1

    def __repr__(self) -> str:
        return f"dtypes.{self.name}" + (f".vec({self.count})" if self.count > 1 else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _dtype_by_name, (self.name, self.count)

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one value, all lanes together."""
        return self.lane_size * self.count

    @functools.cached_property
    def scalar(self) -> DType:
        """The type of one lane."""
        return self if self.count == 1 else _dtype_by_name(self.name, 1)

    def vec(self, count: int) -> DType:
        """The vector type of `count` lanes of this scalar type."""
        if count == self.count:
            return self
        return _vector(self.scalar, count) if count > 1 else self.scalar

    @functools.cached_property
    def bits(self) -> int:
        """Bits of one lane."""
        return self.lane_size * 8

    @functools.cached_property
    def is_float(self) -> bool:
        """True for floats of every width."""
        return self.kind == "float"

    @functools.cached_property
    def is_int(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind in ("int", "uint")

    @functools.cached_property
    def is_unsigned(self) -> bool:
        """True for integers without a sign."""
        return self.kind == "uint"

    @functools.cached_property
    def is_bool(self) -> bool:
        """True for bool."""
        return self.kind == "bool"

    @functools.cached_property
    def min(self) -> int | float | bool:
        """The lowest value: minus infinity for floats that have one."""
        if self.is_float:
            return -self.max
        if self.kind == "int":
            return -(1 << self.bits - 1)
        return False if self.is_bool else 0

    @functools.cached_property
    def max(self) -> int | float | bool:
        """The highest value: infinity for floats that have one (fp8e4m3 ends at 448)."""
        if self.is_float:
            return 448.0 if self.scalar is dtypes.fp8e4m3 else math.inf
        if self.is_bool:
            return True
        return (1 << self.bits - (self.kind == "int")) - 1

    def as_const(self, value: Any) -> int | float | bool:
        """`value` as the Python number that a constant of this type holds: integers wrap, floats stay."""
        if self.is_float:
            return float(value)
        if self.is_bool:
            return bool(value)
        wrapped = int(value) & (1 << self.bits) - 1
        if self.kind == "int" and wrapped >= 1 << self.bits - 1:
            wrapped -= 1 << self.bits
        return wrapped

    def checked(self, number: Any, from_end: bool = True) -> Any:
        """`number`. Raises OverflowError where this is an integer type that does not hold it, cut to an
        integer. With `from_end` unsigned types take negative ones, as in PyTorch: -1 has all bits set."""
        lowest = -self.max if self.is_unsigned and from_end else self.min
        if self.is_int and (number >= self.max + 1 or number <= lowest - 1):
            raise OverflowError(f"{number} does not fit {self}, which holds {self.min} to {self.max}")
        return number

    def is_exact(self, number: float) -> bool:
        """Whether this float type has the number as it is, and not among its smallest and largest."""
        exponent_bits, mantissa_bits = _FLOAT_BITS[self.scalar]
        mantissa, exponent = math.frexp(number)
        return abs(exponent) < (1 << exponent_bits - 1) - 1 and (mantissa * (2 << mantissa_bits)).is_integer()

    @functools.cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of one lane (bfloat16 and the fp8 types come from ml_dtypes)."""
        return _NUMPY[self.name]


@functools.cache
def _vector(scalar: DType, count: int) -> DType:
    return DType(scalar.name, scalar.kind, scalar.lane_size, count)


class dtypes:  # the public name, as in NumPy's and PyTorch's lower-case namespaces
    """All number types, by name and by the aliases that PyTorch users expect."""

    bool: Final = DType("bool", "bool", 1)
    int8: Final = DType("int8", "int", 1)
    int16: Final = DType("int16", "int", 2)
    int32: Final = DType("int32", "int", 4)
    int64: Final = DType("int64", "int", 8)
    uint8: Final = DType("uint8", "uint", 1)
    uint16: Final = DType("uint16", "uint", 2)
    uint32: Final = DType("uint32", "uint", 4)
    uint64: Final = DType("uint64", "uint", 8)
    fp8e4m3: Final = DType("fp8e4m3", "float", 1)
    fp8e5m2: Final = DType("fp8e5m2", "float", 1)
    float16: Final = DType("float16", "float", 2)
    bfloat16: Final = DType("bfloat16", "float", 2)
    float32: Final = DType("float32", "float", 4)
    float64: Final = DType("float64", "float", 8)
    index: Final = DType("index", "int", 8)

    char, short, int, long = int8, int16, int32, int64
    uchar, ushort, uint, ulong = uint8, uint16, uint32, uint64
    half, float, double = float16, float32, float64

    default_float: DType = float32
    default_int: DType = int32

    fp8s = (fp8e4m3, fp8e5m2)
    floats = (fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64)
    uints = (uint8, uint16, uint32, uint64)
    sints = (int8, int16, int32, int64)
    ints = uints + sints
    all = (bool, *ints, *floats)

    @staticmethod
    def is_float(dtype: DType) -> Any:
        """`dtype.is_float`, for scripts that ask `dtypes`."""
        return dtype.is_float

    @staticmethod
    def is_int(dtype: DType) -> Any:
        """`dtype.is_int`, for scripts that ask `dtypes`."""
        return dtype.is_int

    @staticmethod
    def is_unsigned(dtype: DType) -> Any:
        """`dtype.is_unsigned`, for scripts that ask `dtypes`."""
        return dtype.is_unsigned

    @staticmethod
    def is_bool(dtype: DType) -> Any:
        """`dtype.is_bool`, for scripts that ask `dtypes`."""
        return dtype.is_bool

    @staticmethod
    def min(dtype: DType) -> Any:
        """`dtype.min`, for scripts that ask `dtypes`."""
        return dtype.min

    @staticmethod
    def max(dtype: DType) -> Any:
        """`dtype.max`, for scripts that ask `dtypes`."""
        return dtype.max

    @staticmethod
    def from_py(value: Any) -> DType:
        """The type of a tensor made from a Python number, or from a (nested) list of them.

        The default integer or float; one of 64 bits for integers that it does not hold. Raises OverflowError
        for larger ones, and for negative ones among such that are for uint64 alone.
        """
        return _dtype_of_python(value)

    @staticmethod
    def finfo(dtype: DType) -> tuple[Any, Any]:
        """(exponent bits, mantissa bits) of a float type."""
        return _FLOAT_BITS[dtype.scalar]

    @staticmethod
    def fields() -> dict[str, DType]:
        """Every number type by its name."""
        return {d.name: d for d in dtypes.all}


_BY_NAME: dict[str, DType] = {d.name: d for d in (*dtypes.all, dtypes.index)}

_NUMPY: dict[str, np.dtype[Any]] = {
    **{d.name: np.dtype(d.name) for d in (dtypes.bool, *dtypes.ints)},
    "index": np.dtype("int64"),
    "fp8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("float32"),
    "float64": np.dtype("float64"),
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {v: _BY_NAME[k] for k, v in _NUMPY.items() if k != "index"}

_FLOAT_BITS: dict[DType, tuple[int, int]] = {
    dtypes.fp8e4m3: (4, 3),
    dtypes.fp8e5m2: (5, 2),
    dtypes.float16: (5, 10),
    dtypes.bfloat16: (8, 7),
    dtypes.float32: (8, 23),
    dtypes.float64: (11, 52),
}


def _dtype_by_name(name: str, count: int) -> DType:
    return _BY_NAME[name].vec(count)


def dtype_from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy type. Raises TypeError for types without one (complex, strings, objects)."""
    found = _FROM_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"no tensor type for NumPy type {np.dtype(dtype)}; "
                        f"use one of {', '.join(d.name for d in dtypes.all)}")
    return found


DTypeLike = DType | str | type


def to_dtype(dtype: DTypeLike) -> DType:
    """A DType from a DType, its name ("float32", "half"), or Python's bool, int or float.

    >>> to_dtype("float32") is dtypes.float32, to_dtype(int)
    (True, dtypes.int32)
    """
    if isinstance(dtype, DType):
        return dtype
    if dtype is bool:
        return dtypes.bool
    if dtype is int:
        return dtypes.default_int
    if dtype is float:
        return dtypes.default_float
    found = getattr(dtypes, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(found, DType):
        raise TypeError(f"{dtype!r} is not a dtype; use one of {', '.join(d.name for d in dtypes.all)}")
    return found


def _default_of(kind: DTypeKind) -> Callable[[DTypeLike], DType]:
    """What makes of a dtype, or its name in any case, a default of this kind."""
    def checked(dtype: DTypeLike) -> DType:
        found = to_dtype(dtype.lower() if isinstance(dtype, str) else dtype)
        if found.kind != kind:
            raise ValueError(f"DEFAULT_{kind.upper()} takes a type of this kind, got {found}")
        return found

    return checked


DEFAULT_FLOAT = AttributeSetting("DEFAULT_FLOAT", dtypes, "default_float", _default_of("float"))
"""The type of floats that nothing else says the type of: `dtypes.default_float`, by name."""
DEFAULT_INT = AttributeSetting("DEFAULT_INT", dtypes, "default_int", _default_of("int"))
"""The type of integers that nothing else says the type of: `dtypes.default_int`, by name."""


def __getattr__(name: str) -> Any:
    """What scripts written for tinygrad import from here."""
    return find_elsewhere(__name__, name)


def _dtype_of_python(value: Any) -> DType:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (list, tuple)):
        kinds = {_dtype_of_python(v) for v in value}
        if not kinds:
            return dtypes.default_float
        widest = max(kinds, key=lambda d: (d.is_float, d.is_int, d.itemsize, d.is_unsigned))
        if widest is dtypes.uint64 and _lowest(value) < 0:
            raise OverflowError(f"no integer type of 64 bits has {_lowest(value)} and numbers from 2**63 on")
        return widest
    if isinstance(value, bool):
        return dtypes.bool
    if isinstance(value, int):
        return _dtype_that_holds(value)
    if isinstance(value, float):
        return dtypes.default_float
    raise TypeError(f"cannot infer a dtype from a {type(value).__name__}")


def _lowest(value: Any) -> int:
    """The lowest of the integers in nested lists; 0 of none."""
    return min(map(_lowest, value), default=0) if isinstance(value, (list, tuple)) else int(value)


def _dtype_that_holds(number: int) -> DType:
    """The default integer type, or the first of 64 bits that has the number."""
    for dtype in (dtypes.default_int, dtypes.int64, dtypes.uint64):
        if dtype.min <= number <= dtype.max:
            return dtype
    raise OverflowError(f"{number} does not fit an integer type of 64 bits")


# Each type's direct successors. The result type of two operands is the lowest type above both.
promotion_parents: Final[dict[DType, tuple[DType, ...]]] = {
    dtypes.bool: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,),
    dtypes.int64: (dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.uint64: (dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.fp8e4m3: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


@functools.cache
def _above(dtype: DType) -> frozenset[DType]:
    return frozenset({dtype}).union(*(_above(p) for p in promotion_parents[dtype]))


@functools.cache
def promote(*operands: DType) -> DType:
    """The lowest type that every operand reaches in the lattice.

    Where two types meet in no single lowest one (int64 with uint64, the two fp8 types, float16 with
    bfloat16), the result is the lowest type comparable with all that they meet in: float32.

    >>> promote(dtypes.int8, dtypes.uint8), promote(dtypes.int64, dtypes.float16)
    (dtypes.int16, dtypes.float16)
    """
    common = frozenset.intersection(*(_above(d) for d in operands))
    comparable = [d for d in common if all(d in _above(c) or c in _above(d) for c in common)]
    return max(comparable, key=lambda d: len(_above(d)))


def least_upper_float(dtype: DType) -> DType:
    """`dtype` if it is a float, else the default float: the result type of exp, mean, division.

    >>> least_upper_float(dtypes.int32), least_upper_float(dtypes.float16)
    (dtypes.float32, dtypes.float16)
    """
    return dtype if dtype.is_float else dtypes.default_float


def sum_dtype(dtype: DType) -> DType:
    """The type a sum of `dtype` returns: integers and bools widen to at least 32 bits, floats keep theirs.

    >>> sum_dtype(dtypes.bool), sum_dtype(dtypes.uint8), sum_dtype(dtypes.float16)
    (dtypes.int32, dtypes.uint32, dtypes.float16)
    """
    if dtype.is_unsigned:
        return promote(dtype, dtypes.uint32)
    if dtype.is_float:
        return dtype
    return promote(dtype, dtypes.int32)


def accumulate_dtype(dtype: DType) -> DType:
    """The type a reduction of `dtype` accumulates in: at least float32 for floats."""
    return promote(dtype, dtypes.float32) if dtype.is_float else sum_dtype(dtype)
