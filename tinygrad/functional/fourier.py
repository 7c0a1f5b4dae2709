"""Fourier transforms in n log n steps: `fft`, `rfft`, `irfft`, ..., with the arguments of `torch.fft`.

There are no complex numbers here. Where PyTorch has some, these have their real and imaginary parts along a
last axis of 2, as `torch.view_as_real` gives them; `dim` counts the other axes. What is real is as it is.

An axis of n = r m items is a matrix of r rows: r x r products transform its columns, factors turn the
results, and the rows, of m items, are transformed in the same way (Cooley and Tukey, 1965). The matrices are
small and their products what the compiler is good at. Where a prime factor is large, the transform is a
convolution with a chirp, done by transforms of another size (Bluestein, 1970). Angles are computed by the
host, in float64.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType, DTypeLike, accumulate_dtype, dtypes
from tinygrad.functional.casts import as_real
from tinygrad.functional.linalg import einsum
from tinygrad.functional.movement import axes_of
from tinygrad.graph.sharding import Devices

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Array = np.ndarray[Any, Any]
Axes = int | Sequence[int] | None

PASS = 32
"""What passing over all items once more costs, in rows of a matrix: 2^20 items take 12 ms in five passes of
16 rows each, and as many in four of 32, on two cores with AVX-512"""
MOST_ROWS = 128
SMOOTH = (1, 3, 5, 9, 15)
"""A convolution has one of these times a power of two items"""


# --- the transform of one axis ------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def radices(n: int) -> tuple[int, tuple[int, ...]]:
    """The cheapest way to cut n into factors, and what it costs an item; n itself where it is prime."""
    best: tuple[int, tuple[int, ...]] = (n + PASS, (n,))
    for r in range(2, min(MOST_ROWS, n // 2) + 1):
        if n % r == 0:
            cost, others = radices(n // r)
            best = min(best, (r + PASS + cost, (r, *others)))
    return best


def convolution_size(n: int) -> int:
    """Items that a circular convolution takes to give n results of n numbers."""
    return min(k << max(0, (-(-(2 * n - 1) // k) - 1).bit_length()) for k in SMOOTH)


def is_by_chirps(n: int) -> bool:
    """Whether a convolution is cheaper: two transforms of more items."""
    size = convolution_size(n)
    return radices(n)[0] > 2 * size / n * radices(size)[0]


def turned(steps: Array, n: int, inverse: bool) -> Array:
    """cos and sin of 2 pi steps / n, whole numbers both, of the other way round unless `inverse`: of angles
    up to an eighth of a turn, and mirrored."""
    steps = (steps if inverse else -steps) % n
    quarter = (8 * steps + n) // (2 * n)
    angle = np.pi / 2 * ((4 * steps - quarter * n) / n)
    cos, sin = np.cos(angle), np.sin(angle)
    parts = [cos, -sin, -cos, sin], [sin, cos, -sin, -cos]
    return np.stack([np.choose(quarter % 4, part) + 0.0 for part in parts])  # -0.0 is 0.0


@lru_cache(maxsize=32)
def _products(rows: int, outs: int, inverse: bool, dtype: DType) -> Array:
    """The matrix of a transform, (part of what goes in, part of what comes out, result, item)."""
    cos, sin = turned(np.outer(np.arange(outs), np.arange(rows)), rows, inverse)
    return np.array([[cos, sin], [0 - sin, cos]]).astype(dtype.numpy)


@lru_cache(maxsize=16)
def _turns(rows: int, columns: int, inverse: bool, dtype: DType) -> Array:
    """(cos or sin, row, column) of the angles between the passes."""
    return turned(np.outer(np.arange(rows), np.arange(columns)), rows * columns, inverse).astype(dtype.numpy)


@lru_cache(maxsize=8)
def _chirp(n: int, inverse: bool, dtype: DType) -> tuple[Array, Array]:
    """cos and sin of pi k k / n, and the transform of the other way round, to convolve with."""
    cos, sin = turned(np.arange(n) ** 2, 2 * n, inverse)
    size = convolution_size(n)
    around = np.zeros(size, np.complex128)
    around[:n] = cos - 1j * sin
    around[size - n + 1:] = around[n - 1:0:-1]
    made = np.fft.fft(around)
    return np.array([cos, sin]).astype(dtype.numpy), np.array([made.real, made.imag]).astype(dtype.numpy)


def _table(values: Array, x: Tensor) -> Tensor:
    return type(x)(values, x.device, requires_grad=False)


def _times(x: Tensor, factors: Tensor, axis: int) -> Tensor:
    """Products of complex numbers: the parts of `factors` lie along its first axis, those of x along `axis`;
    x may have its real parts alone."""
    cos, sin = factors[0], factors[1]
    if x.shape[axis] == 1:
        return (x * cos).cat(x * sin, dim=axis)
    signs = (type(x).arange(2, device=x.device) * 2 - 1).cast(x.dtype)
    signs = signs.reshape([-1] + [1] * (x.ndim - axis % x.ndim - 1))
    return x * cos + x.flip(axis) * (signs * sin)


def transformed(x: Tensor, inverse: bool, outs: int | None = None, real_only: bool = False) -> Tensor:
    """The transform, not divided by anything, of (..., parts, n): 1 part of real numbers or 2; of the result
    the first `outs` numbers, and both parts or `real_only`."""
    n = x.shape[-1]
    kept = n if outs is None else outs
    if is_by_chirps(n):
        return _by_chirps(x, inverse)[..., :1 if real_only else 2, :kept]
    factors = radices(n)[1]
    lead = x.ndim - 2
    done, rest = 1, n
    for number, r in enumerate(factors):
        is_last = number == len(factors) - 1
        rest //= r
        parts = x.shape[lead]
        grid = x.reshape(*x.shape[:lead], parts, done, r, rest)
        results = kept if len(factors) == 1 else r
        matrix = _products(r, results, inverse, x.dtype)[:parts, :1 if is_last and real_only else 2]
        grid = einsum("...cjrm,cdkr->...djkm", grid, _table(matrix, x))
        if not is_last:  # in memory, and turned: as a part of the next product it would be computed r times
            grid = _times(grid.contiguous(), _table(_turns(r, rest, inverse, x.dtype), x), lead).contiguous()
        done *= results
        x = grid.reshape(*x.shape[:lead], grid.shape[lead], done, rest)
    if len(factors) == 1:
        return x.squeeze(-1)
    digits = x.reshape(*x.shape[:-2], *factors)
    order = [*range(lead + 1), *reversed(range(lead + 1, digits.ndim))]
    return digits.permute(order).reshape(*x.shape[:-2], n)[..., :kept]


def _by_chirps(x: Tensor, inverse: bool) -> Tensor:
    """j k = (j^2 + k^2 - (k - j)^2) / 2, so that a transform is a convolution between two products."""
    n, axis = x.shape[-1], x.ndim - 2
    size = convolution_size(n)
    chirp, around = (_table(values, x) for values in _chirp(n, inverse, x.dtype))
    spectrum = transformed(fitted(_times(x, chirp, axis), size), inverse=False)
    convolved = transformed(_times(spectrum, around, axis), inverse=True)[..., :n]
    return _times(convolved, chirp, axis) / size


def fitted(x: Tensor, n: int) -> Tensor:
    """The first n items of the last axis, or zeros behind what there are."""
    size = x.shape[-1]
    return x[..., :n] if n <= size else x.pad((0, n - size))


def real_of_half(x: Tensor, n: int, inverse: bool) -> Tensor:
    """The n real numbers, (..., 1, n), whose transform begins with (..., parts, n // 2 + 1) and mirrors that:
    each but the first and, of an even n, the last of it counts twice."""
    counts = np.full(n // 2 + 1, 2)
    counts[0] = 1
    counts[n // 2:] = 1 if n % 2 == 0 else counts[n // 2:]
    half = fitted(x, n // 2 + 1) * _table(counts.astype(x.dtype.numpy), x)
    return transformed(fitted(half, n), inverse, real_only=True)


# --- by PyTorch's names -------------------------------------------------------------------------------------


def _pairs(name: str, x: Tensor) -> Tensor:
    """`x`, whose last axis has real and imaginary parts."""
    if x.ndim < 2 or x.shape[-1] != 2:
        raise ValueError(f"{name} takes real and imaginary parts along a last axis of 2, behind the axes to "
                         f"transform, got shape {x.shape}; rfft and ihfft take real numbers")
    return as_real(x)


def _axis_last(name: str, x: Tensor, n: int | None, dim: int, is_complex: bool, parts_of_half: bool = False
               ) -> tuple[Tensor, int, int]:
    """(..., parts, items) of the axis to transform, its number, and how many items are asked for."""
    number = x.ndim - 1 if is_complex else x.ndim
    if not -number <= dim < number:
        raise IndexError(f"{name}: axis {dim} is out of range for {number} axes")
    axis = dim % number
    size = n if n is not None else 2 * (x.shape[axis] - 1) if parts_of_half else x.shape[axis]
    if size < 1:
        raise ValueError(f"{name} takes n >= 1 items, got {size}")
    rows = x.movedim(axis, -1) if is_complex else x.movedim(axis, -1).unsqueeze(-2)
    return rows.cast(accumulate_dtype(x.dtype)), axis, size


def _scaled(name: str, made: Tensor, n: int, norm: str | None, inverse: bool) -> Tensor:
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f'{name} takes norm="backward", "ortho" or "forward", got {norm!r}')
    divides = norm == "forward" if not inverse else norm in (None, "backward")
    return made / n if divides else made / n ** 0.5 if norm == "ortho" else made


def _of_pairs(name: str, x: Tensor, n: int | None, dim: int, norm: str | None, inverse: bool) -> Tensor:
    x = _pairs(name, x)
    rows, axis, size = _axis_last(name, x, n, dim, True)
    made = _scaled(name, transformed(fitted(rows, size), inverse), size, norm, inverse)
    return made.cast(x.dtype).movedim(-1, axis)


def _of_real(name: str, x: Tensor, n: int | None, dim: int, norm: str | None, inverse: bool) -> Tensor:
    x = as_real(x)
    rows, axis, size = _axis_last(name, x, n, dim, False)
    made = _scaled(name, transformed(fitted(rows, size), inverse, size // 2 + 1), size, norm, inverse)
    return made.cast(x.dtype).movedim(-1, axis)


def _to_real(name: str, x: Tensor, n: int | None, dim: int, norm: str | None, inverse: bool) -> Tensor:
    x = _pairs(name, x)
    rows, axis, size = _axis_last(name, x, n, dim, True, parts_of_half=True)
    made = _scaled(name, real_of_half(rows, size, inverse).squeeze(-2), size, norm, inverse)
    return made.cast(x.dtype).movedim(-1, axis)


def fft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform along an axis, of `n` items: as many as there are, unless given; more
    are zeros. Takes and gives real and imaginary parts, (..., n, 2). `norm` divides the result: "backward"
    (None) that of `ifft` by n, "forward" that of `fft`, "ortho" each by the root of n. Raises ValueError for
    another last axis than of 2.

    >>> Tensor([[1.0, 0.0], [2.0, 0.0]]).fft().tolist()
    [[3.0, 0.0], [-1.0, 0.0]]
    """
    return _of_pairs("fft", self, n, dim, norm, inverse=False)


def ifft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """What `fft` gives this for: (..., n, 2) again.

    >>> Tensor([[3.0, 0.0], [-1.0, 0.0]]).ifft().tolist()
    [[1.0, 0.0], [2.0, 0.0]]
    """
    return _of_pairs("ifft", self, n, dim, norm, inverse=True)


def rfft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """As `fft`, of real numbers (..., n): the half that the other half mirrors, (..., n // 2 + 1, 2).

    >>> Tensor([1.0, 2.0]).rfft().tolist()
    [[3.0, 0.0], [-1.0, 0.0]]
    """
    return _of_real("rfft", self, n, dim, norm, inverse=False)


def irfft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """What `rfft` gives this for: real numbers (..., n), of (..., n // 2 + 1, 2); an even n unless given.

    >>> Tensor([[3.0, 0.0], [-1.0, 0.0]]).irfft().tolist()
    [1.0, 2.0]
    """
    return _to_real("irfft", self, n, dim, norm, inverse=True)


def hfft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform (..., n) of numbers of which this, (..., n // 2 + 1, 2), is the half that the other
    one mirrors."""
    return _to_real("hfft", self, n, dim, norm, inverse=False)


def ihfft(self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """What `hfft` gives this for: (..., n // 2 + 1, 2), of real numbers (..., n)."""
    return _of_real("ihfft", self, n, dim, norm, inverse=True)


def _several(name: str, number: int, s: Sequence[int] | None, dim: Axes
             ) -> list[tuple[int, int | None]]:
    """(axis, size to take, None for its own) of each axis to transform, of so many."""
    axes = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
    if axes is None:
        axes = list(range(number)) if s is None else list(range(-len(s), 0))
    sizes: list[int | None] = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    if len(sizes) != len(axes) or len({axis % max(number, 1) for axis in axes}) != len(axes) or not axes:
        raise ValueError(f"{name} takes axes, each once, and a size for each, got dim={dim} and s={s}")
    return list(zip(axes, sizes, strict=True))


def fftn(self: Tensor, s: Sequence[int] | None = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """`fft` along several axes, or all but that of the parts, of sizes `s`."""
    for axis, size in _several("fftn", self.ndim - 1, s, dim):
        self = _of_pairs("fftn", self, size, axis, norm, inverse=False)
    return self


def ifftn(self: Tensor, s: Sequence[int] | None = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """`ifft` along several axes, as `fftn`."""
    for axis, size in _several("ifftn", self.ndim - 1, s, dim):
        self = _of_pairs("ifftn", self, size, axis, norm, inverse=True)
    return self


def rfftn(self: Tensor, s: Sequence[int] | None = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """`rfft` along the last of several axes, or of all, then `fft` along the others."""
    *others, (last, size) = _several("rfftn", self.ndim, s, dim)
    found = _of_real("rfftn", self, size, last, norm, inverse=False)
    for axis, size in others:
        found = _of_pairs("rfftn", found, size, axis, norm, inverse=False)
    return found


def irfftn(self: Tensor, s: Sequence[int] | None = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """`ifft` along all but the last of several axes, or of all, then `irfft` along that one."""
    *others, (last, last_size) = _several("irfftn", self.ndim - 1, s, dim)
    for axis, size in others:
        self = _of_pairs("irfftn", self, size, axis, norm, inverse=True)
    return _to_real("irfftn", self, last_size, last, norm, inverse=True)


def fft2(self: Tensor, s: Sequence[int] | None = None, dim: Axes = (-2, -1), norm: str | None = None
         ) -> Tensor:
    """`fftn` along two axes."""
    return fftn(self, s, dim, norm)


def ifft2(self: Tensor, s: Sequence[int] | None = None, dim: Axes = (-2, -1), norm: str | None = None
          ) -> Tensor:
    """`ifftn` along two axes."""
    return ifftn(self, s, dim, norm)


def rfft2(self: Tensor, s: Sequence[int] | None = None, dim: Axes = (-2, -1), norm: str | None = None
          ) -> Tensor:
    """`rfftn` along two axes."""
    return rfftn(self, s, dim, norm)


def irfft2(self: Tensor, s: Sequence[int] | None = None, dim: Axes = (-2, -1), norm: str | None = None
           ) -> Tensor:
    """`irfftn` along two axes."""
    return irfftn(self, s, dim, norm)


# --- frequencies --------------------------------------------------------------------------------------------


def _frequencies(steps: Array, n: int, d: float, dtype: DTypeLike | None, device: Devices | None) -> Tensor:
    from tinygrad.tensor import Tensor

    if n < 1:
        raise ValueError(f"frequencies of n >= 1 items, got {n}")
    return Tensor(steps / (n * d), device, dtype or dtypes.default_float, requires_grad=False)


def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Devices | None = None
            ) -> Tensor:
    """The frequency of each result of `fft` of n items that are `d` apart, (n,).

    >>> Tensor.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies((np.arange(n) + n // 2) % max(n, 1) - n // 2, n, d, dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Devices | None = None
             ) -> Tensor:
    """The frequency of each result of `rfft` of n items that are `d` apart, (n // 2 + 1,).

    >>> Tensor.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies(np.arange(n // 2 + 1), n, d, dtype, device)


def _shifted(name: str, x: Tensor, dim: Axes, sign: int) -> Tensor:
    axes = axes_of(name, x, dim)
    return x.roll([sign * (x.shape[axis] // 2) for axis in axes], axes) if axes else x


def fftshift(self: Tensor, dim: Axes = None) -> Tensor:
    """Items of some axes, or all, moved by half of them, so that frequency 0 is in the middle. An axis of
    real and imaginary parts is one of them: then say which.

    >>> Tensor.fftfreq(4).fftshift().tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted("fftshift", self, dim, 1)


def ifftshift(self: Tensor, dim: Axes = None) -> Tensor:
    """The reverse of `fftshift`."""
    return _shifted("ifftshift", self, dim, -1)
