"""Sizes that vary from call to call: PyTorch's SymInts as bound Variables.

In: the inputs of a graph that TorchDynamo made for any sizes, and the arguments of a call. Out: `Symbols`,
which of them say what each symbol is; its Variables, and what PyTorch's expressions of symbols are as sizes
of ours. A Variable's bound is a power of two, and grows with what calls bring, so that few traces serve all
sizes. Memory of such a tensor is laid out for the bounds (`docs/variables.md`): `laid_out` copies PyTorch's
there. Next: `dispatch.py`.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod

from tinygrad.graph.sizes import SizeError, as_size, at_least, at_most, is_symbolic, largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

Values = Mapping[sympy.Symbol, Any]
"""What symbols are: bound Variables, or numbers."""


def expression_of(value: Any) -> sympy.Expr | int:
    """A SymInt's expression; a number as it is."""
    return value.node.expr if isinstance(value, torch.SymInt) else int(value)


def size_of(expression: Any, values: Values) -> int:
    """An expression of symbols as a size, the same node for equal ones.

    Raises SizeError for what sizes have no arithmetic for.
    """
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Symbol and expression in values:
        size: int = as_size(values[expression])
        return size
    numbers = {symbol: n for symbol in expression.free_symbols if type(n := values.get(symbol)) is int}
    if len(numbers) == len(expression.free_symbols) and (known := expression.xreplace(numbers)).is_Integer:
        return int(known)
    parts: list[Any] = [size_of(part, values) for part in expression.args]
    found: Any = None
    if isinstance(expression, sympy.Add):
        found = sum(parts[1:], parts[0])
    elif isinstance(expression, sympy.Mul):
        found = prod(parts)
    elif isinstance(expression, sympy.Pow) and type(parts[1]) is int and parts[1] > 0:
        found = prod([parts[0]] * parts[1])
    elif isinstance(expression, (FloorDiv, CleanDiv)):
        found = parts[0] // at_least(parts[1], 1)  # by 0 only where nothing is, and bounds are no end
    elif isinstance(expression, (Mod, PythonMod)):
        found = parts[0] % parts[1]
    elif isinstance(expression, (Max, Min)) and [type(part) is int for part in parts].count(True) == 1 == (
            len(parts) - 1):
        number, other = sorted(parts, key=lambda part: type(part) is not int)
        found = at_least(other, number) if isinstance(expression, Max) else at_most(other, number)
    if found is not None:
        result: int = found
        return result
    raise SizeError(f"sizes have no arithmetic for {expression}")


class Symbols:
    """The symbols in a graph's inputs.

    Raises SizeError where no input is, or has as an axis, a symbol that another one is made of.
    """

    def __init__(self, inputs: Sequence[Node]) -> None:
        examples = [node.meta.get("val") for node in inputs]
        self.shapes = [tuple(map(expression_of, e.shape)) if isinstance(e, torch.Tensor) else
                       expression_of(e) if isinstance(e, torch.SymInt) else None for e in examples]
        """for each input its shape, of a size its expression, None for what is neither"""
        self.places: dict[sympy.Symbol, tuple[int, int | None]] = {}
        """the input, and its axis where that is a tensor, that says what a symbol is"""
        self.most: dict[sympy.Symbol, int] = {}
        """the bounds of the Variables"""
        self.numbers: set[sympy.Symbol] = set()
        """the symbols that are numbers instead, of which each call may bring others"""
        self.twins: dict[sympy.Symbol, sympy.Symbol] = {}
        """the symbols that are taken for another one, for they were equal where they had to be"""
        self.apart: set[tuple[sympy.Symbol, sympy.Symbol]] = set()
        """those that were not, in some call"""
        self.first_axes: set[sympy.Symbol] = set()
        used: set[sympy.Symbol] = set()
        for number, shape in enumerate(self.shapes):
            if isinstance(shape, tuple):
                for axis, expression in enumerate(shape):
                    self.note(expression, number, axis, used)
                self.first_axes |= {n for n in shape[:1] if isinstance(n, sympy.Symbol)}
            elif shape is not None:
                self.note(shape, number, None, used)
        if used - self.places.keys():
            raise SizeError(f"no input says what {min(used - self.places.keys(), key=str)} is")

    def note(self, expression: Any, number: int, axis: int | None, used: set[sympy.Symbol]) -> None:
        """Take note of the symbols of one input or axis."""
        if isinstance(expression, sympy.Expr):
            used |= expression.free_symbols
            if expression.is_Symbol:
                self.places.setdefault(expression, (number, axis))

    def value(self, symbol: sympy.Symbol, given: Sequence[Any]) -> int:
        """What a symbol is in a call."""
        number, axis = self.places[symbol]
        return int(given[number] if axis is None else given[number].shape[axis])

    def unite(self, given: Sequence[Any]) -> bool:
        """Take symbols that are equal in this call, and were never found to differ, for one: PyTorch's graphs
        do not say of all sizes which are equal (those of attention's keys and values). False where that
        changes nothing."""
        before = dict(self.twins)
        symbols = [symbol for symbol in self.places if symbol not in self.numbers]
        for i, symbol in enumerate(symbols):
            equal = [other for other in symbols[:i] if other not in self.twins and
                     (symbol, other) not in self.apart and
                     self.value(other, given) == self.value(symbol, given)]
            if equal:
                self.twins[symbol] = equal[0]
        return self.twins != before

    def settle(self, error: Exception) -> bool:
        """Make numbers of symbols where Variables did not do: of those that the error names and no tensor has
        as its first axis, else of all that none has so, else of all. False where all are."""
        inner = {symbol for symbol, (_, axis) in self.places.items() if symbol not in self.first_axes}
        named = {symbol for symbol in inner if re.search(rf"\b{symbol}\b", str(error))}
        before = len(self.numbers)
        self.numbers |= next((symbols for symbols in (named, inner) if not symbols <= self.numbers),
                             self.places.keys())
        self.twins = {symbol: twin for symbol, twin in self.twins.items()
                      if self.numbers.isdisjoint((symbol, twin))}
        return len(self.numbers) > before

    def bound(self, given: Sequence[Any]) -> dict[sympy.Symbol, Any]:
        """For each symbol what it is in a call: a Variable bound to that, or the number."""
        found: dict[sympy.Symbol, Any] = {}
        for symbol in self.places:
            value = self.value(symbol, given)
            twin = self.twins.get(symbol)
            if twin is not None and self.value(twin, given) != value:
                self.apart.add((symbol, self.twins.pop(symbol)))
            if value < 1 or symbol in self.numbers:
                found[symbol] = value
                continue
            name = self.twins.get(symbol, symbol)
            self.most[name] = max(self.most.get(name, 1), 1 << (value - 1).bit_length())
            found[symbol] = UOp.variable(str(name), 1, self.most[name]).bind(value)
        return found

    def shape(self, number: int, values: Values) -> tuple[int, ...]:
        """The shape of an input; () of what is no tensor."""
        expressions = self.shapes[number]
        return tuple([size_of(n, values) for n in expressions]) if isinstance(expressions, tuple) else ()

    def larger(self, values: Values) -> dict[int, tuple[int, ...]]:
        """The shapes for the bounds, of inputs of which a size varies, by their numbers."""
        shapes = {number: self.shape(number, values) for number in range(len(self.shapes))}
        return {number: largest_shape(shape) for number, shape in shapes.items() if is_symbolic(shape)}


def symbols_of(inputs: Sequence[Node]) -> Symbols | None:
    """The symbols of a graph with these inputs; None where they do not say them all."""
    try:
        return Symbols(inputs)
    except SizeError:
        return None


def strides_in_order(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of items that lie in the order of their axes."""
    return tuple([prod(shape[axis + 1:]) for axis in range(len(shape))])


def steps_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides in which axes of one item have those that the axes behind them say, as PyTorch gives them: its
    guards compare these too."""
    steps = list(strides)
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            steps[axis] = steps[axis + 1] * shape[axis + 1] if axis + 1 < len(shape) else 1
    return tuple(steps)


def laid_out(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Memory of the larger shape, in order, that has `x` where its places are within `x`'s shape. Integers
    beyond are 0, so that none is a place outside of what they are places in."""
    whole = x.new_empty(shape) if x.is_floating_point() else x.new_zeros(shape)
    whole.as_strided(x.shape, strides_in_order(shape)).copy_(x)
    return whole

