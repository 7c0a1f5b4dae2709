"""Computing graph nodes: schedule them, compile each kernel once, give outputs memory, run.

In: the nodes to realise. Afterwards `node.realized_view` of each is a view of a BUFFER with its value. A function
that is being captured (`engine/jit.py`) sees every item that runs here.
"""
from __future__ import annotations

import time
from collections.abc import Sequence

from tinygrad.codegen.compile import CompiledKernel, compiled_kernel
from tinygrad.device import Buffer, Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, GlobalCounters, colored
from tinygrad.schedule.items import ScheduleItem, create_schedule


class Capture:
    """What runs while a function is traced."""

    active: Capture | None = None
    """the capture in progress"""

    def __init__(self) -> None:
        self.items: list[ScheduleItem] = []

    def __enter__(self) -> Capture:
        if Capture.active is not None:
            raise RuntimeError("a capture is already in progress")
        Capture.active = self
        return self

    def __exit__(self, *exc: object) -> None:
        Capture.active = None


def schedule_uops(uops: Sequence[UOp]) -> list[ScheduleItem]:
    """The steps that would compute `uops`, without running them."""
    return create_schedule(list(uops)).items


def realize_uops(uops: Sequence[UOp]) -> None:
    """Compute `uops`. Nodes that have a value already, and views of buffers, cost nothing."""
    schedule = create_schedule(list(uops))
    pending = list(reversed(schedule.items))
    if Capture.active is not None:
        Capture.active.items.extend(schedule.items)
    schedule.items.clear()
    while pending:
        run_item(pending.pop())
    for node, view in schedule.views.items():
        if view.base.op is Ops.BUFFER and view.base.buffer is None:
            allocate(view.base)
        node.set_realized_view(view)


def allocate(node: UOp) -> Buffer:
    """The memory of a BUFFER node, made now if it has none."""
    buffer = node.buffer
    if buffer is None:
        buffer = Buffer(node.arg.device, node.arg.size, node.dtype)
        node.set_buffer(buffer)
    buffer.allocate()
    return buffer


def run_item(item: ScheduleItem) -> None:
    """Run one step on the memory of its BUFFER nodes."""
    buffers = [allocate(b) for b in item.buffers]
    if item.ast.op is Ops.COPY:
        copy_between(buffers[0], buffers[1])
        return
    kernel = compiled_kernel(item.ast, item.device)
    variables = variable_values(kernel, item)
    start = time.perf_counter()
    if all(b.size for b in buffers[:item.outputs]):
        kernel.program([b.address for b in buffers], variables, kernel.extent)
    count(kernel, item, time.perf_counter() - start)


def variable_values(kernel: CompiledKernel, item: ScheduleItem) -> list[int]:
    """The item's variables in the order in which the kernel takes them."""
    bound = {v.name: v.value for v in item.variables}
    missing = [name for name in kernel.variables if bound.get(name) is None]
    if missing:
        raise RuntimeError(f"the variable {', '.join(missing)} has no value; bind it: variable.bind(3)")
    return [bound[name] for name in kernel.variables]


def copy_between(target: Buffer, source: Buffer) -> None:
    """Copy the items of one buffer into another, on whatever devices they are."""
    staging = bytearray(source.nbytes)
    source.copyout(memoryview(staging))
    target.copyin(memoryview(staging))
    GlobalCounters.global_mem += source.nbytes


def count(kernel: CompiledKernel, item: ScheduleItem, seconds: float) -> None:
    """Add a run to the counters; at DEBUG=2 print it, waiting for it to end."""
    GlobalCounters.kernel_count += 1
    GlobalCounters.global_ops += kernel.estimate.operations
    GlobalCounters.global_mem += kernel.estimate.bytes
    if DEBUG < 2:
        return
    Device[item.device].synchronize()
    GlobalCounters.time_sum_s += seconds
    gflops = kernel.estimate.operations / seconds * 1e-9
    bandwidth = kernel.estimate.bytes / seconds * 1e-9
    print(f"{GlobalCounters.kernel_count:5d} {item.device:6s} {colored(f'{kernel.name:40s}', 'CYAN')} "
          f"{seconds * 1e6:10.1f} us {gflops:8.1f} GFLOP/s {bandwidth:7.1f} GB/s  "
          f"{GlobalCounters.mem_used * 1e-6:8.1f} MB used" + ("" if DEBUG < 3 else f"  {kernel.plan}"))
