"""What an NVIDIA GPU does with this library, beside PyTorch as it is and compiled: `python -m bench gpu`.

Products of matrices, rows and sums of a gigabyte, attention: each in this library on CUDA and, where PyTorch
with CUDA is installed in the same environment, in PyTorch. A figure is the median of `--rounds` turns, in
which the libraries alternate; the clock runs from the first launch to the end of the last one. The first row
is a copy of a gigabyte, whose rate bounds those that only move memory.
"""
from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.results import columns
from bench.workloads.base import OURS
from tinygrad import Context, Device, Tensor

GIGABYTE = 1 << 30
SIZES = (1024, 2048, 4096, 8192)
LAUNCHES = 10
"""Of a row in one turn: the clock's own cost is shared by all of them."""
WARM_TURNS = 2
Run = Callable[[], Any]


class NoGPU(RuntimeError):
    """There is nothing to measure on."""


@dataclass(frozen=True)
class GPURow:
    """A named operation: inputs by shape, and how each library's user writes it."""

    name: str
    shapes: Sequence[tuple[int, ...]]
    dtype: str
    operations: float
    moved_bytes: float
    tinygrad: Callable[..., Any]
    torch: Callable[..., Any]
    tf32: bool = False


def matmul(n: int, dtype: str, tf32: bool = False) -> GPURow:
    """Two square matrices."""
    size = 4 if dtype == "float32" else 2
    kind = "tf32" if tf32 else dtype
    return GPURow(f"matmul {n} {kind}", [(n, n), (n, n)], dtype, 2.0 * n**3, 3.0 * n * n * size,
                  lambda a, b: a @ b, lambda torch, a, b: a @ b, tf32)


def gigabyte_rows() -> list[GPURow]:
    """Work that memory bounds, on float32."""
    items = GIGABYTE // 4
    rows = (items // 4096, 4096)
    return [
        GPURow("copy, 1 GB", [(items,)], "float32", 0.0, 2.0 * GIGABYTE,
               lambda x: x + 0, lambda torch, x: x.clone()),
        GPURow("add, 1 GB", [(items // 2,), (items // 2,)], "float32", items / 2, 1.5 * GIGABYTE,
               lambda x, y: x + y, lambda torch, x, y: x + y),
        GPURow("gelu, 1 GB", [(items,)], "float32", 9.0 * items, 2.0 * GIGABYTE,
               lambda x: x.gelu(), lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
        GPURow("sum, 1 GB", [(items,)], "float32", float(items), float(GIGABYTE),
               lambda x: x.sum(), lambda torch, x: x.sum()),
        GPURow("softmax, 1 GB", [rows], "float32", 5.0 * items, 2.0 * GIGABYTE,
               lambda x: x.softmax(-1), lambda torch, x: torch.softmax(x, -1)),
        GPURow("layer norm, 1 GB", [rows], "float32", 8.0 * items, 2.0 * GIGABYTE,
               lambda x: x.layernorm(), lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    ]


def attention(heads: int, length: int, size: int) -> GPURow:
    """Causal attention in bfloat16."""
    shape = (1, heads, length, size)
    return GPURow(
        f"causal attention, {heads}x{length}x{size} bfloat16", [shape] * 3, "bfloat16",
        2.0 * heads * length * (length + 1) * size, 8.0 * heads * length * size,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def all_rows() -> list[GPURow]:
    products = [matmul(n, dtype) for dtype in ("bfloat16", "float16", "float32") for n in SIZES]
    return [*gigabyte_rows(), *products, *(matmul(n, "float32", tf32=True) for n in SIZES),
            attention(16, 4096, 128)]


# --- running them -------------------------------------------------------------------------------------------


def our_run(row: GPURow) -> Run:
    """The operation in this library, with its kernels compiled."""
    inputs = [Tensor.randn(*shape, device="CUDA").cast(row.dtype).realize() for shape in row.shapes]

    def run() -> None:
        with Context(ALLOW_TF32=int(row.tf32)):
            for _ in range(LAUNCHES):
                row.tinygrad(*inputs).realize()
        Device["CUDA"].synchronize()

    return run


def torch_run(torch: Any, row: GPURow, compiled: bool) -> Run:
    """The operation in PyTorch."""
    inputs = [torch.randn(*s, device="cuda").to(getattr(torch, row.dtype)) for s in row.shapes]

    def operation(*given: Any) -> Any:
        return row.torch(torch, *given)

    called = torch.compile(operation) if compiled else operation

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = row.tf32
        for _ in range(LAUNCHES):
            called(*inputs)
        torch.cuda.synchronize()

    return run


def libraries() -> Mapping[str, Callable[[GPURow], Run]]:
    """How each library that is here runs a row. Raises NoGPU with the reason where CUDA cannot be opened."""
    try:
        Device["CUDA"]
    except (ImportError, OSError, RuntimeError) as error:
        raise NoGPU(f"bench gpu needs an NVIDIA GPU: {error}") from error
    found: dict[str, Callable[[GPURow], Run]] = {OURS: our_run}
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    if torch.cuda.is_available():
        found["torch"] = lambda row: torch_run(torch, row, compiled=False)
        found["torch.compile"] = lambda row: torch_run(torch, row, compiled=True)
    return found


def seconds(run: Run) -> float:
    """Of one launch."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / LAUNCHES


def measured(row: GPURow, makers: Mapping[str, Callable[[GPURow], Run]], rounds: int) -> dict[str, float]:
    """The median time of each library, in turns."""
    runs = {name: make(row) for name, make in makers.items()}
    for run in runs.values():
        for _ in range(WARM_TURNS):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return {name: median(found) for name, found in times.items()}


def table(found: Sequence[tuple[GPURow, dict[str, float]]], names: Sequence[str]) -> str:
    """Milliseconds of each library, and our rates."""
    lines = [["row", *(f"{name} ms" for name in names), "TFLOP/s", "GB/s"]]
    for row, times in found:
        ours = times[OURS]
        lines.append([row.name, *(f"{times[name] * 1e3:.3f}" for name in names),
                      f"{row.operations / ours * 1e-12:.1f}", f"{row.moved_bytes / ours * 1e-9:.0f}"])
    return columns(lines)


def run_gpu(only: Sequence[str] | None, rounds: int) -> str:
    """The table of all rows, or of those whose name contains one of `only`."""
    makers = libraries()
    rows = [row for row in all_rows() if not only or any(text in row.name for text in only)]
    return table([(row, measured(row, makers, rounds)) for row in rows], list(makers))
