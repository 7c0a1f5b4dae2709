"""`TinyJit`: trace a function of tensors once, then replay the kernels it ran. `docs/jit.md` is the contract.

The first call with given shapes, dtypes, devices and other arguments runs the function on stand-ins for its
tensors and captures the steps that run; later calls of that kind run the steps on other memory
(`engine/replay.py`).

A trace is kept only if running it again does what calling the function again would do. It is not kept where
the call computed values that were pending outside, or made an outside tensor stand for other memory: the next
call then traces again. A trace that was kept is used while the tensors whose memory it captured still
stand for that memory.
"""
from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from tinygrad.device import Buffer, Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import Capture, JitError, allocate, engine_lock
from tinygrad.engine.replay import Kind, Place, Replay, Step, Values
from tinygrad.functional import random
from tinygrad.graph.leaves import depends_on_leaf, is_leaf, storage_view
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import Storage, UOp
from tinygrad.graph.writes import Readers
from tinygrad.helpers import JIT, NOOPT
from tinygrad.schedule.items import BoundVariable
from tinygrad.tensor import Tensor, no_grad, pending_assignments
from tinygrad.tensor import _live as live_tensors

__all__ = ["JitError", "TinyJit"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRACES = 16
"""Traces that one function keeps; the one used longest ago goes first."""
PATIENCE = 8
"""Calls in a row that had to trace before a warning says why."""
RANDOM = "rng"
"""The name of the variable through which random numbers enter a kernel (functional/random.py)."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class TinyJit(Generic[P, R]):
    """A function of tensors that is traced once for each kind of arguments, then replayed.

    >>> from tinygrad import Tensor, TinyJit
    >>> @TinyJit
    ... def double(x):
    ...     return x * 2
    >>> double(Tensor([1, 2])).tolist(), double(Tensor([3, 4])).tolist()
    ([2, 4], [6, 8])
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.traces: OrderedDict[Any, Trace] = OrderedDict()
        self.of_instance: dict[int, TinyJit[Any, R]] = {}
        self.in_vain = 0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """For a method: what traces it for this one instance."""
        if instance is None:
            return self
        own = self.of_instance.get(id(instance))
        if own is None:
            own = self.of_instance[id(instance)] = TinyJit(self.function)
            weakref.finalize(instance, self.of_instance.pop, id(instance), None).atexit = False
        return BoundJit(own, instance)

    def reset(self) -> None:
        """Forget all traces."""
        self.traces.clear()
        self.of_instance.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.call((), args, kwargs)

    def call(self, bound: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Call the function on `bound` (the instance of a method), which is not traced, and the arguments."""
        if not JIT or Capture.current() is not None:
            return self.function(*bound, *args, **kwargs)
        with engine_lock:
            inputs = Inputs((args, dict(sorted(kwargs.items()))))
            inputs.realize()
            key = (inputs.structure, inputs.signature(), Tensor.training, no_grad.depth > 0, Device.DEFAULT,
                   dtypes.default_float, bool(NOOPT))
            trace = self.traces.get(key)
            if trace is not None and trace.holds():
                self.traces.move_to_end(key)
                self.in_vain = 0
                return trace.replay(inputs)  # type: ignore[no-any-return]  # what the function returned
            self.traces.pop(key, None)
            tracer = Tracer(inputs)
            result = tracer.run(self.function, bound)
            self.keep(key, tracer)
            return result  # type: ignore[no-any-return]  # what the function returned

    def keep(self, key: Any, tracer: Tracer) -> None:
        """Keep what was traced, if it can be replayed."""
        self.in_vain += 1
        if tracer.trace is not None:
            self.traces[key] = tracer.trace
            if len(self.traces) > MAX_TRACES:
                self.traces.popitem(last=False)
        if self.in_vain == PATIENCE:
            name = getattr(self.function, "__name__", self.function)
            warnings.warn(f"TinyJit traced {name} {PATIENCE} times in a row and replayed nothing: its "
                          "arguments, or the tensors it uses from outside, are others in each call; pass "
                          "tensors as arguments, and assign() to those from outside", stacklevel=4)


@dataclasses.dataclass(frozen=True)
class BoundJit:
    """A jitted method of one instance."""

    jit: TinyJit[Any, Any]
    instance: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jit.call((self.instance,), args, kwargs)

    def reset(self) -> None:
        """Forget this instance's traces."""
        self.jit.reset()


# --- arguments and results ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of a tensor in a structure of arguments or results."""

    position: int


@dataclasses.dataclass(frozen=True)
class Identity:
    """An argument without a value to compare by: this very object, kept alive so that its id stays its."""

    value: Any = dataclasses.field(compare=False)
    identity: int


def is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Slot))


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of `value`'s lists, tuples, dicts and dataclasses, with `change` applied to what they hold."""
    if isinstance(value, (list, tuple)):
        items = [changed(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        other = copy.copy(value)
        other.update({k: changed(v, change) for k, v in value.items()})
        return other
    if is_dataclass_instance(value):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, changed(getattr(value, field.name), change))
        return other
    return change(value)


class Inputs:
    """A call's arguments, and the tensors among them with their memory."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.tensors: list[Tensor] = []
        self.variables: dict[str, int] = {}
        self.views: list[UOp] = []
        """for each tensor, the view of memory, in order, that holds it"""
        self.whole: list[bool] = []
        """for each tensor, whether that is the tensor's own memory, and all of it"""
        self.structure = self.flatten(values)

    def flatten(self, value: Any) -> Any:
        """`value` as something to compare and hash, with a slot in place of every tensor."""
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return Slot(len(self.tensors) - 1)
        if isinstance(value, (list, tuple)):
            return (type(value), *(self.flatten(v) for v in value))
        if isinstance(value, dict):
            return (type(value), *((self.flatten(k), self.flatten(v)) for k, v in value.items()))
        if is_dataclass_instance(value):
            fields = ((f.name, self.flatten(getattr(value, f.name))) for f in dataclasses.fields(value))
            return (type(value), *fields)
        if isinstance(value, UOp) and value.op is Ops.VARIABLE and value.arg[3] is not None:
            variable, number = value.unbind()
            if self.variables.setdefault(variable.arg[0], number) != number:
                name = variable.arg[0]
                raise JitError(f"the variable {name} is bound to {self.variables[name]} and to {number} in "
                               "one call; give the two different names")
            return Identity(variable, id(variable))
        if isinstance(value, float):
            return (float, value.hex())
        if isinstance(value, complex):
            return (complex, value.real.hex(), value.imag.hex())
        if isinstance(value, PLAIN):
            return (type(value), value)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            return (type(value), value.dtype.str, value.shape, value.tobytes())
        return Identity(value, id(value))

    def realize(self) -> None:
        """Give every input memory in which it lies in order; write what is pending."""
        pending = [*self.tensors, *pending_assignments()]
        if pending:
            pending[0].realize(*pending[1:])
        packed = []
        for tensor in self.tensors:
            view = storage_view(tensor.uop)
            if view is None:
                raise RuntimeError(f"{tensor!r} was computed but has no memory")
            in_order = view.contiguous()
            self.whole.append(in_order is view and tensor.uop.base.op is Ops.BUFFER)
            packed.append(Tensor.of(in_order))
        if packed:
            packed[0].realize(*packed[1:])
        for tensor in packed:
            view = storage_view(tensor.uop)
            assert view is not None
            allocate(view.base)
            self.views.append(view)

    @property
    def storages(self) -> list[Storage]:
        return [v.base.storage for v in self.views]

    def signature(self) -> tuple[Any, ...]:
        """What decides whether a trace fits: shapes, dtypes, devices, which inputs are the same memory."""
        first: dict[Storage, int] = {}
        same = tuple(first.setdefault(s, i) for i, s in enumerate(self.storages))
        return (tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in self.tensors), same)


# --- tracing ------------------------------------------------------------------------------------------------


def storage_of(uop: UOp) -> Storage | None:
    """The memory that a tensor with node `uop` stands for, or stood for before it was overwritten."""
    if uop.base.op is Ops.BUFFER:
        return uop.base.storage
    view = uop.computed_into or uop.base.computed_into
    return None if view is None or view.base.op is not Ops.BUFFER else view.base.storage


def lazy_tensors() -> list[Tensor]:
    """The live tensors whose value is not in memory."""
    return [t for t in list(live_tensors.values()) if t._uop.base.op is not Ops.BUFFER and not t._is_realized]


def compute_readers(nodes: list[UOp]) -> None:
    """Compute the live lazy tensors that read the memory of BUFFER `nodes`, which is to be overwritten."""
    lazy = lazy_tensors() if nodes else []
    if not lazy:
        return
    readers = Readers({node.current.assign(node.current) for node in nodes})
    waiting = [t for t in lazy if readers.includes(t.uop)]
    for tensor in waiting:
        if tensor._expires:
            tensor._expire()
    kept = [t for t in waiting if not t._expires]
    if kept:
        kept[0].realize(*kept[1:])


@dataclasses.dataclass
class Outside:
    """A tensor that existed before a trace, as it was then."""

    tensor: weakref.ref[Tensor]
    uop: UOp
    grad: Tensor | None


class Tracer:
    """Runs a function once and makes a `Trace` of it; `trace` stays None where that could not be replayed."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.trace: Trace | None = None
        self.stand_ins: dict[Storage, UOp] = {}
        self.tensors: list[Tensor] = []
        for tensor, view in zip(inputs.tensors, inputs.views, strict=True):
            node = self.stand_ins.get(view.base.storage)
            if node is None:
                node = UOp.new_buffer(view.base.arg.device, view.base.arg.size, view.base.dtype)
                node.set_buffer(view.base.buffer)
                self.stand_ins[view.base.storage] = node
            own = view.substitute({view.base: node})
            self.tensors.append(Tensor(own, requires_grad=tensor.requires_grad))
        self.first_stand_in = {id(t): i for i, t in reversed(list(enumerate(inputs.tensors)))}

    def run(self, function: Callable[..., Any], bound: tuple[Any, ...]) -> Any:
        """Call the function, capture what runs, and return its result."""
        views = zip(self.inputs.views, self.inputs.whole, strict=True)
        compute_readers([view.base for view, whole in views if whole])
        self.outside = self.outside_tensors()
        pending = self.pending_nodes()
        seeding, start = random.seedings(), random.counters()
        with Capture() as capture:
            by_id: Mapping[int, Tensor] = {i: self.tensors[k] for i, k in self.first_stand_in.items()}
            args, kwargs = changed(self.inputs.values, lambda v: by_id[id(v)] if isinstance(v, Tensor) else (
                v.copy() if isinstance(v, np.ndarray) else v))
            arguments = Inputs((args, kwargs))
            result = function(*bound, *args, **kwargs)
            after = Inputs((args, kwargs))
            same = all(a is b for a, b in zip(after.tensors, arguments.tensors))
            if after.structure != arguments.structure or not same:
                raise JitError("the function changed a list, dict or object that it was given, which a "
                               "replay would not do; return it instead")
            returned = self.returned_tensors(result)
            rebound = self.rebound()
            gradients = self.new_gradients()
            computed = [g for g in gradients.values() if g is not None]
            todo = [*returned, *rebound, *pending_assignments(), *computed]
            if todo:
                todo[0].realize(*todo[1:])
        if random.seedings() != seeding:
            raise JitError("manual_seed() inside a function under TinyJit would not run in a replay; "
                           "call it outside")
        builder = Builder(self.inputs, self.stand_ins, capture, start)
        trace = builder.trace(result, self, returned, gradients)
        trace.check(self.inputs)
        trace.mark_overwritten(self.inputs)
        if not rebound and not any(n.realized_view is not None for n in pending):
            self.trace = trace
        results = [self.first_result(t, i, trace) for i, t in enumerate(returned)]
        for i in self.first_stand_in.values():
            if i in gradients:
                set_gradient(self.inputs.tensors[i], gradients[i])
        for node in self.stand_ins.values():
            node.set_buffer(None)
        return changed(trace.structure, lambda v: results[v.position] if isinstance(v, Slot) else v)

    def outside_tensors(self) -> list[Outside]:
        """Every live tensor but the stand-ins."""
        own = set(map(id, self.tensors))
        tensors = [t for t in list(live_tensors.values()) if id(t) not in own]
        for tensor in tensors:
            tensor._first_gradient_use = None
        return [Outside(weakref.ref(t), t.uop, t._grad) for t in tensors]

    def pending_nodes(self) -> list[UOp]:
        """The nodes of outside tensors that have no value yet. One that gets it inside is computed once."""
        nodes: dict[UOp, None] = {}
        for tensor in lazy_tensors():
            nodes.update(tensor.uop.toposort(stop=lambda n: n.realized_view is not None or n in nodes))
        return [n for n in nodes if n.realized_view is None]

    def returned_tensors(self, result: Any) -> list[Tensor]:
        """The tensors in the result. Raises JitError for what a replay could not make again."""
        found: dict[int, Tensor] = {}

        def look(value: Any) -> None:
            if isinstance(value, Tensor):
                found.setdefault(id(value), value)
            elif not isinstance(value, PLAIN):
                raise JitError(f"a function under TinyJit returned a {type(value).__name__}; it may return "
                               "tensors, numbers, strings, None, and lists, tuples, dicts and dataclasses of "
                               "them")

        changed(result, look)
        return list(found.values())

    def rebound(self) -> list[Tensor]:
        """The outside tensors that stand for other memory now."""
        found = []
        for before in self.outside:
            tensor = before.tensor()
            if tensor is None or tensor._uop is before.uop or tensor._given_up:
                continue
            target = tensor.uop.base.src[0] if tensor.uop.base.op is Ops.ASSIGN else tensor.uop
            old = storage_of(before.uop)
            if old is None or storage_of(target) is not old:
                found.append(tensor)
        return found

    def new_gradients(self) -> dict[Any, Tensor | None]:
        """Each outside tensor (a reference) or input (its number) whose gradient changed: the new one."""
        found: dict[Any, Tensor | None] = {}
        for before in self.outside:
            tensor = before.tensor()
            if tensor is not None and tensor._grad is not before.grad:
                found[before.tensor] = tensor._grad
        for i in self.first_stand_in.values():
            if self.tensors[i]._grad is not None:
                found[i] = self.tensors[i]._grad
        return {owner: g for owner, g in found.items() if g is None or not (g._expires or g._given_up)}

    def first_result(self, tensor: Tensor, position: int, trace: Trace) -> Tensor:
        """What the caller gets for a returned tensor."""
        output = trace.outputs[position]
        if output.argument is not None:
            return self.inputs.tensors[output.argument]
        if output.outside is not None:
            return tensor
        view = storage_view(tensor.uop)
        assert view is not None
        changes = {node: v.base.current for node, v in
                   ((self.stand_ins[v.base.storage].current, v) for v in self.inputs.views)}
        return Tensor(view.substitute(changes), requires_grad=output.requires_grad)


@dataclasses.dataclass
class Output:
    """A returned tensor: a view of a place's memory, an argument, or a tensor from outside."""

    place: int
    view: UOp
    """over the place's placeholder"""
    requires_grad: bool | None
    argument: int | None = None
    outside: weakref.ref[Tensor] | None = None


class Builder:
    """Turns captured items, which name BUFFER nodes, into steps on places."""

    def __init__(self, inputs: Inputs, stand_ins: dict[Storage, UOp], capture: Capture,
                 start: dict[str, int]) -> None:
        self.capture = capture
        self.argument = {node.storage: inputs.storages.index(s) for s, node in stand_ins.items()}
        self.number: dict[Storage, int] = {}
        self.places: list[Place] = []
        self.variables = inputs.variables
        self.start = start
        self.steps = [Step(i.ast, i.device, tuple(self.place(b) for b in i.buffers), i.outputs,
                           tuple(self.variable(v, i.device) for v in i.variables)) for i in capture.items]

    def variable(self, variable: BoundVariable, device: str) -> BoundVariable:
        """The variable, without a source if it stays as it is: not a draw of this call, not an argument."""
        drawn = variable.source == RANDOM and variable.value >= self.start.get(device, 0)
        given = self.variables.get(variable.source) == variable.value
        return variable if drawn or given else dataclasses.replace(variable, source="")

    def place(self, node: UOp) -> int:
        """The number of the place that stands for the memory of a BUFFER node."""
        number = self.number.get(node.storage)
        if number is None:
            number = self.number[node.storage] = len(self.places)
            self.places.append(self.new_place(node))
        return number

    def new_place(self, node: UOp) -> Place:
        placeholder = UOp.new_buffer(node.arg.device, node.arg.size, node.dtype)
        if node.storage in self.argument:
            return Place(Kind.INPUT, placeholder, argument=self.argument[node.storage])
        if node.storage in self.capture.initial:
            return Place(Kind.FRESH, placeholder, content=self.capture.initial[node.storage])
        if self.capture.made_inside(node) and node.storage in self.capture.written:
            return Place(Kind.INTERNAL, placeholder)
        return Place(Kind.STATE, placeholder, state=node)

    def output(self, tensor: Tensor, tracer: Tracer) -> Output:
        """Where a tensor that leaves the call has its value."""
        view = storage_view(tensor.uop)
        if view is None:
            raise RuntimeError(f"{tensor!r} was computed but has no memory")
        node = view.base
        if self.capture.made_inside(node) and node.storage not in self.capture.written and (
                node.storage not in self.argument):
            self.capture.keep_content(node)  # made of Python numbers, and returned
            self.number.pop(node.storage, None)
        number = self.place(node)
        if self.places[number].kind is Kind.INTERNAL:
            self.places[number].kind = Kind.FRESH
        tracked = depends_on_leaf(tensor.uop) and not is_leaf(tensor.uop)
        output = Output(number, view.substitute({node: self.places[number].placeholder}),
                        False if tracked else tensor.requires_grad)
        arguments = tracer.first_stand_in.values()
        output.argument = next((i for i in arguments if tracer.tensors[i] is tensor), None)
        output.outside = next((o.tensor for o in tracer.outside if o.tensor() is tensor), None)
        return output

    def trace(self, result: Any, tracer: Tracer, returned: list[Tensor],
              gradients: dict[Any, Tensor | None]) -> Trace:
        position = {id(t): i for i, t in enumerate(returned)}
        structure = changed(result, lambda v: Slot(position[id(v)]) if isinstance(v, Tensor) else v)
        outputs = [self.output(t, tracer) for t in returned]
        new_gradients = {owner: None if g is None else self.output(g, tracer)
                         for owner, g in gradients.items()}
        drawn = {d: n - self.start.get(d, 0) for d, n in random.counters().items()}
        states = {p.state.storage: p.state for p in self.places if p.state is not None}
        handles: dict[Storage, list[weakref.ref[Tensor]]] = {}
        checked = []
        for before in tracer.outside:
            storage, tensor = storage_of(before.uop), before.tensor()
            if storage in states:
                handles.setdefault(storage, []).append(before.tensor)
            if tensor is not None and tensor._first_gradient_use == "added":
                checked.append((before.tensor, None if before.grad is None else weakref.ref(before.grad)))
        written = {p for s in self.steps for p in s.places[:s.outputs]}
        draws = any(v.source == RANDOM for step in self.steps for v in step.variables)
        return Trace(self.places, self.steps, written, outputs, structure, new_gradients, handles, checked,
                     self.start, drawn, random.seed() if draws else None)


@dataclasses.dataclass
class Trace:
    """What one kind of call does: its steps, and where arguments, results and state are among the places."""

    places: list[Place]
    steps: list[Step]
    written: set[int]
    outputs: list[Output]
    structure: Any
    """the result, with a slot for every tensor"""
    gradients: dict[Any, Output | None]
    handles: dict[Storage, list[weakref.ref[Tensor]]]
    """the outside tensors that stood for each captured memory"""
    old_gradients: list[tuple[weakref.ref[Tensor], weakref.ref[Tensor] | None]]
    """gradients that the call adds to, by their owners"""
    random_start: dict[str, int]
    """each device's random counter when the trace began"""
    random_count: dict[str, int]
    """what a call adds to it"""
    seed: int | None
    """the seed, if random numbers are drawn"""

    def holds(self) -> bool:
        """Whether the outside tensors still stand for the memory that was captured."""
        if self.seed is not None and self.seed != random.seed():
            return False
        for storage, references in self.handles.items():
            alive = [t for t in (r() for r in references) if t is not None]
            if not alive or any(storage_of(t.uop) is not storage for t in alive):
                return False
        for owner, gradient in self.old_gradients:
            tensor = owner()
            if tensor is not None and tensor._grad is not (None if gradient is None else gradient()):
                return False
        return True

    def check(self, inputs: Inputs) -> None:
        """Raise JitError where an assignment inside would not reach, or would cross, the caller's memory."""
        states = {p.state.buffer: n for n, p in enumerate(self.places) if p.state is not None}
        for number, place in enumerate(self.places):
            if place.kind is not Kind.INPUT:
                continue
            i, shape = place.argument, inputs.tensors[place.argument].shape
            if number in self.written and not inputs.whole[i]:
                raise JitError(f"the function assigns to its tensor argument {i}, of shape {shape}, which "
                               "is a view or has no memory of its own; pass x.contiguous().realize(), or the "
                               "whole tensor")
            state = states.get(inputs.views[i].base.buffer)
            if state is not None and (number in self.written or state in self.written):
                raise JitError(f"tensor argument {i}, of shape {shape}, is a tensor that the function also "
                               "uses directly, and one of the two is assigned to; use it one way only")

    @functools.cached_property
    def engine(self) -> Replay:
        return Replay(self.places, self.steps)

    def replay(self, inputs: Inputs) -> Any:
        """Run the steps on other inputs and return new tensors."""
        self.check(inputs)
        compute_readers(self.overwritten(inputs))
        engine = self.engine
        given: dict[int, Buffer] = {}
        for number, place in enumerate(self.places):
            if place.kind is Kind.INPUT:
                given[number] = allocate(inputs.views[place.argument].base)
            elif place.kind is Kind.FRESH:
                given[number] = place.new_buffer()
        moved = {d: n - self.random_start.get(d, 0) for d, n in random.counters().items()}
        for device, count in self.random_count.items():
            random.advance(device, count)
        try:
            engine(given, Values(moved, inputs.variables))
        finally:
            self.mark_overwritten(inputs)
        nodes: dict[int, UOp] = {}
        tensors = [self.tensor(o, nodes, given, inputs) for o in self.outputs]
        for owner, output in self.gradients.items():
            gradient = None if output is None else self.tensor(output, nodes, given, inputs)
            set_gradient(inputs.tensors[owner] if isinstance(owner, int) else owner(), gradient)
        return changed(self.structure, lambda v: tensors[v.position] if isinstance(v, Slot) else v)

    def overwritten(self, inputs: Inputs) -> list[UOp]:
        """The BUFFER nodes of state and inputs that a call writes to."""
        nodes = []
        for place in (self.places[n] for n in self.written):
            if place.kind is Kind.INPUT:
                nodes.append(inputs.views[place.argument].base)
            elif place.state is not None:
                nodes.append(place.state)
        return nodes

    def mark_overwritten(self, inputs: Inputs) -> None:
        """Say that what was computed from the memory that a call writes no longer stands for its content."""
        for node in self.overwritten(inputs):
            node.mark_overwritten()

    def tensor(self, output: Output, nodes: dict[int, UOp], given: Mapping[int, Buffer],
               inputs: Inputs) -> Tensor:
        """What a replay gives for a tensor that left the traced call. `nodes` has the BUFFERs made so far."""
        if output.argument is not None:
            return inputs.tensors[output.argument]
        outside = None if output.outside is None else output.outside()
        if outside is not None:
            return outside
        place = self.places[output.place]
        node = nodes.get(output.place)
        if node is None:
            if place.kind is Kind.INPUT:
                node = inputs.views[place.argument].base.current
            elif place.state is not None:
                node = place.state.current
            else:
                node = UOp.new_buffer(place.placeholder.arg.device, place.size, place.placeholder.dtype)
                node.set_buffer(given[output.place])
            nodes[output.place] = node
        return Tensor(output.view.substitute({place.placeholder: node}), requires_grad=output.requires_grad)


def set_gradient(owner: Tensor | None, gradient: Tensor | None) -> None:
    """What `backward` inside the call did to `.grad` of a tensor of the outside."""
    if owner is None:
        return
    if gradient is not None:
        gradient._requires_grad = False
    owner._grad = gradient
