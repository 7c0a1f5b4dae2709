"""NULL: everything but running. Schedules, plans, code and machine code are made as for the CPU, no memory is
taken and nothing is computed. `DEV=NULL DEBUG=2 python train.py` shows what a program would run, and how much
memory its tensors would take (`GlobalCounters`), on a machine that could not hold it.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.device import CompiledDevice
from tinygrad.device.allocator import Allocator, Owner
from tinygrad.device.queue import TimelinePoint
from tinygrad.runtime.cpu import cpu_renderer
from tinygrad.runtime.llvm import Compiled, compile_ir, llvm_version


class NullAllocator(Allocator):
    """Memory that is counted, and not there."""

    def _obtain(self, size: int) -> int:
        return size

    def address(self, memory: int) -> int:
        return 0

    def copyin(self, memory: int, source: memoryview) -> None:
        """What is written is lost."""

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        raise RuntimeError(f"{self.device} computes nothing, so there is no value to read; use another "
                           "device")


class NoAllocator(NullAllocator):
    """What another process has as memory: here it is neither there nor counted."""

    def allocate(self, owner: Owner, size: int, idle: bool = False) -> None:
        owner._memory = size

    def free(self, owner: Owner, size: int, points: Sequence[TimelinePoint] = ()) -> None:
        owner._memory = None


class NullProgram:
    """A kernel that is never run."""

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        """Do nothing."""


class NullDevice(CompiledDevice):
    """The CPU's renderer and compiler, and nothing that runs."""

    runs = False

    @property
    def compiler(self) -> str:
        return llvm_version()

    def compile(self, source: str) -> Compiled:
        return compile_ir(source)

    def load(self, name: str, code: Compiled, scratch: int = 0) -> NullProgram:
        return NullProgram()


def open_device(name: str) -> NullDevice:
    """The device without hardware. It is always there."""
    return NullDevice(name, NullAllocator(name), cpu_renderer())
