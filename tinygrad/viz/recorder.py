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
from dataclasses import dataclass
from operator import attrgetter
from sys import _getframe
from threading import get_ident
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
from tinygrad.schedule.cache import Structure
from tinygrad.viz.events import MOST_KNOWN, NONE, EventLog, Numbers, numbers, rows, taken
from tinygrad.viz.graphs import ScheduledGraph
from tinygrad.viz.kernels import KernelRecord, SearchRecord
from tinygrad.viz.lines import LINES, UNKNOWN, USER, Above, Frame, Line
from tinygrad.viz.memory import ArenaRecord, Change, MemoryRecord

MOST_SCHEDULES = 200
STAGES = frozenset({"plan", "render", "compile", "load", "search", "rewrite"})
"""Spans that are part of making a kernel."""
SCHEDULING = ("partition", "schedule")
"""Spans in which nodes are replaced between a user's graph and its kernels, the second after the first."""
HOST = "host"
NOWHERE = -1
"""The number of no line."""
INNER_FRAMES = 3
"""Callers of `tensor_made` that are never the user's: it, `Tensor.of` or `_init`, and who makes a tensor by
those."""
LINE = attrgetter("line")
BUFFER = Ops.BUFFER


class Site(NamedTuple):
    """What happens at an event."""

    kind: str
    """kernel, copy, or a stage: realize, partition, schedule, write, plan, render, compile, load, search,
    trace, replay, mark"""
    name: str
    kernel: int = -1
    lines: tuple[int, ...] = ()
    bytes: int = 0
    color: str = ""
    """of a mark"""


@dataclass(slots=True, repr=False)
class RunAtOnce:
    """A `RepeatedRun`, for nodes of the same lines."""

    key: object
    thread: int
    runs: Numbers
    """the times of those that are not counted yet"""
    ran: Callable[[list[float]], None]
    """what puts times there, no step of Python"""
    nodes: tuple[int, ...]
    """the lines of the nodes that are computed"""
    line: int
    """that of the result, where no other node has a line of its own; UNKNOWN where one has"""
    track: int
    kernels: tuple[int, ...]
    """the site of each call"""
    lines: tuple[int, ...]
    """those of the first call"""
    host: int
    """the track of the thread"""
    around: int
    """the site of all of it: tensors are computed, or a trace is replayed"""
    memory: dict[int, Change]


class MadeFor(NamedTuple):
    """For which line tensors are made, where that is not simply the one that runs."""

    written_at: int | None = None
    """that line"""
    asked: int = NOWHERE
    gradient: int = NOWHERE
    """while a gradient is written down with tensors: the line that asks for it, and that of the value, for
    which those tensors are that the first line makes"""


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
        self.key = object()
        self.began = clock()
        self.lines = LINES
        self.kinds = LINES.kinds
        self.kernels: list[KernelRecord] = []
        self.kernel_of: dict[Any, KernelRecord] = {}
        """by a `CompiledKernel`'s id, and by what it was written from: (ast, device)"""
        self.sites: list[Site] = []
        self.site_of: dict[Any, int] = {}
        self.at_once_of: dict[Any, tuple[Any, RunAtOnce]] = {}
        """by the id of a template's calls, which are kept, the lines of nodes and the thread"""
        self.all_at_once: list[RunAtOnce] = []
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
        self.schedules_left_out = 0
        self.local = Local()
        self.made_for: dict[int, MadeFor] = {}
        """by thread, where tensors are not simply made for the line that runs"""

    # --- tensors and lines ------------------------------------------------------------------------------

    def tensor_made(self, node: Any) -> None:
        if node.line or (node.device is None and is_number(node)):
            return
        if not self.made_for or (made_for := self.made_for.get(get_ident())) is None:
            frame = _getframe(INNER_FRAMES)  # as `Lines.here` does: a call less, for each operation
            if not self.kinds.get(id(frame.f_code), USER):  # a method, most often called by the user
                frame = frame.f_back or frame
            note = frame.f_trace
            number = note.lines.get(frame.f_lasti) if type(note) is Above else None
            if number is None:
                number = self.lines.here(INNER_FRAMES)
        else:
            number = self.lines.here(INNER_FRAMES) if made_for.written_at is None else made_for.written_at
            if number == made_for.asked:
                number = made_for.gradient
        if number:
            node.line = number  # as `mark` does: a call less, for each operation
            for source in node.src:
                if not source.line and source.op is not BUFFER:
                    mark_all(source, number)

    def written_at(self, frames: Sequence[tuple[str, int, str]] = (), module: str = "",
                   is_gradient: bool = False) -> None:
        if not frames and not module:
            self.made_for.pop(get_ident(), None)
            return
        known = tuple(Frame(*f) for f in frames) or self.lines.all[self.lines.here()].frames
        self.made_for[get_ident()] = MadeFor(self.lines.number(Line(known, module, is_gradient)))

    def gradients_of(self, node: Any, write: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        if not node.line:
            return write()
        number = self.lines.gradient(node.line)
        if node.op is Ops.CUSTOM_GRADIENT:  # written with tensors, in the line that asks for gradients
            found = self.written_for(number, write)
        else:
            found = write()
        for gradient in found:
            if gradient is not None:
                mark(gradient, number)
        return found

    def written_for(self, gradient: int, write: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What `write` gives, whose tensors are for that line."""
        thread = get_ident()
        outer = self.made_for.get(thread)
        self.made_for[thread] = MadeFor(outer and outer.written_at, self.lines.here(), gradient)
        try:
            return write()
        finally:
            if outer is None:
                del self.made_for[thread]
            else:
                self.made_for[thread] = outer

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
            if line and not is_shared(node):
                weight = 1 + (work_of(node) if node.op is Ops.REDUCE else 0)
                found[line] = max(found.get(line, 0), weight)
        for output in outputs:  # of several lines with as much to do, a kernel is for that of what it stores
            if output.line:
                found[output.line] = found.get(output.line, 0) + 1
        return tuple(sorted(found, key=lambda line: -found[line]))

    def lines_of_nodes(self, structure: Structure) -> tuple[int, ...]:
        return tuple(map(LINE, structure.nodes)) if structure.lines is None else structure.lines

    def tells_lines(self, template: Any, structure: Any) -> bool:
        last = template.observed
        is_own = last is not None and last.key is self.key and last.thread == get_ident()
        if is_own and last.line and last.line == structure.sinks[0].line:
            structure.observed = last
            return True
        now = structure.lines = tuple([node.line for node in structure.nodes])
        if is_own and last.nodes == now:
            structure.observed = last
            return True
        before = template.node_lines
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

    def at_once(self, calls: Any, template: Any, structure: Any) -> Any:
        now = self.lines_of_nodes(structure)
        what = id(calls), now, get_ident()
        _, found = self.at_once_of.get(what, (None, None))
        if found is None:
            before, sites = template.node_lines, calls.sites
            if now != before:
                sites = [(kernel, self.moved(lines, before, now, structure)) for kernel, lines in sites]
            lines = sites[0][1] or (self.lines.here(),)
            memory = {number: self.memory.change(lines[0], device, size * dtype.itemsize)
                      for number, device, size, dtype in calls.visible}
            kernels = tuple(self.kernel_sites(sites, calls.device))
            own = [node for node in structure.nodes if node.op is not BUFFER and not is_shared(node)]
            line = own[0].line if own == list(structure.sinks) else UNKNOWN
            found = self.run_at_once(Site("realize", ""), memory, now, lines, self.track(calls.device),
                                     kernels, line)
            self.at_once_of[what] = calls, found
        template.observed = found
        return found

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
        local = self.local
        local.scheduling = False
        local.lines = schedule.items[0].lines if schedule.items else None
        if not is_new:
            return
        if self.keeps_stages and len(self.schedules) < MOST_SCHEDULES:
            self.schedules.append(ScheduledGraph.of(structure, schedule, local.groups))
        else:
            self.schedules_left_out += 1
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
        """The record of a kernel that runs; a new one where it was made before the recording."""
        record = self.kernel_of.get(id(kernel))
        if record is None or record.kernel is not kernel:
            record = KernelRecord(len(self.kernels), kernel.ast, device, kernel.name, kernel)
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
            self.local.track = self.track(HOST if main else f"{HOST} {thread.name}")
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
        known.fromlist([track, site, began, ended])
        if len(known) > MOST_KNOWN:
            self.count()

    def marked(self, name: str, color: str) -> None:
        moment = clock()
        site = self.site(Site("mark", name, -1, (self.lines.here(),), color=color))
        self.log.known.fromlist([self.host_track(), site, moment, moment])

    def kernel_run(self, kernel: Any, device: str, start: Any, end: Any) -> None:
        lines = self.local.lines or ()
        site = self.site_of.get((id(kernel), lines, device))
        if site is None:
            record = self.record_of(kernel, device)
            site = self.site_of[id(kernel), lines, device] = self.site(
                Site("kernel", record.name, record.number, lines))
        self.log.wait_for(self.track(device), site, start, end, Device[device].queue)

    def run_at_once(self, around: Site, memory: dict[int, Change], nodes: tuple[int, ...] = (),
                    lines: tuple[int, ...] = (), track: int = NOWHERE, kernels: tuple[int, ...] = (),
                    line: int = UNKNOWN) -> RunAtOnce:
        """What is told of calls, or of a replay, in this thread."""
        host, site, runs = self.host_track(), self.site(around), numbers()
        with self.log.lock:
            found = RunAtOnce(self.key, get_ident(), runs, runs.fromlist, nodes, line, track, kernels, lines,
                              host, site, memory)
            self.all_at_once.append(found)
        return found

    def replays(self, name: str, memory: Iterable[tuple[str, int, tuple[int, ...]]]) -> Any:
        changes = dict(enumerate(self.memory_change(*of) for of in memory))
        return self.run_at_once(Site("replay", name), changes)

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

    def count(self) -> None:
        """Count what is known so far."""
        with self.log.lock:
            changes = self.memory.returned()  # these first: what is given back meanwhile was taken before
            events = [NONE]
            for kind in self.all_at_once:
                if kind.runs:
                    runs = taken(kind.runs).reshape(-1, 3 + len(kind.kernels) if kind.kernels else 2)
                    events.append(rows(kind.host, kind.around, runs[:, 0], runs[:, -1]))
                    events += [rows(kind.track, site, runs[:, 1 + i], runs[:, 2 + i])
                               for i, site in enumerate(kind.kernels)]
                    when = runs[:, 1 if kind.kernels else 0]
                    changes += [(when, of.size, of.owner) for of in kind.memory.values()]
            self.memory.count(changes + self.memory.taken())
            self.log.settle_single(np.concatenate(events))

    def settle(self) -> None:
        """Read the times of everything given so far, waiting for it, and count it."""
        self.count()
        self.log.settle()

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

    def memory_change(self, device: str, size: int, lines: tuple[int, ...] = ()) -> Change:
        lines = lines or self.local.lines or ()
        memory, what = self.memory, (lines[0] if lines else self.lines.here(), device, size)
        return memory.change_of.get(what) or memory.change(*what)

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
        elif self.kind in SCHEDULING:
            if not local.scheduling:  # a schedule that nobody ran is gone
                local.original, local.groups = {}, []
            local.scheduling = True
        self.started = clock()

    def __exit__(self, *exc: object) -> None:
        recorder, kind, record = self.recorder, self.kind, self.record
        if kind == "schedule" or (kind == "partition" and exc[0] is not None):
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
    if node.line or line == UNKNOWN:
        return
    node.line = line
    for source in node.src:
        if not source.line and source.op is not BUFFER:
            mark_all(source, line)


def mark_all(node: Any, line: int) -> None:
    """Give a node without a line, and those below it that have none, the number of one."""
    stack = [node]
    for found in stack:
        if not found.line and found.op is not BUFFER:
            found.line = line
            stack += found.src


def is_number(node: Any) -> bool:
    """Whether a node is one number, whatever its shape: it is marked with what uses it."""
    while node.op in (Ops.RESHAPE, Ops.EXPAND, Ops.CAST, Ops.DETACH):
        node = node.src[0]
    return bool(node.op is Ops.CONST)


def is_shared(node: Any) -> bool:
    """Whether a node is one for all lines that use it, a number or memory in a tensor's shape: its line is
    only that of the first."""
    return is_number(node) or (node.op is Ops.RESHAPE and node.src[0].op is BUFFER)


def work_of(reduce: Any) -> int:
    """How many items a reduce of the tensor graph takes, at most."""
    return largest(reduce.src[0].numel)
