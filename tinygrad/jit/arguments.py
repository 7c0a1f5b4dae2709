"""What goes into a call under TinyJit and what comes out: tensors in lists, tuples, dicts and dataclasses.

`Inputs` takes a call's arguments apart: the tensors with the memory they lie in, the bound variables, and the
rest as a structure to compare and hash. Together they say which trace fits (`jit/jit.py`). `changed`
rebuilds arguments and results around other tensors.
"""
from __future__ import annotations

import copy
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes
from tinygrad.engine.capture import JitError
from tinygrad.engine.realize import allocate, realize_uops
from tinygrad.frozen import frozen
from tinygrad.graph.leaf_tensors import storage_view, without_detaches
from tinygrad.graph.node_flags import WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Layout, Placement
from tinygrad.graph.sizes import (
    Size,
    changed_sizes,
    is_expression,
    node_of,
    sizes_in,
    unbound,
    variables_in,
)
from tinygrad.graph.storage import Storage
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, NOOPT
from tinygrad.tensor import Tensor
from tinygrad.tensor.live import PendingWrites, pending_among, unrealized_tensors
from tinygrad.tensor.modes import no_grad

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose values are compared as they are, and may be returned."""


@frozen
class Slot:
    """The place of a tensor in a structure of arguments or results."""

    position: int


@functools.cache
def slot(position: int) -> Slot:
    """The slot of that position, which is compared fast with itself."""
    return Slot(position)


@functools.cache
def plain_structure(count: int) -> Any:
    """The structure of a call with so many tensors as its arguments, and nothing else."""
    return (tuple, (tuple, *map(slot, range(count))), (dict,))


@frozen
class Identity:
    """An argument without a value to compare by: this very object, kept alive so that its id stays its."""

    value: Any = dataclasses.field(compare=False)
    identity: int

    @staticmethod
    def of(value: Any) -> Identity:
        return Identity(value, id(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return Identity.of, (self.value,)


class CallKind(NamedTuple):
    """What decides which trace fits a call."""

    structure: Any
    """the arguments, with a slot for every tensor"""
    tensors: tuple[tuple[Any, DType, Placement, bool | None], ...]
    """shape, dtype, device and `requires_grad` of each tensor"""
    layouts: tuple[Layout | None, ...]
    """for each tensor, how it lies on several devices"""
    same: tuple[int, ...]
    """for each memory of a tensor on a device, the first that is the same"""
    training: bool
    no_grad: bool
    device: str
    default_float: DType
    default_int: DType
    plain: bool
    """whether kernels are plain loops (NOOPT)"""
    tf32: bool
    variant: int = 0
    """which trace of those for other values of Variables"""

    def __str__(self) -> str:
        words = [f"{dtype.name} {shape} on {place}" for shape, dtype, place, _ in self.tensors]
        settings = {"training": self.training, "no_grad": self.no_grad,
                    f"default device {self.device}": self.device != "CPU",
                    f"default {self.default_float}": self.default_float is not dtypes.float32,
                    f"default {self.default_int}": self.default_int is not dtypes.int32,
                    "NOOPT=1": self.plain, "ALLOW_TF32=1": self.tf32}
        unusual = "".join(f", {name}" for name, holds in settings.items() if holds)
        return " and ".join(words or ["no tensors"]) + unusual


def is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, Slot))


def attributes(value: Any) -> list[str]:
    """What a dataclass instance has: its fields and what else was set, but for what is computed from them
    when it is asked for (`cached_property`)."""
    names = dict.fromkeys([f.name for f in dataclasses.fields(value)] + list(getattr(value, "__dict__", ())))
    return [n for n in names if hasattr(value, n) and not is_cached(value, n)]


def is_cached(value: Any, name: str) -> bool:
    return isinstance(getattr(type(value), name, None), functools.cached_property)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of `value`'s lists, tuples, dicts and dataclasses, with `change` applied to what they hold."""
    if isinstance(value, (list, tuple)):
        items = [changed(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        other = copy.copy(value)
        other.clear()
        other.update((changed(k, change), changed(v, change)) for k, v in value.items())
        return other
    if is_dataclass_instance(value):
        other = copy.copy(value)
        for name in [n for n in getattr(other, "__dict__", ()) if is_cached(other, n)]:
            del other.__dict__[name]
        for name in attributes(value):
            object.__setattr__(other, name, changed(getattr(value, name), change))
        return other
    return change(value)


class Inputs:
    """A call's arguments, and the tensors among them with their memory."""

    def __init__(self, values: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.values = values
        self.tensors: list[Tensor] = []
        self.variables: dict[str, int] = {}
        self.views: list[UOp] = []
        """for each tensor, the view of memory, in order, that holds it"""
        self.whole: list[bool] = []
        """for each tensor, whether that is the tensor's own memory, and all of it"""
        self.memories: list[UOp] = []
        """the BUFFER nodes, each on one device, that the tensors lie in"""
        self.owner: list[int] = []
        """for each of `memories`, the number of its tensor"""
        self.origins: list[Storage] = []
        """for each tensor, the memory that it showed before it was put in order"""
        self.objects: list[Any] = []
        """arguments that are compared by identity"""
        args, kwargs = values
        if not kwargs and not Size.exists and all([type(value) is Tensor for value in args]):
            self.tensors += args
            self.structure = plain_structure(len(args))
        else:
            self.structure = self.flatten(values)

    @functools.cached_property
    def unrealized(self) -> list[Tensor]:
        """What is live and not in memory, or was not before the call."""
        return unrealized_tensors()

    def flatten(self, value: Any, is_rebuilt: bool = True) -> Any:
        """`value` as something to compare and hash, with a slot in place of every tensor that `changed`
        finds: in what it does not rebuild, a tensor is this very tensor."""
        if isinstance(value, Tensor) and is_rebuilt:
            self.tensors.append(value)
            if Size.exists:
                for size in sizes_in(value.shape):
                    self.add_variables(size.node)
            return slot(len(self.tensors) - 1)
        if isinstance(value, (list, tuple)):
            return (type(value), *[self.flatten(v, is_rebuilt) for v in value])
        if isinstance(value, dict):
            return (type(value), *[(self.flatten(k, is_rebuilt), self.flatten(v, is_rebuilt))
                                   for k, v in value.items()])
        if is_dataclass_instance(value):
            return (type(value), *((name, self.flatten(getattr(value, name), is_rebuilt))
                                   for name in attributes(value)))
        if is_expression(value) or isinstance(value, Size):
            self.add_variables(node_of(value))
            without_values = unbound(node_of(value))
            return Identity.of(without_values)
        if isinstance(value, float):
            return (type(value), value.hex())
        if isinstance(value, complex):
            return (type(value), value.real.hex(), value.imag.hex())
        if isinstance(value, PLAIN):
            return (type(value), value)
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype == object:
                return (type(value), value.shape, *(self.flatten(v, False) for v in value.flat))
            return (type(value), value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, (set, frozenset)):
            return (type(value), frozenset([self.flatten(v, False) for v in value]))
        if isinstance(value, deque):
            return (type(value), *(self.flatten(v, False) for v in value))
        if isinstance(value, (slice, range)):
            return (type(value), *(self.flatten(v, False) for v in (value.start, value.stop, value.step)))
        if isinstance(value, bytearray):
            return (type(value), bytes(value))
        self.objects.append(value)
        return Identity.of(value)

    def add_variables(self, expression: UOp) -> None:
        """Take note of the values that the VARIABLEs of an argument are bound to."""
        for variable in variables_in(expression):
            name, _, _, number = variable.arg
            if number is not None and self.variables.setdefault(name, number) != number:
                raise JitError(f"the variable {name} is bound to {self.variables[name]} and to {number} in "
                               "one call; give the two different names")

    def realize(self, writes_pending: bool = True) -> None:
        """Give every input memory in which it lies in order; write what is pending for other tensors too."""
        todo = list(filter(is_to_compute, self.tensors))
        if writes_pending and PendingWrites.exist():
            todo += pending_among(self.unrealized)
        if todo:
            todo[0].realize(*todo[1:])
        nodes = [without_detaches(tensor.uop) for tensor in self.tensors]
        if all([is_whole_memory(node) for node in nodes]):
            self.views = nodes
            self.memories = [node.unreshaped for node in nodes]
            self.whole = [True] * len(nodes)
            self.owner = list(range(len(nodes)))
            self.origins = [memory.storage for memory in self.memories]
            for memory in self.memories:
                allocate(memory)
            return
        in_order = []
        for tensor, uop in zip(self.tensors, nodes, strict=True):
            view = storage_view(uop)
            if view is None:
                raise RuntimeError(f"{tensor!r} was computed but has no memory")
            self.origins.append(view.base.storage)
            packed = view.contiguous()
            self.whole.append(packed is view and uop.viewed.op is Ops.BUFFER)
            in_order.append(packed)
        self.pack(in_order)

    def pack(self, in_order: Sequence[UOp]) -> None:
        """Compute the values, which lie in order, where they are not in memory yet."""
        todo = [node for node in in_order if node.viewed.op is not Ops.BUFFER]
        if todo:
            realize_uops(todo)
        for node in in_order:
            view = storage_view(node)
            assert view is not None
            for memory in view.base.memories:
                allocate(memory)
                self.memories.append(memory)
                self.owner.append(len(self.views))
            self.views.append(view)

    def kind(self) -> CallKind:
        """The kind of call that these arguments make now."""
        first: dict[Storage, int] = {}
        same = tuple([first.setdefault(memory.storage, i) for i, memory in enumerate(self.memories)])
        tensors = tuple([(changed_sizes(t.shape, unbound) if Size.exists else t.shape, t.dtype, t.device,
                          t.requires_grad) for t in self.tensors])
        layouts = tuple([view.base.arg.layout for view in self.views])
        return CallKind(self.structure, tensors, layouts, same, Tensor.training, no_grad.state.depth > 0,
                        Device.DEFAULT, dtypes.default_float, dtypes.default_int, bool(NOOPT),
                        bool(ALLOW_TF32))


def is_to_compute(tensor: Tensor) -> bool:
    """Whether a tensor is lazy, or shows memory that is still to be written. (One may be in memory and stand
    for how it was computed, for the sake of gradients.)"""
    return not tensor._is_fully_realized and (bool(tensor._uop.flags & WRITES) or not tensor._is_realized)


def is_whole_memory(node: UOp) -> bool:
    """Whether a node is the memory of one device in order, of whatever shape, as most arguments are."""
    memory = node.unreshaped
    return memory.op is Ops.BUFFER and memory.arg.layout is None


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
