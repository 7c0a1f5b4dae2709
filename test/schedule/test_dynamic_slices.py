"""Dynamic slices of memory: one schedule and one set of kernels serve every start, with NumPy's results."""
import numpy as np
import pytest
from arrays import normal
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad import Context, Tensor, TinyJit, Variable, dtypes
from tinygrad.codegen import kernel_cache
from tinygrad.engine import realize
from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.sizes import Size
from tinygrad.schedule import persistent_cache
from tinygrad.schedule.cache import ScheduleCache
from tinygrad.schedule.persistent_cache import PersistentSchedules
from tinygrad.store import DiskStore


@pytest.fixture
def cache(monkeypatch):
    """An empty cache, used by everything that the test computes."""
    fresh = ScheduleCache()
    monkeypatch.setattr(realize, "schedules", fresh)
    return fresh


def asts(result: Tensor) -> set[object]:
    return {item.ast for item in result.schedule()}


def test_batches_cut_from_a_data_set_share_one_schedule(cache):
    data, weight = normal(40, 6), normal(6, 3, seed=1)
    held, matrix = Tensor(data), Tensor(weight).realize()
    found = []
    for begin in range(0, 40, 8):
        batch = held[begin:begin + 8]
        np.testing.assert_allclose((batch @ matrix).relu().numpy(),
                                   np.maximum(data[begin:begin + 8] @ weight, 0), rtol=1e-5, atol=1e-6)
        found.append(len(cache.templates))
    assert found == [2] * 5  # of the node that stands for all, and of these


@pytest.mark.parametrize("cut", [
    lambda x, i: x[i], lambda x, i: x[:, i], lambda x, i: x[i:i + 2, i], lambda x, i: x[i, 2:4],
    lambda x, i: x.T[i], lambda x, i: x.reshape(4, 2, 6)[i % 4], lambda x, i: x[i:i + 3][1],
])
def test_rows_columns_and_parts_of_parts_share_kernels(cut):
    data = normal(8, 6)
    held = Tensor(data).realize()
    results = [cut(held, i) * 2 + 1 for i in range(5)]
    assert len(set().union(*map(asts, results))) == 1
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), cut(data, i) * 2 + 1, rtol=1e-6)


def test_a_graph_found_again_is_only_walked(cache, monkeypatch):
    data = normal(12, 4)
    held, weight = Tensor(data).realize(), Tensor(normal(4, seed=1)).realize()
    for begin in (0, 3, 8):
        np.testing.assert_allclose((held[begin:begin + 4] @ weight).numpy(),
                                   data[begin:begin + 4] @ normal(4, seed=1), rtol=1e-5, atol=1e-6)
        monkeypatch.setattr("tinygrad.schedule.cache.create_schedule", lambda _: pytest.fail("was rebuilt"))


@pytest.mark.parametrize("places", [
    [(2, 2), (2, 5), (4, 4), (0, 7)], [(2, 5), (2, 2), (5, 2)],
])
def test_crops_that_begin_together_by_chance_do_not_stay_together(cache, places):
    one, two = normal(10, 2), normal(10, 2, seed=1)
    x, y = Tensor(one).realize(), Tensor(two).realize()
    for i, j in places:
        np.testing.assert_array_equal((x[i:i + 3] - y[j:j + 3]).numpy(), one[i:i + 3] - two[j:j + 3])
        np.testing.assert_array_equal((x[i:i + 3] - x[j:j + 3] * 2).numpy(),
                                      one[i:i + 3] - one[j:j + 3] * 2)
    assert len(cache.templates) <= 2 + 2


def test_copies_of_parts_at_several_places(cache):
    data = normal(12)
    held = Tensor(data).realize()
    for begin in (0, 4, 8):
        part = held[begin:begin + 4]
        moved = part.to("PYTHON") + 1
        both = (part * 2).realize(moved)
        np.testing.assert_array_equal(moved.numpy(), data[begin:begin + 4] + 1)
        np.testing.assert_array_equal(both.numpy(), data[begin:begin + 4] * 2)


def test_parts_of_what_is_written_at_changing_places_show_it(cache):
    memory = np.zeros((9, 4), np.float32)
    held = Tensor(memory.copy()).realize()
    for begin in (0, 6, 3):
        part = held[begin:begin + 3]
        part.assign(part + normal(3, 4, seed=begin))
        shown = part.detach().T[1:3]
        shown.realize(part)
        memory[begin:begin + 3] += normal(3, 4, seed=begin)
        np.testing.assert_array_equal(shown.numpy(), memory[begin:begin + 3].T[1:3])
        held.assign(held * 2).realize()
        memory *= 2
        np.testing.assert_array_equal(shown.numpy(), memory[begin:begin + 3].T[1:3])


def test_schedules_of_crops_on_disk_serve_every_place(tmp_path, monkeypatch):
    folder = DiskStore(tmp_path)
    monkeypatch.setattr(kernel_cache, "store_of", lambda kind: folder)
    monkeypatch.setattr(persistent_cache, "store_of", lambda kind, limit: folder)
    data = normal(10, 3)
    held = Tensor(data).realize()
    with Context(CHECK=0, CACHELEVEL=2):
        for begin in (1, 5, 0):
            monkeypatch.setattr(realize, "schedules", ScheduleCache(disk=PersistentSchedules(least_nodes=0)))
            part = held[begin:begin + 4].detach()
            part.assign(part + (held[begin + 2] * 3).contiguous()).realize()
            data[begin:begin + 4] += data[begin + 2] * 3
            np.testing.assert_array_equal(held.numpy(), data)
            monkeypatch.setattr("tinygrad.schedule.cache.create_schedule", lambda _: pytest.fail("made"))


def test_a_border_cut_off_keeps_its_place():
    held = Tensor(normal(8)).realize()
    assert asts(held[1:] * 2).isdisjoint(asts(held[:-1] * 2))


def test_crops_of_several_tensors_begin_each_at_its_own_place(cache):
    one, two = normal(20), normal(20, seed=1)
    x, y = Tensor(one).realize(), Tensor(two).realize()
    for i, j in ((0, 4), (4, 0), (3, 3), (10, 2)):
        np.testing.assert_allclose((x[i:i + 4] - y[j:j + 4] * x[j:j + 4]).numpy(),
                                   one[i:i + 4] - two[j:j + 4] * one[j:j + 4], rtol=1e-6, atol=1e-6)


def test_writes_at_changing_places_share_one_schedule(cache):
    memory = np.zeros((10, 3), np.float32)
    held = Tensor(memory.copy()).realize()
    for i in (0, 7, 3, 9):
        new = normal(3, seed=i)
        held[i].assign(Tensor(new).realize() + held[i]).realize()
        memory[i] += new
    np.testing.assert_array_equal(held.numpy(), memory)
    assert len(cache.templates) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_a_write_that_reads_what_it_overwrites_elsewhere(target, source, other):
    memory = normal(8, 2)
    held = Tensor(memory.copy()).realize()
    before = held[other:other + 2] * 2
    held[target:target + 2].assign(held[source:source + 2] + 1)
    after = held[other:other + 2] * 3
    wanted_before = memory[other:other + 2] * 2
    memory[target:target + 2] = memory[source:source + 2] + 1
    np.testing.assert_array_equal(after.numpy(), memory[other:other + 2] * 3)
    np.testing.assert_array_equal(before.numpy(), wanted_before)
    np.testing.assert_array_equal(held.numpy(), memory)


def test_a_view_of_a_computed_tensor_stays_a_view_of_it():
    held = (Tensor(normal(10)) + 1).realize()
    part = held[2:5].realize()
    held.assign(held * 0).realize()
    assert part.tolist() == [0, 0, 0]


def test_gradients_flow_through_crops_at_each_place(cache):
    data = normal(12, 4)
    held, weight = Tensor(data).realize(), Tensor(normal(4, seed=2)).realize()
    for begin in (0, 4, 8):
        weight.requires_grad, weight.grad = True, None
        (held[begin:begin + 4] * weight).sum().backward()
        np.testing.assert_allclose(weight.grad.numpy(), data[begin:begin + 4].sum(0), rtol=1e-5, atol=1e-6)


def test_a_jitted_function_keeps_the_places_that_it_was_traced_with():
    data = normal(12)
    held = Tensor(data).realize()

    @TinyJit
    def moved(x: Tensor) -> Tensor:
        return (x + held[4:7] - held[8:11]).realize()

    for seed in range(3):
        x = normal(3, seed=seed)
        np.testing.assert_allclose(moved(Tensor(x)).numpy(), x + data[4:7] - data[8:11], rtol=1e-6, atol=1e-6)


def test_parts_of_a_file_are_read_at_their_places(tmp_path):
    data = normal(64)
    path = tmp_path / "numbers"
    path.write_bytes(data.tobytes())
    held = Tensor.empty(64, device=f"DISK:{path}", dtype=dtypes.float32)
    for begin in (0, 8, 40):
        np.testing.assert_allclose((held[begin:begin + 8].to("CPU") * 2).numpy(), data[begin:begin + 8] * 2)


# --- slices of what the schedule itself computes --------------------------------------------------------


def recurrence(inputs: Tensor, into: Tensor, back: Tensor) -> Tensor:
    """The last state of a recurrent network whose inputs are multiplied all at once."""
    given, state = inputs @ into, Tensor.zeros(inputs.shape[1], back.shape[0])
    for t in range(inputs.shape[0]):
        state = (given[t] + state @ back).tanh()
    return state


def recurrence_of_arrays(inputs: np.ndarray, into: np.ndarray, back: np.ndarray) -> np.ndarray:
    state = np.zeros((inputs.shape[1], back.shape[0]))
    for step in inputs.astype(np.float64):
        state = np.tanh(step @ into + state @ back)
    return state


def test_steps_of_a_recurrence_share_a_kernel(cache):
    into, back = normal(5, 8, seed=1), normal(8, 8, seed=2)
    for seed in (3, 4):
        x = normal(9, 4, 5, seed=seed)
        result = recurrence(Tensor(x), Tensor(into), Tensor(back))
        items = result.schedule()
        assert len(items) >= 9 and len({i.ast for i in items}) <= 3
        np.testing.assert_allclose(result.numpy(), recurrence_of_arrays(x, into, back), atol=1e-4)


def test_a_jitted_recurrence_takes_its_steps_in_order():
    into, back = normal(5, 8, seed=1), normal(8, 8, seed=2)
    step = TinyJit(lambda x: recurrence(x, Tensor(into), Tensor(back)).realize())
    for seed in range(4):
        x = normal(9, 4, 5, seed=seed)
        np.testing.assert_allclose(step(Tensor(x).realize()).numpy(), recurrence_of_arrays(x, into, back),
                                   atol=1e-4)


def test_steps_beside_crops_of_memory_at_other_places(cache):
    """The place in memory changes from call to call, that of a step does not: equal numbers, two things."""
    memory, weight = normal(12, 3, 4), normal(4, 4, seed=1)
    held = Tensor(memory).realize()
    for start in (0, 1, 5):
        stored = (held @ Tensor(weight)).contiguous()
        result = sum((stored[t] * held[t + start]).contiguous() for t in range(3))
        expected = sum((memory[t] @ weight) * memory[t + start] for t in range(3))
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


def test_parts_that_one_kernel_reads_together_keep_their_places():
    parts = (Tensor(normal(6, 5)) @ Tensor(normal(5, 8, seed=1))).contiguous()
    for result in (parts[0] * parts[1], parts[:2] + parts[2:4] + parts[4:], parts[:, :4] @ parts[:, 4:].T):
        assert not any(item.variables for item in result.schedule())


def test_crops_that_the_schedule_moves_are_no_sizes_that_everybody_has_to_look_for(monkeypatch):
    monkeypatch.setattr(realize, "schedules", ScheduleCache())
    monkeypatch.setattr(Size, "exists", False)
    data = Tensor(np.arange(12, dtype=np.float32).reshape(6, 2)).realize()
    for i in range(3):
        assert (data[i:i + 1] * 2).tolist() == [[4 * i, 4 * i + 2]] and not Size.exists
    assert data[:Variable("rows", 1, 6).bind(4)].sum().item() == 28 and Size.exists


def test_a_slice_inside_an_operation_that_begins_like_one_outside_stays_where_it_is(cache):
    gated = memoised(lambda x: x[:4] * x[4:].sigmoid())
    one, two = normal(8, 3), normal(8, 3, seed=1)
    x, y = Tensor(one).realize(), Tensor(two).realize()
    gated(x)
    expected = one[:4] / (1 + np.exp(-one[4:]))
    for begin in (0, 2, 4, 1, 0):
        np.testing.assert_allclose((gated(x) + y[begin:begin + 4]).numpy(), expected + two[begin:begin + 4],
                                   rtol=1e-5, atol=1e-6)
