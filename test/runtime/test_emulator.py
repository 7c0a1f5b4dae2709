"""Kernels in CUDA C, HIP C and Metal, run on the CPU by the emulator, against NumPy."""
from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from arrays import Array, drawn

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.codegen.compile import write_kernel
from tinygrad.device import Buffer
from tinygrad.dtype import DType
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.launch import Launch, launch_of
from tinygrad.runtime import emulator
from tinygrad.runtime.emulator import LANGUAGES, EmulatedDevice

pytestmark = pytest.mark.skipif(not any(map(shutil.which, emulator.COMPILERS)),
                                reason="no C++ compiler on the path")

DEVICES = [f"{kind}:EMULATED" for kind in LANGUAGES]
rng = np.random.default_rng(5)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def source_of(device: str, make: Callable[[], Tensor]) -> str:
    """The source of the kernel that computes a tensor."""
    item = schedule_uops([make().uop])[-1]
    return write_kernel(item.ast, device, False).source


# --- families of kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_item_by_item(device: str) -> None:
    a, b = drawn(13, 37), drawn(13, 37)
    t, u = Tensor(a, device=device), Tensor(b, device=device)
    np.testing.assert_allclose((t * u + t.exp()).relu().numpy(), np.maximum(a * b + np.exp(a), 0), rtol=1e-5,
                               atol=1e-6)
    np.testing.assert_array_equal((t.permute(1, 0) + u.flip(0).permute(1, 0)).numpy(), a.T + b[::-1].T)
    np.testing.assert_allclose((t.abs() + 1).log().numpy(), np.log(np.abs(a) + 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((t * 1e3).sin().numpy(), np.sin(np.float64(a * np.float32(1e3))), rtol=1e-5,
                               atol=1e-6)
    np.testing.assert_array_equal((t < u).where(t, 7.0).numpy(), np.where(a < b, a, np.float32(7)))
    around = ((1, 2), (0, 3))
    np.testing.assert_array_equal(t.pad(around)[:, ::2].numpy(), np.pad(a, around)[:, ::2])


def test_large_integers_round_once_to_bfloat16_without_float64() -> None:
    """Ties, what is next to them and the ends of the range, of every number of digits."""
    middle = [n << shift for n in range(2**8 + 1, 2**9, 6) for shift in range(54)]
    values = [n + beside for n in middle for beside in (-1, 0, 1)]

    def to_bfloat16(n: int) -> float:
        magnitude = abs(n)
        unit = 1 << max(magnitude.bit_length() - 8, 0)
        return math.copysign(round(Fraction(magnitude, unit)) * unit, n)  # round() takes ties to even

    for dtype, more in ((np.int64, [*(-n for n in values), -2**63]), (np.uint64, [2**64 - 1, 2**63 + 2**55])):
        numbers = [*values, 2**63 - 1, *more]
        found = Tensor(np.array(numbers, dtype), device="METAL:EMULATED").bfloat16().float()
        np.testing.assert_array_equal(found.numpy(), [to_bfloat16(n) for n in numbers])


@pytest.mark.parametrize("device", DEVICES)
def test_sums_and_maxima(device: str) -> None:
    a = drawn(70, 9)
    t = Tensor(a, device=device)
    for axis in (None, 0, 1):
        np.testing.assert_allclose(t.sum(axis).numpy(), a.sum(axis, dtype=np.float64), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(t.max(1).numpy(), a.max(1))
    np.testing.assert_allclose(t[:, 0].cumsum(0).numpy(), a[:, 0].cumsum(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_row_is_summed_by_a_block_through_shared_memory(device: str) -> None:
    a = drawn(2, 8192)
    source = source_of(device, lambda: Tensor(a, device=device).realize().sum(1))
    barrier = "threadgroup_barrier" if device.startswith("METAL") else "__syncthreads"
    assert barrier in source
    np.testing.assert_allclose(Tensor(a, device=device).sum(1).numpy(), a.sum(1, dtype=np.float64), rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_matrix_products_and_convolutions(device: str) -> None:
    for m, k, n in ((1, 7, 5), (33, 40, 52), (64, 64, 64)):
        a, b = drawn(m, k), drawn(k, n)
        np.testing.assert_allclose((Tensor(a, device=device) @ Tensor(b, device=device)).numpy(), a @ b,
                                   rtol=1e-4, atol=1e-4)
    x, w = drawn(2, 3, 8, 8), drawn(4, 3, 3, 3)
    found = Tensor(x, device=device).conv2d(Tensor(w, device=device), padding=1).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_allclose(found, np.einsum("bchwij,ocij->bohw", windows, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_rows(device: str) -> None:
    a = drawn(6, 300)
    t = Tensor(a, device=device)
    np.testing.assert_allclose(t.softmax().numpy(), softmax(a), rtol=1e-4)
    normed = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(t.layernorm().numpy(), normed, rtol=1e-3, atol=1e-4)
    q, k, v = drawn(2, 17, 8), drawn(2, 17, 8), drawn(2, 17, 8)
    tensors = [Tensor(x, device=device) for x in (q, k, v)]
    found = tensors[0].scaled_dot_product_attention(*tensors[1:])
    expected = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(8)) @ v
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_integers(device: str) -> None:
    a, b = np.array([-7, 7, 5, -(2**31), 2**31 - 1, 0]), np.array([2, -2, 0, -1, 3, 9])
    t, u = (Tensor(x.astype(np.int32), device=device) for x in (a, b))
    np.testing.assert_array_equal((t // u).numpy()[:2], [-4, -4])
    np.testing.assert_array_equal((t % u).numpy()[:2], [1, -1])
    np.testing.assert_array_equal((t * u + (t ^ u)).numpy(),
                                  (a.astype(np.int32) * b.astype(np.int32) + (a ^ b).astype(np.int32)))
    wide = Tensor(np.array([2**62 + 1, -5, 3]), device=device)
    np.testing.assert_array_equal((wide + wide % 7).numpy(), [2**62 + 1 + (2**62 + 1) % 7, -5 + 2, 6])
    np.testing.assert_array_equal(Tensor(np.arange(12).reshape(3, 4), device=device)[[2, 0]].numpy(),
                                  np.arange(12).reshape(3, 4)[[2, 0]])


NARROW = {dtypes.float16: np.float16, dtypes.bfloat16: ml_dtypes.bfloat16,
          dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn, dtypes.fp8e5m2: ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
@pytest.mark.parametrize("device", DEVICES)
def test_narrow_floats_are_rounded_as_ml_dtypes_does(device: str, dtype: DType) -> None:
    a = np.concatenate([drawn(200), drawn(200) * 1e-4, drawn(56) * 100,
                        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-8, -3e-8, 6e-5])]).astype(np.float32)
    with np.errstate(all="ignore"):
        narrow = a.astype(NARROW[dtype])
        expected = (narrow.astype(np.float32) * np.float32(1.5)).astype(NARROW[dtype]).astype(np.float32)
    found = (Tensor(a, device=device).cast(dtype) * 1.5).cast(dtypes.float32)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bool, dtypes.uint8, dtypes.int64],
                         ids=lambda d: d.name)
@pytest.mark.parametrize("device", DEVICES)
def test_items_under_a_condition(device: str, dtype: DType) -> None:
    """Around what is padded a thread reads nothing, and takes zero."""
    a = rng.integers(0, 2, (13, 11)).astype(dtype.numpy)
    found = Tensor(a, device=device).pad(((1, 2), (3, 4))).contiguous()
    np.testing.assert_array_equal(found.numpy(), np.pad(a, ((1, 2), (3, 4))))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_updates_and_replay(device: str) -> None:
    a, b = drawn(4, 6), drawn(6, 3)
    t, u = Tensor(a, device=device, requires_grad=True), Tensor(b, device=device, requires_grad=True)
    (t @ u).square().sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), 2 * (a @ b) @ b.T, rtol=1e-4, atol=1e-4)
    state = Tensor(np.zeros(5, np.float32), device=device).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x.sum(0)).realize()
        return (state * 2).realize()

    total = np.zeros(5, np.float32)
    for _ in range(4):
        x = drawn(3, 5)
        total += x.sum(0)
        np.testing.assert_allclose(step(Tensor(x, device=device)).numpy(), total * 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_seed_gives_the_numbers_of_the_cpu(device: str) -> None:
    found = []
    for name in ("CPU", device):
        Tensor.manual_seed(3)
        found.append(Tensor.rand(50, device=name).numpy())
    np.testing.assert_array_equal(*found)


# --- the machine that is emulated -------------------------------------------------------------------------


HEADS = {
    "CUDA": 'extern "C" __global__ void k(float *__restrict__ p) {{ __shared__ float s[{n}]; '
            'const long long i = threadIdx.x, b = blockIdx.x;',
    "METAL": "#include <metal_stdlib>\nusing namespace metal;\n"
             "kernel void k(device float *p, uint3 block [[threadgroup_position_in_grid]], "
             "uint3 at [[thread_position_in_threadgroup]]) {{ "
             "threadgroup float s[{n}]; const long i = at.x, b = block.x;",
}
HEADS["AMD"] = f"#include <hip/hip_runtime.h>\n{HEADS['CUDA']}"
BARRIERS = {"CUDA": "__syncthreads();", "AMD": "__syncthreads();",
            "METAL": "threadgroup_barrier(mem_flags::mem_threadgroup);"}


def run(kind: str, body: str, items: Array, blocks: Sequence[int], threads: Sequence[int]) -> Array:
    """What a kernel with one buffer `p`, shared memory `s`, block `b` and thread `i` leaves in the buffer."""
    device = Device[f"{kind}:EMULATED"]
    assert isinstance(device, EmulatedDevice)
    buffer = Buffer(device.name, items.size, dtypes.float32).allocate()
    buffer.copyin(items.view(np.uint8).data)
    source = HEADS[kind].format(n=threads[0]) + body.replace("BARRIER", BARRIERS[kind]) + "}"
    x, y, z = (*blocks, 1, 1)[:3]
    t, u, v = (*threads, 1, 1)[:3]
    program = device.load_blocks("k", device.compile(source), Launch((x, y, z), (t, u, v), (0,), 0))
    program([buffer.address], [], 1)
    return buffer.numpy()


@pytest.mark.parametrize("kind", LANGUAGES)
def test_barriers_hold_until_every_thread_has_come(kind: str) -> None:
    """Each round every thread reads what its two neighbours wrote in the round before."""
    threads, blocks, rounds = 64, 5, 7
    start = drawn(blocks, threads)
    found = run(kind, f"""
        float mine = p[b * {threads} + i];
        for (int round = 0; round < {rounds}; round++) {{
            s[i] = mine;
            BARRIER
            mine = s[(i + 1) % {threads}] + s[(i + {threads - 1}) % {threads}];
            BARRIER
        }}
        p[b * {threads} + i] = mine;""", start.reshape(-1), (blocks,), (threads,))
    expected = start
    for _ in range(rounds):
        expected = np.roll(expected, -1, 1) + np.roll(expected, 1, 1)
    np.testing.assert_array_equal(found, expected.reshape(-1))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_every_thread_of_every_block_runs_once(kind: str) -> None:
    blocks, threads = 301, 32  # enough to be shared out over cores
    zeros = np.zeros(blocks * threads, np.float32)
    found = run(kind, f"p[b * {threads} + i] += b * 1000 + i;", zeros, (blocks,), (threads,))
    np.testing.assert_array_equal(found.reshape(blocks, threads),
                                  np.arange(blocks)[:, None] * 1000 + np.arange(threads))


@pytest.mark.parametrize("condition", ["i < 3", "i != 63", "b == 0 && i == 5"])
@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_barrier_that_not_all_threads_reach_is_an_error(kind: str, condition: str) -> None:
    with pytest.raises(RuntimeError, match="kernel k: some threads of a block wait at a barrier"):
        run(kind, f"if ({condition}) {{ BARRIER }} p[i] = i;", np.zeros(64, np.float32), (2,), (64,))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_more_threads_than_a_block_has_are_an_error(kind: str) -> None:
    run(kind, "p[i] = i;", np.zeros(1024, np.float32), (1,), (1024,))
    with pytest.raises(RuntimeError, match="kernel k: a block has 1,024 threads at most, not 2,048"):
        run(kind, "p[i] = i;", np.zeros(2048, np.float32), (1,), (2048,))


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_rows_are_spread_over_more_threads_than_summed_them(device: str) -> None:
    a, b = drawn(4, 64), drawn(4, 256)
    result = Tensor(a, device=device).sum(1, keepdim=True) * Tensor(b, device=device)
    expected = a.sum(1, keepdims=True, dtype=np.float64) * b
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_kernel_that_does_not_compile_is_shown_with_the_reason(kind: str) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)undeclared_name.*    1  .*undeclared_name"):
        run(kind, "p[i] = undeclared_name;", np.zeros(8, np.float32), (1,), (8,))


def test_memory_is_reached_by_copies_alone() -> None:
    array = drawn(100)
    tensor = Tensor(array, device="CUDA:EMULATED").realize()
    array[:] = 0
    assert np.abs(tensor.numpy()).max() > 0


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match=r"C\+\+ compiler.*install g\+\+ or clang\+\+"):
        emulator.open_device("CUDA:EMULATED")


def test_metal_has_no_float64_and_says_who_has() -> None:
    with pytest.raises(ValueError, match=r"float64.*CPU"):
        (Tensor([1.0, 2.0], dtype=dtypes.float64, device="METAL:EMULATED") + 1).numpy()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.int64, dtypes.uint8],
                         ids=lambda d: d.name)
@pytest.mark.parametrize("kind", LANGUAGES)
def test_one_access_moves_several_items(kind: str, dtype: DType) -> None:
    """Each thread moves its items to where those of its mirror image lay, the last of them where a condition
    holds."""
    count, threads = min(4, 16 // dtype.itemsize), 8
    index, vector, items = dtypes.index, dtype.vec(count), count * threads
    thread = UOp.new(Ops.SPECIAL, index, (), ("lidx0", threads))
    width, last = UOp.const(count, index), UOp.const(threads - 1, index)
    mirrored = UOp.new(Ops.SUB, index, (last, thread))
    start, end = (UOp.new(Ops.MUL, index, (n, width)) for n in (thread, mirrored))
    valid = UOp.new(Ops.CMPLT, dtypes.bool, (thread, last))
    target, source = (UOp.new(Ops.PARAM, dtype, (), (slot, items)) for slot in (0, 1))
    at, to = UOp.new(Ops.INDEX, dtype, (source, start, valid)), UOp.new(Ops.INDEX, dtype, (target, end))
    load = UOp.new(Ops.LOAD, vector, (at,))
    lanes = [UOp.new(Ops.EXTRACT, dtype, (load,), i) for i in range(count)]
    again = UOp.new(Ops.VECTORIZE, vector, tuple(lanes))
    program = [width, last, target, source, thread, mirrored, start, end, valid, at, load, *lanes, again, to,
               UOp.new(Ops.STORE, vector, (to, again))]
    device = Device[f"{kind}:EMULATED"]
    text = device.renderer.render("mirror", program)
    assert f"load_lanes<{count}>(" in text and "store_lanes(" in text
    given = rng.integers(0, 100, items).astype(dtype.numpy)
    buffers = [Buffer(device.name, items, dtype).allocate() for _ in range(2)]
    buffers[1].copyin(given.view(np.uint8).data)
    kernel = device.load_blocks("mirror", device.compile(text), launch_of(program))
    kernel([b.address for b in buffers], [], 1)
    expected = given.reshape(threads, count)[::-1].copy()
    expected[0] = 0
    np.testing.assert_array_equal(buffers[0].numpy(), expected.reshape(-1))
