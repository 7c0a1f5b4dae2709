"""What networks are made of and what ATen keeps whole: pooling, attention, and their gradients."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinygrad.dtype import dtypes
from tinygrad.functional.pooling import max_pool2d
from tinygrad.functional.reduce import masked_softmax
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.products import per_axis
from tinygrad.torch.registry import enter_all, gradient_of, gradients_at, operator


def max_pool(axes: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
             dilation: Sequence[int] = (1,), ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
        kernel = per_axis(kernel_size, axes)
        return max_pool2d(x, kernel, per_axis(stride or kernel, axes), per_axis(dilation, axes),
                          per_axis(padding, axes), ceil_mode=ceil_mode, return_indices=True)
    return pool


def gradient_at_indices(g: Tensor, x: Tensor, indices: Tensor, axes: int) -> Tensor:
    """Each item of `g` goes to the place that `indices` names in its plane, the last `axes` of `x`."""
    lead = x.ndim - axes
    planes, size = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
    zeros = Tensor.zeros(planes, size, dtype=g.dtype, device="CPU")
    spread = zeros.scatter_reduce(1, indices.reshape(planes, -1), g.reshape(planes, -1), "sum")
    return spread.reshape(x.shape)


def max_pool_gradient(axes: int) -> Callable[..., Tensor]:
    def gradient(g: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
                 padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Tensor) -> Tensor:
        return gradient_at_indices(g, x, indices, axes)
    return gradient


enter_all({
    "max_pool2d_with_indices": max_pool(2), "max_pool3d_with_indices": max_pool(3),
    "max_pool2d_with_indices_backward": max_pool_gradient(2),
    "max_pool3d_with_indices_backward": max_pool_gradient(3),
    "adaptive_max_pool2d_backward": lambda g, x, indices: gradient_at_indices(g, x, indices, 2),
    "adaptive_max_pool3d_backward": lambda g, x, indices: gradient_at_indices(g, x, indices, 3),
})


def average_pool(axes: int) -> Callable[..., Tensor]:
    """The operator over so many axes."""
    def pool(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
             ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
             ) -> Tensor:
        kernel = per_axis(kernel_size, axes)
        strides, pads = per_axis(stride or kernel, axes), per_axis(padding, axes)
        return x.avg_pool2d(kernel, strides, 1, pads, ceil_mode, count_include_pad, divisor_override)
    return pool


for axes in (1, 2, 3):
    forward = average_pool(axes)
    enter_all({f"avg_pool{axes}d": forward, f"avg_pool{axes}d_backward": gradient_of(forward)})


def attention_scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None,
                     ) -> Tensor:
    factor = 1 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    query = query.cast(dtypes.float32) if query.dtype.itemsize < 4 else query
    scores = query.matmul(key.cast(query.dtype).transpose(-1, -2)) * factor
    if is_causal:
        seen = Tensor.ones(query.shape[-2], key.shape[-2], dtype=dtypes.bool, device="CPU").tril()
        scores = seen.where(scores, -math.inf)
    return scores if mask is None else scores + mask


@operator("_scaled_dot_product_flash_attention_for_cpu")
def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
              attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """softmax(query key^T scale + mask) value, and the logarithm of the sums of the softmax. A query that the
    mask lets see no key gets zeros."""
    shared = 1 if query.shape[1] == key.shape[1] else int(query.shape[1]) // int(key.shape[1])
    if shared > 1:  # grouped queries: heads of keys and values that several heads of queries share
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = attention_scores(query, key, is_causal, attn_mask, scale)
    weights = scores.softmax(-1) if attn_mask is None else masked_softmax(scores, scores.dtype)
    return weights.cast(value.dtype).matmul(value), scores.logsumexp(-1)


@operator("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_gradients(g: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                        dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
                        scale: float | None = None) -> tuple[Tensor, ...]:
    def result(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    return tuple(gradients_at((query, key, value), result, g))
