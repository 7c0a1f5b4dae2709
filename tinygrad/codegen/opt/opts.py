"""The changes of which a plan is made, a class each, with fields of its own and `apply`.

A field says what it holds: `Range` is the identity of a RANGE of the nest, `Value` the number of one
among the `staging.stageable`, `Unit` the number of a matrix unit in `UNITS`; what is left are numbers of
iterations, items, lanes or threads. Printing, renaming and storing a plan go by that.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Self, TypeAlias

from tinygrad.codegen.opt.blocks import reduce_in_block, row_in_registers
from tinygrad.codegen.opt.fused_attention import attention_on_unit
from tinygrad.codegen.opt.interchange import interchange
from tinygrad.codegen.opt.loop_bounds import tighten_loop_bounds
from tinygrad.codegen.opt.loop_partition import partition
from tinygrad.codegen.opt.loops import (
    is_reduce_range,
    is_shared,
    merge,
    outermost,
    padded,
    replace_range,
    shared_out,
    split,
    with_kind,
)
from tinygrad.codegen.opt.matrix import on_matrix_unit
from tinygrad.codegen.opt.online_softmax import online_softmax
from tinygrad.codegen.opt.prefetch import PrefetchHint, prefetch
from tinygrad.codegen.opt.scan import scan
from tinygrad.codegen.opt.scatter_add import scatter_add
from tinygrad.codegen.opt.staging import SharedTile, readers_of, staged
from tinygrad.codegen.opt.word_bytes import dot_bytes
from tinygrad.codegen.ranges import range_named
from tinygrad.graph.ops import Memory, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.matrix_units import UNITS

Range: TypeAlias = int
Value: TypeAlias = int
Unit: TypeAlias = int

_WRITTEN: dict[str, Callable[[int], str]] = {
    "Range": "r{}".format, "Value": "value {}".format,
    "Unit": lambda number: str(UNITS[number])}
"""How a field of each type is printed."""


@dataclass(frozen=True)
class Opt:
    """One change of a nest."""

    def apply(self, nest: UOp) -> UOp:
        """The nest with this change. Raises ValueError where it cannot be made, as where there is no such
        range."""
        raise NotImplementedError

    @classmethod
    def word(cls) -> str:
        """What it is called in print and in files: `CACHE_ROW` for `CacheRow`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()

    def ranges(self) -> list[Range]:
        """The ranges that it names."""
        return [r for name in self._range_fields() for r in _as_tuple(getattr(self, name))]

    def renamed(self, name: Callable[[Range], Range]) -> Self:
        """The same change of ranges of other names."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for field in self._range_fields():
            value = values[field]
            values[field] = tuple(map(name, value)) if isinstance(value, tuple) else name(value)
        return type(self)(**values)

    @classmethod
    def _range_fields(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.type in ("Range", "tuple[Range, ...]")]

    def __repr__(self) -> str:
        details: list[str] = []
        for f in self._told():
            written = _WRITTEN.get(str(f.type).removeprefix("tuple[").removesuffix(", ...]"), str)
            details += [written(value) for value in _as_tuple(getattr(self, f.name))]
        return f"{self.word()}({', '.join(details)})"

    def _told(self) -> list[Field[Any]]:
        """The fields to print: all, but for those at the end that have their defaults."""
        told = list(fields(self))
        while told and getattr(self, told[-1].name) == told[-1].default:
            told.pop()
        return told


def _as_tuple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


# --- loops --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Merge(Opt):
    """Two ranges, one directly in the other, as one."""

    outer: Range
    inner: Range

    def apply(self, nest: UOp) -> UOp:
        return merge(nest, range_named(nest, self.outer), range_named(nest, self.inner))


@dataclass(frozen=True, repr=False)
class Swap(Opt):
    """A range to the outside of the loops that close with it."""

    range: Range

    def apply(self, nest: UOp) -> UOp:
        return outermost(nest, range_named(nest, self.range))


@dataclass(frozen=True, repr=False)
class Pad(Opt):
    """A range that is summed over rounded up to a multiple, with nothing added beyond its end."""

    range: Range
    multiple: int

    def apply(self, nest: UOp) -> UOp:
        return padded(nest, range_named(nest, self.range), self.multiple)


@dataclass(frozen=True, repr=False)
class Splitting(Opt):
    """A range as an outer loop over an inner one of `amount` iterations, which run in some way."""

    range: Range
    amount: int
    kind: ClassVar[RangeKind]
    own_accumulators: ClassVar[bool] = False

    def apply(self, nest: UOp) -> UOp:
        return split(nest, range_named(nest, self.range), self.amount, self.kind, self.own_accumulators)


class Split(Splitting):
    """A range as a loop over a shorter one."""

    kind = RangeKind.LOOP


class Vector(Splitting):
    """The innermost iterations as SIMD lanes."""

    kind = RangeKind.VECTOR
    own_accumulators = True


class Upcast(Splitting):
    """The innermost iterations as registers, each with its own accumulators."""

    kind = RangeKind.UNROLL


class Unroll(Splitting):
    """The innermost iterations of a reduce written out, into one accumulator."""

    kind = RangeKind.UNROLL


class Accumulators(Splitting):
    """The innermost iterations of a reduce into multiple accumulators, combined at the end."""

    kind = RangeKind.UNROLL
    own_accumulators = True


@dataclass(frozen=True, repr=False)
class PartitionLoop(Opt):
    """A range over outputs as several, which begin at such iterations that masks inside them are decided."""

    range: Range
    begins: tuple[int, ...]

    def apply(self, nest: UOp) -> UOp:
        return partition(nest, range_named(nest, self.range), self.begins)


@dataclass(frozen=True, repr=False)
class Tighten(Opt):
    """The bounds of every loop to where a mask inside it can hold."""

    def apply(self, nest: UOp) -> UOp:
        return tighten_loop_bounds(nest)


# --- cores, blocks and threads ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Thread(Opt):
    """A range across CPU cores; with others, of other outputs, so many shares of each."""

    range: Range
    others: tuple[Range, ...] = ()
    shares: int = 0

    def apply(self, nest: UOp) -> UOp:
        target = range_named(nest, self.range)
        if self.others:
            return shared_out(nest, [target, *(range_named(nest, r) for r in self.others)], self.shares)
        if not is_shared(nest, target):
            raise ValueError(f"threads cannot share r{self.range}: it is no loop of every STORE alone")
        return replace_range(nest, target, lambda r: [r], with_kind(target, RangeKind.THREAD))


@dataclass(frozen=True, repr=False)
class Global(Opt):
    """A range across the blocks of a grid."""

    range: Range

    def apply(self, nest: UOp) -> UOp:
        target = range_named(nest, self.range)
        return replace_range(nest, target, lambda r: [r], with_kind(target, RangeKind.GLOBAL))


@dataclass(frozen=True, repr=False)
class Local(Splitting):
    """The innermost iterations across the threads of a block; those of a reduce are combined there, by so
    many lanes side by side that exchange values."""

    lanes: int = 1
    kind = RangeKind.LOCAL

    def apply(self, nest: UOp) -> UOp:
        target = range_named(nest, self.range)
        if is_reduce_range(nest, target):
            return reduce_in_block(nest, target, self.amount, self.lanes)
        return super().apply(nest)


@dataclass(frozen=True, repr=False)
class Row(Opt):
    """Loops along one row as the same threads and registers of a block: accesses of `width` items, and so
    many `lanes` that exchange values."""

    loops: tuple[Range, ...]
    threads: int
    width: int
    lanes: int

    def apply(self, nest: UOp) -> UOp:
        loops = [range_named(nest, r) for r in self.loops]
        return row_in_registers(nest, loops, self.threads, self.width, self.lanes)


# --- reduces ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OnlineSoftmax(Opt):
    """The largest item of a row and the sums weighted by it in one loop over tiles of the row."""

    range: Range
    tile: int

    def apply(self, nest: UOp) -> UOp:
        return online_softmax(nest, range_named(nest, self.range), self.tile)


@dataclass(frozen=True, repr=False)
class Scan(Opt):
    """Reductions of all items up to an iteration of the range carried from one iteration to the next."""

    range: Range

    def apply(self, nest: UOp) -> UOp:
        return scan(nest, range_named(nest, self.range))


@dataclass(frozen=True, repr=False)
class Scatter(Opt):
    """Segment sums, a segment an iteration of the range, in memory that one pass over all adds to."""

    range: Range
    lanes: int
    dump_slots: int = 0

    def apply(self, nest: UOp) -> UOp:
        return scatter_add(nest, range_named(nest, self.range), self.lanes, self.dump_slots)


@dataclass(frozen=True, repr=False)
class Interchange(Opt):
    """A sum's loops outside of the range: its items in memory, to which whole rows are added."""

    range: Range
    lanes: int

    def apply(self, nest: UOp) -> UOp:
        return interchange(nest, range_named(nest, self.range), self.lanes)


@dataclass(frozen=True, repr=False)
class ByteDot(Opt):
    """A sum over the four bytes of words as dot products of the words."""

    range: Range

    def apply(self, nest: UOp) -> UOp:
        return dot_bytes(nest, range_named(nest, self.range))


# --- memory -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Stage(Opt):
    """A value computed once over the ranges it is read over, outermost first: into scratch memory or, for so
    many threads of a block, into shared memory in the order of a `SharedTile`."""

    value: Value
    over: tuple[Range, ...]
    threads: int = 0
    width: int = 1
    rows: int = 1
    shift: int = 0
    atom: int = 0

    def apply(self, nest: UOp) -> UOp:
        readers = readers_of(nest, self.value, [range_named(nest, r) for r in self.over])
        lies = self.threads, self.width, self.rows, self.shift, self.atom
        tile = SharedTile(*lies) if self.threads else None
        return staged(nest, readers, tile)


@dataclass(frozen=True, repr=False)
class Prefetch(Opt):
    """In a loop, what is read so many iterations of a range later asked for already."""

    loop: Range
    along: Range
    iterations: int

    def apply(self, nest: UOp) -> UOp:
        hint = PrefetchHint(range_named(nest, self.loop), range_named(nest, self.along), self.iterations)
        return prefetch(nest, hint)


@dataclass(frozen=True, repr=False)
class Stream(Opt):
    """Results past the caches, straight to memory: what they would push out is worth more."""

    def apply(self, nest: UOp) -> UOp:
        return UOp.sink(s.replace(arg=Memory.GLOBAL) for s in nest.src)


# --- matrix units -------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class MMA(Opt):
    """Tiles of a contraction over `k` on a matrix unit: so many of rows, columns and products beside each
    other."""

    m: Range
    n: Range
    k: Range
    unit: Unit
    rows: int
    columns: int
    depth: int

    def apply(self, nest: UOp) -> UOp:
        m, n, k = (range_named(nest, r) for r in (self.m, self.n, self.k))
        return on_matrix_unit(nest, UNITS[self.unit], (m, n, k), (self.rows, self.columns, self.depth))


@dataclass(frozen=True, repr=False)
class Attention(Opt):
    """Fused attention: tiles of two products, one of what the other made, on a matrix unit; so many tiles of
    rows beside each other."""

    query: Range
    key: Range
    column: Range
    unit: Unit
    rows: int

    def apply(self, nest: UOp) -> UOp:
        query, key, column = (range_named(nest, r) for r in (self.query, self.key, self.column))
        return attention_on_unit(nest, UNITS[self.unit], (query, key, column), self.rows)


OPTS: dict[str, type[Opt]] = {kind.word(): kind for kind in (
    Merge, Split, Swap, Thread, Global, Local, Vector, Upcast, Unroll, Row, OnlineSoftmax, Accumulators,
    Scan, Scatter, Interchange, PartitionLoop, Tighten, Stream, Prefetch, Stage, Attention, MMA, Pad,
    ByteDot)}
"""Every change there is, by its word."""
