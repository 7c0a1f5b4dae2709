"""What `VIZ=1`, `PROFILE=1` and `tinygrad.profile()` begin and end: one recorder for all of them.

`VIZ=1` writes a page when the program ends, and now and then before, so that a program that is killed leaves
one, and `python -m tinygrad.viz` shows it while it runs. `PROFILE=1` writes a trace while the program runs,
and prints tables at its end.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinygrad import observer
from tinygrad.device import Device
from tinygrad.device.queue import clock
from tinygrad.helpers import cache_dir
from tinygrad.viz.page import bounded_page, write_page
from tinygrad.viz.recorder import Recorder
from tinygrad.viz.recording import MOST_SECONDS, SECONDS_MEANWHILE, Exporter
from tinygrad.viz.table import KINDS, NOTHING, Row, rows_of, table
from tinygrad.viz.trace import TraceWriter, write_trace

FIRST_PAGE = 5.0
"""Seconds after which a page of a running program is written."""
SHARE, TRACE_SHARE = 0.02, 0.03
"""Of the time, what writing the page takes at most, and what writing the trace does: then each waits."""
LOOK = 1.0
"""Seconds between looks at whether there is something to write, and counts of what ran: 40,000 tiny kernels,
of 40 bytes each."""
ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that end a program which handles none: `kill`, and a terminal that is closed."""
MOST_PAGES = 30
"""Recordings that stay in the folder; the oldest go first."""


def folder() -> Path:
    """Where recordings are: VIZ_FOLDER, or a folder of the user's cache."""
    given = os.getenv("VIZ_FOLDER")
    return Path(given) if given else cache_dir() / "viz"


def say(text: str) -> None:
    """Tell the user, beside what the program prints."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


class Session:
    """A recording of the whole process."""

    def __init__(self, page: bool, trace: bool) -> None:
        self.process = os.getpid()
        self.recorder = Recorder(keeps_stages=page)
        self.exporter = Exporter(self.recorder) if page else None
        script = re.sub(r"\W+", "-", Path(sys.argv[0]).stem).strip("-") or "python"
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{script}-{self.process}"
        self.page = folder() / f"{name}.html"
        self.unwritable: set[Path] = set()
        """places that the user was told of"""
        self.stopping = threading.Event()
        self.writing = threading.Lock()
        self.trace: TraceWriter | None = None
        if trace:
            self.trace = self.in_some_folder(lambda path: TraceWriter(self.recorder, path),
                                             folder() / f"{name}.trace.json")
        self.is_profile = trace
        self.thread = threading.Thread(target=self.watch, daemon=True, name="tinygrad-viz")

    def begin(self) -> None:
        """Record from now on, until the process ends."""
        observer.active = self.recorder
        atexit.register(self.end)
        early = getattr(threading, "_register_atexit", None)
        if early is not None:  # once threads can no longer be started, limits cannot be measured
            early(self.measure_limits)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forget)
        with contextlib.suppress(ValueError):  # in another thread than the main one
            for number in ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self.terminated)
        self.thread.start()

    def terminated(self, number: int, frame: Any) -> None:
        """Write what there is, then end as the signal says."""
        self.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def measure_limits(self) -> None:
        for device in {record.device for record in self.recorder.kernels}:
            with contextlib.suppress(Exception):
                Device[device].limits()

    def watch(self) -> None:
        """Now and then, write what there is."""
        next_trace, next_page = 0.0, clock() + FIRST_PAGE
        while not self.stopping.wait(LOOK):
            with contextlib.suppress(Exception):
                self.recorder.count()
                if self.trace is not None and clock() > next_trace:
                    self.recorder.settle()
                    started = clock()
                    self.write_trace(self.trace)
                    next_trace = clock() + (clock() - started) / TRACE_SHARE
                if self.exporter is not None and clock() > next_page:
                    started = clock()
                    self.write_page()
                    next_page = clock() + max(FIRST_PAGE, (clock() - started) / SHARE)

    def write_trace(self, trace: TraceWriter, is_last: bool = False) -> None:
        """Write what is new to the trace; there is none any more where that cannot be done."""
        with self.writing:
            if trace.file.closed:
                return
            try:
                trace.follow()
                if is_last:
                    trace.close(self.recorder.log.count)
            except OSError as error:
                say(f"cannot write {trace.path}: {error.strerror or error}; the trace ends there")
                self.trace = None
                with contextlib.suppress(OSError):  # what is still to be written
                    trace.file.close()

    def write_page(self) -> Path | None:
        """Write the page; returns where it is."""
        if self.exporter is None:
            return None
        with self.writing:
            self.exporter.seconds = MOST_SECONDS if self.stopping.is_set() else SECONDS_MEANWHILE
            html = bounded_page(self.exporter)
            found: Path | None = self.in_some_folder(lambda path: self.written(path, html), self.page)
            return found

    @staticmethod
    def written(path: Path, html: str) -> Path:
        write_page(path, html)
        pages = sorted(path.parent.glob("*.html"), key=lambda p: p.stat().st_mtime)
        for old in pages[:-MOST_PAGES]:
            old.unlink(missing_ok=True)
        return path

    def in_some_folder(self, make: Callable[[Path], Any], path: Path) -> Any:
        """What `make` gives for a path; for one in the folder for temporary files where that cannot be
        written; None where neither can."""
        for place in (path, Path(tempfile.gettempdir()) / path.name):
            try:
                return make(place)
            except OSError as error:
                if place not in self.unwritable:
                    self.unwritable.add(place)
                    say(f"cannot write {place}: {error.strerror or error}")
        return None

    def end(self) -> None:
        """Write everything, and record no longer."""
        if self.stopping.is_set() or os.getpid() != self.process:
            return
        self.stopping.set()
        observer.active = None
        try:
            self.recorder.settle()
        except Exception as error:
            say(f"some times are missing from the recording: {error}")
        if self.is_profile:
            say(self.tables())
        if self.trace is not None:
            self.write_trace(self.trace, is_last=True)
        if self.trace is not None:
            say(f"trace: {self.trace.path} (open it at ui.perfetto.dev)"
                + (f"; {self.trace.left_out:,} events are not in it" if self.trace.left_out else ""))
        if self.exporter is not None:
            found = self.write_page()
            if found is not None:
                say(f"recording: {found}")

    def tables(self) -> str:
        """What PROFILE prints."""
        parts = [table(rows_of(self.recorder, by), by) for by in KINDS]
        return "\n\n".join(part for part in parts if part != NOTHING) or NOTHING


_session: Session | None = None


def begin(page: bool, trace: bool) -> None:
    """Begin the recording that the settings VIZ and PROFILE ask for."""
    global _session
    if _session is None:
        _session = Session(page, trace)
        _session.begin()


def forget() -> None:
    """In a forked child: nothing is recorded."""
    observer.active = None


class Profile:
    """What ran within `tinygrad.profile()`: tables, and a trace."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.before = totals(recorder)
        self.began = clock()
        self.ended: float | None = None
        self.after: list[tuple[int, float]] | None = None

    def end(self) -> None:
        """Stop counting."""
        self.recorder.settle()
        self.after = totals(self.recorder)
        self.ended = clock()

    def rows(self, by: str = "kernel") -> list[Row]:
        """A row for each kernel, `line`, `module` or `stage` (what the host did), the dearest first. Raises
        ValueError for another `by`."""
        return rows_of(self.recorder, by, self.grown())

    def grown(self) -> list[tuple[int, float]]:
        """How often each site ran in the block, and for how long."""
        if self.after is None:
            self.recorder.settle()
        after = totals(self.recorder) if self.after is None else self.after
        before = self.before + [(0, 0.0)] * (len(after) - len(self.before))
        return [(n - m, t - s) for (n, t), (m, s) in zip(after, before, strict=True)]

    def table(self, by: str = "kernel", most: int = 20) -> None:
        """Print the dearest rows of a table by `kernel`, `line`, `module` or `stage`.

        >>> import tinygrad
        >>> with tinygrad.profile() as p:
        ...     y = (Tensor.ones(4).contiguous() + 1).realize()
        >>> p.table()  # doctest: +ELLIPSIS
        kernel  runs ...
        """
        print(table(self.rows(by), by, most))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that ui.perfetto.dev opens. Raises OSError."""
        ended = self.ended if self.ended is not None else clock()
        table = self.recorder.log.table()
        within = table[(table[:, 2] >= self.began) & (table[:, 2] <= ended)]
        write_trace(self.recorder, path, within, sum(count for count, _ in self.grown()))


def totals(recorder: Recorder) -> list[tuple[int, float]]:
    """How often each site ran, and for how long."""
    log = recorder.log
    return [(log.runs(i), log.seconds(i)) for i in range(len(recorder.sites))]


@contextmanager
def profile() -> Iterator[Profile]:
    """Record what runs in the block: `with tinygrad.profile() as p: ...`, then `p.table()`, `p.rows()` and
    `p.save("trace.json")`. Work that was given before has run when the block begins, and the block's own when
    it ends; so has what other threads did meanwhile. Blocks may be within each other, and those of several
    threads end in any order; inside a program under VIZ=1 or PROFILE=1 a block shows its part of that.

    >>> import tinygrad
    >>> with tinygrad.profile() as p:
    ...     y = (Tensor([1.0, 2.0]) * 2).realize()
    >>> [row.count for row in p.rows()]
    [1]
    """
    Device.synchronize()
    recorder = _blocks.begin()
    recorder.settle()
    found = Profile(recorder)
    try:
        yield found
    finally:
        Device.synchronize()
        _blocks.end(recorder)
        found.end()


class Blocks:
    """The blocks of `profile()` that are open; they share one recorder, which goes with the last of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorder: Recorder | None = None
        self.open = 0
        self.before: observer.Observer | None = None
        """who watched before the first of them"""
        self.ended = threading.Event()

    def begin(self) -> Recorder:
        """A block begins: who records it."""
        with self.lock:
            watcher = observer.active
            if isinstance(watcher, Recorder) and watcher is not self.recorder:
                return watcher
            if self.recorder is None:
                self.before, self.recorder = watcher, Recorder()
                self.ended = threading.Event()
                observer.active = self.recorder
                threading.Thread(target=count_until, args=(self.ended, self.recorder), daemon=True,
                                 name="tinygrad-profile").start()
            self.open += 1
            return self.recorder

    def end(self, recorder: Recorder) -> None:
        """A block that it recorded ends."""
        with self.lock:
            if recorder is not self.recorder:
                return
            self.open -= 1
            if self.open == 0:
                if observer.active is recorder:
                    observer.active = self.before
                self.recorder = self.before = None
                self.ended.set()


def count_until(ended: threading.Event, recorder: Recorder) -> None:
    """Count now and then what a recorder took note of, until that has ended."""
    while not ended.wait(LOOK):
        recorder.count()


_blocks = Blocks()
