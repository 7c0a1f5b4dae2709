"""Sorting: `sort`, `argsort` and `topk`, by numbers that hold an item's order and its place.

An item's bits, changed so that they count up in its order, and behind them its place are one integer, a word.
No two words are equal, so that sorting them is stable, and a comparison is one instruction. Where bits and
place do not fit into a word, the items are sorted by their lowest bits first, then by the next. A long axis
is sorted by Batcher's bitonic network ("Sorting networks and their applications", 1968), log^2 n / 2 stages
of comparisons; of the first k items alone, rows of k are sorted so, and the better half of each two kept.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.functional.creation import counting
from tinygrad.functional.elementwise import order_reversed
from tinygrad.functional.indexing import gather
from tinygrad.functional.movement import axis_of
from tinygrad.graph.joining import joined
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import Size, as_size, largest, largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

RANK_COMPARISONS = 1 << 22
"""Comparisons of each item with each other one of its row that take no longer than a network's kernels, or
are worth the half second that these take to compile (64 rows of 1,000 integers: 5.9 ms with 2^26, 0.75 so; a
row of 3,000 0.45 and 0.3; Intel with AVX-512)."""
RANK_LENGTH = 64
"""Rows that a network starts with; of up to twice that length they are sorted by such comparisons however
many there are (1,000 rows of 100: 0.85 ms, by a network as much)."""
SELECTION_LIMIT = 10
"""Most items that `topk` finds one after the other; more of them make a kernel that takes seconds to
compile."""
SMALL_SORT = 1 << 20
"""Comparisons that take no longer than some more kernels; fewer items are sorted."""
FEW_COMPARISONS = 1 << 19
"""Comparisons, of each item with each other, that take no longer than to store what they compare; than to
find the chunks that count (of 128,256 items the first 50: 0.89 ms with 2^26, 0.72 so; of 100,000 the first
1,000: 23 and 3.4; Zen 4); or to count once for each bit of an item how many are below (`positions_at`)."""
LEAST_CHUNK = 4
"""Fewest items of a chunk with which `topk` looks only in the chunks whose least words are the first."""
PAIRED_DISTANCE = 16
"""Distance from which two stages of a network are one kernel: nearer items lie in one vector."""


# --- words ------------------------------------------------------------------------------------------------


def _order_bits(x: UOp, descending: bool) -> UOp:
    """Unsigned integers of the width of `x` in its order (-0.0 with 0.0; NaN is largest)."""
    width = x.dtype.bits
    unsigned = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[width]
    sign, ones = 1 << (width - 1), (1 << width) - 1
    if x.dtype.is_bool:
        bits = x.cast(unsigned)
    elif x.dtype.is_float:
        bits = x.eq(0).where(0, x).bitcast(unsigned)
        bits = bits ^ (bits < sign).where(UOp.const(sign, unsigned, x.shape), ones)
        bits = x.ne(x).where(ones, bits)
    else:
        bits = x.bitcast(unsigned) ^ (0 if x.dtype.is_unsigned else sign)
    return bits ^ ones if descending else bits


def _sorted_places(x: Tensor, descending: bool, count: int | None) -> Tensor:
    """The positions that sort the last axis, equal items as they stand: the first `count` of them."""
    bits, size = _order_bits(x.uop, descending), x.shape[-1]
    place_bits = (largest(size) - 1).bit_length()
    names = [x.device] if isinstance(x.device, str) else list(x.device)
    is_narrow = bits.dtype.bits + place_bits < dtypes.int32.bits
    word = dtypes.int32 if is_narrow or not all(Device[n].has_dtype(dtypes.int64) for n in names) \
        else dtypes.int64
    digit_bits = word.bits - 1 - place_bits
    numbers = counting(size, word).reshape((*(1,) * (x.ndim - 1), size)).expand(x.shape)
    most = largest(size if count is None else count)
    places: Tensor | None = None
    for low in range(0, bits.dtype.bits, digit_bits):
        is_last = low + digit_bits >= bits.dtype.bits
        digit = bits >> low if is_last else bits >> low & ((1 << digit_bits) - 1)
        if places is not None:
            digit = gather(type(x).of(digit, x), -1, places).uop
        words = digit.cast(word) << place_bits | numbers
        ends, few = size if count is None or not is_last else count, most if is_last else largest(size)
        in_order = _in_order(words, few) if digit_bits < bits.dtype.bits else \
            _first_in_order(type(x).of(words, x), most, place_bits)
        found = in_order.shrink([*((0, n) for n in x.shape[:-1]), (0, ends)]) & ((1 << place_bits) - 1)
        order = type(x).of(found.cast(dtypes.default_int), x)
        places = order if places is None else gather(places.contiguous(), -1, order)
    assert places is not None
    return type(x).of(places.uop.contiguous(), x)


def _first_in_order(words: Tensor, count: int, place_bits: int, skipped: int = 0) -> UOp:
    """Each row's first `count` words in order, whatever follows them; their place in the row is in the last
    `place_bits` bits but so many.

    They lie in the `count` chunks whose least words come first, which are found in the same way.
    """
    *lead, size = words.shape
    rows = prod(largest_shape(tuple(lead)))
    bits = (largest(size) // count).bit_length() // 2
    if 1 << bits < LEAST_CHUNK or rows * largest(size)**2 <= FEW_COMPARISONS:
        return _in_order(words.uop, count)
    while 1 << bits > LEAST_CHUNK and rows * (count << bits)**2 > FEW_COMPARISONS:
        bits -= 1
    chunk, chunks = 1 << bits, ceildiv(largest(size), 1 << bits)
    filled = _filled(words.uop, chunks * chunk)
    parts = filled.reshape((*lead, chunks, chunk))
    least = order_reversed(order_reversed(parts).reduce(Ops.MAX, (len(lead) + 1,))).reshape((*lead, chunks))
    found = _first_in_order(words.of(least.intermediate(), words), count, place_bits, skipped + bits)
    chosen = found.shrink([*((0, n) for n in lead), (0, count)]).intermediate()
    own = chosen.reshape((*lead, count, 1)).expand((*lead, count, chunk))
    numbers = counting(chunk, own.dtype).reshape((*(1,) * (len(lead) + 1), chunk)).expand(own.shape)
    places = (own & ((1 << place_bits) - 1)) >> skipped & -chunk | numbers
    flat = words.of(places.reshape((*lead, count * chunk)), words)
    return _in_order(gather(words.of(filled, words), -1, flat).uop.intermediate(), count)


def _in_order(words: UOp, count: int) -> UOp:
    """Each row's first `count` words in order, whatever follows them."""
    *lead, size = words.shape
    length, rows = largest(size), prod(largest_shape(tuple(lead)))
    comparisons = rows * length**2
    if length <= 2 * RANK_LENGTH or comparisons <= RANK_COMPARISONS:
        return _by_rank(words if comparisons <= FEW_COMPARISONS else words.intermediate())
    return _first_of_runs(words, 1 << (count - 1).bit_length())


def _by_rank(words: UOp) -> UOp:
    """The words sorted: position k has the one that k others are smaller than."""
    *lead, size = words.shape
    grid, last = (*lead, size, size), len(lead) + 1
    this = words.reshape((*lead, size, 1)).expand(grid)
    other = words.reshape((*lead, 1, size)).expand(grid)
    rank = (other < this).cast(dtypes.default_int).reduce(Ops.ADD, (last,))
    column = counting(size, dtypes.default_int).reshape((*(1,) * last, size)).expand(grid)
    return rank.expand(grid).eq(column).where(this, 0).reduce(Ops.ADD, (last - 1,)).reshape(words.shape)


def _first_of_runs(words: UOp, run: int) -> UOp:
    """The first `run` words in order, a power of two: the whole row where it is no longer."""
    *lead, size = words.shape
    runs = ceildiv(largest(size), run)
    block = min(run, RANK_LENGTH)
    ranked = _by_rank(_filled(words, runs * run).reshape((*lead, runs * run // block, block)))
    words = ranked.intermediate().reshape((*lead, runs, run))
    block *= 2
    while block <= run:
        words = _merged(words, block, mirrored=True)
        block *= 2
    while runs > 1:
        # the smaller of the first of one run and the last of another, and so on, are the first of both
        half = runs // 2
        parts = [words.shrink([*((0, n) for n in lead), part, (0, run)])
                 for part in ((0, half), (half, 2 * half), (2 * half, runs))]
        best = parts[0].minimum(parts[1].stride((1,) * (len(lead) + 1) + (-1,)))
        runs -= half
        words = joined([best, parts[2]], len(lead)) if runs > half else best
        words = _merged(words.intermediate(), run, mirrored=False)
    return words.reshape((*lead, run))


def _filled(words: UOp, size: int) -> UOp:
    """Rows of `size` words: those added have the largest bits that a word can, and their places."""
    *lead, before = words.shape
    if before == size:
        return words
    pads = [(0, 0)] * len(lead) + [(0, size - before)]
    is_there = UOp.const(True, dtypes.bool, words.shape).pad(pads)
    places = counting(size, words.dtype) + (words.dtype.max + 1 - (1 << (size - 1).bit_length()))
    return is_there.where(words.pad(pads), places.reshape((*(1,) * len(lead), size)).expand(is_there.shape))


def _merged(words: UOp, block: int, mirrored: bool) -> UOp:
    """Blocks of the last axis in order: their halves are so already (`mirrored`), or they rise and then fall,
    or the other way round. Two stages of far items are one kernel."""
    distance, is_open = block // 2, False
    while distance:
        words = _compare_exchange(words, distance, mirrored)
        is_open = not is_open and distance >= 2 * PAIRED_DISTANCE
        words = words if is_open else words.intermediate()
        distance, mirrored = distance // 2, False
    return words


def _compare_exchange(words: UOp, distance: int, mirrored: bool) -> UOp:
    """One stage: of each two words `distance` apart, the smaller goes to the lower position. `mirrored`: of a
    word and its mirror image in a block of twice that length."""
    *lead, full = words.shape
    pairs = words.reshape((*lead, full // (2 * distance), 2, distance))
    others = pairs.stride((1,) * (len(lead) + 1) + (-1, -1 if mirrored else 1))
    is_lower = counting(2, dtypes.int32).eq(0).reshape((*(1,) * (len(lead) + 1), 2, 1)).expand(pairs.shape)
    return (pairs < others).ne(is_lower).where(others, pairs).reshape(words.shape)


# --- the first few ----------------------------------------------------------------------------------------


def _first_by_selection(x: UOp, count: int, descending: bool) -> UOp:
    """The positions of the first `count` items of the last axis in sorted order, found one after the other.

    Of what is left, that is the first of the largest (or smallest) items; NaNs before all, or after.
    """
    along = (len(x.shape) - 1,)
    size = x.shape[-1]
    x = x if descending else order_reversed(x)
    numbers = counting(size, dtypes.default_int).reshape((*(1,) * along[0], size))
    from_end = (numbers * -1 + size).expand(x.shape)
    is_nan = x.ne(x)
    is_left = UOp.const(True, dtypes.bool, x.shape)
    found = []
    for _ in range(count):
        extreme = (is_left & is_nan.logical_not()).where(x, x.dtype.min).reduce(Ops.MAX, along)
        is_extreme = x.eq(extreme.expand(x.shape))
        before, after = (is_nan, is_extreme) if descending else (is_extreme, is_nan)
        score = before.where(from_end + size, after.where(from_end, 0))
        best = is_left.where(score, 0).reduce(Ops.MAX, along)
        first = (best > size).where(best - size, best)
        is_left = (is_left & from_end.ne(first.expand(x.shape)))
        found.append(first)
    return functools.reduce(operator.add, [
        place.pad([(0, 0)] * along[0] + [(i, count - 1 - i)]) for i, place in enumerate(found)]) * -1 + size


# --- order statistics -------------------------------------------------------------------------------------


def positions_at(self: Tensor, axis: int, ranks: Tensor) -> Tensor:
    """The positions along an axis of the items that so many others come before (NaN last): of the shape of
    `ranks`, integers, several along that axis.

    Their bits, as numbers in the items' order, lie between two bounds, which each step halves the distance
    of: it counts the items up to the middle. Few items are sorted.
    """
    order = [i for i in range(self.ndim) if i != axis] + [axis]
    x, wanted = self.detach().permute(order), ranks.permute(order)
    size = largest(x.shape[-1])
    if prod(largest_shape(x.shape[:-1])) * size**2 <= FEW_COMPARISONS:
        found = x.argsort(-1).gather(-1, wanted)
    else:
        bits = _order_bits(x.uop, False).intermediate()
        rows, wanted = type(self).of(bits, self).unsqueeze(-2), wanted.unsqueeze(-1)
        ends = type(self).arange(2, dtype=dtypes.int32, device=self.device) == 0
        bounds = ends.where(type(self).of(UOp.const(0, bits.dtype), self), bits.dtype.max)
        bounds = bounds.expand(*wanted.shape[:-1], 2)
        for _ in range(bits.dtype.bits):
            low, high = bounds[..., :1], bounds[..., 1:]
            middle = low + ((high - low) >> 1)
            is_below = (rows <= middle).sum(-1, keepdim=True) > wanted
            bounds = ends.where(is_below.where(low, middle + 1), is_below.where(middle, high))
            bounds = type(self).of(bounds.uop.intermediate(), self)
        found = (rows == bounds[..., :1]).argmax(-1)
    return found.permute([order.index(i) for i in range(self.ndim)])


# --- looking up -------------------------------------------------------------------------------------------


def bisect(size: int, start: Tensor, goes_on: Callable[[Tensor], Tensor]) -> Tensor:
    """For each item, at how many of the places 0 to `size - 1` a condition holds that no longer holds after
    the first place where it does not. `start`: zeros, integers; `goes_on` answers for places of its shape.
    """
    places, step = start, 1 << (largest(size).bit_length() - 1)
    while step:
        last = places + (step - 1)
        holds = (last < size) & goes_on(last.minimum(size - 1))
        places = holds.where(places + step, places)
        step //= 2
    return places


# --- methods ----------------------------------------------------------------------------------------------


def _order(self: Tensor, axis: int, descending: bool, count: int | None = None) -> Tensor:
    """The positions that sort an axis: the first `count` of them."""
    last = self.detach().permute([i for i in range(self.ndim) if i != axis] + [axis])
    comparisons = prod(largest_shape(last.shape)) * largest(last.shape[-1])
    if isinstance(count, int) and 0 < count <= SELECTION_LIMIT and comparisons > SMALL_SORT:  # it is no Size
        places = type(self).of(_first_by_selection(last.uop, count, descending), self)
    else:
        places = _sorted_places(last, descending, count)
    order = [i if i < axis else i - 1 for i in range(self.ndim)]
    order[axis] = self.ndim - 1
    return places.permute(order)


def argsort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The positions that sort axis `dim`; equal items keep their order whatever `stable` says, NaN counts as
    largest.

    >>> Tensor([3, 1, 2]).argsort().tolist()
    [1, 2, 0]
    """
    axis = axis_of("argsort", self, dim)
    if self.ndim == 0 or prod(self.shape) == 0:
        return self.zeros_like(dtype=dtypes.default_int)
    return _order(self, axis, descending)


def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
         ) -> tuple[Tensor, Tensor]:
    """(the items of axis `dim` in order, their positions before). Stable whatever `stable` says; NaN counts
    as largest.

    >>> items, places = Tensor([3, 1, 2]).sort(descending=True)
    >>> items.tolist(), places.tolist()
    ([3, 2, 1], [0, 2, 1])
    """
    axis_of("sort", self, dim)
    places = argsort(self, dim, descending)
    return (self if self.ndim == 0 else self.gather(dim, places)), places


def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Tensor,
                                                                                                   Tensor]:
    """(the `k` largest items of axis `dim` in order, their positions); the smallest with `largest=False`.

    >>> items, places = Tensor([3, 1, 2]).topk(2)
    >>> items.tolist(), places.tolist()
    ([3, 2], [0, 2])
    """
    axis = axis_of("topk", self, dim)
    size = self.shape[axis] if self.ndim else 1
    k = as_size(k)
    k = k if isinstance(k, Size) else operator.index(k)
    if not 0 <= k <= size:
        raise ValueError(f"topk takes 0 <= k <= {size}, the items of axis {axis}, got {k}")
    if self.ndim == 0:
        return self, self.zeros_like(dtype=dtypes.default_int)
    if prod(self.shape) == 0 or (not isinstance(k, Size) and k == 0):
        places = self.zeros_like(dtype=dtypes.default_int)
        places = places.shrink([(0, k) if i == axis else None for i in range(self.ndim)])
    else:
        places = _order(self, axis, largest, k)
    return self.gather(dim, places), places
