"""Whether sums of what belongs to an item walk over everything once (`scatter.py`): a step of the cost model.

Asking for every item costs outputs times everything, in lanes. One walk costs everything, once for each tile
of outputs that fits the cache, and an addition for what is found.
"""
from __future__ import annotations

from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.plan import Opt, OptKind
from tinygrad.codegen.opt.scatter import Belonging, sums_by_place
from tinygrad.graph.ops import RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod

WALK_COST = 2.0
"""Reading a place, asking whether it is in the tile, and adding there, in units of a vector of what asks for
every item."""
OUTPUT_COST = 1.0
"""Giving a vector of memory its first value, and reading it."""
CACHE_SHARE = 0.5
"""Of a core's cache, what sums may fill."""


class ScatterChooser(Chooser):
    """Tiles of outputs in memory."""

    def scatter_sums(self) -> bool:
        """Take what turns the most expensive such sum around, if that is cheaper; False if not."""
        found = max(sums_by_place(self.nest), key=lambda b: self.asking(b) - self.walking(b), default=None)
        if found is None or self.walking(found) >= self.asking(found):
            return False
        loop, tile = found.loop, self.outputs_at_once(found)
        lanes = self.lanes()
        if tile < loop.extent:
            before = self.identities()
            self.take(Opt(OptKind.SPLIT, loop.arg[0], tile))
            loop = next(r for r in self.ranges() if r.arg[0] not in before and r.extent == tile)
        self.take(Opt(OptKind.SCATTER, loop.arg[0], lanes))
        last = self.nest.src[0].closed_ranges[-1]
        if last.arg[1] is RangeKind.LOOP and self.can_vector(last):
            self.take(Opt(OptKind.VECTOR, last.arg[0], self.width(last)))
        return True

    def asking(self, found: Belonging) -> float:
        """Vectors of comparisons that the REDUCE makes as it is."""
        return _iterations(found.reduce.ranges) * _iterations(found.reduce.closed_ranges) / self.lanes()

    def walking(self, found: Belonging) -> float:
        """What the walk costs, in the same unit."""
        inner = found.inner(self.nest)
        outer = _iterations(found.reduce.ranges) / (found.loop.extent * _iterations(inner))
        walked = _iterations(found.reduce.closed_ranges)
        found_items = walked * _iterations(inner) / self.lanes()
        tiles = ceildiv(found.loop.extent, self.outputs_at_once(found))
        outputs = found.loop.extent * _iterations(inner) / self.lanes()
        return outer * (WALK_COST * (tiles * walked + found_items) + OUTPUT_COST * outputs)

    def outputs_at_once(self, found: Belonging) -> int:
        """Iterations of the loop whose outputs fit the cache, and leave every thread some."""
        inner = found.inner(self.nest)
        items = int(_iterations(inner)) * found.reduce.dtype.itemsize
        loops = self.nest.src[0].closed_ranges
        around = _iterations(loops[:loops.index(found.loop)])
        parts = self.renderer.threads if self.renderer.has_threads and around < self.renderer.threads else 1
        tiles = max(parts, ceildiv(found.loop.extent * items, int(CACHE_SHARE * self.renderer.l2_bytes) + 1))
        return min(found.loop.extent, max(2, ceildiv(found.loop.extent, tiles)))


def _iterations(ranges: tuple[UOp, ...] | frozenset[UOp]) -> float:
    return float(prod(r.extent for r in ranges))
