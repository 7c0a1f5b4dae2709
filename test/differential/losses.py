"""Rows of losses: of scores, probabilities and distances, each with its ways to reduce."""

from __future__ import annotations

import numpy as np

from tinygrad import Tensor
from tinygrad.dtype import dtypes

from .networks import network
from .table import (
    Input,
    below,
    case,
    positive,
    probability,
    torch,
)

F = torch.nn.functional

REDUCTIONS = ("mean", "sum", "none")


def labels(shape: tuple[int, ...], classes: int) -> Input:
    return Input(shape, values=below(classes), dtype=dtypes.int32)


def some_ignored(shape: tuple[int, ...], classes: int, ignored: int = -1) -> Input:
    return Input(
        shape,
        values=lambda r, s: np.where(r.uniform(size=s) < 0.3, ignored, r.integers(0, classes, s)),
        dtype=dtypes.int32,
    )


SCORES = (
    case((5, 4), labels((5,), 4)),
    case((2, 4, 3), labels((2, 3), 4)),
    case((4,), labels((), 4)),
    case(Input((4, 5), lambda x: x.permute((1, 0))), labels((5,), 4), name="permuted"),
)
SOFT = (
    case((5, 4), Input((5, 4), values=probability)),
    case((2, 4, 3), Input((2, 4, 3), values=probability)),
)

PROBABILITIES = (
    case((3, 4), Input((3, 4), values=probability)),
    case((), Input((), values=probability)),
    case((2, 1, 5), Input((2, 1, 5), values=probability)),
    case(Input((4, 3), lambda x: x.permute((1, 0))), Input((3, 4), values=probability), name="permuted"),
)

ROWS = [
    *(
        row
        for r in REDUCTIONS
        for row in (
            network(
                f"binary_crossentropy {r}",
                lambda x, y, r=r: x.binary_crossentropy(y, reduction=r),
                lambda x, y, r=r: F.binary_cross_entropy(x, y, reduction=r),
                *PROBABILITIES,
                values=probability,
                constant=(1,),
                ulps=8,
            ),
            network(
                f"binary_crossentropy_logits {r}",
                lambda x, y, r=r: x.binary_crossentropy_logits(y, reduction=r),
                lambda x, y, r=r: F.binary_cross_entropy_with_logits(x, y, reduction=r),
                *PROBABILITIES,
                ulps=8,
            ),
            network(
                f"cross_entropy {r}",
                lambda x, y, r=r: x.cross_entropy(y, reduction=r),
                lambda x, y, r=r: F.cross_entropy(x, y.long(), reduction=r),
                *SCORES,
                ulps=8,
            ),
            network(
                f"cross_entropy smoothed {r}",
                lambda x, y, r=r: x.cross_entropy(y, reduction=r, label_smoothing=0.1),
                lambda x, y, r=r: F.cross_entropy(x, y.long(), reduction=r, label_smoothing=0.1),
                *SCORES[:2],
                ulps=8,
            ),
            network(
                f"cross_entropy weighted, a label ignored {r}",
                lambda x, y, r=r: x.cross_entropy(y, r, 0.1, (Tensor.arange(x.shape[1]) + 0.5).cast(x.dtype),
                                                  ignore_index=1),
                lambda x, y, r=r: F.cross_entropy(x, y.long(), (torch.arange(x.shape[1]) + 0.5).to(x.dtype),
                                                  ignore_index=1, reduction=r, label_smoothing=0.1),
                *SCORES[:1],
                ulps=8,
            ),
            network(
                f"cross_entropy of probabilities {r}",
                lambda x, y, r=r: x.cross_entropy(y, reduction=r, label_smoothing=0.2),
                lambda x, y, r=r: F.cross_entropy(x, y, reduction=r, label_smoothing=0.2),
                *SOFT,
                ulps=8,
            ),
            network(
                f"sparse_categorical_crossentropy {r}",
                lambda x, y, r=r: x.sparse_categorical_crossentropy(y, reduction=r),
                lambda x, y, r=r: F.cross_entropy(x, y.long(), ignore_index=-1, reduction=r),
                case((6, 4), some_ignored((6,), 4)),
                case(Input((4, 6), lambda x: x.permute((1, 0))), some_ignored((6,), 4), name="permuted"),
                ulps=8,
            ),
            network(
                f"sparse_categorical_crossentropy smoothed {r}",
                lambda x, y, r=r: x.sparse_categorical_crossentropy(
                    y, reduction=r, label_smoothing=0.1, ignore_index=2
                ),
                lambda x, y, r=r: F.cross_entropy(
                    x, y.long(), ignore_index=2, reduction=r, label_smoothing=0.1
                ),
                case((6, 4), labels((6,), 4)),
                ulps=8,
            ),
            network(
                f"nll_loss {r}",
                lambda x, y, r=r: x.nll_loss(y, reduction=r),
                lambda x, y, r=r: F.nll_loss(x, y.long(), reduction=r),
                *SCORES[:2],
                ulps=8,
            ),
            network(
                f"nll_loss weighted {r}",
                lambda x, y, w, r=r: x.nll_loss(y, w, reduction=r),
                lambda x, y, w, r=r: F.nll_loss(x, y.long(), w, reduction=r),
                case((5, 4), labels((5,), 4), Input((4,), values=positive)),
                constant=(2,),
                ulps=8,
            ),
            network(
                f"nll_loss ignoring {r}",
                lambda x, y, w, r=r: x.nll_loss(y, w, ignore_index=1, reduction=r),
                lambda x, y, w, r=r: F.nll_loss(x, y.long(), w, ignore_index=1, reduction=r),
                case((5, 4), labels((5,), 4), Input((4,), values=positive)),
                case((2, 4, 3), labels((2, 3), 4), Input((4,), values=positive)),
                constant=(2,),
                ulps=8,
            ),
        )
    ),
    network(
        "binary_crossentropy_logits pos_weight",
        lambda x, y, w: x.binary_crossentropy_logits(y, pos_weight=w),
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        case((3, 4), Input((3, 4), values=probability), Input((4,), values=positive)),
        constant=(2,),
        ulps=8,
    ),
]
