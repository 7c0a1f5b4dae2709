"""Casts and bitcasts between all pairs of dtypes, with what NaN, infinities and numbers out of range become.

The meaning, which `Tensor.cast` documents: integers to integers keep the low bits; to bool, zero is False;
floats to integers round toward zero, stop at the ends of the range, and NaN is 0; floats to narrower floats
round to the nearest, ties to even, and overflow to infinity, or to NaN in fp8e4m3, which has no infinity.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.dtype import DType, dtypes

Array = np.ndarray[Any, Any]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def values_of(dtype: DType) -> Array:
    """All values of a narrow dtype; of a wide one ends, powers of two and neighbours, and random bits."""
    if dtype.is_bool:
        return np.array([False, True])
    bits = UNSIGNED[dtype.itemsize]
    if dtype.itemsize <= 2:
        return np.arange(1 << dtype.bits, dtype=np.uint32).astype(bits).view(dtype.numpy)
    patterns = np.random.default_rng(dtype.bits).integers(0, 1 << dtype.bits, 500, np.uint64).astype(bits)
    found = patterns.view(dtype.numpy)
    if dtype.is_int:
        powers = np.array([1 << i for i in range(dtype.bits)], np.uint64).astype(bits)
        halves = powers + (powers >> 8)  # between two neighbours in bfloat16
        edges = np.concatenate([powers, powers - 1, powers + 1, halves, halves - 1, halves + 1])
        edges = np.concatenate([edges, -edges]).view(dtype.numpy)
    else:
        powers = np.float64(2) ** np.arange(-160, 160)
        steps = np.concatenate([powers, powers * (1 + 2.0**-23), powers * (1 - 2.0**-24), powers * 1.5])
        halves = np.arange(-70000, 70000, 111) / 2
        special = [
            0.0,
            np.nan,
            np.inf,
            1e300,
            2.0**63,
            2.0**64,
            2.0**31 - 1,
            255.5,
            256,
            127.9,
            65519,
            65520,
            464,
            465,
            448.1,
        ]
        with np.errstate(over="ignore"):
            edges = np.concatenate([steps, -steps, halves, special, np.negative(special)]).astype(dtype.numpy)
    return np.concatenate([found, edges])


def expected_cast(x: Array, target: DType) -> Array:
    """The meaning in the module's docstring."""
    with np.errstate(all="ignore"):
        if target.is_bool:
            return x.astype(bool) if x.dtype.kind in "biu" else x.astype(np.float64) != 0
        if x.dtype.kind in "biu" or target.is_float:
            return _to_float(x, target) if target.is_float else x.astype(target.numpy)
        low, high = int(target.min), int(target.max)
        numbers = np.trunc(x.astype(np.float64)).tolist()
        return np.array(
            [0 if v != v else low if v <= low else high if v >= high else int(v) for v in numbers],
            target.numpy,
        )


def _to_float(x: Array, target: DType) -> Array:
    """Rounded once; ml_dtypes would round float64 and integers to its types by way of float32."""
    if target.numpy.kind == "f":
        return x.astype(target.numpy)
    if x.dtype.itemsize <= 2:
        return x.astype(np.float32).astype(target.numpy)
    wide = x.astype(np.longdouble)
    to_odd = wide.astype(np.float32)
    inexact = (to_odd.astype(np.longdouble) != wide) & np.isfinite(to_odd)
    bits = to_odd.view(np.uint32)
    too_far = inexact & (np.abs(to_odd.astype(np.longdouble)) > np.abs(wide))
    bits = np.where(
        too_far, bits - 1, bits
    )  # toward zero, then the last bit set: the second rounding sees the rest
    return np.where(inexact, bits | 1, bits).astype(np.uint32).view(np.float32).astype(target.numpy)


def assert_same(found: Array, expected: Array, label: str) -> None:
    """Equal bits, except that any NaN is a NaN."""
    assert found.dtype == expected.dtype
    bits = UNSIGNED[found.dtype.itemsize]
    same = found.view(bits) == expected.view(bits)
    if found.dtype.kind not in "biu":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            same |= np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    wrong = np.flatnonzero(~same)[:5]
    assert not len(wrong), f"{label}: {found[wrong]} where {expected[wrong]} is meant"


@pytest.mark.parametrize("source", dtypes.all, ids=lambda d: d.name)
def test_casts_to_every_dtype(source: DType) -> None:
    x = values_of(source)
    t = Tensor(x)
    casts = [t.cast(target).contiguous() for target in dtypes.all]
    casts[0].realize(*casts[1:])
    for target, result in zip(dtypes.all, casts, strict=True):
        found = result.numpy()
        expected = expected_cast(x, target)
        failing = [
            f"{v!r} -> {f!r}, not {e!r}"
            for v, f, e in zip(x, found, expected, strict=True)
            if not (f == e or (f != f and e != e))
        ][:5]
        assert not failing, f"{source.name} to {target.name}: {'; '.join(failing)}"
        assert_same(found, np.ascontiguousarray(expected), f"{source.name} to {target.name}")


OTHER_DEVICES = [
    pytest.param(source, device, marks=[] if source in (dtypes.float32, dtypes.fp8e4m3) else pytest.mark.slow)
    for source in dtypes.all
    for device in ("CPU:C", "PYTHON")
]


@pytest.mark.parametrize(("source", "device"), OTHER_DEVICES, ids=str)
def test_casts_to_every_dtype_on_other_devices(source: DType, device: str) -> None:
    """One kernel: the results' bits, side by side. Of the 65,536 values of wide types some hundreds."""
    x = values_of(source)
    x = x[:: 1 + len(x) // 1500]
    t = Tensor(x, device=device)
    casts = [t.cast(target) for target in dtypes.all]
    bits = [c if c.dtype.is_bool else c.bitcast(f"uint{c.dtype.bits}") for c in casts]
    wide = [b.cast(dtypes.uint64) for b in bits]
    found = wide[0].stack(*wide[1:]).numpy()
    for target, row in zip(dtypes.all, found, strict=True):
        values = row.astype(UNSIGNED[target.itemsize]).view(target.numpy)
        expected = np.ascontiguousarray(expected_cast(x, target))
        assert_same(values, expected, f"{source.name} to {target.name} on {device}")


@pytest.mark.parametrize("source", dtypes.all[1:], ids=lambda d: d.name)
def test_bitcasts_keep_every_bit(source: DType) -> None:
    bits = np.random.default_rng(1).integers(0, 256, 16 * 24, np.uint8)
    x = bits.view(source.numpy).reshape(2, -1)
    targets = [d for d in dtypes.all[1:]]
    results = [Tensor(x).bitcast(d).contiguous() for d in targets]
    results[0].realize(*results[1:])
    for target, result in zip(targets, results, strict=True):
        np.testing.assert_array_equal(
            np.ascontiguousarray(result.numpy()).view(np.uint8).reshape(-1), bits, err_msg=target.name
        )


def test_casts_of_constants_agree_with_casts_of_memory() -> None:
    numbers = [
        0.0,
        -1.5,
        2.5,
        300.7,
        -300.7,
        70000.0,
        -70000.0,
        3e9,
        -3e9,
        1e20,
        -1e20,
        float("inf"),
        -float("inf"),
        float("nan"),
    ]
    for source, target in itertools.product((dtypes.float32, dtypes.float64), dtypes.all):
        computed = Tensor(np.array(numbers, source.numpy)).cast(target).numpy()
        for number, expected in zip(numbers, computed, strict=True):
            folded = Tensor(number, dtype=source).cast(target).numpy()
            assert folded == expected or (folded != folded and expected != expected), (
                f"{number} {source} to {target}: {folded} {expected}"
            )


def test_numbers_cross_the_numpy_border_unchanged() -> None:
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        x = np.arange(256, dtype=np.uint8).view(kind)
        np.testing.assert_array_equal(Tensor(x).numpy().view(np.uint8), x.view(np.uint8))


def test_numpy_scalars_keep_their_dtype() -> None:
    for dtype in dtypes.all:
        t = Tensor(dtype.numpy.type(1))
        assert t.dtype is dtype and t.item() == 1
    assert Tensor(np.float64(1 / 3)).item() == 1 / 3  # NumPy's float64 is a Python float too
