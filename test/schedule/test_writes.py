"""Writes into memory that several tensors show: as in NumPy, in the order in which the program says them.

A program is a list of steps on handles: views of one array, some of them views of views. NumPy's views are
the model: what is written through one shows in all that show the place, and values computed before keep what
they were computed from, however late they are computed. The array is memory, a lazy value, or one that
gradients flow through; what PyTorch makes of those was computed by hand.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinygrad import Context, Tensor, TinyJit

Array = np.ndarray[Any, Any]
Draw = Callable[[Any], Any]


STEPS = ("view", "view", "set", "set", "set", "assign", "move", "value", "computed", "realize", "drop")

BEGINNINGS: dict[str, Callable[[Array], Tensor]] = {
    "memory": lambda x: Tensor(x.copy()).realize(),
    "lazy": lambda x: Tensor(x + 1, requires_grad=False) - 1,
    "lazy number": lambda x: Tensor.zeros(*x.shape, dtype=str(x.dtype), requires_grad=False) + Tensor(x),
    "tracked": lambda x: Tensor(x + 1, requires_grad=x.dtype == np.float32) - 1,
    "detached": lambda x: (Tensor(x.copy()) + 0).detach(),
    "detached memory": lambda x: Tensor(x.copy()).realize().detach(),
}


class Program:
    """The same steps on tensors and on NumPy's arrays, side by side while they are drawn."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        x = np.arange(np.prod(shape), dtype=draw(st.sampled_from((np.int32, np.float32)))).reshape(shape)
        self.handles = [(BEGINNINGS[draw(st.sampled_from(sorted(BEGINNINGS)))](x), x)]
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

    def computed(self) -> None:
        """A value of its own, computed from another."""
        t, x = self.pick()
        self.handles.append((t + 1, x + 1))

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
    with Tensor.no_grad() if draw(st.booleans()) else contextlib.nullcontext():
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


def test_tensors_detached_from_a_pending_write_all_show_later_writes() -> None:
    weight = Tensor([1.0, 2.0]).contiguous().realize()
    kept = []
    for _ in range(3):
        weight.assign(weight + 1)
        kept.append(weight.detach().realize())
    assert [detached.tolist() for detached in kept] == [[4.0, 5.0]] * 3


def test_a_detached_tensor_shows_what_is_written_into_its_memory() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    detached = weight.detach()
    weight.assign(Tensor([5.0, 6.0]))
    np.testing.assert_array_equal((detached * 2).numpy(), [10, 12])
    np.testing.assert_array_equal(detached.numpy(), [5, 6])


# --- values that are not memory -----------------------------------------------------------------------------


LAZY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Any], list[float], list[float]]] = {
    "a slice": (lambda a: a[1:], lambda v: v.__setitem__(0, 9), [2, 9, 4, 5], [9, 4, 5]),
    "a flip": (lambda a: a.flip(0), lambda v: v.__setitem__(0, 9), [2, 3, 4, 9], [9, 4, 3, 2]),
    "a view of a view": (lambda a: a.reshape(2, 2).T[1], lambda v: v.__setitem__(0, 9), [2, 9, 4, 5], [9, 5]),
    "a diagonal": (lambda a: a.reshape(2, 2).diagonal(), lambda v: v.__setitem__(1, 9), [2, 3, 4, 9], [2, 9]),
    "a chunk": (lambda a: a.chunk(2)[1], lambda v: v.__setitem__(0, 9), [2, 3, 9, 5], [9, 5]),
    "a repeated item, once": (lambda a: a.expand(2, 4)[1], lambda v: v.__setitem__(0, 9), [9, 3, 4, 5],
                              [9, 3, 4, 5]),
    "a detached value": (lambda a: a.detach()[2:], lambda v: v.__setitem__(0, 9), [2, 3, 9, 5], [9, 5]),
    "a mask": (lambda a: a[1:], lambda v: v.__setitem__(v > 3, 9), [2, 3, 9, 9], [3, 9, 9]),
    "a list": (lambda a: a[1:], lambda v: v.__setitem__([0, 2], 9), [2, 9, 4, 9], [9, 4, 9]),
    "in place": (lambda a: a[1:3], lambda v: v.assign(v * 10), [2, 30, 40, 5], [30, 40]),
}
"""a view of [2, 3, 4, 5], what is written, the value then, the view then"""


@pytest.mark.parametrize("computed", ["neither", "value", "view"])
@pytest.mark.parametrize("kind", ["lazy", "tracked", "under no_grad"])
@pytest.mark.parametrize("name", LAZY)
def test_a_write_through_a_view_of_a_value_reaches_it(name: str, kind: str, computed: str) -> None:
    view, write, expected, shown = LAZY[name]
    a = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=kind != "lazy") + 1
    with Tensor.no_grad() if kind == "under no_grad" else contextlib.nullcontext():
        v = view(a)
        {"neither": lambda: v, "value": a.realize, "view": v.realize}[computed]()
        write(v)
    np.testing.assert_array_equal(a.numpy(), expected)
    np.testing.assert_array_equal(v.numpy(), shown)


@pytest.mark.parametrize("name", LAZY)
def test_an_equal_expression_is_another_value(name: str) -> None:
    view, write, expected, _ = LAZY[name]
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    a, twin, twins_view = x + 1, x + 1, view(x + 1)
    before = twins_view.numpy()
    write(view(a))
    np.testing.assert_array_equal(a.numpy(), expected)
    np.testing.assert_array_equal(twin.numpy(), [2, 3, 4, 5])
    np.testing.assert_array_equal(twins_view.numpy(), before)


def test_other_views_see_a_write_when_the_value_itself_is_gone() -> None:
    a = Tensor([1.0, 2.0, 3.0]) + 1
    v, w = a[1:], a[:2]
    del a
    v[0] = 9
    np.testing.assert_array_equal(w.numpy(), [2, 9])


def test_gradients_pass_a_write_through_a_view() -> None:
    """a = [2x, 3m, 2z], of which a * a is summed."""
    leaf = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    m = Tensor([5.0], requires_grad=True)
    a = leaf * 2
    a[1:][0:1] = m * 3
    (a * a).sum().backward()
    assert leaf.grad is not None and m.grad is not None
    np.testing.assert_array_equal(leaf.grad.numpy(), [8, 0, 24])
    np.testing.assert_array_equal(m.grad.numpy(), [90])


def test_a_write_under_no_grad_is_not_part_of_the_gradient() -> None:
    """As in PyTorch: the value is there, the gradient that of the value before."""
    leaf = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    a = leaf * 2
    with Tensor.no_grad():
        a[1:][0] = 9
    (a * a).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_array_equal(a.numpy(), [2, 9, 6])
    np.testing.assert_array_equal(leaf.grad.numpy(), [8, 36, 24])


def test_a_view_under_no_grad_writes_into_its_parameter() -> None:
    weight = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    with Tensor.no_grad():
        weight[1:][0] = 9
        weight[2:] += 1
    (weight * weight).sum().backward()
    assert weight.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), [2, 18, 8])


@pytest.mark.parametrize("index", [np.s_[None], np.s_[None, 1:], np.s_[0, None], np.s_[:, 0, None]])
def test_a_new_axis_in_the_index_of_a_write_into_a_value_that_ends_in_a_reshape(index: Any) -> None:
    """The two reshapes are one node, below which no way leads to the value itself."""
    x = Tensor([3.0, 1.0, 2.0], requires_grad=True)
    y = x[Tensor([[0, 1], [2, 0]])]
    y[index] = x[1]
    expected, received = np.array([[3, 1], [2, 3]], np.float32), np.ones((2, 2))
    expected[index], received[index] = 1, 0
    np.testing.assert_array_equal(y.numpy(), expected)
    gradient = [received[0, 0] + received[1, 1], received[0, 1] + (received == 0).sum(), received[1, 0]]
    np.testing.assert_array_equal(y.sum().gradient(x)[0].numpy(), gradient)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_repeated_item_cannot_be_written_to(lazy: bool) -> None:
    a = Tensor([1.0, 2.0])
    base = a + 1 if lazy else a.realize()
    repeated = base.expand(2, 2)
    with pytest.raises(RuntimeError, match="repeats items of shape .* clone"):
        repeated[:, 1] = 5


def test_no_items_can_be_written_to_a_view_that_repeats() -> None:
    x = Tensor([1.0, 2.0]) + 1
    x.expand(2, 2)[0:0] = 5
    np.testing.assert_array_equal(x.numpy(), [2, 3])


REPEATED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "repeat": (lambda x: x.repeat(2), lambda x: np.tile(x, 2)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2), lambda x: np.repeat(x, 2)),
    "roll": (lambda x: x.roll(1), lambda x: np.roll(x, 1)),
    "nothing added": (lambda x: (x + Tensor.zeros(2, 3, dtype=x.dtype)).flatten(), lambda x: np.tile(x, 2)),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "of the value": lambda value, view: value.__setitem__(1, 5),
    "of a view": lambda value, view: view.__setitem__(0, 5),
    "in place": lambda value, view: value.__iadd__(1),
    "in place of a view": lambda value, view: view.__imul__(2),
}


@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", REPEATED)
def test_items_made_from_one_item_are_written_to_one_by_one(name: str, write: str, kind: Any) -> None:
    ours, theirs = REPEATED[name]
    for realize in (False, True):
        source = np.array([1, 2, 3], kind)
        x = Tensor(source) + 1
        value, expected = ours(x.realize() if realize else x), theirs(source + 1)
        view, expected_view = value[1:], expected[1:]
        WRITES[write](value, view)
        WRITES[write](expected, expected_view)
        np.testing.assert_array_equal(view.numpy(), expected_view)
        np.testing.assert_array_equal(value.numpy(), expected)
        np.testing.assert_array_equal(x.numpy(), source + 1)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum over one item": lambda x: x.reshape(3, 1).sum(1),
    "min over one item": lambda x: x.reshape(3, 1).min(1),
    "first power": lambda x: x ** 1,
    "roll by nothing": lambda x: x.roll(0, 0),
    "repeat once": lambda x: x.repeat(1),
    "repeat_interleave once": lambda x: x.repeat_interleave(1),
    "crop": lambda x: x.pad((-1, 0)),
    "interpolate to the same size": lambda x: x.reshape(1, 1, 3).interpolate((3,), mode="nearest"),
    "a gradient": lambda x: gradient_at_ones(lambda leaf: (leaf * x).sum()),
}


def gradient_at_ones(function: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = Tensor([1.0, 1.0, 1.0], requires_grad=True)
    return function(leaf).gradient(leaf)[0]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("name", COPIES)
def test_what_is_no_view_is_a_value_of_its_own(name: str, lazy: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0]) + 0 if lazy else Tensor([1.0, 2.0, 3.0]).realize()
    result = COPIES[name](x)
    before = result.numpy()
    x[2] = 7
    np.testing.assert_array_equal(result.numpy(), before)
    result[...] = 8
    np.testing.assert_array_equal(x.numpy(), [1, 2, 7])


def test_assigning_memory_to_a_value_copies_it() -> None:
    a, b = Tensor([1.0, 2.0]) + 1, Tensor([5.0, 6.0]).realize()
    a.assign(b)
    a[0] = 9
    b[1] = 7
    np.testing.assert_array_equal(a.numpy(), [9, 6])
    np.testing.assert_array_equal(b.numpy(), [5, 7])


def test_under_the_jit_writes_through_views_of_values_are_replayed() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = x * 2
        y[1:][0] = x.sum()
        for row in y.reshape(2, 2):
            row += 1
        return y.realize()

    for start in range(4):
        x = np.arange(4, dtype=np.float32) + start
        expected = x * 2
        expected[1] = x.sum()
        np.testing.assert_array_equal(step(Tensor(x).realize()).numpy(), expected + 1)


@pytest.mark.parametrize("spread", [lambda x: x, lambda x: x.shard(("CPU", "CPU:1"), 0)],
                         ids=["one device", "two devices"])
@pytest.mark.parametrize("reader", [
    lambda x: x.pad(((0, 4), (0, 0)))[4:] * 2,
    lambda x: x[:1].expand(4, 2) * 2,
    lambda x: (x[:0].sum() + x[:1].sum()) * 2,
    lambda x: x.zeros_like().contiguous().realize().assign(x.detach().pad(((0, 4), (0, 0)))[4:] + 1),
], ids=["none", "a row", "two", "another write"])
def test_a_pending_write_is_done_also_where_its_reader_needs_none_or_a_part_of_it(
        spread: Callable[[Tensor], Tensor], reader: Callable[[Tensor], Tensor]) -> None:
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    for _ in range(2):
        x = spread(Tensor(values, device="CPU")).realize()
        x.assign(x - 1)
        found = reader(x).numpy()
        np.testing.assert_array_equal(x.numpy(), values - 1)
        np.testing.assert_array_equal(found, reader(x).numpy())
