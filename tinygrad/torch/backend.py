"""What `torch.compile(model, backend="tinygrad")` calls: graphs of PyTorch as functions that replay a trace.

In: FX graphs from TorchDynamo. AOTAutograd makes functional forward and backward graphs of them, in ATen's
core operators, and writes back what the program changes in place. Out: functions of `torch.Tensor`s;
tensors cross by DLPack, without a copy where their memory has no gaps. Each kind of call is traced once by
TinyJit and replayed. Next: `evaluate.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from tinygrad.jit import TinyJit
from tinygrad.tensor import Tensor
from tinygrad.tensor.generator import seeded
from tinygrad.torch.evaluate import GraphProgram, program_of
from tinygrad.torch.registry import OPERATORS


def decompositions() -> dict[Any, Callable[..., Any]]:
    """ATen's operators in terms of the core ones, but for those that the table has."""
    return {target: function for target, function in core_aten_decompositions().items()
            if str(target) not in OPERATORS}


def from_torch(value: Any) -> Any:
    """Our tensor over the memory of PyTorch's; numbers as they are. Raises ValueError for other devices."""
    if not isinstance(value, torch.Tensor):
        return value
    require_cpu(value)
    return Tensor.from_dlpack(value.detach())


def require_cpu(value: Any) -> None:
    """Raises ValueError for a tensor of another device."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        raise ValueError(f"the backend tinygrad takes tensors of the CPU, this one is on {value.device}")


def to_torch(value: Any) -> Any:
    """PyTorch's tensor over the memory of ours; what is no tensor as it is."""
    return torch.from_dlpack(value) if isinstance(value, Tensor) else value


def compiled(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A functional graph as a function of `torch.Tensor`s, boxed as AOTAutograd wants it.

    Raises UnsupportedOperators, and ValueError for tensors that are not the CPU's.
    """
    for example in example_inputs:
        require_cpu(example)
    function: Callable[..., Any] = make_boxed_func(Replayed(program_of(module)))
    return function


class Replayed:
    """A program that is traced once for each kind of call."""

    def __init__(self, program: GraphProgram) -> None:
        positions = {node: i for i, node in enumerate(program.inputs)}
        self.passed_on = [positions.get(output) for output in program.outputs]
        """for each output which input it is, None for what is computed"""
        self.held = program.held
        self.is_random = program.is_random
        self.is_computed = any(position is None for position in self.passed_on)
        passed_on = self.passed_on

        def run(*arguments: Any) -> list[Any]:
            results = program.run(arguments)
            return [result for result, position in zip(results, passed_on) if position is None]

        self.function = TinyJit(run)

    def __call__(self, *given: Any) -> list[Any]:
        arguments = (*given, *self.held)
        results = iter(self.computed(arguments) if self.is_computed else ())
        return [next(results) if position is None else arguments[position] for position in self.passed_on]

    def computed(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs that are no inputs. Random numbers follow a seed that PyTorch's generator draws."""
        inputs = [from_torch(argument) for argument in arguments]
        if not self.is_random:
            return [to_torch(result) for result in self.function(*inputs)]
        with seeded(int(torch.randint(2**62, ()))):
            return [to_torch(result) for result in self.function(*inputs)]


def backend(module: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A graph of TorchDynamo as a compiled function: give it, or its name "tinygrad", to `torch.compile`.

    Tensors are the CPU's. Raises UnsupportedOperators, which lists all operators that are missing.

    >>> import torch
    >>> double = torch.compile(lambda x: x * 2, backend=backend)
    >>> double(torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    through_autograd = aot_autograd(
        fw_compiler=compiled, bw_compiler=compiled, decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition)
    result: Callable[..., Any] = through_autograd(module, example_inputs)
    return result
