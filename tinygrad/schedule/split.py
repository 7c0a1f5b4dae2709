"""Split-K: large reduces to few results, in two steps.

A sum of a million items to one number leaves nothing to share out: its only loop is the reduce itself.
Reducing splits first, side by side, and then the splits' results, uses every core. In: a REDUCE of the graph
to schedule. Out: two that give the same (floats are added up in another order), or None where that would not
be sooner (`split_k.py` counts it for blocks of threads). `simplify.py` asks.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from tinygrad.codegen.indexing import range_extents
from tinygrad.codegen.opt.subtotals import LONGEST, SUBTOTAL, WHOLE
from tinygrad.codegen.predicate import reduce_identity
from tinygrad.device import Device
from tinygrad.graph.joining import padded_with
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.renderer.machine import Machine
from tinygrad.schedule.cost import has_closed_form
from tinygrad.schedule.products import is_contraction, panel_bytes, reread_bytes
from tinygrad.schedule.split_k import KERNEL_BYTES, split_k_cost

FEW_RESULTS = 256
"""Results below which the loops over them are not enough to share out, lanes and registers taken off."""
MUCH_WORK = 1 << 19
"""Items below which one core is done sooner (50 us at 40 GB/s) than a second kernel is worth."""
STORED_COST = 512
"""Products for each partial result that is stored and read back, as long as about 130 of them (two
cores summed up 2.4 million in 1.2 ms): a quarter of the time is the most that splits may cost."""
LONG_SUM = 4096
"""Products from which on sums are split for the sake of their panels: not measured where caches are so small
that shorter sums fill them."""
SPLITS = 64
"""Splits aimed at: enough for any number of cores here, few enough that the second step costs nothing."""
MAX_SPLITS = 4096
"""Of a device of blocks; a few times as many as it runs at once."""
LONG_RUN = 256
"""Items that a split has side by side: shorter ones, of many rows, come from memory at a third of the rate
(2663 x 2604 in splits of 42 columns 0.85 ms, in rows 0.31; Zen 4). Lengths between were not measured."""
POWERS = tuple(1 << i for i in range(1, MAX_SPLITS.bit_length()))
MIN_SPLIT_LENGTH = 4
"""Items of a split for which the last one may be completed."""
PADDED_COST = 1.25
"""Of splits that zeros complete: their conditions, and what is added up in vain."""
COMPUTED_IN_PLACE = Family.ELEMENTWISE | Family.MOVEMENT | {Ops.CONST, Ops.VARIABLE, Ops.LIVE_OUT}
"""What is made where it is used, as far as fused attention looks for what a sum is made of."""


def runs_blocks(device: str | None) -> bool:
    """True for a device (None: the default one) whose kernels are grids of blocks of threads."""
    found = Device[device or Device.DEFAULT]
    return found.computes and found.renderer.machine.has_blocks


def machine_of(device: str | None) -> Machine:
    """What a device that computes (None: the default one) offers."""
    return Device[device or Device.DEFAULT].renderer.machine


def core_machine(device: str | None) -> Machine | None:
    """The machine of a device whose cores run loops; None for one that runs blocks, or nothing."""
    found = Device[device or Device.DEFAULT]
    return found.renderer.machine if found.computes and not found.renderer.machine.has_blocks else None


def split_reduce(node: UOp) -> UOp | None:
    """A REDUCE as a reduce of splits and a reduce of their results, where that is worth it; else None. One
    that reads a single item (x[rows, columns]) is not."""
    split = _split_for_blocks(node) if runs_blocks(node.device) else _split_for_cores(node)
    return None if split is None or has_closed_form.of(node) else split


def _split_for_cores(node: UOp) -> UOp | None:
    """A REDUCE in splits that cores share out."""
    source = node.src[0]
    if is_contraction(node):
        return _split_contraction(node)
    if node.numel >= FEW_RESULTS or source.numel < MUCH_WORK:
        return None
    shape, axes = source.shape, node.arg[1]
    inner = {a: prod(shape[a + 1:]) for a in axes}
    divided = [(shape[a] // d * inner[a] < LONG_RUN, abs(d - SPLITS), a, d)
               for a in axes for d in range(8, 4 * SPLITS + 1) if shape[a] % d == 0]
    rows = [(inner[a] < LONG_RUN, shape[a], a, shape[a]) for a in axes if SPLITS <= shape[a] <= MAX_SPLITS]
    for choices in divided, rows:
        is_short, _, axis, splits = min(choices, default=(True, 0, 0, 0))
        if not is_short:
            return _split_axis(node, source, axis, splits)
    longest = max(axes, key=lambda a: shape[a])
    if shape[longest] >= MIN_SPLIT_LENGTH * SPLITS:
        return _split_padded(node, longest, ceildiv(shape[longest], ceildiv(shape[longest], SPLITS)))
    return _split_axis(node, source, *min(divided)[2:]) if divided else None


def _split_for_blocks(node: UOp) -> UOp | None:
    """A REDUCE in the splits that cost blocks of threads least (`split_k.py`), if these are several.

    Sums weighted by a softmax are left whole: one kernel may do all of it (`fused_attention.py`).
    """
    source, (op, axes) = node.src[0], node.arg
    if is_symbolic(source.shape) or node.numel == 0:
        return None
    work = split_k_cost(node, machine_of(node.device))
    if work is None or work.cost(1) <= KERNEL_BYTES or (is_contraction(node) and weighs_by_softmax(node)):
        return None
    choices = [(float(work.cost(d)), a, d) for a in axes for d in _divisors(source.shape[a])
               if d <= MAX_SPLITS]
    longest = max(axes, key=lambda a: source.shape[a])
    if op is Ops.ADD:
        most = source.shape[longest] // MIN_SPLIT_LENGTH
        choices += [(PADDED_COST * work.cost(d), longest, d) for d in POWERS if d <= most]
    _, axis, splits = min(choices)
    return _split_padded(node, axis, splits) if splits > 1 else None


@lru_cache(1024)
def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return [*small, *(number // d for d in reversed(small))]


def weighs_by_softmax(root: UOp) -> bool:
    """Whether what a sum adds up is made, short of what is stored, of powers of e with the largest of
    something in the exponent. (max_pool2d's gradient has the largest of something too, and is split.)"""

    def cone(node: UOp) -> Iterable[UOp]:
        return node.toposort(stop=lambda n: n.op not in COMPUTED_IN_PLACE)

    return any(n.op is Ops.REDUCE and n.arg[0] is Ops.MAX
               for power in cone(root.src[0]) if power.op is Ops.EXP2 for n in cone(power))


def _split_contraction(node: UOp) -> UOp | None:
    """A contraction whose operands the cache of a core cannot hold, along one of its axes.

    Where its results are each a sum over all images of a batch (the gradient of a weight), every tile of them
    walks through all images again: in splits that fit, they come from half of the L2 cache. More splits than
    its products are worth are not stored. A product of matrices whose panels fill half of that cache, and so
    leave nothing of it to the rows that pass, has panels of a quarter.
    """
    source, axes = node.src[0], node.arg[1]
    machine = core_machine(node.device)
    if machine is None:
        return None
    products = prod(range_extents(node))
    splits = min(ceildiv(reread_bytes(node), machine.l2_bytes // 2), products // STORED_COST)
    if splits < 2:
        panel = panel_bytes(node) if products > LONG_SUM and not weighs_by_softmax(node) else 0
        return _split_for_panels(node, ceildiv(panel, machine.l2_bytes // 4)) \
            if panel > machine.l2_bytes // 2 else None
    choices = [(_is_rounded_far(products // d), _mismatch(d, splits, machine.threads), a, d) for a in axes
               for d in range(2, 2 * splits) if source.shape[a] % d == 0]
    if not choices:
        return None
    *_, axis, count = min(choices)
    return _split_axis(node, source, axis, count)


def _is_rounded_far(length: int) -> bool:
    """Whether a sum stays whole that is longer than subtotals are (`codegen/opt/subtotals.py`): as part of a
    longer one it has no reason to."""
    return LONGEST * SUBTOTAL < length <= WHOLE * SUBTOTAL


def _split_for_panels(node: UOp, splits: int) -> UOp:
    """A product of matrices in so many splits, and what is left of its sum (two cores of an Intel server with
    2 MB of L2 cache each: 2048 x 8000 x 512 77 ms, 54 so; 512 x 8000 x 256 9.2 and 6.7)."""
    source, (axis,) = node.src[0], node.arg[1]
    shape = source.shape
    length = shape[axis] // splits
    if _is_rounded_far(length):
        longest = int(LONGEST * SUBTOTAL)
        length = max((n for n in _divisors(shape[axis]) if SUBTOTAL / 2 < n <= longest), default=longest)
        splits = shape[axis] // length
    whole = length * splits

    def part(start: int, end: int) -> UOp:
        return _moved(source, lambda s: s.shrink_axis(axis, (start, end)))

    total = _split_axis(node, part(0, whole), axis, splits, to=0)
    return total if whole == shape[axis] else total + node.replace(src=(part(whole, shape[axis]),))


def _mismatch(count: int, best: int, threads: int) -> float:
    """How far so many splits are from those wanted, or from what threads share out evenly."""
    idle = ceildiv(count, threads) * threads / count
    return max(count / best, best / count) * idle


def _split_axis(node: UOp, source: UOp, axis: int, splits: int, to: int | None = None) -> UOp:
    """The reduce with `axis` cut into `splits` runs of equal length, stored along it, or along an axis `to`
    before it."""
    op, axes = node.arg
    shape, to = source.shape, axis if to is None else to
    runs = (*shape[:axis], splits, shape[axis] // splits, *shape[axis + 1:])
    order = (*range(to), axis, *range(to, axis), *range(axis + 1, len(runs)))
    cut = _moved(source, lambda s: s.reshape(runs).permute(order))
    stored = node.replace(src=(cut,), arg=(op, tuple(a + (a >= to) for a in axes))).contiguous()
    return node.replace(src=(stored,), arg=(op, (to,))).reshape(node.shape)


def _moved(value: UOp, move: Callable[[UOp], UOp]) -> UOp:
    """`value` after a movement; of a product, its operands: it stays one to whoever looks for one."""
    if value.op in (Ops.CAST, Ops.MUL, Ops.WHERE):
        return value.replace(src=tuple(_moved(s, move) for s in value.src))
    return move(value)


def _split_padded(node: UOp, axis: int, splits: int) -> UOp:
    """The reduce with `axis`, of any length, cut into `splits`: what changes nothing completes the last
    one."""
    source, op = node.src[0], node.arg[0]
    missing = -source.shape[axis] % splits
    if missing:
        pads = [(0, missing if a == axis else 0) for a in range(len(source.shape))]
        if op is not Ops.ADD:
            source = padded_with(source, pads, reduce_identity(op, source.dtype).arg)
        else:
            source = _moved(source, lambda s: s.pad(pads)) if is_contraction(node) else source.pad(pads)
    return _split_axis(node, source, axis, splits)
