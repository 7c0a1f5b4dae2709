"""The CPU: LLVM IR compiled in process by llvmlite, run by a pool of threads.

`open_device` is what `tinygrad.device` calls. Compiling makes an object file of each kernel, or finds it on
disk (`objects.py`), and loads it into an MCJIT engine, which the kernel keeps alive. A kernel call is one
native call (`cpu_threads.launch`), and a list of kernels is one too (`KernelList`).
"""
from __future__ import annotations

import atexit
import ctypes
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from tinygrad.device import ALIGNMENT, Allocator, CompiledDevice
from tinygrad.helpers import cache_dir, ceildiv, getenv
from tinygrad.renderer import Renderer
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.runtime import cpu_threads
from tinygrad.runtime.cpu_threads import ENTRY_SLOTS, MAX_THREADS, SCRATCH, STATE_SLOTS, STOP
from tinygrad.runtime.limits import Limits, measure_limits
from tinygrad.runtime.objects import ObjectCache, key_of

CHUNKS_A_THREAD = 4
"""Pieces of a kernel for each thread: a thread that loses its core leaves the rest to the others."""


def thread_count() -> int:
    """Threads that share a kernel: the cores this process may use, or the environment's THREADS."""
    asked = int(getenv("THREADS", 0))
    if asked:
        return max(1, min(asked, MAX_THREADS))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


# --- compiling ----------------------------------------------------------------------------------------------


@cache
def _initialise_llvm() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host_features() -> str:
    """This CPU's features as LLVM writes them; the environment's CPU_FEATURES adds to them (`-avx512f`)."""
    _initialise_llvm()
    found = str(llvm.get_host_cpu_features().flatten())
    extra = str(getenv("CPU_FEATURES", ""))
    return f"{found},{extra}" if extra else found


def llvm_version() -> str:
    """What compiles LLVM IR here."""
    return f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}, in process"


def _target_machine() -> Any:
    # MCJIT takes the machine over, so each engine needs its own.
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), opt=SPEED_LEVEL, reloc="pic",
        codemodel="default", jit=True)


@dataclass(frozen=True)
class Compiled:
    """Loaded machine code, which lives as long as its engine, and the LLVM IR it was made of."""

    engine: Any
    source: str

    def address(self, name: str) -> int:
        return int(self.engine.get_function_address(name))


SPEED_LEVEL = 2
TUNING = {"loop_vectorization": False, "slp_vectorization": False, "loop_unrolling": True}
"""Options of LLVM's passes. Vectors are the plan's choice; LLVM's own would only undo it."""


@contextmanager
def optimised_module(source: str, machine: Any) -> Iterator[Any]:
    """The module of LLVM IR after LLVM's passes for `machine`, in a context of its own: both end with the
    block, the module first (Python's collector knows no such order, and LLVM crashes without it). Raises
    RuntimeError with LLVM's words and the source."""
    context = llvm.create_context()
    module = None
    try:
        module = _parsed(source, context)
        _run_passes(module, machine)
        yield module
    finally:
        if module is not None:
            module.close()
        context.close()


def _parsed(source: str, context: Any) -> Any:
    try:
        module = llvm.parse_assembly(source, context)
    except RuntimeError as error:
        raise _refused(source, error) from None
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise _refused(source, error) from None
    return module


def _refused(source: str, error: RuntimeError) -> RuntimeError:
    numbered = "\n".join(f"{i + 1:5d}  {line}" for i, line in enumerate(source.splitlines()))
    return RuntimeError(f"LLVM does not accept this kernel: {error}\n{numbered}")


def _run_passes(module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    for name, value in TUNING.items():
        setattr(options, name, value)
    passes = llvm.create_pass_builder(machine, options)
    _beside_others("LLVMPY_RunNewModulePassManager")(passes.getModulePassManager(), module, passes)


def _beside_others(name: str) -> Any:
    """A function of LLVM without the lock that llvmlite holds for each call, so that several threads compile
    at once. LLVM allows that where they share no context, and no module or machine has two threads here."""
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)


def object_code(source: str) -> bytes:
    """Machine code of LLVM IR for this CPU, as an object file. Raises RuntimeError as `optimised_module`."""
    machine = _target_machine()
    with optimised_module(source, machine) as module, llvm.ffi.OutputString() as error:
        buffer = _beside_others("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(f"LLVM cannot generate code: {error}")
    library = llvm.ffi.lib
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


def assembly_of(source: str, machine: Any) -> str:
    """The machine code of LLVM IR for `machine`, as text."""
    with optimised_module(source, machine) as module:
        return str(machine.emit_assembly(module))


@cache
def _target_key() -> tuple[str, ...]:
    """What object code depends on beside its source."""
    return (llvmlite.__version__, llvm_version(), llvm.get_host_cpu_name(), host_features(),
            llvm.get_process_triple(), repr((SPEED_LEVEL, sorted(TUNING.items()))))


@cache
def _kept_objects() -> ObjectCache:
    return ObjectCache(cache_dir() / "objects")


def compile_ir(source: str) -> Compiled:
    """Machine code of LLVM IR for this CPU: compiled, or found on disk. Raises RuntimeError as
    `optimised_module`."""
    _initialise_llvm()
    code = _kept_objects().get_or_make(key_of(source, *_target_key()), lambda: object_code(source))
    # The empty module is in the global context, which outlives every engine.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Compiled(engine, source)


# --- threads ------------------------------------------------------------------------------------------------


class ThreadPool:
    """The native code that runs kernels, and the threads that wait in it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.code = compile_ir(cpu_threads.source())
        self.state = np.zeros(STATE_SLOTS + 8, np.int64)
        self.state_address = -(-self.state.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.slots = self.state[(self.state_address - self.state.ctypes.data) // 8:]
        self.scratch: list[np.ndarray[Any, Any]] = []
        self.scratch_bytes = 0
        self.lock = threading.Lock()
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.native_launch = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, integer, integer)(
            self.code.address("launch"))
        self.native_list = ctypes.CFUNCTYPE(None, pointer, pointer, integer)(self.code.address("run_list"))
        self.native_wake = ctypes.CFUNCTYPE(None, pointer)(self.code.address("wake_all"))
        worker = ctypes.CFUNCTYPE(None, pointer, integer)(self.code.address("worker"))
        self.workers = [threading.Thread(target=worker, args=(self.state_address, i), daemon=True,
                                         name=f"tinygrad-cpu-{i}") for i in range(1, threads)]
        for thread in self.workers:
            thread.start()

    def stop(self) -> None:
        """End the workers; their code is about to go."""
        with self.lock:
            self.slots[STOP] = 1
            self.slots[0] += 1 << 32 | 0xFFFFFFFF - (int(self.slots[0]) & 0xFFFFFFFF)
            self.native_wake(self.state_address)
        for thread in self.workers:
            thread.join(timeout=1.0)

    def need_scratch(self, size: int) -> None:
        """Give every thread at least `size` bytes of scratch memory."""
        if size <= self.scratch_bytes:
            return
        with self.lock:
            self.scratch = [np.zeros(size + ALIGNMENT, np.uint8) for _ in range(self.threads)]
            for i, memory in enumerate(self.scratch):
                self.slots[SCRATCH + i] = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
            self.scratch_bytes = size

    def chunk_of(self, extent: int) -> int:
        """Iterations that a thread takes at a time."""
        return max(1, ceildiv(extent, self.threads * CHUNKS_A_THREAD)) if self.threads > 1 else max(1, extent)


_pool: ThreadPool | None = None
_pool_lock = threading.Lock()


def pool() -> ThreadPool:
    """The process's threads, started at the first use."""
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = ThreadPool(thread_count())
                atexit.register(_pool.stop)
    return _pool


def _forget_pool() -> None:
    """In a forked child the workers do not exist; the next kernel starts others."""
    global _pool, _pool_lock
    if _pool is not None:
        atexit.unregister(_pool.stop)
        _pool = None
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


# --- running ------------------------------------------------------------------------------------------------


class NativeCode(Protocol):
    """Machine code in memory."""

    def address(self, name: str) -> int:
        """Where the function `name` begins."""


class CPUProgram:
    """A loaded kernel."""

    def __init__(self, name: str, compiled: NativeCode, scratch: int) -> None:
        self.name = name
        self.compiled = compiled
        self.scratch = scratch
        self.function = compiled.address(name)

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        threads = pool()
        threads.need_scratch(self.scratch)
        buffers, values = array("q", addresses), array("q", variables)
        with threads.lock:
            threads.native_launch(threads.state_address, self.function, buffers.buffer_info()[0],
                                  values.buffer_info()[0], extent, threads.chunk_of(extent))


class KernelList:
    """Kernels that run one after another in one native call; addresses and variables can be changed between
    calls."""

    def __init__(self, calls: Sequence[tuple[CPUProgram, Sequence[int], Sequence[int], int]]) -> None:
        threads = pool()
        self.programs = [program for program, *_ in calls]
        self.addresses = [np.array(addresses or [0], np.int64) for _, addresses, _, _ in calls]
        self.variables = [np.array(values or [0], np.int64) for _, _, values, _ in calls]
        self.entries = np.zeros((len(calls), ENTRY_SLOTS), np.int64)
        for i, (program, _, _, extent) in enumerate(calls):
            threads.need_scratch(program.scratch)
            self.entries[i] = (program.function, self.addresses[i].ctypes.data, self.variables[i].ctypes.data,
                               extent, threads.chunk_of(extent))

    def __call__(self) -> None:
        threads = pool()  # after a fork not the one that the list was made with
        threads.need_scratch(max((p.scratch for p in self.programs), default=0))
        with threads.lock:
            threads.native_list(threads.state_address, self.entries.ctypes.data, len(self.entries))


class CPUAllocator(Allocator):
    """Host memory, aligned to cache lines. Large blocks are fresh pages, which the cache of `Allocator`
    reuses."""

    def _obtain(self, size: int) -> np.ndarray[Any, Any]:
        block = np.empty(size + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        return block[start:start + size]

    def address(self, memory: np.ndarray[Any, Any]) -> int:
        return int(memory.ctypes.data)

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
        return assembly_of(code.source, _target_machine())


@cache
def _limits() -> Limits:
    """The peak rates of this machine, measured once, in about half a second."""
    return measure_limits(thread_count(), repeats=2)


USUAL_L3_BYTES = 16 << 20
"""Where the system does not say."""


@dataclass(frozen=True)
class Host:
    """What a renderer needs to know of this CPU."""

    vector_bytes: int
    registers: int
    threads: int
    has_scalef: bool
    l2_bytes: int
    l3_bytes: int


def host() -> Host:
    """This CPU, by its features."""
    features = {f for f in host_features().split(",") if f}
    disabled = {f[1:] for f in features if f.startswith("-")}

    def has(feature: str) -> bool:
        return f"+{feature}" in features and feature not in disabled

    return Host(vector_bytes=64 if has("avx512f") else 32 if has("avx2") else 16,
                registers=32 if has("avx512f") or has("neon") else 16,
                threads=thread_count(),
                has_scalef=has("avx512f") and has("avx512vl"),
                l2_bytes=_cache_bytes(2, Renderer.l2_bytes),
                l3_bytes=_cache_bytes(3, USUAL_L3_BYTES))


def _cache_bytes(level: int, usual: int) -> int:
    """The size of the cache of this level that core 0 uses, where Linux says it; else `usual`."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size").read_text().strip()
        return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    except (OSError, ValueError):
        return usual


def cpu_renderer() -> LLVMRenderer:
    """LLVM IR for this CPU."""
    return LLVMRenderer(**asdict(host()))


def open_device(name: str) -> CPUDevice:
    """The CPU device."""
    return CPUDevice(name, CPUAllocator(name), cpu_renderer())
