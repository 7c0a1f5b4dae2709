"""Plans for contractions on matrix units.

In: a nest whose main contraction a unit of the device can do. Out: the Opts for it. Each side of the
contraction becomes one range, for a tile may run over several rows of an image; a block computes a tile of
(m, n), of which each warp has a part in registers. The block's threads load both operands of the tile for a
part of k into shared memory, in the order in which memory is contiguous, and the warps multiply from there.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinygrad.codegen.contraction import Contraction, contraction_of
from tinygrad.codegen.opt.matrix import MatrixProduct, matrix_product, steps_by_one
from tinygrad.codegen.opt.plan import Opt, OptKind, apply_opt, operands, range_named
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, prod
from tinygrad.renderer import ACCESS_BYTES, Renderer
from tinygrad.renderer.matrix_units import UNITS, MatrixUnit

FULL_BLOCKS = 96
"""Blocks that keep a GPU of about 132 multiprocessors busy; with fewer, tiles are made smaller."""
MOST_WASTE = 1.5
"""How much larger than what it computes all tiles together may be."""
STEPS = 2
"""Tiles along k that a lane loads at once: 16 bytes of a row of k."""
GROUP = 8
"""Blocks along m that run beside each other, so that what they read of both operands stays in the cache."""
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
    BlockTile(128, 256, 2, 4), BlockTile(128, 128, 2, 2), BlockTile(64, 128, 2, 2), BlockTile(128, 64, 2, 2),
    BlockTile(64, 64, 2, 2), BlockTile(64, 32, 2, 1), BlockTile(32, 64, 1, 2), BlockTile(32, 32, 1, 1),
    BlockTile(16, 32, 1, 1), BlockTile(16, 16, 1, 1), BlockTile(8, 8, 1, 1),
)
"""The largest first: a warp's 64 x 64 of the first two read 1/32 of an operand's item for each product."""
MOST_ACCUMULATORS = 128
"""Of 255 registers of a thread."""


class UnitChooser:
    """The Opts for one contraction: `take` applies each to `nest`."""

    def __init__(self, nest: UOp, reduce: UOp, renderer: Renderer) -> None:
        self.nest = nest
        self.reduce = reduce
        self.renderer = renderer
        self.opts: list[Opt] = []

    def take(self, opt: Opt) -> None:
        self.nest = apply_opt(self.nest, opt)
        self.opts.append(opt)

    def new_ranges(self, opt: Opt) -> list[UOp]:
        """The ranges that an Opt makes, the outermost loop last."""
        before = set(_ranges(self.nest))
        self.take(opt)
        return sorted((r for r in _ranges(self.nest) if r not in before), key=lambda r: r.arg[0])

    def choose(self) -> bool:
        """Take the Opts of the best unit there is; False where there is none."""
        if any(n.op is Ops.REDUCE and n.closed_ranges and n is not self.reduce for n in self.nest.toposort()):
            return False
        found = self.product()
        if found is None:
            return False
        unit, product = found
        tile = self.block_tile(unit, product)
        if tile is None:
            return False
        self.split(unit, product, tile)
        return True

    # --- which unit, along which ranges ---------------------------------------------------------------------

    def product(self) -> tuple[MatrixUnit, MatrixProduct] | None:
        """The first unit that can do the contraction, whose sides are one range each from then on."""
        contraction = contraction_of(self.reduce)
        assert contraction is not None
        for unit in self.renderer.matrix_units:
            sides = [self.plain(s) for s in (contraction.left, contraction.right)]
            summed = self.plain(self.reduce.closed_ranges)
            if not all(sides) or not summed or (unit.rounds_to_tf32 and not ALLOW_TF32):
                continue
            if matrix_product(self.reduce, unit, sides[0][0], sides[1][0], summed[0]) is not None and \
                    all(prod(r.extent for r in ranges) >= LEAST_SIDE for ranges in (*sides, summed)):
                return unit, self.merged(unit, contraction)
        return None

    def plain(self, ranges: Iterable[UOp]) -> list[UOp]:
        """Loops of a fixed number of iterations, in the order of the outputs' loops and the sum's."""
        order = [r for s in self.nest.src for r in s.closed_ranges] + list(self.reduce.closed_ranges)
        return sorted((r for r in ranges if r.arg[1] is RangeKind.LOOP and len(r.src) == 1), key=order.index)

    def merged(self, unit: MatrixUnit, contraction: Contraction) -> MatrixProduct:
        """The contraction with one range on each side."""
        stored = [s.src[0].src[1] for s in self.nest.src]
        left_is_fast, right_is_fast = (any(steps_by_one(at, r) for at in stored for r in side)
                                       for side in (contraction.left, contraction.right))
        rows, columns = contraction.left, contraction.right
        if left_is_fast and not right_is_fast:
            rows, columns = columns, rows
        names = [self.one_range([r.arg[0] for r in self.plain(side)]) for side in (rows, columns)]
        m, n = (range_named(self.nest, name) for name in names)
        self.reduce = self.reduce_over(self.plain(self.reduce.closed_ranges)[0])
        k = self.summed_range(unit)
        m, n = (range_named(self.nest, name) for name in names)
        product = matrix_product(self.reduce, unit, m, n, k)
        assert product is not None
        return product

    def reduce_over(self, r: UOp) -> UOp:
        """The contraction, as it is now."""
        return next(n for n in self.nest.toposort() if n.op is Ops.REDUCE and r in n.closed_ranges)

    def one_range(self, names: list[int]) -> int:
        """Loops, the outermost first, as one."""
        while len(names) > 1:
            merged, = self.new_ranges(Opt(OptKind.MERGE, names[0], names[1]))
            names = [merged.arg[0], *names[2:]]
        return names[0]

    def summed_range(self, unit: MatrixUnit) -> UOp:
        """The range that tiles go along: one along which an operand is contiguous, or the longest; all of
        them as one where none fills a tile."""
        ranges = self.plain(self.reduce.closed_ranges)
        offsets = [n.src[0].src[1] for n in self.reduce.toposort() if n.op is Ops.LOAD]
        best = max(ranges, key=lambda r: (r.extent >= unit.k, any(steps_by_one(at, r) for at in offsets),
                                          r.extent))
        if best.extent < unit.k and len(ranges) > 1:
            name = self.one_range([r.arg[0] for r in ranges])
            best = range_named(self.nest, name)
            self.reduce = self.reduce_over(best)
        return best

    # --- tiles ----------------------------------------------------------------------------------------------

    def block_tile(self, unit: MatrixUnit, product: MatrixProduct) -> BlockTile | None:
        """The largest tile that leaves enough blocks and computes little beyond the result; else the
        smallest that is not too large."""
        outputs = prod(r.extent for s in self.nest.src[:1] for r in s.closed_ranges)
        others = outputs // (product.m.extent * product.n.extent)
        possible = [t for t in TILES if self.fits(unit, t)]
        most = MOST_WASTE * product.m.extent * product.n.extent
        good = [t for t in possible if _computed(product, t) <= most]
        for tile in good:
            if _blocks(product, tile) * others >= FULL_BLOCKS:
                return tile
        if good:
            return max(good, key=lambda t: _blocks(product, t) * others)
        return min(possible, key=lambda t: _computed(product, t), default=None)

    def fits(self, unit: MatrixUnit, tile: BlockTile) -> bool:
        """Whether warps of this unit make up the tile and hold it."""
        sides = [(tile.m, tile.warps_m * unit.m), (tile.n, tile.warps_n * unit.n)]
        if any(side % least for side, least in sides):
            return False
        held = tile.m * tile.n // (tile.warps_m * tile.warps_n * unit.threads)
        threads = tile.warps_m * tile.warps_n * unit.threads
        return held <= MOST_ACCUMULATORS and threads <= self.renderer.block_threads

    def split(self, unit: MatrixUnit, product: MatrixProduct, tile: BlockTile) -> None:
        """The Opts: tiles of blocks, shared memory, tiles of warps."""
        steps = STEPS if product.k.extent > unit.k else 1
        k = product.k
        if k.extent % (unit.k * steps):
            k, = self.new_ranges(Opt(OptKind.PAD, k.arg[0], unit.k * steps))
        sizes = (tile.m, tile.n, unit.k * steps)
        ranges = (product.m, product.n, k)
        tiled = [self.tiled(r, size) for r, size in zip(ranges, sizes, strict=True)]
        (m, m_tiles), (n, n_tiles), (k_name, _) = tiled
        self.group_blocks(m_tiles, n_tiles)
        threads = tile.warps_m * tile.warps_n * unit.threads
        for side in (m, n):
            self.share(unit, side, k_name, threads, steps)
        tiles = (tile.m // (tile.warps_m * unit.m), tile.n // (tile.warps_n * unit.n), steps)
        number = UNITS.index(unit)
        for r in self.new_ranges(Opt(OptKind.MMA, k_name, number, (m, n), tiles)):
            if r.arg[1] is RangeKind.LOOP:
                self.take(Opt(OptKind.LOCAL, r.arg[0], r.extent))

    def tiled(self, r: UOp, size: int) -> tuple[int, UOp | None]:
        """`r` as (the range inside its tile, the loop over tiles)."""
        if r.extent <= size:
            return int(r.arg[0]), None
        inside, *tiles = self.new_ranges(Opt(OptKind.SPLIT, r.arg[0], size))
        return int(inside.arg[0]), tiles[0]

    def group_blocks(self, m: UOp | None, n: UOp | None) -> None:
        """A few tiles along m beside each other, then the next along n, where there are many of both."""
        if m is None or n is None or m.extent % GROUP or m.extent == GROUP:
            return
        _, groups = self.new_ranges(Opt(OptKind.SPLIT, m.arg[0], GROUP))
        self.take(Opt(OptKind.SWAP, n.arg[0]))
        self.take(Opt(OptKind.SWAP, groups.arg[0]))

    # --- shared memory --------------------------------------------------------------------------------------

    def share(self, unit: MatrixUnit, side: int, k: int, threads: int, steps: int) -> None:
        """The operand that changes with `side` in shared memory."""
        for number, operand in enumerate(operands(self.nest)):
            named = {r.arg[0]: r for r in operand.ranges}
            if side in named and k in named:
                self.take(self.sharing(number, operand, unit, named[side], named[k], threads, steps))
                return

    def sharing(self, number: int, operand: UOp, unit: MatrixUnit, side: UOp, k: UOp, threads: int,
                steps: int) -> Opt:
        """How one operand lies in shared memory: in rows along what it is contiguous along."""
        size = unit.source.itemsize
        widest = min(ACCESS_BYTES // size, self.renderer.access_lanes(unit.source))
        loads = [n.src[0].src[1] for n in operand.toposort() if n.op is Ops.LOAD]
        along = next((r for r in (k, side) if any(steps_by_one(at, r) for at in loads)), None)
        over = (k, side) if along is side else (side, k)
        width = dividing(over[-1].extent, widest) if along is not None else 1
        names = (over[0].arg[0], over[1].arg[0])
        if over[-1] is k or over[-1].extent <= 2 * widest:
            return Opt(OptKind.SHARE, number, threads, names, (width,))
        rows = unit.a.registers // 2 * steps  # of k, that one lane reads below each other
        return Opt(OptKind.SHARE, number, threads, names, (width, rows, 2 * widest))


def _ranges(nest: UOp) -> list[UOp]:
    return [n for n in nest.toposort() if n.op is Ops.RANGE]


def dividing(extent: int, most: int) -> int:
    """The largest power of two up to `most` that divides `extent`."""
    while extent % most:
        most //= 2
    return most


def _blocks(product: MatrixProduct, tile: BlockTile) -> int:
    return -(-product.m.extent // tile.m) * -(-product.n.extent // tile.n)


def _computed(product: MatrixProduct, tile: BlockTile) -> int:
    """Items that all tiles have."""
    return _blocks(product, tile) * tile.m * tile.n


