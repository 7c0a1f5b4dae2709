"""Python numbers beside a tensor's dtype: what it does not hold is refused, compared as it is, or wraps."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes

X = Tensor([0, 100, 200], dtype="uint8")


def written(index: Any, number: float) -> Tensor:
    x = X.clone()
    x[index] = number
    return x


@pytest.mark.parametrize("number", [256, -256, 2**70, 256.0, math.inf, np.int64(256)])
@pytest.mark.parametrize("write", [
    lambda n: Tensor(n, dtype="uint8"),
    lambda n: Tensor([[1, n]], dtype="uint8"),
    lambda n: Tensor.full((2,), n, dtype="uint8"),
    X.full_like,
    X.clone().assign,
    lambda n: written(0, n),
    lambda n: written(X == 0, n),
    lambda n: written([0, 1], n),
    lambda n: X.pad((1, 1), value=n),
    lambda n: X.scatter(0, Tensor([0]), n),
], ids=["number", "list", "full", "full_like", "assign", "item", "mask", "places", "pad", "scatter"])
def test_a_number_that_the_dtype_does_not_hold_is_not_written(write: Callable[[Any], Tensor], number: Any):
    with pytest.raises(OverflowError, match=r"does not fit dtypes.uint8, which holds 0 to 255"):
        write(number)


@pytest.mark.parametrize("choose", [
    lambda: (X == 0).where(256, X),
    lambda: X.masked_fill(X == 0, 256),
    lambda: X.maximum(256),
    lambda: X.minimum(-1),
    lambda: X // 300,
    lambda: 300 % X,
    lambda: X.fmod(300),
    lambda: X << 256,
])
def test_a_number_that_the_dtype_does_not_hold_is_no_operand_where_its_low_bits_are_another(choose: Any):
    with pytest.raises(OverflowError, match=r"does not fit dtypes.uint8, which holds 0 to 255"):
        choose()


def test_numbers_in_lists_are_written_in_the_dtype_of_the_tensor():
    x = Tensor([1.0, 2.0], dtype="float64")
    x[:] = [0.1, 0.2]
    assert x.tolist() == [0.1, 0.2] and x.assign((0.3, 1)).tolist() == [0.3, 1.0]
    with pytest.raises(OverflowError, match=r"300 does not fit dtypes.uint8"):
        written([0, 1], [300, 1])
    with pytest.raises(TypeError, match="float32 values would be cut to dtypes.uint8"):
        written([0, 1], [0.5, 1])


def test_negative_numbers_are_written_into_unsigned_types_from_their_end_as_in_pytorch():
    assert Tensor([-1], dtype="uint8").tolist() == Tensor.full((1,), -1, dtype="uint8").tolist() == [255]
    assert written(0, -1).tolist() == [255, 100, 200]
    assert (X == 0).where(-1, X).tolist() == [255, 100, 200]


def test_sums_and_products_wrap():
    assert (X + 300).tolist() == [44, 144, 244] and (300 - X).tolist() == [44, 200, 100]
    assert (X * 257).tolist() == [0, 100, 200] and (X & 300).tolist() == [0, 36, 8]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("compare", [
    lambda x, n: x < n, lambda x, n: x <= n, lambda x, n: x > n, lambda x, n: x >= n, lambda x, n: x == n,
    lambda x, n: x != n, lambda x, n: n < x, lambda x, n: n >= x,
])
def test_comparisons_with_any_integer_are_those_of_numbers(compare: Callable[[Any, int], Any], dtype: str):
    kind = dtypes.fields()[dtype]
    items = [int(kind.min), 0, 100, int(kind.max)]
    x = Tensor(items, dtype=kind)
    for number in (-1, 256, kind.min - 1, kind.max + 1, kind.max, 2**70, -2**70):
        assert compare(x, number).tolist() == [compare(item, number) for item in items], number


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_and_quotients_of_half_types_with_numbers_are_rounded_once(dtype: str):
    """As in PyTorch: the number is one of float32, which float16 may not have at all."""
    x = Tensor([1.0, 3.0, 60000.0, 0.001, 3003.0], dtype=dtype)
    wide = x.numpy().astype(np.float32)
    kind = dtypes.fields()[dtype].numpy
    with np.errstate(over="ignore"):
        for number in (0.1, 1e5, 1e-8, 65536.0, 0.5, 3):
            one = np.float32(number)
            for got, expected in ((x * number, wide * one), (number * x, wide * one),
                                  (x / number, wide / one), (number / x, one / wide)):
                np.testing.assert_array_equal(got.numpy(), expected.astype(kind), f"{number}")


def test_a_product_of_half_types_with_a_number_keeps_the_dtype_of_gradients():
    x = Tensor([1.0, 2.0], dtype="float16", requires_grad=True)
    (x * 0.1 / 1e5).sum().backward()
    assert x.grad is not None and x.grad.dtype is dtypes.float16


def test_a_row_of_numpy_integers_is_a_shape_and_an_order_of_axes():
    x = np.arange(6, dtype=np.float32)
    t = Tensor(x)
    assert t.reshape(np.array([2, 3])).shape == t.view(np.array([2, 3])).shape == (2, 3)
    assert Tensor.zeros(np.array([2, 3])).shape == Tensor.randn(np.array([2, 3])).shape == (2, 3)
    y = t.reshape(2, 1, 3)
    assert y.permute(np.array([2, 0, 1])).shape == (3, 2, 1)
    assert y.expand(np.array([2, 4, 3])).shape == (2, 4, 3)
    np.testing.assert_array_equal(y.flip(np.array([0, 2])).numpy(), np.flip(x.reshape(2, 1, 3), (0, 2)))
    np.testing.assert_array_equal(y.sum(np.array([0, 1])).numpy(), x.reshape(2, 3).sum(0))
    with pytest.raises(TypeError, match="reshape takes a shape of integers"):
        t.reshape(np.array([2.0, 3.0]))


def test_a_tensor_goes_to_the_device_and_the_dtype_of_another():
    x = Tensor([1.5]).to(Tensor([1], device="PYTHON", dtype="float64"))
    assert (x.device, x.dtype, x.tolist()) == ("PYTHON", dtypes.float64, [1.5])
