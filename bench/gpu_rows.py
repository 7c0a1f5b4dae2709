"""What `bench gpu` measures: single operations on large tensors, and steps of whole networks.

Each row says how a user of this library and one of PyTorch write it. Sizes are data: `FULL` for a GPU,
`SMALL` to see on any device that every row runs. Next: `gpu.py`, which runs them.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.workloads import OURS
from bench.workloads.base import Array, Setup, Step, normal
from bench.workloads.models import (
    Place,
    gpt_setups,
    gpt_token_setups,
    mnist_setups,
    residual_setups,
    sizes,
)
from bench.workloads.models.sizes import GPT2, RESNET50, Residual, Transformer
from tinygrad import Context

DRAWN = 1 << 22
"""Items that are drawn; a longer input has them again and again."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Sizes:
    """How large the rows are."""

    moved: int
    """bytes of what memory bounds"""
    row: int
    """items of a row of softmax and layer norm"""
    products: Sequence[int]
    """sides of square matrices"""
    attention: tuple[int, int, int]
    """heads, tokens, size of a head"""
    mnist: int
    """images of a step"""
    residual: tuple[Residual, int, int]
    """the network, images of a step, their side"""
    gpt: tuple[Transformer, int, int]
    """the network, texts of a step, tokens before the one that is inferred"""


FULL = Sizes(1 << 30, 4096, (1024, 2048, 4096, 8192), (16, 4096, 128), 512, (RESNET50, 128, 224),
             (GPT2, 8, 128))
SMALL = Sizes(1 << 14, 64, (48,), (2, 33, 16), 4,
              (Residual(blocks=(1, 1), width=8, classes=10), 2, 32),
              (Transformer(vocabulary=65, context=16, layers=1, width=32, heads=2), 2, 8))


@dataclass(frozen=True)
class GPURow:
    """A named piece of work, what it costs, and for each library what makes its inputs and gives the step."""

    name: str
    operations: float
    moved_bytes: float
    setups: Mapping[str, Setup]
    tolerance: float
    """how far first results may differ, relative to the mean size of an item"""
    moves: bool = False
    """whether memory bounds it"""


def operation(name: str, shapes: Sequence[tuple[int, ...]], dtype: str, operations: float, moved_bytes: float,
              tinygrad: Callable[..., Any], torch: Callable[..., Any], torch_device: str, *,
              tf32: bool = False, moves: bool = False) -> GPURow:
    """One operation on arrays of these shapes, the same in each library."""
    place = Place(dtype, torch_device)
    arrays = [partial(drawn, shape, seed) for seed, shape in enumerate(shapes)]

    def ours() -> Step:
        inputs = [place.in_tinygrad(array()) for array in arrays]

        def step() -> Any:
            with Context(ALLOW_TF32=int(tf32)):
                return tinygrad(*inputs).realize()

        return step

    def theirs(compiled: bool) -> Step:
        import torch as library

        inputs = [place.in_torch(array()) for array in arrays]
        if compiled:
            library._dynamo.reset()  # or one function for all rows is compiled once, for any size
        run = partial(torch, library)
        called = library.compile(run) if compiled else run

        def step() -> Any:
            library.backends.cuda.matmul.allow_tf32 = tf32
            return called(*inputs)

        return step

    tolerance = 1e-3 if dtype == "float32" and not tf32 else 2e-2
    setups = {OURS: ours, "torch": lambda: theirs(False), "torch.compile": lambda: theirs(True)}
    return GPURow(name, operations, moved_bytes, setups, tolerance, moves)


def drawn(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers of a normal distribution, the same for each library."""
    count = math.prod(shape)
    return np.resize(normal(min(count, DRAWN), seed=seed), count).reshape(shape)


def memory_rows(size: int, row: int, torch_device: str) -> list[GPURow]:
    """Work on float32 that memory bounds; the first is the copy whose rate the others are compared with."""
    items = size // 4
    rows = (items // row, row)
    text = f"{size >> 30} GB" if size >> 30 else f"{size:,} bytes"

    def made(name: str, shapes: Sequence[tuple[int, ...]], operations: float, moved: float,
             tinygrad: Callable[..., Any], torch: Callable[..., Any]) -> GPURow:
        return operation(f"{name}, {text}", shapes, "float32", operations * items, moved * size, tinygrad,
                         torch, torch_device, moves=True)

    return [
        made("copy", [(items,)], 0, 2, lambda x: x + 0, lambda torch, x: x.clone()),
        made("add", [(items // 2,), (items // 2,)], 0.5, 1.5, lambda x, y: x + y, lambda torch, x, y: x + y),
        made("gelu", [(items,)], 9, 2, lambda x: x.gelu(),
             lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
        made("sum", [(items,)], 1, 1, lambda x: x.sum(), lambda torch, x: x.sum()),
        made("softmax", [rows], 5, 2, lambda x: x.softmax(-1), lambda torch, x: torch.softmax(x, -1)),
        made("layer norm", [rows], 8, 2, lambda x: x.layernorm(),
             lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    ]


def product(n: int, dtype: str, torch_device: str, tf32: bool = False) -> GPURow:
    """Two square matrices."""
    return operation(f"matmul {n} {'tf32' if tf32 else dtype}", [(n, n), (n, n)], dtype, 2.0 * n**3,
                     3.0 * n * n * BYTES[dtype], lambda a, b: a @ b, lambda torch, a, b: a @ b, torch_device,
                     tf32=tf32)


def attention(heads: int, length: int, size: int, torch_device: str) -> GPURow:
    """Causal attention in bfloat16."""
    shape = (1, heads, length, size)
    return operation(
        f"causal attention, {heads}x{length}x{size} bfloat16", [shape] * 3, "bfloat16",
        2.0 * heads * length * (length + 1) * size, 8.0 * heads * length * size,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        torch_device)


def network_rows(given: Sizes, torch_device: str) -> list[GPURow]:
    """Training steps, and one token, which reads all weights. What a step moves depends on what fuses, and is
    not counted."""
    single, half = Place("float32", torch_device), Place("bfloat16", torch_device)
    residual, images, side = given.residual
    gpt, texts, earlier = given.gpt
    return [
        GPURow(f"MNIST convnet, Adam step, batch {given.mnist}, float32",
               sizes.training_operations(given.mnist, *sizes.mnist_products()), 0.0,
               mnist_setups(given.mnist, single), 1e-2),
        GPURow(f"ResNet-{2 + 3 * len(residual.stages)}, SGD step, {images}x{side}x{side}, bfloat16",
               sizes.training_operations(images, *residual.products(side)), 0.0,
               residual_setups(lambda networks: networks.BottleneckNet(residual), images, side,
                               residual.classes, half), 5e-2),
        GPURow(f"GPT-2 of {gpt.layers} layers, AdamW step, {texts}x{gpt.context} tokens, bfloat16",
               3 * gpt.operations(texts, gpt.context), 0.0, gpt_setups(gpt, texts, half), 5e-2),
        GPURow(f"GPT-2 of {gpt.layers} layers, one token after {earlier}, bfloat16",
               gpt.operations(1, 1, earlier), 2.0 * gpt.matrix_items, gpt_token_setups(gpt, earlier, half),
               5e-2, moves=True),
    ]


def all_rows(given: Sizes, torch_device: str) -> list[GPURow]:
    products = [product(n, dtype, torch_device) for dtype in ("bfloat16", "float16", "float32")
                for n in given.products]
    tf32 = [product(n, "float32", torch_device, tf32=True) for n in given.products]
    return [*memory_rows(given.moved, given.row, torch_device), *products, *tf32,
            attention(*given.attention, torch_device), *network_rows(given, torch_device)]
