"""The libraries measured beside each other, each in a long-lived process of its environment.

A peer's environment is a virtual environment in `$BENCH_PEERS` (default: `~/.cache/tinygrad-bench`), made by
`bench/setup_peers.sh`; this library runs in the environment that runs the benchmark.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from bench.workloads.base import BEFORE, JITTED, OURS, PUBLIC

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 900.0
"""Seconds that a peer may take for one answer. The public tinygrad needs 120 for its slowest first step."""


@dataclass(frozen=True)
class Library:
    """Where a peer runs."""

    environment: str | None = None
    """the name of its virtual environment; None: the one that runs the benchmark"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """environment variables that its user would set"""
    cache_variable: str | None = None
    """the environment variable that says in which folder it keeps what it compiled, if it does"""


LIBRARIES = {
    OURS: Library(cache_variable="XDG_CACHE_HOME"),
    JITTED: Library(cache_variable="XDG_CACHE_HOME"),
    "torch": Library("torch"),
    "torch.compile": Library("torch", cache_variable="TORCHINDUCTOR_CACHE_DIR"),
    "jax": Library("jax"),
    PUBLIC: Library("tinygrad-0.14", {"DEV": "CPU"}, "XDG_CACHE_HOME"),
}
PEERS = tuple(LIBRARIES)
THREAD_VARIABLES = ("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUM_CPU_THREADS")


class PeerError(RuntimeError):
    """A peer could not do what was asked; the text is its own."""


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


class Peer:
    """A running worker. Ask it one thing at a time; while it waits it uses no processor time."""

    def __init__(self, name: str, threads: int, cache: str | None = None, before: Path | None = None) -> None:
        """`cache`: the folder for what it compiles, in place of the user's. `before`: the folder of this
        library's earlier checkout, whose workloads and code this runs."""
        self.name = name if before is None else BEFORE
        self.library = name
        self.folder = before or ROOT
        library, python = LIBRARIES[name], interpreter(name)
        self.command = [str(python), "-m", "bench.worker", name]
        self.environment = {
            **os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), **library.variables,
            **({library.cache_variable: cache} if library.cache_variable and cache else {}),
            **({} if before is None else {"PYTHONPATH": str(before)}),
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        self.start()

    def start(self) -> None:
        """Begin the process; one that has died may be begun again."""
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=self.environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The worker's answer. Raises PeerError where it failed, died, or took longer than `PATIENCE`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        impatience = Timer(PATIENCE, self.process.kill)
        impatience.start()
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            impatience.cancel()
        if not line:
            status = self.process.wait()
            self.start()
            raise PeerError(f"{self.name} has ended with status {status}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker."""
        self.process.communicate()
