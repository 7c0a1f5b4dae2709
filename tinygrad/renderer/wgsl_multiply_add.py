"""a * b + c of floats rounded once, in WGSL, for devices whose `fma` rounds the product as well.

WGSL lets a device compute fma(a, b, c) either way; `runtime/webgpu.py` asks each how it does. float32 is
computed in float64 where a device has that (`codegen/numerics.py`): drivers compile that four times as fast
as what is here: product and c as whole numbers of two words with a common last place, their sum, and that
rounded to nearest even. What is shifted out leaves a 1 in the last place, so that it still counts in
rounding; there are at least 15 places between it and the digits that are kept. Infinities and NaN, and sums
that are 0, come of the plain operations. It is a function and no rule of the graph: its hundred operations
would stand in a kernel once for each term of every polynomial.
"""
from __future__ import annotations

from string import Template

from tinygrad.dtype import DType, dtypes

_TEXT = Template("""
struct pair_$word { high: $word, low: $word }

fn leading_zeros_$word(a: $word) -> i32 {
    $leading_zeros
}

fn shift_up_$word(a: pair_$word, by: i32) -> pair_$word {
    let far = by >= $bits;
    let near = u32(by) & $places;
    let high = select(a.high, a.low, far);
    let low = select(a.low, 0$u, far);
    return pair_$word((high << near) | ((low >> 1u) >> ($places - near)), low << near);
}

fn shift_down_$word(a: pair_$word, by: i32) -> pair_$word {
    let far = by >= $bits;
    let near = u32(min(by, 2 * $bits - 1)) & $places;
    let high = select(a.high, 0$u, far);
    let low = select(a.low, a.high, far);
    let lost = select(0$u, a.low, far) | (low & ~(~0$u << near));
    let kept = (low >> near) | ((high << 1u) << ($places - near));
    return pair_$word(high >> near, kept | select(0$u, 1$u, lost != 0$u));
}

fn product_$word(a: $word, b: $word) -> pair_$word {
    let a_low = a & $half_mask;
    let b_low = b & $half_mask;
    let middle = (a >> $half) * b_low + a_low * (b >> $half);
    let lowest = a_low * b_low;
    let low = lowest + (middle << $half);
    return pair_$word((a >> $half) * (b >> $half) + (middle >> $half) + select(0$u, 1$u, low < lowest), low);
}

fn exponent_$word(a: $word) -> i32 {
    return i32((a >> $fraction) & $exponent_mask);
}

fn mantissa_$word(a: $word) -> $word {
    return (a & $fraction_mask) | select(0$u, $hidden, exponent_$word(a) != 0);
}

fn $name(a: $float, b: $float, c: $float) -> $float {
    let x = bitcast<$word>(a);
    let y = bitcast<$word>(b);
    let z = bitcast<$word>(c);
    let start = max(exponent_$word(x), 1) + max(exponent_$word(y), 1) - 2 * $lowest - $spare;
    let ahead = max(exponent_$word(z), 1) - $lowest - start;
    let last = start + max(ahead - $most, 0);
    let whole = shift_up_$word(product_$word(mantissa_$word(x), mantissa_$word(y)), $spare);
    let product = shift_down_$word(whole, max(ahead - $most, 0));
    let above = shift_up_$word(pair_$word(0$u, mantissa_$word(z)), clamp(ahead, 0, $most));
    let added = shift_down_$word(above, max(-ahead, 0));

    let differ = ((x ^ y ^ z) & $sign) != 0$u;
    let same_high = product.high == added.high;
    let less = differ && (product.high < added.high || (same_high && product.low < added.low));
    let more_high = select(product.high, added.high, less);
    let more_low = select(product.low, added.low, less);
    let other_high = select(added.high, product.high, less);
    let other_low = select(added.low, product.low, less);
    let low = select(more_low + other_low, more_low - other_low, differ);
    let carry = select(0$u, 1$u, select(low < more_low, more_low < other_low, differ));
    let high = select(more_high + other_high + carry, more_high - other_high - carry, differ);
    let sign = select(x ^ y, z, less) & $sign;

    let zeros = select(leading_zeros_$word(high), $bits + leading_zeros_$word(low), high == 0$u);
    let by = max(2 * $bits - 1 - zeros - i32($fraction), 1 - $lowest - last) - 2;
    let up = shift_up_$word(pair_$word(high, low), max(-by, 0));
    let kept = shift_down_$word(up, max(by, 0)).low;
    let even = (kept >> 2u) & 1$u;
    let rounded = (kept >> 2u) + select(0$u, 1$u, (kept & 3$u) + even > 2$u);
    let exponent = last + by + 1 + $lowest;
    let infinite = exponent >= 2 * $bias;
    let bits = select(($word(exponent) << $fraction) + rounded, $exponent_mask << $fraction, infinite);

    let special = max(exponent_$word(x), exponent_$word(y)) > 2 * $bias;
    let plain = special || (high | low) == 0$u || (whole.high | whole.low) == 0$u;
    let finite = select(bitcast<$float>(sign | bits), c, exponent_$word(z) > 2 * $bias && !special);
    return select(finite, a * b + c, plain);
}
""".strip())

_LEADING_ZEROS = {
    "u32": "return i32(countLeadingZeros(a));",
    "u64": "return i32(select(countLeadingZeros(u32(a >> 32u)), 32u + countLeadingZeros(u32(a)), "
           "(a >> 32u) == 0lu));",
}


def multiply_add_text(name: str, dtype: DType) -> str:
    """The function `name` that gives a * b + c of float32 or float64, rounded once to nearest even, for all
    operands, denormal ones and results too; and what it calls."""
    wide = dtype is dtypes.float64
    word, u, bits, fraction = ("u64", "lu", 64, 52) if wide else ("u32", "u", 32, 23)
    bias = 2 ** (bits - fraction - 2) - 1
    return _TEXT.substitute(
        name=name, float=f"f{bits}", word=word, u=u, bits=bits, places=f"{bits - 1}u",
        leading_zeros=_LEADING_ZEROS[word],
        half=f"{bits // 2}u", half_mask=f"{2 ** (bits // 2) - 1}{u}",
        fraction=f"{fraction}u", fraction_mask=f"{2**fraction - 1}{u}", hidden=f"{2**fraction}{u}",
        exponent_mask=f"{2 * bias + 1}{u}", bias=bias, lowest=bias + fraction, sign=f"(1{u} << {bits - 1}u)",
        # a product, of 2 * fraction + 2 digits, and c, of fraction + 1, each with a place above for the carry
        spare=2 * bits - 1 - (2 * fraction + 2), most=2 * bits - 2 - fraction)
