"""Long sums as sums of subtotals, whose rounding errors stay those of a short one.

What one accumulator adds up is off by about the root of the number of its terms, in units of the last place:
of 4,096 products 1.1e-6, relative to the norm of the results, in subtotals of 512 products 4.1e-7. In: a
nest. Out: the next sum to split, for `choose.py`; `loops.py` splits it.
"""
from __future__ import annotations

from tinygrad.codegen.ranges import closers, is_plain
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv

SUBTOTAL = 512
"""Terms of a subtotal: a tile of 24 vectors adds its own to the totals, which are in memory, in the time of
10 products (1024 x 1024 x 1024 on two cores of an Intel server with AVX-512: 1.02 of the time, of 256 terms
1.05)."""
SHORTEST, LONGEST = 1 / 3, 3 / 2
"""Over that, how short and how long subtotals may be for the sake of equal lengths."""
WHOLE = 2
"""And how long a sum may be that stays whole."""


def long_sum(nest: UOp) -> tuple[UOp, int] | None:
    """A loop of a sum of floats of which one accumulator adds up several subtotals, and how many iterations
    of it, with the loops inside, are a subtotal; None where there is none."""
    for reduce in nest.nodes_of(Ops.REDUCE):
        if reduce.arg is Ops.ADD and reduce.dtype.is_float:
            found = _cut(reduce)
            if found is not None and all(n.op is Ops.REDUCE for n in closers(nest, found[0])):
                return found
    return None


def _cut(reduce: UOp) -> tuple[UOp, int] | None:
    """Which of a sum's loops to split, and into what: the innermost that makes it long, so that subtotals are
    nearly of that length and, where possible, of equal length."""
    terms = 1
    for loop in reversed(reduce.closed_ranges):
        length = terms * loop.extent / SUBTOTAL
        if length > WHOLE:
            if not is_plain(loop):
                return None
            shortest, longest = (int(share * SUBTOTAL / terms) for share in (SHORTEST, LONGEST))
            even = [n for n in range(max(1, shortest), min(longest + 1, loop.extent)) if loop.extent % n == 0]
            amount = max(even) if even else ceildiv(loop.extent, round(length))
            return None if amount == 1 and loop is reduce.closed_ranges[-1] else (loop, amount)
        terms *= loop.extent
    return None
