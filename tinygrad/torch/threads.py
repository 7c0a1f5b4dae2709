"""PyTorch's own threads, out of the way of kernels.

An OpenMP thread that has done its part of an operator waits for the next one in a loop, for milliseconds, on
a core that kernels of ours could have: a forward pass of 15 ms after an optimizer's step takes 1.5 to 2 ms
longer beside it. OpenMP 5 can be asked to end its threads; where PyTorch's library cannot, nothing happens.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

LONG_CALL = 2e-3
"""Seconds from which on ending threads, and beginning them again, costs less than their loops (0.1 to 0.2 ms;
0.2 us where there are none)."""
SOFT = 1
"""What keeps all that a thread has set (`omp_pause_soft`)."""


@cache
def _pause() -> Callable[[int], int] | None:
    """OpenMP's function, of the library that PyTorch is linked with."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError):
        return None
    return found


def end_waiting_threads() -> None:
    """End the OpenMP threads of this thread, which wait for work."""
    pause = _pause()
    if pause is not None:
        pause(SOFT)
