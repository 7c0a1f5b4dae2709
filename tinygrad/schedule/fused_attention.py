"""Fused attention (FlashAttention, Dao et al., 2022) on a device of blocks: which reduces are one kernel.

A contraction that is tiled for blocks of threads wants its kernel for itself. But where one of its operands
is a softmax of another contraction's result, and a matrix unit can do both with the softmax in between
(`codegen/opt/choose_attention.py`), all of it is one kernel, and nothing of the size of the scores is stored.
That is asked by lowering the piece of the graph by itself, and choosing a plan for it. Where others want the
weights too, as gradients do, they are rematerialised for those, later: on a matrix unit that takes less time
than reading what would have been stored, and between forward and backward no memory.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose_gpu import runs_as_fused_attention
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, NOOPT
from tinygrad.schedule.products import is_contraction
from tinygrad.schedule.split import COMPUTED_IN_PLACE, runs_blocks, weighs_by_softmax


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """A contraction whose weights are computed in its own kernel: the REDUCEs of that, itself among them, and
    what is made of them."""

    root: UOp
    reduces: frozenset[UOp]
    between: frozenset[UOp]


def fused_attentions(order: Sequence[UOp], forced: set[UOp],
                     closed: frozenset[UOp]) -> dict[UOp, FusedAttention]:
    """For each node of fused attention, down to what is stored, the whole. `order` is the whole graph,
    sources first; `forced` is stored in any case, `closed` needs no loop."""
    roots = [n for n in order if n.op is Ops.REDUCE and n not in closed and n.arg[0] is Ops.ADD
             and _has_units(n.device) and is_contraction(n) and weighs_by_softmax(n, forced)]
    if not roots or NOOPT:
        return {}
    found: dict[UOp, FusedAttention] = {}
    number = {node: i for i, node in enumerate(order)}
    for root in roots:
        subgraph = _Subgraph(root, forced, closed)
        inside = subgraph.between(number)
        if _is_one_kernel(subgraph.alone(), root.device, bool(ALLOW_TF32)):
            attention = FusedAttention(root, frozenset(n for n in inside if n.op is Ops.REDUCE),
                                       frozenset(inside))
            found |= {n: attention for n in subgraph.nodes
                      if n not in subgraph.ends and (n in inside or n not in found)}
    return found


def _has_units(device: object) -> bool:
    return (device is None or isinstance(device, str)) and runs_blocks(device) and \
        bool(Device[device or Device.DEFAULT].renderer.machine.matrix_units)


class _Subgraph:
    """A contraction down to memory, and to the sums that its factors and those of its weights are made of."""

    def __init__(self, root: UOp, forced: set[UOp], closed: frozenset[UOp]) -> None:
        self.root = root
        self.closed = closed
        self.nodes: dict[UOp, bool] = {}
        """whether a node is part of a factor of the first product: a sum there has a kernel of its own"""
        self.ends: dict[UOp, UOp] = {}
        """what is stored, and a buffer in its place"""
        pending = [(root, False)]
        while pending:
            node, is_factor = pending.pop()
            if node in self.ends or (node in self.nodes and self.nodes[node] >= is_factor):
                continue
            self.nodes[node] = is_factor
            is_sum = node.op is Ops.REDUCE and node not in closed
            if node is not root and (node in forced or (is_sum and is_factor)
                                     or (node.op not in COMPUTED_IN_PLACE and node.op is not Ops.REDUCE)):
                self.ends[node] = _parameter(node, len(self.ends) + 1)
                continue
            is_product = is_sum and node is not root and is_contraction(node)
            pending.extend((source, is_factor or is_product) for source in node.src)

    def between(self, number: Mapping[UOp, int]) -> set[UOp]:
        """The sums of the piece, and what is made of them."""
        made: set[UOp] = set()
        for node in sorted(self.nodes, key=number.__getitem__):
            own = node.op is Ops.REDUCE and node not in self.closed
            if node not in self.ends and not self.nodes[node] and (own or not made.isdisjoint(node.src)):
                made.add(node)
        return made

    def alone(self) -> UOp:
        """A kernel that stores the contraction."""
        value = self.root.substitute(self.ends)
        return UOp.sink([UOp.new(Ops.ASSIGN, value.dtype, (_parameter(value, 0), value))])


def _parameter(node: UOp, slot: int) -> UOp:
    return UOp.new(Ops.PARAM, node.dtype, (), (slot, node.numel)).reshape(node.shape)


@lru_cache(maxsize=4096)
def _is_one_kernel(ast: UOp, device: str | None, may_round_to_tf32: bool) -> bool:
    return runs_as_fused_attention(lower(ast), Device[device or Device.DEFAULT].renderer.machine)
