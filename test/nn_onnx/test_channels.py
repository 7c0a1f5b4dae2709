"""Maps of channels by constants are in the weights of convolutions, or one map; results are the same."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import Array

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tinygrad.nn.onnx import OnnxRunner

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 6, 5)).astype(np.float32)


def numbers(*shape: int, low: float = -1) -> Array:
    return RNG.uniform(low, 1, shape).astype(np.float32)


def normalisation(channels: int) -> dict[str, Array]:
    """The constants of a batch normalisation."""
    return {"scale": numbers(channels), "shift": numbers(channels), "mean": numbers(channels),
            "variance": numbers(channels, low=0.1)}


def model_of(nodes: list[Any], constants: dict[str, Array], outputs: tuple[str, ...], ranked: bool) -> Any:
    graph = helper.make_graph(
        [helper.make_node(op, given, made, **attributes) for op, given, made, attributes in nodes], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape if ranked else None)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(nodes: list[Any], constants: dict[str, Array], outputs: tuple[str, ...] = ("y",), ranked: bool = True,
        reference: Any = None) -> list[str]:
    """Compare with the standard's reference, of this model or another. Gives the operators that are left."""
    model = model_of(nodes, constants, outputs, ranked)
    ours = OnnxRunner(model)
    made = ours(x=X)
    wanted = ReferenceEvaluator(reference or model).run(list(outputs), {"x": X})
    for name, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(made[name].numpy(), expected, atol=2e-5, rtol=1e-4)
    return [node.op for node in ours._nodes]


def batch_norm(x: str, y: str) -> tuple[Any, ...]:
    return "BatchNormalization", [x, "scale", "shift", "mean", "variance"], [y], {"epsilon": 0.01}


@pytest.mark.parametrize(("op", "weight", "group", "bias"), [
    ("Conv", (6, 4, 3, 3), 1, True), ("Conv", (6, 2, 3, 3), 2, False), ("Conv", (4, 1, 3, 3), 4, True),
    ("ConvTranspose", (4, 6, 3, 3), 1, True)])
def test_a_normalisation_behind_a_convolution_is_in_its_weights(op: str, weight: tuple[int, ...], group: int,
                                                                bias: bool) -> None:
    channels = weight[1] if op == "ConvTranspose" else weight[0]
    constants = {"w": numbers(*weight), "b": numbers(channels), **normalisation(channels)}
    nodes = [(op, ["x", "w", "b"] if bias else ["x", "w"], ["c"], {"group": group}), batch_norm("c", "n"),
             ("Relu", ["n"], ["y"], {})]
    assert run(nodes, constants) == [op, "Relu"]


def test_a_transposed_convolution_of_groups_keeps_its_normalisation() -> None:
    nodes: Any = [("ConvTranspose", ["x", "w"], ["c"], {"group": 2}), batch_norm("c", "y")]
    constants = {"w": numbers(4, 2, 3, 3), **normalisation(4)}
    whole = np.zeros((4, 4, 3, 3), np.float32)  # the same with one group: the reference adds up over groups
    whole[:2, :2], whole[2:, 2:] = constants["w"][:2], constants["w"][2:]
    one: Any = [("ConvTranspose", ["x", "w"], ["c"], {}), nodes[1]]
    same = model_of(one, {**constants, "w": whole}, ("y",), True)
    assert run(nodes, constants, reference=same) == ["ConvTranspose", "BatchNormalization"]


def test_products_and_sums_by_channels_join_a_normalisation() -> None:
    """As exporters of Caffe write them."""
    constants = {**normalisation(4), "m": numbers(4, 1, 1), "a": numbers(1, 4, 1, 1), "d": np.float32(2.5)}
    nodes = [batch_norm("x", "n"), ("Mul", ["n", "m"], ["p"], {}), ("Sub", ["p", "a"], ["s"], {}),
             ("Div", ["s", "d"], ["y"], {})]
    assert run(nodes, constants) == ["BatchNormalization"]


def test_arithmetic_behind_a_convolution_is_in_its_weights() -> None:
    constants = {"w": numbers(6, 4, 1, 1), "m": numbers(6, 1, 1), "a": numbers(1, 6, 1, 1)}
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Mul", ["m", "c"], ["p"], {}), ("Add", ["p", "a"], ["y"], {})]
    assert run(nodes, constants) == ["Conv"]


def test_what_is_read_twice_or_an_output_stays() -> None:
    constants = {"w": numbers(4, 4, 1, 1), **normalisation(4)}
    conv: Any = ("Conv", ["x", "w"], ["c"], {})
    assert run([conv, batch_norm("c", "y")], constants, ("c", "y")) == ["Conv", "BatchNormalization"]
    assert run([conv, batch_norm("c", "n"), ("Add", ["c", "n"], ["y"], {})], constants) == \
        ["Conv", "BatchNormalization", "Add"]


def test_other_arithmetic_stays() -> None:
    conv: Any = ("Conv", ["x", "w"], ["c"], {})
    one = {"w": numbers(1, 4, 1, 1), "m": numbers(3, 1, 1)}  # one channel becomes three
    assert run([conv, ("Mul", ["c", "m"], ["y"], {})], one) == ["Conv", "Mul"]
    wide = {"w": numbers(5, 4, 1, 1), "m": numbers(5)}  # along the last axis
    assert run([conv, ("Mul", ["c", "m"], ["y"], {})], wide) == ["Conv", "Mul"]
    quotient = {"w": numbers(4, 4, 1, 1), "m": numbers(4, 1, 1, low=0.5)}
    assert run([conv, ("Exp", ["c"], ["e"], {}), ("Div", ["m", "e"], ["y"], {})], quotient) == \
        ["Conv", "Exp", "Div"]
    assert run([batch_norm("x", "n"), ("Mul", ["n", "m"], ["y"], {})],
               {**normalisation(4), "m": numbers(4, 1, 1)}, ranked=False) == ["BatchNormalization", "Mul"]
