"""The cost model: a good Plan at once, without running anything.

In: a loop nest and the device's numbers (lanes, registers, threads). Out: a Plan. The steps, in order:
1. ranges that are contiguous in every access become one (a 4-d elementwise kernel is one loop);
2. every group of loops gets the range that runs as SIMD lanes: the one whose accesses lie side by side;
3. a sum of products whose operands change with different ranges (a contraction, whatever made it) gets a tile of
   accumulators in registers;
4. the outermost loops are shared out over threads, if there is enough to do.
"""
from __future__ import annotations

from dataclasses import dataclass

from tinygrad.codegen.cost import estimate
from tinygrad.codegen.opt.access import Access, accesses_of, index_uses, steps_of
from tinygrad.codegen.opt.plan import Opt, OptKind, Plan, apply_opt
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer import Renderer

THREAD_WORK = 1 << 16
"""Operations and items moved below which waking another core costs more than it saves (about 5 us)."""
JUMP_COST = 12.0
"""A load or store of lanes that do not lie side by side, in units of one that does."""


def choose_plan(nest: UOp, renderer: Renderer) -> Plan:
    """The plan that the cost model expects to run `nest` fastest on the device of `renderer`."""
    return _Chooser(nest, renderer).plan()


@dataclass(frozen=True)
class Contraction:
    """A REDUCE of a product: the ranges that only one operand changes with, for each operand."""

    reduce: UOp
    left: frozenset[UOp]
    right: frozenset[UOp]


def contraction_of(node: UOp) -> Contraction | None:
    """The contraction that a REDUCE is, if its two operands change with different outer ranges."""
    if node.op is not Ops.REDUCE or node.arg is not Ops.ADD or node.src[0].op is not Ops.MUL:
        return None
    a, b = (s.ranges & node.ranges for s in node.src[0].src)
    return Contraction(node, a - b, b - a) if a - b and b - a else None


class _Chooser:
    def __init__(self, nest: UOp, renderer: Renderer) -> None:
        self.nest = nest
        self.renderer = renderer
        self.opts: list[Opt] = []

    def take(self, opt: Opt) -> None:
        self.nest = apply_opt(self.nest, opt)
        self.opts.append(opt)

    def plan(self) -> Plan:
        work = estimate(self.nest)
        self.merge_contiguous()
        self.original_work = work.operations + work.bytes // 4
        contraction = self.main_contraction()
        if contraction is not None:
            self.tile(contraction)
        else:
            self.vectorise_groups()
        self.share_out()
        return Plan(tuple(self.opts))

    # --- 1. merging --------------------------------------------------------------------------------------------

    def merge_contiguous(self) -> None:
        while (pair := self.mergeable_pair()) is not None:
            self.take(Opt(OptKind.MERGE, pair[0].arg[0], pair[1].arg[0]))

    def mergeable_pair(self) -> tuple[UOp, UOp] | None:
        closers = [n for n in self.nest.toposort() if n.closed_ranges]
        uses = [steps_of(u) for u in index_uses(self.nest)]
        seen: set[tuple[UOp, UOp]] = set()
        for closer in closers:
            for outer, inner in zip(closer.closed_ranges, closer.closed_ranges[1:], strict=False):
                if (outer, inner) not in seen and self.can_merge(outer, inner, closers, uses):
                    return outer, inner
                seen.add((outer, inner))
        return None

    def can_merge(self, outer: UOp, inner: UOp, closers: list[UOp],
                  uses: list[tuple[dict[UOp, int], frozenset[UOp]]]) -> bool:
        for closer in closers:
            closed = closer.closed_ranges
            if (outer in closed) != (inner in closed):
                return False
            if outer in closed and closed.index(inner) != closed.index(outer) + 1:
                return False
            if (outer in closer.ranges) != (inner in closer.ranges):
                return False
        for steps, irregular in uses:
            if outer in irregular or inner in irregular:
                return False
            if steps.get(outer, 0) != steps.get(inner, 0) * inner.extent:
                return False
        return True

    # --- 2. lanes ----------------------------------------------------------------------------------------------

    def lanes(self) -> int:
        """Lanes of the kernel's widest common float: of what it stores."""
        sizes = [s.src[1].dtype.scalar for s in self.nest.src]
        return min(self.renderer.lanes(d) for d in sizes)

    def vectorise_groups(self) -> None:
        """Lanes for the outputs' loops and for each reduce's, whichever serves; never two for one value."""
        done: set[int] = set()
        for _ in range(16):
            group = next((g for g in self.loop_groups() if g[0].arg not in done), None)
            if group is None:
                return
            done.update(r.arg for r in group[1])
            done.add(group[0].arg)
            self.vectorise(*group)

    def loop_groups(self) -> list[tuple[UOp, list[UOp]]]:
        """(a closing node's innermost range, the ranges that may run as its lanes), outputs first."""
        groups: list[tuple[UOp, list[UOp]]] = []
        nodes = self.nest.toposort()
        reduces = [n for n in nodes if n.op is Ops.REDUCE and n.closed_ranges]
        for store in self.nest.src:
            plain = [r for r in store.closed_ranges if r.arg[1] is RangeKind.LOOP]
            if not plain:
                continue
            rows = frozenset[UOp]().union(*(n.ranges for n in reduces if not n.ranges >= set(plain)))
            inside = [n for n in reduces if n.ranges >= set(plain)]
            candidates = [r for r in plain if r not in rows]
            candidates += [r for n in inside for r in n.closed_ranges if r.arg[1] is RangeKind.LOOP]
            if candidates:
                groups.append((plain[-1], list(dict.fromkeys(candidates))))
        for node in reduces:
            loops = [r for r in node.closed_ranges if r.arg[1] is RangeKind.LOOP]
            if loops:
                groups.append((loops[-1], loops))
        return groups

    def vectorise(self, innermost: UOp, candidates: list[UOp]) -> None:
        region = [a for a in accesses_of(self.nest) if innermost in a.ranges or any(c in a.ranges for c in candidates)]
        lanes = self.lanes()
        scored = [(self.lane_cost(r, region, lanes), -i, r) for i, r in enumerate(candidates) if self.can_vector(r)]
        if not scored:
            return
        cost, _, best = min(scored, key=lambda s: s[:2])
        if cost >= 1.0:
            return
        width = min(lanes, 1 << (best.extent.bit_length() - 1))
        self.vector_opts(best, width)

    def can_vector(self, r: UOp) -> bool:
        if r.extent < 4 or r.arg[1] is not RangeKind.LOOP:
            return False
        mixed = (n for n in self.nest.toposort() if r in n.ranges or r in n.closed_ranges)
        return not any(o.arg[1] is RangeKind.VECTOR for n in mixed for o in n.ranges | frozenset(n.closed_ranges))

    def lane_cost(self, r: UOp, region: list[Access], lanes: int) -> float:
        """Cost per item of running `r` as lanes, against 1 for running nothing so."""
        width = min(lanes, 1 << (r.extent.bit_length() - 1))
        inside = [a for a in region if r in a.ranges]
        if not inside:
            return 1.0
        weights = [float(prod(x.extent for x in a.ranges)) for a in inside]
        cost = 0.0
        for access, weight in zip(inside, weights, strict=True):
            step = access.step(r)
            cost += weight * (1.0 if step in (0, 1) else JUMP_COST)
        arithmetic = 2.0 * max(weights)
        return (cost + arithmetic) / (width * (sum(weights) + arithmetic))

    def vector_opts(self, r: UOp, width: int) -> None:
        """Lanes for `r`, and where it is long, several vectors side by side to hide their latency."""
        reduces = any(n.op is Ops.REDUCE and r in n.closed_ranges for n in self.nest.toposort())
        several = next((u for u in (4, 2) if r.extent >= width * u * 2), 0)
        outer = self.outer_after(Opt(OptKind.VECTOR, r.arg[0], width))
        if several and outer is not None:
            self.take(Opt(OptKind.GROUP if reduces else OptKind.UPCAST, outer, several))

    def outer_after(self, opt: Opt) -> int | None:
        """Apply a split; the identity of the loop left around it, None if no loop is left."""
        before = {r.arg[0] for r in self.nest.toposort() if r.op is Ops.RANGE}
        self.take(opt)
        new = [r for r in self.nest.toposort()
               if r.op is Ops.RANGE and r.arg[0] not in before and r.arg[1] is RangeKind.LOOP]
        return new[0].arg[0] if new else None

    # --- 3. contractions ---------------------------------------------------------------------------------------

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
        """Lanes along the range with the smoothest accesses, and a tile of accumulators around them."""
        node = contraction.reduce
        lanes = self.lanes()
        region = [a for a in accesses_of(self.nest) if set(node.closed_ranges) <= a.ranges or a.node.op is Ops.STORE]
        reading = [a for a in region if a.node.op is Ops.LOAD]
        sides = [*contraction.left, *contraction.right]
        candidates = [r for r in (*sides, *node.closed_ranges) if r.extent >= 4]
        if not candidates:
            self.vectorise_groups()
            return
        best = min(candidates, key=lambda r: (self.tile_cost(r, contraction, reading, lanes), r.arg[0]))
        if self.tile_cost(best, contraction, reading, lanes) >= 1.0:
            self.vectorise_groups()
            return
        width = min(lanes, 1 << (best.extent.bit_length() - 1))
        if best in node.closed_ranges:
            self.tile_dot(contraction, best, width)
        else:
            self.tile_outer(contraction, best, width)

    def tile_cost(self, r: UOp, contraction: Contraction, reading: list[Access], lanes: int) -> float:
        width = min(lanes, 1 << (r.extent.bit_length() - 1))
        tiles = -(-r.extent // width)
        waste = tiles * width / r.extent
        cost = sum(1.0 if a.step(r) in (0, 1) else JUMP_COST for a in reading) / max(1, len(reading))
        if r in contraction.reduce.closed_ranges:
            cost *= 1.5
        return cost * waste / width

    def tile_outer(self, contraction: Contraction, lane: UOp, width: int) -> None:
        """Lanes along an output range: vectors of one operand times single items of the other."""
        lane_side = contraction.left if lane in contraction.left else contraction.right
        other = contraction.right if lane in contraction.left else contraction.left
        vectors = min(4, -(-lane.extent // width))
        budget = self.renderer.registers * 3 // 4
        row = max(other, key=lambda r: (r.extent, r.arg[0]))
        rows = _tile_size(row.extent, budget // vectors)
        outer = self.outer_after(Opt(OptKind.VECTOR, lane.arg[0], width))
        if outer is not None and vectors > 1:
            self.take(Opt(OptKind.UPCAST, outer, _tile_size(-(-lane.extent // width), vectors)))
        elif len(lane_side) > 1 and rows * 2 <= budget:
            second = max((r for r in lane_side if r is not lane), key=lambda r: r.extent)
            self.take(Opt(OptKind.UPCAST, second.arg[0], _tile_size(second.extent, budget // rows)))
        if rows > 1:
            self.take(Opt(OptKind.UPCAST, row.arg[0], rows))

    def tile_dot(self, contraction: Contraction, lane: UOp, width: int) -> None:
        """Lanes along the reduce: both operands are vectors, each accumulator is summed at the end."""
        sides = [max(s, key=lambda r: (r.extent, r.arg[0])) for s in (contraction.left, contraction.right)]
        self.take(Opt(OptKind.VECTOR, lane.arg[0], width))
        for side in sides:
            size = _tile_size(side.extent, 4)
            if size > 1:
                self.take(Opt(OptKind.UPCAST, side.arg[0], size))

    # --- 4. threads --------------------------------------------------------------------------------------------

    def share_out(self) -> None:
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
        self.take(Opt(OptKind.THREAD, outermost.arg[0]))

    def encloses_the_same(self, outer: UOp, inner: UOp) -> bool:
        """True if nothing runs inside `outer` but outside `inner`."""
        for node in self.nest.toposort():
            if node.op is Ops.REDUCE and (outer in node.ranges) != (inner in node.ranges):
                return False
        return True


def _tile_size(extent: int, most: int) -> int:
    """A tile of at most `most` along `extent`: one that divides it, if that is not much smaller."""
    if extent <= most:
        return extent
    divisors = [d for d in range(most, 0, -1) if extent % d == 0]
    return divisors[0] if divisors[0] * 3 >= most * 2 else most


