"""What is written into a tensor, or a part of one: a tensor of that shape and dtype, made of any value.

`Tensor.assign` and `x[...] = value` (`functional/indexing.py`) write it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.uop import Shape
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def operand_to_write(self: Tensor, value: Any) -> Tensor:
    """What is to be written into `self` as a tensor; a number in its dtype, as NumPy and PyTorch cast it."""
    if isinstance(value, type(self)):
        return value
    dtype = self.dtype if isinstance(value, (bool, int, float, np.generic)) else None
    return type(self)(value, device=self.device, dtype=dtype, requires_grad=False)


def as_written(name: str, shape: Shape, dtype: DType, value: Tensor) -> Tensor:
    """`value` broadcast to `shape` and cast to `dtype`, to be written there.

    Raises ValueError where the shape does not broadcast, TypeError where the dtype's kind is too high.
    """
    if value.dtype.is_float and not dtype.is_float:
        raise TypeError(f"{name}: {value.dtype} values would be cut to {dtype}; cast them first")
    if len(value.shape) > len(shape) and prod(value.shape[:len(value.shape) - len(shape)]) == 1:
        value = value.reshape(value.shape[len(value.shape) - len(shape):])
    if broadcast_shape(name, shape, value.shape) != shape:
        raise ValueError(f"{name}: a value of shape {value.shape} does not broadcast to {shape}")
    return value.cast(dtype).expand(shape)
