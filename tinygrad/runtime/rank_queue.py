"""The queue of what ranks exchange: copies and collectives, in the order of the schedule.

In: those that are given one after another, with what they wait for. Out: exchanges (`rank_exchange.py`), each
made by the world of ranks (`rank.py`) in the queue's own thread, beside kernels; or, where that takes less
time than handing it over and nothing is in flight, in the thread that gives it.
"""
from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tinygrad.device import Buffer
from tinygrad.device.queue import (
    CollectiveGroup,
    GatheredCopy,
    TimelinePoint,
    Timestamp,
    clock,
    written_and_read,
)
from tinygrad.runtime.cpu_queue import HostQueue, Timeline
from tinygrad.runtime.rank_exchange import KIND, NOTHING, RankExchange, bytes_of, rank_of

if TYPE_CHECKING:
    from tinygrad.runtime.rank import World

MOST_KNOWN = 1024
"""Exchanges that are kept for the next time."""


class ExchangeQueue(HostQueue):
    """Copies from and to ranks, in the order of the schedule: those that are given one after another, up to
    `submit`, are one exchange."""

    gathers = True

    def __init__(self, world: World) -> None:
        super().__init__(f"{KIND} {world.rank} exchanges")
        self.world = world
        self.copies: list[GatheredCopy] = []
        """those of the next exchange"""
        self.known: dict[tuple[GatheredCopy, ...], RankExchange] = {}
        """exchanges that were made, by what they are"""
        self.memory: list[tuple[Buffer, Buffer, int]] = []
        """the target and the source of each, and where in that it begins"""
        self.awaited_by_these: list[TimelinePoint] = []
        """what other queues do before them"""
        self.awaited_by_next: list[TimelinePoint] = []
        """and before the copy that is given next"""
        self.sources: list[TimelinePoint] = []
        """what may have failed to compute the content"""

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        own, giver, taker = self.world.rank, rank_of(source.device), rank_of(target.device)
        with self.lock:
            if giver is None or not target.nbytes:
                self.submit()
                awaited, self.awaited_by_next = self.awaited_by_next, []
                for point in awaited:
                    super().wait(point)
                return super().copy(target, source, offset, sources) if taker in (own, None) else None
            self.gather((target, source), target, source, offset, sources)
            takes_part = taker is None or own in (giver, taker)
            return TimelinePoint(self, self.pushed + 1, sources) if takes_part else None

    def collective(self, group: CollectiveGroup, buffers: Sequence[Buffer], target: Buffer, source: Buffer,
                   offset: int, sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        with self.lock:
            self.gather(buffers, target, source, offset, sources, group)
            takes_part = self.world.rank in map(rank_of, group.devices)
            return TimelinePoint(self, self.pushed + 1, sources) if takes_part else None

    def gather(self, buffers: Sequence[Buffer], target: Buffer, source: Buffer, offset: int,
               sources: tuple[TimelinePoint, ...], group: CollectiveGroup | None = None) -> None:
        """Let this be part of the next exchange."""
        written, read = written_and_read([buffer.root for buffer in buffers])
        copy = GatheredCopy(target.device, source.device, written, read, (source, offset),
                            target.size, target.dtype.name, target.nbytes, self.program, group)
        if copy.conflicts(self.copies):
            self.submit()
        self.awaited_by_these += self.awaited_by_next
        self.awaited_by_next = []
        self.copies.append(copy)
        self.memory.append((target, source, offset))
        self.sources += sources

    def wait(self, point: TimelinePoint) -> None:
        """Let the exchange that is gathered wait."""
        if point.queue is not self:
            self.awaited_by_next.append(point)

    def submit(self) -> None:
        """Let the copies given so far be exchanged."""
        with self.lock:
            if self.copies:
                copies, self.copies = self.copies, []
                memory, self.memory = self.memory, []
                exchange = self.known_exchange(copies)
                sources, self.sources = tuple(self.sources), []
                awaited, self.awaited_by_these = self.awaited_by_these, []
                value = self.pushed + 1
                if self.give(exchange, [memory[number] for number in exchange.own], awaited, sources) is None:
                    self.begun = value  # each copy has the point of what it was to become
                    self.timeline.set(value)

    def record_copies(self, copies: Sequence[GatheredCopy]) -> RankExchange:
        return RankExchange(copies, self.world.rank, self.world.size)

    def known_exchange(self, copies: Sequence[GatheredCopy]) -> RankExchange:
        """As `record_copies`, of copies that may have been made before: all that matters of memory is which
        of them read the same."""
        numbers: dict[Hashable, int] = {}
        key = tuple([copy._replace(written=frozenset(), read=frozenset(),
                                   part=numbers.setdefault(copy.part, len(numbers))) for copy in copies])
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            found = self.known[key] = self.record_copies(copies)
        return found

    def copy_list(self, recorded: RankExchange, memory: Sequence[tuple[Buffer, Buffer, int]],
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        with self.lock:
            if self.copies:
                self.submit()
            awaited, self.awaited_by_next = self.awaited_by_next, []
            return self.give(recorded, memory, awaited, sources)

    def give(self, exchange: RankExchange, memory: Sequence[tuple[Buffer, Buffer, int]],
             awaited: Sequence[TimelinePoint], sources: tuple[TimelinePoint, ...]) -> TimelinePoint | None:
        """Let copies of these targets and sources, each from an offset on, be exchanged: here, where that
        takes less time than giving it to the thread and nothing has to be waited for but the partners. The
        point at which they are; None where they are already."""
        if self.runs_here(exchange.seconds, sources) and all([point.is_past for point in awaited]):
            self.exchange(exchange, memory, awaited, sources)
            self.ran += 1
            return None
        return self.call(partial(self.exchange, exchange, memory, awaited, sources), sources)

    def signal(self, timeline: Timeline | None = None, value: int = 0) -> TimelinePoint:
        self.submit()
        return super().signal(timeline, value)

    def await_value(self, value: int) -> None:
        self.submit()
        super().await_value(value)

    def timestamp(self) -> Timestamp:
        point = TimelinePoint(self, self.pushed + bool(self.copies))

        def read() -> float:
            point.wait()
            return clock()

        return Timestamp(read)

    def exchange(self, exchange: RankExchange, memory: Sequence[tuple[Buffer, Buffer, int]],
                 awaited: Sequence[TimelinePoint], sources: Sequence[TimelinePoint]) -> None:
        """Make the copies; where their operands could not be computed, or it fails, all processes end."""
        try:
            for point in awaited:
                self.rest_until(point)
            for point in sources:
                point.wait()
            if exchange.is_short:
                self.world.make_short(exchange, memory)
                return
            sent, received = [], []
            for (target, source, offset), (given, gives, takes) in zip(memory, exchange.ends, strict=True):
                count = source.nbytes if given is None else given
                sent.append(bytes_of(source, offset, count) if gives else NOTHING)
                received.append(bytes_of(target, 0, target.nbytes) if takes else NOTHING)
            self.world.make(exchange, sent, received)
        except BaseException as error:
            self.world.fail(type(error), error, error.__traceback__)
            raise
