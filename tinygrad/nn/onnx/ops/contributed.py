"""Operators that ONNX Runtime contributed (com.microsoft) and that exporters and optimisers write most: fused
products, activations and normalisations, attention, quantised arithmetic. As its documents define them."""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Unpack

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.nn import rotated
from tinygrad.nn.onnx.ops.convolution import Conv
from tinygrad.nn.onnx.ops.indexing import TensorScatter, Unique
from tinygrad.nn.onnx.ops.matrices import Gemm_7
from tinygrad.nn.onnx.ops.normalization import LayerNormalization, RMSNormalization
from tinygrad.nn.onnx.ops.pooling import AveragePool, MaxPool
from tinygrad.nn.onnx.ops.quantization import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QuantizeLinear,
)
from tinygrad.nn.onnx.ops.recurrent import Product, RecurrentAttributes, lstm
from tinygrad.nn.onnx.ops.shapes import Range as _range
from tinygrad.nn.onnx.ops.signal import fourier
from tinygrad.nn.onnx.ops.vision import GridSample_16
from tinygrad.nn.onnx.registry import CONTRIBUTED, OPERATORS, op, ops, with_attributes_of
from tinygrad.nn.onnx.values import Array, Items, Value
from tinygrad.tensor import Tensor

MASKED = -10000.0
"""What is added to the scores of masked keys, unless an attribute says otherwise."""

# --- what the standard has, too -----------------------------------------------------------------------------


def _distinct(x: Array) -> tuple[Array, Array, Array]:
    """Distinct items in the order in which they come, which one each item is, and how often each is."""
    values, _, inverse, counts = Unique(x, sorted=0)
    return values, inverse, counts


def _expanded(X: Tensor, axis: int) -> Tensor:
    return X.unsqueeze(axis)


ops(CONTRIBUTED, Unique=_distinct, ExpandDims=_expanded, GridSample=GridSample_16,
    **{name: OPERATORS["", name][-1].function
       for name in ("DequantizeLinear", "GatherND", "Pad", "QuantizeLinear", "Trilu")})


@op(domain=CONTRIBUTED)
def Range(start: Array, limit: Array, delta: Array | None = None) -> Value:
    return _range(start, limit, np.ones((), start.dtype) if delta is None else delta)


@op(domain=CONTRIBUTED)
def Rfft(X: Tensor, *, signal_ndim: int = 1, normalized: int = 0, onesided: int = 1) -> Tensor:
    """The transform of the last axis, n items, as (..., n // 2 + 1, 2)."""
    _check_transform(signal_ndim, normalized, onesided)
    return fourier(X.unsqueeze(-1), X.shape[-1], inverse=False, onesided=True)


@op(domain=CONTRIBUTED)
def Irfft(X: Tensor, *, signal_ndim: int, normalized: int = 0, onesided: int = 1) -> Tensor:
    """The signal, of an even number of items, whose transform is (..., n // 2 + 1, 2)."""
    _check_transform(signal_ndim, normalized, onesided)
    return fourier(X, 2 * (X.shape[-2] - 1), inverse=True, onesided=True).squeeze(-1)


def _check_transform(signal_ndim: int, normalized: int, onesided: int) -> None:
    if signal_ndim != 1 or normalized or not onesided:
        raise NotImplementedError(f"signals of {signal_ndim} axes, normalized: {bool(normalized)}, onesided: "
                                  f"{bool(onesided)}")


# --- products, activations ----------------------------------------------------------------------------------


def _transposed(x: Tensor, matrix: int, batch: int) -> Tensor:
    """The operand of a product: `batch` first brings the first axis before the last."""
    x = x.permute(*range(1, x.ndim - 1), 0, x.ndim - 1) if batch else x
    return x.transpose(-1, -2) if matrix and x.ndim > 1 else x


@op(domain=CONTRIBUTED)
def FusedMatMul(A: Tensor, B: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
                transBatchA: int = 0,
                transBatchB: int = 0) -> Tensor:
    product: Tensor = _transposed(A, transA, transBatchA) @ _transposed(B, transB, transBatchB)
    return product if alpha == 1 else product * alpha


ops(CONTRIBUTED, TransposeMatMul=FusedMatMul)


def activated(name: str | None, params: Any) -> Callable[[Tensor], Tensor]:
    first, second = (*(params or ()), 0.0, 0.0)[:2]
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "": lambda x: x, "Relu": lambda x: x.maximum(0), "Sigmoid": Tensor.sigmoid, "Tanh": Tensor.tanh,
        "LeakyRelu": lambda x: x.leaky_relu(first), "Clip": lambda x: x.maximum(first).minimum(second),
        "HardSigmoid": lambda x: (x * first + second).maximum(0).minimum(1)}
    return functions[name or ""]


@op(domain=CONTRIBUTED)
def FusedGemm(A: Tensor, B: Tensor, C: Tensor | None = None, *, activation: str = "",
              activation_alpha: float = 0.0,
              activation_beta: float = 0.0, activation_gamma: float = 0.0, alpha: float = 1.0,
              beta: float = 1.0,
              transA: int = 0, transB: int = 0) -> Tensor:
    made = Gemm_7(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(activation, (activation_alpha, activation_beta))(made)


@op(domain=CONTRIBUTED)
@with_attributes_of(Conv)
def FusedConv(X: Tensor, W: Tensor, B: Tensor | None = None, Z: Tensor | None = None, *, activation: str = "",
              activation_params: Any = None, **how: Any) -> Tensor:
    made = Conv(X, W, B, **how)
    return activated(activation, activation_params)(made if Z is None else made + Z)


def _split_gelu(X: Tensor, bias: Tensor) -> Tensor:
    left, right = (X + bias).chunk(2, -1)
    return left * right.gelu("none")


ops(CONTRIBUTED,
    Gelu=lambda X: X.gelu("none"),
    BiasGelu=lambda A, B: (A + B).gelu("none"),
    QuickGelu=lambda X, *, alpha=1.702: X * (X * alpha).sigmoid(),
    BiasSplitGelu=_split_gelu,
    Inverse=lambda X: X.inv(),
    MatMulInteger16=lambda A, B: A.cast(dtypes.int32) @ B.cast(dtypes.int32),
    UnfoldTensor=lambda input, *, dim=-1, size, step=1: input.unfold(dim, size, step),
    CDist=lambda A, B, *, metric="sqeuclidean": _distances(A, B, metric))


def _distances(a: Tensor, b: Tensor, metric: str) -> Tensor:
    squares = (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
    return squares if metric == "sqeuclidean" else squares.sqrt()


@op(domain=CONTRIBUTED)
def FastGelu(X: Tensor, bias: Tensor | None = None) -> Tensor:
    return (X if bias is None else X + bias).gelu("tanh")


@op(domain=CONTRIBUTED)
def BiasSoftmax(data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """Softmax over all axes from `axis` on; bias of fewer axes meets the last ones, or else is repeated
    inside."""
    axis %= data.ndim
    if not is_inner_broadcast and bias.ndim < data.ndim:
        bias = bias.reshape(*bias.shape[:axis], *(1,) * (data.ndim - bias.ndim), *bias.shape[axis:])
    shape = data.shape
    return (data + bias).reshape(*shape[:axis], -1).softmax(-1).reshape(*shape)


# --- normalisation ------------------------------------------------------------------------------------------


ops(SimplifiedLayerNormalization=RMSNormalization)


@op(domain=CONTRIBUTED)
def SkipLayerNormalization(input: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None,
                           bias: Tensor | None = None, *, epsilon: float = 1e-12) -> tuple[Tensor, ...]:
    total = input + skip if bias is None else input + skip + bias
    normal, mean, inverse = LayerNormalization(total, gamma, beta, epsilon=epsilon)
    return normal, mean, inverse, total


@op(domain=CONTRIBUTED)
def SkipSimplifiedLayerNormalization(input: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None,
                                     *,
                                     epsilon: float = 1e-12) -> tuple[Tensor | None, ...]:
    total = input + skip if bias is None else input + skip + bias
    return RMSNormalization(total, gamma, epsilon=epsilon), None, None, total


@op(domain=CONTRIBUTED)
def EmbedLayerNormalization(input_ids: Tensor, segment_ids: Tensor | None, word_embedding: Tensor,
                            position_embedding: Tensor, segment_embedding: Tensor | None, gamma: Tensor,
                            beta: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None, *,
                            epsilon: float = 1e-12, mask_index_type: int = 0) -> tuple[Tensor, ...]:
    """Embeddings of words, positions and segments added and normalised; how many keys are no padding."""
    places = slice(input_ids.shape[1]) if position_ids is None else position_ids
    positions = position_embedding[places]
    total = word_embedding[input_ids] + positions
    if segment_ids is not None and segment_embedding is not None:
        total = total + segment_embedding[segment_ids]
    counts = Tensor.zeros(input_ids.shape[0], dtype=dtypes.int32,
                          device=input_ids.device) if mask is None else \
        mask.sum(1).cast(dtypes.int32)
    return LayerNormalization(total, gamma, beta, epsilon=epsilon)[0], counts, total


# --- attention ----------------------------------------------------------------------------------------------


def _heads(x: Tensor, count: int) -> Tensor:
    """(batch, length, hidden) as (batch, heads, length, size)."""
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2) if x.ndim == 3 else x


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float | None, bias: Tensor | None,
              softcap: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scale + bias) v, (batch, heads, length, size), and the weights."""
    scores = (q @ k.transpose(-1, -2)).cast(dtypes.float32) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = (scores * (1 / softcap)).tanh() * softcap if softcap else scores
    scores = scores if bias is None else scores + bias
    weights = scores.softmax(-1).cast(q.dtype)
    return weights @ v, scores


def _added(*biases: Tensor | None) -> Tensor | None:
    total = None
    for bias in biases:
        total = bias if total is None else total if bias is None else total + bias
    return total


def _causal(queries: int, keys: int, device: Any, value: float) -> Tensor:
    """What hides keys after each query (the last query sees all)."""
    query = Tensor.arange(queries, device=device).unsqueeze(1) + (keys - queries)
    return (Tensor.arange(keys, device=device) > query).where(value, 0.0)


def _padding(mask: Tensor | None, batch: int, keys: int, value: float) -> Tensor | None:
    """What hides padding: of lengths (batch), ends and starts (2 * batch), or 0 and 1 for keys, for queries
    and keys, or for heads too."""
    if mask is None:
        return None
    if mask.ndim == 1:
        number = Tensor.arange(keys, device=mask.device)
        seen = number < mask[:batch].unsqueeze(1)
        if mask.shape[0] >= 2 * batch and mask.shape[0] != 3 * batch + 2:
            seen = seen & (number >= mask[batch:2 * batch].unsqueeze(1))
        return seen.reshape(batch, 1, 1, keys).where(0.0, value)
    shape = {2: (mask.shape[0], 1, 1, mask.shape[-1]), 3: (mask.shape[0], 1, *mask.shape[1:])}.get(mask.ndim,
                                                                                                  mask.shape)
    return (mask.reshape(*shape) != 0).where(0.0, value)


@op(domain=CONTRIBUTED)
def Attention(input: Tensor, weights: Tensor, bias: Tensor | None = None, mask_index: Tensor | None = None,
              past: Tensor | None = None, attention_bias: Tensor | None = None, *, num_heads: int,
              mask_filter_value: float = MASKED, qkv_hidden_sizes: Any = None, scale: float | None = None,
              unidirectional: int = 0) -> tuple[Tensor, Tensor]:
    projected = input @ weights if bias is None else input @ weights + bias
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    return _attention(projected.split(sizes, -1), mask_index, past, attention_bias, num_heads,
                      mask_filter_value, scale, unidirectional)


def _attention(projected: Sequence[Tensor], mask_index: Tensor | None, past: Tensor | None,
               attention_bias: Tensor | None, num_heads: int, mask_filter_value: float, scale: float | None,
               unidirectional: int) -> tuple[Tensor, Tensor]:
    """Attention of projected queries, keys and values, with the keys and values after those of `past`."""
    q, k, v = (_heads(part, num_heads) for part in projected)
    if past is not None:
        k, v = past[0].cat(k, dim=2), past[1].cat(v, dim=2)
    hidden = _causal(q.shape[2], k.shape[2], q.device, mask_filter_value) if unidirectional else None
    padding = _padding(mask_index, q.shape[0], k.shape[2], mask_filter_value)
    made, _ = _attended(q, k, v, scale, _added(attention_bias, padding, hidden))
    return _joined(made), k.stack(v) if k.shape == v.shape else k


@op(domain=CONTRIBUTED)
def MultiHeadAttention(query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
                       bias: Tensor | None = None, key_padding_mask: Tensor | None = None,
                       attention_bias: Tensor | None = None, past_key: Tensor | None = None,
                       past_value: Tensor | None = None, *, num_heads: int, mask_filter_value: float = MASKED,
                       scale: float | None = None, unidirectional: int = 0) -> tuple[Tensor, ...]:
    """Attention of projected queries, keys and values, which may come packed: (batch, length, heads, 3,
    size) or, keys and values, (batch, length, heads, 2, size)."""
    if key is None:
        query, key, value = (query[:, :, :, i].reshape(*query.shape[:2], -1) for i in range(3))
    elif value is None:
        key, value = (key[:, :, :, i].reshape(*key.shape[:2], -1) for i in range(2))
    assert value is not None
    if bias is not None:
        sizes = [query.shape[-1], key.shape[-1] if key.ndim == 3 else query.shape[-1]]
        parts = bias.split([*sizes, bias.shape[0] - sum(sizes)], 0)
        query = query + parts[0]
        key, value = (key + parts[1], value + parts[2]) if key.ndim == 3 else (key, value)
    q, k, v = (_heads(x, num_heads) for x in (query, key, value))
    if past_key is not None and past_value is not None:
        k, v = past_key.cat(k, dim=2), past_value.cat(v, dim=2)
    hidden = _causal(q.shape[2], k.shape[2], q.device, mask_filter_value) if unidirectional else None
    padding = _padding(key_padding_mask, q.shape[0], k.shape[2], mask_filter_value)
    made, scores = _attended(q, k, v, scale, _added(attention_bias, padding, hidden))
    return _joined(made), k, v, scores


@op(domain=CONTRIBUTED)
def RotaryEmbedding(input: Tensor, position_ids: Tensor, cos_cache: Tensor, sin_cache: Tensor, *,
                    interleaved: int = 0, is_packed_batching: int = 0, num_heads: int = 0,
                    rotary_embedding_dim: int = 0, scale: float = 1.0) -> Tensor:
    size = (rotary_embedding_dim and num_heads and input.shape[-1] // num_heads) or 2 * cos_cache.shape[1]
    x = _heads(input, input.shape[-1] // size) if input.ndim == 3 else input
    places = position_ids if position_ids.ndim == 2 else \
        (position_ids + Tensor.arange(x.shape[2], dtype=position_ids.dtype, device=x.device)).unsqueeze(0)
    cos, sin = (cache[places].unsqueeze(1) for cache in (cos_cache, sin_cache))
    made = rotated(x, cos, sin, bool(interleaved))
    return _joined(made) if input.ndim == 3 else made


@op(domain=CONTRIBUTED)
def MRotaryEmbedding(input: Tensor, position_ids: Tensor, cos_cache: Tensor, sin_cache: Tensor, *,
                     mrope_section: Any, interleaved: int = 0, is_packed_batching: int = 0,
                     mrope_layout: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
                     scale: float = 1.0) -> Tensor:
    """RotaryEmbedding by three positions of each item, `position_ids` (3, batch, length). `mrope_section`
    says how many angles follow from each: one after another, or, with `mrope_layout`, in turns."""
    size = (rotary_embedding_dim and num_heads and input.shape[-1] // num_heads) or 2 * cos_cache.shape[1]
    x = _heads(input, input.shape[-1] // size) if input.ndim == 3 else input
    which = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        which = np.zeros(sum(mrope_section), np.int64)
        for other in (1, 2):
            which[other:3 * mrope_section[other]:3] = other
    stream = Tensor(which.astype(np.int32), x.device, requires_grad=False)
    angles = [cache[position_ids] for cache in (cos_cache, sin_cache)]  # (3, batch, length, size / 2)
    cos, sin = ((stream == 0).where(a[0], (stream == 1).where(a[1], a[2])).unsqueeze(1) for a in angles)
    made = rotated(x, cos, sin, bool(interleaved))
    return _joined(made) if input.ndim == 3 else made


@op(domain=CONTRIBUTED)
def GroupQueryAttention(query: Tensor, key: Tensor | None, value: Tensor | None, past_key: Tensor | None,
                        past_value: Tensor | None, seqlens_k: Tensor, total_sequence_length: int,
                        cos_cache: Tensor | None = None, sin_cache: Tensor | None = None, *, num_heads: int,
                        kv_num_heads: int, causal: int = 1, do_rotary: int = 0, local_window_size: int = -1,
                        rotary_interleaved: int = 0, scale: float | None = None, smooth_softmax: int = -1,
                        softcap: float = 0.0) -> tuple[Tensor, ...]:
    """Attention with fewer heads of keys and values, after a cache: `seqlens_k` + 1 items of each sequence
    are there, the new ones with them, and `total_sequence_length` of the longest."""
    if smooth_softmax > 0:
        raise NotImplementedError("a softmax with one more score, of zero")
    if key is None or value is None:
        size = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], -1)
    q, k, v = _heads(query, num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    batch, queries, total = q.shape[0], q.shape[2], total_sequence_length
    lengths = (seqlens_k.cast(dtypes.int32) + 1).reshape(-1, 1)
    starts = lengths - queries if batch > 1 and queries != total else \
        Tensor.full((1, 1), total - queries, dtype=dtypes.int32, device=q.device).expand(batch, 1)
    places = starts + Tensor.arange(queries, device=q.device)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        cos, sin = cos_cache[places].unsqueeze(1), sin_cache[places].unsqueeze(1)
        q, k = rotated(q, cos, sin, bool(rotary_interleaved)), rotated(k, cos, sin, bool(rotary_interleaved))
    k, v = _cached(past_key, k, starts, total), _cached(past_value, v, starts, total)
    each = num_heads // kv_num_heads
    last = places if causal else (lengths - 1).expand(batch, queries)
    hidden = _beyond(last.reshape(batch, 1, queries, 1), k.shape[2], local_window_size)
    made, scores = _attended(q, k.repeat_interleave(each, 1), v.repeat_interleave(each, 1), scale, hidden,
                             softcap)
    return _joined(made), k, v, scores


def _cached(past: Tensor | None, new: Tensor, starts: Tensor, total: int) -> Tensor:
    """`past` (batch, heads, length, size) with new items from `starts` on and zeros behind them, at least
    `total` long."""
    if past is None or not past.shape[2]:
        return new
    behind = ((0, 0), (0, 0), (0, max(0, past.shape[2] - total)), (0, 0))
    if new.shape[0] == 1:
        return past[:, :, :total - new.shape[2]].cat(new, dim=2).pad(behind)
    room = past.pad(((0, 0), (0, 0), (0, max(0, total - past.shape[2])), (0, 0)))
    place = Tensor.arange(room.shape[2], device=new.device).reshape(1, 1, -1, 1)
    is_there = place < (starts + new.shape[2]).reshape(-1, 1, 1, 1)
    return is_there.where(TensorScatter(room, new, starts.reshape(-1), axis=2), 0)


def _beyond(last: Tensor, keys: int, window: int) -> Tensor:
    """What hides keys after the last one that a query sees, and those `window` or more before it."""
    key = Tensor.arange(keys, device=last.device)
    hidden = key > last
    if window > 0:
        hidden = hidden | (key <= last - window)
    return hidden.where(-math.inf, 0.0)


# --- quantised ----------------------------------------------------------------------------------------------


def _quantized(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Items]:
    """Arithmetic on two quantised operands."""
    def arithmetic(A: Tensor, A_scale: Tensor, A_zero_point: Tensor | None, B: Tensor, B_scale: Tensor,
                   B_zero_point: Tensor | None, C_scale: Tensor, C_zero_point: Tensor | None = None) -> Items:
        made = function(DequantizeLinear(A, A_scale, A_zero_point),
                        DequantizeLinear(B, B_scale, B_zero_point))
        return _requantized(made, C_scale, C_zero_point, A)
    return arithmetic


def _requantized(x: Tensor, scale: Tensor, zero_point: Tensor | None, like: Tensor) -> Items:
    zero = Tensor.zeros(dtype=like.dtype, device=like.device) if zero_point is None else zero_point
    return QuantizeLinear(x, scale, zero)


ops(CONTRIBUTED, QLinearAdd=_quantized(lambda a, b: a + b), QLinearMul=_quantized(lambda a, b: a * b))


@op(domain=CONTRIBUTED)
def QLinearWhere(condition: Tensor, X: Tensor, x_scale: Tensor, x_zero_point: Tensor, Y: Tensor,
                 y_scale: Tensor, y_zero_point: Tensor, z_scale: Tensor, z_zero_point: Tensor) -> Items:
    chosen = condition.where(DequantizeLinear(X, x_scale, x_zero_point),
                             DequantizeLinear(Y, y_scale, y_zero_point))
    return _requantized(chosen, z_scale, z_zero_point, X)


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def channels_last_again(x: Tensor) -> Tensor:
    return x.permute(0, *range(2, x.ndim), 1)


def of_channels_last(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function whose first tensor has its channels behind, and whose result has."""
    @wraps(function)
    def laid_out(X: Tensor, *others: Tensor, **attributes: Any) -> Tensor:
        return channels_last_again(function(channels_first(X), *others, **attributes))
    return laid_out


def of_either_layout(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first tensor may have its channels behind, as an attribute says."""
    behind, said = of_channels_last(function), inspect.signature(function)
    option = inspect.Parameter("channels_last", inspect.Parameter.KEYWORD_ONLY, default=0)

    @wraps(function)
    def laid_out(X: Tensor, *others: Tensor, channels_last: int = 0, **attributes: Any) -> Any:
        return (behind if channels_last else function)(X, *others, **attributes)
    laid_out.__signature__ = said.replace(  # type: ignore[attr-defined]
        parameters=sorted([*said.parameters.values(), option], key=lambda p: p.kind))
    return laid_out


def _of_quantized(function: Callable[..., Tensor]) -> Callable[..., Items]:
    """A function of one tensor as one of quantised numbers, with scales and zero points of these and of its
    results."""
    @with_attributes_of(function)
    def quantized(X: Tensor, x_scale: Tensor, x_zero_point: Tensor | None, y_scale: Tensor,
                  y_zero_point: Tensor | None = None, **attributes: Any) -> Items:
        made = function(DequantizeLinear(X, x_scale, x_zero_point), **attributes)
        return _requantized(made, y_scale, y_zero_point, X)
    return quantized


def _softmax(x: Tensor, *, axis: int = -1, opset: int) -> Tensor:
    flat = x if opset >= 13 else x.reshape(*x.shape[:axis % x.ndim], -1)
    return flat.softmax(axis if opset >= 13 else -1).reshape(*x.shape)


ops(CONTRIBUTED,
    NhwcMaxPool=of_channels_last(MaxPool),
    QLinearAveragePool=_of_quantized(of_either_layout(AveragePool)),
    QLinearConv=of_either_layout(QLinearConv),
    QLinearGlobalAveragePool=_of_quantized(of_either_layout(
        lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True))),
    QLinearLeakyRelu=_of_quantized(lambda x, *, alpha=0.01: x.leaky_relu(alpha)),
    QLinearReduceMean=_of_quantized(lambda x, *, axes, keepdims: x.mean(tuple(axes), keepdim=bool(keepdims))),
    QLinearSigmoid=_of_quantized(Tensor.sigmoid),
    QLinearSoftmax=_of_quantized(_softmax))


@op(domain=CONTRIBUTED)
def QLinearConcat(Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Items:
    """Inputs come in threes: values, scale, zero point."""
    parts = [DequantizeLinear(*inputs[i:i + 3]) for i in range(0, len(inputs), 3)]
    return _requantized(parts[0].cat(*parts[1:], dim=axis), Y_scale, Y_zero_point, inputs[0])


@op(domain=CONTRIBUTED)
def QGemm(A: Tensor, a_scale: Tensor, a_zero_point: Tensor, B: Tensor, b_scale: Tensor, b_zero_point: Tensor,
          C: Tensor | None = None, y_scale: Tensor | None = None, y_zero_point: Tensor | None = None, *,
          alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Items:
    """alpha * A @ B + C, where C is in units of alpha * a_scale * b_scale; floats, unless the result has a
    scale."""
    a = A.transpose() if transA else A
    b = B.transpose() if transB else B
    total = MatMulInteger(a, b, a_zero_point, b_zero_point)
    total = total if C is None else total + C
    made = total.cast(dtypes.float32) * (a_scale * b_scale * alpha)
    return made if y_scale is None else _requantized(made, y_scale, y_zero_point, A)


@op(domain=CONTRIBUTED)
def MatMulIntegerToFloat(A: Tensor, B: Tensor, a_scale: Tensor, b_scale: Tensor,
                         a_zero_point: Tensor | None = None,
                         b_zero_point: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    made = MatMulInteger(A, B, a_zero_point, b_zero_point).cast(dtypes.float32) * (a_scale * b_scale)
    return made if bias is None else made + bias


@op(domain=CONTRIBUTED)
def DynamicQuantizeMatMul(A: Tensor, B: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None,
                          bias: Tensor | None = None) -> Tensor:
    """A product with A in eight bits, by the range of its values."""
    a, scale, zero = DynamicQuantizeLinear(A)
    return MatMulIntegerToFloat(a, B, scale, b_scale, zero, b_zero_point, bias)


@op(domain=CONTRIBUTED)
def DynamicQuantizeLSTM(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None, sequence_lens: Tensor | None,
                        initial_h: Tensor | None, initial_c: Tensor | None, P: Tensor | None, W_scale: Tensor,
                        W_zero_point: Tensor, R_scale: Tensor, R_zero_point: Tensor, *, input_forget: int = 0,
                        **how: Unpack[RecurrentAttributes]) -> tuple[Tensor, ...]:
    """An LSTM of weights (directions, items, results) of eight bits; what they are multiplied with is in
    eight bits by its range: all inputs, and the state of each step."""
    def products(weights: Tensor, scale: Tensor, zero: Tensor) -> list[Product]:
        return [partial(DynamicQuantizeMatMul, B=weights[d], b_scale=scale[d], b_zero_point=zero[d])
                for d in range(weights.shape[0])]

    return lstm(X, products(W, W_scale, W_zero_point), products(R, R_scale, R_zero_point), R.shape[1], B,
                sequence_lens, [initial_h, initial_c], P, input_forget, how)


@op(domain=CONTRIBUTED)
def QAttention(input: Tensor, weight: Tensor, bias: Tensor, input_scale: Tensor, weight_scale: Tensor,
               mask_index: Tensor | None = None, input_zero_point: Tensor | None = None,
               weight_zero_point: Tensor | None = None, past: Tensor | None = None, *, num_heads: int,
               mask_filter_value: float = MASKED, scale: float | None = None,
               unidirectional: int = 0) -> tuple[Tensor, Tensor]:
    """Attention whose inputs are projected as a product of integers."""
    projected = MatMulIntegerToFloat(input, weight, input_scale, weight_scale, input_zero_point,
                                     weight_zero_point, bias)
    return _attention(projected.chunk(3, -1), mask_index, past, None, num_heads, mask_filter_value, scale,
                      unidirectional)
