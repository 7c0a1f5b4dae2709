"""Plans for large GPUs that a run on one showed to matter: enough bytes on their way from memory, threads
along what lies side by side, nothing computed again and again (docs/nvidia.md)."""
from __future__ import annotations

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.dtype import DType
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer.launch import launch_of

MODEL = "PYTHON:HOPPER"


def empty(*shape: int, dtype: DType = dtypes.bfloat16) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=MODEL)


def programs(*results: Tensor) -> list[list[UOp]]:
    return [stages_of(item.ast, MODEL).program for item in schedule_uops([r.uop for r in results])
            if item.ast.op is Ops.SINK]


def threads(program: list[UOp]) -> int:
    launch = launch_of(program)
    return prod(launch.threads) * prod(launch.blocks)


def loads(program: list[UOp]) -> list[UOp]:
    """From buffers."""
    return [n for n in program if n.op is Ops.LOAD and n.src[0].op is Ops.INDEX
            and n.src[0].src[0].op is Ops.PARAM]


# --- sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize("shape", [(128, 256, 56, 56), (128, 1024, 14, 14), (512, 64, 6, 6)], ids=str)
def test_sums_over_images_and_lines_keep_a_device_busy(shape: tuple[int, ...], dtype: DType) -> None:
    """56 pixels of a line were shared by 32 threads, 56 lines and 128 images by none: 4.5 ms for 205 MB."""
    first, *_ = programs(empty(*shape, dtype=dtype).float().sum((0, 2, 3)))
    assert threads(first) >= min(100_000, prod(shape) // 32)
    assert max(load.dtype.count for load in loads(first)) >= 4


def test_statistics_across_images_are_kernels_of_their_own() -> None:
    """What a block has of one channel lies far apart: its threads read two bytes of every line of memory."""
    x = empty(128, 256, 14, 14)
    *_, last = programs(x - x.float().mean((0, 2, 3), keepdim=True))
    assert threads(last) >= 100_000 and not any(n.op is Ops.RANGE for n in last)


def test_statistics_of_rows_stay_with_them() -> None:
    x = empty(4096, 1024)
    assert len(programs(x - x.float().mean(1, keepdim=True))) == 1


def test_gradients_behind_a_max_pool_are_summed_in_splits() -> None:
    """The largest of a window was taken for that of a softmax, whose sums are left whole."""
    x, w = empty(512, 32, 24, 24, dtype=dtypes.float32), empty(32, 32, 5, 5, dtype=dtypes.float32)
    w.requires_grad = True
    y = x.conv2d(w).relu().max_pool2d()
    made = programs(*y.gradient(w, gradient=empty(*y.shape, dtype=dtypes.float32)))
    pieces, total = made[-2:]
    assert prod(launch_of(pieces).blocks) >= 96 and threads(total) >= w.numel()


def test_scores_of_one_query_are_computed_once() -> None:
    """They were computed for the largest, for their sum, and for each column of the values."""
    q, k, v = empty(1, 12, 1, 64), empty(1, 12, 129, 64), empty(1, 12, 129, 64)
    first, *rest = programs(q.scaled_dot_product_attention(k, v))
    assert rest and threads(first) >= 12 * 129
    assert all(len(loads(program)) <= 40 for program in rest)


# --- threads and memory -----------------------------------------------------------------------------------


def test_threads_go_along_vectors() -> None:
    """A statistic of rows lies along these, one of many inputs: threads went along rows, 2 KB apart."""
    x, row = empty(8, 12, 1024, 1024), empty(8, 12, 1024, 1)
    (program,) = programs(x * row)
    store = next(n for n in program if n.op is Ops.STORE)
    steps = linear_terms(store.src[0].src[1])[0]
    of_threads = {s.arg[0]: step for s, step in steps.items() if s.op is Ops.SPECIAL}
    assert of_threads["lidx0"] == store.src[1].dtype.count > 1


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
def test_weights_of_convolutions_are_loaded_by_rows(dtype: DType) -> None:
    """Nine items of each channel lie beside each other: they were copied one by one."""
    x, w = empty(64, 128, 16, 16, dtype=dtype), empty(128, 128, 3, 3, dtype=dtype)
    *_, last = programs(x.conv2d(w))
    copied = {n.src[1].src[0]: n.dtype for n in last if n.op is Ops.PREFETCH}
    loaded = {n.src[0].src[0]: n.dtype for n in loads(last)}
    widths = [kind.itemsize for memory, kind in (copied | loaded).items() if memory.arg[1] == w.numel()]
    assert widths and min(widths) >= 8


def test_packed_weights_give_the_same_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((16, 8, 9, 9), (16, 8, 3, 3)))
    found = [Tensor(x, device=device).conv2d(Tensor(w, device=device), padding=1).numpy()
             for device in (MODEL, "PYTHON:CUDA", "CPU")]
    for result in found[:2]:
        np.testing.assert_array_equal(result, found[2])


def test_what_is_stored_is_computed_just_before() -> None:
    """All 64 results of a thread were taken through GELU step by step together, beyond all registers."""
    (program,) = programs((empty(1024, 128) @ empty(128, 1024)).gelu())
    stores = [i for i, n in enumerate(program) if n.op is Ops.STORE and n.src[0].op is Ops.INDEX
              and n.src[0].src[0].op is Ops.PARAM]
    assert len(stores) > 8
    first, last = stores[0], stores[-1]
    after_the_first = sum(n.op is Ops.MUL and n.dtype.is_float for n in program[first:last])
    assert after_the_first >= sum(n.op is Ops.MUL and n.dtype.is_float for n in program) // 2


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32])
def test_an_operand_that_is_the_same_all_along_the_sum_needs_no_tile(dtype: DType) -> None:
    [program] = programs((empty(8192, 96, 1, dtype=dtype) * empty(1, 1, 1024, dtype=dtype)).sum(1))
    assert not [n for n in program if n.op is Ops.SHARED]
