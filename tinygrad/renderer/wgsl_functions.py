"""WGSL types, constants, and the small functions that kernels call where WGSL has no operator that fits.

They give the results that `c_functions.py` gives: a division by zero gives 0, a shift by the width or more
what shifting bit by bit would, a maximum is NaN where an operand is, a float that no integer holds becomes
the nearest that there is.
"""
from __future__ import annotations

import math
from collections.abc import Mapping

from tinygrad.dtype import DType, dtypes
from tinygrad.renderer.c_functions import Dialect, Functions
from tinygrad.renderer.machine import NARROW_FLOATS
from tinygrad.renderer.wgsl_multiply_add import multiply_add_text

_FLOAT_BITS = frozenset({dtypes.bfloat16, dtypes.float16, dtypes.fp8e4m3, dtypes.fp8e5m2})
_TYPES: Mapping[DType, str] = {
    dtypes.bool: "bool",
    **dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.int32), "i32"),
    **dict.fromkeys((dtypes.uint8, dtypes.uint16, dtypes.uint32, *_FLOAT_BITS), "u32"),
    dtypes.int64: "i64", dtypes.uint64: "u64", dtypes.float32: "f32", dtypes.float64: "f64",
}
_SUFFIXES = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu", "f32": "f", "f64": "lf"}


def is_narrow(dtype: DType) -> bool:
    """True for a type that lies packed in the 32-bit words of memory."""
    return dtype.itemsize < 4


class WGSLFunctions(Functions):
    """Types and functions of one kernel. Values of narrow types are kept in 32 bits: integers as the numbers
    they are, floats as their bits."""

    def __init__(self, index: str, fused: frozenset[DType], widens: bool = True) -> None:
        super().__init__(Dialect(
            name="WGSL", types={**_TYPES, dtypes.index: index}, math="{name}", wraps=True,
            barrier="workgroupBarrier();", bitcast="bitcast<{target}>({value})"))
        self.fused = fused
        """dtypes of which the device's own `fma` rounds once"""
        self.widens = widens
        """whether the device compares an int32 made an int64 as one"""

    def define(self, name: str, result: DType, parameters: Mapping[str, DType], body: str) -> str:
        if name not in self.texts:
            given = ", ".join(f"{p}: {self.type(t)}" for p, t in parameters.items())
            lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
            self.texts[name] = f"fn {name}({given}) -> {self.type(result)} {{\n{lines}\n}}"
        return name

    # --- narrow types ---------------------------------------------------------------------------------------

    def mask(self, dtype: DType) -> str:
        """The bits of a narrow type in a word."""
        return f"0x{(1 << (8 * dtype.itemsize)) - 1:x}u"

    def wrapped(self, dtype: DType, expression: str) -> str:
        """A result in 32 bits as a number of its narrow integer type."""
        if not dtype.is_int or not is_narrow(dtype):
            return expression
        if dtype.is_unsigned:
            return f"({expression}) & {self.mask(dtype)}"
        shift = 32 - dtype.bits
        return f"(({expression}) << {shift}u) >> {shift}u"

    def bits_of(self, dtype: DType, value: str) -> str:
        """A value of a narrow type as the word whose low bits it is."""
        if dtype.is_bool:
            return f"select(0u, 1u, {value})"
        return value if self.type(dtype) == "u32" else f"bitcast<u32>({value})"

    def of_bits(self, dtype: DType, bits: str) -> str:
        """The value of a narrow type whose bits are the low bits of a word, the others being zero."""
        if dtype.is_bool:
            return f"({bits}) != 0u"
        return f"({bits})" if self.type(dtype) == "u32" else f"bitcast<i32>({bits})"

    # --- constants ------------------------------------------------------------------------------------------

    def number(self, dtype: DType, value: object) -> str:
        if dtype.is_bool:
            return "true" if value else "false"
        if dtype in NARROW_FLOATS:
            return f"{int(super().number(dtype, value), 16)}u"
        return super().number(dtype, value)

    def integer(self, dtype: DType, value: int) -> str:
        suffix = _SUFFIXES[self.type(dtype)]
        if value < 0 and value == dtype.min:
            return f"({value + 1}{suffix} - 1{suffix})"
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"

    def real(self, value: float, dtype: DType) -> str:
        kind = self.type(dtype)
        if math.isfinite(value):
            text = f"{dtype.numpy.type(value)!s}{_SUFFIXES[kind]}"
            return f"({text})" if value < 0 else text
        name = "nan" if math.isnan(value) else "infinity"
        bits = {"nan": "0x7fc00000u", "infinity": "0x7f800000u"}[name]
        called = self.define(f"{name}_{kind}", dtype, {}, f"""
            var bits = {bits};
            return {kind}(bitcast<f32>(bits));""") + "()"
        return f"(-{called})" if value < 0 else called

    # --- operations -----------------------------------------------------------------------------------------

    def choose(self, dtype: DType, condition: str, a: str, b: str) -> str:
        return f"select({b}, {a}, {self.as_compared(condition) if dtype.is_float else condition})"

    def as_compared(self, condition: str) -> str:
        """A comparison of floats that stays one. WGSL lets a compiler take not (a < b) for a >= b, as if
        there were no NaN; it does not see through a number that only the launch makes 0."""
        return self.define("as_compared", dtypes.bool, {"condition": dtypes.bool}, """
            return (select(0u, 1u, condition) | zero) != 0u;""") + f"({condition})"

    def divide(self, dtype: DType, quotient: bool) -> str:
        zero, one, less = (self.constant(dtype, n) for n in (0, 1, 0 if dtype.is_unsigned else -1))
        name = f"{'floordiv' if quotient else 'floormod'}_{dtype.name}"
        if dtype.is_unsigned:
            body = f"""
                if (b == {zero}) {{ return {zero}; }}
                return a {'/' if quotient else '%'} b;"""
        elif quotient:
            body = f"""
                if (b == {zero}) {{ return {zero}; }}
                if (b == {less}) {{ return {self.wrapped(dtype, f"{zero} - a")}; }}
                let q = a / b;
                return select(q, q - {one}, q * b != a && (a ^ b) < {zero});"""
        else:
            body = f"""
                if (b == {zero} || b == {less}) {{ return {zero}; }}
                let r = a % b;
                return select(r, r + b, r != {zero} && (r ^ b) < {zero});"""
        return self.define(name, dtype, {"a": dtype, "b": dtype}, body)

    def shift(self, dtype: DType, left: bool) -> str:
        zero, width = self.constant(dtype, 0), self.constant(dtype, dtype.bits)
        inside = f"b < {width}" if dtype.is_unsigned else f"b >= {zero} && b < {width}"
        far = zero if left or dtype.is_unsigned else f"(a >> {dtype.bits - 1}u)"
        shifted = self.wrapped(dtype, "a << u32(b)") if left else "a >> u32(b)"
        return self.define(f"{'shl' if left else 'shr'}_{dtype.name}", dtype, {"a": dtype, "b": dtype}, f"""
            if ({inside}) {{ return {shifted}; }}
            return {far};""")

    def builtin(self, name: str, dtype: DType, arity: int) -> str:
        arguments = ", ".join("abc"[:arity])
        called = {"fabs": "abs"}.get(name, name)
        return self.define(f"{name}_{dtype.name}", dtype, dict.fromkeys("abc"[:arity], dtype),
                           f"return {called}({arguments});")

    def is_nan(self, dtype: DType) -> str:
        """Whether the float `a` is no number, by its bits: a compiler may take a == a for true."""
        if dtype is dtypes.float32:
            return "((bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u)"
        return "((bitcast<u64>(a) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu)"

    def maximum(self, dtype: DType) -> str:
        larger = self.choose(dtype, "a > b", "a", "b")
        if dtype.is_float:
            larger = f"select({larger}, a, {self.is_nan(dtype)})"
        return self.define(f"max_{dtype.name}", dtype, {"a": dtype, "b": dtype}, f"return {larger};")

    def converted(self, value: str, source: DType, target: DType) -> str:
        """A number as one of another type. An integer is made wider before its sign goes or comes: naga
        decides by the target's sign whether to repeat the topmost bit."""
        kind = self.type(target)
        wide = {"i32": "i64", "u32": "u64"}.get(self.type(source), "")
        if wide == "i64" and kind in ("i64", "u64") and not self.widens:
            wide = self.define("widened", dtypes.int64, {"a": dtypes.int32}, "return i64(a) | i64(zero);")
        return f"{kind}({wide}({value}))" if kind in ("i64", "u64") and wide else f"{kind}({value})"

    def multiply_add(self, dtype: DType) -> str:
        if dtype in self.fused:
            return self.builtin("fma", dtype, 3)
        name = f"mulacc_{dtype.name}"
        self.texts.setdefault(name, multiply_add_text(name, dtype))
        return name

    def to_integer(self, source: DType, target: DType) -> str:
        low, high = int(target.min), int(target.max)
        lowest, beyond = (self.real(float(n), source) for n in (low, high + 1))
        return self.define(f"{target.name}_of_{source.name}", target, {"a": source}, f"""
            if ({self.is_nan(source)}) {{ return {self.integer(target, 0)}; }}
            if (a <= {lowest}) {{ return {self.integer(target, low)}; }}
            if (a >= {beyond}) {{ return {self.integer(target, high)}; }}
            return {self.type(target)}(a);""")
