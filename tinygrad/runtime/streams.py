"""GPUs whose drivers have streams and events, as CUDA and HIP do: their memory and their command queues.

A GPU has two queues, each a stream that runs what it is given in order: one for kernels and copies to the
host, one for copies to the GPU, which so run beside kernels. Streams wait for each other by events. Copies
from and to the host go through pinned memory, one half of it filled while the other moves; copies between
GPUs go directly where their hardware can do that.

What a driver's functions are called, `cuda.py` and `amd.py` say: each has a `StreamGPU`. What a queue is
given to run is in `stream_programs.py`.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.device import Buffer, Device
from tinygrad.device.allocator import Allocator
from tinygrad.device.queue import DriverQueue, Numbers, TimelinePoint, Timestamp, raise_failures
from tinygrad.runtime.stream_programs import DriverGraph, StreamProgram

STAGING_BYTES = 8 << 20
"""Pinned memory of one half: enough that starting a copy (10 us) is a small part of it (350 us at 24
GB/s)."""


class StreamGPU:
    """One GPU, in the words of its driver. Addresses, streams and events are the driver's, `other` is another
    GPU of the same driver. A function fails with MemoryError where no memory is left, else with RuntimeError
    and the driver's words."""

    number: int
    """of the GPU, among those of the driver"""
    stream: Any
    """of kernels and copies to the host"""
    copy_stream: Any
    """of copies to the GPU"""

    def __init__(self) -> None:
        self.peers: set[int] = set()
        """numbers of the GPUs whose memory this one has been asked to use"""

    def enter(self) -> None:
        """Let calls of this thread mean this GPU."""
        raise NotImplementedError

    def obtain(self, size: int) -> int:
        """Memory of the GPU."""
        raise NotImplementedError

    def release(self, address: int) -> None:
        """Give memory of the GPU back."""
        raise NotImplementedError

    def pinned(self, size: int) -> int:
        """Host memory that the GPU reads and writes itself."""
        raise NotImplementedError

    def copy_in(self, target: int, source: int, size: int, stream: Any) -> None:
        """Give a stream a copy from pinned memory."""
        raise NotImplementedError

    def copy_out(self, target: int, source: int, size: int, stream: Any) -> None:
        """Give a stream a copy to pinned memory."""
        raise NotImplementedError

    def copy_from(self, other: Any, target: int, source: int, size: int, stream: Any) -> None:
        """Give a stream of this GPU a copy from the memory of another one, or its own."""
        raise NotImplementedError

    def use_memory_of(self, other: Any) -> None:
        """Let this GPU reach the memory of another one directly, if the hardware can do that; else the
        driver copies by way of the host."""
        raise NotImplementedError

    def new_event(self, timed: bool) -> Any:
        """An event that nothing was recorded in yet."""
        raise NotImplementedError

    def destroy_event(self, event: Any) -> None:
        """Give an event back."""
        raise NotImplementedError

    def record(self, event: Any, stream: Any) -> None:
        """Let an event mean: after everything that the stream was given so far."""
        raise NotImplementedError

    def is_past(self, event: Any) -> bool:
        """Whether the stream in which an event was recorded has got there."""
        raise NotImplementedError

    def await_event(self, event: Any) -> None:
        """Return when an event is past, or nothing was recorded in it."""
        raise NotImplementedError

    def seconds_between(self, first: Any, last: Any) -> float:
        """The time from one timed event to another, both past."""
        raise NotImplementedError

    def let_wait(self, stream: Any, event: Any) -> None:
        """Let a stream do nothing of what it is given from now on before an event is past."""
        raise NotImplementedError

    def await_stream(self, stream: Any) -> None:
        """Return when a stream has done everything it was given."""
        raise NotImplementedError

    def unload(self, module: Any) -> None:
        """Give a module of code back."""
        raise NotImplementedError

    def start_kernel(self, function: Any, sizes: Sequence[int], arguments: int) -> None:
        """Give the stream of kernels one: how many blocks and threads in each of three dimensions, bytes of
        shared memory, and where the addresses of its arguments are, which are read before this returns."""
        raise NotImplementedError

    def new_graph(self) -> Any:
        """A graph of nothing."""
        raise NotImplementedError

    def add_kernel(self, graph: Any, before: Sequence[Any], function: Any, sizes: Sequence[int],
                   arguments: int) -> Any:
        """A kernel of a graph, as `start_kernel` is told it, to run after those that were added before."""
        raise NotImplementedError

    def finished_graph(self, graph: Any) -> Any:
        """The graph as something to start."""
        raise NotImplementedError

    def change_kernel(self, executable: Any, kernel: Any, function: Any, sizes: Sequence[int], arguments: int
                      ) -> None:
        """Let a kernel of a finished graph have other arguments in the runs that are started later."""
        raise NotImplementedError

    def start_graph(self, executable: Any, stream: Any) -> None:
        """Give a stream all kernels of a graph."""
        raise NotImplementedError

    def destroy_graph(self, graph: Any, executable: Any) -> None:
        """Give both back."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Return when all kernels that were given are done."""
        self.enter()
        self.await_stream(self.stream)

    def reach(self, other: StreamGPU) -> None:
        """As `use_memory_of`, once."""
        if other.number not in self.peers:
            self.peers.add(other.number)
            self.use_memory_of(other)


class Staging:
    """One half of the pinned memory through which copies of one stream go, and the event after its last
    use."""

    def __init__(self, gpu: StreamGPU) -> None:
        self.address = gpu.pinned(STAGING_BYTES)
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING_BYTES).from_address(self.address))
        self.free = gpu.new_event(timed=False)


class StreamAllocator(Allocator):
    """Memory of a GPU. What was freed is taken again by what comes later on the same stream, so nobody
    waits."""

    def __init__(self, device: str, gpu: StreamGPU) -> None:
        super().__init__(device)
        self.gpu = gpu
        self.halves: dict[bool, list[Staging]] = {}
        """the pinned memory of copies to the GPU (True), and of those to the host"""

    def _obtain(self, size: int) -> int:
        self.gpu.enter()
        return self.gpu.obtain(size)

    def _return(self, memory: int, size: int) -> None:
        self.gpu.synchronize()
        self.gpu.release(memory)

    def address(self, memory: int) -> int:
        return memory

    def part(self, memory: int, offset: int, size: int) -> int:
        return memory + offset

    def staging(self, inward: bool) -> list[Staging]:
        self.gpu.enter()
        if inward not in self.halves:
            self.halves[inward] = [Staging(self.gpu), Staging(self.gpu)]
        return self.halves[inward]

    def copyin(self, memory: int, source: memoryview) -> None:
        """Before the kernels that are started later; `source` may change afterwards."""
        self.start_copyin(memory, source)
        for half in self.halves[True]:
            self.gpu.let_wait(self.gpu.stream, half.free)

    def start_copyin(self, memory: int, source: memoryview) -> None:
        """As `copyin`, in the order of the stream of copies alone."""
        given, stream = np.frombuffer(source, np.uint8), self.gpu.copy_stream
        halves = self.staging(True)
        for number, start in enumerate(range(0, given.size, STAGING_BYTES)):
            half, piece = halves[number % 2], given[start:start + STAGING_BYTES]
            self.gpu.await_event(half.free)
            half.bytes[:piece.size] = piece
            self.gpu.copy_in(memory + start, half.address, piece.size, stream)
            self.gpu.record(half.free, stream)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        taken = np.frombuffer(target, np.uint8)
        halves = self.staging(False)
        pieces = [taken[start:start + STAGING_BYTES] for start in range(0, taken.size, STAGING_BYTES)]
        for number in range(len(pieces) + 1):
            if number < len(pieces):
                half = halves[number % 2]
                self.gpu.copy_out(half.address, memory + offset + number * STAGING_BYTES,
                                  pieces[number].size, self.gpu.stream)
                self.gpu.record(half.free, self.gpu.stream)
            if number:
                half, piece = halves[(number - 1) % 2], pieces[number - 1]
                self.gpu.await_event(half.free)
                piece[:] = half.bytes[:piece.size]


class Event:
    """An event of the driver, which goes when nobody has it."""

    def __init__(self, gpu: StreamGPU, timed: bool) -> None:
        self.handle = gpu.new_event(timed)
        self.destroy = gpu.destroy_event

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "destroy") and not is_finalizing():
            self.destroy(self.handle)


class StreamQueue(DriverQueue):
    """A stream of a GPU, which can be given a graph of kernels."""

    def __init__(self, name: str, gpu: StreamGPU, stream: Any) -> None:
        super().__init__(name, self.await_stream)
        self.gpu = gpu
        self.stream = stream
        self.first: Event | None = None
        """the event that timestamps count from"""

    def await_stream(self) -> None:
        self.gpu.enter()
        self.gpu.await_stream(self.stream)

    def mark(self) -> Event:
        return self.event(timed=False)

    def event(self, timed: bool) -> Event:
        """A new event after everything given so far."""
        self.gpu.enter()
        event = Event(self.gpu, timed)
        self.gpu.record(event.handle, self.stream)
        return event

    def is_reached(self, mark: Event) -> bool:
        return self.gpu.is_past(mark.handle)

    def await_mark(self, mark: Event) -> None:
        self.gpu.await_event(mark.handle)

    def wait(self, point: TimelinePoint) -> None:
        other = point.queue
        if not (isinstance(other, StreamQueue) and type(other.gpu) is type(self.gpu)):
            super().wait(point)
        elif other is not self:
            mark = other.mark_after(point.value)[1]
            self.gpu.enter()
            self.gpu.let_wait(self.stream, mark.handle)

    def timestamp(self) -> Timestamp:
        if self.first is None:
            self.first = self.event(timed=True)
        first, event = self.first, self.event(timed=True)

        def read() -> float:
            self.gpu.await_event(event.handle)
            return self.gpu.seconds_between(first.handle, event.handle)

        return Timestamp(read)

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        """Without waiting, except for a copy to the host, and for pinned memory to be free."""
        raise_failures(sources)
        if not target.nbytes:
            return None
        from_host = source.host_bytes
        allocator, from_allocator = self.memory_of(target), self.memory_of(source)
        self.gpu.enter()
        if allocator is not None and from_host is not None:
            allocator.start_copyin(target.memory, from_host[offset:offset + target.nbytes])
        elif allocator is not None and from_allocator is not None:
            self.gpu.reach(from_allocator.gpu)
            self.gpu.enter()
            self.gpu.copy_from(from_allocator.gpu, target.memory, source.memory + offset, target.nbytes,
                               self.stream)
        else:
            self.finish()
            target.fill_from(source, offset)
            return None
        return self.next_point()

    def record(self, calls: Sequence[Any]) -> DriverGraph | None:
        """A graph of kernels."""
        if len(calls) < 2 or not all(isinstance(program, StreamProgram) for program, *_ in calls):
            return None
        return DriverGraph(self.gpu, calls)

    def exec_list(self, kernels: DriverGraph, places: Numbers, values: Numbers, work: float = 0.0,
                  sources: tuple[TimelinePoint, ...] = ()) -> TimelinePoint | None:
        raise_failures(sources)
        with self.lock:
            kernels.change(places, values)
            self.gpu.start_graph(kernels.executable, self.stream)
            return self.next_point()

    def memory_of(self, buffer: Buffer) -> StreamAllocator | None:
        """The allocator of a buffer in memory of this driver's GPUs; None of others."""
        allocator = Device[buffer.device].allocator
        ours = isinstance(allocator, StreamAllocator) and type(allocator.gpu) is type(self.gpu)
        return allocator if ours and isinstance(allocator, StreamAllocator) else None
