"""Sizes that nobody chose: the kinds of work of the other families, at sizes drawn from a seed.

The seed is the environment's BENCH_SEED, or a new one for each run, which is printed: every process of a run
draws the same sizes. No constant of the compiler can have been fitted to them.
"""
from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from bench.workloads.base import ITEM, Setup, Workload, normal, operation
from bench.workloads.conv import conv2d
from bench.workloads.gemm import matmul
from bench.workloads.memory import layer_norm
from bench.workloads.models import finished, integers, training

SEED = int(os.environ.setdefault("BENCH_SEED", str(secrets.randbelow(10_000))))


def products(batch: int, m: int, k: int, n: int) -> Workload:
    """`batch` products of (m, k) and (k, n)."""
    def product(_: Any, a: Any, b: Any) -> Any:
        return a @ b

    return operation(f"matmul {batch} of {m}x{k}x{n}", 2.0 * batch * m * k * n,
                     [(batch, m, k), (batch, k, n)], batch * m * n,
                     tinygrad=product, torch=product, jax=product)


def whole_attention(batch: int, heads: int, length: int, size: int) -> Workload:
    """Attention without a mask."""
    shape = (batch, heads, length, size)

    def in_jax(jax: Any, *qkv: Any) -> Any:
        return jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in qkv)).swapaxes(1, 2)

    return operation(f"attention, {batch}x{heads}x{length}x{size}", 4.0 * batch * heads * size * length**2,
                     [shape] * 3, batch * heads * length * size,
                     tinygrad=lambda _, q, k, v: q.scaled_dot_product_attention(k, v),
                     torch=lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
                     jax=in_jax)


def sums(rows: int, columns: int, axis: int) -> Workload:
    """The sums of a matrix along an axis."""
    def along(_: Any, x: Any) -> Any:
        return x.sum(axis)

    return operation(f"sums of {('columns', 'rows')[axis]} {rows}x{columns}", 1.0 * rows * columns,
                     [(rows, columns)], (columns, rows)[axis], tinygrad=along, torch=along, jax=along)


def perceptron_step(batch: int, inputs: int, hidden: int, outputs: int) -> Workload:
    """A step of SGD on a network of three layers."""
    widths = (inputs, hidden, hidden, outputs)
    weights = sum(a * b for a, b in pairwise(widths))

    def make(networks: Any) -> Any:
        return networks.perceptron(widths)

    setups: Mapping[str, Setup] = finished(training(
        make, partial(normal, batch, inputs), partial(integers, outputs, batch), "SGD", lr=0.01))
    return Workload(f"perceptron {'-'.join(map(str, widths))}, SGD step, batch {batch}",
                    6.0 * batch * weights, ITEM * (2.0 * weights + batch * inputs), ITEM * weights, setups)


def drawn(seed: int) -> tuple[Workload, ...]:
    """The family's workloads at the sizes of a seed, no two of which have the same name."""
    size = random.Random(seed).randint
    makers: tuple[tuple[int, Callable[[], Workload]], ...] = (
        (3, lambda: matmul(size(200, 1500), size(200, 1500), size(200, 1500))),
        (2, lambda: matmul(size(1, 24), size(500, 5000), size(500, 5000))),
        (1, lambda: matmul(size(1000, 5000), size(500, 5000), size(2, 40))),
        (3, lambda: products(size(8, 80), size(20, 200), size(20, 200), size(20, 200))),
        (2, lambda: conv2d("conv 3x3", size(1, 16), size(3, 150), size(17, 90), size(17, 90),
                           size(8, 150), 3)),
        (1, lambda: conv2d("conv 3x3 stride 2", size(1, 16), size(8, 100), size(25, 90), size(25, 90),
                           size(8, 150), 3, stride=2)),
        (2, lambda: conv2d("conv 5x5 stride 2", size(1, 8), size(3, 60), size(35, 130), size(35, 130),
                           size(8, 100), 5, stride=2)),
        (2, lambda: layer_norm(size(300, 9000), size(65, 4000))),
        (2, lambda: whole_attention(size(1, 4), size(2, 12), size(65, 900), size(4, 16) * 8)),
        (2, lambda: sums(size(300, 9000), size(65, 9000), 0)),
        (2, lambda: sums(size(300, 9000), size(65, 9000), 1)),
        (2, lambda: perceptron_step(size(16, 300), size(50, 900), size(50, 900), size(5, 60))),
    )
    found: dict[str, Workload] = {}
    for count, make in makers:
        for _ in range(count):
            workload = make()
            name = f"odd {workload.name}"
            found[name] = replace(workload, name=name)
    return tuple(found.values())


WORKLOADS = drawn(SEED)
