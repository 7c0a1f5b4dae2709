"""What the tests of drivers that are not here share: host memory that drivers give out, streams that are as
late as they may be, kernels that run on the emulator; and plans that walk once for sums by place."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.codegen.opt import choose_gpu, choose_scatter
from tinygrad.device import Buffer
from tinygrad.renderer.machine import Machine
from tinygrad.runtime import emulator

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, emulator.COMPILERS)),
                                    reason="no C++ compiler on the path")
rng = np.random.default_rng(3)


def one_pass_everywhere(patch: pytest.MonkeyPatch, most_tiles: int) -> None:
    """One pass for segment sums wherever that is possible, and dump slots for up to so many tiles."""
    patch.setattr(choose_scatter, "MOST_TILES", most_tiles)
    patch.setattr(choose_scatter, "PASS_COST", 1e-9)
    patch.setattr(choose_scatter, "OUTPUT_COST", 0.0)
    patch.setattr(choose_gpu, "LEAST_OWN", 2)
    patch.setattr(choose_gpu, "MOST_OWN", 4)
    patch.setattr(Machine, "busy_threads", 1)


def emulated(kind: str, source: str) -> Any:
    """A kernel's code for the emulator."""
    return Device[f"{kind}:EMULATED"].compile(source)


class HostMemory:
    """Blocks of host memory, as a driver gives them out. Touching anything else is an error."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}

    def obtain(self, size: int) -> int:
        block = (ctypes.c_uint8 * (size + 64))()
        address = -(-ctypes.addressof(block) // 64) * 64
        self.blocks[address] = (block, size)
        return address

    def check(self, address: int, size: int) -> None:
        assert any(start <= address and address + size <= start + length
                   for start, (_, length) in self.blocks.items()), "memory that was not given out"

    def release(self, address: int) -> None:
        del self.blocks[address]


def launch(function: int, sizes: Sequence[int], values: Any) -> bool:
    """Run a kernel of the emulator on 64-bit arguments; whether it ended well."""
    pointers = values.ctypes.data + 8 * np.arange(max(len(values), 1))
    blocks, threads = (ctypes.c_uint * 3)(*sizes[:3]), (ctypes.c_uint * 3)(*sizes[3:])
    return not emulator.launch_function()(function, pointers.ctypes.data, blocks, threads)


class Mark:
    """What an event stands for since it was recorded: a place in a stream."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.seconds: float | None = None
        """when the stream got here"""


class LateStreams:
    """Streams and events of a driver that is as late as one may be: a stream does nothing before somebody
    waits for it, or for a stream or an event that waits for it. So what is asked for in a wrong order comes
    out wrong."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.pinned = HostMemory()
        self.numbers = itertools.count(1000)
        self.streams: dict[int, deque[Callable[[], None] | Mark]] = {}
        """what each has not done yet; of a mark of another stream: waiting for it"""
        self.events: dict[int, Mark | None] = {}

    def new_stream(self) -> int:
        number = next(self.numbers)
        self.streams[number] = deque()
        return number

    def run(self, stream: int, until: Mark | None = None) -> None:
        """Do what a stream has been asked for, as far as a mark, and before that what it waits for."""
        todo = self.streams[stream]
        while todo and (until is None or until.seconds is None):
            step = todo[0]
            if isinstance(step, Mark):
                self.run(step.stream, step)
                todo.popleft()
            else:
                todo.popleft()
                step()

    def give_copy(self, target: int, source: int, size: int, stream: int, into: HostMemory, out_of: HostMemory
                  ) -> None:
        def copy() -> None:
            into.check(target, size)
            out_of.check(source, size)
            ctypes.memmove(target, source, size)

        self.streams[stream].append(copy)

    def new_event(self) -> int:
        number = next(self.numbers)
        self.events[number] = None
        return number

    def record(self, event: int, stream: int) -> None:
        mark = self.events[event] = Mark(stream)
        self.streams[stream].append(lambda: setattr(mark, "seconds", time.perf_counter()))

    def is_past(self, event: int) -> bool:
        mark = self.events[event]
        return mark is None or mark.seconds is not None

    def let_wait(self, stream: int, event: int) -> None:
        mark = self.events[event]
        if mark is not None and mark.seconds is None and mark.stream != stream:
            self.streams[stream].append(mark)

    def await_event(self, event: int) -> None:
        mark = self.events[event]
        if mark is not None:
            self.run(mark.stream, mark)

    def milliseconds(self, first: int, last: int) -> float:
        marks = self.events[first], self.events[last]
        seconds = [m.seconds for m in marks if m is not None and m.seconds is not None]
        assert len(seconds) == 2, "an event that is not past has no time"
        return (seconds[1] - seconds[0]) * 1e3


def register(monkeypatch: pytest.MonkeyPatch, kind: str, module: str) -> None:
    """A kind of device that no other test has opened."""
    monkeypatch.setitem(Device.FILES, kind, module)
    monkeypatch.setattr(Device, "opened", dict(Device.opened))
    from tinygrad.codegen import compile as compiling
    monkeypatch.setattr(compiling, "_kernels", type(compiling._kernels)())


def let_go(kind: str) -> None:
    """Kernels and memory of the devices of this kind go, and nothing waits for them, while there is a
    driver."""
    from tinygrad.codegen import compile as compiling

    for name, device in Device.opened.items():
        if name.split(":")[0] == kind:
            with contextlib.suppress(RuntimeError, MemoryError):  # what failed has been looked at
                device.synchronize()
            for queue in (device.queue, device.copies):
                queue.set_done(1 << 62)  # what was refused is never reached
    compiling._kernels.clear()
    gc.collect()


def compute(device: str) -> None:
    """A little of everything, against NumPy."""
    a, b = rng.normal(size=(30, 50)).astype(np.float32), rng.normal(size=(50, 20)).astype(np.float32)
    t, u = Tensor(a, device=device), Tensor(b, device=device)
    np.testing.assert_array_equal(t.realize().numpy(), a)
    np.testing.assert_allclose((t @ u).numpy(), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((t.sum(1) + 1).numpy(), a.sum(1) + 1, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(t.realize()[3:, 7:].contiguous().numpy(), a[3:, 7:])
    np.testing.assert_array_equal(t.realize().to("CPU").to(device).numpy(), a)
    step = TinyJit(lambda x: (x * 2).sum(0).realize())
    for _ in range(4):
        x = rng.normal(size=(7, 5)).astype(np.float32)
        found = step(Tensor(x, device=device).realize()).numpy()
        np.testing.assert_allclose(found, (x * 2).sum(0), rtol=1e-5, atol=1e-5)
    Tensor.manual_seed(1)
    numbers = Tensor.rand(9, device=device).numpy()
    Tensor.manual_seed(1)
    np.testing.assert_array_equal(numbers, Tensor.rand(9, device="CPU").numpy())


def copy_there_and_back(device: str, size: int) -> None:
    """Bytes from the host into a part of memory, and out of it again."""
    allocator = Device[device].allocator
    buffer = Buffer(device, size + 8, dtypes.uint8)
    memory = buffer.memory
    given = rng.integers(0, 256, size).astype(np.uint8)
    allocator.copyin(allocator.part(memory, 8, size), given.data)
    found = np.zeros(size, np.uint8)
    allocator.copyout(found.data, memory, 8)
    np.testing.assert_array_equal(found, given)


def capture(device: str) -> int:
    """Call a captured function of several kernels a few times, whose results are read at the end; how many
    calls replayed it."""
    step = TinyJit(lambda x, y: ((x * 2).contiguous().sum(0) + y).realize())
    given = [(rng.normal(size=(7, 5)).astype(np.float32), np.float32(number)) for number in range(6)]
    found = [step(Tensor(x, device=device).realize(), Tensor([y] * 5, device=device).realize())
             for x, y in given]
    for (x, y), out in zip(given, found, strict=True):
        np.testing.assert_allclose(out.numpy(), (x * 2).sum(0) + y, rtol=1e-5, atol=1e-5)
    return len(given) - 1
