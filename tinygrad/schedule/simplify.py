"""The graph to schedule: lazy nodes with everything known already taken out.

In: the nodes to realise. Out: the same graph in which nodes that have a value are views of their buffers,
DETACH is gone, and movement of constants is a constant. Nothing that changes a result is applied.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence

from tinygrad.codegen.indexing import splat_value
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node
from tinygrad.graph.shapes import inverse_permutation
from tinygrad.graph.symbolic import constant_folding
from tinygrad.graph.uop import UOp
from tinygrad.schedule.copies import computed_at_target, contiguous_part, made_at_target
from tinygrad.schedule.masked_weights import with_masks_of_weights
from tinygrad.schedule.memory_views import memory_of
from tinygrad.schedule.operand_packing import with_packed_operands
from tinygrad.schedule.products import sums_outer_products
from tinygrad.schedule.split import split_reduce


def _moved_constant(moved: UOp) -> UOp | None:
    scalar = splat_value(moved)
    if scalar is None or moved.op is Ops.PAD:
        return None
    return UOp.const(scalar.arg, scalar.dtype, moved.shape)


def _is_inside(padded: UOp, bounds: Sequence[tuple[int, int]]) -> bool | None:
    """Whether a slice of a PAD, or of what repeats one, has no padding (True) or nothing else (False); None
    where it has both, or a bound is not known."""
    if not all(isinstance(n, int) for pair in (*bounds, *padded.arg) for n in pair):
        return None
    inside = True
    for (start, end), (before, after), size in zip(bounds, padded.arg, padded.shape, strict=True):
        start, end = (0, 1) if size == 1 else (start, end)
        if end <= before or start >= size - after:
            return False
        inside = inside and before <= start and end <= size - after
    return inside or None


def _slice_of_choice(cut: UOp, choice: UOp) -> UOp | None:
    """A slice of joined parts that lies within one of them is a slice of that: every step of an unrolled
    loop, and its gradient, is the same kernel then."""
    mask = choice.src[0]
    while mask.op is Ops.EXPAND:
        mask = mask.src[0]
    one = splat_value(mask.src[0]) if mask.op is Ops.PAD else None
    chosen = None if one is None or not one.arg else _is_inside(mask, cut.arg)
    return None if chosen is None else choice.src[1 if chosen else 2].shrink(cut.arg)


def _slice_of_padding(cut: UOp, padded: UOp) -> UOp | None:
    """A slice of what was padded that has no padding, or nothing else."""
    inside = _is_inside(padded, cut.arg)
    if inside is None:
        return None
    if not inside:
        return UOp.const(0, cut.dtype, cut.shape)
    pairs = zip(cut.arg, padded.arg, strict=True)
    return padded.src[0].shrink([(start - before, end - before) for (start, end), (before, _) in pairs])


def _folded_elementwise(whole: UOp) -> UOp | None:
    """Arithmetic of constants, by folding their scalars; arithmetic that a constant makes trivial."""
    scalars = [splat_value(s) for s in whole.src]
    if all(s is None for s in scalars):
        return None
    stand_ins = tuple(s if c is None else c for s, c in zip(whole.src, scalars, strict=True))
    folded = constant_folding.apply(UOp.new(whole.op, whole.dtype, stand_ins))
    if folded is not None and folded.op is Ops.CONST:
        return UOp.const(folded.arg, folded.dtype, whole.shape)
    return folded if folded in whole.src else None


def _merged_reduce(outer: UOp, inner: UOp) -> UOp | None:
    """sum of a sum is one sum over both sets of axes."""
    if outer.arg[0] is not inner.arg[0] or outer.dtype is not inner.dtype:
        return None
    axes = tuple(sorted({*outer.arg[1], *inner.arg[1]}))
    return UOp.new(Ops.REDUCE, outer.dtype, inner.src, (outer.arg[0], axes))


def _reduce_in_order(reduce: UOp, moved: UOp) -> UOp | None:
    """A reduce of axes that changed places takes them as they were, where those that are left stand in the
    same order anyway."""
    op, axes = reduce.arg
    left = [axis for at, axis in enumerate(moved.arg) if at not in axes and reduce.shape[at] != 1]
    if left != sorted(left):
        return None
    own = tuple(sorted(moved.arg[at] for at in axes))
    return reduce.replace(src=moved.src, arg=(op, own)).reshape(reduce.shape)


def _copied_in_order(copy: UOp) -> UOp | None:
    """A copy takes memory in its order, which what was written through a flipped or strided view has not."""
    written = copy.src[0]
    if written.op is not Ops.ASSIGN or contiguous_part(written.src[0]) is not None:
        return None
    return written.contiguous().copy_to(copy.arg)


scheduling_rules = RewriteTable("what needs no computing", [
    Rule("movement of a constant", node(Family.MOVEMENT, name="moved"), _moved_constant),
    Rule("slice of a choice", node(Ops.SHRINK, node(Ops.WHERE, name="choice"), name="cut"), _slice_of_choice),
    Rule("slice of padding", node(Ops.SHRINK, node(Ops.PAD, name="padded"), name="cut"), _slice_of_padding),
    Rule("constant arithmetic", node(Family.ELEMENTWISE, name="whole"), _folded_elementwise),
    Rule("reduce of reduce", node(Ops.REDUCE, node(Ops.REDUCE, name="inner"), name="outer"), _merged_reduce),
    Rule("reduce of permute", node(Ops.REDUCE, node(Ops.PERMUTE, name="moved"), name="reduce"),
         _reduce_in_order),
    Rule("large reduce to few results", node(Ops.REDUCE, name="node"), split_reduce),
    Rule("copy of what a device without kernels holds", node(Ops.COPY, name="copy"), computed_at_target),
    Rule("copy of what no device holds", node(Ops.COPY, name="copy"), made_at_target),
    Rule("copy of what was written through a view", node(Ops.COPY, name="copy"), _copied_in_order),
    Rule("detach", node(Ops.DETACH, any_node("x")), lambda x: x),
    Rule("custom gradient", node(Ops.CUSTOM_GRADIENT, name="x"), lambda x: x.src[0]),
])


@graph_pass("simplify")
def simplified_graph(sinks: list[UOp]) -> list[UOp]:
    """The graphs of `sinks` with computed nodes as views of their buffers, and simplified."""
    constants: set[UOp] = set()
    epilogues: set[UOp] = set()
    """of the new nodes"""

    def simplify(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = _over(node, src)
        if node.op is Ops.CONTIGUOUS and new.device is None and isinstance(node.device, str):
            new = new.src[0].copy_to(node.device)  # a constant now, still stored by that device
        if new.op not in _CHANGED_BY_CONSTANTS or not constants.isdisjoint(new.src):
            new = scheduling_rules.normal_form(new)
            if splat_value(new) is not None:
                constants.add(new)
        if new.op in Family.ELEMENTWISE:
            view = _of_sum(new, epilogues)
            if view is not None:
                inner = _in_shape_of_sum(new, view)
                epilogues.add(inner)
                new = _viewed_as(view, inner)
        return new

    simple = UOp.sink(sinks).rebuild(simplify, memory_of)
    return list(with_packed_operands(with_masks_of_weights(simple)).src)


def _of_sum(node: UOp, epilogues: Collection[UOp]) -> UOp | None:
    """The source of an elementwise node that joins some axes, which may have changed places, of a sum of
    products (the channels of a grouped convolution, the heads of attention), or of one of the `epilogues` of
    such; None where there is none."""
    for source in node.src:
        if source.op is Ops.RESHAPE:
            moved = source.src[0]
            inner = moved.src[0].unreshaped if moved.op is Ops.PERMUTE else moved
            if (sums_outer_products(inner) or inner in epilogues) and _axes(source) < _axes(inner):
                return source
    return None


def _in_shape_of_sum(node: UOp, view: UOp) -> UOp:
    """An elementwise node in the shape of the sum that its source `view` shows, so that its kernel still
    knows which columns are of one group."""
    moved = view.src[0]
    src = tuple(s.unreshaped.reshape(moved.shape) for s in node.src)
    if moved.op is Ops.PERMUTE:
        src = tuple(s.permute(inverse_permutation(moved.arg)) for s in src)
    return node.with_sources(src)


def _viewed_as(view: UOp, inner: UOp) -> UOp:
    """What `view` shows of a sum, of `inner`."""
    moved = view.src[0]
    return (inner.permute(moved.arg) if moved.op is Ops.PERMUTE else inner).reshape(view.shape)


def _axes(node: UOp) -> int:
    """Of more than one item."""
    return sum(n != 1 for n in node.shape)


_CHANGED_BY_CONSTANTS = Family.ELEMENTWISE | Family.MOVEMENT - {Ops.SHRINK}
"""What no rule changes where no source is a constant."""


def _over(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """`node` over new sources, merged with a source that is movement of the same kind. Tensors keep each step
    of their own movement until here: gradients are asked for at any of them."""
    if node.op in (Ops.RESHAPE, Ops.PERMUTE) and src[0].op is node.op:
        view, = src
        if node.op is Ops.RESHAPE:
            return view.src[0].reshape(node.arg)
        return view.src[0].permute([view.arg[i] for i in node.arg])
    return node.with_sources(src)
