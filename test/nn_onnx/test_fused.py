"""What ONNX Runtime's optimisers fuse, beside it, or beside NumPy where it has no kernel for a CPU."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import drawn

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="what ONNX Runtime contributed is compared with it")

from onnx_nodes import compare, quantized, scale, zero

X = drawn(3, 4)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("name, inputs, attributes", [
    ("ScaledSiLU", [X], {"alpha": 2.0}), ("ScaledSiLU", [X, scale(0.5)], {}),
    ("GatedAdd", [X, drawn(3, 4), drawn(3, 1)], {}),
    ("GatedRMSNorm", [X, drawn(2), drawn(3, 4)], {"epsilon": 1e-3}),
    ("GatedRMSNorm", [X, drawn(4), drawn(3, 4)], {"activation": "sigmoid"}),
    ("BranchwiseRMSNorm", [drawn(2, 2, 4), drawn(8)], {"epsilon": 1e-3}),
    ("BranchwiseRMSNorm", [drawn(2, 8), drawn(4)], {"num_branches": 2}),
    ("BranchwiseRMSNorm", [drawn(2, 2, 4)], {}),
    ("LinearAttentionGate", [drawn(1, 3, 2), drawn(2), drawn(2), drawn(1, 3, 2)], {"outputs": 2}),
    ("ConvTransposeWithDynamicPads", [drawn(1, 2, 4, 4), drawn(2, 3, 3, 3), np.array([1, 1, 1, 0])],
     {"strides": [2, 2]}),
])
def test_gates_and_normalisations(name: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    compare(name, inputs, **attributes)


@pytest.mark.parametrize("size", [2, 3])
def test_words_that_would_repeat_are_ruled_out(size: int) -> None:
    words = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]])
    compare("NGramRepeatBlock", [words, drawn(2, 5)], ngram_size=size)


def test_embeddings_of_eight_bits() -> None:
    ids = np.array([[1, 3, 0], [2, 2, 1]], np.int32)
    tables = [quantized(4, 8), quantized(5, 8), quantized(2, 8), quantized(8), quantized(8), None]
    factors = [scale(value) for value in (0.1, 0.2, 0.1, 0.1, 0.1)]
    compare("QEmbedLayerNormalization", [ids, ids % 2, *tables, *factors, *map(zero, (3, 4, 5, 6, 7))], 2,
            tolerance=1e-4)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_angles_of_three_positions(layout: int, interleaved: int) -> None:
    places = np.array([[[0, 2, 4]], [[1, 3, 5]], [[5, 1, 0]]])
    for section in ([2, 3, 3], [4, 2, 2]):
        compare("MRotaryEmbedding", [drawn(1, 2, 3, 16), places, drawn(9, 8), drawn(9, 8)],
                mrope_section=section, mrope_layout=layout, interleaved=interleaved)
    compare("MRotaryEmbedding", [drawn(1, 3, 32), places, drawn(9, 8), drawn(9, 8)], mrope_section=[4, 2, 2],
            mrope_layout=layout, num_heads=2)


def normalised_groups(x: Any, gamma: Any, beta: Any, groups: int) -> Any:
    """Of (N, C, H, W)."""
    parts = x.reshape(len(x), groups, -1)
    normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    return normal.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]


@pytest.mark.parametrize("activation", [0, 1])
def test_normalisation_of_groups(activation: int) -> None:
    x, skip, gamma, beta, bias = drawn(2, 6, 3, 4), drawn(2, 6), drawn(6), drawn(6), drawn(6)
    said = {"groups": 3, "activation": activation}
    total = x + (skip + bias)[:, :, None, None]
    wanted, added = (normalised_groups(data, gamma, beta, 3) for data in (x, total))
    wanted, added = (y * sigmoid(y) if activation else y for y in (wanted, added))
    last = (0, 2, 3, 1)
    compare("GroupNorm", [x, gamma, beta], expected=[wanted], channels_last=0, **said)
    compare("GroupNorm", [x.transpose(last), gamma, beta], expected=[wanted.transpose(last)], **said)
    compare("SkipGroupNorm", [x, gamma, beta, skip, bias], 2, expected=[added, total], channels_last=0,
            **said)
    compare("SkipGroupNorm", [x.transpose(last), gamma, beta, skip[:, None, None], bias], 2,
            expected=[added.transpose(last), total.transpose(last)], **said)


def test_sums_products_and_convolutions_that_only_other_devices_have() -> None:
    w, bias = drawn(4, 5), drawn(5)
    h = (X @ w + bias).astype(np.float64)
    compare("BiasAdd", [X[None], X[0], X[None]], expected=[X[None] * 2 + X[0]])
    compare("BiasDropout", [X, X[0], X], 2, expected=[X + X[0] + X, np.ones(X.shape, bool)])
    compare("GemmFastGelu", [X, w, bias], expected=[
        (h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h ** 3)))).astype(np.float32)])
    compare("FusedMatMulActivation", [X, w.T.copy()], expected=[np.maximum(X @ w, 0)], transB=1,
            activation="Relu")
    image, kernel, rest = drawn(1, 5, 5, 2), drawn(3, 2, 1, 1), drawn(1, 5, 5, 3)
    made = image @ kernel[:, :, 0, 0].T
    compare("NhwcConv", [image, kernel], expected=[made])
    compare("NhwcFusedConv", [image, kernel, None, rest], expected=[np.maximum(made + rest, 0)],
            activation="Relu")
    compare("TorchEmbedding", [X, np.array([[2, 0]])], expected=[X[[[2, 0]]]])
    compare("IsAllFinite", [X, X], expected=[np.array(True)])
    compare("IsAllFinite", [X, np.array([1, np.inf], np.float32)], expected=[np.array(False)])
    compare("IsAllFinite", [X, np.array([1, np.inf], np.float32)], expected=[np.array(True)], isnan_only=1)


def test_sums_and_products_of_integers() -> None:
    a, b = quantized(3, 4), quantized(4)
    compare("MulInteger", [a, zero(7), b], expected=[(a.astype(np.int32) - 7) * b])
    compare("ReduceSumInteger", [a], expected=[a.sum(1, dtype=np.uint32)], axes=[1], keepdims=0)


@pytest.mark.parametrize("is_bidirectional", [0, 1])
def test_biases_of_distances_as_t5_has_them(is_bidirectional: int) -> None:
    """Eight buckets: of one distance each up to 3 (1 of each side), and the rest as T5's own table."""
    table = drawn(8, 2)
    distance = np.arange(12) - np.arange(12)[:, None]
    away = [[0, 1, 2, 3, 4, 4, 5, 6, 6, 6, 7, 7], [0, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]][is_bidirectional]
    bucket = np.array(away)[np.abs(distance) if is_bidirectional else np.maximum(-distance, 0)]
    bucket = bucket + 4 * (distance > 0) * is_bidirectional
    compare("RelativePositionBias", [table, np.array([12]), np.array([12])],
            expected=[table[bucket].transpose(2, 0, 1)[None]], max_distance=12,
            is_bidirectional=is_bidirectional)


def test_a_gate_of_biases_of_distances() -> None:
    query, bias, places, w, b, a = drawn(2, 3, 8), drawn(8), drawn(1, 2, 3, 3), drawn(4, 6), drawn(6), \
        drawn(1, 2, 1, 1)
    heads = (query + bias).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    u, r = np.split(sigmoid((heads @ w + b).reshape(2, 2, 3, 2, 3).sum(-1)), 2, -1)
    compare("GatedRelativePositionBias", [query, bias, places, w, b, a],
            expected=[(u * (r * a - 1) + 2) * places], num_heads=2)
