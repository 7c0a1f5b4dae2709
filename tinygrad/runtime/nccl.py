"""NCCL: what ranks exchange between NVIDIA's GPUs, queued on the streams of those that compute it.

In: copies of the schedule between ranks, gathered as `runtime/rank.py` gathers them for MPI (`RankExchange`).
Out: for each exchange one group of NCCL's sends and receives on the stream of copies of this rank's GPU
(`ExchangeStream`): kernels wait for them by events, the host for none. MPI starts the processes, gives all
of them the communicator's name (`ncclUniqueId`), and carries the headers by which ranks find out that they
run different programs before anything is queued that could hang.

The binding is this file: ctypes over `libnccl.so.2`, from the extra `nccl` or the system. It was checked
against NCCL's header and an imitated library (`test/runtime/test_nccl.py`), never on a GPU.
"""
from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tinygrad.device import Buffer, CompiledDevice
from tinygrad.device.queue import GatheredCopy, TimelinePoint, raise_failures, written_and_read
from tinygrad.runtime.cuda import CudaContext, CUDADevice, driver
from tinygrad.runtime.cuda import call as call_driver
from tinygrad.runtime.null import NoAllocator
from tinygrad.runtime.rank import OtherRank, World
from tinygrad.runtime.rank_exchange import RankExchange, name_of, rank_of
from tinygrad.runtime.streams import StreamGPU, StreamQueue

BYTES = 1
"""ncclUint8: what moves is never added up on the way."""
UNIQUE_ID_BYTES = 128
INSTALL = "python3 -m pip install 'tinygrad[nccl]'"


class UniqueId(ctypes.Structure):
    """The name of a communicator, which one rank makes and all are given."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


Pointer, Size, Int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(Int),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(Pointer), Int, UniqueId, Int),
    "ncclCommDestroy": (Pointer,),
    "ncclCommAbort": (Pointer,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (Pointer, Size, Int, Int, Pointer, Pointer),
    "ncclRecv": (Pointer, Size, Int, Int, Pointer, Pointer),
    "ncclBroadcast": (Pointer, Pointer, Size, Int, Int, Pointer, Pointer),
}
"""What each function takes; all return ncclResult_t, an int, 0 where they succeed."""


def library_path() -> str:
    """Where the library of the extra is; its name where the system is to find one."""
    found = importlib.util.find_spec("nvidia")
    for folder in () if found is None else found.submodule_search_locations or ():
        path = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return "libnccl.so.2"


@cache
def library() -> Any:
    """NCCL, its functions declared. Raises ImportError, saying what to install, where there is none."""
    try:
        loaded = ctypes.CDLL(library_path())
    except OSError as error:
        raise ImportError(f"ranks on NVIDIA's GPUs need NCCL: {INSTALL}") from error
    for name, arguments in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, Int
    loaded.ncclGetErrorString.argtypes, loaded.ncclGetErrorString.restype = (Int,), ctypes.c_char_p
    return loaded


def call(name: str, *arguments: Any) -> None:
    """A function of NCCL. Raises RuntimeError with its words where it fails."""
    status = getattr(library(), name)(*arguments)
    if status:
        words = library().ncclGetErrorString(status)
        raise RuntimeError(f"{name} failed: {words.decode() if words else status}")


class Communicator:
    """The GPUs of all ranks, as one of them is part of it. Made by all ranks at once, each on its GPU."""

    def __init__(self, world: World, gpu: StreamGPU) -> None:
        name = UniqueId()
        if world.rank == 0:
            call("ncclGetUniqueId", ctypes.byref(name))
        shared = world.control.bcast(bytes(name), root=0)
        self.handle = Pointer()
        gpu.enter()
        call("ncclCommInitRank", ctypes.byref(self.handle), world.size, UniqueId.from_buffer_copy(shared),
             world.rank)

    def send(self, address: int, size: int, rank: int, stream: int) -> None:
        """Queue so many bytes from there to another rank."""
        call("ncclSend", address, size, BYTES, rank, self.handle, stream)

    def receive(self, address: int, size: int, rank: int, stream: int) -> None:
        """Queue so many bytes from another rank to there."""
        call("ncclRecv", address, size, BYTES, rank, self.handle, stream)

    def broadcast(self, source: int, target: int, size: int, root: int, stream: int) -> None:
        """Queue so many bytes of `root` to every rank; `source` means something there alone."""
        call("ncclBroadcast", source, target, size, BYTES, root, self.handle, stream)


class ExchangeStream(StreamQueue):
    """A stream of this rank's GPU for what ranks exchange, in the order of the schedule: copies that are
    given one after another, up to `submit`, are one group."""

    gathers = True

    def __init__(self, name: str, gpu: StreamGPU, world: World, communicator: Communicator | None = None
                 ) -> None:
        super().__init__(name, gpu, gpu.copy_stream)
        self.world = world
        self.communicator = communicator or Communicator(world, gpu)
        self.copies: list[GatheredCopy] = []
        self.memory: list[tuple[Buffer, Buffer, int]] = []

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        """As `StreamQueue.copy` within this process. To a device that every process has: a broadcast, which
        the host waits for."""
        raise_failures(sources)
        own, giver, taker = self.world.rank, rank_of(source.device), rank_of(target.device)
        if not target.nbytes:
            return None
        if giver is None or giver == taker:
            self.submit()
            return super().copy(target, source, offset) if taker in (own, None) else None
        if taker is None:
            self.submit()
            return self.read_everywhere(target, source, offset, giver)
        copy = GatheredCopy(target.device, source.device, *written_and_read((target.root, source.root)),
                            (source, offset), target.size, target.dtype.name, target.nbytes, self.program)
        if copy.conflicts(self.copies):
            self.submit()
        self.copies.append(copy)
        self.memory.append((target, source, offset))
        return TimelinePoint(self, self.given + 1) if own in (giver, taker) else None

    def read_everywhere(self, target: Buffer, source: Buffer, offset: int, giver: int
                        ) -> TimelinePoint | None:
        """A broadcast into memory of this rank's GPU, and a copy from there."""
        own = giver == self.world.rank
        here = Buffer(name_of(self.world.rank), target.size, target.dtype).allocate()
        self.communicator.broadcast(source.address + offset if own else here.address, here.address,
                                    target.nbytes, giver, self.stream)
        self.next_point(here)
        return super().copy(target, here, 0)

    def submit(self) -> None:
        """Queue the copies given so far."""
        with self.lock:
            if self.copies:
                copies, self.copies = self.copies, []
                memory, self.memory = self.memory, []
                exchange = self.record_copies(copies)
                self.copy_list(exchange, [memory[number] for number in exchange.own])

    def record_copies(self, copies: Sequence[GatheredCopy]) -> RankExchange:
        return RankExchange(copies, self.world.rank, self.world.size)

    def copy_list(self, recorded: RankExchange, memory: Sequence[tuple[Buffer, Buffer, int]],
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        """One group of sends and receives, each rank's in the order of the schedule, once all partners are
        found to be at this exchange."""
        raise_failures(sources)
        self.submit()
        self.world.computing = recorded.computing
        self.world.agree(recorded.between)
        self.gpu.enter()
        call("ncclGroupStart")
        for between in recorded.between:
            for part in between.sent:
                target, source, offset = memory[part.number]
                self.communicator.send(source.address + offset, target.nbytes, between.rank, self.stream)
            for part in between.received:
                target = memory[part.number][0]
                self.communicator.receive(target.address, target.nbytes, between.rank, self.stream)
        for number, giver, is_giver, _ in recorded.to_ranks:
            target, source, offset = memory[number]
            address = source.address + offset if is_giver else target.address
            self.communicator.broadcast(address, address, target.nbytes, giver, self.stream)
            self.world.sent += target.nbytes * (self.world.size - 1) * is_giver
        call("ncclGroupEnd")
        self.world.sent += recorded.sent
        return self.next_point()


class OwnGPU(CUDADevice):
    """A GPU, as the device of this process."""

    exchanges = True


@cache
def own_gpu(name: str, world: World) -> OwnGPU:
    """The device of this rank: of the GPUs of its machine the one whose number it has there."""
    driver()
    host = world.control.Split_type(world.mpi.COMM_TYPE_SHARED)
    context = CudaContext(int(host.Get_rank()) % int(call_driver("cuDeviceGetCount")))
    device = OwnGPU(name, context, context.renderer())
    device.copies = ExchangeStream(f"{name} exchanges", context, world)
    return device


def open_gpu(name: str, rank: int, world: World) -> CompiledDevice:
    """The device of a rank in a world of GPUs, which are all of one kind. Raises ImportError, OSError or
    RuntimeError where this rank has none."""
    own = own_gpu(name_of(world.rank), world)
    if rank == world.rank:
        return own
    other = OtherRank(name, NoAllocator(name), own.renderer)
    other.copies = own.copies
    return other
