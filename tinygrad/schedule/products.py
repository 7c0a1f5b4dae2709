"""Sums of products in the tensor graph, before there are ranges to recognise them by."""
from __future__ import annotations

from tinygrad.codegen.indexing import range_extents
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

CONTRACTION_LENGTH = 16
"""Products that a sum adds up before it is worth a tile of its own."""
TILE = 64
"""Results along the longer side of a tile."""


def product_of(node: UOp) -> UOp | None:
    """The MUL whose values a REDUCE adds up, as they are, widened, or where a condition holds; None if it
    adds up something else."""
    if node.op is not Ops.REDUCE or node.arg[0] is not Ops.ADD:
        return None
    value = node.src[0]
    if value.op is Ops.WHERE and value.src[2].is_zero:
        value = value.src[1]
    while value.op is Ops.CAST:
        value = value.src[0]
    return value if value.op is Ops.MUL else None


def is_contraction(node: UOp) -> bool:
    """True for a long sum of products of values that are both spread over axes the other has."""
    product = product_of(node)
    if product is None or prod(range_extents(node)) < CONTRACTION_LENGTH:
        return False
    return all(_is_spread(s) for s in product.src)


def operand_bytes(node: UOp) -> int:
    """The memory that the operands of a contraction are read from more than once.

    A tile of results reads an operand once for `TILE` of the results it is spread over.
    """
    product = product_of(node)
    if product is None:
        return 0
    stored = [_stored(s) for s in product.src]
    return sum(s.numel * s.dtype.itemsize for s in stored if product.numel > TILE * s.numel)


def reread_bytes(node: UOp) -> int:
    """The memory that a core reads again and again while it makes the results of a contraction: a panel of
    one operand, for each tile of rows, and all of an operand that is seen through windows."""
    product = product_of(node)
    if product is None:
        return 0
    reduced, shape = node.arg[1], product.shape
    own = [[a for a, stride in enumerate(s.st.views[-1].strides) if stride] for s in product.src]
    shared = [a for a in own[0] if a in own[1] and a not in reduced]
    read = 0
    for operand, axes in zip(product.src, own, strict=True):
        batches = prod(shape[a] for a in shared)
        stored = _stored(operand)
        items = prod(shape[a] for a in axes)
        windowed = items > stored.numel
        rows = prod(shape[a] for a in axes if a not in reduced and a not in shared)
        kept = stored.numel / batches if windowed else items / batches / rows * min(rows, TILE)
        read += int(kept * operand.dtype.itemsize)
    return read


def uncast(value: UOp) -> UOp:
    """What a value was widened or narrowed from."""
    while value.op is Ops.CAST:
        value = value.src[0]
    return value


def _stored(value: UOp) -> UOp:
    """What an operand is a view of."""
    while value.op in Family.MOVEMENT or value.op is Ops.CAST:
        value = value.src[0]
    return value


def _is_spread(value: UOp) -> bool:
    while value.op in Family.MOVEMENT or value.op is Ops.CAST:
        if value.op is Ops.EXPAND:
            return True
        value = value.src[0]
    return False
