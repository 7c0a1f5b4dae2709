"""CUDA C compiled for an architecture by NVRTC, which pip installs and which needs no GPU."""
from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from tinygrad.helpers import numbered
from tinygrad.store import key_of, store_of

INSTALL = 'pip install "tinygrad[cuda]" (cuda-bindings, nvidia-cuda-nvrtc-cu12, nvidia-cuda-runtime-cu12)'
OPTIONS = ("--std=c++17",
           # each operation is rounded once, as written
           "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


@cache
def _nvrtc() -> Any:
    """The module `cuda.bindings.nvrtc`. Raises ImportError where it or its library is not installed."""
    try:
        module = importlib.import_module("cuda.bindings.nvrtc")
        module.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the latter where the library is missing
        raise ImportError(f"CUDA C is compiled by NVRTC, which is not installed: {INSTALL}") from error
    return module


def nvrtc_version() -> str:
    """The version of the compiler."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"NVRTC {major}.{minor}"


def _include_options() -> list[str]:
    """Where CUDA's own headers (cuda_fp16.h) are, if they are installed."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    found = pathfinder.find_nvidia_header_directory("cudart")
    return [f"--include-path={found}"] if found else []


def compile_cuda(source: str, architecture: str) -> bytes:
    """CUDA C as machine code (a cubin) for an architecture such as sm_90, kept on disk. Raises RuntimeError
    with the compiler's words and the source."""
    options = [f"--gpu-architecture={architecture}", *OPTIONS, *_include_options()]
    kept = store_of("cuda")
    key = key_of(source, nvrtc_version(), *options)
    return kept.get_or_make(key, lambda: _compiled(source, options))


def _compiled(source: str, options: list[str]) -> bytes:
    nvrtc = _nvrtc()
    program = _value(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        status, = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            words = bytearray(_value(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, words)
            raise RuntimeError(f"NVRTC does not accept this kernel:\n{words.rstrip(bytes(1)).decode()}\n"
                               f"{numbered(source)}")
        code = bytearray(_value(nvrtc.nvrtcGetCUBINSize(program)))
        _value(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _value(answer: tuple[Any, ...]) -> Any:
    """What a call gave beside its status. Raises RuntimeError where that says that it failed."""
    status, *values = answer
    if int(status):
        raise RuntimeError(f"NVRTC failed: {status.name}")
    return values[0] if values else None
