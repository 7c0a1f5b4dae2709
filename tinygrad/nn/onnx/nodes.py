"""Nodes of the tensor graph as operators of the standard: what `export` writes where no method is an
operator."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import Shape, UOp

if TYPE_CHECKING:
    from tinygrad.nn.onnx.export import OnnxWriter

Write: TypeAlias = "Callable[[OnnxWriter, UOp, list[str]], str]"


def _plain(op: str) -> Write:
    return lambda writer, node, names: writer.add(op, names)


WIDER = {dtypes.bool: dtypes.uint8, dtypes.int16: dtypes.int32, dtypes.uint16: dtypes.int32,
         dtypes.uint32: dtypes.int64, dtypes.uint64: dtypes.int64}
"""For types that ONNX Runtime lacks kernels of: those in which it chooses between items. An integer that is
cast to one of its width keeps its bits."""


def _widened(op: str, first: int, *kinds: DType) -> Write:
    """An operator whose operands from the `first` on, if they are of these `kinds`, are cast on the way."""
    def write(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
        if node.dtype not in kinds:
            return writer.add(op, names)
        wide = [writer.cast(name, WIDER[node.dtype]) for name in names[first:]]
        return writer.cast(writer.add(op, [*names[:first], *wide]), node.dtype)
    return write


def _by_kind(of_bools: str, of_numbers: str) -> Write:
    return lambda writer, node, names: writer.add(of_bools if node.src[0].dtype.is_bool else of_numbers,
                                                  names)


def _number(writer: OnnxWriter, node: UOp, value: float) -> str:
    return writer.constant(np.array(value, node.dtype.numpy))


def _less(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    if node.src[0].dtype.is_bool:  # False comes before True
        return writer.add("And", [writer.add("Not", [names[0]]), names[1]])
    return writer.add("Less", names)


def _unequal(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    if _negated(node) is None:
        return writer.add("Not", [writer.add("Equal", names)])
    return writer.add("Equal", names) if len(names) > 1 else writer.add("Not", names)


def _negated(node: UOp) -> UOp | None:
    """What a node negates, as something that is not True."""
    truth = _repeated(node.src[-1])
    return node.src[0] if node.op is Ops.CMPNE and truth.op is Ops.CONST and truth.arg is True else None


def _repeated(node: UOp) -> UOp:
    """The number that a node repeats, if it does."""
    while node.op in (Ops.EXPAND, Ops.RESHAPE):
        (node,) = node.src
    return node


def _truncated(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    negative = writer.add("Less", [names[0], _number(writer, node, 0)])
    return writer.add("Where", [negative, writer.add("Ceil", names), writer.add("Floor", names)])


def _is_zero(writer: OnnxWriter, node: UOp, divisor: str) -> str | None:
    """Where an integer is divided by zero, which gives zero here and is an error in ONNX Runtime; None where
    it cannot be."""
    by = _repeated(node.src[1])
    if by.op is Ops.CAST and by.src[0].dtype.itemsize <= by.dtype.itemsize:
        by = _repeated(by.src[0])
    least = [n.arg for source in by.src if by.op is Ops.MAX and (n := _repeated(source)).op is Ops.CONST]
    if node.dtype is dtypes.index or by.op is Ops.CONST or any(n > 0 for n in least):
        return None
    return writer.add("Equal", [divisor, _number(writer, node, 0)])


def _rest(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    zero = _is_zero(writer, node, names[1])
    if zero is None:
        return writer.add("Mod", names)
    return writer.add("Mod", [names[0], writer.add("Add", [names[1], writer.cast(zero, node.dtype)])])


def _floored(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    number, divisor = names
    zero = _is_zero(writer, node, divisor)
    if zero is not None:
        divisor = writer.add("Add", [divisor, writer.cast(zero, node.dtype)])
    whole = writer.add("Sub", [number, writer.add("Mod", [number, divisor])])
    made = writer.add("Div", [whole, divisor])
    if zero is None:
        return made
    return writer.add("Mul", [made, writer.cast(writer.add("Not", [zero]), node.dtype)])


def _cast(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    return writer.cast(names[0], node.dtype)


def _bits_as(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    return writer.add("BitCast", names, to=writer.onnx.helper.np_dtype_to_tensor_dtype(node.dtype.numpy))


REDUCED = {Ops.ADD: {dtypes.int32, dtypes.int64}, Ops.MUL: {dtypes.int32, dtypes.int64},
           Ops.MAX: {dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64, dtypes.uint64}}
"""The integers that ONNX Runtime reduces; uint64, whose largest int64 does not hold, as the standard does."""


def _reduced(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    op, axes = node.arg
    if node.dtype.is_bool:
        number = writer.add("Cast", names, to=writer.onnx.TensorProto.UINT8)
        most = writer.add("ReduceMax", [number, writer.ints(axes)], keepdims=1)
        return writer.add("Cast", [most], to=writer.onnx.TensorProto.BOOL)
    name = {Ops.ADD: "ReduceSum", Ops.MAX: "ReduceMax", Ops.MUL: "ReduceProd"}[op]
    if node.dtype.is_float or node.dtype in REDUCED[op]:
        return writer.add(name, [names[0], writer.ints(axes)], keepdims=1)
    wide = writer.cast(names[0], dtypes.int64)
    return writer.cast(writer.add(name, [wide, writer.ints(axes)], keepdims=1), node.dtype)


_largest_number = _widened("Max", 0, dtypes.int16, dtypes.uint16)


def _largest(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    return writer.add("Or", names) if node.dtype.is_bool else _largest_number(writer, node, names)


def _padded(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    pads = [before for before, _ in node.arg] + [after for _, after in node.arg]
    if node.dtype not in (dtypes.bool, dtypes.int16, dtypes.uint16):
        return writer.add("Pad", [names[0], writer.ints(pads), _number(writer, node, 0)])
    padded = writer.add("Pad", [writer.cast(names[0], WIDER[node.dtype]), writer.ints(pads)])
    return writer.cast(padded, node.dtype)


def _cropped(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    if len(node.src) > 1:
        raise ValueError("a crop that begins where a Variable says has no operator of the standard")
    axes = [i for i, ((start, end), n) in enumerate(zip(node.arg, node.src[0].shape, strict=True))
            if (start, end) != (0, n)]
    starts, ends = [node.arg[i][0] for i in axes], [node.arg[i][1] for i in axes]
    return writer.add("Slice", [names[0], writer.ints(starts), writer.ints(ends), writer.ints(axes)])


def _stepped(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    axes = [i for i, step in enumerate(node.arg) if step != 1]
    steps = [node.arg[i] for i in axes]
    far = np.iinfo(np.int64).max
    starts, ends = [0 if s > 0 else far for s in steps], [far if s > 0 else -far for s in steps]
    return writer.add("Slice", [names[0], *map(writer.ints, (starts, ends, axes, steps))])


def _reshaped(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    if _before_reshapes(node).shape == node.shape:
        return names[0]
    has_none = any(isinstance(n, int) and n == 0 for n in node.shape)
    zero: dict[str, Any] = {"allowzero": 1} if has_none else {}  # which is else the operand's axis
    return writer.add("Reshape", [names[0], writer.ints(node.shape)], **zero)


PASSED_ON = frozenset({Ops.DETACH, Ops.CUSTOM_GRADIENT, Ops.LIVE_OUT})
"""Nodes with the value of their first source."""


def _before_reshapes(node: UOp) -> UOp:
    while node.op is Ops.RESHAPE or node.op in PASSED_ON:
        node = node.src[0]
    return node


def _permuted(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    _, order = _before_permutes(node)
    return names[0] if order == sorted(order) else writer.add("Transpose", names, perm=order)


def _before_permutes(node: UOp) -> tuple[UOp, list[int]]:
    """(what lies below permutes, and reshapes that change nothing, the order of its axes)."""
    order = list(range(len(node.shape)))
    while True:
        base = _before_reshapes(node)
        if base.shape == node.shape:
            node = base
        if node.op is not Ops.PERMUTE:
            return node, order
        order = [node.arg[i] for i in order]
        (node,) = node.src


def _shifted_left(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    """The standard shifts unsigned integers: others are multiplied with a power of two."""
    if node.dtype.is_unsigned:
        return writer.add("BitShift", names, direction="LEFT")
    one = writer.constant(np.array(1, np.uint64))
    power = writer.add("BitShift", [one, writer.cast(names[1], dtypes.uint64)], direction="LEFT")
    return writer.add("Mul", [names[0], writer.cast(power, node.dtype)])


def _shifted_right(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    """Negative numbers bring in ones: it is their complement that is shifted."""
    if node.dtype.is_unsigned:
        return writer.add("BitShift", names, direction="RIGHT")
    number = writer.cast(names[0], dtypes.int64)
    is_negative = writer.add("Less", [number, writer.constant(np.array(0, np.int64))])
    flipped = writer.add("Neg", [writer.cast(is_negative, dtypes.int64)])
    bits = [writer.cast(writer.add("BitwiseXor", [number, flipped]), dtypes.uint64),
            writer.cast(names[1], dtypes.uint64)]
    shifted = writer.cast(writer.add("BitShift", bits, direction="RIGHT"), dtypes.int64)
    return writer.cast(writer.add("BitwiseXor", [shifted, flipped]), node.dtype)


def _same(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    return names[0]


def _negative(writer: OnnxWriter, node: UOp, names: list[str]) -> str:
    """The standard negates what has a sign."""
    if not node.dtype.is_unsigned:
        return writer.add("Neg", names)
    return writer.cast(writer.add("Neg", [writer.cast(names[0], dtypes.int64)]), node.dtype)


NODES: dict[Ops, Write] = {
    Ops.NEG: _negative,
    Ops.SQRT: _plain("Sqrt"),
    Ops.EXP2: lambda writer, node, names: writer.add("Pow", [_number(writer, node, 2.0), names[0]]),
    Ops.LOG2: lambda writer, node, names: writer.add(
        "Mul", [writer.add("Log", names), _number(writer, node, 1 / math.log(2))]),
    Ops.SIN: _plain("Sin"),
    Ops.TRUNC: _truncated,
    Ops.CAST: _cast,
    Ops.BITCAST: _bits_as,
    Ops.ADD: _by_kind("Or", "Add"),
    Ops.SUB: _plain("Sub"),
    Ops.MUL: _by_kind("And", "Mul"),
    Ops.FDIV: _plain("Div"),
    Ops.IDIV: _floored,
    Ops.MOD: _rest,
    Ops.MAX: _largest,
    Ops.CMPLT: _less,
    Ops.CMPNE: _unequal,
    Ops.AND: _by_kind("And", "BitwiseAnd"),
    Ops.OR: _by_kind("Or", "BitwiseOr"),
    Ops.XOR: _by_kind("Xor", "BitwiseXor"),
    Ops.SHL: _shifted_left,
    Ops.SHR: _shifted_right,
    Ops.WHERE: _widened("Where", 1, dtypes.bool, dtypes.int16, dtypes.uint16, dtypes.uint64),
    Ops.MULACC: lambda writer, node, names: writer.add("Add", [writer.add("Mul", names[:2]), names[2]]),
    Ops.REDUCE: _reduced,
    Ops.RESHAPE: _reshaped,
    Ops.EXPAND: lambda writer, node, names: writer.add("Expand", [names[0], writer.ints(node.shape)]),
    Ops.PERMUTE: _permuted,
    Ops.PAD: _padded,
    Ops.SHRINK: _cropped,
    Ops.STRIDE: _stepped,
    Ops.CONTIGUOUS: _same,
    Ops.COPY: _same,
    **dict.fromkeys(PASSED_ON, _same),
}
"""By operation; Variables are none of the standard's."""


def operands_of(node: UOp) -> tuple[UOp, ...]:
    """What a node is made of, below movement that is written as one operator with it, or that the standard's
    operators do themselves."""
    operands = node.src
    if node.op is Ops.RESHAPE:
        return (_before_reshapes(node),)
    if node.op is Ops.PERMUTE:
        return (_before_permutes(node)[0],)
    negated = _negated(node)
    if negated is not None:
        is_equal = negated.op is Ops.CMPNE and _negated(negated) is None
        return operands_of(negated) if is_equal else (negated,)
    if node.op not in Family.ELEMENTWISE or len(operands) < 2:
        return operands
    for i, operand in enumerate(node.src):
        for short in _before_repeating(operand):
            tried = (*operands[:i], short, *operands[i + 1:])
            if _broadcast([x.shape for x in tried]) == node.shape:
                operands = tried
                break
    return operands


def _before_repeating(node: UOp) -> Iterator[UOp]:
    """What a node repeats, without axes in front that it adds for that, if that is all that it does."""
    if node.op is Ops.EXPAND:
        base = _before_reshapes(node.src[0])
        if node.src[0].shape == (1,) * (len(node.shape) - len(base.shape)) + base.shape:
            yield base
        yield node.src[0]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """What operators of the standard make of operands of these shapes."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
