"""Tensors on several devices (`Tensor.shard`): values, gradients, writes and captured functions are those of
one device; parts lie where they were put; what cannot be is refused by name."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad import Tensor
from tinygrad.graph.ops import Ops
from tinygrad.schedule.spread import layout_of

TWO = ("CPU", "CPU:1")
THREE = ("CPU", "CPU:1", "CPU:2")
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape)


# --- random programs ------------------------------------------------------------------------------


Step = tuple[str, Callable[[Any, int, int], Any]]


def _axis_pair(ndim: int, a: int) -> tuple[int, int]:
    return a % ndim, (a + 1) % ndim


def _swapped(x: Any, a: int, b: int) -> Any:
    order = list(range(x.ndim))
    i, j = a % x.ndim, b % x.ndim
    order[i], order[j] = order[j], order[i]
    return x.permute(order) if isinstance(x, Tensor) else x.transpose(order)


def _cut(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    start = b % x.shape[axis]
    return x[tuple(slice(start, None) if i == axis else slice(None) for i in range(x.ndim))]


def _every_other(x: Any, a: int, b: int) -> Any:
    step = -2 if b % 2 else 2
    return x[tuple(slice(None, None, step) if i == a % x.ndim else slice(None) for i in range(x.ndim))]


def _padded(x: Any, a: int, b: int) -> Any:
    pads = tuple((b % 2, b % 3) if i == a % x.ndim else (0, 0) for i in range(x.ndim))
    return x.pad(pads) if isinstance(x, Tensor) else np.pad(x, pads)


def _merged(x: Any, a: int, b: int) -> Any:
    axis = a % max(x.ndim - 1, 1)
    if x.ndim < 2:
        return x
    return x.reshape((*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2:]))


def _taken_apart(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    size = x.shape[axis]
    inner = next((n for n in (2, 3) if size % n == 0), 1)
    return x.reshape((*x.shape[:axis], size // inner, inner, *x.shape[axis + 1:])) if x.ndim < 5 else x


def _minus_reduced(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    if isinstance(x, Tensor):
        return x - (x.max(axis, keepdim=True) if b % 2 else x.mean(axis, keepdim=True))
    return x - (x.max(axis, keepdims=True) if b % 2 else x.mean(axis, keepdims=True))


def _joined(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    return x.cat(x * 2, dim=axis) if isinstance(x, Tensor) else np.concatenate([x, x * 2], axis)


def _times_shifted(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    return x * (x.roll(1, axis) if isinstance(x, Tensor) else np.roll(x, 1, axis))


def _gram(x: Any, a: int, b: int) -> Any:
    rows = x.reshape((x.shape[0], -1))
    return rows @ (rows.T if isinstance(x, np.ndarray) else rows.transpose(0, 1)) * 0.1


def _summed(x: Any, a: int, b: int) -> Any:
    return x.sum(a % x.ndim) if x.ndim > 1 else x


STEPS: dict[str, Callable[[Any, int, int], Any]] = {
    f.__name__: f for f in (_swapped, _cut, _every_other, _padded, _merged, _taken_apart, _minus_reduced,
                            _joined, _times_shifted, _gram, _summed)}


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int | None, list[tuple[str, int, int]]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    count = draw(st.integers(2, 3))
    axes = [i for i, n in enumerate(shape) if n >= count]
    axis = draw(st.sampled_from([None, *axes]))
    number = st.integers(0, 5)
    return shape, count, axis, draw(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), number, number),
                                             min_size=1, max_size=4))


def _run(x: Any, steps: list[tuple[str, int, int]]) -> Any:
    for name, a, b in steps:
        if 0 in x.shape or x.size > 3000 if isinstance(x, np.ndarray) else 0 in x.shape or x.numel() > 3000:
            break
        x = STEPS[name](x, a, b)
    return x


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_programs_give_what_numpy_gives(program: Any) -> None:
    shape, count, axis, steps = program
    data = np.random.default_rng(1).normal(size=shape)
    expected = _run(data, steps)
    result = _run(Tensor(data).shard(THREE[:count], axis), steps)
    assert result.device == THREE[:count]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.realize().numpy(), expected, rtol=1e-9, atol=1e-9)
