"""What a loop carries is computed once a step, though only other values are asked for."""
import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, TinyJit, nn
from tinygrad.schedule import cache as cache_module


@pytest.fixture
def made(monkeypatch):
    """The number of nodes of each schedule that was made, not found again."""
    found = []
    create = cache_module.create_schedule
    monkeypatch.setattr(cache_module, "create_schedule",
                        lambda sinks, *args: found.append(len(list(nodes_of(sinks)))) or create(sinks, *args))
    return found


def nodes_of(sinks):
    seen = set()
    for sink in sinks:
        seen.update(sink.toposort(stop=lambda node: node.realized_view is not None))
    return seen


def test_a_state_of_which_a_number_is_read(made):
    state, expected = Tensor(normal(5)).realize(), normal(5).astype(np.float64)
    for step in range(30):
        state = state * 0.75 + (state.sin() * state).sum() * 0.0625
        expected = expected * 0.75 + (np.sin(expected) * expected).sum() * 0.0625
        np.testing.assert_allclose(state.sum().item(), expected.sum(), rtol=1e-4)
        if step == 6:
            before = len(made)
    assert len(made) == before, "a schedule for each step"
    assert max(made) < 2 * made[0], "steps that are computed from the beginning"
    np.testing.assert_allclose(state.numpy(), expected, rtol=1e-4)


def test_a_sequence_that_grows():
    tokens, expected = Tensor([[3]]), [3]
    for _ in range(40):
        new = (tokens.sum(1, keepdim=True) * 5 + 1) % 11
        expected.append((sum(expected) * 5 + 1) % 11)
        assert new.item() == expected[-1]
        tokens = tokens.cat(new, dim=1)
    assert tokens.tolist() == [expected]


def test_two_states(made):
    place, speed = Tensor(normal(4)).realize(), Tensor(normal(4, seed=1)).realize()
    expected, fast = normal(4).astype(np.float64), normal(4, seed=1).astype(np.float64)
    for step in range(30):
        speed = speed - place * 0.125
        place = place + speed * 0.125
        fast = fast - expected * 0.125
        expected = expected + fast * 0.125
        energy = (place.square() + speed.square()).sum().item()
        np.testing.assert_allclose(energy, (expected ** 2 + fast ** 2).sum(), rtol=1e-4)
        if step == 10:
            before = len(made)
    assert len(made) == before


def test_gradients_flow_through_what_was_computed_on_the_way():
    start = Tensor(normal(3), requires_grad=True)
    state = start
    for _ in range(8):
        state = state.sin() * 1.5
        state.sum().item()
    state.sum().backward()
    expected, slope = normal(3).astype(np.float64), 1.0
    for _ in range(8):
        expected, slope = np.sin(expected) * 1.5, slope * np.cos(expected) * 1.5
    np.testing.assert_allclose(start.grad.numpy(), slope, rtol=1e-4)


def test_what_was_computed_on_the_way_can_be_written_to():
    state, expected = Tensor(normal(4)).realize(), normal(4)
    for step in range(8):
        before, known = state, expected
        state = state * 0.5 + 1
        state.max().item()
        state += step
        expected = known * np.float32(0.5) + 1 + step
        np.testing.assert_allclose(state.sum().item(), expected.sum(), rtol=1e-5)
        np.testing.assert_allclose(before.numpy(), known, rtol=1e-5)
    np.testing.assert_allclose(state.numpy(), expected, rtol=1e-5)


def test_a_training_step_is_not_cut(made):
    """Outputs that are held, a loss that is read before its gradients: computed as they were without both."""
    net = nn.Linear(6, 4)
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        outputs = net(Tensor(normal(8, 6, seed=step)))
        loss = (outputs - 1).square().mean()
        loss.item()
        loss.backward()
        optimizer.step()
        if step == 1:
            before = len(made)
    assert len(made) == before


def test_steps_under_a_jit_are_left_alone():
    @TinyJit
    def step(x):
        for _ in range(4):
            x = x * 0.5 + x.sum()
        return x.realize()

    for seed in range(4):
        expected = normal(4, seed=seed).astype(np.float64)
        for _ in range(4):
            expected = expected * 0.5 + expected.sum()
        np.testing.assert_allclose(step(Tensor(normal(4, seed=seed)).realize()).numpy(), expected, rtol=1e-4)


def test_names_that_stand_for_one_value_share_it():
    state = Tensor(normal(4)).realize()
    states = [state]
    for _ in range(8):
        state = state * 0.5 + 1
        states.append(state)
        state.sum().item()
    expected = normal(4)
    for held in states:
        np.testing.assert_allclose(held.numpy(), expected, rtol=1e-5)
        expected = expected * np.float32(0.5) + 1
