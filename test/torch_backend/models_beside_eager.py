"""Models beside eager PyTorch, in float32: the loss, all gradients and buffers of a training step, and the
results of a forward pass. What is not close is judged by float64."""
from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tinygrad.torch import backend

RTOL, ATOL = 1e-4, 1e-5
"""How close to eager results and gradients are; the latter times the largest item of a tensor."""
FLOOR = 1e-7
"""What is no difference: times the largest item of all tensors. Gradients that are 0 but for rounding, as of
a bias before a batch norm, have no scale of their own."""
FARTHER, FARTHEST = 2, 4
"""What is not close to eager is judged by float64: ours may be so many times as far from it as eager is, the
median of such tensors and each of them. Two roundings of one number differ by such factors."""


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


def tensors_of(output: Any) -> dict[str, Any]:
    """The tensors among a model's results, numbered."""
    leaves = pytree.tree_leaves(tuple(output.values()) if hasattr(output, "values") else output)
    return {f"result {i}": t for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}


def agree(found: dict[str, Any], expected: dict[str, Any], in_float64: Callable[[], dict[str, Any]]) -> None:
    """Whether these are eager's values, or as close to those of float64 as eager's are."""
    apart = differences(found, expected)
    floor = FLOOR * max(largest(t) for t in expected.values())
    if apart:
        exact = in_float64()
        times = {}
        for key, values in apart.items():
            ours, eager = (float((t.double() - exact[key]).norm()) for t in values)
            times[key] = ours / (eager + floor)
        assert max(times.values()) <= FARTHEST, times
        assert statistics.median(times.values()) <= FARTHER, times


def differences(found: dict[str, Any], expected: dict[str, Any], share: float = 1.0
                ) -> dict[str, tuple[Any, Any]]:
    """Tensors that are farther from eager's than this share of what float32 is allowed: ours and eager's."""
    assert found.keys() == expected.keys()
    floor = FLOOR * max(largest(t) for t in expected.values())
    apart = {}
    for key, eager in expected.items():
        ours = found[key]
        assert (ours is None) == (eager is None), key
        if eager is not None and not torch.allclose(
                ours, eager, share * RTOL, share * (ATOL * largest(eager) + floor), equal_nan=True):
            apart[key] = ours, eager
    return apart


def largest(value: Any) -> float:
    is_empty = value is None or not value.is_floating_point() or value.numel() == 0
    return 0.0 if is_empty else float(value.abs().max())


def trains_as_eager(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> None:
    """Whether a training step is that of eager: its loss, gradients and buffers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: Any = make().train()
    twin, precise = copy.deepcopy(model), copy.deepcopy(model).double()
    given = inputs()
    ours = step(twin, torch.compile(twin, backend=backend), given)
    agree(ours, step(model, model, given),
          lambda: step(precise, precise, {k: wider(v) for k, v in given.items()}))


def trains_as_eager_in_float64(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> None:
    """The same in float64, a thousand times closer: rounding lets no other item be the largest of a window
    than eager's, and deep stacks of batch norms may make it 10,000 times larger."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: Any = make().train().double()
    twin = copy.deepcopy(model)
    given = {name: wider(value) for name, value in inputs().items()}
    ours = step(twin, torch.compile(twin, backend=backend), given)
    assert not differences(ours, step(model, model, given), 1e-3)


def with_statistics(model: Any, given: dict[str, Any]) -> Any:
    """The model with the statistics of a batch: with those that it starts with, what deep stacks of batch
    norms make of their input vanishes beside the last bias."""
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    for layer in norms:
        layer.momentum = 1.0
    if norms:
        with torch.no_grad():
            model.train()(**given)
    return model.eval()


def infers_as_eager(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> None:
    """Whether a forward pass without gradients gives what eager gives."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = inputs()
    model = with_statistics(make(), given)
    with torch.no_grad():
        ours = tensors_of(torch.compile(model, backend=backend)(**given))
        assert ours
        agree(ours, tensors_of(model(**given)),
              lambda: tensors_of(copy.deepcopy(model).double()(**{k: wider(v) for k, v in given.items()})))


def infers_as_eager_in_float64(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> None:
    """The same in float64, a thousand times closer."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = {name: wider(value) for name, value in inputs().items()}
    model = with_statistics(make().double(), given)
    with torch.no_grad():
        ours, eager = (tensors_of(run(**given)) for run in (torch.compile(model, backend=backend), model))
    assert ours and not differences(ours, eager, 1e-3)
