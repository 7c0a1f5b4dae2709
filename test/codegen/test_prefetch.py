"""Hints ahead of loads: for weights that a row meets once, and for rows that are put in order by shuffles."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from arrays import normal
from kernel_cases import nest_of

from tinygrad import Tensor, dtypes
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import Prefetch
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.opt.prefetch import WEIGHTS_AHEAD, WEIGHTS_SHARE
from tinygrad.codegen.program import linear_program
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import Machine, cores

MACHINE = cores(vector_bytes=64, registers=32, threads=2, l2_bytes=1 << 20)


def in_panels(weights: Any, tile: int = 64) -> Tensor:
    """A matrix (N, K), of which `tile` rows lie side by side: (N / tile, K, tile)."""
    return Tensor(weights).unflatten(0, (-1, tile)).transpose(-1, -2).contiguous().realize()


def hints_of(nest: UOp, machine: Machine = MACHINE) -> list[Prefetch]:
    return [o for o in choose_plan(nest, machine).opts if isinstance(o, Prefetch)]


def hinted_loads(nest: UOp, plan: Plan) -> list[UOp]:
    """The loads of the program that ask for memory ahead."""
    program = linear_program(apply_plan(nest, plan), LLVMRenderer(MACHINE))
    return [n for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX and n.arg]


@pytest.mark.parametrize("rows", [768, 4096])
def test_weights_that_a_row_meets_are_asked_for_ahead_though_they_would_fit_into_the_cache(rows: int) -> None:
    x, panels = Tensor(normal(160)).realize(), in_panels(normal(rows, 160))
    nest = nest_of((panels * x.reshape(1, -1, 1)).sum(1))
    assert panels.nbytes() > MACHINE.l2_bytes // WEIGHTS_SHARE
    (hint,) = hints_of(nest)
    bytes_ahead = hint.iterations * 64 * 4
    assert hint.loop == hint.along and WEIGHTS_AHEAD // 2 <= bytes_ahead <= WEIGHTS_AHEAD


def test_a_small_matrix_and_sums_of_what_was_just_computed_are_not() -> None:
    x = Tensor(normal(160)).realize()
    assert not hints_of(nest_of((in_panels(normal(128, 160)) * x.reshape(1, -1, 1)).sum(1)))
    assert not hints_of(nest_of(in_panels(normal(768, 160)).sum(1)))


@pytest.mark.parametrize("vector_bytes, registers", [(16, 16), (32, 16), (64, 32)])
@pytest.mark.parametrize("columns", [699, 2023, 4096])
def test_rows_in_order_are_asked_for_ahead_only_where_the_last_cache_cannot_have_them(
        vector_bytes: int, registers: int, columns: int) -> None:
    """The last cache has what the kernel before wrote, and no hint makes that come faster."""
    machine = partial(cores, vector_bytes, registers, 2, l2_bytes=1 << 20)
    rows = Tensor.empty(900, columns)
    nbytes = rows.nbytes()
    for reduced in (rows.sum(1), rows.max(1), rows.square().mean(1)):
        nest = nest_of(reduced)
        assert not hints_of(nest, machine(l3_bytes=2 * nbytes))
        assert hints_of(nest, machine(l3_bytes=nbytes))
        assert hints_of(nest, machine()), "of a cache that nobody knows"
    items = Tensor.empty(1 << 20)
    nest, nbytes = nest_of(items + 1), items.nbytes()
    assert not hints_of(nest, machine(l3_bytes=4 * nbytes)), "what is written is there too"
    assert hints_of(nest, machine(l3_bytes=2 * nbytes))


def test_what_is_changed_in_place_is_asked_for_ahead_whatever_the_last_cache_holds() -> None:
    machine = cores(vector_bytes=64, registers=32, threads=2, l2_bytes=1 << 20, l3_bytes=64 << 20)
    weights, gradient = Tensor.empty(1 << 20).realize(), Tensor.empty(1 << 20).realize()
    weights.assign(weights - 0.1 * gradient)
    assert hints_of(nest_of(weights), machine)


def test_weights_that_a_row_meets_are_asked_for_ahead_whatever_the_last_cache_holds() -> None:
    x, panels = Tensor(normal(160)).realize(), in_panels(normal(4096, 160))
    machine = cores(vector_bytes=64, registers=32, threads=2, l2_bytes=1 << 20, l3_bytes=64 << 20)
    assert hints_of(nest_of((panels * x.reshape(1, -1, 1)).sum(1)), machine)


@pytest.mark.parametrize("rows", [2, 6, 10])
def test_of_rows_through_large_weights_only_the_weights_are_asked_for(rows: int) -> None:
    """Along the sum both operands lie in order, but the rows stay in a near cache."""
    weights = Tensor.empty(4096, 4096)
    nest = nest_of(Tensor.empty(rows, 4096) @ weights.T)
    hinted = hinted_loads(nest, choose_plan(nest, MACHINE))
    assert {load.src[0].src[0].arg[1] for load in hinted} == {weights.numel()}


def test_weights_that_many_rows_meet_are_not() -> None:
    """All rows but the first few find them in the caches."""
    x, panels = Tensor(normal(200, 160)).realize(), in_panels(normal(768, 160))
    nest = nest_of((panels.unsqueeze(0) * x.reshape(200, 1, -1, 1)).sum(2))
    assert not hinted_loads(nest, choose_plan(nest, MACHINE))


def test_only_loads_with_lanes_side_by_side_are_hinted() -> None:
    x, panels = Tensor(normal(160)).realize(), in_panels(normal(4096, 160))
    nest = nest_of((panels * x.reshape(1, -1, 1)).sum(1))
    hinted = hinted_loads(nest, choose_plan(nest, MACHINE))
    assert hinted and all(n.dtype.count == 16 for n in hinted)


def test_keys_that_are_put_in_order_for_a_row_of_scores_are_asked_for_ahead() -> None:
    """Their tiles are loaded as rows, which ask for those of the next block."""
    q, k, v = (Tensor(normal(3, n, 64)).cast(kind).realize()
               for n, kind in ((3, dtypes.float32), (4096, dtypes.float16), (4096, dtypes.float16)))
    nest = nest_of(q.scaled_dot_product_attention(k.float(), v.float()))
    plan = choose_plan(nest, MACHINE)
    keys = [n for n in hinted_loads(nest, plan) if n.memory.arg[1] == k.numel()]
    assert len({n.memory for n in keys}) == 2, plan


@pytest.mark.parametrize("rows, columns", [(768, 160), (192, 96), (4096, 31)])
def test_products_with_hints_are_numpys(rows: int, columns: int) -> None:
    """Hints past the end of memory do nothing."""
    x, weights = normal(columns), normal(rows, columns)
    got = (in_panels(weights) * Tensor(x).reshape(1, -1, 1)).sum(1).flatten().numpy()
    np.testing.assert_allclose(got, weights.astype(np.float64) @ x, rtol=1e-4, atol=1e-4)
