"""Running one kernel under several Plans: memory of its own, results to compare with, and a clock.

In: a loop nest and a device. `Workbench.build` makes the kernel of a Plan, `is_right` compares what it
computes with what another Plan does, `race` times two kernels against each other.

The kernel runs on memory of its sizes and never on the user's: it may write what it reads. Numbers are
quarters, whose sums of products are exact in every order, so only what is not such a sum needs a tolerance.
"""
from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad.codegen.kernel_cache import Written
from tinygrad.codegen.opt.neighbours import copies
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.program import compile_source, linear_program, load_program, write_program
from tinygrad.device import Buffer, Device, Program
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import Context, prod
from tinygrad.renderer.launch import launch_of

Array = np.ndarray[Any, Any]

TOLERANCES = {dtypes.float64: 1e-10, dtypes.float32: 2e-4, dtypes.float16: 4e-3, dtypes.bfloat16: 3e-2}
"""How far a result may be from the other plan's, in parts of itself and of the typical result: a thousand
roundings of float32, four of a narrow type, in which results are stored. Integers and bools must be equal."""
NARROWEST = 0.3
"""The same for the types of 8 bits."""
MOST_BYTES = 1 << 30
"""Memory that a kernel may take to be measured."""
RANDOM_ITEMS = 65_521
"""Random numbers drawn for a buffer, again and again; a prime, so that no row of a matrix is like another."""
POISON = 0x5A
"""The byte that memory is filled with before a kernel writes it."""


@dataclass(frozen=True)
class Built:
    """A kernel under some Plan, ready to run."""

    plan: Plan
    program: Program
    variables: list[int]
    extent: int


class Workbench:
    """Memory for a kernel, and what a plan, the reference, makes of it.

    Raises MemoryError for a kernel with more than `MOST_BYTES`, RuntimeError for one whose device computes
    nothing.
    """

    def __init__(self, nest: UOp, device: str, reference: Plan) -> None:
        self.nest = nest
        self.device = device
        self.renderer = Device[device].renderer
        params = sorted(nest.nodes_of(Ops.PARAM), key=lambda p: p.arg[0])
        if sum(p.arg[1] * p.dtype.itemsize for p in params) > MOST_BYTES:
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
        self.reference = self.build(reference)
        self.expected = self.results(self.reference)

    # --- building -------------------------------------------------------------------------------------------

    def build(self, plan: Plan) -> Built:
        """The kernel under `plan`. Raises ValueError or RuntimeError where that cannot be."""
        written = self.write(plan)
        return self.load(plan, written, compile_source(self.device, written.source))

    def build_all(self, plans: Iterable[Plan], most_copies: int) -> list[Built]:
        """The kernels of those plans that can be built and do not write out too many copies of a value. While
        one is written, in Python, those before it are compiled, in another thread."""
        with ThreadPoolExecutor(max_workers=1) as compiling, Context(CACHELEVEL=0):
            started = []
            for plan in plans:
                try:
                    written = self.write(plan, most_copies)
                except (ValueError, RuntimeError):
                    continue
                started.append((plan, written, compiling.submit(compile_source, self.device, written.source)))
            return [self.load(plan, written, code.result()) for plan, written, code in started
                    if code.exception() is None]

    def write(self, plan: Plan, most_copies: int | None = None) -> Written:
        """The source under `plan`. Raises ValueError or RuntimeError where there is none."""
        optimised = apply_plan(self.nest, plan)
        if most_copies is not None and copies(optimised) > most_copies:
            raise ValueError(f"{plan} writes out {copies(optimised)} copies of a value")
        program = linear_program(optimised, self.renderer)
        threads = prod(launch_of(program).threads)
        if threads > self.renderer.machine.block_threads:
            raise RuntimeError(f"{plan} asks for blocks of {threads:,} threads, and plans for this device "
                               f"put {self.renderer.machine.block_threads:,} into one at most")
        return write_program("candidate", self.nest, program, self.renderer)

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
        """True if the kernel computes what the reference does."""
        return all(agree(got, expected, self.buffers[slot].dtype) for slot, got, expected in
                   zip(self.before, self.results(kernel), self.expected, strict=True))

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
