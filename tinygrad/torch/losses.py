"""A loss that PyTorch takes apart wrongly: labels behind the first -1 count there, as label 0.

Out: `LOSSES`, for graphs of TorchDynamo, and `multilabel_margin_loss`, a decomposition. Next: `backend.py`.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn._reduction import get_enum, legacy_get_enum

REDUCTIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.Tensor.clone, torch.mean, torch.sum)
"""by PyTorch's numbers"""


def multilabel_margin_loss(x: torch.Tensor, labels: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """`reduction` of the mean over classes of max(0, 1 - x[label] + x[class]), added up over the labels of a
    row before the first that is -1 and the classes that are none of them."""
    if x.ndim == 0:
        return multilabel_margin_loss(x.reshape(1), labels.reshape(1), reduction)
    counts = (labels < 0).cumsum(-1) == 0
    places = torch.where(counts, labels, 0)
    classes = torch.arange(x.shape[-1], device=x.device)
    is_label = ((places.unsqueeze(-1) == classes) & counts.unsqueeze(-1)).any(-2)
    terms = (1 - x.gather(-1, places).unsqueeze(-1) + x.unsqueeze(-2)).clamp(min=0) / x.shape[-1]
    apart = counts.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    return REDUCTIONS[reduction](torch.where(apart, terms, 0).sum((-2, -1)))


def functional(x: torch.Tensor, labels: torch.Tensor, size_average: bool | None = None,
               reduce: bool | None = None, reduction: str = "mean") -> torch.Tensor:
    """`torch.nn.functional.multilabel_margin_loss`."""
    is_old = size_average is not None or reduce is not None
    number = legacy_get_enum(size_average, reduce) if is_old else get_enum(reduction)
    return multilabel_margin_loss(x, labels, number)


LOSSES: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.multilabel_margin_loss: functional,
    torch._C._nn.multilabel_margin_loss: multilabel_margin_loss}
