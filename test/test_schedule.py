"""What becomes a kernel: the fusion that the project promises, in-place writes, no work done twice.

Each count of kernels stands beside the values, compared with NumPy.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes, nn
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters
from tinygrad.schedule.items import ScheduleItem

Array = np.ndarray[Any, Any]


# --- helpers ----------------------------------------------------------------------------------------------


def normals(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def held(array: Array) -> Tensor:
    return Tensor(array).realize()


def kernels(items: list[ScheduleItem]) -> list[ScheduleItem]:
    return [i for i in items if i.ast.op is not Ops.COPY]


def assert_reads_follow_writes(items: list[ScheduleItem]) -> None:
    """No item reads a fresh buffer that a later item writes."""
    written: set[UOp] = set()
    produced = {b for i in items for b in i.buffers[:i.outputs]}
    for item in items:
        assert {b for b in item.buffers[item.outputs:] if b in produced} <= written
        written.update(item.buffers[:item.outputs])


def count(*results: Tensor) -> int:
    return len(kernels(results[0].schedule(*results[1:])))


def counted(run: Callable[[], object]) -> int:
    """The kernels that run while `run` does."""
    before = GlobalCounters.kernel_count
    run()
    return GlobalCounters.kernel_count - before


def one_kernel(result: Tensor, expected: Array, tolerance: float = 2e-6) -> None:
    assert count(result) == 1
    np.testing.assert_allclose(result.numpy(), expected, tolerance, tolerance)


def close(got: Tensor, expected: Array, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(got.numpy(), expected, tolerance, tolerance)


def gelu(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))))


# --- one kernel each --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (17,), (37, 5), (3, 1, 7), (1000, 100)])
def test_an_elementwise_chain_is_one_kernel(shape: tuple[int, ...]) -> None:
    x, y = normals(*shape), normals(*shape, seed=1)
    result = ((held(x) * held(y) + 1).exp() - held(x)).abs().sqrt()
    one_kernel(result, np.sqrt(np.abs(np.exp(x * y + 1) - x)), 2e-5)


@pytest.mark.parametrize("shape, axis", [((1,), 0), ((17,), 0), ((37, 5), 1), ((37, 5), 0), ((300, 1000), 1),
                                         ((3, 100, 7), (0, 2)), ((100, 100), None)])
def test_relu_times_two_then_sum_is_one_kernel(shape: tuple[int, ...], axis: Any) -> None:
    x = normals(*shape)
    one_kernel((held(x).relu() * 2).sum(axis), (np.maximum(x, 0).astype(np.float64) * 2).sum(axis), 2e-5)


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 5, 7), (17, 37, 64), (1, 300, 200), (200, 300, 1),
                                     (256, 128, 65)])
def test_matmul_bias_gelu_is_one_kernel(m: int, k: int, n: int) -> None:
    a, b, c = normals(m, k), normals(k, n), normals(n)
    one_kernel((held(a) @ held(b) + held(c)).gelu(), gelu(a.astype(np.float64) @ b + c), 1e-4)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("n, c, size, o, k", [(1, 1, 5, 1, 3), (2, 3, 9, 5, 3), (2, 16, 14, 32, 5),
                                              (1, 17, 7, 33, 1)])
def test_conv_bias_relu_is_one_kernel(n: int, c: int, size: int, o: int, k: int, padding: int) -> None:
    """Padding may store the padded image first; nothing else may."""
    x, w, bias = normals(n, c, size, size), normals(o, c, k, k), normals(o)
    result = held(x).conv2d(held(w), held(bias), padding=padding).relu()
    assert count(result) == 1 if padding == 0 else count(result) <= 2
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))
    close(result, np.maximum(np.einsum("nchwyx,ocyx->nohw", windows, w) + bias[:, None, None], 0), 1e-4)


ROWS = [(1, 1), (3, 5), (1, 1000), (17, 37), (128, 128), (1000, 64), (64, 2000), (2, 3, 5, 33)]


@pytest.mark.parametrize("shape", ROWS)
def test_softmax_is_one_kernel(shape: tuple[int, ...]) -> None:
    x = normals(*shape)
    for axis in (-1, 0):
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        one_kernel(held(x).softmax(axis), e / e.sum(axis, keepdims=True))
        logarithms = x - x.max(axis, keepdims=True) - np.log(e.sum(axis, keepdims=True))
        one_kernel(held(x).log_softmax(axis), logarithms, 5e-6)


@pytest.mark.parametrize("shape", ROWS)
def test_norms_with_weights_are_one_kernel(shape: tuple[int, ...]) -> None:
    x, w, b = normals(*shape), normals(shape[-1], seed=1), normals(shape[-1], seed=2)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    layer = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-5) * w + b
    one_kernel(held(x).layernorm() * held(w) + held(b), layer, 2e-5)
    rms = wide / np.sqrt((wide ** 2).mean(-1, keepdims=True) + 1e-5) * w
    one_kernel(held(x) * ((held(x) * held(x)).mean(-1, keepdim=True) + 1e-5).rsqrt() * held(w), rms, 2e-5)


def test_norm_layers_are_one_kernel() -> None:
    x = normals(37, 48)
    layer, rms = nn.LayerNorm(48), nn.RMSNorm(48)
    layer.weight, layer.bias, rms.weight = (held(normals(48, seed=i)) for i in range(3))
    assert count(layer(held(x))) == 1
    assert count(rms(held(x))) == 1


@pytest.mark.parametrize("shape", ROWS[1:])
def test_mean_and_variance_are_one_kernel(shape: tuple[int, ...]) -> None:
    x = normals(*shape)
    for axis in (-1, 0, tuple(range(len(shape)))):
        if np.prod([shape[a] for a in np.atleast_1d(axis)]) < 2:
            continue
        variance, mean = held(x).var_mean(axis)
        assert count(variance, mean) == 1
        variance.realize(mean)
        close(mean, x.mean(axis, dtype=np.float64), 2e-6)
        close(variance, x.astype(np.float64).var(axis, ddof=1), 2e-5)


@pytest.mark.parametrize("vocabulary, width, shape", [(10, 3, (4,)), (100, 1, (1,)), (1000, 64, (37,)),
                                                      (30000, 128, (4, 64))])
def test_embedding_lookup_is_one_kernel(vocabulary: int, width: int, shape: tuple[int, ...]) -> None:
    at = np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)
    table = normals(vocabulary, width)
    layer = nn.Embedding(vocabulary, width)
    layer.weight = held(table)
    one_kernel(layer(held(at)), table[at], 0)
    one_kernel(held(table)[held(at)], table[at], 0)


def test_embedding_lookup_reads_only_the_rows_it_needs() -> None:
    layer = nn.Embedding(30000, 16)
    layer.weight = held(normals(30000, 16))
    at = held(np.arange(4, dtype=np.int32))
    before = GlobalCounters.global_ops
    layer(at).realize()
    assert GlobalCounters.global_ops - before < 10000


# --- several outputs --------------------------------------------------------------------------------------


def test_siblings_over_the_same_items_are_one_kernel() -> None:
    """A softmax and the row statistics it is made of, all wanted."""
    x = normals(37, 50)
    t = held(x)
    highest = t.max(1, keepdim=True)
    total = (t - highest).exp().sum(1, keepdim=True)
    result = (t - highest).exp() / total
    assert count(result, highest, total) == 1
    result.realize(highest, total)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_array_equal(highest.numpy(), x.max(1, keepdims=True))
    close(total, e.sum(1, keepdims=True))
    close(result, e / e.sum(1, keepdims=True))


def test_an_output_that_feeds_another_is_stored_by_the_same_kernel() -> None:
    x = normals(100)
    inner = held(x).exp()
    outer = inner + 1
    assert count(outer, inner) == 1
    outer.realize(inner)
    close(inner, np.exp(x))
    close(outer, np.exp(x) + 1)


def test_outputs_of_different_shapes_from_one_source() -> None:
    x = normals(8, 9)
    t = held(x)
    total, sines = t.exp().sum(0), t.exp().sum(1)
    total.realize(sines)
    close(total, np.exp(x).sum(0))
    close(sines, np.exp(x).sum(1))


# --- nothing twice ----------------------------------------------------------------------------------------


def test_realizing_again_costs_nothing() -> None:
    x = held(normals(64))
    y = (x + 1).realize()
    assert counted(y.realize) == 0
    assert counted(lambda: y.numpy()) == 0
    z = y * 2
    assert counted(z.realize) == 1
    assert y.schedule() == []
    np.testing.assert_array_equal(z.numpy(), (normals(64) + 1) * 2)


def test_a_view_of_a_realized_tensor_costs_nothing() -> None:
    x = held(normals(6, 8))
    assert counted(lambda: x.permute(1, 0)[2:4].realize()) == 0
    assert counted(lambda: x.reshape(48).realize()) == 0


def test_a_value_realized_before_is_not_computed_in_later_graphs() -> None:
    x = held(normals(64, 64))
    inner = (x @ x)
    total = inner.sum(0)
    inner.realize()
    [item] = total.schedule()
    assert not any(n.op is Ops.MUL for n in item.ast.toposort())
    close(total, (normals(64, 64).astype(np.float64) @ normals(64, 64)).sum(0), 1e-4)


def test_an_expensive_value_that_two_kernels_use_is_stored_once() -> None:
    """exp(sin(sin(sin(x)))) summed over rows and over columns: one evaluation of each item."""
    x = normals(300, 400)
    value = held(x).sin().sin().sin().exp()
    rows, columns = value.sum(1), value.sum(0)
    items = rows.schedule(columns)
    sizes = [b.arg.size for i in items for b in i.buffers[:i.outputs]]
    assert sizes.count(x.size) == 1
    rows.realize(columns)
    close(rows, np.exp(np.sin(np.sin(np.sin(x.astype(np.float64))))).sum(1), 1e-5)
    close(columns, np.exp(np.sin(np.sin(np.sin(x.astype(np.float64))))).sum(0), 1e-5)


def test_an_expensive_factor_is_not_computed_in_the_inner_loop_of_a_matmul() -> None:
    a, b = normals(64, 64), normals(64, 64, seed=1)
    result = held(a).sin().exp() @ held(b)
    items = result.schedule()
    assert [i.buffers[0].arg.size for i in items] == [4096, 4096]
    close(result, np.exp(np.sin(a.astype(np.float64))) @ b, 1e-4)


@pytest.mark.parametrize("size", [3, 20, 200])
def test_a_sum_is_rounded_alike_wherever_it_is_compared(size: int) -> None:
    """The nearest of five centres, found in one kernel and used by two sums of another: a step of k-means."""
    x = normals(size + 5, 3)
    points, centres = held(x), held(x[:5])
    nearest = (points[:, None] - centres).square().sum(-1).argmin(1)
    hits = nearest.one_hot(5)
    means = (hits[:, :, None] * points[:, None]).sum(0) / hits.sum(0)[:, None]
    expected = np.square(x[:, None] - x[:5]).sum(-1).argmin(1)
    close(means, np.stack([x[expected == i].astype(np.float64).mean(0) for i in range(5)]), 1e-5)


def test_a_cheap_value_is_computed_where_it_is_used() -> None:
    x = held(normals(64, 64))
    negated = -x
    assert count(negated.sum(0)) == 1
    assert count(negated @ x) == 1


def test_matmuls_in_a_row_are_a_kernel_each() -> None:
    a = normals(64, 64) / 8
    t = held(a)
    assert count(t @ t @ t) == 2
    close(t @ t @ t, np.linalg.matrix_power(a.astype(np.float64), 3), 1e-4)


# --- constants --------------------------------------------------------------------------------------------


def test_constants_take_no_memory_from_their_users() -> None:
    x = held(normals(5, 6))
    result = x + Tensor.ones(5, 6) * 3 - Tensor.full((5, 6), 2)
    [item] = result.schedule()
    assert len(item.buffers) == 2
    close(result, normals(5, 6) + 1)


def test_arithmetic_of_constants_folds() -> None:
    folded = (Tensor.ones(4, 4) * 3 + 1).permute(1, 0)[1:]
    [item] = folded.contiguous().schedule()
    operations = {n.op for n in item.ast.toposort()}
    assert Ops.ADD not in operations and Ops.MUL not in operations
    np.testing.assert_array_equal(folded.numpy(), np.full((3, 4), 4, np.float32))


def test_multiplying_with_one_and_subtracting_zero_fold() -> None:
    """Adding zero does not: -0.0 + 0 is 0."""
    x = held(np.array([-0.0, 1], np.float32))
    [item] = (x * 1 - 0).schedule()
    assert {n.op for n in item.ast.toposort()} <= {Ops.SINK, Ops.ASSIGN, Ops.PARAM}
    np.testing.assert_array_equal(np.signbit((x * 1 - 0).numpy()), [True, False])
    np.testing.assert_array_equal(np.signbit((x + 0).numpy()), [False, False])


def test_zero_times_nan_stays_nan() -> None:
    x = np.array([np.nan, np.inf, 1], np.float32)
    np.testing.assert_array_equal((held(x) * 0).numpy(), np.array([np.nan, np.nan, 0], np.float32))


def test_padding_of_constants_is_right() -> None:
    np.testing.assert_array_equal(Tensor.ones(2, 3).pad(((1, 0), (0, 2))).numpy(),
                                  np.pad(np.ones((2, 3), np.float32), ((1, 0), (0, 2))))


# --- empty tensors and copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4)])
def test_tensors_without_items(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    t = Tensor(x)
    assert (t + 1).exp().numpy().shape == shape
    np.testing.assert_array_equal(t.sum().numpy(), np.float32(0))
    np.testing.assert_array_equal(t.sum(0).numpy(), x.sum(0))
    np.testing.assert_array_equal((t.prod(-1) + 1).numpy(), x.prod(-1) + 1)
    np.testing.assert_array_equal(t.pad(((1, 1),) * len(shape)).numpy(), np.pad(x, 1))
    product = Tensor(np.ones((3, 0), np.float32)) @ Tensor(np.ones((0, 4), np.float32))
    np.testing.assert_array_equal(product.numpy(), np.zeros((3, 4), np.float32))


def test_reductions_of_nothing_give_their_identity_whatever_they_would_reduce() -> None:
    """The masked value of `tril` does not change with the empty axis, which must not make it the maximum."""
    x = held(np.ones((3, 2), np.float32)).reshape(3, 1, 2).expand(3, 4, 2)[:, :0]
    assert not ((x.tril() + 1) > 0).any((0, 1)).numpy().any()
    np.testing.assert_array_equal((x * np.inf + np.inf).sum(1).numpy(), np.zeros((3, 2), np.float32))
    np.testing.assert_array_equal((x + 3).prod(1).numpy(), np.ones((3, 2), np.float32))


def test_a_value_beside_an_empty_one_made_of_it_is_computed() -> None:
    """A kernel without items runs nothing, so it may not store anything else."""
    x = held(normals(1))
    value = x * 3
    empty = value.expand(0) + 1
    empty.realize(value)
    assert empty.shape == (0,)
    np.testing.assert_array_equal(value.numpy(), normals(1) * 3)


def test_a_copy_between_devices_is_a_copy_item() -> None:
    x = normals(10, 3)
    y = (held(x).permute(1, 0) * 2).to("CPU:1")
    items = y.schedule()
    assert [i.ast.op for i in items] == [Ops.SINK, Ops.COPY]
    assert items[1].device == "CPU:1"
    z = y + 1
    assert z.device == "CPU:1"
    np.testing.assert_array_equal(z.numpy(), x.T * 2 + 1)


def test_a_copy_of_a_view_copies_what_the_view_shows() -> None:
    x = normals(10, 3)
    for view in (held(x)[2:5], held(x).permute(1, 0), held(x).flip(0), held(x)[:, 1:].reshape(20)):
        there = view.to("CPU:1")
        np.testing.assert_array_equal(there.numpy(), view.numpy())
    np.testing.assert_array_equal((Tensor.ones(2, 3).to("CPU:1") + 1).numpy(), np.full((2, 3), 2, np.float32))


def test_a_whole_buffer_is_copied_as_it_is() -> None:
    items = held(normals(10, 3)).reshape(5, 6).to("CPU:1").schedule()
    assert [i.ast.op for i in items] == [Ops.COPY]


# --- structure --------------------------------------------------------------------------------------------


def test_kernels_of_equal_structure_share_their_ast() -> None:
    first, second = (((held(normals(8, 9, seed=i)) * 3).exp().sum(0) + 1).schedule() for i in range(2))
    assert first[0].ast is second[0].ast
    assert set(first[0].buffers).isdisjoint(second[0].buffers)


def test_kernels_of_other_sizes_do_not() -> None:
    first, second = ((held(normals(8, n)) + 1).schedule() for n in (4, 5))
    assert first[0].ast is not second[0].ast


def test_the_same_buffer_twice_is_one_argument() -> None:
    x = held(normals(4, 4))
    [item] = (x @ x + x.permute(1, 0)).schedule()
    assert len(item.buffers) == 2


def test_scheduling_does_not_compute() -> None:
    y = held(normals(4)) + 1
    assert counted(y.schedule) == 0
    assert counted(y.realize) == 1


# --- large reductions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, axis", [((1 << 20,), None), ((1000, 1000), None), ((2, 1 << 19), 1),
                                         ((1048583,), None), ((3, 524309), 1)])
def test_large_sums_to_few_results_run_in_two_steps(shape: tuple[int, ...], axis: Any) -> None:
    """Odd and prime lengths too: the first step leaves enough pieces to share out."""
    x = normals(*shape)
    result = held(x).sum(axis)
    items = kernels(result.schedule())
    assert len(items) == 2
    assert items[0].buffers[0].arg.size >= 8
    close(result, x.astype(np.float64).sum(axis), 1e-4)


def test_large_maximum_runs_in_two_steps() -> None:
    x = normals(1024, 1024)
    assert count(held(x).max()) == 2
    assert held(x).max().item() == x.max()


def test_large_reductions_of_integers_are_exact() -> None:
    x = np.random.default_rng(0).integers(-100, 100, 1 << 20).astype(np.int32)
    assert held(x).sum().item() == int(x.sum())


# --- writes in place --------------------------------------------------------------------------------------


def test_a_write_reads_its_own_items_in_place() -> None:
    x = held(normals(100))
    memory = x.uop.base
    x.assign(x * 2 + 1)
    [item] = x.schedule()
    assert item.buffers[0].arg.identity == memory.arg.identity
    x.realize()
    close(x, normals(100) * 2 + 1)


@pytest.mark.parametrize("size", [1, 2, 17, 1000])
def test_a_write_that_reverses_its_target(size: int) -> None:
    x = held(normals(size))
    x.assign(x.flip(0)).realize()
    np.testing.assert_array_equal(x.numpy(), normals(size)[::-1])


def test_a_write_of_the_transpose() -> None:
    x = held(normals(37, 37))
    x.assign(x.permute(1, 0) + x).realize()
    np.testing.assert_array_equal(x.numpy(), normals(37, 37).T + normals(37, 37))


def test_a_write_of_a_shifted_copy() -> None:
    x = held(normals(1000))
    x.assign(x.roll(1, 0)).realize()
    np.testing.assert_array_equal(x.numpy(), np.roll(normals(1000), 1))


def test_a_write_of_a_matmul_with_itself() -> None:
    x = held(normals(33, 33))
    x.assign(x @ x).realize()
    close(x, normals(33, 33).astype(np.float64) @ normals(33, 33), 1e-4)


def test_a_write_of_a_running_sum_and_of_a_softmax() -> None:
    x = held(normals(8, 50))
    x.assign(x.cumsum(1)).realize()
    close(x, normals(8, 50).cumsum(1), 1e-5)
    y = held(normals(8, 50))
    y.assign(y.softmax(1)).realize()
    e = np.exp(normals(8, 50).astype(np.float64))
    close(y, e / e.sum(1, keepdims=True))


def test_swapping_two_buffers() -> None:
    a, b = held(normals(100)), held(normals(100, seed=1))
    old_a, old_b = a + 0, b + 0
    a.assign(old_b)
    b.assign(old_a)
    a.realize(b)
    np.testing.assert_array_equal(a.numpy(), normals(100, seed=1))
    np.testing.assert_array_equal(b.numpy(), normals(100))


def test_only_a_write_that_waits_in_a_circle_goes_through_a_buffer_of_its_own() -> None:
    """Two buffers swapped take three steps; writes that merely come after the swap take one each."""
    a, b = held(normals(100)), held(normals(100, seed=1))
    others = [held(normals(100, seed=i)) for i in range(2, 7)]
    old_a, old_b = a + 0, b + 0
    for t in others:
        old_b = old_b + t
    a.assign(old_b)
    b.assign(old_a)
    for t in others:
        t.assign(t * 2)
    assert len(others[0].schedule(*others[1:], a, b)) == 3 + len(others)
    others[0].realize(*others[1:], a, b)
    np.testing.assert_array_equal(b.numpy(), normals(100))
    close(a, sum(normals(100, seed=i) for i in range(1, 7)), 1e-5)
    for i, t in enumerate(others, 2):
        np.testing.assert_array_equal(t.numpy(), normals(100, seed=i) * 2)


def test_writes_in_a_ring() -> None:
    """Each of three buffers takes the sum of the next two's old values."""
    start = [normals(50, seed=i) for i in range(3)]
    buffers = [held(x.copy()) for x in start]
    old = [b * 1 for b in buffers]
    for i, b in enumerate(buffers):
        b.assign(old[(i + 1) % 3] + old[(i + 2) % 3])
    buffers[0].realize(*buffers[1:])
    for i, b in enumerate(buffers):
        np.testing.assert_array_equal(b.numpy(), start[(i + 1) % 3] + start[(i + 2) % 3])


def test_the_old_value_beside_the_write() -> None:
    x = held(normals(64))
    before = x * 3
    x.assign(x + 1)
    after = x * 5
    before.realize(x, after)
    np.testing.assert_array_equal(before.numpy(), normals(64) * 3)
    np.testing.assert_array_equal(x.numpy(), normals(64) + 1)
    np.testing.assert_array_equal(after.numpy(), (normals(64) + 1) * 5)


@pytest.mark.parametrize("make", [lambda x: x * 1, lambda x: x.contiguous() * 1,
                                  lambda x: x.reshape(8, 8).T * 1])
def test_an_old_value_that_needs_no_arithmetic_outlives_the_write(make: Callable[[Tensor], Tensor]) -> None:
    """`x * 1` folds to the memory of x itself; the write to come makes a copy of it necessary."""
    x = held(normals(64))
    before, realized = make(x), make(x).realize()
    x.assign(x + 1).realize()
    np.testing.assert_array_equal(realized.numpy(), before.numpy())
    expected = normals(64) if before.ndim == 1 else normals(64).reshape(8, 8).T
    np.testing.assert_array_equal(before.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), normals(64) + 1)


def test_the_old_sum_beside_the_write() -> None:
    x = held(normals(16, 64))
    total = x.sum(0)
    x.assign(x - total / 16)
    x.realize(total)
    close(total, normals(16, 64).sum(0), 1e-5)
    close(x, normals(16, 64) - normals(16, 64).mean(0), 1e-5)


def test_a_write_into_part_of_a_tensor() -> None:
    x = held(normals(6, 8))
    x[1:5:2, ::-1] = Tensor(normals(2, 8, seed=1))
    expected = normals(6, 8)
    expected[1:5:2, ::-1] = normals(2, 8, seed=1)
    np.testing.assert_array_equal(x.numpy(), expected)
    x[:, 0] = x[:, 7]
    expected[:, 0] = expected[:, 7]
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_write_into_part_from_an_overlapping_part() -> None:
    x = held(normals(100))
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy(), np.concatenate([normals(100)[:1], normals(100)[:-1]]))
    y = held(normals(100))
    y[:50] = y[25:75]
    np.testing.assert_array_equal(y.numpy(), np.concatenate([normals(100)[25:75], normals(100)[50:]]))


def test_a_chain_of_writes() -> None:
    x = held(normals(32))
    for _ in range(5):
        x.assign(x * 2 - 1)
    expected = normals(32)
    for _ in range(5):
        expected = expected * 2 - 1
    close(x, expected)


def test_a_chain_of_writes_between_two_buffers() -> None:
    a, b = held(normals(32)), held(normals(32, seed=1))
    x, y = normals(32), normals(32, seed=1)
    for _ in range(4):
        a.assign(a + b)
        b.assign(a * 0.5)
        x = x + y
        y = x * np.float32(0.5)
    a.realize(b)
    close(a, x)
    close(b, y)


def test_an_optimizer_step_is_one_kernel_a_parameter() -> None:
    parameter, momentum, gradient = (held(normals(64, 32, seed=i)) for i in range(3))
    momentum.assign(momentum * 0.9 + gradient)
    parameter.assign(parameter - momentum * 0.1)
    assert counted(lambda: parameter.realize(momentum)) <= 2
    moved = normals(64, 32, seed=1) * np.float32(0.9) + normals(64, 32, seed=2)
    close(momentum, moved)
    close(parameter, normals(64, 32) - moved * np.float32(0.1))


def test_every_kernel_reads_what_was_written_before_it() -> None:
    x, w = held(normals(4, 3, 12, 12)), held(normals(8, 3, 3, 3))
    y = x.conv2d(w, padding=1).relu().max_pool2d((2, 2)).flatten(1)
    result = (y @ held(normals(288, 10))).log_softmax()
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
    monkeypatch.setattr(Device["CPU"].renderer, "l2_bytes", 1 << 20)


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
