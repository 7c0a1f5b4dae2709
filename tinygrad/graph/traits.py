"""What is known of a node from the moment it is made: bits that follow from its operation and its sources.

In: the operation and argument of a node that `UOp.new` makes, and the bits of its sources. Out: its `traits`.
They are what is asked of nearly every node of every step, so nobody walks a graph to find them.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tinygrad.graph.ops import Family, Ops

if TYPE_CHECKING:
    from tinygrad.graph.uop import UOp

LEAF: Final = 1
"""A variable of gradients (`graph/leaves.py`) is below, along ways that gradients can take."""
WRITES: Final = 2
"""A write into memory (ASSIGN) is below, or this is one."""
MEMORY: Final = 4
"""A view of memory, or of memory about to be overwritten, as a constant to gradients or not."""
READS: Final = 8
"""Memory is below."""
COSTLY: Final = 16
"""Something that no memory is read for, and that takes longer to compute than to read, is below: random
numbers and whatever else is to be stored (CONTIGUOUS), exponentials, logarithms, sines."""
PASSED_ON: Final = LEAF | WRITES | READS | COSTLY
"""What a node has because its sources have it, unless `TRAITS` says otherwise."""
COSTLY_OPS: Final = frozenset({Ops.CONTIGUOUS, Ops.EXP2, Ops.LOG2, Ops.SIN})
"""Operations of which an item takes longer to compute than to read."""


class Argument:
    """The rule of a CUSTOM_GRADIENT that stands for an argument of a function: its source, with an identity.

    Gradients can be taken at such a node, which is no other use of the same value, and flow on through it.
    """

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp | None, ...]:
        return (gradient,)


def _costly(traits: int, arg: object) -> int:
    traits &= PASSED_ON
    return traits if traits & READS else traits | COSTLY


TRAITS: Final[dict[Ops, Callable[[int, Any], int]]] = {
    **dict.fromkeys(COSTLY_OPS, _costly),
    **dict.fromkeys(Family.VIEW, lambda traits, arg: traits),
    Ops.BUFFER: lambda traits, arg: LEAF | MEMORY | READS,
    Ops.ASSIGN: lambda traits, arg: traits | WRITES | MEMORY,
    Ops.DETACH: lambda traits, arg: traits & ~LEAF if arg is None else traits & PASSED_ON | LEAF,
    Ops.CUSTOM_GRADIENT:
        lambda traits, arg: traits & PASSED_ON | (LEAF if isinstance(arg, Argument) else 0),
}
"""The traits of a node from all those that its sources have together, and its argument. What is no float has
no gradients, so never LEAF."""
