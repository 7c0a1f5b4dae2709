"""What becomes a kernel: the fusion that the project promises, in-place writes, no work done twice.

Each count of kernels stands beside the values, compared with NumPy.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import close, held, normal
from schedules import count, counted, kernels

from tinygrad import Tensor, nn
from tinygrad.codegen.contraction import contraction_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.access import accesses_of
from tinygrad.graph.ops import Ops
from tinygrad.helpers import GlobalCounters

Array = np.ndarray[Any, Any]


# --- helpers ----------------------------------------------------------------------------------------------


def one_kernel(result: Tensor, expected: Array, tolerance: float = 2e-6) -> None:
    assert count(result) == 1
    np.testing.assert_allclose(result.numpy(), expected, tolerance, tolerance)


def gelu(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))))


# --- one kernel each --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (17,), (37, 5), (3, 1, 7), (1000, 100)])
def test_an_elementwise_chain_is_one_kernel(shape: tuple[int, ...]) -> None:
    x, y = normal(*shape), normal(*shape, seed=1)
    result = ((held(x) * held(y) + 1).exp() - held(x)).abs().sqrt()
    one_kernel(result, np.sqrt(np.abs(np.exp(x * y + 1) - x)), 2e-5)


@pytest.mark.parametrize("shape, axis", [((1,), 0), ((17,), 0), ((37, 5), 1), ((37, 5), 0), ((300, 1000), 1),
                                         ((3, 100, 7), (0, 2)), ((100, 100), None)])
def test_relu_times_two_then_sum_is_one_kernel(shape: tuple[int, ...], axis: Any) -> None:
    x = normal(*shape)
    one_kernel((held(x).relu() * 2).sum(axis), (np.maximum(x, 0).astype(np.float64) * 2).sum(axis), 2e-5)


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 5, 7), (17, 37, 64), (1, 300, 200), (200, 300, 1),
                                     (256, 128, 65)])
def test_matmul_bias_gelu_is_one_kernel(m: int, k: int, n: int) -> None:
    a, b, c = normal(m, k), normal(k, n), normal(n)
    one_kernel((held(a) @ held(b) + held(c)).gelu(), gelu(a.astype(np.float64) @ b + c), 1e-4)


@pytest.mark.parametrize("groups, size, stored", [(1, 3, True), (32, 3, False), (32, 7, True)])
def test_a_padded_image_is_stored_with_its_zeros_where_it_is_read_often(groups: int, size: int,
                                                                       stored: bool) -> None:
    """Whoever padded it: the convolution, or the user before it."""
    edge = size // 2
    x, w = normal(2, 32, 14, 14), normal(32, 32 // groups, size, size, seed=1)
    image, weight = held(x), held(w)
    before = image.pad((edge, edge, edge, edge)).conv2d(weight, groups=groups)
    inside = image.conv2d(weight, groups=groups, padding=edge)
    assert count(before) == count(inside) == 1 + stored
    np.testing.assert_array_equal(before.numpy(), inside.numpy())


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("n, c, size, o, k", [(1, 1, 5, 1, 3), (2, 3, 9, 5, 3), (2, 16, 14, 32, 5),
                                              (1, 17, 7, 33, 1)])
def test_conv_bias_relu_is_one_kernel(n: int, c: int, size: int, o: int, k: int, padding: int) -> None:
    """Padding may store the padded image first; nothing else may."""
    x, w, bias = normal(n, c, size, size), normal(o, c, k, k), normal(o)
    result = held(x).conv2d(held(w), held(bias), padding=padding).relu()
    assert count(result) == 1 if padding == 0 else count(result) <= 2
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))
    close(result, np.maximum(np.einsum("nchwyx,ocyx->nohw", windows, w) + bias[:, None, None], 0), 1e-4)


ROWS = [(1, 1), (3, 5), (1, 1000), (17, 37), (128, 128), (1000, 64), (64, 2000), (2, 3, 5, 33)]


@pytest.mark.parametrize("shape", ROWS)
def test_softmax_is_one_kernel(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    for axis in (-1, 0):
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        one_kernel(held(x).softmax(axis), e / e.sum(axis, keepdims=True))
        logarithms = x - x.max(axis, keepdims=True) - np.log(e.sum(axis, keepdims=True))
        one_kernel(held(x).log_softmax(axis), logarithms, 5e-6)


@pytest.mark.parametrize("shape", ROWS)
def test_norms_with_weights_are_one_kernel(shape: tuple[int, ...]) -> None:
    x, w, b = normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    layer = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-5) * w + b
    one_kernel(held(x).layernorm() * held(w) + held(b), layer, 2e-5)
    rms = wide / np.sqrt((wide ** 2).mean(-1, keepdims=True) + 1e-5) * w
    one_kernel(held(x) * ((held(x) * held(x)).mean(-1, keepdim=True) + 1e-5).rsqrt() * held(w), rms, 2e-5)


def test_norm_layers_are_one_kernel() -> None:
    x = normal(37, 48)
    layer, rms = nn.LayerNorm(48), nn.RMSNorm(48)
    layer.weight, layer.bias, rms.weight = (held(normal(48, seed=i)) for i in range(3))
    assert count(layer(held(x))) == 1
    assert count(rms(held(x))) == 1


@pytest.mark.parametrize("shape", ROWS[1:])
def test_mean_and_variance_are_one_kernel(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
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
    table = normal(vocabulary, width)
    layer = nn.Embedding(vocabulary, width)
    layer.weight = held(table)
    one_kernel(layer(held(at)), table[at], 0)
    one_kernel(held(table)[held(at)], table[at], 0)


def test_embedding_lookup_reads_only_the_rows_it_needs() -> None:
    layer = nn.Embedding(30000, 16)
    layer.weight = held(normal(30000, 16))
    at = held(np.arange(4, dtype=np.int32))
    before = GlobalCounters.global_ops
    layer(at).realize()
    assert GlobalCounters.global_ops - before < 10000


# --- several outputs --------------------------------------------------------------------------------------


def test_siblings_over_the_same_items_are_one_kernel() -> None:
    """A softmax and the row statistics it is made of, all wanted."""
    x = normal(37, 50)
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
    x = normal(100)
    inner = held(x).exp()
    outer = inner + 1
    assert count(outer, inner) == 1
    outer.realize(inner)
    close(inner, np.exp(x))
    close(outer, np.exp(x) + 1)


def test_outputs_of_different_shapes_from_one_source() -> None:
    x = normal(8, 9)
    t = held(x)
    total, sines = t.exp().sum(0), t.exp().sum(1)
    total.realize(sines)
    close(total, np.exp(x).sum(0))
    close(sines, np.exp(x).sum(1))


# --- nothing twice ----------------------------------------------------------------------------------------


def test_realizing_again_costs_nothing() -> None:
    x = held(normal(64))
    y = (x + 1).realize()
    assert counted(y.realize) == 0
    assert counted(lambda: y.numpy()) == 0
    z = y * 2
    assert counted(z.realize) == 1
    assert y.schedule() == []
    np.testing.assert_array_equal(z.numpy(), (normal(64) + 1) * 2)


def test_a_view_of_a_realized_tensor_costs_nothing() -> None:
    x = held(normal(6, 8))
    assert counted(lambda: x.permute(1, 0)[2:4].realize()) == 0
    assert counted(lambda: x.reshape(48).realize()) == 0


def test_a_value_realized_before_is_not_computed_in_later_graphs() -> None:
    x = held(normal(64, 64))
    inner = (x @ x)
    total = inner.sum(0)
    inner.realize()
    [item] = total.schedule()
    assert not any(n.op is Ops.MUL for n in item.ast.toposort())
    close(total, (normal(64, 64).astype(np.float64) @ normal(64, 64)).sum(0), 1e-4)


def test_an_expensive_value_that_two_kernels_use_is_stored_once() -> None:
    """exp(sin(sin(sin(x)))) summed over rows and over columns: one evaluation of each item."""
    x = normal(300, 400)
    value = held(x).sin().sin().sin().exp()
    rows, columns = value.sum(1), value.sum(0)
    items = rows.schedule(columns)
    sizes = [b.arg.size for i in items for b in i.buffers[:i.outputs]]
    assert sizes.count(x.size) == 1
    rows.realize(columns)
    close(rows, np.exp(np.sin(np.sin(np.sin(x.astype(np.float64))))).sum(1), 1e-5)
    close(columns, np.exp(np.sin(np.sin(np.sin(x.astype(np.float64))))).sum(0), 1e-5)


def test_an_expensive_factor_is_not_computed_in_the_inner_loop_of_a_matmul() -> None:
    a, b = normal(64, 64), normal(64, 64, seed=1)
    result = held(a).sin().exp() @ held(b)
    items = result.schedule()
    assert [i.buffers[0].arg.size for i in items] == [4096, 4096]
    close(result, np.exp(np.sin(a.astype(np.float64))) @ b, 1e-4)


@pytest.mark.parametrize("size", [3, 20, 200])
def test_a_sum_is_rounded_alike_wherever_it_is_compared(size: int) -> None:
    """The nearest of five centres, found in one kernel and used by two sums of another: a step of k-means."""
    x = normal(size + 5, 3)
    points, centres = held(x), held(x[:5])
    nearest = (points[:, None] - centres).square().sum(-1).argmin(1)
    hits = nearest.one_hot(5)
    means = (hits[:, :, None] * points[:, None]).sum(0) / hits.sum(0)[:, None]
    expected = np.square(x[:, None] - x[:5]).sum(-1).argmin(1)
    close(means, np.stack([x[expected == i].astype(np.float64).mean(0) for i in range(5)]), 1e-5)


def test_a_cheap_value_is_computed_where_it_is_used() -> None:
    x = held(normal(64, 64))
    negated = -x
    assert count(negated.sum(0)) == 1
    assert count(negated @ x) == 1


def test_a_short_sum_of_products_is_not_computed_in_every_window() -> None:
    x, w, v = normal(1, 24, 12, 12), normal(112, 6, 1, 1, seed=1), normal(112, 1, 3, 3, seed=2)
    result = held(x).conv2d(held(w), groups=4).relu().conv2d(held(v), groups=112, padding=1, stride=2)
    assert count(result) == 2
    inner = np.einsum("gchw,gkc->gkhw", x.reshape(4, 6, 12, 12), w.reshape(4, 28, 6)).reshape(112, 12, 12)
    padded = np.pad(np.maximum(inner, 0), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_allclose(result.numpy()[0], (windows * v[:, 0][:, None, None]).sum((3, 4)), 1e-4, 1e-4)


def test_the_items_of_windows_are_counted_without_a_loop() -> None:
    """However they are counted, a mean is stored before a convolution reads it for each of its channels."""
    image, weight = held(normal(1, 32, 14, 14)), held(normal(64, 32, 1, 1, seed=1))
    means = (image.avg_pool2d((3, 3), stride=1, padding=1, count_include_pad=pads) for pads in (True, False))
    whole, own = (kernels(mean.conv2d(weight).schedule()) for mean in means)
    assert len(whole) == len(own) == 2 and whole[-1].ast is own[-1].ast
    assert sum(n.op is Ops.REDUCE for n in lower(own[0].ast).toposort()) == 1


def test_matmuls_in_a_row_are_a_kernel_each() -> None:
    a = normal(64, 64) / 8
    t = held(a)
    assert count(t @ t @ t) == 2
    close(t @ t @ t, np.linalg.matrix_power(a.astype(np.float64), 3), 1e-4)


def test_a_product_for_each_row_and_column_of_another_is_a_kernel() -> None:
    """There was no tile in both: the gradients of a convolution of 512 channels with 2 x 2 pixels, beside one
    with a pixel, took 46 of the 84 ms of a step of ResNet-18 on small images."""
    a, b, c, d = normal(16, 40), normal(40, 24), normal(16, 40, 4), normal(40, 24)
    beside = (held(c).permute(0, 2, 1) @ held(d)).permute(0, 2, 1)
    result = (held(a) @ held(b)).reshape(16, 24, 1) + beside
    assert count(result) == 2
    expected = (a.astype(np.float64) @ b)[..., None] + np.einsum("iks,kj->ijs", c.astype(np.float64), d)
    np.testing.assert_allclose(result.numpy(), expected, 1e-4, 1e-4)


def test_parts_of_a_product_that_one_kernel_wants_are_stored() -> None:
    """Gates: else they would be a product each, of which one is packed."""
    x, h, w, v = normal(9, 40), normal(9, 50), normal(40, 64, seed=1), normal(50, 64, seed=2)
    gates = held(x) @ held(w) + held(h) @ held(v)
    enter, cell, leave, scale = gates.chunk(4, dim=1)
    result = enter.sigmoid() * cell + leave * scale
    assert count(result) == 3
    expected = x.astype(np.float64) @ w + h.astype(np.float64) @ v
    enter, cell, leave, scale = np.split(expected, 4, 1)
    close(result, cell / (1 + np.exp(-enter)) + leave * scale, 1e-4)


def test_an_epilogue_is_stored_with_its_sum_where_that_would_be() -> None:
    """Whoever reads it computes it no more: a cheap one that few columns want, beside other values."""
    x, bias = held(normal(50, 40)), held(normal(24))
    weights = [held(normal(40, 24, seed=i)) / 6 for i in range(2)]
    narrow = held(normal(48, 3))
    sums = [x @ w + bias for w in weights]
    result = sums[0].relu().cat(sums[1].relu(), dim=1) @ narrow
    *_, last = kernels(result.schedule())
    assert bias.uop.base not in last.buffers
    wide = [np.maximum(s.numpy().astype(np.float64), 0) for s in sums]
    close(result, np.concatenate(wide, 1) @ narrow.numpy(), 1e-4)


def test_what_is_stored_anyway_is_read_by_all_who_want_it() -> None:
    a, b, c = normal(60, 50), normal(50, 40), normal(40, 30)
    made = held(a) @ held(b) + 1
    kept, result = made.contiguous(), made.relu() @ held(c)
    items = kept.schedule(result)
    assert len(kernels(items)) == 2
    assert sum(len(item.ast.src) for item in kernels(items)) == 2  # and nothing else is stored
    expected = a.astype(np.float64) @ b + 1
    np.testing.assert_allclose(kept.numpy(), expected, 1e-5, 1e-5)
    np.testing.assert_allclose(result.numpy(), np.maximum(expected, 0) @ c, 1e-4, 1e-4)


def test_an_epilogue_that_two_kernels_want_is_stored_by_that_of_its_sum() -> None:
    q, v = normal(4, 197, 48), normal(4, 197, 16, seed=1)
    scores = held(q) @ held(q).transpose(1, 2) * 0.1
    items = (scores.softmax(-1) @ held(v)).schedule(scores.logsumexp(-1).contiguous())
    assert len(kernels(items)[0].ast.src) == 1
    of_scores = [s for item in kernels(items) for s in item.ast.src if s.numel == 4 * 197 * 197]
    assert len(of_scores) == 1


def test_heads_that_the_products_behind_them_join_lie_side_by_side() -> None:
    weights, v, w, x = normal(2, 4, 50, 50), normal(2, 4, 50, 16), normal(64, 48), normal(100, 32)
    rows = (held(weights) @ held(v)).permute(0, 2, 1, 3).reshape(100, 64)
    results = rows @ held(w), rows.T @ held(x)
    items = kernels(results[0].schedule(results[1]))
    assert len(items) == 3
    assert not any(n.op in (Ops.IDIV, Ops.MOD) for item in items[1:] for n in lower(item.ast).toposort())
    expected = (weights.astype(np.float64) @ v).transpose(0, 2, 1, 3).reshape(100, 64)
    close(results[0], expected @ w, 1e-4)
    close(results[1], expected.T @ x, 1e-4)


@pytest.mark.parametrize("groups", [2, 4])
def test_the_columns_of_a_group_are_known_where_channels_are_joined(groups: int) -> None:
    """A grouped convolution with a bias, an activation and a residual is tiled as a batch of products is."""
    x, w, bias = held(normal(1, 64, 9, 9)), held(normal(64, 64 // groups, 1, 1)), held(normal(64))
    result = x.conv2d(w, bias, groups=groups).relu() + x
    [item] = result.schedule()
    assert any(contraction_of(node) for node in lower(item.ast).toposort())
    pixels, weights = x.numpy().reshape(groups, -1, 81), w.numpy().reshape(groups, 64 // groups, -1)
    blocks = np.einsum("gkp,gok->gop", pixels, weights)
    expected = np.maximum(blocks.reshape(1, 64, 9, 9) + bias.numpy()[:, None, None], 0) + x.numpy()
    close(result, expected, 1e-4)


@pytest.mark.parametrize("heads", [1, 4])
def test_the_columns_of_a_head_are_known_where_heads_are_joined(heads: int) -> None:
    """What attention gives, scaled once its heads lie side by side again, is tiled as a batch of products."""
    weights, values = held(normal(2, heads, 9, 11)), held(normal(2, heads, 11, 16))
    joined = (weights @ values).transpose(1, 2).reshape(2, 9, 16 * heads) * 0.125 + 1
    [item] = joined.schedule()
    assert any(contraction_of(node) for node in lower(item.ast).toposort())
    expected = np.einsum("bhtk,bhkd->bthd", weights.numpy(), values.numpy()).reshape(2, 9, -1) * 0.125 + 1
    close(joined, expected, 1e-4)


def test_the_channels_of_all_groups_lie_side_by_side() -> None:
    """What reads them does not have to know of the groups."""
    x, w = held(normal(1, 32, 12, 12)), held(normal(48, 8, 3, 3))
    image = x.conv2d(w, groups=4).relu()
    *_, reader = kernels(image.pad((0, 0, 0, 0, 1, 1)).unfold(1, 3, 1).sum(-1).schedule())
    loads = [a for a in accesses_of(lower(reader.ast)) if a.node.op is Ops.LOAD]
    assert all(any(step == 1 for step in load.steps.values()) for load in loads)


def test_a_bias_says_nothing_of_the_order_of_what_it_is_added_to() -> None:
    x, w, bias = held(normal(1, 4, 20, 20, 6)), held(normal(24, 1, 3, 3)), held(normal(24))
    shuffled = x.permute(0, 4, 1, 2, 3).reshape(1, 24, 20, 20)
    image = shuffled.conv2d(w, bias, groups=24, padding=1)
    [kernel] = [i for i in kernels(image.max_pool2d(3, stride=1).schedule()) if bias.uop.base in i.buffers]
    assert kernel.ast.src[0].src[0].st.contiguous


@pytest.mark.parametrize("batch", [1, 3])
def test_an_image_that_a_fully_connected_layer_reads_lies_in_the_order_of_its_rows(batch: int) -> None:
    x, w, v = held(normal(batch, 5, 16, 16)), held(normal(20, 5, 3, 3)), held(normal(11, 20 * 7 * 7))
    image = x.conv2d(w).relu().max_pool2d()
    *_, layer = kernels((image.flatten(1) @ v.T).schedule())
    assert not {n.op for n in lower(layer.ast).toposort()} & {Ops.IDIV, Ops.MOD}
    *_, convolution = kernels(image.conv2d(held(normal(7, 20, 3, 3))).schedule())
    channels = {step for load in accesses_of(lower(convolution.ast))
                for r, step in load.steps.items() if r.extent == 20}
    assert 1 in channels, "another convolution still reads its channels side by side"
    close(image.flatten(1) @ v.T, image.numpy().reshape(batch, -1) @ v.numpy().T, 1e-4)


def test_what_a_batch_of_products_makes_lies_in_rows() -> None:
    """A batch of few rows is no weight, whose channels lie side by side."""
    queries, keys, values, other = (held(normal(2, 3, n, 32)) for n in (16, 64, 64, 16))
    for tensor in (queries, keys, values):
        tensor.requires_grad = True
    (queries.scaled_dot_product_attention(keys, values) * other).sum().backward()
    assert queries.grad is not None and keys.grad is not None and values.grad is not None
    stores = [a for item in kernels(queries.grad.schedule(keys.grad, values.grad))
              for a in accesses_of(lower(item.ast)) if a.node.op is Ops.STORE]
    assert all(max(a.steps, key=lambda r: -a.steps[r]).extent in (32, 64) for a in stores)


# --- constants --------------------------------------------------------------------------------------------


def test_constants_take_no_memory_from_their_users() -> None:
    x = held(normal(5, 6))
    result = x + Tensor.ones(5, 6) * 3 - Tensor.full((5, 6), 2)
    [item] = result.schedule()
    assert len(item.buffers) == 2
    close(result, normal(5, 6) + 1)


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
    x = held(normal(1))
    value = x * 3
    empty = value.expand(0) + 1
    empty.realize(value)
    assert empty.shape == (0,)
    np.testing.assert_array_equal(value.numpy(), normal(1) * 3)


def test_a_copy_between_devices_is_a_copy_item() -> None:
    x = normal(10, 3)
    y = (held(x).permute(1, 0) * 2).to("CPU:1")
    items = y.schedule()
    assert [i.ast.op for i in items] == [Ops.SINK, Ops.COPY]
    assert items[1].device == "CPU:1"
    z = y + 1
    assert z.device == "CPU:1"
    np.testing.assert_array_equal(z.numpy(), x.T * 2 + 1)


def test_a_copy_of_a_view_copies_what_the_view_shows() -> None:
    x = normal(10, 3)
    for view in (held(x)[2:5], held(x).permute(1, 0), held(x).flip(0), held(x)[:, 1:].reshape(20)):
        there = view.to("CPU:1")
        np.testing.assert_array_equal(there.numpy(), view.numpy())
    np.testing.assert_array_equal((Tensor.ones(2, 3).to("CPU:1") + 1).numpy(), np.full((2, 3), 2, np.float32))


def test_a_whole_buffer_is_copied_as_it_is() -> None:
    items = held(normal(10, 3)).reshape(5, 6).to("CPU:1").schedule()
    assert [i.ast.op for i in items] == [Ops.COPY]


# --- structure --------------------------------------------------------------------------------------------


def test_kernels_of_equal_structure_share_their_ast() -> None:
    first, second = (((held(normal(8, 9, seed=i)) * 3).exp().sum(0) + 1).schedule() for i in range(2))
    assert first[0].ast is second[0].ast
    assert set(first[0].buffers).isdisjoint(second[0].buffers)


def test_kernels_of_other_sizes_do_not() -> None:
    first, second = ((held(normal(8, n)) + 1).schedule() for n in (4, 5))
    assert first[0].ast is not second[0].ast


def test_the_same_buffer_twice_is_one_argument() -> None:
    x = held(normal(4, 4))
    [item] = (x @ x + x.permute(1, 0)).schedule()
    assert len(item.buffers) == 2


def test_scheduling_does_not_compute() -> None:
    y = held(normal(4)) + 1
    assert counted(y.schedule) == 0
    assert counted(y.realize) == 1


# --- large reductions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, axis", [((1 << 20,), None), ((1000, 1000), None), ((2, 1 << 19), 1),
                                         ((1048583,), None), ((3, 524309), 1)])
def test_large_sums_to_few_results_run_in_two_steps(shape: tuple[int, ...], axis: Any) -> None:
    """Odd and prime lengths too: the first step leaves enough pieces to share out."""
    x = normal(*shape)
    result = held(x).sum(axis)
    items = kernels(result.schedule())
    assert len(items) == 2
    assert items[0].buffers[0].arg.size >= 8
    close(result, x.astype(np.float64).sum(axis), 1e-4)


def test_large_maximum_runs_in_two_steps() -> None:
    x = normal(1024, 1024)
    assert count(held(x).max()) == 2
    assert held(x).max().item() == x.max()


def test_large_reductions_of_integers_are_exact() -> None:
    x = np.random.default_rng(0).integers(-100, 100, 1 << 20).astype(np.int32)
    assert held(x).sum().item() == int(x.sum())


@pytest.mark.parametrize("rows, columns, kernels_made", [(64, 4096, 2), (64, 64, 1), (1, 4096, 1)])
def test_normalised_rows_are_stored_for_many_columns_that_many_tiles_read(rows: int, columns: int,
                                                                          kernels_made: int) -> None:
    """Then the product is one of two loads, which packs; few rows read their columns once."""
    x, weight = normal(rows, 512), normal(512, columns, seed=1)
    items = (held(x).layernorm() @ held(weight)).schedule()
    assert len(items) == kernels_made
    found = [contraction_of(node) for node in lower(items[-1].ast).toposort()]
    products = [contraction for contraction in found if contraction is not None]
    assert kernels_made == 1 or [f.op for c in products for f in c.factors] == [Ops.LOAD, Ops.LOAD]
    y = x.astype(np.float64)
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
    close(held(x).layernorm() @ held(weight), y @ weight, 1e-4)
