"""The RANGEs of a nest: all, those of the outputs, the one of an identity, and identities for new ones."""
from __future__ import annotations

from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

ACCUMULATING = (Ops.REDUCE, Ops.STAGE, Ops.SCATTER)
"""What takes a value at the end of each iteration of the loops that it closes, and stands inside others."""


def all_ranges(nest: UOp) -> list[UOp]:
    """Every RANGE of the nest, by identity."""
    return sorted((n for n in nest.toposort() if n.op is Ops.RANGE), key=lambda r: r.arg[0])


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
