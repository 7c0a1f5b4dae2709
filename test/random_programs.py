"""Random programs as Hypothesis draws them: steps of `program_steps.py`, on numbers that their dtype has."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from program_steps import (
    INDEX_DTYPES,
    KINDS_OF_NUMBERS,
    MOST_ITEMS,
    REPEATING,
    UNSURE,
    Array,
    Program,
    Shape,
    Step,
)

from tinygrad import dtypes
from tinygrad.dtype import DType, promote, sum_dtype


@dataclass
class Memory:
    """What drawing knows about the numbers that some values show."""

    bound: int
    writable: bool = True


@dataclass(frozen=True)
class Known:
    """What drawing knows about a value."""

    shape: Shape
    dtype: DType
    memory: Memory
    repeats: bool = False

    @property
    def bound(self) -> int:
        """No number of it is larger, nor smaller than its negative."""
        return self.memory.bound


def exact_below(dtype: DType) -> int:
    """The numbers of a float dtype up to this are exact; no number of an integer dtype is larger."""
    if dtype.is_float:
        return round(2 / float(ml_dtypes.finfo(dtype.numpy).eps))
    return 1 if dtype.is_bool else max(int(dtype.max), -int(dtype.min))


def small(dtype: DType) -> int:
    """What numbers are drawn up to, and clipped to: a sum of a few, or a product of two, is exact."""
    return min(9, max(exact_below(dtype) // 4, 1))


STEPS = ("elementwise", "binary", "binary", "movement", "movement", "reduce", "index", "select", "select",
         "order", "convert", "write", "memory")


@dataclass
class Drawing:
    """A program while it is drawn."""

    draw: Callable[[Any], Any]
    values: list[Known] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def pick(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, dtype: DType) -> Any:
        most = small(dtype)
        return bool(self.pick(0, 1)) if dtype.is_bool else self.pick(0 if dtype.is_unsigned else -most, most)

    def input(self, array: Array) -> None:
        dtype = next(d for d in dtypes.all if d.numpy == array.dtype)
        bound = small(dtype) if dtype.is_float else exact_below(dtype)
        self.values.append(Known(array.shape, dtype, Memory(bound)))

    def add(self, name: str, x: int, shape: Shape, bound: int, arg: Any = None, y: int | None = None,
            dtype: DType | None = None) -> int:
        """A step that gives a value of its own, and where that is not exact for long, one that clips it."""
        kind = dtype or self.values[x].dtype
        most = self.room(kind)
        self.steps.append(Step(name, x, y, arg, kind))
        self.values.append(Known(shape, kind, Memory(bound if kind.is_float else min(bound, most))))
        last = len(self.values) - 1
        too_large = kind.is_float and bound > max(most // 16, small(kind))
        return self.clipped(last, small(kind)) if too_large else last

    def clipped(self, x: int, end: int) -> int:
        kind = self.values[x].dtype
        return self.add("clip", x, self.values[x].shape, end, (0 if kind.is_unsigned else -end, end))

    def view(self, name: str, x: int, shape: Shape, arg: Any = None) -> int:
        """A step that shows the memory of its source."""
        known = self.values[x]
        self.steps.append(Step(name, x, None, arg, known.dtype))
        self.values.append(Known(shape, known.dtype, known.memory, known.repeats or name in REPEATING))
        return len(self.values) - 1

    def room(self, dtype: DType) -> int:
        """The largest magnitude of a value of `dtype`; one that comes near is clipped."""
        return exact_below(dtype)

    def fits(self, bound: int, dtype: DType) -> bool:
        return not dtype.is_float or bound <= self.room(dtype)

    def step(self) -> None:
        x = self.draw(st.sampled_from(range(max(0, len(self.values) - 3), len(self.values))))
        getattr(self, self.one_of(STEPS))(x, self.values[x])

    def other(self, fits: Callable[[Known], bool]) -> int | None:
        """A value that fits; the newest ones first."""
        fitting = [i for i, v in enumerate(self.values) if fits(v)]
        return self.one_of(fitting[::-1]) if fitting else None

    @staticmethod
    def broadcasts(a: Shape, b: Shape) -> bool:
        try:
            return math.prod(np.broadcast_shapes(a, b)) <= MOST_ITEMS
        except ValueError:
            return False

    def mask_of(self, shape: Shape) -> int | None:
        """A value of bools that broadcasts to `shape`."""
        return self.other(lambda v: v.dtype.is_bool and self.broadcasts(v.shape, shape)
                          and np.broadcast_shapes(v.shape, shape) == shape)

    # --- item by item

    def elementwise(self, x: int, v: Known) -> None:
        if v.dtype.is_bool:
            self.add("not", x, v.shape, 1)
            return
        names = ["number", "neg", "relu", "abs", "sign", "floordiv", "mod", "clip"]
        name = self.one_of(names + (["not", "shift"] if v.dtype.is_int else []))
        if name == "number":
            bound = 3 * v.bound + small(v.dtype)
            if self.fits(bound, v.dtype):
                self.add(name, x, v.shape, self.wrapped(bound, v.dtype), self.number(v.dtype))
        elif name in ("floordiv", "mod"):
            self.add(name, x, v.shape, max(v.bound, 7),
                     self.one_of((2, 3, 7) if v.dtype.is_unsigned else (2, 3, 7, -4)))
        elif name == "clip":
            self.clipped(x, small(v.dtype))
        elif name == "shift":
            self.add(name, x, v.shape, exact_below(v.dtype), self.pick(0, 3))
        else:
            bound = max(v.bound, 1) if v.dtype.is_float else exact_below(v.dtype)
            self.add(name, x, v.shape, 1 if name == "sign" else bound)

    def wrapped(self, bound: int, dtype: DType) -> int:
        """The bound of what may be up to `bound`, or wrap."""
        most = exact_below(dtype)
        return most if bound > most or dtype.is_unsigned else bound

    def binary(self, x: int, v: Known) -> None:
        name = self.one_of(("add", "sub", "mul", "maximum", "minimum", "select", "equal", "less", "alike",
                            "cat", "stack", "and", "or", "xor", "choose"))
        if name in ("cat", "stack"):
            y = self.other(lambda w: w.shape == v.shape)
        elif name == "choose":
            y = self.mask_of(v.shape)
        else:
            y = self.other(lambda w: self.broadcasts(w.shape, v.shape))
        if y is None:
            return
        w = self.values[y]
        if name == "choose":
            self.add(name, x, v.shape, max(v.bound, small(v.dtype)), self.number(v.dtype), y)
            return
        common = promote(v.dtype, w.dtype)
        if not self.fits(max(v.bound, w.bound), common):
            return
        if name in ("and", "or", "xor"):
            if not common.is_float:
                self.add(name, x, np.broadcast_shapes(v.shape, w.shape), exact_below(common), None, y, common)
        elif name in ("cat", "stack"):
            self.joined(name, x, v, y)
        elif name in ("less", "alike"):
            self.add(name, x, np.broadcast_shapes(v.shape, w.shape), 1, None, y, dtypes.bool)
        elif not (common.is_bool or (name in ("select", "equal") and w.dtype.is_bool)):  # bools take no - 1
            bound = v.bound * w.bound if name == "mul" else v.bound + w.bound + 2
            if self.fits(bound, common):
                self.add(name, x, np.broadcast_shapes(v.shape, w.shape), self.wrapped(bound, common), None, y,
                         common)

    def joined(self, name: str, x: int, v: Known, y: int) -> None:
        w = self.values[y]
        if 2 * math.prod(v.shape) > MOST_ITEMS or (name == "cat" and not v.shape):
            return
        axis = self.pick(0, len(v.shape) - (name == "cat"))
        if name == "cat":
            shape = tuple(2 * n if i == axis else n for i, n in enumerate(v.shape))
        else:
            shape = (*v.shape[:axis], 2, *v.shape[axis:])
        common = promote(v.dtype, w.dtype)
        self.add(name, x, shape, self.wrapped(max(v.bound, w.bound), common), axis, y, common)

    def convert(self, x: int, v: Known) -> None:
        if not v.dtype.is_bool and self.pick(0, 3) == 0:
            self.cast_and_back(x, v)
            return
        dtype = self.one_of(KINDS_OF_NUMBERS)
        if not self.fits(v.bound, dtype):
            x = self.clipped(x, small(dtype))
        if dtype.is_bool:
            self.add("cast", x, v.shape, 1, dtype, None, dtype)
        elif dtype is not v.dtype:  # a cast to the same dtype is the value itself
            self.add("cast", x, v.shape, self.wrapped(self.values[x].bound, dtype), dtype, None, dtype)

    def cast_and_back(self, x: int, v: Known) -> None:
        """To floats of fewer digits, which round a whole number to another, at most an eighth away."""
        fewer = [d for d in dtypes.floats if exact_below(d) < min(v.bound, exact_below(v.dtype))]
        if not fewer:
            return
        dtype = self.one_of(fewer)
        largest = int(float(ml_dtypes.finfo(dtype.numpy).max))
        if v.bound > largest:
            x = self.clipped(x, largest)
        most = self.values[x].bound * 9 // 8 + 1
        if self.fits(most, v.dtype):
            self.add("cast and back", x, v.shape, self.wrapped(most, v.dtype), dtype)

    # --- movement

    def movement(self, x: int, v: Known) -> None:
        name = self.one_of(("reshape", "permute", "expand", "pad", "extend", "shrink", "flip", "flatten",
                            "tril", "triu", "diagonal", "repeat", "repeat each"))
        shape = v.shape
        if name == "reshape":
            target = self.one_of(reshapes_of(shape))
            self.view(name, x, target, target)
        elif name == "permute":
            order = tuple(self.draw(st.permutations(range(len(shape)))))
            self.view(name, x, tuple(shape[i] for i in order), order)
        elif name == "expand":
            ones = [i for i, n in enumerate(shape) if n == 1]
            count = self.pick(0, 5)
            target = tuple(count if i in ones[:1] else n for i, n in enumerate(shape))
            if ones and math.prod(target) <= MOST_ITEMS:
                self.view(name, x, target, target)
        elif name == "flatten":
            self.view(name, x, (math.prod(shape),))
        elif name == "diagonal" and len(shape) >= 2:
            offset = self.pick(-2, 2)
            self.view(name, x, np.diagonal(np.empty(shape, bool), offset).shape, offset)
        elif name in ("tril", "triu") and len(shape) >= 2:
            self.add(name, x, shape, v.bound, self.pick(-2, 2))
        elif name in ("pad", "extend", "shrink", "flip", "repeat", "repeat each") and shape:
            getattr(self, name.replace(" ", "_"))(name, x, v)

    def pad(self, name: str, x: int, v: Known) -> None:
        pads = tuple((self.pick(0, 2), self.pick(0, 2)) for _ in v.shape)
        self.grown(name, x, v, pads, pads)

    def extend(self, name: str, x: int, v: Known) -> None:
        """Padded with its own items, as many as there are at most."""
        if 0 in v.shape:
            return
        mode = self.one_of(("reflect", "replicate", "circular"))
        most = [2 if mode == "replicate" else min(2, n - (mode == "reflect")) for n in v.shape]
        pads = tuple((self.pick(0, n), self.pick(0, n)) for n in most)
        self.grown(name, x, v, pads, (pads, mode))

    def grown(self, name: str, x: int, v: Known, pads: tuple[tuple[int, int], ...], arg: Any) -> None:
        target = tuple(n + sum(p) for n, p in zip(v.shape, pads, strict=True))
        if math.prod(target) <= MOST_ITEMS:
            self.add(name, x, target, v.bound, arg)

    def repeat(self, name: str, x: int, v: Known) -> None:
        repeats = tuple(self.pick(1, 2) for _ in v.shape)
        target = tuple(n * k for n, k in zip(v.shape, repeats, strict=True))
        if math.prod(target) <= MOST_ITEMS:
            self.add(name, x, target, v.bound, repeats)

    def repeat_each(self, name: str, x: int, v: Known) -> None:
        count, axis = self.pick(1, 3), self.pick(0, len(v.shape) - 1)
        target = tuple(n * count if i == axis else n for i, n in enumerate(v.shape))
        if math.prod(target) <= MOST_ITEMS:
            self.add(name, x, target, v.bound, (count, axis))

    def shrink(self, name: str, x: int, v: Known) -> None:
        starts = [self.pick(0, max(0, n - 1)) for n in v.shape]
        bounds = tuple((s, self.pick(min(s + 1, n), n)) for s, n in zip(starts, v.shape, strict=True))
        self.view(name, x, tuple(e - s for s, e in bounds), bounds)

    def flip(self, name: str, x: int, v: Known) -> None:
        self.view(name, x, v.shape, self.axes(v.shape))

    def axes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))

    # --- along axes

    def reduce(self, x: int, v: Known) -> None:
        if not v.shape:
            return
        name = self.one_of(("sum", "sum", "max", "min", "prod", "any", "all", "gram"))
        if name == "gram":
            if len(v.shape) >= 2 and not v.dtype.is_bool and math.prod(v.shape) <= MOST_ITEMS // 2:
                largest = v.bound * v.bound * max(1, v.shape[-1])
                if self.fits(largest, v.dtype):
                    self.add(name, x, (*v.shape[:-1], v.shape[-2]), self.wrapped(largest, v.dtype))
            return
        axes, keep = self.axes(v.shape), bool(self.pick(0, 1))
        count = math.prod(v.shape[a] for a in axes)
        if name in ("max", "min") and count == 0:
            return
        if name == "prod" and v.dtype.is_float:
            x = self.clipped(x, 2)
        dtype = {"sum": sum_dtype(v.dtype), "prod": sum_dtype(v.dtype), "any": dtypes.bool,
                 "all": dtypes.bool}.get(name, v.dtype)
        most = exact_below(dtype)
        largest = {"sum": v.bound * max(1, count), "prod": 1 << count if v.dtype.is_float else most}.get(
            name, v.bound)
        if self.fits(largest, dtype):
            left = tuple(1 if i in axes else n for i, n in enumerate(v.shape) if keep or i not in axes)
            self.add(name, x, left, self.wrapped(largest, dtype), (axes, keep), None, dtype)

    def order(self, x: int, v: Known) -> None:
        """What depends on the order of items along an axis."""
        if not v.shape:
            return
        axis = self.pick(0, len(v.shape) - 1)
        size = v.shape[axis]
        name = self.one_of(("cumsum", "cumprod", "cummax", "cummax places", "argmax", "argmin", "sort",
                            "argsort", "topk", "roll", "windows"))
        if name in ("cumsum", "cumprod"):
            if name == "cumprod" and v.dtype.is_float:
                x = self.clipped(x, 2)
            dtype = sum_dtype(v.dtype)
            most = 1 << size if v.dtype.is_float else exact_below(dtype)
            bound = v.bound * max(1, size) if name == "cumsum" else most
            if self.fits(bound, dtype):
                self.add(name, x, v.shape, self.wrapped(bound, dtype), axis, None, dtype)
        elif name in ("sort", "argsort"):
            arg = (axis, bool(self.pick(0, 1)))
            dtype = dtypes.int32 if name == "argsort" else v.dtype
            self.add(name, x, v.shape, size if name == "argsort" else v.bound, arg, None, dtype)
        elif name == "roll":
            self.add(name, x, v.shape, v.bound, (self.pick(-3, 3), axis))
        elif name == "topk":
            count = self.pick(0, size)
            target = (*v.shape[:axis], count, *v.shape[axis + 1:])
            self.add(name, x, target, v.bound, (count, axis, bool(self.pick(0, 1))))
        elif name == "windows" and size:
            window, step = self.pick(1, size), self.pick(1, 2)
            target = (*v.shape[:axis], (size - window) // step + 1, *v.shape[axis + 1:], window)
            if math.prod(target) <= MOST_ITEMS:
                self.view(name, x, target, (axis, window, step))
        elif name.startswith("cummax") and size:
            places = name == "cummax places"
            self.add(name, x, v.shape, size if places else v.bound, axis, None,
                     dtypes.int32 if places else v.dtype)
        elif name.startswith("arg") and size:
            self.add(name, x, v.shape[:axis] + v.shape[axis + 1:], size, axis, None, dtypes.int32)

    # --- items by position

    def index(self, x: int, v: Known) -> None:
        index = self.basic_index(v.shape)
        self.view("getitem", x, np.empty(v.shape, np.int8)[index].shape, index)

    def basic_index(self, shape: Shape) -> tuple[Any, ...]:
        items: list[Any] = []
        for n in shape:
            kind = self.pick(0, 3)
            if kind == 0 and n:
                items.append(self.pick(-n, n - 1))
            elif kind == 1:
                items += [None, slice(None)]
            else:
                bounds = st.one_of(st.none(), st.integers(-n - 1, n + 1))
                step = self.one_of((None, 1, 2, -1, -2, 3))
                items.append(slice(self.draw(bounds), self.draw(bounds), step))
        return (*items, Ellipsis) if self.pick(0, 2) == 0 else tuple(items)

    def places(self, shape: Shape, size: int) -> Array:
        places = np.random.default_rng(self.pick(0, 99)).integers(0, size, shape)
        return places.astype(self.one_of(INDEX_DTYPES))

    def select(self, x: int, v: Known) -> None:
        """Items by position: of an index in memory or computed on the way."""
        if not v.shape or 0 in v.shape:
            return
        name = self.one_of(("rows", "masked rows", "rows by value", "gather", "gather by value", "scatter",
                            "scatter by value", "scatter reduce", "mask", "masked select", "nonzero"))
        axis = self.pick(0, len(v.shape) - 1)
        getattr(self, f"select_{name.replace(' ', '_')}")(name, x, v, axis)

    def select_rows(self, name: str, x: int, v: Known, axis: int) -> None:
        at = self.draw(st.lists(st.integers(-v.shape[0], v.shape[0] - 1), min_size=1, max_size=4))
        if len(at) * math.prod(v.shape[1:]) <= MOST_ITEMS:
            self.add(name, x, (len(at), *v.shape[1:]), v.bound, np.array(at, np.int32))

    def select_masked_rows(self, name: str, x: int, v: Known, axis: int) -> None:
        mask = np.array(self.draw(st.lists(st.booleans(), min_size=v.shape[0], max_size=v.shape[0])))
        self.add(name, x, (int(mask.sum()), *v.shape[1:]), v.bound, mask)

    def select_rows_by_value(self, name: str, x: int, v: Known, axis: int) -> None:
        y = self.other(lambda w: w.dtype.is_int and len(w.shape) <= 3
                       and math.prod(w.shape) * math.prod(v.shape[1:]) <= MOST_ITEMS)
        if y is not None and v.shape[0] < 128:
            self.add(name, x, (*self.values[y].shape, *v.shape[1:]), v.bound, None, y)

    def select_gather(self, name: str, x: int, v: Known, axis: int) -> None:
        target = tuple(self.pick(1, 4) if i == axis else n for i, n in enumerate(v.shape))
        if math.prod(target) <= MOST_ITEMS and v.shape[axis] < 128:
            self.add(name, x, target, v.bound, (axis, self.places(target, v.shape[axis])))

    def select_gather_by_value(self, name: str, x: int, v: Known, axis: int) -> None:
        y = self.other(lambda w: w.dtype.is_int and w.shape == v.shape)
        if y is not None and v.shape[axis] < 128:
            self.add(name, x, v.shape, v.bound, axis, y)

    select_scatter_by_value = select_gather_by_value

    def select_scatter(self, name: str, x: int, v: Known, axis: int) -> None:
        y = self.other(lambda w: w.shape == v.shape and w.dtype is v.dtype)
        if y is not None and v.shape[axis] < 128:
            arg = (axis, self.places(v.shape, v.shape[axis]))
            self.add(name, x, v.shape, max(v.bound, self.values[y].bound), arg, y)

    def select_scatter_reduce(self, name: str, x: int, v: Known, axis: int) -> None:
        reduce = self.one_of(("sum", "amax", "amin", "prod"))
        y = self.other(lambda w: w.shape == v.shape and w.dtype is v.dtype)
        if y is None or v.shape[axis] >= 128 or v.dtype.is_bool or (reduce == "prod" and v.dtype.is_float):
            return
        arg = (axis, self.places(v.shape, v.shape[axis]), reduce, bool(self.pick(0, 1)))
        bound = v.bound + v.shape[axis] * self.values[y].bound
        if self.fits(bound, v.dtype):
            self.add(name, x, v.shape, exact_below(v.dtype) if v.dtype.is_int else bound, arg, y)

    def select_mask(self, name: str, x: int, v: Known, axis: int) -> None:
        y = self.other(lambda w: self.broadcasts(w.shape, v.shape) and not w.dtype.is_bool
                       and np.broadcast_shapes(w.shape, v.shape) == v.shape)
        if y is not None:
            self.add(name, x, v.shape, max(v.bound, small(v.dtype)), self.number(v.dtype), y)

    def select_masked_select(self, name: str, x: int, v: Known, axis: int) -> None:
        y = self.other(lambda w: w.shape == v.shape and not w.dtype.is_bool)
        if y is not None:
            size = self.pick(1, 9)
            self.add(name, x, (size,), max(v.bound, small(v.dtype)), (size, self.number(v.dtype)), y)

    def select_nonzero(self, name: str, x: int, v: Known, axis: int) -> None:
        size = self.pick(1, 5)
        self.add(name, x, (size, len(v.shape)), max(v.shape), size, None, dtypes.int32)

    # --- memory

    def memory(self, x: int, v: Known) -> None:
        name = self.one_of(("realize", "realize", "contiguous", "clone"))
        if name == "realize":
            self.view(name, x, v.shape)
            return
        last = self.add(name, x, v.shape, v.bound)
        if name in UNSURE:
            v.memory.writable = self.values[last].memory.writable = False

    def write(self, x: int, v: Known) -> None:
        """In place: what shows the memory shows it, what was computed before does not."""
        if v.repeats or not v.memory.writable:
            return
        name = self.one_of(("add to", "assign", "set", "set to value", "set where"))
        index = self.basic_index(v.shape) if name.startswith("set ") or name == "set" else ()
        shape = np.empty(v.shape, bool)[index].shape
        y, arg = None, None
        if name == "set":
            arg = (index, self.number(v.dtype))
            bound = max(v.bound, small(v.dtype))
        elif name == "set where":
            y = self.other(lambda w: w.dtype.is_bool and w.shape == v.shape)
            arg = self.number(v.dtype)
            bound = max(v.bound, small(v.dtype))
        else:
            y = self.other(lambda w: promote(v.dtype, w.dtype) is v.dtype and self.broadcasts(w.shape, shape)
                           and (w.shape == shape if name == "assign" else
                                np.broadcast_shapes(w.shape, shape) == shape)
                           and (w.dtype is v.dtype if name == "assign" else True))
            other = 0 if y is None else self.values[y].bound
            bound = v.bound + other if name == "add to" else max(v.bound, other)
            arg = index if name == "set to value" else None
        if name != "set" and y is None:
            return
        if (name == "add to" and v.dtype.is_bool) or not self.fits(bound, v.dtype):
            return
        v.memory.bound = self.wrapped(bound, v.dtype)
        self.steps.append(Step(name, x, y, arg, v.dtype))
        self.values.append(v)


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


def numbers_of(dtype: DType, shape: Shape, seed: Sequence[int]) -> Array:
    """Whole numbers: small ones, of integers also some of any bits."""
    rng = np.random.default_rng((*seed, *shape))
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    most = min(6, small(dtype))
    numbers = rng.integers(0 if dtype.is_unsigned else -most, most, shape, endpoint=True)
    if dtype.is_float:
        return numbers.astype(dtype.numpy)
    some = rng.integers(int(dtype.min), int(dtype.max), shape, dtype.numpy, endpoint=True)
    return np.asarray(np.where(rng.random(shape) < 0.8, numbers.astype(dtype.numpy), some))


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    drawing = Drawing(draw)
    inputs = []
    for number in range(draw(st.integers(1, 3))):
        sizes = (1, 2, 3, 4, 5, 7, 0) if draw(st.integers(0, 9)) == 9 else (1, 2, 3, 4, 5, 7)
        shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=0, max_size=4)))
        while math.prod(shape) > 100:
            shape = shape[1:]
        inputs.append(numbers_of(draw(st.sampled_from(KINDS_OF_NUMBERS)), shape, (number,)))
        drawing.input(inputs[-1])
    given_count = len(inputs)
    for _ in range(draw(st.sampled_from((*range(1, 9), *range(4, 21))))):
        drawing.step()
    last = len(drawing.values) - 1
    results = [last, *(draw(st.integers(0, last)) for _ in range(draw(st.integers(0, 2))))]
    return Program(inputs, drawing.steps, results if last >= given_count else [last])
