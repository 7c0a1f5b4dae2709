"""Signals over time: windows, and Fourier transforms of what windows show (`stft`), and back (`istft`).

Windows are computed by the host, in float64. Of complex numbers the real and imaginary parts lie along a last
axis of 2, as in `fourier`.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DTypeLike, dtypes
from tinygrad.functional.casts import as_real
from tinygrad.functional.fourier import fft, irfft, rfft
from tinygrad.functional.windows import sliding_windows
from tinygrad.graph.sharding import Devices

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Array = np.ndarray[Any, Any]


# --- windows ------------------------------------------------------------------------------------------------


def turns(size: int, periodic: bool) -> Array:
    """Where each item of a window is, from 0 to 1, its last; a `periodic` window is a step longer, without
    its last one."""
    if size < 0:
        raise ValueError(f"a window has 0 items or more, not {size}")
    try:
        return np.arange(size) / max(1, size if periodic else size - 1)
    except (MemoryError, ValueError):
        raise MemoryError(f"no memory for a window of shape ({size},)") from None


def cosines(size: int, periodic: bool, weights: Sequence[float]) -> Array:
    """The sum of weights * cos(2 pi k t), k from 0 on. One item is 1, where the formula divides by zero."""
    angles = 2 * np.pi * turns(size, periodic)
    values: Array = np.sum([w * np.cos(k * angles) for k, w in enumerate(weights)], axis=0)
    return np.ones(1) if size == 1 else values


def _made(values: Array, dtype: DTypeLike | None, device: Devices | None) -> Tensor:
    from tinygrad.tensor import Tensor

    return Tensor(values, device, dtype or dtypes.default_float, requires_grad=False)


def hann_window(window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
                device: Devices | None = None) -> Tensor:
    """Hann's window, (1 - cos(2 pi t)) / 2; `periodic` ones are for transforms, others are symmetric.

    >>> Tensor.hann_window(4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    return _made(cosines(window_length, periodic, (0.5, -0.5)), dtype, device)


def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
                   dtype: DTypeLike | None = None, device: Devices | None = None) -> Tensor:
    """Hamming's window, alpha - beta cos(2 pi t)."""
    return _made(cosines(window_length, periodic, (alpha, -beta)), dtype, device)


def blackman_window(window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
                    device: Devices | None = None) -> Tensor:
    """Blackman's window, 0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t)."""
    return _made(cosines(window_length, periodic, (0.42, -0.5, 0.08)), dtype, device)


def bartlett_window(window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
                    device: Devices | None = None) -> Tensor:
    """Bartlett's window, a triangle.

    >>> Tensor.bartlett_window(5, periodic=False).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    triangle = 1 - np.abs(2 * turns(window_length, periodic) - 1)
    return _made(np.ones(1) if window_length == 1 else triangle, dtype, device)


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *,
                  dtype: DTypeLike | None = None, device: Devices | None = None) -> Tensor:
    """Kaiser's window, I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta)."""
    width = np.sqrt(1 - (2 * turns(window_length, periodic) - 1) ** 2)
    return _made(np.ones(1) if window_length == 1 else np.i0(beta * width) / np.i0(beta), dtype, device)


# --- transforms over time -----------------------------------------------------------------------------------


def _window_of(name: str, x: Tensor, n_fft: int, hop_length: int | None, win_length: int | None,
               window: Tensor | None) -> tuple[int, Tensor]:
    """How far windows are apart, and the window with zeros around it, (n_fft,)."""
    size = n_fft if win_length is None else win_length
    hop = n_fft // 4 if hop_length is None else hop_length
    if not 0 < size <= n_fft or hop < 1:
        raise ValueError(f"{name} takes 0 < win_length <= n_fft and hop_length > 0, got {size}, {n_fft} and "
                         f"{hop}")
    if window is not None and window.shape != (size,):
        raise ValueError(f"{name} takes a window of {size} items, got shape {window.shape}")
    values = type(x).ones(size, dtype=x.dtype, device=x.device) if window is None else window
    before = (n_fft - size) // 2
    return hop, values.pad((before, n_fft - size - before))


def _refuse_complex(name: str, return_complex: bool | None) -> None:
    if return_complex:
        raise ValueError(f"{name}: there are no complex numbers here, but real and imaginary parts along a "
                         "last axis of 2; leave return_complex away")


def stft(self: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
         window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect",
         normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None
         ) -> Tensor:
    """The transforms of windows of `n_fft` items, `hop_length` (n_fft // 4) apart: (n,) or (batch, n) to
    (..., n_fft // 2 + 1, windows, 2), real and imaginary parts last; all n_fft frequencies unless `onesided`.

    `window`, (win_length,), weighs the items in the middle of each. `center`: the windows begin n_fft // 2
    items before the signal, padded by `pad_mode`. `normalized` divides by the root of n_fft.

    >>> Tensor.ones(8).stft(4, center=False)[0].tolist()
    [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]
    """
    _refuse_complex("stft", return_complex)
    if self.ndim not in (1, 2):
        raise ValueError(f"stft takes signals (n,) or (batch, n), got shape {self.shape}")
    x = as_real(self)
    hop, weights = _window_of("stft", x, n_fft, hop_length, win_length, window)
    rows = x.reshape(-1, 1, x.shape[-1])
    if center:
        rows = rows.pad((n_fft // 2, n_fft // 2), pad_mode)
    if rows.shape[-1] < n_fft:
        raise ValueError(f"stft of windows of {n_fft} items takes a signal as long, got {rows.shape[-1]}")
    frames = sliding_windows(rows, (n_fft,), (hop,), (1,)) * weights  # (batch, 1, windows, n_fft)
    norm = "ortho" if normalized else None
    if onesided is False:
        made = fft(frames.stack(frames.zeros_like(), dim=-1), norm=norm)
    else:
        made = rfft(frames, norm=norm)
    made = made.squeeze(1).transpose(1, 2)
    return made.squeeze(0) if self.ndim == 1 else made


def istft(self: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
          window: Tensor | None = None, center: bool = True, normalized: bool = False,
          onesided: bool | None = None, length: int | None = None, return_complex: bool = False) -> Tensor:
    """The signal, (n,) or (batch, n), whose `stft` is nearest this, (..., frequencies, windows, 2) (Griffin
    and Lim, 1984): the windows' signals, weighed and added up where they lie, by the sum of squared weights.
    Where those are zeros, it is NaN. `length` cuts it, or fills it up with zeros.

    >>> x = Tensor([1.0, 2.0, 3.0, 4.0])
    >>> x.stft(2, 1).istft(2, 1).numpy().round(4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    _refuse_complex("istft", return_complex)
    frequencies = n_fft if onesided is False else n_fft // 2 + 1
    if self.ndim not in (3, 4) or self.shape[-1] != 2 or self.shape[-3] != frequencies or not self.shape[-2]:
        raise ValueError(f"istft of windows of {n_fft} items takes (..., {frequencies}, windows, 2), got "
                         f"shape {self.shape}")
    x = as_real(self)
    hop, weights = _window_of("istft", x, n_fft, hop_length, win_length, window)
    halves = x[..., :n_fft // 2 + 1, :, :].transpose(-2, -3)
    frames = irfft(halves.reshape(-1, *halves.shape[-3:]), n_fft, norm="ortho" if normalized else None)
    signal = _added_up(frames * weights, hop)
    total = _added_up((weights * weights).expand(1, *frames.shape[1:]), hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else signal.shape[-1] - start
    made = signal[:, start:end] / total[:, start:end]
    if length is not None:
        made = made.pad((0, length - made.shape[-1]))
    return made.squeeze(0) if self.ndim == 3 else made


def _added_up(frames: Tensor, hop: int) -> Tensor:
    """(batch, windows, n) with each window `hop` items behind the one before: the transpose of windows."""
    from tinygrad.functional.transforms import vjp

    batch, number, n = frames.shape
    whole = type(frames).zeros(batch, n + hop * (number - 1), dtype=frames.dtype, device=frames.device)
    _, pull = vjp(lambda x: sliding_windows(x, (n,), (hop,), (1,)), whole)
    added: Tensor = pull(frames)[0]
    return added
