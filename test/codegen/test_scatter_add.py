"""Scatter-add: segment sums in one pass over everything (`codegen/opt/scatter_add.py`): against NumPy,
on a device that finds accesses outside of memory too, at sizes at which the cost model would rather ask for
each item."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import Array, normal
from drivers import needs_compiler, one_pass_everywhere

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt import choose_gpu, choose_scatter
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import Accumulators, Local, Scatter, Split, Stage, Swap, Unroll, Vector
from tinygrad.codegen.opt.plan import Plan, apply_opt, apply_plan
from tinygrad.dtype import DType
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.helpers import prod
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.machine import Machine

DEVICES = pytest.mark.parametrize("device", ["CPU", "PYTHON", "PYTHON:BLOCKS"])


@pytest.fixture(params=[0, 1 << 30], ids=["branches", "dump slots"])
def one_pass(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """By tiles of a few outputs."""
    one_pass_everywhere(monkeypatch, request.param)
    monkeypatch.setattr(choose_scatter, "CACHE_SHARE", 1e-6)


def places(*shape: int, below: int, lowest: int = 0) -> Array:
    return np.random.default_rng(below).integers(lowest, below, shape).astype(np.int32)


def has_walk(*results: Tensor) -> bool:
    kernels = [i.ast for i in schedule_uops([t.uop for t in results]) if i.ast.op is not Ops.COPY]
    device = results[0].device
    return any(isinstance(o, Scatter) for ast in kernels for o in stages_of(ast, device).plan.opts)


def check(result: Tensor, expected: Array) -> None:
    assert has_walk(result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize(("words", "width", "count"),
                         [(7, 1, 5), (30, 16, 9), (20, 5, 40), (3, 48, 11), (50, 17, 2)])
def test_gradients_of_embeddings(one_pass: None, device: str, words: int, width: int, count: int) -> None:
    at, given = places(count, below=words), normal(count, width)
    weights = Tensor(normal(words, width), device=device, requires_grad=True).realize()
    rows = weights[Tensor(at, device=device).realize()]
    expected = np.zeros((words, width))
    np.add.at(expected, at, given)
    check((rows * Tensor(given, device=device)).sum().gradient(weights)[0], expected)


@DEVICES
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 4, 32), (20, 16, 2)])
def test_gradients_of_items_gathered_along_an_axis(one_pass: None, device: str, axis: int,
                                                   shape: tuple[int, int, int]) -> None:
    at, given = places(*shape, below=shape[axis]), normal(*shape)
    x = Tensor(normal(*shape), device=device, requires_grad=True).realize()
    expected = np.zeros(shape)
    where: list[Array] = list(np.indices(shape))
    where[axis] = at
    np.add.at(expected, tuple(where), given)
    gathered = x.gather(axis, Tensor(at, device=device).realize())
    check((gathered * Tensor(given, device=device)).sum().gradient(x)[0], expected)


@DEVICES
@pytest.mark.parametrize("kind", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_gradients_of_half_types_are_summed_in_float32(one_pass: None, device: str, kind: DType) -> None:
    at, given = np.zeros(3000, np.int32), np.ones((3000, 16), np.float32)
    weights = Tensor(normal(4, 16), device=device, dtype=kind, requires_grad=True).realize()
    rows = weights[Tensor(at, device=device).realize()]
    gradient = (rows * Tensor(given, device=device, dtype=kind)).float().sum().gradient(weights)[0]
    assert has_walk(gradient) and gradient.dtype is kind
    np.testing.assert_allclose(gradient.float().numpy()[0], 3000, rtol=1 / 128)


@DEVICES
@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.float16, dtypes.int32], ids=str)
@pytest.mark.parametrize("count", [2, 8])
def test_gradients_of_what_several_look_ups_read(one_pass: None, device: str, kind: DType,
                                                  count: int) -> None:
    """One sum of as many addends, each with a segment of its own."""
    rows, width, seeds = 30, 4, range(count)
    at = [places(50, below=rows + seed, lowest=seed)[::-1 if seed % 2 else 1].copy() for seed in seeds]
    given = [(normal(50, width, seed=seed) * 8).round() for seed in seeds]
    counter = Tensor.arange(rows, device=device).reshape(-1, 1)
    masked = [(Tensor(i, device=device).reshape(-1, 1, 1) == counter).where(
        Tensor(g, device=device).cast(kind).reshape(50, 1, width), 0) for i, g in zip(at, given, strict=True)]
    expected = np.zeros((rows, width))
    for i, g in zip(at, given, strict=True):
        np.add.at(expected, i[i < rows], g[i < rows])
    check(sum(masked[1:], start=masked[0]).sum(0).cast(dtypes.float32), expected)


@DEVICES
def test_items_of_several_places(one_pass: None, device: str) -> None:
    first, second, given = places(40, below=6), places(40, below=9), normal(40, 3)
    x = Tensor(normal(6, 9, 3), device=device, requires_grad=True).realize()
    expected = np.zeros((6, 9, 3))
    np.add.at(expected, (first, second), given)
    chosen = x[Tensor(first, device=device).realize(), Tensor(second, device=device).realize()]
    check((chosen * Tensor(given, device=device)).sum().gradient(x)[0], expected)


@DEVICES
@pytest.mark.parametrize(("reduce", "update"), [("sum", np.add), ("amax", np.maximum), ("prod", np.multiply)])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint8])
def test_scatter_reduce(one_pass: None, device: str, reduce: str, update: np.ufunc, kind: type[Any]) -> None:
    at = places(30, below=11)
    given = (normal(30) * 3).astype(np.int32).astype(kind) if kind is not np.float32 else normal(30)
    expected = np.arange(11).astype(kind)
    x = Tensor(expected, device=device).realize()
    update.at(expected, at, given)
    there = Tensor(at, device=device).realize()
    check(x.scatter_reduce(0, there, Tensor(given, device=device), reduce), expected)


@DEVICES
def test_scatter_and_writes_at_places_find_the_last_in_one_pass(one_pass: None, device: str) -> None:
    at, given = places(300, below=110), normal(300)
    expected = np.arange(110).astype(np.float32)
    x = Tensor(expected, device=device).realize()
    expected[at] = given  # NumPy's, too, is the last
    there, source = Tensor(at, device=device).realize(), Tensor(given, device=device).realize()
    check(x.scatter(0, there, source), expected)
    x[there] = source
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("count", [20, 5000])
def test_two_loops_over_outputs_at_one_place(count: int) -> None:
    at, given = places(count, below=33), normal(count)
    first, second = Tensor.arange(33).reshape(33, 1, 1), Tensor.arange(47).reshape(1, 47, 1)
    hit = (first == second) & (second == Tensor(at).realize())
    expected = np.zeros((33, 47))
    np.add.at(expected, (at, at), given)
    np.testing.assert_allclose(hit.where(Tensor(given).realize(), 0).sum(2).numpy(), expected, atol=1e-4)


@DEVICES
def test_sums_in_the_place_and_in_what_belongs_there(one_pass: None, device: str) -> None:
    """Both over the same axis, one waits for the other."""
    parts, also = places(33, 2, below=9), places(33, below=15)
    given, factors = normal(40, 33), normal(33, 2)
    items = Tensor.arange(40, device=device).reshape(40, 1)
    sums = Tensor(parts, device=device).realize().sum(1).reshape(1, 33)
    hit = (items == sums) & (items == Tensor(also, device=device).realize().reshape(1, 33))
    value = Tensor(given, device=device).realize() * Tensor(factors, device=device).realize().sum(1)
    at = np.arange(40)[:, None]
    here = (at == parts.sum(1)) & (at == also)
    check(hit.where(value, 0).sum(1), np.where(here, given * factors.sum(1), 0).sum(1))


@DEVICES
@pytest.mark.parametrize("kind", [dtypes.uint8, dtypes.int8], ids=str)
def test_counters_that_wrap_name_several_items(one_pass: None, device: str, kind: DType) -> None:
    at = Tensor(np.full(50, 5), dtype=kind, device=device).realize()
    counts = (Tensor.arange(300, device=device).cast(kind).reshape(300, 1) == at).sum(1)
    assert {i: n for i, n in enumerate(counts.tolist()) if n} == {5: 50, 261: 50}


@pytest.mark.parametrize("other", [math.inf, math.nan, 7.5])
@pytest.mark.parametrize("reduce", [Tensor.sum, Tensor.max])
def test_other_items_that_the_sum_has_no_number_for(reduce: Callable[[Tensor], Tensor], other: float) -> None:
    x = Tensor([1.5, 2.0, 3.0]).realize()
    assert reduce((x < 9).where(x, other).cast(dtypes.int32)).item() == (6 if reduce is Tensor.sum else 3)


def test_memory_that_the_plan_fills_along_the_loop_is_refused() -> None:
    at = Tensor.empty(7, dtype=dtypes.int32).reshape(1, 7, 1)
    row = (Tensor.arange(9).reshape(9, 1) >= Tensor.arange(9)).where(Tensor.empty(9), 0).sum(1)
    hit = Tensor.arange(9).reshape(9, 1, 1) == at
    result = hit.where(Tensor.empty(7, 4) * row.reshape(9, 1, 1), 0).sum(1)
    nest = lower(schedule_uops([result.uop])[-1].ast)
    kept = apply_plan(nest, Plan((Swap(1), Stage(0, (1,)))))
    with pytest.raises(ValueError, match="memory that the kernel fills"):
        apply_opt(kept, Scatter(0, 4))
    apply_plan(nest, Plan((Swap(1), Scatter(0, 4))))


@DEVICES
def test_counts(one_pass: None, device: str) -> None:
    at = places(100, below=13)
    here = Tensor(at, device=device).realize().reshape(1, 100)
    check((here == Tensor.arange(13, device=device).reshape(13, 1)).sum(1), np.bincount(at, minlength=13))


@pytest.mark.parametrize("count", [102_400, 102_403])
def test_splits_that_padding_completes_walk_too(count: int) -> None:
    at, given = places(count, below=100, lowest=-100), normal(count)
    expected = np.zeros(100)
    np.add.at(expected, at, given)
    check(Tensor.zeros(100).scatter_add(0, Tensor(at), Tensor(given)) / 100, expected / 100)


@DEVICES
def test_places_that_are_nowhere_are_left_out(one_pass: None, device: str) -> None:
    at = np.array([3, -1, 7, 1 << 30, -(1 << 30), 0, 6, 3], np.int32)
    given = normal(8, 16)
    here = Tensor(at, device=device).realize().reshape(1, 8, 1)
    mask = here == Tensor.arange(7, device=device).reshape(7, 1, 1)
    expected = np.zeros((7, 16))
    inside = (at >= 0) & (at < 7)
    np.add.at(expected, at[inside], given[inside])
    check(mask.where(Tensor(given, device=device).realize().reshape(1, 8, 16), 0).sum(1), expected)


@DEVICES
def test_what_is_added_may_be_infinite_or_no_number_where_it_belongs(one_pass: None, device: str) -> None:
    at, given = np.array([1, 2, 2, 4], np.int32), np.array([np.inf, np.nan, 1, -np.inf], np.float32)
    x = Tensor.zeros(5, device=device).contiguous().realize()
    result = x.scatter(0, Tensor(at, device=device).realize(), Tensor(given, device=device), reduce="add")
    check(result, np.array([0, np.inf, np.nan, 0, -np.inf]))


@DEVICES
def test_a_step_that_overwrites_what_was_looked_up(one_pass: None, device: str) -> None:
    weights = Tensor(normal(19, 8), device=device, requires_grad=True).realize()
    expected = normal(19, 8).astype(np.float64)

    @TinyJit
    def step(at: Tensor) -> None:
        gradient = weights[at].square().sum().gradient(weights)[0]
        weights.assign(weights.detach() - 0.25 * gradient).realize()

    for number in range(5):
        at = np.random.default_rng(number).integers(0, 19, 12).astype(np.int32)
        step(Tensor(at, device=device).realize())
        gradient = np.zeros_like(expected)
        np.add.at(gradient, at, 2 * expected[at])
        expected -= 0.25 * gradient
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_large_ones_walk_and_small_ones_ask() -> None:
    def gradient(device: str, words: int, count: int) -> Tensor:
        weights = Tensor.empty(words, 64, requires_grad=True, device=device)
        at = Tensor.empty(count, dtype=dtypes.int32, device=device)
        return (weights[at] * Tensor.empty(count, 64, device=device)).sum().gradient(weights)[0]

    for device in ("CPU", "PYTHON:CUDA"):
        assert has_walk(gradient(device, 50257, 1024)) and not has_walk(gradient(device, 2, 20))


def test_tiles_fill_the_cache() -> None:
    at, given = Tensor.empty(1 << 20, dtype=dtypes.int32, device="CPU"), Tensor.empty(1 << 20, device="CPU")
    summed = Tensor.zeros(1 << 24, device="CPU").scatter_reduce(0, at, given, "sum")
    plan = stages_of(schedule_uops([summed.uop])[-1].ast, "CPU").plan
    tile = next(o.amount for o in plan.opts if isinstance(o, Split))
    assert 0.5 <= 4 * tile / choose_scatter.room(Device["CPU"].renderer.machine) <= 1.01


def test_the_walk_stays_whole() -> None:
    """A tile that overlaps the one before would add twice."""
    weights = Tensor.empty(3000, 64, requires_grad=True, device="CPU")
    at = Tensor.empty(500, dtype=dtypes.int32, device="CPU")
    gradient = (weights[at] * Tensor.empty(500, 64, device="CPU")).sum().gradient(weights)[0]
    ast = schedule_uops([gradient.uop])[-1].ast
    nest = apply_plan(lower(ast), choose_plan(lower(ast), Device["CPU"].renderer.machine))
    (memory,) = (n for n in nest.toposort() if n.op is Ops.SCATTER)
    for kind in (Split, Unroll, Accumulators, Vector):
        with pytest.raises(ValueError, match="must stay whole"):
            apply_opt(nest, kind(memory.closed_ranges[0].arg[0], 7))


def test_nobody_reads_sums_beyond_the_last_place() -> None:
    """A search gave a block's threads more places than the walk has sums for, and read past their end."""
    counts = (Tensor.arange(16).reshape(16, 1) == Tensor.empty(1, 40, dtype=dtypes.int32)).sum(1)
    nest = apply_opt(lower(schedule_uops([counts.uop])[-1].ast), Scatter(0, 1))
    apply_opt(nest, Local(0, 8))
    with pytest.raises(ValueError, match="added up for the 16 iterations of r0 alone"):
        apply_opt(nest, Local(0, 64))


def test_blocks_share_tiles_out_and_walk_once_for_each() -> None:
    device, outputs = "PYTHON:CUDA", 50257 * 768
    weights = Tensor.empty(50257, 768, requires_grad=True, device=device)
    at = Tensor.empty(1024, dtype=dtypes.int32, device=device)
    gradient = (weights[at] * Tensor.empty(1024, 768, device=device)).sum().gradient(weights)[0]
    program = stages_of(schedule_uops([gradient.uop])[-1].ast, device).program
    launch = launch_of(program)
    (tile,) = (n.arg[1] for n in program if n.op is Ops.SCRATCH)
    assert tile >= choose_gpu.LEAST_OWN
    assert outputs <= prod(launch.blocks) * prod(launch.threads) * tile < 1.1 * outputs


@needs_compiler
@pytest.mark.parametrize("device", ["CUDA:EMULATED", "AMD:EMULATED", "METAL:EMULATED"])
def test_tiles_in_the_memory_of_each_thread(device: str) -> None:
    words, width, count = 1100, 32, 200
    at, given = places(count, below=words), normal(count, width)
    weights = Tensor(normal(words, width), device=device, requires_grad=True).realize()
    expected = np.zeros((words, width))
    np.add.at(expected, at, given)
    rows = weights[Tensor(at, device=device).realize()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "busy_threads", 256)
        check((rows * Tensor(given, device=device)).sum().gradient(weights)[0], expected)
