"""CUDA: NVIDIA's GPUs, through the driver API of cuda-bindings.

Kernels are CUDA C (`renderer/cuda.py`), compiled in process by NVRTC for the GPU that is there; those of
CUDA:PTX are PTX that LLVM makes (`renderer/llvm_blocks.py`) and the driver assembles, without NVRTC.
Memory and queues are those of `streams.py`, kernels and graphs of them those of `stream_programs.py`.
"""
from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

from tinygrad.device import CompiledDevice
from tinygrad.helpers import numbered
from tinygrad.renderer import STATIC_SHARED_BYTES, Renderer
from tinygrad.renderer.cuda import HOPPER, cuda_renderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.llvm_blocks import NVPTX, LLVMBlocksRenderer, assembled
from tinygrad.runtime.llvm import llvm_version
from tinygrad.runtime.nvrtc import INSTALL, compile_cuda, nvrtc_version
from tinygrad.runtime.stream_programs import StreamProgram
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


class CudaContext(StreamGPU):
    """The primary context of one GPU, with a stream for kernels and one for copies to it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        count = call("cuDeviceGetCount")
        if number >= count:
            raise RuntimeError(f"there is no GPU number {number}: the driver finds {count}")
        self.number = number
        self.let_go = driver()
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
        self.let_go.cuEventDestroy(event)

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

    def unload(self, module: Any) -> None:
        self.let_go.cuModuleUnload(module)

    def start_kernel(self, function: Any, sizes: Sequence[int], arguments: int) -> None:
        call("cuLaunchKernel", function, *sizes, self.stream, arguments, 0)

    def new_graph(self) -> Any:
        return call("cuGraphCreate", 0)

    def add_kernel(self, graph: Any, before: Sequence[Any], function: Any, sizes: Sequence[int],
                   arguments: int) -> Any:
        return call("cuGraphAddKernelNode", graph, before, len(before), node(function, sizes, arguments))

    def finished_graph(self, graph: Any) -> Any:
        return call("cuGraphInstantiate", graph, 0)

    def change_kernel(self, executable: Any, kernel: Any, function: Any, sizes: Sequence[int], arguments: int
                      ) -> None:
        call("cuGraphExecKernelNodeSetParams", executable, kernel, node(function, sizes, arguments))

    def start_graph(self, executable: Any, stream: Any) -> None:
        call("cuGraphLaunch", executable, stream)

    def destroy_graph(self, graph: Any, executable: Any) -> None:
        self.let_go.cuGraphExecDestroy(executable)
        self.let_go.cuGraphDestroy(graph)

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
        """As NVRTC calls it: sm_80; sm_90a with what that GPU alone has."""
        return f"sm_{self.capability}" + "a" * (self.capability == HOPPER)

    def renderer(self) -> Renderer:
        """CUDA C for this GPU."""
        return cuda_renderer(self.capability, self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
                             self.attribute("MULTIPROCESSOR_COUNT"))

    @property
    def name(self) -> str:
        return str(call("cuDeviceGetName", 256, self.device).decode().strip("\0 "))


def node(function: Any, sizes: Sequence[int], arguments: int) -> Any:
    """What a kernel of a graph is told: its code, its grid, and its arguments."""
    told = driver().CUDA_KERNEL_NODE_PARAMS()
    told.func = function
    (told.gridDimX, told.gridDimY, told.gridDimZ, told.blockDimX, told.blockDimY, told.blockDimZ,
     told.sharedMemBytes) = sizes
    told.kernelParams = arguments
    return told


# --- kernels --------------------------------------------------------------------------------------------


def loaded(name: str, code: bytes, launch: Launch, context: CudaContext) -> StreamProgram:
    """A kernel on its GPU."""
    context.enter()
    module = call("cuModuleLoadData", code)
    function = call("cuModuleGetFunction", module, name.encode())
    large = launch.shared_bytes if launch.shared_bytes > STATIC_SHARED_BYTES else 0
    program = StreamProgram(context, module, function, launch, large)
    if large:
        name_of_limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", function, name_of_limit, large)
    return program


class CUDADevice(CompiledDevice):
    """A GPU, through NVRTC."""

    def __init__(self, name: str, context: CudaContext, renderer: Renderer) -> None:
        super().__init__(name, StreamAllocator(name, context), renderer)
        self.queue = StreamQueue(name, context, context.stream)
        self.copies = StreamQueue(f"{name} copies", context, context.copy_stream)
        self.context = context
        self.architecture = context.architecture

    @property
    def compiler(self) -> str:
        return f"{nvrtc_version()} for {self.architecture} ({self.context.name})"

    def compile(self, source: str) -> bytes:
        return compile_cuda(source, self.architecture)

    def load_blocks(self, name: str, code: bytes, launch: Launch) -> StreamProgram:
        return loaded(name, code, launch, self.context)


class PTXDevice(CUDADevice):
    """A GPU, through LLVM."""

    @property
    def compiler(self) -> str:
        return f"{llvm_version()} for {self.architecture} ({self.context.name})"

    def compile(self, source: str) -> bytes:
        return assembled(source, NVPTX, self.architecture).encode() + bytes(1)

    def load_blocks(self, name: str, code: bytes, launch: Launch) -> StreamProgram:
        """The kernel, as the driver compiles it. Raises RuntimeError with the PTX where it does not."""
        try:
            return super().load_blocks(name, code, launch)
        except RuntimeError as error:
            ptx = numbered(code.rstrip(bytes(1)).decode())
            raise RuntimeError(f"the driver does not accept this kernel: {error}\n{ptx}") from None


def open_device(name: str) -> CUDADevice:
    """A GPU by its number. Raises ImportError, OSError or RuntimeError where there is none, saying what to
    install."""
    driver()
    number = name.rpartition(":")[2]
    context = CudaContext(int(number) if number.isdecimal() else 0)
    if name.startswith("CUDA:PTX"):
        return PTXDevice(name, context, LLVMBlocksRenderer(NVPTX))
    nvrtc_version()
    return CUDADevice(name, context, context.renderer())
