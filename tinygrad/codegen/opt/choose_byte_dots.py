"""Plans for dot products of bytes: quantised weights, whose sums over blocks are scaled and added up.

In: a nest in which `byte_dots.py` finds sums over the bytes of words. Out: the Opts for them. Lanes run along
rows of weights, words side by side; a tile of vectors and rows has its sums in registers, and all words of a
block are written out.
"""
from __future__ import annotations

from tinygrad.codegen.opt.byte_dots import byte_dots
from tinygrad.codegen.opt.chooser import Chooser, tile_size
from tinygrad.codegen.opt.lanes import MOST_VECTORS
from tinygrad.codegen.opt.opts import ByteDot, Unroll, Upcast, Vector
from tinygrad.codegen.ranges import iterations
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

MOST_WORDS = 16
"""Words of a block that are written out: a block of 32 bytes has 8."""
TILE_REGISTERS = 12
"""Sums of a tile where there are 32 registers, in whole numbers and as many in floats. As many rows as there
are first, for what is done with a vector of weights is done once for all of them: 6 x 1 of 16 registers 20
billion products a second, 3 x 2 18, 1 x 4 17 (a Zen 1 core, 128 rows of 576, 1,536 of weights in 4 bits);
12 x 1 of 32 registers 8.1 to 9.4 ms, 6 x 2 12 to 13, 3 x 4 15 to 17 (two Zen 4 cores, 200 rows of 2,048,
5,632 of weights in 8 bits)."""


class ByteDotChooser(Chooser):
    """Dot products of bytes, and tiles for them."""

    def dot_bytes(self) -> None:
        """Every sum over the bytes of words as one operation."""
        while self.machine.has_byte_dots and (found := byte_dots(self.nest)):
            self.take(ByteDot, found[0])

    def tile_byte_dots(self) -> bool:
        """Take the Opts of a kernel made of such dot products; False where it is none."""
        dot = self.only_dot()
        if dot is None:
            return False
        # words of neighbouring rows lie in tiles
        self.split_along(lambda digit: digit.op is Ops.MOD and digit.loop in self.outputs)
        dot = self.only_dot()
        sides = None if dot is None else self.dot_sides(dot)
        if sides is None:
            return False
        for r in self.word_ranges():
            self.split_off(Unroll, r)
        lane, rows_of_dot = sides
        outer = [r for r in self.store.closed_ranges if r not in rows_of_dot and r is not lane]
        row = max(rows_of_dot, key=lambda r: r.extent, default=None)
        self.reorder(outer)
        width, around = self.width(lane), iterations(outer)
        most = self.machine.registers * TILE_REGISTERS // 32
        rows = 1 if row is None else tile_size(row.extent, most)
        vectors = tile_size(ceildiv(lane.extent, width), min(MOST_VECTORS, most // rows))
        while vectors > 1 and not self.machine.is_busy(around * ceildiv(lane.extent, width * vectors)):
            vectors //= 2
        self.note("a tile of dot products of bytes", rows=rows, vectors=vectors)
        tiles = self.split_off(Vector, lane, width)
        self.split_off(Upcast, tiles, vectors)
        self.split_off(Upcast, row, rows)
        return True

    def only_dot(self) -> UOp | None:
        """The one dot product of a kernel with one result, if each item of that is a sum of such."""
        dots = self.nest.nodes_of(Ops.DP4A)
        if len(self.nest.src) != 1 or len(dots) != 1 or not self.outputs <= dots[0].ranges:
            return None
        return dots[0]

    def dot_sides(self, dot: UOp) -> tuple[UOp, list[UOp]] | None:
        """The range of a dot product of bytes whose words lie side by side, and those of the other factor;
        None where no lanes run along words side by side."""
        loads = self.loads_of(dot.src[0])
        own = self.outputs & dot.src[0].ranges - dot.src[1].ranges
        lanes = [r for r in own if self.can_vector(r) and all(a.step(r) == 1 for a in loads)]
        if not lanes:
            return None
        lane = max(lanes, key=lambda r: (r.extent, -r.identity))
        others = dot.src[1].ranges - dot.src[0].ranges
        return lane, [r for r in self.loops if r in others]

    def word_ranges(self) -> list[UOp]:
        """The loops over the words of a block, innermost first, as many as are written out."""
        reduce = next(n for n in self.reduces if n.src[0].op is Ops.DP4A)
        found, count = [], 1
        for r in sorted(reduce.closed_ranges, key=lambda r: r.extent):
            if count * r.extent <= MOST_WORDS:
                found.append(r)
                count *= r.extent
        return found
