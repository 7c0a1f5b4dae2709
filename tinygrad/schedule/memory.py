"""Where in one piece of memory the intermediates of a schedule lie.

In: how many bytes each value takes, and from which step to which it is needed. Out: an `Arena`, with an
offset for each, such that no two values that are needed at once overlap. No arena is smaller than the largest
sum of what is needed at once (`lower_bound`); finding the smallest is NP-hard, greedy orders come within a
few percent.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.helpers import round_up

ALIGNMENT = 64
"""A cache line: values of different kernels share none."""


@frozen
class Lifetime:
    """A value's size in bytes, and the first and the last step that use it."""

    size: int
    first: int
    last: int


@frozen
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


def lifetimes_by_device(steps: Sequence[Sequence[int]], values: Mapping[int, tuple[str, int]]
                        ) -> dict[str, dict[int, Lifetime]]:
    """By device the lifetimes of values there, of each of which the device and the bytes are given."""
    sizes: dict[str, dict[int, int]] = {}
    for number, (device, nbytes) in values.items():
        sizes.setdefault(device, {})[number] = nbytes
    return {device: lifetimes(steps, of_device) for device, of_device in sizes.items()}


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
"""An arena this close to the lower bound is good enough: no other is tried."""
MOST_PLACED = 10_000
"""Values that are placed in all rounds, where that is more than one: a fifth of a second. Networks of up to
200 values came to the lower bound in at most 25 rounds."""


def plan_arena(values: Mapping[int, Lifetime]) -> Arena:
    """An arena for `values`: the smallest of some rounds.

    First come those that take most for longest, greedily (Pisarchyk and Lee, "Efficient Memory Management for
    Deep Neural Net Inference", 2020). Those that lie at the end of the arena were placed too late: they come
    first in the next round.
    """
    bound = lower_bound(values)
    order = sorted(values, key=lambda n: (-values[n].size * (values[n].last - values[n].first + 1),
                                          values[n].first, n))
    best = arena = _placed_in_order(values, order)
    for _ in range(1, MOST_PLACED // max(1, len(values))):
        if best.size <= CLOSE * bound:
            break
        is_last = {number: arena.offsets[number] + values[number].size == arena.size for number in order}
        order.sort(key=is_last.__getitem__, reverse=True)  # which leaves the others in their order
        arena = _placed_in_order(values, order)
        best = min(best, arena, key=lambda a: a.size)
    return best


def _placed_in_order(values: Mapping[int, Lifetime], order: Sequence[int]) -> Arena:
    """Each value in the smallest gap that those placed before it leave for its time."""
    placed = np.zeros((4, len(order)), np.int64)
    """offset, end, first and last step of those placed, by offset"""
    offsets: dict[int, int] = {}
    for count, number in enumerate(order):
        value = values[number]
        starts, ends, firsts, lasts = placed[:, :count]
        overlapping = (lasts >= value.first) & (firsts <= value.last)
        used = np.maximum.accumulate(ends[overlapping])
        gaps = starts[overlapping]
        gaps[1:] -= used[:-1]
        fitting = np.flatnonzero(gaps >= value.size)
        if fitting.size:
            gap = fitting[gaps[fitting].argmin()]
            offset = int(used[gap - 1]) if gap else 0
        else:
            offset = int(used[-1]) if used.size else 0
        offsets[number] = offset
        at = int(starts.searchsorted(offset))
        placed[:, at + 1:count + 1] = placed[:, at:count].copy()
        placed[:, at] = offset, offset + value.size, value.first, value.last
    return Arena(int(placed[1].max(initial=0)), offsets)
