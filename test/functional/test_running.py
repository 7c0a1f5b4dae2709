"""Running sums, products and extrema of long axes: values, gradients and rounding beside references, and that
what looks at them later computes none of them again."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.engine.realize import schedule_uops

SHAPES = [((5, 77), 1), ((5, 77), 0), ((3, 33, 65), 1), ((2, 1000), 1), ((33,), 0), ((64, 64), 0)]
AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda c: c, "sum": lambda c: c.sum(1), "reversed": lambda c: c.flip(1).contiguous(),
    "every other": lambda c: c[:, ::2].contiguous(), "turned": lambda c: c.T.contiguous(),
    "largest": lambda c: c.max(1), "again": lambda c: c.cumsum(0), "share": lambda c: c / c[:, -1:]}


def values(shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_values(shape: tuple[int, ...], axis: int) -> None:
    x = values(shape)
    np.testing.assert_allclose(Tensor(x).cumsum(axis).numpy(), x.cumsum(axis), atol=1e-12)
    np.testing.assert_allclose(Tensor(x).cumprod(axis).numpy(), x.cumprod(axis), rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(Tensor(x).cummax(axis)[0].numpy(), np.maximum.accumulate(x, axis))
    np.testing.assert_array_equal(Tensor(x).cummin(axis)[0].numpy(), np.minimum.accumulate(x, axis))
    whole = (x * 3).astype(np.int32)
    np.testing.assert_array_equal(Tensor(whole).cumsum(axis).numpy(), whole.cumsum(axis))
    places = np.indices(shape)[axis]
    reached = np.where(x == np.maximum.accumulate(x, axis), places, 0)
    np.testing.assert_array_equal(Tensor(x).cummax(axis)[1].numpy(), np.maximum.accumulate(reached, axis))


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_gradients_of_sums(shape: tuple[int, ...], axis: int) -> None:
    x, w = Tensor(values(shape), requires_grad=True), Tensor(values(shape, 2))
    (first,) = (x.cumsum(axis) * w).square().sum().gradient(x)
    outer = 2 * values(shape).cumsum(axis) * values(shape, 2) ** 2
    expected = np.flip(np.flip(outer, axis).cumsum(axis), axis)
    np.testing.assert_allclose(first.numpy(), expected, atol=1e-9)
    (second,) = first.sum().gradient(x)
    ones = np.flip(np.flip(2 * values(shape, 2) ** 2 * np.ones(shape).cumsum(axis), axis).cumsum(axis), axis)
    np.testing.assert_allclose(second.numpy(), ones, atol=1e-9)


def test_sums_of_millions_are_rounded_once() -> None:
    x = np.random.default_rng(3).random(2_000_000).astype(np.float32)
    np.testing.assert_allclose(Tensor(x).cumsum(0).numpy(), x.cumsum(0, dtype=np.float64), rtol=1e-7)


@pytest.mark.parametrize("name", AFTER)
def test_work_is_in_proportion_to_the_items(name: str) -> None:
    x = Tensor.empty(500, 1000)
    for running in (x.cumsum(1), x.exp().cumsum(1), x.cummax(1)[0], (x * 2).cumprod(1)):
        items = schedule_uops([AFTER[name](running).uop])
        operations = sum(compiled_kernel(item.ast, item.device).estimate.operations for item in items)
        assert operations < 100 * 500 * 1000


def test_a_gradient_takes_work_in_proportion_to_the_items() -> None:
    x = Tensor.empty(500, 1000, requires_grad=True)
    (gradient,) = x.cumsum(1).square().sum().gradient(x)
    items = schedule_uops([gradient.uop])
    assert sum(compiled_kernel(i.ast, i.device).estimate.operations for i in items) < 20 * 500 * 1000


@pytest.mark.parametrize("zeros", [(), (40,), (3, 41, 69)], ids=str)
def test_gradients_of_products(zeros: tuple[int, ...]) -> None:
    row, w = 1 + values((70,)) / 4, values((70,), 2)
    row[list(zeros)] = 0
    i, j, k = np.ogrid[:70, :70, :70]
    others = np.where((k <= j) & (k != i), row, 1).prod(2)  # of the items up to j, all but item i
    x = Tensor(row, requires_grad=True)
    (first,) = (x.cumprod(0) * Tensor(w)).sum().gradient(x)
    np.testing.assert_allclose(first.numpy(), np.where(np.tri(70).T, others, 0) @ w, atol=1e-10)
    (second,) = first[0].gradient(x)  # of the items up to j, all but the first and item i
    others = np.where((k <= j) & (k != i) & (k > 0), row, 1).prod(2)
    expected = np.where(np.tri(70).T, others, 0) @ w
    np.testing.assert_allclose(second.numpy(), np.where(np.arange(70) > 0, expected, 0), atol=1e-10)


def test_gradients_of_logarithms_of_sums() -> None:
    row, w = values((70,)) * 300, values((70,), 2)
    w[::3] = 0
    running = np.logaddexp.accumulate(row)
    shares = np.where(np.tri(70), np.exp(np.minimum(row - running[:, None], 0)), 0)
    x = Tensor(row, requires_grad=True)
    (first,) = (x.logcumsumexp(0) * Tensor(w)).sum().gradient(x)
    np.testing.assert_allclose(first.numpy(), w @ shares, atol=1e-12)
    (second,) = first.sum().gradient(x)  # sums of shares are constant
    np.testing.assert_allclose(second.numpy(), np.zeros(70), atol=1e-12)


@pytest.mark.parametrize("name", ["cumprod", "logcumsumexp"])
def test_such_gradients_take_little_work(name: str) -> None:
    x = Tensor.empty(500, 1000, requires_grad=True)
    (gradient,) = getattr(x, name)(1).square().sum().gradient(x)
    items = schedule_uops([gradient.uop])
    work = sum(compiled_kernel(i.ast, i.device).estimate.operations for i in items)
    assert work < 600 * 500 * 1000  # 10 steps of doubling, and the running values
