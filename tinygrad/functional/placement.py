"""Where tensors are: on a device, or spread over several.

A tensor is moved by a COPY in its graph. In: a tensor and names of devices. Out: another tensor of the same
value there; those whose names end in an underscore move the tensor itself, and its gradient.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.device import canonical_device
from tinygrad.dtype import DType
from tinygrad.functional.mesh import Mesh
from tinygrad.functional.movement import axis_of
from tinygrad.graph.leaf_tensors import is_leaf
from tinygrad.graph.sharding import Devices, Sharding
from tinygrad.graph.sizes import Size
from tinygrad.helpers import exclusive

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def to(self: Tensor, device: Devices | Tensor | DType | None = None, dtype: DType | None = None,
       non_blocking: bool = True) -> Tensor:
    """This tensor on another device, the default one for None; whole on each of several. One that is on
    several is gathered.

    Of another tensor it takes the device and the dtype; a dtype, alone or second, is cast to, as in PyTorch.
    Copies never wait, whatever `non_blocking` says.
    """
    from tinygrad.tensor import Tensor

    if isinstance(device, DType):
        return self.cast(device)
    if dtype is not None:
        return (self if device is None else to(self, device)).cast(dtype)
    if isinstance(device, Tensor):
        return to(self, device.device).cast(device.dtype)
    if device == self.device:
        return self
    place = canonical_device(device)
    if place == self.device:
        return self
    result = type(self).of(self.uop if self.uop.device is None else self.uop.copy_to(place), self)
    result._device = place
    result._requires_grad = self._requires_grad
    return result


@exclusive
def to_(self: Tensor, device: Devices | None) -> Tensor:
    """Move this tensor (and its gradient) to another device, and return it."""
    _move(self, self.to(device))
    if self._grad is not None:
        self._grad.to_(device)
    return self


def shard(self: Tensor, devices: Sequence[str], axis: int | None = None) -> Tensor:
    """This tensor on several devices: cut along `axis` into parts as equal as can be (sizes that differ
    by one, the larger first), or whole on each of them where that is None.

    devices: their names, or a mesh (`nn.parallel.Mesh`), or some axes of one, `mesh["data"]`: then this is
    said of the devices along those, and what is cut along the other axes of the mesh stays so. Shape, dtype
    and values stay; `device` is the tuple of names. What is computed from it is computed on all of them,
    each its part; `docs/several_devices.md` says how. Raises ValueError for names that come twice, and for
    an axis with fewer items than devices.

    >>> t = Tensor([[1, 2], [3, 4], [5, 6]]).shard(("CPU", "CPU:1"), axis=0)
    >>> t.device, (t * 2).sum(0).tolist()
    (('CPU', 'CPU:1'), [18, 24])
    """
    place = canonical_device(devices)
    if axis is not None and self.ndim == 0:
        raise ValueError("a 0-d tensor has no axis to cut; shard(devices) puts it on each of them")
    cut = None if axis is None else axis_of("shard", self, axis)
    if isinstance(place, str):
        return self.to(place)
    lines = devices.lines if isinstance(devices, Mesh) else ()
    count = len(lines[0]) if lines else len(place)
    if cut is not None and (isinstance(self.shape[cut], Size) or self.shape[cut] < count):
        raise ValueError(f"shard along axis {cut} of shape {self.shape}: the axis must be of known size, "
                         f"and have an item for each of the {count} devices")
    return _spread(self, Sharding(place, cut, lines))


def _spread(self: Tensor, sharding: Sharding) -> Tensor:
    source = self.uop if self.uop.device is not None else self.uop.copy_to(self.device)
    result = type(self).of(source.shard(sharding), self)
    result._requires_grad = self._requires_grad
    return result


@exclusive
def shard_(self: Tensor, devices: Sequence[str], axis: int | None = None) -> Tensor:
    """Spread this tensor (and its gradient) over several devices as `shard` does, and return it."""
    _move(self, self.shard(devices, axis))
    if self._grad is not None:
        self._grad.shard_(devices, axis)
    return self


def shard_like(self: Tensor, y: Tensor) -> Tensor:
    """This tensor where `y` is: on its device, or over several, cut as `y` is or whole on each. Raises
    ValueError for tensors of other sizes along an axis that is cut.

    >>> rows = Tensor.zeros(4, 2).shard(("CPU", "CPU:1"), axis=0)
    >>> Tensor.ones(4, 2).shard_like(rows).device
    ('CPU', 'CPU:1')
    """
    if isinstance(y.device, tuple):
        cuts = y._cuts
        if any(c.axis >= self.ndim or self.shape[c.axis] != y.shape[c.axis] for c in cuts):
            raise ValueError(f"shard_like of shape {self.shape}: the other is cut along axis "
                             f"{', '.join(str(c.axis) for c in cuts)} of shape {y.shape}")
        return _spread(self, Sharding(y.device, cuts=cuts))
    return self.to(y.device)


def _move(self: Tensor, moved: Tensor) -> None:
    """Stand for `moved`, this tensor's value on other devices; a leaf stays one."""
    if moved is self:
        return
    was_leaf = is_leaf(self.uop)
    self.uop = moved.uop
    self._device = moved._device
    if was_leaf or self._requires_grad:
        self._become_leaf()
