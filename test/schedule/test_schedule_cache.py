"""Schedules found again by structure: whatever memory and values they are used with, results are NumPy's."""
import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import in_threads

from tinygrad import Tensor
from tinygrad.engine import realize
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters
from tinygrad.runtime.cpu_pool import CPUProgram
from tinygrad.schedule.cache import STEP_FIELDS, TEMPLATE_FIELDS, ScheduleCache, Structure, fields_of

N = 4


@pytest.fixture
def cache(monkeypatch):
    """An empty cache, used by everything that the test computes."""
    fresh = ScheduleCache()
    monkeypatch.setattr(realize, "schedules", fresh)
    return fresh


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (N, N)).astype(np.float32)


# --- random programs ----------------------------------------------------------------------------------------

PURE = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "product": (lambda x, y: x @ y * 0.25, lambda x, y: x @ y * np.float32(0.25)),
    "transpose": (lambda x, y: x.T + y, lambda x, y: x.T + y),
    "flip": (lambda x, y: -x.flip(0), lambda x, y: -x[::-1]),
    "reshape": (lambda x, y: (x.reshape(2, -1) + 1).reshape(N, N), lambda x, y: x + 1),
    "shift": (lambda x, y: x[1:].pad(((0, 1), (0, 0))) - y, lambda x, y: np.pad(x[1:], ((0, 1), (0, 0))) - y),
    "rows": (lambda x, y: x - x.sum(1, keepdim=True) * 0.1,
             lambda x, y: x - x.sum(1, keepdims=True) * np.float32(0.1)),
    "one": (lambda x, y: x * 1, lambda x, y: x * 1),
    "copy": (lambda x, y: x.contiguous() + y, lambda x, y: x + y),
    "choose": (lambda x, y: (x < y).where(x, y.detach()), lambda x, y: np.where(x < y, x, y)),
}
"""Programs' steps of two (4, 4) matrices, as tensors and as arrays."""
WRITES = ("assign", "assign part", "realize")

steps = st.lists(st.tuples(st.sampled_from((*PURE, *WRITES)), st.integers(0, 5), st.integers(0, 5)),
                 min_size=1, max_size=8)


def run_program(program, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a program leaves in each of its matrices, by tensors and by NumPy."""
    arrays = [array(seed + i) for i in range(3)]
    tensors = [Tensor(a.copy()).realize() for a in arrays]
    for name, first, second in program:
        i, j = first % len(tensors), second % len(tensors)
        if name == "realize":
            tensors[i].realize()
        elif name == "assign":
            tensors[i].realize()
            tensors[i].assign(tensors[j] + 1)
            arrays[i] = arrays[j] + 1
        elif name == "assign part":
            tensors[i] = tensors[i].clone().realize()
            tensors[i][1:3] = tensors[j][:2]
            value = arrays[j][:2].copy()
            arrays[i] = arrays[i].copy()
            arrays[i][1:3] = value
        else:
            on_tensors, on_arrays = PURE[name]
            tensors.append(on_tensors(tensors[i], tensors[j]))
            arrays.append(np.asarray(on_arrays(arrays[i], arrays[j])))
    tensors[0].realize(*tensors[1:])
    return [t.numpy() for t in tensors], arrays


@settings(max_examples=40, deadline=None)
@given(steps)
def test_a_program_run_again_on_other_data_gives_what_numpy_gives(program):
    before, realize.schedules = realize.schedules, ScheduleCache()
    try:
        for seed in (0, 25, 50, 75, 100):  # by all nodes, then by more and more calls
            for found, expected in zip(*run_program(program, seed), strict=True):
                np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
            if seed == 75:
                known = set(realize.schedules.templates)
        assert set(realize.schedules.templates) == known
    finally:
        realize.schedules = before


# --- what is one structure, and what is not -----------------------------------------------------------------


def test_the_same_expression_of_other_tensors_is_found_again(cache):
    for seed in range(3):
        a, b = array(seed), array(seed + 10)
        np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b, rtol=1e-5, atol=1e-5)
    assert len(cache.templates) == 2  # of its nodes, and of the one node that stands for them from then on


def test_one_tensor_used_twice_is_another_structure_than_two(cache):
    a, b = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 20.0]).realize()
    assert (a + b).tolist() == [11, 22]
    assert (a + a).tolist() == [2, 4]
    assert (b + a).tolist() == [11, 22]
    assert len(cache.templates) == 2


@pytest.mark.parametrize("first,second", [
    (lambda x: x + 0.0, lambda x: x + -0.0), (lambda x: x * 2.0, lambda x: x * 3.0),
    (lambda x: x.sum(0), lambda x: x.sum(1)), (lambda x: x[:2], lambda x: x[1:3] * 1),
    (lambda x: x.cast("int32"), lambda x: x.cast("int16")), (lambda x: x.max(1), lambda x: x.sum(1)),
])
def test_expressions_that_differ_in_one_argument_stay_apart(first, second):
    x = Tensor(array(0, 3, 3)).realize()
    assert Structure([first(x).uop]).key != Structure([second(x).uop]).key
    assert Structure([first(x).uop]).key == Structure([first(Tensor(array(1, 3, 3)).realize()).uop]).key


def test_sizes_and_dtypes_are_part_of_the_structure(cache):
    for data in ([1.0, 2.0], [1.0, 2.0, 3.0], [1, 2, 3]):
        assert (Tensor(data).realize() * 3).tolist() == [3 * d for d in data]
    assert len(cache.templates) == 3


def test_the_value_of_a_variable_is_not_part_of_the_structure(cache):
    x = Tensor([1, 2]).realize()
    found = []
    for value in (3, 5, 5):
        bound = UOp.variable("n", 1, 9).bind(value)
        assert (x * Tensor(bound)).tolist() == [value, 2 * value]
        found.append(len(cache.templates))
    assert found == [2] * 3  # of the node that stands for the product, and of its nodes


def test_two_variables_of_one_name_swap_their_values(cache):
    x = Tensor([1, 2]).realize()
    for first, second in ((3, 5), (7, 2)):
        one, two = (Tensor(UOp.variable("n", 1, 9).bind(v)) for v in (first, second))
        assert (x * one - two).tolist() == [first - second, 2 * first - second]


def test_variables_that_only_their_bounds_tell_apart_are_not_confused(cache):
    x = Tensor([1, 2]).realize()
    found = []
    for first, second in ((3, 3), (7, 2)):
        one = Tensor(UOp.variable("n", 1, 9).bind(first))
        two = Tensor(UOp.variable("n", 0, 8).bind(second))
        assert (x * one - two).tolist() == [first - second, 2 * first - second]
        found.append(len(cache.templates))
    assert found == [2, 2]  # of the node that stands for the difference, and of its nodes


def test_a_variable_has_another_value_in_each_step_on_several_devices(cache):
    devices = ("CPU:1", "CPU:2")
    x = Tensor([1, 2]).shard(devices, 0).realize()
    for value in (3, 5, 7):
        times = Tensor(UOp.variable("n", 1, 9).bind(value)).shard(devices)
        assert (x * times).tolist() == [value, 2 * value]


def test_random_numbers_differ_from_draw_to_draw(cache):
    draws = [Tensor.rand(64).numpy() for _ in range(3)]
    assert len(cache.templates) <= 2
    assert not np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[1], draws[2])


# --- memory and views ---------------------------------------------------------------------------------------


def test_a_result_that_is_a_view_shows_its_own_memory(cache):
    for value in (1, 2):
        x = Tensor(np.full((2, 3), value, np.int32)).realize()
        view = (x + 1).T
        view.realize()
        assert view.tolist() == [[value + 1] * 2] * 3


def test_a_write_comes_after_the_readers_of_the_old_value_each_time(cache):
    for start in (1, 10):
        x = Tensor([start, start + 1]).realize()
        old = x * 2
        x.assign(x.flip(0) + old)
        assert x.tolist() == [start + 1 + 2 * start, start + 2 * (start + 1)]
        assert old.tolist() == [2 * start, 2 * start + 2]


def test_swapping_two_tensors_works_again(cache):
    for start in (0, 5):
        a, b = Tensor([start]).realize(), Tensor([start + 1]).realize()
        old_a, old_b = a + 0, b + 0
        a.assign(old_b)
        b.assign(old_a)
        a.realize(b)
        assert a.tolist() == [start + 1] and b.tolist() == [start]


def test_overwriting_the_same_memory_many_times(cache):
    x = Tensor([0]).realize()
    for step in range(5):
        x.assign(x + 1).realize()
        assert x.item() == step + 1
    assert len(cache.templates) == 1


def test_a_constant_kept_in_memory_is_found_as_a_constant_and_as_memory(cache):
    for value in (2.0, 2.0):
        filled = Tensor.full((3,), value).contiguous().realize()
        assert (filled * 2).tolist() == [4, 4, 4]
        filled.assign(filled + 1).realize()
        assert filled.tolist() == [3, 3, 3]
        assert (Tensor.full((3,), value).contiguous() * 2).tolist() == [4, 4, 4]


def test_templates_keep_no_memory(cache):
    gc.collect()
    before = GlobalCounters.mem_used
    x = Tensor(array(0, 64, 64)).realize()
    y = (x @ x).softmax().realize()
    assert GlobalCounters.mem_used > before
    del x, y
    gc.collect()
    assert GlobalCounters.mem_used == before and cache.templates


def test_an_error_midway_leaves_the_template_usable(cache, monkeypatch):
    x = Tensor([1.0, 2.0]).realize()
    assert (x * 3).tolist() == [3, 6]
    with monkeypatch.context() as patch:
        patch.setattr(CPUProgram, "__call__", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        y = x * 3
        with pytest.raises(KeyboardInterrupt):
            y.realize()
    assert y.tolist() == [3, 6]


def test_gradients_do_not_put_their_rules_into_the_key(cache):
    x = Tensor(array(0, 1, 2, 6, 6), requires_grad=True).realize()
    w = Tensor(array(1, 2, 2, 3, 3), requires_grad=True).realize()
    for _ in range(3):
        x.grad = w.grad = None
        x.conv2d(w).square().sum().backward()
        assert w.grad is not None
        w.grad.realize()
    assert len(cache.templates) == 2  # of all nodes, then of the calls


# --- the bound ----------------------------------------------------------------------------------------------


def test_the_template_used_longest_ago_goes_first():
    cache = ScheduleCache(limit=4 * (TEMPLATE_FIELDS + STEP_FIELDS + 15))
    x = Tensor([1.0, 2.0]).realize()
    makers = [lambda: x + 1, lambda: x.exp2(), lambda: x.sqrt(), lambda: x.exp2(), lambda: x * 5, lambda: -x]
    for make in makers:
        cache.schedule([make().uop])
        assert cache.size <= cache.limit
        assert cache.size == sum(fields_of(template, key) for key, template in cache.templates.items())
    kept = set(cache.templates)
    assert Structure([(-x).uop]).key in kept and Structure([(x + 1).uop]).key not in kept


def test_a_structure_larger_than_the_bound_is_scheduled_and_not_kept():
    cache = ScheduleCache(limit=3)
    x = Tensor([1.0, 2.0]).realize()
    assert len(cache.schedule([(x + 1).uop]).items) == 1 and not cache.templates and cache.size == 0


def test_two_threads_schedule_at_once(cache):
    def work(seed):
        for i in range(20):
            a = array(seed * 100 + i)
            np.testing.assert_allclose((Tensor(a) * 2 + 1).numpy(), a * 2 + 1, rtol=1e-6)

    in_threads(work)


def test_conditions_on_numbers_in_other_memory_have_the_same_structure() -> None:
    keys = set()
    for _ in range(8):
        a, b = Tensor([1.0]).realize(), Tensor([2.0]).realize()
        keys.add(Structure([((a.sum() > 0) & (b.square().sum() > 0)).uop]).key)
    assert len(keys) == 1


# --- repeated numbers ---------------------------------------------------------------------------------------


def test_structures_tell_repeated_numbers_apart_by_value_shape_and_dtype():
    x = Tensor(array(1), requires_grad=False).realize()
    values = [x * 2, x * 3, x * 0.0, x * -0.0, x * float("nan"), x[:2] * 2, x.cast("int32") * 2]
    keys = [Structure([v.uop]).key for v in values]
    assert len(set(keys)) == len(keys)
    assert keys == [Structure([v.uop]).key for v in values]


def test_a_repeated_number_that_is_in_memory_is_read_where_it_is_asked_for(cache):
    x = Tensor(array(2), requires_grad=False).realize()
    number = Tensor.full((N, N), 3.0, requires_grad=False)
    for _ in range(2):
        np.testing.assert_array_equal((x * number).numpy(), array(2) * 3)
        number.realize()
        np.testing.assert_array_equal((x + Tensor.full((N, N), 3.0)).numpy(), array(2) + 3)
        number.assign(number + 1)
        np.testing.assert_array_equal((x * number).numpy(), array(2) * 4)
        number.assign(number - 1)
