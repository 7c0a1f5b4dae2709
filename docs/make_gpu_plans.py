"""Writes `gpu_plans.md`: what the cost model's plans for an NVIDIA GPU are made of, without one.

`python docs/make_gpu_plans.py` compiles a spread of kernels for sm_90 with NVRTC, asks ptxas for registers
and spills, and counts what the linear programs do. The bounds are those of an H200; nothing here is measured.
"""
from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.gpu_rows import FULL
from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.cost import estimate
from tinygrad.codegen.opt.opts import MMA, Attention, OnlineSoftmax, Row, Scatter, Stage, Tighten
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.cuda import HOPPER, HOPPER_SHARED_BYTES, cuda_renderer
from tinygrad.renderer.launch import Launch, launch_of
from tinygrad.runtime import nvrtc

DEVICE = "PYTHON:HOPPER"
"""Whose plans are those of CUDA there."""
ARCHITECTURE = "sm_90a"
MULTIPROCESSORS, CLOCK = 132, 1.755e9
FLOAT_RATE = MULTIPROCESSORS * 128 * CLOCK
"""Instructions on float32 in a second."""
SHARED_RATE = MULTIPROCESSORS * 128 * CLOCK
"""Bytes of shared memory in a second."""
MEMORY_RATE, UNIT_RATE = 4.8e12, {"bf16": 990e12, "f16": 990e12, "tf32": 495e12, "s8": 1979e12}
SHOWN = (Row, OnlineSoftmax, Stage, MMA, Attention, Scatter, Tighten)
REGISTERS, SHARED_BYTES, THREADS, BLOCKS = 65536, 227 << 10, 2048, 32
"""Of a multiprocessor."""


@dataclass(frozen=True)
class Counts:
    """What all threads of a kernel do."""

    float_instructions: int
    shared_bytes: int
    global_bytes: int
    unit_seconds: float

    @property
    def seconds(self) -> float:
        """The longest of what runs beside each other."""
        return max(self.float_instructions / FLOAT_RATE, self.shared_bytes / SHARED_RATE, self.unit_seconds)


def counts_of(program: Sequence[UOp], launch: Launch) -> Counts:
    """Every statement as often as its loops run it; loops that stop early, as half of them."""
    found: Counter[str] = Counter()
    unit_seconds = 0.0
    times = [math.prod(launch.blocks) * math.prod(launch.threads)]
    for node in program:
        if node.op is Ops.RANGE:
            times.append(times[-1] * node.extent // (1 if all(s.op is Ops.CONST for s in node.src) else 2))
        elif node.op is Ops.END:
            times.pop()
        elif node.op is Ops.MMA:
            unit = node.arg
            operations = 2 * unit.m * unit.n * unit.k * times[-1] / unit.threads
            unit_seconds += operations / UNIT_RATE[unit.name.split("_")[2]]
        elif node.op in Family.ELEMENTWISE and node.dtype.is_float:
            found["float"] += times[-1] * node.dtype.count
        elif node.op in (Ops.LOAD, Ops.STORE, Ops.PREFETCH) and node.src[0].op is Ops.INDEX:
            dtype = node.src[1].dtype if node.op is Ops.STORE else node.dtype
            memories = [s.src[0].op for s in node.src if s.op is Ops.INDEX]
            for memory in memories:
                found[memory.name] += times[-1] * dtype.itemsize
    return Counts(found["float"], found["SHARED"], found["PARAM"], unit_seconds)


def resources(source: str) -> tuple[int, int]:
    """(registers of a thread, bytes that it spills), as ptxas says."""
    compiler = nvrtc._nvrtc()
    options = [f"--gpu-architecture={ARCHITECTURE}", *nvrtc.OPTIONS, *nvrtc._include_options(),
               "--ptxas-options=-v"]
    program = nvrtc._value(compiler.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    nvrtc._value(compiler.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
    words = bytearray(nvrtc._value(compiler.nvrtcGetProgramLogSize(program)))
    compiler.nvrtcGetProgramLog(program, words)
    text = words.decode()
    numbers = [re.search(pattern, text) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
    return int(numbers[0][1]) if numbers[0] else 0, int(numbers[1][1]) if numbers[1] else 0


def blocks_at_once(registers: int, launch: Launch) -> int:
    """Blocks that a multiprocessor holds: registers come in units of 8 for each warp's thread."""
    threads = math.prod(launch.threads)
    warps = -(-threads // 32)
    held = warps * 32 * (-(-registers // 8) * 8)
    shared = SHARED_BYTES // (launch.shared_bytes + 1024)
    return min(REGISTERS // held, THREADS // (warps * 32), shared, BLOCKS)


# --- what is compiled ------------------------------------------------------------------------------------


def empty(*shape: int) -> Tensor:
    """A tensor of bfloat16 that a gradient goes to."""
    return Tensor.empty(*shape, dtype=dtypes.bfloat16, device=DEVICE, requires_grad=True)


def convolution(images: int, inputs: int, outputs: int, side: int, size: int, stride: int) -> list[Tensor]:
    """One of ResNet-50's, with its gradients."""
    x, w = empty(images, inputs, side, side), empty(outputs, inputs, size, size)
    y = x.conv2d(w, stride=stride, padding=size // 2)
    gradient = Tensor.empty(*y.shape, dtype=y.dtype, device=DEVICE)
    return [y, *y.gradient(x, w, gradient=gradient)]


def transformer(batch: int, length: int, width: int, heads: int) -> list[Tensor]:
    """A layer of GPT-2 with its gradients."""
    x = empty(batch, length, width)
    weights = [empty(width, 3 * width), empty(width, width), empty(width, 4 * width), empty(4 * width, width)]
    q, k, v = ((x.layernorm() @ weights[0]).reshape(batch, length, 3, heads, width // heads)
               .permute(2, 0, 3, 1, 4)[i] for i in range(3))
    seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
    y = x + seen @ weights[1]
    y = y + (y.layernorm() @ weights[2]).gelu() @ weights[3]
    gradient = Tensor.empty(*y.shape, dtype=y.dtype, device=DEVICE)
    return [y, *y.gradient(x, *weights, gradient=gradient)]


def logits_loss(rows: int, width: int, words: int) -> list[Tensor]:
    """GPT-2's last product, its loss and the gradients."""
    x, w = empty(rows, width), empty(words, width)
    target = Tensor.empty(rows, dtype=dtypes.int32, device=DEVICE)
    loss = (x @ w.T).float().sparse_categorical_crossentropy(target)
    return [loss, *loss.gradient(x, w)]


def embedding(count: int, width: int, words: int) -> list[Tensor]:
    """The gradient of GPT-2's embedding: rows added where they were looked up."""
    rows, place = empty(words, width), Tensor.empty(count, dtype=dtypes.int32, device=DEVICE)
    return (rows[place] * empty(count, width)).float().sum().gradient(rows)


@dataclass(frozen=True)
class Single:
    """One operation on tensors of these shapes, as `bench gpu` measures it."""

    name: str
    shapes: Sequence[tuple[int, ...]]
    dtype: str
    compute: Callable[..., Tensor]
    tf32: bool = False

    def built(self) -> list[Tensor]:
        inputs = [Tensor.empty(*s, dtype=getattr(dtypes, self.dtype), device=DEVICE) for s in self.shapes]
        return [self.compute(*inputs)]


def singles() -> Iterator[Single]:
    """What memory bounds, products of matrices, and attention."""
    items, rows = FULL.moved // 4, (FULL.moved // 4 // FULL.row, FULL.row)
    yield Single("copy, 1 GB", [(items,)], "float32", lambda x: x + 0)
    yield Single("add, 1 GB", [(items // 2,)] * 2, "float32", lambda x, y: x + y)
    yield Single("gelu, 1 GB", [(items,)], "float32", Tensor.gelu)
    yield Single("sum, 1 GB", [(items,)], "float32", Tensor.sum)
    yield Single("softmax, 1 GB", [rows], "float32", Tensor.softmax)
    yield Single("layer norm, 1 GB", [rows], "float32", Tensor.layernorm)
    for dtype in ("bfloat16", "float16", "float32", "tf32"):
        kind, tf32 = ("float32", True) if dtype == "tf32" else (dtype, False)
        for n in FULL.products:
            yield Single(f"matmul {n} {dtype}", [(n, n)] * 2, kind, Tensor.matmul, tf32)
    heads, length, size = FULL.attention
    yield Single(f"causal attention, {heads}x{length}x{size} bfloat16", [(heads, length, size)] * 3,
                 "bfloat16", partial(Tensor.scaled_dot_product_attention, is_causal=True))


CONVOLUTIONS = ((64, 64, 56, 3, 1), (256, 64, 56, 1, 1), (128, 128, 56, 3, 2), (512, 512, 7, 3, 1),
                (3, 64, 224, 7, 2))
"""Inputs, outputs, side, size and stride of some of ResNet-50's."""


def workloads() -> Iterator[tuple[str, Callable[[], list[Tensor]], bool]]:
    """Names, what makes the tensors, and whether tf32 will do."""
    for single in singles():
        yield single.name, single.built, single.tf32
    for sizes in CONVOLUTIONS:
        inputs, outputs, side, size, stride = sizes
        name = f"convolution 128x{inputs}x{side}x{side}, {outputs} of {size}x{size}, stride {stride}"
        yield f"{name}, gradients", partial(convolution, 128, *sizes), False
    yield "a layer of GPT-2 124M, 8x1024, gradients", partial(transformer, 8, 1024, 768, 12), False
    yield "the loss of GPT-2 124M, 8x1024, gradients", partial(logits_loss, 8192, 768, 50257), False
    yield "the gradient of GPT-2 124M's embedding, 8x1024", partial(embedding, 8192, 768, 50257), False


# --- the table ------------------------------------------------------------------------------------------

COLUMNS = ("kernel", "blocks x threads", "plan", "registers", "spilled", "shared KB", "blocks at once",
           "bytes, us", "accesses, us", "instructions, us")


def kernels_of(tensors: Sequence[Tensor]) -> Iterator[list[str]]:
    """A row of the table for each kernel, without its name."""
    for item in schedule_uops([t.uop for t in tensors]):
        if item.ast.op is Ops.SINK:
            stages = stages_of(item.ast, item.device)
            launch = launch_of(stages.program)
            renderer = cuda_renderer(HOPPER, HOPPER_SHARED_BYTES)
            registers, spilled = resources(renderer.render("kernel", stages.program))
            counts = counts_of(stages.program, launch)
            kinds = dict.fromkeys(o.word() for o in stages.plan.opts if isinstance(o, SHOWN))
            times = (estimate(stages.nest).bytes / MEMORY_RATE, counts.global_bytes / MEMORY_RATE,
                     counts.seconds)
            yield [f"{math.prod(launch.blocks)} x {math.prod(launch.threads)}", " ".join(kinds),
                   str(registers), str(spilled), f"{launch.shared_bytes / 1024:.0f}",
                   str(blocks_at_once(registers, launch)), *(f"{t * 1e6:.0f}" for t in times)]


def table(only: str) -> str:
    """All workloads whose names have `only` in them."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, build, tf32 in workloads():
        if only in name:
            with Context(ALLOW_TF32=int(tf32)):
                lines += [(name if i == 0 else "", *row) for i, row in enumerate(kernels_of(build()))]
        print(name, file=sys.stderr, flush=True)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


HEAD = """# Plans for an NVIDIA GPU

What the kernels of `python -m bench gpu`, some convolutions of ResNet-50, a layer of GPT-2, its loss and the
gradient of its embedding are made of, as NVRTC compiles them for {architecture}. Nothing here is measured:
`python docs/make_gpu_plans.py` needs no GPU. *Blocks at once* is what a multiprocessor holds. *Bytes* is how
long an H200 takes to move each buffer once, *accesses* to move what threads load and store, if no cache
helped (all threads of an embedding's gradient read the same places); *instructions* is the longest of
arithmetic on floats, shared memory, and matrix units at their peak rates. A kernel takes at least the longer
of the first and the last.

"""

if __name__ == "__main__":
    found = table(sys.argv[1] if len(sys.argv) > 1 else "")
    if len(sys.argv) > 1:
        print(found)
    else:
        page = HEAD.format(architecture=ARCHITECTURE) + found + "\n"
        Path(__file__).with_name("gpu_plans.md").write_text(page, encoding="utf-8")
