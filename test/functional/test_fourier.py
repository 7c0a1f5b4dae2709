"""Fourier transforms of many sizes beside NumPy's, their cost, windows, and what cannot be transformed."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.functional.fourier import is_by_chirps, radices

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 64, 97, 131, 499, 509, 1000, 1009, 2018, 4095, 4096, 10007, 44100, 65536)


def drawn(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def parts(x: Array) -> Array:
    return np.stack([x.real, x.imag], -1)


def error(found: Tensor, expected: Array) -> float:
    """Of the root mean square: what rounding adds up to, whatever item it falls on."""
    expected = parts(expected) if np.iscomplexobj(expected) else expected
    assert found.shape == expected.shape
    return math.sqrt(np.square(found.numpy() - expected).mean() / np.square(expected).mean())


@pytest.mark.parametrize("n", SIZES)
def test_transforms_are_numpys(n: int) -> None:
    x = drawn(2, n)
    for dtype, bound in ((dtypes.float64, 1e-15), (dtypes.float32, 5e-7)):
        pairs, reals = Tensor(parts(x), dtype=dtype), Tensor(x.real.copy(), dtype=dtype)
        half = reals.rfft()
        Tensor.realize(half)
        assert error(pairs.fft(), np.fft.fft(x)) < bound
        assert error(pairs.ifft(), np.fft.ifft(x)) < bound
        assert error(half, np.fft.rfft(x.real)) < bound
        assert error(half.irfft(n), x.real) < bound


def test_a_long_transform_takes_n_log_n_steps() -> None:
    for n in (1 << 20, 44100, 10 ** 6):
        cost, factors = radices(n)
        assert math.prod(factors) == n and max(factors) <= 32 and cost < 320
    assert not is_by_chirps(97) and is_by_chirps(1009) and is_by_chirps(1000003)
    x = drawn(1 << 20)
    assert error(Tensor(parts(x).astype(np.float32)).fft(), np.fft.fft(x)) < 5e-7


def test_half_types_are_transformed_in_float32() -> None:
    x = drawn(256)
    rounded = Tensor(parts(x), dtype="float16")
    exact = rounded.numpy().astype(np.float64) @ [1, 1j]
    found = rounded.fft()
    assert found.dtype is dtypes.float16
    np.testing.assert_array_equal(found.numpy(), parts(np.fft.fft(exact)).astype(np.float16))
    assert Tensor([1, 2, 3]).rfft().dtype is dtypes.default_float


def test_of_nothing_there_is_nothing() -> None:
    assert Tensor.zeros(0, 3, 2).fft().shape == (0, 3, 2) and Tensor.zeros(0, 3).rfft().shape == (0, 2, 2)
    assert Tensor.zeros(3, 0, 2).fft(4).tolist() == [[[0.0, 0.0]] * 4] * 3
    assert Tensor.zeros(0, 4, 2).irfft().numpy().shape == (0, 6)


def test_transforms_under_the_jit() -> None:
    step = TinyJit(lambda x: x.rfft().square().sum(-1).realize())
    for i in range(4):
        x = drawn(3, 60).real + i
        expected = np.abs(np.fft.rfft(x)) ** 2
        np.testing.assert_allclose(step(Tensor(x).realize()).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_are_numpys(n: int) -> None:
    np.testing.assert_allclose(Tensor.fftfreq(n, 0.1).numpy(), np.fft.fftfreq(n, 0.1), rtol=1e-6)
    np.testing.assert_allclose(Tensor.rfftfreq(n, 0.1, dtype="float64").numpy(), np.fft.rfftfreq(n, 0.1))


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows_are_pytorchs(name: str, periodic: bool) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    for size in (0, 1, 2, 3, 8, 401):
        found = getattr(Tensor, f"{name}_window")(size, periodic, dtype="float64")
        expected = getattr(torch, f"{name}_window")(size, periodic, dtype=torch.float64)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-15)
    assert getattr(Tensor, f"{name}_window")(4).dtype is dtypes.default_float
    with pytest.raises(ValueError, match="a window has 0 items or more, not -1"):
        getattr(Tensor, f"{name}_window")(-1)


def test_windows_take_their_own_options() -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    np.testing.assert_allclose(Tensor.hamming_window(9, False, 0.6, 0.3).numpy(),
                               torch.hamming_window(9, False, 0.6, 0.3).numpy(), rtol=1e-6)
    np.testing.assert_allclose(Tensor.kaiser_window(9, beta=4.0).numpy(),
                               torch.kaiser_window(9, True, beta=4.0).numpy(), rtol=1e-6)


def test_a_signal_comes_back_from_its_windows() -> None:
    x = drawn(2, 1000).real
    window = Tensor.hann_window(64, dtype="float64")
    there = Tensor(x).stft(64, 16, window=window)
    assert there.shape == (2, 33, 63, 2)
    np.testing.assert_allclose(there.istft(64, 16, window=window, length=1000).numpy(), x, atol=1e-12)


PAIRS = Tensor.ones(3, 4, 2)


@pytest.mark.parametrize("call, message", [
    (lambda: Tensor.ones(3, 4).fft(), "fft takes real and imaginary parts along a last axis of 2, .* got "
                                      r"shape \(3, 4\); rfft and ihfft take real numbers"),
    (lambda: Tensor.ones(2).ifft(), r"ifft takes real and imaginary parts .* got shape \(2,\)"),
    (lambda: PAIRS.fft(0), "fft takes n >= 1 items, got 0"),
    (lambda: Tensor.ones(3, 1, 2).irfft(), "irfft takes n >= 1 items, got 0"),
    (lambda: PAIRS.fft(norm="other"), 'fft takes norm="backward", "ortho" or "forward", got \'other\''),
    (lambda: PAIRS.fftn((3,), (0, 1)), r"fftn takes axes, each once, and a size for each, got dim=\(0, 1\) "
                                       r"and s=\(3,\)"),
    (lambda: PAIRS.fft2(dim=(0, 0)), "fftn takes axes, each once"),
    (lambda: Tensor.fftfreq(0), "frequencies of n >= 1 items, got 0"),
    (lambda: PAIRS.stft(4), r"stft takes signals \(n,\) or \(batch, n\), got shape \(3, 4, 2\)"),
    (lambda: Tensor.ones(9).stft(4, return_complex=True), "stft: there are no complex numbers here"),
    (lambda: Tensor.ones(9).stft(4, 0), "stft takes 0 < win_length <= n_fft and hop_length > 0, got 4"),
    (lambda: Tensor.ones(9).stft(4, win_length=5), "stft takes 0 < win_length <= n_fft"),
    (lambda: Tensor.ones(9).stft(4, window=Tensor.ones(3)), "stft takes a window of 4 items, got shape"),
    (lambda: Tensor.ones(3).stft(4, center=False), "stft of windows of 4 items takes a signal as long"),
    (lambda: PAIRS.istft(8), r"istft of windows of 8 items takes \(..., 5, windows, 2\), got shape"),
])
def test_what_cannot_be_transformed_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_axis_that_is_not_there_is_said() -> None:
    with pytest.raises(IndexError, match="fft: axis 2 is out of range for 2 axes"):
        PAIRS.fft(dim=2)
    with pytest.raises(IndexError, match="fftshift: axis 3"):
        PAIRS.fftshift(3)
