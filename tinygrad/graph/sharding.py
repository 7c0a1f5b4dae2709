"""How a value lies on several devices: whole on each of them (replicated), or cut along one axis (sharded).

A COPY with a `Sharding` as its argument spreads a value; a BUFFER whose spec has a `Layout` is memory on
several devices, of which each piece is a BUFFER of its own (`ShardedStorage`). Every other node says what it
says for one device, of whole shapes: gradients and transforms know nothing of devices. Before scheduling,
`schedule/partition.py` makes of such a graph one for each device.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeAlias

from tinygrad.graph.sizes import is_symbolic
from tinygrad.helpers import ceildiv, prod

Placement: TypeAlias = str | tuple[str, ...]
"""The full name of a device, or those of several."""
Devices: TypeAlias = str | Sequence[str]
"""As users name them."""
Span: TypeAlias = tuple[int, int]
"""(start, end) of the items along an axis."""


@dataclass(frozen=True)
class Sharding:
    """Where a value is to be: cut evenly along `axis`, or whole on every device where that is None."""

    devices: tuple[str, ...]
    axis: int | None
    exists: ClassVar[bool] = False
    """whether there ever was a value on several devices; until then nobody looks for one"""

    def __post_init__(self) -> None:
        Sharding.exists = True


class Layout(NamedTuple):
    """How a value of `shape` lies on several devices: for each the items that it has along `axis`."""

    shape: tuple[int, ...]
    axis: int | None
    """None: every device has all of it"""
    spans: tuple[Span, ...] = ()


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


def strided(span: Span, size: int, step: int) -> tuple[Span, Span]:
    """The items of every `step`th of `size` that are in `span`: where they stand in the result, and where in
    the span's own items the first of them and the end lie."""
    start, end = span
    found = ceildiv(start, step), ceildiv(end, step)
    first = min(found[0] * step, end)
    return found, (first - start, end - start)


def reshaped(axis: int, old: Sequence[int], new: Sequence[int], spans: Sequence[Span]) -> Layout | None:
    """The layout, after a reshape from `old` to `new`, of what was cut along `axis`; None where the parts are
    no longer spans of one axis.

    A part is a run of whole rows of what lies inside the axis, once for each index of the axes around it. It
    stays one where those around keep their number of items, and rows of the new axis begin where a part
    does.
    """
    if is_symbolic(old) or is_symbolic(new):
        stays = tuple(map(str, old[:axis + 1])) == tuple(map(str, new[:axis + 1]))
        return Layout(tuple(new), axis, tuple(spans)) if stays else None
    around, inside = prod(old[:axis]), prod(old[axis + 1:])
    for to, size in enumerate(new):
        if size == 1 or prod(new[:to]) != around:
            continue
        row = prod(new[to + 1:])
        if row == 0 or any(n * inside % row for span in spans for n in span):
            return None
        return Layout(tuple(new), to, tuple((s * inside // row, e * inside // row) for s, e in spans))
    return None
