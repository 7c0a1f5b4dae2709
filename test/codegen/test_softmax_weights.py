"""Powers that only the sums of a softmax see are normal numbers or zero; all others have every digit."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.expand import expand
from tinygrad.codegen.softmax_weights import with_weights_marked
from tinygrad.codegen.transcendental import WEIGHT
from tinygrad.graph.ops import Ops

SCORES = np.where(np.random.default_rng(0).random((6, 49, 49)) < 0.3, -100, 0).astype(np.float32)
VALUES = np.random.default_rng(1).standard_normal((6, 49, 16), dtype=np.float32)


def marks(result: Tensor) -> list[bool]:
    """For each power in the kernels that compute a result, whether it is marked."""
    found = []
    for item in result.schedule():
        nest = expand(with_weights_marked(stages_of(item.ast, "CPU").optimised))
        found += [n.arg == WEIGHT for n in nest.toposort() if n.op is Ops.EXP2]
    return found


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


@pytest.mark.parametrize("weights", [softmax, lambda x: (x - x.max(-1, keepdim=True)).exp2()])
def test_attention_has_weights(weights: Callable[[Tensor], Tensor]) -> None:
    scores, values = Tensor(SCORES).realize(), Tensor(VALUES).realize()
    found = marks(weights(scores) @ values)
    assert found and all(found)


def test_attention_with_a_mask_of_small_weights() -> None:
    scores, values = Tensor(SCORES).realize(), Tensor(VALUES).realize()
    exact = np.exp(SCORES - SCORES.max(-1, keepdims=True, initial=-np.inf), dtype=np.float64)
    exact = exact / exact.sum(-1, keepdims=True) @ VALUES
    np.testing.assert_allclose((softmax(scores) @ values).numpy(), exact, atol=1e-6)


def test_the_sum_of_a_cross_entropy_has_weights() -> None:
    found = marks(Tensor(SCORES).realize().log_softmax(-1))
    assert found and all(found)


def other_rows(x: Tensor) -> Tensor:
    return Tensor(SCORES).realize().max(-1, keepdim=True)


@pytest.mark.parametrize("result", [softmax, Tensor.exp, lambda x: x.exp().sum(-1),
                                    lambda x: (x - x.min(-1, keepdim=True)).exp().sum(-1),
                                    lambda x: (x - x.max()).exp().sum(-1),
                                    lambda x: (x - x.max((-2, -1), keepdim=True)).exp().sum(-1),
                                    lambda x: (x - other_rows(x)).exp().sum(-1)])
def test_what_is_seen_or_is_no_weight_has_every_digit(result: Callable[[Tensor], Tensor]) -> None:
    found = marks(result(Tensor(SCORES).realize()))
    assert found and not any(found)


def test_a_softmax_that_is_seen_keeps_the_smallest_numbers() -> None:
    row = np.array([0, -100, -95, -88], np.float32)
    exact = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    np.testing.assert_allclose(Tensor(row).softmax().numpy(), exact, rtol=1e-6, atol=1.5e-45)


def test_rows_far_below_the_largest_of_all_keep_their_sums() -> None:
    rows = np.array([[0, 1, 2], [-90, -91, -92]], np.float32)
    powers = (Tensor(rows) - Tensor(rows).max()).exp()
    exact = np.exp(rows - 2.0, dtype=np.float64)
    np.testing.assert_allclose((powers / powers.sum(-1, keepdim=True)).numpy(),
                               exact / exact.sum(-1, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(powers.sum(-1).log().numpy(), np.log(exact.sum(-1)), rtol=1e-4)
