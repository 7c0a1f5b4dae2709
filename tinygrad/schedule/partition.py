"""The SPMD partition: values on several devices as shards on each of them.

In: nodes whose shapes and gradients are those of whole values, over memory on several devices. Out: for each
device the nodes that compute its shard. One rule an operation says how the shards of its sources become the
shards of its value (`PARTITION_RULES`); devices exchange what they need by COPY, and nothing after this pass,
neither scheduler nor code generator nor runtime, knows of values on several devices. The term is that of Xu
et al., "GSPMD: general and scalable parallelization for ML computation graphs" (2021).

Devices that are the same cores and memory (`Device.home`) exchange nothing: what they compute is on their
home, each shard by itself; what is whole on each of them is one node, and so computed and stored once.

What is exchanged (`collectives.py`): a reduce along a cut axis becomes partial results that are all reduced;
operands that are cut otherwise than what they meet are resharded, or gathered where they were smallest.
Everything else stays where it is.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.gradient import transpose_movement
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sharding import Cut, Sharding, Span, are_apart, padded, reshaped, shrunk, strided
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import UOp
from tinygrad.graph.writes import refuse_overwritten
from tinygrad.schedule.collectives import (
    Shards,
    all_reduce,
    combined,
    groups_of_partial,
    moved,
    resharded,
    resized,
)
from tinygrad.schedule.copies import stored_on
from tinygrad.schedule.memory_views import memory_of

DEEPEST = 200
"""Nodes below each other that `Partition.shard` goes into; Python's stack is good for more."""


@Synthesized
def is_sharded(node: UOp) -> bool:
    """Whether a value on several devices is below a node, or it is one."""
    return isinstance(node.device, tuple) or any(s.__dict__["is_sharded"] for s in node.src)


Partitioned: TypeAlias = UOp | Shards
"""What a node becomes: a node of one device (or none), or the shards on several."""


# --- the pass -----------------------------------------------------------------------------------------------


class Partition:
    """What nodes become, each computed once."""

    def __init__(self) -> None:
        self.done: dict[UOp, Partitioned] = {}
        self.computed_by: dict[str, dict[UOp, UOp]] = {}
        """by device, what becomes there of nodes that no device holds"""
        self.shards_of: dict[tuple[UOp, int, Span], UOp] = {}
        self.partial: dict[UOp, tuple[Ops, str, tuple[UOp, ...]]] = {}
        """for each result of an all-reduce between memories: how, where and of which partial results it is
        made"""
        self.scattered: dict[UOp, tuple[UOp, tuple[tuple[int, Span], ...]]] = {}
        """for each span that a reduce-scatter gives, of which of those results, where"""

    def value(self, root: UOp) -> Partitioned:
        """The shards of `root`; itself, over others, where it is on one device or none."""
        for node in root.toposort(stop=self.is_end):
            if node not in self.done:
                self.done[node] = self.made(node)
        return self.done[root]

    def with_reduced_once(self, nodes: Sequence[UOp]) -> dict[UOp, UOp]:
        """`nodes` by what they were before: what is reduced as a whole for one of them is not
        reduce-scattered for another."""
        if not self.scattered:
            return dict(zip(nodes, nodes, strict=True))
        seen = set().union(*(n.toposort(stop=lambda n: memory_of(n) is not None) for n in nodes))
        done = {span: _spans_of(whole, at) for span, (whole, at) in self.scattered.items()
                if whole.unreshaped in seen and span in seen}
        return {n: n.rebuild(None, lambda n: memory_of(n) and n, done) for n in nodes}

    def is_end(self, node: UOp) -> bool:
        return node in self.done or not is_sharded.of(node) or memory_of(node) is not None

    def made(self, node: UOp) -> Partitioned:
        """What a node becomes, whose sources are in `done`."""
        if not is_sharded.of(node):
            return node
        view = memory_of(node)
        if view is not None:
            return self.value(view) if is_sharded.of(view) else view
        if isinstance(node.device, tuple) or node.op is Ops.COPY:
            return PARTITION_RULES[node.op](self, node)
        return node.with_sources(tuple(self.node(s) for s in node.src))

    def node(self, node: UOp) -> UOp:
        """What becomes of a node that is on one device or none."""
        value = self.done[node]
        assert isinstance(value, UOp), node
        return value

    def shards(self, node: UOp, devices: tuple[str, ...]) -> Shards:
        """What becomes of a source of a value on `devices`; what no device holds, each makes for itself."""
        value = self.done[node]
        if isinstance(value, Shards):
            return value
        return Shards(devices, tuple(self.computed_on(value, Device.home(device)) for device in devices))

    def computed_on(self, node: UOp, device: str) -> UOp:
        """A value that no device holds, with all that it stores on the way stored on `device`; what several
        have in memory for somebody else is made anew."""
        def in_memory(n: UOp) -> UOp | None:
            view = memory_of(n)
            return None if view is None or is_sharded.of(view) else moved(view, device)

        return stored_on(node, device, in_memory, self.computed_by.setdefault(device, {}))

    def gathered(self, node: UOp, devices: tuple[str, ...], kept: Sequence[Cut] = (),
                 targets: tuple[str, ...] = ()) -> Shards:
        """A node, whose shards are on `devices`, with no more than these of its cuts, there or on `targets`.
        What is copied is what it shows or repeats, not the result."""
        value = self.shards(node, devices)
        if not targets and all(cut in kept for cut in value.cuts):
            return value
        if value.cuts and node.op in _GATHERED_BELOW and memory_of(node) is None:
            source = node.src[0]
            below = [cut for cut in self.shards(source, devices).cuts
                     if (moved := _moved_cut(node, cut)) is not None and moved.cut in kept]
            return _movement(self.gathered(source, devices, below, targets), node)
        return resharded(value, [cut for cut in value.cuts if cut in kept], targets or devices)

    def cut_as(self, node: UOp, devices: tuple[str, ...], cuts: tuple[Cut, ...]) -> Shards:
        """What becomes of a node, cut as `cuts` say."""
        value = self.shards(node, devices)
        if all(cut in value.cuts for cut in cuts):
            return self.gathered(node, devices, cuts)
        same_axes = [cut.axis for cut in value.cuts] == [cut.axis for cut in cuts]
        if not has_all(value.cuts, cuts) and (same_axes or moves_least_whole(node, value)):
            return resharded(value, cuts, devices)
        return self.divided(self.gathered(node, devices, [c for c in value.cuts if has_all([c], cuts)]), cuts)

    def divided(self, value: Shards, cuts: Sequence[Cut]) -> Shards:
        """A value of which each device has what it needs to be cut as `cuts` say, cut so."""
        nodes = list(value.nodes)
        for number in range(len(nodes)):
            have = value.spans(number)
            for cut in cuts:
                first, (start, end) = have.get(cut.axis, (0, 0))[0], cut.spans[number]
                own = (start - first, end - first) if start < end else (0, 0)
                nodes[number] = self.shard(nodes[number], cut.axis, own)
        return Shards(value.devices, tuple(nodes), tuple(cuts))

    def shard(self, node: UOp, axis: int, span: Span, depth: int = 0) -> UOp:
        """The items of `axis` in `span` of a node that a device has all of: computed for those alone, so
        that devices with shards of one size run the same kernels."""
        key = (node, axis, span)
        found = self.shards_of.get(key)
        if found is None:
            found = self.shards_of[key] = self._shard(node, axis, span, depth + 1)
        return found

    def all_reduced(self, op: Ops, partial: Sequence[UOp], devices: Sequence[str]) -> list[UOp]:
        """`partial` results combined on every device that needs all of them; of what a device needs a span
        of, it gets that alone (`_shard`): a reduce-scatter."""
        results = all_reduce(op, partial, devices)
        if len({node.device for node in partial}) > 1:
            for node, device in zip(results, devices, strict=True):
                self.partial[node.unreshaped] = op, device, tuple(partial)
        return results

    def _shard(self, node: UOp, axis: int, span: Span, depth: int) -> UOp:
        size = span[1] - span[0]
        if node.shape[axis] == size:
            return node
        whole, at = self.scattered.get(node, (node, ()))
        if whole.unreshaped in self.partial and memory_of(node) is None and not is_symbolic(node.shape):
            op, device, partial = self.partial[whole.unreshaped]
            at = (*at, (axis, span))
            result = combined(op, [moved(_spans_of(p.contiguous().reshape(whole.shape), at), device)
                                   for p in partial])
            self.scattered[result] = whole, at
            return result
        if memory_of(node) is not None or is_symbolic(node.shape) or depth > DEEPEST or not node.src:
            return node.shrink_axis(axis, span)
        source = node.src[0]
        if node.op in Family.ELEMENTWISE or node.op in (Ops.DETACH, Ops.COPY, Ops.LIVE_OUT):
            return node.with_sources(tuple(self.shard(s, axis, span, depth) for s in node.src))
        if node.op is Ops.CUSTOM_GRADIENT:
            return self.shard(source, axis, span, depth)
        if node.op is Ops.EXPAND:
            below = source if source.shape[axis] == 1 else self.shard(source, axis, span, depth)
            return below.expand(resized(node.shape, axis, size))
        if node.op is Ops.PERMUTE:
            return self.shard(source, node.arg[axis], span, depth).permute(node.arg)
        if node.op is Ops.RESHAPE:
            cut = reshaped(Cut(axis, (span,)), node.shape, source.shape)
            if cut is not None:
                below = self.shard(source, cut.axis, cut.spans[0], depth)
                return below.reshape(resized(node.shape, axis, size))
        return node.shrink_axis(axis, span)


def moves_least_whole(node: UOp, value: Shards) -> bool:
    """Whether a sharded value is best cut along another axis by moving what each device lacks of it, once,
    rather than by gathering on every device what movement repeats in it."""
    return len(value.cuts) > 0 and not is_symbolic(node.shape) and node.numel > 0 \
        and node.numel <= _unrepeated(node).numel * len(value.devices)


def has_all(have: Sequence[Cut], cuts: Sequence[Cut]) -> bool:
    """Whether of a value that is cut one way each device has what it is to have cut another."""
    own = {cut.axis: cut.spans for cut in cuts}
    return all(cut.axis in own and all(start >= end or (s <= start and end <= e) for (s, e), (start, end) in
                                       zip(cut.spans, own[cut.axis], strict=True)) for cut in have)


def _spans_of(node: UOp, spans: Sequence[tuple[int, Span]]) -> UOp:
    for axis, span in spans:
        node = node.shrink_axis(axis, span)
    return node


_GATHERED_BELOW = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.PAD, Ops.DETACH, Ops.CAST})
"""What shows no less than its source has."""


# --- one rule an operation ----------------------------------------------------------------------------------


def _buffer(p: Partition, node: UOp) -> Partitioned:
    refuse_overwritten(node)
    return Shards(node.device, node.shards, node.arg.layout.cuts)


def _copy(p: Partition, node: UOp) -> Partitioned:
    source, target = node.src[0], node.arg
    value = p.done[source]
    if isinstance(target, str):
        if isinstance(value, UOp):
            return node.with_sources((value,))
        return p.gathered(source, value.devices, targets=(target,)).nodes[0].copy_to(target)
    assert isinstance(target, Sharding)
    devices = target.devices
    if isinstance(value, Shards) and value.devices == devices:
        return p.cut_as(source, devices, target.of(source.shape, value.cuts))
    cuts = target.of(source.shape)
    if isinstance(value, Shards):
        if not value.cuts or moves_least_whole(source, value):
            return resharded(value, cuts, devices)
        whole = p.gathered(source, value.devices, targets=devices)
    elif value.device is None:
        whole = p.shards(source, devices)
    else:
        whole = Shards(devices, (value,) * len(devices))
    nodes = p.divided(whole, cuts).nodes
    return Shards(devices, tuple(map(moved, nodes, devices)), cuts)


def _elementwise(p: Partition, node: UOp) -> Partitioned:
    devices = node.device
    cuts = _common_cuts(p, node)
    sources = [p.cut_as(s, devices, cuts).nodes for s in node.src]
    return Shards(devices, tuple(node.with_sources(src) for src in zip(*sources, strict=True)), cuts)


def _common_cuts(p: Partition, node: UOp) -> tuple[Cut, ...]:
    """How the sources of `node` are to be cut: as the one that was largest before it was repeated, and, where
    nothing has to be copied for it, as others are too."""
    cut = [(s, v.cuts) for s in node.src for v in [p.done[s]] if isinstance(v, Shards) and v.cuts]
    if not cut:
        return ()
    if all(cuts == cut[0][1] for _, cuts in cut):
        return cut[0][1]
    first, *others = sorted(cut, key=lambda pair: -_unrepeated(pair[0]).numel)
    common = {c.axis: c for c in first[1]}
    for _, cuts in others:
        for c in cuts:
            both = {**common, c.axis: c}
            finer = c.axis not in common or has_all([common[c.axis]], [c])
            if finer and are_apart(list(both.values())):
                common = both
    return tuple(common[axis] for axis in sorted(common))


def _unrepeated(node: UOp) -> UOp:
    """What movement repeats."""
    while node.op in _GATHERED_BELOW:
        node = node.src[0]
    return node


def _reduce(p: Partition, node: UOp) -> Partitioned:
    op, axes = node.arg
    value = p.shards(node.src[0], node.device)

    def reduced(shard: UOp) -> UOp:
        inner = tuple(a for a in axes if shard.shape[a] != 1)
        return UOp.new(Ops.REDUCE, node.dtype, (shard,), (op, inner)) if inner else shard

    if not any(cut.axis in axes for cut in value.cuts):
        return value.map(reduced)
    nodes = list(value.nodes)
    for partial, group in groups_of_partial(value, axes):
        results = p.all_reduced(op, [reduced(value.nodes[i]) for i in partial],
                                [value.devices[i] for i in group])
        for number, result in zip(group, results, strict=True):
            nodes[number] = result
    return Shards(value.devices, tuple(nodes), tuple(cut for cut in value.cuts if cut.axis not in axes))


class MovedCut(NamedTuple):
    """What movement makes of a cut of its source."""

    cut: Cut
    own: Sequence[Any] = ()
    """for each device, the argument of the movement along that axis by which it makes its part"""


def _moved_cut(node: UOp, cut: Cut) -> MovedCut | None:
    """What movement makes of a cut of its source; None where it cannot stay."""
    (axis, spans), shape = cut, node.src[0].shape
    if node.op in _CHANGED_SPANS:
        bounds = node.arg[axis]
        if node.op is not Ops.STRIDE and is_symbolic(bounds):
            return None
        own, spans = _CHANGED_SPANS[node.op](spans, bounds, shape[axis])
        return MovedCut(Cut(axis, spans), own)
    if node.op is Ops.PERMUTE:
        return MovedCut(Cut(node.arg.index(axis), spans))
    if node.op not in (Ops.RESHAPE, Ops.EXPAND):
        return MovedCut(cut)
    is_kept = node.op is Ops.EXPAND and node.arg[axis] == shape[axis]  # else it is one item, repeated
    to = reshaped(cut, shape, node.arg) if node.op is Ops.RESHAPE else cut if is_kept else None
    return None if to is None else MovedCut(to, [end - start for start, end in to.spans])


_CHANGED_SPANS: Mapping[Ops, Callable[[Sequence[Span], Any, int], tuple[list[Span], tuple[Span, ...]]]] = {
    Ops.PAD: lambda spans, pads, _: padded(spans, pads),
    Ops.SHRINK: lambda spans, kept, _: shrunk(spans, kept),
    Ops.STRIDE: lambda spans, step, size: strided(spans, size, step),
}
"""For each movement that changes how many items an axis has, of the spans of a cut, its argument along that
axis and the items there: that of each device, and the spans then."""


def _movement(value: Shards, node: UOp) -> Shards:
    """Each device its part of what movement makes of a value all of whose cuts stay."""
    moved = [found for cut in value.cuts if (found := _moved_cut(node, cut)) is not None]
    assert len(moved) == len(value.cuts), node
    nodes = tuple(_moved_part(node, shard, {m.cut.axis: m.own[number] for m in moved if m.own})
                  for number, shard in enumerate(value.nodes))
    return Shards(value.devices, nodes, tuple(sorted(m.cut for m in moved)))


def _moved_part(node: UOp, shard: UOp, own: Mapping[int, Any]) -> UOp:
    """What movement makes of the part of a device, whose arguments along some axes are its `own`."""
    if node.op not in Family.MOVEMENT:
        return node.replace(src=(shard,))
    if node.op is Ops.STRIDE:  # its own are where the first and the last item are, from the end it begins at
        turned = shard.stride([-1 if axis in own and step < 0 else 1 for axis, step in enumerate(node.arg)])
        part = turned.shrink([own.get(axis, (0, size)) for axis, size in enumerate(turned.shape)])
        return part.stride([abs(step) if axis in own else step for axis, step in enumerate(node.arg)])
    return shard.move(node.op, [own.get(axis, argument) for axis, argument in enumerate(node.arg)])


def _move(p: Partition, node: UOp) -> Partitioned:
    """Each device keeps what it has; what cannot stay cut is gathered."""
    source = node.src[0]
    kept: dict[int, Cut] = {}
    for cut in p.shards(source, node.device).cuts:
        to = _moved_cut(node, cut)
        if to is not None:
            kept.setdefault(to.cut.axis, cut)
    return _movement(p.gathered(source, node.device, list(kept.values())), node)


def _contiguous(p: Partition, node: UOp) -> Partitioned:
    """Each device stores its own, of a constant too; what it gets of others is stored as it comes."""
    value = p.shards(node.src[0], node.device)
    nodes = tuple(n.copy_to(Device.home(device)) if n.device is None
                  else n if n.op is Ops.COLLECTIVE else n.under(node.op, node.arg)
                  for n, device in zip(value.nodes, value.devices, strict=True))
    return Shards(value.devices, nodes, value.cuts)


def _transparent(p: Partition, node: UOp) -> Partitioned:
    return p.shards(node.src[0], node.device)


def _assign(p: Partition, node: UOp) -> Partitioned:
    target = p.shards(node.src[0], node.device)
    if node.src[0].op is Ops.RESHAPE and any(_is_no_memory(n) for n in target.nodes):
        # a reshape that devices cannot do for themselves; what is written is the same without it
        view = node.src[0].src[0]
        return p.value(view.assign(node.src[1].reshape(view.shape)).reshape(node.shape))
    if any(_is_no_memory(n) for n in target.nodes):
        # a view that takes apart, or joins, what devices have: all is written, with this in its place
        view, base = node.src[0], node.src[0].viewed
        everywhere = UOp.const(True, dtypes.bool, view.shape)
        here, placed = (transpose_movement(view, x, base) for x in (everywhere, node.src[1]))
        return p.value(view.substitute({base: base.assign(here.where(placed, base))}))
    value = p.cut_as(node.src[1], target.devices, target.cuts)
    nodes = tuple(t.assign(v) for t, v in zip(target.nodes, value.nodes, strict=True))
    return Shards(target.devices, nodes, target.cuts)


def _is_no_memory(shard: UOp) -> bool:
    return shard.viewed.op not in (Ops.BUFFER, Ops.ASSIGN)


PartitionRule: TypeAlias = Callable[[Partition, UOp], Partitioned]

PARTITION_RULES: Mapping[Ops, PartitionRule] = {
    Ops.BUFFER: _buffer,
    Ops.COPY: _copy,
    **dict.fromkeys(Family.ELEMENTWISE | {Ops.LIVE_OUT}, _elementwise),
    Ops.REDUCE: _reduce,
    **dict.fromkeys(Family.MOVEMENT, _move),
    Ops.CONTIGUOUS: _contiguous,
    Ops.DETACH: _transparent,
    Ops.CUSTOM_GRADIENT: _transparent,
    Ops.ASSIGN: _assign,
}
