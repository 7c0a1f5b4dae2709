"""Contractions on a matrix unit that one core has for itself: dot products of pairs of bfloat16.

The plan is that of a contraction without such a unit (`tiles.py`): a tile of accumulators in registers, the
operand of the lanes in panels. But a step of it is two products, so the panel holds pairs, and the operand
that is read item by item is read pair by pair: where its pairs do not lie side by side it is staged too.
"""
from __future__ import annotations

from functools import partial

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.opt.core_tiles import RowsUnitChooser, WayOnUnit, loops_over_tiles, panel_ranges
from tinygrad.codegen.opt.matrix import are_of_every_store, matrix_product
from tinygrad.codegen.opt.opts import MMA, Vector
from tinygrad.codegen.opt.panels import STAGING_REUSE
from tinygrad.codegen.opt.tiles import along
from tinygrad.codegen.ranges import fresh_identity
from tinygrad.codegen.transpose import interleaved_runs
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer.matrix_units import UNITS, MatrixUnit

TILES = ((4, 4), (8, 2), (4, 2), (2, 4), (2, 2), (8, 1), (4, 1), (2, 1), (1, 4), (1, 2), (1, 1))
"""(rows, vectors) of accumulators, the ones that load least first: the unit needs 6 at work, and 16 with
their operands fit 32 registers."""
MOST_WASTE = 1.25
"""How much larger than its result all tiles may be before smaller ones are taken."""
LEAST_STEPS = 4
"""Pairs that a sum must have for the unit."""


class CoreUnitChooser(RowsUnitChooser):
    """Tiles on the core's own unit, for the chooser of plans."""

    def tile_on_unit(self, contraction: Contraction) -> bool:
        """Take the Opts of the contraction on a unit; False where the device has none for it."""
        if not are_of_every_store(self.nest, contraction.left | contraction.right):
            return False
        ways = [way for unit in self.machine.matrix_units
                for way in (self.ways_by_rows if unit.by_rows else self.ways_by_lanes)(contraction, unit)]
        least, take = min(ways, key=lambda way: way[0], default=(0.0, None))
        if take is None or least > 1 / self.machine.lanes(dtypes.float32):
            return False  # vectors of widened items are as fast
        take()
        return True

    def ways_by_lanes(self, contraction: Contraction, unit: MatrixUnit) -> list[WayOnUnit]:
        """The way to run a contraction on a unit of lanes, if there is one: lanes as the cost model would
        choose them, pairs that lie side by side in the other operand."""
        lanes = [along(contraction, n) for n in contraction.left | contraction.right if n.extent >= unit.n]
        for way in sorted(lanes, key=lambda way: (self.outer_cost(way), way.lane.identity)):
            n, m, loads = way.lane, max(way.rows, key=self.row_rank), self.loads_of(way.single)
            ks = [k for k in way.reduce.closed_ranges if k.extent >= LEAST_STEPS * unit.k
                  and matrix_product(way.reduce, unit, m, n, k) is not None]
            fitting = [tile for tile in TILES if self.panel_fits(way, unit.n * tile[1])]
            if not ks or way.reuse < STAGING_REUSE or not fitting:
                continue
            k = max(ks, key=lambda r: (all(a.step(r) == 1 for a in loads), r.extent))
            computed = {t: round_up(m.extent, t[0]) * round_up(n.extent, unit.n * t[1]) for t in fitting}
            result = m.extent * n.extent
            tile = next((t for t in fitting if computed[t] <= MOST_WASTE * result), fitting[0])
            opt = MMA(m.identity, n.identity, k.identity, UNITS.index(unit), *tile, 1)
            return [(computed[tile] / result / unit.rate, partial(self.take_unit_tile, opt))]
        return []

    def take_unit_tile(self, tile: MMA) -> None:
        """The Opts: the unit, panels for its operands, the loops around them."""
        self.note("a tile of dot products", rows=tile.rows, vectors=tile.columns)
        first = fresh_identity(self.nest)
        self.take(tile)
        (single, _, _, _, pair, pairs), closed = self.unit_product()
        if not self.reads_pairs(single, pair):
            rows = loops_over_tiles(single, closed, first)
            self.stage_pairs(single, [*rows, *panel_ranges(single, closed), pair])
        single, lanes = self.unit_product()[0][:2]
        self.stage_pairs(lanes, [*panel_ranges(lanes, closed), pairs])
        tiles = loops_over_tiles(lanes, closed, first)
        batch = (single.ranges & lanes.ranges) - frozenset(closed)
        self.enclose_with(self.ranges_of_staging(batch, tiles[0] if tiles else None))

    def reads_pairs(self, single: UOp, pair: UOp) -> bool:
        """True if both items of a pair lie side by side in memory as they are."""
        return single.op is Ops.LOAD and all(a.step(pair) == 1 for a in self.loads_of(single))

    def stage_pairs(self, operand: UOp, over: list[UOp]) -> None:
        """The operand staged, filled by vectors where its items come from two rows in turn."""
        self.stage(operand, over)
        stage, loads = self.newest_stage()
        lane = stage.closed_ranges[-1]
        if all(interleaved_runs(a.node, lane) is not None for a in loads):
            self.take(Vector(lane.identity, lane.extent))
