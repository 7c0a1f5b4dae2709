"""Writes into memory that several tensors show: as in NumPy, in the order in which the program says them.

A program is a list of steps on handles: views of one array, some of them views of views. NumPy's views are
the model: what is written through one shows in all that show the place, and values computed before keep what
they were computed from, however late they are computed.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinygrad import Context, Tensor, TinyJit

Array = np.ndarray[Any, Any]
Draw = Callable[[Any], Any]


STEPS = ("view", "view", "set", "set", "set", "assign", "move", "value", "realize", "drop")


class Program:
    """The same steps on tensors and on NumPy's arrays, side by side while they are drawn."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        x = np.arange(np.prod(shape), dtype=draw(st.sampled_from((np.int32, np.float32)))).reshape(shape)
        self.handles = [(Tensor(x.copy()).realize(), x)]
        self.lazy: list[tuple[Tensor, Array]] = []

    def pick(self) -> tuple[Tensor, Array]:
        return self.draw(st.sampled_from(self.handles[-3:]))

    def step(self) -> None:
        getattr(self, self.draw(st.sampled_from(STEPS)))()

    def view(self) -> None:
        t, x = self.pick()
        kind = self.draw(st.sampled_from(("index", "turn", "flat")))
        if kind == "index":
            index = self.index(x, advanced=False)
            if isinstance(x[index], np.ndarray):
                self.handles.append((t[index], x[index]))
        elif kind == "turn" and x.ndim > 1:
            self.handles.append((t.transpose(0, -1), x.swapaxes(0, -1)))
        elif kind == "flat" and x.flags.c_contiguous:
            self.handles.append((t.reshape(-1), x.reshape(-1)))

    def index(self, x: Array, advanced: bool = True) -> tuple[Any, ...]:
        """An index that fits `x`; where it has lists and masks, no integers, which NumPy then counts among
        them."""
        kinds = ["slice", "slice", "whole", *(["list", "mask"] if advanced else ["number"])]
        items: list[Any] = []
        for n in x.shape:
            kind = self.draw(st.sampled_from(kinds if n else ["whole"]))
            if kind == "slice":
                bounds = st.one_of(st.none(), st.integers(-n - 1, n + 1))
                items.append(slice(self.draw(bounds), self.draw(bounds),
                                   self.draw(st.sampled_from((None, 1, 2, -1, -2)))))
            elif kind == "whole":
                items.append(slice(None))
            elif kind == "number":
                items.append(self.draw(st.integers(-n, n - 1)))
            elif kind == "mask":
                items.append(np.array(self.draw(st.lists(st.booleans(), min_size=n, max_size=n))))
            else:
                items.append(self.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=3)))
        several = sum(isinstance(i, (list, np.ndarray)) for i in items) > 1
        return tuple(slice(None) if several and isinstance(i, np.ndarray) else i for i in items)

    def set(self) -> None:
        t, x = self.pick()
        index = self.index(x, advanced=self.draw(st.booleans()))
        try:
            shape = np.shape(x[index])
        except IndexError:  # lists that do not broadcast
            return
        kind = self.draw(st.sampled_from(("number", "items", "row", "itself")))
        if kind == "itself" and x.ndim:
            value, ours = np.array(x[::-1][index]), t.flip(0)[index]
        elif kind == "items":
            value = (-1 - np.arange(np.prod(shape))).reshape(shape).astype(x.dtype)
            ours = Tensor(np.array(value))
        elif kind == "row" and shape:
            value = (100 * np.arange(shape[-1])).astype(x.dtype)
            ours = Tensor(np.array(value))
        else:
            value = ours = self.draw(st.integers(-9, 9))
        t[index] = ours
        x[index] = value

    def assign(self) -> None:
        t, x = self.pick()
        t.assign(t * 2 + 1)
        x[...] = x * 2 + 1

    def move(self) -> None:
        """One handle's values into another of the same shape, which may overlap it."""
        (t, x), (u, y) = self.pick(), self.pick()
        if x.shape == y.shape:
            t.assign(u)
            x[...] = np.array(y)

    def value(self) -> None:
        t, x = self.pick()
        self.lazy.append((t.pad([(1, 0)] * x.ndim) * 3, np.pad(x, [(1, 0)] * x.ndim) * 3))

    def realize(self) -> None:
        self.pick()[0].realize()

    def drop(self) -> None:
        if len(self.handles) > 1:
            self.handles.pop(self.draw(st.integers(1, len(self.handles) - 1)))

    def check(self) -> None:
        for t, x in (*self.lazy, *self.handles):
            np.testing.assert_array_equal(t.numpy(), x)


def run(draw: Draw) -> None:
    program = Program(draw)
    for _ in range(draw(st.integers(2, 10))):
        program.step()
    program.check()


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@examples(60)
@given(st.data())
def test_random_writes_are_numpys(data: Any) -> None:
    run(data.draw)


@pytest.mark.slow
@examples(2000)
@given(st.data(), st.booleans())
def test_many_random_writes_are_numpys(data: Any, noopt: bool) -> None:
    with Context(NOOPT=int(noopt)):
        run(data.draw)


# --- found before -------------------------------------------------------------------------------------------


def numbers() -> tuple[Tensor, Array]:
    x = np.arange(6, dtype=np.float32)
    return Tensor(x.copy()).realize(), x


def test_overlapping_views_are_written_in_the_order_of_the_program() -> None:
    t, x = numbers()
    first, second = t[0:4], t[2:6]
    second.assign(Tensor([9.0] * 4))
    first.assign(Tensor([7.0] * 4))
    x[2:6], x[0:4] = 9, 7
    np.testing.assert_array_equal(t.numpy(), x)


def test_a_write_through_a_view_that_is_dropped_is_kept() -> None:
    t, x = numbers()
    t[1:3].assign(Tensor([8.0, 9.0]))
    t[3:][Tensor([0, 2])] = 7
    x[1:3], x[3], x[5] = [8, 9], 7, 7
    np.testing.assert_array_equal(t.numpy(), x)


def test_what_is_built_on_a_view_sees_what_was_assigned_before() -> None:
    t, x = numbers()
    turned = t.reshape(2, 3)
    t.assign(t * 10)
    np.testing.assert_array_equal((turned + 1).numpy(), x.reshape(2, 3) * 10 + 1)


def test_what_was_built_on_a_view_keeps_what_was_there() -> None:
    t, x = numbers()
    before = t.reshape(2, 3) + 1
    t[0:3].assign(Tensor([9.0] * 3))
    np.testing.assert_array_equal(before.numpy(), x.reshape(2, 3) + 1)


def test_a_view_of_a_pending_write_is_a_view_of_the_memory() -> None:
    t, x = numbers()
    t.assign(t * 2)
    t[1:3][0] = 5
    x *= 2
    x[1] = 5
    np.testing.assert_array_equal(t.numpy(), x)


def test_under_the_jit_writes_through_dropped_views_are_replayed() -> None:
    cache, expected = Tensor.zeros(3, 4).contiguous().realize(), np.zeros((3, 4), np.float32)

    @TinyJit
    def step(row: Tensor) -> Tensor:
        cache[0].assign(row)
        cache[1].assign(cache[0] * 2)
        return (cache.sum(0) + 1).realize()

    for start in range(4):
        row = np.arange(4, dtype=np.float32) + start
        total = step(Tensor(row).realize())
        expected[0], expected[1] = row, row * 2
        np.testing.assert_array_equal(total.numpy(), expected.sum(0) + 1)
        np.testing.assert_array_equal(cache.numpy(), expected)


def test_views_of_a_computed_tensor_whose_leaves_are_gone_write_into_it() -> None:
    for computed in (lambda: Tensor.zeros(2, 3).contiguous(), lambda: Tensor([[1.0, 2.0, 3.0]] * 2) * 2):
        t = computed().realize()
        x = t.numpy()
        other = t.reshape(3, 2)
        t.assign(t + 1)
        t[0].assign(Tensor([7.0, 8.0, 9.0]))
        t[1][1] = 5
        x += 1
        x[0], x[1, 1] = [7, 8, 9], 5
        np.testing.assert_array_equal(t.numpy(), x)
        np.testing.assert_array_equal(other.numpy(), x.reshape(3, 2))


def test_a_set_of_a_computed_tensor_keeps_its_gradients() -> None:
    leaf = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    t = (leaf * 2).realize()
    t[1] = 5
    np.testing.assert_array_equal(t.numpy(), [2, 5, 6])
    np.testing.assert_array_equal(t.sum().gradient(leaf)[0].numpy(), [2, 0, 2])


def test_one_item_of_what_was_just_assigned_can_be_set() -> None:
    """The loop over that one item was shortened to itself, again and again."""
    t = Tensor([1, 2, 3]).realize().pad(((1, 1),)).realize()
    t.assign(t * 2)
    t[0] = 7
    assert t.tolist() == [7, 2, 4, 6, 0]


def test_a_detached_tensor_shows_what_is_written_into_its_memory() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    detached = weight.detach()
    weight.assign(Tensor([5.0, 6.0]))
    np.testing.assert_array_equal((detached * 2).numpy(), [10, 12])
    np.testing.assert_array_equal(detached.numpy(), [5, 6])
