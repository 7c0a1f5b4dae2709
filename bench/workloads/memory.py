"""Work that memory bounds: item by item, along rows, one sum, and a transposed copy.

Operations count an exponential, a tanh and a square root as one.
"""
from __future__ import annotations

from typing import Any

from bench.workloads.base import Workload, operation

MILLION = 1 << 20


def add(n: int) -> Workload:
    """The sum of two vectors."""
    return operation(f"add, {n // MILLION}M", 1.0 * n, [(n,), (n,)], n,
                     tinygrad=lambda _, x, y: x + y,
                     torch=lambda _, x, y: x + y,
                     jax=lambda _, x, y: x + y)


def clamp_chain(n: int) -> Workload:
    """clamp(relu(2x + y) / 2 + sqrt(|x|) - y, -1, 1): what a compiler fuses into one pass."""
    return operation(f"clamp chain, {n // MILLION}M", 9.0 * n, [(n,), (n,)], n,
                     tinygrad=lambda _, x, y: ((2 * x + y).relu() / 2 + x.abs().sqrt() - y).clamp(-1, 1),
                     torch=lambda _, x, y: ((2 * x + y).relu() / 2 + x.abs().sqrt() - y).clamp(-1, 1),
                     jax=lambda jax, x, y: jax.numpy.clip(
                         jax.nn.relu(2 * x + y) / 2 + jax.numpy.sqrt(abs(x)) - y, -1, 1))


def gelu(n: int) -> Workload:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel, 2016)."""
    return operation(f"gelu (tanh), {n // MILLION}M", 9.0 * n, [(n,)], n,
                     tinygrad=lambda _, x: x.gelu(),
                     torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
                     jax=lambda jax, x: jax.nn.gelu(x, approximate=True))


def total(n: int) -> Workload:
    """The sum of a vector."""
    return operation(f"sum, {n // MILLION}M", 1.0 * n, [(n,)], 1,
                     tinygrad=lambda _, x: x.sum(),
                     torch=lambda _, x: x.sum(),
                     jax=lambda _, x: x.sum())


def softmax(rows: int, columns: int) -> Workload:
    """Softmax of each row."""
    return operation(f"softmax {rows}x{columns}", 5.0 * rows * columns, [(rows, columns)], rows * columns,
                     tinygrad=lambda _, x: x.softmax(-1),
                     torch=lambda torch, x: torch.softmax(x, -1),
                     jax=lambda jax, x: jax.nn.softmax(x))


def layer_norm(rows: int, columns: int) -> Workload:
    """Layer normalisation of each row, with scale and offset."""
    shapes = [(rows, columns), (columns,), (columns,)]

    def in_jax(jax: Any, x: Any, scale: Any, offset: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * scale + offset

    return operation(f"layer norm {rows}x{columns}", 8.0 * rows * columns, shapes, rows * columns,
                     tinygrad=lambda _, x, scale, offset: x.layernorm() * scale + offset,
                     torch=lambda torch, x, scale, offset: torch.nn.functional.layer_norm(
                         x, (columns,), scale, offset),
                     jax=in_jax)


def transposed_copy(n: int) -> Workload:
    """The transpose of an n x n matrix, laid out in memory."""
    return operation(f"transpose copy {n}x{n}", 0.0, [(n, n)], n * n,
                     tinygrad=lambda _, x: x.T.contiguous(),
                     torch=lambda _, x: x.T.contiguous(),
                     jax=lambda _, x: x.T)


WORKLOADS = (
    add(16 * MILLION), clamp_chain(16 * MILLION), gelu(16 * MILLION), total(64 * MILLION),
    softmax(4096, 4096), layer_norm(8192, 1024), layer_norm(4096, 4096), transposed_copy(4096),
)
