"""Products with weights in blocks, in whole numbers: rows rounded to 8 bits, blocks of weights as they are.

`BlockWeights` are the whole numbers of a weight (`block_formats.Parts`) in words of four bytes, the words of
neighbouring rows side by side, 2, 4 or 8 bits an item; of 5 and 6 bits the upper ones are words of their own.
What scales them stays as it is stored. So most formats take the memory that they take in a file, and making
tokens one by one is reading memory. `RoundedRows` are the rows that they are multiplied with: stretches of 32
items, each a scale and whole numbers from -127 to 127, as llama.cpp rounds them. A product adds up whole
numbers within a stretch, exactly, and scales the sum: an ordinary graph of shifts, masks, products and sums,
in which the compiler finds dot products of bytes (`codegen/opt/byte_dots.py`). No float copy of the weights
exists, and each block is read once for a tile of rows.

What is lost is what rounding the rows loses: 1/254 of the largest item of each stretch at most.
"""
from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.helpers import round_up
from tinygrad.jit.jit import PureJit
from tinygrad.nn.block_formats import FORMATS, Packed, Scale, chosen
from tinygrad.tensor import Tensor

STRETCH = 32
"""Items of a row that are rounded with one scale."""
LARGEST = 127
TILES = (64, 32, 16)
"""Rows of weights whose words lie side by side: lanes of four vectors, or of one."""
WORD_BYTES = 4
EVERY_BYTE = 0x01010101
"""A word with a 1 in each byte."""


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

    def at(self, places: Tensor) -> RoundedRows:
        """Of rows (N, K) those at these places (...): (..., K)."""
        found = copy.copy(self)
        found.shape = (*places.shape, *self.shape[1:])
        found.scale, found.words = self.scale[places].contiguous(), self.words[places].contiguous()
        return found

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


@frozen
class Plane:
    """Which bits of an item's whole number are in the words of one tensor."""

    low: int
    """the first of them"""
    bits: int

    @property
    def fields(self) -> int:
        """Items in a byte."""
        return 8 // self.bits

    def words(self, numbers: Tensor) -> Tensor:
        """Whole numbers (..., items) as words (..., items * bits / 32): byte j of word w holds, from its
        lowest bits on, items 4 w + j of each of as many parts of the stretch as there are fields."""
        parts = ((numbers >> self.low) & ((1 << self.bits) - 1)).unflatten(-1, (self.fields, -1, WORD_BYTES))
        shifts = _shifts(numbers, self.fields, self.bits).reshape(-1, 1, 1) + _shifts(numbers, WORD_BYTES, 8)
        return (parts << shifts).sum((-1, -3)).cast(dtypes.uint32)

    def items(self, words: Tensor) -> Tensor:
        """Words (..., W, tile) with a field of this plane in each byte's lowest bits, and others above it:
        (..., fields, W, tile)."""
        return words.unsqueeze(-3) >> _shifts(words, self.fields, self.bits).reshape(-1, 1, 1)


def planes_of(format: str) -> tuple[Plane, ...]:
    """How whole numbers of a format are kept."""
    layout = FORMATS[format]
    bits = (layout.highest - layout.lowest).bit_length()
    if bits in (5, 6):
        return Plane(0, 4), Plane(4, bits - 4)
    return (Plane(0, next(n for n in (2, 4, 8) if bits <= n)),)


StoredScale: TypeAlias = "tuple[Tensor, Tensor | None]"
"""(unit, whole) of a `Scale`"""
Stored: TypeAlias = "tuple[tuple[Tensor, ...], StoredScale, StoredScale | None]"
"""words of each plane, steps, and least numbers"""


def _in_words(stored: Tensor, name: str, shape: tuple[int, ...]) -> Stored:
    """What `BlockWeights` of a format keep of blocks (bytes,), realised."""
    layout, (*experts, rows, columns) = FORMATS[name], shape
    parts = layout.parts(stored.reshape(-1, layout.size))
    tile = next((t for t in TILES if rows % t == 0), TILES[-1])
    padding = ((0, 0), (0, round_up(rows, tile) - rows), *[(0, 0)] * 3)

    def tiled(x: Tensor) -> Tensor:
        """(... * N * blocks, S, M) as (..., N / tile, blocks, S, M, tile)."""
        whole = x.reshape(-1, rows, columns // layout.items, *x.shape[1:]).pad(padding)
        whole = whole.unflatten(1, (-1, tile)).permute(0, 1, 3, 4, 5, 2)
        return whole.reshape(*experts, *whole.shape[1:])

    def scale(x: Scale) -> StoredScale:
        unit, whole = (None if of is None else tiled(of).squeeze(-2).contiguous() for of in (x.unit, x.whole))
        assert unit is not None
        return unit, whole

    numbers = (parts.items.cast(dtypes.int32) - layout.lowest).bitcast(dtypes.uint32)
    words = tuple(tiled(plane.words(numbers)).contiguous() for plane in planes_of(name))
    step, least = scale(parts.step), None if parts.least is None else scale(parts.least)
    Tensor.realize(*(x for x in (*words, *step, *(least or ())) if x is not None))
    return words, step, least


@frozen
class BlockWeights:
    """A weight (N, K), or (..., N, K) of several experts: its whole numbers, and what they stand for."""

    words: tuple[Tensor, ...]
    """of each plane (..., N / tile, blocks, stretches, words, tile), uint32"""
    step: Scale
    """(..., N / tile, blocks, 1, tile) and (..., N / tile, blocks, stretches, tile)"""
    least: Scale | None
    """the same"""
    format: str
    rows: int
    """N"""

    @staticmethod
    def takes(packed: Packed) -> bool:
        """Whether products with this weight can be in whole numbers."""
        return packed.format is not None and len(packed.shape) in (2, 3) and packed.shape[-1] % STRETCH == 0

    @staticmethod
    def of(packed: Packed) -> BlockWeights:
        """The same weight, on its device. Raises ValueError for one in no blocks."""
        if packed.format is None or not BlockWeights.takes(packed):
            raise ValueError(f"a weight of shape {packed.shape} in format {packed.format} has no blocks "
                             "of two or three axes")
        return BlockWeights._made(packed, *_in_words(packed.stored, packed.format, packed.shape))

    @staticmethod
    def of_all(weights: Mapping[str, Packed]) -> dict[str, BlockWeights]:
        """Many weights: those of one format and shape are computed by one trace."""
        traces: dict[Any, PureJit[..., Stored]] = {}
        found = {}
        for name, packed in weights.items():
            assert packed.format is not None
            kind = packed.format, packed.shape, str(packed.stored.device)
            if kind not in traces:
                traces[kind] = PureJit(partial(_in_words, name=packed.format, shape=packed.shape))
            found[name] = BlockWeights._made(packed, *traces[kind](packed.stored))
        return found

    @staticmethod
    def _made(packed: Packed, words: tuple[Tensor, ...], step: Any, least: Any) -> BlockWeights:
        assert packed.format is not None
        return BlockWeights(words, Scale(*step), None if least is None else Scale(*least), packed.format,
                            packed.shape[-2])

    def of_experts(self, numbers: Tensor) -> BlockWeights:
        """The weights of the experts of these numbers (...), which only a product reads: (..., N, K)."""
        def chosen(x: Scale) -> Scale:
            return Scale(x.unit[numbers], None if x.whole is None else x.whole[numbers])

        return replace(self, words=tuple(words[numbers] for words in self.words), step=chosen(self.step),
                       least=None if self.least is None else chosen(self.least))

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        scales = [x for of in (self.step, self.least) if of is not None for x in (of.unit, of.whole)]
        return sum(x.numel() * x.dtype.itemsize for x in (*self.words, *scales) if x is not None)

    @property
    def numbers(self) -> tuple[Tensor, int]:
        """Words with an item's whole number in each byte (..., N / tile, blocks, stretches, fields, words,
        tile), and the mask that leaves it there."""
        first, *upper = planes_of(self.format)
        found, mask = first.items(self.words[0]), (1 << first.bits) - 1
        for plane, words in zip(upper, self.words[1:], strict=True):
            more = plane.items(words) & EVERY_BYTE * ((1 << plane.bits) - 1)
            found = (found & EVERY_BYTE * mask) | (more.reshape(found.shape) << plane.low)
            mask |= mask << plane.bits
        return found, mask

    def product(self, rows: RoundedRows) -> Tensor:
        """Rows (..., K) times the weight: (..., N). Of weights of several experts each row's: their axes and
        the rows' are broadcast."""
        numbers, mask = self.numbers
        blocks, stretches, fields, width = numbers.shape[-5:-1]
        items, lead = fields * width * WORD_BYTES, rows.shape[:-1]
        given = rows.stretches(items).reshape(*lead, 1, blocks, stretches, fields, width, 1, 1)
        places = _shifts(numbers, WORD_BYTES, 8)
        mine, theirs = (numbers.unsqueeze(-1) >> places) & mask, (given >> places).cast(dtypes.int8)
        layout = FORMATS[self.format]
        lowest = min(layout.table, default=layout.lowest)
        if layout.table:
            mine = chosen(mine, [number - lowest for number in layout.table], dtypes.uint8)
        whole = (mine.cast(dtypes.int32) * theirs.cast(dtypes.int32)).sum((-1, -3, -4))
        scale, sums = (x.reshape(*lead, 1, blocks, stretches, 1)
                       for x in (rows.scales(items), rows.sums(items)))
        if lowest:
            whole = whole + sums.contiguous() * lowest
        result = whole.cast(dtypes.float32) * (self.step.value * scale)
        if self.least is not None:
            of_rows = (sums.cast(dtypes.float32) * scale).contiguous()
            result = result + self.least.value * of_rows
        return result.sum((-3, -2)).flatten(-2)[..., :self.rows]
