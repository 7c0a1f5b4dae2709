"""Gradients kept in bounds, parameters as one row: functions of `torch.nn.utils`."""
from __future__ import annotations

from collections.abc import Iterable

from tinygrad.tensor import Tensor


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [p for p in ([parameters] if isinstance(parameters, Tensor) else parameters) if p.grad is not None]


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """All gradients scaled alike, so that the norm of all their items is at most `max_norm`; returns the norm
    that they had.

    >>> weight = Tensor([3.0, 4.0], requires_grad=True)
    >>> _ = (weight * weight / 2).sum().backward()
    >>> nn.utils.clip_grad_norm_([weight], max_norm=1.0).item(), round(weight.grad.norm().item(), 4)
    (5.0, 1.0)
    """
    given = _gradients(parameters)
    if not given:
        return Tensor(0.0)
    first = given[0].device
    norms = [p.grad.norm(norm_type).to(first) for p in given if p.grad is not None]
    total = Tensor.stack(*norms).norm(norm_type)
    scale = (max_norm / (total + 1e-6)).clamp_max(1)
    for p in given:
        assert p.grad is not None
        p.grad = (p.grad * scale.to(p.device)).cast(p.grad.dtype)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """All items of gradients from -clip_value to clip_value."""
    for p in _gradients(parameters):
        assert p.grad is not None
        p.grad = p.grad.clip(-clip_value, clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All items in one row."""
    return Tensor.cat(*(p.flatten() for p in parameters))


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Overwrites parameters with the items of a row, as `parameters_to_vector` joins them."""
    given = list(parameters)
    sizes = [p.numel() for p in given]
    if vec.shape != (sum(sizes),):
        raise ValueError(f"vector_to_parameters takes one row of {sum(sizes)} items, got shape {vec.shape}")
    with Tensor.no_grad():
        for p, part in zip(given, vec.split(sizes), strict=True):
            p.assign(part.reshape(p.shape).to(p.device).cast(p.dtype))
