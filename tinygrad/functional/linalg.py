"""Products of matrices, spelled as movement, multiplication and a sum.

There is no primitive for a matrix product. `a @ b` multiplies a[..., i, 1, k] with b[..., 1, j, k] and sums
over the last axis; the compiler recognises the contraction by its axes. Half types are widened before they
multiply, so that products are exact and accumulate in float32, as matrix units do.
"""
from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from tinygrad.dtype import DTypeLike, accumulate_dtype, promote, to_dtype
from tinygrad.functional.elementwise import expand_to
from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.ops import Ops
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _sum_of_products(a: UOp, b: UOp) -> UOp:
    """The sum over the last axis of two nodes of equal dtype, broadcast; without that axis."""
    wide = accumulate_dtype(a.dtype) if a.dtype.is_float else a.dtype
    shape = broadcast_shape("dot", a.shape, b.shape)
    product = expand_to(a.cast(wide), shape) * expand_to(b.cast(wide), shape)
    return product.reduce(Ops.ADD, (len(shape) - 1,)).reshape(shape[:-1])


def dot(self: Tensor, w: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """The matrix product: shapes (..., m, k) and (..., k, n) give (..., m, n); leading axes broadcast.

    A vector counts as a row on the left, a column on the right, and its axis is dropped from the result.
    `dtype` is that of the result. Raises ValueError where the summed axes differ.

    >>> Tensor([[1, 2], [3, 4]]).dot(Tensor([[1, 0], [0, 2]])).tolist()
    [[1, 4], [3, 8]]
    """
    if self.ndim == 0 or w.ndim == 0:
        raise ValueError(f"dot takes tensors with axes, got shapes {self.shape} and {w.shape}; multiply with "
                         "*")
    summed = -min(w.ndim, 2)
    if self.shape[-1] != w.shape[summed]:
        raise ValueError(f"dot of shapes {self.shape} and {w.shape}: the last axis of the first has "
                         f"{self.shape[-1]} items, axis {summed} of the second {w.shape[summed]}; they must "
                         "be equal")
    kind = promote(self.dtype, w.dtype)
    if kind.is_bool:
        raise TypeError("dot takes numbers, got bools; cast them first")
    a, b = self.uop.cast(kind), w.uop.cast(kind)
    if w.ndim > 1:
        a = a.reshape((*a.shape[:-1], 1, a.shape[-1]))
        order = (*range(w.ndim - 2), w.ndim - 1, w.ndim - 2)
        b = b.permute(order)
        if self.ndim > 1:
            b = b.reshape((*b.shape[:-2], 1, *b.shape[-2:]))
    broadcast_shape("dot", self.shape[:-2], w.shape[:-2])
    return type(self).of(_sum_of_products(a, b).cast(kind if dtype is None else to_dtype(dtype)), self, w)


def matmul(self: Tensor, x: Any, reverse: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """`self @ x`, or `x @ self` with `reverse`; see `dot`.

    >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([[1, 1], [0, 1]])).tolist()
    [[1, 3], [3, 7]]
    """
    other = x if isinstance(x, type(self)) else type(self)(x, requires_grad=False)
    return dot(other, self, dtype) if reverse else dot(self, other, dtype)


def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None,
           dtype: DTypeLike | None = None) -> Tensor:
    """`self @ weight + bias`; a weight of one axis multiplies item by item.

    >>> Tensor([1.0, 2.0]).linear(Tensor([[1.0, 0.0], [0.0, 3.0]]), Tensor([0.5, 0.5])).tolist()
    [1.5, 6.5]
    """
    x, w = (self, weight) if dtype is None else (self.cast(dtype), weight.cast(dtype))
    product = x * w if weight.ndim == 1 else dot(x, w)
    if bias is None:
        return product
    return product + (bias if dtype is None else bias.cast(dtype))


# --- einsum -------------------------------------------------------------------------------------------------


def _read_formula(formula: str, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """The letters of each operand's axes and of the result's, ellipses replaced by letters of their own."""
    if not isinstance(formula, str):
        raise TypeError(f"einsum takes a formula first, as a string, got a {type(formula).__name__}")
    left, arrow, right = formula.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {formula!r} has {len(terms)} terms, but {len(operands)} operands were "
                         "given")
    free = [c for c in string.ascii_letters if c not in formula]
    most = 0
    spelled = []
    for term, x in zip(terms, operands, strict=True):
        hidden = x.ndim - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term) or term.count("...") > 1:
            raise ValueError(f"einsum: term {term!r} does not fit an operand of shape {x.shape}")
        most = max(most, hidden)
        spelled.append((term, hidden))
    batch = "".join(free[:most])
    inputs = [term.replace("...", batch[most - hidden:]) for term, hidden in spelled]
    if not all(c in string.ascii_letters for term in inputs for c in term):
        raise ValueError(f"einsum: axes are named by letters, got {formula!r}")
    if arrow:
        output = right.replace("...", batch)
    else:
        letters = "".join(inputs)
        output = batch + "".join(sorted(c for c in set(letters) - set(batch) if letters.count(c) == 1))
    if len(set(output)) != len(output) or not set(output) <= set("".join(inputs)):
        raise ValueError(f"einsum: the result's axes {right!r} must each be in a term, and come once")
    return inputs, output


def _one_axis_a_letter(x: Tensor, term: str) -> tuple[Tensor, str]:
    """`x` with repeated letters replaced by the diagonal over their axes."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            if x.shape[first] != x.shape[second]:
                raise ValueError(f"einsum: axis {letter!r} has sizes {x.shape[first]} and {x.shape[second]}")
            x = x.diagonal(0, first, second)
            term = term[:first] + term[first + 1:second] + term[second + 1:] + letter
    return x, term


def _contract(a: Tensor, axes_a: str, b: Tensor, axes_b: str, keep: set[str]) -> tuple[Tensor, str]:
    """The product of two operands, summed over the letters that nothing else needs."""
    letters = list(dict.fromkeys(axes_a + axes_b))
    kept = [c for c in letters if c in keep]
    summed = [c for c in letters if c not in keep]
    order = kept + summed

    def aligned(x: Tensor, term: str) -> Tensor:
        sizes = dict(zip(term, x.shape, strict=True))
        return x.permute([term.index(c) for c in order if c in sizes]).reshape([sizes.get(c,
                                                                                          1) for c in order])

    x, y = aligned(a, axes_a), aligned(b, axes_b)
    for c, m, n in zip(order, x.shape, y.shape, strict=True):
        if m != n and 1 not in (m, n):
            raise ValueError(f"einsum: axis {c!r} has sizes {m} and {n}")
    return (contracted(x, y, len(kept)) if summed else x * y), "".join(kept)


@memoised
def contracted(self: Tensor, other: Tensor, kept: int) -> Tensor:
    """The products of two tensors of equally many axes, broadcast, summed over those behind the first
    `kept`."""
    kind = promote(self.dtype, other.dtype)
    shape = broadcast_shape("einsum", self.shape, other.shape)
    wide = accumulate_dtype(kind) if kind.is_float else kind
    product = expand_to(self.uop.cast(wide), shape) * expand_to(other.uop.cast(wide), shape)
    total = product.reduce(Ops.ADD, tuple(range(kept, len(shape)))).reshape(shape[:kept])
    return type(self).of(total.cast(kind), self, other)


def einsum(formula: str, *operands: Any, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of products that a formula names, as NumPy's einsum: "ij,jk->ik" is a matrix product.

    Operands are contracted from left to right, each letter summed as soon as nothing after needs it.

    >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
    [3, 7]
    """
    tensors = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0],
                                                                      (list, tuple)) else operands
    if not tensors:
        raise ValueError("einsum takes at least one operand")
    inputs, output = _read_formula(formula, tensors)
    for x in tensors:
        if not hasattr(x, "permute"):
            raise TypeError(f"einsum takes tensors, got a {type(x).__qualname__}; Tensor(x) makes one")
    terms = [_one_axis_a_letter(x, term) for x, term in zip(tensors, inputs, strict=True)]
    result, axes = terms[0]
    for i, (x, term) in enumerate(terms[1:], 2):
        later = set(output).union(*(t for _, t in terms[i:]))
        result, axes = _contract(result, axes, x, term, later)
    gone = [i for i, c in enumerate(axes) if c not in output]
    if gone:
        result = result.sum(gone, dtype=result.dtype)
        axes = "".join(c for c in axes if c in output)
    result = result.permute([axes.index(c) for c in output])
    return result if dtype is None else result.cast(dtype)


# --- products by PyTorch's names ----------------------------------------------------------------------------


def vdot(self: Tensor, other: Tensor) -> Tensor:
    """The sum of the products of two vectors."""
    if self.ndim != 1 or self.shape != other.shape:
        raise ValueError(f"vdot takes two vectors of one size, got shapes {self.shape} and {other.shape}")
    return self.dot(other)


def addmv(self: Tensor, mat: Tensor, vec: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * self + alpha * mat @ vec; with beta 0, whatever self has."""
    return self.unsqueeze(-1).addmm(mat, vec.unsqueeze(-1), beta, alpha).squeeze(-1)


def addr(self: Tensor, vec1: Tensor, vec2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * self + alpha * (the outer product of two vectors), as `addmv`."""
    return self.addmm(vec1.unsqueeze(1), vec2.unsqueeze(0), beta, alpha)


def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * self + alpha * (the sum of a batch of products), as `addmv`."""
    if batch1.ndim != 3 or batch2.ndim != 3:
        raise ValueError(f"addbmm takes batches of matrices, got shapes {batch1.shape} and {batch2.shape}")
    wide = batch1.permute(1, 0, 2).flatten(1)
    return self.addmm(wide, batch2.flatten(0, 1), beta, alpha)
