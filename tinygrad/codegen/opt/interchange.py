"""Sums in memory, with the loop that is summed over outside: rows added to a row.

    for j: out[j] = sum over k of f(k, j)

Where the items of j lie side by side and those of k a page or more apart, that walks down a few columns at a
time: a piece of each row, too short for the processor to load ahead. Scalar expansion and loop interchange
(Allen and Kennedy, Optimizing Compilers for Modern Architectures, 2001, chapter 5) turn it around: the sums
of a tile of j lie in memory that the first cache holds, and the walk over k adds whole rows of the tile,

    s = 0; for k: for j: s[j] += f(k, j) + f(k + 1, j) + ...
    for j: out[j] = s[j]

so that memory is read in long runs, one for each row that is written out. In: a nest, whose sums may have
loops that are written out (UNROLL), and a loop over outputs. Out: the nest with SCATTERs in place of the sums
that change with it.
"""
from __future__ import annotations

from tinygrad.codegen.predicate import accumulated
from tinygrad.codegen.ranges import NewRanges, row_major, separate_loops
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import TRUE
from tinygrad.graph.uop import UOp


def interchange(nest: UOp, loop: UOp, lanes: int) -> UOp:
    """The nest with the sums that change with `loop` in memory that has an item for each of its iterations,
    added up `lanes` items at once. Raises ValueError where there is none."""
    found = [n for n in nest.nodes_of(Ops.REDUCE) if loop in n.ranges]
    if not found:
        raise ValueError(f"no sum changes with r{loop.identity}")
    new = NewRanges(nest)
    return separate_loops(nest.substitute({n: _in_memory(n, loop, lanes, new) for n in found}), places=False)


def _in_memory(reduce: UOp, loop: UOp, lanes: int, new: NewRanges) -> UOp:
    """The REDUCE as a load of an item of memory, to which its values were added over all of `loop`."""
    own = new.copies(reduce.closed_ranges)
    walked = [r for r in own.values() if r.kind is RangeKind.LOOP]
    written_out = [r for r in own.values() if r.kind is not RangeKind.LOOP]
    if lanes > 1 and loop.extent % lanes == 0 and loop.extent > lanes:
        loops = [new.range(loop.extent // lanes), new.range(lanes, RangeKind.VECTOR)]
    else:
        loops = [new.range(loop.extent)]
    item = row_major(loops, [r.extent for r in loops])
    value = reduce.src[0].substitute({**own, loop: item})
    value = accumulated(value.reduce_ranges(reduce.arg, *written_out))
    memory = UOp.new(Ops.SCATTER, value.dtype, (value, item, TRUE, *walked, *loops),
                     (new.number(), reduce.arg, loop.extent))
    return memory.index(loop).load().cast(reduce.dtype)
