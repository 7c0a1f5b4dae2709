"""The recorder: what `VIZ`, `PROFILE` and `tinygrad.profile()` know of a run.

In: the calls of `tinygrad/observer.py`. Out: lines, kernels, events, memory and schedules, which
`recording.py` writes down as JSON, `trace.py` as a trace for Perfetto and `table.py` as tables.

An event is (track, site, start, end) on the host's monotonic clock; a site is what happens there: a kernel
for a line, a copy, a stage of the compiler. Times of kernels are read once they are known, and nobody waits
for them before. Events are a ring: of a long run the last ones stay, while totals count all.
"""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tinygrad.device import Device
from tinygrad.device.queue import DriverQueue, clock
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import is_recording, record_passes
from tinygrad.graph.walk import Watching
from tinygrad.helpers import getenv
from tinygrad.observer import Observer
from tinygrad.viz.graphs import ScheduledGraph
from tinygrad.viz.kernels import KernelRecord, SearchRecord
from tinygrad.viz.lines import LINES, UNKNOWN
from tinygrad.viz.memory import ArenaRecord, Held, MemoryRecord

MOST_EVENTS = 200_000
"""Events kept; the oldest go first."""
MOST_PENDING = 1024
"""Runs whose times were not read yet."""
MOST_SCHEDULES = 200
STAGES = frozenset({"plan", "render", "compile", "load", "search", "rewrite"})
"""Spans that are part of making a kernel."""
FREQUENT = frozenset({"realize", "replay"})
"""Spans that are never part of making a kernel."""
HOST = "host"


class Site(NamedTuple):
    """What happens at an event."""

    kind: str
    """kernel, copy, or a stage: realize, schedule, write, plan, render, compile, load, search, trace,
    replay"""
    name: str
    kernel: int = -1
    lines: tuple[int, ...] = ()
    bytes: int = 0


class Local(threading.local):
    """What the recorder knows of a thread."""

    def __init__(self) -> None:
        self.lines: tuple[int, ...] | None = None
        self.writing: KernelRecord | None = None
        self.track: int = -1
        self.scheduling = False
        self.original: dict[Any, Any] = {}
        """while something is scheduled: what the user's graph had in place of a node"""
        self.groups: list[tuple[int, set[Any]]] = []
        """for each kernel scheduled: how many items it is, and the user's nodes that it computes"""


class Recorder(Observer):
    """Takes note of what happens. With `keeps_stages` every stage of each kernel is kept too."""

    def __init__(self, keeps_stages: bool = False) -> None:
        self.keeps_stages = keeps_stages
        self.began = clock()
        self.lines = LINES
        self.kernels: list[KernelRecord] = []
        self.kernel_of: dict[Any, KernelRecord] = {}
        """by a `CompiledKernel`'s id, and by what it was written from: (ast, device)"""
        self.sites: list[Site] = []
        self.site_of: dict[Any, int] = {}
        self.site_lists: dict[int, tuple[Any, np.ndarray[Any, Any], int]] = {}
        """by the id of a list of (kernel, lines): it, the numbers of its sites, its track"""
        self.moved_sites: dict[Any, tuple[Any, Any]] = {}
        """by the id of the sites of a template and the lines of another graph of its structure"""
        self.tracks: list[str] = []
        self.track_of: dict[str, int] = {}
        self.totals: dict[int, int] = {}
        """how often each site ran"""
        self.spent: dict[int, float] = {}
        """and for how many seconds"""
        self.events: deque[tuple[int, Any, Any, Any]] = deque()
        """(track, site, start, end), of a list of kernels arrays"""
        self.event_count = 0
        self.dropped = 0
        self.pending: deque[tuple[int, Any, Any, Any]] = deque()
        """(track, sites, (start, end) as timestamps or the times of a list, point)"""
        self.memory = MemoryRecord()
        self.schedules: list[ScheduledGraph] = []
        self.schedule_count = 0
        self.local = Local()
        self.settling = threading.RLock()
        self.offsets: dict[str, float] = {}
        """by queue of a driver: its clock's zero on the host's clock"""
        self.keep_seconds = float(getenv("VIZ_SECONDS", 600.0))
        self.listeners: list[Callable[[int, Any, Any, Any], None]] = []
        """what each settled event is given to"""

    # --- tensors and lines ------------------------------------------------------------------------------

    def tensor_made(self, node: Any) -> None:
        if node.device is not None and "line" not in node.__dict__:  # a number is marked with what uses it
            mark(node, self.lines.here())

    def gradients_made(self, node: Any, gradients: Sequence[Any]) -> None:
        line = node.__dict__.get("line")
        if line is not None:
            number = self.lines.gradient(line)
            for gradient in gradients:
                mark(gradient, number)

    def derived(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        local = self.local
        if local.writing is not None:
            return
        for before, after in pairs:
            if before is after:
                continue
            line = before.__dict__.get("line")
            if line is not None:
                after.__dict__.setdefault("line", line)
            if local.scheduling:
                local.original.setdefault(after, local.original.get(before, before))

    def lines_of(self, nodes: Iterable[Any], outputs: Sequence[Any], items: int) -> tuple[int, ...]:
        original = self.local.original
        nodes = list(nodes)
        self.local.groups.append((items, {original.get(n, n) for n in nodes}))
        found: dict[int, int] = {}
        for node in nodes:
            line = node.__dict__.get("line")
            if line is not None and node.op is not Ops.CONST:
                weight = 1 + (work_of(node) if node.op is Ops.REDUCE else 0)
                found[line] = max(found.get(line, 0), weight)
        for output in outputs:  # of several lines with as much to do, a kernel is for that of what it stores
            line = output.__dict__.get("line")
            if line is not None:
                found[line] = found.get(line, 0) + 1
        return tuple(sorted(found, key=lambda line: -found[line]))

    def lines_of_nodes(self, structure: Any) -> tuple[int, ...]:
        return tuple([node.__dict__.get("line", UNKNOWN) for node in structure.nodes])

    def items_again(self, items: list[Any], before: Any, structure: Any) -> list[Any]:
        now = self.lines_of_nodes(structure)
        if now == before:
            return items
        return [item._replace(lines=self.moved(item.lines, before, now, structure)) for item in items]

    def sites_again(self, sites: Any, before: Any, structure: Any) -> Any:
        now = self.lines_of_nodes(structure)
        if now == before:
            return sites
        known = self.moved_sites.get((id(sites), now))
        if known is None:
            moved = tuple([(kernel, self.moved(lines, before, now, structure)) for kernel, lines in sites])
            known = self.moved_sites[id(sites), now] = sites, moved
        return known[1]

    def moved(self, lines: tuple[int, ...], before: Any, now: tuple[int, ...], structure: Any
              ) -> tuple[int, ...]:
        """The lines of a kernel in another graph of the same structure."""
        if before is None or not lines:
            line = structure.sinks[0].__dict__.get("line")
            return (self.lines.here() if line is None else line,)
        changes = dict(zip(before, now, strict=True))
        for old, new in zip(before, now, strict=True):  # what is of a gradient is of that in the other graph
            changes.setdefault(self.lines.gradient(old), self.lines.gradient(new))
        return tuple(dict.fromkeys([changes.get(line, line) for line in lines]))

    # --- schedules and kernels --------------------------------------------------------------------------

    def scheduled(self, structure: Any, schedule: Any, is_new: bool) -> None:
        self.schedule_count += 1
        local = self.local
        local.lines = schedule.items[0].lines if schedule.items else None
        if not is_new:
            return
        if self.keeps_stages and len(self.schedules) < MOST_SCHEDULES:
            self.schedules.append(ScheduledGraph.of(structure, schedule, local.groups))
        for shared in schedule.intermediates:
            used = [(n, item.lines, b) for n, item in enumerate(schedule.items) for b in item.buffers]
            values = []
            for number, node in shared.nodes.items():
                steps = [(n, lines) for n, lines, b in used if b is node]
                if steps:
                    size, offset = node.arg.size * node.dtype.itemsize, shared.arena.offsets[number]
                    values.append((offset, size, steps[0][0], steps[-1][0], steps[0][1]))
            self.arena_placed(shared.device, shared.arena.size, values)
        local.original, local.groups = {}, []

    def begin_step(self, lines: tuple[int, ...]) -> None:
        self.local.lines = lines

    @contextmanager
    def kernel_written(self, ast: Any, device: str) -> Iterator[None]:
        record = KernelRecord(len(self.kernels), ast, device)
        self.kernels.append(record)
        self.kernel_of[ast, device] = record
        before, self.local.writing = self.local.writing, record
        try:
            with self.span("write", ""), self.passes_of(record):
                yield
        finally:
            self.local.writing = before

    @contextmanager
    def passes_of(self, record: KernelRecord) -> Iterator[None]:
        """A block whose passes are a kernel's; where somebody records passes already, they are theirs."""
        if not self.keeps_stages or is_recording():
            yield
            return
        with record_passes() as record.passes:
            yield
        record.spent("rewrite", sum(one.seconds for one in record.passes))

    def stages_done(self, stages: Any, written: Any, notes: str) -> None:
        record = self.local.writing
        if record is not None:
            record.stages, record.name, record.notes = stages, written.name, notes

    def kernel_loaded(self, ast: Any, kernel: Any, device: str, code: Any) -> None:
        record = self.kernel_of.get((ast, device))
        if record is None:
            record = KernelRecord(len(self.kernels), ast, device)
            self.kernels.append(record)
            self.kernel_of[ast, device] = record
        record.name, record.kernel = kernel.name, kernel
        record.code = code if self.keeps_stages else None
        self.kernel_of[id(kernel)] = record

    def record_of(self, kernel: Any, device: str) -> KernelRecord:
        """The record of a kernel that runs; a new one where it was made before the recording, or of
        several."""
        record = self.kernel_of.get(id(kernel))
        if record is None or record.kernel is not kernel:
            record = KernelRecord(len(self.kernels), kernel.written[0][0], device, kernel.name, kernel)
            self.kernels.append(record)
            self.kernel_of[id(kernel)] = record
        return record

    def plans_measured(self, nest: Any, device: str, rows: Sequence[tuple[str, float | None, str]], found: Any
                       ) -> None:
        record = self.local.writing
        if record is not None:
            record.search = SearchRecord(rows, str(found.plan), found.default_seconds, found.seconds)

    # --- what runs --------------------------------------------------------------------------------------

    def span(self, kind: str, name: str) -> Span:
        return Span(self, kind, name)

    def host_track(self) -> int:
        """The number of this thread's track."""
        if self.local.track < 0:
            thread = threading.current_thread()
            main = thread is threading.main_thread()
            name = thread.name.replace("ThreadPoolExecutor-", "pool ")
            self.local.track = self.track(HOST if main else f"{HOST} {name}")
        return self.local.track

    def kernel_run(self, kernel: Any, device: str, start: Any, end: Any) -> None:
        lines = self.local.lines or ()
        site = self.site_of.get((id(kernel), lines, device))
        if site is None:
            record = self.record_of(kernel, device)
            site = self.site_of[id(kernel), lines, device] = self.site(
                Site("kernel", record.name, record.number, lines))
        self.wait_for(self.track(device), site, (start, end), Device[device].queue)

    def kernels_run(self, sites: Any, device: str, times: Any, point: Any) -> None:
        known = self.site_lists.get(id(sites))
        if known is None or known[0] is not sites:
            found = [self.site(Site("kernel", kernel.name, self.record_of(kernel, device).number, lines))
                     for kernel, lines in sites]
            known = self.site_lists[id(sites)] = sites, np.array(found, np.int64), self.track(device)
        _, numbers, track = known
        if type(times) is list and len(times) == 2:
            self.wait_for(track, int(numbers[0]), times, None)
        elif len(numbers):
            self.wait_for(track, numbers, times, point)

    def copied(self, target: Any, source: Any, queue: Any, start: Any, end: Any) -> None:
        name = f"{source.device.partition(':/')[0]} to {target.device}"
        site = self.site(Site("copy", name, -1, self.local.lines or (), target.nbytes))
        self.wait_for(self.track(queue.name), site, (start, end), queue)

    def wait_for(self, track: int, site: Any, times: Any, order: Any) -> None:
        """Take note of what runs; its times are read later."""
        self.pending.append((track, site, times, order))
        if len(self.pending) > MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Read the times of everything given so far, waiting for it, and count it."""
        with self.settling:
            lists: dict[int, tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]] = {}
            while self.pending:
                track, site, times, order = self.pending.popleft()
                if isinstance(site, np.ndarray):
                    if order is not None:
                        order.queue.await_value(order.value)
                    moments = np.asarray(times)
                    if moments.ndim == 2:
                        moments = moments[:, 0] + moments[:, 1] * 1e-9
                    lists.setdefault(id(site), (site, []))[1].append(moments)
                    start, end = moments[:-1], moments[1:]
                    self.events.append((track, site, start, end))
                    self.event_count += len(site)
                    for listener in self.listeners:
                        listener(track, site, start, end)
                    continue
                start, end = times
                if order is not None:
                    offset = self.offset_of(order)
                    start, end = start.seconds + offset, end.seconds + offset
                self.totals[site] = self.totals.get(site, 0) + 1
                self.spent[site] = self.spent.get(site, 0.0) + end - start
                self.events.append((track, site, start, end))
                self.event_count += 1
                for listener in self.listeners:
                    listener(track, site, start, end)
            for sites, runs in lists.values():
                took = np.diff(np.array(runs), axis=1).sum(axis=0)
                for site, seconds in zip(sites.tolist(), took.tolist(), strict=True):
                    self.totals[site] = self.totals.get(site, 0) + len(runs)
                    self.spent[site] = self.spent.get(site, 0.0) + seconds
            self.drop_oldest()

    def offset_of(self, queue: Any) -> float:
        """What is added to a queue's timestamps to have the host's clock."""
        if not isinstance(queue, DriverQueue):
            return 0.0
        if queue.name not in self.offsets:
            self.offsets[queue.name] = min(clock() - queue.timestamp().seconds for _ in range(3))
        return self.offsets[queue.name]

    def drop_oldest(self) -> None:
        """Let go of the events that there are too many of, or that are too old."""
        events = self.events
        newest = last_of(events[-1][3]) if events else 0.0
        oldest = newest - self.keep_seconds
        while self.event_count > MOST_EVENTS or (events and last_of(events[0][3]) < oldest):
            old = events.popleft()
            size = len(old[1]) if isinstance(old[1], np.ndarray) else 1
            self.event_count -= size
            self.dropped += size

    @property
    def counts(self) -> list[int]:
        """How often each site ran, as far as it is settled."""
        return [self.totals.get(i, 0) for i in range(len(self.sites))]

    @property
    def seconds(self) -> list[float]:
        """For how long each site ran, as far as it is settled."""
        return [self.spent.get(i, 0.0) for i in range(len(self.sites))]

    def site(self, site: Site) -> int:
        """The number of a site."""
        found = self.site_of.get(site)
        if found is None:
            with self.settling:
                found = self.site_of.setdefault(site, len(self.sites))
                if found == len(self.sites):
                    self.sites.append(site)
        return found

    def track(self, name: str) -> int:
        """The number of a track."""
        found = self.track_of.get(name)
        if found is None:
            with self.settling:
                found = self.track_of.setdefault(name, len(self.tracks))
                if found == len(self.tracks):
                    self.tracks.append(name)
        return found

    # --- memory -----------------------------------------------------------------------------------------

    def allocated(self, buffer: Any) -> Any:
        lines = self.local.lines
        held = Held(lines[0] if lines else self.lines.here(), buffer.device)
        self.memory.take(clock(), buffer.nbytes, held)
        return held

    def freed(self, device: str, size: int, known: Any) -> None:
        self.memory.give_back(clock(), size, known)

    def arena_placed(self, device: str, size: int,
                     values: Sequence[tuple[int, int, int, int, tuple[int, ...]]]) -> None:
        self.memory.place(ArenaRecord(device, size, tuple(
            (offset, length, first, last, lines[0] if lines else UNKNOWN)
            for offset, length, first, last, lines in values)))


class Span:
    """A block of host time."""

    __slots__ = ("kind", "name", "record", "recorder", "started", "watcher")
    record: KernelRecord | None

    def __init__(self, recorder: Recorder, kind: str, name: str) -> None:
        self.recorder = recorder
        self.kind = kind
        self.name = name

    def __enter__(self) -> None:
        self.record = None
        if self.kind not in FREQUENT:
            local = self.recorder.local
            self.record = local.writing
            self.watcher = Watching.watcher
            if self.kind == "plan":
                Watching.watcher = None  # nests that a plan is chosen by are not the kernel's passes
            elif self.kind == "schedule":
                local.scheduling = True
        self.started = clock()

    def __exit__(self, *exc: object) -> None:
        ended = clock()
        recorder, kind, record = self.recorder, self.kind, self.record
        if kind == "schedule":
            recorder.local.scheduling = False
        elif kind == "realize":
            recorder.local.lines = None
        elif kind == "plan":
            Watching.watcher = self.watcher
        if record is not None and kind in STAGES:
            record.spent(kind, ended - self.started)
        number = -1 if record is None else record.number
        site = recorder.site_of.get((kind, self.name, number))
        if site is None:
            site = recorder.site_of[kind, self.name, number] = recorder.site(Site(kind, self.name, number))
        recorder.wait_for(recorder.host_track(), site, (self.started, ended), None)


def mark(node: Any, line: int) -> None:
    """Give a node, and those below it that have none, the number of a line."""
    stack = [node]
    while stack:
        found = stack.pop()
        if "line" not in found.__dict__ and found.op is not Ops.BUFFER:
            found.__dict__["line"] = line
            stack.extend(found.src)


def work_of(reduce: Any) -> int:
    """How many items a reduce of the tensor graph takes."""
    return int(reduce.src[0].numel) if isinstance(reduce.src[0].numel, int) else 1


def last_of(moments: Any) -> float:
    """The last of some moments, or the one there is."""
    return float(moments[-1]) if isinstance(moments, np.ndarray) else float(moments)


