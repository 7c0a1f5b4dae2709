"""From a kernel's piece of the tensor graph to its loop nest.

In: SINK of ASSIGN(view of a PARAM, value), the values made of elementwise, reduce and movement ops over
PARAMs. Out: SINK of STORE(address, value, *ranges), in which a loop is a value (RANGE), a REDUCE closes its
ranges and all index arithmetic is explicit and simplified. Reduces that do not depend on each other and run
over equal extents for the same outer item share their loops; outputs of equal shape share theirs. Next on the
path: `opt/`, which chooses how the nest runs.
"""
from __future__ import annotations

import itertools
from collections.abc import Generator
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any

from tinygrad.codegen.collapse import collapsed_reduce, folded
from tinygrad.codegen.indexing import (
    ZERO,
    Access,
    range_extents,
    reduce_depth,
    shared_loops,
    splat_value,
)
from tinygrad.codegen.predicate import is_loaded_under
from tinygrad.codegen.ranges import output_ranges, ranges_among, separate_loops
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.symbolic import TRUE
from tinygrad.graph.uop import UOp

MOST_ORDERED = 4
"""Loops all of whose orders are tried, to find those in which a view is computed already."""
Point = tuple[UOp, Access]
"""A node of the tensor graph, and which of its items."""


@graph_pass("lower")
@lru_cache(1024)
def lower(ast: UOp) -> UOp:
    """The loop nest of the kernel `ast`. Remembered: the scheduler looks at it before it is compiled."""
    return _Lowering(ast).nest()


def parameter(node: UOp, slot: int) -> UOp:
    """An argument of a kernel, in the place of `node`."""
    return UOp.new(Ops.PARAM, node.dtype, (), (slot, node.numel)).reshape(node.shape)


def value_at(node: UOp, index: tuple[UOp, ...]) -> UOp:
    """The value of one item of a tensor-graph node, inside the loops that `index` is made of."""
    taken = (r.identity for i in index for r in i.ranges)
    return _Lowering(node, 1 + max(taken, default=-1)).value(node, Access(index))


class _Lowering:
    """The state of one lowering: the ranges given out and the value of every point met."""

    def __init__(self, ast: UOp, first_identity: int = 0) -> None:
        self.ast = ast
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
        live_out = TRUE if condition is None else self.value(condition, Access(index))
        stored = self.value(value, Access(index))
        place, mask = Access(index).of_base(target)
        if mask is not TRUE and condition is None:
            raise RuntimeError(f"the target of an ASSIGN is padded: {target}")
        ranges = ranges_among(index)
        self.stored_over.update(ranges)
        self.loops_of_stores.append(frozenset(ranges))
        return target.base.index(place.index[0], live_out & mask).store(stored, *ranges)

    def output_index(self, value: UOp) -> tuple[UOp, ...]:
        """The loops over an output: those in which its value is already computed, or new ones. A row that
        a REDUCE reads has its outer loops and a new one of its own."""
        base = value.base
        for node, access in self.values:
            index = _index_of_view(value, node, access) if node in (value, base) else None
            if index is not None and self.can_be_nested(index):
                inner = set(ranges_among(index)) - self.stored_over
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

    def value(self, node: UOp, access: Access) -> UOp:
        """The loop-nest value of an item. Walks an explicit stack: chains of a thousand ops are fine."""
        root = node, access
        stack = [] if root in self.values else [(root, self.made(*root))]
        value: UOp | None = None
        while stack:
            point, making = stack[-1]
            try:
                needed = making.send(value)
            except StopIteration as made:
                value = self.values[point] = made.value
                stack.pop()
                continue
            value = self.values.get(needed)
            if value is None:
                stack.append((needed, self.made(*needed)))
        return self.values[root]

    def made(self, node: UOp, access: Access) -> Generator[Point, Any, UOp]:
        """Makes the value of an item: yields each point that it is made from, whose value is sent."""
        if node.op is Ops.PARAM:
            return node.index(access.index[0], access.valid).load()
        if (constant := splat_value(node)) is not None:
            return UOp.const(constant.arg, node.dtype)
        if node.op is Ops.VARIABLE:
            return node.replace(src=())
        if node.op in Family.MOVEMENT:
            below, mask = access.of_base(node)
            shown: UOp = yield node.base, below
            if mask is TRUE or is_loaded_under(shown, mask):
                return shown
            return folded(mask.where(shown, 0))
        if node.op is Ops.REDUCE:
            ranges = self.ranges_of(node, access)
            reduced: UOp = yield node.src[0], access.reduced(node.arg[1], ranges)
            return collapsed_reduce(node.arg[0], reduced, ranges)
        if node.op is Ops.LIVE_OUT:
            live: UOp = yield node.src[0], access
            return live
        sources = []
        for source in node.src:
            sources.append((yield source, access))
        return folded(node.with_sources(tuple(sources)))

    def ranges_of(self, node: UOp, access: Access) -> tuple[UOp, ...]:
        """The loops of a REDUCE at `access`, shared with reduces alike."""
        key = shared_loops(reduce_depth.of(node), range_extents(node), access)
        if key not in self.reduce_ranges:
            self.reduce_ranges[key] = tuple(self.new_range(n) for n in range_extents(node))
        return self.reduce_ranges[key]


def _index_of_view(value: UOp, node: UOp, access: Access) -> tuple[UOp, ...] | None:
    """Where `value` shows what is computed of `node` at `access`: an item of it, or of what it is a view of,
    for each iteration of some loops. None where it shows that nowhere."""
    if not runs_over(access.index, node.shape):
        return None
    if node is value:
        return access.index
    loops = ranges_among(access.index)
    sizes = [n for n in value.shape if n != 1]
    for order in permutations(loops) if len(loops) == len(sizes) <= MOST_ORDERED else ():
        if [r.extent for r in order] == sizes:
            left = iter(order)
            index = tuple(ZERO if n == 1 else next(left) for n in value.shape)
            shown, mask = Access(index).of_base(value)
            if mask is TRUE and shown.index == access.index:
                return index
    return None


def runs_over(index: tuple[UOp, ...], shape: tuple[int, ...]) -> bool:
    """True if the ranges of `index` run over every item of something of `shape` exactly once."""
    ranges = ranges_among(index)
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
