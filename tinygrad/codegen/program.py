"""From a loop nest after its plan to a program that runs: linear, written in the device's language, compiled
and loaded.

Each step is a function of its own: `compile.py` takes one after another, a search (`opt/measure.py`) writes
and compiles many plans before it loads the first. Next on the path: `renderer/` and `runtime/`.
"""
from __future__ import annotations

from typing import Any

from tinygrad import observer
from tinygrad.codegen.cost import estimate
from tinygrad.codegen.expand import expand
from tinygrad.codegen.kernel_cache import Written
from tinygrad.codegen.linearize import linearize
from tinygrad.codegen.opt.loops import thread_extent
from tinygrad.codegen.pipeline import pipelined
from tinygrad.codegen.primitives import to_device_primitives
from tinygrad.codegen.softmax_weights import with_weights_marked
from tinygrad.device import Device, Program
from tinygrad.graph.ops import Ops
from tinygrad.graph.spec import check_graph
from tinygrad.graph.uop import UOp
from tinygrad.helpers import CHECK
from tinygrad.renderer import Renderer
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.scalar import scalar_program


def linear_program(optimised: UOp, renderer: Renderer) -> list[UOp]:
    """The program of a nest after its plan."""
    if CHECK:
        check_graph(optimised, "loop_nest")
    machine = renderer.machine
    nest = expand(with_weights_marked(optimised))
    program = linearize(to_device_primitives(nest, renderer), machine.grid_limits,
                        machine.contracts)
    if machine.has_blocks:
        program = pipelined(scalar_program(program, machine), machine)
    if CHECK:
        check_graph(program, "program")
    return program


def write_program(name: str, nest: UOp, program: list[UOp], renderer: Renderer) -> Written:
    """The source of a program that computes `nest`."""
    variables = tuple(n.arg[0] for n in program if n.op is Ops.VARIABLE)
    return Written(name, renderer.render(name, program), renderer.scratch_bytes(program), launch_of(program),
                   variables, thread_extent(program), estimate(nest))


def compile_source(device: str, source: str) -> Any:
    """The device's code of a source."""
    with observer.span("compile"):
        return Device[device].compile(source)


def load_program(device: str, written: Written, code: Any) -> Program:
    """The code of a kernel, ready to run."""
    target = Device[device]
    if target.renderer.machine.has_blocks:
        return target.load_blocks(written.name, code, written.launch)
    return target.load(written.name, code, written.scratch)
