"""What is said of matrices by their sizes and singular values: norms, condition, rank; and products of
several.

Names and arguments are those of `torch.linalg`. What takes singular values costs as much as `svd`.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from tinygrad.dtype import DTypeLike, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.decompositions import eigh, svd
from tinygrad.functional.equations import inv, solve
from tinygrad.functional.factors import check_matrix, epsilon
from tinygrad.functional.movement import axes_of
from tinygrad.functional.pytorch_names import norm
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Axes = int | Sequence[int] | None
ORDERS = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


# --- singular values and eigenvalues ------------------------------------------------------------------------


def svdvals(self: Tensor) -> Tensor:
    """The singular values of matrices (..., m, n), descending: (..., min(m, n)).

    >>> Tensor([[3.0, 0.0], [0.0, -4.0]]).svdvals().tolist()
    [4.0, 3.0]
    """
    return svd(self, full_matrices=False)[1]


def eigvalsh(self: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices (..., n, n), ascending, of which the lower triangle is read, or
    the upper one ("U").

    >>> Tensor([[2.0, 0.0], [0.0, -1.0]]).eigvalsh().tolist()
    [-1.0, 2.0]
    """
    return eigh(self, UPLO)[0]


def _sizes_of_directions(x: Tensor, hermitian: bool) -> Tensor:
    """The singular values; of a symmetric matrix in any order."""
    return eigvalsh(x).abs() if hermitian else svdvals(x)


def matrix_rank(self: Tensor, tol: float | Tensor | None = None, hermitian: bool = False, *,
                atol: float | Tensor | None = None, rtol: float | Tensor | None = None) -> Tensor:
    """How many singular values of matrices (..., m, n) are above `atol` and above `rtol` times the largest:
    the dtype's epsilon times max(m, n), unless one of them is given. `tol` is another name of `atol`. Of
    `hermitian` matrices the lower triangle is read. As int32, (...,).

    >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
    1
    """
    check_matrix("matrix_rank", self, square=hermitian)
    if tol is not None and atol is not None:
        raise TypeError("matrix_rank: tol and atol are two names of one argument")
    x = as_real(self)
    values = _sizes_of_directions(x, hermitian)
    atol = tol if atol is None else atol
    if rtol is None:
        rtol = epsilon(values) * max(x.shape[-2:], default=1) if atol is None else 0.0
    if not values.shape[-1]:
        return values.sum(-1).int()
    lowest, share = (limit.unsqueeze(-1) if isinstance(limit, type(self)) else limit
                     for limit in (0.0 if atol is None else atol, rtol))
    return (values > (values.max(-1, keepdim=True) * share).maximum(lowest)).sum(-1)


# --- norms --------------------------------------------------------------------------------------------------


def vector_norm(self: Tensor, ord: float = 2, dim: Axes = None, keepdim: bool = False, *,
                dtype: DTypeLike | None = None) -> Tensor:
    """(sum of abs(x) ** ord) ** (1 / ord) over some axes, or all: see `norm`. `dtype` is what it is computed
    in.

    >>> Tensor([[3.0, 4.0], [0.0, 2.0]]).vector_norm(dim=1).tolist()
    [5.0, 2.0]
    """
    if not isinstance(ord, (int, float)):
        raise ValueError(f"vector_norm takes a number as ord, got {ord!r}")
    return norm(self if dtype is None else self.cast(dtype), ord, dim, keepdim)


def matrix_norm(self: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False,
                *, dtype: DTypeLike | None = None) -> Tensor:
    """The norms of the matrices that two axes are: "fro", the root of the sum of squares; "nuc", the sum of
    the singular values; 2 and -2, the largest and the smallest of them; 1 and -1, the largest and the
    smallest sum of sizes of a column, infinity and its negative, of a row.

    >>> Tensor([[3.0, 4.0], [0.0, -2.0]]).matrix_norm(1).item()
    6.0
    """
    if ord not in ORDERS:
        raise ValueError(f"matrix_norm takes ord {', '.join(map(repr, ORDERS))}, got {ord!r}")
    axes = axes_of("matrix_norm", self, dim)
    if len(axes) != 2:
        raise ValueError(f"matrix_norm takes two axes of a tensor, got dim={dim} and shape {self.shape}")
    x = as_real(self if dtype is None else self.cast(dtype))
    if ord == "fro":
        return norm(x, 2, axes, keepdim)
    rows = x.movedim(axes, (-2, -1))
    if ord in ("nuc", 2, -2):
        values = svdvals(rows)
        found = values.sum(-1) if ord == "nuc" else values[..., 0 if ord == 2 else -1]
    else:
        sums = rows.abs().sum(-2 if abs(float(ord)) == 1 else -1)
        found = sums.max(-1) if float(ord) > 0 else sums.min(-1)
    if not keepdim:
        return found
    return found.reshape([1 if axis in axes else n for axis, n in enumerate(x.shape)])


def cond(self: Tensor, p: float | str | None = None) -> Tensor:
    """How much solving with matrices enlarges errors: the norm `p` (see `matrix_norm`; None is 2) times that
    of the inverse; infinity of a singular matrix.

    >>> Tensor([[2.0, 0.0], [0.0, 0.5]]).cond().item()
    4.0
    """
    if p in (None, 2, -2):
        check_matrix("cond", self)
        values = svdvals(self)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest
    check_matrix("cond", self, square=True)
    found = matrix_norm(self, p or "fro") * matrix_norm(inv(self), p or "fro")
    return (found.isnan() & ~self.isnan().any((-2, -1))).where(math.inf, found)


# --- products -----------------------------------------------------------------------------------------------


def vecdot(self: Tensor, x: Tensor, *, dim: int = -1) -> Tensor:
    """The sums of products along an axis; the others broadcast.

    >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 10])).tolist()
    [21, 43]
    """
    shape = broadcast_shape("vecdot", self.shape, x.shape)
    dtype = promote(self.dtype, x.dtype)
    return (self.expand(shape).movedim(dim, -1).unsqueeze(-2) @ x.expand(shape).movedim(dim, -1).unsqueeze(-1)
            ).cast(dtype).squeeze(-1).squeeze(-1)


@lru_cache(maxsize=1 << 10)
def _cheapest_order(sizes: tuple[int, ...]) -> tuple[int, int]:
    """What the products of matrices of sizes[i] x sizes[i + 1] cost, and the best pairs: a number of a
    matrix, or two such."""
    if len(sizes) == 2:
        return 0, 1
    found = []
    for cut in range(1, len(sizes) - 1):
        (left, _), (right, _) = _cheapest_order(sizes[:cut + 1]), _cheapest_order(sizes[cut:])
        found.append((left + right + sizes[0] * sizes[cut] * sizes[-1], cut))
    return min(found)


def _multiplied(matrices: Sequence[Tensor]) -> Tensor:
    if len(matrices) == 1:
        return matrices[0]
    _, cut = _cheapest_order((*(x.shape[-2] for x in matrices), matrices[-1].shape[-1]))
    return _multiplied(matrices[:cut]) @ _multiplied(matrices[cut:])


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order that takes the fewest multiplications; the first and the
    last may be vectors.

    >>> Tensor.multi_dot([Tensor([[1, 2]]), Tensor([[1], [1]]), Tensor([[3, 4]])]).tolist()
    [[9, 12]]
    """
    if len(tensors) < 2:
        raise ValueError(f"multi_dot takes two tensors at least, got {len(tensors)}")
    first, *_, last = tensors
    matrices = [first.unsqueeze(0) if first.ndim == 1 else first, *tensors[1:-1],
                last.unsqueeze(1) if last.ndim == 1 else last]
    if any(x.ndim != 2 for x in matrices) or any(a.shape[1] != b.shape[0] for a, b in pairwise(matrices)):
        raise ValueError("multi_dot takes matrices, each with as many rows as the one before has columns, "
                         f"got shapes {[tuple(x.shape) for x in tensors]}")
    found = _multiplied(matrices)
    found = found.squeeze(0) if first.ndim == 1 else found
    return found.squeeze(-1) if last.ndim == 1 else found


def chain_matmul(*matrices: Tensor) -> Tensor:
    """`multi_dot` of matrices, given one by one; of one that itself."""
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


# --- equations of tensors -----------------------------------------------------------------------------------


def tensorinv(self: Tensor, ind: int = 2) -> Tensor:
    """The inverse for `tensordot` over `ind` axes: shape (a, b), each several axes of as many items, gives
    (b, a).

    >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).tensorinv(1).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    first, last = self.shape[:max(ind, 0)], self.shape[max(ind, 0):]
    if ind < 1 or prod(first) != prod(last):
        raise ValueError(f"tensorinv takes as many items in the first {ind} axes as in the others, and "
                         f"ind >= 1, got shape {self.shape}")
    return inv(self.reshape(prod(first), prod(last))).reshape(*last, *first)


def tensorsolve(self: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(self, X, X.ndim) = `B`: self has the axes of B, then those of X, of as many items;
    axes `dims` of it are moved behind the others before."""
    last = [] if dims is None else list(axes_of("tensorsolve", self, dims))
    a = self.permute([i for i in range(self.ndim) if i not in last] + last)
    shape = a.shape[B.ndim:]
    if prod(shape) != B.numel() or a.numel() != B.numel() ** 2:
        raise ValueError("tensorsolve takes the axes of the right side, then others of as many items, got "
                         f"shapes {a.shape} and {B.shape}")
    return solve(a.reshape(B.numel(), B.numel()), B.flatten()).reshape(shape)
