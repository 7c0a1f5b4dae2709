"""Values of tensors on the host: the memory that holds them, computed, and what of it is known already.

`Tensor.numpy`, `item` and the like read through it; printing shows what is known and computes nothing.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import Device
from tinygrad.engine.capture import check_reading
from tinygrad.engine.realize import realize_uops
from tinygrad.graph.leaf_tensors import constant_value, storage_view
from tinygrad.graph.sizes import is_symbolic, largest_shape, shape_value
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.tensor.live import PendingWrites

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

MOST_READ = 1 << 12
"""Items up to which a view is read where it lies: `numpy()` takes 12 us then, 36 by a kernel (Zen 4)."""
MOST_PRINTED_BYTES = 1 << 20
"""What is copied from a device to print some of it."""


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """The values as a new NumPy array (bfloat16 and fp8 as ml_dtypes' types), wherever they are and whatever
    gradients flow there: nothing has to be forced."""
    constant, shape = constant_value(self._result), shape_value(self.shape)
    if constant is not None or prod(shape) == 0:
        return np.full(shape, 0 if constant is None else constant, self.dtype.numpy)
    return np.asarray(items_in(self, values_read(self)), order="C")


def tolist(self: Tensor) -> Any:
    """The values as (nested) lists of Python numbers; a single number for a 0-d tensor."""
    return numpy(self).tolist()


def item(self: Tensor) -> Any:
    """The value of a tensor of one item, as a Python number."""
    if prod(shape_value(self.shape)) != 1:
        raise RuntimeError(f"item() takes a tensor of one item, this one has shape {self.shape}")
    constant = constant_value(self._result)
    return values_read(self)[0].item() if constant is None else numpy(self).item()


def as_float(self: Tensor) -> float:
    """`float(x)` of a tensor of one item."""
    return float(item(self))


def as_int(self: Tensor) -> int:
    """`int(x)` of a tensor of one item."""
    return int(item(self))


def as_bool(self: Tensor) -> bool:
    """`bool(x)` of a tensor of one item. Raises RuntimeError for others."""
    if prod(shape_value(self.shape)) != 1:
        raise RuntimeError(f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or "
                           ".all()")
    return bool(item(self))


def as_index(self: Tensor) -> int:
    """A tensor of one integer where Python takes an index. Raises TypeError for others."""
    if self.dtype.is_float or prod(shape_value(self.shape)) != 1:
        raise TypeError(f"an index is a tensor of one integer, got {self.dtype} of shape {self.shape}")
    return int(item(self))


def computed(self: Tensor) -> UOp:
    """The memory of the value, as a view of a BUFFER: computed, with what is pending written."""
    capture = check_reading(self._result)
    if capture is not None:
        with capture.suspended():
            return computed(self)
    return computed_now(self)


def computed_now(self: Tensor) -> UOp:
    """As `computed`, outside of what is being traced."""
    if self._given_up:
        raise RuntimeError("this gradient was given up; see Tensor.grad")
    together = _gradients_together(self) if self._left_together else []
    if together or not self._is_realized:
        self.realize(*together, *([] if self._uop.has_sizes else _new_weights()))
    view = storage_view(self._result)
    if view is None:
        raise RuntimeError(f"{self!r} was computed but has no memory")
    return view


def _new_weights() -> list[Tensor]:
    """What is to be written into tensors with gradients: computed from these, as a loss that is read is."""
    return [t for t in PendingWrites.shown() if t._left is not None and not t._uop.has_sizes]


def keep_gradients_of(asked: Tensor) -> None:
    """A gradient that somebody asks for is computed before what it depends on is overwritten, and so are
    those that were left together with it: who trains asks for one after the other."""
    for reference in asked._left_together:
        if (gradient := reference()) is not None and not gradient._given_up:
            gradient._may_be_invalidated = False


def _gradients_together(self: Tensor) -> list[Tensor]:
    """The gradients to compute where this one is read: to compute another one later, alone, would take most
    of a step. Those that nobody asked for are among them if this is one."""
    found = [gradient for reference in self._left_together if (gradient := reference()) is not None]
    return [g for g in found if not g._given_up and g._may_be_invalidated <= self._may_be_invalidated]


def values_read(self: Tensor) -> np.ndarray[Any, Any]:
    """The items in row-major order, as a new flat array."""
    capture = check_reading(self._result)
    if capture is not None:
        with capture.suspended():
            return values_read(self)
    if isinstance(self.device, tuple):
        first = self.device[0]
        return values_read(self.to("CPU" if Device[first].exchanges else first))
    if not Device[self.device].computes or Device[self.device].exchanges:
        return values_read(self.to("CPU"))
    view: UOp | None = self._computed_now()
    if view is not None and view.contiguous() is not view:
        few = _few_items(view)
        if few is not None:
            return few
        packed = view.contiguous()
        realize_uops([packed])
        view = packed.realized_view
    if view is None or view.base.buffer is None:
        raise RuntimeError(f"{self!r} was computed but has no memory")
    return view.base.buffer.copied()


def _few_items(view: UOp) -> np.ndarray[Any, Any] | None:
    """The items of a view of memory that the host can touch, where they are few: they are read sooner than a
    kernel that packs them begins."""
    memory = view.base.buffer
    if memory is None or view.has_sizes or prod(view.shape) > MOST_READ or len(view.st.views) > 1:
        return None
    (part,) = view.st.views
    known = memory.as_bytes() if part.mask is None else None
    if known is None:
        return None
    bytes_each = memory.dtype.itemsize
    items: np.ndarray[Any, Any] = np.ndarray(part.shape, memory.dtype.numpy, known, part.offset * bytes_each,
                                             [stride * bytes_each for stride in part.strides])
    return items.flatten()


def items_in(self: Tensor, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What of flat memory, laid out for the largest sizes, are items of the value."""
    if not is_symbolic(self.shape):
        return memory.reshape(self.shape)
    whole = memory.reshape(largest_shape(self.shape))
    return whole[tuple(slice(size) for size in shape_value(self.shape))]


def known_values(self: Tensor) -> np.ndarray[Any, Any] | None:
    """The values, where they can be had without computing and cheaply."""
    constant = constant_value(self._result)
    if constant is not None:
        return np.full(shape_value(self.shape), constant, self.dtype.numpy)
    if isinstance(self.device, tuple):
        return _known_shards(self)
    view = storage_view(self._result)
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
