"""What every device says alike: of a kernel that its compiler refuses, of a dtype that it lacks, of memory
that there is not. What each says where its driver or compiler is missing stands in its own tests."""
from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from tinygrad import Device, Tensor, dtypes
from tinygrad.device import Buffer, CompiledDevice
from tinygrad.helpers import GlobalCounters

WRONG = {
    "CPU": "define void @k() {\n  wrong\n}",
    "CPU:C": "void k(float *p) {\n  p[0] = wrong;\n}",
    "CL": "__kernel void k(__global float *p) {\n  p[0] = wrong;\n}",
    "WEBGPU": "@compute @workgroup_size(1) fn k() {\n  let x = wrong;\n}",
    "CUDA:EMULATED": 'extern "C" __global__ void k(float *p) {\n  p[0] = wrong;\n}',
    "AMD:EMULATED": 'extern "C" __global__ void k(float *p) {\n  p[0] = wrong;\n}',
    "METAL:EMULATED": "kernel void k(device float *p) {\n  p[0] = wrong;\n}",
}
"""A kernel with a mistake in its second line, for each device that compiles."""


def opened(name: str) -> CompiledDevice:
    """A device; skips where it is not here."""
    try:
        return Device[name]
    except (ImportError, OSError, RuntimeError) as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_does_not_compile_is_shown_with_numbers_and_the_compilers_words(name: str) -> None:
    device = opened(name)
    with pytest.raises(RuntimeError, match=r"(?s)does not accept this kernel.*wrong.*\n    2  .*wrong"):
        device.compile(WRONG[name])


@pytest.mark.parametrize("name", [*WRONG, "PYTHON"])
def test_memory_that_there_is_not_is_an_error_with_what_is_used(name: str) -> None:
    opened(name)
    gc.collect()
    used = GlobalCounters.mem_used
    said = f"{name} has no 1,125,899,906,842,624 bytes left: {used:,} are used"
    with pytest.raises(MemoryError, match=said):
        Buffer(name, 1 << 50, dtypes.uint8).allocate()
    assert GlobalCounters.mem_used == used
    assert (Tensor([1.0, 2.0], device=name) + 1).tolist() == [2, 3]


WITHOUT_LLVM = """
import sys
sys.modules["llvmlite"] = None
from tinygrad import Device
try:
    Device[sys.argv[1]]
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["CPU", "CL", "WEBGPU", "PYTHON", "CUDA:EMULATED"])
def test_a_device_says_when_it_is_opened_that_llvmlite_is_missing(name: str) -> None:
    opened(name)
    command = [sys.executable, "-c", WITHOUT_LLVM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"{name} needs llvmlite: python3 -m pip install llvmlite", done.stderr


def test_metal_says_which_devices_have_float64() -> None:
    opened("METAL:EMULATED")
    x = Tensor([1.5], device="METAL:EMULATED", dtype=dtypes.float64)
    with pytest.raises(ValueError, match=r"Metal device has no float64; CPU, CPU:C and PYTHON do"):
        (x * 3).realize()
