"""Command queues: errors of what runs, threads, processes, and the end of the interpreter."""
from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import drawn
from queue_programs import file_of, from_file, in_thread, rng
from queue_programs import gate as gate
from queue_programs import handed_over as handed_over
from queue_programs import other_gate as other_gate
from queue_programs import queue as queue

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer, RepeatedUse
from tinygrad.device.queue import CommandQueue, TimelinePoint, Uses
from tinygrad.engine.realize import ordered
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.runtime.cpu_queue import HostQueue, Timeline

pytestmark = pytest.mark.usefixtures("on_cpu")


# --- errors -------------------------------------------------------------------------------------------------


def test_a_file_cut_off_meanwhile_is_an_error_where_the_value_is_read(gate: Timeline, tmp_path: Path) -> None:
    path, content = file_of(tmp_path)
    good = from_file(path).to("CPU").realize()
    Device["CPU"].copies.wait(gate.point(1))
    t = from_file(path).to("CPU").realize()
    y = (t + 1).realize()
    z = y.sum().realize()
    os.truncate(path, 1000)
    gate.set(1)
    for _ in range(2):
        for tensor in (t, y, z):
            with pytest.raises(RuntimeError, match="ends after 1000 bytes") as caught:
                tensor.numpy()
            assert any("copying 4,194,304 bytes from DISK:" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="ends after 1000 bytes"):
        (z + y.max()).item()
    np.testing.assert_array_equal((good + 1).numpy(), content + 1)


class Failing:
    """A program that fails."""

    name = "r_7_7"

    def __call__(self, addresses: Any, variables: Any, extent: int) -> None:
        raise ValueError("not today")


def test_a_failing_kernel_is_named_at_every_wait_that_meets_it() -> None:
    queue, after = HostQueue("test"), []
    point = queue.exec(Failing(), [], [], 1)
    later = queue.call(lambda: after.append(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="not today") as caught:
            point.wait()
        assert caught.value.__notes__ == ["in a command queue: kernel r_7_7"]
    later.wait()
    assert after == [1]
    dependent = TimelinePoint(queue, later.value, (point,))
    with pytest.raises(ValueError, match="not today"):
        dependent.wait()
    queue.stop()


def test_points_forget_what_went_well() -> None:
    """Or each value would keep the whole past."""
    queue = HostQueue("test")
    first = queue.call(lambda: None)
    first.wait()
    second = TimelinePoint(queue, 1, (first,))
    assert not second.may_have_failed and second.sources == ()
    queue.stop()


def test_commands_know_the_writers_of_what_they_read_and_no_more() -> None:
    """However many commands there were before, and however often they read the same."""
    queue, release = HostQueue("test"), threading.Event()
    queue.call(release.wait)
    buffers = [Buffer("CPU", 4, dtypes.float32).allocate() for _ in range(3)]
    longest = 0
    for _ in range(200):
        sources = ordered(queue, buffers, 1)
        longest = max(longest, len(sources))
        point = queue.call(lambda: None, sources)
        for number, buffer in enumerate(buffers):
            buffer.add_use(point, number != 1)
    assert longest <= len(buffers)
    release.set()
    point.wait()
    queue.stop()


def test_a_command_waits_once_for_each_other_queue(gate: Timeline) -> None:
    waited: list[TimelinePoint] = []

    class Waiting(CommandQueue):
        def wait(self, point: TimelinePoint) -> None:
            waited.append(point)

    buffers = [Buffer("CPU", 4, dtypes.float32).allocate() for _ in range(3)]
    for value, buffer in enumerate(buffers, 1):
        buffer.add_use(gate.point(value), True)
    ordered(Waiting("test"), buffers, 1)
    assert [point.value for point in waited] == [3]


def test_a_failure_is_met_through_any_number_of_commands() -> None:
    queue = HostQueue("test")
    first = queue.exec(Failing(), [], [], 1)
    last = first
    for _ in range(5000):
        last = queue.call(lambda: None, (last,))
    with pytest.raises(ValueError, match="not today"):
        last.wait()
    queue.stop()


def test_uses_know_what_has_to_be_waited_for(gate: Timeline) -> None:
    uses, other = Uses(), Timeline("other")
    uses.set_written(gate.point(1))
    uses.add_read(gate.point(2))
    uses.add_read(gate.point(3))  # stands for the one before
    uses.add_read(other.point(1))

    def named(points: list[TimelinePoint]) -> list[tuple[str, int]]:
        return [(p.queue.name, p.value) for p in points]

    assert named(uses.before_reading()) == [("gate", 1)]
    assert named(uses.before_writing()) == [("gate", 1), ("gate", 3), ("other", 1)]
    gate.set(3)
    assert named(uses.before_reading()) == [] and named(uses.before_writing()) == [("other", 1)]
    uses.set_written(gate.point(4))
    assert named(uses.before_writing()) == [("gate", 4)]


def test_many_uses_are_noted_as_one_by_one(gate: Timeline, other_gate: Timeline) -> None:
    one, many = ([Buffer("CPU", 4, dtypes.float32).allocate() for _ in range(3)] for _ in range(2))
    shared = np.zeros(4, np.float32)
    seen = [Buffer.from_numpy(shared), Buffer.from_numpy(shared)]
    commands = [(gate.point(1), 1, (0, 1, 2)), (gate.point(2), 0, (0, 1)), (other_gate.point(1), 1, (2, 0)),
                (gate.point(3), 2, (1, 2, 0))]
    for point, outputs, used in commands:
        for number, place in enumerate(used):
            one[place].add_use(point, number < outputs)
        assert not Buffer.add_uses(point, [many[place] for place in used], outputs)
    for left, right in zip(one, many, strict=True):
        assert left.uses is not None and right.uses is not None
        assert (left.uses.written, left.uses.reads) == (right.uses.written, right.uses.reads)
    assert Buffer.add_uses(gate.point(4), [many[0], seen[0]], 1) and Buffer.add_uses(gate.point(4), seen, 1)


def test_reads_that_are_repeated_are_noted_once_until_something_happens(gate: Timeline) -> None:
    memory = [Buffer("CPU", 4, dtypes.float32).allocate() for _ in range(3)]
    values, again = np.zeros(4, np.float32), RepeatedUse(memory)

    def awaited(buffer: Buffer) -> list[int]:
        return [point.value for point in buffer.root.uses.before_writing()] if buffer.uses else []

    for run in range(1, 9):
        noted = again.reads.is_noted
        assert not again.note(gate.point(run))
        assert [awaited(buffer)[-1] for buffer in memory] == [run] * 3, "each run stands for those before"
        assert noted == (run not in (1, 4, 7)) and again.reads.is_noted
        if run == 3:
            memory[0].add_use(gate.point(run), True)  # another command writes, in the queue's order
        elif run == 6:
            gate.set(run)
            memory[1].copyin(values.view(np.uint8).data)
    gate.set(8)
    assert [awaited(buffer) for buffer in memory] == [[]] * 3
    array = memory[2].numpy()
    for _ in range(2):
        assert again.note(gate.point(9)), "an array shows it: it is waited for"
    del array
    assert not again.note(gate.point(9)) and again.reads.is_noted
    for _ in range(20):
        RepeatedUse(memory).note(gate.point(8))
    assert memory[0].uses is not None and len(memory[0].uses.repeated) <= 8
    assert 9 in awaited(memory[0])


def test_what_is_read_again_is_looked_at_only_after_somebody_wrote_there(gate: Timeline) -> None:
    memory = [Buffer("CPU", 4, dtypes.float32).allocate() for _ in range(3)]
    again = RepeatedUse(memory)
    assert not again.is_ready
    again.note(gate.point(1))
    assert not again.is_ready, "nobody said that what was written before is done"
    again.was_ready = True
    assert again.is_ready
    memory[1].add_use(gate.point(2), True)
    assert not again.is_ready
    again.note(gate.point(3))
    assert again.is_ready


def test_replays_wait_for_weights_that_other_devices_write_between_them() -> None:
    weight = Tensor.zeros(512, 512).contiguous().realize()

    @TinyJit
    def product(x: Tensor) -> Tensor:
        return (x @ weight).realize()

    x = Tensor.ones(4, 512).realize()
    for number in range(12):
        if number % 3 == 2:  # replays before it found nothing to wait for
            large = Tensor.full((512, 512), float(number), device="CPU:1").contiguous()
            weight.assign(((large @ large) / 512 / number).to("CPU")).realize()
        expected = 512 * (number - (number + 1) % 3 if number > 1 else 0)
        np.testing.assert_allclose(product(x).numpy(), expected)


def test_replays_raise_what_kept_their_weights_from_being_computed() -> None:
    """Again and again, until there are weights."""
    weight = Tensor.ones(8).contiguous().realize()

    @TinyJit
    def scaled(x: Tensor) -> Tensor:
        return (x * weight).realize()

    x = Tensor.arange(8).float().realize()
    for _ in range(4):
        scaled(x)
    queue = HostQueue("test")
    buffer = weight.uop.buffer
    buffer.add_use(queue.exec(Failing(), [], [], 1), True)
    for _ in range(3):
        with pytest.raises(ValueError, match="not today"):
            scaled(x).numpy()
    queue.stop()


def test_an_interrupted_wait_can_be_repeated(gate: Timeline) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        interrupt_a_wait(gate)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_a_wait(gate: Timeline) -> None:
    x = Tensor(drawn(10)).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x * 0 + 2).realize()
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        y.numpy()
    gate.set(1)
    assert y.tolist() == [2.0] * 10


# --- threads, processes, the end ----------------------------------------------------------------------------


def test_threads_submit_at_once_and_each_gets_its_own_numbers(handed_over: None) -> None:
    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        for _ in range(40):
            a = own.standard_normal((30, 30)).astype(np.float32)
            x = Tensor(a)
            y = (x @ x).realize()
            np.testing.assert_allclose((y + seed).sum(0).numpy(), (a @ a + seed).sum(0), rtol=1e-2, atol=1e-3)

    started = [in_thread(lambda i=i: work(i)) for i in range(3)]
    for thread, errors in started:
        thread.join()
        assert not errors, errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_with_work_in_flight_has_its_results(handed_over: None) -> None:
    a = drawn(400, 400)
    x = Tensor(a).realize()
    step = TinyJit(lambda t: (t @ t * 0.01).realize())
    for _ in range(3):
        y = step(x)
    z = (y + 1).realize()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        fine = np.allclose(z.numpy(), a @ a * 0.01 + 1, atol=1e-3)
        fine = fine and np.allclose(step(x).numpy(), a @ a * 0.01, atol=1e-3)
        fine = fine and (x.to("CPU:1") * 0 + 1).sum().item() == 160000
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_allclose(z.numpy(), a @ a * 0.01 + 1, atol=1e-3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_copies_that_are_behind_each_other(handed_over: None, tmp_path: Path) -> None:
    path, content = file_of(tmp_path)
    copies = [from_file(path).to("CPU").realize() for _ in range(8)]
    sums = [(t + 1).realize() for t in copies]
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        fine = all(np.array_equal(t.numpy(), content + 1) for t in sums)
        fine = fine and np.array_equal(from_file(path).to("CPU").numpy(), content)
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    for t in sums:
        np.testing.assert_array_equal(t.numpy(), content + 1)


ENDINGS = {
    "with kernels in flight": "y = [(x @ x).realize() for _ in range(20)]",
    "with freed results in flight": "for _ in range(20): (x @ x).realize()",
    "with a kernel that waits for ever": "Device['CPU'].queue.wait(gate.point(1)); y = (x @ x).realize()",
    "with a copy that waits for ever":
        "Device['CPU:1'].copies.wait(gate.point(1)); y = x.to('CPU:1').realize(); z = (y + 1).realize()",
    "with a failed copy": "Device['CPU'].copies.call(lambda: 1 / 0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_with_work_in_flight(ending: str) -> None:
    program = ("import numpy as np\nfrom tinygrad import Tensor, Device\n"
               "from tinygrad.runtime.cpu_queue import Timeline\ngate = Timeline('gate')\n"
               "x = Tensor(np.ones((512, 512), np.float32)).realize()\n" + ENDINGS[ending])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_time_of_a_kernel_at_debug_2_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(drawn(256, 256)).realize()
    with Context(DEBUG=2):
        (x + 1).realize()
    (line,) = capsys.readouterr().out.splitlines()
    assert float(line.partition(" us ")[0].split()[-1]) > 0 and "CPU" in line


@pytest.mark.slow
def test_a_training_loop_that_never_reads_ends_right_and_leaks_nothing(handed_over: None) -> None:
    weight, expected = Tensor(np.zeros(64, np.float32)).contiguous().realize(), np.zeros(64, np.float32)
    step = TinyJit(lambda x: weight.assign(weight * 0.5 + x.sum(0)).realize())
    used = 0
    for number in range(5000):
        a = rng.integers(-4, 5, (16, 64)).astype(np.float32)
        step(Tensor(a))
        expected = expected * np.float32(0.5) + a.sum(0)
        if number == 100:
            gc.collect()
            used = GlobalCounters.mem_used
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)
    gc.collect()
    assert GlobalCounters.mem_used == used
    queue = Device["CPU"].queue
    queue.synchronize()
    cached = Device["CPU"].allocator.cached.values()
    assert not queue.kept and sum(uses is not None for blocks in cached for _, uses in blocks) < 100
