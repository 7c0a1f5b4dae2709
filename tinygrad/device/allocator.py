"""Memory of a device: taken from the system, kept in a cache when it is freed, taken again from there.

Fresh pages are expensive: 64 MB cost 16 ms in page faults, five times what a kernel needs to write them.
Freed memory that commands still use is in the cache too, with the points at which they end.

An interrupt (Ctrl-C) can come wherever Python calls something. So what belongs together, memory that changes
hands and the counters that say so, changes in lines that call nothing.
"""
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.device.queue import CommandQueue, TimelinePoint, Uses
from tinygrad.helpers import GlobalCounters, round_up

ALIGNMENT = 64
PAGE_BYTES = 2 << 20
"""A large page: one look-up of where it lies, and one fault, in place of 512."""
HINTED_BYTES = 4 << 20
"""From which size on NumPy asks Linux for large pages."""
MOST_IN_USE = 8
"""Freed blocks of one size that commands may still use before the host waits for one of them."""
LEAST_CACHE = 1 << 26
"""Bytes of freed memory that are always worth keeping."""
_lock = threading.RLock()
"""Held while memory changes hands. One for all devices: the collector may free a buffer of any of them while
a thread holds it."""


def host_memory(size: int, least: int = PAGE_BYTES) -> np.ndarray[Any, Any]:
    """`size` bytes of the host, from a cache line's beginning on; from `least` bytes on, from a large page's.

    What lies in small pages costs a look-up for each of them: a matmul that walks several rows and a panel
    at once runs out of those that a core remembers (matmuls of 512 to 1024 gained 5%).
    """
    alignment = ALIGNMENT if size < least else PAGE_BYTES
    room = size + alignment
    block = np.empty(room if size < least else max(room, HINTED_BYTES), np.uint8)
    start = -block.ctypes.data % alignment
    return block[start:start + size]


class Owner:
    """What memory is given to, and taken from."""

    __slots__ = ("_memory", "uses")
    uses: Uses | None
    """the commands in flight that use the memory"""
    _memory: Any


class Allocator:
    """Memory of one device, with a cache of what was freed, by size.

    A device gives `_obtain` and `_return`; both see sizes in bytes, rounded up to the alignment.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.queue: CommandQueue | None = None
        """in whose order `copyin` and `copyout` happen, if they go through one"""
        self.cached: dict[int, list[tuple[Any, Uses | None]]] = {}
        """by size: memory, and what still uses it"""
        self.cached_bytes = 0

    def allocate(self, owner: Owner, size: int, idle: bool = False) -> None:
        """Give `owner` memory of at least `size` bytes, and the commands that still use it; with `idle` such
        that none does. Raises MemoryError with what is used and cached where there is none."""
        rounded = round_up(size or 1, ALIGNMENT)
        free = self.cached.get(rounded)
        if free and self._take(owner, size, rounded, free, idle):
            return
        try:
            memory = self._obtain(rounded)
        except MemoryError:
            self.await_uses()
            cached = self.cached_bytes
            self.free_cache()
            memory = self._obtain_or_explain(rounded, cached)
        with _lock:
            owner._memory = memory
            GlobalCounters.mem_used += size
            if GlobalCounters.mem_used > GlobalCounters.mem_peak:
                GlobalCounters.mem_peak = GlobalCounters.mem_used

    def _take(self, owner: Owner, size: int, rounded: int, free: list[tuple[Any, Uses | None]], idle: bool
              ) -> bool:
        """Give `owner` one of the `free` blocks of that size; whether there is one."""
        with _lock:
            number = self._first_idle(free) if idle else -1
            if number is None or -number > len(free):  # which the collector may have changed meanwhile
                return False
            memory, uses = free[number]
            del free[number]
            self.cached_bytes -= rounded
            owner._memory = memory
            owner.uses = uses
            GlobalCounters.mem_used += size
            if GlobalCounters.mem_used > GlobalCounters.mem_peak:
                GlobalCounters.mem_peak = GlobalCounters.mem_used
            return True

    @staticmethod
    def _first_idle(free: list[tuple[Any, Uses | None]]) -> int | None:
        """Counted from the end, which of some blocks is the one freed last that no command uses; None where
        there is none, and not enough that soon will be."""
        for number, (_, uses) in enumerate(reversed(free), 1):
            if uses is None or not uses.before_writing():
                return -number
        return -len(free) if len(free) >= MOST_IN_USE else None

    def await_uses(self) -> None:
        """Wait until no command uses what is cached."""
        for blocks in list(self.cached.values()):
            for point in [p for _, uses in blocks if uses is not None for p in uses.before_writing()]:
                point.queue.await_value(point.value)

    def _obtain_or_explain(self, rounded: int, cached: int) -> Any:
        try:
            return self._obtain(rounded)
        except MemoryError:
            raise MemoryError(f"{self.device} has no {rounded:,} bytes left: {GlobalCounters.mem_used:,} are "
                              f"used and {cached:,} cached (given back before the last attempt)") from None

    def free(self, owner: Owner, size: int, points: Sequence[TimelinePoint] = ()) -> None:
        """Take an owner's memory back, which commands use up to these points, into the cache. That holds no
        more than was ever used at once (and `LEAST_CACHE`): what was freed longest ago goes back to the
        system. Takes nothing from who has none, so it may be called again after an interrupt."""
        rounded = round_up(size or 1, ALIGNMENT)
        with _lock:
            if owner._memory is not None:
                self._put(owner, size, rounded, points)
            while self.cached_bytes > LEAST_CACHE and self.cached_bytes > GlobalCounters.mem_peak:
                self._drop_oldest()

    def _put(self, owner: Owner, size: int, rounded: int, points: Sequence[TimelinePoint]) -> None:
        """Take an owner's memory into the cache; with the lock held."""
        block = ((owner._memory, Uses(points) if points else None),)
        blocks = self.cached.setdefault(rounded, [])
        if rounded in self.cached:
            del self.cached[rounded]
        self.cached[rounded] = blocks  # the size used last comes last
        blocks += block
        self.cached_bytes += rounded
        owner._memory = None
        GlobalCounters.mem_used -= size

    def _drop_oldest(self) -> None:
        """Give a block of the size that was freed longest ago back to the system."""
        size = next(iter(self.cached))
        blocks = self.cached[size]
        if blocks:
            memory, uses = blocks[-1]
            del blocks[-1]
            self.cached_bytes -= size
            self._give_back(memory, size, uses)
        if not blocks and self.cached.get(size) is blocks:
            del self.cached[size]

    def free_cache(self) -> None:
        """Give all cached memory back to the system."""
        with _lock:
            while self.cached:
                self._drop_oldest()

    def _give_back(self, memory: Any, size: int, uses: Uses | None) -> None:
        unused = _Unused(self, memory, size)
        for point in uses.before_writing() if uses is not None else ():
            point.queue.keep(point.value, unused)

    def _obtain(self, size: int) -> Any:
        """New memory of `size` bytes, or what stands for it here. Raises MemoryError where there is none."""
        raise NotImplementedError

    def _return(self, memory: Any, size: int) -> None:
        """Give `memory`, which nobody uses any more, back to the system."""

    def address(self, memory: Any) -> int:
        """Where `memory` begins, as kernels are told."""
        raise NotImplementedError

    def copyin(self, memory: Any, source: memoryview) -> None:
        """Fill the beginning of `memory` from the bytes of `source`."""
        raise NotImplementedError

    def copyout(self, target: memoryview, memory: Any, offset: int = 0) -> None:
        """Fill `target` from the bytes of `memory` that begin at `offset`."""
        raise NotImplementedError

    def share(self, array: np.ndarray[Any, Any]) -> Any:
        """Memory that is the array's own, where the device can work on that; else None."""
        return None

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """`size` bytes of `memory` from `offset` on, as memory of its own; None where that is not
        possible."""
        return None

    def as_bytes(self, memory: Any, size: int) -> memoryview | None:
        """The memory itself, where the host can touch it; else None."""
        return None


def _free_lock() -> None:
    """In a forked child: what a thread of the parent held, nobody would let go of here."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock)


class _Unused:
    """Memory that goes back to the system when no queue keeps this any more."""

    def __init__(self, allocator: Allocator, memory: Any, size: int) -> None:
        self.given = allocator, memory, size

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            allocator, memory, size = self.given
            allocator._return(memory, size)
