"""Products of matrices: square, odd-sized, thin, transposed, batched, and with a vector."""
from __future__ import annotations

from typing import Any

from bench.workloads.base import Workload, operation


def matmul(m: int, k: int, n: int, dtype: str = "float32", tolerance: float = 1e-3) -> Workload:
    """(m, k) times (k, n)."""
    name = f"matmul {m}" if m == k == n else f"matmul {m}x{k}x{n}"
    name += "" if dtype == "float32" else f", {dtype}"
    return operation(name, 2.0 * m * k * n, [(m, k), (k, n)], m * n, tolerance=tolerance, dtype=dtype,
                     tinygrad=lambda _, a, b: a @ b,
                     torch=lambda _, a, b: a @ b,
                     jax=lambda _, a, b: a @ b)


def transposed_matmul(n: int, first: bool, second: bool) -> Workload:
    """Two n x n matrices, of which one or both are read transposed."""
    name = f"matmul {n}, {'a.T' if first else 'a'} @ {'b.T' if second else 'b'}"

    def product(_: Any, a: Any, b: Any) -> Any:
        return (a.T if first else a) @ (b.T if second else b)

    return operation(name, 2.0 * n**3, [(n, n), (n, n)], n * n, tinygrad=product, torch=product, jax=product)


def layer(rows: int, n: int) -> Workload:
    """A few rows through a layer without bias: times an (n, n) matrix whose rows lie along the sum."""
    return operation(f"layer {rows}x{n}", 2.0 * rows * n * n, [(rows, n), (n, n)], rows * n,
                     tinygrad=lambda _, x, w: x @ w.T,
                     torch=lambda _, x, w: x @ w.T,
                     jax=lambda _, x, w: x @ w.T)


def batched_matmul(batch: int, n: int) -> Workload:
    """`batch` products of n x n matrices."""
    return operation(f"matmul {batch} of {n}", 2.0 * batch * n**3, [(batch, n, n), (batch, n, n)],
                     batch * n * n,
                     tinygrad=lambda _, a, b: a @ b,
                     torch=lambda _, a, b: a @ b,
                     jax=lambda _, a, b: a @ b)


def matvec(n: int) -> Workload:
    """One row (1, n) times a matrix (n, n)."""
    return operation(f"matvec {n}", 2.0 * n * n, [(1, n), (n, n)], n,
                     tinygrad=lambda _, x, a: x @ a,
                     torch=lambda _, x, a: x @ a,
                     jax=lambda _, x, a: x @ a)


WORKLOADS = (
    matmul(512, 512, 512), matmul(1024, 1024, 1024), matmul(2048, 2048, 2048),
    matmul(37, 37, 37), matmul(777, 777, 777), matmul(997, 997, 997), matmul(1003, 1003, 1003),
    matmul(4096, 64, 4096), matmul(64, 4096, 4096), matmul(4096, 4096, 64), matmul(15, 4096, 4096),
    layer(15, 4096), layer(16, 4096),
    transposed_matmul(1024, True, False), transposed_matmul(1024, False, True),
    transposed_matmul(1024, True, True),
    batched_matmul(64, 128), matmul(1024, 1024, 1024, "bfloat16", 2e-2),
    matvec(4096),
)
