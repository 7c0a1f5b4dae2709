"""Many steps, several threads, forked children, sudden ends: nothing piles up, hangs or breaks.

All of it takes long: `pytest -m slow test/test_soak.py`.
"""
import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from threads import in_threads

from tinygrad import Tensor, TinyJit, nn
from tinygrad.device import Device
from tinygrad.graph import uop as graph_nodes
from tinygrad.helpers import GlobalCounters

pytestmark = pytest.mark.slow
STEPS = 10_000


def state() -> tuple[int, int, int]:
    """Bytes used, bytes used or cached, and nodes that live."""
    gc.collect()
    cached = Device["CPU"].allocator.cached_bytes
    return GlobalCounters.mem_used, GlobalCounters.mem_used + cached, len(graph_nodes._interned)


@pytest.mark.parametrize("jit", [False, True])
def test_ten_thousand_training_steps_end_as_they_began(jit):
    Tensor.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.Linear(8, 2)]
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.01)

    @Tensor.train()
    def step(x, y):
        optimizer.zero_grad()
        loss = layers[1](layers[0](x).relu().dropout(0.1)).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        return loss.realize()

    call = TinyJit(step) if jit else step
    rng = np.random.default_rng(0)
    features = rng.standard_normal((64, 4, 6)).astype(np.float32)
    labels = (features.sum(2) > 0).astype(np.int32)
    losses, states = [], []
    for i in range(STEPS):
        loss = call(Tensor(features[i % 64]), Tensor(labels[i % 64]))
        if i in (200, STEPS - 1):
            losses.append(loss.item())
            del loss
            states.append(state())
    before, now = states
    assert now[:2] == before[:2] and now[2] <= before[2]
    assert losses[1] < losses[0]


def test_hundreds_of_shapes_keep_memory_within_what_is_kept_on_purpose():
    """Each shape has a schedule and a kernel of its own; the memory of results must not pile up."""
    for size in range(1, 600):
        assert (Tensor(np.ones(size, np.float32)) * 2).sum().item() == 2 * size
    gc.collect()
    assert GlobalCounters.mem_used < 1 << 20


def test_threads_train_at_once_and_each_gets_its_own_numbers():
    def work(number):
        rng = np.random.default_rng(number)
        true = rng.standard_normal((5, 1)).astype(np.float32)
        weight = Tensor(np.zeros((5, 1), np.float32), requires_grad=True)
        expected = np.zeros((5, 1), np.float64)
        for _ in range(300):
            x = rng.standard_normal((16, 5)).astype(np.float32)
            y = x @ true
            weight.grad = None
            ((Tensor(x) @ weight - Tensor(y)) ** 2).mean().backward()
            gradient = weight.grad
            assert gradient is not None
            weight.assign(weight.detach() - gradient * 0.1).realize()
            expected -= 0.1 * 2 / 16 * x.T.astype(np.float64) @ (x @ expected - y)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-3, atol=1e-4)

    in_threads(work, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_forked_while_threads_compute_compute_too():
    stop = threading.Event()
    x = Tensor(np.arange(4096, dtype=np.float32).reshape(64, 64)).realize()
    expected = x.numpy() @ x.numpy()

    def busy(number):
        while not stop.is_set():
            np.testing.assert_allclose((x @ x).numpy(), expected, rtol=1e-5)
            (Tensor(np.ones(number + 3, np.float32)) + number).numpy()

    def fork_often():
        try:
            for number in range(30):
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    fine = np.allclose((x @ x + number).numpy(), expected + number, rtol=1e-5)
                    os._exit(0 if fine else 1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()

    in_threads(lambda number: fork_often() if number == 0 else busy(number), 3)


INTERRUPTED = """
import os, signal, sys
import numpy as np
from tinygrad import Tensor, TinyJit
rng = np.random.default_rng(int(sys.argv[1]))
state = Tensor(np.zeros(4, np.float32)).realize()
ones = Tensor(np.ones(4, np.float32)).realize()

@TinyJit
def step(x):
    state.assign(state + x)
    return (state * 2).sum()

def work(kind, i):
    size = int(rng.integers(3, 5000))
    if kind == 0:
        (Tensor(np.ones(size, np.float32)) * (i + 1) + size).sum().realize()
    elif kind == 1:
        state.assign(state + ones).realize()
    else:
        for _ in range(3):
            step(ones)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
interrupts = 0
for i in range(200):
    kind, before = i % 4, state.numpy().copy()
    if kind == 2:
        step.reset()
    try:
        signal.setitimer(signal.ITIMER_REAL, max(float(rng.exponential(0.01)), 1e-4))
        work(kind, i)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    now = state.numpy()
    assert (now == now[0]).all() and 0 <= now[0] - before[0] <= (0, 1, 3, 3)[kind], (kind, before, now)
    assert step(ones).item() == 8 * (now[0] + 1)
assert interrupts > 20, interrupts
print("fine")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_any_moment_leave_values_whole(seed):
    """Python says "Exception ignored" of those that meet a finalizer; it must not end or break anything."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(seed)], capture_output=True, text=True,
                          timeout=600, env={**os.environ, "CACHELEVEL": "0"})
    assert done.stdout == "fine\n", done.stderr


def test_threads_trace_differentiate_assign_and_draw_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    drawn = []

    def train(number):
        rng = np.random.default_rng(number)
        weight = Tensor(np.zeros((3, 1), np.float32), requires_grad=True).realize()
        expected = np.zeros((3, 1))

        @TinyJit
        def step(x, y):
            weight.grad = None
            loss = ((x @ weight - y) ** 2).mean().backward()
            weight.assign(weight.detach() - weight.grad * 0.1)
            return loss

        for i in range(100):
            if i % 7 == 0:
                step.reset()
            x = rng.standard_normal((4, 3)).astype(np.float32)
            y = x.sum(1, keepdims=True)
            step(Tensor(x), Tensor(y))
            expected -= 0.1 * 2 / 4 * x.T @ (x @ expected - y)
            np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-3, atol=1e-4)

    def assign(number):
        state = Tensor(np.zeros(2, np.float32)).realize()
        for i in range(1, 300):
            state.assign(state + 1)
            if i % 3 == 0:
                state[0] = 0
            if i % 5 == 0:
                assert state.tolist()[1] == i

    def draw(number):
        for _ in range(100):
            drawn.append(tuple(Tensor.rand(4).tolist()))
            with Tensor.no_grad():
                (Tensor([1.0]) * number).realize()

    jobs = [train, train, assign, draw, draw]
    try:
        in_threads(lambda number: jobs[number](number), len(jobs))
    finally:
        sys.setswitchinterval(interval)
    assert len(drawn) == len(set(drawn)) == 200


ENDINGS = {
    "while threads run kernels": """
for _ in range(2):
    threading.Thread(target=lambda: [(x @ x).numpy() for _ in range(10**6)], daemon=True).start()
time.sleep(0.3)
""",
    "while a thread compiles": """
def compile_many():
    for n in range(10**6):
        (Tensor(np.ones(n + 2, np.float32)) * n).numpy()
threading.Thread(target=compile_many, daemon=True).start()
time.sleep(0.3)
""",
    "with lazy tensors and a trace": """
double = TinyJit(lambda x: (x @ x) * 2)
kept = [double(x) for _ in range(3)], x + 1, (x * 2).softmax()
""",
    "after an error": """
try:
    (x @ Tensor([1.0])).realize()
except ValueError:
    y = x + 1
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_cleanly(ending):
    program = ("import threading, time\nimport numpy as np\nfrom tinygrad import Tensor, TinyJit\n"
               "x = Tensor(np.ones((256, 256), np.float32)).realize()\n(x @ x).realize()\n")
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program + ENDINGS[ending]], capture_output=True,
                              text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
