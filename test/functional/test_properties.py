"""What programs ask of a tensor, and special functions far out, beside values of arbitrary precision."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes


def test_all_numbers_are_real() -> None:
    x = Tensor([[1.0, -2.0]])
    assert not x.is_complex() and x.conj() is x and x.real is x and x.H.shape == (2, 1)
    assert x.isreal().tolist() == [[True, True]]


def test_what_kind_of_numbers_and_where() -> None:
    x = Tensor([1.0], device="CPU")
    assert x.is_signed() and x.is_cpu and not x.is_cuda and x.get_device() == -1 and x.itemsize == 4
    assert not x.cast("bool").is_signed() and not x.cast("uint8").is_signed() and x.long().is_signed()
    assert x.is_same_size(Tensor([2])) and not x.is_same_size(Tensor(2))
    assert x.is_nonzero() and not Tensor([[0]]).is_nonzero()
    with pytest.raises(ValueError, match=r"is_nonzero takes a tensor of one item, got shape \(2,\)"):
        Tensor([1, 2]).is_nonzero()


@pytest.mark.parametrize("name", ["ndtr", "log_ndtr", "erfcx", "i0e", "i1e", "polygamma 1", "polygamma 4"])
def test_special_functions_have_their_digits(name: str) -> None:
    mp: Any = pytest.importorskip("mpmath", reason="PyTorch's own are less exact")
    mp.mp.dps = 40
    exact: dict[str, Callable[[Any], Any]] = {
        "ndtr": mp.ncdf,
        "log_ndtr": lambda x: mp.log1p(-mp.ncdf(-x)) if x > 0 else mp.log(mp.ncdf(x)),
        "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x), "i0e": lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
        "i1e": lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), "polygamma 1": lambda x: mp.psi(1, x),
        "polygamma 4": lambda x: mp.psi(4, x)}
    method, *order = name.split()
    points = np.concatenate([np.linspace(-9, 9, 61) + 0.013, [1e-4, 12.0, 30.0, 1e3, 1e6]])
    for dtype in (dtypes.float32, dtypes.float64):
        x = points.astype(dtype.numpy)
        wanted = np.array([float(exact[name](mp.mpf(float(v)))) for v in x]).astype(x.dtype)
        found = getattr(Tensor(x), method)(*map(int, order)).numpy().astype(np.float64)
        np.testing.assert_allclose(found, wanted, rtol=32 * np.finfo(x.dtype).eps)


@pytest.mark.parametrize("call, message", [
    (lambda: Tensor([1.0]).polygamma(-1), "polygamma takes n >= 0, got -1"),
    (lambda: Tensor([1.0]).mvlgamma(0), "mvlgamma takes p >= 1 dimensions, got 0"),
    (lambda: Tensor([1.0]).histogram(0), "histogram takes bins >= 1 and a range"),
    (lambda: Tensor([1.0]).histogram(2, range=(1.0, 0.0)), "histogram takes bins >= 1 and a range"),
    (lambda: Tensor([1.0]).histogram(2, weight=Tensor([1, 2])), "histogram takes a weight for each item"),
    (lambda: Tensor([1.0]).put(Tensor([0]), Tensor([1.0, 2.0])), "put takes as many items as positions"),
])
def test_what_cannot_be_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call, message", [
    (lambda: Tensor([1]).frexp(), "frexp takes floats, got dtypes.int"),
    (lambda: Tensor([1]).nextafter(2), "nextafter takes floats, got dtypes.int32 and"),
    (lambda: Tensor([1.0]).unravel_index(2), "unravel_index takes integers, got dtypes.float"),
])
def test_other_types_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()
