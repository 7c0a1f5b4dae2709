"""Which loops run as SIMD lanes: the step of the cost model for everything but contractions.

Every group of loops (those over an output, those of a reduce) gets lanes along the range whose accesses lie
side by side, and several vectors beside each other where that hides latency or reads memory in runs. A
transpose gets tiles of whole cache lines; the taps of small windows are written out.
"""
from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from functools import partial

from tinygrad.codegen.cost import OPERATIONS, is_computed
from tinygrad.codegen.opt.access import MemoryAccess
from tinygrad.codegen.opt.chooser import Alternative, Chooser, power_of_two, tile_size
from tinygrad.codegen.opt.loop_partition import MOST_TAPS
from tinygrad.codegen.opt.loops import is_reduce_range, is_stage_range, writes_what_it_reads
from tinygrad.codegen.opt.opts import Accumulators, Split, Unroll, Upcast, Vector
from tinygrad.codegen.ranges import ZERO, iterations, loops_of, of_kind, running_in, runs_of
from tinygrad.codegen.transpose import MOST_STRIDE
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.symbolic import is_multiple, linear_terms
from tinygrad.graph.uop import UOp

MOST_VECTORS = 4
"""Vectors of a tile side by side: their loads, of as many lines, are shared by all its rows."""
JUMP_COST = 12.0
"""A load or store of lanes that do not lie side by side, in units of one that does."""
MOST_COLUMNS = 16
"""Vectors of columns that are summed up side by side."""
MINOR_SHARE = 64
"""How many iterations the longest loops of a kernel have for each one of a sum that does not matter."""
TILES_TOGETHER = 2
"""Tiles of a transpose whose rows are stored one behind the other. More read too many rows at once."""
MOST_OVERLAPPING = 8
"""Outputs side by side whose windows overlap (4 of a depthwise convolution took 1.1 to 1.2 times as long)."""
MOST_WRITTEN_OUT = 320
"""Operations of vectors side by side. A longer body hides more of its own latency, and takes long to compile:
a random number, 150 operations, twice in place of four times takes 2% longer, once 5% (256 x 256, Zen 1)."""
WORK = {**dict.fromkeys(Family.ELEMENTARY, 20), Ops.THREEFRY: OPERATIONS[Ops.THREEFRY]}
"""Operations of an elementary function."""


class LaneChooser(Chooser):
    """Lanes for outputs and reduces."""

    def vectorise_groups(self) -> None:
        """Lanes for the outputs' loops and for each reduce's, whichever serves; never two for one value."""
        done: set[UOp] = set()
        while (group := next((g for g in self.loop_groups() if g[0] not in done), None)) is not None:
            done.add(group[0])
            self.vectorise(*group)

    def loop_groups(self) -> Iterator[tuple[UOp, list[UOp]]]:
        """(a closing node's innermost range, the ranges that may run as its lanes), outputs first."""
        reduces = self.reduces
        longest_first = sorted(self.nest.src, key=lambda s: -iterations(s.closed_ranges))
        for store in longest_first:
            plain = loops_of(store)
            if not plain or of_kind(store.closed_ranges, RangeKind.VECTOR):
                continue
            inside = [n for n in reduces if n.ranges.issuperset(plain)]
            rows = [n.ranges for n in reduces if n not in inside]
            candidates = [r for r in plain if not any(r in ranges for ranges in rows)]
            candidates += [r for n in inside for r in loops_of(n)]
            yield plain[-1], list(dict.fromkeys(candidates + plain))
        for node in reduces:
            if loops := loops_of(node):
                yield loops[-1], loops
        for node in self.nest.nodes_of(Ops.STAGE):
            last = node.closed_ranges[-1]
            if last.kind is RangeKind.LOOP:
                yield last, [last]

    def vectorise(self, innermost: UOp, candidates: list[UOp]) -> None:
        around = {innermost, *candidates}
        region = [a for a in self.accesses() if not around.isdisjoint(a.ranges)]
        self.take_cheapest("an item, against 1 without lanes", [
            Alternative(self.lane_cost(r, region), (-i,), f"r{r.identity}_as_lanes",
                        partial(self.vector_opts, r))
            for i, r in enumerate(candidates) if self.can_vector(r) and not self.spoils_sums(r)])

    def whole_width(self, r: UOp) -> int:
        """Lanes of a vector along `r`: half as many where that makes its vectors whole, and results that the
        last cache cannot hold can go past it (depthwise convolution of 56 columns: 1.77 ms to 1.63)."""
        width = self.width(r)
        halves = r.extent % width and r.extent % (width // 2) == 0 and self.outgrows_last_cache()
        return width // 2 if halves else width

    def spoils_sums(self, r: UOp) -> bool:
        """True if lanes along `r` would make a loop that sums up something for each of them jump in memory,
        where lanes along that loop, or another around it, would not."""
        for node in self.reduces:
            if r in node.ranges and not self.is_minor(node):
                inside = node.src[0].toposort(stop=lambda n: n.op is Ops.REDUCE)
                loads = [a for a in self.accesses(r) if a.node in inside]
                if not _is_smooth(r, loads) and any(_is_smooth(other, loads) and self.can_vector(other)
                                                    for other in (*node.closed_ranges, *node.ranges)):
                    return True
        return False

    def is_minor(self, reduce: UOp) -> bool:
        """True for a sum with far fewer iterations than other loops have: how it runs does not matter."""
        longest = max(map(runs_of, self.nest.nodes_of(Ops.REDUCE, Ops.STORE)))
        return MINOR_SHARE * runs_of(reduce) <= longest

    def lane_cost(self, r: UOp, region: list[MemoryAccess]) -> float:
        """Cost per item of running `r` as lanes, against 1 for running nothing so."""
        width = self.width(r)
        inside = [a for a in region if r in a.ranges]
        if not inside:
            return 1.0
        weights = [float(iterations(a.ranges)) for a in inside]
        cost = sum(w * reading_cost(a.step(r)) for a, w in zip(inside, weights, strict=True))
        arithmetic = 2.0 * max(weights)
        return (cost + arithmetic) / (width * (sum(weights) + arithmetic))

    def vector_opts(self, r: UOp) -> None:
        """Lanes for `r`, and where it is long, several vectors side by side to hide their latency."""
        width = self.whole_width(r)
        reduces = is_reduce_range(self.nest, r)
        work = sum(work_of(n) for n in self.nest.toposort() if is_computed(n) and r in n.ranges)
        most = MOST_WRITTEN_OUT // max(1, work)
        several = next((u for u in (4, 2) if r.extent >= width * u * 2 and u <= most), 0)
        sums = sum(r in n.ranges and not self.is_minor(n) for n in self.reduces)
        if sums:
            several = self.columns_at_once(r, width, sums)
            if several and not reduces:
                several = min(several, self.columns_beside_windows(r))
        if is_stage_range(self.nest, r):
            several = 0
        # a tile of whole cache lines uses every item of a line that it fetches
        lines = [r for store in self.nest.src for r in loops_of(store) if r.extent >= self.line_items]
        across = None if reduces else self.crossing(r, lines)
        for between in () if reduces else self.loops_between(r):
            self.take(Upcast, between, between.extent)
        outer = self.split_off(Vector, r, width)
        if across is not None:
            self.tile_transpose(outer, across, width)
            return
        self.split_off(Accumulators if reduces else Upcast, outer, several)
        if several == MOST_COLUMNS and not reduces:
            # The loop of the only sum, for two have no registers for as many, two iterations at a time
            # (2.4 ms instead of 2.9 for a row times a 4096 x 4096 matrix on two cores).
            last = (n.closed_ranges[-1] for n in self.reduces)
            if (loop := next((r for r in last if r.extent >= 2 * MOST_COLUMNS), None)) is not None:
                self.take(Unroll, loop, 2)

    def loops_between(self, r: UOp) -> list[UOp]:
        """The loops over the few items that lie between those of lanes along `r` where they are stored. All
        at once these are stored as runs (8 x 32 x 112 x 112 pixels to 224 x 224: 5.7 -> 0.9 ms; Zen 4)."""
        steps = [a.step(r) for a in self.accesses(r, Ops.STORE)]
        return [loop for loop in self.loops if steps == [loop.extent] and loop.extent <= MOST_STRIDE
                and all(a.step(loop) == 1 for a in self.accesses(loop, Ops.STORE))]

    def columns_at_once(self, r: UOp, width: int, sums: int) -> int:
        """Vectors beside each other where each lane sums up its own column: memory is read in runs as long as
        the registers allow, while every thread still has columns of its own, or all of a short row where
        other loops have shares for them."""
        others = iterations(self.outputs - {r})
        for vectors in (MOST_COLUMNS, 8, 4, 2):
            fits = vectors * sums <= self.machine.registers // 2
            is_row = r.extent == width * vectors and others >= 2 * self.machine.threads
            if fits and (is_row or r.extent >= width * vectors * 2 * self.machine.threads):
                return vectors
        return 0

    def columns_beside_windows(self, r: UOp) -> int:
        """The most vectors along `r` whose sums fit the registers, each as often as outputs whose windows
        overlap stand beside it (a depthwise 3 x 3 convolution of 28 x 28, 7 rows of 8 vectors in 16
        registers: 1.5 times as long as of 2)."""
        rows = [tile_size(loop.extent, MOST_OVERLAPPING) for loop in self.windows()[1] if loop is not r]
        most = max(2, self.machine.registers // max(rows, default=1))
        return power_of_two(int(most))

    def tile_transpose(self, outer: UOp | None, across: UOp, width: int) -> None:
        """Squares that are turned in registers, as many side by side as store whole cache lines (4096 x 4096
        on two cores with AVX2: 2.6 ms instead of 5.8)."""
        vectors = self.machine.line_bytes // (width * self.store.src[1].dtype.lane_size)
        if outer is not None and outer.extent >= 2 * vectors:
            outer = self.split_off(Upcast, outer, vectors)
        self.walk_rows_of_tiles(outer, self.split_off(Upcast, across, width))

    def worth_streaming(self) -> bool:
        """True if the results, in whole vectors, fill much of the last cache: an ordinary store reads what it
        overwrites first, and pushes out what others could still use."""
        self.note("stores past the caches", written=self.written_bytes(), cache=self.machine.l3_bytes)
        whole = all(map(stores_vectors, self.nest.src))
        return self.outgrows_last_cache() and whole and not writes_what_it_reads(self.nest)

    def walk_rows_of_tiles(self, lanes: UOp | None, lines: UOp | None) -> None:
        """Visit the tiles of a transpose in the order in which their items lie where they are loaded, which
        the processor fetches ahead (9.8 ms instead of 18 for 4096 x 4096 on one core); where results go past
        the caches, two tiles that lie side by side together: memory takes their rows as one (3.6 ms to
        2.4)."""
        if lanes is None or lines is None:
            return
        order = self.loops
        if len(self.nest.src) > 1 or lanes not in order or lines not in order or self.has_statistics():
            return
        wanted = [r for r in order if r not in (lanes, lines)] + [lanes, lines]
        if self.worth_streaming() and lanes.extent >= 2 * TILES_TOGETHER:
            together, around = self.new_ranges(Split, lanes, TILES_TOGETHER)
            wanted[-2:] = [around, lines, together]
        if wanted != order:
            self.reorder(wanted)

    def write_out_windows(self) -> None:
        """The taps of small windows (depthwise convolution, pooling) written out, and several outputs side by
        side along an axis where their windows overlap: what they share is loaded once, and which taps lie
        outside the image is known early. Of large windows the innermost taps alone are written out."""
        taps, across = self.windows()
        for r in taps if across else self.short_sums(taps):
            self.split_off(Unroll, r)
        for loop in across:
            self.split_off(Upcast, loop, tile_size(loop.extent, MOST_OVERLAPPING))

    def short_sums(self, taps: list[UOp]) -> list[UOp]:
        """Those of the taps, the innermost first, that make no long body written out, where no window shares
        what it loads with another (32 parts of a weight's gradient, added up in 16 vectors: 512 loads took
        twice as long as a loop, and five times as long to compile)."""
        reduces = self.reduces
        vectors = max((iterations(of_kind(n.ranges, RangeKind.UNROLL)) for n in reduces), default=1)
        values = [*reduces, *(n for n in self.nest.toposort() if n.op is Ops.LOAD or is_computed(n))]
        short: list[UOp] = []
        for r in taps:
            written = [*short, r]
            items = sum(work_of(n) * iterations(t for t in written if t in running_in(n))
                        for n in values)
            if vectors * items > MOST_WRITTEN_OUT:
                break
            short.append(r)
        return short

    def windows(self) -> tuple[list[UOp], list[UOp]]:
        """(the taps of small windows, the innermost first; the loops over outputs whose neighbouring
        iterations share what they read), both empty where there are none."""
        reduces = self.reduces
        taps = list(dict.fromkeys(r for n in reduces for r in n.closed_ranges))
        if not taps or len(reduces) > len(self.nest.src) or self.has_statistics() or \
                any(n.closed_ranges != tuple(taps) for n in reduces) or of_kind(taps, RangeKind.LOOP) != taps:
            return [], []
        sizes = itertools.accumulate((r.extent for r in reversed(taps)), operator.mul)
        small = [r for r, written in zip(reversed(taps), sizes, strict=True) if written <= MOST_TAPS]
        across = dict.fromkeys(self.overlapping(store, taps) for store in self.nest.src) if small else {}
        return small, [loop for loop in across if loop is not None]

    def overlapping(self, store: UOp, taps: list[UOp]) -> UOp | None:
        """A loop over outputs whose neighbouring iterations read the same items through other taps."""

        def shares(load: MemoryAccess, r: UOp) -> bool:
            step, reach = abs(load.step(r) or 0), [(abs(load.step(t) or 0), t.extent) for t in taps]
            return step > 0 and any(own and step % own == 0 and step < own * count for own, count in reach)

        loads = self.loads_of(store)
        return next((r for r in loops_of(store) if any(shares(load, r) for load in loads)), None)


def work_of(node: UOp) -> int:
    """Operations that a node takes."""
    return WORK.get(node.op, 1)


def _is_smooth(r: UOp, loads: list[MemoryAccess]) -> bool:
    """Whether most of these lie side by side along `r`."""
    return 2 * sum(a.is_smooth(r) for a in loads) >= len(loads)


def reading_cost(step: int | None) -> float:
    """A load of lanes that lie `step` items apart, in units of one whose lanes lie side by side."""
    if step in (0, 1):
        return 1.0
    return 2.0 * abs(step) if step is not None and abs(step) <= MOST_STRIDE else JUMP_COST


def stores_vectors(store: UOp) -> bool:
    """True if the lanes of the STORE fill aligned places of memory."""
    lanes = of_kind(store.closed_ranges, RangeKind.VECTOR)
    if len(lanes) != 1 or store.mask is not None:
        return False
    offset = store.offset
    first = offset.substitute({lanes[0]: ZERO})
    return linear_terms(offset).terms.get(lanes[0]) == 1 and is_multiple(first, lanes[0].extent)
