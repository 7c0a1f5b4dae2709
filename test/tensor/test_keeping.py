"""Lazy values that tensors stand for are computed once and kept: which, for how long, with what numbers."""
import gc
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, Variable, nn
from tinygrad.engine.capture import JitError
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.helpers import JIT, Context, GlobalCounters

BATCH = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


class Transformer:
    """One block of a GPT, with its embeddings."""

    def __init__(self):
        self.tokens, self.positions = nn.Embedding(40, 16), nn.Embedding(8, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def __call__(self, x):
        tokens = x.abs().sum((1, 3)).int() % 40
        h = self.tokens(tokens) + self.positions(Tensor.arange(tokens.shape[1]))
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        return self.out(q.scaled_dot_product_attention(k, v, is_causal=True)) @ self.tokens.weight.T


class Residual:
    """A block of a ResNet with scaled draws of the user's own."""

    def __init__(self):
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.norm = nn.BatchNorm(8)
        self.head = Tensor.randn(192, 5) * 0.1

    def __call__(self, x):
        return (x + self.second(self.norm(self.first(x)).relu())).flatten(1) @ self.head


class Recurrent:
    def __init__(self):
        self.cell = nn.LSTMCell(24, 8)

    def __call__(self, x):
        state = None
        for step in range(8):
            state = self.cell(x[:, :, step].reshape(2, 24), state)
        return state[0]


MODELS = [Transformer, Residual, Recurrent]


def made(model, realized):
    Tensor.manual_seed(11)
    result = model()
    if realized:
        for tensor in nn.state.get_parameters(result):
            tensor.realize()
    return result


def is_computed(tensor):
    return storage_view(tensor.uop) is not None


def kernels(function):
    """The result of a call as an array, and how many kernels that takes."""
    before = GlobalCounters.kernel_count
    result = function().numpy()
    return result, GlobalCounters.kernel_count - before


@pytest.mark.parametrize("model", MODELS)
def test_a_replay_computes_no_weights(model):
    x = Tensor(BATCH).realize()
    lazy, realized = TinyJit(made(model, False)), TinyJit(made(model, True))
    want = made(model, True)(x).numpy()
    for jitted in (lazy, realized):
        for _ in range(2):
            np.testing.assert_allclose(jitted(x).numpy(), want, rtol=1e-4, atol=1e-6)
        assert len(jitted.traces) == 1
    assert kernels(lambda: lazy(x))[1] == kernels(lambda: realized(x))[1]


@pytest.mark.parametrize("model", MODELS)
def test_a_second_call_without_a_jit_computes_no_weights(model):
    x = Tensor(BATCH).realize()
    lazy, realized = made(model, False), made(model, True)
    first = lazy(x).numpy()
    (again, count), (want, known) = kernels(lambda: lazy(x)), kernels(lambda: realized(x))
    assert count == known
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, want)


def test_each_weight_of_an_unrolled_recurrence_is_computed_once():
    x = Tensor(BATCH).realize()
    _, few = kernels(lambda: made(Recurrent, False)(x))
    _, known = kernels(lambda: made(Recurrent, True)(x))
    cell = made(Recurrent, False).cell
    assert few - known <= 2 * len(nn.state.get_parameters(cell))


def test_the_numbers_are_those_of_the_seed():
    Tensor.manual_seed(5)
    want = [Tensor.randn(4).numpy(), Tensor.randint(4, high=1000).numpy(), Tensor.rand(4).numpy()]
    Tensor.manual_seed(5)
    drawn = [Tensor.randn(4), Tensor.randint(4, high=1000), Tensor.rand(4, requires_grad=False)]
    Tensor.manual_seed(6)
    total = drawn[0] + drawn[1] + drawn[2]
    np.testing.assert_allclose(total.numpy(), want[0] + want[1] + want[2], rtol=1e-6)
    for tensor, value in zip(drawn, want):
        np.testing.assert_array_equal(tensor.numpy(), value)


KEPT = {
    "floats": lambda: Tensor.randn(8),
    "integers": lambda: Tensor.randint(8, high=50),
    "constants to gradients": lambda: Tensor.rand(8, requires_grad=False),
    "scaled": lambda: Tensor.randn(8) * 0.02,
    "permutation": lambda: Tensor.randperm(8),
    "sines of a range": lambda: (Tensor.arange(8) * 0.1).sin(),
    "stored": lambda: Tensor.arange(8).contiguous(),
}
LAZY = {
    "number": lambda: Tensor.full((8,), 3.0),
    "range": lambda: Tensor.arange(8),
    "arithmetic of a range": lambda: (Tensor.arange(8) * 2 + 1) / 7,
    "identity": lambda: Tensor.eye(8),
    "mask": lambda: Tensor.ones(8, 8).tril(),
    "fused draw": lambda: Tensor.rand(8, contiguous=False) < 0.5,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_takes_longer_to_compute_than_to_read_is_kept(name):
    x, value = Tensor(np.arange(8, dtype=np.float32)).realize(), KEPT[name]()
    total = (value + x).numpy()
    read, count = kernels(lambda: value)
    assert count == 0
    np.testing.assert_allclose(read + np.arange(8), total, rtol=1e-6)
    assert kernels(lambda: value.reshape(2, 4) * x.reshape(2, 4))[1] == 1


@pytest.mark.parametrize("name", LAZY)
def test_what_is_cheaper_to_compute_stays_lazy(name):
    x, value = Tensor(np.ones(8, np.float32)).realize(), LAZY[name]()
    assert kernels(lambda: value + x)[1] == 1
    assert not is_computed(value)


def test_what_nobody_stands_for_is_part_of_the_kernel():
    x = Tensor(np.ones(8, np.float32)).realize()
    assert kernels(lambda: (Tensor.arange(8) * 0.1).sin() + x)[1] == 1


def test_the_lowest_value_is_kept_and_what_follows_from_it_stays_lazy():
    weight = Tensor.randn(8)
    scaled = weight * 2
    _ = (scaled + 1).numpy()
    assert is_computed(weight) and not is_computed(scaled)


def test_draws_of_a_step_that_depend_on_memory_are_not_kept():
    x = Tensor(np.ones(64, np.float32)).realize()
    with Tensor.train():
        dropped = x.dropout(0.5)
        _ = (dropped * 2).numpy()
    assert not is_computed(dropped)


OUTSIDE = {
    "a cast": (lambda m: m.half(), 1),
    "rows": (lambda m: m.softmax(1), 1),
    "weights in fewer bytes": (lambda m: m.cast("int8").realize().float() * 0.5, 0),
    "a mask of lengths": (lambda m: Tensor.arange(8).reshape(1, 8) < m[:, :1].contiguous().realize(), 0),
    "a view": (lambda m: m.T, 0),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_trace_keeps_what_tensors_outside_of_it_compute_from_memory(name):
    make, is_kept = OUTSIDE[name]
    memory = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8)).realize()
    value = make(memory)
    x = Tensor(np.ones((8, 8), np.float32)).realize()
    jitted = TinyJit(lambda x: x + value)
    want = (x + make(memory)).numpy()
    for _ in range(3):
        np.testing.assert_allclose(jitted(x).numpy(), want, rtol=1e-6)
    assert len(jitted.traces) == 1 and kernels(lambda: jitted(x))[1] == 1
    assert is_computed(value) == (is_kept or name == "a view")
    memory.assign(memory * 0)
    np.testing.assert_allclose(jitted(x).numpy(), (x + value).numpy(), rtol=1e-6)


def test_what_the_call_itself_realises_makes_the_next_one_trace_again():
    mask = Tensor.arange(4) < 2
    calls = []

    @TinyJit
    def masked(x):
        calls.append(1)
        return x * mask.realize()

    for value in (1.0, 2.0, 3.0, 4.0):
        x = Tensor(np.full(4, value, np.float32))
        np.testing.assert_array_equal(masked(x).numpy(), value * np.array([1, 1, 0, 0]))
    assert len(calls) == 2


def test_what_a_trace_draws_itself_is_drawn_in_each_call():
    Tensor.manual_seed(3)
    want = [Tensor.rand(4).numpy() for _ in range(4)]
    Tensor.manual_seed(3)

    @TinyJit
    def noise(x):
        drawn = Tensor.rand(4)
        return (x + drawn).realize()

    x = Tensor.zeros(4).contiguous().realize()
    for numbers in want:
        np.testing.assert_array_equal(noise(x).numpy(), numbers)


def test_without_a_jit_values_are_the_same():
    x = Tensor(BATCH).realize()
    want = TinyJit(made(Residual, False))(x).numpy()
    with Context(JIT=0):
        assert not JIT.value
        np.testing.assert_allclose(TinyJit(made(Residual, False))(x).numpy(), want, rtol=1e-5)


def test_gradients_of_a_step_are_those_of_realized_weights():
    x = Tensor(BATCH).realize()
    found = []
    for realized in (False, True):
        model = made(Residual, realized)
        optimizer = nn.optim.SGD(nn.state.get_parameters([model.first, model.second]), lr=0.1)

        @TinyJit
        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        with Tensor.train():
            losses = [step(x).item() for _ in range(4)]
        found.append((losses, model.first.weight.grad.numpy(), model.first.weight.numpy()))
    for lazy, want in zip(*found):
        np.testing.assert_allclose(lazy, want, rtol=1e-5, atol=1e-7)


def test_a_gradient_reaches_a_value_that_was_kept():
    weight = Tensor.randn(3, requires_grad=True)
    loss = (weight * Tensor([1.0, 2.0, 3.0])).square().sum()
    _ = loss.numpy()
    loss.backward()
    np.testing.assert_allclose(weight.grad.numpy(), 2 * weight.numpy() * np.square([1, 2, 3]), rtol=1e-6)


def test_loaded_weights_are_not_drawn_before():
    state = nn.state.get_state_dict(made(Residual, True))
    Tensor.manual_seed(12)
    model = Residual()
    before = GlobalCounters.kernel_count
    nn.state.load_state_dict(model, state, verbose=False)
    assert GlobalCounters.kernel_count - before <= len(state)
    x = Tensor(BATCH).realize()
    np.testing.assert_array_equal(model(x).numpy(), made(Residual, True)(x).numpy())


def test_memory_is_given_back_with_the_tensors():
    x = Tensor(np.ones((4, 512), np.float32)).realize()
    gc.collect()
    before = GlobalCounters.mem_used
    layer = nn.Linear(512, 512)
    _ = layer(x).numpy()
    assert GlobalCounters.mem_used - before >= 512 * 512 * 4
    del layer
    numbers = Tensor.randint(512, high=9)
    _ = (numbers + x).numpy()
    del numbers
    gc.collect()
    assert GlobalCounters.mem_used - before <= 4 * 512


def test_a_saved_function_has_what_was_kept():
    x = Tensor(BATCH).realize()
    jitted = TinyJit(made(Residual, False))
    want = jitted(x).numpy()
    _ = jitted(x)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(jitted))(x).numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("axis", [None, 0])
def test_weights_on_several_devices_are_kept_where_they_are(axis):
    devices = ("CPU", "CPU:1")
    Tensor.manual_seed(4)
    want = Tensor.randn(8, 6).numpy() @ np.ones((6, 2), np.float32)
    Tensor.manual_seed(4)
    weight = Tensor.randn(8, 6).shard_(devices, axis)
    x = Tensor(np.ones((6, 2), np.float32)).shard(devices).realize()
    jitted = TinyJit(lambda x: (weight @ x).realize())
    for _ in range(3):
        np.testing.assert_allclose(jitted(x).numpy(), want, rtol=1e-5)
    assert len(jitted.traces) == 1
    assert is_computed(weight) and weight.device == devices


@pytest.mark.usefixtures("on_cpu")
def test_a_draw_for_one_device_is_not_moved_from_where_it_is_used():
    Tensor.manual_seed(2)
    value = Tensor.rand(4).numpy()
    for device in ("CPU", "CPU:1"):
        x = Tensor(np.ones(4, np.float32), device=device).realize()
        Tensor.manual_seed(2)
        drawn = Tensor.rand(4)
        np.testing.assert_allclose((drawn * x).numpy(), value)
        assert is_computed(drawn) == (device == "CPU")
        np.testing.assert_array_equal(drawn.numpy(), value)


def test_a_draw_on_another_device_is_kept_there():
    drawn = Tensor.rand(4, device="CPU:1")
    double = (drawn * 2).realize()
    assert drawn.uop.device == "CPU:1" and is_computed(drawn)
    np.testing.assert_array_equal(double.numpy(), 2 * drawn.numpy())


def test_a_schedule_lists_what_is_computed_to_be_kept_first():
    x = Tensor(BATCH).realize()
    lazy = made(Residual, False)
    items = lazy(x).schedule()
    _, count = kernels(lambda: lazy(x))
    assert len(items) == count
    assert len(lazy(x).schedule()) == kernels(lambda: lazy(x))[1] < count


# --- values that are read while a function is traced ------------------------------------------------------


def test_a_schedule_of_what_needs_nothing_that_is_kept_is_that_alone():
    weight = Tensor.rand(64)
    x = Tensor([1.0, 2.0]).realize()
    assert len((x * 2).sum().schedule()) == 1
    assert not weight.uop.realized_view


def test_a_value_that_depends_on_no_input_can_be_read_while_tracing():
    table = Tensor.randn(6)
    calls = []

    @TinyJit
    def bank(x):
        calls.append(1)
        highest = Tensor.linspace(0, 1, 5).exp().max().item()
        rows = [i for i, keep in enumerate((table > 0).tolist()) if keep]
        return x * highest + len(rows)

    for value in (1.0, 2.0, 3.0):
        want = value * np.e + (table.numpy() > 0).sum()
        np.testing.assert_allclose(bank(Tensor([value])).numpy(), [want], rtol=1e-5)
    assert len(calls) == 1
    table.assign(table * 0 - 1).realize()
    np.testing.assert_allclose(bank(Tensor([1.0])).numpy(), [np.e], rtol=1e-5)
    assert len(calls) == 2


def test_what_was_read_may_be_used_too():
    @TinyJit
    def scaled(x):
        window = Tensor.linspace(0, 3, 4).sin()
        return x * window / window.max().item()

    want = np.sin(np.linspace(0, 3, 4))
    for value in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(scaled(Tensor([value])).numpy(), value * want / want.max(), rtol=1e-5)


def test_a_tensor_that_is_read_and_then_another_one_is_read_again():
    scale = SimpleNamespace(by=Tensor([2.0]).realize())
    jitted = TinyJit(lambda x: x * scale.by.item())
    assert [jitted(Tensor([3.0])).item() for _ in range(3)] == [6, 6, 6]
    scale.by = Tensor([5.0]).realize()
    assert [jitted(Tensor([3.0])).item() for _ in range(3)] == [15, 15, 15]


STATE = Tensor([1.0]).realize()
READS = {
    "an input": lambda x, v: (x + 1).item(),
    "a view of an input": lambda x, v: x[0].item(),
    "a number drawn inside": lambda x, v: Tensor.rand(1).item(),
    "a bound Variable": lambda x, v: (Tensor.arange(9).shrink(((0, v),)).sum()).item(),
    "what was written": lambda x, v: STATE.assign(x).realize().item(),
    "what is to be written": lambda x, v: STATE.assign(x).item(),
    "what follows from what was written": lambda x, v: (STATE.assign(x).realize() * 2).item(),
}


@pytest.mark.parametrize("name", READS)
def test_reading_what_another_call_may_change_is_refused(name):
    @TinyJit
    def reads(x, v):
        return x * READS[name](x, v)

    with pytest.raises(JitError, match="test_keeping.py:.*a value was read while TinyJit traces"):
        reads(Tensor([2.0]).realize(), Variable("v", 1, 9).bind(3))


def test_a_state_that_is_read_before_it_is_written_is_read_in_each_call():
    count = Tensor([1.0]).realize()

    @TinyJit
    def step(x):
        now = count.item()
        count.assign(count + 1).realize()
        return x * now

    assert [step(Tensor([1.0])).item() for _ in range(4)] == [1, 2, 3, 4]
