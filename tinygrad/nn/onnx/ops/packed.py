"""Weights of a few bits, packed in bytes, of ONNX Runtime (com.microsoft): products with them, rows of tables
of them. As its documents define them."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import CONTRIBUTED, Ints, op
from tinygrad.tensor import Tensor


def unpacked(x: Tensor, bits: int) -> Tensor:
    """Numbers of `bits` bits from bytes, the lowest bits first, along the last axis."""
    shifts = Tensor(np.arange(0, 8, bits, dtype=np.uint8), x.device, requires_grad=False)
    parts = (x.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return parts.reshape(*x.shape[:-1], -1)


@op(domain=CONTRIBUTED)
def MatMulNBits(A: Tensor, B: Tensor, scales: Tensor, zero_points: Tensor | None = None,
                g_idx: Tensor | None = None,
                bias: Tensor | None = None, *, K: int, N: int, accuracy_level: int = 0, bits: int = 4,
                block_size: int, weight_prepacked: int = 0) -> Tensor:
    """A @ weights^T, of weights (N, K) in blocks of a few bits, with a scale and a zero point for each
    block."""
    if weight_prepacked or bits not in (2, 4, 8):
        raise NotImplementedError(f"weights of {bits} bits, prepacked: {bool(weight_prepacked)}")
    blocks = -(-K // block_size)
    numbers = unpacked(B.reshape(N, blocks, -1), bits).cast(A.dtype)
    if zero_points is None:
        zero: Any = 1 << (bits - 1)
    elif zero_points.dtype is dtypes.uint8:
        zero = unpacked(zero_points.reshape(N, -1), bits)[:, :blocks].cast(A.dtype).unsqueeze(-1)
    else:
        zero = zero_points.reshape(N, blocks, 1)
    weights = ((numbers - zero) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
    made: Tensor = A @ weights.transpose()
    return made if bias is None else made + bias


@op(domain=CONTRIBUTED)
def GatherBlockQuantized(data: Tensor, indices: Tensor, scales: Tensor, zero_points: Tensor | None = None, *,
                         bits: int = 4, block_size: int = 128, gather_axis: int = 0,
                         quantize_axis: int = 1) -> Tensor:
    """Rows of a table whose numbers are packed in bytes, in blocks of a scale and a zero point each."""
    if data.dtype is not dtypes.uint8 or gather_axis % data.ndim or not quantize_axis % data.ndim:
        raise NotImplementedError(f"rows of {data.dtype.name} along axis {gather_axis}, in blocks along "
                                  f"axis {quantize_axis}")
    axis = quantize_axis % data.ndim + indices.ndim - 1
    numbers, scale = unpacked(data[indices], bits), scales[indices]
    zero: Any = 1 << (bits - 1)
    if zero_points is not None:
        zero = unpacked(zero_points[indices], bits).shrink_to(scale.shape).cast(scale.dtype)
        zero = zero.repeat_interleave(block_size, axis).shrink_to(numbers.shape)
    scale = scale.repeat_interleave(block_size, axis).shrink_to(numbers.shape)
    rows: Tensor = (numbers.cast(scale.dtype) - zero) * scale
    return rows


# --- blocks with a float of their own -----------------------------------------------------------------------


@op(domain=CONTRIBUTED)
def MatMulFpQ4(A: Tensor, B: Tensor, B_shape: Ints, *, blk_quant_type: int = 1) -> Tensor:
    """A @ weights of `B_shape` (K, N). A column is blocks of 32 numbers: a float32 that is their scale, a
    byte that is their zero point (8 where blk_quant_type is 0), and bytes with a number of the first half in
    the low bits and one of the second in the high ones."""
    if blk_quant_type not in (0, 1):
        raise NotImplementedError(f"blk_quant_type {blk_quant_type}")
    rows, columns = B_shape
    head = 4 + blk_quant_type
    blocks = B.reshape(columns, -(-rows // 32), head + 16)
    scales = blocks[..., :4].contiguous().bitcast(dtypes.float32)
    zero: Any = blocks[..., 4:5].cast(dtypes.float32) if blk_quant_type else 8
    numbers = (blocks[..., head:] & 15).cat(blocks[..., head:] >> 4, dim=-1).cast(dtypes.float32)
    made: Tensor = A @ ((numbers - zero) * scales).reshape(columns, -1)[:, :rows].transpose()
    return made


FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
"""bitsandbytes' floats of four bits that are not negative, by their low three bits."""
NF4 = np.array([
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.0795803,
    0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0], np.float32)
"""Its "normal floats": quantiles of a normal distribution, from -1 to 1 (Dettmers et al., "QLoRA", 2023)."""


@op(domain=CONTRIBUTED)
def MatMulBnb4(A: Tensor, B: Tensor, absmax: Tensor, *, K: int, N: int, block_size: int, quant_type: int,
               training_mode: int = 0, transB: int = 1) -> Tensor:
    """A @ weights^T (or @ weights), of weights (N, K) that are floats of four bits, the first one of a byte
    in its high bits, in blocks of a largest magnitude each."""
    table = Tensor(NF4 if quant_type else np.concatenate([FP4, -FP4]), A.device, requires_grad=False)
    codes = (B >> 4).unsqueeze(-1).cat((B & 15).unsqueeze(-1), dim=-1).reshape(-1)[:N * K]
    scales = absmax.reshape(-1).repeat_interleave(block_size)[:N * K]
    weights = (table[codes].cast(A.dtype) * scales).reshape(N, K)
    made: Tensor = A @ (weights.transpose() if transB else weights)
    return made
