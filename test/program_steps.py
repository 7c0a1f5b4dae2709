"""The steps of random programs: what each means to a Tensor and to NumPy.

A program is a list of steps on numbered values. `TENSOR` says what a step does to a Tensor, `NUMPY` what it
means. Values are whole numbers: integers wrap as their dtype does, floats stay small enough that their dtype
is exact (by `Drawing`, which knows a bound of each value), so results are compared exactly. A step of `VIEWS`
shows the memory of its source, one of `WRITES` changes it; a reference value is therefore an array of memory
and an array of places in it (`Placed`), which views of any shape can share, as NumPy's cannot.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType, promote

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Meaning = dict[str, Callable[[Any, Any, Any], Any]]
MOST_ITEMS = 400
KINDS_OF_NUMBERS = (dtypes.float32, dtypes.int32, dtypes.float32, dtypes.int32, dtypes.bool, dtypes.int8,
                    dtypes.int16, dtypes.int64, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64,
                    dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.fp8e4m3, dtypes.fp8e5m2)
INDEX_DTYPES = (np.int32, np.int64, np.uint8, np.int8)


class Step(NamedTuple):
    """One operation on the value number `x` (and maybe `y`), giving the next value, of `dtype`."""

    name: str
    x: int
    y: int | None
    arg: Any
    dtype: DType


@dataclass
class Placed:
    """A value of the reference: the items of `memory` at `places`."""

    memory: Array
    places: Array

    @staticmethod
    def of(array: Array) -> Placed:
        return Placed(array.reshape(-1), np.arange(array.size).reshape(array.shape))

    @property
    def array(self) -> Array:
        return np.asarray(self.memory[self.places])

    def write(self, index: Any, value: Any) -> None:
        """What NumPy's `x[index] = value` does, cast to the memory's dtype."""
        self.memory[self.places[index]] = np.asarray(value).astype(self.memory.dtype)


@dataclass
class Program:
    """Inputs, steps, and the indices of the values that are results."""

    inputs: list[Array]
    steps: list[Step]
    results: list[int]

    def run_tensors(self) -> list[Array]:
        values = [Tensor(x, requires_grad=False) for x in self.inputs]
        for name, x, y, arg, _ in self.steps:
            values.append(TENSOR[name](values[x], None if y is None else values[y], arg))
        results = [values[i] for i in self.results]
        results[0].realize(*results[1:])
        return [r.numpy() for r in results]

    def run_numpy(self) -> list[Array]:
        values = [Placed.of(x.copy()) for x in self.inputs]
        for name, x, y, arg, dtype in self.steps:
            values.append(meaning(name, values[x], None if y is None else values[y], arg, dtype))
        return [values[i].array for i in self.results]


def meaning(name: str, x: Placed, y: Placed | None, arg: Any, dtype: DType) -> Placed:
    """The value that a step gives."""
    if name in VIEWS:
        return Placed(x.memory, np.asarray(NUMPY[name](x.places, None, arg)))
    if name in WRITES:
        with np.errstate(over="ignore"):
            NUMPY[name](x, None if y is None else y.array, arg)
        return x
    first, second = computable(x.array), None if y is None else computable(y.array)
    if second is not None and name in PROMOTING and first.dtype != second.dtype:
        common = promote(*(dtypes_of(v) for v in (x, y)))
        first, second = (v.astype(np.float64 if common.is_float else common.numpy) for v in (first, second))
    with np.errstate(over="ignore"):
        result = np.asarray(NUMPY[name](first, second, arg))
    return Placed.of(cast(result, dtype))


def dtypes_of(value: Any) -> DType:
    return next(d for d in dtypes.all if d.numpy == value.memory.dtype)


def computable(x: Array) -> Array:
    """Floats in float64, which all operations of NumPy take; they are whole numbers."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def cast(x: Array, dtype: DType) -> Array:
    """Of floats to integers, what is out of range becomes the end of the range."""
    if x.dtype.kind == "f" and dtype.is_int:
        low, high = int(dtype.min), int(dtype.max)
        return np.array([min(max(int(v), low), high) for v in x.reshape(-1)], dtype.numpy).reshape(x.shape)
    return np.array(x.astype(dtype.numpy))


# --- what steps mean --------------------------------------------------------------------------------------


def _set(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def _promoted(x: Tensor, y: Tensor) -> Tensor:
    """x in the dtype that both meet in, as NumPy's steps get it (`PROMOTING`)."""
    return x.cast(promote(x.dtype, y.dtype))


def _add_to(x: Tensor, y: Tensor) -> Tensor:
    x += y
    return x


def _scatter(x: Array, axis: int, index: Array, source: Array, reduce: str | None, own: bool = True) -> Array:
    """Item by item; the last one stays where `reduce` is None."""
    folds: dict[Any, Callable[[Any, Any], Any]] = {
        None: lambda a, b: b, "sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
    result, fresh = x.copy(), set()
    for place in np.ndindex(*index.shape):
        target = tuple(int(index[place]) if i == axis else n for i, n in enumerate(place))
        first = not own and target not in fresh
        result[target] = source[place] if first else folds[reduce](result[target], source[place])
        fresh.add(target)
    return result


def _order(x: Array, axis: int, down: bool) -> Array:
    """Positions that sort, equal items in the order in which they are."""
    if not down:
        return np.argsort(x, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - backwards)


def _first(x: Array, count: int, axis: int) -> Array:
    return x[(slice(None),) * axis + (slice(count),)]


def _last_extremum(x: Array, axis: int) -> Array:
    """Where the largest item up to each place was seen last."""
    numbers = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    seen = np.where(x == np.maximum.accumulate(x, axis), numbers, 0)
    return np.maximum.accumulate(seen, axis)


def _selected(x: Array, mask: Array, size: int, fill: int) -> Array:
    chosen = x[mask][:size]
    return np.concatenate([chosen, np.full(size - len(chosen), fill, x.dtype)])


def _windows(x: Any, axis: int, size: int, step: int) -> Array:
    every = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    return every[(slice(None),) * axis + (slice(None, None, step),)]


SAME: Meaning = {  # written alike for a Tensor and a NumPy array
    "add": lambda x, y, _: x + y,
    "sub": lambda x, y, _: x - y,
    "mul": lambda x, y, _: x * y,
    "less": lambda x, y, _: x < y,
    "alike": lambda x, y, _: x == y,
    "and": lambda x, y, _: x & y,
    "or": lambda x, y, _: x | y,
    "xor": lambda x, y, _: x ^ y,
    "not": lambda x, _, __: ~x,
    "number": lambda x, _, c: c - x * 3,
    "neg": lambda x, _, __: -x,
    "reshape": lambda x, _, shape: x.reshape(shape),
    "flatten": lambda x, _, __: x.reshape(-1) if x.shape else x.reshape(1),
    "getitem": lambda x, _, index: x[index],
    "floordiv": lambda x, _, c: x // c,
    "mod": lambda x, _, c: x % c,
    "shift": lambda x, _, c: (x << c) + (x >> c),
}
TENSOR: Meaning = {
    **SAME,
    "maximum": lambda x, y, _: x.maximum(y),
    "minimum": lambda x, y, _: x.minimum(y),
    "select": lambda x, y, _: (x < y).where(x, _promoted(y, x) - 1),
    "equal": lambda x, y, _: (x == y).where(x, _promoted(y, x) + 2),
    "choose": lambda x, y, number: y.where(x, number),
    "relu": lambda x, _, __: x.relu(),
    "abs": lambda x, _, __: x.abs(),
    "clip": lambda x, _, ends: x.clip(*ends),
    "sign": lambda x, _, __: x.sign(),
    "cast": lambda x, _, dtype: x.cast(dtype),
    "cast and back": lambda x, _, dtype: x.cast(dtype).cast(x.dtype),
    "permute": lambda x, _, order: x.permute(order),
    "expand": lambda x, _, shape: x.expand(shape),
    "pad": lambda x, _, pads: x.pad(pads),
    "extend": lambda x, _, a: x.pad(a[0], mode=a[1]),
    "shrink": lambda x, _, bounds: x.shrink(bounds),
    "flip": lambda x, _, axes: x.flip(axes),
    "diagonal": lambda x, _, offset: x.diagonal(offset),
    "cat": lambda x, y, axis: x.cat(y, dim=axis),
    "stack": lambda x, y, axis: x.stack(y, dim=axis),
    "repeat": lambda x, _, repeats: x.repeat(repeats),
    "repeat each": lambda x, _, a: x.repeat_interleave(*a),
    "contiguous": lambda x, _, __: x.contiguous(),
    "realize": lambda x, _, __: x.realize(),
    "clone": lambda x, _, __: x.clone(),
    "sum": lambda x, _, a: x.sum(a[0], keepdim=a[1]),
    "max": lambda x, _, a: x.max(a[0], keepdim=a[1]),
    "min": lambda x, _, a: x.min(a[0], keepdim=a[1]),
    "prod": lambda x, _, a: x.prod(a[0], keepdim=a[1]),
    "any": lambda x, _, a: (x > 0).any(a[0], keepdim=a[1]),
    "all": lambda x, _, a: x.all(a[0], keepdim=a[1]),
    "cumsum": lambda x, _, axis: x.cumsum(axis),
    "cumprod": lambda x, _, axis: x.cumprod(axis),
    "cummax": lambda x, _, axis: x.cummax(axis)[0],
    "cummax places": lambda x, _, axis: x.cummax(axis)[1],
    "argmax": lambda x, _, axis: x.argmax(axis),
    "argmin": lambda x, _, axis: x.argmin(axis),
    "gram": lambda x, _, __: x @ x.transpose(-1, -2),
    "tril": lambda x, _, k: x.tril(k),
    "triu": lambda x, _, k: x.triu(k),
    "rows": lambda x, _, at: x[Tensor(at)],
    "masked rows": lambda x, _, mask: x[mask],
    "rows by value": lambda x, y, _: x[y % len(x)],
    "gather": lambda x, _, a: x.gather(a[0], Tensor(a[1])),
    "gather by value": lambda x, y, axis: x.gather(axis, y % x.shape[axis]),
    "scatter": lambda x, y, a: x.scatter(a[0], Tensor(a[1]), y),
    "scatter by value": lambda x, y, axis: x.scatter(axis, y % x.shape[axis], x),
    "scatter reduce": lambda x, y, a: x.scatter_reduce(a[0], Tensor(a[1]), y, *a[2:]),
    "mask": lambda x, y, number: x.masked_fill(y > 1, number),
    "masked select": lambda x, y, a: x.masked_select(y > 0, *a),
    "nonzero": lambda x, _, size: x.nonzero(size, -1),
    "roll": lambda x, _, a: x.roll(*a),
    "sort": lambda x, _, a: x.sort(*a)[0],
    "argsort": lambda x, _, a: x.argsort(*a),
    "topk": lambda x, _, a: x.topk(*a)[0],
    "windows": lambda x, _, a: x.unfold(*a),
    "add to": lambda x, y, _: _add_to(x, y),
    "assign": lambda x, y, _: x.assign(y),
    "set": lambda x, _, a: _set(x, *a),
    "set to value": lambda x, y, index: _set(x, index, y),
    "set where": lambda x, y, number: _set(x, y, number),
}
NUMPY: Meaning = {
    **SAME,
    "maximum": lambda x, y, _: np.maximum(x, y),
    "minimum": lambda x, y, _: np.minimum(x, y),
    "select": lambda x, y, _: np.where(x < y, x, y - 1),
    "equal": lambda x, y, _: np.where(x == y, x, y + 2),
    "choose": lambda x, y, number: np.where(y, x, np.array(number).astype(x.dtype)),
    "relu": lambda x, _, __: np.maximum(x, 0),
    "abs": lambda x, _, __: np.abs(x),
    "clip": lambda x, _, ends: np.clip(x, *ends),
    "sign": lambda x, _, __: np.sign(x),
    "cast": lambda x, _, dtype: x,
    "cast and back": lambda x, _, dtype: cast(x, dtype).astype(np.float64),
    "permute": lambda x, _, order: x.transpose(order),
    "expand": lambda x, _, shape: np.broadcast_to(x, shape),
    "pad": lambda x, _, pads: np.pad(x, pads),
    "extend": lambda x, _, a: np.pad(
        x, a[0], {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[a[1]]),
    "shrink": lambda x, _, bounds: x[tuple(slice(*b) for b in bounds)],
    "flip": lambda x, _, axes: np.flip(x, axes),
    "diagonal": lambda x, _, offset: np.diagonal(x, offset),
    "cat": lambda x, y, axis: np.concatenate([x, y], axis),
    "stack": lambda x, y, axis: np.stack([x, y], axis),
    "repeat": lambda x, _, repeats: np.tile(x, repeats),
    "repeat each": lambda x, _, a: np.repeat(x, *a),
    "contiguous": lambda x, _, __: x,
    "realize": lambda x, _, __: x,
    "clone": lambda x, _, __: x,
    "sum": lambda x, _, a: x.sum(a[0], keepdims=a[1]),
    "max": lambda x, _, a: x.max(a[0], keepdims=a[1]),
    "min": lambda x, _, a: x.min(a[0], keepdims=a[1]),
    "prod": lambda x, _, a: x.prod(a[0], keepdims=a[1]),
    "any": lambda x, _, a: (x > 0).any(a[0], keepdims=a[1]),
    "all": lambda x, _, a: (x != 0).all(a[0], keepdims=a[1]),
    "cumsum": lambda x, _, axis: x.cumsum(axis),
    "cumprod": lambda x, _, axis: x.cumprod(axis),
    "cummax": lambda x, _, axis: np.maximum.accumulate(x, axis),
    "cummax places": lambda x, _, axis: _last_extremum(x, axis),
    "argmax": lambda x, _, axis: x.argmax(axis),
    "argmin": lambda x, _, axis: x.argmin(axis),
    "gram": lambda x, _, __: x @ x.swapaxes(-1, -2),
    "tril": lambda x, _, k: np.tril(x, k),
    "triu": lambda x, _, k: np.triu(x, k),
    "rows": lambda x, _, at: x[at],
    "masked rows": lambda x, _, mask: x[mask],
    "rows by value": lambda x, y, _: x[y % len(x)],
    "gather": lambda x, _, a: np.take_along_axis(x, a[1].astype(np.int64), a[0]),
    "gather by value": lambda x, y, axis: np.take_along_axis(x, (y % x.shape[axis]).astype(np.int64), axis),
    "scatter": lambda x, y, a: _scatter(x, *a, y, None),
    "scatter by value": lambda x, y, axis: _scatter(x, axis, y % x.shape[axis], x, None),
    "scatter reduce": lambda x, y, a: _scatter(x, a[0], a[1], y, *a[2:]),
    "mask": lambda x, y, number: np.where(y > 1, np.array(number).astype(x.dtype), x),
    "masked select": lambda x, y, a: _selected(x, y > 0, *a),
    "nonzero": lambda x, _, size: np.concatenate([np.argwhere(x), np.full((size, x.ndim), -1)])[:size],
    "roll": lambda x, _, a: np.roll(x, *a),
    "sort": lambda x, _, a: np.take_along_axis(x, _order(x, *a), a[0]),
    "argsort": lambda x, _, a: _order(x, *a),
    "topk": lambda x, _, a: _first(np.take_along_axis(x, _order(x, a[1], a[2]), a[1]), *a[:2]),
    "windows": lambda x, _, a: _windows(x, *a),
    "add to": lambda x, y, _: x.write((), cast(computable(x.array) + computable(y), dtypes_of(x))),
    "assign": lambda x, y, _: x.write((), y),
    "set": lambda x, _, a: x.write(*a),
    "set to value": lambda x, y, index: x.write(index, y),
    "set where": lambda x, y, number: x.write(y, number),
}
VIEWS = {"reshape", "flatten", "getitem", "permute", "expand", "shrink", "flip", "diagonal", "windows",
         "realize"}
REPEATING = {"expand", "windows"}
"""Views that may show an item in several places: they cannot be written to."""
UNSURE = {"contiguous"}
"""Whether it is the memory of its source depends on how that lies there: neither is written to."""
WRITES = {"add to", "assign", "set", "set to value", "set where"}
PROMOTING = {"add", "sub", "mul", "less", "alike", "and", "or", "xor", "maximum", "minimum", "select",
             "equal", "cat", "stack"}
