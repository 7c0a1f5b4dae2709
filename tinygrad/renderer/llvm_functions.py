"""LLVM types, constants, and the small functions that kernels call where LLVM has no instruction that fits.

What LLVM leaves undefined is defined here, the same for scalars and vectors: a division by zero gives 0, a
shift by the width or more gives what shifting bit by bit would, a maximum is NaN where an operand is. Floats
narrower than float32 are held as their bits (float16 as LLVM's half); `widen` makes float32 of them, exactly,
and `narrow` rounds float32 to them, to nearest even, denormals and infinities included.

Every function is inlined: the text stays readable and the machine code is as if it were written in place.
"""
from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np

from tinygrad.dtype import DType, dtypes

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
NARROW_FLOATS = frozenset({dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.bfloat16, dtypes.float16})
"""Types to store numbers in; arithmetic on them is done in float32 and rounded after each operation."""


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
    """A small function of one type: its name, what it returns, and the text that defines it."""

    def __init__(self, name: str, result: str, parameters: str, body: str) -> None:
        self.name = name
        self.result = result
        lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
        self.text = f"define internal {result} @{name}({parameters}) alwaysinline nounwind {{\n{lines}\n}}"


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


@functools.cache
def ldexp(bits: int, count: int) -> HelperFunction:
    """a * 2**b as `Ops.LDEXP` says. The power is two factors, so a denormal result is rounded by the last
    product only, and adding 1.5 * 2**fraction leaves b in the low bits of the sum."""
    fraction, bias = {32: (23, 127), 64: (52, 1023)}[bits]
    t, i = (vector_type(x, count) for x in ({32: "float", 64: "double"}[bits], f"i{bits}"))
    rounding = constant({32: dtypes.float32, 64: dtypes.float64}[bits].vec(count),
                        1.5 * 2.0**fraction + 2 * bias)
    return HelperFunction(f"ldexp.{mangled(t)}", t, f"{t} %a, {t} %b", f"""
        %sum = fadd {t} %b, {rounding}
        %exponent = bitcast {t} %sum to {i}
        %half = lshr {i} %exponent, {splat(i, 1)}
        %rest = sub {i} %exponent, %half
        %first.bits = shl {i} %half, {splat(i, fraction)}
        %second.bits = shl {i} %rest, {splat(i, fraction)}
        %first = bitcast {i} %first.bits to {t}
        %second = bitcast {i} %second.bits to {t}
        %part = fmul {t} %a, %first
        %result = fmul {t} %part, %second
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


# --- narrow floats -------------------------------------------------------------------------------------


@functools.cache
def narrow(dtype: DType, count: int) -> HelperFunction:
    """The bits of float32 rounded to a narrow float type."""
    if dtype is dtypes.bfloat16:
        return _narrow_bfloat16(count)
    if dtype is dtypes.float16:
        return _narrow_bits("e5m10", 5, 10, 0x7BFF, 0x7C00, 0x7E00, count)
    if dtype is dtypes.fp8e4m3:
        return _narrow_bits("e4m3", 4, 3, 0x7E, 0x7F, 0x7F, count)
    return _narrow_bits("e5m2", 5, 2, 0x7B, 0x7C, 0x7E, count)


def _narrow_bfloat16(count: int) -> HelperFunction:
    f, i, t, flag = (vector_type(x, count) for x in ("float", "i32", "i16", "i1"))
    return HelperFunction(f"narrow.bf16.{mangled(f)}", t, f"{f} %x", f"""
        %bits = bitcast {f} %x to {i}
        %upper = lshr {i} %bits, {splat(i, 16)}
        %odd = and {i} %upper, {splat(i, 1)}
        %half = add {i} %odd, {splat(i, 0x7FFF)}
        %sum = add {i} %bits, %half
        %rounded = lshr {i} %sum, {splat(i, 16)}
        %quiet = or {i} %upper, {splat(i, 0x40)}
        %nan = fcmp uno {f} %x, %x
        %chosen = select {flag} %nan, {i} %quiet, {i} %rounded
        %result = trunc {i} %chosen to {t}
        ret {t} %result""")


def _narrow_bits(name: str, exponent: int, mantissa: int, largest: int, beyond: int, nan: int,
                 count: int) -> HelperFunction:
    """Rounds the bits for normal results, and denormal ones by adding a number whose last place is theirs."""
    f, i, t, flag = (vector_type(x, count) for x in ("float", "i32", f"i{1 + exponent + mantissa}", "i1"))
    bias = 2 ** (exponent - 1) - 1
    shift = 23 - mantissa
    smallest_normal = (127 + 1 - bias) << 23
    adder = (127 + shift + 1 - bias) << 23
    return HelperFunction(f"narrow.{name}.{mangled(f)}", t, f"{f} %x", f"""
        %bits = bitcast {f} %x to {i}
        %size = and {i} %bits, {splat(i, 0x7FFFFFFF)}
        %last = lshr {i} %size, {splat(i, shift)}
        %odd = and {i} %last, {splat(i, 1)}
        %half = add {i} %odd, {splat(i, (1 << (shift - 1)) - 1)}
        %sum = add {i} %size, %half
        %kept = lshr {i} %sum, {splat(i, shift)}
        %normal = sub {i} %kept, {splat(i, (127 - bias) << mantissa)}
        %absolute = bitcast {i} %size to {f}
        %adder = bitcast {i} {splat(i, adder)} to {f}
        %added = fadd {f} %absolute, %adder
        %added.bits = bitcast {f} %added to {i}
        %denormal = sub {i} %added.bits, {splat(i, adder)}
        %small = icmp ult {i} %size, {splat(i, smallest_normal)}
        %finite = select {flag} %small, {i} %denormal, {i} %normal
        %large = icmp ugt {i} %finite, {splat(i, largest)}
        %bounded = select {flag} %large, {i} {splat(i, beyond)}, {i} %finite
        %isnan = fcmp uno {f} %x, %x
        %number = select {flag} %isnan, {i} {splat(i, nan)}, {i} %bounded
        %shifted = lshr {i} %bits, {splat(i, 31 - exponent - mantissa)}
        %sign = and {i} %shifted, {splat(i, 1 << (exponent + mantissa))}
        %signed = or {i} %number, %sign
        %result = trunc {i} %signed to {t}
        ret {t} %result""")


@functools.cache
def widen(dtype: DType, count: int) -> HelperFunction:
    """The bits of a narrow float as float32."""
    if dtype is dtypes.bfloat16:
        f, i, t = (vector_type(x, count) for x in ("float", "i32", "i16"))
        return HelperFunction(f"widen.bf16.{mangled(f)}", f, f"{t} %x", f"""
            %wide = zext {t} %x to {i}
            %bits = shl {i} %wide, {splat(i, 16)}
            %result = bitcast {i} %bits to {f}
            ret {f} %result""")
    if dtype is dtypes.float16:
        return _widen_bits("e5m10", 5, 10, 0x7C00, count)
    if dtype is dtypes.fp8e4m3:
        return _widen_bits("e4m3", 4, 3, 0x7F, count)
    return _widen_bits("e5m2", 5, 2, 0x7C, count)


def _widen_bits(name: str, exponent: int, mantissa: int, first_special: int, count: int) -> HelperFunction:
    """The bits moved into place are the number times a power of two, but for infinities and NaN."""
    f, i, t, flag = (vector_type(x, count) for x in ("float", "i32", f"i{1 + exponent + mantissa}", "i1"))
    scale = (127 + 127 - (2 ** (exponent - 1) - 1)) << 23
    all_ones = ((1 << exponent) - 1) << mantissa
    return HelperFunction(f"widen.{name}.{mangled(f)}", f, f"{t} %x", f"""
        %wide = zext {t} %x to {i}
        %size = and {i} %wide, {splat(i, (1 << (exponent + mantissa)) - 1)}
        %moved = shl {i} %size, {splat(i, 23 - mantissa)}
        %small = bitcast {i} %moved to {f}
        %scale = bitcast {i} {splat(i, scale)} to {f}
        %scaled = fmul {f} %small, %scale
        %scaled.bits = bitcast {f} %scaled to {i}
        %special = icmp uge {i} %size, {splat(i, first_special)}
        %fraction = sub {i} %size, {splat(i, all_ones)}
        %payload = shl {i} %fraction, {splat(i, 23 - mantissa)}
        %special.bits = or {i} %payload, {splat(i, 0x7F800000)}
        %number = select {flag} %special, {i} %special.bits, {i} %scaled.bits
        %sign = and {i} %wide, {splat(i, 1 << (exponent + mantissa))}
        %sign.bits = shl {i} %sign, {splat(i, 31 - exponent - mantissa)}
        %bits = or {i} %number, %sign.bits
        %result = bitcast {i} %bits to {f}
        ret {f} %result""")


@functools.cache
def multiply_add(count: int) -> HelperFunction:
    """a * b + c of float32 rounded once, without an instruction for it: in float64 the product is exact, and
    the sum is rounded to odd, with what it lost found by Knuth's two-sum."""
    d, f, i, flag = (vector_type(x, count) for x in ("double", "float", "i64", "i1"))
    return HelperFunction(f"fused.{mangled(f)}", f, f"{f} %a, {f} %b, {f} %c", f"""
        %x = fpext {f} %a to {d}
        %y = fpext {f} %b to {d}
        %added = fpext {f} %c to {d}
        %product = fmul {d} %x, %y
        %sum = fadd {d} %product, %added
        %first = fsub {d} %sum, %added
        %second = fsub {d} %sum, %first
        %first.lost = fsub {d} %product, %first
        %second.lost = fsub {d} %added, %second
        %lost = fadd {d} %first.lost, %second.lost
        %bits = bitcast {d} %sum to {i}
        %lost.bits = bitcast {d} %lost to {i}
        %signs = xor {i} %bits, %lost.bits
        %toward_zero = ashr {i} %signs, {splat(i, 63)}
        %step = or {i} %toward_zero, {splat(i, 1)}
        %last = and {i} %bits, {splat(i, 1)}
        %even = icmp eq {i} %last, {splat(i, 0)}
        %inexact = fcmp one {d} %lost, {splat(d, '0.0')}
        %moves = and {flag} %even, %inexact
        %moved = add {i} %bits, %step
        %odd = select {flag} %moves, {i} %moved, {i} %bits
        %rounded = bitcast {i} %odd to {d}
        %result = fptrunc {d} %rounded to {f}
        ret {f} %result""")


@functools.cache
def round_to_odd(count: int) -> HelperFunction:
    """float64 as float32, so that rounding it further to a narrow type is as if rounded once.

    An inexact result takes the neighbour whose last bit is 1 (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    d, f, i, flag = (vector_type(x, count) for x in ("double", "float", "i32", "i1"))
    return HelperFunction(f"odd.{mangled(f)}", f, f"{d} %x", f"""
        %near = fptrunc {d} %x to {f}
        %back = fpext {f} %near to {d}
        %inexact = fcmp one {d} %back, %x
        %size.back = call {d} @llvm.fabs.{mangled(d)}({d} %back)
        %size.x = call {d} @llvm.fabs.{mangled(d)}({d} %x)
        %away = fcmp ogt {d} %size.back, %size.x
        %bits = bitcast {f} %near to {i}
        %step = sext {flag} %away to {i}
        %toward_zero = add {i} %bits, %step
        %odd = or {i} %toward_zero, {splat(i, 1)}
        %chosen = select {flag} %inexact, {i} %odd, {i} %bits
        %result = bitcast {i} %chosen to {f}
        ret {f} %result""")
