"""The spread of kernels that tests of plans compute, as tensors and in NumPy, and machines to plan for."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen import compile as compiling
from tinygrad.codegen.lower import lower
from tinygrad.device import Device
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.renderer.matrix_units import AMX, DOT_BF16
from tinygrad.runtime.cpu import cpu_renderer, host

Array = np.ndarray[Any, Any]

MACHINES = {
    "AVX-512": LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2)),
    "AVX-512, small cache": LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2, l3_bytes=64)),
    "AVX2": LLVMRenderer(cores(vector_bytes=32, registers=16, threads=2, l3_bytes=64)),
    "NEON": LLVMRenderer(cores(vector_bytes=16, registers=32, threads=2)),
    "SSE": LLVMRenderer(cores(vector_bytes=16, registers=16, threads=1)),
}
if DOT_BF16 in host().matrix_units:
    MACHINES["AVX-512 BF16"] = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2,
                                                  matrix_units=(DOT_BF16,)))
if cpu_renderer().has_vnni and host().vector_bytes == 64:
    MACHINES["AVX-512 VNNI"] = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2), has_vnni=True)
if cpu_renderer().has_pairs:
    MACHINES["SSSE3"] = LLVMRenderer(cores(vector_bytes=16, registers=16, threads=2), has_pairs=True)
    if host().vector_bytes >= 32:
        MACHINES["AVX2 pairs"] = LLVMRenderer(cores(vector_bytes=32, registers=16, threads=2), has_pairs=True)
    if host().vector_bytes == 64:
        MACHINES["AVX-512 pairs"] = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2),
                                                 has_pairs=True)
if set(AMX) <= set(host().matrix_units):
    MACHINES["AMX"] = LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2, matrix_units=AMX))


# --- the spread of kernels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A computation on tensors, and the same in NumPy on float64."""

    shapes: tuple[tuple[int, ...], ...]
    tensors: Callable[..., Tensor]
    arrays: Callable[..., Any]
    dtype: Any = np.float32
    tolerance: float = 1e-5

    def inputs(self) -> list[Array]:
        draw = np.random.default_rng(7)
        return [draw.standard_normal(shape).astype(self.dtype) for shape in self.shapes]

    def check(self, note: object = "") -> None:
        """Compute it and compare."""
        inputs = self.inputs()
        got = self.tensors(*(Tensor(x).realize() for x in inputs)).numpy().astype(np.float64)
        expected = np.asarray(self.arrays(*(x.astype(np.float64) for x in inputs)))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got / scale, expected / scale, 0, self.tolerance, err_msg=str(note))


def transposed(a: Any, b: Any, first: bool, second: bool) -> tuple[Any, Any]:
    return (a.T if first else a), (b.T if second else b)


def matmul(m: int, k: int, n: int, first: bool = False, second: bool = False, dtype: Any = np.float32,
           tolerance: float = 1e-5) -> Case:
    def product(a: Any, b: Any) -> Any:
        a, b = transposed(a, b, first, second)
        return a @ b

    shapes = ((k, m) if first else (m, k), (n, k) if second else (k, n))
    return Case(shapes, product, product, dtype, tolerance)


def softmax_of(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm_of(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def attention_of(q: Array, k: Array, v: Array, causal: bool) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return np.asarray(softmax_of(scores) @ v)


def attention(shape: tuple[int, ...], causal: bool) -> Case:
    return Case((shape,) * 3, lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
                lambda q, k, v: attention_of(q, k, v, causal))


def convolved(x: Array, w: Array, stride: int, padding: int, dilation: int, groups: int) -> Array:
    """A convolution, one tap of the kernel at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = ((x.shape[i] - dilation * (w.shape[i] - 1) - 1) // stride + 1 for i in (2, 3))
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    result = np.zeros((x.shape[0], groups, w.shape[1], height, width))
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            rows = slice(i * dilation, i * dilation + stride * (height - 1) + 1, stride)
            columns = slice(j * dilation, j * dilation + stride * (width - 1) + 1, stride)
            result += np.einsum("ngchw,goc->ngohw", x[:, :, :, rows, columns], w[..., i, j])
    return result.reshape(x.shape[0], -1, height, width)


def convolution(x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, padding: int = 0, dilation: int = 1,
                groups: int = 1, dtype: Any = np.float32, tolerance: float = 1e-5) -> Case:
    return Case((x, w), lambda x, w: x.conv2d(w, None, groups, stride, dilation, padding),
                lambda x, w: convolved(x, w, stride, padding, dilation, groups), dtype, tolerance)


def gradients(result: Tensor, *inputs: Tensor) -> Tensor:
    """The gradients of the sum of squares, side by side."""
    found = result.square().sum().gradient(*inputs)
    return Tensor.cat(*(g.flatten() for g in found))


def matmul_gradients(a: Array, b: Array) -> Array:
    return np.concatenate([(2 * a @ b @ b.T).ravel(), (2 * a.T @ a @ b).ravel()])


CASES = {
    "matmul": matmul(70, 37, 50),
    "matmul, left transposed": matmul(70, 37, 50, first=True),
    "matmul, right transposed": matmul(70, 37, 50, second=True),
    "matmul, both transposed": matmul(70, 37, 50, first=True, second=True),
    "matmul of whole tiles": matmul(96, 64, 128),
    "matmul, large and odd": matmul(131, 257, 193),
    "matrix times vector": Case(((97, 131), (131,)), lambda a, b: a @ b, lambda a, b: a @ b),
    "vector times matrix": matmul(1, 131, 97),
    "two rows": matmul(2, 64, 300),
    "two columns": matmul(300, 64, 2),
    "eleven columns": matmul(300, 64, 11),
    "seven columns, both transposed": matmul(130, 64, 7, first=True, second=True),
    "outer product": matmul(33, 1, 65),
    "one long sum": matmul(1, 3000, 1),
    "batched matmul": Case(((3, 17, 24), (3, 24, 50)), lambda a, b: a @ b, lambda a, b: a @ b),
    "batch of one matrix": Case(((3, 17, 24), (24, 50)), lambda a, b: a @ b, lambda a, b: a @ b),
    "two matmuls": Case(((20, 30), (30, 40), (40, 25)), lambda a, b, c: a @ b @ c, lambda a, b, c: a @ b @ c),
    "matmul, bias and relu": Case(((40, 33), (33, 50), (50,)), lambda a, b, c: (a @ b + c).relu(),
                                  lambda a, b, c: np.maximum(a @ b + c, 0)),
    "matmul's gradients": Case(((40, 33), (33, 50)), lambda a, b: gradients(a @ b, a, b), matmul_gradients),
    "bfloat16 matmul": matmul(33, 64, 50, dtype=ml_dtypes.bfloat16, tolerance=8e-3),
    "bfloat16 matmul, both transposed": matmul(70, 34, 21, True, True, ml_dtypes.bfloat16, 8e-3),
    "bfloat16 matmul, odd": matmul(65, 131, 129, True, dtype=ml_dtypes.bfloat16, tolerance=8e-3),
    "float16 matmul": matmul(33, 64, 50, dtype=np.float16, tolerance=1e-3),
    "float64 matmul": matmul(33, 64, 50, dtype=np.float64, tolerance=1e-14),
    "convolution": convolution((2, 8, 12, 12), (16, 8, 3, 3), padding=1),
    "bfloat16 convolution": convolution((2, 16, 13, 20), (17, 16, 3, 3), 2, 1, dtype=ml_dtypes.bfloat16,
                                        tolerance=8e-3),
    "convolution, stride 2": convolution((2, 3, 15, 15), (8, 3, 3, 3), stride=2, padding=1),
    "convolution to eleven channels": convolution((2, 7, 23, 30), (11, 7, 3, 3), stride=2),
    "convolution, dilation 2": convolution((1, 5, 14, 13), (6, 5, 3, 2), dilation=2),
    "convolution, two groups": convolution((2, 8, 9, 9), (12, 4, 3, 3), padding=1, groups=2),
    "depthwise convolution": convolution((2, 20, 11, 11), (20, 1, 3, 3), padding=1, groups=20),
    "pointwise convolution": convolution((2, 33, 7, 7), (20, 33, 1, 1)),
    "softmax": Case(((37, 100),), lambda x: x.softmax(), softmax_of),
    "softmax of short rows": Case(((100, 5),), lambda x: x.softmax(), softmax_of),
    "softmax down columns": Case(((37, 100),), lambda x: x.softmax(0), lambda x: softmax_of(x.T).T),
    "layer norm": Case(((19, 129),), lambda x: x.layernorm(), layer_norm_of),
    "attention": attention((1, 2, 37, 16), causal=False),
    "causal attention": attention((1, 2, 37, 16), causal=True),
    "attention of whole tiles": attention((2, 64, 32), causal=True),
    "transpose": Case(((50, 37),), lambda x: x.permute(1, 0).contiguous(), lambda x: x.T),
    "transpose of the outer axes": Case(((9, 20, 17),), lambda x: x.permute(1, 0, 2).contiguous(),
                                        lambda x: x.transpose(1, 0, 2)),
    "transpose of three axes": Case(((9, 20, 17),), lambda x: x.permute(2, 1, 0).contiguous(),
                                    lambda x: x.transpose(2, 1, 0)),
    "sum": Case(((1000,),), lambda x: x.square().sum(), lambda x: (x * x).sum()),
    "sum of columns": Case(((37, 50),), lambda x: x.sum(0), lambda x: x.sum(0)),
    "elementwise": Case(((37, 50), (50,)), lambda x, y: (x * y).exp() + x, lambda x, y: np.exp(x * y) + x),
}


@pytest.fixture
def fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel compiled before is used, nor kept for other tests."""
    monkeypatch.setattr(compiling, "_kernels", OrderedDict())


def on(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and code as for a machine."""
    monkeypatch.setattr(Device["CPU"], "_renderer", MACHINES[machine])


# --- edits of plans -----------------------------------------------------------------------------------------


def kernel_of(*results: Tensor) -> UOp:
    """The one kernel that computes `results`."""
    items = results[0].schedule(*results[1:])
    assert len(items) == 1, items
    return items[0].ast


def nest_of(result: Tensor) -> UOp:
    """The nest of the one kernel that computes `result`."""
    [item] = result.schedule()
    return lower(item.ast)


def product(m: int, k: int, n: int) -> Tensor:
    draw = np.random.default_rng(0)
    a, b = (Tensor(draw.standard_normal(s).astype(np.float32)).realize() for s in ((m, k), (k, n)))
    return a @ b
