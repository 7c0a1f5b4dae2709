"""What tests compute with and how they compare: arrays of random numbers, tensors in memory, closeness."""
from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tinygrad import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

_stream = np.random.default_rng(0)


def restart() -> None:
    """Let the arrays of a test be the same whatever ran before it."""
    global _stream
    _stream = np.random.default_rng(0)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Normally distributed numbers, those of a seed and a shape."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def drawn(*shape: int) -> Array:
    """Normally distributed numbers, others in each call of a test."""
    return _stream.standard_normal(shape).astype(np.float32)


def integers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Whole numbers from -4 to 4: sums and products of them are exact in every order."""
    return np.random.default_rng((seed, *shape)).integers(-4, 5, shape).astype(dtype)


def held(array: Array) -> Tensor:
    """A tensor in memory."""
    return Tensor(array).realize()


def close(got: Tensor, wanted: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Of the same shape, and equal up to a share `rtol` of the values (2e-6 unless given; float64: 1e-11) and
    `atol` (`rtol`, unless given)."""
    values = got.numpy()
    share = (1e-11 if values.dtype == np.float64 else 2e-6) if rtol is None else rtol
    assert values.shape == np.shape(wanted)
    np.testing.assert_allclose(values, wanted, rtol=share, atol=share if atol is None else atol)


def same(got: Tensor, wanted: Any) -> None:
    """Of the same shape, and equal, NaN to NaN."""
    values = got.numpy()
    assert values.shape == np.shape(wanted)
    np.testing.assert_array_equal(values, wanted)
