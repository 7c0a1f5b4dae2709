"""Derivatives, as graph nodes: one table from each primitive to the gradients of its sources.

`gradients(root, weight, targets)` walks from `root` back to the `targets` over the nodes that lead to
one, and returns for each target a graph node of its shape. Because the results are ordinary nodes, they fuse
and schedule as any others, and gradients of gradients work. DETACH ends the walk (unless it is itself a
target), and so does everything that is not a float.

A table entry gets the gradient of a node's value and the node, and returns one gradient (or None) for each
source (`sources_of`). `graph/tangent.py` is the same the other way round: forward mode, mostly by this table.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from tinygrad import observer
from tinygrad.graph.elementary import derivative_of_sine
from tinygrad.graph.joining import padded_with
from tinygrad.graph.node_flags import COSTLY, READS, Argument
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.shapes import inverse_permutation
from tinygrad.graph.sizes import is_symbolic, largest
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

SourceGradients: TypeAlias = tuple[UOp | None, ...]
GradientRule: TypeAlias = Callable[[UOp, UOp], SourceGradients]

LN2 = math.log(2)


def sum_to(x: UOp, shape: Sequence[int]) -> UOp:
    """`x` summed over the axes that have size 1 in `shape`: what EXPAND to `x.shape` is the transpose of."""
    return x.reduce(Ops.ADD, [i for i, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m])


def _max_of_two(g: UOp, node: UOp) -> SourceGradients:
    """All to the larger source, half each on a tie."""
    a, b = node.src
    half = g * 0.5
    zero = g._operand(0)
    return ((b < a).where(g, (a < b).where(zero, half)), (a < b).where(g, (b < a).where(zero, half)))


def _where(g: UOp, node: UOp) -> SourceGradients:
    condition = node.src[0]
    return None, condition.where(g, 0), condition.where(0, g)


def _mul(g: UOp, node: UOp) -> SourceGradients:
    a, b = node.src[:2]
    return _scaled(g, Ops.MUL, b), _scaled(g, Ops.MUL, a)


def sources_of(node: UOp) -> tuple[UOp, ...]:
    """The nodes that a rule of the table gives gradients at: a node's sources; those of a share of a sum,
    e^x / (1 + e^x), are that part and the rest. With 1 / (p + r) - p / (p + r)^2 as the gradient at p,
    nothing would be left of it for large p."""
    if node.op is not Ops.FDIV:
        return node.src
    part, total = node.src
    while part.op is total.op is Ops.CAST and part.src[0].dtype is total.src[0].dtype:
        part, total = part.src[0], total.src[0]
    if total.op is Ops.ADD and part in total.src:
        return part, total.src[total.src[0] is part]
    return node.src


def _fdiv(g: UOp, node: UOp) -> SourceGradients:
    """g / b and -g / b * (a / b); of p / (p + r), g r / (p + r)^2 and -g p / (p + r)^2. Zero where a sum with
    an exponential in it, which grows as fast as what it is a sum of, overflows."""
    sources, total = sources_of(node), node.src[1]
    share = _scaled(g, Ops.FDIV, total)
    if sources is not node.src:
        part, rest = [x.cast(node.dtype) for x in sources]
        finite = _is_not_infinite(total)
        at_part, at_rest = [finite.where(x, 0) for x in (share * (rest / total), -share * (part / total))]
        return at_part.cast(sources[0].dtype), at_rest.cast(sources[1].dtype)
    at_total = -_scaled(share, Ops.MUL, node)
    while total.op is Ops.CAST:
        total = total.src[0]
    if total.op is Ops.ADD and any([s.op is Ops.EXP2 for s in total.src]):
        at_total = _is_not_infinite(node.src[1]).where(at_total, 0)
    return share, at_total


def _is_not_infinite(x: UOp) -> UOp:
    return x.ne(math.inf) & x.ne(-math.inf)


def _scaled(g: UOp, op: Ops, factor: UOp) -> UOp:
    """`g` times or over `factor`. Where a mask made of positions (causal attention) has set `g` to zero, the
    result is zero too, whatever the factor; said so, its sums need not run there. A mask that is in memory,
    or takes longer to compute than to read (dropout), is asked for once."""
    masked = _masked(g)
    if masked is None or masked[0].flags & (READS | COSTLY):
        return g.alu(op, factor)
    condition, value = masked
    return condition.where(value.alu(op, factor), 0)


def _exp2(g: UOp, node: UOp) -> SourceGradients:
    """Where a mask has set `g` to zero, the result is zero too, though the power be infinite."""
    masked = _masked(g)
    if masked is None:
        return (g * node * LN2,)
    condition, value = masked
    return (condition.where(value * node * LN2, 0),)


def _masked(g: UOp) -> tuple[UOp, UOp] | None:
    """(condition, value) of a `g` that is zero where the condition does not hold."""
    moves = []
    while g.op in _KEEPS_ZERO:
        moves.append(g)
        g = g.src[0]
    if g.op is not Ops.WHERE or not g.src[2].is_zero:
        return None
    condition, value = g.src[:2]
    for move in reversed(moves):
        value = move.replace(src=(value,))
        if move.op is not Ops.CAST:
            condition = condition.under(move.op, move.arg)
    return condition, value


_KEEPS_ZERO = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.CAST})
"""What stands between a mask and the product of a sum."""


def _reduce(g: UOp, node: UOp) -> SourceGradients:
    op, axes = node.arg
    src = node.src[0]
    if op is Ops.ADD:
        return (g.expand(src.shape),)
    if op is Ops.MAX:
        hit = src.eq(node.expand(src.shape)).cast(g.dtype)
        return (hit * (g / hit.reduce(Ops.ADD, axes)).expand(src.shape),)
    return (g.expand(src.shape) * _products_of_others(src, axes),)


def _products_of_others(x: UOp, axes: Sequence[int]) -> UOp:
    """For each item the product of all others along `axes`, in the shape of `x`."""
    if is_symbolic([x.shape[i] for i in axes]):
        ends = [(0, largest(n) - n if i in axes else 0) for i, n in enumerate(x.shape)]
        return _products_of_others(padded_with(x, ends, 1), axes).shrink([(0, n) for n in x.shape])
    order = [i for i in range(len(x.shape)) if i not in axes] + list(axes)
    kept = [x.shape[i] for i in order[:len(order) - len(axes)]]
    last = x.permute(order)
    flat = last.reshape((*kept, math.prod(x.shape[i] for i in axes)))
    return _others_of_last_axis(flat).reshape(last.shape).permute(inverse_permutation(order))


def _others_of_last_axis(x: UOp) -> UOp:
    """Each item gets the other one of its pair, times what all other pairs come to. Nothing is divided, so
    zeros, infinities and derivatives of every order are right."""
    *lead, size = x.shape
    if size <= 1:
        return UOp.const(1, x.dtype, x.shape)
    whole = padded_with(x, [(0, 0)] * len(lead) + [(0, size % 2)], 1)
    paired = whole.reshape((*lead, ceildiv(size, 2), 2))
    pairs = paired.reduce(Ops.MUL, (len(lead) + 1,))
    other_pairs = _others_of_last_axis(pairs.reshape(pairs.shape[:-1])).reshape(pairs.shape)
    products = paired.stride((1,) * (len(lead) + 1) + (-1,)) * other_pairs.expand(paired.shape)
    return products.reshape(whole.shape).shrink([(0, n) for n in x.shape])


def _stride(g: UOp, node: UOp) -> SourceGradients:
    """Each item back to its place, zeros between."""
    shape = node.src[0].shape
    gaps = [abs(step) for step in node.arg]
    interleaved = [size for n in g.shape for size in (n, 1)]
    spaced = g.reshape(interleaved).pad([p for gap in gaps for p in ((0, 0), (0, gap - 1))])
    spaced = spaced.reshape([n * gap for n, gap in zip(g.shape, gaps, strict=True)])
    return (spaced.shrink([(0, n) for n in shape]).stride([1 if step > 0 else -1 for step in node.arg]),)


def _pad(g: UOp, node: UOp) -> SourceGradients:
    sizes = node.src[0].shape
    return (g.shrink([(before, before + n) for (before, _), n in zip(node.arg, sizes, strict=True)]),)


def _shrink(g: UOp, node: UOp) -> SourceGradients:
    return (g.pad([(start, n - end) for (start, end), n in zip(node.arg, node.src[0].shape, strict=True)]),)


def _copy(g: UOp, node: UOp) -> SourceGradients:
    device = node.src[0].device
    return (g if device is None else g.copy_to(device),)


MOVEMENT_RULES: dict[Ops, GradientRule] = {
    Ops.RESHAPE: lambda g, node: (g.reshape(node.src[0].shape),),
    Ops.PERMUTE: lambda g, node: (g.permute(inverse_permutation(node.arg)),),
    Ops.EXPAND: lambda g, node: (sum_to(g, node.src[0].shape),),
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.STRIDE: _stride,
}
"""The transposes of the movement operations. They hold for every dtype."""

GRADIENT_RULES: dict[Ops, GradientRule] = {
    Ops.NEG: lambda g, node: (-g,),
    Ops.SQRT: lambda g, node: (g / node * 0.5,),
    Ops.EXP2: _exp2,
    Ops.LOG2: lambda g, node: (g / node.src[0] * (1 / LN2),),
    Ops.SIN: lambda g, node: (g * derivative_of_sine(node.src[0]),),
    Ops.CAST: lambda g, node: (g.cast(node.src[0].dtype),),
    Ops.TRUNC: lambda g, node: (None,),
    Ops.ADD: lambda g, node: (g, g),
    Ops.SUB: lambda g, node: (g, -g),
    Ops.MUL: _mul,
    Ops.FDIV: _fdiv,
    Ops.MAX: _max_of_two,
    Ops.WHERE: _where,
    Ops.MULACC: lambda g, node: (*_mul(g, node), g),
    Ops.REDUCE: _reduce,
    **MOVEMENT_RULES,
    Ops.CONTIGUOUS: lambda g, node: (g,),
    Ops.COPY: _copy,
    Ops.ASSIGN: lambda g, node: (None, g),
    Ops.LIVE_OUT: lambda g, node: (g, None),
    Ops.CUSTOM_GRADIENT: lambda g, node: (None, *node.arg(g, node)),
}
"""None says that the gradient is zero. Operations that are not here (comparisons, bits) end the walk."""


def as_argument(value: UOp) -> UOp:
    """`value` as a node that no other equals; see `Argument`."""
    return value.with_gradient((value,), Argument())


def transpose_movement(view: UOp, value: UOp, base: UOp) -> UOp:
    """`value`, of the shape of `view`, put back where the movement ops from `base` to `view` took it from.

    The other items are zero. Raises RuntimeError where an op in between is not a movement op (or DETACH).
    """
    node = view
    while node is not base:
        if node.op is Ops.DETACH and node.arg is None:
            node = node.src[0]
            continue
        if node.op not in Family.MOVEMENT:
            raise RuntimeError(f"a view is made of movement ops, but {node} is not one")
        placed = MOVEMENT_RULES[node.op](value, node)[0]
        assert placed is not None
        node, value = node.src[0], placed
    return value


def gradients(root: UOp, weight: UOp, targets: Sequence[UOp]) -> list[UOp | None]:
    """The gradient of `root` at each of `targets`, weighted by `weight`.

    None where no way leads there, zeros where only constant steps (TRUNC) do.
    """
    return summed_gradients({root: weight}, targets)


def summed_gradients(roots: Mapping[UOp, UOp], targets: Sequence[UOp]) -> list[UOp | None]:
    """The sum, over several roots and their gradients, of what `gradients` gives for each, in one walk."""
    wanted = set(targets)
    order = UOp.sink(roots).toposort(stop=lambda node: node.op is Ops.DETACH and node not in wanted)
    leads_to_target: set[UOp] = set()
    for node in order:
        leads_on = node.op in GRADIENT_RULES and any(s in leads_to_target for s in _differentiable(node))
        if node.dtype.is_float and (node in wanted or leads_on):
            leads_to_target.add(node)

    on_the_way = leads_to_target.intersection(roots)
    found = {root: roots[root] for root in on_the_way}
    for node in reversed(order):
        sources = [s for s in _differentiable(node) if s in leads_to_target]
        if node not in on_the_way or node.op not in GRADIENT_RULES or not sources:
            continue
        on_the_way.update(sources)
        if node not in found:
            continue
        if (watcher := observer.active) is None:
            own = GRADIENT_RULES[node.op](found[node], node)
        else:
            own = watcher.gradients_of(node, partial(GRADIENT_RULES[node.op], found[node], node))
        for source, gradient in zip(sources_of(node), own, strict=True):
            if gradient is not None and source in leads_to_target:
                found[source] = found[source] + gradient if source in found else gradient
    zeros = {t: UOp.const(0, t.dtype, t.shape) for t in wanted & on_the_way if t not in found}
    return [found.get(target, zeros.get(target)) for target in targets]


def _differentiable(node: UOp) -> tuple[UOp, ...]:
    """The sources whose gradient the table may give."""
    if node.op in (Ops.ASSIGN, Ops.CUSTOM_GRADIENT):
        return node.src[1:]
    return sources_of(node)
