"""Products and convolutions of all eight bits beside NumPy's integers of 64: nothing saturates on the way.

ONNX Runtime is no reference for them: without VNNI it adds two products in 16 bits, with saturation.
"""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx import helper
from onnx_small_models import info, model_of

from tinygrad.nn.onnx import OnnxRunner

Array = np.ndarray[Any, Any]
KINDS = [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)]
RESULT_SCALE = 2.0**9
"""Scales are powers of two: the scaled integers of both are exact, and ties round to even in both."""


def run(op: str, *inputs: Array, domain: str = "", **attributes: Any) -> Array:
    """One node."""
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    graph = helper.make_graph(
        [helper.make_node(op, list(given), ["y"], domain=domain, **attributes)], "graph",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for name, x in given.items()], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    made: Array = OnnxRunner(model)(given)["y"].numpy()
    return made


def eight_bits(kind: Any, *shape: int) -> Array:
    """All values of a type, the outermost as often as the others together."""
    rng, limits = np.random.default_rng(0), np.iinfo(kind)
    numbers = rng.integers(limits.min, limits.max, shape, endpoint=True)
    outermost = np.where(rng.random(shape) < 0.7, limits.max, limits.min)
    return np.where(rng.random(shape) < 0.5, outermost, numbers).astype(kind)


def zero_point(kind: Any) -> Array:
    return np.array(np.iinfo(kind).min + 3, kind)


def requantised(exact: Array, kind: Any) -> Array:
    limits = np.iinfo(kind)
    zero = int(zero_point(kind))
    return np.clip(np.rint(exact / RESULT_SCALE) + zero, limits.min, limits.max).astype(kind)


def scale(value: float = 1.0) -> Array:
    return np.array(value, np.float32)


def centred(x: Array) -> Array:
    return x.astype(np.int64) - int(zero_point(x.dtype.type))


def convolved(x: Array, w: Array) -> Array:
    """Of windows of w's size, without padding."""
    windows = np.lib.stride_tricks.sliding_window_view(centred(x), w.shape[2:], (2, 3))
    made: Array = np.einsum("nchwij,ocij->nohw", windows, centred(w))
    return made


@pytest.mark.parametrize("k", [2, 7, 64, 515])
@pytest.mark.parametrize("left, right", KINDS)
def test_product_of_eight_bits_is_exact(left: Any, right: Any, k: int) -> None:
    a, b = eight_bits(left, 5, k), eight_bits(right, k, 9)
    exact = centred(a) @ centred(b)
    np.testing.assert_array_equal(run("MatMulInteger", a, b, zero_point(left), zero_point(right)), exact)
    rest = scale(RESULT_SCALE), zero_point(left)
    first, second = (a, scale(), zero_point(left)), (b, scale(), zero_point(right))
    np.testing.assert_array_equal(run("QLinearMatMul", *first, *second, *rest), requantised(exact, left))
    bias = np.arange(9, dtype=np.int32)
    made = run("QGemm", *first, *second, bias, *rest, domain="com.microsoft")
    np.testing.assert_array_equal(made, requantised(exact + bias, left))
    made = run("MatMulIntegerToFloat", a, b, scale(), scale(0.5), zero_point(left), zero_point(right),
               domain="com.microsoft")
    np.testing.assert_array_equal(made, (exact / 2).astype(np.float32))


@pytest.mark.parametrize("right", [np.uint8, np.int8])
def test_product_with_floats_quantised_on_the_way_is_exact(right: Any) -> None:
    numbers = eight_bits(np.uint8, 5, 64)
    numbers[0, :2] = 0, 255  # the range of the floats is that of the integers: scale 1
    b = eight_bits(right, 64, 9)
    floats = numbers.astype(np.float32) - 128
    made = run("DynamicQuantizeMatMul", floats, b, scale(0.5), zero_point(right), domain="com.microsoft")
    np.testing.assert_array_equal(made, ((numbers.astype(int) - 128) @ centred(b) / 2).astype(np.float32))


@pytest.mark.parametrize("left, right", KINDS)
@pytest.mark.parametrize("size", [1, 3])
def test_convolution_of_eight_bits_is_exact(left: Any, right: Any, size: int) -> None:
    x, w = eight_bits(left, 2, 16, 7, 9), eight_bits(right, 12, 16, size, size)
    exact = convolved(x, w)
    if left == np.uint8:
        np.testing.assert_array_equal(run("ConvInteger", x, w, zero_point(left), zero_point(right)), exact)
    made = run("QLinearConv", x, scale(), zero_point(left), w, scale(), zero_point(right),
               scale(RESULT_SCALE), zero_point(left))
    np.testing.assert_array_equal(made, requantised(exact, left))


def test_mean_of_quantised_numbers() -> None:
    """ONNX Runtime documents it, and has no kernel for it."""
    x = eight_bits(np.uint8, 2, 4, 5)
    made = run("QLinearReduceMean", x, scale(), zero_point(np.uint8), scale(RESULT_SCALE),
               zero_point(np.uint8), domain="com.microsoft", axes=[1], keepdims=0)
    np.testing.assert_array_equal(made, requantised(centred(x).mean(1), np.uint8))


NARROW = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fnuz]


@pytest.mark.parametrize("kind", NARROW)
def test_weights_of_types_that_no_tensor_has(kind: Any) -> None:
    """As constants of the file, as nodes, and in branches: they were refused."""
    w = np.array([[0, 1, 2], [3, 4, 6]], np.float32).astype(kind)
    zero = np.array(0 if "float" in np.dtype(kind).name else 1, kind)
    scales = np.array([0.5, 2], np.float32)
    wanted = (w.astype(np.float32) - zero.astype(np.float32)) * scales[:, None]
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0),
             helper.make_node("MatMul", ["x", "d"], ["y"])]
    zeros = np.full(2, zero)
    x = np.array([[1, 2]], np.float32)
    run = OnnxRunner(model_of(nodes, [info("x", ["n", 2])], [info("y")], {"w": w, "s": scales, "z": zeros},
                              23))
    for _ in range(3):
        np.testing.assert_array_equal(run(x=x)["y"].numpy(), x @ wanted)
    quantise = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
                helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1)]
    run = OnnxRunner(model_of(quantise, [info("x", ["n", 2])], [info("y")], {"s": scales, "z": zeros}, 23))
    np.testing.assert_array_equal(run(x=x)["y"].numpy(), x)


def test_weights_of_four_bits_in_a_branch() -> None:
    w = np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4)
    own = helper.make_graph([helper.make_node("Transpose", ["w"], ["t"]),
                             helper.make_node("Concat", ["t", "around"], ["c"], axis=0),
                             helper.make_node("Cast", ["c"], ["y1"], to=1)], "own", [], [info("y1")],
                            [helper.make_tensor("w", 22, [4, 4], w.reshape(-1).tolist())])
    other = helper.make_graph([helper.make_node("Cast", ["around"], ["y2"], to=1)], "other", [], [info("y2")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=own, else_branch=other)
    run = OnnxRunner(model_of([node], [info("c", [], 9)], [info("y")], {"around": w}))
    for _ in range(2):
        np.testing.assert_array_equal(run(c=True)["y"].numpy(), np.concatenate([w.T, w]).astype(np.float32))
        np.testing.assert_array_equal(run(c=False)["y"].numpy(), w.astype(np.float32))
