"""Elementwise operations in C: arithmetic, comparisons, division, shifts, casts.

In: operands as C text, with their dtypes. Out: the name of the result, its statements appended to
`CArithmetic.lines`. What C leaves undefined, and what it lacks, is a call of one of `c_functions.py`.

A vector of bools is a mask of signed integers, as wide as the lanes that were compared to make it: choosing
between values of that width takes no conversion. `widths` remembers how wide. `c.py` writes the program
around it.
"""
from __future__ import annotations

import math

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer import same_in_every_lane
from tinygrad.renderer.c_functions import Dialect, Functions, signed_of
from tinygrad.renderer.machine import NARROW_FLOATS

_OPERATORS: dict[str, dict[Ops, str]] = {
    "float": {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.NEG: "-"},
    "int": {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.NEG: "-",
            Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^"},
    "bool": {Ops.ADD: "|", Ops.MAX: "|", Ops.MUL: "&", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^"},
}
"""The operations that are one operator, by the kind of their operands."""
_OVERFLOWING = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.MULACC)
_WRAPPING = {dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64, dtypes.uint16: dtypes.uint32,
             dtypes.int16: dtypes.uint32, dtypes.int8: dtypes.uint32}
"""The types in which integers wrap that do not by themselves. An int has room for those of shorter ones, but
NVRTC 13 took -x of the least int16, as an int32, for 32768."""


class CArithmetic:
    """Writes statements on values into `lines`, and remembers which types and functions they use."""

    def __init__(self, dialect: Dialect) -> None:
        self.functions = Functions(dialect)
        self.widths: dict[str, int] = {}
        """bytes of a lane, by the name of a mask; those without a name are bytes"""
        self.lines: list[str] = []
        self.depth = 1
        self.number = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, hint: str) -> str:
        self.number += 1
        return f"{hint}{self.number}"

    def emit(self, hint: str, dtype: DType, expression: str) -> str:
        """A constant of this type; returns its name."""
        name = self.fresh(hint)
        self.line(f"const {self.functions.type(dtype)} {name} = {expression};")
        return name

    def emit_mask(self, count: int, width: int, expression: str) -> str:
        """The outcome of a comparison: a bool, or a mask whose lanes have so many bytes."""
        if count == 1:
            return self.emit("c", dtypes.bool, expression)
        name = self.emit("c", signed_of(width).vec(count), expression)
        self.widths[name] = width
        return name

    def mask(self, text: str, count: int, width: int) -> str:
        """A bool operand as a mask of this width."""
        if count == 1 or self.widths.get(text, 1) == width:
            return text
        return f"__builtin_convertvector({text}, {self.functions.type(signed_of(width).vec(count))})"

    # --- operations ------------------------------------------------------------------------------------

    def elementwise(self, node: UOp, operands: list[str]) -> str:
        """The value of an elementwise node; an empty text where C has no words for it."""
        dtype = node.src[-1].dtype
        if node.op is Ops.WHERE:
            return self.where(dtype, *operands)
        if node.op is Ops.CAST:
            if node.src[0].op is Ops.CONST and dtype.is_int and node.dtype.is_int and dtype.count == 1:
                return f"({self.functions.constant(node.dtype, node.dtype.as_const(node.src[0].arg))})"
            return self.cast(operands[0], dtype, node.dtype)
        if node.op is Ops.BITCAST:
            return self.bitcast(operands[0], dtype, node.dtype)
        if node.op in Family.COMPARE:
            return self.compare(node.op, dtype, *operands)
        if node.op is Ops.MAX and dtype.scalar in (dtypes.float32, dtypes.float64):
            return self.float_maximum(node, *operands)
        if node.op in (Ops.IDIV, Ops.MOD) and dtype.is_int:
            return self.divide(node, *operands)
        if node.op in (Ops.SHL, Ops.SHR) and dtype.is_int:
            return self.shift(node, *operands)
        return self.arithmetic(node.op, dtype, *operands)

    def where(self, dtype: DType, condition: str, yes: str, no: str) -> str:
        count = dtype.count
        if count == 1:
            return self.emit("v", dtype, f"{condition} ? {yes} : {no}")
        if dtype.is_bool:
            width = self.common_width(condition, yes, no)
            c, a, b = (self.mask(x, count, width) for x in (condition, yes, no))
            return self.emit_mask(count, width, f"({c} & {a}) | (~{c} & {b})")
        mask = self.mask(condition, count, dtype.lane_size)
        return self.emit("v", dtype, f"{self.functions.select(dtype)}({mask}, {yes}, {no})")

    def common_width(self, *masks: str) -> int:
        return max(self.widths.get(m, 1) for m in masks)

    def arithmetic(self, op: Ops, dtype: DType, *operands: str) -> str:
        """The operations that follow from operands and dtype alone; an empty text for others."""
        count = dtype.count
        if dtype.scalar in NARROW_FLOATS:
            return ""
        operator = _OPERATORS["float" if dtype.is_float else "bool" if dtype.is_bool else "int"].get(op)
        if dtype.is_bool:
            if operator is None:
                return ""
            width = self.common_width(*operands)
            both = f" {operator} ".join(self.mask(x, count, width) for x in operands)
            return self.emit_mask(count, width, both)
        if not dtype.is_float and op in _OVERFLOWING:
            return self.wrapping(op, dtype, operands)
        if operator is not None:
            return self.emit("v", dtype, _expression(operator, operands))
        function = self.function_for(op, dtype)
        return function and self.emit("v", dtype, f"{function}({', '.join(operands)})")

    def wrapping(self, op: Ops, dtype: DType, operands: tuple[str, ...]) -> str:
        """Sums and products of integers, whose lowest bits stay where they overflow. C wraps those without a
        sign only, and multiplies those of 16 bits as signed ones of 32. A counter never overflows."""
        unsigned = None if self.functions.dialect.wraps else _WRAPPING.get(dtype.scalar)
        if unsigned is not None:
            kind = self.functions.type(unsigned.vec(dtype.count))
            operands = tuple(f"({kind}){x}" for x in operands)
        if op is Ops.MULACC:
            text = f"{operands[0]} * {operands[1]} + {operands[2]}"
        else:
            text = _expression(_OPERATORS["int"][op], operands)
        return self.emit("v", dtype, text if unsigned is None else f"({self.functions.type(dtype)})({text})")

    def function_for(self, op: Ops, dtype: DType) -> str:
        """The small function that does `op`; empty if there is none."""
        if op is Ops.MAX:
            return self.functions.maximum(dtype)
        if not dtype.is_float:
            return ""
        if op is Ops.MULACC:
            return self.functions.multiply_add(dtype)
        if op in (Ops.SQRT, Ops.TRUNC):
            return self.functions.builtin(op.name.lower(), dtype, 1)
        return ""

    def float_maximum(self, node: UOp, a: str, b: str) -> str:
        """With a number on one side, one comparison does: where it fails, the other side is larger or NaN."""
        for number, other, source in ((a, b, node.src[0]), (b, a, node.src[1])):
            if source.op is Ops.CONST and isinstance(source.arg, float) and not math.isnan(source.arg):
                chosen = self.functions.choose(node.dtype, f"{number} > {other}", number, other)
                return self.emit("v", node.dtype, chosen)
        return self.arithmetic(Ops.MAX, node.dtype, a, b)

    def compare(self, op: Ops, dtype: DType, a: str, b: str) -> str:
        count = dtype.count
        if dtype.is_bool and count > 1:
            width = self.common_width(a, b)
            a, b = self.mask(a, count, width), self.mask(b, count, width)
            return self.emit_mask(count, width, f"~{a} & {b}" if op is Ops.CMPLT else f"{a} ^ {b}")
        if dtype.is_bool and op is Ops.CMPNE and b == self.functions.constant(dtype, True):
            return self.emit_mask(count, dtype.lane_size, f"!{a}")
        return self.emit_mask(count, dtype.lane_size, f"{a} {'<' if op is Ops.CMPLT else '!='} {b}")

    def divide(self, node: UOp, a: str, b: str) -> str:
        """Rounded down. A shift or mask for powers of two, one operator where nothing is negative."""
        dtype, quotient = node.dtype, node.op is Ops.IDIV
        divisor = same_in_every_lane(node.src[1])
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            operator, number = (">>", divisor.bit_length() - 1) if quotient else ("&", divisor - 1)
            return self.emit("v", dtype, f"{a} {operator} {self.functions.constant(dtype, number)}")
        positive = divisor is not None and divisor > 0
        not_negative = dtype.is_unsigned or (node.dtype is dtypes.index and node.src[0].bounds[0] >= 0)
        if positive and not_negative:
            return self.emit("v", dtype, f"{a} {'/' if quotient else '%'} {b}")
        return self.emit("v", dtype, f"{self.functions.divide(dtype, quotient)}({a}, {b})")

    def shift(self, node: UOp, a: str, b: str) -> str:
        dtype, left = node.dtype, node.op is Ops.SHL
        amount = same_in_every_lane(node.src[1])
        if amount is not None and 0 <= amount < dtype.bits:
            return self.emit("v", dtype, f"{a} {'<<' if left else '>>'} {b}")
        return self.emit("v", dtype, f"{self.functions.shift(dtype, left)}({a}, {b})")

    # --- casts -----------------------------------------------------------------------------------------

    def cast(self, value: str, source: DType, target: DType) -> str:
        """Floats to integers round toward zero; what does not fit becomes the nearest that does, NaN 0."""
        if source is target:
            return value
        functions, count = self.functions, source.count
        if target.is_bool:
            zero = functions.constant(source, source.scalar.as_const(0))
            return self.compare(Ops.CMPNE, source, value, zero)
        if NARROW_FLOATS & {source.scalar, target.scalar}:
            is_native = {source.scalar, target.scalar} == {dtypes.float16, dtypes.float32} and \
                functions.dialect.has_float16
            return self.emit("v", target, f"{functions.convert_half(source, target)}({value})") \
                if is_native else ""
        if source.is_float and not target.is_float:
            return self.emit("v", target, f"{functions.to_integer(source, target)}({value})")
        if count == 1:
            return self.emit("v", target, f"({functions.type(target)}){value}")
        if source.is_bool:
            mask = self.mask(value, count, target.lane_size)
            if target.is_float:
                return self.emit("v", target, f"__builtin_convertvector(-{mask}, {functions.type(target)})")
            return self.emit("v", target, f"({functions.type(target)})-{mask}")
        return self.emit("v", target, f"__builtin_convertvector({value}, {functions.type(target)})")

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        if source.is_bool or target.is_bool:
            return self.cast(value, source, target)
        kind = self.functions.type(target)
        if kind == self.functions.type(source):
            return value
        if source.count > 1:
            return self.emit("v", target, f"({kind}){value}")
        return self.emit("v", target, self.functions.bits(value, source, target))


def _expression(operator: str, operands: tuple[str, ...]) -> str:
    return f"{operator}{operands[0]}" if len(operands) == 1 else f"{operands[0]} {operator} {operands[1]}"
