"""Summaries of nodes: all that fusion decisions depend on, and no node.

In: the nodes of a graph, sources first. Out: for each its `NodeSummary`, the same object for nodes that are
alike, as those of equal layers are. What is decided from summaries alone (`fusion_group.py`) is so decided
once for all of them.

A summary says nothing of a node's neighbours but what decisions look at: its view map, and for a sum of
products, those of the operands. Two numbers differ between layers that are alike, and stand apart: how many
reduces are below a node (`depth`), and what computing it again costs (`cost.Work`).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from tinygrad.codegen.indexing import Access, reduce_depth
from tinygrad.frozen import frozen
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import largest
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.cost import (
    compared_sums,
    has_closed_form,
    has_statistics,
    is_segment_sum,
    reads_memory,
    runs_loop,
)
from tinygrad.schedule.fused_attention import AttentionRole, fused_attentions
from tinygrad.schedule.products import is_block_product, is_contraction, product_of, sums_outer_products
from tinygrad.shape.shapetracker import ShapeTracker


@dataclass(frozen=True, eq=False, slots=True)
class ViewMap:
    """The view map of a value: which items it shows of what is below its movement ops, which has `shape`."""

    tracker: ShapeTracker
    shape: tuple[int, ...]
    is_constant: bool
    """whether what is below is a CONST"""
    found: dict[Access, Access] = field(default_factory=dict)

    def access_at(self, access: Access) -> Access:
        """The item that shows at `access`."""
        if access not in self.found:
            self.found[access] = access.through(self.tracker, self.shape)[0]
        return self.found[access]


@dataclass(frozen=True, slots=True)
class Product:
    """What a sum adds up: the product of two values, each a view of something."""

    itemsize: int
    operands: tuple[ViewMap, ...]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A value made item by item of a REDUCE that nothing else reads, and that takes no more memory."""

    reduce: NodeSummary
    view_maps: tuple[ViewMap, ...]
    """of the movement between them, the last first"""

    def access_to_reduce(self, access: Access) -> Access:
        """The item of the REDUCE that an item of the value is made of."""
        for view_map in self.view_maps:
            access = view_map.access_at(access)
        return access


class Cone(NamedTuple):
    """What lies between a REDUCE and a value made of it item by item, both included."""

    reduce: UOp
    view_maps: tuple[ViewMap, ...]
    """of the movement between them, the last first"""
    nodes: frozenset[UOp]


_STORED = Family.ELEMENTWISE | {Ops.REDUCE, Ops.LIVE_OUT}
_HOLDS = (Ops.LIVE_OUT, Ops.CONTIGUOUS)
_KEEPS_ITEMS = Family.ELEMENTWISE | {Ops.RESHAPE, Ops.PERMUTE}
_UNPACKING = Family.BITWISE | {Ops.CAST, Ops.BITCAST, Ops.CMPLT, Ops.WHERE}
"""What takes fields of bits out of integers, and looks them up in a small table."""
MOST_IN_EPILOGUE = 24
"""Nodes of an epilogue (GELU has 11)."""
MOST_UNPACKING = 16
"""Operations of that kind that cost less than storing what they take out."""


@dataclass(frozen=True, slots=True)
class PackedSource:
    """What a value is unpacked from, by ids of nodes: the bytes of integers in memory, and the operations
    since."""

    memory: dict[int, int]
    operations: frozenset[int]


@Synthesized
def packed_source(node: UOp) -> PackedSource | None:
    """What shifts, masks and casts alone take an integer, or one as a float, out of, also where an index
    picks it; None for any other value."""
    if not node.dtype.is_int and node.op not in (Ops.CAST, Ops.CMPLT) and node.op not in Family.VIEW:
        return None
    if not reads_memory.of(node):
        return PackedSource({}, frozenset())
    picked = has_closed_form.of(node)  # integers at places that an index says
    if node.op is Ops.BUFFER or node.op in Family.STORED or picked:
        return PackedSource({id(node): largest(node.numel) * node.dtype.itemsize}, frozenset())
    if node.op not in _UNPACKING and node.op not in Family.VIEW and node.op is not Ops.LIVE_OUT:
        return None
    sources = node.src[:1] if node.op is Ops.LIVE_OUT else node.src  # without which items are live
    found = [packed_source.of(source) for source in sources]
    below = [f for f in found if f is not None]
    own = {id(node)} if node.op in _UNPACKING else ()
    operations = frozenset(own).union(*(f.operations for f in below))
    if len(below) < len(found) or len(operations) > MOST_UNPACKING:
        return None
    return PackedSource({source: size for f in below for source, size in f.memory.items()}, operations)


def _is_unpacked(node: UOp) -> bool:
    """True for bits taken out of integers in memory that take no more of it than the result would."""
    source = packed_source.of(node)
    if source is None or not source.operations:
        return False
    return 0 < sum(source.memory.values()) <= largest(node.numel) * node.dtype.itemsize


@frozen(eq=False)
class NodeSummary:
    """What fusion decisions know of a node. Nodes that are alike share one object."""

    op: Ops
    shape: tuple[int, ...]
    device: Any
    reads_memory: bool
    has_statistics: bool
    """see `cost.has_statistics`"""
    is_closed: bool
    """a REDUCE with a closed form"""
    is_compared: bool
    """a sum, or what is stored of sums, that a comparison needs to be rounded alike wherever it is"""
    may_store: bool
    """False for what is never stored unless it must be"""
    view_map: ViewMap | None
    """of movement"""
    value: NodeSummary | None
    """of a LIVE_OUT or CONTIGUOUS: its value"""
    role: AttentionRole | None
    epilogue: Epilogue | None
    axes: tuple[int, ...] = ()
    """those that a REDUCE runs over; what follows is of a REDUCE too"""
    source_shape: tuple[int, ...] = ()
    sums_outer_products: bool = False
    is_contraction: bool = False
    is_block_product: bool = False
    is_segment_sum: bool = False
    product: Product | None = None

    @property
    def stored_value(self) -> NodeSummary:
        """Of what is stored for it: the value of a LIVE_OUT or CONTIGUOUS."""
        return self if self.value is None else self.value.stored_value

    @property
    def numel(self) -> int:
        return int(prod(self.shape))

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the loops that a REDUCE runs over."""
        return tuple(self.source_shape[axis] for axis in self.axes)

    def operands_at(self, access: Access) -> list[Access]:
        """Where the operands of a sum of products at `access` are read, in loops of its own."""
        if self.product is None:
            return []
        loops = tuple(UOp.range(n, -1 - i) for i, n in enumerate(self.extents))
        inside = access.reduced(self.axes, loops)
        return [operand.access_at(inside) for operand in self.product.operands]


class GraphSummary:
    """The summaries of every node in `order`, sources first."""

    def __init__(self, order: Sequence[UOp]) -> None:
        self.attention_of = fused_attentions(order)
        self.compared = compared_sums(order)
        summary_of, self.view_map = cache(NodeSummary), cache(ViewMap)
        """one for all that have the same fields"""
        self.cones: dict[UOp, Cone] = {}
        self.epilogues: dict[UOp, Epilogue] = {}
        self.readers = Counter(source for node in order for source in node.src)
        """how many nodes read each"""
        self.of: dict[UOp, NodeSummary] = {}
        for node in order:
            self.note_epilogue(node)
            self.of[node] = summary_of(*self.fields(node))
            if runs_loop(node):
                self.cones[node] = Cone(node, (), frozenset((node,)))

    def note_epilogue(self, node: UOp) -> None:
        """Of which REDUCE a value is an epilogue, or may be part of one, given that its sources' is known."""
        if node.op not in _KEEPS_ITEMS:
            return
        found = [self.cones[s] for s in node.src if s in self.cones]
        if not found:
            return
        reduce = max([c.reduce for c in found], key=reduce_depth.of)
        found = [c for c in found if c.reduce is reduce]
        maps = found[0].view_maps
        if any(c.view_maps != maps for c in found):
            return
        if node.op in Family.MOVEMENT:
            maps = self.view_map_of(node), *self.cones[node.base].view_maps
        inside = frozenset[UOp]().union(*(c.nodes for c in found))
        if len(inside) >= MOST_IN_EPILOGUE:
            return
        self.cones[node] = Cone(reduce, maps, inside | {node})
        edges = Counter(source for n in (*inside, node) if n is not reduce for source in n.src)
        least = min(n.dtype.itemsize for n in inside if n in self.epilogues or n is reduce)
        if node.dtype.itemsize <= least and all(edges[n] == self.readers[n] for n in inside):
            self.epilogues[node] = Epilogue(self.of[reduce], maps)

    def fields(self, node: UOp) -> tuple[Any, ...]:
        """Those of the summary of a node whose sources have theirs."""
        common = (node.op, node.shape, node.device, reads_memory.of(node), has_statistics.of(node),
                  has_closed_form.of(node), node in self.compared, self.may_store(node),
                  self.view_map_of(node) if node.op in Family.MOVEMENT else None,
                  self.of[node.src[0]] if node.op in _HOLDS else None,
                  self.attention_of.get(node), self.epilogues.get(node))
        if node.op is not Ops.REDUCE:
            return common
        return (*common, node.arg[1], node.src[0].shape, sums_outer_products(node), is_contraction(node),
                is_block_product(node), is_segment_sum(node), self.product(product_of(node)))

    def may_store(self, node: UOp) -> bool:
        """False for what is never stored unless it must be."""
        if (node.op in _UNPACKING or node.op is Ops.LIVE_OUT) and _is_unpacked(node):
            return False
        if node.op is Ops.WHERE:
            # its readers keep the condition, and so know where it matters
            return reads_memory.of(node.src[0]) or not node.src[2].is_zero
        if node.op is Ops.CAST:
            # if anything is stored, it is what takes less memory
            return bool(node.src[0].dtype.itemsize >= node.dtype.itemsize)
        return node.op in _STORED

    def product(self, node: UOp | None) -> Product | None:
        return None if node is None else Product(node.dtype.itemsize, tuple(map(self.view_map_of, node.src)))

    def view_map_of(self, node: UOp) -> ViewMap:
        """How `node` shows what is below its movement ops: itself, where there are none."""
        base = node.base
        return self.view_map(node.st, base.shape, base.op is Ops.CONST)
