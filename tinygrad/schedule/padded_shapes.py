"""Padded dynamic shapes: sizes that are not known, as predicates on the largest sizes they may have.

In: nodes to realise in whose graph some `Size`s (`graph/sizes.py`) are not known. Out: the same graph over
the largest sizes, which is all that `fuse`, `codegen` and the cache of schedules see. A value of shape (n, 8)
becomes one of shape (64, 8) of which the items from n on are arbitrary; three rules keep them from mattering:

- a REDUCE along such an axis, and a PAD of it, read the identity of the reduction, or zero, from n on;
- a slice that begins at a Variable is a SHRINK with sources that say how far its box is moved;
- what is stored is LIVE_OUT: only items within the true sizes are written, or computed.

The conditions are comparisons of an index with an expression of VARIABLEs. So loops end where a condition can
no longer hold (`codegen/opt/loop_bounds.py`), kernels do not depend on the values, and time goes with the
values, not with the bounds. Next on the path: `schedule/cache.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tinygrad.codegen.predicate import reduce_identity
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import (
    Size,
    SizeError,
    at_least,
    is_symbolic,
    largest,
    largest_shape,
    node_of,
    sizes_in,
    variables_in,
)
from tinygrad.graph.uop import Shape, UOp
from tinygrad.schedule.memory_views import memory_of, over_memory


class PaddedShapes:
    """A graph over the largest sizes, and which of its nodes stand for those of the graph it was made of."""

    def __init__(self, outputs: Sequence[UOp]) -> None:
        self.done: dict[UOp, UOp] = {}
        """the node for each node; for what has a value, of the view that holds it"""
        self.bindings: dict[str, UOp] = {}
        self.outputs = outputs
        self.sinks = [self.stored(node) for node in outputs]

    def stored(self, node: UOp) -> UOp:
        """The node to realise for `node`, as far as its items are within its shape."""
        value = self.node(node)
        if value.viewed.op in (Ops.ASSIGN, Ops.CONTIGUOUS, Ops.BUFFER):
            return value
        stored = live_out(value, node.shape)
        # Memory is for all calls alike: a view of it at a place that only this call has would not be.
        return stored.contiguous() if _is_moved(stored) else stored

    def node(self, root: UOp) -> UOp:
        """`root` over the largest sizes."""
        return root.rebuild(self.over, self.known, self.done)

    def known(self, node: UOp) -> UOp | None:
        """What stands for a node without sizes, or with a value in memory."""
        if not node.has_sizes:
            return node
        view = memory_of(node)
        return None if view is None else self.node(view)

    def over(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """A node over the largest sizes of its sources."""
        for size in sizes_in(node.arg):
            self.refuse_second_binding(size)
        return _RULES.get(node.op, _same_over_larger)(node, *src)

    def refuse_second_binding(self, size: Size) -> None:
        """Raise ValueError where a Variable is bound to two values."""
        for variable in variables_in(size.node):
            other = self.bindings.setdefault(variable.arg[0], variable)
            if other is not variable:
                name, one, two = variable.arg[0], _binding(other), _binding(variable)
                raise ValueError(f"the Variable {name} is {one} and {two} in one graph; realize() what uses "
                                 "the one before using the other, or give the two different names")

    def views(self, found: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
        """The views that hold the values of the original nodes, given those of the nodes that stand for
        them."""
        stands_for = {**self.done, **dict(zip(self.outputs, self.sinks, strict=True))}
        made = set(stands_for.values()) - stands_for.keys()
        views = {node: view for node, view in found.items() if node not in made}
        own = {node: found[stand_in].shrink([(0, size) for size in node.shape])
               for node, stand_in in stands_for.items() if stand_in in found and node.realized_view is None}
        stored = {node: view for node, view in own.items() if node.op is Ops.CONTIGUOUS}
        for node in (*own, *self.outputs):  # a view of what was computed before is nothing to compute
            view = over_memory(node, stored) or own.get(node)
            if view is not None and node.realized_view is None:
                views[node] = view
        return views


def _is_moved(node: UOp) -> bool:
    """Whether `node` is a view of its base at a place that is not known."""
    while node.op in Family.MOVEMENT:
        if len(node.src) > 1:
            return True
        node = node.src[0]
    return False


def _binding(variable: UOp) -> str:
    _, low, high, value = variable.arg
    return f"in {low}..{high}, " + ("unbound" if value is None else f"bound to {value}")


# --- conditions ---------------------------------------------------------------------------------------------


def within_shape(shape: Shape, axes: Sequence[int]) -> UOp:
    """Whether an item of the largest `shape` is within the true sizes of `axes`.

    Along an axis: ones and then zeros, seen from as far before their border as the size is.
    """
    whole = largest_shape(shape)
    condition: UOp | None = None
    for axis in axes:
        most = whole[axis]
        ones = UOp.const(True, dtypes.bool, (most,))
        along = _window(ones, [most - shape[axis]], [most]).reshape([most if i == axis else 1
                                                                     for i in range(len(shape))])
        here = along.expand(whole)
        condition = here if condition is None else condition & here
    assert condition is not None
    return condition


def live_out(value: UOp, shape: Shape) -> UOp:
    """`value`, of the largest `shape`, of which only the items within `shape` are live out."""
    axes = [axis for axis, size in enumerate(shape) if isinstance(size, Size)]
    return value.live_out(within_shape(shape, axes)) if axes else value


def _masked(value: UOp, shape: Shape, axes: Sequence[int], otherwise: UOp) -> UOp:
    """`value` within the sizes of those `axes` that are not known, the number `otherwise` elsewhere."""
    unknown = [axis for axis in axes if isinstance(shape[axis], Size)]
    if not unknown:
        return value
    return within_shape(shape, unknown).where(value, UOp.const(otherwise.arg, value.dtype, value.shape))


def _window(value: UOp, starts: Sequence[int], sizes: Sequence[int]) -> UOp:
    """The `sizes` (known) items of each axis from `starts` on, zeros beyond the end."""
    starts = [at_least(start, 0) for start in starts]
    value = value.pad([(0, max(0, largest(start) + size - n))
                       for start, size, n in zip(starts, sizes, value.shape, strict=True)])
    return _moved_window(value, starts, sizes)


def _moved_window(value: UOp, starts: Sequence[int], sizes: Sequence[int]) -> UOp:
    """The same of a value that has them all."""
    if not is_symbolic(starts):
        return value.shrink([(start, start + size) for start, size in zip(starts, sizes, strict=True)])
    fixed = [0 if isinstance(start, Size) else start for start in starts]
    moves = [node_of(start - first) for start, first in zip(starts, fixed, strict=True)]
    bounds = tuple((first, first + size) for first, size in zip(fixed, sizes, strict=True))
    return UOp.new(Ops.SHRINK, value.dtype, (value, *moves), bounds)


# --- one rule an operation ----------------------------------------------------------------------------------


def _same_over_larger(node: UOp, *src: UOp) -> UOp:
    return node.replace(src=src)


def _pad(node: UOp, value: UOp) -> UOp:
    shape = node.src[0].shape
    padded = [axis for axis, pads in enumerate(node.arg) if pads != (0, 0)]
    value = _masked(value, shape, padded, UOp.const(0, value.dtype))
    sizes = largest_shape(node.shape)
    befores = [largest(before) for before, _ in node.arg]
    afters = [max(0, size - before - n) for size, before, n in zip(sizes, befores, value.shape, strict=True)]
    whole = value.pad(list(zip(befores, afters, strict=True)))
    return _window(whole, [most - before for most, (before, _) in zip(befores, node.arg, strict=True)], sizes)


def _shrink(node: UOp, value: UOp) -> UOp:
    return _window(value, [start for start, _ in node.arg], largest_shape(node.shape))


def _stride(node: UOp, value: UOp) -> UOp:
    backwards = [step < 0 for step in node.arg]
    flipped = value.stride([-1 if b else 1 for b in backwards])
    starts = [most - size if b else 0
              for b, most, size in zip(backwards, value.shape, node.src[0].shape, strict=True)]
    return _window(flipped, starts, value.shape).stride([abs(step) for step in node.arg])


def _reduce(node: UOp, value: UOp) -> UOp:
    op, axes = node.arg
    masked = _masked(value, node.src[0].shape, axes, reduce_identity(op, value.dtype))
    return live_out(node.replace(src=(masked,)), node.shape)


def _assign(node: UOp, target: UOp, value: UOp) -> UOp:
    return node.replace(src=(_written_view(node.src[0]), live_out(value, node.shape)))


def _written_view(view: UOp) -> UOp:
    """A view of memory to be written to, over its largest sizes. It may reach beyond the memory: nothing is
    written beyond the true sizes. Raises SizeError where these may be larger than the memory's."""
    if not view.has_sizes or view.op is Ops.BUFFER:
        return view
    below = _written_view(view.src[0])
    if view.op is not Ops.SHRINK:
        return _RULES.get(view.op, _same_over_larger)(view, below)
    sizes = largest_shape(view.shape)
    for axis, (size, whole) in enumerate(zip(sizes, below.shape, strict=True)):
        if size > whole:
            raise SizeError(f"assign to {view.shape[axis]}, which may be {size}, of the {whole} items of an "
                            f"axis (axis {axis} of shape {view.src[0].shape}): give the Variable bounds "
                            "within it, or write x[...] = value")
    return _moved_window(below, [at_least(start, 0) for start, _ in view.arg], sizes)


_RULES: dict[Ops, Callable[..., UOp]] = {
    **dict.fromkeys((Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE),
                    lambda node, value: value.move(node.op, largest_shape(node.arg))),
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.STRIDE: _stride,
    Ops.REDUCE: _reduce,
    Ops.CONTIGUOUS: lambda node, value: node.replace(src=(live_out(value, node.shape),)),
    Ops.DETACH: lambda node, value: value,
    Ops.CUSTOM_GRADIENT: lambda node, value, *inputs: value,
    Ops.ASSIGN: _assign,
}
assert _RULES.keys().isdisjoint(Family.ELEMENTWISE)
