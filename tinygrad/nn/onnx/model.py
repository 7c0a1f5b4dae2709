"""A file as plain data: `read_model` makes a `Model` of it, checked, and refuses what is wrong with it.

What comes out is in an order in which it can be computed, every operator in it is known, and every value is
produced once, before it is used. Nothing is computed here. Weights beside the file are mapped, weights in it
are arrays over its bytes. Next: `evaluate.py`.
"""
from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.nn.onnx.registry import CONTRIBUTED, Operator, find
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

MOST_NODES, MOST_NESTED = 1 << 20, 64
"""How many nodes may run, and how many functions be inside one another: a few lines of functions that each
call the last one twice say more than could ever be run."""

Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | Tensor


class OnnxError(ValueError):
    """What is wrong with a model, or with what it was given."""


@frozen
class TypeOf:
    """What a model says of one of its inputs or outputs."""

    kind: str
    """"tensor", "sequence", "optional", "map" or "any", where nothing is said"""
    dtype: np.dtype[Any] | None = None
    """NumPy's type of the items (object: strings)"""
    shape: tuple[int | str | None, ...] | None = None
    """sizes; a name for an axis that is dynamic, None for one without a name or, for all, if it is not
    known"""

    def __str__(self) -> str:
        """As text: `float32 (batch, 3)`, a question mark for an axis without a name."""
        if self.kind != "tensor" or self.dtype is None:
            return self.kind
        name = "string" if self.dtype.kind == "O" else self.dtype.name
        if self.shape is None:
            return f"{name} of any shape"
        sizes = ["?" if n is None else str(n) for n in self.shape]
        return f"{name} ({sizes[0]},)" if len(sizes) == 1 else f"{name} ({', '.join(sizes)})"


@frozen
class Reference:
    """An attribute of a node in a function that is an attribute of the function."""

    name: str


@frozen
class Node:
    """One call: of an operator, or of a function of the model."""

    domain: str
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    version: int
    target: Operator | Graph | None
    """what it calls; None for a function of the standard that depends on the types of its inputs"""
    proto: Any = None

    def __str__(self) -> str:
        label = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{label} {self.name!r}" if self.name else f"{label} of {', '.join(map(repr, self.outputs))}"


@dataclass
class Graph:
    """Nodes in an order in which they can be run, with the names of what goes in and comes out."""

    name: str
    inputs: dict[str, TypeOf]
    outputs: dict[str, TypeOf]
    constants: dict[str, Array]
    nodes: list[Node]
    defaults: dict[str, Any] = field(default_factory=dict)
    """of a function: the attributes that a call may leave out"""
    attributes: frozenset[str] = frozenset()
    captured: frozenset[str] = frozenset()
    """names of the surrounding graphs that it uses"""
    is_kept: bool = True
    """whether its nodes are these in every call"""


@dataclass
class Model:
    graph: Graph
    opsets: dict[str, int]
    producer: str
    name: str


def onnx_package() -> Any:
    """The `onnx` module. Raises ImportError that says how to install it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError('files are read with the onnx package: pip install "tinygrad[onnx]"') from error
    return onnx


def read_model(source: Source | Any) -> Model:
    """The model in a file, in its bytes (as a tensor of uint8, too), or in an `onnx.ModelProto`.

    Raises OnnxError for what is no model or a broken one, with all operators that are not supported.
    """
    return _Reader(*_parse(source)).model()


def _parse(source: Source | Any) -> tuple[Any, tuple[Path, ...], str]:
    """(the file's message, the folders that its weights may be in, what to call it in errors).

    A file that is a link is in two folders: where the link is, and where it leads to.
    """
    onnx = onnx_package()
    if isinstance(source, onnx.ModelProto):
        return source, (), "the model"
    folders: tuple[Path, ...] = ()
    label = "the model"
    if isinstance(source, Tensor):
        source = source.numpy().tobytes()
    if isinstance(source, (bytearray, memoryview)):
        source = bytes(source)
    if not isinstance(source, (str, os.PathLike, bytes)):
        raise TypeError("a model is a path, a file's bytes, a tensor of them or an onnx.ModelProto, got a "
                        f"{type(source).__name__}")
    if not isinstance(source, bytes):
        path = Path(source)
        folders, label = (path.parent.resolve(), path.resolve().parent), str(path)
        source = path.read_bytes()
    if not source:
        raise OnnxError(f"{label} is not an ONNX model: it is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(source)
    except Exception as error:  # of protobuf, which may be either of two implementations
        raise OnnxError(f"{label} is not an ONNX model, or is cut short: {error}") from error
    if not proto.ir_version or not proto.HasField("graph") or not proto.opset_import:
        raise OnnxError(f"{label} is not an ONNX model: it says no version or has no graph")
    return proto, folders, label


class _Reader:
    """Makes plain data of a message, and collects what is not supported on the way."""

    def __init__(self, proto: Any, folders: tuple[Path, ...], label: str) -> None:
        self.onnx = onnx_package()
        self.proto, self.folders, self.label = proto, folders, label
        self.opsets = {_domain(o.domain): o.version for o in proto.opset_import}
        self.functions = {(_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in proto.functions}
        self.bodies: dict[tuple[str, str, str], Graph] = {}
        self.open: list[tuple[str, str, str]] = []
        self.unsupported: dict[str, list[str]] = {}

    def model(self) -> Model:
        from tinygrad.nn.onnx.operands import wrong_nodes

        for domain, version in self.opsets.items():
            newest = {"": self.onnx.defs.onnx_opset_version()}.get(domain)
            if newest is not None and not 1 <= version <= newest:
                raise OnnxError(f"{self.label} uses version {version} of the standard's operators; the "
                                f"installed onnx package knows 1 to {newest}")
        graph = self.graph(self.proto.graph, frozenset(), self.opsets)
        count = count_nodes(graph, {})
        if count > MOST_NODES:
            raise OnnxError(f"{self.label} has {count:,} nodes, those of functions counted at each call; at "
                            f"most {MOST_NODES:,} can be run")
        listed = [f"{name}: {', '.join(nodes)}" for name, nodes in self.unsupported.items()]
        wrong = wrong_nodes(graph, {}, {})
        if listed or wrong:
            said = [f"{what}: {'; '.join(nodes)}" for what, nodes in (
                ("operators that are not supported", listed), ("nodes that are wrong", wrong)) if nodes]
            raise OnnxError(f"{self.label} uses {', and '.join(said)}")
        return Model(graph, self.opsets, self.proto.producer_name, self.proto.graph.name)

    # --- graphs ---------------------------------------------------------------------------------------------

    def graph(self, proto: Any, outer: frozenset[str], opsets: dict[str, int]) -> Graph:
        for what, named in (("constant", [*proto.initializer, *(t.values for t in proto.sparse_initializer)]),
                            ("input", proto.input)):
            self.check_names(what, [said.name for said in named])
        constants = {t.name: self.array(t) for t in proto.initializer}
        constants |= {t.values.name: self.dense(t) for t in proto.sparse_initializer}
        inputs = {v.name: self.type_of(v.type) for v in proto.input}
        outputs = {v.name: self.type_of(v.type) for v in proto.output}
        known = frozenset(constants) | frozenset(inputs)
        scope = outer | known | _produced(proto)
        nodes = [self.node(n, scope, opsets) for n in proto.node]
        nodes, used = self.ordered(nodes, known, outer, proto.name)
        made = known.union(*(n.outputs for n in nodes)) if nodes else known
        missing = [name for name in outputs if name not in made | outer]
        if missing:
            raise OnnxError(f"{self.label}: graph {proto.name!r} gives {', '.join(map(repr, missing))}, "
                            "which nothing produces")
        return Graph(proto.name, inputs, outputs, constants, nodes,
                     captured=(used | frozenset(outputs)) - made)

    def check_names(self, what: str, names: Sequence[str]) -> None:
        """Raise OnnxError where two have one name."""
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise OnnxError(f"{self.label}: there is more than one {what} {', '.join(map(repr, twice))}")

    def ordered(self, nodes: Sequence[Node], known: frozenset[str], outer: frozenset[str],
                graph: str) -> tuple[list[Node], frozenset[str]]:
        """Nodes with producers before users, and all names that they use."""
        made = set(known)
        for node in nodes:
            for name in filter(None, node.outputs):
                if name in made:
                    raise OnnxError(f"{self.label}: {name!r} is produced more than once, the second time by "
                                    f"{node}")
                made.add(name)
        uses = [frozenset(filter(None, node.inputs)).union(
            *(g.captured for g in inner_graphs(node.attributes))) for node in nodes]
        absent = {name: node for node, names in zip(nodes, uses, strict=True)
                  for name in names if name not in made and name not in outer}
        if absent:
            listed = "; ".join(f"{name!r} by {node}" for name, node in absent.items())
            raise OnnxError(f"{self.label}: graph {graph!r} uses what nothing produces: {listed}")
        ready, waiting, order = set(known) | (set(outer) - made), list(zip(nodes, uses, strict=True)), []
        while waiting:
            later = []
            for node, names in waiting:
                if names <= ready:
                    order.append(node)
                    ready.update(node.outputs)
                else:
                    later.append((node, names))
            if len(later) == len(waiting):
                raise OnnxError(f"{self.label}: these nodes wait for each other, in a cycle: "
                                f"{', '.join(str(node) for node, _ in later)}")
            waiting = later
        return order, frozenset().union(*uses) if uses else frozenset()

    def node(self, proto: Any, scope: frozenset[str], opsets: dict[str, int]) -> Node:
        domain, op = _domain(_text(proto.domain)), _text(proto.op_type)
        attributes = {a.name: self.attribute(a, scope, opsets) for a in proto.attribute}
        version = opsets.get(domain, 1 if domain == CONTRIBUTED else 0)
        target: Operator | Graph | None = None
        local = (domain, op, getattr(proto, "overload", ""))
        node = Node(domain, op, proto.name, tuple(proto.input), tuple(proto.output), attributes,
                    version, None, proto)
        if local in self.functions:
            target = self.function(local)
        elif version:
            target = find(domain, op, version)
        if target is None and not self.has_body(node):
            self.refuse(f"{domain}.{op}" if domain else op,
                        str(node) if version else f"{node} (its domain has no version in the file)")
        elif isinstance(target, Graph):
            for what, given, there in (("inputs", node.inputs, target.inputs),
                                       ("outputs", node.outputs, target.outputs)):
                if len(given) > len(there):
                    raise OnnxError(f"{self.label}: {node} has {len(given)} {what}, and its function "
                                    f"{len(there)}")
        elif isinstance(target, Operator):
            unknown = attributes.keys() - target.attributes
            if unknown:
                self.refuse(f"{op} with {', '.join(sorted(map(_text, unknown)))}", str(node))
            if target.variadic is None and len(node.inputs) > len(target.forms):
                self.refuse(f"{op} of {len(node.inputs)} inputs", str(node))
        return replace(node, target=target)

    def refuse(self, what: str, node: str) -> None:
        self.unsupported.setdefault(what, []).append(node)

    # --- functions ------------------------------------------------------------------------------------------

    def has_body(self, node: Node) -> bool:
        """Whether the standard says an operator by others."""
        defs = self.onnx.defs
        if not node.version or not defs.has(node.op, node.version, node.domain):
            return False
        schema = defs.get_schema(node.op, node.version, node.domain)
        return bool(schema.has_function or schema.has_context_dependent_function)

    def function(self, key: tuple[str, str, str]) -> Graph:
        if key in self.open:
            raise OnnxError(f"{self.label}: function {key[1]!r} calls itself")
        if len(self.open) == MOST_NESTED:
            raise OnnxError(f"{self.label}: functions call one another more than {MOST_NESTED} deep, from "
                            f"{self.open[0][1]!r} to {key[1]!r}")
        if key not in self.bodies:
            self.open.append(key)
            self.bodies[key] = self.function_body(self.functions[key])
            self.open.pop()
        return self.bodies[key]

    def function_body(self, proto: Any) -> Graph:
        opsets = {**self.opsets, **{_domain(o.domain): o.version for o in proto.opset_import}}
        known = frozenset(proto.input)
        scope = known | _produced(proto)
        nodes = [self.node(n, scope, opsets) for n in proto.node]
        nodes, _ = self.ordered(nodes, known, frozenset(), proto.name)
        return Graph(proto.name, dict.fromkeys(proto.input, TypeOf("any")),
                     dict.fromkeys(proto.output, TypeOf("any")), {}, nodes,
                     {a.name: self.attribute(a, scope, opsets) for a in proto.attribute_proto},
                     frozenset(proto.attribute))

    # --- attributes, types, arrays --------------------------------------------------------------------------

    def attribute(self, proto: Any, scope: frozenset[str], opsets: dict[str, int]) -> Any:
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        kinds = self.onnx.AttributeProto
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g, scope, opsets)
        if proto.type == kinds.GRAPHS:
            return tuple(self.graph(g, scope, opsets) for g in proto.graphs)
        if proto.type == kinds.TENSOR:
            return self.array(proto.t)
        if proto.type == kinds.TENSORS:
            return tuple(self.array(t) for t in proto.tensors)
        if proto.type == kinds.SPARSE_TENSOR:
            return self.dense(proto.sparse_tensor)
        if proto.type == kinds.TYPE_PROTO:
            return self.type_of(proto.tp)
        value = self.onnx.helper.get_attribute_value(proto)
        if proto.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
            return tuple(map(_text, value))
        return _text(value)

    def type_of(self, proto: Any) -> TypeOf:
        kind = (proto.WhichOneof("value") or "any").removesuffix("_type")
        if kind not in ("tensor", "sparse_tensor"):
            return TypeOf(kind)
        said = getattr(proto, f"{kind}_type")
        dtype = self.items_of(said.elem_type, "a value") if said.elem_type else None
        if not said.HasField("shape"):
            return TypeOf("tensor", dtype)
        sizes = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
                      for d in said.shape.dim)  # -1: of any size, as older exporters write it
        return TypeOf("tensor", dtype, sizes)

    def items_of(self, number: int, whose: str) -> np.dtype[Any]:
        """NumPy's type for the standard's number of a type."""
        try:
            kind: np.dtype[Any] = self.onnx.helper.tensor_dtype_to_np_dtype(number)
        except KeyError as error:
            raise OnnxError(f"{self.label}: {whose} is of type {number}, which the standard does not "
                            "have") from error
        return kind

    def array(self, proto: Any) -> Array:
        self.check_sizes(proto)
        if proto.data_location == self.onnx.TensorProto.EXTERNAL:
            return self.external(proto)
        try:
            array: Array = self.onnx.numpy_helper.to_array(proto)
        except Exception as error:
            raise OnnxError(f"{self.label}: constant {proto.name!r} cannot be read: {error}") from error
        return np.array([s.decode() if isinstance(s, bytes) else s for s in array.reshape(-1)],
                        object).reshape(array.shape) if array.dtype == object else array

    def check_sizes(self, proto: Any) -> None:
        """Raise OnnxError for a constant of sizes that no array has."""
        if any(n < 0 for n in proto.dims) or math.prod(n or 1 for n in proto.dims) >= 1 << 48:
            name = proto.values.name if hasattr(proto, "values") else proto.name
            raise OnnxError(f"{self.label}: constant {name!r} is of shape {tuple(proto.dims)}")

    def dense(self, proto: Any) -> Array:
        """A sparse constant with its zeros."""
        self.check_sizes(proto)
        values, places, sizes = self.array(proto.values), self.array(proto.indices), tuple(proto.dims)
        try:
            whole = np.zeros(sizes, values.dtype)
        except MemoryError as error:
            raise OnnxError(f"{self.label}: constant {proto.values.name!r} of shape {sizes}, with its zeros, "
                            "is larger than memory") from error
        bounds = (whole.size,) if places.ndim == 1 else sizes
        at = (places,) if places.ndim == 1 else tuple(places.T)
        is_inside = len(at) == len(bounds) and all(
            np.all((axis >= 0) & (axis < n)) for axis, n in zip(at, bounds, strict=True))
        if not is_inside or len(places) != len(values):
            raise OnnxError(f"{self.label}: constant {proto.values.name!r} of shape {sizes} has "
                            f"{len(values)} items at places that are not all in it")
        whole.reshape(bounds)[at] = values
        return whole

    def external(self, proto: Any) -> Array:
        """A constant in a file beside the model's: mapped, read where it is used."""
        said = {entry.key: entry.value for entry in proto.external_data}
        if not self.folders:
            raise OnnxError(f"{self.label}: constant {proto.name!r} is in the file {said.get('location')!r}; "
                            "give the model's path, not its bytes")
        path = self.beside(proto.name, said.get("location", ""))
        kind = self.items_of(proto.data_type, f"constant {proto.name!r}")
        packed = _bits(kind)
        count = math.prod(proto.dims)
        size, label = -(-count * packed // 8), f"{self.label}: constant {proto.name!r}"
        try:
            start, length = int(said.get("offset") or 0), int(said.get("length") or size)
        except ValueError as error:
            raise OnnxError(f"{label} lies at no number of bytes: {error}") from error
        if length != size:
            raise OnnxError(f"{label} of shape {tuple(proto.dims)} has {size} bytes, and {length} in its "
                            "file")
        if start < 0 or start + size > path.stat().st_size:
            raise OnnxError(f"{label} lies at bytes {start} to {start + size} of {str(path)!r}, which has "
                            f"{path.stat().st_size}")
        if not count:
            return np.zeros(tuple(proto.dims), kind)
        data = np.memmap(path, np.uint8, "c", start, (size,))
        if packed < 8:
            copy = self.onnx.TensorProto(dims=proto.dims, data_type=proto.data_type, raw_data=data.tobytes())
            unpacked: Array = self.onnx.numpy_helper.to_array(copy)
            return unpacked
        whole: Array = data.view(kind).reshape(tuple(proto.dims))
        return whole

    def beside(self, constant: str, location: str) -> Path:
        """The file beside the model's that holds a constant."""
        asked = [Path(os.path.normpath(folder / location)) for folder in self.folders]
        try:
            found = [path.resolve() for path in asked if path.is_file()]
        except OSError as error:  # a name that no file can have
            raise OnnxError(f"{self.label}: constant {constant!r} is in {location!r}: "
                            f"{error.strerror}") from error
        inside = [any(path.is_relative_to(folder) for folder in self.folders) for path in (*asked, *found)]
        if not all(inside):
            raise OnnxError(f"{self.label}: constant {constant!r} asks for {location!r}, which is outside of "
                            "the model's folder")
        if not found:
            raise OnnxError(f"{self.label}: constant {constant!r} is in {str(asked[0])!r}, which is not "
                            "there")
        return found[0]


def _text(value: Any) -> Any:
    """What may be bytes as text: attributes are, and names that are no UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _bits(kind: np.dtype[Any]) -> int:
    """Bits of an item in a file, where those of less than a byte are packed."""
    found = [n for n in (2, 4) if kind.name in (f"int{n}", f"uint{n}", f"float{n}_e2m1fn")]
    return found[0] if found else kind.itemsize * 8


def _produced(proto: Any) -> frozenset[str]:
    return frozenset(name for node in proto.node for name in node.output if name)


def inner_graphs(attributes: dict[str, Any]) -> Iterator[Graph]:
    """The graphs among the attributes of a node."""
    for value in attributes.values():
        if isinstance(value, Graph):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if isinstance(v, Graph))


def graphs_of(node: Node) -> list[Graph]:
    """The graphs among the attributes of a node, and the function that it calls."""
    return [*inner_graphs(node.attributes), *([node.target] if isinstance(node.target, Graph) else [])]


def all_nodes(graph: Graph) -> Iterable[Node]:
    """The nodes of a graph and of those in it; of functions, at each call."""
    for node in graph.nodes:
        yield node
        for g in graphs_of(node):
            yield from all_nodes(g)


def count_nodes(graph: Graph, counted: dict[int, int]) -> int:
    """How many `all_nodes` are; `counted` has the numbers of graphs by identity: each is walked once."""
    if id(graph) not in counted:
        counted[id(graph)] = len(graph.nodes) + sum(count_nodes(g, counted) for node in graph.nodes
                                                    for g in graphs_of(node))
    return counted[id(graph)]
