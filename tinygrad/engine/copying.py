"""Copies from device to device: what a step copies, and which queue makes it. Used by `realize.py` and
`replay.py`."""
from __future__ import annotations

from tinygrad.device import Buffer, Device
from tinygrad.device.queue import CommandQueue
from tinygrad.graph.uop import UOp


def copied_from(ast: UOp) -> int:
    """The item of its source at which a COPY of a part of it begins."""
    return int(ast.src[0].st.views[0].offset)


def queue_for_copy(target: Buffer, source: Buffer) -> CommandQueue:
    """The queue that copies: the target's, unless only the source's device has memory of its own."""
    from_device = Device[source.device]
    if from_device.exchanges:
        return from_device.copies
    if target.is_on_host and from_device.computes and not source.is_on_host:
        return from_device.copies
    return Device[target.device].copies
