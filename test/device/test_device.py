"""Devices by name, buffers and their memory, and kernels shared out over threads."""
from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading  # noqa: F401  # for programs of `run_python`
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threads import in_threads

from tinygrad import Tensor
from tinygrad.device import Buffer, Device
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters
from tinygrad.runtime.cpu_pool import KernelList, even_chunk
from tinygrad.runtime.llvm import compile_ir  # noqa: F401  # for programs of `run_python`

F = dtypes.float32
ROOT = Path(__file__).parents[2]


def adding(count: int, per_iteration: int = 1) -> list[UOp]:
    """for i in 0..count, over threads: for j in 0..n: k = i * per_iteration + j; p0[k] = p1[k] + i"""
    outer = UOp.range(count, 0, RangeKind.THREAD)
    inner = UOp.range(UOp.variable("n", 0, per_iteration), 1)
    target, source = (UOp.new(Ops.PARAM, F, (), (slot, count * per_iteration)) for slot in (0, 1))
    offset = outer * per_iteration + inner
    store = target.index(offset).store(source.index(offset).load() + outer.cast(F))
    nodes = [outer.src[0], *inner.src, outer, inner]
    nodes = [*dict.fromkeys([*nodes, *store.toposort()])]
    return [*nodes, UOp.new(Ops.END, dtypes.index, (inner,)), UOp.new(Ops.END, dtypes.index, (outer,))]


def staged(count: int) -> list[UOp]:
    """Each iteration writes its number over its thread's scratch memory, then adds that memory up."""
    items = 64
    outer = UOp.range(count, 0, RangeKind.THREAD)
    scratch = UOp.new(Ops.SCRATCH, F, (), (0, items))
    total = UOp.new(Ops.REGISTER, F, (), 0)
    target = UOp.new(Ops.PARAM, F, (), (0, count))
    first, second = UOp.range(items, 1), UOp.range(items, 2)
    fill = scratch.index(first).store(outer.cast(F))
    before = UOp.new(Ops.LOAD, F, (total,), 0)
    after = UOp.new(Ops.LOAD, F, (total,), 1)
    kept = scratch.index(second).load()
    nodes: list[UOp] = []

    def add(*roots: UOp) -> None:
        for root in roots:
            nodes.extend(n for n in root.toposort(stop=lambda n: n in nodes) if n not in nodes)

    add(target, scratch, outer, total.store(UOp.const(0.0, F)), first, fill)
    nodes.append(UOp.new(Ops.END, dtypes.index, (first,)))
    add(second, kept, before, total.store(before + kept))
    nodes.append(UOp.new(Ops.END, dtypes.index, (second,)))
    add(after, target.index(outer).store(after))
    return [*nodes, UOp.new(Ops.END, dtypes.index, (outer,))]


def loaded(program: list[UOp]) -> Any:
    device = Device["CPU"]
    code = device.compile(device.renderer.render("kernel", program))
    return device.load("kernel", code, device.renderer.scratch_bytes(program))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`code` in a new interpreter, with this module's programs at hand."""
    folders = [str(folder) for folder in (ROOT, ROOT / "test", ROOT / "test" / "device")]
    start = f"import sys; sys.path[:0] = {folders}\nfrom test_device import *\n"
    return subprocess.run([sys.executable, "-c", start + textwrap.dedent(code)], capture_output=True,
                          text=True, timeout=60, env={**os.environ, **environment}, check=False)


NOTE_THREADS = """
define void @note(ptr %buffers, ptr %variables, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %out = load ptr, ptr %buffers
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr ptr, ptr %out, i64 %i
  store ptr %scratch, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %after
after:
  ret void
}
"""
"""A kernel that writes, for each iteration, the scratch memory of the thread that runs it."""


# --- devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CPU", "cpu", "CPU:0", "llvm", "cpu:llvm"])
def test_one_device_has_several_names(name: str) -> None:
    assert Device.canonicalize(name) == "CPU"
    assert Device[name] is Device["CPU"]


def test_devices_of_a_kind_are_numbered() -> None:
    assert Device.canonicalize("cpu:1") == "CPU:1"
    assert Device["CPU:1"] is not Device["CPU"]


@pytest.mark.parametrize("name", ["no_such_device", "", "CPU:x", "CPU:-1"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    for attempt in (Device.canonicalize, Device.__getitem__, lambda n: setattr(Device, "DEFAULT", n)):
        with pytest.raises((ValueError, RuntimeError)) as error:
            attempt(name)
        assert repr(name) in str(error.value)
        if name != "CPU:x" and name != "CPU:-1":
            assert "available: CPU" in str(error.value)


def test_the_environment_names_the_default_device() -> None:
    assert run_python("print(Device.DEFAULT)", DEV="cpu:1").stdout == "CPU:1\n"
    assert "ValueError" in run_python("print(Device.DEFAULT)", DEV="nonsense").stderr


def test_a_device_is_announced_once() -> None:
    result = run_python("Device['CPU']; Device['cpu']; Device['CPU']", DEBUG="1")
    assert result.stdout.count("opened") == 1 and "CPU" in result.stdout


def test_the_runtime_path_of_early_scripts() -> None:
    from tinygrad.runtime.lib import Device as same

    assert same is Device


# --- buffers -------------------------------------------------------------------------------------------


def test_memory_comes_when_it_is_needed_and_is_aligned() -> None:
    buffer = Buffer("CPU", 100, F)
    assert not buffer.is_allocated and buffer.nbytes == 400
    assert buffer.address % 64 == 0 and buffer.is_allocated


def test_numpy_shares_the_memory_of_a_buffer() -> None:
    buffer = Buffer("CPU", 4, dtypes.bfloat16)
    buffer.copyin(memoryview(np.array([1, 2, 3, 4], dtype=ml_dtypes.bfloat16).view(np.uint8)))
    seen = buffer.numpy()
    assert seen.dtype == ml_dtypes.bfloat16 and seen.ctypes.data == buffer.address
    out = bytearray(8)
    buffer.copyout(memoryview(out))
    np.testing.assert_array_equal(np.frombuffer(out, ml_dtypes.bfloat16), seen)


def test_an_array_keeps_the_memory_that_it_shows() -> None:
    buffer = Buffer("CPU", 1000, F).allocate()
    seen = buffer.numpy()
    seen[:] = 7
    del buffer
    gc.collect()
    others = [Buffer("CPU", 1000, F).allocate() for _ in range(4)]
    for other in others:
        other.numpy()[:] = 1
    np.testing.assert_array_equal(seen, np.full(1000, 7))


def test_numpy_memory_is_used_in_place() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    buffer = Buffer.from_numpy(array)
    assert buffer.address == array.ctypes.data
    buffer.numpy()[0] = 9
    assert array[0, 0] == 9
    del array
    gc.collect()
    assert buffer.numpy().tolist() == [9, 1, 2, 3, 4, 5]


def test_memory_that_cannot_be_shared_is_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    fixed = array.copy()
    fixed.flags.writeable = False
    odd = np.frombuffer(bytearray(25), dtype=np.uint8)[1:].view(np.float32)
    for memory in (array.T, array[:, ::2], fixed, odd):
        buffer = Buffer.from_numpy(memory)
        assert buffer.address != memory.ctypes.data
        np.testing.assert_array_equal(buffer.numpy(), memory.reshape(-1))


def test_a_type_without_tensors_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        Buffer.from_numpy(np.zeros(2, dtype=np.complex64))


def test_buffers_may_be_empty() -> None:
    buffer = Buffer("CPU", 0, F).allocate()
    assert buffer.nbytes == 0 and buffer.address != 0 and buffer.numpy().shape == (0,)
    buffer.copyin(memoryview(b""))
    buffer.copyout(memoryview(bytearray()))
    assert Buffer.from_numpy(np.zeros((0, 3), np.float32)).size == 0


def test_copies_of_the_wrong_length_are_refused() -> None:
    buffer = Buffer("CPU", 4, F)
    with pytest.raises(ValueError, match="12 bytes.*16"):
        buffer.copyin(memoryview(bytes(12)))
    with pytest.raises(ValueError, match="16 bytes into 12"):
        buffer.copyout(memoryview(bytearray(12)))


# --- memory of a device --------------------------------------------------------------------------------


def test_freed_memory_is_used_again() -> None:
    buffer = Buffer("CPU", 123_457, F).allocate()
    address = buffer.address
    del buffer
    gc.collect()
    assert Buffer("CPU", 123_457, F).address == address


def test_the_counters_know_what_live_buffers_hold() -> None:
    gc.collect()
    before = GlobalCounters.mem_used
    buffers = [Buffer("CPU", n, F).allocate() for n in (0, 1, 1000)]
    assert GlobalCounters.mem_used - before == 4004
    assert GlobalCounters.mem_peak >= before + 4004
    buffers[2].allocate()
    assert GlobalCounters.mem_used - before == 4004
    del buffers
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_ten_thousand_buffers_leave_memory_where_it_was() -> None:
    after = []
    for _ in range(2):  # the first ten thousand also outlast what earlier tests left to be freed
        for n in range(10_000):
            Buffer("CPU", n % 50, F).allocate()
        gc.collect()
        after.append(GlobalCounters.mem_used)
    assert after[0] == after[1]


def test_cached_memory_can_be_given_back() -> None:
    del_me = Buffer("CPU", 54_321, F).allocate()
    del del_me
    gc.collect()
    allocator = Device["CPU"].allocator
    assert allocator.cached_bytes > 0
    allocator.free_cache()
    assert allocator.cached_bytes == 0


def test_out_of_memory_says_how_much_was_asked_for() -> None:
    held = Buffer("CPU", 1 << 20, F).allocate()
    del held
    message = r"CPU has no 4,611,686,018,427,387,904 bytes left: [\d,]+ are used and \d+,\d{3},\d{3} cached"
    with pytest.raises(MemoryError, match=message):
        Buffer("CPU", 2**60, F).allocate()
    assert Buffer("CPU", 10, F).allocate().is_allocated


def test_buffers_made_by_several_threads_are_counted_right() -> None:
    gc.collect()
    before = GlobalCounters.mem_used

    def work(number: int) -> None:
        for n in range(2000):
            Buffer("CPU", n % 7 + 1, F).allocate()

    in_threads(work, 4)
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_buffers_that_the_garbage_collector_finds_at_a_bad_moment_are_freed() -> None:
    result = run_python("""
        import faulthandler
        faulthandler.dump_traceback_later(20, exit=True)
        class Node: pass
        Device["CPU"]
        before = GlobalCounters.mem_used
        gc.set_threshold(1)
        for n in range(1, 500):
            node = Node()
            node.itself, node.buffer = node, Buffer("CPU", 64 * n, F).allocate()
            del node
            Buffer("CPU", 64 * n + 16, F).allocate()
        gc.collect()
        print(GlobalCounters.mem_used - before)
    """)
    assert result.stdout == "0\n", result.stderr


# --- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100, 999, 1000])
def test_every_iteration_runs_once(count: int) -> None:
    kernel = loaded(adding(count, 3))
    x, out = np.random.default_rng(count).random(3 * count, np.float32), np.zeros(3 * count, np.float32)
    for _ in range(20):
        out[:] = x  # in place: an iteration that ran twice would add twice
        kernel([out.ctypes.data, out.ctypes.data], [3], count)
    np.testing.assert_array_equal(out, x + np.repeat(np.arange(count, dtype=np.float32), 3))


@pytest.mark.parametrize("count", [1, 5, 400])
def test_threads_have_scratch_memory_of_their_own(count: int) -> None:
    kernel, out = loaded(staged(count)), np.zeros(count, np.float32)
    for _ in range(50):
        kernel([out.ctypes.data], [], count)
        np.testing.assert_array_equal(out, np.arange(count, dtype=np.float32) * 64)


def test_kernels_after_a_rest_find_the_workers_again() -> None:
    kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
    for rest in (0.0, 0.0001, 0.001, 0.02) * 20:
        out[:] = 0
        time.sleep(rest)
        kernel([out.ctypes.data, out.ctypes.data], [1], 64)
        np.testing.assert_array_equal(out, np.arange(64, dtype=np.float32))


def test_several_python_threads_may_run_kernels() -> None:
    kernel, staging = loaded(adding(200, 4)), loaded(staged(300))

    def work(number: int) -> None:
        x, y = np.zeros(800, np.float32), np.zeros(300, np.float32)
        for _ in range(200):
            x[:] = 1
            kernel([x.ctypes.data, x.ctypes.data], [4], 200)
            staging([y.ctypes.data], [], 300)
            np.testing.assert_array_equal(x, 1 + np.repeat(np.arange(200, dtype=np.float32), 4))
            np.testing.assert_array_equal(y, np.arange(300, dtype=np.float32) * 64)

    in_threads(work, 4)


def test_a_list_of_kernels_runs_in_order_on_what_it_is_given() -> None:
    kernel, tiny = loaded(adding(100)), loaded(adding(1))
    x = np.zeros(100, np.float32)
    at = x.ctypes.data
    sums = (kernel, [at, at], [1], 100)
    calls = KernelList([sums, (tiny, [at, at + 4], [1], 1), sums])
    expected = np.zeros(100, np.float32)
    for _ in range(300):
        calls()
        expected += np.arange(100, dtype=np.float32)
        expected[0] = expected[1]
        expected += np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(x, expected)
    KernelList([])()


def test_one_thread_does_everything_alone() -> None:
    result = run_python("""
        kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
        kernel([out.ctypes.data, out.ctypes.data], [1], 64)
        assert (out == np.arange(64)).all()
        print(Device['CPU'].renderer.machine.threads, threading.active_count())
    """, THREADS="1")
    assert result.stdout == "1 1\n", result.stderr


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_each_iteration_runs_once_whatever_the_extents(threads: int) -> None:
    result = run_python("""
        kernel, out = loaded(adding(2000)), np.zeros(2000, np.float32)
        arguments, expected = [out.ctypes.data, out.ctypes.data], np.zeros(2000, np.float32)
        for extent in np.random.default_rng(0).integers(1, 2000, 3000).tolist() + [1, 2, 3, 5] * 500:
            kernel(arguments, [1], extent)
            expected[:extent] += np.arange(extent, dtype=np.float32)
        assert (out == expected).all()
    """, THREADS=str(threads))
    assert not result.returncode, result.stderr


def test_a_thread_takes_of_the_others_part_when_its_own_is_done() -> None:
    result = run_python("""
        from tinygrad.runtime.cpu_pool import CPUProgram, pool
        from tinygrad.runtime.cpu_threads import SCRATCH
        program = CPUProgram("note", compile_ir(NOTE_THREADS), scratch=64)
        noted, began = np.zeros((2, 100_000), np.int64), set()
        for _ in range(300):
            program([noted.ctypes.data], [], noted.size)
            threads = pool().slots[SCRATCH:SCRATCH + 2]
            assert set(noted.ravel()) <= set(threads)
            for own, others in ((0, 1), (1, 0)):
                began.add((own, noted[own, 0] == threads[own]))
                assert noted[own, 0] == threads[own] or (noted[others] == threads[others]).all()
        assert {(0, True), (1, True)} <= began, began
    """, THREADS="2")
    assert not result.returncode, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to processors on Linux")
def test_workers_leave_the_processor_of_the_thread_that_launches() -> None:
    result = run_python("""
        from tinygrad.runtime.cpu_pool import pool
        everywhere = os.sched_getaffinity(0)
        kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
        arguments = [out.ctypes.data, out.ctypes.data], [1], 64
        workers = [worker.native_id for worker in pool().workers]
        for processor in [*everywhere] * 2:
            os.sched_setaffinity(0, {processor})
            kernel(*arguments)
            bound = [os.sched_getaffinity(worker) for worker in workers]
            assert set().union(*bound) == everywhere - {processor}, (processor, bound)
            assert all(len(processors) == 1 for processors in bound), bound
        assert (out == 2 * len(everywhere) * np.arange(64)).all()
    """, THREADS="0")
    assert not result.returncode, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to processors on Linux")
def test_workers_go_anywhere_where_there_are_not_as_many_threads_as_processors() -> None:
    result = run_python("""
        from tinygrad.runtime.cpu_pool import pool
        kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
        kernel([out.ctypes.data, out.ctypes.data], [1], 64)
        assert all(os.sched_getaffinity(w.native_id) == os.sched_getaffinity(0) for w in pool().workers)
    """, THREADS=str(len(os.sched_getaffinity(0)) + 1))
    assert not result.returncode, result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_kernels_and_ends() -> None:
    result = run_python("""
        kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
        kernel([out.ctypes.data, out.ctypes.data], [1], 64)
        time.sleep(0.05)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                for _ in range(20):
                    out[:] = 0
                    kernel([out.ctypes.data, out.ctypes.data], [1], 64)
                os._exit(0 if (out == np.arange(64)).all() else 1)
            children.append(child)
        print([os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children])
        kernel([out.ctypes.data, out.ctypes.data], [1], 64)
    """, THREADS="4")
    assert (result.stdout, result.returncode) == ("[0, 0, 0]\n", 0), result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_list_made_before_a_fork_runs_in_the_child() -> None:
    result = run_python("""
        kernel, out = loaded(staged(8)), np.zeros(8, np.float32)
        calls = KernelList([(kernel, [out.ctypes.data], [], 8)])
        calls()
        child = os.fork()
        if child == 0:
            out[:] = 0
            calls()
            os._exit(0 if (out == np.arange(8) * 64).all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert result.stdout == "0\n", result.stderr


@pytest.mark.parametrize("rest", [0.0, 0.1])
def test_the_interpreter_ends_with_workers_awake_or_asleep(rest: float) -> None:
    for _ in range(2):
        result = run_python(f"""
            kernel, out = loaded(adding(64)), np.zeros(64, np.float32)
            for _ in range(50):
                kernel([out.ctypes.data, out.ctypes.data], [1], 64)
            time.sleep({rest})
            print('end')
        """, THREADS="4")
        assert (result.stdout, result.stderr, result.returncode) == ("end\n", "", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_an_interrupt_during_a_kernel_leaves_everything_usable() -> None:
    result = run_python("""
        kernel = loaded(adding(256, 100_000))
        small, x = loaded(adding(64)), np.zeros(64, np.float32)
        import signal
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        long = np.zeros(256 * 100_000, np.float32)
        try:
            while True:
                kernel([long.ctypes.data, long.ctypes.data], [100_000], 256)
        except KeyboardInterrupt:
            small([x.ctypes.data, x.ctypes.data], [1], 64)
            assert (x == np.arange(64)).all()
            print('usable')
    """)
    assert result.stdout == "usable\n", result.stderr


def test_importing_opens_no_device_and_compiles_nothing() -> None:
    result = run_python("""
        import tinygrad
        from tinygrad.device import Device
        print(threading.active_count(), 'llvmlite.binding' in sys.modules and len(Device.opened))
    """)
    assert result.stdout.split()[0] == "1" and result.stdout.split()[1] in ("0", "False"), result.stderr


def test_equal_constants_are_computed_on_the_device_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "_default", "PYTHON")
    first = (Tensor.arange(3) * 5).realize()
    monkeypatch.setattr(Device, "_default", "CPU")
    second = Tensor.arange(3) * 5
    assert (second.device, second.realize().device, first.device) == ("CPU", "CPU", "PYTHON")
    assert second.tolist() == first.tolist() == [0, 5, 10]


@given(st.integers(1, 500), st.integers(1, 9))
def test_threads_that_take_chunks_in_turns_have_about_as_many_iterations_each(extent: int,
                                                                              threads: int) -> None:
    size = even_chunk(extent, threads)
    starts = range(0, extent, size)
    taken = [sum(min(size, extent - start) for start in starts[i::threads]) for i in range(threads)]
    assert sum(taken) == extent and len(starts) >= min(extent, threads)
    assert max(taken) <= max(-(-extent // threads), 1.15 * extent / threads)
