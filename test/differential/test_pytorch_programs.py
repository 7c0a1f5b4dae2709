"""Training programs in PyTorch's words, run by both libraries from the same weights: losses of every step.

What stands in `Ours` is what such a program has to change.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad.nn.functional
from tinygrad import Tensor, nn

from .table import torch

F = tinygrad.nn.functional


class Ours:
    """Words of PyTorch's that are others here."""

    nn, F, optim, lr_scheduler = nn, F, nn.optim, nn.lr_scheduler
    clip_grad_norm_ = staticmethod(nn.utils.clip_grad_norm_)
    tensor = staticmethod(Tensor)
    parameters = staticmethod(nn.state.get_parameters)

    @staticmethod
    def like(model: Any, theirs: Any) -> None:
        state = {name: Tensor(value.numpy().copy()) for name, value in theirs.state_dict().items()}
        nn.state.load_state_dict(model, state, verbose=False)


class Theirs:
    nn, F, optim, lr_scheduler = torch.nn, torch.nn.functional, torch.optim, torch.optim.lr_scheduler
    clip_grad_norm_ = staticmethod(torch.nn.utils.clip_grad_norm_)
    tensor = staticmethod(torch.tensor)

    @staticmethod
    def parameters(model: Any) -> Any:
        return model.parameters()


def classifier(nn: Any) -> Any:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2),
                         nn.Conv2d(4, 8, 3), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, 5))


def autoencoder(nn: Any) -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 64), nn.Sigmoid(),
                         nn.Unflatten(1, (1, 8, 8)))


def text_model(kind: str) -> Callable[[Any], Any]:
    return lambda nn: nn.ModuleDict({"embed": nn.Embedding(5, 8, padding_idx=0), "decode": nn.Linear(8, 5),
                                     "rnn": getattr(nn, kind)(8, 8, num_layers=2, batch_first=True)})


def transformer(nn: Any) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.ModuleDict({"embed": nn.Embedding(5, 8), "encoder": nn.TransformerEncoder(layer, 2),
                          "decode": nn.Linear(8, 5)})


def classify(lib: Any, model: Any, images: Any, labels: Any) -> Any:
    return lib.nn.CrossEntropyLoss(label_smoothing=0.1)(model(images), labels[:, 0])


def reconstruct(lib: Any, model: Any, images: Any, labels: Any) -> Any:
    x = lib.F.hardtanh(images * 0.3 + 0.5, 0.0, 1.0)
    recon = model(x)
    return lib.F.binary_cross_entropy(recon, x) + 0.1 * lib.nn.SmoothL1Loss()(recon, x)


def continue_text(lib: Any, model: Any, images: Any, labels: Any) -> Any:
    outputs, _ = model["rnn"](model["embed"](labels[:, :-1]))
    scores = lib.F.log_softmax(model["decode"](outputs), dim=-1)
    return lib.F.nll_loss(scores.view(-1, 5), labels[:, 1:].reshape(-1), ignore_index=0)


def fill_gaps(lib: Any, model: Any, images: Any, labels: Any) -> Any:
    hidden = model["encoder"](model["embed"](labels), src_key_padding_mask=labels.eq(0))
    return lib.F.cross_entropy(model["decode"](hidden).transpose(1, 2), labels)


SGD = ("SGD", {"lr": 0.1, "momentum": 0.9})
ADAM = ("Adam", {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.01})
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any], tuple[str, dict[str, Any]]]] = {
    "classifier": (classifier, classify, SGD), "autoencoder": (autoencoder, reconstruct, ADAM),
    "LSTM": (text_model("LSTM"), continue_text, ADAM), "GRU": (text_model("GRU"), continue_text, ADAM),
    "transformer": (transformer, fill_gaps, ("RMSprop", {"lr": 0.003})),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_libraries_train_alike(name: str) -> None:
    make, loss_of, (optimizer_name, options) = PROGRAMS[name]
    torch.manual_seed(0)
    models: list[Any] = [make(torch.nn), make(nn)]
    Ours.like(models[1], models[0])
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((6, 1, 8, 8)).astype("f"), rng.integers(0, 5, (6, 7))) for _ in range(6)]
    found = []
    for lib, model in ((Theirs, models[0]), (Ours, models[1])):
        optimizer = getattr(lib.optim, optimizer_name)(lib.parameters(model), **options)
        scheduler = lib.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        losses = []
        with Tensor.train():
            for images, labels in batches:
                optimizer.zero_grad()
                loss = loss_of(lib, model, lib.tensor(images), lib.tensor(labels))
                loss.backward()
                lib.clip_grad_norm_(lib.parameters(model), max_norm=0.5)
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)
