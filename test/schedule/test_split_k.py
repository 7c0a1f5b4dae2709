"""Sums with few results on devices of blocks: in how many splits they are cut, and what comes of it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from drivers import needs_compiler

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.dtype import DType
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.machine import Machine
from tinygrad.schedule.split_k import SplitKCost

Array = np.ndarray[Any, Any]
MODEL, EMULATED = "PYTHON:CUDA", "CUDA:EMULATED"
FLOATS = (dtypes.float32, dtypes.bfloat16)


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=MODEL)


def programs(result: Tensor) -> list[list[UOp]]:
    return [stages_of(item.ast, MODEL).program for item in schedule_uops([result.uop])]


def threads_and_blocks(program: list[UOp]) -> tuple[int, int]:
    launch = launch_of(program)
    return prod(launch.threads) * prod(launch.blocks), prod(launch.blocks)


def drawn(seed: int, least: int, most: int) -> int:
    """A size between these, small ones as likely as large ones."""
    return int(least * (most / least) ** np.random.default_rng(seed).random())


# --- how many --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_weights_have_blocks_enough_for_all_multiprocessors(seed: int, dtype: DType) -> None:
    m, n, k = drawn(seed, 16, 900), drawn(seed + 50, 16, 900), drawn(seed + 100, 9000, 900_000)
    first, *others = programs(empty(k, m, dtype=dtype).T @ empty(k, n, dtype=dtype))
    assert threads_and_blocks(first)[1] >= Machine().tiled_blocks
    assert len(others) == 1
    assert threads_and_blocks(others[0])[0] >= m * n


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (1, 1), (5, 2)])
def test_convolutions_weights_get_gradients_from_blocks_enough(size: int, stride: int, dtype: DType) -> None:
    x, w = empty(100, 48, 36, 36, dtype=dtype), empty(56, 48, size, size, dtype=dtype)
    w.requires_grad = True
    y = x.conv2d(w, stride=stride)
    (gradient,) = y.gradient(w, gradient=empty(*y.shape, dtype=dtype))
    *_, pieces, total = programs(gradient)
    assert threads_and_blocks(pieces)[1] >= Machine().tiled_blocks
    loads = {n.src[0].src[0] for n in total if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX}
    assert max(memory.arg[1] for memory in loads if memory.op is Ops.PARAM) >= 4 * w.numel()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("walk", ["columns", "rows"])
def test_products_of_one_vector_keep_most_threads_busy(walk: str, seed: int, dtype: DType) -> None:
    n, k = drawn(seed, 1500, 60_000), drawn(seed + 50, 2000, 20_000)
    matrix = empty(k, n, dtype=dtype) if walk == "columns" else empty(n, k, dtype=dtype).T
    first, *_ = programs(empty(1, k, dtype=dtype) @ matrix)
    assert threads_and_blocks(first)[0] >= 100_000


@pytest.mark.parametrize("build", [
    lambda: empty(4096, 1024).T @ empty(4096, 4096), lambda: empty(120, 60).T @ empty(120, 60),
    lambda: empty(1 << 14).sum(), lambda: empty(50_000, 300).sum(1),
    lambda: (empty(40, 16384) * 2).max(1)],
    ids=["full", "short", "few items", "many rows", "rows in registers"])
def test_what_pieces_would_not_pay_for_is_left_whole(build: Callable[[], Tensor]) -> None:
    assert len(programs(build())) == 1


def test_sums_weighted_by_a_softmax_are_left_to_the_kernel_of_attention() -> None:
    q, k, v = (empty(1, 2, length, 64, dtype=dtypes.bfloat16) for length in (64, 8192, 8192))
    assert len(programs(q.scaled_dot_product_attention(k, v))) == 1


def test_each_result_of_a_step_costs_more_pieces_of_memory_and_fewer_of_time() -> None:
    few = SplitKCost(length=1 << 20, step=256, busy=1 << 16, results=4096, result_bytes=4)
    many = SplitKCost(length=1 << 20, step=1 << 16, busy=1 << 16, results=1 << 20, result_bytes=4)
    best = [min(range(1, 2049), key=sums.cost) for sums in (few, many)]
    assert best[0] > 100
    assert best[1] == 1


# --- results ---------------------------------------------------------------------------------------------


def whole_numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


CUT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gradient of a weight": (lambda x, y: x.T @ y, ((8192, 40), (8192, 72))),
    "of a prime length": (lambda x, y: x.T @ y, ((7919, 33), (7919, 50))),
    "batches": (lambda x, y: x @ y, ((3, 24, 6000), (3, 6000, 40))),
    "one vector": (lambda x, y: x @ y, ((1, 6000), (6000, 700))),
    "a few vectors": (lambda x, y: x @ y, ((3, 6000), (6000, 700))),
    "a few vectors along rows": (lambda x, y: x @ y.T, ((5, 3000), (900, 3000))),
    "scalar product": (lambda x, y: (x * y).sum(), ((100_003,), (100_003,))),
    "columns": (lambda x: x.sum(0), ((9001, 300),)),
    "largest of columns": (lambda x: x.max(0), ((9000, 300),)),
    "channels": (lambda x: x.sum((0, 2)), ((50, 7, 900),)),
}


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", CUT)
def test_sums_in_pieces_are_those_of_numpy(name: str, dtype: DType) -> None:
    compute, shapes = CUT[name]
    arrays = [whole_numbers(*shape) for shape in shapes]
    kind = ml_dtypes.bfloat16 if dtype is dtypes.bfloat16 else np.float32
    result = compute(*(Tensor(a.astype(kind), device=EMULATED).realize() for a in arrays))
    expected = compute(*(a.astype(np.float64) for a in arrays))
    tolerance = 2e-2 if dtype is dtypes.bfloat16 else 0  # the result's own rounding
    np.testing.assert_allclose(result.float().numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_what_a_few_rows_are_multiplied_with_is_loaded_once(dtype: DType) -> None:
    program, *_ = programs(empty(5, 768, dtype=dtype) @ empty(50_000, 768, dtype=dtype).T)
    read = [n.src[0].src[0] for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX]
    loads = [memory.arg[0] for memory in read if memory.op is Ops.PARAM]
    assert loads.count(1) == 5 * loads.count(2) > 0


@needs_compiler
@pytest.mark.parametrize("size", [256, 1000])
def test_loops_along_which_nothing_is_read_have_no_rows_to_keep(size: int) -> None:
    """Those of a running sum of exponentials."""
    x = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    expected = np.logaddexp.accumulate(x.astype(np.float64), 1)
    got = Tensor(x, device="CUDA:EMULATED").logcumsumexp(1).numpy()
    np.testing.assert_allclose(got, expected, 1e-5, 1e-5)
