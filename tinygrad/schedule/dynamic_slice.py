"""Dynamic slices (XLA's `dynamic_slice`): where a slice of memory begins is an argument of the kernels.

`X[64:96]`, `X[96:128]`: batches of a data set, rows of a table, steps of a sequence. In: nodes to realise, in
whose graph short slices of BUFFERs begin at numbers. Out: the same graph, in which each begins at a VARIABLE
bound to that number, as a slice at a Variable of the user's does (`schedule/padded_shapes.py`). So the
schedule and its kernels serve every start, and are made once.

The steps of a recurrence slice values that the same schedule computes. Their starts are part of its
structure; in its kernels they are arguments too, so that all steps share one (`dynamic_slices`).

A slice is short where it leaves at most half of an axis: such a one may come again elsewhere. `x[1:]` is x
without its border; its start says more to the compiler than a number that it does not know.
"""
from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence

from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.copies import contiguous_part

Box = tuple[tuple[int, int], ...]
"""Where a slice begins and ends along each axis."""
KEEPS_ITEMS = (Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.DETACH)
"""Between memory and a slice of it."""


def is_short_slice(node: UOp) -> bool:
    """Whether `node` is a slice, at a known start, to at most half of an axis."""
    return node.op is Ops.SHRINK and len(node.src) == 1 and any(_sliced_axes(node.arg, node.src[0].shape))


def is_short_slice_of_memory(node: UOp) -> bool:
    """Whether `node` is a short slice of memory."""
    if not is_short_slice(node):
        return False
    memory = node.src[0]
    while memory.op is not Ops.BUFFER:
        view = memory.realized_view
        if view is None and memory.op not in KEEPS_ITEMS:
            return False
        memory = memory.src[0] if view is None else view
    return Device[memory.arg.device].computes


@functools.lru_cache(maxsize=1 << 14)
def _sliced_axes(box: Box, shape: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(0 < 2 * (end - start) <= size for (start, end), size in zip(box, shape, strict=True))


def dynamic_slices(kernels: Iterable[Iterable[UOp]]) -> set[UOp]:
    """Of kernels, each given by its nodes: the steps (`is_dynamic_slice`), one in a kernel, of a value of
    which other kernels take as much elsewhere."""
    found: dict[SlicedShape, set[UOp]] = {}
    together: set[SlicedShape] = set()
    for nodes in kernels:
        here: dict[SlicedShape, UOp] = {}
        for node in filter(is_dynamic_slice, nodes):
            part = node.src[0], node.shape
            if here.setdefault(part, node) is not node:
                together.add(part)
        for part, node in here.items():
            found.setdefault(part, set()).add(node)
    return {node for part, starts in found.items() if part not in together and len(starts) > 1
            for node in starts}


SlicedShape = tuple[UOp, tuple[int, ...]]
"""A value, and the shape of slices of it."""


def is_dynamic_slice(node: UOp) -> bool:
    """Whether `node` is a short slice that may begin anywhere: rows stay whole, so vectors stay aligned."""
    return is_short_slice(node) and node.shape[-1] in (1, node.src[0].shape[-1])


def dynamic_slice(node: UOp, memory: UOp, starts: Sequence[SliceStart | None]) -> UOp:
    """A slice of `memory` that begins at VARIABLEs, along each axis for which `starts` has one."""
    offsets = [UOp.const(0, dtypes.index) if start is None else UOp.variable(*start) for start in starts]
    bounds = tuple([span if start is None else (0, size)
                    for span, start, size in zip(node.arg, starts, node.shape, strict=True)])
    return UOp.new(Ops.SHRINK, node.dtype, (memory, *offsets), bounds)


SliceStart = tuple[str, int, int, int]
"""Where a slice begins along an axis: the name of a VARIABLE, its bounds and its value."""
SEPARATOR = " #"
"""In the name of a VARIABLE that stands for one number of a graph: before its place, which kernels do not
know."""


@functools.lru_cache(maxsize=1 << 14)
def starts_of(box: Box, shape: tuple[int, ...], name: str = "slice start") -> tuple[SliceStart | None, ...]:
    """The start of a short slice along each axis of which it leaves at most half. Starts of equal bounds have
    equal names, whatever slice they belong to: so kernels can be equal."""
    return tuple([start_variable(size - (end - start), start, name) if short else None
                  for short, (start, end), size in zip(_sliced_axes(box, shape), box, shape, strict=True)])


def starts_of_others(roots: Iterable[UOp], known: Container[UOp]) -> set[SliceStart]:
    """Where short slices of memory below `roots` begin that are none of the `known` nodes."""
    return {start for node in UOp.sink(roots).toposort(stop=lambda n: n.realized_view is not None)
            if node not in known and is_short_slice_of_memory(node)
            for start in starts_of(node.arg, node.src[0].shape) if start is not None}


def start_variable(most: int, start: int, name: str = "slice start") -> SliceStart:
    """Where a slice begins that may begin anywhere up to `most`."""
    return f"{name} in 0..{most}", 0, most, start


def without_place(name: str) -> str:
    """The name of a VARIABLE, as kernels have it."""
    return name.partition(SEPARATOR)[0]


def over_slices(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """What stands for a node over what stands for its sources."""
    if is_short_slice_of_memory(node):
        return dynamic_slice(node, src[0], starts_of(node.arg, node.src[0].shape))
    if src == node.src or (node.op is Ops.COPY and contiguous_part(node.src[0]) is not None):
        return node
    return node.replace(src=src)
