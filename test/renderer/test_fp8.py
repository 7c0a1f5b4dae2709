"""fp8e4m3 and fp8e5m2: every value crosses exactly, rounding is to nearest even, arithmetic runs in float32.

ml_dtypes is the reference of the formats, NumPy in float64 that of layers.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes, nn
from tinygrad.dtype import DType

Array = np.ndarray[Any, Any]
TYPES = [dtypes.fp8e4m3, dtypes.fp8e5m2]
DEVICES = ["CPU", "CPU:C", "PYTHON"]


def all_values(dtype: DType) -> Array:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def finite_values(dtype: DType) -> Array:
    values = all_values(dtype)
    return values[np.isfinite(values.astype(np.float32))]


def rounded(x: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(dtype.numpy))


def assert_same(found: Array, expected: Array) -> None:
    """Equal bits, except that any NaN is a NaN."""
    assert found.dtype == expected.dtype
    bits = f"u{found.itemsize}"
    with np.errstate(invalid="ignore"):
        nan = np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_value_widens_exactly_and_comes_back(dtype: DType, device: str) -> None:
    values = all_values(dtype)
    t = Tensor(values, device=device)
    wide = t.float()
    assert_same(wide.numpy(), values.astype(np.float32))
    assert_same(wide.cast(dtype).numpy(), values)
    assert_same(t.half().cast(dtype).numpy(), values)
    assert_same(t.contiguous().numpy(), values)


def ties(dtype: DType) -> Array:
    """Values, the middles between neighbours, also between the last value and what would follow it, and the
    float32 next to each."""
    known = np.unique(finite_values(dtype).astype(np.float64))
    following = 2 * known[-1] - known[-2]
    middles = (known[1:] + known[:-1]) / 2
    points = np.concatenate([known, middles, [following, (known[-1] + following) / 2]]).astype(np.float32)
    points = np.concatenate([points, -points])
    above, below = (np.nextafter(points, np.float32(end)) for end in (9e9, -9e9))
    return np.concatenate([points, above, below])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_float32_rounds_to_the_nearest_even(dtype: DType, device: str) -> None:
    """Ties and their neighbours, and random numbers of every exponent, infinities and NaN among them."""
    step = 1 << 21 if device == "PYTHON" else 1 << 13
    spread = np.arange(0, 2**32, step, np.uint64) + np.random.default_rng(8).integers(0, step, 2**32 // step,
                                                                                      np.uint64)
    x = np.concatenate([ties(dtype), spread.astype(np.uint32).view(np.float32),
                        np.array([np.inf, -np.inf, np.nan, 464, 465, 61440, 61439, 1e38], np.float32)])
    assert_same(Tensor(x, device=device).cast(dtype).numpy(), rounded(x, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_float32_rounds_to_the_nearest_even(dtype: DType) -> None:
    for block in range(2**10):
        x = (np.arange(2**22, dtype=np.uint32) + np.uint32(block << 22)).view(np.float32)
        assert_same(Tensor(x).cast(dtype).numpy(), rounded(x, dtype))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operator", BINARY)
def test_arithmetic_of_every_pair_rounds_once(operator: str, dtype: DType) -> None:
    a, b = (np.ascontiguousarray(m.ravel()) for m in np.meshgrid(all_values(dtype), all_values(dtype)))
    with np.errstate(all="ignore"):
        expected = rounded(BINARY[operator](a.astype(np.float64), b.astype(np.float64)), dtype)
    assert_same(BINARY[operator](Tensor(a), Tensor(b)).numpy(), expected)


@pytest.mark.parametrize("device", ["CPU:C", "PYTHON"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_arithmetic_on_other_devices(dtype: DType, device: str) -> None:
    a = all_values(dtype)
    b = np.random.default_rng(2).permutation(a)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float32) * b.astype(np.float32)
    assert_same((Tensor(a, device=device) * Tensor(b, device=device)).numpy(), rounded(wide, dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_comparisons_and_extrema_are_those_of_the_numbers(dtype: DType) -> None:
    a, b = (np.ascontiguousarray(m.ravel()) for m in np.meshgrid(all_values(dtype), all_values(dtype)))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal((Tensor(a) < Tensor(b)).numpy(), wide_a < wide_b)
    np.testing.assert_array_equal((Tensor(a) == Tensor(b)).numpy(), wide_a == wide_b)
    largest = Tensor(a).maximum(Tensor(b)).numpy().astype(np.float32)
    np.testing.assert_array_equal(largest, np.maximum(wide_a, wide_b))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_and_products_of_matrices_accumulate_in_float32(dtype: DType) -> None:
    """Sums of 300 ones: in fp8 they would stop growing at 16 (fp8e4m3) or 8."""
    ones = Tensor(np.ones((4, 300), np.float32)).cast(dtype)
    assert_same(ones.sum(1).numpy(), rounded(np.full(4, 300, np.float32), dtype))
    assert_same((ones @ ones.T).numpy(), rounded(np.full((4, 4), 300, np.float32), dtype))
    assert_same(ones.mean(1).numpy(), rounded(np.ones(4, np.float32), dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_linear_layer_with_fp8_weights(dtype: DType, device: str) -> None:
    """Of float32 inputs: the result and the input's gradient are float32, the weight's gradient is of its
    type, rounded once."""
    rng = np.random.default_rng(1)
    w, b = (rounded(rng.standard_normal(s), dtype) for s in ((5, 7), (5,)))
    x, g = rng.standard_normal((3, 7)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    layer = nn.Linear(7, 5)
    layer.weight, layer.bias = (Tensor(v, device=device, requires_grad=True) for v in (w, b))
    t = Tensor(x, device=device, requires_grad=True)
    out = layer(t)
    (out * Tensor(g, device=device)).sum().backward()
    assert out.dtype is dtypes.float32 and layer.weight.grad is not None and layer.bias.grad is not None
    exact = w.astype(np.float64)
    np.testing.assert_allclose(out.numpy(), x @ exact.T + b.astype(np.float64), rtol=1e-5, atol=1e-6)
    assert t.grad is not None
    np.testing.assert_allclose(t.grad.numpy(), g @ exact, rtol=1e-5, atol=1e-6)
    assert layer.weight.grad.dtype is dtype
    assert_near(layer.weight.grad.numpy(), g.T.astype(np.float64) @ x, dtype)
    assert_near(layer.bias.grad.numpy(), g.astype(np.float64).sum(0), dtype)


def assert_near(found: Array, exact: Array, dtype: DType) -> None:
    """One of the two values around the exact one, the nearest but for the error of a float32 sum."""
    low, high = (rounded(exact * (1 + e), dtype).astype(np.float64) for e in (-1e-5, 1e-5))
    value = found.astype(np.float64)
    assert ((value == low) | (value == high)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_convolution_with_fp8_weights(dtype: DType, device: str) -> None:
    rng = np.random.default_rng(5)
    w = rounded(rng.standard_normal((4, 3, 3, 3)), dtype)
    x, g = rng.standard_normal((2, 3, 6, 6)), rng.standard_normal((2, 4, 4, 4))
    layer = nn.Conv2d(3, 4, 3, bias=False)
    layer.weight = Tensor(w, device=device, requires_grad=True)
    t = Tensor(x.astype(np.float32), device=device, requires_grad=True)
    out = layer(t)
    (out * Tensor(g.astype(np.float32), device=device)).sum().backward()
    exact = w.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    assert out.dtype is dtypes.float32
    expected = np.einsum("bcyxij,ocij->boyx", windows, exact)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
    slope = np.zeros_like(x)
    for i, j in np.ndindex(3, 3):
        slope[:, :, i:i + 4, j:j + 4] += np.einsum("boyx,oc->bcyx", g, exact[:, :, i, j])
    assert t.grad is not None and layer.weight.grad is not None
    np.testing.assert_allclose(t.grad.numpy(), slope, rtol=1e-4, atol=1e-5)
    assert layer.weight.grad.dtype is dtype
    assert_near(layer.weight.grad.numpy(), np.einsum("bcyxij,boyx->ocij", windows, g), dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_layers_of_fp8_alone(dtype: DType) -> None:
    """Input and weights of one type: the result is of it too, rounded once from float32."""
    rng = np.random.default_rng(9)
    w, x = (rounded(rng.standard_normal(s), dtype) for s in ((6, 8), (4, 8)))
    out = Tensor(x).linear(Tensor(w).T)
    assert out.dtype is dtype
    assert_near(out.numpy(), x.astype(np.float64) @ w.astype(np.float64).T, dtype)
