"""Convolution by its definition, in NumPy."""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


# --- references -------------------------------------------------------------------------------------


def reference_windows(x: Array, kernel: tuple[int, ...], stride: int = 1, dilation: int = 1) -> Array:
    """The windows over the last axes, one slice at a time."""
    axes = len(kernel)
    lead, sizes = x.shape[:-axes], x.shape[-axes:]
    outs = tuple((n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(sizes, kernel, strict=True))
    windows = np.empty((*lead, *outs, *kernel), x.dtype)
    for at in itertools.product(*(range(o) for o in outs)):
        places: Any = tuple(slice(o * stride, o * stride + dilation * (k - 1) + 1, dilation)
                       for o, k in zip(at, kernel, strict=True))
        window: Any = (..., *at, *(slice(None),) * axes)
        windows[window] = x[(..., *places)]
    return windows


def reference_conv(x: Array, weight: Array, bias: Array | None = None, groups: int = 1, stride: int = 1,
                   dilation: int = 1, pads: tuple[tuple[int, int], ...] | None = None) -> Array:
    """Convolution as a loop over groups of a product summed over channels and window."""
    axes = weight.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *(pads or ((0, 0),) * axes)))
    windows = reference_windows(x, weight.shape[2:], stride, dilation)
    c_in, c_out = weight.shape[1], weight.shape[0] // groups
    outs = []
    for g in range(groups):
        part = windows[:, g * c_in:(g + 1) * c_in]
        kernel = weight[g * c_out:(g + 1) * c_out]
        summed = (1, *range(2 + axes, 2 + 2 * axes))
        outs.append(np.moveaxis(np.tensordot(part, kernel, (summed, range(1, 2 + axes))), -1, 1))
    out = np.concatenate(outs, axis=1)
    return out if bias is None else out + bias.reshape(1, -1, *(1,) * axes)
