"""Movement of items: `a.reshape((2, 3)).permute((1, 0))`, without computing anything.

`UOp` derives from `Movement` and says how an operation makes a node. Shapes that do not fit are refused
(`graph/shapes.py`); what changes nothing makes no node.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np

from tinygrad.graph.ops import Ops
from tinygrad.graph.shapes import check_movement
from tinygrad.graph.sizes import Size


class Movement:
    """A node that has a shape."""

    __slots__ = ()
    op: Ops
    src: tuple[Self, ...]
    arg: Any
    shape: tuple[int, ...]

    def under(self, op: Ops, arg: Any = None) -> Self:
        """The node of an operation of one source over this one, of its dtype."""
        raise NotImplementedError

    def move(self, op: Ops, argument: Sequence[Any]) -> Self:
        """The items after a movement op with this argument; this node where that changes nothing. Raises
        ValueError for an argument that does not fit the shape."""
        moves = _moved if Size.exists else _moved_again
        moved = moves(op, self.shape, tuple(argument))
        return self if moved is None else self.under(op, moved)

    def reshape(self, shape: Sequence[int]) -> Self:
        return self.move(Ops.RESHAPE, shape)

    @property
    def unreshaped(self) -> Self:
        """What has these items, in this order, before any reshape."""
        node = self
        while node.op is Ops.RESHAPE:
            node = node.src[0]
        return node

    def permute(self, order: Sequence[int]) -> Self:
        return self.move(Ops.PERMUTE, order)

    def expand(self, shape: Sequence[int]) -> Self:
        return self.move(Ops.EXPAND, shape)

    def pad(self, pads: Sequence[tuple[int, int]]) -> Self:
        """Zeros before and after each axis."""
        return self.move(Ops.PAD, [(b, a) for b, a in pads])

    def shrink(self, bounds: Sequence[tuple[int, int]]) -> Self:
        """The items from start to end of each axis."""
        return self.move(Ops.SHRINK, [(s, e) for s, e in bounds])

    def shrink_axis(self, axis: int, span: tuple[int, int]) -> Self:
        """The items of one axis in a span, all of the others."""
        return self.shrink([span if i == axis else (0, n) for i, n in enumerate(self.shape)])

    def stride(self, steps: Sequence[int]) -> Self:
        """Every nth item of each axis, from the first; from the last where the step is negative (-1
        flips)."""
        return self.move(Ops.STRIDE, steps)


_UNCHANGED: dict[Ops, Callable[[tuple[int, ...]], tuple[Any, ...]]] = {
    **dict.fromkeys((Ops.RESHAPE, Ops.EXPAND), lambda shape: shape),
    Ops.PERMUTE: lambda shape: tuple(range(len(shape))),
    Ops.PAD: lambda shape: ((0, 0),) * len(shape),
    Ops.SHRINK: lambda shape: tuple([(0, n) for n in shape]),
    Ops.STRIDE: lambda shape: (1,) * len(shape),
}
"""The argument with which each movement op leaves a value of some shape as it is."""
_WHOLE = frozenset({int})


def _moved(op: Ops, shape: tuple[int, ...], argument: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The argument of a movement op, checked; None where it changes nothing."""
    if argument == _UNCHANGED[op](shape):
        return None
    check_movement(op, shape, argument)
    return _as_python(argument)


_moved_again = lru_cache(1 << 14)(_moved)
"""The same where all sizes are numbers."""


def _as_python(arg: tuple[Any, ...]) -> tuple[Any, ...]:
    """The argument of a movement op with NumPy's integers, and bools, as Python's: shapes are made of it."""
    if _WHOLE.issuperset(map(type, arg)):
        return arg
    return tuple([_as_python(a) if type(a) is tuple else int(a) if isinstance(a, (bool, np.integer)) else a
                  for a in arg])
