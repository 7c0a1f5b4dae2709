"""WEBGPU: kernels in WGSL on a Vulkan device (Mesa's software one in these tests), and what it says when
something is missing."""
from __future__ import annotations

import sys

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.runtime import webgpu

pytest.importorskip("wgpu", reason="WEBGPU needs wgpu: pip install tinygrad[webgpu]")
try:
    webgpu.find_adapter("WEBGPU")
except RuntimeError as reason:
    pytest.skip(str(reason), allow_module_level=True)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def on_gpu(array):
    return Tensor(array, device="WEBGPU").realize()


@pytest.mark.parametrize("shape", [(1,), (100,), (3, 517), (5, 6, 7)], ids=str)
def test_elementwise_rows_and_sums(shape):
    x = normal(*shape)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(on_gpu(x).softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(on_gpu(x).sum().numpy(), x.sum(dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal((on_gpu(x) * 3).numpy(), x * np.float32(3))


def test_products_of_matrices():
    a, b = normal(65, 33), normal(33, 70)
    np.testing.assert_allclose((on_gpu(a) @ on_gpu(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32,
                                   dtypes.uint32], ids=lambda d: d.name)
def test_narrow_integers_are_packed_and_wrap(dtype):
    info = np.iinfo(dtype.numpy)
    a = np.array([info.min, info.min + 1, 0, 1, 7, info.max - 1, info.max], dtype.numpy)
    b = np.array([3, 5, 2, 7, 3, 2, 1], dtype.numpy)
    np.testing.assert_array_equal((on_gpu(a) + on_gpu(b)).numpy(), a + b)
    np.testing.assert_array_equal((on_gpu(a) * on_gpu(b)).numpy(), a * b)
    np.testing.assert_array_equal((on_gpu(a) // on_gpu(b)).numpy(), a // b)
    np.testing.assert_array_equal((on_gpu(a) < on_gpu(b)).numpy(), a < b)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2],
                         ids=lambda d: d.name)
def test_narrow_floats_round_as_numpy_does(dtype):
    x = np.concatenate([normal(500) * 100, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-6]]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(on_gpu(x).cast(dtype).cast(dtypes.float32).numpy(), expected)


def test_comparisons_know_nan():
    x = np.array([1.0, np.nan, -np.inf, np.inf, 0.0], np.float32)
    np.testing.assert_array_equal((on_gpu(x) >= 0).numpy(), x >= 0)
    np.testing.assert_array_equal((on_gpu(x) != on_gpu(x)).numpy(), np.isnan(x))
    np.testing.assert_array_equal(on_gpu(x).relu().numpy(), np.maximum(x, 0))


def test_a_source_that_does_not_compile_is_shown_with_numbers():
    with pytest.raises(RuntimeError, match=r"(?s)does not accept this kernel.*    1  nonsense"):
        Device["WEBGPU"].compile("nonsense")


def test_a_dtype_that_a_device_lacks_is_refused_with_the_devices_that_have_it(monkeypatch):
    monkeypatch.setattr(Device["WEBGPU"], "_renderer", WGSLRenderer(frozenset({dtypes.float64})))
    x = Tensor([1.5], device="WEBGPU", dtype=dtypes.float64).realize()
    with pytest.raises(ValueError, match="has no float64; CPU, CPU:C and PYTHON do"):
        (x * 3 + 0.0625).numpy()


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    webgpu.webgpu.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="pip install wgpu"):
            webgpu.open_device("WEBGPU")
    finally:
        webgpu.webgpu.cache_clear()
