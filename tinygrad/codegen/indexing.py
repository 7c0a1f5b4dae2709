"""Which item of each source an item of a tensor needs.

A `Point` is one item of a tensor-graph node: the node, an index expression for each axis, and the condition
under which the item is wanted (None: always). `needs` says which points of its sources a point is computed
from. Both the scheduler, which decides what to fuse, and `lower`, which builds the loop nest, walk the graph
with it.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinygrad.codegen.predicate import both, unless_always
from tinygrad.codegen.ranges import ZERO as ZERO
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import TRUE, conjuncts
from tinygrad.graph.uop import UOp
from tinygrad.shape.shapetracker import ShapeTracker


class Point(NamedTuple):
    """One item of a node, for every value of the ranges in `index`."""

    node: UOp
    index: tuple[UOp, ...]  # type: ignore[assignment]  # hides tuple.index, which says nothing here
    valid: UOp | None

    @property
    def ranges(self) -> frozenset[UOp]:
        """The loops that this item changes with."""
        return ranges_of(self.index, self.valid)


def loops_over(extents: Iterable[int], first: int = 0) -> tuple[UOp, ...]:
    """A loop for each extent, numbered from `first`; an axis of one item needs none."""
    return tuple(ZERO if n == 1 else UOp.range(n, first + i) for i, n in enumerate(extents))


def shared_loops(depth: int, extents: tuple[int, ...], index: tuple[UOp, ...],
                 valid: UOp | None) -> tuple[object, ...]:
    """What tells the loops of a REDUCE at `index` from those of others: it shares them with those that run
    over equal extents for the same outer item, and have as many reduces below them (`depth`), for neither is
    made of the other then."""
    return depth, extents, tuple(i for i in index if i.op is not Ops.CONST), valid


def ranges_of(index: tuple[UOp, ...], valid: UOp | None) -> frozenset[UOp]:
    """The loops that an item at `index`, wanted where `valid` holds, changes with."""
    found = frozenset[UOp]().union(*[i.ranges for i in index])
    return found if valid is None else found | valid.ranges


def bounds_mask(valid: UOp | None, index: tuple[UOp, ...], shape: tuple[int, ...]) -> UOp | None:
    """The part of `valid` without which `index` could leave `shape`: all that loads must respect."""
    if valid is None:
        return None
    loose = [i.ranges for i, n in zip(index, shape, strict=True) if i.bounds[0] < 0 or i.bounds[1] >= n]
    if not loose:
        return None
    suspects = frozenset[UOp]().union(*loose)
    result: UOp | None = None
    for condition in conjuncts(valid):
        if condition.ranges & suspects or not condition.ranges:
            result = both(result, condition)
    return result


def through_movement(point: Point) -> tuple[Point, UOp | None]:
    """The point of `point.node.base` that shows at `point`, and the condition outside which zero shows
    instead."""
    base = point.node.base
    index, valid, mask = shown_item(point.node.st, base.shape, point.index, point.valid)
    return Point(base, index, valid), mask


def shown_item(tracker: ShapeTracker, shape: tuple[int, ...], index: tuple[UOp, ...],
               valid: UOp | None) -> tuple[tuple[UOp, ...], UOp | None, UOp | None]:
    """Which item of something of `shape` a view of it shows at `index`, where `valid` holds: its index, the
    condition under which it is wanted, and the one outside which zero shows instead."""
    index, whole_mask = tracker.indices(index, shape, TRUE if valid is None else valid)
    mask = unless_always(whole_mask)
    return index, bounds_mask(both(valid, mask), index, shape), mask


def reduced_point(point: Point, ranges: tuple[UOp, ...]) -> Point:
    """The point of a REDUCE's source inside the loops `ranges`, one for each of its axes."""
    return Point(point.node.src[0], reduced_index(point.index, point.node.arg[1], ranges), point.valid)


def reduced_index(index: tuple[UOp, ...], axes: tuple[int, ...], ranges: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The index of an item that a REDUCE over `axes`, at `index`, adds up inside the loops `ranges`."""
    loops = dict(zip(axes, ranges, strict=True))
    return tuple(loops.get(axis, i) for axis, i in enumerate(index))


def range_extents(node: UOp) -> tuple[int, ...]:
    """The extents of the loops that a REDUCE of the tensor graph runs over."""
    return tuple(node.src[0].shape[axis] for axis in node.arg[1])


def reduce_depth(root: UOp) -> dict[UOp, int]:
    """For each REDUCE under `root`, how many reduces its deepest chain of sources has. Equal: independent."""
    depth: dict[UOp, int] = {}
    for node in root.toposort():
        depth[node] = max((depth[s] for s in node.src), default=0) + (node.op is Ops.REDUCE)
    return depth


def splat_value(value: UOp) -> UOp | None:
    """The CONST that `value` is a splat of: movement over it, and nothing else. None for what is stored first
    (CONTIGUOUS), whatever its items are; `graph/leaf_tensors.py` asks for their number."""
    while value.op in Family.VIEW:
        value = value.src[0]
    return value if value.op is Ops.CONST else None
