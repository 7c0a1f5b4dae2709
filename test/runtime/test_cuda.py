"""The runtime of CUDA where there is no GPU: against a driver that keeps memory on the host and runs kernels
on the emulator. What the driver is given, addresses, sizes, arguments, streams, is what counts here."""
from __future__ import annotations

import ctypes
import gc
import importlib
import re
import time
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drivers import (
    LateStreams,
    capture,
    compute,
    copy_there_and_back,
    emulated,
    launch,
    let_go,
    needs_compiler,
    register,
    rng,
)

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.helpers import Context
from tinygrad.renderer.launch import Launch
from tinygrad.runtime import cuda, streams


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
    CUDA_ERROR_LAUNCH_FAILED = 719


class CUDADriver(LateStreams):
    """`cuda.bindings.driver` for two GPUs of compute capability 9.0, as far as `runtime/cuda.py` uses it."""

    CUresult = CUresult
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
                                         CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
                                         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
                                         CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self) -> None:
        super().__init__()
        self.modules: dict[int, Any] = {}
        self.counts: dict[int, int] = {}
        """by function: how many arguments it takes"""
        self.graphs: dict[int, list[Any]] = {}
        self.peers: set[tuple[int, int]] = set()
        self.launches: list[tuple[int, ...]] = []
        self.graph_launches = 0
        self.status = CUresult(0)
        self.free_bytes = 1 << 30
        self.large_shared: dict[int, int] = {}

    def found_wrong(self) -> tuple[CUresult]:
        """What kernels did wrong since this was asked last."""
        status, self.status = self.status, CUresult(0)
        return status,

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return CUresult(0), 2

    def cuDeviceGet(self, number: int) -> tuple[int, int]:
        return CUresult(0), number

    def cuDeviceGetName(self, length: int, device: int) -> tuple[int, bytes]:
        return CUresult(0), b"Imagined".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, which: int, device: int) -> tuple[int, int]:
        return CUresult(0), {16: 132, 75: 9, 76: 0, 97: 227 << 10}[which]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        return CUresult(0), 100 + device

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.current = context
        return CUresult(0),

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        assert flags == 1
        return CUresult(0), self.new_stream()

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        self.run(stream)
        return self.found_wrong()

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        self.let_wait(stream, event)
        return CUresult(0),

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        return CUresult(0), self.new_event()

    def cuEventDestroy(self, event: int) -> tuple[int]:
        del self.events[event]
        return CUresult(0),

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.record(event, stream)
        return CUresult(0),

    def cuEventQuery(self, event: int) -> tuple[int]:
        return CUresult(0) if self.is_past(event) else CUresult.CUDA_ERROR_NOT_READY,

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        self.await_event(event)
        return self.found_wrong()

    def cuEventElapsedTime(self, first: int, last: int) -> tuple[int, float]:
        return CUresult(0), self.milliseconds(first, last)

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return CUresult(0), b"words of the driver"

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if size > self.free_bytes:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        return CUresult(0), self.memory.obtain(size)

    def cuMemFree(self, address: int) -> tuple[int]:
        self.memory.release(address)
        return CUresult(0),

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[int, int]:
        return CUresult(0), self.pinned.obtain(size)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        self.give_copy(target, source, size, stream, self.memory, self.pinned)
        return CUresult(0),

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        self.give_copy(target, source, size, stream, self.pinned, self.memory)
        return CUresult(0),

    def cuDeviceCanAccessPeer(self, device: int, other: int) -> tuple[int, int]:
        return CUresult(0), 1

    def cuCtxEnablePeerAccess(self, context: int, flags: int) -> tuple[int]:
        assert flags == 0
        known = (self.current, context) in self.peers
        self.peers.add((self.current, context))
        return CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED if known else CUresult(0),

    def cuMemcpyPeerAsync(self, target: int, to: int, source: int, out_of: int, size: int, stream: int
                          ) -> tuple[int]:
        assert to == out_of or (to, out_of) in self.peers
        self.give_copy(target, source, size, stream, self.memory, self.memory)
        return CUresult(0),

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        number = next(self.numbers)
        self.modules[number] = emulated("CUDA", image.decode())
        signature = re.search(r"__global__ void [^(]*?(?:__launch_bounds__\([^)]*\) )?\w+\(([^)]*)\)",
                              image.decode())
        assert signature is not None
        self.counts[number] = len(signature[1].split(",")) if signature[1].strip() else 0
        return CUresult(0), number

    def cuModuleUnload(self, module: int) -> tuple[int]:
        del self.modules[module]
        return CUresult(0),

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, int]:
        function = self.modules[module].address("emulated")
        self.counts[function] = self.counts[module]
        return CUresult(0), function

    def arguments_of(self, function: int, pointers: int) -> Any:
        """A copy of a kernel's arguments, as the driver makes one when it is called."""
        count = max(self.counts[function], 1)
        addresses = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(pointers))
        values = [ctypes.c_int64.from_address(int(a)).value for a in addresses[:self.counts[function]]]
        return np.array(values, np.int64)

    def launch(self, function: int, sizes: tuple[int, ...], values: Any) -> None:
        self.launches.append(sizes)
        if not launch(function, sizes, values):
            self.status = CUresult.CUDA_ERROR_LAUNCH_FAILED

    def cuFuncSetAttribute(self, function: int, which: int, value: int) -> tuple[int]:
        assert which == 8 and 48 << 10 < value <= 227 << 10
        self.large_shared[function] = value
        return CUresult(0),

    def cuLaunchKernel(self, function: int, *given: Any) -> tuple[int]:
        x, y, z, t, u, v, shared, stream, pointers, extra = given
        assert shared == self.large_shared.get(function, 0) and extra == 0 and t * u * v <= 1024
        values = self.arguments_of(function, pointers)
        self.streams[stream].append(lambda: self.launch(function, (x, y, z, t, u, v), values))
        return CUresult(0),

    def cuGraphCreate(self, flags: int) -> tuple[int, int]:
        number = next(self.numbers)
        self.graphs[number] = []
        return CUresult(0), number

    def node(self, given: Any) -> tuple[Any, ...]:
        sizes = (given.gridDimX, given.gridDimY, given.gridDimZ, given.blockDimX, given.blockDimY,
                 given.blockDimZ)
        assert given.sharedMemBytes == self.large_shared.get(given.func, 0)
        return given.func, sizes, self.arguments_of(given.func, given.kernelParams)

    def cuGraphAddKernelNode(self, graph: int, before: list[int], count: int, given: Any) -> tuple[int, int]:
        nodes = self.graphs[graph]
        assert len(before) == count and before == ([len(nodes) - 1] if nodes else []), "after each other"
        nodes.append(self.node(given))
        return CUresult(0), len(nodes) - 1

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[int, int]:
        number = next(self.numbers)
        self.graphs[number] = list(self.graphs[graph])
        return CUresult(0), number

    def cuGraphExecKernelNodeSetParams(self, executable: int, node: int, given: Any) -> tuple[int]:
        assert given.func == self.graphs[executable][node][0]
        self.graphs[executable][node] = self.node(given)
        return CUresult(0),

    def cuGraphLaunch(self, executable: int, stream: int) -> tuple[int]:
        self.graph_launches += 1
        for node in self.graphs[executable]:
            self.streams[stream].append(lambda node=node: self.launch(*node))
        return CUresult(0),

    def cuGraphDestroy(self, graph: int) -> tuple[int]:
        del self.graphs[graph]
        return CUresult(0),

    cuGraphExecDestroy = cuGraphDestroy


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[CUDADriver]:
    """A machine with a driver of CUDA, and a compiler that leaves kernels as they are."""
    fake = CUDADriver()
    monkeypatch.setattr(cuda, "driver", lambda: fake)
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: "NVRTC 12.9")
    monkeypatch.setattr(cuda, "compile_cuda", lambda source, architecture: source.encode())
    monkeypatch.setattr(streams, "STAGING_BYTES", 1000)
    register(monkeypatch, "IMAGINED", "tinygrad.runtime.cuda")
    yield fake
    let_go("IMAGINED")


@needs_compiler
def test_cuda_computes(driver: CUDADriver) -> None:
    compute("IMAGINED")
    assert driver.launches and driver.current == 100


@needs_compiler
def test_each_gpu_has_its_own_context(driver: CUDADriver) -> None:
    assert Tensor([1.0, 2.0], device="IMAGINED:1").sum().item() == 3
    assert driver.current == 101
    assert "sm_90" in Device["IMAGINED:1"].compiler and "Imagined" in Device["IMAGINED:1"].compiler


@needs_compiler
def test_the_time_of_a_kernel_is_until_it_has_run(driver: CUDADriver, capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver returns at once and runs a kernel later, here for 50 ms."""
    monkeypatch.setattr(driver, "launch", lambda *given: time.sleep(0.05))
    with Context(DEBUG=2):
        (Tensor([1.0, 2.0], device="IMAGINED") + 1).realize()
    line = next(line for line in capsys.readouterr().out.splitlines() if " us " in line)
    assert float(line.partition(" us ")[0].split()[-1]) >= 50_000


def test_a_block_that_shares_much_asks_for_it(driver: CUDADriver) -> None:
    source = """extern "C" __global__ void large(float *p) {
    LARGE_SHARED(65536)
    large_shared[65535] = 7;
    p[0] = large_shared[65535];
}"""
    device = Device["IMAGINED"]
    kernel = device.load_blocks("large", device.compile(source), Launch((1, 1, 1), (1, 1, 1), (0,), 65536))
    assert list(driver.large_shared.values()) == [65536]
    result = Tensor([0.0], device="IMAGINED").realize()
    kernel([result.uop.base.buffer.address], [], 1)
    assert result.item() == 7


@needs_compiler
def test_kernels_of_a_captured_function_are_one_graph(driver: CUDADriver) -> None:
    """Each call of it changes the arguments that differ; runs that the driver has not begun keep theirs."""
    replayed = capture("IMAGINED")
    assert driver.graph_launches == replayed
    gc.collect()
    assert not driver.graphs


@needs_compiler
def test_a_graph_has_the_parts_of_kernels_that_are_several(driver: CUDADriver) -> None:
    """Weights and their product with a matrix are one kernel of the schedule, and two of the GPU."""
    w = rng.normal(size=(10, 576)).astype(np.float32)
    matrix = Tensor(w, device="IMAGINED").realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        weights = x.softmax(1) * 2
        product = weights @ matrix
        Tensor.realize(weights, product)
        return weights, product

    for _ in range(5):
        x = rng.normal(size=(8, 10)).astype(np.float32)
        expected = 2 * np.exp(x) / np.exp(x).sum(1, keepdims=True)
        weights, product = step(Tensor(x, device="IMAGINED").realize())
        np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-4)
        np.testing.assert_allclose(product.numpy(), expected @ w, rtol=1e-3, atol=1e-3)
    assert driver.graph_launches == 4


@needs_compiler
def test_a_graph_between_copies_and_kernels_of_the_host(driver: CUDADriver) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        t = (x * 2).to("IMAGINED")
        return ((t.sum() * t).contiguous().sum() + t).realize().to("CPU").realize()

    given = [rng.normal(size=50).astype(np.float32) for _ in range(5)]
    found = [step(Tensor(a)) for a in given]
    assert driver.graph_launches == 4
    for a, out in zip(given, found, strict=True):
        np.testing.assert_allclose(out.numpy(), (2 * a).sum() ** 2 + 2 * a, rtol=1e-3, atol=1e-3)


@needs_compiler
def test_kernels_wait_for_copies_and_copies_for_kernels(driver: CUDADriver) -> None:
    """Two streams, each of which does nothing before it must."""
    a, b = rng.normal(size=(2, 5000)).astype(np.float32)
    host = Tensor(a).realize()
    t = host.to("IMAGINED").realize()
    y = (t * 2).realize()
    t.assign(Tensor(b).to("IMAGINED")).realize()
    z = (y + t).realize()
    other = y.to("IMAGINED:1").realize()
    y.assign(y * 0).realize()
    np.testing.assert_array_equal(other.numpy(), a * 2)
    np.testing.assert_array_equal(z.numpy(), a * 2 + b)
    assert not y.numpy().any()
    assert len([s for s in driver.streams if s]) >= 4


@needs_compiler
def test_gpus_copy_to_each_other_without_the_host(driver: CUDADriver, monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    a = rng.normal(size=3000).astype(np.float32)
    t = (Tensor(a, device="IMAGINED") + 1).realize()
    with monkeypatch.context() as patch:
        patch.setattr(driver, "cuMemcpyDtoHAsync", None)
        u = (t.to("IMAGINED:1") * 2).realize()
    np.testing.assert_array_equal(u.numpy(), (a + 1) * 2)
    assert driver.peers == {(101, 100)}


@needs_compiler
def test_starting_kernels_waits_for_nothing(driver: CUDADriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.ones((40, 40), np.float32), device="IMAGINED").realize()
    for _ in range(3):
        y = (x @ x).realize()
        x = (y * 0.01 + Tensor(np.ones(40, np.float32), device="IMAGINED")).realize()
    assert not driver.launches
    marked = len(driver.events)
    for _ in range(20):
        (x @ x).sum().realize()
    assert len(driver.events) <= marked + 20, "an event for each freed result, none for each kernel"
    x.numpy()
    assert len(driver.launches) >= 6


@needs_compiler
def test_what_a_kernel_does_wrong_is_an_error_where_its_result_is_read(driver: CUDADriver) -> None:
    x = Tensor([1.0, 2.0], device="IMAGINED").realize()

    def launch(*given: Any) -> None:
        driver.status = CUresult.CUDA_ERROR_LAUNCH_FAILED

    driver.launch = launch  # type: ignore[method-assign]  # what this test is about
    y = (x + 1).realize()
    with pytest.raises(RuntimeError, match=r"failed: CUDA_ERROR_LAUNCH_FAILED .*words of the driver"):
        y.numpy()
    del x, y
    gc.collect()


def test_a_gpu_that_is_not_there(driver: CUDADriver) -> None:
    with pytest.raises(RuntimeError, match="no GPU number 7: the driver finds 2"):
        Device["IMAGINED:7"]


@needs_compiler
def test_code_goes_when_its_kernel_does(driver: CUDADriver) -> None:
    device = Device["IMAGINED"]
    source = 'extern "C" __global__ void k(float *p) { p[threadIdx.x] = 1; }'
    program = device.load_blocks("k", device.compile(source), Launch((1, 1, 1), (4, 1, 1), (0,), 0))
    assert len(driver.modules) == 1
    del program
    assert not driver.modules


@needs_compiler
def test_arguments_are_the_slots_that_the_kernel_has_then_its_variables(driver: CUDADriver) -> None:
    device = Device["IMAGINED"]
    source = ('extern "C" __global__ void k(long long *p, long long *q, const long long n, '
              'const long long m) { p[threadIdx.x] = q[threadIdx.x] * n + m; }')
    program = device.load_blocks("k", device.compile(source), Launch((1, 1, 1), (4, 1, 1), (0, 2), 0))
    buffers = [Buffer("IMAGINED", 32, dtypes.uint8) for _ in range(3)]
    memory = [buffer.memory for buffer in buffers]
    device.allocator.copyin(memory[2], np.arange(4).data)
    program([device.allocator.address(m) for m in memory], [10, -(2**62)], 1)
    found = np.zeros(4, np.int64)
    device.allocator.copyout(memoryview(found).cast("B"), memory[0])
    np.testing.assert_array_equal(found, np.arange(4) * 10 - 2**62)


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2000, 5003])
def test_copies_of_any_size_go_through_pinned_memory(driver: CUDADriver, size: int) -> None:
    copy_there_and_back("IMAGINED", size)


def test_a_gpu_without_memory_says_how_much_is_used(driver: CUDADriver) -> None:
    driver.free_bytes = 1 << 20
    with pytest.raises(MemoryError, match=r"IMAGINED has no .* bytes left: .* are used"):
        Tensor.ones(1 << 20, device="IMAGINED").contiguous().realize()


@needs_compiler
def test_what_the_driver_says_is_shown(driver: CUDADriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: (CUresult.CUDA_ERROR_LAUNCH_FAILED,))
    with pytest.raises(RuntimeError, match=r"cuStreamSynchronize failed: .*words of the driver"):
        Device["IMAGINED"].synchronize()


def test_ptx_that_the_driver_does_not_compile_is_shown(driver: CUDADriver, monkeypatch: pytest.MonkeyPatch
                                                       ) -> None:
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda image: (CUresult.CUDA_ERROR_LAUNCH_FAILED,))
    device = cuda.open_device("CUDA:PTX")
    said = r"(?s)the driver does not accept this kernel: cuModuleLoadData failed: .*\n    2  wrong;"
    with pytest.raises(RuntimeError, match=said):
        device.load_blocks("k", b".version 7.8\nwrong;\n\0", Launch((1, 1, 1), (1, 1, 1), (0,), 0))


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(flags: int) -> None:
        raise RuntimeError("libcuda.so.1 is not there")

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(cuInit=missing))
    cuda.driver.cache_clear()
    with pytest.raises(OSError, match=r"no NVIDIA driver.*CUDA:EMULATED"):
        cuda.open_device("CUDA")


def test_without_the_bindings_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    cuda.driver.cache_clear()
    with pytest.raises(ImportError, match=r'cuda-bindings: pip install "tinygrad\[cuda\]"'):
        cuda.open_device("CUDA")
