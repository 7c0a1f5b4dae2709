"""What recording costs: the same steps while nobody records, while VIZ=1 does, and while PROFILE=1 does.

The three take turns, so that a machine whose speed changes slows all of them. What recording adds is told
twice: of the fastest turns, and as the median over rounds of a turn's time over that of the turn without. A
turn has what a program pays: what is recorded while it runs, counting it, and what the session's thread does
beside it (of PROFILE, writing the trace).
"""
from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.results import columns
from bench.workloads.base import Step, normal, wait_for_tinygrad
from bench.workloads.models import integers, tinygrad_training
from tinygrad import Tensor, TinyJit, observer
from tinygrad.viz.session import Session

OFF, VIZ, PROFILE = "off", "VIZ", "PROFILE"
MODES = (OFF, VIZ, PROFILE)
WARM = 3
TINY = 200


@dataclass
class RecordingRow:
    """Seconds of a step in each mode, a turn each."""

    name: str
    seconds: dict[str, list[float]]

    def added(self, mode: str) -> tuple[float, float]:
        """What a mode adds, as a share: to the fastest turn, and in the middle of all rounds."""
        recorded, plain = self.seconds[mode], self.seconds[OFF]
        shares = [a / b for a, b in zip(recorded, plain, strict=True)]
        return min(recorded) / min(plain) - 1, statistics.median(shares) - 1


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
    row = RecordingRow(name, {mode: [] for mode in MODES})
    with sessions() as session_of:
        for mode in (VIZ, PROFILE, *[OFF] * WARM):  # recorded from the beginning, as a program is
            seconds = turn(step, 1, session_of.get(mode))
        repeats = max(1, round(burst / seconds))
        for _ in range(rounds):
            for mode in MODES:
                row.seconds[mode].append(turn(step, repeats, session_of.get(mode)) / repeats)
    return row


@contextmanager
def sessions() -> Iterator[dict[str, Session]]:
    """What VIZ and PROFILE begin, which writes into a folder that is gone afterwards."""
    with TemporaryDirectory(prefix="bench-") as folder:
        before = os.environ.get("VIZ_FOLDER")
        os.environ["VIZ_FOLDER"] = folder
        try:
            found = {VIZ: Session(page=True, trace=False), PROFILE: Session(page=False, trace=True)}
        finally:
            os.environ.pop("VIZ_FOLDER")
            if before is not None:
                os.environ["VIZ_FOLDER"] = before
        yield found
        trace = found[PROFILE].trace
        if trace is not None:
            trace.close(found[PROFILE].recorder.log.count)


@contextmanager
def recorded(session: Session) -> Iterator[None]:
    """A block that a session records, with the thread beside it that writes."""
    session.stopping.clear()
    thread = threading.Thread(target=session.watch)
    thread.start()
    observer.active = session.recorder
    try:
        yield
    finally:
        observer.active = None
        session.stopping.set()
        thread.join()


def turn(step: Step, repeats: int, session: Session | None) -> float:
    """Seconds of so many steps, recorded or not."""
    with nullcontext() if session is None else recorded(session):
        began = time.perf_counter()
        for _ in range(repeats):
            step()
        wait_for_tinygrad()
        if session is not None:
            session.recorder.settle()
        return time.perf_counter() - began


def recording_table(rows: Sequence[RecordingRow]) -> str:
    """Milliseconds of a step, and what recording adds: to the fastest turn, and in the middle of all."""
    lines: list[list[Any]] = [["a step", "ms", "VIZ adds", "median", "PROFILE adds", "median"]]
    lines += [[row.name, f"{min(row.seconds[OFF]) * 1e3:.3f}",
               *[f"{share:+.0%}" for mode in (VIZ, PROFILE) for share in row.added(mode)]] for row in rows]
    return columns(lines)
