"""EXP2, LOG2 and SIN as arithmetic: errors in units of the last place at every exponent, and special values.

The expressions are evaluated by NumPy, one rounding an operation, and compared with the C library's functions
in float64 (for float32) or 80-bit long double (for float64). Run with `-m slow` for every float32 there is.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest

from tinygrad.codegen import transcendental
from tinygrad.codegen.transcendental import WEIGHT, elementary_functions, natural_logarithms
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.elementary import cosine, exponential, log1p_node
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp

Array = np.ndarray[Any, Any]

FUNCTIONS: dict[str, tuple[Callable[[UOp], UOp], Callable[..., Any]]] = {
    "exp2": (UOp.exp2, np.exp2), "log2": (UOp.log2, np.log2), "sin": (UOp.sin, np.sin),
    "exp": (exponential, np.exp), "log": (lambda x: x.log2() * math.log(2), np.log),
    "log1p": (log1p_node, lambda x: np.log1p(x) + 0.0), "cos": (cosine, np.cos),
}
"""how each is written in the graph, and its reference"""
PRIMITIVES = ["exp2", "log2", "sin"]
FORMATS = {
    dtypes.float32: (23, -126), dtypes.float64: (52, -1022),
    dtypes.float16: (10, -14), dtypes.bfloat16: (7, -126),
}
"""bits of the fraction, lowest exponent of a normal number"""
WIDER = {dtypes.float64: np.longdouble}
BOUND = {
    ("exp2", dtypes.float32): 0.85, ("exp", dtypes.float32): 0.90, ("log2", dtypes.float32): 0.96,
    ("log", dtypes.float32): 0.95, ("log1p", dtypes.float32): 1.40, ("sin", dtypes.float32): 0.501,
    ("cos", dtypes.float32): 0.501,
    ("exp2", dtypes.float64): 0.88, ("exp", dtypes.float64): 0.95, ("log2", dtypes.float64): 0.96,
    ("log", dtypes.float64): 0.95, ("log1p", dtypes.float64): 1.70, ("sin", dtypes.float64): 0.85,
    ("cos", dtypes.float64): 0.85,
}
OPERATIONS = {
    ("exp2", dtypes.float32): 15, ("exp", dtypes.float32): 16, ("log2", dtypes.float32): 29,
    ("log", dtypes.float32): 29, ("log1p", dtypes.float32): 34, ("sin", dtypes.float32): 41,
    ("cos", dtypes.float32): 42,
    ("exp2", dtypes.float64): 20, ("exp", dtypes.float64): 21, ("log2", dtypes.float64): 40,
    ("log", dtypes.float64): 40, ("log1p", dtypes.float64): 45, ("sin", dtypes.float64): 156,
    ("cos", dtypes.float64): 156,
}
CASES = list(BOUND)
CASE_NAMES = [f"{name}-{dtype.name}" for name, dtype in CASES]

needs_long_double = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no 80-bit long double")


# --- an evaluator -------------------------------------------------------------------------------------------


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker's exact product of float64, which needs no fused operation."""
    def halves(v: Array) -> tuple[Array, Array]:
        scaled = v * 134217729.0
        high = scaled - (scaled - v)
        return high, v - high

    product = a * b
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if a.dtype == np.float32:
        wide = a.astype(np.float64) * b.astype(np.float64)
        return (wide.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)
    # Boldo and Melquiond: the sum of what is lost is rounded to odd, so the last sum rounds as from all
    product, product_low = two_product(a, b)
    total, total_low = two_sum(c, product_low)
    value, value_low = two_sum(product, total)
    rest, lost = two_sum(total_low, value_low)
    even = (rest.view(np.uint64) & np.uint64(1)) == 0
    with np.errstate(under="ignore"):
        toward = np.nextafter(rest, np.where(lost > 0, np.inf, -np.inf))
    result = value + np.where((lost != 0) & even, toward, rest)
    return np.where(np.isfinite(result), result, a * b + c)


BINARY: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal,
    Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.SHL: np.left_shift,
    Ops.SHR: np.right_shift, Ops.WHERE: np.where, Ops.MULACC: fused,
    Ops.NEG: np.negative, Ops.TRUNC: np.trunc, Ops.FDIV: np.divide,
    Ops.LDEXP: lambda a, b: np.ldexp(a, np.nan_to_num(b).astype(np.int32)),
}


def evaluate(root: UOp, leaf: UOp, x: Array, underflow: Literal["ignore", "raise"] = "ignore") -> Array:
    """The value of `root` where `leaf` is `x`."""
    values: dict[UOp, Array] = {leaf: x}
    with np.errstate(all="ignore", under=underflow):
        for node in root.toposort():
            if node in values:
                continue
            sources = [values[s] for s in node.src]
            if node.op is Ops.CONST:
                values[node] = np.full(x.shape, node.arg, node.dtype.numpy)
                exact = float(values[node].flat[0]) == node.arg or node.arg != node.arg
                assert exact or node.dtype.is_int, f"{node.arg} is not a {node.dtype}"
            elif node.op is Ops.CAST:
                values[node] = sources[0].astype(node.dtype.numpy)
            elif node.op is Ops.BITCAST:
                values[node] = sources[0].view(node.dtype.numpy)
            else:
                values[node] = BINARY[node.op](*sources)
    return values[root]


without_detach = RewriteTable("as in a loop nest", [
    Rule("detach", node(Ops.DETACH, any_node("x")), lambda x: x),
])


def expression(name: str, dtype: DType) -> tuple[UOp, UOp]:
    """(the arithmetic for the function `name`, its argument)"""
    leaf = UOp.new(Ops.REGISTER, dtype, (), 0)
    written = rewrite(FUNCTIONS[name][0](leaf), without_detach)
    return rewrite(rewrite(written, natural_logarithms), elementary_functions), leaf


def computed(name: str, dtype: DType, x: Array) -> Array:
    return evaluate(*expression(name, dtype), x)


def reference(name: str, dtype: DType, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name][1](x.astype(WIDER.get(dtype, np.float64))))


def errors(got: Array, true: Array, dtype: DType) -> Array:
    """|got - true| in units of the last place; infinity where a special value or a zero's sign differs."""
    fraction, lowest = FORMATS[dtype]
    with np.errstate(all="ignore"):
        rounded = true.astype(got.dtype)
        place = np.ldexp(np.ones_like(true), np.maximum(np.frexp(true)[1] - 1, lowest) - fraction)
        error = np.abs(got.astype(true.dtype) - true) / place
        finite = np.isfinite(rounded.astype(np.float64)) & np.isfinite(got.astype(np.float64))
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        zero_sign = (true != 0) | (np.signbit(true) == np.signbit(got))
    return np.where(finite & zero_sign, error, np.where(same & zero_sign, 0, np.inf))


def check(name: str, dtype: DType, x: Array, bound: float) -> None:
    got, true = computed(name, dtype, x), reference(name, dtype, x)
    error = errors(got, true, dtype)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name} {dtype} of {x[worst]!r}: {got[worst]!r}, true {true[worst]!r}"


def every_exponent(dtype: DType, each: int, seed: int) -> Array:
    """`each` numbers of both signs from every exponent, denormals, infinity and NaN among them."""
    rng = np.random.default_rng(seed)
    fraction, _ = FORMATS[dtype]
    bits = np.dtype(f"uint{dtype.bits}").type
    head = np.arange(2**(dtype.bits - fraction), dtype=np.uint64).repeat(each) << np.uint64(fraction)
    tail = rng.integers(0, 2**fraction, head.size, dtype=np.uint64)
    tail[::each] = 0
    tail[1::each] = 2**fraction - 1
    return np.asarray((head | tail).astype(bits).view(dtype.numpy))


# --- accuracy -----------------------------------------------------------------------------------------------


@needs_long_double
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=CASE_NAMES)
def test_error_over_every_exponent(name: str, dtype: DType) -> None:
    x = every_exponent(dtype, 400 if dtype is dtypes.float32 else 30, seed=1)
    check(name, dtype, x, BOUND[name, dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_exp2_error_over_its_range(dtype: DType) -> None:
    low, high = (-152, 129) if dtype is dtypes.float32 else (-1077, 1025)
    rng = np.random.default_rng(2)
    steps = np.arange(4 * low, 4 * high + 1) / 4
    x = np.concatenate([rng.uniform(low, high, 100_000), rng.uniform(-1, 1, 50_000)]).astype(dtype.numpy)
    edges = steps.astype(dtype.numpy)
    x = np.concatenate([x, edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)])
    check("exp2", dtype, x, BOUND["exp2", dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_log2_error_next_to_one(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    fraction, _ = FORMATS[dtype]
    distance = rng.uniform(-1, 1, 50_000) * 2.0**rng.integers(-fraction, 0, 50_000)
    x = np.concatenate([1 + distance, rng.uniform(0.5, 2, 50_000)]).astype(dtype.numpy)
    check("log2", dtype, x, BOUND["log2", dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_sin_error_next_to_multiples_of_a_quarter_turn(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    quarters = np.concatenate([np.arange(-20_000, 20_000), rng.integers(-2**31, 2**31, 20_000)])
    x = np.concatenate([quarters * (math.pi / 2), rng.uniform(-100, 100, 50_000)]).astype(dtype.numpy)
    check("sin", dtype, x, BOUND["sin", dtype])


@needs_long_double
def test_sin_error_between_the_windows_of_digits() -> None:
    powers32 = np.ldexp(1.0, np.arange(20, 128))
    x32 = (powers32[:, None] * np.random.default_rng(5).uniform(0.5, 1, (1, 500))).astype(np.float32).ravel()
    check("sin", dtypes.float32, np.concatenate([x32, powers32.astype(np.float32)]), 0.501)
    powers64 = np.ldexp(1.0, np.arange(40, 1024))
    x64 = (powers64[:, None] * np.random.default_rng(6).uniform(0.5, 1, (1, 50))).ravel()
    check("sin", dtypes.float64, np.concatenate([x64, powers64]), BOUND["sin", dtypes.float64])


def folded_to_one_half_turn(x: float) -> float:
    """A small r with sin(r) = sin(x), by an exact remainder; pi from 90 terms of the Chudnovskys' series."""
    terms, product, linear, power = Fraction(0), 1, 13591409, 1
    multinomial = 6
    for k in range(1, 91):
        terms += Fraction(product * linear, power)
        product = product * (multinomial**3 - 16 * multinomial) // k**3
        linear += 545140134
        power *= -262537412640768000
        multinomial += 12
    digits = 1250
    root = math.isqrt(10005 * 10**(2 * digits))
    pi = 426880 * Fraction(root, 10**digits) / terms
    turns = round(Fraction(x) / pi)
    return float((Fraction(x) - turns * pi) * (-1)**turns)


@pytest.mark.parametrize(
    "x", [6381956970095103 * 2.0**798, 6381956970095103 * 2.0**797, 355.0, 411557987.0, 2.0**1023])
def test_sin_next_to_a_multiple_of_pi(x: float) -> None:
    """The first two are 2**-60 from a multiple of pi and of pi/2, closer than any other float64 (Kahan)."""
    rest = folded_to_one_half_turn(x)
    got = float(computed("sin", dtypes.float64, np.array([x]))[0])
    assert abs(got - math.sin(rest)) <= math.ulp(math.sin(rest))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", PRIMITIVES)
def test_half_types_round_the_float32_result(name: str, dtype: DType) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    check(name, dtype, x, 0.502)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float32(name: str) -> None:
    for block in range(2**12):
        bits = np.arange(2**20, dtype=np.uint32) + np.uint32(block << 20)
        check(name, dtypes.float32, bits.view(np.float32), BOUND[name, dtypes.float32])


# --- special values -----------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (3000.0, INF), (-3000.0, 0.0),
            (1e30, INF), (-1e30, 0.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (1.0, 0.0)],
    "log1p": [(0.0, 0.0), (-1.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-2.0, NAN), (1e-40, 1e-40)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1.0)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1.0, 2.0), (-1.0, 0.5),
               (10.0, 1024.0), (3000.0, INF), (-3000.0, 0.0), (1e30, INF), (-1e30, 0.0)],
    "log2": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-1e-40, NAN),
               (1.0, 0.0), (2.0, 1.0), (0.5, -1.0), (2.0**-149, -149.0), (2.0**100, 100.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1e-40),
              (-1e-40, -1e-40)],
}


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=CASE_NAMES)
def test_special_values(name: str, dtype: DType) -> None:
    x, expected = (np.array(column, dtype.numpy) for column in zip(*SPECIAL[name], strict=True))
    got = computed(name, dtype, x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(got)]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_nan_stays_one(name: str) -> None:
    bits = np.array([0x7f800001, 0x7fc00000, 0xffc00000, 0x7fffffff, 0xff8000ff, 0x7fabcdef], np.uint32)
    assert np.isnan(computed(name, dtypes.float32, bits.view(np.float32))).all()
    bits64 = np.array([0x7ff0000000000001, 0x7ff8000000000000, 0xffffffffffffffff], np.uint64)
    assert np.isnan(computed(name, dtypes.float64, bits64.view(np.float64))).all()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_powers_of_two_are_exact(dtype: DType) -> None:
    fraction, lowest = FORMATS[dtype]
    n = np.arange(lowest - fraction, 1 - lowest + 1)
    powers = np.ldexp(np.array(1, dtype.numpy), n)
    np.testing.assert_array_equal(computed("exp2", dtype, n.astype(dtype.numpy)), powers)
    np.testing.assert_array_equal(computed("log2", dtype, powers), n)


def test_sin_is_odd() -> None:
    x = every_exponent(dtypes.float32, 20, seed=7)
    x = x[np.isfinite(x)]
    mirrored = computed("sin", dtypes.float32, -x)
    np.testing.assert_array_equal(mirrored, -computed("sin", dtypes.float32, x))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", ["exp2", "exp"])
def test_powers_that_vanish_are_not_scaled_to_nothing(name: str, dtype: DType) -> None:
    """A result that is too small for its format takes a processor a hundred cycles, and masked scores
    are -inf."""
    x = np.array([-np.inf, -1e30, -1e9, -2000, -1100 if dtype is dtypes.float64 else -151], dtype.numpy)
    assert not evaluate(*expression(name, dtype), x, underflow="raise").any()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", ["exp2", "exp"])
def test_weights_are_normal_numbers_or_zero(name: str, dtype: DType) -> None:
    leaf = UOp.new(Ops.REGISTER, dtype, (), 0)
    power = rewrite(FUNCTIONS[name][0](leaf), without_detach)
    lowest = FORMATS[dtype][1] * (1 if name == "exp2" else math.log(2))
    x = np.linspace(0, lowest * 1.3, 10_000).astype(dtype.numpy)
    weights = evaluate(rewrite(power.replace(arg=WEIGHT), elementary_functions), leaf, x, underflow="raise")
    powers = computed(name, dtype, x)
    assert np.array_equal(weights, np.where(x < np.ceil(lowest), 0, powers))


# --- form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=CASE_NAMES)
def test_number_of_operations(name: str, dtype: DType) -> None:
    free = (Ops.CONST, Ops.REGISTER, Ops.BITCAST)
    count = sum(node.op not in free for node in expression(name, dtype)[0].toposort())
    assert count <= OPERATIONS[name, dtype]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=CASE_NAMES)
def test_vectors_take_the_same_steps_in_every_lane(name: str, dtype: DType) -> None:
    scalar, scalar_leaf = expression(name, dtype)
    vector, leaf = expression(name, dtype.vec(16))
    assert {node.dtype.count for node in vector.toposort()} == {16}
    assert vector.dtype is dtype.vec(16)
    steps = [(n.op, n.dtype.scalar, repr(n.arg)) for n in vector.toposort() if n is not leaf]
    assert steps == [(n.op, n.dtype, repr(n.arg)) for n in scalar.toposort() if n is not scalar_leaf]


@needs_long_double
def test_polynomials_leave_the_stated_errors() -> None:
    def value(coefficients: tuple[float, ...], x: Array) -> Array:
        return np.asarray(np.polynomial.polynomial.polyval(x, np.array(coefficients, np.longdouble)))

    def largest(approximate: Array, true: Array) -> float:
        return float(np.log2(np.abs(approximate / true - 1).max()))

    formats = transcendental.WIDE_FORMATS.values()
    for form, exp2_error, log2_error in zip(formats, (-28.1, -57.7), (-27.6, -56.6)):
        f = np.linspace(-0.5, 0.5, 20_000, dtype=np.longdouble)
        assert largest(1 + f * value(form.exp2, f), np.exp2(f)) < exp2_error
        f = np.linspace(math.sqrt(0.5) - 1, math.sqrt(2) - 1, 20_000, dtype=np.longdouble)
        lead = np.longdouble(form.log2_lead)
        assert largest(f * (lead + value(form.log2, f)), np.log1p(f) / np.log(np.longdouble(2))) < log2_error
    tau = 2 * np.longdouble("3.14159265358979323846264338327950288")
    t = np.linspace(1e-6, 0.25 + 1 / 256, 20_000, dtype=np.longdouble)
    assert largest(t * value(transcendental.SIN_TURNS, t * t), np.sin(tau * t)) < -35.1
    r = np.linspace(1e-6, math.pi / 4, 20_000, dtype=np.longdouble)
    assert largest(r + r**3 * value(transcendental.SIN_RADIANS, r * r), np.sin(r)) < -57.8
    assert largest(1 - r**2 / 2 + r**4 * value(transcendental.COS_RADIANS, r * r), np.cos(r)) < -62.0


def test_digits_of_a_turn() -> None:
    """2/pi in hexadecimal, as every table for large arguments prints it."""
    digits = transcendental._digits_of_turn(30, 16)
    total = sum(Fraction(d, 2**(30 * (j + 1))) for j, d in enumerate(digits))
    assert all(abs(d) <= 2**29 for d in digits)
    assert int(4 * total * 2**192) == 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041
