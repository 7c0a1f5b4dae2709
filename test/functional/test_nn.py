"""Functions and layers of neural networks against naive loops and closed forms in NumPy."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from arrays import close, normal
from convolution_references import Array, reference_conv, reference_windows

from tinygrad import GlobalCounters, Tensor
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops

# --- convolution ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3)])
def test_conv2d_is_a_loop_over_windows(kernel: tuple[int, int], dilation: int, stride: int) -> None:
    x, w, b = normal(2, 3, 8, 9), normal(4, 3, *kernel), normal(4)
    found = Tensor(x).conv2d(Tensor(w), Tensor(b), stride=stride, dilation=dilation)
    close(found, reference_conv(x, w, b, stride=stride, dilation=dilation))


@pytest.mark.parametrize("groups", [2, 4])
def test_conv2d_groups_see_their_own_channels(groups: int) -> None:
    x, w = normal(2, 4, 5, 6), normal(8, 4 // groups, 3, 2)
    close(Tensor(x).conv2d(Tensor(w), groups=groups), reference_conv(x, w, groups=groups))


@pytest.mark.parametrize("axes", [1, 3])
def test_conv2d_takes_other_numbers_of_axes(axes: int) -> None:
    x, w = normal(2, 3, *(5, 4, 6)[:axes]), normal(2, 3, *(2, 3, 2)[:axes])
    close(Tensor(x).conv2d(Tensor(w), padding=1), reference_conv(x, w, pads=((1, 1),) * axes))


@pytest.mark.parametrize(("padding", "pads"), [
    (1, ((1, 1), (1, 1))),
    ((2, 1), ((2, 2), (1, 1))),
    ((0, 1, 2, 0), ((2, 0), (0, 1))),
    ("same", ((1, 2), (1, 1))),
    ("valid", ((0, 0), (0, 0))),
])
def test_conv2d_padding_forms(padding: Any, pads: tuple[tuple[int, int], ...]) -> None:
    x, w = normal(1, 2, 6, 5), normal(3, 2, 4, 3)
    close(Tensor(x).conv2d(Tensor(w), padding=padding), reference_conv(x, w, pads=pads))


def test_conv2d_of_halves_accumulates_in_float32() -> None:
    # 4096 additions of 1 stop at 2048 in float16 arithmetic
    x, w = Tensor.ones(1, 4096, 1, 1).half(), Tensor.ones(1, 4096, 1, 1).half()
    found = x.conv2d(w)
    assert found.dtype is dtypes.float16
    assert found.item() == 4096


def test_conv2d_gradients_are_the_transposed_loops() -> None:
    x, w = normal(2, 2, 5, 5), normal(3, 2, 3, 3)
    tx, tw = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    out = tx.conv2d(tw, stride=2, padding=1)
    weights = normal(*out.shape, seed=1)
    (out * Tensor(weights)).sum().backward()
    gx, gw = np.zeros((2, 2, 7, 7)), np.zeros_like(w, np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for n, o, i, j in np.ndindex(*weights.shape):
        gx[n, :, 2 * i:2 * i + 3, 2 * j:2 * j + 3] += weights[n, o, i, j] * w[o]
        gw[o] += weights[n, o, i, j] * padded[n, :, 2 * i:2 * i + 3, 2 * j:2 * j + 3]
    assert tx.grad is not None and tw.grad is not None
    close(tx.grad, gx[:, :, 1:-1, 1:-1], 1e-4)
    close(tw.grad, gw, 1e-4)


@pytest.mark.parametrize(("stride", "padding", "output_padding", "dilation"),
                         [(1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 2, 1), (2, 1, 0, 2), (1, 3, 0, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [(3, 2), (4, 2), (6, 3)])
def test_conv_transpose2d_scatters_the_kernel(kernel: tuple[int, int], groups: int, stride: int, padding: int,
                                              output_padding: int, dilation: int) -> None:
    scatters_the_kernel((2, 4, 5, 6), kernel, groups, stride, padding, output_padding, dilation)


@pytest.mark.parametrize(("kernel", "stride"), [(4, 2), (2, 2), (16, 16), (3, 1), (3, 2), (7, 2), (5, 3)])
def test_a_transposed_convolution_multiplies_no_zeros(kernel: int, stride: int) -> None:
    x, w = Tensor(normal(1, 16, 6, 6)), Tensor(normal(16, 4, kernel, kernel))
    Tensor.realize(x, w)
    GlobalCounters.reset()
    x.conv_transpose2d(w, stride=stride).realize()
    multiply_adds = 16 * 4 * (6 + -(-kernel // stride) - 1) ** 2
    assert GlobalCounters.global_ops < 3 * multiply_adds * kernel ** 2


@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_the_gradient_of_a_strided_convolution_multiplies_no_zeros(kernel: int) -> None:
    x, w = Tensor(normal(1, 8, 14, 14)), Tensor(normal(16, 8, kernel, kernel))
    out = x.conv2d(w, stride=2, padding=1)
    g = Tensor(normal(*out.shape))
    Tensor.realize(x, w, g)
    GlobalCounters.reset()
    out.gradient(x, gradient=g)[0].realize()
    outputs = out.shape[2] + -(-kernel // 2) - 1
    assert GlobalCounters.global_ops < 3 * 16 * 8 * (outputs * kernel) ** 2


def test_a_pixel_through_a_transposed_convolution_is_a_product_of_matrices() -> None:
    x, w = Tensor(normal(3, 8, 1, 1)), Tensor(normal(8, 4, 5, 5))
    Tensor.realize(x, w)
    GlobalCounters.reset()
    found = x.conv_transpose2d(w).realize()
    assert GlobalCounters.global_ops < 3 * 3 * 8 * 4 * 5 ** 2
    close(found, np.einsum("nc,coij->noij", x.numpy()[:, :, 0, 0], w.numpy()), 1e-4)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (2, 4)])
def test_kernels_longer_than_what_they_are_put_over(size: tuple[int, int], padding: int) -> None:
    scatters_the_kernel((2, 4, *size), (5, 6), 1, 1, padding, 0, 1)


@pytest.mark.parametrize(("stride", "padding", "output_padding"), [(3, 1, 2), (4, 1, 3), (5, 2, 4)])
def test_conv_transpose2d_may_leave_only_zeros_of_an_axis(stride: int, padding: int,
                                                          output_padding: int) -> None:
    scatters_the_kernel((2, 2, 3, 1), (3, 1), 1, stride, padding, output_padding, 1)


def scatters_the_kernel(shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, stride: int,
                        padding: int, output_padding: int, dilation: int) -> None:
    x, w, b = normal(*shape), normal(shape[1], 3, *kernel), normal(3 * groups)
    found = Tensor(x).conv_transpose2d(Tensor(w), Tensor(b), groups, stride, dilation, padding,
                                       output_padding)
    reach = tuple(dilation * (k - 1) + 1 for k in w.shape[2:])
    sizes = tuple((n - 1) * stride + r + output_padding for n, r in zip(x.shape[2:], reach, strict=True))
    whole = np.zeros((shape[0], 3 * groups, *sizes))
    for n, c, i, j in np.ndindex(*x.shape):
        g = c // (shape[1] // groups)
        rows = slice(i * stride, i * stride + reach[0], dilation)
        columns = slice(j * stride, j * stride + reach[1], dilation)
        whole[n, 3 * g:3 * g + 3, rows, columns] += x[n, c, i, j] * w[c]
    whole = whole[:, :, padding:sizes[0] - padding, padding:sizes[1] - padding]
    close(found, whole + b.reshape(1, -1, 1, 1), 1e-4)


@pytest.mark.parametrize("sizes", [(9,), (5, 6), (4, 3, 5)])
def test_convolution_of_one_item_without_a_batch(sizes: tuple[int, ...]) -> None:
    """As of a batch of one, in PyTorch; gradients too."""
    x, kernel = normal(4, *sizes), (2,) * len(sizes)
    for call in (lambda x: x.conv2d(Tensor(normal(6, 2, *kernel)), Tensor(normal(6)), 2, 2, padding=1),
                 lambda x: x.conv_transpose2d(Tensor(normal(4, 3, *kernel)), Tensor(normal(6)), 2, 2)):
        one, batch = Tensor(x, requires_grad=True), Tensor(x[None], requires_grad=True)
        found, expected = call(one), call(batch)
        assert found.shape == expected.shape[1:]
        close(found, expected.numpy()[0])
        found.square().sum().backward()
        expected.square().sum().backward()
        assert one.grad is not None and batch.grad is not None
        close(one.grad, batch.grad.numpy()[0])


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: x.conv2d(Tensor.ones(2, 4, 1, 1)), "the input has 3 channels, the weight takes 4"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 9, 9)), r"does not fit in \(5, 5\)"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1)), "as many axes"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1, 1), Tensor.ones(3)), r"takes a bias \(2,\)"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1, 1), padding="full"), "'same', 'valid' or sizes"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1, 1), padding="same", stride=2), "takes stride 1"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1, 1), padding=-3), "crops more than axis 2"),
    (lambda x: x.conv2d(Tensor.ones(2, 3, 1, 1), stride=0), "stride takes"),
    (lambda x: x.conv_transpose2d(Tensor.ones(2, 3, 1, 1)), "conv_transpose2d takes"),
])
def test_convolution_refuses(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(Tensor.ones(1, 3, 5, 5))


@pytest.mark.parametrize("padding", [-1, (-1, 2), (-2, -1, 1, 0)])
def test_negative_padding_crops(padding: Any) -> None:
    x, w = normal(2, 3, 7, 8), normal(4, 3, 3, 2)
    flat = {-1: (-1, -1, -1, -1), (-1, 2): (2, 2, -1, -1)}.get(padding, padding)
    rows, columns = (slice(max(-b, 0), n - max(-a, 0))
                     for b, a, n in ((flat[2], flat[3], 7), (flat[0], flat[1], 8)))
    grown = tuple(max(p, 0) for p in flat)
    xs = [Tensor(x, requires_grad=True) for _ in range(2)]
    found = xs[0].conv2d(Tensor(w), padding=padding)
    expected = xs[1][:, :, rows, columns].conv2d(Tensor(w), padding=grown)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    (found * found).sum().backward()
    (expected * expected).sum().backward()
    np.testing.assert_allclose(xs[0].grad.numpy(), xs[1].grad.numpy(), rtol=1e-5, atol=1e-5)
    if padding == -1:
        np.testing.assert_array_equal(Tensor(x).max_pool2d(2, padding=-1).numpy(),
                                      Tensor(x[:, :, 1:-1, 1:-1]).max_pool2d(2).numpy())


# --- pooling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2)])
def test_pooling_is_a_loop_over_windows(kernel: tuple[int, int], stride: int, dilation: int) -> None:
    x = normal(2, 3, 7, 8)
    windows = reference_windows(x, kernel, stride, dilation)
    t = Tensor(x)
    close(t.max_pool2d(kernel, stride, dilation), windows.max((-2, -1)))
    close(t.avg_pool2d(kernel, stride, dilation), windows.mean((-2, -1)))


def test_pooling_defaults_to_two_by_two_blocks() -> None:
    x = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
    close(Tensor(x).max_pool2d(), [[[[6, 8], [16, 18]]]])
    close(Tensor(x).avg_pool2d(), [[[[3, 5], [13, 15]]]])
    close(Tensor(x[0]).max_pool2d(), [[[6, 8], [16, 18]]])
    close(Tensor(x).max_pool2d((2,)), x[..., [1, 3]])


def test_padding_never_wins_a_maximum() -> None:
    x = -1 - np.abs(normal(1, 2, 4, 4))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    close(Tensor(x).max_pool2d(3, 2, padding=1), reference_windows(padded, (3, 3), 2).max((-2, -1)))
    whole = (100 * x).astype(np.int32)
    padded = np.pad(whole, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.iinfo(np.int32).min)
    close(Tensor(whole).max_pool2d(3, 2, padding=1), reference_windows(padded, (3, 3), 2).max((-2, -1)))


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_avg_pool2d_counts_what_it_says(ceil_mode: bool, count_include_pad: bool) -> None:
    # the definition, an output at a time: PyTorch's formula for the items that a window divides by
    x = normal(1, 1, 6, 7)
    kernel, stride, pad = 3, 2, 1
    sizes = []
    for n in x.shape[2:]:
        steps = (n + 2 * pad - kernel) / stride
        out = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
        sizes.append(out - 1 if (out - 1) * stride >= n + pad else out)
    expected = np.zeros((1, 1, *sizes))
    for i, j in np.ndindex(*sizes):
        (top, bottom), (left, right) = ((o * stride - pad, min(o * stride - pad + kernel, n + pad))
                                        for o, n in zip((i, j), x.shape[2:], strict=True))
        area = (bottom - top) * (right - left)
        inside = x[0, 0, max(0, top):max(0, bottom), max(0, left):max(0, right)]
        expected[0, 0, i, j] = inside.sum() / (area if count_include_pad else inside.size)
    close(Tensor(x).avg_pool2d(kernel, stride, 1, pad, ceil_mode, count_include_pad), expected)


def test_max_pool2d_ceil_mode_keeps_the_last_window() -> None:
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    close(Tensor(x).max_pool2d(2, ceil_mode=True), [[[[6, 8, 9], [16, 18, 19], [21, 23, 24]]]])


def test_max_pool2d_indices_name_the_first_maximum_and_unpool() -> None:
    x = np.array([[1, 5, 5, 0], [2, 2, 0, 0], [7, 1, 3, 3], [0, 7, 3, 4]], np.float32).reshape(1, 1, 4, 4)
    values, places = Tensor(x).max_pool2d(2, return_indices=True)
    close(values, [[[[5, 5], [7, 4]]]])
    close(places, [[[[1, 2], [8, 15]]]])
    expected = np.zeros(16)
    expected[[1, 2, 8, 15]] = [5, 5, 7, 4]
    close(values.max_unpool2d(places, 2), expected.reshape(1, 1, 4, 4))
    larger = values.max_unpool2d(places, 2, output_size=(5, 4)).numpy().reshape(-1)
    np.testing.assert_array_equal(larger, np.concatenate([expected, np.zeros(4)]))


def test_max_pool2d_overlapping_windows_unpool_each_place_once() -> None:
    x = normal(2, 3, 5, 6)
    values, places = Tensor(x).max_pool2d(3, 1, return_indices=True)
    found = values.max_unpool2d(places, 3, 1).numpy()
    kept = np.zeros_like(x)
    for n, c, i, j in np.ndindex(2, 3, 3, 4):
        window = x[n, c, i:i + 3, j:j + 3]
        di, dj = np.unravel_index(window.argmax(), (3, 3))
        kept[n, c, i + di, j + dj] = window.max()
    np.testing.assert_array_equal(found, kept)


def test_max_pool2d_gradient_goes_to_the_maximum() -> None:
    x = Tensor(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), requires_grad=True)
    x.max_pool2d().sum().backward()
    expected = np.zeros((4, 4))
    expected[1::2, 1::2] = 1
    assert x.grad is not None
    close(x.grad, expected.reshape(1, 1, 4, 4))


def test_pooling_refuses() -> None:
    with pytest.raises(ValueError, match="at most half the window"):
        Tensor.ones(1, 1, 4, 4).max_pool2d(2, padding=2)
    with pytest.raises(ValueError, match="at least as many"):
        Tensor.ones(4).avg_pool2d(2)
    with pytest.raises(ValueError, match="indices of the input's shape"):
        Tensor.ones(1, 1, 2, 2).max_unpool2d(Tensor.zeros(1, 1, 2, 1, dtype=dtypes.int32))


# --- resizing ---------------------------------------------------------------------------------------


def reference_linear(x: Array, outs: int, align_corners: bool) -> Array:
    n = x.shape[-1]
    if align_corners:
        places = np.arange(outs) * ((n - 1) / max(outs - 1, 1))
    else:
        places = np.clip((np.arange(outs) + 0.5) * n / outs - 0.5, 0, n - 1)
    return np.asarray(np.apply_along_axis(lambda row: np.interp(places, np.arange(n), row), -1, x))


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (4, 1), (8, 15), (12, 10)])
def test_interpolate_linear(size: tuple[int, int], align_corners: bool) -> None:
    x = normal(2, 4, 5)
    rows = reference_linear(np.swapaxes(x, 1, 2), size[0], align_corners)
    expected = reference_linear(np.swapaxes(rows, 1, 2), size[1], align_corners)
    close(Tensor(x).interpolate(size, align_corners=align_corners), expected)


@pytest.mark.parametrize("outs", [3, 5, 10, 11, 15])
def test_interpolate_nearest(outs: int) -> None:
    x = normal(2, 5)
    steps = np.arange(outs)
    close(Tensor(x).interpolate((outs,), "nearest"), x[:, steps * 5 // outs])
    exact = np.floor((steps + 0.5) * 5 / outs).astype(int)
    close(Tensor(x).interpolate((outs,), "nearest-exact"), x[:, exact])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "cubic"])
def test_of_no_items_resizing_makes_zeros(mode: str) -> None:
    np.testing.assert_array_equal(Tensor.ones(2, 0).interpolate((4,), mode).numpy(), np.zeros((2, 4)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_to_whole_numbers_of_items_neighbours_are_found_by_movement(mode: str) -> None:
    x = Tensor(normal(2, 3, 40))
    found = x.interpolate((120,), mode)
    (gradient,) = found.gradient(x, gradient=Tensor(normal(*found.shape)).realize())
    added_up = [n.src[0].numel for n in gradient.uop.toposort() if n.op is Ops.REDUCE]
    assert max(added_up) <= 2 * found.numel()


def test_interpolate_refuses() -> None:
    with pytest.raises(ValueError, match="one of the modes linear, cubic, nearest.*got 'lanczos'"):
        Tensor.ones(2, 2).interpolate((4,), "lanczos")
    with pytest.raises(ValueError, match="align_corners with linear and cubic modes only, got 'nearest'"):
        Tensor.ones(2, 2).interpolate((4,), "nearest", align_corners=True)
    with pytest.raises(ValueError, match="antialias with linear and cubic modes only"):
        Tensor.ones(2, 2).interpolate((4,), "area", antialias=True)
    with pytest.raises(ValueError, match=r"a factor for each of 1 axes, got \(2.0, 2.0\)"):
        Tensor.ones(2, 2).interpolate((4,), factors=(2.0, 2.0))
    with pytest.raises(ValueError, match=r"the last 2 axes of \(2, 2\) in mode 'bilinear', got \(4,\)"):
        Tensor.ones(2, 2).interpolate((4,), "bilinear")


def test_interpolate_rounds_integers_once() -> None:
    found = Tensor(np.array([[0, 1], [1, 1]], np.int32)).interpolate((3, 3), "bilinear", align_corners=True)
    assert found.dtype is dtypes.int32
    assert found.tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]  # 0.5 is rounded to 0, 0.75 to 1


# --- normalisation and dropout ----------------------------------------------------------------------


def test_layernorm_has_no_mean_and_unit_variance() -> None:
    x = normal(3, 4, 5)
    for axes in (-1, (1, 2)):
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        close(Tensor(x).layernorm(axes), (x - mean) / np.sqrt(var + 1e-5))


@pytest.mark.parametrize("p", [0, 1, 2, 3, math.inf])
def test_normalize_has_unit_norm(p: float) -> None:
    x = normal(4, 5)
    x[2] = 0
    norms = np.linalg.norm(x, ord=p, axis=1, keepdims=True)
    close(Tensor(x).normalize(p), x / np.maximum(norms, 1e-12))


def test_dropout_keeps_the_mean_and_only_in_training() -> None:
    x = Tensor.ones(1000)
    assert x.dropout(0.5) is x
    with Tensor.train():
        Tensor.manual_seed(3)
        found = x.dropout(0.25).numpy()
        assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.75)}
        assert abs((found == 0).mean() - 0.25) < 0.06
        assert x.dropout(0) is x
        close(x.dropout(1.0), np.zeros(1000))
        for p in (-0.1, 1.1):
            with pytest.raises(ValueError, match="probability from 0 to 1"):
                x.dropout(p)


def test_dropout_gradient_uses_the_same_mask() -> None:
    with Tensor.train():
        x = Tensor.ones(200, requires_grad=True)
        y = x.dropout(0.5)
        y.sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(y.numpy(), x.grad.numpy())


# --- attention --------------------------------------------------------------------------------------


def reference_attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def test_attention_and_its_masks() -> None:
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 7)
    tq, tk, tv = Tensor(q), Tensor(k), Tensor(v)
    close(tq.scaled_dot_product_attention(tk, tv), reference_attention(q, k, v))
    allowed = normal(5, 6, seed=1) > -0.5
    allowed[:, 0] = True
    close(tq.scaled_dot_product_attention(tk, tv, Tensor(allowed)), reference_attention(q, k, v, allowed))
    added = normal(2, 1, 5, 6, seed=2)
    close(tq.scaled_dot_product_attention(tk, tv, Tensor(added)), reference_attention(q, k, v, added))
    causal = np.tril(np.ones((5, 6), bool))
    close(tq.scaled_dot_product_attention(tk, tv, is_causal=True), reference_attention(q, k, v, causal))


def test_attention_groups_of_heads_share_keys() -> None:
    q, k, v = normal(1, 6, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), enable_gqa=True)
    close(found, reference_attention(q, k.repeat(3, 1), v.repeat(3, 1)))


def test_attention_refuses() -> None:
    q = Tensor.ones(2, 3, 4)
    with pytest.raises(ValueError, match=r"query \(..., L, E\)"):
        q.scaled_dot_product_attention(Tensor.ones(2, 3, 5), Tensor.ones(2, 3, 5))
    with pytest.raises(ValueError, match="not both"):
        q.scaled_dot_product_attention(q, q, Tensor.ones(3, 3), is_causal=True)


def test_attention_of_queries_without_items_is_the_mean_of_the_values():
    """As in PyTorch: all scores are 0."""
    value = Tensor([[1.0, 2.0], [3.0, 6.0]])
    query = Tensor.ones(3, 0)
    assert query.scaled_dot_product_attention(Tensor.ones(2, 0), value).tolist() == [[2.0, 4.0]] * 3
