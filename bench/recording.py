"""What recording costs: the same steps while nobody records, while VIZ=1 does, and while PROFILE=1 does.

The three take turns, so that a machine whose speed changes slows all of them; what recording adds is the
median over rounds of its turn's time over that of the turn without. A turn has what a program pays: what is
recorded while it runs, and counting it (of PROFILE, also writing it to a trace).
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.results import columns
from bench.workloads.base import Step, normal, wait_for_tinygrad
from bench.workloads.models import integers, tinygrad_training
from tinygrad import Tensor, TinyJit, observer
from tinygrad.viz.recorder import Recorder
from tinygrad.viz.trace import TraceWriter

OFF, VIZ, PROFILE = "off", "VIZ", "PROFILE"
MODES = (OFF, VIZ, PROFILE)
WARM = 3
TINY = 200


@dataclass
class RecordingRow:
    """Seconds of a step in each mode, a turn each."""

    name: str
    seconds: dict[str, list[float]]

    def added(self, mode: str) -> float:
        """What a mode adds, as a share."""
        pairs = zip(self.seconds[mode], self.seconds[OFF], strict=True)
        return statistics.median(recorded / plain for recorded, plain in pairs) - 1


def mnist(batch: int, is_jitted: bool) -> Step:
    """An Adam step of a convolutional network on digits."""
    return tinygrad_training(lambda networks: networks.mnist_convnet(), lambda: normal(batch, 1, 28, 28),
                             lambda: integers(10, batch), "Adam", {"lr": 0.001}, is_jitted=is_jitted)


def tiny(is_jitted: bool) -> Step:
    """Kernels of one item, each computed before the next."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(TINY):
            x = (x + 1).realize()
        return x

    start = Tensor(np.zeros(1, np.float32)).realize()
    return partial(TinyJit(chain) if is_jitted else chain, start)


STEPS: dict[str, Callable[[], Step]] = {
    "MNIST, batch 64, eager": lambda: mnist(64, False),
    "MNIST, batch 64, TinyJit": lambda: mnist(64, True),
    f"{TINY} tiny kernels, eager": lambda: tiny(False),
    f"{TINY} tiny kernels, TinyJit": lambda: tiny(True),
}


def row_of(name: str, rounds: int, burst: float) -> RecordingRow:
    """The times of one step."""
    step = STEPS[name]()
    for _ in range(WARM):
        step()
    wait_for_tinygrad()
    began = time.perf_counter()
    step()
    wait_for_tinygrad()
    repeats = max(1, round(burst / (time.perf_counter() - began)))
    row = RecordingRow(name, {mode: [] for mode in MODES})
    with TemporaryDirectory(prefix="bench-") as folder:
        recorders = {VIZ: Recorder(keeps_stages=True), PROFILE: Recorder()}
        trace = TraceWriter(recorders[PROFILE], Path(folder, "trace.json"))
        recorders[PROFILE].log.listeners.append(trace.events)
        for mode in MODES:
            turn(step, 1, recorders.get(mode))
        for _ in range(rounds):
            for mode in MODES:
                row.seconds[mode].append(turn(step, repeats, recorders.get(mode)) / repeats)
        trace.close()
    return row


def turn(step: Step, repeats: int, recorder: Recorder | None) -> float:
    """Seconds of so many steps, recorded or not."""
    observer.active = recorder
    try:
        began = time.perf_counter()
        for _ in range(repeats):
            step()
        wait_for_tinygrad()
        if recorder is not None:
            recorder.settle()
        return time.perf_counter() - began
    finally:
        observer.active = None


def recording_table(rows: Sequence[RecordingRow]) -> str:
    """Milliseconds of a step, and what recording adds."""
    lines: list[list[Any]] = [["a step", "ms", "VIZ adds", "PROFILE adds"]]
    lines += [[row.name, f"{statistics.median(row.seconds[OFF]) * 1e3:.2f}", f"{row.added(VIZ):+.0%}",
               f"{row.added(PROFILE):+.0%}"] for row in rows]
    return columns(lines)
