"""What a GPU does with this library, beside PyTorch as it is and compiled: `python -m bench gpu`.

    python -m bench gpu --json gpu.json                everything, on CUDA
    python -m bench gpu --only matmul --only softmax   rows whose name contains one of these
    python -m bench gpu --small --device CL            every row at small sizes, on any device

A figure is the median of `--rounds` turns, in which the libraries alternate; the clock runs from the first
launch of a turn to the end of the last one. The first row is a copy, whose rate bounds those that only move
memory. A library that fails at a row leaves a dash there, and its words below the table; so does one whose
first result is not that of the others. With `--json FILE` every row is in the file as soon as it is measured,
and a second run measures the rows that are missing there: a run that was cut short is continued.
"""
from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu_rows import FULL, SMALL, GPURow, all_rows
from bench.results import BASELINE, columns, disagreements
from bench.worker import summary
from bench.workloads import OURS
from bench.workloads.base import Step
from tinygrad import Device

TURN = 0.2
"""Seconds that a turn takes at least, if `MOST_STEPS` do: the clock's own cost is shared by its steps."""
MOST_STEPS = 20
WARM_STEPS = 3
"""Until kernels are compiled and replays are captured."""
Wait = Callable[[], object]


class NoGPU(RuntimeError):
    """There is nothing to measure on."""


@dataclass
class Measured:
    """What was found of one row."""

    name: str
    operations: float
    moved_bytes: float
    moves: bool
    """whether memory bounds it"""
    seconds: dict[str, float] = field(default_factory=dict)
    """of a step, by library"""
    failures: dict[str, str] = field(default_factory=dict)


def libraries(device: str, wanted: Sequence[str] | None = None) -> dict[str, Wait]:
    """The libraries that are here, each with what waits for its device. Raises NoGPU with the reason where
    the device cannot be opened."""
    try:
        Device[device]
    except (ImportError, OSError, RuntimeError) as error:
        raise NoGPU(f"bench gpu cannot use {device}: {error}") from error
    found: dict[str, Wait] = {OURS: lambda: Device[device].synchronize()}
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    return {**found, **{name: wait for name in ("torch", "torch.compile") if not wanted or name in wanted}}


def torch_device() -> str:
    """Where PyTorch runs."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def seconds(step: Step, wait: Wait, steps: int) -> float:
    """Of one step, of so many that are started together."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps


def measured(row: GPURow, waits: Mapping[str, Wait], rounds: int) -> Measured:
    """The median time of each library, in turns."""
    found = Measured(row.name, row.operations, row.moved_bytes, row.moves)
    answers: dict[str, dict[str, Any]] = {}
    turns: dict[str, tuple[Step, int]] = {}
    times: dict[str, list[float]] = {}
    for name, wait in waits.items():
        with _failing(found, name):
            step = row.setups[name]()
            answers[name] = summary(as_float(step()))
            seconds(step, wait, WARM_STEPS)
            turns[name] = step, min(max(int(TURN / seconds(step, wait, 1)), 1), MOST_STEPS)
            times[name] = []
    for _ in range(rounds):
        for name, (step, steps) in list(turns.items()):
            with _failing(found, name):
                times[name].append(seconds(step, waits[name], steps))
            if name in found.failures:
                del turns[name]
    found.seconds = {name: median(times[name]) for name in turns if times[name]}
    found.failures |= disagreements(answers, row.tolerance)
    return found


class _failing:
    """What is raised inside, whatever it is, is a library's result for the row."""

    def __init__(self, found: Measured, name: str) -> None:
        self.found = found
        self.name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self.found.failures[self.name] = f"{type(error).__name__}: {error}"
        return True


def as_float(result: Any) -> Any:
    """A result on the host as float32, which NumPy has, whatever library it is of."""
    return result.float().cpu() if hasattr(result, "cpu") else result.float()


def table(rows: Sequence[Measured], names: Sequence[str]) -> str:
    """Milliseconds of each library, PyTorch's time over ours, our rates, and of rows that memory bounds the
    share of the copy's rate, whichever library copied fastest."""
    copied = max((r.moved_bytes / t for r in rows if r.name.startswith("copy") for t in r.seconds.values()),
                 default=0.0)
    lines = [["row", *(f"{name} ms" for name in names), f"{BASELINE} / ours", "TFLOP/s", "GB/s", "of copy"]]
    for row in rows:
        times = [row.seconds.get(name) for name in names]
        cells = [row.name, *("-" if t is None else f"{t * 1e3:.3f}" for t in times)]
        ours, theirs = row.seconds.get(OURS), row.seconds.get(BASELINE)
        rates = ["-"] * 4
        if ours is not None:
            rates = [f"{theirs / ours:.2f}" if theirs is not None else "-",
                     f"{row.operations / ours * 1e-12:.1f}",
                     f"{row.moved_bytes / ours * 1e-9:.0f}" if row.moved_bytes else "-",
                     f"{row.moved_bytes / ours / copied:.0%}" if row.moves and copied else "-"]
        lines.append([*cells, *rates])
    failures = [f"{row.name}: {name}: {words}" for row in rows for name, words in row.failures.items()]
    return "\n".join([columns(lines), *failures])


def kept(file: Path | None, device: str) -> list[Measured]:
    """The rows that an earlier run on the device has put into the file without a failure."""
    if file is None or not file.exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = [Measured(**row) for row in record["rows"]] if record["device"] == device else []
    return [row for row in rows if not row.failures]


def write(file: Path, device: str, rows: Sequence[Measured]) -> None:
    """Put what was measured into the file, all or nothing."""
    partial = file.with_suffix(".partial")
    record = {"device": device, "compiler": Device[device].compiler, "rows": [asdict(row) for row in rows]}
    partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
    partial.replace(file)


def run_gpu(only: Sequence[str] | None, rounds: int, *, device: str = "CUDA", small: bool = False,
            peers: Sequence[str] | None = None, file: Path | None = None) -> tuple[str, bool]:
    """(the table of all rows, or of those whose name contains one of `only`; whether all libraries did all
    of them). Raises NoGPU where the device cannot be opened."""
    waits = libraries(device, peers)
    default, Device.DEFAULT = Device.DEFAULT, device
    done = {row.name: row for row in kept(file, Device.DEFAULT)}
    try:
        for row in all_rows(SMALL if small else FULL, torch_device()):
            if row.name in done or (only and not any(text in row.name for text in only)):
                continue
            print(row.name, file=sys.stderr, flush=True)
            done[row.name] = measured(row, waits, rounds)
            print(table([done[row.name]], list(waits)), file=sys.stderr, flush=True)
            if file is not None:
                write(file, Device.DEFAULT, list(done.values()))
            gc.collect()
    finally:
        Device.DEFAULT = default
    rows = list(done.values())
    return table(rows, list(waits)), not any(row.failures for row in rows)
