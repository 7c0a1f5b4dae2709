"""Signals: Fourier transforms, windows, mel filters."""
from __future__ import annotations

import math

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Array, element_type, tensor_type
from tinygrad.tensor import Tensor


def _waves(rows: int, columns: int, period: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi * row * column / period: looked up in one turn of them, by the product modulo the
    period."""
    turn = 2 * math.pi * np.arange(period) / period
    wide = dtypes.int32 if rows * columns < 1 << 31 else dtypes.int64
    row = Tensor.arange(rows, dtype=wide, device=x.device).unsqueeze(1)
    place = (row * Tensor.arange(columns, dtype=wide, device=x.device)) % period
    cos, sin = (Tensor(f(turn), x.device, dtype=x.dtype, requires_grad=False) for f in (np.cos, np.sin))
    return cos[place], sin[place]


def fourier(x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of the last axis but one of (..., n, 1 or 2), real and imaginary parts along the last."""
    x = x.shrink_to(*[None] * (x.ndim - 2), min(length, x.shape[-2]), None)
    if onesided and inverse:  # of the half that real signals have: the other half mirrors it
        half = x.pad([*[(0, 0)] * (x.ndim - 2), (0, max(0, length // 2 + 1 - x.shape[-2])), (0, 0)])
        half = half.shrink_to(*[None] * (x.ndim - 2), length // 2 + 1, None)
        mirrored = half[..., 1:(length + 1) // 2, :].flip(-2) * Tensor([1.0, -1.0], x.device, dtype=x.dtype,
                                                                      requires_grad=False)
        x = half.cat(mirrored, dim=-2)
    else:
        x = x.pad([*[(0, 0)] * (x.ndim - 2), (0, length - x.shape[-2]), (0, 0)])
    outs = length // 2 + 1 if onesided and not inverse else length
    cos, sin = _waves(length, outs, length, x)
    sin = sin if inverse else -sin
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    parts = [real @ cos, real @ sin]
    if imaginary is not None:
        parts = [parts[0] - imaginary @ sin, parts[1] + imaginary @ cos]
    made = parts[0].unsqueeze(-1) if onesided and inverse else parts[0].stack(parts[1], dim=-1)
    return made / length if inverse else made


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


def _window(size: int, periodic: int, output_datatype: int, weights: tuple[float, ...]) -> Tensor:
    """The sum of weights * cos(2 pi k n / N), k from 0 on; `periodic` ones are one step of a longer
    period. One item is 1, as in NumPy and SciPy, where the formula divides by zero."""
    kind = tensor_type(element_type(output_datatype))
    period = size if periodic else size - 1
    if period <= 0:
        return Tensor.ones(max(size, 0), dtype=kind, requires_grad=False)
    steps = Tensor.arange(size).cast(dtypes.float32) * (2 * math.pi / period)
    total = weights[0] + sum((steps * k).cos() * w for k, w in enumerate(weights[1:], 1))
    assert isinstance(total, Tensor)
    return total.cast(kind)


@op
def HannWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, periodic, output_datatype, (0.5, -0.5))


@op
def HammingWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, periodic, output_datatype, (25 / 46, -21 / 46))


@op
def BlackmanWindow(size: int, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
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
