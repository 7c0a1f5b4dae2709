"""Values of tensors on the host: the memory that holds them, computed, and what of it is known already.

`Tensor.numpy`, `item` and the like read through it; printing shows what is known and computes nothing.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import Buffer, Device
from tinygrad.engine.realize import check_reading, realize_uops
from tinygrad.graph.leaf_tensors import constant_value, storage_view
from tinygrad.graph.sizes import is_symbolic, largest_shape, shape_value
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

MOST_PRINTED_BYTES = 1 << 20
"""What is copied from a device to print some of it."""


def memory_read(self: Tensor) -> Buffer:
    """The memory of the value in row-major order, all of it and nothing else."""
    capture = check_reading(self._result)
    if capture is not None:
        with capture.suspended():
            return memory_read(self)
    if isinstance(self.device, tuple):
        first = self.device[0]
        return memory_read(self.to("CPU" if Device[first].exchanges else first))
    if not Device[self.device].computes or Device[self.device].exchanges:
        return memory_read(self.to("CPU"))
    view: UOp | None = self._computed_now()
    if view is not None and view.contiguous() is not view:
        packed = view.contiguous()
        realize_uops([packed])
        view = packed.realized_view
    if view is None or view.base.buffer is None:
        raise RuntimeError(f"{self!r} was computed but has no memory")
    return view.base.buffer


def items_in(self: Tensor, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What of flat memory, laid out for the largest sizes, are items of the value."""
    if not is_symbolic(self.shape):
        return memory.reshape(self.shape)
    whole = memory.reshape(largest_shape(self.shape))
    return whole[tuple(slice(size) for size in shape_value(self.shape))]


def known_values(self: Tensor) -> np.ndarray[Any, Any] | None:
    """The values, where they can be had without computing and cheaply."""
    constant = constant_value(self.uop)
    if constant is not None:
        return np.full(shape_value(self.shape), constant, self.dtype.numpy)
    if isinstance(self.device, tuple):
        return _known_shards(self)
    view = storage_view(self.uop)
    buffer = None if view is None or view.contiguous() is not view else view.base.buffer
    if buffer is None or not buffer.is_allocated:
        return None
    device = Device[buffer.device]
    if device.exchanges:
        return None
    worth_copying = buffer.nbytes <= MOST_PRINTED_BYTES and device.computes and device.runs
    if buffer.as_bytes() is None and not worth_copying:
        return None
    return items_in(self, buffer.numpy())


def _known_shards(self: Tensor) -> np.ndarray[Any, Any] | None:
    """The values of memory on several devices, put together of what is known of its pieces."""
    view = storage_view(self.uop)
    if view is None or view.contiguous() is not view or view.has_sizes:
        return None
    layout = view.base.arg.layout
    found = np.empty(layout.shape, self.dtype.numpy)
    by_box = {layout.box(number): shard for number, shard in enumerate(view.base.shards)}
    for box, shard in by_box.items():
        known = known_values(type(self).leaf(shard, requires_grad=False))
        if known is None:
            return None
        found[tuple(slice(*span) for span in box)] = known
    return found.reshape(self.shape)
