"""Products with weights in blocks, in whole numbers: rows rounded to 8 bits, blocks of weights as they are.

`BlockWeights` are the whole numbers of a weight (`block_formats.Parts`) in words of four bytes, the words of
neighbouring rows side by side: 4 bits an item where the format has no more, else 8. `RoundedRows` are the
rows that they are multiplied with: stretches of 32 items, each a scale and whole numbers from -127 to 127, as
llama.cpp rounds them. A product adds up whole numbers within a stretch, exactly, and scales the sum: an
ordinary graph of shifts, masks, products and sums, in which the compiler finds dot products of bytes
(`codegen/opt/byte_dots.py`). No float copy of the weights exists, and each block is read once for a tile of
rows.

What is lost is what rounding the rows loses: 1/254 of the largest item of each stretch at most.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import round_up
from tinygrad.jit.jit import PureJit
from tinygrad.nn.block_formats import FORMATS, Packed
from tinygrad.tensor import Tensor

STRETCH = 32
"""Items of a row that are rounded with one scale."""
LARGEST = 127
TILES = (64, 32, 16)
"""Rows of weights whose words lie side by side: lanes of four vectors, or of one."""
HALF_BITS, WORD_BYTES = 4, 4


def _shifts(like: Tensor, count: int, bits: int) -> Tensor:
    return Tensor.arange(count, device=like.device, dtype=dtypes.uint32) * bits


class RoundedRows:
    """Rows (..., K) of floats as whole numbers of 8 bits in words, and a scale for each stretch of 32."""

    def __init__(self, x: Tensor) -> None:
        self.shape = x.shape
        items = x.unflatten(-1, (-1, STRETCH // WORD_BYTES, WORD_BYTES))
        largest = items.abs().max((-1, -2), keepdim=True)
        scale = (largest * (1 / LARGEST)).contiguous()
        inverse = (scale == 0).where(0, 1 / scale)
        words = None
        for place in range(WORD_BYTES):
            rounded = (items[..., place] * inverse.squeeze(-1)).round().cast(dtypes.int32)
            word = (rounded & 255).bitcast(dtypes.uint32) << (8 * place)
            words = word if words is None else words | word
        assert words is not None
        self.scale = scale.squeeze(-1).squeeze(-1)
        """(..., K / 32)"""
        self.words = words.contiguous()
        """(..., K / 32, 8)"""

    def stretches(self, items: int) -> Tensor:
        """The words of stretches of so many items (..., K / items, items / 4)."""
        return self.words.flatten(-2).unflatten(-1, (-1, items // WORD_BYTES))

    def scales(self, items: int) -> Tensor:
        """The scale of each stretch of so many items (..., K / items)."""
        scale = self.scale.unsqueeze(-1)
        return scale.expand(*scale.shape[:-1], STRETCH // items).flatten(-2)

    def sums(self, items: int) -> Tensor:
        """The sums of whole numbers of such stretches (..., K / items), int32."""
        bytes_ = self.stretches(items).unsqueeze(-1) >> _shifts(self.words, WORD_BYTES, 8)
        return bytes_.cast(dtypes.int8).cast(dtypes.int32).sum((-1, -2))


def _bits(name: str) -> int:
    """Bits of an item of a format among the words."""
    layout = FORMATS[name]
    return HALF_BITS if layout.highest - layout.lowest < 1 << HALF_BITS else 8


def _in_words(stored: Tensor, name: str, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The words, steps and least numbers of `BlockWeights`, realised, of blocks (bytes,) of a format."""
    layout, bits = FORMATS[name], _bits(name)
    parts = layout.parts(stored.reshape(-1, layout.size))
    tile = next((t for t in TILES if rows % t == 0), TILES[-1])
    fields, stretches = 8 // bits, rows * columns // int(parts.items.shape[-1])
    padding = ((0, round_up(rows, tile) - rows), (0, 0), (0, 0))

    def tiled(x: Tensor) -> Tensor:
        """(N, K / items, M) as (N / tile, tile, K / items, M)."""
        return x.reshape(rows, -1, x.numel() // stretches).pad(padding).unflatten(0, (-1, tile))

    numbers = (parts.items.cast(dtypes.int32) - layout.lowest).bitcast(dtypes.uint32)
    halves = tiled(numbers).unflatten(-1, (fields, -1, WORD_BYTES))
    shifts = _shifts(numbers, WORD_BYTES, 8) + _shifts(numbers, fields, bits).reshape(fields, 1, 1)
    words = (halves << shifts).sum((-1, -3)).permute(0, 2, 3, 1).cast(dtypes.uint32).contiguous()
    kind = dtypes.float16 if layout.items == STRETCH and name != "MXFP4" else dtypes.float32
    step, least = (None if x is None else tiled(x).squeeze(-1).permute(0, 2, 1).cast(kind).contiguous()
                   for x in (parts.step, parts.least))
    assert step is not None
    Tensor.realize(*(x for x in (words, step, least) if x is not None))
    return words, step, least


@dataclass(frozen=True)
class BlockWeights:
    """A weight (N, K): its whole numbers, and what they stand for."""

    words: Tensor
    """(N / tile, K / items, words, tile), uint32: byte j of word w holds item 4 w + j of the stretch, and in
    its upper half that of the second half of the stretch"""
    step: Tensor
    """(N / tile, K / items, tile)"""
    least: Tensor | None
    """the same"""
    zero: int
    """what is 0 among the whole numbers"""
    bits: int
    items: int
    """of a stretch"""
    shape: tuple[int, int]

    @staticmethod
    def takes(packed: Packed) -> bool:
        """Whether products with this weight can be in whole numbers."""
        return packed.format is not None and len(packed.shape) == 2 and packed.shape[1] % STRETCH == 0

    @staticmethod
    def of(packed: Packed) -> BlockWeights:
        """The same weight, on its device. Raises ValueError for one in no blocks."""
        if packed.format is None or not BlockWeights.takes(packed):
            raise ValueError(f"a weight of shape {packed.shape} in format {packed.format} has no blocks "
                             "of two axes")
        words, step, least = _in_words(packed.stored, packed.format, *packed.shape)
        return BlockWeights._made(packed, words, step, least)

    @staticmethod
    def of_all(weights: Mapping[str, Packed]) -> dict[str, BlockWeights]:
        """Many weights: those of one format and shape are computed by one trace."""
        traces: dict[Any, PureJit[..., tuple[Tensor, Tensor, Tensor | None]]] = {}
        found = {}
        for name, packed in weights.items():
            assert packed.format is not None
            kind = packed.format, packed.shape, str(packed.stored.device)
            if kind not in traces:
                traces[kind] = PureJit(partial(_in_words, name=packed.format, rows=packed.shape[0],
                                               columns=packed.shape[1]))
            found[name] = BlockWeights._made(packed, *traces[kind](packed.stored))
        return found

    @staticmethod
    def _made(packed: Packed, words: Tensor, step: Tensor, least: Tensor | None) -> BlockWeights:
        assert packed.format is not None
        layout, (rows, columns) = FORMATS[packed.format], packed.shape
        return BlockWeights(words, step, least, -layout.lowest, _bits(packed.format),
                            columns // int(words.shape[1]), (rows, columns))

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return sum(x.numel() * x.dtype.itemsize for x in (self.words, self.step, self.least) if x is not None)

    def product(self, rows: RoundedRows) -> Tensor:
        """Rows (..., K) times the weight: (..., N)."""
        fields, lead = 8 // self.bits, len(rows.shape) - 1
        stretches = rows.stretches(self.items).unflatten(-1, (fields, -1))
        given = stretches.reshape(*stretches.shape[:lead], 1, *stretches.shape[lead:], 1, 1)
        shifts = _shifts(self.words, fields, self.bits).reshape(fields, 1, 1, 1)
        places = _shifts(self.words, WORD_BYTES, 8)
        mine = (self.words.unsqueeze(-1).unsqueeze(2) >> (shifts + places)) & ((1 << self.bits) - 1)
        theirs = (given >> places).cast(dtypes.int8)
        whole = (mine.cast(dtypes.int32) * theirs.cast(dtypes.int32)).sum((-1, -3, -4))
        scale, sums = (self.beside(x) for x in (rows.scales(self.items), rows.sums(self.items)))
        if self.zero:
            whole = whole - sums.contiguous() * self.zero
        result = whole.cast(dtypes.float32) * (self.step.cast(dtypes.float32) * scale)
        if self.least is not None:
            of_rows = (sums.cast(dtypes.float32) * scale).contiguous()
            result = result + self.least.cast(dtypes.float32) * of_rows
        return result.sum(-2).flatten(-2)[..., :self.shape[0]]

    def beside(self, x: Tensor) -> Tensor:
        """A number for each stretch of a row (..., K / items) beside tiles of weights."""
        return x.unsqueeze(-2).unsqueeze(-1)
