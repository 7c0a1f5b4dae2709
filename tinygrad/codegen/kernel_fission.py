"""Kernel fission: what one launch of a grid stores is nothing that another thread of it still has to read,
and nothing that has other loops than its product of matrices.

A kernel of loops reads before it writes because its loops run in order. Threads of a grid do not: where every
item of a parameter is changed by a number that the kernel changes too (the step count of Adam), the thread
that stores the number must come after all others. Where a contraction has tiles of rows and columns, what
is stored for rows alone (the places at which they were gathered) has no part in them. In: a nest. Out: its
stores in groups, a launch each, in order.
"""
from __future__ import annotations

from collections.abc import Iterator

from tinygrad.codegen.contraction import contraction_of
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


def kernel_groups(nest: UOp) -> list[list[int]]:
    """The numbers of the stores of each launch; all in one where no order of launches helps."""
    count = len(nest.src)
    level = [0] * count
    dependencies = list(_dependencies(nest))
    for _ in range(count + 1):
        before = list(level)
        for reader, writer, same_thread in dependencies:
            if reader != writer:
                level[writer] = max(level[writer], level[reader] + (not same_thread))
        if level == before:
            steps = range(max(level, default=0) + 1)
            groups = ([i for i in range(count) if level[i] == step] for step in steps)
            return [part for group in groups for part in _tiles_apart(nest, group, dependencies)]
    return [list(range(count))]


def _tiles_apart(nest: UOp, group: list[int], dependencies: list[tuple[int, int, bool]]) -> list[list[int]]:
    """The stores of a contraction in a launch of their own, if others in the group have other loops, compute
    nothing of it and touch nothing that it stores."""
    if len(group) == 1:
        return [group]
    for number in group:
        store = nest.src[number]
        inside = next((n for n in store.src[1].toposort() if contraction_of(n) is not None), None)
        if inside is None:
            continue
        users = [i for i in group if inside in nest.src[i].toposort()]
        others = [i for i in group if i not in users]
        joined = any({a in users, b in users} == {True, False} for a, b, _ in dependencies
                     if a in group and b in group)
        alike = all(nest.src[i].closed_ranges == store.closed_ranges for i in others)
        if others and not joined and not alike:
            return [users, others]
    return [group]


def needs_order(nest: UOp) -> bool:
    """True if a thread may read what another one stores in the same launch."""
    return any(not same_thread for _, _, same_thread in _dependencies(nest))


def _dependencies(nest: UOp) -> Iterator[tuple[int, int, bool]]:
    """(a store, another one whose memory its value reads, whether the same thread does both)."""
    writers = {store.memory: number for number, store in enumerate(nest.src)}
    for reader, store in enumerate(nest.src):
        nodes = store.toposort()
        loads = [n for n in nodes if n.op is Ops.LOAD and n.memory in writers]
        reduced = {below for n in nodes if loads and n.op is Ops.REDUCE for below in n.toposort()}
        for load in loads:
            writer = writers[load.memory]
            target = nest.src[writer]
            same_place = load.offset is target.offset
            known = frozenset(store.closed_ranges) <= frozenset(target.closed_ranges)
            yield reader, writer, same_place and known and load not in reduced
