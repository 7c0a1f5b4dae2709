"""Which item of each source an item of a tensor needs.

An `Access` is one item of a tensor-graph node: an index expression for each axis, and the condition under
which the item is wanted. Its methods say which item of what is below movement, or of what is summed up, that
is. Both the scheduler, which decides what to fuse, and `lower`, which builds the loop nest, walk the graph
with them.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinygrad.codegen.ranges import ZERO as ZERO
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import TRUE, all_of, conjuncts
from tinygrad.graph.uop import UOp
from tinygrad.shape.shapetracker import ShapeTracker


class Access(NamedTuple):
    """An access function: which item of a value is read, for every iteration of the loops in `index`, where
    the predicate `valid` holds."""

    index: tuple[UOp, ...]  # type: ignore[assignment]  # hides tuple.index, which says nothing here
    valid: UOp = TRUE

    @property
    def ranges(self) -> frozenset[UOp]:
        """The loops that it changes with."""
        return self.valid.ranges.union(*(i.ranges for i in self.index))

    def through(self, tracker: ShapeTracker, shape: tuple[int, ...]) -> tuple[Access, UOp]:
        """The item that a view of something of `shape` shows here, and the condition outside which zero shows
        instead."""
        index, mask = tracker.indices(self.index, shape, self.valid)
        return Access(index, bounds_mask(self.valid & mask, index, shape)), mask

    def of_base(self, node: UOp) -> tuple[Access, UOp]:
        """The same of what `node` is movement of."""
        return self.through(node.st, node.base.shape)

    def reduced(self, axes: tuple[int, ...], loops: tuple[UOp, ...]) -> Access:
        """The item that a REDUCE over `axes` adds up here, inside `loops`."""
        places = dict(zip(axes, loops, strict=True))
        return Access(tuple(places.get(axis, i) for axis, i in enumerate(self.index)), self.valid)


def loops_over(extents: Iterable[int], first: int = 0) -> tuple[UOp, ...]:
    """A loop for each extent, numbered from `first`; an axis of one item needs none."""
    return tuple(ZERO if n == 1 else UOp.range(n, first + i) for i, n in enumerate(extents))


def shared_loops(depth: int, extents: tuple[int, ...], access: Access) -> tuple[object, ...]:
    """What tells the loops of a REDUCE at `access` from those of others: it shares them with those that run
    over equal extents for the same outer item, and have as many reduces below them (`depth`), for neither is
    made of the other then."""
    return depth, extents, tuple(i for i in access.index if i.op is not Ops.CONST), access.valid


def bounds_mask(valid: UOp, index: tuple[UOp, ...], shape: tuple[int, ...]) -> UOp:
    """The part of `valid` without which `index` could leave `shape`: all that loads must respect."""
    loose = [i.ranges for i, n in zip(index, shape, strict=True) if i.bounds[0] < 0 or i.bounds[1] >= n]
    if not loose:
        return TRUE
    suspects = frozenset[UOp]().union(*loose)
    return all_of(c for c in conjuncts(valid) if c.ranges & suspects or not c.ranges)


def range_extents(node: UOp) -> tuple[int, ...]:
    """The extents of the loops that a REDUCE of the tensor graph runs over."""
    return tuple(node.src[0].shape[axis] for axis in node.arg[1])


reduce_depth = Synthesized(
    lambda node: max([s.__dict__["_reduce_depth"] for s in node.src], default=0) + (node.op is Ops.REDUCE),
    "_reduce_depth")
"""How many reduces the deepest chain of sources of a tensor-graph node has. REDUCEs of equal depth do not
depend on each other."""


def splat_value(value: UOp) -> UOp | None:
    """The CONST that `value` is a splat of: movement over it, and nothing else. None for what is stored first
    (CONTIGUOUS), whatever its items are; `graph/leaf_tensors.py` asks for their number."""
    while value.op in Family.VIEW:
        value = value.src[0]
    return value if value.op is Ops.CONST else None
