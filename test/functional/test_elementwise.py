"""Item by item: arithmetic, functions of real numbers, comparisons and casts, against NumPy."""
import math

import ml_dtypes
import numpy as np
import pytest
from arrays import close, drawn, same

from tinygrad import Tensor, dtypes

rng = np.random.default_rng(0)

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-6, -1e-6, 0.3, -0.7, 2.5,
                    88.0,
                    -88.0, 104.0, -104.0, 1e30, -1e30], np.float32)


def ulps(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest distance from the exact values, in units in the last place of the result's type."""
    kind = result.dtype
    rounded = exact.astype(kind)
    finite = np.isfinite(rounded) & np.isfinite(result)
    np.testing.assert_array_equal(np.isnan(rounded), np.isnan(result))
    np.testing.assert_array_equal(rounded[~finite], result[~finite])
    spacing = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return float((np.abs(result[finite] - exact[finite]) / spacing).max(initial=0))


# --- elementwise --------------------------------------------------------------------------------------------


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "lt": np.less, "gt": np.greater, "le": np.less_equal, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes",
                         [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((2, 1, 3), (4, 1)),
                          ((0, 3), (3,))])
def test_binary_functions_broadcast(name, shapes):
    a, b = drawn(*shapes[0]), drawn(*shapes[1])
    same(getattr(Tensor(a), name)(Tensor(b)), BINARY[name](a, b))


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_of_special_values(name):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    with np.errstate(all="ignore"):
        same(getattr(Tensor(a), name)(Tensor(b)), BINARY[name](a, b))


def test_division_and_remainder():
    a, b = np.meshgrid(np.arange(-7, 8), [-3, -2, -1, 1, 2, 3])
    x, y = Tensor(a.astype(np.int32)), Tensor(b.astype(np.int32))
    same(x // y, a // b)
    same(x % y, a % b)
    same(x.div(y, rounding_mode="trunc"), np.trunc(a / b).astype(np.int32))
    same(x.fmod(y), np.fmod(a, b))
    close(x / y, a / b)
    assert (x / y).dtype is dtypes.float32
    fa, fb = a.astype(np.float32) * 0.7, b.astype(np.float32) * 0.3
    close(Tensor(fa) // Tensor(fb), fa // fb)
    close(Tensor(fa) % Tensor(fb), fa % fb, atol=1e-5)
    close(Tensor(fa).fmod(Tensor(fb)), np.fmod(fa, fb), atol=1e-5)
    same(Tensor([1.0]) // 0.1, np.array([1.0], np.float32) // np.float32(0.1))
    same(Tensor([5.0, -5.0]) % math.inf, [5.0, math.inf])
    same(7 // Tensor([2, -2]), [3, -4])
    same(7 % Tensor([4, -4]), [3, -1])


def test_operators_with_numbers_on_either_side():
    x = np.array([1, 2, 3], np.int32)
    t = Tensor(x)
    for result, expected in [(t + 1, x + 1), (1 - t, 1 - x), (2 * t, 2 * x), (2 ** t, 2 ** x),
                             (t ** 2, x ** 2),
                             (t << 1, x << 1), (9 >> t, 9 >> x), (t & 1, x & 1), (6 | t, 6 | x),
                             (t ^ 3, x ^ 3),
                             (~t, ~x), (-t, -x), (t < 2, x < 2), (t > 2, x > 2), (t == 2, x == 2),
                             (abs(-t), x)]:
        same(result, expected)
    close(1 / t, 1 / x)
    close(x.astype(np.float32) + Tensor([0.5, 0.5, 0.5]), x + 0.5)


def test_dtypes_of_results():
    i8, i32, f16 = (Tensor([1], dtype=d) for d in (dtypes.int8, dtypes.int32, dtypes.float16))
    assert (i8 + 1).dtype is dtypes.int8 and (i8 + 1.0).dtype is dtypes.float32
    assert (f16 + 1).dtype is dtypes.float16 and (f16 * 2.5).dtype is dtypes.float16
    assert (Tensor([True]) + 1).dtype is dtypes.int32 and (Tensor([True]) * 2.0).dtype is dtypes.float32
    assert (i8 + i32).dtype is dtypes.int32 and (i32 + f16).dtype is dtypes.float16
    assert (i32 + np.float64(1)).dtype is dtypes.float32
    assert Tensor([True, True]).sum().dtype is dtypes.int32 and i8.sum().dtype is dtypes.int32
    assert f16.sum().dtype is dtypes.float16 and i32.mean().dtype is dtypes.float32
    assert Tensor([1], dtype=dtypes.uint8).sum().dtype is dtypes.uint32
    assert i32.exp().dtype is dtypes.float32 and f16.exp().dtype is dtypes.float16
    same(Tensor([True, False]) + Tensor([True, False]), [True, False])


def test_in_place_operators():
    x = Tensor([1.0, 2.0])
    alias = x
    x += 1
    x *= 2
    x -= Tensor([1.0, 1.0])
    x /= 2
    assert alias is x
    same(x, [1.5, 2.5])


UNARY = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "trunc": np.trunc, "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round, "sign": np.sign, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "relu": lambda x: np.where(x <= 0, 0, x), "logical_not": np.logical_not,
}


@pytest.mark.parametrize("name", UNARY)
def test_exact_unary_functions(name):
    x = np.concatenate([SPECIAL, np.arange(-9, 10).astype(np.float32) / 2, drawn(100) * 5])
    with np.errstate(all="ignore"):
        same(getattr(Tensor(x), name)(), UNARY[name](x))


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REAL = {
    # name: (function in float64, lowest and highest argument, ulps)
    "sqrt": (np.sqrt, 0, 1e30, 1), "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-30, 1e30, 3),
    "exp": (np.exp, -104, 89, 2), "exp2": (np.exp2, -150, 128, 1), "log": (np.log, 1e-38, 1e38, 3),
    "log2": (np.log2, 1e-38, 1e38, 1), "log10": (np.log10, 1e-38, 1e38, 3), "sin": (np.sin, -100, 100, 1),
    "cos": (np.cos, -100, 100, 2), "tan": (np.tan, -100, 100, 5), "asin": (np.arcsin, -1, 1, 6),
    "acos": (np.arccos, -1, 1, 8), "atan": (np.arctan, -50, 50, 6), "sinh": (np.sinh, -88, 88, 8),
    "cosh": (np.cosh, -88, 88, 6), "tanh": (np.tanh, -12, 12, 5), "asinh": (np.arcsinh, -100, 100, 8),
    "acosh": (np.arccosh, 1, 100, 12), "atanh": (np.arctanh, -0.999, 0.999, 12),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -87, 87, 4),
    "silu": (lambda x: x / (1 + np.exp(-x)), -80, 80, 5),
    "softplus": (lambda x: np.logaddexp(0, x), -80, 80, 6),
    "logsigmoid": (lambda x: -np.logaddexp(0, -x), -80, 80, 6),
    "erf": (np.vectorize(math.erf), -5, 5, 4),
    "quick_gelu": (lambda x: x / (1 + np.exp(-1.702 * x)), -10, 10, 20),
}


@pytest.mark.parametrize("name", REAL)
def test_real_functions_within_ulps(name):
    function, low, high, limit = REAL[name]
    x = np.concatenate([np.linspace(low, high, 2001), rng.uniform(low, high, 2000),
                        np.clip(rng.standard_normal(2000) * 0.01, low, high)]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
    assert ulps(getattr(Tensor(x), name)().numpy(), exact) <= limit


@pytest.mark.parametrize("name", REAL)
def test_real_functions_of_float64(name):
    function, low, high, limit = REAL[name]
    x = rng.uniform(low, high, 500)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(getattr(Tensor(x), name)().numpy(), function(x), rtol=limit * 8e-16,
                                   atol=1e-300)


@pytest.mark.parametrize("name",
                         ["exp", "exp2", "log", "log2", "sqrt", "sigmoid", "tanh", "silu", "softplus", "erf",
                          "gelu",
                                  "atan", "asinh", "sinh", "cosh", "relu", "elu", "mish", "logsigmoid"])
def test_real_functions_at_the_ends(name):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, 1e30, -1e30, 200, -200], np.float32)
    exact = {
        "gelu": lambda x: np.where(x > 0, x, 0.0 * x), "silu": lambda x: np.where(x > 0, x, 0.0 * x),
        "mish": lambda x: np.where(x > 0, x, 0.0 * x), "relu": lambda x: np.where(x <= 0, 0, x),
        "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "erf": np.vectorize(math.erf), "atan": np.arctan,
        "asinh": np.arcsinh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "softplus": lambda x: np.logaddexp(0, x),
        "logsigmoid": lambda x: -np.logaddexp(0, -x),
    }.get(name, getattr(np, name, None))
    with np.errstate(all="ignore"):
        wide = exact(x.astype(np.float64)).astype(np.float32)
        result = getattr(Tensor(x), name)().numpy()
    keep = ~((name in ("gelu", "silu", "mish")) & np.isneginf(x))
    np.testing.assert_allclose(result[keep], wide[keep], rtol=2e-6, atol=1e-37)


ACTIVATIONS = {
    "gelu": _gelu, "relu6": lambda x: np.clip(x, 0, 6), "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)), "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "selu": lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * np.expm1(x)),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1), "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + np.abs(x)), "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = drawn(300) * 3
    close(getattr(Tensor(x), name)(), ACTIVATIONS[name](x.astype(np.float64)), rtol=3e-6, atol=1e-7)


def test_activations_with_parameters():
    x = drawn(100) * 2
    wide = x.astype(np.float64)
    close(Tensor(x).celu(2.0), np.where(x > 0, wide, 2 * np.expm1(wide / 2)))
    close(Tensor(x).elu(0.5), np.where(x > 0, wide, 0.5 * np.expm1(wide)))
    close(Tensor(x).softplus(3.0), np.logaddexp(0, 3 * wide) / 3)
    close(Tensor(x).gelu("none"), 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))))


def test_half_types_round_once():
    x = (drawn(500) * 4).astype(np.float16)
    same(Tensor(x).gelu(), _gelu(x.astype(np.float64)).astype(np.float16))
    same(Tensor(x).exp(), np.exp(x.astype(np.float64)).astype(np.float16))


def test_pow():
    x = np.abs(drawn(200)) * 3 + 0.1
    for exponent in (0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.7, -2.3, 20):
        close(Tensor(x) ** exponent, x.astype(np.float64) ** exponent, rtol=1e-5)
    y = drawn(200)
    close(Tensor(x) ** Tensor(y), x.astype(np.float64) ** y, rtol=1e-5)
    close(2.5 ** Tensor(y), 2.5 ** y.astype(np.float64), rtol=1e-5)


def test_pow_of_special_values():
    values = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, np.inf, np.nan], np.float32)
    a, b = np.meshgrid(values, np.array([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 1.5], np.float32))
    with np.errstate(all="ignore"):
        close(Tensor(a) ** Tensor(b), a ** b)


def test_pow_of_integers():
    base, exponent = np.meshgrid(np.arange(-3, 4), np.arange(0, 6))
    same(Tensor(base.astype(np.int32)) ** Tensor(exponent.astype(np.int32)), base**exponent)
    same(Tensor([3], dtype=dtypes.int64) ** 30, [3**30])
    same(Tensor([1, -1, 5]) ** Tensor([-1, -3, -1]), [1, -1, 0])
    assert (Tensor([2]) ** 2.0).dtype is dtypes.float32


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_wrap_and_are_then_what_they_are(kind):
    """A C compiler may take the sum of two positive numbers for one, and extend or compare that."""
    limits = np.iinfo(kind)
    x = np.array([limits.max, limits.max - 3, limits.max // 2 + 9, limits.min, limits.min + 5, 7], kind)
    t = Tensor(x)
    with np.errstate(over="ignore"):
        for compute in (lambda x: x + x, lambda x: x - (-x), lambda x: x * x, lambda x: -x,
                        lambda x: x * x + x):
            wrapped = compute(x)
            same(compute(t).cast(dtypes.int64), wrapped.astype(np.int64))
            same(compute(t).cast(dtypes.uint64), wrapped.astype(np.uint64))
            same(compute(t) < t, wrapped < x)
            same(compute(t) >> 1, wrapped >> 1)
            same(compute(t) // 3, wrapped // 3)
            same(compute(t).sum(dtype=t.dtype) < 0, wrapped.sum(dtype=kind) < 0)


def test_clip_lerp_copysign_where():
    x = np.concatenate([drawn(50), [np.nan]]).astype(np.float32)
    same(Tensor(x).clip(-0.5, 0.5), np.clip(x, -0.5, 0.5))
    same(Tensor(x).clamp(min_=0), np.clip(x, 0, None))
    same(Tensor(x).clip(max=0.5, min=-0.5), np.clip(x, -0.5, 0.5))
    same(Tensor(x).clamp(min=0), np.clip(x, 0, None))
    same(Tensor.clamp(Tensor(x), max=0), np.clip(x, None, 0))
    same(Tensor(x).clip(Tensor(np.float32(0.1)), None), np.clip(x, np.float32(0.1), None))
    close(Tensor(x).lerp(Tensor(x * 2), 0.25), x * 1.25)
    a, b = np.meshgrid(SPECIAL[:6], SPECIAL[:6])
    result = Tensor(a).copysign(Tensor(b)).numpy()
    np.testing.assert_array_equal(np.signbit(result), np.signbit(b))
    same(Tensor(x > 0).where(Tensor(x), 0), np.where(x > 0, x, 0))
    same(Tensor([[1], [0]]).where(1, Tensor([5.0, 6.0])), [[1, 1], [5, 6]])
    same(Tensor([1.0, 2.0]).masked_fill(Tensor([True, False]), 9), [9, 2])
    close(Tensor(x).logaddexp(Tensor(x * 3)), np.logaddexp(x.astype(np.float64), x * 3))
    same(Tensor([math.inf, -math.inf]).logaddexp(Tensor([math.inf, -math.inf])), [math.inf, -math.inf])


@pytest.mark.parametrize("is_lazy", [False, True])
def test_counts_in_tensors_beyond_the_width_shift_all_bits_out(is_lazy):
    x, counts = Tensor([-5, 5, -5, 5], dtype="int8"), Tensor([-1, 8, 100, -128], dtype="int8")
    if not is_lazy:
        Tensor.realize(x, counts)
    same(x << counts, [0, 0, 0, 0])
    same(x >> counts, [-1, 0, -1, 0])
    same(1 << Tensor([40, 3]), [0, 8])
    for count in (8, 100):
        same(x << count, [0, 0, 0, 0])
        same(x >> count, [-1, 0, -1, 0])


def test_close_comparisons():
    a = Tensor([1.0, math.inf, math.nan, 1.0])
    b = Tensor([1.0 + 1e-6, math.inf, math.nan, 1.1])
    same(a.isclose(b), [True, True, False, False])
    same(a.isclose(b, equal_nan=True), [True, True, True, False])
    assert a[:2].allclose(b[:2]) is True and a.allclose(b) is False


@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_close_integers_are_as_far_apart_as_they_are(dtype):
    """A difference of unsigned ones, or of the ends of a range, is no small number of the type."""
    low, high = int(dtype.min), int(dtype.max)
    x = Tensor(np.array([low, high, low + 1, low, 1, high], dtype.numpy))
    y = Tensor(np.array([high, low, low, low + 1, 3, high - 2], dtype.numpy))
    same(x.isclose(y, rtol=0, atol=1), [False, False, True, True, False, False])
    same(x.isclose(y, rtol=0, atol=2), [False, False, True, True, True, True])
    same(x[:2].isclose(y[:2], rtol=3), [True, low != 0])


def test_numbers_are_close_and_ends_of_interpolation():
    x = np.array([1.0, 1.000001, 1.1, np.inf, np.nan], np.float32)
    for number in (1.0, 1, math.inf, np.float32(1)):
        same(Tensor(x).isclose(number), np.isclose(x, number))
    same(Tensor(x).isclose(math.nan, equal_nan=True), np.isclose(x, np.nan, equal_nan=True))
    same(Tensor([1, 2]).isclose(1.5, atol=0.5), [True, True])
    same(Tensor([True, False]).isclose(1), [True, False])
    assert Tensor([2.0, 2.0]).allclose(2) and not Tensor([2.0, 2.1]).allclose(2)
    same(Tensor([1.0, 2.0]).lerp(3.0, Tensor([0.5, 0.25])), [2.0, 2.25])
    far, near = Tensor([1e20, -1.0, 0.1]), Tensor([1.0, 1e-9, 0.3])
    for weight in (1.0, Tensor([1.0, 1.0, 1.0]), True):
        same(far.lerp(near, weight), near.numpy())
    for weight in (0.0, Tensor([0.0, 0.0, 0.0])):
        same(far.lerp(near, weight), far.numpy())


@pytest.mark.parametrize("number", [5.0, 5.7, -5.7, True, 7, np.float32(2.5), np.int64(3)])
def test_a_number_is_written_in_the_dtype_of_the_tensor(number):
    for array in (np.array([1, 2, 3], np.int32), np.array([True, False, False]), np.zeros(3, np.float32)):
        for write in (
            lambda x: x.__setitem__(1, number),
            lambda x: x.__setitem__(slice(1, None), number),
            lambda x: x.__setitem__([2, 0], number),
            lambda x: x.__setitem__(np.array([True, False, True]), number),
            lambda x: x.__setitem__(slice(None), number) if isinstance(x, np.ndarray) else x.assign(number),
        ):
            expected, found = array.copy(), Tensor(array)
            write(expected)
            write(found)
            same(found, expected)
    masked = Tensor([1, 2, 3])
    masked[masked > 1] = 5.7
    same(masked, [1, 5, 5])


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2], ids=str)
def test_close_halves_are_compared_in_float32(dtype):
    """Rounded to halves, some of these differences are what is allowed."""
    rng = np.random.default_rng(4)
    numbers = rng.normal(size=100_000) * 2
    x, y = (n.astype(dtype.numpy) for n in (numbers, numbers + rng.normal(size=numbers.size) * 0.3))
    exact, other = x.astype(np.float64), y.astype(np.float64)
    expected = np.abs(exact - other) <= 0.125 + 0.125 * np.abs(other)
    same(Tensor(x).isclose(Tensor(y), rtol=0.125, atol=0.125), expected)


def test_infinities_are_told_apart():
    same(Tensor([math.inf, -math.inf, 1]).isinf(detect_negative=False), [True, False, False])


def test_casts():
    x = np.array([0.0, 1.7, -1.7, 300.0, -3.0], np.float32)
    same(Tensor(x).int(), [0, 1, -1, 300, -3])
    same(Tensor(x).bool(), [False, True, True, True, True])
    same(Tensor([300, -1]).cast(dtypes.uint8), np.array([300, -1]).astype(np.uint8))
    same(Tensor(x).half(), x.astype(np.float16))
    same(Tensor(x).bfloat16(), x.astype(ml_dtypes.bfloat16))
    same(Tensor(x).double().long().short(), [0, 1, -1, 300, -3])
    same(Tensor(x).bitcast(dtypes.uint32), x.view(np.uint32))
    same(Tensor(x[:4]).bitcast("uint16"), x[:4].view(np.uint16))
    same(Tensor(np.arange(8, dtype=np.uint8)).bitcast("int32"), np.arange(8, dtype=np.uint8).view(np.int32))


def test_numbers_that_the_type_of_a_tensor_does_not_hold():
    """Quotients are floats: 256 beside integers of 8 bits was 0 before it was one. A bool meets an integer of
    40 bits in 64."""
    x = np.array([1, 100, 255], np.uint8)
    close(Tensor(x) / 256, x / 256)
    close(1000 / Tensor(x), 1000 / x)
    close(Tensor(x) / -1, -x.astype(np.float32))
    flags = Tensor([True, False])
    assert (flags < 2**31).tolist() == [True, True] and (flags == 2**40).tolist() == [False, False]
    assert (flags + 2**40).tolist() == [2**40 + 1, 2**40] and (flags + 2**40).dtype is dtypes.int64
    assert Tensor(x).clip(-1, 300).tolist() == x.tolist()
    assert Tensor([-128, 5], dtype="int8").clip(-1000, 255).tolist() == [-128, 5]
