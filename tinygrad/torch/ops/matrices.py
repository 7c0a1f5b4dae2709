"""Linear algebra: inverses, triangular systems, factorisations, distances."""
from __future__ import annotations

from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.reductions import axes_of
from tinygrad.torch.registry import enter_all, operator


def no_error(x: Tensor) -> Tensor:
    """The state of each matrix of a batch: 0, that no error was found."""
    return Tensor.zeros(*x.shape[:-2], dtype=dtypes.int32, device="CPU")


@operator("linalg_inv_ex")
def inverse(x: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return x.inv(), no_error(x)


@operator("linalg_cholesky_ex")
def cholesky(x: Tensor, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return x.cholesky(upper), no_error(x)


@operator("linalg_solve_triangular")
def solve_triangular(a: Tensor, b: Tensor, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Tensor:
    """The x of a x = b, or of x a = b."""
    if not left:
        return solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True,
                                unitriangular).transpose(-1, -2)
    lead = tuple(max(int(m), int(n)) for m, n in zip(
        (1,) * (b.ndim - a.ndim) + tuple(a.shape[:-2]), (1,) * (a.ndim - b.ndim) + tuple(b.shape[:-2])))
    return a.expand(*lead, *a.shape[-2:]).solve_triangular(
        b.expand(*lead, *b.shape[-2:]), upper, unitriangular=unitriangular)


@operator("linalg_cross")
def cross(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    def next_of(x: Tensor, steps: int) -> Tensor:
        return x.roll(-steps, dim)
    return next_of(a, 1) * next_of(b, 2) - next_of(a, 2) * next_of(b, 1)


@operator("linalg_vector_norm")
def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False,
                dtype: Any = None) -> Tensor:
    kind = dtype or x.dtype
    wide = x.cast(dtypes.float32 if kind.itemsize < 4 else kind).abs()
    axes = axes_of(x, dim)
    if ord == 0:
        return (wide != 0).cast(wide.dtype).sum(axes, keepdim)
    if abs(ord) == float("inf"):
        return wide.max(axes, keepdim) if ord > 0 else wide.min(axes, keepdim)
    if ord == 1:
        return wide.sum(axes, keepdim)
    if ord == 2:
        return wide.square().sum(axes, keepdim).sqrt()
    return wide.pow(ord).sum(axes, keepdim).pow(1 / ord)


def distances(a: Tensor, b: Tensor, p: float) -> Tensor:
    """From each row of `a` to each of `b`."""
    return vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)


def gradient_of_norm(g: Tensor, apart: Tensor, p: float, distance: Tensor) -> Tensor:
    """The gradient at `apart`, of which `distance` is the p-norm: zero where it is zero."""
    g, distance = g.unsqueeze(-1), distance.unsqueeze(-1)
    safe = (distance == 0).where(1, distance)
    if p == 0:
        return apart.zeros_like()
    if p == float("inf"):
        return (apart.abs() == distance).where(apart.sign() * g, 0)
    if p == 1:
        return apart.sign() * g
    scaled = apart if p == 2 else apart.sign() * apart.abs().pow(p - 1) * safe.pow(2 - p)
    found = (apart == 0) if p < 2 else distance == 0
    return found.where(0, g * scaled / safe)


@operator("_cdist_forward")
def cdist(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return distances(a, b, p)


@operator("_cdist_backward")
def cdist_gradient(g: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    return gradient_of_norm(g, a.unsqueeze(-2) - b.unsqueeze(-3), p, distance).sum(-2)


def pairs(n: int) -> tuple[Tensor, Tensor]:
    """The numbers of the rows of each pair i < j."""
    first = [i for i in range(n) for _ in range(i + 1, n)]
    second = [j for i in range(n) for j in range(i + 1, n)]
    return (Tensor(first, dtype=dtypes.int64, device="CPU"), Tensor(second, dtype=dtypes.int64, device="CPU"))


@operator("_pdist_forward")
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    if x.shape[0] < 2:
        return Tensor.zeros(0, dtype=x.dtype, device="CPU")
    first, second = pairs(int(x.shape[0]))
    return vector_norm(x[first] - x[second], p, -1)


@operator("_pdist_backward")
def pdist_gradient(g: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    if x.shape[0] < 2:
        return x.zeros_like()
    first, second = pairs(int(x.shape[0]))
    found = gradient_of_norm(g, x[first] - x[second], p, distance)
    zeros = x.zeros_like().contiguous()
    index = first.unsqueeze(1).expand(found.shape), second.unsqueeze(1).expand(found.shape)
    return zeros.scatter_reduce(0, index[0], found, "sum").scatter_reduce(0, index[1], -found, "sum")


@operator("trace")
def trace(x: Tensor) -> Tensor:
    return x.diagonal().sum()


def sums_of_products(x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta x + alpha (the sum of the products of a batch)."""
    if not a.dtype.is_float:
        beta, alpha = int(beta), int(alpha)
    elif a.dtype.itemsize < 4:
        x, a, b = (t.cast(dtypes.float32) for t in (x, a, b))
    # one product, rounded once: of a, whose matrices stand side by side, and b's on top of each other
    summed = a.permute((1, 0, 2)).reshape(a.shape[1], -1).matmul(b.reshape(-1, b.shape[2])) * alpha
    result: Tensor = summed if beta == 0 else x * beta + summed
    return result


enter_all({"addbmm": sums_of_products})
