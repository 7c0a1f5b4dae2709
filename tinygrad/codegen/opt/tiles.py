"""Contractions: which range takes the lanes, a tile of accumulators in registers, operands in panels.

A contraction is a sum of products whose operands change with different ranges, whatever made it: matmul,
convolution, attention, their gradients. Each way to run it has a cost for one multiply-add, against 1 for a
scalar one; the cheapest is taken. Around the statistics of its rows (attention), several rows run side by
side through all stages of the kernel.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tinygrad.codegen.contraction import Contraction, contraction_of
from tinygrad.codegen.opt.access import MemoryAccess, accesses_of
from tinygrad.codegen.opt.chooser import tile_size
from tinygrad.codegen.opt.lanes import JUMP_COST, LINE_ITEMS
from tinygrad.codegen.opt.loop_bounds import has_loose_bounds
from tinygrad.codegen.opt.loops import operands
from tinygrad.codegen.opt.merge import loop_around
from tinygrad.codegen.opt.opts import Merge, Split, Swap, Unroll, Upcast, Vector
from tinygrad.codegen.opt.panels import MOST_VECTORS, STAGING_REUSE, PanelChooser
from tinygrad.codegen.ranges import is_plain, output_ranges, range_named
from tinygrad.dtype import DType
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod, round_up
from tinygrad.renderer.machine import Machine

SCATTER_COST = 64.0
"""A store of lanes that do not lie side by side (a 4096 x 4096 result: 44 ms for its 1 M vectors)."""
WORTH_OF_VECTORS = {1: 0.7, 2: 0.99, 3: 0.97}
"""The speed of a tile so many vectors wide, against one of four (matmuls of 777 and 997)."""
FILL = 12.0
"""Products in whose time an item of a panel is copied."""
RUN_FILL = 2400.0
"""And those for a run of such items, which a row gives a panel, over its bytes (64 x 4096 x 4096 at 163
GFLOP/s in tiles of four vectors of 64 bytes and 144 of two, where no panel is filled 215; of vectors of 32
bytes at 109 and 98)."""
TURNED_FILL = 20.0
"""The same where whole rows are loaded and transposed."""
PANEL_SHARE = 1 / 2
"""Of the L2 cache, that a panel may fill. Rows pass through the rest, and a panel that they push out comes
from the cache behind it for each tile of rows (512 KB, 3 x 3 of 256 x 14 x 14, in tiles of 4 vectors by 3
rows: 70 GFLOP/s on a core; of 2 by 6: 86)."""
L3_BYTES = 20
"""What one core reads of that cache in a cycle, in which it multiplies two vectors (Zen 3: a sum over 3 MB at
64 GB/s)."""
PANEL_ROWS = 6
"""Rows in whose products every vector of a panel is used, so that two multiply-adds a cycle take a vector in
three cycles from the L2 cache (49 x 768 x 192 with AVX2: panels of two vectors 0.8 of the time of four)."""
SMALL_SHARE = 64
"""Bytes of an L2 cache for an item of an operand that is small enough to be read where it lies (512 x 256 x
250: 0.87 of the time with panels of its 256 KB; 512 x 100 x 200: 1.08 with panels of 80)."""
MOST_PANELS = 8
"""Panels that are filled before rows are multiplied with all of them."""
MANY_ROWS = 64
"""Rows from which on that pays: with fewer, to fill panels is most of the work (16 x 1592 x 2800: 1.1)."""
ROW_COST = 0.4
"""What it costs to have the rows come from the L2 cache for a panel of one vector, against 1 for its
products (512 x 256 x 1024 in tiles of four: 0.93 of the time with four panels; 777 in tiles of two: 0.85 with
seven)."""
PRODUCTS_TOGETHER = (4, 3, 2)
"""Products that an iteration of a tile's innermost loop adds up, the best first (512 x 256 x 1024 with
AVX-512: 904 us one by one, 848 by two, 842 by four, 876 by eight)."""
LATENCY = 10
"""Accumulators with which no multiply-add waits for the one before it: 4 cycles, two of them a cycle, and
some for what delays one."""
JOINED_GAIN = 1.03
"""From which on two ranges become one for the rows of tiles (a convolution of 28 x 28 pixels, 1.07 by the
model, takes 0.92 of the time; of 56 x 56, 1.02, the same)."""
SEVERAL_PLACES = 128
"""Products for which it pays to find where each row of a tile begins, by a division."""
PIXEL_COST = 0.25
"""Lanes along one of several ranges of an operand (an image's columns) where the other operand has but one
(the channels): its neighbours in the graph would have to follow that layout."""
LINE_COST = 0.5
"""A cache line fetched for the few items that the rows of a tile use of it, in the same units."""
_PANEL_ORDER = {RangeKind.LOOP: 0, RangeKind.UNROLL: 1, RangeKind.VECTOR: 2}
"""A panel lies in memory as its contraction walks it: tiles, then products, then the vectors of a tile."""


@dataclass(frozen=True)
class TileChoice:
    """Tiles of accumulators that stand side by side: what is said of them before their size is chosen."""

    machine: Machine
    count: int
    """vectors along the lanes"""
    filling: tuple[float, ...]
    """what filling the panels of tiles of one, two and more vectors takes, against 1 for the products"""
    panel: int = 0
    """the bytes of a panel that is a vector wide, 0 where there are none"""

    def vectors(self, rows: int) -> int:
        """How many vectors wide the best tile of a range of so many rows is."""
        return max(range(1, len(self.filling) + 1), key=lambda size: (self.worth(size, rows), size))

    def worth(self, size: int, rows: int) -> float:
        """The speed of tiles `size` vectors wide: where their panel lies, and what is done in vain by the
        last tile, by the last of the `rows` and by threads. They share out the tiles, or the rows, for which
        each of them fills all panels."""
        threads = self.machine.threads if self.machine.has_threads else 1
        tiles, fill = ceildiv(self.count, size), self.filling[size - 1]
        height = tile_size(rows, most_rows(self.machine, size))
        busy = tiles / round_up(tiles, threads) / (1 + fill), 1 / (1 + threads * fill)
        used = self.count / (tiles * size) * rows / round_up(rows, height)
        hidden = min(1.0, size * height / LATENCY)
        near = self.panel * size <= PANEL_SHARE * self.machine.l2_bytes
        fed = 1.0 if near else min(1.0, L3_BYTES * height / (2 * self.machine.vector_bytes))
        return WORTH_OF_VECTORS.get(size, 1.0) * used * max(busy) * hidden * fed


def most_accumulators(machine: Machine) -> int:
    """Three quarters of the registers. The others hold the operands of a tile's short side, and some of its
    long side, which is walked: LLVM loads a few of them ahead (of 32 registers 12 x 2 fit, 13 x 2 spill;
    4 x 3 fit 16)."""
    return machine.registers * 3 // 4


def most_rows(machine: Machine, vectors: int) -> int:
    """Rows of a tile so many vectors wide whose accumulators and operands fit the registers."""
    return max(1, most_accumulators(machine) // vectors)


def panel_items(machine: Machine, dtype: DType, columns: int) -> int:
    """How wide panels are best for a matrix of so many columns that is packed before anyone knows how many
    rows will be multiplied with it; 0 where no whole vectors divide it."""
    lanes = machine.lanes(dtype)
    widths = range(most_accumulators(machine) // PANEL_ROWS, 0, -1)
    return next((n * lanes for n in widths if lanes > 1 and columns % (n * lanes) == 0), 0)


class TileChooser(PanelChooser):
    """Tiles for contractions."""

    def main_contraction(self) -> Contraction | None:
        """The contraction with the most work that changes with every range of an output, none of which runs
        in order: where one item follows from the one before, there is nothing to tile."""
        outputs = [frozenset(s.closed_ranges) for s in self.nest.src
                   if all(r.arg[1] is not RangeKind.IN_ORDER for r in s.closed_ranges)]
        found = []
        for node in self.nest.toposort():
            contraction = contraction_of(node)
            if contraction is not None and node.ranges in outputs:
                found.append(contraction)
        if not found:
            return None
        return max(found, key=lambda c: prod(r.extent for r in c.reduce.closed_ranges))

    def tile(self, contraction: Contraction) -> None:
        """The cheapest way to run a contraction: which range takes the lanes, and a tile of accumulators
        around it."""
        alternatives: list[tuple[float, int, Callable[[], None]]] = []
        for side in (contraction.left, contraction.right):
            for r in side:
                if r.extent >= 4:
                    cost = self.outer_cost(contraction, r)
                    alternatives.append((cost, r.arg[0], partial(self.tile_outer, contraction, r)))
        for r in contraction.reduce.closed_ranges:
            if r.extent >= 4:
                cost = self.dot_cost(contraction, r)
                alternatives.append((cost, r.arg[0], partial(self.tile_dot, contraction, r)))
        alternatives.sort(key=lambda w: w[:2])
        self.note("a multiply-add, against 1 without lanes",
                  **{f"r{identity}_as_lanes": cost for cost, identity, _ in alternatives})
        if self.rank >= len(alternatives) or alternatives[self.rank][0] >= 1.0:
            self.cost = 1.0
            self.vectorise_groups()
            return
        self.cost, _, take = alternatives[self.rank]
        take()

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

    def panel_bytes(self, contraction: Contraction, lane: UOp, width: int) -> int:
        """Of the operand of `lane`, `width` items wide, over the whole reduce."""
        operand = self.operand_with(contraction, lane)
        items = int(prod(r.extent for r in contraction.reduce.closed_ranges if r in operand.ranges))
        return items * width * contraction.reduce.dtype.itemsize

    def panel_fits(self, contraction: Contraction, lane: UOp, width: int) -> bool:
        """True if one vector's worth of the operand stays near: twice the L2 cache."""
        return self.panel_bytes(contraction, lane, width) <= 2 * self.machine.l2_bytes

    def outer_cost(self, contraction: Contraction, lane: UOp) -> float:
        """Cost of a multiply-add with lanes along the output range `lane`, against 1 for a scalar one."""
        operand, width = self.operand_with(contraction, lane), self.width(lane)
        waste = round_up(lane.extent, width) / lane.extent
        reuse = self.staging_reuse(contraction, lane)
        if not self.is_walked_badly(operand, lane):
            reading = 1.0
        elif reuse >= STAGING_REUSE and self.panel_fits(contraction, lane, width):
            reading = 1.0 + JUMP_COST * width / reuse / 4
        else:
            reading = JUMP_COST
        reading += LINE_COST * self.lines_between_products(contraction, operand)
        lane_side, other_side = self.sides_with(contraction, lane)
        if len(lane_side) > len(other_side):
            reading += PIXEL_COST
        stores = self.stores_along(lane)
        reduced = int(prod(r.extent for r in contraction.reduce.closed_ranges))
        writing = sum(1.0 if a.step(lane) == 1 else SCATTER_COST for a in stores) / reduced
        return (reading + writing) * waste / width

    def stores_along(self, lane: UOp) -> list[MemoryAccess]:
        """The stores that change with a range."""
        return [a for a in accesses_of(self.nest) if a.node.op is Ops.STORE and lane in a.ranges]

    def lines_between_products(self, contraction: Contraction, lanes_operand: UOp) -> float:
        """How badly the operand that is read item by item lies: 1 where its next item is in another cache
        line, whichever way the reduce walks, and the L2 cache cannot hold it, so that every tile of lanes
        fetches those lines anew; 0 where it does not matter."""
        (other,) = (s for s in contraction.factors if s is not lanes_operand)
        walked = [abs(a.step(r) or LINE_ITEMS) for a in self.loads_of(other)
                  for r in contraction.reduce.closed_ranges if r in a.ranges]
        if not walked or any(step < LINE_ITEMS for step in walked):
            return 0.0
        size = self.items_read(other) * other.dtype.itemsize
        return min(1.0, size / self.machine.l2_bytes) if 2 * size > self.machine.l2_bytes else 0.0

    def dot_cost(self, contraction: Contraction, lane: UOp) -> float:
        """The same with lanes along the reduce: both operands are vectors, each accumulator is summed at the
        end."""
        width = self.width(lane)
        waste = round_up(lane.extent, width) / lane.extent
        loads = [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and lane in a.ranges]
        reading = sum(1.0 if a.step(lane) in (0, 1) else JUMP_COST for a in loads) / max(1, len(loads))
        reduced = int(prod(r.extent for r in contraction.reduce.closed_ranges))
        return (1.4 * reading * waste + 24.0 * width / reduced) / width

    def tile_outer(self, contraction: Contraction, lane: UOp) -> None:
        """Lanes along an output range: vectors of one operand times single items of the other."""
        width = self.width(lane)
        lane_side, other = self.sides_with(contraction, lane)
        operand = self.operand_with(contraction, lane)
        factors = contraction.factors
        which = factors.index(operand)
        self.walk_smoothly(contraction, factors[1 - which])
        small = self.items_read(operand) <= self.machine.l2_bytes // SMALL_SHARE
        jumps = self.is_walked_badly(operand, lane)
        in_panels = self.lies_in_panels(contraction, operand, lane)
        smooth = in_panels or (small and not jumps)
        panel = self.panel_bytes(contraction, lane, lane.extent)
        scatters = any(a.step(lane) != 1 for a in self.stores_along(lane))
        stage = (not smooth and self.staging_reuse(contraction, lane) >= STAGING_REUSE
                 and self.panel_fits(contraction, lane, width))
        order = next(n.closed_ranges for n in self.nest.toposort()
                     if n.op is Ops.REDUCE and set(n.closed_ranges) == set(contraction.reduce.closed_ranges))
        if stage and jumps:
            # The panel lies as what fills it: then whole rows of it are loaded, and transposed.
            source = self.loads_of(operand)[0]
            order = tuple(sorted(order, key=lambda r: -abs(source.step(r) or 0)))
        read_over = [r.arg[0] for r in order if r in operand.ranges]
        tiles = self.tiles_of(contraction, lane, stage, jumps)
        row = self.row_of_tiles(contraction, other, tiles)
        before = self.identities()
        outer = self.outer_after(Vector(lane.arg[0], width))
        lane_now = next(r for r in self.ranges() if r.arg[1] is RangeKind.VECTOR and r.arg[0] not in before)
        staged = [lane_now.arg[0]]
        size = tiles.vectors(row.extent) if outer is not None else 1
        if outer is not None and size > 1:
            before = self.identities()
            outer = self.outer_after(Upcast(outer, size))
            staged.insert(0, next(r.arg[0] for r in self.ranges()
                                  if r.arg[1] is RangeKind.UNROLL and r.arg[0] not in before))
        if size == 1 and len(lane_side) > 1:
            second = max((r for r in lane_side if r is not lane), key=lambda r: r.extent)
            size = tile_size(second.extent, 3)
            if size > 1:
                self.take(Upcast(second.arg[0], size))
        together = 1
        if stage and not scatters:  # where results lie across the lanes, tiles in turn write the same lines
            together = self.panels_together(contraction, operand, outer, lane, size)
        if outer is not None and together > 1:
            panels, groups = self.new_ranges(Split(outer, together))
            read_over.insert(0, panels.arg[0])
            outer = groups.arg[0]
        rows = tile_size(row.extent, most_rows(self.machine, max(1, size)))
        self.note("a tile of accumulators", rows=rows, vectors=size, registers=self.machine.registers,
                  uses_of_a_staged_item=self.staging_reuse(contraction, lane), staged=bool(stage))
        if rows > 1:
            self.take(Upcast(row.arg[0], rows))
        if stage and self.stage_factor(which, (*read_over, *staged)):
            self.fill_by_vectors()
            self.enclose_with(self.ranges_of_staging(outer))
        elif in_panels and (contraction_now := self.main_contraction()) is not None:
            self.walk_panels(contraction_now, lane_now, panel)
        self.write_out_products()

    def panels_together(self, contraction: Contraction, operand: UOp, outer: int | None, lane: UOp,
                        size: int) -> int:
        """How many panels, of tiles so many vectors wide, are filled before rows are multiplied with all of
        them: each row comes from the L2 cache for that many."""
        (other,) = (s for s in contraction.factors if s is not operand)
        rows_are_near = self.items_read(other) * other.dtype.itemsize <= self.machine.l1_bytes
        if outer is None or rows_are_near or self.staging_reuse(contraction, lane) < MANY_ROWS:
            return 1
        tiles, threads = range_named(self.nest, outer).extent, self.machine.threads
        panel = self.panel_bytes(contraction, lane, size * self.width(lane))
        room = int(PANEL_SHARE * self.machine.l2_bytes) // panel
        others = prod(r.extent for r in contraction.reduce.ranges & operand.ranges if r is not lane)

        def worth(count: int) -> tuple[float, int]:
            groups = ceildiv(tiles, count)
            shares = groups * others
            busy = shares / round_up(shares, threads)
            return tiles / (groups * count) * busy / (1 + ROW_COST / (count * size)), -count

        most = min(MOST_PANELS, room, tiles * others // threads, tiles - 1)
        return max(range(1, max(2, most + 1)), key=worth)

    def write_out_products(self) -> None:
        """A few products of the tile, one after the other, as one iteration of its innermost loop."""
        contraction = self.main_contraction()
        if contraction is None or has_loose_bounds(self.nest):
            return
        *others, innermost = contraction.reduce.closed_ranges
        choices = [n for n in PRODUCTS_TOGETHER if innermost.extent % n == 0]
        if not others:  # what is left over is added up once, not for each iteration of others
            choices.append(min(innermost.extent, PRODUCTS_TOGETHER[0]))
        if choices and choices[0] > 1 and is_plain(innermost):
            self.take(Unroll(innermost.arg[0], choices[0]))

    def walk_panels(self, contraction: Contraction, lane: UOp, size: int) -> None:
        """The loops over panels that lie in memory, of `size` bytes each, inside those over rows where the L2
        cache holds all of them, so that results are written in long runs; else around them. Loops that both
        operands change with stay outside."""
        loops = [r for r in self.nest.src[0].closed_ranges if r.arg[1] is RangeKind.LOOP]
        panels, rows = ([r for r in loops if r in side] for side in self.sides_with(contraction, lane))
        if not panels:
            return
        both = [r for r in loops if r not in panels and r not in rows]
        are_near = size * prod(r.extent for r in panels) <= PANEL_SHARE * self.machine.l2_bytes
        inside = (*rows, *panels) if are_near else (*panels, *rows)
        self.enclose_with([r.arg[0] for r in (*both, *inside)])

    def lies_in_panels(self, contraction: Contraction, operand: UOp, lane: UOp) -> bool:
        """True where the operand lies in memory as panels would: the vectors of a tile side by side, and one
        product behind the other. (What is computed of memory is staged: no tile computes it again.)"""
        if operand.op is not Ops.LOAD or lane.extent > MOST_VECTORS * self.width(lane):
            return False
        load = next(a for a in self.loads_of(operand) if a.node is operand)
        step = 1
        over = [r for r in contraction.reduce.closed_ranges if r in operand.ranges]
        for r in (lane, *sorted(over, key=lambda r: load.step(r) or 0)):
            if load.step(r) != step:
                return False
            step *= r.extent
        return True

    def sides_with(self, contraction: Contraction, lane: UOp) -> tuple[frozenset[UOp], frozenset[UOp]]:
        """The ranges of the operand of `lane`, and those of the other."""
        sides = contraction.left, contraction.right
        return sides if lane in contraction.left else sides[::-1]

    def tiles_of(self, contraction: Contraction, lane: UOp, stage: bool, jumps: bool) -> TileChoice:
        """Tiles as wide as there are vectors, and as their panels fit where they have some: with `stage`.
        Those are filled for them, from rows or, where the lanes of these jump, by turning them."""
        width, reuse = self.width(lane), self.staging_reuse(contraction, lane)
        count, run = ceildiv(lane.extent, width), width * contraction.reduce.dtype.itemsize
        widths = range(1, min(MOST_VECTORS, count) + 1)
        if not stage:
            return TileChoice(self.machine, count, (0.0,) * len(widths))
        fills = (TURNED_FILL if jumps else FILL + RUN_FILL / (n * run) for n in widths
                 if self.panel_fits(contraction, lane, n * width))
        return TileChoice(self.machine, count, tuple(fill / reuse for fill in fills),
                          self.panel_bytes(contraction, lane, width))

    def row_of_tiles(self, contraction: Contraction, other: frozenset[UOp], tiles: TileChoice) -> UOp:
        """The range of the other operand that goes into tiles: with the one around it as a single range where
        tiles of it alone would leave many of their rows empty (7 x 7 pixels as 49)."""
        row = max(other, key=lambda r: (self.row_rank(r), r.arg[0]))
        around = loop_around(self.nest, row)
        products = prod(r.extent for r in contraction.reduce.closed_ranges)
        if around not in other or products < SEVERAL_PLACES:
            return row
        together = int(around.extent * row.extent)
        alone, joined = (tiles.worth(tiles.vectors(rows), rows) for rows in (row.extent, together))
        self.note("rows of tiles", alone=alone, with_the_loop_around=joined)
        if joined < JOINED_GAIN * alone or has_loose_bounds(self.nest):
            return row  # of a range made of two, nobody could tell where it may end
        return self.new_ranges(Merge(around.arg[0], row.arg[0]))[-1]

    def most_vectors(self, rows: int) -> int:
        """Vectors beside so many rows that fit the registers too."""
        return max(1, min(MOST_VECTORS, most_accumulators(self.machine) // rows))

    def walk_smoothly(self, contraction: Contraction, single: UOp) -> None:
        """Order the reduce so that the operand read item by item is walked with its smallest steps
        innermost."""
        loads = self.loads_of(single)
        if not loads:
            return
        largest = max(loads, key=lambda a: len(a.ranges))
        closed = contraction.reduce.closed_ranges
        wanted = sorted(closed, key=lambda r: -abs(largest.step(r) or 0))
        if wanted != list(closed):
            for r in reversed(wanted):
                self.take(Swap(r.arg[0]))

    def row_rank(self, r: UOp) -> tuple[bool, int]:
        """Rows of the tile: a range whose items lie near each other, then the longest."""
        near = all(abs(a.step(r) or 0) <= 64 for a in accesses_of(self.nest) if a.node.op is Ops.LOAD)
        return (near and r.extent >= 4, r.extent)

    def tile_dot(self, contraction: Contraction, lane: UOp) -> None:
        """Lanes along the reduce: both operands are vectors, each accumulator is summed at the end."""
        sides = [max(s, key=lambda r: (r.extent, r.arg[0])) for s in (contraction.left, contraction.right)]
        self.take(Vector(lane.arg[0], self.width(lane)))
        for side in sides:
            size = tile_size(side.extent, 4)
            if size > 1:
                self.take(Upcast(side.arg[0], size))

    def tile_rows(self, contraction: Contraction) -> None:
        """Several rows side by side in registers through every stage: what a row is multiplied with is read
        once for all of them."""
        statistics = [n for n in self.nest.toposort() if n.op is Ops.REDUCE and n.closed_ranges
                      and n.ranges < contraction.reduce.ranges]
        rows = frozenset(contraction.reduce.ranges).intersection(*(n.ranges for n in statistics))
        sides = [(contraction.left, contraction.right), (contraction.right, contraction.left)]
        alternatives = [(self.outer_cost(contraction, lane), lane.arg[0], lane, row)
                for columns, others in sides for lane in columns - rows if lane.extent >= 4
                for row in others & rows]
        alternatives.sort(key=lambda w: (*w[:2], self.row_rank(w[3])))
        self.note("a multiply-add of rows, against 1 without lanes",
                  **{f"r{lane.arg[0]}_as_lanes_of_r{row.arg[0]}": cost for cost, _, lane,
                     row in alternatives})
        if self.rank < len(alternatives) and alternatives[self.rank][0] < 1.0:
            self.cost, _, lane, row = alternatives[self.rank]
            size = self.lane_tile(lane, MOST_VECTORS)
            most = most_rows(self.machine, size)
            count = tile_size(row.extent, most)
            if count > 1:
                self.take(Upcast(row.arg[0], count))
            self.tile_cached_rows(self.most_vectors(count))
        self.vectorise_groups()

    def tile_cached_rows(self, vectors: int) -> None:
        """Lanes along the rows of sums that are kept (the scores of attention), their other operand staged
        where lanes would jump in it."""
        done: set[int] = set()
        while (loop := self.cached_contraction(done)) is not None:
            before = self.identities()
            done.add(loop.arg[0])
            self.lane_tile(loop, vectors)
            new = [r for r in self.ranges() if r.arg[0] not in before]
            done.update(r.arg[0] for r in new)
            lane = next(r for r in new if r.arg[1] is RangeKind.VECTOR)
            for operand in operands(self.nest):
                if lane in operand.ranges and self.is_walked_badly(operand, lane):
                    inner = [r for r in operand.ranges if r not in output_ranges(self.nest)]
                    order = sorted(inner, key=lambda r: (_PANEL_ORDER[r.arg[1]], r not in new, r.arg[0]))
                    self.stage(operand, order)
                    self.fill_by_vectors()
                    break

    def cached_contraction(self, done: set[int]) -> UOp | None:
        """The loop that fills a cached row with sums of products."""
        for node in self.nest.toposort():
            if node.op is not Ops.STAGE or node.closed_ranges[-1].arg[0] in done:
                continue
            loop = node.closed_ranges[-1]
            for inner in node.src[0].toposort(stop=lambda n: n.op is Ops.STAGE):
                contraction = contraction_of(inner)
                if contraction is not None and loop in contraction.left | contraction.right:
                    return loop
        return None
