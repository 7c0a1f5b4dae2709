"""LLVM in process, through llvmlite: from LLVM IR to object code for this CPU, and into memory.

Compiling makes an object file of a kernel, or finds it on disk (`store.py`), and JITLink links it into the
process, as a library that the kernel keeps alive.
"""
from __future__ import annotations

import ctypes
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.orcjit import JITLibraryBuilder, create_lljit_compiler

from tinygrad.device.host import host_features
from tinygrad.frozen import frozen
from tinygrad.helpers import Uninterrupted, numbered
from tinygrad.renderer.llvm import LLVM_OPTIONS, PLANNED
from tinygrad.store import key_of, store_of


@cache
def initialise_llvm() -> None:
    """Make LLVM know this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for option in LLVM_OPTIONS:
        llvm.set_option("", option)


def llvm_version() -> str:
    """What compiles LLVM IR here."""
    return f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}, in process"


def target_machine(level: int | None = None) -> Any:
    """What LLVM compiles for: this CPU, at a level of optimisation. No machine may be used by two threads at
    once."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), opt=SPEED_LEVEL if level is None else level,
        reloc="pic", codemodel="default", jit=True)


_of_thread = threading.local()


def _machine_of_thread(level: int) -> Any:
    """The machine that this thread compiles with at a level. One that compiled before knows its instructions
    already, which takes as long as the code of a small kernel."""
    machines = _of_thread.__dict__.setdefault("by_level", {})
    if level not in machines:
        machines[level] = target_machine(level)
    return machines[level]


@frozen
class Compiled:
    """Loaded machine code, which lives as long as this, and the LLVM IR it was made of."""

    library: Any
    source: str

    def address(self, name: str) -> int:
        return int(self.library[name])


SPEED_LEVEL = 2
QUICK_LEVEL = 1
"""For code that waits more than it computes, without LLVM's passes: that of the threads takes 25 ms in place
of 80 to 130, before the first kernel of a program, and starts kernels as fast."""
TUNING = {"loop_vectorization": False, "slp_vectorization": False, "loop_unrolling": True}
"""Options of LLVM's passes. Vectors are the plan's choice; LLVM's own would only undo it."""
PLANNED_PASSES = ("always_inliner", "sroa", "instruction_combine")
"""The passes for a kernel whose plan has chosen vectors and loops: values are computed once and where they
belong, so what is left to do is helper functions in place, registers for accumulators, and single
instructions. They take a fifth of the time of all passes, which is half of LLVM's (91 kernels of a YOLOv8:
16 s of processor time for the first call with all, 11 with these, Zen 1), and kernels run as fast: 24
operations, ResNet-18's step and that network within 1%."""


@contextmanager
def optimised_module(source: str, machine: Any, is_quick: bool = False) -> Iterator[Any]:
    """The module of LLVM IR after LLVM's passes for `machine` (unless `is_quick`), in a context of its own:
    both end with the block, the module first (Python's collector knows no such order, and LLVM crashes
    without it). Raises RuntimeError with LLVM's words and the source."""
    context = llvm.create_context()
    module = None
    try:
        module = _parsed(source, context)
        if not is_quick:
            _run_passes(module, machine, PLANNED in source)
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


def _run_passes(module: Any, machine: Any, is_planned: bool) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    for name, value in TUNING.items():
        setattr(options, name, value)
    builder = llvm.create_pass_builder(machine, options)
    if is_planned:
        passes = llvm.create_new_module_pass_manager()
        for name in PLANNED_PASSES:
            getattr(passes, f"add_{name}_pass")()
    else:
        passes = builder.getModulePassManager()
    _beside_others("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def _beside_others(name: str) -> Any:
    """A function of LLVM without the lock that llvmlite holds for each call, so that several threads compile
    at once. LLVM allows that where they share no context, and no module or machine has two threads here."""
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)


def object_code(source: str, is_quick: bool = False) -> bytes:
    """Machine code of LLVM IR for this CPU, as an object file; `is_quick`: see `QUICK_LEVEL`. Raises
    RuntimeError as `optimised_module`."""
    machine = _machine_of_thread(QUICK_LEVEL if is_quick else SPEED_LEVEL)
    with optimised_module(source, machine, is_quick) as module, llvm.ffi.OutputString() as error:
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
            llvm.get_process_triple(),
            repr((SPEED_LEVEL, sorted(TUNING.items()), PLANNED_PASSES, LLVM_OPTIONS)))


def compile_ir(source: str, is_quick: bool = False) -> Compiled:
    """Machine code of LLVM IR for this CPU: compiled, or found on disk. `is_quick`: see `QUICK_LEVEL`. Raises
    RuntimeError as `optimised_module`."""
    with Uninterrupted():  # llvmlite frees twice what an interrupt catches it freeing
        initialise_llvm()
        key = key_of(source, *target_key(), *(["quick"] if is_quick else []))
        code = store_of("objects").get_or_make(key, lambda: object_code(source, is_quick))
        return Compiled(load_object(code, source), source)


def load_object(code: bytes, source: str) -> Any:
    """An object file made of the LLVM IR `source` in memory: by the names of its functions their addresses,
    which are good as long as this lives.

    All sections of a file lie side by side. (MCJIT takes memory for each of them wherever the system has
    some; where that is 2 GB away, in a process with much memory, code that refers to its constants by their
    distance cannot be linked, and LLVM ends the process.)
    """
    library = JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in _DEFINED.findall(source):
        library.export_symbol(name)
    return library.link(_linker(), f"library{next(_libraries)}")


_DEFINED = re.compile(r"^define (?!internal)[^@\n]*@([\w.$]+)\(", re.MULTILINE)
_libraries = itertools.count()


@cache
def _linker() -> Any:
    """What loads all object files of the process."""
    linker = create_lljit_compiler(target_machine(), use_jit_link=True)
    linker._owned = True  # by nobody: at the interpreter's end it would be gone before its libraries
    return linker
