"""The runtime of Metal where there is no Mac: against objects that keep memory on the host and run kernels on
the emulator. Which messages they are sent, in which order, is what counts here."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import struct
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drivers import HostMemory, compute, emulated, launch, let_go, needs_compiler, register, rng

from tinygrad import Device, Tensor
from tinygrad.runtime import metal


class MetalObjects:
    """Objects that understand the messages which `runtime/metal.py` sends, at numbers that stand for
    addresses. The GPU is late: it does nothing before somebody waits."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.objects: dict[int, Any] = {1: "device"}
        self.references: dict[int, int] = {}
        """of buffers and command buffers"""
        self.waiting: list[int] = []
        """committed command buffers"""
        self.dispatched = 0
        self.copied = 0

    def new(self, content: Any) -> int:
        self.objects[len(self.objects) + 1] = content
        return len(self.objects)

    def new_buffer(self, size: int) -> int:
        buffer = self.new(self.memory.obtain(size))
        self.references[buffer] = 1
        return buffer

    def class_named(self, name: str) -> int:
        return self.new(name)

    def pool(self) -> Any:
        return contextlib.nullcontext()

    def send(self, target: int, message: str, *arguments: Any, returns: Any = None) -> Any:
        name = message.replace(":", "_").rstrip("_")
        return getattr(self, name)(target, *arguments)

    def same(self, target: int, *arguments: Any) -> int:
        return target

    alloc = init = same

    def retain(self, target: int) -> int:
        self.references[target] += 1
        return target

    def release(self, target: int) -> None:
        if target in self.references:
            self.references[target] -= 1
            assert self.references[target] >= 0
            if not self.references[target] and isinstance(self.objects[target], int):
                self.memory.release(self.objects[target])

    def setFastMathEnabled(self, options: int, value: bool) -> None:
        assert self.objects[options] == "MTLCompileOptions" and value is False

    def stringWithUTF8String(self, target: int, text: ctypes.c_char_p) -> int:
        return self.new((text.value or b"").decode())

    def UTF8String(self, target: int) -> bytes:
        return str(self.objects[target]).encode()

    localizedDescription = name = same

    def newCommandQueue(self, device: int) -> int:
        return self.new("queue")

    def newBufferWithLength_options(self, device: int, size: int, options: int) -> int:
        return self.new_buffer(size)

    def newBufferWithBytes_length_options(self, device: int, data: int, size: int, options: int) -> int:
        buffer = self.new_buffer(size)
        ctypes.memmove(self.objects[buffer], data, size)
        return buffer

    def contents(self, buffer: int) -> int:
        return int(self.objects[buffer])

    def newLibraryWithSource_options_error(self, device: int, source: int, options: int, error: Any) -> int:
        try:
            return self.new(emulated("METAL", self.objects[source]))
        except RuntimeError as wrong:
            error._obj.value = self.new(str(wrong).partition("\n    1")[0])
            return 0

    def newFunctionWithName(self, library: int, name: int) -> int:
        return library

    def newComputePipelineStateWithFunction_error(self, device: int, function: int, error: Any) -> int:
        return function

    def commandBuffer(self, queue: int) -> int:
        commands = self.new({"uses": [], "status": 0})
        self.references[commands] = 0
        return commands

    computeCommandEncoder = blitCommandEncoder = same

    def use(self, encoder: int, buffer: int) -> int:
        """The address of a buffer, which the commands keep."""
        self.retain(buffer)
        self.objects[encoder]["uses"].append(buffer)
        return int(self.objects[buffer])

    def setComputePipelineState(self, encoder: int, pipeline: int) -> None:
        self.objects[encoder]["code"] = self.objects[pipeline]

    def setBuffer_offset_atIndex(self, encoder: int, buffer: int, offset: int, position: int) -> None:
        self.objects[encoder][position] = self.use(encoder, buffer) + offset

    def setBytes_length_atIndex(self, encoder: int, data: ctypes.c_char_p, size: int, position: int) -> None:
        self.objects[encoder][position] = struct.unpack("q", ctypes.string_at(data, size))[0]

    def dispatchThreadgroups_threadsPerThreadgroup(self, encoder: int, blocks: metal.MTLSize,
                                                   threads: metal.MTLSize) -> None:
        given = self.objects[encoder]
        sizes = [n for size in (blocks, threads) for n in (size.width, size.height, size.depth)]
        values = np.array([given[i] for i in range(sum(isinstance(key, int) for key in given))], np.int64)

        def run() -> None:
            self.dispatched += 1
            assert launch(given["code"].address("emulated"), sizes, values)

        given["run"] = run

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
            self, encoder: int, source: int, start: int, target: int, position: int, size: int) -> None:
        from_address, to = self.use(encoder, source) + start, self.use(encoder, target) + position

        def run() -> None:
            self.copied += 1
            self.memory.check(from_address, size)
            self.memory.check(to, size)
            ctypes.memmove(to, from_address, size)

        self.objects[encoder]["run"] = run

    def endEncoding(self, encoder: int) -> None:
        self.objects[encoder]["ended"] = True

    def commit(self, commands: int) -> None:
        assert self.objects[commands]["ended"]
        self.waiting.append(commands)

    def status(self, commands: int) -> int:
        return int(self.objects[commands]["status"])

    def error(self, commands: int) -> int:
        return self.new("words of the GPU")

    def waitUntilCompleted(self, commands: int) -> None:
        while self.objects[commands]["status"] < metal.COMPLETED:
            done = self.objects[self.waiting.pop(0)]
            done["run"]()
            done["status"] = done.get("ends", metal.COMPLETED)
            for buffer in done["uses"]:
                self.release(buffer)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetalObjects]:
    """A Mac."""
    fake = MetalObjects()
    monkeypatch.setattr(metal, "objective_c", lambda: fake)
    monkeypatch.setattr(metal, "open_device", lambda name: metal.MetalDevice(name, 1))
    register(monkeypatch, "IMAGINED", "tinygrad.runtime.metal")
    yield fake
    let_go("IMAGINED")


@needs_compiler
def test_metal_computes(objects: MetalObjects) -> None:
    compute("IMAGINED")
    assert objects.dispatched
    assert Device["IMAGINED"].compiler == "Metal for device"


@needs_compiler
def test_starting_kernels_and_copies_waits_for_nothing(objects: MetalObjects) -> None:
    """What is copied is what was there when the copy was asked for, whatever runs before and after."""
    a, b = rng.normal(size=(2, 5000)).astype(np.float32)
    x = Tensor(a, device="IMAGINED").realize()
    y = (x * 2).realize()
    x.assign(Tensor(b).realize().to("IMAGINED")).realize()
    z = (x + y).realize()
    assert (objects.dispatched, objects.copied) == (0, 0)
    np.testing.assert_array_equal(z.numpy(), b + a * 2)
    assert objects.dispatched >= 2 and objects.copied == 1
    np.testing.assert_array_equal(y.numpy(), a * 2)


@needs_compiler
def test_memory_of_the_gpu_is_copied_by_the_gpu(objects: MetalObjects) -> None:
    target = Tensor([0.0, 0.0], device="IMAGINED").realize().uop.base.buffer
    source = Tensor([5.0, 6.0], device="IMAGINED").realize().uop.base.buffer
    point = Device["IMAGINED"].queue.copy(target, source, 0)
    assert point is not None and not point.is_past
    target.add_use(point, True)
    np.testing.assert_array_equal(target.numpy(), [5, 6])


@needs_compiler
def test_the_host_waits_for_what_it_reads_alone(objects: MetalObjects) -> None:
    x = Tensor([1.0, 2.0], device="IMAGINED").realize()
    first, second = (x + 1).realize(), (x * 5).realize()
    assert first.tolist() == [2, 3] and objects.dispatched == 1
    assert second.tolist() == [5, 10] and objects.dispatched == 2


@needs_compiler
def test_memory_and_commands_go_when_nobody_has_them(objects: MetalObjects) -> None:
    x = Tensor(np.ones(1000, np.float32), device="IMAGINED").realize()
    y = (x + 1).realize()
    y.assign(Tensor(np.zeros(1000, np.float32)).realize().to("IMAGINED")).realize()
    assert not y.numpy().any()
    del x, y
    device = Device["IMAGINED"]
    device.synchronize()
    gc.collect()
    device.allocator.free_cache()
    assert not objects.memory.blocks and not device.queue.memory.starts


@needs_compiler
def test_what_a_kernel_does_wrong_is_an_error_where_its_result_is_read(objects: MetalObjects) -> None:
    y = (Tensor([1.0, 2.0], device="IMAGINED") + 1).realize()
    objects.objects[objects.waiting[-1]]["ends"] = metal.FAILED
    with pytest.raises(RuntimeError, match="a command on the GPU failed: words of the GPU"):
        y.numpy()
    assert (Tensor([1.0, 2.0], device="IMAGINED") + 1).tolist() == [2, 3]


@needs_compiler
def test_what_metal_refuses_is_shown_with_the_reason(objects: MetalObjects) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Metal does not accept .*wrong.*    1  kernel void k"):
        Device["IMAGINED"].compile("kernel void k(device float *p) { p[0] = wrong; }")


def test_messages_pass_their_arguments_as_c_does() -> None:
    """Objects and numbers as 64 bits, structures by value, an error's place by its address."""
    received = []

    @ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, metal.MTLSize, ctypes.c_bool,
                      ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
    def receiver(target: int, selector: int, size: metal.MTLSize, flag: bool, text: bytes, error: Any) -> int:
        received.append((target, selector, size.width, size.height, size.depth, flag, text))
        error[0] = 2**40
        return 2**50

    runtime = object.__new__(metal.ObjectiveC)
    runtime.runtime = SimpleNamespace(sel_registerName=lambda name: {b"a:b:c:d:": 9}[name])
    runtime.address = ctypes.cast(receiver, ctypes.c_void_p).value or 0
    error = ctypes.c_void_p()
    found = runtime.send(2**45, "a:b:c:d:", metal.MTLSize(2**33, 5, 6), True, ctypes.c_char_p(b"text"),
                         ctypes.byref(error))
    assert found == 2**50 and error.value == 2**40
    assert received == [(2**45, 9, 2**33, 5, 6, True, b"text")]


def test_an_address_outside_of_all_buffers_is_an_error() -> None:
    memory = metal.MetalMemory()
    memory.add(1000, 5, 100)
    memory.add(500, 6, 10)
    assert memory.find(1000) == (5, 0) and memory.find(1099) == (5, 99) and memory.find(509) == (6, 9)
    for address in (499, 510, 1100):
        with pytest.raises(RuntimeError, match="no Metal buffer"):
            memory.find(address)
    assert memory.remove(1000) == 5
    with pytest.raises(RuntimeError, match="no Metal buffer"):
        memory.find(1000)


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_metal_needs_a_mac() -> None:
    with pytest.raises(OSError, match=r"METAL needs macOS.*METAL:EMULATED"):
        metal.open_device("METAL")


