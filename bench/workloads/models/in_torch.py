"""The networks with PyTorch's layers. Parameters have the names and shapes of `in_tinygrad`."""
# mypy: disallow-subclassing-any=False, disallow-any-unimported=False
# (PyTorch is not installed where the types are checked.)
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.workloads.base import drawn_weights
from bench.workloads.models.sizes import RESNET18_STAGES, Residual, Transformer


def with_weights(network: Any, dtype: str = "float32", device: str = "cpu") -> Any:
    """The network, its parameters drawn by `drawn_weights`, of this dtype on this device."""
    state = {name: t for name, t in network.state_dict().items() if "num_batches_tracked" not in name}
    weights = drawn_weights({name: tuple(t.shape) for name, t in state.items()})
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    return network.to(device, getattr(torch, dtype))


def mnist_convnet() -> Any:
    """Images (N, 1, 28, 28) to scores (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(),
        nn.BatchNorm2d(32), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.BatchNorm2d(64), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(576, 10),
    )


def perceptron(widths: Sequence[int]) -> Any:
    """Rows of widths[0] items to rows of widths[-1], with layers of the widths between them."""
    layers: list[Any] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, and around them the input, projected where its shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != filters:
            self.downsample = nn.Sequential(nn.Conv2d(channels, filters, 1, stride=stride, bias=False),
                                            nn.BatchNorm2d(filters))

    def forward(self, x: Any) -> Any:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + self.downsample(x))


class ResNet18(nn.Module):
    """Images (N, 3, H, W) to scores (N, classes) (He et al., 2015)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(*(ResidualBlock(*stage) for stage in RESNET18_STAGES))
        self.fc = nn.Linear(RESNET18_STAGES[-1][1], classes)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))


class Bottleneck(nn.Module):
    """A convolution between two that change the number of channels, and around them the input, projected
    where its shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, 4 * filters, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * filters)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != 4 * filters:
            self.downsample = nn.Sequential(nn.Conv2d(channels, 4 * filters, 1, stride=stride, bias=False),
                                            nn.BatchNorm2d(4 * filters))

    def forward(self, x: Any) -> Any:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(functional.relu(self.bn2(self.conv2(out)))))
        return functional.relu(out + self.downsample(x))


class BottleneckNet(nn.Module):
    """Images (N, 3, H, W) to scores (N, classes): with `RESNET50`, ResNet-50 (He et al., 2015)."""

    def __init__(self, sizes: Residual) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, sizes.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes.width)
        self.blocks = nn.Sequential(*(Bottleneck(*stage) for stage in sizes.stages))
        self.fc = nn.Linear(sizes.features, sizes.classes)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))


class TransformerBlock(nn.Module):
    """Attention to the tokens before, then two layers for each token by itself; each adds to its input."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        self.norm2 = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, 4 * sizes.width)
        self.down = nn.Linear(4 * sizes.width, sizes.width)

    def attend(self, x: Any, past: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Any, past: Any) -> Any:
        x = x + self.attend(self.norm1(x), past)
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens (N, L) to scores (N, L, vocabulary), the head's matrix that of the embedding (GPT-2)."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(TransformerBlock(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, tokens: Any, past: Any = None) -> Any:
        """`past` has the keys and values (N, heads, earlier, size) of earlier tokens, for each layer."""
        start = past[0][0].shape[2] if past else 0
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for number, block in enumerate(self.blocks):
            x = block(x, past[number] if past else None)
        return functional.linear(self.norm(x), self.tokens.weight)
