"""Training steps of networks on the emulators of GPUs, in three types, beside PyTorch in float64: the loss,
every gradient, and what AdamW makes of those; the first step as it is written, those after it replayed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.dtype import DType, dtypes
from tinygrad.nn.optim import AdamW
from tinygrad.runtime import emulator

from .table import torch

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not any(map(shutil.which, emulator.COMPILERS)),
                                                   reason="no C++ compiler on the path")]
F = torch.nn.functional
Array = np.ndarray[Any, Any]
Weights = dict[str, Any]
WORDS, LENGTH, WIDTH, HEADS, BATCH = 50, 48, 64, 2, 3


def perceptron(p: Weights, x: Any) -> Any:
    return ((x @ p["w0"] + p["b0"]).relu() @ p["w1"] + p["b1"]).tanh() @ p["w2"]


def convnet(p: Weights, x: Any) -> Any:
    ours = isinstance(x, Tensor)
    for layer in "01":
        w = p[f"c{layer}"]
        h = x.conv2d(w, padding=1) if ours else F.conv2d(x, w, padding=1)
        off = h - h.mean((0, 2, 3), keepdim=True)
        h = off * ((off * off).mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
        h = (h * p[f"g{layer}"].reshape(1, -1, 1, 1) + p[f"o{layer}"].reshape(1, -1, 1, 1)).relu()
        x = h.max_pool2d((2, 2)) if ours else F.max_pool2d(h, 2)
    return x.reshape(x.shape[0], -1) @ p["w"] + p["b"]


def transformer(p: Weights, x: Any) -> Any:
    def normed(h: Any, scale: Any) -> Any:
        off = h - h.mean(-1, keepdim=True)
        return off * ((off * off).mean(-1, keepdim=True) + 1e-5).rsqrt() * scale

    ours = isinstance(x, Tensor)
    h = p["words"][x] + p["places"]
    split = (normed(h, p["g0"]) @ p["qkv"]).reshape(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
    q, k, v = (split.permute(2, 0, 3, 1, 4)[i] for i in range(3))
    attention = Tensor.scaled_dot_product_attention if ours else F.scaled_dot_product_attention
    seen = attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
    h = h + seen @ p["out"]
    up = normed(h, p["g1"]) @ p["up"]
    h = h + (up.gelu() if ours else F.gelu(up, approximate="tanh")) @ p["down"]
    return (normed(h, p["g2"]) @ p["words"].T).reshape(BATCH * LENGTH, WORDS)


Network = tuple[Callable[[Weights, Any], Any], dict[str, tuple[int, ...]], tuple[int, ...], int]
"""What it computes, the shapes of its weights and of its input, and how many classes it tells apart."""

NETWORKS: dict[str, Network] = {
    "perceptron": (perceptron, {"w0": (96, 128), "b0": (128,), "w1": (128, 64), "b1": (64,), "w2": (64, 10)},
                   (64, 96), 10),
    "convnet": (convnet, {"c0": (16, 3, 3, 3), "g0": (16,), "o0": (16,), "c1": (32, 16, 3, 3), "g1": (32,),
                          "o1": (32,), "w": (512, 10), "b": (10,)}, (16, 3, 16, 16), 10),
    "transformer": (transformer, {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "g0": (WIDTH,),
                                  "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "g1": (WIDTH,),
                                  "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "g2": (WIDTH,)},
                    (BATCH, LENGTH), WORDS),
}
TYPES = {dtypes.float32: torch.float32, dtypes.float16: torch.float16, dtypes.bfloat16: torch.bfloat16}
"""with the names that PyTorch has for them"""
LEAST_ERROR = {dtypes.float32: 2e-5, dtypes.float16: 4e-3, dtypes.bfloat16: 2e-2}
TIMES_THEIRS = 4
"""Roundings decide whether an item passes a relu, and which of four is the largest: such gradients jump."""


def drawn(random: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    """A weight: of a size that keeps sums near 1; scales are near 1, offsets near 0."""
    if len(shape) == 1:
        return 0.1 * random.standard_normal(shape) + name.startswith("g")
    terms = shape[0] if len(shape) == 2 else np.prod(shape[1:])
    return np.asarray(random.standard_normal(shape) / np.sqrt(terms))


def relative_error(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def loss_and_gradients(network: Network, weights: dict[str, Array], x: Array, y: Array, dtype: Any
                       ) -> list[Array]:
    """By PyTorch, in `dtype`."""
    given = {name: torch.tensor(w).to(dtype).requires_grad_() for name, w in weights.items()}
    input_ = torch.tensor(x) if x.dtype.kind == "i" else torch.tensor(x).to(dtype)
    loss = F.cross_entropy(network[0](given, input_).double(), torch.tensor(y).long())
    loss.backward()
    return [value.detach().double().numpy() for value in (loss, *(w.grad for w in given.values()))]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("device", [f"{kind}:EMULATED" for kind in emulator.LANGUAGES])
def test_training_steps_are_about_as_exact_as_pytorchs(device: str, name: str, dtype: DType) -> None:
    network = compute, shapes, input_shape, classes = NETWORKS[name]
    random = np.random.default_rng(3)
    weights = {key: Tensor(drawn(random, shape, key), dtype=dtype, device=device).realize().requires_grad_()
               for key, shape in shapes.items()}
    update = AdamW(list(weights.values()), lr=1e-2, weight_decay=0.1)

    def step(x: Tensor, y: Tensor) -> list[Tensor]:
        update.zero_grad()
        loss = compute(weights, x).float().sparse_categorical_crossentropy(y.reshape(-1))
        loss.backward()
        gradients = [w.grad for w in weights.values()]
        update.step()
        return [loss.realize(), *(g.realize() for g in gradients if g is not None)]

    replayed = TinyJit(step)
    theirs = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes.values()]
    their_update = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1)
    for number in range(4):
        is_text = name == "transformer"
        x = random.integers(0, classes, input_shape) if is_text else random.standard_normal(input_shape)
        y = random.integers(0, classes, input_shape if is_text else input_shape[:1])
        given = Tensor(x, dtype=dtypes.int64 if is_text else dtype, device=device)
        before = {key: w.float().numpy().astype(float) for key, w in weights.items()}
        with Tensor.train():
            found = [t.float().numpy() for t in (replayed if number else step)(
                given.realize(), Tensor(y, dtype=dtypes.int32, device=device).realize())]
        x = x if is_text else given.float().numpy().astype(float)
        exact = loss_and_gradients(network, before, x, y.reshape(-1), torch.float64)
        rounded = loss_and_gradients(network, before, x, y.reshape(-1), TYPES[dtype])
        for key, ours, own, wanted in zip(["loss", *shapes], found, rounded, exact, strict=True):
            allowed = max(LEAST_ERROR[dtype], TIMES_THEIRS * relative_error(own, wanted))
            assert relative_error(ours, wanted) <= allowed, (key, number)
        for weight, value, gradient in zip(theirs, before.values(), found[1:], strict=True):
            weight.data = torch.tensor(value)
            weight.grad = torch.tensor(gradient.astype(float))
        their_update.step()
        for key, weight in zip(shapes, theirs, strict=True):
            error = relative_error(weights[key].float().numpy(), weight.detach().numpy())
            assert error <= LEAST_ERROR[dtype], (key, number)
