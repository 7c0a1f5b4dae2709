"""Matrix units: what one instruction of a warp multiplies, and which lane holds which element.

A unit computes d = a @ b + c for small tiles that the lanes of a warp hold together, each lane a few elements
of every tile in registers. Tiles have sides of powers of two, and in all units each bit of an element's row
and column is one bit of the lane's number or of the register's. So a layout is a table of bits, and
everything about a unit is data: the Opt that puts a contraction on it (`codegen/opt/matrix.py`), the
renderers and the PYTHON device read it from here.

Sources of the layouts: PTX ISA 8.5, section 9.7.14; AMD's "CDNA 3" and "RDNA 3 instruction set architecture"
and its matrix instruction calculator; the order of Metal's elements is that of `thread_elements()`.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen

Bit = tuple[str, int]
"""("l" or "r", number): a bit of the lane's number, or of the register's."""


@frozen
class Fragment:
    """A tile held by the lanes of a warp: what each bit of the row and of the column is, the lowest first."""

    rows: tuple[Bit, ...]
    columns: tuple[Bit, ...]

    @property
    def registers(self) -> int:
        """Elements that each lane holds."""
        return int(2 ** sum(letter == "r" for letter, _ in self.rows + self.columns))

    @property
    def transposed(self) -> Fragment:
        """The same elements as a tile with rows for columns."""
        return Fragment(self.columns, self.rows)

    def places(self, threads: int) -> tuple[Any, Any]:
        """(the row, the column) of every lane's elements, as arrays of shape (threads, registers)."""
        numbers = {"l": np.arange(threads)[:, None], "r": np.arange(self.registers)[None]}
        shape = (threads, self.registers)
        row, column = (sum(((numbers[letter] >> bit & 1) << i for i, (letter, bit) in enumerate(bits)),
                           np.zeros(shape, np.int64)) for bits in (self.rows, self.columns))
        return row, column


@frozen
class MatrixUnit:
    """One instruction: (m, k) times (k, n), of `source` elements, added to (m, n) of `result`."""

    name: str
    m: int
    n: int
    k: int
    threads: int
    """lanes of a warp"""
    source: DType
    result: DType
    a: Fragment
    """(m, k)"""
    b: Fragment
    """(k, n)"""
    c: Fragment
    """(m, n)"""
    rounds_to_tf32: bool = False
    """whether it looks at no more than 10 bits of a float32's fraction"""
    rate: int = 0
    """multiply-adds a cycle, of a unit that one core has for itself"""
    by_rows: bool = False
    """whether its tiles have registers of their own, filled from memory and stored there by rows"""
    in_shared: tuple[bool, bool] | None = None
    """of a unit that reads `a` and `b` from shared memory itself: whether each lies there in rows along k
    (else along its own side), of `SWIZZLED_ROW` bytes that are swizzled"""

    @property
    def depth_bits(self) -> tuple[Bit, ...]:
        """What each bit of an element's number along k is; of a unit that reads shared memory, as many that
        nobody asks for."""
        return tuple(("r", i) for i in range(self.k.bit_length() - 1)) if self.in_shared else self.a.columns

    @property
    def transposed(self) -> MatrixUnit:
        """The same unit said of transposed tiles: what it adds to the transpose of `c` is the product of the
        transpose of `b` and that of `a`."""
        return replace(self, m=self.n, n=self.m, a=self.b.transposed, b=self.a.transposed,
                       c=self.c.transposed, in_shared=self.in_shared and self.in_shared[::-1])

    @property
    def access_items(self) -> int:
        """Items of 16 bytes, which change places in such a row."""
        return self.row_items // 8

    @property
    def row_items(self) -> int:
        """Items of a swizzled row."""
        return SWIZZLED_ROW // self.source.itemsize

    def __repr__(self) -> str:
        return self.name


SWIZZLED_ROW = 128
"""Bytes of a row that a unit reads from shared memory. Of eight such rows one below the other, number i has
its accesses of 16 bytes in another order, their numbers XORed with i: whoever reads or writes some side by
side, along a row or across rows, finds them in different banks."""


def _bits(text: str) -> tuple[Bit, ...]:
    return tuple((word[0], int(word[1:])) for word in text.split())


def _fragment(rows: str, columns: str) -> Fragment:
    return Fragment(_bits(rows), _bits(columns))


# --- NVIDIA -------------------------------------------------------------------------------------------------

_PTX_RESULT = _fragment("l2 l3 l4 r1", "r0 l0 l1")
_PTX_SOURCES = {
    8: (_fragment("l2 l3 l4 r0", "l0 l1 r1"), _fragment("l0 l1 r0", "l2 l3 l4")),
    16: (_fragment("l2 l3 l4 r1", "r0 l0 l1 r2"), _fragment("r0 l0 l1 r1", "l2 l3 l4")),
    32: (_fragment("l2 l3 l4 r2", "r0 r1 l0 l1 r3"), _fragment("r0 r1 l0 l1 r2", "l2 l3 l4")),
}
"""Of tiles with k columns: registers of 32 bits hold neighbours along k."""


def _ptx(k: int, source: DType, result: DType, word: str, rounds_to_tf32: bool = False) -> MatrixUnit:
    return MatrixUnit(f"mma_m16n8k{k}_{word}", 16, 8, k, 32, source, result, *_PTX_SOURCES[k], _PTX_RESULT,
                      rounds_to_tf32)


MMA_SYNC = (
    _ptx(16, dtypes.bfloat16, dtypes.float32, "bf16"),
    _ptx(16, dtypes.float16, dtypes.float32, "f16"),
    _ptx(32, dtypes.int8, dtypes.int32, "s8"),
    _ptx(8, dtypes.float32, dtypes.float32, "tf32", rounds_to_tf32=True),
)
"""`mma.sync` of sm_80 and later."""

WGMMA_COLUMNS = (256, 128, 64)
"""Of the tiles that are used: a warp group has half as many accumulators a thread."""


def _wgmma(source: DType, word: str, n: int, in_shared: tuple[bool, bool]) -> MatrixUnit:
    """Four instructions along k, a row of 128 bytes."""
    registers = " ".join(f"r{i}" for i in range(2, n.bit_length() - 2))
    sides = "".join("k" if along_k else side for along_k, side in zip(in_shared, "mn", strict=True))
    return MatrixUnit(f"wgmma_m64n{n}k64_{word}_{sides}", 64, n, 64, 128, source, dtypes.float32,
                      Fragment((), ()), Fragment((), ()),
                      _fragment("l2 l3 l4 r1 l5 l6", f"r0 l0 l1 {registers}"), in_shared=in_shared)


WGMMA = tuple(_wgmma(source, word, n, (left, right))
              for source, word in ((dtypes.bfloat16, "bf16"), (dtypes.float16, "f16"))
              for n in WGMMA_COLUMNS for left in (True, False) for right in (True, False))
"""`wgmma.mma_async` of sm_90a: 128 threads, operands in shared memory (PTX ISA 8.5, section 9.7.15)."""

# --- AMD ----------------------------------------------------------------------------------------------------

_MFMA_SIDES = {
    32: (_fragment("l0 l1 l2 l3 l4", "r0 r1 l5"), _fragment("r0 r1 l5", "l0 l1 l2 l3 l4"),
         _fragment("r0 r1 l5 r2 r3", "l0 l1 l2 l3 l4")),
    16: (_fragment("l0 l1 l2 l3", "r0 r1 l4 l5"), _fragment("r0 r1 l4 l5", "l0 l1 l2 l3"),
         _fragment("r0 r1 l4 l5", "l0 l1 l2 l3")),
}


def _mfma(side: int, k: int, source: DType, word: str) -> MatrixUnit:
    return MatrixUnit(f"mfma_f32_{side}x{side}x{k}{word}", side, side, k, 64, source, dtypes.float32,
                      *_MFMA_SIDES[side])


MFMA = (
    _mfma(32, 8, dtypes.bfloat16, "bf16_1k"), _mfma(16, 16, dtypes.bfloat16, "bf16_1k"),
    _mfma(32, 8, dtypes.float16, "f16"), _mfma(16, 16, dtypes.float16, "f16"),
)
"""Of gfx942, with 64 lanes."""

_WMMA_TILES = (_fragment("l0 l1 l2 l3", "r0 r1 r2 r3"), _fragment("r0 r1 r2 r3", "l0 l1 l2 l3"),
               _fragment("l4 r0 r1 r2", "l0 l1 l2 l3"))
"""Both halves of the warp hold the same sources."""
WMMA = tuple(MatrixUnit(f"wmma_f32_16x16x16_{word}_w32", 16, 16, 16, 32, source, dtypes.float32, *_WMMA_TILES)
             for source, word in ((dtypes.bfloat16, "bf16"), (dtypes.float16, "f16")))
"""Of gfx1100, with 32 lanes."""

# --- Apple --------------------------------------------------------------------------------------------------

_SIMDGROUP_TILE = _fragment("l1 l2 l4", "r0 l0 l3")
SIMDGROUP = (MatrixUnit("simdgroup_8x8x8", 8, 8, 8, 32, dtypes.float32, dtypes.float32,
                        _SIMDGROUP_TILE, _SIMDGROUP_TILE, _SIMDGROUP_TILE),)
"""`simdgroup_multiply_accumulate` of Metal, in full float32: narrower sources are widened."""

# --- x86 ----------------------------------------------------------------------------------------------------

DOT_BF16 = MatrixUnit("dpbf16ps", 1, 16, 2, 1, dtypes.bfloat16, dtypes.float32,
                      _fragment("", "r0"), _fragment("r0", "r1 r2 r3 r4"), _fragment("", "r0 r1 r2 r3"),
                      rate=32)
"""AVX-512 BF16's dot products of pairs, of one core: it takes denormal numbers for zero."""


ROW_BYTES = 64
"""A row of AMX's tiles, of which there are 16."""


def _amx(name: str, source: DType, result: DType) -> MatrixUnit:
    """`a` as it is; of `b` as many neighbours along k side by side as fill 32 bits, then the next column."""
    k = ROW_BYTES // source.itemsize
    depth, word = k.bit_length() - 1, (4 // source.itemsize).bit_length() - 1
    registers = [f"r{i}" for i in range(depth + 4)]
    a = _fragment(" ".join(registers[depth:]), " ".join(registers[:depth]))
    b = _fragment(" ".join(registers[:word] + registers[word + 4:]), " ".join(registers[word:word + 4]))
    return MatrixUnit(name, 16, 16, k, 1, source, result, a, b, _fragment("r4 r5 r6 r7", "r0 r1 r2 r3"),
                      rate=16 * k, by_rows=True)


AMX = (_amx("tdpbf16ps", dtypes.bfloat16, dtypes.float32), _amx("tdpbssd", dtypes.int8, dtypes.int32))
"""Tiles of one core, of which a product takes 16 cycles. That of bfloat16 takes denormal numbers for zero."""

UNITS: tuple[MatrixUnit, ...] = (*MMA_SYNC, *MFMA, *WMMA, *SIMDGROUP, DOT_BF16, *AMX, *WGMMA)
"""All units; an Opt names one by its number."""
