"""Memory for what a compiled graph returns: PyTorch's for small tensors, ours for large ones.

PyTorch takes memory from the C library, which gives large blocks back to the system when they are freed, or
not, as it happens: a training step that gets 30 MB of fresh pages takes 8 ms longer. Ours is kept for the
next call (`device/allocator.py`), from 2 MB on in large pages. What only a backward pass reads dies at once,
and is parts of one piece: a view takes a microsecond, a piece seven. Next: `dispatch.py`, which makes results
so.
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
from tinygrad.frozen import frozen
from tinygrad.helpers import round_up

LARGE_RESULT = 256 << 10
"""Bytes from which on memory is ours: to fault its pages in takes longer than the 5 us to wrap it."""
PART_BYTES = 4096
"""Parts begin at multiples of this."""


@frozen
class Result:
    """A tensor that a call returns; strides are in items."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    is_kept: bool = False
    """whether only the backward pass of the same graph reads it"""

    @property
    def items(self) -> int:
        """Items from the first to the last in memory."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return 0 if 0 in self.shape else last + 1

    @property
    def nbytes(self) -> int:
        return self.items * int(self.dtype.itemsize)

    @property
    def is_part(self) -> bool:
        """Whether it is part of a piece of memory."""
        return self.is_kept and self.nbytes >= LARGE_RESULT

    def maker(self) -> Callable[[], torch.Tensor]:
        """What makes the tensor, without values, at each call."""
        if self.nbytes < LARGE_RESULT:
            # a third of what torch.empty takes (1.3 us, 4.4 us)
            return partial(_empty_strided_cpu, self.shape, self.strides, self.dtype)
        return self.in_memory_of_ours

    def in_memory_of_ours(self) -> torch.Tensor:
        return _piece(self.nbytes, self.dtype).as_strided_(self.shape, self.strides)


class Results:
    """What makes all results of a graph at each call."""

    def __init__(self, results: Sequence[Result]) -> None:
        parts = [i for i, result in enumerate(results) if result.is_part]
        self.nbytes = 0
        """of the piece that has the parts"""
        self.places: list[tuple[int, torch.dtype, tuple[tuple[int, ...], tuple[int, ...], int]]] = []
        """of each part: its number among the results, and what PyTorch takes for a view of the piece"""
        for i in parts:
            result = results[i]
            start = self.nbytes // result.dtype.itemsize
            self.places.append((i, result.dtype, (result.shape, result.strides, start)))
            self.nbytes = round_up(self.nbytes + result.nbytes, PART_BYTES)
        self.dtypes = {dtype for _, dtype, _ in self.places}
        self.others = [(i, result.maker()) for i, result in enumerate(results) if not result.is_part]
        self.count = len(results)

    def __call__(self) -> list[torch.Tensor]:
        made: list[Any] = [None] * self.count
        for i, make in self.others:
            made[i] = make()
        if self.places:
            piece = _piece(self.nbytes, torch.uint8)
            views = {dtype: piece.view(dtype).as_strided for dtype in self.dtypes}
            for i, dtype, place in self.places:
                made[i] = views[dtype](*place)
        return made


class _Held(np.ndarray[Any, Any]):
    """Memory of a buffer, which lives as long as an array over it."""

    owner: Buffer


def _piece(nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """So many bytes of memory of ours, as items of a dtype side by side."""
    buffer = Buffer("CPU", nbytes, dtypes.uint8).allocate(idle=True)
    memory = buffer.memory[:nbytes].view(_Held)
    memory.owner = buffer
    return torch.frombuffer(memory, dtype=dtype, count=nbytes // dtype.itemsize)
