"""Tensors in several processes: pools that are forked and spawned, sudden ends, memory that runs out.

Programs that end run in a process of their own, and must end with the status and the output that plain Python
would give them.
"""
import gc
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor, TinyJit
from tinygrad.device import Buffer, Device
from tinygrad.dtype import dtypes

METHODS = multiprocessing.get_all_start_methods()


def product(number):
    """Work for a pool: some kernels, a traced function, and what they give."""
    x = Tensor(np.full((40, 40), number, np.float32))
    step = TinyJit(lambda t: (t @ t).sum())
    return [step(x + i).item() for i in range(3)] + [(x.softmax() * 40).mean().item()]


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_computes_with_tensors(method):
    own = product(1)  # the parent has compiled, and has threads
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(product, range(4)).get(120)
    for number, values in enumerate(found):
        expected = [40.0 * 40 * 40 * (number + i) ** 2 for i in range(3)] + [1.0]
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert own == found[1]


def test_layers_archives_and_data_sets_are_read_when_they_are_asked_for():
    program = ("import sys, tinygrad; assert 'tinygrad.nn' not in sys.modules; "
               "print(tinygrad.nn.Linear(2, 3).weight.shape, hasattr(tinygrad, 'layers'))")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "(3, 2) False\n"


ENDINGS = {
    "os._exit": "os._exit(7)",
    "sys.exit": "sys.exit(7)",
    "sys.exit in a function under TinyJit": "TinyJit(lambda t: sys.exit(7))(x)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_suddenly_with_work_in_flight(ending):
    program = ("import os, sys\nimport numpy as np\nfrom tinygrad import Tensor, TinyJit\n"
               "x = Tensor(np.ones((700, 700), np.float32)).realize()\n"
               "kept = [(x @ x + i).realize() for i in range(20)]\n" + ENDINGS[ending])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")


PRODUCER = """
import queue, threading
import numpy as np
from tinygrad import Tensor, TinyJit
made = queue.Queue(4)

def produce():
    number = 0
    while True:
        made.put((Tensor(np.full((64, 64), number, np.float32)) * 2).realize())
        number += 1

threading.Thread(target=produce, daemon=True).start()
total = Tensor.zeros(64).contiguous().realize()
step = TinyJit(lambda x: total.assign(total + x.sum(0)).realize())
for _ in range(100):
    step(made.get())
assert total.tolist() == [64 * 2 * 4950.0] * 64
print("fine")
"""


def test_a_daemon_thread_that_produces_tensors_feeds_a_function_and_the_process_ends():
    done = subprocess.run([sys.executable, "-c", PRODUCER], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


# --- memory -----------------------------------------------------------------------------------------


def used():
    Device["CPU"].synchronize()
    gc.collect()
    return GlobalCounters.mem_used


class Scarce:
    """Refuses memory of a device beyond `limit` bytes."""

    def __init__(self, monkeypatch, limit):
        allocator = Device["CPU"].allocator
        allocator.free_cache()
        self.obtain, self.limit = allocator._obtain, GlobalCounters.mem_used + limit
        monkeypatch.setattr(allocator, "_obtain", self)

    def __call__(self, size):
        if GlobalCounters.mem_used + size > self.limit:
            raise MemoryError
        return self.obtain(size)


SAID = r"CPU has no [\d,]+ bytes left: [\d,]+ are used and [\d,]+ cached"


def test_running_out_of_memory_midway_leaves_everything_usable(monkeypatch):
    x = Tensor(np.arange(1 << 18, dtype=np.float32)).realize()
    state = Tensor(np.zeros(1 << 18, np.float32)).realize()
    step = TinyJit(lambda t: (state.assign(state + t), (state * 2).contiguous())[1])
    step(x)
    with monkeypatch.context() as patch:  # once before: what earlier tests left to be freed goes with it
        Scarce(patch, 0)
        with pytest.raises(MemoryError, match=SAID):
            Tensor.ones(1 << 20).contiguous().realize()
    before = used()
    with monkeypatch.context() as patch:
        Scarce(patch, 2 << 20)  # two arrays of a mebibyte
        held = [step(x), step(x)]
        with pytest.raises(MemoryError, match=SAID):
            step(x)
        with pytest.raises(MemoryError, match=SAID):
            (x + 1).realize()
        del held
        assert used() == before
        assert step(x)[3].item() in (4 * 6, 5 * 6)  # whether or not the refused call had written its state
        assert (x[:4] + 1).tolist() == [1, 2, 3, 4]
    assert used() == before


def test_memory_asked_for_beyond_any_machine_is_an_error_and_the_process_goes_on():
    before = used()
    with pytest.raises(MemoryError, match=SAID):
        Tensor.full((1 << 50,), 2.0).contiguous().realize()
    with pytest.raises(MemoryError, match=SAID):
        (Tensor.empty(1 << 50) + 1).realize()
    assert used() == before and (Tensor([1.0]) + 1).item() == 2


def test_cached_memory_is_given_back_before_an_allocation_fails(monkeypatch):
    allocator = Device["CPU"].allocator
    for _ in range(2):
        Buffer("CPU", 3 << 20, dtypes.uint8).allocate()
    gc.collect()
    obtain, asked = allocator._obtain, []

    def refuse_once(size):
        asked.append((size, allocator.cached_bytes))
        if len(asked) == 1:
            raise MemoryError
        return obtain(size)

    monkeypatch.setattr(allocator, "_obtain", refuse_once)
    assert Buffer("CPU", 5 << 20, dtypes.uint8).allocate().is_allocated
    assert asked[0][1] >= 3 << 20 and asked[1] == (5 << 20, 0)


def test_memory_used_counts_each_byte_once_whatever_shows_it():
    before = used()
    x = Tensor(np.zeros((256, 16), np.float32)).contiguous().realize()
    size = 256 * 16 * 4
    assert used() - before == size
    views = [x[3], x.T, x.reshape(16, 256), x[1:, 2:].flip(0)]
    Tensor.realize(*views)
    assert used() - before == size  # views have no memory of their own
    copied = x.T.contiguous().realize()
    assert used() - before == 2 * size
    array = np.from_dlpack(x)
    del x, views
    assert used() - before == 2 * size  # the array shows it still
    del copied
    assert used() - before == size and array.shape == (256, 16)
    del array
    assert used() == before


def test_memory_used_leaves_out_what_belongs_to_others():
    own = np.zeros(1 << 16, np.float32)
    before = used()
    shared = Tensor.from_dlpack(own)
    assert used() == before
    total = shared.sum().realize()
    assert used() - before == 4
    del shared, total
    assert used() == before


def test_memory_used_does_not_count_what_is_cached():
    before, allocator = used(), Device["CPU"].allocator
    (Tensor(np.ones(1 << 16, np.float32)) * 2).realize()
    assert used() == before and allocator.cached_bytes >= 1 << 18
    allocator.free_cache()
    assert used() == before and allocator.cached_bytes == 0


def test_memory_of_a_jitted_function_goes_with_its_traces():
    before = used()
    step = TinyJit(lambda x: ((x + 1).contiguous() @ x).contiguous().sum())
    x = Tensor(np.ones((64, 64), np.float32)).realize()
    for _ in range(3):
        step(x)
    assert used() > before + x.nbytes()
    step.reset()
    assert used() == before + x.nbytes()
