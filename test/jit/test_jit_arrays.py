"""TinyJit and NumPy arrays, lists and modules: what a call makes tensors of is that of the call."""
import array
import itertools
import pickle
import random
import sys
import types
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.jit import JitError

W = np.ones(3, np.float32)
LIST = [1.0, 2.0, 3.0]
CALLS = 6


def vector(*values):
    return Tensor(np.array(values, np.float32)).realize()


def counted(function):
    """The function under TinyJit, and the list of calls in which its Python ran."""
    traced = []

    def work(*args):
        traced.append(1)
        return function(*args)

    return TinyJit(work), traced


def results(function, change):
    """What calls of a function give, with `change(i)` before each."""
    x, found = vector(1, 2, 3), []
    for i in range(CALLS):
        change(i)
        found.append(np.asarray(function(x).numpy()).copy())
    return found


@pytest.fixture
def as_plain():
    """Compare a function with itself under TinyJit. `change` puts everything as it is to be before a call."""
    def compare(function, change):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jitted, plain = results(TinyJit(function), change), results(function, change)
        for i, (one, other) in enumerate(zip(jitted, plain, strict=True)):
            np.testing.assert_array_equal(one, other, err_msg=f"call {i}")
    yield compare
    W[:] = 1
    LIST[:] = [1.0, 2.0, 3.0]


STEADY_THEN_OTHER = [1, 1, 1, 2, 2, 2]
"""what a call finds: a trace is replayed before it changes"""


# --- arrays that live on outside ----------------------------------------------------------------------


@pytest.mark.parametrize("function", [
    lambda x: (x * Tensor(W)).realize(), lambda x: x * W, lambda x: x + Tensor(W[1:2]),
    lambda x: x * Tensor(W[::-1]),
    lambda x: x * Tensor(W.reshape(3, 1)).reshape(3), lambda x: x * Tensor(W * 2),
    lambda x: x * Tensor(W.astype(np.int32)), lambda x: x * Tensor([float(W[0]), 2.0, 3.0]),
    lambda x: x * Tensor(W, dtype="float64"), lambda x: x[W.astype(np.int64)],
    lambda x: x * Tensor.from_dlpack(W), lambda x: x * Tensor(memoryview(W))])
@pytest.mark.parametrize("values", [STEADY_THEN_OTHER, range(CALLS)])
def test_an_array_that_is_changed_in_place_is_seen(function, values, as_plain):
    as_plain(function, lambda i: W.fill(values[i] % 3))


@pytest.mark.parametrize("make", [
    lambda: np.asfortranarray(np.ones((3, 4), np.float32)), lambda: np.ones((3, 4), np.float32).T.T,
    lambda: np.frombuffer(bytearray(48), np.float32).reshape(3, 4),
    lambda: np.ones((6, 8), np.float32)[::2, ::-2],
    lambda: np.ones((3, 4), np.float64), lambda: np.ones((3, 4), ">f4"), lambda: np.ones((3, 4), object)])
def test_arrays_of_every_layout_are_compared(make, as_plain):
    whole = make()

    def function(x):
        return x * Tensor(whole[:, 1:3], dtype="float32").sum(1)

    def change(i):
        whole[...] = STEADY_THEN_OTHER[i]

    as_plain(function, change)


@pytest.mark.parametrize("make, part", [
    (lambda path: np.ones((3, 4), ml_dtypes.bfloat16), lambda a: a[:, 1]),
    (lambda path: np.ones(3, [("f", np.float32), ("i", np.int32)]).view(np.recarray), lambda a: a.f),
    (lambda path: np.memmap(path, np.float32, "w+", shape=(3,)), lambda a: a),
    (lambda path: np.array(1.0), lambda a: a),
    (lambda path: np.ones(3, complex), lambda a: a.real), (lambda path: bytearray(3), np.asarray),
    (lambda path: bytearray(3), lambda a: a)])
def test_other_kinds_of_arrays_are_compared(make, part, as_plain, tmp_path):
    whole = make(tmp_path / "memory")

    def change(i):
        np.asarray(part(whole))[...] = STEADY_THEN_OTHER[i]

    as_plain(lambda x: x * Tensor(part(whole), dtype="float32"), change)


def test_an_array_of_another_library_is_compared(as_plain):
    torch = pytest.importorskip("torch")
    weights = torch.ones(3)
    as_plain(lambda x: x * Tensor(weights), lambda i: weights.fill_(STEADY_THEN_OTHER[i]))


def test_a_buffer_is_compared(as_plain):
    numbers = array.array("f", [1, 1, 1])
    as_plain(lambda x: x * Tensor(memoryview(numbers)),
             lambda i: numbers.__setitem__(1, STEADY_THEN_OTHER[i]))


def test_a_list_outside_is_compared(as_plain):
    as_plain(lambda x: x * Tensor(LIST), lambda i: LIST.__setitem__(1, float(STEADY_THEN_OTHER[i])))


def test_a_list_in_an_attribute_is_compared(as_plain):
    outside = types.SimpleNamespace(rows=[[1.0, 2.0, 3.0]])
    as_plain(lambda x: x * Tensor(outside.rows),
             lambda i: outside.rows[0].__setitem__(1, float(STEADY_THEN_OTHER[i])))


def test_an_attribute_that_leads_to_another_living_array_is_seen(as_plain):
    data = np.arange(18, dtype=np.float32).reshape(6, 3)
    rows = list(data)
    outside = types.SimpleNamespace()

    def change(i):
        outside.row, outside.part = rows[STEADY_THEN_OTHER[i]], data[STEADY_THEN_OTHER[i]:]

    as_plain(lambda x: x * Tensor(outside.row), change)
    as_plain(lambda x: x * Tensor(outside.part[0]), change)


def test_an_array_that_stays_is_replayed_from_the_third_call_on():
    weights = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    function, traced = counted(lambda x: x * Tensor(weights).sum())
    for i in range(CALLS):
        function(vector(i))
    assert len(traced) == 2
    weights[999, 999] += 1000
    found = [function(vector(i)).item() for i in range(CALLS)]
    np.testing.assert_allclose(found, np.arange(CALLS) * weights.sum(), rtol=1e-4)
    assert len(traced) == 4


def test_an_array_that_nobody_reaches_by_name_is_compared(as_plain):
    weights = np.ones(3, np.float32)
    held = itertools.repeat(weights)
    as_plain(lambda x: x * Tensor(next(held)), lambda i: weights.fill(STEADY_THEN_OTHER[i]))


def test_a_trace_keeps_no_array_alive():
    outside = types.SimpleNamespace(weights=np.ones((2, 3), np.float32))
    function = TinyJit(lambda x: x * Tensor(outside.weights[0]))
    for _ in range(3):
        function(vector(1, 2, 3))
    alive = weakref.ref(outside.weights)
    outside.weights = np.full((2, 3), 5, np.float32)
    assert alive() is None
    assert function(vector(1, 2, 3)).tolist() == [5, 10, 15]


# --- what is made inside ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [
    lambda x: (x + Tensor(np.random.randn(3).astype(np.float32))).realize(),
    lambda x: x + np.random.randn(3), lambda x: x[np.random.randint(0, 3, 8)],
    lambda x: x[random.choices(range(3), k=8)],
    lambda x: x + Tensor([random.random(), 1.0, 2.0]), lambda x: x + Tensor(random.randbytes(3)),
    lambda x: Tensor(np.random.randn(4)),
    lambda x: x.contiguous().assign(Tensor(np.random.randn(3), dtype="float32")),
    lambda x: x + Tensor.from_dlpack(np.random.randn(3))])
def test_arrays_and_lists_that_differ_from_call_to_call(function, as_plain):
    def change(i):
        np.random.seed(i)
        random.seed(i)

    as_plain(function, change)


def test_an_array_that_each_call_fills_anew(as_plain):
    def function(x):
        W[:] = np.random.randn(3)
        return x + Tensor(W)

    as_plain(function, np.random.seed)


def test_minibatches_that_a_step_draws_are_others_in_each_call():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((64, 5)).astype(np.float32)
    labels = rng.standard_normal(64).astype(np.float32)

    def train(wrap):
        draws, weights = np.random.default_rng(1), Tensor.zeros(5).contiguous().realize()
        all_images, all_labels = Tensor(images).realize(), Tensor(labels).realize()

        def step():
            index = Tensor(draws.integers(0, 64, 8))
            x, y = all_images[index], all_labels[index]
            error = x @ weights - y
            weights.assign(weights - 0.1 * (x.T @ error)).realize()

        step = wrap(step)
        for _ in range(CALLS):
            step()
        return weights.numpy()

    draws, expected = np.random.default_rng(1), np.zeros(5)
    for _ in range(CALLS):
        index = draws.integers(0, 64, 8)
        expected = expected - 0.1 * images[index].T @ (images[index] @ expected - labels[index])
    np.testing.assert_allclose(train(TinyJit), expected, rtol=1e-4, atol=1e-5)


def test_a_counter_in_a_list_made_inside(as_plain):
    class Clock:
        def __init__(self):
            self.time = 0.0

        def __call__(self, x):
            self.time += 1
            return x * Tensor([self.time, 1.0, 2.0])

    clocks = {}

    def run(function):
        return [function(vector(1, 2, 3)).tolist() for _ in range(CALLS)]

    clocks["jitted"], clocks["plain"] = run(TinyJit(Clock())), run(Clock())
    assert clocks["jitted"] == clocks["plain"]


@pytest.mark.parametrize("function", [
    lambda x: x * Tensor([1.0, 2.0, 3.0]), lambda x: x[[2, 0, 1]],
    lambda x: x @ Tensor(np.triu(np.ones((3, 3), np.float32))), lambda x: x + np.arange(6).reshape(2, 3)[1],
    lambda x: x + Tensor(b"abc"), lambda x: x * Tensor(np.frombuffer(b"abc", np.uint8))])
def test_constants_made_inside_are_traced_twice_then_replayed(function):
    jitted, traced = counted(function)
    for i in range(CALLS):
        x = vector(i, 2, 3)
        np.testing.assert_array_equal(jitted(x).numpy(), function(x).numpy())
    assert len(traced) == 2


def test_arrays_that_are_arguments_are_traced_once_for_each_content():
    jitted, traced = counted(lambda x, a: x * Tensor(a) + Tensor(a[:1]) + a[::-1])
    for _ in range(2):
        for i in range(3):
            assert jitted(vector(1, 2), np.array([i, 1], np.float32)).tolist() == [i + i + 1, 2 + i + i]
    assert len(traced) == 3


def test_an_argument_that_the_function_fills_is_refused():
    def work(x, a):
        a[:] = np.random.randn(2)
        return x * Tensor(a)

    with pytest.raises(JitError, match="changed a list, dict or object that it was given"):
        TinyJit(work)(vector(1, 2), np.zeros(2, np.float32))


def test_kinds_of_calls_in_turns_are_replayed():
    jitted, traced = counted(lambda x: x * Tensor([2.0]))
    for _ in range(4):
        assert jitted(vector(1)).tolist() == [2] and jitted(vector(1, 2)).tolist() == [2, 4]
    assert len(traced) == 4


def test_data_that_differs_in_each_call_is_warned_of():
    jitted = TinyJit(lambda x: x + np.random.randn(3))
    with pytest.warns(UserWarning, match="an array or list that it makes a tensor of has another content"):
        for _ in range(8):
            jitted(vector(1, 2, 3))


def test_data_that_no_longer_makes_a_tensor_is_the_plain_functions_error():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    jitted = TinyJit(lambda x: x * Tensor(rows))
    for _ in range(3):
        assert jitted(vector(1, 1)).tolist() == rows
    rows[0].append(5.0)
    with pytest.raises(ValueError, match="rows of equal shape"):
        jitted(vector(1, 1))


def test_data_that_is_equal_in_two_calls_in_a_row_is_a_constant():
    draws = iter([1.0, 2.0, 2.0, 3.0])
    jitted = TinyJit(lambda x: x * Tensor([next(draws)]))
    assert [jitted(vector(1)).item() for _ in range(4)] == [1, 2, 2, 2]
    outside = types.SimpleNamespace(array=np.ones(1, np.float32))
    jitted = TinyJit(lambda x: x * Tensor(outside.array * 2))
    assert [jitted(vector(1)).item() for _ in range(2)] == [2, 2]
    outside.array[:] = 5
    assert jitted(vector(1)).item() == 2
    jitted.reset()
    assert jitted(vector(1)).item() == 10


def test_numbers_out_of_arrays_are_those_of_the_trace():
    weights, draws = np.ones(2, np.float32), iter([100.0, 200.0])
    jitted = TinyJit(lambda x: x * weights[0] + float(weights.sum()) + next(draws))
    assert jitted(vector(1)).item() == 103
    weights[:] = 5
    assert jitted(vector(1)).item() == 103
    jitted.reset()
    assert jitted(vector(1)).item() == 215


# --- modules, other processes -------------------------------------------------------------------------


def test_a_tensor_or_array_of_an_imported_module_that_is_replaced_is_seen(as_plain):
    cfg, inner = types.ModuleType("test_jit_arrays_cfg"), types.ModuleType("test_jit_arrays_cfg.inner")
    cfg.inner, names = inner, {"cfg": cfg, "Tensor": Tensor}
    tensors, arrays = [vector(i) for i in range(3)], [np.full(3, i, np.float32) for i in range(3)]
    functions = [eval(text, names) for text in (
        "lambda x: x * cfg.scale", "lambda x: x * cfg.inner.scale", "lambda x: x * Tensor(cfg.array)",
        "lambda x: x * cfg.held['scale']")]

    def change(i):
        n = STEADY_THEN_OTHER[i]
        cfg.scale = inner.scale = tensors[n]
        cfg.array, cfg.held = arrays[n], {"scale": tensors[n]}

    for function in functions:
        as_plain(function, change)


def test_modules_of_python_and_numpy_are_not_walked():
    jitted, traced = counted(lambda x: x * sys.float_info.max_exp + np.pi)
    for i in range(3):
        np.testing.assert_allclose(jitted(vector(i)).item(), i * 1024 + np.pi, rtol=1e-6)
    assert len(traced) == 1


def test_a_pickled_function_keeps_the_data_of_its_trace():
    weights = np.full(3, 2, np.float32)
    jitted = TinyJit(lambda x: x * Tensor(weights) + Tensor([1.0]))
    for calls in range(3):
        jitted(vector(1, 2, 3))
        loaded = pickle.loads(pickle.dumps(jitted))
        for _ in range(2):
            assert loaded(vector(1, 2, 3)).tolist() == [3, 5, 7], f"after {calls + 1} calls"
    weights[:] = 5
    assert loaded(vector(1, 2, 3)).tolist() == [3, 5, 7]
    assert jitted(vector(1, 2, 3)).tolist() == [6, 11, 16]
    with pytest.raises(JitError, match="without its Python"):
        loaded(vector(1))
