"""One kernel from its piece of the graph to a loaded program, each stage printed on demand.

In: a kernel's `ast` (schedule/items.py) and a device. Out: a `CompiledKernel` that runs on buffer addresses.
Equal kernels are the same `ast` object, so they are compiled once.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tinygrad.codegen.cost import Estimate, estimate
from tinygrad.codegen.expand import expand
from tinygrad.codegen.linearize import linearize
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.plan import Plan, apply_plan, thread_extent
from tinygrad.codegen.primitives import to_device_primitives
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_graph, format_nest, format_program
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import CHECK, DEBUG, NOOPT


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel ready to run."""

    name: str
    program: Any
    """call with buffer addresses, values of `variables`, and `extent`"""
    variables: tuple[str, ...]
    extent: int
    """iterations to share out over threads"""
    estimate: Estimate
    source: str


MAX_KERNELS = 8192
"""Kernels kept, the one used longest ago going first. Each holds about three of a process's 65,530 memory
maps."""


def compiled_kernel(ast: UOp, device: str) -> CompiledKernel:
    """The compiled form of `ast` on `device`, made at the first call."""
    return _compile(ast, device, bool(NOOPT))


@dataclass(frozen=True)
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
        plan = Plan() if NOOPT else choose_plan(nest, renderer)
    optimised = apply_plan(nest, plan)
    if CHECK:
        check_graph(optimised, "loop_nest")
    program = linearize(to_device_primitives(expand(optimised), renderer))
    if CHECK:
        check_graph(program, "program")
    return Stages(nest, plan, optimised, program)


@lru_cache(MAX_KERNELS)
def _compile(ast: UOp, device: str, plain: bool) -> CompiledKernel:
    """Compile `ast`, as plain loops or by the cost model's plan."""
    target = Device[device]
    stages = stages_of(ast, device, Plan() if plain else None)
    name = kernel_name(stages.nest)
    source = target.renderer.render(name, stages.program)
    if DEBUG >= 5:
        print(format_graph(ast), format_nest(stages.optimised), sep="\n")
    if DEBUG >= 3:
        print(f"{name}: {stages.plan}")
    if DEBUG >= 6:
        print(format_program(stages.program))
    if DEBUG >= 4:
        print(source)
    code = target.compile(source)
    if DEBUG >= 7:
        print(target.disassembly(code))
    program = target.load(name, code, target.renderer.scratch_bytes(stages.program))
    variables = tuple(n.arg[0] for n in stages.program if n.op is Ops.VARIABLE)
    return CompiledKernel(name, program, variables, thread_extent(stages.program),
                          estimate(stages.nest), source)


def kernel_name(nest: UOp) -> str:
    """What a kernel does and over which sizes: r_64_128 reduces, e_4096 does not."""
    kind = "r" if any(n.op is Ops.REDUCE for n in nest.toposort()) else "e"
    extents = [n.extent for n in nest.toposort() if n.op is Ops.RANGE]
    return "_".join([kind, *map(str, extents)])
