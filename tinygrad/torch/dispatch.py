"""Compiled graphs on PyTorch's memory: one call is traced, the next ones are one native command.

In: a `GraphProgram`. Out: `Replayed`, a function of `torch.Tensor`s. Its first call with such shapes and
strides gives the tensors to TinyJit by DLPack. Where the trace is one list of kernels that write nothing but
its results, `Launch` keeps what a call needs of it: the addresses of arguments and results go straight into
the kernels' arguments, and the results are PyTorch's own tensors. Other traces are replayed by TinyJit.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tinygrad.device import Buffer, Device
from tinygrad.device.queue import ThreadedQueue
from tinygrad.engine.realize import Capture
from tinygrad.engine.replay import SlotKind, Together, Values
from tinygrad.helpers import DEBUG, JIT, argsort
from tinygrad.jit.arguments import Inputs, Slot
from tinygrad.jit.jit import PureJit
from tinygrad.jit.trace import SEED, Trace
from tinygrad.tensor import Tensor
from tinygrad.tensor.generator import seeded
from tinygrad.torch.evaluate import GraphProgram, dtype_of

Array = np.ndarray[Any, Any]


def require_cpu(value: Any) -> None:
    """Raises ValueError for a tensor of another device."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        raise ValueError(f"the backend tinygrad takes tensors of the CPU, this one is on {value.device}")


def to_torch(value: Any) -> Any:
    """PyTorch's tensor over the memory of ours; what is no tensor as it is."""
    return torch.from_dlpack(value) if isinstance(value, Tensor) else value


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the items lie without gaps, in whatever order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return expected > 0


def order_in_memory(value: Any) -> tuple[int, ...] | None:
    """The axes in the order in which they lie; none for numbers and for memory with gaps."""
    if not isinstance(value, torch.Tensor) or not is_dense(value):
        return None
    strides = value.stride()
    return tuple(sorted(range(value.ndim), key=lambda axis: -strides[axis]))


def from_torch(value: Any, order: tuple[int, ...] | None) -> Any:
    """Our tensor over the memory of PyTorch's, its axes in this order, without an order over a copy; numbers
    as they are. Raises ValueError for other devices."""
    if not isinstance(value, torch.Tensor):
        return value
    require_cpu(value)
    value = value.detach()
    return Tensor.from_dlpack(value.contiguous() if order is None else value.permute(order))


@dataclass(frozen=True)
class Launch:
    """One command of the CPU's queue, on memory that each call gives."""

    command: Together
    queue: ThreadedQueue
    arguments: tuple[int, ...]
    """the numbers of the arguments that the kernels read"""
    gaps: tuple[int, ...]
    """which of `arguments`, by their numbers there, are put together first, for their memory has gaps"""
    results: tuple[Callable[[], torch.Tensor], ...]
    """make memory for each result"""
    places: Array
    """for each argument of the kernels that changes, where in a call's table it stands: the addresses of
    `arguments`, then of `results`, then the seed, then numbers that never change"""
    constants: tuple[int, ...]
    memory: tuple[Buffer, ...]
    """what some of these are addresses of: tables of numbers that the graph brings"""
    returned: tuple[Any, ...] | None
    """what a call returns, a `Slot` for each result; none where there is nothing else"""

    def __call__(self, given: Sequence[Any], seed: int) -> list[Any]:
        tensors = [given[number] for number in self.arguments]
        for number in self.gaps:
            tensors[number] = tensors[number].contiguous()
        results = [make() for make in self.results]
        table = [t.data_ptr() for t in tensors]
        table += [t.data_ptr() for t in results]
        table.append(seed)
        table += self.constants
        values = np.array(table, np.int64)[self.places]
        command = self.command
        point = self.queue.exec_list(command.kernels, command.changing, values, command.seconds)
        if point is not None:
            point.wait()
        command.count_run()
        if self.returned is None:
            return results
        return [results[item.position] if isinstance(item, Slot) else item for item in self.returned]


def launch_of(trace: Trace, inputs: Inputs, given: Sequence[Any]) -> Launch | None:
    """The launch of a trace on the CPU whose results are new memory, each its own; None for others."""
    command = trace.engine.one_command
    queue = Device["CPU"].queue
    tensors = [number for number, value in enumerate(given) if isinstance(value, torch.Tensor)]
    if command is None or command.device != "CPU" or not isinstance(queue, ThreadedQueue):
        return None
    if trace.written_states or trace.gradients or trace.written_inputs:
        return None
    if inputs.owner != list(range(len(tensors))):
        return None
    outputs = trace.outputs
    own = [output.places[0] for output in outputs if len(output.places) == 1 and output.argument is None]
    if len(set(own)) != len(outputs) or any(
            trace.places[n].kind is not SlotKind.FRESH or trace.places[n].content is not None for n in own):
        return None
    read = dict(trace.input_places)
    used = {place for _, place in command.places}
    tables = {n: trace.places[n].state for n in used if trace.places[n].is_constant}
    if not used <= read.keys() | set(own) | tables.keys():
        return None
    arguments = [place for place in sorted(used & read.keys())]
    position = {place: i for i, place in enumerate([*arguments, *own])}
    position |= {place: len(position) + 1 + i for i, place in enumerate(tables)}
    numbers = [position[place] for _, place in command.places]
    memory = tuple(node.buffer for node in tables.values() if node is not None and node.buffer is not None)
    constants = [buffer.address for buffer in memory]
    seed = len(arguments) + len(own)
    for _, variable in command.variables:
        if variable.source == SEED:
            numbers.append(seed)
        else:
            numbers.append(seed + 1 + len(constants))
            constants.append(Values({}, {}).of(variable))
    makers: list[Callable[[], torch.Tensor]] = []
    for output in outputs:
        st = output.view.st.simplify()
        view = st.views[0]
        if len(st.views) != 1 or not view.contiguous or view.offset:
            return None
        makers.append(partial(torch.empty, tuple(view.shape), dtype=torch_dtype(output.view.dtype)))
    owners = [tensors[read[place]] for place in arguments]
    return Launch(command, queue, tuple(owners),
                  tuple(i for i, number in enumerate(owners) if not is_dense(given[number])),
                  tuple(makers), np.array(numbers, np.intp), tuple(constants), memory,
                  None if all(isinstance(item, Slot) for item in trace.structure) else tuple(trace.structure))


DTYPES = {dtype_of(dtype): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool)}


def torch_dtype(dtype: Any) -> torch.dtype:
    return DTYPES[dtype]


class Replayed:
    """A program that is traced once for each kind of call."""

    def __init__(self, program: GraphProgram) -> None:
        positions = {node: i for i, node in enumerate(program.inputs)}
        self.program = program
        self.passed_on = [positions.get(output) for output in program.outputs]
        """for each output which input it is, None for what is computed"""
        self.held = program.held
        self.is_computed = any(position is None for position in self.passed_on)
        self.passes_on = any(position is not None for position in self.passed_on)
        self.launches: dict[Any, Launch | None] = {}
        """by the strides of a call's tensors, and for sizes that vary by all that its arguments say"""
        self.function = PureJit(self.run)

    def run(self, orders: Sequence[tuple[int, ...] | None], *given: Any) -> list[Any]:
        """What is computed, in memory of its own: a result that shows an argument would change with it.
        `orders` has, for each argument, the order of its axes in `given`."""
        arguments = [value if order is None else value.permute(argsort(order))
                     for value, order in zip(given, orders, strict=True)]
        results = self.program.run(arguments)
        computed = [result for result, position in zip(results, self.passed_on) if position is None]
        return [result.clone() if isinstance(result, Tensor) else result for result in computed]

    def __call__(self, *given: Any) -> list[Any]:
        arguments = (*given, *self.held) if self.held else given
        computed = self.computed(arguments) if self.is_computed else []
        if not self.passes_on:
            return computed
        results = iter(computed)
        return [next(results) if position is None else arguments[position] for position in self.passed_on]

    def computed(self, given: Sequence[Any]) -> list[Any]:
        """The outputs that are no inputs. Random numbers follow a seed that PyTorch's generator draws."""
        seed = int(torch.randint(2**62, ())) if self.program.is_random else 0
        key = kind_of(given, self.program.has_sizes)
        launch = self.launches.get(key)
        if launch is not None and JIT and DEBUG.value < 2 and Capture.current() is None:
            return launch(given, seed)
        orders = tuple(order_in_memory(value) for value in given)
        inputs = (orders, *(from_torch(value, order) for value, order in zip(given, orders, strict=True)))
        if self.program.is_random:
            with seeded(seed):
                results = self.function(*inputs)
        else:
            results = self.function(*inputs)
        if key not in self.launches:
            self.launches[key] = self.launch_for(inputs, given)
        return [to_torch(result) for result in results]

    def launch_for(self, inputs: tuple[Any, ...], given: Sequence[Any]) -> Launch | None:
        """That of the trace by which TinyJit replays this call."""
        taken = Inputs((inputs, {}))
        taken.realize()
        trace = self.function.traces.get(taken.kind())
        if trace is None or any(not isinstance(v, (torch.Tensor, int)) for v in given):
            return None
        return launch_of(trace, taken, given)


def kind_of(given: Sequence[Any], has_sizes: bool) -> Any:
    """What of the arguments a graph does not settle."""
    if not has_sizes:
        return tuple([tensor.stride() for tensor in given])
    return tuple([(v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in given])
