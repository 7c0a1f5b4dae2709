"""SIN of float32 without float64, against NumPy's float64 on numbers of every size."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_transcendental import evaluate

from tinygrad.codegen.sine32 import elementary_functions_in_32_bits, sin_in_32_bits
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import rewrite
from tinygrad.graph.uop import UOp

Array = np.ndarray[Any, Any]
LEAF = UOp.new(Ops.REGISTER, dtypes.float32, (), 0)
LIMIT = 0.85
"""Units in the last place."""


def error(x: Array, cosine: bool) -> float:
    """The largest error in units of the last place."""
    largest = 0.0
    for part in np.array_split(x, -(-x.size // 2**16)):
        got = evaluate(sin_in_32_bits(LEAF, cosine), LEAF, part)
        true = (np.cos if cosine else np.sin)(part.astype(np.float64))
        place = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
        largest = max(largest, float(np.max(np.abs(got - true) / place)))
    return largest


def of_every_size(step: int) -> Array:
    """Every `step`th float32 of either sign that is finite."""
    bits = np.arange(0, 0x7F800000, step, dtype=np.uint32)
    bits[::2] |= 0x80000000
    return bits.view(np.float32)


@pytest.mark.parametrize("cosine", [False, True], ids=["sine", "cosine"])
def test_numbers_of_every_size(cosine: bool) -> None:
    assert error(of_every_size(8191), cosine) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("cosine", [False, True], ids=["sine", "cosine"])
def test_very_many_numbers(cosine: bool) -> None:
    assert error(of_every_size(509), cosine) < LIMIT


@pytest.mark.parametrize("cosine", [False, True], ids=["sine", "cosine"])
def test_numbers_next_to_multiples_of_a_quarter_turn(cosine: bool) -> None:
    near = (np.arange(1, 20000) * (np.pi / 2)).astype(np.float32)
    hardest = np.array([0x3F3FFFFF, 0x3F400000, 0x4B000000, 0x6F5C7C5A, 0x7F7FFFFF, 0x602DBD9D], np.uint32)
    x = np.concatenate([near, np.nextafter(near, np.float32(0)), hardest.view(np.float32)])
    assert error(np.concatenate([x, -x]), cosine) < LIMIT


def test_zeros_infinities_and_nan() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40], np.float32)
    sine = evaluate(sin_in_32_bits(LEAF, False), LEAF, x)
    nan = np.nan
    np.testing.assert_array_equal(sine, np.array([0.0, -0.0, nan, nan, nan, 1e-45, -1e-40], np.float32))
    np.testing.assert_array_equal(np.signbit(sine[:2]), [False, True])
    cosine = evaluate(sin_in_32_bits(LEAF, True), LEAF, x)
    np.testing.assert_array_equal(cosine, np.array([1, 1, nan, nan, nan, 1, 1], np.float32))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_nothing_wider_than_32_bits_is_left(dtype: Any) -> None:
    leaf = UOp.new(Ops.REGISTER, dtype, (), 0)
    nodes = rewrite(UOp.new(Ops.SIN, dtype, (leaf,)), elementary_functions_in_32_bits).toposort()
    assert {n.op for n in nodes} & {Ops.SIN, Ops.EXP2, Ops.LOG2} == set()
    assert max(n.dtype.bits for n in nodes) == 32
