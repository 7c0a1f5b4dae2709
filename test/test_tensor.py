"""What tensors compute, against NumPy."""
import copy
import gc
import math
import pickle

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.functional.reduce import SELECTION_LIMIT, SMALL_SORT
from tinygrad.graph.ops import Ops
from tinygrad.tensor.live import live_tensors

rng = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-6, -1e-6, 0.3, -0.7, 2.5,
                    88.0,
                    -88.0, 104.0, -104.0, 1e30, -1e30], np.float32)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(tensor: Tensor, expected, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    expected = np.asarray(expected)
    result = tensor.numpy()
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)


def same(tensor: Tensor, expected) -> None:
    expected = np.asarray(expected)
    result = tensor.numpy()
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


def ulps(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest distance from the exact values, in units in the last place of the result's type."""
    kind = result.dtype
    rounded = exact.astype(kind)
    finite = np.isfinite(rounded) & np.isfinite(result)
    np.testing.assert_array_equal(np.isnan(rounded), np.isnan(result))
    np.testing.assert_array_equal(rounded[~finite], result[~finite])
    spacing = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return float((np.abs(result[finite] - exact[finite]) / spacing).max(initial=0))


# --- construction -------------------------------------------------------------------------------------------


def test_from_python_values():
    assert Tensor(3).dtype is dtypes.int32 and Tensor(3).item() == 3
    assert Tensor(2.5).dtype is dtypes.float32 and Tensor(True).dtype is dtypes.bool
    same(Tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    same(Tensor(((1.5, 2), (3, 4))), [[1.5, 2], [3, 4]])
    assert Tensor([]).shape == (0,) and Tensor([[], []]).shape == (2, 0) and Tensor(None).shape == (0,)
    assert Tensor([1, 2.0]).dtype is dtypes.float32 and Tensor([True, 2]).dtype is dtypes.int32
    same(Tensor(b"\x01\xff"), np.array([1, 255], np.uint8))
    same(Tensor(memoryview(np.arange(3, dtype=np.int16))), [0, 1, 2])
    same(Tensor([Tensor([1, 2]), Tensor([3, 4])]), [[1, 2], [3, 4]])


@pytest.mark.parametrize("dtype", dtypes.all)
def test_every_dtype_holds_its_values(dtype):
    values = [0, 1, 1] if dtype.is_bool else [0, 1, 3]
    result = Tensor(values, dtype=dtype)
    assert result.dtype is dtype
    assert result.numpy().dtype == dtype.numpy and [float(x) for x in result.numpy()] == values


@pytest.mark.parametrize("kind", [np.float64, np.int8, np.uint16, np.float16, ml_dtypes.bfloat16, np.bool_])
def test_numpy_arrays_keep_dtype_and_layout(kind):
    array = np.arange(12).reshape(3, 4).astype(kind)
    same(Tensor(array), array)
    same(Tensor(array.T), array.T)
    same(Tensor(array[:, ::-2]), array[:, ::-2])
    same(Tensor(array.astype(array.dtype.newbyteorder(">")) if kind is np.float64 else array), array)


def test_a_tensor_keeps_the_values_that_it_was_made_of():
    array = np.arange(64, dtype=np.float32)
    tensor = Tensor(array, device="CPU")
    array[0] = 7
    assert tensor.numpy()[0] == 0
    assert tensor.uop.base.storage.buffer.address % 64 == 0
    copied = tensor.numpy()
    copied[1] = 9
    assert tensor.numpy()[1] == 1


def test_constructors():
    same(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
    same(Tensor.ones((2,), dtype=dtypes.int8), np.ones(2, np.int8))
    same(Tensor.full((2, 2), 7), np.full((2, 2), 7))
    assert Tensor.full((), 2.5).item() == 2.5 and Tensor.empty(2, 3).shape == (2, 3)
    same(Tensor.zeros_like(Tensor([1, 2])), [0, 0])
    same(Tensor([1.5, 2]).full_like(4, dtype=dtypes.int32), [4, 4])
    assert Tensor.ones(0, 3).numpy().shape == (0, 3)


@pytest.mark.parametrize("arguments",
                         [(5,), (0,), (1,), (2, 9), (2, 9, 3), (9, 2, -2), (0, 1, 0.25), (5, 2), (1.5, 4)])
def test_arange(arguments):
    expected = np.arange(*arguments)
    result = Tensor.arange(*arguments)
    assert result.dtype is (dtypes.float32 if expected.dtype.kind == "f" else dtypes.int32)
    close(result, expected)


def test_arange_larger_and_other_dtypes():
    same(Tensor.arange(700, dtype=dtypes.int64), np.arange(700))
    same(Tensor.arange(5, dtype=dtypes.float16), np.arange(5, dtype=np.float16))


@pytest.mark.parametrize(("arguments", "dtype"), [
    ((2**33,), dtypes.int32), ((-1, 3), dtypes.uint8), ((250, 257), dtypes.uint8),
    ((0, -250, -100), dtypes.int8), ((0, 260, 2.5), dtypes.uint8)])
def test_arange_refuses_numbers_that_its_dtype_does_not_hold(arguments, dtype):
    with pytest.raises(OverflowError, match=f"arange from .* does not fit {dtype}"):
        Tensor.arange(*arguments, dtype=dtype)


def test_arange_to_the_ends_of_its_dtype():
    same(Tensor.arange(-128, 128, 85, dtype=dtypes.int8), np.array([-128, -43, 42, 127], np.int8))
    same(Tensor.arange(0, 256, 255, dtype=dtypes.uint8), np.array([0, 255], np.uint8))
    same(Tensor.arange(2**31 - 2, 2**31, dtype=dtypes.int32), np.array([2**31 - 2, 2**31 - 1], np.int32))
    assert Tensor.arange(9, 9, dtype=dtypes.uint8).shape == (0,)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_linspace(steps):
    close(Tensor.linspace(-1, 3, steps), np.linspace(-1, 3, steps, dtype=np.float32))


def test_linspace_ends_are_exact():
    values = Tensor.linspace(0.1, 0.7, 11).numpy()
    assert values[0] == np.float32(0.1) and values[-1] == np.float32(0.7)


@pytest.mark.parametrize("shape", [(1, None), (4, None), (3, 5), (5, 3), (0, None)])
def test_eye(shape):
    same(Tensor.eye(*shape), np.eye(*shape, dtype=np.float32))


def test_one_hot():
    same(Tensor([[0, 2], [1, 1]]).one_hot(3), np.eye(3, dtype=np.int32)[[[0, 2], [1, 1]]])


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
    a, b = normal(*shapes[0]), normal(*shapes[1])
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
    x = np.concatenate([SPECIAL, np.arange(-9, 10).astype(np.float32) / 2, normal(100) * 5])
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
    x = normal(300) * 3
    close(getattr(Tensor(x), name)(), ACTIVATIONS[name](x.astype(np.float64)), rtol=3e-6, atol=1e-7)


def test_activations_with_parameters():
    x = normal(100) * 2
    wide = x.astype(np.float64)
    close(Tensor(x).celu(2.0), np.where(x > 0, wide, 2 * np.expm1(wide / 2)))
    close(Tensor(x).elu(0.5), np.where(x > 0, wide, 0.5 * np.expm1(wide)))
    close(Tensor(x).softplus(3.0), np.logaddexp(0, 3 * wide) / 3)
    close(Tensor(x).gelu("none"), 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))))


def test_half_types_round_once():
    x = (normal(500) * 4).astype(np.float16)
    same(Tensor(x).gelu(), _gelu(x.astype(np.float64)).astype(np.float16))
    same(Tensor(x).exp(), np.exp(x.astype(np.float64)).astype(np.float16))


def test_pow():
    x = np.abs(normal(200)) * 3 + 0.1
    for exponent in (0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.7, -2.3, 20):
        close(Tensor(x) ** exponent, x.astype(np.float64) ** exponent, rtol=1e-5)
    y = normal(200)
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
    x = np.concatenate([normal(50), [np.nan]]).astype(np.float32)
    same(Tensor(x).clip(-0.5, 0.5), np.clip(x, -0.5, 0.5))
    same(Tensor(x).clamp(min_=0), np.clip(x, 0, None))
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


# --- movement -----------------------------------------------------------------------------------------------


def test_shapes():
    x = normal(2, 3, 4)
    t = Tensor(x)
    for result, expected in [
        (t.reshape(6, 4), x.reshape(6, 4)), (t.reshape((4, -1)), x.reshape(4, -1)),
        (t.view(None, -1), x.reshape(2, -1)),
        (t.permute(2, 0, 1), x.transpose(2, 0, 1)), (t.transpose(0, -1), x.swapaxes(0, -1)),
        (t.T, x.swapaxes(-1, -2)),
        (t.flatten(1), x.reshape(2, 12)), (t.unflatten(2, (2, -1)), x.reshape(2, 3, 2, 2)),
        (t.flip(0, 2), x[::-1, :, ::-1]),
        (t.unsqueeze(1), x[:, None]), (t.unsqueeze(-1), x[..., None]), (t[:1].squeeze(0), x[0]),
        (t.shrink(((0, 1), None, (1, 3))), x[:1, :, 1:3]), (t.shrink_to(1, None, 2), x[:1, :, :2]),
        (t.reshape(1, 2, 3, 4).expand(5, -1, 3, 4), np.broadcast_to(x, (5, 2, 3, 4))),
        (t.repeat(2, 1, 3), np.tile(x, (2, 1, 3))),
        (t.repeat(2, 1, 1, 2), np.tile(x, (2, 1, 1, 2))), (t.repeat_interleave(2, 1), np.repeat(x, 2, 1)),
        (t.repeat_interleave(3), np.repeat(x, 3)), (t.roll(2, 1), np.roll(x, 2, 1)),
        (t.roll((1, -2), (0, 2)), np.roll(x, (1, -2), (0, 2))),
        (t.roll(5), np.roll(x, 5)),
        (t[:, :, 0].diag() if False else Tensor(x[0, 0]).diag(), np.diag(x[0, 0])),
        (Tensor(x[0]).diag(), np.diag(x[0])), (t.diagonal(1, 1, 2), np.diagonal(x, 1, 1, 2)),
        (t.diagonal(-1, 0, 1), np.diagonal(x, -1, 0, 1)), (t.triu(1), np.triu(x, 1)),
        (t.tril(-1), np.tril(x, -1)), (t.tril(), np.tril(x)),
    ]:
        same(result, expected)
    assert t.numel() == 24 and t.size(1) == 3 and t.size() == (2, 3, 4) and t.nbytes() == 96 and len(t) == 2


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_modes(mode):
    x = normal(3, 5)
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    same(Tensor(x).pad((2, 1, 1, 2), mode=mode), np.pad(x, ((1, 2), (2, 1)), names[mode]))


def test_pad_constant():
    x = normal(3, 5)
    same(Tensor(x).pad((2, 1)), np.pad(x, ((0, 0), (2, 1))))
    same(Tensor(x).pad(((1, 0), None), value=-math.inf), np.pad(x, ((1, 0), (0, 0)), constant_values=-np.inf))
    same(Tensor(x).pad((-1, 2, 1, -2), value=4.0), np.pad(x[:1, 1:], ((1, 0), (0, 2)), constant_values=4.0))
    same(Tensor(x).pad_to(4, None, value=1), np.pad(x, ((0, 1), (0, 0)), constant_values=1))


@pytest.mark.parametrize(("mode", "pairs"), [
    ("reflect", (4, -2)), ("reflect", (-5, 3)), ("reflect", (-1, 2)), ("replicate", (9, -5)),
    ("replicate", (-6, 4)), ("replicate", (4, -8))])
def test_mirrored_and_repeated_items_are_those_before_cropping(mode, pairs):
    x = normal(3, 5)
    before, after = pairs
    whole = np.pad(x, ((0, 0), (max(before, 0), max(after, 0))), {"replicate": "edge"}.get(mode, mode))
    same(Tensor(x).pad(pairs, mode=mode), whole[:, max(-before, 0):whole.shape[1] - max(-after, 0)])


def test_padding_around_goes_around_what_is_left():
    x = normal(3, 5)
    same(Tensor(x).pad((-1, 2), mode="circular"), np.pad(x[:, 1:], ((0, 0), (0, 2)), "wrap"))


@pytest.mark.parametrize("second", [np.float64, np.float16])
def test_integers_of_different_floats_side_by_side(second):
    """LLVM ended the process: it took the casts of both for one of their items side by side."""
    a, b = np.arange(10, dtype=np.float32), np.arange(6).astype(second)
    joined = Tensor.cat(Tensor(a).realize().cast("int32"), Tensor(b).realize().cast("int32"))
    same(joined, np.concatenate([a, b]).astype(np.int32))


def test_joining_and_splitting():
    a, b, c = normal(2, 3), normal(1, 3), normal(4, 3)
    same(Tensor(a).cat(Tensor(b), Tensor(c)), np.concatenate([a, b, c]))
    same(Tensor.cat(Tensor(a), Tensor(a), dim=-1), np.concatenate([a, a], -1))
    same(Tensor.cat([Tensor(a), Tensor(b)]), np.concatenate([a, b]))
    same(Tensor.stack(Tensor(a), Tensor(a), dim=1), np.stack([a, a], 1))
    same(Tensor.stack(Tensor(1), Tensor(2)), [1, 2])
    assert np.signbit(Tensor([-0.0]).cat(Tensor([-0.0])).numpy()).all()
    assert Tensor([1]).cat(Tensor([0.5])).dtype is dtypes.float32
    for parts, expected in [(Tensor(c).split(3), np.split(c, [3])),
                            (Tensor(c).split([1, 3]), np.split(c, [1])),
                            (Tensor(c).chunk(3), np.split(c, [2])),
                            (Tensor(c).chunk(2, dim=1), np.split(c, [2], 1))]:
        assert len(parts) == len(expected)
        for part, array in zip(parts, expected, strict=True):
            same(part, array)
    for indexing in ("ij", "xy"):
        for grid, array in zip(Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]), indexing=indexing),
                               np.meshgrid([1, 2], [3, 4, 5], indexing=indexing), strict=True):
            same(grid, array)


def test_unfold():
    x = normal(3, 9)
    for size, step in ((3, 1), (3, 2), (9, 1), (1, 4)):
        windows = np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]
        same(Tensor(x).unfold(1, size, step), windows)


def test_rearrange():
    x = normal(2, 6, 4)
    t = Tensor(x)
    same(t.rearrange("b (h w) c -> b c h w", h=2), x.reshape(2, 2, 3, 4).transpose(0, 3, 1, 2))
    same(t.rearrange("b ... -> ... b"), np.moveaxis(x, 0, -1))
    same(t.rearrange("a b c -> (a b) c"), x.reshape(12, 4))
    same(t.rearrange("a b c -> a 1 (b c)"), x.reshape(2, 1, 24))


# --- reduce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), 1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(axis, keepdim):
    x = normal(3, 4, 5)
    t = Tensor(x)
    wide = x.astype(np.float64)
    for name, function in [("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("max", np.max),
                           ("min", np.min)]:
        close(getattr(t, name)(axis, keepdim), function(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
    if axis != ():
        close(t.var(axis, keepdim), np.var(wide, axis=axis, keepdims=keepdim, ddof=1), rtol=1e-5)
        close(t.std(axis, keepdim, correction=0), np.std(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
        spread, center = t.std_mean(axis, keepdim)
        close(spread, np.std(wide, axis=axis, keepdims=keepdim, ddof=1), rtol=1e-5)
        close(center, np.mean(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
    same((t > 1).any(axis, keepdim), (x > 1).any(axis=axis, keepdims=keepdim))
    same((t > -1).all(axis, keepdim), (x > -1).all(axis=axis, keepdims=keepdim))
    peak = wide.max(axis=axis, keepdims=True)
    exact = np.log(np.exp(wide - peak).sum(axis=axis, keepdims=True)) + peak
    close(t.logsumexp(axis, keepdim), exact if keepdim else np.squeeze(exact, axis), rtol=1e-5)


def test_the_axis_of_a_reduction_has_two_names():
    x = Tensor([[1.0, 2.0], [3.0, 5.0]])
    names = ("sum", "max", "mean", "std", "argmax", "softmax", "log_softmax", "logsumexp", "cumsum", "cummax")
    for name in names:
        one, other = getattr(x, name)(axis=1), getattr(x, name)(dim=1)
        for a, b in zip(*([r] if isinstance(r, Tensor) else r for r in (one, other)), strict=True):
            assert a.tolist() == b.tolist()
    assert x.sum(dim=0, keepdim=True).shape == (1, 2)
    with pytest.raises(TypeError, match="sum: axis and dim are two names of one argument"):
        x.sum(axis=0, dim=0)


def test_reductions_of_other_dtypes():
    x = rng.integers(-100, 100, (4, 50)).astype(np.int8)
    same(Tensor(x).sum(1), x.sum(1))
    same(Tensor(x).max(1), x.max(1))
    same(Tensor(x).min(0), x.min(0))
    u = rng.integers(0, 255, 50).astype(np.uint8)
    assert Tensor(u).min().item() == u.min() and Tensor(u).max().item() == u.max()
    half = np.full(4096, 0.1, np.float16)
    assert Tensor(half).sum().item() == np.float16(half.astype(np.float64).sum())
    assert Tensor.ones(0).sum().item() == 0 and Tensor.ones(0).prod().item() == 1
    assert math.isnan(Tensor.ones(0).mean().item()) and math.isnan(Tensor([1.0]).var().item())
    assert math.isnan(Tensor([1.0, math.nan]).max().item()) and math.isnan(Tensor([math.nan,
                                                                                   1.0]).min().item())
    assert Tensor(5).sum().item() == 5 and Tensor(5.0).max(0).item() == 5


def test_argmax_takes_the_first():
    x = rng.integers(0, 3, (5, 7)).astype(np.float32)
    for axis in (None, 0, 1):
        same(Tensor(x).argmax(axis), np.argmax(x, axis))
        same(Tensor(x).argmin(axis), np.argmin(x, axis))
    same(Tensor(x).argmax(1, keepdim=True), np.argmax(x, 1)[:, None])
    assert Tensor([1.0, math.nan, 2.0]).argmax().item() == 1
    assert Tensor([-128, 3], dtype=dtypes.int8).argmin().item() == 0


def test_softmax():
    x = normal(4, 6) * 10
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    close(Tensor(x).softmax(), weights)
    close(Tensor(x).log_softmax(), np.log(weights), rtol=1e-5, atol=1e-5)
    close(Tensor(-x).softmin(), weights)
    close(Tensor(x).softmax(0).sum(0), np.ones(6))
    close(Tensor([1000.0, 0.0, -math.inf]).softmax(), [1, 0, 0])
    assert Tensor([-math.inf, -math.inf]).logsumexp().item() == -math.inf
    assert Tensor(x).half().softmax().dtype is dtypes.float16


@pytest.mark.parametrize("size", [1, 5, 256, 257, 1000])
def test_running_reductions(size):
    x = normal(2, size) * 0.5
    wide = x.astype(np.float64)
    close(Tensor(x).cumsum(1), wide.cumsum(1), rtol=1e-5, atol=1e-5)
    close(Tensor(1 + x * 0.1).cumprod(1), (1 + wide * 0.1).cumprod(1), rtol=1e-4)
    close(Tensor(x).logcumsumexp(1), np.logaddexp.accumulate(wide, 1), rtol=1e-5, atol=1e-5)
    ints = rng.integers(0, 50, (2, size)).astype(np.int32)
    values, places = Tensor(ints).cummax(1)
    same(values, np.maximum.accumulate(ints, 1))
    for row in range(2):
        expected, best = [], 0
        for i, value in enumerate(ints[row]):
            best = i if value >= ints[row][best] else best
            expected.append(best)
        same(places[row], expected)
    same(Tensor(ints).cummin(1)[0], np.minimum.accumulate(ints, 1))


def test_cumsum_other_axes():
    x = rng.integers(-5, 5, (3, 4, 2)).astype(np.int32)
    for axis in (0, 1, 2, -1):
        same(Tensor(x).cumsum(axis), x.cumsum(axis))
    assert Tensor.ones(0).cumsum().shape == (0,) and Tensor(3).cumsum().item() == 3


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 13, 64])
def test_sort_is_stable(size, descending):
    x = rng.integers(0, 6, (3, size)).astype(np.float32)
    order = np.argsort(-x if descending else x, 1, kind="stable")
    values, places = Tensor(x).sort(1, descending)
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))
    same(Tensor(x).argsort(1, descending), order)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_by_network_agrees(monkeypatch, descending):
    from tinygrad.functional import reduce

    monkeypatch.setattr(reduce, "RANK_SORT_LIMIT", 0)
    for size in (2, 3, 13, 32):
        x = rng.integers(0, 6, (2, size)).astype(np.int32)
        same(Tensor(x).argsort(1, descending), np.argsort(-x if descending else x, 1, kind="stable"))


def test_sort_puts_nan_last():
    values, places = Tensor([3.0, math.nan, 1.0, math.inf]).sort()
    same(values, [1, 3, math.inf, math.nan])
    same(places, [2, 0, 3, 1])


def test_topk():
    x = normal(4, 9)
    values, places = Tensor(x).topk(3)
    order = np.argsort(-x, 1)[:, :3]
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))
    same(Tensor(x).topk(2, dim=0, largest=False)[0], np.sort(x, 0)[:2])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32"])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_finds_the_first_of_equal_items_of_many_as_sorting_does(dtype, largest):
    """NaN counts as largest, and what is smallest or infinite is an item like others."""
    x = np.random.default_rng(0).integers(0, 3, (4, 1100)).astype(dtype)
    if x.dtype.kind == "f":
        x[0, [5, 900]], x[0, [7, 8, 1099]], x[1], x[2] = np.nan, [np.inf, -np.inf, -np.inf], -np.inf, np.nan
        x[1, 1000] = np.nan
    elif x.dtype.kind in "iu":
        x[0, [5, 900]], x[1], x[2] = np.iinfo(dtype).min, np.iinfo(dtype).min, np.iinfo(dtype).max
    assert SELECTION_LIMIT >= 5 and x.size * x.shape[1] > SMALL_SORT
    values, places = Tensor(x).topk(5, largest=largest)
    ends = np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
    order = (x.shape[1] - 1 - ends if largest else np.argsort(x, 1, kind="stable"))[:, :5]
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))


# --- matrices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes",
                         [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
                                    ((2, 3), (5, 3, 4)), ((5, 1, 2, 3), (7, 3, 4)), ((3,), (5, 3, 2)),
                                    ((5, 2, 3), (3,)),
                                    ((2, 0), (0, 3)), ((1, 1), (1, 1))])
def test_matmul(shapes):
    a, b = normal(*shapes[0]), normal(*shapes[1])
    close(Tensor(a) @ Tensor(b), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5)


def test_matmul_of_half_types_and_integers():
    a, b = normal(4, 64).astype(np.float16), normal(64, 4).astype(np.float16)
    same(Tensor(a) @ Tensor(b), (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))
    same(Tensor([[1, 2], [3, 4]]) @ np.array([[5], [6]], np.int32), [[17], [39]])
    x, w, c = normal(3, 4), normal(4, 5), normal(5)
    close(Tensor(x).linear(Tensor(w), Tensor(c)), x @ w + c, rtol=1e-5)
    close(Tensor(x).linear(Tensor(w[:, 0])), x * w[:, 0])


@pytest.mark.parametrize("formula,shapes", [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij->ji", [(2, 3)]), ("ii->i", [(3, 3)]), ("ii", [(3, 3)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]), ("i,j,k->ijk", [(2,), (3,), (4,)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]),
    ("ab,bc,cd", [(2, 3), (3, 4), (4, 5)]), ("i...->...", [(3, 4, 2)]), ("iij->ij", [(3, 3, 2)]),
    ("ij,kj->ik", [(2, 3), (4, 3)]),
])
def test_einsum(formula, shapes):
    arrays = [normal(*s).astype(np.float64) for s in shapes]
    close(Tensor.einsum(formula, *map(Tensor, arrays)), np.einsum(formula, *arrays))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3), (1, 1)])
def test_qr(shape):
    x = normal(*shape)
    q, r = (part.numpy().astype(np.float64) for part in Tensor(x).qr())
    np.testing.assert_allclose(q @ r, x, atol=2e-5)
    np.testing.assert_allclose(q @ np.swapaxes(q, -1, -2), np.broadcast_to(np.eye(shape[-2]), q.shape),
                               atol=2e-5)
    np.testing.assert_array_equal(r, np.triu(r))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 4), (1, 1)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(shape, full):
    x = normal(*shape)
    u, s, vt = (part.numpy().astype(np.float64) for part in Tensor(x).svd(full))
    np.testing.assert_allclose(s, np.linalg.svd(x.astype(np.float64), compute_uv=False), rtol=1e-4, atol=1e-5)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x, atol=5e-5)
    for square in (u, np.swapaxes(vt, -1, -2)):
        assert not full or square.shape[-1] == square.shape[-2]
        gram = np.swapaxes(square, -1, -2) @ square
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), atol=5e-5)


# --- indexing -----------------------------------------------------------------------------------------------

X = normal(4, 5, 6)
INDICES = [
    0, -1, np.int64(2), (1, 2), (1, 2, 3), slice(1, 3), slice(None, None, 2), slice(None, None, -1),
    slice(4, 0, -2),
    slice(-3, None, -3), slice(2, 2), (slice(None), 1), (Ellipsis, 2), (0, Ellipsis, slice(1, 4, 2)), None,
    (None, 1, None),
    (slice(None), None, slice(1, 3)), (slice(3, 0, -1), slice(None, None, -2), slice(5, None, -4)), Ellipsis,
    (),
    [0, 2], (slice(None), [1, 3, 1]), ([0, 1], [2, 3]), ([0, 1], slice(None), [2, 3]), (1, [2, 0]),
    ([[0], [1]], [2, 3]),
    (slice(None), [[0, 1], [2, 3]]), (None, [1, 2]), ([-1, 0], Ellipsis), (slice(0, 2), slice(None), [5, -6]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_getitem(index):
    same(Tensor(X)[index], X[index])


def test_getitem_with_tensors_and_masks():
    rows = np.array([3, 0, -1], np.int32)
    same(Tensor(X)[Tensor(rows)], X[rows])
    same(Tensor(X)[:, Tensor(rows.astype(np.int64)), 1:3], X[:, rows, 1:3])
    same(Tensor(X)[Tensor(X) > 0.5], X[X > 0.5])
    same(Tensor(X)[np.array([True, False, True, True])], X[[True, False, True, True]])
    same(Tensor(X)[:, X[0, :, 0] > 0], X[:, X[0, :, 0] > 0])
    same(Tensor(X)[X[:, :, 0] > 0, 2:], X[X[:, :, 0] > 0, 2:])
    flags = X > 0
    same(Tensor(flags)[[2, 1]], flags[[2, 1]])
    same(Tensor(np.arange(5))[Tensor([], dtype=dtypes.int32)], np.arange(5)[[]])
    same(list(Tensor(X))[2], X[2])


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_setitem(index):
    x = X.copy()
    t = Tensor(X.copy()).realize()
    value = normal(*x[index].shape)
    if x[index].size:
        x[index] = value
    t[index] = Tensor(value)
    same(t, x)


def test_setitem_with_masks_numbers_and_broadcasting():
    x = X.copy()
    t = Tensor(X.copy())
    x[x > 0] = 7
    t[t > 0] = 7
    x[:, 1] = np.arange(6)
    t[:, 1] = Tensor(np.arange(6, dtype=np.int32))
    x[1:3, 0] = -1.5
    t[1:3, 0] = -1.5
    same(t, x)
    lazy = Tensor.zeros(3)
    lazy[1] = 5.0
    same(lazy, [0, 5, 0])


def test_writes_show_in_views_of_the_same_memory():
    t = Tensor(np.zeros((3, 4), np.float32)).realize()
    row = t[1]
    t[1, 2] = 5
    same(row, [0, 0, 5, 0])
    row[0] = 6
    assert t.numpy()[1, 0] == 6


def test_gather_and_scatter():
    x = normal(4, 5)
    index = rng.integers(0, 5, (3, 7))
    same(Tensor(x).gather(1, Tensor(index)), np.take_along_axis(x[:3], index, 1))
    index0 = rng.integers(-4, 4, (6, 5))
    same(Tensor(x).gather(0, Tensor(index0)), np.take_along_axis(x, index0, 0))
    src = normal(3, 7)
    expected = x.copy()
    for i in range(3):
        for j in range(7):
            expected[i, index[i, j]] = src[i, j]
    same(Tensor(x).scatter(1, Tensor(index), Tensor(src)), expected)
    same(Tensor.zeros(3).scatter(0, Tensor([1, 1]), 2.0, reduce="add"), [0, 4, 0])
    same(Tensor.ones(3).scatter(0, Tensor([1, 1]), 2.0, reduce="multiply"), [1, 4, 1])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    x, src = normal(3, 4), normal(3, 6)
    index = rng.integers(0, 3, (3, 6))
    expected = x.astype(np.float64)
    for i in range(3):
        for k in range(4):
            items = [src[i, j] for j in range(6) if index[i, j] == k]
            if items:
                items = [*items, x[i, k]] if include_self else items
                function = {"sum": sum, "prod": math.prod, "mean": np.mean, "amax": max, "amin": min}[reduce]
                expected[i, k] = function([float(v) for v in items])
    close(Tensor(x).scatter_reduce(1, Tensor(index), Tensor(src), reduce, include_self), expected)


def test_masks_and_nonzero():
    x = np.array([[0, 3], [4, 0]], np.int32)
    same(Tensor(x).nonzero(), np.argwhere(x))
    same(Tensor(x).nonzero(size=3, fill_value=-1), [[0, 1], [1, 0], [-1, -1]])
    same(Tensor(x).masked_select(Tensor(x) > 0), [3, 4])
    same(Tensor(x).masked_select(Tensor(x) > 0, size=1), [3])
    same(Tensor(x).masked_select(Tensor(x) > 0, size=4, fill_value=9), [3, 4, 9, 9])


@pytest.mark.parametrize(("shape", "size"), [((7, 5), 9), ((7, 5), 40), ((300,), 20), ((2, 3, 4), 0), ((), 3),
                                             ((0, 3), 2), ((1,), 1), ((3000,), 5000)])
def test_masks_with_a_size_leave_out_or_fill_up(shape, size):
    draw = np.random.default_rng(size)
    x = draw.standard_normal(shape) * (draw.uniform(size=shape) < 0.3)
    places = np.argwhere(x)[:size]
    same(Tensor(x).nonzero(size, -1), np.concatenate([places, np.full((size - len(places), x.ndim), -1)]))
    items = x[x != 0][:size]
    filled = np.concatenate([items, np.full(size - len(items), 9)])
    same(Tensor(x).masked_select(Tensor(x) != 0, size, 9), filled)


def test_the_gradient_of_selected_items_goes_to_them():
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    picked = x.masked_select(Tensor([True, False, True]), size=3)
    assert (picked * Tensor([5.0, 7.0, 9.0])).sum().gradient(x)[0].tolist() == [5, 0, 7]
    none = Tensor.zeros(0, 3, requires_grad=True)
    assert none.masked_select(none > 0, size=2, fill_value=4).sum().gradient(none)[0].shape == (0, 3)


# --- state --------------------------------------------------------------------------------------------------


def test_values_out():
    t = Tensor([[1.5, 2.0], [3.0, 4.0]])
    assert t.tolist() == [[1.5, 2.0], [3.0, 4.0]] and t[0, 0].item() == 1.5
    assert float(t[0, 0]) == 1.5 and int(t[1, 0]) == 3 and bool(t[0, 0] > 1) and range(5)[Tensor(2)] == 2
    assert memoryview(t.data()).tolist() == t.tolist() and np.asarray(t).dtype == np.float32
    np.testing.assert_array_equal(np.from_dlpack(t), t.numpy())
    assert [row.tolist() for row in t] == t.tolist()


def test_repr_shows_values_without_computing():
    t = Tensor([1.0, 2.0]).realize()
    assert repr(t) == f"<Tensor {Device.DEFAULT} float32 (2,) [1., 2.]>"
    lazy = t + 1
    assert repr(lazy) == f"<Tensor {Device.DEFAULT} float32 (2,) lazy>" and lazy.uop.realized is None
    assert repr(lazy.realize()) == f"<Tensor {Device.DEFAULT} float32 (2,) [2., 3.]>"
    assert "..." in repr(Tensor(np.zeros(1000))) and len(repr(Tensor(np.zeros(1000)))) < 100


def test_copies_are_independent():
    t = Tensor([1.0, 2.0], requires_grad=True)
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert other.requires_grad is True and other.dtype is t.dtype
        same(other, [1, 2])
        other.assign(Tensor([0.0, 0.0])).realize()
        same(t, [1, 2])
    clone = t.clone()
    clone.realize().assign(t * 5).realize()
    same(t, [1, 2])


def test_graph_names():
    t = Tensor([1, 2, 3])
    assert t.lazydata is t.uop and t.uop.base.op is Ops.BUFFER and (t * 2).lazydata.op is Ops.MUL
    assert t.device == Device.DEFAULT and t.ndim == 1 and hash(t) == id(t)


def test_assign_writes_the_same_memory():
    t = Tensor([1.0, 2.0, 3.0]).realize()
    memory = t.uop.base.buffer
    t.assign(t * 2 + 1)
    assert t.realize().uop.base.buffer is memory
    same(t, [3, 5, 7])
    t.assign(0).realize()
    same(t, [0, 0, 0])
    assert t.uop.base.buffer is memory


def test_lazy_readers_keep_the_old_value():
    t = Tensor([1.0, 2.0]).realize()
    before = t + 1
    t.assign(Tensor([10.0, 20.0]))
    after = t + 1
    t.realize()
    same(before, [2, 3])
    same(after, [11, 21])
    same(t, [10, 20])


def test_assign_twice_and_reading_between():
    t = Tensor([1.0]).realize()
    t.assign(t + 1)
    middle = t * 10
    t.assign(t + 1)
    same(t, [3])
    same(middle, [20])


def test_setitem_lets_lazy_readers_go_first():
    t = Tensor([1.0, 2.0]).realize()
    before = t.sum()
    t[0] = 100.0
    assert before.item() == 3 and t.sum().item() == 102


def test_results_are_not_reused_after_their_inputs_changed():
    t = Tensor([1.0, 2.0]).realize()
    old = t.sum().realize()
    t.assign(t + 1).realize()
    assert t.sum().item() == 5 and old.item() == 3
    t[0] = 10
    assert t.sum().item() == 13 and old.item() == 3


def test_results_are_not_reused_after_a_replay_changed_their_inputs():
    t, total = Tensor([1.0, 2.0]).realize(), 3.0

    @TinyJit
    def step(x):
        t.assign(t + x)
        x.assign(x * 2)
        return t.sum()

    x = Tensor([1.0, 1.0]).realize()
    for i in range(4):
        old, old_x = t.sum().realize(), x.sum().realize()
        total += 2 * 2**i
        assert step(x).item() == total and t.sum().item() == total and x.sum().item() == 2 * 2 ** (i + 1)
        assert old.item() == total - 2 * 2**i and old_x.item() == 2 * 2**i


def test_old_and_new_values_in_one_expression():
    t = Tensor([1.0, 2.0]).realize()
    mixed = t + 1
    t.assign(t * 10)
    mixed = mixed + t
    same(mixed, [12, 23])


def test_reading_a_view_sees_a_pending_write():
    t = Tensor(np.zeros((2, 2), np.float32)).realize()
    row = t[1]
    t.assign(Tensor.ones(2, 2))
    same(row, [1, 1])


def test_training_flag():
    assert Tensor.training is False
    with Tensor.train():
        assert Tensor.training is True
        with Tensor.test():
            assert Tensor.training is False
    assert Tensor.training is False

    @Tensor.train()
    def inside():
        return Tensor.training

    assert inside() is True and Tensor.training is False


def test_live_tensors_are_not_kept_alive():
    gc.collect()
    before = len(live_tensors())
    for _ in range(20):
        (Tensor([1.0]) * 2).relu()
    gc.collect()
    assert len(live_tensors()) == before


def test_a_view_of_zeros_made_contiguous_is_written_in_place():
    cache = Tensor.zeros(2, 3).contiguous().realize()
    cache[1].assign(Tensor([1.0, 2.0, 3.0])).realize()
    cache.shrink(((0, 1), (0, 1))).assign(Tensor([[7.0]])).realize()
    assert cache.tolist() == [[7, 0, 0], [1, 2, 3]]


def test_constants_that_a_tensor_stands_for_keep_their_gradients():
    x = Tensor.ones(3)
    y = x.contiguous().realize()
    (y * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_integers_that_32_bits_do_not_hold_are_of_64() -> None:
    assert Tensor([1, 2**40]).tolist() == [1, 2**40] and Tensor([1, 2**40]).dtype is dtypes.int64
    assert Tensor(-2**31 - 1).item() == -2**31 - 1
    assert Tensor.full((2,), 2**31).tolist() == [2**31] * 2
    assert Tensor([2**64 - 1]).tolist() == [2**64 - 1]
    assert Tensor([2**31 - 1, -2**31]).dtype is dtypes.int32
    with pytest.raises(OverflowError, match="does not fit an integer type of 64 bits"):
        Tensor([2**64])


def test_a_range_is_a_list_of_numbers() -> None:
    assert Tensor(range(2, 8, 3)).tolist() == [2, 5]


def test_the_deviation_of_half_types_is_rounded_once() -> None:
    """The variance is beyond the range of float16, its root is not."""
    x = np.array([1, 65504, -2], np.float16)
    expected = np.std(x.astype(np.float64), ddof=1)
    assert Tensor(x).std().numpy() == np.float16(expected)
    assert Tensor(x).std_mean()[0].numpy() == np.float16(expected)


def test_bools_stay_bools_where_they_are_filled_or_compared() -> None:
    x, mask = Tensor([True, False, True]), Tensor([True, True, False])
    assert x.masked_fill(mask, 0).tolist() == [False, False, True]
    assert x.masked_fill(mask, 1).dtype is dtypes.bool
    assert x.isclose(mask).tolist() == [True, False, False] and not x.allclose(mask)


def test_numbers_are_gathered_and_scattered_like_tensors_of_one_item() -> None:
    x, at = Tensor(3.0), Tensor(0)
    assert x.gather(0, at).tolist() == 3 and x.gather(-1, at).shape == ()
    assert x.scatter(0, at, Tensor(5.0)).tolist() == 5
    assert x.scatter(0, at, 5.0, "add").tolist() == 8
    assert x.scatter_reduce(0, at, Tensor(5.0), "amax").tolist() == 5
