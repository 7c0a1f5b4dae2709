"""Layers that are made without the size of their input and take it from the first: `LazyLinear`,
`LazyConv2d`, ...

With the first call such a layer becomes one of the class that it stands for, and has parameters from then on.
So a model is called once before its parameters are asked for (`nn.state` says so).
"""
from __future__ import annotations

import inspect
from typing import Any, ClassVar

from tinygrad.nn import layers
from tinygrad.tensor import Tensor


class LazyLayer:
    """What a layer is made with, but for the size of its input."""

    becomes: ClassVar[type[Any]]
    axis: ClassVar[int]
    """of the input, that has that size"""
    has_no_parameters_yet = True

    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        given = inspect.signature(self.becomes).bind(1, *args, **options).arguments
        self.options = self.defaults | dict(list(given.items())[1:])

    def __call__(self, x: Tensor) -> Any:
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"{type(self).__name__} takes an input with an axis {self.axis}, got {x.shape}")
        made = self.becomes(x.shape[self.axis], **self.options)
        self.__class__, self.__dict__ = type(made), vars(made)
        return made(x)


def _lazy(kind: type[Any], name: str, axis: int, **defaults: Any) -> type[LazyLayer]:
    return type(f"Lazy{name}", (LazyLayer,), {
        "becomes": kind, "axis": axis, "defaults": defaults, "__module__": __name__,
        "__doc__": f"`{name}` of as many features as its first input has, made with its other arguments."})


LazyLinear = _lazy(layers.Linear, "Linear", -1)
LazyConv1d = _lazy(layers.Conv1d, "Conv1d", -2)
LazyConv2d = _lazy(layers.Conv2d, "Conv2d", -3)
LazyConv3d = _lazy(layers.Conv3d, "Conv3d", -4)
LazyConvTranspose1d = _lazy(layers.ConvTranspose1d, "ConvTranspose1d", -2)
LazyConvTranspose2d = _lazy(layers.ConvTranspose2d, "ConvTranspose2d", -3)
LazyConvTranspose3d = _lazy(layers.ConvTranspose3d, "ConvTranspose3d", -4)
LazyBatchNorm1d = _lazy(layers.BatchNorm1d, "BatchNorm1d", 1)
LazyBatchNorm2d = _lazy(layers.BatchNorm2d, "BatchNorm2d", 1)
LazyBatchNorm3d = _lazy(layers.BatchNorm3d, "BatchNorm3d", 1)
LazyInstanceNorm1d = _lazy(layers.InstanceNorm1d, "InstanceNorm1d", -2, affine=True, track_running_stats=True)
LazyInstanceNorm2d = _lazy(layers.InstanceNorm2d, "InstanceNorm2d", -3, affine=True, track_running_stats=True)
LazyInstanceNorm3d = _lazy(layers.InstanceNorm3d, "InstanceNorm3d", -4, affine=True, track_running_stats=True)
