"""What plans for contractions on blocks have in common: sides, tiles, and operands in shared memory.

A contraction is a product of matrices whose rows, columns and sum may be several loops each: a convolution's
rows run over images, lines and pixels. Each side becomes one range; a block computes a tile of it, whose
operands its threads load together, for a part of the sum at a time. `choose_units.py` multiplies tiles on
matrix units, `choose_attention.py` in the registers of every thread.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.loops import operands
from tinygrad.codegen.opt.matrix import steps_by_one
from tinygrad.codegen.opt.opts import Merge, Split, Swap
from tinygrad.codegen.ranges import range_named
from tinygrad.dtype import DType
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.launch import ACCESS_BYTES

_Choice = TypeVar("_Choice")
LEAST_RUN = 8
"""Items that lie side by side, from which on rows of a tile go along them: an access of halves."""
ACCUMULATORS = 8
"""Blocks along m that run beside each other, so that what they read of both operands stays in the cache."""


class SideChooser(Chooser):
    """The Opts for one contraction of what another chooser works on."""

    def __init__(self, whole: Chooser, reduce: UOp) -> None:
        super().__init__(whole.nest, whole.machine, whole.rank)
        self.notes = whole.notes
        self.reduce = reduce

    def ranked(self, choices: Sequence[_Choice]) -> _Choice | None:
        """The best of these, which come first, but for as many better ones as are to be passed over."""
        return choices[min(self.rank, len(choices) - 1)] if choices else None

    def reduces_else(self) -> bool:
        """True if something else is reduced in the kernel."""
        others = (n for n in self.nest.toposort() if n.op is Ops.REDUCE and n is not self.reduce)
        return any(n.closed_ranges for n in others)

    # --- sides ----------------------------------------------------------------------------------------------

    def plain(self, ranges: Iterable[UOp]) -> list[UOp]:
        """Loops of a fixed number of iterations, in the order of the outputs' loops and the sum's."""
        order = [r for s in self.nest.src for r in s.closed_ranges] + list(self.reduce.closed_ranges)
        return sorted((r for r in ranges if r.arg[1] is RangeKind.LOOP and len(r.src) == 1), key=order.index)

    def one_range_a_side(self, contraction: Contraction) -> tuple[int, int]:
        """The rows as one range and the columns, along which results lie in memory, as another one."""
        stored = [s.src[0].src[1] for s in self.nest.src]
        left_is_fast, right_is_fast = (any(steps_by_one(at, r) for at in stored for r in side)
                                       for side in (contraction.left, contraction.right))
        rows, columns = contraction.left, contraction.right
        if left_is_fast and not right_is_fast:
            rows, columns = columns, rows
        names = [self.one_range([r.arg[0] for r in self.in_order_of_memory(side)])
                 for side in (rows, columns)]
        self.reduce = self.reduce_over(self.plain(self.reduce.closed_ranges)[0])
        return names[0], names[1]

    def in_order_of_memory(self, side: Iterable[UOp]) -> list[UOp]:
        """The loops of a side, the one along which an operand lies in runs last: tiles are loaded by rows."""
        loops = self.plain(side)
        offsets = [n.src[0].src[1] for n in self.reduce.toposort() if n.op is Ops.LOAD]
        runs = [r for r in loops if r.extent >= LEAST_RUN and any(steps_by_one(at, r) for at in offsets)]
        return sorted(loops, key=lambda r: r in runs[-1:])

    def reduce_over(self, r: UOp) -> UOp:
        """The contraction, as it is now."""
        return next(n for n in self.nest.toposort() if n.op is Ops.REDUCE and r in n.closed_ranges)

    def one_range(self, names: list[int]) -> int:
        """Loops, the outermost first, as one."""
        while len(names) > 1:
            merged, = self.new_ranges(Merge(names[0], names[1]))
            names = [merged.arg[0], *names[2:]]
        return names[0]

    def summed_range(self, least: int) -> UOp:
        """The range that tiles go along: one of at least so many iterations along which an operand is
        contiguous, or the longest; all of them as one where none is as long."""
        ranges = self.plain(self.reduce.closed_ranges)
        offsets = [n.src[0].src[1] for n in self.reduce.toposort() if n.op is Ops.LOAD]
        best = max(ranges, key=lambda r: (r.extent >= least, any(steps_by_one(at, r) for at in offsets),
                                          r.extent))
        if best.extent < least and len(ranges) > 1:
            name = self.one_range([r.arg[0] for r in ranges])
            best = range_named(self.nest, name)
            self.reduce = self.reduce_over(best)
        return best

    # --- tiles --------------------------------------------------------------------------------------------

    def tiled(self, r: UOp, size: int) -> tuple[int, UOp | None]:
        """`r` as (the range inside its tile, the loop over tiles)."""
        if r.extent <= size:
            return int(r.arg[0]), None
        inside, *tiles = self.new_ranges(Split(r.arg[0], size))
        return int(inside.arg[0]), tiles[0]

    def group_blocks(self, m: UOp | None, n: UOp | None) -> None:
        """A few tiles along m beside each other, then the next along n, where there are many of both."""
        if m is None or n is None or m.extent % ACCUMULATORS or m.extent == ACCUMULATORS:
            return
        _, groups = self.new_ranges(Split(m.arg[0], ACCUMULATORS))
        self.take(Swap(n.arg[0]))
        self.take(Swap(groups.arg[0]))

    # --- shared memory --------------------------------------------------------------------------------------

    def share(self, source: DType, side: int, k: int, threads: int, rows: int,
              swizzled: int = 0) -> None:
        """The operand that changes with `side` in shared memory."""
        operand, ranges = self.operand_along(side, k)
        self.share_operand(operand, source, ranges, threads, rows, swizzled)

    def operand_along(self, side: int, k: int) -> tuple[UOp, tuple[UOp, UOp]]:
        """The operand that changes with `side`, and these ranges of it."""
        named = ((operand, {r.arg[0]: r for r in operand.ranges}) for operand in operands(self.nest))
        return next((operand, (own[side], own[k])) for operand, own in named if side in own and k in own)

    def share_operand(self, operand: UOp, source: DType, ranges: tuple[UOp, UOp], threads: int, rows: int,
                      swizzled: int) -> None:
        """One operand in shared memory, in rows along what it is contiguous along. Rows are swizzled
        where lanes read one item each of several rows of k, `rows` below each other, or several items along k
        of `swizzled` rows of their own; 0: where they do not."""
        side, k = ranges
        widest = min(ACCESS_BYTES // source.itemsize, self.machine.access_lanes(source))
        loads = [n.src[0].src[1] for n in operand.toposort() if n.op is Ops.LOAD]
        along = next((r for r in (k, side) if any(steps_by_one(at, r) for at in loads)), None)
        over = (k, side) if along is side else (side, k)
        width = dividing(over[-1].extent, widest) if along is not None else 1
        swizzle: tuple[int, ...] = ()
        if swizzled and over[-1] is k and width > 1:
            swizzle = (swizzled, width)
        elif rows and over[-1] is not k and over[-1].extent > 2 * widest:
            swizzle = (rows, 2 * widest)
        self.stage(operand, over, threads, width, *swizzle)


def dividing(extent: int, most: int) -> int:
    """The largest power of two up to `most` that divides `extent`."""
    while extent % most:
        most //= 2
    return most
