"""Models of a few nodes, and the helpers that write them."""
from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None,
             opset: int = 21, **options: Any) -> Any:
    weights = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **options)


def linear(rows: Any = "batch") -> Any:
    """y = relu(x @ weight + bias), (rows, 3) to (rows, 2)"""
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["product"]),
             helper.make_node("Add", ["product", "bias"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])]
    return model_of(nodes, [info("x", [rows, 3])], [info("y", [rows, 2])],
                    {"weight": WEIGHT, "bias": np.array([0.5, -0.5], np.float32)})


WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
X = np.array([[1, -2, 3]], np.float32)
Y = np.maximum(X @ WEIGHT + np.array([0.5, -0.5], np.float32), 0)
