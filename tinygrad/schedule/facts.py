"""What fusion knows of a node: all that its decisions depend on, and no node.

In: the nodes of a graph, sources first. Out: for each its `Facts`, the same object for nodes that are alike,
as those of equal layers are. What is decided from facts alone (`growth.py`) is so decided once for all of
them.

Facts say nothing of a node's neighbours but what decisions look at: the movement between it and what it
shows, and for a sum of products, the operands. Two numbers differ between layers that are alike, and stand
apart: how many reduces are below a node (`depth`), and what computing it again costs (`cost.Work`).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tinygrad.codegen.indexing import ranges_of, reduced_index, shown_item
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.chains import ChainedSum
from tinygrad.schedule.cost import has_statistics
from tinygrad.schedule.products import is_contraction, product_of, sums_outer_products
from tinygrad.shape.shapetracker import ShapeTracker


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """One item of a value, for every iteration of the loops in `index`, where `valid` holds (None: always).
    Equal ones are the same object."""

    index: tuple[UOp, ...]
    valid: UOp | None
    ranges: frozenset[UOp]
    """the loops that it changes with"""


class Items:
    """Every `Item` there is in a schedule."""

    def __init__(self) -> None:
        self.known: dict[tuple[tuple[UOp, ...], UOp | None], Item] = {}

    def item(self, index: tuple[UOp, ...], valid: UOp | None) -> Item:
        """The item with this index, wanted where `valid` holds."""
        found = self.known.get((index, valid))
        if found is None:
            found = self.known[index, valid] = Item(index, valid, ranges_of(index, valid))
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Shown:
    """How a value shows the items of what is below its movement ops, which has `shape`."""

    tracker: ShapeTracker
    shape: tuple[int, ...]
    is_constant: bool
    """whether what is below is a CONST"""
    found: dict[Item, Item] = field(default_factory=dict)

    def item_at(self, item: Item, items: Items) -> Item:
        """The item that shows at `item`."""
        shown = self.found.get(item)
        if shown is None:
            index, valid, _ = shown_item(self.tracker, self.shape, item.index, item.valid)
            shown = self.found[item] = items.item(index, valid)
        return shown


@dataclass(frozen=True, slots=True)
class Product:
    """What a sum adds up: the product of two values, each a view of something."""

    itemsize: int
    operands: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A node's part in a chain of products (`chains.py`)."""

    chain: ChainedSum
    is_root: bool
    """it is the chain's result"""
    is_reduce: bool
    """it is one of the chain's sums"""
    is_between: bool
    """it is made of them, but not the result"""

    @staticmethod
    def of(node: UOp, chain: ChainedSum | None) -> Link | None:
        """None for a node of no chain."""
        if chain is None:
            return None
        is_root = node is chain.root
        return Link(chain, is_root, node in chain.reduces, node in chain.between and not is_root)


class Kind(Enum):
    """How a value reaches its sources."""

    __hash__ = object.__hash__
    LEAF = auto()
    """it has none that are computed"""
    MOVEMENT = auto()
    REDUCE = auto()
    ASSIGN = auto()
    """its second source, item by item"""
    ITEMWISE = auto()
    """all of them, item by item"""
    OTHER = auto()
    """not at all"""


_KINDS = {
    **dict.fromkeys((Ops.BUFFER, Ops.SINK, Ops.CONST, Ops.VARIABLE), Kind.LEAF),
    **dict.fromkeys(Family.MOVEMENT, Kind.MOVEMENT), Ops.REDUCE: Kind.REDUCE, Ops.ASSIGN: Kind.ASSIGN,
    **dict.fromkeys(Family.ELEMENTWISE | {Ops.CONTIGUOUS, Ops.COPY, Ops.LIMIT}, Kind.ITEMWISE),
}


COMPUTED_AGAIN = (Ops.CONST, Ops.VARIABLE)
"""What kernels do not read from memory, even where a view of it is stored: the kernel that stores it need not
come first."""
_STORED = Family.ELEMENTWISE | {Ops.REDUCE, Ops.LIMIT}


@dataclass(frozen=True, eq=False)
class Facts:
    """What decisions know of a node. Nodes that are alike share one object."""

    op: Ops
    kind: Kind
    shape: tuple[int, ...]
    device: Any
    is_forced: bool
    """it must be in memory whatever that costs"""
    is_buffered: bool
    """an ASSIGN whose value gets a buffer of its own first"""
    reads_memory: bool
    has_statistics: bool
    is_closed: bool
    """a REDUCE with a closed form"""
    is_compared: bool
    """a sum that a comparison needs to be rounded alike wherever it is computed"""
    may_store: bool
    """False for what is never stored unless it must be"""
    shown: Shown | None
    """of movement"""
    axes: tuple[int, ...]
    """of a REDUCE"""
    source_shape: tuple[int, ...]
    sums_outer_products: bool
    is_contraction: bool
    product: Product | None
    value: Facts | None
    """of a LIMIT: its value"""
    link: Link | None

    @property
    def numel(self) -> int:
        return int(prod(self.shape))

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the loops that a REDUCE runs over."""
        return tuple(self.source_shape[axis] for axis in self.axes)


class FactsOfGraph:
    """The facts of every node in `order`, sources first."""

    def __init__(self, order: Sequence[UOp], reads: dict[UOp, bool], closed: frozenset[UOp],
                 compared: frozenset[UOp], forced: set[UOp], buffered_assigns: frozenset[UOp],
                 chained: Mapping[UOp, ChainedSum]) -> None:
        self.reads = reads
        self.chained = chained
        self.closed = closed
        self.compared = compared
        self.forced = forced
        self.buffered_assigns = buffered_assigns
        self.known: dict[tuple[Any, ...], Facts] = {}
        """by all that they are made from"""
        self.shown: dict[tuple[Any, ...], Shown] = {}
        self.shown_by: dict[UOp, Shown] = {}
        """for each node of movement"""
        self.base: dict[UOp, UOp] = {}
        """for each node of movement, what it shows: the first below that is none, or has memory of its own"""
        self.over_memory: dict[UOp, UOp] = {}
        """nodes of movement above others that have memory of their own, over a stand-in for these"""
        self.statistics: dict[UOp, bool] = {}
        self.depth: dict[UOp, int] = {}
        """for each node, how many reduces its deepest chain of sources has"""
        self.of: dict[UOp, Facts] = {}
        depth, statistics = self.depth, self.statistics
        reduced: dict[UOp, bool] = {}
        for node in order:
            below = [depth[s] for s in node.src]
            depth[node] = (max(below) if below else 0) + (node.op is Ops.REDUCE)
            statistics[node] = has_statistics(node, statistics, reduced)
            self.of[node] = self.facts(node)

    def facts(self, node: UOp) -> Facts:
        """The facts of a node whose sources have theirs."""
        if node.op in Family.MOVEMENT:
            self.note_movement(node)
        key = self.key(node)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.new_facts(node)
        return found

    def key(self, node: UOp) -> tuple[Any, ...]:
        """All that the facts of a node are made from."""
        op = node.op
        may_store = op in _STORED
        details: tuple[Any, ...] = ()
        if op in Family.MOVEMENT:
            details = (self.shown_by[node],)
        elif op is Ops.REDUCE:
            product = product_of(node)
            operands = () if product is None else tuple(map(self.shown_of, product.src))
            details = (node.arg, node.src[0].shape, node in self.closed, node in self.compared,
                       sums_outer_products(node), is_contraction(node),
                       None if product is None else product.dtype.itemsize, *operands)
        elif op is Ops.LIMIT:
            details = (self.of[node.src[0]],)
        elif op is Ops.WHERE or op is Ops.CAST:
            may_store = self.may_store(node)
        return (op, node.shape, node.device, node in self.forced, node in self.buffered_assigns,
                self.reads[node], self.statistics[node], may_store,
                Link.of(node, self.chained.get(node)), *details)

    def may_store(self, node: UOp) -> bool:
        """False for what is never stored unless it must be."""
        if node.op is Ops.WHERE:
            # its readers keep the condition, and so know where it matters
            return self.reads[node.src[0]] or not node.src[2].is_zero
        if node.op is Ops.CAST:
            # if anything is stored, it is what takes less memory
            return bool(node.src[0].dtype.itemsize >= node.dtype.itemsize)
        return node.op in _STORED

    def new_facts(self, node: UOp) -> Facts:
        """The facts of a node unlike those before it."""
        is_reduce = node.op is Ops.REDUCE
        product = product_of(node)
        return Facts(
            node.op, _KINDS.get(node.op, Kind.OTHER), node.shape, node.device, node in self.forced,
            node in self.buffered_assigns, self.reads[node], self.statistics[node], node in self.closed,
            node in self.compared, self.may_store(node), self.shown_by.get(node),
            node.arg[1] if is_reduce else (),
            node.src[0].shape if is_reduce else (), is_reduce and sums_outer_products(node),
            is_reduce and is_contraction(node),
            None if product is None else self.product(product),
            self.of[node.src[0]] if node.op is Ops.LIMIT else None, Link.of(node, self.chained.get(node)))

    def product(self, node: UOp) -> Product:
        return Product(node.dtype.itemsize, tuple(map(self.shown_of, node.src)))

    def note_movement(self, node: UOp) -> None:
        """How a node of movement shows what is below, given that its source's is known."""
        source = node.src[0]
        if source.op in Family.MOVEMENT and source in self.forced and source.viewed.op not in COMPUTED_AGAIN:
            below = UOp.new(Ops.CONTIGUOUS, source.dtype, (source,))
            base, shown = source, self.shown_of(below)
        else:
            below = self.over_memory.get(source, source)
            base, shown = self.base.get(source, source), self.shown_of(source)
        if below is not source:
            self.over_memory[node] = UOp.new(node.op, node.dtype, (below, *node.src[1:]), node.arg)
        self.base[node] = base
        self.shown_by[node] = self.remembered((node.op, node.arg, node.src[1:], shown),
                                              self.over_memory.get(node, node))

    def shown_of(self, node: UOp) -> Shown:
        """How `node` shows what is below its movement ops: itself, where there are none."""
        known = self.shown_by.get(node)
        return known or self.remembered((node.shape, node.op is Ops.CONST), node)

    def remembered(self, key: tuple[Any, ...], node: UOp) -> Shown:
        """What `key` says in full, as `node` shows it."""
        found = self.shown.get(key)
        if found is None:
            base = node.base
            found = self.shown[key] = Shown(node.st, base.shape, base.op is Ops.CONST)
        return found


def operand_items(facts: Facts, item: Item, loops: tuple[UOp, ...], items: Items) -> list[Item]:
    """Where the operands of a sum of products at `item` are read inside `loops`."""
    assert facts.product is not None
    inside = items.item(reduced_index(item.index, facts.axes, loops), item.valid)
    return [operand.item_at(inside, items) for operand in facts.product.operands]
