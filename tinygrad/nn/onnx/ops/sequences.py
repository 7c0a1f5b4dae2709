"""Sequences, which are lists of values, and optional values, which may be None."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad.nn.onnx.evaluate import Body
from tinygrad.nn.onnx.ops.shapes import concatenated, moves
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Array, Items, Value


@op
def SequenceConstruct(*inputs: Items) -> list[Value]:
    return list(inputs)


@op
def SequenceEmpty(*, dtype: int = 1) -> list[Value]:
    return []


@op
def SequenceLength(input_sequence: Value) -> Value:
    return np.array(len(input_sequence), np.int64)


def _place(position: int, items: list[Value], behind: int = 0) -> int:
    """Where a position is that may be counted from the end; `behind` the last item there are so many more."""
    count = len(items)
    if not -count <= position < count + behind:
        raise IndexError(f"position {position} is out of range of a sequence of {count} items")
    return position % count if position < 0 else position


@op
def SequenceAt(input_sequence: Value, position: int) -> Value:
    return input_sequence[_place(position, input_sequence)]


@op
def SequenceInsert(input_sequence: Value, tensor: Items, position: int | None = None) -> list[Value]:
    at = len(input_sequence) if position is None else _place(position, input_sequence, 1)
    return [*input_sequence[:at], tensor, *input_sequence[at:]]


@op
def SequenceErase(input_sequence: Value, position: int | None = None) -> list[Value]:
    at = _place(-1 if position is None else position, input_sequence)
    return [*input_sequence[:at], *input_sequence[at + 1:]]


@op
def SequenceMap(input_sequence: Value, *additional_inputs: Value, body: Body) -> tuple[Any, ...]:
    """`body` of each item, and of the items at the same place in the other inputs that are sequences."""
    rows = [body(x, *(other[i] if isinstance(other, list) else other for other in additional_inputs))
            for i, x in enumerate(input_sequence)]
    return tuple(list(column) for column in zip(*rows, strict=True)) or ([],) * len(body.graph.outputs)


@op
def SplitToSequence(input: Items, split: Array | None = None, *, axis: int = 0,
                    keepdims: int = 1) -> list[Value]:
    """Parts of the sizes that `split` says; where it is one number, all of that size and a shorter last
    one."""
    total = input.shape[axis]
    if split is None or split.ndim == 0:
        size = 1 if split is None else int(split)
        if size < 1:
            raise ValueError(f"split is >= 1 where it is one number, got {size}")
        sizes = [min(size, total - start) for start in range(0, total, size)]
    else:
        sizes = [int(n) for n in split]
    parts = moves(lambda x: tuple(x.split(sizes, axis)))(input)
    if split is None and not keepdims:
        return [moves(lambda x: x.squeeze(axis))(part) for part in parts]
    return list(parts)


@op
def ConcatFromSequence(input_sequence: Value, *, axis: int, new_axis: int = 0) -> Value:
    if not input_sequence:
        raise ValueError("takes a sequence of one item at least, got none")
    parts = [moves(lambda x: x.unsqueeze(axis))(x) for x in input_sequence] if new_axis else input_sequence
    return concatenated(parts, axis)


# --- optional values ----------------------------------------------------------------------------------------


@op
def Optional(input: Value = None, *, type: Any = None) -> Value:
    return input


@op
def OptionalHasElement(input: Value = None) -> Value:
    return np.array(input is not None)


@op
def OptionalGetElement(input: Value) -> Value:
    if input is None:
        raise ValueError("the optional value is not there")
    return input


