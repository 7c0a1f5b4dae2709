"""Collectives: the nodes by which devices bring a value from one layout to another, or combine what each has.

In: for each of several devices the node of its shard of a value (`Shards`), and what each is to have. Out:
nodes in which devices exchange values by COPY, each getting only what it does not have (all-gather,
all-to-all, scatter, broadcast are what that comes to), or combine partial results (all-reduce, in two steps
where it is large); processes with a library for it (`CompiledDevice.has_collectives`) all-gather, all-to-all
and all-reduce by COLLECTIVE. Next: `partition.py`, whose rules ask for them.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.joining import joined
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Cut, Placement, Span, even_spans, intersection
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import prod

REDUCE_SCATTER_BYTES = 1 << 16
"""From here on the partial results of more than two devices are reduce-scattered, each on its own device, so
that every device sends and receives about twice the size of the result; smaller ones are summed by the first,
in two copies for each of the others."""

Spans: TypeAlias = Mapping[int, Span]
"""By axis, the items of it."""


@frozen
class Shards:
    """A value on several devices: for each the node of its shard."""

    devices: tuple[str, ...]
    nodes: tuple[UOp, ...]
    """each on its device's home"""
    cuts: tuple[Cut, ...] = ()
    """by axis, how they are divided; none: every device has the whole value"""

    def map(self, change: Callable[[UOp], UOp]) -> Shards:
        """The same sharding of what `change` makes of each shard."""
        return Shards(self.devices, tuple(map(change, self.nodes)), self.cuts)

    def spans(self, number: int) -> Spans:
        """What the device of that number has, along the axes that are cut."""
        return {cut.axis: cut.spans[number] for cut in self.cuts}


def moved(node: UOp, device: str) -> UOp:
    """`node` where `device` can use it, on its home; what no device holds is everywhere."""
    return node if node.device is None else node.copy_to(Device.home(device))


def resized(shape: Shape, axis: int, size: int) -> Shape:
    """`shape` with another size of `axis`."""
    return (*shape[:axis], size, *shape[axis + 1:])


# --- from one layout to another -----------------------------------------------------------------------------


class Holders:
    """Which devices have which shard of a value, and who is to send it to whom."""

    def __init__(self, value: Shards, devices: Sequence[str]) -> None:
        self.value = value
        self.devices = devices
        self.of: dict[tuple[Span, ...], list[int]] = {}
        """by the spans of a shard, along the axes that are cut, the numbers of those that have it"""
        for number in range(len(value.devices)):
            spans = tuple(cut.spans[number] for cut in value.cuts)
            if all(start < end for start, end in spans):
                self.of.setdefault(spans, []).append(number)
        self.sent = [0] * len(value.devices)

    def nearest(self, spans: tuple[Span, ...], target: int) -> int:
        """Who sends a shard to the device of a number: it itself, one of its memory, or of those that have
        sent the least so far the next to it, so that all of a mesh send alike."""
        home = Device.home(self.devices[target])

        def cost(number: int) -> tuple[bool, bool, int, int]:
            name = self.value.devices[number]
            return name != self.devices[target], Device.home(name) != home, self.sent[number], \
                abs(number - target)

        found = min(self.of[spans], key=cost)
        if cost(found)[1]:
            self.sent[found] += prod([end - start for start, end in spans])
        return found


def resharded(value: Shards, cuts: Sequence[Cut], devices: tuple[str, ...]) -> Shards:
    """A value on several devices, on each of `devices` its part of `cuts`: only what it does not have is
    copied to it."""
    undone = [cut for cut in value.cuts if cut not in cuts]
    nodes, is_same_place = None, devices == value.devices
    if is_same_place and len(undone) == 1 and len(cuts) == len(value.cuts) - 1:
        nodes = _joined_by_library(value, undone[0])
    if nodes is None:
        holders = Holders(value, devices)
        own = [{cut.axis: cut.spans[target] for cut in cuts} for target in range(len(devices))]
        parts = [_parts_of(holders, target, spans) for target, spans in enumerate(own)]
        nodes = _exchanged_by_library(value, parts) if is_same_place else None
        if nodes is None:
            nodes = [_assembled(holders, target, spans, parts[target]) for target, spans in enumerate(own)]
    return Shards(devices, tuple(nodes), tuple(cuts))


class SentPart(NamedTuple):
    """What one device sends another of its shard."""

    giver: int
    box: tuple[Span, ...]
    """along every axis, which items they are of the whole value"""
    given: tuple[Span, ...]
    """and of the shard"""


def _parts_of(holders: Holders, target: int, own: Spans) -> list[SentPart]:
    """What one device is to have, of all who have some of it."""
    axes, shape = [cut.axis for cut in holders.value.cuts], holders.value.nodes[0].shape
    found = []
    for held in holders.of:
        have = dict(zip(axes, held, strict=True))
        common = {axis: intersection(own.get(axis, span), span) for axis, span in have.items()}
        if all(start < end for start, end in common.values()):
            box = tuple({**own, **common}.get(axis, (0, size)) for axis, size in enumerate(shape))
            begins = (have.get(axis, (0, 0))[0] for axis in range(len(shape)))
            found.append(SentPart(holders.nearest(held, target), box, tuple(
                (start - begin, end - begin) for (start, end), begin in zip(box, begins, strict=True))))
    return found


def _exchanged_by_library(value: Shards, parts: Sequence[Sequence[SentPart]]) -> list[UOp] | None:
    """What each device is to have, as one step in which all send their parts from where they lie to where
    they belong; None where the devices have no such library, or some get nothing or have all already."""
    if any(n.device is None or is_symbolic(n.shape) for n in value.nodes) or not has_collectives(
            value.devices) or not all(parts) or all(len(some) == 1 for some in parts):
        return None
    blocks = []
    for taker, some in enumerate(parts):
        first = [min(start for start, _ in spans) for spans in zip(*(part.box for part in some), strict=True)]
        for giver, box, given in some:
            sizes = tuple(end - start for start, end in given)
            if not all(sizes):
                return None
            blocks.append((giver, taker, tuple(start for start, _ in given),
                           tuple(start - least for (start, _), least in zip(box, first, strict=True)), sizes))
    shards = tuple(node.contiguous() for node in value.nodes)
    return [UOp.new(Ops.COLLECTIVE, shards[0].dtype, shards, (device, tuple(blocks), number))
            for number, device in enumerate(value.devices)]


def _assembled(holders: Holders, target: int, own: Spans, parts: Sequence[SentPart]) -> UOp:
    """What one device is to have, as one value of these parts."""
    value = holders.value
    axes = [cut.axis for cut in value.cuts]
    found = [(moved(_part(value.nodes[giver], given), holders.devices[target]), box)
             for giver, box, given in parts]
    if not found:
        shape = value.nodes[0].shape
        whole = {cut.axis: (0, max(end for _, end in cut.spans)) for cut in value.cuts}
        for axis, (start, end) in {**whole, **own}.items():
            shape = resized(shape, axis, end - start)
        return UOp.const(0, value.nodes[0].dtype, shape)
    return _joined_along(found, axes)


def _part(shard: UOp, given: Sequence[Span]) -> UOp:
    """The items of a shard that spans of its own say; of a value that is in memory then."""
    if shard.device is None or shard.shrink(given) is shard:
        return shard.shrink(given)
    return shard.contiguous().shrink(given)


def _joined_along(shards: Sequence[tuple[UOp, Sequence[Span]]], axes: Sequence[int]) -> UOp:
    """One value of shards that are divided along several axes."""
    if not axes:
        (node, _), = shards
        return node
    axis, *others = axes
    by_span: dict[Span, list[tuple[UOp, Sequence[Span]]]] = {}
    for node, box in shards:
        by_span.setdefault(box[axis], []).append((node, box))
    return joined([_joined_along(some, others) for _, some in sorted(by_span.items())], axis)


def _joined_by_library(value: Shards, cut: Cut) -> list[UOp] | None:
    """The value without one of its cuts, by the all-gather of a library; None where that has none, or shards
    are of unlike sizes. Along the first axis, what it puts behind each other is the value itself."""
    spans = sorted({span for span in cut.spans if span[0] < span[1]})
    sizes = {end - start for start, end in spans}
    even = len(sizes) == 1 and all(a[1] == b[0] for a, b in pairwise(spans))
    if not even or any(n.device is None or is_symbolic(n.shape) or not n.numel for n in value.nodes):
        return None
    groups = groups_of_partial(value, (cut.axis,))
    if any(set(partial) != set(group) or not has_collectives([value.devices[i] for i in partial])
           for partial, group in groups):
        return None
    found = list(value.nodes)
    for partial, _ in groups:
        shards = tuple(value.nodes[i].contiguous() for i in partial)
        for i in partial if len(shards) > 1 else ():
            shape, axis = shards[0].shape, cut.axis
            found[i] = UOp.new(Ops.COLLECTIVE, shards[0].dtype, shards, (value.devices[i], None))
            if axis:
                order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))
                stacked = found[i].reshape((len(shards), *shape)).permute(order)
                found[i] = stacked.reshape(resized(shape, axis, shape[axis] * len(shards)))
    return found


def has_collectives(devices: Sequence[str]) -> bool:
    """Whether devices, each a memory of its own, have a library of collectives in common."""
    return all(Device[device].has_collectives for device in devices) and len(set(devices)) == len(devices)


# --- partial results ----------------------------------------------------------------------------------------


def groups_of_partial(value: Shards, axes: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Of a value that is reduced along `axes`, by the numbers of devices: those whose partial results make a
    whole one together, and those that get it, these among them.

    Where several have the same shard, as on a mesh along whose other axes the value is not cut, each is in a
    group with others of its own.
    """
    columns: dict[tuple[Span, ...], dict[tuple[Span, ...], list[int]]] = {}
    """by the spans along other axes, and then by those along these: who has them; by () who has nothing"""
    for number in range(len(value.devices)):
        place = tuple(cut.spans[number] for cut in value.cuts if cut.axis not in axes)
        spans = tuple(cut.spans[number] for cut in value.cuts if cut.axis in axes)
        has_items = all(start < end for start, end in spans)
        columns.setdefault(place, {}).setdefault(spans if has_items else (), []).append(number)
    groups = []
    for column in columns.values():
        left = column.pop((), [])
        by_span = [numbers for _, numbers in sorted(column.items())]
        if not by_span:
            by_span, left = [left[:1]], left[1:]
        lines = min(map(len, by_span))
        left = [n for numbers in by_span for n in numbers[lines:]] + left
        for line in range(lines):
            partial = [numbers[line] for numbers in by_span]
            groups.append((partial, sorted([*partial, *left[line::lines]])))
    return groups


def all_reduce(op: Ops, partial: Sequence[UOp], devices: Sequence[str]) -> list[UOp]:
    """`partial` results, each on a device, combined on every device; in the same order, so that all have the
    same bits."""
    homes = tuple(dict.fromkeys(map(Device.home, devices)))
    in_memory: dict[Placement | None, list[UOp]] = {}
    for node in partial:
        in_memory.setdefault(node.device, []).append(node)
    found = dict(zip(homes, _exchanged(op, [combined(op, p) for p in in_memory.values()], homes),
                     strict=True))
    return [found[Device.home(d)] for d in devices]


def _exchanged(op: Ops, partial: Sequence[UOp], homes: tuple[str, ...]) -> list[UOp]:
    """`partial` results, each in a memory of its own, combined in every one."""
    whole = partial[0]
    is_narrow = whole.dtype.is_float and whole.dtype.itemsize < dtypes.float32.itemsize
    has_order = op is Ops.MAX and whole.dtype.is_float  # which NaN wins, libraries leave open
    if len(homes) > 2 and len(partial) == len(homes) and has_collectives(homes) and not (
            is_narrow or has_order or whole.dtype.is_bool or is_symbolic(whole.shape)):
        sources = tuple(p.contiguous() for p in partial)
        return [UOp.new(Ops.COLLECTIVE, whole.dtype, sources, (home, op)) for home in homes]
    if len(homes) <= 2:
        return [combined(op, [moved(p, home) for p in partial]) for home in homes]
    if whole.numel * whole.dtype.itemsize < REDUCE_SCATTER_BYTES or is_symbolic(whole.shape):
        result = combined(op, [moved(p, homes[0]) for p in partial])
        return [moved(result, home) for home in homes]
    flat = [p.contiguous().reshape((whole.numel,)) for p in partial]
    spans = even_spans(whole.numel, len(homes))
    scattered = Shards(homes, tuple(combined(op, [moved(p.shrink((span,)), home) for p in flat])
                                    for home, span in zip(homes, spans, strict=True)), (Cut(0, spans),))
    return [n.reshape(whole.shape) for n in resharded(scattered, (), homes).nodes]


def combined(op: Ops, values: Sequence[UOp]) -> UOp:
    """`values` combined, rounded once: sums of narrow floats are made in float32."""
    dtype = values[0].dtype
    is_narrow = len(values) > 2 and dtype.is_float and dtype.itemsize < dtypes.float32.itemsize
    result, *others = [v.cast(dtypes.float32) for v in values] if is_narrow else values
    for other in others:
        result = result.alu(op, other)
    return result.cast(dtype) if is_narrow else result
