"""More operators that ONNX Runtime's optimisers fuse (com.microsoft): sums, gates, normalisations of groups
and branches, convolutions of channels that come last, embeddings of eight bits. As its documents define
them."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.nn import rmsnorm
from tinygrad.nn.onnx.ops.contributed import (
    EmbedLayerNormalization,
    FastGelu,
    FusedConv,
    FusedMatMul,
    activated,
    channels_first,
    of_channels_last,
    of_either_layout,
)
from tinygrad.nn.onnx.ops.convolution import ConvTranspose
from tinygrad.nn.onnx.ops.normalization import RMSNormalization
from tinygrad.nn.onnx.ops.quantization import DequantizeLinear
from tinygrad.nn.onnx.registry import CONTRIBUTED, Ints, op, ops, with_attributes_of
from tinygrad.tensor import Tensor

# --- sums, products, gates ----------------------------------------------------------------------------------


def _scaled_silu(X: Tensor, scale: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
    scaled = X * (alpha if scale is None else scale.cast(X.dtype))
    return scaled.silu()


ops(CONTRIBUTED,
    BiasAdd=lambda X, bias, skip: X + bias + skip,
    GemmFastGelu=lambda X, W, bias=None: FastGelu(X @ W, bias),
    MulInteger=lambda A, A_zero_point, B, B_zero_point=None: _centred(A, A_zero_point) * _centred(
        B, B_zero_point),
    ReduceSumInteger=lambda data, *, axes, keepdims: data.cast(
        dtypes.uint32 if data.dtype.is_unsigned else dtypes.int32).sum(tuple(axes), keepdim=bool(keepdims)),
    ScaledSiLU=_scaled_silu,
    TorchEmbedding=lambda weight, indices, padding_idx=None, scale_grad_by_freq=None: weight[indices])


def _centred(x: Tensor, zero_point: Tensor | None) -> Tensor:
    wide = x.cast(dtypes.int32)
    return wide if zero_point is None else wide - zero_point.cast(dtypes.int32)


@op(domain=CONTRIBUTED)
def IsAllFinite(*input: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    """Whether no item of any input is NaN or infinite, or only one of these is looked for."""
    wrong = [x.isnan() if isnan_only else x.isinf() if isinf_only else ~x.isfinite() for x in input]
    return Tensor.stack(*(bad.any() for bad in wrong)).any().logical_not()


@op(domain=CONTRIBUTED)
def BiasDropout(data: Tensor, bias: Tensor, residual: Tensor | None = None, ratio: Tensor | None = None,
                training_mode: bool = False, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What inference leaves of it: sums, and a mask that drops nothing."""
    if training_mode:
        raise NotImplementedError("training_mode")
    total = data + bias if residual is None else data + bias + residual
    return total, Tensor.ones(*data.shape, dtype=dtypes.bool, device=data.device)


@op(domain=CONTRIBUTED)
@with_attributes_of(FusedMatMul)
def FusedMatMulActivation(A: Tensor, B: Tensor, *, activation: str, activation_alpha: float = 0.0,
                          activation_axis: int = -1, activation_beta: float = 0.0,
                          activation_gamma: float = 0.0, **how: Any) -> Tensor:
    product = FusedMatMul(A, B, **how)
    if activation == "Softmax":
        return product.softmax(activation_axis)
    return activated(activation, (activation_alpha, activation_beta))(product)


@op(domain=CONTRIBUTED)
def GatedAdd(X: Tensor, Y: Tensor, gate: Tensor, gate_weight: Tensor | None = None) -> Tensor:
    """X and Y times the gate of each row; with `gate_weight`, that is the sigmoid of their product."""
    return X + Y * (gate if gate_weight is None else (gate @ gate_weight).sigmoid())


@op(domain=CONTRIBUTED)
def LinearAttentionGate(a: Tensor, dt_bias: Tensor, decay_scale: Tensor,
                        b: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """decay_scale * softplus(a + dt_bias), and the sigmoid of b."""
    decay = decay_scale * (a.cast(dtypes.float32) + dt_bias).softplus()
    return decay.cast(a.dtype), None if b is None else b.sigmoid()


# --- normalisation ------------------------------------------------------------------------------------------


@op(domain=CONTRIBUTED)
def GatedRMSNorm(X: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu",
                 epsilon: float = 1e-5) -> Tensor:
    """Each group of as many items as `scale` has, normalised, times sigmoid(gate) or gate * sigmoid(gate)."""
    normal = RMSNormalization(X.reshape(*X.shape[:-1], -1, scale.shape[0]), scale, epsilon=epsilon)
    opened = gate.sigmoid() if activation == "sigmoid" else gate.silu()
    return normal.reshape(*X.shape) * opened


@op(domain=CONTRIBUTED)
def BranchwiseRMSNorm(X: Tensor, scale: Tensor | None = None, *, epsilon: float = 1e-5,
                      num_branches: int = 0) -> Tensor:
    """Each branch (..., branches, items), or (..., branches * items), divided by its root mean square."""
    x = (X.reshape(*X.shape[:-1], num_branches, -1) if num_branches else X).cast(dtypes.float32)
    normal = rmsnorm(x, eps=epsilon)
    if scale is not None:
        normal = normal * (scale if scale.shape == x.shape[-1:] else scale.reshape(*x.shape[-2:]))
    return normal.cast(X.dtype).reshape(*X.shape)


def _group_norm(X: Tensor, gamma: Tensor, beta: Tensor, *, activation: int, groups: int,
                epsilon: float = 1e-5) -> Tensor:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta of each group of channels; with `activation`, that
    times its sigmoid."""
    normal = X.cast(dtypes.float32).unflatten(1, (groups, -1)).flatten(2).layernorm(2, epsilon)
    each = (-1, *(1,) * (X.ndim - 2))
    made = normal.reshape(*X.shape) * gamma.reshape(*each) + beta.reshape(*each)
    return (made.silu() if activation else made).cast(X.dtype)


@op(domain=CONTRIBUTED)
@with_attributes_of(_group_norm)
def GroupNorm(X: Tensor, gamma: Tensor, beta: Tensor, *, channels_last: int = 1, **how: Any) -> Tensor:
    normal: Tensor = of_either_layout(_group_norm)(X, gamma, beta, channels_last=channels_last, **how)
    return normal


@op(domain=CONTRIBUTED)
@with_attributes_of(_group_norm)
def SkipGroupNorm(X: Tensor, gamma: Tensor, beta: Tensor, skip: Tensor, bias: Tensor | None = None, *,
                  channels_last: int = 1, **how: Any) -> tuple[Tensor, Tensor]:
    """GroupNorm of X + skip + bias, and that sum. Of two axes, `skip` is one number for each channel."""
    spread = (1, 1, -1) if channels_last else (-1, 1, 1)
    total = X + (skip.reshape(skip.shape[0], *spread) if skip.ndim == 2 else skip)
    total = total if bias is None else total + bias.reshape(*spread)
    return GroupNorm(total, gamma, beta, channels_last=channels_last, **how), total


# --- convolution --------------------------------------------------------------------------------------------


@op(domain=CONTRIBUTED)
@with_attributes_of(FusedConv)
def NhwcFusedConv(X: Tensor, W: Tensor, B: Tensor | None = None, Z: Tensor | None = None,
                  **how: Any) -> Tensor:
    return of_channels_last(FusedConv)(X, W, B, None if Z is None else channels_first(Z), **how)


ops(CONTRIBUTED, NhwcConv=NhwcFusedConv)


@op(domain=CONTRIBUTED)
@with_attributes_of(ConvTranspose)
def ConvTransposeWithDynamicPads(X: Tensor, W: Tensor, Pads: Ints | None = None, B: Tensor | None = None,
                                 **how: Any) -> Tensor:
    made: Tensor = ConvTranspose(X, W, B, pads=Pads, **how)
    return made


# --- embeddings, positions, words ---------------------------------------------------------------------------


@op(domain=CONTRIBUTED)
def QEmbedLayerNormalization(
        input_ids: Tensor, segment_ids: Tensor | None, word_embedding_quant: Tensor,
        position_embedding_quant: Tensor, segment_embedding: Tensor | None, gamma_quant: Tensor,
        beta_quant: Tensor, mask: Tensor | None, word_embedding_scale: Tensor,
        position_embedding_scale: Tensor, segment_embedding_scale: Tensor | None, gamma_scale: Tensor,
        beta_scale: Tensor, word_embedding_zero_point: Tensor, position_embedding_zero_point: Tensor,
        segment_embedding_zero_point: Tensor | None, gamma_zero_point: Tensor, beta_zero_point: Tensor, *,
        epsilon: float = 1e-12) -> tuple[Tensor, Tensor]:
    """EmbedLayerNormalization of tables of eight bits."""
    segments = None if segment_embedding is None or segment_embedding_scale is None else DequantizeLinear(
        segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    normal, counts, _ = EmbedLayerNormalization(
        input_ids, segment_ids, DequantizeLinear(word_embedding_quant, word_embedding_scale,
                                                 word_embedding_zero_point),
        DequantizeLinear(position_embedding_quant, position_embedding_scale, position_embedding_zero_point),
        segments, DequantizeLinear(gamma_quant, gamma_scale, gamma_zero_point),
        DequantizeLinear(beta_quant, beta_scale, beta_zero_point), mask, epsilon=epsilon)
    return normal, counts


@op(domain=CONTRIBUTED)
def RelativePositionBias(bias_table: Tensor, query_length: int, key_length: int, *, max_distance: int,
                         is_bidirectional: int = 0) -> Tensor:
    """(1, heads, queries, keys): for each distance the row of `bias_table` (buckets, heads) that T5 puts it
    in. Half of the buckets are of one distance each, the others of ranges that grow as its logarithm."""
    distance = np.arange(key_length) - np.arange(query_length)[:, None]
    buckets, first = bias_table.shape[0], np.zeros_like(distance)
    if is_bidirectional:
        buckets //= 2
        first = (distance > 0) * buckets
    away = np.abs(distance) if is_bidirectional else np.maximum(-distance, 0)
    exact = buckets // 2
    share = np.log(np.maximum(away, 1) / exact) / math.log(max_distance / exact)
    far = np.minimum(exact + (share * (buckets - exact)).astype(np.int64), buckets - 1)
    bucket = (first + np.where(away < exact, away, far)).astype(np.int32)
    return bias_table[Tensor(bucket, bias_table.device, requires_grad=False)].permute(2, 0, 1).unsqueeze(0)


@op(domain=CONTRIBUTED)
def GatedRelativePositionBias(query_layer: Tensor, query_bias: Tensor, rel_pos: Tensor, weight: Tensor,
                              bias: Tensor, eco_a: Tensor, token_offset: Tensor | None = None, *,
                              num_heads: int) -> Tensor:
    """`rel_pos` (1, heads, queries, keys) times a gate of each query."""
    if token_offset is not None:
        raise NotImplementedError("queries without their padding")
    query = (query_layer + query_bias).reshape(*query_layer.shape[:2], num_heads, -1).transpose(1, 2)
    linear = query @ weight + bias
    gates = linear.reshape(*linear.shape[:3], 2, -1).sum(-1).sigmoid()
    u, r = gates[..., :1], gates[..., 1:]
    return (u * (r * eco_a - 1.0) + 2.0) * rel_pos


@op(domain=CONTRIBUTED)
def NGramRepeatBlock(input_ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """Scores (batch, words), -inf for words with which the last `ngram_size` would be there twice."""
    length = input_ids.shape[1]
    if length < ngram_size:
        return scores
    windows = input_ids.unfold(1, ngram_size, 1)  # (batch, places, ngram_size)
    begun = input_ids[:, length - ngram_size + 1:].unsqueeze(1)
    is_again = (windows[..., :-1] == begun).all(-1).unsqueeze(2)
    word = Tensor.arange(scores.shape[1], dtype=input_ids.dtype, device=scores.device)
    return (is_again & (windows[..., -1:] == word)).any(1).where(-math.inf, scores)
