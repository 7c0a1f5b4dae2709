"""Sums whose items lie in memory: scatter-adds, and sums with the loop that is summed over outside.

    for v: out[v] = sum over t of where(segment[t] == v, x[t], 0)

is a dense masked reduction: for each v it compares all t. Here memory has an item for each v; one loop over t
adds x[t] at segment[t], the transpose of a gather:

    s = 0; for t: s[segment[t]] += x[t], where 0 <= segment[t] < number of v
    for v: out[v] = s[v]

It is `collapse.py`'s closed form, with the loops interchanged: of all v that t could belong to, there is one.
So the gradient of an embedding, `scatter` and counts of items cost as much as they read and write. In: a nest
and a loop v over outputs, short enough for memory near the processor: a SPLIT makes it so, and segments count
from the beginning of its tile then, most of them outside (threads have tiles of their own). Out: the nest
with SCATTERs in place of such sums, which add in the same order. Outputs' loops inside v run inside t too;
they run only where t has something for v, and the last one in lanes.

    for j: out[j] = sum over k of f(k, j)

is such a sum too, where each k belongs to all j. Where the items of j lie side by side and those of k a page
or more apart, it walks down a few columns at a time: a piece of each row, too short for the processor to load
ahead. Scalar expansion and loop interchange (Allen and Kennedy, Optimizing Compilers for Modern
Architectures, 2001, chapter 5) turn it around: the sums of a tile of j lie in memory that the first cache
holds, and the walk over k adds whole rows of the tile,

    s = 0; for k: for j: s[j] += f(k, j) + f(k + 1, j) + ...
    for j: out[j] = s[j]

so that memory is read in long runs, one for each of the few iterations of k that are added at once. Where
the sums are for several outputs i, each item is read once for all of them: a product of few rows adds up
s[j, i] so, from registers that have the sums over these few k.
"""
from __future__ import annotations

import operator
from functools import reduce

from tinygrad.codegen.collapse import item_at, solved_for
from tinygrad.codegen.predicate import accumulated, mask_loads
from tinygrad.codegen.ranges import (
    ZERO,
    NewRanges,
    iterations,
    of_kind,
    ranges_among,
    row_major,
    separate_loops,
)
from tinygrad.codegen.segment_sum import segment_sums
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import TRUE, conjuncts
from tinygrad.graph.uop import UOp


def scatter_add(nest: UOp, loop: UOp, lanes: int, dump_slots: int) -> UOp:
    """The nest with its segment sums over iterations of `loop` in memory, added up `lanes` items at once
    where there are loops inside. What is in no segment is added to dump slots, so many beyond the end in
    turn, which nobody reads: a branch that nobody can foresee costs more. It is left out where `dump_slots`
    is 0, or a loop adds it. Raises ValueError where there is no such sum."""
    found = [b for b in segment_sums(nest) if b.loop is loop]
    if not found:
        raise ValueError(f"no segment sum is over iterations of r{loop.identity}")
    new = NewRanges(nest)
    changes: dict[UOp, UOp] = {}
    for b in found:
        inner = b.inner(nest)
        parts = [_scattered(b.reduce, a.value, a.condition, (loop,), inner, lanes, dump_slots, new)
                 for a in b.addends]
        changes[b.reduce] = reduce(operator.add, parts)
    return _in_memory(nest, changes)


def interchange(nest: UOp, loop: UOp) -> UOp:
    """The nest with the sums that change with `loop` in memory that has an item for each of its iterations,
    and for what is written out or in lanes inside it. Of their own loops the outermost stands outside then;
    what those inside it add up is added at once. Raises ValueError where there is no such sum."""
    found = [n for n in nest.nodes_of(Ops.REDUCE) if loop in n.ranges]
    if not found:
        raise ValueError(f"no sum changes with r{loop.identity}")
    new, sums = NewRanges(nest), {}
    for n in found:
        tile = sorted(of_kind(n.ranges, RangeKind.UNROLL, RangeKind.VECTOR),
                      key=lambda r: (r.kind is RangeKind.VECTOR, r.identity))
        walked, *inside = n.closed_ranges
        outer = n.src[0].reduce_ranges(n.arg, *inside).reduce_ranges(n.arg, walked)
        sums[n] = _scattered(outer, outer.src[0], TRUE, (), (loop, *tile), 1, 0, new)
    return _in_memory(nest, sums)


def _in_memory(nest: UOp, sums: dict[UOp, UOp]) -> UOp:
    """The nest with what these REDUCEs add up to in their place."""
    changes = {node: value.cast(node.dtype) for node, value in sums.items()}
    return separate_loops(nest.substitute(changes), places=False)


def _scattered(node: UOp, value: UOp, condition: UOp, segments: tuple[UOp, ...], inner: tuple[UOp, ...],
               lanes: int, dump_slots: int, new: NewRanges) -> UOp:
    """What a REDUCE adds up of a value where a condition holds, as a load from memory to which its values
    were added where they belong: memory has an item for each iteration of the loops `segments` and, inside
    them, `inner`, all of whose items are added at once where they belong to all."""
    again = new.copies((*node.closed_ranges, *inner))
    summed, own = [again[r] for r in node.closed_ranges], [again[r] for r in inner]
    walked = of_kind(summed, RangeKind.LOOP)
    value, mask, at = _placed(value.substitute(again), condition.substitute(again), [*segments, *own])
    loops = [r for r in own if at[r] is r]
    extents = [r.extent for r in (*segments, *inner)]
    items = iterations((*segments, *inner))
    changes: dict[UOp, UOp] = {}
    if loops and lanes > 1 and loops[-1].extent % lanes == 0 and _lie_side_by_side(at, own[-1]):
        last, lane = loops.pop(), new.range(lanes, RangeKind.VECTOR)
        around = new.counter(last.extent // lanes)
        changes[last] = around * lanes + lane
        loops += ranges_among((around, lane))
    offset = row_major([at[r] for r in (*segments, *own)], extents).substitute(changes)
    value, mask = value.substitute(changes), mask.substitute(changes)
    first = next(iter(of_kind(loops, RangeKind.LOOP)), None)
    if dump_slots and first is None and mask.ranges.isdisjoint(loops):
        side_by_side = iterations(loops)
        beyond = items + walked[-1] % dump_slots * side_by_side
        first_item = offset.substitute(dict.fromkeys(loops, ZERO))
        offset = sum(loops, start=mask.where(first_item, beyond))
        mask = TRUE
        items += dump_slots * side_by_side
    elif mask is not TRUE and first is not None and mask.ranges.isdisjoint(loops):
        # asked once for all that is added: the loop over it is empty where the answer is no. It takes the
        # place of `first`, and its number: nothing else has that, which was made for this walk
        tightened = first.replace(src=(first.src[0], ZERO, mask.where(first.src[0], 0)))
        value = mask_loads(value, mask, lambda load: first not in load.ranges)
        value, offset = value.substitute({first: tightened}), offset.substitute({first: tightened})
        loops[loops.index(first)] = tightened
        mask = TRUE
    elif mask is not TRUE:
        value = mask_loads(value, mask)
    written_out = [r for r in summed if r.kind is not RangeKind.LOOP]
    value = accumulated(value.reduce_ranges(node.arg, *written_out))
    memory = UOp.new(Ops.SCATTER, value.dtype, (value, offset, mask, *walked, *loops),
                     (new.number(), node.arg, items))
    return memory.index(row_major([*segments, *inner], extents)).load()


def _placed(value: UOp, condition: UOp, loops: list[UOp]) -> tuple[UOp, UOp, dict[UOp, UOp]]:
    """`value` where it belongs, the condition under which it belongs anywhere, and for each of `loops` the
    iteration that it belongs to: the loop itself where it belongs to all.

    One loop after the other: where it belongs along one may depend on a loop that is not solved yet
    (`v == i[t] + w`), and is then put into everything, as its own iteration is known.
    """
    conditions = conjuncts(condition)
    mask: UOp = TRUE
    at: dict[UOp, UOp] = {}
    for r in loops:
        solved = ((c, place) for c in conditions if (place := solved_for(c, r)) is not None)
        answer, at[r] = next(solved, (None, r))
        if answer is None:
            continue
        within = (at[r] >= 0) & (at[r] < r.src[0])
        mask = within & _at(mask, r, at[r], within)
        at = {other: _at(place, r, at[r], mask) for other, place in at.items()}
        conditions = [_at(c, r, at[r], mask) for c in conditions if c is not answer]
        value = _at(value, r, at[r], mask)
    for condition in conditions:
        mask = mask & mask_loads(condition, mask)
    return value, mask, at


def _at(value: UOp, r: UOp, iteration: UOp, mask: UOp) -> UOp:
    """`value` at an iteration of a loop that there is only where `mask` holds. Raises ValueError where
    memory of the kernel's own is read along the loop."""
    if any(n.memory.op is not Ops.PARAM and r in n.ranges for n in value.nodes_of(Ops.LOAD)):
        raise ValueError(f"memory that the kernel fills has items for the iterations of r{r.identity} alone")
    return item_at(value, r, iteration, mask)


def _lie_side_by_side(at: dict[UOp, UOp], last: UOp) -> bool:
    """Whether items of neighbouring iterations of the innermost loop go to neighbouring places."""
    return at[last] is last and all(last not in place.ranges for r, place in at.items() if r is not last)
