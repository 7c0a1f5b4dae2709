"""The weights of a softmax that only sums see, as those that may be 0 sooner than their format needs.

In: a nest with nothing left to expand. Out: the nest with a mark (`WEIGHT`) on each power of a number less
the largest of its row, where nothing but sums is made of it: attention, the sum of a cross entropy. One
weight of each row is 1, so what is no normal number (2**-126 in float32) adds nothing to their sum, and to a
sum of products with values less than 2**-126 of those. Processors take a hundred cycles and more for each
such number that they make, and again for each that they multiply: a mask of -100 (Swin's) made attention of
64 windows of 49 pixels nine times as slow. Next on the path: `outline.py`.
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
    powers = [n for n in nest.toposort() if n.op is Ops.EXP2 and _is_of_difference_to_largest(n)]
    if not powers:
        return nest
    seen = nest.toposort(stop=lambda n: n.op is Ops.REDUCE and n.arg is Ops.ADD)
    hidden = {n for n in powers if n not in seen}

    def marked(node: UOp, src: tuple[UOp, ...]) -> UOp:
        made = node.with_sources(src)
        return made.replace(arg=WEIGHT) if node in hidden else made

    return nest.rebuild(marked) if hidden else nest


def _is_of_difference_to_largest(power: UOp) -> bool:
    exponent = power.src[0]
    natural = argument_of_exponential(exponent)
    difference = exponent if natural is None else natural
    return difference.op is Ops.SUB and _is_largest(difference.src[1])


def _is_largest(value: UOp) -> bool:
    """Whether a value is the largest of several, for all lanes or in parts."""
    if value.op is Ops.REDUCE:
        return value.arg is Ops.MAX
    return value.op in _PASSED_ON and all(map(_is_largest, value.src))
