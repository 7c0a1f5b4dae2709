"""Command queues: the one way in which work is given to a device.

A `CommandQueue` does what it is given in order: `exec` a kernel, `copy` memory, `signal` and `wait`, take a
`timestamp`; `submit` hands over what a queue may have gathered until then. `exec` and `copy` return a
`TimelinePoint` of the queue, which is past once they are done, or None where they are done already: each
queue decides whether handing work over is worth it.

Two queues know nothing of each other's order. Who uses memory keeps it: `Uses` holds the points of a piece
of memory's last write and of the reads since then, by which the engine lets a queue wait for another one, and
the host for just what it needs.

This queue runs everything at once, or gives it to a driver that keeps the order; `runtime/cpu_queue.py` has
queues with threads of their own, `opencl.py` and `cuda.py` those of drivers. docs/queues.md has the whole.
"""
from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from tinygrad.device.buffer import Buffer
    from tinygrad.device.devices import Program

Numbers: TypeAlias = "np.ndarray[Any, Any] | list[int]"
"""Whole numbers: an array, or where they are few, which costs less then, a list."""


class Order(Protocol):
    """What points are of: a queue, or a timeline that somebody sets."""

    name: str
    may_fail: bool

    def has_passed(self, value: int) -> bool:
        """Whether a point is past."""

    def await_value(self, value: int) -> None:
        """Return when a point is past. Raises nothing that a command raised."""

    def keep(self, value: int, thing: object) -> None:
        """Keep `thing` alive until a point is past."""


class TimelinePoint:
    """A place in a queue's order. It is past when everything given to the queue up to it is done."""

    __slots__ = ("error", "queue", "sources", "value")

    def __init__(self, queue: Order, value: int, sources: tuple[TimelinePoint, ...] = ()) -> None:
        self.queue = queue
        self.value = value
        self.sources = sources
        """the commands that wrote what this one reads, as far as they may have failed; none when it is known
        whether they did"""
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<TimelinePoint {self.value} of {self.queue.name}{', past' if self.is_past else ''}>"

    @property
    def is_past(self) -> bool:
        return self.queue.has_passed(self.value)

    @property
    def may_have_failed(self) -> bool:
        """Whether what is written here is worthless, or may be: this command failed, or one whose result it
        reads, or they still may."""
        if not (self.queue.may_fail or self.sources):
            return self.error is not None  # without asking a driver how far it is
        if self.is_past:
            return self.failure() is not None
        self.sources = tuple([s for s in self.sources if not s.is_past or s.failure() is not None])
        return self.queue.may_fail or bool(self.sources)

    def failure(self) -> BaseException | None:
        """What the command at this point raised, or one did on whose result it depends; known when it is
        past. Each point is asked once: then it has the error itself."""
        stack = [self]
        while stack:
            point = stack[-1]
            sources = point.sources
            unknown = [s for s in sources if s.sources]
            if unknown:
                stack.extend(unknown)
                continue
            stack.pop()
            error = next((s.error for s in sources if s.error is not None), None)
            if error is not None and point.error is None:
                point.error = error
            point.sources = ()
        return self.error

    def wait(self) -> None:
        """Return when this is past. Raises what the command raised, or those that wrote its operands did."""
        self.queue.await_value(self.value)
        failed = self.failure()
        if failed is not None:
            raise failed


class Timestamp:
    """A moment at which a queue got to a command."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The moment in seconds on the device's clock; waits for it. Only differences mean anything."""
        if self._seconds is None:
            self._seconds = self._read()
        return self._seconds


MOST_REPEATED = 8
"""Commands that read the same memory again and again, beyond which those that are past are forgotten."""


class RepeatedReads:
    """What a command that is given again and again reads each time: it is noted once in the `Uses` of all
    that memory, and has the point of its last run."""

    __slots__ = ("is_noted", "point")

    def __init__(self) -> None:
        self.point: TimelinePoint | None = None
        self.is_noted = False
        """False where some of the memory may not know of it (any more)"""

    @property
    def is_past(self) -> bool:
        return self.point is None or self.point.is_past


class Uses:
    """The unfinished commands that use a piece of memory."""

    __slots__ = ("reads", "repeated", "written")

    def __init__(self, reads: Iterable[TimelinePoint] = ()) -> None:
        self.written: TimelinePoint | None = None
        self.reads: list[TimelinePoint] = list(reads)
        self.repeated: list[RepeatedReads] = []

    def before_reading(self, order: Order | None = None) -> list[TimelinePoint]:
        """What has to be past before the content is there; not what is sure to be for commands of the queue
        `order`. A write that failed stays, for every reader."""
        written = self.written
        if written is not None and written.queue is order and not (
                order.may_fail or written.sources or written.error):
            return []  # without asking a driver how far it is
        if written is None or not written.is_past or written.failure() is not None:
            return [] if written is None else [written]
        self.written = None
        return []

    def before_writing(self, order: Order | None = None) -> list[TimelinePoint]:
        """What has to be past before the content may change; not what `order` keeps in order."""
        repeated = [r.point for r in self.repeated if r.point is not None]
        found = [*self.before_reading(order), *self.reads, *repeated]
        return [p for p in found if p.queue is not order and not p.is_past] if found else found

    @property
    def is_idle(self) -> bool:
        """Whether the content is there, and no command uses it."""
        return not self.before_reading() and not self.before_writing()

    def add_read(self, point: TimelinePoint) -> None:
        """Take note of a command that reads. One later in a queue's order stands for those before it."""
        self.reads = [p for p in self.reads if p.queue is not point.queue and not p.is_past]
        self.reads.append(point)

    def set_written(self, point: TimelinePoint | None) -> None:
        """Take note of a command that writes, after all that `before_writing` says; None: it is done."""
        self.written = point
        self.reads.clear()
        if self.repeated:
            self.forget_repeated()

    def add_repeated(self, reads: RepeatedReads) -> None:
        """Know of a command's reads from now on, run after run."""
        if reads not in self.repeated:
            if len(self.repeated) >= MOST_REPEATED:
                self.forget_repeated(past_only=True)
            self.repeated.append(reads)

    def forget_repeated(self, past_only: bool = False) -> None:
        """Let the commands that read again and again note themselves anew in their next runs."""
        kept = [r for r in self.repeated if past_only and not r.is_past]
        for reads in self.repeated:
            reads.is_noted = reads in kept and reads.is_noted
        self.repeated = kept


class ByteRegion(NamedTuple):
    """Bytes of a piece of memory: runs of the same length, along axes of so many steps."""

    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    run: int

    @property
    def nbytes(self) -> int:
        return prod(self.counts) * self.run

    def rows(self) -> tuple[int, ...]:
        """Where its runs begin, in order."""
        return tuple(self.start + sum(map(mul, place, self.strides))
                     for place in product(*map(range, self.counts)))

    @property
    def is_contiguous(self) -> bool:
        inside = [prod(self.counts[axis + 1:]) * self.run for axis in range(len(self.counts))]
        return all(n == 1 or a == b for n, a, b in zip(self.counts, self.strides, inside, strict=True))


class BlockCopy(NamedTuple):
    """What one of a group gets of one of it."""

    giver: int
    taker: int
    given: ByteRegion
    """of what the giver gives"""
    taken: ByteRegion
    """of what the taker gets, in runs of the same length"""


class CollectiveGroup(NamedTuple):
    """Who takes part in a collective, in order."""

    devices: tuple[str, ...]
    op: str
    """what combines their values: ADD, MUL, MAX; nothing: they are joined, or exchange blocks"""
    blocks: tuple[BlockCopy, ...] = ()


class GatheredCopy(NamedTuple):
    """A copy that begins together with others; of a collective, what this process does of it."""

    target_device: str
    source_device: str
    written: frozenset[Hashable]
    """what stands for the memory that is written; of a collective that of all who take part, so that all
    processes find the same conflicts"""
    read: frozenset[Hashable]
    """what stands for the memory that is read, by all of them too"""
    part: Hashable
    """what stands for the bytes of it that are read: the same for the same bytes"""
    items: int
    dtype: str
    nbytes: int
    program: str = ""
    """what it is for (`CommandQueue.program`)"""
    group: CollectiveGroup | None = None
    """of a collective"""

    def conflicts(self, others: Iterable[GatheredCopy]) -> bool:
        """Whether it has to come after these."""
        return not all(self.read.isdisjoint(c.written) and self.written.isdisjoint(c.written | c.read)
                       for c in others)


def written_and_read(memories: Sequence[Hashable]) -> tuple[frozenset[Hashable], frozenset[Hashable]]:
    """Of what stands for the memories of a COPY or COLLECTIVE, as many that it writes before those that it
    reads."""
    half = len(memories) // 2
    return frozenset(memories[:half]), frozenset(memories[half:])


class CommandQueue:
    """A queue whose device does everything at once, or keeps the order itself."""

    may_fail = False
    """whether a command may fail after it was accepted"""
    gathers = False
    """whether copies given one after another begin together, at `submit`, which is then called before
    anything else is given to any queue"""
    program = ""
    """of a queue that gathers copies: what those given next are for, which all that take part in them have to
    say alike"""
    times_lists = False
    """whether `exec_list` tells an observer when each kernel ran (`observer.py`)"""

    def __init__(self, name: str, finish: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.finish = finish
        """returns when the driver has done everything it was given"""
        self.ran = 0

    @property
    def accepted(self) -> int:
        """A number that grows when a kernel is accepted, which then runs whatever happens: so it tells after
        an interrupt (Ctrl-C) in `exec` or `exec_list` whether there is anything left to give."""
        return self.ran

    def exec(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
             work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """Run a kernel, as `Program.__call__` does. `work` (`seconds_of`) is what it belongs to: the kernels
        that are given together."""
        raise_failures(sources)
        program(addresses, variables, extent)
        self.ran += 1
        return None

    def exec_timed(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
                   work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()
                   ) -> tuple[TimelinePoint | None, Timestamp, Timestamp]:
        """As `exec`, with the moments at which the kernel begins and ends."""
        begun = self.timestamp()
        point = self.exec(program, addresses, variables, extent, work, sources)
        return point, begun, self.timestamp()

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        """Fill `target` with the bytes of `source` from `offset` on."""
        raise_failures(sources)
        target.fill_from(source, offset)
        return None

    def collective(self, group: CollectiveGroup, buffers: Sequence[Buffer], target: Buffer, source: Buffer,
                   offset: int, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """Fill `target` with what all of a group have: of this one the bytes of `source` from `offset` on.
        `buffers` are those of all: what is filled, then what is given."""
        raise NotImplementedError

    def signal(self) -> TimelinePoint:
        """A point after everything given so far."""
        return TimelinePoint(self, 0)

    def wait(self, point: TimelinePoint) -> None:
        """Do nothing of what is given from now on before `point` of another queue is past."""
        point.queue.await_value(point.value)

    def timestamp(self) -> Timestamp:
        """The moment at which everything given so far is done."""
        self.finish()
        now = clock()
        return Timestamp(lambda: now)

    def submit(self) -> None:
        """Let everything given so far begin without a further call."""

    def record(self, calls: Sequence[Any]) -> Any:
        """Kernels that can be given as one command, again and again with other arguments: something for
        `exec_list`; None where there is no such thing. A call is a program, its buffers' addresses, its
        variables, its extent."""
        return None

    def exec_list(self, kernels: Any, places: Numbers, values: Numbers, work: float = 0.0,
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """Run what `record` gave, after changing arguments: `places` are their numbers (those of call `k`
        begin at `kernels.starts[k]`, first the addresses, then the variables)."""
        raise NotImplementedError

    def record_copies(self, copies: Sequence[GatheredCopy]) -> Any:
        """Of a queue that gathers copies: those as one command that can be given again and again, for
        `copy_list`. `own` of it are the numbers of those that need memory here."""
        raise NotImplementedError

    def copy_list(self, recorded: Any, memory: Sequence[tuple[Buffer, Buffer, int]],
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """Make the copies that `record_copies` gave: for each of its `own` the target, the source, and the
        bytes of that before what is copied."""
        raise NotImplementedError

    def has_passed(self, value: int) -> bool:
        """As `Order` says; everything is past here."""
        return True

    def await_value(self, value: int) -> None:
        """As `Order` says."""

    def keep(self, value: int, thing: object) -> None:
        """As `Order` says."""

    def synchronize(self) -> None:
        """Return when everything given so far is done."""
        self.finish()


def raise_failures(points: Iterable[TimelinePoint]) -> None:
    """Wait for these points, and raise what a command raised."""
    for point in points:
        point.wait()


class DriverQueue(CommandQueue):
    """A queue of a driver, which runs what it is given in order and can mark places in it.

    Points are numbers of commands. Only where somebody asks for one is a mark made, after everything given by
    then."""

    def __init__(self, name: str, finish: Callable[[], object]) -> None:
        super().__init__(name, finish)
        self.given = 0
        self.done = 0
        self.marks: deque[tuple[int, Any]] = deque()
        self.kept: deque[tuple[int, object]] = deque()
        self.lock = threading.RLock()

    @property
    def accepted(self) -> int:
        return self.given

    def mark(self) -> Any:
        """The driver's mark (an event) after everything given so far."""
        raise NotImplementedError

    def is_reached(self, mark: Any) -> bool:
        """Whether the driver has got to a mark."""
        raise NotImplementedError

    def await_mark(self, mark: Any) -> None:
        """Return when the driver has got to a mark."""
        raise NotImplementedError

    def signal(self) -> TimelinePoint:
        return TimelinePoint(self, self.given)

    def next_point(self, kept: object = None) -> TimelinePoint:
        """The point after the command that was just given, until which `kept` is kept."""
        with self.lock:
            self.given += 1
            if kept is not None:
                self.kept.append((self.given, kept))
                self.has_passed(self.kept[0][0])
            return TimelinePoint(self, self.given)

    def mark_after(self, value: int) -> tuple[int, Any]:
        """A mark at or after a point, and the point it is at."""
        with self.lock:
            for found in self.marks:
                if found[0] >= value:
                    return found
            self.marks.append((self.given, self.mark()))
            return self.marks[-1]

    def has_passed(self, value: int) -> bool:
        if value <= self.done:
            return True
        with self.lock:
            self.mark_after(value)
            while self.marks and self.is_reached(self.marks[0][1]):
                self.set_done(self.marks.popleft()[0])
            return value <= self.done

    def await_value(self, value: int) -> None:
        if value > self.done:
            reached, mark = self.mark_after(value)
            self.await_mark(mark)
            with self.lock:
                self.set_done(reached)

    def set_done(self, value: int) -> None:
        self.done = max(self.done, value)
        while self.kept and self.kept[0][0] <= self.done:
            self.kept.popleft()

    def keep(self, value: int, thing: object) -> None:
        self.kept.append((value, thing))

    def exec(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
             work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        super().exec(program, addresses, variables, extent, work, sources)
        return self.next_point()


# --- queues with threads ------------------------------------------------------------------------------------


class ThreadedQueue(CommandQueue):
    """What queues with threads have in common: the process may end or fork with work in flight."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lock = threading.RLock()
        """held while something is given to the queue"""
        _threaded.add(self)

    @property
    def is_idle(self) -> bool:
        """Whether everything given is done."""
        raise NotImplementedError

    def runs_here(self, seconds: float, sources: tuple[TimelinePoint, ...]) -> bool:
        """Whether work of so many seconds is better done by the thread that gives it; asked with the lock
        held."""
        raise NotImplementedError

    @property
    def is_stuck(self) -> bool:
        """Whether the next command waits for something that has not happened."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the thread; a command that waits is given up."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin anew in a forked child, where the thread does not exist."""
        raise NotImplementedError


_threaded: weakref.WeakSet[ThreadedQueue] = weakref.WeakSet()
PATIENCE = 0.05
"""Seconds after which a stuck queue is looked at again, before nobody is expected to help it."""


def drain() -> bool:
    """Wait until all queues with threads are idle, or stuck for good: False."""
    stuck = 0
    while busy := [queue for queue in list(_threaded) if not queue.is_idle]:
        stuck = stuck + 1 if all(queue.is_stuck for queue in busy) else 0
        if stuck > 1:
            return False
        time.sleep(PATIENCE if stuck else PATIENCE / 50)
    return True


def stop_all() -> None:
    """End all queues' threads after what they were given; what they run in is about to go."""
    drain()
    for queue in list(_threaded):
        queue.stop()


_held_for_fork: list[ThreadedQueue] = []


def _before_fork() -> None:
    """Let no queue be at work while the process forks: a child has no threads to finish it."""
    while True:
        drained = drain()
        _held_for_fork.extend(_threaded)
        for queue in _held_for_fork:
            queue.lock.acquire()
        if not drained or all(queue.is_idle for queue in _held_for_fork):
            return
        _after_fork(False)


def _after_fork(restart: bool) -> None:
    for queue in _held_for_fork:
        if restart:
            queue.restart()
        queue.lock.release()
    _held_for_fork.clear()


if hasattr(os, "register_at_fork"):
    # Registered before the engine's lock, so taken after it: whoever gives work to a queue holds that.
    os.register_at_fork(before=_before_fork, after_in_parent=lambda: _after_fork(False),
                        after_in_child=lambda: _after_fork(True))


clock: Callable[[], float] = time.monotonic if sys.platform == "linux" else partial(
    time.clock_gettime, time.CLOCK_MONOTONIC)
"""The host's monotonic clock, in seconds, as native code reads it too."""


def describe(what: Any) -> str:
    """The name of a kernel, for errors."""
    return str(getattr(what, "name", what))
