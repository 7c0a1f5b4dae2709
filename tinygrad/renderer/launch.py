"""How a kernel of blocks of threads is started: what its program says of that.

In: a linear program. Out: a `Launch`, which the devices of `runtime/` start kernels by."""
from __future__ import annotations

from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up

ACCESS_BYTES = 16
"""The most that one load or store of a GPU's thread moves."""
SHARED_ALIGNMENT = ACCESS_BYTES
"""Bytes to which arrays in shared memory are aligned: the widest access of a thread."""


@frozen
class Launch:
    """How a kernel of blocks of threads is started."""

    blocks: tuple[int, int, int]
    """blocks along each axis, the fastest first"""
    threads: tuple[int, int, int]
    """threads of a block along each axis"""
    slots: tuple[int, ...]
    """the slot of each buffer argument"""
    shared_bytes: int
    """memory that the threads of a block share"""


def launch_of(program: list[UOp]) -> Launch:
    """The launch that the SPECIAL indices of a program speak of."""
    sizes = {str(n.arg[0]): int(n.arg[1]) for n in program if n.op is Ops.SPECIAL}
    nodes = dict.fromkeys(program)
    axes = [(sizes.get(f"{letter}idx0", 1), sizes.get(f"{letter}idx1", 1), sizes.get(f"{letter}idx2", 1))
            for letter in "gl"]
    slots = tuple(sorted(n.arg[0] for n in nodes if n.op is Ops.PARAM))
    return Launch(axes[0], axes[1], slots, shared_bytes_of(program))


def shared_bytes_of(program: list[UOp]) -> int:
    """The memory that the threads of a block share in a program."""
    return sum(round_up(n.arg[1] * n.dtype.itemsize, SHARED_ALIGNMENT)
               for n in dict.fromkeys(program) if n.op is Ops.SHARED)
