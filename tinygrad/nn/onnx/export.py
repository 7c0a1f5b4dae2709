"""`export`: a function of tensors as an ONNX file.

The function runs once on example inputs. While it runs, the methods of `Tensor` that are an operator of the
standard note what they were called with (`CALLS`): their results become that operator. What is left of the
graph is written node by node (`nodes.py`), and what depends on no input is computed and stored.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from itertools import count
from typing import Any

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.engine.capture import Capture, JitError
from tinygrad.functional.graph_templates import when_called
from tinygrad.graph.leaf_tensors import below_detaches
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import (
    Size,
    as_size,
    is_symbolic,
    largest_shape,
    sizes_in,
    text_of,
    value_of,
    when_decided,
)
from tinygrad.graph.storage import Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import partition, prod
from tinygrad.nn.onnx.calls import CALLS, LAYERS, Call, Entry
from tinygrad.nn.onnx.model import onnx_package
from tinygrad.nn.onnx.nodes import NODES, operands_of
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

OPSET = 23
"""The first version of the standard that has attention."""
NEWER = {"BitCast": 26}
"""The first version that has an operator, where it is a later one: a file with it asks for that."""
ANY_SIZE = (1, 1 << 16)
"""Bounds of a dynamic axis of which nothing is said."""
MOST_IN_FILE = 1 << 30
"""Bytes of weights up to which they are in the file itself; a message holds at most 2 GB."""
MOST_COMPARED = 1 << 16
"""Bytes of a constant up to which it is stored once, however often it is made."""
STORES = ("the function stores values of its inputs (assign(), a state that is kept), which no operator of "
          "the standard does: give what it stores as an input, and the new values as a result")


def export(function: Callable[..., Any], example_inputs: Any, path: str | os.PathLike[str] | None = None,
           input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None, *,
           dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
           sizes: Mapping[str, tuple[int, int]] | None = None) -> Any:
    """Write what `function` does with inputs like the examples as ONNX; returns the `onnx.ModelProto`.

    `example_inputs`: a tensor, a sequence of them (arguments) or a dict (arguments by name). The function
    gives a tensor, a sequence or a dict of them. Shapes are those of the examples, but for `dynamic_axes`:
    `{"x0": {0: "batch"}}` says that the first axis of input x0 may have any size, and is called "batch".
    The function sees it as a bound Variable, from 1 to 65536 where `sizes` says nothing else.

    Raises ValueError for what the standard has no operator for, and where what the function does depends on
    the size of a dynamic axis, or on values of its inputs that it reads or stores.
    """
    onnx = onnx_package()
    arguments, named = _arguments(example_inputs)
    given = [*arguments, *named.values()]
    names = _names("input_names", input_names, [*(f"x{i}" for i in range(len(arguments))), *named])
    axes = _named_axes(dict(zip(names, given, strict=True)), dynamic_axes or {}, sizes or {})
    inputs = [_input(x, {i: axes[n] for i, n in (dynamic_axes or {}).get(name, {}).items()})
              for name, x in zip(names, given, strict=True)]
    sources = {name: x.uop for name, x in zip(names, inputs, strict=True)}  # before any is written to
    examples = {memory.storage for node in sources.values() for memory in node.src[0].base.memories}
    described = [_described(name, x) for name, x in zip(names, inputs, strict=True)]
    with Tensor.no_grad(), _noted_calls(set(sources.values())) as calls, _same_for_all_sizes(), \
            _without_reading(examples) as capture:
        made = function(*inputs[:len(arguments)], **dict(zip(named, inputs[len(arguments):], strict=True)))
    results = _results(made, output_names)
    taken = [*names, *results]
    if len(set(taken)) < len(taken):
        raise ValueError(f"inputs and results need different names, got {', '.join(map(repr, taken))}")
    writer = OnnxWriter(calls, _filled_from(capture), taken)
    for name, source in sources.items():
        writer.take_input(name, source)
    for name, x in results.items():
        writer.add("Identity", [writer.value(x.uop)], [name])
    graph = onnx.helper.make_graph(
        writer.nodes, getattr(function, "__name__", type(function).__name__),
        described, [_described(name, x) for name, x in results.items()], writer.constants)
    model = onnx.helper.make_model(graph, producer_name="tinygrad",
                                   opset_imports=[onnx.helper.make_opsetid("", max(
            OPSET, *(NEWER.get(n.op_type, OPSET) for n in writer.nodes)))])
    model.ir_version = 10
    onnx.checker.check_model(model)
    if path is not None:
        size = sum(len(t.raw_data) for t in writer.constants)
        onnx.save(model, os.fspath(path), save_as_external_data=size > MOST_IN_FILE)
    return model


def _arguments(given: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The tensors of examples, by position and by name. Raises TypeError for what is no tensor and no
    array."""
    def tensor(x: Any) -> Tensor:
        if not isinstance(x, (Tensor, np.ndarray)):
            raise TypeError(f"example inputs are tensors or arrays, got a {type(x).__name__}; give other "
                            "arguments inside of the function: export(lambda x: model(x, 3), x)")
        return x if isinstance(x, Tensor) else Tensor(x, requires_grad=False)

    if isinstance(given, Mapping):
        return [], {name: tensor(x) for name, x in given.items()}
    return [tensor(x) for x in (given if isinstance(given, (list, tuple)) else [given])], {}


def _results(made: Any, names: Sequence[str] | None) -> dict[str, Tensor]:
    """Results by name. Raises TypeError for what is no tensor."""
    results = made if isinstance(made, Mapping) else {
        f"y{i}": x for i, x in enumerate(made if isinstance(made, (list, tuple)) else [made])}
    wrong = [f"a {type(x).__name__}" for x in results.values() if not isinstance(x, Tensor)]
    if wrong:
        raise TypeError(f"the function gives tensors, a list or a dict of them; got {', '.join(wrong)}")
    return dict(zip(_names("output_names", names, list(results)), results.values(), strict=True))


def _names(what: str, given: Sequence[str] | None, usual: Sequence[str]) -> list[str]:
    if given is not None and len(given) != len(usual):
        raise ValueError(f"{what} takes a name for each of {', '.join(usual)}, got {', '.join(given)}")
    return list(usual if given is None else given)


def _described(name: str, x: Tensor) -> Any:
    helper = onnx_package().helper
    shape = [text_of(n.node) if isinstance(n, Size) else n for n in x.shape]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype.numpy), shape)


def _named_axes(inputs: Mapping[str, Tensor], named: Mapping[str, Mapping[int, str]],
                bounds: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The sizes that dynamic axes have, by name. Raises ValueError for wrong names of inputs and axes, and
    for axes of one name that are not equally long in the examples."""
    unknown = [name for name in named if name not in inputs]
    if unknown:
        raise ValueError(f"dynamic_axes names {', '.join(map(repr, unknown))}; inputs are "
                         f"{', '.join(map(repr, inputs))}, and the axes of results follow")
    found: dict[str, int] = {}
    for name, axes in named.items():
        if not isinstance(axes, Mapping):
            raise ValueError(f"dynamic_axes takes a name for each axis, {{{name!r}: {{0: 'batch'}}}}, "
                             f"got {axes!r}")
        for axis, text in axes.items():
            if not text.isidentifier() or not 0 <= axis < inputs[name].ndim:
                raise ValueError(f"dynamic_axes takes axes from 0 on and identifiers, got {axis}: {text!r} "
                                 f"for {name!r} of shape {inputs[name].shape}")
            size = inputs[name].shape[axis]
            bound = as_size(UOp.variable(text, *bounds.get(text, ANY_SIZE)).bind(size))
            if found.setdefault(text, bound) != bound:
                raise ValueError(f"axes named {text!r} are {value_of(found[text])} and {size} long")
    if bounds.keys() - found:
        raise ValueError(f"sizes has bounds of {', '.join(sorted(bounds.keys() - found))}; dynamic_axes "
                         f"names {', '.join(found) or 'no axis'}")
    return found


def _input(example: Tensor, axes: Mapping[int, int]) -> Tensor:
    """What the function gets for an example: memory of its own, which no view merges with; of dynamic axes
    only their sizes are known."""
    if not axes:
        source = Tensor(example.numpy(), example.device, requires_grad=False).uop
    else:
        shape = tuple(axes.get(i, n) for i, n in enumerate(example.shape))
        memory = UOp.new_buffer(Tensor.empty(0, device=example.device).uop.device, prod(largest_shape(shape)),
                                example.dtype)
        source = Tensor.of(memory.reshape(largest_shape(shape))).shrink(tuple((0, n) for n in shape)).uop
    return Tensor.of(UOp.new(Ops.CONTIGUOUS, example.dtype, (source,)))


@contextmanager
def _same_for_all_sizes() -> Iterator[None]:
    """Raises ValueError where a comparison of sizes is decided by those of the examples."""
    def refuse(condition: UOp, truth: bool) -> None:
        raise ValueError(f"the function depends on whether {text_of(condition)}; give `sizes` for which that "
                         f"is always {str(truth).lower()}")
    when_decided.append(refuse)
    try:
        yield
    finally:
        when_decided.remove(refuse)


@contextmanager
def _without_reading(given: Collection[Storage]) -> Iterator[Capture]:
    """Raises ValueError where values of inputs, which are in `given` memory, are read: they are those of the
    examples."""
    try:
        with Capture(given=given) as capture:
            yield capture
    except JitError as error:
        raise ValueError(f"what the function does depends on values of its inputs: {error}") from error


def _filled_from(capture: Capture) -> set[Storage]:
    """Memory whose values were computed of inputs while the function ran."""
    known = set(capture.given)
    for item in capture.items:
        parts = [memory.storage for node in item.buffers for memory in node.base.memories]
        if not known.isdisjoint(parts):
            known.update(memory.storage for node in item.buffers[:item.outputs]
                         for memory in node.base.memories)
    return known


@contextmanager
def _noted_calls(inputs: set[UOp]) -> Iterator[dict[UOp, tuple[Call, int]]]:
    """While this is open: the calls of methods in `CALLS` and of `LAYERS`, by the nodes of their results, and
    which result that is.

    Methods of many nodes say when they are called (`graph_templates.py`), under whatever name; the others are
    replaced. What depends on `inputs` is not computed where the function asks for it: it stays a graph.
    """
    calls: dict[UOp, tuple[Call, int]] = {}

    def noted(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any],
              entry: Entry | None = None) -> Any:
        result = function(*args, **options)
        entry = entry or CALLS.get(function.__name__)
        if entry is None:
            return result
        bound = signature(function).bind(*args, **options)
        bound.apply_defaults()
        call = entry(result, **bound.arguments)
        if not isinstance(call, Call):
            return result if call is None else call
        results = result if isinstance(result, tuple) else (result,)
        nodes = [UOp.new(Ops.CONTIGUOUS, x.dtype, (x.uop,)) for x in results]  # which no view merges with
        calls.update((node, (call, place)) for place, node in enumerate(nodes))
        tensors = tuple(Tensor.of(node, x) for node, x in zip(nodes, results, strict=True))
        return tensors if isinstance(result, tuple) else tensors[0]

    def replacing(method: Callable[..., Any], entry: Entry) -> Callable[..., Any]:
        @wraps(method)
        def replaced(*args: Any, **options: Any) -> Any:
            return noted(method, args, options, entry)
        return replaced

    realize = Tensor.realize

    def realized(self: Tensor, *others: Tensor) -> Tensor:
        known, depending = partition((self, *others), lambda x: inputs.isdisjoint(x.uop.toposort()))
        if any(below_detaches(x.uop).op is Ops.ASSIGN for x in depending):
            raise ValueError(STORES)
        if known:
            realize(known[0], *known[1:])
        return self

    changed = {(Tensor, name): replacing(getattr(Tensor, name), entry) for name, entry in CALLS.items()
               if hasattr(Tensor, name) and not hasattr(getattr(Tensor, name), "__wrapped__")}
    changed |= {(layer, "__call__"): replacing(layer.__call__, entry) for layer, entry in LAYERS.items()}
    changed[Tensor, "realize"] = realized
    own = {(owner, name): vars(owner).get(name) for owner, name in changed}
    try:
        when_called.append(noted)
        for (owner, name), method in changed.items():
            setattr(owner, name, method)
        yield calls
    finally:
        when_called.pop()
        for (owner, name), before in own.items():
            if before is None:  # it is inherited
                delattr(owner, name)
            else:
                setattr(owner, name, before)


class OnnxWriter:
    """The nodes and constants of a graph that is written, and the names of its values."""

    def __init__(self, calls: Mapping[UOp, tuple[Call, int]], filled: Collection[Storage],
                 taken: Collection[str]) -> None:
        self.onnx = onnx_package()
        self.calls = calls
        """by the nodes of their results: which call it is, and which of its results"""
        self.taken = taken
        """names of inputs and results, which no other value may have"""
        self.filled = filled
        """memory that holds what was computed of the examples"""
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names: dict[UOp, str] = {}
        self._constant_names: dict[Any, str] = {}
        self._results: dict[Call, tuple[str, ...]] = {}
        self._numbers = {"v": count(), "c": count()}
        self._inputs: set[UOp] = set()
        self._axes: dict[UOp, tuple[str, int]] = {}
        """dynamic sizes: the input and the axis that has them"""
        self._sizes: dict[UOp, str] = {}
        """expressions of dynamic sizes, each as a vector of one item"""
        self._depends: dict[UOp, bool] = {}

    def take_input(self, name: str, node: UOp) -> None:
        """`node` as the input `name`, and its dynamic sizes as what shape it has."""
        self._inputs.add(node)
        self._names[node] = name
        for axis, n in enumerate(node.shape):
            if isinstance(n, Size):
                self._axes.setdefault(n.node, (name, axis))

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Write a node; returns the name of its first result."""
        names = list(outputs) or [self.new_name("v")]
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def new_name(self, letter: str) -> str:
        """A name that no other value has: the letter and a number."""
        return next(name for n in self._numbers[letter] if (name := f"{letter}{n}") not in self.taken)

    def cast(self, name: str, dtype: DType) -> str:
        """The name of a value as this type."""
        return self.add("Cast", [name], to=self.onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy))

    def constant(self, array: Array) -> str:
        """The name of a constant."""
        key = (array.dtype.name, array.shape, array.tobytes()) if array.nbytes <= MOST_COMPARED else None
        if key is not None and key in self._constant_names:
            return self._constant_names[key]
        name = self.new_name("c")
        whole = np.ascontiguousarray(array).reshape(array.shape)
        self.constants.append(self.onnx.numpy_helper.from_array(whole, name))
        if key is not None:
            self._constant_names[key] = name
        return name

    def ints(self, numbers: Sequence[int]) -> str:
        """The name of a vector of integers, of which dynamic sizes are computed."""
        if not is_symbolic(numbers):
            return self.constant(np.array(numbers, np.int64))
        parts = [self.size(n.node) if isinstance(n, Size) else self.ints([n]) for n in numbers]
        return self.add("Concat", parts, axis=0) if len(parts) > 1 else parts[0]

    def size(self, node: UOp) -> str:
        """The name of a vector of one item, the value of an index expression."""
        if node.op is Ops.CONST:
            return self.ints([node.arg])
        if node in self._axes and node not in self._sizes:
            name, axis = self._axes[node]
            self._sizes[node] = self.add("Shape", [name], start=axis, end=axis + 1)
        if node not in self._sizes:
            if node.op not in NODES:
                raise ValueError(f"the standard has no operator for {node.op.name} of sizes")
            self._sizes[node] = NODES[node.op](self, node, [self.size(s) for s in node.src])
        return self._sizes[node]

    def depends(self, node: UOp) -> bool:
        """Whether a value depends on an input, or on the size of one."""
        for n in node.toposort(stop=self._depends.__contains__):
            if n not in self._depends:
                self._depends[n] = n in self._inputs or n in self._axes or bool(sizes_in(n.arg)) or any(
                    self._depends[s] for s in n.src)
        return self._depends[node]

    def value(self, node: UOp) -> str:
        """The name of a node's value, which is written if it is not yet."""
        todo = [node]
        while todo:
            n = todo[-1]
            missing = [] if n in self._names else [s for s in self._needed(n) if s not in self._names]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if n not in self._names:
                self._names[n] = self._written(n)
        return self._names[node]

    def _needed(self, node: UOp) -> Sequence[UOp]:
        if not self.depends(node):
            return ()
        operands = self.calls[node][0].operands if node in self.calls else operands_of(node)
        return tuple(s for s in operands if s.dtype is not dtypes.index)

    def _written(self, node: UOp) -> str:
        if not self.depends(node):
            # what repeats items is stored once for all
            if node.op is Ops.EXPAND:
                return self.add("Expand", [self.value(node.src[0]), self.ints(node.shape)])
            if any(n.op is Ops.BUFFER and n.storage in self.filled for n in node.toposort()):
                raise ValueError(STORES)
            return self.constant(Tensor.of(node).numpy())
        if node in self.calls:
            return self._result(node, *self.calls[node])
        if node.op not in NODES:
            raise ValueError(STORES if node.op is Ops.ASSIGN else "the standard has no operator for "
                             f"{node.op.name} of {node.dtype.name} {node.shape}")
        names = [self.add("Squeeze", [self.size(s)]) if s.dtype is dtypes.index else self._names[s]
                 for s in operands_of(node)]
        return NODES[node.op](self, node, names)

    def _result(self, node: UOp, call: Call, place: int) -> str:
        """The name of one of the results of a call, which is written if it is not yet."""
        if call not in self._results:
            made = call.write(self, [self._names[operand] for operand in call.operands])
            self._results[call] = (made,) if isinstance(made, str) else made
        name = self._results[call][place]
        return name if not call.gives or call.gives[place] is node.dtype else self.cast(name, node.dtype)
