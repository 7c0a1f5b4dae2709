"""`ShapeTracker`: a chain of movement ops, as a stack of views.

In: the movement ops between a node and its `base`. Out: for the coordinates of an item, the address in the
base's memory and the condition under which the item is not zero. The last view is the one users see, the
first addresses memory. Views merge where one can say what two say, which is nearly always.

Next on the path: `codegen/` writes loads and stores with `index` and `indices`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tinygrad.frozen import frozen
from tinygrad.graph import symbolic
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import Size
from tinygrad.graph.uop import Shape, UOp
from tinygrad.shape.view import View, unflatten

Index = tuple[UOp, UOp]


@frozen
class ShapeTracker:
    """Views, each of the items of the one before it, and the number of items in memory (None: not known)."""

    views: tuple[View, ...]
    base_size: int | None = None

    @staticmethod
    def contiguous_of(shape: Sequence[int]) -> ShapeTracker:
        """Memory of exactly this shape, in row-major order."""
        view = View.contiguous_of(tuple(shape))
        return ShapeTracker((view,), view.numel)

    @staticmethod
    def of_movements(node: UOp) -> ShapeTracker:
        """The movement ops from `node` down to `node.base`, whose items lie in row-major order."""
        chain = []
        while node.op in Family.MOVEMENT and "st" not in node.__dict__:
            chain.append(node)
            node = node.src[0]
        start = node.st if node.op in Family.MOVEMENT else node.shape
        return after_movements(start, tuple([(m.op, _argument(m)) for m in reversed(chain)]))

    @property
    def shape(self) -> Shape:
        return self.views[-1].shape

    @property
    def numel(self) -> int:
        return self.views[-1].numel

    def simplify(self) -> ShapeTracker:
        """The same map with as few views as merging gives."""
        views = list(self.views)
        at = len(views) - 2
        while at >= 0:
            merged = views[at + 1].merge(views[at])
            if merged is None:
                at -= 1
                continue
            views[at:at + 2] = [merged]
            at = min(at, len(views) - 2)
        return self if len(views) == len(self.views) else ShapeTracker(tuple(views), self.base_size)

    # --- what codegen asks ----------------------------------------------------------------------------------

    def index(self, coordinates: Sequence[UOp], known: UOp = symbolic.TRUE) -> Index:
        """(item of memory, condition) at these coordinates: where the condition fails the item is zero. What
        is `known` of the coordinates simplifies both."""
        view = self.views[-1]
        if len(coordinates) != len(view.shape):
            raise ValueError(f"{len(coordinates)} coordinates do not index the shape {view.shape}")
        offset, conditions = view.address(coordinates)
        valid = symbolic.all_of(conditions)
        for view in reversed(self.views[:-1]):
            given = symbolic.all_of([known, valid])
            inner = [_given(c, given) for c in unflatten(offset, view.shape)]
            offset, conditions = view.address(inner)
            valid = symbolic.all_of([valid, *conditions])
        return _given(offset, symbolic.all_of([known, valid])), valid

    def indices(self, coordinates: Sequence[UOp], base_shape: Sequence[int],
                known: UOp = symbolic.TRUE) -> tuple[tuple[UOp, ...], UOp]:
        """(coordinates in the base, of shape `base_shape`, condition) of the item at these coordinates, of
        which this is `known`."""
        return _indices(self, tuple(coordinates), tuple(base_shape), known)

    @property
    def contiguous(self) -> bool:
        """True if item n in row-major order is item n of memory."""
        return len(self.views) == 1 and self.views[0].contiguous

    @property
    def contiguous_whole(self) -> bool:
        """True if the items are all of memory, in order."""
        return self.contiguous and self.base_size == self.numel


@lru_cache(1 << 12)
def after_movements(start: ShapeTracker | Shape, movements: tuple[tuple[Ops, Any], ...]) -> ShapeTracker:
    """What movement ops, with the arguments of their UOps, make of items that lie so, or of memory of that
    shape; remembered, for programs make the same views again and again."""
    tracker = start if isinstance(start, ShapeTracker) else ShapeTracker.contiguous_of(start)
    views = tracker.views
    for op, argument in movements:
        views = _moved(views, op, argument)
    return ShapeTracker(views, tracker.base_size).simplify() if movements else tracker


@lru_cache(1 << 14)
def _indices(st: ShapeTracker, coordinates: tuple[UOp, ...], base_shape: tuple[int, ...],
             known: UOp) -> tuple[tuple[UOp, ...], UOp]:
    """`ShapeTracker.indices`, remembered: layers alike ask for the same."""
    offset, valid = st.index(coordinates, known)
    given = symbolic.all_of([known, valid])
    return tuple(_given(c, given) for c in unflatten(offset, base_shape)), valid


def _moved(views: tuple[View, ...], op: Ops, argument: Any) -> tuple[View, ...]:
    """The stack of views after one movement op, whose argument is that of the UOp."""
    moved = _MOVEMENTS[op](views[-1], argument)
    if moved is not None:
        return (*views[:-1], moved)
    above = _MOVEMENTS[op](View.contiguous_of(views[-1].shape), argument)
    assert above is not None  # what is contiguous has no mask, and any reshape of it is one view
    return (*views, above)


def _argument(movement: UOp) -> Any:
    """The argument of a movement op; the bounds of a SHRINK where its sources move them to."""
    if len(movement.src) == 1:
        return movement.arg
    moves = map(Size.of, movement.src[1:])
    return tuple((start + move, end + move) for (start, end), move in zip(movement.arg, moves, strict=True))


_MOVEMENTS: dict[Ops, Callable[[View, Any], View | None]] = {
    Ops.RESHAPE: View.reshape,
    Ops.PERMUTE: View.permute,
    Ops.EXPAND: View.expand,
    Ops.PAD: View.pad,
    Ops.SHRINK: View.shrink,
    Ops.STRIDE: View.stride,
}


def _given(expression: UOp, valid: UOp) -> UOp:
    """`expression` simplified where `valid` holds, if it is of a kind that bounds can simplify."""
    terms = symbolic.linear_terms(expression).terms
    if valid is symbolic.TRUE or all(a.op in (Ops.RANGE, Ops.VARIABLE, Ops.SPECIAL) for a in terms):
        return expression
    return symbolic.simplify_given(expression, valid)
