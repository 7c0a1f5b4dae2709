"""Memory over time: what is used when, and which of the user's lines own the peak.

In: buffers as they get memory and lose it. Out: a series of (moment, bytes), and the owners at the highest.
"""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

MOST_POINTS = 100_000
"""Changes that are kept; the oldest go first."""
MOST_ARENAS = 64


class Held(NamedTuple):
    """What is known of a piece of memory."""

    line: int
    device: str


@dataclass(frozen=True)
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
        self.used = 0
        self.peak = 0
        self.peak_at = 0.0
        self.owners: dict[Held, int] = {}
        """bytes, now"""
        self.at_peak: dict[Held, int] | None = None
        """bytes at the peak; None while now is the peak"""
        self.series: deque[tuple[float, int]] = deque(maxlen=MOST_POINTS)
        self.arenas: list[ArenaRecord] = []

    def take(self, moment: float, size: int, held: Held) -> None:
        """Memory was given to somebody."""
        self.used += size
        self.owners[held] = self.owners.get(held, 0) + size
        if self.used > self.peak:
            self.peak, self.peak_at, self.at_peak = self.used, moment, None
        self.series.append((moment, self.used))

    def give_back(self, moment: float, size: int, held: Held) -> None:
        """Memory is free again."""
        if self.at_peak is None:
            self.at_peak = dict(self.owners)
        self.used -= size
        left = self.owners.get(held, 0) - size
        if left > 0:
            self.owners[held] = left
        else:
            self.owners.pop(held, None)
        self.series.append((moment, self.used))

    def peak_owners(self) -> dict[Held, int]:
        """Who had how many bytes at the peak."""
        return dict(self.owners if self.at_peak is None else self.at_peak)

    def place(self, arena: ArenaRecord) -> None:
        """Remember an arena; of many equal ones, one."""
        if len(self.arenas) < MOST_ARENAS and arena not in self.arenas:
            self.arenas.append(arena)
