"""LLVM types, constants, and the small functions that kernels call where LLVM has no instruction that fits.

What LLVM leaves undefined is defined here, the same for scalars and vectors: a division by zero gives 0, a
shift by the width or more gives what shifting bit by bit would, a maximum is NaN where an operand is. Floats
narrower than float32 are held as their bits (float16 as LLVM's half).

Every function here is inlined: the text stays readable and the machine code is as if it were written in
place. Those of the program (CALL) are not.
"""
from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.renderer.machine import NARROW_FLOATS

_SCALAR_TYPES: dict[DType, str] = {
    dtypes.bool: "i1",
    dtypes.index: "i64",
    **{d: f"i{d.bits}" for d in dtypes.ints},
    dtypes.fp8e4m3: "i8",
    dtypes.fp8e5m2: "i8",
    dtypes.bfloat16: "i16",
    dtypes.float16: "half",
    dtypes.float32: "float",
    dtypes.float64: "double",
}
_MANGLED = {"half": "f16", "float": "f32", "double": "f64"}


def vector_type(scalar: str, count: int) -> str:
    return scalar if count == 1 else f"<{count} x {scalar}>"


@functools.cache
def value_type(dtype: DType) -> str:
    """The LLVM type of a value in a register."""
    return vector_type(_SCALAR_TYPES[dtype.scalar], dtype.count)


@functools.cache
def memory_type(dtype: DType) -> str:
    """The LLVM type of a value in memory, where a bool is a byte."""
    return vector_type("i8" if dtype.is_bool else _SCALAR_TYPES[dtype.scalar], dtype.count)


def mangled(type_text: str) -> str:
    """How an intrinsic's name says a type: `<4 x float>` is `v4f32`."""
    if type_text.startswith("<"):
        count, _, scalar = type_text[1:-1].partition(" x ")
        return f"v{count}{mangled(scalar)}"
    return "p0" if type_text == "ptr" else _MANGLED.get(type_text, type_text)


def splat(type_text: str, value: object) -> str:
    """A constant operand: `value` in every lane of the type."""
    if not type_text.startswith("<"):
        return str(value)
    return f"splat ({type_text[1:-1].partition(' x ')[2]} {value})"


def constant(dtype: DType, value: object) -> str:
    """The operand for a CONST: one number for all lanes, or a tuple of one a lane."""
    scalar = dtype.scalar
    if not isinstance(value, tuple):
        return splat(value_type(dtype), _number(scalar, value))
    if len(value) == 1:
        return constant(dtype, value[0])
    name = _SCALAR_TYPES[scalar]
    return f"<{', '.join(f'{name} {_number(scalar, v)}' for v in value)}>"


def _number(scalar: DType, value: object) -> str:
    if scalar.is_bool:
        return "true" if value else "false"
    if not scalar.is_float:
        return str(int(value))  # type: ignore[call-overload]  # an int, by the program's grammar
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.array(value, dtype=np.float64).astype(scalar.numpy)
    if scalar is dtypes.float16:
        return f"0xH{rounded.view(np.uint16).item():04X}"
    if scalar in NARROW_FLOATS:
        return str(rounded.view(f"u{scalar.lane_size}").item())
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded.item()))[0]:016X}"


# --- functions -----------------------------------------------------------------------------------------


class HelperFunction:
    """A small function of one type: its name, what it returns, how it is called (a convention of LLVM's, C's
    where it is empty), and the text that defines it."""

    def __init__(self, name: str, result: str, parameters: str, body: str,
                 attributes: str = "alwaysinline nounwind", convention: str = "") -> None:
        self.name = name
        self.result = result
        self.convention = convention
        lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
        self.text = (f"define internal {self.convention}{result} @{name}({parameters}) {attributes} "
                     f"{{\n{lines}\n}}")


Maker = Callable[[int, int], HelperFunction]


@functools.cache
def floor_division(bits: int, count: int) -> HelperFunction:
    """a // b of signed integers, rounded down; 0 where b is 0; the lowest integer // -1 wraps to itself."""
    t, flag = vector_type(f"i{bits}", count), vector_type("i1", count)
    return HelperFunction(f"floordiv.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %zero = icmp eq {t} %b, {splat(t, 0)}
        %minus = icmp eq {t} %b, {splat(t, -1)}
        %special = or {flag} %zero, %minus
        %divisor = select {flag} %special, {t} {splat(t, 1)}, {t} %b
        %quotient = sdiv {t} %a, %divisor
        %back = mul {t} %quotient, %divisor
        %inexact = icmp ne {t} %back, %a
        %signs = xor {t} %a, %divisor
        %opposite = icmp slt {t} %signs, {splat(t, 0)}
        %down = and {flag} %inexact, %opposite
        %one = sext {flag} %down to {t}
        %floored = add {t} %quotient, %one
        %negated = sub {t} {splat(t, 0)}, %a
        %unless_minus = select {flag} %minus, {t} %negated, {t} %floored
        %result = select {flag} %zero, {t} {splat(t, 0)}, {t} %unless_minus
        ret {t} %result""")


@functools.cache
def saturating_conversion(source: DType, target: DType) -> HelperFunction:
    """Vectors of floats as integers, rounded toward zero; what does not fit becomes the nearest that does,
    NaN 0. LLVM's own function for that (`fptosi.sat`) takes the lanes of x86's vectors one by one."""
    f, t, flag = value_type(source), value_type(target), vector_type("i1", source.count)
    low, high = int(target.scalar.min), int(target.scalar.max)
    convert = "fptoui" if target.is_unsigned else "fptosi"
    return HelperFunction(f"{convert}.{mangled(f)}.{mangled(t)}", t, f"{f} %x", f"""
        %undefined = {convert} {f} %x to {t}
        %converted = freeze {t} %undefined
        %below = fcmp ole {f} %x, {constant(source, low)}
        %above = fcmp oge {f} %x, {constant(source, high + 1)}
        %no_nan = fcmp ord {f} %x, %x
        %not_below = select {flag} %below, {t} {splat(t, low)}, {t} %converted
        %inside = select {flag} %above, {t} {splat(t, high)}, {t} %not_below
        %result = select {flag} %no_nan, {t} %inside, {t} {splat(t, 0)}
        ret {t} %result""")


@functools.cache
def floor_remainder(bits: int, count: int) -> HelperFunction:
    """a % b of signed integers, with the sign of b; 0 where b is 0."""
    t, flag = vector_type(f"i{bits}", count), vector_type("i1", count)
    return HelperFunction(f"floormod.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %zero = icmp eq {t} %b, {splat(t, 0)}
        %minus = icmp eq {t} %b, {splat(t, -1)}
        %special = or {flag} %zero, %minus
        %divisor = select {flag} %special, {t} {splat(t, 1)}, {t} %b
        %remainder = srem {t} %a, %divisor
        %inexact = icmp ne {t} %remainder, {splat(t, 0)}
        %signs = xor {t} %remainder, %divisor
        %opposite = icmp slt {t} %signs, {splat(t, 0)}
        %up = and {flag} %inexact, %opposite
        %more = select {flag} %up, {t} %divisor, {t} {splat(t, 0)}
        %result = add {t} %remainder, %more
        ret {t} %result""")


@functools.cache
def unsigned_division(bits: int, count: int) -> HelperFunction:
    """a // b of unsigned integers; 0 where b is 0."""
    return _unsigned("udiv", "div", bits, count)


@functools.cache
def unsigned_remainder(bits: int, count: int) -> HelperFunction:
    """a % b of unsigned integers; 0 where b is 0."""
    return _unsigned("urem", "rem", bits, count)


def _unsigned(instruction: str, name: str, bits: int, count: int) -> HelperFunction:
    t, flag = vector_type(f"i{bits}", count), vector_type("i1", count)
    return HelperFunction(f"{name}.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %zero = icmp eq {t} %b, {splat(t, 0)}
        %divisor = select {flag} %zero, {t} {splat(t, 1)}, {t} %b
        %value = {instruction} {t} %a, %divisor
        %result = select {flag} %zero, {t} {splat(t, 0)}, {t} %value
        ret {t} %result""")


@functools.cache
def shift_left(bits: int, count: int) -> HelperFunction:
    """a << b; 0 where b is not in [0, width)."""
    return _shift("shl", bits, count)


@functools.cache
def shift_right_unsigned(bits: int, count: int) -> HelperFunction:
    """a >> b with zeros from the left; 0 where b is not in [0, width)."""
    return _shift("lshr", bits, count)


def _shift(instruction: str, bits: int, count: int) -> HelperFunction:
    t, flag = vector_type(f"i{bits}", count), vector_type("i1", count)
    return HelperFunction(f"{instruction}.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %within = icmp ult {t} %b, {splat(t, bits)}
        %shifted = {instruction} {t} %a, %b
        %result = select {flag} %within, {t} %shifted, {t} {splat(t, 0)}
        ret {t} %result""")


@functools.cache
def shift_right_signed(bits: int, count: int) -> HelperFunction:
    """a >> b with copies of the sign from the left; nothing but the sign where b is not in [0, width)."""
    t, flag = vector_type(f"i{bits}", count), vector_type("i1", count)
    return HelperFunction(f"ashr.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %within = icmp ult {t} %b, {splat(t, bits)}
        %amount = select {flag} %within, {t} %b, {t} {splat(t, bits - 1)}
        %result = ashr {t} %a, %amount
        ret {t} %result""")


SCALEF_BYTES = frozenset({16, 32, 64})
"""Vectors that AVX-512's vscalef takes."""


@functools.cache
def scalef(bits: int, count: int) -> HelperFunction:
    """a * 2**b by the one instruction that AVX-512 has for it."""
    t = vector_type({32: "float", 64: "double"}[bits], count)
    width = bits * count
    suffix = f"{'ps' if bits == 32 else 'pd'}.{width}"
    mask = f"i{max(8, count)} -1"
    rounding = ", i32 4" if width == 512 else ""
    return HelperFunction(f"scalef.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %result = call {t} @llvm.x86.avx512.mask.scalef.{suffix}({t} %a, {t} %b, {t} %a, {mask}{rounding})
        ret {t} %result""")
