"""tinygrad's settings that do nothing here: accepted by `Context`, and named in one warning where the
environment sets them.

They choose how tinygrad's compiler works, and no result depends on them but where `UNUSED` says so. Settings
that mean here what they mean there (TRAINING, DEFAULT_FLOAT, BEAM) are defined where they act.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from tinygrad.helpers import ContextVar


class Unused(NamedTuple):
    """A setting that does nothing here."""

    default: Any
    """tinygrad's, with which nobody needs a warning"""
    instead: str = ""
    """what does that here, if anything does"""


class Ignored(ContextVar):
    """A setting with a value that nobody reads."""

    def __init__(self, key: str, default: Any) -> None:
        self.register(key)
        self.value = default


UNUSED: Mapping[str, Unused] = {
    # numbers
    "FLOAT16": Unused(0, "DEFAULT_FLOAT=HALF"),
    "EMULATED_DTYPES": Unused(""),
    # what is computed where
    "IMAGE": Unused(0, "DEV=CL:IMAGES"),
    "NUM_CPU_THREADS": Unused(0, "THREADS"),
    "CPU_COUNT": Unused(0, "THREADS"),
    "ALLOW_DEVICE_USAGE": Unused(1),
    "MAX_BUFFER_SIZE": Unused(0),
    "MAX_KERNEL_BUFFERS": Unused(0),
    "LRU": Unused(1),
    "NO_MEMORY_PLANNER": Unused(0),
    "RING": Unused(1),
    "ALL2ALL": Unused(0),
    "ALLREDUCE_CAST": Unused(1),
    # how kernels are made
    "TC": Unused(1),
    "USE_TC": Unused(1),
    "TC_SELECT": Unused(-1),
    "TC_OPT": Unused(0),
    "AMX": Unused(0),
    "NOLOCALS": Unused(0, "NOOPT=1"),
    "SPLIT_REDUCEOP": Unused(1),
    "TRANSCENDENTAL": Unused(1),
    "DISABLE_FAST_IDIV": Unused(1),
    "USE_ATOMICS": Unused(0),
    "FUSE_OPTIM": Unused(0),
    "FUSE_ARANGE": Unused(0),
    "FUSE_ATTENTION": Unused(0),
    "RANGEIFY": Unused(0),
    "PCONTIG": Unused(0),
    "TUPLE_ORDER": Unused(1),
    "OPENPILOT_HACKS": Unused(0),
    "PARALLEL": Unused(0),
    "JITBEAM": Unused(0, "BEAM"),
    "JIT_BATCH_SIZE": Unused(32),
    "CAPTURING": Unused(1),
    "CCACHE": Unused(1, "CACHELEVEL"),
    "SCACHE": Unused(1, "CACHELEVEL"),
    # what is checked and shown
    "SPEC": Unused(1, "CHECK"),
    "CHECK_OOB": Unused(0, "CHECK"),
    "VALIDATE_WITH_CPU": Unused(0),
    "DISALLOW_BROADCAST": Unused(0),
    "CAPTURE_PROCESS_REPLAY": Unused(0),
    "NULL_ALLOW_COPYOUT": Unused(0),
    "TRACEMETA": Unused(1),
    "DEBUG_RANGEIFY": Unused(0, "DEBUG"),
    "TRACK_MATCH_STATS": Unused(0),
    "REWRITE_STACK_LIMIT": Unused(250_000),
}

DEVICES = ("CPU", "GPU", "CL", "CUDA", "NV", "AMD", "HIP", "METAL", "QCOM", "WEBGPU", "PYTHON", "LLVM",
           "CLANG")
"""variables by which tinygrad once chose the device"""


def register() -> None:
    """Make the settings known to `Context` that nothing else defines, and warn of those that the environment
    sets."""
    for name, unused in UNUSED.items():
        if name not in ContextVar.registry:
            Ignored(name, unused.default)
    found = ignored(os.environ)
    if found:
        warnings.warn("the environment has variables of tinygrad's that do nothing here: "
                      f"{', '.join(found)}; docs/for_users_of_tinygrad.md says which ones do", stacklevel=3)


def ignored(environment: Mapping[str, str]) -> list[str]:
    """The variables that do nothing, with what to write instead.

    >>> ignored({"IMAGE": "2", "TC": "1", "CUDA": "1", "DEBUG": "2"})
    ['IMAGE=2 (see DEV=CL:IMAGES)', 'CUDA=1 (see DEV=CUDA)']
    """
    unused = {name: known for name, known in UNUSED.items() if type(ContextVar.registry.get(name)) is Ignored}
    found = {name: known.instead for name, known in unused.items()
             if environment.get(name, "") not in ("", str(known.default))}
    found |= {name: f"DEV={name}" for name in DEVICES if environment.get(name, "0") not in ("", "0")}
    return [f"{name}={environment[name]}" + (f" (see {instead})" if instead else "")
            for name, instead in found.items()]
