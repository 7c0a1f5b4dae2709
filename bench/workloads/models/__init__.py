"""Whole networks, with each library's own layers: `in_tinygrad`, `in_torch`; their sizes and costs: `sizes`.

Weights and inputs are the same in every library. JAX has no layers of its own and is left out.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.workloads.base import ITEM, Array, Setup, Step, Workload, both_tinygrads, normal, wait_for_tinygrad
from bench.workloads.models import sizes
from bench.workloads.models.sizes import GPT2, SMALL_GPT, Transformer

MakeNetwork = Callable[[Any], Any]
"""Makes a network, given a module with the networks of one library."""


def integers(high: int, *shape: int, seed: int = 1) -> Array:
    """Tokens or labels below `high`, the same in every process."""
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


# --- how each library trains, and how it infers ---------------------------------------------------------


def training(make: MakeNetwork, images: Callable[[], Array], labels: Callable[[], Array],
             optimizer: str, **settings: float) -> dict[str, Setup]:
    """A step of `optimizer` on the cross entropy, for each peer. Returns the loss."""

    def tinygrad() -> Step:
        from bench.workloads.models import in_tinygrad
        from tinygrad import Tensor, TinyJit
        from tinygrad.nn import optim
        from tinygrad.nn.state import get_parameters

        network = in_tinygrad.with_weights(make(in_tinygrad))
        run = (lambda x: x.sequential(network)) if isinstance(network, list) else network
        updates = getattr(optim, optimizer)(get_parameters(network), **settings)
        x, y = Tensor(images()).realize(), Tensor(labels()).realize()

        @TinyJit
        def step(x: Tensor, y: Tensor) -> Any:
            with in_tinygrad.training():
                updates.zero_grad()
                loss = run(x).sparse_categorical_crossentropy(y)
                loss.backward()
                return loss.realize(*updates.schedule_step())

        def train() -> Any:
            loss = step(x, y)
            wait_for_tinygrad()
            return loss

        return train

    def torch(compiled: bool) -> Step:
        import torch

        from bench.workloads.models import in_torch

        network = in_torch.with_weights(make(in_torch))
        run = torch.compile(network) if compiled else network
        updates = getattr(torch.optim, optimizer)(network.parameters(), **settings)
        x, y = torch.from_numpy(images()), torch.from_numpy(labels()).long()

        def train() -> Any:
            updates.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(run(x).flatten(0, -2), y.flatten())
            loss.backward()
            updates.step()
            return loss.detach()

        return train

    return {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True)}


def inference(make: MakeNetwork, inputs: Callable[[], list[Any]]) -> dict[str, Setup]:
    """The network on `inputs`, arrays or lists of pairs of arrays, for each peer. Returns the scores."""

    def tinygrad() -> Step:
        from bench.workloads.models import in_tinygrad
        from tinygrad import Tensor, TinyJit

        network = in_tinygrad.with_weights(make(in_tinygrad))
        arguments = converted(inputs(), lambda array: Tensor(array).realize())

        @TinyJit
        def run(*arguments: Any) -> Any:
            return network(*arguments).realize()

        def infer() -> Any:
            scores = run(*arguments)
            wait_for_tinygrad()
            return scores

        return infer

    def torch(compiled: bool) -> Step:
        import torch

        from bench.workloads.models import in_torch

        network = in_torch.with_weights(make(in_torch)).eval()
        run = torch.compile(network) if compiled else network
        arguments = converted(inputs(), torch.from_numpy)

        def infer() -> Any:
            with torch.no_grad():
                return run(*arguments)

        return infer

    return {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True)}


def converted(value: Any, change: Callable[[Array], Any]) -> Any:
    """`value` with every array in its lists and tuples changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(converted(item, change) for item in value)
    return change(value)


# --- the workloads --------------------------------------------------------------------------------------


def mnist_step(batch: int) -> Workload:
    """An Adam step: two blocks of two convolutions, batch norm and max pooling, then a linear layer."""
    setups = training(lambda networks: networks.mnist_convnet(), lambda: normal(batch, 1, 28, 28),
                      lambda: integers(10, batch), "Adam", lr=0.001)
    read, written = optimizer_bytes(sizes.MNIST_PARAMETERS, moments=2)
    return Workload(f"MNIST convnet, Adam step, batch {batch}",
                    sizes.training_operations(batch, *sizes.mnist_products()),
                    read + batch * 28 * 28 * ITEM, written, setups)


def resnet18_inference(batch: int, size: int) -> Workload:
    """Scores of `batch` images of size x size."""
    setups = inference(lambda networks: networks.ResNet18(), lambda: [normal(batch, 3, size, size)])
    read = sizes.resnet18_parameters() + batch * 3 * size * size
    return Workload(f"ResNet-18 inference, {batch}x{size}x{size}",
                    2.0 * batch * sum(sizes.resnet18_products(size)), ITEM * read, ITEM * batch * 1000,
                    setups)


def resnet18_step(batch: int, size: int) -> Workload:
    """A step of stochastic gradient descent with momentum, batch statistics included."""
    setups = training(lambda networks: networks.ResNet18(), lambda: normal(batch, 3, size, size),
                      lambda: integers(1000, batch), "SGD", lr=0.01, momentum=0.9)
    read, written = optimizer_bytes(sizes.resnet18_parameters(), moments=1)
    return Workload(f"ResNet-18 SGD step, {batch}x{size}x{size}",
                    sizes.training_operations(batch, *sizes.resnet18_products(size)),
                    read + ITEM * batch * 3 * size * size, written, setups)


def gpt_step(network: Transformer, batch: int) -> Workload:
    """An AdamW step on sequences as long as the context."""
    length = network.context
    setups = training(lambda networks: networks.GPT(network),
                      lambda: integers(network.vocabulary, batch, length),
                      lambda: integers(network.vocabulary, batch, length, seed=2), "AdamW",
                      lr=0.001, weight_decay=0.1)
    read, written = optimizer_bytes(network.parameters, moments=2)
    return Workload(f"GPT of {network.layers} layers, {network.width} wide, AdamW step, {batch}x{length}",
                    3 * network.operations(batch, length), read, written, setups)


def gpt_prompt(name: str, network: Transformer, length: int) -> Workload:
    """Scores of every token of a text of `length` tokens."""
    setups = inference(lambda networks: networks.GPT(network),
                       lambda: [integers(network.vocabulary, 1, length)])
    return Workload(f"{name}, {length} tokens", network.operations(1, length), ITEM * network.matrix_items,
                    ITEM * length * network.vocabulary, setups)


def gpt_token(name: str, network: Transformer, earlier: int) -> Workload:
    """Scores of one token after `earlier` ones, whose keys and values are there."""
    shape = (1, network.heads, earlier, network.width // network.heads)
    cache = 2 * network.layers * earlier * network.width

    def inputs() -> list[Any]:
        past = [(normal(*shape, seed=2 * layer), normal(*shape, seed=2 * layer + 1))
                for layer in range(network.layers)]
        return [integers(network.vocabulary, 1, 1), past]

    setups = inference(lambda networks: networks.GPT(network), inputs)
    return Workload(f"{name}, 1 token after {earlier}", network.operations(1, 1, earlier),
                    ITEM * (network.matrix_items + cache), ITEM * network.vocabulary, setups)


def optimizer_bytes(parameters: int, moments: int) -> tuple[float, float]:
    """(read, written) by an update: each parameter and its `moments` both, its gradient in the cache."""
    return float(ITEM * parameters * (1 + moments)), float(ITEM * parameters * (1 + moments))


WORKLOADS = (
    mnist_step(512),
    resnet18_inference(1, 224), resnet18_step(16, 112),
    gpt_step(SMALL_GPT, 8), gpt_prompt("GPT-2 124M", GPT2, 128),
    gpt_token("GPT-2 124M", GPT2, 128),
)
