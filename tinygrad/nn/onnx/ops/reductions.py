"""Along axes: sums, extrema, means, norms, positions of extrema, running sums."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad.nn.onnx.registry import Ints, op, ops, register
from tinygrad.tensor import Tensor


def _largest(x: Tensor, axes: Any, keepdim: bool) -> Tensor:
    return _extremum(x, axes, keepdim, Tensor.max, x.dtype.min)


def _smallest(x: Tensor, axes: Any, keepdim: bool) -> Tensor:
    return _extremum(x, axes, keepdim, Tensor.min, x.dtype.max)


def _extremum(x: Tensor, axes: Any, keepdim: bool, function: Callable[..., Tensor],
              of_nothing: Any) -> Tensor:
    """An extremum; of no items the value that any item would replace."""
    if 0 not in x.shape or not any(x.shape[a] == 0 for a in axes):
        return function(x, axes, keepdim).cast(x.dtype)
    along = {a % x.ndim for a in axes}
    sizes = [1 if i in along else n for i, n in enumerate(x.shape) if keepdim or i not in along]
    return Tensor.full(sizes, of_nothing, dtype=x.dtype, device=x.device)


REDUCTIONS: dict[str, Callable[[Tensor, Any, bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceProd": lambda x, axes, keep: x.prod(axes, keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMax": _largest,
    "ReduceMin": _smallest,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keep),
}


def _register(name: str, reduce: Callable[[Tensor, Any, bool], Tensor]) -> None:
    """A reduction in both of its forms: axes as an attribute, then as an input."""
    def by_attribute(data: Tensor, *, axes: Any = None, keepdims: int = 1) -> Tensor:
        return reduce(data, tuple(range(data.ndim)) if axes is None else tuple(axes), bool(keepdims))

    def by_input(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1,
                 noop_with_empty_axes: int = 0) -> Tensor:
        along = tuple(axes or ())
        if not along and not noop_with_empty_axes:
            along = tuple(range(data.ndim))
        return reduce(data, along, bool(keepdims))

    register(by_attribute, name)
    register(by_input, f"{name}_{13 if name == 'ReduceSum' else 18}")


for _name, _reduce in REDUCTIONS.items():
    _register(_name, _reduce)


def _position(x: Tensor, axis: int, keepdims: int, last: int, function: Callable[..., Tensor]) -> Tensor:
    found = function(x.flip(axis) if last else x, axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - found if last else found


ops(
    ArgMax=lambda data, *, axis=0, keepdims=1, select_last_index=0: _position(
        data, axis, keepdims, select_last_index, Tensor.argmax),
    ArgMin=lambda data, *, axis=0, keepdims=1, select_last_index=0: _position(
        data, axis, keepdims, select_last_index, Tensor.argmin),
)


def _running(x: Tensor, axis: int, exclusive: int, reverse: int, function: Callable[..., Tensor],
             first: int) -> Tensor:
    """A running sum or product; `exclusive` of the items before each one, `reverse` from the end."""
    x = x.flip(axis) if reverse else x
    if exclusive and x.shape[axis]:
        pairs = [(1, -1) if i == axis % x.ndim else (0, 0) for i in range(x.ndim)]
        x = x.pad(pairs, value=first)
    total = function(x, axis)
    return total.flip(axis) if reverse else total


@op
def CumSum(x: Tensor, axis: int, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, exclusive, reverse, Tensor.cumsum, 0)


@op
def CumProd(x: Tensor, axis: int, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, exclusive, reverse, Tensor.cumprod, 1)


@op
def TopK(X: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, ...]:
    return X.topk(k, axis)


@op
def TopK_10(X: Tensor, K: int, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, ...]:
    return X.topk(K, axis, bool(largest), bool(sorted))
