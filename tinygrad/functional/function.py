"""`Function`: an operation with a gradient of its own, by a forward and a backward pass over tensors.

The result is an ordinary graph with a rule (`CUSTOM_GRADIENT`), so it fuses as any other, and what `backward`
returns can be differentiated again. The rule is used in both directions and over batches: `jvp` transposes
it, `vmap` gives it one more axis.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.frozen import frozen
from tinygrad.graph.gradient import SourceGradients
from tinygrad.graph.leaf_tensors import depends_on_leaf
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


class Function:
    """Derive from this, write `forward` and `backward`, and call `apply`.

    `forward(ctx, *args, **kwargs)` returns a tensor or a tuple of them; `backward(ctx, *gradients)` gets the
    gradient of each and returns one for each argument, or for each tensor among the arguments: None where it
    is zero. Both may be static methods, or methods: `ctx` is an instance either way, made by `apply`, and
    keeps what `forward` puts on it.

    `backward` must be linear in the gradients, as every derivative is. Where `forward` returns several
    tensors, it runs once for each that gradients come from, with zeros for the others.

    >>> from tinygrad import Function
    >>> class Exp(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = x.exp()
    ...         ctx.save_for_backward(y)
    ...         return y
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         y, = ctx.saved_tensors
    ...         return gradient * y
    >>> x = Tensor([0., 1.])
    >>> _ = Exp.apply(x).sum().backward()
    >>> x.grad.numpy().round(3).tolist()
    [1.0, 2.7179999351501465]
    """

    _saved: tuple[Tensor | None, ...] = ()
    _arguments: tuple[Any, ...] = ()
    _values: tuple[Tensor, ...] = ()
    _constant: frozenset[int] = frozenset()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *gradients: Any) -> Any:
        """The gradients at the arguments, given those of the results."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `backward`, which finds them in `saved_tensors`."""
        self._saved = tensors

    def mark_non_differentiable(self, *results: Tensor) -> None:
        """Results of `forward` that are constants to gradients."""
        self._constant = frozenset(id(t) for t in results)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given. Results of `forward` are saved with their gradient."""
        results = {id(value): i for i, value in enumerate(self._values)}
        return tuple(t if id(t) not in results else self._result(results[id(t)]) for t in self._saved)

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each positional argument, whether it is a tensor that gradients may be taken of."""
        from tinygrad.tensor import Tensor

        return tuple(isinstance(a, Tensor) and a.requires_grad is not False and a.dtype.is_float
                     and depends_on_leaf(a.uop) for a in self._arguments)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The result of `forward`, whose gradient is `backward`.

        Raises TypeError where `forward` returns something else than tensors; when gradients are taken,
        RuntimeError where `backward` returns another number of gradients, or other shapes.
        """
        from tinygrad.tensor import Tensor

        ctx = cls()
        ctx._arguments = args
        result = cls.forward(ctx, *args, **kwargs)
        values = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(value, Tensor) for value in values):
            raise TypeError(f"{cls.__name__}.forward returns a tensor or a tuple of tensors, got "
                            f"{', '.join(type(value).__name__ for value in values)}")
        ctx._values = values
        results = tuple(ctx._result(i) for i in range(len(values)))
        return results if isinstance(result, tuple) else results[0]

    def _inputs(self) -> list[Tensor]:
        from tinygrad.tensor import Tensor

        return [a for a in self._arguments if isinstance(a, Tensor)]

    def _result(self, position: int) -> Tensor:
        """A result of `forward`, with its gradient."""
        value, inputs = self._values[position], self._inputs()
        if not inputs:
            return value
        if not value.dtype.is_float or id(value) in self._constant:
            return value.detach()
        nodes = [t.uop for t in inputs]
        return value.of(value.uop.with_gradient(nodes, _Rule(self, position)), *inputs)

    def _gradients(self, position: int, gradient: UOp) -> SourceGradients:
        """The gradients at the input tensors, for the gradient of one result."""
        given = [t.of(gradient if i == position else UOp.const(0, t.dtype, t.shape), t)
                 for i, t in enumerate(self._values)]
        returned = type(self).backward(self, *given)
        found = self._of_inputs(returned if isinstance(returned, (tuple, list)) else (returned,))
        return tuple(self._checked(g, x) for g, x in zip(found, self._inputs(), strict=True))

    def _of_inputs(self, found: Sequence[Any]) -> Sequence[Any]:
        """Those of the gradients that belong to tensors. None at the end may be for arguments not given."""
        inputs = self._inputs()
        while len(found) > len(self._arguments) and found[-1] is None:
            found = found[:-1]
        if len(found) == len(self._arguments):
            return [g for g, a in zip(found, self._arguments, strict=True) if any(a is t for t in inputs)]
        if len(found) == len(inputs):
            return found
        raise RuntimeError(f"{type(self).__name__}.backward returned {len(found)} gradients for "
                           f"{len(self._arguments)} arguments, {len(inputs)} of them tensors")

    def _checked(self, gradient: Any, x: Tensor) -> UOp | None:
        if gradient is None or not x.dtype.is_float:
            return None
        shape = getattr(gradient, "shape", None)
        if not isinstance(gradient, type(x)) or shape != x.shape:
            what = type(gradient).__name__ if shape is None else f"shape {shape}"
            raise RuntimeError(f"{type(self).__name__}.backward returned a gradient of {what} for an "
                               f"argument of shape {x.shape}")
        return gradient.uop.cast(x.dtype)


@frozen
class _Rule:
    """The gradient rule of one result of a Function."""

    ctx: Function
    position: int

    def __call__(self, gradient: UOp, node: UOp) -> SourceGradients:
        return self.ctx._gradients(self.position, gradient)
