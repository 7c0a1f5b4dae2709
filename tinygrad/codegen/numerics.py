"""Conversions and functions of floats in operations that every device has.

In: nodes of any number of lanes. Out: no arithmetic on floats narrower than float32, which is done in float32
and rounded after each operation; and of what `Native` does not say that a device does itself, nothing but
integer operations on the bits, comparisons, WHERE, and sums and products of floats. `numerics_for` gives the
table for a device.

Casts are rounded once, to nearest even, denormals and infinities included; a NaN stays one. Where float32
lies between two formats and is not exact, it is rounded to odd: an inexact number takes the neighbour whose
last bit is 1, so that it still shows on which side of a tie it was (Boldo and Melquiond, "Emulation of FMA
and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""
from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tinygrad.codegen.transcendental import WIDE_FORMATS, two_sum
from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Native
from tinygrad.renderer.machine import NARROW_FLOATS


@frozen
class NarrowFormat:
    """How a narrow float lies in memory, but for bfloat16, which is the upper half of a float32."""

    dtype: DType
    exponent: int
    """bits of it"""
    mantissa: int
    largest: int
    """the bits of the largest number"""
    beyond: int
    """the bits of what lies beyond it"""
    nan: int

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def unsigned(self) -> DType:
        """The integer of the same width."""
        return dtypes.uint16 if self.dtype.bits == 16 else dtypes.uint8


FORMATS = {f.dtype: f for f in (
    NarrowFormat(dtypes.float16, 5, 10, 0x7BFF, 0x7C00, 0x7E00),
    NarrowFormat(dtypes.fp8e4m3, 4, 3, 0x7E, 0x7F, 0x7F),
    NarrowFormat(dtypes.fp8e5m2, 5, 2, 0x7B, 0x7C, 0x7E),
)}
INFINITY = 0x7F800000
"""The bits of float32's infinity; those of a NaN without its sign are above."""
FRACTION = 23
"""Bits of float32's fraction."""
BIAS = 127
"""Of float32's exponent."""


def _is_narrow(dtype: DType) -> bool:
    return dtype.scalar in NARROW_FLOATS


# --- narrow floats as bits ----------------------------------------------------------------------------------


def _narrow_of_float32(x: UOp, form: NarrowFormat) -> UOp:
    """Rounds the bits for normal results, and denormal ones by adding a number whose last place is theirs."""
    shift = FRACTION - form.mantissa
    lowest = 1 - form.bias  # exponent of a normal number
    bits = x.bitcast(dtypes.uint32)
    size = bits & 0x7FFFFFFF
    rounded = size + ((size >> shift & 1) + ((1 << shift - 1) - 1))
    normal = (rounded >> shift) - ((BIAS - form.bias) << form.mantissa)
    added = size.bitcast(dtypes.float32) + 2.0 ** (lowest + shift)
    denormal = added.bitcast(dtypes.uint32) - (BIAS + lowest + shift << FRACTION)
    finite = (size < BIAS + lowest << FRACTION).where(denormal, normal)
    number = (finite > form.largest).where(form.beyond, finite)
    known = (size > INFINITY).where(form.nan, number)
    signed = known | (bits >> 32 - form.dtype.bits & form.sign)
    return signed.cast(form.unsigned).bitcast(form.dtype)


def _float32_of_narrow(x: UOp, form: NarrowFormat) -> UOp:
    """The bits moved into place are the number times a power of two, but for infinities and NaN."""
    shift = FRACTION - form.mantissa
    wide = x.bitcast(form.unsigned).cast(dtypes.uint32)
    size = wide & form.sign - 1
    scaled = (size << shift).bitcast(dtypes.float32) * 2.0 ** (BIAS - form.bias)
    special = (size - (2**form.exponent - 1 << form.mantissa) << shift) | INFINITY
    number = (size < min(form.beyond, form.nan)).where(scaled.bitcast(dtypes.uint32), special)
    return (number | (wide & form.sign) << 32 - form.dtype.bits).bitcast(dtypes.float32)


def _bfloat16_of_float32(x: UOp) -> UOp:
    """A NaN keeps its upper bits, and a 1 among them."""
    bits = x.bitcast(dtypes.uint32)
    upper = bits >> 16
    rounded = bits + ((upper & 1) + 0x7FFF) >> 16
    known = ((bits & 0x7FFFFFFF) > INFINITY).where(upper | 0x40, rounded)
    return known.cast(dtypes.uint16).bitcast(dtypes.bfloat16)


def _float32_of_bfloat16(x: UOp) -> UOp:
    return (x.bitcast(dtypes.uint16).cast(dtypes.uint32) << 16).bitcast(dtypes.float32)


def _constant_in(x: UOp, dtype: DType) -> UOp:
    """A CONST, rounded to its own type and to another."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.array(x.arg, np.float64).astype(x.dtype.scalar.numpy).astype(dtype.scalar.numpy)
    return UOp.new(Ops.CONST, dtype.vec(x.dtype.count), (), rounded.astype(np.float64).item())


def _conversion(source: DType, target: DType, convert: Callable[[UOp], UOp]) -> Rule:
    """The rule for casts between float32 and one narrow type."""

    def replace(x: UOp, whole: UOp) -> UOp | None:
        if x.dtype.scalar is not source:
            return None
        return _constant_in(x, whole.dtype) if x.op is Ops.CONST else convert(x)

    cast = node(Ops.CAST, any_node("x"), name="whole", where=lambda n: n.dtype.scalar is target)
    return Rule(f"{source.name} to {target.name}", cast, replace)


_CONVERSIONS = {
    dtypes.bfloat16: (_conversion(dtypes.float32, dtypes.bfloat16, _bfloat16_of_float32),
                      _conversion(dtypes.bfloat16, dtypes.float32, _float32_of_bfloat16)),
    **{d: (_conversion(dtypes.float32, d, functools.partial(_narrow_of_float32, form=f)),
           _conversion(d, dtypes.float32, functools.partial(_float32_of_narrow, form=f)))
       for d, f in FORMATS.items()}}


# --- narrow floats by way of float32 ------------------------------------------------------------------------

DIGITS_TO_ROUND = 10
"""What is rounded to bfloat16 as if it were the number itself: its 8 digits, the next one, and an odd one."""


def _integer_to_odd(x: UOp) -> UOp:
    """Integers as those of no more digits up to the last 1 than float32 has: from those that have more, some
    of the last are taken off, and the next made odd if there was a 1 among them."""
    digits, bits = FRACTION + 1, x.dtype.bits
    result, room = x, digits
    while room < bits:
        taken = min(room - DIGITS_TO_ROUND, bits - digits)
        is_inexact = (x & ((1 << taken) - 1)).ne(0)
        odd = ((x >> taken) | is_inexact.where(x._operand(1), 0)) << taken
        top = x >> room
        result = (top.eq(0) | (top + 1).eq(0)).where(result, odd)
        room = taken + digits
    return result


def _float64_to_odd(x: UOp) -> UOp:
    """float64 as float32."""
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    is_above, is_below = back > x, back < x
    bits = near.bitcast(dtypes.uint32)
    is_away = (bits >> 31).ne(0).where(is_below, is_above)
    odd = (bits - is_away.cast(dtypes.uint32)) | 1
    return (is_above | is_below).where(odd, bits).bitcast(dtypes.float32)


def _as_float32(x: UOp, target: DType) -> UOp:
    """A number that is not narrow, as the float32 that rounds to `target` as it does."""
    kind = x.dtype.scalar
    if kind is dtypes.float64:
        return _float64_to_odd(x)
    if kind.is_int and kind.lane_size >= 4 and target is dtypes.bfloat16:
        x = _integer_to_odd(x)
    return x.cast(dtypes.float32)


def _cast_by_float32(x: UOp, whole: UOp) -> UOp | None:
    source, target = x.dtype.scalar, whole.dtype.scalar
    if dtypes.float32 in (source, target) or not (_is_narrow(source) or _is_narrow(target)):
        return None
    wide = x.cast(dtypes.float32) if _is_narrow(source) else _as_float32(x, target)
    return wide.cast(target)


def _in_float32(whole: UOp) -> UOp:
    """An operation on numbers cast to float32, its result cast back unless it is a condition."""
    wide = [s.cast(dtypes.float32) if _is_narrow(s.dtype) else s for s in whole.src]
    kind = whole.dtype if whole.dtype.is_bool else dtypes.float32.vec(whole.dtype.count)
    return UOp.new(whole.op, kind, tuple(wide), whole.arg).cast(whole.dtype)


def _takes_narrow(whole: UOp) -> bool:
    return _is_narrow(whole.src[0].dtype)


_ARITHMETIC = Family.ELEMENTWISE - Family.UNARY - {Ops.WHERE} | {Ops.NEG, Ops.SQRT, Ops.TRUNC}

through_float32 = RewriteTable("narrow floats in float32", [
    Rule("arithmetic", node(_ARITHMETIC, name="whole", where=_takes_narrow), _in_float32),
    Rule("reduce", node((Ops.REDUCE, Ops.RUNNING), name="whole", where=_takes_narrow), _in_float32),
    Rule("cast", node(Ops.CAST, any_node("x"), name="whole"), _cast_by_float32),
])
"""Float types narrower than float32 are only stored, and cast to and from float32."""


# --- functions ----------------------------------------------------------------------------------------------


def _scaled(a: UOp, b: UOp) -> UOp:
    """a * 2**b as `Ops.LDEXP` says. The power is two factors, so a denormal result is rounded by the last
    product only, and adding 1.5 * 2**fraction leaves b in the low bits of the sum."""
    form = WIDE_FORMATS[a.dtype.scalar]
    exponent = (b + (form.rounding + 2 * form.bias)).bitcast(form.bits)
    half = exponent >> 1
    first, second = ((part << form.fraction).bitcast(a.dtype) for part in (half, exponent - half))
    return a * first * second


def _multiplied_and_added(a: UOp, b: UOp, c: UOp) -> UOp:
    """a * b + c of float32: in float64 the product is exact, and the sum is rounded to odd, with what it
    lost."""
    x, y, added = (s.cast(dtypes.float64) for s in (a, b, c))
    total, lost = two_sum(x * y, added)
    bits, lost_bits = total.bitcast(dtypes.uint64), lost.bitcast(dtypes.uint64)
    is_inexact = (lost_bits & 2**63 - 1).bitcast(dtypes.float64) > 0.0  # not where it is NaN
    is_even = (bits & 1).eq(0)
    odd = ((bits ^ lost_bits) >> 63).ne(0).where(bits - 1, bits + 1)
    return (is_inexact & is_even).where(odd, bits).bitcast(dtypes.float64).cast(dtypes.float32)


def as_bits_for(native: Native) -> RewriteTable:
    """The rules for what a device does not do itself."""

    def scaled(a: UOp, b: UOp) -> UOp | None:
        return None if a.dtype.itemsize in native.scaling else _scaled(a, b)

    conversions = [rule for dtype, both in _CONVERSIONS.items() if dtype not in native.conversions
                   for rule in both]
    fused = node(Ops.MULACC, any_node("a"), any_node("b"), any_node("c"), where=lambda n: (
        n.dtype.scalar is dtypes.float32 and dtypes.float32 not in native.fused))
    return RewriteTable("floats as bits", [
        *conversions,
        Rule("product with a power of two", node(Ops.LDEXP, any_node("a"), any_node("b")), scaled),
        Rule("product and sum", fused, _multiplied_and_added),
    ])


as_bits = as_bits_for(Native(fused=frozenset()))
"""For a device that does nothing of it itself."""


@functools.cache
def numerics_for(native: Native) -> RewriteTable:
    """What `native` leaves to do."""
    return through_float32 + as_bits_for(native)
