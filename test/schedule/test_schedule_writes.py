"""Schedules of writes in place: what is read first, what shares memory, what is copied."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from arrays import close, held, normal
from schedules import counted

from tinygrad import Tensor, Variable, dtypes
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.items import ScheduleItem

# --- helpers ----------------------------------------------------------------------------------------------


def assert_reads_follow_writes(items: list[ScheduleItem]) -> None:
    """No item reads a fresh buffer that a later item writes."""
    written: set[UOp] = set()
    produced = {b for i in items for b in i.buffers[:i.outputs]}
    for item in items:
        assert {b for b in item.buffers[item.outputs:] if b in produced} <= written
        written.update(item.buffers[:item.outputs])


# --- writes in place --------------------------------------------------------------------------------------


def test_a_write_reads_its_own_items_in_place() -> None:
    x = held(normal(100))
    memory = x.uop.base
    x.assign(x * 2 + 1)
    [item] = x.schedule()
    assert item.buffers[0].arg.identity == memory.arg.identity
    x.realize()
    close(x, normal(100) * 2 + 1)


@pytest.mark.parametrize("size", [1, 2, 17, 1000])
def test_a_write_that_reverses_its_target(size: int) -> None:
    x = held(normal(size))
    x.assign(x.flip(0)).realize()
    np.testing.assert_array_equal(x.numpy(), normal(size)[::-1])


def test_a_write_of_the_transpose() -> None:
    x = held(normal(37, 37))
    x.assign(x.permute(1, 0) + x).realize()
    np.testing.assert_array_equal(x.numpy(), normal(37, 37).T + normal(37, 37))


def test_a_write_of_a_shifted_copy() -> None:
    x = held(normal(1000))
    x.assign(x.roll(1, 0)).realize()
    np.testing.assert_array_equal(x.numpy(), np.roll(normal(1000), 1))


def test_a_write_of_a_matmul_with_itself() -> None:
    x = held(normal(33, 33))
    x.assign(x @ x).realize()
    close(x, normal(33, 33).astype(np.float64) @ normal(33, 33), 1e-4)


def test_a_write_of_a_running_sum_and_of_a_softmax() -> None:
    x = held(normal(8, 50))
    x.assign(x.cumsum(1)).realize()
    close(x, normal(8, 50).cumsum(1), 1e-5)
    y = held(normal(8, 50))
    y.assign(y.softmax(1)).realize()
    e = np.exp(normal(8, 50).astype(np.float64))
    close(y, e / e.sum(1, keepdims=True))


def test_swapping_two_buffers() -> None:
    a, b = held(normal(100)), held(normal(100, seed=1))
    old_a, old_b = a + 0, b + 0
    a.assign(old_b)
    b.assign(old_a)
    a.realize(b)
    np.testing.assert_array_equal(a.numpy(), normal(100, seed=1))
    np.testing.assert_array_equal(b.numpy(), normal(100))


def test_only_a_write_that_waits_in_a_circle_goes_through_a_buffer_of_its_own() -> None:
    """Two buffers swapped take three steps; writes that merely come after the swap take one each."""
    a, b = held(normal(100)), held(normal(100, seed=1))
    others = [held(normal(100, seed=i)) for i in range(2, 7)]
    old_a, old_b = a + 0, b + 0
    for t in others:
        old_b = old_b + t
    a.assign(old_b)
    b.assign(old_a)
    for t in others:
        t.assign(t * 2)
    assert len(others[0].schedule(*others[1:], a, b)) == 3 + len(others)
    others[0].realize(*others[1:], a, b)
    np.testing.assert_array_equal(b.numpy(), normal(100))
    close(a, sum(normal(100, seed=i) for i in range(1, 7)), 1e-5)
    for i, t in enumerate(others, 2):
        np.testing.assert_array_equal(t.numpy(), normal(100, seed=i) * 2)


def test_writes_in_a_ring() -> None:
    """Each of three buffers takes the sum of the next two's old values."""
    start = [normal(50, seed=i) for i in range(3)]
    buffers = [held(x.copy()) for x in start]
    old = [b * 1 for b in buffers]
    for i, b in enumerate(buffers):
        b.assign(old[(i + 1) % 3] + old[(i + 2) % 3])
    buffers[0].realize(*buffers[1:])
    for i, b in enumerate(buffers):
        np.testing.assert_array_equal(b.numpy(), start[(i + 1) % 3] + start[(i + 2) % 3])


def test_the_old_value_beside_the_write() -> None:
    x = held(normal(64))
    before = x * 3
    x.assign(x + 1)
    after = x * 5
    before.realize(x, after)
    np.testing.assert_array_equal(before.numpy(), normal(64) * 3)
    np.testing.assert_array_equal(x.numpy(), normal(64) + 1)
    np.testing.assert_array_equal(after.numpy(), (normal(64) + 1) * 5)


@pytest.mark.parametrize("make", [lambda x: x * 1, lambda x: x.contiguous() * 1,
                                  lambda x: x.reshape(8, 8).T * 1])
def test_an_old_value_that_needs_no_arithmetic_outlives_the_write(make: Callable[[Tensor], Tensor]) -> None:
    """`x * 1` folds to the memory of x itself; the write to come makes a copy of it necessary."""
    x = held(normal(64))
    before, realized = make(x), make(x).realize()
    x.assign(x + 1).realize()
    np.testing.assert_array_equal(realized.numpy(), before.numpy())
    expected = normal(64) if before.ndim == 1 else normal(64).reshape(8, 8).T
    np.testing.assert_array_equal(before.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), normal(64) + 1)


def test_the_old_sum_beside_the_write() -> None:
    x = held(normal(16, 64))
    total = x.sum(0)
    x.assign(x - total / 16)
    x.realize(total)
    close(total, normal(16, 64).sum(0), 1e-5)
    close(x, normal(16, 64) - normal(16, 64).mean(0), 1e-5)


def test_a_write_into_part_of_a_tensor() -> None:
    x = held(normal(6, 8))
    x[1:5:2, ::-1] = Tensor(normal(2, 8, seed=1))
    expected = normal(6, 8)
    expected[1:5:2, ::-1] = normal(2, 8, seed=1)
    np.testing.assert_array_equal(x.numpy(), expected)
    x[:, 0] = x[:, 7]
    expected[:, 0] = expected[:, 7]
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_write_into_part_from_an_overlapping_part() -> None:
    x = held(normal(100))
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy(), np.concatenate([normal(100)[:1], normal(100)[:-1]]))
    y = held(normal(100))
    y[:50] = y[25:75]
    np.testing.assert_array_equal(y.numpy(), np.concatenate([normal(100)[25:75], normal(100)[50:]]))


def test_a_chain_of_writes() -> None:
    x = held(normal(32))
    for _ in range(5):
        x.assign(x * 2 - 1)
    expected = normal(32)
    for _ in range(5):
        expected = expected * 2 - 1
    close(x, expected)


def test_a_chain_of_writes_between_two_buffers() -> None:
    a, b = held(normal(32)), held(normal(32, seed=1))
    x, y = normal(32), normal(32, seed=1)
    for _ in range(4):
        a.assign(a + b)
        b.assign(a * 0.5)
        x = x + y
        y = x * np.float32(0.5)
    a.realize(b)
    close(a, x)
    close(b, y)


def test_an_optimizer_step_is_one_kernel_a_parameter() -> None:
    parameter, momentum, gradient = (held(normal(64, 32, seed=i)) for i in range(3))
    momentum.assign(momentum * 0.9 + gradient)
    parameter.assign(parameter - momentum * 0.1)
    assert counted(lambda: parameter.realize(momentum)) <= 2
    moved = normal(64, 32, seed=1) * np.float32(0.9) + normal(64, 32, seed=2)
    close(momentum, moved)
    close(parameter, normal(64, 32) - moved * np.float32(0.1))


def test_every_kernel_reads_what_was_written_before_it() -> None:
    x, w = held(normal(4, 3, 12, 12)), held(normal(8, 3, 3, 3))
    y = x.conv2d(w, padding=1).relu().max_pool2d((2, 2)).flatten(1)
    result = (y @ held(normal(288, 10))).log_softmax()
    assert_reads_follow_writes(result.schedule())


def test_a_number_that_is_a_result_too_is_written_into_the_kernels_that_use_it() -> None:
    """One kernel read the zero that another one stored, before it did."""
    x = held(np.array([3.0], np.float32))
    wide, zero = Tensor.zeros(2), Tensor.zeros(1)
    results = [x.relu(), wide, x.relu().sum().gradient(x)[0], zero]
    assert_reads_follow_writes(results[0].schedule(*results[1:]))
    results[0].realize(*results[1:])
    assert [r.tolist() for r in results] == [[3], [0, 0], [1], [0]]


def test_half_types_accumulate_in_float32() -> None:
    x = np.full(5000, 0.001, np.float16)
    [item] = held(x).sum().schedule()
    reduces = [n for n in item.ast.toposort() if n.op is Ops.REDUCE]
    assert [n.dtype for n in reduces] == [dtypes.float32]
    assert abs(held(x).sum().item() - float(x[0]) * 5000) < 5e-3


@pytest.mark.parametrize("device", ["PYTHON", "CPU:1"])
def test_numbers_that_are_stored_for_another_kernel_are_stored_on_its_device(device: str) -> None:
    x = Tensor([1.0] * 5, device=device).realize()
    items = (Tensor.rand(5, device=device) * x).sum().schedule()
    assert {buffer.arg.device for item in items for buffer in item.buffers} == {device}


# --- operands in memory -------------------------------------------------------------------------------------


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core whose L2 cache has a megabyte, whatever the host's."""
    renderer = Device["CPU"].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, l2_bytes=1 << 20))


@pytest.mark.usefixtures("small_cache")
def test_an_operand_that_a_sum_would_walk_across_is_stored_along_it_first() -> None:
    rng = np.random.default_rng(0)
    for m, n in ((1024, 1280), (1280, 1024)):
        a, b = (rng.standard_normal((1024, size)).astype(np.float32) for size in (m, n))
        product = Tensor(a).realize().T @ Tensor(b).realize()
        copy, contraction = product.schedule()
        assert not any(x.op is Ops.REDUCE for x in copy.ast.toposort())
        assert any(x.op is Ops.REDUCE for x in contraction.ast.toposort())
        np.testing.assert_allclose(product.numpy(), a.T @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("small_cache")
def test_operands_that_fit_the_cache_or_lie_along_the_sum_are_read_where_they_are() -> None:
    small, large = (Tensor.ones(*shape).contiguous().realize() for shape in ((128, 128), (1024, 1280)))
    for product in (small.T @ small, large @ large.T):
        assert len(product.schedule()) == 1


@pytest.mark.usefixtures("small_cache")
def test_a_stored_activation_is_not_computed_again_for_its_transposed_copy() -> None:
    x, w = (Tensor.ones(1024, 1024).contiguous().realize() for _ in range(2))
    activation = (x @ w).gelu()
    steps = ((activation @ w) + (activation.T @ (activation + x))).schedule()
    contractions = [s for s in steps if any(n.op is Ops.REDUCE for n in s.ast.toposort())]
    assert len(contractions) == 3


@pytest.mark.usefixtures("small_cache")
def test_the_gradient_of_a_convolution_s_weight_is_summed_up_in_pieces_of_the_batch() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 32, 34, 34), (32, 32, 3, 3)))
    weight = Tensor(w, requires_grad=True).realize()
    output = Tensor(x).realize().conv2d(weight)
    (gradient,) = output.gradient(weight, gradient=Tensor.ones(*output.shape).contiguous().realize())
    assert len([s for s in gradient.schedule() if any(n.op is Ops.REDUCE for n in s.ast.toposort())]) == 2
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (32, 32), axis=(2, 3))
    expected = np.broadcast_to(windows.sum(axis=(0, 4, 5))[None], w.shape)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-3, atol=1e-2)


def test_a_number_is_not_stored_by_a_kernel_with_loops_to_share_out() -> None:
    weight = Tensor.ones(512, 512).contiguous().realize()
    count = Tensor.ones(1).contiguous().realize()
    counted = count + 1
    steps = Tensor.schedule(weight * counted, counted)
    assert len(steps) == 2


# --- values of their own inside a graph --------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, Variable("count", 1, 8).bind(5)], ids=["fixed", "dynamic"])
def test_what_is_contiguous_inside_is_stored_however_it_is_reshaped_above(count: int | Variable) -> None:
    x, w, memory = held(normal(8, 6)), held(normal(6, 12)), held(normal(8, 12))
    hidden = (x[:count] @ w).contiguous()
    heads = hidden.reshape(count, 2, 6).reshape(count, 2, 3, 2).permute(1, 0, 2, 3).permute(1, 0, 2, 3)
    memory[:count].assign(heads.reshape(count, 12) + 1).realize()
    assert hidden.uop.realized_view is not None
    [item] = heads.sum().schedule()
    assert hidden.uop.realized_view.base in item.buffers
    product = normal(8, 6)[:5] @ normal(6, 12)
    close(memory, np.concatenate([product + 1, normal(8, 12)[5:]]))
    close(heads.sum(), product.sum(), atol=1e-4)


def test_what_is_written_below_a_product_that_copies_it_is_not_written_again() -> None:
    memory, x, y = held(normal(768, 768)), held(normal(768, 768)), held(normal(768, 768))
    memory.assign(x * 2)
    (memory.T @ y).realize()  # both walk across lines: one is copied first, to be read in order
    assert memory.schedule() == []
    close(memory, normal(768, 768) * 2)
