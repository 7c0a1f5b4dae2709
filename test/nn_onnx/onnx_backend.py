"""This library as a backend of the `onnx` package's own tests."""
from __future__ import annotations

from typing import Any

from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from tinygrad.nn.onnx import OnnxRunner
from tinygrad.nn.onnx.values import Coded
from tinygrad.tensor import Tensor


def to_numpy(value: Any) -> Any:
    if isinstance(value, (Tensor, Coded)):
        return value.numpy()
    return [to_numpy(v) for v in value] if isinstance(value, list) else value


class Prepared(BackendRep):
    def __init__(self, model: ModelProto) -> None:
        self.runner = OnnxRunner(model)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = dict(zip(self.runner.inputs, inputs, strict=False))
        results = self.runner.values(self.runner._checked({k: v for k, v in given.items() if v is not None}))
        return tuple(to_numpy(results[name]) for name in self.runner.outputs)


class TinygradBackend(Backend):
    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        return Prepared(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


