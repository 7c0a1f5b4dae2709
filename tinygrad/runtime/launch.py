"""Arguments of GPU kernels as the launch functions of CUDA, HIP and the emulator take them.

A launch function gets an array of addresses, one for each argument of the kernel, at which the argument lies:
first the buffers that the kernel has (`Launch.slots` tells which), then its variables, all of 8 bytes.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinygrad.renderer.launch import Launch

WORD = 8
"""Bytes of an argument: an address, or an integer."""


class Arguments:
    """The arguments of one kernel, written anew for each launch, which has read them when it returns."""

    def __init__(self, launch: Launch) -> None:
        self.slots = launch.slots
        self.values = np.zeros(0, np.int64)
        self.pointers = np.zeros(0, np.uint64)

    def set(self, addresses: Sequence[int], variables: Sequence[int]) -> int:
        """Take the buffers' addresses, by slot, and the variables; returns the address of the array."""
        given = [*(addresses[slot] for slot in self.slots), *variables]
        if len(given) != len(self.values):
            self.values = np.zeros(len(given), np.int64)
            self.pointers = (self.values.ctypes.data + WORD * np.arange(len(given))).astype(np.uint64)
        self.values[:] = given
        return int(self.pointers.ctypes.data)
