"""`Machine`: what a device offers its kernels, as numbers, from the grid of blocks down to a vector register.

Plans are chosen by nothing else of a device (`codegen/opt/`), so a machine that is not there can be planned
for by its description. There are two kinds: cores that run loops, with vectors and caches (`cores`), and
grids of blocks of threads, with memory that a block shares (`blocks`).
"""
from __future__ import annotations

from math import gcd
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.helpers import round_up
from tinygrad.renderer.launch import ACCESS_BYTES
from tinygrad.renderer.matrix_units import MatrixUnit

NARROW_FLOATS = frozenset({dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.bfloat16, dtypes.float16})
"""Types to store numbers in; arithmetic on them is done in float32 and rounded after each operation."""
BUSY_ENOUGH = 0.9
"""How much of the time cores should work."""
ACCESS_LANES = 4
"""Items of a wide load or store of a block's thread, as languages have vectors."""
WORD_BYTES, SECTOR_BYTES = 4, 32
"""What a thread loads at least to keep memory busy, and what is read of it together."""
WIDE_FLOATS = frozenset({dtypes.float32, dtypes.float64})


@frozen
class Machine:
    """The levels of a device, outermost first; sizes in bytes."""

    has_blocks: bool = False
    """whether kernels run as a grid of blocks of threads, with memory that a block shares and barriers"""
    grid_limits: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """the most blocks along each axis, the fastest first"""
    multiprocessors: int = 128
    """what runs several blocks at once; large GPUs have about so many (an H200 132), drivers say it"""
    threads: int = 1
    """cores over which a THREAD range may be shared out"""
    l3_bytes: int = 0
    """the last cache, of all cores, where stores can go past it; else 0"""
    l2_bytes: int = 512 << 10
    """the one before it, of each core"""
    l1_bytes: int = 32 << 10
    """the one closest to a core"""
    line_bytes: int = 64
    """a line of these"""
    page_bytes: int = 4096
    """a page of memory, at whose end a core stops to fetch lines ahead by itself"""
    l3_rate: int = 20
    """what a core reads of the last cache in a cycle, in which it multiplies two vectors (Zen 3: a sum over 3
    MB at 64 GB/s)"""
    shared_bytes: int = 32 << 10
    """memory that a block shares"""
    has_async_copies: bool = False
    """whether threads copy from buffers into shared memory while they go on"""
    block_threads: int = 256
    """the most threads that a plan puts into a block"""
    warp_threads: int = 32
    """neighbouring threads of a block that run in step"""
    has_exchange: bool = False
    """whether the lanes of a warp read each other's registers"""
    registers: int = 16
    """vector registers of a core"""
    vector_bytes: int = 16
    """of one of them"""
    vector_items: int | None = None
    """items of one, whatever their type; None: as many as it has room for"""
    least_item_bytes: int = 1
    """bytes that an item counts as at least where vectors are filled"""
    thread_registers: int = 256
    """of 4 bytes, of a block's thread"""
    longest_access: int = ACCESS_LANES
    """items that one access of a block's thread moves at most, if they are no more than `ACCESS_BYTES`"""
    matrix_units: tuple[MatrixUnit, ...] = ()
    """what a core, or the lanes of a warp together, multiply in one instruction, the best first"""
    has_byte_dots: bool = False
    """whether there is DP4A, the dot product of four bytes, added to an int32"""
    contracts: bool = True
    """whether a product added to a sum, rounded once, costs less than rounding both"""
    missing: frozenset[DType] = frozenset()
    """dtypes that the device cannot compute with"""

    @property
    def busy_blocks(self) -> int:
        """Blocks of threads that keep the device busy, one for two multiprocessors: outputs beyond need no
        help of more threads each."""
        return max(1, self.multiprocessors // 2)

    @property
    def busy_threads(self) -> int:
        """The threads of these."""
        return self.busy_blocks * self.block_threads

    @property
    def tiled_blocks(self) -> int:
        """Blocks with tiles that keep it busy; with fewer, tiles are made smaller."""
        return max(1, self.multiprocessors * 3 // 4)

    @property
    def blocks_at_once(self) -> int:
        """Blocks of 256 threads that run at once, eight on each multiprocessor."""
        return 8 * self.multiprocessors

    @property
    def row_items(self) -> int:
        """Items of rows that a thread keeps: in a quarter of its registers."""
        return self.thread_registers // 4

    @property
    def register_row(self) -> int:
        """Items of the longest row that a block keeps in registers."""
        return self.block_threads * self.row_items

    @property
    def accumulators(self) -> int:
        """Three quarters of a core's registers. The others hold the operands of a tile's short side, and some
        of its long side, which is walked: LLVM loads a few of them ahead (of 32 registers 12 x 2 fit, 13 x 2
        spill; 4 x 3 fit 16)."""
        return self.registers * 3 // 4

    def tile_rows(self, vectors: int) -> int:
        """Rows of a tile so many vectors wide whose accumulators and operands fit the registers."""
        return max(1, self.accumulators // vectors)

    def lines_held(self, apart: int) -> int:
        """Lines so many bytes apart that the first cache holds at once. It is indexed by the address in a
        page: of lines that are pages apart it has as many as of every other, its ways."""
        return self.l1_bytes // gcd(apart, self.page_bytes)

    @property
    def near_bytes(self) -> int:
        """What one operand may fill of the L2 cache. Others pass through the rest, and what they push out
        comes from the cache behind it each time (512 KB, 3 x 3 of 256 x 14 x 14, in tiles of 4 vectors by 3
        rows: 70 GFLOP/s on a core; of 2 by 6: 86)."""
        return self.l2_bytes // 2

    def busy_share(self, count: int) -> float:
        """How much of the time cores work that share out so many pieces: none finishes before the one that
        has most of them."""
        return count / round_up(count, self.threads)

    def is_busy(self, count: int) -> bool:
        """Whether that is nearly all of it (5 images on two threads: 0.83; 3 tiles: 0.75)."""
        return self.busy_share(count) >= BUSY_ENOUGH

    def __str__(self) -> str:
        if self.has_blocks:
            return f"blocks of {self.block_threads} threads"
        units = "".join(f", {unit}" for unit in self.matrix_units)
        return (f"{self.threads} thread{'s' * (self.threads > 1)}, {self.registers} vector registers of "
                f"{self.lanes(dtypes.float32)} float32{units}")

    def lanes(self, dtype: DType) -> int:
        """Values of `dtype` in one vector; of a block's thread, as many as one access moves, up to four.
        Bools and narrow floats count as float32: comparisons make the ones, arithmetic widens the rest."""
        if self.vector_items is not None:
            return self.vector_items
        if self.has_blocks:
            return max(1, min(ACCESS_LANES, ACCESS_BYTES // dtype.lane_size))
        as_float32 = dtype.is_bool or dtype.scalar in NARROW_FLOATS
        return self.vector_bytes // max(self.least_item_bytes, 4 if as_float32 else dtype.lane_size)

    def access_lanes(self, dtype: DType) -> int:
        """Items of `dtype` that one access of a block's thread moves."""
        return max(1, min(self.longest_access, ACCESS_BYTES // dtype.lane_size))


def cores(vector_bytes: int = 16, registers: int = 16, threads: int = 1, **more: Any) -> Machine:
    """Cores that run loops, with `registers` vector registers of `vector_bytes`; the rest as in `Machine`."""
    return Machine(threads=threads, registers=registers, vector_bytes=vector_bytes, **more)


def blocks(block_threads: int = 256, shared_bytes: int = 32 << 10, **more: Any) -> Machine:
    """A grid of blocks of so many threads that share so much memory; the rest as in `Machine`."""
    return Machine(has_blocks=True, block_threads=block_threads, shared_bytes=shared_bytes, **more)
