"""QCOM and CL:IMAGES: kernels that read memory as images, on an OpenCL device (PoCL in these tests)."""
from __future__ import annotations

import re

import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, TinyJit
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import blocks
from tinygrad.renderer.qcom import ImageRenderer
from tinygrad.runtime import opencl

pytest.importorskip("pyopencl", reason="CL needs pyopencl: pip install tinygrad[opencl]")
try:
    HAS_IMAGES = bool(opencl.all_devices()[0].image_support)
except RuntimeError as reason:
    pytest.skip(str(reason), allow_module_level=True)
needs_images = pytest.mark.skipif(not HAS_IMAGES, reason="this OpenCL device has no images")
IMAGES = "CL:IMAGES"
MANY = 1 << 15
"""Items enough to be read in fours."""


def with_images(array):
    return Tensor(array, device=IMAGES).realize()


def images_in(source):
    """The arguments that are images."""
    return re.findall(r"__read_only image1d_buffer_t (p\d+)", source)


def source_of(result):
    return compiled_kernel(schedule_uops([result.uop])[-1].ast, IMAGES).source


@needs_images
def test_what_is_read_in_fours_is_an_image_and_what_is_written_is_none():
    source = source_of(with_images(normal(MANY)) + with_images(normal(MANY)) * 2)
    assert images_in(source) == ["p1", "p2"] and "read_imagef(p1, (int)(" in source
    assert "__global float *restrict p0" in source


@needs_images
@pytest.mark.parametrize("other", [
    lambda: with_images(normal(MANY - 1)), lambda: with_images(normal(MANY)).half(),
    lambda: with_images(np.arange(MANY, dtype=np.int32))], ids=["odd length", "half", "integers"])
def test_what_is_no_row_of_pixels_of_float32_stays_a_pointer(other):
    assert images_in(source_of(other().realize() + 1)) == []


@needs_images
@pytest.mark.parametrize("shape", [(4,), (1024,), (3, 516), (65, 64, 8)], ids=str)
def test_values_are_those_of_numpy(shape):
    x, y = normal(*shape), normal(*shape, 1)[..., 0]
    np.testing.assert_array_equal((with_images(x) * 3 - with_images(y)).numpy(), x * np.float32(3) - y)
    sums = x.sum(-1, dtype=np.float64)
    np.testing.assert_allclose(with_images(x).sum(-1).numpy(), sums, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal((with_images(x) > 0).numpy(), x > 0)


@needs_images
def test_infinities_nan_and_denormals_come_through_an_image():
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, -3e-39, 3e38, 1], np.float32)
    found = (with_images(x) * 1).contiguous().numpy()
    np.testing.assert_array_equal((with_images(x).bitcast(dtypes.uint32) + 0).numpy(), x.view(np.uint32))
    np.testing.assert_array_equal(found, x)


@needs_images
def test_products_of_matrices_and_convolutions():
    a, b = normal(64, 128), normal(128, 32)
    np.testing.assert_allclose((with_images(a) @ with_images(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)
    x, w = normal(2, 4, 16, 16), normal(8, 4, 3, 3)
    expected = Tensor(x, device="CPU").conv2d(Tensor(w, device="CPU"), padding=1).numpy()
    found = with_images(x).conv2d(with_images(w), padding=1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@needs_images
def test_written_memory_is_read_through_an_image_as_it_is_now():
    x = with_images(normal(256))
    for n in range(4):
        before = x.numpy().copy()
        x.assign(x * 2 + n).realize()
        np.testing.assert_array_equal((x + 1).numpy(), before * 2 + np.float32(n) + 1)


@needs_images
def test_a_part_of_a_buffer_is_read_as_an_image_too():
    x = normal(8, 1024)
    t = with_images(x)
    np.testing.assert_array_equal((t[3].contiguous().realize() + 1).numpy(), x[3] + np.float32(1))
    step = TinyJit(lambda t: ((t * 2).contiguous() + t.flip(1).contiguous()).realize())
    for n in range(4):
        np.testing.assert_array_equal(step(with_images(x + n)).numpy(), (x + n) * 2 + (x + n)[:, ::-1])


def pixels_added(items, slots=1):
    """A program of one thread that adds 1 to each item of the sum of so many buffers, a pixel a round."""
    memory = [UOp.new(Ops.PARAM, dtypes.float32, (), (slot, items)) for slot in range(slots + 1)]
    loop = UOp.range(items // 4, 0)
    lanes = []
    for m in memory[1:]:
        wide = UOp.new(Ops.LOAD, dtypes.float32.vec(4), (UOp.new(Ops.INDEX, m.dtype, (m, loop * 4)),))
        lanes.append([UOp.new(Ops.EXTRACT, dtypes.float32, (wide,), i) for i in range(4)])
    one = UOp.const(1.0, dtypes.float32)
    sums = [sum(column[1:], column[0]) + one for column in zip(*lanes, strict=True)]
    value = UOp.new(Ops.VECTORIZE, dtypes.float32.vec(4), tuple(sums))
    place = UOp.new(Ops.INDEX, dtypes.float32, (memory[0], loop * 4))
    store = UOp.new(Ops.STORE, value.dtype, (place, value))
    return [*store.toposort(), UOp.new(Ops.END, dtypes.index, (loop,))]


@pytest.mark.parametrize(("pixels", "images", "expected"), [
    (2, 128, ["p1", "p2", "p3"]), (1, 128, []), (1 << 20, 2, ["p1", "p2"]), (1 << 20, 0, [])])
def test_the_limits_of_a_device_are_kept(pixels, images, expected):
    source = ImageRenderer(blocks(), pixels, images).render("tested", pixels_added(8, slots=3))
    assert images_in(source) == expected


def test_qcom_without_a_gpu_of_qualcomm_says_what_it_needs():
    if any("QUALCOMM" in d.vendor.upper() for d in opencl.all_devices()):
        pytest.skip("this machine has one")
    with pytest.raises(RuntimeError, match="driver of a Qualcomm GPU.*CL:IMAGES runs the same kernels"):
        Tensor([1.0], device="QCOM")


def test_a_device_without_images_is_refused(monkeypatch):
    class Plain:
        name, image_support = "a plain device", False

    device = object.__new__(type(Device[IMAGES]) if HAS_IMAGES else opencl.OpenCLDevice)
    monkeypatch.setattr(device, "device", Plain(), raising=False)
    with pytest.raises(RuntimeError, match="a plain device has no images; use CL"):
        device.renderer_for(blocks())
