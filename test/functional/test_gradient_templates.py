"""Gradients of calls as graph templates (`functional/gradient_templates.py`): they are those of all nodes, in
programs that train, and a step that is written like the one before asks for none of these."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor, nn
from tinygrad.functional import gradient_templates
from tinygrad.graph.ops import Ops
from tinygrad.graph.template import GraphTemplate
from tinygrad.nn.state import get_parameters
from tinygrad.tensor.history import LOOKS

draw = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def no_look_falls_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all histories expands every node."""
    monkeypatch.setattr(LOOKS, "computations", 10**6)
    monkeypatch.setattr(LOOKS, "bytes", 1 << 60)


def real(*shape: int, requires_grad: bool | None = None) -> Tensor:
    return Tensor(draw.standard_normal(shape).astype(np.float32), requires_grad=requires_grad).realize()


def with_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphTemplate, "applied", lambda self, leaves, made=None: self.over(leaves))


def test_a_step_asks_for_no_nodes_of_its_calls() -> None:
    """Forward and backward pass and update: what lives stands for calls, until it is in memory."""
    layers = nn.Linear(8, 16), nn.Linear(16, 4)
    updates = nn.optim.Adam(get_parameters(layers), lr=1e-2)
    losses = []
    for i in range(5):
        x, y = real(6, 8), Tensor(draw.integers(0, 4, 6)).realize()
        updates.zero_grad()
        loss = layers[1](layers[0](x).relu()).cross_entropy(y)
        loss.backward()
        gradients = [p.grad for p in updates.params if p.grad is not None]
        if i > 1:
            assert all(g._uop.src[0].viewed.op is Ops.APPLY for g in gradients)
        updates.step()
        if i > 1:
            assert loss._uop.viewed.op is Ops.APPLY
        assert all(p._is_fully_realized for p in updates.params)
        losses.append(loss.item())
    assert all(np.isfinite(losses))


def test_attention_that_draws_and_masks_asks_for_no_nodes_of_its_calls() -> None:
    """What is drawn is another value in each step, so that attention is no template as a whole."""
    layers = nn.MultiheadAttention(8, 2, dropout=0.5), nn.Linear(8, 4)
    updates = nn.optim.SGD(get_parameters(layers), lr=1e-2)
    mask = Tensor(np.where(np.tri(5, dtype=bool), 0, -np.inf).astype(np.float32)).realize()
    for i in range(4):
        x, y = real(5, 3, 8), Tensor(draw.integers(0, 4, 15)).realize()
        updates.zero_grad()
        with Tensor.train():
            attended, _ = layers[0](x, x, x, attn_mask=mask, need_weights=False)
            loss = layers[1](attended).reshape(15, 4).cross_entropy(y)
        loss.backward()
        gradients = [p.grad for p in updates.params if p.grad is not None]
        if i > 1:
            assert len(gradients) == 6 and all(g._uop.src[0].viewed.op is Ops.APPLY for g in gradients)
        updates.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_take_as_many_kernels_as_those_of_all_nodes(momentum: float, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    def kernels_of_a_step() -> int:
        Tensor.manual_seed(3)
        layers = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        updates = nn.optim.SGD(get_parameters(layers), lr=1e-2, momentum=momentum)
        for _ in range(4):
            before = GlobalCounters.kernel_count
            updates.zero_grad()
            y = layers[2](layers[1](layers[0](real(6, 8)).gelu()))
            loss = (y - real(6, 4)).square().mean().backward()
            updates.step()
            loss.item()
        return GlobalCounters.kernel_count - before

    by_calls = kernels_of_a_step()
    with_all_nodes(monkeypatch)
    assert by_calls <= kernels_of_a_step()


def test_gradients_of_gradients() -> None:
    layers = nn.Linear(1, 8), nn.Linear(8, 1)
    weights = [(w.numpy(), b.numpy()) for w, b in ((layer.weight, layer.bias) for layer in layers)]
    for _ in range(3):
        x = real(5, 1)
        hidden = layers[0](x).tanh()
        (slope,) = layers[1](hidden).sum().gradient(x)
        (curvature,) = slope.sum().gradient(x)
        (w, b), (v, _) = weights
        t = np.tanh(x.numpy() @ w.T + b)
        np.testing.assert_allclose(slope.numpy(), ((1 - t * t) * v) @ w, rtol=1e-4, atol=1e-5)
        expected = (-2 * t * (1 - t * t) * v) @ (w * w)
        np.testing.assert_allclose(curvature.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_value_that_was_read_on_the_way_is_not_computed_again() -> None:
    a, b = nn.Linear(64, 64), nn.Linear(64, 64)
    for p in get_parameters((a, b)):
        p.realize()
    counts = []
    for read in (True, True, True, False, False, False):
        x = real(64, 64)
        hidden = a(x).tanh()
        if read:
            hidden.realize()
        before = GlobalCounters.global_ops
        loss = b(hidden).square().sum()
        loss.backward()
        assert b.weight.grad is not None
        b.weight.grad.numpy()
        counts.append(GlobalCounters.global_ops - before)
        b.weight.grad = b.bias.grad = a.weight.grad = a.bias.grad = None
    assert counts[1] == counts[2] < counts[4] == counts[5]


def test_batches_of_a_data_set_are_of_one_kind() -> None:
    layer, images, labels = nn.Linear(8, 4), real(64, 8), Tensor(draw.integers(0, 4, 64)).realize()
    updates = nn.optim.SGD(get_parameters(layer), lr=1e-2)
    known = set(gradient_templates._templates)
    images.requires_grad = False
    for i in range(8):
        updates.zero_grad()
        layer(images[8 * i:8 * i + 8]).cross_entropy(labels[8 * i:8 * i + 8]).backward()
        updates.step()
    assert len(set(gradient_templates._templates) - known) <= 2


@pytest.mark.parametrize("hide", [lambda w: w.T, lambda w: w.reshape(2, 2, 4).permute(2, 0, 1).reshape(4, 4),
                                  lambda w: w[::-1], lambda w: w.pad(((0, 0), (1, 1)))[:, 1:-1]])
def test_a_view_that_a_call_took_in_has_its_gradient(hide: Callable[[Tensor], Tensor]) -> None:
    for kind in (None, True):
        for _ in range(3):
            x, base = real(3, 4), real(4, 4)
            view = hide(base)
            view.requires_grad = kind
            if kind is None:
                del base  # nobody else is there to take it
            (x @ view).sum().backward()
            expected = np.broadcast_to(x.numpy().sum(0)[:, None], (4, 4))
            assert view.grad is not None
            np.testing.assert_allclose(view.grad.numpy(), expected, rtol=1e-5)
            (given,) = (x @ view).sum().gradient(view)
            np.testing.assert_allclose(given.numpy(), expected, rtol=1e-5)


def test_a_gradient_that_does_not_read_what_is_written_is_kept() -> None:
    for _ in range(3):
        x, w = real(4, 4), real(4, 4)
        (x @ w).sum().backward()
        assert w.grad is not None
        w.assign(w - 0.1 * w.grad)
        w.realize()
        np.testing.assert_allclose(w.grad.numpy(), np.broadcast_to(x.numpy().sum(0)[:, None], (4, 4)),
                                   rtol=1e-5)


def test_a_quotient_is_a_share_where_it_is_one_and_no_other() -> None:
    """Shares of sums have gradients of their own, that lose no digits: whoever divides then has his."""
    for _ in range(3):
        x, w = real(4, 4), real(4, 4)
        part = (x @ w).square()
        (part / (part + 1)).sum().backward()
        p = x.numpy() @ w.numpy()
        expected = 2 * p / (p * p + 1) ** 2 @ w.numpy().T
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-3, atol=1e-4)
        x, y = real(4, 4), real(4, 4)
        ((x @ w).square() / ((y @ w).square() + 1)).sum().backward()
        p, q = x.numpy() @ w.numpy(), y.numpy() @ w.numpy()
        total = q * q + 1
        np.testing.assert_allclose(x.grad.numpy(), 2 * p / total @ w.numpy().T, rtol=1e-3, atol=1e-4)
        expected = -2 * q * p * p / total ** 2 @ w.numpy().T
        np.testing.assert_allclose(y.grad.numpy(), expected, rtol=1e-3, atol=1e-3)
    for _ in range(3):
        power = (real(4, 4) * 0.01).exp() * 1
        (power / (real(4, 4).square() + 1)).sum().realize()
        x = Tensor([300.0, -300.0, 90.0, 0.0], requires_grad=True)
        (x.exp() / (1 + x.exp())).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [0, 0, 0, 0.25], atol=1e-6)


LAYERS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, w: x @ w, lambda x, w: (x @ w).relu(), lambda x, w: x.linear(w.T).tanh(), lambda x, w: x * w[0],
    lambda x, w: x.layernorm() + w[1], lambda x, w: (x @ w).softmax(-1), lambda x, w: x.cat(w)[:4],
    lambda x, w: x + x.mean(0), lambda x, w: x[:, ::-1] * 0.5, lambda x, w: x.detach() @ w,
    lambda x, w: (x > w).where(x, w), lambda x, w: x.contiguous().silu(), lambda x, w: x.T @ w.exp() * 0.1,
    lambda x, w: x * (Tensor.rand(4, 4) > 0.2), lambda x, w: x.maximum(w).cumsum(1) * 0.3,
    lambda x, w: x[Tensor([1, 0, 3, 2])], lambda x, w: x / (w.square() + 1),
    lambda x, w: x.clip(-1, 1) - w[:, :1])
OPTIMIZERS: tuple[Callable[[list[Tensor]], Any], ...] = (
    lambda p: nn.optim.SGD(p, lr=0.01), lambda p: nn.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    lambda p: nn.optim.AdamW(p, lr=0.01), lambda p: nn.optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: nn.optim.LAMB(p, lr=0.01), lambda p: nn.optim.Adagrad(p, lr=0.01),
    lambda p: nn.optim.RMSprop(p, lr=0.01), lambda p: nn.optim.Muon(p, lr=0.01))


def trained(seed: int) -> list[Any]:
    """What a random training program computes: losses, gradients read, accumulated, cleared, weights written
    by hand, some of them constant; at last the weights, and the error that ended it."""
    chance, numbers, found = random.Random(seed), np.random.default_rng(seed), []
    Tensor.manual_seed(seed)
    weights = [Tensor(numbers.standard_normal((4, 4)).astype(np.float32), requires_grad=chance.choice(
        (None, True, True, False))) for _ in range(3)]
    weights[0].requires_grad = True
    steps = [(chance.choice(LAYERS), chance.randrange(3)) for _ in range(chance.randint(1, 6))]
    trained_by = chance.choice(OPTIMIZERS)([w for w in weights if w.requires_grad is not False])
    try:
        for _ in range(chance.randint(2, 4)):
            x = Tensor(numbers.standard_normal((4, 4)).astype(np.float32), requires_grad=False)
            values = []
            for layer, i in steps:
                x = layer(x, weights[i])
                values.append(x)
            if chance.random() < 0.3:
                found.append(chance.choice(values).numpy())
            loss = (x * x).mean()
            if chance.random() < 0.2:
                found += [g.numpy() for g in loss.gradient(*weights[:2])]
            loss.backward()
            if chance.random() < 0.2:
                weights[2].assign(weights[2] * 0.9)
            if chance.random() < 0.3:
                found += [w.grad.numpy() for w in weights if w.grad is not None]
            if chance.random() < 0.8:
                trained_by.step()
            found.append(loss.item())
            if chance.random() < 0.8:
                trained_by.zero_grad()
    except RuntimeError as error:
        found.append(str(error).split(":")[0])
    return found + [w.numpy() for w in weights]


@pytest.mark.parametrize("seed", range(40))
def test_programs_train_as_they_do_with_all_nodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(seed)  # leaves templates
    got = trained(seed)
    with monkeypatch.context() as patch:
        with_all_nodes(patch)
        expected = trained(seed)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
