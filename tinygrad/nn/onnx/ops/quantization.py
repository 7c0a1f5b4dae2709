"""Quantised numbers: to them and back, and products and convolutions of them."""
from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.nn.onnx.ops.casts import convert
from tinygrad.nn.onnx.ops.convolution import Conv, ConvolutionAttributes
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import (
    CODED_INTEGERS,
    Coded,
    Items,
    element_type,
    integer_range,
    is_coded,
    numpy_type,
    tensor_type,
)
from tinygrad.tensor import Tensor


def _spread(value: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point laid along `x`: of all, of each place of an axis, or of blocks along it."""
    if value.numel() == 1:
        return value.reshape(())
    if value.ndim == 1 and not block_size:
        return value.reshape(*(-1 if i == axis % x.ndim else 1 for i in range(x.ndim)))
    size = x.shape[axis]
    return value.repeat_interleave(block_size or -(-size // value.shape[axis]), axis).shrink_to(
        *(size if i == axis % x.ndim else None for i in range(x.ndim)))


def _numbers(x: Items, dtype: DType) -> Tensor:
    """Quantised numbers as numbers of `dtype`."""
    return x.decode(dtype) if isinstance(x, Coded) else x.cast(dtype)


def quantize(x: Tensor, zero_point: Tensor | None, kind: np.dtype[Any], saturate: int = 1) -> Items:
    """Scaled numbers in a quantised type: integers rounded and kept in their range."""
    if kind.kind not in "iu" and kind not in CODED_INTEGERS:
        return convert(x if zero_point is None else x + zero_point.cast(x.dtype), kind, saturate)
    low, high = integer_range(kind)
    x = x.cast(dtypes.float32).round()
    x = x if zero_point is None else x + zero_point.cast(dtypes.float32)
    x = x.maximum(low).minimum(high)
    return Coded(x.cast(CODED_INTEGERS[kind]), kind) if is_coded(kind) else x.cast(tensor_type(kind))


@op
def QuantizeLinear(x: Tensor, y_scale: Tensor, y_zero_point: Items | None = None, *, axis: int = 1,
                   saturate: int = 1, block_size: int = 0, output_dtype: int = 0,
                   precision: int = 0) -> Items:
    """x / y_scale + y_zero_point, divided in the type of the scale, rounded and kept in range."""
    kind = element_type(output_dtype) if output_dtype else \
        np.dtype(np.uint8) if y_zero_point is None else numpy_type(y_zero_point)
    wide = tensor_type(element_type(precision)) if precision else y_scale.dtype
    scaled = x.cast(wide) / _spread(y_scale.cast(wide), x, axis, block_size)
    zero = None if y_zero_point is None else _spread(_numbers(y_zero_point, dtypes.float32), x, axis,
                                                     block_size)
    return quantize(scaled, zero, kind, saturate)


@op
def DequantizeLinear(x: Items, x_scale: Tensor, x_zero_point: Items | None = None, *, axis: int = 1,
                     block_size: int = 0, output_dtype: int = 0) -> Tensor:
    """(x - x_zero_point) * x_scale."""
    result = tensor_type(element_type(output_dtype)) if output_dtype else x_scale.dtype
    kind = numpy_type(x)
    exact = dtypes.int32 if kind.kind in "iu" or kind in CODED_INTEGERS else dtypes.float32
    wide = _numbers(x, exact)
    if x_zero_point is not None:
        wide = wide - _spread(_numbers(x_zero_point, exact), wide, axis, block_size)
    return wide.cast(result) * _spread(x_scale, wide, axis, block_size).cast(result)


# --- products -----------------------------------------------------------------------------------------------


def _centred(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """x - zero_point in 32 bits; a zero point for each place lies along `axis`."""
    wide = x.cast(dtypes.int32)
    if zero_point is None:
        return wide
    zero = zero_point.cast(dtypes.int32)
    if zero.numel() > 1 and zero.ndim == 1:
        zero = zero.reshape(*(-1 if i == axis % x.ndim else 1 for i in range(x.ndim)))
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


@op
def MatMulInteger(A: Tensor, B: Tensor, a_zero_point: Tensor | None = None,
                  b_zero_point: Tensor | None = None) -> Tensor:
    return _centred(A, a_zero_point, -2) @ _centred(B, b_zero_point, -1)


@op
def QLinearMatMul(a: Tensor, a_scale: Tensor, a_zero_point: Tensor, b: Tensor, b_scale: Tensor,
                  b_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor) -> Items:
    product = _centred(a, a_zero_point, -2) @ _centred(b, b_zero_point, -1)
    rows = a_scale.unsqueeze(-1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    scale = rows.cast(dtypes.float32) * b_scale.cast(dtypes.float32) / y_scale.cast(dtypes.float32)
    return quantize(product.cast(dtypes.float32) * scale, y_zero_point, y_zero_point.dtype.numpy)


@op
def ConvInteger(x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None,
                **how: Unpack[ConvolutionAttributes]) -> Tensor:
    return Conv(_centred(x, x_zero_point, 1), _centred(w, w_zero_point, 0), **how)


@op
def QLinearConv(x: Tensor, x_scale: Tensor, x_zero_point: Tensor, w: Tensor, w_scale: Tensor,
                w_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, B: Tensor | None = None,
                **how: Unpack[ConvolutionAttributes]) -> Items:
    made = Conv(_centred(x, x_zero_point, 1), _centred(w, w_zero_point, 0), B, **how)
    scale = x_scale.reshape(()) * w_scale.reshape(-1) / y_scale.reshape(())
    return quantize(made.cast(dtypes.float32) * scale.reshape(-1, *(1,) * (x.ndim - 2)),
                    y_zero_point.reshape(()), y_zero_point.dtype.numpy)


@op
def DynamicQuantizeLinear(x: Tensor) -> tuple[Items, ...]:
    """`x` in eight bits, with the scale and zero point of its own range."""
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    zero = (-low / (scale == 0).where(1, scale)).round().maximum(0).minimum(255).cast(dtypes.uint8)
    return quantize(x / (scale == 0).where(1, scale), zero, np.dtype(np.uint8)), scale, zero
