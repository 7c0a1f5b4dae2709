"""What this CPU has: cores, their vectors, registers, and matrix units that the system lets processes use."""
from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

from tinygrad.helpers import getenv
from tinygrad.renderer.matrix_units import AMX, DOT_BF16, MatrixUnit

NEEDS: tuple[tuple[MatrixUnit, frozenset[str]], ...] = (
    *((unit, frozenset({"amx-tile", feature, "avx512f"}))
      for unit, feature in zip(AMX, ("amx-bf16", "amx-int8"), strict=True)),
    (DOT_BF16, frozenset({"avx512bf16", "avx512f"})),
)
"""The features of a CPU, as LLVM names them, that make up a unit."""
SLOW_DOTS = "+amx-bf16"
"""Cores that have this run a dot product of bfloat16 where they run two multiply-adds of float32 (110 GFLOP/s
beside 237 on two of an Emerald Rapids server): without tiles they are better off widening."""
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
"""Of Linux on x86-64."""


RESTS_ON = {"avx512vl": ("avx512f",), "avx512vnni": ("avx512f",), "avx512bw": ("avx512f",),
            "avx512f": ("avx2", "fma", "f16c"),
            "avxvnni": ("avx2",), "avx2": ("avx",),
            "fma": ("avx",), "f16c": ("avx",), "avx": ("sse4.2",), "sse4.2": ("sse4.1",),
            "sse4.1": ("ssse3",), "ssse3": ("sse3",)}
"""Features that go, in LLVM and in C compilers, when one of these is taken away."""


@cache
def host_features() -> str:
    """This CPU's features as LLVM writes them; the environment's CPU_FEATURES adds to them (`-avx512f`)."""
    import llvmlite.binding as llvm  # which takes long to import

    found = str(llvm.get_host_cpu_features().flatten())
    extra = str(getenv("CPU_FEATURES", ""))
    return f"{found},{extra}" if extra else found


def has_features(*names: str) -> bool:
    """Whether this CPU has these features, and CPU_FEATURES has not taken any of them away."""
    features = set(host_features().split(","))
    return all(f"+{name}" in features and not _is_taken_away(name, features) for name in names)


def _is_taken_away(name: str, features: set[str]) -> bool:
    return f"-{name}" in features or any(_is_taken_away(n, features) for n in RESTS_ON.get(name, ()))


def vector_bytes() -> int:
    """Bytes of the widest vectors that kernels may use."""
    return 64 if has_features("avx512f") else 32 if has_features("avx2") else 16


def vector_registers() -> int:
    """How many vector registers a core has."""
    return 32 if has_features("avx512f") or has_features("neon") else 16


def has_multiply_add() -> bool:
    """Whether one instruction multiplies, adds, and rounds once."""
    return has_features("fma") or has_features("neon")


def host_units() -> tuple[MatrixUnit, ...]:
    """The units that kernels may use."""
    found = [unit for unit, features in NEEDS if has_features(*features)]
    if SLOW_DOTS in host_features().split(","):
        found = [unit for unit in found if unit is not DOT_BF16]
    return tuple(unit for unit in found if not unit.by_rows or tiles_allowed())


@cache
def tiles_allowed() -> bool:
    """Ask the system for the use of tile registers, for all threads of this process and processes forked from
    it. Linux refuses where it is older than 5.16 or a signal stack is too small for them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None).syscall
    return int(call(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of(operations: int, moved_bytes: int) -> float:
    """About the least time that so much takes on this CPU's cores, whose memory has 50 GB/s: what is long by
    this is long."""
    return operations / host_rate() + moved_bytes * 2e-11


@cache
def host_rate() -> float:
    """About what this CPU computes in a second: two multiply-adds a cycle of 2.5 GHz in each lane."""
    return 1e10 * (vector_bytes() // 4) * usable_cores()
