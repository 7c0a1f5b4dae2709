"""How often lists of kernels ran, for how long each kernel, and when the last runs were.

`cpu_threads.run_list` writes that for who watches, so that a run costs no step of Python. `ListTimes` is the
memory it writes to, and reads it when somebody asks: sums of all runs, and a ring with a row for each of the
last ones. A row has the begin and the end of the run on the system's clock, and between them the processor's
counter before and after each kernel, of which nothing need be known but that it goes on evenly.

Reading the counter takes 7 ns. Where kernels take less than `TINY` each, which cannot be told apart that well
(the processor looks some 100 ns ahead), only one run of `EVERY` has a row with the counter; in the others a
kernel has the share of the run's time that it had in those.
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

HEAD = {"runs": "i64", "rows": "i64", "row_words": "i64", "first_row": "i64", "nanoseconds": "i64",
        "detailed": "i64"}
"""What the memory begins with, in slots of 8 bytes: runs so far; how many rows the ring has, of how many words
each, and where the first one is; nanoseconds of all runs; how many runs have the counter."""
RUNS, ROWS, ROW_WORDS, FIRST_ROW, NANOSECONDS, DETAILED = range(len(HEAD))
SUMS = 8
"""From here on: the ticks of each kernel in all runs. Then the rows follow."""
ROW = {"begin_seconds": "i64", "begin_part": "i64", "end_seconds": "i64", "end_part": "i64",
       "is_detailed": "i64"}
"""What a row begins with: seconds and nanoseconds of the system's clock; 1 where it has the counter, or 0."""
IS_DETAILED = 4
TICKS = len(ROW)
"""From here on: the counter before each kernel and after the last."""
TINY = 128
"""Nanoseconds of a kernel, in the mean of a list, from which on every run has the counter: it adds 5%."""
EVERY = 16
AT_ONCE = 8
"""Kernels whose ticks are added at once: there is room for a multiple of so many."""
MOST_WORDS = 200_000
"""Words of a ring; the system gives memory for those that were written."""

_COUNTER = {
    "x86_64": ("declare i64 @llvm.readcyclecounter()", "%now = call i64 @llvm.readcyclecounter()"),
    "aarch64": ("", '%now = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()'),
    "arm64": ("", '%now = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()'),
}
"""By machine, how its counter is declared and read: in 7 to 10 ns on Zen 4, where the system's clock takes
25."""
_SYSTEM_CLOCK = (f"""
define internal i64 @nanoseconds() {{
entry:
  %moment = alloca {{ i64, i64 }}
  %status = call i32 @clock_gettime(i32 {CLOCK_MONOTONIC}, ptr %moment)
{load_slots("%moment", 0, {"seconds": "i64", "part": "i64"})}
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %part
  ret i64 %all
}}
""", "%now = call i64 @nanoseconds()")
"""The same where the machine's counter is not known."""

_SOURCE = Template("""
declare i32 @clock_gettime(i32, ptr)
$declare_counter

define internal ptr @begin_run(ptr %times, i64 %count) {
entry:
  %is_watched = icmp ne ptr %times, null
  br i1 %is_watched, label %begin, label %out
begin:
$load_head
  %turn = urem i64 %runs, $EVERY
  %has_turn = icmp eq i64 %turn, 0
  %kernels = mul i64 %runs, %count
  %tiny = mul i64 %kernels, $TINY
  %is_long = icmp uge i64 %nanoseconds, %tiny
  %is_detailed = or i1 %has_turn, %is_long
  %flag = zext i1 %is_detailed to i64
  %more = add i64 %detailed, %flag
  store i64 %more, ptr %detailed_at
  %row = call ptr @row_of(ptr %times)
  %flag_at = getelementptr i64, ptr %row, i64 $IS_DETAILED
  store i64 %flag, ptr %flag_at
  %status = call i32 @clock_gettime(i32 $CLOCK, ptr %row)
  br i1 %is_detailed, label %detail, label %out
detail:
  %ticks = getelementptr i64, ptr %row, i64 $TICKS
  call void @note_ticks(ptr %ticks, i64 0)
  ret ptr %ticks
out:
  ret ptr null
}

define internal ptr @row_of(ptr %times) {
entry:
$load_head
  %number = urem i64 %runs, %rows
  %before = mul i64 %number, %row_words
  %word = add i64 %before, %first_row
  %row = getelementptr i64, ptr %times, i64 %word
  ret ptr %row
}

define internal void @note_ticks(ptr %ticks, i64 %i) {
entry:
  %at = getelementptr i64, ptr %ticks, i64 %i
  $read_counter
  store i64 %now, ptr %at
  ret void
}

define internal void @end_run(ptr %times, i64 %count) {
entry:
  %is_watched = icmp ne ptr %times, null
  br i1 %is_watched, label %end, label %unwatched
end:
  %row = call ptr @row_of(ptr %times)
  %ended = getelementptr i64, ptr %row, i64 2
  %status = call i32 @clock_gettime(i32 $CLOCK, ptr %ended)
$load_head
$load_row
  %seconds = sub i64 %end_seconds, %begin_seconds
  %whole = mul i64 %seconds, 1000000000
  %part = sub i64 %end_part, %begin_part
  %took = add i64 %whole, %part
  %all = add i64 %nanoseconds, %took
  store i64 %all, ptr %nanoseconds_at
  %has_ticks = icmp ne i64 %is_detailed, 0
  br i1 %has_ticks, label %head, label %out
head:
  %i = phi i64 [ 0, %end ], [ %following, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %tick = add i64 %i, $TICKS
  %pb = getelementptr i64, ptr %row, i64 %tick
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
    return _SOURCE.substitute(
        declare_counter=declare_counter, read_counter=read_counter, CLOCK=CLOCK_MONOTONIC, TICKS=TICKS,
        SUMS=SUMS, AT_ONCE=AT_ONCE, TINY=TINY, EVERY=EVERY, IS_DETAILED=IS_DETAILED,
        load_head=load_slots("%times", 0, HEAD), load_row=load_slots("%row", 0, ROW))


class ListTimes:
    """What a list of so many kernels took while somebody watches it.

    Read while the list runs, it has the runs before that one.
    """

    def __init__(self, kernels: int) -> None:
        self.kernels = kernels
        width = round_up(kernels, AT_ONCE)
        row_words = TICKS + width + 1
        self.rows = max(2, MOST_WORDS // row_words)
        self.words = np.empty(SUMS + width + self.rows * row_words, np.int64)
        self.words[:SUMS + width] = 0
        self.words[ROWS:FIRST_ROW + 1] = self.rows, row_words, SUMS + width
        self.ring = self.words[SUMS + width:].reshape(self.rows, row_words)
        self.address = int(self.words.ctypes.data)
        self.point: TimelinePoint | None = None
        """after the last run that was handed to a queue"""

    @property
    def runs(self) -> int:
        """How often the list ran."""
        return int(self.words[RUNS])

    def wait(self) -> None:
        """Return when all runs given so far are done."""
        if self.point is not None:
            self.point.queue.await_value(self.point.value)

    @property
    def estimated(self) -> int:
        """How many runs have the time of their kernels only together."""
        return self.runs - int(self.words[DETAILED])

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
        return float(system_time(self.ring[self.oldest % self.rows])) if self.oldest else 0.0

    def moments(self, first: int, since: float = 0.0) -> tuple[int, Array]:
        """(the number of the first run that is still known, of those from `first` on that began at `since` or
        later; for each run from that one on the moments before each kernel and after the last)."""
        first = max(first, self.oldest)
        numbers = np.arange(first, self.runs)
        if since:
            numbers = numbers[np.searchsorted(system_time(self.ring[numbers % self.rows, :2]), since):]
        found = self.ring[numbers % self.rows, :TICKS + self.kernels + 1]
        written = int(np.searchsorted(numbers, self.oldest))  # meanwhile
        found, numbers = found[written:], numbers[written:]
        begin, end = system_time(found[:, None]), system_time(found[:, None, 2:])
        ticks = np.maximum.accumulate(found[:, TICKS:] - found[:, TICKS, None], axis=1)
        passed = ticks / np.maximum(1, ticks[:, -1:])
        passed[found[:, IS_DETAILED] == 0, 1:] = np.cumsum(self.shares())
        return int(numbers[0]) if len(numbers) else first, begin + passed * (end - begin)


def system_time(words: Array) -> Array:
    """Seconds, of words that begin with seconds and nanoseconds."""
    seconds: Array = words[..., 0] + words[..., 1] * 1e-9
    return seconds
