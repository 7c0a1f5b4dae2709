"""What programs written for PyTorch ask of any tensor, and of complex numbers, where all are real."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinygrad.dtype import dtypes
from tinygrad.functional.casts import as_real
from tinygrad.functional.pytorch_names import mT

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def is_complex(self: Tensor) -> bool:
    """False: there are no complex numbers here."""
    return False


def conj(self: Tensor) -> Tensor:
    """The tensor itself, which has real numbers."""
    return self


def mH(self: Tensor) -> Tensor:
    """`mT`: matrices (..., m, n) as (..., n, m)."""
    return mT(self)


def isreal(self: Tensor) -> Tensor:
    """True for each item."""
    return self.ones_like(dtype=dtypes.bool)


def angle(self: Tensor) -> Tensor:
    """The angle of a real number in the plane: pi below 0, else 0; NaN of NaN.

    >>> Tensor([-1.0, 2.0]).angle().tolist()
    [3.1415927410125732, 0.0]
    """
    x = as_real(self).detach()
    return x.isnan().where(x, (x < 0).where(math.pi, x.zeros_like()))


def is_signed(self: Tensor) -> bool:
    """Whether the dtype has negative numbers.

    >>> Tensor([1.0]).is_signed(), Tensor([1], dtype="uint8").is_signed()
    (True, False)
    """
    return self.dtype.is_float or (self.dtype.is_int and not self.dtype.is_unsigned)


def is_nonzero(self: Tensor) -> bool:
    """Whether the only item is not 0. Computes it.

    >>> Tensor([[0.5]]).is_nonzero()
    True
    """
    if self.numel() != 1:
        raise ValueError(f"is_nonzero takes a tensor of one item, got shape {self.shape}")
    return bool(self.item() != 0)


def is_same_size(self: Tensor, other: Tensor) -> bool:
    """Whether both have one shape."""
    return self.shape == other.shape


def is_cuda(self: Tensor) -> bool:
    """Whether the tensor is on a GPU of NVIDIA's."""
    return all(name.split(":")[0] == "CUDA" for name in _devices(self))


def is_cpu(self: Tensor) -> bool:
    """Whether the tensor is in the memory of the processor."""
    return all(name.split(":")[0] in ("CPU", "PYTHON") for name in _devices(self))


def _devices(x: Tensor) -> tuple[str, ...]:
    return x.device if isinstance(x.device, tuple) else (x.device,)


def get_device(self: Tensor) -> int:
    """The number of the device, -1 on a processor.

    >>> Tensor([1.0], device="CPU").get_device()
    -1
    """
    _, _, number = _devices(self)[0].partition(":")
    return -1 if is_cpu(self) else int(number or 0)
