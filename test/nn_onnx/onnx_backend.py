"""This library as a backend of the `onnx` package's own tests, and which of them are not run."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import Runner

from tinygrad.nn.onnx import OnnxRunner
from tinygrad.nn.onnx.values import Coded
from tinygrad.tensor import Tensor


def to_numpy(value: Any) -> Any:
    if isinstance(value, (Tensor, Coded)):
        return value.numpy()
    return [to_numpy(v) for v in value] if isinstance(value, list) else value


EXCEPTIONS = {
    "test_bernoulli": "random numbers of NumPy, with a seed that no other generator follows",
    "test_training_dropout_default_cpu": "random numbers of NumPy",
    "test_training_dropout_default_mask_cpu": "random numbers of NumPy",
    "test_training_dropout_cpu": "random numbers of NumPy",
    "test_training_dropout_mask_cpu": "random numbers of NumPy",
    "test_loop16_seq_none": "the test's runner takes the length of an array without axes",
    "test_dft_inverse_cpu": "expects the rounding of NumPy's transform: 1.9e-7, where zero is exact",
    "test_dft_inverse_opset19_cpu": "expects the rounding of NumPy's transform: 1.9e-7, where zero is exact",
    "test_attention_4d_causal_fp16": "expects numbers that are farther from the exact ones than ours",
    "test_gradient_of_add": "Gradient, of the preview for training, which differentiates the graph around it",
}
"""Tests that are not run, by the beginning of their names, and why."""

KINDS = {"NodeModel": "operators, one by one", "SimpleModel": "small models",
         "PyTorchConvertedModel": "layers that PyTorch exported",
         "PyTorchOperatorModel": "operators that PyTorch exported", "RealModel": "light architectures"}


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


def standard_tests(module: str) -> Runner:
    """The package's tests of backends, with EXCEPTIONS left out, for a module of pytest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, while the package makes its expected values
        suite = Runner(TinygradBackend, module)
    suite.exclude("_cuda$")
    for name in EXCEPTIONS:
        suite.exclude(f"^{name}")
    return suite


def left_out(suite: Runner) -> dict[str, Callable[..., None]]:
    """The tests that are not run, by name; to be asked for before `suite.test_cases`, which wraps them."""
    return {name: item.func for items in suite._test_items.values() for name, item in items.items()
            if name.startswith(tuple(EXCEPTIONS)) and not name.endswith("_cuda")}


def figures(suite: Runner) -> str:
    """How many tests there are of each kind, how many are run, and why others are not, as a page has it."""
    lines = ["| tests | there are | run |", "| --- | ---: | ---: |"]
    sums = [0, 0]
    for kind, said in KINDS.items():
        names = [name for name in suite._test_items[kind] if not name.endswith("_cuda")]
        run = sum(not name.startswith(tuple(EXCEPTIONS)) for name in names)
        sums = [sums[0] + len(names), sums[1] + run]
        lines.append(f"| {said} | {len(names):,} | {run:,} |")
    lines += [f"| all | {sums[0]:,} | {sums[1]:,} ({sums[1] / sums[0]:.1%}) |", "",
              "| not run | why |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {reason} |" for name, reason in EXCEPTIONS.items())]) + "\n"
