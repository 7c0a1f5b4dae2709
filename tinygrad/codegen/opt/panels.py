"""Operands of contractions staged in panels: what to stage, how to fill it, and which loops stand around it.

A panel lies in scratch memory as the tile that reads it wants: vectors side by side. It is filled by whole
vectors too; where lanes would jump in what it is filled from, square tiles are loaded and transposed.
"""
from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from math import gcd

from tinygrad.codegen.contraction import factors_of
from tinygrad.codegen.opt.access import MemoryAccess
from tinygrad.codegen.opt.lanes import LaneChooser
from tinygrad.codegen.opt.loops import mergeable_pair
from tinygrad.codegen.opt.opts import Merge, Swap, Upcast, Vector
from tinygrad.codegen.ranges import all_ranges, iterations, loops_of, of_kind
from tinygrad.codegen.transpose import LEAST_HEIGHT
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp

STAGING_REUSE = 8
"""Uses of a staged item that pay for staging it."""
WIDEST = 7
"""Vectors of a tile, of which more than four leave fewer lanes empty in a row of 5, 7, 10 or 13 (on two cores
of Zen 4 with AVX-512, 53 products and convolutions of random sizes: 0.88 of the time)."""


def panel_order(r: UOp) -> tuple[int, int]:
    """Where a range stands in a panel, which lies in memory as its contraction walks it."""
    kinds = (RangeKind.LOOP, RangeKind.UNROLL, RangeKind.VECTOR, RangeKind.FRAGMENT)
    return kinds.index(r.kind), r.identity


class PanelChooser(LaneChooser):
    """Staging for the chooser of tiles."""

    def stage_jumping_factors(self) -> None:
        """Stage the factor of a sum of products whose lanes jump, where loops that it does not change with
        read it again and again: the weights of a depthwise convolution, for all its pixels. (7 x 7 of 48
        channels, four images of 28 x 28 pixels, two AVX-512 cores: 0.13 ms, and 0.26 to 0.30 without.)"""
        for node in self.reduces:
            for factor in factors_of(node):
                lanes = of_kind(factor.ranges, RangeKind.VECTOR)
                reuse = iterations(node.ranges - factor.ranges)
                if len(lanes) != 1 or reuse < STAGING_REUSE or not self.is_walked_badly(factor, lanes[0]):
                    continue
                taps = [r for r in node.closed_ranges if r in factor.ranges and r not in lanes]
                known = node.ranges & factor.ranges
                over = (*taps, *of_kind(known, RangeKind.UNROLL), *lanes)
                if self.reuse_inside(known, node) < STAGING_REUSE:
                    self.enclose_with(of_kind((r for r in all_ranges(self.nest) if r in known),
                                              RangeKind.LOOP))
                self.stage(factor, over)
                self.fill_by_vectors()
                return

    def reuse_inside(self, known: frozenset[UOp], reduce: UOp) -> int:
        """How often a sum's loops read again what changes with the loops `known` around it, between two
        iterations of the innermost of these."""
        store = next(s for s in self.nest.src if reduce in s.toposort())
        return iterations(takewhile(lambda r: r not in known, reversed(loops_of(store))))

    def newest_stage(self) -> tuple[UOp, list[MemoryAccess]]:
        """The STAGE made last, and what it loads."""
        stage = max(self.nest.nodes_of(Ops.STAGE), key=lambda n: n.identity)
        return stage, self.loads_of(stage.src[0])

    def fill_by_vectors(self) -> None:
        """Lanes for the loops that fill the newest panel; where they jump in what they load, as many loads
        beside each other as make a tile to transpose."""
        stage, loads = self.newest_stage()
        while (pair := mergeable_pair(self.nest, stage)) is not None:
            self.take(Merge, *pair)
            stage, loads = self.newest_stage()
        *loops, lane = stage.closed_ranges
        if not self.can_vector(lane):
            return
        if self.is_walked_badly(stage.src[0], lane):
            side = next((i for i, r in enumerate(loops)
                         if loads[0].step(r) == 1 and gcd(r.extent, lane.extent) >= LEAST_HEIGHT), None)
            if side is not None and iterations(loops[side + 1:]) <= WIDEST:
                self.take(Upcast, loops[side], gcd(loops[side].extent, lane.extent))
        self.split_off(Vector, lane)

    def ranges_of_staging(self, batch: frozenset[UOp], tiles: UOp | None) -> list[UOp]:
        """The output loops that staged memory changes with: outside all others, they fill it once. Those over
        a `batch` of products come first, for each product then finds its operands near, and next the one over
        tiles. (16 products of 197 x 197 x 48: 265 us, 446 with the tiles first.)"""
        stages = self.nest.nodes_of(Ops.STAGE)
        known = [r for r in self.loops if any(r in n.ranges for n in stages)]
        return sorted(known, key=lambda r: (r not in batch, r is not tiles))

    def enclose_with(self, ranges: list[UOp]) -> None:
        """These loops around all others, the first outermost, as far as nothing else runs in the others."""
        if self.loops[:len(ranges)] != ranges:
            for r in reversed(ranges):
                with suppress(ValueError):
                    self.take(Swap, r)

    def is_walked_badly(self, operand: UOp, lane: UOp) -> bool:
        """True if the lanes of `lane` do not lie side by side in what `operand` loads."""
        return any(not a.is_smooth(lane) for a in self.loads_of(operand))
