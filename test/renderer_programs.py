"""Programs written by hand, for tests of renderers: their instructions, and how they are run."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinygrad.codegen.numerics import numerics_for
from tinygrad.device import Buffer, Device
from tinygrad.device.devices import Program
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.rewrite import rewrite
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.scalar import scalar_program

Array = np.ndarray[Any, Any]

SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)

UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)

INTEGERS = SIGNED + UNSIGNED

WIDE_FLOATS = (dtypes.float32, dtypes.float64)

FLOATS = (dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.float16, dtypes.bfloat16, *WIDE_FLOATS)

INDEX = dtypes.index


# --- writing programs ----------------------------------------------------------------------------------


class Lines:
    """A linear program; adding a node adds the sources that are not there yet."""

    def __init__(self) -> None:
        self.nodes: list[UOp] = []
        self.identities = itertools.count()

    def add(self, node: UOp) -> UOp:
        listed = set(self.nodes)
        self.nodes += [n for n in node.toposort(stop=lambda n: n in listed) if n not in listed]
        return node

    def end(self, loop: UOp) -> None:
        self.nodes.append(new(Ops.END, INDEX, (loop,)))

    def read(self, register: UOp) -> UOp:
        return self.add(new(Ops.LOAD, register.dtype, (register,), next(self.identities)))


def new(op: Ops, dtype: DType, src: Sequence[UOp] = (), arg: Any = None) -> UOp:
    return UOp.new(op, dtype, tuple(src), arg)


def param(slot: int, dtype: DType, items: int) -> UOp:
    return new(Ops.PARAM, dtype, (), (slot, items))


def constant(value: Any, dtype: DType) -> UOp:
    return new(Ops.CONST, dtype, (), value)


def index(value: int) -> UOp:
    return UOp.const(value, INDEX)


def load(memory: UOp, offset: UOp, lanes: int = 1, valid: UOp | None = None) -> UOp:
    src = (memory, offset) if valid is None else (memory, offset, valid)
    return new(Ops.LOAD, memory.dtype.vec(lanes), (new(Ops.INDEX, memory.dtype, src),))


def store(memory: UOp, offset: UOp, value: UOp, valid: UOp | None = None) -> UOp:
    src = (memory, offset) if valid is None else (memory, offset, valid)
    return new(Ops.STORE, value.dtype, (new(Ops.INDEX, memory.dtype, src), value))


def in_primitives(value: UOp) -> UOp:
    """A value in the operations that the device has, as kernels come to their renderers."""
    return rewrite(value, numerics_for(Device[Device.DEFAULT].renderer.native))


def run(program: list[UOp], arrays: Sequence[Array], variables: Sequence[int] = (), extent: int = 1) -> None:
    """Run a program on arrays, which stand for its PARAMs by slot. A device without vectors gets it without;
    in blocks of threads, one thread does all."""
    check_graph(program, "program")
    device = Device[Device.DEFAULT]
    machine = device.renderer.machine
    if machine.has_blocks or machine.vector_items == 1:
        if any(n.op is Ops.RANGE and n.arg[1] is RangeKind.THREAD for n in program):
            pytest.skip("no plan of this device has ranges across CPU cores")
        program = scalar_program(program, machine)
    code = device.compile(device.renderer.render("tested", program))  # "kernel" is a word of OpenCL
    if machine.has_blocks:
        kernel = device.load_blocks("tested", code, launch_of(program))
    else:
        kernel = device.load("tested", code, device.renderer.scratch_bytes(program))
    if device.allocator.share(np.empty(1, np.uint8)) is not None:
        kernel([a.ctypes.data for a in arrays], variables, extent)
    else:
        run_on_copies(kernel, device.name, arrays, variables, extent)


def run_on_copies(kernel: Program, device: str, arrays: Sequence[Array], variables: Sequence[int], extent: int
                  ) -> None:
    """Run a kernel of a device with memory of its own, to which arrays are copied, and back."""
    buffers = [Buffer(device, max(1, a.nbytes), dtypes.uint8) for a in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        held = np.zeros(buffer.nbytes, np.uint8)
        held[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer.copyin(held.data)
    kernel([b.address for b in buffers], variables, extent)
    for buffer, array in zip(buffers, arrays, strict=True):
        array.reshape(-1).view(np.uint8)[:] = buffer.numpy()[:array.nbytes]


def equal(found: Array, expected: Array) -> None:
    """The same bits, except that any NaN equals any other."""
    assert found.dtype == expected.dtype
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), nan)
    bits = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])
