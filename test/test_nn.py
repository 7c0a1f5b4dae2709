"""Functions and layers of neural networks against naive loops and closed forms in NumPy."""
from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.dtype import dtypes

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def close(actual: Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    found = actual.numpy()
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# --- references -------------------------------------------------------------------------------------


def reference_windows(x: Array, kernel: tuple[int, ...], stride: int = 1, dilation: int = 1) -> Array:
    """The windows over the last axes, one slice at a time."""
    axes = len(kernel)
    lead, sizes = x.shape[:-axes], x.shape[-axes:]
    outs = tuple((n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(sizes, kernel, strict=True))
    windows = np.empty((*lead, *outs, *kernel), x.dtype)
    for at in itertools.product(*(range(o) for o in outs)):
        places: Any = tuple(slice(o * stride, o * stride + dilation * (k - 1) + 1, dilation)
                       for o, k in zip(at, kernel, strict=True))
        window: Any = (..., *at, *(slice(None),) * axes)
        windows[window] = x[(..., *places)]
    return windows


def reference_conv(x: Array, weight: Array, bias: Array | None = None, groups: int = 1, stride: int = 1,
                   dilation: int = 1, pads: tuple[tuple[int, int], ...] | None = None) -> Array:
    """Convolution as a loop over groups of a product summed over channels and window."""
    axes = weight.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *(pads or ((0, 0),) * axes)))
    windows = reference_windows(x, weight.shape[2:], stride, dilation)
    c_in, c_out = weight.shape[1], weight.shape[0] // groups
    outs = []
    for g in range(groups):
        part = windows[:, g * c_in:(g + 1) * c_in]
        kernel = weight[g * c_out:(g + 1) * c_out]
        summed = (1, *range(2 + axes, 2 + 2 * axes))
        outs.append(np.moveaxis(np.tensordot(part, kernel, (summed, range(1, 2 + axes))), -1, 1))
    out = np.concatenate(outs, axis=1)
    return out if bias is None else out + bias.reshape(1, -1, *(1,) * axes)


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
def test_conv_transpose2d_scatters_the_kernel(groups: int, stride: int, padding: int, output_padding: int,
                                              dilation: int) -> None:
    scatters_the_kernel((2, 4, 5, 6), (3, 2), groups, stride, padding, output_padding, dilation)


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
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (4, 1)])
def test_interpolate_linear(size: tuple[int, int], align_corners: bool) -> None:
    x = normal(2, 4, 5)
    rows = reference_linear(np.swapaxes(x, 1, 2), size[0], align_corners)
    expected = reference_linear(np.swapaxes(rows, 1, 2), size[1], align_corners)
    close(Tensor(x).interpolate(size, align_corners=align_corners), expected)


@pytest.mark.parametrize("outs", [3, 5, 11])
def test_interpolate_nearest(outs: int) -> None:
    x = normal(2, 5)
    steps = np.arange(outs)
    close(Tensor(x).interpolate((outs,), "nearest"), x[:, steps * 5 // outs])
    exact = np.floor((steps + 0.5) * 5 / outs).astype(int)
    close(Tensor(x).interpolate((outs,), "nearest-exact"), x[:, exact])


def test_interpolate_refuses() -> None:
    with pytest.raises(ValueError, match="one of the modes linear, cubic, nearest.*got 'lanczos'"):
        Tensor.ones(2, 2).interpolate((4,), "lanczos")
    with pytest.raises(ValueError, match="align_corners with linear and cubic modes only, got 'nearest'"):
        Tensor.ones(2, 2).interpolate((4,), "nearest", align_corners=True)
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


# --- losses -----------------------------------------------------------------------------------------


def log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_class_numbers_and_probabilities(smoothing: float, reduction: str) -> None:
    x, y = normal(4, 5, 3), np.random.default_rng(1).integers(0, 5, (4, 3))
    onehot = np.moveaxis(np.eye(5)[y], -1, 1)
    loss = -(log_softmax(x, 1) * ((1 - smoothing) * onehot + smoothing / 5)).sum(1)
    expected = {"mean": loss.mean(), "sum": loss.sum(), "none": loss}[reduction]
    close(Tensor(x).cross_entropy(Tensor(y), reduction, smoothing), expected)  # type: ignore[arg-type]
    close(Tensor(x).cross_entropy(Tensor(onehot.astype(np.float32)), reduction,  # type: ignore[arg-type]
                                  smoothing), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sparse_categorical_crossentropy_leaves_ignored_labels_out(smoothing: float) -> None:
    x, y = normal(4, 3, 6), np.random.default_rng(2).integers(0, 6, (4, 3))
    y[0, 1] = y[2, 2] = -1
    target = (1 - smoothing) * np.eye(6)[y] + smoothing / 6
    loss = np.where(y == -1, 0, -(log_softmax(x, -1) * target).sum(-1))
    t, labels = Tensor(x), Tensor(y)
    close(t.sparse_categorical_crossentropy(labels, label_smoothing=smoothing), loss.sum() / 10)
    close(t.sparse_categorical_crossentropy(labels, label_smoothing=smoothing, reduction="none"), loss)


def test_cross_entropy_gradient_is_softmax_minus_target() -> None:
    x, y = normal(6, 4), np.array([0, 3, 1, 1, 2, 0], np.uint8)
    t = Tensor(x, requires_grad=True)
    t.sparse_categorical_crossentropy(Tensor(y)).backward()
    assert t.grad is not None
    close(t.grad, (np.exp(log_softmax(x, 1)) - np.eye(4)[y]) / 6)


def test_cross_entropy_of_certain_scores_is_finite() -> None:
    x = Tensor([[0.0, -math.inf, 1000.0]])
    assert x.cross_entropy(Tensor([2])).item() == 0
    assert x.cross_entropy(Tensor([0])).item() == 1000


def test_nll_loss_weighs_classes_and_ignores_one() -> None:
    x, weight = log_softmax(normal(5, 4, 2), 1), np.array([1, 2, 0.5, 3], np.float32)
    y = np.random.default_rng(3).integers(0, 4, (5, 2))
    picked = np.take_along_axis(x, y[:, None], 1)[:, 0]
    t, labels = Tensor(x), Tensor(y)
    close(t.nll_loss(labels), -picked.mean())
    close(t.nll_loss(labels, Tensor(weight)), -(picked * weight[y]).sum() / weight[y].sum())
    kept = np.where(y == 1, 0, weight[y])
    close(t.nll_loss(labels, Tensor(weight), ignore_index=1), -(picked * kept).sum() / kept.sum())
    close(t.nll_loss(labels, ignore_index=1, reduction="none"), np.where(y == 1, 0, -picked))
    close(t.nll_loss((labels == 1).where(-100, labels)), -picked[y != 1].mean())


def test_binary_crossentropy_of_probabilities_and_scores() -> None:
    x, y = normal(20) * 3, (normal(20, seed=1) > 0).astype(np.float32)
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    close(Tensor(x).sigmoid().binary_crossentropy(Tensor(y)), expected.mean(), 1e-4)
    close(Tensor(x).binary_crossentropy_logits(Tensor(y), "none"), expected)
    weighed = -(2 * y * np.log(p) + (1 - y) * np.log(1 - p))
    close(Tensor(x).binary_crossentropy_logits(Tensor(y), "sum", Tensor(2.0)), weighed.sum())
    close(Tensor([1.0, 0.0]).binary_crossentropy(Tensor([0.0, 0.0]), "none"), [100, 0])
    close(Tensor([1e4, -1e4]).binary_crossentropy_logits(Tensor([0.0, 0.0]), "none"), [1e4, 0])


def test_losses_refuse() -> None:
    x = Tensor.ones(4, 3)
    with pytest.raises(ValueError, match=r"integer labels of shape \(4,\), got float32 of shape \(4,\)"):
        x.cross_entropy(Tensor.ones(4))
    with pytest.raises(ValueError, match="'mean', 'sum' or 'none', got 'average'"):
        x.cross_entropy(Tensor([0, 1, 2, 0]), reduction="average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"integer labels of shape \(4,\)"):
        x.sparse_categorical_crossentropy(Tensor([0, 1]))
    with pytest.raises(ValueError, match="label_smoothing from 0 to 1"):
        x.cross_entropy(Tensor([0, 1, 2, 0]), label_smoothing=2)


# --- layers -----------------------------------------------------------------------------------------


def test_linear_and_its_first_values() -> None:
    layer, x = nn.Linear(300, 20), normal(4, 300)
    assert layer.bias is not None
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    close(layer(Tensor(x)), x @ weight.T + bias, 1e-4)
    bound = 1 / math.sqrt(300)
    assert 0.98 * bound < np.abs(weight).max() <= bound and abs(weight.mean()) < bound / 20
    assert nn.Linear(3, 2, bias=False).bias is None


def test_convolution_layers_have_torch_shapes() -> None:
    assert nn.Conv2d(4, 6, 3, groups=2).weight.shape == (6, 2, 3, 3)
    assert nn.Conv1d(4, 6, 5).weight.shape == (6, 4, 5)
    assert nn.ConvTranspose2d(4, 6, (3, 2), groups=2).weight.shape == (4, 3, 3, 2)
    assert nn.ConvTranspose1d(4, 6, 3).weight.shape == (4, 6, 3)
    x = normal(2, 4, 9)
    layer = nn.Conv1d(4, 6, 5, padding=2, stride=2)
    assert layer.bias is not None
    expected = reference_conv(x, layer.weight.numpy(), layer.bias.numpy(), stride=2, pads=((2, 2),))
    close(layer(Tensor(x)), expected, 1e-4)
    assert nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1)(Tensor(x)).shape == (2, 6, 20)
    with pytest.raises(ValueError, match="divisible by groups=3"):
        nn.Conv2d(4, 6, 3, groups=3)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batchnorm_trains_on_the_batch_and_tests_on_the_average(momentum: float | None) -> None:
    layer = nn.BatchNorm(3, momentum=momentum)
    running_mean, running_var = np.zeros(3), np.ones(3)
    for step in range(1, 4):
        x = normal(4, 3, 5, 2, seed=step) * 2 + 1
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        with Tensor.train():
            found = layer(Tensor(x))
        along = (1, 3, 1, 1)
        close(found, (x - mean.reshape(along)) / np.sqrt(var.reshape(along) + 1e-5), 1e-4)
        share = 1 / step if momentum is None else momentum
        running_mean = (1 - share) * running_mean + share * mean
        running_var = (1 - share) * running_var + share * var * 40 / 39
    close(layer.running_mean, running_mean)
    close(layer.running_var, running_var)
    assert layer.num_batches_tracked.item() == 3
    x = normal(2, 3, 1, 1)
    expected = (x - running_mean.reshape(along)) / np.sqrt(running_var.reshape(along) + 1e-5)
    close(layer(Tensor(x)), expected, 1e-4)


def test_batchnorm_gradient_goes_through_the_statistics() -> None:
    x, weights = normal(6, 2), normal(6, 2, seed=1)
    t = Tensor(x, requires_grad=True)
    with Tensor.train():
        (nn.BatchNorm(2)(t) * Tensor(weights)).sum().backward()
    # the closed form: (w - mean(w) - normalised * mean(w * normalised)) / sqrt(variance + eps)
    spread = np.sqrt(x.var(0) + 1e-5)
    unit = (x - x.mean(0)) / spread
    assert t.grad is not None
    close(t.grad, (weights - weights.mean(0) - unit * (weights * unit).mean(0)) / spread, 1e-4)


def test_batchnorm_gradients_of_gradients() -> None:
    rng = np.random.default_rng(4)
    x, weights, direction = rng.standard_normal((3, 7, 2))

    def gradient(x: Array) -> Array:
        spread = np.sqrt(x.var(0) + 1e-5)
        unit = (x - x.mean(0)) / spread
        return np.asarray((weights - weights.mean(0) - unit * (weights * unit).mean(0)) / spread)

    t = Tensor(x, requires_grad=True)
    with Tensor.train():
        out = nn.BatchNorm(2, affine=False, track_running_stats=False)(t)
    (first,) = (out * Tensor(weights)).sum().gradient(t)
    (second,) = (first * Tensor(direction)).sum().gradient(t)
    close(first, gradient(x), 1e-9)
    step = 1e-5
    expected = np.empty_like(x)
    for at in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[at] = step
        change = (gradient(x + moved) - gradient(x - moved)) / (2 * step)
        expected[at] = (change * direction).sum()
    close(second, expected, 1e-6)


def test_batchnorm_layers_do_not_share_statistics() -> None:
    first, second = nn.BatchNorm(2), nn.BatchNorm(2)
    with Tensor.train():
        first(Tensor(normal(8, 2) + 5)).realize()
    first.running_mean.realize()
    close(second.running_mean, [0, 0])


def test_batchnorm_refuses() -> None:
    with pytest.raises(ValueError, match=r"takes an input \(N, 3, ...\)"):
        nn.BatchNorm(3)(Tensor.ones(2, 4))
    with Tensor.train(), pytest.raises(ValueError, match="more than one value a channel"):
        nn.BatchNorm(3)(Tensor.ones(1, 3))


def test_group_and_instance_norm() -> None:
    x = normal(2, 6, 3, 4)
    for layer, groups in ((nn.GroupNorm(2, 6), 2), (nn.InstanceNorm(6), 6)):
        layer.weight, layer.bias = Tensor(normal(6, seed=1)), Tensor(normal(6, seed=2))
        parts = x.reshape(2, groups, -1)
        unit = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
        expected = unit.reshape(x.shape) * normal(6, seed=1).reshape(1, 6, 1, 1)
        close(layer(Tensor(x)), expected + normal(6, seed=2).reshape(1, 6, 1, 1), 1e-4)


def test_layer_norms_over_last_axes_and_channels() -> None:
    x = normal(2, 3, 4, 5)
    layer = nn.LayerNorm((4, 5))
    layer.weight, layer.bias = Tensor(normal(4, 5)), Tensor(normal(4, 5, seed=1))
    unit = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    close(layer(Tensor(x)), unit * normal(4, 5) + normal(4, 5, seed=1), 1e-4)
    unit = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(nn.LayerNorm2d(3)(Tensor(x)), unit, 1e-4)
    with pytest.raises(ValueError, match=r"\(..., 4, 5\), got \(5, 4\)"):
        layer(Tensor.ones(5, 4))


def test_rms_norm() -> None:
    x = normal(3, 8)
    close(nn.RMSNorm(8)(Tensor(x)), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))


def test_embedding_looks_rows_up_and_adds_gradients() -> None:
    layer, idx = nn.Embedding(7, 4), np.array([[1, 6, 1], [0, 3, 1]])
    found = layer(Tensor(idx))
    close(found, layer.weight.numpy()[idx])
    found.sum().backward()
    counts = np.bincount(idx.reshape(-1), minlength=7)
    assert layer.weight.grad is not None
    close(layer.weight.grad, counts[:, None] * np.ones((7, 4)))
    with pytest.raises(TypeError, match="Embedding takes integers, got float32"):
        layer(Tensor.ones(2))


def test_lstm_cell() -> None:
    cell, x, h, c = nn.LSTMCell(3, 4), normal(2, 3), normal(2, 4), normal(2, 4, seed=1)
    assert cell.bias_ih is not None and cell.bias_hh is not None
    gates = x @ cell.weight_ih.numpy().T + cell.bias_ih.numpy()
    gates = gates + h @ cell.weight_hh.numpy().T + cell.bias_hh.numpy()
    i, f, g, o = np.split(gates, 4, axis=1)
    c_next = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    h_found, c_found = cell(Tensor(x), (Tensor(h), Tensor(c)))
    close(c_found, c_next)
    close(h_found, np.tanh(c_next) / (1 + np.exp(-o)))
    assert cell(Tensor(x))[0].shape == (2, 4)


def test_sequential_applies_in_order() -> None:
    assert Tensor(3.0).sequential([lambda x: x + 1, lambda x: x * 2]).item() == 8


@pytest.mark.parametrize("kwargs", [{}, {"is_causal": True}, {"enable_gqa": True}], ids=str)
def test_attention_drops_weights_while_training(kwargs: dict[str, Any]) -> None:
    """Keys see one column of the identity each, so the result is the weights themselves: dropped, or divided
    by 1 - p."""
    query, key = normal(2, 4, 12, 8), normal(2, 2 if "enable_gqa" in kwargs else 4, 12, 8, seed=1)
    q, k = Tensor(query), Tensor(key)
    v = Tensor(np.broadcast_to(np.eye(12, dtype=np.float32), (*key.shape[:2], 12, 12)))
    weights = q.scaled_dot_product_attention(k, v, dropout_p=0.25, **kwargs).numpy()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)  # none is dropped outside of training
    with Tensor.train():
        Tensor.manual_seed(5)
        dropped = q.scaled_dot_product_attention(k, v, dropout_p=0.25, **kwargs).numpy()
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], weights[kept] / 0.75, rtol=1e-5)
    share = kept.sum() / (weights != 0).sum()
    assert abs(share - 0.75) < 3 * math.sqrt(0.75 * 0.25 / (weights != 0).sum())


def test_the_gradient_of_attention_has_the_same_dropped_weights() -> None:
    q, k = Tensor(normal(1, 6, 4), requires_grad=True), Tensor(normal(1, 6, 4, seed=1))
    v = Tensor(np.eye(6, dtype=np.float32)[None], requires_grad=True)
    with Tensor.train():
        Tensor.manual_seed(6)
        out = q.scaled_dot_product_attention(k, v, dropout_p=0.5)
        at_v, = (out * Tensor(normal(1, 6, 6, seed=2))).sum().gradient(v)
    close(at_v, np.swapaxes(out.numpy(), 1, 2) @ normal(1, 6, 6, seed=2))
