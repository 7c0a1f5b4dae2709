"""Softmax and attention with the largest item found in the loop that adds up, against NumPy in float64."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays import Array, normal
from drivers import needs_compiler

from tinygrad import Context, Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.online_softmax import online_softmax_of
from tinygrad.codegen.opt.opts import MMA, Attention, Global, OnlineSoftmax, Row
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import emulator
from tinygrad.runtime.python import PythonProgram


def kernel_of(result: Tensor) -> UOp:
    """The one kernel that the CPU runs for `result`."""
    items = [item for item in schedule_uops([result.uop]) if item.ast.op is Ops.SINK]
    assert len(items) == 1
    return items[0].ast


def in_tiles(ast: UOp, tile: int, output: Array, *inputs: Array) -> Array:
    """What `ast` computes with one loop over tiles of so many items."""
    found = online_softmax_of(lower(ast))
    assert found is not None
    plan = Plan((OnlineSoftmax(found.loop.arg[0], tile),))
    program = stages_of(ast, "PYTHON", plan).program
    text = PythonRenderer().render("kernel", program)
    buffers = [output, *inputs]
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([b.ctypes.data for b in buffers], [], 1)
    return output


def attended(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """Attention in float64, zeros where a row of the mask lets nothing through."""
    scores = np.float64(q) @ np.float64(k).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ np.float64(v)

SUMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "softmax": (lambda x: (x - x.max(-1, keepdim=True)).exp().sum(-1),
                lambda x: np.exp(x - x.max(-1, keepdims=True)).sum(-1)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: np.logaddexp.reduce(x, -1)),
}


@pytest.mark.parametrize("tile", [1, 4, 16])
@pytest.mark.parametrize("name", SUMS)
def test_a_row_is_read_once(name: str, tile: int) -> None:
    ours, theirs = SUMS[name]
    x = 20 * normal(5, 13)
    ast = kernel_of(ours(Tensor.empty(5, 13)))
    found = online_softmax_of(lower(ast))
    assert found is not None
    nest = apply_plan(lower(ast), Plan((OnlineSoftmax(found.loop.arg[0], tile),)))
    assert sum(n.op is Ops.LOAD for n in nest.toposort()) == 1
    result = in_tiles(ast, tile, np.empty(5, np.float32), x)
    np.testing.assert_allclose(result, theirs(np.float64(x)), rtol=1e-6)


@pytest.mark.parametrize("row", [[-np.inf] * 6, [np.inf, 1.0, 2.0, np.inf], [88.0, 1e30, -1e30],
                                 [-np.inf, 3.0, -np.inf, np.nan, 1.0],
                                 [-np.inf, -np.inf, -np.inf, -1000.0, -999.0]])
@pytest.mark.parametrize("name", SUMS)
def test_rows_of_infinities_and_nan(name: str, row: list[float]) -> None:
    ours, theirs = SUMS[name]
    x = np.array([row], np.float32)
    ast = kernel_of(ours(Tensor.empty(*x.shape)))
    with np.errstate(invalid="ignore"):
        expected = theirs(np.float64(x))
    np.testing.assert_allclose(in_tiles(ast, 2, np.empty(1, np.float32), x), expected, rtol=1e-6)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
def test_attention_in_one_loop(mask: str) -> None:
    q, k, v = normal(2, 7, 4), normal(2, 11, 4, seed=1), normal(2, 11, 3, seed=2)
    allowed = np.tril(np.ones((7, 11), np.bool_))
    inputs: list[Array] = [q, k, v]
    kwargs: dict[str, Any] = {}
    expected = attended(q, k, v)
    if mask == "causal":
        kwargs, expected = {"is_causal": True}, attended(q, k, v, allowed)
    elif mask != "none":
        given = np.random.default_rng(3).random((7, 11)) < 0.4 if mask == "bool" else normal(7, 11, seed=3)
        given[2] = False if mask == "bool" else -np.inf
        kwargs["attn_mask"] = Tensor.empty(7, 11, dtype=given.dtype.name)
        inputs, expected = [*inputs, given], attended(q, k, v, given)
    ast = kernel_of(Tensor.empty(2, 7, 4).scaled_dot_product_attention(
        Tensor.empty(2, 11, 4), Tensor.empty(2, 11, 3), **kwargs))
    slots = {n.arg[0]: n.arg[1] for n in ast.toposort() if n.op is Ops.PARAM and n.arg[0]}
    ordered = [next(a for a in inputs if a.size == slots[i]) for i in sorted(slots)]
    found = in_tiles(ast, 4, np.empty((2, 7, 3), np.float32), *ordered)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- on matrix units ----------------------------------------------------------------------------------------

MODELS = ("PYTHON:CUDA", "PYTHON:AMD", "PYTHON:GFX1100", "PYTHON:METAL")
SHAPES = {
    "tails": (2, 33, 75, 20, 24), "whole tiles": (1, 16, 64, 16, 16),
    "more queries than keys": (1, 40, 16, 16, 40),
}
"""Heads, queries, keys, and the sizes of keys and values."""


def attention_on(device: str, shape: tuple[int, ...], kind: Any, mask: str) -> tuple[Tensor, Array]:
    """Attention of random numbers, and what NumPy makes of them."""
    heads, queries, keys, depth, columns = shape
    rng = np.random.default_rng(sum(shape))
    q, k, v = (rng.standard_normal((heads, *s)).astype(kind)
               for s in ((queries, depth), (keys, depth), (keys, columns)))
    kwargs: dict[str, Any] = {}
    given = None
    if mask == "causal":
        kwargs["is_causal"], given = True, np.tril(np.ones((queries, keys), np.bool_))
    elif mask != "none":
        given = rng.random((queries, keys)) < 0.4 if mask == "bool" else normal(queries, keys)
        given[2] = False if mask == "bool" else -np.inf
        kwargs["attn_mask"] = Tensor(given, device=device).realize()
    tensors = [Tensor(x, device=device).realize() for x in (q, k, v)]
    return tensors[0].scaled_dot_product_attention(*tensors[1:], **kwargs), attended(q, k, v, given)


def check_one_kernel(result: Tensor, expected: Array, device: str) -> None:
    items = schedule_uops([result.uop])
    assert len(items) == 1
    plan = stages_of(items[0].ast, device).plan
    assert {OnlineSoftmax, Attention} <= {type(opt) for opt in plan.opts}
    np.testing.assert_allclose(np.float64(result.numpy()), expected, rtol=2e-2, atol=1e-2)


SMALL_CASES = [("tails", ml_dtypes.bfloat16, "causal"), ("tails", np.float16, "bool"),
               ("whole tiles", np.float16, "none"), ("more queries than keys", ml_dtypes.bfloat16, "added")]
ON_MODELS = [pytest.param(device, *case, marks=[pytest.mark.slow] * (case[0] == "tails" and i > 0))
             for i, device in enumerate(MODELS) for case in SMALL_CASES]


@pytest.mark.parametrize(("device", "shape", "kind", "mask"), ON_MODELS)
def test_attention_in_one_kernel(device: str, shape: str, kind: Any, mask: str) -> None:
    check_one_kernel(*attention_on(device, SHAPES[shape], kind, mask), device)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("device", ["CUDA:EMULATED", "AMD:EMULATED", "METAL:EMULATED", *MODELS])
def test_attention_of_many_tiles(device: str, mask: str) -> None:
    check_one_kernel(*attention_on(device, (2, 150, 170, 64, 80), ml_dtypes.bfloat16, mask), device)


@pytest.mark.parametrize("queries, keys, columns", [(32, 64, 16), (33, 75, 24), (7, 130, 9)])
@pytest.mark.parametrize("device", MODELS)
def test_scores_that_are_loaded_in_one_kernel(device: str, queries: int, keys: int, columns: int) -> None:
    rng = np.random.default_rng(queries)
    scores = rng.standard_normal((2, queries, keys)).astype(np.float16)
    v = rng.standard_normal((2, keys, columns)).astype(np.float16)
    weights = np.exp(np.float64(scores) - np.float64(scores).max(-1, keepdims=True))
    tensors = [Tensor(x, device=device).realize() for x in (scores, v)]
    check_one_kernel(tensors[0].softmax(-1) @ tensors[1],
                     weights / weights.sum(-1, keepdims=True) @ np.float64(v), device)


def test_groups_of_heads_share_keys_in_one_kernel() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((heads, 32, 16)).astype(np.float16) for heads in (4, 2, 2))
    tensors = [Tensor(x, device="PYTHON:CUDA").realize() for x in (q, k, v)]
    result = tensors[0].scaled_dot_product_attention(*tensors[1:], enable_gqa=True)
    check_one_kernel(result, attended(q, k.repeat(2, 0), v.repeat(2, 0)), "PYTHON:CUDA")


def test_rounding_to_tf32_where_allowed() -> None:
    with Context(ALLOW_TF32=1):
        check_one_kernel(*attention_on("PYTHON:CUDA", (1, 32, 64, 16, 16), np.float32, "none"), "PYTHON:CUDA")
    result, expected = attention_on("PYTHON:CUDA", (1, 32, 64, 16, 16), np.float32, "none")
    assert len(schedule_uops([result.uop])) > 1
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_keys_outside_of_a_window_are_not_loaded() -> None:
    """Loops over tiles of keys begin where the window of the block's first query does."""
    count, window, device = 131, 33, "PYTHON:CUDA"
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, count, 16)).astype(np.float16) for _ in range(3))
    at = np.arange(count)
    given = (at <= at[:, None]) & (at[:, None] - at < window)
    i, j = Tensor.arange(count, device=device)[:, None], Tensor.arange(count, device=device)
    tensors = [Tensor(x, device=device).realize() for x in (q, k, v)]
    result = tensors[0].scaled_dot_product_attention(*tensors[1:], attn_mask=(j <= i) & (i - j < window))
    program = stages_of(schedule_uops([result.uop])[0].ast, device).program
    assert any(n.op is Ops.RANGE and len(n.src) == 3 and n.src[1].op is not Ops.CONST for n in program)
    check_one_kernel(result, attended(q, k, v, given), device)


def test_keys_that_a_causal_mask_hides_are_not_loaded() -> None:
    result, _ = attention_on("PYTHON:CUDA", (1, 256, 256, 16, 16), ml_dtypes.bfloat16, "causal")
    program = stages_of(schedule_uops([result.uop])[0].ast, "PYTHON:CUDA").program
    tiles = [n for n in program if n.op is Ops.RANGE and n.src[-1].op is not Ops.CONST]
    assert len(tiles) == 1
    assert tiles[0].src[-1].bounds == (1, 4)  # of 64 keys


def gradients_in_numpy(q: Array, k: Array, v: Array, w: Array, seen: Array) -> list[Array]:
    """Those of attention weighted by `w`, in float64, after Dao et al., "FlashAttention" (2022)."""
    q, k, v, w = (x.astype(np.float64) for x in (q, k, v, w))
    scale = 1 / np.sqrt(q.shape[-1])
    scores = np.where(seen, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    to_weights = w @ v.swapaxes(-1, -2)
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdims=True)) * scale
    return [weights @ v, to_scores @ k, to_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ w]


EMULATED = [pytest.param(f"{kind}:EMULATED", 170, marks=pytest.mark.slow) for kind in emulator.LANGUAGES]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("device", "queries"), [*((model, 64) for model in MODELS), *EMULATED])
def test_gradients_compute_the_weights_again(device: str, queries: int, causal: bool) -> None:
    rng = np.random.default_rng(2)
    q, w = (rng.standard_normal((2, queries, 32)).astype(np.float16) for _ in range(2))
    k, v = (rng.standard_normal((2, 64, 32)).astype(np.float16) for _ in range(2))
    tensors = [Tensor(x, device=device).realize() for x in (q, k, v)]
    result = tensors[0].scaled_dot_product_attention(*tensors[1:], is_causal=causal)
    found = [result, *result.gradient(*tensors, gradient=Tensor(w, device=device).realize())]
    items = schedule_uops([t.uop for t in found])
    kinds = [{type(opt) for opt in stages_of(item.ast, device).plan.opts} for item in items]
    assert [Attention in k for k in kinds] == [True] + [False] * (len(kinds) - 1)
    assert sum(MMA in k for k in kinds) == 5  # scores, weights' gradients; query's, key's, value's
    seen = np.tril(np.ones((queries, 64), np.bool_)) if causal else np.ones((queries, 64), np.bool_)
    Tensor.realize(*found)
    for ours, exact in zip(found, gradients_in_numpy(q, k, v, w, seen), strict=True):
        np.testing.assert_allclose(np.float64(ours.numpy()), exact, rtol=1e-2, atol=5e-3)


def test_no_memory_of_the_size_of_the_scores_lasts_from_forward_to_backward() -> None:
    """Two layers in one schedule: the first kernel that stores scores comes after both forwards."""
    x, w, given = (Tensor.empty(4, 64, 32, dtype="bfloat16", device="PYTHON:CUDA") for _ in range(3))
    y = x.scaled_dot_product_attention(w, w).scaled_dot_product_attention(x, w)
    items = schedule_uops([t.uop for t in (y, *y.gradient(x, w, gradient=given))])
    plans = [stages_of(item.ast, "PYTHON:CUDA").plan for item in items]
    chains = [i for i, plan in enumerate(plans) if any(isinstance(opt, Attention) for opt in plan.opts)]
    with_scores = [i for i, item in enumerate(items) if any(b.arg.size == 4 * 64 * 64 for b in item.buffers)]
    assert len(chains) == 2 and max(chains) < min(with_scores)


# --- rows of blocks ---------------------------------------------------------------------------------------

LONG = 16_411
"""Items of a row that no block has in its registers at once."""
ROWS = {
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: np.logaddexp.reduce(x, -1)),
    "softmax": (lambda x: x.softmax(-1), lambda x: np.exp(x - np.logaddexp.reduce(x, -1, keepdims=True))),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda x: x - np.logaddexp.reduce(x, -1, keepdims=True)),
    "of products": (lambda x: (x * x + 1).logsumexp(-1), lambda x: np.logaddexp.reduce(x * x + 1, -1)),
}


@needs_compiler
@pytest.mark.parametrize(("length", "dtype"), [(LONG, np.float32), (LONG + 1, np.float32),
                                               (LONG, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("name", ["logsumexp", "softmax"])
def test_blocks_walk_long_rows_once(name: str, length: int, dtype: Any) -> None:
    ours, theirs = ROWS[name]
    x = (5 * normal(260, length)).astype(dtype)
    result = ours(Tensor(x, device="CUDA:EMULATED").realize().float())
    (item,) = schedule_uops([result.uop])
    kinds = [type(o) for o in stages_of(item.ast, "CUDA:EMULATED").plan.opts]
    assert kinds[:2] == [OnlineSoftmax, Row]
    np.testing.assert_allclose(result.numpy(), theirs(x.astype(np.float64)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("length", [64, 150, 200])
@pytest.mark.parametrize("name", ROWS)
def test_threads_of_a_block_have_a_tile_of_a_row_together(name: str, length: int) -> None:
    ours, theirs = ROWS[name]
    device = "PYTHON:BLOCKS"
    (item,) = schedule_uops([ours(Tensor.empty(3, length, device=device)).uop])
    found = online_softmax_of(lower(item.ast))
    assert found is not None
    tiles = Plan((OnlineSoftmax(found.loop.arg[0], 64),))
    (each,) = [n for n in apply_plan(lower(item.ast), tiles).toposort()
               if n.op is Ops.RANGE and n.kind is RangeKind.UNROLL]
    plan = Plan((*tiles.opts, Row((each.arg[0],), 16, 2, 4), Global(0)))
    x = 5 * normal(3, length)
    x[1, 7], x[2, -1] = np.inf if name == "logsumexp" else 60.0, -np.inf
    if name == "of products":
        x[2, -1] = 0
    expected = theirs(x.astype(np.float64))
    output = np.empty(expected.shape, np.float32)
    program = stages_of(item.ast, device, plan).program
    text = PythonRenderer(has_blocks=True).render("kernel", program)
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([output.ctypes.data, x.ctypes.data], [], 1)
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6)
