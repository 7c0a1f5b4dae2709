"""The search for plans: it keeps results, never ends with a slower plan, remembers what it found."""
from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import held, integers
from hypothesis import given
from hypothesis import strategies as st

from tinygrad import Context, Tensor, TinyJit, dtypes
from tinygrad.codegen import compile as compiling
from tinygrad.codegen import kernel_cache
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt import plan_cache, search
from tinygrad.codegen.opt.choose import alternative_plans, choose_plan
from tinygrad.codegen.opt.measure import Built, Workbench, agree, random_items, sample
from tinygrad.codegen.opt.opts import OPTS, Accumulators, Opt, Thread, Unroll, Upcast, Vector
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.opt.plan_cache import keep_plan, kept_plan
from tinygrad.codegen.opt.search import Search, kernel_key, searched_plan
from tinygrad.device import Device
from tinygrad.dtype import DType
from tinygrad.graph.records import decode, encode
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import cores
from tinygrad.store import DiskStore


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DiskStore:
    """An empty store of plans, and no kernels from before."""
    store = DiskStore(tmp_path / "plans")
    monkeypatch.setattr(plan_cache, "store_of", lambda *kind: store)
    monkeypatch.setattr(compiling, "_kernels", OrderedDict())
    return store


def ast_of(result: Tensor) -> UOp:
    [item] = result.schedule()
    return item.ast


def nest_of(result: Tensor) -> UOp:
    return lower(ast_of(result))


def product(m: int, k: int, n: int) -> Tensor:
    return held(integers(m, k)) @ held(integers(k, n, seed=1))


# --- whole searches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_results_with_beam_are_numpys(width: int) -> None:
    a, b = integers(33, 40), integers(40, 50, seed=1)
    with Context(BEAM=width, BEAM_SECONDS=0.3):
        np.testing.assert_array_equal((held(a) @ held(b) + 1).numpy(), a @ b + 1)


def test_a_search_on_blocks_of_threads() -> None:
    column, rows = integers(33, 1), integers(33, 31, seed=1)
    x, y = (Tensor(v, device="PYTHON:BLOCKS").realize() for v in (column, rows))
    with Context(BEAM=2, BEAM_SECONDS=0.3):
        np.testing.assert_allclose((x * y).sum().numpy(), (column * rows).sum(), rtol=1e-5)


def test_a_search_keeps_the_users_memory() -> None:
    """The kernel writes what it reads; running it again and again must not be seen."""
    x = held(integers(300))
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        x.assign(x * 2 + 1).realize()
    np.testing.assert_array_equal(x.numpy(), integers(300) * 2 + 1)


def test_a_traced_function_takes_searched_plans() -> None:
    weight = integers(20, 30)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x @ held_weight).relu().realize()

    held_weight = held(weight)
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        for seed in range(4):
            x = integers(7, 20, seed=seed)
            np.testing.assert_array_equal(step(held(x)).numpy(), np.maximum(x @ weight, 0))


def test_a_search_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    ast = ast_of(product(16, 16, 16))
    with Context(BEAM=1, BEAM_SECONDS=0.3, DEBUG=2):
        plan = searched_plan(ast, lower(ast), "CPU")
    printed = capsys.readouterr().out
    assert "plans: " in printed and " us -> " in printed and str(plan) in printed


def test_kernels_without_loops_and_with_variables_are_searched() -> None:
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        assert (held(np.array([3.0], np.float32)).reshape(()) + 1).numpy() == 4.0
        assert 0 <= Tensor.rand(3).numpy().min() < 1


def test_second_best_plans_of_attention_are_plans() -> None:
    """What fills a row of scores is read in a loop inside the one that fills it: no hint is for that."""
    query, key, value = (held(integers(1, 2, 1000, 128)) for _ in range(3))
    nest = nest_of(query.scaled_dot_product_attention(key, value))
    plans = [choose_plan(nest, cores()), *alternative_plans(nest, cores())]
    assert len(plans) > 1 and all(apply_plan(nest, plan) is not nest for plan in plans)


def test_a_device_that_computes_nothing_keeps_the_cost_models_plan() -> None:
    ast = ast_of(product(16, 16, 16))
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        nest = lower(ast)
        assert searched_plan(ast, nest, "NULL") == choose_plan(nest, Device["NULL"].renderer.machine)


def test_a_kernel_too_large_to_measure_keeps_the_cost_models_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.codegen.opt.measure.MOST_BYTES", 100)
    ast = ast_of(held(integers(300)) + 1)
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        chosen = choose_plan(lower(ast), Device["CPU"].renderer.machine)
        assert searched_plan(ast, lower(ast), "CPU") == chosen


# --- decisions, on a clock of our own -----------------------------------------------------------------------


def use_clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Plan], float]) -> None:
    """Kernels run, and seem to take as long as `seconds` says of their plans."""

    def run(bench: Workbench, kernel: Built) -> float:
        kernel.program(bench.addresses, kernel.variables, kernel.extent)
        return seconds(kernel.plan)

    monkeypatch.setattr(Workbench, "run", run)
    monkeypatch.setattr(search, "RACE_SECONDS", 0.0)
    monkeypatch.setattr(search, "FINAL_SECONDS", 0.0)


def test_the_fastest_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only unrolling the sum twice more makes anything faster, and is one edit away."""
    def seconds(plan: Plan) -> float:
        return 0.5 if any(isinstance(o, Unroll) and o.amount == 2 for o in plan.opts) else 1.0

    use_clock(monkeypatch, seconds)
    found = Search(nest_of(product(16, 16, 16)), "CPU", 1, 60.0).run()
    assert seconds(found.plan) == 0.5
    assert found.seconds == 0.5 and found.default_seconds == 1.0


def test_edits_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two edits helps: the second round finds both together."""
    def seconds(plan: Plan) -> float:
        return 1.0 - 0.3 * sum(any(isinstance(o, kind) for o in plan.opts) for kind in helpful)

    helpful = (Accumulators, Unroll)
    use_clock(monkeypatch, seconds)
    found = Search(nest_of(held(integers(8, 64)).sum(1)), "CPU", 1, 60.0).run()
    assert set(helpful) <= {type(o) for o in found.plan.opts}


def test_a_plan_that_is_faster_only_at_first_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nest = nest_of(product(16, 16, 16))
    default = choose_plan(nest, Device["CPU"].renderer.machine)
    finals = []

    def race(bench: Workbench, one: Built, other: Built, seconds: float, least: int = 3) -> Any:
        assert other.plan == default
        final = seconds == search.FINAL_SECONDS
        finals.append(final)
        return ([1.1] if final else [0.5]), [1.0]

    monkeypatch.setattr(Workbench, "race", race)
    monkeypatch.setattr(Search, "extend", lambda search: None)  # a few plans, however long they take to build
    monkeypatch.setattr(search, "HOPELESS", 1e9)
    assert Search(nest, "CPU", 1, 60).run().plan == default
    assert True in finals


def test_a_plan_with_other_results_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds 2 where 1 is wanted is twice as fast, and counted as wrong."""
    nest, other = (nest_of(held(integers(500)) + n) for n in (1, 2))
    default = choose_plan(nest, Device["CPU"].renderer.machine)
    write = Workbench.write

    def written(bench: Workbench, of: UOp, plan: Plan, most: int | None = None) -> Any:
        is_candidate = hasattr(bench, "expected") and plan != default
        return write(bench, other if is_candidate else of, plan, most)

    monkeypatch.setattr(Workbench, "write", written)
    monkeypatch.setattr(Workbench, "race", lambda *args, **kwargs: ([0.5], [1.0]))
    monkeypatch.setattr(search, "HOPELESS", 1e9)
    found = Search(nest, "CPU", 1, 0.5).run()
    assert found.plan == default and found.wrong > 0


# --- what is compared ---------------------------------------------------------------------------------------


def test_the_cost_models_plan_is_right_and_another_kernel_is_not() -> None:
    nest = nest_of(product(33, 20, 50))
    bench = Workbench(nest, "CPU")
    assert bench.is_right(bench.build(nest, choose_plan(nest, Device["CPU"].renderer.machine)))
    shifted = nest_of(held(integers(33, 20)) @ (held(integers(20, 50, seed=1)) + 0.25))
    assert not bench.is_right(bench.build(shifted, Plan()))


def test_a_kernel_that_leaves_out_one_item_is_wrong() -> None:
    x = held(integers(40))
    nest = nest_of(x * 2)
    bench = Workbench(nest, "CPU")
    [store] = nest.src
    (r,) = store.closed_ranges
    at = store.src[0]
    one_less = store.replace(src=(at.src[0].index(at.src[1], r < 39), *store.src[1:]))
    assert bench.is_right(bench.build(nest, Plan()))
    assert not bench.is_right(bench.build(UOp.sink([one_less]), Plan()))


def test_of_a_large_kernel_a_sample_of_items_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.codegen.opt.measure.PLAIN_SECONDS", 0.002)
    nest = nest_of(product(300, 300, 300))
    bench = Workbench(nest, "CPU")
    assert bench.is_sample
    expected = bench.expected[0].reshape(300, 300)
    was_computed = expected.view(np.uint32) != 0x5A5A5A5A
    rows, columns = np.flatnonzero(was_computed.any(1)), np.flatnonzero(was_computed.any(0))
    assert {0, 299} <= set(rows) and {0, 299} <= set(columns) and not was_computed.all()
    a, b = (bench.buffers[i].numpy().reshape(300, 300).astype(np.float64) for i in (1, 2))
    np.testing.assert_array_equal(expected[was_computed], (a @ b)[was_computed])
    assert bench.is_right(bench.build(nest, choose_plan(nest, Device["CPU"].renderer.machine)))
    half = nest_of(held(integers(300, 300)) @ (held(integers(300, 300, seed=1)) * 0.5))
    assert not bench.is_right(bench.build(half, choose_plan(half, Device["CPU"].renderer.machine)))


@pytest.mark.parametrize("most, extents", [
    (144_000, (4, 30, 30)), (143_999, (3, 30, 30)), (36_000, (2, 11, 30)), (2_400, (2, 2, 11)),
    (1, (2, 2, 2))])
def test_a_sample_has_the_work_it_may_have(most: int, extents: tuple[int, ...]) -> None:
    """4 products of 30 x 20 x 30 are 144,000 operations; batches go first, then rows, then columns. Of 30
    rows 15 would do, but every third one, the last among them, are 11."""
    nest = nest_of(held(integers(4, 30, 20)) @ held(integers(4, 20, 30, seed=1)))
    sampled = sample(nest, most)
    assert tuple(r.extent for r in sampled.src[0].closed_ranges) == extents
    assert (sampled is nest) == (most == 144_000)


def test_plain_loops_that_cannot_be_sampled_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.codegen.opt.measure.PLAIN_SECONDS", 1e-9)
    with pytest.raises(RuntimeError, match="would run for too long"):
        Workbench(nest_of(held(integers(3000)).sum()), "CPU")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16],
                         ids=lambda d: d.name)
def test_floats_agree_within_a_tolerance_of_their_type(dtype: DType) -> None:
    expected = np.linspace(-3, 3, 101).astype(dtype.numpy)
    step = float(np.spacing(np.float32(1))) if dtype is dtypes.float32 else 0.0
    assert agree(expected, expected, dtype)
    assert agree((expected.astype(np.float64) + step).astype(dtype.numpy), expected, dtype)
    wrong = expected.copy()
    wrong[50] = 1.0
    assert not agree(wrong, expected, dtype)


def test_nan_and_infinity_must_be_where_they_were() -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert agree(values, values.copy(), dtypes.float32)
    for other in ([np.nan, np.nan, np.inf, -np.inf], [1.0, 0.0, np.inf, -np.inf],
                  [1.0, np.nan, -np.inf, -np.inf], [1.0, np.nan, 3e38, -np.inf]):
        assert not agree(np.array(other, np.float32), values, dtypes.float32)


def test_integers_and_bools_must_be_equal() -> None:
    values = np.array([1 << 20, 5], np.int32)
    assert agree(values, values.copy(), dtypes.int32)
    assert not agree(values + np.array([1, 0], np.int32), values, dtypes.int32)
    assert not agree(np.array([True]), np.array([False]), dtypes.bool)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int8, dtypes.uint8, dtypes.int64,
                                   dtypes.bool], ids=lambda d: d.name)
def test_random_items_are_small_and_never_zero(dtype: DType) -> None:
    items = random_items(dtype, 70_000, 3)
    assert items.shape == (70_000,) and items.dtype == dtype.numpy
    wide = items.astype(np.float64)
    assert np.abs(wide).max() <= 8
    assert dtype.is_bool or (wide != 0).all()
    assert (wide * 4 == np.round(wide * 4)).all()
    assert len(np.unique(wide)) == (2 if dtype.is_bool else 8 if dtype.is_unsigned else 16)


# --- what is remembered -------------------------------------------------------------------------------------


def drawn(kind: type[Opt]) -> st.SearchStrategy[Opt]:
    number = st.integers(0, 99)
    several = st.lists(number, max_size=4).map(tuple)
    return st.builds(kind, **{f.name: several if "tuple" in str(f.type) else number for f in fields(kind)})


opts = st.sampled_from(list(OPTS.values())).flatmap(drawn)


@given(st.lists(opts, max_size=8))
def test_a_plan_read_is_the_plan_written(listed: list[Opt]) -> None:
    plan = Plan(tuple(listed))
    assert decode(Plan, encode(Plan, plan)) == plan


@pytest.mark.parametrize("opts", [
    3, [3], [[]], [["Fly", 1, 2]], [["Vector", 1.5, 2]], [["Vector", 1]], [["Vector", 1, 2, 3]],
    [["Vector", 1, True]], [["Vector", 1, [2]]], [["Vector", 1, None]], [["Stage", 0, 3]],
    [["Stage", 0, ["a"]]], [["Opt"]], {}])
def test_what_is_no_plan_is_refused(opts: Any) -> None:
    with pytest.raises(ValueError):
        decode(Plan, json.dumps({"value": [opts], "rows": []}).encode())


def test_a_found_plan_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    ast = ast_of(product(20, 16, 24))
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        plan = searched_plan(ast, lower(ast), "CPU")
        monkeypatch.setattr(search, "Search", None)  # another search would fail
        assert searched_plan(ast, lower(ast), "CPU") == plan
        with Context(IGNORE_BEAM_CACHE=1), pytest.raises(TypeError, match="'NoneType' object"):
            searched_plan(ast, lower(ast), "CPU")


@pytest.mark.parametrize("plan", [
    Plan((Vector(77, 16),)),
    Plan((Upcast(0, 1 << 20),)),
    Plan((Thread(2),)),
])
def test_a_remembered_plan_that_does_not_fit_is_searched_again(plan: Plan) -> None:
    ast = ast_of(product(20, 16, 24))
    keep_plan(key_of_kernel(ast), 9, 99.0, plan)
    with Context(BEAM=1, BEAM_SECONDS=0.3):
        assert searched_plan(ast, lower(ast), "CPU") != plan


def key_of_kernel(ast: UOp) -> str:
    key = kernel_key(ast, "CPU")
    assert key is not None
    return key


def test_a_wider_or_longer_search_is_made_again() -> None:
    plan = Plan((Thread(0),))
    keep_plan("kernel", 2, 10.0, plan)
    assert kept_plan("kernel", 2, 10.0) == kept_plan("kernel", 1, 3.0) == plan
    assert kept_plan("kernel", 3, 10.0) is None
    assert kept_plan("kernel", 2, 20.0) is None
    assert kept_plan("another", 1, 1.0) is None


def test_nothing_is_read_or_written_without_a_cache(plans: DiskStore) -> None:
    ast = ast_of(product(20, 16, 24))
    with Context(BEAM=1, BEAM_SECONDS=0.3, CACHELEVEL=0):
        searched_plan(ast, lower(ast), "CPU")
    assert not plans.folder.exists()


def test_a_folder_that_is_none_costs_nothing_but_the_search(plans: DiskStore) -> None:
    plans.folder.write_bytes(b"not a folder")
    keep_plan("kernel", 1, 1.0, Plan())
    assert kept_plan("kernel", 1, 1.0) is None


@pytest.mark.parametrize("content", [
    b"nonsense", b"\xff", b"[]", b"7", b"{}", b'{"value": [1, 1.0, 3], "rows": []}'])
def test_what_is_no_plan_is_not_one(plans: DiskStore, content: bytes) -> None:
    plans.put("kernel", content)
    assert plans.get("kernel") == content and kept_plan("kernel", 1, 1.0) is None


def test_the_key_follows_kernel_device_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    ast, other = ast_of(product(20, 16, 24)), ast_of(product(20, 16, 25))
    keys = {kernel_key(ast, "CPU"), kernel_key(other, "CPU"), kernel_key(ast, "NULL")}
    renderer = Device["CPU"].renderer
    monkeypatch.setattr(renderer, "machine", replace(renderer.machine, threads=77))
    keys.add(kernel_key(ast, "CPU"))
    monkeypatch.setattr(kernel_cache, "code_version", lambda: "other code")
    keys.add(kernel_key(ast, "CPU"))
    assert len(keys) == 5
