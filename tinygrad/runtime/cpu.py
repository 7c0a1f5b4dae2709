"""The CPU: LLVM IR compiled in process by llvmlite (`llvm.py`), run by a pool of threads (`cpu_pool.py`),
given to it by queues with threads of their own (`cpu_queue.py`).

`open_device` is what `tinygrad.device` calls.
"""
from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad.device import CompiledDevice
from tinygrad.device.allocator import Allocator, host_memory
from tinygrad.device.host import (
    has_features,
    has_multiply_add,
    host_units,
    vector_bytes,
    vector_registers,
)
from tinygrad.device.limits import Limits
from tinygrad.renderer import Renderer
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import Machine, cores
from tinygrad.runtime.cpu_pool import CPUProgram, NativeCode, pool, thread_count
from tinygrad.runtime.cpu_queue import CPUQueue, HostQueue
from tinygrad.runtime.limits import measure_limits
from tinygrad.runtime.llvm import (
    Compiled,
    assembly_of,
    compile_ir,
    llvm_version,
    target_machine,
)


class Block(np.ndarray[Any, Any]):
    """Memory of the host that knows where it begins: NumPy takes a microsecond to say so."""

    address: int | None = None
    """None for a part of a block"""


class CPUAllocator(Allocator):
    """Host memory, aligned to cache lines. Large blocks are fresh pages, which the cache of `Allocator`
    reuses."""

    def _obtain(self, size: int) -> np.ndarray[Any, Any]:
        block = host_memory(size).view(Block)
        block.address = int(block.ctypes.data)
        return block

    def address(self, memory: np.ndarray[Any, Any]) -> int:
        known = memory.address if type(memory) is Block else None
        return int(memory.ctypes.data) if known is None else known

    def copyin(self, memory: np.ndarray[Any, Any], source: memoryview) -> None:
        memory[:source.nbytes] = np.frombuffer(source, np.uint8)

    def copyout(self, target: memoryview, memory: np.ndarray[Any, Any], offset: int = 0) -> None:
        np.frombuffer(target, np.uint8)[:] = memory[offset:offset + target.nbytes]

    def share(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.reshape(-1).view(np.uint8)

    def part(self, memory: np.ndarray[Any, Any], offset: int, size: int) -> np.ndarray[Any, Any]:
        return memory[offset:offset + max(size, 1)]

    def as_bytes(self, memory: np.ndarray[Any, Any], size: int) -> memoryview:
        return memory[:size].data


class HostDevice(CompiledDevice):
    """The host's cores, whatever compiled the code that they run."""

    def __init__(self, name: str, allocator: CPUAllocator, renderer: Renderer) -> None:
        super().__init__(name, allocator, renderer)
        self.queue = CPUQueue(name)
        self.copies = HostQueue(f"{name} copies")

    def load(self, name: str, code: NativeCode, scratch: int = 0) -> CPUProgram:
        pool()  # started here, so that the first kernel's time at DEBUG=2 is its own
        return CPUProgram(name, code, scratch)

    def limits(self) -> Limits:
        return _limits()


class CPUDevice(HostDevice):
    """The host's cores, through LLVM."""

    def compile(self, source: str) -> Compiled:
        return compile_ir(source)

    @property
    def compiler(self) -> str:
        return llvm_version()

    def disassembly(self, code: Compiled) -> str:
        return assembly_of(code.source, target_machine())


@cache
def _limits() -> Limits:
    """The peak rates of this machine, measured once, in about half a second."""
    return measure_limits(thread_count(), repeats=2)


USUAL_L3_BYTES = 16 << 20
"""Where the system does not say."""
L3_BYTES_OF_CORE = 16 << 20
"""The most of the last cache that one core counts on: a server's cores share it, and with other machines that
run on them (two cores of an Intel server are told of 300 MB)."""


def host() -> Machine:
    """This CPU, by its features."""
    return cores(vector_bytes(), vector_registers(), thread_count(),
                 contracts=has_multiply_add(),
                 matrix_units=host_units(),
                 l1_bytes=_cache_bytes(0, Machine.l1_bytes),
                 line_bytes=_cache_bytes(0, Machine.line_bytes, "coherency_line_size"),
                 page_bytes=mmap.PAGESIZE,
                 l2_bytes=_cache_bytes(2, Machine.l2_bytes),
                 l3_bytes=min(_cache_bytes(3, USUAL_L3_BYTES), thread_count() * L3_BYTES_OF_CORE))


CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""What Linux says of the caches that core 0 uses: number 0 is the one closest to it, of data."""


def _cache_bytes(number: int, usual: int, what: str = "size") -> int:
    """A size of a cache, where Linux says it; else `usual`."""
    try:
        text = (CACHES / f"index{number}" / what).read_text().strip()
        return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    except (OSError, ValueError):
        return usual


def cpu_renderer() -> LLVMRenderer:
    """LLVM IR for this CPU."""
    return LLVMRenderer(host(), has_scalef=has_features("avx512f", "avx512vl"),
                        has_float16=has_features("f16c") or has_features("neon"),
                        has_vnni=has_features("avxvnni") or has_features("avx512vnni", "avx512vl"),
                        has_pairs=has_features("ssse3") and (vector_bytes() < 64 or has_features("avx512bw")))


def open_device(name: str) -> CPUDevice:
    """The CPU device."""
    return CPUDevice(name, CPUAllocator(name), cpu_renderer())
