"""Short schedules, run at once by the thread that asks for them.

In: the structure of a graph to compute, and its template (`schedule/cache.py`). Kernels that take less time
than handing them to a queue run right here where the queue is idle and nobody else uses their memory: no step
waits for another, and an interrupt (Ctrl-C) leaves everything lazy, or lets everything end where memory was
overwritten. So of all that `engine/realize.py` does for a schedule only addresses, calls and new BUFFERs are
left, half of what an operation on a small tensor costs. `run` says whether a template is of this kind; what
is not goes the way of any schedule.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from tinygrad.helpers import BEAM, complete
from tinygrad.schedule.cache import Structure, Template
from tinygrad.schedule.memory import Arena
from tinygrad.schedule.memory_views import shared_memory

MOST_KERNELS = 2048
"""Kernels up to which a template is looked at. To hand one over takes 30 us, to call it 3 (a training step of
409, an LSTM's of 50 steps, 14.4 and 3.8 ms, on Intel): what takes long in all is handed over anyway."""


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
    """A template with compiled kernels: those of one queue."""

    queue: ThreadedQueue
    beam: int
    """how wide a search the kernels' plans come from"""
    calls: tuple[KernelCall, ...]
    overwritten: tuple[int, ...]
    """the numbers of the structure's buffers that are written to"""
    visible: tuple[tuple[int, str, int, DType], ...]
    """(number, device, items, dtype) of the new memory that views show"""
    inner: Arena
    """where the memory that only the kernels use lies"""
    device: str
    work: Estimate
    sites: tuple[tuple[CompiledKernel, tuple[int, ...]], ...]
    """for each call, its kernel and the user's lines that it is for"""


def run(structure: Structure, template: Template | None, done: Callable[[], None], began: float = 0.0
        ) -> bool:
    """Compute what the template does for that structure, here and now, let its nodes stand for the results,
    and call `done`; False, with nothing done, where it is not of that kind or memory is in use. An observer
    is told that all of it began then; what began before somebody recorded is not."""
    if template is None:
        return False
    launch = template.launch
    if launch is None:
        launch = template.launch = launch_of(template, structure)
    if type(launch) is not CommandList or launch.beam != BEAM.value:
        return False
    watcher = observer.active if began else None
    observed: Any = watcher and (structure.observed or watcher.at_once(launch, template, structure))
    addresses, new = addresses_of(structure, launch), {}
    if addresses is None:
        return False
    for number, device, size, dtype in launch.visible:
        memory = new[number] = Buffer(device, size, dtype).allocate(False, (), not observed)
        if memory.uses is not None and memory.uses.before_writing():
            return False
        addresses[number] = memory.address
    if launch.inner.size:
        lines = observed.lines if observed else ()
        arena = Buffer(launch.device, launch.inner.size, dtypes.uint8).allocate(False, lines)
        if arena.uses is not None and arena.uses.before_writing():
            return False
        addresses.update((number, arena.address + offset) for number, offset in launch.inner.offsets.items())
    values = [value for _, _, _, value in structure.variables] if structure.variables else ()
    if None in values:
        return False
    queue = launch.queue
    times = [] if watcher is None else [began]
    with queue.lock:
        if not queue.runs_here(launch.work.seconds, ()):
            return False
        if launch.overwritten:
            before = queue.accepted

            def rest() -> None:
                """What is left: an exception (Ctrl-C) comes after it, or the writes would be done again."""
                run_calls(launch.calls[queue.accepted - before:], addresses, values, times)
                show(structure, template, new, observed)
                done()

            complete(rest)
        else:
            run_calls(launch.calls, addresses, values, times)
    launch.work.count(len(launch.calls))
    if not launch.overwritten:
        show(structure, template, new, observed)
        complete(done)
    if watcher is not None:
        times.append(clock())
        observed.ran(times)
    return True


def addresses_of(structure: Structure, launch: CommandList) -> dict[int, int] | None:
    """Where the structure's memory lies, by number; None where some is not there, or in use."""
    addresses = {}
    for number, node in enumerate(structure.buffers):
        memory = node.storage.buffer
        if memory is None or memory._memory is None:
            return None
        uses = memory.uses if memory.whole is None else memory.whole.uses
        if uses is not None and (uses.before_writing() if number in launch.overwritten
                                 else uses.before_reading()):
            return None
        addresses[number] = memory._address or memory.address
    return addresses


def run_calls(calls: Sequence[KernelCall], addresses: Mapping[int, int], values: Sequence[Any],
              times: list[float]) -> None:
    """Run kernels one after another. `times`, empty where nobody observes, gets when the first begins and
    when each ends."""
    if times:
        times.append(clock())
    for call in calls:
        call.program([addresses[slot] for slot in call.slots],
                     [values[number] if given else number for given, number in call.variables],
                     call.extent)
        if times:
            times.append(clock())


def show(structure: Structure, template: Template, new: dict[int, Buffer], observed: Any = None) -> None:
    """Let the structure's nodes stand for what was computed, of which new memory is `observed`."""
    nodes: dict[int, UOp] = {}
    for number, memory in new.items():
        node = nodes[number] = UOp.new_buffer(memory.device, memory.size, memory.dtype)
        node.storage.buffer = memory
        if observed:
            memory.change = observed.memory[number]
    if template.results:
        nodes.update(enumerate(structure.buffers))
        for number, shards in enumerate(template.results, len(structure.buffers) + len(template.fresh)):
            nodes[number] = shards.over(nodes)
    for position, view in template.views:
        node = structure.nodes[position]
        node.set_realized_view(shared_memory(node) if view is None else view.over(nodes))


def launch_of(template: Template, structure: Structure) -> CommandList | bool:
    """The launch of a template; False where it has none: memory of several devices, copies, devices without
    threads of the host, writes into memory by kernels that may fail."""
    given = len(structure.buffers)
    written = {slot for step in template.steps for slot in step.places[:step.outputs]}
    overwritten = tuple(sorted(slot for slot in written if slot < given))
    devices = {device for device, _, _ in template.fresh}
    devices.update(structure.buffers[number].arg.device for number in overwritten)
    if len(devices) != 1 or len(template.steps) > MOST_KERNELS or not template.steps:
        return False
    (name,) = devices
    queue = Device[name].queue
    transfers = any(step.ast.op in Family.TRANSFER for step in template.steps)
    shares_memory = any(view is None for _, view in template.views)
    if not isinstance(queue, ThreadedQueue) or transfers or (shares_memory and not overwritten):
        return False
    if overwritten and queue.may_fail:
        return False
    kernels = [compiled_kernel(step.ast, name) for step in template.steps]
    calls = []
    known = {len(structure.variables) + i: start[-1] for i, start in enumerate(template.starts)}
    for step, kernel in zip(template.steps, kernels, strict=True):
        bound = tuple((bool(v.source) and v.value not in known,
                       known.get(v.value, v.value) if v.source else v.value)
                      for v in kernel.takes(step.variables))
        calls.append(KernelCall(kernel.program, step.places, bound, kernel.extent))
    shown = {view.number for _, view in template.views if view is not None}
    shown.update(shard.number for memory in template.results for shard in memory.shards)
    visible = tuple((number, *spec) for number, spec in enumerate(template.fresh, given) if number in shown)
    arena = template.arenas[0][1] if template.arenas else Arena(0, {})
    work = sum((kernel.estimate for kernel in kernels), NO_WORK)
    sites = tuple((kernel, step.lines) for kernel, step in zip(kernels, template.steps, strict=True))
    return CommandList(queue, BEAM.value, tuple(calls), overwritten, visible, arena, name, work, sites)
