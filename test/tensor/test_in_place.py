"""Methods that overwrite: what they give is what the method without underscore gives, in the same memory."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.functional.in_place import InPlace

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add_": (Tensor([[1.0], [2.0]]),), "addcdiv_": (Tensor([1.0]), Tensor([2.0])), "sub_": (2,), "mul_": (3,),
    "addcmul_": (Tensor([1.0]), Tensor([2.0])), "addmm_": (Tensor.ones(2, 4), Tensor.ones(4, 3)),
    "div_": (2,),
    "clamp_": (0.5, 2.0), "clamp_max_": (1.5,), "clamp_min_": (1.5,), "pow_": (2,), "lerp_": (Tensor([4.0]),
                                                                                              0.5),
    "index_add_": (1, Tensor([0, 2]), Tensor.ones(2, 2)), "index_copy_": (1, Tensor([0, 2]), Tensor.ones(2,
                                                                                                         2)),
    "index_fill_": (1, Tensor([0, 2]), 7.0), "masked_fill_": (Tensor([True, False, True]), 9.0),
    "scatter_": (1, Tensor([[0], [2]]), 5.0), "scatter_add_": (1, Tensor([[0], [2]]), Tensor.ones(2, 1)),
    "clip_": (0.5, 2.0), "copysign_": (Tensor([-1.0, 1.0, -1.0]),), "cumprod_": (1,), "cumsum_": (0,),
    "divide_": (2,), "floor_divide_": (0.5,), "fmod_": (0.75,), "logical_and_": (Tensor([1.0, 0.0, 2.0]),),
    "index_put_": ((Tensor([0, 1]), Tensor([2, 0])), Tensor([7.0, 8.0])), "multiply_": (3,),
    "remainder_": (0.75,), "logical_or_": (Tensor([1.0, 0.0, 2.0]),),
    "logical_xor_": (Tensor([1.0, 0.0, 2.0]),),
    "masked_scatter_": (Tensor([True, False, True]), Tensor.arange(6).float()), "renorm_": (2, 0, 1.0),
    "scatter_reduce_": (1, Tensor([[0], [2]]), Tensor.ones(2, 1), "sum"), "subtract_": (2,),
    "arctan2_": (Tensor([1.0, -2.0, 3.0]),), "atan2_": (Tensor([1.0, -2.0, 3.0]),), "polygamma_": (1,),
    "addbmm_": (Tensor.ones(2, 2, 4), Tensor.ones(2, 4, 3)),
    "addr_": (Tensor([1.0, 2.0]), Tensor([1.0, 0.0, 3.0])),
    "ldexp_": (Tensor([1, 2, -1]),),
    **{f"{name}_": (Tensor([0.5, 1.0, 3.0]),) for name in (
        "eq", "ge", "gt", "le", "lt", "ne", "greater", "greater_equal", "less", "less_equal", "not_equal",
        "heaviside", "hypot", "nextafter", "xlogy")}, "mvlgamma_": (1,), "logit_": (0.1,),
    "put_": (Tensor([0, 4]), Tensor([7.0, 8.0])),
    "true_divide_": (2,), "fill_": (4,), "copy_": (Tensor([1, 2, 3]),),
}
DRAWN = ("uniform_", "normal_", "bernoulli_", "exponential_", "random_", "cauchy_", "geometric_",
         "log_normal_")
BETWEEN = ("acos_", "arccos_", "asin_", "arcsin_", "atanh_", "arctanh_", "erfinv_", "acosh_", "arccosh_",
           "digamma_")
"""Whose numbers are of an interval, and those below with other arguments."""
OTHERS = ("baddbmm_", "addmv_", "index_reduce_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_",
          "swapdims_")
OF_INTEGERS = {"bitwise_and_": (6,), "bitwise_or_": (6,), "bitwise_xor_": (6,), "bitwise_not_": (),
               "bitwise_left_shift_": (2,), "bitwise_right_shift_": (1,), "gcd_": (Tensor([6]),),
               "lcm_": (Tensor([6]),)}
NAMES = [name for name in vars(InPlace) if not name.startswith("__") and name not in (
    *DRAWN, *BETWEEN, *OTHERS, *OF_INTEGERS)]
EXPECTED = {"zero_": [[0.0] * 3] * 2, "fill_": [[4.0] * 3] * 2, "copy_": [[1.0, 2.0, 3.0]] * 2}


def fresh() -> Tensor:
    return Tensor(np.array([[0.25, 1.0, 2.75], [3.0, 0.5, 1.5]], np.float32)).contiguous().realize()


@pytest.mark.parametrize("name", NAMES)
def test_what_overwrites_gives_what_the_method_without_underscore_gives(name: str) -> None:
    x, arguments = fresh(), ARGUMENTS.get(name, ())
    part = x[1]
    expected = EXPECTED.get(name) or getattr(fresh(), name[:-1])(*arguments).tolist()
    assert getattr(x, name)(*arguments) is x
    assert x.dtype is dtypes.float32 and x.tolist() == expected and part.tolist() == expected[1]


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_overwrites_alike(name: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="compares with PyTorch")

    def theirs(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(theirs, value))
        if not isinstance(value, Tensor):
            return value
        found = torch.tensor(value.numpy())
        return found.long() if found.dtype == torch.int32 else found

    x = torch.tensor(fresh().numpy())
    getattr(x, name)(*map(theirs, ARGUMENTS.get(name, ())))
    np.testing.assert_allclose(getattr(fresh(), name)(*ARGUMENTS.get(name, ())).numpy(), x.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_bits_are_overwritten(name: str) -> None:
    x = Tensor([1, 2, 3, 12]).realize()
    expected = getattr(Tensor([1, 2, 3, 12]), name[:-1])(*OF_INTEGERS[name]).tolist()
    assert getattr(x, name)(*OF_INTEGERS[name]) is x and x.tolist() == expected


def test_normal_draws_by_the_inverse_error_function() -> None:
    x = Tensor([-0.5, 0.0, 0.5])
    assert np.allclose(x.erfinv_().numpy(), [-0.476936, 0.0, 0.476936], 1e-5)


@pytest.mark.parametrize("name", BETWEEN)
def test_functions_of_an_interval_overwrite(name: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="compares with PyTorch")
    numbers = np.array([1.0, 1.5, 3.0] if "cosh" in name else [-0.5, 0.0, 0.5], np.float32)
    x = Tensor(numbers).realize()
    assert getattr(x, name)() is x
    expected = getattr(torch.tensor(numbers), name)().numpy()
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_products_of_a_batch_are_added() -> None:
    x = Tensor([1.0, 2.0]).realize()
    assert x.addmv_(Tensor.ones(2, 3), Tensor.ones(3)) is x and x.tolist() == [4.0, 5.0]
    x = Tensor.ones(2, 1, 3).contiguous().realize()
    assert x.baddbmm_(Tensor.ones(2, 1, 4), Tensor.ones(2, 4, 3)) is x and x.tolist() == [[[5.0] * 3]] * 2


@pytest.mark.parametrize("is_lazy", [True, False])
def test_axes_come_and_go_in_place(is_lazy: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0]) * 2 if is_lazy else Tensor([2.0, 4.0, 6.0]).realize()
    part = x[1:]
    assert x.unsqueeze_(0).unsqueeze_(-1) is x and x.shape == (1, 3, 1)
    x += 1
    part += 1
    assert x.tolist() == [[[3.0], [6.0], [8.0]]] and part.tolist() == [6.0, 8.0]
    assert x.squeeze_(0).squeeze_() is x and x.tolist() == [3.0, 6.0, 8.0]


@pytest.mark.parametrize("is_lazy", [True, False])
@pytest.mark.parametrize("name, axes", [("t_", ()), ("transpose_", (0, 1)), ("swapaxes_", (1, 0)),
                                        ("swapdims_", (-1, -2))])
def test_axes_change_places_in_place(name: str, axes: tuple[int, ...], is_lazy: bool) -> None:
    numbers = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    x = numbers + 0.5 if is_lazy else (numbers + 0.5).contiguous().realize()
    part = x[0]
    assert getattr(x, name)(*axes) is x
    x += 1
    assert x.tolist() == [[2.5, 5.5], [3.5, 6.5], [4.5, 7.5]] and part.tolist() == [2.5, 3.5, 4.5]


@pytest.mark.parametrize("is_realized", [True, False])
def test_the_gradient_of_a_leaf_comes_in_its_new_shape(is_realized: bool) -> None:
    weight = Tensor([[1.0, 2.0]], requires_grad=True)
    weight = weight.realize() if is_realized else weight
    weight.unsqueeze_(0).transpose_(1, 2)
    (weight * weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[[2.0], [4.0]]]


def test_positions_are_reduced_in_place() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    assert x.index_reduce_(0, Tensor([0, 0, 2]), Tensor([5.0, 2.0, 4.0]), "prod") is x
    assert x.tolist() == [10.0, 2.0, 12.0]


def test_gradients_flow_through_what_is_overwritten() -> None:
    weight = Tensor([1.0, -2.0, 3.0], requires_grad=True)
    hidden = weight * 2
    hidden.relu_().mul_(3).add_(Tensor([1.0, 1.0, 1.0]), alpha=2)
    assert hidden.tolist() == [8.0, 2.0, 20.0]
    assert hidden.sum().gradient(weight)[0].tolist() == [6.0, 0.0, 6.0]


def test_draws_and_errors() -> None:
    Tensor.manual_seed(1)
    x = Tensor.zeros(1000)
    assert x.uniform_(-1, 3) is x and -1 <= x.min().item() < -0.9 and 2.9 < x.max().item() <= 3
    assert abs(x.normal_(5, 0.1).mean().item() - 5) < 0.02
    assert sorted(x.random_(3, 6).unique().tolist()) == [3, 4, 5] and x.random_(2).max().item() == 1
    assert abs((x.log_normal_(0.5, 0.1).log().mean().item()) - 0.5) < 0.02
    assert abs(x.cauchy_(2.0, 0.5).median().item() - 2) < 0.1
    assert abs(x.geometric_(0.25).mean().item() - 4) < 0.5 and x.min().item() == 1
    with pytest.raises(ValueError, match="random_ takes random_"):
        x.random_(3, 3)
    with pytest.raises(ValueError, match="geometric_ takes a probability"):
        x.geometric_(1.5)
    with pytest.raises(TypeError):
        Tensor([1, 2]).add_(0.5)
    with pytest.raises(ValueError):
        Tensor([1.0, 2.0]).add_(Tensor.ones(3, 2))


def test_a_tensor_goes_to_a_dtype() -> None:
    x = Tensor([1.5, 2.5])
    assert x.to(dtypes.int32).tolist() == [1, 2] and x.to("CPU", dtypes.float64).dtype is dtypes.float64
