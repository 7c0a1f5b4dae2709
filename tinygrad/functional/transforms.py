"""Functions of functions of tensors: `grad`, `value_and_grad`, `vjp`, `jvp` and `vmap`, as JAX means them.

Each calls the function once, on stand-ins for its arguments, and transforms the graph that it built:
`graph/gradient.py` backwards, `graph/tangent.py` forwards, `graph/batch.py` with one more axis. What comes
back is graph again, so the transforms compose with each other and with TinyJit.

Arguments and results are trees of tensors (`functional/trees.py`). Numbers and NumPy arrays count as tensors
where a derivative or a batch is taken of them. Arguments are values: a function that assigns to one changes
its own copy.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tinygrad.functional import random
from tinygrad.functional.trees import (
    TreeDef,
    flatten,
    leaves_like,
    spread_prefix,
    unflatten,
)
from tinygrad.graph.batch import batch, placeholder, placeholders, spread
from tinygrad.graph.gradient import as_argument, summed_gradients
from tinygrad.graph.tangent import tangents as carried_tangents
from tinygrad.graph.uop import UOp
from tinygrad.tensor import Tensor
from tinygrad.tensor.modes import transforming

Axes = Any
"""An axis, None, or a tree of them that is a prefix of the tree it belongs to."""


# --- arguments and results ------------------------------------------------------------------------


def _as_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return Tensor(value, requires_grad=False)
    raise TypeError(f"{name} takes trees of tensors, numbers and arrays, got a {type(value).__name__}")


class _Arguments:
    """A tree of tensors, and the same tree with a node of its own for every tensor."""

    def __init__(self, name: str, tree: Any, floats_only: bool = False) -> None:
        leaves, self.structure = flatten(tree)
        self.tensors = [_as_tensor(name, leaf) for leaf in leaves]
        other = next((t for t in self.tensors if not t.dtype.is_float), None)
        if floats_only and other is not None:
            raise TypeError(f"{name} takes derivatives at floats, got {other.dtype} of shape {other.shape}; "
                            "leave it out of argnums, or cast it")
        self.nodes = [as_argument(t.uop) for t in self.tensors]
        self.tree = unflatten(self.structure, map(Tensor.of, self.nodes, self.tensors))

    def results(self, found: Sequence[UOp | None]) -> Any:
        """A tree of these nodes: zeros where a float has none, None for what is no float."""
        return unflatten(self.structure, [
            Tensor.of(t.uop.const(0, t.dtype, t.shape) if g is None else g, t) if t.dtype.is_float else None
            for t, g in zip(self.tensors, found, strict=True)])


def _result_and_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(f"{name} with has_aux=True takes a function that returns (result, aux), got a "
                        f"{type(result).__name__}")
    return result


def _outputs(name: str, result: Any) -> tuple[list[Tensor], TreeDef]:
    leaves, structure = flatten(result)
    return [_as_tensor(name, leaf) for leaf in leaves], structure


def _weights(name: str, tree: Any, structure: TreeDef, values: Sequence[Tensor]) -> dict[int, UOp]:
    """For each of `values` by position, the node of its derivative that `tree` gives; None leaves it out."""
    found = {}
    for i, (leaf, value) in enumerate(zip(leaves_like(name, tree, structure), values, strict=True)):
        if leaf is None or not value.dtype.is_float:
            continue
        weight = _as_tensor(name, leaf)
        if weight.shape != value.shape:
            raise ValueError(f"{name}: a derivative of shape {weight.shape} does not fit a value of shape "
                             f"{value.shape}")
        found[i] = weight.uop.cast(value.dtype)
    return found


# --- gradients ------------------------------------------------------------------------------------


def value_and_grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0,
                   has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns (value, gradient) of `function`, whose value is one float (shape ()).

    The gradient is at the positional argument `argnums` and has its form; for several, a tuple of gradients.
    With `has_aux`, `function` returns (value, aux), and the result is ((value, aux), gradient). Raises
    TypeError for integers in those arguments and for a value that is no float of shape ().

    >>> from tinygrad import value_and_grad
    >>> value, gradient = value_and_grad(lambda p: (p["a"] * p["b"]).sum())({"a": Tensor([1., 2.]), "b": 3.})
    >>> value.item(), gradient["a"].tolist(), gradient["b"].item()
    (9.0, [3.0, 3.0], 3.0)
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        if any(not -len(args) <= i < len(args) for i in numbers):
            raise TypeError(f"grad with argnums={argnums} of a call with {len(args)} positional arguments")
        with transforming():
            arguments = {i % len(args): _Arguments("grad", args[i], floats_only=True) for i in numbers}
            result = function(*(arguments[i].tree if i in arguments else a for i, a in enumerate(args)),
                              **kwargs)
        value, aux = _result_and_aux("grad", result, has_aux)
        if not isinstance(value, Tensor) or value.shape != () or not value.dtype.is_float:
            kind = f"{value.dtype} of shape {value.shape}" if isinstance(value, Tensor) else type(value)
            raise TypeError(f"grad takes a function whose value is one float, of shape (), got {kind}; "
                            "see vjp for others")
        nodes = [node for a in arguments.values() for node in a.nodes]
        found = iter(summed_gradients({value.uop: UOp.const(1.0, value.dtype)}, nodes))
        at = {i: a.results([next(found) for _ in a.nodes]) for i, a in arguments.items()}
        gradients = tuple(at[i % len(args)] for i in numbers)
        return (value, aux) if has_aux else value, gradients[0] if isinstance(argnums, int) else gradients

    return transformed


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0,
         has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of `function`; see `value_and_grad`. With `has_aux`, (gradient,
    aux).

    >>> from tinygrad import grad
    >>> grad(grad(lambda x: x ** 3))(2.0).item()
    12.0
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return transformed


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(result, pull) of `function` at `primals`: `pull(cotangent)` is the product of the transposed Jacobian
    with a tree of the result's form, as a tuple with one gradient for each of `primals`.

    `pull` may be called any number of times. Integers among the primals get None for a gradient; for those
    of the result, and for parts that should not count, None stands in the cotangent. With `has_aux`,
    (result, pull, aux).

    >>> from tinygrad import vjp
    >>> result, pull = vjp(lambda x, y: x * y, Tensor([1., 2.]), Tensor([3., 4.]))
    >>> [g.tolist() for g in pull(Tensor([1., 10.]))]
    [[3.0, 40.0], [1.0, 20.0]]
    """
    with transforming():
        arguments = _Arguments("vjp", primals)
        answer = function(*arguments.tree)
    result, aux = _result_and_aux("vjp", answer, has_aux)
    outputs, structure = _outputs("vjp", result)

    def pull(cotangent: Any) -> Any:
        weights = _weights("the argument of vjp's function", cotangent, structure, outputs)
        roots: dict[UOp, UOp] = {}
        for i, weight in weights.items():
            root = outputs[i].uop
            roots[root] = roots[root] + weight if root in roots else weight
        return arguments.results(summed_gradients(roots, arguments.nodes))

    return (result, pull, aux) if has_aux else (result, pull)


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any],
        has_aux: bool = False) -> Any:
    """(result, tangent) of `function` at `primals`: the derivative of the result in a direction.

    `tangents` has the form of `primals` (None stands for zero), and the tangent that of the result, with None
    for integers. With `has_aux`, (result, tangent, aux).

    >>> from tinygrad import jvp
    >>> result, tangent = jvp(lambda x: x * x, (Tensor([1., 2.]),), (Tensor([1., 10.]),))
    >>> tangent.tolist()
    [2.0, 40.0]
    """
    if not (isinstance(primals, (tuple, list)) and isinstance(tangents, (tuple, list))):
        raise TypeError("jvp takes tuples of primals and of tangents, one for each argument of the function")
    with transforming():
        arguments = _Arguments("jvp", tuple(primals))
        answer = function(*arguments.tree)
    result, aux = _result_and_aux("jvp", answer, has_aux)
    outputs, structure = _outputs("jvp", result)
    weights = _weights("jvp's tangents", tuple(tangents), arguments.structure, arguments.tensors)
    found = carried_tangents([t.uop for t in outputs], {arguments.nodes[i]: w for i, w in weights.items()})
    pushed = [Tensor.of(UOp.const(0, t.dtype, t.shape) if d is None else d, t) if t.dtype.is_float else None
              for t, d in zip(outputs, found, strict=True)]
    tangent = unflatten(structure, pushed)
    return (result, tangent, aux) if has_aux else (result, tangent)


# --- batches --------------------------------------------------------------------------------------


def vmap(function: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, axis_size: int | None = None,
         randomness: str = "different") -> Callable[..., Any]:
    """A function that maps `function`, of one example, over an axis of its arguments.

    `in_axes` says which axis of each positional argument that is: one axis for all, or a tuple with an axis,
    None (the argument is the same for all examples) or a tree of them for each argument. Keyword arguments
    are mapped over axis 0. `out_axes` says where the axis goes in the results; None for a result that is the
    same for all. Nothing is looped over: every operation gets one more axis.

    Random numbers are drawn for each example ("different"), or once for all ("same"). The function cannot
    read values, nor make shapes of them, nor write into tensors from outside what differs from example to
    example: RuntimeError. Raises ValueError where sizes differ or an axis does not exist.

    >>> from tinygrad import vmap
    >>> rows = Tensor([[1, 2], [3, 4]])
    >>> vmap(lambda row, x: (row * x).sum(), in_axes=(0, None))(rows, Tensor([1, 10])).tolist()
    [21, 43]
    """
    if randomness not in ("different", "same"):
        raise ValueError(f'vmap takes randomness="different" or "same", got {randomness!r}')

    @functools.wraps(function)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(f"vmap with in_axes={in_axes!r} of a call with {len(args)} positional arguments")
        examples = _Examples((args, kwargs), (axes, dict.fromkeys(kwargs, 0)), axis_size)
        with transforming(), placeholders(), examples.draws(randomness == "different"):
            own_args, own_kwargs = examples.tree
            result = function(*own_args, **own_kwargs)
            leaves, structure = flatten(result)
            outputs = [_as_tensor("vmap", leaf) for leaf in leaves]
            nodes = batch([t.uop for t in outputs], examples.size, examples.values)
        found = [_with_axis(one, node, axis, examples.size) for one, node, axis in zip(
            outputs, nodes, spread_prefix("out_axes", out_axes, structure), strict=True)]
        return unflatten(structure, found)

    return transformed


class _Examples:
    """Arguments with an axis of examples, and the same tree for one example."""

    def __init__(self, tree: Any, axes: Any, size: int | None) -> None:
        leaves, structure = flatten(tree)
        self.values: dict[UOp, UOp] = {}
        """for each placeholder, all its values, the axis of examples in front"""
        per_leaf = spread_prefix("in_axes", axes, structure)
        mapped_over = [(_as_tensor("vmap", leaf), axis) for leaf, axis in zip(leaves, per_leaf, strict=True)
                       if axis is not None]
        self.size = _number_of_examples(mapped_over, size)
        self.tree = unflatten(structure, [
            leaf if axis is None else self.one_example(_as_tensor("vmap", leaf), axis)
            for leaf, axis in zip(leaves, per_leaf, strict=True)])

    def one_example(self, x: Tensor, axis: int) -> Tensor:
        """A tensor for any one of the examples along an axis."""
        order = (axis % x.ndim, *(i for i in range(x.ndim) if i != axis % x.ndim))
        values = x.uop.permute(order)
        node = placeholder(x.device, values.shape[1:], x.dtype)
        self.values[node] = values
        return Tensor.of(node, x)

    @contextlib.contextmanager
    def draws(self, different: bool) -> Iterator[None]:
        """A block in which random numbers are drawn for each example."""
        if not different:
            yield
            return
        numbers = Tensor.arange(self.size, dtype="uint32", requires_grad=False)
        with random.draws_for_each(self.one_example(numbers, 0), self.size):
            yield


def _number_of_examples(mapped_over: Sequence[tuple[Tensor, int]], size: int | None) -> int:
    for x, axis in mapped_over:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"vmap over axis {axis} of a tensor of shape {x.shape}; in_axes=None leaves an "
                             "argument as it is")
    sizes = [x.shape[axis] for x, axis in mapped_over] + ([] if size is None else [size])
    if not sizes:
        raise ValueError("vmap has nothing to map over: every axis is None, and axis_size is not given")
    if len(set(sizes)) > 1:
        which = ", ".join(f"{x.shape[axis]} (axis {axis} of {x.shape})" for x, axis in mapped_over)
        raise ValueError(f"vmap maps over axes of one size, got {which}"
                         + ("" if size is None else f", with axis_size={size}"))
    return sizes[0]


def _with_axis(one: Tensor, node: UOp, axis: int | None, size: int) -> Tensor:
    """The result for all examples, with their axis where it is wanted."""
    if axis is None:
        if node is not one.uop:
            raise ValueError("vmap: out_axes is None for a result that differs from example to example")
        return one
    result = Tensor.of(spread(node, one.shape, size), one)
    if not -result.ndim <= axis < result.ndim:
        raise ValueError(f"vmap: out_axes={axis} for results of shape {one.shape}")
    at = axis % result.ndim
    return result.permute((*range(1, at + 1), 0, *range(at + 1, result.ndim)))
