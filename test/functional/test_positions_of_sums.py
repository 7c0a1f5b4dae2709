"""Positions of the largest of sums that one kernel could compute at two places, rounded otherwise at each."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import drawn, held

from tinygrad import Tensor
from tinygrad.helpers import GlobalCounters


def attention(x):
    """Each column of (N, T, C) is a head of one number."""
    heads = x.reshape(*x.shape, 1).transpose(1, 2)
    return ((heads @ heads.transpose(2, 3)).softmax(-1) @ heads).transpose(1, 2).reshape(x.shape)


def attention_by_numpy(x):
    heads = x.astype(np.float64).transpose(0, 2, 1)[..., None]
    shares = np.exp(heads * heads.swapaxes(2, 3))
    return (shares / shares.sum(-1, keepdims=True) @ heads)[..., 0].transpose(0, 2, 1)


POSITIONS = {
    "argmax": (lambda x: x.argmax(-1), lambda x: x.argmax(-1)),
    "argsort": (lambda x: x.argsort(-1), lambda x: x.argsort(-1)),
    "topk": (lambda x: x.topk(1)[1], lambda x: x.argmax(-1)[..., None]),
    "values of topk": (lambda x: x.topk(1)[0], lambda x: x.max(-1, keepdims=True)),
    "cummax": (lambda x: x.cummax(-1)[1], lambda x: np.maximum.accumulate(
        np.where(x == np.maximum.accumulate(x, -1), np.arange(x.shape[-1]), 0), -1)),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("columns", [4, 8])
def test_no_item_precedes_itself(name, columns):
    ours, expected = POSITIONS[name]
    x = drawn(40, 7, columns)
    np.testing.assert_allclose(ours(attention(held(x))).numpy(), expected(attention_by_numpy(x)), rtol=1e-5)


@pytest.mark.parametrize("is_kept", ["left lazy", "stored", "asked for too"])
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("rows", [7, 120])
def test_products_of_products(name, rows, is_kept):
    """Also where the sums are an output of the kernel that compares them."""
    ours, expected = POSITIONS[name]
    x, a, b = drawn(rows, 6), drawn(6, 4), drawn(3, 4)
    product = held(x) @ held(a) @ held(b).transpose()
    if is_kept == "stored":
        product = product.contiguous()
    found = ours(product)
    if is_kept == "asked for too":
        Tensor.realize(found, product)
    exact = x.astype(np.float64) @ a @ b.T
    np.testing.assert_allclose(found.numpy(), expected(exact), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product.numpy(), exact, rtol=1e-4, atol=1e-5)


ALSO = {
    "softmax": (lambda x: x.softmax(-1), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: np.log(np.exp(x).sum(-1))),
    "sum": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
}


@pytest.mark.parametrize("also", ALSO)
@pytest.mark.parametrize("name", POSITIONS)
def test_the_scores_of_a_network_and_what_else_is_asked_of_them(name, also):
    """A classifier's labels beside its probabilities: the scores, sums and a bias, are stored for the second
    kernel, and the first one may not compute them once for the largest and again for its position."""
    ours, expected = POSITIONS[name]
    x, a, b, bias = drawn(30, 7), drawn(7, 4), drawn(3, 4), drawn(3)
    scores = held(x) @ held(a) @ held(b).transpose() + held(bias)
    other, expected_other = ALSO[also]
    found, beside = ours(scores), other(scores)
    Tensor.realize(found, beside)
    exact = x.astype(np.float64) @ a @ b.T + bias
    np.testing.assert_allclose(found.numpy(), expected(exact), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(beside.numpy(), expected_other(exact), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows, columns", [(4, 10), (8, 4), (16, 8)])
def test_the_largest_is_stored_too(rows, columns):
    """A classifier's labels, its largest scores and its probabilities, asked for together."""
    x, a = drawn(rows, columns), drawn(columns, columns)
    scores = held(x) @ held(a)
    largest = scores.max(-1, keepdim=True)
    found, count, shares = scores.argmax(-1), (scores == largest).sum(-1), scores.softmax(-1)
    Tensor.realize(found, count, largest, shares)
    exact = x.astype(np.float64) @ a
    np.testing.assert_array_equal(found.numpy(), exact.argmax(-1))
    np.testing.assert_array_equal(count.numpy(), np.ones(rows))
    np.testing.assert_allclose(largest.numpy(), exact.max(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(shares.numpy(), ALSO["softmax"][1](exact), rtol=1e-4)


def test_what_is_in_memory_is_not_copied():
    """Also where its tensor stands for how it was computed, for gradients that may be asked for."""
    product = (held(drawn(30, 40)) @ held(drawn(40, 20)).is_param_()).realize()
    GlobalCounters.reset()
    product.topk(2)[1].realize()
    of_product = GlobalCounters.kernel_count
    GlobalCounters.reset()
    held(product.numpy()).topk(2)[1].realize()
    assert of_product == GlobalCounters.kernel_count
