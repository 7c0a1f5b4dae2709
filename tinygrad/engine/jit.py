"""`TinyJit`: trace a function of tensors once, then replay the kernels it ran.

The first call with given shapes, dtypes, devices and other arguments runs the function and captures its schedule
items; later calls of that kind run the items on new inputs. What holds (design.md section 9):

- Another shape, dtype, device, training mode or non-tensor argument traces again and is kept beside the first.
- Reading a value while tracing (`.item()`, `.numpy()`, `if tensor:`) is an error that says so.
- What a call returns belongs to the caller: no later call changes it.
- The same tensor passed twice, a view passed as input, an output fed back as input, an input assigned to inside:
  right, by tracing with a stand-in for each distinct input and a contiguous copy of each view.
- Random numbers advance on every call, as they would without the JIT.
"""
from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from tinygrad.device import Buffer
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import Capture, allocate, run_item
from tinygrad.functional import random
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import Storage, UOp
from tinygrad.helpers import JIT
from tinygrad.schedule.items import BoundVariable, ScheduleItem
from tinygrad.tensor import Tensor, pending_assignments

P = ParamSpec("P")
R = TypeVar("R")

RANDOM_COUNTER = "rng"
"""The name of the variable through which random numbers enter a kernel (functional/random.py)."""
MAX_TRACES = 16
"""Traces that one function keeps; the one used longest ago goes first."""


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
        self.function = function
        self.traces: OrderedDict[Any, Trace] = OrderedDict()
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)  # type: ignore[arg-type]

    def reset(self) -> None:
        """Forget all traces."""
        self.traces.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not JIT or Capture.active is not None:
            return self.function(*args, **kwargs)
        found = Inputs()
        structure = found.flatten((args, dict(sorted(kwargs.items()))))
        found.realize()
        key = (structure, found.signature(), Tensor.training)
        trace = self.traces.get(key)
        if trace is not None:
            self.traces.move_to_end(key)
            return trace.replay(found)  # type: ignore[no-any-return]  # what the traced function returned
        trace, result = Trace.of(self.function, found, structure)
        self.traces[key] = trace
        if len(self.traces) > MAX_TRACES:
            self.traces.popitem(last=False)
        return result  # type: ignore[no-any-return]  # what the traced function returned


class JitError(RuntimeError):
    """What a function under TinyJit may not do."""


@dataclasses.dataclass(frozen=True)
class _Slot:
    """The place of a tensor in a structure of arguments or results."""

    position: int


@dataclasses.dataclass(frozen=True)
class _Object:
    """An argument that is no tensor and has no value to compare by: this very object."""

    value: Any = dataclasses.field(compare=False)
    identity: int


class Inputs:
    """The tensors among a call's arguments, in order."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.buffers: list[Buffer] = []
        self.views: list[UOp] = []

    def flatten(self, value: Any) -> Any:
        """`value` as something to compare and hash, with a slot in place of every tensor."""
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return _Slot(len(self.tensors) - 1)
        if isinstance(value, (list, tuple)):
            return (type(value), *(self.flatten(v) for v in value))
        if isinstance(value, dict):
            return (dict, *((k, self.flatten(v)) for k, v in value.items()))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return (type(value), *((k, self.flatten(v)) for k, v in fields.items()))
        if isinstance(value, (int, float, str, bytes, bool, type(None), complex)):
            return (type(value), value)
        return _Object(value, id(value))

    def realize(self) -> None:
        """Give every input memory in which it lies in order."""
        self.views = []
        lazy = [t.contiguous() for t in self.tensors]
        if lazy:
            lazy[0].realize(*lazy[1:])
        for tensor in lazy:
            view = tensor.uop.realized_view or tensor.uop
            self.views.append(view)
            self.buffers.append(allocate(view.base))

    def signature(self) -> tuple[Any, ...]:
        """What decides whether a trace fits: shapes, dtypes, devices, which inputs are the same memory."""
        first: dict[int, int] = {}
        same = tuple(first.setdefault(id(b), i) for i, b in enumerate(self.buffers))
        kinds = tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in self.tensors)
        return (kinds, same)


def rebuilt(structure: Any, tensors: list[Tensor]) -> Any:
    """The arguments or results that `structure` describes, with `tensors` in their slots."""
    if isinstance(structure, _Slot):
        return tensors[structure.position]
    if isinstance(structure, _Object):
        return structure.value
    kind, *parts = structure
    if kind is dict:
        return {k: rebuilt(v, tensors) for k, v in parts}
    if dataclasses.is_dataclass(kind):
        return kind(**{k: rebuilt(v, tensors) for k, v in parts})
    if issubclass(kind, (list, tuple)):
        items = [rebuilt(p, tensors) for p in parts]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return parts[0]


@dataclasses.dataclass
class Trace:
    """The items that one kind of call runs, and where inputs and results are among their buffers."""

    items: list[ScheduleItem]
    inputs: list[UOp]
    """the stand-in BUFFER of each distinct input, None where it repeats an earlier one"""
    outputs: list[UOp]
    """the view that holds each returned tensor"""
    structure: Any
    requires_grad: list[bool | None]
    fresh: list[UOp]
    """BUFFERs that results live in, to be given new memory in every call"""
    random_start: dict[str, int]
    """each device's random counter when the trace began"""
    random_count: dict[str, int]
    """what a call adds to it"""

    @staticmethod
    def of(function: Callable[..., Any], inputs: Inputs, structure: Any) -> tuple[Trace, Any]:
        """Run `function` on stand-ins for `inputs` and capture it. Returns the trace and the function's result."""
        stand_ins: dict[int, UOp] = {}
        tensors = []
        for tensor, buffer, view in zip(inputs.tensors, inputs.buffers, inputs.views, strict=True):
            if id(buffer) not in stand_ins:
                node = UOp.new_buffer(buffer.device, buffer.size, buffer.dtype)
                node.set_buffer(buffer)
                stand_ins[id(buffer)] = node
            node = stand_ins[id(buffer)]
            tensors.append(Tensor(view.substitute({view.base: node}), requires_grad=tensor.requires_grad))
        start = random.counters()
        newest_before = UOp.new_buffer("CPU", 0, dtypes.bool).arg.identity
        with Capture() as capture:
            args, kwargs = rebuilt(structure, tensors)
            result = function(*args, **kwargs)
            returned = Inputs()
            shape = returned.flatten(result)
            pending = [*returned.tensors, *pending_assignments()]
            if pending:
                pending[0].realize(*pending[1:])
        views = [t.uop.realized_view or t.uop for t in returned.tensors]
        fresh = [b for b in dict.fromkeys(v.base for v in views)
                 if b.op is Ops.BUFFER and b.arg.identity > newest_before]
        drawn = {device: n - start.get(device, 0) for device, n in random.counters().items()}
        trace = Trace(capture.items, [stand_ins[id(b)] for b in inputs.buffers], views, shape,
                      [t.requires_grad for t in returned.tensors], fresh, start, drawn)
        trace.mark_overwritten(inputs)
        return trace, result

    def replay(self, inputs: Inputs) -> Any:
        """Run the items on other inputs and return new tensors."""
        for node, buffer in zip(self.inputs, inputs.buffers, strict=True):
            node.set_buffer(buffer)
        for node in self.fresh:
            node.set_buffer(None)
        start = random.counters()
        for item in self.items:
            run_item(self.advanced(item, start.get(item.device, 0)))
        self.mark_overwritten(inputs)
        for device, count in self.random_count.items():
            random.advance(device, count)
        replacements = {b: self.owned(b) for b in self.fresh}
        tensors = []
        for view, requires_grad in zip(self.outputs, self.requires_grad, strict=True):
            own = replacements.get(view.base)
            tensors.append(Tensor(view if own is None else view.substitute({view.base: own}),
                                  requires_grad=requires_grad))
        return rebuilt(self.structure, tensors)

    @functools.cached_property
    def written(self) -> dict[Storage, UOp]:
        """The memory that a call overwrites, with a BUFFER node for each."""
        fresh = {b.storage for b in self.fresh}
        outputs = [b for item in self.items for b in item.buffers[:item.outputs]]
        return {b.storage: b for b in outputs if b.storage not in fresh}

    def mark_overwritten(self, inputs: Inputs) -> None:
        """Say that what was computed from the memory that a call writes no longer stands for its content."""
        for node in self.written.values():
            node.mark_overwritten()
        for stand_in, view in zip(self.inputs, inputs.views, strict=True):
            if stand_in.storage in self.written:
                view.base.mark_overwritten()

    def owned(self, node: UOp) -> UOp:
        """A BUFFER of its own for the memory that a result was written to."""
        mine = UOp.new_buffer(node.arg.device, node.arg.size, node.dtype)
        mine.set_buffer(allocate(node))
        return mine

    def advanced(self, item: ScheduleItem, start: int) -> ScheduleItem:
        """The item with random counters moved on to where they are now."""
        if not any(v.source == RANDOM_COUNTER for v in item.variables):
            return item
        moved_by = start - self.random_start.get(item.device, 0)
        moved = tuple(BoundVariable(v.name, v.source, v.value + moved_by)
                      if v.source == RANDOM_COUNTER else v for v in item.variables)
        return dataclasses.replace(item, variables=moved)
