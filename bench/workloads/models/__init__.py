"""Whole networks, with each library's own layers: `in_tinygrad`, `in_torch`; their sizes and costs: `sizes`.

Weights and inputs are the same in every library. JAX has no layers of its own and is left out.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.workloads.base import (
    ITEM,
    OURS,
    PUBLIC,
    Array,
    Setup,
    Step,
    Workload,
    both_tinygrads,
    normal,
    wait_for_tinygrad,
)
from bench.workloads.models import sizes
from bench.workloads.models.sizes import GPT2, SMALL_GPT, Transformer

MakeNetwork = Callable[[Any], Any]
"""Makes a network, given a module with the networks of one library."""


def integers(high: int, *shape: int, seed: int = 1) -> Array:
    """Tokens or labels below `high`, the same in every process."""
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


# --- how each library trains, and how it infers ---------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where networks run, and in which dtype their numbers are there: parameters, images, results."""

    dtype: str = "float32"
    torch_device: str = "cpu"
    """PyTorch's name for it; tinygrad's is `Device.DEFAULT`"""

    def in_tinygrad(self, array: Array) -> Any:
        """An input there; integers stay what they are."""
        from tinygrad import Tensor

        tensor = Tensor(array)
        cast = self.dtype != "float32" and array.dtype == np.float32
        return (tensor.cast(self.dtype) if cast else tensor).realize()

    def in_torch(self, array: Array) -> Any:
        """As `in_tinygrad`."""
        import torch

        tensor = torch.from_numpy(array).to(self.torch_device)
        return tensor.to(getattr(torch, self.dtype)) if array.dtype == np.float32 else tensor


HERE = Place()


def tinygrad_training(make: MakeNetwork, images: Callable[[], Array], labels: Callable[[], Array],
                      optimizer: str, settings: Mapping[str, float], place: Place = HERE,
                      devices: tuple[str, ...] = (), is_jitted: bool = True) -> Step:
    """The step that `training` has of both tinygrads; with `devices`, data parallel on them."""
    from bench.workloads.models import in_tinygrad
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn import optim
    from tinygrad.nn.state import get_parameters

    network = in_tinygrad.with_weights(make(in_tinygrad), place.dtype)
    run = (lambda x: x.sequential(network)) if isinstance(network, list) else network
    x, y = place.in_tinygrad(images()), place.in_tinygrad(labels())
    if devices:
        for parameter in get_parameters(network):
            parameter.shard_(devices)
        x, y = x.shard(devices, 0).realize(), y.shard(devices, 0).realize()
    updates = getattr(optim, optimizer)(get_parameters(network), **settings)

    def step(x: Tensor, y: Tensor) -> Any:
        with in_tinygrad.training():
            updates.zero_grad()
            loss = run(x).sparse_categorical_crossentropy(y)
            loss.backward()
            return loss.realize(*updates.schedule_step())

    call = TinyJit(step) if is_jitted else step
    return lambda: call(x, y)


def training(make: MakeNetwork, images: Callable[[], Array], labels: Callable[[], Array],
             optimizer: str, place: Place = HERE, **settings: float) -> dict[str, Setup]:
    """A step of `optimizer` on the cross entropy, for each peer. Returns the loss."""

    def tinygrad() -> Step:
        return tinygrad_training(make, images, labels, optimizer, settings, place)

    def torch(compiled: bool) -> Step:
        import torch

        from bench.workloads.models import in_torch

        network = in_torch.with_weights(make(in_torch), place.dtype, place.torch_device)
        run = torch.compile(network) if compiled else network
        updates = getattr(torch.optim, optimizer)(network.parameters(), **settings)
        x, y = place.in_torch(images()), place.in_torch(labels()).long()

        def train() -> Any:
            updates.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(run(x).flatten(0, -2), y.flatten())
            loss.backward()
            updates.step()
            return loss.detach()

        return train

    return {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True)}


def inference(make: MakeNetwork, inputs: Callable[[], list[Any]], place: Place = HERE) -> dict[str, Setup]:
    """The network on `inputs`, arrays or lists of pairs of arrays, for each peer. Returns the scores."""

    def tinygrad() -> Step:
        from bench.workloads.models import in_tinygrad
        from tinygrad import TinyJit

        network = in_tinygrad.with_weights(make(in_tinygrad), place.dtype)
        arguments = converted(inputs(), place.in_tinygrad)

        @TinyJit
        def run(*arguments: Any) -> Any:
            return network(*arguments).realize()

        return lambda: run(*arguments)

    def torch(compiled: bool) -> Step:
        import torch

        from bench.workloads.models import in_torch

        network = in_torch.with_weights(make(in_torch), place.dtype, place.torch_device).eval()
        run = torch.compile(network) if compiled else network
        arguments = converted(inputs(), place.in_torch)

        def infer() -> Any:
            with torch.no_grad():
                return run(*arguments)

        return infer

    return {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True)}


def finished(setups: Mapping[str, Setup]) -> dict[str, Setup]:
    """The same setups with steps that return when they are done, where a library would go on before that."""

    def waiting(setup: Setup) -> Step:
        step = setup()

        def run() -> Any:
            result = step()
            wait_for_tinygrad()
            return result

        return run

    return {peer: partial(waiting, setup) if peer in (OURS, PUBLIC) else setup
            for peer, setup in setups.items()}


def converted(value: Any, change: Callable[[Array], Any]) -> Any:
    """`value` with every array in its lists and tuples changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(converted(item, change) for item in value)
    return change(value)


# --- the workloads --------------------------------------------------------------------------------------


def mnist_setups(batch: int, place: Place = HERE) -> dict[str, Setup]:
    return training(lambda networks: networks.mnist_convnet(), lambda: normal(batch, 1, 28, 28),
                    lambda: integers(10, batch), "Adam", place, lr=0.001)


def mnist_step(batch: int) -> Workload:
    """An Adam step: two blocks of two convolutions, batch norm and max pooling, then a linear layer."""
    read, written = optimizer_bytes(sizes.MNIST_PARAMETERS, moments=2)
    return Workload(f"MNIST convnet, Adam step, batch {batch}",
                    sizes.training_operations(batch, *sizes.mnist_products()),
                    read + batch * 28 * 28 * ITEM, written, finished(mnist_setups(batch)))


def resnet18_inference(batch: int, size: int) -> Workload:
    """Scores of `batch` images of size x size."""
    setups = inference(lambda networks: networks.ResNet18(), lambda: [normal(batch, 3, size, size)])
    read = sizes.resnet18_parameters() + batch * 3 * size * size
    return Workload(f"ResNet-18 inference, {batch}x{size}x{size}",
                    2.0 * batch * sum(sizes.resnet18_products(size)), ITEM * read, ITEM * batch * 1000,
                    finished(setups))


def residual_setups(make: MakeNetwork, batch: int, size: int, classes: int, place: Place = HERE
                    ) -> dict[str, Setup]:
    """A step of stochastic gradient descent with momentum, batch statistics included."""
    return training(make, lambda: normal(batch, 3, size, size), lambda: integers(classes, batch), "SGD",
                    place, lr=0.01, momentum=0.9)


def resnet18_step(batch: int, size: int) -> Workload:
    """As `residual_setups`."""
    setups = residual_setups(lambda networks: networks.ResNet18(), batch, size, 1000)
    read, written = optimizer_bytes(sizes.resnet18_parameters(), moments=1)
    return Workload(f"ResNet-18 SGD step, {batch}x{size}x{size}",
                    sizes.training_operations(batch, *sizes.resnet18_products(size)),
                    read + ITEM * batch * 3 * size * size, written, finished(setups))


def gpt_setups(network: Transformer, batch: int, place: Place = HERE) -> dict[str, Setup]:
    """An AdamW step on sequences as long as the context."""
    return training(lambda networks: networks.GPT(network),
                    lambda: integers(network.vocabulary, batch, network.context),
                    lambda: integers(network.vocabulary, batch, network.context, seed=2), "AdamW", place,
                    lr=0.001, weight_decay=0.1)


def gpt_step(network: Transformer, batch: int) -> Workload:
    """As `gpt_setups`."""
    length = network.context
    read, written = optimizer_bytes(network.parameters, moments=2)
    return Workload(f"GPT of {network.layers} layers, {network.width} wide, AdamW step, {batch}x{length}",
                    3 * network.operations(batch, length), read, written,
                    finished(gpt_setups(network, batch)))


def gpt_prompt(name: str, network: Transformer, length: int) -> Workload:
    """Scores of every token of a text of `length` tokens."""
    setups = inference(lambda networks: networks.GPT(network),
                       lambda: [integers(network.vocabulary, 1, length)])
    return Workload(f"{name}, {length} tokens", network.operations(1, length), ITEM * network.matrix_items,
                    ITEM * length * network.vocabulary, finished(setups))


def gpt_token_setups(network: Transformer, earlier: int, place: Place = HERE) -> dict[str, Setup]:
    """Scores of one token after `earlier` ones, whose keys and values are there."""
    shape = (1, network.heads, earlier, network.width // network.heads)

    def inputs() -> list[Any]:
        past = [(normal(*shape, seed=2 * layer), normal(*shape, seed=2 * layer + 1))
                for layer in range(network.layers)]
        return [integers(network.vocabulary, 1, 1), past]

    return inference(lambda networks: networks.GPT(network), inputs, place)


def gpt_token(name: str, network: Transformer, earlier: int) -> Workload:
    """As `gpt_token_setups`."""
    cache = 2 * network.layers * earlier * network.width
    return Workload(f"{name}, 1 token after {earlier}", network.operations(1, 1, earlier),
                    ITEM * (network.matrix_items + cache), ITEM * network.vocabulary,
                    finished(gpt_token_setups(network, earlier)))


def optimizer_bytes(parameters: int, moments: int) -> tuple[float, float]:
    """(read, written) by an update: each parameter and its `moments` both, its gradient in the cache."""
    return float(ITEM * parameters * (1 + moments)), float(ITEM * parameters * (1 + moments))


WORKLOADS = (
    mnist_step(512),
    resnet18_inference(1, 224), resnet18_step(16, 112),
    gpt_step(SMALL_GPT, 8), gpt_prompt("GPT-2 124M", GPT2, 128),
    gpt_token("GPT-2 124M", GPT2, 128),
)
