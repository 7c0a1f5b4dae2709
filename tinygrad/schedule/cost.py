"""What computing a value again costs against keeping it: the one decision behind fusion.

Units are vector operations per item. Storing an item of 4 bytes and reading it back takes 0.19 ns through a
memory of 42 GB/s, and a vector operation of one item 0.0085 ns on two cores at 3.7 GHz with 16 lanes.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache, reduce
from math import fsum
from operator import or_
from typing import NamedTuple

from tinygrad.codegen.indexing import loops_over, range_extents
from tinygrad.codegen.lower import parameter, value_at
from tinygrad.dtype import dtypes
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import conjuncts
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.products import is_block_product, uncast

STORE_COST = 64.0
"""Storing an item and reading it back, and then some: values that one kernel could keep for another share
most of their operations, which each of them counts."""
LARGE_CONE = 64
"""Operations beyond which a value is always worth storing for a second use; and, each counted wherever it is
used, beyond which it is taken for memory where closed forms are looked for."""
REPEATED_OPERATIONS = 256
"""Operations beyond which a smaller value is worth storing too, counted at each of its places in a kernel:
steps of a stencil from constants on were a kernel of thousands (8 of them took 26 s to compile; cut, 0.5)."""
LARGE_TREE = 1024
"""Operations of an index, counted so, beyond which no closed form is looked for."""
MUCH = 1e12
SPLIT_COST = 100.0
"""Storing a value that only one kernel uses would cut that kernel in two, and everything it shares with
it."""
FREE_WORK = 1.0
"""A value of at most this much work is always computed again: reading it would cost as much."""

FREE_CONDITION = 4.0
"""The same for a condition: kept as a comparison it guards loads, picks items and costs no memory."""
COUNTER_SIZE = 16
"""Operations of a value that counts, up to which it is always computed again."""
BOUNDARIES = Family.STORED | {Ops.BUFFER, Ops.CONST, Ops.VARIABLE}
_PASSES_ITEMS_ON = Family.ELEMENTWISE | Family.MOVEMENT
_KEEPS_REDUCED = _PASSES_ITEMS_ON | {Ops.LIVE_OUT}
_WALKED = _PASSES_ITEMS_ON | {Ops.CONST, Ops.VARIABLE}
OPERATIONS = {
    Ops.EXP2: 10.0, Ops.LOG2: 14.0, Ops.SIN: 30.0, Ops.FDIV: 3.0, Ops.SQRT: 4.0, Ops.IDIV: 8.0, Ops.MOD: 8.0,
    Ops.THREEFRY: 56.0,
}
"""As many others an operation is worth, where it is not one."""
ACCESS_OPERATIONS = 4
"""Of reading an item from memory or storing it, its address included."""
MOST_OPERATIONS = 640
"""Of a kernel. Kernels of people's programs have up to 550 (derivatives of functions that are approximated
piece by piece). Chains of sines on two cores of a busy machine: 310 took 0.08 s to compile, 15,500 3.5 s,
124,000 56 s; a value stored and read back costs as much as 64."""
WIDE = 2.0
"""As many of other operations one of float64 is worth: half as many items lie in a vector."""
MORE_TERMS = 2.0
"""As many terms more a function that is a series has in float64."""


@Synthesized
def reads_memory(node: UOp) -> bool:
    """Whether a node depends on memory; what does not is made of constants alone."""
    return node.op is Ops.BUFFER or node.op in Family.TRANSFER \
        or any([s.__dict__["reads_memory"] for s in node.src])


@Synthesized
def has_closed_form(node: UOp) -> bool:
    """Whether a node is a REDUCE that lowering turns into arithmetic or a load by index: it costs no loop."""
    if node.op is not Ops.REDUCE:
        return False
    may_collapse = not reads_memory.of(node) or 0 < _counter_size.of(node.src[0]) <= LARGE_TREE
    return may_collapse and _lowers_without_loop(_over_params(node))


@Synthesized
def _counter_size(node: UOp) -> int:
    """The operations, as a tree, of what changes item by item with what a closed form made of constants
    counts (arange); 0 for any other value. With more than `LARGE_TREE` it is not looked through: stages of a
    sorting network, each made of several views of the one before."""
    if node.op is Ops.REDUCE:
        return int(has_closed_form.of(node) and not reads_memory.of(node))
    sizes = [_counter_size.of(source) for source in node.src] if node.op in _PASSES_ITEMS_ON else []
    if not any([0 < size <= LARGE_TREE for size in sizes]):
        return 0
    return min(1 + sum([size or 1 for size in sizes]), LARGE_TREE + 1)


def is_counter(node: UOp) -> bool:
    """Whether a value is a little arithmetic of what counts (arange) and constants: who compares positions
    with it computes it, where memory could not be seen through, though somebody stores it too."""
    return not reads_memory.of(node) and 0 < _counter_size.of(node) <= COUNTER_SIZE \
        and not any(n.op in Family.ELEMENTARY for n in node.toposort())


def is_segment_sum(node: UOp) -> bool:
    """Whether a REDUCE adds up, or takes the largest of, what belongs to each of its items by a number in
    memory: where(number == item, x, 0). One pass over x does it (`codegen/segment_sum.py`)."""
    if node.op is not Ops.REDUCE or has_closed_form.of(node):
        return False
    value = uncast(node.src[0])
    condition = value.src[0] if value.op is Ops.WHERE else value
    return condition.dtype.is_bool and any(map(_names_items, conjuncts(condition.base)))


def _names_items(condition: UOp) -> bool:
    """Whether a condition holds where a number in memory is that of an item: `eq`, which is not `ne`."""
    negated = condition.base
    if negated.op is not Ops.CMPNE or negated.src[1].base.op is not Ops.CONST:
        return False
    differs = negated.src[0].base
    return differs.op is Ops.CMPNE and any([is_counter(a) and reads_memory.of(b) for a, b in (
        differs.src, differs.src[::-1])])


@Synthesized
def _tree_size(node: UOp) -> int:
    """The operations, as a tree, of what closed forms and elementwise operations make of memory, or of what
    is too large itself to be looked through: steps of a recurrence, each made of several gathers of the one
    before."""
    if node.op in _PASSES_ITEMS_ON:
        return min(1 + sum([1 if _is_large(s) else _tree_size.of(s) for s in node.src]), LARGE_CONE + 1)
    return _tree_size.of(node.src[0]) if has_closed_form.of(node) else 1


def _is_large(node: UOp) -> bool:
    """Whether a value is taken for memory where closed forms are looked for; of what shows it otherwise, that
    is asked of the value, or places repeated along a loop would change with it."""
    if _counter_size.of(node):
        return _counter_size.of(node) > LARGE_TREE
    return node.op not in Family.MOVEMENT and _tree_size.of(node) > LARGE_CONE and reads_memory.of(node)


def runs_loop(node: UOp) -> bool:
    """True for a REDUCE without a closed form."""
    return node.op is Ops.REDUCE and not has_closed_form.of(node)


def compared_sums(order: Iterable[UOp]) -> frozenset[UOp]:
    """The sums and products of floats in `order`, sources first, that both sides of a comparison are made of,
    and what is stored of such.

    `x == x.max()` needs one value of x, and where the maximum is stored too. Two kernels, or two loops, may
    add up a sum in two orders, and round it to two values. Everything else is computed alike wherever it is
    computed again.
    """
    sums: list[UOp] = []
    compared = 0
    below: dict[UOp, int] = {}
    """for each node a bit for every sum that it is made of, and for what is stored of such"""
    for node in order:
        bits = reduce(or_, [below[source] for source in node.src] or [0])
        if (bits and node.op in BOUNDARIES) or _is_rounded_sum(node):
            bits |= 1 << len(sums)
        if bits >> len(sums):
            sums.append(node)
        if node.op in Family.COMPARE and node.src[0] is not node.src[1]:
            compared |= below[node.src[0]] & below[node.src[1]]
        below[node] = bits
    return frozenset(sum_ for i, sum_ in enumerate(sums) if compared >> i & 1)


def _is_rounded_sum(node: UOp) -> bool:
    return runs_loop(node) and node.arg[0] is not Ops.MAX and node.dtype.is_float


def _over_params(node: UOp) -> UOp:
    """A REDUCE with a PARAM in place of whatever below it is too large to be looked through, or neither
    elementwise, movement nor a closed form."""
    slots = itertools.count(1)

    def param(n: UOp) -> UOp | None:
        is_walked = n.op in _WALKED or has_closed_form.of(n)
        return None if is_walked and not _is_large(n) else parameter(n, next(slots))

    return node.replace(src=(node.src[0].rebuild(top_down=param),))


@lru_cache(maxsize=4096)
def _lowers_without_loop(reduce: UOp) -> bool:
    return not value_at(reduce, loops_over(reduce.shape)).nodes_of(Ops.REDUCE)


class Work(dict[UOp, float]):
    """For a node, the operations that computing one item of it again costs; found when it is asked for.

    Each operation of its cone counts once, down to memory and to reduces, which are decided about on their
    own: if one of them is worth storing, it will be, and what is made of it starts from there. An operation
    whose result an EXPAND shares counts for the share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cones: dict[UOp, frozenset[UOp] | None] = {}
        self.blocks: dict[UOp, frozenset[UOp]] = {}

    def __missing__(self, node: UOp) -> float:
        self[node] = work = self.found(node)
        return work

    def found(self, node: UOp) -> float:
        """The work of a node, from its cone."""
        if runs_loop(node):
            count = prod(range_extents(node))
            # the sums of blocks are computed wherever what scales them is
            blocks = [] if is_block_product(node) else [self[n] for n in self.blocks_below(node.src[0])]
            return min(MUCH, float(count) * (self[node.src[0]] + fsum(blocks) + 1.0))
        cone = self.cone(node)
        if cone is None:
            return MUCH
        # fsum: the same whatever the order in which a set has its items
        return fsum(_operations(n, node) * min(1.0, n.numel / max(1, node.numel)) for n in cone)

    def blocks_below(self, root: UOp) -> frozenset[UOp]:
        """The sums of blocks that a value is made of, but not those that other reduces are made of."""
        blocks = self.blocks
        for node in root.toposort(stop=lambda n: n in blocks or self.is_boundary(n)):
            if node not in blocks:
                below = [] if self.is_boundary(node) else [blocks[s] for s in node.src]
                own = runs_loop(node) and is_block_product(node)
                blocks[node] = frozenset([node]) if own else frozenset().union(*below)
        return blocks[root]

    def is_boundary(self, node: UOp) -> bool:
        """True for what a cone does not look into."""
        return node.op in BOUNDARIES or runs_loop(node)

    def cone(self, root: UOp) -> frozenset[UOp] | None:
        """The elementwise nodes that an item of `root` is computed with; None for more than are worth telling
        apart."""
        cones = self.cones
        for node in root.toposort(stop=lambda n: n in cones or self.is_boundary(n)):
            if node not in cones:
                below = [] if self.is_boundary(node) else [cones[s] for s in node.src]
                spread = node.op is Ops.EXPAND and node.numel > node.src[0].numel and None in below
                # what has more operations than that and is spread out is stored before it is
                cones[node] = frozenset() if spread or self.is_boundary(node) else _joined(below, node)
        return cones[root]


def _operations(node: UOp, result: UOp) -> float:
    """How many operations of the type of a `result` an elementwise node below it is worth."""
    operations = OPERATIONS.get(node.op, 1.0)
    if node.dtype.scalar is not dtypes.float64:
        return operations
    series = MORE_TERMS if node.op in Family.ELEMENTARY else 1.0
    return operations * series * (1.0 if result.dtype.scalar is dtypes.float64 else WIDE)


def _joined(cones: list[frozenset[UOp] | None], node: UOp) -> frozenset[UOp] | None:
    """The elementwise nodes of some cones and `node`; None for more than are worth telling apart."""
    joined: set[UOp] = {node} if node.op in Family.ELEMENTWISE else set()
    for cone in cones:
        if cone is None:
            return None
        joined |= cone
    return frozenset(joined) if len(joined) <= LARGE_CONE else None


@Synthesized
def _is_reduced(node: UOp) -> bool:
    """Whether a value is made of reduces and constants alone, item by item: the same all along a row."""
    if node.op not in _KEEPS_REDUCED:
        return node.op is Ops.REDUCE
    sources = node.src[:1] if node.op is Ops.LIVE_OUT else node.src
    values = [s for s in sources if s.base.op is not Ops.CONST]
    return bool(values) and all([_is_reduced.of(s) for s in values])


@Synthesized
def has_statistics(node: UOp) -> bool:
    """Whether a node is elementwise in something and a reduce of it, spread out again: a normalised row. Sums
    that read no memory (how many items of an image a window has) are none."""
    if node.op is Ops.EXPAND:
        return reads_memory.of(node) and _is_reduced.of(node.src[0])
    return node.op in _KEEPS_REDUCED and any([has_statistics.of(s) for s in node.src])


def weight_of(op: Ops) -> float:
    """What computing an item of it once weighs."""
    return 0.0 if op in Family.MOVEMENT else OPERATIONS.get(op, 1.0)


class StorageCost(NamedTuple):
    """What storing a node is compared with: as text, the numbers and what follows from them."""

    again: float
    """how often it would be evaluated again, for each of its items"""
    work: float
    most: float
    """what storing it costs"""
    kernels: int
    is_stored: bool

    def __str__(self) -> str:
        decision = "stored" if self.is_stored else "computed where it is used"
        return (f"{decision}: again {self.again:.4g} times work {self.work:.4g}, against {self.most:.4g} to "
                f"store it for {self.kernels} kernel{'s' * (self.kernels > 1)}")


def better_stored(node: UOp, evaluations: float, work: float, kernels: int) -> StorageCost:
    """Whether `node`, which so many kernels would evaluate so many times in all, should be computed once and
    kept."""
    again = evaluations / max(1, node.numel) - 1.0
    most = STORE_COST if kernels > 1 else SPLIT_COST
    is_free = work <= (FREE_CONDITION if node.dtype.is_bool else FREE_WORK) or node.numel == 0
    return StorageCost(again, work, most, kernels, not is_free and again * work > most)
