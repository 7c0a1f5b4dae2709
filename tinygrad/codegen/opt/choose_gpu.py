"""The cost model for devices that run a grid of blocks of threads: a good Plan at once.

In: a loop nest and the device's numbers (threads of a block). Out: a Plan. Ranges that are contiguous in
every access are merged; then the kernel is one of three kinds:
- a contraction: each thread has a tile of accumulators in registers, a block a square of tiles;
- values that are reduced once a row and used along it (softmax, norms): a block or a thread has a row, in
  registers if it fits;
- everything else: a thread has an output, or where outputs are few and sums are long, a block has.
Neighbouring threads take neighbouring items of memory wherever there is a choice. What is left of the
outputs' loops goes across blocks.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tinygrad.codegen.contraction import Contraction
from tinygrad.codegen.kernel_fission import needs_order
from tinygrad.codegen.opt.access import MemoryAccess, lie_side_by_side
from tinygrad.codegen.opt.choose_attention import AttentionChooser
from tinygrad.codegen.opt.choose_tiles import LEAST_SIDE
from tinygrad.codegen.opt.chooser import power_of_two
from tinygrad.codegen.opt.loops import loop_around
from tinygrad.codegen.opt.online_softmax import online_softmax_of
from tinygrad.codegen.opt.opts import (
    Global,
    Local,
    Merge,
    OnlineSoftmax,
    Row,
    Scatter,
    Split,
    Unroll,
    Upcast,
    Vector,
)
from tinygrad.codegen.ranges import all_ranges, fresh_identity, is_plain, iterations, of_kind
from tinygrad.codegen.segment_sum import segment_sums
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.machine import ACCESS_LANES, SECTOR_BYTES, Machine

TILE_ITEMS = 16
"""Items of a tile of a row that a thread keeps in registers."""
LEAST_OWN, MOST_OWN = 8, 64
"""Outputs of a tile in a thread's own memory: fewer are not worth a walk, more leave its cache."""
ROW_ROUNDS = 4
"""Accesses of a thread along a row, all on their way at once."""


def runs_as_fused_attention(nest: UOp, machine: Machine) -> bool:
    """Whether the plan for `nest` is one of two products with a softmax between them
    (`choose_attention.py`)."""
    chooser = BlockChooser(nest, machine)
    chooser.arrange_loops()
    return chooser.fuse_attention()


class BlockChooser(AttentionChooser):
    """All steps for a grid of blocks."""

    def __init__(self, nest: UOp, machine: Machine, rank: int = 0) -> None:
        super().__init__(nest, machine, rank)
        self.wide: dict[UOp, int] = {}
        """loops over the items of one load, of the rows of sums, and how many these are"""

    def choose(self) -> None:
        if not needs_order(self.nest):
            super().choose()

    def choose_inside(self) -> None:
        """What the threads of a block do of the kind of kernel that this is."""
        reduces, statistics = self.outer_reduces(), self.statistics()
        contraction = None if statistics else self.main_contraction()
        if statistics:
            if not self.attempt(self.fuse_attention) and not self.online_rows():
                self.share_rows(statistics)
        elif contraction is not None and self.is_thin(contraction):
            self.hold_short_side(contraction)
            self.share_outputs(self.outer_reduces())
        elif contraction is not None and self.outputs_fill(contraction):
            self.tile(contraction)
        elif not reduces:
            self.share_items()
        elif not (len(self.loops_along(reduces)) > 1 and self.row_in_registers(reduces)) and \
                not self.online_rows():
            self.share_outputs(reduces)

    # --- what the nest is made of ---------------------------------------------------------------------------

    def statistics(self) -> list[UOp]:
        """The REDUCEs whose results several items of an output use."""
        return [n for n in self.outer_reduces() if n.ranges < self.outputs]

    def largest_access(self, inside: UOp) -> MemoryAccess | None:
        """The load below `inside` that runs most often."""
        return max(self.loads_of(inside), key=lambda a: iterations(a.ranges), default=None)

    def fastest_first(self, ranges: frozenset[UOp]) -> list[UOp]:
        """Ranges that may run across threads, those along which memory is contiguous first."""
        accesses = self.accesses()
        order = {r: i for s in self.nest.src for i, r in enumerate(s.closed_ranges)}

        def rank(r: UOp) -> tuple[int, int, int]:
            walked = (a for a in accesses if r in a.ranges and _is_next(a, r))
            return -sum(iterations(a.ranges) for a in walked), -order[r], r.identity

        return sorted(filter(is_plain, ranges), key=rank)

    # --- threads --------------------------------------------------------------------------------------------

    def distribute_over_threads(self, ranges: frozenset[UOp], budget: int) -> None:
        """Up to `budget` threads of each output along `ranges`, the fastest first. Outputs may have loops in
        common: threads along these are threads of all of them."""
        before = self.outputs
        for r in self.fastest_first(ranges):
            around = (s.closed_ranges for s in self.nest.src if r in s.closed_ranges)
            taken = max(iterations(n for n in of_kind(loops, RangeKind.LOCAL) if n not in before)
                        for loops in around)
            self.split_off(Local, r, budget // taken)

    def loops_with_threads(self) -> frozenset[UOp]:
        """The loops of outputs that threads share already."""
        return frozenset(r for s in self.nest.src if of_kind(s.closed_ranges, RangeKind.LOCAL)
                         for r in s.closed_ranges)

    def share_out(self) -> None:
        """Every loop that encloses all there is to do for it goes across blocks; only then loops may end at
        numbers that are computed, which those of a grid cannot."""
        while loops := self.block_loops():
            self.take(Global, min(loops))
        if not self.nest.nodes_of(Ops.SCATTER):
            self.tighten()

    def block_loops(self) -> list[int]:
        """The numbers of those."""
        inside = (*self.statistics(), *self.nest.nodes_of(Ops.SCATTER))
        return [r.identity for r in self.outputs if is_plain(r) and all(r in n.ranges for n in inside)]

    def access_width(self, loops: Sequence[UOp]) -> int:
        """Items that one access of a thread moves along these loops of one length, none of which is without
        accesses: several where all of them lie side by side."""
        walks = [(a, r) for r in loops for a in self.accesses(r)]
        if any(not a.is_smooth(r) for a, r in walks):
            return 1
        return gcd(loops[0].extent, min(self.machine.access_lanes(a.node.dtype) for a, _ in walks))

    # --- items ----------------------------------------------------------------------------------------------

    def share_items(self) -> None:
        """A thread for each item, or for four that lie side by side; a square of threads where items are
        written along one loop and read along another one."""
        for number in range(len(self.nest.src)):
            ranges = frozenset(self.nest.src[number].closed_ranges)  # as other outputs have left them
            if all(map(is_plain, ranges)) and ranges.isdisjoint(self.loops_with_threads()):
                for r in self.transposing(self.with_wide_accesses(ranges)):
                    self.split_off(Local, r, self.square_side())
        self.distribute_over_threads(self.outputs - self.loops_with_threads(), self.machine.block_threads)

    def with_wide_accesses(self, ranges: frozenset[UOp]) -> frozenset[UOp]:
        """`ranges` after the contiguous one became vectors, if that serves every access."""
        enough = self.machine.busy_threads * ACCESS_LANES
        self.note("items by vectors", items=iterations(ranges), enough=enough)
        fastest = self.fastest_first(ranges)[:1] if iterations(ranges) >= enough else []
        if not fastest or not self.has_vectors(fastest[0]):
            return ranges
        around = self.split_off(Vector, fastest[0], ACCESS_LANES)
        return ranges.difference(fastest).union([] if around is None else [around])

    def has_vectors(self, r: UOp) -> bool:
        """Whether whole vectors along `r` serve every access."""
        return r.extent % ACCESS_LANES == 0 and lie_side_by_side(self.accesses(r), r)

    def transposing(self, ranges: frozenset[UOp]) -> tuple[UOp, ...]:
        """(the range along which stores are contiguous, another one along which a load is), if these
        differ."""
        stored = next((r for a in self.accesses(op=Ops.STORE) for r in ranges if a.step(r) == 1), None)
        loaded = None if stored is None else self.crossing(stored, ranges)
        return () if stored is None or loaded is None else (stored, loaded)

    # --- reduces --------------------------------------------------------------------------------------------

    def share_outputs(self, reduces: list[UOp]) -> None:
        """A thread for each output, or as many more as keep the device busy: threads that share a row walk it
        side by side; of those that walk columns, some are side by side to read whole sectors. Where they are
        few, each has several loads on their way at once."""
        block = self.machine.block_threads
        outputs = frozenset(filter(is_plain, self.outputs))
        wanted = ceildiv(self.machine.blocks_at_once * block, iterations(outputs))
        lies_in_rows = any(self.row_of(node) is not None for node in reduces)
        if wanted > 1:
            self.join_loops(reduces, min(wanted, block))
        walked = [(a, r) for node in self.outer_reduces() if (r := self.shared_range(node)) is not None
                  and (a := self.largest_access(node)) is not None]
        longest = max((r.extent for _, r in walked), default=1)
        itemsize = min((a.itemsize for a, _ in walked), default=1)
        least, most = (self.machine.warp_threads, block) if lies_in_rows else \
            (1, block * itemsize // SECTOR_BYTES)
        group = max(1, min(max(least, power_of_two(wanted)), most, power_of_two(longest)))
        self.note("threads of a sum", length=longest, busy_with=wanted, at_most=most, taken=group)
        self.distribute_over_threads(outputs, block // group)
        first = fresh_identity(self.nest)
        self.group_reduces(group)
        if wanted > 1:
            rounds = max(ROW_ROUNDS, TILE_ITEMS // max(self.wide.values(), default=1))
            for r in all_ranges(self.nest):
                if r.identity >= first and is_plain(r):
                    self.split_off(Unroll, r, min(rounds, power_of_two(r.extent)))
        for lanes, width in self.wide.items():
            self.take(Vector, lanes, width)

    def row_of(self, node: UOp) -> UOp | None:
        """The innermost loop of a REDUCE, if something that it reads lies in rows along it."""
        loops = [r for r in node.closed_ranges if is_plain(r)]
        return loops[-1] if loops and any(a.step(loops[-1]) == 1 for a in self.loads_of(node)) else None

    def join_loops(self, nodes: list[UOp], threads: int) -> None:
        """All loops of each of these REDUCEs as one, for so many threads to share, whatever its parts are in
        memory, but for the items of wide loads along rows."""
        for last, node in {node.closed_ranges[-1]: node for node in nodes}.items():
            if not is_plain(last):
                continue
            loop, width = last, 1
            if self.row_of(node) is last:  # enough loads have to be left for all threads
                length = iterations(node.closed_ranges)
                width = min(self.access_width([last]), power_of_two(max(1, length // threads)))
            if width > 1:
                lanes, outer = self.split(Split, last, width)
                self.wide[lanes], loop = width, lanes if outer is None else outer
            while (around := loop_around(self.nest, loop)) is not None and is_plain(around):
                if loop in self.wide:
                    loop = around
                else:
                    loop, = self.new_ranges(Merge, around, loop)

    def shared_range(self, node: UOp) -> UOp | None:
        """The range of a REDUCE that threads share: long, and contiguous where one is."""
        access = self.largest_access(node)
        plain = [r for r in node.closed_ranges
                 if is_plain(r) and r.extent >= self.machine.warp_threads and r not in self.wide]
        return max(plain, key=lambda r: (access is not None and access.step(r) == 1, r.extent), default=None)

    def group_reduces(self, group: int, inside: frozenset[UOp] = frozenset()) -> None:
        """`group` threads for every REDUCE directly inside the outputs' loops that is long enough; not for
        those that change with loops `inside` a row, which threads share already."""
        while True:
            found = (r for n in self.outer_reduces()
                     if n.ranges.isdisjoint(inside) and (r := self.shared_range(n)) is not None)
            r = next(found, None)
            threads = 1 if r is None else min(group, power_of_two(r.extent))
            if r is None or threads < 2:
                return
            self.take(Local, r, threads, self.exchanging_lanes())

    # --- segment sums ---------------------------------------------------------------------------------------

    def sum_in_memory(self) -> bool:
        """A tile of outputs in each thread's own memory, and one pass over everything that may be in one of
        them (`scatter_add.py`), if there are outputs enough for tiles. Neighbouring threads are at the same
        item of the pass. Of several such sums the one with the most segments: a thread keeps a few of its
        outputs, whatever the dense reduction costs. In no lanes, which threads are."""
        found = max(segment_sums(self.nest), key=lambda b: b.loop.extent, default=None)
        if found is None:
            return False
        tile = min(MOST_OWN, power_of_two(found.loop.extent),
                   power_of_two(max(1, iterations(self.outputs) // self.machine.busy_threads)))
        if tile < LEAST_OWN:
            return False
        has_inner = bool(found.inner(self.nest))
        loop, _ = self.tiled(found.loop, tile)
        if has_inner:
            self.move_inside(loop)
        self.take(Scatter, loop, 1)
        self.distribute_over_threads(self.outputs - {loop}, self.machine.block_threads)
        return True

    # --- rows -----------------------------------------------------------------------------------------------

    def share_rows(self, statistics: list[UOp]) -> None:
        """A block for each row, or for several short ones; a thread where rows are shorter than a warp."""
        if self.row_in_registers(statistics):
            return
        block = self.machine.block_threads
        rows = self.outputs.intersection(*(n.ranges for n in statistics))
        inner = self.outputs.difference(*(n.ranges for n in statistics))
        shared = [r for n in statistics if (r := self.shared_range(n)) is not None]
        longest = max((r.extent for r in (*shared, *filter(is_plain, inner))), default=1)
        if longest < self.machine.warp_threads:
            self.distribute_over_threads(rows, block)
            return
        group = min(block, power_of_two(longest))
        self.distribute_over_threads(rows, block // group)
        outer = frozenset[UOp]().union(*(n.ranges for n in self.statistics()))
        self.group_reduces(group, inner)
        outputs = self.outputs
        inside = (n.ranges - outputs for n in self.nest.toposort() if not n.ranges.isdisjoint(inner))
        if not any(of_kind(ranges, RangeKind.LOCAL) for ranges in inside):
            self.distribute_over_threads(outputs - outer,
                                         group)  # else sums inside rows have the threads already

    def online_rows(self) -> bool:
        """Rows that are too long for registers by tiles that are not, for their largest items and the sums
        weighted by these, if the nest has such and reduces nothing else."""
        found = online_softmax_of(self.nest)
        if found is None or found.loop.extent <= self.machine.register_row or not self.accesses(found.loop):
            return False
        rows = found.largest.ranges
        if set(self.reduces) != found.reduces or any(n.ranges != rows for n in found.reduces):
            return False
        threads, width = self.machine.block_threads, self.access_width([found.loop])
        item, = of_kind(self.new_ranges(OnlineSoftmax, found.loop, threads * TILE_ITEMS), RangeKind.UNROLL)
        self.take(Row, (item,), threads, width, self.exchanging_lanes())
        self.distribute_over_threads(self.outputs - rows, threads)
        return True

    def row_in_registers(self, statistics: list[UOp]) -> bool:
        """The row in registers of a block, if its loops are of one length, nothing else runs in them, and the
        registers suffice."""
        loops = self.loops_along(statistics)
        accesses = [a for r in loops for a in self.accesses(r)]
        if not accesses:
            return False
        items, width = loops[0].extent, self.access_width(loops)
        values = len({a.node.memory for a in accesses if a.node.op is Ops.LOAD})
        threads = self.row_threads(items // width, self.machine.row_items // (width * max(1, values)))
        self.note("a row in registers", items=items, at_once=width, values=values, threads=threads)
        if threads < 2:
            return False
        try:
            self.take(Row, loops, threads, width, self.exchanging_lanes())
        except ValueError:  # other loops are inside
            return False
        self.distribute_over_threads(statistics[0].ranges, self.machine.block_threads // threads)
        return True

    def row_threads(self, accesses: int, most_rounds: int) -> int:
        """Threads for a row of so many accesses: a part of a warp for a short one, else enough for a few
        rounds each; 0 where `most_rounds` of all there are do not suffice."""
        rounds = max(1, min(ROW_ROUNDS, most_rounds))
        threads = max(min(self.machine.warp_threads, power_of_two(accesses)),
                      1 << (ceildiv(accesses, rounds) - 1).bit_length())
        threads = min(threads, self.machine.block_threads)
        return threads if ceildiv(accesses, threads) <= most_rounds else 0

    def loops_along(self, statistics: list[UOp]) -> list[UOp]:
        """The loops along the row that all statistics are of, if these and the outputs have such of one
        length; else none."""
        outer = statistics[0].ranges
        if self.outer_reduces() != statistics or any(n.ranges != outer for n in statistics):
            return []
        loops = dict.fromkeys(r for n in (*statistics, *self.nest.src) for r in n.closed_ranges
                              if r not in outer)
        same = len({r.extent for r in loops}) == 1 and all(map(is_plain, loops))
        return list(loops) if same else []

    def square_side(self) -> int:
        """Threads along each side of the largest square that a block has."""
        return 1 << ((self.machine.block_threads.bit_length() - 1) // 2)

    def exchanging_lanes(self) -> int:
        """Threads side by side that combine values without memory."""
        return self.machine.warp_threads if self.machine.has_exchange else 1

    # --- contractions ---------------------------------------------------------------------------------------

    def is_thin(self, contraction: Contraction) -> bool:
        """True for so few rows, or columns, that a thread has them all, and a sum that threads share."""
        return self.shared_range(contraction.reduce) is not None and \
            min(map(iterations, contraction.sides)) < LEAST_SIDE

    def hold_short_side(self, contraction: Contraction) -> None:
        """The few rows in registers of each thread: what they are multiplied with is loaded once for all."""
        short = min(contraction.sides, key=iterations)
        for r in sorted(filter(is_plain, short), key=lambda r: r.identity):
            self.split_off(Upcast, r)

    def outputs_fill(self, contraction: Contraction) -> bool:
        """True if there are outputs enough for a thread each, or its sum is too short to share."""
        enough, outputs = self.machine.busy_blocks * self.machine.warp_threads, iterations(self.outputs)
        self.note("outputs of a contraction", are=outputs, busy_with=enough)
        return outputs >= enough or self.shared_range(contraction.reduce) is None

    def tile(self, contraction: Contraction) -> None:
        """A tile that the threads of a block share, or else a tile of accumulators of each thread, along the
        longest range of each operand: 16 of them and 8 operands stay in registers."""
        if self.tile_of_blocks(contraction):
            return
        sides, threads = [self.fastest_first(s) for s in contraction.sides], self.machine.block_threads
        if not all(sides):
            self.distribute_over_threads(self.outputs, threads)
            return
        column, row = sorted((max(s, key=lambda r: (r.extent >= ACCESS_LANES, -s.index(r))) for s in sides),
                             key=self.fastest_first(self.outputs).index)
        outputs, enough = iterations(self.outputs), self.machine.busy_blocks * self.machine.warp_threads
        size = next((t for t in (ACCESS_LANES, ACCESS_LANES // 2)
                     if outputs >= t * t * enough and min(column.extent, row.extent) >= t), 1)
        side = self.square_side()
        self.note("a tile of a thread", side=size, outputs=outputs, busy_with=size * size * enough)
        tiles = [(self.register_tile(column, size), side), (self.register_tile(row, size), threads // side)]
        for r, most in tiles:
            self.split_off(Local, r, most)

    def register_tile(self, r: UOp, size: int) -> UOp | None:
        """`r` with its innermost iterations in registers, as vectors where memory is contiguous along it.
        Returns what is left of it."""
        if size < 2:
            return r
        wide = size == ACCESS_LANES and self.has_vectors(r)
        return self.split_off(Vector if wide else Upcast, r, size)


def _is_next(access: MemoryAccess, r: UOp) -> bool:
    """Whether neighbouring iterations of `r` access neighbouring items, or vectors of them."""
    return access.step(r) == iterations(x for x in of_kind(access.ranges, RangeKind.VECTOR)
                                        if access.step(x) == 1)
