"""Sums of what belongs to an item, in one walk over everything: the transpose of a gather.

    for v: out[v] = sum over t of where(place[t] == v, x[t], 0)

asks for each v of all t. Here memory has an item for each v; one loop over t adds x[t] at place[t]:

    s = 0; for t: s[place[t]] += x[t], where 0 <= place[t] < number of v
    for v: out[v] = s[v]

It is `collapse.py`'s closed form, with the loops turned around: of all v that t could belong to, there is
one. So the gradient of an embedding, `scatter` and counts of items cost as much as they read and write. In: a
nest and a loop v over outputs, short enough for memory near the processor (a SPLIT makes it so; threads have
parts of it). Out: the nest with SCATTERs in place of such sums, which add in the same order. Outputs' loops
inside v run inside t too; they run only where t has something for v, and the last one in lanes.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tinygrad.codegen.collapse import guard_loads, solved_for
from tinygrad.codegen.indexing import conjuncts, with_guarded
from tinygrad.codegen.linearize import reduce_identity
from tinygrad.codegen.ranges import fresh_identity
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod


@dataclass(frozen=True)
class Belonging:
    """A REDUCE whose values count for one iteration of `loop` each: under `condition`, `value` is `kept`."""

    reduce: UOp
    loop: UOp
    condition: UOp
    kept: UOp

    def inner(self, nest: UOp) -> tuple[UOp, ...]:
        """The outputs' loops inside `loop`."""
        loops = nest.src[0].closed_ranges
        return tuple(r for r in loops[loops.index(self.loop) + 1:] if r in self.reduce.ranges)


def sums_by_place(nest: UOp) -> Iterator[Belonging]:
    """Every REDUCE of what belongs to one iteration of a loop over outputs each, by each such loop."""
    loops = nest.src[0].closed_ranges
    if any(s.closed_ranges != loops for s in nest.src):
        return
    for node in nest.toposort():
        masked = _masked(node) if node.op is Ops.REDUCE else None
        if masked is None or not all(map(_is_plain, (r for r in loops if r in node.ranges))):
            continue
        for loop in loops:
            places = (solved_for(c, loop) for c in conjuncts(masked[0]))
            if any(at is not None and not at.ranges.isdisjoint(node.closed_ranges) for at in places):
                yield Belonging(node, loop, *masked)


def _masked(node: UOp) -> tuple[UOp, UOp] | None:
    """(condition, value) of a REDUCE over loops of what changes nothing where the condition does not hold."""
    closed = node.closed_ranges
    if len(node.src) != 1 + len(closed) or not closed or any(r.arg[1] is not RangeKind.LOOP for r in closed):
        return None
    if node.arg not in (Ops.ADD, Ops.MAX, Ops.MUL) or node.dtype.is_bool:
        return None
    value, identity = node.src[0], reduce_identity(node.arg, node.dtype)
    if value.op is Ops.CAST and value.src[0].dtype.is_bool and node.arg is Ops.ADD:
        return value.src[0], UOp.const(1, value.dtype)
    if value.op is not Ops.WHERE:
        return None
    condition, kept, other = value.src
    if other is identity:
        return condition, kept
    return (condition.logical_not(), other) if kept is identity else None


def scatter(nest: UOp, loop: UOp, lanes: int) -> UOp:
    """The nest with its sums of what belongs to an iteration of `loop` in memory, added up `lanes` items at
    once where there are loops inside. Raises ValueError where there is no such sum."""
    found = [b for b in sums_by_place(nest) if b.loop is loop]
    if not found:
        raise ValueError(f"no sum is of what belongs to one iteration of r{loop.arg[0]}")
    identities = itertools.count(fresh_identity(nest))
    return nest.substitute({b.reduce: _scattered(b, b.inner(nest), lanes, identities) for b in found})


def _scattered(found: Belonging, inner: tuple[UOp, ...], lanes: int, identities: Iterator[int]) -> UOp:
    node, loop = found.reduce, found.loop

    def again(r: UOp) -> UOp:
        return r.replace(arg=(next(identities), r.arg[1]))

    walked = {r: again(r) for r in node.closed_ranges}
    own = {**walked, **{r: again(r) for r in inner}}
    conditions, kept = conjuncts(found.condition.substitute(own)), found.kept.substitute(own)
    inside: UOp = UOp.const(True, dtypes.bool)
    at: dict[UOp, UOp] = {}
    for r in (loop, *(own[r] for r in inner)):
        solved = ((c, place) for c in conditions if (place := solved_for(c, r)) is not None)
        condition, place = next(solved, (None, None))
        if condition is None or place is None:
            at[r] = r
            continue
        inside = inside & (place >= 0) & (place < r.src[0])
        at[r] = place
        here = {r: place}
        at = {other: guard_loads(where.substitute(here), inside) for other, where in at.items()}
        conditions = [guard_loads(c.substitute(here), inside) for c in conditions if c is not condition]
        kept = guard_loads(kept.substitute(here), inside)
    for condition in conditions:
        inside = inside & guard_loads(condition, inside)
    places = tuple(at[own.get(r, r)] for r in (loop, *inner))
    loops = [r for r in (own[r] for r in inner) if at[r] is r]
    extents = [r.extent for r in (loop, *inner)]
    changes: dict[UOp, UOp] = {}
    if loops and lanes > 1 and at[own[inner[-1]]] is loops[-1] and loops[-1].extent % lanes == 0:
        last, lane = loops.pop(), UOp.range(lanes, next(identities), RangeKind.VECTOR)
        around = [UOp.range(last.extent // lanes, next(identities))] if last.extent > lanes else []
        changes[last] = (around[0] if around else UOp.const(0, dtypes.index)) * lanes + lane
        loops += [*around, lane]
    value, offset, inside = (n.substitute(changes) for n in (kept, _offset(places, extents), inside))
    first = next((r for r in loops if r.arg[1] is RangeKind.LOOP), None)
    if first is not None and inside.ranges.isdisjoint(loops):
        # Asked once for all that is added: the loop over it is empty where the answer is no.
        extent = first.src[0]
        bounded = first.replace(src=(extent, UOp.const(0, dtypes.index), inside.where(extent, 0)))
        value = with_guarded(value, inside, lambda load: first not in load.ranges)
        value, offset = value.substitute({first: bounded}), offset.substitute({first: bounded})
        loops[loops.index(first)] = bounded
        inside = UOp.const(True, dtypes.bool)
    else:
        value = guard_loads(value, inside)
    memory = UOp.new(Ops.SCATTER, node.dtype, (value, offset, inside, *walked.values(), *loops),
                     (next(identities), node.arg, int(prod(extents))))
    return memory.index(_offset((loop, *inner), extents)).load()


def _offset(places: tuple[UOp, ...], extents: list[int]) -> UOp:
    """Where an item lies, the last place the fastest."""
    offset = UOp.const(0, dtypes.index)
    for place, extent in zip(places, extents, strict=True):
        offset = offset * extent + place
    return offset


def _is_plain(r: UOp) -> bool:
    """True for a loop of a fixed number of iterations."""
    return r.arg[1] is RangeKind.LOOP and len(r.src) == 1 and r.src[0].op is Ops.CONST
