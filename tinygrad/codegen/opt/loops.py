"""Loop transformations: ranges of a nest merged, split, moved outwards, rounded up.

In: a nest and ranges of it. Out: a nest that computes the same. Where a factor does not divide an extent, a
loop over outputs lets its last tile overlap the one before: the same values are stored twice or, in a nest
that writes what it reads, once, by the first of the two. Across threads of a block, or if there is only one
tile, it masks what lies outside. A reduce adds a masked tail of its own, so the main loop carries no mask.
`opts.py` names these changes, and those of the modules beside.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tinygrad.codegen.collapse import simplified
from tinygrad.codegen.contraction import factors_of
from tinygrad.codegen.opt.access import index_uses, steps_of
from tinygrad.codegen.opt.blocks import reduce_in_block
from tinygrad.codegen.predicate import (
    identity_unless,
    mask_loads_along,
    mask_store,
    masked_term,
    store_where,
)
from tinygrad.codegen.ranges import (
    ACCUMULATING,
    ZERO,
    NewRanges,
    change_closers,
    closed_within,
    closers,
    closing,
    values_of,
)
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, round_up

# --- finding ranges -----------------------------------------------------------------------------------------


def with_kind(r: UOp, kind: RangeKind) -> UOp:
    return r.replace(arg=(r.identity, kind))


def is_reduce_range(nest: UOp, r: UOp) -> bool:
    """True if a REDUCE closes `r`, False if a STORE or STAGE does."""
    return any(n.op is Ops.REDUCE for n in closers(nest, r))


def is_stage_range(nest: UOp, r: UOp) -> bool:
    """True if a STAGE closes `r`."""
    return any(n.op is Ops.STAGE for n in closers(nest, r))


def is_shared(nest: UOp, r: UOp) -> bool:
    """True if every STORE closes `r` and nothing inside does: its iterations have outputs of their
    own."""
    return set(closers(nest, r)) == set(nest.src)


def are_shared(nest: UOp, loops: Sequence[UOp]) -> bool:
    """True if every STORE closes one of the `loops`, nothing else does, and everything else is inside one."""
    return all(len(set(loops).intersection(store.closed_ranges)) == 1 for store in nest.src) and \
        not any(n.ranges.isdisjoint(loops) or set(loops).intersection(n.closed_ranges)
                for n in nest.nodes_of(*ACCUMULATING))


def writes_what_it_reads(nest: UOp) -> bool:
    """True if a buffer is both loaded and stored: then nothing may be computed twice."""
    stored = {store.memory for store in nest.src}
    return any(load.memory in stored for load in nest.nodes_of(Ops.LOAD))


def loop_around(nest: UOp, r: UOp) -> UOp | None:
    """The range that `r` runs directly in, wherever either of them runs; None where there is none."""
    ends = closing(nest)
    pairs = (pair for n in ends for pair in pairwise(n.closed_ranges))
    return next((outer for outer, inner in pairs if inner is r and outer.kind is r.kind
                 and _runs_directly_in(ends, outer, r)), None)


def mergeable_pair(nest: UOp, stage: UOp | None = None) -> tuple[UOp, UOp] | None:
    """Two ranges, the outer one first, that are contiguous in every access and can run as one; None if there
    are none. Of a stage, the ranges that fill it but the last, as its value uses them."""
    uses = [steps_of(u) for u in index_uses(nest if stage is None else stage)]
    ends = closing(nest)
    loops = [n.closed_ranges for n in ends] if stage is None else [stage.closed_ranges[:-1]]
    pairs = dict.fromkeys(pair for closed in loops for pair in pairwise(closed))
    return next(((outer, inner) for outer, inner in pairs if _runs_directly_in(ends, outer, inner) and all(
        {outer, inner}.isdisjoint(irregular) and steps.get(outer, 0) == steps.get(inner, 0) * inner.extent
        for steps, irregular in uses)), None)


def _runs_directly_in(closing: list[UOp], outer: UOp, inner: UOp) -> bool:
    return all((outer in n.ranges) == (inner in n.ranges)
               and ({outer, inner}.isdisjoint(n.closed_ranges) or (outer, inner) in pairwise(n.closed_ranges))
               for n in closing)


def thread_extent(program: list[UOp]) -> int:
    """Iterations of a program's THREAD range, 1 if it has none."""
    return next((n.extent for n in program if n.op is Ops.RANGE and n.kind is RangeKind.THREAD), 1)


# --- changing ranges ----------------------------------------------------------------------------------------


def replace_range(nest: UOp, old: UOp, closing: Sequence[UOp], value: UOp) -> UOp:
    """The nest with `value` in place of the counter `old`; nodes that close `old` close the ranges `closing`
    instead. Raises ValueError where `old` must run as it is."""
    if old.kind is RangeKind.IN_ORDER:
        raise ValueError(f"r{old.identity} runs in order, each iteration from what the one before left")

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        at = node.src.index(old, len(values_of(node)))
        return node.replace(src=(*src[:at], *closing, *src[at + 1:]))

    return change_closers(nest, old, over, value)


def run_as(nest: UOp, r: UOp, kind: RangeKind) -> UOp:
    """The nest with a range of another kind in the place of `r`."""
    new = with_kind(r, kind)
    return replace_range(nest, r, [new], new)


def across_threads(nest: UOp, loop: UOp, others: Sequence[UOp], shares: int) -> UOp:
    """The nest with `loop` across threads or, with `others`, in so many shares, each of them a part of every
    one of these loops. Raises ValueError where threads cannot share them."""
    if not others:
        if not is_shared(nest, loop):
            raise ValueError(f"threads cannot share r{loop.identity}: it is no loop of every STORE alone")
        return run_as(nest, loop, RangeKind.THREAD)
    loops = [loop, *others]
    if not are_shared(nest, loops):
        names = ", ".join(f"r{r.identity}" for r in loops)
        raise ValueError(f"threads cannot share {names}: each STORE, and all that it needs, has to be in one "
                         "of them")
    new = NewRanges(nest)
    share = new.range(shares, RangeKind.THREAD)
    for r in loops:
        part = new.copy(r, r.src[0], *(b * r.extent // shares for b in (share, share + 1)))
        nest = replace_range(nest, r, [share, part], part)
    return nest


def across_block(nest: UOp, r: UOp, threads: int, lanes: int) -> UOp:
    """The nest with the innermost iterations of `r` across so many threads of a block, which combine what
    they reduce, so many `lanes` side by side by exchanging values."""
    if all(n.op is Ops.REDUCE for n in closers(nest, r)):
        return reduce_in_block(nest, r, threads, lanes)
    return split(nest, r, threads, RangeKind.LOCAL)


def with_streaming_stores(nest: UOp) -> UOp:
    """The nest with its results past the caches, straight to memory (non-temporal stores)."""
    return UOp.sink(s.replace(arg=Memory.GLOBAL) for s in nest.src)


def merge(nest: UOp, outer: UOp, inner: UOp) -> UOp:
    """`outer` and `inner`, which run one directly in the other, as one range."""
    both = NewRanges(nest).range(outer.src[0] * inner.extent)
    nest = replace_range(nest, outer, [both], both // inner.extent)
    return replace_range(nest, inner, [], both % inner.extent)


def outermost(nest: UOp, r: UOp) -> UOp:
    """`r` as the outermost of the loops that any node closes together with it. Raises ValueError where one of
    these does not close with it everywhere: what else runs in that would have to run inside `r` then."""
    if not _leads_stages(nest, r):
        raise ValueError(f"r{r.identity} is not the first of the loops in whose order staged memory lies")
    if r.kind is RangeKind.IN_ORDER:
        raise ValueError(f"r{r.identity} runs in order, inside the loops of its outputs")
    closed = [n.closed_ranges for n in closing(nest)]
    around = {c for loops in closed if r in loops for c in loops[:loops.index(r)]}
    if any(r not in loops and not around.isdisjoint(loops) for loops in closed):
        raise ValueError(f"r{r.identity} is inside a loop in which something else runs too")

    def first(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        return new.replace(src=(*values_of(new), r, *(c for c in new.closed_ranges if c is not r)))

    return change_closers(nest, r, first)


def split(nest: UOp, r: UOp, amount: int, kind: RangeKind, own_accumulators: bool = False,
          subtotals: bool = False) -> UOp:
    """`r` as an outer loop over an inner one of `amount` iterations that runs as `kind`.

    `own_accumulators` gives the inner iterations of a reduce accumulators of their own; with `subtotals` each
    outer one adds up what is inside it before that is added to the total.
    """
    if amount < 2 and not subtotals:
        raise ValueError(f"a split needs at least 2 inner iterations, got {amount}")
    ops = {n.op for n in closers(nest, r)}
    if Ops.SCATTER in ops:
        raise ValueError(f"each iteration of r{r.identity} adds to memory once: it must stay whole")
    if Ops.REDUCE not in ops:
        return _split_outputs(nest, r, amount, kind)
    if len(ops) > 1:
        raise ValueError(f"r{r.identity} is a loop of a REDUCE and of what it fills: it must stay whole")
    return _split_reduce(nest, r, amount, kind, own_accumulators, subtotals)


def _split_outputs(nest: UOp, r: UOp, amount: int, kind: RangeKind) -> UOp:
    extent = r.extent
    tiles = ceildiv(extent, amount)
    new = NewRanges(nest)
    inner, outer = new.range(amount, kind), new.counter(tiles, r.kind)
    loops = [outer, inner] if tiles > 1 else [inner]
    start = outer * amount
    place = start + inner
    is_stage = is_stage_range(nest, r)
    overlaps = bool(extent % amount) and tiles > 1 and kind is not RangeKind.LOCAL and not is_stage
    if overlaps:
        place = start.minimum(extent - amount) + inner
    whole = replace_range(nest, r, loops, place)
    if extent % amount == 0 or (overlaps and not writes_what_it_reads(nest)):
        return whole
    if is_stage:
        if not _leads_stages(nest, r):
            raise ValueError(f"tiles of {amount} do not divide the {extent} iterations of r{r.identity}, and "
                             "other loops around it fill the same memory")
        # The memory is rounded up to whole tiles; nothing reads what lies beyond.
        return change_closers(whole, inner, lambda stage, src: stage.replace(
            src=(mask_loads_along(src[0], place < extent), *src[1:])))
    if not overlaps and any(load.memory.op is Ops.SCATTER and r in load.offset.ranges
                            for load in nest.nodes_of(Ops.LOAD)):
        raise ValueError(f"sums by place are added up for the {extent} iterations of r{r.identity} alone")

    def masked(store: UOp, _: tuple[UOp, ...]) -> UOp:
        return store_where(place >= start, store) if overlaps else mask_store(store, place < extent)

    return change_closers(whole, inner, masked)


def _leads_stages(nest: UOp, r: UOp) -> bool:
    """True if `r` is the outermost loop of every STAGE that closes it."""
    return all(n.closed_ranges[0] is r for n in closers(nest, r) if n.op is Ops.STAGE)


def _split_reduce(nest: UOp, r: UOp, amount: int, kind: RangeKind, own_accumulators: bool,
                  subtotals: bool) -> UOp:
    """The nest with the REDUCEs that close `r` over whole tiles of `amount` iterations, and over what is left
    in a tail."""
    tiles, rest = divmod(r.extent, amount)
    is_masked, new = kind is RangeKind.VECTOR, NewRanges(nest)
    inner, outer = new.counter(amount, kind), new.counter(tiles, r.kind)
    tail = new.counter(amount if is_masked else rest, kind)
    again = new.copies(closed_within(nest, r))
    """what runs inside `r` runs again in the tail, in loops of its own"""

    def total(node: UOp, value: UOp, outer: UOp, inner: UOp) -> UOp:
        loops = node.closed_ranges
        around, inside = loops[:loops.index(r)], loops[loops.index(r) + 1:]
        if own_accumulators:
            return value.reduce_ranges(node.arg, *around, *inside, outer).reduce_ranges(node.arg, inner)
        if subtotals:
            return value.reduce_ranges(node.arg, inner, *inside).reduce_ranges(node.arg, *around, outer)
        return value.reduce_ranges(node.arg, *around, *inside, outer, inner)

    def in_parts(node: UOp, src: tuple[UOp, ...]) -> UOp:
        parts = []
        if tiles:
            parts.append(total(node, src[0].substitute({r: outer * amount + inner}), outer, inner))
        if rest:
            value = src[0].substitute({r: tail + tiles * amount, **again})
            value = identity_unless(tail < rest, value, node.arg) if is_masked else value
            parts.append(total(node, value, ZERO, tail))
        return parts[0] if len(parts) == 1 else simplified(node.arg, node.dtype, *parts)

    return change_closers(nest, r, in_parts)


def padded(nest: UOp, r: UOp, multiple: int) -> UOp:
    """`r`, which REDUCEs close, rounded up to a multiple; values beyond its end are what changes nothing."""
    whole = NewRanges(nest).range(round_up(r.extent, multiple))

    def over_whole(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is not Ops.REDUCE:
            raise ValueError(f"r{r.identity} is no loop of REDUCEs alone")
        value = masked_term(whole < r.extent, src[0].substitute({r: whole}), node.arg)
        return value.reduce_ranges(node.arg, *(whole if c is r else c for c in node.closed_ranges))

    return change_closers(nest, r, over_whole)


# --- staging ------------------------------------------------------------------------------------------------


def operands(nest: UOp) -> list[UOp]:
    """The factors of the nest's sums of products, each once."""
    found: dict[UOp, None] = {}
    for node in nest.nodes_of(Ops.MMA, Ops.REDUCE):
        found.update(dict.fromkeys(node.src[:2] if node.op is Ops.MMA else factors_of(node)))
    return list(found)
