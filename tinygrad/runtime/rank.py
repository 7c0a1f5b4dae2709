"""RANK, RANK:1, ...: the processes that MPI started, each of them a device of every process.

In: one program that runs in all processes, and so the same schedules in the same order. Out: each process
runs the kernels of its own device, on the CPU, and has only that device's memory; those of other ranks are
neither run nor is there memory for them. A COPY between ranks is a message, one from a rank to any other
device a broadcast. All go through one queue (`ExchangeQueue`), whose thread makes blocking calls of MPI in
the order of the schedule, beside the kernels: the order is total and the same everywhere, so none waits in a
circle.

Before its bytes each exchange sends a header, the number and the digest of those so far of the same ranks:
processes that went different ways end with that cause. What ends a process ends all (`World.abort`): an
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
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from tinygrad.device import Buffer, CompiledDevice, Program
from tinygrad.device.queue import CommandQueue, TimelinePoint
from tinygrad.runtime.cpu import CPUAllocator, CPUDevice, cpu_renderer
from tinygrad.runtime.cpu_queue import HostQueue
from tinygrad.runtime.null import NullAllocator, NullDevice

KIND = "RANK"
CHUNK = 1 << 30
"""Bytes of one message: MPI counts in 32 bits."""
END_TAG, DATA_TAG = 1, 2
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


class World:
    """The processes of this program, joined by MPI."""

    current: World | None = None
    """what `distributed.init` joined"""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.data, self.control = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self.data.Get_rank()), int(self.data.Get_size())
        self.timeout = float(os.getenv("DISTRIBUTED_TIMEOUT") or 600)
        self.ended: set[int] = set()
        self.partners: tuple[int, ...] = ()
        """the ranks that the exchange in progress needs"""
        self.began = 0.0
        """when it began"""
        self.sent = 0
        """bytes that this rank sent to others"""
        self.seen: dict[tuple[int, ...], tuple[int, int]] = {}
        """by ranks, the number and the digest of the exchanges that these had with each other"""
        threading.Thread(target=self.watch, daemon=True, name="tinygrad-world").start()

    @cached_property
    def exchanges(self) -> ExchangeQueue:
        """The queue of everything that ranks exchange."""
        return ExchangeQueue(self)

    # --- messages -------------------------------------------------------------------------------------------

    def send(self, source: np.ndarray[Any, Any], target: int) -> None:
        """Send bytes to a rank, which receives them."""
        with OpenExchange(self, (self.rank, target), source.nbytes) as header:
            self.data.Send(header, target, DATA_TAG)
            for part in parts(source):
                self.data.Send(part, target, DATA_TAG)
            self.sent += source.nbytes

    def receive(self, target: np.ndarray[Any, Any], source: int) -> None:
        """Fill `target` with what a rank sends."""
        with OpenExchange(self, (source, self.rank), target.nbytes) as header:
            found = np.empty_like(header)
            self.data.Recv(found, source, DATA_TAG)
            self.compare(header, found, source)
            for part in parts(target):
                self.data.Recv(part, source, DATA_TAG)

    def broadcast(self, memory: np.ndarray[Any, Any], root: int) -> None:
        """Fill `memory` of every rank with what it is at `root`."""
        with OpenExchange(self, (root, *(r for r in range(self.size) if r != root)), memory.nbytes) as header:
            found = header.copy()
            self.data.Bcast(found, root)
            self.compare(header, found, root)
            for part in parts(memory):
                self.data.Bcast(part, root)
            if self.rank == root:
                self.sent += memory.nbytes * (self.size - 1)

    def header(self, ranks: tuple[int, ...], size: int) -> np.ndarray[Any, Any]:
        """The number, the length and the digest of the exchanges of these ranks so far, with this one."""
        count, digest = self.seen.get(ranks, (0, 0))
        digest = zlib.crc32(repr((ranks, size)).encode(), digest)
        self.seen[ranks] = count + 1, digest
        return np.array((count + 1, size, digest), np.int64)

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
    """What the thread that watches sees while an exchange takes place; gives its header."""

    def __init__(self, world: World, ranks: tuple[int, ...], size: int) -> None:
        self.world, self.ranks, self.size = world, ranks, size

    def __enter__(self) -> np.ndarray[Any, Any]:
        self.world.began = time.monotonic()
        self.world.partners = tuple(r for r in self.ranks if r != self.world.rank)
        return self.world.header(self.ranks, self.size)

    def __exit__(self, *exc: object) -> None:
        self.world.partners = ()


def parts(memory: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Bytes in messages of a size that MPI can count."""
    for start in range(0, memory.nbytes, CHUNK):
        yield memory[start:start + CHUNK]


# --- the devices --------------------------------------------------------------------------------------------


class ExchangeQueue(HostQueue):
    """Copies from and to ranks, in the order of the schedule."""

    def __init__(self, world: World) -> None:
        super().__init__(f"{KIND} {world.rank} exchanges")
        self.world = world

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        own, giver, taker = self.world.rank, rank_of(source.device), rank_of(target.device)
        between = giver is not None and giver != taker and target.nbytes > 0
        if between and (taker is None or own in (giver, taker)):
            return self.call(lambda: self.exchange(target, source, offset, sources), sources)
        if taker in (own, None):
            return super().copy(target, source, offset, sources)
        return None

    def exchange(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...]
                 ) -> None:
        """This rank's side of a copy; where its operands could not be computed, or it fails, all end."""
        giver, taker = rank_of(source.device), rank_of(target.device)
        assert giver is not None
        try:
            for point in sources:
                point.wait()
            if giver == self.world.rank:
                given = np.frombuffer(source.memory, np.uint8)[offset:offset + target.nbytes]
                if taker is not None:
                    return self.world.send(given, taker)
                np.frombuffer(target.memory, np.uint8)[:target.nbytes] = given
            filled = np.frombuffer(target.memory, np.uint8)[:target.nbytes]
            if taker is None:
                self.world.broadcast(filled, giver)
            else:
                self.world.receive(filled, giver)
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
