"""Rows of `tinygrad.nn.functional`: each function called alike in both libraries."""

from __future__ import annotations

from typing import Any

import tinygrad.nn.functional as ours_f
from tinygrad.dtype import dtypes

from .losses import PROBABILITIES, SCORES, SOFT
from .table import (
    Input,
    Row,
    below,
    case,
    coins,
    distinct,
    eighths,
    given,
    position,
    positive,
    probability,
    same,
    torch,
)

FLOAT = (dtypes.float32,)
POINTS = (case((5, 7)),)
PAIRS = (case((4, 5), (4, 5)), case((3, 1), (1, 4)), case((), ()))
SIGNS = Input((6,), values=lambda rng, shape: 2 * coins(rng, shape) - 1, dtype=dtypes.float32)
POSITIVE = Input((4,), values=positive)
VECTORS = (case((6, 5), (6, 5)),)


def f(name: str, *args: Any, cases: Any = POINTS, label: str = "", **options: Any) -> Row:
    """`F.name(operands, *args, **call)`; names of Row's own fields are options of the row."""
    fields = {key: options.pop(key) for key in list(options) if key in Row.__dataclass_fields__}
    theirs = getattr(torch.nn.functional, name)
    title = " ".join(filter(None, (f"F.{name}", label, *map(str, args), *(f"{k}={v}" for k, v in
                                                                       options.items()))))
    return Row(title, lambda *xs: getattr(ours_f, name)(*xs, *args, **options),
               lambda *xs: theirs(*map(as_label, xs), *args, **options), cases=cases,
               **{"dtypes": FLOAT, "ulps": 8, **fields})


def as_label(x: Any) -> Any:
    """Numbers of classes as PyTorch takes them."""
    return x.long() if x.dtype is torch.int32 else x


def labels(shape: tuple[int, ...], classes: int) -> Input:
    return Input(shape, values=below(classes), dtype=dtypes.int32)


STARTS = Input((4,), values=given([0, 2, 2, 7]), dtype=dtypes.int32)


def bags(words: Any, **options: Any) -> Row:
    """`F.embedding_bag` of a table, words and, of words on a line, where bags begin."""
    return Row(f"F.embedding_bag {words.name} {options}",
               lambda w, i, *starts: ours_f.embedding_bag(i, w, *starts, **options),
               lambda w, i, *starts: torch.nn.functional.embedding_bag(i, w, *starts, **options), FLOAT,
               (words,), ulps=8, smooth=options["mode"] != "max")


def loss(name: str, *args: Any, cases: Any = PAIRS, **options: Any) -> list[Row]:
    return [f(name, *args, cases=cases, reduction=reduction, **options)
            for reduction in ("mean", "sum", "none")]


SIMPLE = ("tanh", "sigmoid", "logsigmoid", "softsign", "tanhshrink", "silu", "mish", "selu", "elu", "celu",
          "gelu", "softplus", "glu", "relu", "softmin")
ACTIVATIONS = [
    *(f(name, cases=(case((6, 4)),)) for name in SIMPLE),
    *(f(name, values=eighths, smooth=False, label="at its corners") for name in
      ("relu", "relu6", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "softshrink", "hardshrink")),
    f("elu", 0.5), f("celu", 2.0), f("leaky_relu", 0.25, smooth=False), f("glu", 0, cases=(case((6, 4)),)),
    f("hardtanh", -0.5, 0.25, values=eighths, smooth=False), f("softshrink", 1.0, smooth=False),
    f("threshold", 0.5, -2.0, values=eighths, smooth=False), f("hardshrink", 1.0, smooth=False),
    f("gelu", approximate="tanh"), f("softplus", 2.0, 1.0, smooth=False),
    f("prelu", cases=(case((2, 3, 4), (3,)),), smooth=False),
    *(f(name, dim=dim, cases=(case((2, 3, 4)),)) for name in ("softmax", "log_softmax", "softmin")
      for dim in (0, -1)),
    *(f("softmax", cases=(case(shape),), label=f"of {len(shape)} axes")
      for shape in ((4,), (3, 4), (2, 3, 4))),
    f("normalize", cases=(case((2, 3, 4)),)), f("normalize", 1.0, 2, cases=(case((2, 3, 4)),)),
    f("dropout", 0.5, False), f("dropout", 0.0), f("dropout1d", 0.5, False, cases=(case((2, 3, 4)),)),
    f("dropout2d", 0.5, False, cases=(case((2, 3, 4, 4)),)),
    f("dropout3d", 0.5, False, cases=(case((2, 3, 4, 4, 2)),)),
    f("alpha_dropout", 0.5), f("alpha_dropout", 1.0, True),
    f("feature_alpha_dropout", 0.5, False, cases=(case((2, 3, 4)),)),
]

LOSSES = [
    *loss("cross_entropy", cases=SCORES), *loss("cross_entropy", cases=SOFT, label="of probabilities"),
    *loss("cross_entropy", cases=SCORES[:2], ignore_index=1, label_smoothing=0.1),
    *(f(name, cases=(case((5, 4), labels((5,), 4), POSITIVE),), label="weighed",
        constant=(2,)) for name in ("cross_entropy", "nll_loss")),
    *loss("nll_loss", cases=SCORES[:2]), *loss("nll_loss", cases=SCORES[:2], ignore_index=1),
    *loss("binary_cross_entropy", cases=PROBABILITIES, values=probability, constant=(1,)),
    f("binary_cross_entropy", cases=(case((3, 4), (3, 4), (4,)),), values=probability, constant=(1, 2),
      label="weighed"),
    *loss("binary_cross_entropy_with_logits", cases=PROBABILITIES),
    f("binary_cross_entropy_with_logits", label="weighed", constant=(1, 2),
      cases=(case((3, 4), Input((3, 4), values=probability), POSITIVE),)),
    *loss("multilabel_soft_margin_loss", cases=(case((3, 4), Input((3, 4), values=coins)),), constant=(1,)),
    *loss("mse_loss"), *loss("l1_loss"), *loss("l1_loss", values=eighths, smooth=False, label="of ties"),
    *loss("smooth_l1_loss", smooth=False), *loss("smooth_l1_loss", beta=0.5, values=eighths, smooth=False),
    f("smooth_l1_loss", beta=0.0, cases=PAIRS, smooth=False),
    *loss("huber_loss", smooth=False), *loss("huber_loss", delta=0.5, values=eighths, smooth=False),
    *loss("kl_div", values=probability), *loss("kl_div", log_target=True),
    *(f("kl_div", reduction="batchmean", cases=PAIRS[:1], values=probability, log_target=log)
      for log in (False, True)),
    f("kl_div", cases=(case((4,), Input((4,), values=given([0, 0.5, 0, 0.5]))),), constant=(1,),
      label="of nothing"),
    *loss("poisson_nll_loss"), *loss("poisson_nll_loss", False, True, values=positive, smooth=False),
    *loss("gaussian_nll_loss", cases=(case((4, 5), (4, 5), Input((4, 5), values=positive)),)),
    f("gaussian_nll_loss", full=True, eps=0.5, cases=(
        case((4, 5), (4, 5), POSITIVE), case((4, 5), (4, 5), Input((4, 1), values=positive)))),
    f("cosine_similarity", cases=VECTORS), f("cosine_similarity", dim=0, cases=PAIRS[:1]),
    f("cosine_similarity", dim=-1, cases=(case((6, 1, 5), (4, 5)),), label="broadcast"),
    *(f("cosine_similarity", dim=dim, cases=(case((1, 2, 3), (2, 1, 3)), case((3, 4, 2), (4, 1))),
        label="broadcast along the axis") for dim in (-2, 0)),
    *(f("pairwise_distance", p, cases=VECTORS, ulps=16) for p in (1.0, 2.0, 3.0)),
    f("pairwise_distance", keepdim=True, cases=(case((5,), (5,)),)),
    *loss("cosine_embedding_loss", cases=(case((6, 5), (6, 5), SIGNS),)),
    f("cosine_embedding_loss", 0.25, cases=(case((6, 5), (6, 5), SIGNS),), smooth=False),
    *loss("hinge_embedding_loss", cases=(case((6,), SIGNS),), values=eighths, smooth=False),
    *loss("margin_ranking_loss", 0.25, cases=(case((6,), (6,), SIGNS),), values=eighths, smooth=False),
    *loss("triplet_margin_loss", cases=(case((6, 5), (6, 5), (6, 5)),), ulps=32, smooth=False),
    f("triplet_margin_loss", 2.0, 1.0, swap=True, cases=(case((6, 5), (6, 5), (6, 5)),), ulps=32,
      smooth=False),
    *loss("soft_margin_loss", cases=(case((6,), SIGNS),), constant=(1,)),
]

IMAGE = (case((2, 3, 6, 8)),)
LINE = (case((2, 3, 7)),)
VOLUME = (case((2, 2, 4, 6, 4)),)


def _unpooled(library: Any, axes: int) -> Any:
    def function(x: Any) -> Any:
        pooled = getattr(library, f"max_pool{axes}d")(x, 2, return_indices=True)
        return getattr(library, f"max_unpool{axes}d")(*pooled, 2)
    return function


def normed(name: str, over: Any, cases: Any, **options: Any) -> Row:
    """`F.name(x, over, weight, bias)`."""
    theirs = getattr(torch.nn.functional, name)
    return Row(f"F.{name}", lambda x, *affine: getattr(ours_f, name)(x, over, *affine, **options),
               lambda x, *affine: theirs(x, over, *affine, **options), FLOAT, cases, ulps=16)


def pooled(name: str, cases: Any, *args: Any, **options: Any) -> Row:
    return f(name, *args, cases=cases, values=distinct, **options)


NETWORKS = [
    f("linear", cases=(case((4, 5), (3, 5), (3,)), case((2, 4, 5), (3, 5)), case((4, 5), (5,)))),
    Row("F.embedding", lambda w, i: ours_f.embedding(i, w), lambda w, i: torch.nn.functional.embedding(i, w),
        FLOAT, (case((7, 5), labels((2, 3), 7)),)),
    Row("F.embedding of padding", lambda w, i: ours_f.embedding(i, w, -5),
        lambda w, i: torch.nn.functional.embedding(i, w, -5), FLOAT, (case((7, 5), labels((2, 9), 7)),)),
    *(bags(case((7, 5), labels((3, 4), 7)), mode=mode, padding_idx=padding)
      for mode in ("sum", "mean", "max") for padding in (None, -5)),
    *(bags(case((7, 5), labels((count,), 7), STARTS), mode=mode, padding_idx=2, include_last_offset=count < 9)
      for mode in ("sum", "mean", "max") for count in (7, 9)),
    Row("F.embedding_bag weighted",
        lambda w, i, s, f: ours_f.embedding_bag(i, w, s, mode="sum", per_sample_weights=f),
        lambda w, i, s, f: torch.nn.functional.embedding_bag(i, w, s, mode="sum", per_sample_weights=f),
        FLOAT, (case((7, 5), labels((9,), 7), STARTS, (9,)),), ulps=8),
    f("one_hot", dtypes=(dtypes.int32,), cases=(case((2, 9)),), values=below(5), gradient=False),
    f("one_hot", 7, dtypes=(dtypes.int32,), cases=(case((2, 9)),), values=below(5), gradient=False),
    normed("layer_norm", (4, 5), cases=(case((3, 4, 5), (4, 5), (4, 5)), case((3, 4, 5)))),
    normed("rms_norm", (5,), eps=1e-5, cases=(case((3, 4, 5), (5,)), case((3, 4, 5)))),
    normed("group_norm", 2, cases=(case((3, 4, 5), (4,), (4,)), case((3, 4, 5, 2)),
                                   case((0, 4, 5), (4,), (4,)))),
    f("scaled_dot_product_attention", cases=(case((2, 4, 8), (2, 6, 8), (2, 6, 3)),)),
    f("scaled_dot_product_attention", is_causal=True, scale=0.5,
      cases=(case((2, 4, 8), (2, 4, 8), (2, 4, 3)),)),
    f("conv1d", stride=2, padding=1, cases=(case((2, 4, 9), (6, 4, 3), (6,)),)),
    f("conv2d", stride=(2, 1), dilation=2, groups=2, ulps=32,
      cases=(case((2, 4, 9, 8), (6, 2, 3, 3), (6,)),)),
    f("conv3d", padding="same", cases=(case((1, 2, 4, 5, 4), (2, 2, 3, 3, 3)),), ulps=32),
    f("conv_transpose1d", stride=2, cases=(case((2, 4, 5), (4, 3, 3), (3,)),)),
    f("conv_transpose2d", stride=2, padding=1, output_padding=1, groups=2, dilation=2, ulps=32,
      cases=(case((2, 4, 5, 4), (4, 3, 3, 3), (6,)),)),
    f("conv_transpose3d", cases=(case((1, 2, 3, 4, 3), (2, 2, 2, 2, 2)),), ulps=32),
    *(row for axes, x in ((1, LINE), (2, IMAGE), (3, VOLUME)) for row in (
        pooled(f"max_pool{axes}d", x, 2), pooled(f"max_pool{axes}d", x, 3, 2, 1, ceil_mode=True),
        pooled(f"max_pool{axes}d", x, 2, return_indices=True, result=(same, position)),
        pooled(f"avg_pool{axes}d", x, 2), pooled(f"avg_pool{axes}d", x, 3, 2, 1, True, False),
        *(pooled(f"avg_pool{axes}d", x, 3, 2, 1, True, include, 5) for include in (True, False) if axes > 1),
        f(f"lp_pool{axes}d", 2, 3, 2, cases=x, values=positive, ulps=16),
        f(f"lp_pool{axes}d", 3.0, 3, 2, True, cases=x, values=positive, ulps=16),
        pooled(f"adaptive_avg_pool{axes}d", x, 2), pooled(f"adaptive_avg_pool{axes}d", x, 3),
        pooled(f"adaptive_max_pool{axes}d", x, 3),
        Row(f"F.max_unpool{axes}d", _unpooled(ours_f, axes), _unpooled(torch.nn.functional, axes), FLOAT, x,
            values=distinct),
    )),
    pooled("adaptive_avg_pool2d", IMAGE, (None, 5)), pooled("adaptive_avg_pool2d", IMAGE, 1, label="of all"),
    pooled("adaptive_max_pool2d", IMAGE, (4, None), return_indices=True, result=(same, position)),
    f("unfold", 3, cases=(*IMAGE, case((3, 6, 8)))), f("unfold", (2, 3), 2, 1, (1, 2), cases=IMAGE),
    f("fold", (6, 8), 3, cases=(case((2, 18, 24)),)),
    f("fold", (6, 8), (2, 3), 2, 1, (1, 2), cases=(case((2, 18, 18)),)),
    f("pad", (1, 2, 0, 3), cases=IMAGE), f("pad", (2, 1), "constant", 1.5, cases=IMAGE),
    f("pad", (1, 2, 2, 1), "reflect", cases=IMAGE),
    f("pixel_shuffle", 2, cases=(case((2, 8, 3, 4)), case((4, 3, 4)))),
    f("pixel_unshuffle", 2, cases=(case((2, 3, 4, 6)), case((3, 4, 6)))),
    *(f("interpolate", scale_factor=2, mode=mode, cases=IMAGE)
      for mode in ("nearest", "bilinear", "bicubic")),
    f("interpolate", (3, 5), mode="bilinear", align_corners=True, cases=IMAGE),
    *(f("interpolate", size, mode=mode, align_corners=corners, antialias=True, cases=IMAGE, ulps=16)
      for mode in ("bilinear", "bicubic") for size, corners in (((2, 3), False), ((4, 11), True))),
    f("interpolate", 5, cases=LINE, mode="linear"), f("interpolate", (5, 3), cases=IMAGE, mode="area"),
    f("interpolate", scale_factor=(1.5, 0.4), recompute_scale_factor=True, cases=IMAGE),
    *(f("interpolate", scale_factor=(1.6, 0.45), mode=mode, cases=IMAGE, ulps=32)
      for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")),
    *(f("interpolate", scale_factor=factor, mode=mode, antialias=True, cases=IMAGE, ulps=16)
      for factor in (0.7, 1.3) for mode in ("bilinear", "bicubic")),
    f("interpolate", scale_factor=1.3, mode="bilinear", align_corners=True, cases=IMAGE),
    f("interpolate", scale_factor=1.05, mode="bilinear", cases=IMAGE, label="to the same sizes"),
]

CHANNELS = Input((4,), values=positive)
CTC = case((7, 3, 5), labels((3, 3), 4), name="rows of labels")
CTC_ROW = case((7, 3, 5), labels((6,), 4), name="labels in one axis")


def ctc(name: str, cases: Any, lengths: tuple[int, ...], targets: tuple[int, ...], **options: Any) -> Row:
    """Of scores that are made log-probabilities, and labels from 1 on, as 0 is the blank unless said."""
    def call(library: Any) -> Any:
        return lambda x, y: library.ctc_loss(x.log_softmax(-1), y + (options.get("blank", 0) == 0), lengths,
                                             targets, **options)
    theirs = call(torch.nn.functional)
    return Row(f"F.ctc_loss {name}", call(ours_f), lambda x, y: theirs(x, y.long()), FLOAT, (cases,), ulps=32)


def sampled(mode: str, padding: str, corners: bool, *sizes: int) -> Row:
    places = Input((2, 3, 4, *(2,) * (len(sizes) - 2), len(sizes)),
                   values=lambda rng, shape: rng.uniform(-1.4, 1.4, shape))
    return f("grid_sample", mode, padding, corners, label="of volumes" * (len(sizes) == 3), ulps=32,
             cases=(case((2, 3, *sizes), places),), smooth=False, constant=(1,) if mode == "nearest" else ())


FURTHER = [
    ctc("", CTC, (7, 5, 6), (3, 2, 0)), ctc("sums", CTC, (7, 6, 7), (3, 3, 1), reduction="sum"),
    ctc("of the last class", CTC, (7, 7, 7), (2, 2, 3), blank=4, reduction="none"),
    ctc("one after the other", CTC_ROW, (7, 5, 6), (3, 1, 2)),
    ctc("without infinity", CTC, (7, 1, 6), (3, 3, 1), zero_infinity=True),
    *(sampled(mode, padding, corners, 4, 5) for mode in ("bilinear", "nearest", "bicubic")
      for padding in ("zeros", "border", "reflection") for corners in (False, True)),
    *(sampled(mode, padding, padding == "border", 3, 4, 5) for mode in ("bilinear", "nearest")
      for padding in ("zeros", "border", "reflection")),
    *(f("affine_grid", (2, 3, 4, 5), corners, cases=(case((2, 2, 3)),)) for corners in (False, True)),
    *(f("affine_grid", (2, 3, 4, 5, 6), corners, cases=(case((2, 3, 4)),)) for corners in (False, True)),
    f("batch_norm", None, None, cases=(case((3, 4, 5)),), training=True, ulps=32),
    Row("F.batch_norm of running statistics", lambda x, m, v, w, b: ours_f.batch_norm(x, m, v, w, b),
        lambda x, m, v, w, b: torch.nn.functional.batch_norm(x, m, v, w, b), FLOAT,
        (case((3, 4, 5, 2), (4,), CHANNELS, (4,), (4,)),), ulps=16, constant=(1, 2)),
    f("instance_norm", cases=(case((3, 4, 5)), case((2, 3, 4, 4)), case((0, 3, 4))), ulps=64),
    *(f("instance_norm", cases=(case((3, 4, 5, 2), (4,), CHANNELS, (4,), (4,)),), ulps=64, constant=(1, 2),
        use_input_stats=own) for own in (True, False)),
    *(f("local_response_norm", size, 0.1, cases=(case((2, 5, 3, 3)), case((2, 4, 3)))) for size in (2, 3)),
    f("channel_shuffle", 2, cases=(case((2, 6, 3)), case((2, 4, 3, 3)))),
    f("bilinear", cases=(case((4, 3), (4, 5), (2, 3, 5), (2,)), case((2, 4, 3), (2, 4, 5), (2, 3, 5)),
                         case((0, 3), (0, 5), (2, 3, 5), (2,))),
      ulps=32),
    *(f("pdist", p, cases=(case((5, 3)),)) for p in (1.0, 2.0, 3.0)),
    *(f("multi_margin_loss", p, 0.7, cases=(case((4, 5), labels((4,), 5)),), smooth=False, label=f"{p}")
      for p in (1, 2)),
    *loss("multi_margin_loss", cases=(case((4, 5), labels((4,), 5)),), smooth=False),
    *loss("multilabel_margin_loss", smooth=False, cases=(
        case((3, 5), Input((3, 5), dtype=dtypes.int32,
                           values=given([4, 0, -1, 2, 1, -1, 3, 3, 3, 3, 2, 2, 0, 1, 4]))),
        case((4,), Input((4,), dtype=dtypes.int32, values=given([3, 1, -1, 0]))))),
    *loss("triplet_margin_with_distance_loss", cases=(case((6, 5), (6, 5), (6, 5)),), ulps=32, smooth=False,
          swap=True, margin=2.0),
    f("rrelu", values=eighths, smooth=False), f("rrelu", 0.25, 0.5, smooth=False),
    *(Row(f"F.{name}", lambda x, n=name: getattr(ours_f, n)(x * 1),
          lambda x, n=name: getattr(torch.nn.functional, n)(x * 1), FLOAT, (case((6, 4)),), ulps=4,
          smooth=False)
      for name in ("relu_", "selu_", "elu_", "leaky_relu_", "hardtanh_")),
    f("upsample", scale_factor=2, cases=IMAGE),
]

ROWS = [*ACTIVATIONS, *LOSSES, *NETWORKS, *FURTHER]
