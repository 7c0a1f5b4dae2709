"""AMD: AMD's GPUs, through the HIP runtime and its compiler, hiprtc, as ROCm installs them (ctypes).

Kernels are HIP C (`renderer/cuda.py`), compiled in process for the GPU that is there. Memory, queues, and
graphs of kernels are those of `streams.py` and `stream_programs.py`, as CUDA's are: copies to the GPU run
beside kernels, and nobody waits but who reads.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

from tinygrad.device import CompiledDevice
from tinygrad.helpers import numbered
from tinygrad.renderer.cuda import hip_renderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import Machine
from tinygrad.runtime.stream_programs import StreamProgram
from tinygrad.runtime.streams import StreamAllocator, StreamGPU, StreamQueue
from tinygrad.store import key_of, store_of

INSTALL = "install ROCm (https://rocm.docs.amd.com), or use AMD:EMULATED"
SUCCESS, OUT_OF_MEMORY, NOT_READY, PEER_ACCESS_ALREADY_ENABLED = 0, 2, 600, 704
"""Of hipError_t."""
TO_DEVICE, TO_HOST, WITHIN_DEVICE = 1, 2, 3
"""Of hipMemcpyKind."""
NON_BLOCKING = 1
"""A stream that does not wait for the default one."""
TIMED, UNTIMED = 0, 2
"""Flags of events."""
OPTIONS = ("-O3", "-std=c++17", "-ffp-contract=off")

_HIP: dict[str, tuple[type, ...]] = {
    "hipInit": (c_uint,),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipSetDevice": (c_int,),
    "hipDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "hipMalloc": (POINTER(c_void_p), c_size_t),
    "hipFree": (c_void_p,),
    "hipHostMalloc": (POINTER(c_void_p), c_size_t, c_uint),
    "hipMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "hipMemcpyPeerAsync": (c_void_p, c_int, c_void_p, c_int, c_size_t, c_void_p),
    "hipDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "hipDeviceEnablePeerAccess": (c_int, c_uint),
    "hipStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipStreamSynchronize": (c_void_p,),
    "hipStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "hipEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipEventDestroy": (c_void_p,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventQuery": (c_void_p,),
    "hipEventSynchronize": (c_void_p,),
    "hipEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "hipModuleLoadData": (POINTER(c_void_p), c_char_p),
    "hipModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "hipGraphCreate": (POINTER(c_void_p), c_uint),
    "hipGraphAddKernelNode": (POINTER(c_void_p), c_void_p, POINTER(c_void_p), c_size_t, c_void_p),
    "hipGraphInstantiate": (POINTER(c_void_p), c_void_p, c_void_p, c_char_p, c_size_t),
    "hipGraphExecKernelNodeSetParams": (c_void_p, c_void_p, c_void_p),
    "hipGraphLaunch": (c_void_p, c_void_p),
    "hipGraphExecDestroy": (c_void_p,),
    "hipGraphDestroy": (c_void_p,),
}
"""The functions of libamdhip64 that are used, with their parameters; all return a hipError_t."""
_HIPRTC: dict[str, tuple[type, ...]] = {
    "hiprtcVersion": (POINTER(c_int), POINTER(c_int)),
    "hiprtcCreateProgram": (POINTER(c_void_p), c_char_p, c_char_p, c_int, c_void_p, c_void_p),
    "hiprtcCompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "hiprtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "hiprtcGetProgramLog": (c_void_p, c_char_p),
    "hiprtcGetCodeSize": (c_void_p, POINTER(c_size_t)),
    "hiprtcGetCode": (c_void_p, c_char_p),
    "hiprtcDestroyProgram": (POINTER(c_void_p),),
}


class Library:
    """A C library whose functions return a status. Raises OSError where it is not installed."""

    def __init__(self, name: str, functions: dict[str, tuple[type, ...]], words: str) -> None:
        try:
            self.loaded = ctypes.CDLL(name)
        except OSError as error:
            raise OSError(f"{name} is not on this machine: {INSTALL}") from error
        for function, parameters in functions.items():
            getattr(self.loaded, function).argtypes = parameters
        self.words = getattr(self.loaded, words)
        self.words.restype = c_char_p
        self.words.argtypes = (c_int,)

    def status(self, function: str, *arguments: object) -> int:
        return int(getattr(self.loaded, function)(*arguments))

    def call(self, function: str, *arguments: object, accepted: int = SUCCESS) -> bool:
        """Whether the function succeeded, and did not return the other status that is `accepted`. Raises
        MemoryError where the GPU has no memory left, RuntimeError with the library's words where the function
        fails otherwise."""
        status = self.status(function, *arguments)
        if status == OUT_OF_MEMORY:
            raise MemoryError(f"{function}: the GPU has no memory left")
        if status not in (SUCCESS, accepted):
            raise RuntimeError(f"{function} failed: {self.words(status).decode()}")
        return status == SUCCESS


@cache
def hip() -> Library:
    """The HIP runtime, ready to use."""
    library = Library("libamdhip64.so", _HIP, "hipGetErrorString")
    library.call("hipInit", 0)
    return library


@cache
def hiprtc() -> Library:
    """The compiler of HIP C."""
    return Library("libhiprtc.so", _HIPRTC, "hiprtcGetErrorString")


# --- compiling ------------------------------------------------------------------------------------------


def hiprtc_version() -> str:
    """The version of the compiler."""
    major, minor = c_int(), c_int()
    hiprtc().call("hiprtcVersion", byref(major), byref(minor))
    return f"hiprtc {major.value}.{minor.value}"


def compile_hip(source: str, architecture: str) -> bytes:
    """HIP C as machine code for an architecture such as gfx942, kept on disk. Raises RuntimeError with the
    compiler's words and the source."""
    options = [f"--offload-arch={architecture}", *OPTIONS]
    kept = store_of("hip")
    key = key_of(source, hiprtc_version(), *options)
    return kept.get_or_make(key, lambda: _compiled(source, options))


def _compiled(source: str, options: list[str]) -> bytes:
    compiler, program = hiprtc(), c_void_p()
    compiler.call("hiprtcCreateProgram", byref(program), source.encode(), b"kernel.hip", 0, None, None)
    try:
        given = (c_char_p * len(options))(*(o.encode() for o in options))
        if compiler.status("hiprtcCompileProgram", program, len(options), given) != SUCCESS:
            words = _text(compiler, "hiprtcGetProgramLogSize", "hiprtcGetProgramLog", program)
            raise RuntimeError(f"hiprtc does not accept this kernel:\n{words.rstrip(bytes(1)).decode()}\n"
                               f"{numbered(source)}")
        return _text(compiler, "hiprtcGetCodeSize", "hiprtcGetCode", program)
    finally:
        compiler.call("hiprtcDestroyProgram", byref(program))


def _text(compiler: Library, size_of: str, content_of: str, program: c_void_p) -> bytes:
    size = c_size_t()
    compiler.call(size_of, program, byref(size))
    content = ctypes.create_string_buffer(size.value)
    compiler.call(content_of, program, content)
    return content.raw


# --- the GPU --------------------------------------------------------------------------------------------


def architecture_name(version: int) -> str:
    """The name of an architecture by the number that Linux gives it: 90402 is gfx942, 90010 gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def gpu_at(bus: str, topology: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> tuple[str, int]:
    """The architecture of the GPU at a PCI address (0000:c1:00.0) and how many compute units it has, as Linux
    tells them. Raises RuntimeError where it does not."""
    domain, number, rest = bus.split(":")
    place = int(number, 16) << 8 | int(rest.partition(".")[0], 16) << 3 | int(rest.partition(".")[2], 16)
    for file in sorted(topology.glob("*/properties")):
        words = (line.partition(" ") for line in file.read_text().splitlines())
        found = {key: int(value) for key, _, value in words if value.isdecimal()}
        if found.get("gfx_target_version") and found.get("location_id") == place \
                and found.get("domain", 0) == int(domain, 16):
            units = found.get("simd_count", 0) // found.get("simd_per_cu", 1)
            return architecture_name(found["gfx_target_version"]), units or Machine.multiprocessors
    raise RuntimeError(f"Linux does not say which architecture the GPU at {bus} has ({topology})")


class GPU(StreamGPU):
    """One GPU, with a stream for kernels and one for copies to it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        count = c_int()
        hip().call("hipGetDeviceCount", byref(count))
        if number >= count.value:
            raise RuntimeError(f"there is no GPU number {number}: HIP finds {count.value}")
        self.number = number
        self.library = hip()
        self.enter()
        bus = ctypes.create_string_buffer(32)
        hip().call("hipDeviceGetPCIBusId", bus, len(bus), number)
        self.architecture, self.compute_units = gpu_at(bus.value.decode())
        self.stream, self.copy_stream = self.new_stream(), self.new_stream()

    def new_stream(self) -> int:
        """A stream whose commands wait for those of no other."""
        return made("hipStreamCreateWithFlags", NON_BLOCKING)

    def enter(self) -> None:
        hip().call("hipSetDevice", self.number)

    def obtain(self, size: int) -> int:
        return made("hipMalloc", size)

    def release(self, address: int) -> None:
        hip().call("hipFree", address)

    def pinned(self, size: int) -> int:
        return made("hipHostMalloc", size, 0)

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        hip().call("hipMemcpyAsync", target, source, size, TO_DEVICE, stream)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        hip().call("hipMemcpyAsync", target, source, size, TO_HOST, stream)

    def copy_from(self, other: GPU, target: int, source: int, size: int, stream: int) -> None:
        if other is self:
            hip().call("hipMemcpyAsync", target, source, size, WITHIN_DEVICE, stream)
        else:
            hip().call("hipMemcpyPeerAsync", target, self.number, source, other.number, size, stream)

    def use_memory_of(self, other: GPU) -> None:
        can = c_int()
        hip().call("hipDeviceCanAccessPeer", byref(can), self.number, other.number)
        if can.value:
            self.enter()
            hip().call("hipDeviceEnablePeerAccess", other.number, 0, accepted=PEER_ACCESS_ALREADY_ENABLED)

    def new_event(self, timed: bool) -> int:
        return made("hipEventCreateWithFlags", TIMED if timed else UNTIMED)

    def destroy_event(self, event: int) -> None:
        self.library.call("hipEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        hip().call("hipEventRecord", event, stream)

    def is_past(self, event: int) -> bool:
        return hip().call("hipEventQuery", event, accepted=NOT_READY)

    def await_event(self, event: int) -> None:
        hip().call("hipEventSynchronize", event)

    def seconds_between(self, first: int, last: int) -> float:
        milliseconds = c_float()
        hip().call("hipEventElapsedTime", byref(milliseconds), first, last)
        return milliseconds.value * 1e-3

    def let_wait(self, stream: int, event: int) -> None:
        hip().call("hipStreamWaitEvent", stream, event, 0)

    def await_stream(self, stream: int) -> None:
        hip().call("hipStreamSynchronize", stream)

    def unload(self, module: int) -> None:
        self.library.call("hipModuleUnload", module)

    def start_kernel(self, function: int, sizes: Sequence[int], arguments: int) -> None:
        hip().call("hipModuleLaunchKernel", function, *sizes, self.stream, arguments, None)

    def new_graph(self) -> int:
        return made("hipGraphCreate", 0)

    def add_kernel(self, graph: int, before: Sequence[int], function: int, sizes: Sequence[int],
                   arguments: int) -> int:
        earlier = (c_void_p * len(before))(*before)
        return made("hipGraphAddKernelNode", graph, earlier, len(before),
                    byref(node(function, sizes, arguments)))

    def finished_graph(self, graph: int) -> int:
        return made("hipGraphInstantiate", graph, None, None, 0)

    def change_kernel(self, executable: int, kernel: int, function: int, sizes: Sequence[int], arguments: int
                      ) -> None:
        hip().call("hipGraphExecKernelNodeSetParams", executable, kernel,
                   byref(node(function, sizes, arguments)))

    def start_graph(self, executable: int, stream: int) -> None:
        hip().call("hipGraphLaunch", executable, stream)

    def destroy_graph(self, graph: int, executable: int) -> None:
        self.library.call("hipGraphExecDestroy", executable)
        self.library.call("hipGraphDestroy", graph)


def made(function: str, *arguments: object) -> int:
    """The address, or handle, that a function of HIP puts where its first argument points."""
    found = c_void_p()
    hip().call(function, byref(found), *arguments)
    return found.value or 0


class KernelNode(ctypes.Structure):
    """hipKernelNodeParams: what a kernel of a graph is told, its code, its grid, and its arguments."""

    _fields_ = (("threads", c_uint * 3), ("extra", c_void_p), ("function", c_void_p), ("blocks", c_uint * 3),
                ("arguments", c_void_p), ("shared", c_uint))


def node(function: int, sizes: Sequence[int], arguments: int) -> KernelNode:
    """As `KernelNode` lays it out."""
    blocks, threads = (c_uint * 3)(*sizes[:3]), (c_uint * 3)(*sizes[3:6])
    return KernelNode(threads, None, function, blocks, arguments, sizes[6])


def loaded(name: str, code: bytes, launch: Launch, gpu: GPU) -> StreamProgram:
    """A kernel on its GPU."""
    gpu.enter()
    module = made("hipModuleLoadData", code)
    return StreamProgram(gpu, module, made("hipModuleGetFunction", module, name.encode()), launch)


class HIPDevice(CompiledDevice):
    """A GPU."""

    def __init__(self, name: str, gpu: GPU) -> None:
        super().__init__(name, StreamAllocator(name, gpu),
                         hip_renderer(gpu.architecture, gpu.compute_units))
        self.gpu = gpu
        self.queue = StreamQueue(name, gpu, gpu.stream)
        self.copies = StreamQueue(f"{name} copies", gpu, gpu.copy_stream)

    @property
    def compiler(self) -> str:
        return f"{hiprtc_version()} for {self.gpu.architecture}"

    def compile(self, source: str) -> bytes:
        return compile_hip(source, self.gpu.architecture)

    def load_blocks(self, name: str, code: bytes, launch: Launch) -> StreamProgram:
        return loaded(name, code, launch, self.gpu)


def open_device(name: str) -> HIPDevice:
    """A GPU by its number. Raises OSError or RuntimeError where there is none, saying what to install."""
    hip()
    hiprtc_version()
    return HIPDevice(name, GPU(int(name.partition(":")[2] or 0)))
