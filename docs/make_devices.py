"""Writes docs/devices.md: every family of tests on every device that computes.

    python docs/make_devices.py [FAMILY...] [--device=NAME...]

A family is a file of tests, run as `DEV=NAME pytest`. With arguments only those cells are measured again; the
others keep what the page says. Tests that time out (a quarter of an hour a cell) count as failed.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "devices.md"
DEVICES = ("CPU", "CPU:C", "PYTHON", "CL", "CL:IMAGES", "WEBGPU", "CUDA:EMULATED", "AMD:EMULATED",
           "METAL:EMULATED")
FAMILIES = {
    "renderer": "operations, dtypes, memory, lanes: programs written by hand",
    "transcendental": "exp2, log2, sin over their whole range",
    "tensor": "what tensors compute, against NumPy",
    "gradient": "derivatives",
    "random": "random numbers",
    "nn": "layers, losses, convolutions",
    "optim": "optimizers",
    "jit": "capture and replay",
    "linalg": "decompositions, equations, inverses",
    "division": "quotients and remainders, of all signs",
    "ulp": "how far functions are from the nearest number",
    "fp8": "8-bit floats",
    "views": "movement of memory",
    "writes": "assignment in place",
    "variables": "sizes that are bound later",
    "transforms": "grad, vjp, jvp, vmap",
    "function": "gradients by the user",
    "state": "saving and loading",
    "interop": "NumPy, DLPack, buffers",
    "errors": "what is refused, and how that is said",
    "programs": "random programs, against NumPy",
}
EMULATED = {"renderer", "transcendental", "nn", "jit"}
LARGE = {"PYTHON": {"transcendental", "nn", "jit"}, "CUDA:EMULATED": EMULATED, "AMD:EMULATED": EMULATED,
         "METAL:EMULATED": EMULATED}
"""Families whose sizes are too large for a device that runs an operation a microsecond, or compiles a kernel
in a third of a second; and programs of one thread, for devices that run blocks of them."""
SECONDS = 900
HEAD = re.compile(r"^\| family \| what it tests \|(.*)\|$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \|(.*)\|$", re.MULTILINE)

INTRODUCTION = """# Devices

`python -m tinygrad` lists the devices that this library knows, with the reason where one cannot be used here.

| name | runs | through | needs |
| --- | --- | --- | --- |
| `CPU` (`LLVM`) | LLVM IR, on threads | llvmlite, in process | nothing but pip |
| `CPU:C` (`CLANG`) | C with vectors, on the same threads | clang, gcc, or what `CC` names | a compiler |
| `PYTHON` | the program, one operation after another | NumPy | nothing |
| `PYTHON:BLOCKS` | the same, by plans of blocks of threads | NumPy | nothing |
| `PYTHON:CUDA`, `:AMD`, `:GFX1100`, `:METAL` | the same, with its matrix units and copies | NumPy | nothing |
| `CL` (`GPU`) | OpenCL C | pyopencl, any OpenCL 1.2 device | the extra `opencl` (on Linux with PoCL) |
| `CL:IMAGES` | the same; float32 read in fours as images | pyopencl | an OpenCL device with images |
| `QCOM` | the same, on a GPU of Qualcomm | pyopencl | its OpenCL driver |
| `WEBGPU` | WGSL | wgpu: Vulkan, Metal, Direct3D | the extra `webgpu`, a driver (mesa-vulkan-drivers) |
| `CUDA` (`NVIDIA`, `NV`) | CUDA C | NVRTC and the driver API | a GPU, its driver, the extra `cuda` |
| `CUDA:PTX` | PTX, made by LLVM | the driver API | a GPU, its driver, cuda-bindings |
| `AMD` (`HIP`) | HIP C | hiprtc and the HIP runtime | a GPU, ROCm |
| `METAL` | Metal (MSL) | the Metal framework | macOS |
| `CUDA:EMULATED` | the same CUDA C, as C++ | g++ or clang++, on fibers | a C++ compiler |
| `AMD:EMULATED` | the same HIP C | as above | as above |
| `METAL:EMULATED` | the same Metal | as above | as above |
| `NULL` | nothing: schedules and compiles as the CPU does | llvmlite | nothing |
| `DISK:path` | nothing: holds a file, read in parts when they are moved | - | nothing |

`DEV=CPU:C`, `Device.DEFAULT = "PYTHON"` or `Tensor(..., device="CPU:C")` chooses a device; `t.to(device)`
moves a tensor between any two. [Adding a device](adding_a_device.md) takes a module of a hundred lines.

`PYTHON` is the reference: it checks that every access lies inside its buffer, and it runs blocks of threads
with shared memory and barriers, where it reports races. An operation on an item takes it about a microsecond.

The emulated devices run what is written for a GPU where there is none: a header of ours says what the words
of CUDA C, HIP C or Metal mean in C++ (`tinygrad/runtime/emulated`). Blocks run on the cores, the threads of a
block are fibers, and a barrier holds each of them until all have come; where some never come, that is an
error. `CUDA`, `AMD` and `METAL` themselves have been run only against drivers that imitate them
(`test/test_cuda.py`, `test_amd.py`, `test_metal.py`), and their kernels compiled by
`test/test_gpu_compilers.py`: CUDA C by NVRTC for sm_80, sm_90 and sm_100, PTX by ptxas for the same, objects
for gfx942 and gfx1100 by LLVM. Metal has no float64.

`CL` on the CPU goes through PoCL, which takes 90 ms to compile a kernel, most of it reading its own headers,
and 33 ms more at the first run for the size of its blocks; it keeps both on disk (`~/.cache/pocl`), and the
next process takes 22 ms. `QCOM` has not been run on a GPU of Qualcomm; its kernels are those of `CL:IMAGES`,
which PoCL runs.

WGSL leaves more to a device than the other languages do. When `WEBGPU` opens one it asks by small kernels:
whether `fma` rounds once (where it does not, `renderer/wgsl_multiply_add.py` multiplies and adds in integers
or in float64); how often a thread may go round its loops (Mesa's llvmpipe ends them after 65,535 rounds
without a word, and counts the one in which a loop ends: innermost loops are written with longer bodies or
out, and refused where that does not do); and whether an int32 made an int64 is compared as one (Mesa 22.3
finds 2 < 3 wrong). int64, uint64 and float64 are there where the driver has them; elsewhere the error names
devices that have them.

## Passes

Made by `python docs/make_devices.py`: tests passed of tests run, a family (`test/test_NAME.py`) a row.
A test whose dtype a device refuses is skipped and not counted. A dash means: not run, it is not made for this
device or too large for it. An empty cell has not been measured yet; numbers of tests differ along a row where
cells were measured at different times, between which tests were added.

"""


def main(arguments: list[str]) -> None:
    """Run what was asked for, and write the page."""
    devices = [a.partition("=")[2] for a in arguments if a.startswith("--device=")] or list(DEVICES)
    families = [a for a in arguments if not a.startswith("--")] or list(FAMILIES)
    for family in families:
        for device in devices:
            result = "-" if family in LARGE.get(device, ()) else passes(family, device)
            print(family, device, result, flush=True)
            PAGE.write_text(page(known_cells() | {(family, device): result}), encoding="utf-8")


def known_cells() -> dict[tuple[str, str], str]:
    """What the page says now."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows = [(family, row.split("|")[1:]) for family, row in ROW.findall(text) if family in FAMILIES]
    head = HEAD.search(text)
    devices = [name.strip() for name in head[1].split("|")] if head else []
    return {(family, device): cell.strip() for family, cells in rows
            for device, cell in zip(devices, cells, strict=True)}


def passes(family: str, device: str) -> str:
    """Tests passed of tests run."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "-rfE",
               f"test/test_{family}.py"]
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "DEV": device}, capture_output=True,
                              text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not done in {SECONDS} s"
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "E  ", "/")):
            print(f"    {line[:300]}", flush=True)
    counts = {word: int(number) for number, word in
              re.findall(r"(\d+) (passed|failed|error)", done.stdout.splitlines()[-1])}
    return f"{counts.get('passed', 0)} of {sum(counts.values())}"


def page(cells: dict[tuple[str, str], str]) -> str:
    """The text of the page."""
    rows = [f"| family | what it tests | {' | '.join(DEVICES)} |", "| --- " * (2 + len(DEVICES)) + "|"]
    for family, what in FAMILIES.items():
        found = " | ".join(cells.get((family, device), "") for device in DEVICES)
        rows.append(f"| `{family}` | {what} | {found} |")
    return INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
