"""The native part of the CPU's queue: a thread that takes commands from a ring and runs them.

The thread enters `serve` once and stays in compiled code, as the workers of `cpu_threads.py` do, so no
command waits for the interpreter. `push` puts commands into the ring; after each one the thread sets the
queue's timeline, on which others wait: `await_value` returns when it has come to a value, or after a time.

A timeline is two words of 8 bytes: its value, and how many sleep until it changes. Whoever sets it wakes them
only if there are any; whoever sleeps has said so before looking a last time.
"""
from __future__ import annotations

from enum import IntEnum
from string import Template

from tinygrad.runtime.cpu_threads import CLOCK_MONOTONIC, EVERYONE, load_slots, pause_instruction

COMMAND = {"kind": "i64", "a": "ptr", "b": "i64", "c": "i64", "d": "i64", "e": "i64", "f": "i64"}
"""What a command consists of, in slots side by side: its kind and up to six operands."""
COMMAND_SLOTS = 8
"""A command with the place behind it, so that each begins at a cache line."""
RING = 1024
"""Commands that may wait in a ring; a power of two."""

# Slots of 8 bytes in a queue's state; those that several threads write have cache lines of their own.
HEAD, ASLEEP, STOPPING, TIMELINE, COMMANDS = 0, 8, 16, 24, 25
QUEUE_SLOTS = 32
WAITERS = 1
"""The slot of a timeline beside its value."""
SPIN = 1000
"""Looks at a word before a thread sleeps: about 5 us."""


class CommandKind(IntEnum):
    """What a command does, with its operands."""

    EXEC = 0
    """function, buffers, variables, extent, chunk, times: a kernel, as `launch` runs it; where `times` is not
    0, it is the address of four words: the moments before and after it, each as TIMESTAMP has it"""
    LIST = 1
    """entries, count, times: kernels, as `run_list` runs them"""
    COPY = 2
    """target, source, bytes"""
    SIGNAL = 3
    """timeline, value: set it"""
    WAIT = 4
    """timeline, value: until it has come to that, or the queue is to stop"""
    TIMESTAMP = 5
    """address of two words: seconds and nanoseconds of the monotonic clock"""
    STOP = 6
    """end the thread"""


_SOURCE = Template("""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i64 @await_value(ptr %timeline, i64 %value, i64 %nanoseconds) {
entry:
  %timeout = alloca { i64, i64 }
  %whole = udiv i64 %nanoseconds, 1000000000
  %part = urem i64 %nanoseconds, 1000000000
  store i64 %whole, ptr %timeout
  %pp = getelementptr i64, ptr %timeout, i64 1
  store i64 %part, ptr %pp
  %waiters = getelementptr i64, ptr %timeline, i64 $WAITERS
  br label %spin
spin:
  %looks = phi i64 [ 0, %entry ], [ %more, %again ]
  %now = load atomic i64, ptr %timeline seq_cst, align 8
  %there = icmp sge i64 %now, %value
  br i1 %there, label %reached, label %again
again:
  $pause
  %more = add i64 %looks, 1
  %patient = icmp ult i64 %more, $SPIN
  br i1 %patient, label %spin, label %lie_down
lie_down:
  %a = atomicrmw add ptr %waiters, i64 1 seq_cst
  %last = load atomic i64, ptr %timeline seq_cst, align 8
  %already = icmp sge i64 %last, %value
  br i1 %already, label %get_up, label %rest
rest:
  %seen = trunc i64 %last to i32
  call void @sleep(ptr %timeline, i32 %seen, ptr %timeout)
  br label %get_up
get_up:
  %b = atomicrmw sub ptr %waiters, i64 1 seq_cst
  %found = load atomic i64, ptr %timeline seq_cst, align 8
  %come = icmp sge i64 %found, %value
  %answer = zext i1 %come to i64
  ret i64 %answer
reached:
  ret i64 1
}

define void @set_value(ptr %timeline, i64 %value) {
entry:
  store atomic i64 %value, ptr %timeline seq_cst, align 8
  %waiters = getelementptr i64, ptr %timeline, i64 $WAITERS
  call void @rouse_sleepers(ptr %waiters, ptr %timeline, i32 $EVERYONE)
  ret void
}

define void @push(ptr %queue, ptr %command) {
entry:
  %head = load atomic i64, ptr %queue seq_cst, align 8
  %pr = getelementptr i64, ptr %queue, i64 $COMMANDS
  %ring = load ptr, ptr %pr
  %place = and i64 %head, $MASK
  %slot = mul i64 %place, $COMMAND_SLOTS
  %target = getelementptr i64, ptr %ring, i64 %slot
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %command, i64 $COMMAND_BYTES, i1 false)
  %next = add i64 %head, 1
  store atomic i64 %next, ptr %queue seq_cst, align 8
  %asleep = getelementptr i64, ptr %queue, i64 $ASLEEP
  call void @rouse_sleepers(ptr %asleep, ptr %queue, i32 1)
  ret void
}

define void @serve(ptr %queue, ptr %pool, i64 %first) {
entry:
  %pa = getelementptr i64, ptr %queue, i64 $ASLEEP
  %ps = getelementptr i64, ptr %queue, i64 $STOPPING
  %pt = getelementptr i64, ptr %queue, i64 $TIMELINE
  %timeline = load ptr, ptr %pt
  %pr = getelementptr i64, ptr %queue, i64 $COMMANDS
  %ring = load ptr, ptr %pr
  br label %look
look:
  %served = phi i64 [ %first, %entry ], [ %served, %again ], [ %served, %awake ], [ %next, %done ]
  %looks = phi i64 [ 0, %entry ], [ %more, %again ], [ 0, %awake ], [ 0, %done ]
  %head = load atomic i64, ptr %queue seq_cst, align 8
  %some = icmp ne i64 %head, %served
  br i1 %some, label %take, label %idle
idle:
  $pause
  %more = add i64 %looks, 1
  %patient = icmp ult i64 %more, $SPIN
  br i1 %patient, label %again, label %lie_down
again:
  br label %look
lie_down:
  store atomic i64 1, ptr %pa seq_cst, align 8
  %last = load atomic i64, ptr %queue seq_cst, align 8
  %nothing = icmp eq i64 %last, %served
  br i1 %nothing, label %rest, label %awake
rest:
  %seen = trunc i64 %last to i32
  call void @sleep(ptr %queue, i32 %seen, ptr null)
  br label %awake
awake:
  store atomic i64 0, ptr %pa seq_cst, align 8
  br label %look
take:
  %place = and i64 %served, $MASK
  %slot = mul i64 %place, $COMMAND_SLOTS
  %command = getelementptr i64, ptr %ring, i64 %slot
$load_command
  %b_pointer = inttoptr i64 %b to ptr
  switch i64 %kind, label %done [
    i64 $EXEC, label %exec
    i64 $LIST, label %list
    i64 $COPY, label %copy
    i64 $SIGNAL, label %signal
    i64 $WAIT, label %wait
    i64 $TIMESTAMP, label %timestamp
    i64 $STOP, label %stop
  ]
exec:
  %c_pointer = inttoptr i64 %c to ptr
  %is_timed = icmp ne i64 %f, 0
  br i1 %is_timed, label %exec_timed, label %exec_untimed
exec_untimed:
  call void @launch(ptr %pool, ptr %a, ptr %b_pointer, ptr %c_pointer, i64 %d, i64 %e)
  br label %done
exec_timed:
  %before = inttoptr i64 %f to ptr
  %before_status = call i32 @clock_gettime(i32 $CLOCK, ptr %before)
  call void @launch(ptr %pool, ptr %a, ptr %b_pointer, ptr %c_pointer, i64 %d, i64 %e)
  %after = getelementptr i64, ptr %before, i64 2
  %after_status = call i32 @clock_gettime(i32 $CLOCK, ptr %after)
  br label %done
list:
  %times = inttoptr i64 %c to ptr
  call void @run_list(ptr %pool, ptr %a, i64 %b, ptr %times)
  br label %done
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b_pointer, i64 %c, i1 false)
  br label %done
signal:
  call void @set_value(ptr %a, i64 %b)
  br label %done
wait:
  %come = call i64 @await_value(ptr %a, i64 %b, i64 10000000)
  %stopping = load atomic i64, ptr %ps seq_cst, align 8
  %either = or i64 %come, %stopping
  %enough = icmp ne i64 %either, 0
  br i1 %enough, label %done, label %wait
timestamp:
  %status = call i32 @clock_gettime(i32 $CLOCK, ptr %a)
  br label %done
done:
  %next = add i64 %served, 1
  call void @set_value(ptr %timeline, i64 %next)
  br label %look
stop:
  %end = add i64 %served, 1
  call void @set_value(ptr %timeline, i64 %end)
  ret void
}
""")


def source() -> str:
    """LLVM IR of `push`, `serve`, `await_value` and `set_value`, to stand beside `cpu_threads.source()`
    and `cpu_times.source()`."""
    return _SOURCE.substitute(
        {kind.name: int(kind)
         for kind in CommandKind}, WAITERS=WAITERS, SPIN=SPIN, COMMANDS=COMMANDS, ASLEEP=ASLEEP,
        STOPPING=STOPPING, TIMELINE=TIMELINE, MASK=RING - 1, COMMAND_SLOTS=COMMAND_SLOTS,
        COMMAND_BYTES=8 * COMMAND_SLOTS, CLOCK=CLOCK_MONOTONIC, EVERYONE=EVERYONE,
        pause=pause_instruction(), load_command=load_slots("%command", 0, COMMAND))
