"""Contractions on matrix units: their layouts, plans on them against NumPy, and what compilers make of them.

The data are small whole numbers, so that every sum is exact in any order and results are equal bit for bit.
"""
from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.plan import Opt, OptKind, Plan, apply_plan
from tinygrad.codegen.opt.plan_cache import from_json, to_json
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm_blocks import AMDGCN, NVPTX, LLVMBlocksRenderer, assembled, object_code
from tinygrad.renderer.matrix_units import MFMA, MMA_SYNC, UNITS, WMMA, MatrixUnit
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import nvrtc
from tinygrad.runtime.python import PythonProgram

Array = np.ndarray[Any, Any]
MODELS = ("PYTHON:CUDA", "PYTHON:AMD", "PYTHON:GFX1100", "PYTHON:METAL")
EMULATED = ("CUDA:EMULATED", "AMD:EMULATED", "METAL:EMULATED")


def whole_numbers(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def on(device: str, array: Array) -> Tensor:
    return Tensor(array, device=device).realize()


def last_kernel(result: Tensor) -> UOp:
    return schedule_uops([result.uop])[-1].ast


def has_unit(result: Tensor, device: str) -> bool:
    return any(n.op is Ops.MMA for n in stages_of(last_kernel(result), device).program)


def product(a: Array, b: Array, device: str, kind: str = "float32") -> Tensor:
    return on(device, a).cast(kind) @ on(device, b).cast(kind)


def run_in_python(ast: UOp, plan: Plan, buffers: list[Array]) -> list[UOp]:
    program = stages_of(ast, "PYTHON:BLOCKS", plan).program
    text = PythonRenderer(has_blocks=True).render("kernel", program)
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([b.ctypes.data for b in buffers], [], 1)
    return program


# --- layouts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_the_lanes_hold_every_element_of_each_tile(unit: MatrixUnit) -> None:
    sides = ((unit.a, unit.m, unit.k), (unit.b, unit.k, unit.n), (unit.c, unit.m, unit.n))
    for fragment, rows, columns in sides:
        row, column = fragment.places(unit.threads)
        assert row.shape == (unit.threads, fragment.registers)
        held = set(zip(row.ravel().tolist(), column.ravel().tolist(), strict=True))
        assert held == {(i, j) for i in range(rows) for j in range(columns)}


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_result_is_held_once(unit: MatrixUnit) -> None:
    assert unit.c.registers * unit.threads == unit.m * unit.n


# --- plans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m,k,n,tiles", [(64, 64, 64, (2, 2, 2)), (33, 37, 50, (1, 2, 1))])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_unit_multiplies_tiles_of_any_matrices(unit: MatrixUnit, m: int, k: int, n: int,
                                                 tiles: tuple[int, int, int]) -> None:
    a, b = (whole_numbers(*s, dtype=unit.source.numpy) for s in ((m, k), (k, n)))
    ast = last_kernel(product(a, b, "PYTHON:BLOCKS", unit.result.name))
    result = np.zeros((m, n), unit.result.numpy)
    opt = Opt(OptKind.MMA, 2, UNITS.index(unit), (0, 1), tiles)
    program = run_in_python(ast, Plan((opt,)), [result, a, b])
    assert any(node.op is Ops.MMA for node in program)
    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("unit", MMA_SYNC, ids=str)
def test_a_unit_gives_what_plain_loops_give(unit: MatrixUnit) -> None:
    a, b = (whole_numbers(*s, dtype=unit.source.numpy) for s in ((9, 11), (11, 7)))
    ast = last_kernel(product(a, b, "PYTHON:BLOCKS", unit.result.name))
    results = [np.zeros((9, 7), unit.result.numpy) for _ in range(2)]
    opt = Opt(OptKind.MMA, 2, UNITS.index(unit), (0, 1), (1, 1, 1))
    for plan, result in zip((Plan((opt,)), Plan()), results, strict=True):
        run_in_python(ast, plan, [result, a, b])
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("device", [*MODELS, *EMULATED])
def test_default_plans_use_the_device_s_unit(device: str) -> None:
    a, b, bias = whole_numbers(50, 40), whole_numbers(40, 66), whole_numbers(66)
    for left, right in ((on(device, a), on(device, b)),
                        (on(device, np.ascontiguousarray(a.T)).T, on(device, np.ascontiguousarray(b.T)).T)):
        result = (left.dot(right, dtype="float32") + on(device, bias).float()).relu()
        assert has_unit(result, device)
        expected = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32), 0)
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("device", ["PYTHON:CUDA", "CUDA:EMULATED"])
@pytest.mark.parametrize("dtype,kind", [(np.float16, "float32"), (np.int8, "int32")], ids=str)
def test_every_narrow_type(device: str, dtype: Any, kind: str) -> None:
    a, b = whole_numbers(50, 40, dtype=dtype), whole_numbers(40, 66, dtype=dtype)
    result = product(a, b, device, kind)
    assert has_unit(result, device)
    np.testing.assert_array_equal(result.numpy(), a.astype(kind) @ b.astype(kind))


@pytest.mark.parametrize("device", ["PYTHON:CUDA", "CUDA:EMULATED"])
def test_convolutions_and_batches(device: str) -> None:
    x, w = whole_numbers(2, 16, 6, 6), whole_numbers(16, 16, 3, 3)
    result = on(device, x).conv2d(on(device, w), padding=1, dtype="float32")
    assert has_unit(result, device)
    edged = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    weights = w.astype(np.float32)
    expected = sum(np.einsum("nchw,oc->nohw", edged[:, :, i:i + 6, j:j + 6], weights[:, :, i, j])
                   for i in range(3) for j in range(3))
    np.testing.assert_array_equal(result.numpy(), expected)
    a, b = whole_numbers(3, 32, 24), whole_numbers(3, 24, 32)
    batched = on(device, a).dot(on(device, b), dtype="float32")
    assert has_unit(batched, device)
    np.testing.assert_array_equal(batched.numpy(), a.astype(np.float32) @ b.astype(np.float32))


def as_tf32(x: Array) -> Array:
    """Rounded to 10 bits of fraction, halves away from zero."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + (1 << 12)) & ~np.uint64((1 << 13) - 1)).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("device", ["CUDA:EMULATED"])
def test_float32_is_rounded_to_tf32_only_where_that_is_allowed(device: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 40)).astype(np.float32), rng.standard_normal((40, 32)).astype(np.float32)
    pairs = ((a, b), (as_tf32(a), as_tf32(b)))
    exact, rounded = (x.astype(np.float64) @ y.astype(np.float64) for x, y in pairs)
    assert np.abs(exact - rounded).max() > 1e-4
    np.testing.assert_allclose(product(a, b, device).numpy(), exact, atol=1e-5)
    with Context(ALLOW_TF32=1):
        np.testing.assert_allclose(product(a, b, device).numpy(), rounded, atol=1e-5)
    np.testing.assert_allclose(product(a, b, device).numpy(), exact, atol=1e-5)


def test_products_that_are_rounded_before_they_are_summed_are_left_alone() -> None:
    a, b = (on("PYTHON:CUDA", whole_numbers(64, 64)) for _ in range(2))
    rounded = (a.reshape(64, 1, 64) * b.T.reshape(1, 64, 64)).sum(2)
    assert not has_unit(rounded, "PYTHON:CUDA")


def test_a_range_that_is_no_side_of_a_product_is_refused() -> None:
    nest = lower(last_kernel(product(whole_numbers(32, 32), whole_numbers(32, 32), "PYTHON:BLOCKS")))
    with pytest.raises(ValueError, match="no contraction over r2 that mma_m16n8k16_f16 could do"):
        apply_plan(nest, Plan((Opt(OptKind.MMA, 2, 1, (0, 1), (1, 1, 1)),)))
    with pytest.raises(ValueError, match="power of two"):
        apply_plan(nest, Plan((Opt(OptKind.MMA, 2, 0, (0, 1), (3, 1, 1)),)))


def test_plans_on_units_are_kept_as_text() -> None:
    plan = Plan((Opt(OptKind.SHARE, 0, 32, (1, 2), (8, 4, 16)), Opt(OptKind.MMA, 2, 0, (0, 1), (1, 2, 2))))
    assert from_json(to_json(plan)) == plan
    assert "MMA(r2, mma_m16n8k16_bf16, r0, r1, 1, 2, 2)" in repr(plan)


def test_a_block_of_half_a_warp_is_an_error() -> None:
    from tinygrad.runtime.python import matrix_product

    unit = MMA_SYNC[0]
    with pytest.raises(RuntimeError, match="warps of 32 threads; a block has 16"):
        matrix_product(unit, np.zeros(8), np.zeros(4), np.zeros(4), 16)


def test_lanes_that_hold_the_same_element_agree_about_it() -> None:
    from tinygrad.runtime.python import matrix_product

    unit = WMMA[0]
    different = np.arange(32)[:, None] * np.ones((1, 16))
    with pytest.raises(RuntimeError, match="different numbers for the same element"):
        matrix_product(unit, different, np.zeros(16), np.zeros(8), 32)


# --- compilers ----------------------------------------------------------------------------------------------


def has_nvrtc() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except ImportError:
        return False


def program_on(unit: MatrixUnit) -> list[UOp]:
    a, b = (whole_numbers(64, 64, dtype=unit.source.numpy) for _ in range(2))
    opt = Opt(OptKind.MMA, 2, UNITS.index(unit), (0, 1), (2, 2, 1))
    return stages_of(last_kernel(product(a, b, "PYTHON:BLOCKS", unit.result.name)), "PYTHON:BLOCKS",
                     Plan((opt,))).program


@pytest.mark.skipif(not has_nvrtc(), reason='no NVRTC: pip install "tinygrad[cuda]"')
@pytest.mark.parametrize("unit", MMA_SYNC, ids=str)
def test_nvrtc_takes_the_units_of_nvidia(unit: MatrixUnit) -> None:
    source = cuda_renderer().render("kernel", program_on(unit))
    assert "mma.sync.aligned" in source
    for architecture in ("sm_80", "sm_90", "sm_100"):
        assert nvrtc.compile_cuda(source, architecture)[:4] == b"\x7fELF"


@pytest.mark.skipif(not has_nvrtc(), reason='no NVRTC: pip install "tinygrad[cuda]"')
def test_nvrtc_takes_a_default_plan_with_copies_ahead() -> None:
    a, b = (Tensor.empty(2048, 2048, dtype=dtypes.bfloat16, device="PYTHON:CUDA") for _ in range(2))
    source = cuda_renderer().render("kernel", stages_of(last_kernel(a @ b), "PYTHON:CUDA").program)
    assert "copy_async<16>" in source and "LARGE_SHARED" in source
    for architecture in ("sm_80", "sm_90"):
        assert nvrtc.compile_cuda(source, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("unit", MMA_SYNC, ids=str)
def test_llvm_makes_mma_of_it(unit: MatrixUnit) -> None:
    text = assembled(LLVMBlocksRenderer(NVPTX).render("kernel", program_on(unit)), NVPTX, "sm_80")
    assert f"mma.sync.aligned.m{unit.m}n{unit.n}k{unit.k}" in text


@pytest.mark.parametrize("unit,architecture", [
    *((u, "gfx942") for u in MFMA), *((u, "gfx1100") for u in WMMA)], ids=str)
def test_llvm_makes_matrix_instructions_of_amd(unit: MatrixUnit, architecture: str) -> None:
    source = LLVMBlocksRenderer(AMDGCN, (unit,)).render("kernel", program_on(unit))
    text = assembled(source, AMDGCN, architecture)
    assert re.search(rf"v_(mfma|wmma)_f32_{unit.m}x{unit.n}x{unit.k}", text)
    assert object_code(source, AMDGCN, architecture)[:4] == b"\x7fELF"


def test_a_language_without_the_unit_says_so() -> None:
    with pytest.raises(ValueError, match="cannot say MMA"):
        cuda_renderer(capability=75).render("kernel", program_on(MMA_SYNC[0]))
