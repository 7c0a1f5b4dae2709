"""Sums whose items lie in memory: two steps of the cost model.

Whether the loop that is summed over stands outside is a question of how memory is read; whether a segment sum
is a dense masked reduction or a one-pass scatter-add, of how much is computed. `scatter_add.py` does both.

The dense reduction costs outputs times everything, in lanes: 1000 segments of 4096 items in 16 lanes are
256,000 vectors, the unit of cost here. A pass costs everything, once for each tile of outputs that fits the
cache, and an addition for what is found: 2 * 4096 + 4096 / 16 if there is one tile.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad.codegen.opt.access import MemoryAccess, lie_side_by_side
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.opts import Interchange, Scatter, Split, Swap, Unroll, Upcast, Vector
from tinygrad.codegen.opt.panels import STAGING_REUSE
from tinygrad.codegen.ranges import is_plain, iterations, of_kind
from tinygrad.codegen.segment_sum import SegmentSum, segment_sums
from tinygrad.graph.ops import RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer.machine import Machine

PASS_COST = 2.0
"""Reading a segment's number, comparing whether it is in the tile, and adding there, in units of a vector of
the dense reduction."""
OUTPUT_COST = 1.0
"""Giving a vector of memory its first value, and reading it."""
CACHE_SHARE = 0.5
"""What sums may fill, of a core's own cache or of half its share of the last one: random places cost as much
there (measured: 1.4 ns an item up to 2 MB, 1.7 at 4 MB, 4 at 8 MB)."""
DUMP_SLOTS, MOST_TILES = 16, 12
"""Up to so many tiles, what belongs to others is added to dump slots: 1.4 ns an item of each pass, where a
branch takes 5.7 with two tiles, 2 with 8, 1.1 with 16 (it foresees better what is rare). Whole vectors
always: a store of none of its lanes to where no memory is takes 60 ns."""
LEAST_ROWS = 8
"""Of which the cache holds parts at least: longer rows take a pass for each part."""


def room(machine: Machine) -> int:
    """Bytes that the sums of one thread may fill."""
    return int(CACHE_SHARE * max(machine.l2_bytes, machine.l3_bytes // machine.threads // 2))


ROWS_TOGETHER = 8
"""Rows added at once: loads of so many runs are on their way together, and an item is stored once for all of
them. A 4096 x 4096 matrix times a vector on two Zen cores: 2.2 ms with 2, 1.7 with 4, 1.4 with 8; no tile in
registers took less than 2.3. 4000 x 5000 with AVX2 of an Intel server: 1.65 with 8, 1.98 with 16."""
ROWS_FOR_SEVERAL = 16
"""And where each is added to several sums, which take longer to load and to store than the rows do: of as
many as the first cache holds a line each. Times 15 vectors, Zen 4: 2.8 with 8 and 16, 3.0 with 32; 4.8 from
panels; Intel with AMX: 4.4 with 8, 3.3 with 12 and 16, 3.7 with 24."""
WRITTEN_OUT = 4
"""Of these, how many are written out."""
LEAST_RUN = 512
"""Bytes of a row that are worth reading in one run, which is what memory foresees: a tile in registers walks
down the rows, 512 of each (20,000 x 513, two cores of Intel with AVX-512: 1.83 ms by such tiles, 1.05 so,
10,000 x 260 0.46 and 0.34, 10,000 x 129 0.30 either way)."""
LEAST_RUN_FOR_SEVERAL = 2048
"""And where each is added to several sums: their tiles read 1024."""
PANELS_SHARE = 4
"""How many times as large as a core's own cache a matrix is that would be copied into panels for few outputs
(two cores of Zen 4, 8 x 3072 x 768: 0.34 ms in panels, 0.23 so, 15 x 6000 x 520 0.93 and 0.62, 24 x 768 x 768
0.16 and 0.19)."""


class ScatterChooser(Chooser):
    """Tiles of outputs in memory."""

    def interchange_sums(self) -> bool:
        """Take what adds up whole rows, where a sum walks across rows of memory that no cache holds and reads
        each item once, for all the outputs that it is for; False if that is not so."""
        loops, reduces = self.store.closed_ranges, self.reduces
        if len(self.nest.src) > 1 or not loops or len(reduces) != 1 or \
                len(reduces[0].closed_ranges) != 1 or reduces[0].ranges != frozenset(loops):
            return False
        loop, (summed,), read = loops[-1], reduces[0].closed_ranges, self.loads_of(reduces[0])
        across = [a for a in read if loop in a.ranges and a.step(summed)]
        if not across or any(a.step(summed) is None for a in read) or not lie_side_by_side(read, loop) or \
                any(a.step(loop) != 1 or a.ranges != across[0].ranges for a in across):
            return False
        outputs = [r for r in loops if r not in across[0].ranges]
        if len(outputs) > 1 or not all(map(is_plain, (loop, summed, *outputs))) or \
                summed.extent < 4 * ROWS_TOGETHER:
            return False
        size = self.run_of(loop, [r for r in loops[:-1] if r not in outputs], iterations(outputs))
        apart = min(abs(a.step(summed) or 0) * a.itemsize for a in across)
        if not self.worth_interchanging(across, apart, size, iterations(outputs)):
            return False
        loop, _ = self.tiled(loop, size)
        for r in outputs:
            self.split_off(Upcast, r)
        _, around = self.split(Vector, loop, self.width(loop))
        if outputs:
            tile = of_kind(self.reduces[0].ranges, RangeKind.UNROLL)
            for operand in self.operands_along([summed, *tile]):
                self.stage(operand, [summed, *tile])  # what a row is multiplied with lies together
        most = min(ROWS_FOR_SEVERAL, self.machine.lines_held(apart)) if outputs else ROWS_TOGETHER
        rows, _ = self.split(Split, self.reduces[0].closed_ranges[0], most)
        self.take(Unroll, rows, WRITTEN_OUT)
        if around is not None:
            self.take(Interchange, around)
        return True

    def worth_interchanging(self, across: list[MemoryAccess], apart: int, size: int, outputs: int) -> bool:
        """Whether rows are long, and memory has them; where several `outputs` are computed of each column,
        whether they are many bytes `apart` too, or would be copied into panels for these, and whether no
        other unit computes them."""
        if outputs > self.machine.accumulators or (outputs > 1 and any(
                unit.source is a.node.dtype for unit in self.machine.matrix_units for a in across)):
            return False
        moved = sum(a.itemsize for a in across) * iterations(across[0].ranges)
        run = size * self.store.src[1].dtype.itemsize
        self.note("rows added to a row", bytes=moved, cache=self.machine.l2_bytes, run=run, step=apart,
                  outputs=outputs)
        if outputs == 1:
            return run >= LEAST_RUN and moved > self.machine.l2_bytes
        in_panels = outputs >= STAGING_REUSE and min(apart, 2 * run) >= LEAST_RUN_FOR_SEVERAL and \
            moved > PANELS_SHARE * self.machine.l2_bytes
        return in_panels or (apart >= self.machine.page_bytes and run >= LEAST_RUN_FOR_SEVERAL and
                             moved > self.machine.l2_bytes)

    def run_of(self, loop: UOp, around: Sequence[UOp], outputs: int) -> int:
        """Iterations of `loop` that a tile has: whole vectors, of which a third of the first cache holds the
        sums, or a quarter of the second where there are several of each, and as many tiles as keep all
        threads busy."""
        room = self.machine.l1_bytes // 3 if outputs == 1 else self.machine.l2_bytes // 4
        most = max(1, room // (outputs * self.store.src[1].dtype.itemsize))
        threads = self.machine.threads if iterations(around) < self.machine.threads else 1
        tiles = round_up(max(1, ceildiv(loop.extent, most)), threads)
        return min(loop.extent, round_up(ceildiv(loop.extent, tiles), self.lanes()))

    def scatter_sums(self) -> bool:
        """Take the scatter-add of the most expensive segment sum, if that is cheaper; False if not."""
        found = max(segment_sums(self.nest), key=lambda b: self.dense_cost(b) - self.one_pass_cost(b),
                    default=None)
        if found is None or self.one_pass_cost(found) >= self.dense_cost(found):
            return False
        loop, inner, lanes = found.loop, self.added_together(found), self.lanes()
        part, rows = self.part_of_row(found), self.rows_at_once(found)
        if inner != found.inner(self.nest):  # passes of their own: all other loops around that of segments
            self.move_inside(loop)
        around = self.tiled(inner[0], part)[1] if inner else None
        if around is not None:
            self.take(Swap, around)
        loop, _ = self.tiled(loop, rows)
        dump_slots = DUMP_SLOTS if inner or ceildiv(found.loop.extent, rows) <= MOST_TILES else 0
        self.take(Scatter, loop, lanes, dump_slots)
        last = self.store.closed_ranges[-1]
        if last.kind is RangeKind.LOOP and self.can_vector(last):
            self.take(Vector, last, self.width(last))
        return True

    def added_together(self, found: SegmentSum) -> tuple[UOp, ...]:
        """The outputs' loops inside the one of segments, if all their items are in one segment; else none,
        and each of their iterations has a pass of its own."""
        inner = found.inner(self.nest)
        return inner if all(a.segment.ranges.isdisjoint(inner) for a in found.addends) else ()

    def dense_cost(self, found: SegmentSum) -> float:
        """Vectors of comparisons that the REDUCE makes as it is."""
        outputs = iterations(found.reduce.ranges)
        return outputs * iterations(found.reduce.closed_ranges) * len(found.addends) / self.lanes()

    def one_pass_cost(self, found: SegmentSum) -> float:
        """What the passes cost, in the same unit."""
        inner, walked = self.added_together(found), iterations(found.reduce.closed_ranges)
        row = iterations(inner)
        part = self.part_of_row(found)
        if part < row and len(inner) > 1:
            return math.inf  # only one loop can be cut into parts that leave room
        outer = iterations(found.reduce.ranges) / (found.loop.extent * row)
        passes = ceildiv(row, part) * ceildiv(found.loop.extent, self.rows_at_once(found))
        added, stored = walked * row / self.lanes(), found.loop.extent * row / self.lanes()
        return outer * len(found.addends) * (PASS_COST * (passes * walked + added) + OUTPUT_COST * stored)

    def part_of_row(self, found: SegmentSum) -> int:
        """Items of the outputs' loops inside that one pass adds to: all, or as many as leave room for
        rows."""
        most = self.cached_items(found) // LEAST_ROWS
        return min(iterations(self.added_together(found)), max(self.lanes(), most))

    def rows_at_once(self, found: SegmentSum) -> int:
        """Iterations of the loop whose outputs fit the cache, and leave every thread some."""
        loops = self.store.closed_ranges
        inside = (found.loop, *self.added_together(found))
        around = iterations([r for r in loops if r not in inside])
        parts = self.machine.threads if around < self.machine.threads else 1
        items = found.loop.extent * self.part_of_row(found)
        tiles = max(parts, ceildiv(items, self.cached_items(found)))
        near = ceildiv(items, self.items_in(int(CACHE_SHARE * self.machine.l2_bytes), found))
        if PASS_COST * near * iterations(found.reduce.closed_ranges) < OUTPUT_COST * items / self.lanes():
            tiles = max(tiles, near)  # few sums among many places: what they cost is to walk those
        return min(found.loop.extent, max(2, ceildiv(found.loop.extent, tiles)))

    def cached_items(self, found: SegmentSum) -> int:
        return self.items_in(room(self.machine), found)

    def items_in(self, size: int, found: SegmentSum) -> int:
        """Places for all sums of so many bytes, one at least."""
        return size // (found.reduce.dtype.itemsize * len(found.addends)) + 1
