"""Contractions on a matrix unit that one core has for itself: dot products of pairs of bfloat16.

The plan is that of a contraction without such a unit (`tiles.py`): a tile of accumulators in registers, the
operand of the lanes in panels. But a step of it is two products, so the panel holds pairs, and the operand
that is read item by item is read pair by pair: where its pairs do not lie side by side it is staged too.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.opt.core_tiles import Alternative, RowsUnitChooser, loops_over_tiles, panel_ranges
from tinygrad.codegen.opt.matrix import are_of_every_store, matrix_product
from tinygrad.codegen.opt.opts import MMA, Vector
from tinygrad.codegen.opt.panels import STAGING_REUSE
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


@dataclass(frozen=True)
class UnitTile:
    """A contraction on a unit: the ranges of rows, lanes and pairs, and the tile."""

    unit: MatrixUnit
    m: UOp
    n: UOp
    k: UOp
    rows: int
    vectors: int


class CoreUnitChooser(RowsUnitChooser):
    """Tiles on the core's own unit, for the chooser of plans."""

    def tile_on_unit(self, contraction: Contraction) -> bool:
        """Take the Opts of the contraction on a unit; False where the device has none for it."""
        if not are_of_every_store(self.nest, contraction.left | contraction.right):
            return False
        alternatives = [alternative for unit in self.machine.matrix_units for alternative in
                (self.alternatives_by_rows if unit.by_rows else self.alternatives_by_lanes)(contraction,
                                                                                            unit)]
        least, take = min(alternatives, key=lambda alternative: alternative[0], default=(0.0, None))
        if take is None or least > 1 / self.machine.lanes(dtypes.float32):
            return False  # vectors of widened items are as fast
        take()
        return True

    def alternatives_by_lanes(self, contraction: Contraction, unit: MatrixUnit) -> list[Alternative]:
        """The way to run a contraction on a unit of lanes, if there is one."""
        tile = self.unit_tile(contraction, unit)
        if tile is None:
            return []
        waste = _computed(tile.m, tile.n, unit, tile.rows, tile.vectors) / (tile.m.extent * tile.n.extent)
        return [(waste / unit.rate, partial(self.take_unit_tile, tile))]

    def unit_tile(self, contraction: Contraction, unit: MatrixUnit) -> UnitTile | None:
        """Which ranges go on the unit: lanes as the cost model would choose them, pairs that lie side by side
        in the other operand."""
        sides = (contraction.left, contraction.right)
        lanes = [(self.outer_cost(contraction, n), n.arg[0], n, other)
                 for side, other in (sides, sides[::-1]) for n in side if n.extent >= unit.n]
        for _, _, n, other in sorted(lanes, key=lambda alternative: alternative[:2]):
            m = max(other, key=lambda r: (self.row_rank(r), r.arg[0]))
            single = next(f for f in contraction.factors if m in f.ranges)
            loads = self.loads_of(single)
            ks = [k for k in contraction.reduce.closed_ranges if k.extent >= LEAST_STEPS * unit.k
                  and matrix_product(contraction.reduce, unit, m, n, k) is not None]
            if not ks or self.staging_reuse(contraction, n) < STAGING_REUSE:
                continue
            k = max(ks, key=lambda r: (all(a.step(r) == 1 for a in loads), r.extent))
            fitting = [(rows, vectors) for rows, vectors in TILES
                       if self.panel_fits(contraction, n, unit.n * vectors)]
            if fitting:
                return UnitTile(unit, m, n, k, *min(fitting, key=lambda t: _waste(m, n, unit, *t)))
        return None

    def take_unit_tile(self, tile: UnitTile) -> None:
        """The Opts: the unit, panels for its operands, the loops around them."""
        self.note("a tile of dot products", rows=tile.rows, vectors=tile.vectors)
        before = self.identities()
        self.take(MMA(tile.m.arg[0], tile.n.arg[0], tile.k.arg[0], UNITS.index(tile.unit), tile.rows,
                      tile.vectors, 1))
        (single, _, _, _, pair, pairs), closed = self.unit_product()
        if not self.reads_pairs(single, pair):
            rows = loops_over_tiles(single, closed, before)
            self.stage_pairs(single, [*rows, *panel_ranges(single, closed), pair])
        lanes = self.unit_product()[0][1]
        self.stage_pairs(lanes, [*panel_ranges(lanes, closed), pairs])
        tiles = loops_over_tiles(lanes, closed, before)
        self.enclose_with(self.ranges_of_staging(tiles[0].arg[0] if tiles else None))

    def reads_pairs(self, single: UOp, pair: UOp) -> bool:
        """True if both items of a pair lie side by side in memory as they are."""
        return single.op is Ops.LOAD and all(a.step(pair) == 1 for a in self.loads_of(single))

    def stage_pairs(self, operand: UOp, over: list[UOp]) -> None:
        """The operand staged, filled by vectors where its items come from two rows in turn."""
        self.stage(operand, over)
        stage, loads = self.newest_stage()
        lane = stage.closed_ranges[-1]
        if all(interleaved_runs(a.node, lane) is not None for a in loads):
            self.take(Vector(lane.arg[0], lane.extent))


def _waste(m: UOp, n: UOp, unit: MatrixUnit, rows: int, vectors: int) -> tuple[bool, int]:
    """What the best of tiles has least of: too many items beyond the result, then its place in the list."""
    computed = _computed(m, n, unit, rows, vectors)
    return computed > MOST_WASTE * m.extent * n.extent, TILES.index((rows, vectors))


def _computed(m: UOp, n: UOp, unit: MatrixUnit, rows: int, vectors: int) -> int:
    """The items of all tiles, those beyond the result too."""
    return round_up(m.extent, rows) * round_up(n.extent, unit.n * vectors)
