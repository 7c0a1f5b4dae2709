"""Long sums in subtotals: what they give, how far rounding takes them, and that a search keeps them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import held

from tinygrad import Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.measure import Workbench
from tinygrad.codegen.opt.neighbours import neighbours
from tinygrad.codegen.opt.opts import Accumulators, Opt, Split, Subtotals, Unroll, Upcast, Vector
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.opt.subtotals import LONGEST, SUBTOTAL, WHOLE, long_sum
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer.machine import cores

RNG = np.random.default_rng(29)


def ast_of(value: Tensor) -> UOp:
    return value.schedule()[-1].ast


def relative_error(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("rows, columns", [(1, 129), (5, 96), (64, 64), (130, 70)])
@pytest.mark.parametrize("length", [2048, 2011, 5000, 16384])
def test_rounding_errors_do_not_grow_with_the_length(rows: int, columns: int, length: int) -> None:
    """One accumulator of 2,011 products is off by 8e-7, of 16,384 by 2.2e-6."""
    a, b = (RNG.standard_normal(shape, np.float32) for shape in ((rows, length), (length, columns)))
    assert relative_error((held(a) @ held(b)).numpy(), a.astype(np.float64) @ b.astype(np.float64)) < 5.5e-7


@pytest.mark.parametrize("channels, size", [(512, 3), (131, 5), (2053, 1)])
def test_convolutions_of_many_channels(channels: int, size: int) -> None:
    x, w = RNG.integers(-2, 3, (2, channels, 7, 7)), RNG.integers(-2, 3, (17, channels, size, size))
    taken = held(x.astype(np.float32)).conv2d(held(w.astype(np.float32)), padding=size // 2)
    expected = Tensor(x.astype(np.float64)).conv2d(Tensor(w.astype(np.float64)), padding=size // 2)
    np.testing.assert_array_equal(taken.numpy(), expected.numpy())  # sums of integers: nothing is rounded


FORMS: dict[str, Callable[..., Tensor]] = {
    "product": lambda x, y: x @ y,
    "mean and variance of columns": lambda x, y: x.var(0) + x.mean(0),
    "with what follows": lambda x, y: (x @ y + 3).relu() * 2,
    "of a function": lambda x, y: (x * x - x).sum(1),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(6, 1279, 19), (2311, 40, 8), (40, 4801, 33)])
def test_what_they_give(name: str, shape: tuple[int, int, int]) -> None:
    rows, length, columns = shape
    x, y = RNG.integers(-3, 4, (rows, length)), RNG.integers(-3, 4, (length, columns))
    taken = FORMS[name](held(x.astype(np.float32)), held(y.astype(np.float32))).numpy()
    expected = FORMS[name](Tensor(x.astype(np.float64)), Tensor(y.astype(np.float64))).numpy()
    np.testing.assert_allclose(taken, expected, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("amount", [2, 3, 7, 20, 41])
@pytest.mark.parametrize("others", [(), (Vector(1, 4),), (Upcast(0, 3), Unroll(2, 4)), (Split(2, 5),),
                                    (Accumulators(2, 2),)], ids=str)
def test_any_number_of_terms_may_be_a_subtotal(amount: int, others: tuple[Opt, ...]) -> None:
    a, b = RNG.integers(-3, 4, (7, 43)).astype(np.float32), RNG.integers(-3, 4, (43, 10)).astype(np.float32)
    whole = lower(ast_of(held(a) @ held(b)))
    nest = apply_plan(whole, Plan(others))
    longest = max((r for n in nest.nodes_of(Ops.REDUCE) for r in n.closed_ranges), key=lambda r: r.extent)
    if longest.extent <= amount:
        pytest.skip(f"{longest.extent} iterations have no subtotal of {amount}")
    bench = Workbench(whole, "CPU")
    assert bench.is_right(bench.build(whole, Plan((*others, Subtotals(longest.identity, amount)))))


@pytest.mark.parametrize("value", [lambda: Tensor.empty(64, 4096) @ Tensor.empty(4096, 64),
                                   lambda: Tensor.empty(5000, 33).sum(0),
                                   lambda: Tensor.empty(2, 300, 9, 9).conv2d(Tensor.empty(64, 300, 3, 3))])
def test_no_accumulator_takes_more_than_a_sum_that_stays_whole(value: Callable[[], Tensor]) -> None:
    nest = stages_of(ast_of(value()), "CPU").optimised
    lengths = [prod(r.extent for r in n.closed_ranges) for n in nest.nodes_of(Ops.REDUCE)]
    assert max(lengths) <= max(WHOLE, LONGEST) * SUBTOTAL
    assert long_sum(nest) is None


def test_a_search_keeps_them() -> None:
    nest = lower(ast_of(Tensor.empty(64, 4096) @ Tensor.empty(4096, 64)))
    plan = stages_of(ast_of(Tensor.empty(64, 4096) @ Tensor.empty(4096, 64)), "CPU").plan
    assert any(isinstance(opt, Subtotals) for opt in plan.opts)
    near = list(neighbours(nest, plan, cores(vector_bytes=32)))
    assert near and all(any(isinstance(opt, Subtotals) for opt in p.opts) for p in near)
