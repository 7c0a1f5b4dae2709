"""The libraries measured beside each other, each in a long-lived process of its environment.

A peer's environment is a virtual environment in `$BENCH_PEERS` (default: `~/.cache/tinygrad-bench`), made by
`bench/setup_peers.sh`; this library runs in the environment that runs the benchmark.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.child import ROOT, Child
from bench.workloads.base import BEFORE, JITTED, OURS, PUBLIC


@dataclass(frozen=True)
class Library:
    """Where a peer runs."""

    environment: str | None = None
    """the name of its virtual environment; None: the one that runs the benchmark"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """environment variables that its user would set"""
    cache_variable: str | None = None
    """the environment variable that says in which folder it keeps what it compiled, if it does"""
    threads_variable: str = "THREADS"
    """the environment variable that says how many threads it has"""


LIBRARIES = {
    OURS: Library(cache_variable="XDG_CACHE_HOME"),
    JITTED: Library(cache_variable="XDG_CACHE_HOME"),
    "torch": Library("torch"),
    "torch.compile": Library("torch", cache_variable="TORCHINDUCTOR_CACHE_DIR"),
    "jax": Library("jax"),
    PUBLIC: Library("tinygrad-0.14", {"DEV": "CPU"}, "XDG_CACHE_HOME", "NUM_CPU_THREADS"),
}
PEERS = tuple(LIBRARIES)


def environments_folder() -> Path:
    return Path(os.environ.get("BENCH_PEERS", Path.home() / ".cache" / "tinygrad-bench"))


def interpreter(peer: str) -> Path:
    """The Python that runs `peer`, whether it is there or not."""
    environment = LIBRARIES[peer].environment
    if environment is None:
        return Path(sys.executable)
    return environments_folder() / environment / "bin" / "python"


def available_peers() -> list[str]:
    return [peer for peer in PEERS if interpreter(peer).exists()]


class Peer(Child):
    """A running worker."""

    def __init__(self, name: str, threads: int, cache: str | None = None, before: Path | None = None) -> None:
        """`cache`: the folder for what it compiles, in place of the user's. `before`: the folder of this
        library's earlier checkout, whose workloads and code this runs."""
        library, python = LIBRARIES[name], interpreter(name)
        self.library = name
        variables = {
            **library.variables, library.threads_variable: str(threads),
            **({library.cache_variable: cache} if library.cache_variable and cache else {}),
            **({} if before is None else {"PYTHONPATH": str(before)}),
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        super().__init__(name if before is None else BEFORE, [str(python), "-m", "bench.worker", name],
                         threads, variables, before or ROOT)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The worker's answer. One that died is begun again, after a ChildError."""
        try:
            return super().ask(**command)
        finally:
            if self.process.poll() is not None:
                self.start()
