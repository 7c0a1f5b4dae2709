"""Running sums as recurrences: where a plan carries them, where it may not, and what they give."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import drawn, held, integers

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.opts import Prefetch, Scan, Thread, Upcast, Vector
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.prefix_sum import prefix_sums


def plans_of(value):
    return [stages_of(item.ast, "CPU").plan for item in value.schedule()]


def are_carried(value):
    return all(any(isinstance(o, Scan) for o in plan.opts) for plan in plans_of(value))


def triangle(n):
    return Tensor.arange(n).reshape(n, 1) >= Tensor.arange(n).reshape(1, n)


@pytest.mark.parametrize("shape", [(31,), (7, 24), (24, 7), (3, 5, 32)])
@pytest.mark.parametrize("axis", [0, -1])
def test_short_running_sums_are_carried(shape, axis):
    assert are_carried(held(drawn(*shape)).cumsum(axis))


def test_a_masked_triangle_that_a_user_spells_is_the_same_recurrence():
    x = drawn(6, 40)
    value = triangle(40).where(held(x).reshape(6, 1, 40), 0).sum(-1)
    assert are_carried(value)
    np.testing.assert_allclose(value.numpy(), np.cumsum(x, 1), rtol=1e-5, atol=1e-5)


def moving_sum(x, size):
    return x.pad((None, (size - 1, 0))).unfold(1, size, 1).sum(-1)


@pytest.mark.parametrize("value", [
    lambda x: moving_sum(x, 8),
    lambda x: x.pad((None, (10, 0))).unfold(1, 30, 1).sum(-1),
    lambda x: (triangle(40) & (Tensor.arange(40) > 3).reshape(40, 1)).where(x.reshape(6, 1, 40), 0).sum(-1),
    lambda x: triangle(40).where(x.reshape(6, 1, 40) * x.reshape(6, 40, 1), 0).sum(-1),
], ids=["items leave", "the first has several", "rows left out", "scaled by the row"])
def test_other_masked_sums_are_not(value):
    x = drawn(6, 40)
    result = value(held(x))
    assert not any(isinstance(o, Scan) for plan in plans_of(result) for o in plan.opts)
    wide = value(Tensor(x.astype(np.float64)))
    np.testing.assert_allclose(result.numpy(), wide.numpy(), rtol=1e-4, atol=1e-4)


SHAPES = [(5,), (40,), (3, 1000), (33, 7), (7, 33), (2, 31, 5), (2, 100, 65), (1161, 9), (1, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
def test_against_numpy(shape):
    whole = integers(*shape)
    for axis in range(len(shape)):
        x = held(whole)
        np.testing.assert_array_equal(x.cumsum(axis).numpy(), np.cumsum(whole, axis))
        np.testing.assert_array_equal(x.cummax(axis)[0].numpy(), np.maximum.accumulate(whole, axis))
        np.testing.assert_array_equal(x.cast(dtypes.int32).cumsum(axis).numpy(), np.cumsum(whole, axis))
        np.testing.assert_array_equal(x.flip(axis).cumsum(axis).flip(axis).numpy(),
                                      np.flip(np.cumsum(np.flip(whole, axis), axis), axis))
        np.testing.assert_allclose((x / 64 + 1).cumprod(axis).numpy(), np.cumprod(whole / 64 + 1.0, axis),
                                   rtol=1e-4)
        np.testing.assert_allclose(x.logcumsumexp(axis).numpy(), np.log(np.cumsum(np.exp(whole * 1.0), axis)),
                                   rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "fp8e4m3", "fp8e5m2", "float64", "int8", "uint8"])
def test_every_dtype(dtype):
    whole = np.abs(integers(3, 40))
    x = Tensor(whole, requires_grad=False).cast(getattr(dtypes, dtype)).realize()
    for axis in (0, 1):
        np.testing.assert_array_equal(x.cummax(axis)[0].float().numpy(), np.maximum.accumulate(whole, axis))
        assert are_carried(x.cummax(0)[0])
    triangular = triangle(40).where(x.reshape(3, 1, 40), 0).sum(-1)
    np.testing.assert_allclose(triangular.float().numpy(), np.cumsum(whole, 1),
                               rtol=2**-3 if "fp8" in dtype else 2**-8)


def test_values_around_a_running_sum():
    x, w = integers(5, 30), integers(5, 30, seed=1)
    value = (held(x) * held(w)).cumsum(1) * 2 + held(w)
    np.testing.assert_array_equal(value.numpy(), np.cumsum(x * w, 1) * 2 + w)


def test_gradients_of_running_sums():
    x, w = integers(4, 50), integers(4, 50, seed=1)
    tensor = Tensor(x, requires_grad=True)
    (tensor.cumsum(1) * Tensor(w)).sum().backward()
    np.testing.assert_array_equal(tensor.grad.numpy(), np.flip(np.cumsum(np.flip(w, 1), 1), 1))


def test_a_loop_that_is_carried_stays_whole():
    [item] = held(drawn(6, 24)).cumsum(1).schedule()
    nest = lower(item.ast)
    [part] = prefix_sums(nest)
    loop = part.loop.arg[0]
    for opt in (Vector(loop, 8), Upcast(loop, 4), Thread(loop)):
        with pytest.raises(ValueError, match="runs in order"):
            apply_plan(nest, Plan((Scan(loop), opt)))
    with pytest.raises(ValueError, match="reduced up to each iteration"):
        apply_plan(nest, Plan((Scan(nest.src[0].closed_ranges[0].arg[0]),)))


@pytest.mark.parametrize("shape", [(1000, 1000), (596, 6927)])
def test_what_whole_vectors_leave_over_of_a_row_asks_for_no_rows_ahead(shape):
    """Those lie behind the end of memory for the last rows, where processors look for pages in vain: sums of
    1,000 rows of 1,000 took 28 times as long as PyTorch's (AMD Zen 1)."""
    [plan] = plans_of(Tensor.rand(*shape).realize().sum(1))
    rows = {o.range for o in plan.opts if isinstance(o, Thread)}
    assert not any(isinstance(o, Prefetch) and o.loop in rows for o in plan.opts)


@pytest.mark.parametrize("columns", [5, 16, 80])
def test_running_sums_of_products_of_matrices(columns):
    shares, values = integers(5, 7, 7), integers(5, 7, columns, seed=1)
    value = (held(shares) @ held(values)).cumsum(1)
    np.testing.assert_array_equal(value.numpy(), np.cumsum(shares @ values, 1))


@pytest.mark.parametrize("axis", [1, 2])
def test_outputs_with_more_loops_than_their_running_maxima(axis):
    x, w = drawn(3, 31, 31), drawn(31, 31)
    sums = np.logaddexp.accumulate(x.astype(np.float64), axis)
    value = held(x).logcumsumexp(axis)
    value = (value - value.mean(2, keepdim=True)) @ held(w)
    np.testing.assert_allclose(value.numpy(), (sums - sums.mean(2, keepdims=True)) @ w, rtol=1e-4, atol=1e-4)


def test_a_running_sum_is_computed_once_for_all_items_that_use_it():
    x, w = integers(5, 30), integers(8, seed=1)
    value = held(x).cumsum(1).reshape(5, 30, 1) * held(w)
    np.testing.assert_array_equal(value.numpy(), np.cumsum(x, 1)[..., None] * w)
    value = held(x).cumsum(1).reshape(5, 30, 1) * held(w)
    nest = apply_plan(lower(value.schedule()[-1].ast), Plan((Scan(1),)))
    assert [r.identity for r in nest.src[0].closed_ranges] == [0, 1, 2]
