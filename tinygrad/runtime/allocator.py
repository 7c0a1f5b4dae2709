"""Memory of a device: taken from the system, kept in a cache when it is freed, taken again from there.

Fresh pages are expensive: 64 MB cost 16 ms in page faults, five times what a kernel needs to write them.
Freed memory that commands still use is in the cache too, with the points at which they end.
"""
from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad.helpers import GlobalCounters, round_up
from tinygrad.runtime.queue import CommandQueue, Point, Uses

ALIGNMENT = 64
PAGE_BYTES = 2 << 20
"""A large page: one look-up of where it lies, and one fault, in place of 512."""
HINTED_BYTES = 4 << 20
"""From which size on NumPy asks Linux for large pages."""
MOST_IN_USE = 8
"""Freed blocks of one size that commands may still use before the host waits for one of them."""
LEAST_CACHE = 1 << 26
"""Bytes of freed memory that are always worth keeping."""
_counting = threading.RLock()
"""Held while the counters of memory change."""


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


class Allocator:
    """Memory of one device, with a cache of what was freed, by size.

    A device gives `_obtain` and `_return`; both see sizes in bytes, rounded up to the alignment.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.queue: CommandQueue | None = None
        """in whose order `copyin` and `copyout` happen, if they go through one"""
        self.cached: dict[int, list[Any]] = {}
        self.cached_bytes = 0
        self.in_use: dict[int, list[Point]] = {}
        """by address of cached memory: what still uses it"""
        self.lock = threading.RLock()  # the collector may free a buffer while this thread holds it
        _allocators.add(self)

    def allocate(self, size: int, idle: bool = False) -> Any:
        """Memory of at least `size` bytes; with `idle` such that no command still uses. Raises MemoryError
        with what is used and cached where there is none."""
        rounded = round_up(size or 1, ALIGNMENT)
        with self.lock:
            free = self.cached.get(rounded)
            memory = self._take(free, idle) if free else None
            if memory is not None:
                self.cached_bytes -= rounded
        if memory is None:
            try:
                memory = self._obtain(rounded)
            except MemoryError:
                self.await_uses()
                cached = self.cached_bytes
                self.free_cache()
                memory = self._obtain_or_explain(rounded, cached)
        with _counting:
            used = GlobalCounters.mem_used = GlobalCounters.mem_used + size
            if used > GlobalCounters.mem_peak:
                GlobalCounters.mem_peak = used
        return memory

    def _take(self, free: list[Any], idle: bool) -> Any:
        """Of some blocks the one that was freed last, and is not used if that matters; None where there is
        none, and not enough that soon will be."""
        if not (idle and self.in_use):
            return free.pop()
        for number in reversed(range(len(free))):
            if all(point.is_past for point in self.in_use.get(self.address(free[number]), ())):
                return free.pop(number)
        return free.pop(0) if len(free) >= MOST_IN_USE else None

    def await_uses(self) -> None:
        """Wait until no command uses what is cached."""
        for points in list(self.in_use.values()):
            for point in points:
                point.queue.await_value(point.value)

    def _obtain_or_explain(self, rounded: int, cached: int) -> Any:
        try:
            return self._obtain(rounded)
        except MemoryError:
            raise MemoryError(f"{self.device} has no {rounded:,} bytes left: {GlobalCounters.mem_used:,} are "
                              f"used and {cached:,} cached (given back before the last attempt)") from None

    def uses_of(self, memory: Any) -> Uses | None:
        """The commands that still use memory which came from the cache, for its next owner to mind."""
        if not self.in_use:
            return None
        with self.lock:
            points = self.in_use.pop(self.address(memory), None)
        return Uses(points) if points else None

    def free_in_use(self, memory: Any, size: int, points: list[Point]) -> None:
        """As `free`, of memory that commands still use."""
        with self.lock:
            self.in_use[self.address(memory)] = points
            self.free(memory, size)

    def free(self, memory: Any, size: int) -> None:
        """Take memory back, into the cache. That holds no more than was ever used at once (and
        `LEAST_CACHE`): what was freed longest ago goes back to the system."""
        rounded = round_up(size or 1, ALIGNMENT)
        with _counting:
            GlobalCounters.mem_used -= size
        with self.lock:
            blocks = self.cached.pop(rounded, None) or []
            blocks.append(memory)
            self.cached[rounded] = blocks  # the size used last comes last
            self.cached_bytes += rounded
            while self.cached_bytes > LEAST_CACHE and self.cached_bytes > GlobalCounters.mem_peak:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Give a block of the size that was freed longest ago back to the system."""
        size = next(iter(self.cached))
        blocks = self.cached[size]
        if blocks:
            self.cached_bytes -= size
            self._give_back(blocks.pop(), size)
        if not blocks:
            del self.cached[size]

    def free_cache(self) -> None:
        """Give all cached memory back to the system."""
        with self.lock:
            while self.cached:
                size, blocks = self.cached.popitem()
                for memory in blocks:
                    self.cached_bytes -= size
                    self._give_back(memory, size)

    def _give_back(self, memory: Any, size: int) -> None:
        uses = self.uses_of(memory)
        unused = _Unused(self, memory, size)
        for point in uses.reads if uses is not None else ():
            point.queue.keep(point.value, unused)

    def _obtain(self, size: int) -> Any:
        raise NotImplementedError

    def _return(self, memory: Any, size: int) -> None:
        """Give `memory`, which nobody uses any more, back to the system."""

    def address(self, memory: Any) -> int:
        """Where `memory` begins, as kernels are told."""
        raise NotImplementedError

    def copyin(self, memory: Any, source: memoryview) -> None:
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


_allocators: weakref.WeakSet[Allocator] = weakref.WeakSet()


def _free_locks() -> None:
    """In a forked child: what threads of the parent held, nobody would let go of here."""
    global _counting
    _counting = threading.RLock()
    for allocator in list(_allocators):
        allocator.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class _Unused:
    """Memory that goes back to the system when no queue keeps this any more."""

    def __init__(self, allocator: Allocator, memory: Any, size: int) -> None:
        self.given = allocator, memory, size

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            allocator, memory, size = self.given
            allocator._return(memory, size)
