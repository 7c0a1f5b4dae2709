"""Equal layers are scheduled once: what is decided for one is found again for the others, and is what
deciding it for each would give.

The reference is the same scheduler with nothing shared: every node has a summary of its own.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes, nn
from tinygrad.graph.uop import UOp
from tinygrad.nn import optim
from tinygrad.nn.state import get_parameters, get_state_dict, load_state_dict
from tinygrad.schedule import node_summary
from tinygrad.schedule.fusion_group import FusionLegality
from tinygrad.schedule.items import create_schedule

Network = Callable[[Tensor], Tensor]


# --- networks -----------------------------------------------------------------------------------------------


class Block:
    """A layer of a transformer."""

    def __init__(self, width: int = 16, heads: int = 2, activation: Network = Tensor.gelu) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, i].transpose(1, 2) for i in range(3))
        mixed = query.scaled_dot_product_attention(key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Transformer:
    """Tokens (N, L) to scores (N, L, 11)."""

    def __init__(self, blocks: Sequence[Network]) -> None:
        self.tokens, self.blocks, self.norm = nn.Embedding(11, 16), blocks, nn.LayerNorm(16)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens).sequential(list(self.blocks))
        return self.norm(x).linear(self.tokens.weight.transpose())


class Residual:
    """Two convolutions around which the input goes."""

    def __init__(self, channels: int) -> None:
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm(channels), nn.BatchNorm(channels)

    def __call__(self, x: Tensor) -> Tensor:
        return (self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())) + x).relu()


def transformer(layers: int) -> Any:
    return Transformer([Block() for _ in range(layers)])


def convolutions(layers: int) -> Any:
    blocks: list[Any] = [Residual(8) for _ in range(layers)]
    return [nn.Conv2d(3, 8, 3), *blocks, lambda x: x.mean((2, 3)), nn.Linear(8, 11)]


def stack(layers: int) -> Any:
    return [part for _ in range(layers) for part in (nn.Linear(16, 16), Tensor.relu)]


def slightly_different() -> Any:
    """Equal layers, and among them one with other heads, one with another activation, one in float16, one
    with an extra residual, one of another width inside."""
    half = lambda x: (x.half() * 2).float()  # noqa: E731
    extra = Block()
    wide: list[Any] = [nn.Linear(16, 24), Tensor.tanh, nn.Linear(24, 16)]
    return Transformer([Block(), Block(heads=4), Block(activation=Tensor.relu), half, Block(),
                        lambda x: x + extra(x) * 0.5, lambda x: x.sequential(wide), Block()])


def tokens() -> Tensor:
    return Tensor(np.zeros((2, 12), np.int32))


def inputs_of(network: Any) -> tuple[Tensor, Tensor]:
    """What a network takes, and labels for what it gives."""
    if isinstance(network, Transformer):
        return tokens().realize(), tokens().realize()
    images = isinstance(network[0], nn.Conv2d)
    x = Tensor(np.zeros((4, 3, 12, 12) if images else (4, 16), np.float32))
    return x.realize(), Tensor(np.zeros(4, np.int32)).realize()


def run(network: Any, x: Tensor) -> Tensor:
    result: Tensor = x.sequential(network) if isinstance(network, list) else network(x)
    return result


def fill(network: Any) -> None:
    """Give a network its weights, without a kernel."""
    weights = {name: Tensor(np.zeros(t.shape, np.float32)) for name, t in get_state_dict(network).items()
               if t.dtype is dtypes.float32}
    load_state_dict(network, weights, strict=False, verbose=False)


def inference(network: Any) -> list[UOp]:
    """The nodes that using a network computes."""
    fill(network)
    return [run(network, inputs_of(network)[0]).uop]


def training(network: Any) -> list[UOp]:
    """The nodes that a step of AdamW computes."""
    fill(network)
    updates = optim.AdamW([p for p in get_parameters(network) if p.dtype is dtypes.float32], lr=0.01)
    x, labels = inputs_of(network)
    with Tensor.train():
        loss = run(network, x).sparse_categorical_crossentropy(labels)
        loss.backward()
        return [t.uop for t in (loss, *updates.schedule_step())]


# --- the same schedule --------------------------------------------------------------------------------------


def kernels_of(sinks: list[UOp]) -> list[Any]:
    """A schedule's kernels in order, over buffers by number: equal for equal schedules of one graph."""
    numbers: dict[UOp, int] = {}
    schedule = create_schedule(sinks)
    found: list[Any] = [
        (i.ast, [numbers.setdefault(b, len(numbers)) for b in i.buffers], i.outputs, i.variables)
        for i in schedule.items]
    views = [(node, numbers[view.base], view.st) for node, view in schedule.views.items()]
    return [*found, *views]


def share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every node be unlike all others."""
    monkeypatch.setattr(node_summary, "cache", lambda function: function)


NETWORKS: dict[str, Callable[[], Any]] = {
    "transformer": lambda: transformer(2), "convolutions": lambda: convolutions(2), "stack": lambda: stack(5),
    "slightly different": slightly_different,
}


@pytest.mark.parametrize("name, use", [
    ("transformer", inference), ("convolutions", inference), ("stack", inference), ("stack", training),
    ("transformer", training), pytest.param("convolutions", training, marks=pytest.mark.slow),
    pytest.param("slightly different", inference, marks=pytest.mark.slow),
    pytest.param("slightly different", training, marks=pytest.mark.slow)])
def test_sharing_decisions_between_equal_layers_changes_no_kernel(
        name: str, use: Callable[[Any], list[UOp]], monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = use(NETWORKS[name]())
    calls = counted_decisions(monkeypatch)
    shared = kernels_of(sinks)
    decided = len(calls)
    share_nothing(monkeypatch)
    assert kernels_of(sinks) == shared
    assert len(calls) - decided > decided, "with nothing shared, each node is decided about"


# --- once ---------------------------------------------------------------------------------------------------


def counted_decisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets an entry for every decision that is made from now on."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        decide = getattr(FusionLegality, name)

        def decided(*args: Any) -> Any:
            calls.append(name)
            return decide(*args)

        return decided

    for name in ("must_store", "multi_outputs", "after_reduce"):
        monkeypatch.setattr(FusionLegality, name, counted(name))
    return calls


def decisions(sinks: list[UOp], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many decisions a schedule takes."""
    with monkeypatch.context() as patch:
        calls = counted_decisions(patch)
        create_schedule(sinks)
    return len(calls)


@pytest.mark.parametrize("use, network, few, many", [
    (inference, transformer, 3, 5), (inference, convolutions, 6, 9), (inference, stack, 4, 12),
    (training, stack, 4, 12), pytest.param(training, transformer, 4, 12, marks=pytest.mark.slow)])
def test_more_equal_layers_take_hardly_more_decisions(
        use: Callable[[Any], list[UOp]], network: Callable[[int], Any], few: int, many: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    of_few, of_many = (decisions(use(network(layers)), monkeypatch) for layers in (few, many))
    assert of_many <= 1.06 * of_few


# --- steps --------------------------------------------------------------------------------------------------


def kernels_of_gradient(steps: int) -> tuple[int, int]:
    """How many kernels the gradient of a recurrent network has, and how many of them differ."""
    w = Tensor.ones(8, 8, requires_grad=True).contiguous().realize()
    x, h = Tensor.ones(steps, 4, 8).contiguous().realize(), Tensor.ones(4, 8).contiguous().realize()
    outputs = []
    for at in range(steps):
        h = (x[at] + h @ w).tanh()
        outputs.append(h)
    items = (Tensor.stack(*outputs) * x).sum().gradient(w)[0].schedule()
    return len(items), len({item.ast for item in items})


def test_the_kernels_of_steps_whose_results_are_stacked_are_equal() -> None:
    """The gradient of a step is a slice of the stack's, without all masks of the parts that follow."""
    (few, distinct), (many, as_distinct) = map(kernels_of_gradient, (6, 24))
    assert many == 4 * few and as_distinct == distinct < few
