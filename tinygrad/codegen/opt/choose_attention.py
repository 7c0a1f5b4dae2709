"""Plans for fused attention on matrix units: both products, and the softmax between them, in one loop over
keys.

In: a nest of which `online_softmax.py` can do the reduces in one loop. Out: the Opts for it. A block has some
queries, a few rows of them each warp; it loads tiles of keys and values into shared memory, one after
another, and its warps multiply from there (`fused_attention.py`).
"""
from __future__ import annotations

from math import gcd

from tinygrad.codegen.contraction import contraction_of
from tinygrad.codegen.opt.choose_tiles import LEAST_SIDE, BlockTileChooser
from tinygrad.codegen.opt.fused_attention import attention_loops, layout_conversion
from tinygrad.codegen.opt.online_softmax import SoftmaxSums, WeightedSum, online_softmax_of
from tinygrad.codegen.opt.opts import Attention, OnlineSoftmax
from tinygrad.codegen.ranges import iterations, of_kind
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.matrix_units import SWIZZLED_ROW, MatrixUnit

MOST_WARPS = 8
"""Of a block: they share what it loads of keys and values."""
KEYS = 64
"""Keys of a tile: scores of 16 queries take 32 registers of a thread."""
MOST_HELD = 144
"""Registers of a thread for 16 queries, their scores and their results: 255 are there, 64 the rest wants."""


class AttentionChooser(BlockTileChooser):
    """The Opts for the weighted sums of a nest on a matrix unit."""

    def fuse_attention(self) -> bool:
        """Take the Opts for the first unit that can do it; False where there is none."""
        if (found := online_softmax_of(self.nest)) is None or (main := self.main_sum(found)) is None or \
                (ranges := self.queries_and_columns(found, main)) is None:
            return False
        return any(self.attempt(self.fuse_on_unit, unit, found, *ranges) for unit in self.units)

    def main_sum(self, found: SoftmaxSums) -> WeightedSum | None:
        """The sum with columns, if the nest has nothing else to reduce for its only output."""
        rows = found.largest.ranges
        wide = [s for s in found.sums if s.reduce.ranges > rows]
        if len(self.nest.src) != 1 or set(self.outer_reduces()) != found.reduces or len(wide) != 1 or \
                any(s.reduce.ranges != rows for s in found.sums if s is not wide[0]):
            return None
        return wide[0] if wide[0].reduce.ranges == self.outputs else None

    def queries_and_columns(self, found: SoftmaxSums, main: WeightedSum) -> tuple[UOp, UOp] | None:
        """The ranges of queries, with which neither keys nor values change, and of columns."""
        product = contraction_of(main.value.reduce_ranges(Ops.ADD, main.loop))
        if product is None:
            return None
        rows, across = sorted(product.sides, key=lambda side: not side <= found.largest.ranges)
        for inner in found.largest.src[0].nodes_of(Ops.REDUCE):
            scores = contraction_of(inner)
            if scores is None:
                return None
            rows &= scores.right if found.loop in scores.left else scores.left
        queries, columns = self.plain(rows), self.plain(across)
        if not queries or len(columns) != len(across):
            return None
        return max(queries, key=lambda r: r.extent), self.one_range(columns)

    def fuse_on_unit(self, unit: MatrixUnit, found: SoftmaxSums, query: UOp, column: UOp) -> bool:
        """The Opts: tiles of keys, queries of blocks, keys and values in shared memory, both products."""
        if (how := layout_conversion(unit)) is None or \
                not (keys := self.keys_of_tile(how.unit, found, column)):
            return False
        key, = of_kind(self.new_ranges(OnlineSoftmax, found.loop, keys), RangeKind.UNROLL)
        attention = attention_loops(self.nest, unit, query, key, column)
        if attention is None:
            return False
        rows = how.unit.m
        others = iterations(self.store.closed_ranges) // (query.extent * column.extent)
        most = min(MOST_WARPS, self.machine.block_threads // unit.threads)
        warps = next((w for w in (8, 4, 2) if w <= most and query.extent > w * rows // 2
                      and ceildiv(query.extent, w * rows) * others >= self.machine.tiled_blocks), 1)
        inside, _ = self.tiled(query, warps * rows)
        for other in (*([] if attention.scores is None else [attention.scores.k]), column):
            self.stage_keys(unit, key, other, warps * unit.threads)
        self.take(Attention, inside, key, column, unit)
        return True

    def keys_of_tile(self, unit: MatrixUnit, found: SoftmaxSums, column: UOp) -> int:
        """Keys of a tile, as many as registers and shared memory have room for; 0 where none are."""
        depth = iterations(r for n in found.largest.src[0].nodes_of(Ops.REDUCE) for r in n.closed_ranges)
        if found.loop.extent < LEAST_SIDE or column.extent < LEAST_SIDE:
            return 0
        keys = KEYS
        while keys >= max(16, unit.n):
            held = unit.m * (column.extent + keys) // unit.threads + \
                unit.m * depth * unit.source.itemsize // (4 * unit.threads)
            shared = keys * (column.extent + depth) * unit.source.itemsize
            if held <= MOST_HELD and shared <= self.machine.shared_bytes:
                return keys
            keys //= 2
        return 0

    def stage_keys(self, unit: MatrixUnit, key: UOp, other: UOp, threads: int) -> None:
        """Keys or values of a tile in shared memory, in rows as they are in memory, swizzled:
        what lanes read at once lies in different banks."""
        operand = next((s for s in self.operands_along((key, other)) if not s.nodes_of(Ops.REDUCE)), None)
        if operand is not None:
            width, itemsize = gcd(other.extent, self.widest_access(unit.source)), unit.source.itemsize
            is_whole = other.extent * itemsize % SWIZZLED_ROW == 0
            swizzle = (1, SWIZZLED_ROW // 2 // itemsize) if is_whole else ()
            self.stage(operand, (key, other), threads, width, *swizzle)
