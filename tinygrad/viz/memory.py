"""Memory over time: what is used when, and which of the user's lines own the peak.

In: the moments at which buffers get memory and lose it. Out, once they are counted: a series of (moment,
bytes), and the owners at the highest.
"""
from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.observer import MemoryChange
from tinygrad.viz.events import numbers, taken

MOST_POINTS = 100_000
"""Changes that are kept; the oldest go first."""
MOST_ARENAS = 64


Moments: TypeAlias = tuple[np.ndarray[Any, Any], int, int]
"""when memory of so many bytes was taken (less than none: given back), and the number of its owner"""


class Change(MemoryChange):
    """Memory that a line gets again and again, and the moments at which it did that are not counted yet."""

    def __init__(self, size: int, owner: int) -> None:
        self.size = size
        self.owner = owner
        """its number"""
        self.when_taken = numbers()
        self.when_returned = numbers()
        self.taken = self.when_taken.append  # type: ignore[assignment,method-assign]  # no Python step
        self.returned = self.when_returned.append  # type: ignore[assignment,method-assign]


class Held(NamedTuple):
    """Who holds memory."""

    line: int
    device: str


@frozen
class ArenaRecord:
    """Intermediates in one piece of memory: (offset, bytes, first step, last step, line) of each."""

    device: str
    size: int
    values: tuple[tuple[int, int, int, int, int], ...]

    @property
    def without_reuse(self) -> int:
        """What they would take if none lay where another was before."""
        return sum(value[1] for value in self.values)


class MemoryRecord:
    """The memory of a recording."""

    def __init__(self) -> None:
        self.change_of: dict[tuple[int, str, int], Change] = {}
        self.owners: list[Held] = []
        self.owner_of: dict[tuple[int, str], int] = {}
        self.held = np.zeros(0)
        """bytes of each owner, now"""
        self.at_peak = np.zeros(0)
        self.used = 0
        self.peak = 0
        self.peak_at = 0.0
        self.last_points: deque[Any] = deque()
        """tables of (moment, bytes used), the last of them"""
        self.arenas: list[ArenaRecord] = []
        self.lock = threading.RLock()  # a signal that ends the program may come while it is held

    def owner(self, line: int, device: str) -> int:
        """The number of who holds memory of a device for a line."""
        found = self.owner_of.get((line, device))
        if found is None:
            found = self.owner_of[line, device] = len(self.owners)
            self.owners.append(Held(line, device))
        return found

    def change(self, line: int, device: str, size: int) -> Change:
        """That a line gets so many bytes of a device."""
        with self.lock:
            what = line, device, size
            return self.change_of.get(what) or self.change_of.setdefault(
                what, Change(size, self.owner(line, device)))

    def returned(self) -> list[Moments]:
        """What was given back and is not counted yet: that is to be counted now."""
        return [(taken(change.when_returned), -change.size, change.owner)
                for change in list(self.change_of.values()) if change.when_returned]

    def taken(self) -> list[Moments]:
        """What was taken, of which an observer was told as it was."""
        return [(taken(change.when_taken), change.size, change.owner)
                for change in list(self.change_of.values()) if change.when_taken]

    def count(self, new: list[Moments]) -> None:
        """Count what was taken and given back."""
        if not new:
            return
        with self.lock:
            lengths = [len(moments) for moments, _, _ in new]
            moments, sizes, owners = (np.concatenate([of[0] for of in new]), np.repeat(
                [of[1] for of in new], lengths), np.repeat([of[2] for of in new], lengths))
            order = np.argsort(moments, kind="stable")
            moments, sizes, owners = moments.take(order), sizes.take(order), owners.take(order)
            used = self.used + np.cumsum(sizes)
            self.held = np.concatenate([self.held, np.zeros(len(self.owners) - len(self.held))])
            highest = int(np.argmax(used))
            if used[highest] > self.peak:
                self.peak, self.peak_at = int(used[highest]), float(moments[highest])
                self.at_peak = self.held + totals(owners[:highest + 1], sizes[:highest + 1], len(self.held))
            self.held += totals(owners, sizes, len(self.held))
            self.used = int(used[-1])
            self.last_points.append(np.stack([moments, used], 1))
            while sum(map(len, self.last_points)) - len(self.last_points[0]) >= MOST_POINTS:
                self.last_points.popleft()

    @property
    def points(self) -> Any:
        """(moment, bytes used), the last of them."""
        return np.concatenate([np.zeros((0, 2)), *self.last_points])[-MOST_POINTS:]

    def peak_owners(self) -> dict[Held, int]:
        """Who had how many bytes at the peak."""
        return {self.owners[i]: int(size) for i, size in enumerate(self.at_peak.tolist()) if size > 0}

    def place(self, arena: ArenaRecord) -> None:
        """Remember an arena; of many equal ones, one."""
        if len(self.arenas) < MOST_ARENAS and arena not in self.arenas:
            self.arenas.append(arena)


def totals(owners: Any, sizes: Any, count: int) -> Any:
    """The bytes of each owner."""
    return np.bincount(owners, sizes, count)
