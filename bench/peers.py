"""The libraries measured beside each other, each in a long-lived process of its environment.

A peer's environment is a virtual environment in `$BENCH_PEERS` (default: `~/.cache/tinygrad-bench`), made by
`bench/setup_peers.sh`; this library runs in the environment that runs the benchmark.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"torch": "torch", "torch.compile": "torch", "jax": "jax"}
"""For each peer but this library, the name of its environment."""
PEERS = ("tinygrad", *ENVIRONMENTS)


class PeerError(RuntimeError):
    """A peer could not do what was asked; the text is its own."""


def environments_folder() -> Path:
    return Path(os.environ.get("BENCH_PEERS", Path.home() / ".cache" / "tinygrad-bench"))


def interpreter(peer: str) -> Path:
    """The Python that runs `peer`, whether it is there or not."""
    if peer not in ENVIRONMENTS:
        return Path(sys.executable)
    return environments_folder() / ENVIRONMENTS[peer] / "bin" / "python"


def available_peers() -> list[str]:
    return [peer for peer in PEERS if interpreter(peer).exists()]


class Peer:
    """A running worker. Ask it one thing at a time; while it waits it uses no processor time."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        counts = dict.fromkeys(("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.process = subprocess.Popen(
            [str(interpreter(name)), "-m", "bench.worker", name], cwd=ROOT, env={**os.environ, **counts},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The worker's answer. Raises PeerError where it failed or has died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"{self.name} has ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker."""
        self.process.communicate()
