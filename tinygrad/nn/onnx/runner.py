"""`OnnxRunner`: a model as a function of its inputs.

The first run of a kind of inputs walks the graph and computes what it gives, all of it in one schedule. If
that read no values of tensors, later runs of equal shapes replay a trace (`TinyJit`). Inputs whose values
make shapes or choose branches (a size to reshape to, a sample rate) belong to the kind: equal ones share a
trace.
"""
from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tinygrad.device import canonical_device
from tinygrad.engine.capture import Capture, JitError
from tinygrad.graph.sizes import Size, changed_sizes, unbound
from tinygrad.jit.arguments import CallKind
from tinygrad.jit.jit import PureJit, Tracer
from tinygrad.nn.onnx.channels import fold_channel_maps
from tinygrad.nn.onnx.cut import Cut, cut, host_part, is_text, used_by
from tinygrad.nn.onnx.dynamic import DynamicAxes, with_numbers
from tinygrad.nn.onnx.evaluate import Evaluator, is_foldable, is_size
from tinygrad.nn.onnx.labels import with_numbered_labels
from tinygrad.nn.onnx.model import Graph, Model, Node, OnnxError, Source, TypeOf, read_model
from tinygrad.nn.onnx.places import has_indices, reach, what_is_out_of_range
from tinygrad.nn.onnx.values import Array, Coded, Sizes, Value, is_coded, is_number, numpy_type
from tinygrad.nn.onnx.weights import is_matrix, weights_over
from tinygrad.tensor import Tensor

MOST_KINDS = 16
"""Kinds of inputs whose traces are kept: as many as `TinyJit` keeps of one function."""


class Replayed(PureJit[..., Any]):
    """What a model computes of its inputs and of weights that nobody else has: what is pending elsewhere
    cannot reach it."""

    writes_pending = False

    def keep(self, kind: CallKind, tracer: Tracer) -> None:
        if tracer.trace is not None:
            self.traces[kind] = tracer.trace


class TracedRun(NamedTuple):
    """A run by a trace that computes all outputs."""

    given: Mapping[str, Value]
    names: tuple[str, ...]
    """the inputs that the trace takes"""
    trace: Replayed
    outputs: tuple[str, ...]


class RepeatedRun(NamedTuple):
    """What runs like the last one do: nothing needs to be compared with what the model says."""

    kinds: dict[str, tuple[Any, ...]]
    """of each input, as `OnnxRunner._kind_given` says"""
    names: tuple[str, ...]
    trace: Replayed
    outputs: tuple[str, ...]


class OnnxRunner:
    """An ONNX model: `run(inputs)` gives its outputs, by name.

    `source` is a path, the file's bytes (also as a tensor of uint8), or an `onnx.ModelProto`. `device` is
    where it runs. `inputs` and `outputs` say for each name its NumPy type and its shape: an int is a size, a
    string the name of an axis that is as long as in the inputs given (the same name, the same size).

    `sizes` gives bounds to named axes: with `{"batch": (1, 64)}` that size is a bound Variable, and one trace
    serves all of them. Where an operator needs the number itself, a warning says so; then, and without
    bounds, each size has a trace of its own.

    Raises OnnxError for a file that is no model, is cut short, asks for weights outside of its folder, or has
    operators that are not supported (all of them are named), before anything runs.
    """

    inputs: dict[str, TypeOf]
    outputs: dict[str, TypeOf]

    def __init__(self, source: Source | Any, device: str | None = None, *,
                 sizes: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.model: Model = read_model(source)
        graph = self.model.graph
        place = canonical_device(device)
        assert isinstance(place, str)
        self.device = place
        self.inputs = {name: t for name, t in graph.inputs.items() if name not in graph.constants}
        self.outputs = graph.outputs
        self._optional = {name: t for name, t in graph.inputs.items() if name in graph.constants}
        self._axes = DynamicAxes(sizes, graph.inputs) if sizes else None
        self._evaluator = Evaluator(self.device)
        self._known: dict[str, Value] = {}
        """values that do not depend on inputs"""
        self._nodes: list[Node] = []
        """nodes that do"""
        self._fold()
        self._host: list[Node] | None = None
        """nodes that the host runs first, on strings; None until a call gave some"""
        self._handed: list[str] = []
        """what the other nodes take of them: inputs of what is traced"""
        self._cut = Cut(self._nodes, list(self.outputs))
        """what is traced, and what every call walks after it"""
        self._readers: set[int] = set()
        """the nodes that asked for values of tensors that are no inputs, by identity"""
        self._read_inputs: set[str] = set()
        """inputs whose values a run asked for"""
        self._guess: tuple[set[str], set[int]] = set(), set()
        """numbers among them from which alone may follow what some nodes asked for"""
        self._reads_values = False
        """whether nothing can be traced: every call walks the whole graph then"""
        self._kinds: dict[Any, Replayed | None] = {}
        self._traced: TracedRun | None = None
        """the run that just ended, if it was by a trace alone"""
        self._last: RepeatedRun | None = None
        """runs like the last one, if that was such"""
        self._copies: dict[str, Tensor] = {}
        """copies of arrays that were inputs of a call, which no other call has now"""

    def __call__(self, inputs: Mapping[str, Any] | None = None, **named: Any) -> dict[str, Tensor]:
        """The outputs for these inputs (tensors, arrays or numbers), by name.

        Raises OnnxError for inputs that are missing, unknown, or of another type or shape than the model
        says.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise OnnxError(f"inputs are given by name, run({{name: x}}) or run(name=x), got a "
                            f"{type(inputs).__name__}; the model takes {_listed(self.inputs)}")
        if inputs and named:
            twice = sorted(inputs.keys() & named.keys())
            if twice:
                raise OnnxError(f"inputs are given once, got {', '.join(map(repr, twice))} twice")
        inputs = {**(inputs or {}), **named}
        given, values = self._repeated(inputs)
        if values is None:
            self._last = None
            given = self._checked(inputs)
            values = self.values(given)
            self._note_kinds(inputs, given)
        results = {name: self._public(value) for name, value in values.items()}
        is_alone = all([isinstance(v, Tensor) and v._is_fully_realized for v in results.values()])
        if is_alone and Capture.current() is None:  # nothing refers to the inputs
            self._copies.update({name: given[name] for name, value in inputs.items()
                                 if isinstance(value, np.ndarray) and isinstance(given.get(name), Tensor)})
        return results

    def __repr__(self) -> str:
        return f"<OnnxRunner {self.device} {_listed(self.inputs)} -> {_listed(self.outputs)}>"

    def _repeated(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Value], dict[str, Value] | None]:
        """What the trace of the last run takes, and the outputs; None, with nothing done, for inputs of
        another kind."""
        last = self._last
        if last is None or len(inputs) != len(last.kinds):
            return {}, None
        kinds = last.kinds
        for name, value in inputs.items():
            if name not in kinds or kinds[name] != self._kind_given(name, value):
                return {}, None
        given = {name: self._copy_in_place(name, value) if isinstance(value, np.ndarray) else value
                 for name, value in inputs.items() if name in last.names}
        if any([value is None for value in given.values()]):
            return {}, None
        return given, dict(zip(last.outputs, last.trace(*[given[n] for n in last.names]), strict=True))

    def _note_kinds(self, inputs: Mapping[str, Any], given: Mapping[str, Value]) -> None:
        """After a run: which inputs are like these, if it was by a trace that took them as they are, or took
        copies of arrays."""
        run, self._traced = self._traced, None
        if run is not None and run.given is given and all([name in inputs and (
                given[name] is inputs[name] or isinstance(inputs[name], np.ndarray)) for name in run.names]):
            kinds = {name: self._kind_given(name, value) for name, value in inputs.items()}
            self._last = RepeatedRun(kinds, run.names, run.trace, run.outputs)

    def _kind_given(self, name: str, value: Any) -> tuple[Any, ...]:
        """What an input has to have in common with another to be given to the same trace: its value, where a
        run read that."""
        if name in self._read_inputs:
            if isinstance(value, Tensor):  # its memory may be that of an array which somebody writes to
                value = self._evaluator.as_array(value)
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                return value.shape, value.dtype, value.tobytes()
            return (object(),)
        if isinstance(value, Tensor):
            if value.uop.has_sizes:
                return (object(),)
            return Tensor, value.shape, value.dtype, value.device
        return (np.ndarray, value.shape, value.dtype) if isinstance(value, np.ndarray) else (object(),)

    def values(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """The outputs for checked inputs, in whatever form they have: strings stay arrays."""
        if self._axes is None or self._reads_values:
            return self._values(given)
        said = {**self.inputs, **self._optional}
        held = self._axes.with_sizes(given, said, self._numbers(given), self.device)
        try:
            found = self._values(held)
        except (OnnxError, TypeError, ValueError) as error:
            results = self._values(given)  # which says what is wrong with the inputs, if that is it
            self._axes = None
            warnings.warn(f"each size has a trace of its own: {error}", stacklevel=3)
            return results
        return {name: with_numbers(value) for name, value in found.items()}

    def _numbers(self, given: Mapping[str, Value]) -> dict[str, int]:
        """How long the named axes of inputs are."""
        said = {**self.inputs, **self._optional}
        return {name: size for k, v in given.items() if isinstance(v, Tensor)
                for name, size in zip(said[k].shape or (), v.shape, strict=False) if isinstance(name, str)}

    def _values(self, given: Mapping[str, Value]) -> dict[str, Value]:
        if self._host:
            given = {**given, **self._made_by_host(given)}
        texts = {k: v for k, v in given.items() if is_text(v)}
        fixed = {k: self._evaluator.as_array(v) for k, v in given.items()
                 if k in self._read_inputs and isinstance(v, Tensor)}
        self._evaluator.was_read.clear()
        free = {k: v for k, v in given.items() if k not in fixed and k not in texts}
        jit = self._trace(fixed, free)
        if jit is not None:
            try:
                made = dict(zip(self._cut.given, jit(*free.values()), strict=True))
                is_all = len(made) == len(self.outputs) and not self._cut.walked
                if is_all and not self._host and not texts and self._axes is None:
                    self._traced = TracedRun(given, tuple(free), jit, tuple(self._cut.given))
                return made if is_all else self._finished(made, {**given, **fixed})
            except OnnxError as error:
                if not isinstance(error.__cause__, JitError):
                    raise
                self._reads_values = True  # an operator reads what it takes as a tensor
        try:
            values = self._evaluator.run(self._nodes, {**self._known, **given, **fixed})
        except BaseException:  # what a run read is not known: the next of its kind is a first one again
            self._kinds = {kind: trace for kind, trace in self._kinds.items() if trace is not None}
            raise
        if texts and self._host is None:
            self._set_host_apart(given, values)
        else:
            self._note_reads(free, values)
        results = {name: _in_own_memory(values[name]) for name in self.outputs}
        del values  # what nobody holds is not stored
        self._evaluator.compute(results.values())
        return results

    def _made_by_host(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """What the host makes of strings for the other nodes: tensors, where it is numbers."""
        values = self._evaluator.run(self._host or (), {**self._known, **given})
        handed = {name: values[name] for name in self._handed}
        return {k: self.as_value(v) if isinstance(v, np.ndarray) else v for k, v in handed.items()}

    def _set_host_apart(self, given: Mapping[str, Value], values: Mapping[str, Value]) -> None:
        """Take note of the nodes that run before all others, on strings, and of others that take some."""
        self._host = host_part(self._nodes, values, given)
        first = {id(node) for node in self._host}
        self._nodes = [node for node in self._nodes if id(node) not in first]
        made = [name for node in self._host for name in node.outputs]
        used = {name for node in self._nodes for name in used_by(node)}.union(self.outputs)
        self._handed = [name for name in made if name in used]
        self._read_inputs |= {name for node in self._host if node.op in ("Shape", "Size")
                              for name in node.outputs}
        self._readers = {id(node) for node in self._nodes if any(
            is_text(values[name]) for name in used_by(node) if name in made or name in given)}
        self._cut = Cut(self._nodes, list(self.outputs))
        self._kinds.clear()

    def _finished(self, made: Mapping[str, Value], inputs: Mapping[str, Value]) -> dict[str, Value]:
        """The outputs, given what is traced: what is walked is computed of that."""
        values = self._evaluator.run(self._cut.walked, {**self._known, **inputs, **made})
        results = {k: made[k] if k in made else _in_own_memory(values[k]) for k in self.outputs}
        del values
        self._evaluator.compute(results.values())
        return results

    def _note_reads(self, free: Mapping[str, Value], values: Mapping[str, Value]) -> None:
        """Take note of what a run read the values of: inputs, which the host knows from then on. Where it was
        something else, the host knows all numbers among inputs, from which alone that may follow; if there
        are none, the graph is cut there."""
        walked = {id(node) for node in self._cut.walked}
        names = {id(v): k for k, v in free.items()}
        read = [(names.get(id(x)), node) for x, node in self._evaluator.was_read if id(node) not in walked]
        self._evaluator.was_read.clear()
        self._read_inputs |= {name for name, _ in read if name is not None}
        readers = {id(node) for name, node in read if name is None}
        shapes = {k: said.shape for k, said in {**self.inputs, **self._optional}.items()}
        numbers = {k for k, v in free.items() if isinstance(v, Tensor) and not v.dtype.is_float
                   and shapes.get(k) is not None and all(n == 1 for n in shapes[k] or ())}
        if readers and numbers:
            self._read_inputs |= numbers
            self._guess = numbers, readers
        elif readers or not self._readers <= walked or not all(
                _is_traced(values[name]) for name in self._cut.given):
            guessed, before = self._guess
            if before <= readers:  # it follows from more than these
                self._read_inputs -= guessed
            self._readers |= readers
            known = {*self._known, *self.inputs, *self._optional, *self._handed}
            self._cut = cut(self._nodes, self._readers, values, known, list(self.outputs))
            self._reads_values |= self._axes is not None or not self._cut.given
            self._kinds.clear()

    def _trace(self, fixed: dict[str, Array], free: dict[str, Value]) -> Replayed | None:
        """The trace to run for inputs of this kind; None for the first of a kind, and where none can be."""
        if self._reads_values or not all([isinstance(v, Tensor) for v in free.values()]):
            return None
        key = (*[(k, v.shape, v.tobytes()) for k, v in fixed.items()],
               *[(k, *_kind_of(v)) for k, v in free.items()])
        if key not in self._kinds:
            self._kinds[key] = None
            return None
        found = self._kinds.pop(key)
        if found is None:
            names = tuple(free)

            def run(*given: Tensor) -> list[Value]:
                return self._results(dict(zip(names, given, strict=True)), fixed)
            found = Replayed(run)
        self._kinds[key] = found
        while len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return found

    def _results(self, free: dict[str, Tensor], fixed: dict[str, Array]) -> list[Value]:
        values = self._evaluator.run(self._cut.traced, {**self._known, **free, **fixed})
        given = [_in_own_memory(values[name]) for name in self._cut.given]
        return [self._evaluator.as_tensor(v).clone() if isinstance(v, (np.ndarray, Sizes)) else v
                for v in given]

    def _fold(self) -> None:
        """Run the nodes that depend on no input, and compute what the others need of them."""
        graph = self.model.graph
        known: dict[str, Value] = {k: v for k, v in graph.constants.items() if k not in graph.inputs}
        for node in with_numbered_labels(graph.nodes):
            self._check_places(node, known)
            if is_foldable(node) and all(name in known for name in filter(None, node.inputs)):
                known = self._evaluator.run([node], known)
            else:
                self._nodes.append(node)
        captured = [name for node in self._nodes for g in node.attributes.values()
                    if isinstance(g, Graph) for name in g.captured]
        ranks = {name: len(said.shape) for name, said in graph.inputs.items() if said.shape is not None}
        self._nodes, made = fold_channel_maps(self._nodes, known, ranks, [*captured, *self.outputs],
                                              self._evaluator.as_array)
        graph.constants.update(made)
        known.update(made)
        used = {name for node in self._nodes for name in node.inputs}.union(captured, self.outputs)
        constants = {name: value for name, value in graph.constants.items() if name in used}
        numbers = {k: v for k, v in constants.items() if is_number(v) and not is_coded(v.dtype)}
        weights = {k: v for k, v in numbers.items() if is_matrix(v) or not is_size(v)}
        known.update(constants)
        known.update(weights_over(weights, self._nodes, [*captured, *self.outputs], self.device))
        graph.constants.clear()
        self._known = {name: value for name, value in known.items() if name in used}
        self._evaluator.compute(self._known.values())
        self._evaluator.keep(self._known.values())

    def _check_places(self, node: Node, known: Mapping[str, Value]) -> None:
        """Raise OnnxError where constant indices are beyond an axis whose size the file says."""
        if not has_indices(node) or node.inputs[1] not in known:
            return
        data, said = known.get(node.inputs[0]), self.model.graph.inputs.get(node.inputs[0])
        shape = said.shape if said is not None else getattr(data, "shape", None)
        reached = reach(node.op, self._evaluator.as_array(known[node.inputs[1]]))
        wrong = what_is_out_of_range(node, shape or (), reached)
        if wrong:
            raise OnnxError(f"{node}: {wrong}")

    # --- what goes in and comes out -------------------------------------------------------------------------

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Value]:
        """The inputs as values, of the types and shapes that the model says."""
        expected = {**self.inputs, **self._optional}
        wrong = [f"it has no {name!r}" for name in inputs if name not in expected]
        wrong += [f"{name!r} is missing" for name, said in self.inputs.items()
                  if name not in inputs and said.kind != "optional"]
        if wrong:
            raise OnnxError(f"the model takes {_listed(self.inputs)}; {', '.join(wrong)}")
        sizes: dict[str, int] = {}
        return {name: self._checked_value(name, inputs[name], said, sizes) if name in inputs else None
                for name, said in expected.items() if name in inputs or name in self.inputs}

    def _checked_value(self, name: str, value: Any, said: TypeOf, sizes: dict[str, int]) -> Value:
        try:
            if value is None and said.kind == "tensor":
                raise TypeError("only an optional input may be left out")
            made = self._copy_in_place(name, value) if isinstance(value, np.ndarray) else None
            made = self.as_value(value, said) if made is None else made
        except (TypeError, ValueError, RuntimeError) as error:  # the last of PyTorch's tensors
            raise OnnxError(f"input {name!r} takes {said}, got a {type(value).__name__}: {error}") from error
        if said.kind != "tensor" or made is None or isinstance(made, list):
            return made
        got = TypeOf("tensor", numpy_type(made), tuple(made.shape))
        if said.dtype is not None and got.dtype != said.dtype:
            cast = "" if object in (said.dtype, got.dtype) else "; cast it"
            raise OnnxError(f"input {name!r} takes {said}, got {got}{cast}")
        if said.shape is None:
            return made
        wrong = []
        if len(said.shape) != len(made.shape):
            wrong = [f"{len(made.shape)} axes and not {len(said.shape)}"]
        for axis, (wanted, size) in enumerate(zip(said.shape, made.shape, strict=False)):
            before = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
            if before not in (None, size):
                other = f"but {wanted} is {before} elsewhere" if isinstance(wanted, str) else f"not {wanted}"
                wrong.append(f"axis {axis} has {size} items, {other}")
        if wrong:
            raise OnnxError(f"input {name!r} takes {said}, got {got}: {', '.join(wrong)}")
        return made

    def _copy_in_place(self, name: str, array: Array) -> Tensor | None:
        """The copy that a call before had of an input, with this array in it; None where it has another type
        or shape, or is still in use."""
        copy = self._copies.pop(name, None) if Capture.current() is None else None
        if copy is None or copy.shape != array.shape or copy.dtype.numpy != array.dtype or not array.size:
            return None
        buffer = copy.uop.realized
        if buffer is None or (buffer.uses is not None and buffer.uses.before_writing()):
            return None
        buffer.copyin(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return copy

    def as_value(self, value: Any, said: TypeOf | None = None) -> Value:
        """What a user gives as a value of the graph: numbers on the device, strings on the host."""
        if value is None or isinstance(value, Coded):
            return value
        if isinstance(value, Tensor) and (said is None or said.kind != "sequence"):
            return value if value.device == self.device else value.to(self.device)
        if isinstance(value, (list, tuple)) and said is not None and said.kind in ("sequence", "optional"):
            return [self.as_value(item) for item in value]
        if said is not None and said.kind == "sequence":
            raise TypeError("a sequence is a list")
        array = np.asarray(value)
        is_known = array.dtype.kind in "US" or is_number(array) or all(
            isinstance(item, (str, bytes)) for item in array.flat)
        if not is_known:
            raise TypeError("these are no numbers and no strings")
        if said is not None and said.dtype is not None and not isinstance(value, (np.ndarray, np.generic)):
            numbers, array = array, array.astype(said.dtype)
            if array.dtype.kind in "biu" and not np.array_equal(array, numbers):
                raise ValueError(f"not all of these are {said.dtype.name}")
        if not is_number(array):
            return array.astype(object)
        if is_coded(array.dtype):
            return Coded.of_array(array, self.device)
        return Tensor(array, self.device, requires_grad=False)

    def _public(self, value: Value) -> Any:
        if isinstance(value, np.ndarray) and is_number(value) and not is_coded(value.dtype):
            return self._evaluator.as_tensor(value).clone()
        if isinstance(value, Sizes):
            return with_numbers(value.tensor())
        return [self._public(v) for v in value] if isinstance(value, list) else value


def _is_traced(value: Value) -> bool:
    """Whether a trace can give this value: it is a tensor, or numbers that could be one."""
    if isinstance(value, list):
        return all(isinstance(item, Tensor) for item in value)
    return isinstance(value, (Tensor, Sizes)) or (isinstance(value, np.ndarray) and is_number(value)
                                         and not is_coded(value.dtype))


def _in_own_memory(value: Value) -> Value:
    """A result for the caller to write to: no weight, and no input."""
    if isinstance(value, list):
        return [_in_own_memory(item) for item in value]
    return value.clone() if isinstance(value, Tensor) and value._is_realized else value


def _kind_of(value: Value) -> tuple[Any, ...]:
    if not isinstance(value, Tensor):
        return (type(value),)
    return (changed_sizes(value.shape, unbound) if Size.exists else value.shape, value.dtype)


def _listed(types: Mapping[str, TypeOf]) -> str:
    """Inputs or outputs as text: `x: float32 (batch, 3), n: int64 ()`."""
    return ", ".join(f"{name}: {said}" for name, said in types.items()) or "nothing"
