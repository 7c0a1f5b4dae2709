"""How much memory the intermediates of a captured step share, and how little they could."""
from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.results import columns
from bench.workloads import OURS, Workload
from tinygrad.engine.replay import Replay, internal_lifetimes
from tinygrad.schedule.memory import lower_bound, plan_arena

CALLS = 3
"""A step is traced once or twice, then replayed."""


@dataclass
class ArenaRow:
    """The intermediates on one device of one captured step."""

    device: str
    values: int
    size: int
    """bytes of the arena"""
    least: int
    """the most bytes that are needed at once: no arena is smaller"""
    seconds: float
    """that planning it takes"""


def arenas_of(workload: Workload) -> list[ArenaRow]:
    """The arenas of all that is replayed in a step of `workload`."""
    gc.collect()
    before = set(map(id, replays()))
    step = workload.setups[OURS]()
    for _ in range(CALLS):
        step()
    return [row for replay in replays() if id(replay) not in before for row in rows_of(replay)]


def replays() -> list[Replay]:
    """Those that there are."""
    return [found for found in gc.get_objects() if isinstance(found, Replay)]


def rows_of(replay: Replay) -> list[ArenaRow]:
    """The arena on each device."""
    rows = []
    for device, values in internal_lifetimes(replay.places, replay.steps).items():
        start = time.perf_counter()
        arena = plan_arena(values)
        rows.append(ArenaRow(device, len(values), arena.size, lower_bound(values),
                             time.perf_counter() - start))
    return rows


def arena_table(found: Mapping[str, Sequence[ArenaRow]]) -> str:
    """Megabytes, what of them is more than needed, and milliseconds of planning."""
    lines = [["captured step", "device", "values", "MB", "least MB", "above", "planned ms"]]
    for name, rows in found.items():
        lines += [[name, row.device, str(row.values), f"{row.size * 1e-6:.2f}", f"{row.least * 1e-6:.2f}",
                   f"{row.size / max(row.least, 1) - 1:.1%}", f"{row.seconds * 1e3:.1f}"] for row in rows]
    return columns(lines)
