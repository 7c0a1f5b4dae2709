"""Computing graph nodes: schedule them, compile each kernel once, give outputs memory, run.

In: the nodes to realise. Afterwards `node.realized_view` of each is a view of a BUFFER that has its value
once the commands are done which `Submission` gave to the devices' queues. A function that is being captured
(`capture.py`) sees every item that runs here.

An exception on the way (Ctrl-C, no memory) leaves lazy what was not computed. But once a step has
overwritten memory, the other steps follow before the exception does: they may write the rest of a tensor, or
compute what was asked for while its operands are there. What they need is allocated and compiled before the
first such step.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad import observer
from tinygrad.codegen.compile import CompiledKernel, compile_kernels, compiled_kernel
from tinygrad.device import Buffer, Device, RepeatedUse
from tinygrad.device.queue import CommandQueue, Order, TimelinePoint, clock
from tinygrad.dtype import dtypes
from tinygrad.engine import immediate
from tinygrad.engine.capture import Capture, users_line
from tinygrad.engine.copying import queue_for_copy, transfer_of
from tinygrad.graph.batch import TransformError
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.storage import Overwriting, Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, GlobalCounters, Uninterrupted, colored, complete, engine_lock
from tinygrad.schedule.items import Intermediates, Schedule, ScheduleItem, Step
from tinygrad.schedule.persistent_cache import schedules

if hasattr(os, "register_at_fork"):
    # A child begins with the lock free, whatever other threads did. What is registered last comes first:
    # no thread gives work to the queues while these finish theirs (`device/queue.py`).
    os.register_at_fork(before=engine_lock.acquire, after_in_parent=engine_lock.release,
                        after_in_child=engine_lock.release)


before_scheduling: list[Callable[[Any], bool]] = []
"""Called with the `Structure` of a graph that nobody has scheduled: whether a part of it was computed now."""


def schedule_uops(uops: Sequence[UOp]) -> list[ScheduleItem]:
    """The steps that would compute `uops`, without running them."""
    return schedules.schedule(uops).items


def realize_uops(uops: Sequence[UOp], done: Callable[[], None] = lambda: None) -> None:
    """Compute `uops`. Nodes that have a value already, and views of buffers, cost nothing. Calls `done` when
    everything is computed; twice, if an interrupt (Ctrl-C) broke it up, so that it always comes to its end
    (`helpers.complete` says why)."""
    watcher = observer.active
    if watcher is None:
        _realize(uops, done)
        return
    began, is_told = clock(), False
    try:
        is_told = _realize(uops, done, began)
    finally:
        if not is_told:
            watcher.ran("realize", "", began)


def _realize(uops: Sequence[UOp], done: Callable[[], None], began: float = 0.0) -> bool:
    """Whether the observer was told of it, as of what began then."""
    capture = Capture.current()
    if capture is not None:
        capture.use(uops)
    structure = schedules.structure_of(uops)
    if structure is None:
        schedule = schedules.schedule(uops)
    else:
        template = schedules.known(structure, capture is None)
        if template is None and capture is None and any([part(structure) for part in before_scheduling]):
            return _realize(uops, done, began)
        if capture is None and DEBUG.value < 2 and immediate.run(structure, template, done, began):
            return True
        schedule = schedules.of_structure(structure, template, capture is None)
    if (watcher := observer.active) is not None and schedule.structure is not None:
        watcher.scheduled(schedule.structure, schedule, schedule.is_new)
    schedule.structure = None  # it holds nodes, whose memory is somebody else's once they have run
    if len(schedule.items) > 1:
        compile_kernels((i.ast, i.device) for i in schedule.items
                        if i.ast.op not in Family.TRANSFER and not Device[i.device].elsewhere)
    if capture is not None:
        capture.add(schedule.items)
    steps = Steps(schedule)
    for shared in schedule.intermediates:
        place_in_arena(shared, {} if capture is None else capture.arenas)
    schedule.intermediates.clear()

    def note() -> None:
        for node, view in schedule.views.items():
            for memory in view.base.memories if view.base.op is Ops.BUFFER else ():
                if memory.buffer is None:
                    allocate(memory)
            node.set_realized_view(view)
        done()

    try:
        steps.run()
        note()
    except BaseException:
        with Uninterrupted():
            steps.submission.resume()
            if steps.are_given:
                note()
            else:
                keep_finished(schedule, steps.unwritten)
        raise
    return False


class Steps:
    """The steps of a schedule, which they are taken from, on their way to their devices."""

    def __init__(self, schedule: Schedule) -> None:
        self.items: list[ScheduleItem | None] = [*schedule.items]
        """None for what was given: nobody else may need its memory"""
        self.ready: dict[int, Prepared] = {}
        """by number, from the first on that overwrites memory"""
        self.submission = Submission()
        self.first_write = self.first_to_overwrite(schedule)
        schedule.items.clear()

    def first_to_overwrite(self, schedule: Schedule) -> int:
        """The number of the first step that writes to memory which tensors show; of the end without one."""
        overwritten = {memory.storage for node in schedule.views if node.op is Ops.ASSIGN
                       for memory in node.src[0].base.memories}
        end = len(schedule.items)
        if not overwritten:
            return end
        return next((number for number, item in enumerate(schedule.items)
                     if any(b.storage in overwritten for b in item.buffers[:item.outputs])), end)

    @property
    def are_given(self) -> bool:
        return self.submission.steps == len(self.items)

    @property
    def unwritten(self) -> set[Storage]:
        """The memory that steps not yet given would write."""
        return {b.storage for item in self.items[self.submission.steps:] if item is not None
                for b in item.buffers[:item.outputs]}

    def run(self) -> None:
        """Give all of them to their devices' queues."""
        try:
            self.run_until(self.first_write)
            if not self.are_given:
                self.ready = {n: self.prepared(n) for n in range(self.first_write, len(self.items))}
                complete(lambda: self.run_until(len(self.items)))
        finally:
            self.submission.finish()

    def run_until(self, end: int) -> None:
        """Give the steps up to number `end` that were not given yet."""
        run = self.submission
        run.resume()
        while (number := run.steps) < end:
            (self.ready.get(number) or self.prepared(number)).run(run)
            self.items[number] = None
            self.ready.pop(number, None)

    def prepared(self, number: int) -> Prepared:
        """The step of that number with its kernel compiled and its memory allocated."""
        item = self.items[number]
        assert item is not None, "a step that was given"
        return Prepared.of(item)


def place_in_arena(shared: Intermediates, arenas: dict[str, Buffer]) -> None:
    """Give the intermediates of a schedule their memory on one device: the arena that is there, if it is
    large enough, or a new one."""
    arena = arenas.get(shared.device)
    if arena is None or arena.size < shared.arena.size:
        arena = arenas[shared.device] = Buffer(shared.device, shared.arena.size, dtypes.uint8)
    for number, node in shared.nodes.items():
        node.set_buffer(arena.part(shared.arena.offsets[number], node.arg.size, node.dtype))


def keep_finished(schedule: Schedule, unwritten: set[Storage]) -> None:
    """After an exception: note the values that were computed, among them what was assigned. One on several
    devices is where all its parts are."""
    finished = {node: view for node, view in schedule.views.items() if view.base.op is Ops.BUFFER
                and all(m.storage not in unwritten and m.buffer is not None for m in view.base.memories)}
    written = Overwriting([node.src[0].base.storage for node in finished if node.op is Ops.ASSIGN])
    written.done()
    written.forget_writers()
    for node, view in finished.items():
        node.set_realized_view((node.src[0] if node.op is Ops.ASSIGN else view).current)


def allocate(node: UOp) -> Buffer:
    """The memory of a BUFFER node, made now if it has none."""
    storage = node.storage
    buffer = storage.buffer
    if buffer is not None:
        return buffer.allocate()
    if storage.is_placeholder:
        raise TransformError(f"{users_line()}: a tensor from inside a function under vmap was kept and used "
                             "outside of it, where its value does not exist; return it instead")
    buffer = storage.buffer = Buffer(node.arg.device, node.arg.size, node.dtype)
    return buffer.allocate()


class Prepared(NamedTuple):
    """A step with everything that can fail done."""

    item: ScheduleItem | Step
    buffers: list[Buffer]
    kernel: CompiledKernel | None
    """None for a copy, and for what another process runs"""
    variables: list[int]

    @staticmethod
    def of(item: ScheduleItem) -> Prepared:
        """A step with its kernel compiled and its memory allocated."""
        if (watcher := observer.active) is not None:
            watcher.begin_step(item.lines)
        is_kernel = item.ast.op not in Family.TRANSFER and not Device[item.device].elsewhere
        kernel = compiled_kernel(item.ast, item.device) if is_kernel else None
        variables = [] if kernel is None else variable_values(kernel, item)
        return Prepared(item, [allocate(b) for b in item.buffers], kernel, variables)

    def run(self, run: Submission) -> None:
        """Give the step to its device's queue."""
        item, buffers, kernel, variables = self
        if (watcher := observer.active) is not None:
            watcher.begin_step(item.lines)
        if item.ast.op in Family.TRANSFER:
            run.transfer(item.ast, buffers, item.program)
        elif kernel is None:
            run.pass_over()
        elif all([b.size for b in buffers[:item.outputs]]):
            run.kernel(kernel, buffers[0].device, buffers, item.outputs, variables)
        else:
            run.steps += 1


def variable_values(kernel: CompiledKernel, item: ScheduleItem) -> list[int]:
    """The item's variables in the order in which the kernel takes them."""
    bound = kernel.takes(item.variables)
    if missing := [variable.name for variable in bound if variable.value is None]:
        raise RuntimeError(f"the variable {', '.join(missing)} has no value; bind it: variable.bind(3)")
    return [variable.value for variable in bound]


class Submission:
    """Steps that are given to queues together. They are ordered by the memory they use, and the host goes on
    while they run, unless that memory is also somebody else's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """the work given so far: what is short runs at once, and only so much of it"""
        self.queues: set[CommandQueue] = set()
        self.exposed: list[TimelinePoint] = []
        """commands that use memory which others see"""
        self.steps = 0
        """how many were given"""
        self.gathering: CommandQueue | None = None
        """a queue with copies that have not begun"""
        self.giving: tuple[int, CommandQueue, int] | None = None
        """the last step that has kernels: its number, its queue, what that had accepted before"""

    def kernel(self, kernel: CompiledKernel, device: str, buffers: Sequence[Buffer], outputs: int,
               variables: Sequence[int]) -> None:
        """Run a kernel on `buffers`, the first of which it writes; at DEBUG=2 wait until it has run, so that
        its time is its own."""
        self.begin_copies()
        queue = Device[device].queue
        addresses = [b.address for b in buffers]
        if DEBUG.value >= 2:
            Device.synchronize()
        self.queues.add(queue)
        self.seconds += kernel.estimate.seconds
        sources = ordered(queue, buffers, outputs)
        given = kernel.program, addresses, variables, kernel.extent, self.seconds, sources
        self.giving = self.steps, queue, queue.accepted
        seconds, watcher = 0.0, observer.active
        if watcher is None and DEBUG.value < 2:
            point = queue.exec(*given)
        else:
            point, begun, ended = queue.exec_timed(*given)
        if point is not None:
            self.note(point, buffers, outputs)
        self.steps += 1
        if watcher is not None:
            watcher.kernel_run(kernel, device, begun, ended)
        if DEBUG.value >= 2:
            seconds = ended.seconds - begun.seconds
        count(kernel, device, seconds)

    def kernels(self, device: str, recorded: Any, changes: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
                buffers: Sequence[Buffer], outputs: int, seconds: float,
                again: RepeatedUse, others: Sequence[Buffer]) -> None:
        """Run kernels that a device's queue recorded, after changing the arguments whose numbers and values
        are given, on memory of which no buffer is a part of another: `again`, what they read in every run,
        and the `others`, outputs first."""
        self.begin_copies()
        queue = Device[device].queue
        self.queues.add(queue)
        self.seconds += seconds
        used = others if again.is_ready else buffers
        sources = ordered(queue, used, outputs) if any([buffer.uses for buffer in used]) else ()
        again.was_ready = not sources
        self.giving = self.steps, queue, queue.accepted
        point = queue.exec_list(recorded, *changes, self.seconds, sources)
        self.note(point, others, outputs)
        if point is not None and again.note(point):
            self.exposed.append(point)
        self.steps += 1

    def transfer(self, ast: UOp, buffers: Sequence[Buffer], program: str = "") -> None:
        """Make a COPY, or this process's part of a COLLECTIVE; `program` is what all processes say of it."""
        own = transfer_of(ast, [b.device for b in buffers])
        target, source = buffers[own.target], buffers[own.source]
        if own.filled is not None:
            start, items = own.filled
            target = target.part(start * target.dtype.itemsize, items, target.dtype)
        queue = queue_for_copy(target, source)
        if queue is not self.gathering:
            self.begin_copies()
        self.gathering = None
        if queue.gathers:
            self.gathering, queue.program = queue, program
        self.queues.add(queue)
        sources = ordered(queue, (target, source), 1)
        watcher = observer.active
        begun = None if watcher is None else queue.timestamp()
        memory = target, source, own.start * source.dtype.itemsize, sources
        point = queue.collective(own.group, buffers, *memory) if own.group else queue.copy(*memory)
        self.note(point, (target, source), 1)
        self.steps += 1
        if watcher is not None:
            watcher.copied(target, source, queue, begun, queue.timestamp())
        GlobalCounters.global_mem += target.nbytes

    def copies(self, queue: CommandQueue, recorded: Any, memory: Sequence[tuple[Buffer, Buffer, int]]
               ) -> None:
        """Make copies that a queue recorded, as `CommandQueue.copy_list` does."""
        self.begin_copies()
        self.queues.add(queue)
        buffers = [*(target for target, _, _ in memory), *(source for _, source, _ in memory)]
        sources = ordered(queue, buffers, len(memory))
        point = queue.copy_list(recorded, memory, sources)
        self.note(point, buffers, len(memory))
        self.steps += 1
        GlobalCounters.global_mem += sum(target.nbytes for target, _, _ in memory)

    def pass_over(self) -> None:
        """Give a kernel that another process runs to nobody."""
        self.begin_copies()
        self.steps += 1

    def begin_copies(self) -> None:
        """Let copies begin that are still gathered."""
        if self.gathering is not None:
            self.gathering.submit()
            self.gathering = None

    def resume(self) -> None:
        """Count a step that an exception broke up (Ctrl-C) when its kernels had been given already, and wait
        for them. Kernels not given, and copies, which may be made twice, are still to be given."""
        if self.giving is None:
            return
        number, queue, accepted = self.giving
        if number == self.steps and queue.accepted > accepted:
            queue.await_value(queue.signal().value)
            self.steps += 1

    def note(self, point: TimelinePoint | None, buffers: Sequence[Buffer], outputs: int) -> None:
        """Remember the use of memory by a command, if that is not done yet."""
        if point is not None and Buffer.add_uses(point, buffers, outputs):
            self.exposed.append(point)

    def finish(self) -> None:
        """Let everything begin; wait for what uses memory that others may read or write at any time."""
        for queue in self.queues:
            queue.submit()
        for point in self.exposed:
            point.wait()


def ordered(queue: CommandQueue, buffers: Sequence[Buffer], outputs: int) -> tuple[TimelinePoint, ...]:
    """Let `queue` wait for what other queues do with these buffers, of which it is to write the first: once
    for each of those, whose last command stands for all before it. Returns what may fail, or has failed, to
    compute their content: each command once."""
    failing: dict[TimelinePoint, None] = {}
    last: dict[Order, TimelinePoint] = {}
    for number, buffer in enumerate(buffers):
        uses = buffer.uses if buffer.whole is None else buffer.whole.uses
        if uses is None or (number >= outputs and uses.written is None):
            continue
        writers = uses.before_reading(queue)
        failing.update(dict.fromkeys([point for point in writers if point.may_have_failed]))
        for point in uses.before_writing(queue) if number < outputs else writers:
            if point.queue is not queue and not point.is_past:
                known = last.get(point.queue)
                if known is None or known.value < point.value:
                    last[point.queue] = point
    for point in last.values():
        queue.wait(point)
    return tuple(failing)


def count(kernel: CompiledKernel, device: str, seconds: float) -> None:
    """Add a run to the counters; at DEBUG=2 print it."""
    kernel.estimate.count(1)
    if DEBUG.value < 2:
        return
    GlobalCounters.time_sum_s += seconds
    gflops = kernel.estimate.operations / seconds * 1e-9
    bandwidth = kernel.estimate.bytes / seconds * 1e-9
    least = Device[device].least_seconds(kernel.estimate.operations, kernel.estimate.bytes)
    print(f"{GlobalCounters.kernel_count:5d} {device:6s} {colored(f'{kernel.name:40s}', 'CYAN')} "
          f"{seconds * 1e6:10.1f} us {gflops:8.1f} GFLOP/s {bandwidth:7.1f} GB/s "
          f"{least / seconds:6.1%} of peak  "
          f"{GlobalCounters.mem_used * 1e-6:8.1f} MB used")
