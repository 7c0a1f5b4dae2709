"""Models of one node, run by this library and by ONNX Runtime."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper

from tinygrad.nn.onnx import OnnxRunner

RNG = np.random.default_rng(0)


def compare(name: str, inputs: list[Any], outputs: int = 1, domain: str = "com.microsoft", opset: int = 21,
            tolerance: float = 2e-5, checked: int | None = None, expected: list[Any] | None = None,
            **attributes: Any) -> None:
    """One node, run by both; where ONNX Runtime has no kernel for a CPU, `expected` says what it gives.
    Inputs that are None are left out."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(name, names, results, domain=domain, **attributes)
    given = {n: x for n, x in zip(names, inputs, strict=True) if n}
    graph = helper.make_graph(
        [node], "graph", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                          for n, x in given.items()],
        [helper.make_empty_tensor_value_info(n) for n in results])
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1),
                helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if expected is None:
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        expected = session.run(None, given)
    got = OnnxRunner(model)(given)
    for key, wanted in list(zip(results, expected, strict=True))[:checked]:
        made = got[key] if isinstance(got[key], np.ndarray) else got[key].numpy()
        assert made.shape == wanted.shape and made.dtype == wanted.dtype, (
            key, made.shape, wanted.shape, made.dtype, wanted.dtype)
        if made.dtype.kind == "f":
            np.testing.assert_allclose(made, wanted, rtol=tolerance, atol=tolerance)
        elif made.dtype.kind in "iu" and made.dtype.itemsize == 1:  # a quantum, where rounding ties
            assert np.abs(made.astype(int) - wanted.astype(int)).max() <= 1
        else:
            np.testing.assert_array_equal(made, wanted)


def quantized(*shape: int, kind: Any = np.uint8) -> np.ndarray[Any, Any]:
    """Of eight bits. Of seven where signed: more may overflow in ONNX Runtime (`onnx_layers.quantised`)."""
    return RNG.integers(0 if kind is np.uint8 else -64, 256 if kind is np.uint8 else 64, shape).astype(kind)


def scale(value: float) -> np.ndarray[Any, Any]:
    return np.array(value, np.float32)


def zero(value: int, kind: Any = np.uint8) -> np.ndarray[Any, Any]:
    return np.array(value, kind)
