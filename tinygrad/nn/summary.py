"""`nn.summary(model, x)`: a table of a model's layers, with shapes, parameters, operations and time.

In: a model and its inputs. It is called twice, the second time with each layer computed by itself and timed.
Layers are what `nn.state` finds tensors in and can be called; a call is seen by wrapping `__call__` of their
types for its duration.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from types import MethodType
from typing import Any

from tinygrad.device import Device
from tinygrad.helpers import GlobalCounters
from tinygrad.nn.state import get_state_dict
from tinygrad.tensor import Tensor


@dataclass
class LayerRow:
    """What one layer did in one call of the model."""

    name: str
    kind: str
    shapes: str
    parameters: int
    operations: int
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.kind, self.shapes, f"{self.parameters:,}", f"{self.operations:,}",
                f"{self.seconds * 1e3:.3f}")


HEAD = ("layer", "type", "output", "parameters", "operations", "ms")


class Summary:
    """The rows of `summary`, and their sums; its text is a table."""

    def __init__(self, rows: list[LayerRow], total: LayerRow) -> None:
        self.rows = rows
        self.total = total

    def __str__(self) -> str:
        lines = [HEAD, *(row.cells for row in self.rows), self.total.cells]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
        texts = []
        for line in lines:
            cells = [cell.ljust(w) if i < 3 else cell.rjust(w)
                     for i, (cell, w) in enumerate(zip(line, widths, strict=True))]
            texts.append("  ".join(cells).rstrip())
        return "\n".join([*texts[:-1], "-" * max(map(len, texts)), texts[-1]])

    def _repr_html_(self) -> str:
        lines = [HEAD, *(row.cells for row in self.rows), self.total.cells]
        rows = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
        return f"<table>{''.join(rows)}</table>"


def summary(model: Callable[..., Any], *inputs: Any, **options: Any) -> Summary:
    """The layers that a call of `model` on these inputs goes through: names, types, shapes of what they
    return, items of their own parameters, operations, and milliseconds of each computed by itself.

    What a layer does in calls of other layers counts as theirs. The sum of all is what the model does layer
    by layer; fused over layers it may take less. A model may be a function, too, or a method, whose layers
    are those of its object. Raises what the model raises, and TypeError for what cannot be called.

    >>> nn.summary(nn.Linear(4, 2), Tensor.ones(3, 4)).rows[0].parameters
    10
    """
    if not callable(model):
        raise TypeError(f"summary() takes a model that can be called, not a {type(model).__name__}")
    if owner_of_call(model).__flags__ & IMMUTABLE:
        model = FunctionModel(model)
    names = layer_names(model)
    rows: list[LayerRow] = []
    with Tensor.train(False):
        with watched(names, []):  # what is compiled and loaded at a first call is not the layers' time
            compute(model(*inputs, **options))
        with watched(names, rows) as spent:
            compute(model(*inputs, **options))
    parameters = sum(items_of(tensor) for tensor in unique(get_state_dict(held_by(model)).values()))
    calls = f"{len(rows)} call{'' if len(rows) == 1 else 's'}"
    return Summary(rows, LayerRow("all", kind_of(model), calls, parameters, spent.operations, spent.seconds))


class FunctionModel:
    """A function or a method as a model: its calls can be watched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.function(*inputs, **options)


IMMUTABLE = 1 << 8
"""Of a type's `__flags__` (CPython's `Py_TPFLAGS_IMMUTABLETYPE`): its methods cannot be replaced."""


def held_by(model: Any) -> Any:
    """The object that holds the layers of a model: of a method, whose it is; of another function, none."""
    if not isinstance(model, FunctionModel):
        return model
    return model.function.__self__ if isinstance(model.function, MethodType) else None


def kind_of(layer: Any) -> str:
    return type(layer.function if isinstance(layer, FunctionModel) else layer).__name__


def owner_of_call(layer: Any) -> type:
    """The class whose `__call__` a layer has."""
    return next(c for c in type(layer).__mro__ if "__call__" in vars(c))


def layer_names(model: Any) -> dict[int, tuple[str, Any]]:
    """By its id: the name and the layer, of the model and all in it that can be called and holds tensors."""
    name = model.name if isinstance(model, FunctionModel) else type(model).__name__
    found: dict[int, tuple[str, Any]] = {id(model): (name, model)}
    model = held_by(model)
    for path in get_state_dict(model):
        parts = path.split(".")
        here = model
        for i, part in enumerate(parts[:-1]):
            here = here[int(part)] if isinstance(here, (list, tuple)) else (
                here[part] if isinstance(here, dict) else getattr(here, part))
            if callable(here) and not isinstance(here, Tensor):
                found.setdefault(id(here), (".".join(parts[:i + 1]), here))
    return found


@dataclass
class Spent:
    """What all layers took, and what layers inside the one that runs now did."""

    operations: int = 0
    seconds: float = 0.0


@contextmanager
def watched(names: dict[int, tuple[str, Any]], rows: list[LayerRow]) -> Iterator[Spent]:
    """While this lasts, each call of one of these layers computes its result, and adds a row."""
    spent = Spent()
    owners = {owner_of_call(layer) for _, layer in names.values()}
    with ExitStack() as undo:
        for owner in owners:
            own = vars(owner)["__call__"]
            undo.callback(setattr, owner, "__call__", own)
            type.__setattr__(owner, "__call__", wrapped(own, names, rows, spent))
        yield spent


def wrapped(call: Callable[..., Any], names: dict[int, tuple[str, Any]], rows: list[LayerRow],
            spent: Spent) -> Callable[..., Any]:
    """A `__call__` that takes note of itself."""
    running: set[int] = set()
    """the layers that are called now, so that what they call by `super()` is theirs"""

    def watching(layer: Any, *args: Any, **kwargs: Any) -> Any:
        name, known = names.get(id(layer), ("", None))
        if known is not layer or id(layer) in running:
            return call(layer, *args, **kwargs)
        running.add(id(layer))
        try:
            return noted(name, layer, args, kwargs)
        finally:
            running.discard(id(layer))

    def noted(name: str, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        compute([*args, *kwargs.values()])
        operations, seconds = GlobalCounters.global_ops, spent.seconds
        inside = spent.operations
        start = time.perf_counter()
        place = len(rows)
        result = call(layer, *args, **kwargs)
        compute(result)
        took = time.perf_counter() - start - (spent.seconds - seconds)
        did = GlobalCounters.global_ops - operations - (spent.operations - inside)
        spent.operations += did
        spent.seconds += took
        state = {} if isinstance(layer, FunctionModel) else get_state_dict(layer)
        own = sum(items_of(t) for path, t in state.items() if "." not in path)
        rows.insert(place, LayerRow(name, kind_of(layer), shapes_of(result), own, did, took))
        return result

    return watching


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a value: itself, or those in its lists, tuples, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def compute(value: Any) -> None:
    """Compute the tensors of a value, and wait for them."""
    for tensor in tensors_in(value):
        tensor.realize()
    Device.synchronize()


def shapes_of(value: Any) -> str:
    return ", ".join(str(tuple(t.shape)) for t in tensors_in(value))


def items_of(tensor: Tensor) -> int:
    items = 1
    for size in tensor.shape:
        items *= int(size)
    return items


def unique(tensors: Any) -> list[Tensor]:
    """Each tensor once, by identity."""
    return list({id(t): t for t in tensors}.values())
