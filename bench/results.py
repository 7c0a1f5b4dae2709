"""What was measured, and what follows: medians, ratios, rates, shares of the machine's limit, tables."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.workloads import BEFORE, JITTED, OURS, OWN, Workload
from tinygrad.device.limits import Limits

BASELINE = "torch"
"""The peer that the geometric mean of the speed-ups is over: PyTorch as its users call it, not compiled."""


@dataclass
class Row:
    """What was measured of one workload."""

    workload: str
    first: dict[str, float] = field(default_factory=dict)
    """seconds of each peer's first step, compile included"""
    again: dict[str, float] = field(default_factory=dict)
    """seconds of the first step in another process, which finds what the one before it compiled"""
    times: dict[str, list[float]] = field(default_factory=dict)
    """seconds of each later step"""
    kernels: int = 0
    """how many kernels this library starts in a step"""
    failures: dict[str, str] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)
    """what the machine could do, measured in each round"""

    def middle(self, peer: str) -> float | None:
        """The median of a peer's steps, None where it has none."""
        return median(self.times[peer]) if self.times.get(peer) else None

    @property
    def limit(self) -> Limits | None:
        """The median of what the machine could do in the row's rounds."""
        return middle_limits(self.limits) if self.limits else None

    @property
    def best_peer(self) -> float | None:
        """The least median among other libraries."""
        others = (self.middle(peer) for peer in self.times if peer not in OWN)
        return min((m for m in others if m), default=None)

    def ratio(self, peer: str) -> str:
        """One of our own medians over the least among other libraries."""
        ours, best = self.middle(peer), self.best_peer
        return "-" if ours is None or best is None else f"{ours / best:.2f}"


def middle_limits(measured: Sequence[Limits]) -> Limits:
    """The median of each rate."""
    rates = (median(getattr(limits, name) for limits in measured)
             for name in ("gflops", "read_gbs", "copy_gbs", "bfloat16_gflops"))
    return Limits(measured[0].threads, measured[0].lanes, *rates)


def least_seconds(workload: Workload, limits: Limits) -> float:
    """The time that no program can beat: the slower of arithmetic and memory.

    A written byte and a read one go at the rate of a copy, what is read beyond that at the rate of reading.
    """
    paired = min(workload.read_bytes, workload.written_bytes)
    copied = 2 * paired + (workload.written_bytes - paired)
    memory = copied / limits.copy_gbs + (workload.read_bytes - paired) / limits.read_gbs
    return max(workload.operations / limits.peak(workload.dtype), memory) * 1e-9


def disagreements(answers: dict[str, dict[str, Any]], tolerance: float) -> dict[str, str]:
    """For each peer whose first result is not that of the others, how it differs.

    Items are compared with their medians over the peers, relative to the mean size of an item.
    """
    if not answers:
        return {}
    size = median(a["size"] for a in answers.values())
    expected = [median(items) for items in zip(*(a["sample"] for a in answers.values()), strict=True)]
    found = {}
    for peer, answer in answers.items():
        errors = [abs(x - y) for x, y in zip(answer["sample"], expected, strict=True)]
        if not math.isclose(answer["size"], size, rel_tol=tolerance):
            found[peer] = f"a result of mean size {answer['size']:.6g}, where others have {size:.6g}"
        elif not all(error <= tolerance * 10 * size for error in errors):  # a NaN is no small error
            found[peer] = f"items of the result differ, by {max(errors):.3g}; their mean size is {size:.3g}"
    return found


def speedup(rows: Sequence[Row], baseline: str = BASELINE) -> float | None:
    """The geometric mean of the baseline's time over ours, over the rows that both have; None without any."""
    ratios = [theirs / ours for row in rows
              if (ours := row.middle(OURS)) is not None and (theirs := row.middle(baseline)) is not None]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


SLOWER = 1.05
"""Of its time before, where a row counts as slower."""


def compared_with_before(rows: Sequence[Row]) -> str | None:
    """How our time compares with that of an earlier checkout; None where none was measured."""
    ratios = {row.workload: now / then for row in rows
              if (now := row.middle(OURS)) is not None and (then := row.middle(BEFORE)) is not None}
    if not ratios:
        return None
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slower = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio > SLOWER]
    return (f"geometric mean of our time over that before, {len(ratios)} rows: {mean:.3f}; over {SLOWER}: "
            f"{', '.join(slower) or 'none'}")


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
                     for line in lines)


def table(rows: Sequence[tuple[Workload, Row]], peers: Sequence[str]) -> str:
    """The rows as text in columns."""
    own = [peer for peer in (OURS, JITTED) if peer in peers]
    ratios = ["ratio", "jitted"][:len(own)]
    lines = [["workload", *(f"{peer} ms" for peer in peers), *ratios, "GFLOP/s", "GB/s", "limit", "first s"]]
    for workload, row in rows:
        times = [row.middle(peer) for peer in peers]
        cells = [workload.name, *("-" if t is None else f"{t * 1e3:.2f}" for t in times)]
        cells += map(row.ratio, own)
        ours = row.middle(OURS)
        if ours is None:
            cells += ["-"] * 4
        else:
            cells += [
                f"{workload.operations / ours / 1e9:.1f}",
                f"{workload.moved_bytes / ours / 1e9:.1f}",
                "-" if row.limit is None else f"{least_seconds(workload, row.limit) / ours:.0%}",
                f"{row.first[OURS]:.2f}",
            ]
        lines.append(cells)
    return columns(lines)


def overhead_table(rows: Sequence[tuple[Workload, Row]], peers: Sequence[str]) -> str:
    """Microseconds a kernel, of those that this library starts."""
    lines = [["microseconds a kernel", *peers, "kernels"]]
    for workload, row in rows:
        times = [row.middle(peer) for peer in peers]
        each = ("-" if t is None or not row.kernels else f"{t / row.kernels * 1e6:.2f}" for t in times)
        lines.append([workload.name, *each, str(row.kernels)])
    return columns(lines)


def first_call_table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Seconds of each first step: with nothing compiled before, then in another process after that."""
    keeping = [p for p in peers if any(p in row.again for row in rows)]
    lines = [["seconds of the first step", *peers, *(f"{p}, again" for p in keeping)]]
    for row in rows:
        times = [*map(row.first.get, peers), *map(row.again.get, keeping)]
        lines.append([row.workload, *("-" if t is None else f"{t:.2f}" for t in times)])
    return columns(lines)
