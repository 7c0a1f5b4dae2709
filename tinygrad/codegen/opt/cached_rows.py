"""Cached rows: values along one loop that a kernel would compute again and again, computed once into scratch
memory.

Softmax adds up exponentials over a row and divides each of them by the sum: its second loop needs the very
values of the first. Attention reads its row of weights once for every column of the result. `cacheable_rows`
finds such values by comparing what the loops compute; staging one (`staging.py`) computes it once, over a
loop of its own, into scratch memory that all its readers share.
"""
from __future__ import annotations

from collections import defaultdict

from tinygrad.codegen.ranges import NewRanges, loops_inside, of_kind
from tinygrad.frozen import frozen
from tinygrad.graph.attributes import Attribute, Synthesized
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp


@frozen
class CachedRow:
    """A value, the loop along its row, and every place that reads it: equal values with their loops."""

    value: UOp
    loop: UOp
    readers: tuple[tuple[UOp, UOp], ...]
    repeats: int
    """how often the loops around `loop` that the value does not change with would compute it again"""

    @property
    def computed(self) -> list[UOp]:
        """The nodes of the value that change along the row, down to what is cached already."""
        inside = self.value.toposort(stop=lambda n: n.op is Ops.STAGE)
        return [n for n in inside if self.loop in n.ranges]

    @property
    def is_expensive(self) -> bool:
        """True for values that are worth memory: sums, elementary functions, and what many columns read."""
        return self.repeats > 1 or any(n.op in Family.ELEMENTARY or n.op is Ops.REDUCE for n in self.computed)


def _found_rows(nest: UOp) -> list[CachedRow]:
    nodes = list(nest.toposort())
    if not nest.nodes_of(Ops.REDUCE):
        return []
    around = _loops_around(nodes)
    rows = of_kind(around, RangeKind.LOOP)
    found: dict[UOp, list[tuple[UOp, UOp]]] = defaultdict(list)
    forms: dict[tuple[UOp, ...], dict[UOp, UOp]] = {}
    for node in reversed(nodes):
        if node.op in (Ops.RANGE, Ops.LOAD, Ops.STAGE, Ops.STORE, Ops.SINK, Ops.INDEX) or node.dtype.is_bool:
            continue
        if node.op is Ops.WHERE and node.src[2].op is Ops.CONST:
            continue  # the readers keep the condition, and so know where the row matters
        if node.ranges.isdisjoint(rows) or not _is_expensive.of(node):
            continue
        for loop in rows:
            if loop in node.ranges and node.ranges <= frozenset(around[loop]):
                found[row_form(node, loop, forms)].append((node, loop))
    values = []
    for readers in found.values():
        value, loop = readers[0]
        repeats = max(_repeats(v, r, around[r]) for v, r in readers)
        if len({r for _, r in readers}) > 1 or repeats > 1:
            values.append(CachedRow(value, loop, tuple(readers), repeats))
    return values


cacheable_rows = Attribute(_found_rows, "_cacheable_rows").of
"""The rows that a nest computes more than once, the value made from the others first."""


def _computes_much(node: UOp) -> bool:
    """True for what a memory access would be cheaper than: an elementary function, a sum, and what is made of
    one here, down to what is cached already."""
    if node.op is Ops.STAGE:
        return False
    own = node.op in Family.ELEMENTARY or node.op is Ops.REDUCE
    return own or any(_is_expensive.of(s) for s in node.src)


_is_expensive = Synthesized(_computes_much, "_is_expensive")


def _loops_around(nodes: list[UOp]) -> dict[UOp, tuple[UOp, ...]]:
    """For each loop along a row (a REDUCE closes it alone, or a STORE or STAGE closes it last): the loops
    around it, outermost first, and itself."""
    around: dict[UOp, tuple[UOp, ...]] = {}
    rows: list[UOp] = []
    for node in reversed(nodes):
        closed = node.closed_ranges
        if not closed:
            continue
        enclosing = max((around.get(r, (r,)) for r in node.ranges), key=len, default=())
        nested = (*enclosing, *closed)
        for i, r in enumerate(closed):
            around[r] = nested[:len(enclosing) + i + 1]
        if node.op is not Ops.REDUCE or len(closed) == 1:
            rows.append(closed[-1])
    return {r: around[r] for r in rows}


def _repeats(value: UOp, loop: UOp, around: tuple[UOp, ...]) -> int:
    """Iterations of the loops between those that a row changes with and the one along it."""
    count = 1
    for r in reversed(around[:around.index(loop)]):
        if r in value.ranges:
            break
        count *= r.extent
    return count


def row_form(value: UOp, loop: UOp, known: dict[tuple[UOp, ...], dict[UOp, UOp]] | None = None) -> UOp:
    """`value` with stand-ins for the loop along its row and for the loops inside it: equal for equal rows.
    `known`: by these loops, what stands for the nodes of values that were asked for before."""
    inside = tuple(r for r in loops_inside(value) if r is not loop)
    done = None if known is None else known.get((loop, *inside))
    if done is None:
        new = NewRanges()
        done = {loop: new.range(loop.extent), **{r: new.range(r.extent, r.kind) for r in inside}}
        if known is not None:
            known[loop, *inside] = done
    return value.rebuild(done=done)
