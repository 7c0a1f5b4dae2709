"""Short schedules, run at once by the thread that asks for them.

In: the structure of a graph to compute, and its template (`schedule/cache.py`). Kernels that take less time
than handing them to a queue run right here where the queue is idle and nobody else uses their memory: no step
waits for another, and an interrupt (Ctrl-C) leaves everything lazy. So of all that `engine/realize.py` does
for a schedule only addresses, calls and new BUFFERs are left, half of what an operation on a small tensor
costs. `run` says whether a template is of this kind; what is not goes the way of any schedule.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinygrad import observer
from tinygrad.codegen.compile import CompiledKernel, compiled_kernel
from tinygrad.codegen.cost import NO_WORK, Estimate
from tinygrad.device import Buffer, Device, Program
from tinygrad.device.queue import ThreadedQueue, clock
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family
from tinygrad.graph.uop import UOp
from tinygrad.helpers import BEAM
from tinygrad.schedule.cache import Structure, Template, TemplateView

MOST_KERNELS = 32
"""Kernels up to which a template is looked at: what has more takes longer than handing it over."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, and where its arguments come from."""

    program: Program
    slots: tuple[int, ...]
    """the numbers of its buffers, as the template counts them"""
    variables: tuple[tuple[bool, int], ...]
    """for each variable of the kernel, (whether it is given by number, that number or its value)"""
    extent: int


@dataclass(frozen=True, slots=True)
class CommandList:
    """A template with compiled kernels: those of one queue, which write new memory alone."""

    queue: ThreadedQueue
    beam: int
    """how wide a search the kernels' plans come from"""
    calls: tuple[KernelCall, ...]
    views: tuple[tuple[int, TemplateView], ...]
    """for each node that gets a value, its position in the structure and what shows it"""
    visible: tuple[tuple[int, str, int, DType], ...]
    """(number, device, items, dtype) of the new memory that views show"""
    inner: tuple[tuple[int, int], ...]
    """(number, offset in bytes) of the memory that only the kernels use, in one piece"""
    inner_bytes: int
    device: str
    work: Estimate
    sites: tuple[tuple[CompiledKernel, tuple[int, ...]], ...]
    """for each call, its kernel and the user's lines that it is for"""


def run(structure: Structure, template: Template | None, began: float = 0.0) -> bool:
    """Compute what the template does for that structure, here and now, and let its nodes stand for the
    results; False, with nothing done, where it is not of that kind or memory is in use. An observer is told
    that all of it began then; what began before somebody recorded is not."""
    if template is None:
        return False
    launch = template.launch
    if launch is None:
        launch = template.launch = launch_of(template, len(structure.buffers))
    if type(launch) is not CommandList or launch.beam != BEAM.value:
        return False
    watcher = observer.active if began else None
    observed: Any = watcher and (structure.observed or watcher.at_once(launch, template, structure))
    addresses, new = {}, {}
    for number, node in enumerate(structure.buffers):
        memory = node.storage.buffer
        if memory is None or memory._memory is None:
            return False
        uses = memory.uses if memory.whole is None else memory.whole.uses
        if uses is not None and uses.before_reading():
            return False
        addresses[number] = memory._address or memory.address
    for number, device, size, dtype in launch.visible:
        memory = new[number] = Buffer(device, size, dtype).allocate(False, (), not observed)
        if memory.uses is not None and memory.uses.before_writing():
            return False
        addresses[number] = memory.address
    if launch.inner:
        lines = observed.lines if observed else ()
        arena = Buffer(launch.device, launch.inner_bytes, dtypes.uint8).allocate(False, lines)
        if arena.uses is not None and arena.uses.before_writing():
            return False
        addresses.update((number, arena.address + offset) for number, offset in launch.inner)
    values = [value for _, _, _, value in structure.variables] if structure.variables else ()
    if None in values:
        return False
    queue = launch.queue
    with queue.lock:
        if not queue.runs_here(launch.work.seconds, ()):
            return False
        times = [] if watcher is None else [began, clock()]
        for call in launch.calls:
            call.program([addresses[slot] for slot in call.slots],
                         [values[number] if given else number for given, number in call.variables],
                         call.extent)
            if watcher is not None:
                times.append(clock())
    launch.work.count(len(launch.calls))
    nodes = {}
    for number, memory in new.items():
        node = nodes[number] = UOp.new_buffer(memory.device, memory.size, memory.dtype)
        node.storage.buffer = memory
        if observed:
            memory.change = observed.memory[number]
    for position, view in launch.views:
        structure.nodes[position].set_realized_view(view.over(nodes))
    if watcher is not None:
        times.append(clock())
        observed.ran(times)
    return True


def launch_of(template: Template, given: int) -> CommandList | bool:
    """The launch of a template whose structure has so many buffers; False where it has none: several
    devices, copies, writes into memory that tensors show, devices without threads of the host."""
    devices = {device for device, _, _ in template.fresh}
    if len(devices) != 1 or len(template.items) > MOST_KERNELS or not template.items:
        return False
    (name,) = devices
    queue = Device[name].queue
    written = {slot for item in template.items for slot in item.slots[:item.outputs]}
    transfers = any(item.ast.op in Family.TRANSFER for item in template.items)
    if not isinstance(queue, ThreadedQueue) or min(written) < given or transfers or any(
            view is None for _, view in template.views):
        return False
    kernels = [compiled_kernel(item.ast, name) for item in template.items]
    calls = []
    for item, kernel in zip(template.items, kernels, strict=True):
        bound = tuple((bool(source), number) for _, source, number in kernel.takes(item.variables))
        calls.append(KernelCall(kernel.program, item.slots, bound, kernel.extent))
    views = tuple((position, view) for position, view in template.views if view is not None)
    shown = {view.number for _, view in views}
    numbered = list(enumerate(template.fresh, given))
    visible = tuple((number, *spec) for number, spec in numbered if number in shown)
    offsets = dict(template.arenas[0][1].offsets) if template.arenas else {
        number: 0 for number, _ in numbered if number not in shown}
    inner_bytes = template.arenas[0][1].size if template.arenas else max(
        (size * dtype.itemsize for number, (_, size, dtype) in numbered if number in offsets), default=0)
    work = sum((kernel.estimate for kernel in kernels), NO_WORK)
    sites = tuple((kernel, item.lines) for kernel, item in zip(kernels, template.items, strict=True))
    return CommandList(queue, BEAM.value, tuple(calls), views, visible, tuple(offsets.items()), inner_bytes,
                       name, work, sites)
