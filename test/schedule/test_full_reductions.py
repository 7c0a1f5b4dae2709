"""Reduces of much memory to few results: splits read memory in order, and give what NumPy does."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.helpers import prod
from tinygrad.schedule.split import LONG_RUN, MUCH_WORK

SHAPES = [(2663, 401), (768, 1024), (5003, 211), (13, 47, 37, 31), (3, 7919, 29), (700_001,),
          (7, 7, 109, 109), (7, 331, 331)]


def run_of(shape: tuple[int, ...]) -> int:
    """How many items each split of the sum of a tensor reads one behind the other."""
    first = schedule_uops([Tensor.empty(*shape).sum().uop])[0].ast
    (reduce,) = [n for n in first.toposort() if n.op is Ops.REDUCE]
    source, (_, axes) = reduce.src[0], reduce.arg
    inner = next(a for a in reversed(range(-1, len(source.shape))) if a not in axes)
    return prod(source.shape[inner + 1:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_splits_read_memory_in_order(shape: tuple[int, ...]) -> None:
    assert MUCH_WORK <= prod(shape) > run_of(shape)
    assert run_of(shape) >= LONG_RUN or shape == (7, 7, 109, 109)  # no axis is long, none has few rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.float64], ids=lambda d: d.name)
def test_reduces_of_all_axes(shape: tuple[int, ...], dtype: Any) -> None:
    values = np.random.default_rng(1).integers(-1000, -1, shape)
    x = Tensor(values, dtype=dtype).realize()
    assert x.max().item() == values.max()
    assert x.min().item() == values.min()
    assert x.sum().item() == pytest.approx(values.sum(), rel=1e-5)
    assert bool((x < 0).all().item())
    assert not bool((x >= 0).any().item())
    assert ((x == x.max()).where(2, 1)).cast(dtypes.float64).prod().item() == pytest.approx(
        np.where(values == values.max(), 2.0, 1.0).prod(), rel=1e-5)


@pytest.mark.parametrize("axis", [0, 1, (0, 2)], ids=str)
def test_reduces_that_leave_some_axes(axis: Any) -> None:
    values = np.random.default_rng(2).normal(size=(1009, 5, 211)).astype(np.float32) - 100
    x = Tensor(values).realize()
    np.testing.assert_array_equal(x.max(axis).numpy(), values.max(axis))
    np.testing.assert_allclose(x.sum(axis).numpy(), values.sum(axis, dtype=np.float64), rtol=1e-5)


MOVED = [((1, 0, 2), (0, 1, 2)),
         ((2, 1, 0), (0, 2)), ((2, 0, 1), (0,)), ((1, 2, 0), (2, 1)), ((1, 0, 2), (2,))]


@pytest.mark.parametrize("order, axes", MOVED, ids=str)
def test_axes_that_changed_places_are_reduced_as_they_lie(order: tuple[int, ...], axes: tuple[int, ...]
                                                           ) -> None:
    values = np.random.default_rng(2).integers(-9, 9, (5, 7, 11)).astype(np.float32)
    moved = Tensor(values).realize().permute(order)
    np.testing.assert_array_equal(moved.sum(axes).numpy(), values.transpose(order).sum(axes))
    np.testing.assert_array_equal(moved.max(axes, keepdim=True).numpy(),
                                  values.transpose(order).max(axes, keepdims=True))
    ast = schedule_uops([moved.sum(axes).uop])[0].ast
    stays = order == (1, 0, 2) and axes == (2,)  # what is left has changed places
    assert any(n.op is Ops.PERMUTE for n in ast.toposort()) is stays
