"""The RANGEs of a nest: found by what they are, new ones, and loops of their own for REDUCEs."""
from __future__ import annotations

from collections.abc import Mapping

from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp

ACCUMULATING = (Ops.REDUCE, Ops.STAGE, Ops.SCATTER)
"""What takes a value at the end of each iteration of the loops that it closes, and stands inside others."""


def all_ranges(nest: UOp) -> list[UOp]:
    """Every RANGE of the nest, by identity."""
    return sorted((n for n in nest.toposort() if n.op is Ops.RANGE), key=lambda r: r.arg[0])


def is_plain(r: UOp) -> bool:
    """True for a loop of a fixed number of iterations."""
    return r.arg[1] is RangeKind.LOOP and len(r.src) == 1 and r.src[0].op is Ops.CONST


def output_ranges(nest: UOp) -> frozenset[UOp]:
    """The RANGEs of the outputs: those that STOREs close."""
    return frozenset(r for store in nest.src for r in store.closed_ranges)


def range_named(nest: UOp, identity: int) -> UOp:
    """The RANGE of this identity. Raises ValueError where the nest has none."""
    ranges = all_ranges(nest)
    for r in ranges:
        if r.arg[0] == identity:
            return r
    names = ", ".join(f"r{r.arg[0]}" for r in ranges)
    raise ValueError(f"the nest has no range r{identity}, only {names}")


def fresh_identity(nest: UOp) -> int:
    """An identity that no RANGE of the nest has, and no larger one either."""
    return 1 + max((int(n.arg[0]) for n in nest.toposort() if n.op is Ops.RANGE), default=0)


def with_own_loops(reduce: UOp, identity: int) -> UOp:
    """The REDUCE over loops that no other has, numbered from `identity` on."""
    closed = reduce.closed_ranges
    own = {r: UOp.range(r.src[0], identity + i, r.arg[1]) for i, r in enumerate(closed)}
    values = reduce.src[:len(reduce.src) - len(closed)]
    return reduce.replace(src=(*(_with_loops(v, own) for v in values), *own.values()))


def closed_once(nest: UOp) -> UOp:
    """The nest with loops of their own for REDUCEs that wait for others over the same loop, which is over."""
    identity = fresh_identity(nest)
    ended: dict[UOp, frozenset[UOp]] = {}
    done: dict[UOp, UOp] = {}
    for node in nest.toposort():
        src = tuple([done[s] for s in node.src])
        new = node if src == node.src else node.with_sources(src)
        below = frozenset[UOp]().union(*(ended[s] for s in node.src))
        loops = [r for r in new.closed_ranges if r.arg[1] is RangeKind.LOOP]
        if new.op is Ops.REDUCE and not below.isdisjoint(loops):
            new = with_own_loops(new, identity)
            identity += len(new.closed_ranges)
        done[node], ended[node] = new, below.union(new.closed_ranges)
    return done[nest]


def _with_loops(value: UOp, new: Mapping[UOp, UOp]) -> UOp:
    """`value` inside other loops; what closes some of these itself stays as it is."""
    done: dict[UOp, UOp] = {}
    for node in value.toposort(stop=lambda n: n.ranges.isdisjoint(new)):
        inside = node not in new and not node.ranges.isdisjoint(new)
        done[node] = node.with_sources(tuple([done[s] for s in node.src])) if inside else new.get(node, node)
    return done[value]
