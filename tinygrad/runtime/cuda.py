"""CUDA: NVIDIA's GPUs, through the driver API of cuda-bindings.

Kernels are CUDA C (`renderer/cuda.py`), compiled in process by NVRTC for the GPU that is there; those of
CUDA:PTX are PTX that LLVM makes (`renderer/llvm_blocks.py`) and the driver assembles, without NVRTC.
Memory and queues are those of `streams.py`. Kernels that a captured function runs after each other are a
graph, started by one call.
"""
from __future__ import annotations

import bisect
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np

from tinygrad.device import CompiledDevice
from tinygrad.renderer import STATIC_SHARED_BYTES, Launch, Renderer
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm_blocks import NVPTX, LLVMBlocksRenderer, assembled
from tinygrad.runtime.launch import Arguments
from tinygrad.runtime.llvm import llvm_version
from tinygrad.runtime.nvrtc import INSTALL, compile_cuda, nvrtc_version
from tinygrad.runtime.queue import Point, raise_failures
from tinygrad.runtime.streams import StreamAllocator, StreamGPU, StreamQueue

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


class Context(StreamGPU):
    """The primary context of one GPU, with a stream for kernels and one for copies to it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        count = call("cuDeviceGetCount")
        if number >= count:
            raise RuntimeError(f"there is no GPU number {number}: the driver finds {count}")
        self.number = number
        self.destroy = driver().cuEventDestroy
        self.device = call("cuDeviceGet", number)
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self.enter()
        self.stream, self.copy_stream = self.new_stream(), self.new_stream()

    def new_stream(self) -> Any:
        """A stream whose commands wait for those of no other."""
        return call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING)

    def enter(self) -> None:
        call("cuCtxSetCurrent", self.handle)

    def obtain(self, size: int) -> int:
        return int(call("cuMemAlloc", size))

    def release(self, address: int) -> None:
        call("cuMemFree", address)

    def pinned(self, size: int) -> int:
        return int(call("cuMemHostAlloc", size, 0))

    def copy_in(self, target: int, source: int, size: int, stream: Any) -> None:
        call("cuMemcpyHtoDAsync", target, source, size, stream)

    def copy_out(self, target: int, source: int, size: int, stream: Any) -> None:
        call("cuMemcpyDtoHAsync", target, source, size, stream)

    def copy_from(self, other: Self, target: int, source: int, size: int, stream: Any) -> None:
        call("cuMemcpyPeerAsync", target, self.handle, source, other.handle, size, stream)

    def use_memory_of(self, other: Self) -> None:
        if call("cuDeviceCanAccessPeer", self.device, other.device):
            self.enter()
            status, = driver().cuCtxEnablePeerAccess(other.handle, 0)
            if status != driver().CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
                check("cuCtxEnablePeerAccess", status)

    def new_event(self, timed: bool) -> Any:
        flags = driver().CUevent_flags
        return call("cuEventCreate", flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING)

    def destroy_event(self, event: Any) -> None:
        self.destroy(event)

    def record(self, event: Any, stream: Any) -> None:
        call("cuEventRecord", event, stream)

    def is_past(self, event: Any) -> bool:
        status, = driver().cuEventQuery(event)
        if status == driver().CUresult.CUDA_ERROR_NOT_READY:
            return False
        check("cuEventQuery", status)
        return True

    def await_event(self, event: Any) -> None:
        call("cuEventSynchronize", event)

    def seconds_between(self, first: Any, last: Any) -> float:
        return float(call("cuEventElapsedTime", first, last)) * 1e-3

    def let_wait(self, stream: Any, event: Any) -> None:
        call("cuStreamWaitEvent", stream, event, 0)

    def await_stream(self, stream: Any) -> None:
        call("cuStreamSynchronize", stream)

    def attribute(self, name: str) -> int:
        """What the driver says of the GPU: one of CU_DEVICE_ATTRIBUTE_*."""
        which = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", which, self.device))

    @property
    def capability(self) -> int:
        """The compute capability, times ten."""
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        return 10 * major + minor

    @property
    def architecture(self) -> str:
        """As NVRTC calls it: sm_90."""
        return f"sm_{self.capability}"

    def renderer(self) -> Renderer:
        """CUDA C for this GPU."""
        return cuda_renderer(self.capability, self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))

    @property
    def name(self) -> str:
        return str(call("cuDeviceGetName", 256, self.device).rstrip(bytes(1)).decode())


# --- queues ---------------------------------------------------------------------------------------------


class CUDAQueue(StreamQueue):
    """A stream of a GPU, which can be given a graph of kernels."""

    gpu: Context

    def record(self, calls: Sequence[Any]) -> Graph | None:
        """A graph of kernels."""
        if len(calls) < 2 or not all(isinstance(program, CUDAProgram) for program, *_ in calls):
            return None
        return Graph(self.gpu, calls)

    def exec_list(self, kernels: Graph, places: np.ndarray[Any, Any], values: Sequence[int],
                  work: float = 0.0, sources: tuple[Point, ...] = ()) -> Point | None:
        raise_failures(sources)
        with self.lock:
            kernels.change(places, values)
            call("cuGraphLaunch", kernels.executable, self.stream)
            return self.next_point()


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
        super().__init__(name, StreamAllocator(name, context), renderer)
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
