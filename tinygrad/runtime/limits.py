"""What this CPU can do: the limits that a measurement is read against, at DEBUG=2 and in the benchmark.

A few small generated loops, run on every thread at once: multiply-adds held in registers (peak arithmetic), a
sum over four stretches of memory side by side (read bandwidth) and a copy whose stores go past the caches
(bytes read plus bytes written); products of bfloat16 too, on a core's unit for them, if it has one. They are
LLVM IR, so no compiler is needed and nothing of the library's own code generation is involved, and compiled
for the features that kernels are compiled for: with `CPU_FEATURES=-avx512f` the peak is that of AVX2.
"""
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tinygrad.device.host import host_units, vector_bytes, vector_registers
from tinygrad.device.limits import Limits
from tinygrad.dtype import dtypes
from tinygrad.renderer.matrix_units import AMX, DOT_BF16, MatrixUnit
from tinygrad.runtime.llvm import initialise_llvm, load_object, target_machine

MEMORY_BYTES = 256 << 20
"""More than the caches of any machine this runs on, so that every pass goes to memory."""
ACCUMULATORS = {16: 12, 32: 20}
"""Independent multiply-adds, by the registers there are: latency (4) times units (2) needs 8, on some CPUs of
4 lanes 16; operands need the registers left."""
ROUNDS = 4_000_000
"""Times that each of them is added to."""
UNIT_ROUNDS = {AMX[0]: 300_000, DOT_BF16: 2_000_000}
"""As ROUNDS, of the products of a unit."""
UNIT_ACCUMULATORS = {AMX[0]: 4, DOT_BF16: 20}
STREAMS = 4
"""Stretches of memory that are read side by side: one keeps a core's prefetchers from their best."""


class LimitMeter:
    """The loops compiled, and memory for them: machines that are shared change their rates within minutes, so
    that a benchmark measures them again beside each row."""

    def __init__(self, threads: int) -> None:
        self.threads, self.lanes = threads, vector_bytes() // 4
        self.accumulators = ACCUMULATORS[vector_registers()]
        self.unit = next((unit for unit in host_units() if unit.source is dtypes.bfloat16), None)
        self.kernels = _compiled(_source(self.lanes, self.accumulators)
                                 + (_unit_source(self.unit) if self.unit else ""))
        self.source, self.target = _aligned(), _aligned()
        self.pool = ThreadPoolExecutor(threads)

    def measure(self, repeats: int = 1) -> Limits:
        """The best of `repeats` runs of each loop."""
        vectors = self.source.size // self.lanes // self.threads
        size = vectors * self.lanes * 4

        def part(array: np.ndarray[Any, Any], thread: int) -> int:
            return int(array.ctypes.data) + thread * size

        arithmetic = self.best(repeats, lambda thread: self.kernels["arithmetic"](ROUNDS, 0.5))
        read = self.best(repeats, lambda thread: self.kernels["read"](part(self.source, thread), vectors))
        copied = self.best(repeats, lambda thread: self.kernels["copy"](
            part(self.source, thread), part(self.target, thread), vectors))
        operations = 2.0 * ROUNDS * self.accumulators * self.lanes * self.threads
        moved = float(size) * self.threads
        return Limits(self.threads, self.lanes, operations / arithmetic / 1e9, moved / read / 1e9,
                      2 * moved / copied / 1e9, self.unit_rate(repeats) / 1e9)

    def unit_rate(self, repeats: int) -> float:
        """Operations a second of bfloat16 products on the unit for them."""
        if self.unit is None:
            return 0.0
        unit, rounds, results = self.unit, UNIT_ROUNDS[self.unit], np.zeros((self.threads, 4096), np.float32)
        seconds = self.best(repeats, lambda thread: self.kernels["products"](
            results[thread].ctypes.data, rounds))
        return 2.0 * unit.m * unit.n * unit.k * UNIT_ACCUMULATORS[unit] * rounds * self.threads / seconds

    def best(self, repeats: int, work: Callable[[int], object]) -> float:
        """The least seconds that all threads took to work at once."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            list(self.pool.map(work, range(self.threads)))
            times.append(time.perf_counter() - start)
        return min(times)


def measure_limits(threads: int, repeats: int = 5) -> Limits:
    """The best of `repeats` runs of each loop."""
    meter = LimitMeter(threads)
    with meter.pool:
        return meter.measure(repeats)


def _aligned() -> np.ndarray[Any, Any]:
    """MEMORY_BYTES of ones, which begin at a cache line."""
    memory = np.ones(MEMORY_BYTES // 4 + 16, np.float32)
    first = -(memory.ctypes.data // 4) % 16
    return memory[first:first + MEMORY_BYTES // 4]


def _source(lanes: int, accumulators: int) -> str:
    """LLVM IR of the three measurements."""
    return f"{_arithmetic(lanes, accumulators)}\n{_read(lanes)}\n{_copy(lanes)}\n!0 = !{{i32 1}}\n"


def _arithmetic(lanes: int, accumulators: int) -> str:
    vector = f"<{lanes} x float>"
    names = range(accumulators)
    fma = f"@llvm.fmuladd.v{lanes}f32"
    phis = "\n".join(f"  %a{i} = phi {vector} [ %start, %entry ], [ %n{i}, %loop ]" for i in names)
    steps = "\n".join(f"  %n{i} = call {vector} {fma}({vector} %a{i}, {vector} %start, {vector} %start)"
                      for i in names)
    sums = "\n".join(f"  %s{i + 1} = fadd {vector} %s{i}, %n{i}" for i in names)
    return f"""
declare {vector} {fma}({vector}, {vector}, {vector})

define float @arithmetic(i64 %rounds, float %x) {{
entry:
  %one = insertelement {vector} poison, float %x, i32 0
  %start = shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %rounds
  br i1 %more, label %loop, label %done
done:
  %s0 = fadd {vector} %start, %start
{sums}
  %result = extractelement {vector} %s{accumulators}, i32 0
  ret float %result
}}
"""


def _read(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    streams = range(STREAMS)
    read_phis = "\n".join(f"  %c{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]"
                          for i in streams)
    reads = "\n".join(f"""\
  %first{i} = mul i64 %quarter, {i}
  %at{i} = add i64 %first{i}, %i
  %p{i} = getelementptr {vector}, ptr %memory, i64 %at{i}
  %x{i} = load {vector}, ptr %p{i}, align 4
  %b{i} = fadd {vector} %c{i}, %x{i}""" for i in streams)
    read_sums = "\n".join(f"  %t{i + 1} = fadd {vector} %t{i}, %b{i}" for i in streams)
    return f"""
define float @read(ptr %memory, i64 %vectors) {{
entry:
  %quarter = udiv i64 %vectors, {STREAMS}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{read_phis}
{reads}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %quarter
  br i1 %more, label %loop, label %done
done:
  %t0 = fadd {vector} %b0, zeroinitializer
{read_sums}
  %result = extractelement {vector} %t{STREAMS}, i32 0
  ret float %result
}}
"""


def _copy(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    return f"""
define void @copy(ptr noalias %memory, ptr noalias %target, i64 %vectors) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {vector}, ptr %memory, i64 %i
  %q = getelementptr {vector}, ptr %target, i64 %i
  %x = load {vector}, ptr %p, align 4
  store {vector} %x, ptr %q, align {lanes * 4}, !nontemporal !0
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %vectors
  br i1 %more, label %loop, label %done
done:
  fence seq_cst
  ret void
}}
"""


def _unit_source(unit: MatrixUnit) -> str:
    """A loop of products of zeros on a unit, whose sums go to memory at its end."""
    names = range(UNIT_ACCUMULATORS[unit])
    if unit.by_rows:
        kind, size = "x86_amx", "i16 16, i16 64"
        zero = f"  %zero = call {kind} @llvm.x86.tilezero.internal({size})"
        load = f"call {kind} @llvm.x86.tileloadd64.internal({size}, ptr"  # operands are not one register
        start, first = "%zero", f"  %x = {load} %memory, i64 64)\n  %y = {load} %memory, i64 128)"
        product = f"call {kind} @llvm.x86.{unit.name}.internal({size}, i16 64"
        keep = f"call void @llvm.x86.tilestored64.internal({size}, ptr %memory, i64 64, {kind}"
        ends = [f"  {keep} %n{i})" for i in names]
        steps = [f"  %n{i} = {product}, {kind} %a{i}, {kind} %x, {kind} %y)" for i in names]
    else:
        kind, start, zero = "<16 x float>", "zeroinitializer", ""
        first = "  %x = load <32 x bfloat>, ptr %memory, align 4"
        product = "call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512"
        steps = [f"  %n{i} = {product}({kind} %a{i}, <32 x bfloat> %x, <32 x bfloat> %x)" for i in names]
        ends = [f"  store volatile {kind} %n{i}, ptr %memory, align 4" for i in names]
    phis = [f"  %a{i} = phi {kind} [ {start}, %entry ], [ %n{i}, %loop ]" for i in names]
    return "\n".join(["", "define void @products(ptr %memory, i64 %rounds) {", "entry:", zero, first,
                      "  br label %loop", "loop:",
                      "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]", *phis, *steps,
                      "  %next = add i64 %i, 1", "  %more = icmp ult i64 %next, %rounds",
                      "  br i1 %more, label %loop, label %done", "done:", *ends, "  ret void", "}", ""])


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "arithmetic": (ctypes.c_float, ctypes.c_int64, ctypes.c_float),
    "read": (ctypes.c_float, ctypes.c_void_p, ctypes.c_int64),
    "products": (None, ctypes.c_void_p, ctypes.c_int64),
    "copy": (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
}


def _compiled(source: str) -> dict[str, Callable[..., Any]]:
    """The functions of an LLVM module. ctypes lets go of Python's lock while they run."""
    initialise_llvm()
    module = llvm.parse_assembly(source)
    module.verify()
    library = load_object(target_machine().emit_object(module), source)
    functions: dict[str, Callable[..., Any]] = {}
    for name in [function.name for function in module.functions if not function.is_declaration]:
        signature = _SIGNATURES[name]
        function: Any = ctypes.CFUNCTYPE(*signature)(library[name])
        function.library = library  # the code lives as long as that
        functions[name] = function
    return functions
