"""Gradients kept in bounds, parameters as one row, normalisation folded into weights: functions of
`torch.nn.utils`. `parametrize` and `parametrizations` compute weights from others, `older_norms` too."""
from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from tinygrad.nn.utils import parametrizations as parametrizations
from tinygrad.nn.utils import parametrize as parametrize
from tinygrad.nn.utils.older_norms import remove_spectral_norm as remove_spectral_norm
from tinygrad.nn.utils.older_norms import remove_weight_norm as remove_weight_norm
from tinygrad.nn.utils.older_norms import spectral_norm as spectral_norm
from tinygrad.nn.utils.older_norms import weight_norm as weight_norm
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
    total = get_total_norm([p.grad for p in given if p.grad is not None], norm_type)
    clip_grads_with_norm_(given, max_norm, total)
    return total


def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all items of all tensors; 0 of none.

    >>> nn.utils.get_total_norm([Tensor([3.0]), Tensor([[4.0]])]).item()
    5.0
    """
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return Tensor(0.0)
    return Tensor.stack(*(x.norm(norm_type).to(given[0].device) for x in given)).norm(norm_type)


def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor) -> None:
    """All gradients, whose norm is `total_norm`, scaled alike, so that it is at most `max_norm`."""
    scale = (max_norm / (total_norm + 1e-6)).clamp_max(1)
    for p in _gradients(parameters):
        assert p.grad is not None
        p.grad = (p.grad * scale.to(p.device)).cast(p.grad.dtype)


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


def _scales(bn: Any) -> Tensor:
    factor: Tensor = (bn.running_var + bn.eps).rsqrt()
    return factor if bn.weight is None else factor * bn.weight


def _fused(layer: Any, bn: Any, axis: int) -> Any:
    """A copy of a layer, with outputs along `axis` of its weight, which gives what `bn` after it gives."""
    if Tensor.training:
        raise ValueError("a batch norm is folded into weights as it is in evaluation, not in training; set "
                         "Tensor.training = False")
    fused, scale = copy.deepcopy(layer), _scales(bn)
    mean = bn.running_mean if layer.bias is None else bn.running_mean - layer.bias
    weight = layer.weight * scale.reshape([-1 if i == axis else 1 for i in range(layer.weight.ndim)])
    bias = (0 if bn.bias is None else bn.bias) - mean * scale
    fused.weight = weight.cast(layer.weight.dtype).detach().contiguous().requires_grad_(True)
    fused.bias = bias.cast(layer.weight.dtype).detach().contiguous().requires_grad_(True)
    return fused


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A convolution that gives what this one and the batch norm after it give in evaluation; `transpose`: it
    is a transposed one, of one group.

    >>> nn.utils.fuse_conv_bn_eval(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).bias.shape
    (4,)
    """
    if transpose and conv.groups != 1:
        raise ValueError(f"fuse_conv_bn_eval takes transposed convolutions of one group, got {conv.groups}")
    return _fused(conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A linear layer that gives what this one and the batch norm after it give in evaluation."""
    return _fused(linear, bn, 0)
