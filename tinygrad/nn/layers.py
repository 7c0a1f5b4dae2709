"""Layers: objects that hold parameters and apply a function of `functional/` to their input.

Parameters have the names, shapes and initial distributions of PyTorch's layers, so saved weights fit.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tinygrad.dtype import dtypes, least_upper_float, promote
from tinygrad.functional.graph_templates import memoised
from tinygrad.functional.method_kinds import also_named
from tinygrad.functional.nn import rmsnorm
from tinygrad.helpers import make_tuple, prod
from tinygrad.nn.functional import bilinear, embedding, embedding_bag, instance_norm
from tinygrad.tensor import Tensor

Sizes = int | Sequence[int]


def _uniform(bound: float, *shape: int) -> Tensor:
    return Tensor.uniform(*shape, low=-bound, high=bound)


class Linear:
    """x @ weight.T + bias, over the last axis: (..., in_features) to (..., out_features).

    weight (out_features, in_features) and bias (out_features,) begin uniform within 1/sqrt(in_features).

    >>> layer = nn.Linear(3, 2)
    >>> layer(Tensor.ones(5, 3)).shape, layer.weight.shape, layer.bias.shape
    ((5, 2), (2, 3), (2,))
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = 1 / math.sqrt(in_features)
        self.weight = _uniform(bound, out_features, in_features)
        self.bias = _uniform(bound, out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight.transpose(), self.bias)


class Bilinear:
    """x weight[o] y + bias[o] for each output o, over the last axes: (..., in1_features) and (...,
    in2_features) to (..., out_features).

    weight (out_features, in1_features, in2_features) and bias (out_features,) begin uniform within
    1/sqrt(in1_features).

    >>> nn.Bilinear(3, 4, 2)(Tensor.ones(5, 3), Tensor.ones(5, 4)).shape
    (5, 2)
    """

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        bound = 1 / math.sqrt(in1_features)
        self.weight = _uniform(bound, out_features, in1_features, in2_features)
        self.bias = _uniform(bound, out_features) if bias else None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return bilinear(x, y, self.weight, self.bias)


PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution:
    """Weights of (first, second/groups, *kernel) and a bias for each output, uniform within 1/sqrt(items that
    one channel of the weight's second axis stands for)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, first: int, second: int,
                 groups: int, bias: bool) -> None:
        layer = type(self).__name__
        if groups < 1 or in_channels % groups != 0 or out_channels % groups != 0:
            raise ValueError(f"{layer} takes channels divisible by groups={groups}, "
                             f"got {in_channels} in and {out_channels} out")
        self.kernel_size = make_tuple(kernel_size, 2)
        if not self.kernel_size or any(k < 1 for k in self.kernel_size):
            raise ValueError(f"{layer} takes kernel sizes >= 1, got {kernel_size}")
        self.groups = groups
        bound = 1 / math.sqrt(second // groups * prod(self.kernel_size))
        self.weight = _uniform(bound, first, second // groups, *self.kernel_size)
        self.bias = _uniform(bound, out_channels) if bias else None


class Conv2d(_Convolution):
    """`Tensor.conv2d` with parameters; `kernel_size` may name any number of spatial axes (two for an int).

    weight (out_channels, in_channels/groups, *kernel) and bias (out_channels,) begin uniform within
    1/sqrt(in_channels/groups * kernel items). What is padded is zeros, or by `padding_mode` a "reflect"ion of
    the images, their border again and again ("replicate"), or what comes at the other end ("circular").

    >>> nn.Conv2d(3, 8, kernel_size=3, padding=1)(Tensor.ones(1, 3, 5, 5)).shape
    (1, 8, 5, 5)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        super().__init__(in_channels, out_channels, kernel_size, out_channels, in_channels, groups, bias)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode is one of {PADDING_MODES}, got {padding_mode!r}")
        self.padding_mode = padding_mode

    def __call__(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = x.pad(self._pads(), self.padding_mode), 0
        return x.conv2d(self.weight, self.bias, self.groups, self.stride, self.dilation, padding)

    def _pads(self) -> tuple[int, ...]:
        """The items before and after each axis, the last one first."""
        axes = len(self.kernel_size)
        if isinstance(self.padding, str):
            both = [d * (k - 1) if self.padding == "same" else 0
                    for k, d in zip(self.kernel_size, make_tuple(self.dilation, axes), strict=True)]
            return tuple(n for total in reversed(both) for n in (total // 2, total - total // 2))
        return tuple(n for n in reversed(make_tuple(self.padding, axes)) for _ in range(2))


class Conv1d(Conv2d):
    """`Conv2d` over one spatial axis: input (N, C, L)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        super().__init__(in_channels, out_channels, make_tuple(kernel_size, 1), stride, padding, dilation,
                         groups, bias, padding_mode)


class Conv3d(Conv2d):
    """`Conv2d` over three spatial axes: input (N, C, D, H, W)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        super().__init__(in_channels, out_channels, make_tuple(kernel_size, 3), stride, padding, dilation,
                         groups, bias, padding_mode)


class ConvTranspose2d(_Convolution):
    """`Tensor.conv_transpose2d` with parameters; `kernel_size` may name any number of spatial axes.

    weight (in_channels, out_channels/groups, *kernel) and bias (out_channels,) begin uniform within
    1/sqrt(out_channels/groups * kernel items), as PyTorch's.

    >>> nn.ConvTranspose2d(8, 3, kernel_size=2, stride=2)(Tensor.ones(1, 8, 4, 4)).shape
    (1, 3, 8, 8)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
                 bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, kernel_size, in_channels, out_channels, groups, bias)
        self.stride = stride
        self.padding = padding
        self.output_padding = output_padding
        self.dilation = dilation

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv_transpose2d(self.weight, self.bias, self.groups, self.stride, self.dilation,
                                  self.padding, self.output_padding)


class ConvTranspose1d(ConvTranspose2d):
    """`ConvTranspose2d` over one spatial axis: input (N, C, L)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
                 bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, make_tuple(kernel_size, 1), stride, padding,
                         output_padding, dilation, groups, bias)


class ConvTranspose3d(ConvTranspose2d):
    """`ConvTranspose2d` over three spatial axes: input (N, C, D, H, W)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1,
                 bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, make_tuple(kernel_size, 3), stride, padding,
                         output_padding, dilation, groups, bias)


class BatchNorm:
    """Normalises each channel (axis 1) over the batch and all other axes (Ioffe and Szegedy, 2015).

    While `Tensor.training`: with the batch's mean and biased variance, and `running_mean` and `running_var`
    (unbiased) move toward them by `momentum` (None: they are the average of all batches). Otherwise: with the
    running ones. Then scaled by weight and moved by bias (`affine`). The running statistics are lazy until
    something is realised with them; an optimizer that was given them does it in `step`.

    >>> layer = nn.BatchNorm(2)
    >>> layer(Tensor.ones(4, 2, 3)).shape, layer.running_mean.tolist()
    ((4, 2, 3), [0.0, 0.0])
    """

    @also_named(num_features="sz")
    def __init__(self, sz: int, eps: float = 1e-5, affine: bool = True, track_running_stats: bool = True,
                 momentum: float | None = 0.1) -> None:
        if not isinstance(affine, bool):
            raise TypeError(f"BatchNorm: affine is True or False, got {affine!r}; give momentum by name")
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.weight = Tensor.ones(sz) if affine else None
        self.bias = Tensor.zeros(sz) if affine else None
        if track_running_stats:
            # from arrays, so that each has memory of its own from the start: training overwrites it
            self.num_batches_tracked = Tensor(np.zeros(1, np.int64), requires_grad=False)
            self.running_mean = Tensor(np.zeros(sz, np.float32), requires_grad=False)
            self.running_var = Tensor(np.ones(sz, np.float32), requires_grad=False)

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, biased variance) of each channel: of the batch in training, in float32 at least, else the
        running ones."""
        if self._takes_running_stats:
            return self.running_mean, self.running_var
        others = (0, *range(2, x.ndim))
        wide = x.cast(promote(least_upper_float(x.dtype), dtypes.float32))
        mean = wide.mean(others)
        deviation = wide - mean.reshape(1, -1, *(1,) * (x.ndim - 2))
        return mean, (deviation * deviation).mean(others)

    @property
    def _takes_running_stats(self) -> bool:
        return self.track_running_stats and not Tensor.training

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or (self.weight is not None and x.shape[1] != self.weight.shape[0]):
            channels = "C" if self.weight is None else self.weight.shape[0]
            raise ValueError(f"{type(self).__name__} takes an input (N, {channels}, ...), got {x.shape}")
        mean, var = self.calc_stats(x)
        if self.track_running_stats and Tensor.training:
            self._track(mean.detach(), var.detach(), x.numel() // x.shape[1])
        out = x.batchnorm(self.weight, self.bias, mean, (var + self.eps).rsqrt())
        if self._takes_running_stats:
            return out
        parameters = [p.dtype for p in (self.weight, self.bias) if p is not None]
        return out.cast(functools.reduce(promote, parameters, least_upper_float(x.dtype)))

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        if count == 1:
            raise ValueError(f"{type(self).__name__} needs more than one value a channel to train")
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        share: float | Tensor
        if self.momentum is None:
            share = 1 / self.num_batches_tracked.cast(self.running_mean.dtype)
        else:
            share = self.momentum
        unbiased = var * (count / (count - 1))
        for running, batch in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.assign(running * (1 - share) + batch.cast(running.dtype) * share)


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class GroupNorm:
    """Normalises groups of channels (axis 1) of each item of the batch (Wu and He, 2018); weight and bias a
    channel.

    >>> nn.GroupNorm(2, 4)(Tensor.ones(1, 4, 3)).shape
    (1, 4, 3)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        if num_groups < 1 or num_channels % num_groups != 0:
            raise ValueError(f"{type(self).__name__} takes channels divisible by groups, "
                             f"got {num_channels} and {num_groups}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = Tensor.ones(num_channels) if affine else None
        self.bias = Tensor.zeros(num_channels) if affine else None

    def _check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ValueError(f"{type(self).__name__} takes an input (N, {self.num_channels}, ...), "
                             f"got {x.shape}")

    def __call__(self, x: Tensor) -> Tensor:
        self._check(x)
        x = x.unflatten(1, (self.num_groups, -1)).flatten(2).layernorm(eps=self.eps).reshape(x.shape)
        if self.weight is None or self.bias is None:
            return x
        along = (1, -1, *(1,) * (x.ndim - 2))
        return x * self.weight.reshape(*along) + self.bias.reshape(*along)


class InstanceNorm(GroupNorm):
    """Normalises each channel of each item of the batch by itself (Ulyanov, Vedaldi and Lempitsky, 2016)."""

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine)


class InstanceNorm2d(InstanceNorm):
    """`InstanceNorm` with PyTorch's arguments: without parameters unless `affine`. With `track_running_stats`
    it normalises by a running mean and variance, which move by `momentum` while `Tensor.training`."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False) -> None:
        super().__init__(num_features, eps, affine)
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        if track_running_stats:
            # in PyTorch's files too, where it stays 0
            self.num_batches_tracked = Tensor(np.zeros(1, np.int64), requires_grad=False)
            self.running_mean = Tensor(np.zeros(num_features, np.float32), requires_grad=False)
            self.running_var = Tensor(np.ones(num_features, np.float32), requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.track_running_stats:
            return super().__call__(x)
        self._check(x)
        return instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, Tensor.training,
                             self.momentum, self.eps)


InstanceNorm1d = InstanceNorm3d = InstanceNorm2d


class LayerNorm:
    """Normalises over the last axes, whose sizes are `normalized_shape` (Ba, Kiros and Hinton, 2016).

    >>> nn.LayerNorm(2, eps=0)(Tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, normalized_shape: Sizes, eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True) -> None:
        self.normalized_shape = make_tuple(normalized_shape, 1)
        self.axis = tuple(range(-len(self.normalized_shape), 0))
        self.eps = eps
        self.weight = Tensor.ones(*self.normalized_shape) if elementwise_affine else None
        self.bias = Tensor.zeros(*self.normalized_shape) if elementwise_affine and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-len(self.normalized_shape):] != self.normalized_shape:
            sizes = ", ".join(map(str, self.normalized_shape))
            raise ValueError(f"{type(self).__name__} takes an input (..., {sizes}), got {x.shape}")
        if self.weight is None:
            return x.layernorm(self.axis, self.eps)
        return _scaled_layernorm(x, self.weight, self.bias, self.axis, self.eps)


@memoised
def _scaled_layernorm(x: Tensor, weight: Tensor, bias: Tensor | None, axis: tuple[int, ...], eps: float
                      ) -> Tensor:
    scaled = x.layernorm(axis, eps) * weight
    return scaled if bias is None else scaled + bias


class LayerNorm2d(LayerNorm):
    """`LayerNorm` over the channels of images (N, C, H, W)."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32 (Zhang and Sennrich,
    2019).

    >>> nn.RMSNorm(2, eps=0)(Tensor([[1.0, -1.0]])).tolist()
    [[1.0, -1.0]]
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        self.eps = eps
        self.weight = Tensor.ones(dim) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is not None and x.shape[-1:] != self.weight.shape:
            raise ValueError(f"RMSNorm takes an input (..., {self.weight.shape[0]}), got {x.shape}")
        return _scaled_rmsnorm(x, self.weight, self.eps)


@memoised
def _scaled_rmsnorm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.cast(promote(x.dtype, dtypes.float32))
    out = rmsnorm(wide, eps=eps).cast(x.dtype)
    return out if weight is None else out * weight


class Embedding:
    """Rows of a table: integers (...) to vectors (..., embed_size).

    weight (vocab_size, embed_size) begins normal with standard deviation 1. A number outside the vocabulary
    gives zeros. Row `padding_idx` begins as zeros, and gets no gradient.

    >>> layer = nn.Embedding(10, 4)
    >>> layer(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    @also_named(num_embeddings="vocab_size", embedding_dim="embed_size")
    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.embed_size = embed_size
        self.padding_idx = padding_idx
        self.weight = Tensor.randn(vocab_size, embed_size)
        if padding_idx is not None:
            self.weight[padding_idx] = 0

    def __call__(self, idx: Tensor) -> Tensor:
        return embedding(idx, self.weight, self.padding_idx)


class EmbeddingBag:
    """The sums, means or largest (`mode`) of rows of a table: integers (bags, items), or (items,) with the
    positions where bags begin, to (bags, embedding_dim). See `nn.functional.embedding_bag`.

    weight (num_embeddings, embedding_dim) begins normal with standard deviation 1, its row `padding_idx` as
    zeros; that one is in no bag.

    >>> nn.EmbeddingBag(10, 4)(Tensor([1, 2, 3]), Tensor([0, 2])).shape
    (2, 4)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean",
                 include_last_offset: bool = False, padding_idx: int | None = None) -> None:
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx
        self.weight = Embedding(num_embeddings, embedding_dim, padding_idx).weight

    def __call__(self, input: Tensor, offsets: Tensor | None = None,
                 per_sample_weights: Tensor | None = None) -> Tensor:
        return embedding_bag(input, self.weight, offsets, mode=self.mode,
                             per_sample_weights=per_sample_weights, padding_idx=self.padding_idx,
                             include_last_offset=self.include_last_offset)
