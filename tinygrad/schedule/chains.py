"""Attention that a device of blocks does in one kernel: which reduces belong together.

A contraction that is tiled for blocks of threads wants its kernel for itself. But where one of its sides is a
softmax of another contraction's result, and a matrix unit can do both with the softmax in between
(`codegen/opt/choose_chain.py`), all of it is one kernel, and nothing of the size of the scores is stored. That
is asked by lowering the piece of the graph by itself, and choosing a plan for it.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose_gpu import runs_as_chain
from tinygrad.device import Device
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, NOOPT
from tinygrad.schedule.products import is_contraction, product_of
from tinygrad.schedule.split import runs_blocks

_THROUGH = Family.ELEMENTWISE | Family.MOVEMENT | {Ops.CONST, Ops.VARIABLE, Ops.LIMIT}


@dataclass(frozen=True)
class ChainedSum:
    """A contraction whose weights are computed in its own kernel: the REDUCEs of that, itself among them."""

    root: UOp
    reduces: frozenset[UOp]


def chained_sums(order: Sequence[UOp], forced: set[UOp], has_statistics: Mapping[UOp, bool],
                 closed: frozenset[UOp]) -> dict[UOp, ChainedSum]:
    """For each node between a chain's products, and these, the chain. `order` is the whole graph, sources
    first; `forced` is stored in any case, `closed` needs no loop."""
    found: dict[UOp, ChainedSum] = {}
    users: dict[UOp, list[UOp]] = {}
    for node in order:
        product = product_of(node) if node.op is Ops.REDUCE and node not in closed else None
        if product is None or NOOPT or not any(has_statistics[_shown(s)] for s in product.src) or \
                not is_contraction(node) or not _has_units(node.device):
            continue
        if not users:
            for user in order:
                for source in user.src:
                    users.setdefault(source, []).append(user)
        piece = _Piece(node, forced, closed)
        inside = piece.between
        if any(user not in inside for n in inside if n is not node for user in users[n]):
            continue  # someone else wants what is in between
        if _is_one_kernel(piece.alone(), node.device, bool(ALLOW_TF32)):
            chain = ChainedSum(node, frozenset(n for n in inside if n.op is Ops.REDUCE))
            found.update(dict.fromkeys(inside, chain))
    return found


def _shown(value: UOp) -> UOp:
    """What movement shows and repeats."""
    while value.op in Family.MOVEMENT or value.op is Ops.CAST:
        value = value.src[0]
    return value


def _has_units(device: object) -> bool:
    return (device is None or isinstance(device, str)) and runs_blocks(device) and \
        bool(Device[device or Device.DEFAULT].renderer.matrix_units)


class _Piece:
    """A contraction down to memory, and to the sums that its factors and those of its weights are made of."""

    def __init__(self, root: UOp, forced: set[UOp], closed: frozenset[UOp]) -> None:
        self.root = root
        self.closed = closed
        self.ends: dict[UOp, UOp] = {}
        """what is stored, and a buffer in its place"""
        operands: set[UOp] = set()
        """what is below a factor of a product: a sum there has a kernel of its own"""
        order = list(root.toposort())
        below: set[UOp] = {root}
        for node in reversed(order):
            if node not in below:
                continue
            is_sum = node.op is Ops.REDUCE and node not in closed
            if node is not root and ((node.op not in _THROUGH and node.op is not Ops.REDUCE) or node in forced
                                     or (is_sum and node in operands)):
                self.ends[node] = _parameter(node, len(self.ends) + 1)
                continue
            below.update(node.src)
            if node in operands or (node is not root and is_sum and product_of(node) is not None):
                operands.update(node.src)
        reduced: set[UOp] = set()
        for node in order:
            own = node.op is Ops.REDUCE and node not in closed
            if node in below and node not in self.ends and node not in operands and \
                    (own or not reduced.isdisjoint(node.src)):
                reduced.add(node)
        self.between = reduced
        """the sums of the piece, and what is made of them"""

    def alone(self) -> UOp:
        """A kernel that stores the contraction."""
        value = self.root.substitute(self.ends)
        return UOp.sink([UOp.new(Ops.ASSIGN, value.dtype, (_parameter(value, 0), value))])


def _parameter(node: UOp, slot: int) -> UOp:
    return UOp.new(Ops.PARAM, node.dtype, (), (slot, node.numel)).reshape(node.shape)


@lru_cache(maxsize=4096)
def _is_one_kernel(ast: UOp, device: str | None, may_round_to_tf32: bool) -> bool:
    return runs_as_chain(lower(ast), Device[device or Device.DEFAULT].renderer)
