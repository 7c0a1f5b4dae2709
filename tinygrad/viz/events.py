"""Events: what happened when, as arrays, and how often and how long each thing happened in all.

In: (track, site, start, end) while a program runs, which cost it a tuple each, and runs whose times are read
later. Out: once they are settled, tables of events for `recording.py` and `trace.py`, and totals. A table has
a row (track, site, start, end) for each event; the tables are a ring: of a long run the last events stay,
while totals count all of them.
"""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from tinygrad.device.queue import DriverQueue, clock

MOST_EVENTS = 200_000
"""Events kept; the oldest go first."""
MOST_PENDING = 1024
"""Runs whose times were not read yet."""
MOST_KNOWN = 8192
"""Events whose times are known and that were not counted yet."""

Table: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
"""events in rows: track, site, start, end"""


class EventLog:
    """The events of a recording, on the host's monotonic clock."""

    def __init__(self, keep_seconds: float) -> None:
        self.keep_seconds = keep_seconds
        self.known: deque[tuple[int, int, float, float]] = deque()
        """events that are not settled yet"""
        self.pending: deque[tuple[int, Any, Any, Any]] = deque()
        """(track, site or those of a list, (start, end) as timestamps or the times of a list, the queue or
        the point that they wait for): times that are not read yet"""
        self.tables: deque[Table] = deque()
        self.count = 0
        """events in the tables"""
        self.dropped = 0
        self.lock = threading.RLock()
        self.totals = np.zeros(64, np.int64)
        self.spent = np.zeros(64)
        self.offsets: dict[str, float] = {}
        """by queue of a driver: its clock's zero on the host's clock"""
        self.listeners: list[Callable[[Table], None]] = []
        """what each table is given to once it is settled"""

    def wait_for(self, track: int, site: Any, times: Any, order: Any) -> None:
        """Take note of what runs; its times are read later."""
        self.pending.append((track, site, times, order))
        if len(self.pending) > MOST_PENDING:
            self.settle()

    def runs(self, site: int) -> int:
        """How often a site ran, as far as it is settled."""
        return int(self.totals[site]) if site < len(self.totals) else 0

    def seconds(self, site: int) -> float:
        """For how long a site ran, as far as it is settled."""
        return float(self.spent[site]) if site < len(self.spent) else 0.0

    def settle(self) -> None:
        """Read the times of everything given so far, waiting for it, and count it."""
        with self.lock:
            tables = [self.times_of(*self.pending.popleft()) for _ in range(len(self.pending))]
            known = [self.known.popleft() for _ in range(len(self.known))]
            if known:
                rows = np.fromiter(chain.from_iterable(known), np.float64, 4 * len(known))
                tables.append(rows.reshape(-1, 4))
            if not tables:
                return
            table = tables[0] if len(tables) == 1 else np.concatenate(tables)
            sites = table[:, 1].astype(np.int64)
            most = int(sites.max(initial=0)) + 1
            if most > len(self.totals):
                self.totals, self.spent = (np.concatenate([a, np.zeros(most, a.dtype)])
                                           for a in (self.totals, self.spent))
            self.totals += np.bincount(sites, minlength=len(self.totals))
            self.spent += np.bincount(sites, table[:, 3] - table[:, 2], len(self.spent))
            self.tables.append(table)
            self.count += len(table)
            for listener in self.listeners:
                listener(table)
            self.drop_oldest()

    def times_of(self, track: int, site: Any, times: Any, order: Any) -> Table:
        """The rows of what ran, once it has."""
        if not isinstance(site, np.ndarray):
            start, end = times
            offset = self.offset_of(order)
            return np.array([[track, site, start.seconds + offset, end.seconds + offset]])
        if order is not None:
            order.queue.await_value(order.value)
        moments = np.asarray(times, np.float64)
        if moments.ndim == 2:  # seconds and nanoseconds
            moments = moments[:, 0] + moments[:, 1] * 1e-9
        table = np.empty((len(site), 4))
        table[:, 0], table[:, 1], table[:, 2], table[:, 3] = track, site, moments[:-1], moments[1:]
        return table

    def offset_of(self, queue: Any) -> float:
        """What is added to a queue's timestamps to have the host's clock."""
        if not isinstance(queue, DriverQueue):
            return 0.0
        if queue.name not in self.offsets:
            self.offsets[queue.name] = min(clock() - queue.timestamp().seconds for _ in range(3))
        return self.offsets[queue.name]

    def drop_oldest(self) -> None:
        """Let go of the events that there are too many of, or that are too old."""
        tables = self.tables
        oldest = float(tables[-1][-1, 3]) - self.keep_seconds
        while tables:
            first = tables[0]
            too_old = int(np.count_nonzero(first[:, 3] < oldest))
            if too_old == len(first):
                gone = len(first)
            elif self.count > MOST_EVENTS:
                gone = min(len(first), self.count - MOST_EVENTS)
            else:
                break
            tables.popleft()
            if gone < len(first):
                tables.appendleft(first[gone:])
            self.count -= gone
            self.dropped += gone

    def table(self) -> Table:
        """All events that are kept, by when they begin."""
        found = np.concatenate([np.zeros((0, 4)), *list(self.tables)])
        return found[np.argsort(found[:, 2], kind="stable")]
