"""What a kernel has many of is written down once: powers as calls of a function, panels filled in a loop."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.codegen.outline import MOST_IN_PLACE
from tinygrad.device import Device
from tinygrad.dtype import DType

MATRIX = np.random.default_rng(3).standard_normal((72, 96), dtype=np.float32)
OTHER = np.random.default_rng(4).standard_normal((96, 80), dtype=np.float32)


def source_of(result: Tensor) -> str:
    """The LLVM IR of the kernels that compute `result`."""
    return "\n".join(compiled_kernel(item.ast, "CPU").source for item in result.schedule())


def calls(source: str) -> int:
    return len(re.findall(r"call .*@(exp|function)", source))


def functions(source: str) -> list[str]:
    return re.findall(r"define internal .*@(exp2?|function\d+)\.", source)


@pytest.mark.parametrize("function, name, reference", [
    (Tensor.exp, "exp", lambda x: np.exp(x.astype(np.float64))),
    (Tensor.exp2, "exp2", lambda x: np.exp2(x.astype(np.float64))),
    (Tensor.silu, "function0", lambda x: x / (1 + np.exp(-x.astype(np.float64)))),
    (lambda x: (x.abs() + 1).log().sin(), "function0",
     lambda x: np.sin(np.log(abs(x.astype(np.float64)) + 1))),
])
def test_activations_of_a_tile_are_calls_of_one_function(function: Callable[[Tensor], Tensor], name: str,
                                                         reference: Callable[[Any], Any]) -> None:
    def graph() -> Tensor:
        return function(Tensor(MATRIX, device="CPU") @ Tensor(OTHER, device="CPU"))

    source = source_of(graph())
    assert calls(source) > MOST_IN_PLACE
    assert functions(source) == [name]
    product = (MATRIX.astype(np.float64) @ OTHER).astype(np.float32)
    np.testing.assert_allclose(graph().numpy(), reference(product), rtol=1e-4, atol=1e-5)


def test_a_function_gives_for_special_numbers_what_is_written_in_place_gives() -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 89.0, -104.0, 1e-40, 88.7, -87.4], np.float32)
    rows = np.resize(special, 80)
    left, right = (Tensor(np.ones(shape, np.float32), device="CPU") for shape in ((72, 1), (1, 80)))
    called = (left @ right * Tensor(rows, device="CPU")).exp()
    with np.errstate(over="ignore"):
        expected = np.exp(rows.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(called.numpy(), np.broadcast_to(expected, (72, 80)), rtol=1e-6)


def test_what_else_is_used_of_an_activation_is_computed_outside_of_the_function() -> None:
    product = Tensor(MATRIX, device="CPU") @ Tensor(OTHER, device="CPU")
    sigmoid = product.sigmoid()
    source = source_of(both := sigmoid.stack(product * sigmoid))
    assert calls(source) > MOST_IN_PLACE
    exact = MATRIX.astype(np.float64) @ OTHER
    weight = 1 / (1 + np.exp(-exact))
    np.testing.assert_allclose(both.numpy(), np.stack([weight, exact * weight]), rtol=1e-4, atol=1e-4)


def test_activations_that_are_not_alike_share_their_powers() -> None:
    product = Tensor(MATRIX, device="CPU") @ Tensor(OTHER, device="CPU") * 0.1
    scale = Tensor(OTHER[0], device="CPU")
    mixed = (product * scale).exp() * scale + product.sigmoid()
    exact = MATRIX.astype(np.float64) @ OTHER * 0.1
    expected = np.exp(exact * OTHER[0]) * OTHER[0] + 1 / (1 + np.exp(-exact))
    assert len(functions(source_of(mixed))) == 2
    np.testing.assert_allclose(mixed.numpy(), expected, rtol=2e-3)


def test_few_powers_are_written_in_place() -> None:
    assert calls(source_of(Tensor(MATRIX, device="CPU").exp())) == 0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_a_panel_whose_lanes_jump_is_filled_in_a_loop(dtype: DType) -> None:
    left = Tensor(MATRIX, device="CPU").cast(dtype).realize()
    right = Tensor(np.ascontiguousarray(OTHER.T), device="CPU").cast(dtype).realize()
    result = left @ right.T
    vector = Device["CPU"].renderer.machine.lanes(dtype)
    turned = [line for line in source_of(result).splitlines()
              if "shufflevector" in line and "zeroinitializer" not in line]
    assert len(turned) == vector * (vector.bit_length() - 1), "one square of vectors is turned, in a loop"
    product = MATRIX.astype(np.float64) @ OTHER
    np.testing.assert_allclose((left @ right.T).numpy(), product, rtol=1e-3, atol=1e-4)
