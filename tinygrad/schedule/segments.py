"""Kernels too large to be one, cut into segments that are compiled in proportion.

A chain of ten thousand operations fuses into one kernel, as far as memory is concerned. What compiles it
takes more than twice as long for twice as many, and no part of it is a kernel that another part shares. So a
kernel of more than `MOST_OPERATIONS` is cut. In: the nodes that it computes. Out: for each the
number of its segment, a run of the graph's order. `fuse.py` then sweeps again: what another segment uses is
stored, and kernels store for others what is of their own segment only. Chains repeat, so segments do: most of
the kernels are equal, and compiled once.

Each segment ends where the fewest bytes are to be stored, in the second half of what it may hold: behind the
sum of a product, not before it.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.cost import OPERATIONS, reads_memory

MOST_OPERATIONS = 1024
"""Of a kernel, weighed as `cost.Work` does. Kernels of people's programs have up to 550 (derivatives of
functions that are approximated piece by piece). Chains of sines on two cores of a busy machine: 310 took 0.08
s to compile, 15,500 3.5 s, 124,000 56 s; a value stored and read back costs as much as 64."""
SEGMENT_OPERATIONS = MOST_OPERATIONS // 2
ACCESS_OPERATIONS = 4
"""Of reading an item from memory or storing it, its address included."""


def segments_of(computed: Sequence[UOp], first: int) -> dict[UOp, int]:
    """The segment of each node in `computed` (a kernel's, sources first), numbered from `first`; empty where
    there would be one."""
    place = {node: i for i, node in enumerate(dict.fromkeys(computed))}
    nodes = list(place)
    last_use = list(range(len(nodes)))
    sources = [[place.get(s.base, -1) for s in node.src if reads_memory.of(s)] for node in nodes]
    """for each node where its sources are, -1 for what is in memory"""
    for i, below in enumerate(sources):
        for j in below:
            if j >= 0:
                last_use[j] = i
    weights = [weight_of(node.op) for node in nodes]
    stored = _stored_bytes(nodes, last_use)
    segment_of: dict[UOp, int] = {}
    start = 0
    while start < len(nodes):
        end = _segment_end(start, weights, sources, last_use, stored)
        segment_of.update(dict.fromkeys(nodes[start:end], first))
        start, first = end, first + 1
    return segment_of if len(set(segment_of.values())) > 1 else {}


def weight_of(op: Ops) -> float:
    """What computing an item of it once weighs."""
    return 0.0 if op in Family.MOVEMENT else OPERATIONS.get(op, 1.0)


def _stored_bytes(nodes: Sequence[UOp], last_use: Sequence[int]) -> list[int]:
    """For each node, the bytes of it and of those before it that later ones use."""
    change = [0] * (len(nodes) + 1)
    for i, node in enumerate(nodes):
        if last_use[i] > i and node.op not in Family.MOVEMENT and reads_memory.of(node):
            size = node.numel * node.dtype.itemsize
            change[i] += size
            change[last_use[i]] -= size
    return list(accumulate(change))


def _segment_end(start: int, weights: Sequence[float], sources: Sequence[Sequence[int]],
                 last_use: Sequence[int], stored: Sequence[int]) -> int:
    """Where the segment that begins at `start` ends."""
    total = 0.0
    end = start
    for i in range(start, len(weights)):
        read = sum(j < start for j in sources[i])
        kept = last_use[i] - i > SEGMENT_OPERATIONS
        total += weights[i] + ACCESS_OPERATIONS * (read + kept)
        if total > SEGMENT_OPERATIONS and end > start:
            return end
        if 2 * total <= SEGMENT_OPERATIONS or end == start or stored[i] <= stored[end - 1]:
            end = i + 1
    return len(weights)
