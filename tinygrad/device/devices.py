"""Devices by name: what each is made of (`CompiledDevice`), and which there are (`Device`).

A device is an allocator, a renderer, a compiler, a program loader and a command queue, in one file of
`runtime/`; `Device["CPU"]` opens it at first use. What only holds data has an allocator and nothing else.
"""
from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

from tinygrad.device.allocator import Allocator
from tinygrad.device.host import host_rate
from tinygrad.device.limits import Limits
from tinygrad.device.queue import CommandQueue
from tinygrad.dtype import DType
from tinygrad.helpers import DEBUG, AttributeSetting
from tinygrad.renderer import Renderer
from tinygrad.renderer.launch import Launch


class Program(Protocol):
    """A loaded kernel."""

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        """Run on these buffers; `extent` iterations of its THREAD range are shared out."""


class CompiledDevice:
    """An open device: what its file in `runtime/` provides."""

    runs: ClassVar[bool] = True
    """whether a kernel that is called computes anything"""
    exchanges: ClassVar[bool] = False
    """whether this is a process among several, which all take part in copies from it: the queue of copies to
    it makes those too, and the host reads memory of its own that was filled by one"""

    has_collectives: ClassVar[bool] = False
    """whether those processes have a library that combines or joins what each of them has"""

    elsewhere: ClassVar[bool] = False
    """whether another process runs the kernels: this one only knows of them"""

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
        return self._renderer is None or dtype not in self._renderer.machine.missing

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
        **dict.fromkeys((f"PYTHON:{kind}"
                         for kind in ("BLOCKS", "CUDA", "HOPPER", "AMD", "GFX1100", "METAL")),
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
        of, TypeError for what is no name."""
        if not isinstance(name, str):
            raise TypeError(f"devices are given by their names, as \"CPU:1\", got {name!r}")
        if name in self.FILES:
            return name
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
AttributeSetting("DEV", Device, "DEFAULT", Device.canonicalize, reads_environment=False)


def canonical_device(device: str | Sequence[str] | None) -> Any:
    """The full name of a device, the default device's for None; of several, the tuple of their names (a
    single one's name alone). Raises ValueError for names that do not exist, or come twice, TypeError for no
    names."""
    if device is None:
        return Device.DEFAULT
    if isinstance(device, str) or not isinstance(device, Iterable):
        return Device.canonicalize(device)
    given = tuple(device)
    names = tuple(map(Device.canonicalize, given))
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise ValueError(f"a tensor on several devices takes their names, each once, got {given}"
                         + (f", where {twice[0]} comes twice" if twice else ""))
    return names if len(names) > 1 else names[0]
