"""Where in one piece of memory the intermediates of a schedule lie.

In: how many bytes each value takes, and from which step to which it is needed. Out: an `Arena`, with an
offset for each, such that no two values that are needed at once overlap. No arena is smaller than the largest
sum of what is needed at once (`lower_bound`); finding the smallest is NP-hard, a greedy order comes within a
few percent.
"""
from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinygrad.helpers import round_up

ALIGNMENT = 64
"""A cache line: values of different kernels share none."""


@dataclass(frozen=True)
class Lifetime:
    """A value's size in bytes, and the first and the last step that use it."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """The bytes of an arena, and where each value in it begins."""

    size: int
    offsets: Mapping[int, int]


def lifetimes(steps: Sequence[Sequence[int]], sizes: Mapping[int, int]) -> dict[int, Lifetime]:
    """The lifetime of each value in `sizes` (bytes by number) that one of `steps` uses."""
    found: dict[int, Lifetime] = {}
    for number, used in enumerate(steps):
        for value in used:
            if value in sizes:
                first = found[value].first if value in found else number
                found[value] = Lifetime(round_up(max(1, sizes[value]), ALIGNMENT), first, number)
    return found


def lower_bound(values: Mapping[int, Lifetime]) -> int:
    """The most bytes that are needed at once."""
    changes: dict[int, int] = {}
    for value in values.values():
        changes[value.first] = changes.get(value.first, 0) + value.size
        changes[value.last + 1] = changes.get(value.last + 1, 0) - value.size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


CLOSE = 1.02
"""An arena this close to the lower bound is good enough: other orders are not tried."""
ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda v: (-v.size, v.first),
    lambda v: (v.first, -v.size),
    lambda v: (v.first - v.last, -v.size),
    lambda v: (-v.size * (v.last - v.first + 1), v.first),
)
"""Greedy orders: large values first (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020), early ones, long-lived ones, and those that take most for longest."""


def plan_arena(values: Mapping[int, Lifetime]) -> Arena:
    """An arena for `values`: the smallest that one of `ORDERS` gives."""
    bound = lower_bound(values)
    best = Arena(0, {})
    for order in ORDERS:
        arena = _placed_in_order(values, sorted(values, key=lambda n: (order(values[n]), n)))
        if order is ORDERS[0] or arena.size < best.size:
            best = arena
        if best.size <= CLOSE * bound:
            break
    return best


def _placed_in_order(values: Mapping[int, Lifetime], order: Sequence[int]) -> Arena:
    """Each value in the smallest gap that those placed before it leave for its time."""
    placed: list[tuple[int, int, Lifetime]] = []
    """(offset, number, lifetime), by offset"""
    offsets: dict[int, int] = {}
    for number in order:
        value = values[number]
        end, best, best_gap = 0, -1, 0
        for offset, _, other in placed:
            if other.last < value.first or value.last < other.first:
                continue
            gap = offset - end
            if gap >= value.size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, offset + other.size)
        offsets[number] = end if best < 0 else best
        insort(placed, (offsets[number], number, value), key=lambda entry: entry[:2])
    size = max((offsets[n] + values[n].size for n in offsets), default=0)
    return Arena(size, offsets)
