"""METAL: Apple's GPUs, through the Metal framework and the Objective-C runtime (ctypes).

Kernels are MSL (`renderer/metal.py`), compiled by the framework. Memory is shared between CPU and GPU, so
the host touches it directly, once the kernels that were asked for before have run. Each kernel is a command
buffer of its own on one queue, which runs them in order.

A kernel's arguments are a buffer and an offset in it. Programs are called with addresses, as everywhere:
`Memory` finds the buffer in which an address lies.
"""
from __future__ import annotations

import bisect
import contextlib
import ctypes
import ctypes.util
import struct
import sys
from collections.abc import Iterator, Sequence
from ctypes import c_bool, c_char_p, c_uint64, c_void_p
from functools import cache
from typing import Any

from tinygrad.device import CompiledDevice, numbered
from tinygrad.renderer import Launch
from tinygrad.renderer.metal import metal_renderer
from tinygrad.runtime.allocator import Allocator
from tinygrad.runtime.queue import CommandQueue

FRAMEWORK = "/System/Library/Frameworks/Metal.framework/Metal"
STORAGE_SHARED = 0
"""MTLResourceStorageModeShared: one memory for CPU and GPU."""


class Size(ctypes.Structure):
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
        return type(argument) if isinstance(argument, Size | c_char_p) else c_void_p

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


class Memory:
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


class Queue:
    """The GPU, the queue of its commands, and its memory."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.queue = int(send(device, "newCommandQueue"))
        self.memory = Memory()
        self.last = 0
        """the command buffer submitted last"""

    def run(self, pipeline: int, buffers: Sequence[tuple[int, int]], numbers: Sequence[int],
            launch: Launch) -> None:
        """Submit a kernel with (buffer, offset) arguments, then 64-bit numbers."""
        with objective_c().pool():
            commands = send(self.queue, "commandBuffer")
            encoder = send(commands, "computeCommandEncoder")
            send(encoder, "setComputePipelineState:", pipeline, returns=None)
            for position, (buffer, offset) in enumerate(buffers):
                send(encoder, "setBuffer:offset:atIndex:", buffer, offset, position, returns=None)
            for position, number in enumerate(numbers, len(buffers)):
                data = struct.pack("q", number)
                send(encoder, "setBytes:length:atIndex:", c_char_p(data), len(data), position, returns=None)
            send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:",
                 Size(*launch.blocks), Size(*launch.threads), returns=None)
            send(encoder, "endEncoding", returns=None)
            send(commands, "commit", returns=None)
            send(commands, "retain")
            self.forget()
            self.last = commands

    def synchronize(self) -> None:
        """Wait for what was submitted."""
        if self.last:
            send(self.last, "waitUntilCompleted", returns=None)
            self.forget()

    def forget(self) -> None:
        if self.last:
            send(self.last, "release", returns=None)
        self.last = 0


class MetalAllocator(Allocator):
    """Memory that CPU and GPU share. Memory is named by its address."""

    def __init__(self, device: str, commands: Queue) -> None:
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
        self.commands.synchronize()
        send(self.commands.memory.remove(memory), "release", returns=None)

    def address(self, memory: int) -> int:
        return memory

    def part(self, memory: int, offset: int, size: int) -> int:
        return memory + offset

    def copyin(self, memory: int, source: memoryview) -> None:
        self.commands.synchronize()
        ctypes.memmove(memory, source.tobytes(), source.nbytes)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        self.commands.synchronize()
        target.cast("B")[:] = ctypes.string_at(memory + offset, target.nbytes)


class MetalProgram:
    """A loaded kernel."""

    def __init__(self, name: str, library: int, launch: Launch, queue: Queue) -> None:
        self.launch = launch
        self.queue = queue
        function = send(library, "newFunctionWithName:", string(name))
        error = c_void_p()
        self.pipeline = send(queue.device, "newComputePipelineStateWithFunction:error:", function,
                             ctypes.byref(error))
        if not self.pipeline:
            raise RuntimeError(f"Metal makes no pipeline of kernel {name}: {words_of(error)}")

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        buffers = [self.queue.memory.find(addresses[slot]) for slot in self.launch.slots]
        self.queue.run(self.pipeline, buffers, variables, self.launch)


class MetalDevice(CompiledDevice):
    """An Apple GPU."""

    def __init__(self, name: str, queue: Queue) -> None:
        super().__init__(name, MetalAllocator(name, queue), metal_renderer())
        self.commands = queue
        self.queue = self.copies = CommandQueue(name, queue.synchronize)

    @property
    def compiler(self) -> str:
        name = send(send(self.commands.device, "name"), "UTF8String", returns=c_char_p)
        return f"Metal for {name.decode()}"

    def compile(self, source: str) -> int:
        """A library. Raises RuntimeError with the compiler's words and the source."""
        options = send(send(objective_c().class_named("MTLCompileOptions"), "alloc"), "init")
        send(options, "setFastMathEnabled:", False, returns=None)
        error = c_void_p()
        library = send(self.commands.device, "newLibraryWithSource:options:error:", string(source), options,
                       ctypes.byref(error))
        if not library:
            raise RuntimeError(f"Metal does not accept this kernel:\n{words_of(error)}\n{numbered(source)}")
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
    return MetalDevice(name, Queue(int(found)))
