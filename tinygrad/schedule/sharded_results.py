"""Results on several devices: what to realise on each, and the memory that then holds the whole.

In: nodes to realise in whose graph some values are on several devices. Out: their shards (`partition.py`),
which is all that the cache of schedules and what follows see; afterwards, for each node, a view of a BUFFER
over the memory of its shards.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinygrad import observer
from tinygrad.device import Device
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sharding import Layout
from tinygrad.graph.uop import UOp
from tinygrad.graph.writes import pending_writes
from tinygrad.schedule.collectives import Shards
from tinygrad.schedule.copies import contiguous_part
from tinygrad.schedule.memory_views import IGNORED_ARGUMENT, in_own_memory, over_memory
from tinygrad.schedule.partition import Partition

_TRANSPARENT = Family.VIEW | IGNORED_ARGUMENT
"""What has no memory of its own, but that of its first source."""
_STORED = Family.ELEMENTWISE | {Ops.REDUCE, Ops.CONTIGUOUS, Ops.ASSIGN}
"""What has memory of its own, in order, once it is computed."""


class ShardedResults:
    """The shards of some nodes to realise, and what holds the nodes' values once those are computed."""

    def __init__(self, outputs: Sequence[UOp]) -> None:
        self.partition = Partition()
        self.outputs = list(outputs)
        self.stored: dict[UOp, tuple[UOp, ...]] = {}
        """for each node that gets memory, the nodes that compute its shards"""
        self.claimed: dict[UOp, tuple[UOp, ...]] = {}
        """for each of those nodes, all shards of the value that it is a shard of: no other may have one of
        them as its memory. (Equal values may have all: which tensor owns the memory, those find out.)"""
        written = {part for write in pending_writes(self.outputs) for part in write.src[0].base.storage.parts}
        for node in self.outputs:
            below = _memory_below(node)
            memory = below if below.op is Ops.BUFFER else below.realized_view
            # what shows memory that is written here is computed before that, into memory of its own
            is_overwritten = memory is not None and not written.isdisjoint(memory.base.storage.parts)
            self.store(node if is_overwritten else below)
        if (watcher := observer.active) is not None:
            watcher.derived(self.derived_from())
        final = self.partition.with_reduced_once(self.sinks)
        self.stored = {node: tuple(final[shard] for shard in shards) for node, shards in self.stored.items()}

    @property
    def sinks(self) -> list[UOp]:
        """What is to be computed, each on one device or none."""
        return list(dict.fromkeys(shard for shards in self.stored.values() for shard in shards))

    def derived_from(self) -> Iterator[tuple[UOp, UOp]]:
        """Each node with each of its shards."""
        for node, value in self.partition.done.items():
            yield from ((node, shard) for shard in (value.nodes if isinstance(value, Shards) else (value,)))
        for node, shards in self.stored.items():
            yield from ((node, shard) for shard in shards)

    def store(self, node: UOp) -> None:
        """Let the shards of a node be computed, unless it is in memory."""
        value = self.partition.value(node)
        if node.op is Ops.BUFFER or node.realized_view is not None or node in self.stored:
            return
        if isinstance(value, Shards):
            nodes = tuple(_in_memory(n, home) for n, home in
                          zip(value.nodes, map(Device.home, value.devices), strict=True))
            sent = {n.src[0] for n in nodes if n.op is Ops.COPY and contiguous_part(n.src[0]) is not None}
            # what one sends others whole it copies itself while that is on its way
            nodes = tuple(n.src[0].under(Ops.COPY, n.device) if n.op is Ops.CONTIGUOUS
                          and n.src[0] in sent and Device[n.device].has_collectives else n for n in nodes)
        else:
            new = value.op in _STORED and value.realized_view is None
            nodes = (value if new else in_own_memory(value),)
        written = node.op is not Ops.ASSIGN and any(n.op is Ops.ASSIGN for n in nodes)
        if written or any(self.claimed.get(n, nodes) != nodes for n in nodes):
            nodes = tuple(map(in_own_memory, nodes))
        self.stored[node] = nodes
        self.claimed.update(dict.fromkeys(nodes, nodes))

    def views(self, found: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
        """The views that hold the values of the nodes, given those of their shards."""
        views: dict[UOp, UOp] = {}
        made: dict[tuple[tuple[UOp, ...], Layout], UOp] = {}
        for node, shards in self.stored.items():
            value = self.partition.done[node]
            held = tuple(found.get(shard, shard.realized_view or shard) for shard in shards)
            if isinstance(value, Shards):
                layout = Layout(node.shape, value.cuts)
                if (held, layout) not in made:  # equal values have the same memory
                    made[held, layout] = UOp.sharded_buffer(value.devices, layout, held)
                views[node] = made[held, layout]
            else:
                views[node] = held[0]
        for node in self.outputs:
            if node not in views:
                views[node] = over_memory(node, views) or node
        return views


def layout_of(node: UOp) -> Layout:
    """How a value on several devices will lie there."""
    value = Partition().value(node)
    assert isinstance(value, Shards), node
    return Layout(node.shape, value.cuts)


def _memory_below(node: UOp) -> UOp:
    """The node whose memory `node` is to be a view of."""
    while node.op in _TRANSPARENT and node.realized_view is None:
        node = node.src[0]
    return node


def _in_memory(shard: UOp, device: str) -> UOp:
    """A node with the values of `shard` that gets memory of its own on `device`."""
    if shard.op in _STORED and shard.device == device:
        return shard
    if shard.device is None:
        return shard.copy_to(device)  # not of its copy in order, which several devices may have in memory
    return shard if shard.op in Family.TRANSFER else in_own_memory(shard)
