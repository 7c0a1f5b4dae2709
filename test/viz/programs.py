"""Programs that tests record, as a user would write them; `python programs.py NAME` runs one."""
from __future__ import annotations

import sys

import numpy as np

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import profile_marker


def matmul() -> None:
    a, b = (Tensor(np.random.default_rng(i).random((256, 256), np.float32)) for i in range(2))
    for _ in range(5):
        (a @ b).realize()
    profile_marker("multiplied", "green")


class ConvNet:
    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(8 * 13 * 13, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().max_pool2d().flatten(1))


def train(net: ConvNet | GPT, inputs: Tensor, labels: Tensor, steps: int = 6) -> list[float]:
    optimizer = nn.optim.AdamW(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    @Tensor.train()
    def step(inputs: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(inputs).sparse_categorical_crossentropy(labels)
        loss.backward()
        optimizer.step()
        return loss

    return [step(inputs, labels).item() for _ in range(steps)]


def mnist() -> None:
    rng = np.random.default_rng(0)
    train(ConvNet(), Tensor(rng.random((32, 1, 28, 28), np.float32)), Tensor(rng.integers(0, 10, 32)))


class Block:
    def __init__(self, size: int) -> None:
        self.norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def __call__(self, x: Tensor) -> Tensor:
        q, k, v = (t.unsqueeze(1) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        return x + self.out(q.scaled_dot_product_attention(k, v, is_causal=True).squeeze(1))


class GPT:
    def __init__(self, size: int = 32) -> None:
        self.embedding = nn.Embedding(40, size)
        self.layers = [Block(size) for _ in range(2)]
        self.head = nn.Linear(size, 40)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)[:, -1]


def gpt() -> None:
    rng = np.random.default_rng(0)
    train(GPT(), Tensor(rng.integers(0, 40, (4, 16))), Tensor(rng.integers(0, 40, 4)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
