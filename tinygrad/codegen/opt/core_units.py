"""Contractions on a matrix unit that one core has for itself: dot products of pairs of bfloat16, lane by
lane, or tiles that are taken by rows from memory.

Dot products have the plan of a contraction without such a unit (`tiles.py`): a tile of accumulators in
registers, the operand of the lanes in panels. But a step of it is two products, so the panel holds pairs, and
the operand that is read item by item is read pair by pair: where its pairs do not lie side by side it is
staged too.

Of a unit by rows a tile of four results, two by two, is all that its registers hold: each step of the sum
loads two tiles of either operand for four products. The operand of the columns lies in panels, as the unit
wants its elements; a panel is wide, so that what is loaded of the other operand, from its own place or from a
panel of a few rows, is used again while it is near.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.opt.chooser import Alternative, waste
from tinygrad.codegen.opt.matrix import MatrixProduct, are_of_every_store, matrix_product
from tinygrad.codegen.opt.opts import MMA, Upcast, Vector
from tinygrad.codegen.opt.panels import STAGING_REUSE
from tinygrad.codegen.opt.tiles import TileChooser, along
from tinygrad.codegen.ranges import fresh_identity, iterations, of_kind
from tinygrad.codegen.transpose import interleaved_runs, jump_of
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import constant
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer.matrix_units import ROW_BYTES, MatrixUnit

SIDES = (8, 4, 2, 1)
"""Rows of accumulators, and vectors: the unit needs 6 at work."""
MOST_WASTE = 1.25
"""How much larger than its result all tiles may be before smaller ones are taken."""
LEAST_STEPS = 4
"""Pairs that a sum must have for the unit."""
TILES = 2
"""Tiles of results by rows along each side: with two of either operand they are the eight that AMX has."""
WIDEST_PANEL, NARROWEST_PANEL = 512, 128
"""Columns of a panel, where there are so many."""
PANELS_A_THREAD = 2
"""Panels for each thread, where that leaves them wide: a thread that is held up leaves the last to others."""
COPY_CYCLES, TURN_CYCLES, ITEM_CYCLES = 1 / 12, 1 / 3, 2.0
"""An item copied into a panel by whole vectors, by vectors of a square that is turned, and by itself."""
PAIR_CYCLES = 5.0
"""And into a panel of pairs whose items lie apart, twice where a mask parts them (Zen 4: 4 for 200 x 512 x
500, 10 for 48 channels of 3 x 3 over 28 x 28 pixels, which take 1.5 ms so and 0.45 without the unit)."""
SQUARE = 16
"""Rows and lanes that are turned at once where no row of a tile is: 64 shuffles of 32 bytes."""


class CoreUnitChooser(TileChooser):
    """Tiles on the core's own unit, for the chooser of plans."""

    def ways(self, contraction: Contraction) -> Iterator[Alternative]:
        """The ways to run a contraction, those on a unit first, of which a multiply-add takes so many
        cycles."""
        if are_of_every_store(self.nest, contraction.left | contraction.right):
            for unit in self.machine.matrix_units:
                yield from (self.ways_by_rows if unit.by_rows else self.ways_by_lanes)(contraction, unit)
        yield from super().ways(contraction)

    def unit_product(self) -> tuple[tuple[UOp, ...], list[UOp]]:
        """The sources of the nest's MMA, and the ranges over which its products are summed up."""
        product, = self.nest.nodes_of(Ops.MMA)
        sums = [n for n in self.reduces if n.src[0] is product]
        return product.src, list(sums[0].closed_ranges) if sums else []

    # --- dot products, lane by lane -------------------------------------------------------------------------

    def ways_by_lanes(self, contraction: Contraction, unit: MatrixUnit) -> Iterator[Alternative]:
        """The way to run a contraction on a unit of lanes, if there is one: lanes as the cost model would
        choose them, pairs that lie side by side in the other operand."""
        lanes = [along(contraction, n) for n in contraction.left | contraction.right if n.extent >= unit.n]
        for way in sorted(lanes, key=lambda way: (self.outer_cost(way), way.lane.identity)):
            n, m, loads = way.lane, max(way.rows, key=self.row_rank), self.loads_of(way.single)
            ks = [k for k in way.reduce.closed_ranges if k.extent >= LEAST_STEPS * unit.k
                  and matrix_product(way.reduce, unit, m, n, k) is not None]
            fitting = [(rows, vectors) for rows in SIDES for vectors in SIDES[1:]
                       if rows * vectors <= self.machine.accumulators
                       and self.panel_fits(way, unit.n * vectors)]
            if not ks or way.reuse < STAGING_REUSE or not fitting:
                continue
            k = max(ks, key=lambda r: (all(a.step(r) == 1 for a in loads), r.extent))
            computed = {t: waste(m.extent, t[0]) * waste(n.extent, unit.n * t[1]) for t in fitting}
            tile = min(fitting, key=lambda t: (computed[t] > MOST_WASTE, 1 / t[0] + 1 / t[1]))
            cost = computed[tile] / unit.rate + self.pair_filling(way.vectors, n, k, unit) / way.reuse
            if any(a.step(k) != 1 for a in loads):
                uses = iterations(way.reduce.ranges - way.single.ranges)
                cost += self.pair_filling(way.single, m, k, unit) / uses
            yield Alternative(cost, (n.identity,), f"{unit}",
                              partial(self.take_by_lanes, m, n, k, unit, tile))
            return

    def pair_filling(self, operand: UOp, lane: UOp, k: UOp, unit: MatrixUnit) -> float:
        """Cycles of an item of a panel of pairs along `k`, whose rows go along `lane`."""
        loads = self.loads_of(operand)
        if all(a.step(k) == 1 for a in loads):
            return ITEM_CYCLES
        beyond = k.extent % unit.k
        if all(a.step(lane) == 1 for a in loads) and lane.extent % unit.n == beyond == 0:
            return COPY_CYCLES
        return PAIR_CYCLES * (1 + (beyond > 0))

    def take_by_lanes(self, m: UOp, n: UOp, k: UOp, unit: MatrixUnit, tile: tuple[int, int]) -> None:
        """The Opts: the unit, panels for its operands, the loops around them."""
        self.note("a tile of dot products", rows=tile[0], vectors=tile[1])
        first = fresh_identity(self.nest)
        self.take(MMA, m, n, k, unit, *tile, 1)
        (single, lanes, _, _, pair, pairs), closed = self.unit_product()
        tiles = loops_over_tiles(lanes, closed, first)
        if single.op is not Ops.LOAD or any(a.step(pair) != 1 for a in self.loads_of(single)):
            # pairs do not lie side by side in memory as they are
            self.stage_side(0, first, (), (pair.extent, False))
            single = self.unit_product()[0][0]
        self.stage_side(1, first, tiles, (pairs.extent, False))
        batch = (single.ranges & lanes.ranges) - frozenset(closed)
        self.enclose_with(self.ranges_of_staging(batch, tiles[0] if tiles else None))

    def stage_side(self, side: int, first: int, outside: Sequence[UOp | None],
                   *fillings: tuple[int, bool]) -> None:
        """An operand staged for all tiles but those of loops `outside`, as the contraction walks it:
        products, then the vectors of a tile. Its rows are filled in the first of these ways (lanes, whether
        squares are turned) in which it lies as they want it."""
        src, summed = self.unit_product()
        operand = src[side]
        loops = [r for r in loops_over_tiles(operand, summed, first) if r not in outside]
        products = [r for r in summed if r in operand.ranges]
        vectors = of_kind(operand.ranges.difference(summed), RangeKind.UNROLL)
        self.stage(operand, [*loops, *products, *vectors, src[4 + side]])
        element = self.newest_stage()[0].closed_ranges[-1]
        for filling in fillings:
            if self.attempt(self.fill_rows, element, *filling):
                return

    # --- tiles by rows --------------------------------------------------------------------------------------

    def ways_by_rows(self, contraction: Contraction, unit: MatrixUnit) -> Iterator[Alternative]:
        """The ways to run a contraction on a unit by rows."""
        for rows, columns in (contraction.sides, contraction.sides[::-1]):
            for ranges in itertools.product(rows, columns, contraction.reduce.closed_ranges):
                product = matrix_product(contraction.reduce, unit, *ranges)
                if product is not None and along(contraction, product.n).reuse >= STAGING_REUSE and \
                        self.bytes_deep(product) * TILES * unit.n <= 2 * self.machine.l2_bytes:
                    m, n, k = (int(r.identity) for r in ranges)
                    yield Alternative(self.cost_by_rows(product), (m, n, k), f"{unit}_of_r{m}_r{n}_r{k}",
                                      partial(self.take_by_rows, product))

    def bytes_deep(self, product: MatrixProduct) -> int:
        """Bytes of one column of a panel."""
        summed = (r for r in product.reduce.closed_ranges if r in product.b.ranges)
        return iterations(summed) * product.unit.source.itemsize

    def panel_width(self, product: MatrixProduct) -> int:
        """Columns of a panel: it lies in half the L2 cache, and every thread gets some. Panels are of about
        one size, and end where the columns do or overlap."""
        step, n = TILES * product.unit.n, product.n.extent
        near = self.machine.near_bytes // self.bytes_deep(product)
        others = iterations(r for r in product.reduce.ranges & product.b.ranges if r is not product.n)
        each = ceildiv(n * others, PANELS_A_THREAD * self.machine.threads)
        wanted = max(step, min(near, max(each, NARROWEST_PANEL), WIDEST_PANEL) // step * step)
        panels = ceildiv(n, wanted)
        if panels == 1 and n > step and n % step:
            panels = 2
        return round_up(ceildiv(n, panels), step)

    def cost_by_rows(self, product: MatrixProduct) -> float:
        """Cycles of a multiply-add: of the unit, of the panels that are filled for it, of the results that
        come from memory."""
        m, n, k, reduce, unit = product.m, product.n, product.k, product.reduce, product.unit
        deep, beyond = waste(k.extent, unit.k), waste(m.extent, unit.m) * waste(n.extent, unit.n)
        uses = iterations(reduce.ranges - product.b.ranges)
        cost = deep * (beyond / unit.rate + self.filling_cost(product.b, n, k) / uses)
        if not self.reads_rows(product):
            uses = iterations(reduce.ranges - product.a.ranges)
            if not self.is_near(product):
                uses = min(uses, self.panel_width(product))
            cost += deep * self.filling_cost(product.a, k, m) / uses
        of_result = sum(COPY_CYCLES if a.step(n) == 1 else ITEM_CYCLES for a in self.accesses(op=Ops.STORE))
        return float(cost + beyond * of_result / iterations(reduce.closed_ranges))

    def filling_cost(self, operand: UOp, lane: UOp, across: UOp) -> float:
        """Cycles of an item of a panel whose vectors go along one range."""
        if not self.is_walked_badly(operand, lane):
            return COPY_CYCLES
        return ITEM_CYCLES if self.is_walked_badly(operand, across) else TURN_CYCLES

    def reads_rows(self, product: MatrixProduct) -> bool:
        """Whether tiles of the rows' operand can be loaded from where it lies: whole ones, of rows along
        k."""
        operand, m, k, unit = product.a, product.m, product.k, product.unit
        if operand.op is not Ops.LOAD or operand.mask is not None:
            return False
        (load,) = self.loads_of(operand)
        return k.extent % unit.k == 0 and m.extent >= TILES * unit.m and load.step(k) == 1 \
            and load.step(m) is not None

    def is_near(self, product: MatrixProduct) -> bool:
        """Whether half the L2 cache holds the rows' operand for all rows."""
        return self.bytes_deep(product) * product.m.extent <= self.machine.near_bytes

    def take_by_rows(self, product: MatrixProduct) -> None:
        """The Opts: blocks of rows, panels of columns, the unit, its operands in panels, the loops around."""
        unit, width, first = product.unit, self.panel_width(product), fresh_identity(self.nest)
        reads_rows, is_near = self.reads_rows(product), self.is_near(product)
        self.note("tiles of a matrix unit", panel=width, rows_in_place=reads_rows, rows_near=is_near)
        m, block = self.tiled(product.m, TILES * unit.m)
        n, panel = self.tiled(product.n, width)
        high, wide = (TILES if r.extent > size else 1 for r, size in ((m, unit.m), (n, unit.n)))
        self.take(MMA, m, n, product.k, unit, high, wide, 1)
        length = ROW_BYTES // unit.source.itemsize
        fillings = (length, False), (length, True), (SQUARE, True)
        if not reads_rows:
            self.stage_side(0, first, () if is_near else (block,), *fillings)
        self.stage_side(1, first, (panel,), *fillings)
        around = self.newest_stage()[0].ranges
        order = [r for r in self.loops if r in around]
        self.enclose_with([r for r in (*order, block) if r is not None])

    def fill_rows(self, element: UOp, lanes: int, is_turned: bool) -> bool:
        """Lanes for the newest panel, if they lie as it does, or in squares that are turned."""
        self.take(Vector, element, lanes)
        stage, loads = self.newest_stage()
        *loops, lane = stage.closed_ranges
        if not is_turned:
            return all(a.is_smooth(lane) or interleaved_runs(a.node, lane) for a in loads)
        if any(not _reads_squares(a.node, loops[-1], lane) for a in loads):
            return False
        self.split_off(Upcast, loops[-1])
        return True


def _reads_squares(load: UOp, rows: UOp, lane: UOp) -> bool:
    """Whether vectors along `lane` that jump in memory make squares which lie there turned."""
    _, offset, *valid = load.src[0].src
    jump = jump_of(offset, lane)
    if jump is None or valid:
        return False
    count = lane.extent // jump.together
    distance = rows.extent // count
    starts = [offset.substitute({rows: constant(distance * i)}) for i in range(count)]
    return all(start - starts[0] is constant(i * jump.together) for i, start in enumerate(starts))


def loops_over_tiles(operand: UOp, summed: list[UOp], first: int) -> list[UOp]:
    """The loops over tiles that an operand changes with, where there are several: of identities from `first`
    on."""
    return sorted((r for r in of_kind(operand.ranges, RangeKind.LOOP)
                   if r.identity >= first and r not in summed), key=lambda r: -int(r.identity))
