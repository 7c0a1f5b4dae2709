"""CUDA: NVIDIA's GPUs, through the driver API of cuda-bindings.

Kernels are CUDA C (`renderer/cuda.py`), compiled in process by NVRTC for the GPU that is there; those of
CUDA:PTX are PTX that LLVM makes (`renderer/llvm_blocks.py`) and the driver assembles, without NVRTC.
A GPU has two queues, each a stream that runs what it is given in order: one for kernels and copies to the
host, one for copies to the GPU, which so run beside kernels. Streams wait for each other by events. Copies
from and to the host go through pinned memory, one half of it filled while the other moves; copies between
GPUs go directly where their hardware can do that. Kernels that a captured function runs after each other are
a graph, started by one call.
"""
from __future__ import annotations

import bisect
import ctypes
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tinygrad.device import Buffer, CompiledDevice, Device
from tinygrad.renderer import STATIC_SHARED_BYTES, Launch, Renderer
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm_blocks import NVPTX, LLVMBlocksRenderer, assembled
from tinygrad.runtime.allocator import Allocator
from tinygrad.runtime.launch import Arguments
from tinygrad.runtime.llvm import llvm_version
from tinygrad.runtime.nvrtc import INSTALL, compile_cuda, nvrtc_version
from tinygrad.runtime.queue import DriverQueue, Point, Timestamp, raise_failures

STAGING_BYTES = 8 << 20
"""Pinned memory of one half: enough that starting a copy (10 us) is a small part of it (350 us at 24
GB/s)."""


# --- the driver -----------------------------------------------------------------------------------------


@cache
def driver() -> Any:
    """The module `cuda.bindings.driver`, ready to use. Raises ImportError where it is not installed,
    OSError where there is no driver, RuntimeError where the driver finds no GPU."""
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ImportError(f"CUDA needs cuda-bindings: {INSTALL}") from error
    try:
        status, = module.cuInit(0)
    except RuntimeError as error:
        raise OSError("there is no NVIDIA driver (libcuda) on this machine: install NVIDIA's driver, or use "
                      "CUDA:EMULATED") from error
    if int(status):
        raise RuntimeError(f"NVIDIA's driver finds no GPU: {status.name}")
    return module


def call(name: str, *arguments: Any) -> Any:
    """A function of the driver. Raises MemoryError where the GPU has no memory left, RuntimeError with the
    driver's words where it fails otherwise."""
    status, *values = getattr(driver(), name)(*arguments)
    check(name, status)
    return values[0] if len(values) == 1 else tuple(values)


def check(name: str, status: Any) -> None:
    """Raise as `call` does, if the function's status says that it failed."""
    if not int(status):
        return
    module = driver()
    if status == module.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"{name}: the GPU has no memory left")
    _, words = module.cuGetErrorString(status)
    raise RuntimeError(f"{name} failed: {status.name} ({words.decode() if words else 'no words for it'})")


class Context:
    """The primary context of one GPU, with a stream for kernels and one for copies to it."""

    def __init__(self, number: int) -> None:
        count = call("cuDeviceGetCount")
        if number >= count:
            raise RuntimeError(f"there is no GPU number {number}: the driver finds {count}")
        self.device = call("cuDeviceGet", number)
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self.enter()
        self.stream, self.copy_stream = self.new_stream(), self.new_stream()
        self.peers: set[int] = set()
        """numbers of the GPUs whose memory this one has been let use"""
        self.number = number

    def new_stream(self) -> Any:
        """A stream whose commands wait for those of no other."""
        return call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING)

    def reach(self, other: Context) -> None:
        """Let this GPU use another one's memory directly, if it can; else the driver copies by way of the
        host."""
        if other.number in self.peers:
            return
        self.peers.add(other.number)
        if call("cuDeviceCanAccessPeer", self.device, other.device):
            self.enter()
            status, = driver().cuCtxEnablePeerAccess(other.handle, 0)
            if status not in (driver().CUresult.CUDA_SUCCESS,
                              driver().CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED):
                check("cuCtxEnablePeerAccess", status)

    def enter(self) -> None:
        """Let calls of this thread mean this GPU."""
        call("cuCtxSetCurrent", self.handle)

    def attribute(self, name: str) -> int:
        """What the driver says of the GPU: one of CU_DEVICE_ATTRIBUTE_*."""
        which = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", which, self.device))

    @property
    def architecture(self) -> str:
        """As NVRTC calls it: sm_90."""
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        return f"sm_{major}{minor}"

    def renderer(self) -> Renderer:
        """CUDA C for this GPU."""
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        return cuda_renderer(10 * major + minor, self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))

    @property
    def name(self) -> str:
        return str(call("cuDeviceGetName", 256, self.device).rstrip(bytes(1)).decode())

    def synchronize(self) -> None:
        self.enter()
        call("cuStreamSynchronize", self.stream)


# --- memory ---------------------------------------------------------------------------------------------


class Staging:
    """One half of the pinned memory through which copies of one stream go, and the event after its last
    use."""

    def __init__(self) -> None:
        self.address = int(call("cuMemHostAlloc", STAGING_BYTES, 0))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING_BYTES).from_address(self.address))
        self.free = call("cuEventCreate", driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)


class CUDAAllocator(Allocator):
    """Memory of a GPU."""

    def __init__(self, device: str, context: Context) -> None:
        super().__init__(device)
        self.context = context
        self.halves: dict[bool, list[Staging]] = {}
        """the pinned memory of copies to the GPU (True), and of those to the host"""

    def _obtain(self, size: int) -> int:
        self.context.enter()
        return int(call("cuMemAlloc", size))

    def _return(self, memory: int, size: int) -> None:
        self.context.synchronize()
        call("cuMemFree", memory)

    def address(self, memory: int) -> int:
        return memory

    def part(self, memory: int, offset: int, size: int) -> int:
        return memory + offset

    def staging(self, inward: bool) -> list[Staging]:
        self.context.enter()
        if inward not in self.halves:
            self.halves[inward] = [Staging(), Staging()]
        return self.halves[inward]

    def copyin(self, memory: int, source: memoryview) -> None:
        """Before the kernels that are started later; `source` may change afterwards."""
        self.start_copyin(memory, source)
        for half in self.halves[True]:
            call("cuStreamWaitEvent", self.context.stream, half.free, 0)

    def start_copyin(self, memory: int, source: memoryview) -> None:
        """As `copyin`, in the order of the stream of copies alone."""
        given, stream = np.frombuffer(source, np.uint8), self.context.copy_stream
        halves = self.staging(True)
        for number, start in enumerate(range(0, given.size, STAGING_BYTES)):
            half, piece = halves[number % 2], given[start:start + STAGING_BYTES]
            call("cuEventSynchronize", half.free)
            half.bytes[:piece.size] = piece
            call("cuMemcpyHtoDAsync", memory + start, half.address, piece.size, stream)
            call("cuEventRecord", half.free, stream)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        taken = np.frombuffer(target, np.uint8)
        halves = self.staging(False)
        pieces = [taken[start:start + STAGING_BYTES] for start in range(0, taken.size, STAGING_BYTES)]
        for number in range(len(pieces) + 1):
            if number < len(pieces):
                half = halves[number % 2]
                call("cuMemcpyDtoHAsync", half.address, memory + offset + number * STAGING_BYTES,
                     pieces[number].size, self.context.stream)
                call("cuEventRecord", half.free, self.context.stream)
            if number:
                half, piece = halves[(number - 1) % 2], pieces[number - 1]
                call("cuEventSynchronize", half.free)
                piece[:] = half.bytes[:piece.size]


# --- queues ---------------------------------------------------------------------------------------------


class CUDAQueue(DriverQueue):
    """A stream of a GPU."""

    def __init__(self, name: str, context: Context, stream: Any) -> None:
        super().__init__(name, self.await_stream)
        self.context = context
        self.stream = stream
        self.first: Event | None = None
        """the event that timestamps count from"""

    def await_stream(self) -> None:
        self.context.enter()
        call("cuStreamSynchronize", self.stream)

    def mark(self) -> Any:
        return self.event(driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)

    def event(self, flags: int) -> Any:
        """A new event after everything given so far."""
        self.context.enter()
        event = Event(flags)
        call("cuEventRecord", event.handle, self.stream)
        return event

    def is_reached(self, mark: Any) -> bool:
        status, = driver().cuEventQuery(mark.handle)
        if status != driver().CUresult.CUDA_ERROR_NOT_READY:
            check("cuEventQuery", status)
            return True
        return False

    def await_mark(self, mark: Any) -> None:
        call("cuEventSynchronize", mark.handle)

    def wait(self, point: Point) -> None:
        other = point.queue
        if not isinstance(other, CUDAQueue):
            super().wait(point)
        elif other is not self:
            mark = other.mark_after(point.value)[1]
            self.context.enter()
            call("cuStreamWaitEvent", self.stream, mark.handle, 0)

    def timestamp(self) -> Timestamp:
        timing = driver().CUevent_flags.CU_EVENT_DEFAULT
        if self.first is None:
            self.first = self.event(timing)
        first, event = self.first, self.event(timing)

        def read() -> float:
            call("cuEventSynchronize", event.handle)
            return float(call("cuEventElapsedTime", first.handle, event.handle)) * 1e-3

        return Timestamp(read)

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[Point, ...] = ()
             ) -> Point | None:
        """Without waiting, except for a copy to the host, and for pinned memory to be free."""
        raise_failures(sources)
        if not target.nbytes:
            return None
        from_host = source.host_bytes
        allocator, from_allocator = memory_of(target), memory_of(source)
        self.context.enter()
        if allocator is not None and from_host is not None:
            allocator.start_copyin(target.memory, from_host[offset:offset + target.nbytes])
        elif allocator is not None and from_allocator is not None:
            other = from_allocator.context
            self.context.reach(other)
            self.context.enter()
            call("cuMemcpyPeerAsync", target.memory, self.context.handle, source.memory + offset,
                 other.handle, target.nbytes, self.stream)
        else:
            self.finish()
            target.fill_from(source, offset)
            return None
        return self.next_point()

    def record(self, calls: Sequence[Any]) -> Graph | None:
        """A graph of kernels."""
        if len(calls) < 2 or not all(isinstance(program, CUDAProgram) for program, *_ in calls):
            return None
        return Graph(self.context, calls)

    def exec_list(self, kernels: Graph, places: np.ndarray[Any, Any], values: Sequence[int],
                  work: float = 0.0, sources: tuple[Point, ...] = ()) -> Point | None:
        raise_failures(sources)
        with self.lock:
            kernels.change(places, values)
            call("cuGraphLaunch", kernels.executable, self.stream)
            return self.next_point()


class Event:
    """An event of the driver, which goes when nobody has it."""

    def __init__(self, flags: int) -> None:
        self.handle = call("cuEventCreate", flags)
        self.destroy = driver().cuEventDestroy

    def __del__(self) -> None:
        if hasattr(self, "destroy") and not sys.is_finalizing():
            self.destroy(self.handle)


def memory_of(buffer: Buffer) -> CUDAAllocator | None:
    """The allocator of a buffer in a GPU's memory; None of others."""
    allocator = Device[buffer.device].allocator
    return allocator if isinstance(allocator, CUDAAllocator) else None


Call = tuple["CUDAProgram", Sequence[int], Sequence[int], int]
"""A kernel, its buffers' addresses, its variables' values, its extent."""


class Graph:
    """Kernels that run one after another, started by one call. Arguments have numbers, as `exec_list` says;
    changing them changes runs that are not started yet."""

    def __init__(self, context: Context, calls: Sequence[Call]) -> None:
        context.enter()
        self.context = context
        self.programs = [program for program, *_ in calls]
        self.counts = [len(addresses) for _, addresses, _, _ in calls]
        self.given: list[int] = []
        self.starts: list[int] = []
        self.arguments = [Arguments(program.launch) for program in self.programs]
        self.graph = call("cuGraphCreate", 0)
        self.nodes: list[Any] = []
        for number, (_, addresses, variables, _) in enumerate(calls):
            self.starts.append(len(self.given))
            self.given.extend([*addresses, *variables])
            before = self.nodes[-1:]
            self.nodes.append(call("cuGraphAddKernelNode", self.graph, before, len(before),
                                   self.parameters(number)))
        self.executable = call("cuGraphInstantiate", self.graph, 0)

    def parameters(self, number: int) -> Any:
        """What a node is told: the kernel, its grid, and its arguments as they are now."""
        program, start = self.programs[number], self.starts[number]
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.given)
        variables = start + self.counts[number]
        told = driver().CUDA_KERNEL_NODE_PARAMS()
        told.func = program.function
        (told.gridDimX, told.gridDimY, told.gridDimZ, told.blockDimX, told.blockDimY, told.blockDimZ,
         told.sharedMemBytes) = program.sizes
        told.kernelParams = self.arguments[number].set(self.given[start:variables], self.given[variables:end])
        return told

    def change(self, places: np.ndarray[Any, Any], values: Sequence[int]) -> None:
        """Give arguments other values, in the nodes that have one which differs."""
        self.context.enter()
        changed = set()
        for place, value in zip(places.tolist(), values, strict=True):
            if self.given[place] != value:
                self.given[place] = value
                changed.add(bisect.bisect_right(self.starts, place) - 1)
        for number in sorted(changed):
            call("cuGraphExecKernelNodeSetParams", self.executable, self.nodes[number],
                 self.parameters(number))

    def __del__(self) -> None:
        if getattr(self, "executable", None) is not None and not sys.is_finalizing():
            self.context.synchronize()
            driver().cuGraphExecDestroy(self.executable)
            driver().cuGraphDestroy(self.graph)


# --- kernels --------------------------------------------------------------------------------------------


class CUDAProgram:
    """A loaded kernel."""

    def __init__(self, name: str, code: bytes, launch: Launch, context: Context) -> None:
        context.enter()
        self.context = context
        self.module = call("cuModuleLoadData", code)
        self.function = call("cuModuleGetFunction", self.module, name.encode())
        self.launch = launch
        self.arguments = Arguments(launch)
        large = launch.shared_bytes if launch.shared_bytes > STATIC_SHARED_BYTES else 0
        self.sizes = (*launch.blocks, *launch.threads, large)
        if large:
            name_of_limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", self.function, name_of_limit, large)

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        self.context.enter()
        call("cuLaunchKernel", self.function, *self.sizes, self.context.stream,
             self.arguments.set(addresses, variables), 0)

    def __del__(self) -> None:
        if getattr(self, "module", None) is not None and not sys.is_finalizing():
            self.context.synchronize()
            driver().cuModuleUnload(self.module)


class CUDADevice(CompiledDevice):
    """A GPU, through NVRTC."""

    def __init__(self, name: str, context: Context, renderer: Renderer) -> None:
        allocator = CUDAAllocator(name, context)
        super().__init__(name, allocator, renderer)
        self.queue = CUDAQueue(name, context, context.stream)
        self.copies = CUDAQueue(f"{name} copies", context, context.copy_stream)
        self.context = context
        self.architecture = context.architecture

    @property
    def compiler(self) -> str:
        return f"{nvrtc_version()} for {self.architecture} ({self.context.name})"

    def compile(self, source: str) -> bytes:
        return compile_cuda(source, self.architecture)

    def load_blocks(self, name: str, code: bytes, launch: Launch) -> CUDAProgram:
        return CUDAProgram(name, code, launch, self.context)


class PTXDevice(CUDADevice):
    """A GPU, through LLVM."""

    @property
    def compiler(self) -> str:
        return f"{llvm_version()} for {self.architecture} ({self.context.name})"

    def compile(self, source: str) -> bytes:
        return assembled(source, NVPTX, self.architecture).encode() + bytes(1)


def open_device(name: str) -> CUDADevice:
    """A GPU by its number. Raises ImportError, OSError or RuntimeError where there is none, saying what to
    install."""
    driver()
    number = name.rpartition(":")[2]
    context = Context(int(number) if number.isdecimal() else 0)
    if name.startswith("CUDA:PTX"):
        return PTXDevice(name, context, LLVMBlocksRenderer(NVPTX))
    nvrtc_version()
    return CUDADevice(name, context, context.renderer())
