"""Architectures of plain layers of PyTorch, small: what libraries of image models are made of."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def convolved(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1,
              activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A convolution, batch norm and an activation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs), activation())


class UNet(nn.Module):
    """Half the size and back, with connections between equal sizes; a class for each pixel."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolved(3, width), convolved(width, 2 * width)])
        self.bottom = convolved(2 * width, 4 * width)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                                   nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.up = nn.ModuleList([convolved(4 * width, 2 * width), convolved(2 * width, width)])
        self.classes = nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for grow, block, other in zip(self.grow, self.up, reversed(kept), strict=True):
            x = block(torch.cat([grow(x), other], 1))
        return self.classes(x)


class SqueezeExcite(nn.Module):
    """Channels times weights that their means give."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow, self.widen = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.widen(F.relu(self.narrow(F.adaptive_avg_pool2d(x, 1)))))


class InvertedResidual(nn.Module):
    """Wider, depthwise, narrower again (MobileNetV3's and EfficientNet's block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = inputs * 4
        self.is_residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            convolved(inputs, wide, 1, activation=nn.Hardswish),
            convolved(wide, wide, 5, stride, wide, nn.Hardswish), SqueezeExcite(wide),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


def mobile_net_v3() -> nn.Module:
    return nn.Sequential(convolved(3, 8, stride=2, activation=nn.Hardswish), InvertedResidual(8, 8, 1),
                         InvertedResidual(8, 16, 2), InvertedResidual(16, 16, 1), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(16, 5))


class Dense(nn.Module):
    """Every layer sees all before it (DenseNet's block)."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.BatchNorm2d(inputs + i * growth), nn.ReLU(),
                           nn.Conv2d(inputs + i * growth, growth, 3, padding=1)) for i in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def dense_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Dense(8, 4, 3), nn.BatchNorm2d(20), nn.ReLU(),
                         nn.Conv2d(20, 10, 1), nn.AvgPool2d(2), Dense(10, 4, 2), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(18, 5))


class Pyramid(nn.Module):
    """RetinaNet: features of two sizes joined from the top, and heads that find boxes and their classes."""

    def __init__(self, width: int = 16, anchors: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.stem = convolved(3, width, stride=2)
        self.stages = nn.ModuleList([convolved(width, n * width, stride=2) for n in (1, 2)])
        self.lateral = nn.ModuleList([nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, width, 1)])
        self.heads = nn.ModuleList([
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
                          nn.Conv2d(width, anchors * outputs, 3, padding=1)) for outputs in (classes, 4)])
        self.outputs = (classes, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = self.stages[0](self.stem(x))
        large = self.stages[1](small)
        top = self.lateral[1](large)
        levels = [self.lateral[0](small) + F.interpolate(top, scale_factor=2, mode="nearest"), top]
        found = []
        for head, outputs in zip(self.heads, self.outputs, strict=True):
            of_levels = [head(level).permute(0, 2, 3, 1).reshape(len(x), -1, outputs) for level in levels]
            found.append(torch.cat(of_levels, 1))
        return found[0].sigmoid(), found[1]


class Centres(nn.Module):
    """CenterNet: a heat map of objects' centres, refined from bilinearly enlarged features."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(convolved(3, width, stride=2), convolved(width, width, stride=2))
        self.refine = convolved(width, width, activation=nn.SiLU)
        self.heat, self.size = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.interpolate(self.body(x), scale_factor=2, mode="bilinear", align_corners=False)
        x = self.refine(x)
        heat = self.heat(x).sigmoid()
        peaks = (heat == F.max_pool2d(heat, 3, 1, 1)).float()
        return heat * peaks, self.size(x)


class Mixer(nn.Module):
    """MLP-Mixer: linear layers over patches, then over channels."""

    def __init__(self, width: int = 24, patches: int = 16) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.across = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.within = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.classes = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norms[1](x))
        return self.classes(self.norms[2](x).mean(1))


class Recurrent(nn.Module):
    """A language model of LSTM cells."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(30, width), nn.LSTMCell(width, width)
        self.tokens = nn.Linear(width, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        found = []
        for token in self.embedding(x).unbind(1):
            state = self.cell(token, state)
            found.append(self.tokens(state[0]))
        return torch.stack(found, 1)


def pictures() -> dict[str, Any]:
    return {"input": torch.randn(2, 3, 32, 32)}


def tokens() -> dict[str, Any]:
    return {"input": torch.randint(0, 30, (2, 7))}


class Given(nn.Module):
    """A network whose input has the name `input`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input: torch.Tensor) -> Any:
        result = self.network(input)
        return result if isinstance(result, tuple) else (result,)


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "U-Net": (lambda: Given(UNet()), pictures),
    "MobileNetV3": (lambda: Given(mobile_net_v3()), pictures),
    "DenseNet": (lambda: Given(dense_net()), pictures),
    "RetinaNet's heads": (lambda: Given(Pyramid()), pictures),
    "CenterNet's heads": (lambda: Given(Centres()), pictures),
    "MLP-Mixer": (lambda: Given(Mixer()), pictures),
    "LSTM": (lambda: Given(Recurrent()), tokens),
}
