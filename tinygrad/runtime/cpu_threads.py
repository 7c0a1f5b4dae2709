"""Worker threads of the CPU device, which live in compiled code.

A worker is a Python thread that enters `worker` once (ctypes lets the interpreter go) and stays there: it
spins for a moment, then sleeps, until a job is published. A job is a compiled kernel, its arguments and the
extent of its THREAD range. Launching is for one thread at a time: `LOCK` is held from the first kernel of a
call to its last.

Each thread has a part of the extent, the same in each kernel, so that what it wrote is in its own core's
cache when the next kernel reads it (affinity scheduling, Markatos and LeBlanc 1994; docs/performance.md has
what that saves). It takes its part chunk by chunk, then chunks of the others', so a worker that the system
has taken off its core holds up one chunk at most.

The ticket's upper half is the job's number, its lower half zero, or `CLOSED` while the job's fields are being
written. A worker reads the fields after it saw an open ticket, and uses them if the ticket is still that. A
part's ticket has the number of the last job in which it was touched, and the iteration that is next in it. A
chunk is taken from it by compare-and-swap, for a job whose ticket was still there after the part's was read.

Where every processor has a thread, the workers are bound to one each, and one processor is left to the thread
that launches: where that runs on a worker's, the worker is bound to the one that is left (`keep_apart`). Else
Linux, which finds all processors busy when a thread that launches has just been woken by another, lets two
threads share one for some 8 ms.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from string import Template

CLOSED = 0xFFFFFFFF
"""The lower half of a ticket that offers nothing."""
MAX_THREADS = 256
SPIN = 20_000
"""Looks at the ticket before a worker sleeps: 220 us where a pause takes 11 ns (an Intel server), longer than
a program that waits for each kernel takes to its next one (docs/performance.md has what it saves)."""

# Slots of 8 bytes in the shared state; those that several threads write have cache lines of their own.
TICKET = 0
FUNCTION, BUFFERS, VARIABLES, EXTENT, CHUNK = 8, 9, 10, 11, 12
DONE = 16
SLEEPERS = 24
STOP = 32
LOCK = 40
LAUNCHED = 48
LEFT = 49
THREADS = 50
SCRATCH = 56
WORKER = SCRATCH + MAX_THREADS
BOUND = WORKER + MAX_THREADS
PARTS = BOUND + MAX_THREADS
PART_SLOTS = 8
STATE_SLOTS = PARTS + PART_SLOTS * MAX_THREADS
"""From `SCRATCH`, `WORKER` and `BOUND` on there is a slot for each thread: its memory, its number in the
system, the processor that it is bound to; from `PARTS` on, in a cache line each, the tickets of the threads'
parts. `THREADS` has how many they are, `LEFT` the processor to which nobody is bound, -1 where none is."""
MOST_PROCESSORS = 1024
"""Processors have smaller numbers than this, where threads are bound to them."""

JOB = {"function": "ptr", "buffers": "ptr", "variables": "ptr", "extent": "i64", "chunk": "i64"}
"""What a job consists of, in slots side by side: in the state from `FUNCTION` on, and in `run_list`'s
entries."""
ENTRY_SLOTS = len(JOB)
CALL = {"state": "ptr", "function": "ptr", "extent": "i64", "chunk": "i64", "count": "i64"}
"""What `launch_here` takes, in slots side by side, with the addresses of so many buffers and the variables'
values behind them: one pointer, for ctypes takes 0.1 us for each argument."""
CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1
EVERYONE = 0x7FFFFFFF
"""How many threads a futex is to wake, where none is to sleep on."""

_SOURCE = Template("""
$declare
$declare_pause
declare i64 @llvm.umin.i64(i64, i64)

define internal void @sleep(ptr %word, i32 %seen, ptr %timeout) {
entry:
$sleep
  ret void
}

define internal void @rouse(ptr %word, i32 %count) {
entry:
$rouse
  ret void
}

define internal void @rouse_sleepers(ptr %sleepers, ptr %word, i32 %count) {
entry:
  %sleeping = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %wake, label %out
wake:
  call void @rouse(ptr %word, i32 %count)
  br label %out
out:
  ret void
}

define internal void @keep_apart(ptr %state) {
entry:
$keep_apart
  ret void
}

define internal void @acquire(ptr %lock) {
entry:
  %swap = cmpxchg ptr %lock, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %out, label %contend
contend:
  %held = atomicrmw xchg ptr %lock, i32 2 seq_cst
  %now_free = icmp eq i32 %held, 0
  br i1 %now_free, label %out, label %rest
rest:
  call void @sleep(ptr %lock, i32 2, ptr null)
  br label %contend
out:
  ret void
}

define internal void @release(ptr %lock) {
entry:
  %held = atomicrmw xchg ptr %lock, i32 0 seq_cst
  %contended = icmp eq i32 %held, 2
  br i1 %contended, label %others, label %out
others:
  call void @rouse(ptr %lock, i32 1)
  br label %out
out:
  ret void
}

define internal void @take_chunks(ptr %state, i64 %job, i64 %thread) {
entry:
  %open = shl i64 %job, 32
$load_job
  %slot = add i64 %thread, $SCRATCH
  %ps = getelementptr i64, ptr %state, i64 %slot
  %scratch = load ptr, ptr %ps
  %pt = getelementptr i64, ptr %state, i64 $THREADS
  %threads = load i64, ptr %pt
  %done = getelementptr i64, ptr %state, i64 $DONE
  fence seq_cst
  %still = load atomic i64, ptr %state seq_cst, align 8
  %valid = icmp eq i64 %still, %open
  br i1 %valid, label %count, label %out
count:
  %rounded = add i64 %extent, %chunk
  %most = sub i64 %rounded, 1
  %chunks = udiv i64 %most, %chunk
  br label %visit
visit:
  %visited = phi i64 [ 0, %count ], [ %more, %other ]
  %from = add i64 %thread, %visited
  %part = urem i64 %from, %threads
  %scaled = mul i64 %chunks, %part
  %first = udiv i64 %scaled, %threads
  %scaled_after = add i64 %scaled, %chunks
  %last = udiv i64 %scaled_after, %threads
  %start = mul i64 %first, %chunk
  %limit = mul i64 %last, %chunk
  %stop = call i64 @llvm.umin.i64(i64 %limit, i64 %extent)
  %line = mul i64 %part, $PART_SLOTS
  %ticket_slot = add i64 %line, $PARTS
  %ticket = getelementptr i64, ptr %state, i64 %ticket_slot
  br label %next
next:
  %seen = load atomic i64, ptr %ticket seq_cst, align 8
  %now = load atomic i64, ptr %state seq_cst, align 8
  %current = icmp eq i64 %now, %open
  br i1 %current, label %look, label %out
look:
  %touched_in = lshr i64 %seen, 32
  %touched = icmp eq i64 %touched_in, %job
  %low = and i64 %seen, $CLOSED
  %begin = select i1 %touched, i64 %low, i64 %start
  %some = icmp ult i64 %begin, %stop
  br i1 %some, label %take, label %other
take:
  %whole = add i64 %begin, %chunk
  %end = call i64 @llvm.umin.i64(i64 %whole, i64 %stop)
  %after = or i64 %open, %end
  %swap = cmpxchg ptr %ticket, i64 %seen, i64 %after seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %next
run:
  call void %function(ptr %buffers, ptr %variables, i64 %begin, i64 %end, ptr %scratch)
  %count_taken = sub i64 %end, %begin
  %old = atomicrmw add ptr %done, i64 %count_taken seq_cst
  br label %next
other:
  %more = add i64 %visited, 1
  %any = icmp ult i64 %more, %threads
  %finished = load atomic i64, ptr %done seq_cst, align 8
  %unfinished = icmp ult i64 %finished, %extent
  %go_on = and i1 %any, %unfinished
  br i1 %go_on, label %visit, label %out
out:
  ret void
}

define void @worker(ptr %state, i64 %thread) {
entry:
  %stop = getelementptr i64, ptr %state, i64 $STOP
  %sleepers = getelementptr i64, ptr %state, i64 $SLEEPERS
  br label %idle
idle:
  %seen = phi i64 [ 0, %entry ], [ %job, %work ], [ %seen, %wake ]
  br label %spin
spin:
  %looks = phi i64 [ 0, %idle ], [ %more, %again ]
  %ticket = load atomic i64, ptr %state seq_cst, align 8
  %job = lshr i64 %ticket, 32
  %other = icmp ne i64 %job, %seen
  %low = and i64 %ticket, $CLOSED
  %open = icmp ne i64 %low, $CLOSED
  %new = and i1 %other, %open
  br i1 %new, label %work, label %again
again:
  $pause
  %more = add i64 %looks, 1
  %patient = icmp ult i64 %more, $SPIN
  br i1 %patient, label %spin, label %sleep
sleep:
  %ended = load atomic i64, ptr %stop seq_cst, align 8
  %over = icmp ne i64 %ended, 0
  br i1 %over, label %out, label %lie_down
lie_down:
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %number = trunc i64 %seen to i32
  %job_word = getelementptr i8, ptr %state, i64 4
  call void @sleep(ptr %job_word, i32 %number, ptr null)
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %wake
wake:
  br label %idle
work:
  call void @take_chunks(ptr %state, i64 %job, i64 %thread)
  br label %idle
out:
  ret void
}

define void @stop_workers(ptr %state) {
entry:
  %lock = getelementptr i64, ptr %state, i64 $LOCK
  call void @acquire(ptr %lock)
  %stop = getelementptr i64, ptr %state, i64 $STOP
  store atomic i64 1, ptr %stop seq_cst, align 8
  %last = load atomic i64, ptr %state seq_cst, align 8
  %shifted = add i64 %last, 4294967296
  %closed = or i64 %shifted, $CLOSED
  store atomic i64 %closed, ptr %state seq_cst, align 8
  %job_word = getelementptr i8, ptr %state, i64 4
  call void @rouse(ptr %job_word, i32 $EVERYONE)
  call void @release(ptr %lock)
  ret void
}

define internal void @run_kernel(ptr %state, ptr %function, ptr %buffers, ptr %variables, i64 %extent,
                                 i64 %chunk) {
entry:
  %scratch_slot = getelementptr i64, ptr %state, i64 $SCRATCH
  %scratch = load ptr, ptr %scratch_slot
  %small = icmp ule i64 %extent, %chunk
  br i1 %small, label %alone, label %share
alone:
  call void %function(ptr %buffers, ptr %variables, i64 0, i64 %extent, ptr %scratch)
  ret void
share:
  %last = load atomic i64, ptr %state seq_cst, align 8
  %last_job = lshr i64 %last, 32
  %next_job = add i64 %last_job, 1
  %job = and i64 %next_job, $CLOSED
  %shifted = shl i64 %job, 32
  %closed = or i64 %shifted, $CLOSED
  store atomic i64 %closed, ptr %state seq_cst, align 8
  %pf = getelementptr i64, ptr %state, i64 $FUNCTION
  store ptr %function, ptr %pf
  %pb = getelementptr i64, ptr %state, i64 $BUFFERS
  store ptr %buffers, ptr %pb
  %pv = getelementptr i64, ptr %state, i64 $VARIABLES
  store ptr %variables, ptr %pv
  %pe = getelementptr i64, ptr %state, i64 $EXTENT
  store i64 %extent, ptr %pe
  %pc = getelementptr i64, ptr %state, i64 $CHUNK
  store i64 %chunk, ptr %pc
  %done = getelementptr i64, ptr %state, i64 $DONE
  store atomic i64 0, ptr %done seq_cst, align 8
  store atomic i64 %shifted, ptr %state seq_cst, align 8
  %ps = getelementptr i64, ptr %state, i64 $SLEEPERS
  %job_word = getelementptr i8, ptr %state, i64 4
  call void @rouse_sleepers(ptr %ps, ptr %job_word, i32 $EVERYONE)
  call void @take_chunks(ptr %state, i64 %job, i64 0)
  br label %wait
wait:
  %finished = load atomic i64, ptr %done seq_cst, align 8
  %all = icmp eq i64 %finished, %extent
  br i1 %all, label %out, label %busy
busy:
  $pause
  br label %wait
out:
  ret void
}

define void @launch(ptr %state, ptr %function, ptr %buffers, ptr %variables, i64 %extent, i64 %chunk) {
entry:
  %lock = getelementptr i64, ptr %state, i64 $LOCK
  call void @acquire(ptr %lock)
  call void @keep_apart(ptr %state)
  call void @run_kernel(ptr %state, ptr %function, ptr %buffers, ptr %variables, i64 %extent, i64 %chunk)
  call void @release(ptr %lock)
  ret void
}

define void @run_list(ptr %state, ptr %entries, i64 %count, ptr %times) {
entry:
  %lock = getelementptr i64, ptr %state, i64 $LOCK
  call void @acquire(ptr %lock)
  call void @keep_apart(ptr %state)
  %ticks = call ptr @begin_run(ptr %times, i64 %count)
  %is_detailed = icmp ne ptr %ticks, null
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %following, %body ], [ %following, %note ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %at = mul i64 %i, $ENTRY_SLOTS
  %entry_address = getelementptr i64, ptr %entries, i64 %at
$load_entry
  call void @run_kernel(ptr %state, ptr %function, ptr %buffers, ptr %variables, i64 %extent, i64 %chunk)
  %following = add i64 %i, 1
  br i1 %is_detailed, label %note, label %head
note:
  call void @note_ticks(ptr %ticks, i64 %following)
  br label %head
out:
  call void @end_run(ptr %times, ptr %ticks, i64 %count)
  call void @release(ptr %lock)
  ret void
}

define internal void @count_launch(ptr %state) {
entry:
  %launched = getelementptr i64, ptr %state, i64 $LAUNCHED
  %before = atomicrmw add ptr %launched, i64 1 seq_cst
  ret void
}

define void @launch_here(ptr %call) {
entry:
$load_call
  %buffers = getelementptr i64, ptr %call, i64 $CALL_SLOTS
  %variables = getelementptr i64, ptr %buffers, i64 %count
  call void @count_launch(ptr %state)
  call void @launch(ptr %state, ptr %function, ptr %buffers, ptr %variables, i64 %extent, i64 %chunk)
  ret void
}

define void @run_list_here(ptr %state, ptr %entries, i64 %count, ptr %times) {
entry:
  call void @count_launch(ptr %state)
  call void @run_list(ptr %state, ptr %entries, i64 %count, ptr %times)
  ret void
}
""")

_KEEP_APART = Template("""\
  %mask = alloca [$MASK_BYTES x i8], align 8
  %left_at = getelementptr i64, ptr %state, i64 $LEFT
  %left = load i64, ptr %left_at
  %bound = icmp sge i64 %left, 0
  br i1 %bound, label %look, label %out
look:
  %processor = call i32 @sched_getcpu()
  %here = sext i32 %processor to i64
  %apart = icmp eq i64 %here, %left
  br i1 %apart, label %out, label %search
search:
  %i = phi i64 [ 1, %look ], [ %following, %other ]
  %bound_slot = add i64 %i, $BOUND
  %bound_at = getelementptr i64, ptr %state, i64 %bound_slot
  %its = load i64, ptr %bound_at
  %shared = icmp eq i64 %its, %here
  br i1 %shared, label %move, label %other
other:
  %following = add i64 %i, 1
  %more = icmp ult i64 %following, $MAX_THREADS
  br i1 %more, label %search, label %out
move:
  store i64 %left, ptr %bound_at
  store i64 %here, ptr %left_at
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 $MASK_BYTES, i1 false)
  %byte = lshr i64 %left, 3
  %bit = and i64 %left, 7
  %small = trunc i64 %bit to i8
  %one = shl i8 1, %small
  %byte_at = getelementptr i8, ptr %mask, i64 %byte
  store i8 %one, ptr %byte_at
  %worker_slot = add i64 %i, $WORKER
  %worker_at = getelementptr i64, ptr %state, i64 %worker_slot
  %worker = load i32, ptr %worker_at
  %status = call i32 @sched_setaffinity(i32 %worker, i64 $MASK_BYTES, ptr %mask)
  br label %out
out:""")

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's futex system call."""


def source() -> str:
    """LLVM IR of `worker`, `launch`, `run_list` and `stop_workers` for this machine; of `launch_here` and
    `run_list_here`, which Python calls, and which count that in `LAUNCHED`; and of what a thread calls to
    rest: `sleep` (until a 32-bit word changes, or for a time) and `rouse` (who sleeps there)."""
    machine = os.uname().machine
    futex = _FUTEX.get(machine) if sys.platform == "linux" else None
    if futex is None:
        # Without a futex, a sleeping thread looks again every 50 us.
        declare, sleep, rouse = "declare i32 @usleep(i32)", "  %slept = call i32 @usleep(i32 50)", ""
        keep_apart = ""
    else:
        call = "call i64 (i64, ...) @syscall(i64 {}, ptr %word, i32 {}, i32 {}, ptr {}, ptr null, i32 0)"
        declare = "declare i64 @syscall(i64, ...)"
        declare += ("\ndeclare i32 @sched_getcpu()\ndeclare i32 @sched_setaffinity(i32, i64, ptr)\n"
                    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        keep_apart = _KEEP_APART.substitute(LEFT=LEFT, BOUND=BOUND, WORKER=WORKER, MAX_THREADS=MAX_THREADS,
                                            MASK_BYTES=MOST_PROCESSORS // 8)
        sleep = f"  %slept = {call.format(futex, 128, '%seen', '%timeout')}"
        rouse = f"  %woken = {call.format(futex, 129, '%count', 'null')}"
    return _SOURCE.substitute(
        declare=declare, declare_pause="declare void @llvm.x86.sse2.pause()" if machine == "x86_64" else "",
        sleep=sleep, rouse=rouse, keep_apart=keep_apart, pause=pause_instruction(), CLOSED=CLOSED, SPIN=SPIN,
        FUNCTION=FUNCTION, BUFFERS=BUFFERS, VARIABLES=VARIABLES, EXTENT=EXTENT, CHUNK=CHUNK, DONE=DONE,
        SLEEPERS=SLEEPERS, STOP=STOP, LOCK=LOCK, LAUNCHED=LAUNCHED, SCRATCH=SCRATCH, THREADS=THREADS,
        PARTS=PARTS, PART_SLOTS=PART_SLOTS, ENTRY_SLOTS=ENTRY_SLOTS, EVERYONE=EVERYONE,
        load_job=load_slots("%state", FUNCTION, JOB), load_entry=load_slots("%entry_address", 0, JOB),
        load_call=load_slots("%call", 0, CALL), CALL_SLOTS=len(CALL))


def load_slots(base: str, first: int, values: Mapping[str, str]) -> str:
    """LLVM IR that loads values, given by name and type, from slots side by side, `first` on."""
    return "\n".join(f"  %{name}_at = getelementptr i64, ptr {base}, i64 {slot}\n"
                     f"  %{name} = load {kind}, ptr %{name}_at"
                     for slot, (name, kind) in enumerate(values.items(), first))


def pause_instruction() -> str:
    """What a loop that looks at memory does between two looks."""
    return "call void @llvm.x86.sse2.pause()" if os.uname().machine == "x86_64" else "fence seq_cst"
