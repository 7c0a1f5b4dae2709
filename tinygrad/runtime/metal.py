"""METAL: Apple's GPUs, through the Metal framework and the Objective-C runtime (ctypes).

Kernels are MSL (`renderer/metal.py`), compiled by the framework. Memory is shared between CPU and GPU, so
the host touches it directly, once the commands that use it are done. Each kernel, and each copy that has to
come after kernels, is a command buffer of its own on one queue, which runs them in order.

A kernel's arguments are a buffer and an offset in it. Programs are called with addresses, as everywhere:
`MetalMemory` finds the buffer in which an address lies.
"""
from __future__ import annotations

import bisect
import contextlib
import ctypes
import ctypes.util
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_bool, c_char_p, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from tinygrad.device import Buffer, CompiledDevice, Device
from tinygrad.device.allocator import Allocator
from tinygrad.device.queue import DriverQueue, TimelinePoint, raise_failures
from tinygrad.helpers import numbered
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.metal import metal_renderer

FRAMEWORK = "/System/Library/Frameworks/Metal.framework/Metal"
STORAGE_SHARED = 0
"""MTLResourceStorageModeShared: one memory for CPU and GPU."""
COMPLETED, FAILED = 4, 5
"""Of MTLCommandBufferStatus."""


class MTLSize(ctypes.Structure):
    """MTLSize."""

    _fields_ = (("width", c_uint64), ("height", c_uint64), ("depth", c_uint64))


class ObjectiveC:
    """The Objective-C runtime: sends messages to objects, which are addresses here."""

    def __init__(self) -> None:
        self.runtime = ctypes.CDLL(ctypes.util.find_library("objc"))
        self.runtime.sel_registerName.restype = c_void_p
        self.runtime.sel_registerName.argtypes = (c_char_p,)
        self.runtime.objc_getClass.restype = c_void_p
        self.runtime.objc_getClass.argtypes = (c_char_p,)
        self.runtime.objc_autoreleasePoolPush.restype = c_void_p
        self.runtime.objc_autoreleasePoolPop.argtypes = (c_void_p,)
        self.address = ctypes.cast(self.runtime.objc_msgSend, c_void_p).value or 0

    @contextlib.contextmanager
    def pool(self) -> Iterator[None]:
        """Objects that messages return inside live as long as this, unless they are retained."""
        pool = self.runtime.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self.runtime.objc_autoreleasePoolPop(pool)

    @staticmethod
    def kind_of(argument: Any) -> Any:
        """The C type as which an argument is passed."""
        if isinstance(argument, bool):
            return c_bool
        if isinstance(argument, int):
            return c_uint64
        return type(argument) if isinstance(argument, MTLSize | c_char_p) else c_void_p

    def class_named(self, name: str) -> int:
        return int(self.runtime.objc_getClass(name.encode()))

    def send(self, target: int, message: str, *arguments: Any, returns: Any = c_void_p) -> Any:
        """Send `message`, named as in Objective-C (`setBuffer:offset:atIndex:`). Python's integers are
        addresses or 64-bit numbers."""
        kinds = [self.kind_of(argument) for argument in arguments]
        function = ctypes.CFUNCTYPE(returns, c_void_p, c_void_p, *kinds)(self.address)
        return function(target, self.runtime.sel_registerName(message.encode()), *arguments)


@cache
def objective_c() -> ObjectiveC:
    """The runtime of this process."""
    return ObjectiveC()


def send(target: int, message: str, *arguments: Any, returns: Any = c_void_p) -> Any:
    """As `ObjectiveC.send`."""
    return objective_c().send(target, message, *arguments, returns=returns)


def string(text: str) -> int:
    """An NSString."""
    return int(send(objective_c().class_named("NSString"), "stringWithUTF8String:",
                    c_char_p(text.encode())))


def words_of(error: c_void_p) -> str:
    """What an NSError says."""
    if not error.value:
        return "no words for it"
    return str(send(send(error.value, "localizedDescription"), "UTF8String", returns=c_char_p).decode())


class MetalMemory:
    """The buffers of a device by the addresses of their first bytes."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.buffers: dict[int, tuple[int, int]] = {}
        """address: (buffer, bytes)"""

    def add(self, address: int, buffer: int, size: int) -> None:
        bisect.insort(self.starts, address)
        self.buffers[address] = (buffer, size)

    def remove(self, address: int) -> int:
        """Forget the buffer at an address; returns it."""
        self.starts.remove(address)
        return self.buffers.pop(address)[0]

    def find(self, address: int) -> tuple[int, int]:
        """The buffer in which an address lies, and the offset there. Raises RuntimeError where there is
        none."""
        position = bisect.bisect_right(self.starts, address) - 1
        if position >= 0:
            start = self.starts[position]
            buffer, size = self.buffers[start]
            if address < start + size:
                return buffer, address - start
        raise RuntimeError(f"no Metal buffer has memory at {address:#x}")


class Submitted:
    """A command buffer that was committed."""

    def __init__(self, commands: int) -> None:
        send(commands, "retain")
        self.commands = commands
        self.release = objective_c().send

    @property
    def has_ended(self) -> bool:
        """Whether it has run, well or not."""
        return bool(send(self.commands, "status", returns=c_uint64) >= COMPLETED)

    def wait(self) -> None:
        """Return when it has run."""
        send(self.commands, "waitUntilCompleted", returns=None)

    def check(self) -> None:
        """Raise RuntimeError with Metal's words where it failed."""
        if send(self.commands, "status", returns=c_uint64) == FAILED:
            error = c_void_p(send(self.commands, "error"))
            raise RuntimeError(f"a command on the GPU failed: {words_of(error)}")

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.release(self.commands, "release", returns=None)


class MetalQueue(DriverQueue):
    """The GPU, the queue of its commands, and its memory."""

    def __init__(self, name: str, device: int) -> None:
        super().__init__(name, self.await_all)
        self.device = device
        self.commands = int(send(device, "newCommandQueue"))
        self.memory = MetalMemory()
        self.submitted: deque[Submitted] = deque()
        """command buffers that may not have run yet"""

    @contextlib.contextmanager
    def encoder(self, kind: str) -> Iterator[int]:
        """An encoder of this kind; what it was told is submitted afterwards."""
        with objective_c().pool():
            commands = send(self.commands, "commandBuffer")
            encoder = send(commands, kind)
            yield encoder
            send(encoder, "endEncoding", returns=None)
            send(commands, "commit", returns=None)
            self.submitted.append(Submitted(commands))
        self.forget_done()

    def forget_done(self) -> None:
        """Let go of command buffers that have run. Raises, once, what one of them did wrong."""
        while self.submitted and self.submitted[0].has_ended:
            self.submitted.popleft().check()

    def run(self, pipeline: int, buffers: Sequence[tuple[int, int]], numbers: Sequence[int],
            launch: Launch) -> None:
        """Submit a kernel with (buffer, offset) arguments, then 64-bit numbers."""
        with self.encoder("computeCommandEncoder") as encoder:
            send(encoder, "setComputePipelineState:", pipeline, returns=None)
            for position, (buffer, offset) in enumerate(buffers):
                send(encoder, "setBuffer:offset:atIndex:", buffer, offset, position, returns=None)
            for position, number in enumerate(numbers, len(buffers)):
                data = struct.pack("q", number)
                send(encoder, "setBytes:length:atIndex:", c_char_p(data), len(data), position, returns=None)
            send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:",
                 MTLSize(*launch.blocks), MTLSize(*launch.threads), returns=None)

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        """Without waiting, where the memory copied to is of this GPU and that copied from is too, or the
        host's: that is copied twice, now and in its turn, except where its turn is now."""
        raise_failures(sources)
        if not target.nbytes:
            return None
        from_host = source.host_bytes
        waits = not self.has_passed(self.given)
        if self.has(target) and self.has(source):
            self.blit(self.memory.find(source.memory + offset), target)
        elif self.has(target) and from_host is not None and waits:
            given = np.frombuffer(from_host, np.uint8)[offset:offset + target.nbytes]
            staged = send(self.device, "newBufferWithBytes:length:options:", given.ctypes.data, given.size,
                          STORAGE_SHARED)
            self.blit((staged, 0), target)
            send(staged, "release", returns=None)  # the commands keep it until they have run
        else:
            source.wait_to_read()
            target.wait_to_write()
            target.fill_from(source, offset)
            return None
        return self.next_point()

    def has(self, buffer: Buffer) -> bool:
        """Whether a buffer's memory is of this GPU."""
        allocator = Device[buffer.device].allocator
        return isinstance(allocator, MetalAllocator) and allocator.commands is self

    def blit(self, source: tuple[int, int], target: Buffer) -> None:
        """Submit a copy between Metal's buffers."""
        buffer, position = self.memory.find(target.memory)
        with self.encoder("blitCommandEncoder") as encoder:
            send(encoder, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", *source, buffer,
                 position, target.nbytes, returns=None)

    def next_point(self, kept: object = None) -> TimelinePoint:
        """As `DriverQueue` says; every command has a mark already."""
        with self.lock:
            point = super().next_point(kept)
            if self.submitted:
                self.marks.append((point.value, self.submitted[-1]))
            self.has_passed(self.marks[0][0] if self.marks else 0)
            return point

    def mark(self) -> Submitted | None:
        return self.submitted[-1] if self.submitted else None

    def is_reached(self, mark: Submitted | None) -> bool:
        self.forget_done()
        return mark is None or mark.has_ended

    def await_mark(self, mark: Submitted | None) -> None:
        if mark is not None:
            mark.wait()
        self.forget_done()

    def await_all(self) -> None:
        self.await_mark(self.mark())


class MetalAllocator(Allocator):
    """Memory that CPU and GPU share. Memory is named by its address."""

    def __init__(self, device: str, commands: MetalQueue) -> None:
        super().__init__(device)
        self.commands = commands

    def _obtain(self, size: int) -> int:
        buffer = send(self.commands.device, "newBufferWithLength:options:", size, STORAGE_SHARED)
        if not buffer:
            raise MemoryError(f"Metal has no {size:,} bytes left")
        address = int(send(buffer, "contents"))
        self.commands.memory.add(address, buffer, size)
        return address

    def _return(self, memory: int, size: int) -> None:
        send(self.commands.memory.remove(memory), "release", returns=None)

    def address(self, memory: int) -> int:
        return memory

    def part(self, memory: int, offset: int, size: int) -> int:
        return memory + offset

    def copyin(self, memory: int, source: memoryview) -> None:
        ctypes.memmove(memory, np.frombuffer(source, np.uint8).ctypes.data, source.nbytes)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        ctypes.memmove(np.frombuffer(target, np.uint8).ctypes.data, memory + offset, target.nbytes)


class MetalProgram:
    """A loaded kernel."""

    def __init__(self, name: str, library: int, launch: Launch, queue: MetalQueue) -> None:
        self.launch = launch
        self.queue = queue
        error = c_void_p()
        with objective_c().pool():
            function = send(library, "newFunctionWithName:", string(name))
            self.pipeline = send(queue.device, "newComputePipelineStateWithFunction:error:", function,
                                 ctypes.byref(error))
            if not self.pipeline:
                raise RuntimeError(f"Metal makes no pipeline of kernel {name}: {words_of(error)}")

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        buffers = [self.queue.memory.find(addresses[slot]) for slot in self.launch.slots]
        self.queue.run(self.pipeline, buffers, variables, self.launch)


class MetalDevice(CompiledDevice):
    """An Apple GPU."""

    def __init__(self, name: str, device: int) -> None:
        commands = MetalQueue(name, device)
        super().__init__(name, MetalAllocator(name, commands), metal_renderer())
        self.queue = self.copies = self.commands = commands

    @property
    def compiler(self) -> str:
        name = send(send(self.commands.device, "name"), "UTF8String", returns=c_char_p)
        return f"Metal for {name.decode()}"

    def compile(self, source: str) -> int:
        """A library. Raises RuntimeError with the compiler's words and the source."""
        error = c_void_p()
        with objective_c().pool():
            options = send(send(objective_c().class_named("MTLCompileOptions"), "alloc"), "init")
            send(options, "setFastMathEnabled:", False, returns=None)
            library = send(self.commands.device, "newLibraryWithSource:options:error:", string(source),
                           options, ctypes.byref(error))
            send(options, "release", returns=None)
            if not library:
                said = f"Metal does not accept this kernel:\n{words_of(error)}\n{numbered(source)}"
                raise RuntimeError(said)
            return int(library)

    def load_blocks(self, name: str, code: int, launch: Launch) -> MetalProgram:
        return MetalProgram(name, code, launch, self.commands)


def open_device(name: str) -> MetalDevice:
    """The GPU of a Mac. Raises OSError on other machines."""
    if sys.platform != "darwin":
        raise OSError("METAL needs macOS and an Apple GPU; elsewhere METAL:EMULATED runs the same kernels")
    framework = ctypes.CDLL(FRAMEWORK)
    framework.MTLCreateSystemDefaultDevice.restype = c_void_p
    found = framework.MTLCreateSystemDefaultDevice()
    if not found:
        raise OSError("Metal finds no GPU on this machine")
    return MetalDevice(name, int(found))
