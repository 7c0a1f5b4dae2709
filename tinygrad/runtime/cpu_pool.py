"""Threads that run kernels: the pool, a kernel to call, and lists of kernels that run in one native call.

The native code is `cpu_threads.py` (workers, launching), `cpu_times.py` (what lists took) and
`native_queue.py` (queues), compiled once.
"""
from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tinygrad.device.allocator import ALIGNMENT, host_memory
from tinygrad.device.queue import Numbers, TimelinePoint, stop_all
from tinygrad.helpers import ceildiv, getenv
from tinygrad.observer import Observer
from tinygrad.runtime import cpu_threads, cpu_times, native_queue
from tinygrad.runtime.cpu_threads import (
    BOUND,
    ENTRY_SLOTS,
    LAUNCHED,
    LEFT,
    MAX_THREADS,
    MOST_PROCESSORS,
    SCRATCH,
    STATE_SLOTS,
    THREADS,
    WORKER,
)
from tinygrad.runtime.cpu_times import ListTimes
from tinygrad.runtime.llvm import compile_ir

SCRATCH_IN_LARGE_PAGES = 64 << 10
"""Bytes of scratch memory from which on a thread's panels lie in a large page."""
CHUNKS_A_THREAD = 4
"""Pieces of a kernel for each thread: a thread that loses its core leaves the rest to the others."""
MOST_SIZES = 16
"""Of a chunk that are compared: of more than so many iterations a few are nothing."""


@lru_cache(maxsize=1 << 12)
def even_chunk(extent: int, threads: int) -> int:
    """How many of so many iterations a thread takes at a time: about `CHUNKS_A_THREAD` chunks for each, of
    the size with which the last to end ends first (10 iterations by two threads: one at a time, for two at a
    time are 6 and 4)."""
    if threads == 1:
        return max(1, extent)

    def longest(size: int) -> int:
        whole, rest = divmod(extent, size)
        rounds = ceildiv(whole + (rest > 0), threads)
        is_last_alone = rest > 0 and whole % threads == 0
        return rounds * size - (size - rest) * is_last_alone

    most = max(1, ceildiv(extent, threads * CHUNKS_A_THREAD))
    return min(range(most, max(0, most - MOST_SIZES), -1), key=longest)


def thread_count() -> int:
    """Threads that share a kernel: the cores this process may use, or the environment's THREADS."""
    asked = int(getenv("THREADS", 0))
    if asked:
        return max(1, min(asked, MAX_THREADS))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


class NativeThreads:
    """The native code of pool and queues, as functions to call. Each lets the interpreter go."""

    def __init__(self) -> None:
        self.code = compile_ir(cpu_threads.source() + cpu_times.source() + native_queue.source(),
                               is_quick=True)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.launch = self._function("launch_here", None, pointer)
        self.run_list = self._function("run_list_here", None, pointer, pointer, integer, pointer)
        self.worker = self._function("worker", None, pointer, integer)
        self.stop_workers = self._function("stop_workers", None, pointer)
        self.serve = self._function("serve", None, pointer, pointer, integer)
        self.push = self._function("push", None, pointer, pointer)
        self.set_value = self._function("set_value", None, pointer, integer)
        self.await_value = self._function("await_value", integer, pointer, integer, integer)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self.code.address(name))


_native: NativeThreads | None = None
_native_lock = threading.Lock()


def native() -> NativeThreads:
    """The native code, compiled at the first call. It is there once: threads live in it."""
    global _native
    if _native is None:
        with _native_lock:
            if _native is None:
                _native = NativeThreads()
    return _native


def aligned_words(count: int) -> np.ndarray[Any, Any]:
    """So many zeroed words of 8 bytes, from a cache line's beginning on."""
    block = np.zeros(count + ALIGNMENT // 8, np.int64)
    start = -block.ctypes.data % ALIGNMENT // 8
    return block[start:start + count]


class ThreadPool:
    """The threads that wait in native code for kernels, and their memory."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.slots = aligned_words(STATE_SLOTS)
        self.slots[THREADS] = threads
        self.state_address = self.slots.ctypes.data
        self.launched = ctypes.c_int64.from_address(self.state_address + 8 * LAUNCHED)
        """how often kernels were started from Python, counted in native code: so an interrupt cannot come
        between"""
        self.scratch: list[np.ndarray[Any, Any]] = []
        self.scratch_bytes = 0
        self.lock = threading.Lock()
        """held while the scratch memory grows"""
        self.workers = [threading.Thread(target=native().worker, args=(self.state_address, i), daemon=True,
                                         name=f"tinygrad-cpu-{i}") for i in range(1, threads)]
        for thread in self.workers:
            thread.start()
        self._bind_workers()

    def _bind_workers(self) -> None:
        """Bind a worker to each processor but one, if each has a thread: `cpu_threads` says why."""
        self.slots[LEFT] = -1
        self.slots[BOUND:BOUND + MAX_THREADS] = -1
        processors = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
        if len(processors) != self.threads or processors[-1] >= MOST_PROCESSORS:
            return
        with suppress(PermissionError):  # in a sandbox, say
            for i, (thread, processor) in enumerate(zip(self.workers, processors[1:], strict=True), 1):
                assert thread.native_id is not None
                os.sched_setaffinity(thread.native_id, {processor})
                self.slots[WORKER + i] = thread.native_id
                self.slots[BOUND + i] = processor
            self.slots[LEFT] = processors[0]

    def stop(self) -> None:
        """End the workers; their code is about to go."""
        native().stop_workers(self.state_address)
        for thread in self.workers:
            thread.join(timeout=1.0)

    def need_scratch(self, size: int) -> None:
        """Give every thread at least `size` bytes of scratch memory. What they had stays, for kernels that
        run now; it at least doubles, so all of it is less than twice the largest."""
        if size <= self.scratch_bytes:
            return
        with self.lock:
            size = max(size, 2 * self.scratch_bytes)
            for i in range(self.threads):
                memory = host_memory(size, least=SCRATCH_IN_LARGE_PAGES)
                self.scratch.append(memory)
                self.slots[SCRATCH + i] = memory.ctypes.data
            self.scratch_bytes = size

    def chunk_of(self, extent: int) -> int:
        """Iterations that a thread takes at a time."""
        return even_chunk(extent, self.threads)


_pool: ThreadPool | None = None
_pool_lock = threading.Lock()


def pool() -> ThreadPool:
    """The process's threads, started at the first use."""
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = ThreadPool(thread_count())
    return _pool


def _forget_pool() -> None:
    """In a forked child the workers do not exist; the next kernel starts others."""
    global _pool, _pool_lock, _native_lock
    _pool = None
    _pool_lock = threading.Lock()
    _native_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


@atexit.register
def _stop_threads() -> None:
    """End all threads in native code, after what they were given."""
    stop_all()
    if _pool is not None:
        _pool.stop()


# --- kernels ------------------------------------------------------------------------------------------------


class NativeCode(Protocol):
    """Machine code in memory."""

    def address(self, name: str) -> int:
        """Where the function `name` begins."""


class CPUProgram:
    """A loaded kernel."""

    def __init__(self, name: str, compiled: NativeCode, scratch: int) -> None:
        self.name = name
        self.compiled = compiled
        self.scratch = scratch
        self.function = compiled.address(name)

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        threads = _pool or pool()
        if self.scratch > threads.scratch_bytes:
            threads.need_scratch(self.scratch)
        call = array("q", [threads.state_address, self.function, extent, even_chunk(extent, threads.threads),
                           len(addresses), *addresses, *variables])
        (_native or native()).launch(call.buffer_info()[0])


CPUCall = tuple[CPUProgram, Sequence[int], Sequence[int], int]
"""A kernel, its buffers' addresses, its variables' values, its extent."""
MOST_FRAMES = 4
"""Runs of one list that may be in flight."""


class Frame:
    """The arguments of one run of a list, and the entries that point to them."""

    def __init__(self, arguments: Sequence[int], entries: np.ndarray[Any, Any]) -> None:
        self.arguments = np.array(arguments, np.int64)
        self.words = self.arguments.data
        self.entries = entries.copy()
        self.entries[:, 1:3] = self.entries[:, 1:3] * 8 + self.arguments.ctypes.data
        self.address = self.entries.ctypes.data
        self.point: TimelinePoint | None = None
        """after the run that reads them"""

    def change(self, places: Numbers, values: Numbers) -> None:
        """Give the arguments of these numbers other values."""
        if isinstance(places, list):
            words = self.words
            for place, value in zip(places, values):
                words[place] = value
        elif len(places):
            self.arguments[places] = values


class KernelList:
    """Kernels that run one after another in one native call.

    Their arguments have numbers: those of call `k` begin at `starts[k]`, first the addresses, then the
    variables.
    """

    def __init__(self, calls: Sequence[CPUCall]) -> None:
        threads = pool()
        self.programs = [program for program, *_ in calls]
        self.scratch = max((p.scratch for p in self.programs), default=0)
        self.starts: list[int] = []
        self.given: list[int] = []
        self.entries = np.zeros((len(calls), ENTRY_SLOTS), np.int64)
        for i, (program, addresses, values, extent) in enumerate(calls):
            start = len(self.given)
            self.starts.append(start)
            self.given.extend([*addresses, *values])
            self.entries[i] = (program.function, start, start + len(addresses), extent,
                               threads.chunk_of(extent))
        self.frames = [Frame(self.given, self.entries)]
        self.sites: Any = ()
        """what an observer is told of them (`observer.py`)"""
        self.times: ListTimes | None = None
        """what the runs took that an observer watched"""
        self.watcher: object = None
        """the key of that"""

    def __len__(self) -> int:
        return len(self.programs)

    def free_frame(self) -> Frame:
        """Arguments that no run in flight reads; waits where too many are."""
        for frame in self.frames:
            if frame.point is None or frame.point.is_past:
                frame.point = None
                return frame
        if len(self.frames) < MOST_FRAMES:
            self.frames.append(Frame(self.given, self.entries))
            return self.frames[-1]
        oldest = min(self.frames, key=lambda f: f.point.value if f.point is not None else 0)
        if oldest.point is not None:
            oldest.point.queue.await_value(oldest.point.value)
        return oldest

    def watch(self, watcher: Observer, device: str) -> ListTimes:
        """Let an observer know, from now on, what runs take."""
        self.times = ListTimes(len(self))
        self.watcher = watcher.key
        watcher.list_watched(self, device)
        return self.times

    def run(self, frame: Frame, times_address: int = 0) -> None:
        """Run the kernels on a frame's arguments, here and now, counted where a `ListTimes` says."""
        threads = pool()  # after a fork not the one that the list was made with
        threads.need_scratch(self.scratch)
        native().run_list(threads.state_address, frame.address, len(self), times_address)

    def __call__(self) -> None:
        self.run(self.free_frame())
