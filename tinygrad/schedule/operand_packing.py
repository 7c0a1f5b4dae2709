"""Operand packing (Goto and van de Geijn, 2008): operands of contractions stored along what a sum runs over.

A tile of results takes its lanes from one operand and single items, row by row, from the other. Where the sum
walks across the rows of both in memory (`a.T @ b`, the gradient of a weight), each of those items is alone in
its cache line, and in its page if the rows are long: a matmul of 1024 then takes 2.4 times as long (on two
cores of an Intel server, where the copy takes a tenth of the rest). A transposed copy is made
first, by whole cache lines, and every tile of columns reads along its rows.

An operand that is seen through windows of something padded (a convolution's input) is stored with its edges,
where it is read often enough: the inner loops over it have none then, whatever padded it.
"""
from __future__ import annotations

from collections.abc import Iterator

from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import is_symbolic, largest_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.products import (
    TILE,
    Operands,
    is_contraction,
    own_axes,
    product_of,
    uncast,
    view_of_stored,
)
from tinygrad.schedule.split import core_machine

LINE_BYTES = 64
"""A cache line: single items less than this apart share one."""
MATRIX_AXES = 3
"""A matrix, or a batch of them, is stored by rows; more axes are ordered as the kernels around want them."""
EDGE_READS = 12
"""Times that an item is read, from which on it is worth storing beside zeros: without the copy the transpose
of a depthwise convolution of 3 x 3 takes 0.7 instead of 0.9 ms (8 x 64 x 56 x 56), of 7 x 7 1.5 instead of
1.2 (8 x 96 x 28 x 28), of 3 x 3 with stride 2, whose zeros are in between too, 11 instead of 2.4."""
ROW_BYTES, MANY_READS = 16, 256
"""Of blocks of threads: what is worth loading at once; how often an item is multiplied at least where a copy
of it is worth its time."""
WORTHWHILE_READS = 4
"""Tiles of columns that read the operand, from which on the copy is worth its time."""


def with_packed_operands(root: UOp) -> UOp:
    """The graph of `root` with such copies."""
    order = root.toposort()
    singles = {node: single for node in order if (single := _operand_to_pack(node)) is not None}
    kept = {_before_cast(single).base for single in singles.values()}
    kept.update(padded for node in order for padded in _padded_windows(node))
    done: dict[UOp, UOp] = {}

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp:
        new = node.with_sources(src)
        if node in singles:
            operand = done[singles[node]]
            packed = _packed(_before_cast(operand), node.arg[1])
            new = _with_operand(new, operand, packed.cast(operand.dtype))
        return new.contiguous() if node in kept and node.op is not Ops.BUFFER else new

    return root.rebuild(change, done=done) if kept else root


def _padded_windows(node: UOp) -> Iterator[UOp]:
    """What a contraction reads through windows and is padded, to be stored with its zeros."""
    product = product_of(node)
    if product is None:
        return
    for operand in map(uncast, product.src):
        padded = operand.viewed
        if padded.op is not Ops.PAD:
            continue
        shape, items = largest_shape(product.shape), prod(largest_shape(padded.shape))
        edges = sum(view.mask is not None for view in operand.st.views)
        if prod(shape[a] for a in own_axes(operand)) > items and edges * prod(shape) >= EDGE_READS * items:
            yield padded


def _operand_to_pack(node: UOp) -> UOp | None:
    """The operand of a contraction whose single items would be walked across lines, if a copy of it is worth
    its time: the smaller one, where it might be either."""
    product = product_of(node)
    if product is None or is_symbolic(product.shape) or not is_contraction(node):
        return None
    machine = core_machine(node.device)
    values = [uncast(s) for s in product.src]
    if machine is None:
        return next((v for v in values if _has_no_rows(v, product)), None)
    if not all(_jumps(v, node.arg[1]) for v in values):
        return None
    operands = Operands.of(node, values)
    sizes = [operands.items(own - operands.batch) for own in operands.own]
    smaller = sizes.index(min(sizes))
    single, readers = values[smaller], operands.items(operands.own[1 - smaller] - operands.own[smaller])
    if readers < WORTHWHILE_READS * TILE or 2 * sizes[smaller] * single.dtype.itemsize <= machine.l2_bytes:
        return None
    return single


def _has_no_rows(operand: UOp, product: UOp) -> bool:
    """For blocks of threads, which load tiles by rows: true for a view of memory that lies in runs along no
    axis (a convolution's weights, 9 items for each channel) of a product with many tiles."""
    operand = _before_cast(operand)
    view = operand.st.views[-1]
    if operand.base.op is not Ops.BUFFER or len(operand.st.views) > 1 or view.mask is not None:
        return False
    runs = any(abs(stride) == 1 and view.shape[a] >= ROW_BYTES // operand.dtype.itemsize
               for a, stride in enumerate(view.strides))
    items = prod(view.shape[a] for a in own_axes(operand))
    return not runs and items == operand.base.numel and prod(product.shape) >= MANY_READS * items


def _before_cast(operand: UOp) -> UOp:
    """A view of halves that are cast, for blocks of threads, as a view of these; any other as it is."""
    return operand if core_machine(operand.device) is not None else view_of_stored(operand)


def _jumps(operand: UOp, reduced: tuple[int, ...]) -> bool:
    """True for a view of memory in which a step along any axis of the sum leads to another cache line."""
    view, items = operand.st.views[-1], LINE_BYTES // operand.dtype.itemsize
    if operand.op not in Family.MOVEMENT or any(v.mask is not None for v in operand.st.views):
        return False
    if len(operand.st.views) == 1 and operand.base.op is not Ops.BUFFER \
            and sum(n > 1 for n in operand.base.shape) > MATRIX_AXES:
        return False  # how it will lie in memory is not known
    if prod(view.shape[a] for a in own_axes(operand)) > operand.base.numel:
        return False  # windows: the copy would repeat what they share
    return all(abs(view.strides[a]) >= items for a in reduced if view.shape[a] > 1)


def _with_operand(value: UOp, operand: UOp, changed: UOp) -> UOp:
    """The sum of products, or a part of it, over `changed` in place of `operand`."""
    if value is operand:
        return changed
    if value.op not in (Ops.REDUCE, Ops.WHERE, Ops.CAST, Ops.MUL):
        return value
    return value.with_sources(tuple([_with_operand(s, operand, changed) for s in value.src]))


def _packed(operand: UOp, reduced: tuple[int, ...]) -> UOp:
    """`operand` with memory of its own, in which the axes of the sum lie innermost."""
    axes, own = range(len(operand.shape)), own_axes(operand)
    once = operand.shrink([(0, n if a in own else 1) for a, n in enumerate(operand.shape)])
    inner = reduced if core_machine(operand.device) else sorted(reduced, key=operand.shape.__getitem__)
    order = [*(a for a in axes if a not in reduced), *inner]
    back = [order.index(a) for a in axes]
    moved = once.permute(order)
    rows = prod(moved.shape[:len(axes) - len(reduced)])
    stored = moved.reshape((rows, once.numel // rows)).contiguous()  # a matrix is stored by rows
    return stored.reshape(moved.shape).permute(back).expand(operand.shape)
