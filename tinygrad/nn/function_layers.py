"""Layers that hold nothing but options: the functions of `nn.functional`, made with what is no tensor.

`nn.LeakyReLU(0.2)(x)` is `nn.functional.leaky_relu(x, 0.2)`. Options are attributes of the layer. Dropout is
on while `Tensor.training`, for a model has no mode.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tinygrad.nn.functional as F
from tinygrad.tensor import Tensor


class FunctionLayer:
    """A function of tensors with its other arguments: those, by their names, are attributes."""

    function: Callable[..., Any]
    options: inspect.Signature
    """what it is made with"""

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            bound = self.options.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}{self.options}: {error}") from None
        bound.apply_defaults()
        vars(self).update(bound.arguments)

    def __call__(self, *tensors: Any, **others: Any) -> Any:
        given = {name: vars(self)[name] for name in self.options.parameters}
        return type(self).function(*tensors, **given, **others)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={vars(self)[name]!r}" for name in self.options.parameters)
        return f"{type(self).__name__}({given})"


def _layer(name: str, function: Callable[..., Any], operands: int = 1, order: Sequence[str] = (),
           doc: str = "") -> type[FunctionLayer]:
    """The class of layers that call `function` with so many tensors; its options are the other parameters, in
    `order` where that is not the function's."""
    options = dict(list(inspect.signature(function).parameters.items())[operands:])
    parameters = [options[option].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
                  for option in order] if order else list(options.values())
    signature = inspect.Signature(parameters)
    return type(name, (FunctionLayer,), {
        "function": staticmethod(function), "options": signature, "__signature__": signature,
        "__module__": __name__, "__doc__": doc or f"`nn.functional.{function.__name__}` as a layer."})


def _in_mode(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A dropout that asks `Tensor.training`."""
    def dropout(x: Tensor, p: float = 0.5, inplace: bool = False) -> Tensor:
        return function(x, p, Tensor.training, inplace)
    dropout.__name__ = function.__name__
    return dropout


def _rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> Tensor:
    return F.rrelu(x, lower, upper, Tensor.training, inplace)


def _softmax_of_channels(x: Tensor) -> Tensor:
    return x.softmax(-3)


def _nearest(x: Tensor, size: int | Sequence[int] | None = None,
             scale_factor: float | Sequence[float] | None = None) -> Tensor:
    return F.interpolate(x, size, scale_factor, "nearest")


def _bilinear(x: Tensor, size: int | Sequence[int] | None = None,
              scale_factor: float | Sequence[float] | None = None) -> Tensor:
    return F.interpolate(x, size, scale_factor, "bilinear", align_corners=True)


def _flatten(x: Tensor, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    return x.flatten(start_dim, end_dim)


def _unflatten(x: Tensor, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    return x.unflatten(dim, unflattened_size)


def _constant_padding(axes: int) -> Callable[..., Tensor]:
    def pad(x: Tensor, padding: int | Sequence[int], value: float) -> Tensor:
        return F.pad(x, (padding,) * (2 * axes) if isinstance(padding, int) else padding, "constant", value)
    return pad


def _padding(mode: str, axes: int) -> Callable[..., Tensor]:
    def pad(x: Tensor, padding: int | Sequence[int]) -> Tensor:
        return F.pad(x, (padding,) * (2 * axes) if isinstance(padding, int) else padding, mode)
    return pad


# --- activations --------------------------------------------------------------------------------------------

CELU = _layer("CELU", F.celu)
ELU = _layer("ELU", F.elu)
GELU = _layer("GELU", F.gelu)
GLU = _layer("GLU", F.glu)
Hardshrink = _layer("Hardshrink", F.hardshrink)
Hardsigmoid = _layer("Hardsigmoid", F.hardsigmoid)
Hardswish = _layer("Hardswish", F.hardswish)
Hardtanh = _layer("Hardtanh", F.hardtanh)
LeakyReLU = _layer("LeakyReLU", F.leaky_relu)
LogSigmoid = _layer("LogSigmoid", F.logsigmoid)
LogSoftmax = _layer("LogSoftmax", F.log_softmax, order=("dim",))
Mish = _layer("Mish", F.mish)
RReLU = _layer("RReLU", _rrelu, doc="`nn.functional.rrelu` as a layer, which draws while `Tensor.training`.")
ReLU = _layer("ReLU", F.relu)
ReLU6 = _layer("ReLU6", F.relu6)
SELU = _layer("SELU", F.selu)
SiLU = _layer("SiLU", F.silu)
Sigmoid = _layer("Sigmoid", F.sigmoid)
Softmax = _layer("Softmax", F.softmax, order=("dim",))
Softmax2d = _layer("Softmax2d", _softmax_of_channels, doc="`softmax` over the channels of images.")
Softmin = _layer("Softmin", F.softmin, order=("dim",))
Softplus = _layer("Softplus", F.softplus)
Softshrink = _layer("Softshrink", F.softshrink)
Softsign = _layer("Softsign", F.softsign)
Tanh = _layer("Tanh", F.tanh)
Tanhshrink = _layer("Tanhshrink", F.tanhshrink)
Threshold = _layer("Threshold", F.threshold)

# --- shapes, windows, dropout -------------------------------------------------------------------------------

PADDING = "`nn.functional.pad` as a layer, of a size for all sides or of one for each, the last axis first."
OF_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", F.adaptive_avg_pool1d)
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", F.adaptive_avg_pool2d)
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", F.adaptive_avg_pool3d)
AdaptiveMaxPool1d = _layer("AdaptiveMaxPool1d", F.adaptive_max_pool1d)
AdaptiveMaxPool2d = _layer("AdaptiveMaxPool2d", F.adaptive_max_pool2d)
AdaptiveMaxPool3d = _layer("AdaptiveMaxPool3d", F.adaptive_max_pool3d)
AvgPool1d = _layer("AvgPool1d", F.avg_pool1d)
AvgPool2d = _layer("AvgPool2d", F.avg_pool2d)
AvgPool3d = _layer("AvgPool3d", F.avg_pool3d)
ChannelShuffle = _layer("ChannelShuffle", F.channel_shuffle)
AlphaDropout = _layer("AlphaDropout", _in_mode(F.alpha_dropout))
Dropout = _layer("Dropout", _in_mode(F.dropout))
Dropout1d = _layer("Dropout1d", _in_mode(F.dropout1d))
Dropout2d = _layer("Dropout2d", _in_mode(F.dropout2d))
Dropout3d = _layer("Dropout3d", _in_mode(F.dropout3d))
FeatureAlphaDropout = _layer("FeatureAlphaDropout", _in_mode(F.feature_alpha_dropout))
Flatten = _layer("Flatten", _flatten, doc="`Tensor.flatten` as a layer, from axis 1 on.")
Fold = _layer("Fold", F.fold)
LPPool1d = _layer("LPPool1d", F.lp_pool1d)
LPPool2d = _layer("LPPool2d", F.lp_pool2d)
LPPool3d = _layer("LPPool3d", F.lp_pool3d)
LocalResponseNorm = _layer("LocalResponseNorm", F.local_response_norm)

MaxPool1d = _layer("MaxPool1d", F.max_pool1d, order=OF_MAX_POOL)
MaxPool2d = _layer("MaxPool2d", F.max_pool2d, order=OF_MAX_POOL)
MaxPool3d = _layer("MaxPool3d", F.max_pool3d, order=OF_MAX_POOL)
MaxUnpool1d = _layer("MaxUnpool1d", F.max_unpool1d, 2, OF_MAX_POOL[:3])
MaxUnpool2d = _layer("MaxUnpool2d", F.max_unpool2d, 2, OF_MAX_POOL[:3])
MaxUnpool3d = _layer("MaxUnpool3d", F.max_unpool3d, 2, OF_MAX_POOL[:3])
PixelShuffle = _layer("PixelShuffle", F.pixel_shuffle)
PixelUnshuffle = _layer("PixelUnshuffle", F.pixel_unshuffle)
Unflatten = _layer("Unflatten", _unflatten, doc="`Tensor.unflatten` as a layer.")
Unfold = _layer("Unfold", F.unfold)
Upsample = _layer("Upsample", F.interpolate)
UpsamplingNearest2d = _layer("UpsamplingNearest2d", _nearest, doc="`Upsample`, by the nearest item.")
UpsamplingBilinear2d = _layer("UpsamplingBilinear2d", _bilinear,
                              doc="`Upsample` along lines between corners that stay where they are.")
ConstantPad1d, ConstantPad2d, ConstantPad3d = (
    _layer(f"ConstantPad{n}d", _constant_padding(n), doc=PADDING) for n in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (
    _layer(f"ZeroPad{n}d", _padding("constant", n), doc=PADDING) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (
    _layer(f"ReflectionPad{n}d", _padding("reflect", n), doc=PADDING) for n in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _layer(f"ReplicationPad{n}d", _padding("replicate", n), doc=PADDING) for n in (1, 2, 3))
CircularPad1d, CircularPad2d, CircularPad3d = (
    _layer(f"CircularPad{n}d", _padding("circular", n), doc=PADDING) for n in (1, 2, 3))

# --- losses and distances -----------------------------------------------------------------------------------

BCELoss = _layer("BCELoss", F.binary_cross_entropy, 2)
BCEWithLogitsLoss = _layer("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, 2)
CTCLoss = _layer("CTCLoss", F.ctc_loss, 4)
CosineEmbeddingLoss = _layer("CosineEmbeddingLoss", F.cosine_embedding_loss, 3)
CosineSimilarity = _layer("CosineSimilarity", F.cosine_similarity, 2)
CrossEntropyLoss = _layer("CrossEntropyLoss", F.cross_entropy, 2)
GaussianNLLLoss = _layer("GaussianNLLLoss", F.gaussian_nll_loss, 3)
HingeEmbeddingLoss = _layer("HingeEmbeddingLoss", F.hinge_embedding_loss, 2)
HuberLoss = _layer("HuberLoss", F.huber_loss, 2)
KLDivLoss = _layer("KLDivLoss", F.kl_div, 2)
L1Loss = _layer("L1Loss", F.l1_loss, 2)
MSELoss = _layer("MSELoss", F.mse_loss, 2)
MarginRankingLoss = _layer("MarginRankingLoss", F.margin_ranking_loss, 3)
MultiLabelMarginLoss = _layer("MultiLabelMarginLoss", F.multilabel_margin_loss, 2)
MultiLabelSoftMarginLoss = _layer("MultiLabelSoftMarginLoss", F.multilabel_soft_margin_loss, 2)
MultiMarginLoss = _layer("MultiMarginLoss", F.multi_margin_loss, 2)
NLLLoss = _layer("NLLLoss", F.nll_loss, 2)
PairwiseDistance = _layer("PairwiseDistance", F.pairwise_distance, 2)
PoissonNLLLoss = _layer("PoissonNLLLoss", F.poisson_nll_loss, 2)
SmoothL1Loss = _layer("SmoothL1Loss", F.smooth_l1_loss, 2)
SoftMarginLoss = _layer("SoftMarginLoss", F.soft_margin_loss, 2)
TripletMarginLoss = _layer("TripletMarginLoss", F.triplet_margin_loss, 3)
TripletMarginWithDistanceLoss = _layer("TripletMarginWithDistanceLoss", F.triplet_margin_with_distance_loss,
                                       3)

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "GaussianNLLLoss",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Mish",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "RReLU",
    "ReLU",
    "ReLU6",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]
