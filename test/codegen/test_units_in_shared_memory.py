"""Matrix units that read their operands from shared memory themselves (`wgmma`), on the model of a GPU that
has them: there it shows where a tile lies otherwise than the unit reads it, or is not filled yet."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.opt.opts import MMA, Split, Stage
from tinygrad.codegen.opt.plan import Plan
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.cuda import HOPPER, cuda_renderer
from tinygrad.renderer.matrix_units import UNITS, WGMMA, MatrixUnit
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import nvrtc
from tinygrad.runtime.python import PythonProgram

Array = np.ndarray[Any, Any]
MODEL = "PYTHON:HOPPER"
HALVES = (ml_dtypes.bfloat16, np.float16)
FULL, ALONG = 64, 2 * 64
"""Products of a row, and of the sums here."""


def has_nvrtc() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except ImportError:
        return False


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason='no NVRTC: pip install "tinygrad[cuda]"')


def whole_numbers(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def operand(array: Array, transposed: bool) -> Tensor:
    """The matrices on the model, stored by columns if `transposed`."""
    if not transposed:
        return Tensor(array, device=MODEL).realize()
    return Tensor(np.ascontiguousarray(np.swapaxes(array, -1, -2)), device=MODEL).realize().transpose(-1, -2)


def last_kernel(result: Tensor) -> UOp:
    return schedule_uops([result.uop])[-1].ast


def units_of(result: Tensor) -> set[MatrixUnit]:
    return {n.arg for n in stages_of(last_kernel(result), MODEL).program if n.op is Ops.MMA}


def products(left: Array, right: Array) -> Array:
    return left.astype(np.float32) @ right.astype(np.float32)


# --- each unit, by a plan of its own ------------------------------------------------------------------------


def one_tile(unit: MatrixUnit) -> tuple[UOp, list[Array], Plan]:
    """A kernel for two tiles along k of one unit, its inputs, and its plan."""
    assert unit.in_shared is not None
    left, right = (whole_numbers(*s, dtype=unit.source.numpy) for s in ((unit.m, ALONG), (ALONG, unit.n)))
    tensors = [operand(array, transposed).cast("float32") for array, transposed in (
        (left, not unit.in_shared[0]), (right, unit.in_shared[1]))]
    stages = [Stage(i, (side, 3) if along_k else (3, side), 128, 8, 1, 0, unit.row_items)
              for i, (side, along_k) in enumerate(zip((0, 1), unit.in_shared, strict=True))]
    plan = Plan((Split(2, FULL), *stages, MMA(0, 1, 3, UNITS.index(unit), 1, 1, 1)))
    return last_kernel(tensors[0] @ tensors[1]), [left, right], plan


@pytest.mark.parametrize("unit", WGMMA, ids=str)
def test_a_unit_multiplies_what_lies_in_swizzled_rows(unit: MatrixUnit) -> None:
    ast, (left, right), plan = one_tile(unit)
    assert unit.in_shared is not None
    program = stages_of(ast, MODEL, plan).program
    text = PythonRenderer(model=cuda_renderer(HOPPER)).render("kernel", program)
    result = np.zeros((unit.m, unit.n), np.float32)
    given = [left if unit.in_shared[0] else np.ascontiguousarray(left.T),
             np.ascontiguousarray(right.T) if unit.in_shared[1] else right]
    addresses = [array.ctypes.data for array in (result, *given)]
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))(addresses, [], 1)
    np.testing.assert_array_equal(result, products(left, right))


@needs_nvrtc
@pytest.mark.parametrize("unit", WGMMA, ids=str)
def test_nvrtc_takes_each_unit(unit: MatrixUnit) -> None:
    ast, _, plan = one_tile(unit)
    source = cuda_renderer(HOPPER).render("kernel", stages_of(ast, MODEL, plan).program)
    assert source.count("wgmma.mma_async") == 4
    assert nvrtc.compile_cuda(source, "sm_90a")[:4] == b"\x7fELF"


def test_a_plan_whose_operands_are_elsewhere_is_refused() -> None:
    ast, _, plan = one_tile(WGMMA[0])
    for without in (plan.opts[1], plan.opts[2]):
        with pytest.raises(ValueError, match="reads shared memory, where its operands are not"):
            stages_of(ast, MODEL, Plan(tuple(opt for opt in plan.opts if opt is not without)))


# --- the plans that are chosen ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("right", [False, True], ids=["right by rows", "right by columns"])
@pytest.mark.parametrize("left", [False, True], ids=["left by rows", "left by columns"])
def test_products_of_every_layout(left: bool, right: bool, dtype: Any) -> None:
    a, b = whole_numbers(192, 320, dtype=dtype), whole_numbers(320, 128, dtype=dtype)
    result = operand(a, left).dot(operand(b, right), dtype="float32")
    assert [unit.in_shared for unit in units_of(result)] == [(not left, right)]
    np.testing.assert_array_equal(result.numpy(), products(a, b))


@pytest.mark.parametrize("seed", range(8))
def test_products_of_any_size(seed: int) -> None:
    """Tiles that end beyond the matrices or the sum, and those that do not."""
    rng = np.random.default_rng(seed)
    m, n = (int(x) for x in rng.integers(64, 300, 2))
    k = 8 * int(rng.integers(8, 40))
    a, b = whole_numbers(m, k), whole_numbers(k, n)
    result = operand(a, False).dot(operand(b, True), dtype="float32")
    assert all(unit.in_shared for unit in units_of(result))
    np.testing.assert_array_equal(result.numpy(), products(a, b))


def test_tiles_are_narrower_where_something_is_made_of_them() -> None:
    a, b, bias = whole_numbers(1280, 128), whole_numbers(128, 2560), whole_numbers(2560)
    product = operand(a, False).dot(operand(b, False), dtype="float32")
    assert {(unit.m, unit.n) for unit in units_of(product)} == {(64, 256)}
    result = (product + operand(bias, False).float()).relu()
    assert {(unit.m, unit.n) for unit in units_of(result)} == {(64, 128)}


def test_a_batch_of_products() -> None:
    a, b = whole_numbers(3, 128, 192), whole_numbers(3, 192, 64)
    result = operand(a, False).dot(operand(b, False), dtype="float32")
    assert all(unit.in_shared for unit in units_of(result)) and units_of(result)
    np.testing.assert_array_equal(result.numpy(), products(a, b))


@pytest.mark.parametrize("name,m,n,k", [
    ("rows that whole accesses do not divide", 128, 128, 100), ("few rows", 40, 128, 128),
    ("a short sum", 128, 128, 40)])
def test_other_products_have_registers(name: str, m: int, n: int, k: int) -> None:
    a, b = whole_numbers(m, k), whole_numbers(k, n)
    result = operand(a, False).dot(operand(b, False), dtype="float32")
    assert not any(unit.in_shared for unit in units_of(result)), name
    np.testing.assert_array_equal(result.numpy(), products(a, b))


def test_a_masked_product_has_registers() -> None:
    """Causal attention's gradients: zeros would have to be written over what was copied."""
    a, b = whole_numbers(128, 128), whole_numbers(128, 64)
    terms = operand(a, False).float().reshape(128, 128, 1) * operand(b, False).float().reshape(1, 128, 64)
    row, along = (Tensor.arange(128, device=MODEL).reshape(shape) for shape in ((128, 1, 1), (1, 128, 1)))
    result = (along <= row).where(terms, 0).sum(1)
    assert [bool(unit.in_shared) for unit in units_of(result)] == [False]
    np.testing.assert_array_equal(result.numpy(), products(np.tril(a.astype(np.float32)), b))
