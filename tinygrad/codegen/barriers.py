"""Barriers where threads of a block exchange values through shared memory.

In: a linear program whose threads write and read SHARED memory in the order of its statements. Out: the
program with a BARRIER between a store and the next load of the same memory, and between a load and the next
store, also around the end of a loop. Each stands as far outside of loops as it can, and serves all memory at
once.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

BARRIER = UOp.new(Ops.BARRIER, dtypes.index)


@dataclass
class _Loop:
    """A loop's statements, loops within among them."""

    opened: UOp | None = None
    body: list[UOp | _Loop] = field(default_factory=list)
    loads: set[UOp] = field(default_factory=set)
    stores: set[UOp] = field(default_factory=set)


@dataclass(frozen=True)
class _Pending:
    """Memory touched since the last barrier."""

    loads: frozenset[UOp] = frozenset()
    stores: frozenset[UOp] = frozenset()

    def conflicts(self, loads: set[UOp], stores: set[UOp]) -> bool:
        return not (self.stores.isdisjoint(loads) and self.loads.isdisjoint(stores))

    def after(self, loads: set[UOp], stores: set[UOp]) -> _Pending:
        return _Pending(self.loads | loads, self.stores | stores)


def with_barriers(program: list[UOp]) -> list[UOp]:
    """The program with barriers."""
    if not any(n.op is Ops.SHARED for n in program):
        return program
    return _placed(_nested(program), _Pending())[0]


def _nested(program: list[UOp]) -> _Loop:
    """The program as loops in loops, each with the shared memory that it touches."""
    stack = [_Loop()]
    for node in program:
        if node.op is Ops.RANGE:
            stack.append(_Loop(node))
            continue
        if node.op is Ops.END:
            inner = stack.pop()
            inner.body.append(node)
            stack[-1].body.append(inner)
            stack[-1].loads |= inner.loads
            stack[-1].stores |= inner.stores
            continue
        loads, stores = _touched(node)
        stack[-1].loads |= loads
        stack[-1].stores |= stores
        stack[-1].body.append(node)
    return stack[0]


def read_by_unit(product: UOp) -> set[UOp]:
    """The shared memory that a matrix unit reads itself."""
    return {s.src[0] for s in product.src[:2] if s.op is Ops.INDEX}


def _touched(node: UOp) -> tuple[set[UOp], set[UOp]]:
    """(the shared memory that a statement loads, what it stores)."""
    if node.op is Ops.MMA:
        return read_by_unit(node), set()
    if node.op not in (Ops.LOAD, Ops.STORE) or node.src[0].op is not Ops.INDEX:
        return set(), set()
    memory = {node.src[0].src[0]} if node.src[0].src[0].op is Ops.SHARED else set()
    return (memory, set()) if node.op is Ops.LOAD else (set(), memory)


def _placed(loop: _Loop, pending: _Pending) -> tuple[list[UOp], _Pending]:
    """The statements of a body with barriers, after `pending`; and what is pending at its end."""
    out: list[UOp] = []
    for item in loop.body:
        loads, stores = (item.loads, item.stores) if isinstance(item, _Loop) else _touched(item)
        if pending.conflicts(loads, stores):
            out.append(BARRIER)
            pending = _Pending()
        if isinstance(item, UOp):
            out.append(item)
            pending = pending.after(loads, stores)
            continue
        # The second iteration comes after the first: place again until nothing more is pending at the start.
        start = pending
        body, end = _placed(item, start)
        while not (end.loads <= start.loads and end.stores <= start.stores):
            start = start.after(set(end.loads), set(end.stores))
            body, end = _placed(item, start)
        assert item.opened is not None
        out += [item.opened, *body]
        pending = pending.after(set(end.loads), set(end.stores))
    return out, pending
