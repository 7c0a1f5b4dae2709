"""EXP2, LOG2 and SIN as arithmetic: errors in units of the last place at every exponent, and special values.

The expressions are evaluated by NumPy, one rounding an operation, and compared with the C library's functions
in float64 (for float32) or 80-bit long double (for float64). Run with `-m slow` for every float32 there is.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tinygrad.codegen import transcendental
from tinygrad.codegen.transcendental import elementary_functions
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import rewrite
from tinygrad.graph.uop import UOp

Array = np.ndarray[Any, Any]

FUNCTIONS: dict[Ops, Callable[..., Any]] = {Ops.EXP2: np.exp2, Ops.LOG2: np.log2, Ops.SIN: np.sin}
FORMATS = {
    dtypes.float32: (23, -126), dtypes.float64: (52, -1022),
    dtypes.float16: (10, -14), dtypes.bfloat16: (7, -126),
}
"""bits of the fraction, lowest exponent of a normal number"""
WIDER = {dtypes.float64: np.longdouble}
BOUND = {
    (Ops.EXP2, dtypes.float32): 0.88, (Ops.LOG2, dtypes.float32): 0.96, (Ops.SIN, dtypes.float32): 0.501,
    (Ops.EXP2, dtypes.float64): 0.88, (Ops.LOG2, dtypes.float64): 0.96, (Ops.SIN, dtypes.float64): 1.05,
}
OPERATIONS = {
    (Ops.EXP2, dtypes.float32): 19, (Ops.LOG2, dtypes.float32): 29, (Ops.SIN, dtypes.float32): 41,
    (Ops.EXP2, dtypes.float64): 24, (Ops.LOG2, dtypes.float64): 40, (Ops.SIN, dtypes.float64): 155,
}
CASES = list(BOUND)
CASE_NAMES = [f"{op.name.lower()}-{dtype.name}" for op, dtype in CASES]

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
    toward = np.nextafter(rest, np.where(lost > 0, np.inf, -np.inf))
    result = value + np.where((lost != 0) & even, toward, rest)
    return np.where(np.isfinite(result), result, a * b + c)


BINARY: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal,
    Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.SHL: np.left_shift,
    Ops.SHR: np.right_shift, Ops.WHERE: np.where, Ops.MULACC: fused,
    Ops.NEG: np.negative, Ops.TRUNC: np.trunc,
}


def evaluate(root: UOp, leaf: UOp, x: Array) -> Array:
    """The value of `root` where `leaf` is `x`."""
    values: dict[UOp, Array] = {leaf: x}
    with np.errstate(all="ignore"):
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


def expression(op: Ops, dtype: DType) -> tuple[UOp, UOp]:
    """(the arithmetic for `op`, its argument)"""
    leaf = UOp.new(Ops.REGISTER, dtype, (), 0)
    return rewrite(leaf.alu(op), elementary_functions), leaf


def computed(op: Ops, dtype: DType, x: Array) -> Array:
    return evaluate(*expression(op, dtype), x)


def reference(op: Ops, dtype: DType, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[op](x.astype(WIDER.get(dtype, np.float64))))


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


def check(op: Ops, dtype: DType, x: Array, bound: float) -> None:
    got, true = computed(op, dtype, x), reference(op, dtype, x)
    error = errors(got, true, dtype)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{op.name} {dtype} of {x[worst]!r}: {got[worst]!r}, true {true[worst]!r}"


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
@pytest.mark.parametrize(("op", "dtype"), CASES, ids=CASE_NAMES)
def test_error_over_every_exponent(op: Ops, dtype: DType) -> None:
    check(op, dtype, every_exponent(dtype, 400 if dtype is dtypes.float32 else 30, seed=1), BOUND[op, dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_exp2_error_over_its_range(dtype: DType) -> None:
    low, high = (-152, 129) if dtype is dtypes.float32 else (-1077, 1025)
    rng = np.random.default_rng(2)
    steps = np.arange(4 * low, 4 * high + 1) / 4
    x = np.concatenate([rng.uniform(low, high, 100_000), rng.uniform(-1, 1, 50_000)]).astype(dtype.numpy)
    edges = steps.astype(dtype.numpy)
    x = np.concatenate([x, edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)])
    check(Ops.EXP2, dtype, x, BOUND[Ops.EXP2, dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_log2_error_next_to_one(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    fraction, _ = FORMATS[dtype]
    distance = rng.uniform(-1, 1, 50_000) * 2.0**rng.integers(-fraction, 0, 50_000)
    x = np.concatenate([1 + distance, rng.uniform(0.5, 2, 50_000)]).astype(dtype.numpy)
    check(Ops.LOG2, dtype, x, BOUND[Ops.LOG2, dtype])


@needs_long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_sin_error_next_to_multiples_of_a_quarter_turn(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    quarters = np.concatenate([np.arange(-20_000, 20_000), rng.integers(-2**31, 2**31, 20_000)])
    x = np.concatenate([quarters * (math.pi / 2), rng.uniform(-100, 100, 50_000)]).astype(dtype.numpy)
    check(Ops.SIN, dtype, x, BOUND[Ops.SIN, dtype])


@needs_long_double
def test_sin_error_between_the_windows_of_digits() -> None:
    powers32 = np.ldexp(1.0, np.arange(20, 128))
    x32 = (powers32[:, None] * np.random.default_rng(5).uniform(0.5, 1, (1, 500))).astype(np.float32).ravel()
    check(Ops.SIN, dtypes.float32, np.concatenate([x32, powers32.astype(np.float32)]), 0.501)
    powers64 = np.ldexp(1.0, np.arange(40, 1024))
    x64 = (powers64[:, None] * np.random.default_rng(6).uniform(0.5, 1, (1, 50))).ravel()
    check(Ops.SIN, dtypes.float64, np.concatenate([x64, powers64]), BOUND[Ops.SIN, dtypes.float64])


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
    got = float(computed(Ops.SIN, dtypes.float64, np.array([x]))[0])
    assert abs(got - math.sin(rest)) <= math.ulp(math.sin(rest))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: str(op.name))
def test_half_types_round_the_float32_result(op: Ops, dtype: DType) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    check(op, dtype, x, 0.502)


@pytest.mark.slow
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: str(op.name))
def test_every_float32(op: Ops) -> None:
    for block in range(2**12):
        bits = np.arange(2**20, dtype=np.uint32) + np.uint32(block << 20)
        check(op, dtypes.float32, bits.view(np.float32), BOUND[op, dtypes.float32])


# --- special values -----------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
SPECIAL: dict[Ops, list[tuple[float, float]]] = {
    Ops.EXP2: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1.0, 2.0), (-1.0, 0.5),
               (10.0, 1024.0), (3000.0, INF), (-3000.0, 0.0), (1e30, INF), (-1e30, 0.0)],
    Ops.LOG2: [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-1e-40, NAN),
               (1.0, 0.0), (2.0, 1.0), (0.5, -1.0), (2.0**-149, -149.0), (2.0**100, 100.0)],
    Ops.SIN: [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1e-40),
              (-1e-40, -1e-40)],
}


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=CASE_NAMES)
def test_special_values(op: Ops, dtype: DType) -> None:
    x, expected = (np.array(column, dtype.numpy) for column in zip(*SPECIAL[op], strict=True))
    got = computed(op, dtype, x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(got)]))


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: str(op.name))
def test_every_nan_stays_one(op: Ops) -> None:
    bits = np.array([0x7f800001, 0x7fc00000, 0xffc00000, 0x7fffffff, 0xff8000ff, 0x7fabcdef], np.uint32)
    assert np.isnan(computed(op, dtypes.float32, bits.view(np.float32))).all()
    bits64 = np.array([0x7ff0000000000001, 0x7ff8000000000000, 0xffffffffffffffff], np.uint64)
    assert np.isnan(computed(op, dtypes.float64, bits64.view(np.float64))).all()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_powers_of_two_are_exact(dtype: DType) -> None:
    fraction, lowest = FORMATS[dtype]
    n = np.arange(lowest - fraction, 1 - lowest + 1)
    powers = np.ldexp(np.array(1, dtype.numpy), n)
    np.testing.assert_array_equal(computed(Ops.EXP2, dtype, n.astype(dtype.numpy)), powers)
    np.testing.assert_array_equal(computed(Ops.LOG2, dtype, powers), n)


def test_sin_is_odd() -> None:
    x = every_exponent(dtypes.float32, 20, seed=7)
    x = x[np.isfinite(x)]
    mirrored = computed(Ops.SIN, dtypes.float32, -x)
    np.testing.assert_array_equal(mirrored, -computed(Ops.SIN, dtypes.float32, x))


# --- form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=CASE_NAMES)
def test_number_of_operations(op: Ops, dtype: DType) -> None:
    free = (Ops.CONST, Ops.REGISTER, Ops.BITCAST)
    count = sum(node.op not in free for node in expression(op, dtype)[0].toposort())
    assert count <= OPERATIONS[op, dtype]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=CASE_NAMES)
def test_vectors_take_the_same_steps_in_every_lane(op: Ops, dtype: DType) -> None:
    scalar, scalar_leaf = expression(op, dtype)
    vector, leaf = expression(op, dtype.vec(16))
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

    for form, exp2_error, log2_error in zip(transcendental._FORMATS.values(), (-28.1, -57.7), (-27.6, -56.6)):
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
