"""Programs beside eager PyTorch: `ProgramTable` has those of a module, `gives_what_eager_gives` compares.

A program takes `compile`, which is `torch.compile` with this backend or does nothing, and returns a tree of
tensors and other values. They run in float64, where only the order of sums differs.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from tinygrad.torch import backend

Compile = Callable[..., Any]
Program = Callable[[Compile], Any]


class ProgramTable(dict[str, Program]):
    """Programs by their names."""

    def enter(self, function: Program) -> Program:
        self[function.__name__] = function
        return function


def eagerly(function: Any, **_: Any) -> Any:
    return function


def through_tinygrad(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend, **options)


def gives_what_eager_gives(run: Program) -> None:
    """Values, gradients and whatever else the program returns are those of eager PyTorch, strides too."""
    torch.set_default_dtype(torch.float64)
    try:
        (expected, structure), (found, ours) = (tree_of(run, how) for how in (eagerly, through_tinygrad))
    finally:
        torch.set_default_dtype(torch.float32)
    assert ours == structure
    for value, eager in zip(found, expected, strict=True):
        if isinstance(eager, torch.Tensor) and eager.dtype == torch.float32:
            torch.testing.assert_close(value, eager, rtol=1e-5, atol=1e-6)
        elif isinstance(eager, (torch.Tensor, float)):
            torch.testing.assert_close(value, eager, rtol=1e-8, atol=1e-10, equal_nan=True)
        else:
            assert value == eager
        if isinstance(eager, torch.Tensor):
            assert steps(value) == steps(eager)


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides of the axes that have any."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
            if size > 1 and tensor.numel()]


def tree_of(run: Program, compile: Compile) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return _pytree.tree_flatten(run(compile))


def of_parameters(model: nn.Module) -> Any:
    return {name: parameter.grad for name, parameter in model.named_parameters()}
