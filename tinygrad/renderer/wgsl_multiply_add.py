"""a * b + c of floats rounded once, in WGSL, for devices whose `fma` rounds the product as well.

WGSL lets a device compute fma(a, b, c) either way; `runtime/webgpu.py` asks each how it does. Where the
product is rounded, the whole is computed in integers: product and c as whole numbers of two words with a common
last place, their sum, and that rounded to nearest even. What is shifted out leaves a 1 in the last place, so
that it still counts in rounding; there are at least 15 places between it and the digits that are kept. Infinities
and NaN, and sums that are 0, come of the plain operations.
"""
from __future__ import annotations

from string import Template

from tinygrad.dtype import DType, dtypes

_TEXT = Template("""
struct pair_$word { high: $word, low: $word }

fn leading_zeros_$word(a: $word) -> i32 {
    $leading_zeros
}

fn shift_up_$word(a: pair_$word, by: u32) -> pair_$word {
    if (by == 0u) { return a; }
    if (by >= $bits) { return pair_$word(a.low << (by - $bits), 0$u); }
    return pair_$word((a.high << by) | (a.low >> ($bits - by)), a.low << by);
}

fn shift_down_$word(a: pair_$word, by: u32) -> pair_$word {
    if (by == 0u) { return a; }
    if (by >= 2u * $bits) { return pair_$word(0$u, select(0$u, 1$u, (a.high | a.low) != 0$u)); }
    if (by == $bits) { return pair_$word(0$u, a.high | select(0$u, 1$u, a.low != 0$u)); }
    if (by > $bits) {
        let lost = a.low | (a.high << (2u * $bits - by));
        return pair_$word(0$u, (a.high >> (by - $bits)) | select(0$u, 1$u, lost != 0$u));
    }
    let lost = a.low << ($bits - by);
    return pair_$word(a.high >> by,
                      (a.high << ($bits - by)) | (a.low >> by) | select(0$u, 1$u, lost != 0$u));
}

fn product_$word(a: $word, b: $word) -> pair_$word {
    let a_low = a & $half_mask;
    let b_low = b & $half_mask;
    let middle = (a >> $half) * b_low + a_low * (b >> $half);
    let lowest = a_low * b_low;
    let low = lowest + (middle << $half);
    return pair_$word((a >> $half) * (b >> $half) + (middle >> $half) + select(0$u, 1$u, low < lowest), low);
}

fn difference_$word(a: pair_$word, b: pair_$word) -> pair_$word {
    return pair_$word(a.high - b.high - select(0$u, 1$u, a.low < b.low), a.low - b.low);
}

fn mantissa_$word(a: $word) -> $word {
    return (a & $fraction_mask) | select(0$u, $hidden, ((a >> $fraction) & $exponent_mask) != 0$u);
}

fn exponent_$word(a: $word) -> i32 {
    return max(i32((a >> $fraction) & $exponent_mask), 1);
}

fn $name(a: $float, b: $float, c: $float) -> $float {
    let plain = a * b + c;
    let x = bitcast<$word>(a);
    let y = bitcast<$word>(b);
    let z = bitcast<$word>(c);
    if (max(exponent_$word(x), exponent_$word(y)) > 2 * $bias) { return plain; }
    if (exponent_$word(z) > 2 * $bias) { return c; }
    var product = shift_up_$word(product_$word(mantissa_$word(x), mantissa_$word(y)), $spare);
    if ((product.high | product.low) == 0$u) { return plain; }
    var last = exponent_$word(x) + exponent_$word(y) - 2 * $lowest - i32($spare);
    var ahead = exponent_$word(z) - $lowest - last;
    if (ahead > $most) {
        product = shift_down_$word(product, u32(ahead - $most));
        last += ahead - $most;
        ahead = $most;
    }
    var added = pair_$word(0$u, mantissa_$word(z));
    if (ahead >= 0) { added = shift_up_$word(added, u32(ahead)); }
    else { added = shift_down_$word(added, u32(-ahead)); }
    var sign = (x ^ y) & $sign;
    var sum: pair_$word;
    if (((x ^ y ^ z) & $sign) == 0$u) {
        sum.low = product.low + added.low;
        sum.high = product.high + added.high + select(0$u, 1$u, sum.low < added.low);
    } else if (product.high < added.high || (product.high == added.high && product.low < added.low)) {
        sum = difference_$word(added, product);
        sign = z & $sign;
    } else {
        sum = difference_$word(product, added);
    }
    if ((sum.high | sum.low) == 0$u) { return plain; }
    var zeros = leading_zeros_$word(sum.high);
    if (sum.high == 0$u) { zeros = i32($bits) + leading_zeros_$word(sum.low); }
    let top = 2 * i32($bits) - 1 - zeros;
    let by = max(top - i32($fraction), 1 - $lowest - last);
    var kept: pair_$word;
    if (by >= 2) { kept = shift_down_$word(sum, u32(by - 2)); }
    else { kept = shift_up_$word(sum, u32(2 - by)); }
    let even = (kept.low >> 2u) & 1$u;
    let whole = (kept.low >> 2u) + select(0$u, 1$u, (kept.low & 3$u) + even > 2$u);
    let exponent = last + by + $lowest - 1;
    if (exponent >= 2 * $bias) { return bitcast<$float>(sign | ($exponent_mask << $fraction)); }
    return bitcast<$float>(sign | (($word(exponent) << $fraction) + whole));
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
        name=name, float=f"f{bits}", word=word, u=u, bits=f"{bits}u", leading_zeros=_LEADING_ZEROS[word],
        half=f"{bits // 2}u", half_mask=f"{2 ** (bits // 2) - 1}{u}",
        fraction=f"{fraction}u", fraction_mask=f"{2**fraction - 1}{u}", hidden=f"{2**fraction}{u}",
        exponent_mask=f"{2 * bias + 1}{u}", bias=bias, lowest=bias + fraction, sign=f"(1{u} << {bits - 1}u)",
        # a product, of 2 * fraction + 2 digits, and c, of fraction + 1, each with a place above for the carry
        spare=f"{2 * bits - 1 - (2 * fraction + 2)}u", most=2 * bits - 2 - fraction)
