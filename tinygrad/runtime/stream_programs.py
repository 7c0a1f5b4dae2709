"""Kernels of GPUs whose drivers have streams (`streams.py`): one, and many that are started by one call.

What a captured function runs after each other is a graph of the driver. A graph keeps its kernels' arguments,
and is told only those that changed since its last run.
"""
from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device.queue import Numbers
from tinygrad.renderer.launch import Launch
from tinygrad.runtime.launch import Arguments

if TYPE_CHECKING:
    from tinygrad.runtime.streams import StreamGPU


class StreamProgram:
    """A loaded kernel: `function` in `module`, as the driver calls them. `shared` are the bytes of shared
    memory that a launch asks for, beside what the kernel declares."""

    def __init__(self, gpu: StreamGPU, module: Any, function: Any, launch: Launch, shared: int = 0) -> None:
        self.gpu = gpu
        self.module = module
        self.function = function
        self.launch = launch
        self.arguments = Arguments(launch)
        self.sizes = (*launch.blocks, *launch.threads, shared)

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        self.gpu.enter()
        self.gpu.start_kernel(self.function, self.sizes, self.arguments.set(addresses, variables))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.gpu.synchronize()
            self.gpu.unload(self.module)


StreamCall = tuple[StreamProgram, Sequence[int], Sequence[int], int]
"""A kernel, its buffers' addresses, its variables' values, its extent."""


class DriverGraph:
    """Kernels that run one after another, started by one call. Arguments have numbers, as `exec_list` says;
    changing them changes runs that are not started yet."""

    def __init__(self, gpu: StreamGPU, calls: Sequence[StreamCall]) -> None:
        gpu.enter()
        self.gpu = gpu
        self.programs = [program for program, *_ in calls]
        self.counts = [len(addresses) for _, addresses, _, _ in calls]
        self.given: list[int] = []
        self.starts: list[int] = []
        self.arguments = [Arguments(program.launch) for program in self.programs]
        self.graph = gpu.new_graph()
        self.nodes: list[Any] = []
        for number, (program, addresses, variables, _) in enumerate(calls):
            self.starts.append(len(self.given))
            self.given.extend([*addresses, *variables])
            self.nodes.append(gpu.add_kernel(self.graph, self.nodes[-1:], program.function, program.sizes,
                                             self.pointers(number)))
        self.executable = gpu.finished_graph(self.graph)

    def pointers(self, number: int) -> int:
        """The arguments of a kernel as they are now, as a launch takes them."""
        start = self.starts[number]
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.given)
        variables = start + self.counts[number]
        return self.arguments[number].set(self.given[start:variables], self.given[variables:end])

    def change(self, places: Numbers, values: Numbers) -> None:
        """Give arguments other values, in the kernels that have one which differs."""
        self.gpu.enter()
        changed = set()
        for place, value in zip(np.asarray(places).tolist(), np.asarray(values).tolist(), strict=True):
            if self.given[place] != value:
                self.given[place] = value
                changed.add(bisect.bisect_right(self.starts, place) - 1)
        for number in sorted(changed):
            program = self.programs[number]
            self.gpu.change_kernel(self.executable, self.nodes[number], program.function, program.sizes,
                                   self.pointers(number))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "executable", None) is not None and not is_finalizing():
            self.gpu.synchronize()
            self.gpu.destroy_graph(self.graph, self.executable)
