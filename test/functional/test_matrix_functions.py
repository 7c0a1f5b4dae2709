"""Norms, condition, rank and products of matrices: at the edges, and what is refused."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.functional.matrix_functions import _cheapest_order


def test_a_singular_matrix_has_no_end_of_condition() -> None:
    singular = Tensor([[1.0, 2.0], [2.0, 4.0]])
    assert [singular.cond(p).item() for p in (1, "fro", math.inf)] == [math.inf] * 3
    assert math.isnan(Tensor([[math.nan, 0.0], [0.0, 1.0]]).cond(1).item())


@pytest.mark.parametrize("sizes, expected", [
    ((10, 100, 5, 50), 7500),  # (ab)c, of 75000 for a(bc): Cormen and others, section 14.2
    ((30, 35, 15, 5, 10, 20, 25), 15125)])
def test_a_chain_of_products_takes_the_fewest_multiplications(sizes: tuple[int, ...], expected: int) -> None:
    assert _cheapest_order(sizes)[0] == expected


def test_ranks_by_limits_of_each_matrix() -> None:
    x = np.stack([np.diag([3.0, 2.0, 1.0]), np.diag([3.0, 0.5, 0.2])])
    limits = Tensor([1.5, 0.1], dtype="float64")
    assert Tensor(x).matrix_rank(atol=limits).tolist() == [2, 3]
    assert Tensor(x).matrix_rank(1.5).tolist() == [2, 1]
    assert Tensor(x).matrix_rank(rtol=0.5).tolist() == [2, 1]


SQUARE = Tensor.eye(3)


@pytest.mark.parametrize("call, message", [
    (lambda: SQUARE.matrix_norm(3), "matrix_norm takes ord 'fro', 'nuc', inf, -inf, 1, -1, 2, -2, got 3"),
    (lambda: SQUARE.matrix_norm(dim=(0,)), r"matrix_norm takes two axes of a tensor, got dim=\(0,\)"),
    (lambda: SQUARE.matrix_norm(dim=(0, -2)), r"matrix_norm: axis \(0, -2\) names an axis twice"),
    (lambda: SQUARE.vector_norm("fro"), "vector_norm takes a number as ord, got 'fro'"),  # type: ignore[arg-type]
    (lambda: SQUARE[:2].cond(1), r"cond takes square matrices, of shape \(..., n, n\), got shape \(2, 3\)"),
    (lambda: SQUARE.eigvalsh("B"), "eigh takes UPLO=\"L\" or \"U\", got 'B'"),
    (lambda: SQUARE[0].svdvals(), "svd takes matrices"),
    (lambda: Tensor.multi_dot([SQUARE]), "multi_dot takes two tensors at least, got 1"),
    (lambda: Tensor.multi_dot([SQUARE, SQUARE[:2]]), "multi_dot takes matrices, each with as many rows"),
    (lambda: SQUARE.vecdot(SQUARE[:2]), "vecdot"),
    (lambda: SQUARE.tensorinv(), r"tensorinv takes as many items in the first 2 axes .* got shape \(3, 3\)"),
    (lambda: SQUARE.tensorsolve(SQUARE), "tensorsolve takes the axes of the right side"),
    (lambda: SQUARE.solve(SQUARE[0], left=False), "solve takes matrices"),
])
def test_what_cannot_be_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
