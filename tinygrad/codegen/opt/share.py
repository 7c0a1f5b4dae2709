"""Operands that the threads of a block load together into shared memory, each item once.

In: a nest, an operand of its contractions, and the ranges of one block's tile of it. Out: the nest, in which
the operand is a STAGE in shared memory, filled by all threads of the block, neighbours with neighbouring
items, and read from there by each thread as it needs it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.codegen.contraction import narrower
from tinygrad.codegen.predicate import mask_loads_along
from tinygrad.codegen.ranges import fresh_identity
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod


@dataclass(frozen=True)
class SharedTile:
    """How a tile is filled and how it lies in memory.

    Threads that read one item each of several rows have a bank conflict where rows are as long as the banks
    are many. So rows are swizzled: after every `rows` rows the items of a row begin `shift` items later, and
    those at the end come first.
    """

    threads: int
    """that fill it"""
    width: int
    """items that a thread loads at once"""
    rows: int = 1
    shift: int = 0

    def swizzled(self, counters: Sequence[UOp], extents: Sequence[int], back: bool = False) -> UOp:
        """Where the last counter's item is in its row; `back`, which item is there."""
        last = counters[-1]
        if not self.shift:
            return last
        swizzle = counters[-2] // self.rows * (self.shift % extents[-1])
        return (last + swizzle * (extents[-1] - 1 if back else 1)) % extents[-1]


def share_operand(nest: UOp, operand: UOp, over: Sequence[UOp], how: SharedTile) -> UOp:
    """`operand` computed once a block for all iterations of the ranges `over`, which lie in shared memory in
    their order."""
    extents = [r.extent for r in over]
    total = int(prod(extents))
    if extents[-1] % how.width:
        raise ValueError(f"rows of {extents[-1]} items are no multiple of {how.width}")
    if how.shift and (len(over) < 2 or how.shift % how.width):
        raise ValueError("rows are swizzled by whole accesses, where there are several")
    value = narrower(operand) or operand  # it is kept as narrow as it is
    identity = fresh_identity(nest)
    rounds = ceildiv(total, how.threads * how.width)
    fill = UOp.range(rounds, identity, RangeKind.LOOP) if rounds > 1 else UOp.const(0, dtypes.index)
    thread = UOp.range(how.threads, identity + 1, RangeKind.LOCAL)
    lane = UOp.const(0, dtypes.index)
    if how.width > 1:
        lane = UOp.range(how.width, identity + 2, RangeKind.VECTOR)
    item = (fill * how.threads + thread) * how.width + lane
    counters: list[UOp] = []
    stride = 1
    for extent in reversed(extents):
        counters.insert(0, item // stride % extent)
        stride *= extent
    counters[-1] = how.swizzled(counters, extents, back=True)
    filled = value.substitute(dict(zip(over, counters, strict=True)))
    if rounds * how.threads * how.width > total:
        filled = mask_loads_along(filled, item < total)
    stage = filled.stage(identity, Memory.SHARED, *(r for r in (fill, thread, lane) if r.op is Ops.RANGE))
    offset = UOp.const(0, dtypes.index)
    for counter, extent in zip((*over[:-1], how.swizzled(over, extents)), extents, strict=True):
        offset = offset * extent + counter
    read = stage.index(offset).load()
    return nest.substitute({operand: read if value is operand else read.cast(operand.dtype)})
