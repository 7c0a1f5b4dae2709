"""What goes into a call under TinyJit and what comes out: tensors in lists, tuples, dicts and dataclasses.

`Inputs` takes a call's arguments apart: the tensors with the memory they lie in, the bound variables, and the
rest as a structure to compare and hash. Together they say which trace fits (`engine/jit.py`). `changed`
rebuilds arguments and results around other tensors.
"""
from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad.engine.realize import JitError, allocate
from tinygrad.graph.leaves import storage_view
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import (
    Size,
    changed_sizes,
    is_expression,
    node_of,
    sizes_in,
    unbound,
    variables_in,
)
from tinygrad.graph.uop import Storage, UOp
from tinygrad.tensor import Tensor, pending_assignments

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose values are compared as they are, and may be returned."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of a tensor in a structure of arguments or results."""

    position: int


@dataclasses.dataclass(frozen=True)
class Identity:
    """An argument without a value to compare by: this very object, kept alive so that its id stays its."""

    value: Any = dataclasses.field(compare=False)
    identity: int

    @staticmethod
    def of(value: Any) -> Identity:
        return Identity(value, id(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return Identity.of, (self.value,)


def is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Slot))


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of `value`'s lists, tuples, dicts and dataclasses, with `change` applied to what they hold."""
    if isinstance(value, (list, tuple)):
        items = [changed(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        other = copy.copy(value)
        other.update({k: changed(v, change) for k, v in value.items()})
        return other
    if is_dataclass_instance(value):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, changed(getattr(value, field.name), change))
        return other
    return change(value)


class Inputs:
    """A call's arguments, and the tensors among them with their memory."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.tensors: list[Tensor] = []
        self.variables: dict[str, int] = {}
        self.views: list[UOp] = []
        """for each tensor, the view of memory, in order, that holds it"""
        self.whole: list[bool] = []
        """for each tensor, whether that is the tensor's own memory, and all of it"""
        self.owner: list[int] = []
        """for each of `memories`, the number of its tensor"""
        self.structure = self.flatten(values)

    def flatten(self, value: Any) -> Any:
        """`value` as something to compare and hash, with a slot in place of every tensor."""
        if isinstance(value, Tensor):
            self.tensors.append(value)
            for size in sizes_in(value.shape):
                self.add_variables(size.node)
            return Slot(len(self.tensors) - 1)
        if isinstance(value, (list, tuple)):
            return (type(value), *(self.flatten(v) for v in value))
        if isinstance(value, dict):
            return (type(value), *((self.flatten(k), self.flatten(v)) for k, v in value.items()))
        if is_dataclass_instance(value):
            fields = ((f.name, self.flatten(getattr(value, f.name))) for f in dataclasses.fields(value))
            return (type(value), *fields)
        if is_expression(value) or isinstance(value, Size):
            self.add_variables(node_of(value))
            without_values = unbound(node_of(value))
            return Identity.of(without_values)
        if isinstance(value, float):
            return (float, value.hex())
        if isinstance(value, complex):
            return (complex, value.real.hex(), value.imag.hex())
        if isinstance(value, PLAIN):
            return (type(value), value)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            return (type(value), value.dtype.str, value.shape, value.tobytes())
        return Identity.of(value)

    def add_variables(self, expression: UOp) -> None:
        """Take note of the values that the VARIABLEs of an argument are bound to."""
        for variable in variables_in(expression):
            name, _, _, number = variable.arg
            if number is not None and self.variables.setdefault(name, number) != number:
                raise JitError(f"the variable {name} is bound to {self.variables[name]} and to {number} in "
                               "one call; give the two different names")

    def realize(self) -> None:
        """Give every input memory in which it lies in order; write what is pending."""
        pending = [*self.tensors, *pending_assignments()]
        if pending:
            pending[0].realize(*pending[1:])
        packed = []
        for tensor in self.tensors:
            view = storage_view(tensor.uop)
            if view is None:
                raise RuntimeError(f"{tensor!r} was computed but has no memory")
            in_order = view.contiguous()
            self.whole.append(in_order is view and tensor.uop.viewed.op is Ops.BUFFER)
            packed.append(Tensor.of(in_order))
        if packed:
            packed[0].realize(*packed[1:])
        for tensor in packed:
            view = storage_view(tensor.uop)
            assert view is not None
            for memory in view.base.memories:
                allocate(memory)
                self.owner.append(len(self.views))
            self.views.append(view)

    @property
    def memories(self) -> list[UOp]:
        """The BUFFER nodes, each on one device, that the tensors lie in; `owner` says whose each is."""
        return [memory for view in self.views for memory in view.base.memories]

    @property
    def storages(self) -> list[Storage]:
        return [v.base.storage for v in self.views]

    def signature(self) -> tuple[Any, ...]:
        """What decides whether a trace fits: shapes, dtypes, devices, which inputs are the same memory, how
        those on several devices lie there."""
        first: dict[Storage, int] = {}
        same = tuple((first.setdefault(v.base.storage, i), v.base.arg.layout)
                     for i, v in enumerate(self.views))
        return (tuple((changed_sizes(t.shape, unbound), t.dtype, t.device, t.requires_grad)
                      for t in self.tensors), same)


def returned_tensors(result: Any) -> list[Tensor]:
    """The tensors in the result. Raises JitError for what a replay could not make again."""
    found: dict[int, Tensor] = {}

    def look(value: Any) -> None:
        if isinstance(value, Tensor):
            found.setdefault(id(value), value)
        elif not isinstance(value, PLAIN):
            raise JitError(f"a function under TinyJit returned a {type(value).__name__}; it may return "
                           "tensors, numbers, strings, None, and lists, tuples, dicts and dataclasses of "
                           "them")

    changed(result, look)
    return list(found.values())
