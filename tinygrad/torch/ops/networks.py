"""What networks are made of and what ATen keeps whole: pooling, attention, and their gradients."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.functional.pooling import max_pool2d
from tinygrad.tensor import Tensor
from tinygrad.torch.ops.products import per_axis
from tinygrad.torch.registry import operator


@operator("max_pool2d_with_indices")
def max_pool(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
             dilation: Sequence[int] = (1,), ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    kernel = per_axis(kernel_size, 2)
    values, indices = max_pool2d(x, kernel, per_axis(stride or kernel, 2), per_axis(dilation, 2),
                                 per_axis(padding, 2), ceil_mode=ceil_mode, return_indices=True)
    return values, indices


@operator("max_pool2d_with_indices_backward")
def max_pool_gradient(g: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
                      padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
                      ) -> Tensor:
    """Each item of `g` goes to the place that `indices` names in its plane."""
    planes = math.prod(x.shape[:-2])
    zeros = Tensor.zeros(planes, int(x.shape[-2]) * int(x.shape[-1]), dtype=g.dtype, device="CPU")
    spread = zeros.scatter_reduce(1, indices.reshape(planes, -1), g.reshape(planes, -1), "sum")
    return spread.reshape(x.shape)


@operator("avg_pool2d")
def average_pool(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
                 padding: Sequence[int] = (0,),
                 ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
                 ) -> Tensor:
    kernel = per_axis(kernel_size, 2)
    pooled = x.avg_pool2d(kernel, per_axis(stride or kernel, 2), 1, per_axis(padding, 2), ceil_mode,
                          True if divisor_override else count_include_pad)
    return pooled * (math.prod(kernel) / divisor_override) if divisor_override else pooled


@operator("avg_pool2d_backward")
def average_pool_gradient(g: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
                          padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
                          divisor_override: int | None) -> Tensor:
    pooled = average_pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return pooled.gradient(x, gradient=g)[0]


def attention_scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None,
                     ) -> Tensor:
    factor = 1 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    scores = (query.cast(dtypes.float32) if query.dtype.itemsize < 4 else query) * factor
    scores = scores.matmul(key.cast(scores.dtype).transpose(-1, -2))
    if is_causal:
        seen = Tensor.ones(int(query.shape[-2]), int(key.shape[-2]), dtype=dtypes.bool, device="CPU").tril()
        scores = seen.where(scores, -math.inf)
    return scores if mask is None else scores + mask


@operator("_scaled_dot_product_flash_attention_for_cpu")
def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
              attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """softmax(query key^T scale + mask) value, and the logarithm of the sums of the softmax."""
    shared = int(query.shape[1]) // int(key.shape[1])
    if shared > 1:  # grouped queries: heads of keys and values that several heads of queries share
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = attention_scores(query, key, is_causal, attn_mask, scale)
    return scores.softmax(-1).cast(value.dtype).matmul(value), scores.logsumexp(-1)


@operator("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_gradients(g: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                        dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
                        scale: float | None = None) -> tuple[Tensor, ...]:
    result = attention(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return tuple(result.gradient(query, key, value, gradient=g))
