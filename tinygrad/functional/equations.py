"""Linear equations: triangular and general systems, inverses, determinants, least squares.

All take a batch of matrices (..., n, n) and run at once, as `decompositions` says, by elimination with row
exchanges (LU). NumPy raises an error for singular matrices; here nothing is read, so a system without a
solution gives inf or NaN.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tinygrad.functional.decompositions import svd
from tinygrad.functional.factors import (
    State,
    check_matrix,
    compute_dtype,
    computed,
    diagonal_of,
    epsilon,
    identity,
    lu_factor,
    product,
    substituted,
    transposed,
    unit_lower,
)
from tinygrad.functional.function import Function
from tinygrad.graph.shapes import broadcast_shape

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


# --- systems --------------------------------------------------------------------------------------


def _triangular_solution(lower: Tensor, right: Tensor) -> State:
    return (substituted(lower.tril(), right),)


class _SolveTriangular(Function):
    def forward(self, lower: Tensor, right: Tensor) -> Tensor:
        x, = computed(_triangular_solution, lower, right, steps=lower.shape[-1])
        self.save_for_backward(lower, x)
        return x

    def backward(self, gradient: Tensor) -> State:
        lower, x = (t for t in self.saved_tensors if t is not None)
        at_right = solve_triangular(lower, gradient, upper=False, transpose=True)
        return -product(at_right, transposed(x)).tril(), at_right


def _solution(a: Tensor, right: Tensor) -> State:
    factors, order, _ = lu_factor(a)
    ordered = right.detach().gather(-2, order.expand(*right.shape))
    x = substituted(unit_lower(factors), ordered)
    return (substituted(factors.triu().flip((-2, -1)), x.flip(-2)).flip(-2),)


class _Solve(Function):
    def forward(self, a: Tensor, right: Tensor) -> Tensor:
        x, = computed(_solution, a, right, steps=a.shape[-1])
        self.save_for_backward(a, x)
        return x

    def backward(self, gradient: Tensor) -> State:
        a, x = (t for t in self.saved_tensors if t is not None)
        at_right = solve(transposed(a), gradient)
        return -product(at_right, transposed(x)), at_right


def _right_side(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, bool]:
    """The right side of equations with the matrix `a` as columns, and whether it is a vector."""
    rows, is_vector = a.shape[-2], b.ndim == 1
    right = b.unsqueeze(-1) if is_vector else b
    if right.ndim < 2 or right.shape[-2] != rows:
        raise ValueError(f"{name} of a matrix of shape {a.shape} takes a right side of shape "
                         f"(..., {rows}, k) or ({rows},), got {b.shape}")
    return right, is_vector


def _system(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Both sides in the dtype to compute in, broadcast; and whether the right side is a vector."""
    n, _ = check_matrix(name, a, square=True)
    right, is_vector = _right_side(name, a, b)
    lead = broadcast_shape(name, a.shape[:-2], right.shape[:-2])
    _, wide = compute_dtype(a, b)
    return a.cast(wide).expand(*lead, n, n), right.cast(wide).expand(*lead, *right.shape[-2:]), is_vector


def solve(self: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """X with `self` X = `b`: shapes (..., n, n) and (..., n, k), or (n,) for one vector, give that of `b`.
    With left=False, X `self` = `b`, of shape (..., k, n).

    Leading axes broadcast. A singular matrix gives inf or NaN. Raises ValueError where shapes do not fit.

    >>> Tensor([[2., 0.], [0., 4.]]).solve(Tensor([2., 8.])).tolist()
    [1.0, 2.0]
    """
    if not left:
        check_matrix("solve", b)
        return transposed(solve(transposed(self), transposed(b)))
    a, right, is_vector = _system("solve", self, b)
    x: Tensor = _Solve.apply(a, right)
    x = x.cast(compute_dtype(self, b)[0])
    return x.squeeze(-1) if is_vector else x


def solve_triangular(self: Tensor, b: Tensor, upper: bool, transpose: bool = False,
                     unitriangular: bool = False, *, left: bool = True) -> Tensor:
    """X with T X = `b`, or X T = `b` with left=False, for T the upper or lower triangle of `self` (..., n,
    n); the other is not read.

    With `transpose`, T^T X = `b`; with `unitriangular`, the diagonal counts as ones. Shapes as in `solve`. A
    zero on the diagonal gives inf or NaN.

    >>> Tensor([[2., 0.], [2., 4.]]).solve_triangular(Tensor([2., 10.]), upper=False).tolist()
    [1.0, 2.0]
    """
    if not left:
        check_matrix("solve_triangular", b)
        found = solve_triangular(self, transposed(b), upper, not transpose, unitriangular)
        return transposed(found)
    a, right, is_vector = _system("solve_triangular", self, b)
    if unitriangular:
        a = (identity(a, a.shape[-1]) != 0).where(1, a)
    a = a.triu() if upper else a.tril()
    a, upper = (transposed(a), not upper) if transpose else (a, upper)
    x: Tensor
    if upper:  # backwards it is lower
        x = _SolveTriangular.apply(a.flip((-2, -1)), right.flip(-2)).flip(-2)
    else:
        x = _SolveTriangular.apply(a, right)
    x = x.cast(compute_dtype(self, b)[0])
    return x.squeeze(-1) if is_vector else x


def triangular_solve(self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,
                     unitriangular: bool = False) -> tuple[Tensor, Tensor]:
    """(X, A) with A X = `self`: `A.solve_triangular(self)`, as PyTorch's older name has it."""
    return solve_triangular(A, self, upper, transpose, unitriangular), A


def cholesky_solve(self: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X for which A X = `self`, (..., n, k), by A's Cholesky factor: A = L L^T, or L^T L if `upper`."""
    lower = transposed(L) if upper else L
    return solve_triangular(lower, solve_triangular(lower, self, upper=False), upper=False, transpose=True)


def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose Cholesky factor this is."""
    check_matrix("cholesky_inverse", self)
    return cholesky_solve(type(self).eye(self.shape[-1], dtype=self.dtype, device=self.device), self, upper)


def inv(self: Tensor) -> Tensor:
    """The inverse of square matrices (..., n, n); a singular one has inf or NaN.

    >>> Tensor([[2., 0.], [0., 4.]]).inv().tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    check_matrix("inv", self, square=True)
    kind, wide = compute_dtype(self)
    return solve(self.cast(wide), identity(self.cast(wide), self.shape[-1])).cast(kind)


def matrix_power(self: Tensor, n: int) -> Tensor:
    """The matrix (..., m, m) to an integer power, by repeated squaring; the inverse's for n < 0.

    >>> Tensor([[1, 1], [1, 0]]).matrix_power(10).tolist()
    [[89, 55], [55, 34]]
    """
    check_matrix("matrix_power", self, square=True)
    if not isinstance(n, (int, np.integer)):
        raise TypeError(f"matrix_power takes an integer, got {n!r}")
    square = inv(self) if n < 0 else self
    result = None
    for bit in reversed(f"{abs(n):b}"):
        if bit == "1":
            result = square if result is None else result @ square
        square = square @ square
    return identity(self, self.shape[-1]) if result is None else result


# --- determinants ---------------------------------------------------------------------------------


class SignAndLog(NamedTuple):
    """The sign of a determinant (-1, 0 or 1), and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def _determinants(x: Tensor) -> State:
    """(determinant, sign, logarithm of the absolute value)."""
    factors, _, sign = lu_factor(x)
    pivots = diagonal_of(factors)
    return sign * pivots.prod(-1), sign * pivots.sign().prod(-1), pivots.abs().log().sum(-1)


class _Determinant(Function):
    def forward(self, x: Tensor) -> State:
        result = computed(_determinants, x, steps=x.shape[-1])
        self.save_for_backward(x, result[0])
        self.mark_non_differentiable(result[1])
        return result

    def backward(self, at_value: Tensor, at_sign: Tensor, at_logarithm: Tensor) -> Tensor:
        x, value = (t for t in self.saved_tensors if t is not None)
        return (at_value * value + at_logarithm).unsqueeze(-1).unsqueeze(-1) * transposed(inv(x))


def det(self: Tensor) -> Tensor:
    """The determinants (...,) of square matrices (..., n, n); 0 for a singular one, whose gradient is NaN.

    >>> Tensor([[2., 0.], [1., 3.]]).det().item()
    6.0
    """
    check_matrix("det", self, square=True)
    kind, wide = compute_dtype(self)
    value: Tensor = _Determinant.apply(self.cast(wide))[0]
    return value.cast(kind)


def slogdet(self: Tensor) -> SignAndLog:
    """(sign, logabsdet) of the determinants of square matrices (..., n, n), each of shape (...,).

    What does not overflow where `det` does. (0, -inf) for a singular matrix.
    """
    check_matrix("slogdet", self, square=True)
    kind, wide = compute_dtype(self)
    _, sign, logarithm = _Determinant.apply(self.cast(wide))
    return SignAndLog(sign.cast(kind), logarithm.cast(kind))


# --- least squares --------------------------------------------------------------------------------


class LeastSquares(NamedTuple):
    """What `lstsq` returns. Rank and singular values are constants to gradients."""

    solution: Tensor
    residuals: Tensor
    """the sum of squared differences for each column of the right side"""
    rank: Tensor
    singular_values: Tensor


class _PseudoInverse(Function):
    """Gradient: Golub and Pereyra, 1973; for matrices whose rank does not change nearby."""

    def forward(self, x: Tensor, rcond: float, atol: float) -> State:
        u, s, vt = svd(x.detach(), full_matrices=False)
        largest = s.max(-1, keepdim=True) if s.shape[-1] else s
        counts = s > (largest * rcond).maximum(atol) if s.shape[-1] else s > 0
        scale = counts.where(1 / counts.where(s, 1), 0).unsqueeze(-2)
        result = product(transposed(vt) * scale, transposed(u)), counts.sum(-1), s
        self.save_for_backward(x, result[0])
        self.mark_non_differentiable(s)
        return result

    def backward(self, gradient: Tensor, at_rank: Tensor, at_values: Tensor) -> State:
        x, p = (t for t in self.saved_tensors if t is not None)
        pt, gt = transposed(p), transposed(gradient)
        result = -product(product(pt, gradient), pt)
        result = result + product(gt - product(x, product(p, gt)), product(p, pt))
        return (result + product(product(pt, p), gt - product(product(gt, p), x)),)


def _pseudo_inverse(x: Tensor, rcond: float | None, atol: float = 0.0) -> State:
    limit = epsilon(x) * max(x.shape[-2:]) if rcond is None else rcond
    result: State = _PseudoInverse.apply(x, limit, atol)
    return result


def pinv(self: Tensor, rcond: float | None = None, hermitian: bool = False, *, atol: float | None = None,
         rtol: float | None = None) -> Tensor:
    """The pseudo-inverse (..., n, m) of matrices (..., m, n), by singular values.

    Those up to `atol`, or `rcond` (`rtol`) times the largest, count as zero: the dtype's epsilon times max(m,
    n) unless one of them is given. Of `hermitian` matrices the lower triangle is read.

    >>> round(Tensor([[2.0], [0.0]]).pinv()[0, 0].item(), 6)
    0.5
    """
    check_matrix("pinv", self, square=hermitian)
    if rcond is not None and rtol is not None:
        raise TypeError("pinv: rcond and rtol are two names of one argument")
    kind, wide = compute_dtype(self)
    x = self.tril() + transposed(self.tril(-1)) if hermitian else self
    share = rcond if rtol is None else rtol
    share = 0.0 if share is None and atol is not None else share
    return _pseudo_inverse(x.cast(wide), share, atol or 0.0)[0].cast(kind)


def lstsq(self: Tensor, b: Tensor, rcond: float | None = None) -> LeastSquares:
    """The X for which the sum of (`self` X - `b`)^2 is least, and of those the smallest.

    Shapes (..., m, n) and (..., m, k), or (m,) for one vector, give a solution (..., n, k), or (n,). Also
    residuals (..., k), rank (...,) and singular values (..., min(m, n)). `rcond` as in `pinv`. Raises
    ValueError where shapes do not fit.
    """
    check_matrix("lstsq", self)
    right, is_vector = _right_side("lstsq", self, b)
    kind, wide = compute_dtype(self, b)
    a, right = self.cast(wide), right.cast(wide)
    inverse, rank, values = _pseudo_inverse(a, rcond)
    x = inverse @ right
    residuals = ((a @ x - right) ** 2).sum(-2)
    found = [t.squeeze(-1) if is_vector else t for t in (x, residuals)]
    return LeastSquares(found[0].cast(kind), found[1].cast(kind), rank, values.cast(kind))
