"""Results under every plan that the cost model and the search choose, for a spread of shapes, against NumPy.

The cost model is asked as for CPUs with other vectors and registers than the host's; LLVM compiles what it
says for the host. For aarch64 kernels are compiled, and their vector instructions counted.
"""
from __future__ import annotations

import os
import platform
import random
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen import compile as compiling
from tinygrad.codegen.expand import unrolled
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import alternative_plans, choose_plan, threaded_plan
from tinygrad.codegen.opt.neighbours import Edit, edited, neighbours
from tinygrad.codegen.opt.opts import (
    MMA,
    Accumulators,
    Opt,
    Prefetch,
    Split,
    Stage,
    Stream,
    Swap,
    Thread,
    Unroll,
    Upcast,
    Vector,
)
from tinygrad.codegen.opt.plan import Plan, apply_opt, apply_plan
from tinygrad.codegen.program import linear_program
from tinygrad.device import Device
from tinygrad.device.host import has_features
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.matrix_units import AMX, DOT_BF16
from tinygrad.runtime.cpu import host
from tinygrad.runtime.llvm import optimised_module

Array = np.ndarray[Any, Any]

MACHINES = {
    "AVX-512": LLVMRenderer(vector_bytes=64, registers=32, threads=2),
    "AVX-512, small cache": LLVMRenderer(vector_bytes=64, registers=32, threads=2, l3_bytes=64),
    "AVX2": LLVMRenderer(vector_bytes=32, registers=16, threads=2, l3_bytes=64),
    "NEON": LLVMRenderer(vector_bytes=16, registers=32, threads=2),
    "SSE": LLVMRenderer(vector_bytes=16, registers=16, threads=1),
}
if DOT_BF16 in host().matrix_units:
    MACHINES["AVX-512 BF16"] = LLVMRenderer(vector_bytes=64, registers=32, threads=2,
                                            matrix_units=(DOT_BF16,))
if set(AMX) <= set(host().matrix_units):
    MACHINES["AMX"] = LLVMRenderer(vector_bytes=64, registers=32, threads=2, matrix_units=AMX)


# --- the spread of kernels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A computation on tensors, and the same in NumPy on float64."""

    shapes: tuple[tuple[int, ...], ...]
    tensors: Callable[..., Tensor]
    arrays: Callable[..., Any]
    dtype: Any = np.float32
    tolerance: float = 1e-5

    def inputs(self) -> list[Array]:
        draw = np.random.default_rng(7)
        return [draw.standard_normal(shape).astype(self.dtype) for shape in self.shapes]

    def check(self, note: object = "") -> None:
        """Compute it and compare."""
        inputs = self.inputs()
        got = self.tensors(*(Tensor(x).realize() for x in inputs)).numpy().astype(np.float64)
        expected = np.asarray(self.arrays(*(x.astype(np.float64) for x in inputs)))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got / scale, expected / scale, 0, self.tolerance, err_msg=str(note))


def transposed(a: Any, b: Any, first: bool, second: bool) -> tuple[Any, Any]:
    return (a.T if first else a), (b.T if second else b)


def matmul(m: int, k: int, n: int, first: bool = False, second: bool = False, dtype: Any = np.float32,
           tolerance: float = 1e-5) -> Case:
    def product(a: Any, b: Any) -> Any:
        a, b = transposed(a, b, first, second)
        return a @ b

    shapes = ((k, m) if first else (m, k), (n, k) if second else (k, n))
    return Case(shapes, product, product, dtype, tolerance)


def softmax_of(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm_of(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def attention_of(q: Array, k: Array, v: Array, causal: bool) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return np.asarray(softmax_of(scores) @ v)


def attention(shape: tuple[int, ...], causal: bool) -> Case:
    return Case((shape,) * 3, lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
                lambda q, k, v: attention_of(q, k, v, causal))


def convolved(x: Array, w: Array, stride: int, padding: int, dilation: int, groups: int) -> Array:
    """A convolution, one tap of the kernel at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = ((x.shape[i] - dilation * (w.shape[i] - 1) - 1) // stride + 1 for i in (2, 3))
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    result = np.zeros((x.shape[0], groups, w.shape[1], height, width))
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            rows = slice(i * dilation, i * dilation + stride * (height - 1) + 1, stride)
            columns = slice(j * dilation, j * dilation + stride * (width - 1) + 1, stride)
            result += np.einsum("ngchw,goc->ngohw", x[:, :, :, rows, columns], w[..., i, j])
    return result.reshape(x.shape[0], -1, height, width)


def convolution(x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, padding: int = 0, dilation: int = 1,
                groups: int = 1, dtype: Any = np.float32, tolerance: float = 1e-5) -> Case:
    return Case((x, w), lambda x, w: x.conv2d(w, None, groups, stride, dilation, padding),
                lambda x, w: convolved(x, w, stride, padding, dilation, groups), dtype, tolerance)


def gradients(result: Tensor, *inputs: Tensor) -> Tensor:
    """The gradients of the sum of squares, side by side."""
    found = result.square().sum().gradient(*inputs)
    return Tensor.cat(*(g.flatten() for g in found))


def matmul_gradients(a: Array, b: Array) -> Array:
    return np.concatenate([(2 * a @ b @ b.T).ravel(), (2 * a.T @ a @ b).ravel()])


CASES = {
    "matmul": matmul(70, 37, 50),
    "matmul, left transposed": matmul(70, 37, 50, first=True),
    "matmul, right transposed": matmul(70, 37, 50, second=True),
    "matmul, both transposed": matmul(70, 37, 50, first=True, second=True),
    "matmul of whole tiles": matmul(96, 64, 128),
    "matmul, large and odd": matmul(131, 257, 193),
    "matrix times vector": Case(((97, 131), (131,)), lambda a, b: a @ b, lambda a, b: a @ b),
    "vector times matrix": matmul(1, 131, 97),
    "two rows": matmul(2, 64, 300),
    "two columns": matmul(300, 64, 2),
    "outer product": matmul(33, 1, 65),
    "one long sum": matmul(1, 3000, 1),
    "batched matmul": Case(((3, 17, 24), (3, 24, 50)), lambda a, b: a @ b, lambda a, b: a @ b),
    "batch of one matrix": Case(((3, 17, 24), (24, 50)), lambda a, b: a @ b, lambda a, b: a @ b),
    "two matmuls": Case(((20, 30), (30, 40), (40, 25)), lambda a, b, c: a @ b @ c, lambda a, b, c: a @ b @ c),
    "matmul, bias and relu": Case(((40, 33), (33, 50), (50,)), lambda a, b, c: (a @ b + c).relu(),
                                  lambda a, b, c: np.maximum(a @ b + c, 0)),
    "matmul's gradients": Case(((40, 33), (33, 50)), lambda a, b: gradients(a @ b, a, b), matmul_gradients),
    "bfloat16 matmul": matmul(33, 64, 50, dtype=ml_dtypes.bfloat16, tolerance=8e-3),
    "bfloat16 matmul, both transposed": matmul(70, 34, 21, True, True, ml_dtypes.bfloat16, 8e-3),
    "bfloat16 matmul, odd": matmul(65, 131, 129, True, dtype=ml_dtypes.bfloat16, tolerance=8e-3),
    "float16 matmul": matmul(33, 64, 50, dtype=np.float16, tolerance=1e-3),
    "float64 matmul": matmul(33, 64, 50, dtype=np.float64, tolerance=1e-14),
    "convolution": convolution((2, 8, 12, 12), (16, 8, 3, 3), padding=1),
    "bfloat16 convolution": convolution((2, 16, 13, 20), (17, 16, 3, 3), 2, 1, dtype=ml_dtypes.bfloat16,
                                        tolerance=8e-3),
    "convolution, stride 2": convolution((2, 3, 15, 15), (8, 3, 3, 3), stride=2, padding=1),
    "convolution, dilation 2": convolution((1, 5, 14, 13), (6, 5, 3, 2), dilation=2),
    "convolution, two groups": convolution((2, 8, 9, 9), (12, 4, 3, 3), padding=1, groups=2),
    "depthwise convolution": convolution((2, 20, 11, 11), (20, 1, 3, 3), padding=1, groups=20),
    "pointwise convolution": convolution((2, 33, 7, 7), (20, 33, 1, 1)),
    "softmax": Case(((37, 100),), lambda x: x.softmax(), softmax_of),
    "softmax of short rows": Case(((100, 5),), lambda x: x.softmax(), softmax_of),
    "softmax down columns": Case(((37, 100),), lambda x: x.softmax(0), lambda x: softmax_of(x.T).T),
    "layer norm": Case(((19, 129),), lambda x: x.layernorm(), layer_norm_of),
    "attention": attention((1, 2, 37, 16), causal=False),
    "causal attention": attention((1, 2, 37, 16), causal=True),
    "attention of whole tiles": attention((2, 64, 32), causal=True),
    "transpose": Case(((50, 37),), lambda x: x.permute(1, 0).contiguous(), lambda x: x.T),
    "transpose of the outer axes": Case(((9, 20, 17),), lambda x: x.permute(1, 0, 2).contiguous(),
                                        lambda x: x.transpose(1, 0, 2)),
    "transpose of three axes": Case(((9, 20, 17),), lambda x: x.permute(2, 1, 0).contiguous(),
                                    lambda x: x.transpose(2, 1, 0)),
    "sum": Case(((1000,),), lambda x: x.square().sum(), lambda x: (x * x).sum()),
    "sum of columns": Case(((37, 50),), lambda x: x.sum(0), lambda x: x.sum(0)),
    "elementwise": Case(((37, 50), (50,)), lambda x, y: (x * y).exp() + x, lambda x, y: np.exp(x * y) + x),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel compiled before is used, nor kept for other tests."""
    monkeypatch.setattr(compiling, "_kernels", OrderedDict())


def on(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and code as for a machine."""
    monkeypatch.setattr(Device["CPU"], "_renderer", MACHINES[machine])


# --- the cost model's plans ---------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.usefixtures("fresh_kernels")
def test_the_cost_models_plans_are_right(case: Case, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(machine, monkeypatch)
    case.check()


@every_case
@pytest.mark.usefixtures("fresh_kernels")
def test_plain_loops_are_right(case: Case) -> None:
    with Context(NOOPT=1):
        case.check()


def check_with_plans(case: Case, monkeypatch: pytest.MonkeyPatch,
                     plans: Callable[[UOp, LLVMRenderer], list[Plan]], count: int) -> None:
    """Compute a case `count` times, each of its kernels with the next of the plans that it has."""
    for number in range(count):
        used: list[Plan] = []

        def plan_for(ast: UOp, nest: UOp, device: str, number: int = number, used: list[Plan] = used) -> Plan:
            renderer = Device[device].renderer
            listed = plans(nest, renderer)
            turned = (p for p in listed[number:] + listed[:number] if can_be_built(nest, p, renderer))
            used.append(next(turned, choose_plan(nest, renderer)))
            return used[-1]

        monkeypatch.setattr(compiling, "_kernels", OrderedDict())
        monkeypatch.setattr(compiling, "plan_for", plan_for)
        case.check(used)


def can_be_built(nest: UOp, plan: Plan, renderer: LLVMRenderer) -> bool:
    try:
        linear_program(apply_plan(nest, plan), renderer)
    except (ValueError, RuntimeError):
        return False
    return True


@every_case
def test_second_choices_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def plans(nest: UOp, renderer: LLVMRenderer) -> list[Plan]:
        return alternative_plans(nest, renderer)

    check_with_plans(case, monkeypatch, plans, 1)


def some_neighbours(count: int) -> Callable[[UOp, LLVMRenderer], list[Plan]]:
    """A function that draws so many plans one or two edits away from the cost model's."""

    def plans(nest: UOp, renderer: LLVMRenderer) -> list[Plan]:
        draw = random.Random(str(nest.toposort()))
        found = []
        for start in [choose_plan(nest, renderer), threaded_plan(nest, renderer)]:
            near = list(islice(neighbours(nest, start, renderer), 20 * count))
            drawn = draw.sample(near, min(count, len(near)))
            found += drawn[:count // 2]
            for plan in drawn[count // 2:]:
                further = list(islice(neighbours(nest, plan, renderer), 10))
                found += draw.sample(further, min(1, len(further)))
        return draw.sample(found, len(found))

    return plans


@every_case
def test_what_the_search_tries_is_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check_with_plans(case, monkeypatch, some_neighbours(2), 1)


@pytest.mark.slow
@every_case
def test_much_of_what_the_search_tries_is_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check_with_plans(case, monkeypatch, some_neighbours(6), 8)


# --- units of a core ----------------------------------------------------------------------------------------


def test_bfloat16_products_go_on_the_unit_for_them() -> None:
    renderer = LLVMRenderer(vector_bytes=64, registers=32, threads=2, matrix_units=(DOT_BF16,))
    draw = np.random.default_rng(0)
    a, b = (Tensor(draw.standard_normal(s).astype(ml_dtypes.bfloat16)) for s in ((40, 64), (64, 50)))

    def uses_it(result: Tensor) -> bool:
        plan = choose_plan(lower(result.schedule()[-1].ast), renderer)
        return any(isinstance(opt, MMA) for opt in plan.opts)

    assert uses_it(a @ b) and uses_it(a.relu() @ b)
    assert not uses_it(a[:, :2] @ b[:2]) and not uses_it(a.float() @ b.float() * 1.5 @ b.T.float())


# --- stores past the caches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("shape, streams", [((64, 128), True), ((61, 48), True), ((50, 37), False)])
@pytest.mark.usefixtures("fresh_kernels")
def test_results_past_the_caches_land_where_ordinary_ones_do(shape: tuple[int, int], streams: bool,
                                                             offset: int,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    on("AVX-512, small cache", monkeypatch)
    count = shape[0] * shape[1]
    memory = np.zeros(count + 32, np.float32)
    first = -(memory.ctypes.data // 4) % 16 + offset
    target = Tensor.from_dlpack(memory[first:first + count].reshape(shape))
    x = np.random.default_rng(1).standard_normal((shape[1], shape[0])).astype(np.float32)
    result = Tensor(x).T * 2
    planned = choose_plan(nest_of(result.contiguous()), MACHINES["AVX-512, small cache"])
    assert any(isinstance(o, Stream) for o in planned.opts) == streams
    target.assign(result).realize()
    np.testing.assert_array_equal(memory[first:first + count].reshape(shape), 2 * x.T)
    assert not memory[:first].any() and not memory[first + count:].any()


def test_aligned_vectors_go_past_the_caches_and_others_do_not() -> None:
    renderer = LLVMRenderer(vector_bytes=32, registers=16, threads=2, l3_bytes=64)
    nest = nest_of(Tensor(np.ones((64, 128), np.float32)) + 1)
    program = linear_program(apply_plan(nest, choose_plan(nest, renderer)), renderer)
    source = renderer.render("kernel", program)
    plain, streaming = source.split("@kernel.streaming(")[-2:]
    assert "nontemporal" in streaming and "fence" in streaming
    assert "nontemporal" not in plain and "fence" not in plain


@pytest.mark.parametrize("name, vectors", [("AVX-512", 1), ("AVX-512, small cache", 1), ("AVX2", 2)])
def test_a_transpose_stores_whole_lines(name: str, vectors: int) -> None:
    """One cache line of a row at once; where they go past the caches, two tiles beside each other."""
    nest = nest_of(Tensor(np.ones((256, 384), np.float32)).T.contiguous())
    machine = MACHINES[name]
    plan = choose_plan(nest, machine)
    stores = unrolled(apply_plan(nest, plan)).src
    assert len(stores) == vectors * machine.lanes(dtypes.float32)
    assert (Split in [type(o) for o in plan.opts]) == (machine.l3_bytes > 0)
    x = np.random.default_rng(4).standard_normal((77, 131)).astype(np.float32)
    np.testing.assert_array_equal(Tensor(x).T.contiguous().numpy(), x.T)


# --- rows asked for ahead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, columns, ahead", [(7, 4096, True), (5, 2051, True), (9, 512, False)])
def test_softmax_of_long_rows_asks_for_the_next_row_while_it_computes(rows: int, columns: int,
                                                                      ahead: bool) -> None:
    x = np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32)
    result, renderer = Tensor(x).softmax(), MACHINES["AVX-512"]
    nest = nest_of(result)
    planned = choose_plan(nest, renderer)
    assert any(isinstance(o, Prefetch) for o in planned.opts) == ahead
    program = linear_program(apply_plan(nest, planned), renderer)
    assert {n.arg for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX} == \
        ({None, columns} if ahead else {None})
    weights = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(result.numpy(), weights / weights.sum(1, keepdims=True), 1e-5)


def test_rows_that_are_read_once_are_not_asked_for() -> None:
    nest = nest_of(Tensor(np.ones((8, 4096), np.float32)).exp().sum(1))
    assert all(not isinstance(o, Prefetch) for o in choose_plan(nest, MACHINES["AVX-512"]).opts)
    with pytest.raises(ValueError, match="nothing that r"):
        apply_opt(nest_of(Tensor.arange(8) + 1), Prefetch(0, 0, 1))


# --- edits of plans -----------------------------------------------------------------------------------------


def nest_of(result: Tensor) -> UOp:
    """The nest of the one kernel that computes `result`."""
    [item] = result.schedule()
    return lower(item.ast)


def product(m: int, k: int, n: int) -> Tensor:
    draw = np.random.default_rng(0)
    a, b = (Tensor(draw.standard_normal(s).astype(np.float32)).realize() for s in ((m, k), (k, n)))
    return a @ b


TILED = (Vector(1, 16), Upcast(4, 2), Upcast(0, 3),
         Thread(6))
"""Of a product of 64 x 64: 16 columns as lanes, 2 vectors and 3 rows as a tile, the loop over pairs of
vectors shared out."""


@pytest.mark.parametrize("edit, expected", [
    (Edit(0, 1, (Vector(1, 8),)), (Vector(1, 8), *TILED[1:])),
    # without lanes the tile is of columns, which the third Opt's loops are numbered after
    (Edit(0, 1), (Upcast(1, 2), Upcast(0, 3), Thread(4))),
    # without the tile, the loop that it was made of is shared out
    (Edit(1, 1), (TILED[0], Upcast(0, 3), Thread(4))),
    # all columns are lanes: no loop over them is left to tile or to share out, but the rows are
    (Edit(0, 1, (Vector(1, 64),)),
     (Vector(1, 64), Upcast(0, 3), Thread(5))),
    # lanes along the rows: what was done to the rows is done to the columns
    (Edit(0, 1, (Vector(0, 16),)),
     (Vector(0, 16), TILED[1], Upcast(1, 3), TILED[3])),
    # an Opt more: those behind it name the loop that it leaves
    (Edit(2, 0, (Split(6, 2),)),
     (*TILED[:2], Split(6, 2), TILED[2], Thread(8))),
])
def test_an_edit_carries_over_what_follows(edit: Edit, expected: tuple[Opt, ...]) -> None:
    nest = nest_of(product(64, 20, 128 if edit.at == 2 else 64))
    states = [nest]
    for opt in TILED:
        states.append(apply_opt(states[-1], opt))
    assert edited(states, Plan(TILED), edit) == Plan(expected)


def test_neighbours_change_add_and_drop_one_opt() -> None:
    nest = nest_of(product(64, 20, 128))
    near = list(neighbours(nest, Plan(TILED), MACHINES["AVX-512"]))
    assert len(set(near)) == len(near) and Plan(TILED) not in near
    assert all(abs(len(p.opts) - len(TILED)) <= 1 for p in near)
    kinds = {type(o) for p in near for o in p.opts}
    assert {Vector, Upcast, Unroll, Accumulators, Split, Swap,
            Stage, Thread} <= kinds
    tiles = {tuple(o.amount for o in p.opts if isinstance(o, Upcast)) for p in near}
    assert {(4, 3), (2, 4), (2, 2), (2,), (3,)} <= tiles


@pytest.mark.parametrize("size, keeps", [(40, False), (200, True)])
def test_threads_are_given_up_for_little_work_only(size: int, keeps: bool) -> None:
    near = neighbours(nest_of(product(size, size, size)), Plan((Thread(0),)), MACHINES["AVX2"])
    assert all(any(isinstance(o, Thread) for o in p.opts) for p in near) == keeps


def test_a_kernel_without_loops_has_no_neighbours() -> None:
    nest = nest_of(Tensor([2.0]).realize().reshape(()) + 1)
    assert list(neighbours(nest, Plan(), MACHINES["AVX2"])) == []


# --- Opts that would change results are refused -------------------------------------------------------------


@pytest.mark.parametrize("opt, words", [
    (Thread(2), "threads cannot share r2"),
    (Thread(3), "threads cannot share r3"),
    (Swap(4), "r4 is not the first of the loops in whose order staged memory lies"),
    (Upcast(4, 3), "tiles of 3 do not divide the 20 iterations of r4"),
    (Stage(2, over=(2,)), "there is no number 2"),
])
def test_an_opt_that_would_change_results_is_refused(opt: Opt, words: str) -> None:
    """r2 is the loop of the sum, r3 and r4 fill the staged right operand, column by column."""
    nest = apply_opt(nest_of(product(8, 20, 16)), Stage(1, over=(1, 2)))
    with pytest.raises(ValueError, match=re.escape(words)):
        apply_opt(nest, opt)


def test_a_loop_in_which_another_result_is_stored_stays_outside() -> None:
    """The bias is drawn, stored and added in one kernel: loops over products are inside the one over it."""
    image = Tensor.ones(2, 100, 32).contiguous().realize()
    weight = Tensor.ones(32, 32, 1).contiguous().realize()
    Tensor.manual_seed(3)
    bias = Tensor.rand(32).numpy()
    Tensor.manual_seed(3)
    result = image.permute(0, 2, 1).conv2d(weight, Tensor.rand(32))  # nobody holds this one: it is lazy
    nest = lower(result.schedule()[-1].ast)
    outer, batch, _ = max((s.closed_ranges for s in nest.src), key=len)
    assert (outer,) in [s.closed_ranges for s in nest.src]
    with pytest.raises(ValueError, match="inside a loop in which something else runs too"):
        apply_opt(nest, Swap(batch.arg[0]))
    np.testing.assert_allclose(result.numpy(), np.broadcast_to(32 + bias[:, None], (2, 32, 100)))


# --- other machines -----------------------------------------------------------------------------------------


def assembly_for(triple: str, cpu: str, result: Tensor, machine: LLVMRenderer) -> str:
    """The machine code of the last kernel of `result` for another processor, under the cost model's plan."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    nest = lower(result.schedule()[-1].ast)
    optimised = apply_plan(nest, choose_plan(nest, machine))
    source = machine.render("kernel", linear_program(optimised, machine))
    target = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
    with optimised_module(source, target) as module:
        return str(target.emit_assembly(module))


def inner_loop(assembly: str, instruction: str, branch: str) -> list[str]:
    """The instructions of the shortest loop in which `instruction` runs."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    loops = []
    for end, line in enumerate(lines):
        target = line.split()[-1] if re.match(branch, line) else ""
        body = lines[labels.get(target, end):end]
        if any(re.match(instruction, x) for x in body):
            loops.append(body)
    return min(loops, key=len)


AARCH64 = ("aarch64-unknown-linux-gnu", "neoverse-n1")
FMLA = r"fmla\s+v\d+\.4s"


def test_a_matmul_for_aarch64_multiplies_vectors_in_registers() -> None:
    machine = MACHINES["NEON"]
    loop = inner_loop(assembly_for(*AARCH64, product(96, 64, 96), machine), FMLA, r"(b\.|cbn?z|tbn?z)")
    products = [line for line in loop if re.match(FMLA, line)]
    accumulators = {re.findall(r"v(\d+)", line)[0] for line in products}
    assert 12 <= len(accumulators) < 32, "a tile that fills the registers and leaves some for its operands"
    assert not any("[sp" in line for line in loop), "an accumulator was spilled to the stack"
    assert not any(re.match(r"fm(add|ul)\s+s\d", line) for line in loop)


def innermost_loops(assembly: str, branch: str) -> list[list[str]]:
    """The instructions of each loop that no other loop is in."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    jumps = [(labels.get(line.split()[-1], i), i) for i, line in enumerate(lines) if re.match(branch, line)]
    loops = [(first, last) for first, last in jumps if first < last]
    return [lines[a:b] for a, b in loops if not any(a <= x and y < b for x, y in loops)]


@pytest.mark.parametrize("name, instruction", [
    ("matmul, large and odd", FMLA),
    ("matmul, both transposed", FMLA),
    ("convolution", FMLA),
    ("convolution, stride 2", FMLA),
    ("pointwise convolution", FMLA),
    ("softmax", r"fmla\s+v\d+\.4s|fmul\s+v\d+\.4s"),
    ("layer norm", r"fmla\s+v\d+\.4s|fmul\s+v\d+\.4s"),
    ("elementwise", r"fmul\s+v\d+\.4s"),
    ("sum", FMLA),
    ("sum of columns", r"fadd\s+v\d+\.4s"),
    ("attention", FMLA),
])
def test_loops_for_aarch64_compute_with_its_vectors(name: str, instruction: str) -> None:
    case = CASES[name]
    result = case.tensors(*(Tensor(x).realize() for x in case.inputs()))
    text = assembly_for(*AARCH64, result, MACHINES["NEON"])
    assert re.search(instruction, text)
    busy = [loop for loop in innermost_loops(text, r"(b\.|cbn?z|tbn?z)")
            if any(re.match(r"f(mla|mul|add|sub|madd|div)\s", line) for line in loop)]
    lines = [line for loop in busy for line in loop]
    vectors = sum(bool(re.match(r"f\w+\s+v\d+\.4s", line)) for line in lines)
    singles = sum(bool(re.match(r"f(madd|mul|add|sub|div|max\w*)\s+s\d", line)) for line in lines)
    assert singles <= vectors // 8, "lanes left empty"


@pytest.mark.parametrize("name", ["matmul of whole tiles", "matmul, large and odd", "convolution, 3 x 3",
                                  "convolution, odd", "attention of whole tiles"])
def test_tiles_for_avx2_fill_its_registers_and_spill_none(name: str) -> None:
    """12 accumulators, a short side of 2 or 3 operands and one of the long side: 16 registers at most."""
    others = {"convolution, 3 x 3": convolution((2, 16, 28, 28), (64, 16, 3, 3), padding=1),
              "convolution, odd": convolution((5, 37, 31, 43), (53, 37, 3, 3), padding=1)}
    case = others[name] if name in others else CASES[name]
    result = case.tensors(*(Tensor(x).realize() for x in case.inputs()))
    text = assembly_for("x86_64-unknown-linux-gnu", "haswell", result, MACHINES["AVX2"])
    products = [loop for loop in innermost_loops(text, "j")
                if sum(bool(re.match(r"vfmadd231ps", line)) for line in loop) >= 8]
    assert products
    for loop in products:
        if not any("vbroadcastss\t.L" in line for line in loop):  # not the polynomials of exp
            accumulators = {line.split("%ymm")[-1] for line in loop if line.startswith("vfmadd231ps")}
            assert 8 <= len(accumulators) <= 12
            assert not any("rsp" in line for line in loop), "an accumulator was spilled to the stack"
    assert any(len([x for x in loop if x.startswith("vfmadd231ps")]) == 12 for loop in products)


FEATURES_PROGRAM = """
import numpy as np
from tinygrad import Tensor
from tinygrad.runtime.cpu import cpu_renderer
from tinygrad.runtime.limits import LimitMeter

draw = np.random.default_rng(3)
a, b = (draw.standard_normal((61, 61)).astype(np.float32) for _ in range(2))
x, y = Tensor(a).realize(), Tensor(b).realize()
wide, other = a.astype(np.float64), b.astype(np.float64)
weights = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
half = (a * 100).astype(np.float16)
for got, expected in [(x @ y, wide @ other), (x.softmax(), weights), (x.sin(), np.sin(wide)),
                      (x.exp(), np.exp(wide)), (Tensor(half).realize() * 3, half * np.float16(3)),
                      (x.half(), a.astype(np.float16))]:
    np.testing.assert_allclose(got.numpy().astype(np.float64), expected, 1e-5, 1e-5)
machine = cpu_renderer()
assert LimitMeter(1).lanes == machine.vector_bytes // 4
print(machine.vector_bytes, machine.registers, machine.contracts, machine.has_float16)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features of x86-64")
@pytest.mark.parametrize("features, expected", [
    ("-avx512f", "32 16 True True"), ("-avx512f,-avx2,-fma", "16 16 False True"),
    ("-avx", "16 16 False False"), ("-sse4.1", "16 16 False False"), ("-f16c", "32 16 True False")])
def test_kernels_of_a_cpu_without_some_features(features: str, expected: str) -> None:
    if not has_features("avx2", "fma", "f16c"):
        pytest.skip("a CPU without AVX2")
    environment = {**os.environ, "CPU_FEATURES": features, "CACHELEVEL": "0"}
    done = subprocess.run([sys.executable, "-c", FEATURES_PROGRAM], env=environment, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_products_are_not_fused_where_no_instruction_does_it() -> None:
    machine = LLVMRenderer(vector_bytes=16, registers=16, contracts=False, has_float16=False)
    for result in (product(24, 20, 28), Tensor.ones(64).contiguous().realize().exp(),
                   Tensor.ones(64, dtype="float16").contiguous().realize() * 2):
        text = assembly_for("x86_64-unknown-linux-gnu", "x86-64", result, machine)
        assert not re.search(r"call\S*\s+(fma|__\w+hf)", text)
        assert re.search(r"mulps\s", text)


def test_a_tile_that_overlaps_asks_for_the_next_one_too() -> None:
    image = Tensor(np.ones((2, 64, 113, 57), np.float32)).realize()
    weight = Tensor(np.ones((64, 64, 3, 3), np.float32)).realize()
    plan = choose_plan(nest_of(image.conv2d(weight, stride=2)), MACHINES["AVX2"])
    assert Upcast(3, 3) in plan.opts, "28 columns in tiles of 3"
    assert any(isinstance(o, Prefetch) for o in plan.opts)


def test_long_rows_that_are_read_in_order_are_left_to_the_processor() -> None:
    plan = choose_plan(nest_of(product(512, 1024, 64)), MACHINES["AVX2"])
    assert all(not isinstance(o, Prefetch) for o in plan.opts)


@pytest.mark.parametrize("images, channels", [(5, 32), (3, 64), (7, 48)])
def test_threads_get_about_as_much_work_each(images: int, channels: int) -> None:
    machine = LLVMRenderer(vector_bytes=64, registers=32, threads=2)
    image = Tensor(np.ones((images, 16, 30, 30), np.float32)).realize()
    weight = Tensor(np.ones((channels, 16, 3, 3), np.float32)).realize()
    plan = choose_plan(nest_of(image.conv2d(weight)), machine)
    nest = apply_plan(nest_of(image.conv2d(weight)), plan)
    (shared,) = {r for n in nest.toposort() for r in n.ranges if r.arg[1] is RangeKind.THREAD}
    assert shared.extent / (-(-shared.extent // 2) * 2) >= 0.9


# --- the numbers behind plans and kernels -------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_kernels")
def test_debug_3_prints_the_cost_models_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=3):
        (product(64, 20, 80) + 1).realize()
    printed = capsys.readouterr().out
    assert re.search(r"a multiply-add, against 1 without lanes: r1 as lanes 0\.\d+, r0 as lanes", printed)
    assert re.search(r"a tile of accumulators: rows \d+, vectors \d+, registers \d+", printed)
    assert "threads: work" in printed


def test_debug_3_prints_why_values_are_stored(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.arange(391, dtype=np.float32).reshape(17, 23)).realize()
    with Context(DEBUG=3):
        len((product(17, 20, 23).sin() * x).layernorm().schedule())
    printed = capsys.readouterr().out
    assert re.search(r"fusion: UOp\(.*\): (stored|computed where it is used): again \S+ times work \S+, "
                     r"against 100 to store it for 1 kernel", printed)


def test_nothing_is_noted_when_nobody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    (product(16, 20, 48) + 1).realize()
    assert capsys.readouterr().out == ""


def test_a_small_sum_beside_a_long_one_does_not_take_its_lanes() -> None:
    channels, pieces = 64, 28
    image = Tensor.ones(16, 28, 28, channels).contiguous().realize()
    before = Tensor.ones(channels, pieces).contiguous().realize()
    kernel = (image.permute(3, 0, 1, 2) * before.sum(axis=1).reshape(channels, 1, 1, 1)).sum(axis=(1, 3))
    plan = choose_plan(lower(kernel.schedule()[-1].ast), MACHINES["AVX-512"])
    assert Vector(0, 16) in plan.opts
