"""Losses: how far a network's results are from their targets, as the mean, the sum or item by item.

A label selects its class's score as a one-hot sum, the sum of where(class == label, score, 0), which the
compiler turns into an indexed load.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tinygrad.dtype import dtypes, least_upper_float, promote
from tinygrad.functional.casts import as_real

if TYPE_CHECKING:
    from tinygrad.graph.uop import UOp
    from tinygrad.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]


def reduce_loss(loss: Tensor, reduction: str, total_weight: Tensor | None = None) -> Tensor:
    """`loss` as `reduction` says; "mean" divides by `total_weight` where that is given."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.mean() if total_weight is None else loss.sum() / total_weight
    raise ValueError(f"a loss takes reduction 'mean', 'sum' or 'none', got {reduction!r}")


def _check_targets(name: str, scores: Tensor, targets: Tensor) -> None:
    """Refuse targets of another shape: (N, 1) beside (N,) would be N x N comparisons."""
    if scores.shape != targets.shape:
        raise ValueError(f"{name} of scores {scores.shape} takes targets of that shape, got {targets.shape}")


def _check_classes(name: str, scores: tuple[int, ...], labels: Tensor, axis: int) -> None:
    """Refuse labels that are not integers of the scores' shape without the class axis."""
    expected = scores[:axis] + scores[axis + 1:]
    if labels.shape != expected or not labels.dtype.is_int:
        raise ValueError(f"{name} of scores {scores} takes integer labels of shape {expected}, "
                         f"got {labels.dtype.name} of shape {labels.shape}")


def _is_label(labels: Tensor, classes: int, axis: int, ndim: int) -> Tensor:
    """True where the class along `axis` is the label: a bool one-hot of `ndim` axes."""
    from tinygrad.tensor import Tensor

    numbers = Tensor.arange(classes, dtype=promote(labels.dtype, dtypes.int32), device=labels.device)
    return labels.unsqueeze(axis) == numbers.reshape(*(1,) * axis, classes, *(1,) * (ndim - axis - 1))


def binary_crossentropy(self: Tensor, Y: Tensor, reduction: Reduction = "mean") -> Tensor:
    """-(Y log(self) + (1 - Y) log(1 - self)) of probabilities. Logarithms stop at -100, and what its gradient
    divides by at 1e-12, as in PyTorch: it is finite at 0 and 1 too.

    >>> Tensor([0.25]).binary_crossentropy(Tensor([1.0])).exp().item()
    4.0
    """
    _check_targets("binary_crossentropy", self, Y)
    Y = Y.cast(least_upper_float(promote(self.dtype, Y.dtype)))
    loss = -Y * self.log().maximum(-100) - (1 - Y) * (1 - self).log().maximum(-100)
    if self.dtype.is_float:
        rule = _gradients_of_binary_crossentropy
        loss = type(self).of(loss.uop.with_gradient((self.uop, Y.uop), rule), self, Y)
    return reduce_loss(loss, reduction)


def _gradients_of_binary_crossentropy(gradient: UOp, node: UOp) -> tuple[UOp, UOp]:
    """g (x - y) / (x (1 - x)) and g (log(1 - x) - log(x)): what the logarithms' own give is 0 * inf at 0 and
    1, where the sigmoid of a score beyond 17 is in float32."""
    from tinygrad.tensor import Tensor

    wide = promote(node.dtype, dtypes.float32)
    g, x, y = (Tensor.of(u).cast(wide) for u in (gradient, *node.src[1:]))
    at_x = g * (x - y) / (x * (1 - x)).maximum(1e-12)
    at_y = g * ((1 - x).log().maximum(-100) - x.log().maximum(-100))
    return at_x.uop.cast(node.src[1].dtype), at_y.uop.cast(node.src[2].dtype)


def binary_crossentropy_logits(self: Tensor, Y: Tensor, reduction: Reduction = "mean",
                               pos_weight: Tensor | None = None) -> Tensor:
    """`binary_crossentropy` of sigmoid(self), without overflow. `pos_weight` weighs the positive term.

    >>> Tensor([0.0]).binary_crossentropy_logits(Tensor([1.0])).exp().item()
    2.0
    """
    _check_targets("binary_crossentropy_logits", self, Y)
    self = as_real(self)
    positive = Y * self.logsigmoid()
    if pos_weight is not None:
        positive = positive * pos_weight
    return reduce_loss(-positive - (1 - Y) * (-self).logsigmoid(), reduction)


def cross_entropy(self: Tensor, Y: Tensor, reduction: Reduction = "mean", label_smoothing: float = 0.0,
                  weight: Tensor | None = None, ignore_index: int = -100) -> Tensor:
    """-sum over classes of weight * target * log_softmax(self), the classes on axis 1 (axis 0 of a vector).

    `Y`: class numbers, of the input's shape without the class axis; or class probabilities, of the input's
    shape. `label_smoothing` s mixes the targets with the uniform distribution: (1 - s)*target + s/classes.
    `weight`: (classes,). Labels equal to `ignore_index` count neither in the sum nor in the mean; "mean"
    divides by the sum of the labels' weights, of probabilities by how many there are.

    >>> scores = Tensor([[0.0, 0.0], [100.0, 0.0], [5.0, 1.0]])
    >>> scores.cross_entropy(Tensor([1, 0, -100]), reduction="none").exp().tolist()
    [2.0, 1.0, 1.0]
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy takes label_smoothing from 0 to 1, got {label_smoothing}")
    if self.ndim == 0:
        raise ValueError("cross_entropy takes scores of at least one axis, got a scalar")
    axis = min(1, self.ndim - 1)
    classes = self.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"cross_entropy of {self.shape} takes a weight ({classes},), got {weight.shape}")
    log_probs = self.log_softmax(axis)
    along = None if weight is None else weight.reshape(*(1,) * axis, classes, *(1,) * (self.ndim - axis - 1))
    weighted = log_probs if along is None else log_probs * along
    smooth = weighted.sum(axis) / classes if label_smoothing else None
    if Y.dtype.is_float and Y.shape == self.shape:
        return reduce_loss(_smoothed(-(weighted * Y).sum(axis), smooth, label_smoothing), reduction)
    _check_classes("cross_entropy", self.shape, Y, axis)
    picked = _is_label(Y, classes, axis, self.ndim)
    loss = _smoothed(-picked.where(weighted, 0).sum(axis), smooth, label_smoothing)
    counted = Y.ne(ignore_index)
    weights = counted.cast(loss.dtype) if along is None else picked.where(along, 0).sum(axis)
    return reduce_loss(counted.where(loss, 0), reduction, counted.where(weights, 0).sum())


def _smoothed(loss: Tensor, smooth: Tensor | None, label_smoothing: float) -> Tensor:
    """The loss with a share of what every class alike would give."""
    return loss if smooth is None else (1 - label_smoothing) * loss - label_smoothing * smooth


def sparse_categorical_crossentropy(self: Tensor, Y: Tensor, ignore_index: int = -1,
                                    label_smoothing: float = 0.0, reduction: Reduction = "mean") -> Tensor:
    """Cross entropy of scores (..., classes), the classes on the last axis, and class numbers `Y` (...).

    Items whose label is `ignore_index` count neither in the sum nor in the mean.

    >>> scores = Tensor([[0.0, 0.0], [100.0, 0.0]])
    >>> scores.sparse_categorical_crossentropy(Tensor([1, -1])).exp().item()
    2.0
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"sparse_categorical_crossentropy takes label_smoothing from 0 to 1, "
                         f"got {label_smoothing}")
    if self.ndim == 0:
        raise ValueError("sparse_categorical_crossentropy takes scores of at least one axis, got a scalar")
    _check_classes("sparse_categorical_crossentropy", self.shape, Y, self.ndim - 1)
    log_probs = self.log_softmax(-1)
    loss = -_is_label(Y, self.shape[-1], self.ndim - 1, self.ndim).where(log_probs, 0).sum(-1)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean(-1)
    counted = Y.ne(ignore_index)
    return reduce_loss(counted.where(loss, 0), reduction, counted.sum().cast(loss.dtype))


def nll_loss(self: Tensor, Y: Tensor, weight: Tensor | None = None, ignore_index: int | None = -100,
             reduction: Reduction = "mean") -> Tensor:
    """-self[label] * weight[label] of log-probabilities (N, classes, ...) and class numbers `Y` (N, ...).

    "mean" divides by the sum of the weights. Labels equal to `ignore_index` weigh nothing; None ignores none.

    >>> Tensor([[-1.0, -2.0], [-3.0, -4.0]]).nll_loss(Tensor([1, 0])).item()
    2.5
    """
    if self.ndim == 0:
        raise ValueError("nll_loss takes log-probabilities of at least one axis, got a scalar")
    axis = min(1, self.ndim - 1)
    _check_classes("nll_loss", self.shape, Y, axis)
    classes = self.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"nll_loss of {self.shape} takes a weight ({classes},), got {weight.shape}")
    picked = _is_label(Y, classes, axis, self.ndim)
    loss = -picked.where(as_real(self), 0).sum(axis)
    if weight is None and ignore_index is None:
        return reduce_loss(loss, reduction)
    if weight is None:
        weights = loss.ones_like(requires_grad=False)
    else:
        along = weight.reshape(*(1,) * axis, classes, *(1,) * (self.ndim - axis - 1))
        weights = picked.where(along, 0).sum(axis)
    if ignore_index is not None:
        weights = Y.ne(ignore_index).where(weights, 0)
    # where, not a product: an ignored log-probability may be infinite
    return reduce_loss((weights != 0).where(loss * weights, 0), reduction, weights.sum())
