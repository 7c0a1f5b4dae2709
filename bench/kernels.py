"""Which kernels this library makes of a workload: each one's plan, time and rates."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.results import columns, middle_limits
from bench.workloads import OURS, Workload
from tinygrad.codegen.compile import stages_of
from tinygrad.device import Device
from tinygrad.device.limits import Limits
from tinygrad.engine.capture import Capture
from tinygrad.engine.realize import Prepared, Submission
from tinygrad.graph.uop import UOp


@dataclass
class KernelRow:
    """A kernel of a workload, with all the runs of it in one step."""

    name: str
    plan: str
    runs: int
    seconds: float
    """of all runs in one step"""
    operations: int
    """of all runs in one step"""
    moved_bytes: int
    """of all runs in one step"""
    share: float
    """the least time that the machine allows, as a part of `seconds`"""

    @property
    def gflops(self) -> float:
        return self.operations / self.seconds * 1e-9

    @property
    def gbs(self) -> float:
        return self.moved_bytes / self.seconds * 1e-9


STEPS = 5
"""Of a workload, between two measurements of what the machine can do."""


def kernels_of(workload: Workload, rounds: int, measured: Callable[[], Limits]
               ) -> tuple[list[KernelRow], Limits]:
    """The kernels of one step, the one that takes longest first, and what the machine can do, `measured` in
    turn with them; all are medians over `rounds`.

    Every item runs by itself, in order, as at DEBUG=2; a replay leaves no gaps between them.
    """
    step = workload.setups[OURS]()
    with Capture() as capture:  # TinyJit inside a capture is the plain function
        step()
    steps = [Prepared.of(item) for item in capture.items]
    by_kernel: dict[UOp, list[Prepared]] = {}
    for ready in steps:
        if ready.kernel is not None:
            by_kernel.setdefault(ready.item.ast, []).append(ready)
    taken, machine = [], []
    for _ in range(rounds):
        machine.append(measured())
        taken += [step_seconds(steps) for _ in range(STEPS)]
    limits = middle_limits(machine)
    found = [kernel_row(runs, median(seconds[ast] for seconds in taken), limits)
             for ast, runs in by_kernel.items()]
    return sorted(found, key=lambda row: row.seconds, reverse=True), limits


def step_seconds(steps: Sequence[Prepared]) -> dict[UOp, float]:
    """Run every item in order. Returns how long the runs of each kernel took together."""
    seconds: dict[UOp, float] = {}
    for ready in steps:
        start = time.perf_counter()
        ready.run(Submission())
        Device[ready.item.device].synchronize()
        seconds[ready.item.ast] = seconds.get(ready.item.ast, 0.0) + time.perf_counter() - start
    return seconds


def kernel_row(runs: Sequence[Prepared], seconds: float, limits: Limits) -> KernelRow:
    """The figures of a kernel whose runs took `seconds` together."""
    kernel, item = runs[0].kernel, runs[0].item
    assert kernel is not None, "a copy is no kernel"
    operations, moved_bytes = len(runs) * kernel.estimate.operations, len(runs) * kernel.estimate.bytes
    plan = str(stages_of(item.ast, item.device).plan)
    return KernelRow(kernel.name, plan, len(runs), seconds, operations, moved_bytes,
                     limits.least_seconds(operations, moved_bytes) / seconds)


def kernel_table(rows: Sequence[KernelRow]) -> str:
    """The kernels of a step as text: a line of figures each, and its plan."""
    lines = [["kernel", "runs", "ms", "of step", "GFLOP/s", "GB/s", "limit"]]
    whole = sum(row.seconds for row in rows)
    for row in rows:
        lines.append([row.name, str(row.runs), f"{row.seconds * 1e3:.3f}", f"{row.seconds / whole:.0%}",
                      f"{row.gflops:.1f}", f"{row.gbs:.1f}", f"{row.share:.0%}"])
    head, *figures = columns(lines).splitlines()
    return "\n".join([head, *(f"{line}\n    {row.plan}" for line, row in zip(figures, rows, strict=True))])


def as_record(rows: Sequence[KernelRow]) -> list[dict[str, Any]]:
    """The kernels as JSON takes them."""
    return [asdict(row) for row in rows]
