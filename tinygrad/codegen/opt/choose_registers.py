"""Plans for contractions whose products the threads of a block compute in their registers.

In: a nest whose main contraction no matrix unit of the device can do. Out: the Opts for it. A block computes
a tile of (m, n); its threads load both operands of the tile for a part of k into shared memory, and each has
a few rows and columns of the tile in registers: four neighbouring ones, and four more half a tile further on,
so that the threads of a warp read neighbouring vectors.
"""
from __future__ import annotations

from dataclasses import dataclass

from tinygrad.codegen.contraction import contraction_of
from tinygrad.codegen.opt.access import accesses_of
from tinygrad.codegen.opt.choose_sides import SideChooser
from tinygrad.codegen.opt.opts import Local, Pad, Unroll, Upcast, Vector
from tinygrad.codegen.ranges import range_named
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.helpers import ceildiv, prod

DEPTH = 16
"""Products of a part of k: 1024 of a thread with the largest tile between two barriers."""
WRITTEN_OUT = 4
"""Products of k written out: as many as one access of a row of k loads."""
RUN = 4
"""Neighbouring rows and columns of a thread: one access."""
MOST_WASTE = 1.5
"""How much larger than what it computes all tiles together may be."""


@dataclass(frozen=True)
class RegisterTile:
    """What a block computes, and each of its threads."""

    m: int
    n: int
    rows: int
    columns: int

    @property
    def threads(self) -> int:
        return self.m // self.rows * (self.n // self.columns)


TILES = (RegisterTile(128, 128, 8, 8), RegisterTile(128, 64, 8, 4), RegisterTile(64, 128, 4, 8),
         RegisterTile(128, 32, 8, 4), RegisterTile(32, 128, 4, 8), RegisterTile(64, 64, 4, 4),
         RegisterTile(32, 32, 4, 4))
"""The largest first: a thread's 8 x 8 products take 16 items from shared memory."""


class RegisterChooser(SideChooser):
    """The Opts for one contraction in registers."""

    def choose(self) -> bool:
        """Take the Opts of the largest tile of which there are enough; False where there is none."""
        tile = self.ranked(self.tiles())
        if tile is None:
            return False
        contraction = contraction_of(self.reduce)
        assert contraction is not None
        sides = self.one_range_a_side(contraction)
        k = self.summed_range(DEPTH)
        if k.extent % DEPTH:
            k, = self.new_ranges(Pad(k.arg[0], DEPTH))
        (m, m_tiles), (n, n_tiles) = (self.tiled(range_named(self.nest, side), size)
                                      for side, size in zip(sides, (tile.m, tile.n), strict=True))
        k_name, _ = self.tiled(k, DEPTH)
        self.group_blocks(m_tiles, n_tiles)
        source = self.reduce.dtype
        self.share(source, m, k_name, tile.threads, 0)
        self.share(source, n, k_name, tile.threads, 0, swizzled=RUN)
        self.in_registers(n, tile.n, tile.columns)
        self.in_registers(m, tile.m, tile.rows)
        self.take(Unroll(k_name, WRITTEN_OUT))
        return True

    def tiles(self) -> list[RegisterTile]:
        """The tiles that leave enough blocks and compute little beyond the result, the largest first. None
        where threads are not known to be lanes of warps: OpenCL on a CPU compiled such a block for a
        minute."""
        contraction = contraction_of(self.reduce)
        if not self.machine.has_exchange or contraction is None or self.reduces_else():
            return []
        loops = [self.plain(s) for s in (contraction.left, contraction.right, self.reduce.closed_ranges)]
        whole = all(len(s) == len(plain) for s, plain in zip(
            (contraction.left, contraction.right, self.reduce.closed_ranges), loops, strict=True))
        sizes = [int(prod(r.extent for r in side)) for side in loops]
        if not whole or not all(loops) or sizes[2] < DEPTH or min(sizes[:2]) <= RUN:
            return []
        outputs = int(prod(r.extent for s in self.nest.src[:1] for r in s.closed_ranges))
        others = outputs // (sizes[0] * sizes[1])
        found = []
        for tile in TILES:
            blocks = ceildiv(sizes[0], tile.m) * ceildiv(sizes[1], tile.n)
            waste = blocks * tile.m * tile.n / (sizes[0] * sizes[1])
            shared = (tile.m + tile.n) * DEPTH * self.reduce.dtype.itemsize
            self.note(f"{tile.m}x{tile.n} of a block in registers", blocks=blocks * others,
                      least=self.machine.tiled_blocks, computed=waste, at_most=MOST_WASTE,
                      shared_bytes=shared, there_are=self.machine.shared_bytes)
            if tile.threads <= self.machine.block_threads and shared <= self.machine.shared_bytes and \
                    blocks * others >= self.machine.tiled_blocks and waste <= MOST_WASTE:
                found.append(tile)
        return found

    def in_registers(self, side: int, extent: int, held: int) -> None:
        """A side of the block's tile: runs in registers, then threads, what is left in registers again."""
        r = range_named(self.nest, side)
        steps = [a.step(r) for a in accesses_of(self.nest) if a.node.op is Ops.STORE and r in a.ranges]
        wide = all(step == 1 for step in steps)
        ranges = self.new_ranges((Vector if wide else Upcast)(side, RUN))
        rest = next(r for r in ranges if r.arg[1] is RangeKind.LOOP)
        ranges = self.new_ranges(Local(rest.arg[0], extent // held))
        for rest in (r for r in ranges if r.arg[1] is RangeKind.LOOP):
            self.take(Upcast(rest.arg[0], rest.extent))
