"""Softmax and attention with the largest item found in the loop that adds up: plans against NumPy in float64."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.online import online_sums
from tinygrad.codegen.opt.plan import Opt, OptKind, Plan, apply_plan
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime.python import PythonProgram

Array = np.ndarray[Any, Any]


def kernel_of(result: Tensor) -> UOp:
    """The one kernel that the CPU runs for `result`."""
    items = [item for item in schedule_uops([result.uop]) if item.ast.op is Ops.SINK]
    assert len(items) == 1
    return items[0].ast


def in_tiles(ast: UOp, tile: int, output: Array, *inputs: Array) -> Array:
    """What `ast` computes with one loop over tiles of so many items."""
    found = online_sums(lower(ast))
    assert found is not None
    plan = Plan((Opt(OptKind.ONLINE, found.loop.arg[0], tile),))
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


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SUMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "softmax": (lambda x: (x - x.max(-1, keepdim=True)).exp().sum(-1),
                lambda x: np.exp(x - x.max(-1, keepdims=True)).sum(-1)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: np.logaddexp.reduce(x, -1)),
}


@pytest.mark.parametrize("tile", [1, 4, 16])
@pytest.mark.parametrize("name", SUMS)
def test_a_row_is_read_once(name: str, tile: int) -> None:
    ours, theirs = SUMS[name]
    x = 20 * numbers(5, 13)
    ast = kernel_of(ours(Tensor.empty(5, 13)))
    found = online_sums(lower(ast))
    assert found is not None
    nest = apply_plan(lower(ast), Plan((Opt(OptKind.ONLINE, found.loop.arg[0], tile),)))
    assert sum(n.op is Ops.LOAD for n in nest.toposort()) == 1
    np.testing.assert_allclose(in_tiles(ast, tile, np.empty(5, np.float32), x), theirs(np.float64(x)), rtol=1e-6)


@pytest.mark.parametrize("row", [[-np.inf] * 6, [np.inf, 1.0, 2.0, np.inf], [-np.inf, 3.0, -np.inf, np.nan, 1.0],
                                 [-np.inf, -np.inf, -np.inf, -1000.0, -999.0], [88.0, 1e30, -1e30]])
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
    q, k, v = numbers(2, 7, 4), numbers(2, 11, 4, seed=1), numbers(2, 11, 3, seed=2)
    allowed = np.tril(np.ones((7, 11), np.bool_))
    inputs: list[Array] = [q, k, v]
    kwargs: dict[str, Any] = {}
    expected = attended(q, k, v)
    if mask == "causal":
        kwargs, expected = {"is_causal": True}, attended(q, k, v, allowed)
    elif mask != "none":
        given = np.random.default_rng(3).random((7, 11)) < 0.4 if mask == "bool" else numbers(7, 11, seed=3)
        given[2] = False if mask == "bool" else -np.inf
        kwargs["attn_mask"] = Tensor.empty(7, 11, dtype=given.dtype.name)
        inputs, expected = [*inputs, given], attended(q, k, v, given)
    ast = kernel_of(Tensor.empty(2, 7, 4).scaled_dot_product_attention(
        Tensor.empty(2, 11, 4), Tensor.empty(2, 11, 3), **kwargs))
    slots = {n.arg[0]: n.arg[1] for n in ast.toposort() if n.op is Ops.PARAM and n.arg[0]}
    ordered = [next(a for a in inputs if a.size == slots[i]) for i in sorted(slots)]
    found = in_tiles(ast, 4, np.empty((2, 7, 3), np.float32), *ordered)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
