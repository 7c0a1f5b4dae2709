"""The networks with tinygrad's layers: for this library and for the public package alike.

Parameters have the names and shapes of `in_torch`, so `drawn_weights` gives both the same.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from bench.workloads.base import drawn_weights
from bench.workloads.models.sizes import RESNET18_STAGES, Residual, Transformer
from tinygrad import Context, Tensor, nn
from tinygrad.nn.state import get_state_dict, load_state_dict

Layer = Callable[[Tensor], Tensor]


def training() -> Any:
    """The context in which batch norm takes the statistics of the batch, and optimizers step.

    The public package has a setting where this library keeps `Tensor.train()`.
    """
    return Tensor.train() if hasattr(Tensor, "train") else Context(TRAINING=1)


def with_weights(network: Any, dtype: str = "float32") -> Any:
    """The network, its parameters drawn by `drawn_weights`, of this dtype."""
    state = {name: t for name, t in get_state_dict(network).items() if "num_batches_tracked" not in name}
    weights = drawn_weights({name: tuple(map(int, t.shape)) for name, t in state.items()})
    load_state_dict(network, {name: Tensor(array) for name, array in weights.items()}, strict=False,
                    verbose=False)
    if dtype != "float32":
        for tensor in state.values():
            tensor.replace(tensor.cast(dtype).realize())
    return network


def mnist_convnet() -> list[Layer]:
    """Images (N, 1, 28, 28) to scores (N, 10)."""
    return [
        nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu,
        nn.BatchNorm(32), Tensor.max_pool2d,
        nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu,
        nn.BatchNorm(64), Tensor.max_pool2d,
        lambda x: x.flatten(1), nn.Linear(576, 10),
    ]


def perceptron(widths: Sequence[int]) -> list[Layer]:
    """Rows of widths[0] items to rows of widths[-1], with layers of the widths between them."""
    layers: list[Layer] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), Tensor.relu]
    return layers[:-1]


class ResidualBlock:
    """Two 3x3 convolutions, and around them the input, projected where its shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(channels, filters, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(filters)
        self.downsample: list[Layer] = []
        if stride != 1 or channels != filters:
            self.downsample = [nn.Conv2d(channels, filters, 1, stride=stride, bias=False),
                               nn.BatchNorm(filters)]

    def __call__(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + x.sequential(self.downsample)).relu()


class ResNet18:
    """Images (N, 3, H, W) to scores (N, classes) (He et al., 2015)."""

    def __init__(self, classes: int = 1000) -> None:
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(64)
        self.blocks: list[Layer] = [ResidualBlock(*stage) for stage in RESNET18_STAGES]
        self.fc = nn.Linear(RESNET18_STAGES[-1][1], classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu().max_pool2d((3, 3), stride=2, padding=1)
        return self.fc(x.sequential(self.blocks).mean((2, 3)))


class Bottleneck:
    """A convolution between two that change the number of channels, and around them the input, projected
    where its shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(filters)
        self.conv3 = nn.Conv2d(filters, 4 * filters, 1, bias=False)
        self.bn3 = nn.BatchNorm(4 * filters)
        self.downsample: list[Layer] = []
        if stride != 1 or channels != 4 * filters:
            self.downsample = [nn.Conv2d(channels, 4 * filters, 1, stride=stride, bias=False),
                               nn.BatchNorm(4 * filters)]

    def __call__(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        return (self.bn3(self.conv3(out)) + x.sequential(self.downsample)).relu()


class BottleneckNet:
    """Images (N, 3, H, W) to scores (N, classes): with `RESNET50`, ResNet-50 (He et al., 2015)."""

    def __init__(self, sizes: Residual) -> None:
        self.conv1 = nn.Conv2d(3, sizes.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(sizes.width)
        self.blocks: list[Layer] = [Bottleneck(*stage) for stage in sizes.stages]
        self.fc = nn.Linear(sizes.features, sizes.classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu().max_pool2d((3, 3), stride=2, padding=1)
        return self.fc(x.sequential(self.blocks).mean((2, 3)))


class TransformerBlock:
    """Attention to the tokens before, then two layers for each token by itself; each adds to its input."""

    def __init__(self, sizes: Transformer) -> None:
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        self.norm2 = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, 4 * sizes.width)
        self.down = nn.Linear(4 * sizes.width, sizes.width)

    def attend(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        if past is not None:
            key, value = past[0].cat(key, dim=2), past[1].cat(value, dim=2)
        mixed = query.scaled_dot_product_attention(key, value, is_causal=past is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def __call__(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attend(self.norm1(x), past)
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT:
    """Tokens (N, L) to scores (N, L, vocabulary), the head's matrix that of the embedding (GPT-2)."""

    def __init__(self, sizes: Transformer) -> None:
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.blocks = [TransformerBlock(sizes) for _ in range(sizes.layers)]
        self.norm = nn.LayerNorm(sizes.width)

    def __call__(self, tokens: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """`past` has the keys and values (N, heads, earlier, size) of earlier tokens, for each layer."""
        start = int(past[0][0].shape[2]) if past else 0
        x = self.tokens(tokens) + self.positions(Tensor.arange(start, start + int(tokens.shape[1])))
        for number, block in enumerate(self.blocks):
            x = block(x, past[number] if past else None)
        return self.norm(x).linear(self.tokens.weight.transpose())
