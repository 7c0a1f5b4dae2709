"""Flags of nodes, known once they are made: bits that follow from the operation and the flags of the sources.

In: the operation and argument of a node that `UOp.new` makes, and the flags of its sources. Out: its own.
They are what is asked of nearly every node of every step, so nobody walks a graph to find them.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tinygrad.graph.ops import Family, Ops

if TYPE_CHECKING:
    from tinygrad.graph.uop import UOp

LEAF: Final = 1
"""A variable of gradients (`graph/leaf_tensors.py`) is below, along ways that gradients can take."""
WRITES: Final = 2
"""A write into memory (ASSIGN) is below, or this is one."""
MEMORY: Final = 4
"""A view of memory, or of memory about to be overwritten, as a constant to gradients or not."""
READS: Final = 8
"""Memory is below."""
COSTLY: Final = 16
"""Something that no memory is read for, and that takes longer to compute than to read, is below: random
numbers and whatever else is to be stored (CONTIGUOUS), exponentials, logarithms, sines."""
APPLIED: Final = 32
"""An APPLY is below, or this is one: a node of nothing but a tensor (`graph/template.py`)."""
CUT: Final = 64
"""A DETACH is below: without LEAF, a constant to gradients."""
PASSED_ON: Final = LEAF | WRITES | READS | COSTLY | APPLIED | CUT
"""What a node has because its sources have it, unless `FLAG_RULES` says otherwise."""
COSTLY_OPS: Final = Family.ELEMENTARY - {Ops.THREEFRY} | {Ops.CONTIGUOUS}
"""Operations of which an item takes longer to compute than to read. Random bits do too, and are stored
(CONTIGUOUS) unless somebody asked for a draw that is not."""


class Argument:
    """The rule of a CUSTOM_GRADIENT that stands for an argument of a function: its source, with an identity.

    Gradients can be taken at such a node, which is no other use of the same value, and flow on through it.
    """

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp | None, ...]:
        return (gradient,)


def _costly(flags: int, arg: object) -> int:
    flags &= PASSED_ON
    return flags if flags & READS else flags | COSTLY


class Assignments:
    """How many ASSIGN nodes were ever made: while there are no more, nobody has one who had none."""

    count = 0

    @classmethod
    def flags(cls, flags: int, arg: object) -> int:
        """Those of a new one."""
        cls.count += 1
        return flags | WRITES | MEMORY


FLAG_RULES: Final[dict[Ops, Callable[[int, Any], int]]] = {
    **dict.fromkeys(COSTLY_OPS, _costly),
    **dict.fromkeys(Family.VIEW, lambda flags, arg: flags),
    Ops.BUFFER: lambda flags, arg: LEAF | MEMORY | READS,
    Ops.ASSIGN: Assignments.flags,
    Ops.DETACH: lambda flags, arg: flags & ~LEAF | CUT if arg is None else flags & PASSED_ON | LEAF,
    Ops.CUSTOM_GRADIENT:
        lambda flags, arg: flags & PASSED_ON | (LEAF if isinstance(arg, Argument) else 0),
}
"""The flags of a node from all those that its sources have together, and its argument. What is no float has
no gradients, so never LEAF or CUT."""
