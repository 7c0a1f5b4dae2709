"""Causal attention, forward alone and with the gradients of its three inputs."""
from __future__ import annotations

import math
from typing import Any

from bench.workloads.base import (
    ITEM,
    Step,
    Workload,
    both_tinygrads,
    normals,
    operation,
    wait_for_tinygrad,
)


def forward_operations(heads: int, length: int, size: int) -> float:
    """Two products of `size` for each query and each key not after it."""
    return 2 * 2.0 * heads * size * length * (length + 1) / 2


def in_jax(jax: Any, query: Any, key: Any, value: Any) -> Any:
    """(1, heads, length, size), which JAX wants as (1, length, heads, size)."""
    swapped = (x.swapaxes(1, 2) for x in (query, key, value))
    return jax.nn.dot_product_attention(*swapped, is_causal=True).swapaxes(1, 2)


def attention(heads: int, length: int, size: int) -> Workload:
    """Scaled dot-product attention in which each query sees the keys up to its own position."""
    shape = (1, heads, length, size)
    return operation(f"causal attention, {heads}x{length}x{size}", forward_operations(heads, length, size),
                     [shape] * 3, math.prod(shape),
                     tinygrad=lambda _, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
                     torch=lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(
                         q, k, v, is_causal=True),
                     jax=in_jax)


def attention_gradients(heads: int, length: int, size: int) -> Workload:
    """The same and the gradients of the sum of its squares: at the least four products more."""
    shapes = [(1, heads, length, size)] * 3

    def tinygrad() -> Step:
        from tinygrad import Tensor, TinyJit

        q, k, v = (Tensor(x).realize() for x in normals(shapes))

        @TinyJit
        def gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            loss = q.scaled_dot_product_attention(k, v, is_causal=True).square().sum()
            computed = loss.gradient(q, k, v)
            computed[0].realize(*computed[1:])
            return tuple(computed)

        def step() -> Any:
            result = gradients(q, k, v)[0]
            wait_for_tinygrad()
            return result

        return step

    def torch(compiled: bool) -> Step:
        import torch

        q, k, v = (torch.from_numpy(x).requires_grad_() for x in normals(shapes))

        def forward(q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()

        loss = torch.compile(forward) if compiled else forward
        return lambda: torch.autograd.grad(loss(q, k, v), (q, k, v))[0]

    def jax() -> Step:
        import jax

        arrays = [jax.numpy.asarray(x) for x in normals(shapes)]
        gradients = jax.jit(jax.grad(lambda *qkv: (in_jax(jax, *qkv) ** 2).sum(), argnums=(0, 1, 2)))
        return lambda: jax.block_until_ready(gradients(*arrays))[0]

    items = math.prod(shapes[0])
    setups = {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True),
              "jax": jax}
    operations = 3 * forward_operations(heads, length, size)
    return Workload(f"causal attention and gradients, {heads}x{length}x{size}", operations,
                    3.0 * items * ITEM, 3.0 * items * ITEM, setups)


WORKLOADS = (attention(12, 1024, 64), attention_gradients(12, 1024, 64))
