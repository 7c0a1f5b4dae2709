"""The table of operators: names with overloads ("aten.add.Tensor") to functions of our tensors.

A function takes what the operator's schema says, in its order and under its names: tensors as our tensors,
PyTorch's dtypes as ours; what says where and in which order memory lies (device, layout, memory format) is
left out. Results are cast to the dtypes that PyTorch gives them. Operands of an operator in `PROMOTED` are
cast to the result's dtype before, as PyTorch's arithmetic does. Next: `evaluate.py`, which calls them.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tinygrad.tensor import Tensor

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)

OPERATORS: dict[str, Function] = {}
PROMOTED: set[str] = set()
"""Operators whose operands have the result's dtype."""
RANDOM: set[str] = set()
"""Operators that draw random numbers."""
NEED_LAYOUT: set[str] = set()
"""Operators that take, as `layout`, the strides and the offset of PyTorch's first argument."""


class UnsupportedOperators(NotImplementedError):
    """A graph has operators that the table has not; the message lists all, with how often each is there."""

    def __init__(self, names: Iterable[str]) -> None:
        counts = Counter(names)
        listed = ", ".join(f"{name} ({n} time{'s' if n > 1 else ''})" for name, n in sorted(counts.items()))
        super().__init__(f"{len(counts)} of the graph's operators are not supported by the backend tinygrad: "
                         f"{listed}")
        self.counts = dict(counts)


class BesideTensor(ValueError):
    """An operator reads memory that its tensor shows nothing of."""


def operator(*names: str, promoted: bool = False, random: bool = False, needs_layout: bool = False,
             ) -> Callable[[F], F]:
    """Enter a function under names, without `aten.` where that is their namespace; one without an overload is
    the overload `default`."""
    def enter(function: F) -> F:
        for name in names:
            whole = name if name.startswith("prims.") else f"aten.{name}"
            full = whole if whole.count(".") > 1 else f"{whole}.default"
            OPERATORS[full] = function
            for marked, is_one in ((PROMOTED, promoted), (RANDOM, random), (NEED_LAYOUT, needs_layout)):
                if is_one:
                    marked.add(full)
        return function
    return enter


def enter_all(table: Mapping[str, Function], promoted: bool = False, random: bool = False) -> None:
    """Enter a table of names, several of them separated by spaces, and functions."""
    for names, function in table.items():
        operator(*names.split(), promoted=promoted, random=random)(function)


def gradients_at(operands: Sequence[Tensor], function: Callable[..., Tensor], g: Tensor) -> list[Tensor]:
    """The gradients of `function(*operands)` at each operand as if none were computed from another."""
    apart = [Tensor.leaf(operand.uop.detach()) for operand in operands]
    found: list[Tensor] = function(*apart).gradient(*apart, gradient=g)
    return found


def gradient_of(function: Function) -> Function:
    """The backward operator of `function(x, *args)`: takes the result's gradient, x and the arguments."""
    def gradient(g: Tensor, x: Tensor, *args: Any, **named: Any) -> Tensor:
        found: Tensor = function(x, *args, **named).gradient(x, gradient=g)[0]
        return found
    return gradient


def gradient_of_linear(function: Function) -> Function:
    """As `gradient_of` for an operator that is linear in x and whose backward operator takes, after the
    size of the result, that of x: (g, output_size, input_size, *args) for function(x, output_size, *args)."""
    def gradient(g: Tensor, output_size: Any, input_size: Any, *args: Any, **named: Any) -> Tensor:
        x = Tensor.zeros(*input_size, dtype=g.dtype, device="CPU").contiguous()
        found: Tensor = function(x, output_size, *args, **named).gradient(x, gradient=g)[0]
        return found
    return gradient
