"""Copies from device to device: what a step copies, and which queue makes it.

In: a step whose node is a COPY or a COLLECTIVE, and the devices of its memory. Out: what this process does of
it (`Transfer`), and the queue that does it. Next: `realize.py` and `replay.py`, which give it to that queue.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple

from tinygrad.device import Buffer, Device
from tinygrad.device.queue import BlockCopy, ByteRegion, CollectiveGroup, CommandQueue
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import BlockMove, shape_of_blocks
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.copies import starts_of_parts


class Transfer(NamedTuple):
    """What this process does of a COPY or COLLECTIVE."""

    target: int
    """the number, among the memories of the step, of the one that it fills"""
    source: int
    start: int
    """the item of the source at which what it gives begins"""
    group: CollectiveGroup | None
    """of a COLLECTIVE: who takes part, and how"""
    filled: tuple[int, int] | None = None
    """of a COPY that fills a part of its target only: the item at which that begins, and how many it has"""


def transfer_of(ast: UOp, devices: Sequence[str]) -> Transfer:
    """What this process does of a step over memory on `devices`; of a collective of others, what one of them
    does."""
    starts = starts_of_parts(ast)
    if ast.op is Ops.COPY:
        return Transfer(0, 1, starts[0], None, (starts[1], ast.numel) if len(starts) > 1 else None)
    group = CollectiveGroup(tuple(devices[len(starts):]), *_what_of(ast))
    own = next((i for i, device in enumerate(group.devices) if Device[device].runs), 0)
    return Transfer(own, len(starts) + own, starts[own], group)


def _what_of(ast: UOp) -> tuple[str, tuple[BlockCopy, ...]]:
    """What a COLLECTIVE does: the name of an operation, and what each gets of each."""
    _, what, *number = ast.arg
    if not number:
        return what.name if what else "", ()
    takers = [shape_of_blocks(what, i) for i in range(len(ast.src))]
    return "", tuple(BlockCopy(b.giver, b.taker, *block_regions(
        b.sizes, (ast.src[b.giver].shape, b.given), (takers[b.taker], b.taken), itemsize=ast.dtype.itemsize))
        for b in starmap(BlockMove, what))


def block_regions(sizes: Sequence[int], *places: tuple[Sequence[int], Sequence[int]], itemsize: int
                  ) -> list[ByteRegion]:
    """Where a block of some sizes lies in values of some shapes, each from some item on: as runs of bytes
    that have the same length in all of them.

    >>> for region in block_regions((2, 3), ((2, 6), (0, 3)), ((2, 3), (0, 0)), itemsize=4):
    ...     print(*region)
    12 (2,) (24,) 12
    0 (2,) (12,) 12
    """
    inner = len(sizes)  # from this axis on it is one run
    while inner > 0 and all(shape[inner:] == tuple(sizes[inner:]) for shape, _ in places):
        inner -= 1
    run = prod(sizes[inner:]) * itemsize
    found = []
    for shape, starts in places:
        strides = [prod(shape[axis + 1:]) * itemsize for axis in range(len(shape))]
        start = sum(at * stride for at, stride in zip(starts, strides, strict=True))
        found.append(ByteRegion(start, tuple(sizes[:inner]), tuple(strides[:inner]), run))
    return found


def queue_for_copy(target: Buffer, source: Buffer) -> CommandQueue:
    """The queue that copies: the target's, unless only the source's device has memory of its own. Within a
    device it is the one of its kernels, for which nothing has to wait."""
    from_device = Device[source.device]
    if target.device == source.device and not from_device.exchanges:
        return from_device.queue
    has_own_memory = target.is_on_host and from_device.computes and not source.is_on_host
    return from_device.copies if from_device.exchanges or has_own_memory else Device[target.device].copies
