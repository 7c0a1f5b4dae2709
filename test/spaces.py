"""What random programs in one space of axes are made of: values that have every axis of it, in full or of
size 1, each a tensor beside what it should be."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tinygrad import Tensor

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65)


@dataclass
class Both:
    """A tensor and the same values by NumPy or PyTorch, with every axis of the space."""

    tensor: Tensor
    reference: Any
    rounded: int = 0
    """rounded values that each one is a sum of"""

    def map(self, function: Callable[[Any], Any], rounded: int = 0) -> Both:
        return Both(function(self.tensor), function(self.reference), max(self.rounded, rounded))

    def with_(self, other: Both, function: Callable[[Any, Any], Any]) -> Both:
        return Both(function(self.tensor, other.tensor), function(self.reference, other.reference),
                    max(self.rounded, other.rounded))

    @property
    def exact(self) -> bool:
        return not self.rounded


class Space:
    """Axes, and where a program's choices and numbers come from."""

    shape: list[int]

    def __init__(self, seed: int, device: str | None) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.device = device

    def along(self, axes: set[int]) -> list[int]:
        """The shape of a value that has these axes in full."""
        return [n if i in axes else 1 for i, n in enumerate(self.shape)]

    def counter(self, axis: int) -> Both:
        """The number of each item along an axis."""
        shape = self.along({axis})
        return Both(Tensor.arange(self.shape[axis], device=self.device).reshape(shape),
                    np.arange(self.shape[axis]).reshape(shape))
