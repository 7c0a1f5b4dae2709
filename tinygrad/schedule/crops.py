"""Where crops of memory begin, as arguments of the kernels.

`X[64:96]`, `X[96:128]`: batches of a data set, rows of a table, steps of a sequence. In: nodes to realise, in
whose graph short crops of BUFFERs begin at numbers. Out: the same graph, in which each begins at a VARIABLE
bound to that number, as a crop at a Variable of the user's does (`schedule/bounded.py`). So the schedule and
its kernels serve every place, and are made once.

The steps of a recurrence crop values that the same schedule computes. Their places are part of its structure;
in its kernels they are arguments too, so that all steps share one (`moving_crops`).

A crop is short where it leaves at most half of an axis: such a one may come again elsewhere. `x[1:]` is x
without its border; its place says more to the compiler than a number that it does not know.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from tinygrad.codegen.indexing import constant_value
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.copies import contiguous_part

IGNORED_ARGUMENT = frozenset({Ops.DETACH, Ops.CUSTOM_GRADIENT})
"""What gradients know of a node; their first source is all that a schedule sees."""
Bounds = tuple[tuple[int, int], ...]
"""Where a crop begins and ends along each axis."""
KEEPS_ITEMS = (Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.DETACH)
"""Between memory and a crop of it."""


def is_short(node: UOp) -> bool:
    """Whether `node` is a crop, at a known place, to at most half of an axis."""
    return node.op is Ops.SHRINK and len(node.src) == 1 and any(_short_axes(node.arg, node.src[0].shape))


def is_short_crop(node: UOp) -> bool:
    """Whether `node` is a short crop of memory."""
    if not is_short(node):
        return False
    memory = node.src[0]
    while memory.op is not Ops.BUFFER:
        view = memory.realized_view
        if view is None and memory.op not in KEEPS_ITEMS:
            return False
        memory = memory.src[0] if view is None else view
    return Device[memory.arg.device].computes


@functools.lru_cache(maxsize=1 << 14)
def _short_axes(box: Bounds, shape: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(0 < 2 * (end - start) <= size for (start, end), size in zip(box, shape, strict=True))


def moving_crops(kernels: Iterable[Iterable[UOp]]) -> set[UOp]:
    """Of kernels, each given by its nodes: the steps (`is_step`), one in a kernel, of a value of which other
    kernels take as much elsewhere."""
    found: dict[Part, set[UOp]] = {}
    together: set[Part] = set()
    for nodes in kernels:
        here: dict[Part, UOp] = {}
        for node in filter(is_step, nodes):
            part = node.src[0], node.shape
            if here.setdefault(part, node) is not node:
                together.add(part)
        for part, node in here.items():
            found.setdefault(part, set()).add(node)
    return {node for part, places in found.items() if part not in together and len(places) > 1
            for node in places}


Part = tuple[UOp, tuple[int, ...]]
"""A value, and the shape of crops of it."""


def is_step(node: UOp) -> bool:
    """Whether `node` is a short crop that may begin anywhere: rows stay whole, so vectors stay aligned."""
    return is_short(node) and node.shape[-1] in (1, node.src[0].shape[-1])


def at_variables(node: UOp, memory: UOp, name: str = "a crop's place") -> UOp:
    """A short crop of `memory`, that begins at a VARIABLE along each axis of which it leaves at most half.

    VARIABLEs of equal bounds have equal names, whatever crop they belong to: so kernels can be equal.
    """
    places, bounds = places_of(node.arg, node.src[0].shape, name)
    starts = [UOp.const(0, dtypes.index) if place is None else UOp.variable(*place) for place in places]
    return UOp.new(Ops.SHRINK, node.dtype, (memory, *starts), bounds)


Place = tuple[str, int, int, int]
"""Where a crop begins along an axis: the name of a VARIABLE, its bounds and its value."""


@functools.lru_cache(maxsize=1 << 14)
def places_of(box: Bounds, shape: tuple[int, ...], name: str = "a crop's place"
              ) -> tuple[tuple[Place | None, ...], Bounds]:
    """The place of a short crop along each axis of which it leaves at most half, and its bounds from there
    on."""
    places: list[Place | None] = []
    bounds = []
    for short, (start, end), size in zip(_short_axes(box, shape), box, shape, strict=True):
        most = size - (end - start)
        places.append((f"{name} in 0..{most}", 0, most, start) if short else None)
        bounds.append((0, end - start) if short else (start, end))
    return tuple(places), tuple(bounds)


class Placed:
    """A graph whose short crops of memory begin at VARIABLEs, and which of its nodes stand for those of the
    graph it was made of."""

    def __init__(self, wanted: Sequence[UOp]) -> None:
        self.done: dict[UOp, UOp] = {}
        self.sinks = [self.node(root) for root in wanted]
        self.origin = {other: node for node, other in self.done.items() if not is_computed(node)}
        """what each node stands for"""

    def node(self, root: UOp) -> UOp:
        """What stands for `root`."""
        for node in root.toposort(stop=lambda n: n in self.done or is_computed(n)):
            if node not in self.done:
                self.done[node] = self.rebuilt(node)
        return self.done[root]

    def rebuilt(self, node: UOp) -> UOp:
        """What stands for a node whose sources are in `done`."""
        if is_computed(node):
            view = node.realized_view
            assert view is not None
            placed = self.node(view)
            return node if placed is view else placed
        src = tuple([self.done[s] for s in node.src])
        if is_short_crop(node):
            return at_variables(node, src[0])
        if src == node.src or (node.op is Ops.COPY and contiguous_part(node.src[0]) is not None):
            return node
        return node.replace(src=src)

    def views(self, found: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
        """The views that hold the values of the original nodes, given those of the nodes that stand for
        them."""
        views = {}
        for other, view in found.items():
            node = self.origin[other]
            views[node] = shared_memory(node) if view.base in self.done else view
        return views


def is_computed(node: UOp) -> bool:
    """Whether schedules read `node` from memory, whatever it was computed from."""
    return node.realized_view is not None and constant_value(node) is None


def shared_memory(node: UOp) -> UOp:
    """`node` as a view of memory that other nodes have too. Raises ValueError where it has its own."""
    if node.op is Ops.BUFFER or node.realized_view is not None:
        return node.realized_view or node
    if node.op is Ops.ASSIGN:
        return node.src[0]
    if node.op is Ops.DETACH:
        return shared_memory(node.src[0])
    if node.op not in Family.VIEW:
        raise ValueError(f"a {node.op.name} shares no memory")
    return node.replace(src=(shared_memory(node.src[0]), *node.src[1:]))
