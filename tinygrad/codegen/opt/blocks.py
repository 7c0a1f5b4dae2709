"""Loops that the threads of a block share: REDUCEs that they do together, rows that they keep in registers.

Each thread takes every n-th access of a loop, and reduces what it has into a register of its own. Where the
lanes of a warp read each other's registers, one of them is left for each warp; the rest goes through shared
memory, from where every thread reads them all, in a few steps where they are many. So all threads know the
result, and go on with it.

Softmax walks a row three times: for its largest item, for the sum of the exponentials, for the result. Where
the loops of all three are one range, across threads and registers, each item is loaded once and each value
computed once, for equal values in equal iterations are one node of the nest.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.predicate import identity_unless, mask_store
from tinygrad.codegen.ranges import ZERO, NewRanges, change_closers, closers, ranges_among
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

MOST_SERIAL = 16
"""Values that one thread reads from shared memory and combines; more are combined in steps."""


@frozen
class SharedLoop:
    """What a loop becomes whose iterations threads of a block share: its counter, and the ranges of that."""

    counter: UOp
    rounds: UOp
    """of each thread, one after the other or written out; this and the others 0 where there is but one"""
    warps: UOp
    """all threads, where lanes exchange nothing"""
    lanes: UOp
    vector: UOp
    mask: UOp
    """where an iteration exists"""

    @property
    def ranges(self) -> list[UOp]:
        return ranges_among((self.rounds, self.warps, self.lanes, self.vector))

    def reduced(self, node: UOp, value: UOp, others: Sequence[UOp], new: NewRanges) -> UOp:
        """`value` reduced as a REDUCE `node` does along the loop and others: what all threads know then."""
        op = node.arg
        value = identity_unless(self.mask, value, op)
        for loops in ((*others, self.rounds), (self.vector,), (self.lanes,)):
            value = value.reduce_ranges(op, *loops)
        return value if self.warps is ZERO else _through_memory(value, op, self.warps, new)


def shared_loop(extent: int, threads: int, lanes: int, new: NewRanges, width: int = 1,
                kind: RangeKind = RangeKind.LOOP) -> SharedLoop:
    """A loop shared by so many threads, of which up to `lanes` side by side exchange values, by accesses of
    `width` items, in rounds that run as `kind`. Raises ValueError where the threads are no whole warps, or
    parts of one, and where whole accesses do not make up the loop."""
    lanes = min(lanes, threads)
    if lanes > 1 and (threads % lanes or lanes & (lanes - 1)):
        raise ValueError(f"{threads} threads are no warps of {lanes} lanes")
    if extent % width:
        raise ValueError(f"a row of {extent} items is no multiple of {width}")

    def made(count: int, kind: RangeKind) -> UOp:
        return new.range(count, kind) if count > 1 else ZERO

    accesses = extent // width
    rounds = made(ceildiv(accesses, threads), kind)
    lane, warp = made(lanes, RangeKind.LOCAL), made(threads // lanes, RangeKind.LOCAL)
    vector = made(width, RangeKind.VECTOR)
    number = rounds * threads + (warp * lanes + lane)
    return SharedLoop(number * width + vector, rounds, warp, lane, vector, number < accesses)


def reduce_in_block(nest: UOp, r: UOp, threads: int, lanes: int) -> UOp:
    """The nest with the REDUCEs that close `r` done by so many threads together, of which so many side by
    side exchange values.

    REDUCEs in different places get loops of their own.
    """
    new = NewRanges(nest)
    places = dict.fromkeys(n.ranges for n in closers(nest, r))
    loops_at = {ranges: shared_loop(r.extent, threads, lanes, new) for ranges in places}

    def together(node: UOp, src: tuple[UOp, ...]) -> UOp:
        loop, others = loops_at[node.ranges], [c for c in node.closed_ranges if c is not r]
        return loop.reduced(node, src[0].substitute({r: loop.counter}), others, new)

    return change_closers(nest, r, together)


def row_in_registers(nest: UOp, loops: Sequence[UOp], threads: int, width: int, lanes: int) -> UOp:
    """The nest with `loops`, which REDUCEs close alone and STOREs last, run by `threads` threads, each with
    every n-th access of `width` items in registers; `lanes` threads side by side exchange values."""
    new = NewRanges(nest)
    row = shared_loop(loops[0].extent, threads, lanes, new, width, RangeKind.UNROLL)
    for r in loops:
        if r.extent != loops[0].extent:
            raise ValueError(f"loops of {r.extent} and of {loops[0].extent} items are not along one row")

    def held(node: UOp, src: tuple[UOp, ...]) -> UOp:
        closed = node.closed_ranges
        if not any(r in loops for r in closed):
            return node.with_sources(src)
        if node.op is Ops.REDUCE and len(node.src) == 2 and node.ranges.isdisjoint(loops):
            return row.reduced(node, src[0], (), new)
        if node.op is Ops.STORE and not any(r in loops for r in closed[:-1]):
            return mask_store(node.replace(src=(*src[:-1], *row.ranges)), row.mask)
        raise ValueError(f"{node.op.name} closes other loops inside that along the row, or runs in it")

    return nest.rebuild(held, done=dict.fromkeys(loops, row.counter))


def _through_memory(value: UOp, op: Ops, thread: UOp, new: NewRanges) -> UOp:
    """The values of all iterations of `thread` as one, through shared memory."""
    count = thread.extent
    memory = value.stage(new.number(), Memory.SHARED, thread)
    serial = next((n for n in range(MOST_SERIAL, 1, -1) if count % n == 0), count)
    each = new.range(serial, RangeKind.UNROLL if serial <= MOST_SERIAL else RangeKind.LOOP)
    fewer = ZERO if serial == count else new.range(count // serial, RangeKind.LOCAL)
    part = memory.index(each * (count // serial) + fewer).load().reduce_ranges(op, each)
    return part if fewer is ZERO else _through_memory(part, op, fewer, new)
