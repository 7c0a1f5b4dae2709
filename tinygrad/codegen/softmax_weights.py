"""The weights of a softmax that only sums see, as those that may be 0 sooner than their format needs.

In: a nest after its plan. Out: the nest with a mark (`WEIGHT`) on each power of a number less the largest of
its row, where nothing but sums over that row is made of it: attention, the sum of a cross entropy. One weight
of each row is 1, so what is no normal number (2**-126 in float32) adds nothing to their sum, and to a sum of
products with values less than 2**-126 of those. Processors take a hundred cycles and more for each such
number that they make, and again for each that they multiply: a mask of -100 (Swin's) made attention of 64
windows of 49 pixels nine times as slow. Next on the path: `expand.py`.
"""
from __future__ import annotations

from tinygrad.codegen.transcendental import WEIGHT
from tinygrad.graph.elementary import argument_of_exponential
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

_PASSED_ON = frozenset({Ops.VECTORIZE, Ops.EXTRACT, Ops.SHUFFLE, Ops.CAST, Ops.MAX})
"""What the largest of several may be made of."""


def with_weights_marked(nest: UOp) -> UOp:
    """The nest with those powers marked."""
    largest = {n: m for n in nest.nodes_of(Ops.EXP2) if (m := _largest_of_row(n)) is not None}
    if not largest:
        return nest
    seen = nest.toposort(stop=_is_sum)
    sums = set(filter(_is_sum, nest.toposort()))
    in_other_sums = {n for s in sums.difference(s.src[0] for s in sums) for n in _added_up(s)
                     if n in largest and not s.ranges.isdisjoint(n.ranges - largest[n].ranges)}
    weights = largest.keys() - seen.keys() - in_other_sums

    def marked(node: UOp, src: tuple[UOp, ...]) -> UOp:
        made = node.with_sources(src)
        return made.replace(arg=WEIGHT) if node in weights else made

    return nest.rebuild(marked) if weights else nest


def _is_sum(node: UOp) -> bool:
    return node.op is Ops.REDUCE and node.arg is Ops.ADD


def _added_up(total: UOp) -> dict[UOp, None]:
    """What a sum, or the sum whose lanes it adds up, is made of."""
    value = total.src[0]
    return _added_up(value) if _is_sum(value) else value.toposort(stop=_is_sum)


def _largest_of_row(power: UOp) -> UOp | None:
    """The largest of numbers from the same memory, which a power's exponent is a difference to."""
    exponent = power.src[0]
    natural = argument_of_exponential(exponent)
    difference = exponent if natural is None else natural
    if difference.op is not Ops.SUB:
        return None
    number, largest = difference.src
    parts = [n for n in largest.toposort(stop=lambda n: n.op not in _PASSED_ON) if n.op not in _PASSED_ON]
    are_largest = all(n.op is Ops.REDUCE and n.arg is Ops.MAX for n in parts)
    is_of_row = set(number.nodes_of(Ops.PARAM)).issubset(largest.nodes_of(Ops.PARAM))
    return largest if are_largest and is_of_row else None
