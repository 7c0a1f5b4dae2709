"""Models with random weights beside eager PyTorch: loss, all gradients and buffers of a training step, and
the results of a forward pass.

Training steps of a few run by default, all of `MODELS` with `-m slow`.
"""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

from .models import MODELS  # noqa: E402
from .models_beside_eager import infers_as_eager, trains_as_eager  # noqa: E402

BY_DEFAULT = ("BERT", "GPT-2", "Llama", "T5", "ViT", "ResNet")


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_a_training_step_is_that_of_eager(name: str) -> None:
    trains_as_eager(*MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in BY_DEFAULT])
def test_a_training_step_of_each_model_is_that_of_eager(name: str) -> None:
    trains_as_eager(*MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_results_of_each_model_are_those_of_eager(name: str) -> None:
    infers_as_eager(*MODELS[name])
