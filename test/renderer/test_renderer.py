"""Linear programs written by hand, rendered to LLVM IR, run, and compared with NumPy or exact arithmetic."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from renderer_programs import (
    FLOATS,
    INDEX,
    INTEGERS,
    WIDE_FLOATS,
    Array,
    Lines,
    constant,
    equal,
    in_primitives,
    index,
    load,
    new,
    param,
    run,
    store,
)

from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.tensor import Tensor

LANES = (1, 3, 4, 16)


# --- writing programs ----------------------------------------------------------------------------------


def elementwise(make: Callable[..., UOp], inputs: Sequence[Array], given: Sequence[DType],
                lanes: int) -> Array:
    """`make` applied to vectors of `lanes` items of the inputs, one loop over all of them."""
    whole = -(-inputs[0].size // lanes) * lanes
    padded = [np.resize(x, whole) for x in inputs]
    lines = Lines()
    loop = lines.add(UOp.range(whole // lanes, 0))
    memory = [param(i + 1, d, whole) for i, d in enumerate(given)]
    result = in_primitives(make(*(load(m, loop * lanes, lanes) for m in memory)))
    target = param(0, result.dtype.scalar, whole)
    lines.add(store(target, loop * lanes, result))
    lines.end(loop)
    out = np.zeros(whole, dtype=result.dtype.numpy)
    run(lines.nodes, [out, *padded])
    return out[:inputs[0].size]


def integers(dtype: DType) -> Array:
    if dtype.is_bool:
        return np.array([False, True])
    low, high = int(dtype.min), int(dtype.max)
    special = {low, low + 1, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 100, high - 1, high}
    return np.array(sorted(x for x in special if low <= x <= high), dtype=dtype.numpy)


def floats(dtype: DType) -> Array:
    tiny = {dtypes.float32: 1e-45, dtypes.float64: 5e-324}.get(dtype, 2.0**-9)
    with np.errstate(over="ignore"):
        return np.array([0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.75, 1e-3, -77.0, 200.0, tiny, -tiny, 1e30, -1e30,
                         np.inf, -np.inf, np.nan], dtype=np.float64).astype(dtype.numpy)


def pairs(values: Array) -> tuple[Array, Array]:
    a, b = np.meshgrid(values, values, indexing="ij")
    return np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)


def wide(x: Array) -> Array:
    """Narrow floats as the float32 they are computed in."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


# --- arithmetic ----------------------------------------------------------------------------------------


BINARY: dict[Ops, Callable[[Array, Array], Array]] = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum}


def binary(op: Ops) -> Callable[[UOp, UOp], UOp]:
    return lambda a, b: new(op, a.dtype, (a, b))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_arithmetic_wraps(dtype: DType, lanes: int) -> None:
    a, b = pairs(integers(dtype))
    with np.errstate(over="ignore"):
        for op, reference in BINARY.items():
            equal(elementwise(binary(op), [a, b], [dtype, dtype], lanes), reference(a, b))
        for op, bitwise in ((Ops.AND, np.bitwise_and), (Ops.OR, np.bitwise_or), (Ops.XOR, np.bitwise_xor)):
            equal(elementwise(binary(op), [a, b], [dtype, dtype], lanes), bitwise(a, b))
        mulacc = elementwise(lambda x, y: new(Ops.MULACC, x.dtype, (x, y, x)), [a, b], [dtype, dtype], lanes)
        equal(mulacc, a * b + a)
        equal(elementwise(lambda x: new(Ops.NEG, x.dtype, (x,)), [a], [dtype], lanes), np.negative(a))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_float_arithmetic_rounds_each_operation_once(dtype: DType, lanes: int) -> None:
    a, b = pairs(floats(dtype))
    with np.errstate(all="ignore"):
        for op, reference in {**BINARY, Ops.FDIV: np.divide}.items():
            found = elementwise(binary(op), [a, b], [dtype, dtype], lanes)
            expected = reference(wide(a), wide(b)).astype(dtype.numpy)
            if op is Ops.MAX:  # which zero is the larger is nowhere defined
                found, expected = np.abs(found) + found, np.abs(expected) + expected
            equal(found, expected)
        for op, unary in ((Ops.NEG, np.negative), (Ops.SQRT, np.sqrt),
                          (Ops.TRUNC, np.trunc)):
            found = elementwise(lambda x, op=op: new(op, x.dtype, (x,)), [a], [dtype], lanes)
            equal(found, unary(wide(a)).astype(dtype.numpy))


@pytest.mark.parametrize("number_first", [False, True])
def test_maximum_with_a_constant_keeps_nan(number_first: bool) -> None:
    x = floats(dtypes.float32)

    def relu(value: UOp) -> UOp:
        zero = constant(0.0, value.dtype)
        return new(Ops.MAX, value.dtype, (zero, value) if number_first else (value, zero))

    for lanes in LANES:
        found = elementwise(relu, [x], [dtypes.float32], lanes)
        np.testing.assert_array_equal(found, np.maximum(x, 0))


def test_a_product_is_fused_into_a_sum_only_by_mulacc() -> None:
    a = np.array([1 + 2.0**-12, 3.1, 1e9], dtype=np.float32)
    f = dtypes.float32
    apart = elementwise(lambda x: x * x - x * 1.0, [a], [f], 1)
    equal(apart, (a * a).astype(np.float32) - a)
    fused = elementwise(lambda x: new(Ops.MULACC, f, (x, x, -x)), [a], [f], 1)
    exact = [Fraction(float(x)) ** 2 - Fraction(float(x)) for x in a]
    equal(fused, np.array([float(x) for x in exact], dtype=np.float32))
    assert fused[0] != apart[0]


@pytest.fixture
def bare_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM writes as for a CPU that neither multiplies and adds nor converts float16 in one instruction."""
    if Device.DEFAULT != "CPU":
        pytest.skip("what LLVM IR says without those instructions")
    renderer = Device["CPU"].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, contracts=False))
    monkeypatch.setattr(renderer, "has_float16", False)


@pytest.mark.usefixtures("bare_cpu")
@pytest.mark.parametrize("lanes", LANES)
def test_mulacc_is_rounded_once_without_an_instruction_for_it(lanes: int) -> None:
    draw = np.random.default_rng(11)
    a, b = draw.standard_normal((2, 3000)).astype(np.float32)
    near = -(a * b) * draw.choice([1, 1, 2**-12, 2**12, 2**-24], a.size)
    c = (near + draw.choice([0, 2**-24, -2**-30], a.size)).astype(np.float32)
    a[:6] = b[:6] = [1 + 2**-12, 1 - 2**-12, 1 + 2**-23, 1e-30, 4097, 3]
    c[:6] = [2**-60, -2**-60, -2**-70, 1e-45, 2**-50, -9]  # halfway between two results, or nearly
    f = dtypes.float32
    found = elementwise(lambda x, y, z: new(Ops.MULACC, f.vec(lanes), (x, y, z)), [a, b, c], [f, f, f], lanes)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
             for x, y, z in zip(a, b, c, strict=True)]
    equal(found + np.float32(0), np.array([nearest_float32(x) for x in exact]) + np.float32(0))
    x = np.array([np.inf, np.inf, np.nan, 3e38, -3e38, 0.0], np.float32)
    y = np.array([1, 0, 1, 3e38, 3e38, np.inf], np.float32)
    z = np.array([-np.inf, 1, 1, 1, np.inf, 2], np.float32)
    found = elementwise(lambda x, y, z: new(Ops.MULACC, f.vec(lanes), (x, y, z)), [x, y, z], [f, f, f], lanes)
    equal(found, np.array([np.nan, np.nan, np.nan, np.inf, np.inf, np.nan], np.float32))


def nearest_float32(exact: Fraction) -> np.float32:
    """The float32 nearest to `exact`, the even one of two: of the guess and its neighbours."""
    guess = np.float32(float(exact))
    around = [guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


@pytest.mark.usefixtures("bare_cpu")
@pytest.mark.parametrize("lanes", (1, 16))
def test_float16_is_converted_without_an_instruction_for_it(lanes: int) -> None:
    test_every_narrow_float_widens_exactly(dtypes.float16, lanes)
    test_rounding_to_narrow_floats_is_done_once(dtypes.float16, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS, dtypes.bool), ids=lambda d: d.name)
def test_comparisons_and_selection(dtype: DType, lanes: int) -> None:
    values = floats(dtype) if dtype.is_float else integers(dtype)
    a, b = pairs(values)
    flag = dtypes.bool.vec(lanes)
    for op, reference in ((Ops.CMPLT, operator.lt), (Ops.CMPNE, operator.ne)):
        found = elementwise(lambda x, y, op=op: new(op, flag, (x, y)), [a, b], [dtype, dtype], lanes)
        equal(found, reference(wide_or_same(a), wide_or_same(b)))
    chosen = elementwise(lambda x, y: new(Ops.WHERE, x.dtype, (new(Ops.CMPNE, flag, (x, y)), x, y)), [a, b],
                         [dtype, dtype], lanes)
    equal(chosen, np.where(wide_or_same(a) != wide_or_same(b), a, b))


def wide_or_same(x: Array) -> Array:
    return x if x.dtype.kind in "biu" else wide(x)


@pytest.mark.parametrize("lanes", LANES)
def test_logic_of_bools(lanes: int) -> None:
    a, b = pairs(np.array([False, True]))
    both, either = a & b, a | b
    for op, expected in ((Ops.AND, both), (Ops.MUL, both), (Ops.OR, either), (Ops.ADD, either),
                         (Ops.MAX, either), (Ops.XOR, a ^ b)):
        equal(elementwise(binary(op), [a, b], [dtypes.bool] * 2, lanes), expected)


# --- division and shifts -------------------------------------------------------------------------------


def floor_reference(dtype: DType, a: Array, b: Array, quotient: bool) -> Array:
    """Python's // and %; 0 where the divisor is 0."""
    step = operator.floordiv if quotient else operator.mod
    exact = [step(int(x), int(y)) if y else 0 for x, y in zip(a, b, strict=True)]
    return np.array([dtype.as_const(x) for x in exact], dtype=dtype.numpy)


@pytest.mark.parametrize("lanes", (1, 3, 16))
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_division_rounds_down_and_by_zero_gives_zero(dtype: DType, lanes: int) -> None:
    a, b = pairs(integers(dtype))
    for op in (Ops.IDIV, Ops.MOD):
        expected = floor_reference(dtype, a, b, op is Ops.IDIV)
        equal(elementwise(binary(op), [a, b], [dtype, dtype], lanes), expected)


@pytest.mark.parametrize("dtype", (*INTEGERS, INDEX), ids=lambda d: d.name)
def test_division_by_constants(dtype: DType) -> None:
    storage = dtypes.int64 if dtype is INDEX else dtype
    a = integers(storage)
    for divisor, lanes, op in itertools.product((1, 2, 3, 7, 64, -1, -4, -5, 0), (1, 4), (Ops.IDIV, Ops.MOD)):
        if divisor < 0 and dtype.is_unsigned:
            continue

        def divide(x: UOp, divisor: int = divisor, op: Ops = op) -> UOp:
            as_index = new(Ops.CAST, dtype.vec(x.dtype.count), (x,)) if dtype is INDEX else x
            divided = new(op, as_index.dtype, (as_index, constant(divisor, as_index.dtype)))
            return new(Ops.CAST, x.dtype, (divided,)) if dtype is INDEX else divided

        expected = floor_reference(storage, a, np.full(a.size, divisor, storage.numpy), op is Ops.IDIV)
        equal(elementwise(divide, [a], [storage], lanes), expected)


def test_an_index_that_cannot_be_negative_is_divided_in_one_instruction() -> None:
    lines = Lines()
    loop = UOp.range(10, 0)
    for op, slot in ((Ops.IDIV, 0), (Ops.MOD, 1)):
        value = new(Ops.CAST, dtypes.int32, (new(op, INDEX, (loop, index(3))),))
        lines.add(store(param(slot, dtypes.int32, 10), loop, value))
    lines.end(loop)
    text = LLVMRenderer(cores(64, 32)).render("kernel", lines.nodes)
    assert "udiv i64" in text and "urem i64" in text and "floordiv" not in text
    out = [np.zeros(10, np.int32) for _ in range(2)]
    run(lines.nodes, out)
    np.testing.assert_array_equal(out, np.divmod(np.arange(10, dtype=np.int32), 3))


@pytest.mark.parametrize("lanes", (1, 3, 16))
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_shifts_of_any_amount(dtype: DType, lanes: int) -> None:
    amounts = np.array([0, 1, 3, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100], dtype=dtype.numpy)
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in np.meshgrid(integers(dtype), amounts))
    for op, step in ((Ops.SHL, operator.lshift), (Ops.SHR, operator.rshift)):
        expected = [dtype.as_const(step(int(x), int(y))) for x, y in zip(a, b, strict=True)]
        equal(elementwise(binary(op), [a, b], [dtype, dtype], lanes), np.array(expected, dtype=dtype.numpy))
    for amount in (0, 1, dtype.bits - 1, dtype.bits):
        def shift(x: UOp, amount: int = amount) -> UOp:
            return new(Ops.SHR, x.dtype, (x, constant(amount, x.dtype)))

        expected = [int(x) >> amount for x in a]
        equal(elementwise(shift, [a], [dtype], lanes), np.array(expected, dtype=dtype.numpy))


# --- casts ---------------------------------------------------------------------------------------------


def cast_to(dtype: DType) -> Callable[[UOp], UOp]:
    return lambda x: new(Ops.CAST, dtype.vec(x.dtype.count), (x,))


@pytest.mark.parametrize("value", [0, 1, -3, 300, 70_000])
def test_casts_of_numbers_that_count(value: int) -> None:
    """naga folds no int64 to an int32."""
    lines, targets = Lines(), (*INTEGERS, dtypes.float32)
    for slot, target in enumerate(targets):
        lines.add(store(param(slot, target, 1), index(0), cast_to(target)(index(value))))
    out = [np.zeros(1, target.numpy) for target in targets]
    run(lines.nodes, out)
    for found in out:
        equal(found, np.array([value]).astype(found.dtype))


@pytest.mark.parametrize("lanes", (1, 3, 16))
@pytest.mark.parametrize("source", (*INTEGERS, dtypes.bool), ids=lambda d: d.name)
def test_casts_of_integers(source: DType, lanes: int) -> None:
    values = np.array([False, True]) if source.is_bool else integers(source)
    for target in (*INTEGERS, *WIDE_FLOATS, dtypes.float16, dtypes.bool):
        with np.errstate(over="ignore"):
            equal(elementwise(cast_to(target), [values], [source], lanes), values.astype(target.numpy))


@pytest.mark.parametrize("lanes", (1, 3, 16))
@pytest.mark.parametrize("source", FLOATS, ids=lambda d: d.name)
def test_floats_to_integers_truncate_and_saturate(source: DType, lanes: int) -> None:
    more = np.array([1.9, -1.9, 126.5, -128.9, 2.0**31, -(2.0**63), 2.0**64])
    with np.errstate(over="ignore"):
        values = np.concatenate([floats(source), more.astype(source.numpy)])
    exact = values.astype(np.float64)
    for target in INTEGERS:
        low, high = int(target.min), int(target.max)
        expected = [0 if np.isnan(x) else high if x >= high else low if x <= low else int(x) for x in exact]
        equal(elementwise(cast_to(target), [values], [source], lanes), np.array(expected, dtype=target.numpy))
    equal(elementwise(cast_to(dtypes.bool), [values], [source], lanes), exact != 0)


@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("narrow", FLOATS[:4], ids=lambda d: d.name)
def test_every_narrow_float_widens_exactly(narrow: DType, lanes: int) -> None:
    bits = np.arange(2**narrow.bits, dtype=f"u{narrow.lane_size}")
    values = bits.view(narrow.numpy)
    for target in WIDE_FLOATS:
        with np.errstate(invalid="ignore"):
            equal(elementwise(cast_to(target), [values], [narrow], lanes), values.astype(target.numpy))


def between(narrow: DType) -> Array:
    """Numbers around every finite value of the type and halfway to the next, as float64."""
    with np.errstate(invalid="ignore"):
        known = np.arange(2**narrow.bits, dtype=f"u{narrow.lane_size}").view(narrow.numpy).astype(np.float64)
    known = np.unique(known[np.isfinite(known)])
    middle = (known[1:] + known[:-1]) / 2
    around = np.concatenate([known, middle, known[[0, -1]] * 1.04, known[[0, -1]] * 4])
    return np.concatenate([around, np.nextafter(around, np.inf), np.nextafter(around, -np.inf),
                           [np.inf, -np.inf, np.nan, 0.0, -0.0]])


@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("narrow", FLOATS[:4], ids=lambda d: d.name)
def test_rounding_to_narrow_floats_is_done_once(narrow: DType, lanes: int) -> None:
    double = between(narrow)
    with np.errstate(all="ignore"):
        single = double.astype(np.float32)
        equal(elementwise(cast_to(narrow), [single], [dtypes.float32], lanes), single.astype(narrow.numpy))
    equal(elementwise(cast_to(narrow), [double], [dtypes.float64], lanes), rounded_once(double, narrow))


def rounded_once(x: Array, narrow: DType) -> Array:
    """The nearest value of the type, the even one of two, from the sorted list of all its values."""
    with np.errstate(invalid="ignore"):
        bits = np.arange(2 ** (narrow.bits - 1), dtype=f"u{narrow.lane_size}")
        known = bits.view(narrow.numpy).astype(np.float64)
    finite = known[np.isfinite(known)]
    beyond = finite[-1] * 2 - finite[-2]
    steps = np.append(finite, beyond)
    size = np.abs(x)
    below = np.clip(np.searchsorted(steps, size, side="right") - 1, 0, finite.size - 1)
    middle = (steps[below] + steps[below + 1]) / 2
    up = (size > middle) | ((size == middle) & (below % 2 == 1))
    place = below + up
    special = 2 ** (narrow.bits - 1) - 1 if narrow is dtypes.fp8e4m3 else finite.size
    place = np.where(place >= finite.size, special, place)
    result = place.astype(f"u{narrow.lane_size}").view(narrow.numpy)
    result = np.where(np.signbit(x), -result, result).astype(narrow.numpy)
    result[np.isnan(x)] = np.nan
    return result


def test_large_integers_round_once_to_bfloat16() -> None:
    ties = [2**24 + 2**16, 2**30 + 2**22]
    x = np.array([*ties, *(t + 1 for t in ties), *(-t - 1 for t in ties), 0, 7], dtype=np.int32)
    found = elementwise(cast_to(dtypes.bfloat16), [x], [dtypes.int32], 1)
    equal(found, rounded_once(x.astype(np.float64), dtypes.bfloat16))


@pytest.mark.parametrize("lanes", (1, 4))
def test_bitcasts_keep_the_bits(lanes: int) -> None:
    for source, target in ((dtypes.float32, dtypes.int32), (dtypes.int64, dtypes.float64),
                           (dtypes.float16, dtypes.uint16), (dtypes.bfloat16, dtypes.float16),
                           (dtypes.fp8e4m3, dtypes.int8)):
        bits = np.random.default_rng(0).integers(0, 256, 96, dtype=np.uint8)
        values = bits[:96 // lanes * lanes].view(source.numpy)

        def bitcast(x: UOp, target: DType = target) -> UOp:
            return new(Ops.BITCAST, target.vec(x.dtype.count), (x,))

        found = elementwise(bitcast, [values], [source], lanes)
        np.testing.assert_array_equal(found.view(np.uint8), values.view(np.uint8))


@pytest.mark.parametrize("rows, columns", [(36, 16), (30, 40), (7, 16)])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_called_functions_leave_a_tile_of_accumulators_alone(rows: int, columns: int, kind: str) -> None:
    """A function of single numbers (of each row) and one of vectors, called beside the tile's registers."""
    generator = np.random.default_rng(0)
    a, b, s, t = (generator.standard_normal(shape).astype(kind)
                  for shape in ((rows, 64), (64, columns), (rows, 1), (rows, columns)))
    x, w, by_row, each = (Tensor(array).realize() for array in (a, b, s, t))
    product, ones = a @ b, np.ones(1, kind)
    np.testing.assert_allclose((x @ w * by_row.sigmoid()).numpy(), product / (ones + np.exp(-s)), 1e-4, 1e-5)
    np.testing.assert_allclose((x @ w * each.sigmoid()).numpy(), product / (ones + np.exp(-t)), 1e-4, 1e-5)
