"""A network that could drive a car, in the images of OpenCL."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="compared with ONNX Runtime")
pytest.importorskip("pyopencl", reason="images are OpenCL's")

import onnxruntime as ort

from bench.driving_model import FEATURES, SMALL, Network
from tinygrad import GlobalCounters
from tinygrad.nn.onnx import OnnxRunner

MOST_KERNELS = 123


def on_images(network: Network) -> OnnxRunner:
    try:
        return OnnxRunner(network.write(), device="CL:IMAGES")
    except RuntimeError as error:
        pytest.skip(f"no OpenCL device with images: {error}")


def drive(run: OnnxRunner, exact: Network, computed: Any, tolerance: float) -> int:
    """How many kernels a step has, after three of them (walked, traced and replayed, with the state carried
    over) gave what ONNX Runtime gives for `exact`. Differences are of the largest number of a result."""
    session = ort.InferenceSession(exact.write().SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    state, ours = np.zeros((1, FEATURES), np.float32), np.zeros((1, FEATURES), computed)
    for _ in range(3):
        images = {n: rng.standard_normal(shape).astype(np.float16) for n, shape in exact.cameras.items()}
        wide = {n: image.astype(np.float32) for n, image in images.items()}
        plan, state = session.run(["plan", "new_state"], {**wide, "state": state})
        GlobalCounters.reset()
        made = run({**(images if computed is np.float16 else wide), "state": ours})
        kernels = GlobalCounters.kernel_count
        ours = made["new_state"].numpy()
        for got, wanted in ((ours, state), (made["plan"].numpy(), plan)):
            apart = np.abs(got.astype(np.float32) - wanted).max() / np.abs(wanted).max()
            print(f"{kernels} kernels, apart {apart:.1e}")
            assert apart <= tolerance
    return kernels


@pytest.mark.slow
def test_a_driving_model_in_images() -> None:
    assert drive(on_images(Network()), Network(), np.float32, 1e-4) <= MOST_KERNELS


@pytest.mark.slow
def test_a_driving_model_of_halves_in_images() -> None:
    """Weights are the same numbers in both. What is off is that each layer stores halves, rounded by up to
    4.9e-4 of each number; sums are of float32. The whole network was off by 9.4e-4, and by 8.9e-4 on CPU."""
    drive(on_images(Network(np.float16, **SMALL)), Network(**SMALL), np.float16, 1.5e-3)
