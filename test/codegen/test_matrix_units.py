"""Contractions on matrix units: their layouts, plans on them against NumPy, and what compilers make of them.

The data are small whole numbers, so that every sum is exact in any order and results are equal bit for bit.
"""
from __future__ import annotations

import os
import re
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import MMA, Stage
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.program import linear_program
from tinygrad.device import Device
from tinygrad.device import host as units_of_host
from tinygrad.device.host import host_units
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.records import decode, encode
from tinygrad.graph.uop import UOp
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.llvm_blocks import AMDGCN, NVPTX, LLVMBlocksRenderer, assembled, object_code
from tinygrad.renderer.machine import cores
from tinygrad.renderer.matrix_units import AMX, DOT_BF16, MFMA, MMA_SYNC, UNITS, WMMA, MatrixUnit
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import nvrtc
from tinygrad.runtime.llvm import optimised_module
from tinygrad.runtime.python import PythonProgram

Array = np.ndarray[Any, Any]
OF_REGISTERS = [unit for unit in UNITS if not unit.in_shared]
"""Others have test_units_in_shared_memory.py."""
TILED = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2, l2_bytes=2 << 20, matrix_units=AMX))
"""A server core with AMX."""
needs_tiles = pytest.mark.skipif(not set(AMX) <= set(host_units()),
                                 reason="a CPU without AMX, or a system that does not grant its registers")
HERE = pytest.param("CPU", marks=needs_tiles)
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


@pytest.mark.parametrize("unit", OF_REGISTERS, ids=str)
def test_the_lanes_hold_every_element_of_each_tile(unit: MatrixUnit) -> None:
    sides = ((unit.a, unit.m, unit.k), (unit.b, unit.k, unit.n), (unit.c, unit.m, unit.n))
    for fragment, rows, columns in sides:
        row, column = fragment.places(unit.threads)
        assert row.shape == (unit.threads, fragment.registers)
        held = set(zip(row.ravel().tolist(), column.ravel().tolist(), strict=True))
        assert held == {(i, j) for i in range(rows) for j in range(columns)}


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_transposed_unit_multiplies_transposed_tiles(unit: MatrixUnit) -> None:
    turned = unit.transposed
    assert turned.transposed == unit and (turned.m, turned.n, turned.k) == (unit.n, unit.m, unit.k)
    for own, other in ((turned.a, unit.b), (turned.b, unit.a), (turned.c, unit.c)):
        rows, columns = other.places(unit.threads)
        assert all(map(np.array_equal, own.places(unit.threads), (columns, rows)))


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_a_result_is_held_once(unit: MatrixUnit) -> None:
    assert unit.c.registers * unit.threads == unit.m * unit.n


# --- plans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m,k,n,tiles", [(64, 64, 64, (2, 2, 2)), (33, 37, 50, (1, 2, 1))])
@pytest.mark.parametrize("unit", OF_REGISTERS, ids=str)
def test_a_unit_multiplies_tiles_of_any_matrices(unit: MatrixUnit, m: int, k: int, n: int,
                                                 tiles: tuple[int, int, int]) -> None:
    a, b = (whole_numbers(*s, dtype=unit.source.numpy) for s in ((m, k), (k, n)))
    ast = last_kernel(product(a, b, "PYTHON:BLOCKS", unit.result.name))
    result = np.zeros((m, n), unit.result.numpy)
    opt = MMA(0, 1, 2, UNITS.index(unit), *tiles)
    program = run_in_python(ast, Plan((opt,)), [result, a, b])
    assert any(node.op is Ops.MMA for node in program)
    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("unit", MMA_SYNC, ids=str)
def test_a_unit_gives_what_plain_loops_give(unit: MatrixUnit) -> None:
    a, b = (whole_numbers(*s, dtype=unit.source.numpy) for s in ((9, 11), (11, 7)))
    ast = last_kernel(product(a, b, "PYTHON:BLOCKS", unit.result.name))
    results = [np.zeros((9, 7), unit.result.numpy) for _ in range(2)]
    opt = MMA(0, 1, 2, UNITS.index(unit), 1, 1, 1)
    for plan, result in zip((Plan((opt,)), Plan()), results, strict=True):
        run_in_python(ast, plan, [result, a, b])
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("device", [*MODELS, *EMULATED, HERE])
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


@pytest.mark.parametrize("device", ["PYTHON:CUDA", "CUDA:EMULATED", HERE])
def test_convolutions_and_batches(device: str) -> None:
    x, w = whole_numbers(2, 16, 8, 8), whole_numbers(16, 16, 3, 3)
    result = on(device, x).conv2d(on(device, w), padding=1, dtype="float32")
    assert has_unit(result, device)
    edged = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    weights = w.astype(np.float32)
    expected = sum(np.einsum("nchw,oc->nohw", edged[:, :, i:i + 8, j:j + 8], weights[:, :, i, j])
                   for i in range(3) for j in range(3))
    np.testing.assert_array_equal(result.numpy(), expected)
    a, b = whole_numbers(3, 32, 24), whole_numbers(3, 24, 32)
    batched = on(device, a).dot(on(device, b), dtype="float32")
    assert has_unit(batched, device)
    np.testing.assert_array_equal(batched.numpy(), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("device", ["PYTHON:CUDA", "CUDA:EMULATED"])
def test_operands_that_are_padded_after_they_were_widened(device: str) -> None:
    a, b = whole_numbers(10, 100, 97), whole_numbers(10, 99, 100)
    padded = on(device, a).float().pad(((0, 0), (0, 0), (2, 0)))
    result = padded @ on(device, b).float()
    assert has_unit(result, device)
    wide = np.pad(a.astype(np.float32), ((0, 0), (0, 0), (2, 0)))
    np.testing.assert_array_equal(result.numpy(), wide @ b.astype(np.float32))


def as_tf32(x: Array) -> Array:
    """Rounded to 10 bits of fraction, halves away from zero."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + (1 << 12)) & ~np.uint64((1 << 13) - 1)).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("device", MODELS)
@pytest.mark.parametrize("shape", [(1, 1, 9), (24, 1, 9), (1, 33, 9), (24, 33, 1)], ids=str)
def test_masks_of_products_are_read_inside_where_the_sum_is_padded(shape: tuple[int, ...],
                                                                   device: str) -> None:
    rng = np.random.default_rng(1)
    a, b, mask = rng.integers(-2, 3, (24, 1, 9)), rng.integers(-2, 3, (1, 33, 9)), rng.random(shape) < 0.6
    x, y = (Tensor(v.astype(np.float16), device=device).realize().float() for v in (a, b))
    result = Tensor(mask, device=device).realize().where(x * y, 0).sum(2)
    np.testing.assert_array_equal(result.numpy(), np.where(mask, a * b, 0).sum(2))


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
        apply_plan(nest, Plan((MMA(0, 1, 2, 1, 1, 1, 1),)))
    with pytest.raises(ValueError, match="power of two"):
        apply_plan(nest, Plan((MMA(0, 1, 2, 0, 3, 1, 1),)))


def test_plans_on_units_are_kept_as_text() -> None:
    plan = Plan((Stage(0, (1, 2), 32, 8, 4, 16), MMA(0, 1, 2, 0, 1, 2, 2)))
    assert decode(Plan, encode(Plan, plan)) == plan
    assert "MMA(r0, r1, r2, mma_m16n8k16_bf16, 1, 2, 2)" in repr(plan)


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


# --- tiles of one core --------------------------------------------------------------------------------------


def plain(x: Tensor) -> Array:
    return x.float().numpy().astype(np.float64)


def uses_tiles(result: Tensor) -> bool:
    plan = choose_plan(lower(last_kernel(result)), Device["CPU"].renderer.machine)
    return any(isinstance(opt, MMA) and UNITS[opt.unit] in AMX for opt in plan.opts)


@needs_tiles
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype,kind", [(ml_dtypes.bfloat16, "float32"), (np.int8, "int32")], ids=str)
def test_tiles_multiply_matrices_of_any_size(turned: tuple[bool, bool], dtype: Any, kind: str) -> None:
    for m, k, n in ((64, 128, 96), (33, 31, 35), (67, 197, 70)):
        a, b = whole_numbers(m, k, dtype=dtype), whole_numbers(k, n, dtype=dtype)
        left, right = (on("CPU", np.ascontiguousarray(x.T)).T if turn else on("CPU", x)
                       for x, turn in zip((a, b), turned, strict=True))
        result = left.cast(kind) @ right.cast(kind)
        assert uses_tiles(result) or m != 64
        np.testing.assert_array_equal(result.numpy(), a.astype(kind) @ b.astype(kind))


@needs_tiles
def test_tiles_take_what_is_fused_around_a_product() -> None:
    x, w, bias = whole_numbers(2, 3, 40, 64, dtype=np.float32), whole_numbers(3, 64, 50), whole_numbers(50)
    result = (on("CPU", x).bfloat16().relu().dot(on("CPU", w), dtype="float32") + on("CPU", bias)).relu()
    assert uses_tiles(result)
    expected = np.maximum(np.maximum(x, 0) @ w.astype(np.float32) + bias.astype(np.float32), 0)
    np.testing.assert_array_equal(result.numpy(), expected)


@needs_tiles
def test_gradients_on_tiles() -> None:
    x, w, g = whole_numbers(2, 24, 64), whole_numbers(64, 40), whole_numbers(2, 24, 40)
    a, b = (on("CPU", v).requires_grad_() for v in (x, w))
    (a.dot(b, dtype="float32") * on("CPU", g).float()).sum().backward()
    assert a.grad is not None and b.grad is not None
    wide = [v.astype(np.float64) for v in (x, w, g)]
    exact = (wide[2] @ wide[1].T, np.einsum("bij,bik->jk", wide[0], wide[2]))
    for found, expected in zip((a.grad, b.grad), exact, strict=True):
        rounded = expected.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
        np.testing.assert_array_equal(plain(found), rounded)


@needs_tiles
@pytest.mark.parametrize("m,k,n", [(100, 96, 333), (70, 64, 150)])
def test_results_may_be_written_in_place(m: int, k: int, n: int) -> None:
    a, b, before = whole_numbers(m, k), whole_numbers(k, n), whole_numbers(m, n, dtype=np.float32)
    weight = on("CPU", before)
    weight.assign(weight - on("CPU", a).dot(on("CPU", b), dtype="float32"))
    assert uses_tiles(weight)
    np.testing.assert_array_equal(weight.numpy(), before - a.astype(np.float32) @ b.astype(np.float32))


def test_panels_of_results_in_place_are_cut_where_they_are_elsewhere() -> None:
    a, b = (Tensor(whole_numbers(1000, 1000)).realize() for _ in range(2))
    weight = Tensor(whole_numbers(1000, 1000, dtype=np.float32)).realize()
    elsewhere = choose_plan(lower(last_kernel(weight - a.dot(b, dtype="float32"))), TILED.machine)
    weight.assign(weight - a.dot(b, dtype="float32"))
    assert choose_plan(lower(last_kernel(weight)), TILED.machine) == elsewhere


@needs_tiles
def test_a_forked_child_may_use_tiles() -> None:
    a, b = whole_numbers(64, 64), whole_numbers(64, 64)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(on("CPU", a).dot(on("CPU", b), dtype="float32").numpy(), expected)
    child = os.fork()
    if child == 0:
        is_equal = (on("CPU", a).dot(on("CPU", b), dtype="float32").numpy() == expected).all()
        os._exit(0 if is_equal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_tiles_that_the_system_does_not_grant_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units_of_host, "host_features", lambda: "+amx-tile,+amx-bf16,+avx512f,+avx512bf16")
    for is_granted, expected in ((True, (AMX[0],)), (False, ())):
        monkeypatch.setattr(units_of_host, "tiles_allowed", lambda is_granted=is_granted: is_granted)
        assert host_units() == expected
    monkeypatch.setattr(units_of_host, "host_features", lambda: "+amx-tile,+amx-bf16,+avx512f,-amx-tile")
    assert host_units() == ()
    monkeypatch.setattr(units_of_host, "host_features", lambda: "+avx512f,+avx512bf16")
    assert host_units() == (DOT_BF16,)


def planned_for_tiles(result: Tensor) -> list[UOp]:
    nest = lower(last_kernel(result))
    return linear_program(apply_plan(nest, choose_plan(nest, TILED.machine)), TILED)


@pytest.mark.parametrize("kind", ["a @ b", "a.T @ b", "a @ b.T", "odd sum", "float32 @ b", "int8"])
def test_panels_of_tiles_are_filled_by_whole_vectors(kind: str) -> None:
    depth = 97 if kind == "odd sum" else 128
    dtype = {"float32 @ b": np.float32, "int8": np.int8}.get(kind, ml_dtypes.bfloat16)
    a = Tensor(whole_numbers(64, depth, dtype=dtype)).realize()
    b = Tensor(whole_numbers(depth, 64, dtype=np.int8 if kind == "int8" else ml_dtypes.bfloat16)).realize()
    a = whole_rows(a.T) if kind == "a.T @ b" else a
    b = whole_rows(b.T) if kind == "a @ b.T" else b
    wide = "int32" if kind == "int8" else "float32"
    program = planned_for_tiles((a.bfloat16() if kind == "float32 @ b" else a).cast(wide) @ b.cast(wide))
    loads = [n for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX]
    assert any(n.op is Ops.MMA and n.arg in AMX for n in program)
    assert all(n.dtype.count >= 16 for n in loads)
    rows = [n for n in loads if n.src[0].src[1].dtype.count > 1]
    in_place = kind in ("a @ b", "a @ b.T", "int8")
    assert len(rows) == (2 if in_place else 0), "two tiles are loaded from the matrix"


def whole_rows(x: Tensor) -> Tensor:
    """The same matrix, whose other axis is the one along which it lies."""
    return x.contiguous().realize().T


@pytest.mark.parametrize("dtype,kind,instruction", [(ml_dtypes.bfloat16, "float32", "tdpbf16ps"),
                                                    (np.int8, "int32", "tdpbssd")], ids=str)
def test_sums_stay_in_tile_registers(dtype: Any, kind: str, instruction: str) -> None:
    a, b = (Tensor(whole_numbers(256, 256, dtype=dtype)).realize() for _ in range(2))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu="sapphirerapids", opt=2)
    program = planned_for_tiles(a.cast(kind) @ b.cast(kind))
    with optimised_module(TILED.render("kernel", program), machine) as module:
        lines = [line.strip() for line in str(machine.emit_assembly(module)).splitlines()]
    products = [i for i, line in enumerate(lines) if line.startswith(instruction)]
    assert len(products) == 4
    start = max(i for i in range(products[0]) if lines[i].startswith(".L"))
    end = next(i for i in range(products[-1], len(lines)) if lines[i].startswith("j"))
    words = [line.split()[0] for line in lines[start:end] if line and not line.startswith(".")]
    assert words.count("tileloadd") == 4 and "tilestored" not in words
    assert not any("%rsp" in line for line in lines[start:end] if line.startswith("tile"))


# --- compilers ----------------------------------------------------------------------------------------------


def has_nvrtc() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except ImportError:
        return False


def program_on(unit: MatrixUnit) -> list[UOp]:
    a, b = (whole_numbers(64, 64, dtype=unit.source.numpy) for _ in range(2))
    opt = MMA(0, 1, 2, UNITS.index(unit), 2, 2, 1)
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
