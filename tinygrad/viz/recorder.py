"""The recorder: what `VIZ`, `PROFILE` and `tinygrad.profile()` know of a run.

In: the calls of `tinygrad/observer.py`. Out: lines, kernels, events, memory and schedules, which
`recording.py` writes down as JSON, `trace.py` as a trace for Perfetto and `table.py` as tables.

An event is (track, site, start, end) on the host's monotonic clock; a site is what happens there: a kernel
for a line, a copy, a stage of the compiler. What is called while a program runs keeps references and numbers,
and formats nothing: `events.py` and `memory.py` count later, many at once.
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from tinygrad.device import Device
from tinygrad.device.queue import clock
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import is_recording, record_passes
from tinygrad.graph.sizes import largest
from tinygrad.graph.walk import Watching
from tinygrad.helpers import getenv
from tinygrad.observer import Observer
from tinygrad.viz.events import MOST_KNOWN, EventLog
from tinygrad.viz.graphs import ScheduledGraph
from tinygrad.viz.kernels import KernelRecord, SearchRecord
from tinygrad.viz.lines import LINES, UNKNOWN, Frame, Line
from tinygrad.viz.memory import ArenaRecord, MemoryRecord

MOST_SCHEDULES = 200
STAGES = frozenset({"plan", "render", "compile", "load", "search", "rewrite"})
"""Spans that are part of making a kernel."""
HOST = "host"
NOWHERE = -1
"""The number of no line."""
INNER_FRAMES = 3
"""Callers of `tensor_made` that are never the user's: it, `Tensor._init`, and who makes a tensor so."""
LINE = attrgetter("line")


class Site(NamedTuple):
    """What happens at an event."""

    kind: str
    """kernel, copy, or a stage: realize, schedule, write, plan, render, compile, load, search, trace,
    replay, mark"""
    name: str
    kernel: int = -1
    lines: tuple[int, ...] = ()
    bytes: int = 0
    color: str = ""
    """of a mark"""


class Launch(NamedTuple):
    """Where the kernels of a list that runs again and again are counted."""

    given: Any
    """the list of (kernel, lines)"""
    track: int
    sites: list[int]


class Local(threading.local):
    """What the recorder knows of a thread."""

    def __init__(self) -> None:
        self.lines: tuple[int, ...] | None = None
        self.written_at: int | None = None
        """the line that tensors are for, where that is not the one that runs"""
        self.gradient: tuple[int, int] = (NOWHERE, NOWHERE)
        """while a gradient is written down with tensors: the line that asks for it, and that of the value,
        for which those tensors are that the first line makes"""
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
        self.key = object()
        self.began = clock()
        self.lines = LINES
        self.kernels: list[KernelRecord] = []
        self.kernel_of: dict[Any, KernelRecord] = {}
        """by a `CompiledKernel`'s id, and by what it was written from: (ast, device)"""
        self.sites: list[Site] = []
        self.site_of: dict[Any, int] = {}
        self.launches: dict[int, Launch] = {}
        """by the id of a list of (kernel, lines)"""
        self.moved_sites: dict[Any, tuple[Any, Any]] = {}
        """by the id of the sites of a template and the lines of another graph of its structure"""
        self.moves: dict[Any, tuple[tuple[int, ...], dict[int, int]]] = {}
        """by the lines of a graph: those of the last other graph of its structure, and which stands for
        which"""
        self.told: dict[Any, bool] = {}
        """by the lines of two graphs of one structure, whether those of its kernels in one are known by those
        in the other"""
        self.tracks: list[str] = []
        self.track_of: dict[str, int] = {}
        self.log = EventLog(float(getenv("VIZ_SECONDS", 600.0)))
        self.memory = MemoryRecord()
        self.schedules: list[ScheduledGraph] = []
        self.schedule_count = 0
        self.local = Local()

    # --- tensors and lines ------------------------------------------------------------------------------

    def tensor_made(self, node: Any) -> None:
        if not node.line and (node.device is not None or not is_number(node)):
            number = self.local.written_at
            if number is None:
                number = self.lines.here(INNER_FRAMES)
            asked, gradient = self.local.gradient
            mark(node, gradient if number == asked else number)

    def written_at(self, frames: Sequence[tuple[str, int, str]] = (), module: str = "",
                   is_gradient: bool = False) -> None:
        if not frames and not module:
            self.local.written_at = None
            return
        known = tuple(Frame(*f) for f in frames) or self.lines.all[self.lines.here()].frames
        self.local.written_at = self.lines.number(Line(known, module, is_gradient))

    def gradients_of(self, node: Any, write: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        if not node.line:
            return write()
        local, number = self.local, self.lines.gradient(node.line)
        outer = local.gradient
        if node.op is Ops.CUSTOM_GRADIENT:  # written with tensors, in the line that asks for gradients
            local.gradient = self.lines.here(), number
        try:
            found = write()
        finally:
            local.gradient = outer
        for gradient in found:
            if gradient is not None:
                mark(gradient, number)
        return found

    def derived(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        local = self.local
        if local.writing is not None:
            return
        for before, after in pairs:
            if before is after:
                continue
            if not after.line:
                mark(after, before.line)  # a rule may have made several nodes of one
            if local.scheduling:
                local.original.setdefault(after, local.original.get(before, before))

    def lines_of(self, nodes: Iterable[Any], outputs: Sequence[Any], items: int) -> tuple[int, ...]:
        original = self.local.original
        nodes = list(nodes)
        self.local.groups.append((items, {original.get(n, n) for n in nodes}))
        found: dict[int, int] = {}
        for node in nodes:
            line = node.line
            if line and node.op is not Ops.CONST:
                weight = 1 + (work_of(node) if node.op is Ops.REDUCE else 0)
                found[line] = max(found.get(line, 0), weight)
        for output in outputs:  # of several lines with as much to do, a kernel is for that of what it stores
            if output.line:
                found[output.line] = found.get(output.line, 0) + 1
        return tuple(sorted(found, key=lambda line: -found[line]))

    def lines_of_nodes(self, structure: Any) -> tuple[int, ...]:
        return tuple(map(LINE, structure.nodes))

    def tells_lines(self, before: Any, structure: Any) -> bool:
        now = tuple(map(LINE, structure.nodes))
        if now == before:
            return True
        told = self.told.get((before, now))
        if told is None:
            pairs = () if before is None else {pair for pair in zip(before, now, strict=True) if pair[0]}
            told = before is not None and len(pairs) == len({old for old, _ in pairs})
            self.told[before, now] = True  # when it is asked again, a schedule of its own was tried
        return told

    def items_again(self, items: list[Any], before: Any, structure: Any) -> list[Any]:
        now = self.lines_of_nodes(structure)
        if now == before:
            return items
        return [item._replace(lines=self.moved(item.lines, before, now, structure)) for item in items]

    def sites_again(self, sites: Any, before: Any, structure: Any) -> Any:
        now = tuple(map(LINE, structure.nodes))
        if now != before:
            known = self.moved_sites.get((id(sites), now))
            if known is None:
                moved = tuple([(kernel, self.moved(lines, before, now, structure))
                               for kernel, lines in sites])
                known = self.moved_sites[id(sites), now] = sites, moved
            sites = known[1]
        self.local.lines = sites[0][1]
        return sites

    def moved(self, lines: tuple[int, ...], before: Any, now: tuple[int, ...], structure: Any
              ) -> tuple[int, ...]:
        """The lines of a kernel in another graph of the same structure."""
        if before is None or not lines:
            return (structure.sinks[0].line or self.lines.here(),)
        known = self.moves.get(before)
        if known is None or known[0] != now:
            changes = dict(zip(before, now, strict=True))
            for old, new in list(changes.items()):  # what is of a gradient is of that in the other graph
                changes.setdefault(self.lines.gradient(old), self.lines.gradient(new))
            known = self.moves[before] = now, changes
        return tuple(dict.fromkeys([known[1].get(line, line) for line in lines]))

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
        record.name, record.code = kernel.name, code if self.keeps_stages else None
        record.kernel = kernel  # last: it says that the record is whole
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

    def ran(self, kind: str, name: str, began: float, kernel: int = -1) -> None:
        ended = clock()
        site = self.site_of.get((kind, name, kernel))
        if site is None:
            site = self.site_of[kind, name, kernel] = self.site(Site(kind, name, kernel))
        local = self.local
        local.lines = None
        track = local.track
        if track < 0:
            track = self.host_track()
        known = self.log.known
        known.extend((track, site, began, ended))
        if len(known) > MOST_KNOWN:
            self.log.settle_single()
            self.memory.settle()

    def marked(self, name: str, color: str) -> None:
        moment = clock()
        site = self.site(Site("mark", name, -1, (self.lines.here(),), color=color))
        self.log.known.extend((self.host_track(), site, moment, moment))

    def kernel_run(self, kernel: Any, device: str, start: Any, end: Any) -> None:
        lines = self.local.lines or ()
        site = self.site_of.get((id(kernel), lines, device))
        if site is None:
            record = self.record_of(kernel, device)
            site = self.site_of[id(kernel), lines, device] = self.site(
                Site("kernel", record.name, record.number, lines))
        self.log.wait_for(self.track(device), site, start, end, Device[device].queue)

    def kernels_run(self, sites: Any, device: str, times: Any) -> None:
        launch = self.launches.get(id(sites))
        if launch is None or launch.given is not sites:
            launch = self.launches[id(sites)] = Launch(sites, self.track(device),
                                                       self.kernel_sites(sites, device))
        known, track, start = self.log.known, launch.track, times[0]
        for site, end in zip(launch.sites, times[1:], strict=True):
            known.extend((track, site, start, end))
            start = end

    def list_watched(self, kernels: Any, device: str) -> None:
        sites = np.array(self.kernel_sites(kernels.sites, device), np.int64)
        self.log.watch(self.track(device), sites, kernels.times, weakref.ref(kernels))

    def kernel_sites(self, sites: Any, device: str) -> list[int]:
        """The number of each kernel's site."""
        return [self.site(Site("kernel", kernel.name, self.record_of(kernel, device).number, lines))
                for kernel, lines in sites]

    def copied(self, target: Any, source: Any, queue: Any, start: Any, end: Any) -> None:
        name = f"{source.device.partition(':/')[0]} to {target.device}"
        site = self.site(Site("copy", name, -1, self.local.lines or (), target.nbytes))
        self.log.wait_for(self.track(queue.name), site, start, end, queue)

    def settle(self) -> None:
        """Read the times of everything given so far, waiting for it, and count it."""
        self.log.settle()
        self.memory.settle()

    def site(self, site: Site) -> int:
        """The number of a site."""
        found = self.site_of.get(site)
        if found is None:
            with self.log.lock:
                found = self.site_of.setdefault(site, len(self.sites))
                if found == len(self.sites):
                    self.sites.append(site)
        return found

    def track(self, name: str) -> int:
        """The number of a track."""
        found = self.track_of.get(name)
        if found is None:
            with self.log.lock:
                found = self.track_of.setdefault(name, len(self.tracks))
                if found == len(self.tracks):
                    self.tracks.append(name)
        return found

    # --- memory -----------------------------------------------------------------------------------------

    def allocated(self, device: str, size: int, lines: tuple[int, ...] = ()) -> Any:
        lines = lines or self.local.lines or ()
        memory, change = self.memory, (lines[0] if lines else self.lines.here(), device, size)
        kind = memory.kind_of.get(change) or memory.kind(*change)
        memory.changes.extend((clock(), kind))
        return kind

    def freed(self, device: str, size: int, known: Any) -> None:
        self.memory.changes.extend((clock(), -known))

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
        local = self.recorder.local
        self.record = local.writing
        if self.kind == "plan":
            self.watcher = Watching.watcher
            Watching.watcher = None  # nests that a plan is chosen by are not the kernel's passes
        elif self.kind == "schedule":
            local.scheduling = True
        self.started = clock()

    def __exit__(self, *exc: object) -> None:
        recorder, kind, record = self.recorder, self.kind, self.record
        if kind == "schedule":
            recorder.local.scheduling = False
        elif kind == "plan":
            Watching.watcher = self.watcher
        if record is not None and kind in STAGES:
            record.spent(kind, clock() - self.started)
        lines = recorder.local.lines
        recorder.ran(kind, self.name, self.started, -1 if record is None else record.number)
        recorder.local.lines = lines


def mark(node: Any, line: int) -> None:
    """Give a node, and those below it that have none, the number of a line; UNKNOWN is what they have."""
    stack = [node] if line != UNKNOWN else []
    for found in stack:
        if not found.line and found.op is not Ops.BUFFER:
            found.line = line
            stack += found.src


def is_number(node: Any) -> bool:
    """Whether a node is one number, whatever its shape: it is marked with what uses it."""
    while node.op in (Ops.RESHAPE, Ops.EXPAND, Ops.CAST, Ops.DETACH):
        node = node.src[0]
    return bool(node.op is Ops.CONST)


def work_of(reduce: Any) -> int:
    """How many items a reduce of the tensor graph takes, at most."""
    return largest(reduce.src[0].numel)
