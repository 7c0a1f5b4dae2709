"""Sums across rows of memory, with the loop over rows outside: what they give, and where they are chosen."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import normal

from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.measure import Workbench
from tinygrad.codegen.opt.opts import Interchange, Split, Unroll, Vector
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.graph.ops import RangeKind
from tinygrad.renderer.machine import cores

RNG = np.random.default_rng(5)


def kernel_of(value):
    return value.schedule()[-1].ast


def is_interchanged(value):
    return any(isinstance(o, Interchange) for o in stages_of(kernel_of(value), "CPU").plan.opts)


WIDE = {
    "vector times matrix": (lambda x, a: x @ a, [(1, 1031), (1031, 2053)]),
    "sums of columns": (lambda a: a.sum(0), [(701, 3001)]),
    "largest of columns": (lambda a: a.max(0), [(701, 3001)]),
    "squares, scaled": (lambda a: (a * a + 1).sum(0) * 0.5 + 3, [(333, 4099)]),
    "a batch": (lambda a: a.sum(1), [(3, 301, 2048)]),
    "one tile": (lambda a: a.sum(0), [(1201, 1024 + 8)]),
    "two rows times matrix": (lambda x, a: x @ a, [(2, 1031), (1031, 2053)]),
    "seven rows times matrix": (lambda x, a: x @ a, [(7, 1029), (1029, 3001)]),
    "twelve rows, shorter ones of the matrix": (lambda x, a: x @ a, [(12, 4100), (4100, 1030)]),
    "rows times matrix, and more": (lambda x, a, b: (x @ a + b) * 0.5, [(3, 1031), (1031, 2053), (2053,)]),
    "distances, no product": (lambda x, a: abs(x.reshape(3, -1, 1) - a).sum(1), [(3, 1031), (1031, 2053)]),
    "columns of a transposed matrix": (lambda x, a: x.T @ a, [(1031, 5), (1031, 2053)]),
    "a batch of few rows": (lambda x, a: (x.reshape(1, 4, -1, 1) * a.reshape(3, 1, 700, 2050)).sum(2),
                            [(4, 700), (3, 700, 2050)]),
}


@pytest.mark.parametrize("name", WIDE)
def test_sums_across_long_rows_add_rows_to_a_row(name):
    function, shapes = WIDE[name]
    arrays = [normal(*shape) for shape in shapes]
    value = function(*[Tensor(a, requires_grad=False).realize() for a in arrays])
    assert is_interchanged(value)
    expected = function(*[a.astype(np.float64) for a in arrays])
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bfloat16"])
def test_every_dtype(dtype):
    values = RNG.integers(-1, 2, size=(513, 4501))
    tensor = Tensor(values.astype(np.float32), dtype=getattr(dtypes, dtype), requires_grad=False).realize()
    np.testing.assert_array_equal(tensor.sum(0).cast("float32").numpy(), values.sum(0).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_largest_of_columns_of_halves(dtype):
    values = RNG.integers(-100, 100, size=(513, 4501)).astype(np.float32)
    tensor = Tensor(values, requires_grad=False).cast(getattr(dtypes, dtype)).realize()
    np.testing.assert_array_equal(tensor.max(0).cast("float32").numpy(), values.max(0))


@pytest.mark.parametrize("outputs, columns, l1_bytes, together", [
    (1, 4000, 32 << 10, 8), (12, 4000, 32 << 10, 16), (12, 4096, 32 << 10, 8), (12, 4096, 48 << 10, 12)])
def test_several_sums_take_as_many_rows_together_as_the_first_cache_has_lines_for(
        outputs, columns, l1_bytes, together):
    machine = cores(vector_bytes=64, registers=32, threads=2, l1_bytes=l1_bytes)
    value = Tensor.empty(outputs, 4099) @ Tensor.empty(4099, columns)
    plan = choose_plan(lower(kernel_of(value)), machine)
    assert any(isinstance(o, Interchange) for o in plan.opts)
    assert [o.amount for o in plan.opts if isinstance(o, Split)][-1] == together


@pytest.mark.parametrize("make", [
    lambda: Tensor.rand(64, 64).realize().sum(0),        # in the cache
    lambda: Tensor.rand(3000, 200).realize().sum(0),     # rows side by side
    lambda: Tensor.rand(512, 2048).realize().sum(1),     # along rows
    lambda: Tensor.rand(700, 900).realize() @ Tensor.rand(900, 2000).realize(),  # read again and again
    lambda: Tensor.rand(600, 2048).realize().T.contiguous(),
])
def test_other_kernels_keep_their_sums_in_registers(make):
    assert not is_interchanged(make())


@pytest.mark.parametrize("rows, columns", [(7, 5), (16, 64), (33, 48), (100, 31)])
@pytest.mark.parametrize("unroll", [0, 2, 4])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_the_plan_keeps_what_a_kernel_computes(rows, columns, unroll, lanes):
    ast = kernel_of((Tensor.rand(rows, columns).realize() * 2 + 1).sum(0).exp2())
    nest = lower(ast)
    summed = next(r for n in nest.toposort() for r in n.closed_ranges if r not in nest.src[0].closed_ranges)
    last = nest.src[0].closed_ranges[-1].arg[0]
    opts = [Unroll(summed.arg[0], unroll)] if unroll else []
    if 1 < lanes < columns:
        opts.append(Vector(last, lanes))
        loops = [r for r in apply_plan(nest, Plan(tuple(opts))).src[0].closed_ranges
                 if r.kind is RangeKind.LOOP]
        last = loops[-1].arg[0]
    opts.append(Interchange(last))
    bench = Workbench(nest, "CPU")
    assert bench.is_right(bench.build(nest, Plan(tuple(opts))))


def test_a_loop_that_no_sum_changes_with_is_refused():
    nest = lower(kernel_of(Tensor.rand(8, 8).realize() + 1))
    with pytest.raises(ValueError, match="no sum changes with"):
        apply_plan(nest, Plan((Interchange(nest.src[0].closed_ranges[-1].arg[0]),)))


@pytest.mark.parametrize("device", ["CPU:C", "PYTHON"])
def test_on_other_devices(device):
    try:
        Device[device]
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(str(error))
    columns = 1040 if device == "CPU:C" else 40
    values = normal(700 if device == "CPU:C" else 9, columns)
    tensor = Tensor(values, device=device, requires_grad=False).realize()
    np.testing.assert_allclose(tensor.sum(0).numpy(), values.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)
