"""WEBGPU: kernels in WGSL on a Vulkan device (Mesa's software one in these tests), and what it says when
something is missing."""
from __future__ import annotations

import math
import operator
import subprocess
import sys
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, Variable
from tinygrad.codegen import compile
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.helpers import Context
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.runtime import webgpu

pytest.importorskip("wgpu", reason="WEBGPU needs wgpu: pip install tinygrad[webgpu]")
try:
    webgpu.find_adapter("WEBGPU")
except RuntimeError as reason:
    pytest.skip(str(reason), allow_module_level=True)


def multiply_add(a, b, c):
    return a.alu(Ops.MULACC, b, c)


def without(missing, monkeypatch):
    """Until the end of a test, WEBGPU is a device that lacks these dtypes, and has compiled nothing yet."""
    limited = WGSLRenderer(frozenset(missing), fused=Device["WEBGPU"].renderer.fused)
    monkeypatch.setattr(Device["WEBGPU"], "_renderer", limited)
    monkeypatch.setattr(compile, "_kernels", OrderedDict())


def on_gpu(array):
    return Tensor(array, device="WEBGPU").realize()


def test_opening_it_leaves_other_libraries_alone():
    """Mesa's OpenGL would come with an LLVM and a z3 of its own, whose functions replace those of pip's."""
    script = """
from tinygrad import Tensor
assert Tensor([1.0, 2.0], device="WEBGPU").sum().item() == 3
import z3
a = z3.BitVec("a", 8)
z3.prove(z3.BV2Int(a, is_signed=True) < 128)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "proved"), done.stderr


@pytest.mark.parametrize("shape", [(1,), (100,), (3, 517), (5, 6, 7)], ids=str)
def test_elementwise_rows_and_sums(shape):
    x = normal(*shape)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(on_gpu(x).softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(on_gpu(x).sum().numpy(), x.sum(dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal((on_gpu(x) * 3).numpy(), x * np.float32(3))


def test_products_of_matrices():
    a, b = normal(65, 33), normal(33, 70)
    np.testing.assert_allclose((on_gpu(a) @ on_gpu(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32,
                                   dtypes.uint32], ids=lambda d: d.name)
def test_narrow_integers_are_packed_and_wrap(dtype):
    info = np.iinfo(dtype.numpy)
    a = np.array([info.min, info.min + 1, 0, 1, 7, info.max - 1, info.max], dtype.numpy)
    b = np.array([3, 5, 2, 7, 3, 2, 1], dtype.numpy)
    np.testing.assert_array_equal((on_gpu(a) + on_gpu(b)).numpy(), a + b)
    np.testing.assert_array_equal((on_gpu(a) * on_gpu(b)).numpy(), a * b)
    np.testing.assert_array_equal((on_gpu(a) // on_gpu(b)).numpy(), a // b)
    np.testing.assert_array_equal((on_gpu(a) < on_gpu(b)).numpy(), a < b)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2],
                         ids=lambda d: d.name)
def test_narrow_floats_round_as_numpy_does(dtype):
    x = np.concatenate([normal(500) * 100, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-6]]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(on_gpu(x).cast(dtype).cast(dtypes.float32).numpy(), expected)


def test_a_loss_of_each_row():
    """Its sum over classes is one load of a row whose statistics threads share."""
    x, y = normal(4, 5, 3), np.random.default_rng(1).integers(0, 5, (4, 3))
    wide = x.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    expected = -np.take_along_axis(logs, y[:, None], 1)[:, 0]
    np.testing.assert_allclose(on_gpu(x).cross_entropy(on_gpu(y), "none").numpy(), expected, 1e-5, 1e-5)


def test_differences_of_equal_infinities_are_not_zero():
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 1.0], np.float32)
    doubled, other = on_gpu(x) + on_gpu(x), on_gpu(x.copy())
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal((doubled - doubled).eq(0).numpy(), (x + x) - (x + x) == 0)
        np.testing.assert_array_equal((doubled - other).eq(0).numpy(), (x + x) - x == 0)
        np.testing.assert_array_equal((on_gpu(x) - other).eq(0).numpy(), x - x == 0)


def test_comparisons_know_nan():
    x = np.array([1.0, np.nan, -np.inf, np.inf, 0.0], np.float32)
    np.testing.assert_array_equal((on_gpu(x) >= 0).numpy(), x >= 0)
    np.testing.assert_array_equal((on_gpu(x) != on_gpu(x)).numpy(), np.isnan(x))
    np.testing.assert_array_equal(on_gpu(x).relu().numpy(), np.maximum(x, 0))


def test_a_source_that_does_not_compile_is_shown_with_numbers():
    with pytest.raises(RuntimeError, match=r"(?s)does not accept this kernel.*    1  nonsense"):
        Device["WEBGPU"].compile("nonsense")


def test_a_kernel_beyond_the_limits_of_the_device_is_shown_with_numbers():
    device = Device["WEBGPU"]
    most = device.gpu.limits["max-compute-invocations-per-workgroup"]
    source = f"""@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size({2 * most}) fn k() {{ x[0] = 1; }}"""
    with pytest.raises(RuntimeError, match=r"(?s)does not accept this kernel.*    2  @compute"):
        device.load_blocks("k", device.compile(source), webgpu.ONE_THREAD)


def test_a_dtype_that_a_device_lacks_is_refused_with_the_devices_that_have_it(monkeypatch):
    without({dtypes.float64}, monkeypatch)
    x = Tensor([1.5], device="WEBGPU", dtype=dtypes.float64).realize()
    with pytest.raises(ValueError, match="has no float64; CPU, CPU:C and PYTHON do"):
        (x * 3 + 0.0625).numpy()


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    webgpu.webgpu.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r'pip install "tinygrad\[webgpu\]"'):
            webgpu.open_device("WEBGPU")
    finally:
        webgpu.webgpu.cache_clear()


def exact_multiply_add(a: float, b: float, c: float, kind: type[np.floating]) -> np.floating:
    """a * b + c in whole numbers, rounded once: to float64 by Python's division of integers, to float32 by
    way of a float64 rounded to odd."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if not total:
        return kind(a * b + c)
    sign = -1 if total < 0 else 1
    near = sign * (math.inf if abs(total) >= 2**1024 - 2**970 else abs(total.numerator) / total.denominator)
    if kind is np.float64 or not math.isfinite(near) or Fraction(near) == total:
        return kind(near)
    bits = np.float64(near).view(np.int64)
    if not bits & 1:  # the neighbour on the other side of the total
        bits += 1 if (Fraction(near) < total) == (near > 0 or (near == 0 and total > 0)) else -1
    return kind(np.int64(bits).view(np.float64))


@pytest.mark.parametrize(("kind", "missing"), [
    (np.float32, set()), (np.float64, set()), (np.float32, {dtypes.float64}), (np.float32, {dtypes.uint64})],
    ids=["float32", "float64", "float32 without float64", "float32 without integers of 64 bits"])
def test_products_are_added_with_one_rounding(kind, missing, monkeypatch):
    """Of all sizes; where most of the product cancels; around what is denormal, and what overflows."""
    without(missing, monkeypatch)
    rng = np.random.default_rng(5)
    info = np.finfo(kind)
    number, digits = 3000, info.nmant

    def any_size(low, high):
        signs, exponents = rng.choice([-1, 1], number), rng.integers(low, high, number)
        return (signs * np.ldexp(rng.uniform(1, 2, number), exponents)).astype(kind)

    least = info.smallest_subnormal
    edges = np.array([0, -0.0, 1, -1, 1 + info.eps, least, -least, info.tiny, info.tiny - least, info.max,
                      -info.max, 0.5, info.eps], kind)
    grid = [x.reshape(-1) for x in np.meshgrid(edges, edges, edges)]
    half = info.minexp // 2
    a = np.concatenate([grid[0], any_size(-3, 3), any_size(half - digits, half + 3), any_size(-40, 40)])
    b = np.concatenate([grid[1], any_size(-3, 3), any_size(half - 3, half + 3), any_size(-40, 40)])
    c = np.concatenate([grid[2], any_size(-4, 4), any_size(info.minexp - digits, info.minexp + 4),
                        any_size(-digits - 45, digits + 45)])
    with np.errstate(all="ignore"):
        cancelled = [a[-number:], b[-number:], -(a[-number:] * b[-number:])]
    a, b, c = (np.concatenate([x, y]) for x, y in zip((a, b, c), cancelled, strict=True))
    with np.errstate(all="ignore"):
        expected = np.array([exact_multiply_add(float(x), float(y), float(z), kind)
                             for x, y, z in zip(a, b, c, strict=True)])
    found = Tensor(multiply_add(*(on_gpu(x).uop for x in (a, b, c)))).numpy()
    bits = np.dtype(kind).str.replace("f", "u")
    np.testing.assert_array_equal(found.view(bits), expected.view(bits))


def test_remainders_and_powers_need_no_type_of_64_bits(monkeypatch):
    """Of numbers of every size; and special ones."""
    without({dtypes.float64, dtypes.int64, dtypes.uint64}, monkeypatch)
    rng = np.random.default_rng(6)
    edges = np.array([0, -0.0, 1, -1, 2.5, -3, np.inf, -np.inf, np.nan], np.float32)
    any_size = rng.integers(0, 2**32, (2, 2000), np.uint64).astype(np.uint32).view(np.float32)
    near = rng.uniform(-30, 30, (2, 2000)).astype(np.float32)
    grid = np.array([x.reshape(-1) for x in np.meshgrid(edges, edges)])
    a, b = np.concatenate([any_size, near, grid], axis=1)
    on_device = on_gpu(a), on_gpu(b)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64), b.astype(np.float64)
        truncated, down, power = (f(*wide).astype(np.float32) for f in (np.fmod, np.mod, np.power))
    np.testing.assert_array_equal(on_device[0].fmod(on_device[1]).numpy(), truncated)
    np.testing.assert_array_equal((on_device[0] % on_device[1]).numpy(), down)
    np.testing.assert_allclose((on_device[0] ** on_device[1]).numpy(), power, rtol=2e-7, atol=2e-45)


@pytest.mark.parametrize("missing", [set(), {dtypes.float64}], ids=["", "without float64"])
def test_products_with_infinities_and_nan_are_added_as_ieee_says(missing, monkeypatch):
    without(missing, monkeypatch)
    edges = np.array([0, 1, -2, np.inf, -np.inf, np.nan, 3e38], np.float32)
    a, b, c = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(edges, edges, edges))
    with np.errstate(all="ignore"):
        expected = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(Tensor(multiply_add(*(on_gpu(x).uop for x in (a, b, c)))).numpy(), expected)


EDGES = np.array([1.0, np.inf, -np.inf, np.nan, -0.0], np.float32)


@pytest.mark.parametrize("function", [
    lambda x: x * 0.0, lambda x: x * -0.0, lambda x: x - x, lambda x: x + (-x), lambda x: x + 0.0,
    lambda x: 0.0 / x, lambda x: (x - x) * math.inf,
    lambda x: x * 2 - x * 2, lambda x: x * 1e30 * 1e30 * 1e-30 * 1e-30],
    ids=["x*0", "x*-0", "x-x", "x+-x", "x+0", "0/x", "(x-x)*inf", "2x-2x", "x*a*a/a/a"])
def test_no_compiler_simplifies_what_infinities_and_nan_forbid(function):
    with np.errstate(all="ignore"):
        expected = function(EDGES).astype(np.float32)
    found = function(on_gpu(EDGES)).numpy()
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("items", [65536, 100_001])
def test_one_thread_goes_round_its_loops_as_often_as_it_takes(items):
    """Mesa's llvmpipe ends a loop after 65,535 rounds."""
    x = np.random.default_rng(3).integers(-100, 100, items).astype(np.int32)
    with Context(NOOPT=1):
        assert on_gpu(x).sum().item() == x.sum()


@pytest.mark.parametrize("shape", [(16_500, 2), (25_000, 8), (7_000, 3, 5)], ids=str)
def test_the_rounds_in_which_loops_end_are_counted(shape):
    """A loop of 2 takes 3 of the rounds that a thread has, each time."""
    x = np.random.default_rng(3).integers(-100, 100, shape).astype(np.int32)
    with Context(NOOPT=1):
        np.testing.assert_array_equal(on_gpu(x).sum(-1).numpy(), x.sum(-1))


def test_more_rounds_than_a_driver_allows_are_refused(monkeypatch):
    monkeypatch.setattr(Device["WEBGPU"], "_renderer", WGSLRenderer(most_rounds=10))
    with Context(NOOPT=1), pytest.raises(ValueError, match="1,004 times round .* after 10 without a word"):
        on_gpu(np.ones(1003, np.float32)).sum().numpy()


@pytest.mark.parametrize("compare", [operator.lt, operator.ge])
@pytest.mark.parametrize("limit", [0, 3, -3, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32])
def test_wider_integers_are_compared_as_what_they_are(compare, limit, kind):
    """Mesa 22.3 compares 32 bits made an int64 with a constant as if that were another one."""
    x = np.array([0, 2, 3, 4, -3, -4, 2**31 - 1, -(2**31)], np.int64).astype(kind)
    found = compare(on_gpu(x).cast(dtypes.int64), limit)
    np.testing.assert_array_equal(found.numpy(), compare(x.astype(np.int64), limit))


@pytest.mark.parametrize("rows", [1, 12])
def test_threads_that_count_in_64_bits_share_a_row(rows):
    """Their numbers are made int64 too, and compared: one of them stores what all found."""
    x, places = normal(5, 7), np.random.default_rng(0).integers(0, 5, (rows, 300))
    found = on_gpu(x)[on_gpu(places)].sum(1)
    np.testing.assert_allclose(found.numpy(), x[places].astype(np.float64).sum(1), 1e-5, 1e-5)


def test_variables_of_more_than_32_bits():
    """Half a word at a time, each without a sign."""
    for value in (2**31, 2**32 - 1, 2**40 + 2**31 + 5, -(2**33) - 1):
        n = Variable("n", -(2**50), 2**50).bind(value)
        assert (Tensor(n.cast(dtypes.int64), device="WEBGPU") + 1).item() == value + 1


def test_a_loop_has_no_name_of_a_type():
    """i32 would be the 32nd name of a kernel."""
    x = normal(3, 4, 5, 6)
    e = np.exp(x @ x.swapaxes(-1, -2) / math.sqrt(6))
    expected = e / e.sum(-1, keepdims=True) @ x
    t = on_gpu(x)
    np.testing.assert_allclose(t.scaled_dot_product_attention(t, t).numpy(), expected, rtol=1e-4, atol=1e-5)
