"""Plans for contractions on matrix units.

In: a nest whose main contraction a unit of the device can do. Out: the Opts for it. Each side of the
contraction becomes one range, for a tile may run over several rows of an image; a block computes a tile of
(m, n), of which each warp has a part in registers. The block's threads load both operands of the tile for a
part of k into shared memory, in the order in which memory is contiguous, and the warps multiply from there.
"""
from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from tinygrad.codegen.contraction import Contraction, contraction_of, mask_of
from tinygrad.codegen.opt.access import steps_of
from tinygrad.codegen.opt.choose_sides import SideChooser
from tinygrad.codegen.opt.matrix import MatrixProduct, are_of_every_store, matrix_product
from tinygrad.codegen.opt.opts import MMA, Local, Pad
from tinygrad.codegen.ranges import range_named
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, ceildiv, prod
from tinygrad.renderer.launch import ACCESS_BYTES
from tinygrad.renderer.matrix_units import UNITS, MatrixUnit

MOST_WASTE = 1.5
"""How much larger than what it computes all tiles together may be."""
STEPS = 2
"""Tiles along k that a lane loads at once: 16 bytes of a row of k."""
LEAST_SIDE = 8
"""Rows and columns below which a unit would multiply nothing but zeros."""


@dataclass(frozen=True)
class BlockTile:
    """What a block computes, and its warps along each side."""

    m: int
    n: int
    warps_m: int
    warps_n: int


TILES = (
    BlockTile(128, 256, 2, 4), BlockTile(128, 128, 2, 2), BlockTile(128, 128, 2, 4), BlockTile(64, 128, 2, 2),
    BlockTile(128, 64, 2, 2), BlockTile(64, 64, 2, 2), BlockTile(64, 32, 2, 1), BlockTile(32, 64, 1, 2),
    BlockTile(32, 32, 1, 1), BlockTile(16, 32, 1, 1), BlockTile(16, 16, 1, 1), BlockTile(8, 8, 1, 1),
)
"""The largest first: a warp's 64 x 64 of the first two read 1/32 of an operand's item for each product."""
SHARED_TILES = (BlockTile(128, 256, 2, 1), BlockTile(128, 128, 2, 1), BlockTile(64, 256, 1, 1),
                BlockTile(64, 128, 1, 1), BlockTile(64, 64, 1, 1))
"""Of warp groups, whose units read shared memory."""
MOST_ACCUMULATORS = 128
"""Of 255 registers of a thread."""
LIGHT_WORK, HEAVY_WORK = 1, 16
"""Operations beside the products beyond which half as many accumulators, and half of these, leave room for
them: 128 spilled 264 bytes a thread with two sums, 64 spilled 420 with the 33 operations of GELU's gradient
(docs/make_gpu_plans.py). Units that read shared memory leave the registers of operands for these."""


class UnitChooser(SideChooser):
    """The Opts for one contraction on a matrix unit."""

    def choose(self) -> bool:
        """Take the Opts of the best unit there is; False where there is none."""
        contraction = contraction_of(self.reduce)
        assert contraction is not None
        if self.reduces_else() or not are_of_every_store(self.nest, contraction.left | contraction.right):
            return False
        if self.from_shared_memory():
            return True
        found = self.product([u for u in self.machine.matrix_units if not u.in_shared])
        if found is None:
            return False
        unit, product = found
        tile = self.ranked(self.block_tiles(unit, product))
        if tile is None:
            return False
        self.split(unit, product, tile)
        return True

    # --- which unit, along which ranges ---------------------------------------------------------------------

    def product(self, units: Sequence[MatrixUnit]) -> tuple[MatrixUnit, MatrixProduct] | None:
        """The first of these units that can do the contraction, whose sides are one range each from then
        on."""
        contraction = contraction_of(self.reduce)
        assert contraction is not None
        for unit in units:
            sides = [self.plain(s) for s in (contraction.left, contraction.right)]
            summed = self.plain(self.reduce.closed_ranges)
            if not all(sides) or not summed or (unit.rounds_to_tf32 and not ALLOW_TF32):
                continue
            if matrix_product(self.reduce, unit, sides[0][0], sides[1][0], summed[0]) is not None and \
                    all(prod(r.extent for r in ranges) >= LEAST_SIDE for ranges in (*sides, summed)):
                return unit, self.merged(unit, contraction)
        return None

    def merged(self, unit: MatrixUnit, contraction: Contraction) -> MatrixProduct:
        """The contraction with one range on each side."""
        names = self.one_range_a_side(contraction)
        k = self.summed_range(unit.k)
        m, n = (range_named(self.nest, name) for name in names)
        product = matrix_product(self.reduce, unit, m, n, k)
        assert product is not None
        return product

    # --- tiles ----------------------------------------------------------------------------------------------

    def block_tiles(self, unit: MatrixUnit, product: MatrixProduct) -> list[BlockTile]:
        """The tiles that compute little beyond the result: those that leave enough blocks, the largest first,
        then those that leave most. If there is none, the one that computes least."""
        others, held = self.products_of(product), self.most_held(unit)
        possible = [t for t in TILES if self.fits(unit, t, held)]
        most = MOST_WASTE * product.m.extent * product.n.extent
        good = [t for t in possible if _computed(product, t) <= most]
        enough = self.machine.tiled_blocks
        for tile in possible:
            self.note(f"{tile.m}x{tile.n} of a block on {unit}", blocks=_blocks(product, tile) * others,
                      enough=enough, computed=_computed(product, tile), at_most=most)
        if not good:
            return sorted(possible, key=lambda t: _computed(product, t))[:1]
        return sorted(good, key=lambda t: -min(_blocks(product, t) * others, enough))

    def products_of(self, product: MatrixProduct) -> int:
        """How many such products the kernel computes: those of a batch."""
        outputs = int(prod(r.extent for s in self.nest.src[:1] for r in s.closed_ranges))
        return outputs // int(product.m.extent * product.n.extent)

    def most_held(self, unit: MatrixUnit) -> int:
        """Accumulators of a thread that leave it room for what is made of them."""
        work = self.epilogue_work()
        return MOST_ACCUMULATORS >> (work > LIGHT_WORK) >> (work > HEAVY_WORK and not unit.in_shared)

    def fits(self, unit: MatrixUnit, tile: BlockTile, most_held: int) -> bool:
        """Whether warps of this unit make up the tile and hold it."""
        sides = [(tile.m, tile.warps_m * unit.m), (tile.n, tile.warps_n * unit.n)]
        if any(side % least for side, least in sides):
            return False
        held = tile.m * tile.n // (tile.warps_m * tile.warps_n * unit.threads)
        threads = tile.warps_m * tile.warps_n * unit.threads
        return held <= most_held and threads <= self.machine.block_threads

    def epilogue_work(self) -> int:
        """Operations on floats that make the operands, or what is stored from the sum, and loads for that:
        these too take registers until they are there."""
        product, sums = self.reduce.src[0], set(self.reduce.toposort())
        return sum(n not in sums if n.op is Ops.LOAD else
                   n.op in Family.ELEMENTWISE and n.op is not Ops.CAST and n.dtype.is_float
                   for n in self.nest.toposort() if n is not product)

    def split(self, unit: MatrixUnit, product: MatrixProduct, tile: BlockTile) -> None:
        """The Opts: tiles of blocks, shared memory, tiles of warps."""
        steps = STEPS if product.k.extent > unit.k and not unit.in_shared else 1
        k = product.k
        if k.extent % (unit.k * steps):
            k, = self.new_ranges(Pad(k.arg[0], unit.k * steps))
        sizes = (tile.m, tile.n, unit.k * steps)
        ranges = (product.m, product.n, k)
        tiled = [self.tiled(r, size) for r, size in zip(ranges, sizes, strict=True)]
        (m, m_tiles), (n, n_tiles), (k_name, _) = tiled
        self.group_blocks(m_tiles, n_tiles)
        threads = tile.warps_m * tile.warps_n * unit.threads
        rows = unit.a.registers // 2 * steps  # of k, that one lane reads below each other
        for side in (m, n):
            if unit.in_shared:
                self.share_rows(unit, side, k_name, threads, unit.in_shared[side == n])
            else:
                self.share(unit.source, side, k_name, threads, rows)
        tiles = (tile.m // (tile.warps_m * unit.m), tile.n // (tile.warps_n * unit.n), steps)
        number = UNITS.index(unit)
        for r in self.new_ranges(MMA(m, n, k_name, number, *tiles)):
            if r.arg[1] is RangeKind.LOOP:
                self.take(Local(r.arg[0], r.extent))

    # --- units that read shared memory themselves -----------------------------------------------------------

    def from_shared_memory(self) -> bool:
        """Take the Opts for a unit that reads shared memory itself, if one can do the contraction and both
        operands can be copied there as they lie in memory, 16 bytes at a time."""
        zero = UOp.const(self.reduce.dtype.scalar.as_const(0), self.reduce.dtype)
        if mask_of(self.reduce.src[0], zero) is not None:
            return False  # zeros would have to be written over what was copied
        trial = copy(self)
        trial.opts = list(self.opts)
        families = [u for u in self.machine.matrix_units if u.in_shared == (True, True)]
        found = trial.product(families)
        if found is None:
            return False
        family, product = found
        lie = tuple(trial.lies_along_k(value, side, product.k, family.row_items)
                    for value, side in ((product.a, product.m), (product.b, product.n)))
        units = {u.n: u for u in self.machine.matrix_units
                 if u.in_shared == lie and u.source is family.source}
        others, held = trial.products_of(product), trial.most_held(family)
        tiles = [t for t in SHARED_TILES if t.n in units and trial.fits(units[t.n], t, held)
                 and t.m <= product.m.extent and t.n <= product.n.extent]
        if product.k.extent < family.k or not tiles:
            return False
        enough = self.machine.tiled_blocks
        tile = max(tiles, key=lambda t: (min(_blocks(product, t) * others, enough), t.m * t.n))
        self.note(f"{tile.m}x{tile.n} of a block on {units[tile.n]}", blocks=_blocks(product, tile) * others,
                  enough=enough)
        trial.split(units[tile.n], product, tile)
        self.nest, self.opts, self.reduce = trial.nest, trial.opts, trial.reduce
        return True

    def lies_along_k(self, operand: UOp, side: UOp, k: UOp, items: int) -> bool | None:
        """Whether what an operand is loaded from lies in rows along k (else along its own side); None where
        it lies along neither, or where whole accesses do not divide its rows."""
        loads = [n for n in operand.toposort() if n.op is Ops.LOAD]
        for r in (k, side):
            steps = [steps_of(load.src[0].src[1])[0] for load in loads]
            if any(own.get(r) == 1 for own in steps):
                width = ACCESS_BYTES // loads[0].dtype.itemsize
                whole = all(step % width == 0 for own in steps
                            for other, step in own.items() if other is not r)
                return r is k if whole and (r is k or r.extent >= items) else None
        return None

    def share_rows(self, unit: MatrixUnit, side: int, k: int, threads: int, along_k: bool) -> None:
        """An operand in shared memory, in the rows that a unit reads there."""
        operand, over = self.operand_along(side, k)
        self.stage(operand, over if along_k else over[::-1], threads, unit.access_items, 1, 0, unit.row_items)


def _blocks(product: MatrixProduct, tile: BlockTile) -> int:
    return ceildiv(product.m.extent, tile.m) * ceildiv(product.n.extent, tile.n)


def _computed(product: MatrixProduct, tile: BlockTile) -> int:
    """Items that all tiles have."""
    return _blocks(product, tile) * tile.m * tile.n


