"""Losses, and steps of optimizers."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.tensor import Tensor

TRAINING = "ai.onnx.preview.training"


@op
def NegativeLogLikelihoodLoss(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                              ignore_index: int | None = None, reduction: str = "mean") -> Tensor:
    """-input at the target's class (axis 1) times the class's weight; the mean is over weights."""
    labels = target.cast(dtypes.int64)
    counts = Tensor.ones(*labels.shape, device=input.device,
                         requires_grad=False) if ignore_index is None else \
        (labels != ignore_index).cast(dtypes.float32)
    safe = labels if ignore_index is None else (labels == ignore_index).where(0, labels)
    counts = counts.cast(input.dtype) if weight is None else counts.cast(input.dtype) * weight[safe]
    loss = -input.gather(1, safe.unsqueeze(1)).squeeze(1) * counts
    loss = (counts == 0).where(0, loss)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counts.sum()


@op
def SoftmaxCrossEntropyLoss(scores: Tensor, labels: Tensor, weights: Tensor | None = None, *,
                            ignore_index: int | None = None,
                            reduction: str = "mean") -> tuple[Tensor, Tensor]:
    log_prob = scores.log_softmax(1)
    return NegativeLogLikelihoodLoss(log_prob, labels, weights, ignore_index=ignore_index,
                                     reduction=reduction), log_prob


def _groups(tensors: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """All first tensors of `count` kinds, then all second ones, ... as one tuple a parameter."""
    each = len(tensors) // count
    return [tuple(tensors[i + k * each] for k in range(count)) for i in range(each)]


def _flattened(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(t for column in zip(*rows, strict=True) for t in column)


@op(domain=TRAINING)
def Adagrad(R: Tensor, T: Tensor, *inputs: Tensor, decay_factor: float = 0.0, epsilon: float = 1e-6,
            norm_coefficient: float = 0.0) -> tuple[Tensor, ...]:
    rate = R / (1 + T.cast(R.dtype) * decay_factor)
    rows = []
    for X, G, H in _groups(inputs, 3):
        gradient = X * norm_coefficient + G
        squares = H + gradient * gradient
        rows.append((X - rate * gradient / (squares.sqrt() + epsilon), squares))
    return _flattened(rows)


@op(domain=TRAINING)
def Adam(R: Tensor, T: Tensor, *inputs: Tensor, alpha: float = 0.9, beta: float = 0.999,
         epsilon: float = 1e-6,
         norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0) -> tuple[Tensor, ...]:
    step = T.cast(R.dtype)
    corrected = R * (1 - (step * 0 + beta).pow(step)).sqrt() / (1 - (step * 0 + alpha).pow(step))
    rate = (T > 0).where(corrected, R)
    rows = []
    for X, G, V, H in _groups(inputs, 4):
        gradient = X * norm_coefficient + G
        mean = V * alpha + gradient * (1 - alpha)
        squares = H * beta + gradient * gradient * (1 - beta)
        new = X - rate * mean / (squares.sqrt() + epsilon)
        rows.append((new * (1 - norm_coefficient_post), mean, squares))
    return _flattened(rows)


@op(domain=TRAINING)
def Momentum(R: Tensor, T: Tensor, *inputs: Tensor, alpha: float, beta: float, mode: str,
             norm_coefficient: float) -> tuple[Tensor, ...]:
    share: Any = (T > 0).where(beta, 1.0).cast(R.dtype)
    rows = []
    for X, G, V in _groups(inputs, 3):
        gradient = X * norm_coefficient + G
        moved = V * alpha + gradient * share
        rows.append((X - R * (gradient + moved * alpha if mode == "nesterov" else moved), moved))
    return _flattened(rows)
