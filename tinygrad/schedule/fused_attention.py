"""Fused attention (FlashAttention, Dao et al., 2022) on a device of blocks: which reduces are one kernel.

A contraction that is tiled for blocks of threads wants its kernel for itself. But where one of its operands
is a softmax of another contraction's result, and a matrix unit can do both with the softmax in between
(`codegen/opt/choose_attention.py`), all of it is one kernel, and nothing of the size of the scores is stored.
That is asked by lowering the piece of the graph by itself, and choosing a plan for it. Where others want the
weights too, as gradients do, they are rematerialised for those, later: on a matrix unit that takes less time
than reading what would have been stored, and between forward and backward no memory.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinygrad.codegen.lower import lower, parameter
from tinygrad.codegen.opt.choose_gpu import runs_as_fused_attention
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, NOOPT
from tinygrad.schedule.cost import runs_loop
from tinygrad.schedule.products import is_contraction
from tinygrad.schedule.split import COMPUTED_IN_PLACE, machine_of, runs_blocks, weighs_by_softmax


@dataclass(frozen=True, slots=True)
class AttentionRole:
    """A node's part in fused attention."""

    root: UOp
    """its result: a contraction whose weights are computed in its own kernel"""
    is_root: bool
    is_between: bool
    """it is one of the other REDUCEs, or made of them"""


def fused_attentions(order: Sequence[UOp]) -> dict[UOp, AttentionRole]:
    """For each node of fused attention, down to what is stored, its role. `order` is the whole graph, sources
    first."""
    found: dict[UOp, AttentionRole] = {}
    for root in order if not NOOPT else ():
        if runs_loop(root) and _has_units(root.device) and is_contraction(root) and weighs_by_softmax(root):
            ends = _ends(root)
            if _is_one_kernel(_alone(root, ends), root.device, bool(ALLOW_TF32)):
                found |= _roles(root, ends, found)
    return found


def _has_units(device: str | None) -> bool:
    return runs_blocks(device) and bool(machine_of(device).matrix_units)


def _ends(root: UOp) -> dict[UOp, UOp]:
    """What is stored of all that a contraction is made of, each with a buffer in its place: memory, and the
    sums that its factors and those of its weights are made of, which have kernels of their own."""
    ends: dict[UOp, UOp] = {}
    seen: dict[UOp, bool] = {}
    """whether a node is part of a factor of the first product"""
    pending = [(root, False)]
    while pending:
        node, is_factor = pending.pop()
        if node in ends or seen.get(node, -1) >= is_factor:
            continue
        seen[node] = is_factor
        is_sum = runs_loop(node)
        if node is not root and ((is_sum and is_factor) or node.op not in COMPUTED_IN_PLACE | {Ops.REDUCE}):
            ends[node] = parameter(node, len(ends) + 1)
        else:
            is_product = is_sum and node is not root and is_contraction(node)
            pending.extend((source, is_factor or is_product) for source in node.src)
    return ends


def _roles(root: UOp, ends: Collection[UOp], others: Collection[UOp]) -> dict[UOp, AttentionRole]:
    """The roles of the nodes down to these ends, but of `others` those only that are between."""
    roles: dict[UOp, AttentionRole] = {}
    between: set[UOp] = set()
    for node in root.toposort(stop=ends.__contains__):
        if node in ends:
            continue
        if runs_loop(node) or not between.isdisjoint(node.src):
            between.add(node)
        if node in between or node not in others:
            roles[node] = AttentionRole(root, node is root, node in between and node is not root)
    return roles


def _alone(root: UOp, ends: Mapping[UOp, UOp]) -> UOp:
    """A kernel that stores the contraction."""
    value = root.substitute(ends)
    return UOp.sink([UOp.new(Ops.ASSIGN, value.dtype, (parameter(value, 0), value))])


@lru_cache(maxsize=4096)
def _is_one_kernel(ast: UOp, device: str | None, may_round_to_tf32: bool) -> bool:
    return runs_as_fused_attention(lower(ast), machine_of(device))
