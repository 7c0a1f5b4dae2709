"""Functions of one library inside the gradients of the other.

`as_torch` makes a function of our tensors one that PyTorch's autograd differentiates; `torch_function` makes
a function of PyTorch's tensors one that our gradients go through. Values cross in the CPU's memory, computed,
so neither is traced by the other side's compiler.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo

from tinygrad.device import canonical_device
from tinygrad.functional.function import Function
from tinygrad.tensor import Tensor

torch._dynamo.trace_rules.add("tinygrad")  # TorchDynamo reads none of this library: graphs break at its calls


def to_torch(tensor: Tensor) -> torch.Tensor:
    """A tensor of PyTorch's, on the CPU, with a copy of the values, without gradients."""
    return torch.from_dlpack(tensor.detach().to("CPU").clone().realize())


def to_tensor(value: torch.Tensor, device: str | None = None) -> Tensor:
    """A tensor of ours with a copy of the values, on the default device if none is named, without
    gradients."""
    shared = Tensor.from_dlpack(value.detach().cpu().resolve_neg().contiguous())
    return shared.clone().to(canonical_device(device)).realize()


def as_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of our tensors as one of PyTorch's.

    It gets a tensor of ours for each tensor of PyTorch's among its arguments, and returns a tensor or a tuple
    of them. PyTorch's `backward` goes through it to the arguments that require gradients; tensors of ours
    that the function reaches otherwise get none.

    >>> import torch
    >>> from tinygrad import Tensor
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> as_torch(lambda x: (x * x).sum())(x).backward()
    >>> x.grad
    tensor([2., 4.])
    """
    @functools.wraps(function)
    def called(*args: Any) -> Any:
        places = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]

        def run(*tensors: Tensor) -> Any:
            given = dict(zip(places, tensors, strict=True))
            return function(*(given.get(i, value) for i, value in enumerate(args)))

        return _OfOurs.apply(run, *(args[i] for i in places))

    return called


class _OfOurs(torch.autograd.Function):  # type: ignore[misc]  # whose types are not read
    """A function of our tensors, with the gradients that this library gives it."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *given: torch.Tensor) -> Any:
        tensors = [to_tensor(value) for value in given]
        for tensor, value in zip(tensors, given, strict=True):
            tensor.requires_grad = bool(value.requires_grad)
        results = function(*tensors)
        ctx.tensors, ctx.results = tensors, results if isinstance(results, tuple) else (results,)
        if not all(isinstance(result, Tensor) for result in ctx.results):
            raise TypeError("a function for as_torch returns a Tensor, or a tuple of them")
        values = tuple(to_torch(result) for result in ctx.results)
        ctx.mark_non_differentiable(*(v for v in values if not v.is_floating_point()))
        return values if isinstance(results, tuple) else values[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        wanted = [t for t in ctx.tensors if t.requires_grad]
        terms = [result * to_tensor(gradient) for result, gradient in zip(ctx.results, gradients, strict=True)
                 if gradient is not None and result.dtype.is_float]
        if not wanted or not terms:
            return (None, *(None for _ in ctx.tensors))
        found = iter(functools.reduce(lambda a, b: a + b, (term.sum() for term in terms)).gradient(*wanted))
        return (None, *(to_torch(next(found)) if t.requires_grad else None for t in ctx.tensors))


def torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's tensors (a module, too) as one of ours.

    It gets a tensor of PyTorch's for each tensor of ours among its arguments, and returns a tensor or a tuple
    of them. Our gradients go through it, by PyTorch's autograd; parameters of a module get theirs in `.grad`
    as PyTorch leaves them. Only first derivatives: what PyTorch gives is a constant. It needs values, so
    that under TinyJit it is a JitError.

    >>> import torch
    >>> from tinygrad import Tensor
    >>> x = Tensor([1.0, 2.0])
    >>> _ = torch_function(torch.special.erf)(x).sum().backward()
    >>> [round(item, 4) for item in x.grad.tolist()]
    [0.4151, 0.0207]
    """
    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return _OfPyTorch.apply(function, *args)

    return called


class _OfPyTorch(Function):
    """A function of PyTorch's tensors, with the gradients that PyTorch gives it."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        ctx.given = [to_torch(a) if isinstance(a, Tensor) else a for a in args]
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.dtype.is_float]
        for place in ctx.places:
            ctx.given[place].requires_grad_()
        with torch.enable_grad():
            results = function(*ctx.given)
        ctx.results = results if isinstance(results, tuple) else (results,)
        if not all(isinstance(result, torch.Tensor) for result in ctx.results):
            raise TypeError("a function for torch_function returns a torch.Tensor, or a tuple of them")
        device = next((a.device for a in args if isinstance(a, Tensor)), None)
        values = tuple(to_tensor(result, device) for result in ctx.results)
        return values if isinstance(results, tuple) else values[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Sequence[Tensor | None]:
        pairs = [(result, to_torch(g)) for result, g in zip(ctx.results, gradients, strict=True)
                 if result.requires_grad]
        torch.autograd.backward([r for r, _ in pairs], [g for _, g in pairs], retain_graph=True)
        found: list[Tensor | None] = [None] * (1 + len(ctx.given))
        for place in ctx.places:
            value = ctx.given[place]
            if value.grad is not None:
                found[place + 1] = to_tensor(value.grad, gradients[0].device)
                value.grad = None
        return found
