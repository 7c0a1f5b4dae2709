"""A module of PyTorch as a model of ours: its state as our tensors, its `forward` as a graph that we compute.

In: an `nn.Module`. For each kind of call, `torch.export` makes one functional graph of its whole forward
pass, in ATen's core operators. Out: `TorchModel`, which computes that graph (`evaluate.py`) with tensors of
ours; gradients are this library's, TinyJit traces it, `nn.state` finds and loads its tensors.
"""
from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree

from tinygrad.tensor import Tensor
from tinygrad.torch.backend import decompositions
from tinygrad.torch.dispatch import torch_dtype
from tinygrad.torch.evaluate import program_of
from tinygrad.torch.functions import to_tensor

MOST_GRAPHS = 16
"""Graphs that one model keeps, for as many kinds of calls; the one used longest ago goes first."""


class Part:
    """A submodule: its parameters, buffers and submodules are attributes, by PyTorch's names."""


def from_torch(module: torch.nn.Module) -> TorchModel:
    """The module as a model of ours, with a copy of its state.

    Call it as the module, with our tensors (or PyTorch's, or arrays); results are what the module returns,
    of our tensors. The first call with arguments of such shapes, dtypes and other values exports the
    module's graph, with or without `Tensor.training`; running statistics change in training as the module's
    do. `nn.state.get_state_dict` gives the names of `module.state_dict()`, the optimizers of `nn.optim` train
    it. Whatever `torch.export` refuses (a branch on values) is its error; operators that we have not are one
    `UnsupportedOperators`.

    >>> import torch
    >>> from tinygrad import Tensor, nn
    >>> model = from_torch(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
    >>> sorted(nn.state.get_state_dict(model))
    ['0.bias', '0.weight', '1.bias', '1.weight']
    >>> model(Tensor.ones(3, 4)).shape
    (3, 2)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, not a {type(module).__name__}")
    return TorchModel(module)


class TorchModel(Part):
    """What `from_torch` makes."""

    def __init__(self, module: torch.nn.Module) -> None:
        made: dict[int, Tensor] = {}
        names = set(module.state_dict(keep_vars=True))
        others: dict[str, Tensor] = {}
        for name, value in (*module.named_parameters(remove_duplicate=False),
                            *module.named_buffers(remove_duplicate=False)):
            if id(value) not in made:
                made[id(value)] = to_tensor(value)
                made[id(value)].requires_grad = True if value.requires_grad else None
            if name in names:
                _put(self, name, made[id(value)])
            else:
                others[name] = made[id(value)]
        self._calls = Calls(self, module, others)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._calls(args, kwargs)


class Calls:
    """How a model is called. `nn.state` looks into no slots: this is no part of its state."""

    __slots__ = ("graphs", "model", "module", "others")

    def __init__(self, model: TorchModel, module: torch.nn.Module, others: dict[str, Tensor]) -> None:
        self.model = model
        self.module = module
        self.others = others
        """buffers that are not saved with the module's state"""
        self.graphs: OrderedDict[Any, Exported] = OrderedDict()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = _pytree.tree_flatten((args, kwargs))
        leaves = [to_tensor(leaf) if isinstance(leaf, torch.Tensor) else
                  Tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        said = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (Tensor.training, str(structure), *said)
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = Exported(self.module, leaves, structure)
            if len(self.graphs) > MOST_GRAPHS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return graph(self.state, *_pytree.tree_unflatten(leaves, structure))

    def state(self, name: str) -> Tensor:
        """The parameter or buffer of this name, as it is now."""
        found = self.others.get(name)
        return functools.reduce(lambda part, step: vars(part)[step], name.split("."),
                                self.model) if found is None else found  # type: ignore[return-value]


def _put(holder: Any, name: str, tensor: Tensor) -> None:
    """Set the attribute of that path, through parts that are made where there are none."""
    *path, last = name.split(".")
    for step in path:
        if step not in vars(holder):
            setattr(holder, step, Part())
        holder = vars(holder)[step]
    setattr(holder, last, tensor)


class Exported:
    """The graph of one kind of call."""

    def __init__(self, module: torch.nn.Module, leaves: Sequence[Any], structure: Any) -> None:
        examples = [torch.zeros(leaf.shape, dtype=torch_dtype(leaf.dtype)) if isinstance(leaf, Tensor)
                    else leaf for leaf in leaves]
        args, kwargs = _pytree.tree_unflatten(examples, structure)
        was_training = module.training
        module.train(Tensor.training)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.export(module, args, kwargs, strict=False)
                program = program.run_decompositions(decompositions())
        finally:
            module.train(was_training)
        self.signature = program.graph_signature
        self.constants = {name: to_tensor(value) for name, value in program.constants.items()
                          if isinstance(value, torch.Tensor)}
        self.program = program_of(program.graph_module)
        self.names = list(program.call_spec.in_spec.child(1).context)
        """of the arguments given by name, in the order of the graph's inputs"""
        self.structure = program.call_spec.out_spec

    def __call__(self, state: Callable[[str], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = iter(_pytree.tree_leaves((args, {name: kwargs[name] for name in self.names})))
        inputs = {spec.arg.name: self.input(spec, state, given) for spec in self.signature.input_specs}
        results = self.program.run(list(inputs.values()))
        returned = []
        for spec, value in zip(self.signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                state(spec.target).assign(value.detach())
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                inputs[spec.target].assign(value)
            elif spec.kind is OutputKind.USER_OUTPUT:
                returned.append(value)
        return _pytree.tree_unflatten(returned, self.structure)

    def input(self, spec: Any, state: Callable[[str], Tensor], given: Iterator[Any]) -> Any:
        """What the graph gets in one place."""
        if spec.kind is InputKind.USER_INPUT:
            return next(given)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            return state(spec.target)
        return self.constants[spec.target]
