"""What native code counts of runs of a list, against a clock beside it and work of known proportions."""
from __future__ import annotations

import time

import numpy as np
import pytest
from test_device import adding, loaded

from tinygrad.runtime import cpu_times
from tinygrad.runtime.cpu_pool import KernelList
from tinygrad.runtime.cpu_times import EVERY, ListTimes

SMALL, LARGE = 2_000, 40_000
"""Items of kernels that take microseconds."""


def list_of(*sizes: int) -> tuple[KernelList, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """A list of kernels that add so many items, one after another in one thread."""
    x = np.zeros(max(sizes), np.float32)
    at = x.ctypes.data
    return KernelList([(loaded(adding(1, size)), [at, at], [size], 1) for size in sizes]), x


def run(calls: KernelList, times: ListTimes, runs: int) -> list[tuple[float, float]]:
    """Run a list so often; the moments before and after each run, as Python sees them."""
    found = []
    for _ in range(runs):
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        calls.run(calls.free_frame(), times.address)
        found.append((began, time.clock_gettime(time.CLOCK_MONOTONIC)))
    return found


def are_within(moments: np.ndarray[tuple[int, int], np.dtype[np.float64]],
               seen: list[tuple[float, float]]) -> bool:
    """Whether each run lies within the moments that Python saw."""
    return all(began - 1e-6 <= row[0] and row[-1] <= ended + 1e-6
               for (began, ended), row in zip(seen, moments, strict=True))


def test_runs_are_within_what_a_clock_beside_them_says_and_add_up() -> None:
    calls, _ = list_of(SMALL, LARGE, SMALL)
    times = ListTimes(3)
    seen = run(calls, times, 50)
    first, moments = times.moments(0)
    assert (first, times.runs, moments.shape) == (0, 50, (50, 4))
    assert (np.diff(moments, axis=1) >= 0).all()
    assert are_within(moments, seen)
    np.testing.assert_allclose(np.diff(moments, axis=1).sum(), times.seconds().sum(), rtol=1e-6)


def test_a_kernel_with_twenty_times_the_work_has_most_of_the_time() -> None:
    calls, _ = list_of(SMALL, LARGE, SMALL)
    times = ListTimes(3)
    run(calls, times, 200)
    assert times.shares().sum() == pytest.approx(1)
    each = np.median(np.diff(times.moments(0)[1], axis=1), axis=0)
    assert each[1] > 0.7 * each.sum()
    assert times.estimated == 0  # each of them takes long enough to be timed on its own


def test_the_last_runs_stay_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_times, "MOST_WORDS", 100)
    calls, _ = list_of(SMALL, SMALL)
    times = ListTimes(2)
    assert times.rows == 100 // (cpu_times.AT_ONCE + 1)
    seen = run(calls, times, 57)
    first, moments = times.moments(0)
    assert times.runs == 57 and first == 57 - (times.rows - 1) == times.oldest
    assert times.since == moments[0, 0]
    assert are_within(moments, seen[first:])
    later, rest = times.moments(0, since=float(moments[3, 0]))
    assert later == first + 3 and np.array_equal(rest, moments[3:])
    assert times.moments(56)[1].shape == (1, 3) and times.moments(57)[1].shape == (0, 3)
    whole = sum(ended - began for began, ended in seen)
    assert 0 < times.seconds().sum() <= whole


def test_of_tiny_kernels_some_runs_are_timed_one_by_one_and_the_others_as_a_whole() -> None:
    calls, x = list_of(*[1] * 300)
    times = ListTimes(300)
    runs = 10 * EVERY
    seen = run(calls, times, runs)
    assert times.runs == runs
    assert 0 < times.estimated <= runs - runs // EVERY
    _, moments = times.moments(0)
    assert (np.diff(moments, axis=1) >= -1e-9).all()
    assert are_within(moments, seen)
    np.testing.assert_allclose(np.diff(moments, axis=1).sum(), times.seconds().sum(), rtol=1e-6)
    assert x[0] == 0  # what they add is the number of the iteration


def test_a_list_of_nothing_is_counted_too() -> None:
    times = ListTimes(0)
    run(KernelList([]), times, 3)
    assert times.runs == 3 and times.seconds().shape == (0,) and times.moments(0)[1].shape == (3, 1)
