"""The losses of `torch.nn.functional`, by PyTorch's names and with its parameters.

Each is of `input` and `target`, which broadcast where PyTorch's do, and has a `reduction`: "mean", "sum", or
"none", the losses item by item. `nn` has a layer of each (`nn/function_layers.py`).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.losses import Reduction, reduce_loss
from tinygrad.functional.movement import axis_of
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.tensor import Tensor

# --- labels -------------------------------------------------------------------------------------------------


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
                  reduction: Reduction = "mean", label_smoothing: float = 0.0) -> Tensor:
    """`Tensor.cross_entropy`: of scores (N, classes, ...) and class numbers (N, ...) or probabilities."""
    return input.cross_entropy(target, reduction, label_smoothing, weight, ignore_index)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
             reduction: Reduction = "mean") -> Tensor:
    """`Tensor.nll_loss`: of log-probabilities (N, classes, ...) and class numbers (N, ...)."""
    return input.nll_loss(target, weight, ignore_index, reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                         reduction: Reduction = "mean") -> Tensor:
    """`Tensor.binary_crossentropy` of probabilities, each times its `weight`, which broadcasts."""
    return _weighed(input.binary_crossentropy(target, "none"), weight, reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                                     reduction: Reduction = "mean", pos_weight: Tensor | None = None
                                     ) -> Tensor:
    """`Tensor.binary_crossentropy_logits` of scores, each times its `weight`, which broadcasts."""
    return _weighed(input.binary_crossentropy_logits(target, "none", pos_weight), weight, reduction)


def _weighed(loss: Tensor, weight: Tensor | None, reduction: Reduction) -> Tensor:
    return reduce_loss(loss if weight is None else loss * weight, reduction)


def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                                reduction: Reduction = "mean") -> Tensor:
    """Means over the classes, the last axis, of `binary_cross_entropy_with_logits`."""
    loss = binary_cross_entropy_with_logits(input, target, weight, reduction="none")
    return reduce_loss(loss.mean(-1), reduction)


def multi_margin_loss(input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0,
                      weight: Tensor | None = None, *, reduction: Reduction = "mean") -> Tensor:
    """Means over the classes of max(0, margin - the score of the class + this one's) ** p, times the `weight`
    of the class: of scores (N, classes) and class numbers (N,)."""
    input, own = as_real(input), target.reshape(-1, 1)
    lacking = (margin - input.gather(1, own) + input).clip(0) ** p
    lacking = lacking if weight is None else lacking * weight[target].unsqueeze(1)
    others = Tensor.arange(input.shape[1], device=input.device) != own
    return reduce_loss(others.where(lacking, 0).sum(1) / input.shape[1], reduction)


def multilabel_margin_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Sums of max(0, 1 - the score of a label + that of another class), over the labels and the classes that
    are none, over the number of classes: of scores (N, classes), or (classes,), and class numbers of that
    shape, which are labels up to the first -1."""
    if input.shape != target.shape or input.ndim not in (1, 2):
        raise ValueError("multilabel_margin_loss takes scores (N, classes) or (classes,) and class numbers "
                         f"of that shape, got {input.shape} and {target.shape}")
    input, labels = as_real(input), (target >= 0).cast(dtypes.int32).cumprod(-1) > 0
    places = labels.where(target, 0)
    classes = Tensor.arange(input.shape[-1], device=input.device)
    is_label = (labels.unsqueeze(-1) & (places.unsqueeze(-1) == classes)).any(-2)
    lacking = (1 - input.gather(-1, places).unsqueeze(-1) + input.unsqueeze(-2)).clamp_min(0)
    counted = labels.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    return reduce_loss(counted.where(lacking, 0).sum((-2, -1)) / max(input.shape[-1], 1), reduction)


NO_PATH = -1e30
"""The logarithm of a probability 0, finite so that gradients are."""


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
             target_lengths: Tensor | Sequence[int], blank: int = 0, reduction: Reduction = "mean",
             zero_infinity: bool = False) -> Tensor:
    """-log of the probability of all ways to spread labels over time with blanks between (Graves and others,
    2006): of log-probabilities (T, N, classes), or (T, classes), and labels (N, S), or one after the other in
    one axis.

    The "mean" divides each loss by its number of labels first. What is too short for its labels costs
    infinity, or 0 with `zero_infinity`. Labels in one axis compute their lengths. Unrolled, step by step: put
    a training step with it under `TinyJit`.
    """
    if log_probs.ndim == 2:
        found = ctc_loss(log_probs.unsqueeze(1), targets.unsqueeze(0), _one_row(input_lengths, log_probs),
                         _one_row(target_lengths, log_probs), blank, reduction, zero_infinity)
        return found.squeeze(0) if found.ndim else found
    steps, number, _ = log_probs.shape
    inputs, lengths = (_one_row(x, log_probs) for x in (input_lengths, target_lengths))
    if targets.ndim == 1:  # place i of row n is where the rows before it end, and i
        most = int(lengths.max().item())
        places = (lengths.cumsum() - lengths).unsqueeze(1) + Tensor.arange(most, device=targets.device)
        targets = targets[places.minimum(max(targets.shape[0] - 1, 0))] if most else \
            targets.reshape(1, -1).expand(number, -1)[:, :0]
    if targets.shape[0] != number or inputs.shape != (number,) or lengths.shape != (number,):
        raise ValueError(f"ctc_loss of {log_probs.shape} takes {number} rows of labels and as many lengths, "
                         f"got {targets.shape}, {inputs.shape} and {lengths.shape}")
    blanks = targets.full_like(blank)
    path = blanks.stack(targets, dim=-1).flatten(1).cat(targets.new_full((number, 1), blank), dim=1)
    wide = log_probs.cast(promote(log_probs.dtype, dtypes.float32))
    two_before = path.pad((None, (2, 0)), value=blank)[:, :path.shape[1]]
    # in memory, so that all steps are one kernel, of other places
    scores = wide.gather(2, path.unsqueeze(0).expand(steps, -1, -1)).contiguous()
    to_skip = ((path != blank) & (path != two_before)).where(0.0, NO_PATH).contiguous()
    goes_on = (Tensor.arange(steps, device=path.device).unsqueeze(1) < inputs).unsqueeze(2).contiguous()
    place = Tensor.arange(path.shape[1], device=path.device)
    alpha = (place < 2).where(scores[0], NO_PATH)
    for step in range(1, steps):
        alpha = alpha.contiguous()
        one, two = (alpha.pad((None, (n, 0)), value=NO_PATH)[:, :path.shape[1]] for n in (1, 2))
        two = two + to_skip
        top = alpha.maximum(one).maximum(two).detach()
        total = (alpha - top).exp() + (one - top).exp() + (two - top).exp()
        alpha = goes_on[step].where(total.log() + top + scores[step], alpha)
    last = lengths.unsqueeze(1) * 2
    is_end = (place == last) | (place == last - 1)
    loss = -is_end.where(alpha, NO_PATH).logsumexp(1)
    loss = (loss > -NO_PATH / 2).where(0 if zero_infinity else math.inf, loss).cast(log_probs.dtype)
    return reduce_loss(loss / lengths.maximum(1) if reduction == "mean" else loss, reduction)


def _one_row(lengths: Tensor | Sequence[int], like: Tensor) -> Tensor:
    found = lengths if isinstance(lengths, Tensor) else Tensor(lengths, device=like.device)
    return found.cast(dtypes.int32).reshape(-1)


# --- numbers ------------------------------------------------------------------------------------------------


def mse_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """(input - target) ** 2.

    >>> nn.functional.mse_loss(Tensor([1.0, 3.0]), Tensor([1.0, 1.0])).item()
    2.0
    """
    return reduce_loss((as_real(input, target) - target).square(), reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """abs(input - target)."""
    return reduce_loss((as_real(input, target) - target).abs(), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean", beta: float = 1.0
                   ) -> Tensor:
    """With d = abs(input - target): d * d / (2 beta) below beta, d - beta / 2 above."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss takes beta >= 0, got {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    d = (as_real(input, target) - target).abs()
    small = (d < beta).where(d, 0)  # whose square has a gradient where d is infinite
    return reduce_loss((d < beta).where(small * small * (0.5 / beta), d - 0.5 * beta), reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: Reduction = "mean", delta: float = 1.0) -> Tensor:
    """With d = abs(input - target): d * d / 2 up to delta, delta * (d - delta / 2) above."""
    if delta <= 0:
        raise ValueError(f"huber_loss takes delta > 0, got {delta}")
    d = (as_real(input, target) - target).abs()
    small = (d <= delta).where(d, 0)
    return reduce_loss((d <= delta).where(small * small * 0.5, (d - 0.5 * delta) * delta), reduction)


# --- distributions ------------------------------------------------------------------------------------------


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log(target) - input), the divergence from distributions whose logarithms are `input`;
    `log_target`: the target is logarithms too. "batchmean" is the sum over the size of axis 0."""
    input = as_real(input, target)
    loss = target.exp() * (target - input) if log_target else target.xlogy(target) - target * input
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.ndim else 1)
    return reduce_loss(loss, reduction)


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, *,
                     eps: float = 1e-8, reduction: Reduction = "mean") -> Tensor:
    """Counts `target` of Poisson distributions with means e^input, or `input`: mean - target * log(mean),
    and, if `full`, Stirling's log(target!) where that is above 1."""
    input = as_real(input, target)
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        counts = (target > 1).where(target, 1)
        stirling = counts * counts.log() - counts + (counts * (2 * math.pi)).log() * 0.5
        loss = loss + (target > 1).where(stirling, 0)
    return reduce_loss(loss, reduction)


def gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor | float, full: bool = False,
                      eps: float = 1e-6, reduction: Reduction = "mean") -> Tensor:
    """Numbers `target` of normal distributions of means `input` and variances `var`, eps at least:
    (log(var) + (input - target) ** 2 / var) / 2, and, if `full`, log(2 pi) / 2. `var`: of the input's shape,
    or without its last axis, or 1 there."""
    if not isinstance(var, Tensor):
        var = input.full_like(var)
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    if var.shape != input.shape and var.shape != (*input.shape[:-1], 1):
        raise ValueError(f"gaussian_nll_loss of inputs {input.shape} takes variances of that shape, or of "
                         f"one a row, got {var.shape}")
    var = var + (var.maximum(eps) - var).detach()  # what is raised to eps keeps its gradient
    loss = (var.log() + (as_real(input, target) - target).square() / var) * 0.5
    return reduce_loss(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# --- distances ----------------------------------------------------------------------------------------------


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis of the shape that both broadcast to; their
    lengths are eps at least."""
    shape = broadcast_shape("cosine_similarity", x1.shape, x2.shape)
    axis = axis_of("cosine_similarity", x1 if x1.ndim == len(shape) else x2, dim)

    def direction(x: Tensor) -> Tensor:
        own = (*(1,) * (len(shape) - x.ndim), *x.shape)
        x = x.reshape(own).expand(*own[:axis], *shape[axis:axis + 1], *own[axis + 1:])
        return x / x.norm(2, axis, keepdim=True).clamp_min(eps)
    return (direction(x1) * direction(x2)).sum(axis)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
                      ) -> Tensor:
    """The p-norm along the last axis of x1 - x2 + eps."""
    return (as_real(x1, x2) - x2 + eps).norm(p, -1, keepdim)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *,
                          reduction: Reduction = "mean") -> Tensor:
    """1 - cosine where the target is 1; what the cosine is above the margin where it is -1. Of vectors (N, D)
    and (N,) targets, or (D,) and ()."""
    input1, input2 = as_real(input1, input2), as_real(input2, input1)
    dot, *squares = ((a * b).sum(-1) for a, b in ((input1, input2), (input1, input1), (input2, input2)))
    cosine = dot / ((squares[0] + 1e-12) * (squares[1] + 1e-12)).sqrt()
    apart = (target == -1).where((cosine - margin).clamp_min(0), 0)
    return reduce_loss((target == 1).where(1 - cosine, apart), reduction)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, *,
                         reduction: Reduction = "mean") -> Tensor:
    """A distance where the target is 1; what it lacks of the margin where it is -1."""
    lacking = (target != 1).where((margin - input).clamp_min(0), 0)
    return reduce_loss(lacking + (target != -1).where(input, 0), reduction)


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *,
                        reduction: Reduction = "mean") -> Tensor:
    """max(0, margin - target * (input1 - input2)): the target is 1 where the first should be larger, else
    -1."""
    return reduce_loss((margin - target * (as_real(input1, input2) - input2)).clamp_min(0), reduction)


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0,
                        p: float = 2.0, eps: float = 1e-6, swap: bool = False, *,
                        reduction: Reduction = "mean") -> Tensor:
    """max(0, margin + the distance to the positive - that to the negative); `swap`: the negative's to anchor
    or positive, which is nearer (Balntas and others, 2016)."""
    def distance(x: Tensor, y: Tensor) -> Tensor:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=distance,
                                             margin=margin, swap=swap, reduction=reduction)


def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *,
                                      distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
                                      margin: float = 1.0, swap: bool = False,
                                      reduction: Reduction = "mean") -> Tensor:
    """`triplet_margin_loss` by another distance of two tensors than `pairwise_distance`."""
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return reduce_loss((margin + near - far).clamp_min(0), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """log(1 + e^(-target * input)), targets 1 and -1."""
    return reduce_loss((-target * as_real(input, target)).softplus(), reduction)
