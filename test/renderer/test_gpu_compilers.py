"""Kernels for GPUs through the compilers that need no GPU: NVRTC, ptxas, and LLVM's nvptx64 and amdgcn."""
from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.dtype import DType
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Native, Renderer
from tinygrad.renderer.cuda import cuda_renderer
from tinygrad.renderer.llvm_blocks import AMDGCN, NVPTX, LLVMBlocksRenderer, Target, assembled, object_code
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime import nvrtc

NVIDIA = ("sm_80", "sm_90", "sm_100")
AMD = ("gfx942", "gfx1100")
DEVICE = "PYTHON:BLOCKS"
"""Whose plans are taken."""


def has_nvrtc() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except ImportError:
        return False


@functools.cache
def ptxas() -> str | None:
    """Where the assembler is: in the package that pip installs, or on the path."""
    found = importlib.util.find_spec("nvidia")
    folders = (found.submodule_search_locations or []) if found else []
    places = (Path(folder) / "cuda_nvcc" / "bin" / "ptxas" for folder in folders)
    return next((str(p) for p in places if p.exists()), shutil.which("ptxas"))


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason='no NVRTC: pip install "tinygrad[cuda]"')
needs_ptxas = pytest.mark.skipif(ptxas() is None, reason="no ptxas: pip install nvidia-cuda-nvcc-cu12")


def data(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor(np.ones(shape, np.float32), device=DEVICE).cast(dtype).realize()


def steps(x: Tensor, weight: Tensor) -> Tensor:
    """Equal kernels but for numbers, which are arguments of one."""
    for number in (0.3, 0.4, 0.6, 0.7, 0.9):
        x = x @ weight * number + (x.half() * (number + 2.0)).cast(x.dtype)
    return x


KERNELS: dict[str, Callable[[], Tensor]] = {
    "item by item": lambda: (data(64, 64) * 2 + data(64, 64).exp()).sin(),
    "a block's sum": lambda: data(4, 4096).sum(1),
    "matrix product": lambda: data(64, 64) @ data(64, 64),
    "softmax": lambda: data(16, 300).softmax(),
    "convolution": lambda: data(2, 4, 8, 8).conv2d(data(4, 4, 3, 3), padding=1),
    "random numbers": lambda: Tensor.rand(100, device=DEVICE),
    "integers": lambda: data(99, dtype=dtypes.int32) // data(99, dtype=dtypes.int32) % 7 << 3,
    "float64": lambda: data(99, dtype=dtypes.float64).log() + float("inf"),
    **{f"a part of {dtype.name}": functools.partial(
        lambda d: data(13, 11, dtype=d).pad(((1, 2), (3, 4))).contiguous(), dtype)
       for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.bool, dtypes.float32)},
    **{dtype.name: functools.partial(lambda d: data(64, dtype=d) * data(64, dtype=d) + float("nan"), dtype)
       for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2)},
    "numbers as arguments": lambda: steps(*(data(32, 32, dtype=dtypes.float64) for _ in range(2))),
    "every dtype": lambda: sum((data(64, dtype=d).cast(dtypes.float32) for d in dtypes.all), data(64)),
}


@functools.cache
def program_of(family: str, native: Native) -> list[UOp]:
    """The linear program of the last kernel that a tensor takes, in operations of a device that does what is
    `native` itself."""
    tensor = KERNELS[family]()
    with mock.patch.object(PythonRenderer, "native", native):
        return stages_of(schedule_uops([tensor.uop])[-1].ast, DEVICE).program


def source_of(family: str, renderer: Renderer) -> str:
    """That program as the renderer writes it."""
    return renderer.render("kernel", program_of(family, renderer.native))


@pytest.mark.parametrize("family", KERNELS)
@needs_nvrtc
def test_nvrtc_takes_cuda_c(family: str) -> None:
    source = source_of(family, cuda_renderer())
    for architecture in NVIDIA:
        assert nvrtc.compile_cuda(source, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("family", KERNELS)
@needs_ptxas
def test_ptxas_takes_what_llvm_makes(family: str, tmp_path: Path) -> None:
    source = source_of(family, LLVMBlocksRenderer(NVPTX))
    for architecture in NVIDIA:
        file = tmp_path / f"{architecture}.ptx"
        file.write_text(assembled(source, NVPTX, architecture))
        command = [ptxas() or "", f"-arch={architecture}", str(file), "-o", str(tmp_path / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("family", KERNELS)
def test_llvm_makes_objects_for_amd(family: str) -> None:
    source = source_of(family, LLVMBlocksRenderer(AMDGCN))
    for architecture in AMD:
        code = object_code(source, AMDGCN, architecture)
        assert code[:4] == b"\x7fELF" and b"kernel.kd" in code


@pytest.mark.parametrize(("target", "architecture", "barrier", "shared"), [
    (NVPTX, "sm_90", r"bar\w*\.sync", r"\.shared "), (AMDGCN, "gfx942", "s_barrier", "ds_write")])
def test_a_block_meets_at_barriers_and_shares_memory(target: Target, architecture: str, barrier: str,
                                                     shared: str) -> None:
    source = source_of("a block's sum", LLVMBlocksRenderer(target))
    text = assembled(source, target, architecture)
    assert re.search(barrier, text) and re.search(shared, text)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.bool, dtypes.bfloat16])
@pytest.mark.parametrize(("target", "architecture", "exchange"), [
    (NVPTX, "sm_90", r"shfl\.sync\.bfly"), (AMDGCN, "gfx942", "ds_bpermute|dpp|ds_swizzle")])
def test_lanes_exchange_values_of_any_size(target: Target, architecture: str, exchange: str,
                                           dtype: DType) -> None:
    source = LLVMBlocksRenderer(target).render("kernel", exchange_of(dtype))
    assert re.search(exchange, assembled(source, target, architecture))


@needs_nvrtc
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.bool, dtypes.float16])
def test_nvrtc_takes_exchanges_of_any_size(dtype: DType) -> None:
    assert nvrtc.compile_cuda(cuda_renderer().render("kernel", exchange_of(dtype)), "sm_90")


def exchange_of(dtype: DType) -> list[UOp]:
    """A thread stores what its neighbour loads."""
    lane = UOp.new(Ops.SPECIAL, dtypes.index, (), ("lidx0", 32))
    target, source = (UOp.new(Ops.PARAM, dtype, (), (slot, 32)) for slot in range(2))
    places = [UOp.new(Ops.INDEX, dtype, (memory, lane)) for memory in (target, source)]
    value = UOp.new(Ops.LOAD, dtype, (places[1],))
    other = UOp.new(Ops.EXCHANGE, dtype, (value,), 1)
    return [target, source, lane, *places, value, other, UOp.new(Ops.STORE, dtype, (places[0], other))]


def wide_copy(dtype: DType = dtypes.float32, guarded: bool = False) -> list[UOp]:
    """A thread copies four items, where a condition holds."""
    index, vector = dtypes.index, dtype.vec(4)
    thread = UOp.new(Ops.SPECIAL, index, (), ("lidx0", 32))
    four, limit = UOp.const(4, index), UOp.const(31, index)
    offset = UOp.new(Ops.MUL, index, (thread, four))
    valid = UOp.new(Ops.CMPLT, dtypes.bool, (thread, limit))
    where = (offset, valid) if guarded else (offset,)
    target, source = (UOp.new(Ops.PARAM, dtype, (), (slot, 128)) for slot in (0, 1))
    at, to = (UOp.new(Ops.INDEX, dtype, (memory, *where)) for memory in (source, target))
    load = UOp.new(Ops.LOAD, vector, (at,))
    lanes = [UOp.new(Ops.EXTRACT, dtype, (load,), i) for i in range(4)]
    again = UOp.new(Ops.VECTORIZE, vector, tuple(lanes))
    return [thread, four, limit, offset, valid, target, source, at, load, *lanes, again, to,
            UOp.new(Ops.STORE, vector, (to, again))]


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if not d.is_bool and d.itemsize <= 4],
                         ids=lambda d: d.name)
@needs_nvrtc
def test_nvrtc_takes_wide_accesses_under_a_condition(dtype: DType) -> None:
    source = cuda_renderer().render("kernel", wide_copy(dtype, guarded=True))
    assert nvrtc.compile_cuda(source, "sm_90")[:4] == b"\x7fELF"


@pytest.mark.parametrize(("target", "architecture", "load"), [
    (NVPTX, "sm_80", r"ld\.global.*v4"), (AMDGCN, "gfx942", "global_load_dwordx4")])
def test_four_items_are_one_load(target: Target, architecture: str, load: str) -> None:
    text = assembled(LLVMBlocksRenderer(target).render("kernel", wide_copy()), target, architecture)
    assert len(re.findall(load, text)) == 1


@needs_nvrtc
def test_what_nvrtc_refuses_is_shown_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match=r'(?s)does not accept.*"wrong" is undefined.*    2  .*wrong'):
        nvrtc.compile_cuda('extern "C" __global__ void k(float *p) {\n  p[0] = wrong;\n}', "sm_90")


def test_what_llvm_refuses_is_shown_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)LLVM does not accept.*    1  .*wrong"):
        assembled("define void @k() { wrong }", NVPTX, "sm_90")


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    nvrtc._nvrtc.cache_clear()
    try:
        with pytest.raises(ImportError, match=r'not installed: pip install "tinygrad\[cuda\]"'):
            nvrtc.nvrtc_version()
    finally:
        nvrtc._nvrtc.cache_clear()
