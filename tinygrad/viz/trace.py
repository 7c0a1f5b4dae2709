"""A trace of what ran, as Perfetto and Chrome's about:tracing read it, written while the program runs.

In: a `Recorder`'s events. Out: the JSON array format, whose end may be missing, so a program that dies leaves
a trace too. A file has at most `MOST_BYTES`; how many events are not in it is said in its last one.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tinygrad.viz.events import Table
from tinygrad.viz.recorder import HOST, Recorder

MOST_BYTES = 256 << 20
HOST_PROCESS, DEVICE_PROCESS = 1, 2
AT_ONCE = 16
"""Events that are formatted together."""


class TraceWriter:
    """A trace in the making. Raises OSError where the file cannot be written."""

    def __init__(self, recorder: Recorder, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.recorder = recorder
        self.path = path
        self.most_bytes = most_bytes
        self.count = 0
        """events written"""
        self.left_out = 0
        self.tracks = 0
        self.fronts: dict[tuple[int, int], str] = {}
        """by site and track: the text of an event, with places for its times"""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file: TextIO = path.open("w", encoding="utf-8")
        self.written = self.file.write("[\n")
        self.process(HOST_PROCESS, "Python")
        self.process(DEVICE_PROCESS, "devices")

    def process(self, number: int, name: str) -> None:
        self.line({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}})

    def line(self, event: dict[str, Any]) -> None:
        self.written += self.file.write(json.dumps(event) + ",\n")

    def follow(self) -> None:
        """Write the recorder's events since this was called last, as far as they are still known."""
        self.events(self.recorder.log.new_events())
        self.file.flush()

    def events(self, table: Table) -> None:
        """Write events, as far as there is room."""
        self.name_tracks()
        times = np.stack([table[:, 2] - self.recorder.began, table[:, 3] - table[:, 2]], 1) * 1e6
        keys = list(zip(table[:, 1].astype(int).tolist(), table[:, 0].astype(int).tolist(), strict=True))
        fronts = self.fronts
        for number, track in set(keys) - fronts.keys():
            fronts[number, track] = self.front(number, track)
        for at in range(0, len(keys), AT_ONCE):
            if self.written > self.most_bytes:
                return
            text = "".join([fronts[key] for key in keys[at:at + AT_ONCE]])
            self.written += self.file.write(text % tuple(times[at:at + AT_ONCE].ravel().tolist()))
            self.count += min(AT_ONCE, len(keys) - at)

    def front(self, number: int, track: int) -> str:
        """An event of a site, with places for its time and duration."""
        site = self.recorder.sites[number]
        lines = [str(self.recorder.lines.all[n]) for n in site.lines[:4]]
        arguments: dict[str, Any] = {"kind": site.kind}
        if lines:
            arguments["lines"] = lines
            module = self.recorder.lines.all[site.lines[0]].module
            if module:
                arguments["module"] = module
        if site.bytes:
            arguments["bytes"] = site.bytes
        name = site.name if site.kind in ("kernel", "copy", "mark") else f"{site.kind} {site.name}".strip()
        process = HOST_PROCESS if self.recorder.tracks[track].startswith(HOST) else DEVICE_PROCESS
        if site.kind == "mark":  # a moment; %.0s takes the duration, and shows nothing of it
            text = json.dumps({"ph": "i", "s": "p", "pid": process, "tid": track + 1, "cat": site.kind,
                               "name": name, "args": {**arguments, "color": site.color}}).replace("%", "%%")
            return text[:-1] + ', "ts": %.3f}%.0s,\n'
        text = json.dumps({"ph": "X", "pid": process, "tid": track + 1, "cat": site.kind, "name": name,
                           "args": arguments}).replace("%", "%%")
        return text[:-1] + ', "ts": %.3f, "dur": %.3f},\n'

    def name_tracks(self) -> None:
        """Name the tracks that are new."""
        while self.tracks < len(self.recorder.tracks):
            name = self.recorder.tracks[self.tracks]
            process = HOST_PROCESS if name.startswith(HOST) else DEVICE_PROCESS
            self.tracks += 1
            self.line({"ph": "M", "pid": process, "tid": self.tracks, "name": "thread_name",
                       "args": {"name": name}})

    def close(self, count: int) -> None:
        """End the trace: memory over time, and how many of so many events are left out."""
        if self.file.closed:
            return
        recorder = self.recorder
        self.left_out = max(0, count - self.count)
        for moment, used in recorder.memory.points.tolist():
            self.line({"ph": "C", "pid": DEVICE_PROCESS, "name": "memory",
                       "ts": (moment - recorder.began) * 1e6, "args": {"bytes": int(used)}})
        self.file.write(json.dumps({"ph": "M", "pid": HOST_PROCESS, "name": "process_labels",
                                    "args": {"labels": f"{self.left_out} events left out"}}) + "\n]\n")
        self.file.close()


def write_trace(recorder: Recorder, path: str | os.PathLike[str], events: Table, count: int) -> None:
    """Write a trace of these events, of so many in all. Raises OSError."""
    writer = TraceWriter(recorder, Path(path))
    writer.events(events)
    writer.close(count)
