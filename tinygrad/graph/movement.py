"""Movement of items: `a.reshape((2, 3)).permute((1, 0))`, without computing anything.

`UOp` derives from `Movement` and says how an operation makes a node. Shapes that do not fit are refused
(`graph/shapes.py`); what changes nothing makes no node.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tinygrad.graph import shapes
from tinygrad.graph.ops import Ops


class Movement:
    """A node that has a shape."""

    __slots__ = ()
    op: Ops
    src: tuple[Self, ...]
    arg: Any
    shape: tuple[int, ...]

    def moved(self, op: Ops, arg: Any) -> Self:
        """The node of a movement op over this one."""
        raise NotImplementedError

    def reshape(self, shape: Sequence[int]) -> Self:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        shapes.check_reshape(self.shape, shape)
        return self.moved(Ops.RESHAPE, shape)

    @property
    def unreshaped(self) -> Self:
        """What has these items, in this order, before any reshape."""
        node = self
        while node.op is Ops.RESHAPE:
            node = node.src[0]
        return node

    def permute(self, order: Sequence[int]) -> Self:
        order = tuple(order)
        shapes.check_permute(self.shape, order)
        return self if order == tuple(range(len(order))) else self.moved(Ops.PERMUTE, order)

    def expand(self, shape: Sequence[int]) -> Self:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        shapes.check_expand(self.shape, shape)
        return self.moved(Ops.EXPAND, shape)

    def pad(self, pads: Sequence[tuple[int, int]]) -> Self:
        """Zeros before and after each axis."""
        pads = tuple((b, a) for b, a in pads)
        shapes.check_pad(self.shape, pads)
        return self if all(p == (0, 0) for p in pads) else self.moved(Ops.PAD, pads)

    def shrink(self, bounds: Sequence[tuple[int, int]]) -> Self:
        """The items from start to end of each axis."""
        bounds = tuple((s, e) for s, e in bounds)
        shapes.check_shrink(self.shape, bounds)
        if all(b == (0, n) for b, n in zip(bounds, self.shape)):
            return self
        return self.moved(Ops.SHRINK, bounds)

    def stride(self, steps: Sequence[int]) -> Self:
        """Every nth item of each axis, from the first; from the last where the step is negative (-1
        flips)."""
        steps = tuple(steps)
        shapes.check_stride(self.shape, steps)
        return self if all(s == 1 for s in steps) else self.moved(Ops.STRIDE, steps)
