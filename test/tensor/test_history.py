"""Graphs of computed values, which nobody can ask for gradients at any more, are let go."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import normal

from tinygrad import GlobalCounters, Tensor
from tinygrad.graph.leaf_tensors import is_leaf, is_view_of_memory
from tinygrad.tensor import history
from tinygrad.tensor.history import LOOKS, forget_history

SIZE = 1 << 14
MOST_VALUES = 64
"""Of which memory may be full before somebody looks for what can be given back."""


@pytest.fixture
def _small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    Tensor([0.0]).realize()
    forget_history()
    monkeypatch.setattr(history, "LEAST_BYTES", MOST_VALUES * 4 * SIZE)
    monkeypatch.setattr(LOOKS, "bytes", GlobalCounters.mem_used + MOST_VALUES * 4 * SIZE)


def one_state() -> Callable[[], None]:
    state = Tensor(normal(SIZE)).realize()

    def step() -> None:
        nonlocal state
        state = (state * 0.5 + 1).realize()
    return step


def two_states_computed_in_turn() -> Callable[[], None]:
    place, speed = (Tensor(normal(SIZE)).realize() for _ in range(2))

    def step() -> None:
        nonlocal place, speed
        speed = (speed - place * 0.1).realize()
        place = (place + speed * 0.1).realize()
    return step


def states_computed_together() -> Callable[[], None]:
    place, speed = (Tensor(normal(SIZE)).realize() for _ in range(2))

    def step() -> None:
        nonlocal place, speed
        place, speed = place + speed * 0.1, speed - place * 0.1
        Tensor.realize(place, speed)
    return step


def a_state_read_by_numpy() -> Callable[[], None]:
    state = Tensor(normal(SIZE))

    def step() -> None:
        nonlocal state
        state = state.sin() + 0.1
        state.numpy()
    return step


def a_detached_state_with_a_weight() -> Callable[[], None]:
    state, weight = Tensor(normal(SIZE)).realize(), Tensor(normal(SIZE), requires_grad=True).realize()

    def step() -> None:
        nonlocal state
        weight.grad = None
        state = (state.detach() * weight).tanh()
        state.sum().backward()
        assert weight.grad is not None
        Tensor.realize(state, weight.grad)
    return step


def a_state_kept_as_a_constant() -> Callable[[], None]:
    state, weight = Tensor(normal(2, SIZE // 2)).realize(), Tensor(normal(SIZE // 2)).realize()

    def step() -> None:
        nonlocal state
        state = (state * weight).tanh().flip(0).detach().realize()
    return step


@pytest.mark.usefixtures("_small_memory")
@pytest.mark.parametrize("make", [one_state, two_states_computed_in_turn, states_computed_together,
                                  a_state_read_by_numpy, a_detached_state_with_a_weight,
                                  a_state_kept_as_a_constant])
def test_a_simulation_takes_no_more_memory_step_after_step(make: Callable[[], Callable[[], None]]) -> None:
    step, before = make(), GlobalCounters.mem_used
    for _ in range(10 * MOST_VALUES):
        step()
        assert GlobalCounters.mem_used - before < 4 * MOST_VALUES * 4 * SIZE


def test_many_small_steps_take_no_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LEAST_COMPUTATIONS", 50)
    monkeypatch.setattr(LOOKS, "computations", 50)
    state = Tensor([1.0]).realize()
    for _ in range(200):
        state = (state * 0.5 + 1).realize()
    assert len(state.uop.toposort()) < 1000


def test_gradients_at_what_lives_stay() -> None:
    weight, values = Tensor(normal(5)), []
    for i in range(4):
        values.append((weight * (i + 1)).exp().realize())
        forget_history()
    total = (values[0] * values[3]).sum()
    forget_history()
    (gradient,) = total.gradient(weight)
    np.testing.assert_allclose(gradient.numpy(), 5 * np.exp(5 * weight.numpy()), rtol=1e-5)


def test_a_value_whose_origin_is_gone_gets_the_gradients_of_what_was_computed_from_it() -> None:
    origin = Tensor(normal(5))
    middle = (origin * 2).realize()
    lazy, computed = middle.exp(), (middle * middle).realize()
    shown = middle.numpy()
    del origin
    forget_history()
    (lazy.sum() + computed.sum()).backward()
    assert middle.grad is not None
    np.testing.assert_allclose(middle.grad.numpy(), np.exp(shown) + 2 * shown, rtol=1e-5)
    (again,) = lazy.gradient(middle, gradient=Tensor.ones(5))
    np.testing.assert_allclose(again.numpy(), np.exp(shown), rtol=1e-5)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_lazy_constant_to_gradients_stays_what_graphs_are_built_on(forgets: bool) -> None:
    value, weight = Tensor(normal(4)).sin().realize(), Tensor(normal(4)).realize()
    with Tensor.no_grad():
        constant = value * 2
    product = constant.requires_grad_() * weight
    if forgets:
        forget_history()
    product.sum().backward()
    assert constant.grad is not None
    np.testing.assert_array_equal(constant.grad.numpy(), weight.numpy())


def test_gradients_of_what_was_computed_from_a_constant_stay() -> None:
    weight = Tensor(normal(5))
    state = (weight * 2).exp().realize()
    constant = state.detach()
    product = (constant * weight).realize()
    later = (product.detach() * weight + product).realize()
    shown = state.numpy()
    forget_history()
    (gradient,) = later.sum().gradient(weight)
    np.testing.assert_allclose(gradient.numpy(), shown * weight.numpy() + shown, rtol=1e-5)
    state[0] = 7
    assert constant.numpy()[0] == 7
    np.testing.assert_allclose(product.numpy(), shown * weight.numpy(), rtol=1e-5)
    (gradient,) = state.sum().gradient(weight)
    np.testing.assert_allclose(gradient.numpy()[1:], 2 * shown[1:], rtol=1e-5)


def test_what_is_written_to_afterwards_changes_alone() -> None:
    origin = Tensor(normal(5))
    first, second = (origin * 2).realize(), (origin * 2).realize()
    del origin
    before = second.numpy().copy()
    forget_history()
    first[0] = 7
    assert first.numpy()[0] == 7
    np.testing.assert_array_equal(second.numpy(), before)


def test_views_of_a_value_stay_views_of_it() -> None:
    origin = Tensor(normal(4, 3))
    value = (origin + 1).realize()
    rows = value[1:3]
    del origin
    forget_history()
    rows[0] = 0
    assert (value.numpy()[1] == 0).all()


@pytest.mark.parametrize("axis", [0, None])
def test_a_view_of_what_lies_on_several_devices_is_not_its_own_value(axis: int | None) -> None:
    items = normal(6)
    shown = Tensor(items).shard(("CPU", "CPU:1"), axis)[::2].realize()
    forget_history()
    assert shown.uop.computed_into is not shown.uop
    np.testing.assert_array_equal(shown.numpy(), items[::2])


@pytest.mark.parametrize("devices", ["CPU", ("CPU", "CPU:1")])
def test_gradients_at_what_stands_for_its_memory_since_stay(devices: str | tuple[str, ...]) -> None:
    rows = normal(4, 3)
    given = Tensor(rows, requires_grad=False)
    weight = Tensor.uniform(3, 2)
    if not isinstance(devices, str):
        given = given.shard(devices, None)
        weight.shard_(devices, None)
    result = (given @ weight).square() * 2
    result.realize()
    assert is_leaf(weight.uop) and is_view_of_memory(weight.uop)
    forget_history()
    (gradient,) = result.sum().gradient(weight)
    np.testing.assert_allclose(gradient.numpy(), 4 * rows.T @ (rows @ weight.numpy()), rtol=1e-5)


def test_what_a_call_holds_of_writes_still_to_be_done_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOOKS, "computations", 0)
    monkeypatch.setattr(history, "LEAST_COMPUTATIONS", 0)
    monkeypatch.setattr(history, "NODES_A_COMPUTATION", 1 << 30)
    items = normal(2, 3)
    x = Tensor(items.copy()).shard(("CPU", "CPU:1"), None).realize()
    x.assign(x + 1)
    x[0] = x[1] * 2
    np.testing.assert_allclose(x.numpy(), np.stack([(items[1] + 1) * 2, items[1] + 1]), rtol=1e-6)
