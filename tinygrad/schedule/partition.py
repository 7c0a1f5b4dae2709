"""The SPMD partition: values on several devices as shards on each of them.

In: nodes whose shapes and gradients are those of whole values, over memory on several devices. Out: for each
device the nodes that compute its shard. One rule an operation says how the shards of its sources become the
shards of its value (`PARTITION_RULES`); devices exchange what they need by COPY, and nothing after this pass,
neither scheduler nor code generator nor runtime, knows of values on several devices. The term is that of Xu
et al., "GSPMD: general and scalable parallelization for ML computation graphs" (2021).

Devices that are the same cores and memory (`Device.home`) exchange nothing: what they compute is on their
home, each shard by itself; what is whole on each of them is one node, and so computed and stored once.

What is exchanged: a reduce along the sharded axis becomes partial results that are all reduced
(`all_reduce`); operands that are sharded otherwise than what they meet are resharded (`reshard`), or gathered
where they were smallest. Everything else stays where it is.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinygrad.codegen.indexing import splat_value
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sharding import (
    Layout,
    Placement,
    Sharding,
    Span,
    even_spans,
    intersection,
    reshaped,
    strided,
)
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import Shape, UOp
from tinygrad.graph.writes import refuse_overwritten

REDUCE_SCATTER_BYTES = 1 << 16
"""From here on the partial results of more than two devices are reduce-scattered, each on its own device, so
that every device sends and receives about twice the size of the result; smaller ones are summed by the first,
in two copies for each of the others."""

DEEPEST = 200
"""Nodes below each other that `Partition.shard` goes into; Python's stack is good for more."""

is_sharded = Synthesized(
    lambda node: isinstance(node.device, tuple) or any(s.__dict__["_is_sharded"] for s in node.src),
    "_is_sharded")
"""Whether a value on several devices is below a node, or it is one."""


@dataclass(frozen=True)
class Shards:
    """A value on several devices: for each the node of its shard."""

    devices: tuple[str, ...]
    nodes: tuple[UOp, ...]
    """each on its device's home"""
    axis: int | None
    """the sharded axis; None: every device has the whole value"""
    spans: tuple[Span, ...] = ()
    """for each device which items along the axis it has"""

    def map(self, change: Callable[[UOp], UOp]) -> Shards:
        """The same sharding of what `change` makes of each shard."""
        return Shards(self.devices, tuple(map(change, self.nodes)), self.axis, self.spans)

    def is_sharded_as(self, other: Shards) -> bool:
        return self.axis == other.axis and self.spans == other.spans

    def sizes(self) -> list[int]:
        """How many items each device has along the axis."""
        return [end - start for start, end in self.spans]


Partitioned: TypeAlias = UOp | Shards
"""What a node becomes: a node of one device (or none), or the shards on several."""


# --- between devices ----------------------------------------------------------------------------------------


def moved(node: UOp, device: str) -> UOp:
    """`node` where `device` can use it, on its home; what no device holds is everywhere."""
    return node if node.device is None else node.copy_to(Device.home(device))


def resized(shape: Shape, axis: int, size: int) -> Shape:
    """`shape` with another size of `axis`."""
    return (*shape[:axis], size, *shape[axis + 1:])


def along(node: UOp, axis: int, span: Span) -> UOp:
    """The items of `axis` in `span`."""
    return node.shrink([span if i == axis else (0, n) for i, n in enumerate(node.shape)])


def joined(shards: Sequence[tuple[UOp, Span]], axis: int, span: Span) -> UOp:
    """One value of `shards`, which cover `span` of an axis, each with the items of its own span."""
    (result, first), *rest = sorted(shards, key=lambda shard: shard[1])
    whole = resized(result.shape, axis, span[1] - span[0])

    def placed(node: UOp, at: Span) -> UOp:
        return node.pad([(at[0] - span[0], span[1] - at[1]) if i == axis else (0, 0)
                         for i in range(len(whole))])

    result = placed(result, first)
    for node, at in rest:
        # chosen by position rather than added, which would lose the sign of zero
        tail = UOp.const(True, dtypes.bool, resized((1,) * len(whole), axis, span[1] - at[0]))
        result = placed(tail, (at[0], span[1])).expand(whole).where(placed(node, at), result)
    return result


def reshard(value: Shards, spans: Sequence[Span], devices: Sequence[str]) -> list[UOp]:
    """A sharded value, for each of `devices` with the items of its span: only what it does not have is
    copied to it."""
    assert value.axis is not None
    axis = value.axis
    results = []
    for device, own in zip(devices, spans, strict=True):
        found = []
        for node, span in zip(value.nodes, value.spans, strict=True):
            common = intersection(own, span)
            if common[0] < common[1]:
                shard = along(node.contiguous() if common != span else node, axis,
                             (common[0] - span[0], common[1] - span[0]))
                found.append((moved(shard, device), common))
        nothing = UOp.const(0, value.nodes[0].dtype, resized(value.nodes[0].shape, axis, 0))
        results.append(joined(found, axis, own) if found else nothing)
    return results


def all_to_all(value: Shards, axis: int, spans: Sequence[Span], devices: Sequence[str]) -> list[UOp]:
    """A value sharded along one axis, for each of `devices` with the items of its span of another: every
    device copies to each other one what only that will have."""
    assert value.axis is not None and value.axis != axis
    whole = (0, sum(value.sizes()))
    nodes = [n.contiguous() for n in value.nodes]
    return [joined([(moved(along(n, axis, own), device), span)
                    for n, span in zip(nodes, value.spans, strict=True) if span[0] < span[1]],
                   value.axis, whole)
            for device, own in zip(devices, spans, strict=True)]


def all_gather(value: Shards, devices: Sequence[str]) -> list[UOp]:
    """The whole value on each of `devices`."""
    if value.axis is not None:
        whole = (0, sum(value.sizes()))
        return reshard(value, [whole] * len(devices), devices)
    own = dict(zip(value.devices, value.nodes, strict=True))
    return [own[d] if d in own else moved(value.nodes[0], d) for d in devices]


def all_reduce(op: Ops, partial: Sequence[UOp], devices: tuple[str, ...]) -> Shards:
    """`partial` results, each on a device, combined on every device; in the same order, so that all have the
    same bits."""
    homes = tuple(dict.fromkeys(map(Device.home, devices)))
    in_memory: dict[Placement | None, list[UOp]] = {}
    for node in partial:
        in_memory.setdefault(node.device, []).append(node)
    found = dict(zip(homes, _exchanged(op, [_combined(op, p) for p in in_memory.values()], homes),
                     strict=True))
    return Shards(devices, tuple(found[Device.home(d)] for d in devices), None)


def _exchanged(op: Ops, partial: Sequence[UOp], homes: tuple[str, ...]) -> list[UOp]:
    """`partial` results, each in a memory of its own, combined in every one."""
    whole = partial[0]
    if len(homes) <= 2:
        return [_combined(op, [moved(p, home) for p in partial]) for home in homes]
    if whole.numel * whole.dtype.itemsize < REDUCE_SCATTER_BYTES or is_symbolic(whole.shape):
        result = _combined(op, [moved(p, homes[0]) for p in partial])
        return [moved(result, home) for home in homes]
    flat = [p.contiguous().reshape((whole.numel,)) for p in partial]
    spans = even_spans(whole.numel, len(homes))
    scattered = Shards(homes, tuple(_combined(op, [moved(p.shrink((span,)), home) for p in flat])
                                   for home, span in zip(homes, spans, strict=True)), 0, spans)
    return [n.reshape(whole.shape) for n in all_gather(scattered, homes)]


def _combined(op: Ops, values: Sequence[UOp]) -> UOp:
    """`values` combined, rounded once: sums of narrow floats are made in float32."""
    dtype = values[0].dtype
    is_narrow = len(values) > 2 and dtype.is_float and dtype.itemsize < dtypes.float32.itemsize
    result, *others = [v.cast(dtypes.float32) for v in values] if is_narrow else values
    for other in others:
        result = result.alu(op, other)
    return result.cast(dtype) if is_narrow else result


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
        self.scattered: dict[UOp, tuple[UOp, int, Span]] = {}
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
        seen = set().union(*(n.toposort(stop=_is_in_memory) for n in nodes))
        done = {span: along(whole, axis, at) for span, (whole, axis, at) in self.scattered.items()
                if _unreshaped(whole) in seen and span in seen}
        return {n: n.rebuild(None, lambda n: n if _is_in_memory(n) else None, done) for n in nodes}

    def is_end(self, node: UOp) -> bool:
        return node in self.done or not is_sharded.of(node) or _memory_of(node) is not None

    def made(self, node: UOp) -> Partitioned:
        """What a node becomes, whose sources are in `done`."""
        if not is_sharded.of(node):
            return node
        view = _memory_of(node)
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
        return Shards(devices, tuple(self.computed_on(value, Device.home(device)) for device in devices),
                      None)

    def computed_on(self, node: UOp, device: str) -> UOp:
        """A value that no device holds, with all that it stores on the way stored on `device`."""
        def in_memory(n: UOp) -> UOp | None:
            view = _memory_of(n)
            return None if view is None else moved(view, device)

        def over(n: UOp, src: tuple[UOp, ...]) -> UOp:
            return src[0].copy_to(device) if n.op is Ops.CONTIGUOUS else n.with_sources(src)

        return node.rebuild(over, in_memory, self.computed_by.setdefault(device, {}))

    def replicated(self, node: UOp, devices: tuple[str, ...]) -> Shards:
        """All of a node on every device. What is copied is what it shows or repeats, not the result."""
        value = self.shards(node, devices)
        if value.axis is None:
            return value
        if node.op in _GATHERED_BELOW and _memory_of(node) is None:
            return self.replicated(node.src[0], devices).map(lambda n: node.replace(src=(n,)))
        return Shards(devices, tuple(all_gather(value, devices)), None)

    def resharded(self, node: UOp, like: Shards) -> Shards:
        """What becomes of a node, sharded as `like`."""
        value = self.shards(node, like.devices)
        if value.is_sharded_as(like):
            return value
        if value.axis == like.axis:
            nodes = reshard(value, like.spans, like.devices)
        elif like.axis is None:
            nodes = list(self.replicated(node, like.devices).nodes)
        elif moves_least_whole(node, value):
            nodes = all_to_all(value, like.axis, like.spans, like.devices)
        else:
            whole = self.replicated(node, like.devices).nodes
            nodes = [self.shard(n, like.axis, span) for n, span in zip(whole, like.spans, strict=True)]
        return Shards(like.devices, tuple(nodes), like.axis, like.spans)

    def shard(self, node: UOp, axis: int, span: Span, depth: int = 0) -> UOp:
        """The items of `axis` in `span` of a node that a device has all of: computed for those alone, so
        that devices with shards of one size run the same kernels."""
        key = (node, axis, span)
        found = self.shards_of.get(key)
        if found is None:
            found = self.shards_of[key] = self._shard(node, axis, span, depth + 1)
        return found

    def all_reduced(self, op: Ops, partial: Sequence[UOp], devices: tuple[str, ...]) -> Shards:
        """`partial` results combined on every device that needs all of them; of what a device needs a span
        of, it gets that alone (`_shard`): a reduce-scatter."""
        result = all_reduce(op, partial, devices)
        for node, device in zip(result.nodes, devices, strict=True):
            self.partial[_unreshaped(node)] = op, device, tuple(partial)
        return result

    def _shard(self, node: UOp, axis: int, span: Span, depth: int) -> UOp:
        size = span[1] - span[0]
        if node.shape[axis] == size:
            return node
        if _unreshaped(node) in self.partial and _memory_of(node) is None and not is_symbolic(node.shape):
            op, device, partial = self.partial[_unreshaped(node)]
            result = _combined(op, [moved(along(p.contiguous().reshape(node.shape), axis, span), device)
                                   for p in partial])
            self.scattered[result] = node, axis, span
            return result
        if _memory_of(node) is not None or is_symbolic(node.shape) or depth > DEEPEST or not node.src:
            return along(node, axis, span)
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
            layout = reshaped(axis, node.shape, source.shape, [span])
            if layout is not None and layout.axis is not None:
                below = self.shard(source, layout.axis, layout.spans[0], depth)
                return below.reshape(resized(node.shape, axis, size))
        return along(node, axis, span)


def moves_least_whole(node: UOp, value: Shards) -> bool:
    """Whether a sharded value is best cut along another axis by moving what each device lacks of it, once,
    rather than by gathering on every device what movement repeats in it."""
    return value.axis is not None and not is_symbolic(node.shape) and node.numel > 0 \
        and node.numel <= _unrepeated(node).numel * len(value.devices)


def _memory_of(node: UOp) -> UOp | None:
    """The view of memory that a computed value is in; constants are better written into kernels."""
    view = node.realized_view  # asked first: finding a splat takes a walk down a chain of movement
    return view if view is not None and splat_value(node) is None else None


def _unreshaped(node: UOp) -> UOp:
    return node.src[0] if node.op is Ops.RESHAPE else node


def _is_in_memory(node: UOp) -> bool:
    return _memory_of(node) is not None


_GATHERED_BELOW = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.PAD, Ops.DETACH, Ops.CAST})
"""What shows no less than its source has."""


# --- one rule an operation ----------------------------------------------------------------------------------


def _buffer(p: Partition, node: UOp) -> Partitioned:
    refuse_overwritten(node)
    layout: Layout = node.arg.layout
    return Shards(node.device, node.shards, layout.axis, layout.spans)


def _copy(p: Partition, node: UOp) -> Partitioned:
    source, target = node.src[0], node.arg
    value = p.done[source]
    if isinstance(target, str):
        if isinstance(value, UOp):
            return node.with_sources((value,))
        return all_gather(p.replicated(source, value.devices), (target,))[0].copy_to(target)
    assert isinstance(target, Sharding)
    spans = () if target.axis is None else even_spans(source.shape[target.axis], len(target.devices))
    if isinstance(value, Shards):
        if value.devices == target.devices:
            return p.resharded(source, Shards(value.devices, (), target.axis, spans))
        if value.axis is not None and value.axis == target.axis:
            return Shards(target.devices, tuple(reshard(value, spans, target.devices)), target.axis, spans)
        if target.axis is not None and moves_least_whole(source, value):
            return Shards(target.devices, tuple(all_to_all(value, target.axis, spans, target.devices)),
                          target.axis, spans)
        nodes = all_gather(p.replicated(source, value.devices), target.devices)
    elif value.device is None:
        nodes = list(p.shards(source, target.devices).nodes)
    else:
        nodes = [value] * len(target.devices)
    if target.axis is not None:
        nodes = [p.shard(n, target.axis, span) for n, span in zip(nodes, spans, strict=True)]
    nodes = [moved(n, d) for n, d in zip(nodes, target.devices, strict=True)]
    return Shards(target.devices, tuple(nodes), target.axis, spans)


def _elementwise(p: Partition, node: UOp) -> Partitioned:
    devices = node.device
    like = _common_layout(p, node)
    sources = [p.resharded(s, like).nodes for s in node.src]
    nodes = tuple(node.with_sources(src) for src in zip(*sources, strict=True))
    return Shards(devices, nodes, like.axis, like.spans)


def _common_layout(p: Partition, node: UOp) -> Shards:
    """How the sources of `node` are sharded; the one that was largest before it was repeated, where they
    differ."""
    cut = [(s, v) for s in node.src for v in [p.done[s]] if isinstance(v, Shards) and v.axis is not None]
    if not cut:
        return p.shards(node.src[0], node.device)
    if all(value.is_sharded_as(cut[0][1]) for _, value in cut):
        return cut[0][1]
    return max(cut, key=lambda pair: _unrepeated(pair[0]).numel)[1]


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

    if value.axis not in axes:
        return value.map(reduced)
    partial = [reduced(n) for n, size in zip(value.nodes, value.sizes(), strict=True) if size]
    if len({n.device for n in partial}) <= 1:
        return all_reduce(op, partial or [reduced(value.nodes[0])], value.devices)
    return p.all_reduced(op, partial, value.devices)


def _reshape(p: Partition, node: UOp) -> Partitioned:
    value = p.shards(node.src[0], node.device)
    if value.axis is None:
        return value.map(lambda n: n.reshape(node.arg))
    layout = reshaped(value.axis, node.src[0].shape, node.arg, value.spans)
    if layout is None or layout.axis is None:
        return p.replicated(node.src[0], value.devices).map(lambda n: n.reshape(node.arg))
    axis = layout.axis
    nodes = tuple(n.reshape(resized(node.arg, axis, end - start))
                  for n, (start, end) in zip(value.nodes, layout.spans, strict=True))
    return Shards(value.devices, nodes, axis, layout.spans)


def _permute(p: Partition, node: UOp) -> Partitioned:
    value = p.shards(node.src[0], node.device)
    axis = None if value.axis is None else node.arg.index(value.axis)
    return Shards(value.devices, tuple(n.permute(node.arg) for n in value.nodes), axis, value.spans)


def _expand(p: Partition, node: UOp) -> Partitioned:
    value = p.shards(node.src[0], node.device)
    axis = value.axis
    if axis is not None and node.arg[axis] != node.src[0].shape[axis]:
        value, axis = p.replicated(node.src[0], value.devices), None  # the one item that is left, repeated
    if axis is None:
        return value.map(lambda n: n.expand(node.arg))
    return value.map(lambda n: n.expand(resized(node.arg, axis, n.shape[axis])))


def _pad(p: Partition, node: UOp) -> Partitioned:
    """Zeros at an end of the sharded axis go to the device that has that end."""
    value = p.shards(node.src[0], node.device)
    axis = value.axis
    if axis is None or node.arg[axis] == (0, 0):
        return value.map(lambda n: n.pad(node.arg))
    before, after = node.arg[axis]
    if is_symbolic((before, after)):
        return p.replicated(node.src[0], value.devices).map(lambda n: n.pad(node.arg))
    filled = [i for i, (start, end) in enumerate(value.spans) if start < end] or [0]
    first, last = min(filled, key=lambda i: value.spans[i]), max(filled, key=lambda i: value.spans[i])
    nodes, spans = [], []
    for i, (n, (start, end)) in enumerate(zip(value.nodes, value.spans, strict=True)):
        here = (before if i == first else 0, after if i == last else 0)
        nodes.append(n.pad([here if a == axis else pads for a, pads in enumerate(node.arg)]))
        spans.append((start + before - here[0], end + before + here[1]))
    return Shards(value.devices, tuple(nodes), axis, tuple(spans))


def _shrink(p: Partition, node: UOp) -> Partitioned:
    """Each device keeps what it has of the items that stay."""
    value = p.shards(node.src[0], node.device)
    axis = value.axis
    if axis is None:
        return value.map(lambda n: n.shrink(node.arg))
    kept: Span = node.arg[axis]
    if is_symbolic(kept):
        return p.replicated(node.src[0], value.devices).map(lambda n: n.shrink(node.arg))
    nodes, spans = [], []
    for n, span in zip(value.nodes, value.spans, strict=True):
        common = intersection(span, kept)
        here = (common[0] - span[0], common[1] - span[0]) if common[0] < common[1] else (0, 0)
        nodes.append(n.shrink([here if a == axis else b for a, b in enumerate(node.arg)]))
        begins = min(max(common[0] - kept[0], 0), kept[1] - kept[0])
        spans.append((begins, begins + here[1] - here[0]))
    return Shards(value.devices, tuple(nodes), axis, tuple(spans))


def _stride(p: Partition, node: UOp) -> Partitioned:
    value = p.shards(node.src[0], node.device)
    axis = value.axis
    if axis is None or node.arg[axis] == 1:
        return value.map(lambda n: n.stride(node.arg))
    size, step = node.src[0].shape[axis], node.arg[axis]
    nodes, spans = [], []
    for n, span in zip(value.nodes, value.spans, strict=True):
        flipped = n if step > 0 else n.stride([-1 if a == axis else 1 for a in range(len(n.shape))])
        at = span if step > 0 else (size - span[1], size - span[0])
        found, (first, end) = strided(at, size, abs(step))
        some = along(flipped, axis, (first, end) if found[0] < found[1] else (0, 0))
        nodes.append(some.stride([abs(step) if a == axis else s for a, s in enumerate(node.arg)]))
        spans.append(found)
    return Shards(value.devices, tuple(nodes), axis, tuple(spans))


def _contiguous(p: Partition, node: UOp) -> Partitioned:
    """Each device stores its own, of a constant too."""
    value = p.shards(node.src[0], node.device)
    nodes = tuple(n.copy_to(Device.home(device)) if n.device is None else UOp.new(node.op, node.dtype, (n,))
                  for n, device in zip(value.nodes, value.devices, strict=True))
    return Shards(value.devices, nodes, value.axis, value.spans)


def _transparent(p: Partition, node: UOp) -> Partitioned:
    return p.shards(node.src[0], node.device)


def _assign(p: Partition, node: UOp) -> Partitioned:
    target = p.shards(node.src[0], node.device)
    if node.src[0].op is Ops.RESHAPE and any(_is_no_memory(n) for n in target.nodes):
        # a reshape that devices cannot do for themselves; what is written is the same without it
        view = node.src[0].src[0]
        return p.value(view.assign(node.src[1].reshape(view.shape)).reshape(node.shape))
    if any(_is_no_memory(n) for n in target.nodes):
        raise ValueError(f"cannot write into a view of shape {node.shape} of memory that is cut along an "
                         "axis which the view takes apart or joins across devices; write into the tensor "
                         "itself, or gather it first with .to(device)")
    value = p.resharded(node.src[1], target)
    nodes = tuple(t.assign(v) for t, v in zip(target.nodes, value.nodes, strict=True))
    return Shards(target.devices, nodes, target.axis, target.spans)


def _is_no_memory(shard: UOp) -> bool:
    return shard.viewed.op not in (Ops.BUFFER, Ops.ASSIGN)


PartitionRule: TypeAlias = Callable[[Partition, UOp], Partitioned]

PARTITION_RULES: Mapping[Ops, PartitionRule] = {
    Ops.BUFFER: _buffer,
    Ops.COPY: _copy,
    **dict.fromkeys(Family.ELEMENTWISE | {Ops.LIVE_OUT}, _elementwise),
    Ops.REDUCE: _reduce,
    Ops.RESHAPE: _reshape,
    Ops.PERMUTE: _permute,
    Ops.EXPAND: _expand,
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.STRIDE: _stride,
    Ops.CONTIGUOUS: _contiguous,
    Ops.DETACH: _transparent,
    Ops.CUSTOM_GRADIENT: _transparent,
    Ops.ASSIGN: _assign,
}
