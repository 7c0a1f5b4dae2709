"""Casts: the same values, or the same bits, in another dtype.

In: a tensor and a dtype. Out: a tensor of its shape; only `bitcast` to another width changes the last axis.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad.dtype import DType, DTypeLike, dtypes, least_upper_float, promote, to_dtype
from tinygrad.functional.elementwise import unary
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def cast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """The values as `dtype`, with a defined result for every value.

    To bool, zero is False and all else True. Integers to integers keep the low bits. Floats to integers round
    toward zero and stop at the ends of the range; NaN becomes 0. To a float, values round once, to nearest,
    ties to even; those beyond the range become infinite, or NaN in fp8e4m3, which has no infinity.

    >>> Tensor([300.7, -1.5, float("nan")]).cast("uint8").tolist()
    [255, 0, 0]
    """
    kind = to_dtype(dtype)
    return self if self.dtype is kind else unary(self, UOp.cast, kind)


def as_real(self: Tensor, *others: Tensor) -> Tensor:
    """`self` as a float, for what is a function of real numbers: integers among themselves would wrap. Beside
    `others` that are floats it takes the type that all meet in."""
    return cast(self, least_upper_float(promote(self.dtype, *(x.dtype for x in others))))


def bitcast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """The same bits read as `dtype`. Where the widths differ, the last axis changes size in proportion.

    Raises ValueError where the last axis does not divide.

    >>> Tensor([1.0]).bitcast("uint32").tolist(), Tensor([1.0]).bitcast("uint8").tolist()
    ([1065353216], [0, 0, 128, 63])
    """
    kind = to_dtype(dtype)
    old, new = self.dtype.itemsize, kind.itemsize
    if old == new:
        return unary(self, UOp.bitcast, kind)
    if not self.shape or (self.shape[-1] * old) % new:
        raise ValueError(f"bitcast of {self.dtype} with shape {self.shape} to {kind}: the last axis must "
                         f"hold whole {new}-byte items")
    return _rewidened(self, kind)


def _rewidened(self: Tensor, dtype: DType) -> Tensor:
    """The bits of the last axis as items of another width, little end first."""
    unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
    old, new = self.dtype.itemsize, dtype.itemsize
    narrow, wide = unsigned[min(old, new)], unsigned[max(old, new)]
    parts = wide.itemsize // narrow.itemsize
    bits = self.bitcast(unsigned[old])
    if new < old:
        split = [(bits >> (i * narrow.bits)).cast(narrow) for i in range(parts)]
        flat = split[0].stack(*split[1:], dim=-1).flatten(-2)
    else:
        grouped = bits.unflatten(-1, (-1, parts)).cast(wide)
        flat = grouped[..., 0]
        for i in range(1, parts):
            flat = flat | (grouped[..., i] << (i * narrow.bits))
    return flat.bitcast(dtype)


def to_bool(self: Tensor) -> Tensor:
    """As bools: False where zero."""
    return cast(self, dtypes.bool)


def to_int(self: Tensor) -> Tensor:
    """As int32."""
    return cast(self, dtypes.int32)


def to_long(self: Tensor) -> Tensor:
    """As int64."""
    return cast(self, dtypes.int64)


def to_short(self: Tensor) -> Tensor:
    """As int16."""
    return cast(self, dtypes.int16)


def to_float(self: Tensor) -> Tensor:
    """As float32."""
    return cast(self, dtypes.float32)


def to_double(self: Tensor) -> Tensor:
    """As float64."""
    return cast(self, dtypes.float64)


def to_half(self: Tensor) -> Tensor:
    """As float16."""
    return cast(self, dtypes.float16)


def to_bfloat16(self: Tensor) -> Tensor:
    """As bfloat16."""
    return cast(self, dtypes.bfloat16)


def is_floating_point(self: Tensor) -> bool:
    """Whether the dtype is a float."""
    return self.dtype.is_float
