"""Running captured steps again on other memory: what `jit/jit.py` keeps of a traced call.

A step names places, not buffers. The memory of some places is given anew for each run (inputs, what is
returned); that of others stays as long as nobody else wants it (`Lasting`: gradients), or for good: state
from outside, and intermediates, which share memory where their lifetimes allow. Kernels that follow each
other on one device are one command, where its queue can do that (on the CPU one native call), for which only
the addresses and variables that change are written.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from tinygrad import observer
from tinygrad.codegen.compile import CompiledKernel, compiled_kernel
from tinygrad.codegen.cost import NO_WORK, Estimate
from tinygrad.device import Buffer, Device, RepeatedUse
from tinygrad.device.queue import CommandQueue, GatheredCopy, ThreadedQueue, written_and_read
from tinygrad.dtype import dtypes
from tinygrad.engine.copying import transfer_of
from tinygrad.engine.realize import Prepared, Submission, allocate
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, complete
from tinygrad.schedule.items import BoundVariable, Step
from tinygrad.schedule.memory import Lifetime, lifetimes_by_device, plan_arena

_USES = attrgetter("uses")


class SlotKind(Enum):
    """Where the memory of a place comes from."""

    INPUT = auto()
    STATE = auto()
    FRESH = auto()
    INTERNAL = auto()


@dataclass
class Place:
    """Memory that steps use."""

    kind: SlotKind
    placeholder: UOp
    """a BUFFER node of this size, without memory"""
    argument: int = -1
    """of an INPUT: its number among the memories of the arguments"""
    state: UOp | None = None
    """a STATE's BUFFER node"""
    content: np.ndarray[Any, Any] | None = None
    """what FRESH memory holds before the first step"""
    is_constant: bool = False
    """of a STATE: the call made it of numbers of the host's, and writes nothing there"""
    lines: tuple[int, ...] = ()
    """those of the first step that writes it"""

    @functools.cached_property
    def size(self) -> int:
        return int(self.placeholder.arg.size)

    @functools.cached_property
    def device(self) -> str:
        return str(self.placeholder.arg.device)

    @property
    def nbytes(self) -> int:
        return self.size * self.placeholder.dtype.itemsize

    def new_buffer(self, is_told: bool = True) -> Buffer:
        """New memory; `is_told` as `Buffer.allocate` takes it."""
        buffer = Buffer(self.device, self.size, self.placeholder.dtype)
        buffer.allocate(False, self.lines, is_told)
        if self.content is not None:
            buffer.copyin(self.content.view(np.uint8).data)
        return buffer


@dataclass
class Values:
    """What the variables of steps have to be in one run."""

    moved: Mapping[str, int]
    """by the source of a random counter: how far it has moved on since the trace"""
    given: Mapping[str, int]
    """by source: the value of a variable that has another one in each run"""

    def of(self, variable: BoundVariable) -> int:
        if not variable.source:
            return variable.value
        if variable.source in self.given:
            return self.given[variable.source]
        return variable.value + self.moved.get(variable.source, 0)


class Lasting:
    """Memory for some places in one run after the other, and what commands make of it."""

    def __init__(self, buffers: Mapping[int, Buffer]) -> None:
        self.buffers = buffers
        self.taken: dict[int, Taken] = {}
        """by the id of a `Together`"""


@dataclass
class Taken:
    """What of a command's arguments and memory is the same in all runs with the same `Lasting`."""

    arguments: np.ndarray[Any, Any]
    buffers: list[Any]
    open_arguments: list[tuple[int, int]]
    """(number among `arguments`, the place whose address is to stand there)"""
    open_buffers: list[tuple[int, int]]
    """(number among `buffers`, the place whose memory is to stand there)"""
    again: RepeatedUse
    """those of the buffers that are read, and the same in every run"""


@dataclass
class Together:
    """Consecutive kernels on one device as one command, and what of it changes from run to run."""

    device: str
    kernels: Any
    """what the device's queue recorded"""
    places: list[tuple[int, int]] = field(default_factory=list)
    """(number of an address among the arguments, place)"""
    variables: list[tuple[int, BoundVariable]] = field(default_factory=list)
    """(number of a variable among the arguments, variable)"""
    memory: dict[Buffer | int, bool] = field(default_factory=dict)
    """by buffer, or place whose memory is given anew: whether the kernels write it"""
    count: int = 0
    work: Estimate = NO_WORK

    def __post_init__(self) -> None:
        self.seconds = self.work.seconds
        self.changing = np.array([n for n, *_ in [*self.places, *self.variables]], np.intp)
        distinct = {variable[1:]: variable for _, variable in self.variables}
        self.distinct = list(distinct.values())
        """variables that may differ: most are those of many kernels"""
        numbers = {variable: number for number, variable in enumerate(distinct)}
        self.numbers = np.array([numbers[variable[1:]] for _, variable in self.variables], np.intp)
        """for each variable, the number of the one among `distinct` that has its value"""
        self.used = sorted(self.memory, key=lambda used: not self.memory[used])
        """what is written comes first"""
        self.outputs = sum(self.memory.values())

    def taken(self, lasting: Lasting) -> Taken:
        """What this command makes of memory that lasts."""
        known = lasting.taken.get(id(self))
        if known is None:
            there = lasting.buffers
            places = [place for _, place in self.places]
            addresses = [there[place].address if place in there else 0 for place in places]
            buffers = [there.get(used) if isinstance(used, int) else used for used in self.used]
            known = lasting.taken[id(self)] = Taken(
                np.array(addresses + [0] * len(self.variables), np.int64), buffers,
                [(i, place) for i, place in enumerate(places) if place not in there],
                [(i, used) for i, used in enumerate(self.used)
                 if isinstance(used, int) and used not in there],
                RepeatedUse([buffer for buffer in buffers[self.outputs:] if buffer is not None]))
        return known

    def filled(self, given: Mapping[int, Buffer], lasting: Lasting, values: Values
               ) -> tuple[np.ndarray[Any, Any], list[Buffer]]:
        """(the arguments that change, the buffers that are used) on this memory."""
        taken = self.taken(lasting)
        arguments, buffers = taken.arguments.copy(), taken.buffers.copy()
        for number, place in taken.open_arguments:
            arguments[number] = given[place].address
        if self.distinct:
            found = np.array([values.of(variable) for variable in self.distinct], np.int64)
            arguments[len(self.places):] = found[self.numbers]
        for number, place in taken.open_buffers:
            buffers[number] = given[place]
        return arguments, buffers

    def __call__(self, run: Submission, given: Mapping[int, Buffer], lasting: Lasting, values: Values
                 ) -> None:
        arguments, buffers = self.filled(given, lasting, values)
        taken = self.taken(lasting)
        others = [*buffers[:self.outputs], *[given[p] for i, p in taken.open_buffers if i >= self.outputs]]
        run.kernels(self.device, self.kernels, (self.changing, arguments), buffers, self.outputs,
                    self.seconds, taken.again, others)
        self.count_run()

    def run_at_once(self, given: Mapping[int, Buffer], lasting: Lasting, values: Values) -> bool:
        """Run the kernels here and now, unless that takes long, their queue is busy or their memory in use;
        whether that was done."""
        queue = Device[self.device].queue
        if not isinstance(queue, ThreadedQueue):
            return False
        arguments, buffers = self.filled(given, lasting, values)
        if not all([uses is None or uses.is_idle for uses in map(_USES, buffers)]):
            return False
        with queue.lock:
            if not queue.runs_here(self.seconds, ()):
                return False
            queue.exec_list(self.kernels, self.changing, arguments, self.seconds)
        self.count_run()
        return True

    def count_run(self) -> None:
        self.work.count(self.count)


@frozen
class Copies:
    """Consecutive copies as one command of a queue that gathers them."""

    queue: CommandQueue
    recorded: Any
    places: tuple[tuple[int, int, int], ...]
    """of each that needs memory here: the places of its target and source, the bytes before what is copied"""

    def __call__(self, run: Submission, memory: Mapping[int, Buffer]) -> None:
        run.copies(self.queue, self.recorded, [(memory[t], memory[s], start) for t, s, start in self.places])


class StepKernel(NamedTuple):
    """The kernel of a step, and the variables that it takes."""

    step: Step
    kernel: CompiledKernel
    variables: list[BoundVariable]


class Replay:
    """Steps with compiled kernels and memory for what is internal. A variable of theirs without a source
    keeps its value."""

    def __init__(self, places: Sequence[Place], steps: Sequence[Step]) -> None:
        self.places = places
        self.steps = [s for s in steps if all(places[p].size for p in s.places[:s.outputs])]
        self.kernels = [None if s.ast.op in Family.TRANSFER or Device[s.device].elsewhere
                        else compiled_kernel(s.ast, s.device) for s in self.steps]
        for s in reversed(self.steps):
            for place in (places[p] for p in s.places[:s.outputs]):
                place.lines = s.lines
        self.held = share_memory(places, self.steps)
        for number, place in enumerate(places):
            if place.state is not None:
                self.held[number] = allocate(place.state)
        self.runs: list[Together | Copies | int] = []
        """kernels and copies that are one command, and the numbers of steps that run alone"""
        self.group()

    def group(self) -> None:
        """Fill `runs`."""
        for together, numbers in itertools.groupby(range(len(self.steps)), self.goes_with):
            if together is None:
                self.runs.extend(numbers)
            elif isinstance(together, CommandQueue):
                self.gather(together, list(numbers))
            elif not Device[together].elsewhere:
                self.close(list(numbers))

    def goes_with(self, number: int) -> str | CommandQueue | None:
        """What a step has in common with those that go together with it: kernels the device, copies the queue
        that gathers them; None of copies that are given one by one."""
        step = self.steps[number]
        if step.ast.op not in Family.TRANSFER:
            return step.device
        source = self.places[step.places[step.outputs]].device
        return Device[source].copies if Device[source].exchanges else None

    def gather(self, queue: CommandQueue, numbers: Sequence[int]) -> None:
        """Make commands of these copies, each of those that do not have to wait for each other."""
        gathered: list[GatheredCopy] = []
        memory: list[tuple[int, int, int]] = []
        for step in (self.steps[number] for number in numbers):
            own = transfer_of(step.ast, [self.places[place].device for place in step.places])
            places = step.places[own.target], step.places[own.source]
            target, source = (self.places[place] for place in places)
            dtype = target.placeholder.dtype
            copy = GatheredCopy(target.device, source.device, *written_and_read(step.places),
                                (places[1], own.start), target.size, dtype.name, target.nbytes,
                                step.program, own.group)
            if copy.conflicts(gathered):
                self.record_copies(queue, gathered, memory)
                gathered, memory = [], []
            gathered.append(copy)
            memory.append((*places, own.start * dtype.itemsize))
        self.record_copies(queue, gathered, memory)

    def record_copies(self, queue: CommandQueue, gathered: Sequence[GatheredCopy],
                      memory: Sequence[tuple[int, int, int]]) -> None:
        recorded = queue.record_copies(gathered)
        if recorded.own:
            self.runs.append(Copies(queue, recorded, tuple(memory[number] for number in recorded.own)))

    def close(self, together: list[int]) -> None:
        """Make one command of these steps, if their device's queue can do that."""
        if not together:
            return
        device = self.steps[together[0]].device
        launches = [StepKernel(self.steps[number], kernel, kernel.takes(self.steps[number].variables))
                    for number in together if (kernel := self.kernels[number]) is not None]
        recorded = Device[device].queue.record([
            (kernel.program, [self.held[p].address if p in self.held else 0 for p in step.places],
             [v.value for v in bound], kernel.extent) for step, kernel, bound in launches])
        if recorded is None:
            self.runs.extend(together)
            return
        recorded.sites = tuple((launch.kernel, launch.step.lines) for launch in launches)
        places: list[tuple[int, int]] = []
        variables: list[tuple[int, BoundVariable]] = []
        memory: dict[Buffer | int, bool] = {}
        for start, (step, _, bound) in zip(recorded.starts, launches, strict=True):
            places.extend((start + i, p) for i, p in enumerate(step.places) if p not in self.held)
            variables.extend((start + len(step.places) + i, v) for i, v in enumerate(bound) if v.source)
            for i, place in enumerate(step.places):
                used = self.held[place].root if place in self.held else place
                memory[used] = memory.get(used, False) or i < step.outputs
        self.runs.append(Together(device, recorded, places, variables, memory, len(together),
                                  sum((launch.kernel.estimate for launch in launches), NO_WORK)))

    @functools.cached_property
    def one_command(self) -> Together | None:
        """All steps as one command, if they are one."""
        only = self.runs[0] if len(self.runs) == 1 else None
        return only if isinstance(only, Together) else None

    def run_at_once(self, given: Mapping[int, Buffer], lasting: Lasting, values: Values) -> bool:
        """Run on this memory here and now, if that is possible and takes little time; whether it was done."""
        command = self.one_command
        return command is not None and command.run_at_once(given, lasting, values)

    def __call__(self, given: Mapping[int, Buffer], lasting: Lasting, values: Values) -> None:
        """Run on this memory for the places that keep none."""
        run = Submission()
        steps = range(len(self.steps)) if DEBUG >= 2 or self.is_timed_singly else self.runs
        has_copies = any([isinstance(step, Copies) for step in self.runs])
        memory = {**self.held, **lasting.buffers, **given} if has_copies else {}

        def rest() -> None:
            run.resume()
            for step in itertools.islice(steps, run.steps, None):
                if isinstance(step, Together):
                    step(run, given, lasting, values)
                elif isinstance(step, Copies):
                    step(run, memory)
                else:
                    self.run_alone(step, run, {**lasting.buffers, **given}, values)

        try:
            complete(rest)  # or captured state would be half written
        finally:
            run.finish()

    @property
    def is_timed_singly(self) -> bool:
        """Whether somebody wants to know the time of each kernel, which not all commands of several tell."""
        return observer.active is not None and not all(
            Device[r.device].queue.times_lists for r in self.runs if isinstance(r, Together))

    def run_alone(self, number: int, run: Submission, given: Mapping[int, Buffer], values: Values) -> None:
        kernel, step = self.kernels[number], self.steps[number]
        buffers = [self.held[p] if p in self.held else given[p] for p in step.places]
        variables = [] if kernel is None else [values.of(v) for v in kernel.takes(step.variables)]
        Prepared(step, buffers, kernel, variables).run(run)


def exchanged_places(places: Sequence[Place], steps: Sequence[Step]) -> set[int]:
    """The INTERNAL places that copies between processes use: nothing else lies in their memory, so kernels
    need not wait for those copies."""
    copied = [step.places for step in steps if step.ast.op in Family.TRANSFER
              and Device[places[step.places[step.outputs]].device].exchanges]
    return {number for used in copied for number in used if places[number].kind is SlotKind.INTERNAL}


def internal_lifetimes(places: Sequence[Place], steps: Sequence[Step]) -> dict[str, dict[int, Lifetime]]:
    """By device, and there by their numbers: the lifetimes of the INTERNAL places that share memory."""
    exchanged = exchanged_places(places, steps)
    shared = {number: (place.device, place.nbytes) for number, place in enumerate(places)
              if place.kind is SlotKind.INTERNAL and number not in exchanged}
    return lifetimes_by_device([s.places for s in steps], shared)


def share_memory(places: Sequence[Place], steps: Sequence[Step]) -> dict[int, Buffer]:
    """Memory for the INTERNAL places: an arena on each device, in which those that are not needed at once
    may lie at the same address."""
    held = {number: places[number].new_buffer() for number in exchanged_places(places, steps)}
    for device, values in internal_lifetimes(places, steps).items():
        planned = plan_arena(values)
        if (watcher := observer.active) is not None:
            watcher.arena_placed(device, planned.size, [
                (planned.offsets[n], v.size, v.first, v.last, places[n].lines) for n, v in values.items()])
        arena = Buffer(device, planned.size, dtypes.uint8)
        for number, offset in planned.offsets.items():
            held[number] = arena.part(offset, places[number].size, places[number].placeholder.dtype)
    return held
