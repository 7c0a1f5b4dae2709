"""What computing a value again costs against keeping it: the one decision behind fusion.

Units are vector operations per item. Storing an item and reading it back costs as much as `STORE_COST` of them: an
item of 4 bytes through a 42 GB/s memory takes 0.19 ns, half of that from cache, and a vector operation of a core
at 3.7 GHz with 16 lanes 0.017 ns.
"""
from __future__ import annotations

from functools import lru_cache

from tinygrad.codegen.lower import lower
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

STORE_COST = 12.0
SPLIT_COST = 100.0
"""Storing a value that only one kernel uses would cut that kernel in two, and everything it shares with it."""
FREE_WORK = 1.0
"""A value of at most this much work is always computed again: reading it would cost as much."""

_WORK = {Ops.EXP2: 10.0, Ops.LOG2: 14.0, Ops.SIN: 30.0, Ops.RECIP: 2.0, Ops.SQRT: 4.0, Ops.IDIV: 8.0, Ops.MOD: 8.0}


def closed_form_reduces(root: UOp) -> frozenset[UOp]:
    """The REDUCEs under `root` that lowering turns into arithmetic or a load by index: they cost no loop."""
    reads = reads_memory(root)
    found: set[UOp] = set()
    counters: set[UOp] = set()
    """nodes that change with what a closed form made of constants counts (arange), through elementwise ops"""
    for node in root.toposort():
        through = node.op in Family.ELEMENTWISE | Family.MOVEMENT
        if through and not counters.isdisjoint(node.src):
            counters.add(node)
        if node.op is not Ops.REDUCE or (reads[node] and node.src[0] not in counters):
            continue
        if _lowers_without_loop(_over_params(node, found)):
            found.add(node)
            if not reads[node]:
                counters.add(node)
    return frozenset(found)


def _over_params(node: UOp, closed: set[UOp]) -> UOp:
    """A REDUCE with a PARAM in place of whatever below it is neither elementwise, movement nor a closed form."""
    walked = Family.ELEMENTWISE | Family.MOVEMENT | {Ops.CONST, Ops.VARIABLE}
    changes: dict[UOp, UOp] = {}
    for n in node.src[0].toposort(stop=lambda n: n.op not in walked and n not in closed):
        if n.op not in walked and n not in closed:
            changes[n] = UOp.new(Ops.PARAM, n.dtype, (), (len(changes) + 1, n.numel)).reshape(n.shape)
    return node.replace(src=(node.src[0].substitute(changes),))


@lru_cache(maxsize=4096)
def _lowers_without_loop(reduce: UOp) -> bool:
    target = UOp.new(Ops.PARAM, reduce.dtype, (), (0, reduce.numel)).reshape(reduce.shape)
    nest = lower(UOp.sink([UOp.new(Ops.ASSIGN, reduce.dtype, (target, reduce))]))
    return not any(n.op is Ops.REDUCE for n in nest.toposort())


def work_of(root: UOp, closed: frozenset[UOp] = frozenset(), stop: frozenset[Ops] = frozenset({Ops.BUFFER, Ops.COPY})) -> dict[UOp, float]:
    """For each node under `root`, the operations that one item of it costs from memory up.

    A shared source is counted once for each use, up to a bound: what matters is whether the sum is small.
    The reduces in `closed` run no loop.
    """
    work: dict[UOp, float] = {}
    for node in root.toposort(stop=lambda n: n.op in stop):
        below = sum(work.get(s, 0.0) for s in node.src)
        if node.op in (Ops.CONTIGUOUS, Ops.ASSIGN, Ops.COPY):
            work[node] = 0.0
        elif node.op is Ops.REDUCE:
            count = 1 if node in closed else prod(node.src[0].shape[a] for a in node.arg[1])
            work[node] = min(1e12, count * (below + 1.0))
        elif node.op in Family.ELEMENTWISE:
            work[node] = min(1e12, below + _WORK.get(node.op, 1.0))
        else:
            # Items shared by an EXPAND are computed once for all who read them, outside the loop over those.
            spread = node.numel > below_items(node) > 0
            work[node] = below * below_items(node) / node.numel if spread else below
    return work


def below_items(node: UOp) -> int:
    """Items of a movement node's source."""
    return node.src[0].numel if node.src else 0


def reads_memory(root: UOp) -> dict[UOp, bool]:
    """For each node under `root`, whether it depends on memory; what does not is made of constants alone."""
    reads: dict[UOp, bool] = {}
    for node in root.toposort():
        reads[node] = node.op in (Ops.BUFFER, Ops.COPY) or any(reads[s] for s in node.src)
    return reads


def better_stored(node: UOp, evaluations: float, work: float, kernels: int) -> bool:
    """True if `node`, which so many kernels would evaluate so many times in all, should be computed once and kept."""
    if work <= FREE_WORK or node.numel == 0:
        return False
    return (evaluations / node.numel - 1.0) * work > (STORE_COST if kernels > 1 else SPLIT_COST)
