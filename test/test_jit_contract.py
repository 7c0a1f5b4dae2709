"""TinyJit: the sentences of docs/jit.md for which no other test stood, and that its table names tests."""
import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.engine.jit import JitError


def vector(*values):
    return Tensor(np.array(values, np.float32))


# --- inputs -----------------------------------------------------------------------------------------


def test_a_gradient_taken_directly_is_right_where_its_tensor_is_given_too():
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()

    @TinyJit
    def step(x):
        w.grad = None
        (w * w).sum().backward()
        w.assign(w.detach() - w.grad)

    step(vector(1, 1, 1))
    assert w.tolist() == [-1, -2, -3] and w.grad.tolist() == [2, 4, 6]
    for _ in range(3):
        expected = w.numpy()
        step(w)
        np.testing.assert_array_equal(w.numpy(), -expected)
        np.testing.assert_array_equal(w.grad.numpy(), 2 * expected)


def test_a_gradient_that_is_used_both_ways_is_refused_in_every_call():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    other = Tensor([3.0, 4.0], requires_grad=True).realize()
    step = TinyJit(lambda x: (x * w).sum().backward().detach())

    def prepare():
        w.grad = other.grad = None

    prepare()
    assert step(other).item() == 11 and w.grad.tolist() == [3, 4] and other.grad.tolist() == [1, 2]
    for _ in range(2):
        prepare()
        with pytest.raises(JitError, match=r"argument 0, of shape \(2,\), .* whose gradient .* directly"):
            step(w)
    prepare()
    assert step(other).item() == 11 and w.grad.tolist() == [3, 4] and other.grad.tolist() == [1, 2]


def test_an_exception_leaves_the_gradient_that_the_function_set_directly():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def fail(x):
        (w * 3).sum().backward()
        raise KeyError("planned")

    with pytest.raises(KeyError):
        fail(w)
    assert w.grad.tolist() == [3, 3]
