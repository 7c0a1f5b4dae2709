"""Contributed operators, and classical models, beside ONNX Runtime."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import drawn

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="what ONNX Runtime contributed is compared with it")

from onnx_nodes import compare, quantized, scale, zero

from tinygrad.device.host import has_features
from tinygrad.nn.onnx.ops.packed import FP4, NF4

X = drawn(2, 3, 8)


@pytest.mark.parametrize("name, inputs, attributes", [
    ("Gelu", [X], {}), ("BiasGelu", [X, drawn(8)], {}), ("FastGelu", [X, drawn(8)], {}),
    ("FastGelu", [X], {}),
    ("QuickGelu", [X], {"alpha": 1.5}), ("FusedMatMul", [X, drawn(2, 8, 5)], {"alpha": 0.5}),
    ("FusedMatMul", [X, drawn(2, 5, 8)], {"transB": 1}),
    ("FusedMatMul", [drawn(8, 3), drawn(8, 4)], {"transA": 1}),
    ("FusedGemm", [drawn(3, 4), drawn(4, 5), drawn(5)], {"activation": "Relu", "alpha": 0.5}),
    ("FusedConv", [drawn(1, 2, 6, 6), drawn(3, 2, 3, 3), drawn(3)],
     {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("Inverse", [drawn(3, 3)], {}), ("CDist", [drawn(3, 4), drawn(5, 4)], {"metric": "euclidean"}),
])
def test_products_and_activations(name: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    compare(name, inputs, **attributes)


def test_normalisations() -> None:
    skip = [X, drawn(2, 3, 8), drawn(8), drawn(8), drawn(8)]
    compare("SkipLayerNormalization", skip, epsilon=1e-5)
    compare("SkipLayerNormalization", skip[:3], epsilon=1e-5)
    compare("SkipSimplifiedLayerNormalization", skip[:3], epsilon=1e-5)
    compare("SimplifiedLayerNormalization", [X, drawn(8)], domain="", epsilon=1e-5)
    ids = np.array([[1, 3, 0], [2, 2, 1]], np.int32)
    compare("EmbedLayerNormalization",
            [ids, ids % 2, drawn(4, 8), drawn(5, 8), drawn(2, 8), drawn(8), drawn(8)],
            2, epsilon=1e-5, checked=1)


def test_attention() -> None:
    weights, bias = drawn(8, 24), drawn(24)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    compare("Attention", [X, weights, bias], num_heads=2)
    compare("Attention", [X, weights, bias, mask], num_heads=2)
    compare("Attention", [X, weights, bias, np.array([2, 3], np.int32)], num_heads=2)
    compare("Attention", [X, weights, bias, None, drawn(2, 2, 2, 4, 4)], 2, num_heads=2, unidirectional=1)
    compare("MultiHeadAttention", [X, drawn(2, 5, 8), drawn(2, 5, 8)], num_heads=2)
    compare("MultiHeadAttention", [X, drawn(2, 3, 8), drawn(2, 3, 8), bias, mask], num_heads=4)
    past = [drawn(2, 2, 4, 4), drawn(2, 2, 4, 4)]
    compare("MultiHeadAttention", [X, X, X, None, None, drawn(1, 2, 3, 7), *past], 3, num_heads=2)


def test_rotary_embedding_and_grouped_queries() -> None:
    cos, sin = np.cos(drawn(9, 8)), np.sin(drawn(9, 8))
    ids = np.array([[0, 2, 4], [1, 3, 5]])
    for interleaved in (0, 1):
        compare("RotaryEmbedding", [drawn(2, 3, 32), ids, cos, sin], interleaved=interleaved)
    compare("RotaryEmbedding", [drawn(2, 2, 3, 16), np.array([4]), cos, sin])
    lengths = [np.array([2, 2], np.int32), np.array(3, np.int32)]
    new = [drawn(2, 3, 64), drawn(2, 3, 32), drawn(2, 3, 32)]
    compare("GroupQueryAttention", [*new, None, None, *lengths], 3, num_heads=4, kv_num_heads=2)
    compare("GroupQueryAttention", [*new, None, None, *lengths, cos, sin], 3, num_heads=4, kv_num_heads=2,
            do_rotary=1)
    after = [np.array([4, 4], np.int32), np.array(5, np.int32)]
    past = [drawn(2, 2, 4, 16), drawn(2, 2, 4, 16)]
    new = [drawn(2, 1, 64), drawn(2, 1, 32), drawn(2, 1, 32)]
    compare("GroupQueryAttention", [*new, *past, *after, cos, sin], 3, num_heads=4, kv_num_heads=2,
            do_rotary=1,
            local_window_size=3)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("lengths", [[5, 3], [6, 6]])
@pytest.mark.parametrize("room", [6, 9])
def test_attention_after_caches_that_are_not_equally_long(room: int, lengths: list[int],
                                                          rotary: bool) -> None:
    """Sequences go on where each ends; a cache that is longer than the longest stays as long."""
    new = [drawn(2, 1, 64), drawn(2, 1, 32), drawn(2, 1, 32)]
    known = [drawn(2, 2, room, 16), drawn(2, 2, room, 16)]
    counts = [np.array(lengths, np.int32) - 1, np.array(max(lengths), np.int32)]
    turns = [drawn(20, 8), drawn(20, 8)] if rotary else []
    for rows in (1, 2):
        compare("GroupQueryAttention",
                [*(x[:rows] for x in (*new, *known)), counts[0][:rows], counts[1], *turns], 3, num_heads=4,
                kv_num_heads=2, do_rotary=int(rotary))


def test_quantised_arithmetic() -> None:
    a, b = [quantized(2, 3, 4), scale(0.1), zero(120)], [quantized(2, 3, 4), scale(0.2), zero(3)]
    compare("QLinearAdd", [*a, *b, scale(0.4), zero(7)])
    compare("QLinearMul", [*a, *b, scale(4.0), zero(7)])
    compare("QLinearSigmoid", [*a, scale(1 / 256), zero(0)])
    compare("QLinearLeakyRelu", [*a, scale(0.1), zero(10)], alpha=0.1)
    image = [quantized(1, 2, 6, 6), scale(0.1), zero(100)]
    compare("QLinearGlobalAveragePool", [*image, scale(0.1), zero(99)])
    compare("QLinearAveragePool", [*image, scale(0.1), zero(99)], kernel_shape=[2, 2], strides=[2, 2])
    compare("QLinearWhere", [np.array([True, False, True, False]), *a, *b, scale(0.15), zero(10)])
    compare("NhwcMaxPool", [quantized(1, 4, 6, 3)], kernel_shape=[2, 2], strides=[2, 2])
    for channels_last in (0, 1):
        weights = [quantized(6, 4, 3, 3), scale(0.1), zero(128)]
        compare("QLinearConv", [quantized(1, *((5, 6, 4) if channels_last else (4, 5, 6))), scale(0.1),
                                zero(3), *weights, scale(3.0), zero(10), np.arange(6, dtype=np.int32)],
                channels_last=channels_last, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    compare("QLinearConcat", [scale(0.2), zero(5), *a, *b], axis=1)
    compare("MatMulIntegerToFloat",
            [quantized(3, 4), quantized(4, 5), scale(0.1), scale(0.2), zero(9), zero(8),
                                     drawn(5)])
    compare("DynamicQuantizeMatMul", [drawn(3, 4), quantized(4, 5), scale(0.2), zero(8), drawn(5)],
            tolerance=1e-3)
    compare("QGemm", [quantized(3, 4), scale(0.1), zero(9), quantized(5, 4, kind=np.int8), scale(0.2),
                      zero(1, np.int8), np.arange(5, dtype=np.int32), scale(3.0), zero(100)], transB=1)


def test_quantised_attention() -> None:
    given = [quantized(2, 3, 8), quantized(8, 24, kind=np.int8), drawn(24), scale(0.02), scale(0.03)]
    mask, zeros = np.array([2, 3], np.int32), [zero(9), zero(1, np.int8)]
    compare("QAttention", [*given, None, *zeros], num_heads=2)
    compare("QAttention", [*given, mask, *zeros], num_heads=2)
    compare("QAttention", [*given, None, *zeros, drawn(2, 2, 2, 4, 4)], 2, num_heads=2, unidirectional=1)


@pytest.mark.parametrize("with_zeros", [False, True])
def test_weights_of_four_bits(with_zeros: bool) -> None:
    zeros = quantized(5, 2) if with_zeros else None
    compare("MatMulNBits", [drawn(3, 40), quantized(5, 3, 8), drawn(5, 3), zeros], K=40, N=5, bits=4,
            block_size=16)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_rows_of_a_table_of_few_bits(bits: int, with_zeros: bool) -> None:
    zeros = quantized(5, 3 * bits // 8 + bits % 8 // 4) if with_zeros else None
    compare("GatherBlockQuantized",
            [quantized(5, 48 * bits // 8), np.array([[1, 4], [0, 1]]), drawn(5, 3), zeros],
            bits=bits, block_size=16, gather_axis=0, quantize_axis=1)


@pytest.mark.parametrize("quant_type", [0, 1])
def test_products_with_weights_in_blocks_of_32(quant_type: int) -> None:
    """Of three columns of 70 numbers, the last block of each partly of none; zero points are of four bits.
    ONNX Runtime has a kernel for processors with AVX-512 alone: there it is asked too."""
    blocks = quantized(3, 3, 20 + quant_type)
    blocks[..., :4] = (np.abs(drawn(3, 3)) + 0.1).astype(np.float32).view(np.uint8).reshape(3, 3, 4)
    if quant_type:
        blocks[..., 4] %= 16
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    zeros = blocks[..., 4:5].astype(np.float32) if quant_type else np.float32(8)
    halves = blocks[..., 4 + quant_type:]
    weights = (np.concatenate([halves & 15, halves >> 4], -1) - zeros) * scales
    x = drawn(2, 2, 70)
    expected = [x @ weights.reshape(3, -1)[:, :70].T]
    for wanted in (expected, None) if has_features("avx512f", "avx512bw", "avx512vl") else (expected,):
        compare("MatMulFpQ4", [x, blocks.reshape(-1), np.array([70, 3])], expected=wanted,
                blk_quant_type=quant_type)


@pytest.mark.parametrize("quant_type", [0, 1], ids=["FP4", "NF4"])
def test_products_with_floats_of_four_bits(quant_type: int) -> None:
    """The other way round ONNX Runtime leaves most of the result unwritten."""
    numbers, scales, x = quantized(60), np.abs(drawn(8)), drawn(3, 5)
    said = {"K": 24, "N": 5, "block_size": 16, "quant_type": quant_type}
    compare("MatMulBnb4", [drawn(2, 3, 24), numbers, scales], **said)
    table = NF4 if quant_type else np.concatenate([FP4, -FP4])
    weights = table[np.stack([numbers >> 4, numbers & 15], 1).reshape(-1)] * np.repeat(scales, 16)[:120]
    compare("MatMulBnb4", [x, numbers, scales], expected=[x @ weights.reshape(5, 24)], transB=0, **said)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("each", [(), (12,)], ids=["a scale", "a scale for each result"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrence_of_quantised_weights(direction: str, each: tuple[int, ...], kind: Any) -> None:
    count = 2 if direction == "bidirectional" else 1
    scales = [np.full((count, *each), value, np.float32) for value in (0.002, 0.003)]
    zeros = [np.full((count, *each), 0 if each else value, kind) for value in (3, 7)]
    compare("DynamicQuantizeLSTM",
            [drawn(4, 1, 5), quantized(count, 5, 12, kind=kind), quantized(count, 3, 12, kind=kind),
             drawn(count, 24), None, None, None, None, scales[0], zeros[0], scales[1], zeros[1]], 3,
            tolerance=1e-4, direction=direction, hidden_size=3)


def test_operators_that_the_standard_took_over() -> None:
    for kind in (np.uint8, np.int8, np.uint16, np.int16):
        compare("QuantizeLinear", [X, scale(0.01), zero(9, kind)])
        compare("DequantizeLinear", [X.astype(kind), scale(0.01), zero(9, kind)])
    compare("GridSample", [drawn(1, 2, 4, 4), drawn(1, 3, 3, 2)], mode="bilinear", align_corners=1)
    compare("Trilu", [drawn(4, 4), np.array(1)], upper=0)
    compare("Pad", [drawn(2, 3), np.array([0, 1, 1, 0]), np.array(2, np.float32)])
    compare("GatherND", [drawn(3, 4), np.array([[1, 2], [0, 0]])])
    compare("ExpandDims", [drawn(3, 4), np.array(1, np.int32)])
    compare("Unique", [np.array([3, 1, 3, 2], np.float32)], 3)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.int32, np.int64])
def test_ranges(kind: Any) -> None:
    compare("Range", [np.array(1, kind), np.array([6], kind), np.array(2, kind)])
    compare("Range", [np.array(1, kind), np.array([6], kind)])


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_regions_of_one_size(mode: str) -> None:
    """One that is turned over, and two of which a part is beyond the image; one sample lies in the middle."""
    regions = np.array([[0, 0, 1, 1], [0.2, 0.1, 1.3, 0.9], [-0.1, 0.5, 0.4, 0.2]], np.float32)
    for size in ([3, 2], [1, 4]):
        compare("CropAndResize", [drawn(2, 3, 4, 5), regions, np.array([0, 1, 1], np.int32),
                                  np.array(size, np.int32)], mode=mode, extrapolation_value=-7.0)


def test_transforms_of_signals_that_only_other_devices_have() -> None:
    x = drawn(2, 3, 8)
    waves = np.fft.rfft(x)
    parts = np.stack([waves.real, waves.imag], -1).astype(np.float32)
    compare("Rfft", [x], expected=[parts], signal_ndim=1, normalized=0, onesided=1)
    compare("Irfft", [parts], expected=[x], signal_ndim=1, normalized=0, onesided=1)


def test_products_and_windows() -> None:
    compare("TransposeMatMul", [X, X], transB=1, alpha=0.5)
    compare("MatMulInteger16", [np.array([[3, 4]], np.int16), np.array([[30000], [-20000]], np.int16)])
    compare("UnfoldTensor", [drawn(2, 5)], size=3, step=2)
    compare("UnfoldTensor", [drawn(5, 2)], size=3, dim=0)


@pytest.mark.parametrize("items", [
    np.array(["", "a", "bcdef", "four", "\u00e9t\u00e9"], object), np.array([[3, -4]], np.int32),
    np.array([3, 1 << 40]), np.array([3, 4.5], np.float32), np.array([3, 4.5])],
    ids=lambda items: items.dtype.name)
def test_hashes(items: Any) -> None:
    compare("MurmurHash3", [items])
    compare("MurmurHash3", [items], positive=0, seed=7)


def test_transforms_of_real_signals_without_an_axis_of_parts() -> None:
    """The standard asks for a last axis of one item; PyTorch exports signals without it, which run there."""
    compare("STFT", [drawn(2, 40), np.array(4), drawn(16)], domain="", onesided=1)


TEXTS = np.array([["the cat sat", "on a mat,the end"], ["", "a,b; c"]], object)


@pytest.mark.parametrize("attributes", [
    {"tokenexp": "[a-z]+"}, {"tokenexp": "."}, {"tokenexp": "[a-z]+", "mincharnum": 2, "mark": 1},
    {"separators": [" ", ","]}, {"separators": [""]}, {"separators": [";", "[ ,]"], "mincharnum": 2}],
    ids=str)
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[0]], ids=["matrix", "vector"])
def test_tokens_of_strings(texts: Any, attributes: dict[str, Any]) -> None:
    compare("Tokenizer", [texts], **{"mark": 0, "mincharnum": 1, "pad_value": "#", **attributes})


# --- classical models ---------------------------------------------------------------------------------------

TREES = {
    "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0], "nodes_values": [0.1, -0.3, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 1, 0, 0],
}
ROWS = np.concatenate([drawn(40, 3), np.full((1, 3), np.nan, np.float32)])


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regression_by_trees(aggregate: str) -> None:
    compare("TreeEnsembleRegressor", [ROWS], domain="ai.onnx.ml", **TREES, target_treeids=[0, 0, 0, 1, 1],
            target_nodeids=[2, 3, 4, 1, 2], target_ids=[0] * 5, target_weights=[1.0, -2.0, 3.5, 0.25, 4.0],
            n_targets=1, aggregate_function=aggregate, base_values=[0.5])


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("ids, sign",
                         [([0, 1, 2, 2, 0], 1), ([0] * 5, 1), ([0] * 5, -1), ([1] * 5, 1), ([1] * 5, -1)])
def test_classification_by_trees(post: str, ids: list[int], sign: int) -> None:
    labels = {"classlabels_strings": ["a", "b", "c"]} if 2 in ids else {"classlabels_int64s": [5, 7]}
    compare("TreeEnsembleClassifier", [ROWS], 2, domain="ai.onnx.ml", **TREES, class_treeids=[0, 0, 0, 1, 1],
            class_nodeids=[2, 3, 4, 1, 2], class_ids=ids,
            class_weights=[0.5, sign * 0.25, 0.75, 0.125, sign * 0.5],
            post_transform=post, **labels)


def test_linear_models_and_features() -> None:
    x, ml = drawn(6, 3), "ai.onnx.ml"
    compare("LinearRegressor", [x], domain=ml, coefficients=drawn(6).tolist(), intercepts=[0.5, -0.5],
            targets=2)
    compare("LinearClassifier", [x], 2, domain=ml, coefficients=drawn(9).tolist(),
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[3, 1, 2], post_transform="SOFTMAX")
    for post in ("NONE", "LOGISTIC"):
        compare("LinearClassifier", [x], 2, domain=ml, coefficients=drawn(3).tolist(), intercepts=[0.1],
                classlabels_ints=[5, 7], post_transform=post)
    compare("Scaler", [x], domain=ml, offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0])
    for norm in ("MAX", "L1", "L2"):
        compare("Normalizer", [np.abs(x)], domain=ml, norm=norm)
    compare("Imputer", [ROWS], domain=ml, imputed_value_floats=[1.0, 2.0, 3.0],
            replaced_value_float=float("nan"))
    compare("OneHotEncoder", [np.array([[1, 2], [3, 9]])], domain=ml, cats_int64s=[1, 2, 3])
    compare("FeatureVectorizer", [x, x], domain=ml, inputdimensions=[3, 3])
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
        compare("SVMRegressor", [x], domain=ml, coefficients=[0.5, -1.0], support_vectors=drawn(6).tolist(),
                n_supports=2, rho=[0.25], kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0])


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("counts", [[2, 3], [1, 2, 3], [2, 1, 3, 2]])
@pytest.mark.parametrize("has_shares", [False, True])
def test_classification_by_support_vectors(post: str, counts: list[int], has_shares: bool) -> None:
    pairs = len(counts) * (len(counts) - 1) // 2
    shares = {"prob_a": drawn(pairs).tolist(), "prob_b": drawn(pairs).tolist()} if has_shares else {}
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
        compare("SVMClassifier", [drawn(7, 3)], 2, domain="ai.onnx.ml",
                classlabels_ints=[7, 4, 9, 2][:len(counts)],
                coefficients=drawn((len(counts) - 1) * sum(counts)).tolist(), vectors_per_class=counts,
                support_vectors=drawn(sum(counts) * 3).tolist(), rho=drawn(pairs).tolist(),
                kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0], post_transform=post, **shares)


def test_classification_by_weights_of_support_vector_machines() -> None:
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        compare("SVMClassifier", [drawn(7, 3)], 2, domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"],
                coefficients=drawn(9).tolist(), rho=[0.25], post_transform=post,
                kernel_params=[0.0, 0.0, 0.0])
