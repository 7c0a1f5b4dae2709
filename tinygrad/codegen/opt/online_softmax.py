"""Online softmax: sums of e^(x - max x), in the loop that finds the largest x.

Softmax finds the largest item of a row before it adds up the exponentials; attention adds up values weighted
by them after that. Each is a loop over the same row, which must be kept, or computed again. But a sum of
what changes in proportion to e^(-m) can be taken from one m to another by a factor (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018): so one loop does all of it, tile by tile. It has the
largest item so far, and sums for that one, which are rescaled when a tile has a larger one.

    m = max of x[j]                      for each tile:
    s = sum of e^(x[j] - m) w[j]             m' = max(m, the tile's x);  f = e^(m - m')
                                             s = s f + sum of the tile's e^(x[j] - m') w[j];  m = m'

In: a nest with such reduces over loops of one length. Out: the nest with one loop over tiles, whose items run
at once (UNROLL): their x are there for all sums. What multiplies a weight and does not change along the row,
as the reciprocal of the sum of all weights, multiplies the sum instead. Results are those of the plain loops
but for rounding: rows of nothing but -inf, infinities and NaN come out as they did.
"""
from __future__ import annotations

import math

from tinygrad.codegen.opt.cached_rows import row_form
from tinygrad.codegen.predicate import identity_unless, masked_term
from tinygrad.codegen.ranges import NewRanges, is_plain, output_ranges
from tinygrad.frozen import frozen
from tinygrad.graph.elementary import argument_of_exponential
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv


@frozen
class WeightedSum:
    """sum over `loop` of `value`, which has one factor e^(x - shift), times `factor`."""

    reduce: UOp
    loop: UOp
    value: UOp
    factor: UOp | None
    """what does not change along the row, made of other sums"""
    weight: UOp
    """e^(x - shift)"""
    x: UOp
    shift: UOp
    """the largest x, or 0 where that is infinite"""
    is_masked: bool
    """whether a condition leaves weights out"""


@frozen
class SoftmaxSums:
    """The REDUCE that finds the largest item of a row, and the sums weighted by it, those that others are
    multiplied with first."""

    largest: UOp
    sums: tuple[WeightedSum, ...]

    @property
    def loop(self) -> UOp:
        return self.largest.closed_ranges[0]

    @property
    def reduces(self) -> set[UOp]:
        return {self.largest, *(s.reduce for s in self.sums)}


def online_softmax_of(nest: UOp) -> SoftmaxSums | None:
    """The reduces of a nest that one loop can do; None where there are none, or where the nest has others
    that use them."""
    outputs = output_ranges(nest)
    reduces = [n for n in nest.nodes_of(Ops.REDUCE) if n.ranges <= outputs]
    for largest in reduces:
        found = _sums_over(largest, reduces)
        if found is not None:
            return found
    return None


def _sums_over(largest: UOp, reduces: list[UOp]) -> SoftmaxSums | None:
    if largest.arg is not Ops.MAX or not largest.dtype.is_float or not _is_plain(largest):
        return None
    users = [n for n in reduces if n is not largest and largest in n.toposort()]
    if not users or any(n.arg is not Ops.ADD or not _is_plain(n) for n in users):
        return None
    if any(n.closed_ranges[0].extent != largest.closed_ranges[0].extent for n in users):
        return None
    made_of = frozenset((largest, *users))
    sums = []
    for node in users:
        found = _weighted(node.src[0], node, made_of)
        if found is None or not _is_shift(found, largest):
            return None
        if row_form(found.x, found.loop) is not row_form(largest.src[0], largest.closed_ranges[0]):
            return None
        if found.factor is not None and found.loop in found.factor.ranges:
            return None
        sums.append(found)
    return SoftmaxSums(largest, tuple(sums))


def _is_plain(node: UOp) -> bool:
    """True for a REDUCE of one value over one loop of a fixed number of iterations."""
    return len(node.src) == 2 and is_plain(node.src[1])


def _is_shift(found: WeightedSum, largest: UOp) -> bool:
    """True for the largest item, and for it with 0 in place of -inf; in a sum of weights alone, in place of
    infinity too."""
    shift = _finite_below(largest)
    forms = [largest, shift]
    if found.value is found.weight:
        forms += [_finite_above(largest), _finite_above(largest, shift)]
    return found.shift in forms


def _finite_below(largest: UOp) -> UOp:
    return largest.ne(-math.inf).where(largest, 0)


def _finite_above(largest: UOp, otherwise: UOp | None = None) -> UOp:
    return largest.ne(math.inf).where(largest if otherwise is None else otherwise, 0)


def _weighted(value: UOp, reduce: UOp, made_of: frozenset[UOp]) -> WeightedSum | None:
    """`value` taken apart into a weight, what it is multiplied with along the row, and what does not change
    along the row; None where it is no such product."""
    loop = reduce.closed_ranges[0]

    def uses_reduces(node: UOp) -> bool:
        return not made_of.isdisjoint(node.toposort(stop=lambda n: n in made_of))

    weight, is_masked = value, False
    factor: UOp | None = None
    while weight.op is not Ops.EXP2:
        if weight.op is Ops.CAST and weight.src[0].dtype.is_float and weight.dtype.is_float:
            weight = weight.src[0]
        elif weight.op is Ops.WHERE and weight.src[2].is_zero and not uses_reduces(weight.src[0]):
            weight, is_masked = weight.src[1], True
        elif weight.op is Ops.MUL:
            sides = (weight.src, weight.src[::-1])
            found = next((s for s in sides if loop in s[0].ranges and uses_reduces(s[0])), None)
            if found is None:
                return None
            weights, other = found
            if uses_reduces(other):
                if loop in other.ranges:
                    return None
                factor = other if factor is None else other * factor
                value = value.substitute({weight: weights})
            weight = weights
        else:
            return None
    y = argument_of_exponential(weight.src[0])
    if y is None or y.op is not Ops.SUB or loop in y.src[1].ranges or uses_reduces(y.src[0]):
        return None
    x, shift = y.src
    return WeightedSum(reduce, loop, value, factor, weight, x, shift, is_masked)


def online_softmax(nest: UOp, loop: UOp, tile: int) -> UOp:
    """The nest with the reduces over `loop` and those that use it in one loop over tiles of so many items."""
    found = online_softmax_of(nest)
    if found is None or found.loop is not loop:
        raise ValueError(f"r{loop.identity} finds no largest item that weighted sums along the row use")
    new = NewRanges(nest)
    tiles, item = new.range(ceildiv(loop.extent, tile)), new.range(tile, RangeKind.UNROLL)
    place = tiles * tile + item
    mask = place < loop.extent
    x = identity_unless(mask, found.largest.src[0].substitute({loop: place}), Ops.MAX)
    largest_of_tile = x.reduce_ranges(Ops.MAX, item)
    before = UOp.new(Ops.RUNNING, x.dtype, (largest_of_tile, tiles), Ops.MAX)
    after = before.maximum(largest_of_tile)
    largest = largest_of_tile.reduce_ranges(Ops.MAX, tiles)
    done = {found.largest: largest}
    for part in found.sums:
        difference = argument_of_exponential(part.weight.src[0])
        assert difference is not None
        shift, shift_before = _finite_below(after), before
        if part.shift.op is Ops.WHERE and part.shift is not _finite_below(found.largest):
            shift, shift_before = _finite_above(after, shift), _finite_above(before)
        factor = part.weight.substitute({difference: shift_before - shift})
        weight = part.weight.substitute({difference: x - shift})
        value = masked_term(mask, part.value.substitute({part.weight: weight, part.loop: place}), Ops.ADD)
        total = value.reduce_ranges(Ops.ADD, item)
        whole = UOp.new(Ops.REDUCE, total.dtype, (factor.cast(total.dtype), total, tiles), Ops.MULACC)
        if not part.is_masked:  # NaN, where x - m would have been
            last = part.shift.substitute(done)
            whole = whole + (last - last).cast(whole.dtype)
        if part.factor is not None:
            whole = (whole.cast(part.factor.dtype) * part.factor.substitute(done)).cast(whole.dtype)
        done[part.reduce] = whole
    return nest.substitute(done)
