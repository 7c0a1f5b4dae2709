"""Training and captured functions on several devices: what one device gives."""
from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from several_devices import TWO, items_of, lies, numbers
from several_devices import memories as memories

from tinygrad import Tensor, TinyJit, dtypes, grad, nn, vmap
from tinygrad.device import Device
from tinygrad.engine.capture import JitError
from tinygrad.helpers import GlobalCounters
from tinygrad.nn import optim, state

# --- training -------------------------------------------------------------------------------------


def test_gradients_lie_as_their_parameters_do() -> None:
    x = Tensor(numbers(4, 6)).shard(TWO, 0)
    whole, cut = Tensor(numbers(6, 8)).shard_(TWO), Tensor(numbers(8, 2)).shard_(TWO, 0)
    (x.shard(TWO) @ whole @ cut).sum().backward()
    assert whole.grad is not None and cut.grad is not None
    assert (lies(whole.grad)[0], lies(cut.grad)[0]) == (None, 0) or lies(whole.grad)[0] == 1
    (x @ whole).square().sum().backward()
    assert whole.grad.device == TWO


def test_transformed_functions_take_values_on_several_devices() -> None:
    data = numbers(4, 3)
    t = Tensor(data).shard(TWO, 0)
    np.testing.assert_allclose(vmap(lambda row: (row * row).sum())(t).numpy(), (data * data).sum(1))
    np.testing.assert_allclose(grad(lambda x: (x * x * x).sum())(t).numpy(), 3 * data * data)
    spread = vmap(lambda row: (row.shard(TWO, 0) * 2).sum())
    np.testing.assert_allclose(spread(Tensor(data)).numpy(), 2 * data.sum(1))


class ConvNet:
    """Convolution, batch norm, pooling, a linear layer, dropout."""

    def __init__(self) -> None:
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.Linear(36, 5)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).relu().max_pool2d().flatten(1)).dropout(0.2)

    def spread(self, devices: tuple[str, ...]) -> None:
        for p in state.get_parameters(self):
            p.shard_(devices)


class Transformer:
    """An embedding, a block of attention and a perceptron with their heads and columns cut, a head."""

    def __init__(self) -> None:
        self.embedding, self.norm, self.head = nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 5)
        self.query, self.key, self.value, self.up = (nn.Linear(8, n) for n in (8, 8, 8, 16))
        self.join, self.down = nn.Linear(8, 8), nn.Linear(16, 8)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        h = self.norm(x)
        q, k, v = (f(h).reshape(*tokens.shape, 4, 2).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        x = x + self.join(q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head((x + self.down(self.up(x).gelu())).mean(1))

    def spread(self, devices: tuple[str, ...]) -> None:
        by_columns, by_rows = (self.query, self.key, self.value, self.up), (self.join, self.down)
        for layer in by_columns:
            layer.weight.shard_(devices, 0)
            layer.bias.shard_(devices, 0)
        for layer in by_rows:
            layer.weight.shard_(devices, 1)
        for p in state.get_parameters(self):
            if not isinstance(p.device, tuple):
                p.shard_(devices)


def train(make: Callable[[], Any], batches: list[Any], labels: Any, devices: tuple[str, ...],
          axis: int | None, jit: bool) -> tuple[list[float], dict[str, Any], Any]:
    Tensor.manual_seed(2)
    model = make()
    if devices:
        model.spread(devices)
    optimizer = optim.Adam(state.get_parameters(model), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    run = TinyJit(step) if jit else step
    losses = []
    with Tensor.train():
        for batch in batches:
            x, y = Tensor(batch), Tensor(labels)
            losses.append(float((run(x.shard(devices, axis), y.shard(devices, axis)) if devices
                                 else run(x, y)).item()))
    return losses, {k: v.numpy() for k, v in state.get_state_dict(model).items()}, model


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", ["data", "tensor"])
def test_training_gives_what_one_device_gives(kind: str, jit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "default_float", dtypes.float64)
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 5, 6)
    if kind == "data":
        make, axis, batches = ConvNet, 0, [rng.normal(size=(6, 1, 8, 8)) for _ in range(3)]
    else:
        make, axis, batches = Transformer, None, [rng.integers(0, 7, (6, 3)) for _ in range(3)]
    expected, weights, _ = train(make, batches, labels, (), None, False)
    losses, found, model = train(make, batches, labels, TWO, axis, jit)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    for name, weight in weights.items():
        np.testing.assert_allclose(found[name], weight, rtol=1e-6, atol=1e-8, err_msg=name)
    if kind == "tensor":
        assert lies(model.up.weight) == (0, ((0, 8), (8, 16))) and lies(model.down.weight)[0] == 1


@pytest.mark.parametrize("jit", [False, True])
def test_steps_leave_memory_as_it_was(jit: bool) -> None:
    w = Tensor(numbers(8, 8)).shard_(TWO, 0).realize()
    w.requires_grad = True

    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss = (x @ w).square().mean().backward()
        assert w.grad is not None
        return loss.realize(w.assign(w.detach() - w.grad * 0.01))

    run = TinyJit(step) if jit else step
    used = []
    for _ in range(6):
        run(Tensor(numbers(8, 8)).shard(TWO).realize()).item()
        gc.collect()
        used.append(GlobalCounters.mem_used)
    assert used[-1] == used[2]


# --- captured functions ---------------------------------------------------------------------------


def test_a_captured_function_has_a_trace_for_each_layout() -> None:
    double = TinyJit(lambda x: (x * 2, x.sum(0)))
    for seed in range(3):
        for axis in (0, 1, None):
            data = np.random.default_rng(seed).normal(size=(4, 2))
            x = Tensor(data).shard(TWO, axis)
            twice, total = double(x)
            assert twice.device == TWO and lies(twice)[0] == axis
            np.testing.assert_allclose(twice.numpy(), data * 2)
            np.testing.assert_allclose(total.numpy(), data.sum(0))
    assert len(double.traces) == 3


def test_a_captured_function_writes_state_and_arguments_on_several_devices() -> None:
    total = Tensor.zeros(4).contiguous().shard_(TWO, 0).realize()
    total.requires_grad = False

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        x.assign(x * 0)
        return total

    for n in range(1, 5):
        before = total + 0
        x = Tensor(np.full(4, n, np.float32), requires_grad=False).shard_(TWO, 0).realize()
        assert add(x) is total and x.tolist() == [0] * 4
        assert before.tolist() == [n * (n - 1) / 2] * 4, "what depends on the old value is computed first"
        assert total.tolist() == [n * (n + 1) / 2] * 4


@pytest.mark.parametrize("axis", [0, 1, None])
def test_equal_results_of_a_captured_function_have_memory_of_their_own_each(axis: int | None) -> None:
    twice = TinyJit(lambda x: (x * 2, x * 2))
    for seed in range(3):
        data = np.random.default_rng(seed).normal(size=(4, 2))
        a, b = twice(Tensor(data, requires_grad=False).shard(TWO, axis))
        assert lies(a) == lies(b) and lies(a)[0] == axis
        a.assign(a * 0).realize()
        np.testing.assert_allclose(b.numpy(), data * 2)


def test_what_a_captured_function_wrote_on_several_devices_before_an_error_stays() -> None:
    @TinyJit
    def step(x: Tensor) -> None:
        x.assign(x + 1)
        raise LookupError

    x = Tensor(np.zeros(4, np.float32), requires_grad=False).shard_(TWO, 0).realize()
    before = x + 10
    for n in range(1, 4):
        with pytest.raises(LookupError):
            step(x)
        assert x.tolist() == [n] * 4
    assert before.tolist() == [10] * 4


def test_a_captured_function_refuses_a_view_of_memory_on_several_devices_that_it_writes() -> None:
    @TinyJit
    def step(x: Tensor, view: Tensor) -> Tensor:
        x.assign(x + 1)
        return view * 1

    x = Tensor(numbers(4, 2), requires_grad=False).shard_(TWO, 0).realize()
    with pytest.raises(JitError, match="is a view of memory that the function assigns to"):
        step(x, x.transpose(0, 1))


def test_a_captured_function_of_several_devices_is_not_pickled() -> None:
    f = TinyJit(lambda x: x + 1)
    for _ in range(2):
        f(Tensor([1.0, 2.0]).shard(TWO, 0))
    with pytest.raises(JitError, match="cannot be pickled that takes, returns or changes tensors on several"):
        pickle.dumps(f)


# --- other devices --------------------------------------------------------------------------------


def test_devices_of_several_kinds_compute_together() -> None:
    data = numbers(5, 3)
    t = Tensor(data).shard(("CPU", "PYTHON"), 0)
    np.testing.assert_allclose((t @ t.transpose(0, 1)).sum(0).numpy(), (data @ data.T).sum(0))


def test_a_schedule_for_devices_that_are_not_there() -> None:
    devices = tuple(f"NULL:{i}" for i in range(4))
    t = Tensor.empty(8, 16, device=devices).shard(devices, 0)
    assert {item.device for item in items_of((t @ t.transpose(0, 1)).relu())} == \
        {Device.canonicalize(name) for name in devices}
