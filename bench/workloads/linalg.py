"""Decompositions of small matrices: determinants, systems of equations, singular values.

They are as many dependent steps as there are columns: what a library adds to each step is most of the time.
The public tinygrad, which has few of them, is left out.
"""
from __future__ import annotations

from bench.workloads.base import Operation, Workload, operation, without_public


def _row(name: str, n: int, work: float, shapes: list[tuple[int, ...]], written: int, tinygrad: Operation,
         others: Operation) -> Workload:
    """PyTorch and JAX have the same names for these, in `torch.linalg` and `jax.numpy.linalg`."""
    row = operation(f"{name} {n}x{n}", work, shapes, written, tinygrad=tinygrad,
                    torch=lambda torch, *arrays: others(torch.linalg, *arrays),
                    jax=lambda jax, *arrays: others(jax.numpy.linalg, *arrays), tolerance=1e-2)
    return without_public(row)


def determinant(n: int) -> Workload:
    return _row("det", n, 2 / 3 * n**3, [(n, n)], 1, lambda _, x: x.det(), lambda linalg, x: linalg.det(x))


def solution(n: int, count: int) -> Workload:
    """Of `count` right sides."""
    return _row("solve", n, 2 / 3 * n**3 + 2 * n * n * count, [(n, n), (n, count)], n * count,
                lambda _, x, b: x.solve(b), lambda linalg, x, b: linalg.solve(x, b))


def singular_values(n: int) -> Workload:
    return _row("svdvals", n, 8 / 3 * n**3, [(n, n)], n, lambda _, x: x.svd()[1],
                lambda linalg, x: linalg.svd(x)[1])


WORKLOADS = (determinant(8), determinant(32), solution(8, 1), solution(32, 8), solution(128, 8),
             singular_values(8), singular_values(32))
