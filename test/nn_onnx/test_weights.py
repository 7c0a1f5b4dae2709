"""Weights of a model in panels: what they are multiplied with gives the same, and no run packs them again."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import Array

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tinygrad import Tensor
from tinygrad.codegen.opt.tiles import panel_items
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.nn.onnx import OnnxRunner
from tinygrad.nn.onnx.weights import packed_over
from tinygrad.renderer.machine import cores

RNG = np.random.default_rng(7)


def numbers(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def compare(nodes: list[Any], x: Array, **constants: Array) -> OnnxRunner:
    """Two runs, the second of a trace, against the reference. Returns the model."""
    graph = helper.make_graph(
        [helper.make_node(op, given, made, **attributes) for op, given, made, attributes in nodes], "graph",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    run = OnnxRunner(model)
    for _ in range(3):
        np.testing.assert_allclose(run({"x": x})["y"].numpy(), expected, rtol=2e-5, atol=2e-5)
    return run


def is_packed(run: OnnxRunner, name: str) -> bool:
    weights = run._known[name]
    assert isinstance(weights, Tensor)
    return has_moved(weights)


def has_moved(weights: Tensor) -> bool:
    """Whether axes lie in another order in memory."""
    return any(node.op is Ops.PERMUTE for node in weights.uop.toposort())


@pytest.mark.parametrize("rows", [1, 4, 9, 50])
@pytest.mark.parametrize("columns", [32, 48, 96, 208])
@pytest.mark.parametrize("turned", [0, 1])
def test_products(rows: int, columns: int, turned: int) -> None:
    weights = numbers(columns, 70) if turned else numbers(70, columns)
    run = compare([("Gemm", ["x", "w", "b"], ["y"], {"transB": turned})], numbers(rows, 70), w=weights,
                  b=numbers(columns))
    assert is_packed(run, "w")


def test_products_of_several_axes() -> None:
    run = compare([("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})], numbers(2, 7, 40),
                  w=numbers(40, 64))
    assert is_packed(run, "w")


@pytest.mark.parametrize("channels, groups, window, stride", [
    (32, 1, 3, 1), (48, 1, 1, 1), (34, 1, 1, 1), (64, 2, 3, 2), (96, 3, 1, 1), (68, 4, 1, 1), (16, 16, 3, 1),
    (18, 1, 3, 1)])
def test_convolutions(channels: int, groups: int, window: int, stride: int) -> None:
    into = channels if groups == channels else 16 if groups == 4 else 48
    weights = numbers(channels, into // groups, window, window)
    attributes = {"group": groups, "strides": [stride] * 2, "pads": [window // 2] * 4}
    compare([("Conv", ["x", "w"], ["y"], attributes)], numbers(2, into, 9, 8), w=weights)


@pytest.mark.parametrize("groups", [0, 5])
def test_groups_that_do_not_divide_channels_are_an_error_of_the_node(groups: int) -> None:
    with pytest.raises(Exception, match="Conv"):
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["y"], group=groups)], "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 20, 5, 5))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(numbers(64, 4, 1, 1), "w")])
        OnnxRunner(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))(
            {"x": numbers(1, 20, 5, 5)})


def test_convolutions_of_one_axis() -> None:
    run = compare([("Conv", ["x", "w"], ["y"], {"pads": [1, 1]})], numbers(2, 24, 30), w=numbers(64, 24, 3))
    assert is_packed(run, "w")


def test_what_is_read_otherwise_too_stays_as_it_is() -> None:
    x = np.array([[3, 1, 4, 1, 5]])
    run = compare([("Gather", ["w", "x"], ["h"], {}), ("Transpose", ["w"], ["t"], {"perm": [1, 0]}),
                   ("MatMul", ["h", "t"], ["y"], {})], x, w=numbers(64, 32))
    assert not is_packed(run, "w")
    run = compare([("MatMul", ["x", "w"], ["h"], {}), ("Gemm", ["h", "w"], ["y"], {"transB": 1})],
                  numbers(6, 64), w=numbers(64, 64))
    assert not is_packed(run, "w")  # one product takes its rows, the other its columns


def test_weights_are_seen_as_they_were() -> None:
    weights = numbers(64, 6, 3, 3)
    seen = packed_over(weights, ((0, 2, 3, 1), 1), "CPU")
    assert seen.shape == weights.shape and np.array_equal(seen.numpy(), weights)
    blocks = packed_over(weights, ((0, 2, 3, 1), 1), "CL")
    assert has_moved(seen) and not has_moved(blocks)  # blocks of threads stage what they share


@pytest.mark.parametrize("vector_bytes, registers, columns, wanted", [
    (32, 16, 64, 16), (32, 16, 24, 8), (32, 16, 20, 0), (64, 32, 192, 64), (64, 32, 96, 48),
    (64, 32, 1000, 0), (16, 32, 48, 16), (4, 16, 64, 0)])
def test_panels_are_as_wide_as_tiles_of_six_rows(vector_bytes: int, registers: int, columns: int,
                                                 wanted: int) -> None:
    assert panel_items(cores(vector_bytes, registers), dtypes.float32, columns) == wanted
