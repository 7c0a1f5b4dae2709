"""Conditions under which a part of a nest touches memory: for tiles that reach beyond the end of a range."""
from __future__ import annotations

from tinygrad.codegen.contraction import product_in
from tinygrad.codegen.indexing import with_guarded
from tinygrad.codegen.linearize import reduce_identity
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp


def guarded(value: UOp, inside: UOp) -> UOp:
    """`value` with its loads touching memory only where `inside` holds, if they change with the same
    ranges. A condition that differs inside a matrix unit's result says nothing about what the unit loads."""
    apart = inside.ranges

    def differs_inside(node: UOp) -> bool:
        if node.op is Ops.STAGE:
            return any(r.arg[1] is RangeKind.FRAGMENT for r in node.closed_ranges)
        return node.op is Ops.MMA and not apart.isdisjoint(node.src[2:4])

    return with_guarded(value, inside, lambda load: not load.ranges.isdisjoint(apart), differs_inside)


def zero_outside(value: UOp, inside: UOp) -> UOp:
    """`value` where `inside` holds, else zero, which is what a load under a condition gives by itself."""
    if value.op is Ops.CAST and value.dtype.is_float == value.src[0].dtype.is_float:
        return value.replace(src=(zero_outside(value.src[0], inside),))
    new = guarded(value, inside)
    if value.op is Ops.LOAD and new is not value:
        return new
    return inside.where(new, value._operand(value.dtype.as_const(0)))


def guarded_store(store: UOp, inside: UOp) -> UOp:
    """A STORE that is done only where `inside` holds."""
    at = store.src[0]
    valid = inside & at.src[2] if len(at.src) == 3 else inside
    address = at.src[0].index(at.src[1], valid)
    return store.replace(src=(address, guarded(store.src[1], inside), *store.src[2:]))


def nothing_outside(value: UOp, inside: UOp, op: Ops) -> UOp:
    """`value` where `inside` holds, else what changes nothing under `op`: of a product, both factors zero."""
    if op is Ops.ADD and value.op is Ops.MUL:
        return value.replace(src=tuple(zero_outside(s, inside) for s in value.src))
    if op is Ops.ADD and value.op is Ops.WHERE and product_in(value) is not None:
        condition = guarded(value.src[0], inside)
        return condition.where(nothing_outside(value.src[1], inside, op), value.src[2])
    return inside.where(guarded(value, inside), reduce_identity(op, value.dtype))
