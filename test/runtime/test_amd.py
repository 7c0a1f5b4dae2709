"""The runtime of HIP where there is no GPU: against a library that keeps memory on the host and runs kernels
on the emulator. What the library is given, addresses, sizes, arguments, streams, is what counts here."""
from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from pathlib import Path
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

from tinygrad import Device, Tensor
from tinygrad.renderer.machine import Machine
from tinygrad.runtime import amd, streams


class HIPLibrary(LateStreams):
    """libamdhip64 for two GPUs, a gfx942 and a gfx1100, as far as `runtime/amd.py` uses it. Functions whose
    status says more than whether they worked return it."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: dict[int, Any] = {}
        self.counts: dict[int, int] = {}
        """by function: how many arguments it takes"""
        self.graphs: dict[int, list[Any]] = {}
        self.launches: list[tuple[int, ...]] = []
        self.graph_launches = 0
        self.copies: list[str] = []
        """the functions by which GPUs copied to themselves and each other"""
        self.peers: set[tuple[int, int]] = set()
        self.free_bytes = 1 << 30
        self.current = -1

    def status(self, function: str, *arguments: Any) -> int:
        given = [a.value if isinstance(a, ctypes.c_void_p) else a for a in arguments]
        return getattr(self, function)(*given) or amd.SUCCESS

    def words(self, status: int) -> bytes:
        return f"words for {status}".encode()

    call = amd.Library.call

    def hipGetDeviceCount(self, count: Any) -> None:
        count._obj.value = 2

    def hipSetDevice(self, number: int) -> None:
        assert number in (0, 1)
        self.current = number

    def hipDeviceGetPCIBusId(self, text: Any, length: int, number: int) -> None:
        text.value = (b"0000:c1:00.0", b"0000:43:00.0")[number]

    def hipStreamCreateWithFlags(self, stream: Any, flags: int) -> None:
        assert flags == 1
        stream._obj.value = self.new_stream()

    def hipStreamSynchronize(self, stream: int) -> None:
        self.run(stream)

    def hipStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert flags == 0
        self.let_wait(stream, event)

    def hipEventCreateWithFlags(self, event: Any, flags: int) -> None:
        assert flags in (0, 2)
        event._obj.value = self.new_event()

    def hipEventDestroy(self, event: int) -> None:
        del self.events[event]

    def hipEventRecord(self, event: int, stream: int) -> None:
        self.record(event, stream)

    def hipEventQuery(self, event: int) -> int:
        return amd.SUCCESS if self.is_past(event) else 600

    def hipEventSynchronize(self, event: int) -> None:
        self.await_event(event)

    def hipEventElapsedTime(self, milliseconds: Any, first: int, last: int) -> None:
        milliseconds._obj.value = self.milliseconds(first, last)

    def hipMalloc(self, memory: Any, size: int) -> int:
        if size > self.free_bytes:
            return 2
        memory._obj.value = self.memory.obtain(size)
        return amd.SUCCESS

    def hipFree(self, memory: int) -> None:
        self.memory.release(memory)

    def hipHostMalloc(self, memory: Any, size: int, flags: int) -> None:
        assert flags == 0
        memory._obj.value = self.pinned.obtain(size)

    def hipMemcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        into, out_of = {1: (self.memory, self.pinned), 2: (self.pinned, self.memory),
                        3: (self.memory, self.memory)}[kind]
        if kind == 3:
            self.copies.append("hipMemcpyAsync")
        self.give_copy(target, source, size, stream, into, out_of)

    def hipMemcpyPeerAsync(self, target: int, to: int, source: int, out_of: int, size: int, stream: int
                           ) -> None:
        assert (to, out_of) in self.peers
        self.copies.append("hipMemcpyPeerAsync")
        self.give_copy(target, source, size, stream, self.memory, self.memory)

    def hipDeviceCanAccessPeer(self, can: Any, device: int, other: int) -> None:
        can._obj.value = device != other

    def hipDeviceEnablePeerAccess(self, other: int, flags: int) -> int:
        assert flags == 0
        known = (self.current, other) in self.peers
        self.peers.add((self.current, other))
        return 704 if known else amd.SUCCESS

    def hipModuleLoadData(self, module: Any, image: bytes) -> None:
        signature = re.search(r"__global__ void [^(]*?(?:__launch_bounds__\([^)]*\) )?\w+\(([^)]*)\)",
                              image.decode())
        assert signature is not None
        module._obj.value = next(self.numbers)
        self.modules[module._obj.value] = emulated("AMD", image.decode())
        self.counts[module._obj.value] = len(signature[1].split(",")) if signature[1].strip() else 0

    def hipModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:
        function._obj.value = self.modules[module].address("emulated")
        self.counts[function._obj.value] = self.counts[module]

    def hipModuleUnload(self, module: int) -> None:
        del self.modules[module]

    def hipModuleLaunchKernel(self, function: int, *given: Any) -> None:
        x, y, z, t, u, v, shared, stream, arguments, extra = given
        assert shared == 0 and extra is None
        self.give_kernel(function, (x, y, z, t, u, v), self.arguments_of(function, arguments), stream)

    def arguments_of(self, function: int, pointers: int) -> Any:
        """A copy of a kernel's arguments, as the library makes one when it is called."""
        addresses = (ctypes.c_int64 * max(self.counts[function], 1)).from_address(pointers)
        return np.array([ctypes.c_int64.from_address(a).value for a in addresses[:self.counts[function]]],
                        np.int64)

    def give_kernel(self, function: int, sizes: tuple[int, ...], values: Any, stream: int) -> None:
        def run() -> None:
            self.launches.append(sizes)
            assert launch(function, sizes, values)

        self.streams[stream].append(run)

    def hipGraphCreate(self, graph: Any, flags: int) -> None:
        assert flags == 0
        graph._obj.value = next(self.numbers)
        self.graphs[graph._obj.value] = []

    def node(self, given: Any) -> tuple[Any, ...]:
        """What hipKernelNodeParams says, read where its header puts it: x64 lines the pointers up on 8."""
        words = (ctypes.c_uint32 * 16).from_buffer(given._obj)
        threads, blocks = tuple(words[0:3]), tuple(words[8:11])
        extra, function = words[4] | words[5] << 32, words[6] | words[7] << 32
        assert extra == 0 and words[14] == 0
        return function, (*blocks, *threads), self.arguments_of(function, words[12] | words[13] << 32)

    def hipGraphAddKernelNode(self, node: Any, graph: int, before: Any, count: int, given: Any) -> None:
        nodes = self.graphs[graph]
        assert list(before) == ([len(nodes)] if nodes else []) and count == len(before), "after each other"
        nodes.append(self.node(given))
        node._obj.value = len(nodes)

    def hipGraphInstantiate(self, executable: Any, graph: int, error: Any, log: Any, length: int) -> None:
        assert error is None and log is None and length == 0
        executable._obj.value = next(self.numbers)
        self.graphs[executable._obj.value] = list(self.graphs[graph])

    def hipGraphExecKernelNodeSetParams(self, executable: int, node: int, given: Any) -> None:
        assert self.node(given)[0] == self.graphs[executable][node - 1][0]
        self.graphs[executable][node - 1] = self.node(given)

    def hipGraphLaunch(self, executable: int, stream: int) -> None:
        self.graph_launches += 1
        for node in self.graphs[executable]:
            self.give_kernel(*node, stream)

    def hipGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    hipGraphExecDestroy = hipGraphDestroy


def topology(folder: Path) -> Path:
    """What Linux tells of a CPU and two GPUs."""
    for number, lines in enumerate(("cpu_cores_count 64\ngfx_target_version 0\nlocation_id 0",
                                    "gfx_target_version 110000\nlocation_id 17152\ndomain 0",
                                    "name gpu\ngfx_target_version 90402\nsimd_count 1216\nsimd_per_cu 4\n"
                                    "location_id 49408\ndomain 0")):
        (folder / str(number)).mkdir()
        (folder / str(number) / "properties").write_text(lines + "\n")
    return folder


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HIPLibrary]:
    """A machine with the HIP runtime, and a compiler that leaves kernels as they are."""
    fake, nodes = HIPLibrary(), topology(tmp_path)
    find = amd.gpu_at
    monkeypatch.setattr(amd, "hip", lambda: fake)
    monkeypatch.setattr(amd, "hiprtc_version", lambda: "hiprtc 9.0")
    monkeypatch.setattr(amd, "gpu_at", lambda bus: find(bus, nodes))
    monkeypatch.setattr(amd, "compile_hip", lambda source, architecture: source.encode())
    monkeypatch.setattr(streams, "STAGING_BYTES", 1000)
    register(monkeypatch, "IMAGINED", "tinygrad.runtime.amd")
    yield fake
    let_go("IMAGINED")


@needs_compiler
def test_hip_computes(library: HIPLibrary) -> None:
    compute("IMAGINED")
    assert library.launches and Device["IMAGINED"].compiler == "hiprtc 9.0 for gfx942"
    assert Device["IMAGINED:1"].compiler == "hiprtc 9.0 for gfx1100"
    with pytest.raises(RuntimeError, match="no GPU number 2: HIP finds 2"):
        Device["IMAGINED:2"]


@needs_compiler
def test_kernels_wait_for_copies_and_copies_for_kernels(library: HIPLibrary) -> None:
    """Two streams, each of which does nothing before it must."""
    a, b = rng.normal(size=(2, 5000)).astype(np.float32)
    t = Tensor(a).realize().to("IMAGINED").realize()
    y = (t * 2).realize()
    t.assign(Tensor(b).to("IMAGINED")).realize()
    z = (y + t).realize()
    other = y.to("IMAGINED:1").realize()
    y.assign(y * 0).realize()
    assert not library.launches
    np.testing.assert_array_equal(other.numpy(), a * 2)
    np.testing.assert_array_equal(z.numpy(), a * 2 + b)
    assert not y.numpy().any()


@needs_compiler
def test_kernels_of_a_captured_function_are_one_graph(library: HIPLibrary) -> None:
    """Each call of it changes the arguments that differ; runs that the library has not begun keep theirs."""
    replayed = capture("IMAGINED")
    assert library.graph_launches == replayed
    gc.collect()
    assert not library.graphs


@needs_compiler
def test_gpus_copy_to_each_other_without_the_host(library: HIPLibrary) -> None:
    a = rng.normal(size=3000).astype(np.float32)
    t = (Tensor(a, device="IMAGINED") + 1).realize()
    u = (t.to("IMAGINED:1") * 2).realize()
    back = u.to("IMAGINED").to("IMAGINED:1").realize()
    np.testing.assert_array_equal(back.numpy(), (a + 1) * 2)
    assert library.copies == ["hipMemcpyPeerAsync"] * 3
    assert library.peers == {(0, 1), (1, 0)}


@needs_compiler
def test_memory_of_one_gpu_is_copied_on_it(library: HIPLibrary) -> None:
    target = Tensor([0.0, 0.0], device="IMAGINED").realize().uop.base.buffer
    source = Tensor([5.0, 6.0], device="IMAGINED").realize().uop.base.buffer
    queue = Device["IMAGINED"].queue
    point = queue.copy(target, source, 0)
    assert point is not None and not point.is_past
    np.testing.assert_array_equal(target.numpy(), [5, 6])
    assert library.copies == ["hipMemcpyAsync"]


@needs_compiler
def test_a_queue_takes_the_time_on_the_gpu(library: HIPLibrary) -> None:
    x = Tensor([1.0, 2.0], device="IMAGINED").realize()
    queue = Device["IMAGINED"].queue
    start = queue.timestamp()
    y = (x + 1).realize()
    end = queue.timestamp()
    assert not library.launches
    assert end.seconds > start.seconds and y.tolist() == [2, 3]


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 5003])
def test_copies_of_any_size_go_through_pinned_memory(library: HIPLibrary, size: int) -> None:
    copy_there_and_back("IMAGINED", size)


def test_a_gpu_without_memory_says_how_much_is_used(library: HIPLibrary) -> None:
    library.free_bytes = 1 << 20
    with pytest.raises(MemoryError, match=r"IMAGINED has no .* bytes left: .* are used"):
        Tensor.ones(1 << 20, device="IMAGINED").contiguous().realize()


def test_what_the_library_says_is_shown(library: HIPLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device["IMAGINED"]
    monkeypatch.setattr(library, "hipStreamSynchronize", lambda stream: 719)
    with pytest.raises(RuntimeError, match="hipStreamSynchronize failed: words for 719"):
        device.synchronize()


def test_the_architecture_of_an_amd_gpu_is_what_linux_says(tmp_path: Path) -> None:
    nodes = topology(tmp_path)
    assert amd.gpu_at("0000:c1:00.0", nodes) == ("gfx942", 304)
    assert amd.gpu_at("0000:43:00.0", nodes) == ("gfx1100", Machine.multiprocessors)
    assert amd.architecture_name(90010) == "gfx90a"
    with pytest.raises(RuntimeError, match="Linux does not say which architecture the GPU at 0000:01"):
        amd.gpu_at("0000:01:00.0", nodes)


@pytest.mark.skipif(Path("/opt/rocm").exists(), reason="ROCm is installed")
def test_without_rocm_the_error_says_what_to_install() -> None:
    with pytest.raises(OSError, match=r"libamdhip64.so is not on this machine: install ROCm .*AMD:EMULATED"):
        amd.open_device("AMD")


class HIPCompiler:
    """libhiprtc, which finds a mistake in whatever it is given."""

    log = b"kernel.hip:2:3: error: use of undeclared identifier 'wrong'\n\0"

    def __init__(self) -> None:
        self.called: list[str] = []

    def call(self, function: str, *arguments: Any) -> None:
        self.called.append(function)
        if function == "hiprtcVersion":
            arguments[0]._obj.value, arguments[1]._obj.value = 9, 0
        elif function == "hiprtcGetProgramLogSize":
            arguments[1]._obj.value = len(self.log)
        elif function == "hiprtcGetProgramLog":
            ctypes.memmove(arguments[1], self.log, len(self.log))

    def status(self, function: str, *arguments: Any) -> int:
        assert function == "hiprtcCompileProgram" and arguments[2][0] == b"--offload-arch=gfx942"
        return 6


def test_a_kernel_that_does_not_compile_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = HIPCompiler()
    monkeypatch.setattr(amd, "hiprtc", lambda: compiler)
    said = r"(?s)hiprtc does not accept this kernel:\n.*2:3: error: .*'wrong'\n+    1  void k.*\n    2  wrong"
    with pytest.raises(RuntimeError, match=said):
        amd.compile_hip("void k() {\nwrong\n}", "gfx942")
    assert compiler.called[-1] == "hiprtcDestroyProgram"
