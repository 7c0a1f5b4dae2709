"""RANK, RANK:1, ...: the processes that MPI started, each of them a device of every process.

In: one program that runs in all processes, and so the same schedules in the same order. Out: each process
runs the kernels of its own device, on the CPU, and has only that device's memory; those of other ranks are
neither run nor is there memory for them. A COPY between ranks is a message, one from a rank to any other
device a broadcast, a COLLECTIVE one of MPI's (`Allreduce`, `Allgather`). All go through one queue
(`ExchangeQueue`), whose thread exchanges them in the order of the schedule, beside the kernels: copies that
stand together there (`schedule/exchanges.py`) are one exchange (`rank_exchange.py`), whose messages are on
their way at once. The order is total and the same everywhere, so none waits in a circle.

What takes less time than handing it to that thread is exchanged by the thread that gives it, where the
queue is idle and what is sent has been computed.

An exchange begins with a header to each partner, the number and the digest of those so far with it, behind
which goes what is small (`PACKED`): processes that went different ways end with that cause. Those that wait
for each other at exchanges of unlike kinds say so after a moment (`World.compare_waiting`). What ends a
process ends all (`World.abort`): an exception, an exit while another rank waits for it, an exchange that
takes longer than `DISTRIBUTED_TIMEOUT` seconds.
"""
from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import memmove
from functools import cached_property
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from tinygrad.device import Buffer, CompiledDevice
from tinygrad.device.host import seconds_of
from tinygrad.runtime import rank_exchange
from tinygrad.runtime.cpu import CPUAllocator, CPUDevice, cpu_renderer
from tinygrad.runtime.cpu_queue import HAND_OVER
from tinygrad.runtime.null import NoAllocator, NullDevice
from tinygrad.runtime.rank_exchange import (
    FIELDS,
    Between,
    Bytes,
    JoinedCollective,
    Letter,
    LongMessages,
    RankExchange,
    Scratch,
    fill,
    in_one,
    name_of,
    parts,
    rank_of,
)
from tinygrad.runtime.rank_queue import ExchangeQueue

OpenGPU: TypeAlias = "Callable[[str, int, World], CompiledDevice]"
END_TAG, DIFFERENT_TAG, WAITING_TAG = 1, 3, 4
EVERYBODY = -1
POLLING, POLLING_HERE = 5e-5, HAND_OVER
"""Seconds for which who waits for a partner polls before it sleeps: the thread that exchanges beside kernels
about what it costs to sleep and be woken; who has nothing else to do, as long as its work may take."""
SHORTEST_REST, LONGEST_REST = 1e-5, 2e-4
"""Seconds between two looks of the thread that exchanges, while a partner is not there yet."""
MOVING = 5e-6
"""Seconds from which on a look at messages has moved some of them: one at which nothing happens takes 0.3 to
0.7 us, at most 1.0 in 99 of 100; one that copies 32 KB 7 and more, one that reads 1 MB 700 (Zen 4)."""
LOOK_AGAIN = 0.1
"""Seconds between two looks of the thread that watches the others."""
PATIENCE = 1.0
"""Seconds that an exchange with a rank that has ended may take: what that one sent may be on its way."""
YIELD = getattr(os, "sched_yield", None)
REMEMBERED = 64
"""Exchanges with each other rank whose kind is known: who broadcasts may be so many ahead of the others."""
FAILED = 1
"""The status with which all processes end where one fails."""


def timeout() -> float:
    """Seconds that an exchange may take."""
    return float(os.getenv("DISTRIBUTED_TIMEOUT") or 600)


def processors() -> set[int]:
    """The numbers of those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class World:
    """The processes of this program, joined by MPI."""

    current: World | None = None
    """what `distributed.init` joined"""

    def __init__(self, mpi: Any, open_gpu: OpenGPU | None = None) -> None:
        self.mpi = mpi
        self.open_gpu = open_gpu
        """what opens the device of a rank, by name, where ranks compute on GPUs"""
        self.data, self.control = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self.data.Get_rank()), int(self.data.Get_size())
        self.everybody_else = tuple(r for r in range(self.size) if r != self.rank)
        here = self.control.Split_type(mpi.COMM_TYPE_SHARED)
        self.is_crowded = here.Get_size() > len(set().union(*here.allgather(processors())))
        """whether there are more ranks on this machine than processors for them"""
        self.timeout = timeout()
        self.ended: set[int] = set()
        self.partners: tuple[int, ...] = ()
        """the ranks that the exchange in progress needs"""
        self.turns = [0] * self.size
        """by rank, the exchanges so far in which both take part"""
        self.past: list[deque[tuple[int, str, str]]] = [deque(maxlen=REMEMBERED) for _ in self.turns]
        """by rank, the last of these: which, what kind of exchange, what it computed"""
        self.others: dict[int, tuple[int, str, str]] = {}
        """by rank, what it waits for, as `past` has it"""
        self.told: dict[int, int] = {}
        """by rank, the turn at which it was told what this one waits for"""
        self.telling: list[Any] = []
        self.began = 0.0
        """when it began"""
        self.sent = 0
        """bytes that this rank sent to others"""
        self.computing = "nothing"
        """what the exchange in progress belongs to"""
        self.scratch: dict[int, Scratch] = {}
        """by rank, the memory of small messages"""
        self.seen: dict[int | tuple[int, ...], tuple[int, int]] = {}
        """number and digest of the exchanges by rank, of broadcasts by EVERYBODY, of collectives by ranks"""
        self.communicators: dict[tuple[int, ...], Any] = {}
        """by who takes part in collectives"""
        threading.Thread(target=self.watch, daemon=True, name="tinygrad-world").start()

    @cached_property
    def exchanges(self) -> ExchangeQueue:
        """The queue of everything that ranks exchange."""
        return ExchangeQueue(self)

    def make(self, exchange: RankExchange, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """Make the copies between ranks, all at once, then those to everybody and the collectives; what each
        rank takes part in reads and fills these."""
        self.computing = exchange.computing
        if exchange.between or exchange.local:
            self.exchange(exchange, sent, received)
        for number, giver, is_giver, said in exchange.to_everybody:
            self.broadcast((sent if is_giver else received)[number], giver, said,
                           received[number] if is_giver else None)
        for number, giver, is_giver, said in exchange.to_ranks:
            self.broadcast((sent if is_giver else received)[number], giver, said)
        for joined in exchange.collectives:
            numbers = joined.numbers
            self.together(joined, [sent[i] for i in numbers], [received[i] for i in numbers])

    # --- messages -------------------------------------------------------------------------------------------

    def begin(self, partners: tuple[int, ...], kind: str) -> None:
        """Let the thread that watches see an exchange, until it has come to its end and there are no
        `partners`."""
        for rank in partners:
            turn = self.turns[rank] = self.turns[rank] + 1
            self.past[rank].append((turn, kind, self.computing))
        self.began, self.partners = time.monotonic(), partners

    def letters_of(self, exchange: RankExchange) -> list[Letter]:
        """The first messages of an exchange."""
        if not exchange.letters:
            exchange.letters = [Letter(b, self.scratch_of(b.rank)) for b in exchange.between]
        return exchange.letters

    def make_short(self, exchange: RankExchange, memory: Sequence[tuple[Buffer, Buffer, int]]) -> None:
        """As `make`, of what is small and lies together: arrays over the targets and sources
        would take as long as copying from one and into the other."""
        self.computing = exchange.computing
        letters = self.letters_of(exchange)
        self.begin(exchange.partners, "copies")
        for letter in letters:
            for number, start, count, place in letter.given:
                _, source, offset = memory[number]
                memmove(place, source.address + offset + start, count)
        self.answer(letters)
        for letter in letters:
            for number, start, count, place in letter.taken:
                memmove(memory[number][0].address + start, place, count)
        for given, taken in exchange.local:
            _, source, offset = memory[given.number]
            memmove(memory[taken.number][0].address + taken.start, source.address + offset + given.start,
                    given.nbytes)
        self.partners = ()
        self.sent += exchange.sent

    def exchange(self, exchange: RankExchange, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """Send and receive all messages at once, and copy inside this rank while they are on their way.
        Begins when all partners do, which have to agree about number, sizes and digest."""
        letters = self.letters_of(exchange)
        self.begin(exchange.partners, "copies")
        for letter in letters:
            if letter.is_packed:
                letter.pack(sent)
        self.answer(letters)
        long = LongMessages(self.data, name_of(self.rank))
        for letter in letters:
            if letter.is_packed:
                letter.unpack(received)
            else:
                long.begin(letter, sent, received)
        for source, target in exchange.local:
            for given, taken in zip(source.of(sent), target.of(received), strict=True):
                fill(taken, given)
        self.rest_until(long.waiting, exchange.seconds)
        long.unpack()
        self.partners = ()
        self.sent += exchange.sent

    def agree(self, between: Sequence[Between]) -> None:
        """Wait until all partners are at an exchange whose content goes another way, and agree about it."""
        self.begin(tuple(b.rank for b in between), "copies")
        self.answer([Letter(b, self.scratch_of(b.rank), has_content=False) for b in between])
        self.partners = ()

    def answer(self, letters: list[Letter]) -> None:
        """Send these, and wait for those of the same partners. Ends all processes where one says something
        else."""
        requests = []
        for letter in letters:
            number, digest = self.next_with(letter.rank, letter.between.text)
            letter.own = number, letter.nbytes, digest
            FIELDS.pack_into(letter.header, 0, *letter.own)
            for request in letter.requests:
                request.Start()
                requests.append(request)
        self.rest_until(requests)
        for letter in letters:
            self.compare(letter.own, FIELDS.unpack_from(letter.found), letter.rank)

    def next_with(self, whom: int | tuple[int, ...], text: bytes) -> tuple[int, int]:
        """The number and the digest of an exchange that begins with those: `text` says what it is."""
        number, digest = self.seen.get(whom, (0, 0))
        self.seen[whom] = found = number + 1, zlib.crc32(text, digest)
        return found

    def scratch_of(self, rank: int) -> Scratch:
        """The memory of the first messages to a rank and from it."""
        found = self.scratch.get(rank)
        if found is None:
            found = self.scratch[rank] = Scratch(self.data, rank)
        return found

    def rest_until(self, requests: list[Any], expected: float = 0.0) -> None:
        """Return when they are complete, which takes `expected` seconds once all partners are there. A thread
        that polls takes time from the kernels beside it, so after a moment it sleeps, longer and longer: but
        not after a look that took long, in which MPI moved bytes. Before that it gives its core to those
        kernels, or to a partner that may have no other; else to nobody: where some other process came in at
        each look, a replay of 4 KB took 300 us in place of 70."""
        if self.mpi.Request.Testall(requests):
            return
        is_beside = threading.current_thread() is self.exchanges.thread
        gives_way = is_beside or self.is_crowded
        seconds, looked = SHORTEST_REST, time.perf_counter()
        polled_until = looked + expected + (POLLING if is_beside else POLLING_HERE)
        while not self.mpi.Request.Testall(requests):
            now = time.perf_counter()
            if now > polled_until and now - looked < MOVING:
                time.sleep(seconds)
                seconds = min(1.5 * seconds, LONGEST_REST)
            elif gives_way and YIELD is not None:
                YIELD()
            looked = time.perf_counter()

    def broadcast(self, memory: Bytes, root: int, text: bytes, copied: Bytes | None = None) -> None:
        """Fill `memory` of every rank with what it is at `root`; `text` says what it is. The root fills
        `copied` with it, too, while the others read."""
        self.begin(self.everybody_else, f"a broadcast by rank {root}")
        number, digest = self.next_with(EVERYBODY, text)
        own = number, memory.nbytes, digest
        found = np.array(own, np.int64)
        self.rest_until([self.data.Ibcast(found, root)])
        self.compare(own, tuple(found.tolist()), root)
        requests = [self.data.Ibcast(part, root) for part in parts(memory)]
        if copied is not None:
            copied[:] = memory
        self.rest_until(requests, seconds_of(0, memory.nbytes))
        if self.rank == root:
            self.sent += memory.nbytes * (self.size - 1)
        self.partners = ()

    def together(self, joined: JoinedCollective, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """Fill `received` with what the ranks of collectives send, combined or gathered, once all are found
        to be at them. What is small goes with the headers."""
        ranks = joined.ranks
        number, digest = self.next_with(ranks, joined.text)
        FIELDS.pack_into(joined.message.data, 0, number, joined.nbytes, digest)
        if joined.is_packed:
            joined.pack(sent)
        self.begin(joined.partners, joined.kind)
        comm = self.communicator(ranks)
        try:
            self.rest_until([comm.Iallgather(joined.message, joined.messages)])
        except self.mpi.Exception as error:  # what others sent is longer than what this rank expects
            self.abort(f"ranks {', '.join(map(str, ranks))} do not run the same program, or MPI failed, "
                       f"{error}\n{self.computing_at(joined.partners)}")
        if not joined.is_agreed:
            for rank, said in zip(ranks, joined.headers, strict=True):
                self.compare(FIELDS.unpack(joined.header.data), FIELDS.unpack(said.data), rank)
        if joined.is_packed:
            joined.unpack(received)
        else:
            self.together_at_once(comm, joined, sent, received)
        self.partners = ()
        self.sent += joined.sent

    def together_at_once(self, comm: Any, joined: JoinedCollective, sent: Sequence[Bytes],
                         received: Sequence[Bytes]) -> None:
        """As `together`, by one call of MPI, or several where one counts no further."""
        given = in_one(sent)
        whole = received[0] if len(received) == 1 else np.empty(joined.nbytes, np.uint8)
        if joined.combined is not None:
            for part, result in zip(parts(given), parts(whole), strict=True):
                comm.Allreduce(part.view(joined.dtype), result.view(joined.dtype),
                               getattr(self.mpi, joined.combined.of_mpi))
        elif given.nbytes <= rank_exchange.CHUNK:
            comm.Allgather(given, whole)
        else:
            for number, row in enumerate(whole.reshape(joined.rows, joined.share)):
                if joined.ranks[number] == self.rank:
                    row[:] = given
                for part in parts(row):
                    comm.Bcast(part, number)
        if len(received) > 1:
            rows = whole.reshape(joined.rows, joined.share)
            columns = np.split(rows, np.cumsum(joined.shares)[:-1], axis=1)
            for memory, part in zip(received, columns, strict=True):
                memory.reshape(part.shape)[:] = part

    def communicator(self, ranks: tuple[int, ...]) -> Any:
        """What some of the ranks exchange by, which all of them ask for at once."""
        found = self.communicators.get(ranks)
        if found is None:
            group = self.data.Get_group().Incl(ranks)
            found = self.communicators[ranks] = self.data.Create_group(group)
        return found

    def compare(self, own: tuple[int, ...], other: tuple[int, ...], rank: int) -> None:
        """End all processes where a rank is elsewhere in the program, or in another one."""
        if own != other:
            self.abort(f"rank {rank} and rank {self.rank} do not run the same program: exchange "
                       f"{other[0]} of {other[1]:,} bytes there is exchange {own[0]} of {own[1]:,} bytes "
                       f"here\n{self.computing_at([rank])}")

    def computing_at(self, ranks: Sequence[int]) -> str:
        """What this rank computes, and one of these that found out too that it is something else."""
        self.telling += [self.control.isend(self.computing, rank, DIFFERENT_TAG) for rank in ranks]
        said, end = f"rank {ranks[0]} computes something else", time.monotonic() + 5 * PATIENCE
        while time.monotonic() < end:
            for rank in ranks:
                turn, _, computing = self.others.get(rank, (0, "", ""))
                if self.control.Iprobe(rank, DIFFERENT_TAG):
                    computing = self.control.recv(source=rank, tag=DIFFERENT_TAG)
                elif turn != self.turns[rank]:
                    continue
                said, end = f"rank {rank} computes {computing}", end if computing == self.computing else 0.0
            time.sleep(SHORTEST_REST)
        return f"rank {self.rank} computes {self.computing}\n{said}"

    # --- the end --------------------------------------------------------------------------------------------

    def abort(self, cause: str) -> None:
        """End all processes, and say why. The thread that watches has no more to say."""
        self.partners = ()
        print(f"rank {self.rank} of {self.size}: {cause}", file=sys.stderr, flush=True)
        self.mpi.COMM_WORLD.Abort(FAILED)

    def fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What is to be done with an exception that nobody catches."""
        self.abort("".join(traceback.format_exception(kind, error, trace)).rstrip())

    def fail_in_thread(self, failed: threading.ExceptHookArgs) -> None:
        """The same in another thread, such as one that loads data: a loop that waits for what it was to give
        would wait for ever, and the other ranks with it."""
        if self.mpi.Is_finalized() or failed.exc_type is SystemExit:
            threading.__excepthook__(failed)
        else:
            trace = traceback.format_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
            name = failed.thread.name if failed.thread is not None else ""
            self.abort(f"thread {name}: {''.join(trace).rstrip()}")

    def watch(self) -> None:
        """What a thread does: see who has ended, and how long the exchange in progress takes."""
        status = self.mpi.Status()
        while not self.mpi.Is_finalized() and self.rank not in self.ended:
            if self.control.Iprobe(self.mpi.ANY_SOURCE, END_TAG, status):
                self.control.recv(source=status.Get_source(), tag=END_TAG)
                self.ended.add(status.Get_source())
            self.hear_waiting(status)
            partners, seconds = self.partners, time.monotonic() - self.began
            gone = self.ended.intersection(partners)
            if partners and gone and seconds > PATIENCE:
                self.abort(f"rank {min(gone)} has ended, and this one waits for it")
            if partners and seconds > PATIENCE:
                self.compare_waiting(partners)
            if partners and seconds > self.timeout:
                self.abort(f"an exchange between ranks {', '.join(map(str, sorted(partners)))} takes longer "
                           f"than {self.timeout:g} s (DISTRIBUTED_TIMEOUT){self.absent(partners)}")
            time.sleep(LOOK_AGAIN)

    def hear_waiting(self, status: Any) -> None:
        """Take note of what others say that they wait for."""
        while self.control.Iprobe(self.mpi.ANY_SOURCE, WAITING_TAG, status):
            rank = status.Get_source()
            self.others[rank] = self.control.recv(source=rank, tag=WAITING_TAG)
            self.compare_turn(rank)

    def compare_waiting(self, partners: Sequence[int]) -> None:
        """Tell those that this rank waits for at what, once, and see what they wait for."""
        for rank in partners:
            now = self.past[rank][-1]
            if self.told.get(rank) != now[0]:
                self.told[rank] = now[0]
                self.telling = [r for r in self.telling if not r.Test()]
                self.telling.append(self.control.isend(now, rank, WAITING_TAG))
            self.compare_turn(rank)

    def absent(self, partners: Sequence[int]) -> str:
        """Those of these ranks that have not said that they wait for this one too, in words."""
        absent = [str(r) for r in sorted(partners) if self.others.get(r, (0, "", ""))[0] < self.turns[r]]
        return f": rank {', '.join(absent)} is not at it" if absent else ""

    def compare_turn(self, rank: int) -> None:
        """End all where a rank waits at another kind than this one is at, or was (a broadcaster goes on)."""
        turn, kind, computing = self.others.get(rank, (0, "", ""))
        own = next((past[1:] for past in list(self.past[rank]) if past[0] == turn), None)
        if own is not None and own[0] != kind:
            self.abort(f"rank {rank} and rank {self.rank} do not run the same program: exchange {turn} "
                       f"between them is {kind} there and {own[0]} here\n"
                       f"rank {self.rank} computes {own[1]}\nrank {rank} computes {computing}")

    def end(self) -> None:
        """At the interpreter's end: say so to the others, and let what was given be done."""
        self.exchanges.synchronize()
        waiting = [self.control.isend(None, r, END_TAG) for r in range(self.size)]
        self.mpi.Request.Waitall(waiting)


# --- the devices --------------------------------------------------------------------------------------------


class OwnRank(CPUDevice):
    """The CPU, as the device of this process."""

    exchanges = True
    has_collectives = True


class OtherRank(NullDevice):
    """The device of another process."""

    exchanges = True
    elsewhere = True


class OtherCPU(OtherRank):
    """The CPU of another process."""

    has_collectives = True


def open_device(name: str) -> CompiledDevice:
    """The device of a rank. Raises RuntimeError where there is no such one."""
    world, rank = World.current, rank_of(name)
    if world is None or rank is None or rank >= world.size:
        raise RuntimeError(f"{name} is a process of a program that MPI started, which has "
                           f"{1 if world is None else world.size}: mpirun -n 4 python train.py, and in it "
                           "tinygrad.distributed.init()")
    if world.open_gpu is not None:
        return world.open_gpu(name, rank, world)
    device: CompiledDevice
    if rank == world.rank:
        device = OwnRank(name, CPUAllocator(name), cpu_renderer())
    else:
        device = OtherCPU(name, NoAllocator(name), cpu_renderer())
    device.copies = world.exchanges
    return device
