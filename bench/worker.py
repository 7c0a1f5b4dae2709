"""One library in its own process: a command a line comes in, an answer a line goes out. `peers` starts it.

    {"do": "setup", "workload": name}    -> {"seconds": of the first step, "size": mean size of the result's
                                             items, "sample": some of them}
    {"do": "run", "repeats": n}          -> {"seconds": [of each step], "kernels": of a step, of this library}
    {"do": "version"}                    -> {"version": text}

A failure answers {"error": text}. The end of the input ends the process.
"""
from __future__ import annotations

import gc
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import answer_lines
from bench.workloads import JITTED, OURS, PUBLIC, WORKLOADS, Step

PACKAGES = {OURS: "tinygrad", JITTED: "tinygrad", PUBLIC: "tinygrad", "torch": "torch",
            "torch.compile": "torch", "jax": "jax"}
SAMPLE = 64
"""Items of a result that are compared between peers."""


class Worker:
    """The step that is set up now, and the commands on it."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.step: Step | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "setup":
                return self.setup(command["workload"])
            case "run":
                before = self.kernels
                seconds = self.run(command["repeats"])
                return {"seconds": seconds, "kernels": (self.kernels - before) // len(seconds)}
            case "version":
                return {"version": metadata.version(PACKAGES[self.peer])}
            case unknown:
                raise ValueError(f"no command {unknown!r}")

    def setup(self, name: str) -> dict[str, Any]:
        self.step = None
        gc.collect()
        workload = next(w for w in WORKLOADS if w.name == name)
        step = workload.setups[self.peer]()
        start = time.perf_counter()
        result = step()
        seconds = time.perf_counter() - start
        self.step = step
        return {"seconds": seconds, **summary(result)}

    @property
    def kernels(self) -> int:
        """How many kernels have been started so far; 0 for libraries that do not say."""
        if self.peer not in (OURS, JITTED):
            return 0
        from tinygrad import GlobalCounters

        return GlobalCounters.kernel_count

    def run(self, repeats: int) -> list[float]:
        assert self.step is not None, "set up a workload first"
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return times


def summary(result: Any) -> dict[str, Any]:
    """What is compared of a result: the mean size of its items, and some of them, always the same."""
    if hasattr(result, "numpy"):
        result = result.float().numpy()
    items = np.asarray(result).astype(np.float32).ravel()
    places = np.random.default_rng(0).integers(0, items.size, SAMPLE)
    return {"size": float(np.abs(items).mean(dtype=np.float64)), "sample": items[places].tolist()}


def main(peer: str) -> None:
    """Answer commands until the input ends."""
    if peer not in (OURS, JITTED):  # `import tinygrad` means the one of the peer's environment, not this one
        root = str(Path(__file__).resolve().parent.parent)
        sys.path[:] = [folder for folder in sys.path if folder not in ("", root)]
    answer_lines(lambda: Worker(peer).answer)


if __name__ == "__main__":
    main(sys.argv[1])
