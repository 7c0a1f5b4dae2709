"""Plans for contractions by tiles of blocks, on matrix units and in registers.

A contraction is a product of matrices whose rows, columns and sum may be several loops each: a convolution's
rows run over images, lines and pixels. Each side becomes one range; a block computes a tile of (m, n), whose
operands its threads load together into shared memory, for a part of k at a time, in the order in which memory
is contiguous. From there warps multiply on a matrix unit that the device has for the contraction. Where it
has none, each thread has a few rows and columns of the tile in registers: four neighbouring ones, and four
more half a tile further on, so that the threads of a warp read neighbouring vectors.
"""
from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from math import gcd

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.opt.access import steps_of
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.matrix import (
    MatrixProduct,
    are_of_every_store,
    is_contiguous,
    matrix_product,
    steps_by_one,
)
from tinygrad.codegen.opt.opts import MMA, Local, Merge, Pad, Split, Swap, Unroll, Upcast, Vector
from tinygrad.codegen.predicate import mask_of
from tinygrad.codegen.ranges import is_plain, iterations, of_kind
from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.symbolic import TRUE
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, ceildiv, round_up
from tinygrad.renderer.launch import ACCESS_BYTES
from tinygrad.renderer.machine import ACCESS_LANES
from tinygrad.renderer.matrix_units import WGMMA_COLUMNS, MatrixUnit

LEAST_RUN = ACCESS_BYTES // 2
"""Items that lie side by side, from which on rows of a tile go along them: an access of halves."""
BLOCKS_TOGETHER = 8
"""Blocks along m that run beside each other, so that what they read of both operands stays in the cache."""
MOST_WASTE = 1.5
"""How much larger than what it computes all tiles together may be."""
STEPS = 2
"""Tiles along k that a lane loads at once: 16 bytes of a row of k."""
LEAST_SIDE = 8
"""Rows and columns (queries, keys) below which a unit would multiply nothing but zeros."""
LIGHT_WORK, HEAVY_WORK = 1, 16
"""Operations beside the products beyond which a quarter of a thread's registers for accumulators, and an
eighth, leave room for them, in place of half: 128 spilled 264 bytes a thread with two sums, 64 spilled 420
with the 33 operations of GELU's gradient (docs/make_gpu_plans.py). Units that read shared memory leave the
registers of operands for these."""
SHARED_RATE = 4
"""How many times as much shared memory gives in the same time as the caches around it. (Of more than 1 and
less than 16, tiles come in the same order.)"""
DEPTH = 16
"""Products of a part of k without a unit: 1024 of a thread with the largest tile between two barriers."""


@frozen
class BlockTile:
    """What a block computes, and the warps on a unit, or else the threads, that share each of its sides."""

    m: int
    n: int
    parts_m: int
    parts_n: int

    @property
    def parts(self) -> int:
        return self.parts_m * self.parts_n

    @property
    def reads(self) -> float:
        """What reading takes for each product: items from the memory around a block, and items that its parts
        read from shared memory, four in the time of one."""
        sides = (self.m, self.parts_m), (self.n, self.parts_n)
        return sum(1 / size + parts / size / SHARED_RATE for size, parts in sides)

    def computed(self, m: int, n: int) -> int:
        """Items of a product of (m, n) and of what tiles compute beside it."""
        return round_up(m, self.m) * round_up(n, self.n)


TILES = tuple(starmap(BlockTile, (
    (128, 256, 2, 4), (128, 128, 2, 2), (128, 128, 2, 4), (64, 128, 2, 2), (128, 64, 2, 2), (64, 64, 2, 2),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 1, 1), (16, 32, 1, 1), (16, 16, 1, 1), (8, 8, 1, 1))))
"""On a unit: a warp's 64 x 64 of the first two read 1/32 of an operand's item for each product."""
SHARED_TILES = tuple(BlockTile(m, n, m // 64, 1) for m in (64, 128) for n in WGMMA_COLUMNS if m <= n)
"""Of warp groups, 64 rows each, whose units read shared memory."""
REGISTER_TILES = tuple(BlockTile(m, n, min(16, m // ACCESS_LANES), min(16, n // ACCESS_LANES))
                       for m in (128, 64, 32) for n in (128, 64, 32))
"""Of up to 16 x 16 threads: 8 x 8 products of one take 16 items from shared memory."""


class BlockTileChooser(Chooser):
    """The Opts for contractions by tiles of blocks."""

    @property
    def units(self) -> list[MatrixUnit]:
        """The matrix units that do not round further than is allowed."""
        return [unit for unit in self.machine.matrix_units if ALLOW_TF32 or not unit.rounds_to_tf32]

    def outer_reduces(self) -> list[UOp]:
        """The REDUCEs that stand directly inside the outputs' loops."""
        outputs = self.outputs
        return [n for n in self.reduces if n.ranges <= outputs]

    def tile_of_blocks(self, contraction: Contraction) -> bool:
        """Take the Opts of the best tiles there are, if nothing else is reduced in the kernel: on a matrix
        unit that reads shared memory, on another one, in registers. False where there are none."""
        return self.reduces == [contraction.reduce] and (
            any(self.attempt(self.tile_on_unit, contraction, in_shared) for in_shared in ((True, True), None))
            or self.attempt(self.tile_in_registers, contraction))

    # --- sides ----------------------------------------------------------------------------------------------

    def plain(self, ranges: Iterable[UOp]) -> list[UOp]:
        """Loops of a fixed number of iterations, in the order of the outputs' loops and the sums'."""
        order = [r for n in (*self.nest.src, *self.nest.toposort()) for r in n.closed_ranges]
        return sorted(filter(is_plain, ranges), key=order.index)

    def merged(self, contraction: Contraction, least: int) -> tuple[UOp, UOp, UOp]:
        """The rows as one range, the columns, along which results lie in memory, as another one, and the
        range that is summed over by tiles: one of at least so many iterations along which an operand is
        contiguous, or the longest; all of them as one where none is as long."""
        stored = [s.offset for s in self.nest.src]
        are_fast = [any(steps_by_one(at, r) for at in stored for r in side) for side in contraction.sides]
        sides = contraction.sides[::-1] if are_fast == [True, False] else contraction.sides
        m, n = (self.one_range(self.in_order_of_memory(contraction, side)) for side in sides)
        now = self.main_contraction()
        assert now is not None
        summed = self.plain(now.reduce.closed_ranges)
        k = max(summed, key=lambda r: (r.extent >= least, is_contiguous([now.reduce], r), r.extent))
        return m, n, self.one_range(summed) if k.extent < least else k

    def in_order_of_memory(self, contraction: Contraction, side: Iterable[UOp]) -> list[UOp]:
        """The loops of a side, the one along which an operand lies in runs last: tiles are loaded by rows."""
        loops = self.plain(side)
        runs = [r for r in loops if r.extent >= LEAST_RUN and is_contiguous([contraction.reduce], r)]
        return sorted(loops, key=lambda r: r in runs[-1:])

    def one_range(self, loops: list[UOp]) -> UOp:
        """Loops, the outermost first, as one."""
        whole, *inner = loops
        for r in inner:
            whole, = self.new_ranges(Merge, whole, r)
        return whole

    # --- tiles ----------------------------------------------------------------------------------------------

    def best_tile(self, tiles: Iterable[BlockTile], m: int, n: int, where: str,
                  least_blocks: int = 1) -> BlockTile | None:
        """Of tiles of products of (m, n) that compute little in vain, the one that reads least of which there
        are blocks enough, or else most; but for as many better ones as are to be passed over. None where
        there is none with as many as have to be."""
        enough, others = self.machine.tiled_blocks, iterations(self.store.closed_ranges) // (m * n)
        good = {}
        for tile in tiles:
            blocks, computed = ceildiv(m, tile.m) * ceildiv(n, tile.n) * others, tile.computed(m, n)
            self.note(f"{tile.m}x{tile.n} of a block {where}", blocks=blocks, enough=enough,
                      computed=computed, at_most=MOST_WASTE * m * n)
            if blocks >= least_blocks and computed <= MOST_WASTE * m * n:
                good[tile] = min(blocks, enough)
        best_first = sorted(good, key=lambda t: (-good[t], t.reads))
        return best_first[min(self.rank, len(good) - 1)] if good else None

    def tiled_product(self, m: UOp, n: UOp, k: UOp, tile: BlockTile,
                      depth: int) -> tuple[UOp, UOp, UOp]:
        """The ranges inside tiles of rows, of columns and of the sum, of which a few tiles along m run beside
        each other, then the next along n, where there are many of both."""
        if k.extent % depth:
            k, = self.new_ranges(Pad, k, depth)
        (m, m_tiles), (n, n_tiles), (k, _) = (self.tiled(m, tile.m), self.tiled(n, tile.n),
                                              self.tiled(k, depth))
        if m_tiles is not None and n_tiles is not None and m_tiles.extent > BLOCKS_TOGETHER and \
                m_tiles.extent % BLOCKS_TOGETHER == 0:
            _, groups = self.new_ranges(Split, m_tiles, BLOCKS_TOGETHER)
            self.take(Swap, n_tiles)
            self.take(Swap, groups)
        return m, n, k

    def stage_in_shared(self, source: DType, side: UOp, k: UOp, threads: int, rows: int = 0,
                        swizzled: int = 0) -> None:
        """The operand that changes with `side` in shared memory, in rows along what it is contiguous along.
        Rows are swizzled where lanes read one item each of several rows of k, `rows` below each other, or
        several items along k of `swizzled` rows of their own; 0: where they do not."""
        operand = self.operands_along((side, k))[0]
        widest = self.widest_access(source)
        along = next((r for r in (k, side) if is_contiguous([operand], r)), None)
        over = (k, side) if along is side else (side, k)
        width = gcd(over[-1].extent, widest) if along is not None else 1
        swizzle: tuple[int, ...] = ()
        if swizzled and over[-1] is k and width > 1:
            swizzle = (swizzled, width)
        elif rows and over[-1] is not k and over[-1].extent > 2 * widest:
            swizzle = (rows, 2 * widest)
        self.stage(operand, over, threads, width, *swizzle)

    def widest_access(self, source: DType) -> int:
        """Items that one access moves into shared memory at most."""
        return min(ACCESS_BYTES // source.itemsize, self.machine.access_lanes(source))

    # --- matrix units ---------------------------------------------------------------------------------------

    def tile_on_unit(self, contraction: Contraction, in_shared: tuple[bool, bool] | None) -> bool:
        """Tiles of the first unit that can do the contraction; of units that read shared memory themselves,
        if both operands can be copied there as they lie in memory, 16 bytes at a time. Where all tiles
        compute much in vain, the one that computes least."""
        if in_shared and mask_of(contraction.reduce.src[0], Ops.ADD) is not TRUE:
            return False  # zeros would have to be written over what was copied
        product = self.product(contraction, in_shared)
        if product is None:
            return False
        unit, m, n, held = product.unit, product.m.extent, product.n.extent, self.most_held(product)
        units, tiles = {t.n: unit for t in TILES}, TILES
        if in_shared:
            lie = tuple(lies_along_k(value, side, product.k, unit.row_items)
                        for value, side in ((product.a, product.m), (product.b, product.n)))
            units = {u.n: u for u in self.units if u.in_shared == lie and u.source is unit.source}
            tiles = tuple(t for t in SHARED_TILES if t.m <= m and t.n <= n and product.k.extent >= unit.k)
        possible = [t for t in tiles if t.n in units and self.fits(units[t.n], t, held)]
        tile = self.best_tile(possible, m, n, f"on {unit}") or \
            min(possible, key=lambda t: t.computed(m, n), default=None)
        if tile is None:
            return False
        self.put_on_unit(product, units[tile.n], tile)
        return True

    def product(self, contraction: Contraction,
                in_shared: tuple[bool, bool] | None) -> MatrixProduct | None:
        """The contraction on the first unit that can do it, of those whose operands are in shared memory so,
        with one range on each side from then on."""
        sides = [self.plain(s) for s in (*contraction.sides, contraction.reduce.closed_ranges)]
        if any(iterations(side) < LEAST_SIDE for side in sides) or \
                not are_of_every_store(self.nest, contraction.left | contraction.right):
            return None
        for unit in self.units:
            if unit.in_shared == in_shared and \
                    matrix_product(contraction.reduce, unit, *(side[0] for side in sides)):
                m, n, k = self.merged(contraction, unit.k)
                now = self.main_contraction()
                return None if now is None else matrix_product(now.reduce, unit, m, n, k)
        return None

    def most_held(self, product: MatrixProduct) -> int:
        """Accumulators of a thread that leave it room for the operations on floats that make the operands, or
        what is stored from the sum, and loads for that: these too take registers until they are there."""
        value, sums = product.reduce.src[0], set(product.reduce.toposort())
        work = sum(n not in sums if n.op is Ops.LOAD else
                   n.op in Family.ELEMENTWISE and n.op is not Ops.CAST and n.dtype.is_float
                   for n in self.nest.toposort() if n is not value)
        least = work > HEAVY_WORK and not product.unit.in_shared
        return self.machine.thread_registers // 2 >> (work > LIGHT_WORK) >> least

    def fits(self, unit: MatrixUnit, tile: BlockTile, most_held: int) -> bool:
        """Whether warps of this unit make up the tile and hold it."""
        threads = tile.parts * unit.threads
        return tile.m % (tile.parts_m * unit.m) == 0 and tile.n % (tile.parts_n * unit.n) == 0 and \
            tile.m * tile.n // threads <= most_held and threads <= self.machine.block_threads

    def put_on_unit(self, product: MatrixProduct, unit: MatrixUnit, tile: BlockTile) -> None:
        """The Opts: tiles of blocks, shared memory, tiles of warps."""
        steps = STEPS if product.k.extent > unit.k and not unit.in_shared else 1
        m, n, k = self.tiled_product(product.m, product.n, product.k, tile, unit.k * steps)
        threads = tile.parts * unit.threads
        for number, side in enumerate((m, n)):
            if unit.in_shared:  # in the rows that the unit reads there
                over = (side, k) if unit.in_shared[number] else (k, side)
                self.stage(self.operands_along(over)[0], over, threads, unit.access_items, 1, 0,
                           unit.row_items)
            else:  # rows of k, that one lane reads below each other
                self.stage_in_shared(unit.source, side, k, threads, unit.a.registers // 2 * steps)
        made = self.new_ranges(MMA, m, n, k, unit, tile.m // (tile.parts_m * unit.m),
                               tile.n // (tile.parts_n * unit.n), steps)
        for r in of_kind(made, RangeKind.LOOP):
            self.split_off(Local, r)

    # --- registers ------------------------------------------------------------------------------------------

    def tile_in_registers(self, contraction: Contraction) -> bool:
        """The largest tile of which there are enough blocks and that computes little beyond the result. None
        where threads are not known to be lanes of warps: OpenCL on a CPU compiled such a block for a
        minute."""
        ranges = (*contraction.sides, contraction.reduce.closed_ranges)
        m, n, k = map(iterations, ranges)
        if not self.machine.has_exchange or any(len(self.plain(s)) < len(s) for s in ranges) or \
                k < DEPTH or min(m, n) <= ACCESS_LANES:
            return False
        source = contraction.reduce.dtype
        tiles = [t for t in REGISTER_TILES if t.parts <= self.machine.block_threads
                 and (t.m + t.n) * DEPTH * source.itemsize <= self.machine.shared_bytes]
        tile = self.best_tile(tiles, m, n, "in registers", self.machine.tiled_blocks)
        if tile is None:
            return False
        rows, columns, depth = self.tiled_product(*self.merged(contraction, DEPTH), tile, DEPTH)
        if not all(self.operands_along((side, depth)) for side in (rows, columns)):
            return False  # an operand is the same for all that is summed
        self.stage_in_shared(source, rows, depth, tile.parts)
        self.stage_in_shared(source, columns, depth, tile.parts, swizzled=ACCESS_LANES)
        self.hold(columns, tile.parts_n)
        self.hold(rows, tile.parts_m)
        self.take(Unroll, depth, ACCESS_LANES)
        return True

    def hold(self, side: UOp, threads: int) -> None:
        """A side of the block's tile: runs in registers, then threads, what is left in registers again."""
        wide = all(a.step(side) == 1 for a in self.accesses(side, Ops.STORE))
        around = self.split_off(Vector if wide else Upcast, side, ACCESS_LANES)
        self.split_off(Upcast, self.split_off(Local, around, threads))


def lies_along_k(operand: UOp, side: UOp, k: UOp, items: int) -> bool | None:
    """Whether what an operand is loaded from lies in rows along k (else along its own side); None where it
    lies along neither, or where whole accesses do not divide its rows."""
    loads = operand.nodes_of(Ops.LOAD)
    for r in (k, side):
        steps = [steps_of(load.offset)[0] for load in loads]
        if any(own.get(r) == 1 for own in steps):
            width = ACCESS_BYTES // loads[0].dtype.itemsize
            whole = all(step % width == 0 for own in steps for other, step in own.items() if other is not r)
            return r is k if whole and (r is k or r.extent >= items) else None
    return None
