"""Rows of `functional/fourier.py` and `signals.py`: complex numbers are real and imaginary parts here."""

from __future__ import annotations

from typing import Any

from tinygrad.dtype import dtypes

from .table import Input, Row, case, positive, torch

WIDE = (dtypes.float32, dtypes.float64)
PAIRS = (case((5, 2)), case((1, 2)), case((3, 4, 2)),
         case(Input((2, 3, 6), lambda x: x.permute((1, 2, 0))), name="permuted"))
REALS = (case((5,)), case((1,)), case((3, 4)),
         case(Input((3, 6), lambda x: x.permute((1, 0))), name="permuted"))
LONG = (case((2, 120, 2)), case((2, 131, 2)), case((503, 2)))


def as_complex(x: Any) -> Any:
    return torch.complex(x[..., 0], x[..., 1])


def transform(name: str, *args: Any, cases: Any, label: str = "", **options: Any) -> Row:
    """`torch.fft`'s function of complex numbers, of both, or of real ones."""
    ulps = options.pop("ulps", 16)
    takes_real = name.startswith(("rfft", "ihfft"))
    theirs = getattr(torch.fft, name)

    def called(x: Any) -> Any:
        found = theirs(x if takes_real else as_complex(x), *args, **options)
        return torch.view_as_real(found.resolve_conj()) if found.is_complex() else found
    label = f"{name} {label} {args or ''} {options or ''}"
    return Row(" ".join(label.split()), lambda x: getattr(x, name)(*args, **options), called, WIDE, cases,
               ulps=ulps)


TRANSFORMS = [
    *(transform(name, cases=PAIRS) for name in ("fft", "ifft")),
    *(transform(name, cases=PAIRS[:4], dim=0) for name in ("fft", "ifft")),
    *(transform(name, cases=REALS) for name in ("rfft", "ihfft")),
    *(transform(name, n, dim, norm, cases=PAIRS[2:4])
      for name in ("fft", "ifft", "irfft", "hfft") for n, dim, norm in ((6, 0, "ortho"), (2, -2, "forward"))),
    *(transform(name, n, dim, norm, cases=REALS[2:4])
      for name in ("rfft", "ihfft") for n, dim, norm in ((6, 0, "ortho"), (3, -2, "forward"))),
    *(transform(name, cases=PAIRS[2:4]) for name in ("irfft", "hfft")),
    *(transform(name, 7, cases=PAIRS[:4]) for name in ("irfft", "hfft")),
    *(transform("fft", cases=(c,), label=f"of {c.name}", ulps=256) for c in LONG),
    *(transform(name, cases=PAIRS[2:4]) for name in ("fftn", "ifftn", "fft2", "ifft2", "irfftn", "irfft2")),
    *(transform(name, cases=REALS[2:4]) for name in ("rfftn", "rfft2")),
    *(transform(name, (3, 5), (1, 0), "ortho", cases=PAIRS[2:3])
      for name in ("fftn", "ifftn", "fft2", "ifft2", "irfftn", "irfft2")),
    *(transform(name, (3, -1), cases=REALS[2:3]) for name in ("rfftn", "rfft2")),
    *(Row(f"{name} {axes}", lambda x, n=name, a=axes: getattr(x, n)(a),
          lambda x, n=name, a=axes: getattr(torch.fft, n)(x, a), WIDE, (case((5, 4)), case((3, 2, 4))))
      for name in ("fftshift", "ifftshift") for axes in (None, 0, (0, 1))),
]


def over_time(n: int, cases: Any, hop: int | None = None, size: int | None = None, label: str = "",
              **options: Any) -> Row:
    """`stft`; the second operand is the window."""
    def theirs(x: Any, *window: Any) -> Any:
        return torch.view_as_real(torch.stft(x, n, hop, size, *window, return_complex=True, **options))
    return Row(f"stft {label}".strip(), lambda x, *window: x.stft(n, hop, size, *window, **options), theirs,
               WIDE, cases, ulps=32)


def and_back(n: int, cases: Any, hop: int | None = None, size: int | None = None, label: str = "",
             **options: Any) -> Row:
    return Row(f"istft {label}".strip(), lambda x, w: x.istft(n, hop, size, w, **options),
               lambda x, w: torch.istft(as_complex(x), n, hop, size, w, **options), WIDE, cases,
               ulps=64)


WINDOW = Input((8,), values=positive)
SHORT = Input((5,), values=positive)
SIGNALS = (case((2, 19), WINDOW), case((16,), WINDOW))
OVER_TIME = [
    over_time(8, SIGNALS), over_time(8, (case((2, 19), SHORT),), 3, 5, label="of short windows"),
    over_time(8, (case((2, 19)),), label="without a window"),
    over_time(8, SIGNALS, center=False, normalized=True, onesided=False, label="whole"),
    over_time(7, (case((2, 19)),), 2, pad_mode="constant", label="odd"),
    *(Row(f"stft padded {mode}", lambda x, m=mode: x.stft(8, pad_mode=m),
          lambda x, m=mode: torch.view_as_real(torch.stft(
              x[None], 8, window=torch.ones(8, dtype=x.dtype), pad_mode=m, return_complex=True))[0],
          WIDE, (case((19,)),), ulps=32) for mode in ("replicate", "circular")),
    and_back(8, (case((2, 5, 6, 2), WINDOW), case((5, 6, 2), WINDOW))),
    and_back(8, (case((2, 5, 6, 2), SHORT),), 2, 5, label="of short windows"),
    and_back(8, (case((2, 8, 6, 2), WINDOW),), 3, onesided=False, center=False, normalized=True,
             label="whole"),
    and_back(7, (case((4, 6, 2), Input((7,), values=positive)),), 2, length=9, label="cut"),
    and_back(8, (case((5, 6, 2), WINDOW),), length=40, label="filled up"),
]
ROWS = [*TRANSFORMS, *OVER_TIME]
