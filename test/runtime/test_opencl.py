"""CL: kernels on an OpenCL device (PoCL in these tests), its memory, and what it says when something is
missing."""
from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, TinyJit
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.device import Buffer, Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import schedule_uops
from tinygrad.renderer.c_blocks import BlocksRenderer
from tinygrad.renderer.machine import blocks
from tinygrad.renderer.opencl import OPENCL
from tinygrad.runtime import opencl

pytest.importorskip("pyopencl", reason="CL needs pyopencl: pip install tinygrad[opencl]")
try:
    opencl.all_devices()
except RuntimeError as reason:
    pytest.skip(str(reason), allow_module_level=True)


def on_cl(array):
    return Tensor(array, device="CL").realize()


FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.float32, dtypes.float64)
INTEGERS = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64,
            dtypes.uint64)


@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 517), (65, 64, 8)], ids=str)
def test_elementwise_rows_and_sums(shape):
    x = normal(*shape)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(on_cl(x).softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(on_cl(x).sum().numpy(), x.sum(dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal((on_cl(x) * 3 - 1).numpy(), x * np.float32(3) - 1)


def test_products_of_large_and_odd_matrices():
    a, b = normal(257, 65), normal(65, 300)
    np.testing.assert_allclose((on_cl(a) @ on_cl(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_every_16_bit_number_is_cast_as_numpy_does(dtype):
    """Every float16, infinities, NaN and denormals among them."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(dtype.numpy)
        back = expected.astype(np.float32).astype(np.float16)
    result = on_cl(x).cast(dtype)
    np.testing.assert_array_equal(result.numpy().astype(np.float64), expected.astype(np.float64))
    np.testing.assert_array_equal(result.cast(dtypes.float16).numpy(), back)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integers_divide_and_wrap_as_numpy_does(dtype):
    info = np.iinfo(dtype.numpy)
    a = np.array([info.min, info.min + 1, 0, 1, 7, info.max - 1, info.max], dtype.numpy)
    b = np.array([3, 5, 2, 7, 3, 2, 1], dtype.numpy)
    np.testing.assert_array_equal((on_cl(a) + on_cl(b)).numpy(), a + b)
    np.testing.assert_array_equal((on_cl(a) // on_cl(b)).numpy(), a // b)
    np.testing.assert_array_equal((on_cl(a) % on_cl(b)).numpy(), a % b)
    np.testing.assert_array_equal((on_cl(a) * on_cl(b)).numpy(), a * b)


def test_gpu_is_another_name():
    assert Tensor([1.0], device="GPU").device == "CL"


def test_a_jitted_step_replays_with_other_numbers():
    step = TinyJit(lambda x, w: (x @ w).relu().sum(0).realize())
    w = normal(16, 8)
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((32, 16)).astype(np.float32)
        np.testing.assert_allclose(step(on_cl(x), on_cl(w)).numpy(), np.maximum(x @ w, 0).sum(0), rtol=1e-4,
                                   atol=1e-4)


def test_a_part_of_a_buffer_is_the_same_memory():
    whole = Buffer("CL", 1024, dtypes.float32)
    whole.copyin(np.arange(1024, dtype=np.float32).view(np.uint8).data)
    part = whole.part(512 * 4, 4, dtypes.float32)
    np.testing.assert_array_equal(part.numpy(), [512, 513, 514, 515])
    part.copyin(np.full(4, 9, np.float32).view(np.uint8).data)
    np.testing.assert_array_equal(whole.numpy()[510:518], [510, 511, 9, 9, 9, 9, 516, 517])


@pytest.fixture
def held():
    """What holds the device's queue back until it is set."""
    cl, queue = opencl.opencl(), Device["CL"].queue
    event = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue.driver, wait_for=[event])
    yield event
    if event.command_execution_status != cl.command_execution_status.COMPLETE:
        event.set_status(cl.command_execution_status.COMPLETE)
    Device.synchronize()


def test_kernels_and_copies_go_on_after_realize_returned(held):
    b = normal(300)
    queue, host = Device["CL"].queue, Tensor(b, device="CPU").realize()
    x = host.to("CL").realize()
    y = (x * 2).realize()
    z = y.to("CPU").realize()
    other = Buffer("CL", 300, dtypes.float32).allocate()
    queue.copy(other, y.uop.realized, 0)
    assert not queue.signal().is_past
    held.set_status(opencl.opencl().command_execution_status.COMPLETE)
    np.testing.assert_array_equal(z.numpy(), b * 2)
    np.testing.assert_array_equal(other.copied(), b * 2)
    assert queue.signal().is_past and not queue.kept


def test_what_a_copy_still_reads_is_not_overwritten(held):
    b = normal(300)
    host = Tensor(b, device="CPU").contiguous().realize()
    x = host.to("CL").realize()
    threading.Timer(0.05, held.set_status, [opencl.opencl().command_execution_status.COMPLETE]).start()
    host.assign(host * 0).realize()
    np.testing.assert_array_equal(x.numpy(), b)
    assert not host.numpy().any()


def test_timestamps_are_the_devices():
    queue, x = Device["CL"].queue, on_cl(normal(64, 64))
    first = queue.timestamp()
    (x @ x).realize()
    second = queue.timestamp()
    assert 0 < second.seconds - first.seconds < 60


def test_a_source_that_does_not_compile_is_shown_with_numbers():
    with pytest.raises(RuntimeError, match=r"(?s)does not accept this kernel.*nonsense.*    2  nonsense"):
        Device["CL"].compile("__kernel void k() {\nnonsense\n}")


def test_a_device_that_is_not_there_says_how_many_are():
    with pytest.raises(RuntimeError, match="CL:77 is not there: this machine has"):
        Device["CL:77"]


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    opencl.opencl.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r'pip install "tinygrad\[opencl\]"'):
            opencl.open_device("CL")
    finally:
        opencl.opencl.cache_clear()


def test_no_platform_says_what_to_install(monkeypatch):
    cl = opencl.opencl()

    def nothing():
        return []

    monkeypatch.setattr(cl, "get_platforms", nothing)
    with pytest.raises(RuntimeError, match=r'PoCL for the CPU'):
        opencl.open_device("CL")


def test_a_dtype_that_a_device_lacks_is_refused_with_the_devices_that_have_it(monkeypatch):
    limited = BlocksRenderer(OPENCL, blocks(missing=frozenset({dtypes.float64})))
    monkeypatch.setattr(Device["CL"], "_renderer", limited)
    x = Tensor([1.5, 2.5], device="CL", dtype=dtypes.float64).realize()
    with pytest.raises(ValueError, match="has no float64; CPU, CPU:C and PYTHON do"):
        (x * 3 + 0.125).numpy()


def test_kernels_read_like_opencl():
    source = compiled_kernel(schedule_uops([(on_cl(normal(64)) + 1).uop])[-1].ast, "CL").source
    assert "__kernel void e_64(__global float *restrict p0, __global float *restrict p1)" in source
    assert "get_local_id(0)" in source


def test_a_driver_that_compiles_nothing_is_left_out(monkeypatch):
    monkeypatch.setattr(opencl, "refusal", lambda device: f"{device.name}: unknown target CPU 'generic'")
    with pytest.raises(RuntimeError, match="no OpenCL device whose driver compiles.*unknown target CPU"):
        opencl.all_devices()


def test_a_driver_is_asked_for_an_empty_kernel():
    (device, *_) = opencl.all_devices()
    assert opencl.refusal(device) is None
