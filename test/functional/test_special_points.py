"""Derivatives where a formula has a seam (at zero, at ties), and half types in functions of several steps."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tinygrad import Tensor


def second_derivative(function: Callable[[Tensor], Tensor], at: list[float]) -> list[float]:
    x = Tensor(at, dtype="float64", requires_grad=True)
    (slope,) = function(x).sum().gradient(x)
    (bend,) = slope.sum().gradient(x)
    return bend.tolist()


@pytest.mark.parametrize("function, at, expected", [
    (Tensor.expm1, [0.0, -0.0, 1.0], [1.0, 1.0, math.e]),
    (Tensor.log1p, [0.0, -0.0, 1.0], [-1.0, -1.0, -0.25]),
    (lambda x: x.logaddexp(2.0), [2.0], [0.25]),
    (lambda x: (x * 0 + 2.0).logaddexp(x), [2.0], [0.25]),
    (lambda x: x.hypot(4.0), [0.0, 3.0, 4.0], [1 / 4, 16 / 125, 16 / 32**1.5]),
    (lambda x: x.xlogy(x + 1), [0.0], [2.0]),
], ids=["expm1", "log1p", "logaddexp", "logaddexp of the second", "hypot", "xlogy"])
def test_second_derivatives_where_a_formula_has_a_seam(function: Callable[[Tensor], Tensor], at: list[float],
                                                       expected: list[float]) -> None:
    assert np.allclose(second_derivative(function, at), expected, rtol=1e-9)


def test_equal_operands_of_logaddexp_share_the_gradient() -> None:
    x, y = (Tensor([2.0, -1.0], requires_grad=True) for _ in range(2))
    gradients = x.logaddexp(y).sum().gradient(x, y)
    assert [g.tolist() for g in gradients] == [[0.5, 0.5], [0.5, 0.5]]
    ends = Tensor([math.inf, -math.inf])
    assert ends.logaddexp(ends).tolist() == ends.tolist()


def test_zeros_keep_their_sign() -> None:
    for function in (Tensor.expm1, Tensor.log1p):
        assert function(Tensor([0.0, -0.0])).signbit().tolist() == [False, True]


def test_xlogy_at_zero_has_the_gradient_log_y() -> None:
    x = Tensor([0.0, 0.0, 0.0, 2.0], requires_grad=True)
    y = Tensor([3.0, 0.0, -1.0, 5.0])
    (gradient,) = x.xlogy(y).sum().gradient(x)
    assert np.allclose(gradient.numpy(), [math.log(3), 0, 0, math.log(5)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_several_steps_are_computed_wider(dtype: str) -> None:
    x, y = Tensor([1.0, 0.3], dtype=dtype), Tensor([-1.0, 2.0], dtype=dtype)
    wide_x, wide_y = x.cast("float64").numpy(), y.cast("float64").numpy()
    for result, exact in ((x.sinc(), np.sinc(wide_x)), (x.atan2(y), np.arctan2(wide_x, wide_y)),
                          (x.hypot(y), np.hypot(wide_x, wide_y)),
                          (x[1:].logit(), np.log(wide_x[1:] / (1 - wide_x[1:])))):
        assert result.dtype is x.dtype
        assert np.allclose(result.cast("float64").numpy(), exact, rtol=2**-8, atol=1e-6)
    assert Tensor([65504.0], dtype="float16").sinc().item() == 0


def test_logit_of_small_integers_does_not_wrap() -> None:
    assert np.isnan(Tensor([-128, 127], dtype="int8").logit().numpy()).all()
    assert np.isnan(Tensor([255], dtype="uint8").logit().numpy()).all()


@pytest.mark.parametrize("name, at, expected", [
    ("relu", [0.0], [0.0]),
    ("relu6", [0.0, 3.0, 6.0], [0.0, 1.0, 0.0]),
    ("hardtanh", [-1.0, 0.5, 1.0], [0.0, 1.0, 0.0]),
    ("hardsigmoid", [-3.0, 0.0, 3.0], [0.0, 1 / 6, 0.0]),
    ("hardswish", [-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
])
def test_activations_are_flat_from_their_corners_on_as_in_pytorch(name: str, at: list[float],
                                                                  expected: list[float]) -> None:
    x = Tensor(at, requires_grad=True)
    (gradient,) = getattr(x, name)().sum().gradient(x)
    assert np.allclose(gradient.numpy(), expected)


@pytest.mark.parametrize("function, at, expected", [
    (Tensor.lgamma, [0.0, -0.0, -1.0, math.inf, -math.inf],
     [-math.inf, math.inf, math.nan, math.inf, math.nan]),
    (Tensor.digamma, [0.0, -0.0, -1.0, -2.0, math.inf, -math.inf], [*[math.inf] * 4, 0.0, math.nan]),
    (Tensor.logit, [0.0, -0.0, 1.0, 0.5, -1.0, 2.0], [*[math.inf] * 3, 4.0, math.nan, math.nan]),
    (lambda x: x.logit(0.25), [0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 16 / 3, 4.0, 16 / 3, 0.0]),
    (lambda x: x.copysign(-1.0), [0.0, -0.0, 2.0, -2.0], [0.0, 0.0, -1.0, 1.0]),
], ids=["lgamma", "digamma", "logit", "logit between", "copysign"])
def test_gradients_at_poles_and_kinks_are_pytorchs(function: Callable[[Tensor], Tensor], at: list[float],
                                                   expected: list[float]) -> None:
    x = Tensor(at, requires_grad=True)
    (gradient,) = function(x).sum().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), expected, 1e-6)


@pytest.mark.parametrize("dtype, close", [("float32", 2e-6), ("float64", 1e-14)])
def test_derivatives_of_sinc_near_zero(dtype: str, close: float) -> None:
    """A difference of cosine and sinc over x had no digit right at 1e-4, and was NaN at 1e-45."""
    points = np.array([0.0, -0.0, 1e-45, 1e-20, 1e-4, -0.01, 0.2499, 0.25, 0.5, 1.5])
    x = Tensor(points, dtype=dtype)
    (slope,) = x.sinc().sum().gradient(x)
    (bend,) = slope.sum().gradient(x)
    a = points.astype(dtype).astype(np.float64) * np.pi
    series = np.abs(a) < 0.1  # with its terms up to a^5 and a^4, exact to 1e-17 there
    b = np.where(series, 1, a)
    first = np.where(series, -a / 3 + a**3 / 30 - a**5 / 840 + a**7 / 45360, (np.cos(b) - np.sin(b) / b) / b)
    second = np.where(series, -1 / 3 + a**2 / 10 - a**4 / 168 + a**6 / 6480,
                      -np.sin(b) / b - 2 * (np.cos(b) - np.sin(b) / b) / b**2)
    np.testing.assert_allclose(slope.numpy(), np.pi * first, rtol=close, atol=close)
    np.testing.assert_allclose(bend.numpy(), np.pi**2 * second, rtol=close, atol=close * 10)


def test_digamma_of_zeros_has_their_sign() -> None:
    assert Tensor([0.0, -0.0]).digamma().tolist() == [-math.inf, math.inf]


def test_a_bound_that_is_nan_makes_nan_as_in_numpy() -> None:
    x, nan = np.array([1.0, np.nan, 2.0], np.float32), float("nan")
    bounds = np.array([np.nan, 0.0, 5.0], np.float32)
    for low, high in ((nan, 1.0), (0.0, nan), (bounds, None), (None, bounds)):
        ours = (Tensor(b) if isinstance(b, np.ndarray) else b for b in (low, high))
        np.testing.assert_array_equal(Tensor(x).clip(*ours).numpy(), np.clip(x, low, high))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_signs_of_zeros(dtype: str) -> None:
    zeros = Tensor([0.0, -0.0], dtype=dtype)
    assert zeros.abs().signbit().tolist() == [False, False]
    assert zeros.fmod(3).signbit().tolist() == [False, True]
    assert Tensor([6.0, -6.0], dtype=dtype).fmod(3).signbit().tolist() == [False, True]
