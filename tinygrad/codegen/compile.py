"""One kernel from its piece of the graph to a loaded program, each stage printed on demand.

In: a kernel's `ast` (schedule/items.py) and a device. Out: a `CompiledKernel` that runs on buffer addresses.
Equal kernels are the same `ast` object, so they are compiled once; what was written for an equal `ast` in
another process is found on disk (`kernel_cache.py`).
"""
from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any, TypeVar

from tinygrad import observer
from tinygrad.codegen.cost import Estimate
from tinygrad.codegen.kernel_cache import Written, cached_kernel, target_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan, explain_plan
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.program import compile_source, linear_program, load_program, write_program
from tinygrad.device import Device
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_graph, format_nest, format_program
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, BEAM, CHECK, DEBUG, NOOPT, collector_paused, shows_progress

Bound = TypeVar("Bound", bound=tuple[Any, ...])
"""A variable: its name first, then its source and its value, or their numbers."""


@frozen
class CompiledKernel:
    """A kernel ready to run."""

    name: str
    program: Any
    """call with buffer addresses, values of `variables`, and `extent`"""
    variables: tuple[str, ...]
    extent: int
    """iterations to share out over threads"""
    estimate: Estimate
    ast: UOp
    written: Written
    """what it was loaded from"""

    def takes(self, bound: Iterable[Bound]) -> list[Bound]:
        """Of these variables, which begin with their names, those of the kernel, in the order in which it
        takes them."""
        by_name = {variable[0]: variable for variable in bound}
        return [by_name[name] for name in self.variables]

    @property
    def source(self) -> str:
        """Its text, in the device's language."""
        return self.written.source


MAX_KERNELS = 8192
"""Kernels kept, the one used longest ago going first. Each holds about three of a process's 65,530 memory
maps."""
SWITCH_SECONDS = 5e-4
"""How long the thread that writes kernels may keep Python from those that compile them: the interpreter's own
5 ms, ten times a kernel, would be longer than compiling takes."""

Key = tuple[UOp, str, bool, int, bool]
"""What a compiled kernel depends on: `ast`, device, whether it is plain loops, how wide a search for its
plan, whether it may round to tf32."""
_kernels: OrderedDict[Key, CompiledKernel] = OrderedDict()
_keeping = threading.Lock()
"""Held while `_kernels` changes."""


def compiled_kernel(ast: UOp, device: str) -> CompiledKernel:
    """The compiled form of `ast` on `device`, made at the first call."""
    key = (ast, device, NOOPT.value != 0, BEAM.value, ALLOW_TF32.value != 0)
    with _keeping:
        kernel = _kernels.get(key)
        if kernel is not None:
            _kernels.move_to_end(key)
            return kernel
    written = written_for_another(key) or write_kernel(*key[:3])
    return load_kernel(key, written, compile_source(device, written.source))


def written_for_another(key: Key) -> Written | None:
    """The kernel of `key` as it was written for another open device that takes the very same."""
    ast, device = key[:2]
    for other in [name for name in Device.opened if name != device]:
        with _keeping:
            kernel = _kernels.get((ast, other, *key[2:]))
        if kernel is not None and target_of(other) == target_of(device):
            return kernel.written
    return None


class KernelBar:
    """A bar on a terminal, if it takes longer than a second: only then tqdm is imported (0.1 s)."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.shows_at = time.monotonic() + 1 if shows_progress() else math.inf
        self.bar: Any = None

    def update(self) -> None:
        """One step more."""
        self.done += 1
        if self.bar is not None:
            self.bar.update()
        elif time.monotonic() > self.shows_at:
            from tinygrad.progress import tqdm

            self.bar = tqdm(total=self.steps, initial=self.done, desc="compiling", leave=False, unit="kernel",
                            unit_scale=0.5)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.close()


def compile_kernels(wanted: Iterable[tuple[UOp, str]]) -> None:
    """Compile the kernels of these `ast`s on these devices, as far as they are not: while one is written, in
    Python, those before it are compiled, in other threads. Shows how far it is on a terminal, after a
    second. A search for plans measures one kernel at a time, while nothing else runs: then this does
    nothing."""
    settings = bool(NOOPT), 0, bool(ALLOW_TF32)
    keys = [key for key in dict.fromkeys((*w, *settings) for w in wanted) if key not in _kernels]
    if len(keys) < 2 or BEAM:
        return
    interval = sys.getswitchinterval()
    threads = ThreadPoolExecutor(os.cpu_count(), "compile")
    started = []
    try:
        sys.setswitchinterval(min(interval, SWITCH_SECONDS))
        with collector_paused(), closing(KernelBar(2 * len(keys))) as progress:
            same: dict[tuple[UOp, tuple[str, ...]], tuple[Written, Future[Any]]] = {}
            for key in keys:
                shared = key[0], target_of(key[1])
                if shared not in same:
                    written = written_for_another(key) or write_kernel(*key[:3])
                    same[shared] = written, threads.submit(compile_source, key[1], written.source)
                started.append((key, *same[shared]))
                progress.update()
            for key, written, code in started:
                load_kernel(key, written, code.result())
                progress.update()
    finally:
        threads.shutdown(cancel_futures=True)
        sys.setswitchinterval(interval)


@frozen
class Stages:
    """Every form of one kernel on its way to the device."""

    nest: UOp
    plan: Plan
    optimised: UOp
    program: list[UOp]


def stages_of(ast: UOp, device: str, plan: Plan | None = None) -> Stages:
    """`ast` as loop nest, its plan (the cost model's unless given), the nest it makes, and the linear
    program."""
    renderer = Device[device].renderer
    if CHECK:
        check_graph(ast, "tensor_graph")
    nest = lower(ast)
    if CHECK:
        check_graph(nest, "loop_nest")
    if plan is None:
        with observer.span("plan"):
            plan = plan_for(ast, nest, device)
    optimised = apply_plan(nest, plan)
    return Stages(nest, plan, optimised, linear_program(optimised, renderer))


def plan_for(ast: UOp, nest: UOp, device: str) -> Plan:
    """The plan that the settings ask for: none, the fastest that a search finds, or the cost model's."""
    if NOOPT:
        return Plan()
    if BEAM:
        from tinygrad.codegen.opt.search import searched_plan  # asked for by a setting

        return searched_plan(ast, nest, device)
    return choose_plan(nest, Device[device].renderer.machine)


def write_kernel(ast: UOp, device: str, plain: bool) -> Written:
    """The source of `ast`, as plain loops or by the plan that the settings ask for: kept, or written now."""
    watcher = observer.active
    with nullcontext() if watcher is None else watcher.kernel_written(ast, device):
        return cached_kernel(ast, device, plain, lambda: written_now(ast, device, plain))


def written_now(ast: UOp, device: str, plain: bool) -> Written:
    """The source of `ast`, stage by stage, printed as DEBUG says."""
    renderer = Device[device].renderer
    stages = stages_of(ast, device, Plan() if plain else None)
    name = kernel_name(stages.nest)
    with observer.span("render", name):
        written = write_program(name, stages.nest, stages.program, renderer)
    if (watcher := observer.active) is not None and watcher.keeps_stages:
        notes = "" if plain else explain_plan(stages.nest, renderer.machine)
        watcher.stages_done(stages, written, notes)
    if DEBUG >= 5:
        print(format_graph(ast), format_nest(stages.optimised), sep="\n")
    if DEBUG >= 3:
        print(f"{name}: {stages.plan}")
        if not NOOPT:
            print(explain_plan(stages.nest, renderer.machine))
    if DEBUG >= 6:
        print(format_program(stages.program))
    if DEBUG >= 4:
        print(written.source)
    return written


def load_kernel(key: Key, written: Written, code: Any) -> CompiledKernel:
    """The kernel of `key`, ready to run, and kept."""
    target = Device[key[1]]
    if DEBUG >= 7:
        print(target.disassembly(code))
    with observer.span("load", written.name):
        program = load_program(key[1], written, code)
    kernel = CompiledKernel(written.name, program, written.variables, written.extent, written.estimate,
                            key[0], written)
    if (watcher := observer.active) is not None:
        watcher.kernel_loaded(key[0], kernel, key[1], code)
    return keep(key, kernel)


def keep(key: Key, kernel: CompiledKernel) -> CompiledKernel:
    """Remember a kernel; returns it."""
    with _keeping:
        _kernels[key] = kernel
        if len(_kernels) > MAX_KERNELS:
            _kernels.popitem(last=False)
    return kernel


def kernel_name(nest: UOp) -> str:
    """What a kernel does and over which sizes: r_64_128 reduces, e_4096 does not."""
    kind = "r" if nest.nodes_of(Ops.REDUCE) else "e"
    return "_".join([kind, *(str(r.extent) for r in nest.nodes_of(Ops.RANGE))])
