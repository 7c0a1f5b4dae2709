"""How a value lies on several devices: whole on each of them (replicated), or cut along axes (sharded).

A COPY with a `Sharding` as its argument spreads a value; a BUFFER whose spec has a `Layout` is memory on
several devices, of which each piece is a BUFFER of its own (`ShardedStorage`). Every other node says what it
says for one device, of whole shapes: gradients and transforms know nothing of devices. Before scheduling,
`schedule/partition.py` makes of such a graph one for each device.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, starmap
from typing import Any, ClassVar, NamedTuple, TypeAlias

from tinygrad.frozen import frozen
from tinygrad.graph.sizes import is_symbolic
from tinygrad.helpers import ceildiv, prod

Placement: TypeAlias = str | tuple[str, ...]
"""The full name of a device, or those of several."""
Devices: TypeAlias = str | Sequence[str]
"""As users name them."""
Span: TypeAlias = tuple[int, int]
"""(start, end) of the items along an axis."""


class Cut(NamedTuple):
    """An axis of a value that is divided among devices."""

    axis: int
    spans: tuple[Span, ...]
    """for each device the items along the axis that it has; devices may have the same ones"""


class Layout(NamedTuple):
    """How a value of `shape` lies on several devices: each has what all its spans have in common."""

    shape: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()
    """by axis; none: every device has all of it"""

    def box(self, device: int) -> tuple[Span, ...]:
        """The items that a device has, along every axis."""
        own = {cut.axis: cut.spans[device] for cut in self.cuts}
        return tuple(own.get(axis, (0, size)) for axis, size in enumerate(self.shape))


class BlockMove(NamedTuple):
    """Items that one of several devices has, and one of them gets. (The argument of a node has them as plain
    tuples.)"""

    giver: int
    """the number of a device"""
    taker: int
    given: tuple[int, ...]
    """along every axis, where they begin in what the giver has"""
    taken: tuple[int, ...]
    """and in what the taker gets"""
    sizes: tuple[int, ...]


def shape_of_blocks(blocks: Sequence[tuple[Any, ...]], taker: int) -> tuple[int, ...]:
    """The shape of what a device gets."""
    ends = [[start + size for start, size in zip(b.taken, b.sizes, strict=True)]
            for b in starmap(BlockMove, blocks) if b.taker == taker]
    return tuple(map(max, zip(*ends, strict=True)))


@frozen
class Sharding:
    """Where a value is to be: cut evenly along `axis`, or whole on every device where that is None.

    On a mesh `lines` are the devices (by their numbers) that differ in their place along one axis of it: the
    value is cut among those of each line, and stays cut as it is between the lines. `cuts` where it is to be
    cut as another value is.
    """

    devices: tuple[str, ...]
    axis: int | None = None
    lines: tuple[tuple[int, ...], ...] = ()
    """none: one line of all devices"""
    cuts: tuple[Cut, ...] | None = None
    exists: ClassVar[bool] = False
    """whether there ever was a value on several devices; until then nobody looks for one"""

    def __post_init__(self) -> None:
        Sharding.exists = True

    def of_batch(self) -> Sharding:
        """The same of a value with one more axis in front."""
        cuts = None if self.cuts is None else tuple(Cut(c.axis + 1, c.spans) for c in self.cuts)
        return replace(self, axis=None if self.axis is None else self.axis + 1, cuts=cuts)

    def of(self, shape: Sequence[Any], cuts: Sequence[Cut] = ()) -> tuple[Cut, ...]:
        """How a value of `shape` will be cut that lies on the same devices as `cuts` say."""
        if self.cuts is not None:
            return self.cuts
        lines = self.lines or (tuple(range(len(self.devices))),)
        found = {cut.axis: _between(cut.spans, lines) for cut in cuts}
        if self.axis is not None:
            whole = ((0, shape[self.axis]),) * len(self.devices)
            found[self.axis] = _within(found.get(self.axis, whole), lines)
        return tuple(Cut(axis, spans) for axis, spans in sorted(found.items()) if len(set(spans)) > 1)


def _between(spans: Sequence[Span], lines: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    """Spans that are gathered within each line; of the whole axis where lines have no spans of their own."""
    found = list(spans)
    for line in lines:
        own = [s for s in (spans[i] for i in line) if s[0] < s[1]]
        hull = (min(s for s, _ in own), max(e for _, e in own)) if own else (0, 0)
        for i in line:
            found[i] = hull
    if are_disjoint(found):
        return tuple(found)
    return ((0, max(end for _, end in spans)),) * len(spans)


def _within(spans: Sequence[Span], lines: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    """Spans that are divided evenly within each line."""
    found = list(spans)
    for line in lines:
        start, end = spans[line[0]]
        for i, (s, e) in zip(line, even_spans(end - start, len(line)), strict=True):
            found[i] = (start + s, start + e)
    return tuple(found)


def are_disjoint(spans: Sequence[Span]) -> bool:
    """Whether of these spans no two have items in common but those that are equal."""
    filled = sorted({s for s in spans if s[0] < s[1]})
    return all(a[1] <= b[0] for a, b in pairwise(filled))


def are_apart(cuts: Sequence[Cut]) -> bool:
    """Whether devices that are cut so have all items among them: some device each combination of spans."""
    distinct = [{s for s in cut.spans if s[0] < s[1]} for cut in cuts]
    boxes = {box for box in zip(*(cut.spans for cut in cuts), strict=True) if all(s < e for s, e in box)}
    return len(boxes) == math.prod(len(spans) for spans in distinct)


def even_spans(size: int, count: int) -> tuple[Span, ...]:
    """`size` items in `count` parts, one after another, whose sizes differ by one at most, the larger
    first.

    >>> even_spans(7, 3)
    ((0, 3), (3, 5), (5, 7))
    """
    least, longer = divmod(size, count)
    starts = [i * least + min(i, longer) for i in range(count + 1)]
    return tuple(pairwise(starts))


def intersection(a: Span, b: Span) -> Span:
    """What is in both; a span of no items where nothing is."""
    start = max(a[0], b[0])
    return start, max(start, min(a[1], b[1]))


def padded(spans: Sequence[Span], pads: Span) -> tuple[list[Span], tuple[Span, ...]]:
    """The axis with items before and behind it: how many of those each device puts where, and what it has
    then. They go to the devices that have an end of the axis."""
    filled = sorted(s for s in spans if s[0] < s[1]) or [spans[0]]
    own = [(pads[0] if s == filled[0] else 0, pads[1] if s == filled[-1] else 0) for s in spans]
    found = tuple((s + pads[0] - before, e + pads[0] + after)
                  for (s, e), (before, after) in zip(spans, own, strict=True))
    return own, found


def shrunk(spans: Sequence[Span], kept: Span) -> tuple[list[Span], tuple[Span, ...]]:
    """The items of an axis in `kept` alone: which of its own each device keeps, and what it has then."""
    own, found = [], []
    for span in spans:
        start, end = intersection(span, kept)
        here = (start - span[0], end - span[0]) if start < end else (0, 0)
        begins = min(max(start - kept[0], 0), kept[1] - kept[0])
        own.append(here)
        found.append((begins, begins + here[1] - here[0]))
    return own, tuple(found)


def strided(spans: Sequence[Span], size: int, step: int) -> tuple[list[Span], tuple[Span, ...]]:
    """Every `step`th item of an axis, from its end where that is negative: between which of its own, turned
    around then, each device has the first and the last of them, and what it has in all."""
    own, found = [], []
    for start, end in spans:
        start, end = (start, end) if step > 0 else (size - end, size - start)
        here = ceildiv(start, abs(step)), ceildiv(end, abs(step))
        first = min(here[0] * abs(step), end)
        own.append((first - start, end - start) if here[0] < here[1] else (0, 0))
        found.append(here)
    return own, tuple(found)


def reshaped(cut: Cut, old: Sequence[int], new: Sequence[int]) -> Cut | None:
    """What becomes of a cut in a reshape from `old` to `new`; None where the parts are no longer spans of one
    axis.

    A part is a run of whole rows of what lies inside the axis, once for each index of the axes around it. It
    stays one where those around keep their number of items, and rows of the new axis begin where a part
    does.
    """
    axis, spans = cut
    if is_symbolic(old) or is_symbolic(new):
        return cut if tuple(map(str, old[:axis + 1])) == tuple(map(str, new[:axis + 1])) else None
    around, inside = prod(old[:axis]), prod(old[axis + 1:])
    for to, size in enumerate(new):
        if size == 1 or prod(new[:to]) != around:
            continue
        row = prod(new[to + 1:])
        if row == 0 or any(n * inside % row for span in spans for n in span):
            return None
        return Cut(to, tuple((s * inside // row, e * inside // row) for s, e in spans))
    return None
