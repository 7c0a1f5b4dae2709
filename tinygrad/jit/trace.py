"""What `TinyJit` keeps of a traced call, and how another call runs it.

A `Trace` has the steps that ran (`engine/replay.py`) and says where arguments, results, gradients and state
are among the places that they use. `jit/jit.py` makes traces; `jit/saved.py` takes them to other
processes.
"""
from __future__ import annotations

import dataclasses
import functools
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tinygrad.device import Buffer
from tinygrad.engine.capture import JitError
from tinygrad.engine.realize import allocate
from tinygrad.engine.replay import Lasting, Place, Replay, SlotKind, Values
from tinygrad.graph.leaf_tensors import LeafIndex
from tinygrad.graph.sizes import bound
from tinygrad.graph.storage import Overwriting, Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, complete, partition
from tinygrad.jit.arguments import Inputs, Slot, changed
from tinygrad.jit.arrays import HostData
from tinygrad.jit.captured_state import Captured, compute_readers, is_tracked, set_gradient
from tinygrad.jit.guard_table import Guard
from tinygrad.jit.shape_guards import ShapeGuards
from tinygrad.schedule.items import Step
from tinygrad.tensor import Tensor, generator
from tinygrad.tensor.live import live_tensors

GIVEN_UP = "given up"
"""In place of an `Output`: a gradient that nobody asked for, which is not computed."""
SEED = "seed"
"""The name of the variable that is the seed of random numbers (`tensor/generator.py`)."""


def argument_source(name: str) -> str:
    """The source of a step's variable that is the argument called `name`: no other source is called so."""
    return f"argument {name}"


@dataclasses.dataclass
class Output:
    """A returned tensor: a view of places' memory (one on each of its devices), an argument, or a tensor from
    outside."""

    places: tuple[int, ...]
    view: UOp
    """over the places' placeholders"""
    requires_grad: bool | None
    argument: int | None = None
    captured: weakref.ref[Tensor] | None = None

    def tensor(self, memories: Mapping[UOp, UOp], variables: Mapping[str, int] | None = None) -> Tensor:
        """A new tensor: the view over these BUFFER nodes for the placeholders, of the sizes that the
        variables give."""
        view = self.view.with_sizes(lambda size: bound(size, variables or {}))
        return self.tensor_over(view.base.over_memories(memories), view)

    def tensor_over(self, memory: UOp, view: UOp | None = None) -> Tensor:
        """A new tensor: the view over this BUFFER node."""
        result = Tensor.leaf((view or self.view).over(memory), requires_grad=bool(self.requires_grad))
        result._requires_grad = self.requires_grad
        return result


@dataclasses.dataclass(slots=True, weakref_slot=True, eq=False)
class Unread:
    """A gradient that a replay left and nobody has read yet. Its tensor is made when it is read; until then
    the memory is nobody's, and the next replay writes there again."""

    output: Output
    buffers: Sequence[Buffer]
    """the memory of its places"""
    left: Left | None = None
    """all that the replay left: it lives as long as one of them is not read"""

    def __call__(self) -> Tensor:
        placeholders = self.output.view.base.memories
        gradient = self.output.tensor({placeholder: node_over(placeholder, buffer) for placeholder, buffer
                                       in zip(placeholders, self.buffers, strict=True)})
        gradient._requires_grad = False
        return gradient


class Left(Lasting):
    """The memory of the gradients that replays leave: with `unread`, of which those by the number of an
    argument are `given`."""

    def __init__(self, unread: Sequence[Unread], given: Mapping[int, Unread]) -> None:
        super().__init__({n: b for u in unread for n, b in zip(u.output.places, u.buffers, strict=True)})
        self.gone: list[Any] = []
        """what referred weakly to those that were read, or were replaced: nobody else has them"""
        self.unread = [weakref.ref(u, self.gone.append) for u in unread]
        self.given = {number: weakref.ref(u) for number, u in given.items()}
        for one in unread:
            one.left = self

    def is_whole(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all gradients lie where they were left, in a call with these tensors."""
        return not self.gone and all([tensors[number]._left is one() for number, one in self.given.items()])


def node_over(placeholder: UOp, buffer: Buffer) -> UOp:
    """A BUFFER node for memory that has none, like the placeholder."""
    node = UOp.new_buffer(placeholder.arg.device, placeholder.arg.size, placeholder.dtype)
    node.set_buffer(buffer)
    return node


def reached_by_gradients(uop: UOp) -> list[Tensor]:
    """The live tensors that say `requires_grad=True` and that gradients of `uop` belong to."""
    graph = LeafIndex(uop)
    return [t for t in live_tensors() if t._requires_grad and graph.targets_of(t._uop)]


def refuse_gradients_beyond(argument: Tensor, number: int) -> None:
    """Raise JitError where gradients that reach an argument belong to what it was computed from."""
    if is_tracked(argument) and any(t is not argument for t in reached_by_gradients(argument.uop)):
        raise JitError(f"backward() inside the function reaches its tensor argument {number}, of shape "
                       f"{argument.shape}, which was computed from tensors that take gradients, and would "
                       "end there; compute it inside, or pass x.detach()")


@dataclasses.dataclass
class Trace:
    """What one kind of call does: its steps, and where arguments, results and state are among the places."""

    places: list[Place]
    steps: list[Step]
    written: set[int]
    outputs: list[Output]
    structure: Any
    """the result, with a slot for every tensor"""
    gradients: dict[Any, Output | str | None]
    """what the call leaves as `.grad`, by the owner, a reference or the number of an argument"""
    captured: Captured
    random_start: dict[str, int]
    """each device's random counter when the trace began"""
    random_count: dict[str, int]
    """what a call adds to it"""
    sizes: ShapeGuards = dataclasses.field(default_factory=ShapeGuards)
    """what the values of Variables decided; where they decide otherwise, that is another variant"""
    host: HostData | None = None
    """the arrays and lists that the function made tensors of; None for a function without Python"""
    guards: list[Guard] = dataclasses.field(default_factory=list)
    """what was taken for granted: where it does not hold any more, the function is traced again"""
    repeated: Any = None
    """calls like the last one (`jit/repeat.py`); False where this trace has none such, None until one asks"""
    last_left: weakref.ref[Left] | None = None
    """where the last replay left gradients"""
    kept: list[Tensor] = dataclasses.field(default_factory=list)
    """tensors from outside that nobody else need hold: those that came with the trace (`jit/saved.py`)"""

    @functools.cached_property
    def input_places(self) -> list[tuple[int, int]]:
        """(place, memory among those of the arguments) for what is given anew in each call."""
        return [(n, p.argument) for n, p in enumerate(self.places) if p.kind is SlotKind.INPUT]

    @functools.cached_property
    def states(self) -> dict[Storage, bool]:
        """The memory of captured state, and whether a call writes it."""
        return {p.state.storage: n in self.written for n, p in enumerate(self.places) if p.state is not None}

    @functools.cached_property
    def size_guards(self) -> list[Guard]:
        """What makes it the right variant."""
        return self.sizes.table()

    def check(self, inputs: Inputs) -> None:
        """Raise JitError where a call would not reach, or would cross, memory of the caller, or where
        gradients would not go on from an argument."""
        memories = inputs.memories
        written = {memories[m].storage for m in self.written_inputs}
        for number, m in self.input_places:
            i, memory = inputs.owner[m], memories[m].storage
            shape, origin, in_order = inputs.tensors[i].shape, inputs.origins[i], inputs.views[i].base.storage
            if number in self.written and not inputs.whole[i]:
                raise JitError(f"the function assigns to its tensor argument {i}, of shape {shape}, which "
                               "is a view or has no memory of its own; pass the whole tensor, or "
                               "x.detach().contiguous().realize()")
            if memory in self.states and (number in self.written or self.states[memory]):
                raise JitError(f"tensor argument {i}, of shape {shape}, is a tensor that the function also "
                               "uses directly, and one of the two is assigned to; use it one way only")
            if origin is not in_order and any(part in written or self.states.get(part)
                                              for part in origin.parts):
                raise JitError(f"tensor argument {i}, of shape {shape}, is a view of memory that the "
                               "function assigns to; pass x.clone(), or take the view inside")
        for number in self.arguments_with_gradients:
            refuse_gradients_beyond(inputs.tensors[number], number)
        self.refuse_gradients_on_two_ways(inputs)

    def refuse_gradients_on_two_ways(self, inputs: Inputs) -> None:
        """Raise JitError where the gradient of an argument is also that of a tensor which the function uses
        directly: one does not see what happens to the other."""
        arguments, direct = self.gradient_uses
        for i in arguments:
            if any(inputs.tensors[i] is owner() for owner in direct):
                raise JitError(f"tensor argument {i}, of shape {inputs.tensors[i].shape}, is a tensor whose "
                               "gradient the function also uses directly; use it one way only")

    @functools.cached_property
    def arguments_with_gradients(self) -> list[int]:
        """The numbers of the arguments whose `.grad` a call sets."""
        return [owner for owner, output in self.gradients.items()
                if isinstance(owner, int) and output is not None]

    @functools.cached_property
    def gradient_uses(self) -> tuple[list[int], list[Any]]:
        """Whose gradient a call uses, if somebody can read it: arguments, by number, and others."""
        owners = [owner for owner, use in self.captured.gradients.items() if use.matters]
        return partition(owners, lambda owner: isinstance(owner, int))

    @functools.cached_property
    def own_gradients(self) -> list[tuple[Any, Output]]:
        """(owner, gradient) where that alone lies in memory which each call writes anew: it can wait, as
        `Unread`."""
        gradients = [(owner, o) for owner, o in self.gradients.items() if isinstance(o, Output)]
        used = Counter(n for o in (*self.outputs, *(o for _, o in gradients)) for n in o.places)
        return [(owner, o) for owner, o in gradients if not o.view.has_sizes and all(
            used[n] == 1 and self.places[n].kind is SlotKind.FRESH and self.places[n].content is None
            for n in o.places)]

    @functools.cached_property
    def no_gradients(self) -> Lasting:
        """The memory of `own_gradients` where there are none."""
        return Lasting({})

    @functools.cached_property
    def other_gradients(self) -> list[tuple[Any, Output | str | None]]:
        """(owner, gradient) for the others."""
        own = {id(output) for _, output in self.own_gradients}
        return [(owner, output) for owner, output in self.gradients.items() if id(output) not in own]

    @functools.cached_property
    def fresh_places(self) -> list[int]:
        """The places whose memory is always new."""
        own = {n for _, output in self.own_gradients for n in output.places}
        return [n for n, place in enumerate(self.places) if place.kind is SlotKind.FRESH and n not in own]

    @functools.cached_property
    def written_states(self) -> list[Storage]:
        """The memory of captured state that a call writes to."""
        return [storage for storage, is_written in self.states.items() if is_written]

    @functools.cached_property
    def written_inputs(self) -> list[int]:
        """The numbers of the arguments' memories that a call writes to."""
        return [m for n, m in self.input_places if n in self.written]

    @functools.cached_property
    def engine(self) -> Replay:
        return Replay(self.places, self.steps)

    @functools.cached_property
    def makes_only_results(self) -> bool:
        """Whether a call does nothing but compute new tensors: with no gradients, no random numbers, and no
        writes into what others see."""
        own = [output for output in self.outputs if output.argument is None and output.captured is None]
        places = [self.places[n] for output in own for n in output.places]
        return not (self.gradients or any(self.random_count.values()) or self.written_states or (
            self.written_inputs)) and len(own) == len(self.outputs) \
            and not any(output.view.has_sizes for output in own) \
            and all(place.kind is SlotKind.FRESH and place.content is None for place in places)

    @functools.cached_property
    def is_one_command(self) -> bool:
        """Whether that is by one command of a device."""
        return self.makes_only_results and self.engine.one_command is not None \
            and all(output.view.base.arg.layout is None for output in self.outputs)

    def replay_at_once(self, inputs: Inputs) -> dict[int, Buffer] | None:
        """The memory of new places, after running the steps in this thread, as `engine/immediate.py` does
        short schedules; None, with nothing done, where that cannot be or takes too long."""
        given = {number: allocate(inputs.memories[m]) for number, m in self.input_places}
        fresh = {number: self.places[number].new_buffer() for number in self.fresh_places}
        values = Values({}, {argument_source(name): value for name, value in inputs.variables.items()})
        return fresh if self.engine.run_at_once(given | fresh, self.no_gradients, values) else None

    def results_in(self, fresh: Mapping[int, Buffer]) -> Any:
        """What a call returns whose results are in this memory."""
        nodes = {number: node_over(self.places[number].placeholder, buffer)
                 for number, buffer in fresh.items()}
        tensors = [output.tensor_over(nodes[output.places[0]]) for output in self.outputs]
        if type(self.structure) is Slot:
            return tensors[self.structure.position]
        return changed(self.structure, lambda v: tensors[v.position] if isinstance(v, Slot) else v)

    def replay(self, inputs: Inputs) -> Any:
        """Run the steps on other inputs and return new tensors."""
        if self.is_one_command and DEBUG.value < 2:
            fresh = self.replay_at_once(inputs)
            if fresh is not None:
                return self.results_in(fresh)
        self.check(inputs)
        overwritten = self.overwritten(inputs)
        compute_readers(inputs.unrealized, overwritten)
        engine = self.engine
        memories = inputs.memories
        given = {number: allocate(memories[m]) for number, m in self.input_places}
        given.update((number, self.places[number].new_buffer()) for number in self.fresh_places)
        lasting, gradients = self.memory_of_gradients(inputs)
        arguments = {argument_source(name): value for name, value in inputs.variables.items()}
        moved = {}
        for device, count in self.random_count.items():
            start = self.random_start.get(device, 0)
            moved[generator.counter_name(device)] = generator.counter(device) - start
            generator.advance(device, count)
        overwriting = Overwriting(overwritten, overwritten)
        try:
            engine(given, lasting, Values(moved, {SEED: generator.seed(), **arguments}))
        finally:
            if overwritten:
                complete(overwriting.done)
        nodes: dict[int, UOp] = {}
        tensors = [self.tensor(o, nodes, given, inputs) for o in self.outputs]
        for target, unread in gradients:
            target._left = unread
        for owner, output in self.other_gradients:
            gradient = self.tensor(output, nodes, given, inputs) if isinstance(output, Output) else output
            set_gradient(inputs.tensors[owner] if isinstance(owner, int) else owner(), gradient)
        return changed(self.structure, lambda v: tensors[v.position] if isinstance(v, Slot) else v)

    def overwritten(self, inputs: Inputs) -> list[Storage]:
        """The memory of state and inputs that a call writes to."""
        return self.written_states + self.overwritten_inputs(inputs)

    def overwritten_inputs(self, inputs: Inputs) -> list[Storage]:
        """The memory of inputs that a call writes to: of state, the writes that were traced took note."""
        return [inputs.memories[m].storage for m in self.written_inputs]

    def memory_of_gradients(self, inputs: Inputs) -> tuple[Lasting, list[tuple[Tensor, Unread]]]:
        """The memory of `own_gradients`: that of the last replay where nobody has read what is there. And
        (owner, what is then to be left there) for the others."""
        if not self.own_gradients:
            return self.no_gradients, []
        last = None if self.last_left is None else self.last_left()
        if last is not None and last.is_whole(inputs.tensors):
            return last, []
        unread, found, given = [], [], {}
        for owner, output in self.own_gradients:
            target = inputs.tensors[owner] if isinstance(owner, int) else owner()
            one = None if target is None else target._left
            if type(one) is not Unread or one.output is not output:
                one = Unread(output, [self.places[n].new_buffer() for n in output.places])
                if target is not None:
                    found.append((target, one))
            unread.append(one)
            if isinstance(owner, int):
                given[owner] = one
        left = Left(unread, given)
        self.last_left = weakref.ref(left)
        return left, found

    def tensor(self, output: Output, nodes: dict[int, UOp], given: Mapping[int, Buffer],
               inputs: Inputs) -> Tensor:
        """What a replay gives for a tensor that left the traced call. `nodes` has the BUFFERs made so far."""
        if output.argument is not None:
            return inputs.tensors[output.argument]
        captured = None if output.captured is None else output.captured()
        if captured is not None:
            return captured
        memories = {self.places[n].placeholder: self.memory(n, nodes, given, inputs) for n in output.places}
        return output.tensor(memories, inputs.variables)

    def memory(self, number: int, nodes: dict[int, UOp], given: Mapping[int, Buffer],
               inputs: Inputs) -> UOp:
        """The BUFFER of a place that a tensor lies in after a replay."""
        node = nodes.get(number)
        if node is None:
            place = self.places[number]
            if place.kind is SlotKind.INPUT:
                node = inputs.memories[place.argument].current
            elif place.state is not None:
                node = place.state.current
            else:
                node = node_over(place.placeholder, given[number])
            nodes[number] = node
        return node
