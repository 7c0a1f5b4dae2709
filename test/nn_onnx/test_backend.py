"""The `onnx` package's own tests of backends, run on ours: the operators of the standard one by one and in
small models, what PyTorch exported, and nine light architectures.

`DEV` says on which device. Where that is not the CPU, every tenth test runs.
"""
from __future__ import annotations

import os
import warnings
import zlib

import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx.backend.test.runner import Runner
from onnx_backend import TinygradBackend

EXCEPTIONS = {
    "test_bernoulli": "random numbers of NumPy, with a seed that no other generator follows",
    "test_training_dropout_default_cpu": "random numbers of NumPy",
    "test_training_dropout_default_mask_cpu": "random numbers of NumPy",
    "test_training_dropout_cpu": "random numbers of NumPy",
    "test_training_dropout_mask_cpu": "random numbers of NumPy",
    "test_loop16_seq_none": "the test's runner takes the length of an array without axes",
    "test_dft_inverse_cpu": "expects the rounding of NumPy's transform: 1.9e-7, where zero is exact",
    "test_dft_inverse_opset19_cpu": "expects the rounding of NumPy's transform: 1.9e-7, where zero is exact",
    "test_attention_4d_causal_fp16": "asks for less than a unit of the last place of float16",
    "test_gradient_of_add": "Gradient, of the preview for training, which differentiates the graph around it",
}
"""Tests that are not run, by the beginning of their names, and why."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of NumPy, while the package makes its expected values
    suite = Runner(TinygradBackend, __name__)
suite.exclude("_cuda$")
for name in EXCEPTIONS:
    suite.exclude(f"^{name}")
cases = suite.test_cases
if os.environ.get("DEV", "CPU") != "CPU":
    for case in cases.values():
        for name in [n for n in vars(case) if n.startswith("test_") and zlib.crc32(n.encode()) % 10]:
            delattr(case, name)
globals().update(cases)
