"""Tensors of layers that are computed from others; layers without the size of their input; folded norms."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn

parametrize, parametrizations = nn.utils.parametrize, nn.utils.parametrizations


class Symmetric:
    def __call__(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu()


def test_a_weight_is_computed_by_one_function_after_another() -> None:
    layer = nn.Linear(3, 3)
    before = layer.weight.numpy()
    parametrize.register_parametrization(layer, "weight", Symmetric())
    upper = np.triu(before)
    np.testing.assert_allclose(layer.weight.numpy(), upper + np.triu(upper, 1).T)
    parametrize.register_parametrization(layer, "weight", lambda x: x * 2)
    np.testing.assert_allclose(layer.weight.numpy(), 2 * (upper + np.triu(upper, 1).T))
    assert parametrize.is_parametrized(layer) and parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias") and isinstance(layer, nn.Linear)
    assert list(nn.state.get_state_dict(layer)) == ["bias", "parametrizations.weight.original"]
    assert len(layer.parametrizations["weight"]) == 2  # type: ignore[attr-defined]


def test_what_is_written_is_kept_by_the_inverse() -> None:
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Symmetric())
    layer.weight = Tensor([[1.0, 2.0], [9.0, 3.0]])
    assert layer.weight.tolist() == [[1.0, 2.0], [2.0, 3.0]]


def test_a_weight_is_trained_itself_again() -> None:
    layer, x = parametrizations.weight_norm(nn.Linear(3, 2)), Tensor.ones(1, 3)
    expected = layer(x).numpy()
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear and sorted(nn.state.get_state_dict(layer)) == ["bias", "weight"]
    np.testing.assert_allclose(layer(x).numpy(), expected, 1e-6)
    original = parametrize.register_parametrization(nn.Linear(2, 2), "weight", lambda w: w * 0)
    kept = original.parametrizations["weight"].original.numpy()
    parametrize.remove_parametrizations(original, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(original.weight.numpy(), kept)


@pytest.mark.parametrize("norm, remove", [
    (nn.utils.weight_norm, nn.utils.remove_weight_norm),
    (nn.utils.spectral_norm, nn.utils.remove_spectral_norm)])
def test_the_older_norms_are_taken_away(norm: Callable[..., Any], remove: Callable[..., Any]) -> None:
    layer, x = norm(nn.Conv2d(2, 3, 2)), Tensor.ones(1, 2, 4, 4)
    norm(layer, "bias") if norm is nn.utils.weight_norm else None
    expected = layer(x).numpy()
    remove(layer)
    np.testing.assert_allclose(layer(x).numpy(), expected, 1e-6)
    if norm is nn.utils.weight_norm:
        assert sorted(nn.state.get_state_dict(layer)) == ["bias_g", "bias_v", "weight"]
        remove(layer, "bias")
    assert type(layer) is nn.Conv2d and sorted(nn.state.get_state_dict(layer)) == ["bias", "weight"]
    with pytest.raises(ValueError, match="Conv2d has no .*_norm of 'weight'"):
        remove(layer)


def test_a_copy_has_weights_of_its_own() -> None:
    layer = parametrizations.weight_norm(nn.Linear(2, 2))
    other = copy.deepcopy(layer)
    other.parametrizations["weight"].original0.assign(Tensor.zeros(2, 1))
    assert np.abs(other.weight.numpy()).max() == 0 < np.abs(layer.weight.numpy()).max()
    parametrize.remove_parametrizations(other, "weight")
    assert parametrize.is_parametrized(layer) and layer.weight.shape == (2, 2)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm,
                                  nn.utils.weight_norm, nn.utils.spectral_norm])
def test_layers_with_normed_weights_are_trained_under_the_jit(norm: Callable[..., Any]) -> None:
    """Step by step as without it."""
    def losses(is_traced: bool) -> list[float]:
        Tensor.manual_seed(1)
        model = nn.Sequential(norm(nn.Linear(4, 8)), nn.Tanh(), norm(nn.Linear(8, 1)))
        trained = [p for p in nn.state.get_parameters(model) if p.requires_grad is not False]
        optimizer = nn.optim.SGD(trained, 0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean().backward()
            return loss.realize(*optimizer.schedule_step())
        run = TinyJit(step) if is_traced else step
        rng, found = np.random.default_rng(0), []
        with Tensor.train():
            for _ in range(8):
                x = rng.standard_normal((16, 4)).astype(np.float32)
                found.append(run(Tensor(x).realize(), Tensor(x[:, :1] * x[:, 1:2]).realize()).item())
        return found

    expected = losses(False)
    np.testing.assert_allclose(losses(True), expected, 1e-5)
    assert expected[-1] != expected[0]


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.Linear(3, 3, bias=False)])
def test_a_batch_norm_is_folded_into_the_layer_before(layer: nn.Linear) -> None:
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    norm, weight = nn.BatchNorm(3), layer.weight.numpy()
    with Tensor.train():
        norm(Tensor(x * 3 + 1)).realize()
    expected = norm(layer(Tensor(x))).numpy()
    fused = nn.utils.fuse_linear_bn_eval(layer, norm)
    np.testing.assert_allclose(fused(Tensor(x)).numpy(), expected, 1e-4, 1e-6)
    np.testing.assert_array_equal(layer.weight.numpy(), weight)
    with Tensor.train(), pytest.raises(ValueError, match="set Tensor.training = False"):
        nn.utils.fuse_linear_bn_eval(layer, norm)


@pytest.mark.parametrize("transpose", [False, True])
def test_a_batch_norm_is_folded_into_a_convolution(transpose: bool) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    layer, norm = (nn.ConvTranspose2d if transpose else nn.Conv2d)(3, 4, 3), nn.BatchNorm(4)
    with Tensor.train():
        norm(layer(Tensor(x))).realize()
    fused = nn.utils.fuse_conv_bn_eval(layer, norm, transpose)
    np.testing.assert_allclose(fused(Tensor(x)).numpy(), norm(layer(Tensor(x))).numpy(), 1e-4, 1e-5)


def test_layers_without_a_size_have_no_parameters_before_their_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match="LazyLinear has no parameters before its first call"):
        nn.state.get_parameters(model)
    assert model(Tensor.ones(3, 5)).shape == (3, 2)
    assert [p.shape for p in nn.state.get_parameters(model)] == [(4, 5), (4,), (2, 4), (2,)]
    with pytest.raises(ValueError, match=r"LazyConv2d takes an input with an axis -3, got \(3, 5\)"):
        nn.LazyConv2d(4, 3)(Tensor.ones(3, 5))
    with pytest.raises(TypeError):
        nn.LazyLinear(4, no_such=True)


@pytest.mark.parametrize("call, message", [
    (lambda: parametrize.register_parametrization(nn.Linear(2, 2), "other", lambda x: x),
     "Linear has no tensor 'other' of its own"),
    (lambda: parametrizations.spectral_norm(nn.Linear(2, 2), "other"), "Linear has no tensor 'other'"),
    (lambda: parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=0), "n_power_iterations"),
    (lambda: nn.utils.weight_norm(nn.Linear(2, 2), "other"), "Linear has no tensor 'other' of its own"),
    (lambda: parametrize.remove_parametrizations(nn.Linear(2, 2), "weight"), "has no parametrization of"),
    (lambda: nn.utils.fuse_conv_bn_eval(nn.ConvTranspose2d(2, 2, 3, groups=2), nn.BatchNorm(2), True),
     "takes transposed convolutions of one group, got 2"),
    (lambda: nn.functional.alpha_dropout(Tensor.ones(3), 1.5, True), "a probability p from 0 to 1, got 1.5"),
    (lambda: nn.functional.feature_alpha_dropout(Tensor.ones(3)), r"takes an input \(N, channels, ...\)"),
])
def test_what_cannot_be_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    Tensor.manual_seed(5)
    x = Tensor.randn(64, 32, 16, 16).realize()
    with Tensor.train():
        for layer, places in ((nn.AlphaDropout(0.3), x.numel()), (nn.FeatureAlphaDropout(0.3), 64 * 32)):
            found = layer(x).numpy()
            assert abs(found.mean()) < 0.05 and abs(found.std() - 1) < 0.05
            share = np.unique(found, return_counts=True)[1].max() / found.size
            assert abs(share - 0.3) < 4 * np.sqrt(0.21 / places)
        assert np.abs(nn.AlphaDropout(1.0)(x).numpy()).max() == 0
    assert nn.AlphaDropout(0.3)(x) is x


def test_norms_of_several_gradients() -> None:
    weights = [Tensor([3.0, 0.0], requires_grad=True), Tensor([[4.0]], requires_grad=True)]
    sum((w * w / 2).sum() for w in weights).backward()  # type: ignore[union-attr]
    gradients = [w.grad for w in weights if w.grad is not None]
    total = nn.utils.get_total_norm(gradients)
    assert total.item() == 5 and nn.utils.get_total_norm([]).item() == 0
    nn.utils.clip_grads_with_norm_(weights, 2.5, total)
    assert [w.grad.numpy().round(4).tolist() for w in weights if w.grad is not None] == [[1.5, 0.0], [[2.0]]]
