"""From a linear program to the text that a device's compiler takes.

In: a list of UOps in the order in which they run (`graph/spec.py`, stage `program`). Out: source text: LLVM
IR, C and its dialects for GPUs, WGSL, or Python, each in a module of its name. A `Renderer` also tells the
cost model its device's numbers. Next on the path: `runtime/`.
"""
from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer.launch import ACCESS_BYTES
from tinygrad.renderer.matrix_units import MatrixUnit

SCRATCH_ALIGNMENT = 64
"""Bytes to which scratch arrays are aligned."""
STATIC_SHARED_BYTES = 48 << 10
"""What a block of an NVIDIA GPU may share without having asked for more when it is launched."""


NARROW_FLOATS = frozenset({dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.bfloat16, dtypes.float16})
"""Types to store numbers in; arithmetic on them is done in float32 and rounded after each operation."""


def same_in_every_lane(node: UOp) -> int | None:
    """The number that an integer is in all its lanes, if it is a constant."""
    if node.op is Ops.VECTORIZE and len(node.src) == 1:
        return same_in_every_lane(node.src[0])
    if node.op is not Ops.CONST:
        return None
    lanes = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    return int(lanes[0]) if all(x == lanes[0] for x in lanes) else None


class Renderer(ABC):
    """Writes programs in one language, and knows the size of what its device offers them."""

    name: ClassVar[str]
    """of the language"""
    has_threads: bool = False
    """whether a THREAD range may be shared out over cores"""
    threads: int = 1
    """cores to share it out over"""
    registers: int = 16
    """vector registers of a core"""
    l1_bytes: int = 32 << 10
    """data cache closest to a core"""
    l2_bytes: int = 512 << 10
    """the next one, of each core"""
    l3_bytes: int = 0
    """the last one, of all cores, where stores can go past it; else 0"""
    has_blocks: bool = False
    """whether kernels run as a grid of blocks of threads, with memory that a block shares and barriers"""
    block_threads: int = 256
    """the most threads that a plan puts into a block"""
    warp_threads: int = 32
    """neighbouring threads of a block that run in step"""
    shared_bytes: int = 32 << 10
    """memory that a block shares"""
    has_exchange: bool = False
    """whether the lanes of a warp read each other's registers"""
    has_async_copies: bool = False
    """whether threads copy from buffers into shared memory while they go on"""
    matrix_units: tuple[MatrixUnit, ...] = ()
    """what the lanes of a warp can multiply together, the best first"""
    has_byte_dots: bool = False
    """whether it writes DP4A"""
    grid_limits: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """the most blocks along each axis, the fastest first"""
    missing: frozenset[DType] = frozenset()
    """dtypes that the device cannot compute with"""
    contracts: bool = True
    """whether a product added to a sum, rounded once, costs less than rounding both"""

    def __repr__(self) -> str:
        units = "".join(f", {unit}" for unit in self.matrix_units)
        return (f"{self.name}, {self.threads} thread{'s' * (self.threads > 1)}, "
                f"{self.registers} vector registers of {self.lanes(dtypes.float32)} float32{units}")

    longest_access: int = 4
    """items that one access of a block's thread moves at most, if they are no more than `ACCESS_BYTES`"""

    def supported_dtypes(self) -> set[DType]:
        """The dtypes that kernels compute with on this device."""
        return set(dtypes.all) - self.missing

    def access_lanes(self, dtype: DType) -> int:
        """Items of `dtype` that one access of a block's thread moves."""
        return max(1, min(self.longest_access, ACCESS_BYTES // dtype.lane_size))

    @abstractmethod
    def lanes(self, dtype: DType) -> int:
        """Values of `dtype` in one vector register; 1 where there are no vectors."""

    @abstractmethod
    def render(self, name: str, program: list[UOp]) -> str:
        """The source text of a kernel called `name`.

        Raises ValueError for a node that this language cannot say, naming the node.
        """

    def check(self, name: str, program: list[UOp]) -> None:
        """Raises ValueError for a name that languages do not take, and for a dtype that the device lacks."""
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise ValueError(f"{name!r} cannot be a kernel's name: a letter, then letters, digits and _ only")
        for node in program:
            if node.dtype.scalar in self.missing:
                raise ValueError(f"this {self.name} device has no {node.dtype.scalar.name}; CPU, CPU:C and "
                                 "PYTHON do. Move the tensor there, t.to(\"CPU\"), or cast it, t.float()")

    def scratch_bytes(self, program: list[UOp]) -> int:
        """The bytes of scratch memory that a program needs for each thread."""
        return sum(round_up(n.arg[1] * n.dtype.itemsize, SCRATCH_ALIGNMENT)
                   for n in program if n.op is Ops.SCRATCH)


class CPURenderer(Renderer):
    """A language of CPUs: cores with `registers` vector registers of `vector_bytes`; the rest as in
    `Renderer`."""

    has_threads = True

    def __init__(self, vector_bytes: int = 16, registers: int = 16, threads: int = 1,
                 l1_bytes: int = Renderer.l1_bytes, l2_bytes: int = Renderer.l2_bytes) -> None:
        self.vector_bytes = vector_bytes
        self.registers = registers
        self.threads = threads
        self.l1_bytes = l1_bytes
        self.l2_bytes = l2_bytes

    def lanes(self, dtype: DType) -> int:
        """Bools and narrow floats count as float32: comparisons make the ones, arithmetic widens the rest."""
        as_float32 = dtype.is_bool or dtype.scalar in NARROW_FLOATS
        return self.vector_bytes // (4 if as_float32 else dtype.lane_size)
