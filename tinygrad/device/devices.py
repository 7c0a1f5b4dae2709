"""Devices and the memory on them.

A device is an allocator, a renderer, a compiler, a program loader and a command queue (`CompiledDevice`), in
one file of `runtime/`; `Device["CPU"]` opens it at first use. What only holds data has an allocator and
nothing else.

A `Buffer` is memory for a number of items on a device. It knows which commands use that (`uses`): the host
waits for those, and for no others, before it reads or writes.
"""
from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from tinygrad.dtype import DType, dtype_from_numpy
from tinygrad.helpers import DEBUG, complete
from tinygrad.renderer import Launch, Renderer
from tinygrad.runtime.allocator import Allocator, Owner
from tinygrad.runtime.queue import CommandQueue, Point, Uses, host_rate

if TYPE_CHECKING:
    from tinygrad.runtime.limits import Limits

__all__ = ["Allocator", "Buffer", "CompiledDevice", "Device", "Program"]


class Program(Protocol):
    """A loaded kernel."""

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        """Run on these buffers; `extent` iterations of its THREAD range are shared out."""


class Buffer(Owner):
    """Memory for `size` items of `dtype` on `device`, taken at the first `allocate`."""

    whole: Buffer | None = None
    """the buffer whose memory this one has a part of"""
    _address: int | None = None
    _owner: Any = None
    """whose memory it is, if not the allocator's"""
    _seen: weakref.WeakSet[_HostMemory] | None = None
    """of a root: through what the host sees the memory"""
    _allocator: Allocator | None = None
    """takes the memory back"""

    def __init__(self, device: str, size: int, dtype: DType) -> None:
        self.device = device
        self.size = size
        self.dtype = dtype

    def __repr__(self) -> str:
        state = "" if self.is_allocated else " not allocated"
        return f"<Buffer {self.device} {self.dtype.name}[{self.size}]{state}>"

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def root(self) -> Buffer:
        """The buffer whose memory this one has a part of, or itself."""
        return self if self.whole is None else self.whole

    @property
    def is_allocated(self) -> bool:
        return self._memory is not None

    @property
    def memory(self) -> Any:
        """What the allocator gave."""
        return self.allocate()._memory

    def allocate(self, idle: bool = False) -> Buffer:
        """Take the memory, if that has not happened; with `idle` such that nobody has to wait for."""
        if self._memory is None:
            allocator = self._allocator = Device[self.device].allocator
            allocator.allocate(self, self.nbytes, idle)
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end, names of modules may be gone; an argument's default is not.
        if not is_finalizing() and self.whole is None and self._memory is not None:
            complete(self._give_back)

    def _give_back(self) -> None:
        """Let go of the memory of a root."""
        unfinished = self.uses.before_writing() if self.uses is not None else ()
        if self._allocator is not None:
            self._allocator.free(self, self.nbytes, unfinished)
        for point in unfinished if self._allocator is None else ():
            point.queue.keep(point.value, self._memory)

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
        if self._address is None:
            self.allocate()
            self._address = Device[self.device].allocator.address(self._memory)
        return self._address

    # --- who uses the memory --------------------------------------------------------------------------------

    @property
    def is_exposed(self) -> bool:
        """Whether others may touch the memory without asking: it is an array's that a tensor was made over,
        or there are arrays over it."""
        root = self.root
        return root._owner is not None or bool(root._seen)

    def add_use(self, point: Point, writes: bool) -> None:
        """Take note of a command in flight that reads the memory, or writes it."""
        root = self.root
        if root.uses is None:
            root.uses = Uses()
        if writes:
            root.uses.set_written(point)
        else:
            root.uses.add_read(point)

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
            if self.whole is None:
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
        if self.root._seen is None:
            self.root._seen = weakref.WeakSet()
        self.root._seen.add(memory)
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
        self.queue = CommandQueue(name)
        """what kernels are given to"""
        self.copies: CommandQueue = self.queue
        """what copies to this device are given to; may be the same"""

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

    def has_dtype(self, dtype: DType) -> bool:
        """Whether kernels here may compute with `dtype`; true where there are no kernels."""
        return self._renderer is None or dtype not in self._renderer.missing

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
        self.copies.synchronize()
        self.queue.synchronize()


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
        "NVIDIA": "CUDA", "NV": "CUDA", "HIP": "AMD",
    }

    ONE_MEMORY: ClassVar[frozenset[str]] = frozenset({"CPU", "CPU:C"})
    """kinds of which all devices are the same cores and memory"""

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
        known = {*self.FILES, *self.ALIASES}
        if not colon or upper in known:
            kind, number = upper, "0"
        kind = self.ALIASES.get(kind, kind)
        if kind not in self.FILES or not number.isdecimal():
            raise ValueError(f"{name!r} is not the name of a device; {self.names_like(upper)}")
        return kind if int(number) == 0 else f"{kind}:{int(number)}"

    def names_like(self, name: str) -> str:
        """The kinds that begin as a name does; all, where none does."""
        first = name.partition(":")[0]
        first = self.ALIASES.get(first, first)
        found = [kind for kind in self.FILES if kind.partition(":")[0] == first]
        if not found:
            return f"available: {', '.join(self.FILES)}"
        return f"available of this kind: {', '.join(found)}; the second of several is {found[0]}:1"

    def kind_of(self, name: str) -> str:
        """The kind of a device, by its full name."""
        return max((k for k in self.FILES if name == k or name.startswith(f"{k}:")), key=len)

    def home(self, name: str) -> str:
        """The device whose cores and memory one of this full name is: the first of its kind, where all of
        that are the same, else itself.

        >>> Device.home("CPU:3"), Device.home("CUDA:1")
        ('CPU', 'CUDA:1')
        """
        kind, _, number = name.rpartition(":")
        return kind if kind in self.ONE_MEMORY and number.isdecimal() else name

    def __getitem__(self, name: str) -> CompiledDevice:
        found = self.opened.get(name)
        if found is not None:
            return found
        full = self.canonicalize(name)
        with self.lock:
            if full not in self.opened:
                opened = self.opened[full] = self.open(full)
                if DEBUG >= 1:
                    print(f"opened {full}: {opened.renderer if opened.computes else 'holds data'}")
            self.opened[name] = self.opened[full]
        return self.opened[full]

    def open(self, full: str) -> CompiledDevice:
        """The device of this full name, as its module makes it. Raises ImportError, OSError or RuntimeError
        with what to install, where that is missing."""
        try:
            module = importlib.import_module(self.FILES[self.kind_of(full)])
            opened: CompiledDevice = module.open_device(full)
            if opened.computes:
                host_rate()  # which all kernels are weighed by, and which asks LLVM
        except ModuleNotFoundError as missing:
            package = str(missing.name).partition(".")[0]
            raise ImportError(f"{full} needs {package}: python3 -m pip install {package}") from missing
        return opened

    def synchronize(self) -> None:
        """Wait until every open device has run everything submitted to it."""
        for device in list(self.opened.values()):
            device.synchronize()

    def names(self) -> list[str]:
        """The kinds of device that this library can open."""
        return list(self.FILES)


Device = _Devices()


def canonical_device(device: str | Sequence[str] | None) -> Any:
    """The full name of a device, the default device's for None; of several, the tuple of their names (a
    single one's name alone). Raises ValueError for names that do not exist, or come twice."""
    if device is None or isinstance(device, str):
        return Device.DEFAULT if device is None else Device.canonicalize(device)
    names = tuple(Device.canonicalize(name) for name in device)
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise ValueError(f"a tensor on several devices takes their names, each once, got {tuple(device)}"
                         + (f", where {twice[0]} comes twice" if twice else ""))
    return names if len(names) > 1 else names[0]
