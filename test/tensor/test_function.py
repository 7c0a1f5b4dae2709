"""`Function`: operations with a gradient of their own."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import close

from tinygrad import Function, Tensor, TinyJit, grad, jvp, vmap


class Cube(Function):
    """x**3 in PyTorch's style, with a factor in the gradient that tells whose it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, = ctx.saved_tensors
        return gradient * x * x * 3 * ctx.factor, None


class Exp(Function):
    """In tinygrad's style: methods, and one gradient for each tensor. It saves its result."""

    def forward(self, x: Tensor) -> Tensor:
        self.y = x.exp()
        self.save_for_backward(self.y)
        return self.y

    def backward(self, gradient: Tensor) -> Tensor:
        y, = self.saved_tensors
        return gradient * y


class Polar(Function):
    """Two results of two arguments."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(r, angle)
        return r * angle.cos(), r * angle.sin()

    @staticmethod
    def backward(ctx: Any, at_x: Tensor, at_y: Tensor) -> tuple[Tensor, Tensor]:
        r, angle = ctx.saved_tensors
        return (at_x * angle.cos() + at_y * angle.sin(), (at_y * angle.cos() - at_x * angle.sin()) * r)


class StraightThrough(Function):
    """Rounding whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


X = np.array([0.5, -1.0, 2.0])


def test_value_and_gradient_of_backward() -> None:
    x = Tensor(X)
    y = Cube.apply(x, 10.0)
    y.sum().backward()
    close(y, X**3)
    assert x.grad is not None
    close(x.grad, 30 * X**2)


def test_second_and_third_derivatives() -> None:
    def total(x: Tensor) -> Tensor:
        return Cube.apply(x).sum()

    close(grad(lambda x: grad(total)(x).sum())(Tensor(X)), 6 * X)
    close(grad(lambda x: grad(lambda y: grad(total)(y).sum())(x).sum())(Tensor(X)), np.full(3, 6.0))


def test_a_saved_result_has_the_functions_own_derivative() -> None:
    """The table's derivative of exp is not asked: a result that is saved keeps the rule."""
    class Tripled(Exp):
        def backward(self, gradient: Tensor) -> Tensor:
            y, = self.saved_tensors
            return gradient * y * 3

    close(grad(lambda x: grad(lambda y: Tripled.apply(y).sum())(x).sum())(Tensor(X)), 9 * np.exp(X))
    close(grad(lambda x: grad(lambda y: Exp.apply(y).sum())(x).sum())(Tensor(X)), np.exp(X))


def test_several_results() -> None:
    r, angle = Tensor(X), Tensor(X + 1)
    x, y = Polar.apply(r, angle)
    (x * 2 + y * y).sum().backward()
    ra, aa = X, X + 1
    assert r.grad is not None and angle.grad is not None
    close(r.grad, 2 * np.cos(aa) + 2 * ra * np.sin(aa)**2)
    close(angle.grad, -2 * ra * np.sin(aa) + 2 * ra**2 * np.sin(aa) * np.cos(aa))


def test_one_of_several_results() -> None:
    close(grad(lambda r: Polar.apply(r, Tensor(X))[1].sum())(Tensor(X)), np.sin(X))


def test_straight_through() -> None:
    close(grad(lambda x: (StraightThrough.apply(x) * Tensor(X)).sum())(Tensor(X)), X)


def test_transforms_use_the_rule() -> None:
    x = Tensor(X)
    wanted = 30 * X**2
    close(jvp(lambda t: Cube.apply(t, 10.0), (x,), (Tensor.ones(3, dtype="float64"),))[1], wanted)
    close(vmap(grad(lambda t: Cube.apply(t, 10.0)))(x), wanted)
    close(grad(lambda t: vmap(lambda one: Cube.apply(one, 10.0))(t).sum())(x), wanted)
    close(vmap(grad(grad(lambda t: Cube.apply(t, 10.0))))(x), 60 * X)
    close(jvp(StraightThrough.apply, (x,), (x,))[1], X)


def test_vmap_of_arguments_that_are_and_are_not_mapped() -> None:
    def one(r: Tensor, angle: Tensor) -> Tensor:
        return Polar.apply(r, angle)[0].sum()

    found = vmap(grad(one, argnums=(0, 1)), in_axes=(0, None))(Tensor(np.stack([X, X + 1])), Tensor(X))
    close(found[0], np.stack([np.cos(X)] * 2))
    close(found[1], np.stack([-X * np.sin(X), -(X + 1) * np.sin(X)]))


def test_under_tinyjit() -> None:
    step = TinyJit(lambda x: grad(lambda t: Cube.apply(t, 10.0).sum())(x))
    for i in range(3):
        close(step(Tensor(X + i).realize()), 30 * (X + i)**2)


def test_arguments_that_are_no_tensors_and_integers() -> None:
    class Scaled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, index: Tensor, scale: float, *, offset: float) -> Tensor:
            ctx.scale, ctx.needs = scale, ctx.needs_input_grad
            assert ctx.needs == (True, False, False)
            return x[index] * scale + offset

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            return gradient * ctx.scale, None, None

    x = Tensor([1.0, 2.0])
    y = Scaled.apply(x, Tensor([1, 0]), 3.0, offset=1.0)
    assert y.tolist() == [7, 4]
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3]


def test_results_marked_as_constant() -> None:
    class Both(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y, size = x * 2, x.abs()
            ctx.mark_non_differentiable(size)
            return y, size

        @staticmethod
        def backward(ctx: Any, at_y: Tensor, at_size: Tensor) -> Tensor:
            return at_y * 2

    close(grad(lambda x: (Both.apply(x)[0] * 3 + Both.apply(x)[1]).sum())(Tensor(X)), np.full(3, 6.0))


def test_a_gradient_of_another_shape_or_number_is_an_error() -> None:
    class Wrong(Function):
        answer: Any = None

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x + y

        @classmethod
        def backward(cls, ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
            return cls.answer

    for answer, text in ((Tensor.ones(2), "Wrong.backward returned 1 gradients for 2 arguments, 2 of them"),
                         ((Tensor.ones(2), None), r"of shape \(2,\) for an argument of shape \(3,\)"),
                         ((1.0, None), r"of float for an argument of shape \(3,\)")):
        Wrong.answer = answer
        with pytest.raises(RuntimeError, match=text):
            Wrong.apply(Tensor(X), Tensor(X)).sum().backward()


def test_forward_has_to_return_tensors() -> None:
    class Number(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return 3

    with pytest.raises(TypeError, match="Number.forward returns a tensor or a tuple of tensors, got int"):
        Number.apply(Tensor(X))
    with pytest.raises(NotImplementedError, match="Function has no forward"):
        Function.apply(Tensor(X))
