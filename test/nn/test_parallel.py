"""Training on several devices (`nn.parallel`): parameters end as on one device, and devices exchange the
bytes that theory says."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from several_devices import items_of, lies, numbers

from tinygrad import Tensor, TinyJit, dtypes, nn
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.nn import optim, parallel, state
from tinygrad.schedule.items import ScheduleItem

SIX = ("CPU", *(f"CPU:{i}" for i in range(1, 6)))
FOUR = SIX[:4]


@pytest.fixture(autouse=True)
def own_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())


def copied_bytes(items: Sequence[ScheduleItem]) -> int:
    """What devices copy to each other; single numbers (rates) left out."""
    sizes = [(i.buffers[0].arg.size, i.buffers[0].dtype.itemsize) for i in items if i.ast.op is Ops.COPY]
    return sum(size * itemsize for size, itemsize in sizes if size > 1)


# --- models ---------------------------------------------------------------------------------------


class Digits:
    """A convolutional network."""

    def __init__(self) -> None:
        self.layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.Conv2d(4, 8, 3), nn.Linear(32, 10)]
        self.shape = (8, 1, 8, 8)

    def __call__(self, x: Tensor) -> Tensor:
        first, norm, second, last = self.layers
        return last(second(norm(first(x)).relu()).relu().max_pool2d().flatten(1))

    def batch(self, rng: np.random.Generator) -> Any:
        return rng.normal(size=(8, 1, 8, 8))


class Block:
    """Attention and a perceptron, whose heads and columns can be cut."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.query, self.key, self.value, self.up = (nn.Linear(8, n) for n in (8, 8, 8, 16))
        self.join, self.down = nn.Linear(8, 8), nn.Linear(16, 8)

    def __call__(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).reshape(*x.shape[:2], 4, 2).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        mixed = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.join(mixed)
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT:
    """The last token's scores."""

    def __init__(self) -> None:
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.layers = [Block(), Block()]

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).sequential(self.layers)[:, -1])

    def batch(self, rng: np.random.Generator) -> Any:
        return rng.integers(0, 12, (8, 3))


def cut_for_tensor_parallel(model: Any, devices: Sequence[str]) -> None:
    parallel.vocabulary_parallel(model.embedding, devices)
    parallel.column_parallel(model.head, devices)
    for block in model.layers:
        for layer in (block.query, block.key, block.value, block.up):
            parallel.column_parallel(layer, devices)
        for layer in (block.join, block.down):
            parallel.row_parallel(layer, devices)


def trained(make: Callable[[], Any], kind: str, devices: tuple[str, ...], jit: bool, steps: int = 3
            ) -> dict[str, Any]:
    """The parameters after some steps of Adam. Of two kinds, the first is along one axis of a mesh and tensor
    parallel along the other."""
    Tensor.manual_seed(4)
    rng = np.random.default_rng(5)
    model = make()
    mesh = None
    if kind == "tensor":
        cut_for_tensor_parallel(model, devices)
    elif kind.endswith(", tensor"):
        mesh = parallel.Mesh(devices, data=len(devices) // 2, model=2)
        cut_for_tensor_parallel(model, mesh["model"])
    data = mesh["data"] if mesh else None
    if devices:
        parallel.replicate(model, devices)
    optimizer: optim.Optimizer = optim.Adam(state.get_parameters(model), lr=0.01)
    backward: Callable[[Tensor], Any] = Tensor.backward
    if kind.startswith("ZeRO"):
        optimizer = zero = parallel.ZeRO(optimizer, int(kind[5]), data)
        backward = zero.backward
        if zero.stage == 3:
            for layer in model.layers:
                parallel.fully_shard(layer, data)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        backward(loss)
        return loss.realize(*optimizer.schedule_step())

    run = TinyJit(step) if jit else step
    with Tensor.train():
        for _ in range(steps):
            x, y = Tensor(model.batch(rng)), Tensor(rng.integers(0, 10, 8))
            if devices:
                x, y = (t.shard(data or devices, None if kind == "tensor" else 0) for t in (x, y))
            run(x.realize(), y.realize()).item()
    return {name: t.numpy() for name, t in state.get_state_dict(model).items()}


KINDS = ("data", "ZeRO 1", "ZeRO 2", "ZeRO 3", "tensor")
TWO_KINDS = ("data, tensor", "ZeRO 1, tensor", "ZeRO 2, tensor", "ZeRO 3, tensor")


def slow(*arguments: Any) -> Any:
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.parametrize(("make", "kind", "count", "jit"), [
    (Digits, "ZeRO 3", 2, True), (GPT, "ZeRO 2", 2, True), (GPT, "tensor", 4, False),
    (GPT, "ZeRO 2, tensor", 4, True),
    *(slow(GPT, kind, count, jit) for kind in TWO_KINDS for count in (4, 6) for jit in (False, True)),
    *(slow(make, kind, count, jit) for make in (Digits, GPT) for kind in KINDS for count in (2, 4)
      for jit in (False, True) if (make, kind) != (Digits, "tensor"))])
def test_training_ends_with_the_parameters_of_one_device(make: Callable[[], Any], kind: str, count: int,
                                                         jit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "default_float", dtypes.float64)
    expected = trained(make, "", (), False)
    found = trained(make, kind, SIX[:count], jit)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-8, err_msg=name)


# --- what is exchanged ----------------------------------------------------------------------------

WIDTH, LAYERS = 64, 4
PARAMETER_BYTES = LAYERS * WIDTH * WIDTH * 4


def step_of(stage: int, count: int) -> list[ScheduleItem]:
    """One step of training linear layers, over so many devices."""
    layers = parallel.replicate([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)], FOUR[:count])
    optimizer: optim.Optimizer = optim.Adam(state.get_parameters(layers), lr=0.01)
    backward: Callable[[Tensor], Any] = Tensor.backward
    if stage:
        optimizer = zero = parallel.ZeRO(optimizer, stage)
        backward = zero.backward
    if stage == 3:
        for layer in layers:
            parallel.fully_shard(layer)
    x = Tensor(numbers(4 * WIDTH, WIDTH)).float().shard(FOUR[:count], 0).realize()
    with Tensor.train():
        loss = x.sequential([f for layer in layers for f in (layer, Tensor.relu)]).square().mean()
        backward(loss)
        return items_of(loss, *optimizer.schedule_step())


@pytest.mark.parametrize("count", [2, 3, 4])
def test_data_parallel_and_zero_copy_what_theory_says(count: int) -> None:
    """All-reduce: twice the parameters to and from each; reduce-scatter and all-gather: once each. The first
    layer of stage 3 is not gathered again: its input has no gradient."""
    for stage, volume in ((0, 2.0), (1, 2.0), (2, 2.0), (3, 3 - 1 / LAYERS)):
        copied = copied_bytes(step_of(stage, count))
        assert copied == pytest.approx(volume * (count - 1) * PARAMETER_BYTES, rel=0.01), (stage, count)


def test_layers_are_gathered_one_ahead_and_freed() -> None:
    items = step_of(3, 4)
    steps = [[b.arg.identity for b in item.buffers] for item in items]
    last = {memory: number for number, used in enumerate(steps) for memory in used}
    gathered, most = {}, 0
    for number, item in enumerate(items):
        if item.ast.op is Ops.COPY and item.buffers[0].device == FOUR[0] and item.buffers[0].arg.size > 1:
            gathered[steps[number][0]] = item.buffers[0].arg.size * 4
        most = max(most, sum(gathered.values()))
        gathered = {memory: size for memory, size in gathered.items() if last[memory] > number}
    assert most <= 2.5 * PARAMETER_BYTES / LAYERS, "two layers; partial sums of a gradient"


def test_a_pair_of_linear_layers_copies_its_result_once() -> None:
    for count in (2, 4):
        devices = FOUR[:count]
        up = parallel.column_parallel(nn.Linear(64, 128), devices)
        down = parallel.row_parallel(nn.Linear(128, 64), devices)
        x = Tensor(numbers(512, 64)).float().shard(devices).realize()
        Tensor.realize(*state.get_parameters([up, down]))
        assert copied_bytes(items_of(down(up(x).gelu()))) == 2 * (count - 1) * 512 * 64 * 4
        tokens = Tensor(np.arange(512) % 100).shard(devices).realize()
        rows = parallel.vocabulary_parallel(nn.Embedding(100, 64), devices)
        head = parallel.column_parallel(nn.Linear(64, 100, bias=False), devices)
        Tensor.realize(rows.weight, head.weight)
        assert copied_bytes(items_of(rows(tokens))) == 2 * (count - 1) * 512 * 64 * 4, "vectors, no weights"
        loss = head(x).sparse_categorical_crossentropy(tokens)
        assert copied_bytes(items_of(loss)) <= 3 * 2 * (count - 1) * 512 * 4, "three numbers of each row"


def test_stages_keep_parts() -> None:
    devices = FOUR[:2]
    model = parallel.replicate(nn.Linear(6, 5), devices)
    adam = optim.Adam([model.weight, model.bias])
    optimizer = parallel.ZeRO(adam, 2)
    assert [lies(t)[0] for t in (*adam.m, *adam.v)] == [1, 0, 1, 0], "a multiple of the devices, the longest"
    x = Tensor(numbers(2, 4, 6)).float()
    expected = x[0].sum(0) + x[1].sum(0)
    for rows in x:
        optimizer.backward(model(rows.shard(devices, 0)).sum())
        assert model.weight.grad is not None and lies(model.weight.grad)[0] == 1
    np.testing.assert_allclose(model.weight.grad.numpy(), np.tile(expected.numpy(), (5, 1)), rtol=1e-5)
    assert lies(model.weight)[0] is None
    parallel.ZeRO(adam, 3)
    assert lies(model.weight)[0] == 1
    assert sorted(state.get_state_dict(parallel.fully_shard(model))) == ["bias", "weight"]
    assert model(x[0].shard(devices, 0)).shape == (4, 5) and lies(model.weight)[0] == 1


@pytest.mark.usefixtures("on_cpu")
def test_what_cannot_be_divided_is_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"got one of shape \(2, 2\) on CPU; nn.parallel.replicate\(model"):
        parallel.ZeRO(optim.SGD([layer.weight]))
    with pytest.raises(ValueError, match="ZeRO has stages 1, 2 and 3, got 4"):
        parallel.ZeRO(optim.SGD([layer.weight]), 4)
    with pytest.raises(ValueError, match="must be of known size, and have an item for each of the 4 devices"):
        parallel.column_parallel(layer, FOUR)
    with pytest.raises(TypeError, match="fully_shard takes a layer that is called, got a list"):
        parallel.fully_shard([layer])
