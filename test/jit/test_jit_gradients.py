"""TinyJit: gradients, as the plain function leaves them, and training steps."""
import copy
import gc
import warnings

import numpy as np
import pytest
from jit_programs import traced, vector

from tinygrad import GlobalCounters, Tensor, TinyJit, nn
from tinygrad.jit import JitError
from tinygrad.tensor.live import live_tensors


def test_backward_beyond_an_argument_is_refused_in_every_call():
    w = Tensor([2.0, 3.0], requires_grad=True).realize()
    jitted, _ = traced(lambda x: (x * x).sum().backward().detach())
    assert jitted(vector(1, 2)).item() == 5
    for _ in range(2):
        with pytest.raises(JitError, match=r"reaches its tensor argument 0, of shape \(2,\), which was"):
            jitted(w * vector(1, 2))
        assert w.grad is None
    assert jitted(vector(1, 3)).item() == 10


def test_a_gradient_that_nobody_asked_for_is_an_error_where_it_is_read():
    w = vector(2, 3).realize()
    jitted, calls = traced(lambda x: (x * w).sum().backward().detach())
    for i in range(4):
        assert jitted(vector(i, 1)).item() == 2 * i + 3
        with pytest.raises(RuntimeError, match="under TinyJit.*requires_grad=True"):
            _ = w.grad
    assert len(calls) == 1


def test_an_argument_that_is_asked_for_gradients_inside_is_replayed():
    w = Tensor([2.0, 3.0], requires_grad=True).realize()

    def slope(x):
        x.requires_grad_()
        w.grad = None
        rises, = (x * x * w).sum().gradient(x)
        rises.square().sum().backward()
        return rises.detach()

    jitted, calls = traced(slope)
    for i in range(1, 5):
        x = vector(i, 1)
        assert jitted(x).tolist() == [4 * i, 6]
        assert x.grad.tolist() == [32 * i, 72] and w.grad.tolist() == [16 * i * i, 24]
    assert len(calls) == 1


def test_backward_through_a_result_is_refused_in_every_call():
    w = Tensor([2.0], requires_grad=True).realize()
    jitted, _ = traced(lambda x: (x * w).sum())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="takes gradients"):
            jitted(vector(3)).backward()
        assert w.grad is None


def test_an_optimizer_step_and_batch_norm_equal_the_plain_function():
    def train(jit):
        Tensor.manual_seed(1)
        layer, norm = nn.Linear(4, 3), nn.BatchNorm(3)
        optimizer = nn.optim.Adam(nn.state.get_parameters([layer, norm]), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (norm(layer(x)) * x[:, :3]).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call = TinyJit(step) if jit else step
        rng = np.random.default_rng(0)
        with Tensor.train():
            losses = [call(Tensor(rng.standard_normal((8, 4), np.float32))).item() for _ in range(6)]
        state = [layer.weight, layer.weight.grad, norm.running_mean, norm.running_var]
        return [np.array(losses), *(t.numpy() for t in state)]

    for plain, jitted in zip(train(False), train(True), strict=True):
        np.testing.assert_allclose(jitted, plain, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("zero", [True, False])
def test_gradients_are_those_of_the_last_call_or_accumulate(zero):
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def step(x):
        if zero:
            w.grad = None
        (w * x).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        total = 0
        for i in range(5):
            step(vector(i, 1))
            total += i
            assert w.grad.tolist() == ([i, 1] if zero else [total, i + 1])


@pytest.mark.parametrize("seed", range(4))
def test_gradients_that_were_read_keep_their_values_and_others_are_those_of_the_last_call(seed):
    rng = np.random.default_rng(seed)
    weights = [Tensor(np.full(3, i + 1, np.float32), requires_grad=True).realize() for i in range(5)]

    def step(x):
        for w in weights:
            w.grad = None
        total = sum((w * w * x).sum() for w in weights)
        return total.backward().detach()

    jitted, calls = traced(step)
    kept = []
    for call in range(12):
        x = rng.integers(-5, 5, 3).astype(np.float32)
        jitted(Tensor(x))
        for i, w in enumerate(weights):
            how = rng.integers(6)
            if how == 0:
                kept.append((w.grad, 2 * (i + 1) * x))
            elif how == 1:
                kept.append((w.grad * 2, 4 * (i + 1) * x))  # lazy
            elif how == 2:
                kept.append((copy.copy(w).grad, 2 * (i + 1) * x))
            elif how == 3:
                w.grad = None
            elif how == 4:
                np.testing.assert_array_equal(w.grad.numpy(), 2 * (i + 1) * x)
        for gradient, expected in kept:
            assert gradient.requires_grad in (False, None)
            if rng.integers(3) == 0 or call == 11:
                np.testing.assert_array_equal(gradient.numpy(), expected)
    assert len(calls) == 1


def test_gradients_that_nobody_reads_keep_their_memory_from_replay_to_replay():
    w = Tensor(np.ones(1000, np.float32), requires_grad=True).realize()

    @TinyJit
    def step(x):
        w.grad = None
        return (w * x).sum().backward().detach()

    x = vector(*range(1000))
    for _ in range(3):
        step(x)
    gc.collect()
    before, tensors = GlobalCounters.mem_used, len(live_tensors())
    addresses = set()
    for _ in range(5):
        step(x)
        addresses.add(w._left.buffers[0].address)
    assert GlobalCounters.mem_used == before and len(addresses) == 1 and len(live_tensors()) == tensors
    kept = w.grad
    step(x)
    assert GlobalCounters.mem_used == before + 4000  # the one that was read, and another one
    assert kept.tolist() == w.grad.tolist() == list(range(1000))
    del kept
    w.grad = None
    gc.collect()
    assert GlobalCounters.mem_used == before - 4000


def test_gradients_of_calls_of_two_kinds_are_those_of_the_last_call():
    weights = [Tensor(np.full(1000, i + 1, np.float32), requires_grad=True).realize() for i in range(3)]

    def step(x):
        for w in weights:
            w.grad = None
        return (sum((w * w).sum() for w in weights) * x.sum()).backward().detach()

    jitted, calls = traced(step)
    gc.collect()
    before = GlobalCounters.mem_used
    for call, size in enumerate((2, 3, 2, 3, 3, 2, 3, 2, 2)):
        jitted(vector(*range(size)))
        for i, w in enumerate(weights[:2] if call % 4 == 1 else ()):
            np.testing.assert_array_equal(w.grad.numpy(), np.full(1000, 2 * (i + 1) * sum(range(size))))
    np.testing.assert_array_equal(weights[2].grad.numpy(), np.full(1000, 6))
    assert len(calls) == 2
    for w in weights:
        w.grad = None
    gc.collect()
    assert GlobalCounters.mem_used - before < 4000  # what was left is nobody's: not one of them is kept


@pytest.mark.parametrize("seed", range(3))
def test_each_tensor_given_has_the_gradient_of_its_own_call(seed):
    rng = np.random.default_rng(seed)
    w = Tensor([2.0, 3.0], requires_grad=True).realize()
    given = [Tensor([float(i), 1.0], requires_grad=True).realize() for i in range(3)]

    def step(x, scale):
        x.grad = w.grad = None
        return (w * x * scale).sum().backward().detach()

    jitted, calls = traced(step)
    expected = [None] * 3
    for call in range(20):
        i, scale = int(rng.integers(3)), call + 1.0
        jitted(given[i], vector(scale, scale))
        expected[i], of_w = [2 * scale, 3 * scale], [i * scale, scale]
        for other in np.flatnonzero(rng.integers(3, size=3) == 0):
            gradient = given[other].grad
            assert (gradient is None) == (expected[other] is None)
            assert gradient is None or gradient.tolist() == expected[other]
        if rng.integers(4) == 0:
            assert w.grad.tolist() == of_w
        if rng.integers(4) == 0:
            given[i].grad = expected[i] = None
    assert len(calls) == 1


def test_a_gradient_that_nobody_read_is_seen_by_what_is_traced_later():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def back(x):
        w.grad = None
        (w * x).sum().backward()

    @TinyJit
    def use(y):
        return w.grad * y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(1, 7):
            back(vector(i, 2))
            assert use(vector(10, 20)).tolist() == [10 * i, 40]


@pytest.mark.parametrize("twice", ["returned", "shared", "argument", "views"])
def test_gradients_that_share_memory_with_something_else(twice):
    a, b = (Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2))

    def step(x):
        a.grad = b.grad = None
        (a * x + b * x).sum().backward()
        if twice == "shared":
            b.grad = a.grad
        elif twice == "argument":
            b.grad = x
        elif twice == "views":
            b.grad = a.grad.reshape(2, 1).expand(2, 2).reshape(4)[::2]
        return a.grad if twice == "returned" else x + 1

    jitted, _ = traced(step)
    kept = []
    for i in range(6):
        result = jitted(vector(i, 3))
        kept.append((result, [i, 3] if twice == "returned" else [i + 1, 4]))
        if i % 3:
            kept.append((a.grad, [i, 3]))
        if i % 2:
            kept.append((b.grad, [i, 3]))
        for value, expected in kept:
            assert value.tolist() == expected


def test_constants_as_arguments_and_results():
    """An argument that `no_grad` or `detach` made a constant takes no gradient, in a replay as in a call; nor
    does what a replay under `no_grad` returns."""
    def found(jitted):
        w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()

        def step(x):
            w.grad = None
            return (x * w * x).sum().backward().realize(w.grad)

        def double(x):
            with Tensor.no_grad():
                return (x * 2).realize()

        run, twice, results = *((TinyJit(step), TinyJit(double)) if jitted else (step, double)), []
        for i in range(9):
            x = Tensor([i + 1.0] * 3).realize()
            if i % 3 == 1:
                with Tensor.no_grad():
                    x = (x + 0.5).realize()
            elif i % 3 == 2:
                x = (x + 0.25).detach().realize()
            loss = run(x)
            results.append((loss.item(), w.grad.tolist(), x._grad is None, x.requires_grad))
            y, v = twice(x), Tensor([3.0, 2.0, 1.0]).realize()
            (y * v).sum().backward()
            results.append((y.grad is None, y.requires_grad, v.grad.tolist()))
        return results

    expected = found(False)
    assert [x[2] for x in expected[::2]] == [False, True, True] * 3
    assert found(True) == expected
