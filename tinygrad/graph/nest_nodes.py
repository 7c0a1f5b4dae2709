"""What nodes of loop nests and programs say of themselves: a RANGE how it runs, an access what it touches.

`UOp` derives from `NestNode`. Which loops end at a node, and inside which it stands, `uop.py` knows.
"""
from __future__ import annotations

from typing import Any, Self

from tinygrad.graph.ops import Ops, RangeKind


class NestNode:
    """A node of a loop nest."""

    __slots__ = ()
    op: Ops
    src: tuple[Self, ...]
    arg: Any

    @property
    def identity(self) -> int:
        """The number that a RANGE is known by in its nest."""
        number: int = self.arg[0]
        return number

    @property
    def kind(self) -> RangeKind:
        """How the iterations of a RANGE run."""
        kind: RangeKind = self.arg[1]
        return kind

    @property
    def address(self) -> Self:
        """The INDEX of a LOAD or a STORE, and of itself."""
        return self if self.op is Ops.INDEX else self.src[0]

    @property
    def memory(self) -> Self:
        """The memory that a LOAD, a STORE or an INDEX is about, or a register that has no items."""
        address = self.address
        return address.src[0] if address.op is Ops.INDEX else address

    @property
    def offset(self) -> Self:
        """Which item of that memory."""
        return self.address.src[1]

    @property
    def mask(self) -> Self | None:
        """The condition under which a LOAD or a STORE touches its memory; None: always."""
        src = self.address.src
        return src[2] if len(src) == 3 else None
