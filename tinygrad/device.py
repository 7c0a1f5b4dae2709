"""Devices and the memory on them.

A device is an allocator, a renderer, a compiler and a program loader (`CompiledDevice`), in one file of
`runtime/`; `Device["CPU"]` opens it at first use. What only holds data has an allocator and nothing else.

A `Buffer` is memory for a number of items on a device; when it dies its memory goes to a cache from which the
next buffer of that size is taken, because fresh pages are expensive (64 MB cost 16 ms in page faults, five
times what a kernel needs to write them).
"""
from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from tinygrad.dtype import DType, dtype_from_numpy
from tinygrad.helpers import DEBUG, GlobalCounters, round_up
from tinygrad.renderer import Launch, Renderer

if TYPE_CHECKING:
    from tinygrad.runtime.limits import Limits

ALIGNMENT = 64
LEAST_CACHE = 1 << 26
"""Bytes of freed memory that are always worth keeping."""
_counting = threading.RLock()
"""Held while the counters of memory change."""


class Program(Protocol):
    """A loaded kernel."""

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        """Run on these buffers; `extent` iterations of its THREAD range are shared out."""


class Allocator:
    """Memory of one device, with a cache of what was freed, by size.

    A device gives `_obtain` and `_return`; both see sizes in bytes, rounded up to the alignment.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.cached: dict[int, list[Any]] = {}
        self.cached_bytes = 0
        self.lock = threading.RLock()  # the collector may free a buffer while this thread holds it

    def allocate(self, size: int) -> Any:
        """Memory of at least `size` bytes. Raises MemoryError with what is used and cached where there is
        none."""
        rounded = round_up(max(size, 1), ALIGNMENT)
        with self.lock:
            free = self.cached.get(rounded)
            if free:
                self.cached_bytes -= rounded
                memory = free.pop()
            else:
                memory = None
        if memory is None:
            try:
                memory = self._obtain(rounded)
            except MemoryError:
                self.free_cache()
                memory = self._obtain_or_explain(rounded)
        with _counting:
            GlobalCounters.mem_used += size
            GlobalCounters.mem_peak = max(GlobalCounters.mem_peak, GlobalCounters.mem_used)
        return memory

    def _obtain_or_explain(self, rounded: int) -> Any:
        try:
            return self._obtain(rounded)
        except MemoryError:
            raise MemoryError(f"{self.device} has no {rounded:,} bytes left: {GlobalCounters.mem_used:,} are "
                              f"used and {self.cached_bytes:,} cached") from None

    def free(self, memory: Any, size: int) -> None:
        """Take memory back, into the cache. That holds no more than was ever used at once (and
        `LEAST_CACHE`): what was freed longest ago goes back to the system."""
        rounded = round_up(max(size, 1), ALIGNMENT)
        with _counting:
            GlobalCounters.mem_used -= size
        with self.lock:
            blocks = self.cached.pop(rounded, [])
            blocks.append(memory)
            self.cached[rounded] = blocks  # the size used last comes last
            self.cached_bytes += rounded
            while self.cached_bytes > max(LEAST_CACHE, GlobalCounters.mem_peak):
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Give a block of the size that was freed longest ago back to the system."""
        size = next(iter(self.cached))
        blocks = self.cached[size]
        if blocks:
            self.cached_bytes -= size
            self._return(blocks.pop(), size)
        if not blocks:
            del self.cached[size]

    def free_cache(self) -> None:
        """Give all cached memory back to the system."""
        with self.lock:
            while self.cached:
                size, blocks = self.cached.popitem()
                for memory in blocks:
                    self.cached_bytes -= size
                    self._return(memory, size)

    def _obtain(self, size: int) -> Any:
        raise NotImplementedError

    def _return(self, memory: Any, size: int) -> None:
        """Give `memory` back to the system."""

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


class Buffer:
    """Memory for `size` items of `dtype` on `device`, taken at the first `allocate`."""

    def __init__(self, device: str, size: int, dtype: DType) -> None:
        self.device = device
        self.size = size
        self.dtype = dtype
        self._memory: Any = None
        self._address: int | None = None
        self._owner: Any = None
        self._allocator: Allocator | None = None
        """takes the memory back"""

    def __repr__(self) -> str:
        state = "" if self.is_allocated else " not allocated"
        return f"<Buffer {self.device} {self.dtype.name}[{self.size}]{state}>"

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_allocated(self) -> bool:
        return self._memory is not None

    def allocate(self) -> Buffer:
        """Take the memory, if that has not happened."""
        if self._memory is None:
            allocator = Device[self.device].allocator
            self._memory = allocator.allocate(self.nbytes)
            self._allocator = allocator
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end, names of modules may be gone; an argument's default is not.
        if self._allocator is not None and not is_finalizing():
            self._allocator.free(self._memory, self.nbytes)

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any], device: str = "CPU", share: bool = True) -> Buffer:
        """A buffer with the values of `array`: with `share` over the memory of a C-contiguous, aligned,
        writable array, else, and for others, a copy."""
        buffer = Buffer(device, array.size, dtype_from_numpy(array.dtype))
        data = np.ascontiguousarray(array)
        sound = data is array and array.flags.writeable and array.flags.aligned and array.size > 0
        buffer._memory = Device[device].allocator.share(data) if share and sound else None
        if buffer.is_allocated:
            buffer._owner = array
        else:
            buffer.allocate()
            buffer.copyin(data.reshape(-1).view(np.uint8).data)
        return buffer

    def part(self, offset: int, size: int, dtype: DType) -> Buffer:
        """A buffer of `size` items of `dtype` that shares the bytes from `offset` on of this one, which it
        keeps alive; one with memory of its own where the device has no parts."""
        self.allocate()
        found = Buffer(self.device, size, dtype)
        found._memory = Device[self.device].allocator.part(self._memory, offset, found.nbytes)
        found._owner = self
        return found

    @property
    def address(self) -> int:
        """Where the memory begins, as kernels are told."""
        if self._address is None:
            self.allocate()
            self._address = Device[self.device].allocator.address(self._memory)
        return self._address

    @property
    def is_on_host(self) -> bool:
        """Whether `numpy` gives the memory itself."""
        self.allocate()
        return Device[self.device].allocator.as_bytes(self._memory, self.nbytes) is not None

    def copyin(self, source: memoryview) -> None:
        """Fill the memory. Raises ValueError where the lengths differ."""
        if source.nbytes != self.nbytes:
            raise ValueError(f"copying {source.nbytes} bytes into {self!r} of {self.nbytes}")
        self.allocate()
        if self.nbytes:
            Device[self.device].allocator.copyin(self._memory, source)

    def copyout(self, target: memoryview) -> None:
        """Read the memory. Raises ValueError where the lengths differ."""
        if target.nbytes != self.nbytes:
            raise ValueError(f"copying {self!r} of {self.nbytes} bytes into {target.nbytes}")
        self.copyout_part(target, 0)

    def copyout_part(self, target: memoryview, offset: int) -> None:
        """Read as many bytes as `target` holds, from the byte `offset` on. Raises ValueError where that is
        past the end."""
        if not 0 <= offset <= self.nbytes - target.nbytes:
            raise ValueError(f"{self!r} of {self.nbytes} bytes has no {target.nbytes} from byte {offset} on")
        if target.nbytes:
            self.allocate()
            Device[self.device].allocator.copyout(target, self._memory, offset)

    def as_bytes(self) -> memoryview | None:
        """The memory itself, where the host can touch it; else None."""
        self.allocate()
        return Device[self.device].allocator.as_bytes(self._memory, self.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The items as a flat NumPy array: the memory itself where the host can touch it, else a copy."""
        if self.as_bytes() is not None:
            return np.asarray(_HostMemory(self)).view(self.dtype.numpy)
        held = memoryview(bytearray(self.nbytes))
        self.copyout(held)
        return np.frombuffer(held, dtype=self.dtype.numpy, count=self.size)


class _HostMemory:
    """A buffer's bytes as NumPy takes them; an array made of it keeps the buffer, and so its memory."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"version": 3, "shape": (buffer.nbytes,), "typestr": "|u1",
                                    "data": (buffer.address, False)}


def numbered(source: str) -> str:
    """The lines of a kernel with their numbers, for errors that speak of them."""
    return "\n".join(f"{i + 1:5d}  {line}" for i, line in enumerate(source.splitlines()))


class CompiledDevice:
    """An open device: what its file in `runtime/` provides."""

    runs: ClassVar[bool] = True
    """whether a kernel that is called computes anything"""

    def __init__(self, name: str, allocator: Allocator, renderer: Renderer | None) -> None:
        self.name = name
        self.allocator = allocator
        self._renderer = renderer

    @property
    def computes(self) -> bool:
        """Whether kernels run here; a device that only holds data has no renderer."""
        return self._renderer is not None

    @property
    def renderer(self) -> Renderer:
        """What writes this device's kernels. Raises RuntimeError for a device that computes nothing."""
        if self._renderer is None:
            raise RuntimeError(f"{self.name} holds data and computes nothing; move the tensor first: "
                               "t.to(\"CPU\")")
        return self._renderer

    @property
    def compiler(self) -> str:
        """What compiles this device's kernels, and its version."""
        return "none"

    def compile(self, source: str) -> Any:
        """Machine code (or what stands for it) of a kernel's source."""
        raise NotImplementedError

    def load(self, name: str, code: Any, scratch: int = 0) -> Program:
        """The kernel `name` of compiled `code`, which uses so many bytes of scratch a thread, ready to
        run."""
        raise NotImplementedError

    def load_blocks(self, name: str, code: Any, launch: Launch) -> Program:
        """As `load`, on a device whose kernels run as a grid of blocks of threads."""
        raise NotImplementedError

    def disassembly(self, code: Any) -> str:
        """The machine code as text."""
        return ""

    def limits(self) -> Limits | None:
        """The peak rates of arithmetic and memory here, measured at the first call; None where nobody can
        say."""
        return None

    def least_seconds(self, operations: int, moved_bytes: int) -> float:
        """The time that no kernel with so much to do can beat here; 0 where nobody measured it."""
        limits = self.limits()
        return 0.0 if limits is None else limits.least_seconds(operations, moved_bytes)

    def synchronize(self) -> None:
        """Wait until everything submitted has run."""


class _Devices:
    """The devices by name: `Device["CPU"]`. `Device.DEFAULT` is where tensors are made unless they say
    otherwise.

    A name is KIND or KIND:NUMBER (`CUDA:1`); after `DISK:` comes a path.
    """

    FILES: ClassVar[dict[str, str]] = {
        "CPU": "tinygrad.runtime.cpu",
        "CPU:C": "tinygrad.runtime.cpu_c",
        "PYTHON": "tinygrad.runtime.python",
        **dict.fromkeys((f"PYTHON:{kind}" for kind in ("BLOCKS", "CUDA", "AMD", "GFX1100", "METAL")),
                        "tinygrad.runtime.python"),
        "CL": "tinygrad.runtime.opencl",
        "CL:IMAGES": "tinygrad.runtime.qcom",
        "QCOM": "tinygrad.runtime.qcom",
        "WEBGPU": "tinygrad.runtime.webgpu",
        "CUDA": "tinygrad.runtime.cuda",
        "CUDA:PTX": "tinygrad.runtime.cuda",
        "CUDA:EMULATED": "tinygrad.runtime.emulator",
        "AMD": "tinygrad.runtime.amd",
        "AMD:EMULATED": "tinygrad.runtime.emulator",
        "METAL": "tinygrad.runtime.metal",
        "METAL:EMULATED": "tinygrad.runtime.emulator",
        "NULL": "tinygrad.runtime.null",
        "DISK": "tinygrad.runtime.disk",
    }
    """kind to the module whose `open_device(name)` gives a `CompiledDevice`"""
    ALIASES: ClassVar[dict[str, str]] = {
        "LLVM": "CPU", "CPU:LLVM": "CPU", "CLANG": "CPU:C", "CPU:CLANG": "CPU:C", "GPU": "CL", "OPENCL": "CL",
        "NVIDIA": "CUDA", "HIP": "AMD",
    }
    PLANNED: ClassVar[tuple[str, ...]] = ("NV",)

    def __init__(self) -> None:
        self.opened: dict[str, CompiledDevice] = {}
        self._default: str | None = None
        self.lock = threading.Lock()

    @property
    def DEFAULT(self) -> str:  # the public name
        """The device of tensors that name none: the environment's DEV, else CPU."""
        if self._default is None:
            self._default = self.canonicalize(os.getenv("DEV") or "CPU")
        return self._default

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:  # the public name
        self._default = self.canonicalize(name)

    def register(self, kind: str, module: str) -> None:
        """Make devices of another kind known: `module` has an `open_device`. See docs/adding_a_device.md."""
        self.FILES[kind] = module

    def canonicalize(self, name: str) -> str:
        """The full name of a device: "cpu" and "CPU:0" are "CPU". Raises ValueError for a name there is none
        of."""
        upper = name.upper()
        if upper.startswith("DISK:"):
            return f"DISK:{os.path.abspath(name[len('DISK:'):])}" if len(name) > len("DISK:") else "DISK"
        kind, colon, number = upper.rpartition(":")
        known = {*self.FILES, *self.ALIASES, *self.PLANNED}
        if not colon or upper in known:
            kind, number = upper, "0"
        kind = self.ALIASES.get(kind, kind)
        if kind not in self.FILES:
            reason = "is not supported yet" if kind in self.PLANNED else "is not the name of a device"
            raise ValueError(f"{name!r} {reason}; available: {', '.join(self.FILES)}")
        if not number.isdecimal():
            raise ValueError(f"{name!r} is not the name of a device: after the colon comes a number")
        return kind if int(number) == 0 else f"{kind}:{int(number)}"

    def kind_of(self, name: str) -> str:
        """The kind of a device, by its full name."""
        return max((k for k in self.FILES if name == k or name.startswith(f"{k}:")), key=len)

    def __getitem__(self, name: str) -> CompiledDevice:
        found = self.opened.get(name)
        if found is not None:
            return found
        full = self.canonicalize(name)
        with self.lock:
            if full not in self.opened:
                module = importlib.import_module(self.FILES[self.kind_of(full)])
                opened = self.opened[full] = module.open_device(full)
                if DEBUG >= 1:
                    print(f"opened {full}: {opened.renderer if opened.computes else 'holds data'}")
            self.opened[name] = self.opened[full]
        return self.opened[full]

    def synchronize(self) -> None:
        """Wait until every open device has run everything submitted to it."""
        for device in list(self.opened.values()):
            device.synchronize()

    def names(self) -> list[str]:
        """The kinds of device that this library can open."""
        return list(self.FILES)


Device = _Devices()
