"""WEBGPU: any GPU that WebGPU reaches (Vulkan, Metal, Direct3D), through wgpu.

Kernels are WGSL (`renderer/wgsl.py`). A queue runs what is submitted in order, copies to its memory among it;
reading memory waits for it. 64-bit numbers are there where the device offers them.
"""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tinygrad.device import CompiledDevice
from tinygrad.device.allocator import Allocator
from tinygrad.device.queue import CommandQueue
from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.helpers import numbered, round_up
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import WIDE_FLOATS
from tinygrad.renderer.wgsl import WGSLRenderer

INSTALL = ('pip install "tinygrad[webgpu]" (wgpu), and a driver for your GPU (Vulkan without one: apt-get '
           "install mesa-vulkan-drivers libvulkan1)")
FEATURES: dict[str, frozenset[DType]] = {
    "shader-int64": frozenset({dtypes.int64, dtypes.uint64}),
    "shader-f64": frozenset({dtypes.float64}),
}
"""What a device may offer beyond WebGPU, and the dtypes that need it."""
LIMITS = ("max-storage-buffers-per-shader-stage", "max-buffer-size", "max-storage-buffer-binding-size",
          "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup",
          "max-compute-workgroup-size-x")
"""What is asked for in full."""
BACKENDS = ("Vulkan", "Metal", "DX12")
"""Of wgpu. Looking for OpenGL would load Mesa's driver, its LLVM and the libz3 of that with RTLD_GLOBAL, and
a z3 that Python imports later would call into the other one and crash."""
MOST_THREADS = 256
WORD = 4
"""Bytes of which copies are multiples."""
PROBE = """@group(0) @binding(0) var<storage, read_write> x: array<{kind}>;

@compute @workgroup_size(1)
fn probe() {{
    {statement}
}}"""
"""A kernel that shows how a driver does something."""
ONE_THREAD = Launch((1, 1, 1), (1, 1, 1), (0,), 0)


@cache
def webgpu() -> Any:
    """The wgpu package, told which of its backends to use. Raises RuntimeError where it is missing."""
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except ImportError as missing:
        raise RuntimeError(f"WEBGPU needs wgpu: {INSTALL} ({missing})") from None
    with contextlib.suppress(RuntimeError):  # somebody else uses wgpu in this process and has chosen already
        set_instance_extras(backends=BACKENDS)
    return wgpu


class WebGPUAllocator(Allocator):
    """Storage buffers by number, which stands for their address."""

    def __init__(self, name: str, gpu: Any) -> None:
        super().__init__(name)
        self.gpu = gpu
        self.numbers = itertools.count(1)
        self.buffers: dict[int, Any] = {}

    def _obtain(self, size: int) -> int:
        wgpu = webgpu()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        most = self.gpu.limits["max-storage-buffer-binding-size"]
        if size > most:
            raise MemoryError(f"a buffer has at most {most:,} bytes")
        try:
            memory = self.gpu.create_buffer(size=size, usage=usage)
        except wgpu.GPUOutOfMemoryError as reason:
            raise MemoryError(str(reason)) from None
        number = next(self.numbers)
        self.buffers[number] = memory
        return number

    def _return(self, memory: int, size: int) -> None:
        self.buffers.pop(memory).destroy()

    def address(self, memory: int) -> int:
        return memory

    def copyin(self, memory: int, source: memoryview) -> None:
        """In the order of the queue, without waiting; `source` may change afterwards."""
        data = np.frombuffer(source, np.uint8)
        if data.size % WORD:
            data = np.pad(data, (0, -data.size % WORD))
        self.gpu.queue.write_buffer(self.buffers[memory], 0, data)

    def copyout(self, target: memoryview, memory: int, offset: int = 0) -> None:
        start = offset // WORD * WORD
        end = round_up(offset + target.nbytes, WORD)
        data = self.gpu.queue.read_buffer(self.buffers[memory], start, end - start)
        target.cast("B")[:] = data[offset - start:offset - start + target.nbytes]


@frozen
class Module:
    """Compiled WGSL."""

    compiled: Any
    source: str


class WebGPUProgram:
    """A loaded kernel."""

    def __init__(self, gpu: Any, allocator: WebGPUAllocator, pipeline: Any, launch: Launch) -> None:
        self.gpu = gpu
        self.allocator = allocator
        self.pipeline = pipeline
        self.launch = launch

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        bound = [self.allocator.buffers[addresses[slot]] for slot in self.launch.slots]
        if variables:
            usage = webgpu().BufferUsage.STORAGE
            bound.append(self.gpu.create_buffer_with_data(data=np.array(variables, np.int64), usage=usage))
        self.launch_on(bound)

    def launch_on(self, bound: Sequence[Any]) -> None:
        """Run on these buffers, in the order of their bindings."""
        entries = [{"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
                   for i, b in enumerate(bound)]
        commands = self.gpu.create_command_encoder()
        work = commands.begin_compute_pass()
        work.set_pipeline(self.pipeline)
        if entries:
            layout = self.pipeline.get_bind_group_layout(0)
            work.set_bind_group(0, self.gpu.create_bind_group(layout=layout, entries=entries))
        work.dispatch_workgroups(*self.launch.blocks)
        work.end()
        self.gpu.queue.submit([commands.finish()])


class WebGPUDevice(CompiledDevice):
    """The GPU that WebGPU gives for computing."""

    def __init__(self, name: str) -> None:
        self.adapter = find_adapter(name)
        offered = [f for f in FEATURES if f in self.adapter.features]
        limits = {n: self.adapter.limits[n] for n in LIMITS if n in self.adapter.limits}
        self.gpu = self.adapter.request_device_sync(required_features=offered, required_limits=limits)
        self.memory = WebGPUAllocator(name, self.gpu)
        missing = frozenset[DType]().union(*(types for f, types in FEATURES.items() if f not in offered))
        threads = min(MOST_THREADS, self.gpu.limits["max-compute-invocations-per-workgroup"])
        fused = frozenset(t for t in WIDE_FLOATS - missing if self.fuses(t))
        shared = self.gpu.limits["max-compute-workgroup-storage-size"]
        renderer = WGSLRenderer(missing, threads, shared, fused, self.most_rounds(),
                                dtypes.int64 in missing or self.widens())
        usage = webgpu().BufferUsage
        self.fence = self.gpu.create_buffer(size=WORD, usage=usage.STORAGE | usage.COPY_SRC)
        """reading it takes until everything submitted before has run"""
        super().__init__(name, self.memory, renderer)
        self.queue = self.copies = CommandQueue(name, lambda: self.gpu.queue.read_buffer(self.fence))

    @property
    def compiler(self) -> str:
        info = self.adapter.info
        return f"wgpu {webgpu().__version__}: {info['device']}, {info['backend_type']}"

    def compile(self, source: str) -> Module:
        """Raises RuntimeError with the compiler's words and the source."""
        with self.explained(source):
            return Module(self.gpu.create_shader_module(code=source), source)

    @contextlib.contextmanager
    def explained(self, source: str) -> Iterator[None]:
        """What WebGPU refuses inside is an error with its words and the source."""
        try:
            yield
        except webgpu().GPUError as reason:
            said = f"{self.compiler} does not accept this kernel:\n{reason}\n{numbered(source)}"
            raise RuntimeError(said) from None

    def fuses(self, dtype: DType) -> bool:
        """Whether `fma` of this float type rounds once here; WGSL lets a device round the product too."""
        kind = {dtypes.float32: "f32", dtypes.float64: "f64"}[dtype]
        number = dtype.numpy.type(1 + 2.0 ** -(dtype.bits // 2))  # its square has more digits
        given = np.array([number, -(number * number), 0], dtype.numpy)
        return bool(self.probed(kind, "x[2] = fma(x[0], x[0], x[1]);", given)[2] != 0)

    def widens(self) -> bool:
        """Whether an int32 made an int64 is compared as one: Mesa 22.3 finds 2 < 3 wrong."""
        given = np.array([2, 0], np.int32)
        return bool(self.probed("i32", "x[1] = select(0i, 1i, i64(x[0]) < 3li);", given)[1])

    def most_rounds(self) -> int:
        """How often a thread may go round its loops: Mesa's llvmpipe stops one after 65,535 rounds."""
        enough = 1 << 17
        given = np.array([enough, 0], np.uint32)
        found = self.probed("u32", "for (var i = 0u; i < x[0]; i++) { x[1] += 1u; }", given)
        return 2**31 - 1 if found[1] == enough else int(found[1])

    def probed(self, kind: str, statement: str, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The numbers `given`, of WGSL's type `kind`, after a statement that changes them as the array x."""
        usage = webgpu().BufferUsage
        memory = self.gpu.create_buffer_with_data(data=given, usage=usage.STORAGE | usage.COPY_SRC)
        source = PROBE.format(kind=kind, statement=statement)
        self.load_blocks("probe", self.compile(source), ONE_THREAD).launch_on([memory])
        return np.frombuffer(self.gpu.queue.read_buffer(memory), given.dtype)

    def load_blocks(self, name: str, code: Module, launch: Launch) -> WebGPUProgram:
        """Raises RuntimeError as `compile` does: some limits are looked at here only."""
        stage = {"module": code.compiled, "entry_point": name}
        with self.explained(code.source):
            pipeline = self.gpu.create_compute_pipeline(layout="auto", compute=stage)
        return WebGPUProgram(self.gpu, self.memory, pipeline, launch)


def find_adapter(name: str) -> Any:
    """The adapter of a device's number: the fastest first, then all others. Raises RuntimeError where it is
    missing."""
    wgpu = webgpu()
    try:
        found = [wgpu.gpu.request_adapter_sync(power_preference="high-performance"),
                 *wgpu.gpu.enumerate_adapters_sync()]
    except RuntimeError as reason:
        raise RuntimeError(f"WEBGPU finds no GPU: {INSTALL} ({reason})") from None
    number = int(name.partition(":")[2] or 0)
    if number >= len(found):
        others = ", ".join(f"WEBGPU:{i} is {adapter.info['device']}" for i, adapter in enumerate(found) if i)
        raise RuntimeError(f"{name} is not there: {others}, and WEBGPU the fastest of these")
    return found[number]


def open_device(name: str) -> WebGPUDevice:
    """The device of this number. Raises RuntimeError where wgpu or a driver is missing."""
    return WebGPUDevice(name)
