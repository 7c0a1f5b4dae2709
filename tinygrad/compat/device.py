"""What scripts written for tinygrad import from `tinygrad.device`."""
from __future__ import annotations

from tinygrad.device import Device
from tinygrad.dtype import DType

__all__ = ["is_dtype_supported"]


def is_dtype_supported(dtype: DType, device: str | None = None) -> bool:
    """Whether kernels of a device (the default one, unless given) compute with `dtype`. Raises what opening
    the device raises.

    >>> from tinygrad import dtypes
    >>> is_dtype_supported(dtypes.bfloat16, "CPU")
    True
    """
    return Device[Device.DEFAULT if device is None else device].has_dtype(dtype)
