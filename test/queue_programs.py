"""What tests of command queues share: queues of their own, what holds them back, arrays and files."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import drawn

from tinygrad import Device, Tensor
from tinygrad.runtime import cpu_queue
from tinygrad.runtime.cpu_queue import CPUQueue, HostQueue, Timeline

LARGE = 1 << 20

rng = np.random.default_rng(11)


def opened_after(name: str) -> Iterator[Timeline]:
    """A timeline that has come to everything at the test's end: memory that was used until one of its points
    goes to whoever asks next, whose queue would wait for ever."""
    timeline = Timeline(name)
    yield timeline
    timeline.set(1 << 40)
    Device.synchronize()


@pytest.fixture
def gate() -> Iterator[Timeline]:
    """What queues can be made to wait for; open at the test's end."""
    yield from opened_after("gate")


@pytest.fixture
def other_gate() -> Iterator[Timeline]:
    """A second one."""
    yield from opened_after("other")


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work goes to queues' threads, however short."""
    monkeypatch.setattr(cpu_queue, "HAND_OVER", 0.0)


@pytest.fixture(params=[CPUQueue, HostQueue])
def queue(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue of the CPU that nobody else uses."""
    made = request.param("test")
    yield made
    made.stop()


def in_thread(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


# --- copies -------------------------------------------------------------------------------------------------


def file_of(path: Path, items: int = LARGE) -> tuple[Path, np.ndarray[Any, Any]]:
    content = drawn(items)
    content.tofile(path / "data")
    return path / "data", content


def from_file(path: Path, items: int = LARGE) -> Tensor:
    return Tensor.empty(items, device=f"DISK:{path}")
