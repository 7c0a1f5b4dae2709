"""Matrices as products of simpler ones: Cholesky, QR, singular values, eigenvalues.

All take a batch of matrices (..., m, n). The steps (`factors`) run at once, not lazily, several in a replay,
of few columns all in one: a result costs a few kernels a column, or a round of rotations, which is fine up to
a few hundred columns. Under `vmap`, and inside TinyJit, every step becomes a part of the graph; that is for
small matrices.

Gradients are closed formulas in the results (`Function`), not derivatives of the steps, and have derivatives
themselves. float16 and bfloat16 compute in float32.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad.functional.factors import (
    State,
    check_matrix,
    cholesky_factor,
    compute_dtype,
    computed,
    diagonal_of,
    epsilon,
    identity,
    iterate,
    product,
    qr_factor,
    runs_at_once,
    transposed,
)
from tinygrad.functional.function import Function

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def inverse_gaps(values: Tensor) -> Tensor:
    """1 / (v[j] - v[i]) for i, j along the last axis; 0 where they are equal."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    equal = gaps == 0
    return equal.where(0, 1 / equal.where(1, gaps))


# --- Cholesky -------------------------------------------------------------------------------------


def _cholesky(x: Tensor) -> State:
    return (cholesky_factor(x.tril() + transposed(x.tril(-1))).contiguous(),)


class _Cholesky(Function):
    """Gradient: Murray, "Differentiation of the Cholesky decomposition", 2016."""

    def forward(self, x: Tensor) -> Tensor:
        factor, = computed(_cholesky, x, steps=x.shape[-1])
        self.save_for_backward(factor)
        return factor

    def backward(self, gradient: Tensor) -> Tensor:
        from tinygrad.functional.equations import solve_triangular

        factor, = self.saved_tensors
        assert factor is not None
        inner = product(transposed(factor), gradient).tril()
        inner = (inner - inner * identity(inner, inner.shape[-1]) * 0.5).contiguous()
        left = solve_triangular(factor, inner, upper=False, transpose=True)
        full = transposed(solve_triangular(factor, transposed(left), upper=False, transpose=True))
        # only the lower triangle was read
        both = full + transposed(full)
        return both.tril() - identity(both, both.shape[-1]) * full


def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular L with L L^T the matrix: shape (..., n, n), of which the lower triangle is read.

    With `upper`, the transposed of that, from the upper triangle. Where a matrix is not positive definite,
    the result has NaN. Raises ValueError for matrices that are not square.

    >>> Tensor([[4., 2.], [2., 5.]]).cholesky().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    check_matrix("cholesky", self, square=True)
    kind, wide = compute_dtype(self)
    x = self.cast(wide)
    factor = _Cholesky.apply(transposed(x) if upper else x)
    result: Tensor = (transposed(factor) if upper else factor).cast(kind)
    return result


# --- QR -------------------------------------------------------------------------------------------


def _in_own_space(gradient: Tensor, own: Tensor, others: Tensor) -> Tensor:
    """The gradient at the `own` columns of an orthogonal matrix, given that at all of them.

    When those change, the `others` change as they must to stay orthogonal, without a rotation among
    themselves.
    """
    n = own.shape[-1]
    if not others.shape[-1]:
        return gradient
    return gradient[..., :n] - product(others, product(transposed(gradient[..., n:]), own))


def _qr(x: Tensor) -> State:
    q, r = qr_factor(x)
    return q.contiguous(), r.contiguous()


class _QR(Function):
    """Gradient: Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010; wide
    matrices as Roberts and Roberts, "QR and LQ decomposition matrix backpropagation algorithms", 2020.

    The columns of Q beyond those of the matrix are known only as a space. Their derivative is the one
    without a rotation inside of that space.
    """

    def forward(self, x: Tensor) -> State:
        result = computed(_qr, x, steps=min(x.shape[-2:]))
        self.save_for_backward(x, *result)
        return result

    def backward(self, at_q: Tensor, at_r: Tensor) -> Tensor:
        from tinygrad.functional.equations import solve_triangular

        x, q, r = (t for t in self.saved_tensors if t is not None)
        rows, columns = x.shape[-2:]
        n = min(rows, columns)
        own, others = q[..., :n], q[..., n:]
        at_own = _in_own_space(at_q, own, others)
        at_own = at_own + product(x[..., n:], transposed(at_r[..., :n, n:])) if columns > n else at_own
        square = r[..., :n, :n]
        inner = (product(square, transposed(at_r[..., :n, :n])) - product(transposed(at_own), own)).tril()
        symmetric = (inner + transposed(inner) - identity(inner, n) * inner).contiguous()
        right = solve_triangular(square, transposed(at_own + product(own, symmetric)), upper=True)
        first = transposed(right)
        return first if columns == n else first.cat(product(own, at_r[..., :n, n:]), dim=-1)


def qr(self: Tensor, mode: str = "complete") -> State:
    """(Q, R) with Q R the matrix, Q orthogonal and R upper triangular, by Householder reflections.

    Shapes for (..., m, n) and k = min(m, n): Q (..., m, m) and R (..., m, n); with mode="reduced", Q
    (..., m, k) and R (..., k, n). The gradient needs the first k columns to be independent.
    """
    rows, columns = check_matrix("qr", self)
    if mode not in ("complete", "reduced"):
        raise ValueError(f'qr takes mode="complete" or "reduced", got {mode!r}')
    kind, wide = compute_dtype(self)
    q, r = _QR.apply(self.cast(wide))
    size = rows if mode == "complete" else min(rows, columns)
    return q[..., :size].cast(kind), r[..., :size, :].cast(kind)


# --- singular values ------------------------------------------------------------------------------

SVD_SWEEPS = 12
"""Sweeps of Jacobi rotations over all pairs of columns, at most: float64 converges in fewer for matrices up
to hundreds. All are made where values are not known, or columns are too small to be orthogonal."""


def _rotate_pairs(identity_rows: Tensor, stacked: Tensor, k: Tensor) -> State:
    """One round of a tournament: every column is rotated against another one, so that they are orthogonal.

    `stacked` is the matrix over the identity: rotating the columns of both keeps the product of the
    rotations. `identity_rows`, (rows, 1), marks the rows that do not count.
    """
    half = stacked.shape[-1] // 2
    counted = identity_rows.where(0, stacked)
    left, right = stacked[..., :half], stacked[..., half:].flip(-1)
    p, q = counted[..., :half], counted[..., half:].flip(-1)
    squares, gamma = ((a * b).sum(-2, keepdim=True) for a, b in ((counted, counted), (p, q)))
    alpha, beta = squares[..., :half], squares[..., half:].flip(-1)
    still = gamma == 0
    zeta = (beta - alpha) / still.where(1, gamma * 2)
    t = (zeta < 0).where(-1.0, 1.0) / (zeta.abs() + (zeta * zeta + 1).sqrt())
    t = still.where(0, t)
    c = (t * t + 1).rsqrt().contiguous()
    s = (c * t).contiguous()
    row = (left * c - right * s).cat((left * s + right * c).flip(-1), dim=-1)
    # the first column stays, the others move on by one place
    return (row[..., :1].cat(row[..., 1:].roll(1, row.ndim - 1), dim=-1),)


def _is_oblique(x: Tensor) -> State:
    """Whether some cosine between two columns is more than rounding errors (Drmac and Veselic 2008)."""
    gram = product(transposed(x), x)
    norms = diagonal_of(gram).sqrt()
    limit = norms.unsqueeze(-1) * norms.unsqueeze(-2) * (epsilon(x) * x.shape[-2] ** 0.5)
    return (((gram.abs() > limit) & (identity(gram, gram.shape[-1]) == 0)).any(),)


def _sweep(x: Tensor, stacked: Tensor) -> State:
    """Rotations of all pairs of columns of `x`, and whether another sweep is needed."""
    rows, columns = x.shape[-2:]
    is_identity = type(x).arange(rows + columns, device=x.device).reshape(rows + columns, 1) >= rows
    stacked, = iterate(_rotate_pairs, (stacked,), stacked.shape[-1] - 1, given=(is_identity,))
    return stacked, *computed(_is_oblique, stacked[..., :rows, :], steps=0)


def _with_identity(x: Tensor) -> State:
    """The matrix over the identity, with an even number of columns."""
    columns = x.shape[-1]
    return (x.cat(identity(x, columns), dim=-2).pad((0, columns % 2)).contiguous(),)


def _in_descending_order(x: Tensor, stacked: Tensor) -> State:
    """U, S, V of rotated columns, which a column of padding is not among."""
    rows, columns = x.shape[-2:]
    norms = (stacked[..., :rows, :] * stacked[..., :rows, :]).sum(-2).sqrt()
    # a column of padding is zero in both halves, and comes last
    weight = (stacked[..., rows:, :] * stacked[..., rows:, :]).sum(-2)
    order = (weight > 0.5).where(norms, -1).argsort(-1, descending=True)[..., :columns].contiguous()
    values = norms.gather(-1, order).contiguous()
    picked = stacked.gather(-1, order.unsqueeze(-2).expand(*x.shape[:-2], rows + columns, columns))
    zero = values == 0
    scale = zero.where(0, 1 / zero.where(1, values))
    u = picked[..., :rows, :] * scale.unsqueeze(-2)
    return u.contiguous(), values, picked[..., rows:, :].contiguous()


def _jacobi(x: Tensor) -> State:
    """(U, S, V) of matrices with at least as many rows as columns: U as the matrix, V square.

    One-sided Jacobi rotations make the columns orthogonal (Demmel and Veselic 1992): all pairs of a round,
    chosen as in a tournament, rotate at once. Columns of U for singular values of zero are zero.
    """
    columns = x.shape[-1]
    stacked, = computed(_with_identity, x, steps=0)
    for _ in range(SVD_SWEEPS if columns > 1 else 0):
        stacked, is_oblique = computed(_sweep, x, stacked, steps=columns)
        if runs_at_once(stacked) and not is_oblique.item():
            break
    return computed(_in_descending_order, x, stacked, steps=0)


def _completed(u: Tensor, values: Tensor) -> State:
    """The orthonormal columns of `u` with all others that make the matrix square and orthogonal.

    Those of singular values that are zero, up to rounding, are found anew.
    """
    rows, columns = u.shape[-2:]
    q, r = _QR.apply((values > 0).unsqueeze(-2).where(u, 0))
    signs = (diagonal_of(r[..., :columns, :]) < 0).where(-1.0, 1.0)
    counts = values > values[..., :1] * (rows * epsilon(values))
    first = counts.unsqueeze(-2).where(u, q[..., :columns] * signs.unsqueeze(-2))
    return ((first if rows == columns else first.cat(q[..., columns:], dim=-1)).contiguous(),)


class _SVD(Function):
    """Gradient: Townsend, "Differentiating the singular value decomposition", 2016; Wan and Zhang, 2019.

    Where singular values are equal, their vectors have no derivative, and count as constant.
    """

    def forward(self, x: Tensor) -> State:
        u, s, v = _jacobi(x)
        u, = computed(_completed, u, s, steps=s.shape[-1])
        result = u, s, v
        self.save_for_backward(*result)
        return result

    def backward(self, at_u: Tensor, at_s: Tensor, at_v: Tensor) -> Tensor:
        u, s, v = (t for t in self.saved_tensors if t is not None)
        n = s.shape[-1]
        own, others = u[..., :n], u[..., n:]
        at_own = _in_own_space(at_u, own, others)
        gaps = inverse_gaps(s * s)
        both = product(transposed(own), at_own), product(transposed(v), at_v)
        left, right = ((a - transposed(a)) * gaps for a in both)
        column, row = s.unsqueeze(-2), s.unsqueeze(-1)
        inner = left * column + row * right + identity(left, n) * at_s.unsqueeze(-1)
        result = product(product(own, inner.contiguous()), transposed(v))
        if others.shape[-1]:
            zero = s == 0
            scale = zero.where(0, 1 / zero.where(1, s)).unsqueeze(-2)
            outside = at_own - product(own, product(transposed(own), at_own))
            result = result + product((outside * scale).contiguous(), transposed(v))
        return result


def svd(self: Tensor, full_matrices: bool = True) -> State:
    """(U, S, V^T) with U diag(S) V^T the matrix, the singular values S in descending order.

    Shapes for (..., m, n) and k = min(m, n): U (..., m, m), S (..., k), V^T (..., n, n); without
    `full_matrices`, U (..., m, k) and V^T (..., k, n). By Jacobi rotations, up to 12 n rounds. Vectors of
    equal singular values have no derivative; those of S are right.

    >>> Tensor([[3.0, 0.0], [0.0, -4.0]]).svd()[1].tolist()
    [4.0, 3.0]
    """
    rows, columns = check_matrix("svd", self)
    if rows < columns:
        u, s, vt = svd(transposed(self), full_matrices)
        return transposed(vt), s, transposed(u)
    kind, wide = compute_dtype(self)
    u, s, v = _SVD.apply(self.cast(wide))
    u = u if full_matrices else u[..., :columns]
    return u.cast(kind), s.cast(kind), transposed(v).cast(kind)


# --- eigenvalues ----------------------------------------------------------------------------------


def _shifted(x: Tensor) -> State:
    """The symmetric matrix of a lower triangle, and that with its eigenvalues moved above zero: so they are
    the singular values."""
    whole = x.tril() + transposed(x.tril(-1))
    above_radius = whole.abs().sum(-1).max(-1).reshape(*x.shape[:-2], 1, 1) * 1.125
    return whole, whole + identity(x, x.shape[-1]) * above_radius


def _in_ascending_order(whole: Tensor, vectors: Tensor) -> State:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    v = vectors.flip(-1)
    values = (v * product(whole, v)).sum(-2).contiguous()
    order = values.argsort(-1).contiguous()
    return values.gather(-1, order).contiguous(), v.gather(
        -1, order.unsqueeze(-2).expand(*whole.shape)).contiguous()


class _Eigh(Function):
    """Gradient: Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
    differentiation", 2008, section 3.1."""

    def forward(self, x: Tensor) -> State:
        whole, shifted = computed(_shifted, x, steps=0)
        values, vectors = computed(_in_ascending_order, whole, _jacobi(shifted)[2], steps=0)
        self.save_for_backward(values, vectors)
        return values, vectors

    def backward(self, at_values: Tensor, at_vectors: Tensor) -> Tensor:
        values, vectors = (t for t in self.saved_tensors if t is not None)
        inner = product(transposed(vectors), at_vectors) * inverse_gaps(values)
        inner = inner + identity(inner, inner.shape[-1]) * at_values.unsqueeze(-1)
        full = product(product(vectors, inner.contiguous()), transposed(vectors))
        both = full + transposed(full)
        return both.tril() - identity(both, both.shape[-1]) * full


def eigh(self: Tensor, UPLO: str = "L") -> State:
    """(w, V) with V diag(w) V^T the symmetric matrix (..., n, n), of which the lower triangle is read, or the
    upper one (UPLO="U").

    Eigenvalues w (..., n) ascend; V (..., n, n) has the eigenvectors in its columns. The error of w is of the
    order of rounding the largest. Vectors of equal eigenvalues have no derivative; those of w are right.

    >>> Tensor([[2.0, 0.0], [0.0, -1.0]]).eigh()[0].tolist()
    [-1.0, 2.0]
    """
    check_matrix("eigh", self, square=True)
    if UPLO not in ("L", "U"):
        raise ValueError(f'eigh takes UPLO="L" or "U", got {UPLO!r}')
    kind, wide = compute_dtype(self)
    values, vectors = _Eigh.apply((self if UPLO == "L" else transposed(self)).cast(wide))
    return values.cast(kind), vectors.cast(kind)
