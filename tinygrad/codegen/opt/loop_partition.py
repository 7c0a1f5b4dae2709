"""Loop partitioning: a loop over outputs as several, in each of which masks inside always or never hold.

What is put together along an axis (`cat`, `pad`, `roll`) asks for every item where it comes from:
`where(i < 5, a[i], b[i - 5])`. In: a nest before its loops have lanes, and a loop that STOREs close. Out:
the same nest with a STORE for each piece of the loop, over a loop of its own: the first reads a, the second
b. Pieces of one length that compute the same in part have one loop together. A mask that changes with other
loops too always holds between two iterations and never outside of two others; in the pieces between it stays.
"""
from __future__ import annotations

import itertools
from collections.abc import Sequence

from tinygrad.codegen.collapse import folded
from tinygrad.codegen.opt.access import steps_of
from tinygrad.codegen.opt.loop_bounds import below_zero, span_of
from tinygrad.codegen.opt.loops import writes_what_it_reads
from tinygrad.codegen.ranges import ACCUMULATING, NewRanges, closers, is_plain, iterations
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import constant
from tinygrad.graph.uop import UOp

MOST_STORES = 64
"""STOREs of a kernel whose loops are cut: the time that it takes to compile is theirs."""
MOST_TAPS = 32
"""Items of a window that are written out one by one."""
MOST_QUOTIENTS = 4
"""Values of a quotient that a loop is cut for, as in a roll along an axis; more are a shuffle."""


def partition(nest: UOp, loop: UOp, begins: Sequence[int]) -> UOp:
    """The nest with `loop` cut where these iterations begin. Raises ValueError where something else than
    STOREs closes it, or memory that is written is read."""
    inside = any(n.op is not Ops.STORE for n in closers(nest, loop))
    if inside or not is_plain(loop) or writes_what_it_reads(nest):
        raise ValueError(f"r{loop.identity} is no loop of outputs alone, each of them there once")
    new = NewRanges(nest)
    stores = [store for store in nest.src if loop not in store.closed_ranges]
    cut = [store for store in nest.src if loop in store.closed_ranges]
    closed = dict.fromkeys(r for store in cut for r in store.closed_ranges)
    around = frozenset(r for store in cut for r in store.closed_ranges[:store.closed_ranges.index(loop)])
    inner = [r for r in closed if r not in around and r is not loop]
    pieces = list(itertools.pairwise((0, *begins, loop.extent)))
    found: list[list[UOp]] = []
    loops: dict[UOp, UOp] = {}
    for number, (begin, end) in enumerate(pieces):
        if number == 1 and len({end - begin for begin, end in pieces}) == 1:
            together = [_cut(store, loop, begin, loops) for begin, _ in pieces for store in cut]
            if _is_shared(together, loops[loop]):
                return UOp.sink(stores + together)
        loops = {**new.copies(inner), loop: new.range(end - begin)}
        found.append([_cut(store, loop, begin, loops) for store in cut])
    return UOp.sink(itertools.chain(stores, *found))


def _cut(store: UOp, loop: UOp, begin: int, loops: dict[UOp, UOp]) -> UOp:
    """The part of a STORE from an iteration on, over the loop that stands for `loop` in `loops`, and those
    that stand for the loops inside."""
    piece = loops[loop]
    changes = loops | {loop: piece + begin if piece.extent > 1 else constant(begin)}
    address, value = (_at(source, changes) for source in store.src[:2])
    own = [loops.get(r, r) for r in store.closed_ranges]
    if piece.extent == 1 and len(own) > 1:
        own.remove(piece)
    return store.replace(src=(address, value, *own))


def _is_shared(stores: Sequence[UOp], loop: UOp) -> bool:
    """Whether the same function of a dozen operations and more is in all of them and changes with a loop, as
    that of random bits, which come two words at once: one loop computes it once."""
    functions = [{(n.op, n.src) for n in store.src[1].toposort() if n.op in Family.ELEMENTARY
                  and loop in n.ranges} for store in stores]
    return bool(set.intersection(*functions))


def _at(value: UOp, changes: dict[UOp, UOp]) -> UOp:
    """`value` in other loops, with what their bounds decide: of many values that were put together, only the
    one that is chosen is looked at."""
    done = dict(changes)

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        return folded(new) if new is not node and node.op in Family.ELEMENTWISE else new

    def chosen(node: UOp) -> UOp | None:
        value = node
        while value.op is Ops.WHERE and (condition := value.src[0].rebuild(over, done=done)).op is Ops.CONST:
            value = value.src[1 if condition.arg else 2]
        return None if value is node else value.rebuild(over, chosen, done)

    return value.rebuild(over, chosen, done)


def partitions(nest: UOp, lanes: int) -> tuple[UOp, list[int]] | None:
    """(a loop over outputs, the iterations at which masks inside begin to hold or cease to), where there are
    fewer of them than vectors of `lanes` along memory; None where there is none. Of windows only a loop along
    memory: what is masked around it is so for whole vectors."""
    reduces = nest.nodes_of(*ACCUMULATING)
    if writes_what_it_reads(nest) or not _are_windows(reduces):
        return None
    for store in nest.src:
        differences = _differences(store)
        steps = steps_of(store.offset)[0]
        for loop in store.closed_ranges if differences else ():
            begins = sorted({b for d in differences for b in _changes(d, loop)}) if is_plain(loop) else []
            most = loop.extent // lanes if steps.get(loop) == 1 else 0 if reduces else loop.extent
            if begins and len(begins) < most and len(nest.src) + len(begins) <= MOST_STORES:
                return loop, begins
    return None


def _are_windows(reduces: Sequence[UOp]) -> bool:
    """True for REDUCEs, sources first, over few items each, those of the sums that run anew inside its loops
    counted too."""
    taps: dict[UOp, int] = {}
    for node in reduces:
        loops = frozenset(node.closed_ranges)
        inside = [taps[n] for n in node.src[0].toposort() if n in taps and loops & n.ranges]
        taps[node] = iterations(loops) * max(inside, default=1)
        if node.op is not Ops.REDUCE or taps[node] > MOST_TAPS:
            return False
    return True


def _differences(store: UOp) -> list[UOp]:
    """Indices that become negative where a mask changes, or one of few quotients in an address."""
    found: list[UOp] = []
    nodes = store.toposort()
    masks = [n.mask for n in nodes if n.op is Ops.INDEX and n.mask is not None]
    masks += [n.src[0] for n in nodes if n.op is Ops.WHERE and n.dtype is not dtypes.index]
    for condition in UOp.sink(dict.fromkeys(masks)).toposort():
        difference = below_zero(condition)
        found += [] if difference is None else [difference]
    for node in nodes:
        if node.op in (Ops.IDIV, Ops.MOD) and node.dtype is dtypes.index and node.src[1].op is Ops.CONST:
            value, divisor = node.src[0], node.src[1].arg
            least, most = (bound // divisor for bound in value.bounds)
            if most - least < MOST_QUOTIENTS:
                found += [value - divisor * k for k in range(least + 1, most + 1)]
    return found


def _changes(difference: UOp, loop: UOp) -> list[int]:
    """The iterations of `loop` from which on an index can be negative, is always, no longer always, or never;
    none where the loop does not decide that for most of its iterations."""
    span = span_of(difference, loop, frozenset()) if loop in difference.ranges else None
    ends = () if span is None else (span.begin, span.sure_begin, span.sure_end, span.end)
    numbers = [end.arg for end in ends if end.op is Ops.CONST]
    if len(numbers) < 4 or 2 * (numbers[3] - numbers[2] + numbers[1] - numbers[0]) > loop.extent:
        return []
    return [number for number in numbers if 0 < number < loop.extent]
