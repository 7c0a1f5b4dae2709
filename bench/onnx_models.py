"""`python -m bench onnx`: ONNX models beside ONNX Runtime, each in a process of its own, in turns.

ONNX Runtime does all its optimisations and has the threads that we have. Both read the model from a file, and
are given the same inputs.
"""
from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.child import Answer, Child, answer_lines, peak_bytes
from bench.onnx_files import Write
from bench.results import columns

SIZES = {"silero-vad": {"sequence": 576}}
"""How long dynamic axes are; 1 where nothing is said."""
VALUES = {"sr": np.array(16000, np.int64)}
"""Inputs that are not random."""
WARM_UP = 0.2
"""Seconds of runs that are not counted."""
OURS, THEIRS = "tinygrad", "onnxruntime"

# --- one model in one library, in a process of its own ------------------------------------------------------

Step = Callable[[], Sequence[Any]]


def our_step(path: Path, given: Mapping[str, Any]) -> Step:
    from tinygrad.device import Device
    from tinygrad.nn.onnx import OnnxRunner

    run = OnnxRunner(path)
    held = {name: run.as_value(value) for name, value in given.items()}

    def step() -> Sequence[Any]:
        results = run(held)
        Device[run.device].synchronize()
        return [results[name] for name in run.outputs]

    return step


def their_step(path: Path, given: Mapping[str, Any], threads: int) -> Step:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda: session.run(None, dict(given))


def answering(library: str, folder: Path, threads: int) -> Answer:
    """What runs the model of a folder, as asked: first its first run, whose results go to the folder."""
    start = time.perf_counter()
    with np.load(folder / "inputs.npz") as file:
        given = dict(file)
    path = folder / "model.onnx"
    step = our_step(path, given) if library == OURS else their_step(path, given, threads)
    results = [x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in step()]
    first = time.perf_counter() - start
    np.savez(folder / f"{library}.npz", *results)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        match asked["do"]:
            case "first":
                return {"seconds": first}
            case "kernels":
                from tinygrad.helpers import GlobalCounters

                before = GlobalCounters.kernel_count
                step()
                return {"kernels": GlobalCounters.kernel_count - before}
            case _:
                return {"seconds": timed(step, asked["burst"]), "peak": peak_bytes()}

    return answer


def timed(step: Callable[[], Any], burst: float) -> list[float]:
    """What each run took, of as many as `burst` seconds have, at least one."""
    seconds: list[float] = []
    end = time.perf_counter() + burst
    while not seconds or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds


# --- all of them, in turns ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnnxRow:
    """Seconds and bytes of both, ours first, and how far apart their results are."""

    name: str
    nodes: int
    kernels: int
    first: tuple[float, float]
    seconds: tuple[float, float]
    peak: tuple[int, int]
    apart: float
    """the largest difference, of the largest number of an output"""

    @property
    def ratio(self) -> float:
        return self.seconds[0] / self.seconds[1]


def row_of(name: str, write: Write, rounds: int, burst: float, threads: int) -> OnnxRow:
    """A model's row: each of both runs for `burst` seconds, `rounds` times. Raises ChildError where one
    fails."""
    with TemporaryDirectory(prefix="bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        write(folder / "model.onnx")
        nodes = write_inputs(folder, SIZES.get(name, {}))
        children, first = [], []
        for library in (OURS, THEIRS):
            command = [sys.executable, "-m", "bench.onnx_models", library, temporary, str(threads)]
            child = Child(library, command, threads, {"XDG_CACHE_HOME": temporary})
            stack.callback(child.close)
            children.append(child)
            first.append(child.ask(do="first")["seconds"])
            child.ask(do="run", burst=WARM_UP)
        kernels = children[0].ask(do="kernels")["kernels"]
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            for child, into in zip(children, seconds, strict=True):
                into += child.ask(do="run", burst=burst)["seconds"]
        peaks = [child.ask(do="run", burst=0)["peak"] for child in children]
        return OnnxRow(name, nodes, kernels, (first[0], first[1]),
                       (statistics.median(seconds[0]), statistics.median(seconds[1])),
                       (peaks[0], peaks[1]), apart(folder))


def write_inputs(folder: Path, sizes: Mapping[str, int]) -> int:
    """Random inputs for the model of a folder. Returns how many nodes it has."""
    from tinygrad.nn.onnx import OnnxRunner
    from tinygrad.onnx import random_input

    run, rng = OnnxRunner(folder / "model.onnx"), np.random.default_rng(0)
    inputs = {name: VALUES[name] if name in VALUES else random_input(said, sizes, rng)
              for name, said in run.inputs.items()}
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]  # of NumPy: it takes names
    return len(run.model.graph.nodes)


def apart(folder: Path) -> float:
    """How far apart the results are that both wrote."""
    from tinygrad.onnx import difference

    with np.load(folder / f"{OURS}.npz") as made, np.load(folder / f"{THEIRS}.npz") as wanted:
        return max(difference(made[name], wanted[name]) for name in wanted.files)


def onnx_table(rows: Sequence[OnnxRow]) -> str:
    """Milliseconds, ratios to ONNX Runtime's (below 1 where this library is faster) and their geometric mean,
    and the most memory of each process."""
    lines = [["model", "nodes", "kernels", "first ms", "theirs", "ms", "theirs", "ratio", "peak MB", "theirs",
              "apart"]]
    lines += [[row.name, str(row.nodes), str(row.kernels), *(f"{s * 1e3:.0f}" for s in row.first),
               *(f"{s * 1e3:.3f}" for s in row.seconds), f"{row.ratio:.2f}",
               *(f"{n / 1e6:.0f}" for n in row.peak), f"{row.apart:.0e}"] for row in rows]
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows)) if rows else math.nan
    return f"{columns(lines)}\ngeometric mean of the ratios: {mean:.2f}"


if __name__ == "__main__":
    answer_lines(lambda: answering(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
