"""What split-K costs: how long a device of blocks takes for a REDUCE in so many splits, by what it reads.

A GPU is busy when enough of memory is on its way. Its threads have a load or two each in flight, so that
takes about a thousand blocks, or as many items side by side. Sums with fewer results walk at the pace of a
load's latency, whatever more could be read meanwhile; in splits there are more of them. Splits are stored,
read back and added up by a second kernel. All is counted in bytes that the device could have moved instead.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.indexing import range_extents
from tinygrad.codegen.opt.choose_tiles import LEAST_SIDE
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.renderer.machine import SECTOR_BYTES, WORD_BYTES, Machine
from tinygrad.schedule.products import Operands, is_contraction, product_of, view_of_stored

TILE_SIDE = 128
"""Rows and columns of a block's tile of a contraction, where it has as many."""
MANY_ROWS = 256
"""Rows whose blocks keep a device busy: their threads load many items of each at once."""
KERNEL_BYTES = 32 << 20
"""What a kernel more costs: its start and the end of the one before it, 7 us at 4.8 TB/s."""


@frozen
class SplitKCost:
    """A REDUCE as blocks of threads do it."""

    length: int
    """items of a sum"""
    step: int
    """bytes that all blocks read for the next item of each sum"""
    busy: int
    """bytes of a step that keep the device busy"""
    results: int
    result_bytes: int
    """of one"""
    blocks_at_once: int = 1024
    """that the device runs"""

    def cost(self, splits: int) -> int:
        """Bytes that the device could move while it adds up so many splits of each sum, and then those."""
        first = ceildiv(self.length, splits) * max(self.step * splits, self.busy)
        if splits == 1:
            return first
        stored = self.results * self.result_bytes
        last = splits * max(stored, self.blocks_at_once * (WORD_BYTES if self.results == 1 else SECTOR_BYTES))
        return first + KERNEL_BYTES + splits * stored + last


def split_k_cost(node: UOp, machine: Machine) -> SplitKCost | None:
    """What a REDUCE costs blocks of threads; None for many rows, and for those that a block has in
    registers all at once."""
    length, results = prod(range_extents(node)), node.numel
    found = _step_of_tiles(node, machine)
    if found is not None:
        return SplitKCost(length, *found, results, node.dtype.itemsize, machine.blocks_at_once)
    walked = _largest_view(node.src[0])
    along = _is_one_run(walked, node.arg[1])
    if along and (length <= machine.register_row or results >= MANY_ROWS):
        return None
    busy = machine.blocks_at_once * (WORD_BYTES if along else SECTOR_BYTES)
    return SplitKCost(length, results * walked.dtype.itemsize, busy, results, node.dtype.itemsize,
                      machine.blocks_at_once)


def _step_of_tiles(node: UOp, machine: Machine) -> tuple[int, int] | None:
    """(bytes that all tiles of a contraction read for each product of a sum, those that keep a device busy);
    None for what is no contraction, or too thin a one for tiles."""
    product = product_of(node)
    if product is None or not is_contraction(node):
        return None
    values = [view_of_stored(s) for s in product.src]
    operands = Operands.of(node, values)
    m, n = operands.sides
    if min(m, n) < LEAST_SIDE:
        return None
    itemsize = max(s.dtype.itemsize for s in values)
    tiles = operands.items(operands.batch) * ceildiv(m, TILE_SIDE) * ceildiv(n, TILE_SIDE)
    read = tiles * (min(m, TILE_SIDE) + min(n, TILE_SIDE))
    return read * itemsize, machine.multiprocessors * 2 * TILE_SIDE * itemsize


def _is_one_run(view: UOp, axes: Sequence[int]) -> bool:
    """Whether the items along these axes lie side by side: each row in one run."""
    length = 1
    for axis in sorted((a for a in axes if view.shape[a] > 1), reverse=True):
        if abs(view.st.views[-1].strides[axis]) != length:
            return False
        length *= view.shape[axis]
    return True


def _largest_view(value: UOp) -> UOp:
    """Of what a value is computed from item by item, the view that has the most items of its own."""
    nodes = value.toposort(stop=lambda n: n.op not in Family.ELEMENTWISE)
    views = [view_of_stored(n) for n in nodes if n.op not in Family.ELEMENTWISE and n.op is not Ops.CONST]

    def own_items(view: UOp) -> int:
        return int(prod(n for n, stride in zip(view.shape, view.st.views[-1].strides, strict=True) if stride))

    return max(views, key=own_items, default=value)
