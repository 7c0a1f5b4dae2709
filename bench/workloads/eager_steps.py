"""Training steps without a JIT, as a person's first programs have them: small networks, Adam, the loss read
in each step. What they cost is what it costs to build, differentiate and schedule a graph again and again."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.workloads.base import Step, Workload, both_tinygrads, normals
from bench.workloads.overhead import layer_norm, transformer_block

Shapes = Sequence[tuple[int, ...]]
BLOCK: Shapes = ((64,), (64,), *[(64, 64)] * 4, (64, 256), (256, 64))
"""the weights of a transformer block, 64 wide"""


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Of rows, with labels that are one where the class is."""
    return (logits.log_softmax(-1) * labels).sum() * (-1 / logits.shape[0])


def perceptron(x: Any, labels: Any, *weights: Any) -> Any:
    for weight in weights[:-1]:
        x = (x @ weight).relu()
    return cross_entropy(x @ weights[-1], labels)


def transformer(x: Any, labels: Any, *weights: Any) -> Any:
    """Three blocks over one text, x (tokens, 64), and the loss of its next tokens."""
    for i in range(3):
        x = transformer_block(x, *weights[len(BLOCK) * i:len(BLOCK) * (i + 1)])
    return cross_entropy(layer_norm(x, *weights[-3:-1]) @ weights[-1], labels)


def lstm(x: Any, labels: Any, enter: Any, stay: Any, bias: Any, out: Any) -> Any:
    """A sequence step by step, x (rows, steps, inputs), by cells written out; the loss of the last state."""
    h = c = None
    for i in range(x.shape[1]):
        gates = x[:, i] @ enter + bias
        a, b, cell, shown = (gates if h is None else gates + h @ stay).chunk(4, 1)
        new = a.sigmoid() * cell.tanh()
        c = new if c is None else b.sigmoid() * c + new
        h = shown.sigmoid() * c.tanh()
    return cross_entropy(h @ out, labels)


def updated(updates: Any, loss_now: Callable[[], Any]) -> Step:
    """A step of either library's optimizer, which reads the loss."""
    def step() -> Any:
        updates.zero_grad()
        loss = loss_now()
        loss.backward()
        updates.step()
        return np.float32(loss.item())

    return step


def step_of(name: str, loss_of: Callable[..., Any], data: tuple[int, ...], classes: int, weights: Shapes
            ) -> Workload:
    """A step of Adam on weights of these shapes, by a loss as both libraries take it."""
    inputs, *values = normals([data, *weights])
    rows = data[0]
    labels = np.eye(classes, dtype=np.float32)[np.arange(rows) % classes]
    begun = [value / max(1, value.shape[0]) ** 0.5 for value in values]

    def ours() -> Step:
        from tinygrad import Tensor
        from tinygrad.nn.optim import Adam

        x, y = (Tensor(array, requires_grad=False).realize() for array in (inputs, labels))
        parameters = [Tensor(array, requires_grad=True).realize() for array in begun]
        updates = Adam(parameters, lr=1e-3)
        return updated(updates, lambda: loss_of(x, y, *parameters))

    def theirs() -> Step:
        import torch

        x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
        parameters = [torch.from_numpy(array.copy()).requires_grad_() for array in begun]
        updates = torch.optim.Adam(parameters, lr=1e-3)
        return updated(updates, lambda: loss_of(x, y, *parameters))

    return Workload(f"{name}, Adam step, no JIT", 1.0, 1.0, 1.0, {**both_tinygrads(ours), "torch": theirs})


WORKLOADS = (
    step_of("perceptron of 3 layers of 128", perceptron, (64, 64), 10, ((64, 128), (128, 128), (128, 10))),
    step_of("LSTM of 50 cells written out", lstm, (16, 50, 20), 5, ((20, 128), (32, 128), (128,), (32, 5))),
    step_of("GPT of 3 blocks, 64 wide, 32 tokens", transformer, (32, 64), 50,
            (*BLOCK, *BLOCK, *BLOCK, (64,), (64,), (64, 50))),
)
