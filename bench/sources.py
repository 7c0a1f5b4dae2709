"""Whether a change of the compiler changed a kernel: the sources that it writes, and an earlier checkout's.

Every workload and some hundred drawn programs are scheduled, planned and written for several machines, in a
process for each machine and checkout. Nothing is run and no memory is taken: all devices are NULL's, with the
renderer of the machine. Next: `drawn_programs.py`, which draws.
"""
from __future__ import annotations

import difflib
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar

from bench.child import ROOT, Answer, Child, answer_lines
from bench.drawn_programs import drawn_results
from bench.workloads import FAMILIES, OURS, Workload, odd
from tinygrad.device import Device
from tinygrad.renderer import Renderer
from tinygrad.renderer.c_blocks import BlocksRenderer
from tinygrad.renderer.cuda import HOPPER, HOPPER_SHARED_BYTES, cuda_renderer, hip_renderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import blocks, cores
from tinygrad.renderer.matrix_units import AMX
from tinygrad.renderer.metal import metal_renderer
from tinygrad.renderer.opencl import OPENCL
from tinygrad.runtime.null import NullAllocator, NullDevice, NullProgram

MACHINES: dict[str, Callable[[], Renderer]] = {
    "AVX-512": lambda: LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2), has_vnni=True),
    "AVX2": lambda: LLVMRenderer(cores(vector_bytes=32, registers=16, threads=8), has_pairs=True),
    "AMX": lambda: LLVMRenderer(cores(vector_bytes=64, registers=32, threads=2, matrix_units=AMX)),
    "Hopper": lambda: cuda_renderer(HOPPER, HOPPER_SHARED_BYTES),
    "Ampere": cuda_renderer,
    "CDNA": hip_renderer,
    "Metal": metal_renderer,
    "OpenCL": lambda: BlocksRenderer(OPENCL, blocks()),
}
"""The same on every computer, by what they are called here."""
WRITTEN_FOR = {"AVX-512": [name for name in FAMILIES if name != "odd"],
               "Hopper": ["gemm", "conv", "memory", "gather", "attention", "models"]}
"""The families whose workloads are written for a machine; others get the drawn programs alone."""
ODD_SEEDS = (1, 2)
"""Of the family `odd`, on each of these machines."""
PROGRAMS = 40
"""Drawn for each machine, from seeds of its own."""
DIFFERENCES, LINES = 3, 60
"""Shown of kernels that differ, and the lines of each."""


# --- one checkout, in a process of its own ------------------------------------------------------------------


class SilentDevice(NullDevice):
    """NULL for a machine; what it is to compile it keeps."""

    given: ClassVar[list[str]] = []
    """the sources of this program"""

    def compile(self, source: str) -> Any:
        self.given.append(source)

    def load_blocks(self, name: str, code: Any, launch: Launch) -> NullProgram:
        return NullProgram()


def open_device(name: str) -> SilentDevice:
    """A device of the machine that the environment names."""
    return SilentDevice(name, NullAllocator(name), MACHINES[os.environ["MACHINE"]]())


def programs(machine: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is written for a machine: names, and what realises it."""
    if machine in WRITTEN_FOR:
        families = [*map(FAMILIES.__getitem__, WRITTEN_FOR[machine]), *map(odd.drawn, ODD_SEEDS)]
        for workload in chain.from_iterable(families):
            yield workload.name, partial(one_step, workload)
    first = list(MACHINES).index(machine) * PROGRAMS
    for seed in range(first, first + PROGRAMS):
        yield f"drawn program {seed}", partial(realised, seed)


def one_step(workload: Workload) -> None:
    """Set a workload up and run its step once."""
    workload.setups[OURS]()()


def realised(seed: int) -> None:
    """Compute the results of a drawn program."""
    first, *others = drawn_results(seed)
    first.realize(*others)


def answering() -> Answer:
    """What answers each question by the next program: its name, and the kernels that nothing before it has,
    sorted, for threads give them; {} at the end."""
    coming = programs(os.environ["MACHINE"])

    def answer(_: dict[str, Any]) -> dict[str, Any]:
        name, run = next(coming, ("", None))
        if run is None:
            return {}
        SilentDevice.given.clear()
        gc.collect()
        failure = ""
        try:
            run()
        except Exception as error:  # what fails in one checkout may not fail in the other
            failure = f"{type(error).__name__}: {error}"
        return {"name": name, "sources": sorted(SilentDevice.given), "failure": failure}

    return answer


def main() -> None:
    """Answer for the checkout that `tinygrad` was imported from."""
    for kind in Device.FILES:
        if kind != "DISK":
            Device.register(kind, "bench.sources")
    answer_lines(answering)


# --- both checkouts -----------------------------------------------------------------------------------------

BEGIN = f"import sys, tinygrad; sys.path.insert(0, {str(ROOT)!r}); from bench.sources import main; main()"
"""Run in a checkout's folder: its library, and the programs of this one."""


@dataclass
class Comparison:
    """What both checkouts wrote."""

    equal: int = 0
    differing: list[str] = field(default_factory=list)
    """a diff for each kernel that only one has, or of two that stand for each other"""
    failures: list[str] = field(default_factory=list)
    """programs that raised an error in both"""

    def add(self, name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Compare the answers for a program."""
        old, new = Counter(before["sources"]), Counter(now["sources"])
        self.equal += (old & new).total()
        for one, other in zip_longest((old - new).elements(), (new - old).elements(), fillvalue=""):
            self.differing.append(diff(name, one, other))
        if before["failure"] != now["failure"]:
            self.differing.append(diff(name, before["failure"], now["failure"]))
        elif now["failure"]:
            self.failures.append(f"{name}: {now['failure']}")


def diff(name: str, before: str, now: str) -> str:
    """The first lines of it."""
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), f"{name}, before", f"{name}, now",
                                 lineterm="")
    return "\n".join(islice(lines, LINES))


def compared(machine: str, before: Path, progress: Callable[[str], None]) -> Comparison:
    """The kernels of both checkouts for a machine."""
    result = Comparison()
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        children = [Child(str(folder), [sys.executable, "-c", BEGIN], 2,
                          {"MACHINE": machine, "CACHELEVEL": "0", "PYTHONPATH": ""}, folder, is_quiet=True)
                    for folder in (before, ROOT)]
        for child in children:
            stack.callback(child.close)
        while all(answers := list(threads.map(Child.ask, children))):
            name = f"{machine}: {answers[1]['name']}"
            progress(name)
            result.add(name, *answers)
    return result


def run_sources(before: Path, only: Sequence[str] | None, progress: Callable[[str], None]
                ) -> tuple[str, bool]:
    """(a line for each machine and the first differences, whether there is none), of the machines whose names
    contain one of `only`."""
    lines: list[str] = []
    shown: list[str] = []
    for machine in MACHINES:
        if not only or any(text in machine for text in only):
            found = compared(machine, before.resolve(), progress)
            lines.append(f"{machine:8} {found.equal:6d} kernels equal, {len(found.differing)} differ"
                         + (f"; {len(found.failures)} programs fail in both, as {found.failures[0]}"
                            if found.failures else ""))
            shown += found.differing
    return "\n".join([*lines, *shown[:DIFFERENCES]]), not shown
