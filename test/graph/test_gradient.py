"""Gradients, against finite differences in float64 and closed forms."""
import contextlib
import gc
import math

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.graph.gradient import GRADIENT_RULES, transpose_movement
from tinygrad.graph.ops import Ops
from tinygrad.helpers import GlobalCounters

rng = np.random.default_rng(1)


def check(function, *arrays, step: float = 1e-5, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """The gradient of a weighted sum of `function`'s result, at every array, equals central differences."""
    arrays = [np.asarray(a, np.float64) for a in arrays]
    tensors = [Tensor(a.copy(), requires_grad=True) for a in arrays]
    result = function(*tensors)
    weights = rng.standard_normal(result.shape)
    (result * Tensor(weights, requires_grad=False)).sum().backward()

    def value(inputs) -> float:
        with Tensor.no_grad():
            return float((function(*(Tensor(a) for a in inputs)).numpy() * weights).sum())

    for i, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        expected = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[i][at] += sign * step
                sides.append(value(moved))
            expected[at] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=rtol, atol=atol)


A = rng.uniform(0.3, 0.9, (2, 3))
B = rng.uniform(1.1, 2.0, (2, 3))

FUNCTIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a,
    b: a / b,
    "pow": lambda a, b: a ** b, "maximum": lambda a, b: a.maximum(b), "minimum": lambda a, b: a.minimum(b),
    "where": lambda a, b: (a * 2 > b).where(a, b), "lerp": lambda a, b: a.lerp(b, 0.3), "copysign": lambda a,
    b: a.copysign(-b) + b,
    "mod": lambda a, b: b % a, "logaddexp": lambda a, b: a.logaddexp(b), "matmul": lambda a, b: a @ b.T,
    "einsum": lambda a, b: Tensor.einsum("ij,kj->ki", a, b), "cat": lambda a, b: a.cat(b, dim=1),
    "stack": lambda a, b: a.stack(b),
    "lshape": lambda a, b: a[:, :1] * b[:1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_two_arguments(name):
    check(FUNCTIONS[name], A, B)


UNARY = ["neg", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan",
         "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "atanh", "sigmoid", "silu", "gelu", "quick_gelu", "softplus",
         "logsigmoid", "erf", "mish",
         "elu", "celu", "selu", "relu", "relu6", "leaky_relu", "hardswish", "hardsigmoid", "hardtanh",
         "softsign", "abs", "square",
         "sign", "trunc", "softmax", "log_softmax", "logsumexp", "sum", "mean", "max", "min", "prod", "var",
         "std", "cumsum",
         "logcumsumexp", "contiguous", "flatten", "diagonal", "tril", "triu", "squeeze"]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_one_argument(name, sign):
    if sign == -1 and name in ("sqrt", "rsqrt", "log", "log2", "log10"):
        pytest.skip("not defined below zero")
    check(lambda a: getattr(a, name)(), A * sign, rtol=2e-4, atol=1e-6)


SHAPES = {
    "reshape": lambda x: x.reshape(3, 2), "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.reshape(2, 1, 3).expand(2, 4, 3),
    "pad": lambda x: x.pad(((1, 2), (0, 1)), value=5.0), "shrink": lambda x: x[:1, 1:],
    "flip": lambda x: x.flip(1),
    "stride": lambda x: x[:, ::2], "negative stride": lambda x: x[::-1, ::-2],
    "reflect": lambda x: x.pad((2, 1), mode="reflect"),
    "repeat": lambda x: x.repeat(2, 2), "roll": lambda x: x.roll(1, 1), "unfold": lambda x: x.unfold(1, 2, 1),
    "cast": lambda x: x.float().double() * 1.0, "sum axis": lambda x: x.sum(0),
    "max axis": lambda x: x.max(1),
    "prod axis": lambda x: x.prod(0), "gather": lambda x: x.gather(1, Tensor([[0, 0], [2, 1]])),
    "index": lambda x: x[[1, 0, 1], [2, 2, 0]],
    "scatter": lambda x: x.scatter(1, Tensor([[0], [2]]), x[:, :1] * 3),
    "mask": lambda x: x.masked_fill(Tensor([True, False, True]), 2.0),
    "sort": lambda x: x.sort(1)[0], "cummax": lambda x: x.cummax(1)[0], "cumprod": lambda x: x.cumprod(1),
    "mean": lambda x: x.mean(1),
    "pow 3": lambda x: x ** 3, "pow 2.5": lambda x: x ** 2.5, "pow -2": lambda x: x ** -2,
    "clip": lambda x: x.clip(0.4, 0.8),
    "2 ** x": lambda x: 2 ** x, "chain": lambda x: ((x * 2 + 1).exp() * x.sin()).sum(1).log(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_shapes_and_selections(name):
    rtol, atol, step = (1e-2, 1e-3, 1e-2) if name == "cast" else (1e-4, 1e-7, 1e-5)
    check(SHAPES[name], A, step=step, rtol=rtol, atol=atol)


def test_product_with_zeros():
    x = Tensor([2.0, 0.0, 3.0], requires_grad=True)
    x.prod().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 6, 0])
    y = Tensor([0.0, 0.0, 3.0], requires_grad=True)
    y.prod().backward()
    np.testing.assert_array_equal(y.grad.numpy(), [0, 0, 0])


def test_ties_share_the_gradient():
    a, b = Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0, 0.0], requires_grad=True)
    a.maximum(b).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), [0.5, 1])
    np.testing.assert_array_equal(b.grad.numpy(), [0.5, 0])
    x = Tensor([3.0, 3.0, 1.0], requires_grad=True)
    x.max().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.5, 0.5, 0])


@pytest.mark.parametrize("name",
                         ["relu", "abs", "sign", "tanh", "sigmoid", "sqrt", "gelu", "asinh", "log_softmax"])
def test_gradients_at_zero_and_far_out(name):
    """No NaN where the derivative has a value: at 0, and where exponentials over- or underflow."""
    x = Tensor([0.0, 200.0, -200.0] if name != "sqrt" else [1e-30, 200.0, 4.0], requires_grad=True)
    getattr(x, name)().sum().backward()
    assert np.isfinite(x.grad.numpy()).all()
    expected = {"relu": [0, 1, 0], "abs": [0, 1, -1], "sign": [0, 0, 0], "tanh": [1, 0, 0],
                "sigmoid": [0.25, 0, 0],
                "asinh": [1, 0.005, 0.005], "gelu": [0.5, 1, 0]}
    if name in expected:
        np.testing.assert_allclose(x.grad.numpy(), expected[name], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name,expected",
                         [("atan", 1), ("asin", 1), ("acos", -1), ("sinh", 1), ("cosh", 0), ("atanh", 1),
                                           ("softplus", 0.5), ("logsigmoid", 0.5), ("silu", 0.5),
                                           ("erf", 2 / math.sqrt(math.pi)),
                                           ("exp", 1), ("cos", 0), ("sin", 1), ("tan", 1), ("elu", 1),
                                           ("mish", 0.6)])
def test_derivatives_at_zero(name, expected):
    x = Tensor([0.0], requires_grad=True)
    getattr(x, name)().sum().backward()
    np.testing.assert_allclose(x.grad.item(), expected, rtol=1e-6, atol=1e-7)


def test_gradient_of_gradient():
    x = Tensor(1.5)
    y = x * x * x
    first = y.gradient(x)[0]
    second = first.gradient(x)[0]
    third = second.gradient(x)[0]
    np.testing.assert_allclose([first.item(), second.item(), third.item()], [6.75, 9.0, 6.0], rtol=1e-6)
    z = Tensor(0.7)
    second = z.sin().gradient(z)[0].gradient(z)[0]
    np.testing.assert_allclose(second.item(), -math.sin(0.7), rtol=1e-5)
    w = Tensor([0.3, -0.4])
    second = w.exp().sum().gradient(w)[0].sum().gradient(w)[0]
    np.testing.assert_allclose(second.numpy(), np.exp([0.3, -0.4]), rtol=1e-5)


def test_seed_snippets():
    x = Tensor.eye(3, requires_grad=True)
    y = Tensor([[2.0, 0, -2.0]], requires_grad=True)
    z = y.matmul(x).sum()
    z.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[2, 2, 2], [0, 0, 0], [-2, -2, -2]])
    np.testing.assert_array_equal(y.grad.numpy(), [[1, 1, 1]])
    one = Tensor([2.0], requires_grad=True)
    (one * one * one).backward()
    assert one.grad.numpy() == [12]


def test_which_tensors_get_gradients():
    leaf, frozen = Tensor([1.0, 2.0]), Tensor([3.0, 4.0], requires_grad=False)
    constant, integers = Tensor.ones(2), Tensor([1, 2])
    middle = leaf * frozen
    kept = middle + constant
    kept.requires_grad = True
    (kept * integers).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [3, 8])
    np.testing.assert_array_equal(constant.grad.numpy(), [1, 2])
    np.testing.assert_array_equal(kept.grad.numpy(), [1, 2])
    assert frozen.grad is None and middle.grad is None and integers.grad is None


MADE_FROM_CONSTANTS = {
    "clone": lambda: Tensor.eye(3).clone(),
    "contiguous": lambda: Tensor.zeros(3, 3).contiguous(),
    "arithmetic": lambda: Tensor.rand(3, 3) * 2 - 1,
    "integers": lambda: Tensor.arange(9).reshape(3, 3).float(),
    "view": lambda: Tensor(np.ones((4, 3), np.float32))[1:],
    "sharded": lambda: Tensor.ones(3, 3).contiguous().shard(("CPU:0", "CPU:1"), 0),
}


@pytest.mark.parametrize("realized", ["never", "before", "between", "after"])
@pytest.mark.parametrize("name", MADE_FROM_CONSTANTS)
def test_what_was_computed_from_no_other_tensor_gets_a_gradient_realized_or_not(name, realized):
    x = MADE_FROM_CONSTANTS[name]()
    w = Tensor([[1.0, 2.0, 3.0]] * 3)
    if name == "sharded":
        w = w.shard(x.device)
    if realized == "before":
        x.realize()
    first = x * w
    if realized == "between":
        x.realize()
    total = first.sum() + (x * 2 * w).sum()
    if realized == "after":
        total.realize()
    total.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[3, 6, 9]] * 3)
    np.testing.assert_allclose(w.grad.numpy(), 3 * x.numpy(), rtol=1e-6)
    assert first.grad is None and total.grad is None


def test_a_result_gets_no_gradient_while_what_it_was_computed_from_is_there():
    x = Tensor([1.0, 2.0])
    h = x * 3
    (h * h).sum().backward()
    assert h.grad is None
    np.testing.assert_array_equal(x.grad.numpy(), [18, 36])
    del x
    (h * h).sum().backward()
    np.testing.assert_array_equal(h.grad.numpy(), [6, 12])


def test_a_gradient_without_dependence_is_zeros():
    x, w, frozen = Tensor([0.0, 2.0]), Tensor([3.0, 4.0]), Tensor([1.0, 1.0], requires_grad=False)
    (x**0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0])
    results = ((x**0) * w).sum().gradient(x, w, frozen, Tensor([[5.0]]))
    for found, expected in zip(results, ([0, 0], [1, 1], [0, 0], [[0]]), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
    a, b = Tensor([1.0, -2.0]), Tensor([-1.0, -3.0])
    for found, expected in zip(a.copysign(b).sum().gradient(a, b), ([-1, 1], [0, 0]), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(x.detach().sum().gradient(x)[0].numpy(), [0, 0])
    with Tensor.train():
        np.testing.assert_array_equal(w.dropout(1.0).sum().gradient(w)[0].numpy(), [0, 0])
        w.dropout(1.0).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), [0, 0])


def test_gradient_refuses_targets_that_are_no_floats():
    x, count = Tensor([1.0, 2.0]), Tensor([1, 2])
    with pytest.raises(RuntimeError, match="only floats have gradients, target 1 is dtypes.int32"):
        (x * count).sum().gradient(x, count)


@pytest.mark.parametrize(("name", "formula"), [
    ("acosh", lambda x: 1 / np.sqrt(x * x - 1)), ("atanh", lambda x: 1 / (1 - x * x))])
def test_gradients_of_inverse_hyperbolic_functions_at_the_ends(name, formula):
    points = {"acosh": [1.0, 1.0000001, 1.5, 3.0, 1e12], "atanh": [-1.0, -0.75, 0.0, 0.5, 1.0]}[name]
    x = Tensor(points)
    with np.errstate(divide="ignore"):
        expected = formula(np.array(points, np.float32).astype(np.float64))
    np.testing.assert_allclose(getattr(x, name)().sum().gradient(x)[0].numpy(), expected, rtol=1e-6)


def test_equal_constants_are_different_leaves():
    a, b = Tensor.zeros(2, requires_grad=True), Tensor.zeros(2, requires_grad=True)
    (a * 2 + b * 3).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), [2, 2])
    np.testing.assert_array_equal(b.grad.numpy(), [3, 3])


def test_reshaped_and_realised_leaves():
    w = Tensor.zeros(2, 2)
    x = Tensor(np.arange(4.0).reshape(2, 2))
    loss = (w.reshape(4) * x.reshape(4)).sum() + (w * w).sum()
    w.realize()
    loss.realize()
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), x.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros((2, 2)))


@pytest.mark.parametrize("there, back", [
    (lambda x: x.T, lambda x: x.T),
    (lambda x: x.reshape(3, 2), lambda x: x.reshape(2, 3)),
    (lambda x: x.reshape(3, 2), lambda x: x.reshape(6)),
    (lambda x: x.reshape(1, 2, 3).permute(2, 0, 1), lambda x: x.permute(1, 2, 0)),
    (lambda x: x.T.reshape(2, 3), lambda x: x.reshape(3, 2).T),
    (lambda x: x.flip(0), lambda x: x.flip(0)),
], ids=["transposed", "reshaped", "flat", "permuted", "both", "flipped"])
@pytest.mark.parametrize("computed", [True, False])
def test_a_step_of_movement_that_the_next_undoes_has_a_gradient(there, back, computed):
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    step = there(x * 2 if computed else x)
    weights = np.arange(back(step).numel(), dtype=np.float32).reshape(back(step).shape)
    loss = (back(step) * Tensor(weights)).sum()
    indices = back(there(Tensor(np.arange(6).reshape(2, 3)))).numpy().ravel()
    expected = weights.ravel()[np.argsort(indices)][there(Tensor(np.arange(6).reshape(2, 3))).numpy()]
    np.testing.assert_array_equal(loss.gradient(step)[0].numpy(), expected)
    step.requires_grad_()
    loss.backward()
    np.testing.assert_array_equal(step.grad.numpy(), expected)


def test_gradients_accumulate_until_cleared():
    w = Tensor([1.0], requires_grad=True)
    for i in range(3):
        (w * (i + 1)).sum().backward()
    assert w.grad.item() == 6
    w.grad = None
    (w * 2).sum().backward()
    assert w.grad.item() == 2


def test_item_before_backward():
    w = Tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    assert loss.item() == 5
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), [2, 4])


@pytest.mark.parametrize("realized", ["nothing", "constant", "result", "both"])
@pytest.mark.parametrize("make", ["no_grad", "detach", "detach twice"])
@pytest.mark.parametrize("step", [lambda x: x * 3, lambda x: x.softmax(0), lambda x: x.reshape(1, 3)],
                         ids=["product", "call", "view"])
def test_what_is_computed_of_constants_is_one_whether_realized_or_not(realized, make, step):
    x = Tensor([1.0, 2.0, 4.0]).realize()
    with Tensor.no_grad() if make == "no_grad" else contextlib.nullcontext():
        constant = step(x)
    for _ in range({"no_grad": 0, "detach": 1, "detach twice": 2}[make]):
        constant = constant.detach()
    if realized in ("constant", "both"):
        constant.realize()
    result = constant * 2
    if realized in ("result", "both"):
        result.realize()
    with pytest.raises(RuntimeError, match="takes gradients"):
        (result * constant).sum().backward()
    for target in (constant, result):
        with pytest.raises(RuntimeError, match="target 1 is a constant to gradients"):
            (result * x).sum().gradient(x, target)
    (result * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(result.numpy(), (1, 3))[0], rtol=1e-6)
    assert constant.grad is None and result.grad is None


@pytest.mark.parametrize("realized", ["nothing", "before", "after"])
@pytest.mark.parametrize("lives", [False, True])
def test_a_constant_that_asks_for_gradients_is_a_variable_of_its_own(realized, lives):
    x = Tensor([1.0, 2.0, 4.0]).realize()
    whole = x * 3 if lives else x
    variable = whole.detach()
    if realized == "before":
        variable.realize()
    variable.requires_grad_()
    if realized == "after":
        variable.realize()
    loss = (variable * variable * x).sum()
    loss.backward()
    values = variable.numpy()
    np.testing.assert_array_equal(variable.grad.numpy(), 2 * values * x.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), values * values)
    for found, expected in zip(loss.gradient(x, variable), (x.grad, variable.grad), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert whole is x or whole.grad is None


def test_one_of_two_names_of_a_constant_asks_for_gradients():
    x = Tensor([1.0, 2.0]).realize()
    with Tensor.no_grad():
        one = x * 3
    view = one.flip(0)
    other = one.detach().requires_grad_()
    (other * one).sum().backward()
    np.testing.assert_array_equal(other.grad.numpy(), [3, 6])
    one.requires_grad_()
    other.grad = None
    (one * view + other).sum().backward()
    np.testing.assert_array_equal(one.grad.numpy(), [6, 3])
    np.testing.assert_array_equal(other.grad.numpy(), [1, 1])
    assert view.grad is None and x.grad is None


def test_no_grad_and_detach():
    w = Tensor([3.0], requires_grad=True)
    with Tensor.no_grad():
        inside = w * 2
    (w * w.detach() + inside).sum().backward()
    assert w.grad.item() == 3

    @Tensor.no_grad()
    def constant():
        return w * 5

    with pytest.raises(RuntimeError, match="takes gradients"):
        constant().sum().backward()


def test_training_step_by_hand():
    w = Tensor([1.0, -2.0], requires_grad=True).realize()
    memory = w.uop.base.buffer
    x = np.array([1.0, -2.0])
    for _ in range(4):
        w.grad = None
        loss = (w * w).sum()
        loss.backward()
        w.assign(w - 0.1 * w.grad)
        w.realize()
        np.testing.assert_allclose(loss.item(), (x * x).sum(), rtol=1e-6)
        x = x - 0.2 * x
        np.testing.assert_allclose(w.numpy(), x, rtol=1e-6)
    assert w.uop.base.buffer is memory


MAKERS = (lambda: Tensor([7.0, 8.0]), lambda: Tensor.uniform(2), lambda: Tensor.zeros(2))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("under_no_grad", [False, True])
def test_a_leaf_that_is_written_to_stays_one(make, under_no_grad):
    """Whether it was computed before or not: PyTorch's gradients of parameters that were filled in."""
    source = Tensor([1.0, 2.0])
    whole, number, part = make(), make(), make()
    with Tensor.no_grad() if under_no_grad else contextlib.nullcontext():
        whole.assign(source)
        number.assign(3)
        part[1:] = source[:1] * 5
    (whole * whole + number * number).sum().backward()
    (part[1] * part[1]).backward()
    assert whole.grad.tolist() == [2, 4]
    assert number.grad.tolist() == [6, 6]
    assert part.grad.tolist() == [0, 10]
    if under_no_grad:
        assert source.grad is None


def test_reading_one_gradient_computes_those_beside_it():
    """As many kernels as all of them take at once, not a backward pass for each."""
    x = Tensor(np.ones((4, 8), np.float32), requires_grad=False)
    weights = [Tensor(np.eye(8, dtype=np.float32) * i, requires_grad=True).realize() for i in range(1, 5)]

    def kernels(read):
        for w in weights:
            w.grad = None
        result = x
        for w in weights:
            result = (result @ w).tanh()
        result.sum().backward()
        before = GlobalCounters.kernel_count
        values = read()
        return values, GlobalCounters.kernel_count - before

    def together():
        Tensor.realize(*[w.grad for w in weights])
        return [w.grad.numpy() for w in weights]

    expected, least = kernels(together)
    values, count = kernels(lambda: [w.grad.numpy() for w in weights])
    assert count == least
    np.testing.assert_array_equal(values, expected)
    _, alone = kernels(lambda: weights[-1].grad.realize())
    assert alone < least


def test_gradients_that_nobody_asked_for_are_not_computed_with_those_that_somebody_did():
    data, weight = Tensor([1.0, 2.0]), Tensor([3.0, 4.0], requires_grad=True)
    (data * weight).sum().backward()
    weight.grad.numpy()
    assert "lazy" in repr(data.grad)
    data.grad.numpy()
    assert "lazy" not in repr(data.grad)


def test_lazy_gradients_are_computed_at_once_before_more_are_added():
    weights = [Tensor(np.eye(8, dtype=np.float32), requires_grad=True).realize() for _ in range(3)]
    x = Tensor(np.ones((4, 8), np.float32), requires_grad=False).realize()

    def backward():
        result = x
        for w in weights:
            result = (result @ w).tanh()
        result.sum().backward()

    backward()
    steps = len(weights[0].grad.schedule(*[w.grad for w in weights[1:]]))
    before = GlobalCounters.kernel_count
    backward()
    assert GlobalCounters.kernel_count - before == steps


def test_assigned_leaf_gets_gradients_before_it_is_computed():
    w = Tensor([1.0], requires_grad=True).realize()
    w.assign(w * 3)
    (w * w).sum().backward()
    assert w.grad.item() == 6 and w.item() == 3


def test_gradients_nobody_asked_for_are_given_up():
    x = Tensor([1.0, 2.0])
    w = Tensor([3.0, 4.0], requires_grad=True).realize()
    (x * w).sum().backward()
    w.assign(w * 0)
    w.realize()
    np.testing.assert_array_equal(w.grad.numpy(), [1, 2])
    with pytest.raises(RuntimeError, match="overwritten"):
        _ = x.grad


def test_backward_after_overwriting_is_an_error_not_a_wrong_number():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    loss = (w * w).sum()
    w.assign(Tensor([5.0, 5.0])).realize()
    loss.backward()
    with pytest.raises(RuntimeError, match="overwritten"):
        w.grad.numpy()


def test_integers_cut_the_path():
    x = Tensor([1.5, 2.5])
    with pytest.raises(RuntimeError, match="takes gradients"):
        x.int().float().sum().backward()
    y = Tensor([1.5, 2.5])
    (y * y.floor()).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), [1, 2])


def test_deep_graphs():
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    y.sum().backward()
    assert x.grad.item() == 1


def test_gradients_keep_dtype():
    x = Tensor([1.0, 2.0], dtype=dtypes.float16, requires_grad=True)
    (x.float() * 3).sum().backward()
    assert x.grad.dtype is dtypes.float16 and x.grad.tolist() == [3, 3]


def test_every_float_operation_has_a_rule():
    no_gradient = {Ops.BITCAST, Ops.DETACH, Ops.CMPLT, Ops.CMPNE, Ops.IDIV, Ops.MOD, Ops.AND, Ops.OR, Ops.XOR,
                   Ops.SHL, Ops.SHR, Ops.DP4A, Ops.LOOKUP, Ops.THREEFRY, Ops.BUFFER, Ops.CONST, Ops.VARIABLE,
                   Ops.APPLY}
    graph_ops = list(Ops)[:list(Ops).index(Ops.SINK)]
    assert {op for op in graph_ops if op not in GRADIENT_RULES} == no_gradient


def test_transposed_movement_puts_items_back():
    x = Tensor(np.arange(12).reshape(3, 4))
    view = x[::-2, 1:3]
    placed = Tensor(transpose_movement(view.uop, view.uop, x.uop)).numpy()
    expected = np.zeros((3, 4), int)
    expected[::-2, 1:3] = np.arange(12).reshape(3, 4)[::-2, 1:3]
    np.testing.assert_array_equal(placed, expected)


def test_integers_may_ask_for_a_gradient_and_get_none():
    count = Tensor([1, 2, 3], requires_grad=True)
    weight = Tensor([0.5, 0.5, 2.0], requires_grad=True)
    (count * weight).sum().backward()
    assert count.requires_grad is True and count.dtype is dtypes.int32
    assert count.grad is None
    np.testing.assert_array_equal(weight.grad.numpy(), [1.0, 2.0, 3.0])


def test_gradients_are_freed_with_their_graph():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    from tinygrad.graph import uop

    sizes = []
    for _ in range(4):
        w.grad = None
        loss = (w * w).sum()
        loss.backward()
        w.grad.realize()
        w.assign(w - w.grad).realize()
        del loss
        gc.collect()
        sizes.append(len(uop._interned))
    assert sizes[1] == sizes[2] == sizes[3]
