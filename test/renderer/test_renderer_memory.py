"""What renderers write, run: memory, loops, registers and lanes; what a renderer says of itself."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from renderer_programs import (
    FLOATS,
    INDEX,
    INTEGERS,
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
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.renderer.matrix_units import SIMDGROUP

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
        reduced = in_primitives(new(Ops.REDUCE, dtype, (vector,), op))
        lines.add(store(param(slot, dtype, 1), index(0), reduced))
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
        machine = cores(width, 16)
        assert machine.lanes(dtypes.float32) == width // 4
        assert machine.lanes(dtypes.float64) == width // 8
        assert machine.lanes(dtypes.int8) == width
        assert machine.lanes(dtypes.float16) == width // 4  # computed in float32


def chain(op: Ops, dtype: DType) -> list[UOp]:
    lines = Lines()
    value = load(param(1, dtype, 1), index(0))
    lines.add(store(param(0, dtype, 1), index(0), new(op, dtype, (value,))))
    return lines.nodes


@pytest.mark.parametrize("op", [Ops.EXP2, Ops.LOG2, Ops.SIN])
def test_functions_that_were_not_made_of_arithmetic_are_refused(op: Ops) -> None:
    with pytest.raises(ValueError, match=rf"kernel k: .*cannot say {op.name} of dtypes\.float32"):
        LLVMRenderer(cores(64, 32)).render("k", chain(op, dtypes.float32))


@pytest.mark.parametrize("op", [Ops.BARRIER, Ops.SPECIAL])
def test_what_only_other_devices_have_is_refused(op: Ops) -> None:
    with pytest.raises(ValueError, match=f"cannot say {op.name}"):
        LLVMRenderer(cores(64, 32)).render("k", [new(op, INDEX, (), ("x", 1))])


def test_a_unit_of_another_device_is_refused() -> None:
    unit = SIMDGROUP[0]
    tiles = [UOp.new(Ops.CONST, d.vec(f.registers), (), 0.0)
             for d, f in ((unit.source, unit.a), (unit.source, unit.b), (unit.result, unit.c))]
    with pytest.raises(ValueError, match="cannot say MMA"):
        product = new(Ops.MMA, tiles[2].dtype, (*tiles, index(0)), unit)
        LLVMRenderer(cores(64, 32)).render("k", [*tiles, product])


def test_a_loop_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="GLOBAL"):
        LLVMRenderer(cores(64, 32)).render("k", [index(4), UOp.range(4, 0, RangeKind.GLOBAL)])


def test_a_name_that_no_function_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be a kernel's name"):
        LLVMRenderer(cores(64, 32)).render("a b", [])


def test_text_that_is_not_llvm_ir_is_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="(?s)LLVM does not .*expected"):
        Device["CPU"].compile("define nonsense")
