"""Running one kernel under several Plans: memory of its own, results to compare with, and a clock.

In: a loop nest and a device. `Workbench.build` makes the kernel of a Plan, `is_right` compares what it
computes with the plain loops, `race` times two kernels against each other.

The kernel runs on memory of its sizes and never on the user's: it may write what it reads. Numbers are
quarters, whose sums of products are exact in every order, so only what is not such a sum needs a tolerance.
"""
from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tinygrad.codegen.cost import estimate
from tinygrad.codegen.kernel_cache import Written
from tinygrad.codegen.opt.access import memory_bytes
from tinygrad.codegen.opt.loops import replace_range
from tinygrad.codegen.opt.neighbours import copies
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.program import compile_source, linear_program, load_program, write_program
from tinygrad.device import Buffer, Device, Program
from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import Context, ceildiv, prod
from tinygrad.renderer.launch import launch_of

Array = np.ndarray[Any, Any]

TOLERANCES = {dtypes.float64: 1e-10, dtypes.float32: 2e-4, dtypes.float16: 4e-3, dtypes.bfloat16: 3e-2}
"""How far a result may be from the plain loops', in parts of itself and of the typical result: a thousand
roundings of float32, four of a narrow type, in which results are stored. Integers and bools must be equal."""
NARROWEST = 0.3
"""The same for the types of 8 bits."""
PLAIN_SECONDS = 0.3
"""How long the plain loops may run; of a kernel where they take longer, a sample of its items is compared."""
PROBE_WORK = 100_000
"""Operations that show how fast the plain loops run."""
MOST_BYTES = 1 << 30
"""Memory that a kernel may take to be measured."""
RANDOM_ITEMS = 65_521
"""Random numbers drawn for a buffer, again and again; a prime, so that no row of a matrix is like another."""
POISON = 0x5A
"""The byte that memory is filled with before a kernel writes it."""


@frozen
class Built:
    """A kernel under some Plan, ready to run."""

    plan: Plan
    program: Program
    variables: list[int]
    extent: int


class Workbench:
    """Memory for a kernel, and what its plain loops make of it.

    Raises MemoryError for a kernel with more than `MOST_BYTES`, RuntimeError for one that is too long to run
    plainly or whose device computes nothing.
    """

    def __init__(self, nest: UOp, device: str) -> None:
        self.nest = nest
        self.device = device
        self.renderer = Device[device].renderer
        params = sorted(nest.nodes_of(Ops.PARAM), key=lambda p: p.arg[0])
        if memory_bytes(params) > MOST_BYTES:
            raise MemoryError(f"a kernel of more than {MOST_BYTES:,} bytes is not measured")
        written = {s.memory for s in nest.src}
        read = {n.memory for n in nest.nodes_of(Ops.LOAD)}
        self.buffers: dict[int, Buffer] = {}
        self.before: dict[int, Array] = {}
        """the bytes of outputs before the kernel runs"""
        for param in params:
            slot, size = param.arg
            content = random_items(param.dtype, size, slot).view(np.uint8)
            if param in written:
                self.before[slot] = content if param in read else np.full_like(content, POISON)
            self.buffers[slot] = Buffer(device, size, param.dtype).allocate()
            self.buffers[slot].copyin(content.data)
        slots = range(1 + max(self.buffers, default=-1))
        self.addresses = [self.buffers[i].address if i in self.buffers else 0 for i in slots]
        self.restored = [p.arg[0] for p in params if p in written and p in read]
        """outputs that every run needs as they were"""
        plain = self.comparable(nest)
        self.is_sample = plain is not nest
        self.expected = self.results(self.build(plain, Plan()))

    def comparable(self, nest: UOp) -> UOp:
        """As much of `nest` as its plain loops compute in `PLAIN_SECONDS`. Raises RuntimeError where even a
        few items take ten times as long."""
        probe = sample(nest, PROBE_WORK)
        seconds = self.run(self.build(probe, Plan()))
        rate = estimate(probe, plain=True).operations / seconds
        largest = sample(nest, int(rate * PLAIN_SECONDS))
        if estimate(largest, plain=True).operations > 10 * rate * PLAIN_SECONDS:
            raise RuntimeError("the plain loops, with which results are compared, would run for too long")
        return largest

    # --- building -------------------------------------------------------------------------------------------

    def build(self, nest: UOp, plan: Plan) -> Built:
        """The kernel of `nest` under `plan`. Raises ValueError or RuntimeError where that cannot be."""
        written = self.write(nest, plan)
        return self.load(plan, written, compile_source(self.device, written.source))

    def build_all(self, plans: Iterable[Plan], most_copies: int) -> list[Built]:
        """The kernels of those plans that can be built and do not write out too many copies of a value. While
        one is written, in Python, those before it are compiled, in another thread."""
        with ThreadPoolExecutor(max_workers=1) as compiling, Context(CACHELEVEL=0):
            started = []
            for plan in plans:
                try:
                    written = self.write(self.nest, plan, most_copies)
                except (ValueError, RuntimeError):
                    continue
                started.append((plan, written, compiling.submit(compile_source, self.device, written.source)))
            return [self.load(plan, written, code.result()) for plan, written, code in started
                    if code.exception() is None]

    def write(self, nest: UOp, plan: Plan, most_copies: int | None = None) -> Written:
        """The source of `nest` under `plan`. Raises ValueError or RuntimeError where there is none."""
        optimised = apply_plan(nest, plan)
        if most_copies is not None and copies(optimised) > most_copies:
            raise ValueError(f"{plan} writes out {copies(optimised)} copies of a value")
        program = linear_program(optimised, self.renderer)
        threads = prod(launch_of(program).threads)
        if threads > self.renderer.machine.block_threads:
            raise RuntimeError(f"{plan} asks for blocks of {threads:,} threads, and plans for this device "
                               f"put {self.renderer.machine.block_threads:,} into one at most")
        return write_program("candidate", nest, program, self.renderer)

    def load(self, plan: Plan, written: Written, code: Any) -> Built:
        """The kernel, with the largest value of each of its variables."""
        largest = {n.arg[0]: n.arg[2] for n in self.nest.nodes_of(Ops.VARIABLE)}
        return Built(plan, load_program(self.device, written, code), [largest[v] for v in written.variables],
                     written.extent)

    # --- running --------------------------------------------------------------------------------------------

    def run(self, kernel: Built) -> float:
        """The seconds of one run."""
        for slot in self.restored:
            self.buffers[slot].copyin(self.before[slot].data)
        Device[self.device].synchronize()
        start = time.perf_counter()
        kernel.program(self.addresses, kernel.variables, kernel.extent)
        Device[self.device].synchronize()
        return time.perf_counter() - start

    def results(self, kernel: Built) -> list[Array]:
        """What one run leaves in each output, as items."""
        for slot, content in self.before.items():
            self.buffers[slot].copyin(content.data)
        self.run(kernel)
        return [self.buffers[slot].numpy().copy() for slot in self.before]

    def is_right(self, kernel: Built) -> bool:
        """True if the kernel computes what the plain loops do; of a large one, where the sample says."""
        for slot, got, expected in zip(self.before, self.results(kernel), self.expected, strict=True):
            dtype = self.buffers[slot].dtype
            if self.is_sample:
                is_written = expected.view(np.uint8) != self.before[slot]
                computed = is_written.reshape(len(expected), -1).any(1)
                got, expected = got[computed], expected[computed]
            if not agree(got, expected, dtype):
                return False
        return True

    def race(self, one: Built, other: Built, seconds: float,
             least: int = 3) -> tuple[list[float], list[float]]:
        """The seconds of runs of both in turn, for so long, `least` of each at any rate.

        Taking turns gives both the same share of what else the machine does.
        """
        times: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + seconds
        while len(times[0]) < least or time.perf_counter() < end:
            times[0].append(self.run(one))
            times[1].append(self.run(other))
        return times


def random_items(dtype: DType, size: int, seed: int) -> Array:
    """Items for a buffer: quarters from -2 to 2 without 0, or as many whole numbers, positive where the type
    knows no others."""
    numbers = np.random.default_rng(seed).integers(1, 9, min(size, RANDOM_ITEMS))
    if dtype.is_bool:
        items = numbers % 2 == 0
    else:
        signs = np.random.default_rng(seed + 1).integers(0, 1, len(numbers), endpoint=True) * 2 - 1
        signed = numbers if dtype.is_unsigned else numbers * signs
        items = signed / 4 if dtype.is_float else signed
    return np.resize(items.astype(dtype.numpy), size)


def sample(nest: UOp, most: int) -> UOp:
    """`nest`, or where that has more than `most` operations, a nest that computes only some items of its
    outputs, spread evenly, the first and last of a loop among them: fewer loop by loop, two of each at
    least."""
    sampled = nest
    for r in nest.src[0].closed_ranges:
        work = estimate(sampled, plain=True).operations
        count = max(2, r.extent * most // max(1, work))
        if work <= most or count >= r.extent or any(r not in s.closed_ranges for s in nest.src):
            continue
        step = ceildiv(r.extent - 1, count - 1)
        few = UOp.range(ceildiv(r.extent - 1, step) + 1, r.identity)
        sampled = replace_range(sampled, r, [few], (few * step).minimum(r.extent - 1))
    return sampled


def agree(got: Array, expected: Array, dtype: DType) -> bool:
    """True if two results are one up to the order in which sums are added up.

    Floats agree to within `TOLERANCES` of themselves and of the root mean square of all; NaN and infinities
    must be in the same places. Everything else must be equal.
    """
    if not dtype.is_float:
        return bool((got == expected).all())
    wide, reference = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(reference)
    if not np.array_equal(wide[~finite], reference[~finite], equal_nan=True):
        return False
    wide, reference = wide[finite], reference[finite]
    if not len(reference):
        return True
    typical = np.sqrt(np.mean(np.square(reference)))
    tolerance = TOLERANCES.get(dtype, NARROWEST)
    return bool((np.abs(wide - reference) <= tolerance * (np.abs(reference) + typical)).all())
