"""How much work a kernel is: operations, and bytes that must move at least once.

In: a loop nest before its plan, so that the count is that of the computation. Out: an `Estimate`, which
`DEBUG=2`, profiles and the queues go by (what is short runs at once).
"""
from __future__ import annotations

from functools import cached_property

from tinygrad.codegen.prefix_sum import prefix_sums
from tinygrad.codegen.ranges import iterations, running_in
from tinygrad.codegen.segment_sum import segment_sums
from tinygrad.device.host import seconds_of
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import GlobalCounters

OPERATIONS = {Ops.MULACC: 2, Ops.THREEFRY: 56}
"""What an operation counts for, where that is not 1."""


@frozen
class Estimate:
    """Floating-point operations of a kernel, and the bytes of the memory it touches."""

    operations: int
    bytes: int

    @cached_property
    def seconds(self) -> float:
        """As `seconds_of` says."""
        return seconds_of(self.operations, self.bytes)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.operations + other.operations, self.bytes + other.bytes)

    def count(self, kernels: int) -> None:
        """Add a run of so many kernels to the counters."""
        GlobalCounters.kernel_count += kernels
        GlobalCounters.global_ops += self.operations
        GlobalCounters.global_mem += self.bytes


NO_WORK = Estimate(0, 0)


def is_computed(node: UOp) -> bool:
    """Whether this is arithmetic on values, not on places or conditions, nor a number that is an argument."""
    if node.op not in Family.ELEMENTWISE or node.dtype.scalar is dtypes.index or node.dtype.is_bool:
        return False
    while node.op in (Ops.CAST, Ops.BITCAST):
        (node,) = node.src
    return node.op is not Ops.VARIABLE


def estimate(nest: UOp, plain: bool = False) -> Estimate:
    """The work of a loop nest, each value counted once for every iteration of the loops it changes with.

    A segment sum and a prefix sum count every item once, though `plain` loops compare each with every output.
    """
    operations = 0
    found = () if plain else segment_sums(nest)
    scatter_loop = {node: b.loop for b in found for node in (b.reduce, *b.added())}
    carried = frozenset[UOp]() if plain else frozenset(p.reduce.src[1] for p in prefix_sums(nest))
    touched: dict[UOp, int] = {}
    for node in nest.toposort():
        loops = running_in(node)
        if node.op is Ops.REDUCE or is_computed(node):
            counted = loops - carried - {scatter_loop.get(node)}
            operations += iterations(counted) * OPERATIONS.get(node.op, 1)
        elif node.op in (Ops.LOAD, Ops.STORE) and node.memory.op is Ops.PARAM:
            memory = node.memory
            items = min(memory.arg[1], iterations(loops))
            touched[memory] = max(touched.get(memory, 0), items * memory.dtype.itemsize)
    return Estimate(operations, sum(touched.values()))
