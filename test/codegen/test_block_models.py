"""Random sizes of what networks are made of, on every model of a machine: PYTHON's, which finds accesses
outside of memory and races, and the emulators, which run what is rendered. NumPy says what is right."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinygrad import Tensor
from tinygrad.dtype import dtypes

Array = np.ndarray[Any, Any]

PYTHON_MODELS = ("PYTHON", "PYTHON:BLOCKS", "PYTHON:CUDA", "PYTHON:AMD", "PYTHON:GFX1100", "PYTHON:METAL")
EMULATORS = ("CUDA:EMULATED", "AMD:EMULATED", "METAL:EMULATED")


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _normalised(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def _attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return np.asarray(_softmax(scores) @ v)


def _convolution(x: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("bcyxij,ocij->boyx", windows, w)


def _loss(x: Array) -> Array:
    return np.asarray(-np.log(_softmax(x)[np.arange(len(x)), np.arange(len(x)) % x.shape[1]]).mean())


Sizes = tuple[int, int, int]
Case = tuple[Callable[[Sizes], list[tuple[int, ...]]], Callable[..., Tensor], Callable[..., Array]]
"""The shapes of the inputs for three sizes, what is computed, and what NumPy says of it."""

CASES: dict[str, Case] = {
    "product": (lambda s: [(s[0], s[1]), (s[1], s[2])], lambda a, b: a @ b, lambda a, b: a @ b),
    "product with a transpose": (lambda s: [(s[0], s[1]), (s[2], s[1])], lambda a, b: (a @ b.T).relu(),
                                 lambda a, b: np.maximum(a @ b.T, 0)),
    "softmax of scores": (lambda s: [(s[0], s[1])], lambda x: (x @ x.T).softmax(1),
                          lambda x: _softmax(x @ x.T)),
    "softmax": (lambda s: [(s[0], s[1] * s[2])], lambda x: x.softmax(-1), _softmax),
    "layer norm": (lambda s: [(s[0], s[1] * s[2])], lambda x: x.layernorm(), _normalised),
    "loss": (lambda s: [(s[0], s[1])],
             lambda x: x.sparse_categorical_crossentropy(Tensor([i % x.shape[1] for i in range(x.shape[0])],
                                                                device=x.device, dtype=dtypes.int32)), _loss),
    "attention": (lambda s: [(2, s[0], s[2]), (2, s[1], s[2]), (2, s[1], s[2])],
                  lambda q, k, v: q.scaled_dot_product_attention(k, v),
                  lambda q, k, v: _attention(q, k, v, causal=False)),
    "causal attention": (lambda s: [(2, s[0], s[2])] * 3,
                         lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
                         lambda q, k, v: _attention(q, k, v, causal=True)),
    "convolution": (lambda s: [(1, s[0] % 7 + 1, s[1] % 9 + 3, s[2] % 9 + 3), (s[2], s[0] % 7 + 1, 3, 2)],
                    lambda x, w: x.conv2d(w), _convolution),
    "sum of a column": (lambda s: [(s[0], s[1], s[2])], lambda x: x.exp().sum(1),
                        lambda x: np.exp(x).sum(1)),
}


def check(device: str, case: str, sizes: Sizes) -> None:
    """Compute one case on a device and compare."""
    shapes, compute, expected = CASES[case]
    random = np.random.default_rng(sizes)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes(sizes)]
    result = compute(*(Tensor(x, device=device).realize() for x in inputs)).numpy()
    wanted = expected(*(x.astype(np.float64) for x in inputs))
    np.testing.assert_allclose(result, wanted, rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


SIZE = st.one_of(st.integers(1, 12), st.sampled_from([15, 16, 17, 31, 32, 33, 40]))
FUZZ = {"deadline": None, "derandomize": True,
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}


def test_rows_that_tiles_round_up_are_read_within_their_memory() -> None:
    check("PYTHON", "softmax of scores", (10, 8, 1))


@settings(max_examples=12, **FUZZ)
@given(device=st.sampled_from(PYTHON_MODELS), case=st.sampled_from(list(CASES)),
       sizes=st.tuples(st.integers(1, 12), st.integers(1, 17), st.integers(1, 9)))
def test_models_compute_what_numpy_does_at_any_size(device: str, case: str, sizes: Sizes) -> None:
    check(device, case, sizes)


@pytest.mark.slow
@settings(max_examples=300, **FUZZ)
@given(device=st.sampled_from(PYTHON_MODELS), case=st.sampled_from(list(CASES)),
       sizes=st.tuples(SIZE, SIZE, SIZE))
def test_models_compute_what_numpy_does_at_larger_sizes(device: str, case: str, sizes: Sizes) -> None:
    check(device, case, sizes)


@pytest.mark.slow
@settings(max_examples=150, **FUZZ)
@given(device=st.sampled_from(EMULATORS), case=st.sampled_from(list(CASES)),
       sizes=st.tuples(SIZE, SIZE, SIZE))
def test_emulated_kernels_compute_what_numpy_does_at_any_size(device: str, case: str, sizes: Sizes) -> None:
    check(device, case, sizes)
