"""Layers and losses, against NumPy."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from arrays import close, normal
from convolution_references import Array, reference_conv

from tinygrad import Tensor, nn

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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_gradient_of_binary_crossentropy_is_finite_at_zero_and_one(dtype: str) -> None:
    """(x - y) / (x (1 - x)), of which the divisor stops at 1e-12, as in PyTorch."""
    sure = Tensor([40.0, -200.0], dtype=dtype, requires_grad=True)  # whose sigmoid is 1 and 0
    sure.sigmoid().binary_crossentropy(Tensor([1.0, 0.0], dtype=dtype)).backward()
    assert sure.grad is not None
    close(sure.grad.float(), [0, 0])
    x = Tensor([0.0, 1.0, 0.0, 1.0, 0.25], dtype=dtype, requires_grad=True)
    y = Tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=dtype, requires_grad=True)
    x.binary_crossentropy(y, "sum").backward()
    assert x.grad is not None and y.grad is not None
    steepest = np.inf if dtype == "float16" else 1e12
    close(x.grad.float(), [0, 0, -steepest, steepest, -4], 2e-3)
    close(y.grad.float(), [100, -100, 100, -100, np.log(3)], 4e-3)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_targets_of_binary_crossentropy_may_be_whole_numbers(dtype: str) -> None:
    x, y = Tensor([0.25, 0.25]), Tensor([1, 0]).cast(dtype)
    close(x.binary_crossentropy(y, "none"), -np.log([0.25, 0.75]))
    close(x.logit().binary_crossentropy_logits(y, "none"), -np.log([0.25, 0.75]))


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


def test_instance_norm_of_running_statistics_refuses_other_channels() -> None:
    with pytest.raises(ValueError, match=r"takes an input \(N, 3, ...\), got \(2, 4, 5\)"):
        nn.InstanceNorm1d(3, track_running_stats=True)(Tensor.ones(2, 4, 5))


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer, axes", [
    (nn.LayerNorm(8), 2), (nn.GroupNorm(1, 4), (1, 2)), (nn.InstanceNorm(4), 2), (nn.RMSNorm(8), 2),
    (nn.BatchNorm(4, track_running_stats=False), (0, 2)), (nn.BatchNorm(4), (0, 2)),
], ids=["LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "BatchNorm", "BatchNorm with averages"])
def test_norms_of_half_types_whose_squares_overflow(layer: Any, axes: Any, dtype: str) -> None:
    x = Tensor(normal(5, 4, 8) * 2000).cast(dtype)
    for name in ("weight", "bias"):
        if hasattr(layer, name):
            getattr(layer, name).replace(getattr(layer, name).cast(dtype))
    with Tensor.train():
        result = layer(x)
    wide = x.cast("float64").numpy()
    centred = wide if isinstance(layer, nn.RMSNorm) else wide - wide.mean(axes, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axes, keepdims=True))
    assert result.dtype is x.dtype
    np.testing.assert_allclose(result.cast("float64").numpy(), expected, rtol=2**-6, atol=2**-7)
    if isinstance(layer, nn.BatchNorm) and layer.track_running_stats:
        assert np.isfinite(layer.running_var.numpy()).all() and layer.running_var.numpy().min() > 1e4


def test_options_in_pytorchs_order_are_refused_where_they_mean_something_else() -> None:
    with pytest.raises(TypeError, match="affine is True or False, got 0.01; give momentum by name"):
        nn.BatchNorm2d(8, 1e-3, 0.01)
    with pytest.raises(ValueError, match="padding_mode is one of .*, got 'mirror'"):
        nn.Conv2d(1, 1, 3, padding_mode="mirror")
