"""The operators that make shapes, over NumPy arrays: what models do to sizes is folded while it is traced.

A function here is called as the operator in every version of its signature. It raises `Unknown` where the
result is too large to be a shape, and the tensor's function is called instead. Where that does the same to
arrays, it is what `on_arrays` gives.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.nn.onnx.registry import Operator, to_form
from tinygrad.nn.onnx.values import Array, Sizes, Value

MOST_ITEMS = 1 << 12
"""Items of a result up to which it is made by the host: more are data, for a kernel."""


class Unknown(Exception):
    """The host does not make this value."""


def _small(array: Any) -> Any:
    if np.size(array) > MOST_ITEMS:
        raise Unknown
    return array


def _check_size(shape: Any) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in np.asarray(shape).reshape(-1))
    if np.prod(sizes, dtype=np.float64) > MOST_ITEMS:
        raise Unknown
    return sizes


def known_sizes(function: Callable[..., Any], inputs: Sequence[Value],
                attributes: dict[str, Any]) -> list[Value]:
    """What a function here gives for inputs among which are `Sizes`. Raises Unknown where it asks for their
    numbers."""
    kind = next(x.dtype for x in inputs if isinstance(x, Sizes))
    arrays = [x.items if isinstance(x, Sizes) else x for x in inputs]
    try:
        found = function(*arrays, **attributes)
    except TypeError as error:
        raise Unknown from error
    results = found if isinstance(found, (tuple, list)) else (found,)
    return [x if isinstance(x, Sizes) else np.asarray(x) if np.asarray(x).dtype.kind == "b" else
            Sizes.of(x, kind) for x in results]


def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    _check_size(max(0, -((limit.item() - start.item()) // -delta.item())))
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def split(data: Array, split: Any = None, *, axis: int = 0, num_outputs: int | None = None) -> list[Array]:
    sizes = [] if split is None else [int(n) for n in np.asarray(split).reshape(-1)]
    if split is None or sum(sizes) != data.shape[axis] or min(sizes, default=0) < 0:
        raise Unknown  # which of tensors says what is wrong
    return np.split(data, np.cumsum(sizes)[:-1], axis)


def reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(data: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        along = None if axes is None else tuple(int(a) for a in np.asarray(axes).reshape(-1)) or None
        if along is None and noop_with_empty_axes:
            return data
        return np.asarray(function(_small(data), axis=along, keepdims=bool(keepdims)))
    return reduced


def equal(a: Array, b: Array) -> Array:
    """Sizes are compared by their numbers, not as expressions."""
    if "O" in (a.dtype.kind, b.dtype.kind):
        return ~np.asarray(a - b, object).astype(bool)
    return np.asarray(a == b)


def divide(a: Array, b: Array) -> Array:
    if "O" in (a.dtype.kind, b.dtype.kind):  # which are not negative
        return np.asarray(a // b)
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not np.all(b):
        raise Unknown
    return np.asarray((np.abs(a) // np.abs(b)) * (np.sign(a) * np.sign(b))).astype(a.dtype)


def modulo(a: Array, b: Array, *, fmod: int = 0) -> Array:
    if a.dtype.kind != "f" and not np.all(b):
        raise Unknown
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


def cast(data: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    from onnx import helper

    kind = helper.tensor_dtype_to_np_dtype(to)
    if data.dtype.kind == "O" and kind.kind == "i":
        return Sizes(data, kind)
    if kind.kind not in "biuf" or data.dtype.kind not in "biuf":
        raise Unknown
    return data.astype(kind)


def constant_of_shape(input: Array, *, value: Array | None = None) -> Array:
    fill = np.zeros(1, np.float32) if value is None else value
    if fill.dtype.kind not in "biuf":
        raise Unknown
    return np.full(_check_size(input), fill.reshape(-1)[0], fill.dtype)


def expand(input: Array, shape: Any) -> Array:
    sizes = np.broadcast_shapes(input.shape, tuple(int(n) for n in shape))
    _check_size(sizes)
    return np.broadcast_to(input, sizes)


def tile(input: Array, repeats: Array) -> Array:
    _check_size([input.size, *repeats])
    return np.tile(input, tuple(int(n) for n in repeats))


HOST: dict[str, Callable[..., Any]] = {
    "Abs": lambda X: np.abs(X),
    "Cast": cast,
    "Ceil": lambda X: np.ceil(X),
    "ConstantOfShape": constant_of_shape,
    "Div": lambda A, B, **_: _small(divide(A, B)),
    "Equal": lambda A, B: _small(equal(A, B)),
    "Expand": expand,
    "Floor": lambda X: np.floor(X),
    "Max": lambda *data_0: _small(np.maximum.reduce(np.broadcast_arrays(*data_0))),
    "Min": lambda *data_0: _small(np.minimum.reduce(np.broadcast_arrays(*data_0))),
    "Mod": modulo,
    "NonZero": lambda X: np.stack(_small(X).nonzero()),
    "Not": lambda X: ~X,
    "Range": range_,
    "ReduceMax": reduce(np.max),
    "ReduceMin": reduce(np.min),
    "ReduceProd": reduce(np.prod),
    "ReduceSum": reduce(np.sum),
    "Split": split,
    "Sqrt": lambda X: np.sqrt(X),
    "Tile": tile,
    "Transpose": lambda data, *, perm=None: np.transpose(data, perm),
    "Where": lambda condition, X, Y: _small(np.where(condition, X, Y)),
}
"""By the name of the operator. What they do is said by NumPy; the ones above say what differs from it."""

SAME = frozenset({
    "Add", "And", "Concat", "Constant", "Flatten", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Mul", "Neg", "Or", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"})
"""Those whose functions do to arrays what they do to tensors."""

MOVES = frozenset({"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split",
                   "Squeeze", "Tile", "Transpose", "Unsqueeze"})
"""Those that move items as they are: strings, too."""


def on_arrays(operator: Operator) -> Callable[..., Any] | None:
    """What an operator does to arrays; None where it is done to tensors only."""
    if operator.domain or operator.name not in SAME:
        return None if operator.domain else HOST.get(operator.name)
    function = inspect.unwrap(operator.function)

    def applied(*inputs: Value, **attributes: Any) -> Any:
        arguments = [to_form(x, operator.form(i), lambda array: array, np.asarray)
                     for i, x in enumerate(inputs)]
        return _small(function(*arguments, **attributes))
    return applied
