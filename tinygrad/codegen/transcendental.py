"""EXP2, LOG2 and SIN as arithmetic that every device has.

In: nodes of any float type and any number of lanes. Out: ADD, SUB, MUL, MULACC, FDIV, LDEXP, TRUNC,
comparisons, WHERE, casts and integer operations on the bits, without branches: every lane of a vector does
the same work. Half and smaller types are computed in float32, SIN of float32 in float64. An argument in one
of the forms of `graph/elementary.py` says that it is exp, log1p or cosine that is meant.

Exact for infinities, NaN, zeros of either sign; denormal arguments and results are as good as others. Largest
errors found, in units of the last place of the result (float32: every input; float64: 16 million and more):

| function | float32 | float64 | how |
| --- | --- | --- | --- |
| EXP2 | 0.88 | 0.87 | x = n + f, abs(f) <= 1/2; a polynomial in f, times 2**n |
| exp | 0.90 | 0.95 | x = n ln(2) + r, the same in r |
| LOG2 | 0.96 | 0.95 | x = 2**n * (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); n + a polynomial in f |
| log | 0.95 | 0.95 | n ln(2) + a polynomial in f |
| log1p | 1.40 | 1.70 | as log, with what 1 + x lost added to f |
| SIN, cosine | 0.501 | 1.03 | the fraction of a turn, by a window of the digits of 1/(2 pi); polynomials |

What the renderer owes these expressions: each operation is rounded once, as written. A product may not be
fused into the sum or difference around it (those that may be are MULACC already), nothing may be
reassociated.

The polynomials are minimax: Remez's exchange in 60-digit decimals, weighted for the relative error of the
function; coefficients rounded from the lowest order up, the rest fitted again after each where that helps.
Each table states the relative error that its rounded coefficients leave, which the tests measure again.

Next on the path: `codegen/linearize.py` puts the nest in order.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.elementary import argument_of_cosine, argument_of_exponential, argument_of_log1p
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node
from tinygrad.graph.uop import UOp


@frozen
class Format:
    """How one float type lies in memory, and its polynomials, lowest order first."""

    dtype: DType
    bits: DType
    """the unsigned integer of the same width"""
    fraction: int
    """bits of the fraction"""
    bias: int
    """of the exponent"""
    exp2: tuple[float, ...]
    """(2**f - 1) / f for |f| <= 1/2"""
    exp: tuple[float, ...]
    """(e**r - 1) / r for |r| <= ln(2)/2"""
    log2_lead: float
    """1/ln(2), rounded"""
    log2: tuple[float, ...]
    """log2(1 + f) / f - log2_lead for sqrt(1/2) <= 1 + f <= sqrt(2)"""

    @property
    def log(self) -> tuple[float, ...]:
        """(log(1 + f) - f) / f**2 in the same range."""
        return tuple(float(self.dtype.numpy.type(math.log(2) * c)) for c in self.log2[1:])

    @property
    def ln2(self) -> tuple[float, float]:
        """ln(2) in two parts: the nearest number of the type, and what is left."""
        high = float(self.dtype.numpy.type(math.log(2)))
        return high, float(self.dtype.numpy.type(_LN2 - Fraction(high)))

    @property
    def rounding(self) -> float:
        """What rounds a number to an integer when it is added: that is in the low bits then."""
        return float(1.5 * 2.0**self.fraction)


_LN2 = Fraction("0.69314718055994530941723212145817656807550013436025525412068")


def _float32(*values: float) -> tuple[float, ...]:
    return tuple(float(np.float32(v)) for v in values)


WIDE_FORMATS = {f.dtype: f for f in (
    Format(
        dtypes.float32, dtypes.uint32, 23, 127,
        # relative error of 2**f: 2**-28.1
        exp2=_float32(0.693147182, 0.240226477, 0.0555035807, 0.00961853098, 0.00133917155, 0.000153105342),
        # relative error of e**r: 2**-27.9
        exp=_float32(1.0, 0.49999994, 0.166665211, 0.0416683853, 0.00836871471, 0.00138148433),
        log2_lead=float(np.float32(1 / math.log(2))),
        # relative error of log2(1 + f): 2**-27.6
        log2=_float32(1.92005967e-08, -0.721347332, 0.480898231, -0.3606987, 0.28856957, -0.239566118,
                      0.20453085, -0.191433385, 0.186720476, -0.109654658)),
    Format(
        dtypes.float64, dtypes.uint64, 52, 1023,
        # relative error of 2**f: 2**-57.7
        exp2=(0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.009618129107601597,
              0.0013333558146546814, 0.0001540353044904892, 1.5252733633134967e-05, 1.3215438828685723e-06,
              1.0178160510335357e-07, 7.073234395763472e-09, 4.438779106795436e-10),
        # relative error of e**r: 2**-55.7
        exp=(1.0, 0.5000000000000001, 0.16666666666666669, 0.041666666666624164, 0.008333333333330065,
             0.0013888888917196719, 0.00019841269863040545, 2.4801521322368692e-05, 2.7557268480310024e-06,
             2.7620075879983367e-07, 2.5100375832561234e-08),
        log2_lead=1 / math.log(2),
        # relative error of log2(1 + f): 2**-56.6
        log2=(2.389292410941962e-17, -0.7213475204444824, 0.4808983469629819, -0.36067376022184017,
              0.2885390081792043, -0.24044917355399492, 0.2060992914601626, -0.18033687411095473,
              0.1602994487688608, -0.14426977267868746, 0.13115437201216232, -0.1202176325783163,
              0.11096351402498655, -0.10315365534600128, 0.09646378264656173, -0.08935836579629838,
              0.08159735086981099, -0.0819001761981912, 0.09431924321175043, -0.08682376271775775,
              0.03782874811482099)),
)}

SIN_TURNS = (6.283185307018501, -41.34170207217617, 81.60522023821697, -76.70400302377496, 42.00451369055607,
             -14.358968295976497)
"""sin(2 pi t) / t in powers of t**2 for |t| <= 1/4 + 1/256, evaluated in float64: relative error 2**-35.1."""

SIN_RADIANS = (-0.1666666666666663, 0.00833333333332184, -0.00019841269829358528, 2.755731353851458e-06,
               -2.5050734389394686e-08, 1.5895433302182053e-10)
"""(sin(r) / r - 1) / r**2 in powers of r**2 for |r| <= pi/4: relative error of sin(r) 2**-57.9."""

COS_RADIANS = (0.041666666666666595, -0.0013888888888873342, 2.480158728900208e-05, -2.755731421703904e-07,
               2.087570539609811e-09, -1.1358749246461643e-11)
"""(cos(r) - 1 + r**2 / 2) / r**4 in powers of r**2 for |r| <= pi/4: relative error of cos(r) 2**-63.9."""


def _polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """Horner's rule: one MULACC a coefficient after the first."""
    value = x._operand(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value.mulacc(x, c)
    return value


def two_sum(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _fast_two_sum(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """The rounded sum and its exact error, where `a` is a multiple of the last place of `b` (Dekker)."""
    total = a + b
    return total, b - (total - a)


def _two_product(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """The rounded product and its exact error."""
    product = a * b
    return product, a.mulacc(b, -product)


# --- 2**x and its inverse -----------------------------------------------------------------------------------


WEIGHT = "weight"
"""The argument of an EXP2 whose result may be 0 where it is no normal number (`softmax_weights.py`)."""


def _power(power: UOp, exponent: UOp) -> UOp:
    """2**exponent, or e**x, with r = x - n ln(2) rounded once: the first of its two steps is exact. Adding
    1.5 * 2**fraction rounds to an integer.

    A power that vanishes is 0 times another one, not one scaled until nothing is left of it: processors take
    a hundred cycles and more where a result is too small for its format (e**x of 524,288 numbers about -1000
    on two Intel cores: 1.30 ms, and 0.13 so). NaN stays.
    """
    form = WIDE_FORMATS[exponent.dtype.scalar]
    natural = argument_of_exponential(exponent)
    x, unit = (exponent, 1.0) if natural is None else (natural, math.log(2))
    # below the least all are 0, from the most on infinite
    least = math.ceil((1 - form.bias) * unit) if power.arg == WEIGHT else \
        math.floor(-(form.bias + form.fraction) * unit)
    most = math.ceil((form.bias + 1) * unit)
    vanishes = x < least
    raised = vanishes.where(least, x)
    bounded = (raised > most).where(most, raised)
    if natural is None:
        n = (bounded + form.rounding) - form.rounding
        value = _polynomial(bounded - n, (1.0, *form.exp2))
    else:
        n = bounded.mulacc(form.log2_lead, form.rounding) - form.rounding
        high, low = form.ln2
        value = _polynomial(n.mulacc(-low, n.mulacc(-high, bounded)), (1.0, *form.exp))
    return vanishes.where(0, value).alu(Ops.LDEXP, n)


def _whole_and_fraction(x: UOp, lost: UOp | None) -> tuple[UOp, UOp]:
    """n and f with x + lost = 2**n (1 + f), where `lost` is less than the last place of x, a normal number.

    Adding 1 - sqrt(1/2) to the bits, as integers, carries into the exponent exactly where the mantissa is
    at least sqrt(2). So the exponent is n, and the bits below it say how far the mantissa lies above
    sqrt(1/2).
    """
    form = WIDE_FORMATS[x.dtype.scalar]
    one = form.bias << form.fraction
    root_half = one - 2**(form.fraction + 1) + math.isqrt(2 * 4**form.fraction)
    # the biased exponent in the low bits of 2**fraction is that float plus the exponent
    carrier, normal = x._operand(2.0**form.fraction + form.bias), x
    if lost is None:
        denormal = x < 2.0**(1 - form.bias)
        normal = denormal.where(x * 2.0**form.fraction, x)
        carrier = denormal.where(2.0**form.fraction + form.bias + form.fraction, carrier)

    raised = normal.bitcast(form.bits) + (one - root_half)
    exponent = ((raised >> form.fraction) | (form.bias + form.fraction << form.fraction)).bitcast(form.dtype)
    mantissa = ((raised & (2**form.fraction - 1)) + root_half).bitcast(form.dtype)
    f = mantissa - 1.0
    if lost is not None:
        f = f + lost * mantissa / x
    return exponent - carrier, f


def _logarithm(number: UOp, of_parts: Callable[[UOp, UOp], UOp]) -> UOp:
    """The logarithm of `number` that is `of_parts(n, f)` of 2**n (1 + f)."""
    rest = argument_of_log1p(number)
    if rest is None:
        x, lost = number, None
    else:
        x, lost = two_sum(rest._operand(1.0), rest)
    finite_or_nan = (x < math.inf).where(of_parts(*_whole_and_fraction(x, lost)), x)
    return (x > 0).where(finite_or_nan, x.ne(0).where(x._operand(math.nan), -math.inf))


def _log2(number: UOp) -> UOp:
    form = WIDE_FORMATS[number.dtype.scalar]
    return _logarithm(number, lambda n, f: n + f.mulacc(form.log2_lead, f * _polynomial(f, form.log2)))


def _log(number: UOp) -> UOp:
    """The natural logarithm, n ln(2) + log(1 + f)."""
    form = WIDE_FORMATS[number.dtype.scalar]
    high, low = form.ln2
    return _logarithm(number, lambda n, f: n.mulacc(
        high, n.mulacc(low, (f * f).mulacc(_polynomial(f, form.log), f))))


# --- sine ---------------------------------------------------------------------------------------------------


def _arctan_of_inverse(n: int, one: int) -> int:
    """arctan(1/n) in units of 1/one, by its series; low by less than a unit a term."""
    power = one // n
    total = power
    divisor = 1
    while power:
        power //= -n * n
        divisor += 2
        total += power // divisor
    return total


def _pi(bits: int) -> Fraction:
    """Pi to `bits` bits after the point, by Machin's formula."""
    one = 1 << bits + 32
    return Fraction(4 * (4 * _arctan_of_inverse(5, one) - _arctan_of_inverse(239, one)), one)


def _digits_of_turn(width: int, count: int) -> list[int]:
    """The first digits of 1/(2 pi) in base 2**width, each in [-2**(width-1), 2**(width-1)].

    Signed digits have one bit less than plain ones, so more of a product fits a float.
    """
    rest = 1 / (2 * _pi(width * count))
    digits = []
    for _ in range(count):
        rest *= 2**width
        digits.append(round(rest))
        rest -= digits[-1]
    return digits


def _select_window(words: Sequence[UOp], size: int, magnitude: UOp, bound: int, width: int,
                   shifts: Sequence[int]) -> list[UOp]:
    """`words[g : g + size]`: a table look-up by selection, without a load.

    g counts the powers 2**bound, 2**(bound + width), 2**(bound + 2 * width), ... that `magnitude` reaches.
    It is a sum of distinct `shifts`, taken greedily.
    """
    for shift in shifts:
        near = magnitude < 2.0**(bound + width * (shift - 1))
        magnitude = near.where(magnitude, magnitude * 2.0**(-width * shift))
        words = [near.where(w, words[i + shift]) if i + shift < len(words) else w
                 for i, w in enumerate(words[:shift + size - 1])]
    return list(words)


def _sign_and_magnitude(x: UOp) -> tuple[UOp, UOp]:
    """The bit of the sign where it stands, and the number without it."""
    form = WIDE_FORMATS[x.dtype.scalar]
    bits = x.bitcast(form.bits)
    sign = bits & 2**(form.bits.bits - 1)
    return sign, (bits ^ sign).bitcast(form.dtype)


def _sine_and_cosine(r: UOp, r_low: UOp, sine: Sequence[float], cosine: Sequence[float]) -> tuple[UOp, UOp]:
    """Of r + r_low radians, at most an eighth of a turn, by polynomials as SIN_RADIANS and COS_RADIANS."""
    square = r * r
    half_square = square * 0.5
    lead = 1.0 - half_square  # near cos(r): sin(r + r_low) is sin(r) + cos(r) * r_low
    rest = ((1.0 - lead) - half_square) - r * r_low
    return (r + (r * square).mulacc(_polynomial(square, sine), lead * r_low),
            lead + (square * square).mulacc(_polynomial(square, cosine), rest))


_HALF_TURNS = 1.5 * 2.0**51
"""Added to a float64, rounds it to a multiple of 1/2 whose parity is the lowest bit of the sum."""
_QUARTER_TURNS = 1.5 * 2.0**50
"""The same for 1/4: the quadrant is in the lowest two bits."""

_WIDTH32 = 30
_BOUND32 = 23 + _WIDTH32
_SHIFTS32 = (2, 1)
_WORDS32 = [math.ldexp(d, -_WIDTH32 * (j + 1)) for j, d in enumerate(_digits_of_turn(_WIDTH32, 7))]


def _sin_float32(x: UOp, cosine: bool) -> UOp:
    """sin(x), or cos(x), through x / (2 pi) in float64.

    Of the 30-bit digits of 1/(2 pi), those that multiply x to whole turns are skipped: the window starts
    where they end. The first two products are exact (24 + 29 bits). The second is split at 2**-28, and all
    that lies above is summed without rounding before half turns are taken off. So what is left keeps its
    relative precision when x is next to a multiple of pi. The cosine of x is the sine of a quarter turn minus
    |x|, a difference that is exact where it matters.
    """
    sign, magnitude = _sign_and_magnitude(x)
    wide = (-magnitude if cosine else magnitude).cast(dtypes.float64)
    words = [wide._operand(w) for w in _WORDS32]
    a, b, c, d = _select_window(words, 4, magnitude, _BOUND32, _WIDTH32, _SHIFTS32)

    high = wide * a
    middle = wide * b
    rounding = 1.5 * 2.0**(52 - 28)
    grid = (middle + rounding) - rounding
    turns = (high - high.trunc()) + grid
    turns = turns + 0.25 if cosine else turns
    shifted = turns + _HALF_TURNS
    turns = (turns - (shifted - _HALF_TURNS)) + (middle - grid)
    turns = wide.mulacc(d, wide.mulacc(c, turns))

    value = turns * _polynomial(turns * turns, SIN_TURNS)
    odd = shifted.bitcast(dtypes.uint64) << 63
    value = (value.bitcast(dtypes.uint64) ^ odd).bitcast(dtypes.float64)
    result = value.cast(dtypes.float32)
    return result if cosine else (result.bitcast(dtypes.uint32) ^ sign).bitcast(dtypes.float32)


_WIDTH64 = 52
_FAR = 12
"""Digits skipped by the first step, which scales x too: no product overflows and no digit is denormal."""
_SHIFTS64 = (6, 3, 2, 1)
_DIGITS64 = [0, *_digits_of_turn(_WIDTH64, 23)]
_TAU_LOW = float(2 * _pi(128) - Fraction(math.tau))
"""What math.tau lacks of 2 pi."""


def _sin_float64(x: UOp, cosine: bool) -> UOp:
    """sin(x), or cos(x), through x / (2 pi) in sums of three floats.

    As for float32, with a window of five 52-bit digits placed so that the first product is 0 or a multiple
    of 2**-52 turns. The first four products are exact pairs of floats. Quarter turns are taken off before
    each of the two sums that can cancel; where they do cancel the sums are then exact. So the result keeps
    its relative precision down to 2**-64 of a turn, the closest that any float64 comes to a multiple of pi.
    """
    sign, magnitude = _sign_and_magnitude(x)
    near = magnitude < 2.0**(_WIDTH64 * _FAR)
    scaled = near.where(magnitude, magnitude * 2.0**(-_WIDTH64 * _FAR))
    words = []
    for i in range(_FAR + 4):
        word = x._operand(math.ldexp(_DIGITS64[i], -_WIDTH64 * i))
        if i + _FAR < len(_DIGITS64):
            word = near.where(word, math.ldexp(_DIGITS64[i + _FAR], -_WIDTH64 * i))
        words.append(word)
    a, b, c, d, e = _select_window(words, 5, scaled, _WIDTH64, _WIDTH64, _SHIFTS64)

    a_high, a_low = _two_product(scaled, a)
    b_high, b_low = _two_product(scaled, b)
    c_high, c_low = _two_product(scaled, c)
    d_high, d_low = _two_product(scaled, d)
    whole = (a_high - a_high.trunc()) + (a_low - a_low.trunc())
    part = b_high - b_high.trunc()
    first_shift = (whole + part) + _QUARTER_TURNS
    total, error = _fast_two_sum(whole - (first_shift - _QUARTER_TURNS), part)
    middle, middle_error = two_sum(b_low, c_high)
    second_shift = (total + middle) + _QUARTER_TURNS
    total, error2 = _fast_two_sum(total - (second_shift - _QUARTER_TURNS), middle)
    low, low_error = two_sum(middle_error, c_low)
    low, low_error2 = two_sum(low, d_high)
    turns, turns_low = two_sum(total, (error + error2) + low)
    turns_low = turns_low + (scaled.mulacc(e, d_low) + (low_error + low_error2))

    r, r_low = _two_product(turns, x._operand(math.tau))
    r_low = turns_low.mulacc(math.tau, turns.mulacc(_TAU_LOW, r_low))
    sine, sine_ahead = _sine_and_cosine(r, r_low, SIN_RADIANS, COS_RADIANS)
    if not cosine:
        sine = (magnitude < 2.0**-27).where(magnitude, sine)
    quadrant = first_shift.bitcast(dtypes.uint64) + second_shift.bitcast(dtypes.uint64)
    quadrant = quadrant + 1 if cosine else quadrant
    value = (quadrant & 1).ne(0).where(sine_ahead, sine)
    negative = (quadrant >> 1) << 63
    signed = value.bitcast(dtypes.uint64) ^ negative
    return (signed if cosine else signed ^ sign).bitcast(dtypes.float64)


Sine = Callable[[UOp, bool], UOp]
"""Makes sin(x), or cos(x), of x and whether it is the cosine."""


# --- the table ----------------------------------------------------------------------------------------------


def _replaced(function: Callable[[UOp, UOp], UOp]) -> Callable[[UOp, UOp], UOp]:
    def replace(whole: UOp, x: UOp) -> UOp:
        wide = x if x.dtype.scalar in WIDE_FORMATS else x.cast(dtypes.float32)
        return function(whole, wide).cast(x.dtype)

    return replace


def sine_rule(of_float32: Sine) -> Rule:
    """The rule for SIN, with what makes that of float32."""

    def sine(_: UOp, angle: UOp) -> UOp:
        x = argument_of_cosine(angle)
        function = _sin_float64 if angle.dtype.scalar is dtypes.float64 else of_float32
        return function(angle, False) if x is None else function(x, True)

    return Rule("sin", node(Ops.SIN, any_node("x"), name="whole"), _replaced(sine))


def _is_ln2(n: UOp) -> bool:
    return n.op is Ops.CONST and bool(n.arg == math.log(2)) and n.dtype.scalar in WIDE_FORMATS


natural_logarithms = RewriteTable("logarithms to base e as arithmetic", [
    Rule("log", node(Ops.MUL, node(Ops.LOG2, any_node("x")), any_node("c", _is_ln2)), lambda x, c: _log(x)),
])
"""For before `elementary_functions`: log2(x) ln(2), rounded once."""

elementary_functions = RewriteTable("elementary functions as arithmetic", [
    Rule("exp2", node(Ops.EXP2, any_node("x"), name="whole"), _replaced(_power)),
    Rule("log2", node(Ops.LOG2, any_node("x"), name="whole"), _replaced(lambda _, x: _log2(x))),
    sine_rule(_sin_float32),
])
"""No EXP2, LOG2 or SIN is left, and no value is further from the true one than the table at the top says."""
