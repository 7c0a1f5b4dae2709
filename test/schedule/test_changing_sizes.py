"""Sizes that change from graph to graph: from the third on one schedule and one set of kernels serve all of
them up to the next power of two, with NumPy's results."""
import math
import random

import numpy as np
import pytest
from arrays import normal

from tinygrad import Context, GlobalCounters, Tensor, TinyJit, nn
from tinygrad.engine import realize
from tinygrad.schedule import cache as cache_module
from tinygrad.schedule.cache import ScheduleCache
from tinygrad.schedule.changing_sizes import Expression, Expressions


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    """An empty cache, used by everything that a test computes."""
    fresh = ScheduleCache()
    monkeypatch.setattr(realize, "schedules", fresh)
    return fresh


@pytest.fixture
def made(monkeypatch):
    """The schedules that were made, not found again."""
    found = []
    create = cache_module.create_schedule
    monkeypatch.setattr(cache_module, "create_schedule", lambda *args: found.append(1) or create(*args))
    return found


WIDTH = 6
SIZES = (20, 24, 31, 17, 32, 27, 22)
TABLE, WEIGHT = normal(70, WIDTH, seed=5), normal(WIDTH, WIDTH, seed=6)
KERNELS = normal(2, 1, 2, 2, seed=7)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attended(q, k, v):
    """Causal attention, in NumPy."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    return softmax(np.where(np.tri(len(q), dtype=bool), scores, -np.inf), 1) @ v


def sequences(n):
    return normal(3, n, WIDTH, seed=n)


PROGRAMS = {
    "elementwise": (lambda x, n: x * 2 + 1, lambda x, n: x * 2 + 1),
    "reduction": (lambda x, n: x.exp().sum(0), lambda x, n: np.exp(x).sum(0)),
    "mean and deviation": (lambda x, n: (x - x.mean(0)) / x.std(0, correction=0),
                           lambda x, n: (x - x.mean(0)) / x.std(0)),
    "product": (lambda x, n: (x @ Tensor(WEIGHT)).relu(), lambda x, n: np.maximum(x @ WEIGHT, 0)),
    "both sides": (lambda x, n: (x @ x.T).softmax(1) @ x, lambda x, n: softmax(x @ x.T, 1) @ x),
    "attention": (lambda x, n: x.reshape(1, n, WIDTH).scaled_dot_product_attention(
        (2 * x).reshape(1, n, WIDTH), x.reshape(1, n, WIDTH), is_causal=True)[0],
                  lambda x, n: attended(x, 2 * x, x)),
    "rows in the order of counting": (lambda x, n: x * Tensor.arange(n).reshape(n, 1),
                                      lambda x, n: x * np.arange(n)[:, None]),
    "running sum": (lambda x, n: x.cumsum(0), lambda x, n: x.cumsum(0)),
    "rows of a table": (lambda x, n: Tensor(TABLE)[:n] + x, lambda x, n: TABLE[:n] + x),
    "rows from another place": (lambda x, n: Tensor(TABLE)[n % 5:n % 5 + n] + x,
                                lambda x, n: TABLE[n % 5:n % 5 + n] + x),
    "last row": (lambda x, n: x.exp()[-1] + x[0], lambda x, n: np.exp(x)[-1] + x[0]),
    "one row more": (lambda x, n: x.exp().cat(Tensor(WEIGHT)[:1]),
                     lambda x, n: np.concatenate([np.exp(x), WEIGHT[:1]])),
    "differences": (lambda x, n: x[1:] - x[:-1], lambda x, n: x[1:] - x[:-1]),
    "other way round": (lambda x, n: x.flip(0) + x, lambda x, n: x[::-1] + x),
    "padded": (lambda x, n: x.pad(((2, 1), (0, 0))).exp(),
               lambda x, n: np.exp(np.pad(x, ((2, 1), (0, 0))))),
    "padded to one size": (lambda x, n: x.pad(((0, 40 - n), (0, 0))).reshape(WIDTH, 40).exp(),
                           lambda x, n: np.exp(np.pad(x, ((0, 40 - n), (0, 0))).reshape(WIDTH, 40))),
    "one axis": (lambda x, n: x.reshape(-1).square(), lambda x, n: np.square(x.reshape(-1))),
    "several kernels": (lambda x, n: (x.softmax(0).contiguous() @ Tensor(WEIGHT)).max(1),
                        lambda x, n: (softmax(x, 0) @ WEIGHT).max(1)),
    "batch of sequences": (lambda x, n: (Tensor(sequences(n)).realize() @ Tensor(WEIGHT)).relu().max(1),
                           lambda x, n: np.maximum(sequences(n) @ WEIGHT, 0).max(1)),
    "sequences in a batch": (lambda x, n: Tensor(sequences(n)).realize().softmax(1) * 2,
                             lambda x, n: softmax(sequences(n), 1) * 2),
    "images": (lambda x, n: x.reshape(n, 1, 2, 3).conv2d(Tensor(KERNELS)),
               lambda x, n: np.stack([sum(
                   x.reshape(n, 2, 3)[:, i:i + 1, j:j + 2] * kernel[0, i, j] for i in (0, 1) for j in (0, 1))
                   for kernel in KERNELS], 1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_serve_other_sizes(made, name):
    ours, numpys = PROGRAMS[name]
    counts = []
    for size in SIZES:
        data = normal(size, WIDTH, seed=size)
        x = Tensor(data).realize()
        np.testing.assert_allclose(ours(x, size).numpy(), numpys(data, size), rtol=1e-4, atol=1e-4)
        counts.append(len(made))
    assert counts[-1] == counts[3], "a schedule for each size"
    assert counts[0] < counts[1] < counts[2]


def test_larger_sizes_have_kernels_of_their_own(made):
    counts = []
    for size in (20, 24, 31, 33, 64, 40, 65, 100, 128, 7, 3, 2, 16):
        data = normal(size, WIDTH)
        found = (Tensor(data).realize().exp() + 1).sum(0).numpy()
        np.testing.assert_allclose(found, (np.exp(data) + 1).sum(0), rtol=1e-5)
        counts.append(len(made))
    assert counts == [1, 2, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 6]


def test_two_sizes_that_change_by_themselves(made):
    for rows, items in ((20, 20), (24, 30), (31, 18), (17, 31), (32, 17), (25, 25), (20, 27)):
        one, two = normal(rows, WIDTH), normal(items, WIDTH, seed=1)
        x, y = Tensor(one).realize(), Tensor(two).realize()
        np.testing.assert_allclose((x @ y.T).softmax(1).sum(0).numpy(), softmax(one @ two.T, 1).sum(0),
                                   rtol=1e-4)
        np.testing.assert_allclose((x.exp().cat(y) * 2).numpy(), np.concatenate([np.exp(one), two]) * 2,
                                   rtol=1e-5)
    assert len(made) < 2 * 5


def trained(sizes):
    """A network's parameters after a step on so many examples, for each of some numbers."""
    Tensor.manual_seed(0)
    net = nn.Linear(WIDTH, 8), nn.Linear(8, 3)
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)
    losses = []
    for size in sizes:
        optimizer.zero_grad()
        hidden = net[0](Tensor(normal(size, WIDTH, seed=size))).relu()
        loss = net[1](hidden).sparse_categorical_crossentropy(Tensor(np.arange(size) % 3))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.numpy() for p in nn.state.get_parameters(net)]


def test_training_on_batches_of_changing_sizes(made):
    sizes = [20, 24, 31, 17, 32, 27, 22]
    trained(sizes[:5])
    before = len(made)
    losses, parameters = trained(sizes)
    assert len(made) == before
    with Context(DYNAMIC_SHAPES=0):
        realize.schedules.templates.clear()
        expected_losses, expected = trained(sizes)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for ours, alone in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-6)


def test_a_sequence_that_grows(made):
    data = normal(32, WIDTH)
    x = Tensor(data[:17]).realize()
    for size in range(18, 33):
        x = x.cat(Tensor(data[size - 1:size]), dim=0).realize()
        np.testing.assert_array_equal(x.numpy(), data[:size])
    assert len(made) <= 3


def test_memory_that_is_written_shows_it():
    total = Tensor.zeros(WIDTH).contiguous().realize()
    memory = Tensor.zeros(40, WIDTH).contiguous().realize()
    expected, rows = np.zeros(WIDTH, np.float32), np.zeros((40, WIDTH), np.float32)
    for size in SIZES:
        data = normal(size, WIDTH, seed=size)
        x = Tensor(data).realize()
        total.assign(total + x.square().sum(0)).realize()
        expected += np.square(data).sum(0)
        memory[:size] = x * 2
        rows[:size] = data * 2
        np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5)
        np.testing.assert_array_equal(memory.numpy(), rows)


def test_slices_begin_where_each_graph_says(made):
    """Where a short slice begins is no part of what a schedule depends on, whatever its length is."""
    x = Tensor(TABLE).realize()
    for size in (20, 24, 31, 17, 25, 20, 24):
        for begin in (3, 0, 7):
            part = TABLE[begin:begin + size]
            np.testing.assert_allclose((x[begin:begin + size] * 2).sum(0).numpy(), (part * 2).sum(0),
                                       rtol=1e-4, atol=1e-5)
    assert len(made) <= 4


def test_what_axes_that_are_merged_cannot_say_has_kernels_of_its_own():
    for size in SIZES:
        data = normal(2, size, 3)
        x = Tensor(data).realize()
        np.testing.assert_allclose((x.exp().reshape(2 * size, 3) @ Tensor(WEIGHT[:3])).numpy(),
                                   np.exp(data).reshape(2 * size, 3) @ WEIGHT[:3], rtol=1e-5, atol=1e-5)


def test_a_size_that_stays_gets_kernels_of_its_own(made):
    def total(size):
        return (Tensor(normal(size, WIDTH)).realize() * 3 + 1).sum(0).realize()

    for size in (20, 24, 31):
        total(size)
    before = len(made)
    for _ in range(40):
        total(31)
    assert len(made) == before + 1


def test_phases_of_a_program_have_kernels_of_their_own(made):
    for size in (20, 24, 31, 27):
        for _ in range(30):
            np.testing.assert_allclose((Tensor(normal(size, WIDTH)).realize() * 3).sum().numpy(),
                                       (normal(size, WIDTH) * 3).sum(), rtol=1e-4, atol=1e-4)
    assert len(made) == 4


def test_no_trace_holds_kernels_for_many_sizes(cache):
    def step(x):
        return (x.exp() + 1).sum(0).realize()

    for size in SIZES:
        step(Tensor(normal(size, WIDTH)).realize())
    shared = [t for t in cache.templates.values() if t.sizes is not None and t.sizes.are_shared]
    assert shared
    jitted = TinyJit(step)
    for seed in range(4):
        GlobalCounters.reset()
        data = normal(27, WIDTH, seed=seed)
        found = jitted(Tensor(data).realize()).numpy()
        np.testing.assert_allclose(found, (np.exp(data) + 1).sum(0), rtol=1e-5)
    assert GlobalCounters.kernel_count == 1


def test_without_the_setting_each_size_has_kernels_of_its_own(made):
    with Context(DYNAMIC_SHAPES=0):
        for size in SIZES:
            (Tensor(normal(size, WIDTH)).realize() * 2).realize()
    assert len(made) == len(SIZES)


@pytest.mark.parametrize(("examples", "expected"), [
    ([(5, 50, 6, 7), (8, 80, 9, 7)],
     [Expression.of(0), Expression(((10, (0,)),)), Expression(((1, (0,)),), 1)]),
    ([(3, 4, 12), (5, 7, 35)], [Expression.of(0), Expression.of(1), Expression(((1, (0, 1)),))]),
    ([(3, 9), (5, 25)], [Expression.of(0), Expression(((1, (0, 0)),))]),
    ([(3, 4, 7), (5, 7, 12)], [Expression.of(0), Expression.of(1), Expression(((1, (0,)), (1, (1,))))]),
    ([(3, 13), (5, 11)], [Expression.of(0), Expression(((-1, (0,)),), 16)]),
])
def test_what_is_concluded_of_sizes(examples, expected):
    found = Expressions.concluded(examples, range(len(examples[0])))
    by_place = {at: expression for expression, places in found.rows for at in places}
    assert [by_place[at] for at in sorted(by_place)] == expected
    assert all(found.hold(example) for example in examples)


def test_conclusions_are_drawn_again_where_they_do_not_hold(made):
    """Two sizes that were equal by chance."""
    for rows, items in ((20, 20), (24, 24), (31, 31), (17, 31), (32, 17), (25, 25), (20, 27)):
        one, two = normal(rows, 3), normal(items, 3, seed=1)
        found = (Tensor(one).realize().sum(0) * Tensor(two).realize().sum(0)).numpy()
        np.testing.assert_allclose(found, one.sum(0) * two.sum(0), rtol=1e-4, atol=1e-5)
    assert len(made) == 4


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    steps = [
        lambda x, n: x.exp().clip(0, 3), lambda x, n: x - x.mean(0, keepdim=True), lambda x, n: x.softmax(0),
        lambda x, n: x @ Tensor(WEIGHT), lambda x, n: x.cumsum(0) * 0.1, lambda x, n: x.flip(0) + x,
        lambda x, n: x[1:].pad(((0, 1), (0, 0))), lambda x, n: x + Tensor(TABLE)[n % 7:n % 7 + x.shape[0]],
        lambda x, n: x * (Tensor.arange(x.shape[0]).reshape(-1, 1) % 3), lambda x, n: x.cat(x[:2] * 2),
        lambda x, n: (x @ x.T).softmax(1) @ x, lambda x, n: x.contiguous() + x.max(0),
        lambda x, n: x.realize(),
    ]
    chosen = random.Random(seed).choices(steps, k=5)

    def computed(size):
        x = value = Tensor(normal(size, WIDTH, seed=size), requires_grad=True)
        for step in chosen:
            value = step(value, size)
        value.sin().sum().backward()
        return value.numpy(), x.grad.numpy()

    found = [computed(size) for size in SIZES]
    with Context(DYNAMIC_SHAPES=0):
        realize.schedules.templates.clear()
        for size, ours in zip(SIZES, found, strict=True):
            for one, alone in zip(ours, computed(size), strict=True):
                np.testing.assert_allclose(one, alone, rtol=1e-3, atol=1e-4)


def test_slices_that_begin_alike_by_chance_do_not_move_together():
    """One begins where each graph says; the other's beginning is short only in the larger memory."""
    table = Tensor(TABLE[:16]).realize()
    for size, begin in ((5, 0), (6, 0), (7, 0), (7, 5), (6, 3), (5, 12)):
        data = normal(size, WIDTH, seed=size)
        found = (Tensor(data).realize()[:4] + table[begin:begin + 4]).numpy()
        np.testing.assert_allclose(found, data[:4] + TABLE[begin:begin + 4], rtol=1e-6)


def test_places_that_are_zero_later(made):
    for size, begin in ((20, 3), (24, 4), (31, 5), (22, 0), (27, 9), (25, 0)):
        data = normal(size, WIDTH, seed=size)
        np.testing.assert_allclose(Tensor(data).realize().exp()[begin:begin + size - 10].sum(0).numpy(),
                                   np.exp(data)[begin:begin + size - 10].sum(0), rtol=1e-5)
