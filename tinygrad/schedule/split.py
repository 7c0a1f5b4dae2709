"""Large reduces to few results, in two steps.

A sum of a million items to one number leaves nothing to share out: its only loop is the reduce itself.
Reducing pieces first, side by side, and then the pieces' results, uses every core.
"""
from __future__ import annotations

from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.renderer import Renderer
from tinygrad.schedule.products import is_contraction, operand_bytes, reread_bytes

FEW_RESULTS = 256
"""Results below which the loops over them are not enough to share out, lanes and registers taken off."""
MUCH_WORK = 1 << 19
"""Items below which one core is done sooner (50 us at 40 GB/s) than a second kernel is worth."""
CACHED_BYTES = 12 << 20
"""Operands of a contraction that the cache of blocks that run at once holds while they read them."""
STORED_COST = 512
"""Products for each partial result that is stored and read back, as long as about 130 of them (two
cores summed up 2.4 million in 1.2 ms): a quarter of the time is the most that pieces may cost."""
PIECES = 64
"""Pieces aimed at: enough for any number of cores here, few enough that the second step costs nothing."""
BLOCK_PIECES = 1024
"""The same where a piece is a block of threads: a GPU runs about as many at once."""


def runs_blocks(device: str | None) -> bool:
    """True for a device (None: the default one) whose kernels are grids of blocks of threads."""
    found = Device[device or Device.DEFAULT]
    return found.computes and found.renderer.has_blocks


def core_renderer(device: str | None) -> Renderer | None:
    """The renderer of a device whose cores run loops; None for one that runs blocks, or nothing."""
    found = Device[device or Device.DEFAULT]
    return found.renderer if found.computes and not found.renderer.has_blocks else None


def split_reduce(node: UOp) -> UOp | None:
    """A REDUCE as a reduce of pieces and a reduce of their results, where that is worth it; else None."""
    source = node.src[0]
    if is_contraction(node):
        return _split_contraction(node)
    if node.numel >= FEW_RESULTS or source.numel < MUCH_WORK:
        return None
    op, axes = node.arg
    aim = BLOCK_PIECES if runs_blocks(node.device) else PIECES
    choices = [(abs(d - aim), -source.shape[a], a, d) for a in axes for d in range(8, 4 * aim + 1)
               if source.shape[a] % d == 0]
    if not choices:
        return _split_padded(node) if op is Ops.ADD else None
    _, _, axis, pieces = min(choices)
    return _split_axis(node, source, axis, pieces)


def _split_contraction(node: UOp) -> UOp | None:
    """A contraction whose operands the cache cannot hold, along one of its axes.

    Where its results are each a sum over all images of a batch (the gradient of a weight), every tile of them
    walks through all images again: in pieces that fit, they come from half of the L2 cache. More pieces than
    its products are worth are not stored.
    """
    source, axes = node.src[0], node.arg[1]
    renderer = core_renderer(node.device)
    if renderer is None:
        read = operand_bytes(node)
        pieces = ceildiv(read, CACHED_BYTES)
        if 8 * node.numel * node.dtype.itemsize * pieces > read:
            return None
    else:
        worth = prod(source.shape[a] for a in axes) // STORED_COST
        pieces = min(ceildiv(reread_bytes(node), renderer.l2_bytes // 2), worth)
    if pieces < 2:
        return None
    threads = renderer.threads if renderer is not None else 1
    ways = [(_unfit(d, pieces, threads), a, d) for a in axes for d in range(2, 2 * pieces)
            if source.shape[a] % d == 0]
    if not ways:
        return None
    _, axis, count = min(ways)
    return _split_axis(node, source, axis, count)


def _unfit(count: int, wanted: int, threads: int) -> float:
    """How far so many pieces are from those wanted, or from what threads share out evenly."""
    idle = ceildiv(count, threads) * threads / count
    return max(count / wanted, wanted / count) * idle


def _split_axis(node: UOp, source: UOp, axis: int, pieces: int) -> UOp:
    """The reduce with `axis` cut into `pieces` runs of equal length."""
    op, axes = node.arg
    shape = source.shape
    cut = _reshaped(source, (*shape[:axis], pieces, shape[axis] // pieces, *shape[axis + 1:]))
    inner_axes = tuple(a + (a >= axis) for a in axes)
    partial = UOp.new(Ops.REDUCE, node.dtype, (cut,), (op, inner_axes))
    stored = UOp.new(Ops.CONTIGUOUS, node.dtype, (partial,))
    total = UOp.new(Ops.REDUCE, node.dtype, (stored,), (op, (axis,)))
    return total.reshape(node.shape)


def _reshaped(value: UOp, shape: tuple[int, ...]) -> UOp:
    """`value` in another shape; of a product, its operands: it stays a product to whoever looks for one."""
    if value.op in (Ops.CAST, Ops.MUL, Ops.WHERE):
        return value.replace(src=tuple(_reshaped(s, shape) for s in value.src))
    return value.reshape(shape)


def _split_padded(node: UOp) -> UOp | None:
    """A sum along an axis of awkward length: zeros complete the last piece."""
    axis = max(node.arg[1], key=lambda a: node.src[0].shape[a])
    length = node.src[0].shape[axis]
    if length < 4 * PIECES:
        return None
    missing = -length % PIECES
    pads = [(0, missing if a == axis else 0) for a in range(len(node.src[0].shape))]
    return _split_axis(node, node.src[0].pad(pads), axis, PIECES)
