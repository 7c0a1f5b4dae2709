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
    "true_divide_": (2,), "fill_": (4,), "copy_": (Tensor([1, 2, 3]),),
}
DRAWN = ("uniform_", "normal_", "bernoulli_", "exponential_", "erfinv_")
OF_INTEGERS = {"bitwise_and_": (6,), "bitwise_or_": (6,), "bitwise_xor_": (6,), "bitwise_not_": ()}
NAMES = [name for name in vars(InPlace) if not name.startswith("__") and name not in (*DRAWN, *OF_INTEGERS)]
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
    with pytest.raises(TypeError):
        Tensor([1, 2]).add_(0.5)
    with pytest.raises(ValueError):
        Tensor([1.0, 2.0]).add_(Tensor.ones(3, 2))


def test_a_tensor_goes_to_a_dtype() -> None:
    x = Tensor([1.5, 2.5])
    assert x.to(dtypes.int32).tolist() == [1, 2] and x.to("CPU", dtypes.float64).dtype is dtypes.float64
