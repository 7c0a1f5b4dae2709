"""`View`: an affine map from coordinates to memory, with a box outside of which items read as zero.

The item at coordinates x is memory[offset + sum of x*stride], or zero where some x is outside the mask. Every
movement op on a view gives a view, but RESHAPE gives None where the result is no longer affine. Two views,
one read through the other, `merge` into one where their composition is affine and its mask a box.

Views are canonical: axes of one item have stride 0, a mask that excludes nothing is None, an axis of which
the mask leaves one item has stride 0, and a view of nothing but zeros has strides and offset 0.

Next on the path: `shape/shapetracker.py` stacks views.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from tinygrad.frozen import frozen
from tinygrad.graph import symbolic
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, node_of
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import ceildiv, prod

Mask: TypeAlias = tuple[tuple[int, int], ...]


@frozen
class Axis:
    """One axis of a view: its size, stride, and the items (start, end) that the mask leaves."""

    size: int
    stride: int
    start: int
    end: int


@frozen
class View:
    """Make one with `view_of_axes` or a movement op, which keep it canonical."""

    shape: Shape
    strides: tuple[int, ...]
    """distance in items of memory between neighbours along each axis"""
    offset: int
    """where the item at coordinates 0 lies: an int or a Size"""
    mask: Mask | None
    """(start, end) of each axis that is not zero; None: all of it"""

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def contiguous_of(shape: Shape) -> View:
        """All items in row-major order."""
        strides = row_major_strides(shape)
        return view_of_axes([Axis(n, s, 0, n) for n, s in zip(shape, strides, strict=True)], 0)

    @property
    def numel(self) -> int:
        return int(prod(self.shape))

    @property
    def contiguous(self) -> bool:
        """True if item n in row-major order is item n of memory."""
        return self == View.contiguous_of(self.shape)

    @property
    def axes(self) -> list[Axis]:
        mask = [(0, n) for n in self.shape] if self.mask is None else self.mask
        return [Axis(n, s, b, e) for n, s, (b, e) in zip(self.shape, self.strides, mask, strict=True)]

    # --- movement -------------------------------------------------------------------------------------------

    def permute(self, order: Sequence[int]) -> View:
        axes = self.axes
        return view_of_axes([axes[i] for i in order], self.offset)

    def expand(self, shape: Sequence[int]) -> View:
        """Axes of size 1 repeated."""
        axes = []
        for axis, size in zip(self.axes, shape, strict=True):
            if axis.size != size:
                axis = Axis(size, 0, 0, size if axis.end > axis.start else 0)
            axes.append(axis)
        return view_of_axes(axes, self.offset)

    def pad(self, pads: Sequence[tuple[int, int]]) -> View:
        """Zeros before and after each axis."""
        axes = []
        offset = self.offset
        for axis, (before, after) in zip(self.axes, pads, strict=True):
            offset -= before * axis.stride
            axes.append(Axis(before + axis.size + after, axis.stride, axis.start + before, axis.end + before))
        return view_of_axes(axes, offset)

    def shrink(self, bounds: Sequence[tuple[int, int]]) -> View | None:
        """The items from start to end of each axis. None where an axis with a mask is cut at a place that is
        not known: then the mask is no box."""
        axes = []
        offset = self.offset
        for axis, (start, end) in zip(self.axes, bounds, strict=True):
            offset += start * axis.stride
            size = end - start
            if isinstance(start, Size):
                if (axis.start, axis.end) != (0, axis.size):
                    return None
                axes.append(Axis(size, axis.stride, 0, size))
                continue
            left = _clamp(axis.start - start, size), _clamp(axis.end - start, size)
            axes.append(Axis(size, axis.stride, *left))
        return view_of_axes(axes, offset)

    def stride(self, steps: Sequence[int]) -> View:
        """Every nth item of each axis from the first; from the last where the step is negative."""
        axes = []
        offset = self.offset
        for axis, step in zip(self.axes, steps, strict=True):
            start, end = axis.start, axis.end
            if step < 0:
                offset += (axis.size - 1) * axis.stride
                start, end = axis.size - end, axis.size - start
            n = abs(step)
            axes.append(Axis(ceildiv(axis.size, n), axis.stride * step, ceildiv(start, n), ceildiv(end, n)))
        return view_of_axes(axes, offset)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same items in row-major order over another shape; None where one view cannot say it."""
        shape = tuple(shape)
        if self.mask is None and self.strides == View.contiguous_of(self.shape).strides:
            return replace(View.contiguous_of(shape), offset=self.offset)
        axes = [a for a in self.axes if a.size != 1]
        if axes and [a.size for a in axes] == [n for n in shape if n != 1]:
            left = iter(axes)
            return view_of_axes([Axis(1, 0, 0, 1) if n == 1 else next(left) for n in shape], self.offset)
        return View.contiguous_of(shape).merge(self)

    # --- composition ----------------------------------------------------------------------------------------

    def merge(self, below: View) -> View | None:
        """This view of the items of `below` as one view of its memory, None where that is no view."""
        return _merged(self, below)

    def address(self, coordinates: Sequence[UOp]) -> tuple[UOp, list[UOp]]:
        """(the item of memory at these coordinates, the conditions under which it is not zero)."""
        return self.address_of(coordinates), self.conditions(coordinates)

    def address_of(self, coordinates: Sequence[UOp]) -> UOp:
        total = symbolic.linear_terms(node_of(self.offset))
        for coordinate, stride in zip(coordinates, self.strides, strict=True):
            if stride:
                total = total.plus(symbolic.linear_terms(coordinate), stride)
        return symbolic.build_sum(total)

    def conditions(self, coordinates: Sequence[UOp]) -> list[UOp]:
        """What must hold for the mask to leave the item at these coordinates."""
        found = []
        for coordinate, axis in zip(coordinates, self.axes if self.mask is not None else [], strict=False):
            if axis.start > 0:
                found.append(coordinate > axis.start - 1)
            if axis.end < axis.size:
                found.append(coordinate < axis.end)
        return found


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of memory that holds `shape` in order, the last axis closest."""
    strides = []
    below = 1
    for size in reversed(shape):
        strides.append(below)
        below *= size
    return tuple(reversed(strides))


def unflatten(offset: UOp, shape: Sequence[int]) -> list[UOp]:
    """The coordinates of item `offset` of `shape` in row-major order, for an offset within it."""
    coordinates = []
    whole = symbolic.linear_terms(offset)
    left: symbolic.Linear | None = whole
    """of the offset, without the axes before, where its terms say which are theirs"""
    outermost = True
    for size, below in zip(shape, row_major_strides(shape), strict=True):
        if size == 1:
            coordinates.append(symbolic.constant(0))
            continue
        parts = None if left is None else left.coarse([max(below, 1)])
        if parts is not None and (outermost or _lies_within(parts[1], size)):
            coordinate, left = symbolic.build_sum(parts[1]), parts[2]
        else:
            coordinate, left = symbolic.divided(Ops.IDIV, whole, max(below, 1)), None
            if not outermost:
                coordinate = symbolic.divided(Ops.MOD, symbolic.linear_terms(coordinate), max(size, 1))
        coordinates.append(coordinate)
        outermost = False
    return coordinates


def _lies_within(s: symbolic.Linear, size: int) -> bool:
    """Whether a sum is an index of an axis."""
    low, high = s.bounds
    return low >= 0 and high < size


def _clamp(position: int, size: int) -> int:
    return min(max(position, 0), size)


def view_of_axes(axes: Sequence[Axis], offset: int) -> View:
    """The canonical view of these axes."""
    shape = tuple([a.size for a in axes])
    if any([a.end <= a.start for a in axes]):
        zeros = (0,) * len(axes)
        return View(shape, zeros, 0, None if 0 in shape else ((0, 0),) * len(axes))
    strides = []
    for axis in axes:
        if axis.end - axis.start == 1:
            offset += axis.start * axis.stride
            strides.append(0)
        else:
            strides.append(axis.stride)
    mask = tuple([(a.start, a.end) for a in axes])
    return View(shape, tuple(strides), offset, None if mask == tuple([(0, n) for n in shape]) else mask)


# --- merging ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16384)
def _merged(above: View, below: View) -> View | None:
    """The composition, found by writing its address over symbolic coordinates and reading strides off it."""
    bounds = [(axis.start, axis.end) for axis in above.axes]
    if below.contiguous or any(b == e for b, e in bounds):
        return above  # of memory in order, or nothing but zeros
    coordinates = [UOp.variable(f"axis {n}", b, e - 1) for n, (b, e) in enumerate(bounds)]
    inner = unflatten(above.address_of(coordinates), below.shape)
    condition = symbolic.all_of(below.conditions(inner))
    if condition is symbolic.FALSE:
        # Shape () has no axis for a mask to say that all is zero.
        return view_of_axes([Axis(n, 0, 0, 0) for n in above.shape], 0) if above.shape else None
    axis_of = {c: n for n, c in enumerate(coordinates)}
    # What limits an axis may show that the others limit one too: a row's items, where it is known which row.
    limits = [c for c in symbolic.conjuncts(condition) if _limited_axis(c, axis_of) is not None]
    others = symbolic.all_of(c for c in symbolic.conjuncts(condition) if c not in limits)
    condition = symbolic.all_of((*limits, symbolic.simplify_given(others, symbolic.all_of(limits))))
    for conjunct in symbolic.conjuncts(condition):
        limited = _limited_axis(conjunct, axis_of)
        if limited is None:
            return None
        axis, start, end = limited
        bounds[axis] = (max(bounds[axis][0], start), min(bounds[axis][1], end))
    terms = symbolic.linear_terms(symbolic.simplify_given(below.address_of(inner), condition))
    rest = symbolic.Linear({a: f for a, f in terms.terms.items() if a not in axis_of}, terms.constant)
    offset = symbolic.build_sum(rest)
    if any(part in axis_of for part in offset.toposort()):
        return None
    axes = zip(above.shape, coordinates, bounds, strict=True)
    return view_of_axes([Axis(n, terms.terms.get(c, 0), b, e) for n, c, (b, e) in axes], Size.of(offset))


def _limited_axis(condition: UOp, axis_of: dict[UOp, int]) -> tuple[int, int, int] | None:
    """(axis, start, end) if the condition says that one coordinate lies in [start, end), and no more."""
    if condition.op is not Ops.CMPLT:
        return None
    a, b = condition.src
    if a in axis_of and b.op is Ops.CONST:
        return axis_of[a], a.bounds[0], int(b.arg)
    if b in axis_of and a.op is Ops.CONST:
        return axis_of[b], int(a.arg) + 1, b.bounds[1] + 1
    return None
