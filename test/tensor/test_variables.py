"""Bound Variables as sizes and places: what NumPy, or the same with integers, gives, for every value, with
one compilation. A test for each sentence of docs/variables.md."""
import math
import operator
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jit_programs import traced
from variable_programs import MOST, X, Y, check, kernels, softmax, variable

from tinygrad import Context, Device, Tensor, Variable, dtypes
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, SizeError, reshapes_in_memory
from tinygrad.graph.spec import check_graph
from tinygrad.schedule.persistent_cache import schedules

PROGRAMS = {
    "the first items": (lambda x, n: x[:n], lambda x, n: x[:n]),
    "shrink": (lambda x, n: x.shrink(((0, n), None)), lambda x, n: x[:n]),
    "an item": (lambda x, n: x[n - 1], lambda x, n: x[n - 1]),
    "items at a place": (lambda x, n: x[n - 1:n], lambda x, n: x[n - 1:n]),
    "the last items": (lambda x, n: x[n:], lambda x, n: x[n:]),
    "columns of the first items": (lambda x, n: x[:n, 2:5], lambda x, n: x[:n, 2:5]),
    "counted from the end": (lambda x, n: x[:n][-1], lambda x, n: x[:n][-1]),
    "elementwise": (lambda x, n: (x[:n] * 2 + 1).relu(), lambda x, n: np.maximum(x[:n] * 2 + 1, 0)),
    "broadcast": (lambda x, n: x[:n] + x[0], lambda x, n: x[:n] + x[0]),
    "the number itself": (lambda x, n: x * n, lambda x, n: x * np.float32(n)),
    "sum along it": (lambda x, n: x[:n].sum(0), lambda x, n: x[:n].sum(0)),
    "sum of all": (lambda x, n: x[:n].sum(), lambda x, n: x[:n].sum()),
    "sum of the others": (lambda x, n: x[:n].sum(1), lambda x, n: x[:n].sum(1)),
    "maximum": (lambda x, n: x[:n].max(0), lambda x, n: x[:n].max(0)),
    "product": (lambda x, n: x[:n].prod(0), lambda x, n: x[:n].prod(0)),
    "minimum": (lambda x, n: x[:n].min(0), lambda x, n: x[:n].min(0)),
    "mean": (lambda x, n: x[:n].mean(0), lambda x, n: x[:n].mean(0)),
    "variance": (lambda x, n: x[:n].var(0, correction=0), lambda x, n: x[:n].var(0)),
    "softmax": (lambda x, n: x[:n].softmax(0), lambda x, n: softmax(x[:n], 0)),
    "softmax of rows": (lambda x, n: x[:n].softmax(1), lambda x, n: softmax(x[:n], 1)),
    "split": (lambda x, n: x[:n].reshape(n, 2, 4).sum(1), lambda x, n: x[:n].reshape(n, 2, 4).sum(1)),
    "merged": (lambda x, n: x[:n].reshape(-1), lambda x, n: x[:n].reshape(-1)),
    "in other groups": (lambda x, n: x[:n].reshape(n * 2, 4), lambda x, n: x[:n].reshape(n * 2, 4)),
    "what remains": (lambda x, n: x[:n].reshape(n, -1, 2), lambda x, n: x[:n].reshape(n, -1, 2)),
    "permuted": (lambda x, n: x[:n].T.contiguous(), lambda x, n: x[:n].T),
    "flipped": (lambda x, n: x[:n].flip(0), lambda x, n: x[:n][::-1]),
    "every second": (lambda x, n: x[:n][::2], lambda x, n: x[:n][::2]),
    "every third from the end": (lambda x, n: x[:n][::-3], lambda x, n: x[:n][::-3]),
    "expanded": (lambda x, n: x[0].expand(n, 8) * 2, lambda x, n: np.repeat(x[:1], n, 0) * 2),
    "padded": (lambda x, n: x[:n].pad(((1, 2), None)), lambda x, n: np.pad(x[:n], ((1, 2), (0, 0)))),
    "padded by it": (lambda x, n: x[:3].pad(((n, 0), (0, 1))),
                     lambda x, n: np.pad(x[:3], ((n, 0), (0, 1)))),
    "padded with a number": (lambda x, n: x[:n].pad(((1, 1), None), value=7),
                             lambda x, n: np.pad(x[:n], ((1, 1), (0, 0)), constant_values=7)),
    "padded to the bound": (lambda x, n: x[:n].pad_to(MOST, 8),
                            lambda x, n: np.pad(x[:n], ((0, MOST - n), (0, 0)))),
    "joined in front": (lambda x, n: x[:n].cat(x[:2]), lambda x, n: np.concatenate([x[:n], x[:2]])),
    "joined behind": (lambda x, n: x[:2].cat(x[:n]), lambda x, n: np.concatenate([x[:2], x[:n]])),
    "joined with itself": (lambda x, n: x[:n].cat(x[:n], dim=1), lambda x, n: np.concatenate([x[:n]] * 2, 1)),
    "both parts": (lambda x, n: x[:n].cat(x[n:]), lambda x, n: x),
    "rolled": (lambda x, n: x[:n].roll(1, 0), lambda x, n: np.roll(x[:n], 1, 0)),
    "rolled far back": (lambda x, n: x[:n].T.roll(-7, 1), lambda x, n: np.roll(x[:n].T, -7, 1)),
    "repeated": (lambda x, n: x[:n].T.repeat(2, 3), lambda x, n: np.tile(x[:n].T, (2, 3))),
    "attention of that width": (lambda x, n: attention(x[:n]), lambda x, n: softmax(
        x[:n].T @ x[:n] / np.sqrt(np.float32(n)), 1) @ x[:n].T),
    "matmul, rows": (lambda x, n: x[:n] @ Tensor(Y), lambda x, n: x[:n] @ Y),
    "matmul, summed": (lambda x, n: x[:n].T @ x[:n], lambda x, n: x[:n].T @ x[:n]),
    "matmul, both": (lambda x, n: x[:n] @ x[:n].T, lambda x, n: x[:n] @ x[:n].T),
    "a chain": (lambda x, n: ((x[:n] @ Tensor(Y)).contiguous().softmax(0) + 1).sum(0),
                lambda x, n: (softmax(x[:n] @ Y, 0) + 1).sum(0)),
    "stored on the way": (lambda x, n: (x[:n] + 1).contiguous() * 2, lambda x, n: (x[:n] + 1) * 2),
    "a running sum of what follows": (lambda x, n: x[:n].pad_to(MOST, 8).cumsum(0),
                                      lambda x, n: np.pad(x[:n], ((0, MOST - n), (0, 0))).cumsum(0)),
    "a running sum": (lambda x, n: x[:n].cumsum(0), lambda x, n: x[:n].cumsum(0)),
    "a running product of rows": (lambda x, n: x.T[:, :n].cumprod(1), lambda x, n: x.T[:, :n].cumprod(1)),
    "a running maximum": (lambda x, n: x[:n].cummax(0)[0], lambda x, n: np.maximum.accumulate(x[:n])),
    "arange": (lambda x, n: Tensor.arange(n), lambda x, n: np.arange(n, dtype=np.int32)),
    "arange at a place": (lambda x, n: Tensor.arange(n, n + 4),
                          lambda x, n: np.arange(n, n + 4, dtype=np.int32)),
    "arange in steps": (lambda x, n: Tensor.arange(1, n + 5, 2),
                        lambda x, n: np.arange(1, n + 5, 2, dtype=np.int32)),
    "full": (lambda x, n: Tensor.full((n, 3), 2.0), lambda x, n: np.full((n, 3), 2, np.float32)),
    "ones counted": (lambda x, n: Tensor.ones(n, 3).sum(), lambda x, n: np.float32(3 * n)),
    "a triangle": (lambda x, n: x[:n].triu(1), lambda x, n: np.triu(x[:n], 1)),
    "a triangle at a place": (lambda x, n: x.tril(n - 4), lambda x, n: np.tril(x, n - 4)),
    "chosen": (lambda x, n: (x[:n] > 0).where(x[:n], -1), lambda x, n: np.where(x[:n] > 0, x[:n], -1)),
    "picked by an index": (lambda x, n: x[:n][Tensor([0, 0])], lambda x, n: x[:n][[0, 0]]),
    "compared, any": (lambda x, n: (x[:n] > 1).any(0), lambda x, n: (x[:n] > 1).any(0)),
    "argmax": (lambda x, n: x[:n].argmax(0), lambda x, n: x[:n].argmax(0).astype(np.int32)),
    "looked up": (lambda x, n: (Tensor.arange(n) * 2).searchsorted(Tensor.arange(9)),
                  lambda x, n: np.searchsorted(np.arange(n) * 2, np.arange(9)).astype(np.int32)),
    "a convolution": (lambda x, n: x[:n].T.unsqueeze(1).conv2d(Tensor([[TAPS]]), padding=1).squeeze(1),
                      lambda x, n: correlated(x[:n].T, TAPS)),
    "a convolution in steps": (
        lambda x, n: x[:n].T.unsqueeze(1).conv2d(Tensor([[TAPS]]), stride=2, padding=1).squeeze(1),
        lambda x, n: correlated(x[:n].T, TAPS)[:, ::2]),
    "means of windows": (lambda x, n: x[:n].T.avg_pool2d((3,), 1, padding=1),
                         lambda x, n: correlated(x[:n].T, [1 / 3] * 3)),
    "the larger of neighbours": (lambda x, n: x[:n].cat(x[:1]).T.max_pool2d((2,), 1),
                                 lambda x, n: np.maximum(x[:n], np.concatenate([x[1:n], x[:1]])).T),
}
TAPS = [1.0, -2.0, 3.0]


def correlated(x, taps):
    """Sums of each item of a row, times the tap in the middle, and those beside it."""
    return np.stack([np.convolve(row, taps[::-1])[1:-1] for row in x])


def attention(x):
    """Of columns to each other: the axis whose size is not known is the width of the heads."""
    q = x.T.unsqueeze(0)
    return q.scaled_dot_product_attention(q, q)[0]


# --- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_gives_what_numpy_gives_and_one_compilation_serves_all(name):
    symbolic, expected = PROGRAMS[name]
    counts = []
    for value in (4, 1, 7, MOST):
        with Context(CHECK=1):
            check(symbolic(Tensor(X), variable(value)), expected(X, value))
        counts.append((kernels(), len(schedules.templates)))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize("most", [4, 20])
def test_the_gradient_of_a_product_of_unknown_length(most):
    """The product of the others, of short axes and of long ones, and with a zero among them."""
    data = np.random.default_rng(2).standard_normal((most, 3))
    data[1, 1] = 0
    for value in (2, most - 1):
        x = Tensor(data, requires_grad=True)
        x[:Variable("n", 1, most).bind(value)].prod(0).sum().backward()
        expected = np.zeros_like(data)
        for i in range(value):
            expected[i] = np.delete(data[:value], i, 0).prod(0)
        check(x.grad, expected)


@pytest.mark.parametrize("device", ["CPU:C", "PYTHON", "CL"])
def test_on_other_devices(device):
    if device != "PYTHON":
        try:
            Device[device]
        except RuntimeError as error:
            pytest.skip(str(error))
    cache = Tensor.zeros(MOST, 8, device=device).contiguous().realize()
    for value in (1, 6, MOST):
        n = variable(value)
        x = Tensor(X, device=device)
        check((x[:n] @ x[:n].T).sum(1), (X[:value] @ X[:value].T).sum(1), 1e-4)
        check(x[:n].softmax(0), softmax(X[:value], 0))
        cache[n - 1:n].assign(x[n - 1:n]).realize()
    expected = np.zeros_like(X)
    expected[[0, 5, 9]] = X[[0, 5, 9]]
    check(cache, expected)


def test_two_variables_in_one_graph():
    for rows, columns in ((1, 8), (3, 2), (10, 5)):
        n, m = variable(rows), variable(columns, 1, 8, "m")
        check(Tensor(X)[:n, :m].sum(0), X[:rows, :columns].sum(0))
        check(Tensor(X)[:n, :m].T.contiguous(), X[:rows, :columns].T)
        check(Tensor(X)[:n].T @ (Tensor(X)[:n, :m] + 1), X[:rows].T @ (X[:rows, :columns] + 1), 1e-4)


def test_no_items_at_all():
    n = variable(0, 0)
    check(Tensor(X)[:n], X[:0])
    check(Tensor(X)[:n].sum(0), np.zeros(8, np.float32))
    check(Tensor(X)[:n].cat(Tensor(X)), X)


def test_an_item_is_read_at_the_bound_value():
    assert Tensor(X)[variable(3) - 1, 2].item() == X[2, 2]
    assert Tensor.arange(20)[variable(7)].item() == 7
    assert Tensor.arange(20)[:variable(4)].tolist() == [0, 1, 2, 3]
    assert Tensor.arange(20)[:variable(1)].item() == 0


def test_memory_of_a_computed_tensor_is_laid_out_for_the_bound():
    part = (Tensor(X, requires_grad=False)[:variable(3)] + 1).realize()
    assert part.uop.realized_view.base.arg.size == MOST * 8
    check(part, X[:3] + 1)
    check(part.sum(0), (X[:3] + 1).sum(0))


@pytest.mark.parametrize(("computed", "expected"), [
    (lambda x: x.sum(1), X.sum(1)), (lambda x: x.reshape(-1, 2).sum(1), X.reshape(-1, 2).sum(1)),
    (lambda x: x[Tensor.arange(x.shape[0])], X)], ids=["sum", "sum of pairs", "gather"])
def test_a_part_of_a_computed_sum_is_in_its_memory(computed, expected):
    found = computed(Tensor(X, requires_grad=False)[:variable(3)]).realize()
    view = storage_view(found[:2].uop)
    assert view is not None and view.base is storage_view(found.uop).base
    check(found[:2], expected[:2])


# --- writing --------------------------------------------------------------------------------------------


def test_assigning_to_a_part_changes_that_part_alone():
    memory, expected = Tensor(X.copy(), requires_grad=False), X.copy()
    for value in (1, 4, MOST):
        n = variable(value)
        memory[:n] = Tensor(X)[:n] * value
        expected[:value] = X[:value] * value
        check(memory, expected)
        memory[n - 1:n].assign(Tensor.full((1, 8), 3.0)).realize()
        expected[value - 1] = 3
        check(memory, expected)
        memory[n - 1, 2:4] = 5
        expected[value - 1, 2:4] = 5
        check(memory, expected)


def test_a_variable_of_one_value_is_a_bound_of_slices_as_its_number():
    assert X.shape[0] > 1
    n = Variable("n", 1, 1).bind(1)
    assert Tensor(X)[:n].tolist() == X[:1].tolist() and Tensor(X)[n:n + 2].tolist() == X[1:3].tolist()


@pytest.mark.parametrize("most, value", [(2**24, 10**7), (2**40, 10**12)])
def test_a_number_that_32_bits_do_not_hold_is_a_value_too(most, value):
    n = Variable("n", 1, most).bind(value)
    assert Tensor(n * 1000).tolist() == value * 1000
    assert (Tensor([0.5], dtype=dtypes.float64) + n * 1000).tolist() == [value * 1000 + 0.5]
    assert (Tensor([1, 2], dtype=dtypes.int64) * n).tolist() == [value, 2 * value]
    assert Tensor(Variable("n", 1, 9).bind(3)).dtype is dtypes.int32


def test_a_detached_value_that_was_computed_before_is_read():
    """It is a view of memory then: nothing to compute, and yet a value to note."""
    value = Tensor(X)[:Variable("n", 1, 4).bind(3)] * 2
    views = value.detach(), value.detach().flip(0), value.detach().reshape(-1)
    value.realize()
    for view, expected in zip(views, (X[:3] * 2, X[:3][::-1] * 2, X[:3].reshape(-1) * 2), strict=True):
        np.testing.assert_array_equal(view.numpy(), expected)
        np.testing.assert_array_equal((view + 1).numpy(), expected + 1)


def test_a_part_of_unknown_place_and_length_is_written_within_the_memory_only():
    whole = Tensor.zeros(3 * MOST).contiguous().realize()
    for start in (0, 3, 9):
        n = variable(start, 0, MOST)
        whole.assign(Tensor.zeros(3 * MOST)).realize()
        whole[MOST:2 * MOST][n:].assign(Tensor.arange(MOST)[n:].float() + 1).realize()
        expected = np.zeros(3 * MOST, np.float32)
        expected[MOST + start:2 * MOST] = np.arange(start, MOST) + 1
        check(whole, expected)


def test_a_value_that_reads_what_it_overwrites():
    memory, expected = Tensor(X.copy(), requires_grad=False), X.copy()
    for value in (2, MOST):
        n = variable(value)
        memory[:n].assign(memory[:n].flip(0)).realize()
        expected[:value] = expected[:value][::-1].copy()
        check(memory, expected)


def test_a_number_in_memory_is_written_through_its_views():
    cache = Tensor.zeros(4).contiguous().realize()
    cache[1:2].assign(Tensor([5.0])).realize()
    assert cache.tolist() == [0, 5, 0, 0]


# --- shapes ---------------------------------------------------------------------------------------------


def test_a_shape_has_expressions_that_compare_by_what_they_are():
    n = variable(5)
    x = Tensor(X)[:n]
    assert x.shape == (n, 8) and x.shape[0] == n and x.shape[0] != 5
    assert x.cat(x).shape == (n * 2, 8) == (n + n, 8)
    assert x.shape != Tensor(X)[:variable(6)].shape
    assert repr(x.shape) == "(n=5, 8)" and repr(x.pad(((1, 0), None)).shape) == "(n + 1=6, 8)"
    assert isinstance(x.numel(), Size) and x.numel() == n * 8
    assert Tensor(X)[n - 1:n].shape == (1, 8)
    assert "n=5, 8" in repr(x)
    assert n.val == 5 and (n * 2 + 1).val == 11


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "ge"])
def test_arithmetic_of_a_size_and_a_tensor_is_that_of_its_value(name: str) -> None:
    size = Tensor.ones(10).shrink(((0, Variable("n", 1, 10).bind(4)),)).shape[0]
    values, operation = np.array([1.0, 3.0, 4.5], np.float32), getattr(operator, name)
    for found, expected in ((operation(size, Tensor(values)), operation(4, values)),
                            (operation(Tensor(values), size), operation(values, 4))):
        np.testing.assert_array_equal(found.numpy(), expected)
    with pytest.raises(SizeError, match="n=4 is an expression of Variables"):
        operation(size, 2.5)
    assert repr(size + np.int64(3)) == "n + 3=7"


def test_a_comparison_that_the_bounds_decide_is_a_bool():
    size = Tensor(X)[:variable(5)].shape[0]
    assert size > 0 and size <= MOST and size >= 1 and not size > MOST and size + 1 > size
    assert bool(size)


def test_a_comparison_that_values_decide_is_that_of_the_values():
    size = Tensor(X)[:variable(5)].shape[0]
    assert size < 6 and not size < 5 and size >= 5 and size - 5 <= 0 and not bool(size - 5)
    with pytest.raises(SizeError, match="whether n < 6 depends on the value of a Variable .n from 1 to 10"):
        assert Tensor(X)[:Variable("n", 1, 10)].shape[0] < 6


BEYOND = {
    "end": (lambda x, n, m: x[:n], 5, 3),
    "item": (lambda x, n, m: x[n], 9, 3),
    "window": (lambda x, n, m: x[n:n + 3], 7, 3),
    "window of a Variable": (lambda x, n, m: x[n:n + m], 7, 3),
    "window before": (lambda x, n, m: x[n - 3:n], 3, 3),
    "between": (lambda x, n, m: x[m:n], 8, 3),
    "of an unknown size": (lambda x, n, m: x[:n][:m], 8, 8),
    "from, of an unknown size": (lambda x, n, m: x[:n][m:], 8, 2),
    "item of an unknown size": (lambda x, n, m: x[:n][m], 8, 7),
    "used on": (lambda x, n, m: (x[m:n] * x[m:n].sum(0)).max(1), 8, 3),
    "shrink": (lambda x, n, m: x.shrink(((n, n + m), None)) if isinstance(x, Tensor) else x[n:n + m], 5, 3),
    "joined": (lambda x, n, m: x[:n].cat(x[m:9]) if isinstance(x, Tensor)
               else np.concatenate([x[:n], x[m:9]]), 4, 7),
    "to a number beyond": (lambda x, n, m: x[n:99], 5, 3),
    "from a number before": (lambda x, n, m: x[-99:n], 5, 3),
}


@pytest.mark.parametrize("name", BEYOND)
def test_slices_are_within_the_axis_for_the_values_that_are_bound(name):
    """The bounds alone would let them reach beyond it."""
    part, *values = BEYOND[name]
    n, m = (Variable(v, 0, 20).bind(value) for v, value in zip("nm", values, strict=True))
    with Context(CHECK=1):
        check(part(Tensor(X), n, m), part(X, *values), 1e-4)


@pytest.mark.parametrize("values", [(15, 3), (9, 3)])
def test_slices_beyond_the_axis_are_refused_by_value(values):
    n, m = (Variable(v, 0, 20).bind(value) for v, value in zip("nm", values, strict=True))
    with pytest.raises(ValueError, match="shrink takes 0 <= start <= end <= size"):
        Tensor(X)[n:n + m]
    if values[0] > 9:
        with pytest.raises(IndexError, match="index n=15 is out of range for axis 0 of 10 items"):
            Tensor(X)[n]


WRITES = {
    "one": lambda x, y, n, m: x.__setitem__(slice(n, n + 1), -1.0),
    "item": lambda x, y, n, m: x.__setitem__(n, -2.0),
    "window": lambda x, y, n, m: x.__setitem__(slice(n, n + m), y[:m]),
    "beginning": lambda x, y, n, m: x.__setitem__(slice(None, n), y[:n]),
    "between, a column": lambda x, y, n, m: x.__setitem__((slice(m, n), 1), y[m:n, 0]),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes_are_within_the_axis_for_the_values_that_are_bound(name, lazy):
    n, m = (Variable(v, 0, 20).bind(value) for v, value in zip("nm", (6, 3), strict=True))
    expected, found = X.copy(), Tensor(X).realize()
    found = found * 1 if lazy else found
    with Context(CHECK=1):
        WRITES[name](expected, X, 6, 3)
        WRITES[name](found, Tensor(X).realize(), n, m)
        np.testing.assert_allclose(found.numpy(), expected)


def test_gradients_of_slices_that_values_keep_within_the_axis():
    n, m = (Variable(v, 0, 20).bind(value) for v, value in zip("nm", (7, 3), strict=True))
    grads = []
    for first, end in ((m, n), (3, 7)):
        x = Tensor(X)
        (x[first:end].square().sum() + x[:end].max(0).sum()).backward()
        grads.append(x.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=1e-5)


def test_a_trace_serves_the_values_for_which_its_slices_are_within_the_axis():
    positions = Tensor(X).realize()
    f, calls = traced(lambda n: positions.shrink(((n, n + 3), None)).sum(0).realize())
    for value in (2, 0, 7, 5):
        check(f(Variable("n", 0, 9).bind(value)), X[value:value + 3].sum(0), 1e-4)
    with pytest.raises(ValueError, match=r"shrink takes 0 <= start <= end <= size.*n \+ 3=11"):
        f(Variable("n", 0, 9).bind(8))
    check(f(Variable("n", 0, 9).bind(1)), X[1:4].sum(0), 1e-4)
    assert len(calls) == 2, "the one that was refused, and no other"


def test_a_written_place_that_may_be_beyond_is_traced_once():
    cache = Tensor.zeros(10, 8).contiguous().realize()

    def put(item, v):
        cache[v:v + 1] = item
        return cache.sum().realize()

    f, calls = traced(put)
    expected = np.zeros((10, 8), np.float32)
    for value in (2, 9, 0, 5, 2):
        expected[value] = value + 1
        total = f(Tensor.full((1, 8), value + 1.0).contiguous(), Variable("v", 0, 10).bind(value))
        np.testing.assert_allclose(total.item(), expected.sum())
    np.testing.assert_array_equal(cache.numpy(), expected)
    assert len(calls) == 1


def test_each_way_that_values_decide_is_a_trace_of_its_own():
    x = Tensor(X).realize()

    def either(n):
        part = x[:n]
        return (part * 2 if part.shape[0] > 4 else part + 1).sum(0).realize()

    f, calls = traced(either)
    for value in (2, 5, 3, 8, 4, 9):
        expected = X[:value] * 2 if value > 4 else X[:value] + 1
        check(f(Variable("n", 1, 10).bind(value)), expected.sum(0), 1e-4)
    assert len(calls) == 2
    again = pickle.loads(pickle.dumps(f))
    for value in (1, 10):
        expected = X[:value] * 2 if value > 4 else X[:value] + 1
        check(again(Variable("n", 1, 10).bind(value)), expected.sum(0), 1e-4)


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@given(st.sampled_from([2, 4, 5]), SHAPES, SHAPES, st.data())
@settings(max_examples=150, deadline=None)
def test_a_reshape_that_is_allowed_keeps_the_order_of_the_items(value, old, new, data):
    """In memory laid out for the bound, item by item, against NumPy over exactly the items there are."""
    most = 5
    n = Size.of(Variable("n", 1, most).bind(value))
    old.insert(data.draw(st.integers(0, len(old))), n)
    new.insert(data.draw(st.integers(0, len(new))), n)
    if math.prod(s for s in old if s is not n) != math.prod(s for s in new if s is not n):
        new = [*old[::-1]]
    allowed = reshapes_in_memory(old, new)

    def sized(shape, size):
        return tuple(size if s is n else s for s in shape)

    items = np.arange(math.prod(sized(old, value))).reshape(sized(old, value))
    memory = np.full(sized(old, most), -1)
    memory[tuple(slice(s) for s in items.shape)] = items
    seen = memory.reshape(sized(new, most))[tuple(slice(s) for s in sized(new, value))]
    if allowed:
        np.testing.assert_array_equal(seen, items.reshape(sized(new, value)))
    elif value < most and math.prod(sized(old, 1)) > 1:
        assert not np.array_equal(seen, items.reshape(sized(new, value)))


# --- random programs ------------------------------------------------------------------------------------


STEPS = {
    "add": lambda x, n: x + 1.5,
    "scale": lambda x, n: x * abs(x).max(),
    "store": lambda x, n: x.contiguous() if isinstance(x, Tensor) else x,
    "flip": lambda x, n: x.flip(0) if isinstance(x, Tensor) else x[::-1],
    "flip columns": lambda x, n: x.flip(1) if isinstance(x, Tensor) else x[:, ::-1],
    "centre": lambda x, n: x - x.mean(0),
    "rows": lambda x, n: (x.T / (1 + abs(x).sum(1))).T,
    "pad": lambda x, n: x.pad(((2, 1), (0, 0)))[1:] if isinstance(x, Tensor)
    else np.pad(x, ((2, 1), (0, 0)))[1:],
    "join": lambda x, n: x.cat(x * 2) if isinstance(x, Tensor) else np.concatenate([x, x * 2]),
    "multiply": lambda x, n: x @ (x.T @ x),
    "shift": lambda x, n: x[1:].cat(x[:1]) if isinstance(x, Tensor) else np.concatenate([x[1:], x[:1]]),
    "first": lambda x, n: x[:n],
    "regroup": lambda x, n: x.reshape(-1, 2).reshape(-1, 4),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.permutations([1, 3, 6]))
@settings(max_examples=25, deadline=None)
def test_random_programs_are_right_for_every_value(names, values):
    data = np.random.default_rng(4).standard_normal((6, 4)) / 2
    for value in values[:2]:
        n = Variable("n", 1, 6).bind(value)
        symbolic, known = Tensor(data)[:n], data[:value]
        for name in names:
            symbolic, known = STEPS[name](symbolic, n), STEPS[name](known, value)
        with Context(CHECK=1):
            check(symbolic, known, 1e-6 * max(1, np.abs(known).max()))


# --- errors ---------------------------------------------------------------------------------------------


ERRORS = {
    "a value outside the bounds": (lambda: Variable("n", 1, 5).bind(9), ValueError, "from 1 to 5, got 9"),
    "a value that is no integer": (lambda: Variable("n", 1, 5).bind(2.5), TypeError, "takes an integer"),
    "an end beyond the axis": (lambda: Tensor(X)[:Variable("n", 1, 20)], SizeError, "n from 1 to 20"),
    "an item beyond the axis": (lambda: Tensor(X)[Variable("n", 1, 10)], SizeError, "n < 10 depends"),
    "assigned beyond the axis": (lambda: Tensor(X).realize()[:variable(5, 1, 20)].assign(0).realize(),
                                 SizeError, "assign to n=5, which may be 20, of the 10 items"),
    "merged with axes around": (lambda: Tensor(X)[:variable(5)].T.reshape(-1), ValueError,
                                "an axis whose size is not known can be merged with axes inside it"),
    "another number of items": (lambda: Tensor(X)[:variable(5)].reshape(5, 8), ValueError, "cannot reshape"),
    "two values in one operation": (lambda: Tensor(X)[:variable(5)] + Tensor(X)[:variable(6)], ValueError,
                                    r"\(n=5, 8\) and \(n=6, 8\) do not broadcast"),
    "two values in one graph": (lambda: (Tensor(X)[:variable(5)].sum(0)
                                         + Tensor(X)[:variable(6)].sum(0)).realize(), ValueError,
                                "the Variable n is in 1..10, bound to 5 and in 1..10, bound to 6 in one"),
    "as an integer": (lambda: int(Tensor(X)[:variable(5)].shape[0]), SizeError, "cannot be read as a number"),
    "as a range": (lambda: range(Tensor(X)[:variable(5)].shape[0]), SizeError, "cannot be read as a number"),
    "by its length": (lambda: len(Tensor(X)[:variable(5)]), SizeError, "cannot be read as a number"),
    "how many pieces": (lambda: Tensor(X)[:variable(5)].chunk(2), SizeError, "list the sizes"),
    "not bound": (lambda: Tensor(X)[:Variable("n", 1, 5)].numpy(), SizeError, "bind its variable"),
    "computed, not bound": (lambda: Tensor(X)[:Variable("n", 1, 5)].sum().item(), RuntimeError, "bind it"),
    "bounds with a negative step": (lambda: Tensor(X)[variable(5) - 1::-1], ValueError, "negative step"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_is_wrong(name):
    action, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        action()


def test_a_graph_with_limits_is_legal_in_the_grammar():
    (item,) = (Tensor(X)[:variable(5)] + 1).schedule()
    check_graph(item.ast, "tensor_graph")
    assert any(node.op is Ops.LIVE_OUT for node in item.ast.toposort())
    assert dtypes.index not in {node.dtype for node in item.ast.toposort() if node.op is Ops.LIVE_OUT}


def test_values_are_no_part_of_the_structure_of_a_schedule():
    sizes = []
    for value in (2, 5, 9):
        (Tensor(X)[:variable(value, name="structure")] * 3).sum(0).realize()
        sizes.append(len(schedules.templates))
    assert all(a == b for a, b in pairwise(sizes))
