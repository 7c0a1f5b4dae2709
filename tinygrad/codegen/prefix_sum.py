"""Prefix sums: reductions of all items up to each output, as running sums, products and maxima are.

In the graph `out[i] = sum over k <= i of x[k]` is a masked triangle, or a window that ends at each item and
is long enough for all before it. In: a loop nest. Out: which of its REDUCEs are such, and the one item that
each iteration of the loop over outputs adds. `opt/scan.py` makes recurrences of them, and `cost.py` counts
them so.
"""
from __future__ import annotations

from tinygrad.codegen.predicate import mask_of, reduce_identity
from tinygrad.codegen.ranges import ZERO, fresh_identity, is_plain
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import TRUE, all_of, conjuncts, is_index_less, linear_terms
from tinygrad.graph.uop import UOp


@frozen
class PrefixSum:
    """A REDUCE of all items up to an iteration of `loop`, and the item that this iteration adds."""

    reduce: UOp
    loop: UOp
    item: UOp


def prefix_sums(nest: UOp) -> list[PrefixSum]:
    """Those along loops over outputs of which every reduction that changes with the loop is one, but for
    those of which such a one reduces the results."""
    candidates = [n for n in nest.nodes_of(Ops.REDUCE) if len(n.src) == 2 and is_plain(n.src[1])
                  and n.arg is not Ops.MULACC]
    if not candidates:
        return []
    found: list[PrefixSum] = []
    fresh = fresh_identity(nest)
    for loop in _loops_of_all_outputs(nest):
        long = [n for n in candidates if loop in n.ranges and n.src[1].extent >= loop.extent]
        along = [PrefixSum(n, loop, item) for n in long
                 if (item := _item_added(n, loop, fresh)) is not None]
        reduces = {p.reduce for p in along}
        others = nest.toposort(stop=reduces.__contains__) if along else {}
        if not any(n.op is Ops.REDUCE and loop in n.ranges and n not in reduces for n in others):
            found += along
    return found


def _loops_of_all_outputs(nest: UOp) -> list[UOp]:
    """The loops that every STORE closes."""
    return [r for r in nest.src[0].closed_ranges if is_plain(r)
            and all(r in store.closed_ranges for store in nest.src)]


def _item_added(reduce: UOp, loop: UOp, fresh: int) -> UOp | None:
    """The item that an iteration of `loop` adds to those of the iteration before; None where that is not all
    that the REDUCE is of."""
    mask = _mask(reduce.src[0], reduce)
    if not mask.ranges >= {loop, reduce.src[1]}:
        return None
    item = _last_of_window(reduce, loop, fresh)
    return _on_diagonal(reduce, loop) if item is None else item


def _last_of_window(reduce: UOp, loop: UOp, fresh: int) -> UOp | None:
    """The last item of windows that move by one item in each iteration, and of which the first window has
    nothing else; None where the REDUCE is of no such windows."""
    value, k = reduce.src
    place = UOp.range(loop.extent + k.extent - 1, fresh)
    by_place = value.substitute({k: place - loop})
    if loop in by_place.ranges:
        return None
    before = UOp.range(k.extent - 1, fresh + 1) if k.extent > 2 else ZERO
    holds = _mask(by_place, reduce).substitute({place: before})
    if holds.op is not Ops.CONST or holds.arg:
        return None
    return by_place.substitute({place: loop + (k.extent - 1)})


def _on_diagonal(reduce: UOp, loop: UOp) -> UOp | None:
    """The item on the diagonal, where the reduced loop goes up to the iteration of `loop` and what it reduces
    is the same in each; None where the REDUCE is of no such triangle."""
    value, k = reduce.src
    mask = mask_of(value, reduce.arg)
    if mask is TRUE or loop in value.src[1].ranges:
        return None
    below = [c for c in conjuncts(mask) if loop in c.ranges]
    if len(below) != 1 or not is_index_less(below[0]):
        return None
    terms, constant = linear_terms(below[0].src[0] - below[0].src[1])
    if terms != {k: 1, loop: -1} or constant != -1:
        return None
    others = all_of(c for c in conjuncts(mask) if c is not below[0])
    item = value.src[1] if others is TRUE else others.where(value.src[1], value.src[2])
    return item.substitute({k: loop})


def _mask(value: UOp, reduce: UOp) -> UOp:
    """A condition outside which `value` changes nothing in the REDUCE."""
    if value.op is Ops.CAST and reduce.arg is Ops.ADD:
        value = value.src[0]
    if value.op is Ops.LOAD and reduce_identity(reduce.arg, value.dtype).is_zero:
        return TRUE if value.mask is None else value.mask
    return mask_of(value, reduce.arg)
