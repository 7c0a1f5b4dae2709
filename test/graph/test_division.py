"""Quotients of floats are rounded once; remainders and whole quotients are the true ones, however far apart
the operands are."""
from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from drivers import needs_compiler

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

Array = np.ndarray[Any, Any]
FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
WITHOUT_FLOAT64 = "METAL:EMULATED"
everywhere = pytest.mark.parametrize(("dtype", "device"), [
    *((dtype, None) for dtype in FLOATS),
    *(pytest.param(dtype, WITHOUT_FLOAT64, marks=needs_compiler) for dtype in FLOATS[:3]),
], ids=str)
"""On the default device, and in float32 alone."""


def any_numbers(dtype: DType, seed: int) -> Array:
    """Random bits: every exponent, denormal numbers and NaN among them, and numbers of a size."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**dtype.bits, 1500, np.uint64).astype(f"u{dtype.itemsize}").view(dtype.numpy)
    return np.concatenate([bits, rng.uniform(-99, 99, 500).astype(dtype.numpy)])


def pairs(dtype: DType) -> tuple[Array, Array]:
    special = np.array([0.0, -0.0, 1, -1, 3, -3, math.inf, -math.inf, math.nan, 2.0**-14], dtype.numpy)
    first, second = (m.ravel() for m in np.meshgrid(special, special))
    return np.concatenate([any_numbers(dtype, 1), first]), np.concatenate([any_numbers(dtype, 2), second])


def rounded_quotient(a: Array, b: Array | float, dtype: DType) -> Array:
    """Rounded once: float64 has more than twice the digits of narrower types, so the second time is none."""
    with np.errstate(all="ignore"):
        return np.asarray((a.astype(np.float64) / np.asarray(b).astype(np.float64)).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_are_rounded_once(dtype: DType) -> None:
    a, b = pairs(dtype)
    equal(Tensor(a) / Tensor(b), rounded_quotient(a, b, dtype))


@pytest.mark.parametrize("divisor", [7.0, 3.0, 0.1, 1e-3, -6.0, 0.0, 4.0, -0.125, 2.0**127, 2.0**-126])
def test_quotients_by_a_number_are_rounded_once(divisor: float) -> None:
    x = any_numbers(dtypes.float32, 4)
    equal(Tensor(x) / divisor, rounded_quotient(x, np.float32(divisor), dtypes.float32))
    equal(divisor / Tensor(x), rounded_quotient(np.full_like(x, divisor), x, dtypes.float32))


def test_quotients_by_one_number_a_row_are_rounded_once() -> None:
    """Also where dividing once a row and multiplying would be less work."""
    x = np.random.default_rng(3).uniform(1, 2, (40, 300)).astype(np.float32)
    t = Tensor(x)
    equal(t / t[:, :1], rounded_quotient(x, x[:, :1], dtypes.float32))
    equal(t / t.max(axis=1, keepdim=True), rounded_quotient(x, x.max(axis=1, keepdims=True), dtypes.float32))


def test_means_divide_the_sum_once() -> None:
    x = np.random.default_rng(5).integers(-1000, 1000, (500, 7)).astype(np.float32)
    equal(Tensor(x).mean(axis=1), rounded_quotient(x.sum(axis=1), 7.0, dtypes.float32))


@everywhere
def test_remainders_are_those_of_c_and_of_python(dtype: DType, device: str | None) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64), b.astype(np.float64)
        truncated, down = (f(*wide).astype(dtype.numpy) for f in (np.fmod, np.mod))
    t, u = Tensor(a, device=device), Tensor(b, device=device)
    equal(t.fmod(u), truncated)
    equal(t % u, down)


def equal(found: Tensor, expected: Array) -> None:
    """Every number, and NaN where NaN is expected (which NumPy does not know of bfloat16)."""
    np.testing.assert_array_equal(found.numpy().astype(np.float64), expected.astype(np.float64))


def floored(a: float, b: float) -> float:
    if not math.isfinite(a) or not math.isfinite(b) or b == 0:
        with np.errstate(all="ignore"):
            return float(np.floor_divide(np.float64(a), np.float64(b)))
    whole = math.floor(Fraction(a) / Fraction(b))
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


@everywhere
def test_whole_quotients_are_the_true_ones_rounded(dtype: DType, device: str | None) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        true = np.array([floored(float(x), float(y)) for x, y in zip(a, b, strict=True)])
        expected = true.astype(dtype.numpy)
    equal(Tensor(a, device=device) // Tensor(b, device=device), expected)


@pytest.mark.parametrize(("dtype", "device"), [
    (dtypes.float64, None), pytest.param(dtypes.float32, WITHOUT_FLOAT64, marks=needs_compiler)], ids=str)
def test_whole_quotients_next_to_ties_are_the_true_ones_rounded(dtype: DType, device: str | None) -> None:
    """Quotients that are a tie once they are rounded down, or just beside one, of every size."""
    digits = dtypes.finfo(dtype)[1] + 1
    rng = np.random.default_rng(8)
    tie = rng.integers(2**(digits - 1), 2**digits, 4000) * 2 + 1
    divisor = rng.integers(2, 2**rng.integers(2, digits, 4000))
    size = rng.integers(0, digits - 1, 4000)
    near = [int(t) * int(d) << int(s) for t, d, s in zip(tie, divisor, size, strict=True)]
    a = np.array(near).astype(dtype.numpy) * np.where(rng.integers(0, 2, 4000), -1, 1).astype(dtype.numpy)
    a = np.concatenate([a, np.nextafter(a, dtype.numpy.type(0)), np.nextafter(a, a * 2)])
    b = np.tile(divisor.astype(dtype.numpy), 3)
    expected = np.array([floored(float(x), float(y)) for x, y in zip(a, b, strict=True)]).astype(dtype.numpy)
    equal(Tensor(a, device=device) // Tensor(b, device=device), expected)


@pytest.mark.parametrize("device", [None, pytest.param(WITHOUT_FLOAT64, marks=needs_compiler)])
def test_gradients_hold_the_quotient_fixed(device: str | None) -> None:
    a, b = (Tensor(v, requires_grad=True, device=device) for v in ([7.5, -7.5, 3.0], [2.0, 2.0, -2.0]))
    assert [g.tolist() for g in (a % b).sum().gradient(a, b)] == [[1, 1, 1], [-3, 4, 2]]
    assert [g.tolist() for g in a.fmod(b).sum().gradient(a, b)] == [[1, 1, 1], [-3, 3, 1]]
    assert [g.tolist() for g in (a // b).sum().gradient(a, b)] == [[0, 0, 0], [0, 0, 0]]
