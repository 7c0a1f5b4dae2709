"""Memory for what a compiled graph returns: PyTorch's for small tensors, ours for large ones.

PyTorch takes memory from the C library, which gives large blocks back to the system when they are freed, or
not, as it happens: a training step that gets 30 MB of fresh pages takes 8 ms longer. Ours is kept for the
next call (`device/allocator.py`), from 2 MB on in large pages. Next: `dispatch.py`, which makes results so.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._C._dynamo.guards import _empty_strided_cpu

from tinygrad.device import Buffer
from tinygrad.dtype import dtypes

LARGE_RESULT = 256 << 10
"""Bytes from which on memory is ours: to fault its pages in takes longer than the 5 us to wrap it."""


class _Held(np.ndarray[Any, Any]):
    """Memory of a buffer, which lives as long as an array over it."""

    owner: Buffer


def result_maker(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
                 ) -> Callable[[], torch.Tensor]:
    """What makes a tensor, without values, of this shape, strides (in items) and dtype at each call."""
    items = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if items * dtype.itemsize < LARGE_RESULT:
        # a third of what torch.empty takes (1.3 us, 4.4 us)
        return partial(_empty_strided_cpu, tuple(shape), tuple(strides), dtype)
    return partial(_in_memory_of_ours, tuple(shape), tuple(strides), dtype, items)


def _in_memory_of_ours(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, items: int
                       ) -> torch.Tensor:
    buffer = Buffer("CPU", items * dtype.itemsize, dtypes.uint8).allocate(idle=True)
    memory = buffer.memory[:buffer.size].view(_Held)
    memory.owner = buffer
    return torch.frombuffer(memory, dtype=dtype, count=items).as_strided(shape, strides)
