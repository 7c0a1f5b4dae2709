"""Which memory holds the value of a node: its own, or that of what it is a view of.

Schedules read what was computed from memory, and what they give a node is a view of memory too. Both are
asked here, of the lazy graph and of those that stand for it (`padded_shapes.py`, `dynamic_slice.py`,
`sharded_results.py`, `items.py`).
"""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tinygrad.codegen.indexing import splat_value
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp

IGNORED_ARGUMENT = frozenset({Ops.DETACH, Ops.CUSTOM_GRADIENT})
"""What gradients know of a node; their first source is all that a schedule sees."""


def in_own_memory(node: UOp) -> UOp:
    """This value in memory of its own, even if it is in some already."""
    return node.under(Ops.CONTIGUOUS)


def memory_of(node: UOp) -> UOp | None:
    """The view of memory that a computed value is in. None for a constant, which is better written into the
    kernels that use it, even where some tensor has it in memory."""
    view = node.realized_view  # asked first: finding a splat takes a walk down a chain of movement
    return view if view is not None and splat_value(node) is None else None


def over_memory(node: UOp, held: Mapping[UOp, UOp] = MappingProxyType({})) -> UOp | None:
    """`node` as a view of memory: of that which holds it, or what it is a view of (`held` says so beside what
    nodes know), or into which it is written. None for what has memory of its own."""
    way: list[UOp] = []
    while True:
        view = node if node.op is Ops.BUFFER else held.get(node) or node.realized_view
        if view is None and node.op is Ops.ASSIGN:
            view = node.src[0]
        if view is not None:
            break
        if node.op not in Family.VIEW | IGNORED_ARGUMENT:
            return None
        way.append(node)
        node = node.src[0]
    for above in reversed(way):
        if above.op not in IGNORED_ARGUMENT:
            view = above.replace(src=(view, *above.src[1:]))
    return view


def shared_memory(node: UOp) -> UOp:
    """As `over_memory`. Raises ValueError for a node with memory of its own."""
    view = over_memory(node)
    if view is None:
        raise ValueError(f"{node} shares no memory")
    return view
