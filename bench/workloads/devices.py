"""Training steps on several devices of one host, beside one device of the same cores: data parallel, eager
and replayed. What several cost beyond one is read from the rows of one network."""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.workloads.base import ITEM, OURS, Step, Workload, normal
from bench.workloads.models import finished, integers, optimizer_bytes, sizes, tinygrad_training

COUNTS = (1, 2, 4)
DIGITS_BATCH = 64
RESNET_BATCH = 16
RESNET_SIZE = 32


def names(count: int) -> tuple[str, ...]:
    """So many devices of the host; none for one, which needs no spreading."""
    return () if count == 1 else tuple(f"CPU:{number}" for number in range(count))


def digits_step(count: int, is_jitted: bool) -> Step:
    """Adam on a small convolutional network."""
    return tinygrad_training(lambda networks: networks.mnist_convnet(),
                             lambda: normal(DIGITS_BATCH, 1, 28, 28), lambda: integers(10, DIGITS_BATCH),
                             "Adam", {"lr": 0.001}, devices=names(count), is_jitted=is_jitted)


def resnet18_step(count: int, is_jitted: bool) -> Step:
    """Gradient descent with momentum on images so small that weights are most of what is moved."""
    return tinygrad_training(lambda networks: networks.ResNet18(),
                             lambda: normal(RESNET_BATCH, 3, RESNET_SIZE, RESNET_SIZE),
                             lambda: integers(1000, RESNET_BATCH), "SGD", {"lr": 0.01, "momentum": 0.9},
                             devices=names(count), is_jitted=is_jitted)


def workloads() -> Iterator[Workload]:
    """Each network, eager and under TinyJit, on each number of devices."""
    digits_operations = sizes.training_operations(DIGITS_BATCH, *sizes.mnist_products())
    digits_read, digits_written = optimizer_bytes(sizes.MNIST_PARAMETERS, moments=2)
    resnet_operations = sizes.training_operations(RESNET_BATCH, *sizes.resnet18_products(RESNET_SIZE))
    resnet_read, resnet_written = optimizer_bytes(sizes.resnet18_parameters(), moments=1)
    for is_jitted in (True, False):
        how = "TinyJit" if is_jitted else "eager"
        for count in COUNTS:
            on = f"{how}, {count} device{'s' if count > 1 else ''}"
            yield Workload(f"digits, Adam, batch {DIGITS_BATCH}, {on}", digits_operations,
                           digits_read + ITEM * DIGITS_BATCH * 28 * 28, digits_written,
                           finished({OURS: partial(digits_step, count, is_jitted)}))
        for count in COUNTS:
            on = f"{how}, {count} device{'s' if count > 1 else ''}"
            yield Workload(f"ResNet-18, SGD, {RESNET_BATCH}x{RESNET_SIZE}x{RESNET_SIZE}, {on}",
                           resnet_operations,
                           resnet_read + ITEM * RESNET_BATCH * 3 * RESNET_SIZE ** 2, resnet_written,
                           finished({OURS: partial(resnet18_step, count, is_jitted)}))


WORKLOADS = tuple(workloads())
