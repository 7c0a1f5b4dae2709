"""Walks a functional FX graph with our tensors: what `dispatch.py` traces under TinyJit.

In: a graph of ATen operators and of Python's own operators on sizes. Out: `GraphProgram`, its steps. Whether
the table has each operator is known when the program is made: `UnsupportedOperators` lists all that it has
not.
"""
from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

import tinygrad.torch.ops  # noqa: F401  # fills the table
from tinygrad import observer
from tinygrad.dtype import DType, dtypes, to_dtype
from tinygrad.frozen import frozen
from tinygrad.graph.sizes import Size
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import NEED_LAYOUT, OPERATORS, PROMOTED, RANDOM, UnsupportedOperators
from tinygrad.torch.sizes import Values, expression_of, size_of, strides_in_order

PLACES_OF_MEMORY = frozenset({"device", "layout", "memory_format", "pin_memory", "generator"})
SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "aten.sym_numel.default": lambda x: x.numel(),
    "aten.sym_stride.int": lambda x, dim: strides_in_order(x.shape)[dim],
}

OF_SIZES = (torch.sym_sum, torch.sym_max, torch.sym_min, torch.sym_int)
"""PyTorch's functions of sizes, which take numbers too."""

VIEWS = frozenset(f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view", "view_copy"))
"""Operators that take a shape, in which one size may be left out."""

BY_INDICES = frozenset(f"aten.{name}" for name in (
    "index.Tensor", "_unsafe_index.Tensor", "index_put.default", "_unsafe_index_put.default"))
"""Operators whose second argument is a list of indices, or None for whole axes."""

FREE_LAYOUT = "tinygrad_free_layout"
"""In the notes of a node, a result that no user sees: its axes may lie in any order."""

FRAME = re.compile(r'File "([^"]*)", line (\d+), in (.*)')
"""of a stack as Python prints it"""
SETTLED = frozenset({"aten._assert_tensor_metadata.default"})
"""Checks of what a graph settles: dtypes, devices and layouts."""


@frozen
class GraphCall:
    """One operator of a program."""

    result: Node
    function: Callable[..., Any]
    dtypes: tuple[DType | None, ...]
    """of each result; none for what is no tensor"""
    promoted: bool
    layout: tuple[tuple[int, ...], int] | None = None
    """the strides and the offset of the first argument, for operators that depend on them"""

    @cached_property
    def origin(self) -> tuple[Sequence[tuple[str, int, str]], str, bool]:
        """Where the operator, or what it is the gradient of, was written: frames (file, line, function), the
        innermost first; the module of the model in whose call that is; and whether it is of a gradient."""
        meta = self.result.meta
        stack = FRAME.findall(meta.get("stack_trace") or "")
        frames = [(file, int(line), function) for file, line, function in reversed(stack)]
        calls = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
        names = [name.split("]", 1)[-1].lstrip(".") for name, _ in calls.values()]  # "L['self'].layers.0"
        return frames, names[-1] if names else "", bool(meta.get("autograd_backward"))

    @property
    def size(self) -> Any:
        """The expression of a size that is the result; None of other results."""
        result = self.result.meta.get("val")
        return expression_of(result) if isinstance(result, torch.SymInt) else None


    def value(self, values: dict[Node, Any], symbols: Values | None) -> Any:
        """The result, of those of the operators before it."""
        if symbols is not None and self.size is not None:
            return size_of(self.size, symbols)
        kind = self.dtypes[0] if self.promoted else None
        args = [value_of(argument, values, kind) for argument in self.result.args]
        named = {name: value_of(argument, values, kind) for name, argument in self.result.kwargs.items()
                 if name not in PLACES_OF_MEMORY}
        if isinstance(self.result.meta.get("val"), torch.SymFloat):
            args = [number_of(argument, dtypes.float64) for argument in args]
        if symbols is not None and str(self.result.target) in VIEWS:
            args[1] = [size_of(expression_of(n), symbols) for n in self.result.meta["val"].shape]
        if self.layout is not None:
            named["layout"] = self.layout
        return with_dtypes(self.function(*args, **named), self.dtypes)


@frozen
class GraphProgram:
    """A graph as steps, with its inputs and results by their nodes."""

    inputs: tuple[Node, ...]
    """of the graph, and the tensors that its module holds"""
    held: tuple[torch.Tensor, ...]
    """the last of the inputs"""
    steps: tuple[GraphCall, ...]
    outputs: tuple[Any, ...]
    is_random: bool
    has_sizes: bool
    """whether sizes vary from call to call: some are inputs, or those of inputs are expressions"""

    def run(self, arguments: Sequence[Any], symbols: Values | None = None) -> list[Any]:
        """The outputs; `arguments` are tensors, and numbers for sizes, in the order of `inputs`. With
        `symbols` sizes are what their expressions are for those.

        Raises SizeError, ValueError or TypeError for what cannot be computed for sizes that vary.
        """
        values: dict[Node, Any] = dict(zip(self.inputs, arguments, strict=True))
        if symbols is not None:
            values |= {node: size_of(expression_of(node.meta["val"]), symbols) for node in self.inputs
                       if isinstance(node.meta.get("val"), torch.SymInt)}
        watcher = observer.active
        try:
            for step in self.steps:
                if watcher is not None:
                    watcher.written_at(*step.origin)
                values[step.result] = step.value(values, symbols)
        finally:
            if watcher is not None:
                watcher.written_at()
        return [values[output] if isinstance(output, Node) else output for output in self.outputs]


FLOAT8 = {torch.float8_e4m3fn: dtypes.fp8e4m3, torch.float8_e5m2: dtypes.fp8e5m2}
"""Dtypes that have another name here."""


def dtype_of(dtype: torch.dtype) -> DType:
    """Our dtype of PyTorch's."""
    return FLOAT8.get(dtype) or to_dtype(str(dtype).removeprefix("torch."))


def value_of(argument: Any, values: dict[Node, Any], kind: DType | None) -> Any:
    """What an argument of a node stands for, its tensors cast to `kind`, and sizes that vary too."""
    if isinstance(argument, Node):
        value = values[argument]
        if kind is None:
            return value
        return value.cast(kind) if isinstance(value, Tensor) else number_of(value, kind)
    if isinstance(argument, (list, tuple)):
        return [value_of(item, values, kind) for item in argument]
    return dtype_of(argument) if isinstance(argument, torch.dtype) else argument


def number_of(value: Any, dtype: DType) -> Any:
    """A size that varies as a tensor, to compute with; anything else as it is."""
    return Tensor.ones((), dtype=dtype, device="CPU") * value if isinstance(value, Size) else value


def with_dtypes(result: Any, dtypes: tuple[DType | None, ...]) -> Any:
    """`result`, a tensor or several, cast to the dtypes that PyTorch gives them."""
    if isinstance(result, Tensor):
        return result if dtypes[0] is None else result.cast(dtypes[0])
    if isinstance(result, (list, tuple)):
        return [with_dtypes(item, (dtype,)) for item, dtype in zip(result, dtypes)]
    return result


def program_of(module: GraphModule) -> GraphProgram:
    """The steps of a graph.

    Raises UnsupportedOperators for those that cannot be computed here.
    """
    missing = unsupported(module)
    if missing:
        raise UnsupportedOperators(missing)
    nodes = list(module.graph.nodes)
    steps = [(node, function_of(node)) for node in nodes
             if node.op == "call_function" and str(node.target) not in SETTLED]
    held = [node for node in nodes if node.op == "get_attr"]
    return GraphProgram(
        inputs=tuple([node for node in nodes if node.op == "placeholder"] + held),
        held=tuple(getattr(module, node.target) for node in held),
        steps=tuple(GraphCall(node, function, result_dtypes(node), str(node.target) in PROMOTED,
                              layout_of(node))
                    for node, function in steps if function is not None),
        outputs=(result,) if isinstance(result := nodes[-1].args[0], Node) else tuple(result),
        is_random=any(str(node.target) in RANDOM for node, _ in steps),
        has_sizes=any(varies(node.meta.get("val")) for node in nodes if node.op == "placeholder"))


def unsupported(module: GraphModule) -> list[str]:
    """The operators of a graph that cannot be computed here, each as often as it is there."""
    return [f"{node.target} of complex numbers" if is_complex(node) else str(node.target)
            for node in module.graph.nodes if node.op == "call_function" and
            node.target is not operator.getitem and not is_supported(node)]


def is_supported(node: Node) -> bool:
    """Whether an operator is in the table, none of its tensors are complex, and no mask says how many items
    it takes."""
    return not is_complex(node) and not is_by_mask(node) and (
        str(node.target) in SETTLED or function_of(node) is not None)


def is_by_mask(node: Node) -> bool:
    """Whether an index takes the items where a mask holds, or writes to them (`masks.py` leaves few)."""
    indices: Any = node.args[1] if str(node.target) in BY_INDICES else ()
    return any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices if index is not None)


def is_complex(node: Node) -> bool:
    return any(value.dtype.is_complex for n in (node, *node.all_input_nodes) for value in tensors_of(n))


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The examples of a node's results, those that are tensors."""
    results = node.meta.get("val")
    listed = results if isinstance(results, (list, tuple)) else (results,)
    return [item for item in listed if isinstance(item, torch.Tensor)]


def varies(value: Any) -> bool:
    """Whether a graph's input is a size, or has sizes, that calls give."""
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return value is not None


def function_of(node: Node) -> Callable[..., Any] | None:
    """What computes a node: from the table, or Python's own function; None where nothing does."""
    name = str(node.target)
    if name in OPERATORS or name in SIZES:
        return OPERATORS.get(name) or SIZES[name]
    target: Any = node.target
    if target is torch.sym_float:
        return lambda size: size
    own = getattr(target, "__module__", None) in ("_operator", "math", "builtins")
    return target if own or target is operator.getitem or target in OF_SIZES else None


def result_dtypes(node: Node) -> tuple[DType | None, ...]:
    results = node.meta.get("val")
    listed = results if isinstance(results, (list, tuple)) else (results,)
    return tuple(dtype_of(item.dtype) if isinstance(item, torch.Tensor) else None for item in listed)


def layout_of(node: Node) -> tuple[tuple[int, ...], int] | None:
    if str(node.target) not in NEED_LAYOUT:
        return None
    source: Any = node.args[0]
    first = source.meta["val"]
    return tuple(int(n) for n in first.stride()), int(first.storage_offset())
