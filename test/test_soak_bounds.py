"""Caches with a bound keep to it, and errors and pickles leave nothing behind, however often they come.

Takes long: `pytest -m slow test/test_soak_bounds.py`.
"""
import gc
import pickle
import warnings
from collections import OrderedDict

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor, TinyJit
from tinygrad.codegen import compile as compiling
from tinygrad.device import Device
from tinygrad.graph import uop as graph_nodes
from tinygrad.helpers import Context
from tinygrad.jit.jit import MAX_TRACES
from tinygrad.runtime import llvm
from tinygrad.schedule.persistent_cache import schedules
from tinygrad.store import DiskStore

pytestmark = pytest.mark.slow


def vector(*values):
    return Tensor(np.array(values, np.float32)).realize()


def state():
    """Bytes used, live graph nodes, live objects."""
    gc.collect()
    return GlobalCounters.mem_used, len(graph_nodes._interned), len(gc.get_objects())


def assert_nothing_piles_up(work, warm=20, count=400):
    for i in range(warm):
        work(i)
    used, nodes, objects = state()
    for i in range(count):
        work(warm + i)
    now = state()
    assert now[0] == used and now[1] <= nodes + 10 and now[2] <= objects + 200, ((used, nodes, objects), now)


class Planned(Exception):
    pass


@pytest.mark.parametrize("after", ["an assignment", "kernels", "a gradient", "a draw"])
def test_exceptions_while_tracing_leave_nothing_behind(after):
    total, weight = vector(1, 2), Tensor([1.0, 2.0], requires_grad=True).realize()

    def step(x):
        if after == "an assignment":
            total.assign(x * 0)
        elif after == "kernels":
            (x * 3).realize()
        elif after == "a gradient":
            weight.grad = None
            (weight * x).sum().backward()
        else:
            (x + Tensor.rand(2)).realize()
        raise Planned

    jitted = TinyJit(step)

    def work(i):
        with pytest.raises(Planned):
            jitted(vector(i, 1))

    assert_nothing_piles_up(work)
    assert not jitted.traces


def test_reading_while_tracing_again_and_again_leaves_nothing_behind():
    jitted = TinyJit(lambda x: (x * 2).numpy())

    def work(i):
        with pytest.raises(RuntimeError, match="a value was read"):
            jitted(vector(i, 1))

    assert_nothing_piles_up(work)


def test_failing_allocations_in_replays_leave_nothing_behind(monkeypatch):
    total = vector(0, 0)
    jitted = TinyJit(lambda x: (total.assign(total + x), (x * 2).contiguous())[1])
    for _ in range(3):
        jitted(vector(1, 1))
    allocator = Device["CPU"].allocator

    def refuse(owner, size, idle=False):
        raise MemoryError("planned")

    def work(i):
        x = vector(i, 1)
        with monkeypatch.context() as patch:
            patch.setattr(allocator, "allocate", refuse)
            with pytest.raises(MemoryError, match="planned"):
                jitted(x)
        assert jitted(x).tolist() == [2 * i, 2]

    assert_nothing_piles_up(work)


def test_pickling_again_and_again_leaves_nothing_behind():
    total = vector(0)
    jitted = TinyJit(lambda x: (total.assign(total + x), x * 2)[1])
    jitted(vector(1)), jitted(vector(1))

    def work(i):
        loaded, own = pickle.loads(pickle.dumps((jitted, total)))
        assert loaded(vector(i)).item() == 2 * i and own.item() == 2 + i

    assert_nothing_piles_up(work, count=200)


def test_more_kinds_of_calls_than_a_function_keeps_leave_memory_where_it_was():
    jitted = TinyJit(lambda x, by: ((x * by).contiguous().sum() + x).contiguous())
    x = vector(1, 2, 3)

    def work(i):
        assert jitted(x, i).tolist() == [6 * i + 1, 6 * i + 2, 6 * i + 3] and len(jitted.traces) <= MAX_TRACES

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(2 * MAX_TRACES):
            work(i)
        used = state()[0]
        for i in range(10 * MAX_TRACES):
            work(i)
        assert state()[0] == used


def test_more_functions_than_anything_keeps_go_with_what_they_captured():
    def work(i):
        weight = vector(i, 2)
        jitted = TinyJit(lambda x: (x * weight).sum())
        for j in range(3):
            assert jitted(vector(j, 1)).item() == i * j + 2

    assert_nothing_piles_up(work)


def test_more_structures_than_caches_hold_stay_within_their_bounds(monkeypatch, tmp_path):
    """Bounds that are reached in seconds: of schedules and kernels in memory, of machine code on disk."""
    folder = DiskStore(tmp_path, 200_000)
    monkeypatch.setattr(llvm, "store_of", lambda kind: folder)
    monkeypatch.setattr(compiling, "MAX_KERNELS", 40)
    monkeypatch.setattr(compiling, "_kernels", OrderedDict())
    monkeypatch.setattr(schedules, "limit", 5000)
    with Context(CACHELEVEL=2):
        for size in range(2, 400):
            x = Tensor(np.ones(size, np.float32)).realize()
            assert (x.pad(((1, size % 7),)) + 1).sum().item() == 2 * size + 1 + size % 7
            assert schedules.size <= schedules.limit and len(compiling._kernels) <= 40
    assert schedules.size == sum(map(len, schedules.templates)) > schedules.limit // 2
    assert len(compiling._kernels) == 40
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 0 < written <= folder.limit
