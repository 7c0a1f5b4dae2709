"""Memory asked for ahead of its loads, where the processor does not do it by itself.

Processors notice that lines are read in order and fetch the next ones, but not beyond the page of memory that
they read from. So four kinds of loops wait for memory that a hint would have brought:
- a loop that goes down columns, a short run of each row at a time: it asks for rows further down;
- one that fills a panel so, for a product of few rows;
- the products of a tile, whose single items come from many places: they ask for those of the next tile;
- the passes over a row: the first fetches it, the others find it in the cache, and memory rests while they
  compute. The pass that computes most asks for the next row.
(On two cores a row times a 4096 x 4096 matrix took 2.6 ms, and 1.0 with this; 49 rows times one of 4608 x 512
that no cache held 3.4, and 2.8, 9 rows times 1536 x 384 0.35, and 0.28; the products of a convolution
with stride 2 took 11.3, and 8.9; a softmax of 4096 x 4096 took 4.1, and 2.5; a layer norm of 4096 x 4096 took
2.2, and 1.9, one of 8192 x 1024 took 0.71, and 0.64.)

And few tiles that read the panels of a matrix wait for memory as if nobody had asked, in order or not. So
does a row that is multiplied by one, though it would fit into the caches: it is a layer's weights, and others
were there since (576 x 1536 weights of 4 bits, 0.57 MB, of a model of 98: 28 us, and 20 so; where they are
still in L2, 9.9 us, and 10.3).
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tinygrad.codegen.contraction import contraction_of
from tinygrad.codegen.opt.access import MemoryAccess, accesses_of, memory_bytes, steps_of
from tinygrad.codegen.opt.loops import writes_what_it_reads
from tinygrad.codegen.ranges import closed_within, iterations, of_kind
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import Machine

LOOPS = (RangeKind.LOOP, RangeKind.IN_ORDER)
"""Kinds of ranges whose iterations run one after another."""
NEAR_SHARE = 1 / 16
"""Of the largest memory that a hint is for: what is no larger stays in a nearer cache, and is not asked for
(15 rows through 4096 x 4096 weights that lie along the sum took 4.75 ms with hints for the rows too, and
4.33)."""
NEW_SHARE = 0.3
"""Of what a tile reads, how much must be new to it for a hint."""
ITEMS_IN_ORDER = 256
"""Of 4 bytes, beyond which a hint for each costs more than it saves (2 to 3% of a product of 1024 x 1024)."""
JUMPS_AHEAD, FILL_AHEAD, STREAM_AHEAD = 32 << 10, 4 << 10, 2 << 10
"""Bytes that a loop reads between a hint and its load, where it jumps, where it does so to fill a panel (1 to
16 KB take the same), and where it goes on in order."""
WEIGHTS_AHEAD = 8 << 10
"""The same of weights that are read once, in order (a row times 28 MB of int8 on two cores of Zen 4, by one
and by two threads: 2.38 and 1.31 ms without hints, 1.85 and 1.11 with 2 KB, 1.45 and 1.03 with 4, 1.37 and
0.95 with 8, no less with 16), by one row or a few (4 rows through 4096 x 4096 weights along the sum: 2.25 ms
with 2 KB, 2.03 with 8)."""
LAST_CACHE_SHARE = 2 / 3
"""Of the last cache: what a kernel reads of memory that is no larger is taken to be there, written by the
kernel before, unless it is a product, which reads weights, or writes what it reads, as optimizers do. A core
reads it in order as fast as it can by itself, and hints are work (on two cores of Zen 4 with 32 MB sums of
2203 rows of 2023 take 111 us, and 133 with hints; 1 M items and as many, 72 and 79. Where memory has them the
first take 330 us, and 297 with hints, the others 322 and 293)."""
WEIGHTS_SHARE = 4
"""Of a core's L2, beyond which what a product reads once is taken for weights that are not there."""
MOST_FILLED_FOR = 256
"""Tiles that read a panel, beyond which filling it is a hundredth of the time: hints are of no use, and they
made two threads that go over the same rows lose step (4096 x 4096 x 64 took 1.2 times as long)."""


FEW_TILES = 8
"""Tiles that read a panel of a large matrix, up to which it pays to ask for it in all of them (two cores of
an Intel server, 16 pixels times 4608 x 512 weights in tiles of 4 by 64: 820 us, 670 so; 49 pixels times 2304
x 256 in tiles of 7 by 32: 340, and 305)."""


class PrefetchHint(NamedTuple):
    """In `loop`, each load also asks for what it will read `iterations` of `along` later. Where it looks
    ahead along itself, loads in loops inside it do not: these read on in order; nor do others than those with
    lanes side by side, where there are such."""

    loop: UOp
    along: UOp
    iterations: int = 1


def prefetch(nest: UOp, loop: UOp, along: UOp, ahead: int) -> UOp:
    """The nest with this hint (`PrefetchHint`). Raises ValueError where no load would follow it."""
    inside = _loops_inside(nest, loop) if along is loop else set()
    walks = [a for a in _walks(_reads(nest), along) if loop in a.ranges and inside.isdisjoint(a.ranges)]
    if along is loop:
        walks = list(filter(_is_vector, walks)) or walks
    if not walks:
        raise ValueError(f"nothing that r{loop.identity} loads goes on by a fixed step with "
                         f"r{along.identity}")
    walks = _larger(walks, NEAR_SHARE * max(a.node.memory.arg[1] * a.itemsize for a in walks))
    return nest.substitute({a.node: a.node.replace(arg=ahead * a.steps[along]) for a in walks})


def prefetches(nest: UOp, machine: Machine) -> list[PrefetchHint]:
    """The hints that pay."""
    reads = _reads(nest)
    if not reads:
        return []
    large = _larger(reads, machine.l2_bytes)
    expensive = nest.nodes_of(*Family.ELEMENTARY)
    rows = _rows_read_again(nest, reads, machine.l2_bytes // 8)
    found = _for_next_tile(nest, large, machine.line_bytes) or \
        _for_next_row(nest, rows, expensive, machine.page_bytes)
    others = [a for a in reads if a not in rows]
    hints = [found] if found is not None else _along_loops(nest, others, machine, expensive)
    return [*hints, *_while_filling(nest, large)]


def _loops_inside(nest: UOp, loop: UOp) -> set[UOp]:
    """The loops that run anew in each iteration of `loop`."""
    return set(_serial(closed_within(nest, loop)))


def _serial(ranges: Iterable[UOp]) -> list[UOp]:
    """Those of the ranges whose iterations run one after another."""
    return of_kind(ranges, *LOOPS)


def _walks(reads: list[MemoryAccess], along: UOp) -> list[MemoryAccess]:
    """Those that go on by a fixed step with `along`."""
    return [a for a in reads if (a.step(along) or 0) > 0]


def _reads(nest: UOp) -> list[MemoryAccess]:
    """The loads from buffers, with the steps that they would have if no last tile overlapped the one before:
    a hint may ask for any place."""
    loads = (a for a in accesses_of(nest) if a.node.op is Ops.LOAD and a.node.memory.op is Ops.PARAM)
    return [_without_overlap(a) if a.irregular else a for a in loads]


def _without_overlap(access: MemoryAccess) -> MemoryAccess:
    """The access with tiles that begin at multiples of their size, the last one too."""
    offset = access.node.offset
    clipped = (n for n in offset.nodes_of(Ops.WHERE) if n.src[0].op is Ops.CMPLT
               and n.src[0].src[0].op is Ops.RANGE and n.src[2].op is Ops.CONST)
    steps, irregular = steps_of(offset.substitute({n: n.src[1] for n in clipped}))
    return replace(access, steps=steps, irregular=irregular)


# --- the next tile ------------------------------------------------------------------------------------------


def _for_next_tile(nest: UOp, reads: list[MemoryAccess], line_bytes: int) -> PrefetchHint | None:
    """For the innermost loop of a contraction, which reads items one by one: the innermost loop around the
    tile that goes on to other lines, if it does so by fixed steps. (The next product of a batch is far ahead:
    16 products of 256 x 64 x 256 that asked for it took 560 us, and 430.)"""
    for node in nest.toposort():
        loops, contraction = _serial(node.closed_ranges), contraction_of(node)
        if not loops or contraction is None:
            continue
        sides = contraction.left | contraction.right
        outer = _serial(r for r in reversed(nest.src[0].closed_ranges) if r in sides)
        for access in reads:
            if loops[-1] in access.ranges and not _has_lanes(access) and \
                    not _is_in_order(access, loops[-1], line_bytes):
                along = next((r for r in outer if not _stays_in_line(access, r, line_bytes)), None)
                if along is not None and _share_of_new_lines(access, along, loops) >= NEW_SHARE:
                    return PrefetchHint(loops[-1], along)
    return None


def _share_of_new_lines(access: MemoryAccess, along: UOp, loops: list[UOp]) -> float:
    """How much of what the loops read in the next iteration of `along` they do not read in this one, where
    windows overlap; 0 where it does not go on by a fixed step."""
    step, share = access.step(along) or 0, 1.0
    for r in loops:
        own = access.step(r) or 0
        if own > 0 and step % own == 0:
            share = min(share, step / (own * r.extent))
    return share if step > 0 else 0.0


def _is_in_order(access: MemoryAccess, loop: UOp, line_bytes: int) -> bool:
    """True if the loop reads many lines in order, which the processor fetches by itself: of one row, or of
    rows of its tile that lie one behind the other."""
    run = (access.step(loop) or 0) * loop.extent
    rows = [r for r in access.ranges if r.kind not in LOOPS]
    run *= iterations(r for r in rows if access.step(r) == run)
    return _stays_in_line(access, loop, line_bytes) and run >= ITEMS_IN_ORDER


def _stays_in_line(access: MemoryAccess, r: UOp, line_bytes: int) -> bool:
    """True if neighbouring iterations of `r` read the same cache line, or next to it."""
    step = access.step(r)
    return step is not None and abs(step) * access.itemsize < line_bytes


# --- the next row -------------------------------------------------------------------------------------------


def _rows_read_again(nest: UOp, reads: list[MemoryAccess], most_bytes: int) -> list[MemoryAccess]:
    """The loads along rows, one for each iteration of the outermost loop, of up to `most_bytes`, which
    another loop inside it reads too."""
    outermost = {s.closed_ranges[:1] for s in nest.src}
    if len(outermost) > 1 or outermost == {()}:
        return []
    (row,), = outermost
    walks = [a for a in _walks(reads, row) if a.steps[row] * a.itemsize <= most_bytes
             and _inner_loops(a, row)]  # what a loop of whole vectors leaves over is no loop
    return [a for a in walks if any(_is_read_again(a, r, walks) for r in _inner_loops(a, row))]


def _for_next_row(nest: UOp, rows: list[MemoryAccess], expensive: list[UOp], page_bytes: int
                  ) -> PrefetchHint | None:
    """For the loop that has most of the elementary functions, `expensive` ones, or else the last that sums
    up, over rows of a page or more. (The processor itself goes on from a shorter row to the next.)"""
    if not rows:
        return None
    row = nest.src[0].closed_ranges[0]
    long = [a for a in rows if a.steps[row] * a.itemsize >= page_bytes]
    loops = {r: sum(r in n.ranges for n in expensive) for a in long for r in _inner_loops(a, row)
             if _is_read_again(a, r, rows)}
    best = max(loops, key=lambda r: (loops[r], r.identity), default=None)
    return PrefetchHint(best, row) if best is not None else None


def _inner_loops(access: MemoryAccess, row: UOp) -> list[UOp]:
    return _serial(access.ranges - {row})


def _is_read_again(access: MemoryAccess, loop: UOp, walks: list[MemoryAccess]) -> bool:
    """True if another loop reads the memory that `access` reads in `loop`."""
    return any(a.node.memory is access.node.memory and loop not in a.ranges for a in walks)


# --- further along a loop -----------------------------------------------------------------------------------


def _along_loops(nest: UOp, reads: list[MemoryAccess], machine: Machine, expensive: list[UOp]
                 ) -> list[PrefetchHint]:
    """For each innermost loop that does not sum up for longer than memory takes: far ahead where its
    iterations read a short run each of large memory, far from the last; less where they go on in order."""
    found = []
    large, in_part = _larger(reads, machine.l2_bytes), _larger(reads, machine.l2_bytes // WEIGHTS_SHARE)
    is_near = memory_bytes(nest.nodes_of(Ops.PARAM)) <= LAST_CACHE_SHARE * machine.l3_bytes \
        and not writes_what_it_reads(nest)
    for node in nest.nodes_of(Ops.REDUCE, Ops.STORE):
        loops = _serial(node.closed_ranges)
        if not loops:
            continue
        if node.op is Ops.REDUCE and any(loops[-1] in n.ranges for n in expensive):
            continue  # it computes for longer than memory takes
        loop, around = loops[-1], node.ranges | frozenset(loops)
        inside = _loops_inside(nest, loop)
        in_loops_inside = {a.node.memory for a in in_part if not inside.isdisjoint(a.ranges)}
        walks = [a for a in _walks(in_part, loop) if _is_vector(a) and a.node.memory not in in_loops_inside
                 and around.issuperset(_serial(a.ranges))]
        read_once = [a for a in walks if iterations(_serial(node.ranges - a.ranges)) <= FEW_TILES]
        weights = [a for a in read_once if node.op is Ops.REDUCE and _meets_one_item(a, loop, reads)]
        others = walks if contraction_of(node) is None else read_once  # else the caches have it after a tile
        walks = [a for a in walks if a in weights or (a in large and a in others)]
        if not walks:
            continue
        jumps = [a for a in walks if a in large
                 and a.steps[loop] * a.itemsize >= 2 * _read_at_once(a)]
        is_product = bool(weights) or contraction_of(node) is not None
        if is_near and not jumps and not is_product and all(node.ranges <= a.ranges for a in walks):
            continue  # what is read once, in order
        in_order = WEIGHTS_AHEAD if is_product else STREAM_AHEAD
        bytes_ahead, read = (JUMPS_AHEAD, jumps) if jumps else (in_order, walks[:1])
        ahead = min(bytes_ahead // sum(map(_read_at_once, read)), loop.extent // 2)
        if ahead > 0:
            found.append(PrefetchHint(loop, loop, ahead))
    return found


def _meets_one_item(access: MemoryAccess, loop: UOp, reads: list[MemoryAccess]) -> bool:
    """True if all lanes of a load meet the same item of another load in a loop: a row of a matrix and a
    number of a vector."""
    lanes = of_kind(access.ranges, RangeKind.VECTOR)
    return any(loop in a.ranges and a.ranges.isdisjoint(lanes) for a in reads)


def _while_filling(nest: UOp, reads: list[MemoryAccess]) -> list[PrefetchHint]:
    """For the innermost loop that fills staged memory where that goes down columns: along the loop around a
    run of a row, or along itself; of too few rows to look ahead, along the loop that goes on to the next."""
    found = []
    for node in nest.nodes_of(Ops.STAGE):
        loops = _serial(node.closed_ranges)
        if not loops or _tiles_that_read(nest, node) > MOST_FILLED_FOR:
            continue
        inside = _loops_inside(nest, loops[-1])  # of sums, which do not fill by copying
        walks = [a for a in reads if loops[-1] in a.ranges and inside.isdisjoint(a.ranges) and _has_lanes(a)]
        run, jumps = sum(map(_read_at_once, walks)), False
        for along in reversed(loops):
            step = min([(a.step(along) or 0) * a.itemsize for a in walks], default=0)
            ahead = 0
            if step >= 2 * run > 0:
                ahead, jumps = FILL_AHEAD // run, True
            elif jumps and step >= run:
                ahead = max(STREAM_AHEAD // run, 1)
            if 0 < ahead <= along.extent // 2:
                found.append(PrefetchHint(loops[-1], along, ahead))
                break
            run *= along.extent
    return found


def _tiles_that_read(nest: UOp, stage: UOp) -> int:
    """How often all that a stage fills is read: the iterations of loops around that, and not around it."""
    along = stage.ranges.union(*(n.ranges for n in nest.toposort() if stage in n.src))
    return max(iterations(r for r in _serial(store.closed_ranges) if r not in along)
               for store in nest.src if stage in store.toposort())


def _larger(reads: list[MemoryAccess], nbytes: float) -> list[MemoryAccess]:
    """Those from memory of more bytes."""
    return [a for a in reads if a.node.memory.arg[1] * a.itemsize > nbytes]


def _has_lanes(access: MemoryAccess) -> bool:
    return bool(of_kind(access.ranges, RangeKind.VECTOR))


def _is_vector(access: MemoryAccess) -> bool:
    """True if the items of its lanes lie side by side."""
    return [access.step(r) for r in of_kind(access.ranges, RangeKind.VECTOR)] == [1]


def _read_at_once(access: MemoryAccess) -> int:
    """Bytes that one iteration of all loops reads through a load, its lanes and what is written out."""
    written_out = (r for r in access.ranges if r.kind not in LOOPS and access.step(r))
    return iterations(written_out) * access.itemsize
