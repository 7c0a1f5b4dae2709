"""Numbers that change from graph to graph are arguments of their kernels.

`weight -= rate * gradient` with another rate in each step, noise levels that Python computes, `share[i]` of a
row just computed: graphs that differ in numbers alone, for each of which kernels would be compiled. In: the
nodes of a graph that nobody has scheduled (`cache.py`). Out: those of them whose numbers differ from the ones
of an equal graph before; the schedule leaves them out, and serves all such graphs from the second on. A
number that does not change stays in the kernels, where it says more to the compiler.

Numbers are constants; where slices begin (of short slices of memory, that is always left out:
`dynamic_slice.py`); and where padding puts what it pads, as the gradient of a slice does. In a graph that is
scheduled each stands as a VARIABLE, which is the number or its bits.

Kernels of one schedule that differ in floating-point numbers alone, as the steps of a loop in Python do, are
one that has them as arguments (`shared_kernels`).
"""
from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.dynamic_slice import (
    SEPARATOR,
    SliceStart,
    dynamic_slice,
    is_short_slice_of_memory,
    over_slices,
    start_variable,
    starts_of,
    without_place,
)
from tinygrad.schedule.memory_views import IGNORED_ARGUMENT, memory_of

MAX_NUMBERS = 1 << 18
"""Numbers of all graphs of which it is known which numbers changed, each some 50 bytes. What is oldest goes
first."""
MEANS_MORE = frozenset({0, 1, -1, math.inf, -math.inf})
"""Constants that stay: a mask, a neutral element, a sign. They make a graph another one."""
SIGNED = {4: (dtypes.int32, "<i"), 8: (dtypes.int64, "<q")}
"""The integer of so many bytes, and how `struct` calls it."""
BITS = {dtypes.float32: "<f", dtypes.float64: "<d", dtypes.uint32: "<I", dtypes.uint64: "<Q"}
"""dtypes whose numbers are given as the bits of a signed integer, and how `struct` calls them."""
ROUNDED = (dtypes.float16, dtypes.bfloat16)
"""dtypes whose numbers are given as float32"""
LEAST_KERNELS = 4
"""Kernels of one schedule, equal but for numbers, from which on these are arguments."""
MOST_ARGUMENTS = 16
"""Numbers that a kernel gets so."""


GraphNumbers = Mapping[UOp, tuple[SliceStart | None, ...]]
"""Nodes of a graph, each with the arguments of the VARIABLEs that stand for its numbers: of a constant its
only one, of movement one for each axis that has one."""


@frozen
class Seen:
    """What is known of the numbers of graphs that are equal but for them, each by its place."""

    values: tuple[int, ...]
    """in the last one"""
    changed: frozenset[int]
    first_equal: tuple[int, ...]
    """the first of those that were equal in every one: a slice, and where its gradient is put"""


class ChangingNumbers:
    """Which numbers change in graphs that are equal but for them."""

    def __init__(self, limit: int = MAX_NUMBERS) -> None:
        self.limit = limit
        self.size = 0
        self.seen: dict[int, Seen] = {}
        """by the hash of a graph without its numbers"""

    def of(self, graph: int, numbers: GraphNumbers) -> GraphNumbers:
        """Those nodes of a graph whose numbers change; what was equal in all such graphs is one VARIABLE."""
        starts = [start for of_node in numbers.values() for start in of_node
                  if start is not None and SEPARATOR in start[0]]
        values = tuple([start[-1] for start in starts])
        before = self.seen.pop(graph, None)
        if before is None or len(before.values) != len(values):  # the latter, if two graphs have one hash
            before = Seen(values, frozenset(), (0,) * len(values))
            self.size += len(values)
        changed = before.changed.union(i for i, value in enumerate(values) if before.values[i] != value)
        first: dict[Any, int] = {}
        first_equal = tuple([first.setdefault((before.first_equal[i], without_place(start[0]), *start[1:]), i)
                             for i, start in enumerate(starts)])
        self.seen[graph] = Seen(values, changed, first_equal)
        while self.size > self.limit:
            self.size -= len(self.seen.pop(next(iter(self.seen))).values)
        known = {start: (starts[first_equal[i]][0], *start[1:]) for i, start in enumerate(starts)}
        changing = {starts[i] for i in changed}
        return {node: tuple([start and known.get(start, start) for start in of_node])
                for node, of_node in numbers.items() if not changing.isdisjoint(of_node)}


def numbers_of(nodes: Sequence[UOp], sinks: Iterable[UOp]) -> GraphNumbers:
    """The numbers in a graph's nodes that may be arguments. Each has a name of its own, whatever equals it:
    else graphs would differ where two numbers happen to be the same."""
    shown = _shown_by_views(sinks) | _copied(nodes)
    found: dict[UOp, tuple[SliceStart | None, ...]] = {}
    for node in nodes:
        if node in found or node in shown or not any(starts := _starts_of(node)):
            continue
        left_out = starts_of(node.arg, node.src[0].shape) if is_short_slice_of_memory(node) else ()
        if starts != left_out:
            names = [f"{SEPARATOR}{len(found)}.{axis}" for axis in range(len(starts))]
            found[node] = tuple([
                start if start is None or start in left_out else (start[0] + name, *start[1:])
                for start, name in zip(starts, names, strict=True)])
    return found


def _shown_by_views(sinks: Iterable[UOp]) -> set[UOp]:
    """The movement of results that are views of memory which is written first: no kernel moves anything
    there."""
    found: set[UOp] = set()
    for sink in sinks:
        way, node = [], sink
        while node.op in Family.VIEW | IGNORED_ARGUMENT:
            way.append(node)
            node = node.src[0]
        if node.op is Ops.ASSIGN or node.numel <= sink.numel:
            found.update(way)
    return found


def _copied(nodes: Iterable[UOp]) -> set[UOp]:
    """The movement between memory and copies of parts of it to other devices, which the copy does itself, and
    all movement on devices that compute nothing."""
    found: set[UOp] = set()
    for node in nodes:
        if node.op in Family.MOVEMENT and type(node.device) is str and not Device[node.device].computes:
            found.add(node)
        elif node.op in Family.TRANSFER:
            for source in node.src:
                while source.op in Family.MOVEMENT:
                    found.add(source)
                    source = source.src[0]
    return found


def _starts_of(node: UOp) -> tuple[SliceStart | None, ...]:
    """The numbers of a node that may be arguments, each as one of a VARIABLE."""
    if node.op is Ops.CONST:
        return () if node.arg in MEANS_MORE or node.arg != node.arg else _number(node.arg, node.dtype)
    if node.op is Ops.PAD:
        return _places(node.arg, node.src[0].shape)
    if node.op is Ops.SHRINK and len(node.src) == 1:
        sizes = zip(node.arg, node.shape, node.src[0].shape, strict=True)
        return tuple([start_variable(size - length, begin) if 0 < length < size else None
                      for (begin, _), length, size in sizes])
    return ()


@functools.lru_cache(maxsize=1 << 10)
def _number(value: float, dtype: DType) -> tuple[SliceStart, ...]:
    """A constant, as the argument of a VARIABLE: none where there is no such."""
    if dtype in ROUNDED:
        dtype = dtypes.float32
    if dtype in BITS:
        signed, name = SIGNED[dtype.itemsize]
        try:
            (value,) = struct.unpack(name, struct.pack(BITS[dtype], value))
        except OverflowError:  # as good as infinite
            return ()
    elif dtype.is_int and dtype is not dtypes.index:
        signed = dtype
    else:
        return ()
    return (f"{dtype.name} number", int(signed.min), int(signed.max), int(value)),


@functools.lru_cache(maxsize=1 << 12)
def _places(pads: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> tuple[SliceStart | None, ...]:
    """Where PAD puts its source along each axis: where a slice begins whose gradient this is."""
    return tuple([start_variable(before + after, before) if before + after and size else None
                  for (before, after), size in zip(pads, shape, strict=True)])


def with_arguments(root: UOp, numbers: GraphNumbers, done: dict[UOp, UOp]) -> UOp:
    """What stands for `root` in a graph in which VARIABLEs are what the kernels shall get as arguments: where
    short slices of memory begin, and `numbers`. `done` as `UOp.rebuild` has it."""

    def top_down(node: UOp) -> UOp | None:
        if node.op is Ops.CONST:
            return _constant(node, *numbers[node]) if node in numbers else None
        view = memory_of(node)
        if view is None:
            return None
        placed = with_arguments(view, numbers, done)
        return node if placed is view else placed

    def bottom_up(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node not in numbers:
            return over_slices(node, src)
        if node.op is Ops.PAD:
            return _padded(node, src[0], numbers[node])
        return dynamic_slice(node, src[0], numbers[node])

    return root.rebuild(bottom_up, top_down, done)


def _constant(node: UOp, start: tuple[str, int, int, int | None] | None) -> UOp:
    """A CONST whose number is a VARIABLE."""
    assert start is not None
    number = UOp.variable(*start)
    if node.dtype in BITS:
        return number.cast(SIGNED[node.dtype.itemsize][0]).bitcast(node.dtype)
    if node.dtype in ROUNDED:
        return number.cast(dtypes.int32).bitcast(dtypes.float32).cast(node.dtype)
    return number.cast(node.dtype)


def _padded(node: UOp, src: UOp, starts: tuple[SliceStart | None, ...]) -> UOp:
    """A PAD that puts its source at VARIABLEs: a slice of one that is as wide on both sides."""
    around = [pads if start is None else (start[2], start[2])
              for pads, start in zip(node.arg, starts, strict=True)]
    moves = [UOp.const(0, dtypes.index) if start is None else start[2] - UOp.variable(*start)
             for start in starts]
    bounds = tuple([(0, size) for size in node.shape])
    return UOp.new(Ops.SHRINK, node.dtype, (src.pad(around), *moves), bounds)


KernelConstants = tuple[UOp, list[UOp]]
"""A kernel's `ast`, and its floating-point constants."""


def shared_kernels(asts: Iterable[UOp]) -> dict[UOp, tuple[UOp, tuple[SliceStart, ...]]]:
    """What stands for kernels of one schedule that are equal but for floating-point numbers: one that has
    them as arguments, and what these are."""
    alike: dict[tuple[Ops, ...], list[KernelConstants]] = {}
    for ast in dict.fromkeys(asts):
        order = list(ast.toposort())
        constants = [n for n in order if n.op is Ops.CONST and n.dtype.is_float and _starts_of(n)]
        if constants:
            alike.setdefault(tuple([node.op for node in order]), []).append((ast, constants))
    equal: dict[UOp, list[KernelConstants]] = {}
    for kernels in alike.values():
        for ast, constants in kernels if len(kernels) >= LEAST_KERNELS else ():
            without = _with_arguments_at(ast, constants, range(len(constants)))
            equal.setdefault(without, []).append((ast, constants))
    shared = {}
    for kernels in equal.values():
        by_place = zip(*[constants for _, constants in kernels], strict=True)
        changing = [place for place, constants in enumerate(by_place) if len(set(constants)) > 1]
        if len(kernels) >= LEAST_KERNELS and len(changing) <= MOST_ARGUMENTS:
            for ast, constants in kernels:
                values = tuple([_argument(constants[place], place) for place in changing])
                shared[ast] = _with_arguments_at(ast, constants, changing), values
    return shared


def _argument(constant: UOp, place: int) -> SliceStart:
    """The argument of a kernel that stands for one of its constants."""
    ((_, low, high, value),) = _number(constant.arg, constant.dtype)
    return f"number {place}", low, high, value


def _with_arguments_at(ast: UOp, constants: Sequence[UOp], places: Iterable[int]) -> UOp:
    """A kernel in which arguments stand for those of its constants that are at these places."""
    arguments = {constants[place]: _argument(constants[place], place) for place in places}
    return ast.substitute({node: _constant(node, (name, low, high, None))
                           for node, (name, low, high, _) in arguments.items()})
