"""Models with random weights: loss, all gradients and buffers of a training step beside eager PyTorch.

A few run by default, all of `MODELS` with `-m slow`.
"""
from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

from tinygrad.torch import backend  # noqa: E402

from .models import MODELS  # noqa: E402

BY_DEFAULT = ("BERT", "GPT-2", "Llama", "T5", "ViT", "ResNet")
RTOL, ATOL = 1e-4, 1e-5
"""How close to eager results and gradients are; what is not is judged by float64, from which it may be no
further than twice what eager is, by the largest difference."""


def loss_of(output: Any) -> Any:
    """The model's own loss, or where it has none one of all its results."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    results = output.values() if hasattr(output, "values") else output
    return sum(t.square().mean() for t in results if isinstance(t, torch.Tensor) and t.is_floating_point())


def step(model: Any, run: Any, given: dict[str, Any]) -> dict[str, Any]:
    """By name: the loss, every gradient, and every buffer after the step."""
    loss = loss_of(run(**given))
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()},
            **{f"{name}, a buffer": b for name, b in model.named_buffers()}}


def wider(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def trains_as_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model: Any = make().train()
    twin, precise = copy.deepcopy(model), copy.deepcopy(model).double()
    given = inputs()
    eager = step(model, model, given)
    ours = step(twin, torch.compile(twin, backend=backend), given)
    exact: dict[str, Any] = {}
    for key, expected in eager.items():
        found = ours[key]
        assert (found is None) == (expected is None), key
        if expected is None or torch.allclose(found, expected, RTOL, ATOL, equal_nan=True):
            continue
        exact = exact or step(precise, precise, {k: wider(v) for k, v in given.items()})
        off, eager_off = (float((t.double() - exact[key]).abs().max()) for t in (found, expected))
        assert off <= 2 * eager_off + ATOL, f"{key}: {off:.3g} from float64, eager {eager_off:.3g}"


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_a_training_step_is_that_of_eager(name: str) -> None:
    trains_as_eager(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in BY_DEFAULT])
def test_a_training_step_of_each_model_is_that_of_eager(name: str) -> None:
    trains_as_eager(name)
