"""What `test/differential/pytorch_names.py` cannot say of PyTorch's names: views, errors, random numbers."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes


@pytest.mark.parametrize("part, expected", [
    (lambda x: x.select(1, -1), [[0, 1, 9], [3, 4, 9]]),
    (lambda x: x.narrow(0, -1, 1), [[0, 1, 2], [9, 9, 9]]),
    (lambda x: x.unbind()[0], [[9, 9, 9], [3, 4, 5]]),
    (lambda x: x.movedim(0, -1)[0], [[9, 1, 2], [9, 4, 5]]),
    (lambda x: x.mT[1], [[0, 9, 2], [3, 9, 5]]),
])
def test_parts_are_views(part: Callable[[Tensor], Tensor], expected: list[list[int]]) -> None:
    x = Tensor(np.arange(6).reshape(2, 3)).contiguous().realize()
    part(x)[...] = 9
    assert x.tolist() == expected


@pytest.mark.parametrize("call, message", [
    (lambda x: x.mm(Tensor.ones(3)), r"mm takes tensors of 2 and 2 axes, got shapes \(2, 3\) and \(3,\)"),
    (lambda x: x.bmm(x), "bmm takes tensors of 3 and 3 axes"),
    (lambda x: x.narrow(1, 2, 2), "narrow: 2 items from 2 on of an axis of 3"),
    (lambda x: x.narrow(1, 0, -1), "narrow: -1 items from 0 on of an axis of 3"),
    (lambda x: x.outer(x), r"outer takes two vectors, got shapes \(2, 3\)"),
    (lambda x: x.unsqueeze(0).t(), r"t takes a matrix, got shape \(1, 2, 3\)"),
    (lambda x: x.T.cross(x.T, 1), "cross takes vectors of 3 items"),
    (lambda x: x[0].trace(), "trace takes a matrix"),
    (lambda x: x.norm("nuc"), "norm: p is a number or"),
    (lambda x: x.movedim((0, 0), (0, 1)), "movedim: axes"),
    (lambda x: x.rot90(1, (0, 0)), "rot90 takes two axes"),
    (lambda x: x.bincount(), "bincount takes integers in one row"),
    (lambda x: Tensor([1, -1]).bincount(), "bincount: numbers are from 0 on"),
    (lambda x: x.index_add(0, Tensor([[0, 1]]), x), "index_add: positions are one row"),
    (lambda x: x.index_add(0, Tensor([1]), x), r"index_add: 1 positions of axis 0 of shape \(2, 3\) take a "
                                               r"source of shape \(1, 3\), got \(2, 3\)"),
    (lambda x: x.index_copy(1, Tensor([0, 1]), x), "index_copy: 2 positions of axis 1"),
    (lambda x: x[:0].median(0), r"median: axis 0 of shape \(0, 3\) has no items"),
    (lambda x: Tensor(1.0).median(0), "median: axis 0 of shape"),
    (lambda x: Tensor(1.0).diag_embed(), "diag_embed takes tensors with an axis"),
    (lambda x: x.vdot(x), "vdot takes two vectors of one size"),
    (lambda x: x.sum_to_size(3, 3), r"sum_to_size: shape \(3, 3\) does not broadcast to \(2, 3\)"),
    (lambda x: x[0].fill_diagonal_(1), "fill_diagonal_ takes a matrix"),
    (lambda x: x.block_diag(x.unsqueeze(0)), "block_diag takes tensors of two axes at most"),
    (lambda x: x.addbmm(x, x), "addbmm takes batches of matrices"),
    (lambda x: x.gcd(2), "gcd takes integers, got dtypes.float32"),
    (lambda x: (x > 0).lcm(x > 0), "lcm takes integers, got dtypes.bool"),
    (lambda x: x.cov(aweights=x[0, :2]), r"cov of 3 observations takes as many aweights, got shape \(2,\)"),
    (lambda x: x.cov(fweights=x[0]), "cov takes integers as fweights"),
])
def test_what_cannot_be_is_said(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Tensor.ones(2, 3))


def test_an_operand_that_is_no_tensor_is_named() -> None:
    with pytest.raises(TypeError, match="mm takes a tensor as mat2, got a list"):
        Tensor.ones(2, 3).mm([[1.0], [2.0], [3.0]])  # type: ignore[arg-type]


def test_equal_compares_shapes_and_items() -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert x.equal(x + 0) and not x.equal(x + 1) and not x.equal(x[:1]) and not x.equal(x.flatten())
    assert Tensor.zeros(0, 3).equal(Tensor.zeros(0, 3)) and not Tensor([float("nan")]).equal(Tensor([1.0]))


def test_numbers_of_items_and_places() -> None:
    x = Tensor.ones(2, 3, dtype=dtypes.float64)
    assert x.nelement() == 6 and x.cpu().device == "CPU" and x.new_zeros(2).dtype is dtypes.float64
    assert x.new_full((2,), 3, dtype="int8").tolist() == [3, 3]


def test_bernoulli_draws_ones_as_often_as_is_said() -> None:
    Tensor.manual_seed(5)
    chances = Tensor([0.0, 0.25, 1.0]).unsqueeze(1).expand(3, 20_000)
    drawn = chances.bernoulli()
    assert drawn.dtype is dtypes.float32 and set(drawn.flatten().unique().tolist()) == {0.0, 1.0}
    shares = drawn.mean(1).tolist()
    assert shares[0] == 0 and shares[2] == 1 and abs(shares[1] - 0.25) < 5 * (0.25 * 0.75 / 20_000) ** 0.5


def test_median_of_rows_that_have_nan_is_the_first_of_these() -> None:
    values, places = Tensor([[3.0, float("nan"), 1.0, float("nan")], [4.0, 2.0, 3.0, 1.0]]).median(1)
    assert np.isnan(values.numpy()[0]) and values.numpy()[1] == 2 and places.tolist() == [1, 1]


def test_a_norm_of_zeros_has_a_gradient_of_zeros() -> None:
    x = Tensor.zeros(2, 3).contiguous().realize()
    x.norm(dim=1).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0] * 3] * 2


def test_the_median_of_nothing_is_nan() -> None:
    assert np.isnan(Tensor([]).median().item())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_of_half_types_are_computed_wider(dtype: str) -> None:
    x = Tensor([[300.0, 400.0]], dtype=dtype)
    assert x.norm().item() == 500 and x.norm().dtype is x.dtype
    assert np.allclose(x.normalize().numpy(), [[0.6, 0.8]], atol=2**-8)


def test_a_factor_of_zero_keeps_nothing_of_what_is_added_to() -> None:
    nothing = Tensor([float("nan")])
    assert nothing.addmm(Tensor.ones(1, 2), Tensor.ones(2, 1), beta=0).tolist() == [[2.0]]


def test_an_axis_is_called_axis_or_dim() -> None:
    x = Tensor([[3.0, 4.0], [6.0, 8.0]])
    for along in ({"axis": 1}, {"dim": 1}):
        assert x.norm(**along).tolist() == [5.0, 10.0] and x.amax(**along).tolist() == [4.0, 8.0]


def test_a_detached_value_has_no_gradient() -> None:
    x = Tensor([1.0, 2.0])
    h = x * 2
    assert h.detach_() is h
    (h * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]


def test_draws_in_place_have_their_means() -> None:
    Tensor.manual_seed(3)
    x = Tensor.empty(20_000)
    assert abs(x.bernoulli_(0.3).mean().item() - 0.3) < 0.02 and set(x.unique().tolist()) == {0.0, 1.0}
    assert abs(x.exponential_(4.0).mean().item() - 0.25) < 0.01 and x.min().item() >= 0
    assert abs(Tensor.empty(20_000).bernoulli_(Tensor([0.1]).expand(20_000)).mean().item() - 0.1) < 0.02


def test_overwriting_as_pytorch_names_it() -> None:
    x = Tensor([[1.0, -2.0], [3.0, 4.0]]).realize()
    view = x[1]
    x.clip_(-1, 3).remainder_(2).masked_scatter_(Tensor([[True, False], [False, True]]), Tensor([7.0, 8.0]))
    assert x.tolist() == [[7.0, 1.0], [1.0, 8.0]] and view.tolist() == [1.0, 8.0] and (+x) is x


@pytest.mark.parametrize("call", [
    lambda x: x.std(1, unbiased=False), lambda x: x.var(unbiased=True), lambda x: x.split(split_size=1)[1],
    lambda x: x.flip(dims=(0,)), lambda x: x.permute(dims=(1, 0)), lambda x: x.expand(size=(2, 2, 3)),
    lambda x: x.view(size=(3, 2)), lambda x: x.sub(other=x, alpha=2), lambda x: x.mul(other=2),
    lambda x: x.div(other=2.0), lambda x: x.pow(exponent=2), lambda x: x.matmul(other=x.t()),
    lambda x: x.eq(other=1), lambda x: x.maximum(other=x * 0),
    lambda x: x.unfold(dimension=1, size=2, step=1),
    lambda x: x.to("cpu", non_blocking=True), lambda x: x.nonzero(as_tuple=True)[1],
    lambda x: x[x.nonzero(as_tuple=True)], lambda x: x.nonzero(as_tuple=False), lambda x: x.bernoulli(1.0),
    lambda x: x.new_empty(2, 3).fill_(2.0), lambda x: x.scatter(dim=0, index=x.long() * 0, value=3.0),
    lambda x: x.sum(dim=1, keepdims=True), lambda x: x.std(1, keepdims=True),
    lambda x: x.amax(1, keepdims=True), lambda x: x[0].dot(tensor=x[1]),
    lambda x: x.swapaxes(axis0=0, axis1=1), lambda x: x.long().bitwise_left_shift(other=1),
    lambda x: x.long().bitwise_right_shift(other=1),
    lambda x: x.index_select(axis=1, index=x[0].long().abs()),
    lambda x: x.gather(axis=1, index=x.long().abs() % 3), lambda x: (x * 0).copy_(x, non_blocking=True),
    lambda x: x.unique(sorted=True), lambda x: x.unsqueeze(axis=1), lambda x: x.squeeze(axis=0),
    lambda x: x.cumsum(axis=1), lambda x: x.topk(2, axis=1)[0], lambda x: x.chunk(2, axis=1)[1],
    lambda x: x.unbind(axis=1)[1], lambda x: x.select(axis=1, index=2),
    lambda x: x.repeat_interleave(2, axis=1), lambda x: x.narrow(axis=1, start=1, length=2),
    lambda x: x.index_fill(axis=0, index=x[0, :1].long(), value=3.0),
])
def test_arguments_have_pytorchs_names_too(call: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    numbers = np.array([[0.0, 1.0, -2.0], [3.0, 0.0, 5.0]], np.float32)
    np.testing.assert_allclose(call(Tensor(numbers)).numpy(), call(torch.tensor(numbers)).numpy(), 1e-5)


@pytest.mark.parametrize("call", [
    lambda lib: lib.zeros(size=(2, 3)), lambda lib: lib.ones(size=[3]), lambda lib: lib.empty(size=(2, 0)),
    lambda lib: lib.full(size=(2,), fill_value=3.0), lambda lib: lib.arange(start=1, end=7, step=2),
    lambda lib: lib.arange(end=3), lambda lib: lib.linspace(start=0, end=1, steps=5),
    lambda lib: lib.logspace(start=0, end=2, steps=3), lambda lib: lib.rand(size=(2, 3)) * 0,
    lambda lib: lib.randn(size=(2, 3)) * 0, lambda lib: lib.randint(2, 3, size=(4,)),
    lambda lib: lib.randint(1, size=(4,)), lambda lib: lib.randint(3, high=4, size=(2,)),
    lambda lib: lib.randint(low=1, high=2, size=(2, 2)),
    lambda lib: lib.cat([lib.ones(2, 1), lib.zeros(2, 1)], axis=1),
    lambda lib: lib.concatenate([lib.ones(1, 2), lib.zeros(1, 2)], axis=0),
    lambda lib: lib.stack([lib.ones(2), lib.zeros(2)], axis=1),
    lambda lib: lib.bucketize(lib.ones(2), lib.arange(3), out_int32=True),
    lambda lib: lib.searchsorted(lib.arange(3), lib.ones(2), out_int32=True),
    lambda lib: lib.isin(lib.arange(4), lib.ones(2).int(), invert=True, assume_unique=False),
])
def test_functions_of_no_tensor_take_pytorchs_names(call: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    found, expected = call(Tensor), call(torch)
    assert found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-6)


def test_types_of_what_is_computed_are_given_by_name() -> None:
    x = Tensor([[1, 2], [3, 5]], dtype="uint8")
    assert x.mean(1, dtype=dtypes.float64).dtype is dtypes.float64
    assert x.mean(dtype="float16").item() == 2.75 and x.norm(dtype=dtypes.float64).dtype is dtypes.float64
    assert x.nansum(dtype="int64").dtype is dtypes.int64 and x.numpy(force=True).tolist() == x.tolist()
    assert Tensor.tril_indices(2, 2, dtype="int64").dtype is dtypes.int64
    assert Tensor.triu_indices(2, 2, 0, dtype="int64").dtype is dtypes.int64
    with pytest.raises(TypeError, match="arange takes a stop"):
        Tensor.arange()
    with pytest.raises(TypeError, match="zeros: give the shape once, by itself or as size"):
        Tensor.zeros(2, size=(2,))


def test_matrices_are_read_and_limited_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    x = np.array([[2.0, 9.0], [1.0, 3.0]])
    expected = torch.linalg.eigh(torch.tensor(x), UPLO="U")[0].numpy()
    np.testing.assert_allclose(Tensor(x).eigh(UPLO="U")[0].numpy(), expected)
    x = np.diag([3.0, 1.0, 0.5])
    limits: list[dict[str, Any]] = [{"rtol": 0.25}, {"atol": 0.75}, {"atol": 0.75, "rtol": 0.5},
                                    {"hermitian": True, "rtol": 0.4}]
    for options in limits:
        np.testing.assert_allclose(Tensor(x).pinv(**options).numpy(),
                                   torch.linalg.pinv(torch.tensor(x), **options).numpy(), atol=1e-12)


def test_to_a_dtype_by_name() -> None:
    assert Tensor([1]).to(dtype=dtypes.float64).dtype is dtypes.float64
    with pytest.raises(TypeError, match="sub: x and other are two names of one argument"):
        Tensor([1]).sub(x=1, other=1)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_counts_and_sums_of_small_integers_are_wider(dtype: str) -> None:
    places, numbers = np.arange(900) % 3, np.arange(900) % 100
    counts = Tensor(numbers, dtype=dtype).histc(3, 0, 99)
    assert counts.tolist() == [297, 297, 306]
    sums = Tensor(places).bincount(Tensor(numbers, dtype=dtype))
    assert sums.tolist() == np.bincount(places, numbers).tolist()
    assert counts.dtype is sums.dtype is (dtypes.uint32 if dtype == "uint8" else dtypes.int32)


@pytest.mark.parametrize("dtype, divisions", [("int8", 8), ("int32", 43), ("uint64", 90)])
def test_common_divisors_of_neighbouring_fibonacci_numbers(dtype: str, divisions: int) -> None:
    """Which take the most divisions, each of which leaves the pair before."""
    a, b = 1, 2
    for _ in range(divisions):
        a, b = b, a + b
    pair = Tensor([a, b], dtype=dtype)
    assert pair.gcd(pair.flip(0)).tolist() == [1, 1] and b <= pair.dtype.max < a + b
    assert pair.gcd(pair).tolist() == [a, b]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_common_divisors_at_the_ends_of_the_range(dtype: str) -> None:
    """PyTorch's lcm ends the process there. What does not fit wraps: abs of the lowest number."""
    info = np.iinfo(dtype)
    ends = [int(n) for n in (info.min, info.min + 1, 0, 1, 6, info.max - 1, info.max)]
    x = Tensor(ends, dtype=dtype)
    for name in ("gcd", "lcm"):
        found = getattr(x.unsqueeze(1), name)(x)
        expected = [[dtypes.uint64.as_const(getattr(math, name)(a, b)) for b in ends] for a in ends]
        np.testing.assert_array_equal(found.numpy(), np.array(expected, np.uint64).astype(dtype))


def test_covariances_of_halves_are_taken_about_means_of_float32() -> None:
    x = np.array([[1001.0, 1002, 1001, 1003]])
    assert Tensor(x, dtype="float16").cov().item() == pytest.approx(float(np.cov(x)), rel=1e-3)


def test_no_correction_is_one() -> None:
    x = Tensor([1.0, 2.0, 6.0])
    for name in ("var", "std"):
        assert getattr(x, name)(correction=None).item() == getattr(np, name)(x.numpy(), ddof=1)


@pytest.mark.parametrize("dtype", ["float32", "bool"])
@pytest.mark.parametrize("call", [
    lambda x, one: x.select_scatter(one[:4], 0, 1),
    lambda x, one: x.slice_scatter(one[:8].reshape(2, 4), 0, 1),
    lambda x, one: x.diagonal_scatter(one[:3]), lambda x, one: x.put(Tensor([0, 5]), one[:2]),
    lambda x, one: x.index_put((Tensor([0]),), one[:4]),
    lambda x, one: x.slice_scatter(one[:0].reshape(0, 4), 0, 3),
])
def test_a_copy_with_a_part_written_leaves_the_tensor(call: Callable[..., Tensor], dtype: str) -> None:
    x = Tensor.zeros(3, 4, dtype=dtype).contiguous().realize()
    made = call(x, Tensor.ones(12, dtype=dtype))
    assert made.dtype is x.dtype and made.numpy().sum() in (0, 2, 3, 4, 8)
    assert x.numpy().sum() == 0
