"""`grad`, `value_and_grad`, `vjp`, `jvp`, `vmap`: against closed forms, finite differences and loops."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from arrays import Array, close

from tinygrad import Function, Tensor, TinyJit, grad, jvp, nn, value_and_grad, vjp, vmap
from tinygrad.tensor.modes import no_grad

X = np.array([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]])
Y = np.array([[1.0, 2.0, 0.5], [-1.0, 3.0, 1.25]])


def difference(function: Callable[[Tensor], Tensor], x: Array, direction: Array) -> Array:
    """The derivative in a direction by differences of fourth order."""
    step = 1e-3
    at = [function(Tensor(x + k * step * direction)).numpy() for k in (-2, -1, 1, 2)]
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * step)


# --- grad -----------------------------------------------------------------------------------------


def test_grad_of_a_tree_of_arguments() -> None:
    def loss(parameters: dict, x: Tensor) -> Tensor:
        return ((x @ parameters["w"] + parameters["b"][0]) ** 2).sum()

    w, b = Y[:, :2].T.copy(), np.array(0.5)
    value, found = value_and_grad(loss)({"w": Tensor(w), "b": [Tensor(b)]}, Tensor(X[:, :2]))
    residual = X[:, :2] @ w + b
    assert value.item() == pytest.approx((residual**2).sum())
    close(found["w"], 2 * X[:, :2].T @ residual)
    close(found["b"][0], 2 * residual.sum())


def test_argnums() -> None:
    f = lambda x, y, z: (x * y).sum() * z  # noqa: E731
    args = Tensor(X), Tensor(Y), 2.0
    close(grad(f, 1)(*args), 2 * X)
    first, last = grad(f, (0, -1))(*args)
    close(first, 2 * Y)
    close(last, (X * Y).sum())


def test_has_aux_returns_what_else_the_function_gives() -> None:
    f = lambda x: ((x * x).sum(), {"y": x + 1, "n": 3})  # noqa: E731
    (value, aux), found = value_and_grad(f, has_aux=True)(Tensor(X))
    close(value, (X * X).sum())
    close(aux["y"], X + 1)
    close(found, 2 * X)
    found, aux = grad(lambda x: ((x * x).sum(), x), has_aux=True)(Tensor(X))
    close(found, 2 * X)
    close(aux, X)


def test_only_the_argument_counts_not_the_same_tensor_from_outside() -> None:
    x = Tensor(X)
    close(grad(lambda y: (x * y).sum())(x), X)
    close(grad(lambda y: (y * x.detach() + y.detach() * y).sum())(x), 2 * X)


def test_an_argument_that_is_not_used_has_a_zero_gradient() -> None:
    close(grad(lambda x, y: (y * y).sum())(Tensor(X), Tensor(Y)), np.zeros_like(X))


def test_gradients_are_taken_whatever_requires_grad_and_no_grad_say() -> None:
    x = Tensor(X, requires_grad=False)
    with no_grad():
        close(grad(lambda y: (y * y).sum())(x), 2 * X)

    def inside(y: Tensor) -> Tensor:
        with no_grad():
            held = y * y
        return (held * y).sum()

    close(grad(inside)(x), X**2)


def test_backward_reaches_through_a_gradient() -> None:
    x = Tensor(X)
    grad(lambda y: (y**3).sum())(x).sum().backward()
    assert x.grad is not None
    close(x.grad, 6 * X)


def test_values_may_be_read_and_arguments_assigned_to_inside_grad() -> None:
    def f(x: Tensor) -> Tensor:
        x += 1
        x[0] = x[0] * 2
        return (x * x).sum() if x.sum().item() > 0 else x.sum()

    x = Tensor(X)
    shifted = X + 1
    close(grad(f)(x), np.stack([8 * shifted[0], 2 * shifted[1]]))
    close(x, X)


@pytest.mark.parametrize("call, text", [
    (lambda: grad(lambda x: x * 2)(Tensor(X)), r"one float, of shape \(\), got .*float64 of shape \(2, 3\)"),
    (lambda: grad(lambda x: x.argmax())(Tensor(X)), "one float"),
    (lambda: grad(lambda x: 3.0)(Tensor(X)), "one float"),
    (lambda: grad(lambda x: x)(3), "grad takes derivatives at floats, got .*int"),
    (lambda: grad(lambda x: x)("a"), "trees of tensors, numbers and arrays, got a str"),
    (lambda: grad(lambda x: x, 1)(Tensor(1.0)), "argnums=1 of a call with 1 positional"),
    (lambda: grad(lambda x: x, has_aux=True)(Tensor(1.0)), r"returns \(result, aux\), got a Tensor"),
])
def test_what_grad_refuses(call: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


# --- vjp and jvp ----------------------------------------------------------------------------------


def test_vjp_of_several_results_pulls_as_often_as_wanted() -> None:
    result, pull = vjp(lambda x, y: {"p": x * y, "s": (x.sum(), x.argmax())}, Tensor(X), Tensor(Y))
    close(result["p"], X * Y)
    at_x, at_y = pull({"p": Tensor(Y), "s": (2.0, None)})
    close(at_x, Y * Y + 2)
    close(at_y, X * Y)
    at_x, at_y = pull({"p": None, "s": (1.0, None)})
    close(at_x, np.ones_like(X))
    close(at_y, np.zeros_like(Y))


def test_vjp_with_integers_and_aux() -> None:
    _, pull, aux = vjp(lambda x, i: (x[i], i), Tensor(X), Tensor([1]), has_aux=True)
    at_x, at_i = pull(Tensor(Y[:1]))
    close(at_x, np.stack([0 * Y[0], Y[0]]))
    assert at_i is None and aux.tolist() == [1]


def test_the_form_of_a_cotangent_is_checked() -> None:
    _, pull = vjp(lambda x: (x, x), Tensor(X))
    with pytest.raises(ValueError, match=r"another form than \(\*, \*\)"):
        pull((Tensor(X),))
    with pytest.raises(ValueError, match=r"shape \(3,\) does not fit a value of shape \(2, 3\)"):
        pull((Tensor(X), Tensor(X[0])))
    with pytest.raises(ValueError, match=r"jvp's tangents has another form"):
        jvp(lambda x: x, (Tensor(X),), ())
    with pytest.raises(TypeError, match="tuples of primals"):
        jvp(lambda x: x, Tensor(X), Tensor(X))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (x * x - 3 / (x + 4)) * -x,
    "functions": lambda x: x.sin() + x.exp() * (x + 4).log() + (x + 4).sqrt() + x.tanh() + x.erf(),
    "extrema": lambda x: x.maximum(x.flip(1)) + x.max(1, keepdim=True) + x.relu(),
    "choices": lambda x: (x > 0).where(x * x, x.cos()) + (x + 0.3).trunc(),
    "movement": lambda x: x.T.reshape(3, 2).pad((1, 1)).flip(0)[:, ::2] * x.sum(),
    "products": lambda x: x.prod(0) + (x * (x > 1)).prod(1, keepdim=True),
    "matrix product": lambda x: (x @ x.T).softmax() @ x,
    "normalised": lambda x: x.layernorm() + x.log_softmax(),
    "indexing": lambda x: x[Tensor([1, 0, 1]), Tensor([2, 2, 0])] * x.gather(1, Tensor([[0, 1, 2]])).sum(),
    "sorted": lambda x: x.sort(1)[0].cumsum(1) * x.cumprod(1),
    "convolution": lambda x: x.reshape(1, 1, 2, 3).pad((1, 1)).conv2d(x.reshape(1, 1, 2, 3)[..., :2]),
    "casts": lambda x: x.cast("float64").contiguous() * x.detach(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jvp_and_vjp_agree_with_differences(name: str) -> None:
    f = FUNCTIONS[name]
    if name == "casts":  # detach is a constant, which differences do not know
        wanted = X * Y
    else:
        wanted = difference(f, X, Y)
    result, tangent = jvp(f, (Tensor(X),), (Tensor(Y),))
    close(result, f(Tensor(X)).numpy())
    close(tangent, wanted, 1e-6)
    weight = np.random.default_rng(0).standard_normal(result.shape)
    _, pull = vjp(f, Tensor(X))
    assert (pull(Tensor(weight))[0].numpy() * Y).sum() == pytest.approx((weight * wanted).sum(), rel=1e-6)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("extrema", "choices", "casts")])
def test_second_derivatives_forward_over_backward_agree_with_differences(name: str) -> None:
    slope = grad(lambda x: (FUNCTIONS[name](x) ** 2).sum())
    close(jvp(slope, (Tensor(X),), (Tensor(Y),))[1], difference(slope, X, Y), 2e-5)


def test_tangents_of_zero_and_of_integers() -> None:
    _, tangent = jvp(lambda x, i: (x * 0 + 1, i, x.detach()), (Tensor(X), Tensor([1])), (None, None))
    assert tangent[1] is None
    close(tangent[0], np.zeros_like(X))
    close(tangent[2], np.zeros_like(X))


# --- vmap -----------------------------------------------------------------------------------------


MORE: dict[str, Callable[[Tensor], Tensor]] = {
    **FUNCTIONS,
    "integers": lambda x: (x * 4).cast("int32") // 2 % 3 ^ 1,
    "bits": lambda x: x.bitcast("int64") >> 60,
    "nothing": lambda x: x[:0],
    "constant": lambda x: Tensor.arange(4),
    "realize": lambda x: (x * 2).contiguous().realize() + 1,
    "topk": lambda x: x.topk(2)[0],
    "scatter": lambda x: Tensor.zeros(2, 3, dtype="float64").scatter(1, x.argsort(1), x),
}


@pytest.mark.parametrize("name", MORE)
def test_vmap_is_a_loop(name: str) -> None:
    batch = np.stack([X, Y, X * Y])
    wanted = np.stack([MORE[name](Tensor(x)).numpy() for x in batch])
    close(vmap(MORE[name])(Tensor(batch)), wanted)
    moved = Tensor(np.moveaxis(batch, 0, 2))
    close(vmap(MORE[name], in_axes=2, out_axes=-1)(moved), np.moveaxis(wanted, 0, -1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_composes_with_derivatives(name: str) -> None:
    batch = np.stack([X, Y])
    total = lambda x: (FUNCTIONS[name](x) ** 2).sum()  # noqa: E731
    wanted = np.stack([grad(total)(Tensor(x)).numpy() for x in batch])
    close(vmap(grad(total))(Tensor(batch)), wanted)
    close(grad(lambda b: vmap(total)(b).sum())(Tensor(batch)), wanted)
    pushed = np.stack([jvp(total, (Tensor(x),), (Tensor(x),))[1].numpy() for x in batch])
    close(jvp(vmap(total), (Tensor(batch),), (Tensor(batch),))[1], pushed)
    close(vmap(lambda x: jvp(total, (x,), (x,))[1])(Tensor(batch)), pushed)


def test_axes_of_trees() -> None:
    class Pair(NamedTuple):
        a: Tensor
        b: Tensor

    @dataclasses.dataclass
    class Both:
        x: Tensor
        y: Tensor

    def f(pair: Pair, both: Both, *, scale: Tensor) -> dict:
        return {"s": pair.a * both.x + pair.b, "t": (both.y, scale)}

    found = vmap(f, in_axes=(Pair(1, None), Both(0, None)), out_axes={"s": 0, "t": (None, 0)})(
        Pair(Tensor(X), Tensor(Y[:, 0])), Both(Tensor([1.0, 2.0, 3.0], dtype="float64"), Tensor(7.0)),
        scale=Tensor([1, 2, 3]))
    close(found["s"], X.T * np.array([[1.0], [2.0], [3.0]]) + Y[:, 0])
    assert found["t"][0].item() == 7 and found["t"][1].tolist() == [1, 2, 3]


def test_vmap_of_vmap_and_values_of_the_outer_one_inside() -> None:
    table = vmap(lambda a: vmap(lambda b: a * b + a.sum())(Tensor(Y[0])))(Tensor(X[0]))
    close(table, np.outer(X[0], Y[0]) + X[0][:, None])
    close(vmap(vmap(lambda a, b: a - b, in_axes=(None, 0)), in_axes=(0, None))(Tensor(X[0]), Tensor(Y[0])),
          np.subtract.outer(X[0], Y[0]))


def test_hessian() -> None:
    f = lambda x: (x[0] * x[1]).exp() + x[2] ** 3 * x[0]  # noqa: E731
    x = np.array([0.5, -1.25, 2.0])
    hessian = vmap(lambda v: jvp(grad(f), (Tensor(x),), (v,))[1])(Tensor(np.eye(3)))
    a, b, c = x
    e = np.exp(a * b)
    close(hessian, [[b * b * e, (1 + a * b) * e, 3 * c * c], [(1 + a * b) * e, a * a * e, 0],
                    [3 * c * c, 0, 6 * a * c]])


def test_gradients_of_each_example_through_layers() -> None:
    Tensor.manual_seed(1)
    conv, linear = nn.Conv2d(1, 2, 3), nn.Linear(18, 3)
    images, targets = Tensor.rand(4, 1, 5, 5), Tensor([0, 2, 1, 1])

    def loss(weight: Tensor, image: Tensor, target: Tensor) -> Tensor:
        hidden = image.unsqueeze(0).conv2d(weight, conv.bias).relu().flatten(1)
        return linear(hidden).cross_entropy(target.unsqueeze(0))

    each = vmap(grad(loss), in_axes=(None, 0, 0))(conv.weight, images, targets)
    wanted = np.stack([grad(loss)(conv.weight, images[i], targets[i]).numpy() for i in range(4)])
    close(each, wanted, 1e-4)


@pytest.mark.parametrize("draw", [
    lambda: Tensor.rand(5), lambda: Tensor.randn(2, 2), lambda: Tensor.randperm(6),
    lambda: Tensor.randint(3, high=100), lambda: Tensor.rand(3, dtype="float64")])
def test_random_numbers_are_those_of_a_loop(draw: Callable[[], Tensor]) -> None:
    Tensor.manual_seed(5)
    wanted = np.stack([draw().numpy() for _ in range(4)])
    after = Tensor.rand(2).tolist()
    Tensor.manual_seed(5)
    assert (vmap(lambda x: draw())(Tensor.zeros(4)).numpy() == wanted).all()
    assert Tensor.rand(2).tolist() == after


def test_random_numbers_in_nested_batches_and_the_same_for_all() -> None:
    x = Tensor.zeros(3, 4)
    both = vmap(vmap(lambda _: Tensor.rand(2)))(x).numpy()
    assert np.unique(both).size == 24
    outer = vmap(vmap(lambda _: Tensor.rand(2), randomness="same"))(x).numpy()
    assert np.unique(outer).size == 6 and (outer == outer[:, :1]).all()
    with pytest.raises(ValueError, match='randomness="different" or "same"'):
        vmap(lambda x: x, randomness="error")


def test_dropout_differs_from_example_to_example() -> None:
    with Tensor.train():
        rows = vmap(lambda x: x.dropout(0.5))(Tensor.ones(8, 64)).numpy()
    assert np.unique(rows, axis=0).shape[0] == 8


def test_axis_size_and_empty_batches() -> None:
    assert vmap(lambda: Tensor(3), axis_size=2)().tolist() == [3, 3]
    assert vmap(lambda x: x * 2)(Tensor(X[:0])).shape == (0, 3)


def test_an_assignment_inside_changes_only_the_example() -> None:
    def f(x: Tensor) -> Tensor:
        x += 1
        x[0] = 5
        out = Tensor.zeros(3, dtype=x.dtype)
        out[1] = x.sum()
        return out

    for kind in ("float32", "int32"):
        t = Tensor(X, dtype=kind)
        wanted = np.zeros((2, 3))
        wanted[:, 1] = (t.numpy()[:, 1:] + 1).sum(1) + 5
        close(vmap(f)(t), wanted)
        close(t, X.astype(kind))


@pytest.mark.parametrize("function", [
    lambda x: x.sum().item(), lambda x: x.numpy(), lambda x: x if x.sum() > 0 else -x, lambda x: x.nonzero(),
    lambda x: x[x > 0], lambda x: Tensor.full((2,), x.sum()), lambda x: np.asarray(x), lambda x: x.tolist()])
def test_reading_a_value_under_vmap_names_the_line(function: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match=r"test_transforms.py:\d+: a value was read that vmap"):
        vmap(function)(Tensor(X))


def test_writing_outside_and_keeping_a_tensor_are_errors() -> None:
    outside, kept = Tensor([0.0, 0.0]).realize(), []
    with pytest.raises(RuntimeError, match="memory that all examples share"):
        vmap(lambda x: outside.assign(x[:2].float()))(Tensor(X))
    with pytest.raises(RuntimeError, match="memory that all examples share"):
        vmap(lambda x: outside.__setitem__(0, x[0].float()))(Tensor(X))
    assert outside.tolist() == [0, 0]
    vmap(lambda x: kept.append(x * 2) or x)(Tensor(X))
    with pytest.raises(RuntimeError, match="kept and used outside"):
        kept[0].numpy()


@pytest.mark.parametrize("call, text", [
    (lambda: vmap(lambda x, y: x)(Tensor(X), Tensor(Y[:1])), r"one size, got 2 \(axis 0 of \(2, 3\)\), 1"),
    (lambda: vmap(lambda x: x)(3.0), r"vmap over axis 0 of a tensor of shape \(\)"),
    (lambda: vmap(lambda x: x, in_axes=2)(Tensor(X)), r"vmap over axis 2 of a tensor of shape \(2, 3\)"),
    (lambda: vmap(lambda x: x, in_axes=None)(Tensor(X)), "nothing to map over"),
    (lambda: vmap(lambda x: x, in_axes=(0, 0))(Tensor(X)), "a call with 1 positional"),
    (lambda: vmap(lambda x: x, out_axes=None)(Tensor(X)), "differs from example to example"),
    (lambda: vmap(lambda x: x, out_axes=2)(Tensor(X)), r"out_axes=2 for results of shape \(3,\)"),
    (lambda: vmap(lambda x: x, in_axes=({"a": 0},))({"b": Tensor(X)}), "does not fit"),
    (lambda: vmap(lambda x: x, axis_size=3)(Tensor(X)), "with axis_size=3"),
])
def test_what_vmap_refuses(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


# --- TinyJit --------------------------------------------------------------------------------------


def test_transforms_inside_of_tinyjit() -> None:
    step = TinyJit(lambda x: (vmap(grad(lambda r: (r**3).sum()))(x), jvp(lambda r: r * r, (x,), (x,))[1]))
    for i in range(3):
        cubes, squares = step(Tensor(X + i).realize())
        close(cubes, 3 * (X + i)**2)
        close(squares, 2 * (X + i)**2)


def test_transforms_of_a_jitted_function() -> None:
    total = TinyJit(lambda x: (x**3).sum())
    for i in range(3):
        total(Tensor(X + i).realize())
        close(grad(total)(Tensor(X + i)), 3 * (X + i)**2)
        close(vmap(total)(Tensor(X + i)), ((X + i)**3).sum(1))
        close(vmap(grad(total))(Tensor(X + i)), 3 * (X + i)**2)


def test_a_jitted_vmap_draws_new_numbers_in_every_call() -> None:
    draw = TinyJit(lambda x: vmap(lambda r: r + Tensor.rand(3))(x))
    rows = np.concatenate([draw(Tensor.zeros(4, 3).contiguous().realize()).numpy() for _ in range(3)])
    assert np.unique(rows).size == 36


def test_a_training_step_of_functions_only() -> None:
    x = np.random.default_rng(0).standard_normal((32, 3))
    wanted = np.array([1.0, -2.0, 0.5])
    step = TinyJit(lambda w, x, y: w - 0.1 * grad(lambda w: ((x @ w - y) ** 2).mean())(w))
    w = Tensor.zeros(3, dtype="float64").contiguous()
    for _ in range(200):
        w = step(w, Tensor(x), Tensor(x @ wanted))
    close(w, wanted, 1e-4)


def test_vmap_of_sizes_that_are_given() -> None:
    x = np.array([[0, 3, 0, 5], [1, 0, 0, 0]], np.float32)
    assert vmap(lambda row: row.nonzero(size=2, fill_value=-1))(Tensor(x)).tolist() \
        == [[[1], [3]], [[0], [-1]]]


# --- operations with gradients of their own -------------------------------------------------------

MATRICES = np.array([[[3.0, 1.0], [0.5, 2.0]], [[2.0, -1.0], [0.5, 4.0]]])
TANGENTS = np.array([[[1.0, 2.0], [3.0, 4.0]], [[-1.0, 0.5], [2.0, 1.0]]])


def test_a_derivative_of_a_batch_of_gradients_of_inverses() -> None:
    """The gradient of the sum of the items of B = A^-1 is -B^T 1 B^T; of its squares, by differences."""
    def squares(a: np.ndarray) -> float:
        bt = np.linalg.inv(a).transpose(0, 2, 1)
        return float(((bt @ np.ones((2, 2)) @ bt) ** 2).sum())

    at_one = grad(lambda a: a.inv().sum())
    found = grad(lambda a: (vmap(at_one)(a) ** 2).sum())(Tensor(MATRICES))
    steps = 1e-5 * np.eye(8).reshape(8, 2, 2, 2)
    differences = [(squares(MATRICES + s) - squares(MATRICES - s)) / 2e-5 for s in steps]
    close(found, np.array(differences).reshape(2, 2, 2), 1e-6)


def test_tangents_of_a_batch_of_linear_algebra() -> None:
    b = np.linalg.inv(MATRICES)
    at = (Tensor(MATRICES),), (Tensor(TANGENTS),)
    close(jvp(vmap(lambda a: a.inv()), *at)[1], -b @ TANGENTS @ b)
    close(jvp(vmap(lambda a: a.det()), *at)[1],
          np.linalg.det(MATRICES) * np.trace(b @ TANGENTS, axis1=1, axis2=2))
    close(jvp(vmap(lambda a: a.solve(a[:, 0])), *at)[1], np.zeros((2, 2)))


def test_a_derivative_of_a_batch_of_a_function_with_its_own_gradient() -> None:
    class Cube(Function):
        def forward(self, x: Tensor) -> Tensor:
            self.save_for_backward(x)
            return x.detach() ** 3

        def backward(self, gradient: Tensor) -> Tensor:
            x, = self.saved_tensors
            assert x is not None
            return gradient * x * x * 3

    rows = vmap(grad(lambda r: Cube.apply(r).sum()))
    close(grad(lambda x: rows(x).sum())(Tensor(X)), 6 * X)
    close(jvp(vmap(Cube.apply), (Tensor(X),), (Tensor(Y),))[1], 3 * X**2 * Y)
