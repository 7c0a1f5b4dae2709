"""Batch norm and its running statistics as operators apart: what computes the activations of a checkpoint
again would read the statistics of before, which have been written over by then.

Out: `batch_norm`, a decomposition. Next: `backend.py`.
"""
from __future__ import annotations

import torch

aten = torch.ops.aten


def batch_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor,
               variance: torch.Tensor, training: bool, momentum: float, eps: float
               ) -> tuple[torch.Tensor, ...]:
    """The result, its mean and inverse deviation, and the running mean and variance from now on."""
    if not training:
        found = aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)
        return (*found, mean, variance)
    result, of_batch, inverse = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)
    spread = x.to(mean.dtype).var((0, *range(2, x.ndim)))
    return (result, of_batch, inverse, mean * (1 - momentum) + of_batch * momentum,
            variance * (1 - momentum) + spread * momentum)
