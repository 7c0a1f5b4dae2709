"""Weights that a mask makes zero: where a softmax over `where(mask, x, -inf)` leaves nothing of a value.

e^(-inf - m) is zero for the m that a row has, its largest item or the logarithm of its sum. So

    sum of e^(where(mask, x, -inf) - m) v   =   sum of where(mask, e^(where(mask, x, -inf) - m) v, 0)

and the loop over what a causal mask hides need not run (`codegen/opt/loop_bounds.py`), nor what it would
read be loaded. What of such weights is stored for a later kernel is stored where the mask holds, if nothing
else of them is read. So attention as a user spells it, and its gradients, do the work that there is.

In: the graph to schedule. Out: the same graph with masks on such sums, and LIVE_OUT on such weights.

Both sides agree where m and v are finite; where the scores of a row have a NaN, or all are -inf, the terms
that are left say so. What v is where its weight is zero does not matter, as in every fused attention (in
PyTorch's too). Where a mask hides a whole row, m is -inf, and the left side NaN: so a mask counts only if it
is made of places alone and is known to let something of each row through.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from tinygrad.codegen.indexing import ZERO, loops_over, splat_value
from tinygrad.codegen.lower import value_at
from tinygrad.dtype import dtypes
from tinygrad.graph.elementary import argument_of_exponential
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.symbolic import TRUE, conjuncts, is_index_less, linear_terms
from tinygrad.graph.uop import UOp


def with_masks_of_weights(root: UOp) -> UOp:
    """The graph of `root` with these masks said."""
    order = root.toposort()
    masks = _masks_of(order)
    if not masks:
        return root
    masked = {n: masks[n.src[0]] for n in order if n.op is Ops.REDUCE and n.src[0] in masks
              and n.arg[0] is Ops.ADD}
    live_out = _read_under_their_masks(order, masks, masked)
    masked = {n: mask for n, mask in masked.items() if not _has_mask(n.src[0], mask)}

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node in masked:
            (term,) = src
            return node.replace(src=(masked[node].where(term, term._operand(0.0)),))
        new = node.with_sources(src)
        return new.live_out(masks[node]) if node in live_out else new

    return root.rebuild(change)


def _has_mask(term: UOp, mask: UOp) -> bool:
    """Whether a term says already that it is zero outside of a mask."""
    return term.op is Ops.WHERE and term.src[2].is_zero and term.src[0] is mask


def _masks_of(order: Iterable[UOp]) -> dict[UOp, UOp]:
    """For each node in `order`, sources first, that is zero outside of such a mask, that mask."""
    masks: dict[UOp, UOp] = {}
    for node in order:
        if node.op is Ops.EXP2:
            mask = _mask_of_power(node)
        elif not masks or not node.dtype.is_float:
            continue
        elif node.op in Family.MOVEMENT:
            mask = masks.get(node.src[0])
            mask = None if mask is None else _moved(mask, node)
        elif node.op is Ops.MUL:
            mask = masks.get(node.src[0]) or masks.get(node.src[1])
        elif node.op in (Ops.FDIV, Ops.CAST, Ops.LIVE_OUT):
            mask = masks.get(node.src[0])
        elif node.op is Ops.WHERE and any(s.is_zero for s in node.src[1:]):
            mask = masks.get(node.src[1]) or masks.get(node.src[2])
        else:
            continue
        if mask is not None:
            masks[node] = mask
    return masks


def _moved(mask: UOp, node: UOp) -> UOp:
    """The mask of what a node of movement makes of something with `mask`."""
    return node.replace(dtype=dtypes.bool, src=(mask, *node.src[1:]))


def _read_under_their_masks(order: Iterable[UOp], masks: dict[UOp, UOp], masked: Iterable[UOp]) -> set[UOp]:
    """The nodes with masks of which nothing else is read than what these let through, and that contractions
    may want from memory: those that are spread out."""
    users: dict[UOp, list[UOp]] = {}
    for node in order:
        for source in node.src:
            if source in masks:
                users.setdefault(source, []).append(node)
    enough = set(masked)
    for node in reversed(list(masks)):
        mask = masks[node]
        if all(user in enough and (masks.get(user, mask) is mask or user.op in Family.MOVEMENT)
               for user in users.get(node, (None,))):
            enough.add(node)
    return {node for node in enough if node in masks and node.op not in Family.MOVEMENT | {Ops.LIVE_OUT}
            and any(user.op in Family.MOVEMENT for user in users[node])}


# --- powers of masked exponents -----------------------------------------------------------------------------


def _mask_of_power(power: UOp) -> UOp | None:
    """The mask outside which EXP2 of something is zero."""
    exponent = argument_of_exponential(power.src[0])
    for mask, along in _masks_of_exponent(power.src[0] if exponent is None else exponent):
        if mask.numel and _lets_rows_through(mask, along):
            return mask
    return None


def _masks_of_exponent(value: UOp) -> Iterator[tuple[UOp, tuple[int, ...] | None]]:
    """Masks outside which `value` is -inf, each with the axes of the rows that a number is subtracted from
    (None: nothing is)."""
    if value.op is Ops.SUB:
        same = _axes_along(value.src[1])
        for mask, along in _masks_of_exponent(value.src[0]):
            yield mask, same if along is None else tuple(axis for axis in along if axis in same)
    elif value.op is Ops.ADD:
        for part in value.src:
            yield from _masks_of_exponent(part)
    elif value.op is Ops.CAST or (value.op in (Ops.MUL, Ops.FDIV) and _is_positive(value.src[1])):
        yield from _masks_of_exponent(value.src[0])
    elif value.op in Family.VIEW:
        unshifted = (mask for mask, along in _masks_of_exponent(value.src[0]) if along is None)
        yield from ((_moved(mask, value), None) for mask in unshifted)
    elif value.op is Ops.WHERE:
        condition, chosen, other = value.src
        if _is_minus_infinity(other):
            yield condition, None
            yield from _masks_of_exponent(chosen)
        elif _is_minus_infinity(chosen):
            yield condition.logical_not(), None


def _is_positive(value: UOp) -> bool:
    constant = splat_value(value)
    return constant is not None and 0 < constant.arg < math.inf


def _is_minus_infinity(value: UOp) -> bool:
    constant = splat_value(value)
    return constant is not None and constant.arg == -math.inf


# --- rows of masks ------------------------------------------------------------------------------------------


def _axes_along(shift: UOp) -> tuple[int, ...]:
    """The axes along which a value is the same: those of the rows that it is subtracted from."""
    strides = shift.st.views[-1].strides
    return tuple(a for a, n in enumerate(shift.shape) if n > 1 and strides[a] == 0)


@lru_cache(1024)
def _lets_rows_through(mask: UOp, axes: tuple[int, ...] | None) -> bool:
    """Whether a mask is made of places, bounds a loop, and lets something of each row along one of `axes`
    through: the first item, the last, or the one that a bound names."""
    if any(n.op in Family.STORED | {Ops.BUFFER} for n in mask.toposort()):
        return False
    loops = loops_over(mask.shape)
    conditions = list(conjuncts(value_at(mask, loops)))
    bounds = [c.src[0] - c.src[1] for c in conditions if is_index_less(c)]
    if not bounds:
        return False
    return axes is None or any(_holds_at(conditions, loops[axis], place) for axis in axes
                               for place in _likely_places(bounds, loops[axis]))


def _likely_places(bounds: Iterable[UOp], loop: UOp) -> Iterator[UOp]:
    """Iterations of a loop that bounds, indices that are negative where something is let through, may
    name."""
    yield ZERO
    yield loop.src[0] - 1
    for difference in bounds:
        step = linear_terms(difference).terms.get(loop)
        if step in (1, -1):
            rest = difference - loop * step
            yield -rest - 1 if step == 1 else rest + 1


def _holds_at(conditions: Iterable[UOp], loop: UOp, place: UOp) -> bool:
    is_inside = place.bounds[0] >= 0 and (place < loop.src[0]) is TRUE
    return is_inside and all(c.substitute({loop: place}) is TRUE for c in conditions)
