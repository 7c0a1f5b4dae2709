"""The changes of which a plan is made, a class each, with fields of its own and the function that makes it.

A field says what it holds: `Range` is the identity of a RANGE of the nest, `Value` the number of one
among the `staging.stageable`, `Unit` the number of a matrix unit in `UNITS`; what is left are numbers of
iterations, items, lanes or threads. Applying, printing, renaming and storing a plan go by that.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias, dataclass_transform

from tinygrad.codegen.opt.blocks import row_in_registers
from tinygrad.codegen.opt.byte_dots import dot_bytes
from tinygrad.codegen.opt.fused_attention import attention_on_unit
from tinygrad.codegen.opt.loop_bounds import tighten_loop_bounds
from tinygrad.codegen.opt.loop_partition import partition
from tinygrad.codegen.opt.loops import (
    across_block,
    across_threads,
    merge,
    outermost,
    padded,
    run_as,
    split,
    with_streaming_stores,
)
from tinygrad.codegen.opt.matrix import on_matrix_unit
from tinygrad.codegen.opt.online_softmax import online_softmax
from tinygrad.codegen.opt.prefetch import prefetch
from tinygrad.codegen.opt.scan import scan
from tinygrad.codegen.opt.scatter_add import interchange, scatter_add
from tinygrad.codegen.opt.staging import staged
from tinygrad.codegen.ranges import range_named, ranges_named
from tinygrad.frozen import frozen
from tinygrad.graph.ops import RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.matrix_units import UNITS, MatrixUnit

Range: TypeAlias = int
Value: TypeAlias = int
Unit: TypeAlias = int
Named: TypeAlias = UOp | MatrixUnit | int | Iterable[UOp] | Iterable[int]
"""What a field says: a RANGE of the nest, a unit, a number, or several."""

OPTS: dict[str, type[Opt]] = {}
"""Every change there is, by its word."""
_WRITTEN: dict[str, Callable[[int], str]] = {
    "Range": "r{}".format, "Value": "value {}".format,
    "Unit": lambda number: str(UNITS[number])}
"""How a field of each type is printed."""
_NAMED: dict[Any, Callable[[UOp, Any], Any]] = {
    "Range": range_named, "tuple[Range, ...]": ranges_named, "Unit": lambda nest, number: UNITS[number]}
"""What a field of each type names in a nest."""


@dataclass_transform(frozen_default=True)
@frozen
class Opt:
    """One change of a nest. Each kind of it is a frozen dataclass."""

    change: ClassVar[Callable[..., UOp]]
    """what makes it of a nest and what the fields name"""

    def __init_subclass__(cls) -> None:
        frozen(cls, repr=False)
        if "change" in vars(cls):
            OPTS[cls.word()] = cls

    @classmethod
    def of(cls, *values: Named) -> Self:
        """The change of these ranges of a nest, with these numbers."""
        return cls(*map(_name_of, values))

    def apply(self, nest: UOp) -> UOp:
        """The nest with this change. Raises ValueError where it cannot be made, as where there is no such
        range."""
        values = []
        for f in fields(self):
            value = getattr(self, f.name)
            values.append(_NAMED[f.type](nest, value) if f.type in _NAMED else value)
        return type(self).change(nest, *values)

    @classmethod
    def word(cls) -> str:
        """What it is called in print and in files: `ONLINE_SOFTMAX` for `OnlineSoftmax`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()

    def ranges(self) -> list[Range]:
        """The ranges that it names."""
        return [r for name in self._range_fields() for r in _as_tuple(getattr(self, name))]

    def renamed(self, name: Callable[[Range], Range]) -> Self:
        """The same change of ranges of other names."""
        values: dict[str, Any] = {}
        for field in self._range_fields():
            value = getattr(self, field)
            values[field] = tuple(map(name, value)) if isinstance(value, tuple) else name(value)
        return replace(self, **values)

    @classmethod
    def _range_fields(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.type in ("Range", "tuple[Range, ...]")]

    def __repr__(self) -> str:
        told = list(fields(self))
        while told and getattr(self, told[-1].name) == told[-1].default:
            told.pop()  # what has its default at the end is not printed
        details: list[str] = []
        for f in told:
            written = _WRITTEN.get(str(f.type).removeprefix("tuple[").removesuffix(", ...]"), str)
            details += [written(value) for value in _as_tuple(getattr(self, f.name))]
        return f"{self.word()}({', '.join(details)})"


def _name_of(value: Named) -> Any:
    """What a field holds for it."""
    if isinstance(value, UOp):
        return value.identity
    if isinstance(value, MatrixUnit):
        return UNITS.index(value)
    return value if isinstance(value, int) else tuple(map(_name_of, value))


def _as_tuple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


# --- loops --------------------------------------------------------------------------------------------------


class Merge(Opt):
    """Two ranges, one directly in the other, as one."""

    outer: Range
    inner: Range
    change = merge


class Swap(Opt):
    """A range to the outside of the loops that close with it."""

    range: Range
    change = outermost


class Pad(Opt):
    """A range that is summed over rounded up to a multiple, with nothing added beyond its end."""

    range: Range
    multiple: int
    change = padded


class Splitting(Opt):
    """A range as an outer loop over an inner one of `amount` iterations, which run in some way."""

    range: Range
    amount: int


class Split(Splitting):
    """A range as a loop over a shorter one."""

    change = partial(split, kind=RangeKind.LOOP)


class Vector(Splitting):
    """The innermost iterations as SIMD lanes."""

    change = partial(split, kind=RangeKind.VECTOR, own_accumulators=True)


class Upcast(Splitting):
    """The innermost iterations as registers, each with its own accumulators."""

    change = partial(split, kind=RangeKind.UNROLL)


class Unroll(Splitting):
    """The innermost iterations of a reduce written out, into one accumulator."""

    change = partial(split, kind=RangeKind.UNROLL)


class Accumulators(Splitting):
    """The innermost iterations of a reduce into multiple accumulators, combined at the end."""

    change = partial(split, kind=RangeKind.UNROLL, own_accumulators=True)


class Subtotals(Opt):
    """A sum over a range as sums over `amount` iterations, and the loops inside, which are added up."""

    range: Range
    amount: int
    change = partial(split, kind=RangeKind.LOOP, subtotals=True)


class PartitionLoop(Opt):
    """A range over outputs as several, which begin at such iterations that masks inside them are decided."""

    range: Range
    begins: tuple[int, ...]
    change = partition


class Tighten(Opt):
    """The bounds of every loop to where a mask inside it can hold."""

    change = tighten_loop_bounds


# --- cores, blocks and threads ------------------------------------------------------------------------------


class Thread(Opt):
    """A range across CPU cores; with others, of other outputs, so many shares of each."""

    range: Range
    others: tuple[Range, ...] = ()
    shares: int = 0
    change = across_threads


class Global(Opt):
    """A range across the blocks of a grid."""

    range: Range
    change = partial(run_as, kind=RangeKind.GLOBAL)


class Local(Splitting):
    """The innermost iterations across the threads of a block; those of a reduce are combined there, by so
    many lanes side by side that exchange values."""

    lanes: int = 1
    change = across_block


class Row(Opt):
    """Loops along one row as the same threads and registers of a block: accesses of `width` items, and so
    many `lanes` that exchange values."""

    loops: tuple[Range, ...]
    threads: int
    width: int
    lanes: int
    change = row_in_registers


# --- reduces ------------------------------------------------------------------------------------------------


class OnlineSoftmax(Opt):
    """The largest item of a row and the sums weighted by it in one loop over tiles of the row."""

    range: Range
    tile: int
    change = online_softmax


class Scan(Opt):
    """Reductions of all items up to an iteration of the range carried from one iteration to the next."""

    range: Range
    change = scan


class Scatter(Opt):
    """Segment sums, a segment an iteration of the range, in memory that one pass over all adds to."""

    range: Range
    lanes: int
    dump_slots: int = 0
    change = scatter_add


class Interchange(Opt):
    """A sum's outermost loop outside of the range: its items in memory, to which whole rows are added."""

    range: Range
    change = interchange


class ByteDot(Opt):
    """A sum over the four bytes of words as dot products of the words."""

    range: Range
    change = dot_bytes


# --- memory -------------------------------------------------------------------------------------------------


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
    change = staged


class Prefetch(Opt):
    """In a loop, what is read so many iterations of a range later asked for already."""

    loop: Range
    along: Range
    iterations: int
    change = prefetch


class Stream(Opt):
    """Results past the caches, straight to memory: what they would push out is worth more."""

    change = with_streaming_stores


# --- matrix units -------------------------------------------------------------------------------------------


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
    change = on_matrix_unit


class Attention(Opt):
    """Fused attention: tiles of two products, one of what the other made, on a matrix unit."""

    query: Range
    key: Range
    column: Range
    unit: Unit
    change = attention_on_unit
