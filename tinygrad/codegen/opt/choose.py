"""The cost model: a good Plan at once, without running anything.

In: a loop nest and the device's numbers (lanes, registers, threads). Out: a Plan. The steps, in order:
1. ranges that are contiguous in every access become one (a 4-d elementwise kernel is one loop);
2. every group of loops gets the range that runs as SIMD lanes: the one whose accesses lie side by side;
3. a sum of products whose operands change with different ranges (a contraction, whatever made it) gets a tile
   of accumulators in registers;
4. the outermost loops are shared out over threads, if there is enough to do.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tinygrad.codegen.contraction import Contraction, contraction_of, product_in
from tinygrad.codegen.cost import estimate
from tinygrad.codegen.opt.access import Access, accesses_of
from tinygrad.codegen.opt.choose_gpu import choose_block_plan
from tinygrad.codegen.opt.merge import mergeable_pair
from tinygrad.codegen.opt.plan import Opt, OptKind, Plan, apply_opt, is_stage_range, operands
from tinygrad.codegen.opt.rows import RowValue, row_values
from tinygrad.codegen.opt.skip import skips_something
from tinygrad.codegen.transpose import MOST_STRIDE
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer import Renderer

THREAD_WORK = 1 << 16
"""Operations and items moved below which waking another core costs more than it saves (about 5 us)."""
LINE_ITEMS = 16
"""Items of 4 bytes in a cache line."""
SCATTER_COST = 64.0
"""A store of lanes that do not lie side by side (a 4096 x 4096 result: 44 ms for its 1 M vectors)."""
PIXEL_COST = 0.25
"""Lanes along one of several ranges of an operand (an image's columns) where the other operand has but one (the
channels): its neighbours in the graph would have to follow that layout."""
LINE_COST = 0.5
"""A cache line fetched for the few items that the rows of a tile use of it, in the same units."""
JUMP_COST = 12.0
"""A load or store of lanes that do not lie side by side, in units of one that does."""


def choose_plan(nest: UOp, renderer: Renderer) -> Plan:
    """The plan that the cost model expects to run `nest` fastest on the device of `renderer`."""
    if renderer.has_blocks:
        return choose_block_plan(nest, renderer)
    return _Chooser(nest, renderer).plan()


def alternative_plans(nest: UOp, renderer: Renderer, most: int = 3) -> list[Plan]:
    """The plans that follow from the second-best choice of lanes for a contraction, the third-best, and so
    on."""
    if renderer.has_blocks:
        return []
    plans = dict.fromkeys(_Chooser(nest, renderer, rank).plan() for rank in range(most + 1))
    return list(plans)[1:]


def threaded_plan(nest: UOp, renderer: Renderer) -> Plan:
    """Contiguous loops merged, and the outermost shared out over threads: what a search adds Opts to."""
    chooser = _Chooser(nest, renderer)
    chooser.original_work = work_and_items(nest)
    chooser.merge_contiguous()
    chooser.share_out()
    return Plan(tuple(chooser.opts))


def explain_plan(nest: UOp, renderer: Renderer) -> str:
    """The numbers behind `choose_plan` on a CPU, a line for each decision: what was there to choose from, and
    its cost. No lines for other devices."""
    if renderer.has_blocks:
        return ""
    chooser = _Chooser(nest, renderer)
    chooser.notes = []
    chooser.plan()
    return "\n".join(f"  {note}" for note in dict.fromkeys(chooser.notes))


def work_and_items(nest: UOp) -> int:
    """Operations of a nest and items of 4 bytes that it moves: what threads share."""
    work = estimate(nest)
    return work.operations + work.bytes // 4


MOST_TAPS = 32
"""Items of a window that are written out one by one."""
MOST_VECTORS = 4
"""Vectors of a tile side by side: their loads are shared by all its rows."""
STAGING_REUSE = 8
"""Uses of a staged item that pay for staging it."""


_PANEL_ORDER = {RangeKind.LOOP: 0, RangeKind.UNROLL: 1, RangeKind.VECTOR: 2}
"""A panel lies in memory as its contraction walks it: tiles, then products, then the vectors of a tile."""


class _Chooser:
    def __init__(self, nest: UOp, renderer: Renderer, rank: int = 0) -> None:
        self.nest = nest
        self.renderer = renderer
        self.rank = rank
        """how many better ways to run a contraction are passed over"""
        self.opts: list[Opt] = []
        self.notes: list[str] | None = None
        """what was decided and why, where someone wants to know"""

    def note(self, what: str, **numbers: float) -> None:
        """Write down a decision and its numbers."""
        if self.notes is not None:
            shown = (f"{name.replace('_', ' ')} {n if isinstance(n, int) else format(n, '.3g')}"
                     for name, n in numbers.items())
            self.notes.append(f"{what}: {', '.join(shown)}")

    def take(self, opt: Opt) -> None:
        self.nest = apply_opt(self.nest, opt)
        self.opts.append(opt)

    def plan(self) -> Plan:
        self.original_work = work_and_items(self.nest)
        self.merge_contiguous()
        contraction = self.main_contraction()
        if contraction is None or self.has_statistics():
            self.keep_rows()
            contraction = self.main_contraction()
        if contraction is None:
            self.vectorise_groups()
            self.write_out_windows()
        elif self.has_statistics():
            self.tile_rows(contraction)
        else:
            self.tile(contraction)
        if skips_something(self.nest):
            self.take(Opt(OptKind.SKIP, 0))
        self.share_out()
        return Plan(tuple(self.opts))

    # --- 1. merging -----------------------------------------------------------------------------------------

    def merge_contiguous(self) -> None:
        while (pair := mergeable_pair(self.nest)) is not None:
            self.take(Opt(OptKind.MERGE, pair[0].arg[0], pair[1].arg[0]))

    def has_statistics(self) -> bool:
        """True if something is reduced once for each outer iteration, before the loops inside it run."""
        outputs = frozenset[UOp]().union(*(frozenset(s.closed_ranges) for s in self.nest.src))
        return any(n.op is Ops.REDUCE and n.closed_ranges and n.ranges < outputs for n in self.nest.toposort())

    def keep_rows(self) -> None:
        """Keep the rows of values that are dear to compute twice."""
        while True:
            worth = [i for i, row in enumerate(row_values(self.nest)) if self.worth_keeping(row)]
            if not worth:
                return
            self.take(Opt(OptKind.KEEP, worth[0]))

    def worth_keeping(self, row: RowValue) -> bool:
        """True for a row that is dear, fits the cache, and lies in memory as it is walked (or is summed
        up)."""
        inside = row.computed
        steps = [a.step(row.loop) for a in accesses_of(self.nest) if a.node in inside]
        small = row.loop.extent * row.value.dtype.itemsize <= self.renderer.l2_bytes // 8
        walked = row.has_reduce or all(step in (0, 1) for step in steps)
        self.note(f"a row along r{row.loop.arg[0]}", computed_again=row.repeats, dear=row.is_dear,
                  fits_cache=small, lies_as_walked=walked)
        return row.is_dear and small and walked

    # --- 2. lanes -------------------------------------------------------------------------------------------

    def lanes(self) -> int:
        """Lanes of the kernel's widest common float: of what it stores."""
        sizes = [s.src[1].dtype.scalar for s in self.nest.src]
        return min(self.renderer.lanes(d) for d in sizes)

    def vectorise_groups(self) -> None:
        """Lanes for the outputs' loops and for each reduce's, whichever serves; never two for one value."""
        done: set[int] = set()
        while (group := next((g for g in self.loop_groups() if g[0].arg[0] not in done), None)) is not None:
            done.add(group[0].arg[0])
            self.vectorise(*group)

    def loop_groups(self) -> list[tuple[UOp, list[UOp]]]:
        """(a closing node's innermost range, the ranges that may run as its lanes), outputs first."""
        groups: list[tuple[UOp, list[UOp]]] = []
        nodes = self.nest.toposort()
        reduces = [n for n in nodes if n.op is Ops.REDUCE and n.closed_ranges]
        for store in self.nest.src:
            plain = [r for r in store.closed_ranges if r.arg[1] is RangeKind.LOOP]
            if not plain or any(r.arg[1] is RangeKind.VECTOR for r in store.closed_ranges):
                continue
            rows = frozenset[UOp]().union(*(n.ranges for n in reduces if not n.ranges >= set(plain)))
            inside = [n for n in reduces if n.ranges >= set(plain)]
            candidates = [r for r in plain if r not in rows]
            candidates += [r for n in inside for r in n.closed_ranges if r.arg[1] is RangeKind.LOOP]
            candidates += [r for r in plain if r in rows]
            if candidates:
                groups.append((plain[-1], list(dict.fromkeys(candidates))))
        for node in reduces:
            loops = [r for r in node.closed_ranges if r.arg[1] is RangeKind.LOOP]
            if loops:
                groups.append((loops[-1], loops))
        for node in nodes:
            if node.op is Ops.STAGE and node.closed_ranges[-1].arg[1] is RangeKind.LOOP:
                groups.append((node.closed_ranges[-1], [node.closed_ranges[-1]]))
        return groups

    def vectorise(self, innermost: UOp, candidates: list[UOp]) -> None:
        around = {innermost, *candidates}
        region = [a for a in accesses_of(self.nest) if not around.isdisjoint(a.ranges)]
        lanes = self.lanes()
        scored = [(self.lane_cost(r, region, lanes), -i, r) for i, r in enumerate(candidates)
                  if self.can_vector(r) and not self.spoils_sums(r)]
        if not scored:
            return
        cost, _, best = min(scored, key=lambda s: s[:2])
        self.note("an item, against 1 without lanes", **{f"r{r.arg[0]}_as_lanes": c for c, _, r in scored})
        if cost >= 1.0:
            return
        width = min(lanes, 1 << (best.extent.bit_length() - 1))
        self.vector_opts(best, width)

    def can_vector(self, r: UOp) -> bool:
        if r.extent < 4 or r.arg[1] is not RangeKind.LOOP:
            return False
        mixed = (n for n in self.nest.toposort() if r in n.ranges or r in n.closed_ranges)
        around = (o for n in mixed for o in n.ranges | frozenset(n.closed_ranges))
        return not any(o.arg[1] is RangeKind.VECTOR for o in around)

    def spoils_sums(self, r: UOp) -> bool:
        """True if lanes along `r` would make a loop that sums up something for each of them jump in memory; it
        is better off with lanes of its own."""
        for node in self.nest.toposort():
            if node.op is Ops.REDUCE and node.closed_ranges and r in node.ranges:
                inside = node.src[0].toposort(stop=lambda n: n.op is Ops.REDUCE)
                loads = [a for a in accesses_of(self.nest) if a.node in inside and r in a.ranges]
                smooth = sum(a.step(r) in (0, 1) for a in loads)
                if 2 * smooth < len(loads):
                    return True
        return False

    def lane_cost(self, r: UOp, region: list[Access], lanes: int) -> float:
        """Cost per item of running `r` as lanes, against 1 for running nothing so."""
        width = min(lanes, 1 << (r.extent.bit_length() - 1))
        inside = [a for a in region if r in a.ranges]
        if not inside:
            return 1.0
        weights = [float(prod(x.extent for x in a.ranges)) for a in inside]
        cost = 0.0
        for access, weight in zip(inside, weights, strict=True):
            cost += weight * reading_cost(access.step(r))
        arithmetic = 2.0 * max(weights)
        return (cost + arithmetic) / (width * (sum(weights) + arithmetic))

    def vector_opts(self, r: UOp, width: int) -> None:
        """Lanes for `r`, and where it is long, several vectors side by side to hide their latency."""
        reduces = any(n.op is Ops.REDUCE and r in n.closed_ranges for n in self.nest.toposort())
        several = next((u for u in (4, 2) if r.extent >= width * u * 2), 0)
        sums = sum(n.op is Ops.REDUCE and r in n.ranges for n in self.nest.toposort())
        if sums:
            several = self.columns_at_once(r, width, sums)
        if is_stage_range(self.nest, r):
            several = 0
        across = None if reduces else self.line_range(r)
        outer = self.outer_after(Opt(OptKind.VECTOR, r.arg[0], width))
        if across is not None:
            lines = self.outer_after(Opt(OptKind.UPCAST, across, max(LINE_ITEMS, width)))
            self.walk_rows_of_tiles(outer, lines)
            return
        if several and outer is not None:
            self.take(Opt(OptKind.GROUP if reduces else OptKind.UPCAST, outer, several))

    def columns_at_once(self, r: UOp, width: int, sums: int) -> int:
        """Vectors beside each other where each lane sums up its own column: memory is read in runs as long as
        the registers allow, while every thread still has columns of its own."""
        for vectors in (16, 8, 4, 2):
            fits = vectors * sums <= self.renderer.registers // 2
            if fits and r.extent >= width * vectors * 2 * self.renderer.threads:
                return vectors
        return 0

    def walk_rows_of_tiles(self, lanes: int | None, lines: int | None) -> None:
        """Visit the tiles of a transpose in the order in which their items lie where they are loaded, which
        the processor fetches ahead (9.8 ms instead of 18 for 4096 x 4096 on one core)."""
        if lanes is None or lines is None:
            return
        order = [r.arg[0] for r in self.nest.src[0].closed_ranges if r.arg[1] is RangeKind.LOOP]
        if len(self.nest.src) > 1 or lanes not in order or lines not in order or self.has_statistics():
            return
        wanted = [r for r in order if r not in (lanes, lines)] + [lanes, lines]
        if wanted != order:
            for r in reversed(wanted):
                self.take(Opt(OptKind.SWAP, r))

    def line_range(self, lane: UOp) -> int | None:
        """Where lanes jump in what they load (a transpose), the range along which those loads lie side by
        side.

        A tile of whole cache lines along it uses every item of a line that it fetches.
        """
        for access in accesses_of(self.nest):
            if access.node.op is not Ops.LOAD or access.step(lane) in (0, 1):
                continue
            for store in self.nest.src:
                for r in store.closed_ranges:
                    is_long = r.extent >= LINE_ITEMS and r.arg[1] is RangeKind.LOOP
                    if r is not lane and access.step(r) == 1 and is_long:
                        return int(r.arg[0])
        return None

    def outer_after(self, opt: Opt) -> int | None:
        """Apply a split; the identity of the loop left around it, None if no loop is left."""
        before = {r.arg[0] for r in self.nest.toposort() if r.op is Ops.RANGE}
        self.take(opt)
        new = [r for r in self.nest.toposort()
               if r.op is Ops.RANGE and r.arg[0] not in before and r.arg[1] is RangeKind.LOOP]
        return new[0].arg[0] if new else None

    def write_out_windows(self) -> None:
        """The taps of small windows (depthwise convolution, pooling) written out, and several outputs side by
        side along an axis where their windows overlap: what they share is loaded once, and which taps lie
        outside the image is known early."""
        if self.has_statistics():
            return
        reduces = [n for n in self.nest.toposort() if n.op is Ops.REDUCE and n.closed_ranges]
        taps = [r for n in reduces for r in n.closed_ranges]
        if len(reduces) != 1 or any(r.arg[1] is not RangeKind.LOOP for r in taps):
            return
        across = self.overlapping(taps)
        written = 1
        for r in reversed(taps):
            written *= r.extent
            if written > MOST_TAPS:
                return
            self.take(Opt(OptKind.UNROLL, r.arg[0], r.extent))
        if across is not None:
            size = _tile_size(across.extent, 4)
            if size > 1:
                self.take(Opt(OptKind.UPCAST, across.arg[0], size))

    def overlapping(self, taps: list[UOp]) -> UOp | None:
        """A loop over outputs whose neighbouring iterations read the same items through other taps."""
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD]
        for r in self.nest.src[0].closed_ranges:
            for load in loads:
                step = load.step(r)
                reach = [(abs(load.step(t) or 0), t.extent) for t in taps]
                shared = any(own and abs(step or 0) % own == 0 and abs(step or 0) < own * count
                             for own, count in reach)
                if step and shared and r.arg[1] is RangeKind.LOOP:
                    return r
        return None

    # --- 3. contractions ------------------------------------------------------------------------------------

    def main_contraction(self) -> Contraction | None:
        """The contraction with the most work that changes with every output range."""
        outputs = frozenset[UOp]().union(*(frozenset(s.closed_ranges) for s in self.nest.src))
        found = []
        for node in self.nest.toposort():
            contraction = contraction_of(node)
            if contraction is not None and node.ranges == outputs:
                found.append(contraction)
        if not found:
            return None
        return max(found, key=lambda c: prod(r.extent for r in c.reduce.closed_ranges))

    def tile(self, contraction: Contraction) -> None:
        """The cheapest way to run a contraction: which range takes the lanes, and a tile of accumulators
        around it."""
        lanes = self.lanes()
        ways: list[tuple[float, int, Callable[[], None]]] = []
        for side in (contraction.left, contraction.right):
            for r in side:
                if r.extent >= 4:
                    width = min(lanes, 1 << (r.extent.bit_length() - 1))
                    cost = self.outer_cost(contraction, r, width)
                    ways.append((cost, r.arg[0], partial(self.tile_outer, contraction, r, width)))
        for r in contraction.reduce.closed_ranges:
            if r.extent >= 4:
                width = min(lanes, 1 << (r.extent.bit_length() - 1))
                cost = self.dot_cost(contraction, r, width)
                ways.append((cost, r.arg[0], partial(self.tile_dot, contraction, r, width)))
        ways.sort(key=lambda w: w[:2])
        self.note("a multiply-add, against 1 without lanes",
                  **{f"r{identity}_as_lanes": cost for cost, identity, _ in ways})
        if self.rank >= len(ways) or ways[self.rank][0] >= 1.0:
            self.vectorise_groups()
            return
        ways[self.rank][2]()

    def operand_with(self, contraction: Contraction, r: UOp) -> UOp:
        """The operand of the product that changes with `r`."""
        return next(s for s in contraction.factors if r in s.ranges)

    def staging_reuse(self, contraction: Contraction, lane: UOp) -> float:
        """How often each item of the lanes' operand is read: by every iteration of the ranges it does not
        know."""
        operand = self.operand_with(contraction, lane)
        return float(prod(r.extent for r in contraction.reduce.ranges - operand.ranges))

    def items_read(self, operand: UOp) -> int:
        """Items of memory that an operand is made from."""
        return sum(int(n.arg[1]) for n in operand.toposort() if n.op is Ops.PARAM)

    def panel_fits(self, contraction: Contraction, lane: UOp, width: int) -> bool:
        """True if one vector's worth of the operand, over the whole reduce, stays near: twice the L2
        cache."""
        operand = self.operand_with(contraction, lane)
        items = int(prod(r.extent for r in contraction.reduce.closed_ranges if r in operand.ranges))
        return items * width * contraction.reduce.dtype.itemsize <= 2 * self.renderer.l2_bytes

    def outer_cost(self, contraction: Contraction, lane: UOp, width: int) -> float:
        """Cost of a multiply-add with lanes along the output range `lane`, against 1 for a scalar one."""
        operand = self.operand_with(contraction, lane)
        waste = float(-(-lane.extent // width) * width / lane.extent)
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in operand.toposort()]
        smooth = all(a.step(lane) in (0, 1) for a in loads)
        reuse = self.staging_reuse(contraction, lane)
        if smooth:
            reading = 1.0
        elif reuse >= STAGING_REUSE and self.panel_fits(contraction, lane, width):
            reading = 1.0 + JUMP_COST * width / reuse / 4
        else:
            reading = JUMP_COST
        reading += LINE_COST * self.lines_between_products(contraction, operand)
        lane_side, other_side = (contraction.left, contraction.right) if lane in contraction.left else \
            (contraction.right, contraction.left)
        if len(lane_side) > len(other_side):
            reading += PIXEL_COST
        stores = [a for a in accesses_of(self.nest) if a.node.op is Ops.STORE and lane in a.ranges]
        reduced = int(prod(r.extent for r in contraction.reduce.closed_ranges))
        writing = sum(1.0 if a.step(lane) == 1 else SCATTER_COST for a in stores) / reduced
        return (reading + writing) * waste / width

    def lines_between_products(self, contraction: Contraction, lanes_operand: UOp) -> float:
        """How badly the operand that is read item by item lies: 1 where its next item is in another cache
        line, whichever way the reduce walks, and the L2 cache holds few of those lines; 0 where it does not
        matter."""
        (other,) = (s for s in contraction.factors if s is not lanes_operand)
        inside = other.toposort()
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in inside]
        walked = [(abs(a.step(r) or LINE_ITEMS), r.extent) for a in loads
                  for r in contraction.reduce.closed_ranges if r in a.ranges]
        if not walked or any(step < LINE_ITEMS for step, _ in walked):
            return 0.0
        span = max(step * extent for step, extent in walked) * other.dtype.itemsize
        return min(1.0, span / (4 * self.renderer.l2_bytes)) if 2 * span > self.renderer.l2_bytes else 0.0

    def dot_cost(self, contraction: Contraction, lane: UOp, width: int) -> float:
        """The same with lanes along the reduce: both operands are vectors, each accumulator is summed at the
        end."""
        waste = float(-(-lane.extent // width) * width / lane.extent)
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and lane in a.ranges]
        reading = sum(1.0 if a.step(lane) in (0, 1) else JUMP_COST for a in loads) / max(1, len(loads))
        reduced = int(prod(r.extent for r in contraction.reduce.closed_ranges))
        return (1.4 * reading * waste + 24.0 * width / reduced) / width

    def tile_outer(self, contraction: Contraction, lane: UOp, width: int) -> None:
        """Lanes along an output range: vectors of one operand times single items of the other."""
        lane_side = contraction.left if lane in contraction.left else contraction.right
        other = contraction.right if lane in contraction.left else contraction.left
        operand = self.operand_with(contraction, lane)
        factors = contraction.factors
        which = factors.index(operand)
        self.walk_smoothly(contraction, factors[1 - which])
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in operand.toposort()]
        small = self.items_read(operand) <= self.renderer.l2_bytes // 8
        smooth = small and all(a.step(lane) in (0, 1) for a in loads)
        stage = (not smooth and self.staging_reuse(contraction, lane) >= STAGING_REUSE
                 and self.panel_fits(contraction, lane, width))
        order = next(n.closed_ranges for n in self.nest.toposort()
                     if n.op is Ops.REDUCE and set(n.closed_ranges) == set(contraction.reduce.closed_ranges))
        if stage and not all(a.step(lane) in (0, 1) for a in loads):
            # The panel lies as what fills it: then whole rows of it are loaded, and transposed.
            order = tuple(sorted(order, key=lambda r: -abs(loads[0].step(r) or 0)))
        read_over = [r.arg[0] for r in order if r in operand.ranges]
        vectors = min(MOST_VECTORS, -(-lane.extent // width))
        while vectors > 1 and stage and not self.panel_fits(contraction, lane, width * vectors):
            vectors -= 1
        row = max(other, key=lambda r: (self.row_rank(r), r.arg[0]))
        before = self.identities()
        outer = self.outer_after(Opt(OptKind.VECTOR, lane.arg[0], width))
        lane_now = next(r for r in self.ranges() if r.arg[1] is RangeKind.VECTOR and r.arg[0] not in before)
        staged = [lane_now.arg[0]]
        if outer is not None and vectors > 1:
            size = _tile_size(-(-lane.extent // width), vectors)
            if size > 1:
                before = self.identities()
                outer = self.outer_after(Opt(OptKind.UPCAST, outer, size))
                staged.insert(0, next(r.arg[0] for r in self.ranges()
                                      if r.arg[1] is RangeKind.UNROLL and r.arg[0] not in before))
        else:
            size = 1
        if size == 1 and len(lane_side) > 1:
            second = max((r for r in lane_side if r is not lane), key=lambda r: r.extent)
            size = _tile_size(second.extent, 3)
            if size > 1:
                self.take(Opt(OptKind.UPCAST, second.arg[0], size))
        rows = _tile_size(row.extent, self.most_rows(max(1, size)))
        self.note("a tile of accumulators", rows=rows, vectors=size, registers=self.renderer.registers,
                  uses_of_a_staged_item=self.staging_reuse(contraction, lane), staged=bool(stage))
        if rows > 1:
            self.take(Opt(OptKind.UPCAST, row.arg[0], rows))
        if stage and self.stage(which, (*read_over, *staged)):
            self.fill_by_vectors()
            self.enclose_with(self.ranges_of_staging(outer))

    def fill_by_vectors(self) -> None:
        """Lanes for the loops that fill the newest panel; where they jump in what they load, as many loads
        beside each other as make a tile to transpose."""
        stage, loads = self.newest_stage()
        while (pair := self.mergeable_filling(stage, loads)) is not None:
            self.take(Opt(OptKind.MERGE, pair[0].arg[0], pair[1].arg[0]))
            stage, loads = self.newest_stage()
        *loops, lane = stage.closed_ranges
        if not self.can_vector(lane) or lane.extent & (lane.extent - 1):
            return
        if any(a.step(lane) not in (0, 1) for a in loads):
            side = [i for i, r in enumerate(loops) if loads[0].step(r) == 1 and r.extent % lane.extent == 0]
            after = loops[side[0] + 1:] if side else []
            if side and prod(r.extent for r in after) <= MOST_VECTORS:
                for r in after:
                    self.take(Opt(OptKind.UPCAST, r.arg[0], r.extent))
                self.take(Opt(OptKind.UPCAST, loops[side[0]].arg[0], lane.extent))
        self.take(Opt(OptKind.VECTOR, lane.arg[0], lane.extent))

    def newest_stage(self) -> tuple[UOp, list[Access]]:
        """The STAGE made last, and what it loads."""
        stage = max((n for n in self.nest.toposort() if n.op is Ops.STAGE), key=lambda n: int(n.arg[0]))
        inside = stage.src[0].toposort()
        return stage, [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in inside]

    def mergeable_filling(self, stage: UOp, loads: list[Access]) -> tuple[UOp, UOp] | None:
        """Two loops that fill a panel and walk memory as one would."""
        *loops, _ = stage.closed_ranges
        conditions = frozenset[UOp]().union(*(c.ranges for a in loads for c in a.node.src[0].src[2:]))
        for outer, inner in zip(loops, loops[1:], strict=False):
            regular = all(not {outer, inner} & a.irregular for a in loads) and not {outer, inner} & conditions
            if regular and all(a.steps.get(outer, 0) == a.steps.get(inner, 0) * inner.extent for a in loads):
                return outer, inner
        return None

    def ranges_of_staging(self, tiles: int | None) -> list[int]:
        """The output loops that staged memory changes with, the loop over tiles first: outside all others,
        they fill it once."""
        stages = [n for n in self.nest.toposort() if n.op is Ops.STAGE]
        known = [r.arg[0] for r in self.nest.src[0].closed_ranges
                 if r.arg[1] is RangeKind.LOOP and any(r in n.ranges for n in stages)]
        return sorted(known, key=lambda r: r != tiles)

    def enclose_with(self, ranges: list[int]) -> None:
        """These loops around all others, the first outermost."""
        order = [r.arg[0] for r in self.nest.src[0].closed_ranges if r.arg[1] is RangeKind.LOOP]
        if order[:len(ranges)] != ranges:
            for r in reversed(ranges):
                self.take(Opt(OptKind.SWAP, r))

    def most_rows(self, vectors: int) -> int:
        """Rows of a tile so many vectors wide whose accumulators and operands fit the registers.

        LLVM loads the items of all rows before it uses them; beyond this many it spills (a 12 x 2 tile ran at
        79 GFLOP/s, 8 x 2 at 230; 6 x 4 fits because its last loads fold into the arithmetic).
        """
        return max(1, (self.renderer.registers + 2 - vectors) // (vectors + 1))

    def walk_smoothly(self, contraction: Contraction, single: UOp) -> None:
        """Order the reduce so that the operand read item by item is walked with its smallest steps
        innermost."""
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in single.toposort()]
        if not loads:
            return
        largest = max(loads, key=lambda a: len(a.ranges))
        closed = contraction.reduce.closed_ranges
        wanted = sorted(closed, key=lambda r: -abs(largest.step(r) or 0))
        if wanted != list(closed):
            for r in reversed(wanted):
                self.take(Opt(OptKind.SWAP, r.arg[0]))

    def row_rank(self, r: UOp) -> tuple[bool, int]:
        """Rows of the tile: a range whose items lie near each other, then the longest."""
        near = all(abs(a.step(r) or 0) <= 64 for a in accesses_of(self.nest) if a.node.op is Ops.LOAD)
        return (near and r.extent >= 4, r.extent)

    def stage(self, which: int, over: tuple[int, ...]) -> bool:
        """Stage the operand `which` of the main contraction, which the splits before have rebuilt."""
        for node in self.nest.toposort():
            product = product_in(node.src[0]) if node.op is Ops.REDUCE else None
            if product is not None:
                held = product.src[which]
                if {r.arg[0] for r in held.ranges} >= set(over):
                    self.take(Opt(OptKind.STAGE, operands(self.nest).index(held), over=over))
                    return True
        return False

    def ranges(self) -> list[UOp]:
        return [r for r in self.nest.toposort() if r.op is Ops.RANGE]

    def identities(self) -> set[int]:
        return {r.arg[0] for r in self.ranges()}

    def tile_dot(self, contraction: Contraction, lane: UOp, width: int) -> None:
        """Lanes along the reduce: both operands are vectors, each accumulator is summed at the end."""
        sides = [max(s, key=lambda r: (r.extent, r.arg[0])) for s in (contraction.left, contraction.right)]
        self.take(Opt(OptKind.VECTOR, lane.arg[0], width))
        for side in sides:
            size = _tile_size(side.extent, 4)
            if size > 1:
                self.take(Opt(OptKind.UPCAST, side.arg[0], size))

    # --- contractions around the statistics of their rows ------------------------------------------------

    def tile_rows(self, contraction: Contraction) -> None:
        """Several rows side by side in registers through every stage: what a row is multiplied with is read
        once for all of them."""
        statistics = [n for n in self.nest.toposort() if n.op is Ops.REDUCE and n.closed_ranges
                      and n.ranges < contraction.reduce.ranges]
        rows = frozenset(contraction.reduce.ranges).intersection(*(n.ranges for n in statistics))
        sides = [(contraction.left, contraction.right), (contraction.right, contraction.left)]
        ways = [(self.outer_cost(contraction, lane, self.width(lane)), lane.arg[0], lane, row)
                for columns, others in sides for lane in columns - rows if lane.extent >= 4
                for row in others & rows]
        ways.sort(key=lambda w: (*w[:2], self.row_rank(w[3])))
        self.note("a multiply-add of rows, against 1 without lanes",
                  **{f"r{lane.arg[0]}_as_lanes_of_r{row.arg[0]}": cost for cost, _, lane, row in ways})
        if self.rank < len(ways) and ways[self.rank][0] < 1.0:
            _, _, lane, row = ways[self.rank]
            size = self.lane_tile(lane, MOST_VECTORS)
            most = self.most_rows(size)
            count = _tile_size(row.extent, most)
            if count > 1:
                self.take(Opt(OptKind.UPCAST, row.arg[0], count))
            self.tile_kept_rows(self.most_vectors(count))
        self.vectorise_groups()

    def width(self, lane: UOp) -> int:
        """Lanes of a vector along `lane`."""
        return min(self.lanes(), 1 << (int(lane.extent).bit_length() - 1))

    def most_vectors(self, rows: int) -> int:
        """Vectors beside so many rows whose accumulators and operands fit the registers."""
        return max(1, min(MOST_VECTORS, (self.renderer.registers + 2 - rows) // (rows + 1)))

    def lane_tile(self, lane: UOp, most: int) -> int:
        """`lane` as vectors, up to `most` of them side by side. Returns how many."""
        outer = self.outer_after(Opt(OptKind.VECTOR, lane.arg[0], self.width(lane)))
        size = 1 if outer is None else _tile_size(-(-lane.extent // self.width(lane)), most)
        if outer is not None and size > 1:
            self.take(Opt(OptKind.UPCAST, outer, size))
        return size

    def tile_kept_rows(self, vectors: int) -> None:
        """Lanes along the rows of sums that are kept (the scores of attention), their other operand staged
        where lanes would jump in it."""
        done: set[int] = set()
        while (found := self.kept_contraction(done)) is not None:
            loop, factor = found
            before = self.identities()
            done.add(loop.arg[0])
            self.lane_tile(loop, vectors)
            new = [r for r in self.ranges() if r.arg[0] not in before]
            done.update(r.arg[0] for r in new)
            lane = next(r for r in new if r.arg[1] is RangeKind.VECTOR)
            for operand in operands(self.nest):
                if lane in operand.ranges and self.is_walked_badly(operand, lane):
                    inner = [r for r in operand.ranges if r not in self.outer_ranges()]
                    order = sorted(inner, key=lambda r: (_PANEL_ORDER[r.arg[1]], r not in new, r.arg[0]))
                    self.take(Opt(OptKind.STAGE, operands(self.nest).index(operand),
                                  over=tuple(r.arg[0] for r in order)))
                    self.fill_by_vectors()
                    break

    def kept_contraction(self, done: set[int]) -> tuple[UOp, UOp] | None:
        """(the loop that fills a kept row with sums of products, the factor that changes along it)."""
        for node in self.nest.toposort():
            if node.op is not Ops.STAGE or node.closed_ranges[-1].arg[0] in done:
                continue
            loop = node.closed_ranges[-1]
            for inner in node.src[0].toposort(stop=lambda n: n.op is Ops.STAGE):
                contraction = contraction_of(inner)
                if contraction is not None and loop in contraction.left | contraction.right:
                    return loop, self.operand_with(contraction, loop)
        return None

    def outer_ranges(self) -> frozenset[UOp]:
        """The ranges of the outputs."""
        return frozenset[UOp]().union(*(frozenset(s.closed_ranges) for s in self.nest.src))

    def is_walked_badly(self, operand: UOp, lane: UOp) -> bool:
        """True if the lanes of `lane` do not lie side by side in what `operand` loads."""
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in operand.toposort()]
        return any(a.step(lane) not in (0, 1) for a in loads)

    # --- 4. threads -----------------------------------------------------------------------------------------

    def share_out(self) -> None:
        self.note("threads", work=self.original_work, least=THREAD_WORK, there_are=self.renderer.threads)
        if not self.renderer.has_threads or self.renderer.threads < 2 or self.original_work < THREAD_WORK:
            return
        stores = [s.closed_ranges for s in self.nest.src]
        if any(not s for s in stores):
            return
        loops = [[r for r in s if r.arg[1] is RangeKind.LOOP] for s in stores]
        if any(not s for s in loops) or len({s[0] for s in loops}) > 1:
            return
        outermost = loops[0][0]
        shared_second = {s[1] if len(s) > 1 else None for s in loops}
        if outermost.extent < 2 * self.renderer.threads and len(shared_second) == 1:
            second = next(iter(shared_second))
            if second is not None and self.encloses_the_same(outermost, second):
                self.take(Opt(OptKind.MERGE, outermost.arg[0], second.arg[0]))
                outermost = next(r for r in self.nest.src[0].closed_ranges if r.arg[1] is RangeKind.LOOP)
            elif second is not None and second.extent > outermost.extent and not self.reduces_between(second):
                outermost = second
        self.take(Opt(OptKind.THREAD, outermost.arg[0]))

    def encloses_the_same(self, outer: UOp, inner: UOp) -> bool:
        """True if nothing runs inside `outer` but outside `inner`."""
        for node in self.nest.toposort():
            if node.op in (Ops.REDUCE, Ops.STAGE) and (outer in node.ranges) != (inner in node.ranges):
                return False
        return True

    def reduces_between(self, inner: UOp) -> bool:
        """True if a REDUCE runs outside `inner`: every thread would do it again."""
        return any(n.op is Ops.REDUCE and inner not in n.ranges for n in self.nest.toposort())


def reading_cost(step: int | None) -> float:
    """A load of lanes that lie `step` items apart, in units of one whose lanes lie side by side."""
    if step in (0, 1):
        return 1.0
    return 2.0 * step if step is not None and 2 <= step <= MOST_STRIDE else JUMP_COST


def _tile_size(extent: int, most: int) -> int:
    """A tile of at most `most` along `extent`: large, but with a last tile that repeats little of the one
    before."""
    if extent <= most:
        return max(1, extent)

    def worth(size: int) -> float:
        return size / (size + 1) * extent / (-(-extent // size) * size)

    return max(range(1, most + 1), key=worth)
