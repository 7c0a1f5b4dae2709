"""LLVM in process, through llvmlite: from LLVM IR to object code for this CPU, and into memory.

Compiling makes an object file of a kernel, or finds it on disk (`objects.py`), and loads it into an MCJIT
engine, which the kernel keeps alive.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tinygrad.device import numbered
from tinygrad.helpers import Uninterrupted, cache_dir, getenv
from tinygrad.runtime.objects import ObjectCache, key_of


@cache
def initialise_llvm() -> None:
    """Make LLVM know this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host_features() -> str:
    """This CPU's features as LLVM writes them; the environment's CPU_FEATURES adds to them (`-avx512f`)."""
    initialise_llvm()
    found = str(llvm.get_host_cpu_features().flatten())
    extra = str(getenv("CPU_FEATURES", ""))
    return f"{found},{extra}" if extra else found


def llvm_version() -> str:
    """What compiles LLVM IR here."""
    return f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}, in process"


def target_machine() -> Any:
    """What LLVM compiles for: this CPU. MCJIT takes a machine over, so each engine needs its own."""
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
    return RuntimeError(f"LLVM does not accept this kernel: {error}\n{numbered(source)}")


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
    machine = target_machine()
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
def target_key() -> tuple[str, ...]:
    """What object code depends on beside its source."""
    return (llvmlite.__version__, llvm_version(), llvm.get_host_cpu_name(), host_features(),
            llvm.get_process_triple(), repr((SPEED_LEVEL, sorted(TUNING.items()))))


@cache
def _kept_objects() -> ObjectCache:
    return ObjectCache(cache_dir() / "objects")


def compile_ir(source: str) -> Compiled:
    """Machine code of LLVM IR for this CPU: compiled, or found on disk. Raises RuntimeError as
    `optimised_module`."""
    with Uninterrupted():  # llvmlite frees twice what an interrupt catches it freeing
        initialise_llvm()
        code = _kept_objects().get_or_make(key_of(source, *target_key()), lambda: object_code(source))
        # The empty module is in the global context, which outlives every engine.
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return Compiled(engine, source)
