"""CPU:C, the CPU through a C compiler: readable kernels, and a check on those that LLVM makes.

Kernels are C (`renderer/c.py`), compiled by clang or gcc into a shared object and loaded with dlopen. Memory,
threads, lists of kernels and limits are those of `runtime/cpu.py`. Starting a compiler costs 60 ms and more a
kernel, which the default CPU device saves.
"""
from __future__ import annotations

import _ctypes
import ctypes
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tinygrad.frozen import frozen
from tinygrad.helpers import getenv, numbered
from tinygrad.renderer.c import CRenderer
from tinygrad.renderer.machine import Machine
from tinygrad.runtime.cpu import CPUAllocator, HostDevice, host

FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-w", "-shared", "-fPIC",
         # each operation is rounded once, as written; nobody reads errno or the exception flags
         "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
         # integers wrap; comparing vectors of long long makes vectors of long
         "-fwrapv", "-flax-vector-conversions",
         # the plan says what runs in lanes; gcc 12's vectorizer breaks down on some of the other loops
         "-fno-tree-vectorize")


@cache
def version_of(compiler: str) -> str:
    """What the compiler at a path says of itself."""
    words = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return words.partition("\n")[0]


@frozen
class HostCompiler:
    """A compiler of the host that is run as a program."""

    user: str
    """what needs it"""
    language: str
    variable: str
    """of the environment, which may say which it is"""
    names: tuple[str, ...]
    """what is looked for on the path"""
    otherwise: str
    """what to do where there is none"""

    @property
    def path(self) -> str:
        """The path of the compiler: what the environment says, or the first of its names there is. Raises
        RuntimeError where there is none."""
        asked = str(getenv(self.variable, ""))
        for name in (asked,) if asked else self.names:
            found = shutil.which(name)
            if found:
                return found
        missing = f"{self.variable} names {asked!r}, which is not" if asked else \
            f"none of {', '.join(self.names)} is"
        raise RuntimeError(f"{self.user} needs a {self.language} compiler, and {missing} there: "
                           f"{self.otherwise}")

    @property
    def version(self) -> str:
        """What the compiler says of itself."""
        return version_of(self.path)

    def compile(self, source: str, path: Path, flags: Sequence[str], libraries: Sequence[str] = (),
                shown: str = "") -> None:
        """Write a shared object. Raises RuntimeError with the compiler's words and the source, or as much of
        it as is to be `shown`."""
        command = [self.path, *flags, "-o", str(path), "-", *libraries]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if done.returncode:
            said = f"{self.path} does not accept this kernel:\n{done.stderr}\n{numbered(shown or source)}"
            raise RuntimeError(said)


C_COMPILER = HostCompiler(
    "CPU:C", "C", "CC", ("clang", "gcc", "cc"), "install clang or gcc (apt-get install clang; xcode-select "
    "--install), or use the CPU device, which needs neither")


def target_flags() -> list[str]:
    """Flags for this CPU's instructions; CPU_FEATURES as the CPU device takes it (`-avx512f`)."""
    features = [f for f in str(getenv("CPU_FEATURES", "")).split(",") if f]
    return ["-march=native", *(f"-m{'no-' if f[0] == '-' else ''}{f[1:]}" for f in features)]


class SharedObject:
    """A loaded library, unloaded when the last kernel that holds it is gone."""

    def __init__(self, path: Path) -> None:
        self.image = path.read_bytes()
        self.library = ctypes.CDLL(str(path))
        weakref.finalize(self, _ctypes.dlclose, self.library._handle).atexit = False

    def address(self, name: str) -> int:
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0


def compile_c(source: str) -> SharedObject:
    """C source as loaded machine code. Raises RuntimeError with the compiler's words and the source."""
    with tempfile.TemporaryDirectory(prefix="tinygrad-") as folder:
        path = Path(folder) / "kernel.so"
        C_COMPILER.compile(source, path, (*FLAGS, *target_flags()), ("-lm",))
        return SharedObject(path)


class CDevice(HostDevice):
    """The host's cores, through a C compiler."""

    def compile(self, source: str) -> SharedObject:
        return compile_c(source)

    @property
    def compiler(self) -> str:
        return C_COMPILER.version

    def disassembly(self, code: SharedObject) -> str:
        """As objdump prints it, where that is installed."""
        if not shutil.which("objdump"):
            return "install binutils (objdump) to see machine code"
        with tempfile.TemporaryDirectory(prefix="tinygrad-") as folder:
            path = Path(folder) / "kernel.so"
            path.write_bytes(code.image)
            return subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True,
                                  check=False).stdout


def open_device(name: str) -> CDevice:
    """The CPU as C. Raises RuntimeError where there is no compiler."""
    _ = C_COMPILER.path
    machine = replace(host(), l2_bytes=Machine.l2_bytes, l3_bytes=0, matrix_units=())
    return CDevice(name, CPUAllocator(name), CRenderer(machine=machine))
