"""ONNX models as functions of tensors: what `OnnxRunner` loads, it runs on any device, compiled and jitted.

`model.py` reads a file into plain data and refuses what is wrong with it; `registry.py` is the table of
operators, which `ops/` fills, one family a module; `evaluate.py` walks a graph and calls them; `host.py` has
the operators that make shapes, over NumPy; `runner.py` is what users call. Reading files takes the `onnx`
package: `pip install "tinygrad[onnx]"`.
"""
from tinygrad.nn.onnx.export import export
from tinygrad.nn.onnx.model import OnnxError
from tinygrad.nn.onnx.runner import OnnxRunner

__all__ = ["OnnxError", "OnnxRunner", "export"]
