"""Signals: Fourier transforms, windows, mel filters."""
from __future__ import annotations

import math

import numpy as np

from tinygrad.dtype import accumulate_dtype
from tinygrad.functional.fourier import fitted, real_of_half, transformed
from tinygrad.functional.signals import cosines
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Array, element_type
from tinygrad.tensor import Tensor


def fourier(x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of the last axis but one of (..., n, 1 or 2), real and imaginary parts along the last."""
    parts = x.transpose(-1, -2).cast(accumulate_dtype(x.dtype))
    if onesided and inverse:  # of the half that real signals have
        made = real_of_half(parts, length, inverse)
    else:
        made = transformed(fitted(parts, length), inverse, length // 2 + 1 if onesided else length)
    made = made.transpose(-1, -2)
    return (made / length if inverse else made).cast(x.dtype)


def _transformed(input: Tensor, length: int | None, axis: int, inverse: int, onesided: int) -> Tensor:
    if input.ndim < 2 or input.shape[-1] not in (1, 2):
        raise ValueError("the last axis has real parts, or real and imaginary ones: 1 or 2 items, got shape "
                         f"{input.shape}")
    if not -input.ndim <= axis < input.ndim - 1 or axis == -1:
        raise IndexError(f"axis {axis} is none of the {input.ndim - 1} before the last of {input.ndim}")
    if length is not None and length < 1:
        raise ValueError(f"dft_length is >= 1, got {length}")
    axis %= input.ndim
    order = [i for i in range(input.ndim - 1) if i != axis] + [axis, input.ndim - 1]
    moved = input.permute(order)
    size = length or (2 * (moved.shape[-2] - 1) if onesided and inverse else moved.shape[-2])
    made = fourier(moved, size, bool(inverse), bool(onesided))
    return made.permute(sorted(range(input.ndim), key=order.__getitem__))


@op
def DFT_17(input: Tensor, dft_length: int | None = None, *, axis: int = 1, inverse: int = 0,
           onesided: int = 0) -> Tensor:
    return _transformed(input, dft_length, axis, inverse, onesided)


@op
def DFT_20(input: Tensor, dft_length: int | None = None, axis: int | None = None, *, inverse: int = 0,
           onesided: int = 0) -> Tensor:
    return _transformed(input, dft_length, -2 if axis is None else axis, inverse, onesided)


@op
def STFT(signal: Tensor, frame_step: int, window: Tensor | None = None, frame_length: int | None = None, *,
         onesided: int = 1) -> Tensor:
    """Transforms of windows along a signal: (batch, n, 1 or 2), or (batch, n) as PyTorch exports real ones,
    to (batch, frames, frequencies, 2)."""
    signal = signal.unsqueeze(-1) if signal.ndim == 2 else signal
    size = frame_length or (signal.shape[1] if window is None else window.shape[0])
    if size < 1:
        raise ValueError(f"frame_length is >= 1, got {size}")
    frames = signal.unfold(1, size, frame_step).transpose(-1, -2)  # (batch, frames, size, parts)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    return fourier(frames, size, False, bool(onesided) and signal.shape[-1] == 1)


def _window(size: int, periodic: int, output_datatype: int, weights: tuple[float, ...]) -> Array:
    """As `cosines`; one item is 1, as in NumPy and SciPy."""
    return cosines(max(size, 0), bool(periodic), weights).astype(element_type(output_datatype))


@op
def HannWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _window(size, periodic, output_datatype, (0.5, -0.5))


@op
def HammingWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _window(size, periodic, output_datatype, (25 / 46, -21 / 46))


@op
def BlackmanWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _window(size, periodic, output_datatype, (0.42, -0.5, 0.08))


@op
def MelWeightMatrix(num_mel_bins: int, dft_length: int, sample_rate: int, lower_edge_hertz: float,
                    upper_edge_hertz: float, *, output_datatype: int = 1) -> Array:
    """Triangles between frequencies that are equally far apart in mel(f) = 2595 log10(1 + f/700), the last
    one a step below the upper edge (as the standard's own test has it)."""
    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    low_edge, high_edge = mel(lower_edge_hertz), mel(upper_edge_hertz)
    edges = low_edge + np.arange(num_mel_bins + 2) * ((high_edge - low_edge) / (num_mel_bins + 2))
    hertz = 700 * (10 ** (edges / 2595) - 1)
    bins = np.floor((dft_length + 1) * hertz / sample_rate).astype(np.int64)
    made = np.zeros((dft_length // 2 + 1, num_mel_bins))
    for i in range(num_mel_bins):
        low, centre, high = bins[i:i + 3]
        rising, falling = np.arange(low, centre + 1), np.arange(centre, high)
        made[rising, i] = 1 if low == centre else (rising - low) / (centre - low)
        if high > centre:
            made[falling, i] = (high - falling) / (high - centre)
    return made.astype(element_type(output_datatype))
