"""RANK, RANK:1, ...: the processes that MPI started, each of them a device of every process.

In: one program that runs in all processes, and so the same schedules in the same order. Out: each process
runs the kernels of its own device, on the CPU, and has only that device's memory; those of other ranks are
neither run nor is there memory for them. A COPY between ranks is a message, one from a rank to any other
device a broadcast. All go through one queue (`ExchangeQueue`), whose thread exchanges them in the order of
the schedule, beside the kernels: copies that stand together there (`schedule/exchanges.py`) are one exchange,
whose messages are on their way at once. The order is total and the same everywhere, so none waits in a
circle.

An exchange begins with a header to each partner, the number and the digest of those so far with it: processes
that went different ways end with that cause. What ends a process ends all (`World.abort`): an
exception, an exit while another rank waits for it, an exchange that takes longer than `DISTRIBUTED_TIMEOUT`
seconds.
"""
from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from tinygrad.device import Buffer, CompiledDevice, Program
from tinygrad.device.queue import CommandQueue, TimelinePoint, Timestamp, clock
from tinygrad.runtime.cpu import CPUAllocator, CPUDevice, cpu_renderer
from tinygrad.runtime.cpu_queue import HostQueue, Timeline
from tinygrad.runtime.null import NullAllocator, NullDevice

KIND = "RANK"
CHUNK = 1 << 30
"""Bytes of one message: MPI counts in 32 bits."""
END_TAG, DATA_TAG = 1, 2
EVERYBODY = -1
POLLING = 5e-5
"""Seconds for which that thread polls: about what it costs to sleep and be woken."""
SHORTEST_REST, LONGEST_REST = 1e-5, 2e-4
"""Seconds between two looks of the thread that exchanges, while a partner is not there yet."""
LOOK_AGAIN = 0.1
"""Seconds between two looks of the thread that watches the others."""
PATIENCE = 1.0
"""Seconds that an exchange with a rank that has ended may take: what that one sent may be on its way."""
FAILED = 1
"""The status with which all processes end where one fails."""


def name_of(rank: int) -> str:
    """The device of a rank."""
    return f"{KIND}:{rank}" if rank else KIND


def rank_of(device: str) -> int | None:
    """The rank whose device this is; None for a device that every process has."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == KIND else None


def timeout() -> float:
    """Seconds that an exchange may take."""
    return float(os.getenv("DISTRIBUTED_TIMEOUT") or 600)


class World:
    """The processes of this program, joined by MPI."""

    current: World | None = None
    """what `distributed.init` joined"""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.data, self.control = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self.data.Get_rank()), int(self.data.Get_size())
        self.timeout = timeout()
        self.ended: set[int] = set()
        self.partners: tuple[int, ...] = ()
        """the ranks that the exchange in progress needs"""
        self.began = 0.0
        """when it began"""
        self.sent = 0
        """bytes that this rank sent to others"""
        self.seen: dict[int, tuple[int, int]] = {}
        """by rank, the number and the digest of the exchanges with it; of broadcasts with EVERYBODY"""
        threading.Thread(target=self.watch, daemon=True, name="tinygrad-world").start()

    @cached_property
    def exchanges(self) -> ExchangeQueue:
        """The queue of everything that ranks exchange."""
        return ExchangeQueue(self)

    # --- messages -------------------------------------------------------------------------------------------

    def exchange(self, messages: Messages) -> None:
        """Send and receive all of these at once. Begins when all partners do, which have to agree about
        number, sizes and digest."""
        with OpenExchange(self, messages.partners):
            self.meet(messages)
            waiting = [self.data.Irecv(part, rank, DATA_TAG) for rank, memory in messages.received
                       for part in parts(memory)]
            waiting += [self.data.Isend(part, rank, DATA_TAG) for rank, memory in messages.sent
                        for part in parts(memory)]
            self.mpi.Request.Waitall(waiting)
        self.sent += sum(memory.nbytes for _, memory in messages.sent)

    def meet(self, messages: Messages) -> None:
        """Wait, without using the processor, until each partner is at this exchange. Ends all processes where
        one is elsewhere in the program, or in another one."""
        own, found = {}, {}
        for rank in messages.partners:
            count, digest = self.seen.get(rank, (0, 0))
            digest = zlib.crc32(repr(messages.between(rank)).encode(), digest)
            self.seen[rank] = count + 1, digest
            size = sum(m.nbytes for r, m in (*messages.sent, *messages.received) if r == rank)
            own[rank] = np.array((count + 1, size, digest), np.int64)
            found[rank] = np.empty_like(own[rank])
        waiting = [self.data.Irecv(found[rank], rank, DATA_TAG) for rank in own]
        waiting += [self.data.Isend(own[rank], rank, DATA_TAG) for rank in own]
        self.rest_until(waiting)
        for rank in own:
            self.compare(own[rank], found[rank], rank)

    def rest_until(self, requests: list[Any]) -> None:
        """Return when they are complete. A thread that polls takes time from the kernels beside it, so after
        a moment it sleeps, longer and longer."""
        seconds, polled_until = SHORTEST_REST, time.perf_counter() + POLLING
        while not self.mpi.Request.Testall(requests):
            if time.perf_counter() > polled_until:
                time.sleep(seconds)
                seconds = min(1.5 * seconds, LONGEST_REST)

    def broadcast(self, memory: np.ndarray[Any, Any], root: int) -> None:
        """Fill `memory` of every rank with what it is at `root`."""
        others = tuple(r for r in range(self.size) if r != self.rank)
        with OpenExchange(self, others):
            count, digest = self.seen.get(EVERYBODY, (0, 0))
            digest = zlib.crc32(repr((root, memory.nbytes)).encode(), digest)
            self.seen[EVERYBODY] = count + 1, digest
            own = np.array((count + 1, memory.nbytes, digest), np.int64)
            found = own.copy()
            self.rest_until([self.data.Ibcast(found, root)])
            self.compare(own, found, root)
            for part in parts(memory):
                self.data.Bcast(part, root)
            if self.rank == root:
                self.sent += memory.nbytes * (self.size - 1)

    def compare(self, own: np.ndarray[Any, Any], other: np.ndarray[Any, Any], rank: int) -> None:
        """End all processes where a rank is elsewhere in the program, or in another one."""
        if not np.array_equal(own, other):
            self.abort(f"rank {rank} and rank {self.rank} do not run the same program: exchange "
                       f"{other[0]} of {other[1]:,} bytes there is exchange {own[0]} of {own[1]:,} bytes "
                       "here")

    # --- the end --------------------------------------------------------------------------------------------

    def abort(self, cause: str) -> None:
        """End all processes, and say why."""
        print(f"rank {self.rank} of {self.size}: {cause}", file=sys.stderr, flush=True)
        self.mpi.COMM_WORLD.Abort(FAILED)

    def fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What is to be done with an exception that nobody catches."""
        self.abort("".join(traceback.format_exception(kind, error, trace)).rstrip())

    def watch(self) -> None:
        """What a thread does: see who has ended, and how long the exchange in progress takes."""
        status = self.mpi.Status()
        while not self.mpi.Is_finalized() and self.rank not in self.ended:
            if self.control.Iprobe(self.mpi.ANY_SOURCE, END_TAG, status):
                self.control.recv(source=status.Get_source(), tag=END_TAG)
                self.ended.add(status.Get_source())
            partners, seconds = self.partners, time.monotonic() - self.began
            gone = self.ended.intersection(partners)
            if partners and gone and seconds > PATIENCE:
                self.abort(f"rank {min(gone)} has ended, and this one waits for it")
            if partners and seconds > self.timeout:
                self.abort(f"an exchange between ranks {', '.join(map(str, sorted(partners)))} takes longer "
                           f"than {self.timeout:g} s (DISTRIBUTED_TIMEOUT)")
            time.sleep(LOOK_AGAIN)

    def end(self) -> None:
        """At the interpreter's end: say so to the others, and let what was given be done."""
        self.exchanges.synchronize()
        waiting = [self.control.isend(None, r, END_TAG) for r in range(self.size)]
        self.mpi.Request.Waitall(waiting)


class OpenExchange:
    """What the thread that watches sees while an exchange takes place."""

    def __init__(self, world: World, partners: tuple[int, ...]) -> None:
        self.world, self.partners = world, partners

    def __enter__(self) -> None:
        self.world.began = time.monotonic()
        self.world.partners = self.partners

    def __exit__(self, *exc: object) -> None:
        self.world.partners = ()


@dataclass
class Messages:
    """What a rank sends and receives in one exchange, in the order of the schedule."""

    sent: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    received: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    described: list[tuple[int, int, int, str]] = field(default_factory=list)
    """(giver, taker, items, dtype) of each"""

    @property
    def partners(self) -> tuple[int, ...]:
        return tuple(sorted({rank for rank, _ in (*self.sent, *self.received)}))

    def between(self, rank: int) -> list[tuple[int, int, int, str]]:
        """Those from and to a rank."""
        return [d for d in self.described if rank in d[:2]]


def parts(memory: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Bytes in messages of a size that MPI can count."""
    for start in range(0, memory.nbytes, CHUNK):
        yield memory[start:start + CHUNK]


# --- the devices --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankCopy:
    """A copy from a rank to another one, or to a device that every process has."""

    target: Buffer
    source: Buffer
    offset: int
    giver: int
    taker: int | None

    @property
    def given(self) -> tuple[Buffer, int, int]:
        """Which bytes are copied."""
        return self.source, self.offset, self.target.nbytes

    @property
    def bytes_given(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.source.memory, np.uint8)[self.offset:self.offset + self.target.nbytes]

    @property
    def bytes_filled(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.target.memory, np.uint8)[:self.target.nbytes]


class Bucket:
    """Copies that are one exchange: none reads or writes what another writes."""

    def __init__(self) -> None:
        self.copies: list[RankCopy] = []
        self.read: set[Buffer] = set()
        self.written: set[Buffer] = set()
        self.awaited: list[TimelinePoint] = []
        """what other queues do before"""
        self.sources: list[TimelinePoint] = []
        """what may have failed to compute the content"""

    def conflicts(self, copy: RankCopy) -> bool:
        """Whether a copy has to come after these."""
        target, source = copy.target.root, copy.source.root
        return source in self.written or target in self.written or target in self.read

    def add(self, copy: RankCopy) -> None:
        self.copies.append(copy)
        self.read.add(copy.source.root)
        self.written.add(copy.target.root)

    def exchange(self, world: World) -> None:
        """This rank's side of the copies between ranks, all at once, then of those to everybody."""
        messages, to_all = Messages(), self.to_all(world)
        for copy in self.copies:
            giver, taker = copy.giver, copy.taker
            if taker is None or world.rank not in (giver, taker) or copy.given in to_all:
                continue
            if giver == world.rank:
                messages.sent.append((taker, copy.bytes_given))
            else:
                messages.received.append((giver, copy.bytes_filled))
            messages.described.append((giver, taker, copy.target.size, copy.target.dtype.name))
        if messages.partners:
            world.exchange(messages)
        for copy in self.copies:
            if copy.taker is None:
                if copy.giver == world.rank:
                    copy.bytes_filled[:] = copy.bytes_given
                world.broadcast(copy.bytes_filled, copy.giver)
        for copies in to_all.values():
            filled = [c.bytes_filled for c in copies if c.taker == world.rank]
            world.broadcast(filled[0] if filled else copies[0].bytes_given, copies[0].giver)

    def to_all(self, world: World) -> dict[tuple[Buffer, int, int], list[RankCopy]]:
        """Copies of the same bytes to all other ranks, which MPI broadcasts along a tree, unless several
        ranks have some: their messages then are on their way at once."""
        found: dict[tuple[Buffer, int, int], list[RankCopy]] = {}
        for copy in self.copies:
            if copy.taker is not None:
                found.setdefault(copy.given, []).append(copy)
        found = {given: copies for given, copies in found.items() if len(copies) == world.size - 1 > 1}
        return found if len({copies[0].giver for copies in found.values()}) == 1 else {}


class ExchangeQueue(HostQueue):
    """Copies from and to ranks, in the order of the schedule: those that are given one after another, up to
    `submit`, are one exchange."""

    gathers = True

    def __init__(self, world: World) -> None:
        super().__init__(f"{KIND} {world.rank} exchanges")
        self.world = world
        self.bucket = Bucket()
        self.awaited_by_next: list[TimelinePoint] = []

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        own, giver, taker = self.world.rank, rank_of(source.device), rank_of(target.device)
        with self.lock:
            if giver is None or giver == taker or not target.nbytes:
                self.submit()
                awaited, self.awaited_by_next = self.awaited_by_next, []
                for point in awaited:
                    super().wait(point)
                return super().copy(target, source, offset, sources) if taker in (own, None) else None
            copy = RankCopy(target, source, offset, giver, taker)
            if self.bucket.conflicts(copy):
                self.submit()
            self.bucket.add(copy)
            self.bucket.awaited += self.awaited_by_next
            self.bucket.sources += sources
            self.awaited_by_next = []
            takes_part = taker is None or own in (giver, taker)
            return TimelinePoint(self, self.pushed + 1, sources) if takes_part else None

    def wait(self, point: TimelinePoint) -> None:
        """Let the copy that is given next wait."""
        if point.queue is not self:
            self.awaited_by_next.append(point)

    def submit(self) -> None:
        """Let the bucket be exchanged."""
        with self.lock:
            if self.bucket.copies:
                bucket, self.bucket = self.bucket, Bucket()
                self.call(lambda: self.exchange(bucket), tuple(bucket.sources))

    def signal(self, timeline: Timeline | None = None, value: int = 0) -> TimelinePoint:
        self.submit()
        return super().signal(timeline, value)

    def await_value(self, value: int) -> None:
        self.submit()
        super().await_value(value)

    def timestamp(self) -> Timestamp:
        point = TimelinePoint(self, self.pushed + bool(self.bucket.copies))

        def read() -> float:
            point.wait()
            return clock()

        return Timestamp(read)

    def exchange(self, bucket: Bucket) -> None:
        """What the thread does with a bucket; where its operands could not be computed, or it fails, all
        end."""
        try:
            for point in bucket.awaited:
                self.rest_until(point)
            for point in bucket.sources:
                point.wait()
            bucket.exchange(self.world)
        except BaseException as error:
            self.world.fail(type(error), error, error.__traceback__)
            raise


class IdleQueue(CommandQueue):
    """The kernels of another rank: nothing to do here."""

    def exec(self, program: Program, addresses: Sequence[int], variables: Sequence[int], extent: int,
             work: float = 0.0, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        self.ran += 1
        return None


class OwnRank(CPUDevice):
    """The CPU, as the device of this process."""

    exchanges = True


class OtherRank(NullDevice):
    """The device of another process."""

    exchanges = True


def open_device(name: str) -> CompiledDevice:
    """The device of a rank. Raises RuntimeError where there is no such one."""
    world, rank = World.current, rank_of(name)
    if world is None or rank is None or rank >= world.size:
        raise RuntimeError(f"{name} is a process of a program that MPI started, which has "
                           f"{1 if world is None else world.size}: mpirun -n 4 python train.py, and in it "
                           "tinygrad.distributed.init()")
    device: CompiledDevice
    if rank == world.rank:
        device = OwnRank(name, CPUAllocator(name), cpu_renderer())
    else:
        device = OtherRank(name, NullAllocator(name), cpu_renderer())
        device.queue = IdleQueue(name)
    device.copies = world.exchanges
    return device
