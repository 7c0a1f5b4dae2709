"""`TinyJit`: trace a function of tensors once, then replay the kernels it ran. `docs/jit.md` is the contract.

The first call with given shapes, dtypes, devices and other arguments runs the function on stand-ins for its
tensors and captures the steps that run; later calls of that kind run the steps on other memory
(`engine/replay.py`).

A `TinyJit` can be pickled: its traces go to another process, the function does not (`jit/saved.py`).

A trace is kept only if running it again does what calling the function again would do, and used while that
stays so: `jit/captured_state.py` decides. `jit/arguments.py` takes arguments and results apart.
"""
from __future__ import annotations

import copy
import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from tinygrad import observer
from tinygrad.device.queue import clock
from tinygrad.engine.capture import Capture, JitError
from tinygrad.engine.realize import realize_uops
from tinygrad.engine.replay import Place, SlotKind
from tinygrad.frozen import frozen
from tinygrad.graph.leaf_tensors import below_detaches, depends_on_leaf, is_leaf, values_view
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import unbound
from tinygrad.graph.storage import Overwriting, Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, JIT, engine_lock
from tinygrad.jit.arguments import CallKind, Inputs, Slot, changed, returned_tensors
from tinygrad.jit.arrays import HostData
from tinygrad.jit.captured_state import (
    Below,
    CapturedState,
    compute_readers,
    is_tracked,
    is_unwanted,
    reachable_tensors,
    set_gradient,
)
from tinygrad.jit.guard_paths import GuardPath, GuardPaths, lead_to_tensors
from tinygrad.jit.guard_table import Guard, broken
from tinygrad.jit.repeat import MISSED, RepeatedCall, repeated_call
from tinygrad.jit.saved import Saved, load, save
from tinygrad.jit.shape_guards import ShapeGuards
from tinygrad.jit.trace import GIVEN_UP, SEED, Output, Trace, argument_source
from tinygrad.schedule.items import BoundVariable, Step
from tinygrad.tensor import Tensor, generator
from tinygrad.tensor.live import live_tensors, pending_assignments, unrealized_tensors
from tinygrad.tensor.modes import is_transforming

__all__ = ["JitError", "TinyJit"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRACES = 16
"""Traces that one function keeps; the one used longest ago goes first."""
PATIENCE = 8
"""Calls in a row that had to trace before a warning says why."""
OTHER_TENSORS = ("its arguments, or the tensors it uses from outside, are others in each call, or it keeps "
                 "ever more tensors; pass tensors as arguments, return them, and assign() to those from "
                 "outside")
GRADIENTS_OF_STATE = ("it assigns to a tensor from outside through which gradients flow from call to call; "
                      "make that in memory, Tensor.zeros(n).contiguous().realize(), or detach() what is "
                      "assigned")
OTHER_HOST_DATA = ("an array or list that it makes a tensor of has another content in each call; make the "
                   "tensor outside and pass it as an argument")


def described(function: Callable[..., Any]) -> str:
    """A function's name, for people."""
    return str(getattr(function, "__qualname__", function))


class TinyJit(Generic[P, R]):
    """A function of tensors that is traced once for each kind of arguments, then replayed.

    >>> from tinygrad import Tensor, TinyJit
    >>> @TinyJit
    ... def double(x):
    ...     return x * 2
    >>> double(Tensor([1, 2])).tolist(), double(Tensor([3, 4])).tolist()
    ([2, 4], [6, 8])
    """

    alone = False
    """whether the function reaches no tensors but its arguments and such as nobody else has"""
    writes_pending = True
    """whether a call first computes what is pending for tensors that are no arguments"""

    def __init__(self, function: Callable[P, R]) -> None:
        if not callable(function):
            raise TypeError(f"TinyJit takes a function, not a {type(function).__name__}; write @classmethod "
                            "above @TinyJit")
        functools.update_wrapper(self, function, updated=())  # a model's attributes stay its own
        self.function = function
        self.name = described(function)
        self.traces: OrderedDict[CallKind, Trace] = OrderedDict()
        self.repeated: RepeatedCall | None = None
        """calls like the last one, whose trace is the one used last"""
        self.of_instance: dict[int, TinyJit[Any, R]] = {}
        self.in_vain = 0
        self.keeps: Any = None
        """the instance, of a method, if nothing else says when it ends: its id stays its own"""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """For a method: what traces it for this one instance."""
        if instance is None or isinstance(self.function, staticmethod):
            return self
        own = self.of_instance.get(id(instance))
        if own is None:
            own = self.of_instance[id(instance)] = TinyJit(self.function)
            try:
                weakref.finalize(instance, self.of_instance.pop, id(instance), None).atexit = False
            except TypeError:  # __slots__ without __weakref__
                own.keeps = instance
        return BoundJit(own, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Its traces, without the function. Raises JitError where there are none."""
        return loaded, (getattr(self.function, "__name__", "a function"), save(self.traces))

    def __copy__(self) -> TinyJit[P, R]:
        """The same function, not traced yet."""
        return TinyJit(self.function)

    def __deepcopy__(self, memo: dict[int, Any]) -> TinyJit[P, R]:
        """A copy of the function (its instance, of a method), not traced yet."""
        return TinyJit(copy.deepcopy(self.function, memo))

    def reset(self) -> None:
        """Forget all traces."""
        self.traces.clear()
        self.repeated = None
        self.of_instance.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.call((), args, kwargs)

    def call(self, bound: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Call the function on `bound` (the instance of a method), which is not traced, and the arguments."""
        if not JIT or Capture.current() is not None or is_transforming():
            return self.function(*bound, *args, **kwargs)
        with engine_lock:
            if self.repeated is not None and not kwargs and DEBUG.value < 2:
                result = self.repeated(args, self.writes_pending)
                if result is not MISSED:
                    return result  # type: ignore[no-any-return]  # what the function returned
            self.repeated = None
            inputs = Inputs((args, dict(sorted(kwargs.items()))))
            inputs.realize(self.writes_pending)
            kind, trace = self.trace_for(inputs)
            changed_since = None if trace is None else broken(trace.guards, inputs)
            if trace is not None and changed_since is None:
                self.traces.move_to_end(kind)
                self.in_vain = 0
                watcher = observer.active
                began = clock() if watcher is not None else 0.0
                try:
                    self.repeated = repeated_call(self.name, kind, trace)
                    return trace.replay(inputs)  # type: ignore[no-any-return]  # what the function returned
                finally:
                    if watcher is not None:
                        watcher.ran("replay", self.name, began)
            if changed_since is not None and DEBUG >= 2:
                print(f"TinyJit {self.name}: traced again, for {changed_since.what} changed")
            before = None if trace is None else trace.host
            self.traces.pop(kind, None)
            tracer = self._tracer(inputs)
            with observer.span("trace", self.name):
                result = tracer.run(self.function, bound)
            tracer.host.follows(before)
            self.keep(kind, tracer)
            return result  # type: ignore[no-any-return]  # what the function returned

    def trace_for(self, inputs: Inputs) -> tuple[CallKind, Trace | None]:
        """The kind of call that these arguments make, and the trace of it, if there is one."""
        kind = inputs.kind()
        while (trace := self.traces.get(kind)) and broken(trace.size_guards, inputs):
            kind = kind._replace(variant=kind.variant + 1)
        return kind, trace

    def _tracer(self, inputs: Inputs) -> Tracer:
        """What traces a call with `inputs`."""
        return Tracer(inputs, self.alone)

    def keep(self, kind: CallKind, tracer: Tracer) -> None:
        """Keep what was traced, if it can be replayed. Where the call made state that it did not find, the
        next one is traced, for it finds some; and where other tensors stand in place of those that it used,
        each is."""
        self.in_vain += 1
        trace = tracer.trace
        if trace is not None and tracer.made.keys() <= tracer.found.keys() and not tracer.moved:
            self.traces[kind] = trace
            if len(self.traces) > MAX_TRACES:
                self.traces.popitem(last=False)
        if self.in_vain == PATIENCE:
            name = getattr(self.function, "__name__", self.function)
            reason = GRADIENTS_OF_STATE if tracer.state_has_gradients else (
                OTHER_TENSORS if tracer.host.is_repeated else OTHER_HOST_DATA)
            warnings.warn(f"TinyJit traced {name} {PATIENCE} times in a row and replayed nothing: {reason}",
                          stacklevel=4)


class PureJit(TinyJit[P, R]):
    """For functions inside the library that compute from their arguments alone, and leave no gradients.

    What tensors there are beside them has no say in whether a trace is used: an equal constant that somebody
    holds, or held, is not theirs.
    """

    alone = True

    def keep(self, kind: CallKind, tracer: Tracer) -> None:
        if tracer.trace is not None and all(p.state is None or p.is_constant for p in tracer.trace.places):
            self.traces[kind] = tracer.trace


class Loaded:
    """What a function that was loaded has in place of Python: an error for calls that it was not traced
    for."""

    def __init__(self, name: str, kinds: list[str]) -> None:
        self.__name__ = name
        self.kinds = kinds

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise JitError(f"{self.__name__} was loaded, without its Python: it can only do calls of the kinds "
                       f"that it was traced for, by itself and with JIT=1, on the tensors that came with it. "
                       f"It knows {'; '.join(self.kinds)}. Call the original function for others, or trace "
                       "it for them before it is pickled")


def loaded(name: str, saved: Saved) -> TinyJit[Any, Any]:
    """A function of what `TinyJit.__reduce__` saved. Raises JitError for anything else."""
    traces = load(saved)
    jit: TinyJit[Any, Any] = TinyJit(Loaded(name, [str(kind) for kind in traces]))
    jit.traces = traces
    return jit


@frozen
class BoundJit:
    """A jitted method of one instance."""

    jit: TinyJit[Any, Any]
    instance: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jit.call((self.instance,), args, kwargs)

    def reset(self) -> None:
        """Forget this instance's traces."""
        self.jit.reset()


class Tracer:
    """Runs a function once and makes a `Trace` of it; `trace` stays None where that could not be replayed.

    `alone`: the function reaches no tensors but its arguments.
    """

    def __init__(self, inputs: Inputs, alone: bool = False) -> None:
        self.inputs = inputs
        self.alone = alone
        self.trace: Trace | None = None
        self.host = HostData()
        self.made: dict[GuardPath, Callable[[], Any]] = {}
        """the ways to tensors that the call made, and the function keeps"""
        self.found: dict[GuardPath, weakref.ref[Tensor]] = {}
        """the ways to tensors before the call, and those that they led to"""
        self.moved = False
        """whether one that the call used does not stand any more where it stood, nor one for its memory"""
        self.state_has_gradients = False
        """whether one from outside was assigned to that stands for no memory all the same, for gradients flow
        through it"""
        self.stand_ins: dict[Storage, UOp] = {}
        self.tensors: list[Tensor] = []
        for tensor, view in zip(inputs.tensors, inputs.views, strict=True):
            node = self.stand_ins.get(view.base.storage)
            if node is None:
                node = self.stand_ins[view.base.storage] = stand_in_for(view.base)
            own = view.substitute({view.base: node})
            stand_in = Tensor(own, requires_grad=tensor.requires_grad)
            stand_in._grad = tensor._grad
            self.tensors.append(stand_in)
        self.first_stand_in = {id(t): i for i, t in reversed(list(enumerate(inputs.tensors)))}
        self.arguments = {i: self.tensors[i] for i in self.first_stand_in.values()}
        """by number: what the function gets for a tensor"""
        self.gradients_before = {i: t._grad for i, t in self.arguments.items()}

    def run(self, function: Callable[..., Any], bound: tuple[Any, ...]) -> Any:
        """Call the function, capture what runs, and return its result."""
        views = zip(self.inputs.views, self.inputs.whole, strict=True)
        memories = [memory for view, whole in views if whole for memory in view.base.memories]
        compute_readers(self.inputs.unrealized, [memory.storage for memory in memories])
        stand_ins = set(map(id, self.tensors))
        others = [] if self.alone else reachable_tensors()
        self.captured_state = CapturedState([t for t in others if id(t) not in stand_ins])
        if not self.alone:
            self.found = GuardPaths(function, (*bound, *self.inputs.objects), (), ()).places
        try:
            return self.traced(function, bound)
        except BaseException:
            self.abandon()
            raise

    def traced(self, function: Callable[..., Any], bound: tuple[Any, ...]) -> Any:
        seeding, start = generator.seedings(), generator.counters()
        given = {memory.storage for node in self.stand_ins.values() for memory in node.memories}
        with Capture(self.host.note, self.captured_state.pending, given) as capture:
            by_id: Mapping[int, Tensor] = {i: self.tensors[k] for i, k in self.first_stand_in.items()}
            args, kwargs = changed(self.inputs.values, lambda v: by_id[id(v)] if isinstance(v, Tensor) else (
                self.host.given(v.copy()) if isinstance(v, np.ndarray) else v))
            arguments = Inputs((args, kwargs))
            result = function(*bound, *args, **kwargs)
            after = Inputs((args, kwargs))
            same = all(a is b for a, b in zip(after.tensors, arguments.tensors))
            if after.structure != arguments.structure or not same:
                raise JitError("the function changed a list, dict or object that it was given, which a "
                               "replay would not do; return it instead")
            returned = returned_tensors(result)
            rebound = self.captured_state.rebound()
            gradients = self.new_gradients()
            computed = [g for g in gradients.values() if g is not None and not is_unwanted(g)]
            todo = [*returned, *rebound, *pending_assignments(), *computed]
            if todo:
                todo[0].realize(*todo[1:])
                capture.use([t.uop for t in todo])
            self.separate(returned, capture)
            self.state_has_gradients = any(is_tracked(t) for t in rebound)
        if generator.seedings() != seeding:
            raise JitError("manual_seed() inside a function under TinyJit would not run in a replay; "
                           "call it outside")
        builder = TraceBuilder(self.inputs, self.stand_ins, capture, start)
        rests_on, is_of_this_call = self.captured_state.found(capture, builder.kind_of)
        capture.read.update(dict.fromkeys(rests_on))
        trace = builder.trace(result, self, returned, gradients)
        trace.check(self.inputs)
        Overwriting(trace.overwritten_inputs(self.inputs)).done()
        if not (rebound or is_of_this_call or self.captured_state.was_computed()):
            trace.guards = trace.captured.table()
            if not self.alone:
                self.follow_paths(function, bound, trace)
            self.trace = trace
        results = [self.first_result(t, i, trace) for i, t in enumerate(returned)]
        for owner, gradient in gradients.items():
            tensor = self.inputs.tensors[owner] if isinstance(owner, int) else owner()
            set_gradient(tensor, GIVEN_UP if is_unwanted(gradient) else gradient)
        self.give_back_inputs()
        return changed(trace.structure, lambda v: results[v.position] if isinstance(v, Slot) else v)

    def follow_paths(self, function: Callable[..., Any], bound: tuple[Any, ...], trace: Trace) -> None:
        """Add to a trace's guards how the function reached what it uses from outside, and what it made
        tensors of."""
        used = set(map(id, trace.captured.tensors())) | self.host.roots()
        paths = GuardPaths(function, (*bound, *self.inputs.objects), used, self.captured_state.ids())
        self.host.drop_dead_sources(paths)
        trace.host, self.made = self.host, paths.made
        kept = [tensor for leads_to in paths.made.values() if isinstance(tensor := leads_to(), Tensor)]
        self.moved = trace.captured.moved(self.found, paths.places, self.captured_state.below(kept))
        trace.guards = [*self.host.table(), *trace.guards, *paths.table()]
        if paths.made:
            trace.guards.append(Guard("what it keeps", lambda inputs: lead_to_tensors(paths.made), True))

    def separate(self, returned: list[Tensor], capture: Capture) -> None:
        """Give returned tensors memory of their own where another one has it, that is no view of the same
        value: one of an equal expression, which is computed once, or state with that value
        (`state.clone()`). Later calls write to the one, and the caller may write to the other."""
        own = {id(tensor) for tensor in returned if self.captured_state.reference(tensor) is None}
        owners: dict[Storage, object] = {}
        for tensor in unrealized_tensors():
            view = None if id(tensor) in own else values_view(tensor._shown)
            if view is not None:
                owners.update(dict.fromkeys(view.base.storage.parts, tensor._aliased or tensor))
        for tensor in returned:
            view, is_lazy = values_view(tensor._shown), not tensor._is_in_memory
            is_view = tensor.uop.op in Family.VIEW
            if view is None or id(tensor) not in own or (is_view and not is_lazy):
                continue
            storage, owner = view.base.storage, tensor._aliased or tensor
            is_made = all(map(capture.made_inside, view.base.memories))
            is_own = not is_lazy or (storage.belongs_to(owner) if is_made else is_view)
            if not is_own or any(owners.get(part, owner) is not owner for part in storage.parts):
                memory = Tensor.of(view).empty_like(requires_grad=False).uop
                realize_uops([memory.assign(view)])
                tensor._show_whole(memory)
                storage = memory.base.storage
            owners.update(dict.fromkeys(storage.parts, owner))

    def abandon(self) -> None:
        """After an exception: what the function did to its arguments, as the plain one, stays done."""
        writes = [t for t in self.arguments.values() if below_detaches(t._uop).op is Ops.ASSIGN]
        if writes:
            writes[0].realize(*writes[1:])
        Overwriting([view.base.storage for view in self.inputs.views
                     if self.stand_ins[view.base.storage].is_overwritten]).done()
        for i, gradient in self.arguments_gradients().items():
            self.inputs.tensors[i]._grad = gradient
        self.give_back_inputs()

    def give_back_inputs(self) -> None:
        """Make tensors that the function kept stand for, or depend on, the caller's memory in place of the
        stand-ins, which lose it."""
        callers = self.callers_memory()
        tensors, changes = live_tensors() if callers else [], dict(callers)
        for node in [*UOp.sink([t.uop for t in tensors]).toposort()][:-1]:
            depends = node not in callers and not changes.keys().isdisjoint(node.src)
            new = node.with_sources(tuple([changes.get(s, s) for s in node.src])) if depends else node
            if (view := node.realized_view) is not None and node not in callers:
                own = view.substitute(callers)
                if new is not node or own is not view:
                    new.set_realized_view(own)
            if depends:
                changes[node] = new
        for tensor in tensors:
            if tensor.uop in changes:
                tensor.substitute(changes)
        for node in self.stand_ins.values():
            for memory in node.memories:
                memory.set_buffer(None)

    def callers_memory(self) -> dict[UOp, UOp]:
        """The caller's node for each stand-in's, as both are now."""
        return {self.stand_ins[v.base.storage].current: v.base.current for v in self.inputs.views}

    def new_gradients(self) -> dict[Any, Tensor | None]:
        """Each outside tensor (a reference) or input (its number) whose gradient changed: the new one."""
        return self.captured_state.new_gradients() | self.arguments_gradients()

    def arguments_gradients(self) -> dict[Any, Tensor | None]:
        """Those that the call gave to what stands for its arguments, by number."""
        return {i: t._grad for i, t in self.arguments.items() if t._grad is not self.gradients_before[i]}

    def first_result(self, tensor: Tensor, position: int, trace: Trace) -> Tensor:
        """What the caller gets for a returned tensor."""
        output = trace.outputs[position]
        if output.argument is not None:
            return self.inputs.tensors[output.argument]
        if output.captured is not None:
            return tensor
        view = values_view(tensor.uop)
        assert view is not None
        result = Tensor(view.substitute(self.callers_memory()), requires_grad=output.requires_grad)
        storage = view.base.storage
        if not storage.is_of_constants and storage.belongs_to(tensor._aliased or tensor):
            storage.give_to(result)  # not to state that has the value too (`state.clone()`)
        return result


def stand_in_for(base: UOp) -> UOp:
    """A BUFFER node like `base`, over the same memory, that no other node is."""
    others = {}
    for memory in base.memories:
        others[memory] = UOp.new_buffer(memory.arg.device, memory.arg.size, memory.dtype)
        others[memory].set_buffer(memory.buffer)
    return base.over_memories(others)


class TraceBuilder:
    """Turns captured items, which name BUFFER nodes, into steps on places."""

    def __init__(self, inputs: Inputs, stand_ins: dict[Storage, UOp], capture: Capture,
                 start: dict[str, int]) -> None:
        self.capture = capture
        known = [memory.storage for memory in inputs.memories]
        self.argument = {own.storage: known.index(memory.storage)
                         for view in inputs.views
                         for own, memory in zip(stand_ins[view.base.storage].memories, view.base.memories,
                                                strict=True)}
        self.number: dict[Storage, int] = {}
        self.places: list[Place] = []
        self.variables = inputs.variables
        self.start = start
        self.counters = {generator.counter_name(device): device for device in generator.counters()}
        """by the name of its VARIABLE: whose counter it is"""
        self.seed = self.fixed_seed()
        self.steps = [Step.of(item, self.place, self.variable) for item in capture.items]

    def variable(self, variable: BoundVariable) -> BoundVariable:
        """The variable, with what gives it a value in a replay as its source: nothing if it stays as it
        is."""
        source = ""
        if self.variables.get(variable.source) == variable.value:
            source = argument_source(variable.source)
        elif self.is_drawn(variable) or (self.seed is None and variable.source == SEED):
            source = variable.source
        return variable._replace(source=source)

    def is_drawn(self, variable: BoundVariable) -> bool:
        """Whether this is the counter of a draw within the call, not of a lazy tensor from before it."""
        device = self.counters.get(variable.source)
        return device is not None and \
            variable.value - generator.stream_start(device) >= self.start.get(device, 0)

    def kind_of(self, variable: UOp) -> Below:
        """What a VARIABLE of a graph is to this call."""
        name, low, high, value = variable.arg
        if value is None:
            return Below.OTHER
        if name == SEED:
            return Below.SEED if value == generator.seed() else Below.OTHER
        if self.variables.get(name) == value:
            return Below.ARGUMENT
        device = self.counters.get(name)
        is_draw = device is not None and self.is_drawn(BoundVariable(name, name, value, (low, high))) and \
            value - generator.stream_start(device) < generator.counter(device)
        return Below.DRAW if is_draw else Below.OTHER

    def fixed_seed(self) -> int | None:
        """The seed, where numbers that were drawn before the call are computed in it: they belong to that
        seed, whatever the seed of later calls is."""
        drawn = [self.is_drawn(v) for item in self.capture.items for v in item.variables
                 if v.source in self.counters]
        return None if all(drawn) else generator.seed()

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
            return Place(SlotKind.INPUT, placeholder, argument=self.argument[node.storage])
        if node.storage in self.capture.initial:
            return Place(SlotKind.FRESH, placeholder, content=self.capture.initial[node.storage])
        is_ours = self.capture.made_inside(node)
        if is_ours and node.storage in self.capture.written:
            return Place(SlotKind.INTERNAL, placeholder)
        return Place(SlotKind.STATE, placeholder, state=node, is_constant=is_ours)

    def place_of_output(self, node: UOp) -> int:
        """The number of the place that stands for the memory of a BUFFER node of a tensor that leaves the
        call."""
        if self.capture.made_inside(node) and node.storage not in self.capture.written and (
                node.storage not in self.argument):
            self.capture.keep_content(node)  # made of Python numbers, and returned
            self.number.pop(node.storage, None)
        number = self.place(node)
        if self.places[number].kind is SlotKind.INTERNAL:
            self.places[number].kind = SlotKind.FRESH
        return number

    def output(self, tensor: Tensor, tracer: Tracer) -> Output:
        """Where a tensor that leaves the call has its value."""
        view = values_view(tensor.uop)
        if view is None:
            raise RuntimeError(f"{tensor!r} was computed but has no memory")
        numbers = {memory: self.place_of_output(memory) for memory in view.base.memories}
        placeholders = {memory: self.places[number].placeholder for memory, number in numbers.items()}
        tracked = depends_on_leaf(tensor.uop) and not is_leaf(tensor.uop)
        for_any_value = view.with_sizes(lambda size: unbound(size, self.variables))
        own = for_any_value.substitute({view.base: view.base.over_memories(placeholders)})
        output = Output(tuple(numbers.values()), own, False if tracked else tensor.requires_grad)
        output.argument = next((i for i, t in tracer.arguments.items() if t is tensor), None)
        output.captured = tracer.captured_state.reference(tensor)
        return output

    def trace(self, result: Any, tracer: Tracer, returned: list[Tensor],
              gradients: Mapping[Any, Tensor | None]) -> Trace:
        position = {id(t): i for i, t in enumerate(returned)}
        structure = changed(result, lambda v: Slot(position[id(v)]) if isinstance(v, Tensor) else v)
        outputs = [self.output(t, tracer) for t in returned]
        new_gradients = {owner: None if g is None else GIVEN_UP if is_unwanted(g) else self.output(g, tracer)
                         for owner, g in gradients.items()}
        drawn = {d: n - self.start.get(d, 0) for d, n in generator.counters().items()}
        written = {p for s in self.steps for p in s.places[:s.outputs]}
        captured = {p.state.storage for p in self.places if p.state is not None}
        captured.update(node.storage for node in self.capture.read)
        draws = any(v.source in self.counters for step in self.steps for v in step.variables)
        rests_on = tracer.captured_state.captured(
            captured, self.capture.used, tracer.inputs.tensors, tracer.arguments,
            self.seed if draws else None, self.capture.read)
        return Trace(self.places, self.steps, written, outputs, structure, new_gradients, rests_on,
                     self.start, drawn, ShapeGuards.of(self.capture.decisions, self.variables))
