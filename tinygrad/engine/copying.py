"""Copies from device to device: what a step copies, and which queue makes it. Used by `realize.py` and
`replay.py`."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinygrad.device import Buffer, Device
from tinygrad.device.queue import CollectiveGroup, CommandQueue
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
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


def transfer_of(ast: UOp, devices: Sequence[str]) -> Transfer:
    """What this process does of a step over memory on `devices`; of a collective of others, what one of them
    does."""
    starts = starts_of_parts(ast)
    if ast.op is Ops.COPY:
        return Transfer(0, 1, starts[0], None)
    group = CollectiveGroup(tuple(devices[len(starts):]), ast.arg[1].name if ast.arg[1] else "")
    own = next((i for i, device in enumerate(group.devices) if Device[device].runs), 0)
    return Transfer(own, len(starts) + own, starts[own], group)


def queue_for_copy(target: Buffer, source: Buffer) -> CommandQueue:
    """The queue that copies: the target's, unless only the source's device has memory of its own."""
    from_device = Device[source.device]
    if from_device.exchanges:
        return from_device.copies
    if target.is_on_host and from_device.computes and not source.is_on_host:
        return from_device.copies
    return Device[target.device].copies
