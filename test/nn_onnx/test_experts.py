"""Mixtures of experts, beside ONNX Runtime."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import drawn

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="what ONNX Runtime contributed is compared with it")

from onnx_nodes import compare, quantized

TOKENS, EXPERTS, WIDTH, HIDDEN = 5, 4, 32, 64
TURNS = {"activation_type": "swiglu", "swiglu_fusion": 1}


def layers(each: int = 1) -> list[Any]:
    """Weights and biases of both products; `each` of the first for each item of the second."""
    return [drawn(EXPERTS, each * HIDDEN, WIDTH), drawn(EXPERTS, each * HIDDEN),
            drawn(EXPERTS, WIDTH, HIDDEN), drawn(EXPERTS, WIDTH)]


def routed() -> list[Any]:
    return [drawn(TOKENS, WIDTH), drawn(TOKENS, EXPERTS)]


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "identity"])
@pytest.mark.parametrize("k, normalize", [(1, 0), (1, 1), (2, 0), (3, 1)])
def test_experts(activation: str, k: int, normalize: int) -> None:
    compare("MoE", [*routed(), *layers()], k=k, normalize_routing_weights=normalize,
            activation_type=activation, tolerance=1e-3)


def test_experts_without_biases_of_batches() -> None:
    first, _, second, _ = layers()
    compare("MoE", [drawn(2, 3, WIDTH), drawn(6, EXPERTS), first, None, second], k=2, tolerance=1e-3)


@pytest.mark.parametrize("limits", [
    {}, {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.5}], ids=["plain", "limited"])
def test_experts_of_gates_and_ups_in_turns(limits: dict[str, float]) -> None:
    compare("MoE", [*routed(), *layers(2)], k=2, tolerance=1e-2, **TURNS, **limits)


def test_experts_of_gates_and_ups_in_other_places() -> None:
    """ONNX Runtime has them on a CPU in turns only: those weights in another order are the same network."""
    router, (first, bias, second, last) = routed(), layers(2)
    gate, up, gate_bias, up_bias = first[:, ::2], first[:, 1::2], bias[:, ::2], bias[:, 1::2]
    x, scores = router
    share = np.exp(scores - scores.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    share[share < np.sort(share, 1)[:, -2:-1]] = 0
    hidden = np.einsum("tw,ehw->teh", x, gate) + gate_bias
    hidden = hidden / (1 + np.exp(-hidden)) * (np.einsum("tw,ehw->teh", x, up) + up_bias)
    expected = [np.einsum("te,teh,ewh->tw", share, hidden, second) + share @ last]
    joined = [np.concatenate([gate, up], 1), np.concatenate([gate_bias, up_bias], 1)]
    compare("MoE", [*router, *joined, second, last], k=2, expected=expected, tolerance=1e-2,
            activation_type="swiglu", swiglu_fusion=2)
    compare("MoE", [*router, gate, gate_bias, second, last, up, up_bias], k=2, expected=expected,
            tolerance=1e-2, activation_type="swiglu")


def weights(bits: int, *shape: int, block: int, zeros: bool) -> list[Any]:
    """Packed numbers, their scales, and zero points or None."""
    *rows, items = shape
    blocks = [items // block] if block else []
    packed = [*rows[:-1], -(-rows[-1] * bits // 8)] if not block else [*rows, -(-blocks[0] * bits // 8)]
    return [quantized(*rows, items * bits // 8),
            (np.abs(drawn(*rows, *blocks)) * 0.02 + 0.01).astype(np.float32),
            quantized(*packed) if zeros else None]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("zeros", [False, True])
def test_experts_of_a_few_bits(bits: int, block: int, zeros: bool) -> None:
    """To a hundredth: ONNX Runtime rounds what goes into products with blocks of eight bits."""
    first = weights(bits, EXPERTS, 2 * HIDDEN, WIDTH, block=block, zeros=zeros)
    second = weights(bits, EXPERTS, WIDTH, HIDDEN, block=block, zeros=zeros)
    points = [None, None, None, first[2], second[2]] if zeros else []
    blocks = {"block_size": block} if block else {}
    compare("QMoE", [*routed(), *first[:2], drawn(EXPERTS, 2 * HIDDEN), *second[:2], drawn(EXPERTS, WIDTH),
                     *points], k=2, expert_weight_bits=bits, normalize_routing_weights=1,
            weights_prepacked=0, tolerance=1e-2, **TURNS, **blocks)


def test_experts_that_one_score_chooses_and_another_weighs() -> None:
    first = weights(4, EXPERTS, HIDDEN, WIDTH, block=0, zeros=False)
    second = weights(4, EXPERTS, WIDTH, HIDDEN, block=0, zeros=False)
    shares = np.abs(drawn(TOKENS, EXPERTS))
    for normalize in (0, 1):
        compare("QMoE", [*routed(), *first[:2], None, *second[:2], *[None] * 7, shares], k=2,
                normalize_routing_weights=normalize, tolerance=1e-2)


@pytest.mark.parametrize("attributes", [
    {"top_k": 3}, {"top_k": 2, "n_group": 4, "topk_group": 2, "group_topk": 2},
    {"top_k": 1, "n_group": 2, "group_topk": 3, "router_sentinel": -5.0}], ids=str)
def test_a_router_chooses_within_groups(attributes: dict[str, Any]) -> None:
    compare("MoEGroupRouter", [drawn(6, 8), drawn(8)], **attributes)


def test_gates_and_ups() -> None:
    gate, up = drawn(3, 4), drawn(3, 4)
    wanted = np.minimum(gate, 0.5) / (1 + np.exp(-1.7 * np.minimum(gate, 0.5))) * (np.clip(up, -0.5, 0.5) + 1)
    limits = {"activation_alpha": 1.7, "activation_beta": 1.0, "limit": 0.5}
    compare("SwiGLU", [gate, up], expected=[wanted], **limits)
    compare("SwiGLU", [np.concatenate([gate, up], 1)], expected=[wanted], **limits)
