"""What `test/differential/functional.py` cannot say of `nn.functional`: in place, random numbers, errors."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad.nn.functional as F
from tinygrad import Tensor, dtypes, nn
from tinygrad.nn import function_layers


@pytest.mark.parametrize("function", [F.relu, F.hardtanh, F.selu,
                                      lambda x, inplace: F.threshold(x, 0, 0.5, inplace)])
def test_in_place_overwrites_the_input_and_gradients_flow_through(function: Callable[..., Tensor]) -> None:
    weight = Tensor([2.0, -3.0, 0.5], requires_grad=True)
    expected = function(weight * 2, inplace=False)
    slope = expected.square().sum().gradient(weight)[0].tolist()
    x = weight * 2
    y = function(x, inplace=True)
    assert y is x and x.tolist() == expected.tolist()
    assert x.square().sum().gradient(weight)[0].tolist() == slope


def test_dropout_is_on_unless_told_otherwise() -> None:
    Tensor.manual_seed(3)
    x = Tensor.ones(200, 100)
    dropped = F.dropout(x, 0.25).numpy()
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.75)} and abs((dropped == 0).mean() - 0.25) < 0.02
    assert F.dropout(x, 0.25, training=False) is x and not Tensor.training


@pytest.mark.parametrize("function, shape, lead", [
    (F.dropout1d, (64, 8, 5), 2), (F.dropout2d, (64, 8, 3, 3), 2), (F.dropout3d, (64, 3, 3, 3), 1),
    (F.dropout1d, (64, 5), 1)])
def test_dropout_of_channels_drops_all_of_one(function: Callable[..., Tensor], shape: tuple[int, ...],
                                              lead: int) -> None:
    Tensor.manual_seed(4)
    dropped = function(Tensor.ones(*shape), 0.5).numpy().reshape(*shape[:lead], -1)
    assert (dropped == dropped[..., :1]).all() and set(np.unique(dropped)) == {0, 2}


def test_attention_drops_weights_whether_training_or_not() -> None:
    Tensor.manual_seed(5)
    x = Tensor.ones(1, 64, 4)
    dropped = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).numpy()
    assert not np.allclose(dropped, 1) and abs(dropped.mean() - 1) < 0.1 and not Tensor.training


def test_gumbel_softmax_draws_classes_as_often_as_their_probabilities_say() -> None:
    Tensor.manual_seed(6)
    chances = np.array([0.1, 0.6, 0.3], np.float32)
    logits = Tensor(np.tile(np.log(chances), (20_000, 1)), requires_grad=True)
    drawn = F.gumbel_softmax(logits, 0.5, hard=True)
    assert set(np.unique(drawn.numpy().round(5))) == {0, 1} and np.allclose(drawn.sum(1).numpy(), 1)
    assert np.abs(drawn.numpy().mean(0) - chances).max() < 5 * (0.25 / 20_000) ** 0.5
    soft = F.gumbel_softmax(logits, 0.5)
    assert np.allclose(soft.sum(1).numpy(), 1, atol=1e-5)
    assert np.isfinite(drawn[:, 0].sum().gradient(logits)[0].numpy()).all()


def test_rrelu_draws_a_slope_for_each_item_while_training() -> None:
    Tensor.manual_seed(6)
    layer, x = nn.RReLU(0.2, 0.6), Tensor.full((10_000,), -2.0, requires_grad=True)
    with Tensor.train():
        drawn = layer(x)
    slopes = drawn.numpy() / -2
    assert 0.2 <= slopes.min() < 0.21 and 0.59 < slopes.max() <= 0.6 and abs(slopes.mean() - 0.4) < 0.01
    np.testing.assert_allclose(drawn.sum().gradient(x)[0].numpy(), slopes, rtol=1e-6)
    np.testing.assert_allclose(layer(Tensor([-2.0, 3.0])).numpy(), [-0.8, 3.0], rtol=1e-6)


def test_a_triplet_loss_by_a_distance_of_ones_own() -> None:
    a, b, c = (Tensor([[v, 0.0]]) for v in (0.0, 1.0, 5.0))
    layer = nn.TripletMarginWithDistanceLoss(distance_function=lambda x, y: (x - y).abs().sum(-1), margin=7.0)
    assert layer(a, b, c).item() == 3 and layer(a, c, b).item() == 11


@pytest.mark.parametrize("call, message", [
    (lambda x: F.rrelu(x, 0.5, 0.25), "rrelu takes lower <= upper, got 0.5 and 0.25"),
    (lambda x: F.multilabel_margin_loss(x, x[0]), r"multilabel_margin_loss takes .* got \(2, 4\) and \(4,\)"),
    (lambda x: F.glu(x[:, :3]), r"glu takes an axis of even size, got axis -1 of shape \(2, 3\)"),
    (lambda x: F.softshrink(x, -1), "softshrink takes lambd >= 0"),
    (lambda x: F.layer_norm(x, (3,)), r"layer_norm of \(3,\) takes an input with these last axes"),
    (lambda x: F.group_norm(x, 3), "group_norm takes channels, axis 1, divisible by 3"),
    (lambda x: F.pixel_shuffle(x.reshape(2, 2, 2), 2), "pixel_shuffle by 2 takes"),
    (lambda x: F.pixel_unshuffle(x.reshape(1, 2, 4), 4), "pixel_unshuffle by 4 takes"),
    (lambda x: F.unfold(x, 2), "unfold takes images"),
    (lambda x: F.grid_sample(x, x), r"grid_sample takes images \(N, C, H, W\) and a grid"),
    (lambda x: F.grid_sample(Tensor.ones(1, 1, 2, 2), Tensor.ones(1, 2, 2, 2), "cubic"),
     "grid_sample has modes .*'bicubic'.*, the last of images alone"),
    (lambda x: F.grid_sample(Tensor.ones(1, 1, 2, 2, 2), Tensor.ones(1, 2, 2, 2, 3), "bicubic"),
     "grid_sample has modes .*'bicubic'.*, the last of images alone"),
    (lambda x: F.affine_grid(x, (1, 1, 2, 2)), r"affine_grid takes theta \(N, 2, 3\)"),
    (lambda x: F.ctc_loss(Tensor.ones(5, 2, 3), Tensor.ones(3, 2, dtype="int32"), [5, 5], [2, 2]),
     r"ctc_loss of \(5, 2, 3\) takes 2 rows of labels"),
    (lambda x: F.channel_shuffle(Tensor.ones(1, 3, 2), 2), "channel_shuffle takes channels, axis 1"),
    (lambda x: F.instance_norm(x, use_input_stats=False), "instance_norm takes running_mean and running_var"),
    (lambda x: F.instance_norm(x, x[0]), "instance_norm takes running_mean and running_var, or neither"),
    (lambda x: F.instance_norm(x, x[0], x[0]), "running statistics take more than one item a channel"),
    (lambda x: F.avg_pool2d(x.unsqueeze(0), 2, divisor_override=0), "a divisor_override that is not 0"),
    (lambda x: F.fold(Tensor.ones(8, 4), (4, 4), 2),
     r"fold to \(2, 4, 4\) takes columns of \(8, 9\), got \(8, 4\)"),
    (lambda x: F.adaptive_avg_pool2d(x, 1), "adaptive pooling over 2 axes takes as many sizes"),
    (lambda x: F.embedding_bag(x.long(), x, mode="median"), "the mode of embedding_bag is 'sum', 'mean' or"),
    (lambda x: F.embedding_bag(x[0].long(), x), r"\(items,\) with offsets \(bags,\), got \(4,\) with none"),
    (lambda x: F.embedding_bag(x.long(), x, per_sample_weights=x),
     r"per_sample_weights of the input's shape \(2, 4\) in mode 'sum', got \(2, 4\) in mode 'mean'"),
    (lambda x: nn.LSTM(4, 3)(x[:0]), r"LSTM takes a sequence of one step at least, got \(0, 4\)"),
    (lambda x: nn.GRU(4, 3, num_layers=0), "GRU takes num_layers >= 1, got 0"),
    (lambda x: nn.RNNCell(4, 0), "RNNCell takes hidden_size >= 1, got 0"),
    (lambda x: nn.LSTM(4, 3, proj_size=3), "LSTM takes a proj_size below hidden_size, 3"),
    (lambda x: nn.LSTM(4, 3, proj_size=2)(x, (x[:1, :3], x[:1, :3])),
     r"LSTM takes states of shape \(1, 2\) and \(1, 3\) with this input, got \(1, 3\), \(1, 3\)"),
    (lambda x: F.interpolate(x), "interpolate takes .*, and either a size or a scale_factor"),
    (lambda x: F.huber_loss(x, x, delta=0), "huber_loss takes delta > 0"),
    (lambda x: F.smooth_l1_loss(x, x, beta=-1), "smooth_l1_loss takes beta >= 0"),
    (lambda x: F.gaussian_nll_loss(x, x, x[:1]), "takes variances of that shape, or of one a row"),
    (lambda x: F.mse_loss(x, x, reduction="average"), "a loss takes reduction 'mean', 'sum' or 'none'"),
])
def test_what_cannot_be_is_said(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Tensor.ones(2, 4))


@pytest.mark.parametrize("call, message", [
    (lambda x: nn.LSTM(4, 3)(x, x[:1, :3]), r"LSTM takes a state of 2 tensors, \(h, c\), got \(3,\)"),
    (lambda x: nn.GRU(4, 3)(x, (x[:1, :3],)), "GRU takes a state of 1 tensor, h, got tuple"),
    (lambda x: nn.RNNCell(4, 3)(x, (x[:, :3],)), "RNNCell takes a state of 1 tensor, h, got tuple"),
    (lambda x: nn.LSTMCell(4, 3)(x, (x[:, :3],)), r"LSTMCell takes a state of 2 .*, got \(2, 3\)"),
])
def test_states_of_recurrent_layers_are_checked(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(Tensor.ones(2, 4))


@pytest.mark.parametrize("cell", [nn.RNNCell(4, 3), nn.RNN(4, 3)])
def test_a_nonlinearity_set_later_is_checked(cell: nn.RNNCell | nn.RNN) -> None:
    cell.nonlinearity = "gru"
    with pytest.raises(ValueError, match="nonlinearity is 'tanh' or 'relu', got 'gru'"):
        cell(Tensor.ones(2, 4))


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_losses_without_bound_have_a_slope_of_one_at_infinity(loss: Callable[..., Tensor]) -> None:
    x, y = Tensor([math.inf, -math.inf, 3.0, 0.25]), Tensor([0.0, 1.0, math.inf, 0.0])
    value = loss(x, y, reduction="sum")
    at_x, at_y = value.gradient(x, y)
    assert value.item() == math.inf
    assert at_x.tolist() == [1, -1, -1, 0.25] and at_y.tolist() == [-1, 1, 1, -0.25]


def test_prelu_of_infinity_leaves_the_weight_a_gradient() -> None:
    x, weight = Tensor([math.inf, -2.0, 0.0]), Tensor([0.25])
    at_x, at_weight = F.prelu(x, weight).sum().gradient(x, weight)
    assert at_x.tolist() == [1, 0.25, 0.25] and at_weight.tolist() == [-2]
    x, weight = Tensor([[1.0, -1.0]]), Tensor([math.nan, 0.5])
    assert F.prelu(x, weight).sum().gradient(x)[0].tolist() == [[1, 0.5]]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_windows_of_zeros_have_no_slope_in_lp_pool(p: int) -> None:
    x = Tensor([[[0.0, 0.0, 3.0, 0.0]]])
    pooled = F.lp_pool1d(x, p, 2)
    assert np.allclose(pooled.numpy(), [[[0, 3]]])
    at_x = pooled.sum().gradient(x)[0].numpy()
    assert np.allclose(at_x[0, 0], [0, 0, 1, 1 if p == 1 else 0])


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "mse_loss": F.mse_loss, "l1_loss": F.l1_loss, "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss, "kl_div": F.kl_div, "pairwise_distance": F.pairwise_distance,
    "cosine_embedding_loss": lambda x, y: F.cosine_embedding_loss(x, y, Tensor([1, -1])),
    "triplet_margin_loss": lambda x, y: F.triplet_margin_loss(x, y, x),
    "margin_ranking_loss": lambda x, y: F.margin_ranking_loss(x, y, Tensor([[1, 1, -1], [-1, 1, -1]])),
    "gaussian_nll_loss": lambda x, y: F.gaussian_nll_loss(x, y, Tensor.ones(2, 3)),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, (y > 60) * 1),
    "nll_loss": lambda x, y: F.nll_loss(x, Tensor([2, 0])),
    "multi_margin_loss": lambda x, y: F.multi_margin_loss(x, Tensor([2, 0]), margin=1),
    "local_response_norm": lambda x, y: F.local_response_norm(x, 2),
    "lp_pool1d": lambda x, y: F.lp_pool1d(x.unsqueeze(0), 2, 2),
    "adaptive_avg_pool1d": lambda x, y: F.adaptive_avg_pool1d(x, 2),
    "pdist": lambda x, y: F.pdist(x), "dist": lambda x, y: x.dist(y), "cdist": lambda x, y: x.cdist(y),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_real_numbers_take_integers_as_floats(name: str, dtype: str) -> None:
    """Differences and squares of small integers wrapped: the l1_loss of images 200 and 201 was 255."""
    x, y = np.array([[120, 3, 5], [7, 90, 0]]), np.array([[121, 100, 5], [9, 3, 12]])
    wide, narrow = ([Tensor(a, dtype=kind) for a in (x, y)] for kind in ("float32", dtype))
    found, expected = PAIRS[name](*narrow), PAIRS[name](*wide)
    assert found.dtype is dtypes.float32
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


def test_every_layer_of_a_function_is_exported() -> None:
    layers = {name for name, value in vars(function_layers).items()
              if isinstance(value, type) and issubclass(value, function_layers.FunctionLayer)}
    layers.remove("FunctionLayer")
    assert layers == set(function_layers.__all__) and layers <= set(nn.__all__)


def test_options_are_attributes_and_wrong_ones_are_refused() -> None:
    layer = nn.LeakyReLU(0.5)
    layer.negative_slope = 0.25  # type: ignore[attr-defined]
    assert layer(Tensor([-4.0])).item() == -1 and repr(nn.Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"
    with pytest.raises(TypeError, match="MaxPool2d.*missing a required argument: 'kernel_size'"):
        nn.MaxPool2d()
    with Tensor.train():
        assert set(np.unique(nn.Dropout(0.5)(Tensor.ones(100)).numpy())) == {0, 2}


def test_batch_norm_moves_the_running_statistics() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3, 5)).astype(np.float32)
    mean, variance = Tensor.zeros(3).contiguous(), Tensor.ones(3).contiguous()
    F.batch_norm(Tensor(x), mean, variance, training=True, momentum=0.3)
    np.testing.assert_allclose(mean.numpy(), 0.3 * x.mean((0, 2)), 1e-5, 1e-6)
    np.testing.assert_allclose(variance.numpy(), 0.7 + 0.3 * x.var((0, 2), ddof=1), 1e-5)


def test_batches_of_no_items() -> None:
    images, places = Tensor.zeros(0, 4, 3, 3), Tensor.zeros(0, 4, 3, 3, dtype="int64")
    assert F.grid_sample(images, Tensor.zeros(0, 2, 5, 2)).shape == (0, 4, 2, 5)
    assert F.max_unpool2d(images, places, 2).shape == (0, 4, 6, 6)
    for layer in (nn.GroupNorm(2, 4), nn.InstanceNorm(4), nn.InstanceNorm2d(4, affine=True)):
        assert layer(images).shape == images.shape


def test_instance_norm_moves_the_running_statistics() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3, 5)).astype(np.float32)
    mean, variance = Tensor.zeros(3).contiguous(), Tensor.ones(3).contiguous()
    F.instance_norm(Tensor(x), mean, variance, momentum=0.3)
    np.testing.assert_allclose(mean.numpy(), 0.3 * x.mean(2).mean(0), 1e-5, 1e-6)
    np.testing.assert_allclose(variance.numpy(), 0.7 + 0.3 * x.var(2, ddof=1).mean(0), 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rms_norm_of_halves_adds_the_step_of_float32(dtype: str) -> None:
    """As PyTorch's, which computes it in float32: 2**-10, the step of float16, would be all of small sums."""
    x = np.float32([[0.01, 0.02, -0.005]])
    expected = x / np.sqrt((x * x).mean() + np.finfo(np.float32).eps)
    np.testing.assert_allclose(F.rms_norm(Tensor(x, dtype=dtype), 3).float().numpy(), expected, 8e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_places_in_wide_images_are_found_in_float32(dtype: str) -> None:
    """A row of 3000 pixels, more than the halves can count."""
    row, at = np.arange(3000) % 64, np.array([-0.5, 0.125, 0.75])
    grid = Tensor(np.stack([at, at * 0], -1).reshape(1, 1, 3, 2), dtype=dtype)
    found = F.grid_sample(Tensor(row.reshape(1, 1, 1, -1), dtype=dtype), grid, align_corners=True)
    expected = np.interp((at + 1) / 2 * 2999, np.arange(3000), row)
    np.testing.assert_allclose(found.float().numpy().reshape(-1), expected, rtol=8e-3)
    assert found.dtype.name == dtype


def test_windows_are_added_up_without_gradients_too() -> None:
    columns = Tensor.ones(8, 9)
    with Tensor.no_grad():
        found = F.fold(columns, (4, 4), 2)
    assert found[0].tolist() == [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]
