"""Mixtures of experts of ONNX Runtime (com.microsoft), also of weights of a few bits, and their router. As
its documents define them."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypedDict, Unpack

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.ops.packed import unpacked
from tinygrad.nn.onnx.registry import CONTRIBUTED, op
from tinygrad.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.maximum(0), "relu2": lambda x: x.maximum(0).square(), "identity": lambda x: x,
    "gelu": lambda x: x.gelu("tanh"), "silu": lambda x: x * x.sigmoid()}


Layer: TypeAlias = tuple[Tensor, Tensor | None]
"""The weights (experts, results, items) and biases (experts, results) of one product of all experts."""


def _swiglu(gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + beta), after both were brought within `limit`."""
    if limit < math.inf:
        gate, up = gate.minimum(limit), up.maximum(-limit).minimum(limit)
    return gate * (gate * alpha).sigmoid() * (up + beta)


def _halves(x: Tensor, layout: int) -> tuple[Tensor, Tensor]:
    """Gate and up of a product that has both: in turns (1), or one after the other (2)."""
    if layout not in (1, 2):
        raise NotImplementedError(f"one product for gate and up with swiglu_fusion {layout}")
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if layout == 1 else (x[..., :half], x[..., half:])


@op(domain=CONTRIBUTED)
def SwiGLU(gate: Tensor, up: Tensor | None = None, *, activation_alpha: float = 1.0,
           activation_beta: float = 0.0, limit: float = 0.0, round_activation: int = 0) -> Tensor:
    gate, up = _halves(gate, 2) if up is None else (gate, up)
    return _swiglu(gate, up, activation_alpha, activation_beta, limit if limit > 0 else math.inf)


def _shares(router_probs: Tensor, k: int, normalize: int, weights: Tensor | None) -> Tensor:
    """(tokens, experts): how much of each expert's result a token takes; zero but of the `k` of the highest
    scores. Shares are the softmax of the scores, or `weights`."""
    scores = router_probs.cast(dtypes.float32).softmax(1) if weights is None else weights
    chosen = _is_among(router_probs, k).where(scores, 0)
    return chosen / chosen.sum(1, keepdim=True) if normalize else chosen


def _is_among(scores: Tensor, count: int) -> Tensor:
    """Which of the scores of each row are among its `count` highest."""
    places = scores.topk(count, 1)[1].unsqueeze(2)
    return (places == Tensor.arange(scores.shape[1], dtype=places.dtype, device=scores.device)).any(1)


class ExpertAttributes(TypedDict, total=False):
    """How tokens are shared out, and what is between the products of an expert."""

    activation_alpha: float
    activation_beta: float
    activation_type: str
    k: int
    normalize_routing_weights: int
    swiglu_fusion: int
    swiglu_limit: float
    swiglu_limit_after_activation: int
    use_sparse_mixer: int


def _mixed(input: Tensor, router_probs: Tensor, router_weights: Tensor | None, fc1: Layer, fc2: Layer,
           fc3: Layer | None, *, activation_alpha: float = 1.0, activation_beta: float = 0.0,
           activation_type: str = "relu", k: int = 1, normalize_routing_weights: int = 0,
           swiglu_fusion: int = 0, swiglu_limit: float = math.inf, swiglu_limit_after_activation: int = 0,
           use_sparse_mixer: int = 0) -> Tensor:
    """The experts' results for all tokens, weighted: fc2(activation(fc1(x)) [* fc3(x)])."""
    if use_sparse_mixer or swiglu_limit_after_activation:
        raise NotImplementedError("a sparse mixer" if use_sparse_mixer else "swiglu_limit_after_activation")
    tokens = input.reshape(1, -1, input.shape[-1])
    shares = _shares(router_probs, k, normalize_routing_weights, router_weights)
    made = _product(tokens, fc1)
    if activation_type == "swiglu":
        gate, up = (made, _product(tokens, fc3)) if fc3 is not None else _halves(made, swiglu_fusion)
        hidden = _swiglu(gate, up, activation_alpha, activation_beta, swiglu_limit)
    elif activation_type == "geglu" and fc3 is None:
        gate, up = _halves(made, swiglu_fusion)
        hidden = gate.gelu("tanh") * up
    elif activation_type in ACTIVATIONS:
        hidden = ACTIVATIONS[activation_type](made)
        hidden = hidden if fc3 is None else hidden * _product(tokens, fc3)
    else:
        raise NotImplementedError(
            f"activation_type {activation_type}{' with fc3' if fc3 is not None else ''}")
    results = _product(hidden, fc2)  # (experts, tokens, hidden)
    return (results * shares.transpose().unsqueeze(2)).sum(0).cast(input.dtype).reshape(input.shape)


def _product(x: Tensor, layer: Layer) -> Tensor:
    weights, bias = layer
    made: Tensor = x @ weights.transpose(1, 2)
    return made if bias is None else made + bias.unsqueeze(1)


@op(domain=CONTRIBUTED)
def MoE(input: Tensor, router_probs: Tensor, fc1_experts_weights: Tensor, fc1_experts_bias: Tensor | None,
        fc2_experts_weights: Tensor, fc2_experts_bias: Tensor | None = None,
        fc3_experts_weights: Tensor | None = None, fc3_experts_bias: Tensor | None = None,
        **how: Unpack[ExpertAttributes]) -> Tensor:
    """Feed-forward networks of which each token takes the `k` that its router scores highest."""
    fc3 = None if fc3_experts_weights is None else (fc3_experts_weights, fc3_experts_bias)
    return _mixed(input, router_probs, None, (fc1_experts_weights, fc1_experts_bias),
                  (fc2_experts_weights, fc2_experts_bias), fc3, **how)


def _dequantized(weights: Tensor, scales: Tensor, zero_points: Tensor | None, bits: int) -> Tensor:
    """(experts, results, items) of bytes: a scale (experts, results) for each result, or (experts, results,
    blocks)."""
    numbers = unpacked(weights, bits).cast(scales.dtype)
    zero: Tensor | int = 1 << (bits - 1)
    if zero_points is not None:
        zero = unpacked(zero_points, bits).shrink_to(scales.shape).cast(scales.dtype)
    blocks = scales if scales.ndim == 3 else scales.unsqueeze(2)
    zero = zero if isinstance(zero, int) else zero.reshape(*blocks.shape, 1)
    parts = numbers.reshape(*blocks.shape, -1)
    return ((parts - zero) * blocks.unsqueeze(3)).reshape(numbers.shape)


@op(domain=CONTRIBUTED)
def QMoE(input: Tensor, router_probs: Tensor, fc1_experts_weights: Tensor, fc1_scales: Tensor,
         fc1_experts_bias: Tensor | None, fc2_experts_weights: Tensor, fc2_scales: Tensor,
         fc2_experts_bias: Tensor | None = None, fc3_experts_weights: Tensor | None = None,
         fc3_scales: Tensor | None = None, fc3_experts_bias: Tensor | None = None,
         fc1_zero_points: Tensor | None = None, fc2_zero_points: Tensor | None = None,
         fc3_zero_points: Tensor | None = None, router_weights: Tensor | None = None, *,
         accuracy_level: int = 0, block_size: int = 0, expert_weight_bits: int = 4,
         fc1_expert_weight_bits: int | None = None, fc2_expert_weight_bits: int | None = None,
         fc3_expert_weight_bits: int | None = None, quant_type: str = "int", weights_prepacked: int = -1,
         **how: Unpack[ExpertAttributes]) -> Tensor:
    """MoE of weights that are integers of 2, 4 or 8 bits, the lowest bits of a byte first."""
    bits = [expert_weight_bits if own is None else own for own in (
        fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)]
    if quant_type != "int" or weights_prepacked > 0 or not {2, 4, 8}.issuperset(bits):
        raise NotImplementedError(f"weights of {quant_type} of {bits} bits, prepacked: {weights_prepacked}")
    fc1 = _dequantized(fc1_experts_weights, fc1_scales, fc1_zero_points, bits[0]).cast(input.dtype)
    fc2 = _dequantized(fc2_experts_weights, fc2_scales, fc2_zero_points, bits[1]).cast(input.dtype)
    fc3 = None if fc3_experts_weights is None or fc3_scales is None else (
        _dequantized(fc3_experts_weights, fc3_scales, fc3_zero_points, bits[2]).cast(input.dtype),
        fc3_experts_bias)
    return _mixed(input, router_probs, router_weights, (fc1, fc1_experts_bias), (fc2, fc2_experts_bias), fc3,
                  **how)


@op(domain=CONTRIBUTED)
def MoEGroupRouter(logits: Tensor, expert_bias: Tensor, projection_weight: Tensor | None = None, *,
                   top_k: int, group_topk: int = 2, n_group: int = 1, router_sentinel: float = -10000.0,
                   topk_group: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """(the logarithm of the scores of the `top_k` chosen experts, `router_sentinel` for others; scores with
    their bias; scores), each (tokens, experts). Experts are chosen within the `topk_group` groups whose
    `group_topk` best have the largest sum."""
    x = logits.reshape(-1, logits.shape[-1]).cast(dtypes.float32)
    x = x if projection_weight is None else x @ projection_weight.cast(dtypes.float32).transpose()
    scores = x.sigmoid()
    biased = scores + expert_bias
    groups = biased.reshape(biased.shape[0], n_group, -1)
    best = groups.topk(min(group_topk, groups.shape[2]), 2)[0].sum(2)
    is_open = _is_among(best, topk_group).unsqueeze(2).expand(groups.shape).reshape(biased.shape)
    chosen = _is_among(is_open.where(biased, -math.inf), top_k)
    return chosen.where(scores.maximum(1e-20).log(), router_sentinel).cast(logits.dtype), biased, scores
