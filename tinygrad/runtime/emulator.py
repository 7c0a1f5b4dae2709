"""CUDA:EMULATED, AMD:EMULATED and METAL:EMULATED: kernels for GPUs, run by the CPU.

The source that `renderer/` writes for a GPU is compiled as C++ by g++ or clang++, with a header of ours
that says what the words of its language mean there (`emulated/*.h`). Blocks run on the cores; the threads
of a block are fibers, so that barriers are real: a thread that waits at one stays where it is until all
others of its block have come. So what a GPU would run is run where there is none. A kernel in which threads
disagree about a barrier is an error; accesses outside of buffers, and races, are found by `PYTHON:BLOCKS`.

Memory is the host's, but as a GPU's it is not shared with NumPy: what is not copied is not there.
"""
from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad.device import CompiledDevice
from tinygrad.frozen import frozen
from tinygrad.helpers import numbered, prod
from tinygrad.renderer.c_blocks import BlocksRenderer
from tinygrad.renderer.cuda import cuda_renderer, hip_renderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.metal import metal_renderer
from tinygrad.runtime.cpu import CPUAllocator
from tinygrad.runtime.cpu_c import HostCompiler, SharedObject
from tinygrad.runtime.launch import Arguments
from tinygrad.store import key_of, store_of

HEADERS = Path(__file__).parent / "emulated"
FLAGS = ("-x", "c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
         # each operation is rounded once, as written; integers wrap
         "-ffp-contract=off", "-fwrapv", "-fno-math-errno",
         "-U_FORTIFY_SOURCE")  # a jump to another fiber is no mistake
COMPILERS = ("g++", "clang++", "c++")
CPP_COMPILER = HostCompiler(
    "the emulator", "C++", "CXX", COMPILERS, "install g++ or clang++ (apt-get install g++; xcode-select "
    "--install), or say which by CXX")
MOST_THREADS = 1024
"""Of a block, as on the GPUs; also in blocks.h."""


@frozen
class Language:
    """A language that is emulated: what writes it, and our header with its words."""

    renderer: Callable[[], BlocksRenderer]
    header: str


LANGUAGES = {
    "CUDA": Language(cuda_renderer, "cuda.h"),
    "AMD": Language(hip_renderer, "hip.h"),
    "METAL": Language(metal_renderer, "metal.h"),
}


@cache
def headers() -> str:
    """The text of all headers, on which compiled code depends."""
    return "".join(path.read_text() for path in sorted(HEADERS.rglob("*")) if path.is_file())


def compile_cpp(text: str, shown: str = "") -> SharedObject:
    """C++ as loaded machine code, which is kept on disk. Raises RuntimeError with the compiler's words and
    the source, or as much of it as is to be `shown`."""
    kept = store_of("emulated")
    key = key_of(text, headers(), CPP_COMPILER.version, *FLAGS)
    with tempfile.TemporaryDirectory(prefix="tinygrad-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(kept.get_or_make(key, lambda: shared_object(text, path, shown)))
        return SharedObject(path)


def shared_object(text: str, path: Path, shown: str) -> bytes:
    """The file of a library compiled from C++, made at `path`."""
    CPP_COMPILER.compile(text, path, (*FLAGS, f"-I{HEADERS}"), shown=shown)
    return path.read_bytes()


@cache
def library() -> SharedObject:
    """The library that launches kernels: blocks.cpp."""
    return compile_cpp((HEADERS / "blocks.cpp").read_text())


@cache
def launch_function() -> Callable[..., int]:
    """Runs a kernel, on its arguments, in so many blocks of so many threads; 0 where it did."""
    pointer = ctypes.c_void_p
    return ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 4)(library().address("launch"))


class EmulatedAllocator(CPUAllocator):
    """Host memory that behaves as a GPU's: reached by copies alone."""

    def share(self, array: np.ndarray[Any, Any]) -> None:  # type: ignore[override]  # as Allocator
        return None

    def as_bytes(self, memory: Any, size: int) -> None:  # type: ignore[override]  # as Allocator
        return None


class EmulatedProgram:
    """A loaded kernel."""

    def __init__(self, name: str, code: SharedObject, launch: Launch) -> None:
        self.name = name
        self.code = code
        self.function = code.address("emulated")
        self.arguments = Arguments(launch)
        if prod(launch.threads) > MOST_THREADS:
            raise RuntimeError(f"kernel {name}: a block has {MOST_THREADS:,} threads at most, not "
                               f"{prod(launch.threads):,}")
        self.blocks = (ctypes.c_uint * 3)(*launch.blocks)
        self.threads = (ctypes.c_uint * 3)(*launch.threads)

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        arguments = self.arguments.set(addresses, variables)
        if launch_function()(self.function, arguments, self.blocks, self.threads):
            raise RuntimeError(f"kernel {self.name}: some threads of a block wait at a barrier that others "
                               "do not reach")


class EmulatedDevice(CompiledDevice):
    """A GPU that is not there."""

    def __init__(self, name: str, language: Language) -> None:
        renderer = language.renderer()
        super().__init__(name, EmulatedAllocator(name), renderer)
        self.header = language.header
        self.kernel = renderer.dialect.kernel

    @property
    def compiler(self) -> str:
        return CPP_COMPILER.version

    def compile(self, source: str) -> SharedObject:
        """Machine code for this CPU. Raises RuntimeError with the compiler's words and the source."""
        found = re.search(rf"{re.escape(self.kernel)} void (\w+)\(", source)
        if found is None:
            raise RuntimeError(f"this source has no kernel:\n{numbered(source)}")
        return compile_cpp(f'#include "{self.header}"\n#line 1\n{source}\nEMULATED({found[1]})\n', source)

    def load_blocks(self, name: str, code: SharedObject, launch: Launch) -> EmulatedProgram:
        return EmulatedProgram(name, code, launch)


def open_device(name: str) -> EmulatedDevice:
    """The emulator of a language. Raises RuntimeError where there is no C++ compiler."""
    _ = CPP_COMPILER.path
    return EmulatedDevice(name, LANGUAGES[name.partition(":")[0]])
