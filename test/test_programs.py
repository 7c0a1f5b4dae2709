"""Random programs: what the compiler computes, with and without optimisation, against NumPy.

A program is a list of steps. Each step is one row of `TENSOR` (what it does to a Tensor) and of `NUMPY` (what
it means). All values are integers small enough that float32 is exact, so results are compared exactly.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinygrad import Context, Tensor

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
MOST_ITEMS = 400
LARGEST = 1 << 20
"""Magnitudes above this are clipped: float32 holds every integer up to 2**24."""


class Step(NamedTuple):
    """One operation on the value number `x` (and maybe `y`), giving the next value."""

    name: str
    x: int
    y: int | None
    arg: Any


@dataclass
class Program:
    """Inputs, steps, and the indices of the values that are results."""

    inputs: list[Array]
    steps: list[Step]
    results: list[int]

    def run_tensors(self) -> list[Array]:
        values = [Tensor(x) for x in self.inputs]
        for name, x, y, arg in self.steps:
            values.append(TENSOR[name](values[x], None if y is None else values[y], arg))
        results = [values[i] for i in self.results]
        results[0].realize(*results[1:])
        return [r.numpy() for r in results]

    def run_numpy(self) -> list[Array]:
        values = list(self.inputs)
        for name, x, y, arg in self.steps:
            kind = values[x].dtype
            other = None if y is None else values[y]
            values.append(np.asarray(NUMPY[name](values[x], other, arg)).astype(kind))
        return [values[i] for i in self.results]


# --- what steps mean --------------------------------------------------------------------------------------


def _set(x: Any, index: Any, value: Any) -> Any:
    """A copy of an array or a tensor, with `value` written to what an index selects."""
    copy = x.copy() if isinstance(x, np.ndarray) else x.clone()
    copy[index] = value
    return copy


def _scatter_add(x: Array, axis: int, index: Array, source: Array) -> Array:
    result, places = x.copy(), list(np.indices(index.shape))
    places[axis] = index
    np.add.at(result, tuple(places), source)
    return result



Meaning = dict[str, Callable[[Any, Any, Any], Any]]

SAME: Meaning = {  # written alike for a Tensor and a NumPy array
    "add": lambda x, y, _: x + y,
    "sub": lambda x, y, _: x - y,
    "mul": lambda x, y, _: x * y,
    "number": lambda x, _, c: c - x * 3,
    "neg": lambda x, _, __: -x,
    "reshape": lambda x, _, shape: x.reshape(shape),
    "flatten": lambda x, _, __: x.reshape(-1) if x.shape else x.reshape(1),
    "getitem": lambda x, _, index: x[index],
    "floordiv": lambda x, _, c: x // c,
    "mod": lambda x, _, c: x % c,
}
TENSOR: Meaning = {
    **SAME,
    "maximum": lambda x, y, _: x.maximum(y),
    "minimum": lambda x, y, _: x.minimum(y),
    "select": lambda x, y, _: (x < y).where(x, y - 1),
    "equal": lambda x, y, _: (x == y).where(x, -y),
    "relu": lambda x, _, __: x.relu(),
    "abs": lambda x, _, __: x.abs(),
    "clip": lambda x, _, __: x.clip(-9, 9),
    "sign": lambda x, _, __: x.sign(),
    "permute": lambda x, _, order: x.permute(order),
    "expand": lambda x, _, shape: x.expand(shape),
    "pad": lambda x, _, pads: x.pad(pads),
    "shrink": lambda x, _, bounds: x.shrink(bounds),
    "flip": lambda x, _, axes: x.flip(axes),
    "cat": lambda x, y, axis: x.cat(y, dim=axis),
    "contiguous": lambda x, _, __: x.contiguous(),
    "sum": lambda x, _, a: x.sum(a[0], keepdim=a[1]).cast(x.dtype),
    "max": lambda x, _, a: x.max(a[0], keepdim=a[1]),
    "min": lambda x, _, a: x.min(a[0], keepdim=a[1]),
    "prod": lambda x, _, a: x.clip(-2, 2).prod(a[0], keepdim=a[1]),
    "cumsum": lambda x, _, axis: x.cumsum(axis).cast(x.dtype),
    "argmax": lambda x, _, axis: x.argmax(axis).cast(x.dtype),
    "tril": lambda x, _, k: x.tril(k),
    "any": lambda x, _, a: (x > 0).any(a[0], keepdim=a[1]).cast(x.dtype),
    "rows": lambda x, _, at: x[Tensor(np.array(at, np.int32))],
    "rows by value": lambda x, y, _: x[y.cast("int32") % len(x)],
    "gather": lambda x, _, a: x.gather(a[0], Tensor(a[1])),
    "scatter add": lambda x, y, a: x.scatter(a[0], Tensor(a[1]), y, "add"),
    "set": lambda x, _, a: _set(x, *a),
    "set items": lambda x, y, at: _set(x, at, y[:len(at)]),
    "mask": lambda x, y, _: x.masked_fill(y > 1, 4),
    "roll": lambda x, _, a: x.roll(*a),
    "sort": lambda x, _, axis: x.sort(axis)[0],
    "windows": lambda x, _, a: x.unfold(*a),
}
NUMPY: Meaning = {
    **SAME,
    "maximum": lambda x, y, _: np.maximum(x, y),
    "minimum": lambda x, y, _: np.minimum(x, y),
    "select": lambda x, y, _: np.where(x < y, x, y - 1),
    "equal": lambda x, y, _: np.where(x == y, x, -y),
    "relu": lambda x, _, __: np.maximum(x, 0),
    "abs": lambda x, _, __: np.abs(x),
    "clip": lambda x, _, __: np.clip(x, -9, 9),
    "sign": lambda x, _, __: np.sign(x),
    "permute": lambda x, _, order: x.transpose(order),
    "expand": lambda x, _, shape: np.broadcast_to(x, shape),
    "pad": lambda x, _, pads: np.pad(x, pads),
    "shrink": lambda x, _, bounds: x[tuple(slice(*b) for b in bounds)],
    "flip": lambda x, _, axes: np.flip(x, axes),
    "cat": lambda x, y, axis: np.concatenate([x, y], axis),
    "contiguous": lambda x, _, __: x,
    "sum": lambda x, _, a: x.sum(a[0], keepdims=a[1]),
    "max": lambda x, _, a: x.max(a[0], keepdims=a[1]),
    "min": lambda x, _, a: x.min(a[0], keepdims=a[1]),
    "prod": lambda x, _, a: np.clip(x, -2, 2).prod(a[0], keepdims=a[1]),
    "cumsum": lambda x, _, axis: x.cumsum(axis),
    "argmax": lambda x, _, axis: x.argmax(axis),
    "tril": lambda x, _, k: np.tril(x, k),
    "any": lambda x, _, a: (x > 0).any(a[0], keepdims=a[1]),
    "rows": lambda x, _, at: x[np.array(at)],
    "rows by value": lambda x, y, _: x[y.astype(np.int32) % len(x)],
    "gather": lambda x, _, a: np.take_along_axis(x, a[1], a[0]),
    "scatter add": lambda x, y, a: _scatter_add(x, *a, y),
    "set": lambda x, _, a: _set(x, *a),
    "set items": lambda x, y, at: _set(x, at, y[:len(at)]),
    "mask": lambda x, y, _: np.where(y > 1, 4, x),
    "roll": lambda x, _, a: np.roll(x, *a),
    "sort": lambda x, _, axis: np.sort(x, axis),
    "windows": lambda x, _, a: np.lib.stride_tricks.sliding_window_view(x, a[1], a[0])[
        (slice(None),) * a[0] + (slice(None, None, a[2]),)],
}


# --- drawing programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What drawing needs to know about a value: its shape and a bound of its magnitude."""

    shape: Shape
    bound: int


KINDS = ("elementwise", "binary", "movement", "movement", "reduce", "index", "index", "select")
SELECTIONS = ("rows by value", "gather", "scatter add", "set", "set items", "mask", "roll", "sort", "windows")


class Drawing:
    """A program while it is drawn."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.values: list[Known] = []
        self.steps: list[Step] = []

    def pick(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def add(self, name: str, x: int, shape: Shape, bound: int, arg: Any = None, y: int | None = None) -> int:
        self.steps.append(Step(name, x, y, arg))
        self.values.append(Known(shape, bound))
        if bound > LARGEST:
            return self.add("clip", len(self.values) - 1, shape, 9)
        return len(self.values) - 1

    def step(self) -> None:
        x = self.draw(st.sampled_from(range(max(0, len(self.values) - 3), len(self.values))))
        kind = self.draw(st.sampled_from(KINDS))
        getattr(self, kind)(x, self.values[x].shape, self.values[x].bound)

    def elementwise(self, x: int, shape: Shape, bound: int) -> None:
        name = self.draw(st.sampled_from(("number", "neg", "relu", "abs", "sign", "floordiv", "mod",
                                          "contiguous")))
        if name == "number":
            self.add(name, x, shape, 3 * bound + 9, self.pick(-9, 9))
        elif name in ("floordiv", "mod"):
            self.add(name, x, shape, bound + 7, self.draw(st.sampled_from((2, 3, 7, -4))))
        else:
            self.add(name, x, shape, max(bound, 1))

    def binary(self, x: int, shape: Shape, bound: int) -> None:
        fitting = [i for i, v in enumerate(self.values) if self.broadcasts(v.shape, shape)]
        y = self.draw(st.sampled_from(fitting))
        other = self.values[y]
        name = self.draw(st.sampled_from(("add", "sub", "mul", "maximum", "minimum", "select", "equal",
                                          "cat")))
        common = np.broadcast_shapes(shape, other.shape)
        if name == "cat":
            if other.shape == shape and shape:
                axis = self.pick(0, len(shape) - 1)
                joined = tuple(2 * n if i == axis else n for i, n in enumerate(shape))
                if math.prod(joined) <= MOST_ITEMS:
                    self.add(name, x, joined, max(bound, other.bound), axis, y)
            return
        largest = bound * other.bound if name == "mul" else bound + other.bound + 1
        if name == "mul" and largest > 16 * LARGEST:
            x = self.add("clip", x, shape, 9)
            largest = 9 * other.bound
        if largest <= 16 * LARGEST:
            self.add(name, x, common, largest, None, y)

    @staticmethod
    def broadcasts(a: Shape, b: Shape) -> bool:
        try:
            return math.prod(np.broadcast_shapes(a, b)) <= MOST_ITEMS
        except ValueError:
            return False

    def movement(self, x: int, shape: Shape, bound: int) -> None:
        name = self.draw(st.sampled_from(("reshape", "permute", "expand", "pad", "shrink", "flip", "flatten",
                                          "tril")))
        if name == "reshape":
            target = self.draw(st.sampled_from(reshapes_of(shape)))
            self.add(name, x, target, bound, target)
        elif name == "permute":
            order = tuple(self.draw(st.permutations(range(len(shape)))))
            self.add(name, x, tuple(shape[i] for i in order), bound, order)
        elif name == "expand":
            ones = [i for i, n in enumerate(shape) if n == 1]
            count = self.pick(0, 5)
            target = tuple(count if i in ones[:1] else n for i, n in enumerate(shape))
            if ones and math.prod(target) <= MOST_ITEMS:
                self.add(name, x, target, bound, target)
        elif name == "pad" and shape:
            pads = tuple((self.pick(0, 2), self.pick(0, 2)) for _ in shape)
            target = tuple(n + sum(p) for n, p in zip(shape, pads, strict=True))
            if math.prod(target) <= MOST_ITEMS:
                self.add(name, x, target, bound, pads)
        elif name == "shrink" and shape:
            starts = [self.pick(0, max(0, n - 1)) for n in shape]
            bounds = tuple((s, self.pick(min(s + 1, n), n)) for s, n in zip(starts, shape, strict=True))
            self.add(name, x, tuple(e - s for s, e in bounds), bound, bounds)
        elif name == "flip" and shape:
            axes = tuple(sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
            self.add(name, x, shape, bound, axes)
        elif name == "flatten":
            self.add(name, x, (math.prod(shape),), bound)
        elif name == "tril" and len(shape) >= 2:
            self.add(name, x, shape, bound, self.pick(-2, 2))

    def reduce(self, x: int, shape: Shape, bound: int) -> None:
        if not shape:
            return
        name = self.draw(st.sampled_from(("sum", "sum", "max", "min", "prod", "any", "cumsum", "argmax")))
        if name in ("cumsum", "argmax"):
            axis = self.pick(0, len(shape) - 1)
            if name == "cumsum" and bound * shape[axis] <= 16 * LARGEST:
                self.add(name, x, shape, bound * max(1, shape[axis]), axis)
            elif name == "argmax" and shape[axis]:
                self.add(name, x, shape[:axis] + shape[axis + 1:], shape[axis], axis)
            return
        axes = tuple(sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
        keep = bool(self.draw(st.booleans()))
        count = math.prod(shape[a] for a in axes)
        if (name in ("max", "min") and count == 0) or (name == "prod" and count > 12):
            return
        largest = {"sum": bound * max(1, count), "prod": 1 << 12, "any": 1}.get(name, bound)
        if largest > 16 * LARGEST:
            return
        left = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
        self.add(name, x, left, largest, (axes, keep))

    def index(self, x: int, shape: Shape, bound: int) -> None:
        if shape and shape[0] and self.pick(0, 3) == 0:
            at = self.draw(st.lists(st.integers(-shape[0], shape[0] - 1), min_size=1, max_size=4))
            if len(at) * math.prod(shape[1:]) <= MOST_ITEMS:
                self.add("rows", x, (len(at), *shape[1:]), bound, at)
            return
        items: list[Any] = []
        for n in shape:
            kind = self.pick(0, 3)
            if kind == 0 and n:
                items.append(self.pick(-n, n - 1))
            elif kind == 1:
                items.append(None)
                items.append(slice(None))
            else:
                bounds = st.one_of(st.none(), st.integers(-n - 1, n + 1))
                step = self.draw(st.sampled_from((None, 1, 2, -1, -2, 3)))
                items.append(slice(self.draw(bounds), self.draw(bounds), step))
        if self.pick(0, 2) == 0:
            items.append(Ellipsis)
        index = tuple(items)
        self.add("getitem", x, np.empty(shape, np.int8)[index].shape, bound, index)


    def select(self, x: int, shape: Shape, bound: int) -> None:
        """Items by position: of an index in memory or computed on the way, read or written."""
        if not shape or 0 in shape:
            return
        axis = self.pick(0, len(shape) - 1)
        kind = self.draw(st.sampled_from(SELECTIONS))
        getattr(self, f"select_{kind.replace(' ', '_')}")(x, shape, bound, axis)

    def other(self, fits: Callable[[Shape], bool]) -> int | None:
        """A value with a shape that fits; the newest ones first."""
        fitting = [i for i, v in enumerate(self.values) if fits(v.shape)]
        return self.draw(st.sampled_from(fitting[::-1])) if fitting else None

    def places(self, shape: Shape, size: int) -> Array:
        return np.random.default_rng(self.pick(0, 99)).integers(0, size, shape, np.int32)

    def select_rows_by_value(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        y = self.other(lambda s: math.prod(s) * math.prod(shape[1:]) <= MOST_ITEMS and len(s) <= 3)
        if y is not None:
            self.add("rows by value", x, (*self.values[y].shape, *shape[1:]), bound, None, y)

    def select_gather(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        target = tuple(self.pick(1, 4) if i == axis else n for i, n in enumerate(shape))
        if math.prod(target) <= MOST_ITEMS:
            self.add("gather", x, target, bound, (axis, self.places(target, shape[axis])))

    def select_scatter_add(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        y = self.other(lambda s: s == shape)
        if y is not None:
            largest = bound + shape[axis] * self.values[y].bound
            if largest <= 16 * LARGEST:
                self.add("scatter add", x, shape, largest, (axis, self.places(shape, shape[axis])), y)

    def select_set(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        index = tuple(slice(self.pick(-n, n), None, self.draw(st.sampled_from((1, 2, -1)))) for n in shape)
        self.add("set", x, shape, max(bound, 9), (index, self.pick(-9, 9)))

    def select_set_items(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        y = self.other(lambda s: s[1:] == shape[1:] and len(s) == len(shape) and s[0] > 0)
        if y is not None:
            count = min(self.values[y].shape[0], shape[0])
            at = self.draw(st.permutations(range(shape[0])))[:count]
            self.add("set items", x, shape, max(bound, self.values[y].bound), at, y)

    def select_mask(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        y = self.other(lambda s: self.broadcasts(s, shape) and np.broadcast_shapes(s, shape) == shape)
        if y is not None:
            self.add("mask", x, shape, max(bound, 4), None, y)

    def select_roll(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        self.add("roll", x, shape, bound, (self.pick(-3, 3), axis))

    def select_sort(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        self.add("sort", x, shape, bound, axis)

    def select_windows(self, x: int, shape: Shape, bound: int, axis: int) -> None:
        size, step = self.pick(1, shape[axis]), self.pick(1, 2)
        count = (shape[axis] - size) // step + 1
        target = (*shape[:axis], count, *shape[axis + 1:], size)
        if math.prod(target) <= MOST_ITEMS:
            self.add("windows", x, target, bound, (axis, size, step))


def reshapes_of(shape: Shape) -> list[Shape]:
    """Some shapes with as many items."""
    size = math.prod(shape)
    found = {(size,), shape, (*shape, 1), (1, *shape)}
    for i in range(len(shape) - 1):
        found.add((*shape[:i], shape[i] * shape[i + 1], *shape[i + 2:]))
    for i, n in enumerate(shape):
        found |= {(*shape[:i], d, n // d, *shape[i + 1:]) for d in (2, 3, 5) if n and n % d == 0}
    found |= {tuple(n for n in shape if n != 1)}
    return sorted(found)


@st.composite
def programs(draw: Callable[[Any], Any], dtype: Any) -> Program:
    drawing = Drawing(draw)
    inputs = []
    for number in range(draw(st.integers(1, 3))):
        sizes = (1, 2, 3, 4, 5, 7, 0) if draw(st.integers(0, 9)) == 9 else (1, 2, 3, 4, 5, 7)
        shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=0, max_size=4)))
        while math.prod(shape) > 100:
            shape = shape[1:]
        inputs.append(np.random.default_rng((number, *shape)).integers(-6, 7, shape).astype(dtype))
        drawing.values.append(Known(shape, 6))
    given_count = len(inputs)
    for _ in range(draw(st.sampled_from((*range(1, 9), *range(4, 21))))):
        drawing.step()
    last = len(drawing.values) - 1
    results = [last]
    if last > given_count and draw(st.booleans()):
        results.append(draw(st.integers(given_count, last)))
    return Program(inputs, drawing.steps, results)


def check(program: Program) -> None:
    expected = program.run_numpy()
    for noopt in (0, 1):
        with Context(NOOPT=noopt):
            for got, wanted in zip(program.run_tensors(), expected, strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted, err_msg=f"NOOPT={noopt}")


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@examples(100)
@given(programs(np.float32))
def test_random_programs_of_floats(program: Program) -> None:
    check(program)


@examples(100)
@given(programs(np.int32))
def test_random_programs_of_integers(program: Program) -> None:
    check(program)


@pytest.mark.slow
@examples(2000)
@given(st.one_of(programs(np.float32), programs(np.int32)))
def test_many_random_programs(program: Program) -> None:
    check(program)


# --- found before ------------------------------------------------------------------------------------------


def test_an_item_of_padding_is_zero() -> None:
    """A view of padding alone has no axis left to carry its mask."""
    x = Tensor(np.array([[2.0]], np.float32))
    assert x.pad(((0, 0), (1, 0)))[0, 0].item() == 0
    assert (x.pad(((0, 0), (1, 0)))[0, 0] + 1).item() == 1
    assert x.pad(((1, 0), (0, 0)))[0].reshape(()).numpy() == 0


@pytest.mark.parametrize("size", [4, 7, 33, 35, 70])
def test_a_position_computed_in_lanes_is_read_in_lanes(size: int) -> None:
    """The address of the first lane, and the bounds of loops, still held loops that had become vectors."""
    order = np.random.default_rng(size).permutation(size)
    for x in (np.arange(size, dtype=np.int32), np.arange(size) % 3 == 0):
        expected = np.zeros(size, np.int32)
        expected[order] = x.cumsum()
        sums = Tensor(x).cast("int32").cumsum()
        scattered = sums.zeros_like().scatter(0, Tensor(order), sums)
        np.testing.assert_array_equal(scattered.numpy(), expected)


# --- gradients --------------------------------------------------------------------------------------------


SMOOTH_EVERYWHERE = ("add", "sub", "mul", "reshape", "permute", "expand", "pad", "shrink", "flip", "getitem",
                     "rows", "cumsum", "cat", "contiguous")
SMOOTH_TENSOR: Meaning = {
    "sin": lambda x, _, __: x.sin(),
    "tanh": lambda x, _, __: x.tanh(),
    "sigmoid": lambda x, _, __: x.sigmoid(),
    "exp": lambda x, _, __: (x.sin() * 0.5).exp(),
    "log": lambda x, _, __: (x * x + 1).log(),
    "sqrt": lambda x, _, __: (x * x + 0.5).sqrt(),
    "recip": lambda x, _, __: (x * x + 1).reciprocal(),
    "mean": lambda x, _, a: x.mean(a[0], keepdim=a[1]),
    "softmax": lambda x, _, axis: x.softmax(axis),
    "matmul": lambda x, _, __: x @ x.transpose(-1, -2) * 0.1,
    **{name: TENSOR[name] for name in SMOOTH_EVERYWHERE},
}


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


SMOOTH_NUMPY: Meaning = {
    "sin": lambda x, _, __: np.sin(x),
    "tanh": lambda x, _, __: np.tanh(x),
    "sigmoid": lambda x, _, __: 1 / (1 + np.exp(-x)),
    "exp": lambda x, _, __: np.exp(np.sin(x) * 0.5),
    "log": lambda x, _, __: np.log(x * x + 1),
    "sqrt": lambda x, _, __: np.sqrt(x * x + 0.5),
    "recip": lambda x, _, __: 1 / (x * x + 1),
    "mean": lambda x, _, a: x.mean(a[0], keepdims=a[1]),
    "softmax": lambda x, _, axis: _softmax(x, axis),
    "matmul": lambda x, _, __: x @ x.swapaxes(-1, -2) * 0.1,
    **{name: NUMPY[name] for name in SMOOTH_EVERYWHERE},
}


class SmoothDrawing(Drawing):
    """Programs with a derivative everywhere, of values that stay near 1."""

    def step(self) -> None:
        x = len(self.values) - 1
        shape = self.values[x].shape
        kind = self.draw(st.sampled_from(("function", "function", "binary", "movement", "index", "reduce")))
        if kind in ("movement", "index"):
            before = len(self.steps)
            getattr(self, kind)(x, shape, 1)
            unfit = self.steps and (self.steps[-1].name in ("tril", "flatten") or 0 in self.values[-1].shape)
            if len(self.steps) > before and unfit:
                self.steps.pop()
                self.values.pop()
        elif kind == "binary":
            fitting = [i for i, v in enumerate(self.values) if self.broadcasts(v.shape, shape)]
            y = self.draw(st.sampled_from(fitting))
            name = self.draw(st.sampled_from(("add", "sub", "mul")))
            common = np.broadcast_shapes(shape, self.values[y].shape)
            self.add("sin", self.add(name, x, common, 1, None, y), common, 1)
        elif kind == "reduce" and shape:
            axis = self.pick(0, len(shape) - 1)
            name = self.draw(st.sampled_from(("mean", "softmax", "cumsum", "matmul")))
            if name == "mean":
                keep = bool(self.draw(st.booleans()))
                left = tuple(1 if i == axis else n for i, n in enumerate(shape) if keep or i != axis)
                self.add(name, x, left, 1, ((axis,), keep))
            elif name == "matmul" and len(shape) >= 2:
                self.add(name, x, (*shape[:-1], shape[-2]), 1)
            elif name != "matmul":
                self.add(name, x, shape, 1, axis)
        elif kind == "function":
            name = self.draw(st.sampled_from(("sin", "tanh", "sigmoid", "exp", "log", "sqrt", "recip")))
            self.add(name, x, shape, 1)


@st.composite
def smooth_programs(draw: Callable[[Any], Any]) -> Program:
    drawing = SmoothDrawing(draw)
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    drawing.values.append(Known(shape, 1))
    for _ in range(draw(st.integers(1, 10))):
        drawing.step()
    x = np.random.default_rng(shape).standard_normal(shape)
    return Program([x], drawing.steps, [len(drawing.values) - 1])


def smooth_value(program: Program, x: Any, table: Meaning) -> Any:
    """The sum of the last value's squares."""
    values = [x]
    for name, first, second, arg in program.steps:
        values.append(table[name](values[first], None if second is None else values[second], arg))
    return (values[-1] * values[-1]).sum()


def check_gradient(program: Program) -> None:
    """The derivative along a random direction against a difference of the fourth order in float64."""
    [x] = program.inputs
    direction = np.random.default_rng(x.size).standard_normal(x.shape)
    t = Tensor(x, requires_grad=True)
    smooth_value(program, t, SMOOTH_TENSOR).backward()
    assert t.grad is not None
    slope = float((t.grad.numpy() * direction).sum())
    step = 2e-5
    far_ahead, ahead, behind, far_behind = (
        smooth_value(program, x + s * step * direction, SMOOTH_NUMPY) for s in (2, 1, -1, -2))
    expected = (8 * (ahead - behind) - (far_ahead - far_behind)) / (12 * step)
    assert abs(slope - expected) <= 1e-6 * (1 + abs(expected) + abs(ahead))


@examples(60)
@given(smooth_programs())
def test_gradients_of_random_programs(program: Program) -> None:
    check_gradient(program)


@pytest.mark.slow
@examples(600)
@given(smooth_programs())
def test_gradients_of_many_random_programs(program: Program) -> None:
    check_gradient(program)
