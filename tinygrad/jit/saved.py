"""Captured functions in other processes: what `pickle` takes of a `TinyJit`, and what it makes of that again.

A saved function has no Python in it: its traces as JSON (places, steps, kernels in portable form), the
kernels' source and machine code by the keys of `store.py`, and as pickled objects what the caller
knows (keys, results' structures, captured tensors). Where it is loaded, a kernel whose key fits this machine
and this version is not compiled again; any other one is, from its graph.

What was saved is checked for its format, for damage, and for kernels that would leave their memory. That
guards against mistakes, not against strangers: a pickle, and machine code, can do anything.
"""
from __future__ import annotations

import hashlib
import json
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinygrad.codegen.compile import compile_kernels
from tinygrad.codegen.kernel_cache import Written, kernel_key
from tinygrad.codegen.program import compile_source
from tinygrad.dtype import DType
from tinygrad.engine.capture import JitError
from tinygrad.engine.replay import Place, SlotKind
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.portable import Reader, Writer, dtype_of
from tinygrad.graph.records import encode
from tinygrad.graph.spec import SpecError, check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import Context, engine_lock
from tinygrad.jit.arguments import CallKind
from tinygrad.jit.captured_state import Captured, GradientUse, TensorGuard, is_unwanted
from tinygrad.jit.shape_guards import ShapeGuards
from tinygrad.jit.trace import Output, Trace
from tinygrad.schedule.cache import TemplateView
from tinygrad.schedule.items import BoundVariable, Step
from tinygrad.store import offered, recorded
from tinygrad.tensor import Tensor

MAGIC = "function captured by tinygrad.TinyJit"
FORMAT = 4
"""Raised where what is written below changes its meaning."""


@dataclass
class Saved:
    """Traces as `pickle` takes them."""

    plan: bytes
    """places, steps and results, as JSON"""
    code: dict[str, bytes]
    """the kernels, as caches know them"""
    kinds: list[CallKind]
    """of calls, one of each trace"""
    structures: list[Any]
    """the result of each trace, with slots for tensors"""
    tensors: list[Tensor] = field(default_factory=list)
    """those from outside that the traces use"""
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    """what memory holds before a call"""
    magic: str = MAGIC
    format: int = FORMAT
    checksum: str = ""

    def digest(self) -> str:
        """A checksum of the plan and the code."""
        digest = hashlib.sha256(self.plan)
        for key in sorted(self.code):
            digest.update(key.encode() + hashlib.sha256(self.code[key]).digest())
        return digest.hexdigest()


# --- saving -------------------------------------------------------------------------------------------------


def save(traces: Mapping[CallKind, Trace]) -> Saved:
    """Traces in a form that `pickle` takes to another process. Raises JitError where there are none."""
    if not traces:
        raise JitError("there is nothing to save yet: call the jitted function with arguments of each kind "
                       "that it is to know, then pickle it")
    with engine_lock:
        for trace in traces.values():
            compute_lazy(trace.captured)
        saver = _Saver()
        plans = [saver.plan(kind, trace) for kind, trace in traces.items()]
        text = json.dumps({"rows": saver.writer.rows, "traces": plans}).encode()
        saved = Saved(text, code_of(traces), list(traces), [t.structure for t in traces.values()],
                      saver.tensors, saver.arrays)
        saved.checksum = saved.digest()
    return saved


def compute_lazy(captured: Captured) -> None:
    """Compute what lazy tensors a trace uses, so that they are whole tensors of the memory it captured."""
    lazy = [t for t in (guard.tensor() for guard, _ in captured.lazy) if t is not None]
    if lazy:
        lazy[0].realize(*lazy[1:])


def code_of(traces: Mapping[CallKind, Trace]) -> dict[str, bytes]:
    """The kernels of traces, written and compiled, by the keys under which caches look for them."""
    with recorded() as code:
        for kind, trace in traces.items():
            for step, kernel in zip(trace.engine.steps, trace.engine.kernels, strict=True):
                if kernel is None:
                    continue
                compile_source(step.device, kernel.source)
                name = kernel_key(kernel.ast, step.device, kind.plain)
                if name is not None:
                    code[name] = encode(Written, kernel.written)
    return code


class _Saver:
    """Traces as JSON, beside the tensors and arrays that they use."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.tensors: list[Tensor] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def tensor(self, tensor: Tensor | None) -> int | None:
        """The number of a tensor from outside."""
        if tensor is None:
            return None
        for number, known in enumerate(self.tensors):
            if known is tensor:
                return number
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def owner(self, owner: Any) -> list[Any] | None:
        """Who has a gradient: an argument or a tensor, by number; None where nobody has it any more."""
        if isinstance(owner, int):
            return ["argument", owner]
        number = self.tensor(owner())
        return None if number is None else ["tensor", number]

    def use(self, use: GradientUse) -> list[Any]:
        before = use.before() if use.is_read and use.before is not None else None
        return [use.requires_grad, use.is_read, self.tensor(None if is_unwanted(before) else before),
                use.is_given_up]

    def plan(self, kind: CallKind, trace: Trace) -> dict[str, Any]:
        refuse_several_devices(kind, trace)
        gradients = [[self.owner(owner), self.output(output, trace) if isinstance(output, Output) else output]
                     for owner, output in trace.gradients.items()]
        uses = [[self.owner(owner), self.use(use)] for owner, use in trace.captured.gradients.items()]
        return {
            "plain": kind.plain,
            "places": [self.place(p, trace) for p in trace.places],
            "steps": [[self.writer.add(s.ast), s.device, s.places, s.outputs,
                       [[v.name, v.source, v.value] for v in s.variables]] for s in trace.steps],
            "written": sorted(trace.written),
            "outputs": [self.output(o, trace) for o in trace.outputs],
            "gradients": [g for g in gradients if g[0] is not None],
            "uses": [u for u in uses if u[0] is not None],
            "seed": trace.captured.seed,
            "random": [trace.random_start, trace.random_count],
            "decisions": [[self.writer.add(node), result] for node, result in trace.sizes.found],
        }

    def place(self, place: Place, trace: Trace) -> list[Any]:
        spec, state, content = place.placeholder.arg, None, None
        if place.state is not None:
            state = self.tensor(whole_tensor(place.state, trace.captured))
        if place.content is not None:
            content = len(self.arrays)
            self.arrays.append(place.content)
        return [place.kind.name, spec.device, spec.size, place.placeholder.dtype.name, place.argument, state,
                content]

    def output(self, output: Output, trace: Trace) -> list[Any]:
        (place,) = output.places
        view = TemplateView.of(output.view, {trace.places[place].placeholder: place})
        movements = [[op.name, self.writer.value(arg)] for op, arg in view.movements]
        captured = None if output.captured is None else self.tensor(output.captured())
        return [place, movements, output.requires_grad, output.argument, captured]


def refuse_several_devices(kind: CallKind, trace: Trace) -> None:
    """Raise JitError for a trace with a tensor on several devices among its arguments, results and state."""
    results = [r for r in (*trace.outputs, *trace.gradients.values()) if isinstance(r, Output)]
    places = [device for _, _, device, _ in kind.tensors] + [t.device for t in trace.captured.tensors()]
    if any(isinstance(place, tuple) for place in places) or any(len(r.places) > 1 for r in results):
        raise JitError("a captured function cannot be pickled that takes, returns or changes tensors on "
                       "several devices; gather them with .to(device), and capture it again")


def whole_tensor(node: UOp, captured: Captured) -> Tensor:
    """A tensor that is all of the memory of a BUFFER node: the caller's own, where there is one."""
    for guard in (*captured.tensor_guards.get(node.storage, []), *(h for h, _ in captured.lazy)):
        tensor = guard.tensor()
        view = None if tensor is None else storage_view(tensor.uop)
        if tensor is not None and view is not None and view.base.storage is node.storage and is_whole(view):
            return tensor
    return Tensor.of(node.current)


def is_whole(view: UOp) -> bool:
    """Whether a view shows all of its memory, in order."""
    return view.unreshaped.op is Ops.BUFFER


# --- loading ------------------------------------------------------------------------------------------------


def load(saved: Any) -> OrderedDict[CallKind, Trace]:
    """The traces of what `save` made, ready to run. Raises JitError for anything else, for what is damaged,
    and for another format."""
    if not isinstance(saved, Saved) or saved.magic != MAGIC:
        raise JitError("this is not a function that was captured by TinyJit and pickled")
    if saved.format != FORMAT:
        raise JitError(f"this captured function was saved in format {saved.format}, and this version reads "
                       f"format {FORMAT}; capture and save it again")
    if saved.checksum != saved.digest():
        raise JitError("this captured function is damaged: its checksum is another one; save it again")
    with engine_lock:
        if saved.tensors:
            saved.tensors[0].realize(*saved.tensors[1:])
        try:
            found = json.loads(saved.plan)
            loader = _Loader(saved, Reader(found["rows"]))
            traces = [loader.trace(*t) for t in zip(found["traces"], saved.structures, strict=True)]
        except (LookupError, TypeError, ValueError, SpecError) as error:
            raise JitError(f"this captured function does not fit together: {error}") from error
        with offered(saved.code):
            for kind, trace in zip(saved.kinds, traces, strict=True):
                with Context(NOOPT=int(kind.plain), ALLOW_TF32=int(kind.tf32)):
                    compile_kernels((s.ast, s.device) for s in trace.steps if s.ast.op not in Family.TRANSFER)
                    _ = trace.engine
    return OrderedDict(zip(saved.kinds, traces, strict=True))


@dataclass
class _Loader:
    """Traces made of their JSON and the objects beside it."""

    saved: Saved
    reader: Reader

    def trace(self, plan: Mapping[str, Any], structure: Any) -> Trace:
        places = [self.place(*p) for p in plan["places"]]
        numbers = range(len(places))
        gradients: dict[Any, Output | str | None] = {}
        for owner, output in plan["gradients"]:
            gradients[self.owner(owner)] = self.output(output, places) if isinstance(output, list) else output
        start, count = plan["random"]
        sizes = ShapeGuards([(self.reader.node(at), bool(result)) for at, result in plan["decisions"]])
        captured = self.captured(places, plan["uses"], plan["seed"])
        return Trace(places, [self.step(s, places) for s in plan["steps"]],
                     {numbers[n] for n in plan["written"]}, [self.output(o, places) for o in plan["outputs"]],
                     structure, gradients, captured, start, count, sizes, guards=captured.table(),
                     kept=self.saved.tensors)

    def owner(self, data: Sequence[Any]) -> Any:
        kind, number = data
        return number if kind == "argument" else weakref.ref(self.saved.tensors[number])

    def place(self, kind: str, device: str, size: int, dtype: str, argument: int, state: int | None,
              content: int | None) -> Place:
        placeholder = UOp.new_buffer(device, size, dtype_of(dtype))
        node = None if state is None else memory_of(self.saved.tensors[state], device, size, dtype_of(dtype))
        held = None if content is None else self.saved.arrays[content]
        if held is not None and held.nbytes != size * placeholder.dtype.itemsize:
            raise ValueError(f"{held.nbytes} bytes for memory of {size} {dtype}")
        return Place(SlotKind[kind], placeholder, argument, node, held)

    def step(self, data: Sequence[Any], places: Sequence[Place]) -> Step:
        at, device, used, outputs, variables = data
        ast = self.reader.node(at)
        check_memory(ast, [places[p] for p in used])
        return Step(ast, device, tuple(used), outputs, tuple(BoundVariable(*v) for v in variables))

    def output(self, data: Sequence[Any], places: Sequence[Place]) -> Output:
        number, movements, requires_grad, argument, captured = data
        view = TemplateView(0, tuple((Ops[op], self.reader.value(arg)) for op, arg in movements))
        reference = None if captured is None else weakref.ref(self.saved.tensors[captured])
        own = view.over([places[number].placeholder])
        return Output((number,), own, requires_grad, argument, reference)

    def captured(self, places: Sequence[Place], uses: Sequence[Any], seed: int | None) -> Captured:
        """Captured tensors are this trace's own now; gradients that it reads or adds to are put back."""
        tensors: list[Tensor] = self.saved.tensors
        gradients: dict[Any, GradientUse] = {}
        for who, (requires_grad, is_read, number, is_given_up) in uses:
            owner, before = self.owner(who), None if number is None else tensors[number]
            if is_read and not isinstance(owner, int):
                owner()._grad = before
            gradients[owner] = GradientUse(requires_grad, is_read,
                                           None if before is None else weakref.ref(before), is_given_up)
        states = {p.state.storage for p in places if p.state is not None}
        tensor_guards = {memory_node(t).storage: [TensorGuard(weakref.ref(t), t._requires_grad)]
                         for t in tensors}
        return Captured({s: h for s, h in tensor_guards.items() if s in states}, [], [], gradients, seed)


def memory_node(tensor: Tensor) -> UOp:
    """The BUFFER node of a tensor that was computed."""
    view = storage_view(tensor.uop)
    if view is None or not is_whole(view):
        raise ValueError("a captured tensor has no memory of its own")
    return view.base


def memory_of(tensor: Tensor, device: str, size: int, dtype: DType) -> UOp:
    """The memory of a captured tensor, if it is what the trace needs. Raises ValueError."""
    node = memory_node(tensor)
    if (node.arg.device, node.arg.size, node.dtype) != (device, size, dtype):
        raise ValueError(f"a captured tensor is {node.dtype}[{node.arg.size}] on {node.arg.device}, and was "
                         f"{dtype}[{size}] on {device}")
    return node


def check_memory(ast: UOp, used: Sequence[Place]) -> None:
    """Raise ValueError or SpecError for a step that is no kernel or copy over exactly this memory."""
    if ast.op is Ops.SINK:
        check_graph(ast, "tensor_graph")
    for node in ast.toposort():
        if node.op is Ops.PARAM:
            slot, size = node.arg
            place = used[slot]
            if (size, node.dtype) != (place.size, place.placeholder.dtype):
                raise ValueError(f"a kernel takes {node.dtype}[{size}], and would get "
                                 f"{place.placeholder.dtype}[{place.size}]")
