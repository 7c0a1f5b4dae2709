"""Kernels that keep rows, stop where nothing is left to add, or read memory across: against NumPy."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import Array, normal

from tinygrad import Tensor, nn
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.cached_rows import cacheable_rows
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import Stage, Vector
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Softmax(q k^T / sqrt(d)) v in double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def plan_of(result: Tensor) -> tuple[UOp, Plan]:
    """The nest of the one kernel that computes `result`, and the cost model's plan."""
    [item] = result.schedule()
    nest = lower(item.ast)
    return nest, choose_plan(nest, Device["CPU"].renderer.machine)


# --- attention ----------------------------------------------------------------------------------------------

SHAPES = [(1, 2, 64, 64, 32), (2, 3, 37, 37, 16), (1, 1, 5, 5, 3), (1, 2, 50, 77, 64), (1, 2, 130, 130, 128),
          (1, 1, 1, 128, 64), (3, 1, 17, 33, 7)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "heads", "queries", "keys", "width"), SHAPES)
def test_attention_is_one_kernel(batch: int, heads: int, queries: int, keys: int, width: int,
                                 causal: bool) -> None:
    q, k, v = (normal(batch, heads, n, width, seed=i) for i, n in enumerate((queries, keys, keys)))
    result = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=causal)
    assert len(result.schedule()) == 1
    np.testing.assert_allclose(result.numpy(), attention(q, k, v, causal), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_written_by_hand_is_the_same_kernel(causal: bool) -> None:
    q, k, v = (normal(2, 3, 50, 24, seed=i) for i in range(3))
    scores = Tensor(q) @ Tensor(k).transpose(-1, -2) / 24**0.5
    if causal:
        scores = scores.masked_fill(Tensor.ones(50, 50).tril() == 0, float("-inf"))
    result = scores.softmax() @ Tensor(v)
    assert len(result.schedule()) == 1
    np.testing.assert_allclose(result.numpy(), attention(q, k, v, causal), rtol=1e-5, atol=2e-6)


def test_attention_over_a_panel_too_large_for_the_cache_is_still_right() -> None:
    q, k, v = (normal(1, 1, n, 64, seed=i) for i, n in enumerate((3, 20000, 20000)))
    result = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v))
    np.testing.assert_allclose(result.numpy(), attention(q, k, v, False), rtol=1e-4, atol=2e-6)


def test_what_a_causal_mask_hides_does_not_matter() -> None:
    """Keys and values after a query may be anything: NaN there stays there."""
    q, k, v = (normal(1, 1, 40, 8, seed=i) for i in range(3))
    v[..., 30:, :] = np.nan
    k[..., 35:, :] = np.inf
    result = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=True).numpy()
    seen = attention(*(x[..., :30, :] for x in (q, k, v)), True)
    np.testing.assert_allclose(result[..., :30, :], seen, rtol=1e-5, atol=2e-6)
    assert np.isnan(result[..., 30:, :]).all()


def test_causal_gradients_are_those_of_the_formula() -> None:
    q, k, v, g = (normal(1, 2, 33, 8, seed=i) for i in range(4))
    ours = [Tensor(x, requires_grad=True) for x in (q, k, v)]
    loss = (ours[0].scaled_dot_product_attention(ours[1], ours[2], is_causal=True) * Tensor(g)).sum()
    got = [x.numpy().astype(np.float64) for x in loss.gradient(*ours)]
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) / 8**0.5
    scores = np.where(np.tril(np.ones((33, 33), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g.astype(np.float64) @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / 8**0.5
    expected = [ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ g]
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_causal_loop_stops_at_the_diagonal() -> None:
    """The bounds of some loops are expressions of the loop over rows."""
    q = Tensor(normal(1, 2, 64, 16)).realize()
    nest, plan = plan_of(q.scaled_dot_product_attention(q, q, is_causal=True))
    bounded = [n for n in apply_plan(nest, plan).toposort() if n.op is Ops.RANGE and len(n.src) == 3]
    assert bounded
    assert all(n.src[2].ranges for n in bounded)
    nest, plan = plan_of(q.scaled_dot_product_attention(q, q))
    assert not [n for n in apply_plan(nest, plan).toposort() if n.op is Ops.RANGE and len(n.src) == 3]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 5), (33, 64), (100, 37)])
def test_sums_up_to_and_from_a_position(rows: int, columns: int) -> None:
    x = normal(rows, columns)
    at, along = Tensor.arange(rows).unsqueeze(1), Tensor.arange(columns)
    before = (along <= at).where(Tensor(x), 0).sum(1)
    after = (along > at).where(Tensor(x), 0).sum(1)
    largest = (along * 2 < at + 3).where(Tensor(x), -np.inf).max(1)
    i, j = np.arange(rows)[:, None], np.arange(columns)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(before.numpy(), np.where(j <= i, wide, 0).sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after.numpy(), np.where(j > i, wide, 0).sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(largest.numpy(), np.where(2 * j < i + 3, x, -np.inf).max(1))


# --- kept rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 16])
def test_sums_up_to_a_position_of_sums_from_one(size: int) -> None:
    b, c, d = (normal(size, size, seed=i) for i in range(3))
    later = Tensor.arange(size).unsqueeze(0) >= Tensor.arange(size).unsqueeze(1)  # [k, m]: m >= k
    inner = later.unsqueeze(1).where(Tensor(b).unsqueeze(1) * Tensor(c).unsqueeze(0), 0).sum(2)  # [k, i]
    upto = later.transpose(0, 1).unsqueeze(-1)  # [k, i]: i <= k
    result = upto.where(inner.unsqueeze(-1) * Tensor(d).unsqueeze(0), 0).sum(1)
    sums = np.triu(b) @ c.T
    np.testing.assert_allclose(result.numpy(), np.tril(sums) @ d, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 40, 64), (130, 32)])
def test_normalised_rows_are_the_operand_of_a_product_with_panels(shape: tuple[int, ...]) -> None:
    """Stored: cached beside a product that needs panels, they would leave it none."""
    x, weight = normal(*shape), normal(96, shape[-1], seed=1)
    product = Tensor(x).realize().layernorm() @ Tensor(weight).realize().T
    *_, last = product.schedule()
    assert sum(node.op is Ops.REDUCE for node in last.ast.toposort()) == 1
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) @ weight.T
    np.testing.assert_allclose(product.numpy(), expected, atol=1e-4)


def test_windows_are_added_up_before_a_norm_over_their_channels() -> None:
    """A depthwise convolution's neighbours share what they read, which items of a row of channels do not."""
    x, weight = normal(2, 16, 12, 10), normal(16, 1, 7, 7, seed=1)
    sums = Tensor(x).realize().conv2d(Tensor(weight).realize(), padding=3, groups=16)
    rows = sums.permute(0, 2, 3, 1).layernorm()
    reduces = [sum(n.op is Ops.REDUCE for n in item.ast.toposort()) for item in rows.schedule()]
    assert [n for n in reduces if n] == [1, 2]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (3, 3), (3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), (2, 3))
    expected = np.einsum("bchwij,cij->bhwc", windows, weight[:, 0])
    expected -= expected.mean(-1, keepdims=True)
    np.testing.assert_allclose(rows.numpy(), expected / np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-5),
                               atol=1e-4)


def test_every_row_is_kept_once() -> None:
    """After the rows are kept nothing dear is computed twice."""
    x = Tensor(normal(64, 256)).realize()
    nest, plan = plan_of(x.softmax())
    assert [row for row in cacheable_rows(nest) if row.is_expensive]
    assert not [row for row in cacheable_rows(apply_plan(nest, Plan(plan.opts[:1]))) if row.is_expensive]


def test_an_expensive_row_is_kept_though_it_lies_across_memory() -> None:
    """Else each column of the product computes the row anew. (What follows Whisper's convolutions, 200 x 256
    times 256 x 256, on two AVX-512 cores: 4.1 ms, and 0.4 kept.)"""
    channels, weight = normal(48, 40), normal(48, 96, seed=1)
    product = Tensor(channels).realize().T.gelu().layernorm() @ Tensor(weight).realize()
    nest, plan = plan_of(product)
    assert [row for row in cacheable_rows(nest) if row.is_expensive and row.repeats > 1]
    kept = apply_plan(nest, Plan(tuple(opt for opt in plan.opts if isinstance(opt, Stage))))
    assert not [row for row in cacheable_rows(kept) if row.is_expensive and row.repeats > 1]
    x = channels.T.astype(np.float64)
    rows = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    rows -= rows.mean(-1, keepdims=True)
    expected = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) @ weight
    np.testing.assert_allclose(product.numpy(), expected, atol=1e-4)


def test_a_long_value_is_not_mistaken_for_a_row() -> None:
    """The sum of a row of sums, spread over columns that change with other loops."""
    a = np.arange(42, dtype=np.float32).reshape(2, 7, 3)
    column = Tensor(np.array([[1.0, 2.0, 3.0]], np.float32)).tril()
    result = (column * -3.0 + Tensor(a).sum(2, keepdim=True)).sum(0)
    expected = np.tril([[1.0, 2.0, 3.0]]) * -3 + a.sum(2, keepdims=True)
    np.testing.assert_allclose(result.numpy(), expected.sum(0))


# --- lanes that jump ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(16, 16), (64, 48), (100, 37), (5, 300)])
def test_transposes_of_every_width(shape: tuple[int, int], dtype: str) -> None:
    x = (normal(*shape) * 50).astype(dtype)
    np.testing.assert_array_equal(Tensor(x).transpose(0, 1).contiguous().numpy(), x.T)


def test_a_large_transpose_gathers_nothing() -> None:
    [item] = Tensor(normal(64, 64)).realize().transpose(0, 1).contiguous().schedule()
    program = stages_of(item.ast, "CPU").program
    assert any(n.op is Ops.SHUFFLE for n in program)
    assert not any(n.op is Ops.INDEX and n.src[1].dtype.count > 1 for n in program)


@pytest.mark.parametrize("features", [48, 40, 36])
def test_keys_that_do_not_fill_a_panel_are_transposed_without_gathers(features: int) -> None:
    """Rows of 16, 8 or 4 items, the last panel's only as far as there are keys: gathering them took a third
    of the time of 7 heads of 611 keys and 112 features."""
    query, key, value = normal(2, 200, features), normal(2, 205, features), normal(2, 205, features)
    result = Tensor(query).realize().scaled_dot_product_attention(Tensor(key).realize(),
                                                                  Tensor(value).realize())
    [item] = result.schedule()
    assert not any(n.op is Ops.INDEX and n.src[1].dtype.count > 1 for n in stages_of(item.ast, "CPU").program)
    scores = query.astype(np.float64) @ key.transpose(0, 2, 1) / np.sqrt(features)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2)])
def test_channels_to_and_fro(axes: tuple[int, ...]) -> None:
    x = normal(2, 20, 9, 17)
    np.testing.assert_array_equal(Tensor(x).permute(*axes).contiguous().numpy(), x.transpose(axes))


@pytest.mark.parametrize("step", [2, 3, 4, 5, -1, -2, -3])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
def test_every_nth_item(step: int, dtype: str) -> None:
    x = (normal(7, 211) * 50).astype(dtype)
    np.testing.assert_array_equal((Tensor(x)[:, ::step] + 1).numpy(), x[:, ::step] + np.asarray(1, dtype))


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (5, 3)])
def test_pooling_windows(kernel: int, stride: int) -> None:
    x = normal(2, 3, 23, 41)
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(Tensor(x).max_pool2d(kernel, stride).numpy(), windows.max((-1, -2)))
    average = Tensor(x).avg_pool2d(kernel, stride).numpy()
    np.testing.assert_allclose(average, windows.mean((-1, -2)), rtol=1e-5, atol=1e-6)


def neighbouring_channels(x: Array) -> Array:
    """Of x (N, C, H, W), the squares of five neighbouring channels, summed."""
    padded = np.pad(x.astype(np.float64) ** 2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 5, 1).sum(-1))


def windows_of_three(x: Array) -> Array:
    """The largest in windows of 3 x 3, two apart."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max((-1, -2)))


def test_short_sums_in_windows_leave_lanes_to_the_outputs() -> None:
    """Neither has a loop that could have lanes. (96 channels of 109 x 109: 75 ms, and 10 with lanes.)"""
    x = normal(1, 12, 21, 41)
    padded = Tensor(x).realize().square().pad(((0, 0), (2, 2), (0, 0), (0, 0)))
    pooled = padded.unfold(1, 5, 1).sum(-1).max_pool2d(3, 2)
    _, plan = plan_of(pooled)
    assert any(isinstance(opt, Vector) for opt in plan.opts)
    np.testing.assert_allclose(pooled.numpy(), windows_of_three(neighbouring_channels(x)), rtol=1e-5)


def test_powers_are_stored_before_windows_that_overlap() -> None:
    """They are computed with digits to spare, as series in float64."""
    x = np.abs(normal(1, 12, 21, 41))
    result = (Tensor(x).realize() + 1).pow(0.7).max_pool2d(3, 2)
    assert len(result.schedule()) == 2
    np.testing.assert_allclose(result.numpy(), windows_of_three((x.astype(np.float64) + 1) ** 0.7), rtol=1e-6)


def test_a_depthwise_convolution_copies_no_input() -> None:
    x, w = normal(2, 8, 19, 21), normal(8, 1, 3, 3, seed=1)
    result = Tensor(x).conv2d(Tensor(w), padding=1, groups=8)
    assert len(result.schedule()) == 1
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_allclose(result.numpy(), np.einsum("bcyxij,cij->bcyx", windows, w[:, 0]), rtol=1e-5,
                               atol=1e-5)


def test_statistics_of_channels_that_lie_innermost_take_lanes_along_channels() -> None:
    images = normal(4, 6, 5, 32)
    norm = nn.BatchNorm(32)
    with Tensor.train():
        got = norm(Tensor(images).permute(0, 3, 1, 2)).numpy()
    wide = images.transpose(0, 3, 1, 2).astype(np.float64)
    mean, var = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(got, (wide - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)


# --- attention's gradients ----------------------------------------------------------------------------------


def attention_and_gradients(q: Array, k: Array, v: Array, w: Array, bias: Array) -> list[Array]:
    """softmax(q k^T / sqrt(E) + bias) v, and the gradients of its sum weighted with `w`: Vaswani et al. 2017,
    differentiated by hand."""
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    to_weights = w @ v.swapaxes(-1, -2)
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdims=True)) * scale
    return [weights @ v, to_scores @ k, to_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ w]


@pytest.mark.parametrize("queries, keys", [(40, 40), (33, 70)])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_is_one_kernel_and_its_gradients_three(mask: str, queries: int, keys: int) -> None:
    draw = np.random.default_rng(3)
    q, w = (draw.standard_normal((2, 3, queries, 16)).astype(np.float32) for _ in range(2))
    k, v = (draw.standard_normal((2, 3, keys, 16)).astype(np.float32) for _ in range(2))
    allowed = draw.random((queries, keys)) > 0.3
    allowed[:, 0] = True
    added = draw.standard_normal((queries, keys)).astype(np.float32)
    options: dict[str, dict[str, Any]] = {
        "none": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": Tensor(allowed)},
        "float": {"attn_mask": Tensor(added)}}
    bias = {"none": np.zeros(1), "causal": np.where(np.tri(queries, keys) > 0, 0, -np.inf),
            "bool": np.where(allowed, 0, -np.inf), "float": added}
    tensors = [Tensor(x).realize() for x in (q, k, v)]
    result = tensors[0].scaled_dot_product_attention(*tensors[1:], **options[mask])
    found = [result, *(result * Tensor(w)).sum().gradient(*tensors)]
    assert len(found[0].schedule(*found[1:])) == 4
    result.realize()
    assert len(found[1].schedule(*found[2:])) == 3
    expected = attention_and_gradients(*(x.astype(np.float64) for x in (q, k, v, w)), bias[mask])
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), exact, rtol=2e-5, atol=2e-5)


def test_rows_that_are_stored_are_right_where_others_read_them() -> None:
    x = np.random.default_rng(4).standard_normal((50, 37)).astype(np.float32)
    m = np.random.default_rng(5).standard_normal((37, 20)).astype(np.float32)
    weights = Tensor(x).softmax()
    results = [weights @ Tensor(m), weights.transpose(0, 1) @ Tensor(x), weights.realize()]
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    for ours, expected in zip(results, (exact @ m, exact.T @ x, exact), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "PYTHON:CUDA"])
@pytest.mark.parametrize(("rows", "items", "stored"), [(512, 1000, [512, 1]), (128, 10, [1])])
def test_the_rows_of_a_loss_are_shared_out_where_they_are_many(device: str, rows: int, items: int,
                                                               stored: list[int]) -> None:
    x = Tensor.empty(rows, items, device=device)
    y = Tensor.empty(rows, dtype="int32", device=device)
    for loss in (x.sparse_categorical_crossentropy(y), x.softmax().max(1).mean()):
        assert [item.buffers[0].arg.size for item in loss.schedule()] == stored
