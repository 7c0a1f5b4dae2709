"""What starting a kernel costs: kernels so small that the rest is all there is."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.workloads.base import Step, Workload, both_tinygrads, normals, wait_for_tinygrad
from bench.workloads.models import gpt_step
from bench.workloads.models.sizes import Transformer

LOOP = 100
"""Operations in one step of a workload that is a loop: small ones are as good as their loops."""
EXPRESSIONS = 10


def dependent_kernels(count: int) -> Workload:
    """`count` times x = x + 1 on one item, each computed before the next; replayed by TinyJit."""

    def tinygrad() -> Step:
        from tinygrad import Tensor, TinyJit

        @TinyJit
        def chain(x: Tensor) -> Tensor:
            for _ in range(count):
                x = (x + 1).realize()
            return x

        start = Tensor(np.zeros(1, np.float32)).realize()

        def step() -> Any:
            result = chain(start)
            wait_for_tinygrad()
            return result

        return step

    def torch() -> Step:
        import torch

        start = torch.zeros(1)

        def step() -> Any:
            x = start
            for _ in range(count):
                x = x + 1
            return x

        return step

    return Workload(f"{count} dependent tiny kernels", float(count), 4.0, 4.0,
                    {**both_tinygrads(tinygrad), "torch": torch})


def single_kernel() -> Workload:
    """x + 1 on one item, called as any operation is: what a call costs in each library."""

    def tinygrad() -> Step:
        from tinygrad import Tensor

        x = Tensor(np.zeros(1, np.float32)).realize()

        def step() -> Any:
            result = (x + 1).realize()
            wait_for_tinygrad()
            return result

        return step

    def torch(compiled: bool) -> Step:
        import torch

        x = torch.zeros(1)
        add = torch.compile(lambda t: t + 1) if compiled else lambda t: t + 1
        return lambda: add(x)

    def jax() -> Step:
        import jax

        x = jax.numpy.zeros(1)
        add = jax.jit(lambda t: t + 1)
        return lambda: add(x).block_until_ready()

    setups = {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True),
              "jax": jax}
    return Workload("one tiny kernel", 1.0, 4.0, 4.0, setups)


def in_a_loop(name: str, shapes: Sequence[tuple[int, ...]], tinygrad: Callable[..., Any],
              torch: Callable[..., Any], loop: int = LOOP) -> Workload:
    """`loop` times a small operation of tensors, whose result each time is a new one."""

    def ours() -> Step:
        from tinygrad import Tensor

        tensors = [Tensor(array, requires_grad=False).realize() for array in normals(shapes)]

        def step() -> Any:
            for _ in range(loop - 1):
                tinygrad(*tensors)  # and dropped: an equal expression that is still there would be the result
            result = tinygrad(*tensors)
            wait_for_tinygrad()
            return result

        return step

    def theirs() -> Step:
        from torch import from_numpy

        tensors = [from_numpy(array) for array in normals(shapes)]

        def step() -> Any:
            for _ in range(loop - 1):
                torch(*tensors)
            return torch(*tensors)

        return step

    return Workload(name, float(loop), 4.0 * loop, 4.0 * loop, {**both_tinygrads(ours), "torch": theirs})


def written_out(name: str, shapes: Sequence[tuple[int, ...]], expression: Callable[..., Any]) -> Workload:
    """`EXPRESSIONS` times an expression of many operations, as both libraries take it, with one result."""
    return in_a_loop(f"{EXPRESSIONS} {name}", shapes, lambda *tensors: expression(*tensors).realize(),
                     expression, EXPRESSIONS)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered * centered).mean(-1, keepdim=True)
    return centered / (variance + 1e-5).sqrt() * weight + bias


def perceptron(x: Any, *weights: Any) -> Any:
    for weight in weights:
        x = (x @ weight).relu() * 0.1
    return x


def transformer_block(x: Any, weight: Any, bias: Any, query: Any, key: Any, value: Any, out: Any, up: Any,
                      down: Any) -> Any:
    """x: (tokens, width); four heads."""
    tokens, width = x.shape
    y = layer_norm(x, weight, bias)
    q, k, v = ((y @ w).reshape(tokens, 4, width // 4).transpose(0, 1) for w in (query, key, value))
    weights = (q @ k.transpose(1, 2) * width ** -1).softmax(-1)
    x = x + (weights @ v).transpose(0, 1).reshape(tokens, width) @ out
    return x + (layer_norm(x, weight, bias) @ up).relu() @ down


def jitted_call() -> Workload:
    """`LOOP` calls of a function under TinyJit that has one kernel; PyTorch just calls it."""

    def tinygrad() -> Step:
        from tinygrad import Tensor, TinyJit

        x = Tensor(np.zeros(16, np.float32)).realize()

        @TinyJit
        def add(t: Tensor) -> Tensor:
            return (t + 1).realize()

        def step() -> Any:
            for _ in range(LOOP):
                result = add(x)
            wait_for_tinygrad()
            return result

        return step

    def torch() -> Step:
        from torch import zeros

        x = zeros(16)

        def step() -> Any:
            for _ in range(LOOP):
                result = x + 1
            return result

        return step

    return Workload(f"{LOOP} jitted calls of one kernel", float(LOOP), 4.0, 4.0,
                    {**both_tinygrads(tinygrad), "torch": torch})


def eager_training(batch: int) -> Workload:
    """A person's first training loop, without a JIT: the convolutional network of MNIST, Adam, and the loss
    read in each step."""

    def tinygrad() -> Step:
        from bench.workloads.models import in_tinygrad
        from tinygrad import Tensor
        from tinygrad.nn.optim import Adam
        from tinygrad.nn.state import get_parameters

        network = in_tinygrad.with_weights(in_tinygrad.mnist_convnet())
        updates = Adam(get_parameters(network), lr=1e-3)
        images, labels = (Tensor(array) for array in digits(batch))

        def step() -> Any:
            with in_tinygrad.training():
                updates.zero_grad()
                loss = images.sequential(network).sparse_categorical_crossentropy(labels)
                loss.backward()
                updates.step()
                return np.float32(loss.item())

        return step

    def torch() -> Step:
        import torch

        from bench.workloads.models import in_torch

        network = in_torch.with_weights(in_torch.mnist_convnet())
        updates = torch.optim.Adam(network.parameters(), lr=1e-3)
        images, labels = (torch.from_numpy(array) for array in digits(batch))

        def step() -> Any:
            updates.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(network(images), labels.long())
            loss.backward()
            updates.step()
            return np.float32(loss.item())

        return step

    return Workload(f"MNIST convnet, Adam step, batch {batch}, no JIT", 1.0, 1.0, 1.0,
                    {**both_tinygrads(tinygrad), "torch": torch})


def digits(batch: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (batch, 1, 28, 28) of noise, and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, batch).astype(np.int32)


def many_parameters(layers: int) -> Workload:
    """A training step of a transformer so thin that its kernels take next to nothing: what a step costs that
    has hundreds of parameters, each with a gradient and two moments."""
    return gpt_step(Transformer(vocabulary=65, context=16, layers=layers, width=16, heads=2), 1)


WORKLOADS = (
    dependent_kernels(200),
    single_kernel(),
    in_a_loop(f"{LOOP} sums of 16 items", [(16,)] * 2, lambda x, y: (x + y).realize(), lambda x, y: x + y),
    in_a_loop(f"{LOOP} sums of one item, read", [(1,)] * 2, lambda x, y: np.float32((x + y).realize().item()),
              lambda x, y: np.float32((x + y).item())),
    in_a_loop(f"{LOOP} products of 37 x 37", [(37, 37)] * 2, lambda x, y: (x @ y).realize(),
              lambda x, y: x @ y),
    written_out("layer norms of 16 x 64", [(16, 64), (64,), (64,)], layer_norm),
    written_out("perceptrons of 4 layers of 64", [(16, 64), *[(64, 64)] * 4], perceptron),
    written_out("transformer blocks of 16 x 64",
                [(16, 64), (64,), (64,), *[(64, 64)] * 4, (64, 256), (256, 64)], transformer_block),
    jitted_call(),
    many_parameters(12),
    eager_training(64),
)
