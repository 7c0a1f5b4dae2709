"""An interrupt (Ctrl-C) at every place of a realize or replay where Python would look for one."""
import dis
import gc
import inspect
import subprocess
import sys

import numpy as np
import pytest

from tinygrad import Device, GlobalCounters, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.device import allocator as allocator_module
from tinygrad.engine import immediate, realize, replay
from tinygrad.helpers import complete, engine_lock
from tinygrad.tensor import live

LOOKS_FOR_SIGNALS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
                     if name in dis.opmap}
"""Instructions after which a pending signal is handled."""
FINALIZERS = {"__del__", "_forget"}
"""An exception in them is only printed."""


@pytest.fixture(autouse=True, scope="module")
def _without_lazy_values_of_other_modules():
    """Those that are made where tests are collected: a write looks at each, one place after another."""
    others = dict(live.LIVE)
    live.LIVE.clear()
    live.Unrealized.known = -1, []
    yield
    made = dict(live.LIVE)
    live.LIVE.clear()
    live.LIVE.update(others | made)
    live.Unrealized.known = -1, []


def is_spared(frame):
    """Whether an exception would be printed only (in finalizers), or Python cannot raise one from a trace
    function (in generators)."""
    within = [frame]
    while within[-1].f_back is not None:
        within.append(within[-1].f_back)
    is_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
    return is_generator or any(f.f_code.co_name in FINALIZERS for f in within)


LOST = """
import signal, sys, time
from tinygrad import Tensor

class Ending:
    def __del__(self):
        raise KeyboardInterrupt  # as Ctrl-C does that comes now

class Failing:
    def __del__(self):
        raise ValueError("no interrupt")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
x = Failing()
del x
try:
    x = Ending()
    del x
    time.sleep(3600)
except KeyboardInterrupt:
    print("heard")
"""


def test_an_interrupt_in_a_finalizer_is_heard():
    """Python printed it and went on. What the program waits for, here an hour, ends, too."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
    assert "KeyboardInterrupt" not in done.stderr and "ValueError: no interrupt" in done.stderr


class Interrupt:
    """Raises KeyboardInterrupt at the place of this number, of those in calls from `begin` on."""

    def __init__(self, number, begin):
        self.left = number
        self.begin = begin
        self.came = False
        self.last = {}

    def call(self, frame, event, argument):
        if self.came or is_spared(frame):
            return None
        if frame.f_code is self.begin and not self.last:
            frame.f_back.f_trace, frame.f_back.f_trace_opcodes = self.instruction, True
            self.last[frame.f_back] = None
        if not self.last:
            return None
        frame.f_trace_opcodes = True
        return self.instruction

    def instruction(self, frame, event, argument):
        if event == "opcode" and not self.came:
            looks = self.last.get(frame) in LOOKS_FOR_SIGNALS
            self.last[frame] = frame.f_code.co_code[frame.f_lasti]
            self.left -= looks
            if self.left < 0 and looks:
                self.came = True
                raise KeyboardInterrupt
        return self.instruction

    def happens_in(self, function):
        """Call a function; whether the interrupt came. Nothing is collected meanwhile: what is raised in a
        callback of the collector ends there (Hypothesis has one)."""
        gc.disable()
        sys.settrace(self.call)
        try:
            function()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            gc.enable()
        return self.came


def everywhere(begin, program):
    """Run `program`, which gives a function to interrupt and a check of what then is, with the interrupt at
    each place in turn, and at last without it. Returns the number of places."""
    number = 0
    while True:
        function, check = program()
        came = Interrupt(number, begin).happens_in(function)
        assert not engine_lock._is_owned()
        Tensor(np.full(8, 77, np.float32)).realize()  # what memory that was not written may hold
        check(came)
        if not came:
            return number
        number += 1


def numbers(devices=None):
    x = Tensor(np.arange(8, dtype=np.float32), requires_grad=False).realize()
    return x if devices is None else x.shard(devices, 0).realize()


def a_value():
    y = numbers() * 2 + 1

    def check(_):
        assert y.tolist() == [2 * i + 1 for i in range(8)]
    return y.realize, check


def a_write(devices=None):
    x = numbers(devices)
    before = x.reshape(2, 4).sum(1).contiguous().max()
    x.assign(x + 1)

    def check(_):
        assert x.tolist() == [i + 1 for i in range(8)] and before.item() == 22
    return x.realize, check


def a_write_on_two_devices():
    return a_write(TWO_DEVICES)


def writes_of_parts():
    x = numbers()
    before = x.sum()
    x[:4] = x[:4] + 1
    x[4:] = x[4:] + 1

    def check(_):
        assert x.tolist() == [i + 1 for i in range(8)] and before.item() == 28
    return x.realize, check


def is_counted_right():
    """Whether the cache has as many bytes as it says."""
    allocator = Device["CPU"].allocator
    return allocator.cached_bytes == sum(size * len(blocks) for size, blocks in allocator.cached.items())


SIZES = pytest.mark.parametrize("is_cached", [False, True])


@SIZES
@pytest.mark.parametrize("idle", [False, True])
def test_an_interrupt_anywhere_while_memory_is_taken_loses_count_of_none(is_cached, idle):
    gc.collect()
    before = GlobalCounters.mem_used

    def program():
        Device["CPU"].allocator.free_cache()
        if is_cached:
            Buffer("CPU", 1000, dtypes.float32).allocate()
        buffer = Buffer("CPU", 1000, dtypes.float32)

        def check(came):
            gc.collect()  # buffers of earlier rounds, which their frames hold
            assert buffer.is_allocated or came
            assert GlobalCounters.mem_used == before + 4000 * buffer.is_allocated
            assert is_counted_right()
        return (lambda: buffer.allocate(idle)), check

    assert everywhere(Buffer.allocate.__code__, program) > 3
    gc.collect()
    assert GlobalCounters.mem_used == before


@SIZES
def test_an_interrupt_anywhere_while_memory_is_freed_loses_count_of_none(is_cached, monkeypatch):
    gc.collect()
    monkeypatch.setattr(allocator_module, "LEAST_CACHE", 0)
    monkeypatch.setattr(GlobalCounters, "mem_peak", 0)  # so that what was freed longest ago is dropped
    before = GlobalCounters.mem_used

    def program():
        Device["CPU"].allocator.free_cache()
        buffer, other = (Buffer("CPU", size, dtypes.float32).allocate() for size in (1000, 2000))
        GlobalCounters.mem_peak = 12_000 if is_cached else 0
        del other

        def check(_):
            gc.collect()
            assert not buffer.is_allocated and GlobalCounters.mem_used == before and is_counted_right()
        return (lambda: complete(buffer._give_back)), check  # as its finalizer does

    assert everywhere(complete.__code__, program) > 3


TWO_DEVICES = ("CPU", "CPU:1")


def two_writes():
    x, y = numbers(), numbers()
    x.assign(x + 1)
    y.assign(y * 2)

    def check(came):
        x.realize(y)
        assert x.tolist() == [i + 1 for i in range(8)] and y.tolist() == [2 * i for i in range(8)]
    return (lambda: x.realize(y)), check


@pytest.mark.parametrize("program", [a_value, a_write, two_writes])
def test_an_interrupt_anywhere_in_short_work_leaves_values_and_writes_whole(program):
    program()[0]()
    assert everywhere(immediate.run.__code__, program) > 20


@pytest.mark.parametrize("program", [a_write, writes_of_parts,
                                     pytest.param(a_write_on_two_devices, marks=pytest.mark.slow)])
def test_an_interrupt_anywhere_leaves_values_and_writes_whole(program, monkeypatch):
    monkeypatch.setattr(immediate, "run", lambda *_: False)
    program()[0]()
    assert everywhere(realize.Steps.__init__.__code__, program) > 20


@pytest.mark.parametrize("devices", [None, pytest.param(TWO_DEVICES, marks=pytest.mark.slow)])
def test_an_interrupt_anywhere_in_a_replay_leaves_all_of_its_writes_or_none(devices):
    x, y = numbers(devices), numbers(devices)

    @TinyJit
    def step():
        x.assign(x + 1)
        y.assign(y + x)
        return y.sum()

    step()
    done, total = 1, 1

    def program():
        def check(came):
            nonlocal done, total
            once_more = x[0].item() > done
            assert once_more or came
            if once_more:
                done += 1
                total += done
            assert x.tolist() == [i + done for i in range(8)]
            assert y.tolist() == [(done + 1) * i + total for i in range(8)]
        return step, check

    assert everywhere(replay.Replay.__call__.__code__, program) > 20
