"""Command queues: what each verb does, that work really goes on while the host does something else, and that
nobody sees a value too early, too late or of somebody else.

What is to be in flight is held back by a gate that the test opens, so no test depends on how fast anything
is.
"""
from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.device.queue import CommandQueue, TimelinePoint, Uses
from tinygrad.engine.realize import ordered
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.runtime import cpu_queue
from tinygrad.runtime.cpu_queue import CPUQueue, HostQueue, Timeline
from tinygrad.runtime.native_queue import RING

pytestmark = pytest.mark.usefixtures("on_cpu")
LARGE = 1 << 20
rng = np.random.default_rng(11)


@pytest.fixture
def gate() -> Iterator[Timeline]:
    """What queues can be made to wait for; open at the test's end."""
    timeline = Timeline("gate")
    yield timeline
    timeline.set(1 << 40)
    Device.synchronize()


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work goes to queues' threads, however short."""
    monkeypatch.setattr(cpu_queue, "HAND_OVER", 0.0)


@pytest.fixture(params=[CPUQueue, HostQueue])
def queue(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue of the CPU that nobody else uses."""
    made = request.param("test")
    yield made
    made.stop()


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def adding() -> Any:
    """A kernel: out[i] = x[i] + y[i] for LARGE numbers."""
    from tinygrad.codegen.compile import compiled_kernel
    from tinygrad.engine.realize import schedule_uops
    x, y = (Tensor(np.zeros(LARGE, np.float32)) for _ in range(2))
    (item,) = schedule_uops([(x + y).uop])
    return compiled_kernel(item.ast, "CPU")


def in_thread(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


# --- the verbs ----------------------------------------------------------------------------------------------


def test_exec_runs_a_kernel_when_the_queue_gets_to_it(queue: Any, gate: Timeline) -> None:
    kernel = adding()
    x, y, out = numbers(LARGE), numbers(LARGE), np.zeros(LARGE, np.float32)
    queue.wait(gate.point(1))
    point = queue.exec(kernel.program, [a.ctypes.data for a in (out, x, y)], [], kernel.extent, 1.0)
    assert not point.is_past and not queue.is_idle and not out.any()
    gate.set(1)
    point.wait()
    assert point.is_past
    np.testing.assert_array_equal(out, x + y)


def test_short_work_runs_at_once_on_an_idle_queue_and_in_turn_on_a_busy_one(queue: Any, gate: Timeline
                                                                            ) -> None:
    kernel = adding()
    x, out = numbers(LARGE), np.zeros(LARGE, np.float32)
    addresses = [a.ctypes.data for a in (out, x, out)]
    assert queue.exec(kernel.program, addresses, [], kernel.extent, 0.0) is None
    np.testing.assert_array_equal(out, x)
    queue.wait(gate.point(1))
    assert not queue.exec(kernel.program, addresses, [], kernel.extent, 0.0).is_past
    np.testing.assert_array_equal(out, x)
    gate.set(1)
    queue.synchronize()
    np.testing.assert_array_equal(out, x + x)


def test_copy_moves_bytes_from_an_offset_on(queue: Any, gate: Timeline) -> None:
    source = Buffer.from_numpy(numbers(LARGE))
    target = Buffer("CPU", LARGE - 8, dtypes.float32).allocate()
    queue.wait(gate.point(3))
    point = queue.copy(target, source, 32)
    assert not point.is_past
    gate.set(3)
    point.wait()
    np.testing.assert_array_equal(target.copied(), source.copied()[8:])


def test_a_signal_comes_after_what_was_given_before_it(queue: Any, gate: Timeline) -> None:
    seen = Timeline("seen")
    queue.wait(gate.point(1))
    first = queue.signal(seen, 5)
    queue.wait(gate.point(2))
    second = queue.signal(seen, 9)
    assert seen.value == 0
    gate.set(1)
    seen.wait(5)
    first.wait()
    assert seen.value == 5 and not second.is_past
    gate.set(2)
    second.wait()
    assert seen.value == 9


def test_queues_wait_for_each_other(gate: Timeline) -> None:
    """Each needs the other one in the middle of its work, so both are at work at once."""
    kernels, copies = CPUQueue("kernels"), HostQueue("copies")
    order: list[str] = []
    step = Timeline("step")
    copies.wait(kernels.signal(step, 1))
    middle = copies.call(lambda: order.append(f"copied at {step.value}"))
    kernels.wait(middle)
    copies.wait(kernels.signal(step, 2))
    copies.call(lambda: order.append(f"ended at {step.value}")).wait()
    assert order == ["copied at 1", "ended at 2"]
    kernels.stop()
    copies.stop()


def test_timestamps_are_taken_where_they_stand(queue: Any, gate: Timeline) -> None:
    first = queue.timestamp()
    queue.wait(gate.point(1))
    second = queue.timestamp()
    early = cpu_queue.clock()
    gate.set(1)
    late = second.seconds
    assert first.seconds <= early <= late <= cpu_queue.clock()


def test_a_queue_without_threads_does_everything_at_once() -> None:
    plain, kernel = CommandQueue("plain"), adding()
    x, out = numbers(LARGE), np.zeros(LARGE, np.float32)
    assert plain.exec(kernel.program, [a.ctypes.data for a in (out, x, x)], [], kernel.extent, 9.0) is None
    np.testing.assert_array_equal(out, x + x)
    assert plain.signal().is_past and plain.timestamp().seconds <= plain.timestamp().seconds


@pytest.mark.parametrize("count", [RING - 1, RING, 3 * RING + 7])
def test_a_ring_takes_any_number_of_commands(count: int) -> None:
    queue, seen = CPUQueue("test"), Timeline("seen")
    for number in range(count):
        queue.signal(seen, number + 1)
    queue.synchronize()
    assert seen.value == count and queue.is_idle
    queue.stop()


def test_a_stopped_queue_starts_again(queue: Any) -> None:
    for value in (1, 2, 3):
        seen = Timeline("seen")
        queue.signal(seen, value).wait()
        assert seen.value == value
        queue.stop()


# --- realize returns, reading waits -------------------------------------------------------------------------


def test_realize_returns_before_the_work_is_done_and_reading_waits_for_it(gate: Timeline) -> None:
    a, other = numbers(64, 64), numbers(100)
    x, unrelated = Tensor(a).realize(), Tensor(other).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x @ x + 1).realize()
    z = y.relu().realize()
    assert not Device["CPU"].queue.is_idle
    np.testing.assert_array_equal(unrelated.numpy(), other)  # neither these nor
    np.testing.assert_array_equal(x.numpy(), a)              # what is only read have to wait
    found: list[Any] = []
    thread, errors = in_thread(lambda: found.append((y.numpy(), z.numpy())))
    assert not found
    gate.set(1)
    thread.join()
    assert not errors
    np.testing.assert_allclose(found[0][0], a @ a + 1, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[0][1], np.maximum(a @ a + 1, 0), rtol=1e-4, atol=1e-4)


READINGS: dict[str, Callable[[Tensor, Path], Any]] = {
    "numpy": lambda t, _: t.numpy(),
    "tolist": lambda t, _: np.array(t.tolist(), np.float32),
    "item": lambda t, _: np.array([t[i].item() for i in range(4)], np.float32),
    "asarray": lambda t, _: np.array(np.asarray(t)),
    "data": lambda t, _: np.array(t.data()),
    "dlpack": lambda t, _: np.array(np.from_dlpack(t)),
    "file": lambda t, path: np.fromfile(str(saved(t, path)), np.float32),
    "another device": lambda t, _: t.to("CPU:1").numpy(),
    "Python's device": lambda t, _: (t.to("PYTHON") * 1).numpy(),
}


def saved(t: Tensor, path: Path) -> Path:
    t.to(f"DISK:{path / 'saved'}").realize()
    return path / "saved"


@pytest.mark.parametrize("reading", READINGS)
def test_every_way_to_read_waits(reading: str, gate: Timeline, tmp_path: Path) -> None:
    a = numbers(4)
    x = Tensor(a).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x * 3).realize()
    threading.Timer(0.02, lambda: gate.set(1)).start()
    np.testing.assert_array_equal(READINGS[reading](y, tmp_path), a * 3)


def test_replays_in_flight_have_their_own_arguments(gate: Timeline) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return ((x * 2).contiguous() + y).realize()

    given = [(numbers(300), numbers(300)) for _ in range(12)]
    tensors = [(Tensor(a).realize(), Tensor(b).realize()) for a, b in given]
    for x, y in tensors[:2]:
        step(x, y)
    Device["CPU"].queue.wait(gate.point(1))
    outputs = [step(x, y) for x, y in tensors[:4]]
    assert not Device["CPU"].queue.is_idle
    gate.set(1)
    outputs += [step(x, y) for x, y in tensors[4:]]
    for (a, b), out in zip(given, outputs, strict=True):
        np.testing.assert_array_equal(out.numpy(), a * 2 + b)


def test_memory_that_is_freed_while_in_use_is_not_filled_by_the_host(gate: Timeline) -> None:
    gc.collect()
    a, b = numbers(5000), numbers(5000)
    x = Tensor(a).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x + 1).realize()
    del y                           # its memory will be written when the gate opens
    z = Tensor(b).realize()         # without waiting for that
    w = (z - 1).realize()           # in memory that may be the same: after that
    gate.set(1)
    np.testing.assert_array_equal(w.numpy(), b - 1)
    np.testing.assert_array_equal(z.numpy(), b)


def test_memory_that_was_freed_and_given_back_stays_until_nobody_uses_it(gate: Timeline) -> None:
    a = numbers(LARGE)
    x = Tensor(a).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x + 1).sum().realize()
    z = (x * 2).realize()
    del x, z
    gc.collect()
    Device["CPU"].allocator.free_cache()
    others = [np.full(LARGE, 7.0, np.float32) for _ in range(4)]
    gate.set(1)
    np.testing.assert_allclose(y.item(), (a + 1).sum(), rtol=1e-4)
    assert all((o == 7).all() for o in others)


def test_what_is_used_is_exact_while_work_is_in_flight(gate: Timeline) -> None:
    gc.collect()
    x = Tensor(numbers(1000)).realize()
    before = GlobalCounters.mem_used
    Device["CPU"].queue.wait(gate.point(1))
    y = (x + 1).realize()
    assert GlobalCounters.mem_used - before == 4000
    del y
    assert GlobalCounters.mem_used == before


# --- memory that others see ---------------------------------------------------------------------------------


def test_kernels_on_a_shared_array_are_done_when_realize_returns(handed_over: None) -> None:
    array = numbers(5000)
    before = array.copy()
    x = Tensor.from_dlpack(array)
    y = (x + 1).realize()
    array[:] = 0
    np.testing.assert_array_equal(y.numpy(), before + 1)
    z = (Tensor.from_dlpack(array) + 2).realize()
    del array
    assert z.tolist() == [2.0] * 5000


def test_a_view_of_a_tensor_shows_what_was_assigned_when_realize_returns(handed_over: None) -> None:
    a = numbers(5000)
    x = Tensor(a).contiguous().realize()
    view = np.asarray(x)
    x.assign(x + 1).realize()
    np.testing.assert_array_equal(view, a + 1)
    step = TinyJit(lambda: x.assign(x * 2).realize())
    for number in range(1, 6):
        step()
        np.testing.assert_array_equal(view, (a + 1) * np.float32(2**number))


# --- copies -------------------------------------------------------------------------------------------------


def file_of(path: Path, items: int = LARGE) -> tuple[Path, np.ndarray[Any, Any]]:
    content = numbers(items)
    content.tofile(path / "data")
    return path / "data", content


def from_file(path: Path, items: int = LARGE) -> Tensor:
    return Tensor.empty(items, device=f"DISK:{path}")


def test_a_copy_ends_while_a_kernel_waits_and_a_kernel_while_a_copy_does(gate: Timeline, tmp_path: Path
                                                                         ) -> None:
    path, content = file_of(tmp_path)
    cpu = Device["CPU"]
    a = numbers(100)
    x = Tensor(a).realize()
    cpu.queue.wait(gate.point(1))
    y = (x + 1).realize()
    t = from_file(path).to("CPU").realize()
    np.testing.assert_array_equal(t.numpy(), content)
    assert not cpu.queue.is_idle
    gate.set(1)
    np.testing.assert_array_equal(y.numpy(), a + 1)
    cpu.copies.wait(gate.point(2))
    t = from_file(path).to("CPU").realize()
    np.testing.assert_array_equal((x * 2).numpy(), a * 2)
    assert not cpu.copies.is_idle
    gate.set(2)
    np.testing.assert_array_equal(t.numpy(), content)


def test_a_kernel_runs_after_the_copy_that_it_needs(gate: Timeline, tmp_path: Path) -> None:
    path, content = file_of(tmp_path)
    Device["CPU"].copies.wait(gate.point(1))
    t = from_file(path).to("CPU").realize()
    y = (t * 2).realize()
    assert not Device["CPU"].queue.is_idle
    gate.set(1)
    np.testing.assert_array_equal(y.numpy(), content * 2)


def test_a_write_comes_after_the_copy_that_still_reads(gate: Timeline) -> None:
    a = numbers(LARGE)
    x = Tensor(a).contiguous().realize()
    Device["CPU:1"].copies.wait(gate.point(1))
    y = x.to("CPU:1").realize()
    x.assign(x * 0).realize()
    gate.set(1)
    np.testing.assert_array_equal(y.numpy(), a)
    assert not x.numpy().any()


@pytest.mark.parametrize("devices", [("CPU", "CPU:1", "CPU"), ("CPU", "PYTHON", "CPU:1"),
                                     ("CPU", "CL", "CPU"), ("CL", "CPU", "CL:0"), ("CPU", "WEBGPU", "CPU")])
def test_values_go_round_devices(devices: tuple[str, ...], handed_over: None) -> None:
    for device in devices:
        try:
            Device[device]
        except (ImportError, OSError, RuntimeError) as reason:
            pytest.skip(str(reason))
    a = numbers(70, 50)
    t = Tensor(a, device=devices[0])
    for _ in range(3):
        for device in devices[1:]:
            t = (t.to(device) * 2 + 1).realize()
            a = a * 2 + 1
    np.testing.assert_allclose(t.numpy(), a, rtol=1e-6)


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


def test_an_interrupted_wait_can_be_repeated(gate: Timeline) -> None:
    x = Tensor(numbers(10)).realize()
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
    a = numbers(400, 400)
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
    x = Tensor(numbers(256, 256)).realize()
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
