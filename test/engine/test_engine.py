"""Realizing: interrupts and errors leave tensors as they were, nothing leaks, threads and forks work."""
import gc
import os
import signal
import sys
import threading

import numpy as np
import pytest
from threads import in_threads

from tinygrad import Context, Device, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinygrad.codegen import compile as compiling
from tinygrad.engine import realize
from tinygrad.graph import uop as graph_nodes
from tinygrad.graph.storage import Overwriting


@pytest.fixture
def interrupt_kernel(monkeypatch):
    """A function that makes the kernel with this number, from the next on, raise when it has run."""
    real, left = realize.count, [-1]

    def count(*args):
        real(*args)
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt

    monkeypatch.setattr(realize, "count", count)
    return lambda number: left.__setitem__(0, number)


# --- interrupts and errors --------------------------------------------------------------------------


def test_an_interrupt_between_kernels_leaves_the_rest_lazy(interrupt_kernel):
    x = Tensor(np.arange(6, dtype=np.float32)).realize()
    first = (x + 1).contiguous()
    second = first.sum() * first
    interrupt_kernel(0)
    with pytest.raises(KeyboardInterrupt):
        second.contiguous().realize(first)
    assert second.tolist() == [21.0 * (i + 1) for i in range(6)] and first.tolist() == [1, 2, 3, 4, 5, 6]


def test_an_interrupted_assignment_is_done_once(interrupt_kernel):
    for number in range(3):
        a, b = (Tensor(np.full(5, v, np.float32)).realize() for v in (1, 10))
        a.assign(a + 1)
        b.assign(b * 2 + a.sum())
        interrupt_kernel(number)
        try:
            b.realize(a)
        except KeyboardInterrupt:
            b.realize(a)
        interrupt_kernel(-1)
        assert a.tolist() == [2] * 5 and b.tolist() == [30] * 5
        a.assign(a + 1)
        assert a.tolist() == [3] * 5


@pytest.mark.parametrize("where", ["_note_realized", "_stand_for"])
@pytest.mark.parametrize("number", range(3))
def test_an_interrupt_while_results_are_noted_comes_after_that(monkeypatch, where, number):
    a, b = (Tensor(np.full(5, v, np.float32), requires_grad=False).realize() for v in (1, 10))
    lazy = b + 1
    view = lazy.reshape(1, 5)
    a.assign(a + 1)
    b.assign(b * 2 + a.sum())
    real, left = getattr(Tensor, where), [number]

    def interrupted(self, *args):
        real(self, *args)
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, where, interrupted)
        try:
            b.realize(a, lazy)
        except KeyboardInterrupt:
            assert left[0] < 0
    kernels = GlobalCounters.kernel_count
    b.realize(a, lazy, view)
    assert GlobalCounters.kernel_count == kernels
    assert (a.tolist(), b.tolist(), view.tolist()) == ([2] * 5, [30] * 5, [[11] * 5])
    a.assign(a + 1)
    assert a.tolist() == [3] * 5


def test_an_interrupt_while_a_write_to_several_devices_is_noted_counts_it_once(monkeypatch):
    x = Tensor(np.arange(4, dtype=np.float32), requires_grad=False).shard(("CPU", "CPU:1"), 0).realize()
    x.assign(x + 1)
    real, left = Overwriting.done, [1]

    def interrupted(self):
        real(self)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Overwriting, "done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        x.realize()
    assert x.tolist() == [1, 2, 3, 4] and (x + 1).tolist() == [2, 3, 4, 5]
    x.assign(x + 1)
    assert x.tolist() == [2, 3, 4, 5]


def test_an_assignment_on_several_devices_that_ran_before_an_interrupt_is_not_done_again(interrupt_kernel):
    devices = ("CPU", "CPU:1")
    a = Tensor(np.ones(6, np.float32), requires_grad=False).shard_(devices, 0).realize()
    a.assign(a + 1)
    interrupt_kernel(1)  # the kernel of the second device
    with pytest.raises(KeyboardInterrupt):
        a.realize()
    assert a.tolist() == [2] * 6
    a.assign(a + 1)
    assert a.tolist() == [3] * 6


@pytest.mark.parametrize("number", range(2))
def test_an_interrupt_between_the_devices_of_a_write_lets_it_end(interrupt_kernel, monkeypatch, number):
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())
    a = Tensor(np.arange(6, dtype=np.float32), requires_grad=False).shard(("CPU:1", "CPU:2"), 0).realize()
    total = a.sum()
    a.assign(a + 1)
    interrupt_kernel(number + 2)  # after the sums of two parts
    with pytest.raises(KeyboardInterrupt):
        a.realize()
    assert total.item() == 15 and a.tolist() == [i + 1 for i in range(6)]
    a.assign(a * 2)
    assert a.tolist() == [2 * i + 2 for i in range(6)]


def test_memory_for_the_whole_schedule_is_there_before_anything_is_overwritten(monkeypatch):
    a, b = (Tensor(np.full(5, v, np.float32), requires_grad=False).realize() for v in (1, 10))
    a.assign(a + 1)
    later = (a.sum() * b).contiguous()
    real, full = realize.allocate, MemoryError("no more")

    def allocate(node):
        if node.storage.buffer is None:
            raise full
        return real(node)

    kernels = GlobalCounters.kernel_count
    with monkeypatch.context() as patch:
        patch.setattr(realize, "allocate", allocate)
        with pytest.raises(MemoryError, match="no more"):
            later.realize(a)
    assert GlobalCounters.kernel_count == kernels
    assert a.tolist() == [2] * 5 and later.tolist() == [100] * 5


def test_an_interrupted_replay_on_two_devices_comes_to_its_end(monkeypatch):
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())
    a = Tensor(np.arange(6, dtype=np.float32), requires_grad=False).shard(("CPU:1", "CPU:2"), 0).realize()

    @TinyJit
    def step():
        a.assign(a + 1)

    step()
    real, left = realize.Submission.kernels, [1]

    def kernels(*args):
        real(*args)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realize.Submission, "kernels", kernels)
        with pytest.raises(KeyboardInterrupt):
            step()
    assert left[0] < 0 and a.tolist() == [i + 2 for i in range(6)]
    step()
    assert a.tolist() == [i + 3 for i in range(6)]


def test_a_signal_during_a_long_kernel():
    x = Tensor.rand(600, 600).realize()
    y = (x @ x).sin().exp().sum()
    expected = np.exp(np.sin(x.numpy().astype(np.float64) @ x.numpy())).sum()
    for delay in (0.0005, 0.002, 0.01):
        signal.setitimer(signal.ITIMER_REAL, delay)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(3):
                (x @ (x + delay)).sin().exp().sum().realize()
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        np.testing.assert_allclose((y + 0).item(), expected, rtol=1e-3)


@pytest.mark.parametrize("where", ["apply_plan", "linear_program", "write_kernel", "load_kernel"])
def test_an_interrupt_while_compiling_leaves_no_half_made_kernel(monkeypatch, where):
    size = 37 + len(where)  # a kernel of its own
    y = Tensor(np.arange(size, dtype=np.float32)) * 3

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiling, where, interrupted)
        with Context(DYNAMIC_SHAPES=0), pytest.raises(KeyboardInterrupt):
            y.realize()
    assert y.tolist() == [3 * i for i in range(size)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_several_kernels_compile_leaves_all_values_lazy(monkeypatch, error):
    width = 2000 + len(error.__name__)  # kernels of its own for each error
    numbers = np.arange(5 * width, dtype=np.float32).reshape(5, width)
    x = Tensor(numbers).realize()
    y = (x.sum(0).contiguous() * 2).cumsum().contiguous() + 1
    seen = []
    compile_source = compiling.compile_source

    def interrupted(device, source):
        seen.append(source)
        if len(seen) == 2:
            raise error("planned")
        return compile_source(device, source)

    interval = sys.getswitchinterval()
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compile_source", interrupted)
        with pytest.raises(error, match="planned"):
            y.realize()
    assert sys.getswitchinterval() == interval and y.uop.realized is None
    np.testing.assert_allclose(y.numpy(), (numbers.sum(0, np.float64) * 2).cumsum() + 1, rtol=1e-4)


def test_equal_kernels_of_a_schedule_are_compiled_once(monkeypatch):
    seen = []
    compile_source = compiling.compile_source
    monkeypatch.setattr(compiling, "compile_source", lambda d, s: seen.append(s) or compile_source(d, s))
    tensors = [Tensor(np.full(4639, i, np.float32)).realize() for i in range(4)]
    results = [(t * 3 - 1).contiguous() for t in tensors] + [(t.sqrt() + 7).contiguous() for t in tensors]
    results[0].realize(*results[1:])
    assert len(seen) == len(set(seen)) == 2
    for i in range(4):
        assert results[i].numpy()[0] == 3 * i - 1
        np.testing.assert_allclose(results[i + 4].numpy()[0], np.sqrt(i) + 7, rtol=1e-6)


def test_an_error_in_scheduling_leaves_tensors_lazy(monkeypatch):
    t = Tensor([1.0, 2.0]).realize()
    old = t * 10
    t.assign(t + 1)

    def fail(*args):
        raise RuntimeError("planned")

    with monkeypatch.context() as patch:
        patch.setattr(realize.schedules, "structure_of", fail)
        with pytest.raises(RuntimeError, match="planned"):
            t.realize()
    assert t.tolist() == [2, 3] and old.tolist() == [10, 20]


@pytest.mark.usefixtures("on_cpu")
def test_an_interrupted_replay_leaves_the_jit_usable(monkeypatch):
    state = Tensor([0.0]).realize()

    @TinyJit
    def step(x):
        state.assign(state + x)
        return state + 0.5

    x = Tensor([1.0])
    step(x), step(x)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Device["CPU"].queue, "exec_list", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(x)
    assert step(x).item() == 3.5 and state.item() == 3


def test_a_result_that_folds_to_an_assigned_tensor_has_memory_of_its_own():
    t = Tensor([1.0, 2.0]).realize()
    t.assign(t + 1)
    same = (t * 1).realize()
    assert same.uop.realized is not None and same.uop.realized is not t.uop.realized
    t.assign(t + 1).realize()
    assert same.tolist() == [2, 3] and t.tolist() == [3, 4]


# --- memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
def test_training_steps_leave_memory_and_nodes_as_they_were(jit):
    Tensor.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.Linear(16, 2)]
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.01)

    @Tensor.train()
    def step(x, y):
        optimizer.zero_grad()
        scores = layers[1](layers[0](x).relu().dropout(0.1))
        loss = scores.sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss

    call = TinyJit(step) if jit else step
    rng = np.random.default_rng(0)
    counts = []
    for i in range(60):
        loss = call(Tensor(rng.standard_normal((4, 8), np.float32)), Tensor(rng.integers(0, 2, 4)))
        loss.item()
        if i in (20, 59):
            del loss
            gc.collect()
            counts.append((GlobalCounters.mem_used, len(graph_nodes._interned)))
    assert counts[0][0] == counts[1][0]
    assert counts[0][1] >= counts[1][1]  # a cache may have dropped what earlier tests left in it


def test_intermediates_of_a_trace_share_memory():
    @TinyJit
    def chain(x):
        for _ in range(20):
            x = (x + 1).realize()
        return x

    x = Tensor.zeros(1 << 16).contiguous().realize()
    chain(x)
    gc.collect()
    before = GlobalCounters.mem_used
    out = chain(x)
    assert out.numpy().tolist() == [20.0] * (1 << 16)
    del out
    gc.collect()
    assert GlobalCounters.mem_used - before <= 2 * 4 * (1 << 16)


# --- threads and processes --------------------------------------------------------------------------


def test_threads_compute_at_once():
    def work(i):
        for n in range(25):
            x = Tensor(np.full((4, 4), i + n, np.float32))
            y = ((x @ x).relu() + x.sum(0)).contiguous()
            assert y.tolist() == [[4.0 * (i + n) ** 2 + 4 * (i + n)] * 4] * 4

    in_threads(work)


def test_equal_nodes_made_by_threads_are_one():
    found, together = [[], [], []], threading.Barrier(3)

    def work(i):
        together.wait()
        for n in range(5000):
            found[i].append(graph_nodes.UOp.const(n + 0.25, graph_nodes.dtypes.float64))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(work)
    finally:
        sys.setswitchinterval(interval)
    assert all(a is b is c for a, b, c in zip(*found))


def test_threads_replay_one_trace():
    @TinyJit
    def work(x):
        return ((x * 2).realize() + 1).sum()

    def run(i):
        for n in range(40):
            assert work(Tensor([float(i), float(n)])).item() == 2 * (i + n) + 2

    in_threads(run)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_and_replays():
    @TinyJit
    def double(x):
        return (x @ x).softmax() * 2

    x = Tensor(np.eye(64, dtype=np.float32))
    expected = double(x).numpy()
    double(x)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        fine = np.allclose(double(x).numpy(), expected) and (x.sum() + 3).item() == 67
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_allclose(double(x).numpy(), expected)


# --- what DEBUG prints ------------------------------------------------------------------------------


def test_a_plan_is_printed_when_a_kernel_is_compiled_and_not_again_when_it_runs(capsys):
    x = Tensor(np.ones(48611, np.float32)).realize()
    with Context(DEBUG=3):
        (x * 3 + 1).realize()
        compiled, *_numbers, first_run = capsys.readouterr().out.splitlines()
        (x * 3 + 1).realize()
        (second_run,) = capsys.readouterr().out.splitlines()
    name, plan = compiled.split(": ")
    assert name in first_run and name in second_run and "VECTOR" in plan
    assert plan not in first_run and plan not in second_run


@pytest.mark.parametrize("make", [
    lambda: Tensor(0), lambda: Tensor.arange(3) * 2, lambda: Tensor.full((3,), 2),
    lambda: Tensor.zeros(3, dtype=dtypes.int32).contiguous()])
@pytest.mark.parametrize("second_too", [False, True])
def test_equal_expressions_are_two_tensors(make, second_too):
    """They are one node of the graph, computed once; writing into one must not change the other."""
    first, second = make(), make()
    before = first.realize().tolist()
    if second_too:
        second.realize()
    second.assign(second + 5).realize()
    assert first.tolist() == before
    assert second.tolist() == (make() + 5).tolist()
    first += 1
    assert second.tolist() == (make() + 5).tolist()


def test_a_number_in_memory_is_not_the_memory_of_those_that_repeat_it():
    number, row = Tensor(0).realize(), Tensor.zeros(3, dtype=dtypes.int32).realize()
    for make in (lambda: Tensor.zeros(3, dtype=dtypes.int32),
                 lambda: Tensor.zeros(5, dtype=dtypes.int32)[2:]):
        x = make()
        x[0] = 5
        assert x.tolist() == [5, 0, 0]
        y = make().realize()
        y[1] = 7
        assert y.tolist() == [0, 7, 0]
    assert number.item() == 0 and row.tolist() == [0, 0, 0]
