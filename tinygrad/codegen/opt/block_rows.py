"""Rows that a block of threads keeps in registers.

Softmax walks a row three times: for its largest item, for the sum of the exponentials, for the result. Where
the loops of all three are one range, across threads and registers, each item is loaded once and each value
computed once, for equal values in equal iterations are one node of the nest. In: a nest and the loops along
its row. Out: the nest in which they are the same few ranges.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinygrad.codegen.opt.blocks import Group, group_of
from tinygrad.codegen.predicate import identity_unless, mask_store
from tinygrad.codegen.ranges import fresh_identity
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv


@dataclass(frozen=True)
class _Row:
    """The ranges that a row runs over."""

    counter: UOp
    registers: UOp | None
    group: Group
    vector: UOp | None
    mask: UOp | None
    """where an item exists; None where each does"""

    def reduced(self, value: UOp, op: Ops, identities: Iterator[int]) -> UOp:
        """`value` reduced along the row."""
        if self.mask is not None:
            value = identity_unless(self.mask, value, op)
        for r in (self.registers, self.vector):
            value = value if r is None else value.reduce_ranges(op, r)
        return self.group.combined(value, op, identities)

    def stored(self, store: UOp, outer: Sequence[UOp]) -> UOp:
        """A STORE of the row's items, inside the loops `outer`."""
        own = (self.registers, *self.group.ranges, self.vector)
        new = store.replace(src=(*store.src[:2], *outer, *(r for r in own if r is not None)))
        return new if self.mask is None else mask_store(new, self.mask)


def row_in_registers(nest: UOp, loops: Sequence[UOp], threads: int, width: int, lanes: int) -> UOp:
    """The nest with `loops`, which REDUCEs close alone and STOREs last, run by `threads` threads, each with
    every n-th access of `width` items in registers; `lanes` threads side by side exchange values."""
    identities = itertools.count(fresh_identity(nest))
    row = _row(loops[0].extent, threads, width, lanes, identities)
    for r in loops:
        if r.extent != loops[0].extent:
            raise ValueError(f"loops of {r.extent} and of {loops[0].extent} items are not along one row")

    def held(node: UOp, src: tuple[UOp, ...]) -> UOp:
        closed = node.closed_ranges
        if not any(r in loops for r in closed):
            return node.with_sources(src)
        if node.op is Ops.REDUCE and len(node.src) == 2:
            return row.reduced(src[0], node.arg, identities)
        if node.op is Ops.STORE and not any(r in loops for r in closed[:-1]):
            return row.stored(node.replace(src=src[:2]), src[2:-1])
        raise ValueError(f"{node.op.name} closes other loops inside that along the row")

    return nest.rebuild(held, done=dict.fromkeys(loops, row.counter))


def _row(extent: int, threads: int, width: int, lanes: int, identities: Iterator[int]) -> _Row:
    if extent % width:
        raise ValueError(f"a row of {extent} items is no multiple of {width}")
    accesses = extent // width
    rounds = ceildiv(accesses, threads)
    group = group_of(threads, lanes, identities)
    registers = UOp.range(rounds, next(identities), RangeKind.UNROLL) if rounds > 1 else None
    vector = UOp.range(width, next(identities), RangeKind.VECTOR) if width > 1 else None
    zero = UOp.const(0, dtypes.index)
    number = (registers or zero) * threads + group.number
    mask = number < accesses if accesses % threads else None
    return _Row(number * width + (vector or zero), registers, group, vector, mask)
