"""Along axes: sums, extrema, moments, softmax, sorting.

Everything is made of the three reductions (sum, maximum, product). A minimum is the maximum in the opposite
order, an argmax the maximum of positions, a sort the count of smaller items. Axes are counted from the front,
or from the back where negative; None takes all. One that the tensor has not is an IndexError. `keepdim`
leaves the axes there, with size 1.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.dtype import DType, DTypeLike, dtypes, least_upper_float, promote, sum_dtype, to_dtype
from tinygrad.frozen import frozen
from tinygrad.functional.creation import counting
from tinygrad.functional.elementwise import order_reversed
from tinygrad.functional.graph_templates import memoised
from tinygrad.functional.mathematics import log_node
from tinygrad.functional.movement import axes_of, axis_of, copied
from tinygrad.graph.elementary import exponential
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Axis = int | Sequence[int] | None


def _without_axes(x: UOp, axes: Sequence[int], keepdim: bool) -> UOp:
    """A reduced node with its axes of size 1 dropped, unless they stay."""
    return x if keepdim else x.reshape([n for i, n in enumerate(x.shape) if i not in axes])


def _reduce(name: str, self: Tensor, op: Ops, axis: Axis, keepdim: bool, node: UOp) -> Tensor:
    axes = axes_of(name, self, axis)
    return copied(self, _without_axes(node.reduce(op, axes), axes, keepdim))


def _need_items(name: str, self: Tensor, axis: Axis) -> None:
    if any(self.shape[a] == 0 for a in axes_of(name, self, axis)):
        raise ValueError(f"{name} over an axis without items, of shape {self.shape} along {axis}")


# --- sums and extrema ---------------------------------------------------------------------------------------


def sum_(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """The sum. Half types accumulate in float32; small integers and bools widen to 32 bits.

    >>> Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
    [4, 6]
    """
    kind = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
    return _reduce("sum", self, Ops.ADD, axis, keepdim, self.uop.cast(kind))


def prod_(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """The product, in the dtype that a sum has.

    >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
    [2, 12]
    """
    kind = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
    return _reduce("prod", self, Ops.MUL, axis, keepdim, self.uop.cast(kind))


def max_(self: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The largest item; NaN where there is one. Equal largest items share the gradient.

    >>> Tensor([[1, 5], [3, 4]]).max(axis=1).tolist()
    [5, 4]
    """
    _need_items("max", self, axis)
    return _reduce("max", self, Ops.MAX, axis, keepdim, self.uop)


def min_(self: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The smallest item; NaN where there is one. Equal smallest items share the gradient."""
    _need_items("min", self, axis)
    axes = axes_of("min", self, axis)
    smallest = order_reversed(order_reversed(self.uop).reduce(Ops.MAX, axes))
    return copied(self, _without_axes(smallest, axes, keepdim))


def any_(self: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """Whether any item is not zero.

    >>> Tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
    [True, False]
    """
    return _reduce("any", self, Ops.MAX, axis, keepdim, self.uop.cast(dtypes.bool))


def all_(self: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """Whether no item is zero."""
    return self.logical_not().any(axis, keepdim).logical_not()


def mean(self: Tensor, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """The mean, a float also of integers; of the items as `dtype`, if it is given.

    >>> Tensor([1, 2]).mean().item()
    1.5
    """
    if dtype is not None:
        self = self.cast(dtype)
    kind = least_upper_float(self.dtype)
    wide = self.cast(promote(kind, dtypes.float32))
    count = prod(self.shape[a] for a in axes_of("mean", self, axis))
    total = wide.sum(axis, keepdim)
    return (total / count if isinstance(count, Size) else total.div(count)).cast(kind)


def var_mean(self: Tensor, axis: Axis = None, keepdim: bool = False,
             correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """(variance, mean). The variance is the sum of squared distances from the mean over (items -
    correction), which is 1 also for None."""
    dtype = least_upper_float(self.dtype)
    variance, center = _var_mean(self, axis, keepdim, correction)
    return variance.cast(dtype), center.cast(dtype)


def _var_mean(self: Tensor, axis: Axis, keepdim: bool, correction: float | None) -> tuple[Tensor, Tensor]:
    """The same in the dtype that it is computed in, at least float32."""
    dtype = least_upper_float(self.dtype)
    wide = self.cast(promote(dtype, dtypes.float32))
    axes = axes_of("var", self, axis)
    correction = 1 if correction is None else correction
    count = prod(self.shape[a] for a in axes)
    center = wide.mean(axes, keepdim=True)
    distance = wide - center
    # over nothing: 0/0 is NaN, anything else over 0 infinite
    if isinstance(count, Size):
        divisor = (type(self)(count) - correction).maximum(0)
    else:
        divisor = max(count - correction, 0)
    variance = (distance * distance).sum(axes, keepdim) / divisor
    return variance, type(self).of(_without_axes(center.uop, axes, keepdim), self)


def var(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The variance: the sum of squared distances from the mean over (items - correction); a float, also of
    integers.

    >>> Tensor([1.0, 3.0]).var().item(), Tensor([1.0, 3.0]).var(correction=0).item()
    (2.0, 1.0)
    """
    return var_mean(self, axis, keepdim, correction)[0]


def std(self: Tensor, axis: Axis = None, keepdim: bool = False, correction: float | None = 1) -> Tensor:
    """The standard deviation, the square root of the variance over (items - correction).

    Half types are rounded once, after the root, so that no variance overflows. Where all items are equal the
    gradient is 0, as PyTorch has it.
    """
    return std_mean(self, axis, keepdim, correction)[0]


def std_mean(self: Tensor, axis: Axis = None, keepdim: bool = False,
             correction: float | None = 1) -> tuple[Tensor, Tensor]:
    """(standard deviation, mean)."""
    dtype = least_upper_float(self.dtype)
    variance, center = _var_mean(self, axis, keepdim, correction)
    flat = variance == 0  # the root's gradient is infinite there; that of the deviation is taken as 0
    return flat.where(0, flat.where(1, variance).sqrt()).cast(dtype), center.cast(dtype)


def argmax(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The position of the largest item, the first of equal ones; a NaN counts as largest.

    >>> Tensor([1, 3, 3]).argmax().item()
    1
    """
    _need_items("argmax", self, axis)
    if axis is None:
        result = argmax(self.flatten(), 0)
        return result.reshape((1,) * self.ndim) if keepdim else result
    along = axis_of("argmax", self, axis)
    if self.ndim == 0:
        return self.zeros_like(dtype=dtypes.default_int)
    x = self.uop.detach()
    largest = x.reduce(Ops.MAX, (along,)).expand(x.shape)
    size = x.shape[along]
    from_end = positions(self, along, reverse=True)
    found = (x.eq(largest) | x.ne(x)).where(from_end, 0).reduce(Ops.MAX, (along,))
    return type(self).of(_without_axes(found * -1 + size, (along,), keepdim), self)


def argmin(self: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The position of the smallest item, the first of equal ones; a NaN counts as smallest."""
    return argmax(type(self).of(order_reversed(self.uop), self), axis, keepdim)


def positions(self: Tensor, axis: int, reverse: bool = False) -> UOp:
    """0, 1, 2, ... along `axis`, in the shape of the tensor; with `reverse`, size, ..., 2, 1."""
    size = self.shape[axis]
    numbers = counting(size, dtypes.default_int)
    numbers = numbers * -1 + size if reverse else numbers
    return numbers.reshape([size if i == axis else 1 for i in range(self.ndim)]).expand(self.shape)


# --- softmax ------------------------------------------------------------------------------------------------


def _shifted(self: Tensor, axis: Axis, dtype: DTypeLike | None) -> tuple[UOp, UOp, tuple[int, ...], DType]:
    """x and x - max(x) in at least float32, the axes, and the dtype of the result. The shift is a constant to
    gradients."""
    kind = least_upper_float(self.dtype) if dtype is None else to_dtype(dtype)
    axes = axes_of("softmax", self, axis)
    x = self.uop.cast(promote(kind, dtypes.float32))
    return x, x - x.detach().reduce(Ops.MAX, axes).expand(x.shape), axes, kind


@frozen
class SoftmaxRule:
    """The gradient of P = softmax(x) along `axes`: P (g - sum(g P)), made of P alone, so that nothing else
    of the forward pass is kept or computed again for it."""

    axes: tuple[int, ...]

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp | None, ...]:
        mean = (gradient * node).reduce(Ops.ADD, self.axes)
        return (node * (gradient - mean.expand(node.shape)),)


def softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """e^x over the sum of e^x along `axis`.

    >>> Tensor([0.0, 0.0, -1000.0]).softmax().tolist()
    [0.5, 0.5, 0.0]
    """
    x, shifted, axes, kind = _shifted(self, axis, dtype)
    weights = exponential(shifted)
    shares = weights * (1 / weights.reduce(Ops.ADD, axes)).expand(weights.shape)
    return type(self).of(shares.with_gradient((x,), SoftmaxRule(axes)).cast(kind), self)


@memoised
def masked_softmax(self: Tensor, dtype: DTypeLike) -> Tensor:
    """`softmax` along the last axis, where a row of minus infinities alone gives zeros instead of NaN."""
    kind, axes = to_dtype(dtype), (self.ndim - 1,)
    x = self.uop.cast(promote(kind, dtypes.float32))
    largest = x.detach().reduce(Ops.MAX, axes)
    weights = exponential(x - largest.eq(-math.inf).where(0, largest).expand(x.shape))
    total = weights.reduce(Ops.ADD, axes)
    shares = weights * (1 / total.eq(0).where(1, total)).expand(weights.shape)
    return type(self).of(shares.with_gradient((x,), SoftmaxRule(axes)).cast(kind), self)


def log_softmax(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """The logarithm of softmax, without overflow."""
    _, shifted, axes, kind = _shifted(self, axis, dtype)
    total = log_node(exponential(shifted).reduce(Ops.ADD, axes))
    return type(self).of((shifted - total.expand(shifted.shape)).cast(kind), self)


def softmin(self: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """softmax(-x)."""
    return softmax(-self, axis, dtype)


def logsumexp(self: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """log(sum(e^x)), without overflow.

    >>> Tensor([1000.0, -1000.0]).logsumexp().item()
    1000.0
    """
    kind = least_upper_float(self.dtype)
    axes = axes_of("logsumexp", self, axis)
    x = self.uop.cast(promote(kind, dtypes.float32))
    largest = x.detach().reduce(Ops.MAX, axes)
    # an infinite maximum is not subtracted: infinity minus itself is NaN
    shift = largest.eq(math.inf).where(0, largest.eq(-math.inf).where(0, largest))
    total = log_node(exponential(x - shift.expand(x.shape)).reduce(Ops.ADD, axes)) + shift
    return type(self).of(_without_axes(total, axes, keepdim).cast(kind), self)
