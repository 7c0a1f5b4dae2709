"""Plans for fused attention on matrix units: both products, and the softmax between them, in one loop over
keys.

In: a nest of which `online_softmax.py` can do the reduces in one loop. Out: the Opts for it. A block has some
queries, a few rows of them each warp; it loads tiles of keys and values into shared memory, one after
another, and its warps multiply from there (`fused_attention.py`).
"""
from __future__ import annotations

from tinygrad.codegen.contraction import contraction_of, product_in
from tinygrad.codegen.opt.choose_sides import SideChooser, dividing
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.fused_attention import attention_loops, layout_conversion
from tinygrad.codegen.opt.loops import operands
from tinygrad.codegen.opt.online_softmax import SoftmaxSums, WeightedSum, online_softmax_of
from tinygrad.codegen.opt.opts import Attention, OnlineSoftmax
from tinygrad.codegen.ranges import output_ranges, range_named
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, ceildiv, prod
from tinygrad.renderer.launch import ACCESS_BYTES
from tinygrad.renderer.matrix_units import UNITS, MatrixUnit

MOST_WARPS = 8
"""Of a block: they share what it loads of keys and values."""
KEYS = 64
"""Keys of a tile: scores of 16 queries take 32 registers of a thread."""
MOST_HELD = 144
"""Registers of a thread for 16 queries, their scores and their results: 255 are there, 64 the rest wants."""
LEAST_SIDE = 8
"""Queries, keys and columns below which a unit would multiply nothing but zeros."""
BANK_BYTES = 128
"""Of shared memory, that lanes read at once."""


class AttentionChooser(SideChooser):
    """The Opts for the weighted sums of a nest on a matrix unit."""

    def __init__(self, whole: Chooser) -> None:
        super().__init__(whole, whole.nest)

    def choose(self) -> bool:
        """Take the Opts for the first unit that can do it; False where there is none."""
        found = online_softmax_of(self.nest)
        main = None if found is None else self.main_sum(found)
        if found is None or main is None:
            return False
        ranges = self.sides(found, main)
        if ranges is None:
            return False
        query, column = ranges
        before = self.nest, list(self.opts)
        for unit in self.machine.matrix_units:
            if layout_conversion(unit) is None or (unit.rounds_to_tf32 and not ALLOW_TF32):
                continue
            keys = self.keys_of_tile(unit, found, column)
            if keys:
                new = self.new_ranges(OnlineSoftmax(found.loop.arg[0], keys))
                key = next(r for r in new if r.arg[1] is RangeKind.UNROLL)
                attention = attention_loops(self.nest, unit, query, key, column)
                if attention is not None:
                    self.split(unit, query, key, column, None if attention.scores is None
                               else attention.scores.k)
                    return True
                self.nest, self.opts = before[0], list(before[1])
        return False

    def main_sum(self, found: SoftmaxSums) -> WeightedSum | None:
        """The sum with columns, if the nest has nothing else to reduce for its only output."""
        outputs = output_ranges(self.nest)
        known = {found.largest, *(s.reduce for s in found.sums)}
        outer = {n for n in self.nest.toposort()
                 if n.op is Ops.REDUCE and n.closed_ranges and n.ranges <= outputs}
        rows = found.largest.ranges
        wide = [s for s in found.sums if s.reduce.ranges > rows]
        if len(self.nest.src) != 1 or outer != known or len(wide) != 1 or \
                any(s.reduce.ranges != rows for s in found.sums if s is not wide[0]):
            return None
        return wide[0] if wide[0].reduce.ranges == outputs else None

    def sides(self, found: SoftmaxSums, main: WeightedSum) -> tuple[UOp, UOp] | None:
        """The ranges of queries and of columns."""
        product = product_in(main.value)
        if product is None:
            return None
        values = next(s for s in product.src if main.weight not in s.toposort())
        inner = [n for n in found.largest.src[0].toposort() if n.op is Ops.REDUCE and n.closed_ranges]
        rows = set(found.largest.ranges) - values.ranges
        scores = contraction_of(inner[0]) if len(inner) == 1 else None
        if inner:
            if scores is None:
                return None
            of_key = scores.left if found.loop in scores.left else scores.right
            rows -= next(f for f in scores.factors if of_key <= f.ranges).ranges
        queries = self.plain(rows)
        columns = self.plain(main.reduce.ranges - found.largest.ranges)
        if not queries or len(columns) != len(main.reduce.ranges - found.largest.ranges):
            return None
        name = self.one_range([r.arg[0] for r in columns])
        return max(queries, key=lambda r: r.extent), range_named(self.nest, name)

    def keys_of_tile(self, unit: MatrixUnit, found: SoftmaxSums, column: UOp) -> int:
        """Keys of a tile, as many as registers and shared memory have room for; 0 where none are."""
        inner = [n for n in found.largest.src[0].toposort() if n.op is Ops.REDUCE and n.closed_ranges]
        depth = int(prod(r.extent for n in inner for r in n.closed_ranges))
        how = layout_conversion(unit)
        if how is None or found.loop.extent < LEAST_SIDE or column.extent < LEAST_SIDE:
            return 0
        rows, across = (unit.n, unit.m) if how.transposed else (unit.m, unit.n)
        keys = KEYS
        while keys >= max(16, across):
            held = rows * (column.extent + keys) // unit.threads + \
                rows * depth * unit.source.itemsize // (4 * unit.threads)
            shared = keys * (column.extent + depth) * unit.source.itemsize
            if held <= MOST_HELD and shared <= self.machine.shared_bytes:
                return keys
            keys //= 2
        return 0

    def split(self, unit: MatrixUnit, query: UOp, key: UOp, column: UOp, depth: UOp | None) -> None:
        """The Opts: queries of blocks, keys and values in shared memory, both products."""
        how = layout_conversion(unit)
        assert how is not None
        rows = unit.n if how.transposed else unit.m
        others = prod(r.extent for r in self.nest.src[0].closed_ranges) // (query.extent * column.extent)
        most = min(MOST_WARPS, self.machine.block_threads // unit.threads)
        warps = next((w for w in (8, 4, 2) if w <= most and query.extent > w * rows // 2
                      and ceildiv(query.extent, w * rows) * others >= self.machine.tiled_blocks), 1)
        inside, _ = self.tiled(query, warps * rows)
        threads = warps * unit.threads
        for first, second in ((key, depth), (key, column)):
            if second is not None:
                self.share_tile(unit, first, second, threads)
        self.take(Attention(inside, key.arg[0], column.arg[0], UNITS.index(unit), 1))

    def share_tile(self, unit: MatrixUnit, key: UOp, other: UOp, threads: int) -> None:
        """Keys or values of a tile in shared memory, in rows as they are in memory, swizzled:
        what lanes read at once lies in different banks."""
        for operand in operands(self.nest):
            if key not in operand.ranges or other not in operand.ranges or \
                    any(n.op is Ops.REDUCE for n in operand.toposort()):
                continue
            widest = min(ACCESS_BYTES // unit.source.itemsize, self.machine.access_lanes(unit.source))
            width = dividing(other.extent, widest)
            row = other.extent * unit.source.itemsize
            swizzle = (width, 1,
                       BANK_BYTES // 2 // unit.source.itemsize) if row % BANK_BYTES == 0 else (width,)
            self.stage(operand, (key, other), threads, *swizzle)
            return
