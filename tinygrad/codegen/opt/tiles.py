"""Contractions: which range takes the lanes, a tile of accumulators in registers, operands in panels.

A contraction is a sum of products whose operands change with different ranges, whatever made it: matmul,
convolution, attention, their gradients. Each way to run it has a cost for one multiply-add, against 1 for a
scalar one; the cheapest is taken. Around the statistics of its rows (attention), several rows run side by
side through all stages of the kernel.
"""
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from operator import mul

from tinygrad.codegen.contraction import Contraction, contraction_of
from tinygrad.codegen.opt.access import MemoryAccess
from tinygrad.codegen.opt.chooser import Alternative, power_of_two, tile_size, waste
from tinygrad.codegen.opt.lanes import JUMP_COST, MOST_VECTORS
from tinygrad.codegen.opt.loop_bounds import has_loose_bounds
from tinygrad.codegen.opt.loops import loop_around
from tinygrad.codegen.opt.opts import Merge, Split, Unroll, Upcast, Vector
from tinygrad.codegen.opt.panels import STAGING_REUSE, WIDEST, PanelChooser, panel_order
from tinygrad.codegen.ranges import all_ranges, is_plain, iterations, of_kind
from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.machine import Machine

SCATTER_COST = 64.0
"""A store of lanes that do not lie side by side (a 4096 x 4096 result: 44 ms for its 1 M vectors)."""
LEAST_ROWS = 3
"""Of a tile wider than four vectors. (With AVX2, two: 1.06 of the time of 3 x 4, though none are empty.)"""
WORTH_OF_VECTORS = {1: 0.7, 2: 0.99, 3: 0.97, 5: 0.93, 6: 0.93, 7: 0.93}
"""The speed of a tile so many vectors wide, against one of four (matmuls of 777 and 997). More than four are
as fast, and chosen where that pays for sure."""
FILL = 12.0
"""Products in whose time an item of a panel is copied."""
RUN_FILL = 2400.0
"""And those for a run of such items, which a row gives a panel, over its bytes (64 x 4096 x 4096 at 163
GFLOP/s in tiles of four vectors of 64 bytes and 144 of two, where no panel is filled 215; of vectors of 32
bytes at 109 and 98)."""
TURNED_FILL = 20.0
"""The same where whole rows are loaded and transposed."""
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


@frozen
class TileChoice:
    """Tiles of accumulators that stand side by side: what is said of them before their size is chosen."""

    machine: Machine
    count: int
    """vectors along the lanes"""
    filling: tuple[float, ...]
    """what filling the panels of tiles of one, two and more vectors takes, against 1 for the products"""
    panel: int = 0
    """the bytes of a panel that is a vector wide, 0 where there are none"""
    batch: int = 1
    """products whose tiles threads share out too"""

    def vectors(self, rows: int) -> int:
        """How many vectors wide the best tile of a range of so many rows is."""
        return max(range(1, len(self.filling) + 1), key=lambda size: (self.worth(size, rows), size))

    def worth(self, size: int, rows: int) -> float:
        """The speed of tiles `size` vectors wide: where their panel lies, and what is done in vain by the
        last tile, by the last of the `rows` and by threads. They share out the tiles, or the rows, for which
        each of them fills all panels."""
        tiles, fill = ceildiv(self.count, size), self.filling[size - 1]
        height = tile_size(rows, self.machine.tile_rows(size))
        busy = self.machine.busy_share(tiles * self.batch) / (1 + fill), 1 / (1 + self.machine.threads * fill)
        used = 1 / (waste(self.count, size) * waste(rows, height))
        hidden = min(1.0, size * height / LATENCY)
        near = self.panel * size <= self.machine.near_bytes
        fed = 1.0 if near else min(1.0, self.machine.l3_rate * height / (2 * self.machine.vector_bytes))
        return WORTH_OF_VECTORS.get(size, 1.0) * used * max(busy) * hidden * fed


def panel_items(machine: Machine, dtype: DType, columns: int) -> int:
    """How wide panels are best for a matrix of so many columns that is packed before anyone knows how many
    rows will be multiplied with it; 0 where no whole vectors divide it."""
    lanes = machine.lanes(dtype)
    widths = range(machine.accumulators // PANEL_ROWS, 0, -1)
    return next((n * lanes for n in widths if lanes > 1 and columns % (n * lanes) == 0), 0)


@frozen
class VectorProduct:
    """A contraction with lanes along a range of one operand, `vectors`; of `single` items are read one by
    one."""

    reduce: UOp
    lane: UOp
    vectors: UOp
    single: UOp
    columns: frozenset[UOp]
    """the ranges that the vectors alone change with, the lane among them"""
    rows: frozenset[UOp]
    """and those of the other operand"""

    @cached_property
    def batch(self) -> frozenset[UOp]:
        """The ranges that both operands change with and that are not summed over."""
        return self.vectors.ranges & self.single.ranges - frozenset(self.reduce.closed_ranges)

    @cached_property
    def reuse(self) -> int:
        """How often each item of the vectors is read: by every iteration of the ranges it does not know."""
        return iterations(self.reduce.ranges - self.vectors.ranges)

    @cached_property
    def products(self) -> int:
        """Products of a sum."""
        return iterations(self.reduce.closed_ranges)

    @cached_property
    def column_bytes(self) -> int:
        """Bytes of the vectors' operand for one lane, over the whole reduce."""
        summed = (r for r in self.reduce.closed_ranges if r in self.vectors.ranges)
        return iterations(summed) * self.reduce.dtype.itemsize


def items_of_memory(operand: UOp) -> int:
    """Items of all the memory that an operand is made from."""
    return sum(int(n.arg[1]) for n in operand.nodes_of(Ops.PARAM))


def along(contraction: Contraction, lane: UOp) -> VectorProduct:
    """A contraction with lanes along one of its output ranges."""
    order = 1 if lane in contraction.left else -1
    vectors, single = contraction.factors[::order]
    columns, rows = contraction.sides[::order]
    return VectorProduct(contraction.reduce, lane, vectors, single, columns, rows)


class TileChooser(PanelChooser):
    """Tiles for contractions."""

    def tile(self, contraction: Contraction) -> None:
        """The cheapest way to run a contraction: which range takes the lanes, and a tile of accumulators
        around it."""
        self.cost = self.take_cheapest("a multiply-add, against 1 without lanes", self.ways(contraction),
                                       self.rank)
        if self.cost == 1.0:
            self.vectorise_groups()

    def ways(self, contraction: Contraction) -> Iterator[Alternative]:
        """The ways to run a contraction: lanes along a range of either operand, or along the reduce."""
        summed = contraction.reduce.closed_ranges
        for r in (*contraction.left, *contraction.right, *summed):
            if r.extent < 4:
                continue
            if r in summed:
                cost, take = self.dot_cost(contraction, r), partial(self.tile_dot, contraction, r)
            else:
                product = along(contraction, r)
                cost, take = self.outer_cost(product), partial(self.tile_outer, product)
            yield Alternative(cost, (r.identity,), f"r{r.identity}_as_lanes", take)

    def items_read(self, product: VectorProduct, operand: UOp) -> int:
        """Items of memory that an operand of one product of a batch is made from."""
        whole = items_of_memory(operand)
        return min(whole, iterations(operand.ranges - product.batch)) if product.batch else whole

    def panel_fits(self, product: VectorProduct, width: int) -> bool:
        """True if so many lanes of the operand stay near: twice the L2 cache."""
        return product.column_bytes * width <= 2 * self.machine.l2_bytes

    def outer_cost(self, product: VectorProduct) -> float:
        """Cost of a multiply-add with lanes along an output range, against 1 for a scalar one."""
        width = self.width_of_tile(product)
        if not self.is_walked_badly(product.vectors, product.lane):
            reading = 1.0
        elif product.reuse >= STAGING_REUSE and self.panel_fits(product, width):
            reading = 1.0 + JUMP_COST * width / product.reuse / 4
        else:
            reading = JUMP_COST
        reading += LINE_COST * self.lines_between_products(product)
        if len(product.columns) > len(product.rows):
            reading += PIXEL_COST
        stores = self.accesses(product.lane, Ops.STORE)
        writing = sum(1.0 if a.step(product.lane) == 1 else SCATTER_COST for a in stores) / product.products
        return (reading + writing) * waste(product.lane.extent, width) / width

    def width_of_tile(self, product: VectorProduct) -> int:
        """Lanes of a tile's vectors. Where there are fewer columns than a vector has lanes, the others are
        not stored. (256 x 784 x 10 as one vector of 16 lanes: 0.60 of the time of two of 8 that overlap; 73 x
        70 x 63 pixels to 12 channels, stride 2, 0.85; Intel with AMX. Not along one of several loops: lanes
        for 7 x 7 pixels with AVX2 take 1.2 of the time of those for channels.)"""
        is_alone = len(product.columns) == 1
        return min(self.lanes(), power_of_two(2 * product.lane.extent - 1)) if is_alone else \
            self.width(product.lane)

    def lines_between_products(self, product: VectorProduct) -> float:
        """How badly the operand that is read item by item lies: 1 where its next item is in another cache
        line, whichever way the reduce walks, and the L2 cache cannot hold it, so that every tile of lanes
        fetches those lines anew; 0 where it does not matter."""
        walked = [abs(a.step(r) or self.line_items) for a in self.loads_of(product.single)
                  for r in product.reduce.closed_ranges if r in a.ranges]
        if not walked or any(step < self.line_items for step in walked):
            return 0.0
        size = self.items_read(product, product.single) * product.single.dtype.itemsize
        return min(1.0, size / self.machine.l2_bytes) if 2 * size > self.machine.l2_bytes else 0.0

    def dot_cost(self, contraction: Contraction, lane: UOp) -> float:
        """The same with lanes along the reduce: both operands are vectors, each accumulator is summed at the
        end."""
        width = self.width(lane)
        loads = self.accesses(lane, Ops.LOAD)
        reading = sum(1.0 if a.is_smooth(lane) else JUMP_COST for a in loads) / max(1, len(loads))
        reading *= 1.4 * waste(lane.extent, width)
        return (reading + 24.0 * width / iterations(contraction.reduce.closed_ranges)) / width

    def tile_outer(self, product: VectorProduct) -> None:
        """Lanes along an output range: vectors of one operand times single items of the other."""
        lane, width, operand = product.lane, self.width_of_tile(product), product.vectors
        self.walk_smoothly(product)
        jumps = self.is_walked_badly(operand, lane)
        in_panels = self.lies_in_panels(product)
        is_small = self.items_read(product, operand) <= self.machine.l2_bytes // SMALL_SHARE
        stage = not in_panels and (jumps or not (is_small or self.repeats_items(product))) and \
            product.reuse >= STAGING_REUSE and self.panel_fits(product, width)
        order = next(n.closed_ranges for n in self.reduces
                     if set(n.closed_ranges) == set(product.reduce.closed_ranges))
        if stage and jumps:
            # The panel lies as what fills it: then whole rows of it are loaded, and transposed.
            source = self.loads_of(operand)[0]
            order = tuple(sorted(order, key=lambda r: -abs(source.step(r) or 0)))
        scatters = any(a.step(lane) != 1 for a in self.accesses(lane, Ops.STORE))
        tiles = self.tiles_of(product, stage, jumps)
        row = self.row_of_tiles(product, tiles)
        vector, outer = self.split(Vector, lane, width)
        staged = [vector]
        size = 1 if outer is None else tiles.vectors(row.extent)
        if outer is not None and size > 1:
            side_by_side, outer = self.split(Upcast, outer, size)
            staged.insert(0, side_by_side)
        if size == 1 and len(product.columns) > 1:
            second = max(product.columns - {lane}, key=lambda r: (r.extent, -r.identity))
            size = tile_size(second.extent, 3)
            self.split_off(Upcast, second, size)
        read_over = [r for r in order if r in operand.ranges]
        # where results lie across the lanes, tiles in turn write the same lines
        together = 1 if not stage or scatters else self.panels_together(product, outer, size)
        if outer is not None and together > 1:
            panels, outer = self.split(Split, outer, together)
            read_over.insert(0, panels)
        rows = tile_size(row.extent, min(self.machine.tile_rows(max(1, size)), self.rows_held(product, row)))
        self.note("a tile of accumulators", rows=rows, vectors=size, registers=self.machine.registers,
                  uses_of_a_staged_item=float(product.reuse), staged=stage)
        self.split_off(Upcast, row, rows)
        over = [*read_over, *staged]
        if stage and (found := self.operands_along(over)):
            self.stage(found[0], over)
            self.fill_by_vectors()
            self.enclose_with(self.ranges_of_staging(product.batch, outer))
        elif in_panels and (now := self.main_contraction()) is not None:
            self.walk_panels(along(now, vector), product.column_bytes * lane.extent)
        self.write_out_products()

    def repeats_items(self, product: VectorProduct) -> bool:
        """Whether panels would hold items several times (windows of an image): what they are filled from is
        smaller, and stays near. (On Zen 4, 111 x 41 x 69 pixels to 15 channels by 3 x 3: 0.65 of the time;
        with AVX2, 102 x 31 x 73 to 18: 0.62.)"""
        return iterations(product.vectors.ranges) >= 2 * items_of_memory(product.vectors)

    def rows_held(self, product: VectorProduct, row: UOp) -> int:
        """Of how many rows that are read item by item the first cache holds a line each. (Rows of 16 KB share
        its ways: 16 rows through 4096 x 4096 weights that lie along the sum took 9.5 ms in tiles of 24 of
        these, and take 2.7 in tiles of 8; through weights in rows of 4000, 3.2 in tiles of 24.)"""
        apart = (abs(a.step(row) or 0) * a.itemsize for a in self.loads_of(product.single))
        return min(map(self.machine.lines_held, filter(None, apart)), default=row.extent)

    def panels_together(self, product: VectorProduct, outer: UOp | None, size: int) -> int:
        """How many panels, of tiles so many vectors wide, are filled before rows are multiplied with all of
        them: each row comes from the L2 cache for that many."""
        row_bytes = self.items_read(product, product.single) * product.single.dtype.itemsize
        if outer is None or row_bytes <= self.machine.l1_bytes or product.reuse < MANY_ROWS:
            return 1
        tiles, threads = outer.extent, self.machine.threads
        panel = product.column_bytes * size * self.width_of_tile(product)
        room = self.machine.near_bytes // panel
        others = iterations((product.reduce.ranges & product.vectors.ranges) - {product.lane})

        def worth(count: int) -> tuple[float, int]:
            groups = ceildiv(tiles, count)
            busy = self.machine.busy_share(groups * others)
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
        choices = [n for n in choices if self.fit_registers(contraction, innermost, n)]
        if choices and choices[0] > 1 and is_plain(innermost):
            self.take(Unroll, innermost, choices[0])

    def fit_registers(self, contraction: Contraction, loop: UOp, count: int) -> bool:
        """True if a tile's accumulators, the vectors of one product and the single items that several of
        `count` products share fit the registers: what the taps of windows side by side share is loaded once.
        (46 x 26 x 42 convolved by 3 x 3 to 52 channels, a tile of 6 x 4: 0.85 of the time with AVX-512, 0.82
        with AVX2, where spilled ones took up to 2.3 times as long.)"""
        tile = of_kind(contraction.reduce.ranges, RangeKind.UNROLL)
        single, vectors = sorted(contraction.factors, key=lambda f: bool(of_kind(f.ranges, RangeKind.VECTOR)))
        shared = sum(items_shared(a, [r for r in tile if r in a.ranges], loop, count)
                     for a in self.loads_of(single))
        side_by_side = iterations(r for r in tile if r in vectors.ranges)
        self.note(f"{count} products at once", accumulators=iterations(tile), vectors=side_by_side,
                  shared=shared, registers=self.machine.registers)
        return not shared or iterations(tile) + side_by_side + shared < self.machine.registers

    def walk_panels(self, product: VectorProduct, size: int) -> None:
        """The loops over panels that lie in memory, of `size` bytes each, inside those over rows where the L2
        cache holds all of them, so that results are written in long runs; else around them. Loops that both
        operands change with stay outside."""
        loops = self.loops
        panels, rows = ([r for r in loops if r in side] for side in (product.columns, product.rows))
        if not panels:
            return
        both = [r for r in loops if r not in panels and r not in rows]
        are_near = size * iterations(panels) <= self.machine.near_bytes
        inside = (*rows, *panels) if are_near else (*panels, *rows)
        self.enclose_with([*both, *inside])

    def lies_in_panels(self, product: VectorProduct) -> bool:
        """True where the operand lies in memory as panels would: the vectors of a tile side by side, and one
        product behind the other. (What is computed of memory is staged: no tile computes it again.)"""
        operand, lane = product.vectors, product.lane
        count = ceildiv(lane.extent, self.width_of_tile(product))
        if operand.op is not Ops.LOAD or count > self.widest or \
                (count > MOST_VECTORS and any(count % n == 0 for n in range(2, count))):
            return False  # not of one tile
        load = next(a for a in self.loads_of(operand) if a.node is operand)
        step = 1
        over = [r for r in product.reduce.closed_ranges if r in operand.ranges]
        for r in (lane, *sorted(over, key=lambda r: load.step(r) or 0)):
            if load.step(r) != step:
                return False
            step *= r.extent
        return True

    @property
    def widest(self) -> int:
        """Vectors of the widest tiles."""
        return min(WIDEST, self.machine.accumulators // LEAST_ROWS)

    def tiles_of(self, product: VectorProduct, stage: bool, jumps: bool) -> TileChoice:
        """Tiles as wide as there are vectors, and as their panels fit where they have some: with `stage`.
        Those are filled for them, from rows or, where the lanes of these jump, by turning them."""
        width = self.width_of_tile(product)
        count, run = ceildiv(product.lane.extent, width), width * product.reduce.dtype.itemsize
        widths = range(1, min(self.widest, count) + 1)
        if not stage:
            return TileChoice(self.machine, count, (0.0,) * len(widths), batch=iterations(product.batch))
        fills = (TURNED_FILL if jumps else FILL + RUN_FILL / (n * run) for n in widths
                 if self.panel_fits(product, n * width))
        return TileChoice(self.machine, count, tuple(fill / product.reuse for fill in fills),
                          product.column_bytes * width, iterations(product.batch))

    def row_of_tiles(self, product: VectorProduct, tiles: TileChoice) -> UOp:
        """The range of the other operand that goes into tiles: with the one around it as a single range where
        tiles of it alone would leave many of their rows empty (7 x 7 pixels as 49)."""
        row = max(product.rows, key=self.row_rank)
        around = loop_around(self.nest, row)
        if around not in product.rows or product.products < SEVERAL_PLACES:
            return row
        together = around.extent * row.extent
        alone, joined = (tiles.worth(tiles.vectors(rows), rows) for rows in (row.extent, together))
        self.note("rows of tiles", alone=alone, with_the_loop_around=joined)
        if joined < JOINED_GAIN * alone or has_loose_bounds(self.nest):
            return row  # of a range made of two, nobody could tell where it may end
        return self.new_ranges(Merge, around, row)[-1]

    def walk_smoothly(self, product: VectorProduct) -> None:
        """Order the reduce so that the operand read item by item is walked with its smallest steps
        innermost."""
        loads = self.loads_of(product.single)
        if not loads:
            return
        largest = max(loads, key=lambda a: len(a.ranges))
        closed = product.reduce.closed_ranges
        wanted = sorted(closed, key=lambda r: -abs(largest.step(r) or 0))
        if wanted != list(closed):
            self.reorder(wanted)

    def row_rank(self, r: UOp) -> tuple[bool, int, int]:
        """Rows of the tile: a range whose items lie near each other, then the longest."""
        near = all(abs(a.step(r) or 0) <= 64 for a in self.accesses(op=Ops.LOAD))
        return near and r.extent >= 4, r.extent, r.identity

    def tile_dot(self, contraction: Contraction, lane: UOp) -> None:
        """Lanes along the reduce: both operands are vectors, each accumulator is summed at the end. The loop
        over the larger operand stands outside: it comes from memory once, the other one from the caches again
        and again. (15 rows times 4096 x 4096 weights that lie along the sum: 10.9 ms, and 4.2 so.)"""
        self.take(Vector, lane, self.width(lane))
        large, small = sorted(zip(contraction.factors, contraction.sides, strict=True),
                              key=lambda operand: -iterations(operand[0].ranges))
        rows, columns = (max(side, key=lambda r: (r.extent, r.identity)) for _, side in (large, small))
        size = tile_size(rows.extent, MOST_VECTORS)
        outer = self.split_off(Upcast, rows, size)
        self.split_off(Upcast, columns, tile_size(columns.extent, self.machine.tile_rows(size)))
        if outer is not None:
            batch = large[0].ranges & small[0].ranges
            self.enclose_with([*(r for r in self.loops if r in batch), outer])

    def tile_whole_rows(self, contraction: Contraction) -> None:
        """Several rows side by side in registers through every stage: what a row is multiplied with is read
        once for all of them."""
        statistics = [n for n in self.reduces if n.ranges < contraction.reduce.ranges]
        rows = frozenset(contraction.reduce.ranges).intersection(*(n.ranges for n in statistics))
        products = (along(contraction, lane) for lane in (contraction.left | contraction.right) - rows
                    if lane.extent >= 4)
        self.cost = self.take_cheapest("a multiply-add of rows, against 1 without lanes", [
            Alternative(self.outer_cost(p), (p.lane.identity, self.row_rank(row)),
                f"r{p.lane.identity}_as_lanes_of_r{row.identity}", partial(self.tile_row, p.lane, row))
            for p in products for row in p.rows & rows], self.rank)
        self.vectorise_groups()

    def tile_row(self, lane: UOp, row: UOp) -> None:
        """Lanes along one range, and several rows along another one."""
        size = self.lane_tile(lane, MOST_VECTORS)
        count = tile_size(row.extent, self.machine.tile_rows(size))
        self.split_off(Upcast, row, count)
        self.tile_cached_rows(max(1, min(MOST_VECTORS, self.machine.accumulators // count)))

    def tile_cached_rows(self, vectors: int) -> None:
        """Lanes along the rows of sums that are kept (the scores of attention), their other operand staged
        where lanes would jump in it."""
        done: set[UOp] = set()
        while (loop := self.cached_contraction(done)) is not None:
            before = set(all_ranges(self.nest))
            self.lane_tile(loop, vectors)
            new = [r for r in all_ranges(self.nest) if r not in before]
            done.update((loop, *new))
            lane, = of_kind(new, RangeKind.VECTOR)
            operand = next((s for s in self.operands_along([lane]) if self.is_walked_badly(s, lane)), None)
            if operand is not None:
                inner = operand.ranges - self.outputs
                self.stage(operand, sorted(inner, key=lambda r: (panel_order(r)[0], r not in new,
                                                                 r.identity)))
                self.fill_by_vectors()

    def cached_contraction(self, done: set[UOp]) -> UOp | None:
        """The loop that fills a cached row with sums of products."""
        for node in self.nest.nodes_of(Ops.STAGE):
            loop, inside = node.closed_ranges[-1], node.src[0].toposort(stop=lambda n: n.op is Ops.STAGE)
            found = filter(None, map(contraction_of, inside))
            if loop not in done and any(loop in c.left | c.right for c in found):
                return loop
        return None


def items_shared(access: MemoryAccess, tile: Sequence[UOp], loop: UOp, count: int) -> int:
    """Items that a tile loads through this access in more than one of so many iterations of a loop."""
    steps = [step for r in (*tile, loop) if (step := access.step(r))]
    if len(steps) <= len(tile):
        return 0  # each product has its own, or nobody can tell
    sizes = (*(r.extent for r in tile), count)
    places = Counter(sum(map(mul, at, steps)) for at in itertools.product(*map(range, sizes)))
    return sum(uses > 1 for uses in places.values())
