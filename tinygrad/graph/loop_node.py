"""The nodes of a loop nest, by the names of their parts: a loop's identity and kind, an access's memory and
offset.

`UOp` derives from it. The arguments themselves are in `graph/spec.py`.
"""
from __future__ import annotations

from typing import Any, Self

from tinygrad.graph.ops import Ops, RangeKind


class LoopNode:
    """What a RANGE is called and how it runs; what a LOAD or STORE touches."""

    __slots__ = ()
    op: Ops
    arg: Any
    src: tuple[Self, ...]

    @property
    def identity(self) -> int:
        """The number that a RANGE is known by."""
        number: int = self.arg[0]
        return number

    @property
    def kind(self) -> RangeKind:
        """How a RANGE runs."""
        kind: RangeKind = self.arg[1]
        return kind

    @property
    def memory(self) -> Self:
        """What a LOAD or STORE reads or writes: the memory that its address is in, or a register."""
        address = self.src[0]
        return address.src[0] if address.op is Ops.INDEX else address

    @property
    def offset(self) -> Self:
        """Which item of its memory a LOAD or STORE reads or writes."""
        return self.src[0].src[1]
