"""Weights in blocks: 32 or 256 items of a row as a few bits each, with the scales that they share.

These are the formats of GGUF files. What comes in are bytes, as a uint8 tensor; what goes out is the ordinary
graph that gives their values in float32 (shifts, masks, a product with the scale), lazy, so that it is
computed where it is read. Each gives bit for bit what the `gguf` package gives: products and sums are written
in the same order. `quantized` goes the other way, on the host, for the formats that are written.

Within a block, a byte that holds several items holds them a stretch apart: the low halves of 16 bytes are
items 0 to 15, their high halves items 16 to 31. `_fields` says that for every width.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]
LONG = 256
"""Items of a block of the K formats."""
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 4 bits of IQ4_NL and IQ4_XS stand for."""
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What those of MXFP4 stand for, a sign, two bits of exponent and one of mantissa, doubled."""


@frozen
class Scale:
    """A number for each of S stretches of a block: a float of the block, times a small whole number of the
    stretch where the format has one."""

    unit: Tensor
    """(N, 1, 1); as uint8 the exponent of a power of two (E8M0), halved"""
    whole: Tensor | None = None
    """(N, S, 1)"""

    @property
    def value(self) -> Tensor:
        """(N, S, 1) or (N, 1, 1), in float32."""
        unit = _half_power(self.unit) if self.unit.dtype is dtypes.uint8 else _float(self.unit)
        return unit if self.whole is None else unit * _float(self.whole)


@frozen
class Parts:
    """What blocks hold: whole numbers (N, S, items / S), what those of a stretch are times, and what is added
    then, if there is something."""

    step: Scale
    items: Tensor
    least: Scale | None = None

    @property
    def values(self) -> Tensor:
        """The numbers that the blocks stand for, (N, items) in float32."""
        found = self.step.value * _float(self.items)
        return (found if self.least is None else found + self.least.value).flatten(1)


@frozen
class BlockFormat:
    """How `items` values lie in `size` bytes, and the graph that takes them apart: blocks (N, size) as uint8
    to `Parts`, whose whole numbers are from `lowest` to `highest`."""

    code: int
    items: int
    size: int
    parts: Callable[[Tensor], Parts]
    lowest: int
    highest: int
    table: tuple[int, ...] = ()
    """what the whole numbers are places in, where they are that"""

    def values(self, blocks: Tensor) -> Tensor:
        """Blocks (N, size) as uint8 to (N, items) in float32."""
        parts = self.parts(blocks)
        return (replace(parts, items=chosen(parts.items, self.table)) if self.table else parts).values


# --- parts of a block -------------------------------------------------------------------------------------


def _fields(packed: Tensor, bits: int) -> Tensor:
    """Bytes (..., M) as the fields of `bits` that they hold, lowest first: (..., 8 / bits, M)."""
    count = 8 // bits
    return (packed.unsqueeze(-2) >> _counter(packed, count).reshape(count, 1) * bits) & ((1 << bits) - 1)


def _within(packed: Tensor, bits: int, count: int) -> Tensor:
    """Bytes (N, M) as the lowest `count` fields of `bits` of each, side by side: (N, M * count)."""
    fields = (packed.unsqueeze(-1) >> _counter(packed, count) * bits) & ((1 << bits) - 1)
    return fields.flatten(1)


def _counter(like: Tensor, count: int) -> Tensor:
    return Tensor.arange(count, device=like.device, dtype=dtypes.uint8)


def _float(x: Tensor) -> Tensor:
    return x.cast(dtypes.float32)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at this byte of each block (N, 1, 1)."""
    return blocks[:, at:at + 2].bitcast(dtypes.float16).unsqueeze(1)


def _half_power(exponent: Tensor) -> Tensor:
    """Half the powers of two of these exponents, which are 127 more."""
    power = exponent.cast(dtypes.uint32)
    least = power.full_like(0x00200000) << (power & 1)  # 2^-128 and 2^-127 have no leading bit
    return (power < 2).where(least, (power - 1) << 23).bitcast(dtypes.float32)


def _around(x: Tensor, middle: int) -> Tensor:
    """Unsigned fields around 0."""
    return x.cast(dtypes.int8) - middle


def _of_one_step(step: Tensor, items: Tensor, least: Tensor | None = None) -> Parts:
    """A step (N, 1, 1) and items (N, M): one stretch."""
    return Parts(Scale(step), items.unsqueeze(1), None if least is None else Scale(least))


def chosen(places: Tensor, table: Sequence[int], dtype: DType = dtypes.int8) -> Tensor:
    """16 numbers of 8 bits by their place: four words of four bytes, one of them shifted."""
    first, second, third, fourth = (
        Tensor.full(places.shape, word, dtype=dtypes.uint32, device=places.device)
        for word in np.array(table, dtype.numpy).view("<u4").tolist())
    word = (places < 8).where((places < 4).where(first, second), (places < 12).where(third, fourth))
    return (word >> ((places & 3) << 3).cast(dtypes.uint32)).cast(dtypes.uint8).bitcast(dtype)


# --- 32 items ---------------------------------------------------------------------------------------------


def _nibbles(blocks: Tensor, at: int) -> Tensor:
    """The 32 items of 4 bits in the 16 bytes from `at` on."""
    return _fields(blocks[:, at:at + 16], 4).reshape(-1, 32)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Bit 4 of each of 32 items, from four bytes: item i is bit i."""
    return _within(blocks[:, at:at + 4], 1, 8) << 4


def _q4_0(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), _around(_nibbles(blocks, 2), 8))


def _q4_1(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), _nibbles(blocks, 4), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), _around(_nibbles(blocks, 6) | _fifth_bits(blocks, 2), 16))


def _q5_1(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), _nibbles(blocks, 8) | _fifth_bits(blocks, 4), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), blocks[:, 2:].bitcast(dtypes.int8))


def _iq4_nl(blocks: Tensor) -> Parts:
    return _of_one_step(_half(blocks, 0), _nibbles(blocks, 2))


def _mxfp4(blocks: Tensor) -> Parts:
    return _of_one_step(blocks[:, :1].unsqueeze(1), _nibbles(blocks, 1))


# --- 256 items --------------------------------------------------------------------------------------------


def _q2_k(blocks: Tensor) -> Parts:
    scales = blocks[:, :16].unsqueeze(-1)
    step, least = Scale(_half(blocks, 80), scales & 15), Scale(-_half(blocks, 82), scales >> 4)
    return Parts(step, _fields(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16), least)


def _q3_k(blocks: Tensor) -> Parts:
    low = _fields(blocks[:, 96:104], 4).reshape(-1, 16)
    high = _fields(blocks[:, 104:108], 2).reshape(-1, 16)
    step = Scale(_half(blocks, 108), _around(low | (high << 4), 32).unsqueeze(-1))
    low = _fields(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).cast(dtypes.int8)
    missing = (_fields(blocks[:, :32], 1) ^ 1).reshape(-1, 16, 16) << 2  # a set bit takes nothing off
    return Parts(step, low - missing.cast(dtypes.int8))


def _scales_and_minima(blocks: Tensor) -> tuple[Scale, Scale]:
    """The eight steps and eight minima of Q4_K and Q5_K: 6 bits of each in 12 bytes."""
    first, second, third = (blocks[:, at:at + 4] for at in (4, 8, 12))
    scales = (first & 63).cat((third & 15) | ((first >> 2) & 48), dim=-1)
    minima = (second & 63).cat((third >> 4) | ((second >> 2) & 48), dim=-1)
    return Scale(_half(blocks, 0), scales.unsqueeze(-1)), Scale(-_half(blocks, 2), minima.unsqueeze(-1))


def _q4_k(blocks: Tensor) -> Parts:
    step, least = _scales_and_minima(blocks)
    return Parts(step, _fields(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32), least)


def _q5_k(blocks: Tensor) -> Parts:
    step, least = _scales_and_minima(blocks)
    low = _fields(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return Parts(step, low | (_fields(blocks[:, 16:48], 1) << 4), least)


def _q6_k(blocks: Tensor) -> Parts:
    step = Scale(_half(blocks, 208), blocks[:, 192:208].bitcast(dtypes.int8).unsqueeze(-1))
    low = _fields(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    return Parts(step, _around(low | (high << 4), 32).reshape(-1, 16, 16))


def _iq4_xs(blocks: Tensor) -> Parts:
    scales = _around(_within(blocks[:, 4:8], 4, 2) | (_within(blocks[:, 2:4], 2, 4) << 4), 32)
    step = Scale(_half(blocks, 0), scales.unsqueeze(-1))
    items = _fields(blocks[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)
    return Parts(step, items)


FORMATS = {
    "Q4_0": BlockFormat(2, 32, 18, _q4_0, -8, 7),
    "Q4_1": BlockFormat(3, 32, 20, _q4_1, 0, 15),
    "Q5_0": BlockFormat(6, 32, 22, _q5_0, -16, 15),
    "Q5_1": BlockFormat(7, 32, 24, _q5_1, 0, 31),
    "Q8_0": BlockFormat(8, 32, 34, _q8_0, -128, 127),
    "Q2_K": BlockFormat(10, LONG, 84, _q2_k, 0, 3),
    "Q3_K": BlockFormat(11, LONG, 110, _q3_k, -4, 3),
    "Q4_K": BlockFormat(12, LONG, 144, _q4_k, 0, 15),
    "Q5_K": BlockFormat(13, LONG, 176, _q5_k, 0, 31),
    "Q6_K": BlockFormat(14, LONG, 210, _q6_k, -32, 31),
    "IQ4_NL": BlockFormat(20, 32, 18, _iq4_nl, 0, 15, IQ4_VALUES),
    "IQ4_XS": BlockFormat(23, LONG, 136, _iq4_xs, 0, 15, IQ4_VALUES),
    "MXFP4": BlockFormat(39, 32, 17, _mxfp4, 0, 15, E2M1_VALUES),
}
"""By the names that GGUF files and their programs use, with the codes in the files."""


@frozen
class Packed:
    """A weight as it is stored: its bytes (uint8, of one axis) in blocks of a format, or its items (`format`
    is None)."""

    stored: Tensor
    format: str | None
    shape: tuple[int, ...]

    @property
    def value(self) -> Tensor:
        """The weight, lazy: float32 where it is in blocks, else of the type it is stored in."""
        if self.format is None:
            return self.stored.reshape(self.shape)
        layout = FORMATS[self.format]
        return layout.values(self.stored.reshape(-1, layout.size)).reshape(self.shape)

    def to(self, device: str) -> Packed:
        """The same on another device, lazily: realise what is `stored` there, so that it is read from then
        on."""
        return Packed(self.stored.to(device), self.format, self.shape)

    def picked(self, places: Tensor) -> Tensor:
        """The items of the first axis at these places (...): (..., shape[1:]). Only those are read."""
        rows = self.stored.reshape(self.shape[0], -1)[places]
        if self.format is None:
            return rows.reshape(*places.shape, *self.shape[1:])
        layout = FORMATS[self.format]
        return layout.values(rows.reshape(-1, layout.size)).reshape(*places.shape, *self.shape[1:])


def dequantized(blocks: Tensor, format: str) -> Tensor:
    """Rows of blocks as float32, lazily: (..., bytes) of dtype uint8 to (..., items).

    Raises ValueError for a format that is not known and for rows that hold no whole blocks, TypeError for
    another dtype.
    """
    layout = layout_of(format)
    if blocks.dtype is not dtypes.uint8:
        raise TypeError(f"blocks are a uint8 tensor, got {blocks.dtype.name}")
    if not blocks.shape or blocks.shape[-1] % layout.size:
        raise ValueError(f"rows of {format} take blocks of {layout.size} bytes, got shape {blocks.shape}")
    shape = (*blocks.shape[:-1], blocks.shape[-1] // layout.size * layout.items)
    return layout.values(blocks.reshape(-1, layout.size)).reshape(shape)


def layout_of(format: str) -> BlockFormat:
    """The format of this name. Raises ValueError for a name that none has."""
    if format not in FORMATS:
        raise ValueError(f"{format!r} is no format of blocks; known are {', '.join(FORMATS)}")
    return FORMATS[format]


# --- the other way ----------------------------------------------------------------------------------------


def _inverse(scale: Array) -> Array:
    """1 / scale, and 0 for 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _as_bytes(x: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(dtype.numpy).view(np.uint8)


def _to_q4_0(blocks: Array) -> Array:
    """The item farthest from 0 becomes -8 steps."""
    farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    scale = farthest / np.float32(-8)
    items = (blocks * _inverse(scale) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    halves = items[:, :16] | items[:, 16:] << np.uint8(4)
    return np.concatenate([_as_bytes(scale, dtypes.float16), halves], -1)


def _to_q8_0(blocks: Array) -> Array:
    """The item farthest from 0 becomes 127 steps; halves are rounded away from 0."""
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    steps = blocks * _inverse(scale)
    whole = np.trunc(steps)
    items = whole + np.trunc(2 * (steps - whole))
    return np.concatenate([_as_bytes(scale, dtypes.float16), _as_bytes(items, dtypes.int8)], -1)


_WRITERS: dict[str, Callable[[Array], Array]] = {"Q4_0": _to_q4_0, "Q8_0": _to_q8_0}
ROWS_AT_ONCE = 1 << 16
"""Blocks that are quantised at once: a few megabytes of temporaries."""


def quantized(weights: Array, format: str) -> Array:
    """Rows of numbers (..., items) as blocks of a format (..., bytes), nearest to them as `ggml` rounds.

    Raises ValueError for a format that cannot be written, for rows that are no multiple of a block and for
    numbers that are not finite.
    """
    if format not in _WRITERS:
        raise ValueError(f"{format!r} cannot be written; these can: {', '.join(_WRITERS)}")
    layout = FORMATS[format]
    if not weights.ndim or weights.shape[-1] % layout.items:
        raise ValueError(f"rows of {format} are multiples of {layout.items} items, got shape {weights.shape}")
    if not np.isfinite(weights).all():
        raise ValueError(f"{format} holds finite numbers only")
    blocks = weights.reshape(-1, layout.items)
    written = np.empty((len(blocks), layout.size), np.uint8)
    for start in range(0, len(blocks), ROWS_AT_ONCE):
        part = blocks[start:start + ROWS_AT_ONCE].astype(np.float32)
        written[start:start + ROWS_AT_ONCE] = _WRITERS[format](part)
    return written.reshape(*weights.shape[:-1], weights.shape[-1] // layout.items * layout.size)
