"""SIN of float32 for devices without float64, in float32 and integers of 32 bits.

In and out as in `transcendental.py`, whose `_sin_float32` is shorter where there is float64. A magnitude is
m * 2**e with a whole m below 2**24. Of the digits of 1/(2 pi), those that multiply it to whole turns are left
out; the next 96 bits, times m, give the fraction of a turn to 64 bits (Payne and Hanek, "Radian reduction for
trigonometric functions", 1983). Whole quarters are taken off it, and the rest is three floats without
rounding, then a sum of two in radians.
"""
from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tinygrad.codegen.transcendental import (
    COS_RADIANS,
    SIN_RADIANS,
    _fast_two_sum,
    _pi,
    _sign_and_magnitude,
    _sine_and_cosine,
    _two_product,
    elementary_functions,
    sine_rule,
)
from tinygrad.dtype import dtypes
from tinygrad.graph.rewrite import RewriteTable
from tinygrad.graph.uop import UOp

NEAR = 0.75
"""Smaller magnitudes are less than an eighth of a turn; of the others m * 2**e, e is at least -24."""
WORDS = [int(2**(32 * (i + 1) - 24) / (2 * _pi(320))) % 2**32 for i in range(8)]
"""24 zeros and the binary digits of 1/(2 pi), 32 in each: the window for e begins at digit e + 24."""
WINDOW = 3
"""Words of the window."""
SIN = [float(np.float32(c)) for c in SIN_RADIANS[:4]]
COS = [float(np.float32(c)) for c in COS_RADIANS[:4]]
TAU = float(np.float32(math.tau))
TAU_LOW = float(np.float32(float(2 * _pi(128) - Fraction(TAU))))


def _window(start: UOp) -> list[UOp]:
    """The words of digits that begin at digit number `start`."""
    words = [start._operand(w) for w in WORDS]
    for skipped in (4, 2, 1):
        skip = (start & 32 * skipped).ne(0)
        words = [skip.where(words[i + skipped], w) if i + skipped < len(words) else w
                 for i, w in enumerate(words[:WINDOW + skipped])]
    shift = start & 31
    return [words[i] << shift | words[i + 1] >> (32 - shift) for i in range(WINDOW)]


def _product(words: list[UOp], m: UOp) -> tuple[UOp, UOp]:
    """The first 64 bits after the point of 0.words * m, by bytes: m * byte + carry fits 32 bits."""
    bytes_out: list[UOp] = []
    carry = m._operand(0)
    for word in reversed(words):
        for place in (0, 8, 16, 24):
            total = m * (word >> place & 255) + carry
            bytes_out.append(total & 255)
            carry = total >> 8
    low, high = bytes_out[-8:-4], bytes_out[-4:]
    return tuple(b[0] | b[1] << 8 | b[2] << 16 | b[3] << 24 for b in (high, low))  # type: ignore[return-value]


def _turns(magnitude: UOp) -> tuple[UOp, UOp, UOp, UOp]:
    """A magnitude of at least NEAR: its nearest quarter of a turn, whether it lies before that, and the
    distance in turns as a sum of two floats."""
    bits = magnitude.bitcast(dtypes.uint32)
    m = bits & 2**23 - 1 | 2**23
    high, low = _product(_window((bits >> 23) - (150 - 24)), m)
    quarter = high + 2**29 >> 30
    high = high - (quarter << 30)
    before = (high >> 31).ne(0)
    low = before.where(0 - low, low)
    high = before.where((high ^ 2**32 - 1) + low.ne(0).where(high._operand(0), 1), high)
    first = (high >> 6).cast(dtypes.float32) * 2.0**-26
    second = (high << 18 & 2**24 - 1 | low >> 14).cast(dtypes.float32) * 2.0**-50
    third = (low & 2**14 - 1).cast(dtypes.float32) * 2.0**-64
    total, rest = _fast_two_sum(first, second)
    return quarter, before, total, rest + third


def sin_in_32_bits(x: UOp, cosine: bool) -> UOp:
    """sin(x), or cos(x), of float32."""
    sign, magnitude = _sign_and_magnitude(x)
    near = magnitude < NEAR
    quarter, before, turns, turns_low = _turns(near.where(NEAR, magnitude))
    r, r_low = _two_product(turns, x._operand(TAU))
    r_low = turns.mulacc(TAU_LOW, turns_low.mulacc(TAU, r_low))
    r, r_low = near.where(magnitude, r), near.where(0.0, r_low)
    quarter = near.where(0, quarter) + int(cosine)
    flipped = near.where(0, before.where(sign._operand(2**31), 0))

    sine, ahead = _sine_and_cosine(r, r_low, SIN, COS)
    is_ahead = (quarter & 1).ne(0)
    value = is_ahead.where(ahead, sine).bitcast(dtypes.uint32)
    value = value ^ is_ahead.where(0, flipped) ^ (quarter >> 1) << 31
    result = (value if cosine else value ^ sign).bitcast(dtypes.float32)
    return (magnitude < math.inf).where(result, math.nan)


elementary_functions_in_32_bits = RewriteTable("elementary functions as arithmetic without float64", [
    sine_rule(sin_in_32_bits),
]) + elementary_functions
"""As `elementary_functions`."""
