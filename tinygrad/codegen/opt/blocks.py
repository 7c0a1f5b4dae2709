"""REDUCEs that the threads of a block do together.

Each thread reduces every n-th item into a register of its own. Where the lanes of a warp read each other's
registers, one of them is left for each warp; the rest goes through shared memory, from where every thread
reads them all, in a few steps where they are many. So all threads know the result, and go on with it.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tinygrad.codegen.predicate import identity_unless
from tinygrad.codegen.ranges import fresh_identity, output_ranges
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

MOST_SERIAL = 16
"""Values that one thread reads from shared memory and combines; more are combined in steps."""


@dataclass(frozen=True)
class Group:
    """Threads of a block that work together: their number among them, as LOCAL ranges."""

    number: UOp
    warps: UOp | None
    """all of them, where lanes exchange nothing"""
    lanes: UOp | None

    @property
    def ranges(self) -> list[UOp]:
        return [r for r in (self.warps, self.lanes) if r is not None]

    def combined(self, value: UOp, op: Ops, identities: Iterator[int]) -> UOp:
        """The values of all threads as one, which all of them know."""
        if self.lanes is not None:
            value = value.reduce_ranges(op, self.lanes)
        return value if self.warps is None else _combined(value, op, self.warps, identities)


def group_of(threads: int, lanes: int, identities: Iterator[int]) -> Group:
    """So many threads, of which up to `lanes` side by side exchange values. Raises ValueError where they are
    no whole warps, or parts of one."""
    lanes = min(lanes, threads)
    if lanes < 2:
        whole = UOp.range(threads, next(identities), RangeKind.LOCAL)
        return Group(whole, whole, None)
    if threads % lanes or lanes & (lanes - 1):
        raise ValueError(f"{threads} threads are no warps of {lanes} lanes")
    lane = UOp.range(lanes, next(identities), RangeKind.LOCAL)
    if threads == lanes:
        return Group(lane, None, lane)
    warp = UOp.range(threads // lanes, next(identities), RangeKind.LOCAL)
    return Group(warp * lanes + lane, warp, lane)


def reduce_in_block(nest: UOp, r: UOp, threads: int, lanes: int = 1) -> UOp:
    """The nest with the REDUCEs that close `r` done by so many threads together, of which so many side by
    side exchange values.

    Where `r` is also closed inside the loops of another REDUCE, a thread goes on doing that alone. REDUCEs in
    different places get loops of their own.
    """
    identities = itertools.count(fresh_identity(nest))
    rounds = ceildiv(r.extent, threads)
    outputs = output_ranges(nest)
    closing = [n for n in nest.toposort() if n.op is Ops.REDUCE and r in n.closed_ranges]
    shared = [n for n in closing if n.ranges <= outputs] or closing
    loops_at: dict[frozenset[UOp], tuple[UOp, Group]] = {}
    for node in shared:
        if node.ranges not in loops_at:
            outer = UOp.range(rounds, next(identities)) if rounds > 1 else UOp.const(0, dtypes.index)
            loops_at[node.ranges] = outer, group_of(threads, lanes, identities)

    def together(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        if node not in shared:
            return new
        outer, group = loops_at[node.ranges]
        counter = outer * threads + group.number
        loops = [c for c in new.closed_ranges if c is not r] + ([outer] if rounds > 1 else [])
        value = new.src[0].substitute({r: counter})
        if r.extent % threads:
            value = identity_unless(counter < r.extent, value, node.arg)
        own = value.reduce_ranges(node.arg, *loops) if loops else value
        return group.combined(own, node.arg, identities)

    return nest.rebuild(together)


def _combined(value: UOp, op: Ops, thread: UOp, identities: Iterator[int]) -> UOp:
    """The values of all iterations of `thread` as one, through shared memory."""
    count = thread.extent
    memory = value.stage(next(identities), Memory.SHARED, thread)
    serial = next((n for n in range(MOST_SERIAL, 1, -1) if count % n == 0), count)
    if count <= MOST_SERIAL or serial == count:
        kind = RangeKind.UNROLL if count <= MOST_SERIAL else RangeKind.LOOP
        each = UOp.range(count, next(identities), kind)
        return memory.index(each).load().reduce_ranges(op, each)
    each = UOp.range(serial, next(identities), RangeKind.UNROLL)
    fewer = UOp.range(count // serial, next(identities), RangeKind.LOCAL)
    part = memory.index(each * fewer.extent + fewer).load().reduce_ranges(op, each)
    return _combined(part, op, fewer, identities)
