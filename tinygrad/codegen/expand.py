"""UNROLL, VECTOR and FRAGMENT ranges written out.

In: a nest in which a Plan has marked ranges. Out: the same nest with LOOP and THREAD ranges, and those of
blocks, only: an unrolled value is there once for each iteration, a vectorised one is a vector of as many
lanes as its range has iterations; what a lane of a warp holds of a matrix unit's tile is a vector too. Next
on the path: `primitives`, then `linearize`.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tinygrad.codegen.collapse import simplified
from tinygrad.codegen.ranges import ACCUMULATING, of_kind, running_in, values_of
from tinygrad.codegen.transpose import (
    are_adjacent,
    at_lane,
    in_each_lane,
    interleaved_vector,
    rows_of_tile,
    stored_by_runs,
    strided_vector,
    tiles_of,
    transposed_vectors,
)
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.symbolic import constant, plus_terms, split_sum
from tinygrad.graph.uop import CLOSING, UOp


def expand(nest: UOp) -> UOp:
    """The nest with unrolled and vector ranges written out."""
    return vectorised(unrolled(nest))


# --- UNROLL -------------------------------------------------------------------------------------------------


@graph_pass("unroll")
def unrolled(nest: UOp) -> UOp:
    """The nest with one copy of each value for every iteration of the UNROLL ranges that it changes with."""

    def written_out(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node is nest:
            return UOp.sink(copy for store in src for copy in _unrolled_stores(store))
        new = node.with_sources(src)
        ranges = of_kind(new.closed_ranges, RangeKind.UNROLL)
        return _unrolled(new, ranges) if ranges and new.op in ACCUMULATING else new

    return nest.rebuild(written_out)


def _copies(values: Iterable[UOp], ranges: list[UOp]) -> list[tuple[UOp, ...]]:
    """These values once for every combination of iterations of `ranges`. What changes with some of them only
    is made once for every combination of those."""
    known = frozenset(ranges)
    whole = UOp.sink(values)
    used = set(whole.src)
    changing = []
    for node in reversed(whole.toposort(stop=lambda n: n.ranges.isdisjoint(known))):
        if node in used and node not in known and not node.ranges.isdisjoint(known):
            copy: Callable[[Mapping[UOp, UOp]], UOp] = partial(_over, node)
            if node.op is Ops.ADD and node.dtype is dtypes.index:
                base, moving = split_sum(node, lambda atom: not atom.ranges.isdisjoint(known))
                copy = partial(plus_terms, base, moving)
                used.update(moving)
            else:
                used.update(node.src)
            changing.append((node, [i for i, r in enumerate(ranges) if r in node.ranges], copy))
    changing.reverse()
    made: dict[tuple[UOp, tuple[int, ...]], UOp] = {}
    copies = []
    for counters in itertools.product(*(range(r.extent) for r in ranges)):
        here = {r: constant(i) for r, i in zip(ranges, counters, strict=True)}
        for node, own, copy in changing:
            key = (node, tuple([counters[i] for i in own]))
            if key not in made:
                made[key] = copy(here)
            here[node] = made[key]
        copies.append(tuple([here.get(s, s) for s in whole.src]))
    return copies


def _over(node: UOp, changes: Mapping[UOp, UOp]) -> UOp:
    """A node over what its sources have become."""
    return node.with_sources(tuple([changes.get(s, s) for s in node.src]))


def _unrolled_stores(store: UOp) -> list[UOp]:
    ranges = of_kind(store.closed_ranges, RangeKind.UNROLL)
    loops = [r for r in store.closed_ranges if r not in ranges]
    return [store.replace(src=(*copy, *loops)) for copy in _copies(values_of(store), ranges)]


def _unrolled(node: UOp, ranges: list[UOp]) -> UOp:
    """What takes its values in each iteration of `ranges` takes the copies of all in one, one after the
    other; a REDUCE without other loops is what these are together."""
    values, closed = values_of(node), node.closed_ranges
    factor = values[:1] if node.arg is Ops.MULACC else ()  # once an iteration of the loop
    copies = [value for copy in _copies(values[len(factor):], ranges) for value in copy]
    loops, arg = [r for r in closed if r not in ranges], node.arg
    if node.op is Ops.STAGE:  # where they lie in memory is what is left of the order of the ranges
        first = closed.index(ranges[0])
        inner = closed[first + len(ranges):]
        if closed[first:first + len(ranges)] != tuple(ranges):
            raise RuntimeError("the unrolled ranges of staged memory stand one directly in the other")
        arg = (*arg, count) if (count := len(of_kind(inner, RangeKind.LOOP))) else arg
    elif node.op is Ops.REDUCE and not loops:
        while len(copies) > 1:
            pairs = [copies[i:i + 2] for i in range(0, len(copies), 2)]
            copies = [p[0] if len(p) == 1 else simplified(node.arg, node.dtype, *p) for p in pairs]
        return copies[0]
    return node.replace(src=(*factor, *copies, *loops), arg=arg)


# --- VECTOR and FRAGMENT ------------------------------------------------------------------------------------

AS_VECTORS = (RangeKind.VECTOR, RangeKind.FRAGMENT)
"""Kinds of ranges whose iterations are the lanes of a vector."""


@graph_pass("vectorize")
def vectorised(nest: UOp) -> UOp:
    """The nest with vectors in place of the values that change with a VECTOR or FRAGMENT range."""
    tiles = tiles_of(nest)
    by_rows = {s for n in nest.nodes_of(Ops.MMA) if n.arg.by_rows for s in n.src[:2] if s.op is Ops.LOAD}
    lanes_of_nest = frozenset(of_kind(nest.nodes_of(Ops.RANGE), *AS_VECTORS))
    transposed: dict[tuple[UOp, ...], list[UOp]] = {}
    done: dict[UOp, UOp] = {}

    def vector(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node is nest:
            return UOp.sink(stored_by_runs(nest.src, src, done))
        lanes = tuple(lanes_of_nest & running_in(node))
        if node.op is Ops.MMA:
            return _tiles_product(node, src)
        if len(lanes) > 1:
            raise RuntimeError(f"a value changes with the lanes of {len(lanes)} ranges")
        if node.op is Ops.LOAD and _is_in_registers(node.memory):
            return _register_values(node.offset, done[node.memory], lanes)
        if not lanes:
            return node.with_sources(src)
        if node in tiles:
            tile, place = tiles[node]
            if tile not in transposed:
                transposed[tile] = transposed_vectors(tile, lanes[0], done)
            return transposed[tile][place]
        if node in by_rows and (rows := rows_of_tile(node, lanes[0])) is not None:
            return _loaded_rows(node, rows, lanes[0], done)
        whole = None
        if node.op is Ops.LOAD and lanes[0].kind is RangeKind.VECTOR:
            whole = strided_vector(node, lanes[0], done) or interleaved_vector(node, lanes[0], done)
        return _vector_node(node, src, lanes[0], done) if whole is None else whole

    return nest.rebuild(vector, done=done)


def _vector_node(node: UOp, src: tuple[UOp, ...], lane: UOp, done: dict[UOp, UOp]) -> UOp:
    count = lane.extent
    if node is lane:
        return UOp.new(Ops.CONST, dtypes.index.vec(count), (), tuple(range(count)))
    if lane.kind is RangeKind.FRAGMENT and _is_index_arithmetic(node):
        return _each_lane_apart(node, lane)
    if node.op is Ops.INDEX:
        return _vector_address(node, src, lane, done)
    if node.op is Ops.LOAD:
        return node.replace(dtype=node.dtype.vec(count), src=src)
    if node.op not in CLOSING and node.op is not Ops.RUNNING:
        return node.replace(dtype=node.dtype.vec(count), src=tuple([splat(s, count) for s in src]))
    closed = node.closed_ranges
    first = src[:1] if node.op is Ops.STORE else ()  # an address says by itself whose it is
    last = len(src) - (1 if node.op is Ops.RUNNING else len(closed))
    values = [splat(s, count) for s in src[len(first):last]]
    # what became of the loops around: their bounds may have been vectors
    loops = [new for old, new in zip(node.src[last:], src[last:], strict=True) if old is not lane]
    if node.op is Ops.STAGE and lane in closed[:-1]:
        raise RuntimeError("only the last range of staged memory can run as lanes")
    if node.op is Ops.SCATTER:
        places = values_of(node)[1::3]
        if lane not in closed or not all(are_adjacent(at, lane) for at in places):
            raise RuntimeError("lanes accumulate in memory that is theirs, side by side")
        values[1::3] = [at_lane(at, lane, 0, done) for at in places]
    if node.op is not Ops.REDUCE:
        return node.replace(dtype=node.dtype.vec(count), src=(*first, *values, *loops))
    result = values[0]
    if loops or len(values) > 1:
        result = node.replace(dtype=node.dtype.vec(count), src=(*values, *loops))
    return node.replace(src=(result,)) if lane in closed else result


def _is_in_registers(memory: UOp) -> bool:
    return memory.op is Ops.STAGE and memory.arg[1] is Memory.REGISTER


def _register_values(offset: UOp, stage: UOp, lanes: Sequence[UOp]) -> UOp:
    """What a LOAD from a STAGE in registers gives: for each of its lanes, one of the values that are staged
    there."""
    values = values_of(stage)
    picked = []
    for place in in_each_lane(offset, lanes[0]) if lanes else [offset]:
        if place.op is not Ops.CONST:
            raise RuntimeError("which of the values in registers is read has to be known")
        number, element = divmod(place.arg, stage.dtype.count)
        picked.append(UOp.new(Ops.EXTRACT, stage.dtype.scalar, (values[number],), element))
    if len(picked) == 1:
        return picked[0]
    return UOp.new(Ops.VECTORIZE, stage.dtype.scalar.vec(len(picked)), tuple(picked))


def _is_index_arithmetic(node: UOp) -> bool:
    """True for what is computed from counters alone."""
    of_index = all(s.dtype.scalar is dtypes.index or s.dtype.is_bool for s in (node, *node.src))
    return node.op in Family.ELEMENTWISE and of_index and not node.nodes_of(Ops.LOAD)


def _each_lane_apart(node: UOp, lane: UOp) -> UOp:
    """Index arithmetic that is simple in each lane, and nothing regular from lane to lane."""
    return UOp.new(Ops.VECTORIZE, node.dtype.vec(lane.extent), tuple(in_each_lane(node, lane)))


def _tiles_product(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """What a unit makes of its two tiles, added to nothing."""
    unit = node.arg
    if unit.in_shared:
        a, b = src[:2]
    else:
        a, b = (splat(s, f.registers) for s, f in zip(src[:2], (unit.a, unit.b), strict=True))
    nothing = UOp.new(Ops.CONST, node.dtype.vec(unit.c.registers), (), node.dtype.as_const(0))
    return UOp.new(Ops.MMA, nothing.dtype, (a, b, nothing, node.src[2]), unit)


def splat(value: UOp, count: int) -> UOp:
    """`value` in every lane of a vector, if it is not a vector already."""
    if value.dtype.count == count:
        return value
    if value.op is Ops.CONST:
        return UOp.new(Ops.CONST, value.dtype.vec(count), (), value.arg)
    return UOp.new(Ops.VECTORIZE, value.dtype.vec(count), (value,))


def _vector_address(node: UOp, src: tuple[UOp, ...], lane: UOp, done: dict[UOp, UOp]) -> UOp:
    """The address of the first lane where lanes lie side by side, else the address of every lane."""
    offset = node.src[1]
    if node.src[0].op is Ops.STAGE and lane in node.src[0].ranges:
        if lane in offset.ranges:
            raise RuntimeError("a lane reads what another one staged")
        return node.replace(src=(src[0], offset * lane.extent))
    if are_adjacent(offset, lane):  # one address serves all lanes, and a condition that all have
        return node.replace(src=(src[0], at_lane(offset, lane, 0, done), *src[2:]))
    return node.replace(src=(src[0], *(splat(s, lane.extent) for s in src[1:])))


def _loaded_rows(load: UOp, places: tuple[int, ...], lane: UOp, done: dict[UOp, UOp]) -> UOp:
    """A LOAD of items at known distances from the first one."""
    memory, offset = load.src[0].src
    first = UOp.new(Ops.VECTORIZE, dtypes.index.vec(lane.extent), (at_lane(offset, lane, 0, done),))
    every = UOp.new(Ops.ADD, first.dtype, (first, UOp.new(Ops.CONST, first.dtype, (), places)))
    address = load.src[0].replace(src=(done[memory], every))
    return UOp.new(Ops.LOAD, load.dtype.vec(lane.extent), (address,), load.arg)
