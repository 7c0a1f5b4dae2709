"""NCCL's binding where there is no GPU: against a library that notes what it is called with, and against the
header and the symbols of the real one."""
from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinygrad import Device
from tinygrad.device import Buffer, CompiledDevice
from tinygrad.dtype import dtypes
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.runtime import nccl
from tinygrad.runtime.null import NullAllocator
from tinygrad.runtime.rank import OtherRank
from tinygrad.runtime.streams import StreamAllocator, StreamGPU, StreamQueue


class NotedGPU(StreamGPU):
    """A GPU that notes what its streams wait for."""

    number, stream, copy_stream = 0, 7, 8

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes
        self.addresses = itertools.count(1 << 20, 1 << 16)
        self.events = itertools.count(100)

    def enter(self) -> None:
        pass

    def obtain(self, size: int) -> int:
        return next(self.addresses)

    def release(self, address: int) -> None:
        pass

    def new_event(self, timed: bool) -> int:
        return next(self.events)

    def destroy_event(self, event: int) -> None:
        pass

    def record(self, event: int, stream: int) -> None:
        self.notes.append(("record", event, stream))

    def is_past(self, event: int) -> bool:
        return True

    def await_event(self, event: int) -> None:
        pass

    def await_stream(self, stream: int) -> None:
        pass

    def let_wait(self, stream: int, event: int) -> None:
        self.notes.append(("wait", stream, event))


class NotedLibrary:
    """NCCL's functions, which succeed, or fail with `status`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.status = 0

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            assert len(arguments) == len(nccl.SIGNATURES[name]), name
            self.calls.append((name, *[a for a in arguments if isinstance(a, int)]))
            return self.status
        return function

    def ncclGetErrorString(self, status: int) -> bytes:
        return b"unhandled system error"


class OwnGPU(CompiledDevice):
    exchanges = True


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Rank 0 of 3, on a GPU."""
    library = NotedLibrary()
    monkeypatch.setattr(nccl, "library", lambda: library)
    agreed: list[Any] = []
    world = SimpleNamespace(rank=0, size=3, sent=0, computing="", agree=agreed.append,
                            control=SimpleNamespace(bcast=lambda value, root: value))
    gpu = NotedGPU(library.calls)
    own = OwnGPU("RANK", StreamAllocator("RANK", gpu), cuda_renderer(90, 99 << 10, 132))
    devices = {"RANK": own, **{name: OtherRank(name, NullAllocator(name), own.renderer)
                               for name in ("RANK:1", "RANK:2")}}
    for name, device in devices.items():
        monkeypatch.setitem(Device.opened, name, device)
    found = nccl.ExchangeStream("exchanges", gpu, world)  # type: ignore[arg-type]  # of a world what is asked
    library.calls.clear()
    yield SimpleNamespace(queue=found, calls=library.calls, agreed=agreed, world=world, library=library)


def memory(device: str, items: int = 6) -> Buffer:
    return Buffer(device, items, dtypes.float32).allocate()


def names(calls: list[Any]) -> list[str]:
    return [call[0] for call in calls]


def test_copies_between_ranks_are_one_group_on_the_stream_of_copies(stream: Any) -> None:
    own, other, third, target = (memory(d) for d in ("RANK", "RANK:1", "RANK:2", "RANK"))
    part = memory("RANK:1", 2)
    points = [stream.queue.copy(target, other, 0), stream.queue.copy(part, own, 8),
              stream.queue.copy(memory("RANK:1"), third, 0)]
    assert stream.calls == []
    stream.queue.submit()
    assert stream.calls == [("ncclGroupStart",), ("ncclSend", own.address + 8, 8, 1, 1, 8),
                            ("ncclRecv", target.address, 24, 1, 1, 8), ("ncclGroupEnd",)]
    assert [point is not None for point in points] == [True, True, False]
    assert stream.world.sent == 8
    (between,), = stream.agreed
    assert between.rank == 1 and between.sizes == (8, 24)


def test_a_copy_that_has_to_wait_for_another_is_in_the_next_group(stream: Any) -> None:
    target, there = memory("RANK"), memory("RANK:1")
    stream.queue.copy(target, there, 0)
    stream.queue.copy(there, target, 0)
    stream.queue.submit()
    assert names(stream.calls) == ["ncclGroupStart", "ncclRecv", "ncclGroupEnd",
                                   "ncclGroupStart", "ncclSend", "ncclGroupEnd"]


def test_the_same_bytes_to_all_ranks_are_a_broadcast(stream: Any) -> None:
    own = memory("RANK")
    for rank in ("RANK:1", "RANK:2"):
        stream.queue.copy(memory(rank), own, 0)
    stream.queue.submit()
    assert stream.calls == [("ncclGroupStart",), ("ncclBroadcast", own.address, own.address, 24, 1, 0, 8),
                            ("ncclGroupEnd",)]
    assert stream.world.sent == 48


def test_a_kernel_waits_for_an_exchange_by_an_event(stream: Any) -> None:
    point = stream.queue.copy(memory("RANK"), memory("RANK:1"), 0)
    stream.queue.submit()
    kernels = StreamQueue("kernels", stream.queue.gpu, stream.queue.gpu.stream)
    kernels.wait(point)
    assert stream.calls[-2:] == [("record", 100, 8), ("wait", 7, 100)]


def test_what_fails_says_so_in_the_words_of_the_library(stream: Any) -> None:
    stream.library.status = 2
    stream.queue.copy(memory("RANK"), memory("RANK:1"), 0)
    with pytest.raises(RuntimeError, match="ncclGroupStart failed: unhandled system error"):
        stream.queue.submit()


KINDS = {"size_t": ctypes.c_size_t, "int": ctypes.c_int, "ncclDataType_t": ctypes.c_int,
         "ncclUniqueId": nccl.UniqueId, "ncclComm_t": ctypes.c_void_p, "cudaStream_t": ctypes.c_void_p,
         "void*": ctypes.c_void_p, "int*": ctypes.POINTER(ctypes.c_int),
         "ncclUniqueId*": ctypes.POINTER(nccl.UniqueId), "ncclComm_t*": ctypes.POINTER(ctypes.c_void_p)}
"""By type of the header: how a function is told."""


def test_every_function_is_in_the_real_library_and_takes_what_its_header_says() -> None:
    path = Path(nccl.library_path())
    if not path.exists():
        pytest.skip("NCCL is of the extra nccl")
    loaded = nccl.library()
    text = (path.parents[1] / "include" / "nccl.h").read_text()
    assert int(re.findall(r"NCCL_UNIQUE_ID_BYTES (\d+)", text)[0]) == ctypes.sizeof(nccl.UniqueId)
    assert re.search(rf"ncclUint8\s*= {nccl.BYTES}\b", text)
    for name, kinds in nccl.SIGNATURES.items():
        assert getattr(loaded, name) is not None
        (declared,) = re.findall(rf"ncclResult_t\s+{name}\(([^)]*)\)", text)
        arguments = [a.replace("const ", "").strip() for a in declared.split(",")]
        arguments = [a for a in arguments if a not in ("", "void")]
        told = [re.sub(r"\s*\w+$", "", a).replace(" ", "") for a in arguments]
        assert tuple(KINDS[kind] for kind in told) == kinds, (name, arguments)
    version = ctypes.c_int()
    nccl.call("ncclGetVersion", ctypes.byref(version))
    assert version.value > 21900
