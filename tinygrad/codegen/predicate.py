"""Predicates: masks under which a piece of a nest reads memory, writes it, or counts.

A mask is a node of bools over the loops around. An address has one of its own (INDEX with three sources):
where it does not hold nothing is read, and the value is zero, or nothing is written. The mask that always
holds is the constant `TRUE`, and an address has none then. What a tile that reaches beyond the end of a loop
reads, a view shows outside of its memory, or a closed form picks, is said with these, and with nothing else.
"""
from __future__ import annotations

from collections.abc import Callable

from tinygrad.codegen.contraction import product_in
from tinygrad.codegen.ranges import of_kind
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import TRUE
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import NARROW_FLOATS


def reduce_identity(op: Ops, dtype: DType) -> UOp:
    """The value that leaves any other as it is under `op`."""
    return UOp.const(dtype.scalar.min if op is Ops.MAX else int(op is Ops.MUL), dtype)


def mask_of(value: UOp, op: Ops) -> UOp:
    """The condition of a value outside of which it changes nothing under `op`."""
    is_masked = value.op is Ops.WHERE and value.src[2] is reduce_identity(op, value.dtype)
    return value.src[0] if is_masked else TRUE


def accumulated(value: UOp) -> UOp:
    """`value` in the type that it is accumulated in: float32 for narrower floats, rounded once at the end."""
    return value.cast(dtypes.float32) if value.dtype.scalar in NARROW_FLOATS else value


def masked_address(address: UOp, mask: UOp) -> UOp:
    """An INDEX that is touched only where `mask` holds, and its own one."""
    memory, offset, *own = address.src
    return memory.index(offset, mask & own[0] if own else mask)


# --- loads --------------------------------------------------------------------------------------------------


def mask_loads(value: UOp, mask: UOp, which: Callable[[UOp], bool] | None = None,
               stop: Callable[[UOp], bool] | None = None) -> UOp:
    """`value` with its loads from buffers reading only where `mask` holds: those that `which` names, by
    default all that the mask itself is not made of. What an address is computed from is loaded under the same
    mask. What `stop` names stays as it is, with all below it."""
    known = mask.toposort() if which is None else {}
    is_wanted = which or (lambda load: load not in known)

    def masked_load(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        if new.op is not Ops.LOAD or node.memory.op is not Ops.PARAM or not is_wanted(node):
            return new
        return masked_address(new.src[0], mask).load()

    return value.rebuild(masked_load, None if stop is None else lambda n: n if stop(n) else None)


def mask_loads_along(value: UOp, mask: UOp) -> UOp:
    """`value` with those loads masked that change with the loops that the mask changes with. A mask that
    differs inside a matrix unit's result says nothing about what the unit loads."""
    loops = mask.ranges

    def differs_inside(node: UOp) -> bool:
        if node.op is Ops.STAGE:
            return bool(of_kind(node.closed_ranges, RangeKind.FRAGMENT))
        return node.op is Ops.MMA and not loops.isdisjoint(node.src[2:4])

    return mask_loads(value, mask, lambda load: not load.ranges.isdisjoint(loops), differs_inside)


def store_where(mask: UOp, store: UOp) -> UOp:
    """A STORE that is done only where `mask` holds, of a value that can be computed everywhere."""
    return store.replace(src=(masked_address(store.src[0], mask), *store.src[1:]))


def mask_store(store: UOp, mask: UOp) -> UOp:
    """A STORE that is done only where `mask` holds, and what it stores is read only there."""
    address, value, *loops = store_where(mask, store).src
    return store.replace(src=(address, mask_loads_along(value, mask), *loops))


# --- values -------------------------------------------------------------------------------------------------


def is_loaded_under(value: UOp, mask: UOp) -> bool:
    """Whether `value` is a load under this very mask, and so zero where it does not hold."""
    return value.op is Ops.LOAD and value.mask is mask


def zero_unless(mask: UOp, value: UOp) -> UOp:
    """`value` where `mask` holds, else zero, which a masked load is by itself."""
    if value.op is Ops.CAST and value.dtype.is_float == value.src[0].dtype.is_float:
        return value.replace(src=(zero_unless(mask, value.src[0]),))
    new = mask_loads_along(value, mask)
    if value.op is Ops.LOAD and new is not value:
        return new
    return mask.where(new, value._operand(value.dtype.as_const(0)))


def identity_unless(mask: UOp, value: UOp, op: Ops) -> UOp:
    """`value` where `mask` holds, else what changes nothing under `op`."""
    if mask is TRUE:
        return value
    return mask.where(mask_loads_along(value, mask), reduce_identity(op, value.dtype))


def masked_term(mask: UOp, value: UOp, op: Ops) -> UOp:
    """`value` where `mask` holds, else what changes nothing under `op`; of a product that is added up both
    factors are zero, so that it stays a product."""
    if op is Ops.ADD and value.op is Ops.MUL and mask is not TRUE:
        return value.replace(src=tuple(zero_unless(mask, s) for s in value.src))
    if op is Ops.ADD and value.op is Ops.WHERE and product_in(value) is not None:
        condition = mask_loads_along(value.src[0], mask)
        return condition.where(masked_term(mask, value.src[1], op), value.src[2])
    return identity_unless(mask, value, op)
