"""How kernels grow, and what is decided on the way: functions of facts alone.

In: the `Facts` of a node, and its uses: for each the kernel that wants it, as it has grown so far (`Growth`),
and the `Item` that it wants. Out: whether to store the node (`must_store`), which of those kernels may
(`hosts`), and what a kernel becomes by computing it (`after_reduce`, `Host`). None of it sees a node or
changes anything, so `fuse.py` asks once and keeps the answer for all that is alike: the kernels of equal
layers have grown alike, and so have the very same `Growth`.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinygrad.codegen.indexing import ZERO, reduced_index
from tinygrad.codegen.lower import runs_over
from tinygrad.codegen.opt.choose_gpu import FULL_BLOCKS
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.cost import LARGE_CONE
from tinygrad.schedule.facts import Facts, Item, Items, operand_items
from tinygrad.schedule.layout import worth_ordering
from tinygrad.schedule.split import runs_blocks

SERIAL_WORK = 1 << 15
"""Reduced items that one core may walk alone; above, a kernel keeps at least `MIN_PARALLEL` outer
iterations."""
MIN_PARALLEL = 8
THREAD_WORK = 64
"""Reduced items that a thread of a block may walk alone, where the others do the same beside it."""
CACHED_ROW = 1 << 16
"""Items of a row (256 KB of float32) that stay in the L2 cache between the stages of a kernel; sharing the
loop over rows saves nothing for longer ones."""
PANEL_BYTES = 4 << 20
"""What a contraction may read again for every tile of rows, from the L2 cache or the one behind it."""
SCATTERED_LENGTH = 1024
"""Products of a sum below which an optimizer's update of a convolution's weights is a kernel of its own (with
256, the gradient of 512 x 512 x 3 x 3 weights took 22.8 ms with its update and takes 12.9 without)."""
SHORT_CONTRACTION = 128
"""Products that cost no more than storing their sum and reading it back (64 operations) twice."""
LIKE_REDUCES = 8
"""Reduces alike, at the same item, that a kernel is known to have: decisions ask whether there is another. So
what is known of one that adds up thousands of sums does not grow with them."""
_PLAIN = (Ops.RANGE, Ops.CONST)


@dataclass(frozen=True, eq=False)
class Growth:
    """What decisions know of a kernel: its root, and the loops that are known so far."""

    root: Facts
    device: str | None
    """None: no device was named, any will do"""
    index: tuple[UOp, ...]
    """the loops over the items of its root"""
    root_ranges: frozenset[UOp]
    range_count: int
    outer_sets: frozenset[frozenset[UOp]] = frozenset()
    """sets of root loops that something is computed once for; they must nest"""
    enclosing: Mapping[UOp, frozenset[UOp]] = field(default_factory=dict)
    """for each reduce loop, the loops around it and itself"""
    reduces: tuple[tuple[Facts, Item], ...] = ()
    """the REDUCEs that it computes, and where"""
    reduce_ranges: Mapping[tuple[object, ...], tuple[UOp, ...]] = field(default_factory=dict)
    closed_loops: frozenset[UOp] = frozenset()
    """loops of closed forms, which will not run"""

    @staticmethod
    def of(root: Facts, device: str | None) -> Growth:
        """A kernel that computes `root`, and nothing yet."""
        index = tuple(_ranges_from(0, root.shape))
        return Growth(root, device, index, frozenset(r for r in index if r.op is Ops.RANGE), len(index))

    @property
    def runs_as_blocks(self) -> bool:
        """True for a kernel that runs as a grid of blocks of threads."""
        return runs_blocks(self.device)

    @property
    def is_copy(self) -> bool:
        return self.root.op is Ops.COPY

    def place(self, ranges: frozenset[UOp]) -> frozenset[UOp] | None:
        """The loops that run where a value changing with `ranges` is computed; None where no place has them
        all."""
        inner = ranges - self.root_ranges
        if not inner:
            return ranges
        around = max((self.enclosing[r] for r in inner), key=len)
        return around if ranges <= around else None

    def nests(self, ranges: frozenset[UOp]) -> bool:
        """True if the root loops can be ordered so that those in `ranges` enclose the others."""
        return ranges == self.root_ranges or all(ranges <= s or s <= ranges for s in self.outer_sets)

    def row_of(self, item: Item) -> tuple[object, ...] | None:
        """What tells the row that `item` runs along from other rows; None where it is no item of a row.

        A row is what one inner loop runs over while the loops over outputs stand still. Two loops of equal
        length over the same items have equal rows.
        """
        inner = item.ranges - self.root_ranges
        if len(inner) != 1 or item.valid is not None or any(i.op not in _PLAIN for i in item.index):
            return None
        (loop,) = inner
        if loop.extent > CACHED_ROW or item.index.count(loop) != 1:
            return None
        return tuple(loop.extent if i is loop else i for i in item.index)


class Use(NamedTuple):
    """A kernel, by its number among those that use a node, and the item that it wants."""

    number: int
    growth: Growth
    item: Item


@dataclass(frozen=True)
class Weighed:
    """A decision that depends on what computing the node again costs: it is stored if that is above `least`,
    and `evaluations` by so many kernels are better avoided (`cost.better_stored`)."""

    evaluations: float
    kernels: int
    least: float = 0.0


@dataclass(frozen=True)
class Host:
    """A kernel that may store a node for others, by its number, and what it becomes by that."""

    number: int
    growth: Growth
    index: tuple[UOp, ...]
    """the loops over the node's items"""
    item: Item
    """of the node, as the kernel then computes it"""


Verdict = bool | Weighed | str
"""Whether to store a node; a text says why."""


class Decisions:
    """What is decided of nodes by their facts and uses, and what kernels become by it."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.grown: dict[tuple[object, ...], Growth] = {}

    def same(self, growth: Growth) -> Growth:
        """The one object for kernels that have grown to this, whatever they grew from."""
        loops = frozenset(growth.enclosing.items()), frozenset(growth.reduce_ranges.items())
        key = (growth.root, growth.device, growth.range_count, growth.outer_sets, *loops, growth.reduces,
               growth.closed_loops)
        return self.grown.setdefault(key, growth)

    def must_store(self, facts: Facts, uses: tuple[Use, ...]) -> Verdict:
        """Whether to store a node that need not be."""
        while facts.value is not None:
            facts = facts.value
        if not facts.may_store:
            return False
        if facts.device is None and len({use.growth.device for use in uses}) > 1:
            return False  # constants, which each device computes for itself
        is_reduce = facts.op is Ops.REDUCE
        if not facts.reads_memory and (not is_reduce or facts.is_closed):
            return self.weighed(facts, uses, LARGE_CONE)
        if facts.is_closed:
            return self.weighed(facts, uses)
        if is_reduce and not all(self.fits(u.growth, facts, u.item) for u in uses):
            return "stored, for its loops have no place in a kernel that uses it"
        if is_reduce and any(self.crowds(u.growth, facts, u.item) for u in uses):
            return "stored, for a contraction, it or its user, wants the kernel for itself"
        if facts.is_compared and len(uses) > 1 and self.evaluations(facts, uses) > facts.numel:
            return "stored, for it is compared with what is made of it"
        return self.weighed(facts, uses)

    def runs_chain(self, growth: Growth, facts: Facts) -> bool:
        """True for a node of a chain and a kernel that reduces nothing but what the chain does."""
        if facts.link is None:
            return False
        links = [reduce.link for reduce, _ in growth.reduces]
        inside = all(k is not None and k.chain is facts.link.chain and k.is_reduce for k in links)
        return inside and any(k is not None and k.is_root for k in links)

    # --- computing again ------------------------------------------------------------------------------------

    def weighed(self, facts: Facts, uses: tuple[Use, ...], least: float = 0.0) -> Weighed | bool:
        """What to compare the work of a node with; False where no work could make it worth storing."""
        evaluations = self.evaluations(facts, uses)
        kernels = len({use.number for use in uses})
        return Weighed(evaluations, kernels, least) if evaluations > facts.numel else False

    def evaluations(self, facts: Facts, uses: tuple[Use, ...]) -> float:
        """How often all `uses` together would compute an item. A kept row is computed once for its kernel."""
        total = 0.0
        rows = self.kept_rows(facts, uses)
        for use in uses:
            if use in rows:
                continue
            once = self.runs_chain(use.growth, facts)  # for all of the result's columns
            place = None if once else use.growth.place(use.item.ranges)
            ranges = use.item.ranges if place is None else place
            total += prod(r.extent for r in ranges - use.growth.closed_loops)
        kept = {(use.number, row): use.item for use, row in rows.items()}
        return total + sum(float(prod(r.extent for r in item.ranges)) for item in kept.values())

    def kept_rows(self, facts: Facts, uses: tuple[Use, ...]) -> dict[Use, tuple[object, ...]]:
        """The uses along rows that the kernel keeps, each with what identifies its row.

        Those are rows that several loops read, and rows made of statistics of themselves that a contraction
        reads for each of its columns. A value that several kernels want is better stored for all of them.
        """
        rows: dict[Use, tuple[object, ...]] = {}
        if len({use.number for use in uses}) > 1:
            return rows
        for use in uses:
            row = use.growth.row_of(use.item)
            if row is not None:
                rows[use] = row
        count = Counter(rows.values())
        return {use: row for use, row in rows.items()
                if count[row] > 1 or (facts.has_statistics and not use.growth.runs_as_blocks)}

    # --- a reduce inside a kernel ---------------------------------------------------------------------------

    def fits(self, growth: Growth, facts: Facts, item: Item) -> bool:
        """True if the loops of a REDUCE at `item` have a place in a kernel that leaves enough to share out:
        loops over outputs, for a reduce around it runs its own one after another."""
        place = growth.place(item.ranges)
        if place is None or not growth.nests(place & growth.root_ranges):
            return False
        if place == growth.root_ranges:
            return True
        is_row = not place > growth.root_ranges
        row = max(prod(facts.extents), prod(r.extent for r in growth.root_ranges - place))
        if is_row and row > CACHED_ROW:
            return False
        outer = prod(r.extent for r in place & growth.root_ranges)
        work = prod(facts.source_shape)
        if not growth.runs_as_blocks:
            return bool(outer >= MIN_PARALLEL or work <= SERIAL_WORK)
        if outer >= FULL_BLOCKS:
            return True
        if not is_row:
            return bool(work <= SERIAL_WORK and prod(facts.extents) <= THREAD_WORK)
        # a block does all that there is inside of the loops that blocks share
        most = max(work, prod(growth.root.shape), *(prod(f.source_shape) for f, _ in growth.reduces))
        return bool(most <= outer * SERIAL_WORK)

    def crowds(self, growth: Growth, facts: Facts, item: Item) -> bool:
        """True if a REDUCE at `item` would share a kernel with a contraction that is tiled for its own loops
        alone.

        They may share where the reduces are statistics of the contraction's rows, and what it reads again for
        every tile of rows fits the cache. Not where blocks of threads run it: their tiles of a contraction
        share out all loops of the kernel.
        """
        if facts.is_closed:
            return False
        if facts.is_contraction and prod(r.extent for r in item.ranges) > facts.numel:
            return True  # padded or repeated: its tiles would compute what is not there
        if growth.root.op is Ops.ASSIGN and self.scatters(facts):
            return True
        reduces = [*growth.reduces, (facts, item)]
        if growth.runs_as_blocks:
            found = [i for f, i in reduces if f.is_contraction]
            return bool(found) and (len(reduces) > 1 or not found[0].ranges >= growth.root_ranges)
        main = [(f, i) for f, i in reduces if f.is_contraction and i.ranges >= growth.root_ranges]
        others = [(f, i) for f, i in reduces if not (f.is_contraction and i.ranges >= growth.root_ranges)]
        if not main:
            return any(f.is_contraction and not self.is_row(growth, f, i) for f, i in others)
        if not others and len(main) == 1:
            return False
        rows = growth.root_ranges.intersection(*(i.ranges for _, i in others))
        if len(main) > 1 or not rows or rows == growth.root_ranges:
            return True
        if any(not self.panels_fit(f, i, rows) for f, i in (*main, *others)):
            return True
        return any(not (i.ranges <= growth.root_ranges or self.is_row(growth, f, i)) for f, i in others)

    def scatters(self, facts: Facts) -> bool:
        """True for a sum of products too short for what its lanes would scatter: written into a convolution's
        weights, whose order is the user's, each item that is read or written costs as much as some hundred
        products."""
        return (facts.sums_outer_products and prod(facts.extents) < SCATTERED_LENGTH
                and worth_ordering(facts.shape))

    def is_row(self, growth: Growth, facts: Facts, item: Item) -> bool:
        """True for items of a row that are cheaper to compute in a kernel than to store."""
        short = prod(facts.extents) <= SHORT_CONTRACTION
        return growth.row_of(item) is not None and (short or not facts.is_contraction)

    def panels_fit(self, facts: Facts, item: Item, rows: frozenset[UOp]) -> bool:
        """True if what a contraction reads again for every tile of `rows` stays in the cache."""
        if facts.product is None or not facts.is_contraction:
            return True
        for operand in self.operands_at(facts, item):
            count = prod(r.extent for r in operand.ranges - rows)
            if not operand.ranges >= rows and count * facts.product.itemsize > PANEL_BYTES:
                return False
        return True

    def operands_at(self, facts: Facts, item: Item) -> list[Item]:
        """Where the operands of a contraction at `item` are read."""
        loops = tuple(UOp.range(n, -1 - i) for i, n in enumerate(facts.extents))
        return operand_items(facts, item, loops, self.items)

    def after_reduce(self, growth: Growth, facts: Facts, item: Item, depth: int, again: bool
                     ) -> tuple[Growth, Item]:
        """What a kernel is that computes a REDUCE at `item`, and the item of its source inside its loops.

        `depth` tells reduces that do not depend on each other from those that may: it is the same for the
        former. `again`: the REDUCE is the one that the kernel took last, at another item.
        """
        outer = tuple(i for i in item.index if i.op is not Ops.CONST)
        key = (depth, facts.extents, outer, item.valid, facts.is_closed)
        loops = growth.reduce_ranges.get(key)
        if loops is None:
            loops = tuple(_ranges_from(growth.range_count, facts.extents))
            place = growth.place(item.ranges)
            around = item.ranges if place is None else place
            inner = [r for r in loops if r.op is Ops.RANGE]
            enclosing = {r: around | frozenset(inner[:i + 1]) for i, r in enumerate(inner)}
            growth = replace(growth, range_count=growth.range_count + len(loops),
                             outer_sets=growth.outer_sets | {around & growth.root_ranges},
                             enclosing={**growth.enclosing, **enclosing},
                             reduce_ranges={**growth.reduce_ranges, key: loops})
        if facts.is_closed:
            growth = replace(growth, closed_loops=growth.closed_loops | frozenset(loops))
        else:
            earlier = growth.reduces[:-1] if again else growth.reduces
            if earlier.count((facts, item)) < LIKE_REDUCES:
                growth = replace(growth, reduces=(*earlier, (facts, item)))
        inside = self.items.item(reduced_index(item.index, facts.axes, loops), item.valid)
        return self.same(growth), inside

    # --- storing in a kernel that is there ------------------------------------------------------------------

    def hosts(self, facts: Facts, uses: tuple[Use, ...]) -> tuple[Host, ...]:
        """The kernels that compute every item of a node exactly once for their own use, or keep its rows, and
        may store it."""
        if facts.is_buffered:
            return ()
        of_value = facts
        while of_value.value is not None:
            of_value = of_value.value
        by_kernel: dict[int, list[Use]] = defaultdict(list)
        for use in uses:
            by_kernel[use.number].append(use)
        return tuple(self.as_host(at[0], [use.item for use in at]) for at in by_kernel.values()
                     if self.may_host(of_value, at[0].growth, [use.item for use in at], uses))

    def may_host(self, facts: Facts, growth: Growth, at: list[Item], uses: tuple[Use, ...]) -> bool:
        """True for a kernel that may store a node which it uses `at` these items."""
        if at[0].valid is not None or not runs_over(at[0].index, facts.shape):
            return False
        if len(at) > 1 and not self.is_one_row(growth, at):
            return False
        if growth.is_copy or growth.root.numel == 0:
            return False
        ranges = at[0].ranges
        if not ranges <= growth.root_ranges and not self.is_kept(facts, growth, at):
            return False
        if not ranges and prod(r.extent for r in growth.root_ranges) > SERIAL_WORK:
            return False  # a number is stored outside of all loops: none of them could be shared out
        if growth.runs_as_blocks and any(reduce.is_contraction for reduce, _ in growth.reduces):
            return False
        if not growth.nests(ranges & growth.root_ranges):
            return False
        if facts.op is Ops.REDUCE and any(
                not self.fits(growth, facts, i) or self.crowds(growth, facts, i) for i in at):
            return False
        return growth.device == device_of(facts, uses)

    def as_host(self, use: Use, at: list[Item]) -> Host:
        """What a kernel becomes by storing what it uses `at` these items."""
        growth, item = use.growth, at[0]
        outer = item.ranges & growth.root_ranges
        stored = replace(growth, outer_sets=growth.outer_sets | {outer})
        if outer == item.ranges:
            return Host(use.number, self.same(stored), item.index, item)
        # A row as what fills it computes it: once, whatever loops read it.
        loop = UOp.range(item.index[-1].extent, growth.range_count)
        stored = replace(stored, range_count=growth.range_count + 1,
                         enclosing={**growth.enclosing, loop: outer | {loop}})
        row = self.items.item((*item.index[:-1], loop), item.valid)
        return Host(use.number, self.same(stored), item.index, row)

    def is_one_row(self, growth: Growth, at: Iterable[Item]) -> bool:
        """True for items of one row, whichever loops read it."""
        rows = {growth.row_of(item) for item in at}
        return len(rows) == 1 and None not in rows

    def is_kept(self, facts: Facts, growth: Growth, at: list[Item]) -> bool:
        """True for a row that a kernel keeps and that lies in memory as it is walked: several loops read it,
        or a contraction all of it for each of its columns."""
        last = at[0].index[-1]
        if not self.is_one_row(growth, at) or last.op is not Ops.RANGE or last in growth.root_ranges:
            return False
        if not (len(at) > 1 or facts.has_statistics):
            return False
        if prod(r.extent for r in at[0].ranges & growth.root_ranges) < MIN_PARALLEL:
            return False  # the loops of the rows would be too few to share out
        return all(self.has_columns(growth, reduce, item) for reduce, item in growth.reduces
                   if reduce.is_contraction and item.ranges >= growth.root_ranges)

    def has_columns(self, growth: Growth, facts: Facts, item: Item) -> bool:
        """True for a contraction one operand of which lies in memory along the kernel's last loop: its lanes
        need no panel, which rows that are computed beside it leave no room for."""
        if facts.product is None or not growth.index:
            return True
        columns = growth.index[-1]
        return any(linear_terms(i).terms.get(columns) == 1
                   for operand in self.operands_at(facts, item) for i in operand.index[-1:])


def device_of(facts: Facts, uses: Iterable[Use]) -> str | None:
    """Where a node is computed: what is made of constants alone, where it is used; None if nowhere."""
    known: str | None = facts.device
    return known or next((use.growth.device for use in uses if use.growth.device is not None), None)


def _ranges_from(first: int, extents: tuple[int, ...]) -> list[UOp]:
    """A loop for each extent, numbered within its kernel: equal kernels have equal loops, and what is found
    out about them once is remembered for all."""
    return [ZERO if n == 1 else UOp.range(n, first + i) for i, n in enumerate(extents)]
