"""A recording as JSON: the data model of the page, of `python -m tinygrad.viz --json` and of the tests.

In: a `Recorder`. Out: one dictionary. Times are seconds but for events, whose `start` and `duration` are
nanoseconds since the recording began; memory is in bytes; what is called number is a place in another list.

    version    1
    program    command, started, seconds, python, device, settings
    notes      what was left out, and why: sentences for people
    lines      frames [[file, line, function], ...] innermost first, module, gradient
    files      path, text: the user's files that lines name
    kernels    name, device, count, seconds, operations, bytes, least_seconds (what the device's limits
               allow), lines, made (seconds by stage), and where there was room: source, language, assembly,
               nest, optimised, program, opts, notes, alternatives, search, nodes, passes
      nodes    [op, dtype, argument, [sources]] of every graph of the kernel
      passes   name, seconds, before, after (numbers of roots, or of a program's nodes), count of rules that
               fired, fired [[rule, before, after], ...]
      search   chosen, default_seconds, seconds, rows [[plan, seconds, what became of it], ...]
    rules      name, file, line, text: what changed nodes
    schedules  nodes [op, dtype, shape, argument, [sources], line, [items], statistics], items [kernel,
               device, [lines], [[dtype, items], ...], written], left_out
    sites      kind, name, kernel (-1: none), lines, bytes, color (of a mark), count, seconds: of all that
               happened
    events     tracks (names), and side by side track, site, start, duration: of the last of it
    memory     series [[seconds, bytes], ...], peak, peak_at, owners [[line, device, bytes], ...], arenas
    limits     by device: gflops, read_gbs, copy_gbs
"""
from __future__ import annotations

import inspect
import linecache
import platform
import sys
import textwrap
import time
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad.codegen.opt.choose import estimated_plans
from tinygrad.device import Device
from tinygrad.device.queue import clock
from tinygrad.graph.passes import Change, Pass
from tinygrad.graph.printing import format_nest, format_program
from tinygrad.helpers import ContextVar
from tinygrad.viz.graphs import MOST_NODES, GraphWriter, ScheduledGraph, statistics_of
from tinygrad.viz.kernels import KernelRecord
from tinygrad.viz.lines import LIBRARY
from tinygrad.viz.recorder import Recorder

VERSION = 1
DETAIL_BYTES = 24 << 20
"""Characters of what is shown of single kernels, before compression, the dearest kernels first."""
MOST_TEXT = 60_000
"""Characters of a source or a listing."""
MOST_FILE = 400_000
MOST_FIRED = 1000
"""Changes that are shown of one pass; the others are counted."""
MOST_SECONDS, SECONDS_MEANWHILE = 8.0, 0.5
"""Seconds that assembly and second choices of plans may take, the dearest kernels first: for a program's last
page, and for each that is written while it runs."""
MOST_STATISTICS = 400
"""Values whose statistics are taken."""
MOST_SERIES = 20_000

Json = dict[str, Any]


class Exporter:
    """Writes a recording down, as often as it is asked to; what does not change is made once."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.rules: list[Json] = []
        self.rule_numbers: dict[Any, int] = {}
        self.details: dict[int, Json] = {}
        """by kernel"""
        self.seconds = MOST_SECONDS
        """that may be spent on details which are made again from the kernel"""

    def export(self, detail_bytes: int = DETAIL_BYTES) -> Json:
        """All of it, with so many characters of details."""
        self.recorder.settle()
        self.room = detail_bytes
        self.notes: list[str] = []
        self.statistics = 0
        limits = self.limits()
        kernels = self.kernels(limits)
        schedules = self.schedules(kernels, detail_bytes // 2)
        timeline = self.events()
        return {
            "version": VERSION, "program": self.program(), "kernels": kernels, "rules": self.rules,
            "schedules": schedules, "sites": self.sites(), "events": timeline, "memory": self.memory(),
            "limits": limits, "lines": self.lines(), "files": self.files(), "notes": self.notes,
        }

    def program(self) -> Json:
        """What was run."""
        recorder = self.recorder
        seconds = clock() - recorder.began
        settings = {k: str(v.value) for k, v in ContextVar.registry.items() if v.value not in (0, "", 0.0)}
        return {"command": " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]]),
                "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - seconds)),
                "seconds": seconds, "python": platform.python_version(), "machine": platform.machine(),
                "device": Device.DEFAULT, "settings": settings}

    def limits(self) -> dict[str, Json]:
        """What the devices that kernels ran on can do, as far as somebody can say."""
        found: dict[str, Json] = {}
        for device in {r.device for r in self.recorder.kernels}:
            try:
                known = Device[device].limits()
            except RuntimeError:
                known = None
            if known is not None:
                found[device] = {"gflops": known.gflops, "read_gbs": known.read_gbs,
                                 "copy_gbs": known.copy_gbs, "text": str(known)}
        return found

    def lines(self) -> list[Json]:
        return [{"frames": [[f.file, f.line, f.function] for f in line.frames], "module": line.module,
                 "gradient": line.is_gradient} for line in self.recorder.lines.all]

    def files(self) -> list[Json]:
        """The text of the files that the user's lines are in."""
        names = dict.fromkeys(f.file for line in self.recorder.lines.all for f in line.frames)
        found = []
        for name in names:
            try:
                text = Path(name).read_text(encoding="utf-8")
            except (OSError, ValueError):
                continue
            if len(text) > MOST_FILE or name.startswith(LIBRARY):
                self.notes.append(f"the text of {name} is not shown: it is too long or not the program's own")
                continue
            found.append({"path": name, "text": text})
        return found

    # --- kernels ----------------------------------------------------------------------------------------

    def kernels(self, limits: dict[str, Json]) -> list[Json]:
        """Every kernel, with its stages as far as there is room, the dearest first."""
        recorder = self.recorder
        count, seconds = np.zeros(len(recorder.kernels), np.int64), np.zeros(len(recorder.kernels))
        lines: dict[int, dict[int, None]] = {}
        for i, site in enumerate(list(recorder.sites)):
            if site.kind == "kernel":
                count[site.kernel] += recorder.log.runs(i)
                seconds[site.kernel] += recorder.log.seconds(i)
                lines.setdefault(site.kernel, {}).update(dict.fromkeys(site.lines))
        rows: list[Json] = []
        for record, times, total in zip(list(recorder.kernels), count, seconds, strict=False):
            work = None if record.kernel is None else record.kernel.estimate
            operations, moved = (0, 0) if work is None else (work.operations, work.bytes)
            rows.append({"name": record.name, "device": record.device, "count": int(times),
                         "seconds": float(total), "operations": int(operations), "bytes": int(moved),
                         "least_seconds": least_seconds(limits.get(record.device), operations, moved),
                         "lines": list(lines.get(record.number, {})), "made": record.seconds})
        without = too_large = 0
        for place in sorted(range(len(rows)), key=lambda i: -rows[i]["seconds"]):
            if self.room <= 0:
                without += 1
                continue
            detail, record = self.details.get(place), recorder.kernels[place]
            if detail is None:
                is_whole = record.kernel is not None  # else another thread is making it
                detail = self.detail(record)
                if is_whole:
                    self.details[place] = detail
            if self.seconds > 0:
                self.made_again(record, detail)
            too_large += any(p["after"] is None for p in detail.get("passes", ()))
            rows[place].update(detail)
            self.room -= size_of(detail)
        if too_large:
            self.notes.append(f"graphs of some passes of {too_large} kernels have more than {MOST_NODES:,} "
                              "nodes and are not shown")
        unread = sum("assembly" not in d and recorder.kernels[i].code is not None
                     for i, d in self.details.items())
        if unread:
            self.notes.append(f"machine code and second choices of {unread} kernels, those that took the "
                              "least time, are not shown: there was no time to make them")
        if without:
            self.notes.append(f"{without} of {len(rows)} kernels, those that took the least time, are shown "
                              "without their stages: they would not fit")
        return rows

    def detail(self, record: KernelRecord) -> Json:
        """The stages of a kernel."""
        found: Json = {}
        if record.kernel is not None:
            found["source"] = bounded(record.kernel.source)
            found["language"] = type(Device[record.device].renderer).__name__
        stages = record.stages
        if stages is not None:
            found.update(nest=bounded(attempt(lambda: format_nest(stages.nest))),
                         optimised=bounded(attempt(lambda: format_nest(stages.optimised))),
                         program=bounded(attempt(lambda: format_program(stages.program))),
                         opts=[repr(opt) for opt in stages.plan.opts], notes=record.notes)
        if record.search is not None:
            search = record.search
            found["search"] = {"chosen": search.chosen, "default_seconds": search.default_seconds,
                               "seconds": search.seconds, "rows": [list(row) for row in search.rows]}
        if record.passes:
            writer = GraphWriter()
            found["passes"] = [self.a_pass(p, writer) for p in record.passes]
            found["nodes"] = writer.rows
        return found

    def made_again(self, record: KernelRecord, detail: Json) -> None:
        """Add what is made from the kernel again, unless it is there: its machine code, and second choices of
        plans."""
        started = clock()
        if record.code is not None and "assembly" not in detail:
            detail["assembly"] = bounded(attempt(lambda: Device[record.device].disassembly(record.code)))
        if record.stages is not None and "alternatives" not in detail:
            detail["alternatives"] = alternatives(record.stages, record.device)
        self.seconds -= clock() - started

    def a_pass(self, record: Pass, writer: GraphWriter) -> Json:
        """A pass, with its graphs in the kernel's table of nodes."""
        before, after = writer.add_all(record.before), writer.add_all(record.after)
        fired = []
        for one in record.changes[:MOST_FIRED]:
            places = writer.add(one.before), writer.add(one.after)
            if None not in places:
                fired.append([self.rule(one), *places])
        return {"name": record.name, "seconds": record.seconds, "before": before, "after": after,
                "count": len(record.changes), "fired": fired}

    def rule(self, change: Change) -> int:
        """The number of the rule that made a change."""
        key = change.rule, change.file, change.line
        found = self.rule_numbers.get(key)
        if found is None:
            found = self.rule_numbers[key] = len(self.rules)
            self.rules.append({"name": change.rule, "file": change.file, "line": change.line,
                               "text": bounded(text_at(change.file, change.line), 2000)})
        return found

    # --- schedules --------------------------------------------------------------------------------------

    def schedules(self, kernels: list[Json], room: int) -> list[Json]:
        """Every schedule, with its graph as far as there is room, the dearest first."""
        found = [self.schedule(graph) for graph in list(self.recorder.schedules)]
        without, left_out = 0, self.recorder.schedules_left_out
        if left_out:
            self.notes.append(f"{left_out:,} of {len(found) + left_out:,} graphs, the last ones, are not "
                              f"shown: {len(found)} are kept")

        def cost(one: Json) -> float:
            return sum(float(kernels[item[0]]["seconds"]) for item in one["items"] if item[0] >= 0)

        for one in sorted(found, key=cost, reverse=True):
            if room <= 0:
                without += 1
                one["left_out"] += len(one["nodes"])
                one["nodes"] = []
            room -= size_of(one["nodes"])
        if without:
            self.notes.append(f"{without} of {len(found)} graphs, those whose kernels took the least time, "
                              "have no nodes here: they would not fit")
        return found

    def schedule(self, graph: ScheduledGraph) -> Json:
        """A user's graph and its steps."""
        kernel_of = self.recorder.kernel_of
        items = []
        for item in graph.items:
            record = kernel_of.get((item.ast, item.device))
            items.append([-1 if record is None else record.number, item.device, list(item.lines),
                          [list(b) for b in item.buffers], item.outputs])
        nodes = []
        for node in graph.nodes:
            statistics = None
            if self.statistics < MOST_STATISTICS:
                statistics = attempt(lambda node=node: statistics_of(node.node()))  # type: ignore[misc]
                self.statistics += statistics is not None
            nodes.append([node.op, node.dtype, list(node.shape), node.argument, list(node.sources), node.line,
                          list(node.items), statistics])
        return {"nodes": nodes, "items": items, "left_out": graph.left_out}

    # --- events and memory ------------------------------------------------------------------------------

    def sites(self) -> list[Json]:
        recorder = self.recorder
        return [{"kind": s.kind, "name": s.name, "kernel": s.kernel, "lines": list(s.lines), "bytes": s.bytes,
                 "color": s.color,
                 "count": recorder.log.runs(i), "seconds": recorder.log.seconds(i)}
                for i, s in enumerate(list(recorder.sites))]

    def events(self) -> Json:
        """The events that are kept, by when they begin."""
        recorder = self.recorder
        table = recorder.log.table()
        kept, count = len(table), recorder.log.count
        if kept < count:
            seconds = float(table[:, 3].max() - table[:, 2].min()) if kept else 0.0
            self.notes.append(f"the timeline has the last {kept:,} of {count:,} events, those of "
                              f"{seconds:.3g} s; totals count all of them")
        if recorder.log.estimated:
            self.notes.append(f"{recorder.log.estimated:,} runs of many tiny kernels were timed as a whole; "
                              "there, each kernel has the share that it had in the other runs")
        start = np.round((table[:, 2] - recorder.began) * 1e9).astype(np.int64)
        duration = np.round((table[:, 3] - table[:, 2]) * 1e9).astype(np.int64)
        return {"tracks": list(recorder.tracks), "track": table[:, 0].astype(int).tolist(),
                "site": table[:, 1].astype(int).tolist(), "start": start.tolist(),
                "duration": duration.tolist()}

    def memory(self) -> Json:
        recorder, memory = self.recorder, self.recorder.memory
        series = memory.points[::max(1, len(memory.points) // MOST_SERIES)].tolist()
        owners = sorted(memory.peak_owners().items(), key=lambda owner: -owner[1])
        return {"series": [[round(t - recorder.began, 9), int(used)] for t, used in series],
                "peak": memory.peak, "peak_at": memory.peak_at - recorder.began if memory.peak else 0.0,
                "owners": [[held.line, held.device, size] for held, size in owners],
                "arenas": [{"device": a.device, "size": a.size, "without_reuse": a.without_reuse,
                            "values": [list(v) for v in a.values]} for a in memory.arenas]}


def least_seconds(limits: Json | None, operations: int, moved: int) -> float:
    """The time that a device's limits allow for so much work; 0 where nobody knows them."""
    if limits is None:
        return 0.0
    bandwidth: float = max(limits["read_gbs"], limits["copy_gbs"]) * 1e9
    return max(operations / (float(limits["gflops"]) * 1e9), moved / bandwidth)


def alternatives(stages: Any, device: str) -> list[Json]:
    """The plans that the cost model passed over for the one it took, and how many times as much a
    multiply-add costs with them, where it estimates that."""
    found = attempt(lambda: estimated_plans(stages.nest, Device[device].renderer.machine))
    estimated: dict[Any, float | None] = found or {}
    first = next(iter(estimated.values()), None)
    return [{"plan": str(plan), "times": cost / first if cost and first else None}
            for plan, cost in list(estimated.items())[1:]]


def text_at(file: str, line: int) -> str:
    """The function that begins at a line of a file."""
    lines = linecache.getlines(file)[line - 1:]
    try:
        return textwrap.dedent("".join(inspect.getblock(lines)))
    except (IndexError, SyntaxError, tokenize.TokenError):
        return "".join(lines[:3])


def attempt(compute: Callable[[], Any]) -> Any:
    """What `compute` gives; None where it fails: a recording shows what it can."""
    try:
        return compute()
    except Exception:
        return None


def bounded(text: str | None, most: int = MOST_TEXT) -> str:
    """A text, or its beginning and how much is missing."""
    if text is None or len(text) <= most:
        return text or ""
    return f"{text[:most]}\n... {len(text) - most:,} characters more"


def size_of(value: Any) -> int:
    """About how many characters a value takes as JSON."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return sum(size_of(k) + size_of(v) + 2 for k, v in value.items())
    if isinstance(value, list):
        return 2 + sum(size_of(v) + 1 for v in value)
    return 5


