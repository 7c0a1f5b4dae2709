"""The cost model: a good Plan at once, without running anything.

In: a loop nest and the device's numbers (`Machine`). Out: a Plan. Cores and blocks of threads
(`choose_gpu.py`) take the same steps (`Chooser.choose`); for cores they are:
1. `arrange_loops`: loops are cut where masks change (`loop_partition.py`), ranges that are contiguous in
   every access become one (a 4-d elementwise kernel is one loop), and running sums recurrences (`scan.py`);
2. `sum_in_memory`: segment sums become one-pass scatter-adds (`scatter_add.py`), sums across rows of memory
   sums of rows (the same module), and nothing else changes but 5;
3. `choose_inside`: rows that several loops read are cached (`cached_rows.py`); a contraction gets a tile of
   accumulators (`tiles.py`), its operands panels (`panels.py`), or a matrix unit (`core_units.py`);
   everything else gets lanes where accesses lie side by side (`lanes.py`);
4. `refine`: loop bounds are tightened to where nothing is left to add (`loop_bounds.py`), long sums are
   sums of subtotals, results that the caches cannot hold go past them, and memory is asked for ahead where
   the processor would not do it by itself (`prefetch.py`);
5. `share_out`: the outermost loops are shared out over threads, if there is enough to do.
"""
from __future__ import annotations

from contextlib import suppress
from itertools import takewhile

from tinygrad.codegen.cost import estimate
from tinygrad.codegen.opt.access import lie_side_by_side
from tinygrad.codegen.opt.cached_rows import CachedRow
from tinygrad.codegen.opt.choose_byte_dots import ByteDotChooser
from tinygrad.codegen.opt.choose_gpu import BlockChooser
from tinygrad.codegen.opt.choose_scatter import ScatterChooser
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.core_units import CoreUnitChooser
from tinygrad.codegen.opt.lanes import JUMP_COST
from tinygrad.codegen.opt.loop_partition import partitions
from tinygrad.codegen.opt.loops import writes_what_it_reads
from tinygrad.codegen.opt.opts import (
    Merge,
    PartitionLoop,
    Prefetch,
    Scan,
    Split,
    Stage,
    Stream,
    Subtotals,
    Thread,
    Upcast,
)
from tinygrad.codegen.opt.plan import Plan
from tinygrad.codegen.opt.prefetch import prefetches
from tinygrad.codegen.opt.staging import numbered_rows
from tinygrad.codegen.opt.subtotals import long_sum
from tinygrad.codegen.opt.tiles import FILL
from tinygrad.codegen.prefix_sum import prefix_sums
from tinygrad.codegen.ranges import ACCUMULATING, is_plain, loops_of, of_kind, runs_of
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.machine import Machine

THREAD_WORK = 1 << 16
"""Operations and items moved below which waking another core costs more than it saves (about 5 us)."""
CHAINS = 4
"""Recurrences beside each other where each addition waits for the one before (3 to 5 cycles)."""
CHAIN_COST = 0.3
"""An item of one of them, where a recurrence alone takes 1 (2663 rows of 2604: 4.4 ms in chains, 10.8 in
lanes of 16 rows each, which gather and scatter; Zen 4)."""
SHARES_A_THREAD = 4
"""Shares of several loops for each thread: one that begins late takes fewer."""
FILLED_SHARE = 0.003
"""Of a kernel's work, from which on memory that whoever takes a part of a loop fills is filled once for each
thread, not once for each of its several parts (347 x 650 x 109 in one panel of 7 vectors: 379 us, 227 so)."""


def choose_plan(nest: UOp, machine: Machine) -> Plan:
    """The plan that the cost model expects to run `nest` fastest on `machine`."""
    return _chooser(nest, machine).plan()


def alternative_plans(nest: UOp, machine: Machine) -> list[Plan]:
    """The plans that follow from the second-best way to run a contraction (its lanes, or the tile of a
    block), the third-best, and so on."""
    return list(estimated_plans(nest, machine))[1:]


def estimated_plans(nest: UOp, machine: Machine, most: int = 3) -> dict[Plan, float | None]:
    """The plan that `choose_plan` gives and the alternatives to it, each with the cost of a multiply-add of
    its main contraction, in units of one without lanes; None where nobody estimates it."""
    found: dict[Plan, float | None] = {}
    for rank in range(most + 1):
        chooser = _chooser(nest, machine, rank)
        found.setdefault(chooser.plan(), chooser.cost)
    return found


def threaded_plan(nest: UOp, machine: Machine) -> Plan:
    """Contiguous loops merged, and the outermost shared out over threads: what a search adds Opts to."""
    chooser = CoreChooser(nest, machine)
    chooser.original_work = work_and_items(nest)
    Chooser.arrange_loops(chooser)
    chooser.share_out()
    return Plan(tuple(chooser.opts))


def explain_plan(nest: UOp, machine: Machine) -> str:
    """The numbers behind `choose_plan`, a line for each decision: what was there to choose from, and its
    cost."""
    chooser = _chooser(nest, machine)
    chooser.notes = []
    chooser.plan()
    return "\n".join(f"  {note}" for note in dict.fromkeys(chooser.notes))


def work_and_items(nest: UOp) -> int:
    """Operations of a nest and items of 4 bytes that it moves: what threads share."""
    work = estimate(nest)
    return work.operations + work.bytes // 4


def _chooser(nest: UOp, machine: Machine, rank: int = 0) -> BlockChooser | CoreChooser:
    kind = BlockChooser if machine.has_blocks else CoreChooser
    return kind(nest, machine, rank)


class CoreChooser(CoreUnitChooser, ScatterChooser, ByteDotChooser):
    """All steps for the cores of a CPU."""

    def arrange_loops(self) -> None:
        """Loops cut where masks change, those that walk memory as one would as one, running sums as
        recurrences."""
        self.original_work = work_and_items(self.nest)
        lanes = self.lanes()
        self.split_along(lambda digit: digit.op is Ops.MOD and digit.factor == 1 and digit.number >= lanes
                         and digit.loop in self.outputs)
        if not prefix_sums(self.nest):  # a scan needs its loop whole in all outputs
            while (cut := partitions(self.nest, lanes)) is not None:
                self.take(PartitionLoop, *cut)
        self.split_along(lambda digit: digit.op is Ops.IDIV and digit.factor == 1
                         and digit.loop in self.outputs)
        super().arrange_loops()
        for found in prefix_sums(self.nest)[:1]:
            with suppress(ValueError):  # outputs may need the loop at several places
                self.take(Scan, found.loop)
        self.dot_bytes()

    def sum_in_memory(self) -> bool:
        return not self.nest.nodes_of(Ops.DP4A) and (self.scatter_sums() or self.interchange_sums())

    def choose_inside(self) -> None:
        """Lanes and tiles of the contraction with most of the work, else where accesses lie side by side."""
        if self.tile_byte_dots() or self.interleave_chains():
            return
        if self.main_contraction() is None or self.has_statistics():
            self.cache_rows()
        self.split_along(lambda digit: (c := self.main_contraction()) is not None
                         and digit.loop in c.reduce.closed_ranges)
        contraction = self.main_contraction()
        if contraction is None:
            self.vectorise_groups()
            self.stage_jumping_factors()
            self.write_out_windows()
        elif self.has_statistics():
            self.tile_whole_rows(contraction)
        else:
            self.tile(contraction)

    def interleave_chains(self) -> bool:
        """Several recurrences beside each other, which hides the latency of an addition, where no loop has
        items side by side for lanes; False where there is none, or such a loop."""
        loops = self.store.closed_ranges
        if not of_kind(loops, RangeKind.IN_ORDER):
            return False
        costs = {f"r{r.identity}_as_lanes": self.lane_cost(r, self.accesses())
                 for r in self.loops}
        self.note("an item of a recurrence, against 1 without lanes", **costs)
        around = list(takewhile(lambda r: r.kind is RangeKind.LOOP, loops))
        if not around or min(costs.values()) < CHAIN_COST:
            return False
        self.split_off(Upcast, around[-1], CHAINS)
        return True

    def refine(self) -> None:
        self.tighten()
        while (sum_ := long_sum(self.nest)) is not None:
            self.take(Subtotals, *sum_)
        if self.worth_streaming():
            self.take(Stream)
        for hint in prefetches(self.nest, self.machine):
            self.take(Prefetch, *hint)

    def cache_rows(self) -> None:
        """Cache the rows of values that are expensive to compute twice."""
        while worth := [found for found in numbered_rows(self.nest) if self.worth_caching(found[1])]:
            number, row = worth[0]
            self.take(Stage, number, (row.loop,))

    def worth_caching(self, row: CachedRow) -> bool:
        """True for a row that is expensive, fits the cache, and lies in memory as it is walked (or is summed
        up, or computed again more often than a jump costs)."""
        inside = row.computed
        small = row.loop.extent * row.value.dtype.itemsize <= self.machine.l2_bytes // 8
        walked = any(n.op is Ops.REDUCE for n in inside) or \
            lie_side_by_side((a for a in self.accesses() if a.node in inside), row.loop)
        self.note(f"a row along r{row.loop.identity}", computed_again=row.repeats, expensive=row.is_expensive,
                  fits_cache=small, lies_as_walked=walked)
        return row.is_expensive and small and (walked or row.repeats > JUMP_COST)

    def share_out(self) -> None:
        self.note("threads", work=self.original_work, least=THREAD_WORK, there_are=self.machine.threads)
        if self.machine.threads < 2 or self.original_work < THREAD_WORK:
            return
        loops = list(map(loops_of, self.nest.src))
        if not all(loops):
            return
        outermost, *others = dict.fromkeys(s[0] for s in loops)
        if others:
            with suppress(ValueError):  # threads may not be able to share them
                if not writes_what_it_reads(self.nest):
                    self.take(Thread, outermost, others, SHARES_A_THREAD * self.machine.threads)
            return
        seconds = {s[1] if len(s) > 1 else None for s in loops}
        second = seconds.pop() if len(seconds) == 1 else None
        few = outermost.extent < 2 * self.machine.threads or \
            not self.machine.is_busy(outermost.extent)
        if few and second is not None:
            if is_plain(outermost) and is_plain(second) and self.better_as_one(outermost, second):
                self.take(Merge, outermost, second)
                outermost = self.loops[0]
            elif not self.outside(second, Ops.REDUCE, Ops.SCATTER):
                fills = any(outermost in n.ranges for n in self.outside(second, Ops.STAGE))
                outermost = max(outermost, second, key=lambda r: (self.machine.busy_share(r.extent),
                                                                  fills or r.extent))
        self.take(Thread, self.one_share_a_thread(outermost))

    def one_share_a_thread(self, loop: UOp) -> UOp:
        """`loop`, or the loop over one part of it for each thread, where memory is filled outside of it: who
        takes a part fills all of that anew."""
        filled = sum(map(runs_of, self.outside(loop, Ops.STAGE)))
        size = ceildiv(loop.extent, self.machine.threads)
        if FILL * filled <= FILLED_SHARE * self.original_work or size < 2 or not is_plain(loop):
            return loop
        return self.split(Split, loop, size)[1] or loop

    def better_as_one(self, outer: UOp, inner: UOp) -> bool:
        """True if threads that share out both loops as one are done sooner than with one of them: if nothing
        runs inside `outer` but outside `inner`, or only memory is filled there, in little time even if that
        happens in each iteration of both (82 channels in 3 tiles and 3 images: 2 of 3 for one thread, or 5 of
        9)."""
        between = [n for n in self.nest.nodes_of(*ACCUMULATING) if (outer in n.ranges) != (inner in n.ranges)]
        if not between:
            return True
        if any(n.op is not Ops.STAGE or inner in n.ranges for n in between):
            return False
        filled = FILL * inner.extent * sum(map(runs_of, between))
        busy = self.machine.busy_share
        time_of_one = self.original_work / max(busy(outer.extent), busy(inner.extent))
        return (self.original_work + filled) / busy(outer.extent * inner.extent) < time_of_one

    def outside(self, loop: UOp, *ops: Ops) -> list[UOp]:
        """What runs outside of `loop`: threads that share it out would each reduce that again, or fill it."""
        return [n for n in self.nest.nodes_of(*ops) if loop not in n.ranges]
