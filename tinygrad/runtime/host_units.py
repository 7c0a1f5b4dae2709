"""The matrix units of this CPU's cores, where the system lets this process use them."""
from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

from tinygrad.renderer.matrix_units import AMX, DOT_BF16, MatrixUnit
from tinygrad.runtime.llvm import host_features

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


def has_features(*names: str) -> bool:
    """Whether this CPU has these features, and CPU_FEATURES has not taken any of them away."""
    features = set(host_features().split(","))
    return all(f"+{name}" in features and f"-{name}" not in features for name in names)


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
