"""Gradients where a formula breaks down: products and powers at zero, exponentials that overflow."""
from __future__ import annotations

import math

import numpy as np
import pytest

from tinygrad import Tensor, dtypes


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_derivatives_of_a_product_of_every_order_where_items_are_zero(zeros: int) -> None:
    """The derivative at i, j, k is the product of the others; zero where two of the three are the same."""
    values = np.array([3.0, -2.0, 0.5, 5.0, 1.5])
    values[:zeros] = 0
    x = Tensor(values, requires_grad=True)
    first = x.prod().gradient(x)[0]
    second = first[1].gradient(x)[0]
    third = second[0].gradient(x)[0]
    for found, fixed in ((first, []), (second, [1]), (third, [1, 0])):
        expected = [0 if i in fixed else np.prod(np.delete(values, [*fixed, i])) for i in range(5)]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("shape", [(1,), (8,), (9,), (70,), (3, 1, 4)])
def test_gradient_of_a_product_over_all_axes(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(3).uniform(0.5, 1.5, shape)
    x = Tensor(values, requires_grad=True)
    np.testing.assert_allclose(x.prod().gradient(x)[0].numpy(), values.prod() / values, rtol=1e-12)


def test_second_derivative_of_a_running_product_with_a_zero() -> None:
    """y2 = x0 x1 x2, so d/dx0 of dy2/dx1 is x2 and d/dx2 is x0."""
    x = Tensor(np.array([2.0, 0.0, 3.0]), requires_grad=True)
    slope = x.cumprod(0)[2].gradient(x)[0]
    assert slope.tolist() == [0, 6, 0]
    assert slope[1].gradient(x)[0].tolist() == [3, 0, 2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_of_a_power_where_the_base_is_zero(dtype: str) -> None:
    exponents = np.array([0, 1, 2, 3, 1.5], dtype)
    base, exponent = (Tensor(v, requires_grad=True) for v in (np.zeros(5, dtype), exponents))
    first, at_exponent = (base ** exponent).sum().gradient(base, exponent)
    second = first.sum().gradient(base)[0]
    third = second.sum().gradient(base)[0]
    assert first.tolist() == [0, 1, 0, 0, 0]
    assert second.tolist() == [0, 0, 2, 0, math.inf]
    assert third.tolist()[:4] == [0, 0, 0, 6]
    assert at_exponent.tolist() == [0, 0, 0, 0, 0]


LOGISTIC = {
    "a share": lambda x: x.exp() / (1 + x.exp()),
    "a share, the sum turned round": lambda x: x.exp() / (x.exp() + 1.0),
    "a reciprocal": lambda x: 1 / (1 + (-x).exp()),
    "reciprocal()": lambda x: (1 + (-x).exp()).reciprocal(),
}


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("name", LOGISTIC)
def test_gradients_of_the_logistic_function_by_its_formula(name, dtype):
    """All digits where the square of the sum is a number of the type, and zero where the exponential
    overflows."""
    points = np.array([-1000.0, -300, -90, -60, -20, -8, -1, 0, 1, 8, 20, 60, 90, 300, 1000])
    x = Tensor(points, dtype=dtype)
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-points)) * (1 / (1 + np.exp(points)))
    found = LOGISTIC[name](x).sum().gradient(x)[0].numpy()
    close, least = {dtypes.float16: (4e-3, 3e-5), dtypes.float32: (2e-6, 1e-25),
                    dtypes.float64: (1e-14, 1e-300)}[dtype]
    np.testing.assert_allclose(found, expected, rtol=close, atol=least)


def test_gradients_of_shares_of_a_sum():
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(0.5, 2, (2, 3)) for _ in range(2)]
    a, b = (Tensor(x) for x in arrays)
    total = arrays[0] + arrays[1]
    first, second = (a / (a + b)).square().sum().gradient(a, b)
    share = arrays[0] / total
    np.testing.assert_allclose(first.numpy(), 2 * share * arrays[1] / total**2, rtol=1e-12)
    np.testing.assert_allclose(second.numpy(), -2 * share * arrays[0] / total**2, rtol=1e-12)
    x = Tensor(np.array([1e200, 3.0, np.inf]))
    np.testing.assert_allclose((x / (x + 1)).sum().gradient(x)[0].numpy(), [0, 1 / 16, 0])


def test_a_masked_power_that_overflows_has_no_gradient():
    x = Tensor([1.0, 1000.0])
    found = (x < 10).where(x.exp(), x).sum().gradient(x)[0].numpy()
    np.testing.assert_allclose(found, [np.e, 1], rtol=1e-6)


def test_deviations_of_equal_items_have_no_gradient():
    x = Tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    (found,) = x.std(1).sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), [[-0.43643578, -0.10910895, 0.54554473], [0, 0, 0]], rtol=1e-5)
