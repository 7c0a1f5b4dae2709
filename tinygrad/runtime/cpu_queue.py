"""Queues of the host: one whose thread runs kernels in native code, one whose thread runs Python functions.

Both count what they have done on a `Timeline`, so that a thread can sleep until a command is done, and one
queue can wait for the other.

Work that takes less time than handing it over does (`HAND_OVER`) runs in the thread that gives it, if its
queue has nothing else to do: then nobody can tell the difference.
"""
from __future__ import annotations

import ctypes
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from tinygrad import observer
from tinygrad.device import Buffer, Program
from tinygrad.device.host import seconds_of
from tinygrad.device.queue import Numbers, ThreadedQueue, TimelinePoint, Timestamp, clock, describe
from tinygrad.runtime.cpu_pool import CPUCall, CPUProgram, KernelList, aligned_words, native, pool
from tinygrad.runtime.native_queue import (
    COMMAND_SLOTS,
    COMMANDS,
    HEAD,
    QUEUE_SLOTS,
    RING,
    STOPPING,
    TIMELINE,
    WAITERS,
    CommandKind,
)

Array = np.ndarray[Any, Any]
HAND_OVER = 3e-3
"""Seconds of work, by `seconds_of`, from which on it is handed to another thread. That costs 0.1 to 0.2 ms
until the result is read, for two threads wake up (two cores of Zen 4: sums of 4000 rows of 4176 1.88 ms so,
1.65 in the thread that gives them, a product of 600 x 600 2.36 and 2.17, one of 760 x 760 the same): at most
a twentieth of the work. Ten of them given one after another take as long either way."""
LOOK_AGAIN = 100_000_000
"""Nanoseconds after which a waiting thread lets the interpreter look for signals (Ctrl-C)."""


class Timeline:
    """A number in memory that grows, and that threads of every kind wait for.

    >>> gate = Timeline("gate")
    >>> gate.set(2)
    >>> gate.wait(1)
    >>> gate.point(3)
    <TimelinePoint 3 of gate>
    """

    may_fail = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._words = aligned_words(WAITERS + 1)
        self.address = int(self._words.ctypes.data)
        self._value = ctypes.c_int64.from_address(self.address)

    @property
    def value(self) -> int:
        return self._value.value

    @property
    def timeline(self) -> Timeline:
        """This; as of a queue."""
        return self

    def set(self, value: int) -> None:
        """Let it be `value`, and wake who waits for that."""
        native().set_value(self.address, value)

    def wait(self, value: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Return when it has come to `value`, or soon after `stop` says so. Can be interrupted (Ctrl-C)."""
        while self._value.value < value and not stop():
            native().await_value(self.address, value, LOOK_AGAIN)

    def point(self, value: int) -> TimelinePoint:
        """When it comes to `value`, for queues to wait for."""
        return TimelinePoint(self, value)

    def has_passed(self, value: int) -> bool:
        """Whether it has come to `value`."""
        return self._value.value >= value

    def await_value(self, value: int) -> None:
        """As `wait`."""
        self.wait(value)

    def keep(self, value: int, thing: object) -> None:
        """Nothing: a timeline of its own has no commands that could use a thing."""


class TimelineQueue(ThreadedQueue):
    """A queue that sets a timeline to n when its nth command is done."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.timeline = Timeline(name)
        self.kept: deque[tuple[int, object]] = deque()
        self.thread: threading.Thread | None = None

    @property
    def pushed(self) -> int:
        """Commands given so far. Counted where they are kept, so that an interrupt (Ctrl-C) cannot come
        between."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        return self.timeline.value >= self.pushed

    def has_passed(self, value: int) -> bool:
        return self.timeline.value >= value

    def await_value(self, value: int) -> None:
        self.timeline.wait(value)

    def keep(self, value: int, thing: object) -> None:
        self.kept.append((value, thing))

    def forget(self) -> None:
        """Let go of what was kept for commands that are done; with the lock held."""
        done = self.timeline.value
        while self.kept and self.kept[0][0] <= done:
            self.kept.popleft()

    def runs_here(self, seconds: float, sources: tuple[TimelinePoint, ...]) -> bool:
        """Whether work is better done by the thread that gives it. What may have failed is handed over, for
        the sake of its point."""
        return seconds < HAND_OVER and not sources and self.is_idle

    def signal(self) -> TimelinePoint:
        return TimelinePoint(self, self.pushed)

    def synchronize(self) -> None:
        self.await_value(self.pushed)
        with self.lock:
            self.forget()

    def restart(self) -> None:
        self.thread = None
        self.timeline.set(self.pushed)
        self.kept = deque()


# --- kernels ------------------------------------------------------------------------------------------------


class CPUQueue(TimelineQueue):
    """Kernels, in order, by a native thread and the pool's workers."""

    times_lists = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.make_ring()

    @property
    def pushed(self) -> int:
        return self._head.value

    @property
    def accepted(self) -> int:
        return self._head.value + pool().launched.value

    @property
    def is_idle(self) -> bool:  # as above, in fewer steps: asked for each kernel
        return self.timeline._value.value >= self._head.value

    def make_ring(self) -> None:
        """A ring without commands, after those that are done."""
        self.ring = aligned_words(RING * COMMAND_SLOTS)
        self.state = aligned_words(QUEUE_SLOTS)
        self.state[HEAD] = self.timeline.value
        self.state[TIMELINE] = self.timeline.address
        self.state[COMMANDS] = self.ring.ctypes.data
        self.address = int(self.state.ctypes.data)
        self._head = ctypes.c_int64.from_address(self.address + 8 * HEAD)

    def serve(self, state: Array, ring: Array, first: int) -> None:
        """What the thread does: run the commands in a ring from `first` on, until one says stop."""
        native().serve(state.ctypes.data, pool().state_address, first)

    def push(self, kind: CommandKind, *operands: int, kept: object = None,
             sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint:
        """Put a command into the ring; waits while that is full."""
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self.serve, args=(self.state, self.ring, self.timeline.value), daemon=True,
                    name=f"tinygrad-queue-{self.name}")
                self.thread.start()
            self.forget()
            self.timeline.wait(self.pushed - RING + 1)
            command = array("q", (kind, *operands, *[0] * (COMMAND_SLOTS - 1 - len(operands))))
            point = TimelinePoint(self, self.pushed + 1, sources)
            if kept is not None:
                self.keep(point.value, kept)
            native().push(self.address, command.buffer_info()[0])
            return point

    def exec(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
             work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        with self.lock:
            if self.runs_here(work, sources):
                program(addresses, variables, extent)
                return None
            return self.push_kernel(program, array("q", [*addresses, *variables]), len(addresses), extent,
                                    sources)

    def exec_timed(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
                   work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()
                   ) -> tuple[TimelinePoint | None, Timestamp, Timestamp]:
        with self.lock:
            if self.runs_here(work, sources):
                begun = clock()
                program(addresses, variables, extent)
                ended = clock()
                return None, Timestamp(lambda: begun), Timestamp(lambda: ended)
            words = array("q", [*addresses, *variables, 0, 0, 0, 0])
            first = len(words) - 4
            point = self.push_kernel(program, words, len(addresses), extent, sources, first)
            return (point, Timestamp(partial(moment, point, words, first)),
                    Timestamp(partial(moment, point, words, first + 2)))

    def push_kernel(self, program: Program, arguments: array[int], buffers: int, extent: int,
                    sources: tuple[TimelinePoint, ...], times: int = 0) -> TimelinePoint:
        """Hand a kernel over: its arguments are so many buffers' addresses, then its variables; from place
        `times` on, if that is not 0, there is room for two moments."""
        if not isinstance(program, CPUProgram):
            raise TypeError(f"{describe(program)} is no kernel of this queue, which runs machine code")
        threads = pool()
        threads.need_scratch(program.scratch)
        start = arguments.buffer_info()[0]
        return self.push(CommandKind.EXEC, program.function, start, start + 8 * buffers, extent,
                         threads.chunk_of(extent), times and start + 8 * times, kept=(program, arguments),
                         sources=sources)

    def record(self, calls: Sequence[CPUCall]) -> KernelList:
        return KernelList(calls)

    def exec_list(self, kernels: KernelList, places: Numbers, values: Numbers, work: float = 0.0,
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        with self.lock:
            frame = kernels.free_frame()
            frame.change(places, values)
            watcher = observer.active
            times = None
            if watcher is not None:
                is_known = kernels.watcher is watcher.key
                times = kernels.times if is_known else kernels.watch(watcher, self.name)
            address = 0 if times is None else times.address
            if self.runs_here(work, sources):
                kernels.run(frame, address)
                return None
            pool().need_scratch(kernels.scratch)
            frame.point = self.push(CommandKind.LIST, frame.address, len(kernels), address,
                                    kept=(kernels, frame, times), sources=sources)
            if times is not None:
                times.point = frame.point
            return frame.point

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        with self.lock:
            if self.runs_here(copy_seconds(target), sources):
                target.fill_from(source, offset)
                return None
            return self.push(CommandKind.COPY, target.address, source.address + offset, target.nbytes,
                             kept=(target.memory, source.memory), sources=sources)

    def signal(self, timeline: Timeline | None = None, value: int = 0) -> TimelinePoint:
        """A point after everything given so far; there, `timeline` becomes `value`."""
        if timeline is None:
            return super().signal()
        return self.push(CommandKind.SIGNAL, timeline.address, value, kept=timeline)

    def wait(self, point: TimelinePoint) -> None:
        timeline = getattr(point.queue, "timeline", None)
        if timeline is None:
            super().wait(point)
        elif timeline is not self.timeline:
            self.push(CommandKind.WAIT, timeline.address, point.value, kept=timeline)

    def timestamp(self) -> Timestamp:
        if self.is_idle:
            now = clock()
            return Timestamp(lambda: now)
        words = array("q", (0, 0))
        point = self.push(CommandKind.TIMESTAMP, words.buffer_info()[0], kept=words)
        return Timestamp(partial(moment, point, words, 0))

    @property
    def is_stuck(self) -> bool:
        done = self.timeline.value
        if done >= self.pushed:
            return False
        slot = done % RING * COMMAND_SLOTS
        kind, address, value = (int(word) for word in self.ring[slot:slot + 3])
        return kind == CommandKind.WAIT and ctypes.c_int64.from_address(address).value < value

    def stop(self) -> None:
        with self.lock:
            thread = self.thread
            if thread is None:
                return
            self.state[STOPPING] = 1
            self.push(CommandKind.STOP)
            thread.join(timeout=1.0)
            if not thread.is_alive():
                self.thread = None
                self.make_ring()

    def restart(self) -> None:
        super().restart()
        self.make_ring()


def moment(point: TimelinePoint, words: array[int], first: int) -> float:
    """The moment that a command wrote into two words, seconds and nanoseconds; waits for it."""
    point.wait()
    return words[first] + words[first + 1] * 1e-9


def copy_seconds(target: Buffer) -> float:
    """How long filling a buffer takes."""
    return seconds_of(0, 2 * target.nbytes)


# --- Python functions ---------------------------------------------------------------------------------------


class HostQueue(TimelineQueue):
    """Python functions, in order, by a thread: copies from files and devices, programs that Python runs.

    What a function raises is raised where its point is waited for, or that of what used its result.
    """

    may_fail = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.commands: deque[tuple[Callable[[], None], TimelinePoint]] = deque()
        self.begun = 0
        """commands that the thread has taken"""
        self.some = threading.Condition(self.lock)
        self.awaited: TimelinePoint | None = None
        """what the thread waits for"""
        self.stopping = False

    @property
    def pushed(self) -> int:
        with self.lock:
            return self.begun + len(self.commands)

    @property
    def is_idle(self) -> bool:  # as above, without the lock: what is taken has been counted as begun before
        return not self.commands and self.timeline._value.value >= self.begun

    @property
    def accepted(self) -> int:
        return self.pushed + self.ran

    def call(self, function: Callable[[], None], sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint:
        """Call `function` after everything given so far."""
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self.serve, daemon=True,
                                               name=f"tinygrad-queue-{self.name}")
                self.thread.start()
            self.forget()
            point = TimelinePoint(self, self.pushed + 1, sources)
            self.commands.append((function, point))
            self.some.notify()
            return point

    def serve(self) -> None:
        """What the thread does: call functions until it is to stop."""
        while True:
            with self.some:
                self.some.wait_for(lambda: self.commands or self.stopping)
                if not self.commands:
                    return
                function, point = self.commands[0]
                self.begun = point.value
                self.commands.popleft()
            try:
                function()
            except BaseException as error:  # of whatever kind: it belongs to who waits
                point.error = error
            del function  # and what it holds, before anybody knows that it is done
            self.timeline.set(point.value)

    def exec(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
             work: float = HAND_OVER, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """As `CommandQueue.exec`; what takes how long nobody knows, so it is handed over unless said."""
        given = list(addresses), list(variables)

        def run() -> None:
            with named(f"kernel {describe(program)}"):
                program(*given, extent)

        return self.run_or_call(run, work, sources)

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        def run() -> None:
            with named(f"copying {target.nbytes:,} bytes from {source.device} to {target.device}"):
                target.fill_from(source, offset)

        return self.run_or_call(run, copy_seconds(target), sources)

    def run_or_call(self, function: Callable[[], None], seconds: float, sources: tuple[TimelinePoint, ...]
                    ) -> TimelinePoint | None:
        """Call it here if that is better, else by the thread."""
        with self.lock:
            if not self.runs_here(seconds, sources):
                return self.call(function, sources)
            function()
            self.ran += 1
            return None

    def signal(self, timeline: Timeline | None = None, value: int = 0) -> TimelinePoint:
        """A point after everything given so far; there, `timeline` becomes `value`."""
        if timeline is None:
            return super().signal()
        return self.call(lambda: timeline.set(value))

    def wait(self, point: TimelinePoint) -> None:
        if point.queue is not self:
            self.call(lambda: self.rest_until(point))

    def rest_until(self, point: TimelinePoint) -> None:
        """Wait for another queue, in this one's thread."""
        self.awaited = point
        timeline = getattr(point.queue, "timeline", None)
        if timeline is None:
            point.queue.await_value(point.value)
        else:
            timeline.wait(point.value, lambda: self.stopping)
        self.awaited = None

    def timestamp(self) -> Timestamp:
        if self.is_idle:
            now = clock()
            return Timestamp(lambda: now)
        moments: list[float] = []
        point = self.call(lambda: moments.append(clock()))

        def read() -> float:
            point.wait()
            return moments[0]

        return Timestamp(read)

    @property
    def is_stuck(self) -> bool:
        awaited = self.awaited
        return awaited is not None and not awaited.is_past

    def stop(self) -> None:
        with self.lock:
            thread, self.thread, self.stopping = self.thread, None, True
            self.some.notify()
        if thread is not None:
            thread.join(timeout=1.0)
        self.stopping = False

    def restart(self) -> None:
        super().restart()
        self.begun = self.timeline.value
        self.commands.clear()
        self.awaited = None
        self.some = threading.Condition(self.lock)


@contextmanager
def named(work: str) -> Iterator[None]:
    """Add to an exception from inside what was being done."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in a command queue: {work}")
        raise
