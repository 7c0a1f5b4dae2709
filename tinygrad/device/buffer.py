"""Memory for a number of items on a device: a `Buffer`, taken from the device's allocator when it is needed.

It knows which commands use it (`uses`, points of `queue.py`): the host waits for those, and for no others,
before it reads or writes. Next on the path: `graph/storage.py`, which says which memory a node stands for.
"""
from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad import observer
from tinygrad.device.allocator import Allocator, Owner
from tinygrad.device.devices import Device
from tinygrad.device.queue import CommandQueue, RepeatedReads, TimelinePoint, Uses, clock
from tinygrad.dtype import DType, dtype_from_numpy
from tinygrad.helpers import complete
from tinygrad.observer import MemoryChange


class Buffer(Owner):
    """Memory for `size` items of `dtype` on `device`, taken at the first `allocate`."""

    __slots__ = ("__weakref__", "_address", "_allocator", "_owner", "_seen", "change", "device", "dtype",
                 "size", "whole")

    def __init__(self, device: str, size: int, dtype: DType) -> None:
        self.whole: Buffer | None = None
        """the buffer whose memory this one has a part of"""
        self._memory = self.uses = None
        self._address: int | None = None
        self._owner: Any = None
        """whose memory it is, if not the allocator's"""
        self._seen: weakref.WeakSet[_HostMemory] | None = None
        """of a root: through what the host sees the memory"""
        self.change: MemoryChange | None = None
        """what an observer is told with when the memory is free again"""
        self._allocator: Allocator | None = None
        """takes the memory back"""
        self.device = device
        self.size = size
        self.dtype = dtype

    def __repr__(self) -> str:
        state = "" if self.is_allocated else " not allocated"
        return f"<Buffer {self.device} {self.dtype.name}[{self.size}]{state}>"

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.size * self.dtype.itemsize

    @property
    def root(self) -> Buffer:
        """The buffer whose memory this one has a part of, or itself."""
        return self if self.whole is None else self.whole

    @property
    def is_allocated(self) -> bool:
        """Whether it has memory yet."""
        return self._memory is not None

    @property
    def memory(self) -> Any:
        """What the allocator gave."""
        return self.allocate()._memory

    def allocate(self, idle: bool = False, lines: tuple[int, ...] = (), is_told: bool = True) -> Buffer:
        """Take the memory, if that has not happened; with `idle` such that nobody has to wait for. `lines`:
        the user's that it is for, where they are known. `is_told`: whether an observer is told of it here,
        not by the caller (`observer.RepeatedRun`)."""
        if self._memory is None:
            allocator = self._allocator = Device[self.device].allocator
            size = self.nbytes
            allocator.allocate(self, size, idle)
            if is_told and (watcher := observer.active) is not None:
                self.change = watcher.memory_change(self.device, size, lines)
                self.change.taken(clock())
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end, names of modules may be gone; an argument's default is not. An interrupt
        # may come where nothing is set yet.
        if not is_finalizing() and getattr(self, "whole", self) is None and self._memory is not None:
            complete(self._give_back)

    def _give_back(self) -> None:
        """Let go of the memory of a root."""
        unfinished = self.uses.before_writing() if self.uses is not None else ()
        if self._allocator is not None:
            self._allocator.free(self, self.nbytes, unfinished)
            change = self.change
            if change is not None and observer.active is not None:
                change.returned(clock())
        for point in unfinished if self._allocator is None else ():
            point.queue.keep(point.value, self._memory)

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any], device: str = "CPU", share: bool = True) -> Buffer:
        """A buffer with the values of `array`: with `share` over the memory of a C-contiguous, aligned,
        writable array, else, and for others, a copy."""
        buffer = Buffer(device, array.size, dtype_from_numpy(array.dtype))
        data = np.ascontiguousarray(array)
        if share and data is array and array.flags.writeable and array.flags.aligned and array.size > 0:
            buffer._memory = Device[device].allocator.share(data)
        if buffer.is_allocated:
            buffer._owner = array
        else:
            buffer.copyin(data.reshape(-1).view(np.uint8).data)
        return buffer

    def part(self, offset: int, size: int, dtype: DType) -> Buffer:
        """A buffer of `size` items of `dtype` that shares the bytes from `offset` on of this one, which it
        keeps alive; one with memory of its own where the device has no parts."""
        self.allocate()
        found = Buffer(self.device, size, dtype)
        found._memory = Device[self.device].allocator.part(self._memory, offset, found.nbytes)
        if found.is_allocated:
            found.whole = self.root
        return found

    @property
    def address(self) -> int:
        """Where the memory begins, as kernels are told."""
        found = self._address
        if found is None:
            allocator = self.allocate()._allocator or Device[self.device].allocator
            found = self._address = allocator.address(self._memory)
        return found

    # --- who uses the memory --------------------------------------------------------------------------------

    @property
    def is_exposed(self) -> bool:
        """Whether others may touch the memory without asking: it is an array's that a tensor was made over,
        or there are arrays over it."""
        root = self.root
        return root._owner is not None or bool(root._seen)

    def add_use(self, point: TimelinePoint, writes: bool) -> None:
        """Take note of a command in flight that reads the memory, or writes it."""
        root = self.root
        if root.uses is None:
            root.uses = Uses()
        if writes:
            root.uses.set_written(point)
        else:
            root.uses.add_read(point)

    @staticmethod
    def add_uses(point: TimelinePoint, buffers: Sequence[Buffer], outputs: int) -> bool:
        """As `add_use`, of a command that writes the first `outputs` of these and reads the others. Returns
        whether one is exposed."""
        exposed = False
        for buffer in buffers[:outputs]:
            buffer.add_use(point, True)
            exposed = exposed or buffer.is_exposed
        for buffer in buffers[outputs:]:
            root = buffer if buffer.whole is None else buffer.whole
            uses = root.uses
            if uses is None:
                uses = root.uses = Uses()
            reads = uses.reads
            if len(reads) == 1 and reads[0].queue is point.queue:
                reads[0] = point  # one later in a queue's order stands for those before it
            else:
                uses.add_read(point)
            if root._owner is not None or root._seen:
                exposed = True
        return exposed

    def wait_to_read(self, ordering: CommandQueue | None = None) -> None:
        """Return when the content is there, for who does not read it in the order of `ordering`. Raises what
        computing it raised."""
        uses = self.root.uses
        if uses is not None:
            for point in uses.before_reading():
                if point.queue is not ordering:
                    point.wait()

    def wait_to_write(self, ordering: CommandQueue | None = None) -> None:
        """Return when nobody uses the content any more, except in the order of `ordering`."""
        uses = self.root.uses
        if uses is not None:
            for point in uses.before_writing():
                if point.queue is not ordering:
                    point.queue.await_value(point.value)

    # --- what the host does with it -------------------------------------------------------------------------

    @property
    def is_on_host(self) -> bool:
        """Whether `numpy` gives the memory itself."""
        return self.host_bytes is not None

    @property
    def host_bytes(self) -> memoryview | None:
        """The memory itself, whoever uses it, where the host can touch it; else None."""
        return Device[self.device].allocator.as_bytes(self.memory, self.nbytes)

    def copyin(self, source: memoryview) -> None:
        """Fill the memory. Raises ValueError where the lengths differ."""
        if source.nbytes != self.nbytes:
            raise ValueError(f"copying {source.nbytes} bytes into {self!r} of {self.nbytes}")
        self.allocate(idle=True)
        if self.nbytes:
            device = Device[self.device]
            self.wait_to_write(device.allocator.queue)
            device.allocator.copyin(self._memory, source)
            if self.whole is None and self.uses is not None:
                self.uses.forget_repeated()
                self.uses = None

    def copyout(self, target: memoryview) -> None:
        """Read the memory. Raises ValueError where the lengths differ."""
        if target.nbytes != self.nbytes:
            raise ValueError(f"copying {self!r} of {self.nbytes} bytes into {target.nbytes}")
        if target.nbytes:
            device = Device[self.device]
            self.wait_to_read(device.allocator.queue)
            device.allocator.copyout(target, self.memory)

    def as_bytes(self) -> memoryview | None:
        """The memory itself, where the host can touch it, when it may read it; else None."""
        found = self.host_bytes
        if found is not None:
            self.wait_to_read()
        return found

    def fill_from(self, source: Buffer, offset: int) -> None:
        """Copy the bytes of `source` from `offset` on, on whatever devices the two are, without waiting for
        anybody: what a queue does when it gets to a copy."""
        if not self.nbytes:
            return
        allocator, from_allocator = Device[self.device].allocator, Device[source.device].allocator
        from_host, to_host = source.host_bytes, self.host_bytes
        if from_host is not None:
            allocator.copyin(self.memory, from_host[offset:offset + self.nbytes])
        elif to_host is not None:
            from_allocator.copyout(to_host, source.memory, offset)
        else:
            staging = memoryview(bytearray(self.nbytes))
            from_allocator.copyout(staging, source.memory, offset)
            allocator.copyin(self.memory, staging)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The items as a flat NumPy array: the memory itself where the host can touch it, else a copy. As
        long as there is such an array, kernels that use the memory are waited for."""
        if not self.is_on_host:
            return self.copied()
        self.wait_to_read()
        self.wait_to_write()
        memory = _HostMemory(self)
        root = self.root
        if root._seen is None:
            root._seen = weakref.WeakSet()
        root._seen.add(memory)
        if root.uses is not None:
            root.uses.forget_repeated()  # which are waited for from now on
        return np.asarray(memory).view(self.dtype.numpy)

    def copied(self) -> np.ndarray[Any, Any]:
        """The items as a new flat NumPy array."""
        found = np.empty(self.size, self.dtype.numpy)
        self.copyout(found.view(np.uint8).data)
        return found


class _HostMemory:
    """A buffer's bytes as NumPy takes them; an array made of it keeps the buffer, and so its memory."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"version": 3, "shape": (buffer.nbytes,), "typestr": "|u1",
                                    "data": (buffer.address, False)}


class RepeatedUse:
    """Memory that a command reads in every run: a replay of a language model that of 700 buffers."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = buffers
        self.reads = RepeatedReads()
        self.was_ready = False
        """whether the last run needed nothing that may have failed"""

    @property
    def is_ready(self) -> bool:
        """Whether nobody has written to any of the memory since a run that waited for all that had, and none
        of that may have failed: the next run of the same queue need not look at them."""
        return self.was_ready and self.reads.is_noted

    def note(self, point: TimelinePoint) -> bool:
        """As `Buffer.add_uses`, of a run at `point`. The buffers are looked at only where one may not know of
        these reads, or was exposed."""
        self.reads.point = point
        if self.reads.is_noted:
            return False
        self.reads.is_noted = True
        exposed = False
        for buffer in self.buffers:
            root = buffer.root
            if root.uses is None:
                root.uses = Uses()
            root.uses.add_repeated(self.reads)
            exposed = exposed or root.is_exposed
        if exposed:
            self.reads.is_noted = False
        return exposed
