"""Random programs: what the compiler computes, with and without optimisation, against NumPy."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from program_steps import Program
from random_programs import programs

from tinygrad import Context, Tensor


def check(program: Program) -> None:
    expected = program.run_numpy()
    for noopt in (0, 1):
        with Context(NOOPT=noopt):
            for got, wanted in zip(program.run_tensors(), expected, strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted, err_msg=f"NOOPT={noopt}")


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@examples(200)
@given(programs())
def test_random_programs(program: Program) -> None:
    check(program)


@pytest.mark.slow
@examples(2000)
@given(programs())
def test_many_random_programs(program: Program) -> None:
    check(program)


# --- found before ------------------------------------------------------------------------------------------


def test_an_item_of_padding_is_zero() -> None:
    """A view of padding alone has no axis left to carry its mask."""
    x = Tensor(np.array([[2.0]], np.float32))
    assert x.pad(((0, 0), (1, 0)))[0, 0].item() == 0
    assert (x.pad(((0, 0), (1, 0)))[0, 0] + 1).item() == 1
    assert x.pad(((1, 0), (0, 0)))[0].reshape(()).numpy() == 0


@pytest.mark.parametrize("size", [4, 7, 33, 35, 70])
def test_a_position_computed_in_lanes_is_read_in_lanes(size: int) -> None:
    """The address of the first lane, and the bounds of loops, still held loops that had become vectors."""
    order = np.random.default_rng(size).permutation(size)
    for x in (np.arange(size, dtype=np.int32), np.arange(size) % 3 == 0):
        expected = np.zeros(size, np.int32)
        expected[order] = x.cumsum()
        sums = Tensor(x).cast("int32").cumsum()
        scattered = sums.zeros_like().scatter(0, Tensor(order), sums)
        np.testing.assert_array_equal(scattered.numpy(), expected)


@pytest.mark.parametrize("shape", [(4, 2), (8, 3), (16, 4), (4, 16), (16, 16)], ids=str)
def test_a_position_computed_in_a_loop_of_lanes_is_read_at_a_distance(shape: tuple[int, int]) -> None:
    """What the whole vectors around strided lanes begin at still held loops that had become vectors."""
    x = np.random.default_rng(1).integers(-50, 50, shape).astype(np.int16)
    rows = np.random.default_rng(2).permuted(np.arange(shape[0])[:, None].repeat(shape[1], 1), axis=0)
    t = Tensor(x, requires_grad=False)
    total = t + t.scatter(0, Tensor(rows), t)
    expected = np.empty_like(x)
    np.put_along_axis(expected, rows, x, 0)
    expected += x
    found = total.gather(1, total % shape[1]).numpy()
    np.testing.assert_array_equal(found, np.take_along_axis(expected, expected % shape[1], 1))


@pytest.mark.parametrize("move", [
    lambda p: p.repeat_interleave(2, 0), lambda p: p.flip(1).pad(((1, 0), (0, 2))),
    lambda p: p.transpose(0, 1)[1:].expand(3, 1)])
@pytest.mark.parametrize("size", [1, 5])
def test_what_shows_stored_padding_comes_after_it(move: Callable[[Tensor], Tensor], size: int) -> None:
    """A kernel read the padding's memory, while its place in the order followed from what is padded."""
    x = Tensor(np.arange(size, dtype=np.int32).reshape(1, size) + 1)
    padded = (x * 3).contiguous().pad(((0, 0), (0, 1)))
    padded, moved = padded[:, -2:], -move(padded[:, -2:])
    Tensor.realize(moved, padded)
    expected = np.array([[size * 3, 0]], np.int32)
    np.testing.assert_array_equal(padded.numpy(), expected)
    np.testing.assert_array_equal(moved.numpy(), -move(Tensor(expected)).numpy())
