"""GLOBAL and LOCAL ranges as the indices of a grid of blocks of threads.

In: a nest with ranges across blocks and threads. Out, as a `Grid`: the counter of
each of these ranges in terms of SPECIAL indices, and for every STORE the condition under which a thread may
do it.

Blocks have numbers, and so have the threads of one. Ranges that a value changes with together are digits of
the number. Ranges that no value changes with together (the lanes of a sum, and the items that are stored once
it is known) are read from the same number, each in its own way. So a grid is as large as what needs most of
it, never the product of what its parts need. A thread past the end of a range computes the last iteration
again, and a thread whose number says more than a value asks for computes what another one does: so all
threads run through the same loops and reach the same barriers, and only what they store is guarded.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tinygrad.codegen.ranges import ZERO, closing, is_block_range, iterations, of_kind, running_in
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.symbolic import TRUE, all_of
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod, round_up

GridLimits = tuple[int, int, int]
NO_LIMITS: GridLimits = (2**31 - 1, 2**31 - 1, 2**31 - 1)
BLOCK_LIMITS: GridLimits = (1024, 1024, 64)
"""The most threads along each axis of a block, as all languages have it."""
BLOCK_KINDS: Mapping[RangeKind, str] = {RangeKind.GLOBAL: "gidx", RangeKind.LOCAL: "lidx"}
"""Ranges that no thread loops over, and what the hardware's index for them is called."""
Rank = Callable[[UOp], tuple[bool, int, int, int]]
"""What sorts ranges, those first that become the fastest digits."""


@frozen
class Digits:
    """Ranges that belong together as the digits of a number, from the fastest to the slowest. What is left of
    the number between `fast` and `slow` is read in as many ways as there are `inner` ones."""

    fast: tuple[UOp, ...]
    inner: tuple[Digits, ...]
    slow: tuple[UOp, ...]
    warp: int = 1
    """lanes that work together in one of the ways: whatever `slow` says, they begin a warp"""

    @property
    def inner_size(self) -> int:
        """Numbers that the inner digits need: whole warps."""
        return round_up(max((digits.size for digits in self.inner), default=1), self.warp)

    @property
    def size(self) -> int:
        """Numbers that all digits need."""
        return iterations((*self.fast, *self.slow)) * self.inner_size

    @property
    def longest(self) -> list[int]:
        """The extents of digits, one beside the other, that make up the size."""
        inner = _axes(self.inner)
        if prod(inner) != self.inner_size:
            inner = [self.inner_size]
        return [*(r.extent for r in self.fast), *inner, *(r.extent for r in self.slow)]

    def has_any(self, ranges: Iterable[UOp]) -> bool:
        """Whether one of `ranges` is a digit."""
        own = {*self.fast, *self.slow}
        return any(r in own for r in ranges) or any(digits.has_any(ranges) for digits in self.inner)


def digits_of(groups: Iterable[frozenset[UOp]], rank: Rank, lanes: frozenset[UOp]) -> tuple[Digits, ...]:
    """How ranges share one number, if those of a group are different digits of it. Groups that have no range
    in common read it each in their own way."""
    different = [g for g in dict.fromkeys(groups) if g]
    largest = [g for g in different if not any(g < other for other in different)]
    return tuple(_together(part, rank, lanes) for part in _connected(largest))


def _together(groups: list[frozenset[UOp]], rank: Rank, lanes: frozenset[UOp]) -> Digits:
    """The digits of groups that hang together: those of what most have in common, and of the others."""
    count = {r: sum(r in g for g in groups) for r in frozenset[UOp]().union(*groups)}
    shared = [r for r in sorted(count, key=rank) if count[r] == len(groups)]
    shared = shared or [max(sorted(count, key=rank), key=count.__getitem__)]
    others = [g.difference(shared) for g in groups]
    first = min((rank(r) for g in others for r in g), default=None)
    fast = tuple(r for r in shared if first is None or rank(r) < first)
    slow = tuple(r for r in shared if r not in fast)
    warp = max((r.extent for g in others for r in g & lanes), default=1)
    return Digits(fast, digits_of(others, rank, lanes), slow, warp)


def _connected(groups: list[frozenset[UOp]]) -> list[list[frozenset[UOp]]]:
    """The groups, in lists that have no range in common."""
    parts: list[list[frozenset[UOp]]] = []
    for group in groups:
        touched = [part for part in parts if any(not group.isdisjoint(other) for other in part)]
        parts = [part for part in parts if part not in touched]
        parts.append([*(g for part in touched for g in part), group])
    return parts


class Grid:
    """Where each GLOBAL and LOCAL range of a nest runs."""

    def __init__(self, nest: UOp, limits: GridLimits = NO_LIMITS) -> None:
        self.counters: dict[UOp, UOp] = {}
        self.digit: dict[UOp, UOp] = {}
        """what the number has where a range has its counter: that, or more"""
        self.stride: dict[UOp, int] = {}
        self.numbers: dict[RangeKind, UOp] = {}
        self.digits: dict[RangeKind, tuple[Digits, ...]] = {}
        self.inside: dict[RangeKind, UOp] = {}
        """where the hardware has more blocks than there is work: the condition under which one has some"""
        closed = (r for n in nest.nodes_of(Ops.REDUCE) for r in n.closed_ranges)
        self.exchanging = frozenset(of_kind(closed, RangeKind.LOCAL))
        """the ranges across lanes of a warp that REDUCEs close"""
        of_units = (n.src[3] for n in nest.nodes_of(Ops.MMA) if n.src[3].op is Ops.RANGE)
        self.lanes = self.exchanging.union(of_units)
        """those, and the ranges across the lanes that hold the tiles of matrix units"""
        has_blocks = any(map(is_block_range, nest.nodes_of(Ops.RANGE)))
        users = dict.fromkeys(running_in(n) for n in nest.toposort()) if has_blocks else {}
        depth: dict[UOp, int] = {}
        """how many ranges there are around each"""
        for n in closing(nest):
            for place, r in enumerate(n.closed_ranges, len(n.ranges)):
                depth[r] = max(place, depth.get(r, 0))

        def rank(r: UOp) -> tuple[bool, int, int, int]:
            is_lane = r in self.lanes
            return not is_lane, -r.extent * is_lane, -depth[r], -r.identity

        for kind in BLOCK_KINDS:
            groups = (frozenset(of_kind(ranges, kind)) for ranges in users)
            self.digits[kind] = digits_of(groups, rank, self.lanes)
        self.numbers[RangeKind.GLOBAL] = self.number_of_block(limits)
        self.numbers[RangeKind.LOCAL] = self.number_in_block()
        for kind, number in self.numbers.items():
            self.read(self.digits[kind], number, 1)

    # --- numbers --------------------------------------------------------------------------------------------

    def number_of_block(self, limits: GridLimits) -> UOp:
        """The number of a block: an axis for each digit; one or two where the hardware has too few, or too
        short ones."""
        sizes = _axes(self.digits[RangeKind.GLOBAL])
        if _within(sizes, limits):
            return _number(RangeKind.GLOBAL, sizes)
        total = int(prod(sizes))
        rows = ceildiv(total, limits[0])
        columns = ceildiv(total, rows)
        number = _number(RangeKind.GLOBAL, [columns, rows] if rows > 1 else [columns])
        if rows * columns > total:
            self.inside[RangeKind.GLOBAL] = number < total
            number = number.minimum(total - 1)
        return number

    def number_in_block(self) -> UOp:
        """The number of a thread among all of its block. Where lanes of a warp work together they are its
        fastest digit and the first axis, so every warp is whole."""
        sizes = _axes(self.digits[RangeKind.LOCAL])
        lanes = max((r.extent for r in self.lanes), default=1)
        if not _within(sizes, BLOCK_LIMITS) or (lanes > 1 and sizes[0] != lanes):
            sizes = [size for size in (lanes, ceildiv(int(prod(sizes)), lanes)) if size > 1]
        return _number(RangeKind.LOCAL, sizes)

    def read(self, choices: tuple[Digits, ...], number: UOp, stride: int) -> None:
        """Take a number apart, in each way. The slowest digit has all that is left."""
        for digits in choices:
            left, at = number, stride
            last = None if digits.inner and not digits.slow else (*digits.fast, *digits.slow)[-1]
            for r in digits.fast:
                left, at = self.read_digit(r, left, at, r is last)
            if digits.inner:
                self.read(digits.inner, left % digits.inner_size if digits.slow else left, at)
                left, at = left // digits.inner_size, at * digits.inner_size
            for r in digits.slow:
                left, at = self.read_digit(r, left, at, r is last)

    def read_digit(self, r: UOp, left: UOp, stride: int, is_last: bool) -> tuple[UOp, int]:
        """Take the counter of `r` from what is left of a number; returns what is left then, and its stride.
        Lanes that exchange values have theirs again and again: what others do besides is the same."""
        self.stride[r] = stride
        self.digit[r] = left if is_last else left % r.extent
        self.counters[r] = left % r.extent if r in self.exchanging else self.digit[r].minimum(r.extent - 1)
        return left // r.extent, stride * r.extent

    def lane_distances(self, r: UOp) -> list[int]:
        """How far apart in the block's numbers of threads the lanes of `r` are that differ in one bit.
        Raises RuntimeError for a range that no warp has side by side."""
        if self.stride.get(r) != 1 or r.extent & (r.extent - 1):
            raise RuntimeError(f"the {r.extent} iterations of r{r.identity} are no lanes of a warp that "
                               "could exchange their values: threads reduce through shared memory")
        return [1 << bit for bit in range(r.extent.bit_length() - 1)]

    # --- masks ----------------------------------------------------------------------------------------------

    def first_of_all(self, choices: tuple[Digits, ...], ranges: frozenset[UOp], number: UOp) -> list[UOp]:
        """What tells one thread from all others that have the same counters of `ranges`."""
        chosen = next((digits for digits in choices if digits.has_any(ranges)), None)
        if chosen is None:
            return [number < 1]
        conditions = [self.digit[r] < (r.extent if r in ranges else 1) for r in (*chosen.fast, *chosen.slow)]
        if chosen.inner:
            left = number // iterations(chosen.fast)
            conditions += self.first_of_all(chosen.inner, ranges,
                                            left % chosen.inner_size if chosen.slow else left)
        return conditions

    def mask_of(self, node: UOp) -> UOp:
        """The condition under which a thread does a STORE, or fills a STAGE: shared memory is every block's
        own, scratch memory every thread's."""
        if not self.counters or (node.op is Ops.STAGE and node.arg[1] is not Memory.SHARED):
            return TRUE
        conditions = []
        for kind in (RangeKind.LOCAL,) if node.op is Ops.STAGE else BLOCK_KINDS:
            own = frozenset(of_kind(running_in(node), kind))
            conditions += self.first_of_all(self.digits[kind], own, self.numbers[kind])
            conditions.append(self.inside.get(kind, TRUE))
        return all_of(conditions)

    def own_part(self, memory: UOp) -> tuple[UOp, int]:
        """(this thread's number, how many there are) among the threads that each fill a part of their own of
        shared memory: those of the LOCAL ranges around its STAGE."""
        number, count = ZERO, 1
        if memory.arg[1] is Memory.SHARED:
            for r in sorted(of_kind(memory.ranges, RangeKind.LOCAL), key=lambda r: -self.stride[r]):
                number, count = number * r.extent + self.counters[r], count * r.extent
        return number, count


def _axes(choices: tuple[Digits, ...]) -> list[int]:
    """The extents of the digits that need most of a number."""
    return max(choices, key=lambda digits: digits.size).longest if choices else []


def _within(sizes: list[int], limits: GridLimits) -> bool:
    """Whether the hardware has an axis for each of the sizes."""
    return len(sizes) <= len(limits) and all(s <= most for s, most in zip(sizes, limits, strict=False))


def _number(kind: RangeKind, sizes: list[int]) -> UOp:
    """The number that the indices along axes of these sizes make up."""
    number, stride = ZERO, 1
    for axis, size in enumerate(sizes):
        index = UOp.new(Ops.SPECIAL, dtypes.index, (), (f"{BLOCK_KINDS[kind]}{axis}", size))
        number = number + index * stride
        stride *= size
    return number
