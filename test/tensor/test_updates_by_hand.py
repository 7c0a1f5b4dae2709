"""Parameters that a loop of the user's own updates, with no optimizer: as PyTorch's tutorials do."""
from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, nn
from tinygrad.functional import gradient_templates
from tinygrad.schedule import cache as cache_module

RATE = 0.1
UPDATES: dict[str, Callable[[Tensor], Tensor]] = {
    "assign": lambda p: p.assign(p - RATE * p.grad), "sub_": lambda p: p.sub_(p.grad * RATE),
    "detached": lambda p: p.assign(p.detach() - RATE * p.grad), "add_": lambda p: p.add_(p.grad, alpha=-RATE),
    "setitem": lambda p: p.__setitem__(slice(None), p - RATE * p.grad)}


class Network:
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        for i, p in enumerate(nn.state.get_parameters(self)):
            p.replace(Tensor(normal(*p.shape, seed=i)))

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().sum()


def expected(steps: int) -> list[float]:
    """The losses, in NumPy."""
    found = []
    a, b, c, d = (p.numpy().astype(np.float64) for p in nn.state.get_parameters(Network()))
    weights = {p.shape: p for p in (a, b, c, d)}
    w, u, v, z = weights[4, 3], weights[4,], weights[2, 4], weights[2,]
    for step in range(steps):
        x = normal(5, 3, seed=step).astype(np.float64)
        h = np.tanh(x @ w.T + u)
        y = h @ v.T + z
        found.append((y * y).sum())
        dy = 2 * y
        dh = dy @ v * (1 - h * h)
        v, z, w, u = v - RATE * dy.T @ h, z - RATE * dy.sum(0), w - RATE * dh.T @ x, u - RATE * dh.sum(0)
    return found


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("under_no_grad", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_steps_by_hand(update: str, realized: bool, under_no_grad: bool, reads: bool) -> None:
    """Gradients are those from before the first write, whoever is written to first."""
    network = Network()
    parameters = nn.state.get_parameters(network)
    if realized:
        Tensor.realize(*parameters)
    losses = []
    for step in range(6):
        for p in parameters:
            p.grad = None
        loss = network(Tensor(normal(5, 3, seed=step))).backward()
        if reads:
            losses.append(loss.item())
        with Tensor.no_grad() if under_no_grad else contextlib.nullcontext():
            for p in parameters:
                UPDATES[update](p)
        if not reads:
            losses.append(loss.item())
    np.testing.assert_allclose(losses, expected(6), rtol=1e-3)


def test_steps_of_changing_length_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence begins with a state of zeros, and weights are written in every step: so what is computed
    depends on the length of this one alone, and not on those before."""
    made: list[int] = []
    create = cache_module.create_schedule
    monkeypatch.setattr(cache_module, "create_schedule", lambda *args: made.append(1) or create(*args))
    kinds: list[int] = []
    by_nodes = gradient_templates._of_nodes
    monkeypatch.setattr(gradient_templates, "_of_nodes", lambda *args: kinds.append(1) or by_nodes(*args))
    inside, outside = nn.Linear(3, 4), nn.Linear(4, 4)
    parameters = nn.state.get_parameters([inside, outside])

    def step(length: int, seed: int) -> float:
        x, state = Tensor(normal(length, 1, 3, seed=seed)).realize(), Tensor.zeros(1, 4)
        for p in parameters:
            p.grad = None
        for i in range(length):
            state = (inside(x[i]) + outside(state)).tanh()
        loss = state.square().sum().backward()
        with Tensor.no_grad():
            for p in parameters:
                p.assign(p - 0.01 * p.grad)
        return loss.item()

    lengths = [2, 3, 5, 4, 3, 2, 5, 4, 4, 5, 3, 2, 3, 5, 2, 4, 2, 3]
    for seed, length in enumerate(lengths):
        step(length, seed)
    known = len(made), len(kinds)
    for seed, length in enumerate([5, 2, 4, 4, 3, 5, 3, 2, 2, 5]):
        step(length, seed)
    assert (len(made), len(kinds)) == known


def test_gradients_that_nobody_asked_for_are_given_up() -> None:
    x, w = Tensor(normal(3)).realize(), Tensor(normal(3)).realize()
    (x * w).sum().backward()
    w.assign(w * 2).realize()
    with pytest.raises(RuntimeError, match="was not computed before"):
        x.grad  # noqa: B018


def test_a_second_derivative_at_a_variable_made_of_zeros() -> None:
    """In every step: the gradient that is remembered is of the kind, not of this variable."""
    weight = Tensor(normal(3)).realize()
    for _ in range(3):
        x = Tensor.zeros(3)
        (slope,) = (x.exp().sigmoid() * weight).sum().gradient(x)
        (found,) = slope.sum().gradient(x)
        s = 1 / (1 + np.exp(-1.0))
        np.testing.assert_allclose(found.numpy(), weight.numpy() * (s * (1 - s) * (2 - 2 * s)), rtol=1e-5)


def test_weights_are_written_with_the_loss_that_is_read() -> None:
    """Both are computed from the same values."""
    weight, other = Tensor(normal(3)).realize(), Tensor(normal(3)).realize()
    before = weight.numpy()
    loss = (weight * weight).sum().backward()
    weight.assign(weight - weight.grad)
    other.assign(other * 2)
    loss.item()
    assert weight._is_realized and not other._is_realized
    np.testing.assert_array_equal(weight.numpy(), before - 2 * before)
