"""Named axes whose bounds are known: sizes that are bound Variables, so that one trace serves all of them.

`DynamicAxes` gives inputs these sizes, in memory laid out for the largest. From there on a shape is integers
and expressions of Variables (`graph/sizes.py`); what models compute of them are `Sizes` (`values.py`), on the
host. What leaves the graph has the numbers of its call again (`with_numbers`).
"""
from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinygrad.device import Buffer
from tinygrad.graph.sizes import as_size, is_symbolic, largest_shape, value_of
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.nn.onnx.model import OnnxError, TypeOf
from tinygrad.nn.onnx.values import Value, tensor_type
from tinygrad.tensor import Tensor

ARITHMETIC: dict[type[ast.operator], Any] = {ast.Add: operator.add, ast.Sub: operator.sub,
                                             ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


class DynamicAxes:
    """The bounds of named axes: {"batch": (1, 64)}.

    An axis whose name is arithmetic of such names ("past + 1", as exporters write it) has its bounds from
    them. Raises OnnxError for names that no input has and for bounds that are none, TypeError for what is no
    pair of them.
    """

    def __init__(self, bounds: Mapping[str, tuple[int, int]], inputs: Mapping[str, TypeOf]) -> None:
        if not isinstance(bounds, Mapping) or not all(
                isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in bounds.values()):
            raise TypeError(f"sizes are bounds by names of axes, as {{'batch': (1, 64)}}, got {bounds!r}")
        named = {n for said in inputs.values() for n in said.shape or () if isinstance(n, str)}
        unknown = [name for name in bounds if name not in named]
        if unknown:
            raise OnnxError(f"no input has an axis {', '.join(map(repr, unknown))}; named are "
                            f"{', '.join(map(repr, sorted(named))) or 'none'}")
        for name, (low, high) in bounds.items():
            if not 0 <= low <= high:
                raise OnnxError(f"axis {name!r} takes bounds from 0 on, the lower one first, got {low} and "
                                f"{high}")
        self.bounds = {name: (int(low), int(high)) for name, (low, high) in bounds.items()}
        self._trees = {name: tree for name in named if (tree := _arithmetic(name, self.bounds)) is not None}

    def sizes(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """The size of each axis that has bounds, for the numbers of a call, by name."""
        for name, (low, high) in self.bounds.items():
            if name in numbers and not low <= numbers[name] <= high:
                raise OnnxError(f"axis {name!r} is from {low} to {high}, got {numbers[name]}")
        variables = {name: as_size(UOp.variable(_variable_name(i, name), *bounds, numbers[name]))
                     for i, (name, bounds) in enumerate(self.bounds.items()) if name in numbers}
        found = dict(variables)
        for name, tree in self._trees.items():
            size = _evaluated(tree, variables) if name in numbers else None
            if size is not None and value_of(size) == numbers[name]:
                found[name] = size
        return found

    def with_sizes(self, given: Mapping[str, Value], inputs: Mapping[str, TypeOf], numbers: Mapping[str, int],
                   device: str) -> dict[str, Value]:
        """Inputs in memory for the largest sizes, of shapes that say the sizes of this call."""
        sizes = self.sizes(numbers)
        made = dict(given)
        for name, value in given.items():
            said = inputs[name].shape or ()
            shape = tuple(sizes.get(n, size) if isinstance(n, str) else size
                          for n, size in zip(said, getattr(value, "shape", ()), strict=False))
            if isinstance(value, Tensor) and is_symbolic(shape):
                made[name] = laid_out(value.numpy(), shape, device)
        return made


def _variable_name(number: int, name: str) -> str:
    """A name for kernels, different for different axes."""
    return f"axis{number}_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def _arithmetic(name: str, bounds: Mapping[str, Any]) -> ast.expr | None:
    """The name of an axis as arithmetic of names that have bounds; None where it is something else."""
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    is_known = all(n.id in bounds if isinstance(n, ast.Name) else
                   type(n.value) is int if isinstance(n, ast.Constant) else
                   isinstance(n, (ast.BinOp, ast.Load, *ARITHMETIC)) for n in ast.walk(tree))
    return tree if is_known and isinstance(tree, ast.BinOp) else None


def _evaluated(tree: ast.expr, sizes: Mapping[str, int]) -> int | None:
    """What arithmetic gives; None where a size is not among `sizes`."""
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return sizes.get(tree.id)
    assert isinstance(tree, ast.BinOp)
    left, right = _evaluated(tree.left, sizes), _evaluated(tree.right, sizes)
    if left is None or right is None:
        return None
    found: int = ARITHMETIC[type(tree.op)](left, right)
    return found


def laid_out(array: np.ndarray[Any, Any], shape: tuple[int, ...], device: str) -> Tensor:
    """The items of `array` as a tensor of `shape`, whose sizes are Variables. No kernel does this: one would
    be another one for each size."""
    most = largest_shape(shape)
    buffer = Buffer(device, prod(most), tensor_type(array.dtype)).allocate()
    host = buffer.as_bytes()
    held = np.empty(most, array.dtype) if host is None else \
        np.frombuffer(host, array.dtype, buffer.size).reshape(most)
    held[tuple(slice(n) for n in array.shape)] = array
    if host is None:
        buffer.copyin(held.reshape(-1).view(np.uint8).data)
    memory = UOp.new_buffer(device, buffer.size, buffer.dtype)
    memory.set_buffer(buffer)
    return Tensor.of(memory.reshape(most)).shrink(tuple((0, n) for n in shape))


def with_numbers(value: Value) -> Value:
    """A tensor of the numbers that its sizes are bound to."""
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    if not isinstance(value, Tensor) or not is_symbolic(value.shape):
        return value
    return value.shrink(tuple((0, value_of(n)) for n in value.shape))
