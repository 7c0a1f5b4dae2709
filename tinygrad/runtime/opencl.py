"""CL: any device with an OpenCL 1.2 driver, through pyopencl.

Kernels are OpenCL C (`renderer/opencl.py`), compiled by the driver. A queue runs what is submitted in order;
copies between devices go through it without waiting, reading memory waits for it. `CL:1` is the second device
of all platforms together.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from tinygrad.device import Buffer, CompiledDevice
from tinygrad.device.allocator import Allocator
from tinygrad.device.queue import DriverQueue, TimelinePoint, Timestamp, raise_failures
from tinygrad.dtype import dtypes
from tinygrad.helpers import numbered
from tinygrad.renderer.c_blocks import BlocksRenderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import Machine, blocks
from tinygrad.renderer.opencl import OPENCL

INSTALL = ('pip install "tinygrad[opencl]" (pyopencl, and on Linux PoCL for the CPU), and the driver of your '
           "device")
OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")
"""Each operation is rounded once, as written."""
MOST_THREADS = 256
"""Threads of a block: more leave each too few registers."""
MOST_THREADS_OF_A_CPU = 64
"""A CPU runs the threads of a block one after another, each barrier a loop over all of them (softmax of
1024 x 1024 on PoCL: 41 ms, 89 with 256)."""


@cache
def opencl() -> Any:
    """The pyopencl package. Raises RuntimeError where it is missing."""
    try:
        import pyopencl
    except ImportError as missing:
        raise RuntimeError(f"CL needs OpenCL: {INSTALL} ({missing})") from None
    return pyopencl


def all_devices() -> tuple[Any, ...]:
    """The devices of all platforms, those left out whose driver compiles nothing. Raises RuntimeError where
    none is left."""
    cl = opencl()
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.LogicError as reason:
        raise RuntimeError(f"CL finds no OpenCL platform: {INSTALL} ({reason})") from None
    if not found:
        raise RuntimeError(f"CL finds no OpenCL device: {INSTALL}")
    refusals = {device: refusal(device) for device in found}
    usable = tuple(device for device, reason in refusals.items() if reason is None)
    if not usable:
        raise RuntimeError("CL finds no OpenCL device whose driver compiles; another driver may (Debian: "
                           f"apt-get install pocl-opencl-icd). {'; '.join(filter(None, refusals.values()))}")
    return usable


@cache
def refusal(device: Any) -> str | None:
    """Why the driver of a device compiles nothing at all (an old PoCL on a processor that it does not
    know); None where it does."""
    cl = opencl()
    try:
        cl.Program(cl.Context([device]), "__kernel void nothing() {}").build(cache_dir=False)
    except cl.Error as reason:
        said = next((line for line in str(reason).splitlines() if "error:" in line), str(reason))
        return f"{device.name}, {device.platform.version}: {said}"
    return None


class OpenCLAllocator(Allocator):
    """Buffers of a context. Their address is the handle, of which a kernel's argument is made."""

    def __init__(self, name: str, context: Any, queue: OpenCLQueue) -> None:
        super().__init__(name)
        self.context = context
        self.queue = queue
        self.driver = queue.driver

    def _obtain(self, size: int) -> Any:
        cl = opencl()
        try:
            memory = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
            cl.enqueue_migrate_mem_objects(self.driver, [memory])
        except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as reason:
            if isinstance(reason, cl.LogicError) and reason.code != cl.status_code.INVALID_BUFFER_SIZE:
                raise
            raise MemoryError(str(reason)) from None
        return memory

    def _return(self, memory: Any, size: int) -> None:
        memory.release()

    def address(self, memory: Any) -> int:
        return int(memory.int_ptr)

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """A region of a buffer, where one may begin at `offset`; regions have none themselves."""
        alignment = self.driver.device.mem_base_addr_align // 8
        whole = memory.get_info(opencl().mem_info.ASSOCIATED_MEMOBJECT) is None
        return memory.get_sub_region(offset, max(size, 1)) if whole and offset % alignment == 0 else None

    def copyin(self, memory: Any, source: memoryview) -> None:
        opencl().enqueue_copy(self.driver, memory, np.frombuffer(source, np.uint8), is_blocking=True)

    def copyout(self, target: memoryview, memory: Any, offset: int = 0) -> None:
        opencl().enqueue_copy(self.driver, np.frombuffer(target, np.uint8), memory, src_offset=offset,
                              is_blocking=True)


class OpenCLQueue(DriverQueue):
    """A queue of a context, which runs in order. What a command raises makes the driver's calls fail."""

    def __init__(self, name: str, context: Any) -> None:
        properties = opencl().command_queue_properties
        self.context = context
        self.driver = opencl().CommandQueue(context, properties=properties.PROFILING_ENABLE)
        super().__init__(name, self.driver.finish)

    def mark(self) -> Any:
        return opencl().enqueue_marker(self.driver)

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.command_execution_status == opencl().command_execution_status.COMPLETE)

    def await_mark(self, mark: Any) -> None:
        mark.wait()

    def copy(self, target: Buffer, source: Buffer, offset: int, sources: tuple[TimelinePoint, ...] = ()
             ) -> TimelinePoint | None:
        """Without waiting, where one side is host memory or both are of this queue's context."""
        raise_failures(sources)
        if not target.nbytes:
            return None
        from_host, to_host = self.host_items(source), self.host_items(target)
        if from_host is not None:
            taken = from_host[offset:offset + target.nbytes]
            event = opencl().enqueue_copy(self.driver, target.memory, taken, is_blocking=False)
        elif to_host is not None:
            event = opencl().enqueue_copy(self.driver, to_host, source.memory, src_offset=offset,
                                          is_blocking=False)
        elif self.has(target) and self.has(source):
            event = opencl().enqueue_copy(self.driver, target.memory, source.memory, src_offset=offset,
                                          byte_count=target.nbytes)
        else:
            target.fill_from(source, offset)
            return None
        return self.next_point(kept=(event, target.memory, source.memory))

    def has(self, buffer: Buffer) -> bool:
        """Whether a buffer's memory is of this context."""
        return isinstance(buffer.memory, opencl().Buffer) and buffer.memory.context == self.context

    @staticmethod
    def host_items(buffer: Buffer) -> Any:
        """The bytes of a buffer that the host can touch; None of others."""
        held = buffer.host_bytes
        return None if held is None else np.frombuffer(held, np.uint8)

    def wait(self, point: TimelinePoint) -> None:
        other = point.queue
        if isinstance(other, OpenCLQueue) and other.context == self.context:
            opencl().enqueue_barrier(self.driver, wait_for=[other.mark_after(point.value)[1]])
            other.submit()
        else:
            super().wait(point)

    def timestamp(self) -> Timestamp:
        event = self.mark()

        def read() -> float:
            event.wait()
            return float(event.profile.end) * 1e-9

        return Timestamp(read)

    def submit(self) -> None:
        self.driver.flush()


class OpenCLProgram:
    """A loaded kernel."""

    def __init__(self, queue: Any, kernel: Any, launch: Launch) -> None:
        self.queue = queue
        self.kernel = kernel
        self.launch = launch
        self.size = tuple(b * t for b, t in zip(launch.blocks, launch.threads, strict=True))

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        for place, slot in enumerate(self.launch.slots):
            self.kernel.set_arg(place, self.argument(place, addresses[slot]))
        for place, value in enumerate(variables, len(self.launch.slots)):
            self.kernel.set_arg(place, np.int64(value))
        self.enqueue()

    def enqueue(self) -> Any:
        """Run on the arguments that are set; returns the event of that."""
        return opencl().enqueue_nd_range_kernel(self.queue, self.kernel, self.size, self.launch.threads)

    def argument(self, place: int, address: int) -> Any:
        """What the kernel is given for the buffer at `address` as argument number `place`."""
        return opencl().MemoryObject.from_int_ptr(address, retain=True)


class OpenCLDevice(CompiledDevice):
    """One OpenCL device, with a context and a queue."""

    memory: ClassVar[type[OpenCLAllocator]] = OpenCLAllocator
    program: ClassVar[type[OpenCLProgram]] = OpenCLProgram
    options: ClassVar[tuple[str, ...]] = OPTIONS
    """of the compiler"""

    def __init__(self, name: str, device: Any) -> None:
        cl = opencl()
        self.device = device
        self.context = cl.Context([device])
        queue = OpenCLQueue(name, self.context)
        missing = frozenset() if device.double_fp_config else frozenset({dtypes.float64})
        most = MOST_THREADS_OF_A_CPU if device.type & cl.device_type.CPU else MOST_THREADS
        threads = min(most, device.max_work_group_size)
        renderer = self.renderer_for(blocks(threads, device.local_mem_size, missing=missing))
        super().__init__(name, self.memory(name, self.context, queue), renderer)
        self.queue = self.copies = queue
        self.driver_queue = queue.driver

    def renderer_for(self, machine: Machine) -> BlocksRenderer:
        """What writes kernels for a device of this machine."""
        return BlocksRenderer(OPENCL, machine)

    @property
    def compiler(self) -> str:
        return f"{self.device.platform.name}: {self.device.name}, {self.device.version}"

    def compile(self, source: str) -> Any:
        """Raises RuntimeError with the compiler's words and the source."""
        cl = opencl()
        program = cl.Program(self.context, source)
        try:
            return program.build(options=list(self.options), cache_dir=False)
        except cl.RuntimeError as reason:
            said = f"{self.compiler} does not accept this kernel:\n{reason}\n{numbered(source)}"
            raise RuntimeError(said) from None

    def load_blocks(self, name: str, code: Any, launch: Launch) -> OpenCLProgram:
        return self.program(self.driver_queue, getattr(code, name), launch)


def numbered_device(name: str, kind: str, devices: Sequence[Any]) -> Any:
    """The one of `devices` whose number ends the name of a device of this kind. Raises RuntimeError where
    there are fewer."""
    number = int(name.removeprefix(kind).lstrip(":") or 0)
    if number >= len(devices):
        raise RuntimeError(f"{name} is not there: this machine has {len(devices)} OpenCL "
                           f"device{'s' * (len(devices) > 1)} ({', '.join(d.name for d in devices)})")
    return devices[number]


def open_device(name: str) -> OpenCLDevice:
    """The device of this number. Raises RuntimeError where OpenCL or the device is missing."""
    return OpenCLDevice(name, numbered_device(name, "CL", all_devices()))
