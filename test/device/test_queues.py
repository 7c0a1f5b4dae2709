"""Command queues: what each verb does, that work really goes on while the host does something else, and that
nobody sees a value too early, too late or of somebody else.

What is to be in flight is held back by a gate that the test opens, so no test depends on how fast anything
is.
"""
from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import drawn
from queue_programs import LARGE, file_of, from_file, in_thread
from queue_programs import gate as gate
from queue_programs import handed_over as handed_over
from queue_programs import queue as queue

from tinygrad import Context, Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.device.queue import CommandQueue
from tinygrad.helpers import GlobalCounters
from tinygrad.runtime import cpu_queue
from tinygrad.runtime.cpu_queue import CPUQueue, HostQueue, Timeline
from tinygrad.runtime.native_queue import RING

pytestmark = pytest.mark.usefixtures("on_cpu")


def adding() -> Any:
    """A kernel: out[i] = x[i] + y[i] for LARGE numbers."""
    from tinygrad.codegen.compile import compiled_kernel
    from tinygrad.engine.realize import schedule_uops
    x, y = (Tensor(np.zeros(LARGE, np.float32)) for _ in range(2))
    (item,) = schedule_uops([(x + y).uop])
    return compiled_kernel(item.ast, "CPU")


# --- the verbs ----------------------------------------------------------------------------------------------


def test_exec_runs_a_kernel_when_the_queue_gets_to_it(queue: Any, gate: Timeline) -> None:
    kernel = adding()
    x, y, out = drawn(LARGE), drawn(LARGE), np.zeros(LARGE, np.float32)
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
    x, out = drawn(LARGE), np.zeros(LARGE, np.float32)
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
    source = Buffer.from_numpy(drawn(LARGE))
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
    x, out = drawn(LARGE), np.zeros(LARGE, np.float32)
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
    a, other = drawn(64, 64), drawn(100)
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
    a = drawn(4)
    x = Tensor(a).realize()
    Device["CPU"].queue.wait(gate.point(1))
    y = (x * 3).realize()
    threading.Timer(0.02, lambda: gate.set(1)).start()
    np.testing.assert_array_equal(READINGS[reading](y, tmp_path), a * 3)


def test_replays_in_flight_have_their_own_arguments(gate: Timeline) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return ((x * 2).contiguous() + y).realize()

    given = [(drawn(300), drawn(300)) for _ in range(12)]
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


def test_what_a_replay_reads_in_every_run_is_not_written_before_it_did(gate: Timeline) -> None:
    weight, x = Tensor(drawn(300)).realize(), Tensor(drawn(300)).realize()
    before, given, new = weight.numpy().copy(), x.numpy().copy(), drawn(300)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x * weight).contiguous() + 1).realize()

    for _ in range(5):
        step(x)
    Device["CPU"].queue.wait(gate.point(1))
    found = step(x)
    memory = weight.uop.base.storage.buffer
    writer, errors = in_thread(lambda: memory.copyin(new.view(np.uint8).data))
    writer.join(0.2)
    assert writer.is_alive(), "it waits for the replay"
    gate.set(1)
    writer.join(30)
    assert not errors
    np.testing.assert_array_equal(found.numpy(), before * given + 1)
    np.testing.assert_array_equal(step(x).numpy(), new * given + 1)


def test_memory_that_is_freed_while_in_use_is_not_filled_by_the_host(gate: Timeline) -> None:
    gc.collect()
    a, b = drawn(5000), drawn(5000)
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
    a = drawn(LARGE)
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
    x = Tensor(drawn(1000)).realize()
    before = GlobalCounters.mem_used
    Device["CPU"].queue.wait(gate.point(1))
    with Context(DYNAMIC_SHAPES=0):
        y = (x + 1).realize()
    assert GlobalCounters.mem_used - before == 4000
    del y
    assert GlobalCounters.mem_used == before


# --- memory that others see ---------------------------------------------------------------------------------


def test_kernels_on_a_shared_array_are_done_when_realize_returns(handed_over: None) -> None:
    array = drawn(5000)
    before = array.copy()
    x = Tensor.from_dlpack(array)
    y = (x + 1).realize()
    array[:] = 0
    np.testing.assert_array_equal(y.numpy(), before + 1)
    z = (Tensor.from_dlpack(array) + 2).realize()
    del array
    assert z.tolist() == [2.0] * 5000


def test_a_view_of_a_tensor_shows_what_was_assigned_when_realize_returns(handed_over: None) -> None:
    a = drawn(5000)
    x = Tensor(a).contiguous().realize()
    view = np.asarray(x)
    x.assign(x + 1).realize()
    np.testing.assert_array_equal(view, a + 1)
    step = TinyJit(lambda: x.assign(x * 2).realize())
    for number in range(1, 6):
        step()
        np.testing.assert_array_equal(view, (a + 1) * np.float32(2**number))


# --- copies -------------------------------------------------------------------------------------------------


def test_a_copy_ends_while_a_kernel_waits_and_a_kernel_while_a_copy_does(gate: Timeline, tmp_path: Path
                                                                         ) -> None:
    path, content = file_of(tmp_path)
    cpu = Device["CPU"]
    a = drawn(100)
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
    a = drawn(LARGE)
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
    a = drawn(70, 50)
    t = Tensor(a, device=devices[0])
    for _ in range(3):
        for device in devices[1:]:
            t = (t.to(device) * 2 + 1).realize()
            a = a * 2 + 1
    np.testing.assert_allclose(t.numpy(), a, rtol=1e-6)
