"""A call like the one before it, in few steps: `RepeatedCall`.

Most calls of a small function are alike: plain tensors whose memory is there, on one device or several, and a
trace that makes new tensors of them. For such a kind of call it is decided once which memory stands where; a
call then only checks that it is of that kind, which `jit.py` does for all kinds in three times as many steps.
Where the trace is a few short commands, of kernels and of copies between processes, they may run right here.
What is not so in every respect goes that way.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

from tinygrad import observer
from tinygrad.device import Buffer, Device
from tinygrad.device.queue import ThreadedQueue, TimelinePoint, clock
from tinygrad.dtype import DType, dtypes
from tinygrad.engine.replay import Copies, Lasting, Replay, Taken, Together, Values
from tinygrad.graph.node_flags import MEMORY, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Layout, Placement
from tinygrad.graph.storage import ShardedStorage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, NOOPT, GlobalCounters, complete
from tinygrad.jit.arguments import CallKind, Inputs, Slot, changed, plain_structure
from tinygrad.jit.trace import Output, Trace, node_over
from tinygrad.observer import RepeatedRun
from tinygrad.tensor import Tensor
from tinygrad.tensor.live import PendingWrites
from tinygrad.tensor.modes import no_grad

MISSED = object()
"""In place of a result: the call is of another kind; nothing was done."""
NO_INPUTS = Inputs(((), {}))
NO_VALUES = Values({}, {})
BUFFER, RESHAPE, DETACH = Ops.BUFFER, Ops.RESHAPE, Ops.DETACH


class ArgumentKind(NamedTuple):
    """What a tensor argument has to be."""

    shape: tuple[int, ...]
    dtype: DType
    device: Placement
    requires_grad: bool | None
    layout: Layout | None


class ShortKernels:
    """Kernels of one device as a call runs them itself."""

    def __init__(self, command: Together, queue: ThreadedQueue, taken: Taken, slots: Mapping[int, int]
                 ) -> None:
        self.command, self.queue, self.seconds = command, queue, command.seconds
        self.changing: list[int] = command.changing.tolist()
        """the numbers of the arguments that differ from call to call"""
        self.addresses = [slots[place] for _, place in taken.open_arguments]
        """the number of that memory, for each address among the command's arguments"""

    def __call__(self, memory: Sequence[Buffer]) -> TimelinePoint | None:
        addresses = [memory[i].address for i in self.addresses]
        point = self.queue.exec_list(self.command.kernels, self.changing, addresses, self.seconds)
        self.command.count_run()
        return point


class ShortCopies:
    """Copies that begin together as a call makes them itself."""

    def __init__(self, command: Copies, queue: ThreadedQueue, slots: Mapping[int, int], nbytes: int) -> None:
        self.recorded, self.queue, self.seconds = command.recorded, queue, command.recorded.seconds
        self.nbytes = nbytes
        self.ends = [(slots[target], slots[source], start) for target, source, start in command.places]
        """the number of the memory that each fills and reads"""

    def __call__(self, memory: Sequence[Buffer]) -> TimelinePoint | None:
        ends = [(memory[target], memory[source], start) for target, source, start in self.ends]
        GlobalCounters.global_mem += self.nbytes
        return self.queue.copy_list(self.recorded, ends)


class ShortCommands:
    """All commands of a trace, where a call may do them itself."""

    def __init__(self, commands: Sequence[ShortKernels | ShortCopies], own: Sequence[Buffer]) -> None:
        self.commands = commands
        self.own = own
        """the commands' own memory"""
        self.queues = list(dict.fromkeys(command.queue for command in commands))
        self.seconds = sum(command.seconds for command in commands)
        self.times_lists = all(queue.times_lists for queue in self.queues)

    @staticmethod
    def of(engine: Replay, lasting: Lasting, slots: Mapping[int, int], own: int) -> ShortCommands | None:
        """What an engine runs, if that are such commands. `slots`: by place, the number of the memory that a
        call gives; the commands' own has those from `own` on."""
        copied = {place for command in engine.runs if isinstance(command, Copies)
                  for target, source, _ in command.places for place in (target, source)}
        held = [place for place in engine.held if place in copied]
        others = [engine.held[place] for place in held]
        slots = {**slots, **{place: own + i for i, place in enumerate(held)}}
        commands: list[ShortKernels | ShortCopies] = []
        for command in engine.runs:
            queue = Device[command.device].queue if isinstance(command, Together) else getattr(
                command, "queue", None)
            if not isinstance(queue, ThreadedQueue):
                return None
            if isinstance(command, Together):
                taken = command.taken(lasting)
                others += [buffer for buffer in taken.buffers if buffer is not None]
                commands.append(ShortKernels(command, queue, taken, slots))
            elif isinstance(command, Copies):
                nbytes = sum(engine.places[target].nbytes for target, _, _ in command.places)
                commands.append(ShortCopies(command, queue, slots, nbytes))
        return ShortCommands(commands, others) if commands else None

    def run(self, memory: list[Buffer]) -> bool:
        """Run them in this thread, if they are short, and their queues and memory are idle; whether that was
        done."""
        if observer.active is not None and not self.times_lists:
            return False
        for queue in self.queues:
            if not queue.runs_here(self.seconds, ()):
                return False
        memory += self.own
        for buffer in memory:
            uses = buffer.uses if buffer.whole is None else buffer.whole.uses
            if uses is not None and not uses.is_idle:
                return False
        if len(self.commands) == 1:
            self.finish(self.commands[0](memory))
        else:
            complete(partial(self.rest, memory, [0, -1]))
        return True

    def rest(self, memory: Sequence[Buffer], progress: list[int]) -> None:
        """Run those that have not run yet. `progress`: how many have, and what the queue of the next had
        accepted before it was given that, or -1."""
        while progress[0] < len(self.commands):
            command = self.commands[progress[0]]
            accepted = command.queue.accepted
            if progress[1] < 0 or accepted <= progress[1]:  # else an interrupt (Ctrl-C) came right after it
                progress[1] = accepted
                self.finish(command(memory))
            progress[:] = progress[0] + 1, -1

    @staticmethod
    def finish(point: TimelinePoint | None) -> None:
        """Wait for a command that another thread does after all, for it was given something meanwhile."""
        if point is not None:
            point.wait()


class RepeatedCall:
    """Calls of one kind whose trace computes new tensors alone."""

    def __init__(self, name: str, kind: CallKind, trace: Trace) -> None:
        self.name = name
        self.guards = trace.guards
        self.arguments = [ArgumentKind(*tensor, layout)
                          for tensor, layout in zip(kind.tensors, kind.layouts, strict=True)]
        self.modes = modes_of(kind)
        self.engine, self.lasting = trace.engine, trace.no_gradients
        self.slots = dict(trace.input_places)
        """by place, the number of its memory among that of the tensors, and then of results"""
        self.slots.update((place, len(kind.same) + i) for i, place in enumerate(trace.fresh_places))
        self.fresh = [trace.places[number] for number in trace.fresh_places]
        self.observed: RepeatedRun | None = None
        """what an observer is told of them"""
        number_of = {place: i for i, place in enumerate(trace.fresh_places)}
        self.outputs = [maker_of(output, [number_of[place] for place in output.places])
                        for output in trace.outputs]
        """what makes the tensor of each over the nodes of the new memory"""
        self.result = result_of(trace.structure)
        self.short = ShortCommands.of(self.engine, self.lasting, self.slots, len(kind.same) + len(self.fresh))

    def __call__(self, tensors: Sequence[Any], writes_pending: bool) -> Any:
        """What such a call returns; MISSED, with nothing done, for any other. `writes_pending`: whether what
        is pending for other tensors is to be written first."""
        watcher = observer.active
        if watcher is not None:
            began = clock()
        modes = (Tensor.training, no_grad.state.depth > 0, Device.DEFAULT, dtypes.default_float,
                 dtypes.default_int, NOOPT.value != 0, ALLOW_TF32.value != 0)
        if modes != self.modes:
            return MISSED
        memory = self.memory_of(tensors)
        if memory is None or (writes_pending and PendingWrites.exist()):
            return MISSED
        for guard in self.guards:
            if not guard.holds(NO_INPUTS):
                return MISSED
        observed = None
        if watcher is not None:
            observed = self.observed
            if observed is None or observed.key is not watcher.key or observed.thread != get_ident():
                observed = self.observed = watcher.replays(
                    self.name, [(place.device, place.nbytes, place.lines) for place in self.fresh])
        fresh = [place.new_buffer(not observed) for place in self.fresh]
        memory += fresh
        if self.short is None or not self.short.run(memory):
            self.engine({place: memory[i] for place, i in self.slots.items()}, self.lasting, NO_VALUES)
        places = self.fresh
        nodes = []
        for i, buffer in enumerate(fresh):
            nodes.append(node_over(places[i].placeholder, buffer))
            if observed is not None:
                buffer.change = observed.memory[i]
        result = self.result([tensor_over(nodes) for tensor_over in self.outputs])
        if observed is not None:
            observed.ran([began, clock()])
        return result

    def memory_of(self, tensors: Sequence[Any]) -> list[Buffer] | None:
        """Where the arguments lie, each on its own; None for others than these calls have, and for such as
        have to be computed, written or put in order first."""
        if len(tensors) != len(self.arguments):
            return None
        found: list[Buffer] = []
        storages = []
        for tensor, kind in zip(tensors, self.arguments, strict=True):
            shape, dtype, device, requires_grad, layout = kind
            if type(tensor) is not Tensor:
                return None
            node = tensor._uop
            memory = node if node.flags & MEMORY else node.computed_into
            if node.has_sizes:
                return None
            if memory is None or node.flags & WRITES or node.dtype is not dtype or node.shape != shape \
                    or tensor.requires_grad is not requires_grad:
                return None
            while memory.op is RESHAPE or memory.op is DETACH:
                memory = memory.src[0]
            if memory.op is not BUFFER:
                return None
            spec, storage = memory.arg, memory.storage
            if spec.device != device or spec.layout != layout or spec.version != storage.version \
                    or storage.writer is not None:
                return None
            if isinstance(storage, ShardedStorage) and not all([
                    view.unreshaped.op is BUFFER for view in storage.views]):
                return None
            for part in storage.parts:
                buffer = part.buffer
                if buffer is None or buffer._memory is None or part.writer is not None:
                    return None
                found.append(buffer)
                storages.append(part)
        return found if len(set(map(id, storages))) == len(found) else None


def repeated_call(name: str, kind: CallKind, trace: Trace) -> RepeatedCall | None:
    """What repeats calls of this kind to a function, which have this trace, if they are such."""
    if trace.repeated is None:
        trace.repeated = RepeatedCall(name, kind, trace) if is_repeatable(kind, trace) else False
    return trace.repeated or None


def is_repeatable(kind: CallKind, trace: Trace) -> bool:
    """Whether calls take plain tensors, each with memory of its own, on each of its devices if there are
    several, and compute new ones of them and of what the trace holds."""
    pieces = sum(1 if type(device) is str else len(device) for _, _, device, _ in kind.tensors)
    is_plain = kind.structure == plain_structure(len(kind.tensors)) and kind.same == tuple(range(pieces)) \
        and all(type(size) is int for shape, *_ in kind.tensors for size in shape)
    if not trace.makes_only_results or not is_plain or trace.size_guards or trace.captured.other_uses:
        return False
    return not any(variable.source for step in trace.steps for variable in step.variables)


def maker_of(output: Output, numbers: Sequence[int]) -> Callable[[Sequence[UOp]], Tensor]:
    """What makes the tensor of an output over BUFFER nodes, of which those of these numbers are for its
    places."""
    base = output.view.base
    if base.arg.layout is None:
        return lambda nodes: output.tensor_over(nodes[numbers[0]])
    number_of = dict(zip(base.memories, numbers, strict=True))
    shards, device, layout = base.shards, base.device, base.arg.layout
    places = [number_of[shard.viewed] for shard in shards]
    return lambda nodes: output.tensor_over(UOp.sharded_buffer(
        device, layout, shards, [nodes[place] for place in places]))


def modes_of(kind: CallKind) -> tuple[Any, ...]:
    """What of a kind of call does not depend on its arguments."""
    return (kind.training, kind.no_grad, kind.device, kind.default_float, kind.default_int, kind.plain,
            kind.tf32)


def result_of(structure: Any) -> Callable[[list[Tensor]], Any]:
    """What makes a result of this structure of a trace's tensors."""
    if type(structure) is Slot:
        position = structure.position
        return lambda tensors: tensors[position]
    if type(structure) in (list, tuple) and all(type(slot) is Slot for slot in structure):
        positions = [slot.position for slot in structure]
        kind: Any = type(structure)
        return lambda tensors: kind([tensors[i] for i in positions])
    return lambda tensors: changed(structure, lambda v: tensors[v.position] if isinstance(v, Slot) else v)
