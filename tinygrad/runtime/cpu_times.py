"""How often lists of kernels ran, for how long each kernel, and when the last runs were.

`cpu_threads.run_list` writes that for who watches, so that a run costs no step of Python. `ListTimes` is the
memory it writes to, and reads it when somebody asks: sums of all runs, and two rings with a row for each of
the last ones. One has the begin and the end of a run on the system's clock, the other the processor's counter
before each of its kernels and after the last, of which nothing need be known but that it goes on evenly.

Reading the counter takes 7 ns. Where kernels take less than `TINY` each, which cannot be told apart that well
(the processor looks some 100 ns ahead), only one run of `EVERY` has the counter; in the others a kernel has
the share of the run's time that it had in those.
"""
from __future__ import annotations

import os
from string import Template
from typing import Any

import numpy as np

from tinygrad.device.queue import TimelinePoint
from tinygrad.helpers import round_up
from tinygrad.runtime.cpu_threads import CLOCK_MONOTONIC, load_slots

Array = np.ndarray[Any, Any]

HEAD = {"runs": "i64", "detailed": "i64", "nanoseconds": "i64", "rows": "i64", "first_run": "i64",
        "first_detail": "i64", "detail_words": "i64", "last": "i64"}
"""What the memory begins with, in slots of 8 bytes: how many runs there were, and how many with the counter;
nanoseconds of all; how many rows each ring has, and where they begin; words of a row with the counter;
nanoseconds of the last run."""
RUNS, DETAILED, NANOSECONDS, ROWS, FIRST_RUN, FIRST_DETAIL, DETAIL_WORDS, _ = range(len(HEAD))
SUMS = 8
"""From here on: the ticks of each kernel in the runs with the counter. Then the rings follow."""
RUN = {"begin": "i64", "end": "i64", "detail": "i64"}
"""A row of the ring of runs: nanoseconds of the system's clock; which run with the counter it is, or -1."""
BEGIN, END, DETAIL = range(len(RUN))
TINY = 128
"""Nanoseconds of a kernel, in the mean of the last run, from which on a run has the counter: it adds 5%."""
EVERY = 32
AT_ONCE = 8
"""Kernels whose ticks are added at once: there is room for a multiple of so many."""
MOST_WORDS = 200_000
"""Words of a ring, at most; the system gives memory for those that were written."""

_COUNTER = {
    "x86_64": ("declare i64 @llvm.readcyclecounter()", "%now = call i64 @llvm.readcyclecounter()"),
    "aarch64": ("", '%now = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()'),
    "arm64": ("", '%now = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()'),
}
"""By machine, how its counter is declared and read: in 7 to 10 ns on Zen 4, where the system's clock takes
25."""
_SYSTEM_CLOCK = "", "%now = call i64 @nanoseconds()"
"""The same where the machine's counter is not known."""

_SOURCE = Template("""
declare i32 @clock_gettime(i32, ptr)
$declare_counter

define internal i64 @nanoseconds() {
entry:
  %moment = alloca { i64, i64 }
  %status = call i32 @clock_gettime(i32 $CLOCK, ptr %moment)
$load_moment
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %part
  ret i64 %all
}

define internal ptr @row_of(ptr %times, i64 %number, i64 %rows, i64 %words, i64 %first) {
entry:
  %place = urem i64 %number, %rows
  %before = mul i64 %place, %words
  %word = add i64 %before, %first
  %row = getelementptr i64, ptr %times, i64 %word
  ret ptr %row
}

define internal ptr @begin_run(ptr %times, i64 %count) {
entry:
  %is_watched = icmp ne ptr %times, null
  br i1 %is_watched, label %begin, label %out
begin:
$load_head
  %row = call ptr @row_of(ptr %times, i64 %runs, i64 %rows, i64 $RUN_WORDS, i64 %first_run)
$point_run
  %turn = urem i64 %runs, $EVERY
  %has_turn = icmp eq i64 %turn, 0
  %tiny = mul i64 %count, $TINY
  %is_long = icmp uge i64 %last, %tiny
  %is_detailed = or i1 %has_turn, %is_long
  %detail_or_none = select i1 %is_detailed, i64 %detailed, i64 -1
  store i64 %detail_or_none, ptr %detail_at
  %now = call i64 @nanoseconds()
  store i64 %now, ptr %begin_at
  br i1 %is_detailed, label %detail, label %out
detail:
  %ticks = call ptr @row_of(ptr %times, i64 %detailed, i64 %rows, i64 %detail_words, i64 %first_detail)
  call void @note_ticks(ptr %ticks, i64 0)
  ret ptr %ticks
out:
  ret ptr null
}

define internal void @note_ticks(ptr %ticks, i64 %i) {
entry:
  %at = getelementptr i64, ptr %ticks, i64 %i
  $read_counter
  store i64 %now, ptr %at
  ret void
}

define internal void @end_run(ptr %times, ptr %ticks, i64 %count) {
entry:
  %is_watched = icmp ne ptr %times, null
  br i1 %is_watched, label %end, label %unwatched
end:
  %now = call i64 @nanoseconds()
$load_head
  %row = call ptr @row_of(ptr %times, i64 %runs, i64 %rows, i64 $RUN_WORDS, i64 %first_run)
$point_run
  store i64 %now, ptr %end_at
  %begin = load i64, ptr %begin_at
  %took = sub i64 %now, %begin
  %all = add i64 %nanoseconds, %took
  store i64 %all, ptr %nanoseconds_at
  store i64 %took, ptr %last_at
  %is_detailed = icmp ne ptr %ticks, null
  br i1 %is_detailed, label %detail, label %out
detail:
  %more_detailed = add i64 %detailed, 1
  store i64 %more_detailed, ptr %detailed_at
  br label %head
head:
  %i = phi i64 [ 0, %detail ], [ %following, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %pb = getelementptr i64, ptr %ticks, i64 %i
  %pe = getelementptr i64, ptr %pb, i64 1
  %begins = load <$AT_ONCE x i64>, ptr %pb, align 8
  %ends = load <$AT_ONCE x i64>, ptr %pe, align 8
  %durations = sub <$AT_ONCE x i64> %ends, %begins
  %slot = add i64 %i, $SUMS
  %ps = getelementptr i64, ptr %times, i64 %slot
  %before = load <$AT_ONCE x i64>, ptr %ps, align 8
  %after = add <$AT_ONCE x i64> %before, %durations
  store <$AT_ONCE x i64> %after, ptr %ps, align 8
  %following = add i64 %i, $AT_ONCE
  br label %head
out:
  %next = add i64 %runs, 1
  store atomic i64 %next, ptr %runs_at release, align 8
  ret void
unwatched:
  ret void
}
""")


def source() -> str:
    """LLVM IR of `begin_run` (where the counter is to be written, or null), `note_ticks` and `end_run`, which
    `cpu_threads.source()` calls."""
    declare_counter, read_counter = _COUNTER.get(os.uname().machine, _SYSTEM_CLOCK)
    point_run = "\n".join(f"  %{name}_at = getelementptr i64, ptr %row, i64 {i}"
                          for i, name in enumerate(RUN))
    return _SOURCE.substitute(
        declare_counter=declare_counter, read_counter=read_counter, CLOCK=CLOCK_MONOTONIC, SUMS=SUMS,
        AT_ONCE=AT_ONCE, TINY=TINY, EVERY=EVERY, RUN_WORDS=len(RUN), point_run=point_run,
        load_head=load_slots("%times", 0, HEAD),
        load_moment=load_slots("%moment", 0, {"seconds": "i64", "part": "i64"}))


class ListTimes:
    """What a list of so many kernels took while somebody watches it.

    Read while the list runs, it has the runs before that one.
    """

    def __init__(self, kernels: int) -> None:
        self.kernels = kernels
        width = round_up(kernels, AT_ONCE)
        self.rows = max(2, MOST_WORDS // (width + 1))
        first_run = SUMS + width
        first_detail = first_run + self.rows * len(RUN)
        self.words = np.empty(first_detail + self.rows * (width + 1), np.int64)
        self.words[:first_run] = 0
        self.words[ROWS:DETAIL_WORDS + 1] = self.rows, first_run, first_detail, width + 1
        self.ring = self.words[first_run:first_detail].reshape(self.rows, len(RUN))
        self.details = self.words[first_detail:].reshape(self.rows, width + 1)
        self.address = int(self.words.ctypes.data)
        self.point: TimelinePoint | None = None
        """after the last run that was handed to a queue"""

    @property
    def runs(self) -> int:
        """How often the list ran."""
        return int(self.words[RUNS])

    @property
    def estimated(self) -> int:
        """How many runs have the time of their kernels only together."""
        return self.runs - int(self.words[DETAILED])

    def wait(self) -> None:
        """Return when all runs given so far are done."""
        if self.point is not None:
            self.point.queue.await_value(self.point.value)

    def shares(self) -> Array:
        """For each kernel, its share of the time."""
        ticks = self.words[SUMS:SUMS + self.kernels].astype(np.float64)
        return ticks / max(1.0, float(ticks.sum()))

    def seconds(self) -> Array:
        """For each kernel, for how long it ran in all runs."""
        return self.shares() * (float(self.words[NANOSECONDS]) * 1e-9)

    @property
    def oldest(self) -> int:
        """The number of the first run that is still known; what runs now writes over the one before it."""
        return max(0, self.runs + 1 - self.rows)

    @property
    def since(self) -> float:
        """The moment from which on all runs are known."""
        return float(self.ring[self.oldest % self.rows, BEGIN]) * 1e-9 if self.oldest else 0.0

    def moments(self, first: int, since: float = 0.0) -> tuple[int, Array]:
        """(the number of the first run that is still known, of those from `first` on that began at `since` or
        later; for each run from that one on the moments before each kernel and after the last)."""
        numbers = np.arange(max(first, self.oldest), self.runs)
        numbers = numbers[np.searchsorted(self.ring[numbers % self.rows, BEGIN] * 1e-9, since):]
        runs = self.ring[numbers % self.rows]
        ticks = self.details[runs[:, DETAIL] % self.rows, :self.kernels + 1]
        written = int(np.searchsorted(numbers, self.oldest))  # meanwhile
        numbers, runs, ticks = numbers[written:], runs[written:], ticks[written:]
        passed = np.maximum.accumulate((ticks - ticks[:, :1]).astype(np.float64), axis=1)
        passed /= np.maximum(1.0, passed[:, -1:])
        passed[runs[:, DETAIL] < 0, 1:] = np.cumsum(self.shares())
        begin, end = (runs[:, i, None] * 1e-9 for i in (BEGIN, END))
        return int(numbers[0]) if len(numbers) else first, begin + passed * (end - begin)
