"""From a kernel's piece of the tensor graph to its loop nest.

In: SINK of ASSIGN(view of a PARAM, value), the values made of elementwise, reduce and movement ops over
PARAMs. Out: SINK of STORE(address, value, *ranges), in which a loop is a value (RANGE), a REDUCE closes its
ranges and all index arithmetic is explicit and simplified. Reduces that do not depend on each other and run
over equal extents for the same outer item share their loops; outputs of equal shape share theirs. Next on the
path: `opt/`, which chooses how the nest runs.
"""
from __future__ import annotations

import itertools
from functools import lru_cache
from itertools import pairwise, permutations

from tinygrad.codegen.collapse import collapsed_reduce, simplified
from tinygrad.codegen.indexing import (
    ZERO,
    Point,
    range_extents,
    reduce_depth,
    reduced_point,
    shared_loops,
    splat_value,
    through_movement,
)
from tinygrad.codegen.predicate import both, is_loaded_under
from tinygrad.codegen.ranges import output_ranges, separate_loops
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.uop import UOp

MOST_ORDERED = 4
"""Loops all of whose orders are tried, to find those in which a view is computed already."""


@graph_pass("lower")
@lru_cache(1024)
def lower(ast: UOp) -> UOp:
    """The loop nest of the kernel `ast`. Remembered: the scheduler looks at it before it is compiled."""
    return _Lowering(ast).nest()


def value_at(node: UOp, index: tuple[UOp, ...]) -> UOp:
    """The value of one item of a tensor-graph node, inside the loops that `index` is made of."""
    taken = (r.identity for i in index for r in i.ranges)
    return _Lowering(node, 1 + max(taken, default=-1)).value(Point(node, index, None))


class _Lowering:
    """The state of one lowering: the ranges given out and the value of every point met."""

    def __init__(self, ast: UOp, first_identity: int = 0) -> None:
        self.ast = ast
        self.depth = reduce_depth(ast)
        self.identities = itertools.count(first_identity)
        self.output_ranges: dict[tuple[int, ...], tuple[UOp, ...]] = {}
        self.reduce_ranges: dict[tuple[object, ...], tuple[UOp, ...]] = {}
        self.values: dict[Point, UOp] = {}
        self.stored_over: set[UOp] = set()
        """the loops over outputs"""
        self.loops_of_stores: list[frozenset[UOp]] = []
        """those of each output"""

    def nest(self) -> UOp:
        # The first output has the loops; the others (a row's statistics, the row) are found inside them.
        nest = UOp.sink([self.store(*assign.src) for assign in self.ast.src])
        return loops_outermost_first(separate_loops(nest, places=False))

    def store(self, target: UOp, value: UOp) -> UOp:
        value, condition = value.src if value.op is Ops.LIVE_OUT else (value, None)
        index = self.output_index(value)
        live_out = None if condition is None else self.value(Point(condition, index, None))
        stored = self.value(Point(value, index, None))
        place, mask = through_movement(Point(target, index, None))
        if mask is not None and live_out is None:
            raise RuntimeError(f"the target of an ASSIGN is padded: {target}")
        ranges = [r for r in index if r.op is Ops.RANGE]
        self.stored_over.update(ranges)
        self.loops_of_stores.append(frozenset(ranges))
        return place.node.index(place.index[0], both(live_out, mask)).store(stored, *ranges)

    def output_index(self, value: UOp) -> tuple[UOp, ...]:
        """The loops over an output: those in which its value is already computed, or new ones. A row that
        a REDUCE reads has its outer loops and a new one of its own."""
        base = value.base
        for point in self.values:
            index = _index_of_view(value, point) if point.node in (value, base) else None
            if index is not None and self.can_be_nested(index):
                inner = {i for i in index if i.op is Ops.RANGE} - self.stored_over
                return tuple(self.new_range(i.extent) if i in inner else i for i in index)
        if value.shape not in self.output_ranges:
            self.output_ranges[value.shape] = tuple(self.new_range(n) for n in value.shape)
        return self.output_ranges[value.shape]

    def can_be_nested(self, index: tuple[UOp, ...]) -> bool:
        """Whether an output in the loops of this index can run beside those before it: what it shares with
        others, and they with each other, are the outermost loops of both."""
        stores = [*self.loops_of_stores, frozenset(r for r in index if r in self.stored_over)]
        shared = (sorted((loops & others for others in stores), key=len) for loops in stores)
        return all(fewer <= more for one in shared for fewer, more in pairwise(one))

    def new_range(self, extent: int) -> UOp:
        return ZERO if extent == 1 else UOp.range(extent, next(self.identities))

    def value(self, root: Point) -> UOp:
        """The loop-nest value of a point. Walks an explicit stack: chains of a thousand ops are fine."""
        stack: list[tuple[Point, list[Point] | None]] = [(root, None)]
        while stack:
            point, needed = stack.pop()
            if point in self.values:
                continue
            if needed is None:
                needed = self.needs(point)
                stack.append((point, needed))
                stack.extend((p, None) for p in reversed(needed))
            else:
                self.values[point] = self.build(point, [self.values[p] for p in needed])
        return self.values[root]

    def needs(self, point: Point) -> list[Point]:
        """The points that the value of `point` is made from."""
        node = point.node
        if splat_value(node) is not None:
            return []
        if node.op in Family.MOVEMENT:
            return [through_movement(point)[0]]
        if node.op is Ops.REDUCE:
            return [reduced_point(point, self.ranges_of(point))]
        computed_from = node.src if node.op in Family.ELEMENTWISE else ()
        if node.op is Ops.LIVE_OUT:
            computed_from = node.src[:1]
        return [Point(s, point.index, point.valid) for s in computed_from]

    def ranges_of(self, point: Point) -> tuple[UOp, ...]:
        """The loops of a REDUCE at `point`, shared with reduces alike."""
        key = shared_loops(self.depth[point.node], range_extents(point.node), point.index, point.valid)
        if key not in self.reduce_ranges:
            self.reduce_ranges[key] = tuple(self.new_range(n) for n in range_extents(point.node))
        return self.reduce_ranges[key]

    def build(self, point: Point, sources: list[UOp]) -> UOp:
        node = point.node
        if node.op is Ops.PARAM:
            return node.index(point.index[0], point.valid).load()
        constant = splat_value(node)
        if constant is not None:
            return UOp.const(constant.arg, node.dtype)
        if node.op is Ops.VARIABLE:
            return node.replace(src=())
        if node.op in Family.MOVEMENT:
            mask = through_movement(point)[1]
            if mask is None or is_loaded_under(sources[0], mask):
                return sources[0]
            return simplified(Ops.WHERE, node.dtype, mask, sources[0], UOp.const(0, node.dtype))
        if node.op is Ops.LIVE_OUT:
            return sources[0]
        if node.op is Ops.REDUCE:
            return collapsed_reduce(node.arg[0], sources[0], self.ranges_of(point))
        return simplified(node.op, node.dtype, *sources)


def _index_of_view(value: UOp, point: Point) -> tuple[UOp, ...] | None:
    """Where `value` shows what is computed at `point`: an item of it, or of what it is a view of, for each
    iteration of some loops. None where it shows that nowhere."""
    if point.valid is not None or not runs_over(point.index, point.node.shape):
        return None
    if point.node is value:
        return point.index
    loops = [i for i in point.index if i.op is Ops.RANGE]
    sizes = [n for n in value.shape if n != 1]
    for order in permutations(loops) if len(loops) == len(sizes) <= MOST_ORDERED else ():
        if [r.extent for r in order] == sizes:
            left = iter(order)
            index = tuple(ZERO if n == 1 else next(left) for n in value.shape)
            shown, mask = through_movement(Point(value, index, None))
            if mask is None and shown.index == point.index:
                return index
    return None


def runs_over(index: tuple[UOp, ...], shape: tuple[int, ...]) -> bool:
    """True if the ranges of `index` run over every item of something of `shape` exactly once."""
    ranges = [i for i in index if i.op is Ops.RANGE]
    are_whole = (n == (i.extent if i.op is Ops.RANGE else 1) for i, n in zip(index, shape, strict=True))
    return all(are_whole) and len(set(ranges)) == len(ranges)


def loops_outermost_first(sink: UOp) -> UOp:
    """The nest with every STORE's ranges ordered so that what is computed once a row encloses the row's
    items.

    A range goes outside the more STOREs run in it, and of those that as many do, the more sets of loops need
    it: each STORE its own, each REDUCE those its value changes with. (One inside the loops of another REDUCE
    stands there, wherever that is.)
    """
    outputs = {frozenset(store.closed_ranges) for store in sink.src}
    of_outputs = output_ranges(sink)
    needed = outputs.union(n.ranges for n in sink.nodes_of(Ops.REDUCE) if n.ranges <= of_outputs)

    def rank(r: UOp) -> tuple[int, int, int]:
        return (-sum(r in loops for loops in outputs), -sum(r in loops for loops in needed), r.identity)

    stores = []
    for store in sink.src:
        ranges = sorted(store.closed_ranges, key=rank)
        stores.append(store.replace(src=(*store.src[:2], *ranges)))
    return UOp.sink(stores)
