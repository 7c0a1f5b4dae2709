"""What tests of recordings share: a block that is recorded, and what its recording says."""
from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np

from tinygrad import Tensor, observer
from tinygrad.viz.recorder import Recorder
from tinygrad.viz.recording import Exporter, Json


@contextmanager
def recorded(keeps_stages: bool = True) -> Iterator[Recorder]:
    recorder = Recorder(keeps_stages)
    observer.active = recorder
    try:
        yield recorder
    finally:
        observer.active = None


def here() -> int:
    frame: FrameType | None = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def exported(recorder: Recorder) -> Json:
    found = Exporter(recorder).export()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # it is JSON


def line_of(recording: Json, kernel: Json) -> tuple[str, int]:
    file, line, _ = recording["lines"][kernel["lines"][0]]["frames"][0]
    return Path(file).name, line


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))
