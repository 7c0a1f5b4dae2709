"""Short work runs at once, in the thread that asks: what it gives, and when it is left to the queues."""
from __future__ import annotations

import threading

import numpy as np
import pytest

from tinygrad import Context, Device, GlobalCounters, Tensor, TinyJit
from tinygrad.engine import capture, immediate, replay
from tinygrad.jit.repeat import ShortCommands


@pytest.fixture(autouse=True)
def kernels_for_each_size():
    """Whatever sizes other tests computed."""
    with Context(DYNAMIC_SHAPES=0):
        yield


@pytest.fixture
def runs(monkeypatch):
    """What `immediate.run` answered, call after call."""
    answers = []
    original = immediate.run

    def run(*arguments):
        answers.append(original(*arguments))
        return answers[-1]

    monkeypatch.setattr(immediate, "run", run)
    return answers


def number(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return Tensor(values, requires_grad=False).realize()


def again(make):
    """The values of what `make` gives, when it was scheduled before."""
    make().realize()
    return make().realize().numpy()


def test_a_short_operation_runs_at_once(runs):
    x, y = number(5, 7), number(5, 7, seed=1)
    np.testing.assert_array_equal(again(lambda: x + y), x.numpy() + y.numpy())
    assert runs == [False, True]


def test_several_kernels_with_memory_between_them(runs):
    x = number(300, 40)

    def centred():
        total = x.sum(0).contiguous()
        return ((x - total).contiguous() * 2).sum(1)

    expected = ((x.numpy() - x.numpy().sum(0)) * 2).sum(1)
    np.testing.assert_allclose(again(centred), expected, rtol=1e-4, atol=1e-3)
    assert runs[-1] is True


def test_two_values_in_one_schedule(runs):
    for seed in range(2):
        x = number(6, seed=seed)
        a, b = x + 1, x * 2
        a.realize(b)
    assert runs == [False, True]
    np.testing.assert_array_equal(a.numpy(), x.numpy() + 1)
    np.testing.assert_array_equal(b.numpy(), x.numpy() * 2)


@pytest.mark.parametrize("make", [lambda x: x * 2, lambda x: x.sum(0), lambda x: x.T[1:] + 1,
                                  lambda x: x - x.max(1, keepdim=True), lambda x: (x + 1).reshape(35)],
                         ids=["parts", "whole", "moved", "rows", "joined"])
def test_values_on_several_devices_of_the_host_run_at_once(make, runs):
    """They are in one memory; each part took the way of long schedules, three times as long."""
    for seed in range(3):
        x = number(5, 7, seed=seed)
        spread = x.shard(("CPU", "CPU:1"), 0).realize()
        runs.clear()
        found = make(spread).realize()
        assert runs == [seed > 0]
        np.testing.assert_allclose((found * 1).numpy(), make(x).numpy(), rtol=1e-6, atol=1e-6)
        assert found.device == spread.device


def test_writes_into_values_on_several_devices_of_the_host_run_at_once(runs):
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = Tensor(a).shard(("CPU", "CPU:1"), 0).realize()
    before, wanted = x * 1, a.copy()
    for step in range(3):
        runs.clear()
        x.assign(x * 2 + 1).realize()
        wanted = wanted * 2 + 1
        assert runs[-1] is (step > 1)  # the first computes `before` too
    np.testing.assert_array_equal(x.numpy(), wanted)
    np.testing.assert_array_equal(before.numpy(), a)


def test_values_of_variables_are_those_of_the_call(runs):
    x = number(64)
    for start in (3, 17, 30):
        np.testing.assert_array_equal((x[start:start + 8] + 1).numpy(), x.numpy()[start:start + 8] + 1)
    assert runs == [False, True, True]


def test_random_numbers_advance():
    Tensor.manual_seed(5)
    first = [Tensor.rand(4).numpy() for _ in range(3)]
    Tensor.manual_seed(5)
    second = [Tensor.rand(4).numpy() for _ in range(3)]
    np.testing.assert_array_equal(first, second)
    assert len({values.tobytes() for values in first}) == 3


def test_writes_into_memory_that_tensors_show_run_at_once_too(runs):
    x, rows = number(4), number(3, 4)
    expected, expected_rows = x.numpy(), rows.numpy()
    shown = np.from_dlpack(x)
    for i in range(3):
        x.assign(x + 1).realize()
        rows[i] = x * 2
        expected = expected + 1
        expected_rows[i] = expected * 2
        np.testing.assert_array_equal(x.numpy(), expected)
        np.testing.assert_array_equal(shown, expected)
    np.testing.assert_array_equal(rows.numpy(), expected_rows)
    assert runs[-4:] == [True, True, True, True]


def test_a_write_that_fails_before_it_begins_is_still_to_be_done(runs, monkeypatch):
    x, y = number(4), number(4, seed=1)
    expected = x.numpy() + 2
    (x.assign(x + 1)).realize()
    x.assign(x + 1)
    with monkeypatch.context() as patch:
        patch.setattr(immediate, "run_calls", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            x.realize()
    (y + 1).realize()
    np.testing.assert_array_equal(x.numpy(), expected)


def test_long_work_is_left_to_the_queues(runs):
    x = number(1500, 1500)
    again(lambda: x @ x)
    assert runs == [False, False]


def test_what_waits_for_a_command_in_flight_is_left_to_the_queues(runs):
    x = number(8)
    again(lambda: x + 1)
    device = Device["CPU"]
    gate = threading.Event()
    device.copies.call(gate.wait)
    x.uop.base.buffer.add_use(device.copies.signal(), True)
    y = x + 1
    y.realize()
    assert runs[-1] is False
    gate.set()
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)


def test_kernels_are_counted():
    x = number(8)
    again(lambda: x + 1)
    GlobalCounters.reset()
    (x + 1).realize()
    assert GlobalCounters.kernel_count == 1
    assert GlobalCounters.global_mem == 64
    assert GlobalCounters.global_ops == 8


def test_memory_is_given_back():
    x = number(8)
    again(lambda: x + 1)
    before = GlobalCounters.mem_used
    y = (x + 1).realize()
    assert GlobalCounters.mem_used == before + 32
    del y
    assert GlobalCounters.mem_used == before


def test_a_trace_has_what_would_run_at_once():
    x = number(8)
    again(lambda: x + 1)
    jitted = TinyJit(lambda t: (t + 1).realize())
    for seed in range(3):
        t = number(8, seed=seed)
        np.testing.assert_array_equal(jitted(t).numpy(), t.numpy() + 1)


def test_a_search_finds_its_own_plans(runs):
    x = number(8)
    again(lambda: x + 1)
    with Context(BEAM=1):
        (x + 1).realize()
    assert runs[-1] is False


def test_a_failing_kernel_leaves_the_value_lazy(monkeypatch):
    from tinygrad.runtime.cpu_pool import CPUProgram

    x = number(8)
    again(lambda: x + 1)
    y = x + 1
    with monkeypatch.context() as patch:
        patch.setattr(CPUProgram, "__call__", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            y.realize()
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)
    assert capture.Capture.current() is None


def test_a_replay_that_only_makes_results_runs_at_once(monkeypatch):
    answers = []

    def watched(original):
        def run(*arguments):
            answers.append(original(*arguments))
            return answers[-1]
        return run

    monkeypatch.setattr(replay.Replay, "run_at_once", watched(replay.Replay.run_at_once))
    monkeypatch.setattr(ShortCommands, "run", watched(ShortCommands.run))
    w, state = number(5, 3, seed=9), number(5)

    @TinyJit
    def results(x):
        return {"product": x @ w, "sum": (x + 1).sum(1)}

    @TinyJit
    def writing(x):
        state.assign(state + x.sum())
        return state + 1

    for seed in range(4):
        x = number(4, 5, seed=seed)
        found = results(x)
        np.testing.assert_allclose(found["product"].numpy(), x.numpy() @ w.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["sum"].numpy(), (x.numpy() + 1).sum(1), rtol=1e-5)
        before = state.numpy()
        np.testing.assert_allclose(writing(x).numpy(), before + x.numpy().sum() + 1, rtol=1e-5)
    assert answers == [True, True, True]
