"""What a kernel has many of is written down once: powers as calls of a function, panels filled in a loop."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.codegen.primitives import MOST_IN_PLACE
from tinygrad.device import Device
from tinygrad.dtype import DType

MATRIX = np.random.default_rng(3).standard_normal((72, 96), dtype=np.float32)
OTHER = np.random.default_rng(4).standard_normal((96, 80), dtype=np.float32)


def source_of(result: Tensor) -> str:
    """The LLVM IR of the kernels that compute `result`."""
    return "\n".join(compiled_kernel(item.ast, "CPU").source for item in result.schedule())


def calls(source: str) -> int:
    return sum("call " in line and "@exp" in line for line in source.splitlines())


@pytest.mark.parametrize("function, reference", [
    (Tensor.exp, lambda x: np.exp(x.astype(np.float64))),
    (Tensor.exp2, lambda x: np.exp2(x.astype(np.float64))),
    (Tensor.silu, lambda x: x / (1 + np.exp(-x.astype(np.float64)))),
])
def test_powers_of_a_tile_are_calls_of_one_function(function: Callable[[Tensor], Tensor],
                                                   reference: Callable[[Any], Any]) -> None:
    def graph() -> Tensor:
        return function(Tensor(MATRIX, device="CPU") @ Tensor(OTHER, device="CPU"))

    source = source_of(graph())
    assert calls(source) > MOST_IN_PLACE
    assert sum(line.startswith("define internal") and "@exp" in line for line in source.splitlines()) == 1
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
