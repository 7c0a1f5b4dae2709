"""Results under every plan that the cost model and the search choose, for a spread of shapes, against NumPy.

The cost model is asked as for CPUs with other vectors and registers than the host's; LLVM compiles what it
says for the host. For aarch64 kernels are compiled, and their vector instructions counted.
"""
from __future__ import annotations

import random
import re
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

import ml_dtypes
import numpy as np
import pytest
from kernel_cases import (
    CASES,
    MACHINES,
    Case,
    nest_of,
    on,
    product,
)
from kernel_cases import fresh_kernels as fresh_kernels

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
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.renderer.matrix_units import DOT_BF16

# --- the spread of kernels ----------------------------------------------------------------------------------

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


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
            used.append(next(turned, choose_plan(nest, renderer.machine)))
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
        return alternative_plans(nest, renderer.machine)

    check_with_plans(case, monkeypatch, plans, 1)


def some_neighbours(count: int) -> Callable[[UOp, LLVMRenderer], list[Plan]]:
    """A function that draws so many plans one or two edits away from the cost model's."""

    def plans(nest: UOp, renderer: LLVMRenderer) -> list[Plan]:
        draw = random.Random(str(nest.toposort()))
        found = []
        for start in [choose_plan(nest, renderer.machine), threaded_plan(nest, renderer.machine)]:
            near = list(islice(neighbours(nest, start, renderer.machine), 20 * count))
            drawn = draw.sample(near, min(count, len(near)))
            found += drawn[:count // 2]
            for plan in drawn[count // 2:]:
                further = list(islice(neighbours(nest, plan, renderer.machine), 10))
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
    renderer = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2, matrix_units=(DOT_BF16,)))
    draw = np.random.default_rng(0)
    a, b = (Tensor(draw.standard_normal(s).astype(ml_dtypes.bfloat16)) for s in ((200, 64), (64, 50)))

    def uses_it(result: Tensor) -> bool:
        plan = choose_plan(lower(result.schedule()[-1].ast), renderer.machine)
        return any(isinstance(opt, MMA) for opt in plan.opts)

    assert uses_it(a @ b) and uses_it(a.relu() @ b)
    assert not uses_it(a[:, :2] @ b[:2]) and not uses_it(a.float() @ b.float() * 1.5 @ b.T.float())
    # pairs of channels lie apart: to fill panels with them takes longer than products without the unit
    image, weight = (Tensor(draw.standard_normal(s).astype(ml_dtypes.bfloat16)).realize()
                     for s in ((4, 32, 30, 30), (48, 32, 3, 3)))
    assert not uses_it(image.conv2d(weight))


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
    planned = choose_plan(nest_of(result.contiguous()), MACHINES["AVX-512, small cache"].machine)
    assert any(isinstance(o, Stream) for o in planned.opts) == streams
    target.assign(result).realize()
    np.testing.assert_array_equal(memory[first:first + count].reshape(shape), 2 * x.T)
    assert not memory[:first].any() and not memory[first + count:].any()


def test_aligned_vectors_go_past_the_caches_and_others_do_not() -> None:
    renderer = LLVMRenderer(cores(vector_bytes=32, registers=16, threads=2, l3_bytes=64))
    nest = nest_of(Tensor(np.ones((64, 128), np.float32)) + 1)
    program = linear_program(apply_plan(nest, choose_plan(nest, renderer.machine)), renderer)
    source = renderer.render("kernel", program)
    plain, streaming = source.split("@kernel.streaming(")[-2:]
    assert "nontemporal" in streaming and "fence" in streaming
    assert "nontemporal" not in plain and "fence" not in plain


@pytest.mark.parametrize("name", ["AVX-512", "AVX2", "NEON"])
@pytest.mark.parametrize("times", [2, 4])
def test_items_that_are_repeated_are_stored_in_runs(name: str, times: int) -> None:
    x = np.random.default_rng(4).standard_normal((7, 112)).astype(np.float32)
    result = Tensor(x).realize().repeat_interleave(times, 1)
    nest, renderer = nest_of(result.contiguous()), MACHINES[name]
    program = linear_program(apply_plan(nest, choose_plan(nest, renderer.machine)), renderer)
    stores = [n for n in program if n.op is Ops.STORE]
    assert stores and all(n.address.src[1].dtype.count == 1 for n in stores), "lanes are stored one by one"
    assert {n.src[1].dtype.count for n in stores} == {times}
    np.testing.assert_array_equal(result.numpy(), np.repeat(x, times, 1))


@pytest.mark.parametrize("name, vectors", [("AVX-512", 1), ("AVX-512, small cache", 1), ("AVX2", 2)])
def test_a_transpose_stores_whole_lines(name: str, vectors: int) -> None:
    """One cache line of a row at once; where they go past the caches, two tiles beside each other."""
    nest = nest_of(Tensor(np.ones((256, 384), np.float32)).T.contiguous())
    machine = MACHINES[name].machine
    plan = choose_plan(nest, machine)
    stores = unrolled(apply_plan(nest, plan)).src
    assert len(stores) == vectors * machine.lanes(dtypes.float32)
    assert (Split in [type(o) for o in plan.opts]) == (machine.l3_bytes > 0)
    x = np.random.default_rng(4).standard_normal((77, 131)).astype(np.float32)
    np.testing.assert_array_equal(Tensor(x).T.contiguous().numpy(), x.T)


@pytest.mark.parametrize("parts, written_out", [(4, True), (8, True), (32, False)])
def test_a_sum_beside_many_others_is_written_out_where_it_is_short(parts: int, written_out: bool) -> None:
    """Parts of a gradient, each turned, in 16 vectors on AVX2."""
    rng = np.random.default_rng(6)
    gradient, weight = (rng.standard_normal(s).astype(np.float32) for s in ((parts, 48, 32), (32, 48)))
    result = (Tensor(weight).realize() - Tensor(gradient).realize().sum(0).T).contiguous()
    plan = choose_plan(nest_of(result), MACHINES["AVX2"].machine)
    assert (Unroll in [type(o) for o in plan.opts]) == written_out
    expected = weight - gradient.sum(0, np.float64).T
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["AVX2", "AVX-512"])
@pytest.mark.parametrize("rows, columns", [(25, 77), (70, 203), (131, 3), (1, 1009)])
def test_tiles_that_overlap_write_once_what_the_kernel_reads(name: str, rows: int, columns: int,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a weight, in place: its product is computed without masks, and the last tile stores what the
    one before has left."""
    on(name, monkeypatch)
    rng = np.random.default_rng(7)
    shapes = (19, rows), (19, columns), (rows, columns)
    x, y, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    weight = Tensor(w.copy()).realize()
    step = weight.assign(weight - 0.5 * (Tensor(x).realize().T @ Tensor(y).realize()))
    nest = nest_of(step)
    optimised = apply_plan(nest, choose_plan(nest, MACHINES[name].machine))
    overlaps = all(r.extent >= 8 for r in nest.src[0].closed_ranges)
    loads = [n for n in optimised.toposort() if n.op is Ops.LOAD and n.src[0].src[0].op is Ops.PARAM]
    assert not overlaps or all(len(n.src[0].src) == 2 for n in loads)
    np.testing.assert_allclose(weight.numpy(), w - 0.5 * (x.astype(np.float64).T @ y), rtol=1e-4, atol=1e-4)


def test_products_of_a_batch_run_one_after_another() -> None:
    """Each finds its operands in the cache; and an operand that is small in each is no large one."""
    rng = np.random.default_rng(8)
    x, y = (Tensor(rng.standard_normal((16, 197, n)).astype(np.float32)).realize() for n in (48, 197))
    machine = MACHINES["AVX-512"].machine
    scores = nest_of(x @ x.transpose(1, 2))
    plan = choose_plan(scores, machine)
    assert any(isinstance(o, Stage) for o in plan.opts)
    assert apply_plan(scores, plan).src[0].closed_ranges[0].extent == 16
    turned = nest_of(y.transpose(1, 2) @ x)
    plan = choose_plan(turned, machine)
    assert not any(isinstance(o, (Stage, Prefetch)) for o in plan.opts)  # rows of 48 items are three vectors
    assert apply_plan(turned, plan).src[0].closed_ranges[0].extent == 16


# --- rows asked for ahead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, columns, ahead", [(7, 4096, True), (5, 2051, True), (9, 512, False)])
def test_softmax_of_long_rows_asks_for_the_next_row_while_it_computes(rows: int, columns: int,
                                                                      ahead: bool) -> None:
    x = np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32)
    result, renderer = Tensor(x).softmax(), MACHINES["AVX-512"]
    nest = nest_of(result)
    planned = choose_plan(nest, renderer.machine)
    assert any(isinstance(o, Prefetch) for o in planned.opts) == ahead
    program = linear_program(apply_plan(nest, planned), renderer)
    assert {n.arg for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX} == \
        ({None, columns} if ahead else {None})
    weights = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(result.numpy(), weights / weights.sum(1, keepdims=True), 1e-5)


def test_rows_that_are_read_once_are_not_asked_for() -> None:
    nest = nest_of(Tensor(np.ones((8, 4096), np.float32)).exp().sum(1))
    assert all(not isinstance(o, Prefetch) for o in choose_plan(nest, MACHINES["AVX-512"].machine).opts)
    with pytest.raises(ValueError, match="nothing that r"):
        apply_opt(nest_of(Tensor.arange(8) + 1), Prefetch(0, 0, 1))


# --- edits of plans -----------------------------------------------------------------------------------------


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
    near = list(neighbours(nest, Plan(TILED), MACHINES["AVX-512"].machine))
    assert len(set(near)) == len(near) and Plan(TILED) not in near
    assert all(abs(len(p.opts) - len(TILED)) <= 1 for p in near)
    kinds = {type(o) for p in near for o in p.opts}
    assert {Vector, Upcast, Unroll, Accumulators, Split, Swap,
            Stage, Thread} <= kinds
    tiles = {tuple(o.amount for o in p.opts if isinstance(o, Upcast)) for p in near}
    assert {(4, 3), (2, 4), (2, 2), (2,), (3,)} <= tiles


@pytest.mark.parametrize("size, keeps", [(40, False), (200, True)])
def test_threads_are_given_up_for_little_work_only(size: int, keeps: bool) -> None:
    near = neighbours(nest_of(product(size, size, size)), Plan((Thread(0),)), MACHINES["AVX2"].machine)
    assert all(any(isinstance(o, Thread) for o in p.opts) for p in near) == keeps


def test_a_kernel_without_loops_has_no_neighbours() -> None:
    nest = nest_of(Tensor([2.0]).realize().reshape(()) + 1)
    assert list(neighbours(nest, Plan(), MACHINES["AVX2"].machine)) == []


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
