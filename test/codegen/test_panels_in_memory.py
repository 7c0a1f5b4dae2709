"""Operands that lie in memory as panels would are read there; what fills panels asks for memory ahead."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import normal
from kernel_cases import MACHINES, nest_of

from tinygrad import Tensor
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import PartitionLoop, Prefetch, Split, Stage, Upcast, Vector
from tinygrad.codegen.opt.plan import apply_plan
from tinygrad.graph.ops import Ops
from tinygrad.renderer.machine import Machine, cores

AVX2 = cores(vector_bytes=32, registers=16, threads=2, l2_bytes=512 << 10)
AVX512 = cores(vector_bytes=64, registers=32, threads=2, l2_bytes=2 << 20)


def in_panels(weights: Tensor, width: int) -> Tensor:
    """The matrix in panels of `width` columns, seen as it is."""
    summed, columns = weights.shape
    panels = weights.reshape(summed, columns // width, width).permute(1, 0, 2).contiguous().realize()
    return panels.permute(1, 0, 2).reshape(summed, columns)


@pytest.mark.parametrize("machine, width", [(AVX2, 16), (AVX512, 64), (AVX512, 32)])
@pytest.mark.parametrize("rows, summed, columns", [(49, 600, 192), (200, 256, 1024), (9, 1536, 384),
                                                   (3000, 27, 64), (3000, 16, 128)])
def test_panels_are_read_where_they_lie(machine: Machine, width: int, rows: int, summed: int,
                                        columns: int) -> None:
    x, weights = Tensor(normal(rows, summed)).realize(), Tensor(normal(summed, columns)).realize()
    plan = choose_plan(nest_of(x @ in_panels(weights, width)), machine)
    assert (Split in map(type, plan.opts)) == (width < columns)
    assert {Vector, Upcast} <= set(map(type, plan.opts))
    assert Stage not in map(type, plan.opts)
    assert PartitionLoop not in map(type, plan.opts)  # for a few quotients
    is_small = weights.nbytes() <= machine.l2_bytes // 32
    assert (Stage in map(type, choose_plan(nest_of(x @ weights), machine).opts)) != is_small


def test_what_is_computed_of_panels_is_staged() -> None:
    """Once for all tiles of rows, as it was before."""
    x, weights = Tensor(normal(200, 600)).realize(), Tensor(normal(600, 192).astype(np.float16)).realize()
    plan = choose_plan(nest_of(x @ in_panels(weights, 16).float()), AVX2)
    assert Stage in map(type, plan.opts)


@pytest.mark.parametrize("rows", [1, 3, 6, 31])
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_products_with_panels(rows: int, width: int) -> None:
    x, weights = normal(rows, 90), normal(90, 192)
    got = (Tensor(x).realize() @ in_panels(Tensor(weights).realize(), width)).relu().numpy()
    expected = np.maximum(x.astype(np.float64) @ weights, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns, are_near", [(128, True), (4096, False)])
def test_all_panels_that_are_near_serve_a_tile_of_rows(columns: int, are_near: bool) -> None:
    """Then results are written row by row."""
    x, weights = Tensor(normal(300, 256)).realize(), Tensor(normal(256, columns)).realize()
    nest = nest_of(x @ in_panels(weights, 16))
    nest = apply_plan(nest, choose_plan(nest, AVX2))
    (reduce,) = [n for n in nest.toposort() if n.op is Ops.REDUCE and n.closed_ranges]
    product = reduce.src[0].src
    outermost = nest.src[0].closed_ranges[0]
    (row_operand,) = [s for s in product if not any(r.arg[1].name == "VECTOR" for r in s.ranges)]
    assert (outermost in row_operand.ranges) == are_near


def test_loops_that_both_operands_change_with_stay_outside() -> None:
    """The gradient of a convolution's weights, a part for each image: with rows around them all images are
    read for each tile (5 x 5 of 512 images, 32 channels: 5.6 times as long)."""
    image, grad = (Tensor(normal(24, n, n, 32)).realize().permute(0, 3, 1, 2) for n in (24, 20))
    windows = image.unfold(2, 20, 1).unfold(3, 20, 1)
    parts = (windows.unsqueeze(1) * grad.reshape(24, 32, 1, 1, 1, 20, 20)).sum((-2, -1))
    nest = nest_of(parts.permute(0, 2, 3, 4, 1).contiguous())
    images = nest.src[0].closed_ranges[0]
    assert images.extent == 24
    planned = apply_plan(nest, choose_plan(nest, AVX2))
    assert planned.src[0].closed_ranges[0].extent == 24


@pytest.mark.parametrize("rows, summed, columns, hinted", [
    (9, 1536, 384, True), (9, 64, 64, False), (600, 1536, 384, True), (4096, 1536, 384, False)])
def test_what_fills_panels_of_a_large_matrix_asks_for_rows_ahead(rows: int, summed: int, columns: int,
                                                                 hinted: bool) -> None:
    """Unless the matrix fits a cache, or so many rows are multiplied that filling takes no time."""
    x, weights = Tensor(normal(rows, summed)).realize(), Tensor(normal(summed, columns)).realize()
    nest = nest_of(x @ weights)
    plan = choose_plan(nest, AVX2)
    hints = [o for o in plan.opts if isinstance(o, Prefetch)]
    assert bool(hints) == hinted
    filled = apply_plan(nest, plan)
    for hint in hints:
        (panel,) = [n for n in filled.toposort() if n.op is Ops.STAGE]
        assert {hint.loop, hint.along} <= {r.identity for r in panel.closed_ranges}
        assert hint.iterations * columns > 1024  # rows further down


def test_rows_that_need_no_panel_ask_for_more_of_them_ahead() -> None:
    x, weights = Tensor(normal(4, 1024)).realize(), Tensor(normal(1024, 768)).realize()
    plan = choose_plan(nest_of(x @ weights), MACHINES["AVX-512"].machine)
    assert Stage not in map(type, plan.opts) and Prefetch in map(type, plan.opts)


@pytest.mark.parametrize("machine, width", [(AVX2, 16), (AVX512, 64)])
@pytest.mark.parametrize("rows, is_asked_for", [(1, True), (12, True), (28, True), (1000, False)])
def test_few_tiles_ask_for_the_panels_of_a_large_matrix(machine: Machine, width: int, rows: int,
                                                        is_asked_for: bool) -> None:
    x, weights = Tensor(normal(rows, 1024)).realize(), Tensor.empty(1024, 1024).realize()
    plan = choose_plan(nest_of(x @ in_panels(weights, width)), machine)
    hints = [o for o in plan.opts if isinstance(o, Prefetch)]
    assert [hint.loop == hint.along for hint in hints] == [True] * is_asked_for
    small = Tensor.empty(1024, width).realize()  # it stays in the L2 cache
    plan = choose_plan(nest_of(x @ in_panels(small, width)), machine)
    assert not any(isinstance(o, Prefetch) for o in plan.opts)
