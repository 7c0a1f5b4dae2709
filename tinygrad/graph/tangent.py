"""Derivatives in forward mode, as graph nodes: what a small change of some nodes changes elsewhere.

`tangents(roots, seeds)` walks from the seeds up to the roots and carries a tangent, the derivative in one
direction, through every primitive. The table of `graph/gradient.py` says all there is to know: item by item a
derivative is its own transpose, movement moves tangents as it moves values, and a rule that is linear in the
gradient is transposed by differentiating it (the gradient of a gradient).
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tinygrad.graph.gradient import GRADIENT_RULES, as_argument, sources_of, summed_gradients
from tinygrad.graph.node_flags import Argument
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp

SourceTangents: TypeAlias = Sequence[UOp | None]
TangentRule: TypeAlias = Callable[[UOp, SourceTangents], UOp | None]


def _total(parts: Sequence[UOp | None]) -> UOp | None:
    """The sum of those that are not zero (None)."""
    found = [part for part in parts if part is not None]
    return functools.reduce(operator.add, found) if found else None


def _item_by_item(node: UOp, parts: SourceTangents) -> UOp | None:
    """Each source's share is what its gradient would be: the derivative is diagonal."""
    rule = GRADIENT_RULES[node.op]
    return _total([rule(t, node)[i] for i, t in enumerate(parts) if t is not None])


def _where(node: UOp, parts: SourceTangents) -> UOp:
    _, x, y = parts
    zero = UOp.const(0, node.dtype, node.shape)
    return node.src[0].where(zero if x is None else x, zero if y is None else y)


def _as_the_value(node: UOp, parts: SourceTangents) -> UOp | None:
    """The operation itself, which is linear and has one source."""
    return None if parts[0] is None else node.replace(src=(parts[0],))


def _reduce(node: UOp, parts: SourceTangents) -> UOp | None:
    """A sum weighted as the gradient spreads: all ones for a sum, the share of each item for a maximum."""
    op, axes = node.arg
    if op is Ops.ADD or parts[0] is None:
        return _as_the_value(node, parts)
    weights = GRADIENT_RULES[Ops.REDUCE](UOp.const(1, node.dtype, node.shape), node)[0]
    assert weights is not None
    return (parts[0] * weights).reduce(Ops.ADD, axes)


def _custom(node: UOp, parts: SourceTangents) -> UOp | None:
    """The transpose of the rule, which is linear in the gradient: the gradient at that gradient."""
    if isinstance(node.arg, Argument):
        return parts[1]
    weight = as_argument(UOp.const(0, node.dtype, node.shape))
    pulled = zip(node.arg(weight, node), parts[1:], strict=True)
    return _total([summed_gradients({g: t}, [weight])[0]
                   for g, t in pulled if g is not None and t is not None])


TANGENT_RULES: dict[Ops, TangentRule] = {
    **{op: _item_by_item for op in GRADIENT_RULES if op in Family.ELEMENTWISE},
    **dict.fromkeys(Family.MOVEMENT | {Ops.CAST, Ops.COPY, Ops.CONTIGUOUS}, _as_the_value),
    Ops.WHERE: _where,
    Ops.REDUCE: _reduce,
    Ops.ASSIGN: lambda node, parts: parts[1],
    Ops.LIVE_OUT: lambda node, parts: parts[0] if parts[0] is None else parts[0].live_out(node.src[1]),
    Ops.CUSTOM_GRADIENT: _custom,
}
"""A rule gets a node and the tangents of its sources, and returns that of the node; None is zero. Operations
that are not here are constant."""


def tangents(roots: Sequence[UOp], seeds: Mapping[UOp, UOp]) -> list[UOp | None]:
    """The derivative of each of `roots` in the direction `seeds`, a tangent for each of some nodes.

    None where a root does not depend on the seeds.
    """
    found: dict[UOp, UOp | None] = dict(seeds)
    for node in UOp.sink(roots).toposort(stop=lambda node: node in seeds or node.op is Ops.DETACH):
        if node in found or node.op not in TANGENT_RULES or not node.dtype.is_float:
            continue
        parts = [found.get(source) for source in sources_of(node)]
        if any(part is not None for part in parts):
            found[node] = TANGENT_RULES[node.op](node, parts)
    return [found.get(root) for root in roots]
