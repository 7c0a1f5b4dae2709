"""Views and stacks of views read what NumPy reads after the same movements, masks included."""
from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad.dtype import dtypes
from tinygrad.graph import symbolic
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.shape.shapetracker import ShapeTracker, after_movements
from tinygrad.shape.view import View

Movement = tuple[str, Any]
Values = dict[UOp, Any]
Array = np.ndarray[Any, Any]

NUMPY_OPS: dict[Ops, Any] = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.IDIV: np.floor_divide,
    Ops.MOD: np.remainder, Ops.MAX: np.maximum, Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal,
    Ops.AND: np.logical_and, Ops.OR: np.logical_or, Ops.WHERE: np.where,
}


def evaluate(node: UOp, values: Values) -> Any:
    """The value of an index or bool expression, given those of its ranges."""
    done = dict(values)
    for n in node.toposort(stop=lambda n: n in values):
        if n not in done:
            done[n] = n.arg if n.op is Ops.CONST else NUMPY_OPS[n.op](*(done[s] for s in n.src))
    return done[node]


def coordinates_of(shape: Sequence[int]) -> tuple[list[UOp], Values]:
    """A range for each axis, and its values at every item."""
    ranges = [UOp.range(n, axis) for axis, n in enumerate(shape)]
    grid = np.indices(tuple(shape))
    return ranges, dict(zip(ranges, grid, strict=True))


def read(tracker: ShapeTracker, memory: Array) -> Array:
    """The items that `tracker` reads of `memory`. Every address it reads must exist."""
    ranges, values = coordinates_of(tracker.shape)
    offset, valid = tracker.index(ranges)
    where = np.broadcast_to(np.asarray(evaluate(offset, values), np.int64), tracker.shape)
    holds = np.broadcast_to(np.asarray(evaluate(valid, values), bool), tracker.shape)
    assert ((where >= 0) & (where < memory.size))[holds].all()
    return np.where(holds, memory[np.where(holds, where, 0)], 0)


def move_array(array: Array, op: str, argument: Any) -> Array:
    """One movement, as NumPy does it."""
    if op == "reshape":
        return array.reshape(argument)
    if op == "permute":
        return array.transpose(argument)
    if op == "expand":
        return np.broadcast_to(array, argument)
    if op == "pad":
        return np.pad(array, argument)
    if op == "shrink":
        return array[tuple(slice(s, e) for s, e in argument)]
    return array[tuple(slice(None, None, k) for k in argument)]


def factors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


@st.composite
def shapes_of(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of `count` items."""
    sizes = []
    for _ in range(draw(st.integers(0, 3))):
        sizes.append(draw(st.sampled_from(factors(count))))
        count //= sizes[-1]
    sizes.insert(draw(st.integers(0, len(sizes))), count)
    return tuple(sizes)


def draw_movement(draw: st.DrawFn, shape: Sequence[int]) -> Movement:
    """A movement that applies to `shape`."""
    op = draw(st.sampled_from(["reshape", "reshape", "permute", "expand", "pad", "shrink", "stride"]))
    if op == "reshape":
        return op, (*draw(shapes_of(math.prod(shape))), *((1,) if draw(st.booleans()) else ()))
    if op == "permute":
        return op, tuple(draw(st.permutations(range(len(shape)))))
    if op == "expand":
        return op, tuple(draw(st.integers(1, 3)) if n == 1 else n for n in shape)
    if op == "pad":
        return op, tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape)
    if op == "shrink":
        starts = [draw(st.integers(0, n - 1)) for n in shape]
        return op, tuple((s, draw(st.integers(s + 1, n))) for s, n in zip(starts, shape, strict=True))
    return op, tuple(draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in shape)


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Movement]]:
    """A shape and movements that apply to it one after the other."""
    base = shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    movements: list[Movement] = []
    for _ in range(draw(st.integers(1, 7))):
        op, argument = draw_movement(draw, shape)
        moved = move_array(np.empty(shape, np.int8), op, argument).shape
        if math.prod(moved) <= 600:
            movements.append((op, argument))
            shape = moved
    return base, movements


@st.composite
def stacks(draw: st.DrawFn) -> tuple[int, View, View]:
    """(a number of items in memory, a view of them, a view of that view's items)."""
    count = draw(st.sampled_from([1, 4, 6, 12, 16, 24]))
    below = draw(views_of(count))
    return count, below, draw(views_of(below.numel))


@st.composite
def views_of(draw: st.DrawFn, count: int) -> View:
    """One view of `count` items."""
    view = View.contiguous_of(draw(shapes_of(count)))
    for _ in range(draw(st.integers(0, 4))):
        op, argument = draw_movement(draw, view.shape)
        moved = getattr(view, op)(argument)
        if moved is not None and moved.numel <= 600:
            view = moved
    return view


def memory_of(shape: Sequence[int]) -> Array:
    """Items that are all different, and none zero."""
    return np.arange(1, math.prod(shape) + 1)


@settings(max_examples=300, deadline=None)
@given(chains())
def test_chain_reads_what_numpy_reads(chain: tuple[tuple[int, ...], list[Movement]]) -> None:
    base, movements = chain
    memory = memory_of(base)
    expected = memory.reshape(base)
    tracker = ShapeTracker.contiguous_of(base)
    node = UOp.new_buffer("CPU", memory.size, dtypes.int32).reshape(base)
    for op, argument in movements:
        expected = move_array(expected, op, argument)
        tracker = after_movements(tracker, ((Ops[op.upper()], argument),))
        node = getattr(node, op)(argument)
    assert tracker.shape == expected.shape == node.st.shape
    np.testing.assert_array_equal(read(tracker, memory), expected)
    np.testing.assert_array_equal(read(node.st, memory), expected)


@settings(max_examples=300, deadline=None)
@given(stacks())
def test_merged_view_reads_what_the_stack_reads(stack: tuple[int, View, View]) -> None:
    count, below, above = stack
    merged = above.merge(below)
    if merged is not None:
        memory = memory_of((count,))
        expected = read(ShapeTracker((View.contiguous_of((below.numel,)), above)), read_flat(below, memory))
        np.testing.assert_array_equal(read(ShapeTracker((below, above)), memory), expected)
        np.testing.assert_array_equal(read(ShapeTracker((merged,)), memory), expected)


def read_flat(view: View, memory: Array) -> Array:
    """The items of one view in row-major order, read with NumPy from its fields."""
    at = np.indices(view.shape)
    where = np.full(view.shape, view.offset)
    for x, stride in zip(at, view.strides, strict=True):
        where += x * stride
    holds = np.full(view.shape, True)
    for x, (start, end) in zip(at, view.mask or (), strict=view.mask is not None):
        holds &= (x >= start) & (x < end)
    return np.where(holds, memory[np.where(holds, where, 0)], 0).ravel()


@settings(max_examples=150, deadline=None)
@given(chains())
def test_indices_are_coordinates_of_the_base(chain: tuple[tuple[int, ...], list[Movement]]) -> None:
    base, movements = chain
    expected = memory_of(base).reshape(base)
    tracker = ShapeTracker.contiguous_of(base)
    array = expected
    for op, argument in movements:
        array = move_array(array, op, argument)
        tracker = after_movements(tracker, ((Ops[op.upper()], argument),))
    ranges, values = coordinates_of(tracker.shape)
    indices, valid = tracker.indices(ranges, base)
    holds = np.broadcast_to(np.asarray(evaluate(valid, values), bool), tracker.shape)
    at = [np.where(holds, evaluate(i, values), 0) for i in indices]
    for position, size in zip(at, base, strict=True):
        assert ((position >= 0) & (position < size)).all()
    np.testing.assert_array_equal(np.where(holds, expected[tuple(at)], 0), array)


@settings(max_examples=150, deadline=None)
@given(chains())
def test_strides_are_the_steps_between_addresses(chain: tuple[tuple[int, ...], list[Movement]]) -> None:
    base, movements = chain
    tracker = ShapeTracker.contiguous_of(base)
    for op, argument in movements:
        tracker = after_movements(tracker, ((Ops[op.upper()], argument),))
    ranges, values = coordinates_of(tracker.shape)
    offset, valid = tracker.index(ranges)
    address = np.broadcast_to(np.asarray(evaluate(offset, values), np.int64), tracker.shape)
    holds = np.broadcast_to(np.asarray(evaluate(valid, values), bool), tracker.shape)
    for axis, stride in enumerate(tracker.views[0].strides if len(tracker.views) == 1 else ()):
        last = tracker.shape[axis] - 1
        both = np.take(holds, range(last), axis) & np.take(holds, range(1, last + 1), axis)
        assert (np.diff(address, axis=axis)[both] == stride).all()


def windows(size: int, kernel: int, step: int, dilation: int, padding: int) -> tuple[UOp, Array]:
    """(windows of a line by movement ops alone, the same windows by NumPy), shape (windows, kernel)."""
    x = UOp.new_buffer("CPU", size, dtypes.float32).pad(((padding, padding),))
    padded = size + 2 * padding
    count = (padded - dilation * (kernel - 1) - 1) // step + 1
    repeats = math.ceil(kernel * (padded + dilation) / padded)
    x = x.reshape((1, padded)).expand((repeats, padded)).reshape((repeats * padded,))
    x = x.shrink(((0, kernel * (padded + dilation)),)).reshape((kernel, padded + dilation))
    x = x.shrink(((0, kernel), (0, step * count))) if step * count <= padded + dilation else \
        x.shrink(((0, kernel), (0, step * (count - 1) + 1)))
    x = x.stride((1, step)).permute((1, 0))
    line = np.pad(np.arange(1, size + 1), padding)
    return x, np.stack([line[n * step:][:dilation * (kernel - 1) + 1:dilation] for n in range(count)])


CONVOLUTIONS = [(size, kernel, step, dilation, padding)
                for size in (7, 12) for kernel in (1, 2, 3) for step in (1, 2, 3)
                for dilation in (1, 2, 3) for padding in (0, 1, 2)]


@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=str)
def test_sliding_windows_have_affine_addresses(convolution: tuple[int, int, int, int, int]) -> None:
    size, _, step, dilation, padding = convolution
    node, expected = windows(*convolution)
    np.testing.assert_array_equal(read(node.st, np.arange(1, size + 1)), expected)
    strides = [0 if n == 1 else s for n, s in zip(node.shape, (step, dilation), strict=True)]
    coordinates = [UOp.variable(f"axis {n}", 0, size - 1) for n, size in enumerate(node.shape)]
    terms = symbolic.linear_terms(node.st.index(coordinates)[0]).terms
    assert set(terms) <= set(coordinates)
    assert [terms.get(c, 0) for c in coordinates] == strides
    if padding == 0:
        assert len(node.st.views) == 1
        assert node.st.views[0].mask is None


def test_convolution_addresses_are_affine_in_the_image() -> None:
    """A batch of images, 3x3 windows, padding 1: four-dimensional, as conv2d builds it."""
    node = _image_windows()
    ranges = [UOp.range(n, a) for a, n in enumerate(node.shape)]
    _, c, oy, ky, ox, kx = ranges
    indices, valid = node.st.indices(ranges, (2, 3, 8, 8))
    assert indices[1:] == (c, oy + ky - 1, ox + kx - 1)
    inside = [oy + ky > 0, oy + ky < 9, ox + kx > 0, ox + kx < 9]
    assert valid is symbolic.all_of(inside)


def _image_windows() -> UOp:
    x = UOp.new_buffer("CPU", 2 * 3 * 8 * 8, dtypes.float32).reshape((2, 3, 8, 8))
    x = x.pad(((0, 0), (0, 0), (1, 1), (1, 1)))
    x = x.reshape((2, 3, 1, 10, 1, 10)).expand((2, 3, 4, 10, 4, 10)).reshape((2, 3, 40, 40))
    x = x.shrink(((0, 2), (0, 3), (0, 33), (0, 33))).reshape((2, 3, 3, 11, 3, 11))
    x = x.shrink(((0, 2), (0, 3), (0, 3), (0, 8), (0, 3), (0, 8)))
    return x.permute((0, 1, 3, 2, 5, 4))


def test_what_is_known_of_coordinates_separates_axes() -> None:
    """Half of a column, which may be one too many, is no row further where columns are known to be fewer."""
    row, column = UOp.range(56, 1), UOp.range(56, 2)
    blocks = after_movements((28, 2, 28), ((Ops.RESHAPE, (56, 28)),))
    half = (column + 1) // 2
    alone, _ = blocks.indices((row, half), (28, 2, 28))
    known, _ = blocks.indices((row, half), (28, 2, 28), column < 55)
    assert known == (row // 2, row % 2, half)
    assert alone != known


def test_trackers_are_made_quickly() -> None:
    """Below a millisecond for a long chain whose views are new, measured as the best of a few."""
    times = []
    for size in range(20, 30):
        base = UOp.new_buffer("CPU", size * size, dtypes.float32)
        chain = base.reshape((size, size)).permute((1, 0)).reshape((1, size, size)).expand((3, size, size))
        chain = chain.shrink(((0, 3), (1, size), (0, size))).stride((1, -1, 2)).permute((2, 0, 1))
        start = time.perf_counter()
        tracker = chain.st
        times.append(time.perf_counter() - start)
        assert len(tracker.views) == 1
    assert min(times) < 1e-3


def test_a_chain_of_thousands_of_movements() -> None:
    node = UOp.new_buffer("CPU", 6, dtypes.float32).reshape((2, 3))
    for _ in range(3000):
        node = node.stride((-1, 1)).pad(((1, 0), (0, 0))).shrink(((1, 3), (0, 3)))
    assert node.st.contiguous_whole


class TestContiguous:
    def test_whole_memory_in_order(self) -> None:
        buffer = UOp.new_buffer("CPU", 12, dtypes.float32)
        assert buffer.st.contiguous_whole
        assert buffer.reshape((3, 4)).st.contiguous_whole
        assert buffer.reshape((3, 4)).permute((1, 0)).permute((1, 0)).reshape((12,)).st.contiguous_whole

    def test_a_part_of_memory_is_contiguous_but_not_whole(self) -> None:
        part = UOp.new_buffer("CPU", 12, dtypes.float32).shrink(((0, 6),)).st
        assert part.contiguous
        assert not part.contiguous_whole

    def test_other_orders_offsets_and_masks_are_not(self) -> None:
        buffer = UOp.new_buffer("CPU", 12, dtypes.float32).reshape((3, 4))
        assert not buffer.permute((1, 0)).st.contiguous
        assert not buffer.shrink(((1, 3), (0, 4))).st.contiguous
        assert not buffer.pad(((0, 1), (0, 0))).st.contiguous
        assert not buffer.stride((-1, 1)).st.contiguous

    def test_no_items(self) -> None:
        nothing = UOp.new_buffer("CPU", 12, dtypes.float32).shrink(((3, 3),)).reshape((0, 5))
        assert nothing.st.shape == (0, 5)
        assert not nothing.st.contiguous_whole


def test_wrong_number_of_coordinates() -> None:
    with pytest.raises(ValueError, match=r"1 coordinates do not index the shape \(2, 3\)"):
        ShapeTracker.contiguous_of((2, 3)).index([UOp.range(2, 0)])
