"""How a nest touches memory: for every address, the step that each range makes in it.

The cost model reads plans off these steps: a range with step 1 runs well as lanes, one with step 0 reads the
same item again, any other step jumps.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tinygrad.codegen.ranges import running_in
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.attributes import Attribute
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp


@frozen
class MemoryAccess:
    """One LOAD or STORE: its address, the ranges it runs in, and the step of each range that has a fixed
    one."""

    node: UOp
    ranges: frozenset[UOp]
    steps: dict[UOp, int]
    irregular: frozenset[UOp]
    """ranges that the address changes with in another way than by a fixed step"""

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return self.node.dtype.itemsize

    def step(self, r: UOp) -> int | None:
        """Items between neighbouring iterations of `r`; None where that varies."""
        return None if r in self.irregular else self.steps.get(r, 0)

    def is_smooth(self, r: UOp) -> bool:
        """Whether it goes on by one item with `r`, or by none: what vectors along `r` want."""
        return self.step(r) in (0, 1)


def steps_of(expression: UOp) -> tuple[dict[UOp, int], frozenset[UOp]]:
    """(the fixed step of each range, the ranges without one) of an index expression."""
    terms, _ = linear_terms(expression)
    steps = {atom: factor for atom, factor in terms.items() if atom.op is Ops.RANGE}
    irregular = frozenset[UOp]().union(*(atom.ranges for atom in terms if atom.op is not Ops.RANGE))
    return steps, irregular


accesses_of: Final = Attribute(
    lambda nest: tuple([MemoryAccess(node, running_in(node), *steps_of(node.offset))
                        for node in nest.nodes_of(Ops.LOAD, Ops.STORE)]), "_accesses").of
"""Every access of a nest to memory."""


def memory_bytes(params: Iterable[UOp]) -> int:
    """Bytes of the memory that PARAMs stand for."""
    return sum(int(p.arg[1]) * p.dtype.itemsize for p in params)


def lie_side_by_side(accesses: Iterable[MemoryAccess], r: UOp) -> bool:
    """Whether vectors along `r` serve all of these."""
    return all(a.is_smooth(r) for a in accesses)


def index_uses(nest: UOp) -> list[UOp]:
    """The index expressions that something other than index arithmetic uses: addresses, conditions,
    values."""
    found: dict[UOp, None] = {}
    for node in nest.toposort():
        if node.dtype.scalar is dtypes.index and node.op is not Ops.SINK:
            continue
        for source in node.src:
            if source.dtype.scalar is dtypes.index and source not in node.closed_ranges:
                found[source] = None
    return list(found)
