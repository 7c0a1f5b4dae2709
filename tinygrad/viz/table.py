"""Tables of where time went: by kernel, by the user's line, by module of a model, by what the host did.

In: the totals of a `Recorder`, or how much they grew. Out: rows, and text in columns.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Device
from tinygrad.viz.recorder import Recorder, Site

NOTHING = "no kernel ran"
"""A table without rows."""
KINDS = ("kernel", "line", "module", "stage")
MOST_ROWS = 20
NESTED = {"realize": "with the stages within", "trace": "with the stages within", "search": "within plan"}
"""Stages whose time counts in two rows, so that times of stages are no shares of a whole."""


@dataclass
class Row:
    """What one kernel, line, module or stage took."""

    name: str
    count: int = 0
    seconds: float = 0.0
    operations: int = 0
    bytes: int = 0
    least: float = 0.0
    """seconds that the devices' limits allow"""
    where: str = ""

    def add(self, count: int, seconds: float, operations: int, moved: int, least: float) -> None:
        """Count runs."""
        self.count += count
        self.seconds += seconds
        self.operations += operations
        self.bytes += moved
        self.least += least


def rows_of(recorder: Recorder, by: str, totals: Sequence[tuple[int, float]] | None = None) -> list[Row]:
    """A row for each kernel, line, module or stage, the dearest first. `totals` has how often each site ran
    and for how long. Raises ValueError for another `by`."""
    if by not in KINDS:
        raise ValueError(f"a table by {by!r}; there are {', '.join(KINDS)}")
    found: dict[Any, Row] = {}
    for i, site in enumerate(list(recorder.sites)):
        own = recorder.log.runs(i), recorder.log.seconds(i)
        count, seconds = own if totals is None else totals[i] if i < len(totals) else (0, 0.0)
        if not count or (by == "stage") != (site.kind != "kernel") or site.kind == "mark":
            continue
        key, name, where = named(recorder, site, by)
        row = found.setdefault(key, Row(name, where=where))
        operations, moved, least = work_of(recorder, site)
        row.add(count, seconds, operations * count, moved * count, least * count)
    if "write" in found:  # what is left of writing a kernel when the stages within are told apart
        row = found["write"]
        row.name = "rewrite"
        row.seconds -= sum(found[inner].seconds for inner in ("plan", "render") if inner in found)
        row.seconds = max(0.0, row.seconds)
    return sorted(found.values(), key=lambda row: -row.seconds)


def named(recorder: Recorder, site: Site, by: str) -> tuple[Any, str, str]:
    """(key, name, where) of the row that a site belongs to."""
    line = recorder.lines.all[site.lines[0] if site.lines else 0]
    if by == "kernel":
        return site.kernel, site.name, str(line)
    if by == "line":
        text = str(line)
        return text, text, line.frames[0].function if line.frames else ""
    if by == "module":
        name = (line.module or "(no module)") + (" (gradient)" if line.is_gradient else "")
        return name, name, ""
    return site.kind, site.kind, NESTED.get(site.kind, "")


def work_of(recorder: Recorder, site: Site) -> tuple[int, int, float]:
    """(operations, bytes, least seconds) of one run at a site."""
    if site.kind != "kernel":
        return 0, site.bytes, 0.0
    record = recorder.kernels[site.kernel]
    work = record.kernel.estimate if record.kernel is not None else None
    if work is None:
        return 0, 0, 0.0
    try:
        least = Device[record.device].least_seconds(work.operations, work.bytes)
    except RuntimeError:  # the interpreter ends, and nobody measured the limits before
        least = 0.0
    return work.operations, work.bytes, least


COLUMNS: tuple[tuple[str, Callable[[Row, float], str]], ...] = (
    ("runs", lambda row, total: f"{row.count:,}"),
    ("ms", lambda row, total: f"{row.seconds * 1e3:,.3f}"),
    ("share", lambda row, total: f"{row.seconds / total:.1%}" if total else ""),
    ("us a run", lambda row, total: f"{row.seconds / row.count * 1e6:,.1f}" if row.count else ""),
    ("GFLOP/s", lambda row, total: f"{row.operations / row.seconds * 1e-9:,.1f}" if row.seconds else ""),
    ("GB/s", lambda row, total: f"{row.bytes / row.seconds * 1e-9:,.1f}" if row.seconds else ""),
    ("of peak", lambda row, total: f"{row.least / row.seconds:.0%}" if row.least and row.seconds else ""),
)


def table(rows: Sequence[Row], title: str, most: int = MOST_ROWS) -> str:
    """Rows as text in columns, the dearest `most` of them."""
    if not rows:
        return NOTHING
    shown, total = rows[:most], sum(row.seconds for row in rows)
    columns = COLUMNS if any(row.operations for row in rows) else COLUMNS[:4]
    if title == "stage":
        columns = tuple(column for column in columns if column[0] in ("runs", "ms", "us a run"))
    head = [title, *(name for name, _ in columns), "where"]
    cells = [[row.name, *(text(row, total) for _, text in columns), row.where] for row in shown]
    widths = [max(len(line[i]) for line in (head, *cells)) for i in range(len(head))]
    lines = []
    for line in (head, *cells):
        middle = "  ".join(cell.rjust(w) for cell, w in zip(line[1:-1], widths[1:-1], strict=True))
        lines.append(f"{line[0]:{widths[0]}}  {middle}  {line[-1]}".rstrip())
    if len(rows) > most:
        rest = rows[most:]
        lines.append(f"... {len(rest)} more, {sum(row.seconds for row in rest) * 1e3:,.3f} ms")
    return "\n".join(lines)
