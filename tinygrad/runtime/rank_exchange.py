"""What ranks exchange at once, as one of them knows it.

In: copies and collectives of the schedule that stand together there (`schedule/exchanges.py`), the same in
all ranks. Out: for each other rank what is sent to it and received from it (`Between`), as messages
(`Letter`); what is broadcast; the collectives in which this rank takes part (`JoinedCollective`). Who sends
and waits is `rank.py`, with MPI, or `nccl.py`.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tinygrad.device.host import seconds_of
from tinygrad.device.queue import CollectiveGroup, GatheredCopy

KIND = "RANK"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
CHUNK = 1 << 30
"""Bytes of one message: MPI counts in 32 bits."""
HEADER = 24
"""Bytes in front of an exchange: its number, the bytes that follow between the two ranks, the digest."""
JOINED = 1 << 16
"""Bytes up to which a collective is one with others of its kind: a call of MPI takes as long as copying these
to where all stand together, and back."""
PACKED = 1 << 15
"""Bytes up to which what a rank sends to another goes in one message with the header: a second one takes 3 us
and more, copying these as long."""


def name_of(rank: int) -> str:
    """The device of a rank."""
    return f"{KIND}:{rank}" if rank else KIND


def rank_of(device: str) -> int | None:
    """The rank whose device this is; None for a device that every process has."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == KIND else None


class Between(NamedTuple):
    """What a rank and another one send each other in an exchange."""

    rank: int
    """the other"""
    sent: tuple[int, ...]
    """the numbers of copies, among those in which this rank takes part"""
    received: tuple[int, ...]
    sizes: tuple[int, int]
    """bytes sent and received"""
    text: bytes
    """what they are, which both ranks say alike"""


class Combined(NamedTuple):
    """An operation of collectives."""

    of_mpi: str
    of_numpy: np.ufunc


COMBINED = {"ADD": Combined("SUM", np.add), "MUL": Combined("PROD", np.multiply),
            "MAX": Combined("MAX", np.maximum)}


class JoinedCollective(NamedTuple):
    """Collectives that are made as one, as one that takes part in them knows them."""

    numbers: tuple[int, ...]
    """of the copies, among those in which this rank takes part"""
    ranks: tuple[int, ...]
    op: str
    dtype: str
    text: bytes
    """what they are, which all say alike"""


class RankExchange:
    """Copies that begin together, as one rank takes part in them: none reads or writes what another
    writes."""

    def __init__(self, copies: Sequence[GatheredCopy], own: int, size: int) -> None:
        takers: dict[Hashable, list[int]] = {}
        for number, copy in enumerate(copies):
            if copy.group is None and rank_of(copy.target_device) is not None:
                takers.setdefault((copy.part, copy.nbytes), []).append(number)
        to_all = [numbers for numbers in takers.values() if len(numbers) == size - 1 > 1]
        if len({copies[numbers[0]].source_device for numbers in to_all}) != 1:
            to_all = []  # messages of several ranks to all are on their way at once; of one, MPI makes a tree
        together = {number for numbers in to_all for number in numbers}
        part: dict[int, tuple[list[int], list[int], list[object]]] = {}
        self.own: list[int] = []
        """the numbers of the copies in which this rank takes part; from here on they are counted there"""
        self.to_ranks: list[tuple[int, int, bool, bytes]] = []
        """the same bytes to all ranks: (a copy's number, the giver, whether this rank is it, what it is)"""
        self.to_everybody: list[tuple[int, int, bool, bytes]] = []
        """as `to_ranks`, to devices that every process has"""
        self.joined: dict[tuple[tuple[int, ...], str, str, int | None], list[int]] = {}
        """by what they have in common, the collectives that are made as one"""
        self.bytes = 0
        for number, copy in enumerate(copies):
            if copy.group is not None:
                self.add_collective(number, copy, copy.group, own)
                continue
            giver, taker = rank_of(copy.source_device), rank_of(copy.target_device)
            assert giver is not None
            first = next((numbers[0] for numbers in to_all if number in numbers), None)
            if own not in (giver, taker) and taker is not None:
                continue
            here, is_giver = len(self.own), own == giver
            self.own.append(number)
            self.bytes += copy.nbytes
            said = repr((giver, copy.items, copy.dtype, copy.program)).encode()
            if taker is None:
                self.to_everybody.append((here, giver, is_giver, said))
            elif number not in together:
                sent, received, described = part.setdefault(taker if is_giver else giver, ([], [], []))
                (sent if is_giver else received).append(here)
                described.append((giver, taker, copy.items, copy.dtype, copy.program))
            elif not is_giver or number == first:
                self.to_ranks.append((here, giver, is_giver, said))
        sizes = [copies[number].nbytes for number in self.own]
        self.between = [Between(rank, tuple(sent), tuple(received),
                                (sum(sizes[i] for i in sent), sum(sizes[i] for i in received)),
                                repr(described).encode())
                        for rank, (sent, received, described) in sorted(part.items())]
        self.collectives = [self.made_as_one(copies, numbers, *kind[:3])
                            for kind, numbers in self.joined.items()]
        self.seconds = seconds_of(0, 2 * self.bytes)
        """about how long moving it takes, once all are there"""
        self.computing = dict.fromkeys(copy.program for copy in copies)

    def add_collective(self, number: int, copy: GatheredCopy, group: CollectiveGroup, own: int) -> None:
        """Take note of a collective, if this rank takes part in it: small ones of a kind are made as one."""
        ranks = tuple(rank for rank in map(rank_of, group.devices) if rank is not None)
        if own not in ranks:
            return
        kind = (ranks, group.op, copy.dtype, None if copy.nbytes <= JOINED else number)
        self.joined.setdefault(kind, []).append(len(self.own))
        self.own.append(number)
        self.bytes += copy.nbytes

    def made_as_one(self, copies: Sequence[GatheredCopy], numbers: Sequence[int], ranks: tuple[int, ...],
                    op: str, dtype: str) -> JoinedCollective:
        """These collectives, which have their ranks, operation and dtype in common."""
        each = [copies[self.own[number]] for number in numbers]
        text = repr((ranks, op, dtype, [(copy.items, copy.program) for copy in each])).encode()
        return JoinedCollective(tuple(numbers), ranks, op, dtype, text)


class Letter:
    """The first message to a rank, and the one from it: a header, and the whole content where that is small
    in both directions."""

    def __init__(self, rank: int, sent: list[Bytes], received: list[Bytes],
                 scratch: dict[tuple[int, bool], Bytes]) -> None:
        self.rank, self.sent, self.received = rank, sent, received
        self.sizes = tuple(sum(memory.nbytes for memory in memories) for memories in (sent, received))
        if (rank, True) not in scratch:
            for is_sent in (True, False):
                scratch[rank, is_sent] = np.zeros(HEADER + PACKED, np.uint8)
        self.outgoing, self.incoming = scratch[rank, True], scratch[rank, False]
        """as long as any, so that a rank that is elsewhere is told apart by what it sends"""
        self.header, self.found = (m[:HEADER].view(np.int64) for m in (self.outgoing, self.incoming))

    @property
    def is_packed(self) -> bool:
        return max(self.sizes) <= PACKED

    @property
    def message(self) -> Bytes:
        """What is sent first."""
        if not self.is_packed:
            return self.outgoing[:HEADER]
        for place, memory in self.places(self.outgoing, self.sent):
            place[:] = memory
        return self.outgoing[:HEADER + self.sizes[0]]

    def unpack(self) -> None:
        """Put what came with the header where it belongs."""
        for place, memory in self.places(self.incoming, self.received):
            memory[:] = place

    @staticmethod
    def places(scratch: Bytes, memories: Sequence[Bytes]) -> Iterator[tuple[Bytes, Bytes]]:
        """Where in a message each content stands."""
        start = HEADER
        for memory in memories:
            yield scratch[start:start + memory.nbytes], memory
            start += memory.nbytes


def parts(memory: Bytes) -> Iterator[Bytes]:
    """Bytes in messages of a size that MPI can count."""
    for start in range(0, memory.nbytes, CHUNK):
        yield memory[start:start + CHUNK]
