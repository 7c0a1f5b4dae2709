"""What is measured: each workload once, with the code that a user of each library would write for it.

A workload's setup functions import their library themselves, since each runs in that library's environment.
They make the inputs and return the step to time: a function that leaves a finished result. To add a workload,
write a function that returns a `Workload` and list it in `WORKLOADS`; a library without a setup shows `-`.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Callable[[], Any]
"""One run of the workload, finished when it returns; the result is an array to NumPy (`np.asarray`)."""


@dataclass(frozen=True)
class Workload:
    """A named piece of work, what it costs at the least, and how each peer does it."""

    name: str
    operations: float
    """floating-point operations of one step"""
    moved_bytes: float
    """bytes that one step must read and write, each input and output once"""
    setups: dict[str, Callable[[], Step]]
    """for each peer, makes the inputs and returns the step"""
    tolerance: float = 1e-3
    """how far the peers' first results may differ, relative to their size"""


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# --- matrix product ------------------------------------------------------------------------------------


def matmul(n: int) -> Workload:
    """Two n x n matrices of float32."""
    inputs = (n, n)

    def tinygrad() -> Step:
        from tinygrad import Tensor

        a, b = Tensor(_normal(*inputs)).realize(), Tensor(_normal(*inputs, seed=1)).realize()
        return lambda: (a @ b).realize()

    def torch() -> Step:
        import torch

        a, b = torch.from_numpy(_normal(*inputs)), torch.from_numpy(_normal(*inputs, seed=1))
        return lambda: a @ b

    def torch_compile() -> Step:
        import torch

        a, b = torch.from_numpy(_normal(*inputs)), torch.from_numpy(_normal(*inputs, seed=1))
        product = torch.compile(torch.matmul)
        return lambda: product(a, b)

    def jax() -> Step:
        import jax
        import jax.numpy as jnp

        a, b = jnp.asarray(_normal(*inputs)), jnp.asarray(_normal(*inputs, seed=1))
        product = jax.jit(jnp.matmul)
        return lambda: product(a, b).block_until_ready()

    setups = {"tinygrad": tinygrad, "torch": torch, "torch.compile": torch_compile, "jax": jax}
    return Workload(f"matmul {n}", 2.0 * n**3, 3 * 4.0 * n**2, setups)


# --- softmax -------------------------------------------------------------------------------------------


def softmax(rows: int, columns: int) -> Workload:
    """Softmax of each row of a float32 matrix: about 5 operations an item, exp counted as one."""

    def tinygrad() -> Step:
        from tinygrad import Tensor

        x = Tensor(_normal(rows, columns)).realize()
        return lambda: x.softmax(axis=-1).realize()

    def torch() -> Step:
        import torch

        x = torch.from_numpy(_normal(rows, columns))
        return lambda: torch.softmax(x, dim=-1)

    def torch_compile() -> Step:
        import torch

        x = torch.from_numpy(_normal(rows, columns))
        compiled = torch.compile(lambda t: torch.softmax(t, dim=-1))
        return lambda: compiled(x)

    def jax() -> Step:
        import jax
        import jax.numpy as jnp

        x = jnp.asarray(_normal(rows, columns))
        compiled = jax.jit(jax.nn.softmax)
        return lambda: compiled(x).block_until_ready()

    setups = {"tinygrad": tinygrad, "torch": torch, "torch.compile": torch_compile, "jax": jax}
    return Workload(f"softmax {rows}x{columns}", 5.0 * rows * columns, 2 * 4.0 * rows * columns, setups)


# --- one training step of a convolutional network ------------------------------------------------------


def mnist_step(batch: int) -> Workload:
    """An Adam step: two blocks of two convolutions, batch norm and max pooling, then a linear layer."""
    images = _normal(batch, 1, 28, 28)
    labels = np.random.default_rng(1).integers(0, 10, batch)

    def tinygrad() -> Step:
        from tinygrad import Tensor, TinyJit, nn
        from tinygrad.nn.optim import Adam
        from tinygrad.nn.state import get_parameters

        layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu,
            nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu,
            nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10),
        ]
        optimizer = Adam(get_parameters(layers), lr=0.001)
        x, y = Tensor(images).realize(), Tensor(labels.astype(np.int32)).realize()

        @TinyJit
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = x.sequential(layers).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
            return loss.realize()

        def train() -> Tensor:
            with Tensor.train():
                return step(x, y)

        return train

    def torch_model() -> tuple[Any, Any, Any, Any]:
        import torch
        from torch import nn

        model = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(),
            nn.BatchNorm2d(32), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.BatchNorm2d(64), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(576, 10),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        return model, optimizer, torch.from_numpy(images), torch.from_numpy(labels)

    def torch_step(model: Any, optimizer: Any, x: Any, y: Any) -> Step:
        import torch

        def step() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def torch() -> Step:
        return torch_step(*torch_model())

    def torch_compile() -> Step:
        import torch

        model, optimizer, x, y = torch_model()
        return torch_step(torch.compile(model), optimizer, x, y)

    # Multiply-adds of each layer for one image: output pixels x output channels x inputs of one output.
    first = 24 * 24 * 32 * 25
    others = 20 * 20 * 32 * 25 * 32 + 8 * 8 * 64 * 9 * 32 + 6 * 6 * 64 * 9 * 64 + 576 * 10
    # Backward costs each layer its forward again for the weights and, but for the first, for the inputs.
    operations = 2.0 * batch * (2 * first + 3 * others)
    setups = {"tinygrad": tinygrad, "torch": torch, "torch.compile": torch_compile}
    # Each library draws its own weights: the first loss is near that of a guess, log(10), in all of them.
    return Workload(f"MNIST convnet, Adam step, batch {batch}", operations, 4.0 * images.size, setups, 0.2)


WORKLOADS: tuple[Workload, ...] = (
    matmul(1024),
    softmax(4096, 4096),
    mnist_step(512),
)
