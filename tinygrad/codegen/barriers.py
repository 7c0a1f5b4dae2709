"""Barriers where threads of a block exchange values through shared memory.

In: a linear program whose threads write and read SHARED memory in the order of its statements. Out: the
program with a BARRIER between a store and the next load of the same memory, and between a load and the next
store, also around the end of a loop. Each stands as far outside of loops as it can, and serves all memory at
once.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

BARRIER = UOp.new(Ops.BARRIER, dtypes.index)


@frozen
class Touched:
    """The shared memory that statements load, and what they store."""

    loads: frozenset[UOp] = frozenset()
    stores: frozenset[UOp] = frozenset()

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.loads | other.loads, self.stores | other.stores)

    def conflicts(self, later: Touched) -> bool:
        """Whether one of the two loads what the other stores."""
        return not (self.stores.isdisjoint(later.loads) and self.loads.isdisjoint(later.stores))


NOTHING = Touched()


def touched_by(node: UOp) -> Touched:
    """What a statement touches; a matrix unit may read shared memory itself."""
    if node.op not in (Ops.LOAD, Ops.STORE, Ops.MMA):
        return NOTHING
    addresses = node.src[:2] if node.op is Ops.MMA else node.src[:1]
    shared = frozenset(s.src[0] for s in addresses if s.op is Ops.INDEX and s.src[0].op is Ops.SHARED)
    return Touched(stores=shared) if node.op is Ops.STORE else Touched(shared)


def statements_of(body: Sequence[UOp]) -> Iterator[list[UOp]]:
    """Each statement of a body by itself, a loop as a whole."""
    statement: list[UOp] = []
    depth = 0
    for node in body:
        statement.append(node)
        depth += (node.op is Ops.RANGE) - (node.op is Ops.END)
        if not depth:
            yield statement
            statement = []


def with_barriers(program: list[UOp]) -> list[UOp]:
    """The program with barriers."""
    return _placed(program, NOTHING)[0] if any(n.op is Ops.SHARED for n in program) else program


def _placed(body: Sequence[UOp], pending: Touched) -> tuple[list[UOp], Touched]:
    """The statements of a body with barriers, after what is `pending`, touched since the last barrier; and
    what is pending at its end."""
    out: list[UOp] = []
    for statement in statements_of(body):
        touched = reduce(or_, {touched_by(node) for node in statement})
        if pending.conflicts(touched):
            out.append(BARRIER)
            pending = NOTHING
        if len(statement) > 1:
            opened, *inside, end = statement
            # The second iteration comes after the first: place again until nothing more is pending.
            start = pending
            placed, touched = _placed(inside, start)
            while start | touched != start:
                start |= touched
                placed, touched = _placed(inside, start)
            statement = [opened, *placed, end]
        out += statement
        pending |= touched
    return out, pending
