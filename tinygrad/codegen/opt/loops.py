"""Loop transformations: ranges of a nest merged, split, moved outwards, rounded up.

In: a nest and ranges of it. Out: a nest that computes the same. Where a factor does not divide an extent, a
loop over outputs lets its last tile overlap the one before: the same values are stored twice or, in a nest
that writes what it reads, once, by the first of the two. Across threads of a block, or if there is only one
tile, it masks what lies outside. A reduce adds a masked tail of its own, so the main loop carries no mask.
`opts.py` names these changes, and those of the modules beside.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tinygrad.codegen.collapse import simplified
from tinygrad.codegen.contraction import product_in
from tinygrad.codegen.predicate import (
    identity_unless,
    mask_loads_along,
    mask_store,
    masked_term,
    store_where,
)
from tinygrad.codegen.ranges import ACCUMULATING, fresh_identity, values_of
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, round_up

# --- finding ranges -----------------------------------------------------------------------------------------


def with_kind(r: UOp, kind: RangeKind) -> UOp:
    return r.replace(arg=(r.arg[0], kind))


def is_reduce_range(nest: UOp, r: UOp) -> bool:
    """True if a REDUCE closes `r`, False if a STORE or STAGE does."""
    return any(n.op is Ops.REDUCE and r in n.closed_ranges for n in nest.toposort())


def is_stage_range(nest: UOp, r: UOp) -> bool:
    """True if a STAGE closes `r`."""
    return any(n.op is Ops.STAGE and r in n.closed_ranges for n in nest.toposort())


def is_shared(nest: UOp, r: UOp) -> bool:
    """True if every STORE closes `r` and nothing inside does: its iterations have outputs of their
    own."""
    return all((n.op is Ops.STORE) == (r in n.closed_ranges)
               for n in nest.toposort() if n.op is Ops.STORE or n.op in ACCUMULATING)


def are_shared(nest: UOp, loops: Sequence[UOp]) -> bool:
    """True if every STORE closes one of the `loops`, nothing else does, and everything else is inside one."""
    others = [n for n in nest.toposort() if n.op in ACCUMULATING]
    return all(len(set(loops).intersection(store.closed_ranges)) == 1 for store in nest.src) and \
        not any(n.ranges.isdisjoint(loops) or set(loops).intersection(n.closed_ranges) for n in others)


def writes_what_it_reads(nest: UOp) -> bool:
    """True if a buffer is both loaded and stored: then nothing may be computed twice."""
    stored = {s.src[0].src[0] for s in nest.src}
    return any(n.op is Ops.LOAD and n.src[0].src[0] in stored for n in nest.toposort())


def thread_extent(program: list[UOp]) -> int:
    """Iterations of a program's THREAD range, 1 if it has none."""
    return next((n.extent for n in program if n.op is Ops.RANGE and n.arg[1] is RangeKind.THREAD), 1)


# --- changing ranges ----------------------------------------------------------------------------------------


def replace_range(nest: UOp, old: UOp, closing: Callable[[UOp], list[UOp]], value: UOp) -> UOp:
    """The nest with `value` in place of the counter `old`; nodes that close `old` close `closing(old)`
    instead. Raises ValueError where `old` must run as it is."""
    if old.arg[1] is RangeKind.IN_ORDER:
        raise ValueError(f"r{old.arg[0]} runs in order, each iteration from what the one before left")

    def instead(node: UOp) -> UOp | None:
        if node is old:
            return value
        return node if old not in node.ranges and old not in node.closed_below else None

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        closed = node.closed_ranges
        if old not in closed:
            return node.with_sources(src)
        values, loops = src[:len(src) - len(closed)], src[len(src) - len(closed):]
        own = [n for r, new in zip(closed, loops, strict=True) for n in (closing(r) if r is old else [new])]
        if value.op is Ops.RANGE:
            own = [value if r is old else r for r in own]
        return node.replace(src=(*values, *own))

    return nest.rebuild(over, instead)


def shared_out(nest: UOp, loops: Sequence[UOp], shares: int) -> UOp:
    """The nest in so many shares that threads take, each of them a part of every one of the `loops`. Raises
    ValueError where threads cannot share these."""
    if not are_shared(nest, loops):
        raise ValueError(f"threads cannot share {', '.join(f'r{r.arg[0]}' for r in loops)}: each STORE, and "
                         "all that it needs, has to be in one of them")
    identity = fresh_identity(nest)
    share = UOp.range(shares, identity, RangeKind.THREAD)
    for number, r in enumerate(loops):
        bounds = (share + i for i in range(2))
        part = UOp.new(Ops.RANGE, r.dtype, (r.src[0], *(b * r.extent // shares for b in bounds)),
                       (identity + 1 + number, r.arg[1]))
        nest = replace_range(nest, r, partial(_share_and_part, share, part), part)
    return nest


def _share_and_part(share: UOp, part: UOp, _: UOp) -> list[UOp]:
    return [share, part]


def merge(nest: UOp, outer: UOp, inner: UOp) -> UOp:
    """`outer` and `inner`, which run one directly in the other, as one range."""
    both = UOp.range(outer.src[0] * inner.extent, fresh_identity(nest))
    nest = replace_range(nest, outer, lambda r: [both], both // inner.extent)
    return replace_range(nest, inner, lambda r: [], both % inner.extent)


def can_be_outermost(nest: UOp, r: UOp) -> bool:
    """True if every loop around `r` closes with it everywhere: what else ran in such a loop would have to run
    inside `r` then."""
    closed = [n.closed_ranges for n in nest.toposort() if n.closed_ranges]
    around = {c for loops in closed if r in loops for c in loops[:loops.index(r)]}
    return _leads_stages(nest, r) and all(r in loops for loops in closed if not around.isdisjoint(loops))


def outermost(nest: UOp, r: UOp) -> UOp:
    """`r` as the outermost of the loops that any node closes together with it."""
    if not _leads_stages(nest, r):
        raise ValueError(f"r{r.arg[0]} is not the first of the loops in whose order staged memory lies")
    if r.arg[1] is RangeKind.IN_ORDER:
        raise ValueError(f"r{r.arg[0]} runs in order, inside the loops of its outputs")
    if not can_be_outermost(nest, r):
        raise ValueError(f"r{r.arg[0]} is inside a loop in which something else runs too")

    def first(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        closed = new.closed_ranges
        return new if r not in closed else \
            new.replace(src=(*values_of(new), r, *(c for c in closed if c is not r)))

    return nest.rebuild(first, lambda n: n if r not in n.closed_below else None)


def split(nest: UOp, r: UOp, amount: int, kind: RangeKind, own_accumulators: bool) -> UOp:
    """`r` as an outer loop over an inner one of `amount` iterations that runs as `kind`.

    `own_accumulators` gives the inner iterations of a reduce accumulators of their own.
    """
    if amount < 2:
        raise ValueError(f"a split needs at least 2 inner iterations, got {amount}")
    if any(n.op is Ops.SCATTER and r in n.closed_ranges for n in nest.toposort()):
        raise ValueError(f"each iteration of r{r.arg[0]} adds to memory once: it must stay whole")
    if is_reduce_range(nest, r):
        if any(r in n.closed_ranges for n in nest.toposort() if n.op is not Ops.REDUCE):
            raise ValueError(f"r{r.arg[0]} is a loop of a REDUCE and of what it fills: it must stay whole")
        return _split_reduce(nest, r, amount, kind, own_accumulators)
    return _split_outputs(nest, r, amount, kind)


def _split_outputs(nest: UOp, r: UOp, amount: int, kind: RangeKind) -> UOp:
    extent = r.extent
    tiles = ceildiv(extent, amount)
    identity = fresh_identity(nest)
    inner = UOp.range(amount, identity, kind)
    outer = UOp.range(tiles, identity + 1, r.arg[1]) if tiles > 1 else UOp.const(0, dtypes.index)
    loops = [outer, inner] if tiles > 1 else [inner]
    start = outer * amount
    if extent % amount == 0:
        return replace_range(nest, r, lambda _: loops, start + inner)
    if is_stage_range(nest, r):
        if not _leads_stages(nest, r):
            raise ValueError(f"tiles of {amount} do not divide the {extent} iterations of r{r.arg[0]}, and "
                             "other loops around it fill the same memory")
        # The memory is rounded up to whole tiles; nothing reads what lies beyond.
        whole = replace_range(nest, r, lambda _: loops, start + inner)
        return _masked_stages(whole, inner, (start + inner) < extent)
    if tiles > 1 and kind is not RangeKind.LOCAL:
        place = start.minimum(extent - amount) + inner
        overlapping = replace_range(nest, r, lambda _: loops, place)
        if not writes_what_it_reads(nest):
            return overlapping
        return UOp.sink(store_where(place >= start, s) if inner in s.closed_ranges else s
                        for s in overlapping.src)
    if any(n.op is Ops.LOAD and n.src[0].src[0].op is Ops.SCATTER and r in n.src[0].src[1].ranges
           for n in nest.toposort()):
        raise ValueError(f"sums by place are added up for the {extent} iterations of r{r.arg[0]} alone")
    mask = (start + inner) < extent
    masked = replace_range(nest, r, lambda _: loops, start + inner)
    return UOp.sink(mask_store(s, mask) if inner in s.closed_ranges else s for s in masked.src)


def _leads_stages(nest: UOp, r: UOp) -> bool:
    """True if `r` is the outermost loop of every STAGE that closes it."""
    closed = (n.closed_ranges for n in nest.toposort() if n.op is Ops.STAGE)
    return all(c[0] is r for c in closed if r in c)


def _masked_stages(nest: UOp, inner: UOp, mask: UOp) -> UOp:
    """The nest with the STAGEs that close `inner` reading memory only where `mask` holds."""

    def masked(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.STAGE and inner in node.closed_ranges:
            return node.replace(src=(mask_loads_along(src[0], mask), *src[1:]))
        return node.with_sources(src)

    return nest.rebuild(masked)


def _split_reduce(nest: UOp, r: UOp, amount: int, kind: RangeKind, own_accumulators: bool) -> UOp:
    identity = fresh_identity(nest)
    inner = UOp.range(amount, identity, kind)
    tiles, rest = divmod(r.extent, amount)
    outer = UOp.range(tiles, identity + 2, r.arg[1]) if tiles > 1 else UOp.const(0, dtypes.index)
    inside_loops = [c for n in nest.toposort() if n.op in ACCUMULATING and r in n.ranges
                    for c in n.closed_ranges]
    own_loops = {c: c.replace(arg=(identity + 3 + i, c.arg[1]))
                 for i, c in enumerate(dict.fromkeys(inside_loops))}
    """what runs inside `r` runs again in the tail, in loops of its own"""

    def in_parts(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if r not in node.closed_ranges:
            return node.with_sources(src)
        value = src[0]
        others = [c for c in node.closed_ranges if c is not r]
        parts = []
        if tiles:
            main = value.substitute({r: outer * amount + inner})
            parts.append(_reduced(node, main, [*others, *([outer] if tiles > 1 else [])], inner,
                                  own_accumulators))
        if rest:
            is_written_out = kind is RangeKind.UNROLL
            tail = UOp.range(rest if is_written_out else amount, identity + 1, kind)
            last = value.substitute({r: tail + tiles * amount, **own_loops})
            masked = last if is_written_out else identity_unless(tail < rest, last, node.arg)
            parts.append(_reduced(node, masked, others, tail, own_accumulators))
        return parts[0] if len(parts) == 1 else simplified(node.arg, node.dtype, *parts)

    return nest.rebuild(in_parts, lambda n: n if r not in n.closed_below else None)


def _reduced(node: UOp, value: UOp, loops: list[UOp], inner: UOp, own_accumulators: bool) -> UOp:
    if own_accumulators:
        return value.reduce_ranges(node.arg, *loops).reduce_ranges(node.arg, inner)
    return value.reduce_ranges(node.arg, *loops, inner)


def padded(nest: UOp, r: UOp, multiple: int) -> UOp:
    """`r`, which REDUCEs close, rounded up to a multiple; values beyond its end are what changes nothing."""
    whole = UOp.range(round_up(r.extent, multiple), fresh_identity(nest))
    mask = whole < r.extent

    def over_whole(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if r not in node.closed_ranges:
            return node.with_sources(src)
        if node.op is not Ops.REDUCE:
            raise ValueError(f"r{r.arg[0]} is no loop of REDUCEs alone")
        value = masked_term(mask, src[0].substitute({r: whole}), node.arg)
        return value.reduce_ranges(node.arg, *(whole if c is r else c for c in node.closed_ranges))

    return nest.rebuild(over_whole)


# --- staging ------------------------------------------------------------------------------------------------


def operands(nest: UOp) -> list[UOp]:
    """The factors of the nest's sums of products, each once."""
    found: dict[UOp, None] = {}
    for node in nest.toposort():
        if node.op is Ops.MMA:
            found.update(dict.fromkeys(node.src[:2]))
        product = product_in(node.src[0]) if node.op is Ops.REDUCE and node.arg is Ops.ADD else None
        if product is not None:
            found.update(dict.fromkeys(product.src))
    return list(found)
