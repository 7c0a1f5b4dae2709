"""Running a graph: its nodes one after another, each a call of a function of tensors; nothing is computed
yet.

Values that the host knows (`Array`) stay on the host where the operator is one of those that make shapes
(`host.py`). What reads the values of a tensor is noted: it is known then whether a run of equal shapes does
the same again.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tinygrad import observer
from tinygrad.device import Device
from tinygrad.frozen import frozen
from tinygrad.nn.onnx.host import MOST_ITEMS, MOVES, Unknown, known_sizes, on_arrays
from tinygrad.nn.onnx.model import Graph, Node, OnnxError, Reference
from tinygrad.nn.onnx.places import has_indices, reach, what_is_out_of_range, wrong_axis
from tinygrad.nn.onnx.registry import (
    RANDOM,
    Operator,
    check_types,
    input_name,
    result_types,
    to_form,
    type_parameters,
    with_types,
)
from tinygrad.nn.onnx.values import Array, Coded, Items, Sizes, Value, is_coded, is_number
from tinygrad.nn.onnx.weights import tensor_over
from tinygrad.tensor import Tensor

MOST_KEPT = 1 << 16
"""Bytes of an array up to which an equal one is found again by its content."""


MOST_ARRAYS = 1 << 12
"""Arrays whose tensors are found again by content; the one met first goes first."""


@dataclass
class Evaluator:
    """Evaluates graphs for one device, and keeps the tensors of the arrays that it met."""

    device: str
    small: dict[Any, Tensor] = field(default_factory=dict)
    """tensors of arrays, by their content"""
    large: dict[int, tuple[weakref.ref[Array], Tensor]] = field(default_factory=dict)
    """tensors of arrays, by their identity"""
    was_read: list[tuple[Tensor, Node | None]] = field(default_factory=list)
    """tensors whose values were asked for while evaluating, and the node of the graph that did so"""
    running: Node | None = None
    """the node of the outermost graph that runs"""
    fixed: dict[int, Value] = field(default_factory=dict)
    """values that are the same in every run, by their identity"""
    read_once: dict[int, Array] = field(default_factory=dict)
    """those among them that the host had to know, as arrays"""
    folded: dict[tuple[int, ...], tuple[Node, dict[str, Value]]] = field(default_factory=dict)
    """what nodes in branches and loops gave that depend on such values only, by node and values"""
    reached: dict[tuple[int, bool], Array] = field(default_factory=dict)
    """the lowest and highest of fixed indices, by their identity and whether they are of several axes"""
    largest: tuple[int, str] = (0, "")
    """the bytes of the largest result that was not computed yet, and which it is"""
    inside: str = ""
    """the node that runs, and those whose graphs it is in, where a recording asks for them"""

    # --- values in other forms ------------------------------------------------------------------------------

    def as_tensor(self, value: Value) -> Tensor:
        """A value as a tensor. Raises TypeError for what no tensor holds."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Sizes):
            return value.tensor()
        if isinstance(value, Coded):
            raise TypeError(f"takes no {value.type.name}; cast it first")
        if not isinstance(value, np.ndarray):
            raise TypeError(f"takes a tensor, got a {type(value).__name__}")
        if not is_number(value):
            raise TypeError("takes numbers, got strings")
        if is_coded(value.dtype):
            raise TypeError(f"takes no {value.dtype.name}; cast it first")
        if value.nbytes > MOST_KEPT:
            return self._large(value)
        content = (value.dtype.str, value.dtype.name, value.shape, value.tobytes())
        if content not in self.small:
            self.small[content] = tensor_over(value, self.device)
            if len(self.small) > MOST_ARRAYS:
                del self.small[next(iter(self.small))]
        return self.small[content]

    def in_bytes(self, value: Value) -> Value:
        """A constant of a type that no tensor has (weights of int4) as such numbers on the device, what else
        there is as it is."""
        is_constant = isinstance(value, np.ndarray) and is_coded(value.dtype)
        return Coded.of_array(value, self.device) if is_constant else value

    def _large(self, value: Array) -> Tensor:
        """The tensor of an array, while that exists: weights of a branch stay, results of a run go."""
        key = id(value)
        if key not in self.large:
            self.large[key] = (weakref.ref(value, lambda _: self.large.pop(key, None)),
                               tensor_over(value, self.device))
        return self.large[key][1]

    def as_array(self, value: Value) -> Array:
        """A value as an array of the host: computed, where it is none yet."""
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Sizes):
            return value.items
        if not isinstance(value, (Coded, Tensor)):
            raise TypeError(f"takes a tensor, got a {type(value).__name__}")
        if id(value) in self.fixed:
            return self._known_array(value)
        self.was_read.append((value if isinstance(value, Tensor) else value.bytes, self.running))
        return value.numpy()

    def _known_array(self, value: Tensor | Coded) -> Array:
        """The items of what is the same in every run: reading them decides nothing anew."""
        key = id(value)
        if key not in self.read_once:
            self.read_once[key] = value.numpy()
        return self.read_once[key]

    # --- graphs ---------------------------------------------------------------------------------------------

    def run(self, nodes: Iterable[Node], values: Mapping[str, Value]) -> dict[str, Value]:
        """All values after nodes were run. What they make of nothing but sizes is on this device, too."""
        known, default = dict(values), Device.DEFAULT
        Device.DEFAULT = self.device
        try:
            for node in nodes:
                self.running = node
                known.update(self.results(node, known))
        finally:
            Device.DEFAULT, self.running = default, None
        return known

    def graph(self, graph: Graph, values: Mapping[str, Value]) -> list[Value]:
        """The results of a graph, whose inputs and captured names are in `values`."""
        scope = {**graph.constants, **values}
        self.keep([value for name, value in graph.constants.items() if graph.is_kept and name not in values])
        for node in graph.nodes:
            fixed = graph.is_kept and is_foldable(node) and all(
                id(scope[name]) in self.fixed for name in node.inputs if name)
            scope.update(self.constant(node, scope) if fixed else self.results(node, scope))
        return [scope.get(name) for name in graph.outputs]

    def keep(self, values: Iterable[Value]) -> None:
        """Take note that these values are the same in every run."""
        self.fixed.update({id(v): v for v in values if isinstance(v, (np.ndarray, Tensor, Coded))})

    def constant(self, node: Node, values: Mapping[str, Value]) -> dict[str, Value]:
        """The results of a node that depends on fixed values only: computed once."""
        key = (id(node), *(id(values[name]) for name in node.inputs if name))
        if key not in self.folded:
            made = self.results(node, values)
            self.compute(made.values())
            self.keep(made.values())
            self.folded[key] = (node, made)
        return self.folded[key][1]

    def results(self, node: Node, values: Mapping[str, Value]) -> dict[str, Value]:
        """The results of a node, by name. A recording shows the node as the module that they are of."""
        watcher = observer.active
        if watcher is None:
            return dict(zip(node.outputs, self.node(node, values), strict=False))
        around = self.inside
        self.inside = f"{node} in {around}" if around else str(node)
        try:
            watcher.written_at(module=self.inside)
            return dict(zip(node.outputs, self.node(node, values), strict=False))
        finally:
            self.inside = around
            watcher.written_at(module=around)

    def node(self, node: Node, values: Mapping[str, Value]) -> list[Value]:
        """The results of one node. Raises OnnxError that names it."""
        inputs = [values[name] if name else None for name in node.inputs]
        attributes = {k: self._body(v, values) if isinstance(v, Graph) else v
                      for k, v in node.attributes.items() if not isinstance(v, Reference)}
        try:
            if isinstance(node.target, Operator):
                return self.call(node, node.target, inputs, attributes)
            body = node.target or self._standard_body(node, inputs)
            return self.function(body, inputs, attributes)
        except OnnxError as error:
            if isinstance(node.target, Operator):
                raise
            raise OnnxError(f"{node}: {error}") from error.__cause__  # a node of a function's, which it calls
        except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError, AssertionError,
                AttributeError, MemoryError) as error:
            raise OnnxError(f"{node}: {str(error) or type(error).__name__}") from error

    def function(self, body: Graph, inputs: list[Value], attributes: dict[str, Any]) -> list[Value]:
        """The results of a function's body, its references to attributes replaced."""
        given = {**body.defaults, **attributes}
        values = dict(zip(body.inputs, [*inputs, *[None] * (len(body.inputs) - len(inputs))], strict=False))
        return self.graph(_with_attributes(body, given), values)

    def _body(self, graph: Graph, values: Mapping[str, Value]) -> Body:
        return Body(self, graph, values)

    def _standard_body(self, node: Node, inputs: list[Value]) -> Graph:
        from tinygrad.nn.onnx.functions import standard_body

        return standard_body(node, inputs)

    def compute(self, values: Iterable[Value]) -> None:
        """Compute the tensors in values, in one schedule. Raises OnnxError where memory does not suffice,
        with the node whose result is the largest."""
        tensors = list(_tensors_in(values))
        try:
            if tensors:
                Tensor.realize(*tensors)
        except MemoryError as error:
            raise OnnxError(f"{self.largest[1]} takes {self.largest[0]:,} bytes: {error}") from error
        self.largest = 0, ""

    # --- operators ------------------------------------------------------------------------------------------

    def call(self, node: Node, operator: Operator, inputs: list[Value],
             attributes: dict[str, Any]) -> list[Value]:
        """The results of an operator: on the host where all that it takes is known there."""
        inputs = [self.in_bytes(x) for x in inputs]
        absent = [i for i in operator.present
                  if i < len(inputs) and inputs[i] is None and operator.form(i) is not Any]
        if absent:
            raise TypeError(f"has no {input_name(node.domain, node.op, node.version, absent[0])}")
        check_types(inputs, type_parameters(node.domain, node.op, node.version))
        wrong = wrong_axis(node, len(inputs[0].shape)) if inputs and hasattr(inputs[0], "shape") else ""
        if wrong:
            raise IndexError(wrong)
        if has_indices(node) and id(inputs[1]) in self.fixed:
            self._check_places(node, *inputs[:2])
        results = self._on_host(node, operator, inputs, attributes)
        if results is None:
            if len(inputs) < operator.required:
                raise TypeError(f"takes {operator.required} inputs, got {len(inputs)}")
            arguments = [to_form(value, operator.form(i), self.as_tensor, self.as_array)
                         for i, value in enumerate(inputs)]
            if "n_outputs" in operator.attributes:
                attributes = {**attributes, "n_outputs": len(node.outputs)}
            found = operator.function(*arguments, **attributes)
            results = list(found) if isinstance(found, tuple) else [found]
        results = with_types(results, inputs, result_types(node.domain, node.op, node.version))
        self._note_largest(node, results)
        return results

    def _note_largest(self, node: Node, results: list[Value]) -> None:
        """Take note of a node whose results are the largest so far. Raises ValueError for one that no memory
        holds."""
        for value in results:
            if isinstance(value, Tensor) and not value.uop.has_sizes:
                size = value.numel() * value.dtype.itemsize
                if size >= 1 << 48:
                    raise ValueError(f"gives a result of shape {value.shape}, which no memory holds")
                if size > self.largest[0]:
                    self.largest = size, f"{node}: a result of shape {value.shape}"

    def _check_places(self, node: Node, data: Value, indices: Value) -> None:
        """Raise IndexError where fixed indices are beyond `data`."""
        key = id(indices), node.op.endswith("ND")
        if key not in self.reached:
            self.reached[key] = reach(node.op, indices.numpy() if isinstance(indices, Tensor) else indices)
        wrong = what_is_out_of_range(node, getattr(data, "shape", ()), self.reached[key])
        if wrong:
            raise IndexError(wrong)

    def _on_host(self, node: Node, operator: Operator, inputs: list[Value],
                 attributes: dict[str, Any]) -> list[Value] | None:
        function = on_arrays(operator)
        known = all(x is None or is_size(x) or isinstance(x, Sizes) or (
            node.op in MOVES and isinstance(x, np.ndarray) and x.dtype.kind == "O") for x in inputs)
        if function is None or not (known or node.op in ("Shape", "Size")):
            return None
        try:
            with np.errstate(all="ignore"):
                if any(isinstance(x, Sizes) for x in inputs):
                    return known_sizes(function, inputs, attributes)
                found = function(*inputs, **attributes)
        except Unknown:
            return None
        results = found if isinstance(found, (tuple, list)) else (found,)
        return [x if isinstance(x, Sizes) else np.asarray(x) for x in results]


def is_size(value: Value) -> bool:
    """Whether a value is what the host computes with: an array of numbers that is small enough for a
    shape."""
    return isinstance(value, np.ndarray) and value.size <= MOST_ITEMS and is_number(value) \
        and not is_coded(value.dtype)


@frozen
class Body:
    """A graph in an attribute, as a function: it sees the values around the node that it belongs to."""

    evaluator: Evaluator
    graph: Graph
    around: Mapping[str, Value]

    def __call__(self, *inputs: Value) -> list[Value]:
        takes = len(self.graph.inputs)
        if len(inputs) != takes:
            raise TypeError(f"its graph {self.graph.name!r} takes {takes} inputs, got {len(inputs)}")
        captured = {name: self.around[name] for name in self.graph.captured}
        return self.evaluator.graph(self.graph,
                                    {**captured, **dict(zip(self.graph.inputs, inputs, strict=True))})

    def read(self, value: Value) -> Array:
        """The values of what a run of the body gave, where the host has to know them."""
        return self.evaluator.as_array(value)

    def items(self, value: Value) -> Any:
        """A value as a tensor, unless no tensor holds its items."""
        return to_form(value, Items, self.evaluator.as_tensor, self.evaluator.as_array)

    def number(self, step: int) -> Value:
        """The number of an iteration, in the type that the body asks for."""
        return np.array(step, self._type_of_input(0, np.int64))

    def condition(self, holds: bool) -> Value:
        return np.array(holds, self._type_of_input(1, np.bool_))

    def _type_of_input(self, position: int, otherwise: Any) -> Any:
        return list(self.graph.inputs.values())[position].dtype or otherwise

    def says_type(self, output: str) -> bool:
        """Whether the graph says the type and all sizes of an output."""
        said = self.graph.outputs[output]
        return None not in (said.dtype, said.shape) and all(isinstance(n, int) for n in said.shape or ())

    def nothing(self, output: str) -> Value:
        """What is collected of an output in no iteration, where the graph says its type."""
        said = self.graph.outputs[output]
        return np.zeros((0, *(n for n in said.shape or () if isinstance(n, int))), said.dtype)


def _tensors_in(values: Iterable[Value]) -> Iterator[Tensor]:
    """The tensors in values, also in sequences."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Coded):
            yield value.bytes
        elif isinstance(value, list):
            yield from _tensors_in(value)


def is_foldable(node: Node) -> bool:
    """Whether a node gives the same whenever it is run on the same values."""
    graphs = any(isinstance(v, Graph) for v in node.attributes.values())
    return isinstance(node.target, Operator) and not graphs and node.op not in RANDOM


def _with_attributes(graph: Graph, given: dict[str, Any]) -> Graph:
    """A function's body for one call: references to its attributes replaced; one that is not given is left
    out."""
    if not _has_references(graph):
        return graph
    nodes = []
    for node in graph.nodes:
        attributes = {k: given.get(v.name) if isinstance(v, Reference) else
                      _with_attributes(v, given) if isinstance(v, Graph) else v
                      for k, v in node.attributes.items() if not isinstance(v, Reference) or v.name in given}
        nodes.append(replace(node, attributes=attributes))
    return replace(graph, nodes=nodes, is_kept=False)


def _has_references(graph: Graph) -> bool:
    return any(isinstance(v, Reference) or (isinstance(v, Graph) and _has_references(v))
               for node in graph.nodes for v in node.attributes.values())
