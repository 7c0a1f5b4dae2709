"""Attention as users spell it: what a mask of places hides is neither computed nor read, nor in gradients."""
from __future__ import annotations

import math

import numpy as np
import pytest
from arrays import Array, normal

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.graph.ops import Ops

LENGTH, SIZE = 67, 16
EVERYWHERE = np.ones((LENGTH, LENGTH), dtype=bool)
CAUSAL = np.tril(EVERYWHERE)
WINDOW = CAUSAL & np.triu(EVERYWHERE, -8)
LATER = np.triu(EVERYWHERE)
STRICT = np.tril(EVERYWHERE, -1)


def places() -> tuple[Tensor, Tensor]:
    return Tensor.arange(LENGTH).reshape(1, LENGTH), Tensor.arange(LENGTH).reshape(LENGTH, 1)


def by_hand(scores: Tensor) -> Tensor:
    weights = (scores - scores.max(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def by_logarithm(scores: Tensor) -> Tensor:
    return scores.log_softmax(-1).exp()


def bools() -> Tensor:
    return Tensor.ones(LENGTH, LENGTH, dtype=dtypes.bool).tril()


def windowed(scores: Tensor) -> Tensor:
    keys, queries = places()
    return ((keys <= queries) & (keys > queries - 9)).where(scores, -math.inf).softmax(-1)


def added(scores: Tensor) -> Tensor:
    return (scores + Tensor.full((LENGTH, LENGTH), -math.inf).triu(1)).softmax(-1)


def filled(scores: Tensor) -> Tensor:
    return scores.masked_fill(Tensor.ones(LENGTH, LENGTH).tril() == 0, -math.inf).softmax(-1)


def later(scores: Tensor) -> Tensor:
    keys, queries = places()
    return (keys < queries).where(-math.inf, scores).softmax(-1)


SPELLINGS = {
    "bools": (lambda s: bools().where(s, -math.inf).softmax(-1), CAUSAL),
    "filled": (filled, CAUSAL),
    "added": (added, CAUSAL),
    "by hand": (lambda s: by_hand(bools().where(s, -math.inf)), CAUSAL),
    "by logarithm": (lambda s: by_logarithm(bools().where(s, -math.inf)), CAUSAL),
    "masked, then scaled": (lambda s: (bools().where(s * 4, -math.inf) / 4).softmax(-1), CAUSAL),
    "window": (windowed, WINDOW),
    "later": (later, LATER),
}


def attended(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Array]:
    """The weights and the result, in float64."""
    scores = np.where(mask, q @ k.swapaxes(-1, -2) / math.sqrt(SIZE), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights, weights @ v


def inputs(count: int) -> list[Array]:
    return [normal(2, LENGTH, SIZE, seed=i).astype(np.float64) for i in range(count)]


def spelled(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return SPELLINGS[name][0](q @ k.transpose(-2, -1) / math.sqrt(SIZE)) @ v


def shortened_loops(*results: Tensor) -> int:
    """How many loops of these results' kernels end, or begin, where a mask says."""
    found = 0
    for item in results[0].schedule(*results[1:]):
        if item.ast.op is Ops.SINK:
            loops = [n for n in stages_of(item.ast, "CPU").optimised.toposort() if n.op is Ops.RANGE]
            found += sum(any(bound.op is not Ops.CONST for bound in loop.src) for loop in loops)
    return found


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_result_is_attentions(name: str) -> None:
    q, k, v = inputs(3)
    got = spelled(name, *(Tensor(x.astype(np.float32)) for x in (q, k, v)))
    np.testing.assert_allclose(got.numpy(), attended(q, k, v, SPELLINGS[name][1])[1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_gradients_are_attentions(name: str) -> None:
    q, k, v, g = inputs(4)
    tensors = [Tensor(x.astype(np.float32)).realize() for x in (q, k, v)]
    weights, _ = attended(q, k, v, SPELLINGS[name][1])
    of_weights = g @ v.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdims=True)) / math.sqrt(SIZE)
    wanted = of_scores @ k, of_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g
    result = (spelled(name, *tensors) * Tensor(g.astype(np.float32))).sum()
    for got, exact in zip(result.gradient(*tensors), wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_a_mask_hides_is_left_out(name: str) -> None:
    q, k, v = (Tensor.empty(2, LENGTH, SIZE) for _ in range(3))
    ours = spelled(name, q, k, v)
    assert shortened_loops(ours) > 0
    if SPELLINGS[name][1] is CAUSAL and name not in ("added", "masked, then scaled"):
        library = q.scaled_dot_product_attention(k, v, is_causal=True)
        assert shortened_loops(spelled(name, q, k, v)) == shortened_loops(library)


@pytest.mark.parametrize("name", ["bools", "filled", "added", "by hand", "window"])
def test_the_backward_pass_leaves_it_out_too(name: str) -> None:
    tensors = [Tensor.empty(2, LENGTH, SIZE) for _ in range(3)]
    gradients = spelled(name, *tensors).square().sum().gradient(*tensors)
    full = (tensors[0] @ tensors[1].transpose(-2, -1)).softmax(-1) @ tensors[2]
    assert shortened_loops(*full.square().sum().gradient(*tensors)) == 0
    for gradient in gradients:
        assert shortened_loops(gradient) > 0


def test_a_value_that_no_query_sees_does_not_matter() -> None:
    q, k, v = inputs(3)
    spoiled = v.copy()
    spoiled[:, -1] = np.nan
    got = spelled("bools", *(Tensor(x.astype(np.float32)) for x in (q, k, spoiled))).numpy()
    np.testing.assert_allclose(got[:, :-1], attended(q, k, v, CAUSAL)[1][:, :-1], rtol=2e-5, atol=2e-6)
    assert np.isnan(got[:, -1]).all()


def test_a_row_of_scores_that_are_nan_is_nan() -> None:
    q, k, v = inputs(3)
    q[:, 5] = np.nan
    got = spelled("bools", *(Tensor(x.astype(np.float32)) for x in (q, k, v))).numpy()
    assert np.isnan(got[:, 5]).all() and not np.isnan(np.delete(got, 5, 1)).any()


def test_a_row_that_is_hidden_whole_stays_nan() -> None:
    """As NumPy and PyTorch have it: nothing minus infinity, divided by nothing."""
    q, k, v = inputs(3)
    keys, queries = places()
    scores = Tensor(q.astype(np.float32)) @ Tensor(k.astype(np.float32)).transpose(-2, -1) / math.sqrt(SIZE)
    got = ((keys < queries).where(scores, -math.inf).softmax(-1) @ Tensor(v.astype(np.float32))).numpy()
    assert np.isnan(got[:, 0]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got[:, 1:], attended(q, k, v, STRICT)[1][:, 1:], rtol=2e-5, atol=2e-6)


def test_weights_that_are_read_otherwise_too_are_whole() -> None:
    q, k, v = inputs(3)
    scores = Tensor(q.astype(np.float32)) @ Tensor(k.astype(np.float32)).transpose(-2, -1) / math.sqrt(SIZE)
    weights = bools().where(scores, -math.inf).softmax(-1)
    result = weights @ Tensor(v.astype(np.float32))
    Tensor.realize(result, weights)
    exact, product = attended(q, k, v, CAUSAL)
    np.testing.assert_allclose(weights.numpy(), exact, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(result.numpy(), product, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("value", [0, 1, 0.5])
@pytest.mark.parametrize("compare", ["eq", "ne", "lt", "gt"])
def test_a_choice_that_is_compared_is_its_condition(compare: str, value: float) -> None:
    x = normal(5)
    condition = Tensor(x) > 0
    got = getattr(condition.where(1.0, 0.0), compare)(value)
    by_numpy = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "gt": np.greater}[compare]
    wanted = by_numpy((x > 0) * 1.0, value)
    np.testing.assert_array_equal(got.numpy(), wanted)
    np.testing.assert_array_equal(getattr(condition.cast(dtypes.int32), compare)(value).numpy(), wanted)
