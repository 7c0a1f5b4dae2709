"""Linear programs written by hand, rendered to LLVM IR, run, and compared with NumPy or exact arithmetic."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tinygrad.device import Buffer, Device
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.matrix_units import SIMDGROUP
from tinygrad.renderer.scalar import scalar_program

Array = np.ndarray[Any, Any]
LANES = (1, 3, 4, 16)
SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
INTEGERS = SIGNED + UNSIGNED
WIDE_FLOATS = (dtypes.float32, dtypes.float64)
FLOATS = (dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.float16, dtypes.bfloat16, *WIDE_FLOATS)
INDEX = dtypes.index


# --- writing programs ----------------------------------------------------------------------------------


class Lines:
    """A linear program; adding a node adds the sources that are not there yet."""

    def __init__(self) -> None:
        self.nodes: list[UOp] = []
        self.identities = itertools.count()

    def add(self, node: UOp) -> UOp:
        listed = set(self.nodes)
        self.nodes += [n for n in node.toposort(stop=lambda n: n in listed) if n not in listed]
        return node

    def end(self, loop: UOp) -> None:
        self.nodes.append(new(Ops.END, INDEX, (loop,)))

    def read(self, register: UOp) -> UOp:
        return self.add(new(Ops.LOAD, register.dtype, (register,), next(self.identities)))


def new(op: Ops, dtype: DType, src: Sequence[UOp] = (), arg: Any = None) -> UOp:
    return UOp.new(op, dtype, tuple(src), arg)


def param(slot: int, dtype: DType, items: int) -> UOp:
    return new(Ops.PARAM, dtype, (), (slot, items))


def constant(value: Any, dtype: DType) -> UOp:
    return new(Ops.CONST, dtype, (), value)


def index(value: int) -> UOp:
    return UOp.const(value, INDEX)


def load(memory: UOp, offset: UOp, lanes: int = 1, valid: UOp | None = None) -> UOp:
    src = (memory, offset) if valid is None else (memory, offset, valid)
    return new(Ops.LOAD, memory.dtype.vec(lanes), (new(Ops.INDEX, memory.dtype, src),))


def store(memory: UOp, offset: UOp, value: UOp, valid: UOp | None = None) -> UOp:
    src = (memory, offset) if valid is None else (memory, offset, valid)
    return new(Ops.STORE, value.dtype, (new(Ops.INDEX, memory.dtype, src), value))


def run(program: list[UOp], arrays: Sequence[Array], variables: Sequence[int] = (), extent: int = 1) -> None:
    """Run a program on arrays, which stand for its PARAMs by slot."""
    check_graph(program, "program")
    device = Device[Device.DEFAULT]
    if device.renderer.has_blocks:
        run_in_blocks(program, arrays, variables)
        return
    code = device.compile(device.renderer.render("kernel", program))
    kernel = device.load("kernel", code, device.renderer.scratch_bytes(program))
    kernel([a.ctypes.data for a in arrays], variables, extent)


def run_in_blocks(program: list[UOp], arrays: Sequence[Array], variables: Sequence[int]) -> None:
    """`run` on a device of its own memory, whose threads have no vectors: one thread does all."""
    device = Device[Device.DEFAULT]
    if any(n.op is Ops.RANGE and n.arg[1] is RangeKind.THREAD for n in program):
        pytest.skip("blocks of threads have no ranges across CPU cores")
    program = scalar_program(program, device.renderer)
    code = device.compile(device.renderer.render("tested", program))  # "kernel" is a word of OpenCL
    kernel = device.load_blocks("tested", code, launch_of(program))
    buffers = [Buffer(device.name, max(1, a.nbytes), dtypes.uint8) for a in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        held = np.zeros(buffer.nbytes, np.uint8)
        held[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer.copyin(held.data)
    kernel([b.address for b in buffers], variables, 1)
    for buffer, array in zip(buffers, arrays, strict=True):
        array.reshape(-1).view(np.uint8)[:] = buffer.numpy()[:array.nbytes]


def elementwise(make: Callable[..., UOp], inputs: Sequence[Array], given: Sequence[DType],
                lanes: int) -> Array:
    """`make` applied to vectors of `lanes` items of the inputs, one loop over all of them."""
    whole = -(-inputs[0].size // lanes) * lanes
    padded = [np.resize(x, whole) for x in inputs]
    lines = Lines()
    loop = lines.add(UOp.range(whole // lanes, 0))
    memory = [param(i + 1, d, whole) for i, d in enumerate(given)]
    result = make(*(load(m, loop * lanes, lanes) for m in memory))
    target = param(0, result.dtype.scalar, whole)
    lines.add(store(target, loop * lanes, result))
    lines.end(loop)
    out = np.zeros(whole, dtype=result.dtype.numpy)
    run(lines.nodes, [out, *padded])
    return out[:inputs[0].size]


def equal(found: Array, expected: Array) -> None:
    """The same bits, except that any NaN equals any other."""
    assert found.dtype == expected.dtype
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), nan)
    bits = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


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
    monkeypatch.setattr(Device["CPU"].renderer, "contracts", False)
    monkeypatch.setattr(Device["CPU"].renderer, "has_float16", False)


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
    text = LLVMRenderer(64, 32).render("kernel", lines.nodes)
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


# --- memory --------------------------------------------------------------------------------------------


MEMORY_TYPES = (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.float16, dtypes.bfloat16, dtypes.bool)


def numbers(count: int, dtype: DType) -> Array:
    return (np.arange(1, count + 1) % 7).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", MEMORY_TYPES, ids=lambda d: d.name)
def test_gather_and_scatter(dtype: DType) -> None:
    places = (3, 0, 7, 4)
    lines = Lines()
    offsets = constant(places, INDEX.vec(4))
    lines.add(store(param(0, dtype, 4), index(0), load(param(1, dtype, 8), offsets, 4)))
    lines.add(store(param(2, dtype, 8), offsets, load(param(1, dtype, 8), index(0), 4)))
    x, gathered, scattered = numbers(8, dtype), np.zeros(4, dtype.numpy), np.zeros(8, dtype.numpy)
    run(lines.nodes, [gathered, x, scattered])
    np.testing.assert_array_equal(gathered, x[list(places)])
    expected = np.zeros(8, dtype.numpy)
    expected[list(places)] = x[:4]
    np.testing.assert_array_equal(scattered, expected)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("dtype", MEMORY_TYPES, ids=lambda d: d.name)
def test_lanes_that_are_not_valid_touch_no_memory(dtype: DType, gathers: bool) -> None:
    """The other lanes' addresses are far outside the process's memory."""
    lines = Lines()
    lanes = constant((0, 1, 2, 3), INDEX.vec(4))
    flags = new(Ops.CMPLT, dtypes.bool.vec(4), (lanes, constant(2, INDEX.vec(4))))
    near = constant((1, 0, 1 << 50, -(1 << 50)), INDEX.vec(4)) if gathers else index(0)
    lines.add(store(param(0, dtype, 4), index(0), load(param(1, dtype, 2), near, 4, flags)))
    lines.add(store(param(2, dtype, 2), near, load(param(0, dtype, 4), index(0), 4), flags))
    x, loaded, stored = numbers(2, dtype), np.ones(4, dtype.numpy), np.zeros(4, dtype.numpy)
    run(lines.nodes, [loaded, x, stored])
    order = [1, 0] if gathers else [0, 1]
    np.testing.assert_array_equal(loaded, np.concatenate([x[order], np.zeros(2, dtype.numpy)]))
    np.testing.assert_array_equal(stored, np.concatenate([x, np.zeros(2, dtype.numpy)]))


@pytest.mark.parametrize("lanes", (1, 4))
@pytest.mark.parametrize("valid", [False, True])
def test_one_condition_for_all_lanes(lanes: int, valid: bool) -> None:
    f = dtypes.float32
    lines = Lines()
    flag = new(Ops.CMPLT, dtypes.bool, (UOp.variable("n", 0, 9), index(5)))
    far = new(Ops.WHERE, INDEX, (flag, index(2), index(1 << 50)))
    lines.add(store(param(0, f, 8), index(0), load(param(1, f, 8), far, lanes, flag)))
    lines.add(store(param(0, f, 8), far, load(param(1, f, 8), index(0), lanes), flag))
    x, out = numbers(8, f), np.full(8, 9, np.float32)
    run(lines.nodes, [out, x], [3 if valid else 7])
    expected = np.full(8, 9, np.float32)
    expected[:lanes] = x[2:2 + lanes] if valid else 0
    if valid:
        expected[2:2 + lanes] = x[:lanes]
    np.testing.assert_array_equal(out, expected)


def test_memory_shorter_than_a_vector_is_not_read_past_its_end() -> None:
    """The array ends with a page, and the next page may not be touched."""
    import ctypes
    import mmap

    if not hasattr(mmap, "PROT_READ"):
        pytest.skip("needs POSIX memory protection")
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = np.frombuffer(pages, dtype=np.uint8).ctypes.data
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    f = dtypes.float32
    short = np.frombuffer(pages, dtype=np.float32, count=3, offset=mmap.PAGESIZE - 12)
    lines = Lines()
    flag = new(Ops.CMPLT, dtypes.bool, (UOp.variable("n", 0, 9), index(5)))
    lines.add(store(param(0, f, 16), index(0), load(param(1, f, 3), index(0), 16, flag)))
    out = np.ones(16, np.float32)
    run(lines.nodes, [out, short], [7])
    np.testing.assert_array_equal(out, np.zeros(16))
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 3) == 0


def test_nothing_is_read_from_empty_memory() -> None:
    f = dtypes.float32
    lines = Lines()
    flag = new(Ops.CMPLT, dtypes.bool, (UOp.variable("n", 0, 9), index(0)))
    lines.add(store(param(0, f, 1), index(0), load(param(1, f, 0), index(0), 1, flag)))
    out = np.ones(1, np.float32)
    run(lines.nodes, [out, np.zeros(0, np.float32)], [0])
    assert out.tolist() == [0.0]


def test_bools_are_bytes_in_memory() -> None:
    lines = Lines()
    loaded = load(param(1, dtypes.bool, 4), index(0), 4)
    lines.add(store(param(0, dtypes.bool, 4), index(0), loaded))
    out = np.zeros(4, np.uint8)
    run(lines.nodes, [out, np.array([0, 1, 2, 255], np.uint8)])
    assert out.tolist() == [0, 1, 1, 1]


# --- loops, registers, scratch, lanes ------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_runs_as_often_as_its_extent_says(count: int) -> None:
    """acc = 10; for i in 0..n: acc += p1[i]; p0[0] = acc"""
    f = dtypes.float32
    lines = Lines()
    register, loop = new(Ops.REGISTER, f, (), 0), UOp.range(UOp.variable("n", 0, 8), 0)
    lines.add(register.store(UOp.const(10.0, f)))
    lines.add(loop)
    value = lines.add(load(param(1, f, 8), loop))
    lines.add(register.store(lines.read(register) + value))
    lines.end(loop)
    lines.add(store(param(0, f, 1), index(0), lines.read(register)))
    x, out = numbers(8, f), np.zeros(1, np.float32)
    run(lines.nodes, [out, x], [count])
    assert out[0] == 10 + x[:count].sum()


def test_a_node_listed_in_two_loops_is_computed_in_each() -> None:
    f = dtypes.float32
    lines = Lines()
    source, loops = param(2, f, 4), [UOp.range(4, i) for i in range(2)]
    shared = load(source, index(1))
    for slot, loop in enumerate(loops):
        target = param(slot, f, 4)
        at = new(Ops.INDEX, f, (source, index(1)))
        place = new(Ops.INDEX, f, (target, loop))
        lines.nodes += [n for n in (target, source, index(1), loop.src[0]) if n not in lines.nodes]
        lines.nodes += [loop, at, shared, place, new(Ops.STORE, f, (place, shared))]
        lines.end(loop)
    out = [np.zeros(4, np.float32) for _ in range(2)]
    run(lines.nodes, [*out, np.array([1, 5, 2, 3], np.float32)])
    np.testing.assert_array_equal(out, np.full((2, 4), 5))


@pytest.mark.parametrize("lanes", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.int8, dtypes.uint32, dtypes.bfloat16, dtypes.bool),
                         ids=lambda d: d.name)
def test_lanes_reduce_to_one(dtype: DType, lanes: int) -> None:
    x = np.array([i % 3 != 0 for i in range(lanes)]) if dtype.is_bool else numbers(lanes, dtype) % 3
    x = x.astype(dtype.numpy)
    reference: dict[Ops, Callable[..., Any]] = {Ops.ADD: np.sum, Ops.MAX: np.max, Ops.MUL: np.prod}
    if dtype.is_bool:
        reference = {Ops.ADD: np.any, Ops.MAX: np.any, Ops.MUL: np.all}
    lines = Lines()
    for slot, op in enumerate(reference):
        vector = load(param(3, dtype, lanes), index(0), lanes)
        lines.add(store(param(slot, dtype, 1), index(0), new(Ops.REDUCE, dtype, (vector,), op)))
    out = [np.zeros(1, dtype.numpy) for _ in reference]
    run(lines.nodes, [*out, x])
    exact = x if dtype.is_bool else x.astype(np.int64)
    assert [int(o[0]) for o in out] == [int(dtype.as_const(int(f(exact)))) for f in reference.values()]


def test_vectors_are_built_and_taken_apart() -> None:
    f = dtypes.float32
    lines = Lines()
    scalars = [load(param(1, f, 4), index(i)) for i in (2, 0, 3)]
    built = new(Ops.VECTORIZE, f.vec(3), scalars)
    everywhere = new(Ops.VECTORIZE, f.vec(3), (new(Ops.EXTRACT, f, (built,), 2),))
    fixed = new(Ops.VECTORIZE, f.vec(3), [UOp.const(v, f) for v in (0.5, 1.5, 2.5)])
    for slot, value in ((0, built), (2, everywhere), (3, fixed)):
        lines.add(store(param(slot, f, 3), index(0), value))
    out = [np.zeros(3, np.float32) for _ in range(3)]
    run(lines.nodes, [out[0], np.array([10, 11, 12, 13], np.float32), *out[1:]])
    np.testing.assert_array_equal(out, [[12, 10, 13], [13, 13, 13], [0.5, 1.5, 2.5]])


@pytest.mark.parametrize("lanes", (1, 4))
def test_scratch_arrays_are_apart(lanes: int) -> None:
    """Two arrays of odd lengths are filled, then one is read backwards and the other added."""
    f, count = dtypes.float32, 12
    lines = Lines()
    kept = [new(Ops.SCRATCH, f, (), (i, count + i)) for i in range(2)]
    first, second = UOp.range(count // lanes, 0), UOp.range(count, 1)
    value = load(param(1, f, count), first * lanes, lanes)
    lines.add(store(kept[0], first * lanes, value))
    lines.add(store(kept[1], first * lanes, value + value))
    lines.end(first)
    total = load(kept[0], second * -1 + (count - 1)) + load(kept[1], second)
    lines.add(store(param(0, f, count), second, total))
    lines.end(second)
    x, out = np.random.default_rng(1).random(count, np.float32), np.zeros(count, np.float32)
    run(lines.nodes, [out, x])
    np.testing.assert_array_equal(out, x[::-1] + 2 * x)


def test_variables_come_in_the_order_of_the_program() -> None:
    i = dtypes.int32
    lines = Lines()
    for slot, name in enumerate(("start pos", "n.2", "start-pos")):
        variable = UOp.variable(name, -50, 50)
        lines.add(store(param(slot, i, 1), index(0), new(Ops.CAST, i, (variable,))))
    out = [np.zeros(1, np.int32) for _ in range(3)]
    run(lines.nodes, out, [7, -8, 9])
    assert [int(o[0]) for o in out] == [7, -8, 9]


def test_constants_of_every_type() -> None:
    lines = Lines()
    expected = []
    for slot, dtype in enumerate((*INTEGERS, *FLOATS, dtypes.bool)):
        value = 1.7 if dtype.is_float else dtype.max
        lines.add(store(param(slot, dtype, 2), index(0), constant((value, value), dtype.vec(2))))
        given = np.array([value] * 2, np.float64 if dtype.is_float else dtype.numpy)
        expected.append(given.astype(dtype.numpy))
    out = [np.zeros_like(e) for e in expected]
    run(lines.nodes, out)
    for found, wanted in zip(out, expected, strict=True):
        equal(found, wanted)


# --- what a renderer says of itself, and errors --------------------------------------------------------


def test_lanes_follow_the_width_of_a_register() -> None:
    for width in (16, 32, 64):
        renderer = LLVMRenderer(width, 16)
        assert renderer.lanes(dtypes.float32) == width // 4
        assert renderer.lanes(dtypes.float64) == width // 8
        assert renderer.lanes(dtypes.int8) == width
        assert renderer.lanes(dtypes.float16) == width // 4  # computed in float32


def chain(op: Ops, dtype: DType) -> list[UOp]:
    lines = Lines()
    value = load(param(1, dtype, 1), index(0))
    lines.add(store(param(0, dtype, 1), index(0), new(op, dtype, (value,))))
    return lines.nodes


@pytest.mark.parametrize("op", [Ops.EXP2, Ops.LOG2, Ops.SIN])
def test_functions_that_were_not_made_of_arithmetic_are_refused(op: Ops) -> None:
    with pytest.raises(ValueError, match=rf"kernel k: .*cannot say {op.name} of dtypes\.float32"):
        LLVMRenderer(64, 32).render("k", chain(op, dtypes.float32))


@pytest.mark.parametrize("op", [Ops.BARRIER, Ops.SPECIAL])
def test_what_only_other_devices_have_is_refused(op: Ops) -> None:
    with pytest.raises(ValueError, match=f"cannot say {op.name}"):
        LLVMRenderer(64, 32).render("k", [new(op, INDEX, (), ("x", 1))])


def test_a_unit_of_another_device_is_refused() -> None:
    unit = SIMDGROUP[0]
    tiles = [UOp.new(Ops.CONST, d.vec(f.registers), (), 0.0)
             for d, f in ((unit.source, unit.a), (unit.source, unit.b), (unit.result, unit.c))]
    with pytest.raises(ValueError, match="cannot say MMA"):
        LLVMRenderer(64, 32).render("k", [*tiles, new(Ops.MMA, tiles[2].dtype, (*tiles, index(0)), unit)])


def test_a_loop_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="GLOBAL"):
        LLVMRenderer(64, 32).render("k", [index(4), UOp.range(4, 0, RangeKind.GLOBAL)])


def test_a_name_that_no_function_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be a kernel's name"):
        LLVMRenderer(64, 32).render("a b", [])


def test_text_that_is_not_llvm_ir_is_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="(?s)LLVM does not .*expected"):
        Device["CPU"].compile("define nonsense")
