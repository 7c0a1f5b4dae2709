"""In which order the axes of an intermediate buffer lie in memory.

The shape of a value belongs to its user; the layout of a buffer that no user sees belongs to the scheduler.
In: a kernel written with row-major outputs. Out: for each output the order of its axes, outermost first, that
suits the loops around it:

- A contraction puts last the axes that only its weights know (a convolution's output channels): they
  become lanes, stored side by side, and the next convolution reads them so too. Those of all groups of a
  grouped convolution lie together.
- Any other kernel keeps its outputs in the order of the largest buffer it reads, so that reading and writing
  walk the same way.

An order that would cut a loop in which the output is read again and again (the heads of attention, by the
products behind it) is not taken (`cuts_loop`), but one that joins what such loops walk.
"""
from __future__ import annotations

import itertools
from functools import lru_cache

from tinygrad.codegen.contraction import contraction_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.access import MemoryAccess, accesses_of
from tinygrad.codegen.ranges import iterations
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

MIN_AXES = 3
"""A matrix is left as it is: its rows are what kernels share out, its columns the lanes."""


def worth_ordering(shape: tuple[int, ...]) -> bool:
    """True for shapes with enough axes that their order in memory is a question."""
    return sum(n > 1 for n in shape) >= MIN_AXES


@lru_cache(1024)
def axis_order(ast: UOp, output: int) -> tuple[int, ...]:
    """The order of the axes in which output number `output` of the kernel `ast` is best stored. Remembered:
    equal kernels are one `ast`."""
    shape = ast.src[output].shape
    nest = lower(ast)
    accesses = accesses_of(nest)
    store = next(a for a in accesses if a.node is nest.src[output])
    axes = _ranges_of_axes(shape, store)
    if axes is None:
        return tuple(range(len(shape)))
    known = _known_to_weights(store)
    if known is not None:
        last, shared = known
        behind = [axis for axis, r in enumerate(axes) if r in last]
        while behind and behind[0] > 0 and axes[behind[0] - 1] in shared:
            behind.insert(0, behind[0] - 1)  # a convolution's groups: all its channels side by side
        return tuple(sorted(range(len(shape)), key=behind.__contains__))
    loads = sorted((a for a in accesses if a.node.op is Ops.LOAD and a.node.memory.op is Ops.PARAM),
                   key=lambda a: -int(a.node.memory.arg[1]))
    for load in loads:
        steps = [None if r is None else load.step(r) for r in axes]
        if all(r is None or step for r, step in zip(axes, steps, strict=True)):
            weights = [0 if r is None else -abs(step or 0) for r, step in zip(axes, steps, strict=True)]
            return tuple(sorted(range(len(shape)), key=weights.__getitem__))
        if 1 in steps and 0 not in steps:  # others are windows or padded; neighbours stay neighbours
            return tuple(sorted(range(len(shape)), key=lambda i: steps[i] == 1))
    return tuple(range(len(shape)))


def cuts_loop(order: tuple[int, ...], index: tuple[UOp, ...]) -> bool:
    """True if one loop walks several axes at `index`, those of an image, flattened, that are not side by side
    in that `order`: it would jump from item to item."""
    return any(b != a + 1 for axes in _axes_of_loops(index)
               for a, b in itertools.pairwise(map(order.index, axes)))


def with_axes_joined(order: tuple[int, ...], index: tuple[UOp, ...]) -> tuple[int, ...]:
    """The `order` in which those of the axes that one loop walks at `index` lie side by side."""
    for axes in _axes_of_loops(index):
        others = [axis for axis in order if axis not in axes]
        before = sum(axis not in axes for axis in order[:order.index(axes[-1])])
        order = (*others[:before], *axes, *others[before:])
    return order


def _axes_of_loops(index: tuple[UOp, ...]) -> list[list[int]]:
    """For each loop at `index` the axes that it walks, alone."""
    axes_of: dict[UOp, list[int]] = {}
    for axis, place in enumerate(index):
        if len(place.ranges) == 1:
            (loop,) = place.ranges
            axes_of.setdefault(loop, []).append(axis)
    return list(axes_of.values())


def _ranges_of_axes(shape: tuple[int, ...], store: MemoryAccess) -> list[UOp | None] | None:
    """The range that runs over each axis of a row-major store, None for axes of size 1."""
    by_step = {step: r for r, step in store.steps.items()}
    found: list[UOp | None] = []
    for axis, extent in enumerate(shape):
        r = by_step.get(prod(shape[axis + 1:])) if extent > 1 else None
        if extent > 1 and r is None:
            return None
        found.append(r)
    return found


def _known_to_weights(store: MemoryAccess) -> tuple[frozenset[UOp], frozenset[UOp]] | None:
    """(the output ranges that only one operand of the store's contraction changes with, those that both
    change with). That operand is the one with fewer of them (a weight knows the channels, an image its rows
    and columns too), or the clearly smaller one, but for a batch of matrices, which are no weights."""
    for node in store.node.toposort():
        contraction = contraction_of(node)
        if contraction is None or node.ranges != frozenset(store.node.closed_ranges):
            continue
        sides = contraction.sides
        shared = node.ranges - sides[0] - sides[1]
        if len(sides[0]) != len(sides[1]):
            return min(sides, key=len), shared
        if shared:
            continue
        sizes = [iterations(s.ranges) for s in contraction.factors]
        if 2 * min(sizes) <= max(sizes):
            return sides[0] if sizes[0] < sizes[1] else sides[1], shared
    return None
