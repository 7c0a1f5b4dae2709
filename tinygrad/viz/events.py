"""Events: what happened when, as arrays, and how often and how long each thing happened in all.

In: while a program runs, four numbers for each event (track, site, start, end), runs whose times are read
later, and lists of kernels whose runs native code counts (`runtime/cpu_times.py`). Out: once they are
settled, totals of all, and tables of the last ones for `recording.py` and `trace.py`, with a row for each
event. What native code keeps becomes rows only when somebody asks for them.
"""
from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from tinygrad.device.queue import DriverQueue, clock

MOST_EVENTS = 200_000
"""Events kept; the oldest go first."""
MOST_OF_LISTS = 20_000
"""Events of lists of kernels that are read along at a time: in a second, most programs have fewer. Writing so
many to a trace takes 10 ms."""
MOST_PENDING = 1024
"""Runs whose times were not read yet."""
MOST_KNOWN = 16_384
"""Numbers that are not counted yet, four of each event."""

Array: TypeAlias = np.ndarray[Any, Any]
Table: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
"""events in rows: track, site, start, end"""
NONE: Table = np.zeros((0, 4))
Numbers: TypeAlias = "array[float]"


class ListTimes(Protocol):
    """Runs of a list of kernels, as native code counts them."""

    runs: int
    estimated: int
    """how many of them have the times of their kernels only together"""
    since: float
    """from when on all runs are known"""

    def wait(self) -> None:
        """Return when all runs given so far are done."""

    def seconds(self) -> Array:
        """For each kernel, for how long it ran in all runs."""

    def moments(self, first: int, since: float) -> tuple[int, Array]:
        """(the number of the first run that is still known, of those from `first` on that began at `since` or
        later; for each run from that one on the moments before each kernel and after the last)."""


@dataclass(eq=False)
class WatchedList:
    """A list of kernels that runs again and again."""

    track: int
    sites: Array
    times: ListTimes
    kernels: Callable[[], Any]
    """the list, as long as it is there"""
    runs: int = 0
    """those that are counted"""
    seconds: Array = field(default_factory=lambda: np.zeros(1))
    """of each kernel in those"""
    estimated: int = 0
    """of those: the ones that have the times of their kernels only together"""
    read: int = 0
    """the runs that `EventLog.new_events` is past"""

    def table(self, first: int, since: float = 0.0) -> Table:
        """The runs from a number and a moment on that are counted and still known."""
        first, moments = self.times.moments(first, since)
        moments = moments[:max(0, self.runs - first)]
        return rows(self.track, self.sites, moments[:, :-1], moments[:, 1:])


class LastTables:
    """Tables that were added last, with as many events as are kept or somewhat more."""

    def __init__(self) -> None:
        self.tables: deque[Table] = deque()
        self.count = 0
        self.since = 0.0
        """from when on they have all events"""

    def add(self, table: Table) -> None:
        self.tables.append(table)
        self.count += len(table)
        while self.count - len(self.tables[0]) >= MOST_EVENTS:
            self.drop_first()

    def drop_before(self, moment: float) -> None:
        """Let go of tables that are older."""
        while self.tables and float(self.tables[0][:, 3].max(initial=0.0)) < moment:
            self.drop_first()

    def drop_first(self) -> None:
        gone = self.tables.popleft()
        self.count -= len(gone)
        self.since = max(self.since, float(gone[:, 3].max(initial=0.0)))


class EventLog:
    """The events of a recording, on the host's monotonic clock."""

    def __init__(self, keep_seconds: float) -> None:
        self.keep_seconds = keep_seconds
        self.known = numbers()
        """track, site, start, end of one event after the other, those that are not settled yet"""
        self.pending: deque[tuple[int, int, Any, Any, Any]] = deque()
        """(track, site, start, end, queue), start and end as timestamps: times that are not read yet"""
        self.lists: list[WatchedList] = []
        self.estimated = 0
        """runs of lists that have the times of their kernels only together"""
        self.kept = LastTables()
        self.unread = LastTables()
        """those that `new_events` is to give"""
        self.lock = threading.RLock()
        self.totals = np.zeros(64, np.int64)
        self.spent = np.zeros(64)
        self.offsets: dict[str, float] = {}
        """by queue of a driver: its clock's zero on the host's clock"""

    def wait_for(self, track: int, site: int, start: Any, end: Any, queue: Any) -> None:
        """Take note of what runs; its times are read later."""
        self.pending.append((track, site, start, end, queue))
        if len(self.pending) > MOST_PENDING:
            self.settle_single()

    def watch(self, track: int, sites: Array, times: ListTimes, kernels: Callable[[], Any]) -> None:
        """Count from now on what a list of kernels does at these sites."""
        with self.lock:
            self.lists.append(WatchedList(track, sites, times, kernels))

    def runs(self, site: int) -> int:
        """How often a site ran, as far as it is settled."""
        return int(self.totals[site]) if site < len(self.totals) else 0

    def seconds(self, site: int) -> float:
        """For how long a site ran, as far as it is settled."""
        return float(self.spent[site]) if site < len(self.spent) else 0.0

    @property
    def count(self) -> int:
        """All events that are settled."""
        return int(self.totals.sum())

    def settle(self) -> None:
        """Read the times of everything given so far, waiting for it, and count it."""
        with self.lock:
            self.settle_single()
            self.lists = [watched for watched in self.lists if self.settle_list(watched)]

    def settle_single(self, more: Table = NONE) -> None:
        """The same, but for lists of kernels, which wait in less memory; and count these events, too."""
        with self.lock:
            pending = [self.row_of(*self.pending.popleft()) for _ in range(len(self.pending))]
            table = np.concatenate([taken(self.known).reshape(-1, 4), more, np.reshape(pending, (-1, 4))])
            if len(table):
                self.add(table[:, 1].astype(np.int64), 1, table[:, 3] - table[:, 2])
                self.keep(table, table)
                self.kept.drop_before(float(table[:, 3].max()) - self.keep_seconds)

    def settle_list(self, watched: WatchedList) -> bool:
        """Count what a list did; whether it may run again. What one that is gone did becomes rows."""
        is_there = watched.kernels() is not None
        watched.times.wait()
        runs = watched.times.runs
        if runs > watched.runs:
            seconds = watched.times.seconds()
            self.add(watched.sites, runs - watched.runs, seconds - watched.seconds)
            self.estimated += watched.times.estimated - watched.estimated
            watched.runs, watched.seconds, watched.estimated = runs, seconds, watched.times.estimated
        if not is_there:
            self.kept.since = max(self.kept.since, watched.times.since)
            self.keep(watched.table(0), watched.table(watched.read))
        return is_there

    def add(self, sites: Array, runs: int, seconds: Array) -> None:
        """Count that each of these sites ran so often, for that long in all."""
        most = int(sites.max(initial=0)) + 1
        if most > len(self.totals):
            self.totals, self.spent = (np.concatenate([a, np.zeros(most, a.dtype)])
                                       for a in (self.totals, self.spent))
        self.totals += runs * np.bincount(sites, minlength=len(self.totals))
        self.spent += np.bincount(sites, seconds, len(self.spent))

    def keep(self, table: Table, unread: Table) -> None:
        """Keep events, of which some are new."""
        self.kept.add(table)
        self.unread.add(unread)

    def row_of(self, track: int, site: int, start: Any, end: Any, queue: Any
               ) -> tuple[int, int, float, float]:
        """What ran, once it has."""
        offset = self.offset_of(queue)
        return track, site, start.seconds + offset, end.seconds + offset

    def offset_of(self, queue: Any) -> float:
        """What is added to a queue's timestamps to have the host's clock."""
        if not isinstance(queue, DriverQueue):
            return 0.0
        if queue.name not in self.offsets:
            self.offsets[queue.name] = min(clock() - queue.timestamp().seconds for _ in range(3))
        return self.offsets[queue.name]

    def table(self) -> Table:
        """The last events, by when they begin: all since the first of them ended."""
        with self.lock:
            since = max([self.kept.since, *[watched.times.since for watched in self.lists]])
            found = np.concatenate([NONE, *self.kept.tables, *[w.table(0, since) for w in self.lists]])
        latest = float(found[:, 3].max(initial=0.0))
        found = found[found[:, 3] > max(since, latest - self.keep_seconds)]
        found = found[np.argsort(found[:, 3], kind="stable")][-MOST_EVENTS:]
        return found[np.argsort(found[:, 2], kind="stable")]

    def new_events(self) -> Table:
        """The events that were settled since this was asked for last, as far as they are still known, by when
        they end; of lists the last `MOST_OF_LISTS`."""
        with self.lock:
            tables = list(self.unread.tables)
            self.unread = LastTables()
            ran = [watched for watched in self.lists if watched.runs > watched.read and len(watched.sites)]
            for watched in ran:
                most = max(1, MOST_OF_LISTS // (len(ran) * len(watched.sites)))
                tables.append(watched.table(max(watched.read, watched.runs - most)))
                watched.read = watched.runs
        found = np.concatenate([NONE, *tables])
        return found[np.argsort(found[:, 3], kind="stable")]


def rows(track: Any, site: Any, start: Array, end: Array) -> Table:
    """A row for each event."""
    found = np.empty((*start.shape, 4))
    found[..., 0], found[..., 1], found[..., 2], found[..., 3] = track, site, start, end
    return found.reshape(-1, 4)


def numbers() -> Numbers:
    """Room for numbers that are not counted yet: taking note of one takes 8 bytes and makes no object."""
    return array("d")


def taken(known: Numbers) -> Array:
    """These numbers, which are no longer there; other threads may put more there meanwhile."""
    found = known[:]
    del known[:len(found)]
    return np.asarray(found)
