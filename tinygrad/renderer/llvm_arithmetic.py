"""Elementwise operations as LLVM instructions: arithmetic, comparisons, division, shifts, casts.

In: operands as LLVM text, with their dtypes. Out: the name of the result, its instructions appended to
`LLVMArithmetic.lines`. Every operation is rounded once and means for scalars what it means for vectors; what
LLVM leaves undefined is a call of one of `llvm_functions.py`. `llvm.py` writes the program around it.
"""
from __future__ import annotations

import math
from functools import cache

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer import llvm_functions as functions
from tinygrad.renderer import same_in_every_lane
from tinygrad.renderer.called_function import CalledFunction
from tinygrad.renderer.llvm_functions import (
    HelperFunction,
    constant,
    mangled,
    splat,
    value_type,
    vector_type,
)
from tinygrad.renderer.machine import NARROW_FLOATS

YMM_BYTES = 32
"""Of a vector register of AVX2."""
KEEPS_REGISTERS = "preserve_allcc "
"""How a function is called that leaves the registers of its caller as they are. That may have a tile of
accumulators in them: to have room for a call after them, LLVM kept one of twelve in memory all through their
products, which took 1.3 times as long."""
_BITWISE = {Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor"}
_INSTRUCTIONS: dict[str, dict[Ops, str]] = {
    "float": {Ops.ADD: "fadd", Ops.SUB: "fsub", Ops.MUL: "fmul", Ops.FDIV: "fdiv", Ops.NEG: "fneg"},
    "int": {Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", **_BITWISE},
    "bool": {Ops.ADD: "or", Ops.MAX: "or", Ops.MUL: "and", **_BITWISE},
}
"""The operations that are one instruction, by the kind of their operands."""
_KEEPS_NOT_NEGATIVE = frozenset({Ops.VECTORIZE, Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MULACC})


class LLVMArithmetic:
    """Writes instructions on values into `lines`, and remembers which functions they call."""

    def __init__(self, has_ymm: bool = False) -> None:
        self.has_ymm = has_ymm
        self.lines: list[str] = []
        self.functions: dict[str, HelperFunction] = {}
        self.number = 0
        """of the next value"""
        self.known_not_negative: dict[UOp, bool] = {}

    def emit(self, hint: str, text: str) -> str:
        """An instruction; returns the name of its value."""
        name = f"%{hint}{self.number}"
        self.number += 1
        self.lines.append(f"  {name} = {text}")
        return name

    def intrinsic(self, hint: str, name: str, result: str, arguments: str, flags: str = "") -> str:
        """A call of LLVM's own function `name` (with its types); arguments come with their types."""
        return self.emit(hint, f"call {flags}{result} @llvm.{name}({arguments})")

    def call(self, hint: str, function: HelperFunction, argument_type: str, *arguments: str) -> str:
        """A call of one of `llvm_functions`."""
        self.functions[function.name] = function
        given = ", ".join(f"{argument_type} {a}" for a in arguments)
        return self.emit(hint, f"call {function.convention}{function.result} @{function.name}({given})")

    def call_function(self, function: CalledFunction, argument: str) -> str:
        """A call of a function of the program, with what it calls itself."""
        made, helpers = written_function(function, self.has_ymm)
        self.functions.update(helpers)
        return self.call("v", made, made.result, argument)

    # --- operations ------------------------------------------------------------------------------------

    def elementwise(self, node: UOp, operands: list[str]) -> str:
        """The value of an elementwise node; an empty text where LLVM has no instruction for it."""
        dtype = node.src[-1].dtype
        if node.op is Ops.WHERE:
            kind = value_type(dtype)
            condition, yes, no = operands
            flags = f"{value_type(node.src[0].dtype)} {condition}"
            return self.emit("v", f"select {flags}, {kind} {yes}, {kind} {no}")
        if node.op is Ops.CAST:
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

    def arithmetic(self, op: Ops, dtype: DType, *operands: str) -> str:
        """The operations that follow from operands and dtype alone; an empty text for others."""
        if dtype.scalar in NARROW_FLOATS:
            return ""
        kind = value_type(dtype)
        table = _INSTRUCTIONS["float" if dtype.is_float else "bool" if dtype.is_bool else "int"]
        if op in table:
            return self.emit("v", f"{table[op]} {kind} {', '.join(operands)}")
        if dtype.is_bool:
            return ""
        if op is Ops.MULACC:
            a, b, c = operands
            if dtype.is_float:
                factors = f"{kind} {a}, {kind} {b}"
                return self.intrinsic("v", f"fma.{mangled(kind)}", kind, f"{factors}, {kind} {c}")
            return self.emit("v", f"add {kind} {self.emit('v', f'mul {kind} {a}, {b}')}, {c}")
        if dtype.is_float:
            return self.float_function(op, dtype, *operands)
        if op is Ops.NEG:
            return self.emit("v", f"sub {kind} {splat(kind, 0)}, {operands[0]}")
        if op is Ops.MAX:
            name = "umax" if dtype.is_unsigned else "smax"
            both = ", ".join(f"{kind} {x}" for x in operands)
            return self.intrinsic("v", f"{name}.{mangled(kind)}", kind, both)
        return ""

    def float_function(self, op: Ops, dtype: DType, *operands: str) -> str:
        kind = value_type(dtype)
        if op in (Ops.SQRT, Ops.TRUNC):
            return self.intrinsic("v", f"{op.name.lower()}.{mangled(kind)}", kind, f"{kind} {operands[0]}")
        if op is Ops.MAX:
            both = ", ".join(f"{kind} {x}" for x in operands)  # NaN where either is; whichever of two zeros
            return self.intrinsic("v", f"maximum.{mangled(kind)}", kind, both, flags="nsz ")
        if op is Ops.LDEXP:
            return self.call("v", functions.scalef(dtype.bits, dtype.count), kind, *operands)
        return ""

    def float_maximum(self, node: UOp, a: str, b: str) -> str:
        """With a number on one side, one comparison does: where it fails, the other side is larger or NaN."""
        kind = value_type(node.dtype)
        for number, other, source in ((a, b, node.src[0]), (b, a, node.src[1])):
            if source.op is Ops.CONST and isinstance(source.arg, float) and not math.isnan(source.arg):
                larger = self.emit("larger", f"fcmp ogt {kind} {number}, {other}")
                flags = vector_type("i1", node.dtype.count)
                return self.emit("v", f"select {flags} {larger}, {kind} {number}, {kind} {other}")
        return self.arithmetic(Ops.MAX, node.dtype, a, b)

    def compare(self, op: Ops, dtype: DType, a: str, b: str) -> str:
        if dtype.is_float:
            relation = "fcmp olt" if op is Ops.CMPLT else "fcmp une"
        elif op is Ops.CMPNE:
            relation = "icmp ne"
        else:
            relation = "icmp slt" if dtype.kind == "int" else "icmp ult"
        return self.emit("c", f"{relation} {value_type(dtype)} {a}, {b}")

    def divide(self, node: UOp, a: str, b: str) -> str:
        """Rounded down. A shift or mask for powers of two, one instruction where nothing is negative."""
        dtype, kind = node.dtype, value_type(node.dtype)
        quotient = node.op is Ops.IDIV
        divisor = same_in_every_lane(node.src[1])
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            if not quotient:
                return self.emit("v", f"and {kind} {a}, {splat(kind, divisor - 1)}")
            shift = "lshr" if dtype.is_unsigned else "ashr"
            return self.emit("v", f"{shift} {kind} {a}, {splat(kind, divisor.bit_length() - 1)}")
        positive = divisor is not None and divisor > 0
        if positive and (dtype.is_unsigned or self.not_negative(node.src[0])):
            return self.emit("v", f"{'udiv' if quotient else 'urem'} {kind} {a}, {b}")
        if dtype.is_unsigned or (self.not_negative(node.src[0]) and self.not_negative(node.src[1])):
            make = functions.unsigned_division if quotient else functions.unsigned_remainder
        else:
            make = functions.floor_division if quotient else functions.floor_remainder
        return self.call("v", make(dtype.bits, dtype.count), kind, a, b)

    def not_negative(self, node: UOp) -> bool:
        """True if an index can be seen to be at least 0 in every lane."""
        known = self.known_not_negative.get(node)
        if known is None:
            if node.op is Ops.CONST:
                known = all(x >= 0 for x in (node.arg if isinstance(node.arg, tuple) else (node.arg,)))
            elif node.dtype is dtypes.index:
                known = node.bounds[0] >= 0
            elif node.dtype.scalar is dtypes.index and node.op in _KEEPS_NOT_NEGATIVE:
                known = all(self.not_negative(s) for s in node.src)
            else:
                known = False
            self.known_not_negative[node] = known
        return known

    def shift(self, node: UOp, a: str, b: str) -> str:
        dtype, kind = node.dtype, value_type(node.dtype)
        amount = same_in_every_lane(node.src[1])
        if amount is not None and 0 <= amount < dtype.bits:
            name = "shl" if node.op is Ops.SHL else "lshr" if dtype.is_unsigned else "ashr"
            return self.emit("v", f"{name} {kind} {a}, {b}")
        make = functions.shift_left if node.op is Ops.SHL else \
            functions.shift_right_unsigned if dtype.is_unsigned else functions.shift_right_signed
        return self.call("v", make(dtype.bits, dtype.count), kind, a, b)

    # --- casts -----------------------------------------------------------------------------------------

    def cast(self, value: str, source: DType, target: DType) -> str:
        """Floats to integers round toward zero; what does not fit becomes the nearest that does, NaN 0."""
        if source is target:
            return value
        from_type, to_type = value_type(source), value_type(target)
        if target.is_bool:
            return self.compare(Ops.CMPNE, source, value, constant(source, 0))
        if NARROW_FLOATS & {source.scalar, target.scalar} and \
                {source.scalar, target.scalar} != {dtypes.float16, dtypes.float32}:
            return ""
        if source.is_float and target.is_float:
            name = "fpext" if target.bits > source.bits else "fptrunc"
        elif source.is_float and source.count > 1:
            return self.call("v", functions.saturating_conversion(source, target), from_type, value)
        elif source.is_float:
            name = f"fpto{'u' if target.is_unsigned else 's'}i.sat.{mangled(to_type)}.{mangled(from_type)}"
            return self.intrinsic("v", name, to_type, f"{from_type} {value}")
        elif target.is_float:
            name = "sitofp" if source.kind == "int" else "uitofp"
        elif from_type == to_type:
            return value
        elif not source.is_bool and target.bits < source.bits:
            name = "trunc"
        else:
            name = "sext" if source.kind == "int" else "zext"
        return self.emit("v", f"{name} {from_type} {value} to {to_type}")

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        if source.is_bool or target.is_bool:
            return self.cast(value, source, target)
        return self.emit("v", f"bitcast {value_type(source)} {value} to {value_type(target)}")


@cache
def written_function(function: CalledFunction, has_ymm: bool
                     ) -> tuple[HelperFunction, dict[str, HelperFunction]]:
    """A function of a program, and the helpers that it calls.

    It leaves its caller's registers alone where it takes and returns one that is as wide as they are (ymm).
    Before a call without such an argument LLVM clears the upper halves of them all, and of a result in two
    registers the second would be restored.
    """
    writer = LLVMArithmetic()
    values = {function.parameter: "%x"}
    for node in function.body.toposort():
        if node.op is Ops.CONST:
            values[node] = constant(node.dtype, node.arg)
        elif node is not function.parameter:
            values[node] = writer.elementwise(node, [values[s] for s in node.src])
    kind = value_type(function.body.dtype)
    lines = "\n".join([*writer.lines, f"ret {kind} {values[function.body]}"])
    convention = KEEPS_REGISTERS if has_ymm and function.body.dtype.itemsize == YMM_BYTES else ""
    made = HelperFunction(f"{function.name}.{mangled(kind)}", kind, f"{kind} %x", lines,
                          "noinline nounwind willreturn memory(none)", convention)
    return made, writer.functions
