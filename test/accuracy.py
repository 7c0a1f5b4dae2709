"""How exact the functions of real numbers are: each with its reference, the largest error allowed, and how
errors are counted. `test_ulp.py` holds them to it.

    python test/accuracy.py [name ...]

computes the functions of these names (or all) of every float32 there is, some minutes each, and writes what
it finds into the table of docs/accuracy.md.
"""
from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinygrad import Device, Tensor, dtypes
from tinygrad.dtype import DType

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]


# --- references, of float64 and long double -----------------------------------------------------------------


def from_library(function: Callable[[float], float], near_zero: Function, low: float,
                 high: float) -> Function:
    """A function of Python floats, item by item; constant below `low` and above `high`, and next to zero,
    where float64 cannot tell it from `near_zero`, that."""
    def reference(x: Array) -> Array:
        result = np.where(np.isnan(x), x, np.where(x < low, function(low), function(high)))
        inside = (x >= low) & (x <= high)
        result[inside] = near_zero(x[inside])
        far = inside & (np.abs(x) > 1e-9)
        result[far] = [function(v) for v in x[far].astype(np.float64).tolist()]
        return result

    return reference


def logistic(x: Array) -> Array:
    decay = np.exp(-np.abs(x))
    return np.where(x < 0, decay, 1) / (1 + decay)


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def expm1_below(x: Array) -> Array:
    return np.expm1(np.minimum(x, 0)) + 0.0


def decimal(x: Array, digits: str) -> Any:
    """The number that `digits` say, as exact as the items of `x` are."""
    return x.dtype.type(digits)


def selu(x: Array) -> Array:
    gamma, alpha = decimal(x, "1.0507"), decimal(x, "1.67326")
    return gamma * np.where(x > 0, x, alpha * expm1_below(x))


def tanh_gelu(x: Array) -> Array:
    return x * logistic(np.sqrt(8 / x.dtype.type(np.pi)) * (x + x.dtype.type("0.044715") * x**3))


ROOT_PI = math.sqrt(math.pi)
erf = from_library(math.erf, lambda x: x * (2 / ROOT_PI), -7.0, 7.0)
erfc = from_library(math.erfc, lambda x: 1 - x * (2 / ROOT_PI), -7.0, 28.0)


def exact_gelu(x: Array) -> Array:
    return np.where(x < -40, -0.0, x * 0.5 * erfc(-x * math.sqrt(0.5)))


class Row(NamedTuple):
    """A function: what it is, its reference, and the largest error allowed, by dtype."""

    compute: Callable[[Tensor], Tensor]
    reference: Function
    float32: float = 2.0
    float64: float = 2.5
    """infinite where the reference has no more digits than float64"""
    alone: float | None = None
    """of float32 on a device without float64, where that is used in between"""

    @property
    def here(self) -> float:
        """The largest error of float32 allowed on the default device."""
        has_float64 = Device[Device.DEFAULT].has_dtype(dtypes.float64)
        return self.float32 if self.alone is None or has_float64 else self.alone


BOUNDS = {
    "exp": Row(Tensor.exp, np.exp, 0.9, 0.95),
    "exp2": Row(Tensor.exp2, np.exp2, 0.88, 0.9),
    "expm1": Row(Tensor.expm1, np.expm1),
    "log": Row(Tensor.log, np.log, 0.95, 0.95),
    "log1p": Row(Tensor.log1p, np.log1p),
    "log2": Row(Tensor.log2, np.log2, 0.96, 0.96),
    "log10": Row(Tensor.log10, np.log10),
    "sin": Row(Tensor.sin, np.sin, 0.501, 0.85, 0.85),
    "cos": Row(Tensor.cos, np.cos, 0.501, 0.85, 0.85),
    "tan": Row(Tensor.tan, np.tan, 2.0, 2.5),
    "asin": Row(Tensor.asin, np.arcsin),
    "acos": Row(Tensor.acos, np.arccos),
    "atan": Row(Tensor.atan, np.arctan),
    "sinh": Row(Tensor.sinh, np.sinh),
    "cosh": Row(Tensor.cosh, np.cosh),
    "tanh": Row(Tensor.tanh, np.tanh),
    "asinh": Row(Tensor.asinh, np.arcsinh),
    "acosh": Row(Tensor.acosh, np.arccosh, 2.2),
    "atanh": Row(Tensor.atanh, np.arctanh, 2.1),
    "sqrt": Row(Tensor.sqrt, np.sqrt, 0.5, 0.501),
    "rsqrt": Row(Tensor.rsqrt, lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "reciprocal": Row(Tensor.reciprocal, lambda x: 1 / x, 0.5, 0.501),
    "x / 7": Row(lambda x: x / 7, lambda x: x / 7, 0.5, 0.501),
    "erf": Row(Tensor.erf, erf, 2.0, 2.5),
    "erfc": Row(Tensor.erfc, erfc, 6.0, 6.0),
    "gelu, exact": Row(lambda x: x.gelu("none"), exact_gelu, 6.0, math.inf),
    "gelu": Row(Tensor.gelu, tanh_gelu, 220.0, math.inf),
    "sigmoid": Row(Tensor.sigmoid, logistic, 2.5, 2.5),
    "silu": Row(Tensor.silu, lambda x: x * logistic(x), 4.0, 4.0),
    "mish": Row(Tensor.mish, lambda x: x * np.tanh(softplus(x)), 5.0, 5.0),
    "softplus": Row(Tensor.softplus, softplus, 2.0, 2.5),
    "logsigmoid": Row(Tensor.logsigmoid, lambda x: -softplus(-x), 2.0, 2.5),
    "elu": Row(Tensor.elu, lambda x: np.where(x > 0, x, expm1_below(x))),
    "elu, alpha 1.5": Row(lambda x: x.elu(1.5), lambda x: np.where(x > 0, x, 1.5 * expm1_below(x))),
    "celu": Row(Tensor.celu, lambda x: np.where(x > 0, x, expm1_below(x))),
    "celu, alpha 1.5": Row(lambda x: x.celu(1.5), lambda x: np.where(x > 0, x, 1.5 * expm1_below(x / 1.5))),
    "selu": Row(Tensor.selu, selu, 2.2),
    "quick_gelu": Row(Tensor.quick_gelu, lambda x: x * logistic(decimal(x, "1.702") * x), 140.0, math.inf),
    "softplus, beta 3": Row(lambda x: x.softplus(3), lambda x: softplus(x * 3) / 3, 100.0, math.inf),
    "hardsigmoid": Row(Tensor.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6, 1.5, 1.5),
    "softsign": Row(Tensor.softsign, lambda x: x / (1 + np.abs(x)), 1.5, 1.5),
    "x ** 3": Row(lambda x: x ** 3, lambda x: x * x * x, 1.5, 1.5),
    "x ** 16": Row(lambda x: x ** 16, lambda x: (((x * x)**2)**2)**2, 1.5, 1.5),
    "x ** -2": Row(lambda x: x ** -2, lambda x: 1 / (x * x), 1.5, 1.5),
    "x ** -7": Row(lambda x: x ** -7, lambda x: 1 / x**7, 1.5, 1.5),
    "leaky_relu": Row(Tensor.leaky_relu, lambda x: np.where(x > 0, x, x * 0.01), 1.1, 1.1),
    "hardswish": Row(Tensor.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6, 2.0, 2.0),
    "x ** 1.75": Row(lambda x: x ** 1.75, lambda x: x ** 1.75, 0.51, 1.5, 0.95),
    "0.3125 ** x": Row(lambda x: 0.3125 ** x, lambda x: 0.3125 ** x, 0.51, 1.5, 0.95),
}

FORMATS = {dtypes.float16: (10, -14), dtypes.bfloat16: (7, -126), dtypes.float32: (23, -126),
           dtypes.float64: (52, -1022)}
"""bits of the fraction, lowest exponent of a normal number"""


# --- errors -------------------------------------------------------------------------------------------------


def errors(got: Array, true: Array, dtype: DType) -> Array:
    """|got - true| in units of the last place; infinity where a special value or a zero's sign differs.

    At the upper end a unit is that of the largest number: infinity is as far as 2**128 is (float32).
    """
    fraction, lowest = FORMATS[dtype]
    highest = 1 - lowest
    with np.errstate(all="ignore"):
        beyond = np.ldexp(true.dtype.type(1), highest + 1)
        exact = np.clip(true, -beyond, beyond)
        value = np.clip(got.astype(true.dtype), -beyond, beyond)
        exponent = np.clip(np.frexp(exact)[1] - 1, lowest, highest)
        place = np.ldexp(np.ones_like(true), exponent - fraction)
        error = np.abs(value - exact) / place
        nan = np.isnan(got) | np.isnan(true)
        zero_sign = (true != 0) | (np.signbit(true) == np.signbit(got))
    both_nan = np.isnan(got) & np.isnan(true)
    return np.where(nan, np.where(both_nan, 0, np.inf), np.where(zero_sign, error, np.inf))


class Found(NamedTuple):
    """What a function makes of some numbers."""

    error: float
    """the largest, in units of the last place; 0.5 where all results are the nearest numbers"""
    at: Any
    """where it is"""
    inexact: int
    """how many results are not the nearest number"""
    report: str
    """the argument, the result and the true one, as text"""


def largest_error(name: str, dtype: DType, x: Array) -> Found:
    """Of the function `name`. Results that are the true ones rounded are looked at no further."""
    row = BOUNDS[name]
    with np.errstate(all="ignore"):
        true = row.reference(x.astype(np.longdouble if dtype is dtypes.float64 else np.float64))
        rounded = true.astype(x.dtype)
    got = row.compute(Tensor(x)).numpy()
    assert got.dtype == x.dtype
    bits = np.dtype(f"u{x.itemsize}")
    differ = np.flatnonzero((got.view(bits) != rounded.view(bits)) & ~(np.isnan(got) & np.isnan(rounded)))
    if not differ.size:
        return Found(0.5, x[0], 0, "")
    error = errors(got[differ], true[differ], dtype)
    worst = int(np.argmax(error))
    at = differ[worst]
    report = f"{name} of {x[at]!r}: {got[at]!r}, true {true[at]!r}, {error[worst]} units off"
    return Found(float(error[worst]), x[at], differ.size, report)


CHUNK = 2**22


def over_every_float32(name: str) -> Found:
    """Some minutes of one core."""
    found = Found(0.5, np.float32(0), 0, "")
    for block in range(2**32 // CHUNK):
        bits = np.arange(CHUNK, dtype=np.uint32) + np.uint32(block * CHUNK)
        here = largest_error(name, dtypes.float32, bits.view(np.float32))
        inexact = found.inexact + here.inexact
        found = (here if here.error > found.error else found)._replace(inexact=inexact)
        if block % 64 == 63:
            print(f"{name}: {block + 1} of {2**32 // CHUNK}, {found.error:.4f} {found.report}", flush=True)
    return found


PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"


def write_row(name: str, found: Found) -> None:
    """The function's line of the table, in place of the one that is there."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"\| `(.+?)` \|", line))}
    today = datetime.datetime.now(datetime.UTC).date()
    row = (f"| `{name}` | {found.error:.3f} | {found.at!s} | {1 - found.inexact / 2**32:.4%} "
           f"| {BOUNDS[name].float32:g} | {today} |")
    if name in rows:
        lines[rows[name]] = row
    else:
        lines.insert(max(rows.values(), default=len(lines) - 1) + 1, row)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or BOUNDS:
        write_row(chosen, over_every_float32(chosen))
