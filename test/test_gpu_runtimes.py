"""The runtimes of CUDA, HIP and Metal where there is no GPU: against drivers that keep memory on the host
and run kernels on the emulator. What the drivers are given, addresses, sizes, arguments, streams, is what
counts here."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import itertools
import re
import shutil
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit
from tinygrad.helpers import Context
from tinygrad.renderer import Launch
from tinygrad.runtime import amd, cuda, emulator, metal, streams

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, emulator.COMPILERS)),
                                    reason="no C++ compiler on the path")
rng = np.random.default_rng(3)


def emulated(kind: str, source: str) -> Any:
    """A kernel's code for the emulator."""
    return Device[f"{kind}:EMULATED"].compile(source)


class HostMemory:
    """Blocks of host memory, as a driver gives them out. Touching anything else is an error."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}

    def obtain(self, size: int) -> int:
        block = (ctypes.c_uint8 * (size + 64))()
        address = -(-ctypes.addressof(block) // 64) * 64
        self.blocks[address] = (block, size)
        return address

    def check(self, address: int, size: int) -> None:
        assert any(start <= address and address + size <= start + length
                   for start, (_, length) in self.blocks.items()), "memory that was not given out"

    def release(self, address: int) -> None:
        del self.blocks[address]


# --- CUDA -----------------------------------------------------------------------------------------------


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
    CUDA_ERROR_LAUNCH_FAILED = 719


class Mark:
    """What an event stands for since it was recorded: a place in a stream."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.seconds: float | None = None
        """when the stream got here"""


class CUDADriver:
    """`cuda.bindings.driver` for two GPUs of compute capability 9.0, as far as `runtime/cuda.py` uses it.

    It is as late as a driver may be: a stream does nothing before somebody waits for it, or for a stream or
    an event that waits for it. So what is asked for in a wrong order comes out wrong."""

    CUresult = CUresult
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
                                         CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
                                         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.pinned = HostMemory()
        self.numbers = itertools.count(1000)
        self.modules: dict[int, Any] = {}
        self.counts: dict[int, int] = {}
        """by function: how many arguments it takes"""
        self.streams: dict[int, deque[Callable[[], None] | Mark]] = {}
        """what each has not done yet; of a mark of another stream: waiting for it"""
        self.events: dict[int, Mark | None] = {}
        self.graphs: dict[int, list[Any]] = {}
        self.peers: set[tuple[int, int]] = set()
        self.launches: list[tuple[int, ...]] = []
        self.graph_launches = 0
        self.status = CUresult(0)
        self.free_bytes = 1 << 30
        self.large_shared: dict[int, int] = {}

    def run(self, stream: int, until: Mark | None = None) -> tuple[CUresult]:
        """Do what a stream has been asked for, as far as a mark, and before that what it waits for."""
        todo = self.streams[stream]
        while todo and (until is None or until.seconds is None):
            step = todo[0]
            if isinstance(step, Mark):
                self.run(step.stream, step)
                todo.popleft()
            else:
                todo.popleft()
                step()
        status, self.status = self.status, CUresult(0)
        return status,

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return CUresult(0), 2

    def cuDeviceGet(self, number: int) -> tuple[int, int]:
        return CUresult(0), number

    def cuDeviceGetName(self, length: int, device: int) -> tuple[int, bytes]:
        return CUresult(0), b"Imagined".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, which: int, device: int) -> tuple[int, int]:
        return CUresult(0), {75: 9, 76: 0, 97: 227 << 10}[which]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        return CUresult(0), 100 + device

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.current = context
        return CUresult(0),

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        assert flags == 1
        number = next(self.numbers)
        self.streams[number] = deque()
        return CUresult(0), number

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        return self.run(stream)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        mark = self.events[event]
        if mark is not None and mark.seconds is None and mark.stream != stream:
            self.streams[stream].append(mark)
        return CUresult(0),

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        number = next(self.numbers)
        self.events[number] = None
        return CUresult(0), number

    def cuEventDestroy(self, event: int) -> tuple[int]:
        del self.events[event]
        return CUresult(0),

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        mark = self.events[event] = Mark(stream)
        self.streams[stream].append(lambda: setattr(mark, "seconds", time.perf_counter()))
        return CUresult(0),

    def cuEventQuery(self, event: int) -> tuple[int]:
        mark = self.events[event]
        waiting = mark is not None and mark.seconds is None
        return CUresult.CUDA_ERROR_NOT_READY if waiting else CUresult(0),

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        mark = self.events[event]
        return (CUresult(0),) if mark is None else self.run(mark.stream, mark)

    def cuEventElapsedTime(self, first: int, last: int) -> tuple[int, float]:
        marks = self.events[first], self.events[last]
        seconds = [m.seconds for m in marks if m is not None and m.seconds is not None]
        assert len(seconds) == 2, "an event that is not past has no time"
        return CUresult(0), (seconds[1] - seconds[0]) * 1e3

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
        def copy() -> None:
            self.memory.check(target, size)
            self.pinned.check(source, size)
            ctypes.memmove(target, source, size)

        self.streams[stream].append(copy)
        return CUresult(0),

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        def copy() -> None:
            self.memory.check(source, size)
            self.pinned.check(target, size)
            ctypes.memmove(target, source, size)

        self.streams[stream].append(copy)
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

        def copy() -> None:
            self.memory.check(source, size)
            self.memory.check(target, size)
            ctypes.memmove(target, source, size)

        self.streams[stream].append(copy)
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
        pointers = values.ctypes.data + 8 * np.arange(max(len(values), 1))
        blocks, threads = (ctypes.c_uint * 3)(*sizes[:3]), (ctypes.c_uint * 3)(*sizes[3:])
        if emulator.launch_function()(function, pointers.ctypes.data, blocks, threads):
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
    from tinygrad.codegen import compile as compiling
    compiling._kernels.clear()  # kernels and memory go while there is a driver
    gc.collect()


def register(monkeypatch: pytest.MonkeyPatch, kind: str, module: str) -> None:
    """A kind of device that no other test has opened."""
    monkeypatch.setitem(Device.FILES, kind, module)
    monkeypatch.setattr(Device, "opened", dict(Device.opened))
    from tinygrad.codegen import compile as compiling
    monkeypatch.setattr(compiling, "_kernels", type(compiling._kernels)())


def compute(device: str) -> None:
    """A little of everything, against NumPy."""
    a, b = rng.normal(size=(30, 50)).astype(np.float32), rng.normal(size=(50, 20)).astype(np.float32)
    t, u = Tensor(a, device=device), Tensor(b, device=device)
    np.testing.assert_array_equal(t.realize().numpy(), a)
    np.testing.assert_allclose((t @ u).numpy(), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((t.sum(1) + 1).numpy(), a.sum(1) + 1, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(t.realize()[3:, 7:].contiguous().numpy(), a[3:, 7:])
    np.testing.assert_array_equal(t.realize().to("CPU").to(device).numpy(), a)
    step = TinyJit(lambda x: (x * 2).sum(0).realize())
    for _ in range(4):
        x = rng.normal(size=(7, 5)).astype(np.float32)
        found = step(Tensor(x, device=device).realize()).numpy()
        np.testing.assert_allclose(found, (x * 2).sum(0), rtol=1e-5, atol=1e-5)
    Tensor.manual_seed(1)
    numbers = Tensor.rand(9, device=device).numpy()
    Tensor.manual_seed(1)
    np.testing.assert_array_equal(numbers, Tensor.rand(9, device="CPU").numpy())


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
    step = TinyJit(lambda x, y: ((x * 2).contiguous().sum(0) + y).realize())
    given = [(rng.normal(size=(7, 5)).astype(np.float32), np.float32(number)) for number in range(6)]
    found = []
    for x, y in given:
        inputs = Tensor(x, device="IMAGINED").realize(), Tensor([y] * 5, device="IMAGINED").realize()
        found.append(step(*inputs))
    assert driver.graph_launches == 5
    for (x, y), out in zip(given, found, strict=True):
        np.testing.assert_allclose(out.numpy(), (x * 2).sum(0) + y, rtol=1e-5, atol=1e-5)
    del step, found, out
    gc.collect()
    assert not driver.graphs


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
    memory = [device.allocator.allocate(32) for _ in range(3)]
    device.allocator.copyin(memory[2], np.arange(4).data)
    program([device.allocator.address(m) for m in memory], [10, -(2**62)], 1)
    found = np.zeros(4, np.int64)
    device.allocator.copyout(memoryview(found).cast("B"), memory[0])
    np.testing.assert_array_equal(found, np.arange(4) * 10 - 2**62)


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2000, 5003])
def test_copies_of_any_size_go_through_pinned_memory(driver: CUDADriver, size: int) -> None:
    allocator = Device["IMAGINED"].allocator
    memory = allocator.allocate(size + 8)
    given = rng.integers(0, 256, size).astype(np.uint8)
    allocator.copyin(allocator.part(memory, 8, size), given.data)
    found = np.zeros(size, np.uint8)
    allocator.copyout(found.data, memory, 8)
    np.testing.assert_array_equal(found, given)


def test_a_gpu_without_memory_says_how_much_is_used(driver: CUDADriver) -> None:
    driver.free_bytes = 1 << 20
    with pytest.raises(MemoryError, match=r"IMAGINED has no .* bytes left: .* are used"):
        Tensor.ones(1 << 20, device="IMAGINED").contiguous().realize()


@needs_compiler
def test_what_the_driver_says_is_shown(driver: CUDADriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: (CUresult.CUDA_ERROR_LAUNCH_FAILED,))
    with pytest.raises(RuntimeError, match=r"cuStreamSynchronize failed: .*words of the driver"):
        Device["IMAGINED"].synchronize()


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


# --- HIP ------------------------------------------------------------------------------------------------


class HIPLibrary:
    """libamdhip64 for one gfx942, as far as `runtime/amd.py` uses it."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.modules: dict[int, Any] = {}
        self.launches: list[tuple[int, ...]] = []

    def call(self, function: str, *arguments: Any) -> None:
        given = [a.value if isinstance(a, ctypes.c_void_p) else a for a in arguments]
        getattr(self, function)(*given)

    def hipGetDeviceCount(self, count: Any) -> None:
        count._obj.value = 1

    def hipSetDevice(self, number: int) -> None:
        assert number == 0

    def hipDeviceGetPCIBusId(self, text: Any, length: int, number: int) -> None:
        text.value = b"0000:c1:00.0"

    def hipStreamCreate(self, stream: Any) -> None:
        stream._obj.value = 77

    def hipStreamSynchronize(self, stream: int) -> None:
        assert stream == 77

    def hipMalloc(self, memory: Any, size: int) -> None:
        memory._obj.value = self.memory.obtain(size)

    def hipFree(self, memory: int) -> None:
        self.memory.release(memory)

    def hipMemcpyWithStream(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        assert stream == 77
        self.memory.check(target if kind == amd.TO_DEVICE else source, size)
        ctypes.memmove(target, source, size)

    def hipModuleLoadData(self, module: Any, image: bytes) -> None:
        module._obj.value = 500 + len(self.modules)
        self.modules[module._obj.value] = emulated("AMD", image.decode())

    def hipModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:
        function._obj.value = self.modules[module].address("emulated")

    def hipModuleUnload(self, module: int) -> None:
        assert module in self.modules

    def hipModuleLaunchKernel(self, function: int, *given: Any) -> None:
        x, y, z, t, u, v, shared, stream, arguments, extra = given
        assert stream == 77 and shared == 0 and extra is None
        self.launches.append((x, y, z, t, u, v))
        assert not emulator.launch_function()(function, arguments, (ctypes.c_uint * 3)(x, y, z),
                                              (ctypes.c_uint * 3)(t, u, v))


def topology(folder: Path) -> Path:
    """What Linux tells of a CPU and two GPUs."""
    for number, lines in enumerate(("cpu_cores_count 64\ngfx_target_version 0\nlocation_id 0",
                                    "gfx_target_version 110000\nlocation_id 17152\ndomain 0",
                                    "name gpu\ngfx_target_version 90402\nlocation_id 49408\ndomain 0")):
        (folder / str(number)).mkdir()
        (folder / str(number) / "properties").write_text(lines + "\n")
    return folder


@needs_compiler
def test_hip_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake, nodes = HIPLibrary(), topology(tmp_path)
    find = amd.architecture_at
    monkeypatch.setattr(amd, "hip", lambda: fake)
    monkeypatch.setattr(amd, "hiprtc_version", lambda: "hiprtc 9.0")
    monkeypatch.setattr(amd, "architecture_at", lambda bus: find(bus, nodes))
    monkeypatch.setattr(amd, "compile_hip", lambda source, architecture: source.encode())
    register(monkeypatch, "IMAGINED", "tinygrad.runtime.amd")
    compute("IMAGINED")
    assert fake.launches and Device["IMAGINED"].compiler == "hiprtc 9.0 for gfx942"
    with pytest.raises(RuntimeError, match="no GPU number 1: HIP finds 1"):
        Device["IMAGINED:1"]


def test_the_architecture_of_an_amd_gpu_is_what_linux_says(tmp_path: Path) -> None:
    nodes = topology(tmp_path)
    assert amd.architecture_at("0000:c1:00.0", nodes) == "gfx942"
    assert amd.architecture_at("0000:43:00.0", nodes) == "gfx1100"
    assert amd.architecture_name(90010) == "gfx90a"
    with pytest.raises(RuntimeError, match="Linux does not say which architecture the GPU at 0000:01"):
        amd.architecture_at("0000:01:00.0", nodes)


@pytest.mark.skipif(Path("/opt/rocm").exists(), reason="ROCm is installed")
def test_without_rocm_the_error_says_what_to_install() -> None:
    with pytest.raises(OSError, match=r"libamdhip64.so is not on this machine: install ROCm .*AMD:EMULATED"):
        amd.open_device("AMD")


# --- Metal ----------------------------------------------------------------------------------------------


class MetalObjects:
    """Objects that understand the messages which `runtime/metal.py` sends, at numbers that stand for
    addresses."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.objects: dict[int, Any] = {1: "device"}
        self.dispatched = 0

    def new(self, content: Any) -> int:
        self.objects[len(self.objects) + 1] = content
        return len(self.objects)

    def class_named(self, name: str) -> int:
        return self.new(name)

    def pool(self) -> Any:
        return contextlib.nullcontext()

    def send(self, target: int, message: str, *arguments: Any, returns: Any = None) -> Any:
        name = message.replace(":", "_").rstrip("_")
        return getattr(self, name)(target, *arguments)

    def same(self, target: int, *arguments: Any) -> int:
        return target

    alloc = init = retain = same

    def release(self, target: int) -> None:
        assert target in self.objects

    def setFastMathEnabled(self, options: int, value: bool) -> None:
        assert self.objects[options] == "MTLCompileOptions" and value is False

    def stringWithUTF8String(self, target: int, text: ctypes.c_char_p) -> int:
        return self.new((text.value or b"").decode())

    def UTF8String(self, target: int) -> bytes:
        return str(self.objects[target]).encode()

    localizedDescription = name = same

    def newCommandQueue(self, device: int) -> int:
        return self.new("queue")

    def newBufferWithLength_options(self, device: int, size: int, options: int) -> int:
        return self.new(self.memory.obtain(size))

    def contents(self, buffer: int) -> int:
        return int(self.objects[buffer])

    def newLibraryWithSource_options_error(self, device: int, source: int, options: int, error: Any) -> int:
        try:
            return self.new(emulated("METAL", self.objects[source]))
        except RuntimeError as wrong:
            error._obj.value = self.new(str(wrong).partition("\n    1")[0])
            return 0

    def newFunctionWithName(self, library: int, name: int) -> int:
        return library

    def newComputePipelineStateWithFunction_error(self, device: int, function: int, error: Any) -> int:
        return function

    def commandBuffer(self, queue: int) -> int:
        return self.new({})

    computeCommandEncoder = same

    def setComputePipelineState(self, encoder: int, pipeline: int) -> None:
        self.objects[encoder]["code"] = self.objects[pipeline]

    def setBuffer_offset_atIndex(self, encoder: int, buffer: int, offset: int, position: int) -> None:
        self.objects[encoder][position] = self.objects[buffer] + offset

    def setBytes_length_atIndex(self, encoder: int, data: ctypes.c_char_p, size: int, position: int) -> None:
        self.objects[encoder][position] = struct.unpack("q", ctypes.string_at(data, size))[0]

    def dispatchThreadgroups_threadsPerThreadgroup(self, encoder: int, blocks: metal.Size,
                                                   threads: metal.Size) -> None:
        self.objects[encoder]["sizes"] = [(ctypes.c_uint * 3)(s.width, s.height, s.depth)
                                          for s in (blocks, threads)]

    def endEncoding(self, encoder: int) -> None:
        self.objects[encoder]["ended"] = True

    def commit(self, commands: int) -> None:
        given = self.objects[commands]
        assert given["ended"]
        values = np.array([given[i] for i in range(len(given) - 3)], np.int64)
        pointers = values.ctypes.data + 8 * np.arange(max(len(values), 1))
        code = given["code"].address("emulated")
        assert not emulator.launch_function()(code, pointers.ctypes.data, *given["sizes"])
        self.dispatched += 1

    def waitUntilCompleted(self, commands: int) -> None:
        assert self.objects[commands]["ended"]


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MetalObjects:
    """A Mac."""
    fake = MetalObjects()
    monkeypatch.setattr(metal, "objective_c", lambda: fake)
    monkeypatch.setattr(metal, "open_device", lambda name: metal.MetalDevice(name, metal.Queue(1)))
    register(monkeypatch, "IMAGINED", "tinygrad.runtime.metal")
    return fake


@needs_compiler
def test_metal_computes(objects: MetalObjects) -> None:
    compute("IMAGINED")
    assert objects.dispatched
    assert Device["IMAGINED"].compiler == "Metal for device"


@needs_compiler
def test_what_metal_refuses_is_shown_with_the_reason(objects: MetalObjects) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Metal does not accept .*wrong.*    1  kernel void k"):
        Device["IMAGINED"].compile("kernel void k(device float *p) { p[0] = wrong; }")


def test_messages_pass_their_arguments_as_c_does() -> None:
    """Objects and numbers as 64 bits, structures by value, an error's place by its address."""
    received = []

    @ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, metal.Size, ctypes.c_bool,
                      ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
    def receiver(target: int, selector: int, size: metal.Size, flag: bool, text: bytes, error: Any) -> int:
        received.append((target, selector, size.width, size.height, size.depth, flag, text))
        error[0] = 2**40
        return 2**50

    runtime = object.__new__(metal.ObjectiveC)
    runtime.runtime = SimpleNamespace(sel_registerName=lambda name: {b"a:b:c:d:": 9}[name])
    runtime.address = ctypes.cast(receiver, ctypes.c_void_p).value or 0
    error = ctypes.c_void_p()
    found = runtime.send(2**45, "a:b:c:d:", metal.Size(2**33, 5, 6), True, ctypes.c_char_p(b"text"),
                         ctypes.byref(error))
    assert found == 2**50 and error.value == 2**40
    assert received == [(2**45, 9, 2**33, 5, 6, True, b"text")]


def test_an_address_outside_of_all_buffers_is_an_error() -> None:
    memory = metal.Memory()
    memory.add(1000, 5, 100)
    memory.add(500, 6, 10)
    assert memory.find(1000) == (5, 0) and memory.find(1099) == (5, 99) and memory.find(509) == (6, 9)
    for address in (499, 510, 1100):
        with pytest.raises(RuntimeError, match="no Metal buffer"):
            memory.find(address)
    assert memory.remove(1000) == 5
    with pytest.raises(RuntimeError, match="no Metal buffer"):
        memory.find(1000)


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_metal_needs_a_mac() -> None:
    with pytest.raises(OSError, match=r"METAL needs macOS.*METAL:EMULATED"):
        metal.open_device("METAL")


