"""Random segment sums, in one pass each (`codegen/opt/scatter_add.py`), against NumPy:
places that are read, computed, looked up and summed, several at once, beside conditions and in kernels that
go on.

A program is repeated by its seed. All numbers are whole, so results are exact.
"""
from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from drivers import one_pass_everywhere
from spaces import SIZES, Both, Space

from tinygrad import Tensor
from tinygrad.codegen.opt import choose_scatter

Array = np.ndarray[Any, Any]
MOST_ITEMS = 40_000
"""in the space of outputs and what is summed"""
TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)


class Program(Space):
    """Axes of outputs and summed ones in any order, and what is drawn in them."""

    def __init__(self, seed: int, device: str | None, largest: int) -> None:
        super().__init__(seed, device)
        random = self.random
        self.outputs = random.choice((1, 2, 2, 3))
        count = self.outputs + random.choice((1, 1, 2))
        self.shape = [random.choice([s for s in SIZES if s <= largest]) for _ in range(count)]
        while np.prod(self.shape) > MOST_ITEMS:
            self.shape[random.randrange(count)] = 2
        axes = list(range(count))
        random.shuffle(axes)
        self.out_axes, self.summed = sorted(axes[:self.outputs]), sorted(axes[self.outputs:])

    # --- what there is in the space ---------------------------------------------------------------------

    def given(self, array: Array) -> Both:
        return Both(Tensor(array, device=self.device).realize(), array)

    def some(self, axes: list[int]) -> set[int]:
        return set(self.random.sample(axes, self.random.randint(1, len(axes))))

    def drawn(self, low: int, high: int, shape: list[int], kind: type[Any] = np.int32) -> Both:
        return self.given(self.numbers.integers(low, max(low + 1, high), shape).astype(kind))

    # --- which items belong to what ---------------------------------------------------------------------

    def places(self, axis: int) -> Both:
        """Numbers of items along an axis of outputs, some of them of none, for each summed item at least."""
        size, axes = self.shape[axis], self.some(self.summed)
        if len(self.out_axes) > 1 and self.random.random() < 0.3:
            axes.add(self.random.choice([a for a in self.out_axes if a != axis]))
        kinds = (self.read, self.computed, self.moved, self.looked_up, self.added, self.narrow)
        return self.random.choice(kinds)(size, self.along(axes))

    def read(self, size: int, shape: list[int]) -> Both:
        return self.drawn(-2, size + 3, shape)

    def computed(self, size: int, shape: list[int]) -> Both:
        functions = (lambda x: x // 3, lambda x: x % 5, lambda x: 2 * x + 1, lambda x: -x, lambda x: x - 1,
                     lambda x: x.clip(0, size - 1))
        return self.read(size, shape).map(self.random.choice(functions))

    def moved(self, size: int, shape: list[int]) -> Both:
        counter = self.counter(self.random.randrange(len(self.shape)))
        functions = (lambda x, c: x + c, lambda x, c: c - x, lambda x, c: (x + c) // 3,
                     lambda x, c: c // 2 + 0 * x)
        return self.read(size, shape).with_(counter, self.random.choice(functions))

    def looked_up(self, size: int, shape: list[int]) -> Both:
        table, at = self.drawn(0, size + 2, [size + 4]), self.drawn(0, size + 4, shape)
        return table.with_(at, lambda t, i: t[i])

    def added(self, size: int, shape: list[int]) -> Both:
        return self.drawn(0, 2 + size // 2, [*shape, self.random.choice((2, 3, 5))]).map(lambda x: x.sum(-1))

    def narrow(self, size: int, shape: list[int]) -> Both:
        kind = self.random.choice(TYPES)
        drawn = self.drawn(0, size, shape, kind)
        return Both(drawn.tensor.cast("int64"), drawn.reference.astype(np.int64))

    def condition(self) -> Both:
        axes = self.random.sample(self.out_axes, self.random.choice((1, min(2, len(self.out_axes)))))
        parts = [self.counter(a).with_(self.places(a), lambda c, p: c == p) for a in axes]
        more = self.random.choice(("", "", "drawn", "bound", "other place", "diagonal"))
        if more == "drawn":
            axes_of = self.some(list(range(len(self.shape))))
            parts.append(self.drawn(0, 2, self.along(axes_of)).map(lambda x: x > 0))
        elif more == "bound":
            parts.append(self.counter(self.random.randrange(len(self.shape))).map(lambda c: c < 3))
        elif more == "other place":
            parts.append(self.places(axes[0]).map(lambda p: p != 1))
        elif more == "diagonal" and len(self.out_axes) > 1:
            first, second = self.random.sample(self.out_axes, 2)
            parts.append(self.counter(first).with_(self.counter(second), lambda a, b: a == b))
        self.random.shuffle(parts)
        while len(parts) > 1:
            parts = [parts[0].with_(parts[1], lambda a, b: a & b), *parts[2:]]
        return parts[0]

    # --- what is summed ---------------------------------------------------------------------------------

    def value(self) -> Both:
        axes = self.some(list(range(len(self.shape)))) | {self.random.choice(self.summed)}
        x = self.drawn(-3, 4, self.along(axes), np.float32)
        more = self.random.choice(("", "", "looked up", "summed", "counter"))
        if more == "looked up":
            x = x.with_(self.drawn(-3, 4, [7], np.float32).with_(self.drawn(0, 7, self.along(axes)),
                                                                lambda t, i: t[i]), lambda a, b: a * b)
        elif more == "summed":
            beside = self.drawn(-2, 3, [*self.along(self.some(self.summed)), 3], np.float32)
            x = x.with_(beside.map(lambda b: b.sum(-1)), lambda a, b: a + b)
        elif more == "counter":
            counter = self.counter(self.random.choice(self.out_axes))
            numbers = Both(counter.tensor.float(), counter.reference.astype(np.float32))
            x = x.with_(numbers, lambda a, b: a + b)
        return x

    def total(self) -> Both:
        condition, summed = self.condition(), tuple(self.summed)
        name, other = self.random.choice((("sum", 0.0), ("sum", 0.0), ("max", -np.inf), ("prod", 1.0)))
        value = self.value() if name != "prod" else self.drawn(0, 2, self.along(set(summed)), np.float32).map(
            lambda x: 1 - 2 * x)
        kept = np.where(condition.reference, value.reference, np.float32(other))
        full = np.broadcast_to(kept, self.shape)
        if self.random.random() < 0.5:
            tensor = condition.tensor.where(value.tensor, other)
        else:
            tensor = condition.tensor.logical_not().where(other, value.tensor)
        of_array = {"sum": np.sum, "max": np.max, "prod": np.prod}[name]
        return Both(getattr(tensor.expand(self.shape), name)(summed), of_array(full, summed))

    def result(self) -> Both:
        total = self.total()
        if self.random.random() < 0.3:
            total = total.with_(self.total(), lambda a, b: a + b)
        more = self.random.choice(("", "", "scaled", "largest", "turned"))
        if more == "scaled":
            return total.map(lambda x: x * 2)
        if more == "largest":
            return total.map(lambda x: x.max(-1))
        if more == "turned":
            return Both(total.tensor.permute(*reversed(range(self.outputs))), total.reference.T)
        return total


@pytest.fixture(params=[0, 1 << 30], ids=["branches", "dump slots"])
def one_pass(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    one_pass_everywhere(monkeypatch, request.param)


def check(seed: int, device: str | None, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_scatter, "CACHE_SHARE", Random(seed).choice((1e-3, 1e-4, 1e-5, 1e-6)))
    result = Program(seed, device, largest).result()
    assert result.tensor.shape == result.reference.shape
    np.testing.assert_array_equal(result.tensor.numpy(), result.reference)


@pytest.mark.parametrize("seed", range(60))
def test_random_segment_sums(one_pass: None, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, None, 65, monkeypatch)


@pytest.mark.parametrize("device", ["PYTHON", "PYTHON:BLOCKS"])
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_random_segment_sums_where_accesses_are_checked(one_pass: None, device: str, seed: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, device, 9, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 11_000))
def test_many_random_segment_sums(one_pass: None, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, None, 65, monkeypatch)
