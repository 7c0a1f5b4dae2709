"""Names that programs written for PyTorch use for what other methods do in a line or two.

They mean what they mean there, and are methods of `Tensor` like all others. What this library has under
another name alone is bound to both names in `methods.py`.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes

from tinygrad.dtype import DTypeLike, dtypes, sum_dtype
from tinygrad.functional.casts import as_real
from tinygrad.functional.creation import to_shape
from tinygrad.functional.elementwise import as_tensor
from tinygrad.functional.movement import axis_and_size, axis_of, integers
from tinygrad.functional.sorting import positions_at
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Axes = int | Sequence[int] | None


# --- item by item -------------------------------------------------------------------------------------------


def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    """self + value * tensor1 * tensor2."""
    return self + tensor1 * tensor2 * value


def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    """self + value * tensor1 / tensor2."""
    return self + tensor1 * value / tensor2


def clamp_min(self: Tensor, min: Any) -> Tensor:
    """`clamp(min=min)`."""
    return self.clamp(min)


def clamp_max(self: Tensor, max: Any) -> Tensor:
    """`clamp(max=max)`."""
    return self.clamp(None, max)


def nan_to_num(self: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
               ) -> Tensor:
    """NaN as `nan`, infinities as `posinf` and `neginf`: as the largest finite number, and its negative,
    unless given. Integers as they are.

    >>> Tensor([1.0, float("nan"), float("inf")]).nan_to_num(posinf=9).tolist()
    [1.0, 0.0, 9.0]
    """
    if not self.dtype.is_float:
        return self
    limits: Any = ml_dtypes.finfo  # which has no types
    largest = float(limits(self.dtype.numpy).max)
    found = self.isnan().where(nan, self)
    found = (self == math.inf).where(largest if posinf is None else posinf, found)
    return (self == -math.inf).where(-largest if neginf is None else neginf, found)


def xlogy(self: Tensor, other: Any) -> Tensor:
    """self * log(other), 0 where self is 0 and other is a number."""
    y = as_tensor("xlogy", other, self)
    has_no_log = (self == 0) & ((y <= 0) | (y == math.inf))
    return has_no_log.where(0, self * has_no_log.where(1, y).log())


def deg2rad(self: Tensor) -> Tensor:
    """Degrees as radians."""
    return self * (math.pi / 180)


def rad2deg(self: Tensor) -> Tensor:
    """Radians as degrees."""
    return self * (180 / math.pi)


def frac(self: Tensor) -> Tensor:
    """What `trunc` cuts off, with the sign of self."""
    return self - self.trunc()


def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 of negative numbers, 1 of positive ones, `values` of zeros, NaN of NaN."""
    return (self == 0).where(values, self.isnan().where(self, (self > 0).cast(self.dtype)))


def signbit(self: Tensor) -> Tensor:
    """Whether the sign is negative: of -0.0 too."""
    return self.ones_like().copysign(self) < 0 if self.dtype.is_float else self < 0


def isposinf(self: Tensor) -> Tensor:
    """Where this is infinity."""
    return self.isinf(detect_negative=False)


def isneginf(self: Tensor) -> Tensor:
    """Where this is minus infinity."""
    return self.isinf(detect_positive=False)


def fmax(self: Tensor, other: Tensor) -> Tensor:
    """The larger of two, the other of a NaN."""
    return ((self >= other) | other.isnan()).where(self, other)


def fmin(self: Tensor, other: Tensor) -> Tensor:
    """The smaller of two, the other of a NaN."""
    return ((self <= other) | other.isnan()).where(self, other)


def logical_and(self: Tensor, other: Tensor) -> Tensor:
    """Where neither is 0, as bools."""
    return (self != 0) & (other != 0)


def logical_or(self: Tensor, other: Tensor) -> Tensor:
    """Where one at least is not 0, as bools."""
    return (self != 0) | (other != 0)


def logical_xor(self: Tensor, other: Tensor) -> Tensor:
    """Where exactly one is not 0, as bools."""
    return (self != 0) ^ (other != 0)


def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """0 from -lambd to lambd, beyond as it is."""
    return (self.abs() <= lambd).where(0, self)


def prelu(self: Tensor, weight: Tensor) -> Tensor:
    """Negative numbers times `weight`: one number, or one for each channel, axis 1."""
    if weight.numel() > 1:
        weight = weight.reshape([-1 if axis == 1 else 1 for axis in range(max(self.ndim, 2))][-self.ndim:])
    negative = (self > 0).where(0, self)  # no product of the weight and infinity, whose gradients are NaN
    return (self > 0).where(self, negative * weight)


# --- along axes ---------------------------------------------------------------------------------------------


def amax(self: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """`max` over some axes, or all."""
    return self.max(dim or None if isinstance(dim, (list, tuple)) else dim, keepdim)


def amin(self: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """`min` over some axes, or all."""
    return self.min(dim or None if isinstance(dim, (list, tuple)) else dim, keepdim)


def norm(self: Tensor, p: float | str = 2, dim: Axes = None, keepdim: bool = False,
         dtype: DTypeLike | None = None) -> Tensor:
    """The vector norm over some axes, or all: (sum of abs(x) ** p) ** (1 / p), of which infinity is the
    largest size, -infinity the smallest, and 0 how many are not 0. "fro" is 2. Its gradient where it is 0 is
    0. Half types are computed in float32, integers as the default float, or all as `dtype`.

    >>> Tensor([[3.0, 4.0], [0.0, 0.0]]).norm(dim=1).tolist()
    [5.0, 0.0]
    """
    self = self if dtype is None else self.cast(dtype)
    p = 2 if p == "fro" else p
    if not isinstance(p, (int, float)):
        raise ValueError(f"norm: p is a number or \"fro\", not {p!r}")
    wide = self if self.dtype.is_float and self.dtype.itemsize >= 4 else self.cast(dtypes.float32)
    return _norm(wide, p, dim, keepdim).cast(self.dtype if self.dtype.is_float else dtypes.default_float)


def _norm(x: Tensor, p: float, dim: Axes, keepdim: bool) -> Tensor:
    if p == 0:
        return (x != 0).cast(x.dtype).sum(dim, keepdim)
    if p == 2:
        return _power(x.square().sum(dim, keepdim), 0.5)
    sizes = x.abs()
    if abs(p) == math.inf:
        return sizes.max(dim, keepdim) if p > 0 else sizes.min(dim, keepdim)
    return sizes.sum(dim, keepdim) if p == 1 else _power(_power(sizes, p).sum(dim, keepdim), 1 / p)


def _power(x: Tensor, exponent: float) -> Tensor:
    """A power of numbers that are not negative, with gradient 0 at 0."""
    is_zero = x == 0
    positive = is_zero.where(1, x)
    return is_zero.where(0 if exponent > 0 else math.inf, positive.pow(exponent))


def dist(self: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of the difference."""
    return norm(as_real(self, other) - other, p)


def count_nonzero(self: Tensor, dim: Axes = None) -> Tensor:
    """How many are not 0."""
    return (self != 0).sum(dim)


def nansum(self: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of what is not NaN."""
    return self.isnan().where(0, self).sum(dim, keepdim, dtype)


def nanmean(self: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """The mean of what is not NaN."""
    return nansum(self, dim, keepdim) / (~self.isnan()).sum(dim, keepdim)


def median(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all, or along an axis as (medians, their positions): of an even number of items the lower
    of two, NaN where there is one.

    >>> Tensor([3.0, 1.0, 4.0, 1.0]).median().item()
    1.0
    """
    if dim is None:
        whole = self.flatten()
        return median(whole, 0)[0] if whole.numel() or not self.dtype.is_float else whole.sum() * math.nan
    axis = axis_of("median", self, dim)
    if not self.ndim or not self.shape[axis]:
        raise ValueError(f"median: axis {dim} of shape {self.shape} has no items")
    nans, size = self.detach().isnan().sum(axis, keepdim=True), self.shape[axis]
    places = positions_at(self, axis, (nans > 0).where(size - nans, (size - 1) // 2))  # NaN comes last
    found = self.gather(axis, places), places
    return found if keepdim else tuple(x.squeeze(axis) for x in found)


def diff(self: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
         append: Tensor | None = None) -> Tensor:
    """Each item less the one before along an axis, n times: of `prepend`, what this is, and `append`, which
    differ in the size of that axis alone."""
    parts = [part for part in (prepend, self, append) if part is not None]
    found = parts[0].cat(*parts[1:], dim=dim) if len(parts) > 1 else self
    for _ in range(n):
        axis, size = axis_and_size("diff", found, dim)
        earlier, later = (narrow(found, axis, first, max(size - 1, 0)) for first in (0, min(1, size)))
        found = later != earlier if found.dtype.is_bool else later - earlier
    return found


def trace(self: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if self.ndim != 2:
        raise ValueError(f"trace takes a matrix, got shape {self.shape}")
    return self.diagonal().sum()


# --- products -----------------------------------------------------------------------------------------------


def _product(name: str, ndim: tuple[int, int], a: Tensor, b: Tensor) -> Tensor:
    if (a.ndim, b.ndim) != ndim:
        raise ValueError(f"{name} takes tensors of {ndim[0]} and {ndim[1]} axes, got shapes {a.shape} and "
                         f"{b.shape}")
    return a @ b


def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    return _product("mm", (2, 2), self, mat2)


def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices, (b, m, k) and (b, k, n)."""
    return _product("bmm", (3, 3), self, mat2)


def mv(self: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    return _product("mv", (2, 1), self, vec)


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * self + alpha * mat1 @ mat2; with beta 0, whatever self has."""
    return _added(self, mm(mat1, mat2), beta, alpha)


def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """As `addmm`, of each of a batch."""
    return _added(self, bmm(batch1, batch2), beta, alpha)


def _added(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    found = _scaled(product, alpha)
    return _scaled(x, beta) + found if beta else found


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def outer(self: Tensor, vec2: Tensor) -> Tensor:
    """Every item of a vector times every item of another one: (n,) and (m,) give (n, m)."""
    if self.ndim != 1 or vec2.ndim != 1:
        raise ValueError(f"outer takes two vectors, got shapes {self.shape} and {vec2.shape}")
    return self.unsqueeze(1) * vec2


def inner(self: Tensor, other: Tensor) -> Tensor:
    """Sums of products along the last axes: (..., n) and (___, n) give (..., ___)."""
    if not self.ndim or not other.ndim:
        return self * other
    products = self.flatten(0, -2) if self.ndim > 2 else self
    found = products @ (other.flatten(0, -2) if other.ndim > 2 else other).transpose(-1, -2) \
        if other.ndim > 1 else products @ other
    return found.reshape(self.shape[:-1] + other.shape[:-1])


def kron(self: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every item of self as a block, itself times `other`."""
    ndim = max(self.ndim, other.ndim)
    a, b = ((1,) * (ndim - x.ndim) + x.shape for x in (self, other))
    first = self.reshape([size for n in a for size in (n, 1)])
    second = other.reshape([size for n in b for size in (1, n)])
    return (first * second).reshape([n * m for n, m in zip(a, b, strict=True)])


def cross(self: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along an axis of 3 items: the first of that size unless given."""
    shape = broadcast_shape("cross", self.shape, other.shape)
    a, b = self.expand(*shape), other.expand(*shape)
    axis = axis_of("cross", a, dim) if dim is not None else shape.index(3) if 3 in shape else None
    if axis is None or shape[axis] != 3:
        raise ValueError(f"cross takes vectors of 3 items along an axis, got shapes {self.shape} and "
                         f"{other.shape}")
    return a.roll(-1, axis) * b.roll(-2, axis) - a.roll(-2, axis) * b.roll(-1, axis)


# --- positions ----------------------------------------------------------------------------------------------


def select(self: Tensor, dim: int, index: int) -> Tensor:
    """The items at one position of an axis, without that axis: a view."""
    return self[(slice(None),) * axis_of("select", self, dim) + (index,)]


def narrow(self: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` items of an axis from `start` on: a view. Raises ValueError where there are fewer."""
    axis, size = axis_and_size("narrow", self, dim)
    first = start + size if start < 0 else start
    if not (first >= 0 and length >= 0 and first + length <= size):
        raise ValueError(f"narrow: {length} items from {start} on of an axis of {size}")
    return self[(slice(None),) * axis + (slice(first, first + length),)]


def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """What `select` gives at each position of an axis."""
    return tuple(select(self, dim, i) for i in range(axis_and_size("unbind", self, dim)[1]))


def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """The items at positions `index`, (n,), of an axis."""
    return self[(slice(None),) * axis_of("index_select", self, dim) + (index,)]


def positions_along(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None = None
                    ) -> tuple[int, Tensor]:
    """The axis, and positions of it, (n,), for every item of the others; those of a source, if there is."""
    axis = axis_of(name, x, dim)
    if index.ndim > 1:
        raise ValueError(f"{name}: positions are one row, got shape {index.shape}")
    row = index.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    shape = tuple(row.shape[axis] if i == axis else n for i, n in enumerate(x.shape))
    if source is not None and source.shape != shape:
        raise ValueError(f"{name}: {row.shape[axis]} positions of axis {dim} of shape {x.shape} take a "
                         f"source of shape {shape}, got {source.shape}")
    return axis, row.expand(shape)


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """alpha * source added at positions `index`, (n,), of an axis: to what comes several times, each."""
    axis, places = positions_along("index_add", self, dim, index, source)
    return self.scatter_reduce(axis, places, _scaled(source, alpha), "sum")


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`source` in place of the items at positions `index`, (n,), of an axis."""
    axis, places = positions_along("index_copy", self, dim, index, source)
    return self.scatter(axis, places, source)


def index_fill(self: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    """A number (or a tensor of shape ()) in place of the items at positions `index`, (n,), of an axis."""
    axis, places = positions_along("index_fill", self, dim, index)
    if isinstance(value, type(self)):
        if value.ndim:
            raise ValueError(f"index_fill takes one number, got a tensor of shape {value.shape}")
        value = value.expand(places.shape)
    return self.scatter(axis, places, value)


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`scatter_reduce` by sums."""
    return self.scatter_reduce(dim, index, src, "sum")


def take(self: Tensor, index: Tensor) -> Tensor:
    """The items at positions `index`, of any shape, of this tensor as one row."""
    return self.flatten()[index]


def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather`, of shapes that are broadcast but for the axis; of one row where no axis is given."""
    if dim is None:
        return self.flatten().gather(0, indices.flatten())
    axis = axis_of("take_along_dim", self, dim)
    shapes = (tuple(1 if i == axis else n for i, n in enumerate(x.shape)) for x in (self, indices))
    shape = broadcast_shape("take_along_dim", *shapes)
    x, places = (t.expand([t.shape[axis] if i == axis else n for i, n in enumerate(shape)])
                 for t in (self, indices))
    return x.gather(axis, places)


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on comes, or the sum of its weights. Computes the largest number, to know
    how many there are.

    >>> Tensor([0, 2, 2]).bincount().tolist()
    [1, 0, 2]
    """
    if self.ndim != 1 or not self.dtype.is_int:
        raise ValueError(f"bincount takes integers in one row, got {self.dtype} of shape {self.shape}")
    number = self if self.dtype.is_unsigned else self.bitcast(f"u{self.dtype.name}")
    most = int(number.max().item()) if self.numel() else -1
    if most > self.dtype.max:  # as unsigned ones, negative numbers are the largest
        raise ValueError("bincount: numbers are from 0 on")
    count = max(minlength, most + 1)
    each = self.ones_like(dtype=dtypes.int32) if weights is None else weights.cast(sum_dtype(weights.dtype))
    counts = type(self).zeros(count, dtype=each.dtype, device=self.device)
    return counts.scatter_reduce(0, number, each, "sum")


# --- movement -----------------------------------------------------------------------------------------------


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """`expand` to another tensor's shape."""
    return self.expand(other.shape)


def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """`reshape` to another tensor's shape."""
    return self.reshape(other.shape)


def tile(self: Tensor, *dims: Any) -> Tensor:
    """So many copies of this tensor along each axis, the last ones where fewer are given."""
    counts = integers("tile", dims[0], dims[1:]) if dims else ()
    return self.repeat(*(1,) * (self.ndim - len(counts)), *counts) if max(self.ndim, len(counts)) else self


def movedim(self: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes `source` at places `destination`, the others in their order.

    >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape
    (3, 4, 2)
    """
    pairs = [[axis_of("movedim", self, axis) for axis in ([axes] if isinstance(axes, int) else axes)]
             for axes in (source, destination)]
    if len(pairs[0]) != len(pairs[1]) or any(len(set(axes)) < len(axes) for axes in pairs):
        raise ValueError(f"movedim: axes {source} at {destination}: as many of both, none twice")
    order = [axis for axis in range(self.ndim) if axis not in pairs[0]]
    for place, axis in sorted(zip(pairs[1], pairs[0], strict=True)):
        order.insert(place, axis)
    return self.permute(order)


def t(self: Tensor) -> Tensor:
    """A matrix transposed; a vector or a number as it is."""
    if self.ndim > 2:
        raise ValueError(f"t takes a matrix, got shape {self.shape}: transpose takes two axes")
    return self.transpose(0, 1) if self.ndim == 2 else self


def mT(self: Tensor) -> Tensor:
    """The last two axes swapped."""
    return self.transpose(-1, -2)


def fliplr(self: Tensor) -> Tensor:
    """Axis 1 backwards."""
    return self.flip(axis_of("fliplr", self, 1))


def flipud(self: Tensor) -> Tensor:
    """Axis 0 backwards."""
    return self.flip(axis_of("flipud", self, 0))


def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned k times by 90 degrees in the plane of two axes, from the first towards the second."""
    first, second = (axis_of("rot90", self, axis) for axis in dims)
    if first == second:
        raise ValueError(f"rot90 takes two axes, got {tuple(dims)}")
    turned = self.flip(first, second) if k % 4 == 2 else self
    return turned.transpose(first, second).flip(first if k % 4 == 1 else second) if k % 2 else turned


def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last axis as their diagonal `offset`, at axes `dim1` and `dim2`, and zeros."""
    before, after = max(-offset, 0), max(offset, 0)
    if not self.ndim:
        raise ValueError("diag_embed takes tensors with an axis, got shape ()")
    size = self.shape[-1]
    numbers = type(self).arange(size, device=self.device, requires_grad=False)
    items = (numbers.unsqueeze(-1) == numbers).where(self.unsqueeze(-1), False)  # 0 of any dtype
    padded = items.pad(((0, 0),) * (self.ndim - 1) + ((before, after), (after, before)))
    return movedim(padded, (-2, -1), (dim1, dim2))


# --- new tensors --------------------------------------------------------------------------------------------


def new_full(self: Tensor, size: Any, fill_value: Any, dtype: DTypeLike | None = None,
             device: Any = None, requires_grad: bool | None = None) -> Tensor:
    """A number in a shape, in the dtype and on the device of self unless given."""
    return type(self).full(to_shape("new_full", (size,)), fill_value, dtype or self.dtype,
                           device or self.device, requires_grad)


def new_zeros(self: Tensor, *size: Any, dtype: DTypeLike | None = None, device: Any = None,
              requires_grad: bool | None = None) -> Tensor:
    """Zeros, as `new_full`."""
    return new_full(self, to_shape("new_zeros", size), 0, dtype, device, requires_grad)


def new_ones(self: Tensor, *size: Any, dtype: DTypeLike | None = None, device: Any = None,
             requires_grad: bool | None = None) -> Tensor:
    """Ones, as `new_full`."""
    return new_full(self, to_shape("new_ones", size), 1, dtype, device, requires_grad)


def new_tensor(self: Tensor, data: Any, dtype: DTypeLike | None = None, device: Any = None) -> Tensor:
    """`Tensor(data)` in the dtype and on the device of self unless given."""
    return type(self)(data, device or self.device, dtype or self.dtype)


def bernoulli(self: Tensor, p: float | None = None) -> Tensor:
    """Ones with the probabilities that self says, or with `p`, zeros else, in its dtype."""
    return (self.rand_like(dtype=dtypes.float32) < (self if p is None else p)).cast(self.dtype).detach()


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """`cast` to another tensor's dtype."""
    return self.cast(other.dtype)


def byte(self: Tensor) -> Tensor:
    """`cast` to uint8."""
    return self.cast(dtypes.uint8)


def char(self: Tensor) -> Tensor:
    """`cast` to int8."""
    return self.cast(dtypes.int8)


def cpu(self: Tensor) -> Tensor:
    """`to("CPU")`."""
    return self.to("CPU")


def equal(self: Tensor, other: Tensor) -> bool:
    """Whether both have one shape and equal items. Computes them."""
    return self.shape == other.shape and (not prod(self.shape) or bool((self == other).all().item()))
