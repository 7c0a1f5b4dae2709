"""Running sums, products and extrema: each item becomes the reduction of all up to it.

In: a tensor and an axis. Out: a reduction over windows that end at each item, which cores compute as a
recurrence (`codegen/opt/scan.py`), and in blocks where that is not possible.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinygrad.device import Device
from tinygrad.dtype import DType, DTypeLike, dtypes, least_upper_float, promote, sum_dtype, to_dtype
from tinygrad.functional.elementwise import order_reversed
from tinygrad.functional.indexing import gather
from tinygrad.functional.mathematics import log_node
from tinygrad.functional.movement import axis_of, copied, rows_of_windows
from tinygrad.functional.reduce import positions
from tinygrad.graph.elementary import exponential
from tinygrad.graph.joining import padded_with
from tinygrad.graph.leaf_tensors import with_gradient_of
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.schedule.split import runs_blocks

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

SCAN_BLOCK = 32
"""Items that a running reduction takes in one step. Longer axes are cut into blocks of this many on devices
of blocks of threads, and where it is no recurrence of one operation (with 256, the running sums of 1024 rows
of 1024 took four times as long, of a million items five times)."""

Fold = Callable[[UOp], UOp]
"""Reduces the last axis of a node, which stays with size 1."""


def _scan(x: UOp, fold: Fold, combine: Callable[[UOp, UOp], UOp], identity: float) -> UOp:
    """Item i becomes the fold of items 0 to i of the last axis.

    A short axis: fold over windows that end at each item, `identity` in front. A long one: each block by
    itself, then the fold of all blocks before (this, of the blocks' totals), combined; n log n work in all.
    """
    *lead, size = x.shape
    if isinstance(size, Size):  # as many as there may be: what comes behind the items changes none of them
        room = largest_shape(x.shape)[-1] - size
        padded = x.pad([(0, 0)] * len(lead) + [(0, room)])
        return _scan(padded, fold, combine, identity).shrink([*((0, n) for n in lead), (0, size)])
    if size <= SCAN_BLOCK:
        return _whole_scan(x, fold, identity)
    blocks = ceildiv(size, SCAN_BLOCK)
    tail = [(0, 0)] * len(lead) + [(0, blocks * SCAN_BLOCK - size)]
    filled = UOp.const(True, dtypes.bool, x.shape).pad(tail).where(x.pad(tail), identity)
    within = _scan(filled.reshape((*lead, blocks, SCAN_BLOCK)), fold, combine, identity)
    whole = [(0, n) for n in lead]
    totals = within.shrink((*whole, (0, blocks), (SCAN_BLOCK - 1, SCAN_BLOCK))).reshape((*lead, blocks))
    upto = _scan(totals, fold, combine, identity)
    shift = [(0, 0)] * len(lead) + [(1, 0)]
    before = upto.shrink((*whole, (0, blocks - 1)))
    before = UOp.const(True, dtypes.bool, before.shape).pad(shift).where(before.pad(shift), identity)
    joined = combine(before.reshape((*lead, blocks, 1)).expand(within.shape), within)
    return joined.reshape((*lead, blocks * SCAN_BLOCK)).shrink((*whole, (0, size)))


def _whole_scan(x: UOp, fold: Fold, identity: float) -> UOp:
    """`_scan`, by windows that end at each item, `identity` in front."""
    *lead, size = x.shape
    pads = [(0, 0)] * len(lead) + [(size - 1, 0)]
    padded = x.pad(pads)
    if identity != 0:
        padded = UOp.const(True, dtypes.bool, x.shape).pad(pads).where(padded, identity)
    return fold(rows_of_windows(padded, size, size)).reshape(x.shape)


def _scan_by(op: Ops, x: UOp, identity: float) -> UOp:
    """`_scan` of one operation. Cores take one item after the other (`codegen/opt/scan.py`), and what they
    find is stored: whoever looked back at a window would compute it anew."""
    fold = _fold_with(op)
    size = x.shape[-1]
    device = x.device[0] if isinstance(x.device, tuple) else x.device
    in_blocks = functools.partial(_scan, x, fold, lambda a, b: a.alu(op, b), identity)
    if isinstance(size, Size) or size <= SCAN_BLOCK or runs_blocks(device):
        return in_blocks()
    items = x.detach()
    if identity != 0 and x.viewed.op is not Ops.BUFFER:  # else windows' ends would be stored among the items
        items = items.contiguous()
    # a million roundings one after the other; blocks have 32, then few
    is_rounded = op is Ops.ADD and x.dtype is dtypes.float32
    has_wider = Device[device or Device.DEFAULT].has_dtype(dtypes.float64)
    wide = dtypes.float64 if is_rounded and has_wider else x.dtype
    found = _whole_scan(items.cast(wide), fold, identity).cast(x.dtype).contiguous()
    rule = _GRADIENTS.get(op)
    return with_gradient_of(in_blocks(), found) if rule is None else found.with_gradient((x,), rule)


def _gradient_of_sums(gradient: UOp, node: UOp) -> tuple[UOp]:
    """Its running sums from the last item on."""
    return (_reversed(_scan_by(Ops.ADD, _reversed(gradient), 0)),)


def _gradient_of_products(gradient: UOp, node: UOp) -> tuple[UOp]:
    """The product of the items before, times what follows with the products of the items behind: nothing is
    divided, so that zeros are right, and derivatives of every order."""
    x = node.src[1]
    return (_shifted(node, 1, 1) * _from_the_end(gradient, _shifted(x, -1, 0)),)


def _gradient_of_logarithms(gradient: UOp, node: UOp) -> tuple[UOp]:
    """e^(x - result) times what follows with the shares that a result has in the next: no power is above
    1."""
    def power(a: UOp, b: UOp) -> UOp:
        is_same = a.eq(b) & (a.eq(math.inf) | a.eq(-math.inf))
        return exponential(is_same.where(0, a - b))

    x = node.src[1]
    shares = power(node, _shifted(node, -1, 0)).contiguous()
    return (exponential(x - node) * _from_the_end(gradient, shares),)


_GRADIENTS: dict[Ops, Callable[[UOp, UOp], tuple[UOp]]] = {Ops.ADD: _gradient_of_sums,
                                                           Ops.MUL: _gradient_of_products}


def _from_the_end(x: UOp, factor: UOp) -> UOp:
    """The recurrence s[i] = x[i] + factor[i] * s[i + 1] along the last axis, whose last factor counts for
    nothing: by doubling, item i has its next 1, 2, 4 and so on behind it (Kogge and Stone, "A parallel
    algorithm for the efficient solution of a general class of recurrence equations", 1973)."""
    *lead, size = x.shape
    whole, distance = [(0, n) for n in lead], 1
    while distance < size:
        def near(x: UOp, reach: int = distance) -> UOp:
            return x.shrink((*whole, (0, size - reach)))

        def far(x: UOp, reach: int = distance) -> UOp:
            return x.shrink((*whole, (reach, size)))

        ends = [(0, 0)] * len(lead) + [(0, distance)]
        x = (x + (near(factor) * far(x)).pad(ends)).contiguous()
        distance *= 2
        if distance < size:
            factor = (near(factor) * far(factor)).pad(ends).contiguous()
    return x


def _shifted(x: UOp, by: int, fill: float) -> UOp:
    """The last axis moved up by so many items, or down, `fill` where there are none."""
    size = x.shape[-1]
    whole = [(0, n) for n in x.shape[:-1]]
    kept = x.shrink((*whole, (0, size - by) if by > 0 else (-by, size)))
    return padded_with(kept, [(0, 0)] * len(whole) + [(max(by, 0), max(-by, 0))], fill)


def _reversed(x: UOp) -> UOp:
    return x.stride([1] * (len(x.shape) - 1) + [-1])


def _cumulative(name: str, self: Tensor, axis: int, dtype: DType, scan: Callable[[UOp], UOp]) -> Tensor:
    """What `scan` makes of the last axis, along any."""
    along = axis_of(name, self, axis)
    if prod(self.shape) == 0 or self.ndim == 0:
        return copied(self, self.uop.cast(dtype))
    last = self.uop.cast(dtype).permute([i for i in range(self.ndim) if i != along] + [along])
    scanned = scan(last)
    order = [i if i < along else i - 1 for i in range(self.ndim)]
    order[along] = self.ndim - 1
    return copied(self, scanned.permute(order))


def _fold_with(op: Ops) -> Fold:
    return lambda x: x.reduce(op, (len(x.shape) - 1,))


def _running(name: str, self: Tensor, axis: int, dtype: DTypeLike | None, op: Ops, identity: float) -> Tensor:
    """The reduction of items 0 to i along an axis, in the dtype that a sum has, or in `dtype`."""
    kind = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype)
    wide = promote(kind, dtypes.float32) if kind.is_float else kind
    return _cumulative(name, self, axis, wide, lambda x: _scan_by(op, x, identity)).cast(kind)


def cumsum(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The running sum: item i is the sum of items 0 to i along the axis. The shape is that of the tensor, the
    dtype that of its sum, or `dtype`.

    >>> Tensor([1, 2, 3]).cumsum().tolist()
    [1, 3, 6]
    """
    return _running("cumsum", self, axis, dtype, Ops.ADD, 0)


def cumprod(self: Tensor, axis: int, dtype: DTypeLike | None = None) -> Tensor:
    """The running product: item i is the product of items 0 to i along the axis, in the dtype that a sum has,
    or in `dtype`.

    >>> Tensor([1, 2, 3]).cumprod(0).tolist()
    [1, 2, 6]
    """
    return _running("cumprod", self, axis, dtype, Ops.MUL, 1)


def cummax(self: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
    """(the running maximum, the position of its last occurrence so far).

    >>> values, places = Tensor([1, 3, 2]).cummax()
    >>> values.tolist(), places.tolist()
    ([1, 3, 3], [0, 1, 1])
    """
    along = axis_of("cummax", self, axis)
    if prod(self.shape) == 0 or self.ndim == 0:
        return self, self.zeros_like(dtype=dtypes.default_int)

    def running(x: Tensor) -> Tensor:
        return _cumulative("cummax", x, along, x.dtype, lambda x: _scan_by(Ops.MAX, x, x.dtype.min))

    x = self.detach()
    largest = running(x)
    last = (x.uop.eq(largest.uop) | x.uop.ne(x.uop)).where(positions(x, along), 0)
    places = running(type(self).of(last, self))
    values = with_gradient_of(gather(self, along, places).uop, largest.uop)
    return type(self).of(values, self), places


def cummin(self: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
    """(the running minimum, the position of its last occurrence so far)."""
    values, places = cummax(type(self).of(order_reversed(self.uop), self), axis)
    return type(self).of(order_reversed(values.uop), self), places


def logcumsumexp(self: Tensor, axis: int = 0) -> Tensor:
    """The logarithm of the running sum of e^x, without overflow."""
    kind = least_upper_float(self.dtype)

    def fold(x: UOp) -> UOp:
        last = (len(x.shape) - 1,)
        largest = x.detach().reduce(Ops.MAX, last)
        shift = largest.eq(math.inf).where(0, largest.eq(-math.inf).where(0, largest))
        return log_node(exponential(x - shift.expand(x.shape)).reduce(Ops.ADD, last)) + shift

    def combine(a: UOp, b: UOp) -> UOp:
        pair = [part.reshape((*part.shape, 1)).pad([(0, 0)] * len(part.shape) + [side])
                for part, side in ((a, (0, 1)), (b, (1, 0)))]
        first = UOp.const(True, dtypes.bool, (*a.shape, 1)).pad([(0, 0)] * len(a.shape) + [(0, 1)])
        return fold(first.where(pair[0], pair[1])).reshape(a.shape)

    def scan(x: UOp) -> UOp:
        found = _scan(x, fold, combine, -math.inf)
        if isinstance(x.shape[-1], Size) or x.shape[-1] <= SCAN_BLOCK:
            return found
        return found.with_gradient((x,), _gradient_of_logarithms)

    return _cumulative("logcumsumexp", self, axis, promote(kind, dtypes.float32), scan).cast(kind)
