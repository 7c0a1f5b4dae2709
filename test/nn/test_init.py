"""Initial values against their formulas, and PyTorch where they are no draws."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.nn import init

FAN_IN, FAN_OUT = 30 * 9, 40 * 9


@pytest.mark.parametrize("fill, low, high, std", [
    (lambda t: init.uniform_(t, -2, 3), -2, 3, 5 / math.sqrt(12)),
    (lambda t: init.normal_(t, 1, 0.5), -math.inf, math.inf, 0.5),
    (lambda t: init.xavier_uniform_(t, 2), -2 * math.sqrt(6 / (FAN_IN + FAN_OUT)), None,
     2 * math.sqrt(2 / (FAN_IN + FAN_OUT))),
    (lambda t: init.xavier_normal_(t), -math.inf, math.inf, math.sqrt(2 / (FAN_IN + FAN_OUT))),
    (lambda t: init.kaiming_uniform_(t, nonlinearity="relu"), -math.sqrt(6 / FAN_IN), None,
     math.sqrt(2 / FAN_IN)),
    (lambda t: init.kaiming_normal_(t, 0.5, "fan_out"), -math.inf, math.inf, math.sqrt(2 / 1.25 / FAN_OUT)),
    (lambda t: init.trunc_normal_(t, std=2, a=-2, b=2), -2, 2, 2 * 0.5396),
    (lambda t: init.trunc_normal_(t, a=1, b=1.5), 1, 1.5, 0.1416),
])
def test_draws_have_the_bounds_and_the_deviation_that_their_names_say(
        fill: Callable[[Tensor], Tensor], low: float, high: float | None, std: float) -> None:
    Tensor.manual_seed(7)
    weight = Tensor.zeros(40, 30, 3, 3)
    assert fill(weight) is weight
    drawn, top = weight.numpy(), -low if high is None else high
    assert low <= drawn.min() and drawn.max() <= top and abs(drawn.std() / std - 1) < 0.03
    if math.isfinite(low):  # bounds are reached
        assert drawn.min() < low + 0.01 * (top - low) and drawn.max() > top - 0.01 * (top - low)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2, 2)])
def test_rows_or_columns_are_orthogonal(shape: tuple[int, ...]) -> None:
    matrix = init.orthogonal_(Tensor.zeros(*shape), 2.0).numpy().reshape(shape[0], -1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_what_is_filled_stays_the_parameter_that_it_is() -> None:
    layer = nn.Linear(3, 2)
    init.constant_(layer.weight, 0.5)
    assert layer.bias is not None
    init.zeros_(layer.bias)
    layer(Tensor.ones(1, 3)).sum().backward()
    assert layer.weight.tolist() == [[0.5] * 3] * 2 and layer.bias.tolist() == [0, 0]
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[1.0] * 3] * 2
    assert init.eye_(Tensor.zeros(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert init.ones_(Tensor.zeros(2)).tolist() == [1, 1]


@pytest.mark.parametrize("shape, groups", [((4, 4, 3), 1), ((6, 2, 3, 4), 2), ((2, 5, 1, 2, 3), 1),
                                           ((6, 1, 3), 6), ((3, 2, 2), 1)])
def test_the_weight_of_a_convolution_that_keeps_its_input_is_pytorchs(shape: tuple[int, ...], groups: int
                                                                      ) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    expected = torch.nn.init.dirac_(torch.ones(shape), groups).numpy()
    np.testing.assert_array_equal(init.dirac_(Tensor.ones(*shape), groups).numpy(), expected)


def test_columns_have_their_share_of_zeros() -> None:
    Tensor.manual_seed(5)
    drawn = init.sparse_(Tensor.ones(64, 500), 0.3, 0.1).numpy()
    assert ((drawn == 0).sum(0) == 20).all()
    assert np.abs((drawn == 0).mean(1) - 20 / 64).max() < 5 * 0.46 / 500 ** 0.5  # anywhere in a column
    assert abs(drawn[drawn != 0].std() / 0.1 - 1) < 0.03


def test_gains_are_pytorchs() -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    for name in (*init.GAINS, "leaky_relu"):
        assert init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04))


@pytest.mark.parametrize("fill, message", [
    (lambda: init.xavier_uniform_(Tensor.zeros(3)), "fan-in and fan-out are of weights"),
    (lambda: init.kaiming_normal_(Tensor.zeros(3, 3), mode="fan"), "mode is 'fan_in' or 'fan_out'"),
    (lambda: init.calculate_gain("cube"), "nonlinearity is one of linear"),
    (lambda: init.orthogonal_(Tensor.zeros(3)), "orthogonal_ takes a tensor of two axes or more"),
    (lambda: init.eye_(Tensor.zeros(3)), "eye_ takes a matrix"),
    (lambda: init.dirac_(Tensor.zeros(3, 3)), "dirac_ takes a weight"),
    (lambda: init.dirac_(Tensor.zeros(3, 3, 1), 2), "dirac_ takes .* got shape .* and 2 groups"),
    (lambda: init.sparse_(Tensor.zeros(3), 0.5), "sparse_ takes a matrix"),
    (lambda: init.sparse_(Tensor.zeros(3, 3), 1.5), "a sparsity from 0 to 1"),
])
def test_what_cannot_be_is_said(fill: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill()
