"""Normalisations and their gradients. Halves are normalised in float32, as ATen does; batch norm's statistics
are sums in float64, as ATen's on the CPU: one after another, batch norms make errors of a mean larger."""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import DType, dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import operator

Results = tuple[Tensor | None, ...]


def widened(x: Tensor) -> Tensor:
    return x.cast(dtypes.float32) if x.dtype.itemsize < 4 else x


def standardized(x: Tensor, axes: tuple[int, ...], eps: float, summed_in: DType | None = None,
                 ) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps) along `axes`, the mean, and 1 / sqrt(variance + eps)."""
    sums = summed_in or x.dtype
    mean = x.cast(sums).mean(axes, keepdim=True).cast(x.dtype)
    centred = x - mean
    inverse = (centred.cast(sums).square().mean(axes, keepdim=True) + eps).rsqrt().cast(x.dtype)
    return centred * inverse, mean, inverse


def scaled_and_shifted(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def gradient_of_standardized(g: Tensor, normal: Tensor, inverse: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The gradient at x of `standardized`: what of `g` changes neither the mean nor the variance."""
    return (g - g.mean(axes, keepdim=True) - normal * (g * normal).mean(axes, keepdim=True)) * inverse


@operator("native_layer_norm")
def layer_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
               eps: float,
               ) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    normal, mean, inverse = standardized(widened(x), axes, eps)
    return scaled_and_shifted(normal, weight, bias), mean, inverse


@operator("native_layer_norm_backward")
def layer_norm_gradients(g: Tensor, x: Tensor, normalized_shape: Sequence[int], mean: Tensor, inverse: Tensor,
                         weight: Tensor | None, bias: Tensor | None, output_mask: Sequence[bool]) -> Results:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    rows = tuple(range(axes[0]))
    normal, wide = (widened(x) - mean) * inverse, widened(g)
    at_normal = wide if weight is None else wide * weight
    return (gradient_of_standardized(at_normal, normal, inverse, axes) if output_mask[0] else None,
            (wide * normal).sum(rows) if output_mask[1] else None,
            wide.sum(rows) if output_mask[2] else None)


@operator("native_group_norm")
def group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, items: int,
               groups: int,
               eps: float) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, inverse = standardized(widened(x).reshape(n, groups, channels // groups * items), (2,), eps)
    along = (1, channels, 1)
    result = scaled_and_shifted(normal.reshape(n, channels, items),
                                None if weight is None else weight.reshape(along),
                                None if bias is None else bias.reshape(along))
    return result.reshape(x.shape), mean.reshape(n, groups), inverse.reshape(n, groups)


@operator("native_group_norm_backward")
def group_norm_gradients(g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, n: int,
                         channels: int, items: int, groups: int, output_mask: Sequence[bool]) -> Results:
    scale = inverse.reshape(n, groups, 1)
    normal = (widened(x).reshape(n, groups, channels // groups * items) - mean.reshape(n, groups, 1)) * scale
    wide = widened(g).reshape(n, channels, items)
    at_normal = wide if weight is None else wide * weight.reshape(1, channels, 1)
    at_x = gradient_of_standardized(at_normal.reshape(normal.shape), normal, scale, (2,))
    return (at_x.reshape(x.shape) if output_mask[0] else None,
            (wide * normal.reshape(wide.shape)).sum((0, 2)) if output_mask[1] else None,
            wide.sum((0, 2)) if output_mask[2] else None)


def of_channels(x: Tensor, ndim: int) -> Tensor:
    return x.reshape((1, -1) + (1,) * (ndim - 2))


def batch_norm_of(x: Tensor, weight: Tensor | None, bias: Tensor | None, normal: Tensor) -> Tensor:
    return scaled_and_shifted(normal, None if weight is None else of_channels(weight, x.ndim),
                              None if bias is None else of_channels(bias, x.ndim))


@operator("_native_batch_norm_legit_no_training")
def batch_norm_by_statistics(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
                             variance: Tensor,
                             momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    inverse = (variance + eps).rsqrt()
    normal = (widened(x) - of_channels(mean, x.ndim)) * of_channels(inverse, x.ndim)
    empty = Tensor.zeros(0, dtype=dtypes.float32, device="CPU")
    return batch_norm_of(x, weight, bias, normal), empty, empty


@operator("_native_batch_norm_legit.no_stats")
def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
               eps: float,
               ) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, inverse = standardized(widened(x), (0, *range(2, x.ndim)), eps, dtypes.float64)
    return batch_norm_of(x, weight, bias, normal), mean.reshape(-1), inverse.reshape(-1)


@operator("_weight_norm_interface_backward")
def weight_norm_gradients(g: Tensor, weight: Tensor, lengths: Tensor, norms: Tensor, dim: int,
                          ) -> tuple[Tensor, Tensor]:
    """Those of weight * lengths / norms at weight, whose norms along all axes but `dim` these are, and at
    lengths."""
    along = (g * weight).sum(tuple(axis for axis in range(g.ndim) if axis != dim), keepdim=True) / norms
    return (g - weight * (along / norms)) * (lengths / norms), along
