"""How far each function of real numbers is from the true value, in units of the last place of the result.

`accuracy.BOUNDS` is the contract. References are NumPy's and the C library's functions in float64 (for
float32 and narrower) and in 80-bit long double (for float64). By default some numbers of every exponent, of
both signs, denormals, infinities and NaN among them; `-m slow` takes every float32 there is.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from accuracy import BOUNDS, FORMATS, errors, largest_error, over_every_float32
from drivers import needs_compiler

from tinygrad import Device, Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.functional import polynomials

Array = np.ndarray[Any, Any]


needs_long_double = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no 80-bit long double")


def every_exponent(dtype: DType, each: int) -> Array:
    """`each` numbers of both signs from every exponent, and as many where most functions change most."""
    rng = np.random.default_rng(11)
    fraction, _ = FORMATS[dtype]
    bits = np.dtype(f"uint{dtype.bits}").type
    head = np.arange(2**(dtype.bits - fraction), dtype=np.uint64).repeat(each) << np.uint64(fraction)
    tail = rng.integers(0, 2**fraction, head.size, dtype=np.uint64)
    tail[::each] = 0
    tail[1::each] = 2**fraction - 1
    spread = (head | tail).astype(bits).view(dtype.numpy)
    near = [rng.uniform(-size, size, 40 * each) for size in (1.2, 6, 20, 120)]
    return np.concatenate([spread, *(x.astype(dtype.numpy) for x in near)])


def check(name: str, dtype: DType, x: Array, bound: float) -> None:
    found = largest_error(name, dtype, x)
    assert found.error <= bound, found.report


@pytest.mark.parametrize("name", BOUNDS)
def test_float32(name: str) -> None:
    check(name, dtypes.float32, every_exponent(dtypes.float32, 100), BOUNDS[name].here)


@needs_long_double
@pytest.mark.parametrize("name", BOUNDS)
def test_float64(name: str) -> None:
    if BOUNDS[name].float64 == math.inf:
        pytest.skip("the reference has no more digits than float64")
    check(name, dtypes.float64, every_exponent(dtypes.float64, 8), BOUNDS[name].float64)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_half_types_round_the_float32_result(name: str, dtype: DType) -> None:
    """Every number there is; 0.51 allows for the float32 result's own error."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    check(name, dtype, x, 0.51)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_every_float32(name: str) -> None:
    found = over_every_float32(name)
    assert found.error <= BOUNDS[name].here, found.report


@pytest.mark.parametrize("size", [1, 3, 7, 20])
@pytest.mark.parametrize("name", ["exp", "log", "cos", "tanh"])
def test_lanes_left_over_by_vectors_get_the_same_result(name: str, size: int) -> None:
    x = np.random.default_rng(size).uniform(-3, 3, size).astype(np.float32)
    check(name, dtypes.float32, x, BOUNDS[name].here)


with_and_without_float64 = pytest.mark.parametrize(("dtype", "device"), [
    *((dtype, None) for dtype in FORMATS),
    *(pytest.param(dtype, "METAL:EMULATED", marks=needs_compiler)
      for dtype in FORMATS if dtype is not dtypes.float64),
], ids=str)


@needs_long_double
@with_and_without_float64
def test_powers_of_special_values(dtype: DType, device: str | None) -> None:
    """As C's pow: all pairs of zeros, ones, infinities, NaN, odd, even and broken numbers, the largest odd
    ones and the ends of the range; zeros with the sign that it says."""
    fraction, lowest = FORMATS[dtype]
    odd = 2.0**(fraction + 1) - 1
    ends = math.ldexp(1, lowest - fraction), math.ldexp(1.5, -lowest)
    values = np.array([0, 1, 2, 3, 0.5, 1.5, math.inf, odd, odd + 1, 2 * odd, *ends], np.float64)
    numbers = np.concatenate([values, -values, [math.nan]]).astype(dtype.numpy)
    base, exponent = (np.ascontiguousarray(m.ravel()) for m in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        expected = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(dtype.numpy)
    got = (Tensor(base, device=device) ** Tensor(exponent, device=device)).numpy()
    error = errors(got, expected.astype(np.longdouble), dtype)
    worst = int(np.argmax(error))
    assert error[worst] <= 1, f"{base[worst]} to {exponent[worst]}: {got[worst]}, not {expected[worst]}"


POWER_BOUNDS = {dtypes.float16: 0.51, dtypes.bfloat16: 0.51, dtypes.float32: 0.51, dtypes.float64: 1.3}
POWER_BOUNDS_WITHOUT_FLOAT64 = {dtypes.float16: 0.51, dtypes.bfloat16: 0.51, dtypes.float32: 0.95}


@needs_long_double
@pytest.mark.parametrize("count", [200_000, pytest.param(20_000_000, marks=pytest.mark.slow)])
@with_and_without_float64
def test_powers_over_the_whole_range(dtype: DType, device: str | None, count: int) -> None:
    """Half of the pairs are of any bits, of the others the power is a number: bases of every exponent, also
    next to 1, and exponents that keep the result in range."""
    rng = np.random.default_rng(count)
    bits = rng.integers(0, 2**dtype.bits, (2, count // 2), np.uint64).astype(f"u{dtype.itemsize}")
    any_base, any_exponent = bits.view(dtype.numpy)
    _, lowest = FORMATS[dtype]
    digits = rng.uniform(lowest, -lowest, count // 2) * 10.0**rng.uniform(-6, 0, count // 2)
    base = np.exp2(digits).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        exponent = (rng.uniform(lowest, -lowest, count // 2) / np.log2(base.astype(np.float64)))
        base = np.concatenate([any_base, base])
        exponent = np.concatenate([any_exponent, exponent.astype(dtype.numpy)])
        wide = np.longdouble if dtype is dtypes.float64 else np.float64
        true = np.power(base.astype(wide), exponent.astype(wide))
        got = (Tensor(base, device=device) ** Tensor(exponent, device=device)).numpy()
    error = errors(got, true, dtype)
    worst = int(np.argmax(error))
    report = f"{base[worst]} to {exponent[worst]}: {got[worst]}, true {true[worst]}"
    has_float64 = Device[device or Device.DEFAULT].has_dtype(dtypes.float64)
    bounds = POWER_BOUNDS if has_float64 else POWER_BOUNDS_WITHOUT_FLOAT64
    assert error[worst] <= bounds[dtype], report


@needs_long_double
def test_large_powers_of_float64_are_as_exact_as_small_ones() -> None:
    """Of results up to the ends of the range, and of bases next to 1."""
    rng = np.random.default_rng(4)
    base = np.concatenate([np.exp(rng.uniform(-700, 700, 2000)),
                           1 + rng.standard_normal(2000) * 10 ** rng.uniform(-12, -1, 2000)])
    exponent = rng.uniform(-1070, 1070, 4000) / np.log2(base)
    true = np.power(base.astype(np.longdouble), exponent.astype(np.longdouble))
    assert errors((Tensor(base) ** Tensor(exponent)).numpy(), true, dtypes.float64).max() <= 1.5


@pytest.mark.parametrize("device", [None, pytest.param("METAL:EMULATED", marks=needs_compiler)])
def test_powers_have_gradients_where_base_or_power_is_one(device: str | None) -> None:
    base = Tensor([1.0, 2.0, 3.0], requires_grad=True, device=device)
    exponent = Tensor([1.7, 0.0, 2.5], requires_grad=True, device=device)
    (base ** exponent).sum().backward()
    b, e = base.numpy().astype(np.float64), exponent.numpy().astype(np.float64)
    assert base.grad is not None and exponent.grad is not None
    np.testing.assert_allclose(base.grad.numpy(), e * b**(e - 1), rtol=1e-6)
    np.testing.assert_allclose(exponent.grad.numpy(), b**e * np.log(b), rtol=1e-6, atol=1e-7)


# --- the polynomials ----------------------------------------------------------------------------------------


def series(term: Callable[[int], Fraction]) -> Callable[[Fraction], Fraction]:
    """The sum of term(k) z**k, to well below float64's precision for |z| <= 1/4."""
    terms = [term(k) for k in range(40)]
    return lambda z: sum((c * z**k for k, c in enumerate(terms)), Fraction(0))


def arctangent(z: Fraction) -> Fraction:
    """(atan(x) / x - 1) / x**2, by Gauss's continued fraction."""
    rest = Fraction(0)
    for k in range(50, 0, -1):
        rest = k * k * z / (2 * k + 1 + rest)
    return (1 / (1 + rest) - 1) / z


def hyperbolic_tangent(z: Fraction) -> Fraction:
    """(tanh(x) / x - 1) / x**2, by Lambert's continued fraction."""
    rest = Fraction(0)
    for k in range(25, 0, -1):
        rest = z / (2 * k + 1 + rest)
    return (1 / (1 + rest) - 1) / z


TWO_OVER_ROOT_PI = Fraction(11283791670955125738961589031215451716881012586579977, 10**52)

POLYNOMIALS: dict[str, tuple[Callable[[Fraction], Fraction], float, float, float, float]] = {
    "EXPM1": (series(lambda k: Fraction(1, math.factorial(k + 2))), -0.41, 0.41, -27.7, -57.2),
    "SINH": (series(lambda k: Fraction(1, math.factorial(2 * k + 3))), 0, 1, -27.8, -56.7),
    "TANH": (hyperbolic_tangent, 0, 0.3025, -27.4, -57.0),
    "ATAN": (arctangent, 0, 1, -26.0, -54.5),
    "ASIN": (series(lambda k: Fraction(math.comb(2 * k + 2, k + 1), 4**(k + 1) * (2 * k + 3))),
             0, 0.25, -28.3, -57.4),
    "ERF": (lambda z: (TWO_OVER_ROOT_PI * ERF_SERIES(z) - 1) / z, 0, 1, -28.8, -56.2),
}
"""the function, the interval, and the logarithms of the error relative to 1 + z f(z), by dtype"""
ERF_SERIES = series(lambda k: Fraction((-1)**k, math.factorial(k) * (2 * k + 1)))


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_leave_the_stated_errors(name: str) -> None:
    function, low, high, *bounds = POLYNOMIALS[name]
    rows = getattr(polynomials, name)
    points = [Fraction(low + (high - low) * i / 60).limit_denominator(10**6) for i in range(61)]
    for dtype, bound in zip((dtypes.float32, dtypes.float64), bounds, strict=True):
        coefficients = [Fraction(float(dtype.numpy.type(c))) for c in rows[dtype]]
        worst = 0.0
        for z in filter(None, points):
            true, power = function(z), Fraction(1)
            value = Fraction(0)
            for c in coefficients:
                value += c * power
                power *= z
            if name == "ERF":
                value, true = value / z, true  # its row is erf(x) / x - 1, with no factor x**2
            worst = max(worst, abs(float((1 + z * value) / (1 + z * true) - 1)))
        assert math.log2(worst) < bound


def complement(x: Decimal) -> Decimal:
    """e^(x^2) erfc(x), by Laplace's continued fraction."""
    rest = x
    for k in range(800, 0, -1):
        rest = x + Decimal(k) / 2 / rest
    return 1 / rest / Decimal("3.1415926535897932384626433832795029").sqrt()


@pytest.mark.parametrize(("dtype", "bound"), [(dtypes.float32, -28.3), (dtypes.float64, -57)], ids=str)
def test_the_polynomial_of_the_complement_leaves_the_stated_error(dtype: DType, bound: float) -> None:
    *parameters, coefficients = polynomials.ERFCX[dtype]
    shift, limit = map(Decimal, parameters)
    low, high = 1 / (limit + shift), 1 / (Decimal(polynomials.ERFCX_LOW) + shift)
    worst = Decimal(0)
    for i in range(61):
        inverse = low + (high - low) * i / 60
        position = (2 * inverse - low - high) / (high - low)
        value, x = Decimal(0), 1 / inverse - shift
        for c in reversed(coefficients):
            value = value * position + Decimal(float(dtype.numpy.type(c)))
        worst = max(worst, abs(value / ((x + shift) * complement(x)) - 1))
    assert math.log2(worst) < bound
