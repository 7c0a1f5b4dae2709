"""The sizes of the networks, and what they cost: multiply-adds counted from the layers."""
from __future__ import annotations

from dataclasses import dataclass

RESNET18_STAGES = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1),
                   (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
"""(channels in, channels out, stride) of each residual block."""


@dataclass(frozen=True)
class Transformer:
    """A decoder of `layers` blocks, each token a vector of `width` items."""

    vocabulary: int
    context: int
    layers: int
    width: int
    heads: int

    @property
    def matrix_items(self) -> int:
        """Items of the matrices that every token is multiplied with; the embedding is also the head."""
        return self.layers * 12 * self.width**2 + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All numbers that the network learns."""
        norms = (2 * self.layers + 1) * 2 * self.width
        return self.matrix_items + self.context * self.width + norms + self.layers * 9 * self.width

    def operations(self, batch: int, length: int, earlier: int = 0) -> float:
        """Of a forward pass: a multiply-add is two, and a query meets the keys up to its own position."""
        pairs = length * earlier + length * (length + 1) / 2
        return 2.0 * batch * (length * self.matrix_items + self.layers * 2 * pairs * self.width)


@dataclass(frozen=True)
class Residual:
    """A network of bottleneck blocks (He et al., 2015): `blocks` of them in each stage, whose 3x3
    convolutions have `width` filters in the first stage and twice as many in each that follows."""

    blocks: tuple[int, ...]
    width: int
    classes: int

    @property
    def stages(self) -> list[tuple[int, int, int]]:
        """(channels in, filters of the 3x3 convolution, stride) of each block; four times as many channels
        come out."""
        found, channels = [], self.width
        for number, count in enumerate(self.blocks):
            for block in range(count):
                found.append((channels, self.width << number, 2 if number and not block else 1))
                channels = 4 * self.width << number
        return found

    @property
    def features(self) -> int:
        """Channels of the last block."""
        return 4 * self.stages[-1][1]

    @property
    def parameters(self) -> int:
        """All numbers that the network learns."""
        count = self.width * 3 * 49 + 2 * self.width + (self.features + 1) * self.classes
        for channels, filters, stride in self.stages:
            count += channels * filters + 9 * filters**2 + 4 * filters**2 + 2 * (2 * filters + 4 * filters)
            if stride != 1 or channels != 4 * filters:
                count += channels * 4 * filters + 2 * 4 * filters
        return count

    def products(self, size: int) -> tuple[int, int]:
        """Multiply-adds for one image of size x size: (of the first layer, of the others)."""
        size = -(-size // 2)
        first = size * size * self.width * 3 * 49
        size = -(-size // 2)
        others = self.features * self.classes
        for channels, filters, stride in self.stages:
            others += size * size * channels * filters
            size = -(-size // stride)
            others += size * size * (9 * filters**2 + 4 * filters**2)
            if stride != 1 or channels != 4 * filters:
                others += size * size * channels * 4 * filters
        return first, others


RESNET50 = Residual(blocks=(3, 4, 6, 3), width=64, classes=1000)
SMALL_GPT = Transformer(vocabulary=65, context=256, layers=4, width=256, heads=4)
"""65 is the number of different characters of tinyshakespeare."""
GPT2 = Transformer(vocabulary=50257, context=1024, layers=12, width=768, heads=12)


def mnist_products() -> tuple[int, int]:
    """Multiply-adds for one image: (of the first layer, of the others)."""
    first = 24 * 24 * 32 * 25
    return first, 20 * 20 * 32 * 25 * 32 + 8 * 8 * 64 * 9 * 32 + 6 * 6 * 64 * 9 * 64 + 576 * 10


MNIST_PARAMETERS = (32 * (25 + 1) + 32 * (25 * 32 + 1) + 2 * 32
                    + 64 * (9 * 32 + 1) + 64 * (9 * 64 + 1) + 2 * 64 + 10 * (576 + 1))


def resnet18_products(size: int, classes: int = 1000) -> tuple[int, int]:
    """Multiply-adds for one image of size x size: (of the first layer, of the others)."""
    size = -(-size // 2)
    first = size * size * 64 * 3 * 49
    size = -(-size // 2)
    others = RESNET18_STAGES[-1][1] * classes
    for channels, filters, stride in RESNET18_STAGES:
        size = -(-size // stride)
        others += size * size * filters * 9 * (channels + filters)
        if stride != 1 or channels != filters:
            others += size * size * filters * channels
    return first, others


def resnet18_parameters(classes: int = 1000) -> int:
    """All numbers that the network learns."""
    count = 64 * 3 * 49 + 2 * 64 + (RESNET18_STAGES[-1][1] + 1) * classes
    for channels, filters, stride in RESNET18_STAGES:
        count += 9 * filters * (channels + filters) + 4 * filters
        if stride != 1 or channels != filters:
            count += filters * channels + 2 * filters
    return count


def training_operations(batch: int, first: int, others: int) -> float:
    """A step on `batch` images: each layer once forward and once for its weights, and once more for its
    inputs, which the first layer does not need."""
    return 2.0 * batch * (2 * first + 3 * others)
