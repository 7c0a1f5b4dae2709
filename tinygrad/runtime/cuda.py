"""CUDA: NVIDIA's GPUs, through the driver API of cuda-bindings.

Kernels are CUDA C (`renderer/cuda.py`), compiled in process by NVRTC for the GPU that is there; those of
CUDA:PTX are PTX that LLVM makes (`renderer/llvm_blocks.py`) and the driver assembles, without NVRTC.
Everything runs on one stream, in the order in which it was asked for: a kernel returns before it has run, a
copy to the host waits for what came before it. Copies go through pinned memory, one half of it filled while
the other moves.
"""
from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tinygrad.device import Allocator, CompiledDevice
from tinygrad.renderer import STATIC_SHARED_BYTES, Launch, Renderer
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm_blocks import NVPTX, LLVMBlocksRenderer, assembled
from tinygrad.runtime.cpu import llvm_version
from tinygrad.runtime.launch import Arguments
from tinygrad.runtime.nvrtc import INSTALL, compile_cuda, nvrtc_version

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
    module = driver()
    status, *values = getattr(module, name)(*arguments)
    if int(status):
        if status == module.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the GPU has no memory left")
        _, words = module.cuGetErrorString(status)
        raise RuntimeError(f"{name} failed: {status.name} ({words.decode() if words else 'no words for it'})")
    return values[0] if len(values) == 1 else tuple(values)


class Context:
    """The primary context of one GPU, with its stream."""

    def __init__(self, number: int) -> None:
        count = call("cuDeviceGetCount")
        if number >= count:
            raise RuntimeError(f"there is no GPU number {number}: the driver finds {count}")
        self.device = call("cuDeviceGet", number)
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        self.enter()
        self.stream = call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING)

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
    """One half of the pinned memory through which copies go, and the event after its last use."""

    def __init__(self) -> None:
        self.address = int(call("cuMemHostAlloc", STAGING_BYTES, 0))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING_BYTES).from_address(self.address))
        self.free = call("cuEventCreate", driver().CUevent_flags.CU_EVENT_DISABLE_TIMING)


class CUDAAllocator(Allocator):
    """Memory of a GPU. What was freed is taken again by what comes later on the same stream, so nobody
    waits."""

    def __init__(self, device: str, context: Context) -> None:
        super().__init__(device)
        self.context = context
        self.halves: list[Staging] = []

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

    def staging(self) -> list[Staging]:
        self.context.enter()
        if not self.halves:
            self.halves = [Staging(), Staging()]
        return self.halves

    def copyin(self, memory: int, source: memoryview) -> None:
        given = np.frombuffer(source, np.uint8)
        halves = self.staging()
        for number, start in enumerate(range(0, given.size, STAGING_BYTES)):
            half, piece = halves[number % 2], given[start:start + STAGING_BYTES]
            call("cuEventSynchronize", half.free)
            half.bytes[:piece.size] = piece
            call("cuMemcpyHtoDAsync", memory + start, half.address, piece.size, self.context.stream)
            call("cuEventRecord", half.free, self.context.stream)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        taken = np.frombuffer(target, np.uint8)
        halves = self.staging()
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


# --- kernels --------------------------------------------------------------------------------------------


class CUDAProgram:
    """A loaded kernel."""

    def __init__(self, name: str, code: bytes, launch: Launch, context: Context) -> None:
        context.enter()
        self.context = context
        self.module = call("cuModuleLoadData", code)
        self.function = call("cuModuleGetFunction", self.module, name.encode())
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
        super().__init__(name, CUDAAllocator(name, context), renderer)
        self.context = context
        self.architecture = context.architecture

    @property
    def compiler(self) -> str:
        return f"{nvrtc_version()} for {self.architecture} ({self.context.name})"

    def compile(self, source: str) -> bytes:
        return compile_cuda(source, self.architecture)

    def load_blocks(self, name: str, code: bytes, launch: Launch) -> CUDAProgram:
        return CUDAProgram(name, code, launch, self.context)

    def synchronize(self) -> None:
        self.context.synchronize()


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
