"""What ranks exchange at once, as one of them knows it.

In: copies and collectives of the schedule that stand together there (`schedule/exchanges.py`), the same in
all ranks. Out: for each other rank what is sent to it and received from it (`Between`), as messages
(`Letter`); what is broadcast; the collectives in which this rank takes part (`JoinedCollective`). Who sends
and waits is `rank.py`, with MPI, or `nccl.py`.
"""
from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tinygrad.device import Buffer
from tinygrad.device.host import seconds_of
from tinygrad.device.queue import BlockCopy, ByteRegion, CollectiveGroup, GatheredCopy
from tinygrad.dtype import dtypes

KIND = "RANK"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
DATA_TAG = 2
CHUNK = 1 << 30
"""Bytes of one message: MPI counts in 32 bits."""
FIELDS = struct.Struct("=qqq")
"""What is in front of an exchange: its number, the bytes that follow between the two ranks, the digest."""
HEADER = FIELDS.size
JOINED = 1 << 16
"""Bytes up to which a collective is one with others of its kind: a call of MPI takes as long as copying these
to where all stand together, and back."""
PIECE = 1 << 17
"""Bytes in a row from which on strided memory is sent and received row by row, from where it lies to where
it belongs: of 4 MB, rows of 128 KB take 0.35 ms so and 0.5 packed, rows of 64 KB 0.7 and 0.5. (MPI's own
datatypes for strided memory: 1.0; two cores of Zen 4, shared memory.)"""
PACKED = 1 << 15
"""Bytes up to which what a rank sends to another goes in one message with the header: a second one takes 3 us
and more, copying these as long."""


def digest_of(said: object) -> bytes:
    """A few bytes in place of all that is said of an exchange, for they are part of a digest each time."""
    return hashlib.blake2b(repr(said).encode(), digest_size=8).digest()


def name_of(rank: int) -> str:
    """The device of a rank."""
    return f"{KIND}:{rank}" if rank else KIND


def rank_of(device: str) -> int | None:
    """The rank whose device this is; None for a device that every process has."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == KIND else None


class Part:
    """What is sent, or received, of a copy's memory."""

    def __init__(self, number: int, content: ByteRegion | int, by_rows: bool = False) -> None:
        self.number = number
        """the copy's, among those in which this rank takes part"""
        self.region = content if isinstance(content, ByteRegion) else None
        """None: all of it"""
        self.nbytes = content.nbytes if isinstance(content, ByteRegion) else content
        self.rows = self.region.rows() if self.region is not None and by_rows else ()
        """where its rows begin, if they are messages of their own"""
        self.is_contiguous = self.region is None or self.region.is_contiguous
        self.start = 0 if self.region is None else self.region.start

    def of(self, memories: Sequence[Bytes]) -> list[Bytes]:
        """These bytes of the memory of each copy: flat where they are contiguous, else an array whose items
        are the rows; or each row."""
        memory, region = memories[self.number], self.region
        if region is None:
            return [memory]
        start, counts, strides, run = region
        if self.rows:
            return [memory[start:start + run] for start in self.rows]
        if self.is_contiguous:
            return [memory[start:start + region.nbytes]]
        return [np.ndarray(counts, _row(run), memory, start, strides)]


@functools.cache
def _row(nbytes: int) -> np.dtype[Any]:
    """So many bytes as one item."""
    return np.dtype((np.void, nbytes))


def is_flat(memory: Bytes) -> bool:
    """Whether these are bytes one after another, and not an array of rows, which may be of one byte."""
    return memory.dtype == np.uint8


def new_bytes(count: int) -> Bytes:
    """Memory for so many."""
    return np.empty(count, np.uint8)


def in_order(memory: Bytes, new: Callable[[int], Bytes] = new_bytes) -> Bytes:
    """This, if it is flat; new memory for its rows one after another where it is not."""
    return memory if is_flat(memory) else new(memory.nbytes)


def fill(target: Bytes, source: Bytes) -> None:
    """Copy as many bytes, each of the two flat or an array of rows, which are as long in both."""
    if is_flat(target) and not is_flat(source):
        target = target.view(source.dtype).reshape(source.shape)
    elif not is_flat(target):
        source = source.view(target.dtype) if is_flat(source) else source
        source = source.reshape(target.shape)  # the same rows, of which some axes may be one
    target[...] = source


class Between(NamedTuple):
    """What a rank and another one send each other in an exchange."""

    rank: int
    """the other"""
    sent: tuple[Part, ...]
    received: tuple[Part, ...]
    sizes: tuple[int, int]
    """bytes sent and received"""
    text: bytes
    """what they are, which both ranks say alike"""

    @property
    def is_small(self) -> bool:
        """Whether all of it goes with the headers."""
        return max(self.sizes) <= PACKED


class Combined(NamedTuple):
    """An operation of collectives."""

    of_mpi: str
    of_numpy: np.ufunc


COMBINED = {"ADD": Combined("SUM", np.add), "MUL": Combined("PROD", np.multiply),
            "MAX": Combined("MAX", np.maximum)}


class JoinedCollective:
    """Collectives that are made as one, as one that takes part in them knows them."""

    def __init__(self, numbers: Sequence[int], sizes: Sequence[int], own: int, ranks: tuple[int, ...],
                 op: str, dtype: str, text: bytes) -> None:
        self.numbers = tuple(numbers)
        """of the copies, among those in which this rank takes part"""
        self.partners = tuple([rank for rank in ranks if rank != own])
        self.ranks, self.op = ranks, op
        self.kind = f"a collective of ranks {', '.join(map(str, ranks))}"
        self.text = text
        """what they are, which all say alike"""
        self.combined = COMBINED.get(op)
        self.dtype = np.dtype(dtype if self.combined else np.uint8)
        self.rows = 1 if self.combined else len(ranks)
        self.shares = [size // self.rows for size in sizes]
        """bytes that each rank gives of each"""
        self.share, self.nbytes = sum(self.shares), sum(sizes)
        """bytes that each gives and gets"""
        self.sent = self.share * (len(ranks) - 1) * (2 if op else 1) // (len(ranks) if op else 1)
        """bytes that this rank sends to others"""
        self.is_packed = self.share * len(ranks) <= PACKED
        nbytes = HEADER + self.is_packed * self.share
        self.message, self.messages = np.empty(nbytes, np.uint8), np.empty((len(ranks), nbytes), np.uint8)
        """a header, and what is small behind it; those of all ranks"""
        self.header, self.headers = self.message[:HEADER].view(np.int64), self.messages[:, :HEADER]
        spans = list(pairwise(accumulate(self.shares, initial=HEADER))) if self.is_packed else []
        self.given = [self.message[start:end] for start, end in spans]
        """where what this rank gives of each is packed"""
        self.came = [self.messages[:, start:end].view(self.dtype) for start, end in spans]
        """where what all give of each comes, a row from each rank"""

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks sent the same header."""
        return self.headers.tobytes() == self.header.tobytes() * len(self.ranks)

    def pack(self, sent: Sequence[Bytes]) -> None:
        """Put what this rank gives behind the header."""
        for place, memory in zip(self.given, sent, strict=True):
            place[:] = memory

    def unpack(self, received: Sequence[Bytes]) -> None:
        """Combine or gather what came with the headers."""
        for rows, memory in zip(self.came, received, strict=True):
            if self.combined is None:
                memory.reshape(rows.shape)[:] = rows
            else:
                with np.errstate(all="ignore"):
                    self.combined.of_numpy.reduce(rows, 0, out=memory.view(self.dtype))


class Ends(NamedTuple):
    """What this rank has of a copy in which it takes part."""

    given: int | None
    """bytes that are read; None: all of the source, of which blocks say what is"""
    gives: bool
    takes: bool


class RankExchange:
    """Copies that begin together, as one rank takes part in them: none reads or writes what another
    writes."""

    def __init__(self, copies: Sequence[GatheredCopy], own: int, size: int) -> None:
        takers: dict[Hashable, list[int]] = {}
        for number, copy in enumerate(copies):
            taker = rank_of(copy.target_device)
            if copy.group is None and taker is not None and taker != rank_of(copy.source_device):
                takers.setdefault((copy.part, copy.nbytes), []).append(number)
        to_all = [numbers for numbers in takers.values() if len(numbers) == size - 1 > 1]
        if len({copies[numbers[0]].source_device for numbers in to_all}) != 1:
            to_all = []  # messages of several ranks to all are on their way at once; of one, MPI makes a tree
        together = {number: numbers[0] for numbers in to_all for number in numbers}
        self.parts: dict[int, tuple[list[Part], list[Part], list[object], list[int]]] = {}
        """by rank, what is sent to it and received from it, what that is, how many bytes each way"""
        self.local: list[tuple[Part, Part]] = []
        """what is copied inside this rank, from where to where"""
        self.own: list[int] = []
        """the numbers of the copies in which this rank takes part; from here on they are counted there"""
        to_ranks: dict[int, tuple[int, int, bool, bytes]] = {}
        self.to_everybody: list[tuple[int, int, bool, bytes]] = []
        """as `to_ranks`, to devices that every process has"""
        self.joined: dict[tuple[tuple[int, ...], str, str, int | None], list[int]] = {}
        """by what they have in common, the collectives that are made as one"""
        self.in_blocks: set[int] = set()
        """the numbers of those that give what their blocks say"""
        self.bytes = 0
        for number, copy in enumerate(copies):
            if copy.group is not None:
                self.add_collective(number, copy, copy.group, own)
                continue
            giver, taker = rank_of(copy.source_device), rank_of(copy.target_device)
            assert giver is not None
            if own not in (giver, taker) and taker is not None:
                continue
            here, is_giver, whole = len(self.own), own == giver, Part(len(self.own), copy.nbytes)
            self.own.append(number)
            self.bytes += copy.nbytes
            said = giver, copy.items, copy.dtype, copy.program
            if taker is None:
                self.to_everybody.append((here, giver, is_giver, repr(said).encode()))
            elif giver == taker:
                self.local.append((whole, whole))
            elif number not in together:
                self.add_part(taker if is_giver else giver, whole, is_giver, (taker, *said))
            elif not is_giver or number == together[number]:
                to_ranks[together[number]] = here, giver, is_giver, repr(said).encode()
        self.to_ranks = [sent for _, sent in sorted(to_ranks.items())]  # by first copy: as all order them
        """the same bytes to all ranks: (a copy's number, the giver, whether this rank is it, what it is)"""
        self.between = [Between(rank, tuple(sent), tuple(received), (nbytes[0], nbytes[1]),
                                digest_of(described))
                        for rank, (sent, received, described, nbytes) in sorted(self.parts.items())]
        self.collectives = [self.made_as_one(copies, numbers, own, *kind[:3])
                            for kind, numbers in self.joined.items()]
        self.partners = tuple([between.rank for between in self.between])
        self.letters: list[Letter] = []
        """the first message to each, once there is memory for it"""
        self.sent = sum(between.sizes[0] for between in self.between)
        """bytes in messages to others"""
        self.ends = [self.ends_of(copies[number], own, here) for here, number in enumerate(self.own)]
        self.seconds = seconds_of(0, 2 * self.bytes)
        """about how long moving it takes, once all are there"""
        self.computing = "; ".join(dict.fromkeys(copy.program for copy in copies))

    @functools.cached_property
    def is_short(self) -> bool:
        """Whether all of it goes with the headers or stays here, and lies together before and after."""
        if self.to_everybody or self.to_ranks or self.collectives:
            return False
        inside = [part for ends in self.local for part in ends]
        outside = [part for between in self.between for part in between.sent + between.received]
        return all([between.is_small for between in self.between]) and \
            all([part.nbytes <= PACKED for part in inside]) and \
            all([part.is_contiguous for part in inside + outside])

    def add_collective(self, number: int, copy: GatheredCopy, group: CollectiveGroup, own: int) -> None:
        """Take note of a collective, if this rank takes part in it: small ones of a kind are made as one."""
        ranks = tuple(rank for rank in map(rank_of, group.devices) if rank is not None)
        if own not in ranks:
            return
        if group.blocks:
            self.add_blocks(copy, group.blocks, ranks, ranks.index(own))
            self.in_blocks.add(len(self.own))
            self.own.append(number)
            return
        kind = (ranks, group.op, copy.dtype, None if copy.nbytes <= JOINED else number)
        self.joined.setdefault(kind, []).append(len(self.own))
        self.own.append(number)
        self.bytes += copy.nbytes

    def add_blocks(self, copy: GatheredCopy, blocks: Sequence[BlockCopy], ranks: Sequence[int], own: int
                   ) -> None:
        """Take note of what ranks get of each other, of which this is the one of a number."""
        here = len(self.own)
        for giver, taker, given, taken in blocks:
            if giver == taker == own:
                self.local.append((Part(here, given), Part(here, taken)))
                self.bytes += given.nbytes
            elif own in (giver, taker):
                is_giver = own == giver
                region = given if is_giver else taken
                by_rows = given.run >= PIECE and not (given.is_contiguous and taken.is_contiguous)
                self.add_part(ranks[taker if is_giver else giver],
                              Part(here, region, by_rows), is_giver,
                              (ranks[taker], ranks[giver], given, taken, copy.dtype, copy.program))
                self.bytes += given.nbytes

    def ends_of(self, copy: GatheredCopy, own: int, here: int) -> Ends:
        """What this rank reads and writes of a copy, which is one of its own by a number."""
        gathered = copy.group is not None and not copy.group.op and not copy.group.blocks
        given = copy.nbytes // len(copy.group.devices) if copy.group is not None and gathered else copy.nbytes
        return Ends(None if here in self.in_blocks else given, rank_of(copy.source_device) == own,
                    rank_of(copy.target_device) in (own, None))

    def add_part(self, rank: int, part: Part, is_sent: bool, described: object) -> None:
        """Take note of what goes to another rank, or comes from it."""
        *parts, texts, sizes = self.parts.setdefault(rank, ([], [], [], [0, 0]))
        parts[not is_sent].append(part)
        sizes[not is_sent] += part.nbytes
        texts.append(described)

    def made_as_one(self, copies: Sequence[GatheredCopy], numbers: Sequence[int], own: int,
                    ranks: tuple[int, ...], op: str, dtype: str) -> JoinedCollective:
        """These collectives, which have their ranks, operation and dtype in common."""
        each = [copies[self.own[number]] for number in numbers]
        text = digest_of((ranks, op, dtype, [(copy.items, copy.program) for copy in each]))
        return JoinedCollective(numbers, [copy.nbytes for copy in each], own, ranks, op, dtype, text)


class Scratch:
    """The memory of the first messages between this rank and another, and the requests of MPI that carry them
    again and again. As long as any, so that a rank that is elsewhere is told apart by what it sends."""

    def __init__(self, comm: Any, rank: int) -> None:
        self.comm, self.rank = comm, rank
        self.outgoing, self.incoming = (np.zeros(HEADER + PACKED, np.uint8) for _ in range(2))
        self.receiver = comm.Recv_init(self.incoming, rank, DATA_TAG)
        self.senders: dict[int, Any] = {}
        """by bytes"""

    def sender(self, nbytes: int) -> Any:
        """The request that sends so many bytes."""
        found = self.senders.get(nbytes)
        if found is None:
            found = self.senders[nbytes] = self.comm.Send_init(self.outgoing[:nbytes], self.rank, DATA_TAG)
        return found


class Letter:
    """The first message to a rank, and the one from it: a header, and the whole content where that is small
    in both directions."""

    def __init__(self, between: Between, scratch: Scratch, has_content: bool = True) -> None:
        self.rank, self.between = between.rank, between
        outgoing, incoming = scratch.outgoing, scratch.incoming
        self.header, self.found = outgoing.data, incoming.data
        """where the headers stand"""
        self.own = 0, 0, 0
        """that of the exchange in progress"""
        self.is_packed = has_content and between.is_small
        self.requests = scratch.receiver, scratch.sender(HEADER + self.is_packed * between.sizes[0])
        """what sends and receives both"""
        self.nbytes = sum(between.sizes)
        self.sent = self.places(between.sent, outgoing)
        self.received = self.places(between.received, incoming)
        """what stands behind the header, and where; no part of it is several rows, which are long"""
        self.given = [(part.number, part.start, part.nbytes, address_of(m)) for part, m in self.sent]
        self.taken = [(part.number, part.start, part.nbytes, address_of(m)) for part, m in self.received]
        """the same of content that lies together: the copy's number, where in its memory, how many bytes, and
        where they stand in the message"""

    def places(self, parts: Sequence[Part], memory: Bytes) -> list[tuple[Part, Bytes]]:
        """Where each part stands in a message, if the content does."""
        spans = pairwise(accumulate([part.nbytes for part in parts], initial=HEADER))
        return [(part, memory[start:end]) for part, (start, end) in zip(parts, spans, strict=True)
                ] if self.is_packed else []

    def pack(self, sent: Sequence[Bytes]) -> None:
        """Put what is sent behind the header."""
        for part, place in self.sent:
            for memory in part.of(sent):
                fill(place, memory)

    def unpack(self, received: Sequence[Bytes]) -> None:
        """Put what came behind the header where it belongs."""
        for part, place in self.received:
            for memory in part.of(received):
                fill(memory, place)


class LongMessages:
    """Messages that are too long for letters, while they are on their way."""

    def __init__(self, comm: Any, device: str) -> None:
        self.comm, self.device = comm, device
        self.waiting: list[Any] = []
        """what is to be complete"""
        self.strided: list[tuple[Bytes, Bytes]] = []
        """memory to be filled then, and with what"""
        self.packed: list[Buffer] = []
        """what holds rows one after another"""

    def new(self, count: int) -> Bytes:
        """Memory for so many, of what this process freed before: with fresh pages in each exchange 16 MB in
        rows of 8 KB took 2.2 to 3.3 ms, with these 1.4."""
        self.packed.append(Buffer(self.device, count, dtypes.uint8).allocate(idle=True))
        return np.frombuffer(self.packed[-1].memory, np.uint8, count)

    def begin(self, letter: Letter, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """Let the content of a letter be on its way."""
        for memory in (m for part in letter.between.received for m in part.of(received)):
            flat = in_order(memory, self.new)
            if flat is not memory:
                self.strided.append((memory, flat))
            self.waiting += [self.comm.Irecv(part, letter.rank, DATA_TAG) for part in parts(flat)]
        for memory in (m for part in letter.between.sent for m in part.of(sent)):
            flat = in_order(memory, self.new)
            if flat is not memory:
                fill(flat, memory)
            self.waiting += [self.comm.Isend(part, letter.rank, DATA_TAG) for part in parts(flat)]

    def unpack(self) -> None:
        """Put what came packed where it belongs."""
        for memory, flat in self.strided:
            fill(memory, flat)


def parts(memory: Bytes) -> Iterator[Bytes]:
    """Bytes in messages of a size that MPI can count."""
    for start in range(0, memory.nbytes, CHUNK):
        yield memory[start:start + CHUNK]


NOTHING: Bytes = np.empty(0, np.uint8)


def in_one(memories: Sequence[Bytes]) -> Bytes:
    """Their bytes one after another."""
    return memories[0] if len(memories) == 1 else np.concatenate(memories)


def address_of(memory: Bytes) -> int:
    """Where bytes begin."""
    return int(memory.ctypes.data)


def bytes_of(buffer: Buffer, start: int, count: int) -> Bytes:
    """Bytes of a buffer of this process."""
    return np.frombuffer(buffer.memory, np.uint8, count, start)
