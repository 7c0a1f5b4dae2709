"""This library as a backend of the `onnx` package's own tests, and which of them are not run."""
from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.case.test_case import TestCase
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


class DefinedTests(Runner):
    """The tests, without what the standard leaves undefined.

    That is a float cast to an integer of 2 or 4 bits that does not reach to it ("fixed point: undefined if
    OOR", of Cast): the package expects what the installed `ml_dtypes` says, of which 0.6 wraps and 0.7 has 0.
    """

    def _add_model_test(self, model_test: TestCase, kind: str) -> None:
        to = re.match(r"test_cast(?:like)?_FLOAT(?:16)?_to_(U?)INT([24])", model_test.name)
        if to and model_test.data_sets:
            low, high = (0, 2 ** int(to[2])) if to[1] else (-(2 ** (int(to[2]) - 1)), 2 ** (int(to[2]) - 1))
            model_test.data_sets = [_zero_outside(inputs, outputs, low, high)
                                    for inputs, outputs in model_test.data_sets]
        super()._add_model_test(model_test, kind)


def _zero_outside(inputs: Sequence[Any], outputs: Sequence[Any], low: int, high: int) -> tuple[Any, Any]:
    """Inputs and expected outputs of a cast, with zeros where the first input is not from `low` to `high`."""
    x, y = numpy_helper.to_array(inputs[0]), numpy_helper.to_array(outputs[0])
    within = (x >= low) & (x < high)
    assert within.any()
    x, y = np.where(within, x, x.dtype.type(0)), np.where(within, y, y.dtype.type(0))
    return [numpy_helper.from_array(x), *inputs[1:]], [numpy_helper.from_array(y), *outputs[1:]]


def standard_tests(module: str) -> Runner:
    """The package's tests of backends, with EXCEPTIONS left out, for a module of pytest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, while the package makes its expected values
        suite = DefinedTests(TinygradBackend, module)
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
