"""Numbers that change from graph to graph: from the second graph on one schedule and one set of kernels serve
all of them, with NumPy's results."""
import math
import random

import numpy as np
import pytest
from arrays import normal

from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.engine import realize
from tinygrad.graph.ops import Ops
from tinygrad.schedule import cache as cache_module
from tinygrad.schedule import changing_numbers
from tinygrad.schedule.cache import ScheduleCache
from tinygrad.schedule.changing_numbers import ChangingNumbers


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    """An empty cache, used by everything that a test computes."""
    fresh = ScheduleCache()
    monkeypatch.setattr(realize, "schedules", fresh)
    return fresh


def kernels(result):
    return {item.ast for item in result.schedule()}


def written(x, place, value):
    """A copy of x with a part that is written over."""
    copied = x.clone().realize()
    copied[place] = value
    return copied + 1


PROGRAMS = {
    "product": lambda x, c, i: x * c,
    "step of gradient descent": lambda x, c, i: x - c * x.sin(),
    "comparison": lambda x, c, i: (x > c).where(x, c),
    "two numbers": lambda x, c, i: x.clip(-c, c + 0.5),
    "power": lambda x, c, i: (x.square() + 1) ** c,
    "reduction": lambda x, c, i: (x * c).exp().sum(1),
    "constant": lambda x, c, i: x + x.full_like(c),
    "counting": lambda x, c, i: (x.full_like(i + 7, dtype="int32").cast("float32") + x).sum(0),
    "row": lambda x, c, i: x.exp()[i],
    "item": lambda x, c, i: x.exp()[i, (3 * i) % 6] + x,
    "columns": lambda x, c, i: x.exp()[:, i % 4:i % 4 + 3].sum(1),
    "row and number": lambda x, c, i: x.softmax(1)[i] * c,
    "rows put back": lambda x, c, i: x.exp()[i:i + 2].pad(((i, 6 - i), (0, 0))) + x,
    "crop of memory": lambda x, c, i: x[i % 3:i % 3 + 6, i % 2:i % 2 + 5] * 2,
    "crop of rows of memory": lambda x, c, i: x.reshape(4, 2, 6)[i % 4, :, i % 3:i % 3 + 4] * 2,
    "crop": lambda x, c, i: x.exp()[i % 3:i % 3 + 6, i % 2:i % 2 + 5].sum(1),
    "crop of what is around": lambda x, c, i: x.pad(((2, 2), (2, 2)))[i % 4:i % 4 + 8, 1:7].square(),
    "written part": lambda x, c, i: written(x, slice(i % 3, i % 3 + 6), x[1:7].exp() * c),
    "cut from what was cut": lambda x, c, i: (x.exp()[i:i + 2] * c)[1],
    "several kernels": lambda x, c, i: ((x * c) @ x.T).softmax(1) @ x + c,
}



def alone(compute):
    """What `compute` gives where no other graph was scheduled before: with all numbers in its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realize, "schedules", ScheduleCache())
        return compute().numpy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_share_kernels_from_the_second_number_on(name):
    x, compute = Tensor(normal(8, 6)).realize(), PROGRAMS[name]
    found = []
    for i in range(6):
        def result(c=1.5 + 0.37 * i, i=i):
            return compute(x, c, i + 1)
        found.append(frozenset(kernels(result())))
        np.testing.assert_allclose(result().numpy(), alone(result), rtol=2e-5, atol=1e-5)
    assert len(set(found)) == 2


NUMBERS = {
    dtypes.float16: [0.1, -2.5, 6e4, 6e-8, 3.14159], dtypes.bfloat16: [0.1, -3e38, 1e-38, 2.7],
    dtypes.float32: [0.1, -3.4e38, 1e-45, 1.00000012, 7], dtypes.float64: [0.1, -1.7e308, 5e-324, 2 / 3],
    dtypes.int8: [5, -128, 127, 2], dtypes.uint8: [5, 255, 128, 2], dtypes.int16: [5, -32768, 32767],
    dtypes.uint16: [5, 65535, 3], dtypes.int32: [5, -2**31, 2**31 - 1], dtypes.uint32: [5, 2**32 - 1, 2**31],
    dtypes.int64: [5, -2**63, 2**63 - 1], dtypes.uint64: [5, 2**64 - 1, 2**63]}


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_numbers_of_every_dtype_arrive_as_they_are(dtype):
    zeros = Tensor.zeros(3, dtype=dtype).contiguous().realize()
    found = []
    for number in [*NUMBERS[dtype], *NUMBERS[dtype][::-1]]:
        result = zeros + Tensor(number, dtype=dtype)
        found.append(kernels(result))
        assert result.tolist() == [Tensor([number], dtype=dtype).item()] * 3
    assert len(set().union(*found)) == 2


def test_numbers_that_mean_more_make_a_graph_of_its_own(cache):
    x = Tensor(data := normal(5)).realize()
    for number in (2.5, 0, 1, -1, math.inf, -math.inf, math.nan, 3.5, 4.5, True):
        np.testing.assert_array_equal((x * number).numpy(), data * np.float32(number))
        np.testing.assert_array_equal((x > number).numpy(), data > number)


def test_a_number_that_does_not_change_stays_in_the_kernels():
    x = Tensor(normal(5)).realize()
    for number in (2.5, 3.5, 4.5):
        items = ((x * number + 0.125) * 7.75).schedule()
    assert [len(item.variables) for item in items] == [1]
    assert {0.125, 7.75} <= {node.arg for node in items[0].ast.nodes_of(Ops.CONST)}
    for other in (0.25, 0.5):
        items = ((x * 5.5 + other) * 7.75).schedule()
    assert [len(item.variables) for item in items] == [2]


def test_gradients_at_changing_items_share_kernels(cache):
    """A policy's: the probability of the action that was drawn."""
    weight, states = Tensor(normal(6, 4)).realize(), Tensor(normal(9, 6, seed=1)).realize()
    weight.requires_grad_()
    sizes = []
    for step in range(9):
        action, reward = step * (step + 1) // 2 % 4, 0.3 + 0.11 * step

        def gradient(step=step, action=action, reward=reward):
            loss = -(states[step:step + 1] @ weight).log_softmax(1)[0, action] * reward
            return loss.gradient(weight)[0]

        np.testing.assert_allclose(gradient().numpy(), alone(gradient), rtol=1e-5, atol=1e-6)
        sizes.append(len({step.ast for template in cache.templates.values() for step in template.steps}))
    assert sizes[-1] == sizes[4]


def test_a_trace_has_the_numbers_of_its_call():
    x = Tensor(data := normal(5)).realize()
    for number in (2.5, 3.5, 4.5):
        (x * number).realize()

    @TinyJit
    def product(x, number):
        return (x * number + x.exp()[2]).realize()

    for number in (5.5, 6.5):
        for _ in range(4):
            np.testing.assert_allclose(product(x, number).numpy(), data * number + np.exp(data[2]), rtol=1e-5)


def test_an_optimizer_written_by_hand_compiles_its_step_twice(cache):
    """Adam as books have it, whose corrections are Python's numbers."""
    weight, mean, square = (Tensor(normal(4, 3, seed=i)).abs().realize() for i in range(3))
    data = [t.numpy().astype(np.float64) for t in (weight, mean, square)]
    asts = []
    for step in range(1, 8):
        mean.assign(0.9 * mean + 0.1 * weight.sin())
        square.assign(0.99 * square + 0.01 * weight.sin().square())
        root = (square / (1 - 0.99**step)).sqrt() + 1e-8
        weight.assign(weight - 0.01 / step * (mean / (1 - 0.9**step)) / root)
        weight.realize(mean, square)
        w, m, s = data
        m, s = 0.9 * m + 0.1 * np.sin(w), 0.99 * s + 0.01 * np.sin(w)**2
        data = [w - 0.01 / step * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.99**step)) + 1e-8), m, s]
        for got, wanted in zip((weight, mean, square), data, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-5, atol=1e-6)
        asts.append(len({step.ast for template in cache.templates.values() for step in template.steps}))
    assert asts[-1] == asts[2]


def test_random_programs_whose_numbers_change():
    """Each form of a program, drawn with numbers and places again and again, beside itself alone."""
    functions = [
        lambda x, c, i: x * c, lambda x, c, i: x + c, lambda x, c, i: x[i:i + 2].pad(((i, 2 - i), (0, 0))),
        lambda x, c, i: x.exp()[:, i:i + 1] + x * c, lambda x, c, i: (x > c).where(x, i + 2.5),
        lambda x, c, i: x.softmax(1), lambda x, c, i: x @ x.T * c, lambda x, c, i: x.sum(0) * 0.1 + x,
        lambda x, c, i: x.contiguous(), lambda x, c, i: x.roll(i + 1, 0), lambda x, c, i: x.cumsum(1) - c]
    x = Tensor(normal(4, 4)).realize()
    for seed in range(12):
        chance = random.Random(seed)
        form = chance.choices(functions, k=5)
        for _ in range(4):
            numbers = [(chance.choice([0.25, 0.75, 1.5, 1, 0]), chance.randrange(3)) for _ in form]

            def result(form=form, numbers=numbers):
                value = x
                for function, (c, i) in zip(form, numbers, strict=True):
                    value = function(value, c, i)
                return value

            np.testing.assert_allclose(result().numpy(), alone(result), rtol=1e-4, atol=1e-5)


def test_what_is_known_of_graphs_is_bounded():
    numbers, (node,) = ChangingNumbers(limit=3), Tensor([1.0]).mul(2.5).uop.nodes_of(Ops.CONST)
    for graph in range(10):
        assert not numbers.of(graph, {node: (("number #0", 0, 9, 5),)})
    assert list(numbers.seen) == [7, 8, 9]
    assert numbers.of(7, {node: (("number #0", 0, 9, 4),)}) == {node: (("number #0", 0, 9, 4),)}
    assert list(numbers.seen) == [8, 9, 7]
    assert numbers.size == 3


def test_a_number_too_large_for_its_dtype_is_infinite():
    x = Tensor(normal(3)).realize()
    for number in (2.5, 1e39, 3.5, -1e300):
        with np.errstate(over="ignore"):
            expected = x.numpy() * np.float32(number)
        np.testing.assert_array_equal((x * Tensor(number, dtype="float32")).numpy(), expected)


def test_places_that_are_equal_by_chance_do_not_stay_together(cache):
    """Two rows of computed values, drawn anew each time, and the gradient of the first, whose place is that
    of the first row in every graph."""
    one, two = normal(4, 3), normal(4, 3, seed=1)
    x, y = Tensor(one).realize(), Tensor(two).realize()
    chance, kernels_after = random.Random(0), []
    for _ in range(24):
        i, j = chance.randrange(4), chance.randrange(4)
        value = x.exp()[i] * y.exp()[j]
        np.testing.assert_allclose(value.numpy(), np.exp(one[i]) * np.exp(two[j]), rtol=1e-5)
        gradient = np.zeros_like(one)
        gradient[i] = np.exp(one[i]) * np.exp(two[j])
        np.testing.assert_allclose(value.sum().gradient(x)[0].numpy(), gradient, rtol=1e-5)
        kernels_after.append(len({s.ast for template in cache.templates.values() for s in template.steps}))
    assert kernels_after[-1] == kernels_after[11] <= 8


@pytest.mark.parametrize("are_known", [True, False])
def test_results_that_are_views_at_changing_places(are_known, monkeypatch):
    """What is stored is seen from another place in each graph: no kernel knows it. Where a schedule shows
    that only afterwards, it is made again for one graph."""
    refused = []
    monkeypatch.setattr(cache_module.MovingView, "__init__", lambda *_: refused.append(1))
    if not are_known:
        monkeypatch.setattr(changing_numbers, "_shown_by_views", lambda _: set())
    x = Tensor(data := normal(6, 4)).realize()
    for shift in (1, 4, 2, 5):
        rolled = x.sin().roll(shift, 0).numpy()
        np.testing.assert_allclose(rolled, np.roll(np.sin(data), shift, 0), rtol=1e-5, atol=1e-6)
        both = x.exp2()
        part = both[shift % 3:shift % 3 + 3]
        Tensor.realize(part, both)
        np.testing.assert_array_equal(part.numpy(), both.numpy()[shift % 3:shift % 3 + 3])
        other = x.exp2() * 0.5
        Tensor.realize(other, shifted := other.roll(shift, 0))
        np.testing.assert_allclose(shifted.numpy(), np.roll(other.numpy(), shift, 0), rtol=1e-6)
    assert bool(refused) is not are_known


def steps_in_a_loop(x, numbers):
    """One graph of steps that differ in numbers that Python computes: a sampler, a solver."""
    for number in numbers:
        x = (x @ x.T).softmax(1) @ x * number + x.sum(0) * (0.25 / number)
    return x


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_steps_of_one_graph_that_differ_in_numbers_share_kernels(dtype):
    data, numbers = normal(6, 4).astype(dtype), [0.3 + 0.04 * i for i in range(9)]
    x = Tensor(data).realize()
    result = steps_in_a_loop(x, numbers)
    asts = [item.ast for item in result.schedule()]
    assert len(asts) > 9
    assert len(set(asts)) <= 8
    expected = x  # step by step
    for number in numbers:
        expected = Tensor(alone(lambda: steps_in_a_loop(expected, [number]))).realize()  # noqa: B023
    tolerance = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
    np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)

    @TinyJit
    def sample(x):
        return steps_in_a_loop(x, numbers).realize()

    for _ in range(3):
        np.testing.assert_allclose(sample(x).numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)


def test_many_results_that_differ_in_numbers_share_a_kernel():
    x = Tensor(data := normal(5)).realize()
    results = [x * (0.3 + i) for i in range(50)]
    asts = {item.ast for item in Tensor.schedule(*results)}
    assert len(asts) <= 4
    Tensor.realize(*results)
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), data * np.float32(0.3 + i), rtol=1e-6)


def test_a_few_kernels_keep_their_numbers():
    x = Tensor(normal(5)).realize()
    items = Tensor.schedule(*[(x * number).contiguous() for number in (0.3, 0.4, 0.6)])
    assert not any(item.variables for item in items)


def test_parts_of_a_file_are_copied_from_where_they_are(tmp_path):
    """The device of a file computes nothing, wherever a part begins."""
    path = tmp_path / "numbers"
    path.write_bytes((data := normal(8, 5)).tobytes())
    for begin in range(0, 5):
        for size in (2, 3):
            rows = Tensor(path)[begin * 20:(begin + size) * 20].to("CPU").bitcast("float32").reshape(size, 5)
            np.testing.assert_array_equal((rows * 2).numpy(), data[begin:begin + size] * 2)
            kept = Tensor(path)[begin * 20:(begin + size) * 20].bitcast("float32").reshape(size, 5)
            np.testing.assert_array_equal(kept.numpy(), data[begin:begin + size])
        typed = Tensor(path).bitcast("float32").reshape(8, 5)[begin:begin + 3].to("CPU")
        np.testing.assert_array_equal(typed.numpy(), data[begin:begin + 3])
