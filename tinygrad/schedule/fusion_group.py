"""Fusion groups: which nodes a kernel may compute, as functions of node summaries alone.

In: the `NodeSummary` of a node, and its uses: for each the kernel that reads it, as it is so far
(`FusionGroup`), and the `Access`. Out: whether to store the node or to rematerialise it (`must_store`), which
of those kernels may store it as one more output (`multi_outputs`), and what a group becomes by computing it
(`after_reduce`, `MultiOutputFusion`). None of it sees a node or changes anything, so `fuse.py` asks once and
memoises the answer for all that is alike: the kernels of equal layers have the very same `FusionGroup`.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from tinygrad.codegen.indexing import Access, loops_over, shared_loops
from tinygrad.codegen.lower import runs_over
from tinygrad.codegen.opt.lanes import MOST_VECTORS
from tinygrad.codegen.ranges import iterations, ranges_among
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import TRUE, linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.cost import LARGE_CONE, STORE_COST
from tinygrad.schedule.layout import worth_ordering
from tinygrad.schedule.node_summary import NodeSummary
from tinygrad.schedule.split import machine_of, runs_blocks

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
NEAR_SHARE = 4
"""What of it is near: the L2 cache over this (512 KB of Zen 3; of the 2 MB of an Intel server, where 512
normalised rows of 256 by 256 x 512 take as long stored, by 256 x 1024 0.84 of the time)."""
UNPACKED = 0.3
"""How much longer its products take than those of packed operands, where it is not near: for many columns the
rows are better stored (128 normalised rows of 256 by 256 x 1024: 1.3 ms on two cores of Zen 3, stored 0.8; 4
and 6 rows 0.7 to 0.9 of the time, 8 and 12 1.04 to 1.15, 16 about the same)."""
SCATTERED_LENGTH = 1024
"""Products of a sum below which an optimizer's update of a convolution's weights is a kernel of its own (with
256, the gradient of 512 x 512 x 3 x 3 weights took 22.8 ms with its update and takes 12.9 without)."""
SHORT_CONTRACTION = 128
"""Products that cost no more than storing their sum and reading it back (64 operations) twice."""
LIKE_REDUCES = 8
"""Reduces alike, at the same item, that a kernel is known to have: decisions ask whether there is another. So
what is known of one that adds up thousands of sums does not grow with them."""
_PLAIN = (Ops.RANGE, Ops.CONST)


@frozen(eq=False)
class FusionGroup:
    """What fusion decisions know of a kernel: its root, and the loops that are known so far."""

    root: NodeSummary
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
    reduces: tuple[tuple[NodeSummary, Access], ...] = ()
    """the REDUCEs that it computes, and where"""
    reduce_ranges: Mapping[tuple[object, ...], tuple[UOp, ...]] = field(default_factory=dict)
    closed_loops: frozenset[UOp] = frozenset()
    """loops of closed forms, which will not run"""

    @staticmethod
    def of(root: NodeSummary, device: str | None) -> FusionGroup:
        """A kernel that computes `root`, and nothing yet."""
        index = loops_over(root.shape)
        return FusionGroup(root, device, index, frozenset(ranges_among(index)), len(index))

    @property
    def runs_as_blocks(self) -> bool:
        """True for a kernel that runs as a grid of blocks of threads."""
        return runs_blocks(self.device)

    @property
    def is_copy(self) -> bool:
        return self.root.op in Family.TRANSFER

    def loop_level(self, ranges: frozenset[UOp]) -> frozenset[UOp]:
        """The loops that run where a value changing with `ranges` is computed (Halide's `compute_at`)."""
        inner = ranges - self.root_ranges
        return max((self.enclosing[r] for r in inner), key=len) if inner else ranges

    def reads_again(self, access: Access) -> bool:
        """True if loops around `access` read the same items."""
        return self.loop_level(access.ranges) != access.ranges

    def ends_with(self, ranges: frozenset[UOp]) -> bool:
        """True if these are the innermost loops over the root's items: those of rows in memory."""
        loops = ranges_among(self.index)
        return frozenset(loops[len(loops) - len(ranges):]) == ranges

    def nests(self, ranges: frozenset[UOp]) -> bool:
        """True if the root loops can be ordered so that those in `ranges` enclose the others."""
        return ranges == self.root_ranges or all(ranges <= s or s <= ranges for s in self.outer_sets)

    def row_of(self, access: Access) -> tuple[object, ...] | None:
        """What tells the row that `access` runs along from other rows; None where it is no item of a row.

        A row is what one inner loop, which is not closed, runs over while the loops over outputs stand still.
        Two loops of equal length over the same items have equal rows.
        """
        inner = access.ranges - self.root_ranges
        if len(inner) != 1 or access.valid is not TRUE or any(i.op not in _PLAIN for i in access.index):
            return None
        (loop,) = inner
        if loop in self.closed_loops or loop.extent > CACHED_ROW or access.index.count(loop) != 1:
            return None
        return tuple(loop.extent if i is loop else i for i in access.index)

    def runs_attention(self, summary: NodeSummary) -> bool:
        """True for a node of fused attention and a kernel that reduces nothing else."""
        if summary.role is None:
            return False
        roles = [reduce.role for reduce, _ in self.reduces]
        return (all(r is not None and r.root is summary.role.root for r in roles)
                and any(r is not None and r.is_root for r in roles))

    def may_fuse_reduce(self, summary: NodeSummary, access: Access) -> bool:
        """True if the loops of a REDUCE at `access` have a place in a kernel that leaves enough to share out:
        loops over outputs, for a reduce around it runs its own one after another."""
        loop_level = self.loop_level(access.ranges)
        if not self.nests(loop_level & self.root_ranges):
            return False
        if takes_one_pass(summary) and not self.is_in_order(access):
            return False  # it gives all its items in order; each by itself would ask all that is summed
        if loop_level == self.root_ranges:
            return True
        is_row = not loop_level > self.root_ranges
        row = max(prod(summary.extents), iterations(self.root_ranges - loop_level))
        if is_row and row > CACHED_ROW:
            return False
        outer = iterations(loop_level & self.root_ranges)
        work = prod(summary.source_shape)
        if not self.runs_as_blocks:
            return outer >= MIN_PARALLEL or work <= SERIAL_WORK
        if is_row and not self.ends_with(self.root_ranges - loop_level):
            return False  # the threads of a block would jump along the row
        if outer >= machine_of(self.device).busy_blocks:
            return True
        if not is_row:
            return bool(work <= SERIAL_WORK and prod(summary.extents) <= THREAD_WORK)
        # a block does all that there is inside of the loops that blocks share
        most = max(work, prod(self.root.shape), *(prod(f.source_shape) for f, _ in self.reduces))
        return bool(most <= outer * SERIAL_WORK)

    def is_in_order(self, access: Access) -> bool:
        """True for the items of the root's loops, one after another."""
        places = [i for i in access.index if i.op is not Ops.CONST]
        return access.valid is TRUE and places == ranges_among(self.index)

    def conflicts(self, summary: NodeSummary, access: Access) -> bool:
        """A fusion conflict: a REDUCE at `access` would share a kernel with a contraction that is tiled for
        its own loops alone, or with a segment sum, whose one pass takes all loops.

        Contractions may share one where the reduces are statistics of the contraction's rows, and what it
        reads again for every tile of rows fits the cache. Not where blocks of threads run it: their tiles of
        a contraction share out all loops of the kernel.
        """
        if summary.is_closed or self.is_of_block(summary, access):
            return False
        is_tiled = summary.is_contraction or (summary.sums_outer_products and not self.runs_as_blocks)
        if is_tiled and iterations(access.ranges) > summary.numel:
            return True  # padded or repeated: its tiles would compute what is not there, its lanes jump
        if self.root.op is Ops.ASSIGN and scatters_stores(summary):
            return True
        reduces = [*(r for r in self.reduces if not self.is_of_block(*r)), (summary, access)]
        running = [f for f, at in reduces if not f.is_closed and at.ranges <= self.root_ranges]
        if len(running) > 1 and any(map(takes_one_pass, running)):
            return True
        main = [self.is_main(*r) for r in reduces].count(True)
        if self.runs_as_blocks:
            return any(f.is_contraction for f, _ in reduces) and (len(reduces) > 1 or not main)
        others = [r for r in reduces if not self.is_main(*r)]
        if not main:
            return any(f.is_contraction and not self.is_row(f, i) for f, i in others)
        if main == len(reduces) == 1:
            return False
        rows = self.root_ranges.intersection(*(i.ranges for _, i in others))
        if main > 1 or not rows or rows == self.root_ranges:
            return True
        return not (all(self.panels_fit(f, i, rows) for f, i in reduces)
                    and all(i.ranges <= self.root_ranges or self.is_row(f, i) for f, i in others))

    def may_add_output(self, summary: NodeSummary, at: list[Access]) -> bool:
        """True for a kernel that may store a node which it reads `at` these items."""
        if at[0].valid is not TRUE or not runs_over(at[0].index, summary.shape):
            return False
        value = summary.stored_value
        epilogue = value.epilogue  # stored in place of its sum, which is computed here
        made_of = value if epilogue is None else epilogue.reduce
        is_compared = summary.is_compared or value.is_compared or made_of.is_compared
        if len(at) > 1 and (is_compared or not self.is_one_row(at)):
            return False  # each use may be computed apart
        if self.is_copy or self.root.numel == 0:
            return False
        if any(takes_one_pass(reduce) for reduce, _ in self.reduces) and not self.is_in_order(at[0]):
            return False
        ranges = at[0].ranges
        if not ranges <= self.root_ranges and not self.is_cached_row(summary, at):
            return False
        if not ranges and iterations(self.root_ranges) > SERIAL_WORK:
            return False  # a number is stored outside of all loops: none of them could be shared out
        if self.runs_as_blocks and any(reduce.is_contraction for reduce, _ in self.reduces):
            return False
        if epilogue is not None:
            value, at = made_of, [epilogue.access_to_reduce(i) for i in at]
        return self.nests(ranges & self.root_ranges) and (value.op is not Ops.REDUCE or all(
            self.may_fuse_reduce(value, i) and not self.conflicts(value, i) for i in at))

    def is_main(self, summary: NodeSummary, access: Access) -> bool:
        """True for a contraction inside of all loops over the root's items."""
        return summary.is_contraction and access.ranges >= self.root_ranges

    def is_of_block(self, summary: NodeSummary, access: Access) -> bool:
        """True for the products of a block of quantised numbers in the loop of the sum that scales them."""
        return summary.is_block_product and not access.ranges <= self.root_ranges

    def is_row(self, summary: NodeSummary, access: Access) -> bool:
        """True for items of a row that are cheaper to compute in a kernel than to store."""
        if self.row_of(access) is None:
            return False
        short = prod(summary.extents) <= SHORT_CONTRACTION
        return not summary.is_contraction or (short and not reads_windows(summary, access))

    def panels_fit(self, summary: NodeSummary, access: Access, rows: frozenset[UOp]) -> bool:
        """True if `rows` are those of one operand of a contraction, and what it reads again for every tile of
        them stays in the cache, and costs less than storing the rows and packing it would."""
        if summary.product is None or not summary.is_contraction:
            return True
        operands = summary.operands_at(access)
        if not any(operand.ranges >= rows for operand in operands):
            return False  # rows by columns: no loop is left for a tile
        near, machine = PANEL_BYTES, machine_of(self.device)
        if not machine.has_blocks and iterations(rows) > machine.tile_rows(MOST_VECTORS):
            near = machine.l2_bytes // NEAR_SHARE
        for operand in operands:
            if operand.ranges >= rows:
                continue
            panel = operand.ranges - rows
            size = iterations(panel) * summary.product.itemsize
            columns = iterations(panel & self.root_ranges)
            if size > PANEL_BYTES or (size > near and columns * UNPACKED > STORE_COST):
                return False
        return True

    def is_one_row(self, at: Iterable[Access]) -> bool:
        """True for items of one row, whichever loops read it."""
        rows = {self.row_of(access) for access in at}
        return len(rows) == 1 and None not in rows

    def is_cached_row(self, summary: NodeSummary, at: list[Access]) -> bool:
        """True for a row that a kernel caches and that lies in memory as it is walked: several loops read it,
        or a contraction all of it for each of its columns."""
        last = at[0].index[-1]
        if not self.is_one_row(at) or last.op is not Ops.RANGE or last in self.root_ranges:
            return False
        if not (len(at) > 1 or summary.has_statistics):
            return False
        if iterations(at[0].ranges & self.root_ranges) < MIN_PARALLEL:
            return False  # the loops of the rows would be too few to share out
        return self.contractions_take_rows(at[0])

    def contractions_take_rows(self, row: Access) -> bool:
        """True if the contractions of a kernel, for each of its items, need no panels, and what they read
        again for every tile of such rows fits the cache."""
        rows = row.ranges & self.root_ranges
        return all(self.has_columns(*reduce) and self.panels_fit(*reduce, rows)
                   for reduce in self.reduces if self.is_main(*reduce))

    def has_columns(self, summary: NodeSummary, access: Access) -> bool:
        """True for a contraction one operand of which lies in memory along the kernel's last loop: its lanes
        need no panel, which rows that are computed beside it leave no room for."""
        columns = next(reversed(ranges_among(self.index)), None)
        if summary.product is None or columns is None:
            return True
        return any(linear_terms(i).terms.get(columns) == 1
                   for operand in summary.operands_at(access) for i in operand.index[-1:])


class Use(NamedTuple):
    """A kernel, by its number among those that use a node, and the item that it wants."""

    number: int
    group: FusionGroup
    access: Access


@frozen
class Rematerialisation:
    """A decision that depends on what rematerialising the node costs: it is stored if that is above `least`,
    and `evaluations` by so many kernels are better avoided (`cost.better_stored`)."""

    evaluations: float
    kernels: int
    least: float = 0.0


@frozen
class MultiOutputFusion:
    """A kernel that may store a node as one more output, by its number, and the group it is then."""

    number: int
    group: FusionGroup
    index: tuple[UOp, ...]
    """the loops over the node's items"""
    access: Access
    """of the node, as the kernel then computes it"""


StoreDecision = bool | Rematerialisation | str
"""Whether to store a node; a text says why."""


class FusionLegality:
    """Producer-consumer legality: what may be computed in which kernel, by summaries and uses, and what
    groups become by it."""

    def __init__(self) -> None:
        self.groups: dict[tuple[object, ...], FusionGroup] = {}

    def same(self, group: FusionGroup) -> FusionGroup:
        """The one object for groups that are equal, whatever was fused first."""
        loops = frozenset(group.enclosing.items()), frozenset(group.reduce_ranges.items())
        key = (group.root, group.device, group.range_count, group.outer_sets, *loops, group.reduces,
               group.closed_loops)
        return self.groups.setdefault(key, group)

    def must_store(self, summary: NodeSummary, uses: tuple[Use, ...]) -> StoreDecision:
        """Whether to store a node that need not be."""
        summary = summary.stored_value
        if not summary.may_store:
            return False
        if summary.device is None and len({use.group.device for use in uses}) > 1:
            return False  # constants, which each device computes for itself
        is_reduce = summary.op is Ops.REDUCE
        if not summary.reads_memory and (not is_reduce or summary.is_closed):
            return self.rematerialisation(summary, uses, LARGE_CONE)
        if summary.is_closed:
            return self.rematerialisation(summary, uses)
        if is_reduce and not all(u.group.may_fuse_reduce(summary, u.access) for u in uses):
            return "stored, for its loops have no good place in a kernel that uses it"
        if is_reduce and any(cuts_loops(summary, u.access) for u in uses):
            return "stored, for its loops are uneven parts of one loop of its users"
        if is_reduce and any(u.group.conflicts(summary, u.access) for u in uses):
            return "stored, for a contraction, it or its user, wants the kernel for itself"
        if summary.is_contraction and wanted_in_parts(uses):
            return "stored, for a contraction each of whose parts would be one of its user's"
        if summary.is_compared and len(uses) > 1:
            return "stored, for it is compared with what is made of it"
        decision = self.rematerialisation(summary, uses)
        if not is_reduce and decision is not False and self.is_free_to_store(summary, uses):
            return "stored, for the sum that it is made of would be"
        return decision

    def is_free_to_store(self, summary: NodeSummary, uses: tuple[Use, ...]) -> bool:
        """True for the epilogue of a REDUCE that would be stored in its place."""
        epilogue = summary.epilogue
        if epilogue is None:
            return False
        below = tuple(use._replace(access=epilogue.access_to_reduce(use.access)) for use in uses)
        return isinstance(self.must_store(epilogue.reduce, below), str)

    # --- rematerialising ------------------------------------------------------------------------------------

    def rematerialisation(self, summary: NodeSummary, uses: tuple[Use, ...],
                          least: float = 0.0) -> Rematerialisation | bool:
        """What to compare the work of a node with; False where no work could make it worth storing."""
        evaluations = self.evaluations(summary, uses)
        kernels = len({use.number for use in uses})
        return Rematerialisation(evaluations, kernels, least) if evaluations > summary.numel else False

    def evaluations(self, summary: NodeSummary, uses: tuple[Use, ...]) -> float:
        """How often all `uses` together would compute an item. A cached row is computed once for its
        kernel."""
        total = 0.0
        rows = self.cached_rows(summary, uses)
        for use in uses:
            if use in rows:
                continue
            once = use.group.runs_attention(summary)  # for all of the result's columns
            ranges = use.access.ranges if once else use.group.loop_level(use.access.ranges)
            total += iterations(ranges - use.group.closed_loops)
        kept = {(use.number, row): use.access for use, row in rows.items()}
        return total + sum(iterations(access.ranges) for access in kept.values())

    def cached_rows(self, summary: NodeSummary, uses: tuple[Use, ...]) -> dict[Use, tuple[object, ...]]:
        """The uses along rows that the kernel caches, each with what identifies its row.

        Those are rows that several loops read, and rows made of statistics of themselves that a contraction
        reads for each of its columns, if those lie side by side. A value that several kernels want is better
        stored for all of them. So are sums that a block of threads would need in a row: it keeps none.
        """
        rows: dict[Use, tuple[object, ...]] = {}
        is_sum_in_block = summary.op is Ops.REDUCE and any(use.group.runs_as_blocks for use in uses)
        if is_sum_in_block or len({use.number for use in uses}) > 1:
            return rows
        for use in uses:
            row = use.group.row_of(use.access)
            if row is not None:
                rows[use] = row
        count = Counter(rows.values())
        return {use: row for use, row in rows.items() if count[row] > 1 or (
            summary.has_statistics and not use.group.runs_as_blocks
            and use.group.contractions_take_rows(use.access))}

    # --- a reduce inside a kernel ---------------------------------------------------------------------------

    def after_reduce(self, group: FusionGroup, summary: NodeSummary, access: Access,
                     depth: int) -> tuple[FusionGroup, Access]:
        """What a kernel is that computes a REDUCE at `access`, and the item of its source inside its loops.

        `depth` tells reduces that do not depend on each other from those that may: it is the same for the
        former.
        """
        key = shared_loops(depth, summary.extents, access), summary.is_closed
        loops = group.reduce_ranges.get(key)
        if loops is None:
            loops = loops_over(summary.extents, group.range_count)
            around = group.loop_level(access.ranges)
            inner = ranges_among(loops)
            enclosing = {r: around | frozenset(inner[:i + 1]) for i, r in enumerate(inner)}
            group = replace(group, range_count=group.range_count + len(loops),
                            outer_sets=group.outer_sets | {around & group.root_ranges},
                            enclosing={**group.enclosing, **enclosing},
                            reduce_ranges={**group.reduce_ranges, key: loops})
        if summary.is_closed:
            group = replace(group, closed_loops=group.closed_loops | frozenset(loops))
        elif group.reduces.count((summary, access)) < LIKE_REDUCES:
            group = replace(group, reduces=(*group.reduces, (summary, access)))
        return self.same(group), access.reduced(summary.axes, loops)

    # --- storing in a kernel that is there ------------------------------------------------------------------

    def multi_outputs(self, summary: NodeSummary, uses: tuple[Use, ...]) -> tuple[MultiOutputFusion, ...]:
        """The kernels that compute every item of a node exactly once for their own use, or cache its rows,
        and may store it."""
        if summary.op in Family.TRANSFER:
            return ()
        device = device_of(summary, uses)
        by_kernel: dict[int, list[Use]] = defaultdict(list)
        for use in uses:
            by_kernel[use.number].append(use)
        return tuple(self.with_output(first) for first, *more in by_kernel.values()
                     if first.group.device == device and first.group.may_add_output(
                         summary, [use.access for use in (first, *more)]))

    def with_output(self, use: Use) -> MultiOutputFusion:
        """What a kernel becomes by storing what it reads there."""
        _, group, access = use
        outer = access.ranges & group.root_ranges
        stored = replace(group, outer_sets=group.outer_sets | {outer})
        if outer == access.ranges:
            return MultiOutputFusion(use.number, self.same(stored), access.index, access)
        # A row as what fills it computes it: once, whatever loops read it.
        loop = UOp.range(access.index[-1].extent, group.range_count)
        stored = replace(stored, range_count=group.range_count + 1,
                         enclosing={**group.enclosing, loop: outer | {loop}})
        row = Access((*access.index[:-1], loop), access.valid)
        return MultiOutputFusion(use.number, self.same(stored), access.index, row)


def device_of(summary: NodeSummary, uses: Iterable[Use]) -> str | None:
    """Where a node is computed: what is made of constants alone, where it is used; None if nowhere."""
    known: str | None = summary.device
    return known or next((use.group.device for use in uses if use.group.device is not None), None)


def wanted_in_parts(uses: tuple[Use, ...]) -> bool:
    """True where one kernel takes several items for one of its own, as the gates of an LSTM: a tile of each
    would leave few registers to any, and panels are for one."""
    kernels = [use.number for use in uses if use.access.ranges <= use.group.root_ranges]
    return len(kernels) > len(set(kernels))


def takes_one_pass(summary: NodeSummary) -> bool:
    """True for a segment sum of so much that a kernel adds it up in one pass, which takes all its loops."""
    return summary.is_segment_sum and prod(summary.source_shape) > SERIAL_WORK


def scatters_stores(summary: NodeSummary) -> bool:
    """True for a sum of products too short for what its lanes would scatter: written into a convolution's
    weights, whose order is the user's, each item that is read or written costs as much as some hundred
    products."""
    return (summary.sums_outer_products and prod(summary.extents) < SCATTERED_LENGTH
            and worth_ordering(summary.shape))


def reads_windows(summary: NodeSummary, access: Access) -> bool:
    """True for a contraction of overlapping windows of an operand, as a convolution's are: tiles of its
    own outputs share what they read, which the items of a row do not."""
    for index in (i for operand in summary.operands_at(access) for i in operand.index):
        steps = linear_terms(index).terms.items()
        reduced = [abs(step) * r.extent for r, step in steps if r.op is Ops.RANGE and r.identity < 0]
        if any(r.op is Ops.RANGE and r.identity >= 0 and abs(step) < max(reduced, default=0)
               for r, step in steps):
            return True
    return False


def cuts_loops(summary: NodeSummary, access: Access) -> bool:
    """True for a REDUCE whose loops would be parts of another that is no multiple of them (a view that
    joins axes and cuts off the end): its lanes would have to gather, each along the sum."""
    if prod(summary.source_shape) <= SERIAL_WORK:
        return False
    return any(part.op in (Ops.IDIV, Ops.MOD) and part.src[0].op is Ops.RANGE
               and part.src[1].op is Ops.CONST and part.src[0].extent % part.src[1].arg
               for index in access.index for part in index.toposort())
